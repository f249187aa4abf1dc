"""An agent and a real server: the projection and the gate are the fleet's, outages pass."""

from statistics import median
from threading import Event

import pytest

from edgemerge import Contribution, Stats
from edgemerge.agent.config import read_config
from edgemerge.agent.control import send_command
from edgemerge.agent.factory import make_exchange
from edgemerge.agent.runner import fetch_projection
from edgemerge.agent.state import PROJECTION_FILE
from edgemerge.agent.supervisor import run_device
from edgemerge.core.errors import DeniedError, UnknownError
from edgemerge.core.ledger import Selection
from edgemerge.exchange.client import ServerClient
from edgemerge.exchange.http import HttpExchange
from edgemerge.exchange.masked_fleet import MaskedExchange
from tests.agent.agents import Running, enrolled, ran, shared, stream, write_rows
from tests.services.hub import running
from tests.waiting import DEADLINE_S, until

P = shared()
LEARN_ALL = ("monitor.learn=always", "monitor.votes=[1, 1]")


@pytest.fixture
def hub(tmp_path):
    with running(str(tmp_path / "hub.db")) as found:
        yield found


def joined(hub, folder, *settings, reads="totals", least=1):
    """The configuration of a device in a new fleet, which learns everything; 40 rows await it."""
    operator = hub.operator
    operator.create_fleet("pumps", P, reads=reads, least=least)
    operator.close()
    write_rows(folder / "rows.csv", stream(40))
    return enrolled(hub, folder, *LEARN_ALL, *settings)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reads", "settings", "held"),
    [
        ("totals", (), ["normal: 40 of 128 samples"]),
        ("contributions", (), ["normal: 40 of 128 samples"]),
        ("totals", ("sync.gate=2",), []),
    ],
)
def test_the_gate_is_16_whatever_the_fleet_lets_others_read(hub, tmp_path, reads, settings, held):
    config = joined(hub, tmp_path, *settings, reads=reads)
    peer = hub.exchange("pumps", "pump-2", P)
    peer.push(Contribution("pump-2", Stats.of(P, stream(50, 1)), 1))
    with Running(config) as agent:
        until(lambda: len(agent.listener.verdicts) == 40)
        found = send_command(config.state, "sync", DEADLINE_S)
        assert found["exchange"] == "ok"
        assert found["held_back"] == held
        assert found["told"] == "adopted 50 samples of 1 devices"
    there = peer.pull(Selection(receiver="pump-2")).total
    assert there == (Stats.empty(P) if held else Stats.of(P, stream(40)))
    peer.close()


@pytest.mark.slow
def test_agents_adopt_what_is_released_of_enough_devices_and_not_before(hub, tmp_path):
    config = joined(hub, tmp_path, least=3)
    peers = {name: hub.exchange("pumps", name, P) for name in ("pump-2", "pump-3", "pump-4")}
    for seed, (name, peer) in enumerate(peers.items(), 1):
        peer.push(Contribution(name, Stats.of(P, stream(50, seed)), 1))
    with Running(config) as agent:
        until(lambda: len(agent.listener.verdicts) == 40)
        found = send_command(config.state, "sync", DEADLINE_S)
        assert found["told"].startswith("nothing from others: none, or too few of them")
        fourth = hub.exchange("pumps", "pump-5", P)
        fourth.push(Contribution("pump-5", Stats.of(P, stream(50, 9)), 1))
        found = send_command(config.state, "sync", DEADLINE_S)
        assert found["told"] == "adopted 200 samples of 4 devices"
        peers["pump-2"].push(Contribution("pump-2", Stats.of(P, stream(60, 1)), 2))
        assert send_command(config.state, "sync", DEADLINE_S)["told"] == "nothing new"
        operator = hub.operator
        operator.drop("pumps", "pump-3")
        operator.close()
        found = send_command(config.state, "sync", DEADLINE_S)
        assert found["told"].startswith("what others had shared was withdrawn")
    for peer in (*peers.values(), fourth):
        peer.close()


@pytest.mark.slow
def test_the_server_shows_a_problem_with_the_data_while_it_lasts(hub, tmp_path):
    config = joined(hub, tmp_path, "quality.no_data_s=1", "report.every_s=0.05")
    operator, grown = hub.operator, 0

    def state():
        return operator.device("pumps", "pump-1")

    def grows():
        nonlocal grown
        grown += 1
        write_rows(tmp_path / "rows.csv", stream(1, grown), "a")

    with Running(config) as agent:
        until(lambda: len(agent.listener.verdicts) == 40)
        until(lambda: state()["state"] == "problem")
        (problem,) = state()["status"]["problems"]
        assert problem["name"] == "no data"
        assert "nothing is added to" in problem["words"]
        found = send_command(config.state, "status", DEADLINE_S)["problems"]
        assert [each["name"] for each in found] == ["no data"]
        until(lambda: grows() or state()["state"] == "online")
        assert state()["status"]["problems"] == []
        assert len(agent.listener.verdicts) >= 41  # detection went on
    operator.close()


