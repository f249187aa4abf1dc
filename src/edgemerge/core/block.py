"""The block: rows that come together are scored and learnt together, as if one after the other.

X (k, n) on the grid, H (k, N). Every row is scored with the readout of the rows before it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgemerge.core.cache import Fit, Preview
from edgemerge.core.known import Known
from edgemerge.core.learning import learn_rows
from edgemerge.core.level import Level, effective

Array = NDArray[np.float64]

ROWS = 32  # where k × k work is still small against N × n


def stream(known: Known, X: Array, reject_above: float, ready: float) -> tuple[Array, int]:
    """Score and learn rows, each before the next; give the scores and how many were rejected."""
    scores, rejected, done = np.ones(len(X)), 0, 0
    if len(X) and not known.count:  # nothing is unusual to one who knows nothing
        learn_rows(known, X[:1])
        done = 1
    while done < len(X):
        found, odd = block(known, X[done:], reject_above, ready)
        scores[done : done + len(found)] = found
        rejected, done = rejected + odd, done + len(found)
    return scores, rejected


def block(known: Known, X: Array, reject_above: float, ready: float) -> tuple[Array, int]:
    """Score and learn the first rows of X; give their scores, and how many of them were rejected.

    Takes rows up to the first that is rejected, or to where P has to be solved afresh.
    """
    X = X[: max(1, min(ROWS, known.patience - known.cache().steps))]
    H = known.projection.project(X)
    HP = known.cache().gains(H)
    weights = known.fade ** -np.arange(1.0, len(X) + 1) / known.frame  # M8
    seen = known.cache().preview(H, weights, X - known.times_V(HP), HP)
    fits = _fits(known, seen)
    levels = _levels(known, seen, fits)
    losses = np.einsum("ij,ij->i", seen.errors, seen.errors) / X.shape[1]
    scores = levels.score(losses, seen.leverage * weights * known.fade)
    odd = (scores > reject_above) & (levels.weight / weights >= ready * known.fade)
    end = _until_ridge(known, H)
    k = _first(odd[:end])
    if k:
        _accept(known, seen, X[:k], H[:k], Fit(float(fits.J[k]), float(fits.norm[k])))
    return scores[: min(k + 1, end)], int(k < end)


def _fits(known: Known, seen: Preview) -> Fit:
    """Give the fit before each row, and after the last, (k + 1,)."""
    W, E, start = seen.W, seen.E, known.fit()
    WB = known.times_V(known.cache().gains(W.T))  # (k, m), with B as it is before the block
    WW, EE = W.T @ W, E @ E.T
    across = np.einsum("ij,ij->i", WB, E) + (np.tril(WW, -1) * np.tril(EE, -1)).sum(1)
    norm = 2.0 * across + np.diag(WW) * np.diag(EE)
    return Fit(_running(start.J, np.diag(EE)), _running(start.norm, norm))


def _levels(known: Known, seen: Preview, fits: Fit) -> Level:
    cache = known.cache()
    trace = _running(cache.trace, -np.einsum("ij,ij->j", seen.W, seen.W))[:-1]
    own = _running(known.own.count, seen.weights)[:-1]
    frames = 1.0 / (seen.weights * known.fade)
    return Level(
        fits.loss(cache.ridge)[:-1] / known.projection.n_inputs,
        len(seen.W) - cache.ridge * trace,
        own + known.told,
        effective(own * frames, known.told, known.fade),
        known.floor,
        np.maximum,
    )


def _running(start: float, parts: Array) -> Array:
    return start + np.concatenate([[0.0], np.cumsum(parts)])


def _first(marks: Array) -> int:
    return int(np.argmax(marks)) if marks.any() else len(marks)


def _until_ridge(known: Known, H: Array) -> int:
    if known.fade != 1.0:
        return len(H)
    ridges = [known.ridge(more) for more in np.cumsum(np.einsum("ij,ij->i", H, H))]
    changed = np.array(ridges) != known.cache().ridge
    return min(_first(changed) + 1, len(H))


def _accept(known: Known, seen: Preview, X: Array, H: Array, fit: Fit) -> None:
    k, cache = len(X), known.cache()
    known.own.add_rows(H, X, None if known.fade == 1.0 else seen.weights[:k])
    known.frame *= known.fade**k
    known.learnt += k
    cache.accept(seen.W[:, :k])
    cache.fit = fit
    known.watch(float(np.vdot(H, H)))
