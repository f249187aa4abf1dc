"""A history too large for memory, summed up chunk by chunk, on any engine that can add.

`chunks_of` cuts files into chunks, `part_of` sums one up, and parts add: that is all an engine
needs. `edgemerge.dask` is one; the how-to shows others.
"""

from edgemerge.bulk.chunk import Chunk, chunks_of
from edgemerge.bulk.part import Part, part_of

__all__ = ["Chunk", "Part", "chunks_of", "part_of"]