@pytest.mark.slow
def test_it_starts_without_the_server_once_it_knows_the_projection(tmp_path):
    with running(str(tmp_path / "hub.db")) as hub:
        config = joined(hub, tmp_path, "source.kind=csv")
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


def test_an_agent_that_waits_for_its_first_projection_is_started_to_systemd(tmp_path, caplog):
    """Or systemd kills it after 90 s, and an outage of the server can last longer."""
    with running(str(tmp_path / "hub.db")) as hub:
        config = joined(hub, tmp_path)
    told = []
    ending = run_device(config, stop=StopsAtFirstWait(), on_state=told.append)
    assert ending.code == 0
    assert told == ["READY=1\nSTATUS=waiting for the projection of the fleet"]
    (waits,) = (each for each in caplog.records if "the agent waits" in each.message)
    assert waits.message.endswith("the agent waits: it has no projection yet")
    assert 1.0 <= waits.values["retry_s"] <= 2.0


def test_the_status_for_systemd_is_cleared_when_the_projection_has_come(tmp_path):
    with running(str(tmp_path / "hub.db")) as hub:
        config, told = joined(hub, tmp_path), []
        assert fetch_projection(make_exchange(config, None), Event(), told.append) == P
    assert told == ["STATUS="]


@pytest.mark.slow
def test_a_token_that_was_revoked_is_told_and_does_no_harm(hub, tmp_path):
    config = joined(hub, tmp_path)
    with Running(config) as agent:
        until(lambda: len(agent.listener.verdicts) == 40)
        operator = hub.operator
        operator.revoke("pumps", "pump-1")
        operator.close()
        assert send_command(config.state, "sync", DEADLINE_S)["exchange"].startswith("denied: ")
        write_rows(tmp_path / "rows.csv", stream(10, 1), "a")
        until(lambda: len(agent.listener.verdicts) == 50)


@pytest.mark.slow
def test_new_hardware_keeps_the_name_and_history_of_a_device_and_counts_each_sample_once(
    hub, tmp_path
):
    folders = [tmp_path / name for name in ("old", "new")]
    for folder in folders:
        folder.mkdir()
    every = ("sync.gate=0.01",)  # so that what comes after an early exchange is shared, too
    before = joined(hub, folders[0], *every)
    write_rows(folders[0] / "rows.csv", stream(300))
    operator, old_token = hub.operator, (folders[0] / "token").read_text()
    operator.change_settings("pumps", "pump-1", label="Pump of hall B")
    with Running(before) as agent:
        until(lambda: len(agent.listener.verdicts) == 300)
        assert send_command(before.state, "sync", DEADLINE_S)["exchange"] == "ok"
    (shared_before,) = operator.contributions("pumps")["contributions"]
    enrolled_at = operator.devices("pumps")[0]["enrolled"]

    invitation = operator.replace("pumps", "pump-1")["token"]
    token = ServerClient(hub.url, invitation).enrol("pumps", "pump-1")["token"]
    for name in ("agent.toml", "rows.csv"):
        (folders[1] / name).write_bytes((folders[0] / name).read_bytes())
    (folders[1] / "token").write_text(token)
    write_rows(folders[1] / "rows.csv", stream(200, 5))
    after = read_config(folders[1] / "agent.toml", environment={}, overrides=[*LEARN_ALL, *every])
    with Running(after) as agent:
        until(lambda: len(agent.listener.verdicts) == 200)
        found = send_command(after.state, "sync", DEADLINE_S)
        assert found["exchange"] == "ok"
        merged = found["preview"]  # what the old hardware saw
        assert (merged["devices"], merged["samples"]) == (1, 300.0)
    listed = operator.contributions("pumps")["contributions"]
    assert [each["samples"] for each in listed] == [300.0, 200.0]
    assert listed[0] == shared_before
    assert listed[1]["incarnation"] > shared_before["incarnation"]
    peer = hub.exchange("pumps", "pump-2", P)
    total = peer.pull(Selection(receiver="pump-2")).total
    peer.close()
    assert total == Stats.of(P, stream(300)) + Stats.of(P, stream(200, 5))  # each sample once

    (device, _) = operator.devices("pumps")
    assert (device["device"], device["samples"]) == ("pump-1", 500.0)
    assert device["enrolled"] > enrolled_at
    assert operator.settings("pumps", "pump-1")["label"] == "Pump of hall B"
    stale = HttpExchange(hub.url, "pumps", old_token, projection=P)
    with pytest.raises(DeniedError):
        stale.push(Contribution("pump-1", Stats.of(P, stream(301)), 9, "normal", 1))
    stale.close()
    actions = [each["action"] for each in operator.audit(limit=1000)["entries"]]
    assert [each for each in actions if each in ("enrol", "replace")][:3] == [
        "enrol",
        "replace",
        "enrol",
    ]
    with pytest.raises(UnknownError, match="nothing to replace: invite it"):
        operator.replace("pumps", "pump-9")
    operator.close()


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
    config = joined(hub, tmp_path, f"learner.kind={kind}")
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
        until(lambda: len(agent.listener.verdicts) == 200)
        merged = send_command(config.state, "sync", DEADLINE_S)["preview"]
        assert (merged["devices"], merged["samples"]) == (len(adopted), 200.0 * len(adopted))
        fault = {"command": "score", "rows": stream(20, 5, 0.4).tolist()}
        scores = send_command(config.state, fault, DEADLINE_S)["scores"]
    waits = [each["device"] for each in operator.waiting("pumps")]
    operator.close()
    assert ("pump-9" in waits) == ("pump-9" not in adopted)
    assert (median(scores) < 4.0) == ("pump-9" in adopted)  # else they are odd still


