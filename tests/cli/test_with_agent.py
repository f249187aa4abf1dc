"""An agent that really runs, its server, and the commands that speak to it."""

import json
import subprocess
import threading

import numpy as np
import pytest

from edgemerge import Contribution, Stats
from edgemerge.exchange.http import HttpExchange
from tests.cli.calls import call, program
from tests.cli.hubs import FAST, IDLE, SHARED, Process, start
from tests.waiting import until

pytestmark = pytest.mark.slow

CONFIG = """
device = "pump-1"
state = "state"
[source]
kind = "stdin"
[learner]
kind = "detector"
[monitor]
learn = "always"
votes = [1, 1]
[exchange]
kind = "http"
url = "{url}"
fleet = "{fleet}"
token_file = "token"
[sync]
every_s = 0
gate = 2.0
max_shift = 1000.0
[[sinks]]
kind = "jsonl"
path = "verdicts"
"""


def fed(agent: Process, rows: np.ndarray) -> threading.Thread:
    """Feed samples to the agent, and leave its standard input open."""
    data = "".join(",".join(map(repr, row)) + "\n" for row in rows.tolist()).encode()

    def feed() -> None:
        agent.running.stdin.write(data)
        agent.running.stdin.flush()

    thread = threading.Thread(target=feed)
    thread.start()
    return thread


@pytest.mark.long
def test_an_agent_exchanges_on_command_and_takes_it_back(hub, fleet, tmp_path):
    hub.enrolled(fleet, "pump-1", tmp_path / "token")
    hub.enrolled(fleet, "pump-2", tmp_path / "token-2")
    token = (tmp_path / "token-2").read_text(encoding="utf-8").strip()
    exchange = HttpExchange(hub.url, fleet, token, projection=SHARED)
    exchange.push(Contribution("pump-2", Stats.of(SHARED, FAST), revision=1))
    exchange.close()
    config = tmp_path / "agent.toml"
    config.write_text(CONFIG.format(url=hub.url, fleet=fleet), encoding="utf-8")
    agent = start(tmp_path / "log", "agent", config, stdin=subprocess.PIPE)
    try:
        feeding = fed(agent, IDLE)
        verdicts = tmp_path / "verdicts"
        until(lambda: verdicts.exists() and verdicts.read_bytes().count(b"\n") >= 200, "verdicts")
        feeding.join()
        done = call("sync", config, "--json")
        assert done.exit_code == 0, done.output + agent.log.read_text(encoding="utf-8")
        told = json.loads(done.stdout)
        assert (told["pushed"], told["exchange"]) == (1, "ok")
        (mine,) = [
            note
            for note in hub.told("contributions", fleet)["contributions"]
            if note["device"] == "pump-1"
        ]
        assert mine["samples"] == 200.0
        shown = json.loads(call("show", tmp_path / "state", "--json").stdout)
        assert (shown["kind"], shown["device"]) == ("agent", "pump-1")
        assert (shown["judged"], shown["own_samples"], shown["others_samples"]) == (200, 200, 200)
        assert shown["told_by"] == ["pump-2"]
        assert shown["in_alarm"] == shown["alarms"]  # the old name
        undone = json.loads(call("sync", tmp_path / "state", "--undo-merge", "--json").stdout)
        assert undone == {"merge": undone["told"], "told": undone["merge"]}  # told: the old name
        undone = json.loads(call("show", tmp_path / "state", "--json").stdout)
        assert undone["others_samples"] == 0.0
        assert "in use by another agent" in program("agent", config).stderr
        assert agent.stop() == 0
        assert "Traceback" not in agent.log.read_text(encoding="utf-8")
    finally:
        agent.running.kill()
        agent.running.wait()
        agent.running.stdin.close()


def test_a_sync_that_does_not_work_is_a_failure_but_told(hub, fleet, tmp_path):
    hub.enrolled(fleet, "pump-1", tmp_path / "token")
    config = tmp_path / "agent.toml"
    config.write_text(CONFIG.format(url=hub.url, fleet=fleet), encoding="utf-8")
    agent = start(tmp_path / "log", "agent", config, stdin=subprocess.PIPE)
    try:
        until((tmp_path / "state" / "control").exists, "the agent")
        assert hub.fleet("revoke", fleet, "pump-1").exit_code == 0
        done = call("sync", config)
        assert done.exit_code == 3
        assert "exchange" in done.stdout
        assert done.stderr.startswith("Error: the exchange failed: denied")
        assert agent.stop() == 0
    finally:
        agent.running.kill()
        agent.running.wait()
        agent.running.stdin.close()
