"""The JSON bodies of requests and answers, bounded and strict; OpenAPI is made from them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, RootModel, StringConstraints

from edgemerge.core.monitor import DRIFT_EVENT, DRIFT_STOP
from edgemerge.exchange.client import (
    MAX_COMMENT_CHARS,
    MAX_NAME_CHARS,
    MAX_NUMBER,
    MAX_REASONS,
    MAX_REPORT_ALARMS,
    MAX_REPORT_ORIGINS,
    MAX_REPORT_PATTERNS,
    MAX_REPORT_POINTS,
    MAX_REPORT_PROBLEMS,
    MAX_TEXT_CHARS,
    MAX_TIMESTAMP,
    MAX_UNIT_CHARS,
    MAX_VALUES,
)
from edgemerge.server.audit import Entry
from edgemerge.server.fleets import NAME_PATTERN

Reads = Literal["totals", "contributions", "masked"]
TRUST_PATTERN = "^(members|person|quorum:([2-9]|[1-9][0-9]{1,3}|10000))$"
TrustText = Annotated[str, StringConstraints(pattern=TRUST_PATTERN)]
COMMENT_PATTERN = "^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*$"  # one line
DeviceNameList = Annotated[
    list[Annotated[str, StringConstraints(pattern=NAME_PATTERN)]], Field(max_length=5000)
]


class StrictRequest(BaseModel):
    """The body of a request; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class InvitationRequest(StrictRequest):
    """For whom an invitation is, and for how long it can be used."""

    device: str | None = Field(default=None, pattern=NAME_PATTERN)
    valid_s: float = Field(default=86_400.0, gt=0.0, le=366 * 86_400.0)


class ReplacementRequest(StrictRequest):
    """For how long the invitation for a device's new hardware can be used."""

    valid_s: float = Field(default=86_400.0, gt=0.0, le=366 * 86_400.0)


Role = Literal["viewer", "operator", "admin"]
ValidS = Annotated[float, Field(gt=0.0, le=20 * 366 * 86_400.0)]


class AccountRequest(StrictRequest):
    """A new account: its name, its role, and after how many seconds its token expires."""

    name: str = Field(pattern=NAME_PATTERN)
    role: Role
    valid_s: ValidS | None = None


class AccountChange(StrictRequest):
    """What to change in an account; `valid_s` null means that its token never expires."""

    role: Role | None = None
    valid_s: ValidS | None = None


class RotationRequest(StrictRequest):
    """After how many seconds the new token expires; null: never; absent: as the one before."""

    valid_s: ValidS | None = None


class WallLinkRequest(StrictRequest):
    """A link for a wall screen: its name, and after how many seconds it expires."""

    name: str = Field(pattern=NAME_PATTERN)
    valid_s: ValidS = 365 * 86_400.0


class AccountResponse(BaseModel):
    """An account or a wall link, without its token.

    `state` is "active", "expired" or "revoked"; `from_file`: its token came from the server's file.
    """

    model_config = ConfigDict(from_attributes=True)

    name: str
    role: Literal["viewer", "operator", "admin", "wall"]
    fleet: str | None
    state: str
    created: float
    issued: float
    expires: float | None
    revoked: float | None
    from_file: bool


class IssuedAccount(AccountResponse):
    """An account with its token, or the path of a wall link; neither is shown again."""

    token: str | None = None
    path: str | None = None


class EnrolmentRequest(StrictRequest):
    """The name under which a device enrols."""

    device: str = Field(pattern=NAME_PATTERN)


class Problem(BaseModel):
    """What went wrong, in words that say what to do."""

    error: str


class Conflict(Problem):
    """Why a contribution was not kept, and the newest revision that is."""

    problem: Literal["stale", "equivocation", "exists"]
    newest: int | None = None


class NoiseResponse(BaseModel):
    """The noise of a masked fleet; see `privacy.noise.NoiseSettings`."""

    epsilon: float
    delta: float
    radius: float
    release: Literal["sums", "mean"]
    share: float


class FleetSummary(BaseModel):
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
    trust: str
    released: str
    noise: NoiseResponse | None = None


class TrustRequest(StrictRequest):
    """Which contributions enter others' sums at once: "members", "quorum:K" or "person"."""

    trust: TrustText


NotificationEvent = Literal["alarm", "all clear", "problem", "offline", "merge refused"]
USUAL_EVENTS: list[NotificationEvent] = ["alarm", "all clear"]


