"""Figures with matplotlib: scores with limit and episodes, explanations, a merge's effect.

Each function draws into the axes that it is given, or into those of a new figure, and returns them.
Nothing else changes: no style, no current figure. Install the extra `plot`.

>>> axes = explanation({"flow": 41.0, "heat": 1.2, "noise": 0.4})
>>> [label.get_text() for label in axes.get_yticklabels()]
['flow', 'heat', 'noise']
>>> axes.figure.savefig("why.png")  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, tzinfo
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter
from numpy.typing import ArrayLike, NDArray

from edgemerge.core.errors import SampleError
from edgemerge.core.monitor import Episode
from edgemerge.core.stats import MOVED

__all__ = ["before_after", "explanation", "scores"]

Array = NDArray[np.float64]

INK, FAINT, GRID = "#333333", "#8C8C8C", "#E3E3E3"
# Okabe and Ito's colours, which stay apart for colour-blind readers
BLUE, RED, GREEN = "#0072B2", "#D55E00", "#009E73"
LIMIT_STYLE: dict[str, Any] = {"color": RED, "linewidth": 1.2, "linestyle": "--"}
LOG_RATIO = 20.0  # of the largest value to the usual one, above which an axis is logarithmic
LEAST_BAR = 0.1  # where bars begin on a logarithmic axis


def scores(
    values: ArrayLike,
    *,
    at: ArrayLike | None = None,
    limit: ArrayLike | None = None,
    episodes: Iterable[Episode] = (),
    zone: tzinfo | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw scores over time, the limit as a line, and episodes as shaded spans.

    The axis of the scores is logarithmic if the highest is above 20 times the median.

    Args:
        values: The scores, (k,); NaN or None where there was none yet leaves a gap.
        at: The time of each sample in seconds, (k,); None (the default) numbers the samples.
        limit: The limit: one number, or one for each sample. None (the default) draws none.
        episodes: Episodes of a monitor, whose times are those in `at`. One that is still open ends
            with the last sample. None unless given.
        zone: The time zone in which `at`, in seconds since 1970, is shown as dates; None (the
            default) shows seconds.
        ax: Where to draw; None (the default) makes a figure.

    Returns:
        The axes.

    Raises:
        SampleError: There are not as many times, or limits, as scores.

    >>> axes = scores([1.0, 0.8, 9.0, 1.1], limit=4.0)
    >>> axes.get_ylabel(), len(axes.lines)
    ('score', 2)
    """
    y = np.asarray(values, np.float64)
    seconds = np.arange(len(y), dtype=np.float64) if at is None else _like(y, at, "times")
    axes = _axes(ax, 8.0, 3.0)
    axes.plot(_times(seconds, zone), y, color=BLUE, linewidth=1.0, label="score", zorder=3)
    shown = y
    if limit is not None:
        line = _like(y, np.full(len(y), limit) if np.ndim(limit) == 0 else limit, "limits")
        axes.plot(_times(seconds, zone), line, label="limit", zorder=2, **LIMIT_STYLE)
        shown = np.concatenate([y, line])
    for i, episode in enumerate(episodes):
        ended = seconds[-1] if episode.ended is None else episode.ended
        span = _times(np.array([episode.began, ended]), zone)
        label = "_" if i else "episode"  # one of them in the legend
        axes.axvspan(*span, color=RED, alpha=0.15, linewidth=0, label=label)
    _set_scale(axes, "y", shown)
    axes.margins(x=0.01)
    if zone is not None:
        locator = AutoDateLocator(tz=zone)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=zone))
    axes.set_xlabel("" if zone else "sample" if at is None else "seconds", color=INK)
    axes.set_ylabel("score", color=INK)
    _legend(axes)
    return axes


def explanation(shares: Mapping[Any, float], *, most: int = 8, ax: Axes | None = None) -> Axes:
    """Draw how far inputs are from what the other inputs say, as bars, the largest at the top.

    A line marks 1, which is usual; inputs that have moved are red. The axis is logarithmic if the
    largest is above 20; then bars begin at a tenth, and smaller ones are not seen.

    Args:
        shares: What `explain_by_name` or River's `explain_one` returned: a number for each input.
        most: The number of inputs to draw, 8 unless given.
        ax: Where to draw; None (the default) makes a figure.

    Returns:
        The axes.

    Raises:
        SampleError: There is no input.

    >>> explanation({"flow": 41.0, "heat": 1.2}).get_xscale()
    'log'
    """
    if not shares:
        raise SampleError("found no inputs, expected at least one: is the detector warming up?")
    found = sorted(shares.items(), key=lambda item: -item[1])[:most]
    values = np.array([value for _name, value in found], np.float64)
    axes = _axes(ax, 6.0, 0.8 + 0.32 * len(found))
    log = values.max() > LOG_RATIO
    least = LEAST_BAR if log else 0.0
    colours = [RED if value >= MOVED else BLUE for value in values]
    places = np.arange(len(found))
    axes.barh(places, np.maximum(values - least, 0.0), left=least, color=colours, height=0.65)
    axes.set_yticks(places, [str(name) for name, _value in found])
    axes.set_ylim(len(found) - 0.5, -0.5)
    if log:
        _make_log(axes, "x")
    axes.set_xlim(least, None)
    axes.axvline(1.0, color=INK, linewidth=1.0, linestyle=":", zorder=3)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("squared distance from what the other inputs say; 1 is usual", color=INK)
    return axes


