"""What an agent must not forget: one value of one moment, as bytes and back.

A checksum comes before everything else, so bytes that were cut short or changed are never taken
for a memory.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgemerge.agent.learning import Learner, learner_of
from edgemerge.core.bank import Bank
from edgemerge.core.codec import decode, encode
from edgemerge.core.contribution import Contribution
from edgemerge.core.detector import Detector
from edgemerge.core.errors import EdgemergeError, FormatError
from edgemerge.core.packing import Tensors, pack, unpack
from edgemerge.core.projection import Projection
from edgemerge.core.state import from_bytes
from edgemerge.core.told import Told
from edgemerge.privacy.gate import Gate

FORMAT = 1
MAGIC = b"edgemerge agent\n"
LIMIT = 2**30  # bytes
REFUSED = "it was refused"
SHUNNED = 8  # refused or undone sums whose digests are kept
PLAIN = ("device", "incarnation", "revision", "index", "alarms", "skipped", "learning")
PARTS = ("position", "features", "threshold", "shunned")


@dataclass
class Memory:
    """Who the agent is, what it has learnt, told and been told, and where it stopped."""

    device: str
    incarnation: int
    learner: Learner
    revision: int = 0  # of the last release
    index: int = 0  # samples judged
    alarms: int = 0
    skipped: int = 0
    learning: bool = True
    position: Any = None  # of the source, behind the last reading
    features: Any = None
    threshold: Any = None
    gate: Gate = field(default_factory=Gate)
    pending: list[bytes] = field(default_factory=list)  # contributions on their way, in order
    told: bytes = b""  # what was adopted last; empty if it came from nobody
    before: bytes | None = None  # what was adopted before that, to be undone to
    shunned: dict[str, str] = field(default_factory=dict)  # why, by the digest of what was told

    @property
    def projection(self) -> Projection:
        """What all devices share."""
        return self.learner.thing.projection

    def read_told(self, data: bytes | None) -> Told:
        """Read what was told; nothing is the empty sum."""
        if not data:
            return Told(self.projection)
        told: Told = decode(data, limit=LIMIT, projection=self.projection)
        return told

    def contributions(self) -> tuple[Contribution, ...]:
        """Read what is on its way."""
        return tuple(decode(d, limit=LIMIT, projection=self.projection) for d in self.pending)

    def shun(self, told: Told, why: str) -> None:
        """Remember not to adopt this very sum, for that reason."""
        self.shunned[digest_of(encode(told))] = why
        self.shunned = dict(list(self.shunned.items())[-SHUNNED:])

    def forget_refusals(self) -> None:
        """Let what was refused be looked at again; what was undone stays so."""
        self.shunned = {k: why for k, why in self.shunned.items() if not why.startswith(REFUSED)}


def digest_of(data: bytes) -> str:
    """Give the digest under which a sum that was told is remembered."""
    return sha256(data).hexdigest()


def memory_to_bytes(memory: Memory) -> bytes:
    """Write everything down."""
    memory.gate.look(memory.learner.census())
    plain = {name: getattr(memory, name) for name in (*PLAIN, *PARTS)}
    plain |= {"format": FORMAT, "gate": memory.gate.state(), "undo": memory.before is not None}
    learner, rows = memory.learner.state()
    tensors: Tensors = {
        "plain": _array(json.dumps(plain).encode()),
        "learner": _array(learner),
        "rows": rows,
        "told": _array(memory.told),
        "before": _array(memory.before or b""),
    }
    tensors |= {f"pending.{i}": _array(data) for i, data in enumerate(memory.pending)}
    payload = pack({"kind": "agent"}, tensors)
    return MAGIC + sha256(payload).digest() + payload


def memory_from_bytes(data: bytes) -> Memory:
    """Read it back; anything but what was written is a FormatError."""
    start = len(MAGIC) + 32
    payload = data[start:]
    if data[:start] != MAGIC + sha256(payload).digest():
        raise FormatError(
            f"found {len(data)} bytes that are not what an agent wrote: cut short or changed"
        )
    try:
        return _memory(*unpack(payload, LIMIT))
    except (EdgemergeError, KeyError, ValueError, TypeError) as error:
        raise FormatError(f"the bytes do not make the memory of an agent: {error!r}") from error


def _memory(words: dict[str, str], tensors: Tensors) -> Memory:
    plain = json.loads(tensors["plain"].tobytes())
    if words.get("kind") != "agent" or plain["format"] != FORMAT:
        raise FormatError(f"found format {plain['format']}, expected {FORMAT}")
    thing = from_bytes(tensors["learner"].tobytes(), limit=LIMIT)
    if not isinstance(thing, Detector | Bank):
        raise FormatError(f"found {type(thing).__name__}, expected a detector or a bank")
    learner = learner_of(thing, tensors["rows"].astype(np.float64))
    memory = Memory(learner=learner, **{name: plain[name] for name in (*PLAIN, *PARTS)})
    memory.gate = Gate.of(plain["gate"], learner.census())
    memory.told = tensors["told"].tobytes()
    memory.before = tensors["before"].tobytes() if plain["undo"] else None
    pending = [name for name in tensors if name.startswith("pending.")]
    memory.pending = [tensors[name].tobytes() for name in pending]
    return memory


def _array(data: bytes) -> NDArray[np.int8]:
    return np.frombuffer(data, np.int8)
