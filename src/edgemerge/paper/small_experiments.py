"""Small experiments on what the paper says in words: each a mean over trials with an interval.

Federated averaging against merging with enough seeds to settle it; rejection of samples with a high
loss before training; forgetting; client selection; and how well a sample is recognised in sums. All
on HAR, with samples and with people held out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.util import find_spec
from itertools import combinations, permutations
from math import sqrt

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import t as student

from edgemerge import Detector, Projection, Stats
from edgemerge.paper.auc import AFTER, merge_pairs
from edgemerge.paper.dataset import Array, Trial, split_by_person, split_by_sample
from edgemerge.paper.hyperparameters import FEDERATED, LAYERS, Layer
from edgemerge.paper.plan import Claim, Job, Plan, Row, Rows, Scope
from edgemerge.paper.plotting import (
    BLUE,
    COLOURS,
    FAINT,
    INK,
    LABELS,
    RED,
    hide_frame,
    new_figure,
    set_titles,
)

Marks = NDArray[np.bool_]

NAME = "small-experiments"
TITLE = "Small experiments on what the paper says in words"
DATASET = "har"
DATA = (DATASET,)
SPLITS = {"sample": split_by_sample, "person": split_by_person}
SEEDS = {"sample": 30, "person": 10}  # of federated averaging
PAIRS = {  # of federated averaging: all, and two ways of walking; walking and sitting, far apart
    "sample": tuple(combinations(range(6), 2)),
    "person": ((0, 1), (0, 3)),
}
TRIALS = 10  # of the other experiments

AVERAGING, REJECTION, FORGETTING = "federated averaging", "rejection", "forgetting"
SELECTION, MEMBERSHIP = "client selection", "membership"
DIFFERENCE = f"{FEDERATED} minus merging"
MOST_NAMED = 3  # pairs; of more the two ends are named
SIMILAR = 0.01  # of ROC-AUC: what we call very similar

CONTAMINATION = 0.1  # anomalies among the samples that arrive after the first quarter
REJECT_ABOVE = 4.0  # the score, times the usual squared error, above which nothing is learnt
FADES = (1.0, 0.999, 0.99)  # forgetting factors; 1 is the paper's
DEVICES, BAD_DEVICES = 10, 3  # of the fleet whose clients are selected
SELECT_BELOW = 2.0  # times the median loss of all peers, by M10 under the own readout
FLEET_LAYER = Layer("identity", 64)
MEMBERSHIP_LAYER = Layer("identity", 32)
MULTIPLES = (1, 2, 4, 8, 16, 32)  # samples of a release per hidden value
MEMBERSHIP_RIDGE = 1e-6
LARGE_PATTERNS = ("walking", "sitting", "standing", "laying")  # with more than 32 N samples

NOTE = (
    "Means over trials with 95 % intervals of Student's t; a trial is a split, a projection and a "
    "drawing of anomalies. "
    f"Federated averaging: {FEDERATED} and merging; by sample on all {len(PAIRS['sample'])} pairs "
    f"with {SEEDS['sample']} seeds, by person on two pairs, one of patterns that are alike and one "
    f"of patterns that lie far apart, with {SEEDS['person']}: their mean is not that of all. "
    "Rejection: a device learns a quarter of a pattern, then the rest with one anomaly for ten "
    f"samples; it learns everything, or rejects what scores above {REJECT_ABOVE:g}. "
    "Forgetting: a device learns one pattern, then another that replaces it; only the second is "
    "normal in the evaluation set. "
    f"Client selection: {BAD_DEVICES} of {DEVICES} devices learnt another pattern by mistake; a "
    f"device adopts all peers, or those whose mean loss under its own readout (M10) is at most "
    f"{SELECT_BELOW:g} times the median of all peers. "
    "Membership: an attacker who has the sums of a release solves them, and takes the samples "
    "with a low loss for members; 0.5 is a guess, and the limit of 0.6 in the claim was set after "
    "a first look."
)


def run(plan: Plan) -> Rows:
    """Run all experiments; federated averaging only where networks are trained."""
    return summarise(plan.rows(work, list(jobs(plan))))


def jobs(plan: Plan) -> Iterator[Job]:
    """Yield one job for each trial, and one for each pair of federated averaging."""
    quick, few = plan.scope.quick, plan.merging[:TRIALS]
    for split, seeds in SEEDS.items():
        if plan.training and find_spec("torch"):
            trials = plan.training if quick else range(seeds)
            yield from (averaging_job(split, i, *pair) for i in trials for pair in PAIRS[split])
            settings = f"{LAYERS[DATASET]}, by {split}"
            yield from (Job(NAME, DATASET, AFTER, i, split, settings) for i in trials)
        for name, settings in SETTINGS.items():
            if name != MEMBERSHIP:
                yield from (Job(NAME, DATASET, name, i, split, settings) for i in few)
    yield from (Job(NAME, DATASET, MEMBERSHIP, i, "", SETTINGS[MEMBERSHIP]) for i in few)


def averaging_job(split: str, trial: int, a: int, b: int) -> Job:
    """Return the job of federated averaging on one pair."""
    from edgemerge.paper import backprop  # noqa: PLC0415 (the rest runs without torch)

    settings = f"{backprop.training_settings(DATASET, FEDERATED)}, by {split}"
    return Job(NAME, DATASET, FEDERATED, trial, f"{split} {a}-{b}", settings)


def work(job: Job, scope: Scope) -> Rows:
    """Run one trial of an experiment, or one pair of it."""
    split, _, pair = job.part.partition(" ")
    trial = Trial(job, scope, SPLITS.get(split, split_by_sample))
    if job.method == FEDERATED:
        from edgemerge.paper import backprop  # noqa: PLC0415 (as above)

        a, b = map(int, pair.split("-"))
        rows = backprop.baseline_rows(trial, FEDERATED, a, b)[:1]
    elif job.method == AFTER:
        order = trial.data.patterns.index
        rows = [row for row in merge_pairs(trial) if row["method"] == AFTER]
        rows = [row for row in rows if order(row["device_a"]) < order(row["device_b"])]
    else:
        return [{"split": split, **row} for row in EXPERIMENTS[job.method](trial)]
    return [{"split": split, **row} for row in rows]


def reject(trial: Trial) -> Iterator[Row]:
    """Let a device learn contaminated samples, all of them or those that it does not reject."""
    for pattern in range(len(trial.data.patterns)):
        X, odd = contaminated(trial, pattern)
        layer = LAYERS[DATASET].projection(trial.data, trial.number("layer"))
        devices = {
            "learns clean samples": Detector(layer),
            "learns everything": Detector(layer),
            "rejects high scores": Detector(layer, reject_above=REJECT_ABOVE),
        }
        clean, dirty, choosy = devices.values()
        clean.learn(X[~odd])
        dirty.learn(X)
        rejected = np.asarray(choosy.learn_and_score(X)) > REJECT_ABOVE
        for setting, device in devices.items():
            yield _row(trial, setting, "ROC-AUC", _auc(trial, device, pattern))
        for kind, mask in (("anomalies", odd), ("normal samples", ~odd)):
            share = float(np.mean(rejected[mask]))
            yield _row(trial, "rejects high scores", f"share of {kind} rejected", share)


def contaminated(trial: Trial, pattern: int) -> tuple[Array, Marks]:
    """Return a pattern's training samples with anomalies after the first quarter, and which."""
    rng, own = trial.rng_for("dirt", pattern), trial.split.learn[pattern]
    others = np.concatenate([rows for i, rows in enumerate(trial.split.learn) if i != pattern])
    first = len(own) // 4
    bad = rng.choice(others, round(CONTAMINATION * (len(own) - first)), replace=False)
    late = rng.permutation(np.concatenate([own[first:], bad]))
    rows = np.concatenate([own[:first], late])
    return trial.data.X[rows], np.isin(rows, bad)


