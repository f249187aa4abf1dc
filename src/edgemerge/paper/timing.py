"""CPU timing of methods in turn, the steps that are timed, and the paper's printed times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import perf_counter, process_time
from typing import Any, NamedTuple

from edgemerge.paper.settings import CHUNK_ROWS, FEDERATED, ROUNDS

MIN_ROUNDS = 3  # rounds, however long they take


class TimedCall(NamedTuple):
    """One way to do a job; a call of `run` does it `units` times."""

    job: str
    way: str
    run: Callable[[], object]
    units: int = 1


def best_times(contestants: Sequence[TimedCall], seconds: float) -> list[float]:
    """Let all run in turn, again and again; give each one's best time for one unit, in seconds.

    It is the CPU's time, of all threads together: nobody gains by taking a second core.
    """
    for contestant in contestants:
        contestant.run()  # warms up
    best = [float("inf")] * len(contestants)
    end, rounds = perf_counter() + seconds, 0
    while rounds < MIN_ROUNDS or perf_counter() < end:
        for i, contestant in enumerate(contestants):
            start = process_time()
            contestant.run()
            best[i] = min(best[i], (process_time() - start) / contestant.units)
        rounds += 1
    return best


def call_each(call: Callable[[Any], object], rows: Iterable[Any]) -> None:
    """Call with each of the rows."""
    for x in rows:
        call(x)


TRAIN, PREDICT, MERGE, PAIR = "train", "predict", "merge", "train a pair"

OURS = "OS-ELM, ours"
PUBLISHED, TEXTBOOK = "OS-ELM, published style", "OS-ELM, NumPy by the book"

DEFERRED, READY_FOR_LOSS, READY_FOR_SCORE = (
    "put aside until asked",
    "ready for a loss",
    "ready for a score",
)
SUMS_KEPT, SUMS_FROM_P = "own sums at hand", "own sums from P"
ONE_ROUND, ALL_ROUNDS = "one round", f"{ROUNDS} rounds"

IN_CHUNKS, ONE_BY_ONE = f"{CHUNK_ROWS} rows at a time", "one by one"
EPOCHS_IN_ALL, EPOCH_PER_ROUND = "its epochs in all", f"an epoch in each of {ROUNDS} rounds"


class Step(NamedTuple):
    """What is timed: the job, the method, and how, or what it is ready for afterwards."""

    job: str
    method: str
    what: str = READY_FOR_LOSS


# the paper's table: milliseconds by step and N
PAPER_MS = {
    (Step(TRAIN, PUBLISHED), 64): 0.471,
    (Step(PREDICT, PUBLISHED), 64): 0.089,
    (Step(MERGE, PUBLISHED, SUMS_FROM_P), 64): 5.78,
    (Step(TRAIN, FEDERATED), 64): 0.588,
    (Step(PREDICT, FEDERATED), 64): 0.290,
    (Step(MERGE, FEDERATED, ONE_ROUND), 64): 1.95,
    (Step(MERGE, FEDERATED, ALL_ROUNDS), 64): 1.95 * ROUNDS,
    (Step(TRAIN, PUBLISHED), 128): 0.794,
    (Step(PREDICT, PUBLISHED), 128): 0.106,
    (Step(MERGE, PUBLISHED, SUMS_FROM_P), 128): 21.8,
    (Step(TRAIN, FEDERATED), 128): 0.980,
    (Step(PREDICT, FEDERATED), 128): 0.364,
    (Step(MERGE, FEDERATED, ONE_ROUND), 128): 2.42,
    (Step(MERGE, FEDERATED, ALL_ROUNDS), 128): 2.42 * ROUNDS,
}
