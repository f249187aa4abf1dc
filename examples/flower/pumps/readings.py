"""Readings of pumps, made up; however many parts they are in, all parts together are the same."""

import numpy as np

ROWS, INPUTS = 6_000, 8


def readings():
    """Give all samples, (6000, 8)."""
    rng = np.random.default_rng(7)
    turning, noise = rng.uniform(-0.6, 0.6, (3, INPUTS)), rng.normal(0.0, 0.05, (ROWS, INPUTS))
    return turning[rng.integers(0, 3, ROWS)] + noise


def part(number, parts):
    """Give the samples of one part: every so many-th row."""
    return readings()[number::parts]
