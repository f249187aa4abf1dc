"""Small data sets with known patterns, for tests that need no real data."""

from dataclasses import replace

import numpy as np

from edgemerge.paper.dataset import Dataset


def noting(seen, real):
    """Give a function that notes what it is given, and then does what it should."""

    def call(*given):
        seen.append(given)
        return real(*given)

    return call


class ToyScope:
    """A scope whose data sets are toys, whatever their name."""

    def __init__(self, seed=7, **sizes):
        self.seed, self.sizes, self.quick = seed, sizes, True

    def dataset(self, name):
        return replace(toy(**self.sizes), name=name)

    def has(self, name):
        return name in ("har", "mnist")


def toy(patterns=4, samples=50, inputs=6, seed=0, origins=5):
    """Patterns that lie apart: each varies along its own two directions around its own centre."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(patterns):
        centre, directions = rng.uniform(0.25, 0.75, inputs), rng.normal(0, 0.08, (2, inputs))
        rows.append(centre + rng.uniform(-1, 1, (samples, 2)) @ directions)
    X = np.clip(np.concatenate(rows) + rng.normal(0, 0.01, (patterns * samples, inputs)), 0, 1)
    y = np.repeat(np.arange(patterns), samples)
    names = tuple(f"pattern-{i}" for i in range(patterns))
    return Dataset("toy", X, y, names, np.tile(np.arange(origins), len(y))[: len(y)])