class ReceiverRequest(StrictRequest):
    """A receiver of messages about a fleet; this server calls the address that is given here.

    `url` is for all kinds but email, and the rest for email only. `secret` is the token of a
    webhook or the password of a mailbox; it is never shown again. `secret_file` names a file in
    the server's folder of secrets instead. At most one message is sent in `every_s` seconds; what
    happens meanwhile is summed up in the next.
    """

    kind: Literal["webhook", "ntfy", "slack", "email"]
    url: Annotated[str, StringConstraints(max_length=2000)] = ""
    host: Annotated[str, StringConstraints(max_length=255, pattern=COMMENT_PATTERN)] = ""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    security: Literal["starttls", "tls", "none"] = "starttls"
    sender: Annotated[str, StringConstraints(max_length=320)] = ""
    to: list[Annotated[str, StringConstraints(max_length=320)]] = Field(
        default_factory=list, max_length=50
    )
    username: Annotated[str, StringConstraints(max_length=320, pattern=COMMENT_PATTERN)] = ""
    secret: (
        Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=COMMENT_PATTERN)]
        | None
    ) = None
    secret_file: Annotated[str, StringConstraints(max_length=100)] = ""
    events: list[NotificationEvent] = Field(
        default_factory=lambda: list(USUAL_EVENTS), min_length=1, max_length=5
    )
    every_s: Annotated[float, Field(ge=0.0, le=7 * 86_400.0, allow_inf_nan=False)] = 60.0


class ReceiverResponse(BaseModel):
    """A receiver, without its secret and without the path of its address.

    `waiting` counts events not sent yet; `trouble` says why the last message was not accepted.
    """

    receiver: str
    kind: str
    address: str
    events: list[NotificationEvent]
    every_s: float
    secret: str
    created: float
    delivered: int
    waiting: int
    trouble: str


class TestedReceiver(BaseModel):
    """Whether a test message was accepted, and if not, why."""

    delivered: bool
    trouble: str


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


class PutResponse(BaseModel):
    """Whether a contribution is new; either way it is stored."""

    kept: bool
    revision: int
    epoch: int


class ContributionSummary(BaseModel):
    """A contribution without its numbers."""

    model_config = ConfigDict(from_attributes=True)

    device: str
    incarnation: int
    pattern: str
    revision: int
    samples: float
    bytes: int
    digest: str
    received: float


class ContributionList(BaseModel):
    """The contributions of a fleet."""

    epoch: int
    contributions: list[ContributionSummary]


class FaultSummary(BaseModel):
    """A known fault without its numbers: its names, where and when it was first seen.

    `told` says whether devices are told it: a fleet may demand that it is of several devices.
    """

    name: str
    names: list[str]
    device: str
    first: float | None
    devices: list[str]
    samples: float
    told: bool


class Dropped(BaseModel):
    """How many contributions and faults were dropped."""

    dropped: int


class AuditPage(BaseModel):
    """A stretch of the audit log."""

    entries: list[Entry]
    head: str
    problem: str | None = None  # what is missing that the log once had


