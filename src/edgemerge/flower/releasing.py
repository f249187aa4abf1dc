"""Releasing: which revision leaves a device, and whether enough is new for it to leave.

The same sums leave under the same revision, so that a repeat is one. Others leave under a higher
one: the time in milliseconds, so that it rises even if what was remembered is lost.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from edgemerge.core.contribution import Contribution
from edgemerge.core.errors import FormatError
from edgemerge.files import write

MS = 1000  # in a second


@dataclass(frozen=True)
class Release:
    """What left a device last: enough to know whether something new leaves."""

    revision: int = 0
    digest: str = ""
    count: float = 0.0

    def next(self, notes: Iterable[Contribution], now: float) -> Release:
        """Give the release of these contributions, which is this one if they are the same."""
        notes = list(notes)
        marks = (f"{note.key} {note.stats.digest}\n".encode() for note in notes)
        digest = sha256(b"".join(marks)).hexdigest()
        if digest == self.digest:
            return self
        revision = max(self.revision + 1, int(now * MS))
        return Release(revision, digest, sum(note.stats.count for note in notes))

    def held_back(self, last: Release, least: float) -> str:
        """Say why it may not leave: too few samples tell it from the last; "" if it may."""
        fresh = self.count - last.count
        if self == last or not self.count or fresh >= least:
            return ""
        return f"{fresh:g} of {least:g} samples since its last release: single ones would show"


class Memory(Protocol):
    """Where a device keeps what left it last."""

    def recall(self) -> Release:
        """Give the last release; the empty one if there was none."""
        ...

    def remember(self, release: Release) -> None:
        """Keep a release, before it leaves."""
        ...


class Beside:
    """Keeps it in a file beside the state, so that it survives restarts."""

    def __init__(self, state: Path) -> None:
        """Keep it under the name of the state with `.release` behind."""
        self._path = state.with_name(f"{state.name}.release")

    def recall(self) -> Release:
        """Read the file, if it is there."""
        try:
            plain = json.loads(self._path.read_text(encoding="utf-8"))
            found = Release(int(plain["revision"]), str(plain["digest"]), float(plain["count"]))
        except FileNotFoundError:
            return Release()
        except (ValueError, TypeError, KeyError) as error:
            raise FormatError(
                f"{self._path}: found no release ({error!r}): remove it, and the next is a new one"
            ) from error
        return found

    def remember(self, release: Release) -> None:
        """Write the file, atomically."""
        write(json.dumps(asdict(release)).encode(), self._path)
