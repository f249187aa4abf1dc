"""Which of two contributions with one key counts: the one with the higher revision."""

from __future__ import annotations

from edgemerge.core.contribution import Contribution
from edgemerge.core.errors import StaleError


def must_be_newer(contribution: Contribution, known: Contribution) -> bool:
    """Say whether it is newer than what is known; False for the very same, else an error."""
    if contribution.revision > known.revision:
        return True
    if contribution.revision < known.revision:
        wrong = f"revision {contribution.revision} is late, {known.revision} is known"
    elif contribution.stats == known.stats:
        return False
    else:
        wrong = f"revision {known.revision} came twice with different numbers"
    raise StaleError(
        f"{contribution.device}, {contribution.pattern}: {wrong}: share under a higher revision, "
        "or start a new incarnation if this device runs on an old copy of its state",
        known.revision,
    )
