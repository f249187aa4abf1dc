"""Pages to sign in and out: strangers learn nothing, and no other site acts for an operator."""

import logging
import re
from http.client import HTTPConnection
from urllib.parse import quote

import pytest
from starlette.routing import Mount

from edgemerge import __version__
from edgemerge.core.errors import UnavailableError
from edgemerge.server.auth import LINK_S, SESSION_S
from edgemerge.server.dashboard.pages import (
    CONTENT_SECURITY_POLICY,
    STATIC_DIR,
    TEMPLATES,
    static_files,
    static_url,
    static_version,
)
from edgemerge.server.dashboard.sign_in import safe_next_path
from edgemerge.server.http import Limits
from edgemerge.server.main import create_app
from tests.server.visiting import Visitor
from tests.server.wire import line, status_on
from tests.server.world import FLEET, ROOT
from tests.services.hub import running
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.slow

WALL = {"/ui/wall/{link}", "/ui/wall/{link}/live"}  # refused without a link: no sign-in helps
OPEN = {"/ui", "/ui/sign-in", "/ui/static/{version}/{name:path}", *WALL}  # to strangers
GUARDS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "referrer-policy": "same-origin",
    "x-frame-options": "DENY",
    "cross-origin-resource-policy": "same-origin",
    "x-content-type-options": "nosniff",
}


@pytest.fixture
def app(world):
    return create_app(world.service)


@pytest.fixture
def stranger(app):
    return Visitor(app)


@pytest.fixture
def operator(app, world):
    made = Visitor(app)
    assert made.sign_in(world.operator_token).status_code == 303
    return made


def must_be_guarded(answer, cache="no-store"):
    for name, value in GUARDS.items():
        assert answer.headers.get_list(name) == [value], name
    assert "camera=()" in answer.headers["permissions-policy"]
    assert answer.headers.get_list("cache-control") == [cache]


def must_be_page(answer, status, *words):
    assert answer.status_code == status
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert [word for word in words if word not in answer.text] == []
    must_be_guarded(answer)


def pages_of(app):
    """Method and address of everything under /ui, with all that stands in braces filled in."""
    for path, methods in routes_in(app):
        if path.startswith("/ui"):
            for method in methods:
                yield path, method, re.sub(r"\{[^}]*\}", "1", path)


def routes_in(router, prefix=""):
    """Path and methods of all routes, also of mounted apps and of routers within."""
    for route in router.routes:
        inner = getattr(route, "original_router", None)
        if isinstance(route, Mount):
            yield from routes_in(route, prefix + route.path)
        elif inner is None:
            yield prefix + route.path, route.methods
        else:
            yield from routes_in(inner, prefix)


@pytest.mark.parametrize("cookie", ["", "ems_nonsense", "ems_" + "x" * 43, "x" * 5000])
def test_every_page_leads_a_stranger_to_sign_in(app, cookie):
    closed = [page for page in pages_of(app) if page[0] not in OPEN]
    assert {("/ui/{rest:path}", "GET"), ("/ui/sign-out", "POST")} <= {page[:2] for page in closed}
    for _, method, address in closed:
        visitor = Visitor(app)
        visitor.cookies = {"edgemerge-8470": cookie} if cookie else {}
        headers = {"Origin": visitor.origin, "X-CSRF-Token": "0" * 64}
        answer = visitor.ask(method, address, headers=headers)
        assert answer.status_code in (303, 401), (method, address)
        if answer.status_code == 303:
            assert answer.headers["location"].startswith("/ui/sign-in")
        assert FLEET not in answer.text
        must_be_guarded(answer)


def test_scripts_of_a_stranger_are_refused_instead_of_led_away(app):
    for path, method, address in pages_of(app):
        if path not in OPEN:
            kind = {"Accept": "application/json", "Origin": "http://hub:8470"}
            answer = Visitor(app).ask(method, address, headers=kind)
            assert (answer.status_code, "error" in answer.json()) == (401, True), address


def test_a_stranger_does_not_learn_which_fleets_there_are(stranger):
    there, nowhere = (stranger.get(f"/ui/fleets/{name}") for name in (FLEET, "nowhere"))
    assert there.status_code == nowhere.status_code == 303
    assert there.text == nowhere.text
    assert there.headers["location"].replace(FLEET, "nowhere") == nowhere.headers["location"]


def test_the_dashboard_is_not_in_the_description_of_the_api(app):
    assert not [path for path in app.openapi()["paths"] if path.startswith("/ui") or path == "/"]


