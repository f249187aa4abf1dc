"""A fleet of 30 devices: each of HAR's 30 people saw one of two activities.

This is the paper's pair of patterns with 30 devices in place of two. A device learns the first 80 %
of its windows in their order; in the evaluation set the last windows of all people and both
activities are normal, and a tenth as many windows of the other four activities are anomalies.
Windows overlap by half, so one is left out between training and held-out windows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, combinations

import numpy as np
from matplotlib.axes import Axes

from edgemerge import Bank, Contribution, Detector, Ledger, Projection, Stats, group
from edgemerge.paper.dataset import (
    SPLIT_SETTINGS,
    TRAIN_SHARE,
    Array,
    Dataset,
    EvalSet,
    Ints,
    rng_for,
    with_anomalies,
)
from edgemerge.paper.hyperparameters import FEDERATED, LAYERS, ROUNDS, DeviceFactory, Layer, Network
from edgemerge.paper.plan import Claim, Job, Plan, Row, Rows, Scope
from edgemerge.paper.plotting import hide_frame

MERGED, OURS, AVERAGED = "after", "ours", FEDERATED
PAIRS = tuple(combinations(range(6), 2))
FEW_PAIRS = ((0, 5), (1, 3), (2, 4))  # in a quick run: each activity once
TRIALS, BASELINE_TRIALS = 10, 3  # of a plan for each round here, which goes through all pairs
LAYER = Layer("identity", 64)  # ours; merged is the paper's
NETWORK = Network((256,), 8, ROUNDS)  # the paper's, but one epoch in each round of averaging
SETTINGS = f"{LAYER}, {LAYERS['har']}, {SPLIT_SETTINGS}"


@dataclass(frozen=True, eq=False)
class Fleet:
    """What each device learns, in the random order in which they join, and the evaluation set."""

    data: Dataset
    seed: int
    names: tuple[str, ...]
    parts: tuple[Ints, ...]
    eval_set: EvalSet

    @classmethod
    def of(cls, data: Dataset, pair: tuple[int, int], rng: np.random.Generator) -> Fleet:
        """Draw the order of the people, and which of the two activities each has seen."""
        seed = int(rng.integers(2**31))
        people = rng.permutation(np.unique(data.origin))
        saw = rng.choice(pair, len(people))
        parts = [split_person(data, who, what)[0] for who, what in zip(people, saw, strict=True)]
        names = tuple(f"person-{who:02d}" for who in people)
        return cls(data, seed, names, tuple(parts), _eval_set(data, pair, rng))

    @classmethod
    def for_job(cls, job: Job, scope: Scope) -> Fleet:
        """Return the fleet of a job; a quick run has fewer fleets, but whole ones."""
        data = replace(scope, quick=False).dataset(job.dataset)
        a, b = map(int, job.part.split("-"))
        return cls.of(data, (a, b), rng_for(scope.seed, "fleet", job.trial, job.part))

    def label_rows(self, job: Job, rows: Rows) -> Rows:
        """Put the trial and the names of the two activities before each row."""
        a, b = (self.data.patterns[int(i)] for i in job.part.split("-"))
        return [{"trial": job.trial, "pair": f"{a}, {b}", **row} for row in rows]

    @property
    def readings(self) -> Array:
        """The samples of the evaluation set."""
        return self.data.X[self.eval_set.rows]

    def learnt(self, i: int) -> Array:
        """Return the training samples of a device."""
        return self.data.X[self.parts[i]]

    def layer(self, layer: Layer) -> Projection:
        """Build the projection that all devices share."""
        return layer.projection(self.data, self.seed)

    def auc(self, scores: Array) -> float:
        """Return the ROC-AUC of scores of the evaluation set."""
        from sklearn.metrics import roc_auc_score  # noqa: PLC0415 (slow to import)

        return float(roc_auc_score(self.eval_set.odd, scores))

    def network_inputs(self) -> tuple[list[Array], Array]:
        """Return each device's training samples and the evaluation set, scaled for networks."""
        scaled = self.data.between_0_and_1
        return [scaled(part) for part in self.parts], scaled(self.eval_set.rows)

    def banks(self) -> list[list[Contribution]]:
        """Let each device learn with a bank; return the contributions of each."""
        return self._share(partial(Bank, self.layer(LAYER)))

    def sums(self) -> list[Contribution]:
        """Let each device learn with a detector of the paper's size; return their contributions."""
        return list(chain(*self._share(partial(Detector, self.layer(LAYERS["har"])))))

    def _share(self, make: DeviceFactory) -> list[list[Contribution]]:
        shared = []
        for i, name in enumerate(self.names):
            device = make()
            device.learn(self.learnt(i))
            shared.append(device.share(name, revision=1))
        return shared


