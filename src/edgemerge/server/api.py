"""The HTTP API: contributions, reports, pulls, fleets, devices, status, choices, accounts.

The names of the route functions are part of the OpenAPI description (operation ids and summaries).
"""

from __future__ import annotations

import logging
from asyncio import wrap_future
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Annotated, Any, NamedTuple

from anyio import CapacityLimiter
from fastapi import Depends, Path, Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import AfterValidator, BaseModel

from edgemerge import __version__
from edgemerge.core.errors import DeniedError, EdgemergeError, SettingError
from edgemerge.core.ledger import Key, Kind, Selection
from edgemerge.core.trust import Trust
from edgemerge.exchange.client import MAX_DESIRED_BYTES, MAX_REPORT_BYTES
from edgemerge.exchange.configuration import without_addresses
from edgemerge.privacy.masking import SIGNATURE_BYTES
from edgemerge.privacy.masking import Member as MaskedMember
from edgemerge.privacy.noise import (
    INPUT_RADIUS,
    MAX_DELTA,
    MAX_EPSILON,
    MIN_DELTA,
    MIN_EPSILON,
    SHARE_OF_MEAN,
    NoiseSettings,
    Release,
)
from edgemerge.server.audit import FIRST_HASH
from edgemerge.server.auth import KEEP, Account, Caller, Device, Issued
from edgemerge.server.choices.rules import Choice, Desired
from edgemerge.server.contributions import (
    PutResult,
    ReceivedContribution,
    decode_and_check,
    put,
)
from edgemerge.server.db.base import DiskFullError
from edgemerge.server.faults import put_fault
from edgemerge.server.fleets import (
    NAME_PATTERN,
    Fleet,
    default_min_devices,
    must_be_pattern_name,
    must_not_be_masked,
)
from edgemerge.server.http import (
    ETAG_HEADER,
    NOT_MODIFIED,
    OCTET_STREAM,
    Admin,
    ApiRouter,
    CallerDep,
    HeavyLimiter,
    InFlight,
    InFlightDep,
    Member,
    Name,
    Number,
    Operator,
    Reader,
    Sender,
    SenderCheck,
    ServiceDep,
    Token,
    UnauthenticatedError,
    Viewer,
    bytes_body_schema,
    bytes_response_schema,
    etag_response,
    if_none_match,
    json_body_schema,
    json_request,
    load_of,
    note_caller,
    problem_responses,
    refuse_invalid,
    run_in_thread,
    scores_csv,
    wall_path,
)
from edgemerge.server.masked_epochs import CohortRecord, MaskedStatus
from edgemerge.server.metrics import CONTENT_TYPE
from edgemerge.server.notifications import Receiver
from edgemerge.server.reviews import Review
from edgemerge.server.schemas import (
    MAX_MOMENT,
    MAX_SLOTS,
    TRUST_PATTERN,
    AccountChange,
    AccountRequest,
    AccountResponse,
    AdoptRequest,
    AuditPage,
    ChoiceRequest,
    ChoiceResponse,
    CohortDescription,
    CohortRequest,
    CohortResponse,
    CommentRequest,
    ConfigurationRequest,
    ConfigurationResponse,
    ConfigurationVersionResponse,
    Conflict,
    ContributionList,
    ContributionSummary,
    DecideRequest,
    DesiredAdoption,
    DesiredConfiguration,
    DesiredResponse,
    DesiredReview,
    DesiredSettings,
    DeviceConfigurationState,
    DeviceResponse,
    Dropped,
    Enrolment,
    EnrolmentRequest,
    EpisodePage,
    EpisodeResponse,
    EpochResponse,
    ExcludeRequest,
    FaultSummary,
    FleetSummary,
    Health,
    Invitation,
    InvitationRequest,
    IssuedAccount,
    KeysRequest,
    MaskedStatusResponse,
    NoiseResponse,
    PreviewRequest,
    PreviewResponse,
    PutResponse,
    Reads,
    ReceiverRequest,
    ReceiverResponse,
    ReplacementRequest,
    ReportRequest,
    ReportResponse,
    ReviewRequest,
    ReviewResponse,
    RotationRequest,
    ScoreResponse,
    ScoresResponse,
    SettingsRequest,
    SettingsResponse,
    SettingsVersion,
    SimilarityResponse,
    Status,
    SuspectsResponse,
    TestedReceiver,
    TrustRequest,
    WaitingResponse,
    WallLinkRequest,
)
from edgemerge.server.service import FleetCounts, Service
from edgemerge.server.settings import (
    EVERY_DEVICE,
    ConfigurationVersion,
    DeviceSettings,
    configuration_state,
    settings_state,
)
from edgemerge.server.trust import WaitingContribution
from edgemerge.wire.codec import encode

log = logging.getLogger(__name__)
router = ApiRouter()
# What else routes may answer: those that read, may be busy, write, or take a body.
READ_PROBLEMS = problem_responses(401, 403, 404, 422)
BUSY_PROBLEMS = problem_responses(401, 403, 404, 422, 503)
WRITE_PROBLEMS = problem_responses(401, 403, 404, 422, 503, 507)
DROP_PROBLEMS = problem_responses(401, 403, 404, 422, 429, 503, 507)
UNDO_PROBLEMS = problem_responses(401, 403, 404, 409, 422, 503, 507)
BODY_PROBLEMS = problem_responses(400, 401, 403, 404, 413, 422, 503)
CHANGE_PROBLEMS = problem_responses(400, 401, 403, 404, 413, 422, 503, 507)
CONFLICT_PROBLEMS = problem_responses(400, 401, 403, 404, 409, 413, 422, 503, 507)
MAX_INLINE_BYTES = 2**20  # bytes
CONTRIBUTION_PATH = "/fleets/{fleet}/contributions/{device}/{incarnation}/{pattern}"
PUT_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"model": PutResponse, "description": "The very same was there already."},
    **problem_responses(400, 401, 403, 404, 413, 422, 429, 503, 507),
    409: {
        "model": Conflict,
        "description": "The revision is stale, or contradicts the one that is stored.",
    },
}


def _valid_pattern(value: str) -> str:
    must_be_pattern_name(value)
    return value


PatternName = Annotated[str, Path(min_length=1, max_length=200), AfterValidator(_valid_pattern)]


class Push(NamedTuple):
    """What a device sends under its own name."""

    sender: tuple[Caller, Fleet]
    key: Key
    service: Service
    load: InFlight
    request: Request

    async def keep(self, kind: Kind) -> Response:
        """Read, check and store it, and say what became of it."""
        (caller, agreed), service, request = self.sender, self.service, self.request
        must_not_be_masked(agreed)
        store = put if kind == "normal" else put_fault
        with service.metrics.refused_contributions():
            service.push_limiter.admit(caller)
        async with self.load.body(request, agreed.max_contribution_bytes) as data:
            service.metrics.received.inc(len(data))
            limiter = request.app.state.check_limiter
            with service.metrics.refused_contributions():
                received = await _decode_and_check(data, agreed, self.key, limiter, kind)
                now = service.clock()
                submitted = service.writer.submit(
                    lambda tx: store(tx, agreed, received, caller, now), agreed.name
                )
                result = await wrap_future(submitted)
        outcome = result.problem or ("new" if result.new else "same")
        service.metrics.contributions.labels(outcome).inc()
        if result.new:
            service.history.pushed(agreed.name, caller.name, len(data))
        return _put_response(result)


async def _push(
    sender: Sender,
    incarnation: Number,
    pattern: PatternName,
    service: ServiceDep,
    load: InFlightDep,
    request: Request,
) -> Push:
    return Push(sender, (sender[0].name, incarnation, pattern), service, load, request)


PushDep = Annotated[Push, Depends(_push)]
PUT_OPTIONS: dict[str, Any] = {
    "status_code": 201,
    "response_model": PutResponse,
    "responses": PUT_RESPONSES,
}


