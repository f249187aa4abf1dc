"""Kill -9 of servers while devices push, pull and drop: nothing acknowledged is lost or doubled.

EDGEMERGE_KILLS=500 makes it a long run.
"""

import os
import time
from itertools import cycle

import numpy as np
import pytest

from edgemerge import Projection
from tests.faults.acknowledged import Acknowledged, database_must_be_sound
from tests.faults.devices import Device, busy, enrolled
from tests.faults.process import Nest, Server

KILLS = int(os.environ.get("EDGEMERGE_KILLS", "14"))
SEED = int(os.environ.get("EDGEMERGE_SEED", "0"))
SMALL = Projection(n_inputs=6, n_hidden=4)
LARGE = Projection(n_inputs=561, n_hidden=128)  # 640 kB: a write of many pages can be torn
PLACES = (  # each is passed within some hundred steps of the devices
    "server-before-commit",
    "server-after-commit",
    "server-in-put",
    "server-before-audit",
    "server-in-fold",
    "server-in-place",
    "server-in-drop",
)
RARE = ("server-in-place", "server-in-drop")
REACHED_S = 60.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def nest(tmp_path):
    nest = Nest(tmp_path)
    yield nest
    nest.close()
    assert "damaged" not in nest.log.read_text(), "sums that were mended had been wrong"


class Scene:
    """Servers on one database, devices in two fleets, and what was acknowledged to them."""

    def __init__(self, nest, database, servers):
        self.rng = np.random.default_rng(SEED)
        self.servers = [Server(nest, database, f"server-{i}") for i in range(servers)]
        for server in self.servers:
            server.start()
        self.ledgers = [Acknowledged("small", SMALL), Acknowledged("large", LARGE)]
        self.devices = [self._device(0, f"pump-{i}") for i in range(4)]
        self.devices += [self._device(1, f"fan-{i}") for i in range(2)]

    def _device(self, number, name):
        ledger, operator = self.ledgers[number], self.servers[0].operator
        operator.create_fleet(ledger.fleet, ledger.projection, reads="contributions")
        token = enrolled(operator, ledger.fleet, name)
        operator.close()
        return Device(name, token, ledger, self._any_server, seed=SEED)

    def _any_server(self):
        return self.servers[time.monotonic_ns() % len(self.servers)].url

    def kill(self, server, place):
        """Kill a server amid everything, at a random moment or where it passes a place."""
        with busy(self.devices) as wrong:
            if place is None:
                time.sleep(self.rng.uniform(0.0, 0.4))  # the moment is the test's, not a wait
                server.kill()
            else:
                times = 2 if place in RARE else 9
                server.arm(f"{place}:{self.rng.integers(1, times)}")
                end = time.monotonic() + REACHED_S
                while not (server.is_gone(0.1) or wrong):
                    if time.monotonic() > end:
                        assert len(self.servers) > 1, f"{place} was passed within {REACHED_S} s"
                        server.kill()  # another server has passed it instead

    def check(self):
        for ledger in self.ledgers:
            for server in self.servers:
                ledger.must_hold(server.url, server.token)

    def close(self):
        for server in self.servers:
            server.close()

    @property
    def acknowledged(self):
        return sum(ledger.count for ledger in self.ledgers)


def places():
    """A random moment after each place, and so on."""
    return cycle(place for name in PLACES for place in (name, None))


def report(kills, scene, database):
    """One line that scripts/faults.py counts."""
    told = f"{kills} kills of the server on {database}, {scene.acknowledged} acknowledged writes"
    print(f"\n{told}, 0 lost")  # noqa: T201 - for who runs it with -s


@pytest.mark.long
def test_a_killed_server_has_lost_and_doubled_nothing(nest, tmp_path):
    database = str(tmp_path / "fleets.db")
    scene = Scene(nest, database, servers=1)
    try:
        for _, place in zip(range(KILLS), places(), strict=False):
            scene.kill(scene.servers[0], place)
            database_must_be_sound(database)
            scene.servers[0].start()
            scene.check()
    finally:
        scene.close()
    assert scene.acknowledged > 3 * KILLS, "the devices were busy"
    report(KILLS, scene, "SQLite")


@pytest.mark.long
def test_of_two_servers_on_one_database_either_may_be_killed(nest, fresh_postgres_url):
    kills = max(KILLS // 4, 6)
    scene = Scene(nest, fresh_postgres_url, servers=2)
    try:
        for _, place in zip(range(kills), places(), strict=False):
            victim = scene.servers[scene.rng.integers(2)]
            scene.kill(victim, place)
            victim.start()
            scene.check()
    finally:
        scene.close()
    database_must_be_sound(fresh_postgres_url)
    assert scene.acknowledged > 3 * kills, "the devices were busy"
    report(kills, scene, "PostgreSQL")
