"""Read contributions and agent states from files; commands import it only when used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from edgemerge.agent.state import MAX_STATE_BYTES, STATE_FILE, state_from_bytes
from edgemerge.cli.files import describe
from edgemerge.cli.group import CommandError, ExitCode
from edgemerge.core.errors import EdgemergeError, FormatError, MismatchError, RejectedError
from edgemerge.core.ledger import Contribution, Ledger, Merged, MergedPart
from edgemerge.core.projection import Projection
from edgemerge.core.stats import Stats
from edgemerge.files import MAX_FILE_BYTES, load
from edgemerge.wire.admission import admit
from edgemerge.wire.codec import decode_with_form


class ContributionFiles:
    """The contributions in some files, each once: of two revisions the newer counts."""

    def __init__(self, projection: Projection, without: Collection[str] = ()) -> None:
        """Start with nothing; contributions of the devices in `without` are left out."""
        self.projection, self.without = projection, set(without)
        self.ledger = Ledger(projection)
        self.parts: list[MergedPart] = []
        self.bare_stats: list[Stats] = []

    def take(self, path: Path) -> None:
        """Add a file; errors name it."""
        try:
            value, form = load_with_form(path)
            self._take(value, form)
        except FormatError:  # has the path already
            raise
        except EdgemergeError as error:
            raise type(error)(f"{path}: {error}") from error

    def _take(self, value: Any, form: str) -> None:
        match value:
            case Contribution():
                self._put([value], form)
            case Ledger():
                self._put(value, form)
            case Merged():
                self.projection.must_equal(value.projection)
                self._add_parts(value.parts)
            case Stats():
                self.projection.must_equal(value.projection)
                self.bare_stats.append(value)
            case _:
                raise MismatchError(
                    f"found a {type(value).__name__.lower()}, expected a contribution or ledger: "
                    "`edgemerge share` makes contributions"
                )

    def _put(self, contributions: Iterable[Contribution], form: str) -> None:
        for each in contributions:
            self.projection.must_equal(each.stats.projection)
            admit(each, projection=self.projection, form=form)
            if each.device not in self.without:
                self.ledger.put(each)

    def _add_parts(self, parts: Iterable[MergedPart]) -> None:
        for part in parts:
            mine = self.without & set(part.devices)
            if mine:
                raise RejectedError(
                    f"found a sum that includes {min(mine)}, which cannot be removed from it: "
                    "pull a sum without it"
                )
            self.parts.append(part)

    def check_disjoint(self) -> None:
        """Raise if two sums or files share a contribution."""
        keys = [each.key for each in self.ledger]
        keys += [origin.key for part in self.parts for origin in part.origins]
        twice = {key for key, times in Counter(keys).items() if times > 1}
        if twice:
            device, incarnation, pattern = min(twice)
            raise RejectedError(
                f"found {device}/{pattern}, incarnation {incarnation}, in two files, "
                "expected it once: leave one of them out"
            )

    @property
    def contributions(self) -> list[Contribution]:
        """What a bank adopts: each contribution."""
        return [*self.ledger, *Merged(self.projection, tuple(self.parts)).contributions]

    @property
    def total(self) -> Stats:
        """What a detector adopts: one sum."""
        stats = [each.stats for each in self.ledger] + [part.stats for part in self.parts]
        return Stats.total(self.projection, [*stats, *self.bare_stats])

    @property
    def devices(self) -> list[str]:
        """The devices, sorted."""
        devices = (device for part in self.parts for device in part.devices)
        return sorted({*self.ledger.devices, *devices})


def load_with_form(path: Path) -> tuple[Any, str]:
    """Load a file; return its content and the wire form of its sums."""
    value = load(path)
    if isinstance(value, Contribution):
        return decode_with_form(
            path.read_bytes(), limit=MAX_FILE_BYTES, projection=value.stats.projection
        )
    return value, "exact"


def describe_agent_state(folder: Path) -> dict[str, Any]:
    """Describe the saved agent in a state folder."""
    path = folder / STATE_FILE
    if not path.is_file():
        raise CommandError(
            f"{folder}: found no {STATE_FILE} in it, expected the state folder of an agent",
            ExitCode.NO_DATA,
        )
    with path.open("rb") as file:
        data = file.read(MAX_STATE_BYTES + 1)
    try:
        memory = state_from_bytes(data)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from error
    words = ("device", "incarnation", "revision")
    merged = memory.decode_merged(memory.merged)
    found = {"kind": "agent"} | {word: getattr(memory, word) for word in words}
    found |= {"scored": memory.index, "in_alarm": memory.alarms}
    found |= {"skipped": memory.skipped + memory.skipped_ahead, "pending": len(memory.pending)}
    found["received_from"] = sorted({origin.device for origin in merged.origins})
    found["odd_patterns"] = [
        {"pattern": odd.name, "status": odd.status, "samples": odd.stats.count}
        for odd in memory.monitor.odd_patterns.values()
    ]
    learner = describe(memory.learner)
    return found | {"learner": learner.pop("kind")} | learner
