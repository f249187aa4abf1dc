"""Latency of training, prediction and merging: the paper's table with ours, and a whole pair.

All times of a run come from one job in which the methods take turns, so that their ratios are fair.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from edgemerge.paper.dataset import Dataset, Trial
from edgemerge.paper.hyperparameters import FEDERATED, NETWORKS, ROUNDS, Layer, device_settings
from edgemerge.paper.plan import Claim, Job, Plan, Row, Rows, Scope
from edgemerge.paper.plotting import (
    COLOURS,
    GREY,
    INK,
    LABELS,
    ON_WHITE,
    draw_points,
    new_figure,
    set_titles,
)
from edgemerge.paper.timing import (
    ALL_ROUNDS,
    EPOCH_PER_ROUND,
    EPOCHS_IN_ALL,
    IN_CHUNKS,
    MERGE,
    ONE_BY_ONE,
    OURS,
    PAIR,
    PAPER_MS,
    PREDICT,
    PUBLISHED,
    READY_FOR_LOSS,
    READY_FOR_SCORE,
    SUMS_KEPT,
    TEXTBOOK,
    TRAIN,
    Step,
)

METHOD_COLOURS = {
    OURS: COLOURS["ours"],
    PUBLISHED: GREY,
    TEXTBOOK: "#BDBDBD",
    FEDERATED: COLOURS["BP-NN3-FL"],
}
METHOD_LABELS = {
    OURS: "ours",
    PUBLISHED: "published style",
    TEXTBOOK: "NumPy, textbook",
    FEDERATED: FEDERATED,
}
JOB_TITLES = {TRAIN: "Train on one sample", PREDICT: "Predict one sample", MERGE: "Merge one peer"}
DIAMOND: dict[str, Any] = {"color": "white", "edgecolors": INK, "marker": "D", "s": 22, "zorder": 3}
AT_THE_RIGHT: dict[str, Any] = {
    "ha": "right",
    "va": "center",
    "fontsize": 8,
    "color": INK,
    "bbox": ON_WHITE,
}
LEGEND: dict[str, Any] = {"loc": "outside upper right", "fontsize": 8, "frameon": False}
AXIS_MARGIN = 25.0  # the axis ends at so many times the longest time: numbers stand there


def draw_steps(rows: Rows) -> Figure:
    """Draw a panel for each job and N; diamonds are what the paper printed."""
    steps = [row for row in rows if row["job"] in JOB_TITLES]
    jobs = [job for job in JOB_TITLES if any(row["job"] == job for row in steps)]
    sizes = sorted({int(row["hidden"]) for row in steps})
    lines = [sum(row["job"] == job for row in steps) for job in jobs]
    figure = new_figure(6.2 * len(sizes), 0.27 * sum(lines) / len(sizes) + 0.8 * len(jobs) + 0.5)
    panels = figure.subplots(
        *(len(jobs), len(sizes)), squeeze=False, sharex="row", sharey="row", height_ratios=lines
    )
    for job, across in zip(jobs, panels, strict=True):
        for N, axes in zip(sizes, across, strict=True):
            found = [row for row in steps if (row["job"], row["hidden"]) == (job, N)]
            _panel(axes, found, _step_label, METHOD_COLOURS)
            printed = [(row["paper_ms"], i) for i, row in enumerate(found) if "paper_ms" in row]
            if printed:
                label = "the paper's, on its own machine"
                axes.scatter(*zip(*printed, strict=True), label=label, **DIAMOND)
            x = "ms of CPU (in brackets: as a share of BP-NN3-FL)" if job == jobs[-1] else ""
            set_titles(axes, f"{JOB_TITLES[job]}, N = {N}", x=x)
    figure.legend(*panels[0, 0].get_legend_handles_labels(), **LEGEND)
    return figure


def draw_pairs(rows: Rows) -> Figure:
    """Draw all training of a pair, a panel for each data set."""
    pairs = [row for row in rows if row["job"] == PAIR]
    names = list(dict.fromkeys(str(row["dataset"]) for row in pairs))
    figure = new_figure(6.2 * len(names), 0.27 * len(pairs) / len(names) + 1.2)
    panels = figure.subplots(1, len(names), squeeze=False, sharey=True, sharex=True)[0]
    for name, axes in zip(names, panels, strict=True):
        _panel(axes, [row for row in pairs if row["dataset"] == name], _pair_label, COLOURS)
        x = "ms of CPU, both devices (in brackets: as a share of BP-NN3-FL)"
        set_titles(axes, f"All training of one pair, {name.upper()}", x=x)
    return figure


def _panel(axes: Axes, rows: Rows, label: Callable[[Row], str], colours: dict[str, str]) -> None:
    times = draw_points(axes, rows, "ms", label=label, colours=colours)
    axes.xaxis.set_major_formatter("{x:,g}")
    low, high = axes.get_xlim()
    longest = max(*times, *(float(row.get("paper_ms", 0.0)) for row in rows))
    axes.set_xlim(min(low, min(times) / 3.0), max(high, longest * AXIS_MARGIN))
    for place, row in enumerate(rows):
        axes.text(0.99, place, _number(row), **AT_THE_RIGHT, transform=axes.get_yaxis_transform())


def _number(row: Row) -> str:
    time, share = float(row["ms"]), float(row["of_fl"])
    shown = f"{time:,.0f} ms" if time >= 100.0 else f"{time:.3g} ms"
    if share == 1.0:
        return shown
    return shown + (f"  (1/{1.0 / share:.3g})" if share < 1.0 else f"  ({share:.3g}×)")


def _step_label(row: Row) -> str:
    method = METHOD_LABELS[str(row["method"])]
    plainly = row["method"] != OURS and row["job"] != MERGE
    what = str(row["what"]).removeprefix("ready for " if row["job"] == PREDICT else "")
    return method if plainly else f"{method}, {what}"


def _pair_label(row: Row) -> str:
    method = str(row["method"])
    return f"{LABELS.get(method, method)}, {row['what']}"


NAME = "latency"
TITLE = "Training, prediction and merging latency"
DATA = ("har",)
NOTE = (
    "CPU time on one thread, methods in turn, the best of many turns: only ratios within one run "
    "mean something, and the paper's own milliseconds are from its own machine. Ours starts from "
    "decoded sums and its first answer after merging is counted; it learns a sample together with "
    "the next prediction, so its training is the time of both without that of a prediction. "
    "Readings of BP-NN3-FL are tensors before the clock starts. The time of a pair's "
    "training by back-propagation is computed from the time of a step; on MNIST it has few of "
    "them (5 epochs in batches of 32), so that even the sums of one plain OS-ELM "
    "take more than a twentieth of it."
)

SIZES = (64, 128)  # of the hidden layer
PAIRS = {"har": ("sitting", "laying"), "mnist": ("0", "1")}
TARGET_SPEEDUP = 20  # times, that ours is to be faster than BP-NN3-FL over all training of a pair
CLAIM_SUBJECTS = {
    (TRAIN, READY_FOR_LOSS): "Training, ready for a loss,",
    (TRAIN, READY_FOR_SCORE): "Training, ready for a score,",
    (PREDICT, READY_FOR_LOSS): "Predicting a loss",
    (PREDICT, READY_FOR_SCORE): "Predicting a score",
    (MERGE, READY_FOR_LOSS): "Merging, ready for a loss,",
    (MERGE, READY_FOR_SCORE): "Merging, ready for a score,",
}
COLUMNS = {
    "ms": "ms",
    "of_fl": "of BP-NN3-FL",
    "of_published": "of published style",
    "paper_ms": "paper's ms",
}
FL_READINGS = (EPOCHS_IN_ALL, EPOCH_PER_ROUND)  # of how long the clients train

# what the others are compared with, for each job: BP-NN3-FL, and the published style
COMPARED_WITH: dict[str, tuple[Step, ...]] = {
    TRAIN: (Step(TRAIN, FEDERATED), Step(TRAIN, PUBLISHED)),
    PREDICT: (Step(PREDICT, FEDERATED), Step(PREDICT, PUBLISHED)),
    MERGE: (Step(MERGE, FEDERATED, ALL_ROUNDS), Step(MERGE, PUBLISHED, SUMS_KEPT)),
    PAIR: (Step(PAIR, FEDERATED, EPOCHS_IN_ALL),),
}


def run(plan: Plan) -> Rows:
    """Time everything in one job; MNIST's pair is there if MNIST is."""
    names = [name for name in PAIRS if name in DATA or plan.scope.has(name)]
    used = [f"{PAIRS[n]}: {device_settings(n)}, {NETWORKS[n]['BP-NN3']}" for n in names]
    words = f"N {SIZES}, {'; '.join(used)}, {ROUNDS} rounds"
    return plan.rows(work, [Job(NAME, "har", "all", 0, "-".join(names), words)])


