"""Part: the stats of some chunks, and what was skipped; parts add, like stats."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, Self, cast, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edgemerge.bulk.chunk import finite_rows, read_chunk
from edgemerge.core.errors import EdgemergeError, SampleError, SettingError
from edgemerge.core.projection import Projection
from edgemerge.core.stats import Stats

Array = NDArray[np.float64]
Read = Callable[[Any, Projection], Iterable[ArrayLike]]  # the samples of a chunk, some at a time

OnBadData = Literal["error", "skip"]
FORMER_WORDS = {"refuse": "error", "leave out": "skip"}  # still accepted


@dataclass(frozen=True, eq=False)
class Part:
    """The sum of some chunks; parts add.

    Args:
        stats: The sum.
        chunks: The number of chunks in it, 1 by default.
        left_out: The number of bad rows that were skipped, 0 by default.
        refused: The chunks that were skipped, each with its name and the reason; none by default.
    """

    stats: Stats
    chunks: int = 1
    left_out: int = 0
    refused: tuple[tuple[str, str], ...] = ()

    def __add__(self, other: Self) -> Self:
        """Add two parts; order and grouping do not matter."""
        return type(self)(
            self.stats + other.stats,  # M7
            self.chunks + other.chunks,
            self.left_out + other.left_out,
            tuple(sorted(self.refused + other.refused)),
        )

    def __eq__(self, other: object) -> bool:
        """Compare bit for bit."""
        return isinstance(other, Part) and self._facts == other._facts and self.stats == other.stats

    __hash__ = None  # type: ignore[assignment]  # holds arrays

    def __repr__(self) -> str:
        """Return counts, also of what was skipped."""
        lost = f", {_counted(self.left_out, 'row')} left out" if self.left_out else ""
        lost += f", {_counted(len(self.refused), 'chunk')} refused" if self.refused else ""
        seen = _counted(self.stats.count, "sample")
        return f"Part({_counted(self.chunks, 'chunk')}, {seen}{lost})"

    @property
    def _facts(self) -> tuple[int, int, tuple[tuple[str, str], ...]]:
        return self.chunks, self.left_out, self.refused

    @classmethod
    def nothing(cls, projection: Projection) -> Self:
        """Return the part that adds nothing.

        Args:
            projection: The projection of the parts that it is added to.
        """
        return cls(Stats.empty(projection), 0)

    @classmethod
    def without(cls, projection: Projection, chunk: object, reason: str) -> Self:
        """Return the part of a chunk that is skipped as a whole.

        Args:
            projection: The projection of the parts that it is added to.
            chunk: The chunk; its name is its text.
            reason: Why it is skipped, such as the words of an error.
        """
        return cls(Stats.empty(projection), 0, refused=((str(chunk), reason),))


def _counted(count: float, what: str) -> str:
    return f"{count:,.0f} {what}" + ("" if count == 1 else "s")


def part_of(
    projection: Projection, chunk: Any, *, bad_rows: OnBadData = "error", read: Read = read_chunk
) -> Part:
    """Read a chunk and sum it up, a few rows at a time.

    Args:
        projection: The projection that all devices share.
        chunk: One of `chunks_of`, or whatever `read` takes.
        bad_rows: What to do with a row that has a missing or infinite value: "error" (the
            default) raises SampleError, "skip" skips and counts it.
        read: `read(chunk, projection)` yields samples (k, n), some at a time; by default it reads
            the chunks of `chunks_of`.

    Raises:
        SampleError: The chunk cannot be read, or has a bad row.
    """
    on_bad_row = bad_data_choice("bad_rows", bad_rows)
    sums, seen, left_out = Stats.empty(projection), 0, 0
    try:
        for X in read(chunk, projection):
            rows = _as_rows(X)
            good = _usable_rows(rows, seen, on_bad_row)
            seen, left_out = seen + len(rows), left_out + len(rows) - len(good)
            sums += Stats.of(projection, good)
    except EdgemergeError as error:
        raise type(error)(f"{chunk}: {error}") from error
    except OSError as error:
        raise SampleError(f"{chunk}: found no way to read it: {error}") from error
    return Part(sums, left_out=left_out)


def bad_data_choice(name: str, found: str) -> OnBadData:
    """Return what to do with bad data, in the words of today; raise SettingError for others."""
    word = FORMER_WORDS.get(found, found)
    if word not in get_args(OnBadData):
        raise SettingError(f"found {name}={found!r}, expected one of {list(get_args(OnBadData))}")
    return cast(OnBadData, word)


def _as_rows(X: ArrayLike) -> NDArray[Any]:
    if isinstance(X, np.ma.MaskedArray):
        raise SampleError("found masked values, expected NaN for them: use `filled(np.nan)`")
    rows = np.asarray(X)
    if rows.ndim != 2 or rows.dtype.kind not in "fiub":
        raise SampleError(
            f"found {rows.dtype} of shape {rows.shape}, expected numbers of (k, "
            "n) from `read_chunk`"
        )
    return rows


def _usable_rows(rows: NDArray[Any], seen: int, on_bad_row: OnBadData) -> NDArray[Any]:
    good = finite_rows(rows)
    if len(good) < len(rows) and on_bad_row == "error":
        row, column = np.argwhere(~np.isfinite(rows))[0]
        found = "no number" if np.isnan(rows[row, column]) else rows[row, column]
        raise SampleError(
            f"row {seen + row + 1}, column {column + 1} of those used: found {found}, expected a "
            "finite number: choose other columns, or skip such rows (--bad-rows skip)"
        )
    return good
