"""What all routes share: limits, who calls, errors as HTTP answers, ETags, work in threads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, TypeVar, get_type_hints

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, FastAPI, Path, Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from edgemerge.core.errors import (
    DeniedError,
    EdgemergeError,
    SettingError,
    UnavailableError,
    UnknownError,
)
from edgemerge.core.trust import TRUST_WORDS
from edgemerge.server import fleets
from edgemerge.server.auth import AccountError, Caller, RateLimitError, find_caller
from edgemerge.server.choices.rules import ChangedError
from edgemerge.server.db.base import DatabaseDamagedError, DiskFullError
from edgemerge.server.fleets import NAME_PATTERN, ExistsError, Fleet
from edgemerge.server.schemas import COMMENT_PATTERN, TRUST_PATTERN, Problem
from edgemerge.server.service import Service

MAX_JSON_BYTES = 65_536  # bytes of a request in JSON
# However busy it is, those who watch the server get an answer.
ALWAYS_ANSWERED = {"/healthz", "/readyz", "/metrics"}
DEPRECATED = "@1794787200"  # since when old addresses are (RFC 9745): 16 November 2026
MAX_SHOWN_ERRORS = 20  # of a request that does not fit its model


class TooLargeError(EdgemergeError, ValueError):
    """More bytes than what was asked for can have."""


class IncompleteBodyError(EdgemergeError, ValueError):
    """A request that ended before it was complete, or took too long."""


@dataclass(frozen=True)
class Limits:
    """How much may be under way at once, and how long a request may take to arrive.

    A caller has a token or is signed in. A guest has only an invitation, or signs in: all guests
    share a small budget, so that they cannot keep others waiting.
    """

    max_bytes_in_flight: int = 256 * 2**20
    max_requests_in_flight: int = 1024
    max_caller_bytes: int = (
        64 * 2**20
    )  # of several bodies of one caller; a single one may be larger
    max_caller_bodies: int = 32
    max_guest_bodies: int = 32
    seconds: float = 60.0
    guest_seconds: float = 10.0


@dataclass
class Usage:
    """What is under way of one caller, or of all guests."""

    bodies: int = 0
    bytes: int = 0


GUESTS = "guests"


class InFlight:
    """What is under way now; bytes count when they have arrived, not when they are announced."""

    def __init__(self, limits: Limits) -> None:
        """Start with nothing."""
        self.limits = limits
        self.bytes = self.requests = 0
        self.callers: dict[str, Usage] = {}

    @asynccontextmanager
    async def body(
        self, request: Request, cap: int, *, guest: bool = False
    ) -> AsyncIterator[bytes]:
        """Return the body of a request, unless it is too large or too many are in progress.

        Args:
            request: The request, whose caller was identified unless it is a guest's.
            cap: The most bytes to accept.
            guest: Whether the caller was not identified yet.
        """
        declared = _content_length(request)
        if declared is not None and declared > cap:
            raise TooLargeError(f"found {declared} bytes, expected at most {cap}")
        name, limits = GUESTS if guest else _caller_key(request), self.limits
        usage = self.callers.setdefault(name, Usage())
        most = limits.max_guest_bodies if guest else limits.max_caller_bodies
        if usage.bodies >= most:
            raise UnavailableError("too many requests are in progress: try again", retry_s=2.0)
        mine = Usage()
        usage.bodies += 1
        try:
            timeout_s = limits.guest_seconds if guest else limits.seconds
            yield await self._read(request, cap, usage, mine, timeout_s)
        finally:
            usage.bodies -= 1
            usage.bytes -= mine.bytes
            self.bytes -= mine.bytes
            if not usage.bodies:
                self.callers.pop(name, None)

    async def _read(
        self, request: Request, cap: int, usage: Usage, mine: Usage, timeout_s: float
    ) -> bytes:
        parts = []
        try:
            async with asyncio.timeout(timeout_s):
                async for part in request.stream():
                    for each in (mine, usage, self):
                        each.bytes += len(part)
                    self._must_fit(cap, usage, mine)
                    parts.append(part)
        except (ClientDisconnect, TimeoutError) as error:
            raise IncompleteBodyError("the request ended before it was complete") from error
        return b"".join(parts)

    def _must_fit(self, cap: int, usage: Usage, mine: Usage) -> None:
        if mine.bytes > cap:
            raise TooLargeError(f"found more than {cap} bytes, expected at most that")
        crowded = usage.bodies > 1 and usage.bytes > self.limits.max_caller_bytes
        if crowded or self.bytes > self.limits.max_bytes_in_flight:
            raise UnavailableError("too many requests are in progress: try again", retry_s=2.0)


def _caller_key(request: Request) -> str:
    """Return what tells callers apart: a token, or the cookie of a sign-in."""
    return request.headers.get("authorization") or request.headers.get("cookie") or GUESTS


def _content_length(request: Request) -> int | None:
    if "transfer-encoding" in request.headers:  # then a length says nothing about the body
        return None
    text = request.headers.get("content-length", "")
    return int(text) if text.isdecimal() else None


log = logging.getLogger(__name__)

STATUS_BY_ERROR: tuple[tuple[type[Exception], int], ...] = (
    (ExistsError, 409),
    (ChangedError, 409),
    (AccountError, 409),
    (DeniedError, 403),
    (UnknownError, 404),
    (TooLargeError, 413),
    (IncompleteBodyError, 400),
    (DiskFullError, 507),
    (DatabaseDamagedError, 500),
    (RateLimitError, 429),
    (UnavailableError, 503),
    (EdgemergeError, 422),
)
CONFLICTS: dict[type[Exception], str] = {ExistsError: "exists", ChangedError: "stale"}
PROBLEM_DESCRIPTIONS = {
    400: "The request was cut short.",
    401: "The token is missing, unknown, expired or revoked.",
    403: "This token may not do that.",
    404: "There is no such thing.",
    409: "It is there already, and different or newer.",
    413: "More bytes than allowed.",
    422: "What was sent cannot be used; the words say why.",
    429: "More requests of this device than are taken; try again after the given seconds.",
    503: "Too much is under way; try again after the given seconds.",
    507: "The disk is full.",
}


class UnauthenticatedError(DeniedError):
    """No token, or an unknown one."""


def problem_responses(*codes: int) -> dict[int | str, dict[str, Any]]:
    """Describe what else a route may answer."""
    return {code: {"model": Problem, "description": PROBLEM_DESCRIPTIONS[code]} for code in codes}


@dataclass(frozen=True)
class ErrorAnswer:
    """An error as an HTTP answer; the API answers in JSON, the dashboard with a page.

    Args:
        status: The HTTP status.
        message: What was found, what was expected, what to do.
        headers: Headers that belong to the status, such as Retry-After.
        problem: The word for a conflict in JSON, None otherwise.
    """

    status: int
    message: str
    headers: dict[str, str] = field(default_factory=dict)
    problem: str | None = None


Respond = Callable[[Request, ErrorAnswer], Response]


def error_answer(error: Exception) -> ErrorAnswer:
    """Return the status, message and headers for an error; unknown ones are faults of ours."""
    if isinstance(error, UnauthenticatedError):
        return ErrorAnswer(401, str(error), {"WWW-Authenticate": "Bearer"})
    if isinstance(error, HTTPException):
        return ErrorAnswer(error.status_code, str(error.detail), dict(error.headers or {}))
    if isinstance(error, RequestValidationError):
        return ErrorAnswer(422, validation_message(error.errors()))
    status = next((code for kind, code in STATUS_BY_ERROR if isinstance(error, kind)), None)
    if status is None:
        return ErrorAnswer(500, "a fault of the server: its log says more")
    headers = {}
    if isinstance(error, UnavailableError):
        headers["Retry-After"] = str(round(error.retry_s or 1))
    if status >= 500 and status != 503:
        log.error("a request failed", extra={"values": {"error": str(error)}})
    return ErrorAnswer(status, str(error), headers, CONFLICTS.get(type(error)))


def error_json(_request: Request, answer: ErrorAnswer) -> JSONResponse:
    """Answer an error in JSON."""
    content = {"error": answer.message}
    if answer.problem is not None:
        content["problem"] = answer.problem
    return JSONResponse(content, answer.status, answer.headers)


def api_error(request: Request, answer: ErrorAnswer) -> JSONResponse:
    """Answer an error of the API: JSON, and for a wrong method all that the address takes."""
    response = error_json(request, answer)
    if answer.status == 405:
        response.headers.update(_allow_header(request))
    if answer.status == 500:  # may be made outside of the middleware that adds it
        response.headers["X-Content-Type-Options"] = "nosniff"
    return response


def add_error_handlers(app: FastAPI, respond: Respond) -> None:
    """Let an app answer our errors and those of the framework in one form."""

    async def handle(request: Request, error: Exception) -> Response:
        return respond(request, error_answer(error))

    for kind in (Exception, EdgemergeError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, handle)


def _allow_header(request: Request) -> dict[str, str]:
    """Name all methods of an address; the framework names those of one of its routes."""
    path = getattr(request.scope.get("route"), "path", "")
    methods = request.app.openapi()["paths"].get(path, ())
    return {"Allow": ", ".join(sorted(map(str.upper, methods)))} if methods else {}


PATTERN_WORDS = {
    TRUST_PATTERN: TRUST_WORDS,
    NAME_PATTERN: "letters, digits, '.', '_' and '-', at most 100, a letter or digit first",
    COMMENT_PATTERN: "one printable line",
}
BOUND_WORDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}


def validation_message(errors: Any) -> str:
    """Say where a request does not fit, what was found (if it is no secret), and what fits.

    >>> validation_message([{"loc": ("query", "least"), "ctx": {"ge": 1}, "input": "0"}])
    "least: found '0', expected at least 1"
    """
    found = (": ".join(filter(None, (_place(e["loc"]), _validation_words(e)))) for e in errors)
    return "; ".join(
        dict.fromkeys(found)
    )  # each once: a name is checked for its route and its caller


def _place(loc: Sequence[Any]) -> str:
    return ".".join(map(str, loc[loc[:1] in (("path",), ("query",), ("body",)) :]))


def _validation_words(error: Any) -> str:
    limits = error.get("ctx", {})
    expected = PATTERN_WORDS.get(limits.get("pattern"), "") or " and ".join(
        f"{words} {limits[key]}" for key, words in BOUND_WORDS.items() if key in limits
    )
    if not expected:
        return str(error["msg"])
    is_open = error["loc"][:1] in (("path",), ("query",))  # a body may hold a secret
    return (
        f"found {str(error['input'])[:100]!r}, expected {expected}"
        if is_open
        else (f"expected {expected}")
    )


@contextmanager
def refuse_invalid() -> Iterator[None]:
    """Turn what does not fit a request's model into an error that says where, and why."""
    try:
        yield
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        raise SettingError(validation_message(found[:MAX_SHOWN_ERRORS])) from error


