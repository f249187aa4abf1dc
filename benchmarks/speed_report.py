"""What the speed benchmark shows: a file of rows, a table, a figure and the bars."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from rich.table import Table

from benchmarks.jobs import (
    BOTH,
    JOBS,
    LEARN_ROWS,
    OURS,
    PREQUENTIAL_ROWS,
    PUBLISHED,
    SCORE,
    TEXTBOOK,
)
from benchmarks.limits import RAM
from benchmarks.speed import Bar, Times

Size = tuple[int, int]
Results = Mapping[Size, Times]

SHOWN = (SCORE, BOTH, LEARN_ROWS, PREQUENTIAL_ROWS)  # in the figure
ON_WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}  # of text on a line
PLOTTED = (561, 128)
COLOURS = {OURS: "#d1495b", PUBLISHED: "#30638e"}


def base(times: Times, job: str) -> float:
    """Return the time that a job's ratios are relative to: the published style, or the limit."""
    return times.get((job, PUBLISHED)) or times[job, RAM]


def place(key: tuple[str, str]) -> tuple[int, bool, int, str]:
    """Order by job, then limits last, ours and NumPy first."""
    job, way = key
    first = (OURS, PUBLISHED, TEXTBOOK)
    return JOBS.index(job), "limit" in way, first.index(way) if way in first else len(first), way


def rows(results: Results) -> list[dict[str, object]]:
    """List every time in microseconds, with its ratio to the base of its job."""
    return [
        {"inputs": size[0], "hidden": size[1], "job": job, "way": way}
        | {"us": f"{t * 1e6:.2f}", "ratio": f"{t / base(times, job):.3f}"}
        for size, times in results.items()
        for (job, way), t in sorted(times.items(), key=lambda item: place(item[0]))
    ]


def save(lines: Sequence[Mapping[str, object]], path: Path) -> Path:
    """Write rows as CSV."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    return path


def table(results: Results) -> Table:
    """Show ratio and microseconds of every way, one column a size."""
    shown = Table(title="Ratio to the published style (µs); the sum's, to memory bandwidth")
    shown.add_column("job")
    shown.add_column("way")
    for n, N in results:
        shown.add_column(f"{n}/{N}", justify="right", no_wrap=True)
    keys = sorted({key for times in results.values() for key in times}, key=place)
    for i, (job, way) in enumerate(keys):
        first = not i or keys[i - 1][0] != job
        last = i + 1 == len(keys) or keys[i + 1][0] != job
        cells = [
            f"{times[job, way] / base(times, job):.2f} ({times[job, way] * 1e6:,.1f})"
            if (job, way) in times
            else ""
            for times in results.values()
        ]
        style = "bold" if way == OURS else None
        shown.add_row(job if first else "", way, *cells, style=style, end_section=last)
    return shown


def judgement(bars: Sequence[Bar]) -> Table:
    """Show each bar, what was measured, and whether it is met."""
    shown = Table(title="Bars")
    for name in ("size", "what", "measured", "bar", "verdict"):
        shown.add_column(name)
    for bar in bars:
        limit = f"{'≥' if bar.reach else '≤'} {bar.limit:g}"
        size = "{}/{}".format(*bar.size)
        shown.add_row(size, bar.what, f"{bar.value:.2f}", limit, bar.verdict)
    return shown


def bar_rows(bars: Sequence[Bar]) -> list[dict[str, object]]:
    """List the bars for a file."""
    return [
        {"inputs": bar.size[0], "hidden": bar.size[1], "what": bar.what}
        | {"measured": f"{bar.value:.3f}", "bar": bar.limit, "verdict": bar.verdict}
        for bar in bars
    ]


def plot(results: Results, path: Path) -> Path:
    """Draw the time of each way relative to the published style, one panel a job."""
    size = PLOTTED if PLOTTED in results else next(iter(results))
    times = results[size]
    counts = [sum(job == shown for job, _ in times) for shown in SHOWN]
    figure = Figure(figsize=(9, 9.5), layout="constrained")
    panels = figure.subplots(len(SHOWN), 1, sharex=True, height_ratios=counts)
    for panel, shown in zip(panels, SHOWN, strict=True):
        ways = sorted((t, way) for (job, way), t in times.items() if job == shown)
        ratios = [t / base(times, shown) for t, _ in ways]
        names = [way for _, way in ways]
        colours = [COLOURS.get(way, "#c9c9c9" if "limit" in way else "#8d99ae") for way in names]
        # points: a bar's length on a log axis depends on where the axis starts
        panel.scatter(ratios, names, color=colours, s=45, zorder=2)
        for name, ratio in zip(names, ratios, strict=True):
            words = f"{ratio:.2g}" if ratio < 10 else f"{ratio:,.0f}"
            style = {"textcoords": "offset points", "va": "center", "bbox": ON_WHITE}
            panel.annotate(words, (ratio, name), (8, 0), **style)
        panel.grid(axis="y", color="#9a9a9a", alpha=0.6, linestyle=":", linewidth=0.8)
        panel.set_axisbelow(True)
        panel.margins(y=0.5 / len(names))
        panel.axvline(1.0, color=COLOURS[PUBLISHED], linewidth=1, linestyle=":")
        panel.set_xscale("log")
        panel.xaxis.set_major_formatter("{x:g}")
        panel.invert_yaxis()
        panel.set_title(shown, loc="left", fontsize=11)
        panel.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel("time relative to NumPy in the published style (less is faster)")
    panels[-1].margins(x=0.12)
    figure.suptitle("{} inputs, {} hidden values, one core, one run".format(*size))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return path