def test_the_first_address_leads_to_the_dashboard(stranger):
    for path in ("/", "/ui"):
        answer = stranger.get(path)
        assert (answer.status_code, answer.headers["location"]) == (303, "/ui/")


def test_whoever_signs_in_gets_where_it_wanted_to_go(stranger, world):
    asked = stranger.get("/ui/fleets/pumps?sort=score&q=a%20b")
    address = asked.headers["location"]
    wanted = "/ui/fleets/pumps?sort=score&q=a%20b"
    assert address == f"/ui/sign-in?next={quote(wanted, safe='/')}"
    form = stranger.get(address)
    must_be_page(form, 200, 'name="token"', wanted.replace("&", "&amp;"))
    answer = stranger.post("/ui/sign-in", {"token": f" {world.operator_token}\n", "next": wanted})
    assert (answer.status_code, answer.headers["location"]) == (303, wanted)
    must_be_guarded(answer)
    must_be_page(stranger.get("/ui/nowhere"), 404, "Signed in as root")


def test_whoever_is_signed_in_need_not_sign_in_again(operator):
    answer = operator.get("/ui/sign-in?next=/ui/fleets/pumps")
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/fleets/pumps")


@pytest.mark.parametrize(
    ("headers", "elsewhere"),
    [
        ({"Sec_Fetch_Site": "cross-site"}, True),
        ({"Sec_Fetch_Site": "same-site"}, True),
        ({"Referer": "http://elsewhere/"}, True),
        ({"Sec_Fetch_Site": "same-origin"}, False),
        ({"Sec_Fetch_Site": "none"}, False),
        ({"Referer": "http://hub:8470/ui/sign-in"}, False),
        ({}, False),
    ],
)
def test_whoever_comes_from_another_site_is_asked_again_with_its_cookie(
    stranger, headers, elsewhere
):
    address = stranger.get("/ui/fleets/a", **headers).headers["location"]
    assert address == "/ui/sign-in?next=/ui/fleets/a" + ("&again=1" if elsewhere else "")
    page = stranger.get(address).text
    again = '<meta http-equiv="refresh" content="0; url=/ui/sign-in?next=/ui/fleets/a">'
    assert (again in page) == ("refresh" in page) == elsewhere
    assert "refresh" not in stranger.get("/ui/sign-in?link=eml_x&again=1").text


@pytest.mark.parametrize(
    ("scheme", "headers", "isolated"),
    [("http", {}, False), ("http", {"Sec_Fetch_Site": "none"}, True), ("https", {}, True)],
)
def test_windows_are_kept_apart_where_browsers_do_that(app, scheme, headers, isolated):
    for path in ("/ui/sign-in", "/ui/nowhere", static_url("style.css")):
        found = Visitor(app, scheme).get(path, **headers).headers
        name = "cross-origin-opener-policy"
        assert found.get_list(name) == (["same-origin"] if isolated else [])


ELSEWHERE = (
    "https://elsewhere/ui/",
    "//elsewhere/ui/",
    "/\\elsewhere",
    "\\\\elsewhere\\ui\\",
    "/ui/\\elsewhere",
    "/ui//elsewhere",
    "/ui/../fleets",
    "/ui/%2e%2e/fleets",
    "/ui/a/%2E%2e",
    "/ui/..%2ffleets",
    "/ui/..%5cfleets",
    "/ui/./fleets",
    "/uix",
    "/fleets",
    "ui/",
    "",
    "javascript:alert(1)",
    "/ui/\r\nSet-Cookie: a=b",
    "/ui/\t/elsewhere",
    "/ui/\u20ac",
    '/ui/"><script>',
    "/ui/ x",
    "/ui/" + "x" * 2000,
)


def test_signing_in_leads_nowhere_else(stranger, world):
    for wanted in ELSEWHERE:
        assert safe_next_path(wanted) == "/ui/", wanted
    for wanted in ELSEWHERE[:6]:
        form = {"token": world.operator_token, "next": wanted}
        assert stranger.post("/ui/sign-in", form).headers["location"] == "/ui/"


def test_what_stands_in_the_query_of_a_page_may_be_anything_plain():
    for wanted in ("/ui/", "/ui/fleets/a?q=//x", "/ui/fleets/a?q=..", "/ui/fleets/a..b#log"):
        assert safe_next_path(wanted) == wanted


