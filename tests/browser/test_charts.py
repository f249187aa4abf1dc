"""Charts in a real browser: ranges, zoom with the mouse, episodes, comparing, without scripts."""

import re
import time

import pytest
from playwright.sync_api import expect

from tests.browser.visitor import PHONE
from tests.browser.workshop import FLEET
from tests.server.reporting import monitor

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("browser")]

PAGE = f"/ui/fleets/{FLEET}/devices/pump-1"
MINUTE_S, DAY_S = 60.0, 86_400.0
# The ink in the first and the last columns of pixels: what is cut leaves some there.
EDGES = """() => {
  const canvas = document.querySelector('#chart canvas');
  const ink = (x) => canvas.getContext('2d').getImageData(x, 0, 2, canvas.height).data
    .filter((value, i) => i % 4 === 3 && value > 0).length;
  return [ink(0), ink(canvas.width - 2)];
}"""


READS = "willReadFrequently"  # what the console says of reading pixels, as only tests do


def remember(shop, device, days, peak_days_ago=None, peak=41.5):
    """Write a history as if the device had reported for so many days, with one peak."""
    now = int(time.time() // MINUTE_S)
    peaked = None if peak_days_ago is None else now - int(peak_days_ago * 1440)

    def change(tx):
        for minute in range(now - int(days * 1440), now):
            table = "minutes" if minute >= now - 6 * 1440 else "quarters"
            if table == "quarters" and minute % 15:
                continue
            high = peaked is not None and 0 <= peaked - minute < (15 if table == "quarters" else 1)
            score = peak if high else 1.0 + minute % 7 / 10.0
            tx.run(
                f"insert into {table} (fleet, device, minute, scores, mean, highest, threshold,"
                " alarms) values (?, ?, ?, ?, ?, ?, ?, ?)",
                *(FLEET, device, minute, 60, 1.0, score, 4.0, int(score > 4.0)),
            )

    shop.here.service.writer.write(change, 60.0)


@pytest.fixture
def visitor(shop, visit):
    shop.add("pump-1")
    remember(shop, "pump-1", 31, peak_days_ago=3.5)
    shop.report("pump-1", 1.0, 1.1, 0.9)
    made = visit()
    made.sign_in(shop.here.token, f"{PAGE}?range=week")
    return made


def drag(page, start, end):
    """Drag with the mouse over parts of the width of the chart."""
    box = page.locator("#chart .u-over").bounding_box()
    page.mouse.move(box["x"] + start * box["width"], box["y"] + 100.0)
    page.mouse.down()
    page.mouse.move(box["x"] + end * box["width"], box["y"] + 110.0, steps=8)
    page.mouse.up()


def test_dragging_zooms_in_and_asks_for_shorter_steps(visitor):
    page = visitor.page
    words, reset = page.locator("#chart-words"), page.get_by_role("button", name="Reset zoom")
    expect(words).to_have_text(re.compile("highest score of 15 min. The highest is 41.5; 1 point"))
    expect(reset).to_be_hidden()
    drag(page, 0.45, 0.55)
    expect(words).to_have_text(re.compile("highest score of 2 min. The highest is 41.5; 1 point"))
    expect(reset).to_be_visible()
    drag(page, 0.4, 0.6)
    expect(words).to_contain_text("highest score of 60 s")
    page.locator("#chart .u-over").dblclick()
    expect(words).to_contain_text("highest score of 15 min")
    expect(reset).to_be_hidden()
    drag(page, 0.9, 0.6)  # from right to left, and past the peak
    expect(words).to_contain_text("The highest is 1.6; 0 points in alarm")
    reset.click()
    expect(words).to_contain_text("41.5")
    visitor.must_be_quiet()


def test_ranges_are_links_that_need_no_new_page(visitor):
    page = visitor.page
    spans = page.get_by_role("navigation", name="Time shown")
    page.evaluate("window.same = true")
    for name, step in (
        ("Month", "60 min"),
        ("Day", "2 min"),
        ("Hour", "60 s"),
        ("3 months", "3 h"),
    ):
        spans.get_by_role("link", name=name, exact=True).click()
        expect(page.locator("#chart-words")).to_contain_text(f"highest score of {step}")
        expect(spans.locator("[aria-current]")).to_have_text(name)
    assert page.evaluate("window.same")
    assert page.url.endswith("?range=quarter#scores")
    spans.get_by_role("link", name="10 min").click()
    expect(page.locator("#chart .u-legend")).to_contain_text("0.9")
    page.get_by_role("link", name="Earlier").click()
    expect(page.locator("#chart-words")).to_contain_text("highest score of 60 s")
    visitor.must_be_quiet()


def test_the_live_chart_stays_zoomed_and_goes_on(shop, visitor):
    page = visitor.page
    visitor.go(PAGE)
    expect(page.locator("#live")).to_have_text("live")
    for _ in range(3):
        shop.report("pump-1", *[1.0 + i / 10 for i in range(20)])
    drag(page, 0.1, 0.5)
    expect(page.locator("#reset")).to_be_visible()
    shop.report("pump-1", 7.25)
    expect(page.locator("#part-words")).to_contain_text("7.25")
    expect(page.locator("#reset")).to_be_visible()
    page.locator("#reset").click()
    expect(page.locator("#chart .u-legend")).to_contain_text("7.25")
    visitor.must_be_quiet()


def test_scores_are_downloaded_for_the_time_shown(visitor):
    page = visitor.page
    page.get_by_role("navigation", name="Time shown").get_by_role("link", name="Hour").click()
    expect(page.locator("#chart-words")).to_contain_text("highest score of 60 s")
    with page.expect_download() as found:
        page.get_by_role("link", name="CSV").click()
    assert found.value.suggested_filename == "pump-1-scores.csv"
    lines = found.value.path().read_text().splitlines()
    assert lines[0] == "device,time_utc,scores,mean,highest,limit,alarms"
    assert 55 <= len(lines) <= 62
    visitor.must_be_quiet()


def test_no_time_is_cut_on_a_phone(shop, visit):
    shop.add("pump-1")
    remember(shop, "pump-1", 31, peak_days_ago=3.5)
    now = time.time()
    points = [{"at": now - 599.0 + i, "score": 1.0, "threshold": 4.0} for i in range(0, 599, 3)]
    shop.send(
        "pump-1",
        {"sent": now, "status": {"samples": 9, "learnt": 9.0, "alarms": 0}, "points": points},
    )
    visitor = visit(viewport=PHONE, device_scale_factor=2)
    visitor.sign_in(shop.here.token)
    for name in ("live", "hour", "day", "week", "month", "quarter"):
        visitor.go(f"{PAGE}?range={name}")
        expect(visitor.page.locator("#chart canvas")).to_be_visible()
        assert visitor.page.evaluate(EDGES) == [0, 0], name
        wide = visitor.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, name
    visitor.must_be_quiet(READS)


def test_the_axis_names_no_time_without_a_score(shop, visit):
    """Of one score there is no length of time, so the axis around it names none."""
    shop.add("pump-1")
    shop.report("pump-1", 1.0)
    named = """() => {
      const canvas = document.querySelector('#chart canvas');
      const [low, high] = [canvas.height * 0.91, canvas.height].map(Math.floor);
      return canvas.getContext('2d').getImageData(0, low, canvas.width, high - low).data
        .filter((value, i) => i % 4 === 3 && value > 0).length;
    }"""
    visitor = visit()
    visitor.sign_in(shop.here.token, PAGE)
    expect(visitor.page.locator("#chart canvas")).to_be_visible()
    assert visitor.page.evaluate(named) == 0
    remember(shop, "pump-1", 1)
    visitor.go(f"{PAGE}?range=day")
    expect(visitor.page.locator("#chart canvas")).to_be_visible()
    assert visitor.page.evaluate(named) > 0
    visitor.must_be_quiet(READS)


def test_episodes_are_marked(shop, visitor):
    page, now = visitor.page, time.time()
    drawn = """() => {
      const canvas = document.querySelector('#chart canvas');
      const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
      let count = 0;
      for (let i = 0; i < data.length; i += 4)
        count += data[i] === 252 && data[i + 1] === 233 && data[i + 2] === 231;
      return count;
    }"""
    expect(page.locator("#chart canvas")).to_be_visible()
    assert page.evaluate(drawn) == 0
    found = monitor(patterns=[])
    for each in found["episodes"]:
        each |= {"began": now - 2 * DAY_S, "ended": now - DAY_S}
    shop.report("pump-1", 1.0, status={"monitor": found, "reviews": {"done": 0}})
    page.reload()
    expect(page.locator("#chart canvas")).to_be_visible()
    page.wait_for_function(f"({drawn})() > 1000")
    visitor.must_be_quiet(READS)


def test_without_scripts_every_range_is_a_picture(shop, visit):
    shop.add("pump-1")
    remember(shop, "pump-1", 31, peak_days_ago=3.5)
    shop.report("pump-1", 1.0, 9.0, 1.0)
    plain = visit(java_script_enabled=False, viewport=PHONE)
    plain.sign_in(shop.here.token, PAGE)
    page = plain.page
    for name in ("Hour", "Week", "Month"):
        page.get_by_role("link", name=name, exact=True).click()
        expect(page.locator("#spans [aria-current]")).to_have_text(name)
        expect(page.locator("#chart svg .curve").first).to_be_visible()
        box, place = (
            [each.bounding_box() for each in page.locator("#chart svg text").all()],
            page.locator("#chart").bounding_box(),
        )
        assert all(place["x"] <= b["x"] for b in box)
        assert all(b["x"] + b["width"] <= place["x"] + place["width"] + 1.0 for b in box)
    page.get_by_role("link", name="Earlier").click()
    expect(page.locator("#spans [aria-current]")).to_have_count(0)


def test_devices_are_compared_in_one_chart(shop, visit):
    for device, ago in (("pump-1", 1.0), ("pump-2", 2.0), ("pump-3", None)):
        shop.add(device)
        remember(shop, device, 8, peak_days_ago=ago)
    shop.report("pump-1", 1.0)
    visitor = visit()
    visitor.sign_in(shop.here.token, PAGE)
    page = visitor.page
    page.get_by_role("link", name="Compare", exact=True).click()
    page.get_by_label("pump-2").check()
    page.get_by_role("button", name="Compare").click()
    legend = page.locator("#chart .u-legend")
    expect(legend).to_contain_text("pump-1")
    expect(legend).to_contain_text("pump-2")
    expect(legend).not_to_contain_text("pump-3")
    page.get_by_role("link", name="Week", exact=True).click()
    expect(page.locator("#chart-words")).to_have_text(
        "Each point is the highest score of 15 min. The highest is 41.5; 2 points in alarm."
    )
    drag(page, 0.8, 0.95)
    expect(page.locator("#chart-words")).to_contain_text("1 point in alarm")
    page.get_by_role("button", name="Reset zoom").click()
    expect(page.locator("#chart-words")).to_contain_text("2 points in alarm")
    page.get_by_role("link", name="Earlier").click()
    expect(page).to_have_url(re.compile(r"compare\?device=pump-1&device=pump-2&since="))
    visitor.must_be_quiet()
