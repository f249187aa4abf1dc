"""The parcel: a projection, named sums and words about them, sealed as bytes and unsealed again.

The projection travels in full, with the fingerprint that it must have when it is built again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgemerge.core.errors import FormatError
from edgemerge.core.forms import from_tensors, layout, must_be_sums, to_tensors
from edgemerge.core.packing import Tensors, Words, layout_of, pack, unpack
from edgemerge.core.projection import Projection
from edgemerge.core.projection_text import agreed, settings_of
from edgemerge.core.rounding import FORMS
from edgemerge.core.stats import Stats

LIMIT = 2**26  # bytes
HEAD = ("kind", "form", "fingerprint", "projection")


@dataclass(frozen=True)
class Parcel:
    """What one message or file holds; `parts` are sums by name, all of one projection."""

    kind: str
    projection: Projection
    words: Words = field(default_factory=dict)
    parts: dict[str, Stats] = field(default_factory=dict)
    form: str = "exact"


def seal(parcel: Parcel) -> bytes:
    """Write a parcel: equal parcels are equal bytes."""
    tensors: Tensors = {}
    for name, stats in parcel.parts.items():
        parcel.projection.must_equal(stats.projection)
        parts = to_tensors(stats, parcel.form)
        tensors |= {name + key: array for key, array in parts.items()}
    return pack(_words(parcel), tensors)


def unseal(data: bytes, *, limit: int = LIMIT, projection: Projection | None = None) -> Parcel:
    """Read a parcel, or refuse it; a `projection` at hand with the same settings is used again."""
    words, tensors = unpack(data, limit)
    missing = [key for key in HEAD if key not in words]
    if missing:
        raise FormatError(f"the header does not say {missing}")
    kind, form = words["kind"], words["form"]
    if form not in FORMS:
        raise FormatError(f"found form {form!r}, expected one of {list(FORMS)}")
    shared = agreed(words["projection"], words["fingerprint"], limit, projection)
    names = [key.removesuffix("count") for key in words if key.endswith("count")]
    parts = {name: _stats(shared, words[name + "count"], tensors, name, form) for name in names}
    rest = {key: words[key] for key in words if key not in HEAD and not key.endswith("count")}
    parcel = Parcel(kind, shared, rest, parts, form)
    _must_be_canonical(parcel, words, tensors, data)
    return parcel


def _words(parcel: Parcel) -> Words:
    p = parcel.projection
    head = (parcel.kind, parcel.form, p.fingerprint, settings_of(p))
    counts = {f"{name}count": stats.count.hex() for name, stats in parcel.parts.items()}
    return {**dict(zip(HEAD, head, strict=True)), **parcel.words, **counts}


def _stats(projection: Projection, count: str, tensors: Tensors, name: str, form: str) -> Stats:
    V = tensors.get(name + ("Z" if form == "root16" else "V"))
    m = V.shape[1] if V is not None and V.ndim == 2 else 0
    expected = layout(form, projection.n_hidden, m)
    mine = {key: tensors.get(name + key) for key, _, _ in expected}
    found = {key: array for key, array in mine.items() if array is not None}
    if m < 1 or layout_of(found) != expected:
        raise FormatError(f"found arrays {layout_of(found)}, expected {expected} with m ≥ 1")
    sums = from_tensors(found, form, projection.quantum)
    must_be_sums(sums, projection.quantum)
    return Stats(projection, *sums, _count(count, projection.quantum))


def _count(text: str, quantum: float) -> float:
    try:
        count = float.fromhex(text)
    except (ValueError, OverflowError) as error:
        raise FormatError(f"found count {text[:40]!r}, expected a number in hexadecimal") from error
    if not 0.0 <= count < 2.0**53 or count % quantum:
        raise FormatError(f"found count {count:g}, expected 0 to 2⁵³ in steps of {quantum:g}")
    return count


def _must_be_canonical(parcel: Parcel, words: Words, tensors: Tensors, data: bytes) -> None:
    shapes = {name: layout(parcel.form, *stats.V.shape) for name, stats in parcel.parts.items()}
    every = [name + key for name, entries in shapes.items() for key, _, _ in entries]
    if list(words.items()) != list(_words(parcel).items()) or list(tensors) != every:
        raise FormatError("the words or arrays of the header are not those that edgemerge writes")
    rounded = _can_round(parcel) and seal(parcel) != data
    if rounded or any(map(_has_minus_zero, tensors.values())):
        raise FormatError("the bytes are not in their canonical form: found −0, expected 0")


def _has_minus_zero(array: NDArray[Any]) -> bool:
    return array.dtype == np.float64 and bool((array.view(np.uint64) == 1 << 63).any())


def _can_round(parcel: Parcel) -> bool:
    return parcel.form == "float32"  # exact has no other bytes; root16 is read as it comes