@router.put(
    CONTRIBUTION_PATH,
    openapi_extra=bytes_body_schema("A contribution whose origin is the address."),
    **PUT_OPTIONS,
)
async def put_contribution(push: PushDep) -> Response:
    """Keep a device's own contribution; once answered it is on disk, and repeats do no harm."""
    return await push.keep("normal")


async def _decode_and_check(
    data: bytes, fleet: Fleet, key: Key, limiter: CapacityLimiter, kind: Kind
) -> ReceivedContribution:
    """Read and check a contribution; beside the loop only if it would hold that up for long.

    Two milliseconds here cost less than in a thread, which would fight the loop for Python's lock
    at each of a hundred steps: 640 kB at 100 devices, twice as many in a second.
    """
    if len(data) <= MAX_INLINE_BYTES:
        return decode_and_check(data, fleet, key, kind)
    return await run_in_thread(lambda: decode_and_check(data, fleet, key, kind), limiter)


def _put_response(result: PutResult) -> JSONResponse:
    revision = result.revision
    if not result.problem:
        body = PutResponse(kept=result.new, revision=revision, epoch=result.epoch)
        return JSONResponse(body.model_dump(), 201 if result.new else 200)
    words = {
        "stale": f"revision {revision} is known already: share under a higher one, or start "
        "a new incarnation if this device runs on an old copy of its state",
        "equivocation": f"revision {revision} came before with other bytes; both were noted: "
        "never share two things under one revision",
    }[result.problem]
    return JSONResponse({"error": words, "problem": result.problem, "newest": revision}, 409)


@router.get(
    CONTRIBUTION_PATH,
    responses={
        **bytes_response_schema("The contribution."),
        **READ_PROBLEMS,
    },
    response_class=Response,
)
def get_contribution(
    fleet: Name,
    device: Name,
    incarnation: Number,
    pattern: PatternName,
    caller: Member,
    service: ServiceDep,
    request: Request,
) -> Response:
    """Return a single contribution, where the fleet allows it."""
    stored, data = service.contribution(fleet, (device, incarnation, pattern), caller)
    return etag_response(None if if_none_match(request) == stored.digest else data, stored.digest)


@router.get("/fleets/{fleet}/contributions", responses=READ_PROBLEMS)
def list_contributions(fleet: Name, caller: Reader, service: ServiceDep) -> ContributionList:
    """List contributions without their numbers: all of them, or one's own in a fleet of totals."""
    agreed, contributions = service.contributions(fleet, caller)
    found = [ContributionSummary.model_validate(each) for each in contributions]
    return ContributionList(epoch=agreed.epoch, contributions=found)


@router.delete("/fleets/{fleet}/contributions/{device}", responses=DROP_PROBLEMS)
def drop(fleet: Name, device: Name, caller: Member, service: ServiceDep) -> Dropped:
    """Drop all contributions of a device; an operator may, and the device itself."""
    return Dropped(dropped=service.drop(fleet, device, caller))


@router.delete("/fleets/{fleet}/contributions/{device}/{incarnation}", responses=DROP_PROBLEMS)
def drop_incarnation(
    fleet: Name, device: Name, incarnation: Number, caller: Member, service: ServiceDep
) -> Dropped:
    """Drop what a device contributed in one incarnation; an operator may, and the device itself."""
    return Dropped(dropped=service.drop(fleet, device, caller, incarnation=incarnation))


def report_body_schema() -> dict[str, object]:
    """Describe the body with its parts inline, not as references."""
    schema = ReportRequest.model_json_schema()
    parts = schema.pop("$defs")

    def whole(part: Any) -> Any:
        if isinstance(part, list):
            return list(map(whole, part))
        if not isinstance(part, dict):
            return part
        if "$ref" in part:
            return whole(parts[part["$ref"].rpartition("/")[2]])
        return {name: whole(value) for name, value in part.items()}

    content = {"application/json": {"schema": whole(schema)}}
    return {"requestBody": {"required": True, "content": content}}


@router.post(
    "/fleets/{fleet}/devices/{device}/report",
    response_model=ReportResponse,
    responses=problem_responses(400, 401, 403, 413, 422, 429, 503),
    openapi_extra=report_body_schema(),
)
async def report(fleet: Name, device: Name, token: Token, request: Request) -> Response:
    """Take a device's own report; operators see it at once, and it may be lost in a crash."""
    service, load = request.app.state.service, request.app.state.load
    caller = note_caller(request, await _reporting_device(service, token, fleet, device))
    with service.metrics.refusals():
        service.report_limiter.admit(caller)
        async with load.body(request, MAX_REPORT_BYTES) as data:
            with refuse_invalid():
                found = ReportRequest.model_validate_json(data)
    now = service.clock()
    revision = service.take_report(fleet, device, found, now)
    service.metrics.count_report(found)
    answer = {"every_s": service.history.every_s(now), "choice": revision, "desired": revision}
    takes = ("monitor", "settings", "problems", "configuration")
    return JSONResponse({**answer, **dict.fromkeys(takes, True)})


async def _reporting_device(service: Service, token: str, fleet: str, device: str) -> Caller:
    """Let only the device itself pass; usually without reading the database."""

    def find_caller() -> Caller:
        found = service.caller(token)
        if found.fleet is not None:
            service.choices.desired_revision(found.fleet, found.name)  # from then on in memory
        return found

    limiter = service.report_limiter
    caller = limiter.known(token)
    if caller is None:
        generation = limiter.generation  # a token revoked from here on is not remembered
        try:
            caller = await run_in_thread(find_caller)
        except DeniedError as error:
            raise UnauthenticatedError(str(error)) from error
        limiter.remember(token, caller, generation)
    if (caller.fleet, caller.name) != (fleet, device):
        raise DeniedError(
            f"only {device} may send its reports: this token is of another device or fleet"
        )
    return caller


@router.get(
    "/fleets/{fleet}/devices/{device}/desired",
    response_model=DesiredResponse,
    responses={
        200: {"headers": ETAG_HEADER},
        304: {"description": NOT_MODIFIED},
        **BUSY_PROBLEMS,
    },
)
def desired(
    fleet: Name, device: Name, caller: Reader, service: ServiceDep, request: Request
) -> Response:
    """Return what a device should do: whose contributions to adopt, which reviews to act upon.

    The revision is the ETag; it rises with every change.
    """
    if not caller.is_person and caller.name != device:
        raise DeniedError(f"only {device} itself or a person may read its desired state")
    agreed, found = service.choices.desired(fleet, device)
    headers = {"ETag": f'"{found.revision}"', "Cache-Control": "no-cache"}
    if if_none_match(request) == str(found.revision):
        return Response(status_code=304, headers=headers)
    listed = caller.is_person or agreed.read_mode == "contributions"
    body = _desired_json(device, found, list_excluded=listed)
    return Response(body, media_type="application/json", headers=headers)


def _desired_json(device: str, found: Desired, *, list_excluded: bool) -> bytes:
    """Encode a desired state so that agents read it.

    A list of exclusions that is too long becomes a number; of too many reviews, the first are in
    it, and the others when the device has acted upon those. One without its comment always fits.
    """
    devices = None if found.devices is None else list(found.devices)
    reviews = [DesiredReview(**review.plain) for review in found.reviews]
    number = len(found.excluded)
    every: list[list[Key] | int] = [list(found.excluded)] if list_excluded else []
    forms = [(excluded, reviews) for excluded in (*every, number)]
    forms += [(number, reviews[:count]) for count in range(len(reviews) - 1, 0, -1)]
    forms += [(number, [each.model_copy(update={"comment": ""})]) for each in reviews[:1]]
    for excluded, some in forms:
        adopt = DesiredAdoption(devices=devices, excluded=excluded)
        document = DesiredResponse(
            format=1,
            revision=found.revision,
            adopt=adopt,
            reviews=some,
            settings=DesiredSettings(**found.settings),
            configuration=DesiredConfiguration(**found.configuration),
        )
        data = document.model_dump_json().encode()
        if len(data) <= MAX_DESIRED_BYTES:
            return data
    raise SettingError(
        f"the desired state of {device} has {len(data)} bytes, expected at most "
        f"{MAX_DESIRED_BYTES}: choose fewer sources for it"
    )


