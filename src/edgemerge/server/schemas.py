"""The JSON bodies of requests and answers, bounded and strict; OpenAPI is made from them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, RootModel, StringConstraints

from edgemerge.server.audit import Entry
from edgemerge.server.fleets import NAME_PATTERN

Reads = Literal["totals", "contributions"]
DeviceNameList = Annotated[
    list[Annotated[str, StringConstraints(pattern=NAME_PATTERN)]], Field(max_length=5000)
]


class StrictRequest(BaseModel):
    """What is asked for; a word that we do not know is refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class InvitationAsked(StrictRequest):
    """For whom an invitation is, and for how long it can be used."""

    device: str | None = Field(default=None, pattern=NAME_PATTERN)
    valid_s: float = Field(default=86_400.0, gt=0.0, le=366 * 86_400.0)


class EnrolmentAsked(StrictRequest):
    """The name under which a device enrols."""

    device: str = Field(pattern=NAME_PATTERN)


class Problem(BaseModel):
    """What went wrong, in words that say what to do."""

    error: str


class Conflict(Problem):
    """Why a contribution was not kept, and the newest revision that is."""

    problem: Literal["stale", "equivocation", "exists"]
    newest: int | None = None


class FleetTold(BaseModel):
    """A fleet: what it agreed on and how much is in it."""

    fleet: str
    reads: Reads
    least: int
    growing: bool
    fingerprint: str
    inputs: int
    hidden: int
    devices: int
    contributions: int
    samples: float
    epoch: int
    created: float


class Invitation(BaseModel):
    """A token with which one device can enrol, once."""

    token: str
    fleet: str
    device: str | None
    expires: float


class Enrolment(BaseModel):
    """The token of a device; it is shown only now."""

    token: str
    fleet: str
    device: str
    reads: Reads


class KeptTold(BaseModel):
    """Whether a contribution is new; either way it is stored."""

    kept: bool
    revision: int
    epoch: int


class ContributionTold(BaseModel):
    """A contribution without its numbers."""

    device: str
    incarnation: int
    pattern: str
    revision: int
    samples: float
    bytes: int
    digest: str
    received: float


class ContributionsTold(BaseModel):
    """The contributions of a fleet."""

    epoch: int
    contributions: list[ContributionTold]


class Dropped(BaseModel):
    """How many contributions were dropped."""

    dropped: int


class AuditTold(BaseModel):
    """A stretch of the audit log."""

    entries: list[Entry]
    head: str


def _integral(value: Any) -> Any:
    """Take 5.0 for 5: in JSON both are the same number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


class AdoptAsked(StrictRequest):
    """Let these targets be told of these sources only; without a source, of nobody."""

    kind: Literal["adopt"]
    sources: DeviceNameList
    targets: Annotated[DeviceNameList, Field(min_length=1)]


class RevokeAsked(StrictRequest):
    """Exclude one contribution from all merges; "revoke" is the old word for it."""

    kind: Literal["exclude", "revoke"]
    device: str = Field(pattern=NAME_PATTERN)
    incarnation: Annotated[int, Field(ge=0, lt=2**63), BeforeValidator(_integral)]
    pattern: str = Field(min_length=1, max_length=200)


class ChoiceAsked(RootModel[Annotated[AdoptAsked | RevokeAsked, Field(discriminator="kind")]]):
    """What an operator decides about who is told what."""


class PreviewAsked(StrictRequest):
    """Which targets would be told of which sources only."""

    sources: DeviceNameList
    targets: Annotated[DeviceNameList, Field(min_length=1, max_length=200)]


class ChoiceTold(BaseModel):
    """A decision about who is told what; `undone` is when it was, if it was."""

    number: int
    at: float
    actor: str
    kind: Literal["adopt", "exclude", "revoke"]  # revoke: excluded before the word changed
    sources: tuple[str, ...] | None
    targets: tuple[str, ...] | None
    device: str | None
    incarnation: int | None
    pattern: str | None
    undone: float | None


class PreviewTold(BaseModel):
    """The loss of one pattern's own data: alone, as it is told now, and as it would be told."""

    device: str
    pattern: str
    samples: float
    alone: float
    before: float
    after: float
    shift: float
    joined: float
    ready: bool


