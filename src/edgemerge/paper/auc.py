"""ROC-AUC of every pair of patterns: before and after merging, back-propagation, and ours.

Rows are means over trials; those from "all" to "others" are means over all pairs off the diagonal,
once over all trials of a method, and once over those that every method has. Samples are learnt once
and in one order; learning them in chunks gives the same bits as one by one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from importlib.util import find_spec
from itertools import combinations_with_replacement, product
from math import isfinite, nan

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from edgemerge import Bank, Contribution, Detector, Projection, Stats, decode, encode
from edgemerge.paper.dataset import SPLIT_SETTINGS, Array, Trial
from edgemerge.paper.hyperparameters import BANKS, BASELINES, CHUNK_ROWS, LAYERS, Exchange
from edgemerge.paper.plan import Claim, Job, Plan, Row, Rows, Scope
from edgemerge.paper.plotting import INK, LABELS, new_figure

BEFORE, AFTER = "before", "after"


def merge_settings(dataset: str, method: str) -> str:
    """Return the settings of a method as text."""
    return f"{BANKS[method][dataset] if method in BANKS else LAYERS[dataset]}, {SPLIT_SETTINGS}"


def merge_pairs(trial: Trial) -> Rows:
    """Return the rows of Device-A before and after merging Device-B, for all pairs."""
    layer = LAYERS[trial.data.name].projection(trial.data, trial.number("layer"))
    stats = [Stats.of(layer, trial.learnt(i)) for i in range(len(trial.data.patterns))]
    X, held_out, rows = trial.data.X, np.concatenate(trial.split.keep), []
    for a, own in enumerate(stats):
        before = np.zeros(len(X))
        before[held_out] = Detector.resume(own).loss(X[held_out])
        sets = [trial.eval_set(a, b).rows for b in range(len(stats))]
        rows += [trial.row(BEFORE, (a, b), before[chosen]) for b, chosen in enumerate(sets)]
        for b in range(a, len(stats)):  # a + b is b + a to the bit
            after = np.asarray(Detector.resume(own, stats[b]).loss(X[sets[b]]))
            rows += [trial.row(AFTER, pair, after) for pair in sorted({(a, b), (b, a)})]
    return rows


def exchange_pairs(trial: Trial, method: str) -> Rows:
    """Return the rows of Device-A with the patterns of Device-B beside its own, for all pairs."""
    exchange = BANKS[method][trial.data.name]
    layer = exchange.layer.projection(trial.data, trial.number("layer"))
    banks = [train_bank(exchange, layer, trial.learnt(i)) for i in range(len(trial.data.patterns))]
    sent = [encode_contributions(bank, exchange, f"device-{i}") for i, bank in enumerate(banks)]
    found: Rows = []
    for a, b in trial.pairs():
        banks[a].adopt([] if a == b else decode_contributions(sent[b], layer))
        readings = trial.data.X[trial.eval_set(a, b).rows]
        found.append(trial.row(method, (a, b), np.asarray(banks[a].score(readings))))
    return found


def train_bank(exchange: Exchange, layer: Projection, readings: Array) -> Bank:
    """Return a bank that learnt the readings, each once, in their order."""
    bank = exchange.bank(layer)
    for start in range(0, len(readings), CHUNK_ROWS):
        bank.learn(readings[start : start + CHUNK_ROWS])
    return bank


def encode_contributions(bank: Bank, exchange: Exchange, device: str) -> list[bytes]:
    """Return a device's contributions as bytes."""
    return [encode(each, exchange.form) for each in bank.share(device, revision=1)]


def decode_contributions(encoded: list[bytes], layer: Projection) -> list[Contribution]:
    """Return contributions from their bytes."""
    return [decode(data, Contribution, projection=layer) for data in encoded]


