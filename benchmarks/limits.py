"""What the machine itself allows: the bare BLAS calls and memory traffic of each job, nothing else.

X (k, n), A (n, N), V (N, n), U (N, N).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas

from benchmarks.jobs import BOTH, LEARN, LEARN_ROWS, SCORE
from edgemerge.paper.timing import TimedCall

Array = NDArray[np.float64]

CHUNKS = (64, 128, 256, 512)  # rows at a time; the best counts
FMA_SIDE = 768  # of the square matrices whose product shows the peak
BIG = 2**23  # numbers in an array that fits no cache: 64 MB

BLAS3 = "limit: BLAS-3 alone"
CACHE = "limit: gemv and ger alone"
FMA = "limit: floating point"
RAM = "limit: memory bandwidth"
PEAK, MEMORY = "multiply and add", "add arrays larger than the cache"


def limits(X: Array, n_hidden: int) -> Iterator[TimedCall]:
    """Yield the limits for rows X (k, n), as timed calls."""
    A, V = np.full((X.shape[1], n_hidden), 1e-3), np.zeros((n_hidden, X.shape[1]))
    for chunk, symmetric in product(CHUNKS, (True, False)):
        yield TimedCall(LEARN_ROWS, BLAS3, rows_alone(X, A, chunk, symmetric=symmetric), len(X))
    learn, score = partial(learn_alone, X[0], A, V), partial(score_alone, X[0], A, V)
    times = 256
    yield TimedCall(LEARN, CACHE, partial(repeat, times, learn), times)
    yield TimedCall(SCORE, CACHE, partial(repeat, times, score), times)
    yield TimedCall(BOTH, CACHE, partial(repeat, times, learn, score), times)


def rows_alone(X: Array, A: Array, chunk: int, *, symmetric: bool) -> Callable[[], None]:
    """XA, HᵀH and HᵀX of all rows, chunk by chunk, with the faster of syrk and gemm."""
    N = A.shape[1]
    U, V = np.zeros((N, N), order="F"), np.zeros((N, X.shape[1]))

    def run() -> None:
        for i in range(0, len(X), chunk):
            part = X[i : i + chunk]
            H = part @ A
            if symmetric:
                blas.dsyrk(1.0, H.T, beta=1.0, c=U, lower=1, overwrite_c=1)
            else:
                blas.dgemm(1.0, H.T, H.T, beta=1.0, c=U, trans_b=1, overwrite_c=1)
            blas.dgemm(1.0, part.T, H.T, beta=1.0, c=V.T, trans_b=1, overwrite_c=1)

    return run


def learn_alone(x: Array, A: Array, V: Array) -> None:
    """Touch what learning one sample must touch: read A and V, change V."""
    h = x @ A
    blas.dger(1e-9, h @ V, h, a=V.T, overwrite_a=1)


def score_alone(x: Array, A: Array, V: Array) -> None:
    """Touch what scoring one sample must touch: A and V, or A and B."""
    (x @ A) @ V


def repeat(times: int, *calls: Callable[[], object]) -> None:
    """Call each in turn, a number of times."""
    for _ in range(times):
        for call in calls:
            call()


def peak() -> TimedCall:
    """A large product: `units` counts floating point operations."""
    A = np.full((FMA_SIDE, FMA_SIDE), 1e-3)
    C = np.empty_like(A)
    return TimedCall(PEAK, FMA, lambda: np.matmul(A, A, out=C), 2 * FMA_SIDE**3)


def memory() -> TimedCall:
    """A sum of two arrays into a third: `units` counts bytes, two reads and one write."""
    a, b, c = np.ones(BIG), np.ones(BIG), np.ones(BIG)
    return TimedCall(MEMORY, RAM, lambda: np.add(a, b, out=c), 3 * 8 * BIG)


def rows_flops(n: int, N: int) -> int:
    """Count the operations of learning one row: XA, half of HᵀH, HᵀX."""
    return 2 * n * N + N * (N + 1) + 2 * n * N
