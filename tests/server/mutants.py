"""Contributions as a hostile or broken sender would write them: mutated, but from fixed seeds."""

import json
import random
import struct
from collections.abc import Callable

from edgemerge import Projection, Stats
from edgemerge.core.ledger import Contribution, Merged, MergedPart
from edgemerge.wire.codec import encode
from tests.server.wire import ROWS, SHARED

LIMIT = 2**16
NOTES = [
    Contribution("a", Stats.of(SHARED, ROWS), 1),
    Contribution("b", Stats.of(SHARED, ROWS[:1]), 2**62, "idle, ä", 7),
    Contribution("c", Stats.of(SHARED, [[0.5, -0.5]] * 40), 3),
]
SEEDS = [
    *(encode(note, form) for note in NOTES for form in ("exact", "float32", "root16")),
    encode(SHARED),
    encode(NOTES[0].stats),
    encode(Merged(SHARED, (MergedPart.of(NOTES, SHARED),))),
    encode(Contribution("a", Stats.of(Projection(n_inputs=2, n_hidden=3), ROWS), 1)),
]
FLOATS = [
    *(float("nan"), float("inf"), -float("inf"), -0.0, 5e-324, 1e308, -1e308, 2.0**53, -1.0),
    *(2.0**-24, 2.0**-25, 1.0, 0.1, 2.0**29, 2.0**28),
]
ODD = [
    *(None, True, -1, 0, 1, 2**31, 2**40, 2**63, 2**64, 10**400, 1.5, 1e308, float("nan"), "", "x"),
    *([], {}, [[]], "\ud800", "\0", "é", "../../etc", "0x1p+3", "nan", "-0x1p+0", "0x1p+5000"),
    *("root16", "float32", "exact", "contribution", "told", "stats", "projection", "a" * 5000),
    *("1", "-1", "01", "١", "1_0", " 1", "+1", str(2**63), "9" * 5000),
]

Mutation = Callable[[random.Random, bytes], bytes]


def parts(data: bytes) -> tuple[bytes, bytes]:
    """Give the header and what comes behind it."""
    end = 8 + min(int.from_bytes(data[:8], "little"), len(data))
    return data[8:end], data[end:]


def joined(header: bytes, body: bytes) -> bytes:
    """Put a header before its body, with its length."""
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + body


def written(entries: object) -> bytes:
    """Write a header as edgemerge would."""
    return json.dumps(entries, separators=(",", ":")).encode()


