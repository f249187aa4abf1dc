"""The MQTT sink, with a real broker and listeners that are not ours."""

import json
import signal
import socket
import subprocess
import sys
from time import monotonic
from types import SimpleNamespace

import pytest

from edgemerge.agent.config import Config, SinkConfig, SourceConfig
from edgemerge.agent.factory import make_sinks, make_source
from edgemerge.agent.mqtt import MqttSink, Topics, agent_broker
from edgemerge.agent.sinks import verdict_to_dict
from edgemerge.core.errors import SettingError
from edgemerge.core.projection import Projection
from tests.agent.listening import Hearing, at_port, publish, said
from tests.services.mosquitto import broker
from tests.services.ports import free_port
from tests.waiting import DEADLINE_S, until


def test_status_score_and_alarm_arrive(mosquitto, listening, sinking, topics):
    listener = listening(mosquitto, topics["#"])
    sink = sinking(mosquitto, scores_per_s=1000.0)
    assert listener.next("/status")[1] == {"state": "online"}
    sink.status({"samples": 5, "limit": float("inf")})
    assert listener.next("/status")[1] == {"samples": 5, "limit": None, "state": "online"}
    sink.verdict(said(0))
    assert [listener.next("/alarm")[1]["alarm"], listener.next("/score")[1]["index"]] == [False, 0]
    sink.verdict(said(1, alarm=True, score=9.0))
    alarm = listener.next("/alarm")[1]
    assert (alarm["index"], alarm["alarm"], alarm["why"]) == (1, True, ["x"])
    score = listener.next("/score")[1]
    assert "why" not in score
    assert all(not isinstance(value, dict | list) for value in score.values())
    sink.verdict(said(2, alarm=True))
    sink.verdict(said(3))
    assert listener.next("/alarm")[1]["index"] == 3  # not 2: nothing had changed
    sink.close()
    assert listener.next("/status")[1] == {"state": "offline"}
    late = listening(mosquitto, topics["+"])
    kept = [late.next() for _ in range(2)]
    assert all(retained for retained, _ in kept)
    assert {"state": "offline"} in [payload for _, payload in kept]


def test_of_many_scores_only_the_newest_is_told_now_and_then(mosquitto, listening, sinking, topics):
    now = [0.0]
    listener = listening(mosquitto, topics["#"])
    sink = sinking(mosquitto, scores_per_s=2.0, clock=lambda: now[0])
    listener.next("/status")
    sink.verdict(said(0))
    assert listener.next("/score")[1]["index"] == 0
    for index in range(1, 1000):
        sink.verdict(said(index))
    now[0] = 0.49
    sink.status({"mark": 1})
    assert listener.next("/status")[1]["mark"] == 1
    assert listener.on("/score") == []
    now[0] = 0.5
    assert listener.next("/score")[1]["index"] == 999
    now[0] = 1e9  # and an end to `close`


TO_KILL = """
import sys
from pathlib import Path
from threading import Event
from edgemerge.agent.mqtt import agent_broker
from edgemerge.agent.mqtt import Topics
from edgemerge.agent.mqtt import MqttSink
sink = MqttSink(agent_broker(port=int(sys.argv[1])), Topics("edgemerge", "killed", "pump-3"),
                Path(sys.argv[2]))
Event().wait(60)
"""


def test_the_broker_says_that_a_killed_device_is_offline(mosquitto, listening, tmp_path):
    listener = listening(mosquitto, "edgemerge/killed/#")
    command = [sys.executable, "-c", TO_KILL, str(mosquitto), str(tmp_path / "alarms")]
    victim = subprocess.Popen(command)
    try:
        assert listener.next("/status")[1] == {"state": "online"}
    finally:
        victim.send_signal(signal.SIGKILL)
        victim.wait(DEADLINE_S)
    assert listener.next("/status")[1] == {"state": "offline"}
    assert listening(mosquitto, "edgemerge/killed/#").next("/status")[0]  # retained