def test_odd_bytes_in_an_address_are_no_fault_of_the_server(tmp_path):
    odd = (b"\xff\xfe", b"next=%ff", b"next=\xe2\x82\xac", b"link=%00", b"next=%00")
    with running(f"sqlite:///{tmp_path / 'other.db'}") as here:
        for path in [
            page + query for page in (b"/ui/sign-in?", b"/ui/fleets/%c3?") for query in odd
        ]:
            with line(here) as opened:
                opened.sendall(b"GET " + path + b" HTTP/1.1\r\nHost: hub\r\n\r\n")
                assert status_on(opened) in (200, 303, 400), path


def test_a_wrong_token_is_told_in_the_same_words_whatever_it_is(stranger, world):
    world.caller("pump-1")
    answers = [
        stranger.sign_in(token)
        for token in ("emo_" + "x" * 43, world.tokens["pump-1"], "", "\xe4\u20ac", "\x00", "emo_")
    ]
    assert len({re.sub("[0-9]+ s", "", answer.text) for answer in answers}) == 1
    for answer in answers:
        must_be_page(answer, 403, "does not open the dashboard", 'role="alert"', 'name="token"')
        assert "set-cookie" not in answer.headers


def test_a_token_of_a_megabyte_is_not_even_read(stranger):
    must_be_page(stranger.sign_in("emo_" + "x" * 2**20), 413, "expected at most")


def test_many_wrong_tokens_are_told_to_wait_but_a_good_one_gets_in(stranger, world):
    for _ in range(10):
        assert stranger.sign_in("wrong").status_code == 403
    late = stranger.sign_in("wrong")
    must_be_page(late, 429, "try again in", 'name="token"')
    assert 1 <= int(late.headers["retry-after"]) <= 60
    assert stranger.sign_in(world.operator_token).status_code == 303


@pytest.mark.parametrize(
    ("scheme", "name"), [("http", "edgemerge-8470"), ("https", "__Host-edgemerge")]
)
def test_the_cookie_is_for_this_host_alone_and_for_no_script(app, world, scheme, name):
    visitor = Visitor(app, scheme)
    line = visitor.sign_in(world.operator_token).headers["set-cookie"]
    given, *attributes = line.split("; ")
    assert given.startswith(f"{name}=ems_")
    wanted = {"HttpOnly", "SameSite=strict", "Path=/", f"Max-Age={SESSION_S:.0f}"}
    assert set(attributes) == wanted | ({"Secure"} if scheme == "https" else set())
    assert visitor.get("/ui/nowhere").status_code == 404
    out = visitor.post("/ui/sign-out", {"csrf": visitor.csrf()}).headers["set-cookie"]
    assert out.startswith(f'{name}="";')
    assert {"Max-Age=0", "Path=/", "HttpOnly"} <= set(out.split("; "))


def test_servers_at_two_ports_of_a_host_do_not_sign_each_other_out(app, world):
    one, two = (Visitor(app, "http", f"hub.example:{port}") for port in (8470, 8471))
    names = [list(each.sign_in(world.operator_token).cookies) for each in (one, two)]
    assert names == [["edgemerge-8470"], ["edgemerge-8471"]]
    assert one.get("/ui/nowhere").status_code == 404


def test_an_old_cookie_does_not_hide_a_good_one(app, world):
    visitor = Visitor(app)
    visitor.sign_in(world.operator_token)
    visitor.cookies = {"__Host-edgemerge": "ems_" + "x" * 43, **visitor.cookies}
    assert visitor.get("/ui/nowhere").status_code == 404
    visitor.post("/ui/sign-out", {"csrf": visitor.csrf()})
    assert visitor.get("/ui/nowhere").status_code == 303


def test_on_https_a_cookie_that_another_host_could_have_set_does_not_count(app, world):
    visitor = Visitor(app, "https")
    visitor.sign_in(world.operator_token)
    visitor.cookies = {"edgemerge-8470": visitor.cookies["__Host-edgemerge"]}
    assert visitor.get("/ui/nowhere").status_code == 303


def test_behind_a_proxy_that_speaks_https_the_cookie_is_safe_too(app, world):
    visitor = Visitor(app, "http", "hub.example")
    form = {"token": world.operator_token}
    answer = visitor.post("/ui/sign-in", form, Origin="https://hub.example")
    assert answer.headers["set-cookie"].startswith("__Host-edgemerge=")
    assert "Secure" in answer.headers["set-cookie"]
    assert visitor.get("/ui/nowhere").status_code == 404