def _integral(value: Any) -> Any:
    """Take 5.0 for 5: in JSON both are the same number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


WholeNumber = Annotated[int, Field(ge=0, lt=2**63), BeforeValidator(_integral)]
Comment = Annotated[str, StringConstraints(max_length=MAX_COMMENT_CHARS, pattern=COMMENT_PATTERN)]


class AdoptRequest(StrictRequest):
    """Let these targets adopt from these sources only; without a source, from none."""

    kind: Literal["adopt"]
    sources: DeviceNameList
    targets: Annotated[DeviceNameList, Field(min_length=1)]


class ExcludeRequest(StrictRequest):
    """Exclude one contribution from all merges; "revoke" is the old word for it."""

    kind: Literal["exclude", "revoke"]
    device: str = Field(pattern=NAME_PATTERN)
    incarnation: WholeNumber
    pattern: str = Field(min_length=1, max_length=200)


class DecideRequest(StrictRequest):
    """Approve one contribution as it is now, or dismiss it.

    With the `revision` that was looked at, it is refused if another one has come meanwhile.
    """

    kind: Literal["approve", "dismiss"]
    device: str = Field(pattern=NAME_PATTERN)
    incarnation: WholeNumber
    pattern: str = Field(min_length=1, max_length=200)
    revision: WholeNumber | None = None
    comment: Comment = ""


class ChoiceRequest(
    RootModel[Annotated[AdoptRequest | ExcludeRequest | DecideRequest, Field(discriminator="kind")]]
):
    """What an operator decides about who adopts what."""


class PreviewRequest(StrictRequest):
    """Which targets would adopt from which sources only."""

    sources: DeviceNameList
    targets: Annotated[DeviceNameList, Field(min_length=1, max_length=200)]


class ChoiceResponse(BaseModel):
    """A decision about who adopts what; `undone` is when it was, if it was."""

    number: int
    at: float
    actor: str
    # revoke: excluded before the word changed
    kind: Literal["adopt", "exclude", "revoke", "approve", "dismiss"]
    sources: tuple[str, ...] | None
    targets: tuple[str, ...] | None
    device: str | None
    incarnation: int | None
    pattern: str | None
    undone: float | None
    comment: str
    revision: int | None


class WaitingResponse(BaseModel):
    """A contribution that is in no other device's sum yet: since when, why, and what it is like.

    `nearest` is the trusted contribution that is most like it, as device, incarnation and pattern;
    `ratio` the worse of the two loss ratios, and `like_none` whether that is too large.
    """

    device: str
    incarnation: int
    pattern: str
    revision: int
    samples: float
    received: float
    since: float
    why: str
    nearest: tuple[str, int, str] | None
    ratio: float | None
    like_none: bool


class PreviewResponse(BaseModel):
    """The loss of one pattern's own data: alone, merged as now, and merged as it would be."""

    device: str
    pattern: str
    samples: float
    alone: float
    before: float
    after: float
    shift: float
    joined: float
    ready: bool


class SimilarityResponse(BaseModel):
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
    fleets: list[FleetSummary]


class Health(BaseModel):
    """Whether all is well, and if not, why."""

    status: str
    detail: Any = None


# The forms of a report: what a device says about itself, between its contributions.
#
# Everything in it is bounded; it is shown, never computed with.

Timestamp = Annotated[float, Field(ge=0.0, lt=MAX_TIMESTAMP, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0.0, le=MAX_NUMBER, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
ShortText = Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME_CHARS)]
LongText = Annotated[str, StringConstraints(max_length=MAX_TEXT_CHARS)]


class ReportedPoint(StrictRequest):
    """The highest score within a moment, and the limit of that moment, if it has one.

    Agents with a monitor also say whether they are ready, the alarm level, and the open episode.
    """

    at: Timestamp
    score: NonNegative
    threshold: NonNegative | None = None
    alarm: bool = False
    ready: bool | None = None
    level: NonNegative | None = None
    episode: Count | None = None


class Reason(StrictRequest):
    """An unusual input of an alarm; 1 is what is usual for it."""

    input: ShortText
    factor: NonNegative


class ReportedAlarm(ReportedPoint):
    """An alarm: at which sample, in which pattern, and the most unusual inputs."""

    sample: Count
    pattern: ShortText | None = None
    why: list[Reason] = Field(default_factory=list, max_length=MAX_REASONS)


class ReportedPattern(StrictRequest):
    """A pattern: samples of its own, samples merged from others (`told`), and recent use."""

    pattern: ShortText
    own: NonNegative
    told: NonNegative
    used: Count


class ReportedOrigin(StrictRequest):
    """A contribution that is in what was merged."""

    device: ShortText
    incarnation: Count
    pattern: ShortText
    revision: Count


class ReportedMerge(StrictRequest):
    """What the device holds of others, since when, and what adopting it did to its own level."""

    at: Timestamp
    digest: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    samples: NonNegative
    devices: Count
    shift: NonNegative | None = None
    origins: list[ReportedOrigin] = Field(default_factory=list, max_length=MAX_REPORT_ORIGINS)


# What a monitor says. Unknown fields are ignored and long lists are cut, so that a newer agent is
# understood as far as possible; a wrong type or a number that is none is refused.

MAX_MONITOR_EPISODES = 64  # the newest are kept
MAX_MONITOR_PATTERNS = 64
MAX_MONITOR_INPUTS = 8  # of an episode or a pattern, the first
MAX_REFUSED_REVIEWS = 64
MAX_REVIEW_NUMBER = 2**53
MAX_RESTART_TABLES = 8
MAX_MOMENT = 1e11  # seconds

InputName = Annotated[str, StringConstraints(max_length=MAX_NAME_CHARS)]
# The time of a sample, by whatever clock its source has.
Moment = Annotated[float, Field(ge=-MAX_MOMENT, le=MAX_MOMENT, allow_inf_nan=False)]