def forget(trial: Trial) -> Iterator[Row]:
    """Let one pattern replace another, with and without forgetting."""
    layer = LAYERS[DATASET].projection(trial.data, trial.number("layer"))
    patterns = range(len(trial.data.patterns))
    for b in patterns:
        fresh = Detector(layer)
        fresh.learn(trial.learnt(b))
        yield _row(trial, "learnt only the new pattern", "ROC-AUC", _auc(trial, fresh, b))
    for (a, b), fade in ((pair, fade) for pair in permutations(patterns, 2) for fade in FADES):
        device = Detector(layer, forgetting=fade)
        device.learn(trial.learnt(a))
        device.learn(trial.learnt(b))
        yield _row(trial, f"forgetting {fade:g}", "ROC-AUC", _auc(trial, device, b))


def select(trial: Trial) -> Iterator[Row]:
    """Let a device choose by M10 whose sums it adopts, when some peers learnt something else."""
    layer = FLEET_LAYER.projection(trial.data, trial.number("layer"))
    for pattern in range(len(trial.data.patterns)):
        own, peers, bad = fleet(trial, layer, pattern)
        losses = np.array([peer.mean_loss(own.solve()) for peer in peers])
        chosen = losses <= SELECT_BELOW * np.median(losses)
        adopted: dict[str, Iterable[bool]] = {
            "adopts no peer": np.zeros(len(peers), bool),
            "adopts all peers": np.ones(len(peers), bool),
            "adopts selected peers": chosen,
            "adopts exactly the right peers": ~bad,
        }
        for setting, mask in adopted.items():
            wanted = [peer for peer, yes in zip(peers, mask, strict=True) if yes]
            device = Detector.resume(own, Stats.total(layer, wanted))
            yield _row(trial, setting, "ROC-AUC", _auc(trial, device, pattern))
        found = {"wrong peers left out": ~chosen[bad], "right peers adopted": chosen[~bad]}
        for measure, mask in found.items():
            share = float(np.mean(mask))
            yield _row(trial, "adopts selected peers", f"share of {measure}", share)


