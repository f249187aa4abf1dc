"""A bad network between devices and server: cut, delayed, throttled, doubled, out of order.

Law 8 over real connections: whatever the network does, every sample is counted once in the end.
"""

from threading import Lock

import numpy as np
import pytest

from edgemerge import Projection
from edgemerge.core.errors import StaleError, UnavailableError
from tests.faults.acknowledged import Acknowledged
from tests.faults.devices import Device, busy, enrolled
from tests.faults.proxy import FAULTS, Proxy
from tests.services.hub import running
from tests.waiting import until

FLEET = "pumps"
SHARED = Projection(n_inputs=6, n_hidden=4)
LARGE = Projection(n_inputs=200, n_hidden=32)  # 60 kB: cut in the midst of a body
RATE = 0.4  # of requests that something happens to

pytestmark = pytest.mark.slow


@pytest.fixture
def server(tmp_path, caplog):
    with running(str(tmp_path / "fleets.db")) as server:
        yield server
    assert "damaged" not in caplog.text, "sums that were mended had been wrong"


class Weather:
    """Which fault happens to which request, by chance; `calm` ends it."""

    def __init__(self, seed):
        self._rng, self._lock = np.random.default_rng(seed), Lock()
        self.calm = False
        self.only = None

    def __call__(self, _request):
        with self._lock:
            bad = not self.calm and (self.only or self._rng.random() < RATE)
            fault = self.only or str(self._rng.choice(FAULTS))
            return (fault if bad else ""), float(self._rng.random())


@pytest.fixture
def weather():
    return Weather(seed=7)


@pytest.fixture
def proxy(server, weather):
    host, port = server.url.removeprefix("http://").split(":")
    proxy = Proxy(host, int(port), weather)
    yield proxy
    proxy.close()


def fleet_of(server, shared):
    operator = server.operator
    operator.create_fleet(FLEET, shared, reads="contributions")
    operator.close()
    return Acknowledged(FLEET, shared)


def device(server, proxy, ledger, name, seed=0):
    operator = server.operator
    token = enrolled(operator, FLEET, name)
    operator.close()
    return Device(name, token, ledger, lambda: proxy.url, seed=seed, drops=0.0)


def repeated(push, note):
    """Push until it is acknowledged, as a device does that is told to try again."""

    def acknowledged():
        try:
            push(note)
        except UnavailableError:
            return False
        return True

    until(acknowledged, "a push gets through")


@pytest.mark.parametrize("shared", [SHARED, LARGE], ids=["small", "large"])
def test_all_converges_when_a_bad_network_gets_well(server, proxy, weather, shared):
    ledger = fleet_of(server, shared)
    devices = [device(server, proxy, ledger, f"pump-{i}") for i in range(4)]
    with busy(devices):
        until(lambda: min(proxy.done.values()) >= 5, "each fault happens five times", 60.0)
    weather.calm = True
    newest = {}
    for one in devices:
        for pattern in ("idle", "busy"):
            note = one.share(pattern)
            repeated(one.push, note)
            newest[note.key] = note
        one.close()
    proxy.deliver()
    notes = ledger.must_hold(server.url, server.token)
    assert notes == newest
    assert set(proxy.late_answers) <= {200, 201, 409}
    assert 409 in proxy.late_answers, "something arrived after a newer one"


@pytest.mark.parametrize("fault", [f for f in FAULTS if f not in ("delay", "throttle")])
def test_one_push_is_kept_once_whatever_happens_to_it(server, proxy, weather, fault):
    ledger = fleet_of(server, SHARED)
    one = device(server, proxy, ledger, "pump-1")
    weather.only = fault
    for pattern in ("idle", "busy"):
        try:
            one.push(one.share(pattern))
        except UnavailableError:
            one.close()
    weather.only, weather.calm = None, True
    for pattern in ("idle", "busy"):
        repeated(one.push, one._notes[pattern])
    one.close()
    proxy.deliver()
    notes = ledger.must_hold(server.url, server.token)
    assert {note.revision for note in notes.values()} == {1}
    assert proxy.done[fault] >= 2
    assert set(proxy.late_answers) <= {200}, "what comes again is known"


def test_one_that_comes_after_a_newer_one_is_refused_as_stale(server, proxy, weather):
    ledger = fleet_of(server, SHARED)
    one = device(server, proxy, ledger, "pump-1")
    old = one.share("idle")
    weather.only = "hold back"
    with pytest.raises(UnavailableError):
        one.push(old)
    one.close()
    weather.only, weather.calm = None, True
    new = one.share("idle")
    one.push(new)
    proxy.deliver()
    assert proxy.late_answers == [409]
    with pytest.raises(StaleError) as told:
        one.push(old)
    one.close()
    assert told.value.newest == new.revision
    ledger.kept(new)
    assert ledger.must_hold(server.url, server.token) == {new.key: new}


def test_what_a_cut_request_left_is_not_half_a_contribution(server, proxy, weather):
    ledger = fleet_of(server, LARGE)
    one = device(server, proxy, ledger, "pump-1")
    kept = one.share("idle")
    weather.calm = True
    one.push(kept)
    weather.calm, weather.only = False, "cut the request"
    for _ in range(20):
        with pytest.raises(UnavailableError):
            one.push(one.share("idle"))
        one.close()
    assert proxy.done["cut the request"] >= 20
    assert ledger.must_hold(server.url, server.token) == {kept.key: kept}
