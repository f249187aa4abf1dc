"""Every page and form of the dashboard against every caller: let in, led to sign-in, or refused."""

import asyncio
import re

import httpx
import pytest
from fastapi.routing import APIRoute

from edgemerge.core.trust import Trust
from edgemerge.server.auth import Caller
from edgemerge.server.dashboard.pages import static_version
from edgemerge.server.main import create_app
from edgemerge.server.schemas import ReceiverRequest, SettingsRequest
from tests.server.callers import ROUTES
from tests.server.reporting import monitor, report
from tests.server.test_episodes import settle
from tests.server.visiting import Visitor
from tests.server.wire import dump
from tests.server.world import FLEET, World, generator, note

ADMIN = Caller("root", role="admin")
RANKS = ("viewer", "operator", "admin")
PAGES = {  # the least role that is let in; everybody, or the holder of a wall link, is also a word
    "GET /static/{version}/{name:path}": "everybody",
    "HEAD /static/{version}/{name:path}": "everybody",
    "GET /sign-in": "everybody",
    "POST /sign-in": "everybody",
    "POST /sign-out": "viewer",
    "GET /accounts": "admin",
    "POST /accounts": "admin",
    "GET /accounts/{account}": "admin",
    "POST /accounts/{account}/rotate": "admin",
    "POST /accounts/{account}/change": "admin",
    "POST /accounts/{account}/revoke": "admin",
    "GET /": "viewer",
    "GET /fleets/{fleet}": "viewer",
    "GET /wall/{link}": "wall",
    "GET /wall/{link}/live": "wall",
    "GET /fleets/{fleet}/exchange": "viewer",
    "GET /fleets/{fleet}/faults": "viewer",
    "GET /fleets/{fleet}/add": "operator",
    "POST /fleets/{fleet}/add": "operator",
    "POST /fleets/{fleet}/cohorts": "admin",
    "GET /fleets/{fleet}/cohorts/{cohort}/drop": "operator",
    "POST /fleets/{fleet}/cohorts/{cohort}/drop": "operator",
    "GET /fleets/{fleet}/compare": "viewer",
    "GET /fleets/{fleet}/compare/scores": "viewer",
    "GET /fleets/{fleet}/episodes": "viewer",
    "POST /fleets/{fleet}/episodes": "operator",
    "POST /fleets/{fleet}/episodes/{number}": "operator",
    "GET /fleets/{fleet}/devices/{device}": "viewer",
    "GET /fleets/{fleet}/devices/{device}/relearn": "operator",
    "POST /fleets/{fleet}/devices/{device}/reviews": "operator",
    "POST /fleets/{fleet}/devices/{device}/settings": "operator",
    "POST /fleets/{fleet}/devices/{device}/settings/undo": "operator",
    "GET /fleets/{fleet}/devices/{device}/scores": "viewer",
    "GET /fleets/{fleet}/devices/{device}/scores.csv": "viewer",
    "GET /session": "viewer",
    "GET /fleets/{fleet}/live": "viewer",
    "GET /fleets/{fleet}/merge": "viewer",
    "GET /fleets/{fleet}/merge/matrix": "viewer",
    "POST /fleets/{fleet}/merge/adopt": "operator",
    "POST /fleets/{fleet}/merge/exclude": "operator",
    "POST /fleets/{fleet}/merge/revoke": "operator",
    "POST /fleets/{fleet}/merge/decide": "operator",
    "POST /fleets/{fleet}/merge/trust": "admin",
    "POST /fleets/{fleet}/merge/undo": "operator",
    "GET /fleets/{fleet}/notify": "viewer",
    "POST /fleets/{fleet}/notify/add": "operator",
    "POST /fleets/{fleet}/notify/remove": "operator",
    "POST /fleets/{fleet}/notify/test": "operator",
    "GET /fleets/{fleet}/log": "viewer",
    "GET /{rest:path}": "viewer",
}
PLACES = {"{fleet}": FLEET, "{device}": "a", "{number}": "1", "{account}": "eve", "{cohort}": "1"}
PLACES |= {"{name:path}": "style.css", "{rest:path}": "nowhere"}
REFUSED = (401, 403)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A fleet with a device, an account of each role, and some that ended."""
    world = World(f"sqlite:///{tmp_path_factory.mktemp('pages') / 'fleets.db'}")
    for device in ("a", "b"):
        world.put(note(device, 1, generator(1)))
    service = world.service
    service.take_report(FLEET, "a", report(1000.0, monitor=monitor()), 1000.0)
    service.settings.change(FLEET, "a", SettingsRequest(label="A"), ADMIN)
    hook = ReceiverRequest(kind="slack", url="http://127.0.0.1:9/hook")
    service.notifications.put(FLEET, "chat", hook, ADMIN)
    service.choices.adopt(FLEET, ["a"], ["a"], ADMIN)
    service.choices.set_trust(FLEET, Trust.parse("person"), ADMIN)
    settle(service)
    world.app = create_app(world.service)
    world.app.state.is_stopping = lambda: True  # event streams end at once
    accounts = world.service.accounts
    world.people = {role: accounts.add(role, role, None, ADMIN).token for role in RANKS}
    for ended in ("revoked", "rotated", "expired"):
        world.people[ended] = accounts.add(ended, "admin", 500.0, ADMIN).token
    accounts.add("eve", "viewer", None, ADMIN)
    world.walls = {
        name: accounts.add_wall_link(name, FLEET, ADMIN).token for name in ("wall", "no-wall")
    }
    accounts.revoke("no-wall", ADMIN)
    yield world
    world.close()


def visitor_of(world, who):
    """Sign somebody in; accounts that end do so afterwards."""
    visitor = Visitor(world.app)
    if who in world.people:
        assert visitor.sign_in(world.people[who]).status_code == 303
    if who == "a device":
        visitor.cookies["edgemerge-8470"] = world.tokens["a"]
    return visitor


@pytest.fixture(scope="module")
def visitors(site):
    callers = ("nobody", "a device", *RANKS, "revoked", "rotated", "expired")
    found = {who: visitor_of(site, who) for who in callers}
    csrf = {who: visitor.csrf() for who, visitor in found.items() if who in site.people}
    site.service.accounts.revoke("revoked", ADMIN)
    site.service.accounts.rotate("rotated", ADMIN)
    site.now += 501.0
    return {who: (visitor, csrf.get(who, "0" * 64)) for who, visitor in found.items()}


def ask(site, visitor, csrf, route, link="wall"):
    method, _, path = route.partition(" ")
    places = PLACES | {"{link}": site.walls.get(link, link), "{version}": static_version()}
    for word, value in places.items():
        path = path.replace(word, value)
    if method == "POST":
        return visitor.post(f"/ui{path}", {"csrf": csrf})
    return visitor.ask(method, f"/ui{path}")


def dashboard_of(app):
    return next(
        route.app
        for route in app.routes
        if getattr(route, "path", "") == "/ui"
        and hasattr(route, "app")
        and not isinstance(route, APIRoute)
    )


def test_every_page_has_an_entry_in_the_table(site):
    found = [
        f"{method} {route.path}"
        for route in dashboard_of(site.app).routes
        for method in route.methods
    ]
    assert set(found) == set(PAGES)


def test_no_route_of_the_server_is_hidden_from_both_tables(site):
    found = {
        f"{method} {route.path}"
        for route in site.app.routes
        if isinstance(route, APIRoute)
        for method in route.methods
    }
    assert found - set(ROUTES) == {"GET /", "GET /ui"}  # both lead to the pages


@pytest.mark.slow
def test_whoever_may_not_is_led_to_sign_in_or_refused_and_changes_nothing(site, visitors):
    before = dump(site)
    for route, least in PAGES.items():
        for who, (visitor, csrf) in visitors.items():
            if least in ("everybody", "wall") or (
                who in RANKS and RANKS.index(who) >= RANKS.index(least)
            ):
                continue
            answer = ask(site, visitor, csrf, route)
            if who in RANKS:
                assert answer.status_code == 403, (route, who)
                assert f"this needs {least}" in answer.text.lower(), (route, who)
            else:
                signed_out = answer.headers.get("location", "").startswith("/ui/sign-in")
                assert answer.status_code == 401 or signed_out, (route, who)
    assert dump(site) == before


@pytest.mark.slow
def test_whoever_may_is_let_in(site, visitors):
    for route, least in PAGES.items():
        if least in ("everybody", "wall") or route == "POST /sign-out":
            continue
        for who in RANKS[RANKS.index(least) :]:
            answer = ask(site, *visitors[who], route)
            assert answer.status_code not in REFUSED, (route, who, answer.text)
            assert "sign-in" not in answer.headers.get("location", ""), (route, who)
    for who in RANKS:  # the last: it ends their sessions
        assert ask(site, *visitors[who], "POST /sign-out").headers["location"] == "/ui/sign-in"
        assert visitors[who][0].get("/ui/").status_code == 303


@pytest.mark.slow
def test_a_wall_link_opens_its_page_and_its_stream_and_nothing_else(site):
    nobody = Visitor(site.app)
    for route, least in PAGES.items():
        if least == "wall":
            assert ask(site, nobody, "", route).status_code == 200, route
            for link in ("no-wall", "emw_" + "x" * 43, "garbage", site.people["admin"]):
                assert ask(site, nobody, "", route, link=link).status_code == 403, (route, link)
    assert nobody.cookies == {}
    wall = site.walls["wall"]
    assert nobody.sign_in(wall).status_code == 403
    nobody.cookies["edgemerge-8470"] = wall
    for route in ("GET /", "GET /fleets/{fleet}", "GET /session", "GET /fleets/{fleet}/live"):
        answer = ask(site, nobody, "", route)
        assert answer.status_code in (303, 401), route


async def bearer(app, method, path, token, body):
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app), base_url="http://hub:8470"
    ) as client:
        return await client.request(
            method, path, content=body, headers={"Authorization": f"Bearer {token}"}
        )


@pytest.mark.slow
def test_a_wall_link_is_no_token_of_the_api(site):
    for route, entry in ROUTES.items():
        if entry.who == ("everybody",):
            continue
        method, _, path = route.partition(" ")
        path = re.sub(r"{(fleet)}", FLEET, path)
        path = re.sub(r"{\w+}", "1", path)
        answer = asyncio.run(bearer(site.app, method, path, site.walls["wall"], entry.body))
        assert answer.status_code == 401, route


FORM_PAGES = {  # pages that show forms to operators here, so that they are seen to be left out
    "/episodes": {"/episodes", "/episodes/1"},
    "/devices/a": {"/devices/a/reviews", "/devices/a/settings", "/devices/a/settings/undo"},
    "/merge": {"/merge/decide", "/merge/undo"},
    "/notify": {"/notify/add", "/notify/test", "/notify/remove"},
}
BUTTONS = re.compile(r"<form[^>]*method=\"post\"[^>]*action=\"([^\"]*)\"")


@pytest.mark.slow
def test_pages_show_nobody_what_their_role_may_not_use(site):
    visitors = {who: visitor_of(site, who) for who in ("viewer", "operator")}
    pages = [
        route for route, least in PAGES.items() if route.startswith("GET") and least == "viewer"
    ]
    for route in pages:
        if route.endswith("/live"):
            continue
        shown = {who: ask(site, visitor, "", route).text for who, visitor in visitors.items()}
        assert set(BUTTONS.findall(shown["viewer"])) <= {"/ui/sign-out"}, route
        assert "/merge/trust" not in shown["operator"], route
        assert "/ui/accounts" not in shown["operator"], route
        assert "?exclude=" not in shown["viewer"], route
        assert not re.search(r'href="[^"]*/(add|relearn)"', shown["viewer"]), route
    fleet = f"/ui/fleets/{FLEET}"
    acts = {page: visitors["operator"].get(fleet + page).text for page in FORM_PAGES}
    for page, forms in FORM_PAGES.items():
        assert forms <= {each.removeprefix(fleet) for each in BUTTONS.findall(acts[page])}, page
    assert "/merge?exclude=" in visitors["operator"].get(f"{fleet}/devices/a").text
    assert "Add a device" in visitors["operator"].get(fleet).text
    assert visitors["viewer"].get(f"{fleet}/merge?exclude=a/0/normal").status_code == 403
    preview = f"{fleet}/merge?source=a&source=b&to=selected"
    shown = {who: visitor.get(preview).text for who, visitor in visitors.items()}
    assert all("Preview: nothing has been changed yet" in text for text in shown.values())
    assert ["/merge/adopt" in shown[who] for who in ("viewer", "operator")] == [False, True]
    wall = ask(site, Visitor(site.app), "", "GET /wall/{link}").text
    assert "<form method" not in wall
    assert re.findall(r'<a [^>]*href="([^"]*)"', wall) == ["#main"]
    assert set(re.findall(r'<button [^>]*id="(\w+)"', wall)) == {"theme"}
    assert wall.count("<button") == 1
    assert 'http-equiv="refresh"' in wall
