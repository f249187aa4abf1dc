"""Two machines, what they saw as CSV and as learners, and a place to keep them."""

import csv
from pathlib import Path

import numpy as np

from edgemerge import Detector, Projection, save
from tests.cases import machine

SHARED = Projection(n_inputs=6, n_hidden=16, seed=7)
AGREE = ("--n-inputs", 6, "--n-hidden", 16, "--seed", 7, "--low", -1, "--high", 1)
HEADER = "abcdef"
IDLE = machine(0.1, 400, np.random.default_rng(0))
FAST = machine(0.7, 400, np.random.default_rng(1))


def written(path: Path, rows: np.ndarray) -> Path:
    with path.open("w", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(HEADER)
        writer.writerows(rows.tolist())
    return path


def detector(rows: np.ndarray) -> Detector:
    found = Detector(SHARED)
    found.learn(rows)
    return found


def saved(thing: object, path: Path) -> Path:
    save(thing, path)
    return path