def _first(most: int) -> BeforeValidator:
    return BeforeValidator(lambda found: found[:most] if isinstance(found, list) else found)


def _last(most: int) -> BeforeValidator:
    return BeforeValidator(lambda found: found[-most:] if isinstance(found, list) else found)


InputShares = Annotated[
    list[Annotated[tuple[InputName, NonNegative], Field(strict=False)]],
    _first(MAX_MONITOR_INPUTS),
]


class LenientReport(BaseModel):
    """A part of a report whose unknown keys are ignored."""

    model_config = ConfigDict(extra="ignore", strict=True)


class ReportedEpisode(LenientReport):
    """An episode; `ended` is null while it is open, `inputs` are those that carried the peak.

    `fault` is the name of the known fault that it is most like, `like` says so in words, or that
    it is like none.
    """

    number: Count
    began: Moment
    ended: Moment | None = None
    peak: NonNegative = 0.0
    samples: Count = 0
    inputs: InputShares = Field(default_factory=list)
    pattern: ShortText | None = None
    acknowledged: bool = False
    fault: ShortText | None = None
    like: LongText | None = None


class ReportedOddPattern(LenientReport):
    """Samples that were not learnt and belong together; `status` is what a person decided.

    `like` is as for an episode; of a fault `sharing` says whether others know it, or why not.
    """

    name: ShortText
    status: ShortText = "unreviewed"
    first: Moment
    last: Moment
    samples: NonNegative = 0.0
    peak: NonNegative = 0.0
    inputs: InputShares = Field(default_factory=list)
    nearest: ShortText | None = None
    fault: ShortText | None = None
    like: LongText | None = None
    sharing: LongText | None = None


class ReportedCommissioning(LenientReport):
    """How many samples were taken, of how many; null: a time or a command ends it."""

    samples: NonNegative = 0.0
    of: NonNegative | None = None


class ReportedLimit(LenientReport):
    """The limit now, of which kind it is, and how many samples a promised one still needs."""

    value: NonNegative | None = None
    kind: ShortText = "fixed"
    missing: NonNegative | None = None


class ReportedMonitor(LenientReport):
    """What the device's monitor says: phase, limit, drift, episodes and patterns to review."""

    phase: ShortText
    ready: bool
    learn: ShortText = "normal"
    commissioning: ReportedCommissioning = Field(default_factory=ReportedCommissioning)
    limit: ReportedLimit = Field(default_factory=ReportedLimit)
    drift: NonNegative = 1.0
    outside: Count = 0
    snoozed_until: Moment | None = None
    episodes: Annotated[list[ReportedEpisode], _last(MAX_MONITOR_EPISODES)] = Field(
        default_factory=list
    )
    patterns: Annotated[list[ReportedOddPattern], _last(MAX_MONITOR_PATTERNS)] = Field(
        default_factory=list
    )

    @property
    def open_episodes(self) -> int:
        """The number of episodes that have not ended: the device is in alarm."""
        return sum(episode.ended is None for episode in self.episodes)

    @property
    def open_fault(self) -> str | None:
        """The known fault that the open episode is most like, if there is one."""
        found = (episode.fault for episode in self.episodes if episode.ended is None)
        return next(filter(None, found), None)

    @property
    def drifts(self) -> bool:
        """Whether recent samples as a whole lie away from what is known."""
        return self.drift > DRIFT_EVENT

    @property
    def learning_stopped(self) -> bool:
        """Whether nothing is learnt until a person has accepted the drift."""
        return self.learn == "stopped by drift" or self.drift > DRIFT_STOP

    @property
    def unreviewed(self) -> int:
        """The number of patterns that wait for a review."""
        return sum(pattern.status == "unreviewed" for pattern in self.patterns)


class ReportedReviews(LenientReport):
    """Up to which number the device has acted on reviews, and which it refused, and why."""

    done: Annotated[int, Field(ge=0, le=MAX_REVIEW_NUMBER)] = 0
    refused: Annotated[
        list[Annotated[tuple[Count, LongText], Field(strict=False)]], _last(MAX_REFUSED_REVIEWS)
    ] = Field(default_factory=list)


class ReportedSettings(LenientReport):
    """The version of its settings that the device knows, and why it refused it, if it did."""

    version: Annotated[int, Field(ge=0, le=MAX_REVIEW_NUMBER)] = 0
    refused: LongText = ""


