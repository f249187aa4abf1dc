"""How long a device takes to learn one sample, and to merge all that another one has learnt."""

from __future__ import annotations

from edgemerge import Detector, Stats
from edgemerge.paper.dataset import Array
from edgemerge.paper.stopwatch import Contestant, each, race

LEARN, SCORED, MERGE = "seconds, one update", "seconds, one update scored", "seconds, one merge"
TOGETHER = 200  # updates timed together, and merges, as one is short for a clock
MERGES = 20
RACE_S = 1.0


def seconds(own: Stats, told: Stats, X: Array) -> dict[str, float]:
    """Time a device that knows `own`, as it learns rows X one by one, or is `told` at once.

    One update is timed in two ways: the sums alone, as a device learns when nobody asks in between;
    and with a score of each sample before it is learnt, which keeps the output layer fresh.
    """
    rows = X[:TOGETHER]
    learner, scorer, merger = (Detector.resume(own) for _ in range(3))

    def learn() -> None:
        each(learner.learn, rows)
        learner.loss(rows[0])  # a loss needs the output layer, so it is solved

    def score() -> None:
        each(scorer.learn_and_score, rows)

    def merge() -> None:
        for _ in range(MERGES):
            merger.adopt(told)
            merger.loss(rows[0])

    ways = {LEARN: (learn, len(rows)), SCORED: (score, len(rows)), MERGE: (merge, MERGES)}
    contestants = [Contestant("update", way, run, units) for way, (run, units) in ways.items()]
    return dict(zip(ways, race(contestants, RACE_S), strict=True))