def work(job: Job, scope: Scope) -> Rows:
    """Time the methods in turn: single steps on HAR at both N, then all training of a pair."""
    from edgemerge.paper import latency_steps  # noqa: PLC0415 (these need torch)

    data, found, seconds = scope.dataset("har"), [], 1.0 if scope.quick else 20.0
    X, Y = (data.X[data.rows(pattern)] for pattern in PAIRS["har"])
    for N in SIZES:
        layer = Layer("identity", N).projection(data, scope.seed)
        found += rows_of(data, latency_steps.measure_steps(layer, X, Y, seconds), hidden=N)
    for name in job.part.split("-"):
        trial = Trial(Job(NAME, name, "all", job.trial), scope)
        a, b = map(trial.data.patterns.index, PAIRS[name])
        times = latency_steps.measure_pair(trial, a, b, 0.0 if scope.quick else 20.0)
        found += rows_of(trial.data, times)
    return found


def rows_of(data: Dataset, times: Mapping[Step, float], **sizes: int) -> Rows:
    """Return a row for each step: its time, its ratios to others, and the paper's time."""
    rows: Rows = []
    for step, time in times.items():
        head: Row = {"dataset": data.name, "inputs": data.n_inputs, **sizes, **step._asdict()}
        others = zip(("of_fl", "of_published"), COMPARED_WITH[step.job], strict=False)
        shares = {key: time / times[other] for key, other in others}
        paper = PAPER_MS.get((step, sizes.get("hidden", 0)))
        printed = {} if paper is None else {"paper_ms": paper}
        rows.append({**head, "ms": 1e3 * time, **shares, **printed})
    return rows


