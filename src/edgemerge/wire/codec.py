"""The codec: encode values as bytes and decode them; bytes that are not canonical are refused.

The container is safetensors: eight bytes of header length, a JSON header padded with spaces, then
the arrays in order. Nothing is allocated before the header, the shapes and the length agree. The
projection is sent as its settings and the fingerprint that they must give.

The bytes of a value are canonical: after decoding, `must_be_canonical` writes the header again from
the value and compares. Metadata can be added later: a key that a version does not write is refused
by its name, and a missing `format` means 1.

Sums are sent as "exact", "float32" or "root16". U (N, N) is sent as its upper triangle, row by row.
root16 sends R and Z with RᵀR = U, RᵀZ = V, and E = S − diag(ZᵀZ), so the decoded U is a Gram matrix
again and rounding does not swamp the residual loss E. Columns of R and Z are scaled by powers of
two to below 1, where the steps of float16 are 2⁻²⁴.

>>> shared = Projection(n_inputs=2, n_hidden=3)
>>> share = Contribution("pump-3", Stats.of(shared, [[0.1, 0.2]]), revision=1)
>>> decode(encode(share)) == share
True
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite, prod
from typing import Any, TypeVar, cast, overload

import numpy as np
from numpy.typing import NDArray

from edgemerge.core.errors import (
    EdgemergeError,
    FormatError,
    KindError,
    SettingError,
    SolveError,
    must_be,
)
from edgemerge.core.faults import FaultOrigin, Faults, KnownFault
from edgemerge.core.ledger import Contribution, Kind, Merged, MergedPart, Origin
from edgemerge.core.projection import Projection
from edgemerge.core.stats import Stats, exact_limit
from edgemerge.wire.admission import (
    FORM_TOLERANCES,
    UNIT_ROUNDOFF,
    Rounding,
    cholesky_within_rounding,
    solve_lower,
)

WIRE_FORMAT = 1
SAVED_KINDS = ("detector", "ledger", "bank", "monitor")  # of states, which never travel
MAX_HEADER_BYTES = 2**22
DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I8": "|i1"}
DTYPE_NAMES = {np.dtype(code): name for name, code in DTYPES.items()}
HEADER_START = b'{"__metadata__":{"edgemerge":"'
OTHER_FORMATS = {
    b"PK": "a zip archive (npz, PyTorch)",
    b"\x93NUMPY": "a NumPy file",
    b"\x89HDF": "an HDF5 file",
    b"\x1f\x8b": "gzip data",
    b"\x28\xb5\x2f\xfd": "zstd data",
    b"ARROW1": "an Arrow file",
    b"{": "JSON text",
    b"\x80\x02": "a pickle",
    b"\x80\x03": "a pickle",
    b"\x80\x04": "a pickle",
    b"\x80\x05": "a pickle",
}

Metadata = dict[str, str]
Tensors = dict[str, NDArray[Any]]
Layout = list[tuple[str, str, tuple[int, ...]]]


def pack(metadata: Mapping[str, str], tensors: Mapping[str, NDArray[Any]]) -> bytes:
    """Return metadata and arrays as bytes, with the format number first."""
    layout = layout_of(tensors)
    parts = (
        np.ascontiguousarray(a, DTYPES[DTYPE_NAMES[a.dtype]]).tobytes() for a in tensors.values()
    )
    header = _write_header(metadata, layout)
    if len(header) > MAX_HEADER_BYTES:
        raise FormatError(
            f"found a header of {len(header)} bytes, expected at most {MAX_HEADER_BYTES}"
        )
    return b"".join((len(header).to_bytes(8, "little"), header, *parts))


def unpack(data: bytes, limit: int) -> tuple[Metadata, Tensors]:
    """Return the metadata and the arrays that `pack` wrote; other bytes raise FormatError."""
    metadata, tensors = read_container(data, limit)
    must_be_header(_header_bytes(data), metadata, layout_of(tensors))
    return metadata, tensors


def read_container(data: bytes, limit: int) -> tuple[Metadata, Tensors]:
    """Return metadata and arrays, which are views into the data.

    This checks only what reading needs. Call `must_be_canonical` once the value is decoded.
    """
    if len(data) > limit:
        raise FormatError(f"found {len(data)} bytes, expected at most {limit}: raise `limit`")
    header = _read_header(data)
    metadata, layout = _parse_header(header)
    sizes = [prod(shape) * np.dtype(DTYPES[kind]).itemsize for _, kind, shape in layout]
    if 8 + len(header) + sum(sizes) != len(data):
        raise FormatError(
            f"found {len(data)} bytes, expected {8 + len(header) + sum(sizes)} by the header: "
            "the data are truncated or followed by other bytes"
        )
    metadata.pop("edgemerge", None)
    return metadata, _read_arrays(data, 8 + len(header), layout)


def must_be_header(header: bytes, metadata: Mapping[str, str], layout: Layout) -> None:
    """Refuse a header other than the one that is written for this metadata and layout."""
    expected = _write_header(metadata, layout)
    if header != expected:
        raise FormatError(_header_difference(json.loads(header), json.loads(expected)))


def _header_difference(found: dict[str, Any], expected: dict[str, Any]) -> str:
    metadata = found.pop("__metadata__"), expected.pop("__metadata__")
    for what, ours, theirs in (("metadata word", *metadata[::-1]), ("array", expected, found)):
        unknown = [name for name in theirs if name not in ours]
        if unknown:
            return (
                f"found the unknown {what} {unknown[0][:80]!r}, expected {list(ours)[:20]}: "
                "read it with the version of edgemerge that wrote it"
            )
        for name, value in ours.items():
            if theirs.get(name) != value:
                return (
                    f"found the {what} {name!r} as {str(theirs.get(name))[:80]}, "
                    f"expected {str(value)[:80]}: it is not in its canonical form"
                )
    return "the header is not in its canonical form: write it with edgemerge"


def layout_of(tensors: Mapping[str, NDArray[Any]]) -> Layout:
    """Return name, type and shape of each array."""
    return [(name, DTYPE_NAMES[a.dtype], a.shape) for name, a in tensors.items()]


def _write_header(metadata: Mapping[str, str], layout: Layout) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"edgemerge": str(WIRE_FORMAT), **metadata}}
    end = 0
    for name, kind, shape in layout:
        start, end = end, end + prod(shape) * np.dtype(DTYPES[kind]).itemsize
        entries[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)


def _header_bytes(data: bytes) -> bytes:
    return data[8 : 8 + int.from_bytes(data[:8], "little")]


def _read_header(data: bytes) -> bytes:
    length = int.from_bytes(data[:8], "little")
    header = bytes(data[8 : 8 + min(length, MAX_HEADER_BYTES)])
    if not header.startswith(HEADER_START):
        raise FormatError(
            f"found {_describe_bytes(data)}, expected the bytes of an edgemerge object"
        )
    number = header[len(HEADER_START) : len(HEADER_START) + 20].partition(b'"')[0]
    if number != str(WIRE_FORMAT).encode():
        raise FormatError(
            f"found format {number.decode('ascii', 'replace')}, expected {WIRE_FORMAT}: "
            "use the version of edgemerge that wrote it"
        )
    if len(header) != length:
        raise FormatError(
            f"found {len(data)} bytes, expected a header of {length}: the data are truncated"
        )
    return header


def _describe_bytes(data: bytes) -> str:
    for magic, name in OTHER_FORMATS.items():
        if data.startswith(magic):
            return name
    if data[8:9] == b"{":
        return "a safetensors file of another program"
    return f"{len(data)} bytes in an unknown format" if data else "no bytes"


def _parse_header(header: bytes) -> tuple[Metadata, Layout]:
    try:
        entries = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"the header is not JSON: {error}") from error
    metadata = entries.pop("__metadata__")
    if not (
        isinstance(metadata, dict) and all(isinstance(word, str) for word in metadata.values())
    ):
        raise FormatError("found metadata that are not text, expected text values only")
    return metadata, [_parse_entry(name, entry) for name, entry in entries.items()]


def _parse_entry(name: str, entry: Any) -> tuple[str, str, tuple[int, ...]]:
    kind, shape = (entry.get("dtype"), entry.get("shape")) if isinstance(entry, dict) else (0, 0)
    if not (isinstance(kind, str) and kind in DTYPES):
        raise FormatError(f"found array {name!r} of type {kind!r}, expected one of {list(DTYPES)}")
    if not (isinstance(shape, list) and 1 <= len(shape) <= 2 and all(map(_is_size, shape))):
        raise FormatError(f"found array {name!r} of shape {shape!r}, expected one or two sizes")
    return name, kind, tuple(shape)


def _is_size(size: Any) -> bool:
    return type(size) is int and 0 <= size < 2**40


def _read_arrays(data: bytes, start: int, layout: Layout) -> Tensors:
    tensors: Tensors = {}
    for name, kind, shape in layout:
        flat: NDArray[Any] = np.frombuffer(data, DTYPES[kind], prod(shape), start)
        tensors[name] = flat.reshape(shape)
        start += flat.nbytes
    return tensors


def projection_to_text(projection: Projection) -> str:
    """Return the settings of a projection as JSON, from which it can be built again."""
    p = projection
    sizes = {"n_inputs": int(p.n_inputs), "n_hidden": int(p.n_hidden), "seed": int(p.seed)}
    width = float(cast(float, p.width))  # a projection has chosen it when it was built
    ranges = {"low": p.low, "high": p.high, "width": width, "grid_bits": int(p.grid_bits)}
    every = {**sizes, "activation": p.activation, **ranges, "names": p.names}
    return json.dumps(every, separators=(",", ":"))


def projection_from_text(
    text: str, fingerprint: str, limit: int, known: Projection | None
) -> Projection:
    """Return the projection with these settings: `known` if it has them, else a new one."""
    try:
        same = known is not None and projection_to_text(known) == text
        projection = known if known and same else _build_projection(json.loads(text), limit)
        expected = projection.fingerprint
    except (EdgemergeError, ValueError, TypeError, RecursionError) as error:
        raise FormatError(f"found invalid projection settings: {error}") from error
    if fingerprint != expected:
        raise FormatError(
            f"found fingerprint {fingerprint[:64]!r}, expected {expected} by the settings: "
            "the sender has different weights, so its sums cannot be used here"
        )
    return projection


def _build_projection(settings: Any, limit: int) -> Projection:
    _check_json_types(settings, limit)
    with np.errstate(all="ignore"):  # values that are not finite are refused below, by name
        return Projection(**settings)


def _check_json_types(settings: Any, limit: int) -> None:
    if not isinstance(settings, dict):
        raise FormatError("found no settings, expected a JSON object")
    for name in ("n_inputs", "n_hidden", "seed", "grid_bits"):
        if type(settings.get(name)) is not int:
            raise FormatError(f"found {name}={settings.get(name)!r}, expected a whole number")
    for name, kinds in {"low": float, "high": float, "width": float, "names": str}.items():
        value = settings.get(name)
        values = value if isinstance(value, list) else [value]
        if not (all(type(v) is kinds for v in values) or (name == "names" and value is None)):
            raise FormatError(f"found {name} of the wrong type, expected {kinds.__name__}")
    if settings["n_inputs"] * settings["n_hidden"] * 8 > limit:
        raise FormatError(f"its weights alone need more than {limit} bytes: raise `limit`")


Array = NDArray[np.float64]
SumArrays = tuple[Array, Array, Array, Array]  # U, V, C, S


def to_tensors(stats: Stats, form: str) -> Tensors:
    """Return sums as the arrays of a form."""
    if form not in FORM_TOLERANCES:
        raise SettingError(f"found form {form!r}, expected one of {list(FORM_TOLERANCES)}")
    must_be_on_grid(stats.arrays, stats.projection.quantum)
    if not np.array_equal(stats.U, stats.U.T):
        raise FormatError("U is not symmetric: these sums were not made by Stats")
    if form == "root16":
        tensors = _to_root(stats)
        must_be_on_grid(
            from_tensors(tensors, form, stats.projection.quantum), stats.projection.quantum
        )
        return tensors
    U, V, C, S = stats.arrays
    plain = {"U": pack_triangle(U), "V": V, "C": C, "S": S}
    kind: type = np.float64 if form == "exact" else np.float32
    largest = np.nextafter(kind(exact_limit(stats.projection.quantum)), kind(0.0))
    # adding 0 turns −0 into 0, so that equal sums are equal bytes
    return {name: np.clip((a + 0.0).astype(kind), -largest, largest) for name, a in plain.items()}


def form_layout(form: str, N: int, m: int) -> Layout:
    """Return the arrays that a form has for N hidden values and m outputs."""
    triangle = N * (N + 1) // 2
    if form == "root16":
        floats = [("E", "F32", (m,)), ("C", "F32", (m,))]
        halves = [("R", "F16", (triangle,)), ("Z", "F16", (N, m))]
        return [*floats, *halves, ("r", "I8", (N,)), ("z", "I8", (m,))]
    kind = "F64" if form == "exact" else "F32"
    shapes = {"U": (triangle,), "V": (N, m), "C": (m,), "S": (m,)}
    return [(name, kind, shape) for name, shape in shapes.items()]


def from_tensors(tensors: Tensors, form: str, quantum: float) -> SumArrays:
    """Return the sums in the arrays of a form, as float64 on the grid."""
    if not all(np.isfinite(array).all() for array in tensors.values()):
        raise FormatError("found NaN or infinity, expected finite numbers")
    if form == "root16":
        return _from_root(tensors, quantum)
    U, V, C, S = (np.array(tensors[name], np.float64) for name in "UVCS")
    return unpack_triangle(U, len(V)), V, C, S


def must_be_on_grid(sums: SumArrays, quantum: float) -> None:
    """Refuse sums that are not finite, too large, or off the grid."""
    for name, array in zip("UVCS", sums, strict=True):
        if not np.all(np.abs(array) < exact_limit(quantum)):  # also false for NaN
            raise FormatError(f"an entry of {name} is NaN or not below {exact_limit(quantum):.3g}")
        quanta = array * (1.0 / quantum)  # exact: the quantum is a power of two
        if (quanta != np.rint(quanta)).any():
            raise FormatError(f"an entry of {name} is off the grid of {quantum:g}")


def pack_triangle(U: Array) -> Array:
    """Return the upper triangle, row by row."""
    return np.asarray(U[_upper(len(U))])


def unpack_triangle(packed: Array, N: int) -> Array:
    """Return the symmetric matrix with this upper triangle."""
    U = np.zeros((N, N))
    U[_upper(N)] = packed
    U.T[_upper(N)] = packed
    return U


def _upper(N: int) -> NDArray[np.bool_]:
    return np.tri(N, dtype=np.bool_).T


def _to_root(stats: Stats) -> Tensors:
    L, Z = _smallest_lift(stats)
    E = np.maximum(stats.S - np.einsum("ij,ij->j", Z, Z), 0.0)
    (R, r), (Z, z) = _scale_columns(L.T), _scale_columns(Z)
    halves = {"R": pack_triangle(R).astype(np.float16), "Z": Z.astype(np.float16), "r": r, "z": z}
    return {"E": E.astype(np.float32), "C": (stats.C + 0.0).astype(np.float32), **halves}


def _smallest_lift(stats: Stats) -> tuple[Array, Array]:
    # sums of whole samples need no lift beyond float64's rounding; after forgetting they need the
    # grid's, or Z would explain more than S
    scale, size, most = np.abs(stats.U.diagonal()), len(stats.U) + 1, Rounding.of(stats).slack
    for slack in (0.0, stats.projection.quantum, most):
        L = cholesky_within_rounding(stats.U, scale, size, slack, 0.0)
        Z = None if L is None else solve_lower(L, stats.V)
        if L is not None and Z is not None:
            room = size * (slack + 4.0 * (size + 1) * UNIT_ROUNDOFF * np.abs(stats.S))
            if np.all(np.einsum("ij,ij->j", Z, Z) <= stats.S + room):
                return L, Z
    raise SolveError("U is indefinite: only sums of samples have a square root; send them exact")


def _scale_columns(M: Array) -> tuple[Array, NDArray[np.int8]]:
    exponents = np.frexp(np.sqrt(np.einsum("ij,ij->j", M, M)))[1]
    return np.ldexp(M, -exponents) + 0.0, exponents.astype(np.int8)


def _from_root(tensors: Tensors, quantum: float) -> SumArrays:
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


MAX_BYTES = 2**26  # bytes
HEADER_KEYS = ("kind", "form", "fingerprint", "projection")


@dataclass(frozen=True)
class Payload:
    """The content of one message or file; `parts` are sums by name, all of one projection."""

    kind: str
    projection: Projection
    metadata: Metadata = field(default_factory=dict)
    parts: dict[str, Stats] = field(default_factory=dict)
    form: str = "exact"


def pack_payload(payload: Payload) -> bytes:
    """Return a payload as bytes; equal payloads give equal bytes."""
    tensors: Tensors = {}
    for name, stats in payload.parts.items():
        payload.projection.must_equal(stats.projection)
        parts = to_tensors(stats, payload.form)
        tensors |= {name + key: array for key, array in parts.items()}
    return pack(_payload_metadata(payload), tensors)


def unpack_payload(
    data: bytes, *, limit: int = MAX_BYTES, projection: Projection | None = None
) -> Payload:
    """Return the payload of some bytes; see `payload_of`."""
    return payload_of(*read_container(data, limit), limit, projection)


def payload_of(
    metadata: Metadata, tensors: Tensors, limit: int, projection: Projection | None = None
) -> Payload:
    """Return the payload in a container, without the check of `must_be_canonical`.

    Args:
        metadata: The header's metadata.
        tensors: The arrays.
        limit: The most bytes that the weights of the projection may take.
        projection: Used instead of a new one if its settings are those of the metadata.
    """
    if metadata.get("format", "1") != "1":  # not written yet; absent means 1
        raise FormatError(
            f"found format {metadata['format'][:20]}, expected 1: "
            "use the version of edgemerge that wrote it"
        )
    missing = [key for key in HEADER_KEYS if key not in metadata]
    if missing:
        raise FormatError(f"found no {missing} in the header: write it with edgemerge")
    kind, form = metadata["kind"], metadata["form"]
    if form not in FORM_TOLERANCES:
        raise FormatError(f"found form {form!r}, expected one of {list(FORM_TOLERANCES)}")
    shared = projection_from_text(
        metadata["projection"], metadata["fingerprint"], limit, projection
    )
    names = [key.removesuffix("count") for key in metadata if key.endswith("count")]
    parts = {
        name: _read_stats(shared, metadata[name + "count"], tensors, name, form) for name in names
    }
    rest = {
        key: text
        for key, text in metadata.items()
        if key not in HEADER_KEYS and not key.endswith("count")
    }
    return Payload(kind, shared, rest, parts, form)


def must_be_canonical(payload: Payload, data: bytes) -> None:
    """Refuse bytes that differ from those that encoding the decoded value gives.

    Each message or file is checked once, here, after it has been decoded.

    Args:
        payload: The payload of the decoded value, in the form of the bytes.
        data: The bytes that the value was decoded from.
    """
    layout = [
        (name + key, kind, shape)
        for name, stats in payload.parts.items()
        for key, kind, shape in form_layout(payload.form, *stats.V.shape)
    ]
    header = _header_bytes(data)
    must_be_header(header, _payload_metadata(payload), layout)
    # encoding decoded root16 sums may round differently; exact sums differ in −0 only
    if payload.form == "exact":
        numbers = np.frombuffer(data, "<u8", offset=8 + len(header))
        same = not (numbers == 1 << 63).any()
    else:
        same = payload.form == "root16" or pack_payload(payload) == data
    if not same:
        raise FormatError("the bytes are not in their canonical form: found −0, expected 0")


def _payload_metadata(payload: Payload) -> Metadata:
    p = payload.projection
    head = (payload.kind, payload.form, p.fingerprint, projection_to_text(p))
    counts = {f"{name}count": stats.count.hex() for name, stats in payload.parts.items()}
    return {**dict(zip(HEADER_KEYS, head, strict=True)), **payload.metadata, **counts}


def _read_stats(
    projection: Projection, count: str, tensors: Tensors, name: str, form: str
) -> Stats:
    V = tensors.get(name + ("Z" if form == "root16" else "V"))
    m = V.shape[1] if V is not None and V.ndim == 2 else 0
    expected = form_layout(form, projection.n_hidden, m)
    mine = {key: tensors.get(name + key) for key, _, _ in expected}
    found = {key: array for key, array in mine.items() if array is not None}
    if m < 1 or layout_of(found) != expected:
        raise FormatError(
            f"found arrays {layout_of(found)} for {name + 'count'!r}, "
            f"expected {expected} with m ≥ 1"
        )
    sums = from_tensors(found, form, projection.quantum)
    must_be_on_grid(sums, projection.quantum)
    return Stats(projection, *sums, _read_count(count, projection.quantum))


def _read_count(text: str, quantum: float) -> float:
    try:
        count = float.fromhex(text)
    except (ValueError, OverflowError) as error:
        raise FormatError(f"found count {text[:40]!r}, expected a number in hexadecimal") from error
    if not 0.0 <= count < 2.0**53 or count % quantum:
        raise FormatError(f"found count {count:g}, expected 0 to 2⁵³ in steps of {quantum:g}")
    return count


def origins_metadata(parts: Iterable[MergedPart | KnownFault]) -> Metadata:
    """Return the origins of each part as metadata."""
    return {
        f"{i}.origins": json.dumps(part.origins, separators=(",", ":"))
        for i, part in enumerate(parts)
    }


def merged_from_metadata(projection: Projection, metadata: Metadata, sums: list[Stats]) -> Merged:
    """Return sums with the origins in the metadata."""
    parts = tuple(
        MergedPart(s, _origins_from_text(metadata.get(f"{i}.origins", "")))
        for i, s in enumerate(sums)
    )
    if any(len(part.stats.C) != projection.n_inputs for part in parts):
        raise FormatError("found sums of another task, expected those of detectors")
    keys = [origin.key for part in parts for origin in part.origins]
    if len(set(keys)) < len(keys):
        raise FormatError("found a contribution in two sums, expected each in one")
    return Merged(projection, parts)


def _origins_from_text(text: str) -> tuple[Origin, ...]:
    try:
        found = tuple(_origin_from_json(entry) for entry in json.loads(text))
    except (EdgemergeError, ValueError, TypeError, RecursionError) as error:
        raise FormatError(f"found origins {text[:80]!r}, expected a list of four each") from error
    if not found or list(found) != sorted(found):
        raise FormatError("found no origins, or unsorted ones, expected them sorted by key")
    return found


def _origin_from_json(entry: Any) -> Origin:
    device, incarnation, pattern, revision = entry
    if not (isinstance(device, str) and isinstance(pattern, str)):
        raise FormatError("found a name that is not text")
    for number in (incarnation, revision):
        if not (type(number) is int and 0 <= number < 2**63):
            raise FormatError("found a bad incarnation or revision, expected 0 to 2⁶³ − 1")
    return Origin(device, incarnation, pattern, revision)


def faults_from_metadata(projection: Projection, metadata: Metadata, sums: list[Stats]) -> Faults:
    """Return known faults with the origins in the metadata."""
    if any(len(stats.C) != projection.n_inputs for stats in sums):
        raise FormatError("found sums of another task, expected those of detectors")
    origins = [_fault_origins(metadata.get(f"{i}.origins", "")) for i in range(len(sums))]
    keys = [origin.key for some in origins for origin in some]
    if len(set(keys)) < len(keys):
        raise FormatError("found a contribution in two faults, expected each in one")
    known = (KnownFault(stats, some) for stats, some in zip(sums, origins, strict=True))
    return Faults(projection, tuple(known))


def _fault_origins(text: str) -> tuple[FaultOrigin, ...]:
    try:
        found = tuple(_fault_origin_from_json(entry) for entry in json.loads(text))
    except (EdgemergeError, ValueError, TypeError, RecursionError) as error:
        raise FormatError(f"found origins {text[:80]!r}, expected a list of five each") from error
    if not found or list(found) != sorted(found, key=lambda origin: origin.key):
        raise FormatError("found no origins, or unsorted ones, expected them sorted by key")
    return found


def _fault_origin_from_json(entry: Any) -> FaultOrigin:
    *origin, first = entry
    if not (first is None or (type(first) is float and isfinite(first))):
        raise FormatError("found a bad time of a fault, expected a number, or null")
    return FaultOrigin(*_origin_from_json(origin), first)


Value = Projection | Stats | Contribution | Merged | Faults


V = TypeVar("V", bound=Value)


def encode(value: Value, form: str = "exact") -> bytes:
    """Return a value as bytes; equal values give equal bytes.

    Args:
        value: A projection, stats, a contribution, or the `Merged` or `Faults` of a pull.
        form: "exact" (default), "float32" (half the bytes) or "root16" (a quarter). The last two
            round the sums: use them for links that cannot carry more. float16 of U itself is not
            offered, since it would make U indefinite.

    >>> shared = Projection(n_inputs=2, n_hidden=3)
    >>> len(encode(Stats.of(shared, [[0.1, 0.2]])))
    696
    """
    kept = value.encoded if isinstance(value, Contribution | Merged | Faults) else None
    if form == "exact" and kept is not None:
        return kept
    return pack_payload(to_payload(value, form))


@overload
def decode(
    data: bytes, kind: None = None, *, limit: int = ..., projection: Projection | None = ...
) -> Value: ...
@overload
def decode(
    data: bytes, kind: type[V], *, limit: int = ..., projection: Projection | None = ...
) -> V: ...
def decode(
    data: bytes,
    kind: type[V] | None = None,
    *,
    limit: int = MAX_BYTES,
    projection: Projection | None = None,
) -> Value | V:
    """Return the value that `encode` wrote.

    Args:
        data: The bytes, from any source: nothing is allocated before the header, the shapes and
            the length agree, and nothing is executed.
        kind: The class that is expected, such as `Contribution`; by default any.
        limit: The most bytes to accept, 64 MiB by default. Raise it for very large projections.
        projection: A projection that exists already. If the bytes have the same, it is used, which
            saves drawing the weights again; None (the default) builds one.

    Raises:
        FormatError: If `encode` would not write these bytes, or they hold another kind.

    >>> shared = Projection(n_inputs=2, n_hidden=3)
    >>> decode(encode(shared), Projection)
    Projection(2 inputs, 3 hidden, tanh, seed 0, 12 bits, 97a88168)
    """
    value, _ = decode_with_form(data, limit=limit, projection=projection)
    found: Value | V = must_be_kind(value, kind)
    return found


def decode_with_form(
    data: bytes, *, limit: int = MAX_BYTES, projection: Projection | None = None
) -> tuple[Value, str]:
    """Return a value and the form that it was written in, which `admit` needs; see `decode`."""
    must_be(data, bytes, "read the file or message as bytes")
    if projection is not None:
        must_be(projection, Projection, "give one that exists already, or leave it out")
    metadata, tensors = read_container(data, limit)
    if (kind := metadata.get("kind")) in SAVED_KINDS:
        raise FormatError(
            f"found a saved {kind}, expected what encode() wrote: load() reads saved files"
        )
    payload = payload_of(metadata, tensors, limit, projection)
    value = from_payload(payload)
    must_be_canonical(to_payload(value, payload.form), data)
    return value, payload.form


def must_be_kind(value: Any, kind: type | None) -> Any:
    """Return the value, or refuse one of another class than was asked for."""
    if kind is not None and not isinstance(kind, type):
        raise KindError(
            f"found kind={kind!r:.60}, expected a class such as Contribution: import it"
        )
    if getattr(kind, "_is_protocol", False):
        raise KindError(f"found kind={kind!r:.60}, expected a class such as Detector or Bank")
    if kind is not None and not isinstance(value, kind):
        raise FormatError(
            f"found a {type(value).__name__}, expected a {kind.__name__}: "
            "read another file, or pass the kind that it holds"
        )
    return value


def form_of(data: bytes, *, limit: int = MAX_BYTES, projection: Projection | None = None) -> str:
    """Return the form that a value was written in, which `admit` needs.

    Args:
        data: The bytes of the value.
        limit: The most bytes to accept, 64 MiB by default.
        projection: A projection that exists already, as for `decode`; None by default.
    """
    return decode_with_form(data, limit=limit, projection=projection)[1]


def to_payload(value: Value, form: str = "exact") -> Payload:
    """Return the payload of a value."""
    if isinstance(value, Projection):
        return Payload("projection", value)
    if isinstance(value, Stats):
        return Payload("stats", value.projection, {}, {"": value}, form)
    if isinstance(value, Contribution):
        metadata, kind = origin_metadata(value), KIND_WORDS[value.kind]
        return Payload(kind, value.stats.projection, metadata, {"": value.stats}, form)
    if isinstance(value, Merged):
        parts = {f"{i}.": part.stats for i, part in enumerate(value.parts)}
        return Payload("told", value.projection, origins_metadata(value.parts), parts, form)
    if isinstance(value, Faults):
        parts = {f"{i}.": fault.stats for i, fault in enumerate(value)}
        return Payload("faults", value.projection, origins_metadata(value), parts, form)
    raise SettingError(
        f"found {type(value).__name__}, expected Projection, Stats, Contribution, Merged or "
        "Faults (save() also takes Detector, Bank, Ledger and Monitor)"
    )


def from_payload(payload: Payload) -> Value:
    """Return the value that a payload describes."""
    names = list(payload.parts)
    if payload.kind == "projection" and not names:
        return payload.projection
    if payload.kind == "stats" and names == [""]:
        return payload.parts[""]
    for kind, word in KIND_WORDS.items():
        if payload.kind == word and names == [""]:
            return contribution_from_metadata(payload.metadata, payload.parts[""], kind)
    if payload.kind in ("told", "faults") and names == [f"{i}." for i in range(len(names))]:
        read = merged_from_metadata if payload.kind == "told" else faults_from_metadata
        return read(payload.projection, payload.metadata, list(payload.parts.values()))
    raise FormatError(
        f"found {payload.kind!r} with {len(names)} sums, expected a projection, stats, "
        "a contribution, merged contributions, a fault or faults"
    )


# What the header calls a contribution. Versions that know no faults refuse the word.
KIND_WORDS: dict[Kind, str] = {"normal": "contribution", "fault": "fault"}


def origin_metadata(contribution: Contribution) -> Metadata:
    """Return the origin of a contribution as metadata."""
    c = contribution
    numbers = {"incarnation": str(c.incarnation), "revision": str(c.revision)}
    first = {} if c.first is None else {"first": float(c.first).hex()}
    return {"device": c.device, "pattern": c.pattern, **numbers, **first}


def contribution_from_metadata(
    metadata: Metadata, stats: Stats, kind: Kind = "normal"
) -> Contribution:
    """Return sums with the origin in the metadata, as a contribution."""
    try:
        first = float.fromhex(metadata["first"]) if "first" in metadata else None
        device, pattern = metadata["device"], metadata["pattern"]
        revision, incarnation = int(metadata["revision"]), int(metadata["incarnation"])
        return Contribution(device, stats, revision, pattern, incarnation, kind, first)
    except KeyError as error:
        raise FormatError(f"found no {error} in the header of a contribution") from error
    except (EdgemergeError, ValueError, OverflowError) as error:
        raise FormatError(f"found a bad origin of a contribution: {error}") from error