def test_signing_out_ends_the_session_at_the_server(operator, world):
    kept = dict(operator.cookies)
    answer = operator.post("/ui/sign-out", {"csrf": operator.csrf()})
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/sign-in")
    must_be_guarded(answer)
    assert operator.cookies == {}
    operator.cookies = kept
    assert operator.get("/ui/nowhere").status_code == 303
    with world.service.database.reading() as tx:
        assert tx.rows("select * from sessions") == []


def test_a_session_that_has_expired_leads_to_sign_in_and_back(operator, world):
    csrf = operator.csrf()
    world.now += SESSION_S
    assert operator.get("/ui/a").headers["location"] == "/ui/sign-in?next=/ui/a"
    came = {"Referer": f"{operator.origin}/ui/fleets/pumps?x=1"}
    answer = operator.post("/ui/sign-out", {"csrf": csrf}, **came)
    assert answer.headers["location"] == "/ui/sign-in?next=/ui/fleets/pumps%3Fx%3D1"
    for other in ("http://elsewhere/ui/fleets", "http://[", "", "nonsense"):
        answer = operator.post("/ui/sign-out", {"csrf": csrf}, Referer=other)
        assert answer.headers["location"] in ("/ui/sign-in", "/ui/sign-in?again=1")


@pytest.mark.slow
def test_a_session_survives_a_restart_of_the_server(operator, world):
    csrf = operator.csrf()
    world.restart()
    again = Visitor(create_app(world.service))
    again.cookies = operator.cookies
    assert again.csrf() == csrf


ELSEWHERE_SENT = (
    {"Origin": "http://elsewhere"},
    {"Origin": "http://hub"},
    {"Origin": "http://hub:8470.elsewhere"},
    {"Origin": "null"},
    {"Origin": "hub:8470"},
    {"Origin": "ftp://hub:8470"},
    {"Origin": "http://hub:8470", "Sec-Fetch-Site": "same-site"},
    {"Origin": "http://hub:8470", "Sec-Fetch-Site": "cross-site"},
    {"Origin": "http://hub:8470", "Sec-Fetch-Site": "none"},
    {},
    {"Sec-Fetch-Site": "cross-site"},
)


def test_what_another_site_sends_is_refused_even_with_cookie_and_token(operator, world):
    form = {"csrf": operator.csrf(), "token": world.operator_token}
    for headers in ELSEWHERE_SENT:
        for path in ("/ui/sign-out", "/ui/sign-in"):
            answer = operator.ask("POST", path, data=form, headers=headers)
            must_be_page(answer, 403, "use the form on the page")
            assert "set-cookie" not in answer.headers
    assert operator.get("/ui/nowhere").status_code == 404


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "same-origin", "Origin": "https://by.a.proxy"},
        {"Origin": "HTTP://Hub:8470"},
    ],
)
def test_what_our_own_page_sends_is_taken(operator, headers):
    answer = operator.ask("POST", "/ui/sign-out", data={"csrf": operator.csrf()}, headers=headers)
    assert answer.headers["location"] == "/ui/sign-in"


def test_on_https_a_page_of_plain_http_does_not_count_as_ours(app, world):
    visitor = Visitor(app, "https")
    form = {"token": world.operator_token}
    answer = visitor.post("/ui/sign-in", form, Origin="http://hub:8470")
    assert answer.status_code == 403


def test_a_form_without_the_token_of_this_session_changes_nothing(operator, app, world):
    other = Visitor(app)
    other.sign_in(world.operator_token)
    for csrf in ("", "0" * 64, other.csrf(), operator.csrf()[:-1], "\xe4", operator.csrf() + "0"):
        answer = operator.post("/ui/sign-out", {"csrf": csrf})
        must_be_page(answer, 403, "load the page again", "Sign out")
    must_be_page(operator.post("/ui/sign-out", {}), 403, "load the page again")
    assert operator.get("/ui/nowhere").status_code == 404


def test_a_script_sends_the_token_in_a_header_and_reads_words_as_data(operator):
    as_data = {"Accept": "application/json"}
    wrong = operator.post("/ui/sign-out", {}, X_CSRF_Token="0" * 64, **as_data)
    assert (wrong.status_code, "load the page" in wrong.json()["error"]) == (403, True)
    must_be_guarded(wrong)
    headers = {"Origin": operator.origin, "X-CSRF-Token": operator.csrf()}
    assert operator.ask("POST", "/ui/sign-out", headers=headers).status_code == 303