def formerly(name: str, **bounds: float) -> Any:
    """Return a parameter of a query that is the former name of another one."""
    return Query(deprecated=True, description=f"The former name of `{name}`.", **bounds)  # type: ignore[arg-type]  # ge and le


DeviceFilter = Annotated[
    list[Annotated[str, Query(pattern=NAME_PATTERN)]] | None, Query(max_length=1000)
]


async def selection_of(
    caller: Member,
    incarnation: Annotated[int | None, Query(ge=0, lt=2**63)] = None,
    device: DeviceFilter = None,
    without: DeviceFilter = None,
    pattern: Annotated[str | None, Query(min_length=1, max_length=200)] = None,
    max_contributions: Annotated[int | None, Query(ge=1, le=1_000_000)] = None,
    largest: Annotated[int | None, formerly("max_contributions", ge=1, le=1_000_000)] = None,
) -> Selection:
    """Read which contributions are wanted; a device's own, of its incarnation or all, are not."""
    return Selection(
        receiver=None if caller.is_person else caller.name,
        incarnation=incarnation,
        devices=None if device is None else tuple(device),
        without=tuple(without or ()),
        pattern=pattern,
        largest=largest if max_contributions is None else max_contributions,
    )


SelectionDep = Annotated[Selection, Depends(selection_of)]


@router.get(
    "/fleets/{fleet}/total",
    responses={**bytes_response_schema("A merged sum: one part, or none."), **BUSY_PROBLEMS},
    response_class=Response,
)
def total(
    fleet: Name, caller: Member, service: ServiceDep, selection: SelectionDep, request: Request
) -> Response:
    """Return the exact sum of what others contributed, and the list of what is in it."""
    answer = service.pull(fleet, selection, caller, if_none_match(request))
    return etag_response(answer.data, answer.tag)


@router.get(
    "/fleets/{fleet}/patterns",
    responses={**bytes_response_schema("A merged sum: one part a pattern."), **BUSY_PROBLEMS},
    response_class=Response,
)
def patterns(
    fleet: Name, caller: Member, service: ServiceDep, selection: SelectionDep, request: Request
) -> Response:
    """Return an exact sum for each pattern of what others contributed, largest first."""
    answer = service.pull(fleet, selection, caller, if_none_match(request), grouped=True)
    return etag_response(answer.data, answer.tag)


FAULT_PATH = "/fleets/{fleet}/faults/{device}/{incarnation}/{pattern}"


@router.put(
    FAULT_PATH,
    openapi_extra=bytes_body_schema("A fault whose origin is the address; empty, it is withdrawn."),
    **PUT_OPTIONS,
)
async def put_named_fault(push: PushDep) -> Response:
    """Keep a fault that a person named on this device, apart from what is normal."""
    return await push.keep("fault")


@router.get(
    "/fleets/{fleet}/faults",
    responses={**bytes_response_schema("Known faults, those alike as one."), **BUSY_PROBLEMS},
    response_class=Response,
)
def pull_faults(
    fleet: Name, caller: Member, service: ServiceDep, selection: SelectionDep, request: Request
) -> Response:
    """Return the faults that others named: an exact sum of those that are alike, and who named it.

    Of the selection, `device` and `without` count.
    """
    answer = service.faults.pull(fleet, selection, caller, if_none_match(request))
    return etag_response(answer.data, answer.tag)


@router.get("/fleets/{fleet}/faults/list", responses=READ_PROBLEMS)
def list_known_faults(fleet: Name, _caller: Viewer, service: ServiceDep) -> list[FaultSummary]:
    """Return a fleet's known faults without their numbers, the largest first."""
    agreed, found = service.faults.known(fleet)
    return [
        FaultSummary(**fault.plain(), told=len(fault.devices) >= agreed.devices_needed)
        for fault in found
    ]


MAX_PROJECTION_BYTES = 2**20  # bytes that a projection may have


def fleet_json(fleet: Fleet, counts: FleetCounts) -> FleetSummary:
    """Return a fleet as the API shows it."""
    p = fleet.projection
    return FleetSummary(
        fleet=fleet.name,
        reads=fleet.read_mode,  # type: ignore[arg-type]  # one of the two words
        least=fleet.min_devices,
        growing=fleet.growing_only,
        fingerprint=p.fingerprint,
        inputs=p.n_inputs,
        hidden=p.n_hidden,
        devices=counts.devices,
        contributions=counts.contributions,
        samples=counts.samples,
        epoch=fleet.epoch,
        created=fleet.created,
        trust=fleet.trust,
        released=counts.released,
        noise=None if fleet.noise is None else NoiseResponse(**fleet.noise.plain()),
    )


@router.get("/fleets", responses=problem_responses(401))
def list_fleets(service: ServiceDep, caller: CallerDep) -> list[FleetSummary]:
    """Return all fleets to a person, and its own to a device."""
    return [fleet_json(fleet, counts) for fleet, counts in service.fleets(caller)]


@router.put(
    "/fleets/{fleet}",
    status_code=201,
    responses={
        200: {"model": FleetSummary, "description": "The same is there already."},
        **CONFLICT_PROBLEMS,
    },
    openapi_extra=bytes_body_schema("A projection."),
)
async def create_fleet(
    *,
    fleet: Name,
    caller: Admin,
    service: ServiceDep,
    load: InFlightDep,
    request: Request,
    response: Response,
    reads: Reads = "totals",
    min_devices: Annotated[int | None, Query(ge=1, le=10_000)] = None,
    no_forgetting: Annotated[bool, Query()] = False,
    least: Annotated[int | None, formerly("min_devices", ge=1, le=10_000)] = None,
    growing: Annotated[bool, formerly("no_forgetting")] = False,
    trust: Annotated[str | None, Query(pattern=TRUST_PATTERN)] = None,
    epsilon: Annotated[float | None, Query(ge=MIN_EPSILON, le=MAX_EPSILON)] = None,
    delta: Annotated[float | None, Query(ge=MIN_DELTA, le=MAX_DELTA)] = None,
    radius: Annotated[float | None, Query(gt=0.0, le=1.0)] = None,
    release: Release | None = None,
    centred_on: Annotated[str | None, Query(pattern=NAME_PATTERN)] = None,
) -> FleetSummary:
    """Make a fleet with a projection that all its devices will share.

    With `reads=totals` a device gets no sum, and no difference of two sums, that is about fewer
    than `min_devices` other devices, 3 if not given; with 1 it gets every change at once. Where
    devices may read single contributions, `min_devices` is 1 if not given. With `no_forgetting`
    contributions whose sums decreased are rejected.

    Without `trust` a new fleet trusts its members; without `trust` and `min_devices`, one that is
    there keeps what it has.

    With `epsilon` and `delta` devices of a masked fleet add noise. With `release=mean` they release
    their mean alone, for a twentieth of the budget; a fleet that is `centred_on` that one has the
    rest of the budget, and the projection of that fleet, which is sent, centred on the mean.
    """
    noise = noise_asked(epsilon, delta, radius=radius, release=release, centred_on=centred_on)
    rule = str(Trust.parse(trust or "members"))
    asked = least if min_devices is None else min_devices
    few = default_min_devices(reads) if asked is None else asked
    growing = no_forgetting or growing
    async with load.body(request, MAX_PROJECTION_BYTES) as data:
        made = Fleet(fleet, data, reads, few, growing, 0, service.clock(), rule, noise)
        if centred_on is not None:
            made = await run_in_thread(lambda: centred_fleet(service, made, centred_on, radius))
        await run_in_thread(lambda: _must_fit(made, load))
        same = {"any_trust": trust is None, "any_min_devices": asked is None}
        new = await run_in_thread(lambda: service.create(made, caller, **same))
    response.status_code = 201 if new else 200
    return await run_in_thread(lambda: _get_fleet_json(service, fleet, caller))


