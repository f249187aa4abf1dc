"""The chart of several devices, and the picture that is drawn of scores."""

import re

import pytest

from edgemerge.server.dashboard.chart import Band, Series, draw
from edgemerge.server.dashboard.fleet import MAX_COMPARED
from edgemerge.server.main import create_app
from tests.server.reporting import point, report
from tests.server.signing_in import Page
from tests.server.visiting import Visitor
from tests.server.world import FLEET

PAGE = f"/ui/fleets/{FLEET}/compare"
NOW = 100_000.0


@pytest.fixture
def world(world):
    world.now = NOW
    for i in range(8):
        world.caller(f"pump-{i}")
    return world


def tell(world, device, *points):
    history = world.service.history
    history.take(FLEET, device, report(NOW, points=[point(*each) for each in points]), NOW)


@pytest.mark.slow
def test_devices_share_one_axis(world, operator):
    tell(world, "pump-1", (NOW - 600.0, 1.5), (NOW, 2.5))
    tell(world, "pump-2", (NOW - 600.0, 3.5))
    address = f"{PAGE}/scores?device=pump-1&device=pump-2&device=pump-1&range=hour"
    found = operator.get(address, accept="application/json").json()
    assert found["lines"] == [["device", "pump-1"], ["device", "pump-2"]]
    begin, last = 60.0 * ((NOW - 600.0) // 60.0), 60.0 * (NOW // 60.0)
    times, first, second = found["columns"]
    assert (times[0], times[-1]) == (begin, last)
    assert (first[0], first[-1], second[0], second[-1]) == (1.5, 2.5, 3.5, None)
    page = Page(operator.get(f"{PAGE}?device=pump-1&device=pump-2").text)
    assert [a["value"] for a, _ in page.all("input", type="checkbox") if "checked" in a] == [
        "pump-1",
        "pump-2",
    ]
    (current,) = [a for a, _ in page.all("a") if a.get("aria-current") == "true"]
    assert current["data-range"] == "day"
    assert current["href"] == "?device=pump-1&device=pump-2&range=day#scores"


@pytest.mark.slow
def test_too_many_unknown_and_no_devices(world, operator):
    many = "&".join(f"device=pump-{i}" for i in range(MAX_COMPARED + 1))
    assert operator.get(f"{PAGE}?{many}").status_code == 422
    assert operator.get(f"{PAGE}?device=nosuch").status_code == 404
    assert operator.get(f"{PAGE}?device=%3Cb%3E").status_code == 422
    none = operator.get(PAGE)
    assert none.status_code == 200
    assert "Choose up to 6 devices" in none.text
    assert "chart-data" not in none.text
    stranger = Visitor(create_app(world.service))
    assert stranger.get(PAGE).status_code == 303
    assert stranger.get(f"{PAGE}/scores").status_code == 401


def series(at, score, limit=4.0):
    return Series(list(at), list(score), [limit] * len(at), [None] * len(at))


def test_a_picture_ends_where_the_scores_end():
    """No mark of time lies outside the scores, and none is cut at the edges."""
    for length in (7.0, 61.0, 600.0, 5000.0, 86_400.0, 1e6, 1e7, 1e8):
        times = [1e9 + length * k / 9.0 for k in range(10)]
        drawn = draw([("a", series(times, [1.0] * 10))])
        assert 1 <= len(drawn.times) <= 5
        for tick in drawn.times:
            place = float(tick.place.rstrip("%"))
            assert 0.0 <= place <= 100.0
            assert (tick.anchor == "start") == (place < 12.0)
            assert (tick.anchor == "end") == (place > 88.0)
        xs = [float(x) for x in re.findall(r"[ML]([\d.]+) ", drawn.curves[0].line)]
        assert (xs[0], xs[-1]) == (0.0, 1000.0)


def test_a_picture_of_one_score_of_none_and_of_extreme_ones():
    assert draw([("a", series([], []))]) is None
    one = draw([("a", series([5.0], [2.0]))])
    assert one.curves[0].line.startswith("M500.0 ")
    assert [tick.place for tick in one.times] == ["50%"]
    wild = draw([("a", series([1.0, 2.0, 3.0, 4.0], [0.0, 1e300, None, 1.0]))])
    heights = [float(y) for y in re.findall(r"[ML][\d.]+ ([\d.-]+)", wild.curves[0].line)]
    assert all(0.0 <= y <= 220.0 for y in heights)
    assert wild.curves[0].line.count("M") == 2  # broken at the gap


def test_episodes_are_marked_as_far_as_there_are_scores():
    bands = [Band(1, 0.0, 50.0), Band(2, 120.0, 140.0), Band(3, 180.0, None), Band(4, 300.0, None)]
    drawn = draw([("a", series([100.0, 200.0], [1.0, 1.0]))], bands)
    assert drawn.bands == [("200.0", "200.0"), ("800.0", "200.0")]
