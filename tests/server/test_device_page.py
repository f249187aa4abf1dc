"""The page of a device: its scores, what carries an alarm, what it knows and from whom."""

import json
import re

import pytest

from edgemerge.server.dashboard.chart import offered_ranges
from edgemerge.server.dashboard.device import describe_provenance, source_devices
from edgemerge.server.main import create_app
from edgemerge.server.schemas import ReportedMerge
from tests.server.reporting import alarm_of, merge_of, monitor, point, report
from tests.server.signing_in import Page
from tests.server.visiting import Visitor
from tests.server.world import FLEET, ROOT, generator, note
from tests.waiting import until

pytestmark = pytest.mark.slow

PAGE = f"/ui/fleets/{FLEET}/devices/pump-1"
BAD = "<img src=x onerror=alert(1)>\"' &amp;"
WORSE = "</script><script>alert(1)</script>\u202egnp.exe"
PARTS = "head", "words", "reasons", "patterns", "status", "sources", "merges", "alarms", "shared"


@pytest.fixture
def world(world):
    world.caller("pump-1")
    return world


def later(world, operator, now):
    """Let time pass, and sign in again."""
    world.now = now
    operator.sign_in(world.operator_token)


def take(world, **words):
    world.service.history.take(FLEET, "pump-1", report(world.now, **words), world.now)


def parts(operator):
    """The text of each part of the page."""
    answer = operator.get(PAGE)
    assert answer.status_code == 200, answer.text
    page = Page(re.sub(r"<rect[^>]*/>", "", answer.text))
    found = {a["id"]: text for tag in ("div", "section") for a, text in page.all(tag) if "id" in a}
    return {name: found.get(f"part-{name}", "") for name in PARTS}


def test_a_device_that_is_not_there_is_a_page_of_its_own(operator):
    answer = operator.get(f"/ui/fleets/{FLEET}/devices/pump-2")
    assert answer.status_code == 404
    assert "No device pump-2 in pumps: it has not enrolled" in answer.text


def test_a_device_that_never_reported_says_how_to_turn_that_on(operator):
    answer = operator.get(PAGE)
    page = Page(answer.text)
    assert "pump-1 has not reported yet" in answer.text
    assert 'url = "http://hub:8470"' in page.text("pre")
    assert "[report] every_s" in page.text("pre")
    assert page.all("div", id="chart") == []
    found = parts(operator)
    assert "Score now – no limit yet" in found["head"]
    assert "Last merge never" in found["head"]
    assert found["status"] == "Status It has not reported yet."
    assert "uses only its own samples" in found["sources"]
    assert "has no contribution" in found["shared"]


def test_the_points_are_there_for_the_chart(world, operator):
    old = [point(300.0, 9.0, 4.0)]
    take(world, points=[*old, point(998.5, 1.25), point(999.5, 8.0, 4.0, True)])
    text = Page(operator.get(PAGE).text).text("script", id="chart-data")
    assert json.loads(text)["columns"] == [[998.5, 999.5], [1.25, 8.0], [None, 4.0], [None, 8.0]]


def test_the_chart_is_told_in_words(world, operator):
    take(world, points=[point(998.0, 8.0, 4.0, True), point(999.0, 1.5, 4.0)])
    assert parts(operator)["words"].startswith(
        "Of the last ten minutes: latest score 1.5 (limit 4), "
        "highest 8 at 1970-01-01T00:16:38Z, 1 point in alarm."
    )


def test_a_report_without_scores_is_no_problem(world, operator):
    take(world)
    found = parts(operator)
    assert found["words"] == "No score has been reported yet."
    assert found["reasons"].startswith("Unusual inputs No alarm yet.")
    assert found["patterns"] == "Patterns No pattern has been reported yet."


def test_the_inputs_that_carry_an_alarm_are_named_strongest_first(world, operator):
    why = [("flow", 3.14), ("band 7", 12.56)]
    take(world, points=[point(999.0, 5.0, 2.0, True)], alarms=[alarm_of(999.0, why=why)])
    now = parts(operator)["reasons"]
    assert "alarm now, at 1970-01-01T00:16:39Z: score 5, limit 2, in pattern normal" in now
    assert now.endswith("band 7 ×12.6 of usual flow ×3.14 of usual")
    widths = re.findall(r'class="part" width="([^"]+)"', operator.get(PAGE).text)
    assert widths == ["100%", "25%"]
    world.now += 5.0
    take(world, points=[point(1004.0, 1.0, 2.0)])
    assert "Last alarm, 1970-01-01T00:16:39Z: score 5" in parts(operator)["reasons"]


