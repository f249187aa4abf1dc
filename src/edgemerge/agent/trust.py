"""What a person decided about peers' contributions, for exchanges without a server.

The decisions lie in a file of the state folder, with the sums that were approved; a server keeps
its own. A file that cannot be read approves nothing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgemerge.core.errors import EdgemergeError, SettingError
from edgemerge.core.ledger import Contribution, Key
from edgemerge.core.projection import Projection
from edgemerge.core.similarity import SIMILAR_FACTOR, LevelCheck
from edgemerge.core.trust import Trust, TrustCheck
from edgemerge.files import write_atomically
from edgemerge.wire.codec import Tensors, decode, encode, pack, unpack

DECISIONS_FILE = "agent.trust"
MAX_DECISIONS = 256
MAX_FILE_BYTES = 2**30
MAX_DESCRIBED = 64  # contributions that wait, the largest
MAX_COMMENT_CHARS = 500

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PeerDecision:
    """One decision: "approve" with the contribution as it was, or "dismiss"."""

    key: Key
    decision: str
    at: float
    comment: str = ""
    approved: bytes = b""


class PeerDecisions:
    """The decisions of one agent, in the order in which they were made; the newest counts."""

    def __init__(
        self, folder: Path, trust: Trust, projection: Projection, *, clock: Callable[[], float]
    ) -> None:
        """Read the decisions that are stored.

        Args:
            folder: The agent's state folder.
            trust: The rule of `sync.trust`.
            projection: What all devices share.
            clock: The time of decisions, in Unix seconds.
        """
        self.trust = trust
        self._path, self._projection, self._clock = folder / DECISIONS_FILE, projection, clock
        self._decisions = self._read()
        self._seen: dict[Key, Contribution] = {}  # what waits since the last pull
        self._waiting: list[dict[str, Any]] = []

    def screening(self, own: list[Contribution], level: LevelCheck) -> Screening:
        """Return the rule of one pull: trust first, then levels.

        Args:
            own: What this device would contribute itself.
            level: The check of levels.
        """
        newest = {each.key: each for each in self._decisions}
        approved = {key: self._decode(each) for key, each in newest.items() if each.approved}
        dismissed = [key for key, each in newest.items() if each.decision == "dismiss"]
        trust = TrustCheck(
            self.trust, own, trusted=level.trusted, approved=approved, dismissed=dismissed
        )
        return Screening(trust, level)

    def keep(self, screening: Screening) -> None:
        """Take what waits from the last pull."""
        self._seen, self._waiting = screening.trust.seen, screening.waiting

    def command(self, command: dict[str, Any]) -> str:
        """Carry out a decision about one contribution; return what was done.

        What was seen at the last pull is approved: a later revision must stay similar to it.
        """
        key, decision = _key_of(command), command.get("decision")
        name, comment = "/".join(map(str, key)), command.get("comment", "")
        if not (
            isinstance(comment, str) and len(comment) <= MAX_COMMENT_CHARS and comment.isprintable()
        ):
            raise SettingError('expected "comment": one printable line of at most 500 characters')
        if decision == "undo":
            self._undo(key, name)
            return f"the last decision about {name} is undone"
        if decision not in ("approve", "dismiss"):
            raise SettingError(
                f'found "decision": {decision!r}, expected "approve", "dismiss" or "undo"'
            )
        seen = self._seen.get(key)
        if seen is None:
            waits = ", ".join("/".join(map(str, each)) for each in self._seen) or "nothing"
            raise SettingError(
                f"{name} does not wait; of the last exchange {waits} does: sync first"
            )
        if len(self._decisions) >= MAX_DECISIONS:
            raise SettingError(f"found {MAX_DECISIONS} decisions, expected fewer: undo some first")
        approved = encode(seen) if decision == "approve" else b""
        made = PeerDecision(key, str(decision), self._clock(), comment, approved)
        self._write([*self._decisions, made])
        return f"{name} is {'approved' if approved else 'dismissed'}, from the next exchange on"

    def plain(self) -> list[dict[str, Any]]:
        """Return what waits as plain JSON: why, and what it is like."""
        return self._waiting

    def _undo(self, key: Key, name: str) -> None:
        places = [i for i, each in enumerate(self._decisions) if each.key == key]
        if not places:
            raise SettingError(f"there is no decision about {name}: nothing was undone")
        self._write([each for i, each in enumerate(self._decisions) if i != places[-1]])

    def _decode(self, made: PeerDecision) -> Contribution:
        data = made.approved
        return decode(data, Contribution, limit=len(data), projection=self._projection)

    def _write(self, decisions: list[PeerDecision]) -> None:
        """Store them before they count."""
        plain = [[*each.key, each.decision, each.at, each.comment] for each in decisions]
        tensors: Tensors = {"plain": np.frombuffer(json.dumps(plain).encode(), np.int8)}
        for i, each in enumerate(decisions):
            tensors[f"approved.{i}"] = np.frombuffer(each.approved, np.int8)
        write_atomically(pack({"kind": "trust"}, tensors), self._path)
        self._decisions = decisions

    def _read(self) -> list[PeerDecision]:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return []
        try:
            _, tensors = unpack(data, MAX_FILE_BYTES)
            found = [
                PeerDecision(
                    (device, incarnation, pattern),
                    decision,
                    at,
                    comment,
                    tensors[f"approved.{i}"].tobytes(),
                )
                for i, (device, incarnation, pattern, decision, at, comment) in enumerate(
                    json.loads(tensors["plain"].tobytes())
                )
            ]
            for each in found:
                if each.approved:
                    self._decode(each)
        except (EdgemergeError, KeyError, ValueError, TypeError) as error:
            values = {"file": self._path, "why": error}
            logger.error("decisions about peers cannot be read", extra={"values": values})
            return []
        return found


class Screening:
    """The rule of one pull: what waits for trust is left out, then what does not fit.

    It runs in the thread of the exchange, and so does describing what waits.
    """

    def __init__(self, trust: TrustCheck, level: LevelCheck) -> None:
        """Have checked nothing yet."""
        self.trust, self.level = trust, level
        self.waiting: list[dict[str, Any]] = []

    def __call__(self, contributions: list[Contribution]) -> list[Contribution]:
        """Return those that pass both.

        Args:
            contributions: What others claim to have seen.
        """
        trusted = self.trust(contributions)
        largest = sorted(self.trust.seen.values(), key=lambda each: (-each.samples, each.key))
        self.waiting = [self._plain(each) for each in largest[:MAX_DESCRIBED]]
        return self.level(trusted)

    def _plain(self, one: Contribution) -> dict[str, Any]:
        best = self.trust.nearest(one)
        found = dict(zip(("device", "incarnation", "pattern"), one.key, strict=True))
        found |= {"revision": one.revision, "samples": one.samples}
        found |= {"why": self.trust.waiting[one.key], "nearest": None, "ratio": None}
        if best is not None:
            found |= {"nearest": "/".join(map(str, best[0])), "ratio": float(f"{best[1]:.4g}")}
        return found | {"like_none": best is None or best[1] > SIMILAR_FACTOR}


def _key_of(command: dict[str, Any]) -> Key:
    device, incarnation, pattern = (
        command.get(name) for name in ("device", "incarnation", "pattern")
    )
    if not (isinstance(device, str) and type(incarnation) is int and isinstance(pattern, str)):
        raise SettingError('expected "device", "incarnation" (a number) and "pattern"')
    return device, incarnation, pattern
