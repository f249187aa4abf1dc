"""The part of a device's page where people review it, and its forms."""

import re

import pytest

from edgemerge.server.dashboard.fleet_table import FleetTables
from edgemerge.server.dashboard.live import DeviceEvents
from edgemerge.server.dashboard.stream import Viewers
from edgemerge.server.main import create_app
from edgemerge.server.schemas import ReviewRequest
from tests.server.reporting import monitor, report
from tests.server.signing_in import Page
from tests.server.visiting import Visitor
from tests.server.world import FLEET, ROOT
from tests.waiting import until

pytestmark = pytest.mark.slow

PAGE = f"/ui/fleets/{FLEET}/devices/a"
BAD = "<img src=x onerror=alert(1)>\"' &amp;"


@pytest.fixture
def world(world):
    world.caller("a")
    return world


def take(world, *, done=0, refused=(), **changed):
    reviews = {"done": done, "refused": [list(each) for each in refused]}
    told = report(world.now, monitor=monitor(**changed), reviews=reviews)
    world.service.take_report(FLEET, "a", told, world.now)


def box(operator):
    """The text of the box."""
    page = Page(operator.get(PAGE).text)
    return " ".join(text for _, text in page.all("section", id="part-review"))


def decide(operator, decision, **words):
    form = {"csrf": operator.csrf(), "decision": decision, **words}
    return operator.post(f"{PAGE}/reviews", form)


def listed(world):
    return world.service.reviews.list_reviews(FLEET, "a")


def test_an_agent_without_a_monitor_has_no_box(world, operator):
    assert box(operator) == ""
    world.service.take_report(FLEET, "a", report(world.now), world.now)
    assert box(operator) == ""


def test_everything_is_shown(world, operator):
    take(world)
    found = box(operator)
    for words in (
        "Phase watching",
        "4, provisional, until the promised limit is known: 604 k samples are missing",
        "Drift ×1.25 ",
        "Outside the range 3 samples",
        "odd-1 since 1970-01-01T00:15:00Z, last 1970-01-01T00:16:00Z",
        "Samples 61 Peak score 33 Unusual inputs bearing_rms ×12.5, speed ×2",
        "Nearest known pattern normal",
        "worn bearingfault stays on this device: 61 of 128 samples61",
    ):
        assert words in found
    table = found.partition("Episodes ")[2]
    assert table.index("2 open") < table.index("bearing_rms") < table.rindex("30 s")
    buttons = re.findall(r'value="(\w+)" data-once', operator.get(PAGE).text)
    assert buttons == [
        *("snooze", "snooze", "fault", "approve", "dismiss", "undo"),
        *("acknowledge",) * 3,
    ]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"phase": "commissioning", "ready": False},
            "commissioning, 5 k of 256 samples (1953 %) not ready: no alarms yet",
        ),
        (
            {"phase": "commissioning", "ready": False, "commissioning": {"samples": 12}},
            "commissioning, 12 samples so far not ready: no alarms yet End commissioning now",
        ),
        ({"ready": False}, "watching not ready: no alarms yet"),
        ({"limit": {"value": 3.25, "kind": "promised", "missing": 0}}, "3.25, promised, from"),
        ({"limit": {"value": 4.0, "kind": "fixed", "missing": 0}}, "Limit 4, fixed "),
        ({"limit": {"value": 4.0, "kind": "default", "missing": 0}}, "Limit 4, the default "),
        (
            {"limit": {"value": 5.1, "kind": "commissioned", "missing": 0}},
            "Limit 5.1, set by commissioning ",
        ),
        (
            {"limit": {"value": 9.0, "kind": "bounded", "missing": 0}},
            "Limit 9, as high as it may rise; there are more episodes than promised, review them",
        ),
        (
            {"limit": {"value": 4.0, "kind": "provisional"}},
            "the rate of samples is not known yet",
        ),
        ({"drift": 1.6}, "Drift ×1.6 Accept"),
        ({"drift": 2.5}, "Drift ×2.5: learning stopped Accept"),
        ({"drift": 1.4, "learn": "stopped by drift"}, "×1.4: learning stopped Accept"),
        ({"snoozed_until": 4600.0}, "no alarms until 1970-01-01T01:16:40Z End"),
        ({"outside": 0}, "Outside the range no sample"),
        ({"episodes": [], "patterns": []}, "No episode is open, and all were acknowledged"),
    ],
)
def test_phase_limit_drift_and_snooze_are_in_words(world, operator, changed, words):
    take(world, **changed)
    assert words in box(operator)


def test_a_decision_waits_then_is_done_or_refused(world, operator):
    take(world)
    answer = decide(operator, "approve", pattern="odd-1", comment=" a new speed ", name="unused")
    assert (answer.status_code, answer.headers["location"]) == (303, f"{PAGE}#review")
    (made,) = listed(world)
    assert (made.decision, made.pattern, made.name) == ("approve", "odd-1", "")
    assert (made.by, made.comment) == ("admin root", "a new speed")
    found = box(operator)
    assert "This review will be done when the device next reports: Approve odd-1" in found
    assert "waiting: Approve odd-1" in found
    take(world, done=1, refused=[(1, "it is a fault already")])
    until(lambda: listed(world)[0].state == "refused")
    found = box(operator)
    assert "The device refused review 1, Approve odd-1: it is a fault already" in found
    assert "will be done" not in found