def fleet(trial: Trial, layer: Projection, pattern: int) -> tuple[Stats, list[Stats], Marks]:
    """Return a device's sums, those of its peers, and which peers learnt another pattern."""
    rng, split = trial.rng_for("fleet", pattern), trial.split
    by_person = [
        np.array_split(rows[np.argsort(trial.data.origin[rows], kind="stable")], DEVICES)
        for rows in split.learn
    ]
    others = [i for i in range(len(by_person)) if i != pattern]
    bad = rng.permutation(DEVICES - 1) < BAD_DEVICES
    seen = [int(rng.choice(others)) if wrong else pattern for wrong in bad]
    parts = [by_person[pattern][0], *(by_person[p][i] for i, p in enumerate(seen, 1))]
    own, *peers = (Stats.of(layer, trial.data.X[rows]) for rows in parts)
    return own, peers, bad


def recognise(trial: Trial) -> Iterator[Row]:
    """Tell members of a release from other samples of its pattern, by their loss under its sums."""
    layer = MEMBERSHIP_LAYER.projection(trial.data, trial.number("layer"))
    for name in LARGE_PATTERNS:
        rows = trial.rng_for("members", name).permutation(trial.data.rows(name))
        single = Stats.of(layer, trial.data.X[rows[:1]])
        error = float(np.abs(single.C - trial.data.X[rows[0]]).max())
        yield _row(trial, "1 sample", "largest error of the recovered sample", error)
        for multiple in MULTIPLES:
            k = multiple * layer.n_hidden
            members, others = rows[:k], rows[k:]
            if len(others):
                B = Stats.of(layer, trial.data.X[members]).solve(MEMBERSHIP_RIDGE).B
                X = trial.data.X[np.concatenate([members, others])]
                losses = np.mean((X - layer.hidden(X) @ B) ** 2, axis=1)
                setting = f"{multiple}N samples"
                auc = _roc_auc(np.arange(len(X)) < k, -losses)
                yield _row(trial, setting, "ROC-AUC of the attack", auc)