PAPER_METHODS = (BEFORE, AFTER, *BASELINES)
OUR_METHODS = ("bank", "ours")
MAPS_PER_LINE = 4
COLOUR_MIN = 0.5  # the AUC of guessing
WHITE_TEXT_BELOW = 0.7
CAPTION = "ROC-AUC of each pair, and the mean off the diagonal"
SHORT_NAMES = {
    "walking": "walk",
    "walking_upstairs": "up",
    "walking_downstairs": "down",
    "sitting": "sit",
    "standing": "stand",
    "laying": "lay",
}
TITLES = {"har": "HAR", "mnist": "MNIST"}
Cells = dict[tuple[str, str], float]


def pair_means(rows: Rows, dataset: str) -> dict[str, Cells]:
    """Return the mean AUC of each pair, by method."""
    found: dict[str, Cells] = defaultdict(dict)
    for row in rows:
        if row["dataset"] == dataset and row["device_a"] != "all":
            pair = str(row["device_a"]), str(row["device_b"])
            found[str(row["method"])][pair] = float(row["auc"])
    return found


def plot_heatmaps(rows: Rows, caption: str = CAPTION) -> dict[str, Figure]:
    """Draw one figure for each data set, with one map for each method."""
    found = {dataset: pair_means(rows, dataset) for dataset in TITLES}
    return {
        dataset: _maps(rows, dataset, maps, f"{TITLES[dataset]}: {caption}")
        for dataset, maps in found.items()
        if maps
    }


