"""A thousand devices on one page, and a thousand episodes; the times are printed."""

import time

import numpy as np
import pytest
from playwright.sync_api import expect

from edgemerge.server import auth
from edgemerge.server.dashboard.episodes import CARDS, CARDS_PER_PAGE
from edgemerge.server.episodes import EpisodeReport, store_report
from edgemerge.server.reports.model import MAX_POINTS
from edgemerge.server.schemas import ReportRequest
from tests.browser.workshop import FLEET
from tests.server.reporting import monitor
from tests.server.reporting import report as reported

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

MANY = 1000
PAINTED = """() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime"""
SCROLLED = """() => new Promise(done => {
  const times = [];
  let last = performance.now(), y = 0;
  const step = now => {
    times.push(now - last);
    last = now;
    y += 400;
    scrollTo(0, y);
    if (times.length < 60) requestAnimationFrame(step);
    else done(times.slice(1).sort((a, b) => a - b));
  };
  requestAnimationFrame(step);
})"""
TYPED = """() => {
  const field = document.getElementById('q'), start = performance.now();
  field.value = 'pump-077';
  field.dispatchEvent(new Event('input', {bubbles: true}));
  document.body.offsetHeight;
  return performance.now() - start;
}"""
SORTED = """() => {
  const start = performance.now();
  document.querySelector('button[data-name=score]').click();
  document.body.offsetHeight;
  return performance.now() - start;
}"""


def enrol_many(shop):
    def change(tx):
        for i in range(MANY):
            device = f"pump-{i:04d}"
            shop.tokens[device] = auth.enrol(
                tx, auth.invite(tx, FLEET, device, 1e12), FLEET, device, time.time()
            )

    shop.here.service.writer.write(change)


def report_all(shop, score):
    """Report as all devices would, through the history itself: their requests are not the point."""
    now = time.time()
    for i, device in enumerate(shop.tokens):
        points = [
            {"at": now - 60 + j, "score": score + (i * 7 + j) % 13 / 10, "threshold": 4.0}
            for j in range(60)
        ]
        status = {"samples": 60, "learnt": 60.0 + i, "alarms": 0, "pattern": "normal"}
        told = ReportRequest.model_validate({"sent": now, "status": status, "points": points})
        shop.here.service.history.take(FLEET, device, told, now)


@pytest.mark.long
def test_a_thousand_devices_are_shown_found_sorted_and_followed(shop, visit, capsys):
    enrol_many(shop)
    report_all(shop, 1.0)
    visitor = visit()
    page = visitor.page
    visitor.sign_in(shop.here.token)
    start = time.monotonic()
    visitor.go(f"/ui/fleets/{FLEET}")
    loaded = time.monotonic() - start
    expect(page.locator("tbody tr")).to_have_count(MANY)
    expect(page.locator("#live")).to_have_text("live")
    painted, frames = page.evaluate(PAINTED), page.evaluate(SCROLLED)
    typed = page.evaluate(TYPED)
    expect(page.locator("tbody tr:visible")).to_have_count(10)
    expect(page.locator("#count")).to_have_text("10 of 1000 devices")
    page.locator("#q").fill("")
    ordered = page.evaluate(SORTED)
    expect(page.locator("tbody tr").first).to_contain_text("2.2")
    report_all(shop, 3.0)
    shop.report("pump-0500", 99.5)
    page.locator("#q").fill("pump-0500")
    expect(page.locator("tbody tr:visible")).to_contain_text("99.5")
    with capsys.disabled():
        print(  # noqa: T201 - the figures of this machine, for who reads the log
            f"\n1 000 devices: first paint {painted:.0f} ms, loaded {1000 * loaded:.0f} ms, "
            f"frame while scrolling {frames[len(frames) // 2]:.0f} ms (median), "
            f"{frames[-1]:.0f} ms (longest), search {typed:.0f} ms, sort {ordered:.0f} ms"
        )
    visitor.must_be_quiet()


def alarm_all(shop):
    """Let every device have an open episode with a full curve, all stored in one transaction."""
    now = time.time()
    at = now - MAX_POINTS + np.arange(MAX_POINTS)
    scores = np.column_stack([at, 1.0 + at % 7, np.full(MAX_POINTS, 4.0), at > now - 60.0])

    def change(tx):
        for device in shop.tokens:
            inputs = [[f"bearing {k} of the drive end", 12.5] for k in range(3)]
            episode = {"number": 1, "began": now - 300.0, "peak": 33.0, "samples": 60}
            told = monitor(episodes=[{**episode, "inputs": inputs, "pattern": "odd-1"}])
            status = reported(now, monitor=told).status
            store_report(tx, EpisodeReport(FLEET, device, 0, status.monitor, now), lambda _: scores)

    shop.here.service.writer.write(change)


@pytest.mark.long
def test_a_thousand_open_episodes_of_a_thousand_devices(shop, visit, capsys):
    enrol_many(shop)
    report_all(shop, 1.0)
    alarm_all(shop)
    visitor = visit()
    page = visitor.page
    visitor.sign_in(shop.here.token)
    start = time.monotonic()
    visitor.go(f"/ui/fleets/{FLEET}/episodes")
    loaded = time.monotonic() - start
    expect(page.locator("#open-count")).to_have_text("1000")
    expect(page.locator("article")).to_have_count(CARDS["open"])
    expect(page.locator("#live")).to_have_text("live")
    painted, size = page.evaluate(PAINTED), len(page.content())
    page.get_by_role("link", name="Older ones").click()
    expect(page.locator("article")).to_have_count(CARDS_PER_PAGE)
    with capsys.disabled():
        print(  # noqa: T201 - the figures of this machine, for who reads the log
            f"\n1 000 devices and episodes: first paint {painted:.0f} ms, "
            f"loaded {1000 * loaded:.0f} ms, page {size / 1000:.0f} kB"
        )
    visitor.must_be_quiet()
