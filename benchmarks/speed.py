"""How fast is edgemerge? Every job against other ways to do it, in one run, on one thread.

Run `python -m benchmarks`; times are only good for ratios within one run.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle, product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks import jobs, limits
from benchmarks.jobs import OURS, PUBLISHED
from benchmarks.peers import both, numpy_peers, packages
from edgemerge import Contribution, Detector, Ledger, Projection, Stats, kernel
from edgemerge.core.projection import activation_table
from edgemerge.paper.timing import TimedCall, best_times, call_each

Array = NDArray[np.float64]
Times = dict[tuple[str, str], float]  # (job, way) → seconds

SIZES = ((16, 16), (64, 32), (225, 16), (561, 64), (561, 128), (784, 64))
JUDGED = ((561, 64), (561, 128))
SINGLE = {(16, 16): 0.06, (64, 32): 0.06, (561, 64): 0.16, (561, 128): 0.16}  # of published
ROWS = 1024  # in a block
SINGLES = 256  # samples one by one in a turn: covers one fresh solve of P
MERGES = 8  # in a turn
DEVICES = 1000
STEADY = 1.1  # what noise may add to a cost that does not grow
MOST_BYTES = 2**27  # of distinct contributions; beyond that they repeat, and still miss the cache
SEEN, MUCH = 10**3, 10**5  # samples, between which the cost must not grow


class Bar(NamedTuple):
    """Something promised: a value that must not pass its limit, or must reach it."""

    size: tuple[int, int]
    what: str
    value: float
    limit: float
    reach: bool = False

    @property
    def met(self) -> bool:
        """Whether the limit is met."""
        return self.value >= self.limit if self.reach else self.value <= self.limit

    @property
    def verdict(self) -> str:
        """Return ok, or the factor by which the limit is missed."""
        far = self.limit / self.value if self.reach else self.value / self.limit
        return "ok" if self.met else f"missed by a factor of {far:.2f}"


def samples(n: int, k: int, seed: int = 0) -> Array:
    """Make k readings of n sensors that hang together, in [−1, 1]."""
    rng = np.random.default_rng(seed)
    mix = np.random.default_rng(n).normal(0.0, 0.15, (8, n))
    X = rng.normal(size=(k, 8)) @ mix + rng.normal(0.0, 0.05, (k, n))
    return np.clip(X, -1.0, 1.0)


def taught(
    projection: Projection, X: Array, others: Stats | None = None, **settings: Any
) -> Detector:
    """Return a detector that has learnt X."""
    detector = Detector(projection, **settings)
    detector.learn(X)
    if others is not None:
        detector.adopt(others)
    detector.score(X[0])
    return detector


def ours(projection: Projection, X: Array) -> Iterator[TimedCall]:
    """Return our own way to do every job."""
    one, rows = taught(projection, X), list(X[:SINGLES])
    k = len(rows)
    yield TimedCall(jobs.LEARN, OURS, partial(call_each, one.learn, rows), k)
    yield TimedCall(jobs.SCORE, OURS, partial(call_each, taught(projection, X).score, rows), k)
    two = taught(projection, X)
    yield TimedCall(jobs.BOTH, OURS, partial(both, two.learn, two.score, rows), k)
    three = taught(projection, X)
    yield TimedCall(jobs.PREQUENTIAL, OURS, partial(call_each, three.learn_and_score, rows), k)
    block = taught(projection, X)
    yield TimedCall(jobs.LEARN_ROWS, OURS, partial(block.learn, X), len(X))
    stream = taught(projection, X)
    yield TimedCall(jobs.PREQUENTIAL_ROWS, OURS, partial(stream.learn_and_score, X), len(X))
    received = [Stats.of(projection, samples(projection.n_inputs, 500, s)) for s in range(MERGES)]
    four, five = taught(projection, X), taught(projection, X)
    yield TimedCall(jobs.MERGE_LOSS, OURS, partial(merged, four, received, four.loss, X[0]), MERGES)
    yield TimedCall(
        jobs.MERGE_SCORE, OURS, partial(merged, five, received, five.score, X[0]), MERGES
    )
    yield TimedCall(jobs.SUM, OURS, fleet(projection).total)


def ours_one_by_one(projection: Projection, X: Array) -> Iterator[TimedCall]:
    """Yield single samples with what makes them harder, and everything without the kernel."""
    rows, received = list(X[:SINGLES]), Stats.of(projection, samples(projection.n_inputs, 500, 7))
    k, hard = len(rows), {"reject_above": 8.0, "forgetting": 0.999}
    ways: dict[str, tuple[Stats | None, dict[str, Any]]] = {
        jobs.RECEIVED: (received, {}),
        jobs.REJECTING: (None, {"reject_above": 8.0}),
        jobs.FORGETTING: (None, {"forgetting": 0.999}),
        jobs.ALL_THREE: (received, hard),
    }
    # first, since whatever follows the sum of 1 000 contributions begins with cold caches
    for call in without_kernel(lambda: list(ours(projection, X))):
        if call.job in (jobs.SCORE, jobs.BOTH, jobs.PREQUENTIAL, jobs.PREQUENTIAL_ROWS):
            yield call._replace(way=jobs.BY_NUMPY, run=partial(without_kernel, call.run))
    for way, (others, settings) in ways.items():
        one, two = (taught(projection, X, others, **settings) for _ in range(2))
        yield TimedCall(jobs.BOTH, way, partial(both, one.learn, one.score, rows), k)
        yield TimedCall(jobs.PREQUENTIAL, way, partial(call_each, two.learn_and_score, rows), k)


def without_kernel(do: Callable[[], Any]) -> Any:
    """Do something with NumPy alone."""
    kept, kernel.Run = kernel.Run, None
    try:
        return do()
    finally:
        kernel.Run = kept


def merged(
    detector: Detector, received: list[Stats], ask: Callable[[Array], Any], x: Array
) -> None:
    """Adopt one contribution and answer once, for each in turn: the answer is counted too."""
    for stats in received:
        detector.adopt(stats)
        ask(x)


def contribution_bytes(projection: Projection) -> int:
    """Count the bytes of one contribution's sums."""
    return sum(a.nbytes for a in Stats.empty(projection).arrays)


