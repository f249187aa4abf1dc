"""ROC-AUC as heat maps: rows are what Device-A learnt, columns what Device-B learnt."""

from __future__ import annotations

from collections import defaultdict
from math import isfinite, nan

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from edgemerge.paper.drawing import INK, LABELS, canvas
from edgemerge.paper.plan import Rows

PAPERS = ("before", "after", "BP-NN3", "BP-NN5", "BP-NN3-FL")
OURS = ("bank", "ours")
COLUMNS = 4
LOWEST = 0.5  # a guess
DARK = 0.8  # below, letters are white
CAPTION = "ROC-AUC of each pair, and the mean off the diagonal"
SHORT = {
    "walking": "walk",
    "walking_upstairs": "up",
    "walking_downstairs": "down",
    "sitting": "sit",
    "standing": "stand",
    "laying": "lay",
}
TITLES = {"har": "HAR", "mnist": "MNIST"}
Cells = dict[tuple[str, str], float]


def cells(rows: Rows, dataset: str) -> dict[str, Cells]:
    """Give the mean of each pair, by method."""
    found: dict[str, Cells] = defaultdict(dict)
    for row in rows:
        if row["dataset"] == dataset and row["device_a"] != "all":
            pair = str(row["device_a"]), str(row["device_b"])
            found[str(row["method"])][pair] = float(row["auc"])
    return found


def plot(rows: Rows) -> dict[str, Figure]:
    """Draw one figure for each data set, with one map for each method."""
    found = {dataset: cells(rows, dataset) for dataset in TITLES}
    return {dataset: _maps(dataset, maps, rows) for dataset, maps in found.items() if maps}


def _maps(dataset: str, maps: dict[str, Cells], rows: Rows) -> Figure:
    shown = [method for method in (*PAPERS, *OURS) if method in maps]
    patterns = list(dict.fromkeys(a for a, _ in maps[shown[0]]))
    lines, size = -(-len(shown) // COLUMNS), 0.34 * len(patterns) + 1.0  # inches
    figure = canvas(COLUMNS * size + 0.6, lines * (size + 0.15) + 0.4)
    every = list(figure.subplots(lines, COLUMNS, squeeze=False).flat)
    for axes, method in zip(every, shown, strict=False):
        _map(axes, maps[method], patterns, _bold(maps, method))
        axes.set_title(_title(rows, dataset, method), fontsize=10, color=INK)
    for axes in every[len(shown) :]:
        axes.set_visible(False)
    figure.colorbar(every[0].images[0], ax=every, shrink=0.5, pad=0.01, label="ROC-AUC")
    figure.suptitle(f"{TITLES[dataset]}: {CAPTION}", fontsize=12, color=INK)
    return figure


def _map(axes: Axes, map_: Cells, patterns: list[str], bold: set[tuple[str, str]]) -> None:
    values = [[map_.get((a, b), nan) for b in patterns] for a in patterns]
    axes.imshow(values, cmap="YlGnBu_r", vmin=LOWEST, vmax=1.0)
    for i, a in enumerate(patterns):
        for j, b in enumerate(patterns):
            _cell(axes, (j, i), values[i][j], is_bold=(a, b) in bold)
    names = [SHORT.get(pattern, pattern) for pattern in patterns]
    axes.set_xticks(range(len(names)), names, fontsize=8, color=INK)
    axes.set_yticks(range(len(names)), names, fontsize=8, color=INK)
    axes.set_xlabel("Device-B", fontsize=8, color=INK)
    axes.set_ylabel("Device-A", fontsize=8, color=INK)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _cell(axes: Axes, place: tuple[int, int], value: float, *, is_bold: bool) -> None:
    if isfinite(value):
        colour = "white" if value < DARK else INK
        weight = "bold" if is_bold else "normal"
        text = f"{value:.2f}".removeprefix("0")
        axes.text(*place, text, ha="center", va="center", fontsize=7, color=colour, weight=weight)


def _title(rows: Rows, dataset: str, method: str) -> str:
    mean = [
        r for r in rows if (r["dataset"], r["method"], r["device_b"]) == (dataset, method, "others")
    ]
    name = LABELS.get(method, method)
    return f"{name}: {mean[0]['auc']:.3f}" if mean else name


def _bold(maps: dict[str, Cells], method: str) -> set[tuple[str, str]]:
    """Say where a method is best: of the paper's five, or, for ours, better than all five."""
    five = [maps[name] for name in PAPERS if name in maps]
    best = {pair: max(other.get(pair, 0.0) for other in five) for pair in maps[method]}
    mine = maps[method].items()
    return {
        pair for pair, auc in mine if auc > best[pair] or (auc == best[pair] and method in PAPERS)
    }
