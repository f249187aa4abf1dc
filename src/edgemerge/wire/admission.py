"""Admission: the checks that a contribution must pass before it is merged, and their tolerances.

U (N, N), V (N, m), C (m,), S (m,). Each check returns None or says what is wrong.

True sums of bad samples pass; against those there are the list of allowed devices, and dropping a
device. A count (with tanh or relu) or an S that is too large, but in range, may pass, too; it makes
the scores of that sender's samples small.

Rounding. Every sum is below 2⁵³ quanta, so one operation of float64 on it errs by half a quantum at
most. A sample that is weighed or faded goes through eight at most: weighing (2), summing (1) and,
twice, scaling and rounding (2) and adding (1 of these is exact). Its error fades with it, so a sum
of count c is off by at most 4(c + 1) quanta; without weights or forgetting it is exact.

Relation. z = xA + b is rounded to the grid, by e with |e| ≤ step/2, before the activation. Hence,
for each hidden value i, Σ h_i z_i = (VA)_ii + g_i b_i + Σ h_i e_i with g = Σ h, |g_i| ≤
√(count·U_ii), and
- identity: h = z, so that U = VA + g bᵀ in every entry, and g = AᵀC + count·b;
- relu: h² = h z, with g_i ≥ 0;
- tanh: h² ≤ h z;
- sigmoid: 4(h − ½)² ≤ (h − ½) z + step, with g_i ≥ 0;
- cosine: |h − g(z̄)| ≤ |z − z̄| + step for the mean z̄ of z, since the slope is at most 1. Hence
  |V_ij − g(z̄_i)C_j| ≤ (d_i + step·√count)√S_j, with d_i² = Σ(z_i − z̄_i)². If samples vary widely
  about the middle of the range, this allows either sign of V.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas, lapack

from edgemerge.core.errors import MismatchError, RejectedError, SettingError, must_be
from edgemerge.core.ledger import Contribution, Kind, Ledger, must_be_of_kind
from edgemerge.core.projection import MAX_ABS_INPUT, Projection, as_number
from edgemerge.core.stats import Stats, exact_limit

Array = NDArray[np.float64]

UNIT_ROUNDOFF = 2.0**-53  # relative error of one operation of float64
# Tolerances relative to √(U_ii U_jj): of U, V, S as one Gram matrix, and of each as a value. In
# float32 both errors are a little above 2⁻²⁴. What root16 decodes is a Gram matrix however it was
# rounded; its values err by a little more than 2 · 2⁻¹¹, where small numbers lose digits.
FORM_TOLERANCES = {"exact": (0.0, 0.0), "float32": (2.0**-23, 2.0**-23), "root16": (0.0, 2.0**-9)}


@dataclass(frozen=True)
class Rounding:
    """How far an entry of the sums may be off: `slack`, plus a part relative to its bound."""

    slack: float
    gram: float
    value: float

    @classmethod
    def of(cls, stats: Stats, form: str = "exact") -> Rounding:
        """Return the rounding of sums that arrived in this form."""
        slack = 4.0 * stats.projection.quantum * (stats.count + 1.0)
        # root16 lifts the diagonal: see `_smallest_lift` in the codec
        lift = 2.0 * (stats.projection.n_hidden + 1) if form == "root16" else 1.0
        return cls(lift * slack, *FORM_TOLERANCES[form])

    @classmethod
    def of_any_form(cls, stats: Stats) -> Rounding:
        """Return the most that sums may be off whose parts may have arrived in any form."""
        gram, value = map(max, zip(*FORM_TOLERANCES.values(), strict=True))
        return cls(cls.of(stats, "root16").slack, gram, value)


def cholesky_within_rounding(
    U: Array, scale: Array, size: int, slack: float, relative: float
) -> Array | None:
    """Return L, lower triangular, with LLᵀ = U + rounding, or None if that is indefinite.

    A symmetric error with entries up to s + r√(d_i d_j) moves no eigenvalue by more than `size`
    times as much (scaled by d). Cholesky and a triangular solve add 4(N + 2) units to r.
    """
    lift = size * (slack + (relative + 4.0 * (len(U) + 2) * UNIT_ROUNDOFF) * scale)
    M = np.array(U, order="F")
    M.flat[:: len(M) + 1] += lift
    L, failed = lapack.dpotrf(M, lower=1, clean=1, overwrite_a=1)
    return None if failed else np.asarray(L)


def solve_lower(L: Array, V: Array) -> Array:
    """Return L⁻¹V."""
    return np.asarray(blas.dtrsm(1.0, L, V.T, side=1, lower=1, trans_a=1).T)


def relation_excess(stats: Stats, rounding: Rounding) -> Array:
    """Return how far each sum exceeds what the relation and rounding allow, (N,); ≤ 0 passes."""
    return RELATIONS[stats.projection.activation](_Relation(stats, rounding))


class _Relation:
    """The numbers that the relations share; all (N,) unless given."""

    def __init__(self, stats: Stats, rounding: Rounding) -> None:
        p, slack = stats.projection, rounding.slack
        self.stats, self.A, self.b, self.slack = stats, p.A, p.b, slack
        self.diagonal = stats.U.diagonal()
        self.count = stats.count + slack
        self.root = np.sqrt(np.maximum(self.diagonal, 0.0) + slack)  # at least √Σh²
        self.step = p.step
        weights = np.abs(p.A)
        self.total = weights.sum(0)
        self.reach = np.sqrt(np.maximum(stats.S, 0.0) + slack) @ weights  # at least √Σx² per input
        self.value = rounding.value + 4.0 * (p.n_inputs + 2) * UNIT_ROUNDOFF
        # what rounding does to U_ii and (VA)_ii, and e to Σ h_i z_i
        self.blur = self.value * self.root * (self.root + self.reach)
        self.blur += slack * (1.0 + self.total) + 0.5 * self.step * self.sums

    @property
    def sums(self) -> Array:
        """The most that |g_i| can be."""
        return np.asarray(np.sqrt(self.count) * self.root)

    def mean(self) -> tuple[Array, Array]:
        """Return Σz = AᵀC + count·b, and how far rounding may have moved it."""
        z = self.stats.C @ self.A + self.stats.count * self.b
        blur = self.slack * (self.total + 1.0) + 0.5 * self.step * self.count
        return z, blur + self.value * np.sqrt(self.count) * self.reach

    def products(self) -> Array:
        """Return (VA)_ii."""
        return np.asarray(np.einsum("ij,ji->i", self.stats.V, self.A))

    def identity(self) -> Array:
        g, blur = self.mean()
        gap = np.abs(self.stats.U - self.stats.V @ self.A - np.outer(g, self.b))  # (N, N)
        gap -= self.value * np.outer(self.root, self.root + self.reach)
        gap -= 0.5 * self.step * self.sums[:, None]
        gap -= np.outer(blur, np.abs(self.b))
        return np.asarray((gap - self.slack * (1.0 + self.total)).max(1))

    def relu(self) -> Array:
        gap, most = self.diagonal - self.products(), self.sums * self.b
        outside = np.maximum(gap - np.maximum(most, 0.0), np.minimum(most, 0.0) - gap)
        return np.asarray(outside - self.blur)

    def tanh(self) -> Array:
        gap = self.diagonal - self.products() - self.sums * np.abs(self.b)
        return np.asarray(gap - self.blur)

    def sigmoid(self) -> Array:
        z, blur = self.mean()
        left = 4.0 * self.diagonal + self.stats.count - self.sums * (4.0 + self.b)
        right = self.products() - 0.5 * z + self.step * self.count
        return np.asarray(left - right - 4.0 * self.blur - blur)

    def cosine(self) -> Array:
        p, (_, V, C, S), value = self.stats.projection, self.stats.arrays, self.value
        count = max(self.stats.count, p.quantum)
        root = np.sqrt(self.count)
        length = np.sqrt(np.maximum(S, 0.0) + self.slack)
        mean = C / count
        rounded = self.slack * (1.0 + np.abs(mean)) ** 2 + 4.0 * value * np.maximum(S, 0.0)
        spread = np.sqrt(np.maximum(S - C * mean, 0.0) + rounded) @ np.abs(self.A)  # at least d
        spread += self.step * root + self.slack * self.total / np.sqrt(count) + value * self.reach
        gap = np.abs(V - np.outer(p.rule.function(mean @ self.A + self.b), C))  # (N, m)
        gap -= np.outer(spread + value * (self.root + root), length)
        return np.asarray((gap - 2.0 * self.slack).max(1))


RELATIONS: dict[str, Callable[[_Relation], Array]] = {
    "identity": _Relation.identity,
    "relu": _Relation.relu,
    "tanh": _Relation.tanh,
    "sigmoid": _Relation.sigmoid,
    "cosine": _Relation.cosine,
}

Problem = str | None  # what is wrong, or None


@dataclass(frozen=True)
class Candidate:
    """One contribution and what it is checked against; see `admit`."""

    contribution: Contribution
    projection: Projection
    last: Contribution | None
    devices: Collection[str] | None
    forgetting: float
    form: str | None  # None: it is not known
    n_outputs: int | None

    @property
    def stats(self) -> Stats:
        """The sums to check."""
        return self.contribution.stats

    @cached_property
    def rounding(self) -> Rounding:
        """How far these sums may be off."""
        if self.form is None:
            return Rounding.of_any_form(self.stats)
        return Rounding.of(self.stats, self.form)

    @cached_property
    def root(self) -> Array | None:
        """L with LLᵀ = U lifted by the rounding of U, v and s together; None if indefinite."""
        U, r = self.stats.U, self.rounding
        return cholesky_within_rounding(
            U, np.maximum(U.diagonal(), 0.0), len(U) + 1, r.slack, r.gram
        )


def check_device(case: Candidate) -> Problem:
    """Only devices on the list may contribute."""
    if case.devices is None or case.contribution.device in case.devices:
        return None
    return f"found a device that is not on the list of {len(case.devices)}: add it there first"


def check_projection(case: Candidate) -> Problem:
    """The sender must have built the same projection."""
    if case.stats.projection == case.projection:
        return None
    found, expected = case.stats.projection, case.projection
    advice = expected.advice_for(found)
    return f"found {found}, expected {expected}: build the same Projection{advice}"


def check_shapes(case: Candidate) -> Problem:
    """Every array must have its type and shape."""
    N, m = case.projection.n_hidden, case.n_outputs or case.projection.n_inputs
    found = [(str(getattr(a, "dtype", "no array")), np.shape(a)) for a in case.stats.arrays]
    expected = [("float64", shape) for shape in ((N, N), (N, m), (m,), (m,))]
    return None if found == expected else f"found arrays {found}, expected {expected}"


def check_numbers(case: Candidate) -> Problem:
    """Every number must be finite, on the grid, and below the bound of exact sums."""
    q = case.projection.quantum
    for name, sums in zip("UVCSn", (*case.stats.arrays, np.array([case.stats.count])), strict=True):
        if not np.isfinite(sums).all():
            return f"found NaN or infinity in {name}, expected finite numbers"
        if np.abs(sums).max() >= (2.0**53 if name == "n" else exact_limit(q)):
            return f"found an entry of {name} above {exact_limit(q):.3g}, where sums are not exact"
        quanta = sums * (1.0 / q)  # exact: the quantum is a power of two
        if (quanta != np.rint(quanta)).any():
            return f"found an entry of {name} off the grid of {q:g}: it was not made by Stats"
    return (
        None if case.stats.count >= 0.0 else f"found count {case.stats.count}, expected 0 or more"
    )


def check_revision(case: Candidate) -> Problem:
    """The revision must rise, unless the same contribution comes again."""
    if case.last is None or Ledger.check(case.contribution, case.last) in ("newer", "same"):
        return None
    found, known = case.contribution.revision, case.last.revision
    return f"found revision {found} after {known}: it is late, or another device uses its name"


def check_growth(case: Candidate) -> Problem:
    """Without forgetting, the difference to the last contribution must be sums of samples too."""
    if case.last is None or case.forgetting != 1.0:
        return None
    new, old = case.stats, case.last.stats
    if new.count < old.count:
        return (
            f"found {new.count:g} samples after {old.count:g}: without forgetting they cannot fall"
        )
    slack, scale = (
        case.rounding.slack + Rounding.of(old, case.form or "exact").slack,
        new.U.diagonal(),
    )
    value = 2.0 * case.rounding.value
    fell = (new.S * (1.0 + value) + slack < old.S).any()
    if fell or cholesky_within_rounding(new.U - old.U, scale, len(scale), slack, value) is None:
        return "found sums that fell since its last revision: without forgetting they cannot"
    return None


def check_symmetric(case: Candidate) -> Problem:
    """U must be symmetric, to the bit."""
    return (
        None if np.array_equal(case.stats.U, case.stats.U.T) else "found a U that is not symmetric"
    )


def check_definite(case: Candidate) -> Problem:
    """U must be positive semidefinite, within its rounding."""
    return None if case.root is not None else "found a U with a negative eigenvalue"


def check_hidden_range(case: Candidate) -> Problem:
    """No hidden value can be larger than the activation, or the input's range, allows."""
    p, r = case.projection, case.rounding
    reach = MAX_ABS_INPUT * np.abs(p.A).sum(0) + np.abs(p.b) + p.step
    most = p.rule.largest if p.rule.largest < inf else reach
    limit = (case.stats.count + r.slack) * most**2 * (1.0 + r.value) + r.slack
    if (case.stats.U.diagonal() <= limit).all():
        return None
    return f"found hidden values too large for {case.stats.count:g} samples of {p.activation}"


