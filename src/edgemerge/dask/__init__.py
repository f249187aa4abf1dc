"""Bulk training on a Dask cluster: workers sum up chunks, and add what they have in a tree.

Sums are exact, so the result is the same to the last bit, whatever the number of workers, the
order in which they finish, and how often one of them dies and another does its work again.
"""

from edgemerge.dask.cluster import local_client
from edgemerge.dask.tasks import delayed_stats
from edgemerge.dask.tree import summed_up

__all__ = ["delayed_stats", "local_client", "summed_up"]
