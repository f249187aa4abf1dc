"""A ledger of what was sent and acknowledged, and what a server may therefore hold."""

from edgemerge import Contribution, Stats, decode, encode
from edgemerge.core.ledger import Merged, Origin
from edgemerge.exchange.connection import Connection, url_path
from edgemerge.server import audit
from edgemerge.server.db.migrations import connect

REMEMBERED = 40  # revisions of one key whose sums are kept; a pull under way may tell of old ones
ORPHANS = (
    "select count(*) from bodies where id not in (select body from contributions"
    " where body is not null union select counted from contributions where counted is not null)"
)


class Acknowledged:
    """One fleet: for each key the revisions of which one must be there; None is none at all."""

    def __init__(self, fleet, projection):
        self.fleet, self.projection = fleet, projection
        self.count = 0
        self._possible = {}
        self._sent = {}
        self._stats = {}

    def sending(self, note):
        """From now on it may be there."""
        self._possible.setdefault(note.key, {None}).add(note.revision)
        self._sent[Origin.of(note)] = encode(note)
        self._stats[Origin.of(note)] = note.stats
        self._stats.pop(Origin(*note.key, note.revision - REMEMBERED), None)
        if len(encode(note)) > 2**16:  # thousands of these do not fit into memory
            self._sent.pop(Origin(*note.key, note.revision - REMEMBERED), None)

    def kept(self, note):
        """From now on it must be there, or a later one."""
        self._possible[note.key] = {note.revision}
        self.count += 1

    def dropping(self, device):
        """From now on what the device sent may be gone."""
        for key in self._of(device):
            self._possible[key].add(None)

    def dropped(self, device):
        """From now on it must be gone."""
        for key in self._of(device):
            self._possible[key] = {None}
        self.count += 1

    def _of(self, device):
        return [key for key in self._possible if key[0] == device]

    def must_have_been_sent(self, told: Merged):
        """Whatever is told at any moment is the exact sum of what it says is in it."""
        parts = [self._stats[origin] for origin in told.origins]
        assert told.total == Stats.total(self.projection, parts), "a total that nobody sent"

    def must_hold(self, url, token):
        """Ask a server that nobody writes to; what it holds is then what must stay there."""
        asking = Connection(url, token)
        try:
            notes = self._stored(asking)
            for key, revisions in self._possible.items():
                held = notes[key].revision if key in notes else None
                assert held in revisions, f"{key} at {held}, expected {revisions}"
            expected = Stats.total(self.projection, (note.stats for note in notes.values()))
            origins = tuple(sorted(map(Origin.of, notes.values())))
            for grouping in ("total", "patterns"):
                told = self._get(asking, grouping)
                assert told.origins == origins, f"{grouping}: {told.origins}, expected {origins}"
                assert told.total == expected, f"{grouping} is not the sum of what is there"
        finally:
            asking.close()
        for key in self._possible:
            self._possible[key] = {notes[key].revision if key in notes else None}
        return notes

    def _stored(self, asking) -> dict[tuple, Contribution]:
        listed = asking.ask("GET", url_path("fleets", self.fleet, "contributions")).json()
        notes = {}
        for entry in listed["contributions"]:
            key = entry["device"], entry["incarnation"], entry["pattern"]
            data = asking.ask("GET", url_path("fleets", self.fleet, "contributions", *key)).body
            sent = self._sent.get(Origin(*key, entry["revision"]))
            assert data == sent, f"{key} at revision {entry['revision']} was never sent so"
            notes[key] = decode(data, Contribution, projection=self.projection)
        return notes

    def _get(self, asking, grouping) -> Merged:
        reply = asking.ask("GET", url_path("fleets", self.fleet, grouping)).must_be(200)
        return decode(reply.body, Merged, projection=self.projection)


def database_must_be_sound(url):
    """Open a database that no server uses: its check, the audit chain, and no body left over."""
    database = connect(url)
    try:
        with database.reading() as tx:
            assert tx.one(ORPHANS) == (0,), "bodies that nobody refers to"
            return audit.verify(tx)
    finally:
        database.close()
