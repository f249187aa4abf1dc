"""Batch training as the paper's section 3 has it: the output layer from all samples at once.

H (k, N), T (k, m) give B (N, m). The sums of E²LM give the same B without keeping any sample.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import qr, solve_triangular

from edgemerge.core.errors import SettingError, SolveError
from edgemerge.core.projection import Projection
from edgemerge.core.stats import Stats

Array = NDArray[np.float64]
Way = Literal["svd", "qr", "normal"]


def elm(
    projection: Projection, X: ArrayLike, T: ArrayLike | None = None, *, by: Way = "svd"
) -> Array:
    """Train in one batch: B = H⁺T, by SVD, by QR, or by the normal equations (E²LM's sums).

    SVD also gives the least of all solutions when there are fewer samples than hidden values; the
    other two need as many independent samples as hidden values. Without T the target is X.

    >>> shared = Projection(n_inputs=2, n_hidden=2, activation="identity", seed=1)
    >>> X = [[0.1, 0.2], [0.3, -0.4], [0.5, 0.6]]
    >>> bool(np.allclose(elm(shared, X, by="svd"), elm(shared, X, by="normal")))
    True
    """
    if by == "normal":
        return Stats.of(projection, X, T).solve(ridge=0.0).B  # M3
    H = np.atleast_2d(projection.hidden(X))
    targets = projection.grid.rows(X) if T is None else np.asarray(T, dtype=np.float64)
    if by == "svd":
        return np.asarray(np.linalg.pinv(H) @ targets)
    if by == "qr":
        return _by_qr(H, targets)
    raise SettingError(f"found by={by!r}, expected 'svd', 'qr' or 'normal'")


def _by_qr(H: Array, T: Array) -> Array:
    if len(H) < H.shape[1]:
        raise SolveError(
            f"found {len(H)} samples for {H.shape[1]} hidden values: give at least as many, "
            "or use by='svd'"
        )
    Q, R = qr(H, mode="economic")
    if np.abs(np.diag(R)).min() <= len(H) * np.finfo(float).eps * np.abs(np.diag(R)).max():
        raise SolveError("the hidden values of these samples are not independent: use by='svd'")
    return np.asarray(solve_triangular(R, Q.T @ T))
