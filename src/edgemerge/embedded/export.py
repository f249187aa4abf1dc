"""Constants of a projection as C, for `edgemerge.h` on a microcontroller."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from edgemerge.core.errors import SettingError
from edgemerge.core.projection import FORMAT, Projection, activation_table
from edgemerge.wire.codec import projection_to_text

HEADER_FILE = "edgemerge.h"
ACTIVATIONS = ("identity", "sigmoid", "tanh", "relu", "cosine")  # in the order of the header
RANK_POINTS = 256  # points of a table between two counts
MAX_INPUTS = MAX_HIDDEN = 65535
MAX_LINE = 96  # characters

Array = NDArray[np.float64]


def header_text() -> str:
    """Return the C99 header, which needs the constants of a projection."""
    return files(__package__).joinpath(HEADER_FILE).read_text(encoding="utf-8")


def to_c(projection: Projection, name: str) -> str:
    """Return the constants of a projection as C source.

    Args:
        projection: The projection that the fleet shares.
        name: A name for the constants, such as "pump": letters, digits and underscores.

    Raises:
        SettingError: The name is not one of C, or the projection is too large for a small device.

    >>> print(to_c(Projection(n_inputs=2, n_hidden=3, activation="relu"), "pump")[:61])
    /* Constants of a projection, written by `edgemerge export`.
    """
    if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        raise SettingError(
            f"found the name {name!r}, expected letters, digits and underscores, as in C"
        )
    p = projection
    if p.n_inputs > MAX_INPUTS or p.n_hidden > MAX_HIDDEN:
        raise SettingError(
            f"found {p.n_inputs} inputs and {p.n_hidden} hidden values, expected "
            f"{MAX_INPUTS} at most"
        )
    bits = p.weight_bits
    numbers = np.concatenate([p.A.ravel(), p.b])
    zeros = np.flatnonzero((numbers == 0.0) & np.signbit(numbers))
    first, rises = _table(p)
    ends = [np.broadcast_to(np.asarray(end), p.n_inputs) for end in (p.low, p.high)]
    words = f"edgemerge {FORMAT} {p.activation} {p.grid_bits} " + "\0".join(p.names or ())
    ranks = np.cumsum(rises)[RANK_POINTS - 1 :: RANK_POINTS]
    parts = [
        "/* Constants of a projection, written by `edgemerge export`.",
        f" * {p}",
        " */",
        f'#include "{HEADER_FILE}"',
        "",
        f"#define {name.upper()}_N {p.n_inputs}",
        f"#define {name.upper()}_HIDDEN {p.n_hidden}",
        "",
        *_array("int32_t", f"{name}_A", _steps(p.A.ravel(), bits)),
        *_array("int32_t", f"{name}_b", _steps(p.b, bits)),
        *_array("uint32_t", f"{name}_negative_zeros", map(str, zeros)),
        *_array("double", f"{name}_gain", _hex(p.grid.gain, p.n_inputs)),
        *_array("double", f"{name}_shift", _hex(p.grid.shift, p.n_inputs)),
        *_array("double", f"{name}_low", _hex(ends[0], p.n_inputs)),
        *_array("double", f"{name}_high", _hex(ends[1], p.n_inputs)),
        *_array("uint8_t", f"{name}_rises", map(str, [*np.packbits(rises, bitorder="little"), 0])),
        *_array("uint32_t", f"{name}_ranks", map(str, [0, *ranks])),
        f"static const em_projection {name}_projection = {{",
        f"    {p.n_inputs}, {p.n_hidden}, {p.grid_bits}, {bits}, "
        f"{ACTIVATIONS.index(p.activation)},",
        f"    {name}_A, {name}_b, {name}_negative_zeros, {len(zeros)},",
        f"    {name}_gain, {name}_shift, {name}_low, {name}_high,",
        f"    {name}_rises, {name}_ranks, {len(rises)}, {first},",
        f"    {p.rule.ridge!r}f, {p.rule.loss_share!r}f,",
        *_string(words.encode() + b"\0", ","),
        f"    {len(words.encode()) + 1},",
        *_string(p.fingerprint.encode(), ","),
        *_string(_escaped(projection_to_text(p)).encode(), ","),
        *_string(_tensors(p).encode(), "};"),
        "",
    ]
    return "\n".join(parts)


def _table(p: Projection) -> tuple[int, NDArray[np.uint8]]:
    """Return the value of a bounded activation at 0, and where it changes by one step from there.

    The header mirrors it: tanh is odd, sigmoid is odd around ½, a quarter of cosine is enough.
    """
    if p.activation in ("identity", "relu"):
        return 0, np.zeros(0, np.uint8)
    table = np.rint(activation_table(p.activation, p.grid_bits) * 2.0**p.grid_bits).astype(np.int64)
    one = 2**p.grid_bits
    if p.activation == "cosine":
        half = len(table) // 2
        part = table[: half // 2 + 1]
        mirrored = np.concatenate([part, -part[-2::-1]])
        mirrored = np.concatenate([mirrored, mirrored[-2:0:-1]])
        changes = -np.diff(part)
    else:
        middle = len(table) // 2
        part = table[middle:]
        flat = int(np.flatnonzero(part != part[-1])[-1]) + 2
        total = one if p.activation == "sigmoid" else 0
        mirrored = np.concatenate([total - part[:0:-1], part])
        part = part[:flat]
        changes = np.diff(part)
    if not np.array_equal(mirrored, table) or not np.isin(changes, (0, 1)).all():
        raise SettingError(
            f"found {p.activation} with {p.grid_bits} bits, whose table is not symmetric here: "
            "take other grid_bits"
        )
    return int(part[0]), changes.astype(np.uint8)


def _steps(numbers: Array, bits: int) -> Iterable[str]:
    return (str(int(each)) for each in np.rint(numbers * 2.0**bits))


def _hex(numbers: Array, count: int) -> Iterable[str]:
    return (float(each).hex() for each in np.broadcast_to(numbers, count))


def _array(kind: str, name: str, numbers: Iterable[str]) -> list[str]:
    """Return the definition of an array, in lines; an empty one has a 0, as C asks for."""
    lines, line = [], "   "
    for each in list(numbers) or ["0"]:
        if len(line) + len(each) + 2 > MAX_LINE:
            lines.append(line)
            line = "   "
        line += f" {each},"
    return [f"static const {kind} {name}[] = {{", *lines, line, "};"]


def _string(text: bytes, end: str) -> list[str]:
    """Return a string of C in pieces; every byte that could be misread is an octal number."""
    plain = [chr(c) if 32 <= c < 127 and chr(c) not in '"\\?' else f"\\{c:03o}" for c in text]
    pieces = ["".join(plain[i : i + 60]) for i in range(0, len(plain), 60)] or [""]
    return [*(f'    "{piece}"' for piece in pieces[:-1]), f'    "{pieces[-1]}"{end}']


def _escaped(text: str) -> str:
    """Return JSON text as it stands inside a JSON string."""
    return json.dumps(text)[1:-1]


def _tensors(p: Projection) -> str:
    """Return the end of a header, behind the count."""
    n, N = p.n_inputs, p.n_hidden
    shapes = {"U": [N * (N + 1) // 2], "V": [N, n], "C": [n], "S": [n]}
    text, end = '"}', 0
    for name, shape in shapes.items():
        start, end = end, end + 8 * int(np.prod(shape))
        sizes = ",".join(map(str, shape))
        text += f',"{name}":{{"dtype":"F64","shape":[{sizes}],"data_offsets":[{start},{end}]}}'
    return text + "}"
