"""`edgemerge fleet episodes`: lists the episodes of a fleet, and follows their changes."""

import json
import signal
import subprocess
import sys
import time
from unittest.mock import Mock

import pytest

from edgemerge.cli import fleet as commands
from edgemerge.core.errors import UnavailableError
from edgemerge.exchange.client import ReportClient
from tests.cli.calls import clean_environment, failure
from tests.server.reporting import NAMED, monitor, said
from tests.waiting import DEADLINE_S, until

pytestmark = pytest.mark.slow
PUMP = "pump-1"


@pytest.fixture
def report(hub, fleet, tmp_path):
    """Report episodes as a device does."""
    hub.enrolled(fleet, PUMP, tmp_path / "token")
    token = (tmp_path / "token").read_text(encoding="utf-8").strip()
    client = ReportClient(hub.url, fleet, PUMP, token)

    def reporting(*episodes):
        client.send(said(time.time(), monitor=monitor(episodes=list(episodes))))
        until(lambda: len(hub.told("episodes", fleet)) >= len(episodes), "the episodes")

    yield reporting
    client.close()


def episode(number, began, ended=None, **changed):
    inputs = [["bearing_rms", 12.5], ["speed", 2.0]]
    base = {"number": number, "began": began, "ended": ended, "peak": 33.0, "samples": 60}
    return base | {"inputs": inputs, "pattern": "odd-1", **changed}


def test_episodes_are_listed_with_what_carried_them(hub, fleet, report):
    empty = hub.fleet("episodes", fleet)
    former = hub.fleet("alarms", fleet).stderr
    assert "alarms is now episodes; use episodes instead" in former
    assert "changed in that time" in empty.stderr
    assert "is open" in hub.fleet("episodes", fleet, "--open").stderr
    now = time.time()
    report(episode(1, now - 90.0, now - 48.0), episode(2, now - 9.0, **NAMED))
    shown = hub.fleet("episodes", fleet).stdout
    assert "33 times the usual" in shown
    assert "bearing_rms ×12.5, speed ×2" in shown
    assert "like bearing" in shown
    assert "42 s" in shown
    assert [each["number"] for each in hub.told("episodes", fleet, "--open")] == [2]
    assert hub.told("episodes", fleet, "--device", "pump-9") == []
    (first, _second) = hub.told("episodes", fleet, "--since", "1 hour")
    assert first["ended"].endswith("Z")
    assert first["acknowledged"] is None
    assert hub.told("episodes", fleet, "--since", "2222-02-02T02:00") == []
    hub.fleet("review", fleet, PUMP, "acknowledge", "--episode", 1, "--comment", "the seal")
    shown = hub.fleet("episodes", fleet).stdout
    assert "ended, acknowledged by admin" in shown
    assert "(the seal)" in shown


def test_a_time_that_is_none_is_refused(hub):
    for wrong in ("soon", "off"):
        refused = hub.fleet("episodes", "any", "--since", wrong)
        assert refused.exit_code == 2
        assert " hours" in refused.stderr


def test_an_unknown_fleet_is_said(hub):
    assert "no fleet nowhere" in failure(hub.fleet("episodes", "nowhere"))


def test_every_change_is_printed_once_until_the_signal(hub, fleet, report, tmp_path):
    follow(hub, fleet, report, tmp_path, [2, 1])


def test_following_begins_with_what_is_open(hub, fleet, report, tmp_path):
    follow(hub, fleet, report, tmp_path, [2], "--open")


def follow(hub, fleet, report, tmp_path, first, *wanted):
    now = time.time()
    report(episode(1, now - 90.0, now - 48.0), episode(2, now - 9.0))
    hub.fleet("review", fleet, PUMP, "acknowledge", "--episode", 1)
    words = ("fleet", "episodes", fleet, "--follow", "--json", "--interval-s", "0.2", *wanted)
    environment = clean_environment(EDGEMERGE_SERVER=hub.url, EDGEMERGE_TOKEN_FILE=str(hub.token))
    out = tmp_path / "out"
    with out.open("wb") as to:
        following = subprocess.Popen(
            [sys.executable, "-m", "edgemerge", *words],
            env=environment,
            stdout=to,
            stderr=subprocess.PIPE,
        )
    try:

        def lines():
            return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]

        until(lambda: len(lines()) >= len(first), "the first lines")
        assert [each["number"] for each in lines()] == first
        report(episode(1, now - 90.0, now - 48.0), episode(2, now - 9.0, now - 1.0))
        until(lambda: len(lines()) > len(first), "the end of an episode")
        hub.fleet("review", fleet, PUMP, "acknowledge", "--episode", 2)
        until(lambda: len(lines()) > len(first) + 1, "that it was acknowledged")
        report(*(episode(k, now - 90.0, now - 48.0) for k in (1, 3)))
        until(lambda: len(lines()) > len(first) + 2, "a new one")
        found = [(e["number"], e["ended"] is None, e["acknowledged"] is None) for e in lines()]
        assert found[len(first) :] == [(2, False, True), (2, False, False), (3, False, True)]
        following.send_signal(signal.SIGINT)
        _, said_last = following.communicate(timeout=DEADLINE_S)
        assert said_last.decode().strip() == "Stopped."
        assert following.returncode == 130
    finally:
        following.kill()
        following.wait()


def test_following_waits_longer_each_time_and_says_once_that_the_server_is_away(
    monkeypatch, capsys
):
    away = UnavailableError("no server answers")
    page = {"episodes": [], "next": 7.0, "more": False}
    client, waits = Mock(), []
    client.episodes.side_effect = [away, away, away, page, away, KeyboardInterrupt]
    monkeypatch.setattr(commands, "sleep", waits.append)
    with pytest.raises(KeyboardInterrupt):
        commands._follow(client, "pumps", 3.0, None, interval_s=4.0, as_json=False)
    asked = [call.kwargs["since"] for call in client.episodes.mock_calls]
    assert asked == [3.0, 3.0, 3.0, 3.0, 7.0, 7.0]
    assert waits[0] < 8.0 < waits[2] < 32.0
    assert waits[3] == 4.0  # it answered
    assert waits[4] < 8.0
    assert capsys.readouterr().err.count("The server cannot be reached") == 2
