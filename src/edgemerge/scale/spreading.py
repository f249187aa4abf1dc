"""Spreading: one device's change goes up the tree, and the news down again, step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple

from edgemerge.core.codec import decode, encode
from edgemerge.core.contribution import Contribution
from edgemerge.core.detector import Detector
from edgemerge.core.stats import Stats
from edgemerge.scale.junction import Junction

LINKS = 6  # up and down between four tiers


class Step(NamedTuple):
    """One step on the way, and how long it took."""

    words: str
    seconds: float


class Answers(NamedTuple):
    """What one place tells those below it: how many answers, how many bytes together."""

    number: int
    length: int

    @classmethod
    def of(cls, told: Mapping[str, bytes]) -> Answers:
        """Count answers."""
        return cls(len(told), sum(map(len, told.values())))


class Path(NamedTuple):
    """A way through the tree, from a site to the top."""

    site: Junction
    region: Junction
    top: Junction


@dataclass(frozen=True)
class Spreading:
    """The steps on the way, what each tier tells, and what the device knows at the end."""

    steps: tuple[Step, ...]
    answers: tuple[Answers, Answers, Answers]  # of the top, of a region, of a site
    known: Stats

    @property
    def seconds(self) -> float:
        """The work of all steps; places on one tier work at the same time."""
        return sum(step.seconds for step in self.steps)

    def reaches_all_s(self, latency_s: float) -> float:
        """Add the links: three up, three down."""
        return self.seconds + LINKS * latency_s


class Laps:
    """Takes the time of one step after the other."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start now."""
        self.steps: list[Step] = []
        self._clock, self._start = clock, clock()

    def end(self, words: str) -> None:
        """End a step, and start the next."""
        now = self._clock()
        self.steps.append(Step(words, now - self._start))
        self._start = now


def spread(
    note: Contribution, path: Path, *, clock: Callable[[], float] = perf_counter
) -> Spreading:
    """Replace a device's contribution: up to the top, and down to every device of its site.

    Each place brings its sum up by the difference (M7), and later tells each of those below it
    everything but its own part; the longest way is that on which the change came.
    """
    laps = Laps(clock)
    data = encode(note)
    laps.end("device writes")
    path.site.hear_change(data)
    data = path.site.share()
    laps.end("site replaces")
    path.region.hear_change(data)
    data = path.region.share()
    laps.end("region replaces")
    path.top.hear_change(data)
    laps.end("top replaces")
    at_top = dict(path.top.tell())
    laps.end(f"top tells {len(at_top)} regions")
    path.region.adopt(at_top[path.region.name])
    at_region = dict(path.region.tell())
    laps.end(f"region tells {len(at_region)} sites")
    path.site.adopt(at_region[path.site.name])
    at_site = dict(path.site.tell())
    laps.end(f"site tells {len(at_site)} devices")
    known = _adopted(note, at_site[note.device])
    laps.end("device adopts and solves")
    answers = (Answers.of(at_top), Answers.of(at_region), Answers.of(at_site))
    return Spreading(tuple(laps.steps), answers, known)


def _adopted(note: Contribution, data: bytes) -> Stats:
    detector = Detector.resume(note.stats)
    detector.adopt(decode(data, projection=note.stats.projection))
    detector.readout  # noqa: B018 (solved, as for the next score)
    return detector.own + detector.others
