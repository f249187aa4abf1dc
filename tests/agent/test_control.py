"""What must not stop an agent: askers that leave, numbers too large, a clock before 1970."""

import socket
from contextlib import ExitStack

import pytest

from edgemerge.agent.control import MAX_CLIENTS, send_command
from edgemerge.core.errors import SettingError, UnavailableError
from tests.agent.agents import Running, configured, ran, stream, write_rows
from tests.waiting import DEADLINE_S, until

pytestmark = pytest.mark.slow


@pytest.fixture
def agent(tmp_path):
    """An agent that follows a growing file, with 20 samples learnt."""
    write_rows(tmp_path / "pump-1.csv", stream(20))
    config = configured(tmp_path, "source.kind=tail", "sync.every_s=0")
    with Running(config) as agent:
        agent.state = config.state
        agent.samples = lambda: send_command(config.state, "status", DEADLINE_S)["samples"]
        until(lambda: len(agent.listener.verdicts) == 20)
        yield agent
    assert agent.code == 0


def _connected(state):
    there = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    there.settimeout(DEADLINE_S)

    def taken():
        try:
            there.connect(str(state / "control"))
        except BlockingIOError:  # too many are waiting
            return False
        return True

    until(taken)
    return there


def test_askers_that_leave_before_they_are_sent_away_do_not_end_the_conversation(agent):
    with ExitStack() as held:
        first = [held.enter_context(_connected(agent.state)) for _ in range(MAX_CLIENTS)]
        for there in first:  # once they are answered, all of them are being talked to
            there.sendall(b"no command\n")
            assert there.recv(1000)
        for _ in range(20):
            _connected(agent.state).close()
        with _connected(agent.state) as there:
            assert b"others are asking: try again" in there.recv(1000)
    until(lambda: _answers(agent))


def _answers(agent):
    try:
        return agent.samples() == 20
    except (UnavailableError, SettingError):  # those who left are still being let go
        return False


@pytest.mark.parametrize("number", [10**400, -(10**400)], ids=["large", "small"])
def test_a_number_that_no_float_can_hold_is_answered_with_words(agent, number):
    with pytest.raises(SettingError, match="too large"):
        send_command(agent.state, {"command": "score", "rows": [[number] * 6]}, DEADLINE_S)
    assert agent.samples() == 20


def test_no_command_holds_detection_up_for_long(agent):
    row = list(map(float, stream(1)[0]))
    found = send_command(agent.state, {"command": "score", "rows": [row] * 1000}, DEADLINE_S)
    assert len(found["scores"]) == 1000
    with pytest.raises(SettingError, match="found 1001 rows, expected 1000 at most: ask again"):
        send_command(agent.state, {"command": "score", "rows": [row] * 1001}, DEADLINE_S)


def test_who_connects_and_says_nothing_makes_way(agent, monkeypatch):
    monkeypatch.setattr("edgemerge.agent.control.IDLE_TIMEOUT_S", 0.2)
    with ExitStack() as silent:
        clients = [silent.enter_context(_connected(agent.state)) for _ in range(MAX_CLIENTS)]
        until(lambda: _answers(agent))
        assert [client.recv(1) for client in clients] == [b""] * MAX_CLIENTS  # disconnected


def test_a_clock_before_1970_gives_an_incarnation_that_can_be_shared(tmp_path):
    write_rows(tmp_path / "pump-1.csv", stream(60))
    config = configured(tmp_path, "sync.gate=2", "sync.at_end=true")
    told = ran(config, clock=lambda: -5.0)
    assert told.statuses[-1]["incarnation"] == 0
    assert [path.name for path in (tmp_path / "exchange").glob("[!.]*,*")] == [
        "pump-1,0,normal.safetensors"
    ]