def check_input_range(case: Candidate) -> Problem:
    """No sample can lie further out than the grid lets it."""
    r = case.rounding
    limit = (case.stats.count + r.slack) * MAX_ABS_INPUT**2 * (1.0 + r.value) + r.slack
    if case.n_outputs or case.stats.S.max() <= limit:
        return None
    return f"found S too large for {case.stats.count:g} samples within the range"


def check_target_bounds(case: Candidate) -> Problem:
    """S bounds V and C, by Cauchy and Schwarz: |V_ij|² ≤ U_ii·S_j and C_j² ≤ count·S_j."""
    (U, V, C, S), r = case.stats.arrays, case.rounding
    if S.min() < -r.slack:
        return "found a negative S, expected sums of squares"
    length = np.sqrt(np.maximum(S, 0.0) + r.slack) * (1.0 + r.value)
    if (
        np.abs(V) > np.outer(np.sqrt(np.maximum(U.diagonal(), 0.0) + r.slack), length) + r.slack
    ).any():
        return "found a V too large for U and S"
    if (np.abs(C) > np.sqrt(case.stats.count + r.slack) * length + r.slack).any():
        return f"found a C too large for S and {case.stats.count:g} samples"
    return None


def check_explained_share(case: Candidate) -> Problem:
    """What U explains of S, diag(VᵀU⁺V), cannot be more than S."""
    if case.root is None:
        return None
    Z, r = solve_lower(case.root, case.stats.V), case.rounding
    size = len(Z) + 1
    most = (
        np.maximum(case.stats.S, 0.0) * (1.0 + size * (r.gram + 4.0 * (size + 1) * UNIT_ROUNDOFF))
        + size * r.slack
    )
    if (np.einsum("ij,ij->j", Z, Z) <= most).all():
        return None
    return "found a V outside what U and S allow: it explains more than there is"


