"""Every page, light and dark, at a desk and on a phone: axe finds nothing, nothing is cut off."""

import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from edgemerge.core.trust import Trust
from edgemerge.privacy.masking import DeviceKeys
from edgemerge.server.http import wall_path
from edgemerge.server.schemas import ReviewRequest
from tests.browser.visitor import DESKTOP, PHONE, Visitor
from tests.browser.workshop import FLEET, SHARED, alarm, workshop
from tests.server.reporting import monitor

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("browser")]

LOOKS = [
    pytest.param(("light", DESKTOP), id="light"),
    pytest.param(("dark", PHONE), id="phone in the dark", marks=pytest.mark.long),
    pytest.param(("dark", DESKTOP), id="dark", marks=pytest.mark.long),
    pytest.param(("light", PHONE), id="phone", marks=pytest.mark.long),
]
ONE_LOOK = pytest.mark.parametrize("visitor", LOOKS[:1], indirect=True)
PAGES = {
    "fleets": "/ui/",
    "episodes": f"/ui/fleets/{FLEET}/episodes",
    "no episodes": "/ui/fleets/empty/episodes",
    "fleet": f"/ui/fleets/{FLEET}",
    "fleet without devices": "/ui/fleets/empty",
    "device": f"/ui/fleets/{FLEET}/devices/pump-1",
    "device with values and problems": f"/ui/fleets/{FLEET}/devices/pump-2",
    "device to review": f"/ui/fleets/{FLEET}/devices/pump-3",
    "device, a month": f"/ui/fleets/{FLEET}/devices/pump-1?range=month",
    "compare": f"/ui/fleets/{FLEET}/compare?device=pump-1&device=pump-2",
    "compare nothing": f"/ui/fleets/{FLEET}/compare",
    "add a device": f"/ui/fleets/{FLEET}/add",
    "relearn": f"/ui/fleets/{FLEET}/devices/pump-3/relearn",
    "device that never reported": f"/ui/fleets/{FLEET}/devices/pump-4",
    "merge": f"/ui/fleets/{FLEET}/merge",
    "merge without contributions": "/ui/fleets/empty/merge",
    "preview": f"/ui/fleets/{FLEET}/merge?source=pump-1&source=pump-3&to=selected",
    "exclude": f"/ui/fleets/{FLEET}/merge?exclude=pump-1/0/normal",
    "faults": f"/ui/fleets/{FLEET}/faults",
    "exchange": f"/ui/fleets/{FLEET}/exchange",
    "no exchange": "/ui/fleets/empty/exchange",
    "no faults": "/ui/fleets/empty/faults",
    "notify": f"/ui/fleets/{FLEET}/notify",
    "nobody to notify": "/ui/fleets/empty/notify",
    "log": f"/ui/fleets/{FLEET}/log",
    "accounts": "/ui/accounts",
    "account": "/ui/accounts/eve",
    "masked fleet": "/ui/fleets/masked",
    "masked fleet without cohorts": "/ui/fleets/bare",
    "drop a cohort": "/ui/fleets/masked/cohorts/1/drop",
    "no such page": "/ui/fleets/nosuch",
}


@pytest.fixture(scope="module")
def peopled(tmp_path_factory):
    """A fleet with something on every page, and an empty one."""
    folder = tmp_path_factory.mktemp("access")
    with workshop(f"sqlite:///{folder / 'fleets.db'}") as shop:
        shop.here.operator.create_fleet("empty", SHARED)
        masked_fleet(shop)
        hook = {"kind": "slack", "url": "http://127.0.0.1:9/hook", "secret": "s3cret"}
        shop.here.operator.set_receiver(FLEET, "shift", **hook)
        for number, kind in enumerate(("idle", "idle", "fast", None), 1):
            shop.add(f"pump-{number}", kind)
        patterns = [{"pattern": "normal", "own": 900.0, "told": 90.0, "used": 70}]
        shop.report("pump-1", 1.0, 1.1, 9.0, alarms=[alarm(9.0, flow=12.0, temperature=3.0)])
        values = [{"name": "n" * 200, "value": -1234.5, "unit": "°C"}]
        more = {"values": values, "settings": {"version": 1, "refused": "r" * 300}}
        about = {"since": 1e9, "words": "no row could be read. " + "w" * 400}
        more["problems"] = [about | {"name": name} for name in ("unreadable rows", "stuck sensor")]
        shop.report(
            "pump-2", 1.0, 1.1, 0.9, status={"pattern": "normal", "patterns": patterns, **more}
        )
        shop.here.operator.change_settings(FLEET, "pump-1", label="l" * 100, limit=5.0)
        shop.here.operator.change_settings(FLEET, "pump-3", false_alarms="1 per week")
        shop.report("pump-3", 1.0, status={"monitor": to_review(), "reviews": {"done": 0}})
        for number, name in ((1, "bearing"), (2, "Lager"), (3, "f" * 200)):
            shop.name_fault(f"pump-{number}", name)
        approve = ReviewRequest(decision="approve", pattern="odd-2", comment="a new speed")
        shop.here.service.reviews.add(FLEET, "pump-3", approve, operator(shop))
        choices, who = shop.here.service.choices, operator(shop)
        choices.adopt(FLEET, ["pump-1", "pump-2"], ["pump-1"], who)
        shop.add("pump-5", "running", "p" * 200)
        choices.set_trust(FLEET, Trust.parse("quorum:2"), who)  # pump-3 and pump-5 wait
        key = ("pump-1", 0, "normal")
        choices.decide(FLEET, key, "approve", who, comment="c" * 500)
        accounts = shop.here.service.accounts
        accounts.add("eve", "viewer", 3600.0, who)
        accounts.add("n" * 100, "operator", None, who)
        accounts.revoke("n" * 100, who)
        accounts.add_wall_link("hall", FLEET, who)
        yield shop


