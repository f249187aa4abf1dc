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
PUBLISHED, TEXTBOOK = "OS-ELM, published style", "OS-ELM, NumPy by the book"

DEFERRED = "put aside until asked"
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