def check_relation(case: Candidate) -> Problem:
    """U and V must satisfy the relation of the activation; see the module's docstring."""
    if case.n_outputs or (relation_excess(case.stats, case.rounding) <= 0.0).all():
        return None
    return (
        "found a U and V that no samples have under this projection: sign, scale or count is wrong"
    )


CHECKS: tuple[Callable[[Candidate], Problem], ...] = (
    check_device,
    check_projection,
    check_shapes,
    check_numbers,
    check_revision,
    check_symmetric,
    check_definite,
    check_growth,
    check_hidden_range,
    check_input_range,
    check_target_bounds,
    check_explained_share,
    check_relation,
)


# of sums of any samples and targets, also where parts of them were rounded
GRAM_CHECKS = (check_definite, check_target_bounds, check_explained_share)


def wrong_sums(stats: Stats) -> Problem:
    """Return what is wrong with stored sums of any samples, however rounded, or None.

    Args:
        stats: The sums, with a count of 0 or more.
    """
    contribution = Contribution("stored", stats, 0)
    case = Candidate(contribution, stats.projection, None, None, 1.0, None, len(stats.C))
    return next(filter(None, (check(case) for check in GRAM_CHECKS)), None)


def admit(
    contribution: Contribution,
    *,
    projection: Projection,
    last: Contribution | None = None,
    devices: str | Collection[str] | None = None,
    forgetting: float = 1.0,
    form: str = "exact",
    n_outputs: int | None = None,
    kind: Kind = "normal",
) -> None:
    """Raise RejectedError if a contribution cannot be sums of samples under this projection.

    Args:
        contribution: What arrived.
        projection: The projection that all devices share.
        last: The contribution of the same key that it replaces; None (the default) if it is the
            first.
        devices: The device, or the devices, that may contribute; None (the default): all.
        forgetting: The sender's setting, 1 by default. Below 1 its sums may shrink.
        form: The form in which it was encoded, which says how far sums may be rounded: "exact"
            (the default), "float32" or "root16".
        n_outputs: The number of outputs, if the target is not the sample itself; None (the
            default): as many as inputs.
        kind: The kind that belongs where it is going: "normal" (the default), or "fault".

    Raises:
        RejectedError: It failed a check, or is of another kind; the message names the device and
            what is wrong.
        MismatchError: `last` has another key.
        SettingError: There is no such form, or the forgetting is out of range.

    >>> from edgemerge.core.stats import Stats
    >>> shared = Projection(n_inputs=2, n_hidden=3)
    >>> admit(Contribution("pump-3", Stats.of(shared, [[0.1, 0.2]]), 1), projection=shared)
    """
    must_be(contribution, Contribution, "decode() gives one from what a peer sent")
    must_be_of_kind(contribution, kind)
    if last is not None and last.key != contribution.key:
        raise MismatchError(f"found last={last}, expected one with the key {contribution.key}")
    must_be(projection, Projection, "give the one that all devices share")
    if form not in FORM_TOLERANCES:
        raise SettingError(f"found form {form!r}, expected one of {list(FORM_TOLERANCES)}")
    if not 0.0 < as_number("forgetting", forgetting) <= 1.0:
        raise SettingError(f"found forgetting={forgetting}, expected above 0, at most 1 (1: never)")
    listed = (devices,) if isinstance(devices, str) else devices
    case = Candidate(contribution, projection, last, listed, forgetting, form, n_outputs)
    for check in CHECKS:
        wrong = check(case)
        if wrong:
            raise RejectedError(f"{contribution.device}, {contribution.pattern}: {wrong}")
