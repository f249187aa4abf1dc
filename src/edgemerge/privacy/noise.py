"""Noise with a stated ε: sums from which it can hardly be told whether a sample is among them.

Sample level: two sets of samples that differ by one sample give released sums whose distributions
are (ε, δ)-close. A release has up to five blocks; those that it does not need are zeros:

- of a mean: C and the count. It costs little, and the projection is then centred on it.
- of sums: U, V, ΣS as one scalar (in the first entry of S), and the count.

**Clipping.** A row adds the vector v = (hᵀh in its upper triangle, hᵀx, x, ‖x‖², 1). With a scale
a for each block, fixed beforehand from the projection alone, ‖v‖² = Σ‖v_block‖²/a². A row counts
with the weight w = min(1, 1/‖v‖), rounded down to a multiple of 2⁻⁸, so that ‖wv‖ ≤ 1 whatever the
row is; one that is far out counts nothing. Sums are rounded to the grid once, which moves an entry
by half a quantum at most, so that one row changes the sums by at most (M13)

    Δ = 1 + q√(Σ d/a²), with d entries in a block, and d = n² for ΣS, a sum of n rounded numbers.

**Noise.** Each entry of a block gets discrete Gaussian noise of σ = z·Δ·a on the grid (`opendp`
draws it exactly), which is the Gaussian mechanism with noise multiplier z. Each device adds its
share, σ/√least, before anything leaves it, so the sum over at least `least` devices has at least σ.
A sum of discrete Gaussians is not quite one, but σ is millions of quanta, where the difference is
far below 10⁻¹⁰⁰ (Kairouz and others, 2021).

**Accounting.** Gaussian mechanisms on the same samples compose to a Gaussian mechanism:
1/z² = Σ1/z_i², and δ(ε) = Φ(1/2z − εz) − e^ε·Φ(−1/2z − εz) is exact (Balle and Wang, 2018). So a
`Budget` is a sum of shares of 1/z², which stops at 1.

**In a masked fleet** (`NoiseSettings`) a device sums up what it learns, clipped (`ClippedSums`),
draws the noise of what is new once, and sends it in one epoch. Every total has fresh noise of σ in
it, so an epoch is one release of the samples in it, whatever else its deltas hold; and as a sample
is in one epoch only, that is all that its budget is spent on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from importlib import import_module
from math import ceil, exp, inf, isfinite, log, sqrt
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from edgemerge.core.errors import (
    BudgetError,
    CapacityError,
    FormatError,
    RejectedError,
    SettingError,
)
from edgemerge.core.projection import Projection, Samples, random_uniform
from edgemerge.core.stats import MIN_SPARE, Stats, must_fit

Array = NDArray[np.float64]
Words = NDArray[np.uint64]
Draw = Callable[[Sequence[int], float], Sequence[int]]
Release = Literal["sums", "mean"]

WEIGHT_STEP = 2.0**-8  # of the weights of rows: products with them are exact before the rounding
INPUT_RADIUS = 0.2  # root mean square of a centred input that still counts fully, in half-ranges
SHARES_OF_SUMS = {"U": 0.3, "V": 0.65, "S": 0.04, "count": 0.01}  # of Σ‖v‖²/a² of a row
SHARES_OF_MEAN = {"C": 0.99, "count": 0.01}
NOMINAL_ROWS = 256  # random rows that tell how long hidden values are
MIN_EPSILON, MAX_EPSILON, MIN_DELTA, MAX_DELTA = 0.01, 100.0, 1e-15, 0.1
TAIL = 7.0  # standard deviations: beyond them noise is no explanation
SHARE_ROUNDING = 1e-9  # of a budget: shares such as 0.1 do not add up to 1 exactly
CLIPPED = "clipped"  # the pattern of clipped sums on their way to an exchange
SHARE_OF_MEAN = 0.05  # of a fleet's budget, for the mean that another fleet is centred on
VARIANCE_UNIT = 2.0**-20  # of σ²: in so many units a total says how much noise it has
CLIPPED_ROWS = 64  # samples that are summed up together


def delta_of(multiplier: float, epsilon: float) -> float:
    """Return the δ of a Gaussian mechanism at this ε.

    Args:
        multiplier: σ over the sensitivity, above 0.
        epsilon: ε, 0 or more.

    >>> round(delta_of(1.0, 4.377), 7)
    1e-05
    """
    from scipy.special import log_ndtr, ndtr  # noqa: PLC0415 - slow, and only noise needs it

    half, shift = 0.5 / multiplier, epsilon * multiplier
    # e^ε may overflow where Φ underflows: multiply their logarithms
    return max(float(ndtr(half - shift) - exp(epsilon + log_ndtr(-half - shift))), 0.0)


def epsilon_of(multiplier: float, delta: float) -> float:
    """Return the ε of a Gaussian mechanism at this δ; 0 if nothing is released.

    Args:
        multiplier: σ over the sensitivity, above 0; infinite: nothing is released.
        delta: δ, between 0 and 1.

    >>> round(epsilon_of(2.0, 1e-5), 3)
    1.993
    """
    from scipy.optimize import brentq  # noqa: PLC0415 - slow, and only noise needs it

    if multiplier == inf or delta_of(multiplier, 0.0) <= delta:
        return 0.0
    # zCDP bounds it: ε ≤ ρ + 2√(ρ·ln(1/δ)), with ρ = 1/2z²
    rho = 0.5 / multiplier**2
    most = rho + 2.0 * sqrt(-rho * log(delta)) + 1.0
    return float(brentq(lambda e: delta_of(multiplier, e) - delta, 0.0, most, xtol=1e-12))


def multiplier_for(epsilon: float, delta: float) -> float:
    """Return the least σ over the sensitivity that gives (ε, δ).

    Args:
        epsilon: ε, above 0.
        delta: δ, between 0 and 1.

    >>> round(multiplier_for(8.0, 1e-5), 3)
    0.6
    """
    from scipy.optimize import brentq  # noqa: PLC0415 - slow, and only noise needs it

    found = brentq(
        lambda t: delta_of(exp(t), epsilon) - delta, log(1e-3), log(1e9), xtol=1e-12, rtol=1e-14
    )
    return exp(found) * (1.0 + 1e-9)  # rather above than below the root


class Budget:
    """The privacy of samples: what may be released of them, and what was.

    All releases of the same samples need one budget: their mean, their sums, and the same sums
    again. Samples that are in no other release may have a budget of their own.

    Args:
        epsilon: ε, from 0.01 to 100: the odds that a sample was there change by at most e^ε. 1 is
            strong, 10 hardly protects.
        delta: δ, from 1e-15 to 0.1: the chance that they change by more. Keep it well below one
            over the number of samples.
        spent: The share that was spent before, 0 by default: what `spent` said when it was saved.

    >>> budget = Budget(epsilon=4.0, delta=1e-5)
    >>> z = budget.spend(0.05, "the mean")
    >>> round(z, 2), round(budget.spend(0.95, "the sums"), 2)
    (4.84, 1.11)
    >>> budget
    Budget(ε = 4 of 4 spent at δ = 1e-05)
    >>> budget.spend(0.05, "the sums again")
    Traceback (most recent call last):
    ...
    edgemerge.core.errors.BudgetError: found 0% of the budget of ε = 4, δ = 1e-05 left, ...
    """

    def __init__(self, epsilon: float, delta: float, spent: float = 0.0) -> None:
        """Check the settings."""
        if not (MIN_EPSILON <= epsilon <= MAX_EPSILON and MIN_DELTA <= delta <= MAX_DELTA):
            raise SettingError(
                f"found epsilon={epsilon}, delta={delta}, expected epsilon from {MIN_EPSILON:g} to "
                f"{MAX_EPSILON:g} and delta from {MIN_DELTA:g} to {MAX_DELTA:g}, such as "
                "epsilon=4, delta=1e-5"
            )
        if not 0.0 <= spent <= 1.0 + SHARE_ROUNDING:
            raise SettingError(f"found spent={spent}, expected a share from 0 to 1")
        self.epsilon, self.delta, self.spent = float(epsilon), float(delta), float(spent)

    def spend(self, share: float, what: str) -> float:
        """Spend a share of the budget; return the noise multiplier that it buys.

        Args:
            share: Of the budget, above 0; shares add up to 1 at most.
            what: What is released, for the error.

        Raises:
            BudgetError: So much is not left; nothing was spent.
        """
        if not 0.0 < share <= 1.0:
            raise SettingError(f"found share={share}, expected above 0 and at most 1")
        if self.spent + share > 1.0 + SHARE_ROUNDING:
            raise BudgetError(
                f"found {max(1.0 - self.spent, 0.0):.0%} of the budget of ε = {self.epsilon:g}, "
                f"δ = {self.delta:g} left, expected {share:.0%} for {what}: nothing more may be "
                "released of these samples; release fresh samples only, or agree on a larger ε"
            )
        self.spent += share
        return multiplier_for(self.epsilon, self.delta) / sqrt(share)

    @property
    def spent_epsilon(self) -> float:
        """The ε of what was released so far, at δ."""
        if not self.spent:
            return 0.0
        return epsilon_of(multiplier_for(self.epsilon, self.delta) / sqrt(self.spent), self.delta)

    def __repr__(self) -> str:
        """Show what is spent."""
        spent, most = f"{self.spent_epsilon:.3g}", f"{self.epsilon:g}"
        return f"Budget(ε = {spent} of {most} spent at δ = {self.delta:g})"


@dataclass(frozen=True)
class Blocks:
    """One number for each block of the sums, in their order; 0 for one that is not released.

    Args:
        U: Of U, 0 by default.
        V: Of V, 0 by default.
        C: Of C, 0 by default.
        S: Of ΣS, 0 by default.
        count: Of the count, 0 by default.
    """

    U: float = 0.0
    V: float = 0.0
    C: float = 0.0
    S: float = 0.0
    count: float = 0.0

    def __iter__(self) -> Iterator[float]:
        """Iterate over the numbers."""
        return iter((self.U, self.V, self.C, self.S, self.count))


@dataclass(frozen=True, eq=False, repr=False)
class Noised:
    """Sums with noise in them, and how much it is.

    Args:
        sums: The sums, on the grid. Their blocks that were not released are zeros, and S holds ΣS
            in its first entry.
        variances: The variance of the noise in an entry of each block.
    """

    sums: Stats
    variances: Blocks

    def __add__(self, other: Noised) -> Noised:
        """Return the sums of both, with the noise of both."""
        added = (a + b for a, b in zip(self.variances, other.variances, strict=True))
        return Noised(self.sums + other.sums, Blocks(*added))

    def __radd__(self, zero: int) -> Noised:
        """Support `sum`, which starts with 0."""
        return self if zero == 0 else NotImplemented

    def __sub__(self, part: Noised) -> Noised:
        """Remove a part that is among them, with its noise: what a device does with its own."""
        left = (max(a - b, 0.0) for a, b in zip(self.variances, part.variances, strict=True))
        return Noised(self.sums - part.sums, Blocks(*left))

    @property
    def sigma(self) -> Blocks:
        """The standard deviation of the noise in an entry of each block."""
        return Blocks(*(sqrt(v) for v in self.variances))

    @property
    def ridge(self) -> float:
        """The ridge against the noise in U: 2σ√N, how far noise moves eigenvalues at most."""
        return 2.0 * self.sigma.U * sqrt(len(self.sums.U))

    @property
    def mean(self) -> Array:
        """The mean of the samples as readings, (n,), within the range of the projection."""
        found = self.sums.C / max(self.sums.count, 1.0)
        return self.sums.projection.grid.to_readings(np.clip(found, -1.0, 1.0))

    def centred(self) -> Projection:
        """Return the projection with its range centred on the mean; its width stays.

        All devices learn with it from then on: samples near the mean have short inputs, which
        count fully, and need the less noise.
        """
        p, mean = self.sums.projection, self.mean
        half = np.broadcast_to((np.asarray(p.high) - np.asarray(p.low)) / 2.0, mean.shape)
        return replace(p, low=mean - half, high=mean + half)

    def check(self) -> None:
        """Raise RejectedError if these cannot be sums of samples, whatever the noise is."""
        (U, V, _, S), count, sigma = self.sums.arrays, self.sums.count, self.sigma
        diagonal, squares = U.diagonal() + TAIL * sigma.U, S[0] + TAIL * sigma.S
        largest = self.sums.projection.rule.largest
        # a matrix of Gaussian noise has eigenvalues within σ(2√N + t), and vectors σ(√n + t)
        lowest, shift = self.ridge + TAIL * sigma.U, sigma.V * (sqrt(V.shape[1]) + TAIL)
        lengths = np.sqrt(np.maximum(diagonal, 0.0) * max(squares, 0.0)) + shift
        problems = (
            (count + TAIL * sigma.count < 0.0, "a negative count"),
            (squares < 0.0, "a negative ΣS"),
            (np.linalg.eigvalsh(U)[0] < -lowest - _slack(self.sums), "a U that is not definite"),
            (
                (diagonal > (count + TAIL * sigma.count) * largest**2 + 2.0 * TAIL * sigma.U).any(),
                f"hidden values too large for {count:.0f} samples",
            ),
            ((np.linalg.norm(V, axis=1) > lengths + _slack(self.sums)).any(), "a V too large"),
        )
        for wrong, what in problems:
            if wrong:
                raise RejectedError(
                    f"found {what}, expected sums of samples with noise of σ = {sigma.U:.3g} in U: "
                    "leave this total out"
                )

    def denoised(self) -> Stats:
        """Return sums that a detector can adopt, estimated from these; it costs no privacy.

        U is the nearest one without negative eigenvalues, plus `ridge` on its diagonal: so a
        readout is regularised wherever these sums are in it. The loss of the samples under their
        readout (M10) is corrected for the noise in U and V, and is at least as large as what is
        unknown about it; S is what gives this loss (M13). C is 0: the projection is centred.
        """
        sums, var, lift = self.sums, self.variances, self.ridge
        p, V, count, n = sums.projection, sums.V, max(sums.count, 1.0), len(sums.S)
        values, Q = np.linalg.eigh(sums.U)
        lifted = _on_grid((Q * np.maximum(values, 0.0)) @ Q.T + lift * np.eye(len(Q)), p)
        U = np.tril(lifted) + np.tril(lifted, -1).T
        plain = Stats(p, U, V, np.zeros(n), np.zeros(n), count)
        readout = plain.solve()
        P, B = readout.P, readout.B
        norm, spread = float(np.vdot(B, B)), float(np.trace(P))
        loss = float(sums.S[0] - 2.0 * np.vdot(B, V) + np.vdot(B, sums.U @ B))  # M10
        # B follows the noise, so that these terms are too small; their means, by Stein's lemma:
        loss += 2.0 * n * var.V * spread  # M13
        loss += 2.0 * var.U * _mean_shift(values, Q.T @ V, lift + readout.ridge)
        G = B.T @ B if n < len(B) else B @ B.T
        unknown = sqrt(var.S + 4.0 * var.V * norm + 2.0 * var.U * float(np.vdot(G, G)))
        loss = max(loss, unknown, n * count * p.rounding_loss)
        # M11 divides by (1 − f/c)², with an f to which the lift has added
        left = [
            max(1.0 - (len(P) - r * spread) / count, MIN_SPARE)
            for r in (readout.ridge, readout.ridge + lift)
        ]
        loss *= (left[0] / left[1]) ** 2
        explained = np.einsum("ij,ij->j", B, 2.0 * V - U @ B)
        S = _on_grid(explained + loss / n, p)
        return replace(plain, S=np.maximum(S, 0.0))

    def __repr__(self) -> str:
        """Show the sums and σ of U."""
        return f"Noised({self.sums}, σ = {self.sigma.U:.3g} in U)"


@dataclass(frozen=True)
class Noise:
    """What each device does to its sums before a release; equal settings on all devices.

    Use `Noise.for_mean` or `Noise.for_sums` rather than the constructor.

    Args:
        projection: What all devices share.
        scales: The scale a of each block, 0 for one that is not released.
        multiplier: The noise multiplier z of the sum, from `Budget.spend`.
        least: The devices whose noise is in every total that is opened, at least; 1 by default.
            Devices that work together with a reader do not count: they know their own noise.

    >>> shared = Projection(n_inputs=3, n_hidden=16)
    >>> devices = np.random.default_rng(7).normal(0.3, 0.05, (4, 1000, 3))
    >>> budget = Budget(epsilon=4.0, delta=1e-5)
    >>> noise = Noise.for_mean(shared, budget.spend(0.1, "the mean"), least=3)
    >>> mean = sum(noise.add(noise.sums_of(X)) for X in devices)
    >>> bool((abs(mean.mean - 0.3) < 0.1).all())
    True
    >>> noise = Noise.for_sums(mean.centred(), budget.spend(0.9, "the sums"), least=3)
    >>> total = sum(noise.add(noise.sums_of(X)) for X in devices)
    >>> total.check()
    >>> total.denoised().solve()
    Readout(16 hidden, 3 outputs, ridge ...)
    """

    projection: Projection
    scales: Blocks
    multiplier: float
    least: int = 1

    def __post_init__(self) -> None:
        """Check the settings."""
        if not self.multiplier > 0.0 or self.least < 1:
            raise SettingError(
                f"found multiplier={self.multiplier}, least={self.least}, expected a multiplier "
                "above 0, from Budget.spend, and at least 1 device"
            )

    @classmethod
    def for_mean(cls, projection: Projection, multiplier: float, *, least: int = 1) -> Noise:
        """Return the noise of a mean; rows within the range count fully.

        Args:
            projection: What all devices share, with a range that was not taken from the samples.
            multiplier: From `Budget.spend`; a twentieth of the budget is usually enough.
            least: The devices whose noise is in every total, 1 by default.
        """
        norms = {"C": sqrt(projection.n_inputs), "count": 1.0}
        return cls(projection, _scales(norms, SHARES_OF_MEAN), multiplier, least)

    @classmethod
    def for_sums(
        cls,
        projection: Projection,
        multiplier: float,
        *,
        least: int = 1,
        radius: float = INPUT_RADIUS,
    ) -> Noise:
        """Return the noise of sums.

        Args:
            projection: What all devices share, best with a range centred on a noised mean.
            multiplier: From `Budget.spend`.
            least: The devices whose noise is in every total, 1 by default.
            radius: How far samples usually are from the middle of the range: the root mean square
                over the inputs, in half-ranges, 0.2 by default. Samples further out count less.
                Choose it from what is known beforehand, not from the samples.
        """
        if not 0.0 < radius < inf:
            raise SettingError(f"found radius={radius}, expected above 0, such as {INPUT_RADIUS}")
        squares = radius**2 * projection.n_inputs
        hidden = _nominal_hidden(projection, radius)
        norms = {"U": hidden**2 / sqrt(2.0), "V": hidden * sqrt(squares), "S": squares, "count": 1}
        return cls(projection, _scales(norms, SHARES_OF_SUMS), multiplier, least)

    @property
    def sensitivity(self) -> float:
        """Δ: how far one row moves the sums at most, in scales: 1, and a little for rounding."""
        squares = [size / a**2 for a, size in zip(self.scales, self._sizes, strict=True) if a]
        return 1.0 + self.projection.quantum * sqrt(sum(squares))  # M13

    @property
    def sigma(self) -> Blocks:
        """The standard deviation of the noise in an entry of each block, in the sum."""
        return Blocks(*(self.multiplier * self.sensitivity * a for a in self.scales))

    @property
    def _sizes(self) -> tuple[int, ...]:
        N, n = self.projection.n_hidden, self.projection.n_inputs
        return N * (N + 1) // 2, N * n, n, n * n, 1  # ΣS is a sum of n rounded numbers

    def weights(self, X: Array, H: Array) -> Array:
        """Return the weight with which each row counts, (k,).

        Args:
            X: Rows on the grid, (k, n).
            H: Their hidden values, (k, N).
        """
        x, h, a = (X**2).sum(1), (H**2).sum(1), self.scales
        blocks = ((h**2 + (H**4).sum(1)) / 2.0, h * x, x, x**2, np.ones(len(X)))
        parts = (block / scale**2 for block, scale in zip(blocks, a, strict=True) if scale)
        norms = np.sqrt(sum(parts, start=np.zeros(len(X))))
        # a row on the bound must not pass it by the rounding of its norm
        most = np.minimum(1.0, (1.0 - 1e-12) / np.maximum(norms, 1e-300))
        return np.asarray(np.floor(most / WEIGHT_STEP) * WEIGHT_STEP)

    def sums_of(self, X: Samples) -> Stats:
        """Return the sums of samples, clipped, without noise yet: they must not leave the device.

        Args:
            X: Samples (k, n), as for `Stats.of`.

        Raises:
            CapacityError: There are too many samples for exact sums, about 2·10⁶: give them in
                parts, and add the results.
        """
        p = self.projection
        rows = p.to_rows(X)
        full = Stats.of_rows(p, rows, weights=self.weights(rows, p.project(rows)))
        found = self._released(full)
        # with weights, products are exact up to fewer samples
        must_fit(full.largest, p.quantum * WEIGHT_STEP)
        must_fit(found.largest, p.quantum)
        return found

    def whole_sums_of(self, rows: Array) -> Stats:
        """Return 256 times the clipped sums: weights are whole numbers, so nothing is rounded.

        Sums of several calls add up exactly, and `* WEIGHT_STEP` rounds their sum once.

        Args:
            rows: Samples on the grid, (k, n).

        Raises:
            CapacityError: There are too many samples for exact sums, about 2·10⁶.
        """
        p = self.projection
        weights = self.weights(rows, p.project(rows)) / WEIGHT_STEP
        full = Stats.of_rows(p, rows, weights=weights)
        found = self._released(full)
        for sums in (full, found):
            must_fit(sums.largest, p.quantum)
        return found

    def _released(self, full: Stats) -> Stats:
        """Return the blocks that are released, and zeros for the others."""
        U, V, C, S = full.arrays
        total = np.zeros_like(S)
        total[0] = S.sum()
        released = zip((U, V, C, total), self.scales, strict=False)
        U, V, C, S = (array if scale else np.zeros_like(array) for array, scale in released)
        return Stats(self.projection, U, V, C, S, full.count)

    def add(self, sums: Stats, draw: Draw | None = None) -> Noised:
        """Add this device's share of the noise.

        Add it once, keep the result, and send that however often: the same sums with other noise
        are another release.

        Args:
            sums: What `sums_of` returned, or several of them added up.
            draw: Returns whole numbers plus discrete Gaussian noise of a scale; `opendp` unless
                given.
        """
        self.projection.must_equal(sums.projection)
        draw, q = draw or discrete_gaussian, self.projection.quantum
        share = Blocks(*(s / sqrt(self.least) for s in self.sigma))
        upper = np.triu_indices(len(sums.U))
        whole = sums.U[upper], sums.V.ravel(), sums.C, sums.S[:1], np.array([sums.count])
        blocks = [
            np.array(draw([round(v / q) for v in block.tolist()], sigma / q)) * q
            if sigma
            else block
            for block, sigma in zip(whole, share, strict=True)
        ]
        U, S = np.zeros_like(sums.U), np.zeros_like(sums.S)
        U[upper] = blocks[0]
        S[:1] = blocks[3]
        arrays = U + np.triu(U, 1).T, blocks[1].reshape(sums.V.shape), blocks[2], S
        noised = Stats(self.projection, *arrays, float(blocks[4][0]))
        return Noised(noised, Blocks(*(s * s for s in share)))


@dataclass(frozen=True)
class NoiseSettings:
    """The noise that a masked fleet has agreed on; every device pins it.

    Args:
        epsilon: ε of a sample's budget, from 0.01 to 100.
        delta: δ of it, from 1e-15 to 0.1.
        radius: How far samples usually are from the middle of the range, 0.2 by default; see
            `Noise.for_sums`.
        release: "sums" (the default), or "mean": nothing but the mean, which costs little, for a
            fleet that is centred on it.
        share: Of the budget, what a release of this fleet spends; 1 by default, 0.05 for a mean
            and 0.95 for the sums of a fleet that is centred on it.

    >>> agreed = NoiseSettings(epsilon=4.0, delta=1e-5)
    >>> agreed.length(Projection(n_inputs=3, n_hidden=16))
    187
    >>> round(agreed.multiplier, 2)
    1.08
    """

    epsilon: float
    delta: float
    radius: float = INPUT_RADIUS
    release: Release = "sums"
    share: float = 1.0

    def __post_init__(self) -> None:
        """Check the settings."""
        Budget(self.epsilon, self.delta)
        if not 0.0 < self.radius < inf:
            raise SettingError(
                f"found radius={self.radius}, expected above 0, such as {INPUT_RADIUS}"
            )
        if self.release not in get_args(Release):
            raise SettingError(f"found release={self.release!r}, expected 'sums' or 'mean'")
        if not 0.0 < self.share <= 1.0:
            raise SettingError(f"found share={self.share}, expected above 0 and at most 1")

    def __str__(self) -> str:
        """Say it in words, for people."""
        share = "" if self.share == 1.0 else f", {self.share:.0%} of the budget"
        return f"ε = {self.epsilon:g}, δ = {self.delta:g} ({self.release}{share})"

    def plain(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        return asdict(self)

    @classmethod
    def parse(cls, plain: Any) -> Self:
        """Return the settings that `plain` described.

        Args:
            plain: What came from elsewhere; it may be anything.

        Raises:
            FormatError: It does not describe noise.
        """
        try:
            numbers = [plain[name] for name in ("epsilon", "delta", "radius", "share")]
            if not all(type(each) in (int, float) and isfinite(each) for each in numbers):
                raise TypeError("numbers are expected")
            epsilon, delta, radius, share = map(float, numbers)
            return cls(epsilon, delta, radius, plain["release"], share)
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(f"this describes no noise: {error}") from error

    @property
    def multiplier(self) -> float:
        """The noise multiplier z of a release."""
        return Budget(self.epsilon, self.delta).spend(self.share, "a release")

    def noise(self, projection: Projection, least: int = 1) -> Noise:
        """Return what a device does to its sums.

        Args:
            projection: What all devices share.
            least: The devices whose noise is in every total, 1 by default.
        """
        return _noise_of(self, projection, least)

    def enough_samples(self, projection: Projection) -> int:
        """Return how many samples outweigh the noise of a release: as much as its ridge.

        Args:
            projection: What all devices share.
        """
        noise = self.noise(projection)
        if self.release == "mean":
            return ceil(noise.sigma.C / self.radius)
        N, hidden = projection.n_hidden, _nominal_hidden(projection, self.radius)
        return ceil(2.0 * noise.sigma.U * sqrt(N) * N / hidden**2)

    def strength(self, noised: Noised) -> float:
        """Return how many times the samples of a total outweigh its noise; below 1 they do not.

        Args:
            noised: The total, with the noise that it has.
        """
        projection = noised.sums.projection
        shares = noised.variances.count / self.noise(projection).sigma.count ** 2
        return noised.sums.count / (self.enough_samples(projection) * sqrt(max(shares, 1e-9)))

    def length(self, projection: Projection) -> int:
        """Return the number of words of a release: its numbers, the count, and its variance.

        Args:
            projection: What all devices share.
        """
        N, n = projection.n_hidden, projection.n_inputs
        return 2 + (n if self.release == "mean" else N * (N + 1) // 2 + N * n + 1)

    def words_of(self, noised: Noised) -> Words:
        """Return a noised release as whole numbers of quanta; the last says how much noise it has.

        Args:
            noised: What `Noise.add` returned; numbers below 0 wrap around.
        """
        sums, unit = noised.sums, self.noise(noised.sums.projection).sigma.count ** 2
        if self.release == "mean":
            parts = [sums.C]
        else:
            parts = [sums.U[np.triu_indices(len(sums.U))], sums.V.ravel(), sums.S[:1]]
        quanta = np.rint(np.concatenate([*parts, [sums.count]]) / sums.projection.quantum)
        variance = ceil(noised.variances.count / unit / VARIANCE_UNIT * (1.0 - 1e-12))
        return np.append(quanta.astype(np.int64), variance).view(np.uint64)

    def read(self, projection: Projection, words: Words) -> Noised:
        """Return what `words_of` turned into words, or a sum of such.

        Args:
            projection: What all devices share.
            words: As many as `length` says.

        Raises:
            FormatError: The number of words is another, or the noise is not that of any release.
        """
        if words.shape != (self.length(projection),):
            raise FormatError(f"found {words.shape} words, expected {self.length(projection)}")
        *quanta, variance = words.view(np.int64).tolist()
        if variance < 0:
            raise FormatError(f"found noise of {variance} units, expected 0 or more")
        N, n = projection.n_hidden, projection.n_inputs
        values = np.array(quanta, dtype=np.float64) * projection.quantum
        U, V, C, S = np.zeros((N, N)), np.zeros((N, n)), np.zeros(n), np.zeros(n)
        if self.release == "mean":
            C = values[:n]
        else:
            n_upper = N * (N + 1) // 2
            U[np.triu_indices(N)] = values[:n_upper]
            U = U + np.triu(U, 1).T
            V, S[0] = values[n_upper:-2].reshape(N, n), values[-2]
        share = variance * VARIANCE_UNIT
        variances = Blocks(*(share * s * s for s in self.noise(projection).sigma))
        return Noised(Stats(projection, U, V, C, S, float(values[-1])), variances)


@lru_cache(maxsize=16)
def _noise_of(settings: NoiseSettings, projection: Projection, least: int) -> Noise:
    if settings.release == "mean":
        return Noise.for_mean(projection, settings.multiplier, least=least)
    return Noise.for_sums(projection, settings.multiplier, least=least, radius=settings.radius)


class ClippedSums:
    """The clipped sums of samples that a device has learnt and not released yet.

    Args:
        settings: The noise that the fleet has agreed on.
        projection: What all devices share.
        sums: What was saved: 256 times the sums; None (the default): none.
        rows: How many samples were saved, 0 by default.

    Attributes:
        settings: The noise that the fleet has agreed on.
        left_out: The samples for which the sums had no room, since the start.

    >>> shared = Projection(n_inputs=2, n_hidden=4)
    >>> clipped = ClippedSums(NoiseSettings(4.0, 1e-5), shared)
    >>> clipped.push(shared.to_grid([0.1, 0.2]))
    >>> clipped.rows, clipped.take().count, clipped.rows
    (1, 256.0, 0)
    """

    def __init__(
        self,
        settings: NoiseSettings,
        projection: Projection,
        sums: Stats | None = None,
        rows: int = 0,
    ) -> None:
        """Go on with what was saved."""
        self.settings, self._noise = settings, settings.noise(projection)
        self._sums = Stats.empty(projection) if sums is None else sums
        self._rows, self._waiting, self.left_out = rows, list[Array](), 0

    @property
    def rows(self) -> int:
        """How many samples there are."""
        return self._rows + len(self._waiting)

    def push(self, row: Array) -> None:
        """Take in a sample that was learnt.

        Args:
            row: The sample on the grid, (n,).
        """
        self._waiting.append(row.copy())
        if len(self._waiting) >= CLIPPED_ROWS:
            self._add()

    @property
    def sums(self) -> Stats:
        """256 times the clipped sums, exactly."""
        self._add()
        return self._sums

    def take(self) -> Stats:
        """Return 256 times the clipped sums, and begin anew."""
        found = self.sums
        self._sums, self._rows = Stats.empty(found.projection), 0
        return found

    def _add(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        try:
            self._sums = self._sums + self._noise.whole_sums_of(np.array(waiting))
            self._rows += len(waiting)
        except CapacityError:
            self.left_out += len(waiting)


def must_agree(
    found: NoiseSettings | None, limits: Mapping[str, float | None], *, fleet: str
) -> None:
    """Refuse noise that protects less than a device asks for.

    Args:
        found: What the fleet has agreed on; None: no noise.
        limits: The largest "epsilon" and "delta" of the device, None where it has none.
        fleet: The fleet, for the error.

    Raises:
        RejectedError: A sample would be protected less.
    """
    for name, most in limits.items():
        value = inf if found is None else getattr(found, name)
        if most is not None and value > most:
            words = "no noise" if found is None else f"{name} = {value:g}"
            raise RejectedError(
                f"{fleet}: found {words}, expected {name} of at most {most:g}: take part in a "
                f"fleet with that noise, or change exchange.{name}"
            )


def must_have_noise() -> None:
    """Raise SettingError, with the extra to install, if noise cannot be drawn here."""
    try:
        discrete_gaussian([0], 1.0)
    except ModuleNotFoundError as error:
        raise SettingError(str(error)) from error


def discrete_gaussian(values: Sequence[int], scale: float) -> Sequence[int]:
    """Add exact discrete Gaussian noise to whole numbers, with `opendp`.

    Args:
        values: Whole numbers.
        scale: The standard deviation, in the same unit.

    Raises:
        ModuleNotFoundError: `opendp` is not installed.
    """
    found: Sequence[int] = _measurement(scale)(list(values))
    return found


@lru_cache(maxsize=16)
def _measurement(scale: float) -> Any:
    try:
        dp = import_module("opendp.prelude")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "noise needs opendp, which is missing: install the extra 'privacy' of edgemerge",
            name=error.name,
        ) from error
    dp.enable_features("contrib")
    domain = dp.vector_domain(dp.atom_domain(T="i64"))
    return dp.m.make_gaussian(domain, dp.l2_distance(T="f64"), scale=scale)


def _scales(norms: dict[str, float], shares: dict[str, float]) -> Blocks:
    """Return scales with which a row of these norms is on the bound."""
    return Blocks(**{name: norm / sqrt(shares[name]) for name, norm in norms.items()})


def _nominal_hidden(projection: Projection, radius: float) -> float:
    """Return the root mean square length of hidden values of random rows of this radius."""
    keys = np.arange(NOMINAL_ROWS, dtype=np.uint64)
    rows = random_uniform(projection.seed, keys, projection.n_inputs)
    rows *= radius / np.sqrt((rows**2).mean(1, keepdims=True))
    rows = np.rint(rows / projection.step) * projection.step
    return max(float(np.sqrt((projection.project(rows) ** 2).sum(1).mean())), projection.step)


def _mean_shift(values: Array, V: Array, ridge: float) -> float:
    """Return −E⟨B, dU·B⟩/2σ² for noise dU of σ, with U's eigenvalues (N,) and V in its eigenbasis.

    P is a function of U's eigenvalues, φ(w) = 1/(max(w, 0) + ρ), whose derivative has the divided
    differences −ψφφ, where ψ = 1 between positive eigenvalues and 0 between negative ones.
    """
    positive = np.maximum(values, 0.0)
    phi = 1.0 / (positive + ridge)
    gaps = values[:, None] - values
    same = np.abs(gaps) < 1e-12 * np.abs(values).max()
    rises = np.subtract.outer(positive, positive) / np.where(same, 1.0, gaps)
    psi = np.where(same, values[:, None] > 0.0, rises)
    norms = (V**2).sum(1) * phi**2
    return float(norms @ (psi @ phi + np.diag(psi) * phi))


def _on_grid(values: Array, projection: Projection) -> Array:
    return np.asarray(np.rint(values / projection.quantum) * projection.quantum + 0.0)


def _slack(sums: Stats) -> float:
    """Return how far rounding alone may move U and V, for as many parts as there are samples."""
    return 4.0 * sums.projection.quantum * (abs(sums.count) + 1.0) * len(sums.U)
