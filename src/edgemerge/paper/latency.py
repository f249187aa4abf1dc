"""How long training, prediction and merging take: the paper's table with ours, and a whole pair.

All times of a run come from one job in which the methods take turns, for the sake of ratios.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from edgemerge.paper.dataset import Dataset
from edgemerge.paper.learners import settings
from edgemerge.paper.plan import Claim, Job, Plan, Row, Rows, Scope
from edgemerge.paper.settings import NETWORKS, ROUNDS, Layer
from edgemerge.paper.time_bars import pair_bars, step_bars
from edgemerge.paper.timed import (
    ALL_ROUNDS,
    FL,
    IN_ALL,
    LOSS,
    MERGE,
    OURS,
    OWN_SUMS,
    PAIR,
    PER_ROUND,
    PREDICT,
    PRINTED,
    ROWS,
    SCORE,
    SINGLY,
    STYLE,
    TEXTBOOK,
    TRAIN,
    Step,
)

NAME = "latency"
TITLE = "Training, prediction and merging latency"
DATA = ("har",)
NOTE = (
    "CPU time on one thread, methods in turn, the best of many turns: only ratios within one run "
    "mean something, and the paper's own milliseconds are from its own machine. Ours starts from "
    "decoded sums and its first answer after merging is counted; readings of BP-NN3-FL are tensors "
    "before the clock starts. The time of a pair's training by back-propagation is computed from "
    "the time of a step; on MNIST it has few of them (5 epochs in batches of 32), so that even the "
    "sums of one plain OS-ELM take more than a twentieth of it."
)

SIZES = (64, 128)
PAIRS = {"har": ("sitting", "laying"), "mnist": ("0", "1")}
FASTER = 20  # times, that ours is to be faster than BP-NN3-FL over all training of a pair
WORDS = {
    (TRAIN, LOSS): "Training, ready for a loss,",
    (TRAIN, SCORE): "Training, ready for a score,",
    (PREDICT, LOSS): "Predicting a loss",
    (PREDICT, SCORE): "Predicting a score",
    (MERGE, LOSS): "Merging, ready for a loss,",
    (MERGE, SCORE): "Merging, ready for a score,",
}
COLUMNS = {
    "ms": "ms",
    "of_fl": "of BP-NN3-FL",
    "of_published": "of published style",
    "paper_ms": "paper's ms",
}
READINGS = (IN_ALL, PER_ROUND)  # of how long the clients train

# what the others are compared with, for each job: BP-NN3-FL, and the published style
AGAINST: dict[str, tuple[Step, ...]] = {
    TRAIN: (Step(TRAIN, FL), Step(TRAIN, STYLE)),
    PREDICT: (Step(PREDICT, FL), Step(PREDICT, STYLE)),
    MERGE: (Step(MERGE, FL, ALL_ROUNDS), Step(MERGE, STYLE, OWN_SUMS)),
    PAIR: (Step(PAIR, FL, IN_ALL),),
}


def run(plan: Plan) -> Rows:
    """Time everything in one job; MNIST's pair is there if MNIST is."""
    names = [name for name in PAIRS if name in DATA or plan.scope.has(name)]
    used = [f"{PAIRS[n]}: {settings(n)}, {NETWORKS[n]['BP-NN3']}" for n in names]
    words = f"N {SIZES}, {'; '.join(used)}, {ROUNDS} rounds"
    return plan.rows(work, [Job(NAME, "har", "all", 0, "-".join(names), words)])


def work(job: Job, scope: Scope) -> Rows:
    """Race the methods: single steps on HAR at both N, then all training of a pair."""
    from edgemerge.paper import one_step, pair_time  # noqa: PLC0415 (these need torch)
    from edgemerge.paper.trial import Trial  # noqa: PLC0415 (needs scikit-learn)

    data, found, seconds = scope.dataset("har"), [], 1.0 if scope.quick else 20.0
    X, Y = (data.X[data.rows(pattern)] for pattern in PAIRS["har"])
    for N in SIZES:
        layer = Layer("identity", N).projection(data, scope.seed)
        found += rows_of(data, one_step.measure(layer, X, Y, seconds), hidden=N)
    for name in job.part.split("-"):
        trial = Trial(Job(NAME, name, "all", job.trial), scope)
        a, b = map(trial.data.patterns.index, PAIRS[name])
        times = pair_time.measure(trial, a, b, 0.0 if scope.quick else 20.0)
        found += rows_of(trial.data, times)
    return found


