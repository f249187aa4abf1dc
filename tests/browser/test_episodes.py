"""The page of episodes in a real browser: decided, followed, on a phone, and without scripts."""

import time

import pytest
from playwright.sync_api import expect

from tests.browser.test_review import recent
from tests.browser.visitor import PHONE
from tests.browser.workshop import FLEET

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("browser")]

PAGE = f"/ui/fleets/{FLEET}/episodes"
SMALL = {"width": 360, "height": 740}
# What is wider than the place it has: cut, or to be found only by scrolling sideways.
CUT = """() => [...document.querySelectorAll('main *, header.bar *')]
  .filter(e => e.checkVisibility() && !e.closest('.unseen, thead, svg, pre'))
  .filter(e => getComputedStyle(e).overflowX !== 'visible' || e.matches('a, button'))
  .filter(e => e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== 'inline')
  .map(e => `${e.tagName}.${e.className}: ${e.textContent.trim().slice(0, 60)}`)"""


def report(shop, device="pump-1", *scores, **changed):
    status = {"monitor": recent(**changed), "reviews": {"done": 0}}
    shop.report(device, *(scores or (1.0, 1.2, 9.0, 33.0, 9.5)), status=status)


@pytest.fixture
def visitor(shop, visit):
    shop.add("pump-1")
    report(shop)
    found = visit()
    found.sign_in(shop.here.token, PAGE)
    return found


def card(page, number, device="pump-1"):
    return page.get_by_role("article", name=f"Episode {number} of {device}")


def test_acknowledge_and_comment(visitor):
    page = visitor.page
    ended = card(page, 1)
    expect(page.locator('[data-section="ended"]').get_by_role("article")).to_have_count(1)
    ended.get_by_role("textbox", name="Comment").fill("pump was cold")
    ended.get_by_role("button", name="Acknowledge").click()
    past = page.locator('[data-section="history"]').get_by_role("article", name="Episode 1")
    expect(past).to_contain_text("pump was cold")
    expect(past).to_contain_text("admin test")
    expect(page.locator("#ended-count")).to_have_text("0")
    opened = card(page, 2)
    opened.get_by_role("textbox", name="Comment").fill("called the fitter")
    opened.get_by_role("textbox", name="Comment").press("Enter")
    expect(opened.get_by_role("definition").filter(has_text="called the fitter")).to_be_visible()
    expect(opened.get_by_role("button", name="Acknowledge")).to_be_visible()
    visitor.must_be_quiet()


def test_name_a_fault_right_there(shop, visitor):
    opened = card(visitor.page, 2)
    expect(opened).to_contain_text("33 times the usual")
    expect(opened).to_contain_text("bearing_rms ×12.5")
    expect(opened.get_by_role("img", name="Scores around it: highest 33, limit 4")).to_be_visible()
    opened.get_by_role("button", name="Fault").click()
    expect(visitor.page.get_by_role("alert")).to_contain_text("name of the fault")
    opened.get_by_label("Name of the fault").fill("worn bearing 2")
    opened.get_by_label("Name of the fault").press("Enter")
    expect(opened).to_contain_text("waiting: Fault odd-1: worn bearing 2")
    (made,) = shop.here.operator.reviews(FLEET, "pump-1")
    assert (made["decision"], made["name"]) == ("fault", "worn bearing 2")
    visitor.must_be_quiet("422")


def test_a_new_episode_appears_and_typing_is_not_disturbed(shop, visitor):
    page = visitor.page
    expect(page.locator("#live")).to_have_text("live")
    field = card(page, 2).get_by_role("textbox", name="Comment")
    field.fill("not sent yet")
    shop.add("pump-2")
    report(shop, "pump-2")
    expect(card(page, 2, "pump-2")).to_be_visible()
    expect(page.locator("#open-count")).to_have_text("2")
    expect(page.locator("#announced")).to_contain_text("pump-2")
    expect(page.locator('[data-section="open"] article').first).to_contain_text("pump-2")
    report(shop, "pump-1", 44.0)
    time.sleep(2.0)  # longer than the stream needs
    expect(field).to_have_value("not sent yet")
    episodes = recent()["episodes"]
    episodes[1]["ended"] = time.time()
    report(shop, "pump-2", episodes=episodes)
    ended = page.locator('[data-section="ended"]').get_by_role(
        "article", name="Episode 2 of pump-2"
    )
    expect(ended).to_be_visible()
    visitor.must_be_quiet()


def test_it_works_without_scripts(shop, visit):
    shop.add("pump-1")
    report(shop)
    plain = visit(java_script_enabled=False)
    plain.sign_in(shop.here.token, PAGE)
    page = plain.page
    expect(card(page, 2).locator("svg.around path.curve")).to_have_count(1)
    card(page, 1).get_by_role("button", name="Acknowledge").click()
    expect(page.locator('[data-section="history"] article')).to_have_count(1)
    card(page, 2).get_by_role("button", name="Dismiss").click()
    expect(card(page, 2)).to_contain_text("waiting: Dismiss odd-1")


@pytest.mark.parametrize("size", [SMALL, PHONE], ids=lambda size: f"{size['width']} px")
def test_a_phone_cuts_nothing(shop, visit, size):
    shop.add("pump-1", "idle")
    shop.add("pump-2-of-the-second-hall", "idle")
    for device in ("pump-1", "pump-2-of-the-second-hall"):
        merge = {"at": time.time(), "digest": "0" * 64, "samples": 5.0, "devices": 1, "shift": 1.0}
        origin = {"device": "pump-1", "incarnation": 0, "pattern": "normal", "revision": 1}
        patterns = [{"pattern": "running/slowly", "own": 5.0, "told": 1.0, "used": 3}]
        alarm = {"at": time.time(), "score": 33.0, "threshold": 4.0, "alarm": True, "sample": 1}
        why = [{"input": "temperature of the bearing at the drive end", "factor": 9.0}]
        shop.report(
            device,
            *(1.0, 9.0),
            status={"monitor": recent(), "reviews": {"done": 0}, "patterns": patterns},
            merge={**merge, "origins": [origin]},
            alarms=[{**alarm, "pattern": "running/slowly", "why": why}],
        )
    visitor = visit(viewport=size, is_mobile=True)
    visitor.sign_in(shop.here.token, PAGE)
    found = {}
    for path in ("/episodes", "", "/devices/pump-2-of-the-second-hall", "/exchange", "/log"):
        visitor.go(f"/ui/fleets/{FLEET}{path}")
        visitor.page.wait_for_load_state("load")
        found[path] = visitor.page.evaluate(CUT)
        wide = visitor.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        found[path] += [f"{wide} pixels too wide"] if wide > 0 else []
    assert {path: cut for path, cut in found.items() if cut} == {}
    visitor.must_be_quiet()
