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

    def count(self, length: int, outcome: str) -> None:
        """Count a message by what became of it: `kept`, `late_or_repeated` or `refused`."""
        self.messages += 1
        self.bytes += length
        setattr(self, outcome, getattr(self, outcome) + 1)

    def add(self, other: MessageCounts) -> None:
        """Add other counts to these."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


class TreeNode:
    """Receives contributions as bytes, sends their sum up, and the sum of all others down.

    Every `check_every`th message gets all checks of `admit`, starting with the first.
    """

    def __init__(self, name: str, projection: Projection, *, check_every: int = 1) -> None:
        """Start without contributions."""
        self.name, self.projection = name, projection
        self.ledger, self.others = Ledger(projection), Stats.empty(projection)
        self.changed = False  # since the sum was last sent up
        self._own: Stats | None = Stats.empty(projection)
        self._revisions, self._received = count(1), count()
        self._check_every = check_every

    @property
    def own(self) -> Stats:
        """The sum of the children's contributions; computed when it is needed."""
        if self._own is None:
            self._own = self.ledger.total()
        return self._own

    def receive(self, data: bytes) -> bool:
        """Store a child's contribution; False if it is late or repeated."""
        return self._keep(self._read(data), None)

    def receive_change(self, data: bytes) -> bool:
        """Store a child's contribution, and update the sum by the difference."""
        contribution, own = self._read(data), self.own
        for known in self.ledger:
            if known.key == contribution.key:
                own -= known.stats  # M7
        return self._keep(contribution, own + contribution.stats)  # M7

    def share(self) -> bytes:
        """Return the sum of the children's contributions, for the parent."""
        self.changed = False
        return encode(Contribution(self.name, self.own, next(self._revisions)))

    def adopt(self, data: bytes) -> None:
        """Replace the stats that came from the parent."""
        self.others = decode(data, Stats, projection=self.projection)

    def replies(self) -> Iterator[tuple[str, bytes]]:
        """Yield for each child the sum of everything but its own part."""
        everything = self.others + self.own
        for child in self.ledger:
            yield child.device, encode(everything - child.stats)  # M7

    def contribution(self, name: str) -> Contribution:
        """Return the contribution of a child."""
        for known in self.ledger:
            if known.device == name:
                return known
        raise UnknownError(f"{self.name} has heard nothing of {name}")

    def drop(self, name: str) -> None:
        """Remove a child's contribution, as if it had never arrived."""
        self.ledger.drop(name)
        self._own, self.changed = None, True

    def _read(self, data: bytes) -> Contribution:
        contribution = decode(data, Contribution, projection=self.projection)
        if next(self._received) % self._check_every == 0:
            admit(contribution, projection=self.projection)
        return contribution

    def _keep(self, contribution: Contribution, own: Stats | None) -> bool:
        kept = self.ledger.put(contribution)
        if kept:
            self._own, self.changed = own, True
        return kept


@dataclass(frozen=True)
class SiteResult:
    """What a site sends up, one message or two; counts of its devices' messages; its cost."""

    messages: tuple[bytes, ...]
    counts: MessageCounts
    cpu_s: float
    process: int
    peak_bytes: int


def run_site(plan: Plan, site: int) -> SiteResult:
    """Let a site receive its devices' messages."""
    start = process_time()
    sent, counts = collect_site(plan, site)[1:]
    return SiteResult(sent, counts, process_time() - start, *peak_bytes())


def collect_site(plan: Plan, site: int) -> tuple[TreeNode, tuple[bytes, ...], MessageCounts]:
    """Let a site receive its devices' messages; return it, what it sends up, and the counts."""
    fleet, counts, sent = cached_fleet(plan), MessageCounts(), []
    node = TreeNode(f"site-{site:06}", plan.projection, check_every=plan.check_every)
    devices = np.array(plan.devices_of(site))
    for wave in WAVES:
        for device, revision in arrivals(plan, devices, wave):
            receive_and_count(node, device_message(fleet, device, revision), counts)
        if node.changed:
            sent.append(node.share())
    return node, tuple(sent), counts


