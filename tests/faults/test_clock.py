"""A clock that jumps: revisions decide what is newest, never the time; invitations go by it."""

from itertools import cycle

import pytest

from edgemerge.server import audit
from tests.faults.local import FLEET, fill, must_be_right, opened, share

JUMPS = (1_700_000_000.0, 0.0, 4e9, 1_700_000_001.0, -5.0, 1_600_000_000.0)


class Clock:
    """Tells what it was set to."""

    def __init__(self, now=1_700_000_000.0):
        self.now = now

    def __call__(self):
        return self.now


@pytest.fixture
def url(tmp_path):
    return str(tmp_path / "fleets.db")


@pytest.mark.slow
def test_revisions_decide_whatever_the_clock_says(url):
    jumping, steady = cycle(JUMPS), [True]
    tokens = {}
    with opened(url, tokens, clock=lambda: 5e9 if steady else next(jumping)) as local:
        newest = fill(local)  # invitations go by the clock
        steady.clear()
        for revision in (5, 3, 6, 4):  # late ones come at any time
            note = share("pump-1", "idle", revision)
            late = revision < newest[note.key].revision
            assert local.push(note).status_code == (409 if late else 201)
            newest[note.key] = newest[note.key] if late else note
            for grouping in ("total", "patterns"):
                must_be_right(local.told(grouping), newest)
        with local.service.database.reading() as tx:
            times = [entry.at for entry in audit.entries(tx, fleet=None, after=0, limit=1000)]
            assert times != sorted(times), "the clock did jump"
            assert audit.verify(tx) == len(times)
    with opened(url, tokens, clock=lambda: 0.0) as local:
        must_be_right(local.told(), newest)


@pytest.mark.slow
def test_a_fleet_made_again_while_the_clock_stands_still_tells_nothing_of_the_old(url):
    with opened(url, clock=Clock()) as local:
        must_be_right_after = fill(local, devices=("pump-1", "pump-2", "pump-3"))
        must_be_right(local.told(), must_be_right_after)
        assert local.ask("DELETE", f"/fleets/{FLEET}").status_code in (200, 204)
        local.tokens.clear()
        again = fill(local, devices=("fan-1", "fan-2", "fan-3"))
        must_be_right(local.told(), again)


@pytest.mark.parametrize(("then", "status"), [(59.0, 201), (61.0, 401), (-1e9, 201), (4e9, 401)])
def test_an_invitation_expires_by_the_clock_alone(url, then, status):
    clock = Clock()
    with opened(url, clock=clock) as local:
        local.make_fleet()
        asked = {"device": "pump-1", "valid_s": 60.0}
        token = local.ask("POST", f"/fleets/{FLEET}/invitations", json=asked).json()["token"]
        clock.now += then
        where, body = f"/fleets/{FLEET}/devices", {"device": "pump-1"}
        assert local.ask("POST", where, token, json=body).status_code == status
        clock.now -= then
        again = local.ask("POST", where, token, json=body).status_code
        assert again == (401 if status == 201 else 201), "it works once, within its time"
