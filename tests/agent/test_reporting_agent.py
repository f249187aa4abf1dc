"""Agents that report, in threads and processes: to a stand-in, to nobody, and to a real server."""

import os
import signal
import subprocess
import sys
from itertools import count
from pathlib import Path
from threading import Event
from threading import enumerate as threads
from time import monotonic

import pytest

from edgemerge import Contribution, Stats
from edgemerge.agent import runner, supervisor
from edgemerge.agent.control import send_command
from edgemerge.agent.reports import DeviceReporter
from edgemerge.agent.sources import Reading
from tests.agent.agents import Running, configured, ran, shared, stream, write_rows
from tests.services.hub import running as running_hub
from tests.services.ports import free_port
from tests.services.reports import dead, standing_in
from tests.waiting import DEADLINE_S, until

pytestmark = pytest.mark.slow

P = shared()
ROOT = Path(__file__).parents[2]
END_S = 3.0  # to stop an agent: a second for the last report, and what a busy machine takes
TAIL = ("source.kind=tail", "monitor.limit=30")


def reporting(folder, url, *settings):
    """The configuration of an agent whose exchange is a server."""
    (folder / "token").write_text("secret\n")
    where = ("exchange.kind=http", f"exchange.url={url}", "exchange.fleet=pumps")
    return configured(
        folder,
        *where,
        "exchange.token_file=token",
        "sync.every_s=0",
        "report.every_s=0.2",
        *settings,
    )


@pytest.fixture
def server():
    with standing_in() as found:
        yield found
    assert found.refused == []


def test_an_agent_tells_its_scores_alarms_and_that_it_leaves(server, tmp_path):
    rows = stream(200)
    rows[150, 4] += 0.8
    write_rows(tmp_path / "pump-1.csv", rows)
    names = 'projection.names=["a","b","c","d","e","f"]'
    columns = "source.columns=[0,1,2,3,4,5]"
    with Running(reporting(tmp_path, server.url, *TAIL, names, columns)) as agent:
        until(lambda: len(agent.listener.verdicts) == 200)
        until(lambda: server.reports and server.reports[-1].status.samples == 200)
        before = len(server.reports)
        until(lambda: len(server.reports) > before + 1)  # without a new sample
    assert server.asked[0] == ("/fleets/pumps/devices/pump-1/report", "Bearer secret")
    last = server.reports[-1]
    assert [report.leaving for report in server.reports[:-1]] == [False] * (len(server.reports) - 1)
    assert last.leaving
    assert (last.status.samples, last.status.learnt, last.status.alarms) == (200, 200.0, 1)
    alarm = agent.listener.verdicts[150]
    (found,) = server.alarms
    assert (found.sample, found.score) == (150, pytest.approx(alarm.score, rel=1e-5))
    assert [(each.input, each.factor) for each in found.why] == [
        (name, pytest.approx(factor, rel=1e-5)) for name, factor in alarm.carried
    ]
    assert len(alarm.carried) == 6  # there are no more inputs
    assert alarm.why == tuple(name for name, _factor in alarm.carried[:3])
    assert [factor for _name, factor in alarm.carried] == sorted(
        (factor for _name, factor in alarm.carried), reverse=True
    )
    assert agent.listener.verdicts[149].carried == ()
    assert len({point.at for point in server.points}) == len(server.points)
    assert [point.score for point in server.points if point.alarm] == [found.score]


@pytest.mark.parametrize("setting", ["report.every_s=0", "exchange.kind=folder"])
def test_who_shall_not_report_does_not(server, tmp_path, setting):
    write_rows(tmp_path / "pump-1.csv", stream(20))
    ran(reporting(tmp_path, server.url, setting))
    assert server.asked == []


def test_who_reports_needs_no_sink(server, tmp_path, caplog):
    write_rows(tmp_path / "pump-1.csv", stream(3))
    assert supervisor.run(reporting(tmp_path, server.url), stop=Event()) == 0
    assert "[[sinks]]" not in caplog.text
    assert server.reports[-1].leaving


HOSTILE = [
    *(b"<html>", b"[1]", b"[" * 4000, b" " * 10**6, b'{"every_s": NaN, "choice": "9"}'),
    *(b'{"every_s": -1, "choice": [1]}', b'{"every_s": 1e99, "choice": -3}', b'{"every_s": null}'),
]