@pytest.mark.slow
def test_settings_reach_the_device_survive_its_restart_and_are_undone(hub, tmp_path):
    config = joined(hub, tmp_path, "monitor.limit=6.0", "report.every_s=0.1")
    operator = hub.operator

    def limit():
        return send_command(config.state, "status", DEADLINE_S)["monitor"]["limit"]["value"]

    def state(version):
        found = operator.settings("pumps", "pump-1")
        return found["state"] if found["version"] == version else "another version"

    with Running(config) as agent:
        until(lambda: len(agent.listener.verdicts) == 40)
        assert limit() == 6.0
        operator.change_settings("pumps", "pump-1", label="Pump of hall B", limit=5.0)
        until(lambda: state(1) == "applied")
        assert limit() == 5.0
        assert operator.device("pumps", "pump-1")["status"]["values"] is None
    write_rows(tmp_path / "rows.csv", stream(10, 1), "a")
    with Running(config) as again:
        until(lambda: len(again.listener.verdicts) == 10)
        assert limit() == 5.0  # though the file says 6
        operator.undo_settings("pumps", "pump-1", 1)
        until(lambda: state(2) == "applied")
        assert limit() == 6.0
    operator.close()


@pytest.mark.slow
def test_readings_leave_the_device_only_if_its_own_file_says_so(hub, tmp_path):
    units = 'source.units=["bar", "°C", "", "", "", ""]'
    columns = 'source.columns=["1", "2", "3", "4", "5", "6"]'
    config = joined(hub, tmp_path, "report.report_values=true", columns, units)
    operator = hub.operator

    def values():
        status = operator.device("pumps", "pump-1")["status"]
        return status and status["values"]

    with Running(config):
        until(lambda: values() and values()[0]["value"] is not None)
        found = values()
    operator.close()
    assert [each["unit"] for each in found] == ["bar", "°C", "", "", "", ""]
    last = stream(40)[-1]
    assert [each["value"] for each in found] == pytest.approx(last, rel=1e-5)


@pytest.mark.slow
def test_in_a_masked_fleet_it_adds_up_with_others_and_the_server_reads_nothing(hub, tmp_path):
    masked = ("exchange.privacy=masked", "sync.gate=2")
    config = joined(hub, tmp_path, *masked, reads="masked")
    peers = {
        name: MaskedExchange(
            hub.url, "pumps", hub.enrol("pumps", name), device=name, path=tmp_path / name
        )
        for name in ("pump-2", "pump-3")
    }
    with Running(config) as agent:
        until(lambda: len(agent.listener.verdicts) == 40)
        send_command(config.state, "sync", DEADLINE_S)  # registers its keys
        for name, peer in peers.items():
            peer.push(Contribution(name, Stats.of(P, stream(50, int(name[-1]))), 1))
            peer.take_part()
        operator = hub.operator
        operator.form_cohorts("pumps", least=3)
        said = []
        for _ in range(4):
            said.append(send_command(config.state, "sync", DEADLINE_S)["told"])
            for name, peer in peers.items():
                peer.pull(Selection(receiver=name))
        assert all(each.startswith("nothing from others") for each in said[:2])
        assert said[2:] == ["adopted 100 samples of 2 devices", "nothing new"]
        assert operator.contributions("pumps")["contributions"] == []
        operator.close()
    expected = Stats.of(P, stream(40)) + Stats.of(P, stream(50, 3))
    assert peers["pump-2"].pull(Selection(receiver="pump-2")).total == expected
    for peer in peers.values():
        peer.close()