def table(rows: Rows) -> Rows:
    """Return the paper's table: a line for each step, with both N beside each other."""
    lines: dict[Step, Row] = {}
    for row in rows:
        if "hidden" in row:
            step = Step(str(row["job"]), str(row["method"]), str(row["what"]))
            line = lines.setdefault(step, {**step._asdict()})
            shown = {key: row[key] for key in COLUMNS if key in row}
            line |= {f"{COLUMNS[key]}, N = {row['hidden']}": value for key, value in shown.items()}
    return list(lines.values())


def plot(rows: Rows) -> dict[str, Figure]:
    """Draw the steps, and all training of a pair."""
    found: dict[str, Figure] = {}
    if any(row["job"] in (TRAIN, PREDICT, MERGE) for row in rows):
        found["steps"] = draw_steps(rows)
    if any(row["job"] == PAIR for row in rows):
        found["pair"] = draw_pairs(rows)
    return found


def claims(rows: Rows) -> list[Claim]:
    """Compare ours with BP-NN3-FL as the paper does, with NumPy, and over a whole pair."""
    against = "BP-NN3-FL's"
    found = [
        _at_both(f"Training takes less than {against}", rows, Step(TRAIN, OURS)),
        _at_both(f"Prediction takes less than {against}", rows, Step(PREDICT, OURS)),
        _at_both(f"One merge takes less than {against} {ROUNDS} rounds", rows, Step(MERGE, OURS)),
    ]
    for (job, what), words in CLAIM_SUBJECTS.items():
        text, mine = f"{words} takes no longer than the published style", Step(job, OURS, what)
        found.append(_at_both(text, rows, mine, COMPARED_WITH[job][1]))
    for job in (TRAIN, PREDICT):
        text = f"{CLAIM_SUBJECTS[job, READY_FOR_LOSS]} takes no longer than textbook NumPy"
        found.append(_at_both(text, rows, Step(job, OURS), Step(job, TEXTBOOK)))
    datasets = dict.fromkeys(str(row["dataset"]) for row in rows if row["job"] == PAIR)
    return found + [_pair(rows, name, reading) for name in datasets for reading in FL_READINGS]


def _at_both(text: str, rows: Rows, mine: Step, other: Step | None = None) -> Claim:
    other = other or COMPARED_WITH[mine.job][0]
    ratios = {N: ratio for N in SIZES if (ratio := _ratio(rows, mine, other, hidden=N))}
    if not ratios:
        return Claim.not_measured(text)
    found = "; ".join(f"N = {N}: {ratio:.3g} of its time" for N, ratio in ratios.items())
    return Claim(text, max(ratios.values()) < 1.0, found)


def _pair(rows: Rows, dataset: str, reading: str) -> Claim:
    of = f"1/{TARGET_SPEEDUP} of BP-NN3-FL's time, {reading}"
    text = f"{dataset}: ours, {IN_CHUNKS}, trains a pair in at most {of}"
    other = Step(PAIR, FEDERATED, reading)
    ratios = {
        what: ratio
        for what in (IN_CHUNKS, ONE_BY_ONE)
        if (ratio := _ratio(rows, Step(PAIR, "ours", what), other, dataset=dataset))
    }
    found = ", ".join(f"{what} 1/{1.0 / ratio:.3g}" for what, ratio in ratios.items())
    return Claim.at_most(text, TARGET_SPEEDUP, ratios.get(IN_CHUNKS), found)


def _ratio(rows: Rows, mine: Step, other: Step, **wanted: str | int) -> float | None:
    top, bottom = (time_of(rows, step, **wanted) for step in (mine, other))
    return top / bottom if top and bottom else None


def time_of(rows: Sequence[Row], step: Step, **wanted: str | int) -> float | None:
    """Return the milliseconds of a step; None if it was not measured."""
    wanted |= step._asdict()
    found = (float(row["ms"]) for row in rows if wanted.items() <= row.items())
    return next(found, None)
