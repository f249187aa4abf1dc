"""People at pages: sign-in, sessions of requests, forms and CSRF checks, the page of accounts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from hmac import compare_digest
from typing import Annotated, Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlencode

from fastapi import APIRouter, Depends, HTTPException, Request
from fastapi.responses import RedirectResponse, Response

from edgemerge.core.errors import DeniedError, EdgemergeError, SettingError
from edgemerge.server.auth import (
    KEEP,
    MAX_TOKEN_CHARS,
    ROLES,
    SESSION_S,
    WALL,
    Account,
    Caller,
    Issued,
    Session,
    TooManyAttemptsError,
)
from edgemerge.server.dashboard.pages import answer_form, render_page, wants_json
from edgemerge.server.dashboard.stream import Viewers, ViewersDep
from edgemerge.server.http import InFlight, Name, ServiceDep, wall_path
from edgemerge.server.service import Service

FORM_MEDIA_TYPE = "application/x-www-form-urlencoded"
MAX_FORM_BYTES = 2**18  # bytes: the names of two thousand devices
MAX_FIELDS = 5000


@dataclass(frozen=True)
class Form:
    """The fields of a form; a name may stand in it more than once."""

    fields: dict[str, list[str]] = field(default_factory=dict)

    def one(self, name: str) -> str:
        """Return the first value of a field, without the white space around it; "" if none."""
        return self.every(name)[0].strip() if self.every(name) else ""

    def every(self, name: str) -> list[str]:
        """Return all values of a field."""
        return self.fields.get(name, [])


def parse_form(data: bytes) -> Form:
    """Read the fields; bytes that are no text become marks of it.

    >>> parse_form(b"target=pump-1&target=pump+2").every("target")
    ['pump-1', 'pump 2']
    """
    try:
        text = data.decode("utf-8", "replace")
        return Form(parse_qs(text, keep_blank_values=True, max_num_fields=MAX_FIELDS))
    except ValueError as error:
        raise SettingError(f"found more than {MAX_FIELDS} fields, expected fewer") from error


async def read_form(request: Request, longest: int = MAX_FORM_BYTES) -> Form:
    """Read the form that came with a request, once."""
    if not hasattr(request.state, "form"):
        request.state.form = await _read_form_body(request, longest)
    found: Form = request.state.form
    return found


async def _read_form_body(request: Request, longest: int) -> Form:
    kind = request.headers.get("content-type")
    if kind is None:
        return Form()
    if kind.partition(";")[0].strip().lower() != FORM_MEDIA_TYPE:
        raise SettingError(
            f"found {kind[:100]!r}, expected a form: Content-Type: {FORM_MEDIA_TYPE}"
        )
    load: InFlight = request.app.state.load
    signed_in = getattr(request.state, "session", None) is not None
    async with load.body(request, longest, guest=not signed_in) as data:
        return parse_form(data)


async def _form_dependency(request: Request) -> Form:
    return await read_form(request)


# A route names it after its session, so that forms are read with a session only.
FormDep = Annotated[Form, Depends(_form_dependency)]


HOME_PATH, SIGN_IN_PATH = "/ui/", "/ui/sign-in"
# On https, and on http, where no name is safe.
SECURE_COOKIE, PLAIN_COOKIE = ("__Host-edgemerge", "edgemerge")
MAX_PATH_CHARS = 2000  # characters of an address


def cookies_of(request: Request) -> list[str]:
    """Return possible session cookies; over https only one that no other host can have set."""
    names = [SECURE_COOKIE]
    if request.scope["scheme"] != "https":
        names.append(plain_cookie_name(request))
    return [request.cookies[name] for name in names if request.cookies.get(name)]


def cookie_of(request: Request) -> str:
    """Return the cookie of the session that this request was found to be in."""
    return str(request.state.cookie)


def plain_cookie_name(request: Request) -> str:
    """Name the cookie on http after the port: browsers share cookies between ports of a host."""
    port = request.headers.get("host", "").rpartition(":")[2]
    return f"{PLAIN_COOKIE}-{port}" if port.isdecimal() else PLAIN_COOKIE


def session_of(request: Request) -> Session | None:
    """Return who is signed in, and remember it for the error pages."""
    request.state.session, request.state.cookie = None, ""
    for cookie in cookies_of(request):  # an old one must not hide a good one
        found: Session | None = request.app.state.service.sessions.session(cookie)
        if found is not None:
            request.state.session, request.state.cookie = found, cookie
            return found
    return None


OptionalSession = Annotated[Session | None, Depends(session_of)]


def server_url(request: Request) -> str:
    """Return the address of this server, as the browser calls it."""
    return str(request.base_url).rstrip("/")


class Page(NamedTuple):
    """A request for a page or by its form, who is signed in, and what the server has for it."""

    request: Request
    session: Session
    service: Service
    viewers: Viewers

    @property
    def caller(self) -> Caller:
        """Who is signed in."""
        return self.session.caller

    def render(
        self, template: str, *, problem: EdgemergeError | None = None, **values: Any
    ) -> Response:
        """Fill in a template, as `render_page` does."""
        return render_page(self.request, template, self.session, problem=problem, **values)


async def require_page_session(
    request: Request, session: OptionalSession, service: ServiceDep, viewers: ViewersDep
) -> Page:
    """Redirect a request without a session to sign in, and then back."""
    if session is None:
        if wants_json(request):
            raise HTTPException(401, "you are not signed in: load the page again")
        raise HTTPException(303, "sign in first", {"Location": sign_in_url_from(request)})
    return Page(request, session, service, viewers)


def require_data_session(session: OptionalSession) -> Session:
    """Refuse a request without a session: a script cannot sign in."""
    if session is None:
        raise HTTPException(401, "you are not signed in: load the page again")
    return session


ViewerPage = Annotated[Page, Depends(require_page_session)]
DataSession = Annotated[Session, Depends(require_data_session)]


def page_of(role: str) -> Callable[[Page], Awaitable[Page]]:
    """Return what lets only people see a page who may do what a role may."""

    async def check(page: ViewerPage) -> Page:
        page.caller.must_be(role)
        return page

    return check


OperatorPage = Annotated[Page, Depends(page_of("operator"))]
AdminPage = Annotated[Page, Depends(page_of("admin"))]


async def require_own_form(request: Request, page: ViewerPage) -> Page:
    """Let only those pass who use a page of ours: by where it was sent from, and by its token."""
    must_be_same_origin(request)
    given = request.headers.get("x-csrf-token") or (await read_form(request)).one("csrf")
    if not compare_digest(given.encode(), page.session.csrf.encode()):
        raise DeniedError("this form is of another sign-in: load the page again, then repeat")
    return page


OwnForm = Annotated[Page, Depends(require_own_form)]


def form_of(role: str) -> Callable[[Page], Awaitable[Page]]:
    """Return what lets only people change something by a form who may do what a role may."""

    async def check(page: OwnForm) -> Page:
        page.caller.must_be(role)
        return page

    return check


OperatorForm = Annotated[Page, Depends(form_of("operator"))]
AdminForm = Annotated[Page, Depends(form_of("admin"))]


def require_wall_link(link: str, service: ServiceDep) -> Account:
    """Let only those pass who have a wall link; nobody is signed in by it."""
    found = service.accounts.wall(link)
    if found is None:
        raise DeniedError(
            "this link is unknown, expired or was revoked: ask an admin for a new one"
        )
    return found


WallLink = Annotated[Account, Depends(require_wall_link)]


def must_be_same_origin(request: Request) -> None:
    """Refuse what a page of somewhere else sends; a browser says where it comes from.

    Where it compares for us, that counts: a proxy may call us by another name than the browser.
    """
    site, origin = (request.headers.get(name) for name in ("sec-fetch-site", "origin"))
    same = site is None and origin is not None and _is_same_origin(request, origin)
    if site != "same-origin" and not same:
        raise DeniedError(
            f"this was sent from {origin or site or 'an unknown place'}, expected "
            f"a page of {request.headers.get('host', 'this server')}: use the form on the page"
        )


def _is_same_origin(request: Request, origin: str) -> bool:
    """Compare with the name by which we were called: a proxy in front may speak https for us."""
    scheme, _, host = origin.lower().partition("://")
    ways = ("https",) if request.scope["scheme"] == "https" else ("http", "https")
    return scheme in ways and host == request.headers.get("host", "").lower() != ""


def sign_in_url_from(request: Request) -> str:
    """Return the address at which to sign in, and which then leads to the page that was wanted."""
    wanted = safe_next_path(
        _requested_path(request) if request.method == "GET" else _referring_path(request)
    )
    return sign_in_url(wanted, again=is_cross_site(request))


def sign_in_url(following: str, *, again: bool = False) -> str:
    """Return the address at which to sign in for a page; `again` has it asked for once more."""
    query = {"next": following} if following != HOME_PATH else {}
    query |= {"again": "1"} if again else {}
    return SIGN_IN_PATH + ("?" + urlencode(query, safe="/") if query else "")


def safe_next_path(wanted: str) -> str:
    """Return the address that was wanted if it is one of our pages, else that of the first.

    >>> safe_next_path("/ui/fleets/pumps?sort=score"), safe_next_path("//elsewhere/ui/")
    ('/ui/fleets/pumps?sort=score', '/ui/')
    """
    plain = wanted.isascii() and wanted.isprintable() and not set(wanted) & set(' \\"<>')
    path = wanted.partition("?")[0].partition("#")[0]
    within = path.startswith(HOME_PATH) and "//" not in path
    up = {".", ".."} & set(unquote(path).replace("\\", "/").split("/"))
    return wanted if plain and within and not up and len(wanted) <= MAX_PATH_CHARS else HOME_PATH


def is_cross_site(request: Request) -> bool:
    """Return whether a page of another site led here: then the browser kept our cookie back.

    If our own page asks once more, the cookie comes along.
    """
    site, came = request.headers.get("sec-fetch-site"), request.headers.get("referer", "")
    if site is not None:
        return site not in ("same-origin", "none")
    return bool(came) and _split_url(came)[0] != request.headers.get("host")


def _requested_path(request: Request) -> str:
    path, query = (request.scope[part].decode("latin-1") for part in ("raw_path", "query_string"))
    return f"{path}?{query}" if query else path


def _referring_path(request: Request) -> str:
    host, path = _split_url(request.headers.get("referer", ""))
    return path if host == request.headers.get("host") else HOME_PATH


def _split_url(address: str) -> tuple[str, str]:
    host, slash, rest = address.partition("://")[2].partition("/")
    return host, slash + rest


MAX_SIGN_IN_BYTES = 8192  # of the form, which needs no session

router = APIRouter(include_in_schema=False)


async def sign_in_form(request: Request) -> Form:
    """Read the form before sign-in, if it was sent from our page."""
    must_be_same_origin(request)
    return await read_form(request, MAX_SIGN_IN_BYTES)


@router.get("/sign-in")
def show_sign_in(
    request: Request,
    session: OptionalSession,
    link: str = "",
    next: str = "",  # noqa: A002 - in the address
    again: str = "",
) -> Response:
    """Show the form; with a session, go on at once."""
    following = safe_next_path(next)
    if session and not link:
        return RedirectResponse(following, 303)
    once_more = sign_in_url(following) if again and not link else ""
    return render_sign_in(request, following, link=link[:MAX_TOKEN_CHARS], again=once_more)


@router.post("/sign-in")
def sign_in(
    request: Request, service: ServiceDep, form: Annotated[Form, Depends(sign_in_form)]
) -> Response:
    """Sign in with a token or a link, and redirect to the page that was wanted."""
    following, link = safe_next_path(form.one("next")), form.one("link")
    sessions = service.sessions
    try:
        cookie, _ = sessions.sign_in_by_link(link) if link else sessions.sign_in(form.one("token"))
    except DeniedError as error:
        return render_sign_in(request, following, words=str(error), status=403)
    except TooManyAttemptsError as error:
        found = render_sign_in(request, following, words=str(error), status=429)
        found.headers["Retry-After"] = f"{error.retry_s:.0f}"
        return found
    answer = RedirectResponse(following, 303)
    set_session_cookie(request, answer, cookie, SESSION_S)
    return answer


@router.post("/sign-out")
def sign_out(page: OwnForm) -> Response:
    """End the session, here and in the browser."""
    page.service.sessions.sign_out(cookie_of(page.request))
    answer = RedirectResponse(SIGN_IN_PATH, 303)
    set_session_cookie(page.request, answer, "", 0.0)
    return answer


def render_sign_in(
    request: Request,
    following: str,
    *,
    link: str = "",
    words: str = "",
    again: str = "",
    status: int = 200,
) -> Response:
    """Show the form to sign in, with words if it was tried already."""
    values: dict[str, Any] = {"following": following, "link": link, "words": words, "again": again}
    return render_page(request, "sign_in.html", None, status=status, **values)


def set_session_cookie(request: Request, answer: Response, value: str, seconds: float) -> None:
    """Let the browser keep a cookie for us alone: no script, no other site, no other host."""
    origin = request.headers.get("origin", "")  # a proxy may speak https for us
    safe = request.scope["scheme"] == "https" or origin.lower().startswith("https://")
    answer.set_cookie(
        SECURE_COOKIE if safe else plain_cookie_name(request),
        value,
        max_age=int(seconds),
        path="/",
        secure=safe,
        httponly=True,
        samesite="strict",
    )


# The page of accounts, for admins.

ACCOUNTS_URL = "/ui/accounts"
DAY_S = 86_400.0
VALID_DAYS = {"": "never", "30": "in 30 days", "90": "in 90 days", "365": "in a year"}
ACCOUNT_NOTICES = {"changed": "The account was changed.", "revoked": "The account was revoked."}


@router.get("/accounts")
def show_accounts(page: AdminPage, done: str = "") -> Response:
    """Show accounts and wall links, and forms to add them."""
    return _accounts_page(page, notice=ACCOUNT_NOTICES.get(done, ""))


@router.post("/accounts")
def add_account(page: AdminForm, form: FormDep) -> Response:
    """Add an account or a wall link; its token is on this page, and nowhere else."""
    name, role, accounts = form.one("name"), form.one("role"), page.service.accounts

    def add() -> Issued:
        valid_s = read_validity(form)
        if role != WALL:
            return accounts.add(name, role, valid_s, page.caller)
        if valid_s is None:
            raise SettingError("found a wall link that never expires, expected a time")
        return accounts.add_wall_link(name, form.one("fleet"), page.caller, valid_s=valid_s)

    return _show_issued(page, add)


@router.get("/accounts/{account}")
def show_account(account: Name, page: AdminPage) -> Response:
    """Show what can be done with one account."""
    return _accounts_page(page, chosen=page.service.accounts.get(account))


@router.post("/accounts/{account}/rotate")
def rotate_account(account: Name, page: AdminForm) -> Response:
    """Give an account a new token; it is on this page, and nowhere else."""
    rotate = page.service.accounts.rotate
    return _show_issued(page, lambda: rotate(account, page.caller))


@router.post("/accounts/{account}/change")
def change_account(account: Name, page: AdminForm, form: FormDep) -> Response:
    """Change the role of an account, or when it expires."""
    role = form.one("role") or None

    def change() -> None:
        valid_s = KEEP if form.one("days") == "keep" else read_validity(form)
        page.service.accounts.change(account, page.caller, role=role, valid_s=valid_s)

    return _change_account(page, change, "changed")


@router.post("/accounts/{account}/revoke")
def revoke_account(account: Name, page: AdminForm) -> Response:
    """Revoke an account or a wall link."""
    revoke = page.service.accounts.revoke
    return _change_account(page, lambda: revoke(account, page.caller), "revoked")


def read_validity(form: Form) -> float | None:
    """Read after how many seconds a token expires; None: never."""
    days = form.one("days")
    if days not in VALID_DAYS:
        raise SettingError(
            f"found days {days[:20]!r}, expected {', '.join(filter(None, VALID_DAYS))}"
        )
    return DAY_S * int(days) if days else None


def _show_issued(page: Page, act: Callable[[], Issued]) -> Response:
    """Show a new token once; or why there is none."""
    try:
        issued = act()
    except EdgemergeError as problem:
        return _accounts_page(page, problem=problem)
    secret = page.service.with_fingerprint(issued.token)
    if issued.account.role == WALL:
        secret = server_url(page.request) + wall_path(issued.token)
    return _accounts_page(page, made=(issued.account, secret))


def _change_account(page: Page, change: Callable[[], object], done: str) -> Response:
    """Redirect to the page, which says what was done; or show there why it was not."""
    return answer_form(change, f"{ACCOUNTS_URL}?done={done}", partial(_accounts_page, page))


def _accounts_page(
    page: Page,
    *,
    chosen: Account | None = None,
    made: tuple[Account, str] | None = None,
    notice: str = "",
    problem: EdgemergeError | None = None,
) -> Response:
    values: dict[str, Any] = {"accounts": page.service.accounts.all(), "roles": ROLES}
    values["fleets"] = [fleet.name for fleet, _ in page.service.fleets(page.caller)]
    values |= {"chosen": chosen, "made": made, "notice": notice, "days": VALID_DAYS, "wall": WALL}
    return page.render("accounts.html", problem=problem, tab="Accounts", **values)
