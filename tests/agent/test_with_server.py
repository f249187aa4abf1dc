"""An agent and a real server: the projection and the gate are the fleet's, outages pass."""

from pathlib import Path
from statistics import median
from threading import Event

import pytest

from edgemerge import Contribution, Stats
from edgemerge.agent.config import read_config
from edgemerge.agent.control import send_command
from edgemerge.agent.runner import fetch_projection, make_exchange, run_device
from edgemerge.agent.state import PROJECTION_FILE
from edgemerge.core.ledger import Selection
from edgemerge.exchange.http import HttpExchange
from tests.agent.agents import Running, ran, shared, stream, wait_until, write_rows
from tests.services.hub import running

P = shared()
ASK_S = 30.0


@pytest.fixture
def hub(tmp_path):
    with running(str(tmp_path / "hub.db")) as found:
        yield found


def enrolled(hub, folder, *settings, reads="totals"):
    """The configuration of a device that knows nothing but its server."""
    operator = hub.operator
    operator.create_fleet("pumps", P, reads=reads)
    operator.close()
    (folder / "token").write_text(hub.enrol("pumps", "pump-1"))
    path = Path(folder / "agent.toml")
    path.write_text(
        f"""
        device = "pump-1"
        state = "state"
        [source]
        kind = "tail"
        path = "rows.csv"
        [learner]
        kind = "detector"
        [monitor]
        learn = "always"
        votes = [1, 1]
        [exchange]
        kind = "http"
        url = "{hub.url}"
        fleet = "pumps"
        token_file = "token"
        [sync]
        every_s = 0
        """
    )
    write_rows(folder / "rows.csv", stream(40))
    return read_config(path, environment={}, overrides=settings)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reads", "held"),
    [("totals", []), ("contributions", ["normal: 40 of 128 samples"])],
)
def test_the_gate_is_as_high_as_the_fleet_asks_for(hub, tmp_path, reads, held):
    config = enrolled(hub, tmp_path, reads=reads)
    peer = hub.exchange("pumps", "pump-2", P)
    peer.push(Contribution("pump-2", Stats.of(P, stream(50, 1)), 1))
    with Running(config) as agent:
        wait_until(lambda: len(agent.listener.verdicts) == 40)
        found = send_command(config.state, "sync", ASK_S)
        assert found["exchange"] == "ok"
        assert found["held_back"] == held
        assert found["told"] == "adopted 50 samples of 1 devices"
    there = peer.pull(Selection(receiver="pump-2")).total
    assert there == (Stats.empty(P) if held else Stats.of(P, stream(40)))
    peer.close()


@pytest.mark.slow
def test_the_server_shows_a_problem_with_the_data_while_it_lasts(hub, tmp_path):
    config = enrolled(hub, tmp_path, "quality.no_data_s=1", "report.every_s=0.05")
    operator, grown = hub.operator, 0

    def state():
        return operator.device("pumps", "pump-1")

    def grows():
        nonlocal grown
        grown += 1
        write_rows(tmp_path / "rows.csv", stream(1, grown), "a")

    with Running(config) as agent:
        wait_until(lambda: len(agent.listener.verdicts) == 40)
        wait_until(lambda: state()["state"] == "problem")
        (problem,) = state()["status"]["problems"]
        assert problem["name"] == "no data"
        assert "nothing is added to" in problem["words"]
        found = send_command(config.state, "status", ASK_S)["problems"]
        assert [each["name"] for each in found] == ["no data"]
        wait_until(lambda: grows() or state()["state"] == "online")
        assert state()["status"]["problems"] == []
        assert len(agent.listener.verdicts) >= 41  # detection went on
    operator.close()


@pytest.mark.slow
def test_it_starts_without_the_server_once_it_knows_the_projection(tmp_path):
    with running(str(tmp_path / "hub.db")) as hub:
        config = enrolled(hub, tmp_path, "source.kind=csv")
        ran(config)
    assert (config.state / PROJECTION_FILE).exists()
    write_rows(tmp_path / "rows.csv", stream(20, 1), "a")
    told = ran(config)
    assert len(told.verdicts) == 20
    (config.state / "agent.state").unlink()
    assert len(ran(config).verdicts) == 60


class StopsAtFirstWait(Event):
    def wait(self, timeout=None):
        del timeout
        self.set()
        return True


def test_an_agent_that_waits_for_its_first_projection_is_started_to_systemd(tmp_path):
    """Or systemd kills it after 90 s, and an outage of the server can last longer."""
    with running(str(tmp_path / "hub.db")) as hub:
        config = enrolled(hub, tmp_path)
    told = []
    ending = run_device(config, stop=StopsAtFirstWait(), tell=told.append)
    assert ending.code == 0
    assert told == ["READY=1\nSTATUS=waiting for the projection of the fleet"]