def test_inputs_with_no_more_than_their_usual_error_are_not_called_unusual(world, operator):
    take(world, alarms=[alarm_of(999.0, why=[("flow", 0.9), ("heat", 7.0)])])
    found = parts(operator)
    assert found["reasons"].endswith("heat ×7 of usual")
    assert "flow" not in found["alarms"]
    take(world, alarms=[alarm_of(1000.0, why=[("flow", 0.9)])])
    assert parts(operator)["reasons"].endswith("No single input is unusual.")


def test_an_alarm_without_reasons_says_so(world, operator):
    take(world, alarms=[alarm_of(999.0)])
    assert "did not report which inputs" in parts(operator)["reasons"]


def test_patterns_say_how_much_each_is_used(world, operator):
    patterns = [
        {"pattern": "idle", "own": 100.0, "told": 0.0, "used": 1},
        {"pattern": "fast", "own": 2_000.0, "told": 48_000.0, "used": 3},
    ]
    take(world, pattern="fast", patterns=patterns)
    rows = parts(operator)["patterns"].partition("Own samplesMerged from others ")[2]
    assert rows.startswith("fast now75 % 2 k48 k idle25 % 1000")
    assert re.findall(r'class="part" width="([^"]+)"', operator.get(PAGE).text) == ["75%", "25%"]


def test_the_status_is_in_the_words_of_the_device(world, operator):
    take(
        world,
        samples=41_234,
        learnt=40_000.0,
        skipped=3,
        learning=False,
        exchange="pushed 1",
        told="adopted 2 of 3",
        synced=990.0,
        saved="disk full",
    )
    assert parts(operator)["status"] == (
        "Status Scored 41.2 k samples Learnt 40 k samples Skipped 3 samples In alarm 1 samples "
        "Learning off Incarnation 0 Last exchange 1970-01-01T00:16:30Z Result pushed 1 "
        "Last merge adopted 2 of 3 Desired state nothing chosen for it Saved to disk disk full"
    )


def origin(device, revision, pattern="normal"):
    return {"device": device, "incarnation": 0, "pattern": pattern, "revision": revision}


def test_provenance_names_who_told_what_and_whether_it_still_holds(world, operator):
    for device in ("pump-2", "pump-3", "pump-4", "pump-5"):
        world.put(note(device, 1, generator(0)))
    world.put(note("pump-3", 2, generator(1)))
    world.drop("pump-4")
    world.service.choices.exclude(FLEET, ("pump-5", 0, "normal"), ROOT)
    names = ("pump-2", "pump-3", "pump-4", "pump-5", "elsewhere")
    merge = {**merge_of(990.0), "origins": [origin(n, 1) for n in names], "devices": 5}
    take(world, merge=merge)
    found = parts(operator)["sources"]
    assert "7 samples of 5 devices, adopted 1970-01-01T00:16:30Z" in found
    assert "its own level changed by ×1.5" in found
    assert "The server has newer revisions of 1 contribution; 3 contributions were ex" in found
    rows = found.partition("At the server")[2].split()
    assert rows == [
        *("elsewherenormal1dropped", "pump-2normal1newest", "pump-3normal1revision"),
        *("2", "available", "pump-4normal1dropped", "pump-5normal1excluded"),
    ]
    links = [a["href"] for a, _ in Page(operator.get(PAGE).text).all("a")]
    assert f"/ui/fleets/{FLEET}/devices/pump-2" in links
    assert not any("elsewhere" in link for link in links)


def test_what_is_told_is_grouped_by_device():
    merge = ReportedMerge.model_validate(
        {**merge_of(1.0), "origins": [origin("b", 1), origin("a", 2, "x"), origin("a", 1, "w")]}
    )
    revisions = {("a", 0, "x"): 2, ("a", 0, "w"): 1, ("b", 0, "normal"): 1}
    told = source_devices(merge, revisions, frozenset(), {"a"})
    assert [(one.device, one.known) for one in told] == [("a", True), ("b", False)]
    assert [(one.pattern, one.revision) for one in told[0].contributions] == [("w", 1), ("x", 2)]
    assert describe_provenance(told) == "all are the newest that the server has"
    assert source_devices(None, revisions, frozenset(), ()) == []


def test_many_tellers_are_folded(world, operator):
    take(world, merge=merge_of(990.0, origins=25))
    assert "20 more devices" in parts(operator)["sources"]


