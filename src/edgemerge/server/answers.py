"""The forms of what is asked and answered in JSON; the description of the API is made of them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    RootModel,
    StringConstraints,
)

from edgemerge.server.audit import Entry
from edgemerge.server.names import NAME

Reads = Literal["totals", "contributions"]
Devices = Annotated[list[Annotated[str, StringConstraints(pattern=NAME)]], Field(max_length=5000)]


class Asked(BaseModel):
    """What is asked for; a word that we do not know is refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class InvitationAsked(Asked):
    """For whom an invitation is, and for how long it can be used."""

    device: str | None = Field(default=None, pattern=NAME)
    valid_s: float = Field(default=86_400.0, gt=0.0, le=366 * 86_400.0)


class EnrolmentAsked(Asked):
    """The name under which a device enrols."""

    device: str = Field(pattern=NAME)


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


def _whole(value: Any) -> Any:
    """Take 5.0 for 5: in JSON both are the same number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


class AdoptAsked(Asked):
    """Let these targets be told of these sources only; without a source, of nobody."""

    kind: Literal["adopt"]
    sources: Devices
    targets: Annotated[Devices, Field(min_length=1)]


class RevokeAsked(Asked):
    """Let one contribution be told to nobody."""

    kind: Literal["revoke"]
    device: str = Field(pattern=NAME)
    incarnation: Annotated[int, Field(ge=0, lt=2**63), BeforeValidator(_whole)]
    pattern: str = Field(min_length=1, max_length=200)


class ChoiceAsked(RootModel[Annotated[AdoptAsked | RevokeAsked, Field(discriminator="kind")]]):
    """What an operator decides about who is told what."""


class PreviewAsked(Asked):
    """Which targets would be told of which sources only."""

    sources: Devices
    targets: Annotated[Devices, Field(min_length=1, max_length=200)]


class ChoiceTold(BaseModel):
    """A decision about who is told what; `undone` is when it was, if it was."""

    number: int
    at: float
    actor: str
    kind: Literal["adopt", "revoke"]
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
