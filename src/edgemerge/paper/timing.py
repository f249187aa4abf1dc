"""CPU timing of methods in turn: the steps, the paper's printed times, and OS-ELM in plain NumPy.

The two NumPy versions, as published code and as textbooks write it, are baselines for time. x is
(1, n) for the published style, (n,) for the textbook's; P (N, N), B (N, n).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import perf_counter, process_time
from typing import Any, NamedTuple

import numpy as np

from edgemerge import Projection
from edgemerge.paper.dataset import Array
from edgemerge.paper.hyperparameters import CHUNK_ROWS, FEDERATED, ROUNDS

MIN_ROUNDS = 3  # rounds, however long they take


class TimedCall(NamedTuple):
    """One way to do a job; a call of `run` does it `units` times."""

    job: str
    way: str
    run: Callable[[], object]
    units: int = 1


def best_times(calls: Sequence[TimedCall], seconds: float) -> list[float]:
    """Run all calls in turn, again and again; return each one's best time for one unit, in seconds.

    It is CPU time of all threads together, so that a second core is no advantage.
    """
    for call in calls:
        call.run()  # warms up
    best = [float("inf")] * len(calls)
    end, rounds = perf_counter() + seconds, 0
    while rounds < MIN_ROUNDS or perf_counter() < end:
        for i, call in enumerate(calls):
            start = process_time()
            call.run()
            best[i] = min(best[i], (process_time() - start) / call.units)
        rounds += 1
    return best


def call_each(call: Callable[[Any], object], rows: Iterable[Any]) -> None:
    """Call a function with each row."""
    for x in rows:
        call(x)


TRAIN, PREDICT, MERGE, PAIR = "train", "predict", "merge", "train a pair"

OURS = "OS-ELM, ours"
PUBLISHED, TEXTBOOK = "OS-ELM, published style", "OS-ELM, NumPy textbook"

DEFERRED = "buffered"
READY_FOR_LOSS, READY_FOR_SCORE = "ready for a loss", "ready for a score"
SUMS_KEPT, SUMS_FROM_P = "own sums at hand", "own sums from P"
ONE_ROUND, ALL_ROUNDS = "one round", f"{ROUNDS} rounds"

IN_CHUNKS, ONE_BY_ONE = f"{CHUNK_ROWS} rows at a time", "one by one"
EPOCHS_IN_ALL, EPOCH_PER_ROUND = "its epochs in all", f"an epoch in each of {ROUNDS} rounds"


class Step(NamedTuple):
    """What is timed: the job, the method, and how, or what it is ready for afterwards."""

    job: str
    method: str
    what: str = READY_FOR_LOSS


_FL_MERGE = (Step(MERGE, FEDERATED, ONE_ROUND), Step(MERGE, FEDERATED, ALL_ROUNDS))
_PAPER_STEPS = (
    *(Step(TRAIN, PUBLISHED), Step(PREDICT, PUBLISHED), Step(MERGE, PUBLISHED, SUMS_FROM_P)),
    *(Step(TRAIN, FEDERATED), Step(PREDICT, FEDERATED), *_FL_MERGE),
)
_PAPER_TABLE = {
    64: (0.471, 0.089, 5.78, 0.588, 0.290, 1.95, 1.95 * ROUNDS),
    128: (0.794, 0.106, 21.8, 0.980, 0.364, 2.42, 2.42 * ROUNDS),
}
PAPER_MS = {  # the paper's table: milliseconds by step and N
    (step, N): ms
    for N, column in _PAPER_TABLE.items()
    for step, ms in zip(_PAPER_STEPS, column, strict=True)
}


Hidden = Callable[[Array], Array]


def hidden_layer(projection: Projection) -> Hidden:
    """Return the function g(xA + b) of readings in [−1, 1], without a grid."""
    A, b, g = projection.A, projection.b, projection.rule.function
    return lambda x: g(x.dot(A) + b)  # M1


class PublishedElm:
    """OS-ELM as public code writes it: any batch size, a pseudo-inverse, products left to right."""

    def __init__(self, hidden: Hidden, P: Array, B: Array) -> None:
        """Start from a first solution."""
        self.hidden, self.P, self.B = hidden, P, B

    def learn(self, x: Array) -> None:
        """Learn rows (k, n); here k is 1."""
        H = self.hidden(x)
        inner = np.linalg.pinv(np.eye(len(x)) + H.dot(self.P).dot(H.T))
        self.P = self.P - self.P.dot(H.T).dot(inner).dot(H).dot(self.P)  # M4
        self.B = self.B + self.P.dot(H.T).dot(x - H.dot(self.B))  # M5

    def loss(self, x: Array) -> float:
        """Return the mean squared error of rows (k, n)."""
        return float(np.mean((x - self.hidden(x).dot(self.B)) ** 2))  # M9

    def sums(self) -> tuple[Array, Array]:
        """Compute the sums U and V from P and B."""
        U: Array = np.linalg.inv(self.P).astype(float, copy=False)
        return U, U.dot(self.B)  # M6

    def merged(self, U: Array, V: Array) -> tuple[Array, Array]:
        """Return P and B after adding a peer's sums to our own, which are computed from P."""
        own_U, own_V = self.sums()
        return solve(own_U + U, own_V + V)  # M7


def solve(U: Array, V: Array) -> tuple[Array, Array]:
    """Return P and B of sums by an inverse, without a ridge."""
    P: Array = np.linalg.inv(U).astype(float, copy=False)
    return P, P.dot(V)  # M3


class TextbookElm:
    """OS-ELM for one sample at a time: a reciprocal and two outer products."""

    def __init__(self, hidden: Hidden, P: Array, B: Array) -> None:
        """Start from a first solution."""
        self.hidden, self.P, self.B = hidden, P.copy(), B.copy()

    def learn(self, x: Array) -> None:
        """Learn one sample (n,)."""
        h = self.hidden(x)
        Ph = self.P @ h
        gain = Ph / (1.0 + h @ Ph)
        self.P -= np.outer(gain, Ph)  # M4
        self.B += np.outer(gain, x - h @ self.B)  # M5

    def loss(self, x: Array) -> float:
        """Return the mean squared error of one sample (n,)."""
        e = x - self.hidden(x) @ self.B
        return float(e @ e) / len(x)  # M9
