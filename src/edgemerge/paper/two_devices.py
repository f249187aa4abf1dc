"""Two devices that each learn a pattern of their own, and then tell each other what they saw.

The exchange is the real one: each device shares, a ledger keeps, each adopts the total of the rest.
"""

from __future__ import annotations

from edgemerge import Detector, Ledger, Stats
from edgemerge.paper.dataset import Array
from edgemerge.paper.plan import Job, Row, Rows, Scope
from edgemerge.paper.settings import LAYERS
from edgemerge.paper.splits import Cut, by_sample
from edgemerge.paper.trial import Trial

A, B = "Device-A", "Device-B"
MERGED = {A: "Device-A with B", B: "Device-B with A"}


class TwoDevices:
    """Device-A and Device-B of one trial, and the samples that neither of them learnt."""

    def __init__(
        self, job: Job, scope: Scope, patterns: tuple[str, str], *, cut: Cut = by_sample
    ) -> None:
        """Cut the data set and let each device learn its pattern, every sample once."""
        self.job, self.trial = job, Trial(job, scope, cut)
        self.data, self.split = self.trial.data, self.trial.split
        self.layer = LAYERS[job.dataset].projection(self.data, self.trial.number("layer"))
        self.devices = {A: Detector(self.layer), B: Detector(self.layer)}
        for device, pattern in zip(self.devices.values(), patterns, strict=True):
            device.learn(self.learnt(pattern))

    def learnt(self, pattern: str) -> Array:
        """Give the readings of a pattern that are to be learnt, in a random order."""
        return self.trial.learnt(self.data.patterns.index(pattern))

    def kept(self, pattern: str) -> Array:
        """Give the readings of a pattern that no device has seen."""
        return self.data.X[self.split.keep[self.data.patterns.index(pattern)]]

    def exchange(self) -> None:
        """Let each device take in what the other saw."""
        ledger = Ledger(self.layer)
        for name, device in self.devices.items():
            ledger.put(device.share(name, revision=1))
        for name, device in self.devices.items():
            device.adopt(ledger.total(without=name))

    def rows(self) -> Rows:
        """Write down the mean loss of every pattern's kept samples, before and after merging."""
        before = self._losses({A: A, B: B})
        self.exchange()
        return before + self._losses(MERGED)

    def _losses(self, names: dict[str, str]) -> Rows:
        return [
            self.row(names[name], pattern, device.loss(self.kept(pattern)), _sums(device))
            for name, device in self.devices.items()
            for pattern in self.data.patterns
        ]

    def row(self, method: str, pattern: str, losses: Array, sums: str = "none") -> Row:
        """Write down the mean of a pattern's losses, and the sums that gave them."""
        head: Row = {"trial": self.job.trial, "method": method, "pattern": pattern}
        return {**head, "loss": float(losses.mean()), "sums": sums}


def known(device: Detector) -> Stats:
    """Give all that a device knows, own and told."""
    return device.own + device.others


def _sums(device: Detector) -> str:
    return f"sha256:{known(device).digest[:16]}"
