"""Checks of where a contribution comes from and whether it can be read; None means all is well."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from edgemerge.core.contribution import Contribution
from edgemerge.core.projection import Projection
from edgemerge.core.rounding import Rounding, factor
from edgemerge.core.stats import Stats
from edgemerge.core.sums import limit

Array = NDArray[np.float64]
Words = str | None  # what is wrong, or None


@dataclass(frozen=True)
class Case:
    """One contribution and what it is held against."""

    note: Contribution
    projection: Projection
    last: Contribution | None
    devices: Collection[str] | None
    forgetting: float
    form: str
    n_outputs: int | None

    @property
    def stats(self) -> Stats:
        """The sums in question."""
        return self.note.stats

    @cached_property
    def rounding(self) -> Rounding:
        """What these sums may be off by."""
        return Rounding.of(self.stats, self.form)

    @cached_property
    def root(self) -> Array | None:
        """L with LLᵀ = U lifted by the rounding of U, v and s together; None if indefinite."""
        U, r = self.stats.U, self.rounding
        return factor(U, np.maximum(U.diagonal(), 0.0), len(U) + 1, r.slack, r.gram)


def origin(case: Case) -> Words:
    """Only devices on the list may contribute."""
    if case.devices is None or case.note.device in case.devices:
        return None
    return f"found a device that is not on the list of {len(case.devices)}: add it there first"


def agreement(case: Case) -> Words:
    """The sender must have built the same projection."""
    if case.stats.projection == case.projection:
        return None
    return f"found {case.stats.projection}, expected {case.projection}: build the same Projection"


def shapes(case: Case) -> Words:
    """Every array must have its type and shape."""
    N, m = case.projection.n_hidden, case.n_outputs or case.projection.n_inputs
    found = [(str(getattr(a, "dtype", "no array")), np.shape(a)) for a in case.stats.arrays]
    expected = [("float64", shape) for shape in ((N, N), (N, m), (m,), (m,))]
    return None if found == expected else f"found arrays {found}, expected {expected}"


def numbers(case: Case) -> Words:
    """Every number must be finite, on the grid, and below the bound of exact sums."""
    q = case.projection.quantum
    for name, sums in zip("UVCSn", (*case.stats.arrays, np.array([case.stats.count])), strict=True):
        if not np.isfinite(sums).all():
            return f"found NaN or infinity in {name}, expected finite numbers"
        if np.abs(sums).max() >= (2.0**53 if name == "n" else limit(q)):
            return f"found an entry of {name} above {limit(q):.3g}, where sums are not exact"
        quanta = sums * (1.0 / q)  # exact: the quantum is a power of two
        if (quanta != np.rint(quanta)).any():
            return f"found an entry of {name} off the grid of {q:g}: it was not made by Stats"
    return (
        None if case.stats.count >= 0.0 else f"found count {case.stats.count}, expected 0 or more"
    )


def newer(case: Case) -> Words:
    """The revision must rise; the very same contribution again does no harm."""
    if case.last is None or case.note.revision > case.last.revision:
        return None
    if case.note.revision == case.last.revision and case.stats == case.last.stats:
        return None
    found, known = case.note.revision, case.last.revision
    return f"found revision {found} after {known}: it is late, or somebody else uses its name"


def growing(case: Case) -> Words:
    """Without forgetting, what is new must be sums of samples too."""
    if case.last is None or case.forgetting != 1.0:
        return None
    new, old = case.stats, case.last.stats
    if new.count < old.count:
        return (
            f"found {new.count:g} samples after {old.count:g}: without forgetting they cannot fall"
        )
    slack, scale = case.rounding.slack + Rounding.of(old, case.form).slack, new.U.diagonal()
    value = 2.0 * case.rounding.value
    fell = (new.S * (1.0 + value) + slack < old.S).any()
    if fell or factor(new.U - old.U, scale, len(scale), slack, value) is None:
        return "found sums that fell since its last revision: without forgetting they cannot"
    return None
