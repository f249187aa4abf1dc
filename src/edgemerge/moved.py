"""Old module paths, which `import edgemerge` keeps importable for pickles of earlier versions.

A pickle holds the module and name of every class in it. A module that no longer exists is replaced
by one that looks each name up in its new module.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

MOVED = {
    "edgemerge.bulk.reading": {"read": "bulk.chunk:read_chunk"},
    "edgemerge.core.cache": {"Cache": "core.readout:Cache", "Fit": "core.readout:Fit"},
    "edgemerge.core.contribution": {"Contribution": "core.ledger:Contribution"},
    "edgemerge.core.events": {"Event": "core.patterns:Event"},
    "edgemerge.core.grouping": {"Group": "core.similarity:Group"},
    "edgemerge.core.instance": {"Instance": "core.patterns:Pattern"},
    "edgemerge.core.known": {"Known": "core.detector:Model", "Look": "core.detector:Look"},
    "edgemerge.core.level": {"Level": "core.readout:Level"},
    "edgemerge.core.likeness": {"Profile": "core.similarity:Profile"},
    "edgemerge.core.ring": {"Ring": "core.patterns:RingBuffer"},
    "edgemerge.core.room": {"Room": "core.stats:Capacity"},
    "edgemerge.core.sums": {"Sums": "core.stats:Sums"},
    "edgemerge.core.threshold": {"Threshold": "core.limit:Threshold"},
    "edgemerge.core.told": {
        "Origin": "core.ledger:Origin",
        "Part": "core.ledger:MergedPart",
        "Told": "core.ledger:Merged",
    },
    "edgemerge.core.waiting": {"Waiting": "core.detector:SampleBuffer"},
    "edgemerge.dask.bundling": {"Bundle": "dask.tasks:Bundle"},
    "edgemerge.dask.lazily": {
        "stats_of": "dask.tasks:partition_stats",
        "total_of": "dask.tasks:add_stats",
    },
    "edgemerge.dask.leaf": {
        "Leaf": "dask.tasks:SumTask",
        "added": "dask.tasks:add_parts",
        "end": "dask.tasks:exit_worker",
    },
}


class MovedModule(ModuleType):
    """Replaces a module that no longer exists."""

    def __getattr__(self, name: str) -> Any:
        """Return the object that now has this name."""
        if name not in MOVED[self.__name__]:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        module, _, new_name = MOVED[self.__name__][name].partition(":")
        return getattr(import_module(f"edgemerge.{module}"), new_name)


def register() -> None:
    """Make the old paths importable."""
    for path in MOVED:
        sys.modules.setdefault(path, MovedModule(path))
