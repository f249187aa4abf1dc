"""Reviews in a real browser: a decision is pressed, waits, and is done when the device says so."""

import time

import pytest
from playwright.sync_api import expect

from tests.browser.workshop import FLEET
from tests.server.reporting import monitor

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("browser")]

PAGE = f"/ui/fleets/{FLEET}/devices/pump-1"


def recent(**changed):
    """The status of a monitor, with times of just now."""
    found, shift = monitor(**changed), time.time() - 1000.0
    for each in found["episodes"]:
        each |= {name: each[name] and each[name] + shift for name in ("began", "ended")}
    for each in found["patterns"]:
        each |= {name: each[name] + shift for name in ("first", "last")}
    return found


@pytest.fixture
def visitor(shop, visit):
    shop.add("pump-1")
    shop.report("pump-1", 1.0, 9.0, status={"monitor": recent(), "reviews": {"done": 0}})
    found = visit()
    found.sign_in(shop.here.token, PAGE)
    return found


def test_approve_waits_until_the_device_reports(shop, visitor):
    page = visitor.page
    box = page.locator("#part-review")
    odd = box.get_by_role("article", name="Pattern odd-1")
    expect(odd).to_contain_text("bearing_rms ×12.5")
    odd.get_by_role("button", name="Approve").click()
    expect(box).to_contain_text("will be done when the device next reports")
    expect(box).to_contain_text("Approve odd-1")
    expect(odd).to_contain_text("waiting: Approve odd-1")
    expect(odd.get_by_role("button")).to_have_count(0)
    assert shop.here.operator.reviews(FLEET, "pump-1")[0]["state"] == "waiting"
    approved = recent()
    approved["patterns"][0]["status"] = "normal"
    shop.report("pump-1", 1.0, status={"monitor": approved, "reviews": {"done": 1}})
    expect(box).not_to_contain_text("will be done when")
    expect(box).to_contain_text("No pattern waits for a review")
    undo = box.get_by_role("button", name="Undo the review of odd-1")
    undo.click()
    expect(box).to_contain_text("waiting: Undo the review of odd-1")
    visitor.must_be_quiet()


def test_a_fault_needs_a_name_and_typing_is_not_disturbed(shop, visitor):
    page = visitor.page
    odd = page.get_by_role("article", name="Pattern odd-1")
    odd.get_by_role("button", name="Fault").click()
    expect(page.get_by_role("alert")).to_contain_text("name of the fault")
    odd.get_by_label("Name of the fault odd-1").fill("worn bearing 2")
    odd.get_by_label("Comment on odd-1").fill("heard it")
    shop.report("pump-1", 1.0, status={"monitor": recent(outside=4711), "reviews": {"done": 0}})
    shop.report("pump-1", 1.0, 8.0)
    expect(page.locator("#part-head")).to_contain_text("8")
    expect(odd.get_by_label("Name of the fault odd-1")).to_have_value("worn bearing 2")
    odd.get_by_label("Comment on odd-1").press("Enter")
    expect(page.locator("#part-review")).to_contain_text("Fault odd-1: worn bearing 2")
    (made,) = shop.here.operator.reviews(FLEET, "pump-1")
    assert (made["decision"], made["name"]) == ("fault", "worn bearing 2")
    assert made["comment"] == "heard it"
    visitor.must_be_quiet("422")


def test_snooze_acknowledge_and_relearn(shop, visitor):
    page = visitor.page
    box = page.locator("#part-review")
    box.get_by_role("button", name="8 h").click()
    expect(box).to_contain_text("Snooze until")
    box.get_by_role("button", name="Acknowledge episode 2").click()
    expect(box).to_contain_text("waiting: Acknowledge episode 2")
    box.get_by_role("link", name="Relearn").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Relearn pump-1?")
    page.get_by_role("button", name="Relearn").click()
    expect(box).to_contain_text("Relearn")
    found = shop.here.operator.reviews(FLEET, "pump-1")
    assert [each["decision"] for each in found] == ["relearn", "acknowledge", "snooze"]
    assert found[2]["until"] == pytest.approx(time.time() + 8 * 3600, abs=120)
    visitor.must_be_quiet()


def test_it_works_without_scripts(shop, visit):
    shop.add("pump-1")
    shop.report("pump-1", 9.0, status={"monitor": recent(drift=1.7), "reviews": {"done": 0}})
    plain = visit(java_script_enabled=False)
    plain.sign_in(shop.here.token, PAGE)
    box = plain.page.locator("#part-review")
    box.get_by_role("button", name="Accept").click()
    expect(box).to_contain_text("Accept the drift")
    box.get_by_role("button", name="Dismiss").click()
    expect(box).to_contain_text("waiting: Dismiss odd-1")


def test_the_fleet_table_follows(shop, visitor):
    page = visitor.page
    visitor.go(f"/ui/fleets/{FLEET}")
    cell = page.locator("#devices tbody tr .c-review")
    expect(cell).to_have_text("like bearing1 to review")
    status = recent(drift=1.7, ready=False, patterns=[])
    shop.report("pump-1", 1.0, status={"monitor": status, "reviews": {"done": 0}})
    expect(cell).to_have_text("like bearingnot readydrift ×1.7")
    page.locator("#q").fill("not ready")
    expect(page.locator("#count")).to_have_text("1 of 1 devices")
    page.locator("#q").fill("to review")
    expect(page.locator("#count")).to_have_text("0 of 1 devices")
    visitor.must_be_quiet()
