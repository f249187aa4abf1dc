"""The release gate: nothing leaves whose difference to what left before covers too few samples.

Whoever sees two releases sees their difference, and from the sums of a few samples the samples
themselves can be recovered. So a pattern is released only after enough fresh samples: those that
it has learnt since its last release. Patterns part and join, and samples move between them; then
fresh counts from the move, and all that changed is released together, or samples would be counted
twice. A pattern whose samples never were in any release is all fresh.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, eq=False)
class PatternSamples:
    """A pattern as its learner has it now; it has the same `life` while samples only enter it."""

    life: object
    learnt: int  # samples, in this life
    count: float  # samples, as they weigh now


@dataclass(frozen=True)
class ReleaseTrack:
    """What the gate remembers of a pattern."""

    fresh: int = 0  # samples since its last release, or since samples moved
    count: float = 0.0
    moved: bool = False  # samples that were released may be in it that were not before
    released: bool = False  # the exchange has something under its name

    @property
    def covered(self) -> int:
        """The samples that a release would cover, forgotten ones for less."""
        return min(self.fresh, int(self.count))

    @property
    def clean(self) -> bool:
        """Whether none of its samples was ever released."""
        return not (self.moved or self.released)


Seen, Track = PatternSamples, ReleaseTrack  # their names in pickles written before 0.2


@dataclass(frozen=True)
class Decision:
    """What may be released now, what is taken back with it, and what is held back and why."""

    released: tuple[str, ...] = ()
    withdrawn: tuple[str, ...] = ()
    held: tuple[str, ...] = ()


class Gate:
    """Follows patterns from release to release; `state` and `Gate.of` let it survive.

    >>> gate = Gate()
    >>> gate.look({"normal": PatternSamples("a", 100, 100.0)})
    >>> gate.decide(128).held
    ('normal: 100 of 128 samples',)
    >>> gate.look({"normal": PatternSamples("a", 128, 128.0)})
    >>> gate.decide(128).released
    ('normal',)
    """

    def __init__(self) -> None:
        """Know no pattern."""
        self.tracks: dict[str, ReleaseTrack] = {}
        self.gone: set[str] = set()  # released once, and no pattern any more
        self._last: dict[str, PatternSamples] = {}

    @classmethod
    def of(cls, state: Mapping[str, Any], patterns: Mapping[str, PatternSamples]) -> Gate:
        """Go on from what `state` gave, with the patterns as they were then."""
        gate = cls()
        gate.tracks = {name: ReleaseTrack(*entry) for name, entry in state["tracks"].items()}
        gate.gone = set(state["gone"])
        gate._last = {name: patterns[name] for name in gate.tracks}
        return gate

    def state(self) -> dict[str, Any]:
        """Give all that must survive, as plain JSON."""
        entries = {n: [t.fresh, t.count, t.moved, t.released] for n, t in self.tracks.items()}
        return {"tracks": entries, "gone": sorted(self.gone)}

    def look(self, patterns: Mapping[str, PatternSamples]) -> None:
        """Take note of what has become of the patterns since the last look."""
        new = {name for name, seen in patterns.items() if not self._goes_on(name, seen)}
        ended = {name for name in self.tracks if name in new or name not in patterns}
        moving = any(not self.tracks[name].clean for name in ended)
        self.gone |= {n for n in ended if n not in patterns and self.tracks[n].released}
        self.tracks = {
            name: self._begun(name, seen, moving) if name in new else self._grown(name, seen)
            for name, seen in patterns.items()
        }
        self.gone -= set(patterns)
        self._last = dict(patterns)

    def decide(self, least: float) -> Decision:
        """Say what may leave when each release has to cover at least so many samples."""
        moved = [name for name, track in self.tracks.items() if track.moved]
        short = [n for n in moved if self.tracks[n].covered < least]
        ready = [
            name
            for name, track in self.tracks.items()
            if (not short if track.moved else track.covered >= max(least, 1))
        ]
        held = [self._words(name, least, short) for name in self.tracks if name not in ready]
        withdrawn = sorted(self.gone) if ready and not short else []
        return Decision(tuple(ready), tuple(withdrawn), tuple(filter(None, held)))

    def record_release(self, decision: Decision) -> None:
        """Count afresh from a release, once it is sure to happen."""
        for name in decision.released:
            self.tracks[name] = ReleaseTrack(0, self.tracks[name].count, moved=False, released=True)
        self.gone -= set(decision.withdrawn)

    def _goes_on(self, name: str, seen: PatternSamples) -> bool:
        return name in self.tracks and self._last[name].life is seen.life

    def _grown(self, name: str, seen: PatternSamples) -> ReleaseTrack:
        track = self.tracks[name]
        fresh = track.fresh + seen.learnt - self._last[name].learnt
        return replace(track, fresh=fresh, count=seen.count)

    def _begun(self, name: str, seen: PatternSamples, moving: bool) -> ReleaseTrack:  # noqa: FBT001 - private
        known = name in self.gone or (name in self.tracks and self.tracks[name].released)
        fresh = seen.learnt if moving else int(seen.count)
        return ReleaseTrack(fresh, seen.count, moved=moving or known, released=known)

    def _words(self, name: str, least: float, short: list[str]) -> str:
        track = self.tracks[name]
        if track.covered < least:
            return f"{name}: {track.covered} of {least:.0f} samples"
        return f"{name}: waits for {', '.join(short)}" if track.moved else ""
