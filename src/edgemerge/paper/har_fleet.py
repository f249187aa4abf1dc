"""A fleet of 30 devices: each of HAR's 30 people saw one of two activities.

This is the paper's pair of patterns with 30 devices in place of two. A device learns the first 80 %
of its windows in their order; in the evaluation set the last windows of all people and both
activities are normal, and a tenth as many windows of the other four activities are anomalies.
Windows overlap by half, so one is left out between training and held-out windows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from matplotlib.axes import Axes

from edgemerge import Bank, Contribution, Detector, Ledger, Projection, Stats, group
from edgemerge.paper.dataset import (
    ANOMALY_RATIO,
    SPLIT_SETTINGS,
    TRAIN_SHARE,
    Array,
    Dataset,
    EvalSet,
    Ints,
    rng_for,
)
from edgemerge.paper.plan import Claim, Job, Plan, Row, Rows, Scope
from edgemerge.paper.plotting import hide_frame
from edgemerge.paper.settings import FEDERATED, LAYERS, ROUNDS, Layer, Network

MERGED, OURS, AVERAGED = "after", "ours", FEDERATED
PAIRS = tuple(combinations(range(6), 2))
FEW_PAIRS = ((0, 5), (1, 3), (2, 4))  # in a quick run: each activity once
TRIALS, BASELINE_TRIALS = 10, 3  # of a plan for each round here, which goes through all pairs
LAYER = Layer("identity", 64)  # ours; merged is the paper's
NETWORK = Network((256,), 8, ROUNDS)  # the paper's, but one epoch in each round of averaging
SETTINGS = f"{LAYER}, {LAYERS['har']}, {SPLIT_SETTINGS}"


@dataclass(frozen=True, eq=False)
class Fleet:
    """What each device learns, in the order by chance in which they come, and the exam."""

    data: Dataset
    seed: int
    names: tuple[str, ...]
    parts: tuple[Ints, ...]
    eval_set: EvalSet

    @classmethod
    def of(cls, data: Dataset, pair: tuple[int, int], rng: np.random.Generator) -> Fleet:
        """Let chance say who comes first, and who saw which of the two activities."""
        seed = int(rng.integers(2**31))
        people = rng.permutation(np.unique(data.origin))
        saw = rng.choice(pair, len(people))
        parts = [split_person(data, who, what)[0] for who, what in zip(people, saw, strict=True)]
        names = tuple(f"person-{who:02d}" for who in people)
        return cls(data, seed, names, tuple(parts), _eval_set(data, pair, rng))

    @classmethod
    def for_job(cls, job: Job, scope: Scope) -> Fleet:
        """Give the fleet of a job; a quick run has fewer fleets, none with fewer samples."""
        data = replace(scope, quick=False).dataset(job.dataset)
        a, b = map(int, job.part.split("-"))
        return cls.of(data, (a, b), rng_for(scope.seed, "fleet", job.trial, job.part))

    @property
    def readings(self) -> Array:
        """The samples of the exam."""
        return self.data.X[self.eval_set.rows]

    def learnt(self, i: int) -> Array:
        """Give what a device learns."""
        return self.data.X[self.parts[i]]

    def layer(self, layer: Layer) -> Projection:
        """Build the projection that all devices share."""
        return layer.projection(self.data, self.seed)

    def auc(self, oddness: Array) -> float:
        """Say how well odd samples were told from normal ones."""
        from sklearn.metrics import roc_auc_score  # noqa: PLC0415 (slow to import)

        return float(roc_auc_score(self.eval_set.odd, oddness))

    def network_inputs(self) -> tuple[list[Array], Array]:
        """Give what each device learns, and the exam, as networks want them."""
        scaled = self.data.between_0_and_1
        return [scaled(part) for part in self.parts], scaled(self.eval_set.rows)

    def banks(self) -> list[list[Contribution]]:
        """Let each device learn with a bank, and give what it shares."""
        shared, sent = self.layer(LAYER), []
        for i, name in enumerate(self.names):
            device = Bank(shared)
            device.learn(self.learnt(i))
            sent.append(device.share(name, revision=1))
        return sent

    def sums(self) -> list[Contribution]:
        """Let each device learn with one detector of the paper's size, and give what it shares."""
        shared = self.layer(LAYERS["har"])
        sent: list[Contribution] = []
        for i, name in enumerate(self.names):
            device = Detector(shared)
            device.learn(self.learnt(i))
            sent += device.share(name, revision=1)
        return sent