@pytest.mark.parametrize(
    ("words", "stored"),
    [
        (("fault", {"pattern": "odd-1", "name": "worn"}), {"pattern": "odd-1", "name": "worn"}),
        (("dismiss", {"pattern": "odd-1"}), {"pattern": "odd-1"}),
        (("undo", {"pattern": "worn bearing"}), {"pattern": "worn bearing"}),
        (("acknowledge", {"episode": "2"}), {"episode": 2}),
        (("acknowledge", {}), {"episode": None}),
        (("snooze", {"hours": "8"}), {"until": 1000.0 + 8 * 3600.0}),
        (("snooze", {}), {"until": None}),
        (("accept_drift", {}), {}),
        (("relearn", {"comment": "new bearing"}), {"comment": "new bearing"}),
        (("watch", {}), {}),
    ],
)
def test_each_form_makes_its_decision(world, operator, words, stored):
    decision, fields = words
    assert decide(operator, decision, **fields).status_code == 303
    (made,) = listed(world)
    assert made.decision == decision
    assert {name: getattr(made, name) for name in stored} == stored


@pytest.mark.parametrize(
    ("decision", "fields", "said"),
    [
        ("fault", {"pattern": "odd-1"}, "name of the fault"),
        ("approve", {}, "expected 1 to 200 printable"),
        ("forget", {}, "Input should be"),
        ("acknowledge", {"episode": "all"}, "expected a whole number"),
        ("snooze", {"hours": "-1"}, "expected a whole number"),
        ("relearn", {"comment": "x" * 501}, "at most 500 characters"),
    ],
)
def test_a_mistake_is_shown_on_the_page(world, operator, decision, fields, said):
    take(world)
    answer = decide(operator, decision, **fields)
    assert answer.status_code == 422
    (alert,) = [text for _, text in Page(answer.text).all("p", role="alert")]
    assert said in alert
    assert listed(world) == []


def test_forms_need_a_session_and_its_token(world, operator):
    stranger = Visitor(create_app(world.service))
    answer = stranger.post(f"{PAGE}/reviews", {"decision": "relearn"})
    assert answer.headers["location"].startswith("/ui/sign-in")
    assert operator.post(f"{PAGE}/reviews", {"decision": "relearn"}).status_code == 403
    elsewhere = operator.post(
        f"{PAGE}/reviews",
        {"decision": "relearn", "csrf": operator.csrf()},
        Origin="https://elsewhere",
    )
    assert elsewhere.status_code == 403
    assert listed(world) == []
    assert decide(operator, "relearn").status_code == 303


def test_relearning_is_confirmed_first(world, operator):
    take(world)
    asked = Page(operator.get(f"{PAGE}/relearn").text)
    assert "It cannot be undone." in asked.text("main")
    assert asked.all("button", value="relearn")
    assert operator.get(f"/ui/fleets/{FLEET}/devices/nobody/relearn").status_code == 404


def test_hostile_names_are_only_text(world, operator):
    odd = {"name": BAD, "first": 1.0, "last": 2.0, "inputs": [[BAD, 2.0], ["", 1.0]]}
    episode = {"number": 1, "began": -1e11, "ended": 1e11, "pattern": BAD, "inputs": [[BAD, 1e300]]}
    normal = {**odd, "name": BAD + "2", "status": BAD}
    take(world, phase=BAD, learn=BAD, patterns=[odd, normal], episodes=[episode])
    asked = ReviewRequest(decision="fault", pattern=BAD, name=BAD, comment=BAD)
    world.service.reviews.add(FLEET, "a", asked, ROOT)
    answer = operator.get(PAGE)
    assert answer.status_code == 200
    assert "<img src=x" not in answer.text
    assert "&lt;img src=x" in answer.text


def test_the_stream_sends_forms_of_the_session(world):
    take(world)
    tables = FleetTables(world.service.database, world.service.history, lambda: world.now)
    events = DeviceEvents(world.service, Viewers(tables), FLEET, "a", "", csrf="abc123")
    part = events.poll().data["parts"]["review"]
    assert part.count('name="csrf" value="abc123"') == part.count("<form")
    world.now += 0.5
    take(world)
    assert "review" not in events.poll().data.get("parts", {})  # nothing changed but the time


def test_the_fleet_table_says_what_needs_a_person(world, operator):
    take(world, drift=2.5, ready=False)
    page = Page(operator.get(f"/ui/fleets/{FLEET}").text)
    (cell,) = page.all("td", class_="c-review")[:1]
    assert cell[1] == "like bearing1 to reviewnot readydrift ×2.5"
    assert page.all("tr", class_="alarmed")  # its episode is open
    facts = " ".join(text for _, text in page.all("dl", class_="facts"))
    assert "Needs review 1 pattern; 1 not ready, 1 with drift" in facts
    take(world, episodes=[], patterns=[], drift=1.0)
    page = Page(operator.get(f"/ui/fleets/{FLEET}?q=review").text)
    assert page.all("td", class_="c-review")[0][1] == "–"
    assert not page.all("tr", class_="alarmed")
    assert "0 of 1 devices" in page.text("output")