class ReportedConfiguration(LenientReport):
    """The version of the fleet's configuration in force on a device, and the one it looked at last.

    `refused` says why that one is not in force, `restart` which tables of it wait for a restart.
    """

    version: Annotated[int, Field(ge=0, le=MAX_REVIEW_NUMBER)] = 0
    seen: Annotated[int, Field(ge=0, le=MAX_REVIEW_NUMBER)] = 0
    refused: LongText = ""
    restart: Annotated[list[ShortText], _first(MAX_RESTART_TABLES)] = Field(default_factory=list)


class ReportedValue(LenientReport):
    """The latest value of an input, which a device reports only if its own file says so."""

    name: ShortText
    value: Annotated[float, Field(allow_inf_nan=False)] | None = None
    unit: Annotated[str, StringConstraints(max_length=MAX_UNIT_CHARS)] = ""


class ReportedProblem(LenientReport):
    """A problem with the data of a device: its name, since when, and what to do."""

    name: ShortText
    since: Moment
    words: LongText = ""


class ReportedStatus(StrictRequest):
    """How the device is doing; without `monitor` it is an agent that has none."""

    samples: Count  # judged
    learnt: NonNegative  # by the device itself, as they weigh now
    alarms: Count
    skipped: Count = 0
    learning: bool = True
    incarnation: Count = 0
    revision: Count = 0
    pattern: ShortText | None = None  # in which it is now
    patterns: list[ReportedPattern] = Field(default_factory=list, max_length=MAX_REPORT_PATTERNS)
    exchange: LongText = ""  # how the last exchange went
    told: LongText = ""  # how the last merge went
    synced: Timestamp | None = None
    saved: LongText = "ok"
    desired: Count | None = None  # the revision of the desired state that it follows
    monitor: ReportedMonitor | None = None
    reviews: ReportedReviews | None = None
    settings: ReportedSettings | None = None
    configuration: ReportedConfiguration | None = None
    values: Annotated[list[ReportedValue] | None, _first(MAX_VALUES)] = None
    problems: Annotated[list[ReportedProblem], _first(MAX_REPORT_PROBLEMS)] = Field(
        default_factory=list
    )

    @property
    def learns(self) -> str:
        """Whether the device learns: on, off, or stopped by drift."""
        monitor = self.monitor
        if not self.learning or (monitor is not None and monitor.learn == "off"):
            return "off"
        return "stopped by drift" if monitor is not None and monitor.learning_stopped else "on"


class ReportRequest(StrictRequest):
    """A report: scores and alarms since the last one, the status, and the merge, if it is new."""

    sent: Timestamp  # by the clock of the device
    status: ReportedStatus
    points: list[ReportedPoint] = Field(default_factory=list, max_length=MAX_REPORT_POINTS)
    alarms: list[ReportedAlarm] = Field(default_factory=list, max_length=MAX_REPORT_ALARMS)
    merge: ReportedMerge | None = None
    leaving: bool = False


class ReportResponse(BaseModel):
    """When to report again, and the revision of the desired state; `choice` is its old name.

    `monitor` says that this server takes `monitor` and `reviews` in a status, `settings` that it
    takes `settings` and `values`, `problems` and `configuration` that it takes these; older ones do
    not.
    """

    every_s: float
    choice: int
    desired: int
    monitor: bool
    settings: bool
    problems: bool
    configuration: bool


class DesiredAdoption(BaseModel):
    """Whose contributions a device adopts; `devices` null: those of all others.

    `excluded` lists contributions that no device adopts, as device, incarnation and pattern. A
    device of a fleet that gives only totals gets their number instead, and so does one whose list
    would be longer than agents read.
    """

    devices: list[str] | None
    excluded: list[tuple[str, int, str]] | int


PatternDecision = Literal["approve", "fault", "dismiss", "undo"]
Decision = Literal[
    "approve",
    "fault",
    "dismiss",
    "undo",
    "acknowledge",
    "snooze",
    "watch",
    "relearn",
    "accept_drift",
]


class ReviewRequest(StrictRequest):
    """A decision about a device.

    "approve", "fault", "dismiss" and "undo" need the name of a `pattern`, "fault" also what to call
    it. "acknowledge" is about an `episode`, null for all; "snooze" lasts `until` a time in Unix
    seconds, null ends it. "watch" ends commissioning, "relearn" begins it again, "accept_drift"
    takes what was learnt so far as normal.
    """

    decision: Decision
    pattern: Annotated[str, StringConstraints(max_length=200)] = ""
    name: Annotated[str, StringConstraints(max_length=200)] = ""
    episode: WholeNumber | None = None
    until: Timestamp | None = None
    comment: LongText = ""


