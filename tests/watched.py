"""A monitor and the machine that it watches, for tests: samples come at one a second."""

import numpy as np

from edgemerge import Detector, Monitor, Projection

SHARED = Projection(n_inputs=4, n_hidden=8, seed=7)
COMMISSIONING = 16 * SHARED.n_hidden
READY = 11  # the samples a learner needs with so many hidden values: ceil(1.3 · 8)


class Watched:
    """Feeds a monitor with the samples of a machine: ordinary ones, and faults by their place."""

    def __init__(self, learner=Detector, *, seed=0, monitor=None, **settings):
        self.monitor = Monitor(learner(SHARED), **settings) if monitor is None else monitor
        self.rng, self.at = np.random.default_rng(seed), 0.0

    def take(self, rows):
        """Give it these samples; return the results."""
        results = []
        for x in rows:
            self.at += 1.0
            results.append(self.monitor.take(x, self.at))
        return results

    def rows(self, count, place=0.0):
        return place + self.rng.normal(0.0, 0.1, (count, SHARED.n_inputs))

    def ordinary(self, count):
        return self.take(self.rows(count))

    def fault(self, count, place=0.6):
        return self.take(self.rows(count, place))

    def commissioned(self):
        """Let commissioning pass."""
        self.ordinary(COMMISSIONING)
        assert self.monitor.phase == "watching"
        return self

    def scoring(self, low, high):
        """Return a sample whose score lies between."""
        direction = np.array([1.0, -1.0, 1.0, 1.0]) / 2.0
        for size in np.geomspace(0.05, 3.0, 400):
            if low < self.monitor.learner.score(size * direction) < high:
                return size * direction
        raise AssertionError(f"no sample scores between {low} and {high}")

    @property
    def own(self):
        """The sums of everything that the learner has learnt itself."""
        self.catch_up()
        return [each.own for each in self.monitor.learner.detectors.values()]

    @property
    def learnt(self):
        """How many samples it has learnt."""
        return sum(stats.count for stats in self.own)

    def catch_up(self):
        getattr(self.monitor.learner, "catch_up", lambda: None)()

    @property
    def kinds(self):
        """What has happened, in order."""
        return [event.kind for event in self.monitor.events]

    @property
    def odd(self):
        """The only odd pattern."""
        (found,) = self.monitor.odd_patterns.values()
        return found
