"""What a threshold has learnt, as plain JSON and back."""

from __future__ import annotations

from typing import Any

from edgemerge.core.threshold import Threshold


def threshold_state(threshold: Threshold) -> dict[str, Any]:
    """Give what it needs to go on: the window, how much it has seen, and the last votes."""
    return {
        "recent": threshold._recent.tolist(),
        "seen": threshold._seen,
        "votes": list(threshold._votes),
    }


def resume_threshold(threshold: Threshold, state: dict[str, Any] | None) -> bool:
    """Let it go on from there; False if that was another kind of threshold, or none."""
    if state is None or len(state["recent"]) != len(threshold._recent):
        return False
    threshold.relearn()
    threshold._recent[:] = state["recent"]
    threshold._seen = state["seen"]
    threshold._votes.extend(state["votes"])
    if len(threshold._recent):
        threshold._learn()
    return True
