"""An operator who drops, locks out, excludes, chooses and undoes while everything runs."""

import time
from collections import Counter
from itertools import cycle
from threading import Event

import numpy as np

from edgemerge.core.errors import UnavailableError, UnknownError
from edgemerge.exchange.client import ServerClient
from tests.servers_many.traffic import TIMEOUT_S, Device, must_be_the_world

PATIENCE_S = 120.0


class Operator:
    """Does one thing after the other through the balancer, each until it is acknowledged."""

    def __init__(self, url: str, token: str, devices: list[Device], seed: int):
        self.hub = ServerClient(url, token, timeout_s=TIMEOUT_S)
        self._devices = devices
        self._rng = np.random.default_rng(seed)
        self._undoing: list = []
        self.counts: Counter[str] = Counter()

    def work(self, stop: Event) -> None:
        acts = cycle((self.drop, self.lock_out, self.exclude, self.adopt))
        while not stop.wait(self._rng.uniform(0.05, 0.25)):
            if self._undoing and self._rng.random() < 0.5:
                self._undoing.pop(0)()
            else:
                next(acts)(self._any())

    def undo_all(self) -> None:
        """Let everybody in again, and leave no choice in force."""
        while self._undoing:
            self._undoing.pop(0)()

    def drop(self, device: Device) -> None:
        """Forget what a device told; what may still be on its way may come after that."""
        held = device.truth.held
        with device.lock:
            for key in device.keys:
                held.may(key, None)
            self.until_done(lambda: self._dropped(device))
            for key in device.keys:
                held.must(key, None, *device.doubtful.pop(key, ()))
        self.counts["drops"] += 1

    def lock_out(self, device: Device) -> None:
        with device.lock:
            if device.locked_out:
                return
            self.until_done(lambda: self.hub.revoke(device.truth.fleet, device.name))
            device.locked_out = True
        self._undoing.append(lambda: self._let_in(device))
        self.counts["revoked"] += 1

    def exclude(self, device: Device) -> None:
        """Let a contribution be told to nobody; it must be there, so one that is not is left."""
        key, truth = device.keys[0], device.truth
        if truth.withheld.now(key) != {False} or None in truth.held.now(key):
            return
        truth.withheld.may(key, True)
        with device.lock:
            made = self.until_done(lambda: self.hub.exclude(truth.fleet, *key))
        truth.withheld.must(key, True)
        self._undoing.append(lambda: self._undo(truth, made, truth.withheld, key, False))
        self.counts["choices"] += 1

    def adopt(self, device: Device) -> None:
        """Let a device be told of a few others only."""
        truth, name = device.truth, device.name
        if truth.sources.now(name) != {None}:
            return
        some = [each.name for each in self._devices if each.truth is truth]
        chosen = frozenset(str(one) for one in self._rng.choice(some, 5))
        truth.sources.may(name, chosen)
        made = self.until_done(lambda: self.hub.adopt(truth.fleet, sorted(chosen), [name]))
        truth.sources.must(name, chosen)
        self._undoing.append(lambda: self._undo(truth, made, truth.sources, name, None))
        self.counts["choices"] += 1

    def _undo(self, truth, made, possible, subject, before) -> None:
        possible.may(subject, before)
        self.until_done(lambda: self.hub.undo(truth.fleet, made["number"]))
        possible.must(subject, before)
        self.counts["undone"] += 1

    def _let_in(self, device: Device) -> None:
        with device.lock:
            self.until_done(lambda: device.enrol(self.hub))

    def _dropped(self, device: Device) -> None:
        try:
            self.hub.drop(device.truth.fleet, device.name)
        except UnknownError:
            return  # it had nothing there, or it was dropped and nobody could say so

    def until_done(self, act):
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                return act()
            except UnavailableError as error:
                must_be_the_world(error)
                if time.monotonic() > end:
                    raise
                self.counts["retries"] += 1
                time.sleep(0.05)

    def _any(self) -> Device:
        return self._devices[self._rng.integers(len(self._devices))]
