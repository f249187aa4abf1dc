"""The forms of what is asked and answered in JSON; the description of the API is made of them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from edgemerge.server.audit import Entry
from edgemerge.server.names import NAME

Reads = Literal["totals", "contributions"]


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