def test_the_status_for_systemd_is_cleared_when_the_projection_has_come(tmp_path):
    with running(str(tmp_path / "hub.db")) as hub:
        config, told = enrolled(hub, tmp_path), []
        assert fetch_projection(make_exchange(config, None), Event(), told.append) == P
    assert told == ["STATUS="]


@pytest.mark.slow
def test_a_token_that_was_revoked_is_told_and_does_no_harm(hub, tmp_path):
    config = enrolled(hub, tmp_path)
    with Running(config) as agent:
        wait_until(lambda: len(agent.listener.verdicts) == 40)
        operator = hub.operator
        operator.revoke("pumps", "pump-1")
        operator.close()
        assert send_command(config.state, "sync", ASK_S)["exchange"].startswith("denied: ")
        write_rows(tmp_path / "rows.csv", stream(10, 1), "a")
        wait_until(lambda: len(agent.listener.verdicts) == 50)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["detector", "bank"])
@pytest.mark.parametrize(
    ("trust", "adopted"),
    [
        ("members", ["pump-2", "pump-3", "pump-9"]),
        ("quorum:2", ["pump-2", "pump-3"]),
        ("person", ["pump-2", "pump-3"]),
    ],
)
def test_faults_sent_as_normal_are_adopted_by_members_and_not_under_quorum_or_person(
    hub, tmp_path, trust, adopted, kind
):
    config = enrolled(hub, tmp_path, f"learner.kind={kind}")
    write_rows(tmp_path / "rows.csv", stream(200))
    operator = hub.operator
    operator.set_trust("pumps", trust)
    for device, place in (("pump-2", 0.2), ("pump-3", 0.2), ("pump-9", 0.4)):
        peer = HttpExchange(hub.url, "pumps", hub.enrol("pumps", device), projection=P)
        peer.push(Contribution(device, Stats.of(P, stream(200, int(device[-1]), place)), 1))
        peer.close()
        if trust == "person" and place == 0.2:  # an operator knows what is normal
            operator.decide("pumps", (device, 0, "normal"), "approve", comment="walked by")
    with Running(config) as agent:
        wait_until(lambda: len(agent.listener.verdicts) == 200)
        merged = send_command(config.state, "sync", ASK_S)["preview"]
        assert (merged["devices"], merged["samples"]) == (len(adopted), 200.0 * len(adopted))
        fault = {"command": "score", "rows": stream(20, 5, 0.4).tolist()}
        scores = send_command(config.state, fault, ASK_S)["scores"]
    waits = [each["device"] for each in operator.waiting("pumps")]
    operator.close()
    assert ("pump-9" in waits) == ("pump-9" not in adopted)
    assert (median(scores) < 4.0) == ("pump-9" in adopted)  # else they are odd still


@pytest.mark.slow
def test_settings_reach_the_device_survive_its_restart_and_are_undone(hub, tmp_path):
    config = enrolled(hub, tmp_path, "monitor.limit=6.0", "report.every_s=0.1")
    operator = hub.operator

    def limit():
        return send_command(config.state, "status", ASK_S)["monitor"]["limit"]["value"]

    def state(version):
        found = operator.settings("pumps", "pump-1")
        return found["state"] if found["version"] == version else "another version"

    with Running(config) as agent:
        wait_until(lambda: len(agent.listener.verdicts) == 40)
        assert limit() == 6.0
        operator.change_settings("pumps", "pump-1", label="Pump of hall B", limit=5.0)
        wait_until(lambda: state(1) == "applied")
        assert limit() == 5.0
        assert operator.device("pumps", "pump-1")["status"]["values"] is None
    write_rows(tmp_path / "rows.csv", stream(10, 1), "a")
    with Running(config) as again:
        wait_until(lambda: len(again.listener.verdicts) == 10)
        assert limit() == 5.0  # though the file says 6
        operator.undo_settings("pumps", "pump-1", 1)
        wait_until(lambda: state(2) == "applied")
        assert limit() == 6.0
    operator.close()


@pytest.mark.slow
def test_readings_leave_the_device_only_if_its_own_file_says_so(hub, tmp_path):
    units = 'source.units=["bar", "°C", "", "", "", ""]'
    columns = 'source.columns=["1", "2", "3", "4", "5", "6"]'
    config = enrolled(hub, tmp_path, "report.report_values=true", columns, units)
    operator = hub.operator

    def values():
        status = operator.device("pumps", "pump-1")["status"]
        return status and status["values"]

    with Running(config):
        wait_until(lambda: values() and values()[0]["value"] is not None)
        found = values()
    operator.close()
    assert [each["unit"] for each in found] == ["bar", "°C", "", "", "", ""]
    last = stream(40)[-1]
    assert [each["value"] for each in found] == pytest.approx(last, rel=1e-5)
