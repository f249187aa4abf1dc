"""An agent cut short anywhere: what it says and learns later is the same to the last bit."""

from functools import cache
from random import Random

import numpy as np
import pytest

from edgemerge import Bank, Detector, Monitor
from edgemerge.agent.features import Raw
from edgemerge.agent.judge import Judge
from edgemerge.agent.sources import Reading
from edgemerge.agent.state import AgentState, own_stats, state_from_bytes, state_to_bytes
from edgemerge.wire.state import to_bytes
from tests.agent.agents import shared, stream

P = shared()
SHIFT = np.array([0.0, 0.0, 0.0, 0.0, 0.5, 0.2])
OTHER = np.array([-0.9, 0.9, -0.9, 0.0, 0.0, 0.0])
ROWS = np.vstack([
    stream(260), stream(60, 1) + SHIFT, stream(60, 2), stream(40, 3) + OTHER, stream(60, 4),
    stream(50, 5) + SHIFT, stream(40, 6), stream(30, 7) + OTHER, stream(40, 8),
])  # fmt: skip
UNDO = 500
REVIEWS = {  # by the samples judged before
    300: lambda monitor: monitor.acknowledge(),
    350: lambda monitor: monitor.review("odd-1", "approve"),
    450: lambda monitor: monitor.review("odd-2", "fault", name="bearing"),
    UNDO: lambda monitor: monitor.review("odd-1", "undo"),
    520: lambda monitor: monitor.snooze(525.0),
    560: lambda monitor: monitor.accept_drift(),
}
LEARNERS = {
    "detector": lambda: Detector(P),
    "forgetful detector": lambda: Detector(P, forgetting=0.999),
    "bank": lambda: Bank(P),
}
SETTINGS = {
    "limit": {"limit": 30.0},
    "promise": {"false_alarms": "1 per 200 samples"},
    "always": {"learn": "always", "votes": (1, 1), "limit": 30.0},
}


def names(_read):
    return "abcdef"


class Device:
    """A judge over all rows, that can be cut short and go on from what it saved last."""

    def __init__(self, learner, settings):
        monitor = Monitor(LEARNERS[learner](), **SETTINGS[settings])
        self.verdicts = {}
        self.reviews = {} if settings != "limit" else dict(REVIEWS)
        if learner == "forgetful detector":  # cannot take back what fades
            self.reviews.pop(UNDO, None)
        self.disk = state_to_bytes(AgentState("pump-1", 1, monitor))
        self.starts()

    def starts(self):
        self.memory = state_from_bytes(self.disk)
        self.judge = Judge(self.memory, Raw(), names, lambda: 0.0)

    def saves(self):
        self.disk = state_to_bytes(self.memory)

    def judges(self):
        """Judge the next row, after a review that is due, which is saved at once."""
        index = self.memory.index
        if self.memory.reviewed < index in self.reviews:
            self.reviews[index](self.memory.monitor)
            self.memory.reviewed = index
            self.saves()
        verdict = self.judge.judge(Reading(ROWS[index], at=float(index)))
        assert self.verdicts.setdefault(index, verdict) == verdict, index

    @property
    def ended(self):
        return self.memory.index == len(ROWS)


@cache
def undisturbed(learner, settings):
    device = Device(learner, settings)
    while not device.ended:
        device.judges()
    return device


@pytest.mark.slow
@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("seed", range(2))
def test_cut_short_anywhere_nothing_later_changes(learner, settings, seed):
    whole, random, device = undisturbed(learner, settings), Random(seed), Device(learner, settings)
    cuts = 0
    while not device.ended:
        if random.random() < 0.03:
            device.saves()
        if random.random() < 0.02:
            cuts += 1
            device.starts()
        device.judges()
    assert cuts > 3
    assert device.verdicts == whole.verdicts
    assert own_stats(device.memory.learner) == own_stats(whole.memory.learner)
    assert to_bytes(device.memory.monitor) == to_bytes(whole.memory.monitor)


@pytest.mark.slow
@pytest.mark.parametrize("learner", LEARNERS)
def test_the_stream_has_episodes_patterns_and_reviews(learner):
    device = undisturbed(learner, "limit")
    monitor = device.memory.monitor
    assert device.memory.reviewed == max(REVIEWS)
    assert len(monitor.episodes) >= 3
    first = "normal" if learner == "forgetful detector" else "unreviewed"
    assert {each.status for each in monitor.odd_patterns.values()} == {first, "fault"}
    kinds = {each.kind for each in monitor.events}
    assert kinds >= {"watching", "new pattern", "approve", "fault", "episode ended"}