def rows_of(data: Dataset, times: Mapping[Step, float], **sizes: int) -> Rows:
    """Write times down with their ratios, and with what the paper printed."""
    names: Row = {"dataset": data.name, "inputs": data.n_inputs, **sizes}
    return [{**names, **_row(step, times, sizes.get("hidden", 0))} for step in times]


def _row(step: Step, times: Mapping[Step, float], N: int) -> Row:
    others = zip(("of_fl", "of_published"), AGAINST[step.job], strict=False)
    shares = {key: times[step] / times[other] for key, other in others}
    printed = {"paper_ms": PRINTED[step, N]} if (step, N) in PRINTED else {}
    return {**step._asdict(), "ms": 1e3 * times[step], **shares, **printed}


def table(rows: Rows) -> Rows:
    """Give the paper's table: a line for each step, with both N beside each other."""
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
        found["steps"] = step_bars(rows)
    if any(row["job"] == PAIR for row in rows):
        found["pair"] = pair_bars(rows)
    return found


def claims(rows: Rows) -> list[Claim]:
    """Hold ours against BP-NN3-FL as the paper does, against NumPy, and over a whole pair."""
    against = "BP-NN3-FL's"
    found = [
        _at_both(f"Training takes less than {against}", rows, Step(TRAIN, OURS)),
        _at_both(f"Prediction takes less than {against}", rows, Step(PREDICT, OURS)),
        _at_both(f"One merge takes less than {against} {ROUNDS} rounds", rows, Step(MERGE, OURS)),
    ]
    for (job, what), words in WORDS.items():
        text, mine = f"{words} takes no longer than the published style", Step(job, OURS, what)
        found.append(_at_both(text, rows, mine, AGAINST[job][1]))
    for job in (TRAIN, PREDICT):
        text = f"{WORDS[job, LOSS]} takes no longer than NumPy by the book"
        found.append(_at_both(text, rows, Step(job, OURS), Step(job, TEXTBOOK)))
    datasets = dict.fromkeys(str(row["dataset"]) for row in rows if row["job"] == PAIR)
    return found + [_pair(rows, name, reading) for name in datasets for reading in READINGS]


def _at_both(text: str, rows: Rows, mine: Step, other: Step | None = None) -> Claim:
    other = other or AGAINST[mine.job][0]
    ratios = {N: ratio for N in SIZES if (ratio := _ratio(rows, mine, other, hidden=N))}
    if not ratios:
        return Claim(text, None, "not measured")
    found = "; ".join(f"N = {N}: {ratio:.3g} of its time" for N, ratio in ratios.items())
    return Claim(text, max(ratios.values()) < 1.0, found)


def _pair(rows: Rows, dataset: str, reading: str) -> Claim:
    of = f"1/{FASTER} of BP-NN3-FL's time, {reading}"
    text = f"{dataset}: ours, {ROWS}, trains a pair in at most {of}"
    other = Step(PAIR, FL, reading)
    ratios = {
        what: ratio
        for what in (ROWS, SINGLY)
        if (ratio := _ratio(rows, Step(PAIR, "ours", what), other, dataset=dataset))
    }
    if ROWS not in ratios:
        return Claim(text, None, "not measured")
    found = ", ".join(f"{what} 1/{1.0 / ratio:.3g}" for what, ratio in ratios.items())
    far = FASTER * ratios[ROWS]
    missed = "" if far <= 1.0 else f"; missed by a factor of {far:.3g}"
    return Claim(text, far <= 1.0, found + missed)


def _ratio(rows: Rows, mine: Step, other: Step, **wanted: str | int) -> float | None:
    top, bottom = (time_of(rows, step, **wanted) for step in (mine, other))
    return top / bottom if top and bottom else None


def time_of(rows: Sequence[Row], step: Step, **wanted: str | int) -> float | None:
    """Give the milliseconds of a step, if they were measured."""
    wanted |= step._asdict()
    for row in rows:
        if all(row.get(key) == value for key, value in wanted.items()):
            return float(row["ms"])
    return None
