"""The forms of a report: what a device says about itself, between its contributions.

Everything in it is bounded, and nothing in it is believed: it is shown, never computed with.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from edgemerge.server.answers import Asked

LONGEST = 65_536  # bytes of a report
POINTS = 240  # scores in a report
ALARMS = 20
REASONS = 8
PATTERNS = 64
ORIGINS = 2_000  # in one report: of more, the first are named and all are counted

Moment = Annotated[float, Field(ge=0.0, lt=1e11, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0.0, le=1e300, allow_inf_nan=False)]
Whole = Annotated[int, Field(ge=0, lt=2**63)]
Short = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Words = Annotated[str, StringConstraints(max_length=500)]


class PointAsked(Asked):
    """The highest score within a moment, and the threshold of that moment, if it has one."""

    at: Moment
    score: Amount
    threshold: Amount | None = None
    alarm: bool = False


class Reason(Asked):
    """An input that carries an alarm; 1 is what is usual for it."""

    input: Short
    factor: Amount


class AlarmAsked(PointAsked):
    """An alarm: at which sample, in which pattern, and what carries it."""

    sample: Whole
    pattern: Short | None = None
    why: list[Reason] = Field(default_factory=list, max_length=REASONS)


class PatternAsked(Asked):
    """A pattern: its samples, own and told, and how many were judged by it of late."""

    pattern: Short
    own: Amount
    told: Amount
    used: Whole


class OriginAsked(Asked):
    """A contribution that is in what was told."""

    device: Short
    incarnation: Whole
    pattern: Short
    revision: Whole


class MergeAsked(Asked):
    """What the device holds of others, since when, and what adopting it did to its own level."""

    at: Moment
    digest: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    samples: Amount
    devices: Whole
    shift: Amount | None = None
    origins: list[OriginAsked] = Field(default_factory=list, max_length=ORIGINS)


class StatusAsked(Asked):
    """How the device is doing."""

    samples: Whole  # judged
    learnt: Amount  # by the device itself, as they weigh now
    alarms: Whole
    skipped: Whole = 0
    learning: bool = True
    incarnation: Whole = 0
    revision: Whole = 0
    pattern: Short | None = None  # in which it is now
    patterns: list[PatternAsked] = Field(default_factory=list, max_length=PATTERNS)
    exchange: Words = ""  # how the last exchange went
    told: Words = ""  # what became of what was told last
    synced: Moment | None = None
    saved: Words = "ok"


class ReportAsked(BaseModel):
    """A report: scores and alarms since the last one, the status, and the merge, if it is new."""

    model_config = ConfigDict(extra="forbid", strict=True)

    sent: Moment  # by the clock of the device
    status: StatusAsked
    points: list[PointAsked] = Field(default_factory=list, max_length=POINTS)
    alarms: list[AlarmAsked] = Field(default_factory=list, max_length=ALARMS)
    merge: MergeAsked | None = None
    leaving: bool = False


class ReportTold(BaseModel):
    """When to report again, and the number of the operator's newest choice for this device."""

    every_s: float
    choice: int
