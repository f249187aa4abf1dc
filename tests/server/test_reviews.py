"""Reviews: decided by operators, carried by the desired state, ended by what devices report."""

import json
from sqlite3 import connect as open_sqlite

import httpx
import pytest
from pydantic import ValidationError

from edgemerge.core.errors import SettingError, UnknownError
from edgemerge.exchange.client import (
    MAX_DESIRED_BYTES,
    MAX_REPORT_BYTES,
    ServerClient,
    encode_report,
    parse_desired,
)
from edgemerge.server import api
from edgemerge.server.auth import Caller
from edgemerge.server.db.migrations import connect
from edgemerge.server.reviews import MAX_REVIEWS, MAX_WAITING
from edgemerge.server.schemas import ReportRequest, ReviewRequest
from edgemerge.server.service import Service
from tests.server.merge_site import create, serving
from tests.server.reporting import monitor, report, said
from tests.server.world import FLEET, ROOT, World
from tests.waiting import until

pytestmark = pytest.mark.slow

ABOUT_PATTERN = ("approve", "fault", "dismiss", "undo")


@pytest.fixture
def world(any_world):
    any_world.caller("a")
    return any_world


def decide(world, decision="approve", device="a", caller=ROOT, **words):
    if decision in ABOUT_PATTERN:
        words = {"pattern": "odd-1"} | words
    asked = ReviewRequest(decision=decision, **words)
    return world.service.reviews.add(FLEET, device, asked, caller)


def report_done(world, done, refused=(), device="a"):
    """Report as the device does, and wait until the reviews up to `done` are settled."""
    told = report(world.now, reviews={"done": done, "refused": [list(each) for each in refused]})
    world.service.take_report(FLEET, device, told, world.now)
    until(lambda: all(each.number > done for each in waiting(world, device)))


def listed(world, device="a"):
    return world.service.reviews.list_reviews(FLEET, device)


def waiting(world, device="a"):
    return world.service.choices.desired(FLEET, device)[1].reviews


def states(world):
    return [(each.number, each.state, each.why) for each in listed(world)]


def test_a_review_waits_until_the_device_has_reported_it_done(world):
    made = decide(world, comment="cleaned the filter")
    assert (made.number, made.state, made.by, made.at) == (1, "waiting", "operator root", 1000.0)
    assert waiting(world) == (made,)
    report_done(world, 0)
    assert waiting(world) == (made,)
    report_done(world, 1)
    assert waiting(world) == ()
    assert states(world) == [(1, "done", "")]


def test_a_refused_review_says_why(world):
    for pattern in ("odd-1", "odd-2", "odd-3"):
        decide(world, pattern=pattern)
    report_done(world, 2, [(1, "no pattern 'odd-1'"), (7, "of an earlier server")])
    assert states(world) == [
        (3, "waiting", ""),
        (2, "done", ""),
        (1, "refused", "no pattern 'odd-1'"),
    ]


def test_the_revision_rises_when_a_review_is_made_and_when_it_is_done(world):
    world.caller("b")
    revision = lambda device="a": world.service.choices.desired_revision(FLEET, device)  # noqa: E731
    assert revision() == 0
    decide(world)
    first = revision()
    assert first > 0
    assert world.service.choices.desired(FLEET, "a")[1].revision == first
    assert revision("b") == 0
    report_done(world, 1)
    until(lambda: revision() > first)
    settled = revision()
    world.service.choices.adopt(FLEET, ["b"], ["a"], ROOT)
    assert revision() > settled
    decide(world, "undo")
    assert revision() > settled + 1


def test_reviews_and_what_became_of_them_survive_a_restart(world):
    decide(world, "fault", name="worn bearing")
    decide(world, "snooze", until=5000.0)
    report_done(world, 1, [(1, "it is normal already")])
    before, revision = listed(world), world.service.choices.desired(FLEET, "a")[1].revision
    world.restart()
    assert listed(world) == before
    assert [each.decision for each in waiting(world)] == ["snooze"]
    assert world.service.choices.desired_revision(FLEET, "a") == revision


def test_each_device_has_its_own_numbers(world):
    world.caller("b")
    assert [decide(world, "relearn", device).number for device in "aba"] == [1, 1, 1]
    assert decide(world, "watch").number == 2


def test_a_decision_that_waits_already_is_not_made_again(world):
    first = decide(world)
    assert decide(world, comment="pressed twice") == first
    decide(world, "undo")
    assert decide(world).number == 3


