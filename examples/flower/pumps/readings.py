"""Readings of pumps, made up; however many parts they are in, all parts together are the same.

`python -m pumps.readings 0 3` writes the first of three parts as CSV.
"""

import sys

import numpy as np

ROWS, INPUTS = 6_000, 8


def readings():
    """Return all samples, (6000, 8)."""
    rng = np.random.default_rng(7)
    turning, noise = rng.uniform(-0.6, 0.6, (3, INPUTS)), rng.normal(0.0, 0.05, (ROWS, INPUTS))
    return turning[rng.integers(0, 3, ROWS)] + noise


def part(number, parts):
    """Return the samples of one part: every n-th row."""
    return readings()[number::parts]


if __name__ == "__main__":
    np.savetxt(sys.stdout, part(*map(int, sys.argv[1:])), delimiter=",", fmt="%.17g")
