"""Bars of times: one step of each method at each N, and all training of a pair."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from edgemerge.paper.drawing import COLOURS, GREY, INK, LABELS, canvas, plain, titled
from edgemerge.paper.plan import Row, Rows
from edgemerge.paper.timed import FL, MERGE, OURS, PAIR, PREDICT, STYLE, TEXTBOOK, TRAIN

TINTS = {OURS: COLOURS["ours"], STYLE: GREY, TEXTBOOK: "#BDBDBD", FL: COLOURS["BP-NN3-FL"]}
SHORT = {OURS: "ours", STYLE: "published style", TEXTBOOK: "NumPy by the book", FL: FL}
WORDS = {TRAIN: "Train on one sample", PREDICT: "Predict one sample", MERGE: "Merge one peer"}
DIAMOND: dict[str, Any] = {"color": "white", "edgecolors": INK, "marker": "D", "s": 22, "zorder": 3}
AT_THE_RIGHT: dict[str, Any] = {"ha": "right", "va": "center", "fontsize": 8, "color": INK}
LEGEND: dict[str, Any] = {"loc": "outside upper right", "fontsize": 8, "frameon": False}
ROOM = 25.0  # the axis ends at so many times the longest bar: numbers stand there


def step_bars(rows: Rows) -> Figure:
    """Draw a panel for each job and N; diamonds are what the paper printed."""
    steps = [row for row in rows if row["job"] in WORDS]
    jobs = [job for job in WORDS if any(row["job"] == job for row in steps)]
    sizes = sorted({int(row["hidden"]) for row in steps})
    lines = [sum(row["job"] == job for row in steps) for job in jobs]
    figure = canvas(6.2 * len(sizes), 0.27 * sum(lines) / len(sizes) + 0.8 * len(jobs) + 0.5)
    panels = figure.subplots(
        *(len(jobs), len(sizes)), squeeze=False, sharex="row", sharey="row", height_ratios=lines
    )
    for job, across in zip(jobs, panels, strict=True):
        for N, axes in zip(sizes, across, strict=True):
            found = [row for row in steps if (row["job"], row["hidden"]) == (job, N)]
            _bars(axes, found, _step_label, TINTS)
            _printed(axes, found)
            titled(
                axes,
                f"{WORDS[job]}, N = {N}",
                x="ms of CPU (in brackets: as a share of BP-NN3-FL)" if job == jobs[-1] else "",
            )
    figure.legend(*panels[0, 0].get_legend_handles_labels(), **LEGEND)
    return figure


def pair_bars(rows: Rows) -> Figure:
    """Draw all training of a pair, a panel for each data set."""
    pairs = [row for row in rows if row["job"] == PAIR]
    names = list(dict.fromkeys(str(row["dataset"]) for row in pairs))
    figure = canvas(6.2 * len(names), 0.27 * len(pairs) / len(names) + 1.2)
    panels = figure.subplots(1, len(names), squeeze=False, sharey=True, sharex=True)[0]
    for name, axes in zip(names, panels, strict=True):
        found = [row for row in pairs if row["dataset"] == name]
        _bars(axes, found, _pair_label, COLOURS)
        titled(
            axes,
            f"All training of one pair, {name.upper()}",
            x="ms of CPU, both devices (in brackets: as a share of BP-NN3-FL)",
        )
    return figure


def _bars(
    axes: Axes, rows: Sequence[Row], label: Callable[[Row], str], colours: dict[str, str]
) -> None:
    places, times = range(len(rows)), [float(row["ms"]) for row in rows]
    axes.barh(places, times, color=[colours[str(row["method"])] for row in rows], height=0.7)
    axes.set_yticks(places, [label(row) for row in rows])
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    ends = [
        max(time, float(row.get("paper_ms", 0.0))) for time, row in zip(times, rows, strict=True)
    ]
    axes.set_xlim(min(low, min(times) / 3.0), max(high, max(ends) * ROOM))
    axes.set_ylim(len(rows) - 0.5, -0.5)
    plain(axes)
    for place, row in zip(places, rows, strict=True):
        axes.text(0.99, place, _number(row), **AT_THE_RIGHT, transform=axes.get_yaxis_transform())


def _number(row: Row) -> str:
    time, share = float(row["ms"]), float(row["of_fl"])
    shown = f"{time:,.0f} ms" if time >= 100.0 else f"{time:.3g} ms"
    if share == 1.0:
        return shown
    return shown + (f"  (1/{1.0 / share:.3g})" if share < 1.0 else f"  ({share:.3g}×)")


def _printed(axes: Axes, rows: Sequence[Row]) -> None:
    there = [(i, row["paper_ms"]) for i, row in enumerate(rows) if "paper_ms" in row]
    if there:
        places, times = zip(*there, strict=True)
        axes.scatter(times, places, label="the paper's, on its own machine", **DIAMOND)


def _step_label(row: Row) -> str:
    method = SHORT[str(row["method"])]
    plainly = row["method"] != OURS and row["job"] != MERGE
    what = str(row["what"]).removeprefix("ready for " if row["job"] == PREDICT else "")
    return method if plainly else f"{method}, {what}"


def _pair_label(row: Row) -> str:
    method = str(row["method"])
    return f"{LABELS.get(method, method)}, {row['what']}"
