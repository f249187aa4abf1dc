"""A small fleet for the tests: a projection, samples of devices, and what their nodes answer."""

import numpy as np

from edgemerge import Contribution, Projection, Stats, encode
from edgemerge.flower.aggregate import NodeReply
from edgemerge.flower.fields import with_format

SHARED = Projection(n_inputs=3, n_hidden=4, seed=1)
OTHER = Projection(n_inputs=3, n_hidden=4, seed=2)


def rows(seed, count=40):
    """Give some samples."""
    return np.random.default_rng(seed).normal(0.0, 0.3, (count, 3))


def note(device, seed, revision=1, pattern="normal", incarnation=0, shared=SHARED):
    """Give a contribution of a device."""
    return Contribution(device, Stats.of(shared, rows(seed)), revision, pattern, incarnation)


def answer(node, *notes, **changed):
    """Give what a node is heard to answer with these contributions."""
    first = notes[0]
    fields = {"device": first.device, "revision": first.revision, "incarnation": first.incarnation}
    fields |= {"contributions": [encode(each) for each in notes]} | changed
    return NodeReply(node, with_format(**fields))
