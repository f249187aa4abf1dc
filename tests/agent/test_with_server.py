"""An agent and a real server: the projection and the gate are the fleet's, outages pass."""

from pathlib import Path

import pytest

from edgemerge import Contribution, Stats
from edgemerge.agent.config import read_config
from edgemerge.agent.control import send_command
from edgemerge.agent.state import PROJECTION_FILE
from edgemerge.core.ledger import Selection
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
