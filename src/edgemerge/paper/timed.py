"""What is timed, by the words under which tables show it, and the times that the paper printed."""

from __future__ import annotations

from typing import NamedTuple

from edgemerge.paper.settings import ROUNDS, STRIP

TRAIN, PREDICT, MERGE, PAIR = "train", "predict", "merge", "train a pair"

OURS, FL = "OS-ELM, ours", "BP-NN3-FL"
STYLE, TEXTBOOK = "OS-ELM, published style", "OS-ELM, NumPy by the book"

ASIDE, LOSS, SCORE = "put aside until asked", "ready for a loss", "ready for a score"
OWN_SUMS, FROM_P = "own sums at hand", "own sums from P"
ONE_ROUND, ALL_ROUNDS = "one round", f"{ROUNDS} rounds"

ROWS, SINGLY = f"{STRIP} rows at a time", "one by one"
IN_ALL, PER_ROUND = "its epochs in all", f"an epoch in each of {ROUNDS} rounds"


class Step(NamedTuple):
    """What is timed: the job, the method, and how, or what it is ready for afterwards."""

    job: str
    method: str
    what: str = LOSS


# the paper's table: milliseconds by step and N
PRINTED = {
    (Step(TRAIN, STYLE), 64): 0.471,
    (Step(PREDICT, STYLE), 64): 0.089,
    (Step(MERGE, STYLE, FROM_P), 64): 5.78,
    (Step(TRAIN, FL), 64): 0.588,
    (Step(PREDICT, FL), 64): 0.290,
    (Step(MERGE, FL, ONE_ROUND), 64): 1.95,
    (Step(MERGE, FL, ALL_ROUNDS), 64): 1.95 * ROUNDS,
    (Step(TRAIN, STYLE), 128): 0.794,
    (Step(PREDICT, STYLE), 128): 0.106,
    (Step(MERGE, STYLE, FROM_P), 128): 21.8,
    (Step(TRAIN, FL), 128): 0.980,
    (Step(PREDICT, FL), 128): 0.364,
    (Step(MERGE, FL, ONE_ROUND), 128): 2.42,
    (Step(MERGE, FL, ALL_ROUNDS), 128): 2.42 * ROUNDS,
}
