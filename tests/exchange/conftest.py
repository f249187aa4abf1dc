"""The ways of exchanging, each as a world in which devices meet."""

import pytest

from tests.exchange.worlds import FolderWorld, HttpWorld, MemoryWorld, MqttWorld, PeerWorld
from tests.services.hub import running

BROKER = [pytest.param(way, marks=pytest.mark.slow) for way in ("mqtt", "mqtt 3.1.1")]
WAYS = ["memory", "folder", "http", *BROKER, "peer"]


@pytest.fixture(scope="session")
def hub(tmp_path_factory):
    """A server that answers over a real socket, with an SQLite file of its own."""
    with running(f"sqlite:///{tmp_path_factory.mktemp('hub') / 'fleets.db'}") as server:
        yield server


@pytest.fixture
def http_exchange(hub):
    """A fleet of its own on a real server; `exchange(device)` enrols a device."""
    world = HttpWorld(hub)
    yield world
    world.close()


@pytest.fixture(params=WAYS)
def world(request, tmp_path):
    """Devices that exchange in one way; `exchange(device)` is how one of them sees it."""
    if request.param == "http":
        made = request.getfixturevalue("http_exchange")
    elif request.param.startswith("mqtt"):
        version = 4 if "3.1.1" in request.param else 5
        made = MqttWorld(request.getfixturevalue("mosquitto"), version)
    else:
        made = {"memory": MemoryWorld, "folder": FolderWorld, "peer": PeerWorld}[request.param](
            tmp_path
        )
    yield made
    made.close()
