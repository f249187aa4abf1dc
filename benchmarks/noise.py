"""What noise with a stated ε costs and what it hides: `make noise`.

"auc": HAR, one activity as normal, the rows of all 30 people merged, told from other activities.
The sums with noise, adopted by a detector without samples of its own, beside the mean with noise,
which has the whole budget to itself. "own": the same for a device with 100 samples of its own; and
such a device alone. "usual": the usual loss that M11 gives, over the loss of held-out samples.
"membership": the calibrated attack of `benchmarks.sharing` on the total of 30 people.

The noise is drawn once for the sum, as if exactly `least` devices had taken part: more devices add
more. "fleet" and "fleet, not centred" have the noise of a masked fleet of 30 devices that all sent,
20 of which would have been enough, 19 without the reader: 30/19 times the variance. The clipping
comes from the range of HAR's features, [−1, 1], not from the samples.

`python -m benchmarks.noise` writes docs/results/noise.csv and prints the tables of the page on
noise. HAR is read from the folder that EDGEMERGE_DATA names.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from math import inf, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from benchmarks.machines import Motion, motion
from benchmarks.results import RESULTS, Row, save
from benchmarks.sharing import TOTAL_ROWS, Reader
from edgemerge import Detector, Projection, Stats
from edgemerge.comparison.streams import auc, bootstrap_interval
from edgemerge.privacy.noise import Budget, Noise, Noised, multiplier_for

Array = NDArray[np.float64]
FILE = "noise.csv"

EPSILONS = (inf, 8.0, 4.0, 1.0)
DELTA = 1e-5
MEAN_SHARE = 0.05  # of the budget
NO_NOISE = 1e-9  # noise multiplier for ε = ∞
HIDDEN = 64
SEEDS = 5
TRAIN = 0.6  # of the rows of an activity
ODD = 2000  # rows of other activities
OWN = 100  # samples of a device's own: more than 1.3N
SUMS, CENTROID, ALONE = "sums", "centroid", "alone"
FLEET, NOT_CENTRED = "fleet", "fleet, not centred"
FLEET_SHARES = 30 / 19  # of σ²: the noise of all devices, over that of those that count


def run() -> list[Row]:
    """Return all rows."""
    data = motion()
    if data is None:
        raise SystemExit("set EDGEMERGE_DATA to the folder that has HAR")
    rows = []
    for seed in range(SEEDS):
        for activity in range(1, 7):
            rows += detection(data, activity, seed)
        rows += memberships(data, seed)
    return rows + fleets(data)


def fleets(data: Motion) -> list[Row]:
    """Tell an activity from others with the noise of a masked fleet."""
    rows = []
    for seed in range(SEEDS):
        for activity in range(1, 7):
            train, _, test, odd = parts_of(data, activity, seed)
            for epsilon in EPSILONS[1:]:
                for way, share in ((FLEET, MEAN_SHARE), (NOT_CENTRED, 0.0)):
                    total = release(train, seed, epsilon, mean_share=share, more=FLEET_SHARES)
                    device = Detector(total.sums.projection)
                    device.adopt(total.denoised())
                    found = auc(device.score(test), device.score(odd))
                    rows.append(row("auc", way, epsilon, activity, seed, found))
    return rows


def row(what: str, way: str, epsilon: float, activity: int, seed: int, value: float) -> Row:
    """Return one row: a ROC-AUC or a ratio; activity 0 means all."""
    return {
        "what": what,
        "way": way,
        "epsilon": epsilon,
        "delta": DELTA,
        "hidden": HIDDEN,
        "activity": activity,
        "seed": seed,
        "value": round(float(value), 4),
    }


def release(
    X: Array, seed: int, epsilon: float, *, mean_share: float = MEAN_SHARE, more: float = 1.0
) -> Noised:
    """Release a mean with noise, then sums under the projection that is centred on it.

    Without a share for the mean it is not centred. The noise has `more` times the variance.
    """
    shared = Projection(n_inputs=X.shape[1], n_hidden=HIDDEN, seed=seed)
    budget = None if epsilon == inf else Budget(epsilon, DELTA)

    def multiplier(share: float, what: str) -> float:
        return NO_NOISE if budget is None else budget.spend(share, what) * sqrt(more)

    if mean_share:
        first = Noise.for_mean(shared, multiplier(mean_share, "the mean"))
        shared = first.add(first.sums_of(X)).centred()
    second = Noise.for_sums(shared, multiplier(1.0 - mean_share, "the sums"))
    total = second.add(second.sums_of(X))
    total.check()
    return total


def noised_mean(X: Array, seed: int, epsilon: float) -> Array:
    """Release a mean that has the whole budget."""
    shared = Projection(n_inputs=X.shape[1], n_hidden=HIDDEN, seed=seed)
    multiplier = NO_NOISE if epsilon == inf else Budget(epsilon, DELTA).spend(1.0, "the mean")
    noise = Noise.for_mean(shared, multiplier)
    return noise.add(noise.sums_of(X)).mean


def parts_of(data: Motion, activity: int, seed: int) -> tuple[Array, Array, Array, Array]:
    """Return rows to release, a device's own, held-out ones, and rows of other activities."""
    rng = np.random.default_rng(100 * seed + activity)
    X = rng.permutation(data.rows[data.activity == activity])
    odd = rng.permutation(data.rows[data.activity != activity])[:ODD]
    cut = int(TRAIN * len(X))
    return X[:cut], X[cut : cut + OWN], X[cut + OWN :], odd


