"""Pages that live: new scores and alarms within two seconds, also after the server came back."""

import re
import time

import pytest
from playwright.sync_api import expect

from edgemerge.server.auth import Caller
from edgemerge.server.http import wall_path
from tests.browser.workshop import FLEET, alarm

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

SOON_MS = 2000


@pytest.mark.long
def test_a_new_score_is_on_the_page_of_the_fleet_within_two_seconds(shop, visit):
    shop.add("pump-1", "idle")
    shop.add("pump-2", "idle")
    shop.report("pump-1", 1.0)
    visitor = visit()
    visitor.sign_in(shop.here.token, f"/ui/fleets/{FLEET}")
    expect(visitor.page.locator("#live")).to_have_text("live")
    row = visitor.page.get_by_role("row").filter(has_text="pump-2")
    shop.report("pump-2", 1.0, 37.5, alarms=[alarm(37.5, flow=12.0)], status={"pattern": "fast"})
    expect(row).to_contain_text("37.5", timeout=SOON_MS)
    expect(row).to_contain_text("alarm", timeout=SOON_MS)
    expect(row).to_contain_text("fast", timeout=SOON_MS)
    expect(visitor.page.locator('[data-total="alarms"]')).to_have_text("1")
    expect(visitor.page.locator("tbody tr").first).to_contain_text("pump-2")
    visitor.must_be_quiet()


def test_a_new_score_is_on_the_page_of_its_device_within_two_seconds(shop, visit):
    shop.add("pump-1", "idle")
    shop.report("pump-1", 1.0, 1.2, 0.9)
    visitor = visit()
    visitor.sign_in(shop.here.token, f"/ui/fleets/{FLEET}/devices/pump-1")
    expect(visitor.page.locator("#live")).to_have_text("live")
    expect(visitor.page.locator(".uplot canvas")).to_be_visible()
    shop.report("pump-1", 28.4, alarms=[alarm(28.4, **{"band 7": 12.25, "band 9": 3.0})])
    expect(visitor.page.locator("#part-words")).to_contain_text("28.4", timeout=SOON_MS)
    expect(visitor.page.locator(".u-legend")).to_contain_text("28.4", timeout=SOON_MS)
    reasons = visitor.page.locator("#part-reasons")
    expect(reasons).to_contain_text("band 7", timeout=SOON_MS)
    expect(reasons).to_contain_text("×12", timeout=SOON_MS)
    visitor.must_be_quiet()


@pytest.mark.long
def test_a_wall_screen_follows_by_itself_leads_nowhere_and_ends_with_its_link(shop, visit):
    accounts, admin = shop.here.service.accounts, Caller("test", role="admin")
    shop.add("pump-1", "idle")
    link = accounts.add_wall_link("hall", FLEET, admin).token
    visitor = visit()
    page = visitor.page
    visitor.go(wall_path(link))
    expect(page.locator("#live")).to_have_text("live")
    expect(page.get_by_role("link").filter(visible=True)).to_have_count(1)  # to the content
    expect(page.get_by_role("button")).to_have_text(["Dark"])
    shop.add("pump-2")
    shop.report("pump-2", 1.0, 37.5, alarms=[alarm(37.5, flow=12.0)])
    row = page.get_by_role("row").filter(has_text="pump-2")
    expect(row).to_contain_text("37.5")
    accounts.revoke("hall", admin)
    expect(page.get_by_text("ask an admin for a new one")).to_be_visible()
    assert "sign-in" not in page.url
    visitor.must_be_quiet("403")


@pytest.mark.long
def test_an_open_page_leads_to_sign_in_when_its_account_is_rotated(shop, visit):
    accounts, admin = shop.here.service.accounts, Caller("test", role="admin")
    shop.add("pump-1", "idle")
    visitor = visit()
    visitor.sign_in(accounts.add("eve", "viewer", None, admin).token, f"/ui/fleets/{FLEET}")
    expect(visitor.page.locator("#live")).to_have_text("live")
    accounts.rotate("eve", admin)
    visitor.page.wait_for_url("**/ui/sign-in?next=*")
    visitor.must_be_quiet("401")


@pytest.mark.long
def test_a_device_that_was_let_in_later_appears_without_loading_again(shop, visit):
    shop.add("pump-1", "idle")
    visitor = visit()
    visitor.sign_in(shop.here.token, f"/ui/fleets/{FLEET}")
    expect(visitor.page.locator("#live")).to_have_text("live")
    shop.add("pump-2")
    shop.report("pump-2", 1.5)
    row = visitor.page.get_by_role("row").filter(has_text="pump-2")
    expect(row).to_contain_text("1.5")
    visitor.must_be_quiet()


@pytest.mark.long
def test_a_page_comes_back_by_itself_when_the_server_does(shop, visit):
    shop.add("pump-1", "idle")
    visitor = visit()
    visitor.sign_in(shop.here.token, f"/ui/fleets/{FLEET}")
    live = visitor.page.locator("#live")
    expect(live).to_have_text("live")
    with shop.away():
        expect(live).to_have_text("reconnecting")
        time.sleep(1.0)  # long enough for a first attempt to fail
    expect(live).to_have_text("live")
    shop.report("pump-1", 6.25)
    row = visitor.page.get_by_role("row").filter(has_text="pump-1")
    expect(row).to_contain_text("6.25")
    expect(visitor.page).to_have_url(re.compile(f"/ui/fleets/{FLEET}$"))  # still signed in
    visitor.must_be_quiet("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE", "ERR_EMPTY", "503", "RESET")


@pytest.mark.long
def test_a_problem_with_the_data_is_amber_on_both_pages_until_it_is_over(shop, visit):
    shop.add("pump-1", "idle")
    shop.report("pump-1", 1.0)
    visitor = visit()
    visitor.sign_in(shop.here.token, f"/ui/fleets/{FLEET}")
    state = visitor.page.locator(".c-state .state")
    expect(state).to_have_text("online")
    words = "no usable row for 31 s. Check what writes the data."
    problem = {"name": "no data", "since": time.time(), "words": words}
    shop.report("pump-1", 1.0, status={"problems": [problem]})
    expect(state).to_have_text("no data", timeout=SOON_MS)
    expect(state).to_have_attribute("data-state", "problem")
    online = "rgb(21, 115, 71)"
    assert state.evaluate("e => getComputedStyle(e, '::before').backgroundColor") != online
    expect(visitor.page.locator('[data-total="states"]')).to_contain_text("1 problem")
    visitor.page.goto(f"{shop.here.url}/ui/fleets/{FLEET}/devices/pump-1")
    expect(visitor.page.locator("#part-head")).to_contain_text(words)
    shop.report("pump-1", 1.0)
    expect(visitor.page.locator("#part-head .state")).to_have_text("online", timeout=SOON_MS)
    expect(visitor.page.locator("#part-head")).not_to_contain_text(words)
    visitor.must_be_quiet()