def _must_fit(fleet: Fleet, load: InFlight) -> None:
    size, limit = fleet.max_contribution_bytes, load.limits.max_bytes_in_flight
    if size > limit:
        raise SettingError(
            f"contributions of this fleet may have {size} bytes, expected at most "
            f"{limit}: choose fewer inputs or hidden values"
        )


def _get_fleet_json(service: ServiceDep, fleet: str, caller: CallerDep) -> FleetSummary:
    service.fleet(fleet)  # 404 before anything else
    seen = service.fleets(caller)
    return next(fleet_json(found, counts) for found, counts in seen if found.name == fleet)


def noise_asked(
    epsilon: float | None,
    delta: float | None,
    *,
    radius: float | None,
    release: Release | None,
    centred_on: str | None,
) -> NoiseSettings | None:
    """Return the noise that a request asks for; None without, or if another fleet says it."""
    if centred_on is not None:
        if (epsilon, delta, release) != (None, None, None):
            raise SettingError(
                f"found epsilon, delta or release beside centred_on={centred_on}, expected none: "
                "the budget is that of the fleet whose mean it is"
            )
        return None
    if epsilon is None or delta is None:
        if (epsilon, delta, radius, release) != (None, None, None, None):
            raise SettingError("noise needs both epsilon and delta, such as 4 and 1e-5")
        return None
    share = SHARE_OF_MEAN if release == "mean" else 1.0
    return NoiseSettings(epsilon, delta, radius or INPUT_RADIUS, release or "sums", share)


def centred_fleet(service: Service, fleet: Fleet, centred_on: str, radius: float | None) -> Fleet:
    """Return a fleet with the projection that is centred on the mean of another, and its noise."""
    projection, noise = service.masked.centre(centred_on)
    service.fleet(centred_on).projection.must_equal(fleet.projection)
    noise = noise if radius is None else replace(noise, radius=radius)
    return replace(fleet, projection_bytes=encode(projection), noise=noise)


@router.get("/fleets/{fleet}", responses=READ_PROBLEMS)
def get_fleet(fleet: Name, caller: Reader, service: ServiceDep) -> FleetSummary:
    """Describe what a fleet has agreed on, and how much is in it."""
    return _get_fleet_json(service, fleet, caller)


@router.put("/fleets/{fleet}/trust", responses=CHANGE_PROBLEMS)
def set_trust(
    fleet: Name,
    caller: Admin,
    service: ServiceDep,
    body: Annotated[TrustRequest, Depends(json_request(TrustRequest))],
) -> FleetSummary:
    """Change which contributions enter others' sums at once, and which wait."""
    service.choices.set_trust(fleet, Trust.parse(body.trust), caller)
    return _get_fleet_json(service, fleet, caller)


@router.get("/fleets/{fleet}/waiting", responses=BUSY_PROBLEMS)
async def list_waiting(
    fleet: Name, _caller: Viewer, service: ServiceDep, limiter: HeavyLimiter
) -> list[WaitingResponse]:
    """Return the contributions that wait for approval, the longest first, without dismissed ones.

    They are stored, and in no other device's sum.
    """
    found = await run_in_thread(lambda: service.choices.list_waiting(fleet), limiter)
    return [waiting_json(each) for each in found]


def waiting_json(waiting: WaitingContribution) -> WaitingResponse:
    """Return a contribution that waits as the API shows it."""
    fields = {**asdict(waiting.stored), **asdict(waiting), "like_none": waiting.like_none}
    return WaitingResponse(**{name: fields[name] for name in WaitingResponse.model_fields})


@router.delete("/fleets/{fleet}", status_code=204, responses=BUSY_PROBLEMS)
def delete_fleet(fleet: Name, caller: Admin, service: ServiceDep) -> None:
    """Remove a fleet and everything in it; the audit log stays."""
    service.delete(fleet, caller)


@router.get(
    "/fleets/{fleet}/projection",
    responses={
        200: bytes_response_schema("The projection.")[200],
        **READ_PROBLEMS,
    },
    response_class=Response,
)
def get_projection(fleet: Name, _caller: Reader, service: ServiceDep) -> Response:
    """Return the projection of a fleet."""
    return Response(service.fleet(fleet).projection_bytes, media_type=OCTET_STREAM)


@router.post("/fleets/{fleet}/invitations", status_code=201, responses=BODY_PROBLEMS)
def invite(
    fleet: Name,
    caller: Operator,
    service: ServiceDep,
    body: Annotated[InvitationRequest, Depends(json_request(InvitationRequest))],
) -> Invitation:
    """Make an invitation with which one device can enrol, once."""
    token, expires = service.invite(fleet, body.device, body.valid_s, caller)
    return Invitation(token=token, fleet=fleet, device=body.device, expires=expires)


@router.post(
    "/fleets/{fleet}/devices/{device}/replacement", status_code=201, responses=BODY_PROBLEMS
)
def replace_device(
    fleet: Name,
    device: Name,
    caller: Operator,
    service: ServiceDep,
    body: Annotated[ReplacementRequest, Depends(json_request(ReplacementRequest))],
) -> Invitation:
    """Make an invitation for new hardware in the name of a device; what is known of it stays.

    The token of the old hardware works until the invitation is used.
    """
    token, expires = service.replace(fleet, device, body.valid_s, caller)
    return Invitation(token=token, fleet=fleet, device=device, expires=expires)


@router.post(
    "/fleets/{fleet}/devices",
    status_code=201,
    responses=problem_responses(400, 401, 413, 422, 503),
    openapi_extra=json_body_schema(EnrolmentRequest),
)
async def enrol(fleet: Name, invitation: Token, service: ServiceDep, request: Request) -> Enrolment:
    """Enrol a device, with an invitation as token; the answer shows the device's own, once."""
    try:
        await run_in_thread(lambda: service.check_invitation(invitation, fleet))
        read = json_request(EnrolmentRequest, guest=True)
        body = await read(request, await load_of(request))
        token, agreed = await run_in_thread(lambda: service.enrol(invitation, fleet, body.device))
    except DeniedError as error:
        raise UnauthenticatedError(str(error)) from error
    reads = agreed.read_mode
    return Enrolment(token=token, fleet=fleet, device=body.device, reads=reads)  # type: ignore[arg-type]  # one of the two words


@router.get("/fleets/{fleet}/devices", responses=READ_PROBLEMS)
def list_devices(fleet: Name, _caller: Viewer, service: ServiceDep) -> list[Device]:
    """Return the devices of a fleet."""
    return service.devices(fleet)


@router.get("/fleets/{fleet}/devices/{device}", responses=READ_PROBLEMS)
def get_device(fleet: Name, device: Name, _caller: Viewer, service: ServiceDep) -> DeviceResponse:
    """Return a device: how it is, and the status it reported last, with that of its monitor."""
    found, state, latest = service.device(fleet, device)
    reviews = service.reviews.list_reviews(fleet, device)
    return DeviceResponse(
        device=device,
        state=state,
        enrolled=found.enrolled,
        revoked=found.revoked,
        seen=found.seen,
        heard=latest.heard if latest else None,
        waiting=sum(review.state == "waiting" for review in reviews),
        status=latest.status if latest else None,
    )


SCORES_PATH = "/fleets/{fleet}/devices/{device}/scores"
Since = Annotated[float, Query(ge=0.0, lt=MAX_MOMENT, allow_inf_nan=False)]
Until = Annotated[float | None, Query(ge=0.0, lt=MAX_MOMENT, allow_inf_nan=False)]