def test_a_form_of_another_kind_or_of_too_many_fields_is_refused(operator):
    headers = {"Origin": operator.origin, "Content-Type": "multipart/form-data; boundary=x"}
    answer = operator.ask("POST", "/ui/sign-out", content=b"--x--", headers=headers)
    must_be_page(answer, 422, "expected a form", "application/x-www-form-urlencoded")
    must_be_page(operator.post("/ui/sign-out", {"a": ["x"] * 5001}), 422, "fields")
    must_be_page(operator.post("/ui/sign-out", {"a": "x" * 2**18}), 413, "expected at most")


def test_a_link_shows_a_button_as_often_as_one_looks_and_works_once(stranger, app, world):
    made = stranger.ask(
        "POST", "/sign-in-links", headers={"Authorization": f"Bearer {world.operator_token}"}
    )
    assert made.status_code == 201
    path, link = made.json()["path"], made.json()["path"].partition("link=")[2]
    assert made.json()["expires"] == world.now + LINK_S
    for _ in range(3):
        must_be_page(stranger.get(path), 200, f'value="{link}"', "Open the dashboard", "sign_in.js")
    answer = stranger.post("/ui/sign-in", {"link": link, "next": "/ui/fleets/pumps"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/fleets/pumps")
    assert stranger.get("/ui/nowhere").status_code == 404
    must_be_page(Visitor(app).post("/ui/sign-in", {"link": link}), 403, "links work once")


def test_a_link_that_has_expired_signs_nobody_in(stranger, world):
    link = world.service.sessions.link(ROOT).token
    world.now += LINK_S
    must_be_page(stranger.post("/ui/sign-in", {"link": link}), 403, "expired")


def test_whoever_is_signed_in_can_still_use_a_link(operator, world):
    link = world.service.sessions.link(ROOT).token
    must_be_page(operator.get(f"/ui/sign-in?link={link}"), 200, "Open the dashboard")


def test_only_operators_make_links(stranger, world):
    world.caller("pump-1")
    for token, status in ((world.tokens["pump-1"], 403), ("emo_nobody", 401), ("", 401)):
        headers = {"Authorization": f"Bearer {token}"}
        assert stranger.ask("POST", "/sign-in-links", headers=headers).status_code == status


def test_hostile_words_in_an_address_are_shown_as_text(stranger):
    nasty = '"><script>alert(1)</script>'
    page = stranger.get(f"/ui/sign-in?link={quote(nasty)}&next={quote(nasty)}").text
    assert "<script>alert" not in page
    assert "&#34;&gt;&lt;script&gt;alert" in page
    assert "x" * 201 not in stranger.get("/ui/sign-in?link=" + "x" * 5000).text


def test_problems_are_told_as_pages_here_and_as_data_elsewhere(operator):
    must_be_page(operator.get("/ui/nowhere"), 404, "There is no such page", "To the fleets")
    must_be_page(operator.ask("DELETE", "/ui/sign-in"), 405)
    for method in ("POST", "DELETE", "BREW"):
        answer = operator.ask(method, "/ui")
        must_be_page(answer, 405, "This address takes something else")
        assert answer.headers["allow"] == "GET"
    assert operator.get("/nowhere").json() == {"error": "Not Found"}
    assert operator.get("/ui/nowhere", Accept="application/json").json()["error"]
    assert operator.get("/ui/nowhere", Accept="text/event-stream").json()["error"]


def test_a_fault_and_a_database_that_is_away_are_told_as_pages(operator, world, monkeypatch):
    def fail(_cookie):
        raise RuntimeError("secret detail")

    def away(_cookie):
        raise UnavailableError("the database is away", retry_s=3.0)

    monkeypatch.setattr(world.service.sessions, "session", fail)
    fault = operator.get("/ui/nowhere")
    must_be_page(fault, 500, "A fault of the server", "its log says more")
    assert "secret detail" not in fault.text
    assert operator.get("/ui/nowhere", Accept="application/json").json()["error"]
    monkeypatch.setattr(world.service.sessions, "session", away)
    answer = operator.get("/ui/nowhere")
    must_be_page(answer, 503, "The database is away.")
    assert answer.headers["retry-after"] == "3"


def test_a_server_that_is_too_busy_says_so_on_a_page(world):
    busy = Visitor(create_app(world.service, Limits(max_requests_in_flight=0)))
    must_be_page(busy.get("/ui/"), 503, "too many requests".capitalize())
    assert busy.get("/status").json()["error"]


def test_only_the_dashboard_has_the_headers_of_pages(stranger):
    assert "content-security-policy" not in stranger.get("/healthz").headers
    assert "content-security-policy" not in stranger.get("/uix").headers


def test_every_file_of_the_dashboard_is_given_to_anybody_and_kept_for_ever(stranger):
    kinds = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
    assert {"style.css", "page.js", "sign_in.js", "uplot/uPlot.min.css"} <= set(static_files())
    for name in static_files():
        for method in ("GET", "HEAD"):
            answer = stranger.ask(method, static_url(name))
            assert answer.status_code == 200
            kind = kinds.get(name[name.rfind(".") :], "text/plain")
            assert answer.headers["content-type"].partition(";")[0] == kind
            must_be_guarded(answer, "public, max-age=31536000, immutable")
        assert stranger.ask("GET", static_url(name)).content == (STATIC_DIR / name).read_bytes()
        assert stranger.ask("POST", static_url(name)).status_code == 405


def test_a_file_asked_for_by_a_page_of_an_older_server_is_not_kept(stranger):
    answer = stranger.get("/ui/static/0123456789abcdef/style.css")
    assert answer.status_code == 200
    must_be_guarded(answer, "no-cache")


def test_a_file_that_a_browser_has_is_not_sent_again(stranger):
    first = stranger.get(static_url("style.css"))
    again = stranger.get(static_url("style.css"), If_None_Match=first.headers["etag"])
    assert (again.status_code, again.content) == (304, b"")
    must_be_guarded(again, "public, max-age=31536000, immutable")


NO_FILES = (
    "../templates/base.html",
    "..%2ftemplates%2fbase.html",
    "%2e%2e/pages.py",
    "..%5cpages.py",
    "uplot",
    "uplot/",
    "/etc/passwd",
    "//etc/passwd",
    "style.css%00.js",
    "STYLE.css",
    "",
)


def test_no_other_file_is_given(stranger):
    for name in NO_FILES:
        answer = stranger.get(f"/ui/static/{static_version()}/{name}")
        assert answer.status_code in (303, 404), name
        assert b"import" not in answer.content


def test_a_file_that_is_not_there_cannot_be_asked_for_in_a_template():
    with pytest.raises(KeyError, match="no file missing"):
        static_url("missing.js")


def test_templates_escape_everything_and_name_what_is_missing():
    made = TEMPLATES.from_string("{{ word }}").render(word="<b>")
    assert made == "&lt;b&gt;"
    assert TEMPLATES.autoescape is True
    with pytest.raises(Exception, match="'word' is undefined"):
        TEMPLATES.from_string("{{ word }}").render()


def test_pages_say_which_version_they_are_of(stranger):
    assert f"edgemerge {__version__}" in stranger.get("/ui/sign-in").text


def test_tokens_links_cookies_and_csrf_are_never_logged(app, world, caplog):
    caplog.set_level(logging.DEBUG)
    link = world.service.sessions.link(ROOT).token
    visitor, by_link = Visitor(app), Visitor(app)
    wrong = "emo_" + "w" * 43
    visitor.sign_in(wrong)
    visitor.sign_in(world.operator_token)
    by_link.post("/ui/sign-in", {"link": link})
    by_link.post("/ui/sign-in", {"link": link})
    secrets = [wrong, link, world.operator_token, visitor.csrf(), *visitor.cookies.values()]
    visitor.post("/ui/sign-out", {"csrf": visitor.csrf()})
    said = repr([record.__dict__ for record in caplog.records])
    assert said.count("a sign-in was refused") >= 2
    assert not [secret for secret in secrets if secret[-20:] in said]


def test_it_works_over_a_real_connection(tmp_path):
    with running(f"sqlite:///{tmp_path / 'real.db'}") as here:
        host = here.url.removeprefix("http://")
        there = HTTPConnection(host, timeout=DEADLINE_S)
        form = f"token={here.token}&next=/ui/fleets/a"
        kind = {"Content-Type": "application/x-www-form-urlencoded", "Origin": here.url}
        there.request("POST", "/ui/sign-in", form, kind)
        answer = there.getresponse()
        answer.read()
        assert (answer.status, answer.headers["Location"]) == (303, "/ui/fleets/a")
        cookie = answer.headers["Set-Cookie"].partition(";")[0]
        there.request("GET", "/ui/nowhere", headers={"Cookie": cookie})
        answer = there.getresponse()
        assert (answer.status, b"Signed in as test" in answer.read()) == (404, True)
        there.request("HEAD", static_url("style.css"))
        answer = there.getresponse()
        assert int(answer.headers["Content-Length"]) == (STATIC_DIR / "style.css").stat().st_size
        assert answer.read() == b""
        there.close()