def test_merges_and_alarms_are_listed_newest_first(world, operator):
    take(world, merge=merge_of(900.0, 1), alarms=[alarm_of(900.0 + i, i) for i in range(10)])
    take(world, merge=merge_of(950.0, 2), alarms=[alarm_of(999.0, 99, why=[("flow", 2.0)])])
    found = parts(operator)
    merges = re.findall(r"1970-01-01T00:(\d+:\d+)Z1", found["merges"])
    assert merges == ["15:50", "15:00"]
    assert "×1.5" in found["merges"]
    assert found["alarms"].count("1970-01-01") == 11
    assert found["alarms"].index("00:16:39") < found["alarms"].index("00:15:09")
    assert "flow ×2" in found["alarms"]
    assert "3 older ones" in found["alarms"]


def test_contributions_lead_to_where_they_can_be_excluded(world, operator):
    world.put(note("pump-1", 4, generator(0), pattern="a b&c"))
    page = Page(operator.get(PAGE).text)
    (link,) = [a["href"] for a, text in page.all("a") if text.startswith("Exclude")]
    assert link == f"/ui/fleets/{FLEET}/merge?exclude=pump-1/0/a%20b%26c"
    assert operator.get(link).status_code == 200
    found = parts(operator)["shared"]
    assert "a b&c430" in found  # revision 4, 30 samples
    assert " B" in found or "kB" in found
    world.service.choices.exclude(FLEET, ("pump-1", 0, "a b&c"), ROOT)
    assert "excluded" in parts(operator)["shared"]
    assert "Exclude" not in parts(operator)["shared"].replace("Excluded", "")


def test_another_device_s_contributions_are_not_its_own(world, operator):
    world.put(note("pump-2", 1, generator(0)))
    assert "has no contribution" in parts(operator)["shared"]


def test_a_range_is_given_in_steps_with_its_words_and_episodes(world, operator):
    later(world, operator, 100_000.0)
    episodes = {"monitor": monitor(), "reviews": {"done": 0}}
    points = [point(99_000.0, 1.0, 4.0), point(99_001.0, 5.0, 4.0, True), point(99_900.0, 1.0, 4.0)]
    take(world, points=points, **episodes)
    found = operator.get(f"{PAGE}/scores?range=day", accept="application/json").json()
    assert (found.get("range"), found.get("step_s")) == ("day", 120.0), found
    assert found["columns"] == [
        [99_000.0, 99_420.0, 99_840.0],
        [5.0, None, 1.0],
        [4.0, None, 4.0],
        [5.0, None, None],
        [3.0, None, 1.0],
    ]
    assert found["episodes"] == [[2, 950.0, None]]  # open since; the other ended before
    world.service.episodes.take(FLEET, world.service.history.latest(FLEET, "pump-1"))
    take(world)  # a device forgets episodes that were acknowledged, the server does not
    until(lambda: operator.get(f"{PAGE}/scores?range=day").json()["episodes"])
    stored = operator.get(f"{PAGE}/scores?range=day", accept="application/json").json()
    assert stored["episodes"] == [[2, 950.0, None]]
    assert (
        found["words"]
        == "Each point is the highest score of 2 min. The highest is 5; 1 point in alarm."
    )
    hour = operator.get(f"{PAGE}/scores?range=hour", accept="application/json").json()
    assert (hour["step_s"], hour["columns"][0][0]) == (60.0, 99_000.0)
    zoomed = operator.get(f"{PAGE}/scores?since=98999&until=99100", accept="application/json")
    assert zoomed.json()["columns"][1] == [5.0]
    assert zoomed.json()["earlier"] == "since=98898&until=98999"


def test_every_range_works_without_scripts(world, operator):
    later(world, operator, 9_000_000.0)
    take(world, points=[point(8_999_000.0 + i, 1.0 + i, 4.0, i > 5) for i in range(9)])
    for name in offered_ranges(90.0):
        answer = operator.get(f"{PAGE}?range={name}")
        page = Page(answer.text)
        (current,) = [a for a, _ in page.all("a") if a.get("aria-current") == "true"]
        assert current["data-range"] == name
        assert '<path class="curve curve-1" d="M' in answer.text
        assert '<path class="limit" d="M' in answer.text
    assert "year" not in offered_ranges(90.0)
    assert "year" in offered_ranges(120.0)
    nothing = operator.get(f"{PAGE}?since=100&until=200").text
    assert "No score has been reported in this time" in nothing
    for wrong in ("since=-1", "since=nan", "until=1e12", "since=x"):
        assert operator.get(f"{PAGE}?{wrong}").status_code == 422
    assert operator.get(f"{PAGE}?range=ever").status_code == 200  # is the live one