class LikenessTold(BaseModel):
    """How well each device's readout (rows) explains another's data (columns); 1 is as its own."""

    devices: list[str]
    ratios: list[list[float]]
    groups: list[int]
    samples: list[float]
    left_out: int


class Status(BaseModel):
    """How the server is doing."""

    version: str
    ready: bool
    waiting: int
    fleets: list[FleetTold]


class Health(BaseModel):
    """Whether all is well, and if not, why."""

    status: str
    detail: Any = None


# The forms of a report: what a device says about itself, between its contributions.
#
# Everything in it is bounded, and nothing in it is believed: it is shown, never computed with.

MAX_REPORT_BYTES = 65_536  # bytes of a report
MAX_REPORT_POINTS = 240  # scores in a report
MAX_REPORT_ALARMS = 20
MAX_REASONS = 8
MAX_REPORT_PATTERNS = 64
MAX_REPORT_ORIGINS = 2_000  # in one report: of more, the first are named and all are counted

Timestamp = Annotated[float, Field(ge=0.0, lt=1e11, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0.0, le=1e300, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
ShortText = Annotated[str, StringConstraints(min_length=1, max_length=200)]
LongText = Annotated[str, StringConstraints(max_length=500)]


class PointAsked(StrictRequest):
    """The highest score within a moment, and the threshold of that moment, if it has one."""

    at: Timestamp
    score: NonNegative
    threshold: NonNegative | None = None
    alarm: bool = False


class Reason(StrictRequest):
    """An input that carries an alarm; 1 is what is usual for it."""

    input: ShortText
    factor: NonNegative


class AlarmAsked(PointAsked):
    """An alarm: at which sample, in which pattern, and what carries it."""

    sample: Count
    pattern: ShortText | None = None
    why: list[Reason] = Field(default_factory=list, max_length=MAX_REASONS)


class PatternAsked(StrictRequest):
    """A pattern: its samples, own and told, and how many were judged by it of late."""

    pattern: ShortText
    own: NonNegative
    told: NonNegative
    used: Count


class OriginAsked(StrictRequest):
    """A contribution that is in what was told."""

    device: ShortText
    incarnation: Count
    pattern: ShortText
    revision: Count


class MergeAsked(StrictRequest):
    """What the device holds of others, since when, and what adopting it did to its own level."""

    at: Timestamp
    digest: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    samples: NonNegative
    devices: Count
    shift: NonNegative | None = None
    origins: list[OriginAsked] = Field(default_factory=list, max_length=MAX_REPORT_ORIGINS)


class StatusAsked(StrictRequest):
    """How the device is doing."""

    samples: Count  # judged
    learnt: NonNegative  # by the device itself, as they weigh now
    alarms: Count
    skipped: Count = 0
    learning: bool = True
    incarnation: Count = 0
    revision: Count = 0
    pattern: ShortText | None = None  # in which it is now
    patterns: list[PatternAsked] = Field(default_factory=list, max_length=MAX_REPORT_PATTERNS)
    exchange: LongText = ""  # how the last exchange went
    told: LongText = ""  # what became of what was told last
    synced: Timestamp | None = None
    saved: LongText = "ok"
    desired: Count | None = None  # the revision of the desired state that it follows


class ReportAsked(BaseModel):
    """A report: scores and alarms since the last one, the status, and the merge, if it is new."""

    model_config = ConfigDict(extra="forbid", strict=True)

    sent: Timestamp  # by the clock of the device
    status: StatusAsked
    points: list[PointAsked] = Field(default_factory=list, max_length=MAX_REPORT_POINTS)
    alarms: list[AlarmAsked] = Field(default_factory=list, max_length=MAX_REPORT_ALARMS)
    merge: MergeAsked | None = None
    leaving: bool = False


class ReportTold(BaseModel):
    """When to report again, and the revision of the desired state; `choice` is its old name."""

    every_s: float
    choice: int
    desired: int


class AdoptTold(BaseModel):
    """Whose contributions a device adopts; `devices` null: those of all others.

    `excluded` lists contributions that no device adopts, as device, incarnation and pattern. A
    device of a fleet that tells only totals gets their number instead.
    """

    devices: list[str] | None
    excluded: list[tuple[str, int, str]] | int


class DesiredTold(BaseModel):
    """What a device should do; readers ignore keys that they do not know."""

    format: Literal[1]
    revision: int
    adopt: AdoptTold