def test_home_assistant_is_told_and_told_again_when_it_starts(
    mosquitto, listening, sinking, topics
):
    listener = listening(mosquitto, "homeassistant/device/+/config")
    sink = sinking(mosquitto, discovered=True)
    told = listener.next()[1]
    assert list(told) == ["dev", "o", "cmps"]
    assert told["o"]["name"] == "edgemerge"
    assert {name: part["p"] for name, part in told["cmps"].items()} == {
        "score": "sensor",
        "alarm": "binary_sensor",
        "status": "sensor",
    }
    assert {part["state_topic"] for part in told["cmps"].values()} == {
        topics[name] for name in ("score", "alarm", "status")
    }
    assert len({part["unique_id"] for part in told["cmps"].values()}) == 3
    publish(mosquitto, "homeassistant/status", "online")
    assert listener.next()[1] == told
    assert sink.commands() == []


def test_names_that_home_assistant_does_not_take_stay_different():
    ids = {Topics("edgemerge", "a", device).id for device in ("x.y", "x_y", "x-y")}
    assert len(ids) == 3
    assert all(set(each) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-") for each in ids)


def test_commands_are_taken_but_not_nonsense_nor_retained_ones(mosquitto, sinking, caplog, topics):
    publish(mosquitto, topics["cmd"], "undo", "-r")
    sink = sinking(mosquitto)
    until(lambda: sink.connected, "connected")
    publish(mosquitto, topics["cmd"], "format c:")
    publish(mosquitto, topics["cmd"], "sync")
    publish(mosquitto, topics["cmd"], "save\n")
    until(lambda: len(sink._commands) == 2, "two commands")
    assert sink.commands() == ["sync", "save"]
    assert sink.commands() == []
    assert "format c:" in [r.values["command"] for r in caplog.records if "command" in r.message]


@pytest.mark.parametrize(
    ("words", "taken"),
    [
        ("relearn", "relearn"),
        ("accept-drift", "accept-drift"),
        ('{"command": "review", "pattern": "odd-1", "decision": "approve"}', dict),
        ('{"command": "snooze", "time": "2 hours"}', dict),
        ("review", None),
        ('{"command": "score", "rows": []}', None),
        ('{"command": ["sync"]}', None),
        ("[1]", None),
        ("[" * 4000, None),
    ],
)
def test_commands_with_arguments_are_json(sinking, words, taken, caplog):
    sink = sinking(free_port())
    sink._command(words)
    found = sink.commands()
    assert found == ([] if taken is None else [json.loads(words) if taken is dict else taken])
    refused = [r.values["command"] for r in caplog.records if "was rejected" in r.message]
    assert refused == ([words[:100]] if taken is None else [])


def test_a_score_that_is_not_known_is_not_published(mosquitto, listening, sinking, topics):
    listener = listening(mosquitto, topics["score"])
    sink = sinking(mosquitto, scores_per_s=1000.0)
    until(lambda: sink.connected, "connected")
    for index in range(3):
        sink.verdict(said(index, score=None))
    until(lambda: not sink.waiting, "the first alarm state was sent")
    sink.verdict(said(3, score=2.0))
    told = listener.next()[1]
    assert (told["index"], told["score"]) == (3, 2.0)
    assert (told["ready"], told["episode"]) == (True, None)


def test_only_so_many_commands_wait(sinking):
    sink = sinking(free_port())
    for _ in range(100):
        sink._on_message(SimpleNamespace(topic="cmd", payload=b"sync", retain=False))
    assert sink.commands() == ["sync"] * 16


def test_alarms_wait_for_the_broker_and_come_in_order(tmp_path, listening, sinking, topics):
    port = free_port()
    sink = sinking(port)
    for index in range(30):
        sink.verdict(said(index, alarm=index % 3 == 0))
    sink.close()
    changes = [index for index in range(30) if index % 3 != 2]
    with at_port(tmp_path, port):
        listener = listening(port, topics["+"])
        publish(port, topics["mark"], "0", "-r")
        listener.next("/mark")  # so that it hears everything from now on
        sink = sinking(port)  # after a restart
        assert [listener.next("/alarm")[1]["index"] for _ in changes] == changes
        until(lambda: sink.waiting == 0, "all sent")
    assert (tmp_path / "alarms").read_bytes() == b""


@pytest.mark.slow
def test_alarms_go_on_after_the_broker_was_away(tmp_path, listening, sinking, topics):
    port = free_port()
    with at_port(tmp_path, port):
        sink = sinking(port)
        sink.verdict(said(0, alarm=True))
        until(lambda: sink.waiting == 0, "sent")
    until(lambda: not sink.connected, "noticed that it is gone")
    sink.verdict(said(1))
    sink.verdict(said(2, alarm=True))
    sink.verdict(said(3))
    assert sink.waiting == 3
    with at_port(tmp_path, port) as own:
        until(lambda: sink.waiting == 0, "sent")
        assert listening(port, topics["alarm"]).next() == (True, verdict_to_dict(said(3)))
    log = (tmp_path / f"{own}.log").read_text(errors="replace").splitlines()
    told = [line for line in log if "Received PUBLISH" in line and "/alarm'" in line]
    assert len(told) == 3


@pytest.mark.slow
def test_a_dead_broker_holds_nobody_up_and_fills_no_memory(sinking):
    sink = sinking(free_port())
    start = monotonic()
    for index in range(20_000):
        sink.verdict(said(index, alarm=index % 10 == 0))
        sink.status({"index": index})
    assert monotonic() - start < 15.0
    assert sink.waiting == 1000
    start = monotonic()
    sink.close()
    assert monotonic() - start < 4.0


def test_a_broker_that_never_answers_holds_nobody_up(sinking):
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        sink = sinking(deaf.getsockname()[1])
        sink.verdict(said(0, alarm=True))
        start = monotonic()
        sink.close()
        assert monotonic() - start < 4.0
        assert not sink.connected
        assert sink.waiting == 1


def test_a_missing_password_file_is_refused_at_once(tmp_path):
    at = agent_broker(username="a", password_file=tmp_path / "gone")
    with pytest.raises(SettingError, match=r"the password in .*gone: No such file"):
        MqttSink(at, Topics("a", "b", "c"), tmp_path / "alarms")


@pytest.mark.slow
@pytest.mark.parametrize(("password", "let_in"), [("right", True), ("wrong", False)])
def test_a_password_is_read_from_its_file(tmp_path, password, let_in, caplog):
    caplog.set_level("INFO")
    users = tmp_path / "users"
    make = ["mosquitto_passwd", "-b", "-c", str(users), "pump", "right"]
    subprocess.run(make, check=True, timeout=DEADLINE_S, capture_output=True)
    users.chmod(0o644)
    (tmp_path / "password").write_text(f"{password}\n")
    with broker(tmp_path, "allow_anonymous false", f"password_file {users}") as port:
        at = agent_broker(
            port=port,
            username="pump",
            password_file=tmp_path / "password",
            retry_s=(0.05, 0.1),
        )
        sink = MqttSink(at, Topics("a", "b", "c"), tmp_path / "alarms")
        try:
            if let_in:
                until(lambda: sink.connected, "connected")
            else:
                until(lambda: "the broker denied access" in caplog.text, "refused")
                assert not sink.connected
        finally:
            sink.close()
    assert all(password not in str(vars(record)) for record in caplog.records)


def test_mqtt_parts_are_built_from_the_configuration(mosquitto, listening, tmp_path):
    shared = Projection(n_inputs=2)
    config = Config(
        "pump-9",
        tmp_path / "state",
        shared,
        source=SourceConfig(kind="mqtt", port=mosquitto, topic="built/in"),
        sinks=(SinkConfig(kind="mqtt", port=mosquitto, site="built"),),
    )
    listener = listening(mosquitto, "edgemerge/built/#")
    (sink,) = make_sinks(config)
    hearing = Hearing(make_source(config))
    try:
        assert listener.next("/status")[1] == {"state": "online"}
        sink.verdict(said(0))
        assert listener.next("/alarm")[1]["index"] == 0
        while not hearing.found:
            publish(mosquitto, "built/in", "1,2")
    finally:
        hearing.close()
        sink.close()
    assert (tmp_path / "state" / "alarms-0.jsonl").exists()
