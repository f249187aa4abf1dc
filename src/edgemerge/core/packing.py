"""Packing: named arrays and words as safetensors bytes, in one canonical layout.

Eight bytes of header length, a JSON header padded with spaces, then the arrays one after the other.
Nothing is allocated before the header, the shapes and the length of the data agree.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgemerge.core.errors import FormatError

FORMAT = 1
MAX_HEADER = 2**22
TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I8": "|i1"}
NAMES = {np.dtype(code): name for name, code in TYPES.items()}
START = b'{"__metadata__":{"edgemerge":"'
MAGIC = {
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

Words = dict[str, str]
Tensors = dict[str, NDArray[Any]]
Layout = list[tuple[str, str, tuple[int, ...]]]


def pack(words: Mapping[str, str], tensors: Mapping[str, NDArray[Any]]) -> bytes:
    """Write words and arrays; the format number comes before everything else."""
    layout = layout_of(tensors)
    parts = (np.ascontiguousarray(a, TYPES[NAMES[a.dtype]]).tobytes() for a in tensors.values())
    header = _header({"edgemerge": str(FORMAT), **words}, layout)
    if len(header) > MAX_HEADER:
        raise FormatError(f"found a header of {len(header)} bytes, expected at most {MAX_HEADER}")
    return b"".join((len(header).to_bytes(8, "little"), header, *parts))


def unpack(data: bytes, limit: int) -> tuple[Words, Tensors]:
    """Read words and arrays back, or say what is wrong; the arrays are views into the data."""
    if len(data) > limit:
        raise FormatError(f"found {len(data)} bytes, expected at most {limit}: raise `limit`")
    header = _framed(data)
    words, layout = _parsed(header)
    if _header(words, layout) != header:
        raise FormatError("the header is not in its canonical form: write it with edgemerge")
    sizes = [prod(shape) * np.dtype(TYPES[kind]).itemsize for _, kind, shape in layout]
    if 8 + len(header) + sum(sizes) != len(data):
        raise FormatError(
            f"found {len(data)} bytes, expected {8 + len(header) + sum(sizes)} by the header: "
            "the data were cut short or have something behind them"
        )
    del words["edgemerge"]
    return words, _arrays(data, 8 + len(header), layout)


def layout_of(tensors: Mapping[str, NDArray[Any]]) -> Layout:
    """Give name, type and shape of each array."""
    return [(name, NAMES[a.dtype], a.shape) for name, a in tensors.items()]


def _header(words: Mapping[str, str], layout: Layout) -> bytes:
    entries: dict[str, Any] = {"__metadata__": dict(words)}
    end = 0
    for name, kind, shape in layout:
        start, end = end, end + prod(shape) * np.dtype(TYPES[kind]).itemsize
        entries[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)


def _framed(data: bytes) -> bytes:
    length = int.from_bytes(data[:8], "little")
    header = bytes(data[8 : 8 + min(length, MAX_HEADER)])
    if not header.startswith(START):
        raise FormatError(f"found {_guess(data)}, expected the bytes of an edgemerge object")
    number = header[len(START) : len(START) + 20].partition(b'"')[0]
    if number != str(FORMAT).encode():
        raise FormatError(
            f"found format {number.decode('ascii', 'replace')}, expected {FORMAT}: "
            "use the version of edgemerge that wrote it"
        )
    if len(header) != length:
        raise FormatError(f"found {len(data)} bytes, expected a header of {length}: cut short?")
    return header


def _guess(data: bytes) -> str:
    for magic, name in MAGIC.items():
        if data.startswith(magic):
            return name
    if data[8:9] == b"{":
        return "a safetensors file of another program"
    return f"{len(data)} bytes of something else" if data else "nothing"


def _parsed(header: bytes) -> tuple[Words, Layout]:
    try:
        entries = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"the header is not JSON: {error}") from error
    words = entries.pop("__metadata__")
    if not (isinstance(words, dict) and all(isinstance(word, str) for word in words.values())):
        raise FormatError("the words of the header are not all text")
    return words, [_entry(name, entry) for name, entry in entries.items()]


def _entry(name: str, entry: Any) -> tuple[str, str, tuple[int, ...]]:
    kind, shape = (entry.get("dtype"), entry.get("shape")) if isinstance(entry, dict) else (0, 0)
    if not (isinstance(kind, str) and kind in TYPES):
        raise FormatError(f"found array {name!r} of type {kind!r}, expected one of {list(TYPES)}")
    if not (isinstance(shape, list) and 1 <= len(shape) <= 2 and all(map(_is_size, shape))):
        raise FormatError(f"found array {name!r} of shape {shape!r}, expected one or two sizes")
    return name, kind, tuple(shape)


def _is_size(size: Any) -> bool:
    return type(size) is int and 0 <= size < 2**40


def _arrays(data: bytes, start: int, layout: Layout) -> Tensors:
    tensors: Tensors = {}
    for name, kind, shape in layout:
        flat: NDArray[Any] = np.frombuffer(data, TYPES[kind], prod(shape), start)
        tensors[name] = flat.reshape(shape)
        start += flat.nbytes
    return tensors
