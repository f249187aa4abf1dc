"""What the loss figures share: two devices that merge, mean losses over the trials, and points.

A row is one trial's mean loss of one pattern: `cut, trial, method, pattern, loss, sums`. Devices
merge as in the product: each shares, a ledger stores, each adopts the total of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from edgemerge import Detector, Ledger, Stats
from edgemerge.paper.dataset import Array, Splitter, Trial, split_by_sample
from edgemerge.paper.hyperparameters import LAYERS
from edgemerge.paper.plan import Claim, Job, Row, Rows, Scope
from edgemerge.paper.plotting import BLUE, FAINT, GREEN, INK, RED, hide_frame

DEVICE_A, DEVICE_B = "Device-A", "Device-B"
AFTER_MERGE = {DEVICE_A: "Device-A with B", DEVICE_B: "Device-B with A"}


class TwoDevices:
    """Device-A and Device-B of one trial, and the samples that neither of them learnt."""

    def __init__(
        self, job: Job, scope: Scope, patterns: tuple[str, str], *, cut: Splitter = split_by_sample
    ) -> None:
        """Split the data set and let each device learn its pattern, every sample once."""
        self.job, self.trial = job, Trial(job, scope, cut)
        self.data, self.split = self.trial.data, self.trial.split
        self.layer = LAYERS[job.dataset].projection(self.data, self.trial.number("layer"))
        self.devices = {DEVICE_A: Detector(self.layer), DEVICE_B: Detector(self.layer)}
        for device, pattern in zip(self.devices.values(), patterns, strict=True):
            device.learn(self.learnt(pattern))

    def learnt(self, pattern: str) -> Array:
        """Return a pattern's training samples, in a random order."""
        return self.trial.learnt(self.data.patterns.index(pattern))

    def kept(self, pattern: str) -> Array:
        """Return a pattern's held-out samples."""
        return self.data.X[self.split.keep[self.data.patterns.index(pattern)]]

    def exchange(self) -> None:
        """Let each device adopt the other's sums."""
        ledger = Ledger(self.layer)
        for name, device in self.devices.items():
            ledger.put(device.share(name, revision=1)[0])
        for name, device in self.devices.items():
            device.adopt(ledger.total(without=name))

    def rows(self) -> Rows:
        """Return the mean loss of each pattern's held-out samples, before and after merging."""
        before = self._losses({DEVICE_A: DEVICE_A, DEVICE_B: DEVICE_B})
        self.exchange()
        return before + self._losses(AFTER_MERGE)

    def _losses(self, names: dict[str, str]) -> Rows:
        rows = []
        for (name, device), pattern in product(self.devices.items(), self.data.patterns):
            losses = np.asarray(device.loss(self.kept(pattern)))
            sums = f"sha256:{all_stats(device).digest[:16]}"
            rows.append(self.row(names[name], pattern, losses, sums))
        return rows

    def row(self, method: str, pattern: str, losses: Array, sums: str = "none") -> Row:
        """Return a row with the mean of a pattern's losses, and the digest of the sums."""
        head: Row = {"trial": self.job.trial, "method": method, "pattern": pattern}
        return {**head, "loss": reproducible(float(losses.mean())), "sums": sums}


def all_stats(device: Detector) -> Stats:
    """Return the sum of a device's own and adopted stats."""
    return device.own + device.others


def reproducible(value: float) -> float:
    """Round a loss to the digits that every machine gives.

    Sums are equal to the last bit everywhere, but a solution of them is not: BLAS libraries order
    operations differently. With a condition of 1e6 and float64 about nine digits agree.

    >>> reproducible(0.0016123456789)
    0.00161235
    """
    return float(f"{value:.6g}")


BAND_QUANTILES = (0.1, 0.9)  # of the trials: `low` and `high`


class LossSummary(NamedTuple):
    """The mean over the trials, and the range in which most of them lie."""

    mean: float
    low: float
    high: float


def summarise_losses(rows: Rows, method: str, pattern: str) -> LossSummary | None:
    """Summarise the trials of one method and pattern; None if there are none."""
    wanted = (row for row in rows if (row["method"], row["pattern"]) == (method, pattern))
    losses = [float(row["loss"]) for row in wanted]
    if not losses:
        return None
    mean, (low, high) = float(np.mean(losses)), np.quantile(losses, BAND_QUANTILES)
    return LossSummary(mean, min(mean, float(low)), max(mean, float(high)))


def mean_losses(rows: Rows, methods: Iterable[str], patterns: Iterable[str]) -> list[float]:
    """Return the mean loss for each method and pattern; an empty list if one is missing."""
    found = [summarise_losses(rows, *wanted) for wanted in product(methods, patterns)]
    return [] if None in found else [each.mean for each in found if each]


def distinct_values(rows: Rows, name: str) -> list[str]:
    """Return the distinct values of a column, in the order of the rows."""
    return list(dict.fromkeys(str(row[name]) for row in rows))


def rows_of_cut(rows: Rows, cut: str) -> Rows:
    """Return the rows of one split."""
    return [row for row in rows if row["cut"] == cut]


def mean_loss_table(rows: Rows, methods: Iterable[str]) -> Rows:
    """Return a row for each pattern with the mean loss of each method."""
    table: Rows = []
    for pattern in distinct_values(rows, "pattern"):
        found = {method: summarise_losses(rows, method, pattern) for method in methods}
        means = {method: float(f"{one.mean:.4g}") for method, one in found.items() if one}
        table.append({"pattern": pattern, **means})
    return table


