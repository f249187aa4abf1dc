"""Time, bytes, memory and ROC-AUC of a detector against its number of hidden values N."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from edgemerge import Detector, Projection, Stats, encode, save
from edgemerge.paper.dataset import Array, Trial
from edgemerge.paper.hyperparameters import FORMS, Layer, trained_detector
from edgemerge.paper.plan import Claim, Job, Plan, Row, Rows, Scope
from edgemerge.paper.plotting import (
    BLACK,
    BLUE,
    COLOURS,
    GREY,
    ORANGE,
    PINK,
    SKY,
    hide_frame,
    new_figure,
    set_titles,
)
from edgemerge.paper.timing import TimedCall, best_times, call_each

NAME = "cost"
TITLE = "Cost against the number of hidden values"
DATA = ("har",)
NOTE = (
    "HAR, identity, one detector for each pattern. Times are CPU time on one thread, the best of "
    "many turns, all in one job; the time of learning one sample is that of learning it and then "
    "computing a loss, without that of a loss; a merge includes the first answer. AUC is the "
    "off-diagonal mean of the paper's pairs. Memory is all that a detector with a peer's "
    "sums holds, its projection too."
)

SIZES = (16, 32, 64, 128, 256)
TRIALS = 3
QUICK_S, FULL_S = 1.0, 20.0  # of timing
SAMPLES_PER_TURN = 64  # samples one by one in a turn
BLOCK_ROWS = 512  # together
OWN, PEER = "sitting", "laying"

TIMES = {
    "learn_us": ("learn one, ready for a loss", BLUE),
    "learn_rows_us": ("learn one of many rows", SKY),
    "loss_us": ("loss of one", ORANGE),
    "score_us": ("score of one", PINK),
    "merge_loss_us": ("merge, ready for a loss", GREY),
    "merge_score_us": ("merge, ready for a score", BLACK),
}
SIZES_SHOWN = {
    "memory_bytes": ("memory, all included", BLACK),
    "file_bytes": ("file", GREY),
    "exact_bytes": ("contribution, exact", BLUE),
    "float32_bytes": ("contribution, float32", SKY),
    "root16_bytes": ("contribution, root16", ORANGE),
}
AUCS = {
    "auc_before": ("before merging", COLOURS["before"]),
    "auc_after": ("after merging", COLOURS["after"]),
}


def run(plan: Plan) -> Rows:
    """Measure all N in one job, and AUC in one for each N and trial; return a row for each N."""
    trials = range(1 if plan.scope.quick else min(plan.trials, TRIALS))
    settings = f"identity, N {SIZES}, {SAMPLES_PER_TURN} singles, {BLOCK_ROWS} rows"
    measured = plan.rows(work, [Job(NAME, "har", "measured", 0, settings=settings)])
    jobs = [Job(NAME, "har", "auc", t, str(N), "identity") for N in SIZES for t in trials]
    return join_aucs(measured, plan.rows(work, jobs))


def join_aucs(measured: Rows, aucs: Rows) -> Rows:
    """Add to each row the mean AUC of all trials with the same N."""
    found: Rows = []
    for row in measured:
        same = [each for each in aucs if each["hidden"] == row["hidden"]]
        means = {key: float(np.mean([float(each[key]) for each in same])) for key in AUCS}
        found.append({**row, **means, "trials": len(same)})
    return found


def work(job: Job, scope: Scope) -> Rows:
    """Measure time and bytes of all N, or the AUC of one."""
    if job.method == "auc":
        return [pair_aucs(Trial(job, scope), int(job.part))]
    data = scope.dataset("har")
    X, Y = (data.X[data.rows(pattern)] for pattern in (OWN, PEER))
    layers = [Layer("identity", N).projection(data, scope.seed) for N in SIZES]
    times = measure_times(layers, X, Y, seconds=QUICK_S if scope.quick else FULL_S)
    return [
        {"hidden": layer.n_hidden, **times[layer.n_hidden], **measure_bytes(layer, X, Y)}
        for layer in layers
    ]


def pair_aucs(trial: Trial, N: int) -> Row:
    """Return AUC before and after merging, as means over the pairs of different patterns."""
    layer = Layer("identity", N).projection(trial.data, trial.number("layer"))
    devices = [Detector(layer) for _ in trial.data.patterns]
    for pattern, device in enumerate(devices):
        device.learn(trial.learnt(pattern))
    found: dict[str, list[float]] = {key: [] for key in AUCS}
    for a, b in trial.pairs():
        if a != b:
            readings = trial.data.X[trial.eval_set(a, b).rows]
            for key, others in zip(AUCS, (Stats.empty(layer), devices[b].own), strict=True):
                devices[a].adopt(others)
                row = trial.row(key, (a, b), np.asarray(devices[a].loss(readings)))
                found[key].append(float(row["auc"]))
    return {"hidden": N, **{key: float(np.mean(values)) for key, values in found.items()}}


def measure_times(
    layers: Sequence[Projection], X: Array, Y: Array, *, seconds: float
) -> dict[int, dict[str, float]]:
    """Return the microseconds of every job at every N, measured in turn."""
    calls = [call for layer in layers for call in _timed_calls(layer, X, Y)]
    found: dict[int, dict[str, float]] = {layer.n_hidden: {} for layer in layers}
    for call, time in zip(calls, best_times(calls, seconds), strict=True):
        found[int(call.way)][call.job] = 1e6 * time
    for times in found.values():
        times["learn_us"] -= times["loss_us"]
    return found


def _timed_calls(layer: Projection, X: Array, Y: Array) -> list[TimedCall]:
    rows, others, way = list(X[:SAMPLES_PER_TURN]), Stats.of(layer, Y), str(layer.n_hidden)
    one, many, unchanged, fourth, fifth = (trained_detector(layer, X) for _ in range(5))
    unchanged.score(X[0])  # computes P, which every device has that learns as it goes

    def learn(x: Array) -> None:
        one.learn(x)
        one.loss(X[-1])  # learns it, too: `measure_times` takes a loss off

    def merge(device: Detector, ask: Callable[[Array], object]) -> None:
        device.adopt(others)
        ask(X[0])

    block = X[:BLOCK_ROWS]
    runs: Mapping[str, tuple[Callable[[], object], int]] = {
        "learn_us": (partial(call_each, learn, rows), len(rows)),
        "learn_rows_us": (partial(many.learn, block), len(block)),
        "loss_us": (partial(call_each, unchanged.loss, rows), len(rows)),
        "score_us": (partial(call_each, unchanged.score, rows), len(rows)),
        "merge_loss_us": (partial(merge, fourth, fourth.loss), 1),
        "merge_score_us": (partial(merge, fifth, fifth.score), 1),
    }
    return [TimedCall(job, way, run, units) for job, (run, units) in runs.items()]


def measure_bytes(layer: Projection, X: Array, Y: Array) -> Row:
    """Return the bytes of a contribution in each form, of a detector's file, and of its memory."""
    (shared,) = trained_detector(layer, X).share("device-a", revision=1)
    found: Row = {f"{form}_bytes": len(encode(shared, form)) for form in FORMS}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "detector"
        save(_merged_detector(layer, X, Y), path)
        found["file_bytes"] = path.stat().st_size
    return {**found, "memory_bytes": _memory(layer, X, Y)}


