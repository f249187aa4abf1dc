"""The commands by which an operator looks at a device's monitor and reviews it, with a server."""

import time

import pytest

from tests.cli.calls import failure
from tests.server.reporting import monitor, said
from tests.waiting import until

pytestmark = pytest.mark.slow
PUMP = "pump-1"


@pytest.fixture
def report(client):
    """Report as a device does."""

    def reporting(done=0, refused=(), **changed):
        reviews = {"done": done, "refused": [list(each) for each in refused]}
        return client.send(said(time.time(), monitor=monitor(**changed), reviews=reviews))

    return reporting


def test_patterns_and_episodes_are_listed(hub, fleet, report):
    assert "has not reported a monitor" in failure(hub.fleet("monitor", fleet, PUMP))
    assert report().monitor is True
    shown = hub.fleet("monitor", fleet, PUMP).stdout
    assert "drift              1.25 (1 is none)" in shown
    assert "4 (provisional, 604,000 samples missing)" in shown
    assert "bearing_rms ×12.5" in shown
    assert "open" in shown
    assert "worn bearing" in shown
    assert hub.told("monitor", fleet, PUMP)["status"]["monitor"]["outside"] == 3
    report(phase="commissioning", ready=False, episodes=[], patterns=[])
    shown = hub.fleet("monitor", fleet, PUMP).stdout
    assert "commissioning: 5000 of 256 samples" in shown
    assert "PATTERN" not in shown


def test_a_review_waits_and_is_done_or_refused(hub, fleet, client, report):
    report()
    made = hub.fleet("review", fleet, PUMP, "odd-1", "approve", "--comment", "a new speed")
    assert made.stdout == "Review 1 of pump-1: approve odd-1.\n"
    assert "acts when it next reports" in made.stderr
    hub.fleet("review", fleet, PUMP, "fault", "odd-2", "worn bearing")  # the former order
    (first, second) = client.desired().reviews
    assert (first["decision"], first["comment"]) == ("approve", "a new speed")
    assert (second["pattern"], second["name"]) == ("odd-2", "worn bearing")
    report(done=2, refused=[(2, "no pattern 'odd-2'")])
    until(lambda: hub.told("reviews", fleet, PUMP)[0]["state"] == "refused", "the report")
    shown = hub.fleet("reviews", fleet, PUMP).stdout
    assert "refused: no pattern 'odd-2'" in shown
    assert "a new speed" in shown
    assert client.desired().reviews == ()


def test_what_is_not_about_a_pattern(hub, fleet, client):
    assert "No reviews of pump-1 yet" in hub.fleet("reviews", fleet, PUMP).stderr
    made = hub.told("review", fleet, PUMP, "snooze", "--hours", 2)
    assert made["until"] > made["at"]
    moment = hub.told("review", fleet, PUMP, "snooze", "2222-02-02T02:00")
    assert moment["until"] == "2222-02-02T02:00:00Z"
    hub.fleet("review", fleet, PUMP, "snooze", "2 hours")
    hub.fleet("review", fleet, PUMP, "snooze", "off")
    hub.fleet("review", fleet, PUMP, "acknowledge", "--episode", 2)
    hub.fleet("review", fleet, PUMP, "snooze", "--hours", 0)
    hub.fleet("review", fleet, PUMP, "acknowledge")
    hub.fleet("review", fleet, PUMP, "accept-drift")
    hub.fleet("review", fleet, PUMP, "watch")
    assert "add --yes" in failure(hub.fleet("review", fleet, PUMP, "relearn"))
    hub.fleet("review", fleet, PUMP, "relearn", "--yes")
    reviews = client.desired().reviews
    ends = [each["until"] for each in reviews if each["decision"] == "snooze"]
    assert [end is None for end in ends] == [False, False, False, True, True]
    assert 0.0 <= ends[2] - ends[0] < 600.0  # --hours 2 and "2 hours" are the same
    found = [each["decision"] for each in reviews]
    assert found == [
        *["snooze"] * 4,
        *("acknowledge", "snooze", "acknowledge", "accept_drift", "watch", "relearn"),
    ]
    shown = hub.fleet("reviews", fleet, PUMP).stdout
    assert "acknowledge episode 2" in shown
    assert "snooze ended" in shown


@pytest.mark.usefixtures("client")
def test_mistakes_are_told(hub, fleet):
    wrong = lambda *words: hub.fleet("review", fleet, PUMP, *words)  # noqa: E731
    assert "expected one for approve" in wrong("approve").stderr
    assert "found a PATTERN for watch" in wrong("watch", "odd-1").stderr
    assert "a fault needs a NAME" in wrong("fault", "odd-1").stderr
    assert "found no TIME for snooze" in wrong("snooze").stderr
    assert "a TIME and --hours" in wrong("snooze", "off", "--hours", 2).stderr
    assert '"2 hours"' in wrong("snooze", "soon").stderr
    for words in (["odd-1"], ["odd-1", "odd-2"], ["odd-1", "fault", "worn", "bearing"]):
        assert "with a DECISION of approve, fault," in wrong(*words).stderr
    assert "expected it for snooze only" in wrong("watch", "--hours", 2).stderr
    assert "no device nobody" in failure(hub.fleet("review", fleet, "nobody", "watch"))
    assert hub.told("reviews", fleet, PUMP) == []
