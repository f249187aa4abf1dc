"""The three forms in which sums travel: exact, float32, and a square root in float16.

U (N, N) goes as its upper triangle, row by row. root16 sends R and Z with RᵀR = U, RᵀZ = V, and
E = S − diag(ZᵀZ): what arrives is a Gram matrix again, and the loss that is left (E) is not drowned
by rounding. Columns of R and Z are scaled by powers of two to below 1, where float16 counts 2⁻²⁴.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgemerge.core.errors import FormatError, SettingError, SolveError
from edgemerge.core.packing import Layout, Tensors
from edgemerge.core.rounding import FORMS, UNIT, Rounding, factor, solved
from edgemerge.core.stats import Stats
from edgemerge.core.sums import limit

Array = NDArray[np.float64]
Sums = tuple[Array, Array, Array, Array]  # U, V, C, S


def to_tensors(stats: Stats, form: str) -> Tensors:
    """Write sums as the arrays of a form."""
    if form not in FORMS:
        raise SettingError(f"found form {form!r}, expected one of {list(FORMS)}")
    must_be_sums(stats.arrays, stats.projection.quantum)
    if not np.array_equal(stats.U, stats.U.T):
        raise FormatError("U is not symmetric: these sums were not made by Stats")
    if form == "root16":
        tensors = _to_root(stats)
        must_be_sums(
            from_tensors(tensors, form, stats.projection.quantum), stats.projection.quantum
        )
        return tensors
    U, V, C, S = stats.arrays
    plain = {"U": pack_triangle(U), "V": V, "C": C, "S": S}
    kind: type = np.float64 if form == "exact" else np.float32
    largest = np.nextafter(kind(limit(stats.projection.quantum)), kind(0.0))
    # adding 0 turns −0 into 0, so that equal sums are equal bytes
    return {name: np.clip((a + 0.0).astype(kind), -largest, largest) for name, a in plain.items()}


def layout(form: str, N: int, m: int) -> Layout:
    """Say which arrays a form has for N hidden values and m outputs."""
    triangle = N * (N + 1) // 2
    if form == "root16":
        floats = [("E", "F32", (m,)), ("C", "F32", (m,))]
        halves = [("R", "F16", (triangle,)), ("Z", "F16", (N, m))]
        return [*floats, *halves, ("r", "I8", (N,)), ("z", "I8", (m,))]
    kind = "F64" if form == "exact" else "F32"
    shapes = {"U": (triangle,), "V": (N, m), "C": (m,), "S": (m,)}
    return [(name, kind, shape) for name, shape in shapes.items()]


def from_tensors(tensors: Tensors, form: str, quantum: float) -> Sums:
    """Read the arrays of a form back, in float64 and on the grid."""
    if not all(np.isfinite(array).all() for array in tensors.values()):
        raise FormatError("found NaN or infinity, expected finite numbers")
    if form == "root16":
        return _from_root(tensors, quantum)
    U, V, C, S = (np.array(tensors[name], np.float64) for name in "UVCS")
    return unpack_triangle(U, len(V)), V, C, S


def must_be_sums(sums: Sums, quantum: float) -> None:
    """Refuse what no sum on the grid can be."""
    for name, array in zip("UVCS", sums, strict=True):
        if not np.all(np.abs(array) < limit(quantum)):  # also false for NaN
            raise FormatError(f"an entry of {name} is NaN or not below {limit(quantum):.3g}")
        quanta = array * (1.0 / quantum)  # exact: the quantum is a power of two
        if (quanta != np.rint(quanta)).any():
            raise FormatError(f"an entry of {name} is off the grid of {quantum:g}")


def pack_triangle(U: Array) -> Array:
    """Give the upper triangle, row by row."""
    return np.asarray(U[_upper(len(U))])


def unpack_triangle(packed: Array, N: int) -> Array:
    """Give the symmetric matrix of an upper triangle."""
    U = np.zeros((N, N))
    U[_upper(N)] = packed
    U.T[_upper(N)] = packed
    return U


def _upper(N: int) -> NDArray[np.bool_]:
    return np.tri(N, dtype=np.bool_).T


def _to_root(stats: Stats) -> Tensors:
    L, Z = _smallest_lift(stats)
    E = np.maximum(stats.S - np.einsum("ij,ij->j", Z, Z), 0.0)
    (R, r), (Z, z) = _scaled(L.T), _scaled(Z)
    halves = {"R": pack_triangle(R).astype(np.float16), "Z": Z.astype(np.float16), "r": r, "z": z}
    return {"E": E.astype(np.float32), "C": (stats.C + 0.0).astype(np.float32), **halves}


def _smallest_lift(stats: Stats) -> tuple[Array, Array]:
    # sums of samples as they are need none but float64's own; faded ones that of their rounding,
    # without which Z could explain more than there is
    scale, size, most = np.abs(stats.U.diagonal()), len(stats.U) + 1, Rounding.of(stats).slack
    for slack in (0.0, stats.projection.quantum, most):
        L = factor(stats.U, scale, size, slack, 0.0)
        Z = None if L is None else solved(L, stats.V)
        if L is not None and Z is not None:
            room = size * (slack + 4.0 * (size + 1) * UNIT * np.abs(stats.S))
            if np.all(np.einsum("ij,ij->j", Z, Z) <= stats.S + room):
                return L, Z
    raise SolveError("U is indefinite: only sums of samples have a square root; send them exact")


def _scaled(M: Array) -> tuple[Array, NDArray[np.int8]]:
    exponents = np.frexp(np.sqrt(np.einsum("ij,ij->j", M, M)))[1]
    return np.ldexp(M, -exponents) + 0.0, exponents.astype(np.int8)


def _from_root(tensors: Tensors, quantum: float) -> Sums:
    R16, Z, E, C = (np.array(tensors[name], np.float64) for name in "RZEC")
    r, z = tensors["r"].astype(int), tensors["z"].astype(int)
    if max(np.abs(R16).max(), np.abs(Z).max(), -E.min()) > 1.0 or E.min() < 0.0:
        raise FormatError("found R or Z above 1, or E below 0, expected scaled columns")
    R = np.triu(unpack_triangle(R16, len(Z)))
    # exact in any order: products are multiples of 2⁻⁴⁸, and columns have length 1 at most
    U = np.ldexp(R.T @ R, r[:, None] + r)
    V = np.ldexp(R.T @ Z, r[:, None] + z)
    S = E + np.ldexp(np.einsum("ij,ij->j", Z, Z), 2 * z)
    rounded = (np.rint(a / quantum) * quantum + 0.0 for a in (U, V, C, S))
    U, V, C, S = rounded
    return U, V, C, S
