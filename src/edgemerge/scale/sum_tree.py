"""The tree of sums: one node, one site with its devices, and a change on its way up and down.

`own` is the sum of what children sent, `others` what the parent sent. Each child is sent the sum of
both without its own part, so nothing is counted twice on any tier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import count
from time import perf_counter, process_time
from typing import NamedTuple

import numpy as np

from edgemerge.core.detector import Detector
from edgemerge.core.errors import FormatError, UnknownError
from edgemerge.core.ledger import Contribution, Ledger
from edgemerge.core.projection import Projection
from edgemerge.core.stats import Stats
from edgemerge.scale.machine import peak_bytes
from edgemerge.scale.simulated_devices import (
    TRUNCATED,
    WAVES,
    SimulatedFleet,
    arrivals,
    cached_fleet,
    newest_revisions,
)
from edgemerge.scale.simulation_plan import Plan
from edgemerge.wire.admission import admit
from edgemerge.wire.codec import decode, encode


@dataclass
class MessageCounts:
    """Counts messages and their bytes, and what became of them."""

    messages: int = 0
    bytes: int = 0
    kept: int = 0
    late_or_repeated: int = 0
    refused: int = 0

    def heard(self, length: int, *, kept: bool) -> None:
        """Count a message that was taken in, or was known already."""
        self.messages += 1
        self.bytes += length
        self.kept += kept
        self.late_or_repeated += not kept

    def refuse(self, length: int) -> None:
        """Count a message that did not pass the checks."""
        self.messages += 1
        self.bytes += length
        self.refused += 1

    def add(self, other: MessageCounts) -> None:
        """Add another tally to this one."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


class TreeNode:
    """Hears contributions as bytes, tells their sum up, and everything else down.

    Every `check_every`th message gets all checks of `admit`, the first among them.
    """

    def __init__(self, name: str, projection: Projection, *, check_every: int = 1) -> None:
        """Start with nothing heard and nothing told."""
        self.name, self.projection = name, projection
        self.ledger, self.others = Ledger(projection), Stats.empty(projection)
        self.changed = False  # since the sum was last told
        self._own: Stats | None = Stats.empty(projection)
        self._revisions, self._received = count(1), count()
        self._check_every = check_every

    @property
    def own(self) -> Stats:
        """The sum of what those below say; after a wave it is added up afresh."""
        if self._own is None:
            self._own = self.ledger.total()
        return self._own

    def hear(self, data: bytes) -> bool:
        """Take in a message from below; False if it is late or repeated. The sum can wait."""
        return self._keep(self._read(data), None)

    def receive_change(self, data: bytes) -> bool:
        """Take in a message from below, and bring the sum up by the difference alone."""
        note, own = self._read(data), self.own
        for known in self.ledger:
            if known.key == note.key:
                own -= known.stats  # M7
        return self._keep(note, own + note.stats)  # M7

    def share(self) -> bytes:
        """Tell the place above what was heard below."""
        self.changed = False
        return encode(Contribution(self.name, self.own, next(self._revisions)))

    def adopt(self, data: bytes) -> None:
        """Set what the place above tells."""
        self.others = decode(data, Stats, projection=self.projection)

    def tell(self) -> Iterator[tuple[str, bytes]]:
        """Tell each one below everything that is known, without its own part."""
        everything = self.others + self.own
        for note in self.ledger:
            yield note.device, encode(everything - note.stats)  # M7

    def note(self, name: str) -> Contribution:
        """Give what is known of one below."""
        for known in self.ledger:
            if known.device == name:
                return known
        raise UnknownError(f"{self.name} has heard nothing of {name}")

    def drop(self, name: str) -> None:
        """Forget one below, as if it had never been heard."""
        self.ledger.drop(name)
        self._own, self.changed = None, True

    def _read(self, data: bytes) -> Contribution:
        note = decode(data, Contribution, projection=self.projection)
        if next(self._received) % self._check_every == 0:
            admit(note, projection=self.projection)
        return note

    def _keep(self, note: Contribution, own: Stats | None) -> bool:
        kept = self.ledger.put(note)
        if kept:
            self._own, self.changed = own, True
        return kept


@dataclass(frozen=True)
class SiteResult:
    """What a site tells above, one message or two; its devices' messages; what it took."""

    messages: tuple[bytes, ...]
    tally: MessageCounts
    cpu_s: float
    process: int
    peak_bytes: int


