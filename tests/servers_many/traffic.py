"""Devices that push and pull through the balancer or at any server, and repeat what failed."""

from collections import Counter
from threading import Event, Lock, Thread

import numpy as np

from edgemerge import Contribution
from edgemerge.core.errors import DeniedError, UnavailableError
from edgemerge.core.ledger import Selection
from edgemerge.exchange.client import ServerClient
from edgemerge.exchange.http import HttpExchange
from tests.faults.devices import FAULTS_OF_OURS
from tests.servers_many.truth import PLACES, Truth, share

TIMEOUT_S = 50.0  # longer than a request is under way: what failed is over


def must_be_the_world(error: UnavailableError) -> None:
    """Servers die here, so nobody wonders when one cannot be reached; faults of ours are told."""
    if any(words in str(error) for words in FAULTS_OF_OURS):
        raise error


class Device:
    """Tells ever newer revisions; one that was not acknowledged is told again until it is."""

    def __init__(self, name: str, truth: Truth, balancer: str, patterns):
        self.name, self.truth, self.patterns = name, truth, tuple(patterns)
        self.lock = Lock()
        self.locked_out = False
        self.doubtful: dict[tuple, set[int]] = {}  # revisions that may still be on their way
        self._balancer = balancer
        self._pending: Contribution | None = None
        self._revisions = dict.fromkeys(self.patterns, 0)

    def enrol(self, operator: ServerClient) -> None:
        """Be let in; an earlier token works no more."""
        invitation = operator.invite(self.truth.fleet, self.name)["token"]
        hub = ServerClient(self._balancer, invitation, timeout_s=TIMEOUT_S)
        self._token = hub.enrol(self.truth.fleet, self.name)["token"]
        hub.close()
        self._exchange = self.exchange_at(self._balancer)
        self.locked_out = False

    def exchange_at(self, url: str) -> HttpExchange:
        fleet, shared = self.truth.fleet, self.truth.projection
        return HttpExchange(url, fleet, self._token, projection=shared, timeout_s=TIMEOUT_S)

    def push(self, pattern: str) -> None:
        """Tell the next revision, or again what was not acknowledged."""
        note = self._pending or self._next(pattern)
        self._pending = note
        self.truth.held.may(note.key, note.revision)
        try:
            self._exchange.push(note)
        except UnavailableError:
            self.doubtful.setdefault(note.key, set()).add(note.revision)
            raise
        self.truth.held.must(note.key, note.revision)
        self._pending = None

    def settle(self) -> None:
        """Tell everything once more, so that nothing is in doubt."""
        if self._pending is not None:
            self.push(self._pending.pattern)
        for pattern in self.patterns:
            self.push(pattern)

    def pull(self, url: str | None, *, grouped: bool) -> None:
        """Ask through the balancer, or one server itself, and judge what is told."""
        exchange = self.exchange_at(url) if url else self._exchange
        wish, mark = Selection(receiver=self.name), self.truth.mark()
        try:
            told = exchange.pull(wish, grouped=grouped)
            self.truth.must_allow(told, wish, mark, f"{url or 'the balancer'} to {self.name}")
        finally:
            if url:
                exchange.close()

    @property
    def keys(self) -> list[tuple]:
        return [(self.name, 0, pattern) for pattern in self.patterns]

    def _next(self, pattern: str):
        self._revisions[pattern] += 1
        return share(self.truth.projection, self.name, pattern, self._revisions[pattern])


class Crew:
    """Some devices in one thread, and an operator who looks; `urls` are those of the servers."""

    def __init__(self, devices: list[Device], urls: list[str], token: str, seed: int):
        self._devices, self._urls, self._token = devices, urls, token
        self._rng = np.random.default_rng(seed)
        self._looking: dict[tuple, HttpExchange] = {}
        self.counts: Counter[str] = Counter()

    def work(self, stop: Event) -> None:
        while not stop.is_set():
            device = self._devices[self._rng.integers(len(self._devices))]
            with device.lock:
                if not self.tried(lambda device=device: self._anything(device)):
                    stop.wait(0.02)

    def tried(self, step) -> bool:
        """Do something; False if it has to be tried again."""
        try:
            step()
        except UnavailableError as error:
            must_be_the_world(error)
            self.counts["retries"] += 1
            return False
        return True

    def _anything(self, device: Device) -> None:
        chance, pattern = self._rng.random(), str(self._rng.choice(device.patterns))
        if device.locked_out:
            self._must_be_denied(lambda: device.push(pattern))
            self._must_be_denied(lambda: device.pull(self._some_url(), grouped=False))
        elif chance < 0.7:
            device.push(pattern)
            self.counts["pushes"] += 1
            if chance < 0.1:
                self.look(device.truth, Selection(devices=(device.name,)))
        elif chance < 0.9:
            device.pull(self._some_url(), grouped=chance < 0.72)
            self.counts["pulls"] += 1
        else:
            self.look(device.truth, self._wish(device))

    def look(self, truth: Truth, wish: Selection) -> None:
        """Ask any server as an operator, and judge what is told."""
        url = str(self._rng.choice(self._urls))
        if (url, truth.fleet) not in self._looking:
            self._looking[url, truth.fleet] = HttpExchange(
                url, truth.fleet, self._token, projection=truth.projection, timeout_s=TIMEOUT_S
            )
        mark = truth.mark()
        grouped = bool(self._rng.random() < 0.04)
        told = self._looking[url, truth.fleet].pull(wish, grouped=grouped)
        truth.must_allow(told, wish, mark, url)
        self.counts["pulls"] += 1

    def _wish(self, device: Device) -> Selection:
        some = tuple({str(self._rng.choice(self._devices).name) for _ in range(3)})
        wishes = (
            Selection(),
            Selection(without=some),
            Selection(devices=(device.name, *some)),
            Selection(pattern=str(self._rng.choice(list(PLACES)))),
        )
        return wishes[self._rng.integers(len(wishes))]

    def _must_be_denied(self, step) -> None:
        try:
            step()
        except DeniedError:
            self.counts["denied"] += 1
            return
        raise AssertionError("a revoked device was accepted")

    def _some_url(self) -> str | None:
        return str(self._rng.choice(self._urls)) if self._rng.random() < 0.4 else None


class Together:
    """Runs things in threads of their own; what goes wrong in one ends all, and is raised."""

    def __init__(self):
        self.stop, self._wrong, self._threads = Event(), [], []

    def start(self, work) -> None:
        thread = Thread(target=self._guarded, args=(work,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def finish(self) -> None:
        self.stop.set()
        for thread in self._threads:
            thread.join(10 * TIMEOUT_S)
        assert not any(thread.is_alive() for thread in self._threads), "somebody hangs"
        if self._wrong:
            raise self._wrong[0]

    def _guarded(self, work) -> None:
        try:
            work(self.stop)
        except BaseException as error:  # noqa: BLE001 - raised again by `finish`
            self._wrong.append(error)
            self.stop.set()
