"""Pages to sign in and out."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import RedirectResponse, Response

from edgemerge.core.errors import DeniedError
from edgemerge.server.asking import Serving
from edgemerge.server.attempts import TooManyError
from edgemerge.server.dashboard.forms import Form, form_of
from edgemerge.server.dashboard.rendering import page
from edgemerge.server.dashboard.signed_in import (
    SAFE,
    SIGN_IN,
    Acting,
    Visiting,
    cookie_of,
    must_be_from_here,
    plain_name,
    sign_in_for,
    way_on,
)
from edgemerge.server.sessions import LONGEST, SESSION_S

SHORT = 8192  # bytes of the form: strangers send it

router = APIRouter(include_in_schema=False)


async def sent(request: Request) -> Form:
    """Read the form of somebody whom we do not know, if it is ours."""
    must_be_from_here(request)
    return await form_of(request, SHORT)


@router.get(SIGN_IN)
def show_sign_in(
    request: Request,
    session: Visiting,
    link: str = "",
    next: str = "",  # noqa: A002 - in the address
    again: str = "",
) -> Response:
    """Show the form; whoever is signed in already goes on."""
    following = way_on(next)
    if session and not link:
        return RedirectResponse(following, 303)
    once_more = sign_in_for(following) if again and not link else ""
    return shown(request, following, link=link[:LONGEST], again=once_more)


@router.post(SIGN_IN)
def sign_in(request: Request, service: Serving, form: Annotated[Form, Depends(sent)]) -> Response:
    """Let in who has a token or a link, and lead to what was wanted."""
    following, link = way_on(form.one("next")), form.one("link")
    sessions = service.sessions
    try:
        cookie, _ = sessions.sign_in_by_link(link) if link else sessions.sign_in(form.one("token"))
    except DeniedError as error:
        return shown(request, following, words=str(error), status=403)
    except TooManyError as error:
        found = shown(request, following, words=str(error), status=429)
        found.headers["Retry-After"] = f"{error.retry_s:.0f}"
        return found
    answer = RedirectResponse(following, 303)
    give_cookie(request, answer, cookie, SESSION_S)
    return answer


@router.post("/ui/sign-out")
def sign_out(request: Request, service: Serving, _session: Acting) -> Response:
    """End the session, here and in the browser."""
    service.sessions.sign_out(cookie_of(request))
    answer = RedirectResponse(SIGN_IN, 303)
    give_cookie(request, answer, "", 0.0)
    return answer


def shown(
    request: Request,
    following: str,
    *,
    link: str = "",
    words: str = "",
    again: str = "",
    status: int = 200,
) -> Response:
    """Show the form to sign in, with words if it was tried already."""
    values = {"following": following, "link": link, "words": words, "again": again}
    return page(request, "sign_in.html", None, status=status, **values)


def give_cookie(request: Request, answer: Response, value: str, seconds: float) -> None:
    """Let the browser keep a cookie for us alone: no script, no other site, no other host."""
    origin = request.headers.get("origin", "")  # a proxy may speak https for us
    safe = request.scope["scheme"] == "https" or origin.lower().startswith("https://")
    answer.set_cookie(
        SAFE if safe else plain_name(request),
        value,
        max_age=int(seconds),
        path="/",
        secure=safe,
        httponly=True,
        samesite="strict",
    )
