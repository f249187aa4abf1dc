"""The merge page in a real browser: groups, preview, adopt, exclude, undo, what devices hear."""

import pytest
from playwright.sync_api import expect

from edgemerge.core.ledger import Selection
from edgemerge.exchange.http import HttpExchange
from tests.browser.visitor import PHONE
from tests.browser.workshop import FLEET, SHARED

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("browser")]

KINDS = {"pump-1": "idle", "pump-2": "idle", "pump-3": "fast", "pump-4": "fast"}


def told(shop, device):
    """Who is in what a device is told."""
    exchange = HttpExchange(shop.here.url, FLEET, shop.tokens[device], projection=SHARED)
    try:
        found = exchange.pull(Selection(receiver=device))
    finally:
        exchange.close()
    return {origin.device for origin in found.origins}


@pytest.fixture
def visitor(shop, visit):
    for device, kind in KINDS.items():
        shop.add(device, kind)
    found = visit()
    found.sign_in(shop.here.token, f"/ui/fleets/{FLEET}/merge")
    expect(found.page.locator("table.matrix")).to_be_visible()
    return found


def test_like_machines_are_a_group_that_can_be_previewed_and_adopted(shop, visitor):
    page = visitor.page
    expect(page.locator(".groups li")).to_have_count(2)
    assert told(shop, "pump-1") == {"pump-2", "pump-3", "pump-4"}
    before = shop.report("pump-1", 1.0)["choice"]
    group = page.locator(".groups li").filter(has_text="pump-1").get_by_role("button")
    if not group.count():  # groups are named by their number alone
        group = page.locator("tbody[data-group]").filter(has_text="pump-1")
        page.get_by_role("button", name=f"group {group.get_attribute('data-group')}").click()
    else:
        group.click()
    expect(page.locator("#selected")).to_have_text("2 devices selected")
    page.get_by_role("button", name="Preview").click()
    preview = page.locator("#preview")
    expect(preview).to_contain_text("nothing has been changed yet")
    expect(preview.locator("tbody tr")).to_have_count(2)
    assert told(shop, "pump-1") == {"pump-2", "pump-3", "pump-4"}
    preview.get_by_role("button", name="Adopt").click()
    expect(page.get_by_role("status").filter(has_text="pump-1").first).to_be_visible()
    assert told(shop, "pump-1") == {"pump-2"}
    assert told(shop, "pump-3") == {"pump-1", "pump-2", "pump-4"}
    assert shop.report("pump-1", 1.0)["choice"] > before
    page.get_by_role("button", name="Undo choice 1").click()
    expect(page.get_by_text("undone").first).to_be_visible()
    assert told(shop, "pump-1") == {"pump-2", "pump-3", "pump-4"}
    visitor.must_be_quiet()


def test_a_contribution_can_be_excluded_and_given_back(shop, visitor):
    page = visitor.page
    page.get_by_role("link", name="Exclude pump-3, normal").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("pump-3")
    assert told(shop, "pump-4") == {"pump-1", "pump-2", "pump-3"}
    page.get_by_role("button", name="Exclude").click()
    row = page.locator("table.contributions tbody tr").filter(has_text="pump-3")
    expect(row).to_contain_text("excluded")
    assert told(shop, "pump-4") == {"pump-1", "pump-2"}
    row.get_by_role("button", name="Undo").click()
    expect(row).not_to_contain_text("excluded")
    assert told(shop, "pump-4") == {"pump-1", "pump-2", "pump-3"}
    visitor.must_be_quiet()


def test_what_no_quorum_supports_waits_until_it_is_approved(shop, visitor):
    page = visitor.page
    shop.add("pump-9", "running")
    page.get_by_label("quorum: those of which").check()
    page.get_by_role("button", name="Change trust").click()
    expect(page.get_by_role("status").first).to_contain_text("trust of this fleet is quorum:2")
    assert told(shop, "pump-1") == {"pump-2", "pump-3", "pump-4"}
    card = page.get_by_role("article", name="pump-9, normal")
    expect(card).to_contain_text("1 of the 2 devices")
    expect(card).to_contain_text("none nearest pump-")
    card.get_by_label("Comment on pump-9, normal").fill("a new way of running")
    card.get_by_role("button", name="Approve").click()
    expect(card).to_have_count(0)
    assert told(shop, "pump-1") == {"pump-2", "pump-3", "pump-4", "pump-9"}
    page.get_by_role("button", name="Undo choice 1").click()
    expect(card).to_be_visible()
    assert told(shop, "pump-1") == {"pump-2", "pump-3", "pump-4"}
    visitor.must_be_quiet()


def test_every_action_is_in_the_log_with_the_operator(visitor):
    page = visitor.page
    page.get_by_role("link", name="Exclude pump-3, normal").click()
    page.get_by_role("button", name="Exclude").click()
    expect(page.locator("table.contributions")).to_contain_text("excluded")
    page.get_by_role("link", name="Audit log").click()
    line = page.get_by_role("row").filter(has_text="pump-3/0/normal").first
    expect(line).to_contain_text("admin test")
    expect(line).to_contain_text("exclude")
    visitor.must_be_quiet()


def test_all_of_it_works_with_the_keyboard_alone(visitor):
    page = visitor.page
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.value") == "pump-1":
            break
    page.keyboard.press("Space")
    expect(page.locator("#selected")).to_have_text("1 device selected")
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    expect(page.locator("#selected")).to_have_text("2 devices selected")
    page.keyboard.press("Enter")  # in a form: its button
    page.get_by_role("button", name="Adopt").wait_for()
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent").strip() == "Adopt":
            break
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Undo choice 1")).to_be_visible()
    visitor.must_be_quiet()


def test_on_a_phone_the_names_in_the_matrix_are_whole(shop, visit):
    for number in range(8):  # which are more than fit beside each other
        shop.add(f"hall-a-pump-{number}", "idle")
    visitor = visit(viewport=PHONE)
    visitor.sign_in(shop.here.token, f"/ui/fleets/{FLEET}/merge")
    expect(visitor.page.locator("table.matrix")).to_be_visible()
    cut = "e => e.scrollWidth > e.clientWidth || e.scrollHeight > e.clientHeight"
    names = visitor.page.locator(".matrix label bdi")
    assert names.evaluate_all(f"names => names.map({cut})") == 8 * [False]
    visitor.must_be_quiet()