def bits(rng: random.Random, data: bytes) -> bytes:
    """Turn some bits over."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut(rng: random.Random, data: bytes) -> bytes:
    """Cut it short, take a piece out, or put something behind it."""
    start = rng.randrange(len(data))
    piece = data[start : start + rng.choice((1, 8, 16, 64))]
    return rng.choice((data[:start], data[:start] + data[start + len(piece) :], data + piece))


def splice(rng: random.Random, data: bytes) -> bytes:
    """Go on as another one does, or with the header of one and the body of another."""
    other = rng.choice(SEEDS)
    if rng.random() < 0.5:
        return joined(parts(data)[0], parts(other)[1])
    here, there = rng.randrange(len(data)), rng.randrange(len(other))
    return data[:here] + other[there:]


def repeat(rng: random.Random, data: bytes) -> bytes:
    """Repeat a piece, or fill one with a single byte."""
    start, size = rng.randrange(len(data)), rng.choice((1, 8, 32, 256))
    piece = data[start : start + size]
    filled = bytes([rng.choice((0, 1, 0x20, 0x7F, 0x80, 0xFF))]) * len(piece)
    return data[:start] + rng.choice((piece * 3, filled)) + data[start + len(piece) :]


def numbers(rng: random.Random, data: bytes) -> bytes:
    """Put other numbers into the sums, or let them change places."""
    header, body = parts(data)
    words = [body[i : i + 8] for i in range(0, len(body), 8)] or [b""]
    for _ in range(rng.choice((1, 1, 3))):
        i, j = rng.randrange(len(words)), rng.randrange(len(words))
        near = struct.unpack("<d", words[i])[0] if len(words[i]) == 8 else 0.0
        value = rng.choice((*FLOATS, -near, near * 2.0, near + 2.0**-24, near + 1.0))
        new = rng.choice((struct.pack("<d", value), struct.pack("<f", _narrow(value)) * 2))
        words[i], words[j] = words[j], rng.choice((words[i], new))
    return joined(header, b"".join(words))


def _narrow(value: float) -> float:
    return value if not 3e38 < abs(value) < float("inf") else 3e38


def header(rng: random.Random, data: bytes) -> bytes:
    """Edit the header: entries and words go, change, change places or come in addition."""
    text, body = parts(data)
    entries = json.loads(text)
    for _ in range(rng.choice((1, 1, 2))):
        target = rng.choice((entries, *(v for v in entries.values() if isinstance(v, dict))))
        _edit(rng, target)
    return joined(written(entries), body)


def settings(rng: random.Random, data: bytes) -> bytes:
    """Edit the settings of the projection."""
    text, body = parts(data)
    entries = json.loads(text)
    found = json.loads(entries["__metadata__"]["projection"])
    _edit(rng, found)
    entries["__metadata__"]["projection"] = written(found).decode()
    return joined(written(entries), body)


def _edit(rng: random.Random, target: dict) -> None:
    keys = list(target) or [""]
    one, two = rng.choice(keys), rng.choice(keys)
    odd = rng.choice((*ODD, [rng.choice(ODD)], [3, rng.choice(ODD)], {"shape": rng.choice(ODD)}))
    action = rng.randrange(5)
    if action == 0:
        target.pop(one, None)
    elif action == 1 and target:
        target[one], target[two] = target[two], target[one]
    elif action == 2:
        target[rng.choice(("count", "0.count", "U", "edgemerge", "x", "0.origins"))] = odd
    else:
        target[one] = odd


def text(rng: random.Random, data: bytes) -> bytes:
    """Edit the header as text: keys twice, endless nesting, other spellings, a wrong length."""
    head, body = parts(data)
    deep = rng.choice((10, 1000, 20_000))
    changed = rng.choice(
        (
            head.rstrip()[:-1] + b',"U":' + b"[" * deep + b"]" * deep + b"}",
            head.replace(b'"kind"', b'"kind":"stats","kind"', 1),
            head.replace(b"{", b'{"U":{"dtype":"F64","shape":[6],"data_offsets":[0,48]},', 1),
            head.rstrip()[:-1] + b',"__metadata__":' + rng.choice((b"{}", b"5", b"null")) + b"}",
            head.replace(b":", b": ", 1),
            head.replace(b"[6]", rng.choice((b"[-6]", b"[6,0]", b"[1e2]", b"[%d]" % 2**45)), 1),
            head.replace(b"F64", rng.choice((b"F16", b"I64", b"BF16", b"")), rng.choice((1, 4))),
            head.replace(b"e", b"\\u0065", 1),
            head + b" " * 8,
            head.replace(b'"1"', rng.choice((b'"2"', b"1", b'"1 "', b'"\xff"')), 1),
        )
    )
    if rng.random() < 0.2:
        length = rng.choice((0, 1, len(head) + 8, 2**22, 2**32, 2**63, 2**64 - 1))
        return length.to_bytes(8, "little") + changed + body
    return joined(changed, body)


MUTATIONS: tuple[Mutation, ...] = (bits, cut, splice, repeat, numbers, header, settings, text)


def mutant(seed: int) -> bytes:
    """Give the mutant of this number."""
    rng = random.Random(seed)
    data = rng.choice(SEEDS)
    for _ in range(rng.choice((1, 1, 1, 2))):
        try:
            changed = rng.choice(MUTATIONS)(rng, data)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue  # what was done to it before left no header that could be edited
        data = changed or data
    return data
