"""Mean losses as bars on a log axis: a group for each pattern, a colour for each method."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from edgemerge.paper.drawing import BLUE, GREEN, INK, RED, plain
from edgemerge.paper.mean_losses import column, number, spread
from edgemerge.paper.plan import Rows
from edgemerge.paper.two_devices import MERGED, A, B

Looks = Mapping[str, tuple[str, str]]  # label and colour of each method


def devices(of_a: str, of_b: str) -> Looks:
    """Say how two devices look, and what each of them learnt."""
    return {
        A: (f"{A}, which learnt {of_a}", GREEN),
        B: (f"{B}, which learnt {of_b}", BLUE),
        MERGED[A]: ("both, after merging", RED),
    }


def draw(axes: Axes, rows: Rows, looks: Looks, *, first: int = 0, of: int = 3) -> None:
    """Draw the bars of some methods; they take places from `first` on in groups `of` so many."""
    width = 0.84 / of
    for i, (method, look) in enumerate(looks.items(), first):
        _bars(axes, rows, method, at=(i - (of - 1) / 2) * width, width=width, look=look)
    plain(axes)
    patterns = column(rows, "pattern")
    axes.set_xticks(range(len(patterns)), [pattern.replace("_", "\n") for pattern in patterns])
    axes.set_xlim(-0.55, len(patterns) - 0.45)
    axes.tick_params(axis="x", length=0)


def _bars(
    axes: Axes, rows: Rows, method: str, *, at: float, width: float, look: tuple[str, str]
) -> None:
    found = [(i, spread(rows, method, p)) for i, p in enumerate(column(rows, "pattern"))]
    measured = [(i + at, one) for i, one in found if one]
    if not measured:
        return
    x, mean = [i for i, _ in measured], [one.mean for _, one in measured]
    errors = [[m.mean - m.low for _, m in measured], [m.high - m.mean for _, m in measured]]
    axes.bar(x, mean, 0.94 * width, label=look[0], color=look[1])
    axes.errorbar(x, mean, errors, fmt="none", ecolor=INK, elinewidth=0.7, capsize=1.5)
    for i, one in measured:
        axes.annotate(
            number(one.mean), (i, one.high), (0, 3), textcoords="offset points", rotation=90,
            ha="center", va="bottom", fontsize=7, color=INK,
        )  # fmt: skip


def log_axis(axes: Axes, low: float, high: float) -> None:
    """Make the losses' axis logarithmic, with plain numbers: 0.01, not a power of ten."""
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 200 * low else (1,)))
    axes.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:.9f}".rstrip("0").rstrip("."))
    )
    axes.yaxis.set_minor_formatter(NullFormatter())


def limits(rows: Rows) -> tuple[float, float]:
    """Give ends of an axis that hold all bars, and the numbers above them."""
    losses = np.array([float(row["loss"]) for row in rows])
    low, high = losses.min() / 3.0, losses.max()
    return float(low), float(high * (high / low) ** 0.15)


def legend(figure: Figure, *axes: Axes) -> None:
    """Say below the axes what the colours mean."""
    handles = [handle for one in axes for handle in one.get_legend_handles_labels()[0]]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
