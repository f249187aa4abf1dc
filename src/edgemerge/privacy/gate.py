"""The release gate: a pattern is released again only after enough new samples.

Two releases of a pattern reveal their difference, and samples can be recovered from the sums of a
few of them. So a release must cover enough fresh samples: those learnt since the last one. When
patterns split or join, samples move between them. Fresh samples then count from the move, and all
patterns that changed are released together; otherwise samples would be counted twice. If none of a
pattern's samples was ever released, all of them are fresh.

Enough is 16 times N, so that members of a release are hard to recognise by their loss, and so many
that the sums have fewer numbers than the samples: else the samples are the solution of equations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import Any

from edgemerge.core.projection import Projection

DEFAULT_GATE = 16.0  # samples for each hidden value
SAMPLES_PER_NUMBER = 48  # of a total, so that members are recognised hardly better than by chance


def count_numbers(projection: Projection) -> int:
    """Return how many numbers the sums U, V, C and S of an autoencoder have.

    Args:
        projection: The projection of the sums; U is symmetric, so one triangle of it counts.

    >>> count_numbers(Projection(n_inputs=3, n_hidden=16))
    190
    """
    N, n = projection.n_hidden, projection.n_inputs
    return N * (N + 1) // 2 + N * n + 2 * n


def min_unsolvable(projection: Projection) -> int:
    """Return the fewest samples with more unknown numbers than the sums U, V, C and S have.

    k samples of n inputs are k·n unknowns; the sums are N(N+1)/2 + N·n + 2n equations.

    Args:
        projection: What all devices share.

    >>> min_unsolvable(Projection(n_inputs=3, n_hidden=16))
    64
    """
    return count_numbers(projection) // projection.n_inputs + 1


def min_fresh_samples(projection: Projection, gate: float | None = None) -> float:
    """Return the fresh samples that a release must cover.

    Args:
        projection: What all devices share.
        gate: So many times N instead, chosen by a person who knows what that reveals; None (the
            default): 16 times N, and more than can be solved for.

    >>> min_fresh_samples(Projection(n_inputs=8, n_hidden=16))
    256.0
    >>> min_fresh_samples(Projection(n_inputs=3, n_hidden=128))
    2883
    """
    if gate is not None:
        return gate * projection.n_hidden
    return max(DEFAULT_GATE * projection.n_hidden, min_unsolvable(projection))


def min_cohort(projection: Projection, gate: float | None = None) -> int:
    """Return the fewest devices whose total hides whether a given sample is in it.

    Each number of a total tells a little about each sample in it, 1/samples of what it would tell
    of one alone. With 48 samples for each number an attacker who knows the distribution of the
    samples recognises members with a ROC-AUC of at most 0.55 (`docs/results/sharing.csv`).

    Args:
        projection: What all devices share.
        gate: The gate of the devices; see `min_fresh_samples`.

    >>> min_cohort(Projection(n_inputs=4, n_hidden=16))
    39
    >>> min_cohort(Projection(n_inputs=561, n_hidden=64))
    1834
    """
    samples = SAMPLES_PER_NUMBER * count_numbers(projection)
    return max(3, ceil(samples / max(min_fresh_samples(projection, gate), 1.0)))


@dataclass(frozen=True, eq=False)
class PatternSamples:
    """The samples of a pattern now.

    Args:
        life: Stays the same object until the pattern splits or joins.
        learnt: The samples learnt in this life.
        count: The samples in its sums; forgotten ones count less.
    """

    life: object
    learnt: int
    count: float


@dataclass(frozen=True)
class ReleaseTrack:
    """What the gate records of a pattern.

    Args:
        fresh: The samples learnt since its last release, or since samples moved.
        count: The samples in its sums; forgotten ones count less.
        moved: Whether it may hold samples that another pattern released.
        released: Whether it was released, so that the exchange has a contribution of its name.
    """

    fresh: int = 0
    count: float = 0.0
    moved: bool = False
    released: bool = False

    @property
    def covered(self) -> int:
        """The fresh samples that a release would cover; forgotten ones count less."""
        return min(self.fresh, int(self.count))

    @property
    def clean(self) -> bool:
        """Whether none of its samples was ever released."""
        return not (self.moved or self.released)


Seen, Track = PatternSamples, ReleaseTrack  # their former names, in old pickles


@dataclass(frozen=True)
class Decision:
    """What to release now.

    Args:
        released: The patterns to release.
        withdrawn: Patterns that no longer exist, whose contributions to withdraw with them.
        held: The patterns that are held back, each with the reason.
    """

    released: tuple[str, ...] = ()
    withdrawn: tuple[str, ...] = ()
    held: tuple[str, ...] = ()


class Gate:
    """Decides which patterns may be released; `state` and `Gate.of` save and restore it.

    >>> gate = Gate()
    >>> gate.look({"normal": PatternSamples("a", 100, 100.0)})
    >>> gate.decide(128).held
    ('normal: 100 of 128 samples',)
    >>> gate.look({"normal": PatternSamples("a", 128, 128.0)})
    >>> gate.decide(128).released
    ('normal',)
    """

    def __init__(self) -> None:
        """Start without patterns."""
        self.tracks: dict[str, ReleaseTrack] = {}
        self.gone: set[str] = set()  # released once, and no longer a pattern
        self._last: dict[str, PatternSamples] = {}

    @classmethod
    def of(cls, state: Mapping[str, Any], patterns: Mapping[str, PatternSamples]) -> Gate:
        """Return the gate that `state` saved.

        Args:
            state: What `state` returned.
            patterns: The patterns as they were then, by name.
        """
        gate = cls()
        gate.tracks = {name: ReleaseTrack(*entry) for name, entry in state["tracks"].items()}
        gate.gone = set(state["gone"])
        gate._last = {name: patterns[name] for name in gate.tracks}
        return gate

    def state(self) -> dict[str, Any]:
        """Return all that must be saved, as plain JSON."""
        entries = {n: [t.fresh, t.count, t.moved, t.released] for n, t in self.tracks.items()}
        return {"tracks": entries, "gone": sorted(self.gone)}

    def look(self, patterns: Mapping[str, PatternSamples]) -> None:
        """Update the tracks with the patterns as they are now.

        Args:
            patterns: All patterns with samples of this device, by name.
        """
        new = {
            name
            for name, seen in patterns.items()
            if name not in self.tracks or self._last[name].life is not seen.life
        }
        ended = {name for name in self.tracks if name in new or name not in patterns}
        moving = any(not self.tracks[name].clean for name in ended)
        self.gone |= {n for n in ended if n not in patterns and self.tracks[n].released}
        self.tracks = {
            name: self._new_track(name, seen, moving)
            if name in new
            else self._updated_track(name, seen)
            for name, seen in patterns.items()
        }
        self.gone -= set(patterns)
        self._last = dict(patterns)

    def decide(self, least: float, most: float = inf) -> Decision:
        """Return what may be released now.

        Args:
            least: The fresh samples that each release must cover.
            most: The patterns that the exchange may have; unlimited unless given. Those that it has
                stay, of new ones the largest come first.
        """
        moved = [name for name, track in self.tracks.items() if track.moved]
        short = [n for n in moved if self.tracks[n].covered < least]
        ready = [
            name
            for name, track in self.tracks.items()
            if (not short if track.moved else track.covered >= max(least, 1))
        ]
        held = [self._reason(name, least, short) for name in self.tracks if name not in ready]
        withdrawn = sorted(self.gone) if ready and not short else []
        there = [name for name, track in self.tracks.items() if track.released]
        room = most - len(there) - (len(self.gone) - len(withdrawn))
        new = sorted((n for n in ready if n not in there), key=lambda n: -self.tracks[n].count)
        left = [name for place, name in enumerate(new) if place >= room]
        held += [
            f"{name}: {most:.0f} patterns are shared, and a fleet takes no more of one device; "
            "lower learner.max_patterns"
            for name in left
        ]
        released = tuple(name for name in ready if name not in left)
        return Decision(released, tuple(withdrawn) if released else (), tuple(filter(None, held)))

    def record_release(self, decision: Decision) -> None:
        """Count fresh samples from this release on; call it once the release is certain.

        Args:
            decision: What `decide` returned.
        """
        for name in decision.released:
            self.tracks[name] = ReleaseTrack(0, self.tracks[name].count, moved=False, released=True)
        self.gone -= set(decision.withdrawn)

    def _updated_track(self, name: str, seen: PatternSamples) -> ReleaseTrack:
        track = self.tracks[name]
        fresh = track.fresh + seen.learnt - self._last[name].learnt
        return replace(track, fresh=fresh, count=seen.count)

    def _new_track(self, name: str, seen: PatternSamples, moving: bool) -> ReleaseTrack:  # noqa: FBT001 - private
        known = name in self.gone or (name in self.tracks and self.tracks[name].released)
        fresh = seen.learnt if moving else int(seen.count)
        return ReleaseTrack(fresh, seen.count, moved=moving or known, released=known)

    def _reason(self, name: str, least: float, short: list[str]) -> str:
        track = self.tracks[name]
        if track.covered < least:
            return f"{name}: {track.covered} of {least:.0f} samples"
        return f"{name}: waits for {', '.join(short)}" if track.moved else ""