M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")

OCTET_STREAM = "application/octet-stream"
ETAG_HEADER = {"ETag": {"schema": {"type": "string"}, "description": "Changes with the content."}}
NOT_MODIFIED = "It is what `If-None-Match` names."
Name = Annotated[str, Path(pattern=NAME_PATTERN)]
Number = Annotated[int, Path(ge=0, lt=2**63)]

_bearer = HTTPBearer(auto_error=False, description="The token of an account or a device.")


async def service_of(request: Request) -> Service:
    """Return the service behind the app."""
    service: Service = request.app.state.service
    return service


async def load_of(request: Request) -> InFlight:
    """Return what is under way."""
    load: InFlight = request.app.state.load
    return load


ServiceDep = Annotated[Service, Depends(service_of)]
InFlightDep = Annotated[InFlight, Depends(load_of)]


async def token_of(given: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]) -> str:
    """Return the token that came with a request."""
    if given is None or not given.credentials.isascii():
        raise UnauthenticatedError(
            "found no token, expected the header 'Authorization: Bearer TOKEN'"
        )
    return given.credentials


Token = Annotated[str, Depends(token_of)]


CONNECTION_KEY = "edgemerge.connection"  # in the scope of a request


def note_caller(request: Request, caller: Caller) -> Caller:
    """Let the connection of a request end with the token of its caller."""
    if CONNECTION_KEY in request.scope:
        request.app.state.service.connections.use(request.scope[CONNECTION_KEY], caller)
    return caller