@router.get(SCORES_PATH, responses=READ_PROBLEMS)
def get_scores(
    fleet: Name,
    device: Name,
    _caller: Viewer,
    service: ServiceDep,
    since: Since = 0.0,
    until: Until = None,
    points: Annotated[int, Query(ge=2, le=5000)] = 750,
) -> ScoresResponse:
    """Return the scores of a time, joined to at most so many points; peaks stay peaks."""
    service.device(fleet, device)
    end = service.clock() + 1.0 if until is None else until
    look = service.history.scores
    step_s, found = look(fleet, device, since=since, until=end, most=points)
    return ScoresResponse(step_s=step_s, scores=[ScoreResponse(**one._asdict()) for one in found])


@router.get(
    f"{SCORES_PATH}.csv",
    responses={200: {"content": {"text/csv": {}}}, **READ_PROBLEMS},
    response_class=StreamingResponse,
)
def download_scores(
    fleet: Name,
    device: Name,
    _caller: Viewer,
    service: ServiceDep,
    since: Since = 0.0,
    until: Until = None,
) -> Response:
    """Return the scores of a time by minute, those of some days ago by quarter of an hour."""
    end = service.clock() + 1.0 if until is None else until
    return scores_csv(service, fleet, device, since=since, until=end)


REVIEWS_PATH = "/fleets/{fleet}/devices/{device}/reviews"


@router.get(REVIEWS_PATH, responses=READ_PROBLEMS)
def list_reviews(
    fleet: Name, device: Name, _caller: Viewer, service: ServiceDep
) -> list[ReviewResponse]:
    """Return the reviews of a device, newest first, with what became of each."""
    return [review_json(review) for review in service.reviews.list_reviews(fleet, device)]


@router.post(REVIEWS_PATH, status_code=201, responses=CHANGE_PROBLEMS)
def review(
    fleet: Name,
    device: Name,
    caller: Operator,
    service: ServiceDep,
    body: Annotated[ReviewRequest, Depends(json_request(ReviewRequest))],
) -> ReviewResponse:
    """Decide about a device; it acts upon that once, when it next hears of it.

    A decision that waits already is not made again.
    """
    return review_json(service.reviews.add(fleet, device, body, caller))


def review_json(review: Review) -> ReviewResponse:
    """Return a review as the API shows it."""
    return ReviewResponse(**review.plain, state=review.state, why=review.why)


EPISODES_PATH = "/fleets/{fleet}/episodes"