def _maps(rows: Rows, dataset: str, maps: dict[str, Cells], caption: str) -> Figure:
    shown = [method for method in (*PAPER_METHODS, *OUR_METHODS) if method in maps]
    patterns = list(dict.fromkeys(a for a, _ in maps[shown[0]]))
    lines, size = -(-len(shown) // MAPS_PER_LINE), 0.34 * len(patterns) + 1.0  # inches
    figure = new_figure(MAPS_PER_LINE * size + 0.6, lines * (size + 0.15) + 0.4)
    every = list(figure.subplots(lines, MAPS_PER_LINE, squeeze=False).flat)
    mean = means(rows, dataset)
    for axes, method in zip(every, shown, strict=False):
        _map(axes, maps[method], patterns, _bold(maps, method))
        auc = f": {mean[method]:.3f}" if method in mean else ""
        axes.set_title(LABELS.get(method, method) + auc, fontsize=10, color=INK)
    for axes in every[len(shown) :]:
        axes.set_visible(False)
    figure.colorbar(every[0].images[0], ax=every, shrink=0.5, pad=0.01, label="ROC-AUC")
    figure.suptitle(caption, fontsize=12, color=INK)
    return figure


def _map(axes: Axes, map_: Cells, patterns: list[str], bold: set[tuple[str, str]]) -> None:
    values = [[map_.get((a, b), nan) for b in patterns] for a in patterns]
    axes.imshow(values, cmap="YlGnBu_r", vmin=COLOUR_MIN, vmax=1.0)
    for (i, a), (j, b) in product(enumerate(patterns), repeat=2):
        if isfinite(value := values[i][j]):
            colour = "white" if value < WHITE_TEXT_BELOW else INK
            text, weight = f"{value:.2f}".removeprefix("0"), "bold" if (a, b) in bold else "normal"
            axes.text(j, i, text, ha="center", va="center", fontsize=7, color=colour, weight=weight)
    names = [SHORT_NAMES.get(pattern, pattern) for pattern in patterns]
    axes.set_xticks(range(len(names)), names, fontsize=8, color=INK)
    axes.set_yticks(range(len(names)), names, fontsize=8, color=INK)
    axes.set_xlabel("Device-B", fontsize=8, color=INK)
    axes.set_ylabel("Device-A", fontsize=8, color=INK)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _bold(maps: dict[str, Cells], method: str) -> set[tuple[str, str]]:
    """Return the pairs where a method is best of the paper's five, or, for ours, above all five."""
    five, in_paper = [maps[name] for name in PAPER_METHODS if name in maps], method in PAPER_METHODS
    best = {pair: max(other.get(pair, 0.0) for other in five) for pair in maps[method]}
    found = maps[method].items()
    return {pair for pair, auc in found if auc > best[pair] or (auc == best[pair] and in_paper)}


NAME = "auc"
TITLE = "ROC-AUC of every pair of patterns"
DATA = ("har", "mnist")
NOTE = (
    "Device-A (row) and Device-B (column) learn 80 % of one pattern each; the rest of both is "
    "normal in the evaluation set, and a tenth as many samples of all other patterns are odd. "
    "All methods get the same splits and evaluation sets. "
    "Bold is the best of the paper's five; ours is bold where it is better than all five; these "
    "are means over all trials of a method, and back-propagation has fewer. "
    "HAR's windows overlap by half, so a split by sample leaks, as in the paper. "
    "BP-NN3-FL spreads BP-NN3's epochs over its rounds, the kindest reading that we found; on HAR "
    "it is still below what the paper reports. "
    "The settings of ours, best, were chosen on pairs of the same data, which favours it; the page "
    "on one-shot detection chooses settings on one half of the data and reports the other. The "
    "aims for ours, and the earlier reproduction, are those of a prototype. Networks have fewer "
    "trials, so their means are less certain."
)
OS_ELM = "OS-ELM"  # one job gives before and after
PATTERNS = {"har": 6, "mnist": 10}
EARLIER_AUC = {"har": (0.735, 0.892), "mnist": (0.720, 0.868)}  # before and after merging
TARGET_AUC = {"har": 0.952, "mnist": 0.944}
NOISE = 0.01  # between one projection, cut and drawing of odd samples and another
ALL, OTHERS, SHARED = "all", "others", "others, trials that all have"

Key = tuple[str, ...]  # data set, method, what Device-A and Device-B learnt
Trials = dict[Key, dict[int, list[float]]]

plot = plot_heatmaps


def run(plan: Plan) -> Rows:
    """Run all trials of all methods on both data sets."""
    names = [name for name in DATA if plan.scope.has(name)]
    return summarise(plan.rows(work, [job for name in names for job in jobs(plan, name)]))


def jobs(plan: Plan, dataset: str) -> list[Job]:
    """One job for each trial; for back-propagation one for each pair of it, which takes as long."""
    quick = [
        Job(NAME, dataset, method, trial, settings=merge_settings(dataset, method))
        for method in (OS_ELM, *BANKS)
        for trial in plan.merging
    ]
    return quick + (training_jobs(plan, dataset) if find_spec("torch") else [])


def training_jobs(plan: Plan, dataset: str) -> list[Job]:
    """The jobs of back-propagation; the order within a pair does not matter there."""
    from edgemerge.paper import backprop  # noqa: PLC0415 (the rest runs without torch)

    pairs = combinations_with_replacement(range(PATTERNS[dataset]), 2)
    return [
        Job(NAME, dataset, method, trial, f"{a}-{b}", backprop.training_settings(dataset, method))
        for trial, method, (a, b) in product(plan.training, BASELINES, pairs)
    ]


def work(job: Job, scope: Scope) -> Rows:
    """Run one trial of a method, or one pair of it."""
    trial = Trial(job, scope)
    if job.method in BASELINES:
        from edgemerge.paper import backprop  # noqa: PLC0415 (as in `training_jobs`)

        a, b = map(int, job.part.split("-"))
        return backprop.baseline_rows(trial, job.method, a, b)
    return merging_rows(trial)


def merging_rows(trial: Trial) -> Rows:
    """Run one trial of the job's method, which merges sums."""
    method = trial.job.method
    return merge_pairs(trial) if method == OS_ELM else exchange_pairs(trial, method)


def summarise(rows: Iterable[Row]) -> Rows:
    """Return the mean and the spread over trials, of each pair and of all off the diagonal."""
    pairs: dict[Key, list[float]] = defaultdict(list)
    trials: Trials = defaultdict(lambda: defaultdict(list))
    for row in rows:
        head = (str(row["dataset"]), str(row["method"]))
        a, b, auc = str(row["device_a"]), str(row["device_b"]), float(row["auc"])
        pairs[*head, a, b].append(auc)
        if a != b:
            trials[*head, ALL, OTHERS][int(row["trial"])].append(auc)
    means = {key: [float(np.mean(v)) for v in found.values()] for key, found in trials.items()}
    return [_row(key, values) for key, values in {**pairs, **means, **_shared(trials)}.items()]


def _shared(trials: Trials) -> dict[Key, list[float]]:
    """Return the means of the trials that all methods of a data set have, to compare them."""
    both: dict[str, set[int]] = {}
    for (dataset, *_), found in trials.items():
        both[dataset] = both.get(dataset, set(found)) & found.keys()
    return {
        (dataset, method, ALL, SHARED): [float(np.mean(found[i])) for i in sorted(both[dataset])]
        for (dataset, method, *_), found in trials.items()
        if both[dataset]
    }


def _row(key: Key, values: list[float]) -> Row:
    names = dict(zip(("dataset", "method", "device_a", "device_b"), key, strict=True))
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    found = {"trials": len(values), "auc": round(float(np.mean(values)), 4)}
    return {**names, **found, "spread": round(spread, 4)}


def means(rows: Rows, dataset: str, trials: str = OTHERS) -> dict[str, float]:
    """Return the mean off the diagonal for each method: over its trials, or over shared ones."""
    here = [r for r in rows if r["dataset"] == dataset and r["device_b"] == trials]
    return {str(row["method"]): float(row["auc"]) for row in here}


def table(rows: Rows) -> Rows:
    """Return the means off the diagonal, which the report shows as a table."""
    return [
        {key: row[key] for key in ("dataset", "method", "trials", "auc", "spread")}
        for row in rows
        if row["device_b"] == OTHERS
    ]


def claims(rows: Rows) -> list[Claim]:
    """Claim that merging helps as in the paper, and that ours beats the baselines and a target."""
    found = []
    for dataset in DATA:
        known = means(rows, dataset)
        if "after" in known:
            found += [*_merging(rows, dataset, known), *_ours(rows, dataset, known)]
    return found


def _merging(rows: Rows, dataset: str, known: dict[str, float]) -> list[Claim]:
    before, after, cells = known["before"], known["after"], pair_means(rows, dataset)
    gains = [auc > cells["before"][a, b] for (a, b), auc in cells["after"].items() if a != b]
    numbers = f"{before:.3f} → {after:.3f}; better in {sum(gains)} of {len(gains)} pairs"
    then, now = EARLIER_AUC[dataset]
    near = abs(before - then) <= NOISE and abs(after - now) <= NOISE
    text = f"{dataset}: within {NOISE} of an earlier reproduction, {then:.3f} → {now:.3f}"
    return [
        Claim(f"{dataset}: merging raises the mean off the diagonal", after > before, numbers),
        Claim(text, near, f"{before:.3f} → {after:.3f}"),
    ]


def _ours(rows: Rows, dataset: str, known: dict[str, float]) -> list[Claim]:
    same = means(rows, dataset, SHARED)
    trained = {method: same[method] for method in BASELINES if method in same}
    best = max(trained, key=trained.__getitem__, default="")
    ours, aim = known.get("ours"), TARGET_AUC[dataset]
    above = f"{dataset}: ours is above the best of {', '.join(BASELINES)}"
    reached = f"{dataset}: ours reaches {aim}"
    if ours is None:
        return [Claim(text, None, "not run") for text in (above, reached)]
    compared = Claim(above, None, "no baseline was run")
    if best:
        mine, theirs = same["ours"], trained[best]
        found = f"{mine:.3f} against {theirs:.3f} ({best}), over the trials that both have"
        compared = Claim(above, mine > theirs, found)
    return [compared, Claim(reached, ours >= aim, f"{ours:.3f}, {ours - aim:+.3f}")]