def detection(data: Motion, activity: int, seed: int) -> list[Row]:
    """Tell an activity from others by what is released of its rows."""
    train, own, test, odd = parts_of(data, activity, seed)
    rows = []
    for epsilon in EPSILONS:
        about = epsilon, activity, seed
        mean = noised_mean(train, seed, epsilon)
        distances = (((part - mean) ** 2).mean(1) for part in (test, odd))
        rows.append(row("auc", CENTROID, *about, auc(*distances)))
        released = release(train, seed, epsilon).denoised()
        for what, learnt in (("auc", own[:0]), ("own", own)):
            device = Detector(released.projection)
            device.learn(learnt)
            device.adopt(released)
            rows.append(row(what, SUMS, *about, auc(device.score(test), device.score(odd))))
            if what == "auc":
                ratio = device.known.level().usual_loss / np.mean(device.loss(test))
                rows.append(row("usual", SUMS, *about, ratio))
        if epsilon == inf:
            device = Detector(released.projection)
            device.learn(own)
            rows.append(row("own", ALONE, *about, auc(device.score(test), device.score(odd))))
    return rows


def memberships(data: Motion, seed: int) -> list[Row]:
    """Attack the total of 30 people with 2N samples each; the better of two readouts counts."""
    rng = np.random.default_rng(seed)
    cut = [rng.permutation(data.rows[data.person == who]) for who in np.unique(data.person)]
    members = np.concatenate([X[:TOTAL_ROWS] for X in cut])
    others = np.concatenate([X[TOTAL_ROWS : 2 * TOTAL_ROWS] for X in cut])
    rest = np.concatenate([X[2 * TOTAL_ROWS :] for X in cut])
    rows = []
    for epsilon in EPSILONS:
        total = release(members, seed, epsilon)
        reader = Reader(total.sums.projection, rest)
        plain = Stats.of(total.sums.projection, members)
        known = [plain] if epsilon == inf else [total.sums, total.denoised()]
        found = max(reader.calibrated(stats, members, others) for stats in known)
        rows.append(row("membership", SUMS, epsilon, 0, seed, found))
    return rows


def worst_membership(epsilon: float) -> float:
    """Return the ROC-AUC of an attacker who knows all samples but the one in question."""
    return float(ndtr(1.0 / (multiplier_for(epsilon, DELTA) * sqrt(2.0))))


def values(rows: Sequence[Row], what: str, way: str, epsilon: float) -> list[float]:
    """Return the values of one cell: means over the activities, one for each seed."""
    seeds = sorted({each["seed"] for each in rows})
    found = [
        [
            each["value"]
            for each in rows
            if (each["what"], each["way"], each["epsilon"]) == (what, way, epsilon)
            and each["seed"] == seed
        ]
        for seed in seeds
    ]
    return [float(np.mean(each)) for each in found if each]


def _cell(found: Sequence[float]) -> str:
    if not found:
        return ""
    mean, low, high = bootstrap_interval(found)
    return f"{mean:.3f} ({low:.3f}–{high:.3f})"


def _table(rows: Sequence[Row], lines: Sequence[tuple[str, str, str]]) -> str:
    heads = " | ".join("∞" if e == inf else f"{e:g}" for e in EPSILONS)
    out = [f"| ε | {heads} |", "|---|" + "---:|" * len(EPSILONS)]
    for name, what, way in lines:
        cells = (_cell(values(rows, what, way, epsilon)) for epsilon in EPSILONS)
        out.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(out) + "\n"


def detection_table(rows: Sequence[Row]) -> str:
    """Return what is detected, in Markdown."""
    lines = [
        ("sums", "auc", SUMS),
        ("sums in a masked fleet, 30 of at least 20 devices", "auc", FLEET),
        ("the same, not centred on a mean", "auc", NOT_CENTRED),
        ("mean alone (centroid)", "auc", CENTROID),
        (f"sums, and {OWN} samples of its own", "own", SUMS),
        (f"{OWN} samples of its own alone", "own", ALONE),
        ("usual loss (M11), over that of held-out samples", "usual", SUMS),
    ]
    return _table(rows, lines)


def membership_table(rows: Sequence[Row]) -> str:
    """Return what is recognised, in Markdown."""
    table = _table(rows, [("calibrated attack", "membership", SUMS)])
    worst = ("" if e == inf else f"{worst_membership(e):.3f}" for e in EPSILONS)
    return table + "| bound for every attack | " + " | ".join(worst) + " |\n"


TABLES = (detection_table, membership_table)


def read() -> list[Row]:
    """Return the rows of the docs."""
    with (RESULTS / FILE).open(encoding="utf-8") as file:
        numbers = {"epsilon": float, "activity": int, "seed": int, "value": float}
        return [
            {name: numbers.get(name, str)(value) for name, value in each.items()}
            for each in csv.DictReader(file)
        ]


if __name__ == "__main__":
    print(save(run(), FILE))
    for each in TABLES:
        print(each(read()))