def fleet(projection: Projection) -> Ledger:
    """Return a ledger with 1 000 contributions that do not fit the cache."""
    ledger = Ledger(projection)
    distinct = min(DEVICES, MOST_BYTES // contribution_bytes(projection))
    received = [Stats.of(projection, samples(projection.n_inputs, 2, s)) for s in range(distinct)]
    for device, stats in zip(range(DEVICES), cycle(received), strict=False):
        ledger.put(Contribution(f"device-{device}", stats, revision=1))
    return ledger


def measure(n: int, N: int, seconds: float) -> tuple[Times, list[str]]:
    """Time every way to do every job at one size; where a way has variants, the best counts."""
    X = samples(n, ROWS)
    projection = Projection.of_data(X, margin=0.1, n_hidden=N, activation="tanh")
    known = Stats.of(projection, X)
    found, remarks = packages(X[:SINGLES], N)
    contestants = [
        *ours(projection, X),
        *ours_one_by_one(projection, X),
        *numpy_peers(known, X[:SINGLES]),
        *limits.limits(projection.grid.rows(X), N),
        *(limits.peak(), limits.memory()),
        *found,
    ]
    times: Times = {}
    for contestant, time in zip(contestants, best_times(contestants, seconds), strict=True):
        key = contestant.job, contestant.way
        times[key] = min(time, times.get(key, time))
    flop, byte = times.pop((limits.PEAK, limits.FMA)), times.pop((limits.MEMORY, limits.RAM))
    times[jobs.LEARN_ROWS, limits.FMA] = flop * limits.rows_flops(n, N)
    times[jobs.SUM, limits.RAM] = byte * DEVICES * contribution_bytes(projection)
    return times, remarks


def single_bars(size: tuple[int, int], times: Times) -> Iterator[Bar]:
    """Hold single samples of one size against what is promised."""
    ways = (OURS, jobs.RECEIVED, jobs.REJECTING, jobs.FORGETTING, jobs.ALL_THREE)
    for job, way in product((jobs.PREQUENTIAL, jobs.BOTH), ways):
        share = times[job, way] / times[job, PUBLISHED]
        what = f"{job}, of published" + way.removeprefix(OURS)
        yield Bar(size, what, share, SINGLE[size])


def bars(size: tuple[int, int], times: Times) -> Iterator[Bar]:
    """Hold one size against what is promised."""
    rows = times[jobs.LEARN_ROWS, OURS] / times[jobs.LEARN_ROWS, limits.BLAS3]
    yield Bar(size, "learn rows, of the BLAS-3 limit", rows, 1.5)
    stream = times[jobs.PREQUENTIAL_ROWS, OURS]
    yield Bar(
        size, "score then learn rows, of published", stream / times[jobs.BOTH, PUBLISHED], 0.25
    )
    slow = times[jobs.PREQUENTIAL_ROWS, jobs.BY_NUMPY]
    yield Bar(size, "score then learn rows, of the same without the kernel", stream / slow, 0.6)
    if size[1] == 128:
        for job, limit in ((jobs.MERGE_LOSS, 0.2), (jobs.MERGE_SCORE, 1.0)):
            share = times[job, OURS] / times[job, PUBLISHED]
            yield Bar(size, f"{job}, of inv(U), inv(U) @ V", share, limit)
    share = times[jobs.SUM, limits.RAM] / times[jobs.SUM, OURS]
    yield Bar(size, "bytes/s of summed contributions, of memory", share, 0.5, reach=True)


def growth(n: int, N: int, seconds: float, much: int) -> Bar:
    """Compare the cost of one sample after few and after many samples."""
    X = samples(n, ROWS)
    projection = Projection.of_data(X, margin=0.1, n_hidden=N, activation="tanh")
    young, old = taught(projection, X[:SEEN]), taught(projection, X[:SEEN])
    while old.count < much:
        old.learn(X)
    rows = list(X[:SINGLES])
    pair = [
        TimedCall(jobs.BOTH, str(d.count), partial(both, d.learn, d.score, rows), len(rows))
        for d in (young, old)
    ]
    few, many = best_times(pair, seconds)
    return Bar((n, N), f"cost of one after {much:,} samples, of after {SEEN:,}", many / few, STEADY)


def memory(n: int, N: int) -> Bar:
    """Weigh a detector with all it needs: projection, tables, own sums, others', P, waiting."""
    X = samples(n, ROWS)
    activation_table.cache_clear()
    gc.collect()
    tracemalloc.start()
    projection = Projection.of_data(X, margin=0.1, n_hidden=N, activation="tanh")
    detector = taught(projection, X, Stats.of(projection, X))
    for x in X[:63]:
        detector.learn(x)
    gc.collect()
    megabytes = tracemalloc.get_traced_memory()[0] / 1e6
    tracemalloc.stop()
    return Bar((n, N), "MB of a detector, all included", megabytes, 4.0)


def run(*, quick: bool = False) -> tuple[dict[tuple[int, int], Times], list[Bar], list[str]]:
    """Measure every size; give times, bars and remarks. `quick` only shows that all of it works."""
    seconds, sizes = (0.0, SIZES[:1]) if quick else (20.0, SIZES)
    times: dict[tuple[int, int], Times] = {}
    remarks: list[str] = []
    for size in sizes:
        times[size], remarks = measure(*size, seconds)
    judged = sizes if quick else JUDGED
    found = [bar for size in times if size in SINGLE for bar in single_bars(size, times[size])]
    found += [bar for size in judged for bar in bars(size, times[size])]
    last, much = judged[-1], 2 * SEEN if quick else MUCH
    found += [growth(*last, seconds / 2, much), memory(*last)]
    return times, found, remarks