def test_numbers_follow_those_that_the_device_has_done(world):
    """After a database was restored from a backup, the device is ahead."""
    report_done(world, 41)
    assert decide(world).number == 42


def test_too_many_that_wait_are_refused_and_old_ones_are_forgotten(world):
    for number in range(1, MAX_REVIEWS + 41):
        if number % MAX_WAITING == 0:
            report_done(world, number - 1)
        decide(world, pattern=f"odd-{number}")
    assert len(listed(world)) <= MAX_REVIEWS
    assert listed(world)[0].number == MAX_REVIEWS + 40
    report_done(world, MAX_REVIEWS + 40)
    for number in range(MAX_WAITING):
        decide(world, pattern=f"new-{number}")
    with pytest.raises(
        SettingError, match=r"32 reviews that it has not acted upon.*see that it rep"
    ):
        decide(world, pattern="one-more")


def test_everything_is_in_the_audit_log(world):
    decide(world, "fault", name="worn bearing", comment="heard it")
    decide(world, "acknowledge", episode=3)
    report_done(world, 2, [(2, "no episode 3")])
    found = [each for each in world.service.audit(FLEET, 0, 100) if "review" in each.action]
    assert [(each.actor, each.action, each.subject) for each in found] == [
        ("operator root", "review", "a"),
        ("operator root", "review", "a"),
        ("device a", "review done", "a"),
        ("device a", "review refused", "a"),
    ]
    assert json.loads(found[0].detail) == {
        "number": 1,
        "decision": "fault",
        "pattern": "odd-1",
        "name": "worn bearing",
        "comment": "heard it",
    }
    assert json.loads(found[1].detail) == {"number": 2, "decision": "acknowledge", "episode": 3}
    assert json.loads(found[3].detail) == {"numbers": [2]}


@pytest.mark.parametrize(
    ("decision", "words", "said"),
    [
        ("approve", {"pattern": ""}, "found pattern '', expected 1 to 200 printable"),
        ("dismiss", {"pattern": "a\x00b"}, "expected 1 to 200 printable"),
        ("fault", {}, "name of the fault '', expected"),
        ("approve", {"name": "worn"}, "found name for 'approve', expected none"),
        ("relearn", {"pattern": "odd-1"}, "found pattern for 'relearn', expected none"),
        ("watch", {"until": 9.0}, "found until for 'watch'"),
        ("snooze", {"episode": 1}, "found episode for 'snooze'"),
        ("relearn", {"comment": "two\nlines"}, "expected one printable line"),
    ],
)
def test_a_decision_with_too_little_or_too_much_is_refused(world, decision, words, said):
    with pytest.raises(SettingError, match=said):
        decide(world, decision, **words)
    assert listed(world) == []


def test_a_pattern_that_the_device_does_not_list_is_refused_at_once(world):
    def lists(*patterns):
        rows = [
            {"name": name, "status": kind, "first": 1.0, "last": 2.0} for name, kind in patterns
        ]
        told = report(world.now, monitor=monitor(patterns=rows))
        world.service.take_report(FLEET, "a", told, world.now)

    decide(world, pattern="odd-99")  # nothing is known of the device yet
    lists(("odd-1", "unreviewed"))
    decide(world, pattern="odd-1", decision="fault", name="worn")
    decide(world, pattern="worn", decision="undo")  # it will be called so by then
    with pytest.raises(UnknownError, match=r"no pattern odd-98 of a, .* last listed odd-1: "):
        decide(world, pattern="odd-98")
    lists(("worn", "fault"))
    decide(world, pattern="odd-7", decision="undo")  # may be its former name
    with pytest.raises(UnknownError, match="no pattern torn of a"):
        decide(world, pattern="torn", decision="undo")
    lists()
    with pytest.raises(UnknownError, match="last listed none"):
        decide(world, pattern="odd-1")
    lists(*((f"odd-{i}", "unreviewed") for i in range(48)))
    decide(world, pattern="odd-99")  # the list may be cut


def test_only_enrolled_devices_that_may_report_are_reviewed(world):
    with pytest.raises(UnknownError, match="no device nobody in pumps"):
        decide(world, device="nobody")
    decide(world)
    world.service.revoke(FLEET, "a", ROOT)
    with pytest.raises(SettingError, match="token of a was revoked"):
        decide(world, pattern="odd-2")
    assert len(listed(world)) == 1


