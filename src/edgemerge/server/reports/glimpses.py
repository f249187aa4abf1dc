"""Glimpses: what is known of a device by what it reports; values without any storage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from edgemerge.server.reports.report_forms import AlarmAsked, MergeAsked, StatusAsked

ONLINE_S = 30.0  # after the last report, or three times as long as a device was told to wait
QUIET_S = 300.0  # after it was last heard of, if it has ever reported
SILENT_S = 7_200.0  # likewise, of a device that does not report: it shares now and then
STATES = ("online", "quiet", "offline", "revoked")


class Point(NamedTuple):
    """The highest score within a moment, by the server's clock."""

    at: float
    score: float
    threshold: float | None
    alarm: bool


class Minute(NamedTuple):
    """What was scored within a minute; `at` is its beginning."""

    at: float
    scores: int
    mean: float
    highest: float
    threshold: float | None
    alarms: int


@dataclass(frozen=True)
class Traffic:
    """What a device has pushed and pulled, ever, and when it last did; two add up.

    `grouped` says whether it asked for patterns, the last time it asked; None: nobody knows.
    """

    pushes: int = 0
    pushed_bytes: int = 0
    pulls: int = 0
    pulled_bytes: int = 0
    last: float = 0.0
    grouped: bool | None = None

    def __add__(self, other: Traffic) -> Traffic:
        older, newer = sorted((self, other), key=lambda one: one.last)
        return Traffic(
            self.pushes + other.pushes,
            self.pushed_bytes + other.pushed_bytes,
            self.pulls + other.pulls,
            self.pulled_bytes + other.pulled_bytes,
            newer.last,
            older.grouped if newer.grouped is None else newer.grouped,
        )


@dataclass(frozen=True)
class Glimpse:
    """The newest that is known of a device; all times are by the server's clock."""

    device: str
    heard: float
    every_s: float
    left: bool
    status: StatusAsked
    points: Sequence[Point]  # oldest first, at most 600; made when looked at, so look at few
    alarm: AlarmAsked | None
    merge: MergeAsked | None  # without its origins: `History.merges` has them
    seq: int


def state_of(
    now: float, *, glimpse: Glimpse | None, seen: float | None, revoked: float | None
) -> str:
    """Say how a device is: "online", "quiet", "offline" or "revoked"."""
    if revoked is not None:
        return "revoked"
    if glimpse is None:
        return "quiet" if seen is not None and now - seen <= SILENT_S else "offline"
    if glimpse.left:
        return "offline"
    if now - glimpse.heard <= max(ONLINE_S, 3.0 * glimpse.every_s):
        return "online"
    return "quiet" if now - max(glimpse.heard, seen or 0.0) <= QUIET_S else "offline"