EXPERIMENTS: dict[str, Callable[[Trial], Iterator[Row]]] = {
    REJECTION: reject,
    FORGETTING: forget,
    SELECTION: select,
    MEMBERSHIP: recognise,
}
SETTINGS = {
    REJECTION: f"{LAYERS[DATASET]}, {CONTAMINATION} odd, above {REJECT_ABOVE}",
    FORGETTING: f"{LAYERS[DATASET]}, {FADES}",
    SELECTION: f"{FLEET_LAYER}, {BAD_DEVICES} of {DEVICES}, below {SELECT_BELOW}",
    MEMBERSHIP: f"{MEMBERSHIP_LAYER}, {MULTIPLES}, ridge {MEMBERSHIP_RIDGE}, {LARGE_PATTERNS}",
}


def _row(trial: Trial, setting: str, measure: str, value: float) -> Row:
    names: Row = {"experiment": trial.job.method, "setting": setting, "measure": measure}
    return {**names, "trial": trial.job.trial, "value": value}


def _auc(trial: Trial, device: Detector, pattern: int) -> float:
    chosen = trial.eval_set(pattern, pattern)
    return _roc_auc(chosen.odd, np.asarray(device.loss(trial.data.X[chosen.rows])))


def _roc_auc(positive: Marks, scores: Array) -> float:
    from sklearn.metrics import roc_auc_score  # noqa: PLC0415 (slow to import)

    return float(roc_auc_score(positive, scores))