def caller_of(request: Request, service: ServiceDep, token: Token) -> Caller:
    """Return who sent the request."""
    try:
        return note_caller(request, service.caller(token))
    except DeniedError as error:
        raise UnauthenticatedError(str(error)) from error


CallerDep = Annotated[Caller, Depends(caller_of)]


# Who may call a route is decided by what its function takes: `Viewer`, `Operator` or `Admin` for
# people, `Reader` or `Member` for a fleet's devices and people, `Sender` for the device itself.


def people(role: str) -> Callable[[Caller], Awaitable[Caller]]:
    """Return what lets only people pass who may do what a role may."""

    async def check(caller: CallerDep) -> Caller:
        caller.must_be(role)
        return caller

    return check


def of_fleet(role: str) -> Callable[[str, Caller], Awaitable[Caller]]:
    """Return what lets people of a role pass, and the devices of this fleet."""

    async def check(fleet: Name, caller: CallerDep) -> Caller:
        if caller.is_person:
            caller.must_be(role)
        elif caller.fleet != fleet:
            raise DeniedError(f"found a device of another fleet, expected one of {fleet}")
        return caller

    return check


Viewer = Annotated[Caller, Depends(people("viewer"))]
Operator = Annotated[Caller, Depends(people("operator"))]
Admin = Annotated[Caller, Depends(people("admin"))]
Reader = Annotated[Caller, Depends(of_fleet("viewer"))]
Member = Annotated[Caller, Depends(of_fleet("operator"))]