def split_person(data: Dataset, who: int, what: int) -> tuple[Ints, Ints]:
    """Split a person's windows of an activity: the first ones to learn, the last ones held out."""
    rows = np.flatnonzero((data.origin == who) & (data.y == what))
    learn = round(TRAIN_SHARE * len(rows))
    return rows[:learn], rows[learn + 1 :]


def _eval_set(data: Dataset, pair: tuple[int, int], rng: np.random.Generator) -> EvalSet:
    people = np.unique(data.origin)
    rows = np.concatenate([split_person(data, who, what)[1] for what in pair for who in people])
    return with_anomalies(rows, np.flatnonzero(~np.isin(data.y, pair)), rng)


def merged_detector(stats: Stats) -> Detector:
    """Return a new device that adopted the sum of all, as in the paper."""
    newcomer = Detector(stats.projection)
    newcomer.adopt(stats)
    return newcomer


def merged_bank(ledger: Ledger) -> Bank:
    """Return a new device that adopted a fleet's patterns; like ones are added up first."""
    newcomer = Bank(ledger.projection)
    newcomer.adopt([replace(found.members[0], stats=found.stats) for found in group(ledger)])
    return newcomer


def ledger_of(contributions: Iterable[Contribution], projection: Projection) -> Ledger:
    """Return a ledger of these contributions."""
    ledger = Ledger(projection)
    for contribution in contributions:
        ledger.put(contribution)
    return ledger


def jobs(name: str, plan: Plan, averaged: str) -> list[Job]:
    """One job for each method, round and pair; `averaged` are the settings of BP-NN3-FL."""
    quick = plan.scope.quick
    rounds = 1 if quick else max(1, plan.trials // TRIALS)
    fewer = min(rounds, -(-plan.baseline_trials // BASELINE_TRIALS))
    methods = ((OURS, SETTINGS, rounds), (AVERAGED, f"{SETTINGS}, {averaged}", fewer))
    return [
        Job(name, "har", method, i, f"{a}-{b}", settings)
        for method, settings, count in methods
        for i in range(count)
        for a, b in (FEW_PAIRS if quick else PAIRS)
    ]


def aucs(rows: Rows, method: str, **where: float) -> dict[str, float]:
    """Return the AUC of each fleet from a method's rows that have these values."""
    return {
        f"{row['trial']}: {row['pair']}": float(row["auc"])
        for row in rows
        if row["method"] == method and all(row.get(key) == where[key] for key in where)
    }


def mean_gain(better: dict[str, float], worse: dict[str, float]) -> float | None:
    """Return the mean gain in AUC over the fleets that both have; None if there are none."""
    both = better.keys() & worse.keys()
    return sum(better[i] - worse[i] for i in both) / len(both) if both else None


def mean(found: dict[str, float]) -> float:
    """Return the mean AUC of all fleets."""
    return sum(found.values()) / len(found)


def means(rows: Rows, methods: Iterable[str], **where: float) -> Row:
    """Return the mean AUC of each method over the rows that have these values."""
    found = {method: aucs(rows, method, **where) for method in methods}
    return {method: round(mean(each), 3) for method, each in found.items() if each}


def gain_claim(text: str, least: float, gained: float | None) -> Claim:
    """Claim that a gain is `least` or more; None was not measured."""
    if gained is None:
        return Claim.not_measured(text)
    return Claim(text, gained >= least, f"{gained:+.3f}")


def exact_claim(text: str, rows: Rows) -> Claim:
    """Claim that all merges are exact; their rows have 1 under `same`."""
    same = [int(row["same"]) for row in rows if "same" in row]
    return Claim(text, all(same) if same else None, f"{sum(same)} of {len(same)} merges")


def draw_curves(axes: Axes, rows: Rows, key: str, styles: dict[str, tuple[str, str, str]]) -> None:
    """Draw each method's mean AUC against a column, with the middle half of the fleets around it.

    `styles` has the label, the colour and the line style of each method.
    """
    for method, (label, colour, style) in styles.items():
        places = sorted({float(row[key]) for row in rows if row["method"] == method})
        found = [list(aucs(rows, method, **{key: at}).values()) for at in places]
        if not places:
            continue
        means = [float(np.mean(values)) for values in found]
        (line,) = axes.plot(places, means, style, marker="o", ms=4, color=colour, label=label)
        line.set_zorder(3 if method == OURS else 2)  # ours above what lies near it
        if method in (OURS, MERGED):
            low, high = np.array([np.quantile(values, (0.25, 0.75)) for values in found]).T
            axes.fill_between(places, low, high, color=colour, alpha=0.12, lw=0)
    if axes.lines:
        axes.legend(fontsize=9, frameon=False, loc="best")
    hide_frame(axes)