@router.get(EPISODES_PATH, responses=READ_PROBLEMS)
def list_episodes(
    fleet: Name,
    _caller: Viewer,
    service: ServiceDep,
    since: Since = 0.0,
    open: Annotated[bool, Query()] = False,  # noqa: A002, FBT002 - the word of the address
    device: Annotated[str | None, Query(pattern=NAME_PATTERN)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> EpisodePage:
    """Return the episodes that changed after `since`, in the order of their changes.

    An episode changes when it begins, ends, is acknowledged or commented, or when its pattern or
    known fault is another. `open` leaves out those that have ended, `device` those of others. While
    `more` is true, ask again with `next` as `since`; later, the same gives what changed meanwhile.
    """
    found = service.episodes.list_changed(
        fleet, since=since, limit=limit + 1, open_only=open, device=device
    )
    page = [EpisodeResponse.model_validate(each) for each in found[:limit]]
    last = page[-1].changed if page else since
    return EpisodePage(episodes=page, next=last, more=len(found) > limit)


@router.put(EPISODES_PATH + "/{number}/comment", responses=CHANGE_PROBLEMS)
def comment_on_episode(
    fleet: Name,
    number: Number,
    caller: Operator,
    service: ServiceDep,
    body: Annotated[CommentRequest, Depends(json_request(CommentRequest))],
) -> EpisodeResponse:
    """Comment on an episode, by its `id`, in place of an earlier comment."""
    found = service.episodes.comment(fleet, number, body.comment, caller)
    return EpisodeResponse.model_validate(found)


SETTINGS_PATH = "/fleets/{fleet}/devices/{device}/settings"


@router.get(SETTINGS_PATH, responses=READ_PROBLEMS)
def get_settings(
    fleet: Name, device: Name, _caller: Viewer, service: ServiceDep
) -> SettingsResponse:
    """Return the settings of a device that operators changed, and what became of them."""
    return _settings_json(service, fleet, device)


@router.put(SETTINGS_PATH, responses=CHANGE_PROBLEMS)
def change_settings(
    fleet: Name,
    device: Name,
    caller: Operator,
    service: ServiceDep,
    body: Annotated[SettingsRequest, Depends(json_request(SettingsRequest))],
) -> SettingsResponse:
    """Replace the settings of a device; it applies them once, when it next hears of them."""
    service.settings.change(fleet, device, body, caller)
    return _settings_json(service, fleet, device)


@router.delete(SETTINGS_PATH + "/{version}", responses=UNDO_PROBLEMS)
def undo_settings(
    fleet: Name, device: Name, version: Number, caller: Operator, service: ServiceDep
) -> SettingsResponse:
    """Go back to the settings before a version, which must be the newest; twice is once."""
    service.settings.undo(fleet, device, version, caller)
    return _settings_json(service, fleet, device)


def _settings_json(service: Service, fleet: str, device: str) -> SettingsResponse:
    versions = service.settings.versions(fleet, device)
    latest = service.history.latest(fleet, device)
    state, why = settings_state(versions, latest.status.settings if latest else None)
    now = versions[0] if versions else DeviceSettings()
    listed = [
        SettingsVersion(**{k: v for k, v in asdict(each).items() if k != "epoch"})
        for each in versions
    ]
    return SettingsResponse(**now.plain, state=state, why=why, versions=listed)


CONFIGURATION_PATH = "/fleets/{fleet}/configuration"
DEVICE_CONFIGURATION_PATH = "/fleets/{fleet}/devices/{device}/configuration"
ConfigurationBody = Annotated[ConfigurationRequest, Depends(json_request(ConfigurationRequest))]


@router.get(CONFIGURATION_PATH, responses=READ_PROBLEMS)
def get_configuration(fleet: Name, caller: Viewer, service: ServiceDep) -> ConfigurationResponse:
    """Return the configuration of a fleet's agents, and what became of it on each device.

    Viewers see only the hosts of webhooks.
    """
    return _configuration_json(service, fleet, caller)


@router.put(CONFIGURATION_PATH, responses=CHANGE_PROBLEMS)
def change_configuration(
    fleet: Name, caller: Operator, service: ServiceDep, body: ConfigurationBody
) -> ConfigurationResponse:
    """Replace the configuration of a fleet's agents; each applies it once, when it next reports."""
    service.configurations.change(fleet, EVERY_DEVICE, body, caller)
    return _configuration_json(service, fleet, caller)


@router.delete(CONFIGURATION_PATH + "/{version}", responses=UNDO_PROBLEMS)
def undo_configuration(
    fleet: Name, version: Number, caller: Operator, service: ServiceDep
) -> ConfigurationResponse:
    """Go back to the configuration before a version, which must be the newest; twice is once."""
    service.configurations.undo(fleet, EVERY_DEVICE, version, caller)
    return _configuration_json(service, fleet, caller)


@router.get(DEVICE_CONFIGURATION_PATH, responses=READ_PROBLEMS)
def get_device_configuration(
    fleet: Name, device: Name, caller: Viewer, service: ServiceDep
) -> ConfigurationResponse:
    """Return what was set for one device, on top of the fleet's, and what became of it.

    Viewers see only the hosts of webhooks.
    """
    return _configuration_json(service, fleet, caller, device)


@router.put(DEVICE_CONFIGURATION_PATH, responses=CHANGE_PROBLEMS)
def change_device_configuration(
    fleet: Name, device: Name, caller: Operator, service: ServiceDep, body: ConfigurationBody
) -> ConfigurationResponse:
    """Replace what is set for one device, on top of the fleet's configuration."""
    service.configurations.change(fleet, device, body, caller)
    return _configuration_json(service, fleet, caller, device)


@router.delete(DEVICE_CONFIGURATION_PATH + "/{version}", responses=UNDO_PROBLEMS)
def undo_device_configuration(
    fleet: Name, device: Name, version: Number, caller: Operator, service: ServiceDep
) -> ConfigurationResponse:
    """Go back to what was set for one device before a version; twice is once."""
    service.configurations.undo(fleet, device, version, caller)
    return _configuration_json(service, fleet, caller, device)


def _configuration_json(
    service: Service, fleet: str, caller: Caller, device: str = EVERY_DEVICE
) -> ConfigurationResponse:
    versions = service.configurations.versions(fleet, device)
    if not caller.may("operator"):
        versions = [replace(each, tables=without_addresses(each.tables)) for each in versions]
    listed = [
        ConfigurationVersionResponse(**{k: v for k, v in asdict(each).items() if k != "epoch"})
        for each in versions
    ]
    states = []
    for name, wanted in service.configurations.wanted(fleet).items():
        if device in (EVERY_DEVICE, name):
            latest = service.history.latest(fleet, name)
            reported = latest.status.configuration if latest else None
            state, why = configuration_state(wanted["version"], reported)
            states.append(
                DeviceConfigurationState(
                    device=name,
                    version=wanted["version"],
                    in_force=reported.version if reported else 0,
                    state=state,
                    why=why,
                )
            )
    now = versions[0] if versions else ConfigurationVersion()
    return ConfigurationResponse(
        version=now.version, tables=dict(now.tables), versions=listed, devices=states
    )


@router.delete("/fleets/{fleet}/devices/{device}", status_code=204, responses=BUSY_PROBLEMS)
def revoke(fleet: Name, device: Name, caller: Operator, service: ServiceDep) -> None:
    """Revoke a device's token and cut its connections; its contributions stay until dropped."""
    service.revoke(fleet, device, caller)


@router.get("/healthz")
async def healthz() -> Health:
    """Say that the server is alive."""
    return Health(status="ok")


@router.get("/readyz", responses={503: {"model": Health, "description": "Not ready."}})
def readyz(service: ServiceDep) -> Response:
    """Return whether the database can be read and written."""
    try:
        service.check()
    except (EdgemergeError, TimeoutError) as error:
        log.warning("not ready", extra={"values": {"problem": str(error)}})
        words = (
            "the disk is full" if isinstance(error, DiskFullError) else "see the log of the server"
        )
        body = Health(status="not ready", detail=words).model_dump()
        return JSONResponse(body, 503, {"Retry-After": "5"})
    return JSONResponse(Health(status="ready").model_dump())


@router.get("/metrics", responses={200: {"content": {"text/plain": {}}}})
def metrics(service: ServiceDep) -> Response:
    """Return counts and durations in the text form of Prometheus."""
    with service.database.reading() as tx:
        text = service.metrics.text(tx, service.history, service.clock())
    return Response(text, media_type=CONTENT_TYPE)


@router.get("/status", responses=problem_responses(401, 403))
def status(service: ServiceDep, caller: Viewer) -> Status:
    """Return an overview of all fleets."""
    fleets = [fleet_json(fleet, counts) for fleet, counts in service.fleets(caller)]
    waiting = service.writer.waiting
    return Status(version=__version__, ready=True, waiting=waiting, fleets=fleets)


@router.get("/audit", responses=problem_responses(401, 403, 422))
def audit(
    service: ServiceDep,
    _caller: Viewer,
    fleet: Annotated[str | None, Query(pattern=NAME_PATTERN)] = None,
    after: Annotated[int, Query(ge=0, lt=2**63)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> AuditPage:
    """Return a stretch of the audit log, in order; `head` is the hash of the last entry given."""
    found = service.audit(fleet, after, limit)
    head = found[-1].hash if found else FIRST_HASH
    return AuditPage(entries=found, head=head, problem=service.audit_problem)


CHOICES_PATH = "/fleets/{fleet}/choices"


@router.get(CHOICES_PATH, responses=READ_PROBLEMS)
def list_choices(fleet: Name, _caller: Viewer, service: ServiceDep) -> list[ChoiceResponse]:
    """Return the choices of a fleet, newest first, with the last ones that were undone."""
    return [choice_json(choice) for choice in service.choices.list_choices(fleet)]


@router.post(
    CHOICES_PATH,
    status_code=201,
    responses=CONFLICT_PROBLEMS,
    openapi_extra=json_body_schema(AdoptRequest, ExcludeRequest, DecideRequest),
)
def choose(
    fleet: Name,
    caller: Operator,
    service: ServiceDep,
    body: Annotated[ChoiceRequest, Depends(json_request(ChoiceRequest))],
) -> ChoiceResponse:
    """Choose who adopts from whom, exclude a contribution, or decide about one that waits.

    A choice that is in force already is not made again.
    """
    act, one = service.choices, body.root
    if isinstance(one, AdoptRequest):
        return choice_json(act.adopt(fleet, one.sources, one.targets, caller))
    key = (one.device, one.incarnation, one.pattern)
    if isinstance(one, DecideRequest):
        decide = partial(act.decide, comment=one.comment, revision=one.revision)
        return choice_json(decide(fleet, key, one.kind, caller))
    return choice_json(act.exclude(fleet, key, caller))


@router.delete(CHOICES_PATH + "/{number}", responses=WRITE_PROBLEMS)
def undo(fleet: Name, number: Number, caller: Operator, service: ServiceDep) -> ChoiceResponse:
    """Undo a choice, as if it had never been; repeating it does no harm."""
    return choice_json(service.choices.undo(fleet, number, caller))


@router.post("/fleets/{fleet}/preview", responses=BODY_PROBLEMS)
async def preview(
    fleet: Name,
    _caller: Viewer,
    service: ServiceDep,
    limiter: HeavyLimiter,
    body: Annotated[PreviewRequest, Depends(json_request(PreviewRequest))],
) -> list[PreviewResponse]:
    """Return what adopting from these sources only would do to targets; nothing changes."""
    look = service.choices.preview
    rows = await run_in_thread(lambda: look(fleet, body.sources, body.targets), limiter)
    return [PreviewResponse(**asdict(row), shift=row.shift) for row in rows]


@router.get("/fleets/{fleet}/similarity", responses=BUSY_PROBLEMS)
async def similarity(
    fleet: Name,
    _caller: Viewer,
    service: ServiceDep,
    limiter: HeavyLimiter,
    device: DeviceFilter = None,
) -> SimilarityResponse:
    """Compare devices, 60 with most samples or up to 200 named ones, in an order of groups."""
    found = await run_in_thread(lambda: service.choices.similarity(fleet, device), limiter)
    return SimilarityResponse(
        devices=list(found.devices),
        ratios=found.ratios.tolist(),
        groups=list(found.groups),
        samples=list(found.samples),
        left_out=found.left_out,
    )


router.add_api_route(
    "/fleets/{fleet}/likeness",
    similarity,
    responses=BUSY_PROBLEMS,
    deprecated=True,
    name="likeness",
    description="The old name of `/similarity`.",
)


def choice_json(choice: Choice) -> ChoiceResponse:
    """Return a choice as the API shows it: without epoch, and with its key in three fields."""
    fields = asdict(choice)
    fields["device"], fields["incarnation"], fields["pattern"] = choice.key or (None, None, None)
    return ChoiceResponse(**{name: fields[name] for name in ChoiceResponse.model_fields})


RECEIVERS_PATH = "/fleets/{fleet}/receivers"


@router.get(RECEIVERS_PATH, responses=READ_PROBLEMS)
def list_receivers(fleet: Name, _caller: Viewer, service: ServiceDep) -> list[ReceiverResponse]:
    """Return who is told of what happens in a fleet, without secrets and paths of addresses."""
    return [receiver_json(*each) for each in service.notifications.receivers(fleet)]


@router.put(
    RECEIVERS_PATH + "/{receiver}",
    status_code=201,
    responses={
        200: {"model": ReceiverResponse, "description": "It replaced one of that name."},
        **CHANGE_PROBLEMS,
    },
)
def set_receiver(
    fleet: Name,
    receiver: Name,
    caller: Operator,
    service: ServiceDep,
    response: Response,
    body: Annotated[ReceiverRequest, Depends(json_request(ReceiverRequest))],
) -> ReceiverResponse:
    """Tell a receiver what happens in a fleet from now on; this server calls its address."""
    act = service.notifications
    response.status_code = 201 if act.put(fleet, receiver, body, caller) else 200
    found = act.receivers(fleet)
    return next(receiver_json(*each) for each in found if each[0].name == receiver)


@router.delete(RECEIVERS_PATH + "/{receiver}", status_code=204, responses=WRITE_PROBLEMS)
def remove_receiver(fleet: Name, receiver: Name, caller: Operator, service: ServiceDep) -> None:
    """Remove a receiver; what it has not been told is not sent any more."""
    service.notifications.remove(fleet, receiver, caller)


@router.post(RECEIVERS_PATH + "/{receiver}/test", responses=WRITE_PROBLEMS)
def test_receiver(
    fleet: Name, receiver: Name, caller: Operator, service: ServiceDep
) -> TestedReceiver:
    """Send a test message now, and say whether it was taken."""
    trouble = service.notifications.test(fleet, receiver, caller)
    return TestedReceiver(delivered=not trouble, trouble=trouble)


def receiver_json(receiver: Receiver, waiting: int) -> ReceiverResponse:
    """Return a receiver as the API shows it."""
    return ReceiverResponse(
        receiver=receiver.name,
        kind=receiver.settings.kind,
        address=receiver.address,
        events=receiver.settings.events,
        every_s=receiver.settings.every_s,
        secret=receiver.secret_kind,
        created=receiver.created,
        delivered=receiver.delivered,
        waiting=waiting,
        trouble=receiver.trouble,
    )


MASKED_PATH = "/fleets/{fleet}/masked/{device}"
MAX_BOXES_BYTES = 64 * 2**20  # of an upload beside its words


def member_of(sender: tuple[Caller, Fleet]) -> tuple[str, str]:
    """Return the fleet and the name of a device that sends."""
    caller, agreed = sender
    return agreed.name, caller.name


@router.get("/fleets/{fleet}/cohorts", responses=READ_PROBLEMS)
def list_cohorts(
    fleet: Name, _caller: Viewer, service: ServiceDep, *, ended: Annotated[bool, Query()] = False
) -> list[CohortResponse]:
    """Return the cohorts of a masked fleet, each with its epoch, and how unlike others it is.

    `distance` is the median of its distances to the other cohorts; 1 if their data are alike. With
    `ended` those of the last ten times that cohorts were formed, also ended and dropped ones.
    """
    return cohorts_json(service, fleet, ended=ended)


@router.get("/fleets/{fleet}/suspects", responses=READ_PROBLEMS)
def find_suspects(fleet: Name, _caller: Viewer, service: ServiceDep) -> SuspectsResponse:
    """Return the devices of a masked fleet that were most often in a cohort that differed."""
    return SuspectsResponse(**service.masked.suspects(fleet)._asdict())


@router.post("/fleets/{fleet}/cohorts", status_code=201, responses=CONFLICT_PROBLEMS)
def form_cohorts(
    fleet: Name,
    caller: Admin,
    service: ServiceDep,
    body: Annotated[CohortRequest, Depends(json_request(CohortRequest))],
) -> list[CohortResponse]:
    """Form cohorts of all devices that have registered keys; those before them end."""
    service.masked.form(fleet, caller, **body.settings())
    return cohorts_json(service, fleet)


@router.delete("/fleets/{fleet}/cohorts/{cohort}", status_code=204, responses=CONFLICT_PROBLEMS)
def drop_cohort(fleet: Name, cohort: Number, caller: Operator, service: ServiceDep) -> None:
    """End a cohort, and take all that it has added up out of the total."""
    service.masked.drop_cohort(fleet, cohort, caller)


def cohorts_json(service: Service, fleet: str, *, ended: bool = False) -> list[CohortResponse]:
    """Return the cohorts of a fleet as the API shows them."""
    records = service.masked.records(fleet)
    return [cohort_json(record) for record in records if ended or record.ended is None]


def cohort_json(record: CohortRecord) -> CohortResponse:
    """Return a cohort as the API shows it."""
    cohort, epoch = record.cohort, record.epoch
    return CohortResponse(
        cohort=record.number,
        digest=cohort.digest.hex(),
        devices=[member.name for member in cohort.members],
        least=cohort.least,
        keepers=cohort.keepers,
        threshold=cohort.threshold,
        slots=list(cohort.slots),
        epoch=epoch.number,
        state=epoch.state,
        why=record.why,
        samples=record.samples,
        distance=record.distance,
        impossible=record.impossible,
        formed=record.formed,
        ended=record.ended,
        dropped=record.dropped,
        noise=None if cohort.noise is None else NoiseResponse(**cohort.noise.plain()),
        noisy=cohort.noisy,
    )


@router.delete(MASKED_PATH + "/keys", status_code=204, responses=CONFLICT_PROBLEMS)
def forget_keys(fleet: Name, device: Name, caller: Operator, service: ServiceDep) -> None:
    """Let a device of a masked fleet register new keys."""
    service.masked.forget_keys(fleet, device, caller)


@router.put(MASKED_PATH + "/keys", status_code=204, responses=CONFLICT_PROBLEMS)
def register_keys(
    sender: Sender,
    service: ServiceDep,
    body: Annotated[KeysRequest, Depends(json_request(KeysRequest))],
) -> None:
    """Store the public keys of a device of a masked fleet; others are refused from then on."""
    fleet, device = member_of(sender)
    keys = bytes.fromhex(body.agreement), bytes.fromhex(body.verification)
    service.masked.register(fleet, MaskedMember(device, *keys))


KnownNumber = Annotated[int | None, Query(ge=0, lt=2**63)]


@router.get(
    MASKED_PATH + "/status", response_model=MaskedStatusResponse, responses=CONFLICT_PROBLEMS
)
def masked_status(
    check: SenderCheck, service: ServiceDep, known: KnownNumber = None, waiting: KnownNumber = None
) -> Response:
    """Return what a device of a masked fleet may send now; a list that it must sign is `listed`.

    With `known`, the number of the cohort that the device knows, another cohort is `described`.
    With `waiting`, the epoch of an upload whose fate it does not know, its `result` comes with it.
    """
    who = member_of(check())
    return status_response(service.masked.status(*who, known=known, waiting=waiting))


def status_response(status: MaskedStatus, headers: dict[str, str] | None = None) -> Response:
    """Answer with a status; what is JSON already is not parsed for that."""
    plain = asdict(status)
    stored = {name: plain.pop(name) for name in ("described", "result", "listed")}
    shown = MaskedStatusResponse(**plain).model_dump_json(exclude=set(stored))
    more = "".join(f', "{name}": {text}' for name, text in stored.items() if text)
    return Response(f"{shown[:-1]}{more}}}", headers=headers, media_type="application/json")


@router.get(MASKED_PATH + "/cohort", responses=CONFLICT_PROBLEMS)
def masked_cohort(check: SenderCheck, service: ServiceDep) -> CohortDescription:
    """Return the cohort of a device, with the public keys of its members."""
    return CohortDescription(cohort=service.masked.cohort_of(*member_of(check()))[1].plain())


# With `Prefer: return=representation` (RFC 7240) the reply to a message is the status after it.
PREFERS_STATUS = "return=representation"
SENT_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"model": MaskedStatusResponse, "description": f"The status, with `{PREFERS_STATUS}`."},
    204: {"description": "It is stored."},
    **CONFLICT_PROBLEMS,
}


async def keep_message(
    request: Request, load: InFlight, limit: int, keep: Callable[[bytes], MaskedStatus]
) -> Response:
    """Keep a message of an epoch, and answer with the status after it if the sender prefers it."""
    async with load.body(request, limit) as data:
        status = await run_in_thread(lambda: keep(data))
    prefers = request.headers.get("prefer", "").replace(";", ",").split(",")
    if PREFERS_STATUS not in (each.strip().lower() for each in prefers):
        return Response(status_code=204)
    return status_response(status, {"Preference-Applied": PREFERS_STATUS})


@router.put(
    MASKED_PATH + "/epochs/{epoch}/upload",
    responses=SENT_RESPONSES,
    response_class=Response,
    openapi_extra=bytes_body_schema("The delta of a device behind masks, with sealed boxes."),
)
async def put_upload(
    sender: Sender, epoch: Number, service: ServiceDep, load: InFlightDep, request: Request
) -> Response:
    """Keep a device's upload of an epoch; once answered it is on disk, and repeats do no harm."""
    limit = sender[1].max_contribution_bytes * MAX_SLOTS + MAX_BOXES_BYTES
    keep = partial(service.masked.upload, *member_of(sender), epoch)
    return await keep_message(request, load, limit, keep)


@router.put(
    MASKED_PATH + "/epochs/{epoch}/signature",
    responses=SENT_RESPONSES,
    response_class=Response,
    openapi_extra=bytes_body_schema("The signature of the list of survivors."),
)
async def put_signature(
    sender: Sender, epoch: Number, service: ServiceDep, load: InFlightDep, request: Request
) -> Response:
    """Keep a keeper's signature of who survived; with enough of them keepers reveal shares."""
    keep = partial(service.masked.sign, *member_of(sender), epoch)
    return await keep_message(request, load, SIGNATURE_BYTES, keep)


@router.get(
    MASKED_PATH + "/epochs/{epoch}/request",
    responses={**bytes_response_schema("What a keeper is asked."), **CONFLICT_PROBLEMS},
    response_class=Response,
)
def get_keeper_request(check: SenderCheck, epoch: Number, service: ServiceDep) -> Response:
    """Return what a keeper is asked: who survived, their boxes for it, and who signed the list."""
    data = service.masked.request(*member_of(check()), epoch)
    return Response(data, media_type=OCTET_STREAM)


@router.put(
    MASKED_PATH + "/epochs/{epoch}/answer",
    responses=SENT_RESPONSES,
    response_class=Response,
    openapi_extra=bytes_body_schema("The shares that open the total, signed."),
)
async def put_answer(
    sender: Sender, epoch: Number, service: ServiceDep, load: InFlightDep, request: Request
) -> Response:
    """Keep a keeper's answer; with enough of them the total is opened."""
    keep = partial(service.masked.answer, *member_of(sender), epoch)
    return await keep_message(request, load, MAX_BOXES_BYTES, keep)


@router.get(MASKED_PATH + "/epochs/{epoch}", responses=CONFLICT_PROBLEMS)
def get_epoch(check: SenderCheck, epoch: Number, service: ServiceDep) -> EpochResponse:
    """Return what became of an epoch."""
    return EpochResponse(**service.masked.result(check()[1].name, epoch))


@router.get(
    MASKED_PATH + "/total",
    responses={
        **bytes_response_schema("The total of a masked fleet."),
        204: {"description": "No epoch is done yet."},
        **CONFLICT_PROBLEMS,
    },
    response_class=Response,
)
def get_masked_total(check: SenderCheck, service: ServiceDep) -> Response:
    """Return the total of all epochs, the caller's own deltas included."""
    data = service.masked.total_bytes(check()[1].name)
    return Response(data, media_type=OCTET_STREAM) if data else Response(status_code=204)


class SignInLink(BaseModel):
    """Where the dashboard lets a person in, once, and until when."""

    path: str
    expires: float


@router.post("/sign-in-links", status_code=201, responses=problem_responses(401, 403, 503))
def make_sign_in_link(service: ServiceDep, caller: Viewer) -> SignInLink:
    """Make a link to the dashboard that signs the caller in, once, within ten minutes."""
    link = service.sessions.link(caller)
    return SignInLink(path=f"/ui/sign-in?link={link.token}", expires=link.expires)


ACCOUNTS_PATH = "/accounts"


@router.get(ACCOUNTS_PATH, responses=problem_responses(401, 403))
def list_accounts(service: ServiceDep, _caller: Admin) -> list[AccountResponse]:
    """Return all accounts and wall links, without their tokens, revoked ones too."""
    now = service.clock()
    return [account_json(each, now) for each in service.accounts.all()]


@router.post(ACCOUNTS_PATH, status_code=201, responses=CONFLICT_PROBLEMS)
def add_account(
    service: ServiceDep,
    caller: Admin,
    body: Annotated[AccountRequest, Depends(json_request(AccountRequest))],
) -> IssuedAccount:
    """Add an account; the answer shows its token, once."""
    return issued_json(service, service.accounts.add(body.name, body.role, body.valid_s, caller))


@router.put(ACCOUNTS_PATH + "/{account}", responses=CONFLICT_PROBLEMS)
def change_account(
    account: Name,
    service: ServiceDep,
    caller: Admin,
    body: Annotated[AccountChange, Depends(json_request(AccountChange))],
) -> AccountResponse:
    """Change the role of an account, or when its token expires; its sessions end.

    What is not named stays as it is.
    """
    valid_s = body.valid_s if "valid_s" in body.model_fields_set else KEEP
    changed = service.accounts.change(account, caller, role=body.role, valid_s=valid_s)
    return account_json(changed, service.clock())


@router.post(ACCOUNTS_PATH + "/{account}/rotate", responses=CONFLICT_PROBLEMS)
def rotate_account(
    account: Name,
    service: ServiceDep,
    caller: Admin,
    body: Annotated[RotationRequest, Depends(json_request(RotationRequest))],
) -> IssuedAccount:
    """Give an account a new token, shown once; the old one and its sessions end at once."""
    valid_s = body.valid_s if "valid_s" in body.model_fields_set else KEEP
    return issued_json(service, service.accounts.rotate(account, caller, valid_s=valid_s))


@router.delete(ACCOUNTS_PATH + "/{account}", status_code=204, responses=UNDO_PROBLEMS)
def revoke_account(account: Name, service: ServiceDep, caller: Admin) -> None:
    """Revoke an account or a wall link; its sessions end at once, and twice is once."""
    service.accounts.revoke(account, caller)


@router.post("/fleets/{fleet}/wall-links", status_code=201, responses=CONFLICT_PROBLEMS)
def add_wall_link(
    fleet: Name,
    service: ServiceDep,
    caller: Admin,
    body: Annotated[WallLinkRequest, Depends(json_request(WallLinkRequest))],
) -> IssuedAccount:
    """Make a link that shows a fleet's page without a sign-in; the answer shows it, once."""
    made = service.accounts.add_wall_link(body.name, fleet, caller, valid_s=body.valid_s)
    return issued_json(service, made)


def account_json(account: Account, now: float) -> AccountResponse:
    """Return an account as the API shows it."""
    return AccountResponse(**asdict(account), state=account.state(now))


def issued_json(service: Service, issued: Issued) -> IssuedAccount:
    """Return an account with its token as the API shows it."""
    shown = account_json(issued.account, service.clock()).model_dump()
    if issued.account.fleet is not None:
        return IssuedAccount(**shown, path=wall_path(issued.token))
    return IssuedAccount(**shown, token=service.with_fingerprint(issued.token))
