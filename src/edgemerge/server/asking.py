"""What routes have in common: who asks, what was sent, and which service answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import Depends, Path, Request, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, ValidationError

from edgemerge.core.errors import DeniedError, SettingError
from edgemerge.server.fleets import Fleet
from edgemerge.server.limits import WORDS, Load
from edgemerge.server.names import NAME
from edgemerge.server.problems import NobodyError, in_words
from edgemerge.server.service import Service
from edgemerge.server.tokens import Caller

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")

BYTES = "application/octet-stream"
Name = Annotated[str, Path(pattern=NAME)]
Number = Annotated[int, Path(ge=0, lt=2**63)]

_bearer = HTTPBearer(auto_error=False, description="The token of an operator or a device.")


async def service_of(request: Request) -> Service:
    """Give the service behind the app."""
    service: Service = request.app.state.service
    return service


async def load_of(request: Request) -> Load:
    """Give what is under way."""
    load: Load = request.app.state.load
    return load


Serving = Annotated[Service, Depends(service_of)]
Loading = Annotated[Load, Depends(load_of)]


async def token_of(given: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]) -> str:
    """Give the token that came with a request."""
    if given is None or not given.credentials.isascii():
        raise NobodyError("found no token, expected the header 'Authorization: Bearer TOKEN'")
    return given.credentials


Token = Annotated[str, Depends(token_of)]


def caller_of(service: Serving, token: Token) -> Caller:
    """Say who asks."""
    try:
        return service.caller(token)
    except DeniedError as error:
        raise NobodyError(str(error)) from error


Asker = Annotated[Caller, Depends(caller_of)]


async def operator(caller: Asker) -> Caller:
    """Let only operators pass."""
    if not caller.is_operator:
        raise DeniedError("found the token of a device, expected that of an operator")
    return caller


async def member(fleet: Name, caller: Asker) -> Caller:
    """Let operators pass, and the devices of this fleet."""
    if not caller.is_operator and caller.fleet != fleet:
        raise DeniedError(f"found a device of another fleet, expected one of {fleet}")
    return caller


Operator = Annotated[Caller, Depends(operator)]
Member = Annotated[Caller, Depends(member)]


def sender(service: Serving, token: Token, fleet: Name, device: Name) -> tuple[Caller, Fleet]:
    """Let only the device itself pass; give what its fleet has agreed on, too."""
    try:
        caller, agreed = service.sender(token, fleet)
    except DeniedError as error:
        raise NobodyError(str(error)) from error
    if agreed is None or caller.name != device:
        raise DeniedError(f"only {device} itself, in its fleet, may say what it saw")
    return caller, agreed


Sender = Annotated[tuple[Caller, Fleet], Depends(sender)]


def asked(model: type[M]) -> Callable[[Request, Load], Awaitable[M]]:
    """Read what is asked in JSON, once it is known who asks."""

    async def read(request: Request, load: Loading) -> M:
        async with load.body(request, WORDS) as data:
            try:
                return model.model_validate_json(data)
            except ValidationError as error:
                raise SettingError(in_words(error.errors())) from error

    return read


def json_body(model: type[BaseModel]) -> dict[str, object]:
    """Describe a body in JSON."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def bytes_body(words: str) -> dict[str, object]:
    """Describe a body of bytes."""
    content = {BYTES: {"schema": {"type": "string", "format": "binary"}}}
    return {"requestBody": {"required": True, "description": words, "content": content}}


def bytes_answer(words: str) -> dict[int | str, dict[str, object]]:
    """Describe an answer of bytes that is not sent again while it stays the same."""
    content = {BYTES: {"schema": {"type": "string", "format": "binary"}}}
    tag = {"ETag": {"schema": {"type": "string"}, "description": "Changes with the content."}}
    return {
        200: {"description": words, "content": content, "headers": tag},
        304: {"description": "It is what `If-None-Match` names."},
    }


def tagged(data: bytes | None, tag: str) -> Response:
    """Answer with bytes and their tag, or with the tag alone if they are known."""
    headers = {"ETag": f'"{tag}"', "Cache-Control": "no-cache"}
    if data is None:
        return Response(status_code=304, headers=headers)
    return Response(data, media_type=BYTES, headers=headers)


def known_tag(request: Request) -> str | None:
    """Give the tag that the asker has already."""
    given = request.headers.get("if-none-match", "").strip()
    return given.removeprefix("W/").strip('"') or None


async def in_thread(work: Callable[[], T], limiter: CapacityLimiter | None = None) -> T:
    """Do work that computes or waits, beside the loop that listens."""
    return await run_sync(work, limiter=limiter)
