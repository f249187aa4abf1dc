"""A server inside the test, without sockets: opened, asked and closed many times in a second."""

import asyncio
from contextlib import contextmanager

import httpx
import numpy as np

from edgemerge import Contribution, Projection, Stats, decode, encode
from edgemerge.server.auth import new_token
from edgemerge.server.db.migrations import connect
from edgemerge.server.main import create_app
from edgemerge.server.service import Service
from tests.cases import machine

FLEET = "pumps"
SHARED = Projection(n_inputs=6, n_hidden=4)
OPERATOR = new_token("operator")
PLACES = {"idle": 0.2, "busy": 0.8}


class Local:
    """Asks an app; errors of ours are answers, as over a real connection."""

    def __init__(self, runner, service, tokens):
        way = httpx.ASGITransport(create_app(service), raise_app_exceptions=False)
        self._client = httpx.AsyncClient(transport=way, base_url="http://here")
        self._runner, self.service, self.tokens = runner, service, tokens

    def ask(self, method, address, token=OPERATOR, **rest):
        headers = {"Authorization": f"Bearer {token}"}
        return self._runner.run(self._client.request(method, address, headers=headers, **rest))

    def make_fleet(self, **query):
        made = self.ask("PUT", f"/fleets/{FLEET}", content=encode(SHARED), params=query)
        assert made.status_code in (200, 201), made.text

    def enrol(self, device):
        asked = self.ask("POST", f"/fleets/{FLEET}/invitations", json={"device": device})
        invitation = asked.json()["token"]
        reply = self.ask("POST", f"/fleets/{FLEET}/devices", invitation, json={"device": device})
        assert reply.status_code == 201, reply.text
        self.tokens[device] = reply.json()["token"]

    def push(self, note):
        device, incarnation, pattern = note.key
        where = f"/fleets/{FLEET}/contributions/{device}/{incarnation}/{pattern}"
        return self.ask("PUT", where, self.tokens[device], content=encode(note))

    def get(self, key):
        device, incarnation, pattern = key
        return self.ask("GET", f"/fleets/{FLEET}/contributions/{device}/{incarnation}/{pattern}")

    def told(self, grouping="total"):
        return self.ask("GET", f"/fleets/{FLEET}/{grouping}")

    def drop(self, device):
        return self.ask("DELETE", f"/fleets/{FLEET}/contributions/{device}")


@contextmanager
def opened(url, tokens=None, **options):
    """Open a server on a database until the block ends; `tokens` are those of its devices."""
    service = Service(connect(url), **options)
    try:
        service.accounts.accept_from_file(OPERATOR, "test")
        with asyncio.Runner() as runner:
            yield Local(runner, service, {} if tokens is None else tokens)
    finally:
        service.close()


def share(device, pattern, revision):
    """What a device has seen of a pattern by a revision: always the same."""
    rng = np.random.default_rng([revision, *device.encode(), *pattern.encode()])
    X = machine(PLACES[pattern], 3 + revision, rng)
    return Contribution(device, Stats.of(SHARED, X), revision, pattern)


def fill(local, devices=("pump-1", "pump-2", "pump-3")):
    """Let devices contribute: all is grouped, then some have newer ones; give the newest."""
    local.make_fleet(reads="contributions")
    newest = {}
    for revision in (1, 2):
        for device in devices[: len(devices) - revision + 1]:
            if device not in local.tokens:
                local.enrol(device)
            for pattern in PLACES:
                note = share(device, pattern, revision)
                assert local.push(note).status_code == 201
                newest[note.key] = note
        if revision == 1:
            assert local.told("patterns").status_code == 200  # brings the kept sums up to date
    return newest


def must_be_right(reply, newest):
    """A sum that was told is that of the newest, bit for bit."""
    assert reply.status_code == 200, reply.text
    told = decode(reply.content, projection=SHARED)
    assert told.total == Stats.total(SHARED, (note.stats for note in newest.values()))
    assert [origin.key for origin in told.origins] == sorted(newest)


def must_be_right_or_refused(reply, newest):
    """Never a wrong sum; what cannot be told is refused with words."""
    if reply.status_code == 200:
        must_be_right(reply, newest)
    else:
        assert reply.status_code == 500, reply.text
        assert "damaged" in reply.json()["error"]
