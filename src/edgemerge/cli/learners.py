"""Learners in files: detectors and banks, and what of them is told to the user."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgemerge.cli.group import Failure


def learner_in(path: Path) -> Any:
    """Load a detector or bank."""
    from edgemerge.core.bank import Bank
    from edgemerge.core.detector import Detector
    from edgemerge.files import load

    found = load(path)
    if not isinstance(found, Bank | Detector):
        kind = type(found).__name__.lower()
        raise Failure(
            f"{path}: found a {kind}, expected a detector or bank: `edgemerge learn` makes one"
        )
    return found


def detectors(learner: Any) -> dict[str, Any]:
    """Give the detector of each pattern; a detector by itself has the pattern "normal"."""
    from edgemerge.core.bank import Bank

    return {n: learner[n] for n in learner} if isinstance(learner, Bank) else {"normal": learner}


def counts(learner: Any) -> dict[str, float]:
    """Count the samples that it saw itself and those that it was told of."""
    found = detectors(learner).values()
    waiting = len(getattr(learner, "waiting", ()))  # a bank learns in blocks
    own = sum(detector.own.count for detector in found) + waiting
    return {"own_samples": own, "others_samples": sum(each.others.count for each in found)}
