"""Whatever devices say is shown as text: script tags in every field, and nothing runs."""

import time

import pytest
from playwright.sync_api import expect

from edgemerge.server.auth import new_token
from tests.browser.workshop import FLEET
from tests.server.reporting import monitor

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("browser")]

BAD = "<img src=x onerror=window.pwned=1>"  # no slash, so it may be the name of a pattern
WORSE = "</script><script>window.pwned=1</script>\"'><svg onload=window.pwned=1>{{11*1111}}"
PAGES = ("/episodes", "", "/devices/pump-1", "/merge", "/log")


def hostile(name):
    """A report with markup in every field that is text."""
    now = time.time()
    point = {"at": now, "score": 50.0, "threshold": 4.0, "alarm": True}
    why = [{"input": WORSE, "factor": 9.0}, {"input": BAD, "factor": 3.0}]
    origin = {"device": WORSE[:200], "incarnation": 0, "pattern": WORSE, "revision": 1}
    merge = {"at": now, "digest": "0" * 64, "samples": 5.0, "devices": 1, "shift": 1.0}
    patterns = [{"pattern": f"{name} {WORSE}", "own": 5.0, "told": 1.0, "used": 3}]
    words = {"pattern": WORSE, "exchange": WORSE, "told": WORSE, "saved": WORSE}
    named = {"inputs": [[WORSE, 9.0]], "pattern": WORSE, "fault": WORSE, "like": WORSE}
    episodes = [{"number": 1, "began": now, "peak": 50.0, "samples": 1, **named}]
    odd = {"name": WORSE, "first": now, "last": now, **named}
    odd.pop("pattern")
    words["monitor"] = monitor(episodes=episodes, patterns=[odd])
    return {
        "sent": now,
        "status": {"samples": 9, "learnt": 5.0, "alarms": 1, "patterns": patterns, **words},
        "points": [point],
        "alarms": [{**point, "sample": 1, "pattern": WORSE, "why": why}],
        "merge": {**merge, "origins": [origin]},
    }


@pytest.fixture
def visitor(shop, visit):
    shop.add("pump-1", "idle", pattern=BAD)
    shop.add("pump-2", "fast", pattern="normal")
    shop.here.service.accounts.accept_from_file(token := new_token("operator"), BAD)
    found = visit()
    found.page.on("dialog", lambda _dialog: found.said.append("a dialog was opened"))
    found.sign_in(token)
    return found


def must_be_safe(visitor):
    assert visitor.page.evaluate("window.pwned") is None
    assert visitor.page.locator("img[src='x'], svg[onload], main script:not([type])").count() == 0
    assert "12221" not in visitor.page.content()


@pytest.mark.parametrize("path", PAGES)
def test_markup_from_devices_and_operators_is_shown_as_text(shop, visitor, path):
    shop.send("pump-1", hostile("first"))
    visitor.go(f"/ui/fleets/{FLEET}{path}")
    visitor.page.wait_for_load_state("load")
    if path == "/merge":
        expect(visitor.page.locator("table.matrix")).to_be_visible()
    else:
        shop.send("pump-1", hostile("second"))  # and through the stream
        if path == "/devices/pump-1":
            expect(visitor.page.locator("#part-patterns")).to_contain_text("second <")
    assert "window.pwned=1" in visitor.page.locator("main").inner_text()
    must_be_safe(visitor)
    visitor.must_be_quiet()


def test_markup_in_a_choice_is_shown_as_text(visitor):
    page = visitor.page
    visitor.go(f"/ui/fleets/{FLEET}/merge")
    page.get_by_role("link", name="Exclude pump-1").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(BAD)
    must_be_safe(visitor)
    page.get_by_role("button", name="Exclude").click()
    expect(page.locator(".choices")).to_contain_text(BAD)
    expect(page.get_by_role("status").first).to_contain_text(BAD)
    must_be_safe(visitor)
    visitor.must_be_quiet()
