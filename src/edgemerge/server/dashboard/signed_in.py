"""Who looks at a page, and whether a change was really asked for on one of our pages.

A stranger is led to sign in, and learns nothing else.
"""

from __future__ import annotations

from hmac import compare_digest
from typing import Annotated
from urllib.parse import unquote, urlencode

from fastapi import Depends, HTTPException, Request

from edgemerge.core.errors import DeniedError
from edgemerge.server.dashboard.forms import form_of
from edgemerge.server.sessions import Session

HOME, SIGN_IN = "/ui/", "/ui/sign-in"
SAFE, PLAIN = "__Host-edgemerge", "edgemerge"  # on https, and on http, where no name is safe
SCRIPT = ("application/json", "text/event-stream")  # what scripts ask for
LONGEST = 2000  # characters of an address


def cookies_of(request: Request) -> list[str]:
    """Give what may be a session's cookie; over https only one that no other host can have set."""
    names = (SAFE,) if request.scope["scheme"] == "https" else (SAFE, plain_name(request))
    return [request.cookies[name] for name in names if request.cookies.get(name)]


def cookie_of(request: Request) -> str:
    """Give the cookie of the session that this request was found to be in."""
    return str(request.state.cookie)


def plain_name(request: Request) -> str:
    """Name the cookie on http after the port: browsers share cookies between ports of a host."""
    port = request.headers.get("host", "").rpartition(":")[2]
    return f"{PLAIN}-{port}" if port.isdecimal() else PLAIN


def session_of(request: Request) -> Session | None:
    """Say who is signed in, and remember it for the pages that tell problems."""
    request.state.session, request.state.cookie = None, ""
    for cookie in cookies_of(request):  # an old one must not hide a good one
        found: Session | None = request.app.state.service.sessions.session(cookie)
        if found is not None:
            request.state.session, request.state.cookie = found, cookie
            return found
    return None


Visiting = Annotated[Session | None, Depends(session_of)]


def signed_in(request: Request, session: Visiting) -> Session:
    """Lead a stranger to sign in, and then back to where it wanted to go."""
    if session is None:
        if asks_for_data(request):
            raise HTTPException(401, "you are not signed in: load the page again")
        raise HTTPException(303, "sign in first", {"Location": way_to_sign_in(request)})
    return session


def signed_in_feed(session: Visiting) -> Session:
    """Refuse a stranger: a script cannot sign in."""
    if session is None:
        raise HTTPException(401, "you are not signed in: load the page again")
    return session


SignedIn = Annotated[Session, Depends(signed_in)]
SignedInFeed = Annotated[Session, Depends(signed_in_feed)]


async def acting(request: Request, session: SignedIn) -> Session:
    """Let only those pass who use a page of ours: by where it was sent from, and by its token."""
    must_be_from_here(request)
    given = request.headers.get("x-csrf-token") or (await form_of(request)).one("csrf")
    if not compare_digest(given.encode(), session.csrf.encode()):
        raise DeniedError("this form is of another sign-in: load the page again, then repeat")
    return session


Acting = Annotated[Session, Depends(acting)]


def must_be_from_here(request: Request) -> None:
    """Refuse what a page of somewhere else sends; a browser says where it comes from.

    Where it compares for us, that counts: a proxy may call us by another name than the browser.
    """
    site, origin = (request.headers.get(name) for name in ("sec-fetch-site", "origin"))
    same = site is None and origin is not None and _is_here(request, origin)
    if site != "same-origin" and not same:
        raise DeniedError(
            f"this was sent from {origin or site or 'an unknown place'}, expected "
            f"a page of {request.headers.get('host', 'this server')}: use the form on the page"
        )


def _is_here(request: Request, origin: str) -> bool:
    """Compare with the name by which we were called: a proxy in front may speak https for us."""
    scheme, _, host = origin.lower().partition("://")
    ways = ("https",) if request.scope["scheme"] == "https" else ("http", "https")
    return scheme in ways and host == request.headers.get("host", "").lower() != ""


def asks_for_data(request: Request) -> bool:
    """Say whether a script asks, which wants no page."""
    return any(kind in request.headers.get("accept", "") for kind in SCRIPT)


def way_to_sign_in(request: Request) -> str:
    """Give the address at which to sign in, and which then leads to the page that was wanted."""
    wanted = way_on(_asked(request) if request.method == "GET" else _came_from(request))
    return sign_in_for(wanted, again=is_from_elsewhere(request))


def sign_in_for(following: str, *, again: bool = False) -> str:
    """Give the address at which to sign in for a page; `again` has it asked for once more."""
    query = {"next": following} if following != HOME else {}
    query |= {"again": "1"} if again else {}
    return SIGN_IN + ("?" + urlencode(query, safe="/") if query else "")


def way_on(wanted: str) -> str:
    """Give the address that was wanted if it is one of our pages, else that of the first.

    >>> way_on("/ui/fleets/pumps?sort=score"), way_on("//elsewhere/ui/")
    ('/ui/fleets/pumps?sort=score', '/ui/')
    """
    plain = wanted.isascii() and wanted.isprintable() and not set(wanted) & set(' \\"<>')
    path = wanted.partition("?")[0].partition("#")[0]
    within = path.startswith(HOME) and "//" not in path
    up = {".", ".."} & set(unquote(path).replace("\\", "/").split("/"))
    return wanted if plain and within and not up and len(wanted) <= LONGEST else HOME


def is_from_elsewhere(request: Request) -> bool:
    """Say whether a page of another site led here: then the browser kept our cookie back.

    If our own page asks once more, the cookie comes along.
    """
    site, came = request.headers.get("sec-fetch-site"), request.headers.get("referer", "")
    if site is not None:
        return site not in ("same-origin", "none")
    return bool(came) and _parts(came)[0] != request.headers.get("host")


def _asked(request: Request) -> str:
    path, query = (request.scope[part].decode("latin-1") for part in ("raw_path", "query_string"))
    return f"{path}?{query}" if query else path


def _came_from(request: Request) -> str:
    host, path = _parts(request.headers.get("referer", ""))
    return path if host == request.headers.get("host") else HOME


def _parts(address: str) -> tuple[str, str]:
    host, slash, rest = address.partition("://")[2].partition("/")
    return host, slash + rest
