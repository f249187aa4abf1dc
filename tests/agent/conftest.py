"""What tests of the agent share: configurations, and who talks to the broker."""

import pytest

from edgemerge.agent.config import read_config
from edgemerge.agent.mqtt import MqttSink, Topics, agent_broker
from tests.agent.configuring import HEAD, SHARED
from tests.agent.listening import Listener


@pytest.fixture
def configured(tmp_path):
    """Write a configuration and read it, with flags and an environment."""

    def read(text=SHARED, *overrides, environment=(), head=HEAD):
        path = tmp_path / "agent.toml"
        path.write_text(head + text, encoding="utf-8")
        return read_config(path, environment=dict(environment), overrides=overrides)

    return read


@pytest.fixture
def listening():
    """Start to listen to topics of the broker at a port."""
    started = []

    def listen(*args):
        started.append(Listener(*args))
        return started[-1]

    yield listen
    for each in started:
        each.close()


@pytest.fixture
def topics(tmp_path):
    """Topics that no other test uses."""
    return Topics("edgemerge", tmp_path.name, "pump-3")


@pytest.fixture
def sinking(tmp_path, topics):
    """Start a sink to the broker at a port."""
    started = []

    def sink(port, **options):
        at = agent_broker(port=port, retry_s=(0.05, 0.2))
        started.append(MqttSink(at, topics, tmp_path / "alarms", **options))
        return started[-1]

    yield sink
    for each in started:
        each.close()
