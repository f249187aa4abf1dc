"""Targets and weights: what may stand beside the samples of a batch, checked at the border."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edgemerge.core.errors import SampleError

Array = NDArray[np.float64]


def targets_on_grid(T: ArrayLike, rows: int, step: float) -> Array:
    """Give targets (k, m), or (k,) as one column, rounded to the grid."""
    try:
        targets = np.asarray(T, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise SampleError(f"targets must be numbers: {error}") from error
    targets = targets[:, None] if targets.ndim == 1 else targets
    if targets.ndim != 2 or len(targets) != rows or not np.isfinite(targets).all():
        raise SampleError(
            f"found targets of shape {np.shape(T)}, expected {rows} rows of finite numbers"
        )
    return np.asarray(np.rint(targets / step) * step)


def checked_weights(weights: ArrayLike, rows: int) -> Array:
    """Give one weight for each row."""
    w = np.asarray(weights, dtype=np.float64)
    if w.shape != (rows,) or not np.isfinite(w).all() or (w < 0.0).any():
        raise SampleError(
            f"found weights of shape {w.shape}, expected {rows} finite numbers of 0 or more"
        )
    return w
