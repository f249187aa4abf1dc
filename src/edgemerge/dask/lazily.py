"""Stats of a Dask collection, as one more step of its graph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dask.delayed import delayed

from edgemerge.core.projection import Projection
from edgemerge.core.stats import Stats
from edgemerge.dask.bundling import FAN_IN


def delayed_stats(projection: Projection, collection: Any) -> Any:
    """Give the stats of a Dask array or data frame as something to `compute()`, on any scheduler.

    Columns of a data frame are those that the projection names, else all.
    """
    shared = delayed(projection)
    level = [delayed(stats_of)(shared, each) for each in _partitions(collection)]
    while len(level) > 1:
        some = (level[i : i + FAN_IN] for i in range(0, len(level), FAN_IN))
        level = [delayed(total_of)(shared, parts) for parts in some]
    return level[0]


def _partitions(collection: Any) -> list[Any]:
    if hasattr(collection, "rechunk"):  # an array, whose rows may be cut too
        return list(collection.rechunk({1: -1}).to_delayed().ravel())
    return list(collection.to_delayed())


def stats_of(projection: Projection, rows: Any) -> Stats:
    """Sum up one partition."""
    named = projection.names is not None and hasattr(rows, "columns")
    return Stats.of(projection, rows[list(projection.names or ())] if named else rows)


def total_of(projection: Projection, parts: Iterable[Stats]) -> Stats:
    """Add up some."""
    return Stats.total(projection, parts)
