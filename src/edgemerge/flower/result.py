"""The result of a run: who is in the sum, which nodes failed and why; a table and a file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from edgemerge.core.errors import CapacityError
from edgemerge.core.ledger import Ledger
from edgemerge.core.stats import Stats
from edgemerge.files import save, write
from edgemerge.flower.collecting import FAILED, IN, Standing

WELL, RUNNING = "well", "not yet: it goes on, or was ended from outside"
RESULT, TOTAL = "result.json", "total.safetensors"
READABLE = 0o644


@dataclass
class Result:
    """Grows from round to round; the standings are those of all nodes that were asked."""

    ledger: Ledger
    rounds: list[list[Standing]] = field(default_factory=list)
    not_adopted: dict[int, str] = field(default_factory=dict)  # in the last round, by node
    ended: str = RUNNING  # then WELL, or why it ended early

    @property
    def total(self) -> Stats:
        """The exact sum of everything in the ledger."""
        return self.ledger.total()

    @property
    def last(self) -> list[Standing]:
        """The standings of the last round."""
        return self.rounds[-1] if self.rounds else []

    @property
    def failed(self) -> list[Standing]:
        """The nodes that failed in the last round."""
        return [each for each in self.last if each.state == FAILED]

    def took(self, standings: Iterable[Standing]) -> None:
        """Add a round; a device that a node was before is named even if it now says nothing."""
        before = {each.node: each.device for each in self.last if each.device}
        named = (
            replace(each, device=each.device or before.get(each.node, "")) for each in standings
        )
        self.rounds.append(list(named))
        self.not_adopted = {}

    def plain(self) -> dict[str, Any]:
        """Give everything as plain JSON."""
        total = self._sum()
        return {
            "ended": self.ended,
            "projection": self.ledger.projection.fingerprint,
            "digest": None if total is None else total.digest,
            "samples": sum(note.stats.count for note in self.ledger),
            "devices": list(self._devices()),
            "failed": list(map(_plain, self.failed)),
            "not_adopted": {str(node): words for node, words in self.not_adopted.items()},
            "rounds": [list(map(_plain, standings)) for standings in self.rounds],
        }

    def table(self) -> str:
        """Give the last round and the sum as lines for the log."""
        rows = [("NODE", "DEVICE", "STATE", "SAMPLES", "")]
        rows += [
            (str(s.node), s.device or "?", s.state, f"{s.samples:g}", self._words(s))
            for s in self.last
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
        return "\n".join([*lines, self._summary()])

    def write(self, folder: Path) -> None:
        """Write the result into a folder, and the sum if the run ended well; it may be new."""
        folder.mkdir(parents=True, exist_ok=True)
        if self.ended == WELL:
            save(self.total, folder / TOTAL)
        else:
            (folder / TOTAL).unlink(missing_ok=True)
        text = json.dumps(self.plain(), indent=1, ensure_ascii=False)
        write(text.encode(), folder / RESULT, mode=READABLE)

    def _devices(self) -> Iterator[dict[str, Any]]:
        for note in self.ledger:
            words = ("device", "incarnation", "pattern", "revision")
            if note.stats.count:
                yield {word: getattr(note, word) for word in words} | {"samples": note.stats.count}

    def _words(self, standing: Standing) -> str:
        words = [standing.words]
        if standing.state != IN and standing.device in self.ledger.devices:
            words.append("what it gave before stays in the sum")
        if standing.node in self.not_adopted:
            words.append(f"did not adopt: {self.not_adopted[standing.node]}")
        return "; ".join(filter(None, words))

    def _sum(self) -> Stats | None:
        """Give the sum; None if it would not be exact, which `ended` then says."""
        try:
            return self.total
        except CapacityError:
            return None

    def _summary(self) -> str:
        total, devices = self._sum(), sorted({each["device"] for each in self._devices()})
        samples = sum(note.stats.count for note in self.ledger)
        digest = "no exact sum" if total is None else f"digest {total.digest[:16]}"
        names = ", ".join(devices) or "nobody"
        return f"{samples:g} samples of {len(devices)} devices, {digest}: {names}"


def _plain(standing: Standing) -> dict[str, Any]:
    return asdict(standing) | {"node": str(standing.node)}  # too large for some readers of JSON
