"""Constants of a projection as C, for `edgemerge.h` on a microcontroller."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from fractions import Fraction
from importlib.resources import files
from typing import cast

import numpy as np
from numpy.typing import NDArray

from edgemerge.core.errors import SettingError
from edgemerge.core.projection import FORMAT, Projection, activation_table, name_key
from edgemerge.wire.codec import projection_to_text

HEADER_FILE = "edgemerge.h"
LINK_FILE = "edgemerge_link.h"
EXAMPLE_FILE = "example.c"
ACTIVATIONS = ("identity", "sigmoid", "tanh", "relu", "cosine")  # in the order of the header
RANK_POINTS = 256  # points of a table between two counts
MAX_INPUTS = MAX_HIDDEN = 65535
MAX_LINE = 96  # characters
# Of an integer map: with readings of 32 bits, products and sums stay below 2⁶³, and exact ones
# below 2⁵³, where Python's are exact as well.
MAX_GAIN, MAX_SHIFT, MAX_MAP_BITS = 2**31 - 1, 2**61, 62
MAX_EXACT_GAIN, MAX_EXACT_SHIFT = 2**21, 2**51

Array = NDArray[np.float64]


def header_text(file: str = HEADER_FILE) -> str:
    """Return a C99 header, which needs the constants of a projection.

    Args:
        file: "edgemerge.h" (the default), or "edgemerge_link.h", which talks to a bridge.
    """
    return files(__package__).joinpath(file).read_text(encoding="utf-8")


def example_text(name: str) -> str:
    """Return a C program that uses the constants of this name.

    Args:
        name: The name that `to_c` was given.
    """
    template = files(__package__).joinpath(EXAMPLE_FILE).read_text(encoding="utf-8")
    return template.replace("pump", name).replace("PUMP", name.upper())


def to_files(projection: Projection, name: str, *, draw: bool = False) -> dict[str, str]:
    """Return all that firmware needs: both headers, the constants, and an example, by file name.

    Args:
        projection: The projection that the fleet shares.
        name: A name for the constants, as for `to_c`.
        draw: Let the device draw the weights, as for `to_c`.
    """
    headers = {file: header_text(file) for file in (HEADER_FILE, LINK_FILE)}
    constants = to_c(projection, name, draw=draw)
    return {**headers, f"{name}.h": constants, f"{name}_example.c": example_text(name)}


def to_c(projection: Projection, name: str, *, draw: bool = False) -> str:
    """Return the constants of a projection as C source.

    Args:
        projection: The projection that the fleet shares.
        name: A name for the constants, such as "pump": letters, digits and underscores.
        draw: Leave the weights out, so that the device draws them into its RAM with `em_draw`.
            By default they are a table, which stays in flash.

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
        *(_drawn(p, name) if draw else _baked(p, name)),
        *_array("double", f"{name}_gain", _hex(p.grid.gain, p.n_inputs)),
        *_array("double", f"{name}_shift", _hex(p.grid.shift, p.n_inputs)),
        *_array("double", f"{name}_low", _hex(ends[0], p.n_inputs)),
        *_array("double", f"{name}_high", _hex(ends[1], p.n_inputs)),
        *_array(
            "uint8_t",
            f"{name}_rises",
            map(str, [*np.packbits(rises, bitorder="little"), 0, 0, 0, 0]),
        ),
        *_array("uint32_t", f"{name}_ranks", map(str, [0, *ranks])),
        *_array("em_integer_map", f"{name}_integers", _integer_maps(p)),
        f"static const em_projection {name}_projection = {{",
        f"    {p.n_inputs}, {p.n_hidden}, {p.grid_bits}, {bits}, "
        f"{ACTIVATIONS.index(p.activation)},",
        f"    {name}_A, {name}_b, "
        + ("NULL, 0," if draw else f"{name}_negative_zeros, {len(_negative_zeros(p))},"),
        f"    {name}_gain, {name}_shift, {name}_low, {name}_high,",
        f"    {name}_rises, {name}_ranks, {len(rises)}, {first},",
        f"    {p.rule.ridge!r}f, {p.rule.loss_share!r}f,",
        *_string(words.encode() + b"\0", ","),
        f"    {len(words.encode()) + 1},",
        *_string(p.fingerprint.encode(), ","),
        *_string(_escaped(projection_to_text(p)).encode(), ","),
        *_string(_tensors(p).encode(), ","),
        f"    {name}_integers, {f'&{name}_source' if draw else 'NULL'}}};",
        "",
    ]
    return "\n".join(parts)


def _baked(p: Projection, name: str) -> list[str]:
    """Return the weights as tables."""
    return [
        *_array("int32_t", f"{name}_A", _steps(p.A.ravel(), p.weight_bits)),
        *_array("int32_t", f"{name}_b", _steps(p.b, p.weight_bits)),
        *_array("uint32_t", f"{name}_negative_zeros", map(str, _negative_zeros(p))),
    ]


def _negative_zeros(p: Projection) -> NDArray[np.intp]:
    numbers = np.concatenate([p.A.ravel(), p.b])
    return np.flatnonzero((numbers == 0.0) & np.signbit(numbers))


def _drawn(p: Projection, name: str) -> list[str]:
    """Return what the weights are drawn from, and memory for them."""
    scale = 2.0**p.weight_bits
    width = cast(float, p.width) * scale
    keys = f"{name}_keys" if p.names else "NULL"
    named = (f"UINT64_C({name_key(each)})" for each in p.names or ())
    return [
        *(_array("uint64_t", keys, named) if p.names else ()),
        f"static int32_t {name}_A[{p.n_inputs * p.n_hidden}], {name}_b[{p.n_hidden}];",
        f"static const em_source {name}_source = {{",
        f"    UINT64_C({p.seed}), {width.hex()}, {((p.rule.period / 2.0 or 1.0) * scale).hex()}, "
        f"{keys}, {name}_A, {name}_b,",
        "};",
    ]


def _integer_maps(p: Projection) -> Iterable[str]:
    """Return for each input how whole numbers become steps of the grid, by integers alone."""
    for pair in zip(
        *(np.broadcast_to(a, p.n_inputs) for a in (p.grid.gain, p.grid.shift)), strict=True
    ):
        gain, shift = map(Fraction, map(float, pair))
        bits = max(gain.denominator, shift.denominator).bit_length() - 1
        exact = (
            bits <= MAX_MAP_BITS
            and abs(gain * 2**bits) <= MAX_EXACT_GAIN
            and abs(shift * 2**bits) <= MAX_EXACT_SHIFT
        )
        if not exact:
            bits = MAX_MAP_BITS
            while bits and (gain * 2**bits > MAX_GAIN or abs(shift * 2**bits) > MAX_SHIFT):
                bits -= 1
        fits = exact or bits > 0
        yield (
            f"{{INT64_C({round(shift * 2**bits)}), {round(gain * 2**bits)}, {bits}, {int(exact)}}}"
            if fits
            else "{0, 0, 0, 0}"
        )


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
