"""The source on an MQTT topic, with a real broker."""

from threading import Event

import pytest

from edgemerge.agent.mqtt import MqttSource, agent_broker
from edgemerge.agent.rows import PayloadRows
from tests.agent.listening import Hearing, at_port, publish
from tests.services.ports import free_port
from tests.waiting import until


def heard(hearing, port, mark):
    """Publish a mark until it is heard, then leave it out."""
    while [mark, 0.0] not in hearing.found:
        publish(port, "in/a", f"{mark},0")
    hearing.found[:] = [row for row in hearing.found if row[1]]


@pytest.mark.slow
def test_readings_come_from_a_topic_and_again_after_the_broker_was_away(tmp_path):
    port = free_port()
    source = MqttSource(agent_broker(port=port, retry_s=(0.05, 0.1)), "in/#", PayloadRows(width=2))
    hearing = Hearing(source)
    try:
        for number in (1, 2):
            with at_port(tmp_path, port):
                heard(hearing, port, number)
                publish(port, "in/b", f"[{number}, 1]")
                publish(port, "in/c", f'{{"x": {number}, "y": 2}}')
                until(lambda: len([x for x in hearing.found if x[1]]) % 2 == 0, "rows")
                heard(hearing, port, -number)
        assert hearing.found == [[1, 1], [1, 2], [2, 1], [2, 2]]
    finally:
        hearing.close()


def test_messages_that_are_no_readings_are_skipped_and_old_ones_left_alone(mosquitto):
    publish(mosquitto, "in/old", "[8, 9]", "-r")
    source = MqttSource(agent_broker(port=mosquitto), "in/#", PayloadRows(width=2), longest=50)
    hearing = Hearing(source)
    try:
        heard(hearing, mosquitto, 1)
        for payload in ("[1, 2, 3]", "[1, 2" + " " * 100 + "]", "hello", "[1, 2"):
            publish(mosquitto, "in/b", payload)
        publish(mosquitto, "in/b", "3,4")
        until(lambda: [3, 4] in hearing.found, "the good one")
        assert [row for row in hearing.found if row[1]] == [[3, 4]]
        assert source.skipped == 4
    finally:
        hearing.close()


class Message:
    """What the library hands over, as far as it is looked at."""

    retain = False

    def __init__(self, payload):
        self.payload = payload


def test_when_too_many_messages_wait_the_oldest_is_dropped():
    source = MqttSource(agent_broker(port=free_port()), "in", PayloadRows(), room=3)
    for i in range(10):
        source._enqueue(Message(b"%d" % i))
    assert source.dropped == 7
    stop, found = Event(), []
    for reading in source.read(stop):
        found.append(reading.values.tolist())
        if len(found) == 3:
            stop.set()
    assert found == [[7.0], [8.0], [9.0]]
