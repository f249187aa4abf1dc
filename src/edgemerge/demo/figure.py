"""The demo's figure: spectra of the devices, and scores before and after merging."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from edgemerge.demo.data import BAND_HZ, BANDS
from edgemerge.demo.outcome import THRESHOLD, DeviceRow, Outcome

# Okabe and Ito's colours, which stay apart for colour-blind readers; markers differ as well
GROUP_STYLES = {
    "own": ("#0072B2", "o"),
    "peers": ("#E69F00", "s"),
    "bearing": ("#D55E00", "^"),
    "looseness": ("#AA3377", "D"),
    "lying": ("#AA3377", "D"),
}
LABELS = {
    "own": "own normal",
    "peers": "peers' normal",
    "bearing": "bearing fault",
    "lying": "lying, which no device learnt",
}
NORMAL_COLOUR = "#3A6EA5"
TEXT_COLOUR, LINE_COLOUR = "#333333", "#9A9A9A"
HEADING: dict[str, Any] = {"fontsize": 12, "fontweight": "bold", "color": TEXT_COLOUR}


def plot(outcome: Outcome, path: Path) -> None:
    """Draw the outcome into a PNG file."""
    width = 12.0 if outcome.curves else 8.4
    figure = Figure(figsize=(width, 5.8), dpi=150, layout=ConstrainedLayoutEngine(h_pad=0.08))
    if outcome.curves:
        parts: Any = figure.subfigures(1, 2, width_ratios=[1.0, 1.75], wspace=0.02)
        _plot_spectra(parts[0], outcome)
        _plot_scores(parts[1], outcome)
    else:
        _plot_scores(figure, outcome)
    figure.savefig(path)


def _plot_spectra(part: Any, outcome: Outcome) -> None:
    hertz = (np.arange(BANDS) + 0.5) * BAND_HZ
    part.suptitle("Vibration spectra", **HEADING)
    axes = part.subplots(len(outcome.curves), 1, sharex=True, sharey=True)
    for ax, (kind, (low, mean, high)) in zip(axes, outcome.curves.items(), strict=True):
        colour = GROUP_STYLES[kind][0] if kind in outcome.odd else NORMAL_COLOUR
        ax.fill_between(hertz, low, high, color=colour, alpha=0.22, linewidth=0)
        if kind in outcome.odd:
            ax.plot(hertz, outcome.curves["running"][1], color=NORMAL_COLOUR, linewidth=0.9, ls=":")
        ax.plot(hertz, mean, color=colour, linewidth=1.5)
        name = LABELS.get(kind, kind)
        label = f"{name}, running (dotted: without)" if kind in outcome.odd else name
        ax.text(0.985, 0.93, label, transform=ax.transAxes, ha="right", va="top", color=colour)
        _style_axes(ax)
    axes[0].set(xlim=(0, BANDS * BAND_HZ), ylim=(-84, -12), yticks=[-80, -60, -40])
    axes[len(axes) // 2].set_ylabel("level in dB re 1 g", color=TEXT_COLOUR)
    axes[-1].set_xlabel("frequency in Hz", color=TEXT_COLOUR)


def _plot_scores(part: Any, outcome: Outcome) -> None:
    part.suptitle("Scores on each device", **HEADING)
    axes = part.subplots(1, 2, sharex=True, sharey=True)
    for ax, merged, title in zip(axes, (False, True), ("learnt alone", "merged once"), strict=True):
        rows = outcome.device_rows(merged=merged)
        for place, row in enumerate(rows):
            _plot_device(ax, place, row)
            ax.axhline(place + 0.5, color=LINE_COLOUR, linewidth=0.5, alpha=0.5)
        ax.axvline(THRESHOLD, color=TEXT_COLOUR, linewidth=1.0, linestyle="--")
        ax.axvspan(THRESHOLD, 100.0, color="#000000", alpha=0.045, linewidth=0)
        alarm = f"alarm above {THRESHOLD:g}"
        ax.text(THRESHOLD * 1.07, -0.62, alarm, color=TEXT_COLOUR, fontsize=9)
        ax.set_title(title, fontsize=11, color=TEXT_COLOUR)
        ax.set_xlabel("score: 1 is as usual; bars hold nine of ten", color=TEXT_COLOUR)
        _style_axes(ax)
    names = [f"{row.device}\n{row.pattern}" for row in outcome.device_rows(merged=False)]
    axes[0].set(xscale="log", xlim=(0.4, 60.0), ylim=(len(names) - 0.5, -0.8))
    axes[0].set_yticks(range(len(names)), names)
    axes[0].set_xticks([0.5, 1, 2, 4, 10, 20, 50], ["0.5", "1", "2", "4", "10", "20", "50"])
    axes[0].minorticks_off()
    groups = list(outcome.rows[0].scores)
    part.legend(handles=_legend(groups), loc="outside lower center", ncols=4, frameon=False)


def _plot_device(ax: Any, place: int, row: DeviceRow) -> None:
    for offset, group in zip(np.linspace(-0.27, 0.27, len(row.scores)), row.scores, strict=True):
        (colour, marker), scores, y = GROUP_STYLES[group], row.scores[group], place + offset
        ax.plot([scores.low, scores.high], [y, y], color=colour, linewidth=3.5, alpha=0.4)
        ax.plot(scores.mean, y, marker, color=colour, markersize=6.5, mec="white", mew=0.7)


def _legend(groups: list[str]) -> list[Line2D]:
    common: Any = {"linewidth": 3.5, "alpha": 0.9}
    return [
        Line2D([], [], color=colour, marker=marker, label=LABELS.get(group, group), **common)
        for group, (colour, marker) in ((group, GROUP_STYLES[group]) for group in groups)
    ]


def _style_axes(ax: Any) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(LINE_COLOUR)
    ax.tick_params(colors=TEXT_COLOUR, labelsize=9, length=3)
