"""A service on a database, and beside it the plain dictionary that it must agree with."""

from typing import Any

import numpy as np

from edgemerge import Contribution, Projection, Stats, decode, encode
from edgemerge.core.ledger import Selection
from edgemerge.exchange.protocol import merge
from edgemerge.server.auth import Caller, new_token
from edgemerge.server.contributions import decode_and_check, put
from edgemerge.server.db.migrations import connect
from edgemerge.server.fleets import Fleet
from edgemerge.server.service import Service
from tests.cases import machine

SHARED = Projection(n_inputs=6, n_hidden=4, seed=7)
ROOT = Caller("root")
FLEET = "pumps"


def note(device, revision, rng, *, pattern="normal", incarnation=0, place=None, rows=30):
    """A contribution of samples of one of three modes."""
    where = rng.choice([0.1, 0.5, 0.9]) if place is None else place
    stats = Stats.of(SHARED, machine(where, rows, rng)) if rows else Stats.empty(SHARED)
    return Contribution(device, stats, revision, pattern, incarnation)


class World:
    """What was pushed, kept twice: in the service, and as it should be."""

    def __init__(self, url, **settings):
        self.url, self.now, self.rng = url, 1000.0, np.random.default_rng(0)
        self.app: Any = None  # of tests of pages, as are the next two
        self.people: dict[str, str] = {}
        self.walls: dict[str, str] = {}
        self.service = Service(connect(url), clock=lambda: self.now)
        self.operator_token = new_token("operator")
        self.service.accounts.accept_from_file(self.operator_token, "root")
        agreed = {"read_mode": "contributions", "min_devices": 1, "growing_only": False} | settings
        self.fleet = Fleet(FLEET, encode(SHARED), epoch=0, created=0.0, **agreed)
        self.service.create(self.fleet, ROOT)
        self.truth = {}
        self.tokens = {}

    def caller(self, device):
        """Let a device in, once."""
        if device not in self.tokens:
            token, _ = self.service.invite(FLEET, device, 60.0, ROOT)
            self.tokens[device] = self.service.enrol(token, FLEET, device)[0]
        return self.service.caller(self.tokens[device])

    def put(self, contribution):
        """Push as the device would; give the service's answer."""
        data, caller = encode(contribution), self.caller(contribution.device)
        received = decode_and_check(data, self.fleet, contribution.key)
        kept = self.service.writer.write(lambda tx: put(tx, self.fleet, received, caller, self.now))
        if kept.new:
            self.truth[contribution.key] = contribution
        return kept

    def drop(self, device):
        """Drop as an operator would."""
        self.truth = {key: c for key, c in self.truth.items() if key[0] != device}
        return self.service.drop(FLEET, device, ROOT)

    def told(self, selection=None, caller=ROOT, *, grouped=False):
        """Pull."""
        answer = self.service.pull(FLEET, selection or Selection(), caller, None, grouped=grouped)
        return decode(answer.data, projection=SHARED)

    def must_agree(self, selection, *, grouped=False):
        """Compare a pull with what the dictionary says, bit for bit."""
        wanted = selection(c for c in self.truth.values() if c.samples)
        told = self.told(selection, grouped=grouped)
        assert told.total == Stats.total(SHARED, (c.stats for c in wanted))
        assert [(*o.key, o.revision) for o in told.origins] == [
            (*c.key, c.revision) for c in wanted
        ]
        if grouped:  # each part is the sum of what it says is in it
            for part in told.parts:
                inside = [self.truth[origin.key].stats for origin in part.origins]
                assert part.stats == Stats.total(SHARED, inside)
        else:
            assert told == merge(wanted, SHARED, Selection())

    def restart(self):
        """Close and open again, as after a restart."""
        self.service.close()
        self.service = Service(connect(self.url), clock=lambda: self.now)

    def close(self):
        self.service.close()


def generator(seed):
    return np.random.default_rng(seed)
