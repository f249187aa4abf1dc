"""Settings, values and new devices in a real browser."""

import re

import pytest
from playwright.sync_api import expect

from tests.browser.workshop import FLEET

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("browser")]

PAGE = f"/ui/fleets/{FLEET}/devices/pump-1"


def change_limit(page):
    box = page.locator("#part-settings")
    box.get_by_label("Label").fill("Pump of hall B")
    box.get_by_label("fixed", exact=True).check()
    box.get_by_label("Fixed limit").fill("5.5")
    box.get_by_role("button", name="Save").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Pump of hall B pump-1")
    return box


def test_a_limit_waits_is_applied_and_is_undone(shop, visit):
    shop.add("pump-1")
    shop.report("pump-1", 1.0)
    visitor = visit()
    visitor.sign_in(shop.here.token, PAGE)
    box = change_limit(visitor.page)
    expect(box).to_contain_text("Version 1 will be applied when the device next reports")
    shop.report("pump-1", 1.0, status={"settings": {"version": 1, "refused": ""}})
    expect(box).to_contain_text("applied")
    box.get_by_role("button", name="Undo version 1").click()
    expect(visitor.page.get_by_role("heading", level=1)).to_have_text("pump-1")
    expect(box).to_contain_text("Version 2 will be applied")
    refused = {"version": 2, "refused": "it does not fit"}
    shop.report("pump-1", 1.0, status={"settings": refused})
    expect(box).to_contain_text("refused version 2, and goes on as before: it does not fit")
    visitor.must_be_quiet()


def test_the_label_is_in_the_table_and_can_be_searched_for(shop, visit):
    for device in ("pump-1", "pump-2"):
        shop.add(device)
        shop.report(device, 1.0)
    shop.here.operator.change_settings(FLEET, "pump-2", label="Boiler feed")
    visitor = visit()
    visitor.sign_in(shop.here.token, f"/ui/fleets/{FLEET}")
    row = visitor.page.get_by_role("row").filter(has_text="pump-2")
    expect(row).to_contain_text("Boiler feed")
    visitor.page.locator("#q").fill("boiler")
    expect(visitor.page.locator("#count")).to_have_text("1 of 2 devices")
    visitor.page.locator("#q").fill("")
    shop.here.operator.change_settings(FLEET, "pump-2", label="Condenser")
    shop.report("pump-2", 1.0)
    expect(row).to_contain_text("Condenser")
    visitor.must_be_quiet()


def test_a_form_that_is_edited_is_not_replaced(shop, visit):
    shop.add("pump-1")
    shop.report("pump-1", 1.0)
    visitor = visit()
    visitor.sign_in(shop.here.token, PAGE)
    box = visitor.page.locator("#part-settings")
    box.get_by_label("false alarms, at most", exact=True).check()
    visitor.page.get_by_role("heading", level=1).click()  # the focus is elsewhere
    shop.here.operator.change_settings(FLEET, "pump-1", label="by another")
    shop.report("pump-1", 8.5)
    expect(visitor.page.locator("#part-head")).to_contain_text("8.5")
    expect(box.get_by_label("false alarms, at most", exact=True)).to_be_checked()
    visitor.must_be_quiet()


def test_it_works_without_scripts(shop, visit):
    shop.add("pump-1")
    shop.report("pump-1", 1.0)
    plain = visit(java_script_enabled=False)
    plain.sign_in(shop.here.token, PAGE)
    box = change_limit(plain.page)
    box.get_by_label("Fixed limit").fill("much")
    box.get_by_role("button", name="Save").click()
    expect(plain.page.get_by_role("alert")).to_contain_text("expected a number such as 4.5")
    assert shop.here.operator.settings(FLEET, "pump-1")["limit"] == 5.5


def test_values_follow_the_device(shop, visit):
    shop.add("pump-1")
    shop.report("pump-1", 1.0)
    visitor = visit()
    visitor.sign_in(shop.here.token, PAGE)
    values = visitor.page.locator("#part-values")
    expect(values).to_be_hidden()
    for value in (2.5, 2.75):
        given = [{"name": "pressure", "value": value, "unit": "bar"}]
        shop.report("pump-1", 1.0, status={"values": given})
        expect(values).to_contain_text(f"pressure {value} bar")
    visitor.must_be_quiet()


def test_a_device_is_added_from_the_page(shop, visit):
    visitor = visit()
    visitor.sign_in(shop.here.token, f"/ui/fleets/{FLEET}/add")
    page = visitor.page
    page.get_by_label("Name of the device").fill("pump-9")
    page.get_by_role("button", name="Make an invitation").click()
    shown = page.locator("#enrol").text_content()
    (token,) = re.findall(r"'(emi_[\w-]+)'", shown)
    assert f"edgemerge enrol {shop.here.url} {FLEET} pump-9" in shown
    expect(page.locator("#start")).to_have_text("edgemerge agent agent.toml")
    shop.here.service.enrol(token, FLEET, "pump-9")
    page.get_by_role("link", name=f"devices of {FLEET}").click()
    expect(page.get_by_role("row").filter(has_text="pump-9")).to_be_visible()
    visitor.must_be_quiet()