def split_person(data: Dataset, who: int, what: int) -> tuple[Ints, Ints]:
    """Cut a person's windows of an activity in two: what is learnt, and what is kept for exams."""
    rows = np.flatnonzero((data.origin == who) & (data.y == what))
    learn = round(TRAIN_SHARE * len(rows))
    return rows[:learn], rows[learn + 1 :]


def _eval_set(data: Dataset, pair: tuple[int, int], rng: np.random.Generator) -> EvalSet:
    people = np.unique(data.origin)
    rows = np.concatenate([split_person(data, who, what)[1] for what in pair for who in people])
    others = np.flatnonzero(~np.isin(data.y, pair))
    odd = rng.permutation(others)[: max(1, round(ANOMALY_RATIO * len(rows)))]
    return EvalSet(np.concatenate([rows, odd]), np.arange(len(rows) + len(odd)) >= len(rows))


def merged_detector(stats: Stats) -> Detector:
    """Give a newcomer that takes in the sum of all, as the paper does."""
    newcomer = Detector(stats.projection)
    newcomer.adopt(stats)
    return newcomer


def merged_bank(ledger: Ledger) -> Bank:
    """Give a newcomer that takes in a fleet's patterns; like ones were added up, as servers do."""
    newcomer = Bank(ledger.projection)
    newcomer.adopt([replace(found.members[0], stats=found.stats) for found in group(ledger)])
    return newcomer


def ledger_of(notes: Sequence[Contribution], shared: Projection) -> Ledger:
    """Write down what was sent."""
    ledger = Ledger(shared)
    for note in notes:
        ledger.put(note)
    return ledger


def jobs(name: str, plan: Plan, averaged: str) -> list[Job]:
    """One job for each way, round and pair; `averaged` is what those of BP-NN3-FL depend on."""
    quick, baseline = plan.scope.quick, plan.baseline_trials
    rounds = 1 if quick else max(1, plan.trials // TRIALS)
    fewer = min(rounds, -(-baseline // BASELINE_TRIALS))
    ways = ((OURS, SETTINGS, rounds), (AVERAGED, f"{SETTINGS}, {averaged}", fewer))
    pairs = FEW_PAIRS if quick else PAIRS
    return [
        Job(name, "har", method, i, f"{a}-{b}", settings)
        for method, settings, count in ways
        for i in range(count)
        for a, b in pairs
    ]


def aucs(rows: Rows, method: str, **where: float) -> dict[str, float]:
    """Give the AUC of each fleet, in those rows of a method that have these values."""
    return {
        f"{row['trial']}: {row['pair']}": float(row["auc"])
        for row in rows
        if row["method"] == method and all(row.get(key) == where[key] for key in where)
    }


def mean_gain(better: dict[str, float], worse: dict[str, float]) -> float | None:
    """Give by how much AUC is higher on average, over the fleets that both have."""
    both = better.keys() & worse.keys()
    return sum(better[i] - worse[i] for i in both) / len(both) if both else None


def mean(found: dict[str, float]) -> float:
    """Give the mean of what was found."""
    return sum(found.values()) / len(found)


def means(rows: Rows, methods: Iterable[str], **where: float) -> Row:
    """Give the mean AUC of each method in those rows that have these values."""
    found = {method: aucs(rows, method, **where) for method in methods}
    return {method: round(mean(each), 3) for method, each in found.items() if each}


def gain_claim(text: str, least: float, gained: float | None) -> Claim:
    """Claim that a gain is at least so much, if it was measured."""
    if gained is None:
        return Claim(text, None, "not measured")
    return Claim(text, gained >= least, f"{gained:+.3f}")


def draw_curves(axes: Axes, rows: Rows, key: str, looks: dict[str, tuple[str, str, str]]) -> None:
    """Draw each method's mean AUC against a column, with the middle half of the fleets around it.

    `looks` has the label, the colour and the style of the line for each method.
    """
    for method, (label, colour, style) in looks.items():
        places = sorted({float(row[key]) for row in rows if row["method"] == method})
        found = [list(aucs(rows, method, **{key: at}).values()) for at in places]
        means = [float(np.mean(values)) for values in found]
        if places:
            (line,) = axes.plot(places, means, style, marker="o", ms=4, color=colour, label=label)
            line.set_zorder(3 if method == OURS else 2)  # ours above what lies near it
        if places and method in (OURS, MERGED):
            low, high = np.array([np.quantile(values, (0.25, 0.75)) for values in found]).T
            axes.fill_between(places, low, high, color=colour, alpha=0.12, lw=0)
    if axes.lines:
        axes.legend(fontsize=9, frameon=False, loc="best")
    hide_frame(axes)
