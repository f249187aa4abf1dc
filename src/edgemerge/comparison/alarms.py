"""Detectors under one rule of alarm: monitors of ours, and others with a promised limit.

Other libraries' detectors give a score and leave the alarm to the user. Here they get what a
monitor has: three of the last five scores decide, nothing is learnt in an alarm, and the limit
keeps a promised rate of false episodes on the levels that were seen so far.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pysad.models import ExactStorm, KitNet, RSHash
from river import anomaly

from edgemerge import Bank, Detector, Monitor, Projection, Stats
from edgemerge.core.limit import RENEW_EVERY, SHORT_EPISODE, AlarmLevel

Array = NDArray[np.float64]
Taken = tuple[float | None, bool]  # the score, None while too little is known; whether in alarm

RATE = 1.0 / 1000.0  # promised false episodes a sample
N_HIDDEN = 64
GRACE = 256  # samples after an approval in which others learn everything
CALIBRATED = 0.25  # of commissioning, at its end, that others' levels are counted from


class Watcher(Protocol):
    """Takes one sample after the other and tells whether there is an alarm."""

    def take(self, x: Array) -> Taken:
        """Score a sample, decide on an alarm, then learn the sample if it may be learnt."""

    def approve(self) -> None:
        """Take what is in alarm for normal, as a person decided."""


class Watched:
    """A monitor of ours, with default settings but for the commissioning, and mostly a promise."""

    def __init__(self, learner: Detector | Bank, first: int, **settings: Any) -> None:
        """Watch over a learner; `first` samples are commissioning."""
        self.monitor = Monitor(learner, commissioning=first, **settings)
        self.at = 0

    def take(self, x: Array) -> Taken:
        """Give a sample to the monitor."""
        result = self.monitor.take(x, float(self.at))
        self.at += 1
        return result.score, result.alarm

    def approve(self) -> None:
        """Approve every pattern that waits for a review."""
        waiting = self.monitor.odd_patterns.items()
        for name in [name for name, each in waiting if each.status == "unreviewed"]:
            self.monitor.review(name, "approve")


def make_projection(rows: Array, activation: str, seed: int) -> Projection:
    """Return a projection whose range, and width if it is cosine, come from some rows."""
    return Projection.of_data(rows, n_hidden=N_HIDDEN, activation=activation, seed=seed)


def make_learner(method: str, projection: Projection) -> Detector | Bank:
    """Return the learner of a method such as "bank, tanh"."""
    if "always" in method:
        return Detector(projection, forgetting=0.999)
    return (Bank if method.startswith("bank") else Detector)(projection)


def watch_over(method: str, learner: Detector | Bank, first: int) -> Watched:
    """Return the monitor of a method."""
    learn: Literal["always", "normal"] = "always" if "always" in method else "normal"
    rate = None if "no promise" in method else RATE
    return Watched(learner, first, learn=learn, false_alarms=rate)


OURS = (
    "detector, tanh",
    "detector, cosine",
    "bank, tanh",
    "bank, cosine",
    "bank, tanh, no promise",
    "detector, tanh, learns always",
)


class Scorer(Protocol):
    """A detector that learns one sample at a time; higher scores are odder."""

    def learn(self, x: Array) -> None:
        """Learn a sample."""

    def score(self, x: Array) -> float:
        """Return how odd a sample is."""


class OfRiver:
    """A detector of River, whose samples are dicts."""

    def __init__(self, detector: Any) -> None:
        """Wrap it."""
        self.detector = detector

    def learn(self, x: Array) -> None:
        """Learn a sample."""
        self.detector.learn_one(dict(enumerate(x.tolist())))

    def score(self, x: Array) -> float:
        """Return River's score."""
        return float(self.detector.score_one(dict(enumerate(x.tolist()))))


class OfPysad:
    """A detector of PySAD."""

    def __init__(self, detector: Any) -> None:
        """Wrap it."""
        self.detector = detector

    def learn(self, x: Array) -> None:
        """Learn a sample."""
        self.detector.fit_partial(x)

    def score(self, x: Array) -> float:
        """Return PySAD's score."""
        return float(np.ravel(self.detector.score_partial(x))[0])


def _kitnet(first: int, seed: int) -> Scorer:
    # it learns during its grace periods only, so they are the whole commissioning but its end
    learn = first - round(CALIBRATED * first)
    mapping = learn // 11  # the ratio of 1 to 10 of its authors
    made = KitNet(grace_feature_mapping=mapping, grace_anomaly_detector=learn - mapping,
                  random_state=seed)  # fmt: skip
    return OfPysad(made)


# Inputs are scaled to [−1, 1] by the range of commissioning; all else is as the authors set it.
RIVALS: dict[str, Callable[[int, int, int], Scorer]] = {
    "HalfSpaceTrees (River)": lambda n, _first, seed: OfRiver(
        anomaly.HalfSpaceTrees(limits=dict.fromkeys(range(n), (-1.0, 1.0)), seed=seed)
    ),
    "LODA (River)": lambda _n, _first, seed: OfRiver(anomaly.LODA(seed=seed)),
    "KitNet (PySAD)": lambda _n, first, seed: _kitnet(first, seed),
    "ExactStorm (PySAD)": lambda *_: OfPysad(ExactStorm()),
    "RSHash (PySAD)": lambda n, _first, seed: OfPysad(
        RSHash(feature_mins=np.full(n, -1.0), feature_maxes=np.full(n, 1.0), random_state=seed)
    ),
}