def before_after(
    before: Mapping[str, ArrayLike],
    after: Mapping[str, ArrayLike],
    *,
    limit: float | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw how scores of several kinds of samples change, as by a merge.

    A dot is the median and a line reaches from the 5th to the 95th percentile.

    Args:
        before: The scores of each kind of samples before, by the name of the kind.
        after: The scores after, of the same kinds.
        limit: The limit, drawn as a line; None (the default) draws none.
        ax: Where to draw; None (the default) makes a figure.

    Returns:
        The axes.

    Raises:
        SampleError: The kinds before and after are not the same, or there are none.

    >>> alone = {"idle": [1.0, 0.9], "fast": [50.0, 70.0]}
    >>> axes = before_after(alone, {"idle": [1.1, 1.0], "fast": [1.0, 1.2]}, limit=4.0)
    >>> [label.get_text() for label in axes.get_yticklabels()]
    ['idle', 'fast']
    """
    if not before or set(before) != set(after):
        raise SampleError(
            f"found the kinds {sorted(before)} before and {sorted(after)} after, expected the "
            "same: score the same samples twice"
        )
    axes = _axes(ax, 6.0, 1.1 + 0.5 * len(before))
    for shift, colour, label, groups in (
        (-0.13, FAINT, "before", before),
        (0.13, GREEN, "after", after),
    ):
        bounds = np.array([np.quantile(np.asarray(groups[k]), (0.05, 0.5, 0.95)) for k in before])
        places = np.arange(len(before)) + shift
        axes.hlines(places, bounds[:, 0], bounds[:, 2], color=colour, linewidth=2.5, zorder=2)
        axes.plot(bounds[:, 1], places, "o", color=colour, markersize=7, label=label, zorder=3)
    if limit is not None:
        axes.axvline(limit, label="limit", zorder=1, **LIMIT_STYLE)
    every = [
        np.asarray(group, np.float64) for groups in (before, after) for group in groups.values()
    ]
    _set_scale(axes, "x", np.concatenate(every))
    axes.set_yticks(np.arange(len(before)), list(before))
    axes.set_ylim(len(before) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("score", color=INK)
    _legend(axes)
    return axes


def _axes(ax: Axes | None, width: float, height: float) -> Axes:
    """Return the axes, or those of a new figure that no window or registry knows of."""
    if ax is None:
        ax = Figure(figsize=(width, height), dpi=120, layout="constrained").add_subplot()
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(FAINT)
    ax.tick_params(colors=INK, labelsize=9, length=3)
    ax.grid(visible=True, color=GRID, linewidth=0.8)
    ax.set_axisbelow(True)
    return ax


def _legend(axes: Axes) -> None:
    """Put the legend above the axes, where it hides nothing."""
    place: dict[str, Any] = {"bbox_to_anchor": (1.0, 1.0), "borderaxespad": 0.2}
    axes.legend(loc="lower right", ncols=3, fontsize=9, frameon=False, labelcolor=INK, **place)


def _like(values: Array, given: ArrayLike, words: str) -> Array:
    found = np.asarray(given, np.float64)
    if found.shape != values.shape:
        raise SampleError(
            f"found {found.shape} {words}, expected {values.shape}: give one for each score"
        )
    return found


def _times(seconds: Array, zone: tzinfo | None) -> Any:
    return seconds if zone is None else [datetime.fromtimestamp(s, zone) for s in seconds]


def _set_scale(axes: Axes, which: Literal["x", "y"], values: Array) -> None:
    """Make an axis logarithmic if the largest is above 20 times the median; else it begins at 0."""
    found = values[np.isfinite(values) & (values > 0.0)]
    if len(found) and found.max() > LOG_RATIO * np.median(found):
        _make_log(axes, which)
    elif which == "y":
        axes.set_ylim(bottom=0.0)
    else:
        axes.set_xlim(left=0.0)


def _make_log(axes: Axes, which: Literal["x", "y"]) -> None:
    axis = axes.xaxis if which == "x" else axes.yaxis
    axes.set(**{f"{which}scale": "log"})
    axis.set_major_formatter(FuncFormatter(lambda value, _place: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