class DesiredReview(BaseModel):
    """A review that the device has not acted upon yet, as far as the server knows."""

    number: int
    decision: Decision
    pattern: str
    name: str
    episode: int | None
    until: float | None
    by: str
    at: float
    comment: str


class ReviewResponse(DesiredReview):
    """A review, and what became of it; `why` says why the device refused it."""

    state: Literal["waiting", "done", "refused"]
    why: str


class DeviceResponse(BaseModel):
    """A device, and the status that it reported last; null if it never did.

    `state` is "online", "problem" (online, but with a problem of its data or without any data),
    "quiet", "offline" or "revoked", `heard` when the last report came,
    `waiting` how many reviews it has not acted upon yet.
    """

    device: str
    state: str
    enrolled: float
    revoked: float | None
    seen: float | None
    heard: float | None
    waiting: int
    status: ReportedStatus | None


class EpisodeResponse(BaseModel):
    """An episode: one alarm of a device from its first sample to its last.

    `id` names it on this server, `number` on its device. `began` and `ended` (null: open) are times
    of samples; `reported` and `changed` are by the server's clock. `peak` is the highest score, 1
    is usual; `inputs` are those that carried it, each with its factor. `fault` is the known fault
    that it is most like, `like` says so in words. `acknowledged` is when a person had seen it.
    """

    model_config = ConfigDict(from_attributes=True)

    id: int
    device: str
    incarnation: int
    number: int
    began: float
    ended: float | None
    peak: float
    threshold: float | None
    samples: int
    inputs: list[tuple[str, float]]
    pattern: str | None
    fault: str | None
    like: str | None
    acknowledged: float | None
    acknowledged_by: str
    comment: str
    commented: float | None
    commented_by: str
    reported: float
    changed: float


class EpisodePage(BaseModel):
    """Episodes in the order of their last change; `next` is the `since` of those after them."""

    episodes: list[EpisodeResponse]
    next: float
    more: bool


class CommentRequest(StrictRequest):
    """A comment of one line on an episode; an empty one removes what was there."""

    comment: Comment


class ScoreResponse(BaseModel):
    """What was scored within a step; `at` is its beginning, `highest` the highest score."""

    at: float
    scores: int
    mean: float
    highest: float
    threshold: float | None
    alarms: int


class ScoresResponse(BaseModel):
    """Scores in steps of `step_s` seconds, oldest first; steps without a score are left out."""

    step_s: float
    scores: list[ScoreResponse]


class SettingsRequest(StrictRequest):
    """All settings of a device that an operator may change; what is left out is as its file says.

    `label` is what people call it. `limit` is a fixed limit of the alarm level, `false_alarms` a
    promised rate instead, such as "1 per week": at most one of both.
    """

    label: Annotated[str, StringConstraints(max_length=100, strip_whitespace=True)] = ""
    limit: Annotated[float, Field(gt=0.0, le=1e9, allow_inf_nan=False)] | None = None
    false_alarms: (
        Annotated[str, StringConstraints(min_length=1, max_length=100)]
        | Annotated[float, Field(gt=0.0, lt=1.0, allow_inf_nan=False)]
        | None
    ) = None
    comment: LongText = ""


class DesiredSettings(BaseModel):
    """The settings that a device applies once; version 0: nothing was ever set."""

    version: int
    label: str
    limit: float | None
    false_alarms: float | str | None


class SettingsVersion(DesiredSettings):
    """A version of a device's settings: when, by whom, and which version it took back."""

    at: float
    by: str
    comment: str
    undoes: int | None


class SettingsResponse(DesiredSettings):
    """The settings of a device that are in force, and what became of them.

    `state` is "none" if nothing was ever set, "waiting" until the device has reported that it knows
    them, then "applied" or "refused", with the reason in `why`. `versions` are all, newest first.
    """

    state: Literal["none", "waiting", "applied", "refused"]
    why: str
    versions: list[SettingsVersion]


class ConfigurationRequest(StrictRequest):
    """Tables for the agents of a fleet, or of one device, as in their files; in place of earlier.

    Only some keys may be set from elsewhere: none that names programs, paths, secrets, the
    exchange, the release gate or what is reported.
    """

    tables: dict[str, Any] = Field(default_factory=dict)
    comment: LongText = ""