class RateLimit:
    """The lowest limit that levels pass at most `rate` times a sample, on any scale of scores.

    The next episode is taken to be false itself, as in conformal prediction. While there are too
    few samples for that, the limit is the highest level of all.
    """

    def __init__(self, rate: float) -> None:
        """Start without counts."""
        self.rate, self.value = rate, np.inf
        self.steps: list[tuple[float, float]] = []  # level before, and level

    def count(self, steps: list[tuple[float, float]]) -> None:
        """Count samples by their levels, and look at the limit now and then."""
        before = len(self.steps)
        self.steps += steps
        if len(self.steps) // RENEW_EVERY > before // RENEW_EVERY or self.value == np.inf:
            self.renew()

    def renew(self) -> None:
        """Compute the limit from all counts."""
        if not self.steps:
            return
        before, level = np.array(self.steps).T
        self.value = float(level.max())
        allowed = self.rate * (len(level) + 1) - 1.0
        if allowed < 0.0:
            return
        rises = level > before
        limits = np.unique(level)
        passed = _at_most(before[rises], limits) - _at_most(level[rises], limits)
        often = np.flatnonzero(passed > allowed)
        self.value = float(limits[often[-1] + 1] if len(often) else limits[0])


def _at_most(values: Array, limits: Array) -> NDArray[np.intp]:
    """Return how many values are at most each limit."""
    return np.searchsorted(np.sort(values), limits, side="right")


class Promised:
    """Another library's detector with a promised limit."""

    def __init__(self, scorer: Scorer, projection: Projection, first: int) -> None:
        """Begin with commissioning, `first` samples; the projection gives the range of inputs."""
        self.scorer, self.projection, self.first = scorer, projection, first
        self.low, self.high = np.asarray(projection.low), np.asarray(projection.high)
        self.level, self.limit = AlarmLevel((3, 5)), RateLimit(RATE)
        self.at, self.learn_until = 0, 0
        self.held: list[Array] = []  # samples of the open episode
        self.aside: list[tuple[float, float]] = []  # its levels

    def scaled(self, x: Array) -> Array:
        """Return samples on [−1, 1]."""
        return np.asarray(2.0 * (x - self.low) / (self.high - self.low) - 1.0)

    def learn_before(self, rows: Array) -> None:
        """Learn rows of others before the first sample."""
        for x in self.scaled(rows):
            self.scorer.learn(x)

    def take(self, x: Array) -> Taken:
        """Score, decide, learn."""
        x = self.scaled(x)
        score, at = self.scorer.score(x), self.at
        self.at += 1
        before = self.level.value
        step = before, self.level.update(score)
        if at < self.first:
            self.scorer.learn(x)
            if at >= (1.0 - CALIBRATED) * self.first:
                self.limit.count([step])
            return None, False
        alarm = step[1] > self.limit.value
        if not alarm:
            self._close()
            self.limit.count([step])
        if alarm and at >= self.learn_until:
            self.held.append(x)
            self.aside.append(step)
        else:
            self.scorer.learn(x)
        return score, alarm

    def _close(self) -> None:
        if len(self.aside) <= SHORT_EPISODE:  # a false alarm as far as anybody knows
            self.limit.count(self.aside)
        self.held, self.aside = [], []

    def approve(self) -> None:
        """Learn the open episode's samples, and everything for some time."""
        for x in self.held:
            self.scorer.learn(x)
        self.held, self.aside = [], []
        self.learn_until = self.at + GRACE


def make_watcher(method: str, first: int, rows: Array, seed: int) -> Watcher:
    """Return the watcher of a method on its own.

    Args:
        method: One of `OURS` or `RIVALS`.
        first: The samples of commissioning.
        rows: Rows that the range of the inputs comes from.
        seed: Of all random weights.
    """
    if method in RIVALS:
        shared = make_projection(rows, "tanh", seed)
        return Promised(RIVALS[method](rows.shape[1], first, seed), shared, first)
    activation = "cosine" if "cosine" in method else "tanh"
    learner = make_learner(method, make_projection(rows, activation, seed))
    return watch_over(method, learner, first)


def make_late_watcher(method: str, first: int, peers: tuple[Array, ...], seed: int) -> Watcher:
    """Return the watcher of a device that joins a fleet.

    One of ours adopts the sums of its peers; another detector is given all their rows, one by one.

    Args:
        method: One of `OURS` or `RIVALS`.
        first: The samples of its own commissioning.
        peers: The rows of each peer.
        seed: Of all random weights.
    """
    every = np.vstack(peers)
    if method in RIVALS:
        shared = make_projection(every, "tanh", seed)
        # what KitNet learns is what it is given first
        scorer = RIVALS[method](every.shape[1], len(every) + first, seed)
        promised = Promised(scorer, shared, first)
        promised.learn_before(every)
        return promised
    activation = "cosine" if "cosine" in method else "tanh"
    shared = make_projection(every, activation, seed)
    learner = make_learner(method, shared)
    adopt_from(learner, [taught(method, shared, rows) for rows in peers])
    return watch_over(method, learner, first)


def taught(method: str, projection: Projection, rows: Array) -> Detector | Bank:
    """Return a learner that has learnt rows."""
    learner = make_learner(method, projection)
    learner.learn(rows)
    return learner


def adopt_from(learner: Detector | Bank, peers: list[Detector | Bank]) -> None:
    """Let a learner adopt what its peers share, in place of what it adopted before."""
    shared = [one for i, each in enumerate(peers) for one in each.share(f"pump-{i}", revision=1)]
    if isinstance(learner, Bank):
        learner.adopt(shared)
    else:
        learner.adopt(Stats.total(learner.projection, (one.stats for one in shared)))