def sender(
    request: Request, service: ServiceDep, token: Token, fleet: Name, device: Name
) -> tuple[Caller, Fleet]:
    """Let only the device itself pass; return its fleet, too, from the same transaction."""
    with service.database.reading() as tx:
        try:
            caller = note_caller(request, find_caller(tx, token, service.clock()))
        except DeniedError as error:
            raise UnauthenticatedError(str(error)) from error
        if (caller.fleet, caller.name) != (fleet, device):
            raise DeniedError(
                f"only {device} may push its contributions: this token is of "
                "another device or fleet"
            )
        return caller, fleets.get(tx, fleet)


Sender = Annotated[tuple[Caller, Fleet], Depends(sender)]


async def sender_check(
    request: Request, service: ServiceDep, token: Token, fleet: Name, device: Name
) -> Callable[[], tuple[Caller, Fleet]]:
    """Return `sender` for a route that works in a thread: called there, it needs no other one."""
    return partial(sender, request, service, token, fleet, device)


SenderCheck = Annotated[Callable[[], tuple[Caller, Fleet]], Depends(sender_check)]


def json_request(
    model: type[M], *, guest: bool = False
) -> Callable[[Request, InFlight], Awaitable[M]]:
    """Read a request's JSON body, after the caller was identified unless it is a guest's."""

    async def read(request: Request, load: InFlightDep) -> M:
        async with load.body(request, MAX_JSON_BYTES, guest=guest) as data:
            with refuse_invalid():
                return model.model_validate_json(data)

    read.model = model  # type: ignore[attr-defined]  # `ApiRouter` describes it
    return read


def _query_names(dependant: Dependant) -> set[str]:
    """Return the names of all query parameters of a route and of what it depends on."""
    names = {each.alias for each in dependant.query_params}
    return names.union(*map(_query_names, dependant.dependencies))