def test_scores_can_be_downloaded(world, operator):
    later(world, operator, 100_000.0)
    take(world, points=[point(99_001.0, 5.0, 4.0, True), point(99_900.0, 1.0)])
    answer = operator.get(f"{PAGE}/scores.csv?range=day")
    assert answer.headers["content-disposition"] == 'attachment; filename="pump-1-scores.csv"'
    assert answer.headers["content-type"].startswith("text/csv")
    assert answer.text.split("\r\n") == [
        "device,time_utc,scores,mean,highest,limit,alarms",
        "pump-1,1970-01-02 03:30:00,1,5,5,4,1",
        "pump-1,1970-01-02 03:45:00,1,1,1,,0",
        "",
    ]
    some = operator.get(f"{PAGE}/scores.csv?since=99500&until=99960").text
    assert len(some.splitlines()) == 2
    assert operator.get(f"/ui/fleets/{FLEET}/devices/nosuch/scores.csv").status_code == 404


def test_strangers_get_no_scores(world):
    stranger = Visitor(create_app(world.service))
    assert stranger.get(f"{PAGE}/scores").status_code == 401
    assert stranger.get(f"{PAGE}/scores.csv").status_code == 303


def test_operators_get_scores_by_their_token(world):
    world.now = 100_000.0
    take(world, points=[point(99_001.0, 5.0, 4.0, True), point(99_900.0, 1.0)])
    client = Visitor(create_app(world.service))
    path, token = f"/fleets/{FLEET}/devices/pump-1/scores", f"Bearer {world.operator_token}"
    found = client.get(f"{path}?since=90000&points=2", authorization=token).json()
    assert found["step_s"] == 10_800.0
    assert [one["highest"] for one in found["scores"]] == [5.0]
    assert len(client.get(f"{path}.csv", authorization=token).text.splitlines()) == 3
    assert client.get(f"{path}?points=1", authorization=token).status_code == 422
    device = f"Bearer {world.tokens['pump-1']}"
    for form in ("", ".csv"):
        assert client.get(path + form).status_code == 401
        assert client.get(path + form, authorization=device).status_code == 403


def test_hostile_text_is_text_everywhere(world, operator):
    reasons = [(WORSE, 2.0), (BAD, 9.0)]
    hostile = {**alarm_of(999.0, why=reasons), "pattern": WORSE}
    patterns = [{"pattern": BAD, "own": 1.0, "told": 1.0, "used": 1}]
    words = {"pattern": BAD, "exchange": WORSE, "told": BAD, "saved": WORSE, "patterns": patterns}
    merge = {**merge_of(990.0), "origins": [origin("../../sign-out", 1, WORSE), origin(BAD, 1)]}
    take(world, alarms=[hostile], merge=merge, points=[point(999.0, 5.0, 2.0, True)], **words)
    answer = operator.get(PAGE)
    page = Page(answer.text)
    acting = [each for each in page.scripts() if each[1].get("type") != "application/json"]
    assert acting == []
    assert "<img src=x" not in answer.text
    assert WORSE not in answer.text
    found = parts(operator)
    for part, text in (("reasons", WORSE), ("patterns", BAD), ("status", WORSE), ("sources", BAD)):
        assert text in found[part], part
    assert not any("sign-out" in a["href"] for a, _ in page.all("a"))


def test_huge_and_tiny_numbers_are_shown(world, operator):
    take(
        world,
        points=[point(998.0, 0.0, 4.0), point(999.0, 1e300, 1e-300, True)],
        alarms=[alarm_of(999.0, 2**62, 1e300, why=[("x", 1e300), ("y", 0.0)])],
        learnt=1e300,
        samples=2**62,
    )
    found = parts(operator)
    assert "▲" not in found["head"]
    assert "1e300" in found["head"]
    assert "×1e300 of usual" in found["reasons"]
    assert "×0 of usual" not in found["reasons"]
    assert operator.get(f"/ui/fleets/{FLEET}").status_code == 200


@pytest.mark.parametrize(
    ("learning", "learn", "drift", "words"),
    [
        (True, "normal", 1.0, "on"),
        (True, "stopped by drift", 3.1, "stopped by drift"),
        (True, "off", 1.0, "off"),
        (False, "normal", 1.0, "off"),
    ],
)
def test_the_status_says_whether_something_is_learnt(
    world, operator, learning, learn, drift, words
):
    take(world, learning=learning, monitor=monitor(learn=learn, drift=drift))
    assert f"Learning {words} Incarnation" in parts(operator)["status"]
