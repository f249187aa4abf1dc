"""Kill -9 of server, keepers and devices amid masked epochs: no sample is lost or counted twice.

EDGEMERGE_KILLS=200 makes it a long run.
"""

import os
import signal
from contextlib import suppress
from itertools import cycle

import numpy as np
import pytest

from edgemerge import Contribution, Projection, Stats
from edgemerge.core.errors import UnavailableError
from edgemerge.core.ledger import Selection
from edgemerge.exchange.masked_fleet import MaskedExchange
from tests.faults.devices import enrolled
from tests.faults.process import Nest, Server

KILLS = int(os.environ.get("EDGEMERGE_KILLS", "8"))
SEED = int(os.environ.get("EDGEMERGE_SEED", "0"))
SHARED = Projection(n_inputs=6, n_hidden=4)
DEVICES = [f"pump-{i}" for i in range(5)]
OF_SERVER = (
    "server-before-commit",
    "server-after-commit",
    "server-after-upload",
    "server-in-epoch",
)
OF_DEVICE = tuple(f"masked-before-{what}" for what in ("upload", "signature", "answer", "settle"))
MAX_TURNS = 60  # in which an epoch must end, whatever is killed

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]


class Scene:
    """A server that is killed, and devices that start again from their files."""

    def __init__(self, nest, folder):
        self.folder, self.rng = folder, np.random.default_rng(SEED)
        self.server = Server(nest, f"sqlite:///{folder / 'fleets.db'}")
        self.server.start()
        operator = self.server.operator
        operator.create_fleet("pumps", SHARED, reads="masked")
        self.tokens = {device: enrolled(operator, "pumps", device) for device in DEVICES}
        self.exchanges = {}
        self.doomed = None  # the failpoint at which the next device dies
        self.kills = 0
        for device in DEVICES:
            self.exchange(device).pull(Selection(receiver=device))
        operator.form_cohorts("pumps", least=3)
        operator.close()

    def exchange(self, device):
        if device not in self.exchanges:
            self.exchanges[device] = MaskedExchange(
                self.server.url,
                "pumps",
                self.tokens[device],
                device=device,
                path=self.folder / f"{device}.masked",
                projection=SHARED,
            )
        return self.exchanges[device]

    def failpoint(self, name):
        if name == self.doomed:
            os.kill(os.getpid(), signal.SIGKILL)

    def act(self, device, what):
        """Let a device do something; whoever dies by it starts again."""
        if self.doomed is not None:
            return self.act_in_child(device, what)
        try:
            return what(self.exchange(device))
        except UnavailableError:
            if self.server.is_gone(1.0):
                self.kills += 1
                self.server.start()
            for name in list(self.exchanges):
                self.exchanges.pop(name).close()
        return None

    def act_in_child(self, device, what):
        """Let a device do something in a process of its own, which may be killed."""
        self.exchange(device).close()
        child = os.fork()
        if not child:
            with suppress(BaseException):
                what(self.exchange(device))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        self.exchanges.pop(device)  # the file has what became of it
        if os.WIFSIGNALED(status):
            assert os.WTERMSIG(status) == signal.SIGKILL
            self.doomed = None
            self.kills += 1
            return None
        return True

    def close(self):
        for exchange in self.exchanges.values():
            exchange.close()
        self.server.kill()
        self.server.close()


@pytest.fixture
def scene(tmp_path, monkeypatch):
    nest = Nest(tmp_path)
    made = Scene(nest, tmp_path)
    monkeypatch.setattr("edgemerge.exchange.masked_fleet.failpoint", made.failpoint)
    yield made
    made.close()
    nest.close()


def note(device, revision):
    rng = np.random.default_rng([DEVICES.index(device), revision])
    rows = rng.uniform(-1.0, 1.0, (5 + revision, SHARED.n_inputs))
    return Contribution(device, Stats.of(SHARED, rows), revision)


def test_whoever_is_killed_every_sample_counts_once(scene):
    places = cycle((*OF_SERVER, *OF_DEVICE))
    revision = 0
    while scene.kills < KILLS:
        revision += 1
        place, before = next(places), scene.kills
        if place in OF_SERVER:
            scene.server.arm(f"{place}:{scene.rng.integers(1, 4)}")
        else:
            scene.doomed = place
        for device in DEVICES:
            found = None
            while found is None:
                found = scene.act(device, lambda there, r=revision: share(there, r))
        for _ in range(MAX_TURNS):
            pulled = {
                device: scene.act(
                    device, lambda there: there.pull(Selection(receiver=there.device))
                )
                for device in scene.rng.permutation(DEVICES).tolist()
            }
            if all(is_whole(pulled[device], device, revision) for device in DEVICES):
                break
        else:
            pytest.fail(f"revision {revision} is not in the totals after {MAX_TURNS} turns")
        assert scene.kills > before or place in OF_SERVER  # a server may pass a place less often
    print(f"\n{scene.kills} kills amid masked epochs, 0 lost")  # noqa: T201 - scripts/faults.py counts it


def share(there, revision):
    """Push a revision, and send it; return that it was done."""
    there.push(note(there.device, revision))
    there.take_part()
    return True


def is_whole(pulled, device, revision):
    """Whether a pull has the newest of everybody else, exactly; anything else but less is wrong."""
    if pulled in (None, True) or not pulled.parts:
        return False
    return pulled.parts[0].stats == sum(note(e, revision).stats for e in DEVICES if e != device)
