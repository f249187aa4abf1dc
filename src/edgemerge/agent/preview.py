"""The merge preview: what adopting would do to this device's own level, before it is done."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from edgemerge.agent.learning import Learner
from edgemerge.core.told import Told


@dataclass(frozen=True)
class Preview:
    """By which factor a merge raises the loss of samples like our own, at most and by pattern.

    Without enough samples of our own there is no level that could rise: the factor is 1.
    """

    shift: float
    patterns: dict[str, float] = field(default_factory=dict)
    samples: float = 0.0
    devices: int = 0

    @classmethod
    def of(cls, learner: Learner, told: Told) -> Preview:
        """Compute it from the sums alone, M10; nothing is adopted."""
        shifts = learner.shifts(told)
        samples = sum(part.stats.count for part in told.parts)
        devices = {origin.device for origin in told.origins}
        return cls(max(shifts.values(), default=1.0), shifts, samples, len(devices))

    def refusal(self, max_shift: float) -> str:
        """Say why not to adopt; nothing if there is no reason."""
        if self.shift <= max_shift:
            return ""
        worst = max(self.patterns, key=self.patterns.__getitem__)
        return (
            f"it would raise the level of {worst} {self.shift:.3g} times, "
            f"and sync.max_shift is {max_shift:g}"
        )

    def plain(self) -> dict[str, Any]:
        """Give it as plain JSON."""
        patterns = {name: float(f"{shift:.6g}") for name, shift in self.patterns.items()}
        shift = float(f"{self.shift:.6g}")
        rest = {"samples": self.samples, "devices": self.devices}
        return {"shift": shift, "patterns": patterns, **rest}