def run_site(plan: Plan, site: int) -> SiteResult:
    """Let a site hear its devices, and give what it tells."""
    start = process_time()
    told, tally = collect_site(plan, site)[1:]
    return SiteResult(told, tally, process_time() - start, *peak_bytes())


def collect_site(plan: Plan, site: int) -> tuple[TreeNode, tuple[bytes, ...], MessageCounts]:
    """Let a site hear its devices; give it too, with the newest of each of them in its ledger."""
    fleet, tally, told = cached_fleet(plan), MessageCounts(), []
    junction = TreeNode(site_name(site), plan.projection, check_every=plan.check_every)
    devices = np.array(plan.devices_of(site))
    for wave in WAVES:
        for device, revision in arrivals(plan, devices, wave):
            _receive_or_reject(junction, device_message(fleet, device, revision), tally)
        if junction.changed:
            told.append(junction.share())
    return junction, tuple(told), tally


def device_message(fleet: SimulatedFleet, device: int, revision: int) -> bytes:
    """Give what arrives of a device's message."""
    if revision != TRUNCATED:
        return encode(fleet.contribution(device, revision))
    whole = encode(fleet.contribution(device, 1))
    return whole[: len(whole) // 2]


def flat_sum(plan: Plan, hand: int, hands: int, devices: int) -> Stats:
    """Add up every so many-th of the first devices, from the last one on: no site has those."""
    numbers = np.arange(hand, devices, hands)[::-1]
    return cached_fleet(plan).flat(numbers, newest_revisions(plan, numbers))


def site_name(site: int) -> str:
    """Name a site by its number."""
    return f"site-{site:06}"


def _receive_or_reject(junction: TreeNode, data: bytes, tally: MessageCounts) -> None:
    try:
        tally.heard(len(data), kept=junction.hear(data))
    except FormatError:
        tally.refuse(len(data))


LINKS = 6  # up and down between four tiers


class Step(NamedTuple):
    """One step on the way, and how long it took."""

    words: str
    seconds: float


class Replies(NamedTuple):
    """What one place tells those below it: how many answers, how many bytes together."""

    number: int
    length: int

    @classmethod
    def of(cls, told: Mapping[str, bytes]) -> Replies:
        """Count answers."""
        return cls(len(told), sum(map(len, told.values())))


class TreePath(NamedTuple):
    """A way through the tree, from a site to the top."""

    site: TreeNode
    region: TreeNode
    top: TreeNode


@dataclass(frozen=True)
class Propagation:
    """The steps on the way, what each tier tells, and what the device knows at the end."""

    steps: tuple[Step, ...]
    answers: tuple[Replies, Replies, Replies]  # of the top, of a region, of a site
    known: Stats

    @property
    def seconds(self) -> float:
        """The work of all steps; places on one tier work at the same time."""
        return sum(step.seconds for step in self.steps)

    def reaches_all_s(self, latency_s: float) -> float:
        """Add the links: three up, three down."""
        return self.seconds + LINKS * latency_s


class StepTimer:
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


def propagate(
    note: Contribution, path: TreePath, *, clock: Callable[[], float] = perf_counter
) -> Propagation:
    """Replace a device's contribution: up to the top, and down to every device of its site.

    Each place brings its sum up by the difference (M7), and later tells each of those below it
    everything but its own part; the longest way is that on which the change came.
    """
    laps = StepTimer(clock)
    data = encode(note)
    laps.end("device writes")
    path.site.receive_change(data)
    data = path.site.share()
    laps.end("site replaces")
    path.region.receive_change(data)
    data = path.region.share()
    laps.end("region replaces")
    path.top.receive_change(data)
    laps.end("top replaces")
    at_top = dict(path.top.tell())
    laps.end(f"top tells {len(at_top)} regions")
    path.region.adopt(at_top[path.region.name])
    at_region = dict(path.region.tell())
    laps.end(f"region tells {len(at_region)} sites")
    path.site.adopt(at_region[path.site.name])
    at_site = dict(path.site.tell())
    laps.end(f"site tells {len(at_site)} devices")
    known = _adopt(note, at_site[note.device])
    laps.end("device adopts and solves")
    answers = (Replies.of(at_top), Replies.of(at_region), Replies.of(at_site))
    return Propagation(tuple(laps.steps), answers, known)


def _adopt(note: Contribution, data: bytes) -> Stats:
    detector = Detector.resume(note.stats)
    detector.adopt(decode(data, Stats, projection=note.stats.projection))
    detector.readout  # noqa: B018 (solved, as for the next score)
    return detector.own + detector.others
