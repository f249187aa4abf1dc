"""The look of all figures: size, fonts, one colour and one label for each method."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, FAINT = "#333333", "#9A9A9A"

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
    """Give an empty figure whose parts make room for each other; sizes in inches."""
    return Figure(figsize=(width, height), dpi=160, layout="constrained")


def hide_frame(axes: Axes) -> None:
    """Leave only what carries information."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(colors=INK, labelsize=9, length=3)


def set_titles(axes: Axes, title: str, **labels: Any) -> None:
    """Write the title, and the words of the axes: `x="...", y="..."`."""
    axes.set_title(title, fontsize=11, color=INK, loc="left")
    axes.set_xlabel(labels.get("x", ""), color=INK)
    axes.set_ylabel(labels.get("y", ""), color=INK)
