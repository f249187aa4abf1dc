"""Devices that push, pull and drop as fast as they can, each in its own thread."""

from contextlib import contextmanager
from threading import Event, Thread

import numpy as np

from edgemerge import Contribution, Stats
from edgemerge.core.errors import UnavailableError, UnknownError
from edgemerge.core.ledger import Selection
from edgemerge.exchange.client import ServerClient
from edgemerge.exchange.http import HttpExchange
from tests.cases import machine

PATTERNS = ("idle", "busy")
TIMEOUT_S = 10.0
FAULTS_OF_OURS = ("status 500", "deadlock")


def enrolled(operator, fleet, device):
    """Let a device in; give its token."""
    invitation = ServerClient(operator._connection.url, operator.invite(fleet, device)["token"])
    token = invitation.enrol(fleet, device)["token"]
    invitation.close()
    return token


class Device:
    """Sees ever more samples of two patterns; `where` gives the server's address of the moment."""

    def __init__(self, name, token, ledger, where, *, seed=0, drops=0.03):
        self.name, self._token, self._ledger, self._where = name, token, ledger, where
        self._rng = np.random.default_rng([seed, *name.encode()])
        empty = Stats.empty(ledger.projection)
        self._notes = {p: Contribution(name, empty, 0, p) for p in PATTERNS}
        self._open = None
        self._drops = drops
        self.failures = 0

    def step(self):
        """Do one thing; that the server cannot be reached is no surprise, anything else is."""
        try:
            self._anything()
        except UnavailableError as error:
            if any(words in str(error) for words in FAULTS_OF_OURS):
                raise
            self.failures += 1
            self.close()
            return False
        return True

    def close(self):
        if self._open:
            self._open.close()
            self._open = None

    def share(self, pattern):
        """See some samples and give all that was seen, under the next revision."""
        note, shared = self._notes[pattern], self._ledger.projection
        rows = int(self._rng.integers(1, 4))
        place = 0.2 + 0.6 * PATTERNS.index(pattern)
        X = machine(place, rows, self._rng, shared.n_inputs)
        stats = note.stats + Stats.of(shared, X)
        self._notes[pattern] = Contribution(self.name, stats, note.revision + 1, pattern)
        return self._notes[pattern]

    def push(self, note):
        """Push; when this returns, it is acknowledged."""
        self._ledger.sending(note)
        self._exchange().push(note)
        self._ledger.kept(note)

    def _anything(self):
        chance, pattern = self._rng.random(), str(self._rng.choice(PATTERNS))
        if chance < self._drops:
            self._drop()
        elif chance < 0.3:
            wish, grouped = Selection(receiver=self.name), bool(self._rng.random() < 0.5)
            self._ledger.must_have_been_sent(self._exchange().pull(wish, grouped=grouped))
        else:
            again = self._rng.random() < 0.2 and self._notes[pattern].revision
            self.push(self._notes[pattern] if again else self.share(pattern))

    def _drop(self):
        hub = ServerClient(self._where(), self._token, timeout_s=TIMEOUT_S)
        self._ledger.dropping(self.name)
        try:
            hub.drop(self._ledger.fleet, self.name)
        except UnknownError:
            pass  # it had nothing there
        finally:
            hub.close()
        self._ledger.dropped(self.name)

    def _exchange(self):
        if self._open is None:
            ledger = self._ledger
            self._open = HttpExchange(
                self._where(),
                ledger.fleet,
                self._token,
                projection=ledger.projection,
                timeout_s=TIMEOUT_S,
            )
        return self._open


@contextmanager
def busy(devices):
    """Let all devices do one thing after the other while the block runs."""
    stop, wrong = Event(), []

    def work(device):
        try:
            while not stop.is_set():
                if not device.step():
                    stop.wait(0.005)
        except Exception as error:  # noqa: BLE001 - raised again in the thread of the test
            wrong.append(error)
        finally:
            device.close()

    threads = [Thread(target=work, args=(device,), daemon=True) for device in devices]
    for thread in threads:
        thread.start()
    try:
        yield wrong
    finally:
        stop.set()
        for thread in threads:
            thread.join(6 * TIMEOUT_S)
    assert not any(thread.is_alive() for thread in threads), "a device hangs"
    if wrong:
        raise wrong[0]