def test_deleting_a_fleet_forgets_its_reviews(world):
    decide(world)
    world.service.delete(FLEET, ROOT)
    world.service.create(world.fleet, ROOT)
    world.tokens.clear()
    world.caller("a")
    assert listed(world) == []
    assert waiting(world) == ()


@pytest.mark.slow
def test_a_report_settles_what_another_server_has_stored(fresh_postgres_url):
    """Two servers on one database: one takes the review, the other the report."""
    one = World(fresh_postgres_url)
    one.caller("a")
    two = World.__new__(World)
    two.now, two.url = one.now, one.url
    two.service = Service(connect(fresh_postgres_url), clock=lambda: 1000.0)
    try:
        assert two.service.choices.desired_revision(FLEET, "a") == 0
        decide(one)
        until(lambda: two.service.choices.desired_revision(FLEET, "a") > 0)
        report_done(two, 1)
        assert states(one) == [(1, "done", "")]
    finally:
        two.service.close()
        one.close()


def test_a_database_of_the_version_before_is_migrated(tmp_path):
    path = tmp_path / "fleets.db"
    made = World(f"sqlite:///{path}")
    made.caller("a")
    made.close()
    with open_sqlite(path) as raw:
        raw.execute("drop table reviews")
        raw.execute("delete from migrations where number = 4")
    again = World.__new__(World)
    again.url, again.now = f"sqlite:///{path}", 1000.0
    again.service = Service(connect(again.url), clock=lambda: 1000.0)
    assert decide(again).number == 1
    assert [each.number for each in waiting(again)] == [1]
    again.service.close()


# Over HTTP.


@pytest.fixture
def site(tmp_path):
    with serving(tmp_path) as (here, _operator):
        create(here, FLEET)
        yield here


def post(here, device="a", token=None, **body):
    return httpx.post(
        f"{here.url}/fleets/{FLEET}/devices/{device}/reviews",
        json=body,
        headers={"Authorization": f"Bearer {token or here.token}"},
    )


def get(here, path, token=None):
    headers = {"Authorization": f"Bearer {token or here.token}"}
    return httpx.get(f"{here.url}/fleets/{FLEET}/devices/a{path}", headers=headers)


def send(here, token, **status):
    return httpx.post(
        f"{here.url}/fleets/{FLEET}/devices/a/report",
        content=json.dumps(said(1000.0, **status)),
        headers={"Authorization": f"Bearer {token}"},
    )


def test_the_document_has_the_review_until_it_is_done(site):
    token = site.enrol(FLEET, "a")
    before = get(site, "/desired", token)
    made = post(site, decision="fault", pattern="odd-1", name="worn", comment="heard it")
    assert made.status_code == 201
    found = get(site, "/desired", token)
    assert found.headers["etag"] != before.headers["etag"]
    (review,) = found.json()["reviews"]
    assert review == {
        "number": 1,
        "decision": "fault",
        "pattern": "odd-1",
        "name": "worn",
        "episode": None,
        "until": None,
        "by": "admin test",
        "at": made.json()["at"],
        "comment": "heard it",
    }
    assert parse_desired(found.json()).reviews == (review,)
    answer = send(site, token, reviews={"done": 1, "refused": [[1, "odd-1 is normal"]]}).json()
    assert answer["desired"] == found.json()["revision"]
    assert answer["monitor"] is True
    until(lambda: get(site, "/desired", token).json()["reviews"] == [])
    assert get(site, "/desired", token).json()["revision"] > answer["desired"]
    (listed,) = get(site, "/reviews").json()
    assert (listed["state"], listed["why"]) == ("refused", "odd-1 is normal")


def test_only_operators_decide_and_read(site):
    token = site.enrol(FLEET, "a")
    assert post(site, token=token, decision="relearn").status_code == 403
    assert get(site, "/reviews", token).status_code == 403
    assert get(site, "", token).status_code == 403
    assert post(site, "nobody", decision="relearn").status_code == 404
    assert get(site, "/reviews").json() == []


@pytest.mark.parametrize(
    "body",
    [
        {"decision": "forget"},
        {"decision": "approve", "pattern": 5},
        {"decision": "approve", "pattern": "x" * 201},
        {"decision": "relearn", "comment": "x" * 501},
        {"decision": "acknowledge", "episode": -1},
        {"decision": "snooze", "until": -5.0},
        {"decision": "relearn", "other": 1},
    ],
)
def test_what_is_no_decision_is_refused(body):
    with pytest.raises(ValidationError):
        ReviewRequest.model_validate_json(json.dumps(body))


