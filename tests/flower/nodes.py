"""What a node does, without any Flower: a learner in a file that gives and adopts."""

from itertools import count

from edgemerge import decode, encode, save
from edgemerge.core.ledger import Merged, MergedPart
from edgemerge.flower.config import NodeConfig
from edgemerge.flower.device import HistoryFile, ReleaseHistory, contribute
from tests.flower.fleet import SHARED, rows

CLOCK = count(1).__next__


class Kept:
    """A memory within the test."""

    def __init__(self):
        self.past = ReleaseHistory()

    def recall(self):
        return self.past

    def remember(self, past):
        self.past = past


def learnt(learner, path, *seeds):
    """Save a learner that has learnt the samples of some seeds."""
    for seed in seeds:
        learner.learn(rows(seed))
    save(learner, path)
    return path


def given(config, samples=None, memory=None, clock=CLOCK, shared=SHARED):
    """Give the fields of what a device contributes, and its contributions."""
    memory = memory or (HistoryFile(config.file) if config.file else Kept())
    fields = contribute(config, shared, samples, memory, clock)
    return fields, [decode(data) for data in fields.get("contributions", [])]


def told(*notes):
    """Give the bytes of what a node is told when others gave this."""
    return encode(Merged(SHARED, (MergedPart.of(notes, SHARED),)))


def node_of(device, **settings):
    """Give a node whose gate few rows pass: so many the tests have."""
    return NodeConfig(device, **{"gate": 2.0} | settings)