def masked_fleet(shop):
    """Make a masked fleet with three cohorts, of devices with long names, and one without any."""
    shop.here.operator.create_fleet("bare", SHARED, reads="masked")
    shop.here.operator.create_fleet("masked", SHARED, reads="masked")
    for k in range(9):
        name = f"{k}-{'p' * 90}"
        shop.here.enrol("masked", name)
        shop.here.service.masked.register("masked", DeviceKeys(bytes([k] * 32)).member(name))
    cohorts = shop.here.operator.form_cohorts("masked", least=3, size=3)
    shop.here.service.masked.status("masked", cohorts[0]["devices"][0])  # begins an epoch


def to_review():
    """A monitor that wants a person for everything, with names that are long."""
    found = monitor(drift=2.3, learn="stopped by drift", ready=False, outside=12_345)
    odd, fault = found["patterns"]
    inputs = [[f"bearing temperature of the drive end, sensor {k}", 10.0**k] for k in range(4)]
    more = [{**odd, "name": name, "inputs": inputs} for name in ("odd-2", "o" * 200)]
    dismissed = {**fault, "name": "start", "status": "dismissed"}
    episodes = [{**each, "inputs": inputs} for each in found["episodes"]]
    return found | {"patterns": [odd, *more, fault, dismissed], "episodes": episodes}


def operator(shop):
    return shop.here.service.caller(shop.here.token)


@pytest.fixture(params=LOOKS)
def visitor(request, browser, peopled):
    scheme, size = request.param
    found = Visitor.at(
        browser, peopled.here.url, color_scheme=scheme, viewport=size, bypass_csp=True
    )
    yield found
    found.context.close()


def settled(page):
    """Wait until what the page fetches is there."""
    if page.locator("#matrix").count():
        expect(page.locator("#matrix")).not_to_have_attribute("aria-busy", "true")


def problems(page):
    found = Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {each['help']}: {node['html'][:200]}"
        for each in found
        for node in each["nodes"]
    ]


def test_axe_finds_nothing_and_nothing_is_wider_than_the_screen(visitor, peopled):
    page, told = visitor.page, {}
    visitor.go("/ui/sign-in")
    told["sign-in"] = problems(page)
    visitor.sign_in(peopled.here.token)
    for name, path in PAGES.items():
        visitor.go(path)
        settled(page)
        told[name] = problems(page)
        wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        told[name] += [f"{wide} pixels too wide"] if wide > 0 else []
        told[name] += [] if page.title() else ["no title"]
    assert {name: found for name, found in told.items() if found} == {}
    visitor.must_be_quiet("404")


@ONE_LOOK
def test_axe_finds_nothing_on_a_wall_screen_and_on_what_a_viewer_sees(visitor, peopled):
    accounts, who = peopled.here.service.accounts, operator(peopled)
    visitor.go(wall_path(accounts.rotate("hall", who).token))
    assert problems(visitor.page) == []
    visitor.sign_in(accounts.rotate("eve", who).token)
    for name in ("episodes", "device to review", "merge", "notify"):
        visitor.go(PAGES[name])
        settled(visitor.page)
        assert problems(visitor.page) == [], name
    visitor.must_be_quiet()


@ONE_LOOK
def test_axe_would_find_something(visitor, peopled):
    visitor.sign_in(peopled.here.token)
    visitor.page.evaluate("document.querySelector('main').append(document.createElement('input'))")
    assert any("label" in problem for problem in problems(visitor.page))


@ONE_LOOK
def test_times_are_those_of_the_viewer(visitor, peopled):
    visitor.sign_in(peopled.here.token, f"/ui/fleets/{FLEET}/log")
    expect(visitor.page.locator("#zone")).to_have_text("Asia/Tokyo")
    first = visitor.page.locator("time[data-at]").first
    hour = int(float(first.get_attribute("data-at")) // 3600 + 9) % 24
    expect(first).to_have_text(re.compile(rf"\b0?{hour}:"))
    visitor.must_be_quiet()
