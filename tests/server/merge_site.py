"""A server with a few devices of two kinds, and an operator who is signed in."""

from contextlib import contextmanager
from functools import cache

import numpy as np

from edgemerge import Contribution, Projection, Stats, encode
from edgemerge.server.auth import Caller
from edgemerge.server.contributions import decode_and_check, put
from edgemerge.server.fleets import Fleet
from tests.cases import machine
from tests.server.signing_in import Operator
from tests.services.hub import running

SHARED = Projection(n_inputs=6, n_hidden=8, seed=7)
FLEET, MERGE = "pumps", "/ui/fleets/pumps/merge"
KINDS = {"a1": 0.5, "b1": 0.9, "a2": 0.5, "b2": 0.9, "a3": 0.5}
ROOT = Caller("root")


def create(here, fleet, **agreed):
    words = {"read_mode": "totals", "min_devices": 1, "growing_only": False} | agreed
    here.service.create(Fleet(fleet, encode(SHARED), epoch=0, created=0.0, **words), ROOT)


def push(here, device, place, *, fleet=FLEET, pattern="normal", rows=300):
    """Enrol a device, and keep what it saw."""
    service, agreed = here.service, here.service.fleet(fleet)
    token, _ = service.invite(fleet, device, 60.0, ROOT)
    caller = service.caller(service.enrol(token, fleet, device)[0])
    stats = stats_of(place, rows, len(device) + ord(device[-1]))
    note = Contribution(device, stats, 1, pattern)
    received = decode_and_check(encode(note), agreed, note.key)
    service.writer.write(lambda tx: put(tx, agreed, received, caller, service.clock()))


@cache
def stats_of(place, rows, seed):
    return Stats.of(SHARED, machine(place, rows, np.random.default_rng(seed)))


@contextmanager
def serving(folder):
    """Run a server; give it and an operator who is signed in."""
    with running(f"sqlite:///{folder / 'fleets.db'}") as found:
        operator = Operator(found)
        yield found, operator
        operator.close()


@contextmanager
def filled(here):
    """Have five devices of two kinds, and fleets of one and of none, until the block ends."""
    for fleet in (FLEET, "single", "empty"):
        create(here, fleet)
    for device, place in KINDS.items():
        push(here, device, place)
    push(here, "lonely", 0.1, fleet="single")
    yield
    for fleet, _ in here.service.fleets(ROOT):
        here.service.delete(fleet.name, ROOT)
