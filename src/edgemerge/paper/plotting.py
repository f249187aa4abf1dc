"""The look of all figures: size, fonts, one colour and one label for each method."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from edgemerge.paper.plan import Row, Rows

INK, FAINT = "#333333", "#9A9A9A"
ON_WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}  # of text on a line

# Okabe and Ito's colours, which stay apart for colour-blind readers
GREEN, RED, BLUE, GREY = "#009E73", "#D55E00", "#0072B2", "#8C8C8C"
ORANGE, SKY, PINK, BLACK = "#E69F00", "#56B4E9", "#CC79A7", "#000000"

COLOURS = {
    "before": GREEN,
    "after": RED,
    "bank": SKY,
    "ours": BLUE,
    "BP-NN3": GREY,
    "BP-NN5": PINK,
    "BP-NN3-FL": ORANGE,
}

LABELS = {
    "before": "before merging",
    "after": "after merging",
    "bank": "ours, same N",
    "ours": "ours, best",
}


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure with a constrained layout; sizes in inches."""
    return Figure(figsize=(width, height), dpi=160, layout="constrained")


def hide_frame(axes: Axes) -> None:
    """Hide the top and right spines, and grey the others."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(colors=INK, labelsize=9, length=3)


def draw_points(
    axes: Axes, rows: Rows, key: str, *, label: Callable[[Row], str], colours: Mapping[str, str]
) -> list[float]:
    """Draw a point for each row on a log axis, the first at the top; return the values.

    Points, since the length of a bar on a log axis depends on where the axis starts.
    """
    places, values = range(len(rows)), [float(row[key]) for row in rows]
    points = [colours[str(row["method"])] for row in rows]
    axes.scatter(values, places, color=points, s=42, zorder=2)
    axes.set_yticks(places, [label(row) for row in rows])
    axes.set_xscale("log")
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(axis="y", color=FAINT, alpha=0.6, linestyle=":", linewidth=0.8)
    axes.set_axisbelow(True)
    hide_frame(axes)
    return values


def set_titles(axes: Axes, title: str, **labels: Any) -> None:
    """Set the title and the labels of the axes: `x="...", y="..."`."""
    axes.set_title(title, fontsize=11, color=INK, loc="left")
    axes.set_xlabel(labels.get("x", ""), color=INK)
    axes.set_ylabel(labels.get("y", ""), color=INK)