@pytest.mark.parametrize("answer", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_answers_do_no_harm(server, tmp_path, answer):
    server.answer = answer
    write_rows(tmp_path / "pump-1.csv", stream(50))
    with Running(reporting(tmp_path, server.url, *TAIL)) as agent:
        until(lambda: server.asked)
        write_rows(tmp_path / "pump-1.csv", stream(50, 1), "a")
        until(lambda: len(agent.listener.verdicts) == 100)
        assert (
            send_command(agent_state(tmp_path), "status", DEADLINE_S)["exchange"] == "not asked yet"
        )
    assert agent.code == 0


def agent_state(folder):
    return folder / "state-pump-1"


def test_a_dead_server_slows_neither_scores_nor_the_end(tmp_path, monkeypatch):
    write_rows(tmp_path / "pump-1.csv", stream(1000))
    handed = []
    judged = DeviceReporter.verdict

    def timed(self, verdict):
        start = monotonic()
        judged(self, verdict)
        handed.append(monotonic() - start)

    monkeypatch.setattr(DeviceReporter, "verdict", timed)
    with dead() as url, Running(reporting(tmp_path, url, *TAIL, "save.every=10000")) as agent:
        until(lambda: len(agent.listener.verdicts) == 1000)
        until(lambda: any(each.name == "reporter" for each in threads()))
        start = monotonic()
        agent.stop.set()
        until(lambda: agent.code is not None)
        assert monotonic() - start < END_S
    assert agent.code == 0
    handed.sort()
    assert handed[len(handed) // 2] < 100e-6
    assert handed[-1] < 1.0  # it would be two seconds and more if it waited


def test_without_a_server_the_agent_says_so_once_and_goes_on(tmp_path, caplog):
    write_rows(tmp_path / "pump-1.csv", stream(50))
    url = f"http://127.0.0.1:{free_port()}"
    with Running(reporting(tmp_path, url, *TAIL)) as agent:
        until(lambda: "a report did not reach the server" in caplog.text)
        write_rows(tmp_path / "pump-1.csv", stream(50, 1), "a")
        until(lambda: len(agent.listener.verdicts) == 100)
    assert caplog.text.count("a report did not reach the server") == 1


def test_an_older_server_is_asked_once(server, tmp_path):
    server.status = 404
    write_rows(tmp_path / "pump-1.csv", stream(50))
    with Running(reporting(tmp_path, server.url, *TAIL)):
        until(lambda: server.asked)
        write_rows(tmp_path / "pump-1.csv", stream(50, 1), "a")
        send_command(agent_state(tmp_path), "save", DEADLINE_S)
    assert len(server.asked) == 1


@pytest.mark.slow
def test_an_endless_flood_reaches_the_server_in_few_points(server, tmp_path, monkeypatch):
    rows = stream(100)

    class Endless:
        def read(self, stop, _position=None):
            for i in count():
                if stop.is_set():
                    return
                yield Reading(rows[i % 100])

    monkeypatch.setattr(runner, "make_source", lambda *_: Endless())
    config = reporting(tmp_path, server.url, "save.every=100000")
    with Running(config) as agent:
        until(lambda: len(server.reports) >= 4 and len(agent.listener.verdicts) >= 500)
    slots = 10 * (server.points[-1].at - server.points[0].at) + 2
    assert len(server.points) <= slots + len(server.reports)  # a report may come within a slot
    highest = max(score for score in agent.listener.scores if score is not None)
    assert max(point.score for point in server.points) == pytest.approx(highest, rel=1e-5)


def test_a_real_server_shows_what_an_agent_reports_and_its_operator_is_followed(tmp_path):
    write_rows(tmp_path / "pump-1.csv", stream(50))
    with running_hub(str(tmp_path / "hub.db")) as hub:
        operator = hub.operator
        operator.create_fleet("pumps", P, least=1)
        operator.close()
        config = reporting(tmp_path, hub.url, *TAIL)
        (tmp_path / "token").write_text(hub.enrol("pumps", "pump-1"))
        for i, name in enumerate(("pump-2", "pump-3"), 1):
            peer = hub.exchange("pumps", name, P)
            peer.push(Contribution(name, Stats.of(P, stream(40, i)), 1))
            peer.close()

        def seen():
            return hub.service.history.latest("pumps", "pump-1")

        with Running(config) as agent:
            until(lambda: seen() and seen().status.samples == 50)
            assert max(point.score for point in seen().points) == pytest.approx(
                max(score for score in agent.listener.scores if score is not None), rel=1e-5
            )
            assert seen().merge is None
            actor = hub.service.caller(hub.token)
            hub.service.choices.adopt("pumps", ["pump-2"], ["pump-1"], actor)
            until(lambda: seen().merge)  # though sync.every_s is 0
            assert (seen().merge.samples, seen().merge.devices) == (40.0, 1)
            row = stream(1, 3)
            row[0, 4] += 5.0
            write_rows(tmp_path / "pump-1.csv", row, "a")
            until(lambda: seen().alarm)
            assert seen().alarm.why[0].input == "5"
            send_command(config.state, "undo", DEADLINE_S)
            until(lambda: seen().merge.samples == 0.0)
        until(lambda: seen().left)


def test_sigterm_ends_an_agent_whose_server_is_dead(tmp_path):
    write_rows(tmp_path / "pump-1.csv", stream(100))
    scores = tmp_path / "scores"
    with dead() as url:
        reporting(tmp_path, url)
        settings = [
            *TAIL, "exchange.kind=http", f"exchange.url={url}", "exchange.fleet=pumps",
            "exchange.token_file=token", "sync.every_s=0", "report.every_s=0.2",
        ]  # fmt: skip
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
        program = [sys.executable, str(ROOT / "tests/agent/agents.py")]
        given = [str(tmp_path / "pump-1.toml"), str(scores), *settings]
        with subprocess.Popen([*program, *given], env=environment) as process:
            until(lambda: scores.exists() and len(scores.read_text().splitlines()) == 100)
            start = monotonic()
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE_S) == 0
            assert monotonic() - start < END_S
