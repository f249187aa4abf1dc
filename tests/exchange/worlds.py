"""Devices that exchange in one of the ways: the same few questions can be put to each."""

import random as insecure
import socket
from contextlib import contextmanager
from itertools import count
from threading import Lock

from edgemerge import Projection
from edgemerge.exchange.folder import FolderExchange
from edgemerge.exchange.http import HttpExchange
from edgemerge.exchange.masked_fleet import MaskedExchange
from edgemerge.exchange.mqtt import MqttExchange
from edgemerge.exchange.peer import PeerExchange
from edgemerge.exchange.protocol import MemoryExchange

SHARED = Projection(n_inputs=6, n_hidden=8, seed=7, low=-1.0, high=2.0)
TOKEN = "a-token-that-peers-share"
SOON_S = 0.5
SETTLE_S = 0.01
_numbers = count()


class World:
    """Every device sees the exchange in its own way; by default all share one."""

    names_are_plain = False

    def __init__(self, place):
        self.place = place
        self.fleet = f"fleet-{next(_numbers)}"
        self._exchanges = {}

    def made(self, device):
        raise NotImplementedError

    def exchange(self, device):
        if device not in self._exchanges:
            self._exchanges[device] = self.made(device)
        return self._exchanges[device]

    def close(self):
        for exchange in self._exchanges.values():
            if hasattr(exchange, "close"):
                exchange.close()


class MemoryWorld(World):
    def __init__(self, place):
        super().__init__(place)
        self._one = MemoryExchange(SHARED)

    def made(self, _device):
        return self._one

    def away(self, _port):
        return None


class FolderWorld(World):
    def made(self, _device):
        return FolderExchange(self.place, SHARED)

    def away(self, _port):
        return FolderExchange(self.place / "not plugged in", SHARED)


class HttpWorld(World):
    names_are_plain = True

    def __init__(self, place):
        super().__init__(place)
        operator = place.operator
        operator.create_fleet(self.fleet, SHARED, reads="contributions")
        operator.close()

    def made(self, device):
        return self.place.exchange(self.fleet, device, SHARED)

    def away(self, port):
        url = f"http://127.0.0.1:{port}"
        return HttpExchange(url, "pumps", TOKEN, projection=SHARED, timeout_s=SOON_S)


class MqttWorld(World):
    def __init__(self, place, version):
        super().__init__(place)
        self.version = version

    def made(self, _device):
        return self._made(self.place, 10.0)

    def away(self, port):
        return self._made(port, SOON_S)

    def _made(self, port, timeout_s):
        return MqttExchange(
            "127.0.0.1",
            port,
            fleet=self.fleet,
            projection=SHARED,
            timeout_s=timeout_s,
            settle_s=SETTLE_S,
            version=self.version,
        )


class PeerWorld(World):
    def made(self, _device):
        others = list(self._exchanges.values())
        new = PeerExchange(SHARED, token=TOKEN, peers=[other.url for other in others])
        for other in others:
            other.meet(new.url)
        return new

    def away(self, port):
        new = PeerExchange(
            SHARED, token=TOKEN, peers=[f"http://127.0.0.1:{port}"], timeout_s=SOON_S
        )
        self._exchanges["away"] = new
        return new


DEVICES = [f"pump-{i}" for i in range(5)]


class Killed(BaseException):
    """What a failpoint raises in place of the end of its process."""


class MaskedWorld(World):
    """A masked fleet on a real server whose clock can be moved."""

    def __init__(self, hub, folder, *, shared=SHARED, noise=None, draw=None, **options):
        super().__init__(hub)
        self.folder, self.shared, self.options = folder, shared, {"least": 3, **options}
        self.place.operator.create_fleet(self.fleet, shared, reads="masked", **noise or {})
        self.tokens, self.draw = {}, draw

    def made(self, device):
        if device not in self.tokens:
            self.tokens[device] = self.place.enrol(self.fleet, device)
        return MaskedExchange(
            self.place.url,
            self.fleet,
            self.tokens[device],
            device=device,
            path=self.folder / f"{device}.masked",
            projection=self.shared,
            random=insecure.Random(device).randbytes,
            draw=self.draw,
        )

    def restarted(self, device):
        self._exchanges.pop(device).close()
        return self.exchange(device)

    def survive(self, device, act):
        """Do something with a device's exchange; if that kills it, start it again from its file."""
        try:
            act(self.exchange(device))
        except Killed:
            self.exchange(device)._lock = Lock()
            self.restarted(device)

    def form(self, devices=DEVICES, **more):
        for device in devices:
            self.exchange(device)._take_part()
        return self.place.operator.form_cohorts(self.fleet, **self.options | more)

    def share(self, contribution):
        """Push as the device, and let it send that; return whether it was new."""
        there = self.exchange(contribution.device)
        new = there.push(contribution)
        there.take_part()
        return new

    def turn(self, devices=DEVICES):
        """Let everybody do what is due: uploads, answers, results."""
        for _ in range(3):
            for device in devices:
                with self.exchange(device)._lock:
                    self.exchange(device)._take_part()


@contextmanager
def nobody():
    """A port that takes connections and never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        yield silent.getsockname()[1]