class ApiRoute(APIRoute):
    """Refuses unknown query parameters, and names the new address of a deprecated one."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap the handler of a route."""
        answer, known = super().get_route_handler(), _query_names(self.dependant)

        async def handle(request: Request) -> Response:
            if request.scope["query_string"] and self.path not in ALWAYS_ANSWERED:
                unknown = [name for name in request.query_params if name not in known]
                if unknown:
                    names = ", ".join(sorted(known)) or "none"
                    raise SettingError(
                        f"query: unknown {', '.join(unknown)[:200]}; known here: {names}"
                    )
            response = await answer(request)
            if self.deprecated:
                response.headers["Deprecation"] = DEPRECATED
                response.headers["Link"] = f'<{self._successor(request)}>; rel="successor-version"'
            return response

        return handle

    def _successor(self, request: Request) -> str:
        """Return the address of the route that does the same and is not deprecated."""
        path = next(
            each.path
            for each in request.app.routes
            if isinstance(each, ApiRoute) and each.endpoint == self.endpoint and not each.deprecated
        )
        return str(request.scope.get("root_path", "")) + path.format(**request.path_params)


class ApiRouter(APIRouter):
    """Takes routes, and describes the JSON body that one reads by `json_request`."""

    def __init__(self) -> None:
        """Take routes of our kind."""
        super().__init__(route_class=ApiRoute)

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        """Add a route; an `openapi_extra` of its own is kept."""
        for hint in get_type_hints(endpoint, include_extras=True).values():
            for each in getattr(hint, "__metadata__", ()):
                model = getattr(getattr(each, "dependency", None), "model", None)
                if model is not None and not options.get("openapi_extra"):
                    options["openapi_extra"] = json_body_schema(model)
        super().add_api_route(path, endpoint, **options)


def json_body_schema(*models: type[BaseModel]) -> dict[str, object]:
    """Describe a body in JSON, which has one of several forms if there are several models."""
    template = "#/components/schemas/{model}"
    forms = [model.model_json_schema(ref_template=template) for model in models]
    content = {"application/json": {"schema": {"oneOf": forms} if len(forms) > 1 else forms[0]}}
    return {"requestBody": {"required": True, "content": content}}


def bytes_body_schema(words: str) -> dict[str, object]:
    """Describe a body of bytes."""
    content = {OCTET_STREAM: {"schema": {"type": "string", "format": "binary"}}}
    return {"requestBody": {"required": True, "description": words, "content": content}}


def bytes_response_schema(words: str) -> dict[int | str, dict[str, object]]:
    """Describe an answer of bytes that is not sent again while it stays the same."""
    content = {OCTET_STREAM: {"schema": {"type": "string", "format": "binary"}}}
    return {
        200: {"description": words, "content": content, "headers": ETAG_HEADER},
        304: {"description": NOT_MODIFIED},
    }


def etag_response(data: bytes | None, tag: str) -> Response:
    """Answer with bytes and their tag, or with the tag alone if they are known."""
    headers = {"ETag": f'"{tag}"', "Cache-Control": "no-cache"}
    if data is None:
        return Response(status_code=304, headers=headers)
    return Response(data, media_type=OCTET_STREAM, headers=headers)


def if_none_match(request: Request) -> str | None:
    """Return the tag that the caller has already."""
    given = request.headers.get("if-none-match", "").strip()
    return given.removeprefix("W/").strip('"') or None


def wall_path(token: str) -> str:
    """Return the address of the page that a wall link opens."""
    return f"/ui/wall/{token}"


async def run_in_thread(work: Callable[[], T], limiter: CapacityLimiter | None = None) -> T:
    """Do work that computes or waits, beside the loop that listens."""
    return await run_sync(work, limiter=limiter)


async def heavy_limiter(request: Request) -> CapacityLimiter:
    """Return the limiter for what computes long, so that shares find threads and a processor."""
    limiter: CapacityLimiter = request.app.state.heavy_limiter
    return limiter


HeavyLimiter = Annotated[CapacityLimiter, Depends(heavy_limiter)]


def scores_csv(
    service: Service, fleet: str, device: str, *, since: float, until: float
) -> StreamingResponse:
    """Return the scores of a device, which must have enrolled, as a file for spreadsheets."""
    service.device(fleet, device)
    lines = service.history.csv(fleet, device, since=since, until=until)
    headers = {"Content-Disposition": f'attachment; filename="{device}-scores.csv"'}
    return StreamingResponse(lines, media_type="text/csv; charset=utf-8", headers=headers)