def device_message(fleet: SimulatedFleet, device: int, revision: int) -> bytes:
    """Return a device's message as it arrives, perhaps truncated."""
    if revision != TRUNCATED:
        return encode(fleet.contribution(device, revision))
    whole = encode(fleet.contribution(device, 1))
    return whole[: len(whole) // 2]


def flat_sum(plan: Plan, part: int, parts: int, devices: int) -> Stats:
    """Add up one of `parts` parts of the first devices: every n-th, so that no part is a site."""
    numbers = np.arange(part, devices, parts)[::-1]
    return cached_fleet(plan).flat(numbers, newest_revisions(plan, numbers))


def receive_and_count(node: TreeNode, data: bytes, counts: MessageCounts) -> None:
    """Let a node receive a message, and count what became of it."""
    try:
        counts.count(len(data), "kept" if node.receive(data) else "late_or_repeated")
    except FormatError:
        counts.count(len(data), "refused")


LINKS = 6  # up and down between four tiers


class Step(NamedTuple):
    """One step of a propagation, and how long it took."""

    words: str
    seconds: float


class Replies(NamedTuple):
    """What one node sends down: the number of replies, and their bytes together."""

    number: int
    length: int

    @classmethod
    def of(cls, sent: Mapping[str, bytes]) -> Replies:
        """Count replies."""
        return cls(len(sent), sum(map(len, sent.values())))


class TreePath(NamedTuple):
    """A path through the tree, from a site to the top."""

    site: TreeNode
    region: TreeNode
    top: TreeNode


@dataclass(frozen=True)
class Propagation:
    """How a change spread: the steps, the replies of each tier, and the device's final stats."""

    steps: tuple[Step, ...]
    answers: tuple[Replies, Replies, Replies]  # of the top, of a region, of a site
    known: Stats

    @property
    def seconds(self) -> float:
        """The time of all steps; nodes of one tier work in parallel."""
        return sum(step.seconds for step in self.steps)

    def reaches_all_s(self, latency_s: float) -> float:
        """Return the time until a change reaches all devices: the steps and the links."""
        return self.seconds + LINKS * latency_s


def propagate(
    contribution: Contribution, path: TreePath, *, clock: Callable[[], float] = perf_counter
) -> Propagation:
    """Replace a device's contribution: up to the top, and down to every device of its site.

    Each node updates its sum by the difference (M7), and then sends each child everything but the
    child's own part; the longest path is that on which the change came.
    """
    steps, times = [], [clock()]

    def end_step(words: str) -> None:
        times.append(clock())
        steps.append(Step(words, times[-1] - times[-2]))

    data = encode(contribution)
    end_step("device writes")
    path.site.receive_change(data)
    data = path.site.share()
    end_step("site replaces")
    path.region.receive_change(data)
    data = path.region.share()
    end_step("region replaces")
    path.top.receive_change(data)
    end_step("top replaces")
    at_top = dict(path.top.replies())
    end_step(f"top sends to {len(at_top)} regions")
    path.region.adopt(at_top[path.region.name])
    at_region = dict(path.region.replies())
    end_step(f"region sends to {len(at_region)} sites")
    path.site.adopt(at_region[path.site.name])
    at_site = dict(path.site.replies())
    end_step(f"site sends to {len(at_site)} devices")
    detector, data = Detector.resume(contribution.stats), at_site[contribution.device]
    detector.adopt(decode(data, Stats, projection=contribution.stats.projection))
    detector.readout  # noqa: B018 (solved, as for the next score)
    end_step("device adopts and solves")
    answers = (Replies.of(at_top), Replies.of(at_region), Replies.of(at_site))
    return Propagation(tuple(steps), answers, detector.own + detector.others)