def test_a_wrong_decision_is_answered_with_what_is_wrong(site):
    site.enrol(FLEET, "a")
    answer = post(site, decision="forget")
    assert answer.status_code == 422
    assert "'approve', 'fault', 'dismiss'" in answer.json()["error"]
    assert "expected 1 to 200 printable" in post(site, decision="undo").json()["error"]
    assert get(site, "/reviews").json() == []


def test_of_reviews_that_do_not_fit_the_first_are_in_the_document(site, monkeypatch):
    token = site.enrol(FLEET, "a")
    for number in range(MAX_WAITING):
        post(site, decision="dismiss", pattern=f"{number} {'é' * 150}", comment="ü" * 500)
    assert len(get(site, "/desired", token).json()["reviews"]) == MAX_WAITING
    assert len(get(site, "/desired", token).content) < MAX_DESIRED_BYTES // 2
    monkeypatch.setattr(api, "MAX_DESIRED_BYTES", 8000)
    found = get(site, "/desired", token)
    numbers = [each["number"] for each in found.json()["reviews"]]
    assert numbers == list(range(1, len(numbers) + 1))
    assert 1 <= len(numbers) < MAX_WAITING
    assert len(found.content) <= 8000
    monkeypatch.setattr(api, "MAX_DESIRED_BYTES", 1000)
    (only,) = get(site, "/desired", token).json()["reviews"]
    assert (only["number"], only["comment"]) == (1, "")


def test_the_client_decides_and_lists(site):
    site.enrol(FLEET, "a")
    client = ServerClient(site.url, site.token)
    made = client.review(FLEET, "a", "snooze", until=2e9)
    assert client.reviews(FLEET, "a") == [made]
    assert client.device(FLEET, "a")["waiting"] == 1
    client.close()


# The status of the monitor.


def test_a_device_shows_the_monitor_it_reported(site):
    token = site.enrol(FLEET, "a")
    assert get(site, "").json()["status"] is None
    send(site, token)
    assert get(site, "").json()["status"]["monitor"] is None
    send(site, token, monitor=monitor(future_field={"deep": [1]}))
    found = get(site, "").json()
    assert (found["state"], found["waiting"]) == ("online", 0)
    shown = found["status"]["monitor"]
    assert "future_field" not in shown
    assert shown["patterns"][0]["inputs"] == [["bearing_rms", 12.5], ["speed", 2.0]]
    assert shown["limit"] == {"value": 4.0, "kind": "provisional", "missing": 604_000.0}
    assert shown["episodes"][-1]["ended"] is None


def test_the_newest_status_is_kept_across_restarts(tmp_path):
    with serving(tmp_path) as (here, _operator):
        create(here, FLEET)
        token = here.enrol(FLEET, "a")
        send(here, token, monitor=monitor(drift=1.2))
        send(here, token, monitor=monitor(drift=1.7), reviews={"done": 5, "refused": []})
    with serving(tmp_path) as (here, _operator):
        status = get(here, "", here.token).json()["status"]
        assert status["monitor"]["drift"] == 1.7
        assert status["reviews"] == {"done": 5, "refused": []}


@pytest.mark.parametrize(
    "change",
    [
        {"phase": "x" * 10_000},
        {"phase": 5},
        {"ready": "yes"},
        {"drift": "1"},
        {"drift": float("nan")},
        {"drift": float("inf")},
        {"drift": -1.0},
        {"outside": -1},
        {"outside": 2**63},
        {"episodes": {}},
        {"episodes": [{"number": 1}]},
        {"episodes": [{"number": 1, "began": 1e300}]},
        {"episodes": [{"number": 1, "began": 1.0, "inputs": [["x" * 5000, 1.0]]}]},
        {"episodes": [{"number": 1, "began": 1.0, "inputs": [["x", float("nan")]]}]},
        {"patterns": [{"name": "x" * 5000, "first": 1.0, "last": 1.0}]},
        {"patterns": [{"name": "odd", "first": None, "last": 1.0}]},
        {"patterns": "odd-1"},
        {"limit": 4.0},
        {"snoozed_until": "tomorrow"},
    ],
)
def test_a_hostile_status_is_refused(change):
    with pytest.raises(ValidationError):
        ReportRequest.model_validate_json(json.dumps(said(1.0, monitor=monitor(**change))))