def summarise(rows: Rows) -> Rows:
    """Return the mean and its 95 % interval for each setting; a trial's rows are averaged first."""
    trials: dict[tuple[str, ...], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    pairs: dict[tuple[str, ...], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        split, trial = str(row["split"]), int(row["trial"])
        if "experiment" in row:
            key = (str(row["experiment"]), split, str(row["setting"]), str(row["measure"]))
            trials[key][trial].append(float(row["value"]))
        else:
            pair = f"{row['device_a']}, {row['device_b']}"
            pairs[split, str(row["method"]), pair][trial].append(float(row["auc"]))
    return [*_averaging(pairs), *(_mean(key, found) for key, found in trials.items())]


def _averaging(pairs: dict[tuple[str, ...], dict[int, list[float]]]) -> Iterator[Row]:
    """Yield merging, averaging and their difference, for each pair and for all of them."""
    for split in SPLITS:
        averaged_pairs = (key[2] for key in pairs if key[:2] == (split, FEDERATED))
        names = list(dict.fromkeys(averaged_pairs))
        every: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        for pair in names:
            merged, averaged = pairs[split, AFTER, pair], pairs[split, FEDERATED, pair]
            for trial in sorted(merged.keys() & averaged.keys()):
                a, b = merged[trial][0], averaged[trial][0]
                for setting, value in ((AFTER, a), (FEDERATED, b), (DIFFERENCE, b - a)):
                    every[f"{setting}|{pair}"][trial].append(value)
                    every[f"{setting}|all {len(names)} pairs"][trial].append(value)
        for words, found in sorted(every.items(), key=lambda one: not one[0].endswith(" pairs")):
            setting, pair = words.split("|")
            yield _mean((AVERAGING, split, setting, f"ROC-AUC, {pair}"), found)


def _mean(key: tuple[str, ...], trials: dict[int, list[float]]) -> Row:
    means = [float(np.mean(values)) for values in trials.values()]
    mean, half = float(np.mean(means)), half_interval(means)
    names = dict(zip(("experiment", "split", "setting", "measure"), key, strict=True))
    values = {"value": mean, "low": mean - half, "high": min(1.0, mean + half)}  # no share above 1
    return {**names, "trials": len(means), **{k: float(f"{v:.4g}") for k, v in values.items()}}


def half_interval(values: list[float]) -> float:
    """Return half of the 95 % interval of the mean, by Student's t; 0 for a single value.

    >>> round(half_interval([1.0, 2.0, 3.0]), 3)
    2.484
    """
    k = len(values)
    return float(student.ppf(0.975, k - 1) * np.std(values, ddof=1) / sqrt(k)) if k > 1 else 0.0


def find(rows: Rows, experiment: str, split: str, setting: str, measure: str = "ROC-AUC") -> Row:
    """Return the row of a setting whose measure starts with the words; an empty one if none has."""
    wanted = {"experiment": experiment, "split": split, "setting": setting}
    found = (row for row in rows if wanted.items() <= row.items())
    return next((row for row in found if str(row["measure"]).startswith(measure)), {})


def with_interval(row: Row) -> str:
    """Return a row's mean and interval as text.

    >>> with_interval({"value": 0.84321, "low": 0.84, "high": 0.85})
    '0.843 (0.840 to 0.850)'
    """
    return f"{row['value']:.3f} ({row['low']:.3f} to {row['high']:.3f})"


PANELS = {
    AVERAGING: "each pair by merging and by BP-NN3-FL",
    REJECTION: "one anomaly for ten samples in the training data",
    FORGETTING: "a new pattern replaces the old one",
    SELECTION: f"{BAD_DEVICES} of {DEVICES} devices learnt another pattern",
    MEMBERSHIP: "how well a member of a release is recognised",
}
SPLIT_COLOURS = {"sample": BLUE, "person": RED, "": BLUE}
SPLIT_MARKERS = {"sample": "o", "person": "s", "": "o"}


def plot(rows: Rows) -> dict[str, Figure]:
    """Draw the ROC-AUC of each setting with its interval, a panel for each experiment."""
    shown = {name: _shown(rows, name) for name in PANELS}
    shown = {name: found for name, found in shown.items() if found}
    heights = [len({row["setting"] for row in found}) + 1.6 for found in shown.values()]
    figure = new_figure(8.5, 0.27 * sum(heights) + 0.5)
    panels = figure.subplots(len(shown), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (name, found) in zip(panels, shown.items(), strict=True):
        _draw_settings(axes, found, {} if name == AVERAGING else SPLIT_COLOURS)
        last = axes is panels[-1]
        set_titles(axes, f"{name}: {PANELS[name]}", x="ROC-AUC, 95 % interval" if last else "")
        if name in (AVERAGING, REJECTION):  # the other panels have the colours of the second
            axes.legend(loc="lower left", fontsize=8, frameon=False)
    return {"": figure}


def _shown(rows: Rows, experiment: str) -> Rows:
    """Return the ROC-AUC of an experiment's settings; of averaging, that of each pair."""
    found = [row for row in rows if row["experiment"] == experiment]
    found = [row for row in found if str(row["measure"]).startswith("ROC-AUC")]
    if experiment != AVERAGING:
        return found
    return [
        row | {"setting": _pair(row), "method": row["setting"]}
        for row in found
        if row["setting"] != DIFFERENCE and not _over_all_pairs(row)
    ]


def _pair(row: Row) -> str:
    """Return the pair of a row of averaging, as "walking and sitting"."""
    return str(row["measure"]).removeprefix("ROC-AUC, ").replace(", ", " and ").replace("_", " ")


def _draw_settings(axes: Axes, rows: Rows, split_colours: Mapping[str, str]) -> None:
    """Draw a line of points for each setting; colours are those of splits, or of methods."""
    settings = list(dict.fromkeys(str(row["setting"]) for row in rows))
    splits = list(dict.fromkeys(str(row["split"]) for row in rows))
    for split, method in dict.fromkeys((str(r["split"]), str(r.get("method", ""))) for r in rows):
        here = [row for row in rows if (row["split"], row.get("method", "")) == (split, method)]
        shift = 0.36 * (splits.index(split) - (len(splits) - 1) / 2)
        y = [settings.index(str(row["setting"])) + shift for row in here]
        colour, marker = split_colours.get(split) or COLOURS[method], SPLIT_MARKERS[split]
        what = f"{LABELS.get(method, method)}, HAR by {split}" if method else f"HAR by {split}"
        means = [float(row["value"]) for row in here]
        axes.hlines(y, *zip(*((r["low"], r["high"]) for r in here), strict=True), color=colour)
        axes.plot(means, y, marker, color=colour, label=what, markersize=5)
        for mean, at, row in zip(means, y, here, strict=True):
            if method:  # too many for numbers, which are in the file
                break
            end = float(row["high"])
            axes.annotate(
                f"{mean:.3f}", (end, at), (6, 0), textcoords="offset points", va="center",
                fontsize=7, color=INK,
            )  # fmt: skip
    axes.set_yticks(range(len(settings)), settings)
    axes.set_ylim(len(settings) - 0.4, -0.6)
    axes.set_xlim(0.5, 1.05)
    axes.grid(axis="x", color=FAINT, alpha=0.35, linewidth=0.5)
    axes.set_axisbelow(True)
    hide_frame(axes)


def table(rows: Rows) -> Rows:
    """Return the rows without single pairs, which are in the file."""
    return [row for row in rows if row["experiment"] != AVERAGING or _over_all_pairs(row)]


def _over_all_pairs(row: Row) -> bool:
    return str(row["measure"]).endswith(" pairs")


def claims(rows: Rows) -> list[Claim]:
    """Claim what the paper says in words, for both splits."""
    found = []
    for split in SPLITS:
        found += [
            _similar(rows, split),
            _better(
                *(rows, split, REJECTION, "learns everything", "rejects high scores"),
                text="rejecting samples with a high score keeps the detector accurate",
            ),
            _better(
                *(rows, split, FORGETTING, f"forgetting {FADES[0]:g}", f"forgetting {FADES[-1]:g}"),
                text="forgetting follows a pattern that replaces another",
            ),
            _better(
                *(rows, split, SELECTION, "adopts all peers", "adopts selected peers"),
                text="selecting clients is better than adopting all of them",
            ),
            _better(
                *(rows, split, SELECTION, "adopts no peer", "adopts selected peers"),
                text="selecting clients is better than adopting no peer",
            ),
        ]
    return [*found, _recognised(rows)]


def _similar(rows: Rows, split: str) -> Claim:
    text = f"by {split}: {FEDERATED} is very similar to merging, within {SIMILAR} of ROC-AUC"
    names = (AFTER, FEDERATED, DIFFERENCE)
    after, averaged, far = (find(over_all_pairs(rows), AVERAGING, split, name) for name in names)
    if not far:
        return Claim.not_measured(text)
    each = pairs_as_text(by_pair(rows, split))
    found = (
        f"merging {with_interval(after)}, {FEDERATED} {with_interval(averaged)}, difference "
        f"{with_interval(far)}: {each}; {far['trials']} seeds"
    )
    return Claim(text, float(far["low"]) >= -SIMILAR and float(far["high"]) <= SIMILAR, found)


def pairs_as_text(pairs: Mapping[str, Row]) -> str:
    """Say the difference of each pair, or of many pairs the two ends."""
    ordered = sorted(pairs.items(), key=lambda pair: -float(pair[1]["value"]))
    words = [f"{pair} {row['value']:+.3f}" for pair, row in ordered]
    return ", ".join(words) if len(words) <= MOST_NAMED else f"{words[0]} to {words[-1]}"


def by_pair(rows: Rows, split: str) -> dict[str, Row]:
    """Return the difference of averaging and merging for each pair, as "walking and sitting"."""
    wanted = {"experiment": AVERAGING, "split": split, "setting": DIFFERENCE}
    found = [row for row in rows if wanted.items() <= row.items() and not _over_all_pairs(row)]
    return {_pair(row): row for row in found}


def over_all_pairs(rows: Rows) -> Rows:
    """Return the rows of averaging that are over all its pairs."""
    return [row for row in rows if _over_all_pairs(row)]


def _better(
    rows: Rows, split: str, experiment: str, worse: str, better: str, *, text: str
) -> Claim:
    text = f"by {split}: {text}"
    low, high = (find(rows, experiment, split, setting) for setting in (worse, better))
    if not low or not high:
        return Claim.not_measured(text)
    found = f"{worse} {with_interval(low)}, {better} {with_interval(high)}"
    return Claim(text, float(high["low"]) > float(low["high"]), found)


def _recognised(rows: Rows) -> Claim:
    text = "sums of 16N samples or more hardly tell which samples are among them: ROC-AUC below 0.6"
    found = {n: find(rows, MEMBERSHIP, "", f"{n}N samples") for n in MULTIPLES}
    if not all(found.values()):
        return Claim.not_measured(text)
    words = ", ".join(f"{n}N {row['value']:.3f}" for n, row in found.items())
    return Claim(text, all(float(found[n]["high"]) < 0.6 for n in MULTIPLES if n >= 16), words)
