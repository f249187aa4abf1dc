"""A full disk under the server: it says so, goes on telling, loses nothing, and gets well again."""

import shutil
from contextlib import closing

import numpy as np
import pytest

from edgemerge import Contribution, Projection, Stats, decode
from edgemerge.core.errors import UnavailableError
from edgemerge.exchange.connection import Connection
from edgemerge.exchange.http import HttpExchange
from tests.cases import machine
from tests.faults.acknowledged import Acknowledged, database_must_be_sound
from tests.faults.devices import enrolled
from tests.faults.process import Nest, Server
from tests.services.disk import MIB, fill, small_disk
from tests.waiting import until

LARGE = Projection(n_inputs=561, n_hidden=128)  # 640 kB
SIZE = 40 * MIB
MOST = 200  # pushes that a disk of this size cannot take

pytestmark = pytest.mark.slow


@pytest.fixture
def disk(tmp_path):
    with small_disk(tmp_path / "disk", SIZE) as folder:
        yield folder


@pytest.fixture
def server(disk, tmp_path):
    with closing(Nest(tmp_path)) as nest, closing(Server(nest, str(disk / "fleets.db"))) as server:
        server.start()
        yield server


class Pumps:
    """Devices that push large contributions, one after the other."""

    def __init__(self, server):
        self._server = server
        self.ledger = Acknowledged("pumps", LARGE)
        operator = server.operator
        operator.create_fleet("pumps", LARGE, reads="contributions")
        self._tokens = {f"pump-{i}": enrolled(operator, "pumps", f"pump-{i}") for i in range(8)}
        operator.close()
        self._revision = 0

    def push(self, device, pattern):
        """Push a new contribution; raises what the server answers."""
        self._revision += 1
        X = machine(0.5, 3, np.random.default_rng(self._revision), LARGE.n_inputs)
        note = Contribution(device, Stats.of(LARGE, X), self._revision, pattern)
        exchange = HttpExchange(self._server.url, "pumps", self._tokens[device], projection=LARGE)
        self.ledger.sending(note)
        try:
            exchange.push(note)
        finally:
            exchange.close()
        self.ledger.kept(note)

    def drop(self, device):
        """Let the operator drop a device, which must work at any time."""
        operator = self._server.operator
        self.ledger.dropping(device)
        assert operator.drop("pumps", device) > 0
        self.ledger.dropped(device)
        operator.close()

    def fill(self):
        """Push until the server says that there is no room; give its words."""
        for _ in range(MOST):
            try:
                self.push(f"pump-{self._revision % 8}", f"pattern-{self._revision // 8}")
            except UnavailableError as error:
                return str(error)
        raise AssertionError("the disk is never full")


def fill_up(folder):
    """Let another program take all that is left."""
    fill(folder)
    assert shutil.disk_usage(folder).free == 0


def answers(server, path, refusal, token=None):
    """Whether a server answers, or else refuses with this status and no other."""
    asking = Connection(server.url, token)
    try:
        return asking.ask("GET", path).status == 200
    except UnavailableError as error:
        assert f"status {refusal}" in str(error)  # noqa: PT017 - any other would be wrong
        return False
    finally:
        asking.close()


def ready(server):
    return answers(server, "/readyz", 503)


def has_grouped(server):
    """What was dropped gives room in the log of the database once nobody reads there any more."""
    return answers(server, "/fleets/pumps/patterns", 507, server.token)


def test_a_full_disk_is_said_and_survived(server, disk):
    pumps = Pumps(server)
    assert ready(server)
    words = pumps.fill()
    assert "status 507" in words
    assert "free some space" in words
    fill_up(disk)
    assert "status 507" in pumps.fill()
    assert not ready(server)

    asking = Connection(server.url, server.token)  # reading goes on
    notes = pumps.ledger._stored(asking)
    told = decode(asking.ask("GET", "/fleets/pumps/total").body, projection=LARGE)
    asking.close()
    assert told.total == Stats.total(LARGE, (note.stats for note in notes.values()))

    pumps.drop("pump-0")
    until(lambda: ready(server), "the server is ready again")
    pumps.push("pump-1", "pattern-0")
    (disk / "ballast").unlink()
    for i in range(2, 6):
        pumps.drop(f"pump-{i}")
    until(lambda: has_grouped(server), "there is room for grouping, which writes sums")
    pumps.ledger.must_hold(server.url, server.token)

    server.kill()
    database_must_be_sound(server.database)
    server.start()
    pumps.ledger.must_hold(server.url, server.token)


def test_a_server_killed_on_a_full_disk_starts_again_and_can_drop(server, disk):
    pumps = Pumps(server)
    pumps.fill()
    fill_up(disk)
    server.kill()
    server.start()
    pumps.drop("pump-0")
    pumps.push("pump-1", "pattern-0")
    (disk / "ballast").unlink()
    for i in range(2, 6):
        pumps.drop(f"pump-{i}")
    until(lambda: has_grouped(server), "there is room for grouping, which writes sums")
    pumps.ledger.must_hold(server.url, server.token)