def test_a_refused_status_leaves_the_last_one_and_its_words_are_few(site):
    token = site.enrol(FLEET, "a")
    send(site, token, monitor=monitor())
    wrong = [{"number": "x" * 1000, "began": "x"}] * 50
    answer = send(site, token, monitor=monitor(episodes=wrong))
    assert answer.status_code == 422
    assert len(answer.content) < 5000
    assert get(site, "").json()["status"]["monitor"]["drift"] == 1.25


@pytest.mark.parametrize(
    "reviews",
    [{"done": -1}, {"done": 2**60}, {"done": 1.5}, {"refused": [[1, "x" * 501]]}, {"refused": [5]}],
)
def test_hostile_reviews_are_refused(reviews):
    with pytest.raises(ValidationError):
        ReportRequest.model_validate_json(json.dumps(said(1.0, reviews=reviews)))


def test_long_lists_are_cut_and_the_newest_stay(site):
    token = site.enrol(FLEET, "a")
    episodes = [{"number": k, "began": float(k), "ended": k + 1.0} for k in range(300)]
    patterns = [{"name": f"odd-{k}", "first": 1.0, "last": 2.0} for k in range(100)]
    patterns[-1]["inputs"] = [[f"x{k}", 1.0] for k in range(30)]
    assert (
        send(site, token, monitor=monitor(episodes=episodes, patterns=patterns)).status_code == 200
    )
    found = get(site, "").json()["status"]["monitor"]
    assert [each["number"] for each in found["episodes"]] == list(range(236, 300))
    assert found["patterns"][-1]["name"] == "odd-99"
    assert [name for name, _ in found["patterns"][-1]["inputs"]] == [f"x{k}" for k in range(8)]


def test_times_follow_the_servers_clock_in_steady_steps(world):
    """Delays vary from report to report; what the page shows must not."""
    found = set()
    for delay in (0.1, 0.9, 2.0):
        told = report(world.now - 600.0 - delay, monitor=monitor(snoozed_until=500.0))
        world.service.take_report(FLEET, "a", told, world.now)
        shown = world.service.history.latest(FLEET, "a").status.monitor
        times = (shown.snoozed_until, shown.episodes[0].began, shown.patterns[0].last)
        found.add(times)
    assert found == {(1100.0, 1500.0, 1560.0)}


def test_metrics_count_what_needs_a_person(site):
    token, other = site.enrol(FLEET, "a"), site.enrol(FLEET, "b")
    read = lambda: httpx.get(f"{site.url}/metrics").text  # noqa: E731
    assert "edgemerge_open_episodes 0.0" in read()
    send(site, token, monitor=monitor(drift=2.5, outside=7))
    httpx.post(
        f"{site.url}/fleets/{FLEET}/devices/b/report",
        content=json.dumps(said(1.0, monitor=monitor(ready=False, phase="commissioning"))),
        headers={"Authorization": f"Bearer {other}"},
    )
    post(site, decision="relearn")
    text = read()
    for line in (
        "edgemerge_open_episodes 2.0",
        "edgemerge_unreviewed_patterns 2.0",
        "edgemerge_drifting_devices 1.0",
        "edgemerge_stopped_devices 1.0",
        "edgemerge_highest_drift 2.5",
        "edgemerge_outside_samples 10.0",
        'edgemerge_monitor_states{state="ready"} 1.0',
        'edgemerge_monitor_states{state="commissioning"} 1.0',
        "edgemerge_reviews_waiting 1.0",
    ):
        assert line in text.splitlines()
    site.service.revoke(FLEET, "a", Caller("root"))
    assert "edgemerge_highest_drift 1.25" in read()


def test_a_report_that_is_too_large_keeps_the_newest_episodes():
    inputs = [["x" * 200, 1.0]] * 8
    episodes = [{"number": k, "began": 1.0, "ended": 2.0, "inputs": inputs} for k in range(256)]
    told = said(1.0, monitor=monitor(episodes=episodes), points=[{"at": 1.0, "score": 1.0}])
    data = encode_report(told)
    assert len(data) <= MAX_REPORT_BYTES
    kept = ReportRequest.model_validate_json(data).status.monitor
    assert kept.episodes[-1].number == 255
    assert 10 < len(kept.episodes) < 256
    assert len(kept.patterns) == 2
    assert len(told["status"]["monitor"]["episodes"]) == 256  # what was given is left as it is