def two_digits(value: float) -> str:
    """Format a number with two significant digits and no exponent.

    >>> two_digits(0.00138), two_digits(0.1), two_digits(12.3)
    ('0.0014', '0.10', '12')
    """
    digits = max(0, 1 - int(f"{value:.1e}".split("e")[1]))
    return f"{value:.{digits}f}"


def claim_falls(rows: Rows, pattern: str, device: str) -> Claim:
    """Claim that the loss of a pattern new to a device falls by merging."""
    text = f"the loss of {pattern} at {device} falls when the other device is merged"
    means = mean_losses(rows, (device, AFTER_MERGE[device]), [pattern])
    if not means:
        return Claim.not_measured(text)
    before, after = means
    found = f"{two_digits(before)} → {two_digits(after)}, {before / after:.1f} times lower"
    return Claim(text, after < before, found)


def claim_stays_low(rows: Rows, pattern: str, device: str) -> Claim:
    """Claim that the loss of a device's own pattern stays nearly as low as before merging.

    The paper gives no number for "nearly": here, the point after merging must be nearer to that of
    the device which learnt the pattern than to that of the other one, as seen on a log axis.
    """
    text = f"the loss of {pattern} at {device}, which learnt it, stays low"
    other = next(name for name in AFTER_MERGE if name != device)
    means = mean_losses(rows, (device, AFTER_MERGE[device], other), [pattern])
    if not means:
        return Claim.not_measured(text)
    before, after, new = means
    change = f"{two_digits(before)} → {two_digits(after)}, {after / before - 1:+.0%}"
    return Claim(text, after**2 < before * new, f"{change}; at {other} before: {two_digits(new)}")


def claim_identical(rows: Rows) -> Claim:
    """Claim that the two devices have the same sums after merging, bit for bit."""
    text = "after merging, Device-A and Device-B are identical: equal sums, to the last bit"
    trials: dict[Any, set[Any]] = {}
    for row in rows:
        if row["method"] in AFTER_MERGE.values():
            trials.setdefault((row.get("cut"), row["trial"]), set()).add(row["sums"])
    equal = sum(len(sums) == 1 for sums in trials.values())
    found = f"equal in {equal} of {len(trials)} trials"
    return Claim(text, equal == len(trials) if trials else None, found)


Styles = Mapping[str, tuple[str, str]]  # label and colour of each method


def device_styles(of_a: str, of_b: str) -> Styles:
    """Return the labels and colours of two devices, with the pattern that each learnt."""
    return {
        DEVICE_A: (f"{DEVICE_A}, which learnt {of_a}", GREEN),
        DEVICE_B: (f"{DEVICE_B}, which learnt {of_b}", BLUE),
        AFTER_MERGE[DEVICE_A]: ("both, after merging", RED),
    }


MARKERS = "osD^"  # of the methods in their order, so that they differ without colours, too


def draw_points(axes: Axes, rows: Rows, styles: Styles, *, first: int = 0, of: int = 3) -> None:
    """Draw the means of some methods as points, from place `first` on in groups of `of` points.

    On a log axis a bar's length depends on where the axis starts, so points are drawn.
    """
    step, patterns = 0.84 / of, distinct_values(rows, "pattern")
    for i, (method, style) in enumerate(styles.items(), first):
        shift = (i - (of - 1) / 2) * step
        found = ((at + shift, summarise_losses(rows, method, p)) for at, p in enumerate(patterns))
        if measured := [(at, one) for at, one in found if one]:
            _draw_points_of_method(axes, measured, style, MARKERS[i])
    hide_frame(axes)
    axes.set_xticks(range(len(patterns)), [pattern.replace("_", "\n") for pattern in patterns])
    axes.set_xticks([place - 0.5 for place in range(1, len(patterns))], minor=True)
    axes.grid(axis="x", which="minor", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlim(-0.55, len(patterns) - 0.45)
    axes.tick_params(axis="x", which="both", length=0)


def _draw_points_of_method(
    axes: Axes, measured: list[tuple[float, LossSummary]], style: tuple[str, str], marker: str
) -> None:
    x, mean = [i for i, _ in measured], [one.mean for _, one in measured]
    label, colour = style
    axes.plot(x, mean, marker, label=label, color=colour, markersize=6.5, linestyle="none")
    axes.vlines(x, *zip(*((m.low, m.high) for _, m in measured), strict=True), color=colour)
    for i, one in measured:
        axes.annotate(
            two_digits(one.mean), (i, one.high), (0, 6), textcoords="offset points", rotation=90,
            ha="center", va="bottom", fontsize=8, color=INK,
        )  # fmt: skip


def log_axis(axes: Axes, low: float, high: float) -> None:
    """Make the y axis logarithmic, with plain numbers: 0.01, not a power of ten."""
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 200 * low else (1,)))
    plain = FuncFormatter(lambda value, _: f"{value:.9f}".rstrip("0").rstrip("."))
    axes.yaxis.set_major_formatter(plain)
    axes.yaxis.set_minor_formatter(NullFormatter())


def axis_limits(rows: Rows) -> tuple[float, float]:
    """Return limits of the y axis with room for all points and the numbers above them."""
    losses = np.array([float(row["loss"]) for row in rows])
    low, high = losses.min() / 3.0, losses.max()
    return float(low), float(high * (high / low) ** 0.15)


def draw_legend(figure: Figure, *axes: Axes) -> None:
    """Draw one legend for all axes below them."""
    handles = [handle for one in axes for handle in one.get_legend_handles_labels()[0]]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
