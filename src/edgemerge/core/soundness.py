"""Checks that sums are those of samples, within their rounding; None means all is well.

U (N, N), V (N, m), C (m,), S (m,).
"""

from __future__ import annotations

import numpy as np

from edgemerge.core.activation import BOUNDS
from edgemerge.core.checks import Case, Words
from edgemerge.core.grid import REACH
from edgemerge.core.relation import excess
from edgemerge.core.rounding import UNIT, solved


def symmetric(case: Case) -> Words:
    """U must be symmetric, to the bit."""
    return (
        None if np.array_equal(case.stats.U, case.stats.U.T) else "found a U that is not symmetric"
    )


def definite(case: Case) -> Words:
    """U must be positive semidefinite, within its rounding."""
    return None if case.root is not None else "found a U with a negative eigenvalue"


def hidden_range(case: Case) -> Words:
    """No hidden value can be larger than the activation, or the input's range, allows."""
    p, r = case.projection, case.rounding
    reach = REACH * np.abs(p.A).sum(0) + np.abs(p.b) + p.step
    most = BOUNDS[p.activation][1] if p.activation in BOUNDS else reach
    limit = (case.stats.count + r.slack) * most**2 * (1.0 + r.value) + r.slack
    if (case.stats.U.diagonal() <= limit).all():
        return None
    return f"found hidden values too large for {case.stats.count:g} samples of {p.activation}"


def input_range(case: Case) -> Words:
    """No sample can lie further out than the grid lets it."""
    r = case.rounding
    limit = (case.stats.count + r.slack) * REACH**2 * (1.0 + r.value) + r.slack
    if case.n_outputs or case.stats.S.max() <= limit:
        return None
    return f"found S too large for {case.stats.count:g} samples within the range"


def target_bounds(case: Case) -> Words:
    """S bounds V and C, by Cauchy and Schwarz: |V_ij|² ≤ U_ii·S_j and C_j² ≤ count·S_j."""
    (U, V, C, S), r = case.stats.arrays, case.rounding
    if S.min() < -r.slack:
        return "found a negative S, expected sums of squares"
    length = np.sqrt(np.maximum(S, 0.0) + r.slack) * (1.0 + r.value)
    if (
        np.abs(V) > np.outer(np.sqrt(np.maximum(U.diagonal(), 0.0) + r.slack), length) + r.slack
    ).any():
        return "found a V too large for U and S"
    if (np.abs(C) > np.sqrt(case.stats.count + r.slack) * length + r.slack).any():
        return f"found a C too large for S and {case.stats.count:g} samples"
    return None


def in_range(case: Case) -> Words:
    """What U explains of S, diag(VᵀU⁺V), cannot be more than S."""
    if case.root is None:
        return None
    Z, r = solved(case.root, case.stats.V), case.rounding
    size = len(Z) + 1
    most = (
        np.maximum(case.stats.S, 0.0) * (1.0 + size * (r.gram + 4.0 * (size + 1) * UNIT))
        + size * r.slack
    )
    if (np.einsum("ij,ij->j", Z, Z) <= most).all():
        return None
    return "found a V outside what U and S allow: it explains more than there is"


def related(case: Case) -> Words:
    """V must follow from U as hidden values follow from samples; see `relation`."""
    if case.n_outputs or (excess(case.stats, case.rounding) <= 0.0).all():
        return None
    return (
        "found a U and V that no samples have under this projection: sign, scale or count is wrong"
    )