def _memory(layer: Projection, X: Array, Y: Array) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        device = _merged_detector(replace(layer), X, Y)  # a new layer: its weights count too
        device.score(X[0])
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def _merged_detector(layer: Projection, X: Array, Y: Array) -> Detector:
    device = trained_detector(layer, X)
    device.adopt(Stats.of(layer, Y))
    return device


def plot(rows: Rows) -> dict[str, Figure]:
    """Draw time, bytes and AUC against N."""
    figure = new_figure(13.5, 4.2)
    panels = (
        ("Time", "µs of CPU", TIMES, 1.0, "log"),
        ("Bytes", "kB", SIZES_SHOWN, 1e-3, "log"),
        ("Accuracy", "ROC-AUC, mean of pairs", AUCS, 1.0, "linear"),
    )
    for axes, panel in zip(figure.subplots(1, 3), panels, strict=True):
        title, y, shown, unit, scale = panel
        _lines(axes, rows, shown, unit)
        axes.set_yscale(scale)
        if scale == "log":
            axes.margins(y=0.15)  # room for the legend
        set_titles(axes, title, x="hidden values N", y=y)
    return {"": figure}


def _lines(axes: Axes, rows: Rows, shown: Mapping[str, tuple[str, str]], unit: float) -> None:
    sizes = [int(row["hidden"]) for row in rows]
    for key, (label, colour) in shown.items():
        values = [unit * float(row[key]) for row in rows]
        axes.plot(sizes, values, marker="o", ms=4, color=colour, label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(N) for N in sizes])
    axes.legend(fontsize=8, frameon=False)
    hide_frame(axes)


def claims(rows: Rows) -> list[Claim]:
    """Claim that merging helps at every N, and that no cost of a sample grows faster than N."""
    if len(rows) < 2:
        return [Claim.not_measured("Costs and AUC against N")]
    gains = {int(row["hidden"]): float(row["auc_after"]) - float(row["auc_before"]) for row in rows}
    found = ", ".join(f"N = {N}: {gain:+.3f}" for N, gain in gains.items())
    small, large = rows[0], rows[-1]
    wider = float(large["hidden"]) / float(small["hidden"])
    text = "AUC after merging is above that before at every N"
    return [
        Claim(text, min(gains.values()) > 0.0, found),
        *(_growth(key, small, large, wider) for key in ("learn_us", "loss_us", "score_us")),
        _growth("root16_bytes", small, large, wider**2),
    ]


def _growth(key: str, small: Row, large: Row, most: float) -> Claim:
    label, few, many = {**TIMES, **SIZES_SHOWN}[key][0], small["hidden"], large["hidden"]
    text = f"{label}: at most {most:g} times as much at N = {many} as at {few}"
    growth = float(large[key]) / float(small[key])
    return Claim(text, growth <= most, f"{growth:.3g} times")