class DesiredConfiguration(BaseModel):
    """The fleet's configuration for a device; version 0: nothing was ever set."""

    version: int
    tables: dict[str, Any]


class ConfigurationVersionResponse(DesiredConfiguration):
    """A version of a configuration: when, by whom, and which version it took back."""

    at: float
    by: str
    comment: str
    undoes: int | None


class DeviceConfigurationState(BaseModel):
    """What became of the configuration on a device.

    `version` is what it should have, `in_force` what it has. `state` is "none", "waiting",
    "applied" or "refused", with the reason, or what waits for a restart, in `why`.
    """

    device: str
    version: int
    in_force: int
    state: Literal["none", "waiting", "applied", "refused"]
    why: str


class ConfigurationResponse(DesiredConfiguration):
    """The configuration of all devices, or of one, and what became of it; versions newest first."""

    versions: list[ConfigurationVersionResponse]
    devices: list[DeviceConfigurationState]


class DesiredResponse(BaseModel):
    """What a device should do; readers ignore keys that they do not know.

    Each review is acted upon once, in the order of their numbers, and stays until the device has
    reported that; of many, the first are here. Settings and the fleet's configuration are applied
    once, when their version is another one.
    """

    format: Literal[1]
    revision: int
    adopt: DesiredAdoption
    reviews: list[DesiredReview]
    settings: DesiredSettings
    configuration: DesiredConfiguration


KEY_HEX = "^[0-9a-f]{64}$"
MAX_SLOTS = 16  # patterns that a masked fleet adds up apart


class KeysRequest(StrictRequest):
    """The public keys of a device of a masked fleet, in hexadecimal digits."""

    agreement: str = Field(pattern=KEY_HEX)
    verification: str = Field(pattern=KEY_HEX)


class CohortRequest(StrictRequest):
    """How the cohorts of a masked fleet are formed."""

    min_devices: int | None = Field(default=None, ge=3, le=10_000)
    least: int | None = Field(
        default=None,
        ge=3,
        le=10_000,
        description="The former name of `min_devices`.",
        json_schema_extra={"deprecated": True},
    )
    slots: list[Annotated[str, StringConstraints(min_length=1, max_length=200)]] = Field(
        default=["normal"], min_length=1, max_length=MAX_SLOTS
    )
    size: int = Field(default=100, ge=3, le=10_000)
    collect_s: float = Field(default=3600.0, gt=0.0, le=30 * 86_400.0)
    missing: float = Field(default=1 / 3, ge=0.0, lt=0.5)
    colluding: float = Field(default=0.0, ge=0.0, lt=0.5)
    mix: bool = False

    def settings(self) -> dict[str, Any]:
        """Return the settings, `least` under either of its names."""
        least = self.least if self.min_devices is None else self.min_devices
        return self.model_dump(exclude={"min_devices"}) | {"least": least}


class CohortResponse(BaseModel):
    """A cohort of a masked fleet, and where it is."""

    cohort: int
    digest: str
    devices: list[str]
    least: int
    keepers: int
    threshold: int
    slots: list[str]
    epoch: int
    state: str
    why: str
    samples: float
    distance: float | None
    impossible: bool = False
    formed: float
    ended: float | None
    dropped: float | None
    noise: NoiseResponse | None = None
    noisy: int = 0


class SuspectsResponse(BaseModel):
    """The devices of a masked fleet that were most often in a cohort that differed."""

    devices: list[str]
    times: int
    formings: int


class CohortDescription(BaseModel):
    """The cohort of a device: its members with their public keys, and its numbers."""

    cohort: dict[str, Any]


class EpochResponse(BaseModel):
    """What became of an epoch: whose deltas its total holds, signed by its keepers."""

    epoch: int
    state: str
    why: str
    cohort: dict[str, Any] | None = None
    survivors: dict[str, str]
    signatures: dict[str, str]


class MaskedStatusResponse(BaseModel):
    """What a device of a masked fleet may send now."""

    registered: bool
    cohort: int | None
    epoch: int
    state: str
    uploaded: bool
    asked: bool
    through: int
    dropped: list[int]
    noise: NoiseResponse | None = None
    total: str = ""
    described: dict[str, Any] | None = None
    result: EpochResponse | None = None
    listed: dict[str, str] | None = None
