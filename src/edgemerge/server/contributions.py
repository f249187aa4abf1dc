"""Contributions in the database: checked on arrival, the newest of each key kept.

`body` is the newest, `counted` what the totals hold of this key, in their part `part`; where the
two differ the totals are behind. A dropped contribution has no body; its row goes once the totals
no longer hold it. Both have a digest, so that damage on disk is never added up. Profiles of stored
contributions are solved once and kept while there is room.

`load` is the largest sum of a contribution (see `Stats.load`) as a part of the fleet's capacity, up
to which sums are exact. The loads of all contributions add up to at least that of their total. So
below 1 the total is exact, and so is every selection: squares only grow, and it has fewer of them.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from threading import Lock
from typing import Any, NamedTuple

from edgemerge.core.errors import DeniedError, FormatError, RejectedError
from edgemerge.core.ledger import MAX_PATTERNS, Contribution, Key, Kind, Ledger, Origin
from edgemerge.core.projection import Projection
from edgemerge.core.similarity import Profile
from edgemerge.core.stats import Stats
from edgemerge.failpoints import failpoint
from edgemerge.server import audit, fleets
from edgemerge.server.auth import Caller
from edgemerge.server.db.base import Transaction, ValueDamagedError
from edgemerge.server.fleets import Fleet, must_be_pattern_name
from edgemerge.wire.admission import admit
from edgemerge.wire.codec import decode, decode_with_form

CONTRIBUTION_COLUMNS = (
    "device, incarnation, pattern, revision, samples, bytes, digest, form, received,"
    " body, counted, counted_digest, part, load, epoch"
)
WHERE_KEY = "fleet = ? and device = ? and incarnation = ? and pattern = ?"
IS_NOT_RELEASED = "not exists (select 1 from released where released.body = bodies.id)"
IS_UNCOUNTED = "(body is null or counted is null or body <> counted)"
MAX_PER_DEVICE = 256  # contributions of one device, over all its patterns and incarnations
PROFILES_BYTES = 256 * 2**20  # of solved profiles in memory
CAPACITY_WARNING = 0.1  # of the capacity: warn when less is left

log = logging.getLogger(__name__)


class TotalsDamagedError(ValueDamagedError):
    """The kept sums, or what they hold, are damaged: they can be summed up afresh."""


@dataclass(frozen=True)
class StoredContribution:
    """A row of the contributions table: everything but the numbers."""

    device: str
    incarnation: int
    pattern: str
    revision: int
    samples: float
    bytes: int
    digest: str
    form: str
    received: float
    body: int | None = None
    counted: int | None = None
    counted_digest: str | None = None
    part: int = 0
    load: float = 0.0
    epoch: int = 0

    @property
    def key(self) -> Key:
        """Device, incarnation and pattern."""
        return self.device, self.incarnation, self.pattern

    @property
    def content(self) -> str:
        """What `Ledger.check` compares: the digest of the bytes."""
        return self.digest

    @cached_property
    def identity(self) -> str:
        """Differs from that of any other contribution and of any other revision of this one."""
        return f"{self.device}/{self.incarnation}/{self.pattern}/{self.revision}/{self.digest}"

    @property
    def origin(self) -> Origin:
        """How it is named in a sum."""
        return Origin(*self.key, self.revision)


@dataclass(frozen=True)
class ReceivedContribution:
    """A contribution, the bytes in which it came, and their SHA-256."""

    contribution: Contribution
    data: bytes
    form: str
    digest: str

    @property
    def revision(self) -> int:
        """The revision of the contribution."""
        return self.contribution.revision

    @property
    def content(self) -> str:
        """What `Ledger.check` compares: the digest of the bytes."""
        return self.digest


def find_stored(tx: Transaction, fleet: str, key: Key) -> StoredContribution | None:
    """Return what is stored under a key; None if nothing is, or it was dropped."""
    where = f"{WHERE_KEY} and body is not null"
    row = tx.one(f"select {CONTRIBUTION_COLUMNS} from contributions where {where}", fleet, *key)
    return StoredContribution(*row) if row else None


def list_stored(tx: Transaction, fleet: str, device: str | None = None) -> list[StoredContribution]:
    """Return all, or those of one device, in the order of their keys."""
    only, values = ("", ()) if device is None else (" and device = ?", (device,))
    where = f"fleet = ? and body is not null{only}"
    sql = f"select {CONTRIBUTION_COLUMNS} from contributions where {where}"
    rows = tx.rows(sql, fleet, *values)
    return sorted((StoredContribution(*row) for row in rows), key=lambda stored: stored.key)


def current_contributions(
    contributions: Sequence[StoredContribution], device: str
) -> list[StoredContribution]:
    """Return the contributions of the incarnation in which a device pushed last.

    Others are pulled. The highest number is not always that: it is the time at which an incarnation
    began, by a clock that may have been wrong.
    """
    mine = [stored for stored in contributions if stored.device == device and stored.samples > 0]
    last = max(mine, key=lambda stored: (stored.epoch, stored.incarnation), default=None)
    return [stored for stored in mine if last and stored.incarnation == last.incarnation]


def list_uncounted(tx: Transaction, fleet: str, limit: int) -> list[StoredContribution]:
    """Return contributions that the totals do not hold as they are now, dropped ones first."""
    rows = tx.rows(
        f"select {CONTRIBUTION_COLUMNS} from contributions where fleet = ? and {IS_UNCOUNTED}"
        " order by case when body is null then 0 else 1 end limit ?",
        *(fleet, limit),
    )
    return [StoredContribution(*row) for row in rows]


def count_of_device(tx: Transaction, fleet: str, device: str) -> int:
    """Count the contributions of a device."""
    sql = "select count(*) from contributions where fleet = ? and device = ? and body is not null"
    row = tx.one(sql, fleet, device)
    return int(row[0]) if row else 0


def count_patterns(tx: Transaction, fleet: str, device: str, incarnation: int) -> int:
    """Count the patterns of one incarnation of a device that have samples."""
    row = tx.one(
        "select count(*) from contributions where fleet = ? and device = ? and incarnation = ?"
        " and body is not null and samples > 0",
        *(fleet, device, incarnation),
    )
    return int(row[0]) if row else 0


def capacity_used(tx: Transaction, fleet: str) -> float:
    """Return the part of a fleet's capacity that is used; 1 and more is above it."""
    row = tx.one("select coalesce(sum(load), 0) from contributions where fleet = ?", fleet)
    return float(row[0]) if row else 0.0


class CapacityUse(NamedTuple):
    """What is left of a fleet's capacity, which device uses most of it, and how much."""

    left: float
    device: str
    load: float

    @property
    def is_low(self) -> bool:
        """Whether it is time to start a new generation of counts."""
        return self.left < CAPACITY_WARNING


def capacity_use(tx: Transaction, fleet: str) -> CapacityUse:
    """Return how a fleet's capacity is used."""
    row = tx.one(
        "select device, sum(load) from contributions where fleet = ?"
        " group by device order by 2 desc, 1 limit 1",
        fleet,
    )
    device, load = row or ("", 0.0)
    return CapacityUse(1.0 - capacity_used(tx, fleet), device, float(load))


def store(
    tx: Transaction, fleet: str, received: ReceivedContribution, *, now: float, epoch: int
) -> None:
    """Store a contribution as the newest of its key."""
    new = received.contribution
    old = tx.one(f"select body, counted from contributions where {WHERE_KEY}", fleet, *new.key)
    if old and old[0] is not None and old[0] != old[1]:  # in no sum: it is not needed again
        tx.run(f"delete from bodies where id = ? and {IS_NOT_RELEASED}", old[0])
    made = tx.rows("insert into bodies (data) values (?) returning id", received.data)
    failpoint("server-in-put")
    tx.run(
        "insert into contributions (fleet, device, incarnation, pattern, revision, samples, bytes,"
        " digest, form, received, epoch, body, load, part)"
        " values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0)"
        " on conflict (fleet, device, incarnation, pattern) do update set"
        " revision = excluded.revision, samples = excluded.samples, bytes = excluded.bytes,"
        " digest = excluded.digest, form = excluded.form, received = excluded.received,"
        " epoch = excluded.epoch, body = excluded.body, load = excluded.load",
        *(fleet, *new.key, new.revision, new.stats.count, len(received.data), received.digest),
        *(received.form, now, epoch, made[0][0], new.stats.load),
    )


def drop_device(tx: Transaction, fleet: str, device: str, incarnation: int | None = None) -> int:
    """Drop the contributions of a device, of all or of one incarnation; return how many."""
    only, values = ("", ()) if incarnation is None else (" and incarnation = ?", (incarnation,))
    where = f"where fleet = ? and device = ?{only} and body is not null"
    of = (fleet, device, *values)
    uncounted = f"select body from contributions {where} and (counted is null or counted <> body)"
    tx.run(f"delete from bodies where id in ({uncounted}) and {IS_NOT_RELEASED}", *of)
    failpoint("server-in-drop")
    found = tx.run(f"update contributions set body = null, load = 0 {where}", *of)
    tx.run("delete from contributions where fleet = ? and body is null and counted is null", fleet)
    return found


def mark_counted(tx: Transaction, fleet: str, stored: StoredContribution, part: int) -> None:
    """Record that the totals now hold the newest of this key, in this part."""
    if stored.counted is not None and stored.counted != stored.body:
        tx.run(f"delete from bodies where id = ? and {IS_NOT_RELEASED}", stored.counted)
    if stored.body is None:
        tx.run(f"delete from contributions where {WHERE_KEY}", fleet, *stored.key)
    else:
        counted = "counted = ?, counted_digest = ?, part = ?"
        sql = f"update contributions set {counted} where {WHERE_KEY}"
        tx.run(sql, stored.body, stored.digest, part, fleet, *stored.key)


def read_bytes(tx: Transaction, stored: StoredContribution) -> bytes:
    """Return the bytes of a contribution, which must be those that came."""
    data = _read_body(tx, stored.body, stored.digest)
    if data is None:
        raise ValueDamagedError(
            f"the stored contribution of {stored.device}, {stored.pattern} is damaged: drop the "
            "device, or restore the database from a backup; its next push mends it too"
        )
    return data


def read_contribution(
    tx: Transaction, stored: StoredContribution, projection: Projection
) -> Contribution:
    """Return a contribution, which must agree with its row."""
    data = read_bytes(tx, stored)
    try:
        found = decode(data, Contribution, limit=len(data), projection=projection)
    except FormatError as error:
        raise ValueDamagedError(f"a stored contribution cannot be read: {error}") from error
    expected = (stored.key, stored.revision, stored.samples)
    if (found.key, found.revision, found.stats.count) != expected:
        raise ValueDamagedError(
            f"what is known of the contribution of {stored.device}, {stored.pattern} is damaged: "
            "drop the device, or restore the database from a backup"
        )
    return found


def read_stats(tx: Transaction, stored: StoredContribution, projection: Projection) -> Stats:
    """Return the sums of a contribution."""
    return read_contribution(tx, stored, projection).stats


def read_counted_stats(
    tx: Transaction, stored: StoredContribution, projection: Projection
) -> Stats:
    """Return the sums that the totals hold of this key."""
    data = _read_body(tx, stored.counted, stored.counted_digest)
    if data is None:
        raise TotalsDamagedError(f"what the kept sums hold of {stored.device} is damaged")
    return decode(data, Contribution, limit=len(data), projection=projection).stats


def _read_body(tx: Transaction, number: int | None, digest: str | None) -> bytes | None:
    row = tx.one("select data from bodies where id = ?", number)
    return bytes(row[0]) if row and sha256(row[0]).hexdigest() == digest else None


MAX_NOTED_CONTRADICTIONS = 100  # equivocations of one key that are written down
PROBLEMS = {"same": "", "stale": "stale", "contradicting": "equivocation"}  # by freshness


@dataclass(frozen=True)
class PutResult:
    """What became of a contribution: `problem` is empty, "stale" or "equivocation"."""

    new: bool
    revision: int
    epoch: int
    problem: str = ""


def decode_and_check(
    data: bytes, fleet: Fleet, key: Key, kind: Kind = "normal"
) -> ReceivedContribution:
    """Decode and check a contribution; needs no database, so any thread can do it."""
    limit, projection = fleet.max_contribution_bytes, fleet.projection
    found, form = decode_with_form(data, limit=limit, projection=projection)
    if not isinstance(found, Contribution):
        raise RejectedError(f"found {type(found).__name__}, expected a contribution: share() one")
    if found.key != key:
        raise RejectedError(f"found the contribution {found.key}, expected {key} by the address")
    must_be_pattern_name(found.pattern)
    admit(found, projection=projection, form=form, kind=kind)
    return ReceivedContribution(found, data, form, sha256(data).hexdigest())


def put(
    tx: Transaction, checked: Fleet, received: ReceivedContribution, caller: Caller, now: float
) -> PutResult:
    """Store a contribution unless it is stale, repeated or contradicts what is stored.

    Args:
        tx: The transaction to write in.
        checked: The fleet for which the contribution was checked.
        received: The contribution.
        caller: The device that sent it.
        now: The time to store, in Unix seconds.
    """
    name, new = checked.name, received.contribution
    fleet = lock_fleet(tx, checked, caller)
    known = find_stored(tx, name, new.key)
    freshness = Ledger.check(received, known)
    if freshness in ("newer", "same"):
        sql = "update devices set seen = ? where fleet = ? and device = ?"
        tx.run(sql, now, name, caller.name)
    if known is None or freshness == "newer":
        _must_be_admissible(tx, fleet, received, known)
        epoch = fleets.next_epoch(tx, name)
        store(tx, name, received, now=now, epoch=epoch)
        record_put(tx, "contribute", name, received, caller, now)
        return PutResult(new=True, revision=new.revision, epoch=epoch)
    if freshness == "stale":
        read_contribution(tx, known, fleet.projection)  # or it is damaged
    return refuse_put(tx, fleet, received, known, caller, now)


def refuse_put(
    tx: Transaction,
    fleet: Fleet,
    received: ReceivedContribution,
    known: StoredContribution,
    caller: Caller,
    now: float,
) -> PutResult:
    """Return what to answer to a contribution that is not newer; note one that contradicts."""
    problem = PROBLEMS[Ledger.check(received, known)]
    if problem == "equivocation":
        record_put(tx, problem, fleet.name, received, caller, now)
    return PutResult(new=False, revision=known.revision, epoch=fleet.epoch, problem=problem)


def lock_fleet(tx: Transaction, checked: Fleet, caller: Caller) -> Fleet:
    """Return a fleet to store in; refuse if fleet or device changed after the sums were checked."""
    tx.lock(f"fleet {checked.name}")
    fleet = fleets.get(tx, checked.name)
    if fleet.projection_bytes != checked.projection_bytes:
        raise RejectedError(f"{fleet.name} was made anew meanwhile, with another projection")
    must_be_enrolled(tx, caller)
    return fleet


def must_be_enrolled(tx: Transaction, caller: Caller) -> None:
    """Refuse a device that was revoked or replaced while its contribution was on its way."""
    sql = "select revoked, token_hash from devices where fleet = ? and device = ?"
    row = tx.one(sql, caller.fleet, caller.name)
    if row is None or row[0] is not None or caller.token_hash not in ("", row[1]):
        raise DeniedError(f"{caller.name} was revoked, or has enrolled anew with another token")


def _must_be_admissible(
    tx: Transaction, fleet: Fleet, received: ReceivedContribution, known: StoredContribution | None
) -> None:
    new = received.contribution
    _must_have_a_place(tx, fleet.name, new, known)
    if fleet.growing_only and known is not None:
        last = decode(read_bytes(tx, known), Contribution, projection=fleet.projection)
        admit(new, projection=fleet.projection, last=last, form=received.form)
    _must_fit_capacity(tx, fleet.name, new, known)


def _must_have_a_place(
    tx: Transaction, fleet: str, new: Contribution, known: StoredContribution | None
) -> None:
    """Refuse one pattern too many; emptied ones take no place, and what has samples keeps its."""
    device = new.device
    if known is None and count_of_device(tx, fleet, device) >= MAX_PER_DEVICE:
        raise RejectedError(
            f"found a new contribution of {device}, which has {MAX_PER_DEVICE} contributions "
            f"already, expected at most {MAX_PER_DEVICE}: an operator can drop those of an old "
            "incarnation, or all"
        )
    fills = new.samples > 0 and (known is None or known.samples == 0)
    if fills and count_patterns(tx, fleet, device, new.incarnation) >= MAX_PATTERNS:
        raise RejectedError(
            f"found the pattern {new.pattern!r} of {device}, which has {MAX_PATTERNS} patterns in "
            f"incarnation {new.incarnation} already, expected at most {MAX_PATTERNS}: set a lower "
            "max_patterns on the device, or withdraw a pattern by sharing it without samples"
        )


def _must_fit_capacity(
    tx: Transaction, fleet: str, new: Contribution, known: StoredContribution | None
) -> None:
    """Refuse what would make the total inexact; warn when little capacity is left.

    What does not grow is always accepted: a fleet that is too full can become smaller.
    """
    used = capacity_used(tx, fleet)
    others = used - (known.load if known else 0.0)
    after = others + new.stats.load
    if after >= 1.0 and after > used:
        found, left = (f"{100.0 * part:.3g} %" for part in (new.stats.load, max(1.0 - others, 0.0)))
        raise RejectedError(
            f"{new.device}, {new.pattern}: found sums that need {found} of the capacity of {fleet} "
            f"(up to which sums are exact), expected less than {left}, which is left: start a new "
            "generation of counts on this device, or drop old incarnations as an operator"
        )
    if 1.0 - after < CAPACITY_WARNING <= 1.0 - used:
        values = {"fleet": fleet, "left": 1.0 - after, "device": new.device}
        words = "little capacity is left: start a new generation of counts"
        log.warning(words, extra={"values": values})


def record_put(
    tx: Transaction,
    action: str,
    fleet: str,
    received: ReceivedContribution,
    caller: Caller,
    now: float,
) -> None:
    """Write into the audit log what a device sent; of contradictions a hundred at most."""
    new = received.contribution
    about = now, caller.actor, action, fleet, "/".join(map(str, new.key))
    detail: dict[str, Any] = {
        "revision": new.revision,
        "samples": new.stats.count,
        "digest": received.digest,
    }
    if action == "equivocation":
        audit.note_refusal(tx, MAX_NOTED_CONTRADICTIONS, *about, **detail)
    else:
        audit.append(tx, *about, **detail)


def profile_bytes(projection: Projection) -> int:
    """Return the bytes that a profile takes: U, P, V, B and a little."""
    N, n = projection.n_hidden, projection.n_inputs
    return 8 * (2 * N * (N + n) + 2 * n)


class ProfileCache:
    """Profiles of contributions; those that were not asked for longest go first."""

    def __init__(self, room: int = PROFILES_BYTES) -> None:
        """Remember nothing yet."""
        self._room, self._used = room, 0
        self._known: OrderedDict[str, Profile] = OrderedDict()
        self._lock = Lock()

    def profile(
        self, tx: Transaction, stored: StoredContribution, projection: Projection
    ) -> Profile:
        """Return the profile of a contribution."""
        return self.find(stored.digest, lambda: read_stats(tx, stored, projection))

    def find(self, digest: str, read: Callable[[], Stats]) -> Profile:
        """Return the profile of sums with this digest; `read` gives them if they are not known."""
        with self._lock:
            found = self._known.get(digest)
            if found is not None:
                self._known.move_to_end(digest)
                return found
        made = Profile.of(read())
        with self._lock:
            if digest not in self._known:
                self._used += profile_bytes(made.stats.projection)
            self._known[digest] = made
            while self._used > self._room:
                _, gone = self._known.popitem(last=False)
                self._used -= profile_bytes(gone.stats.projection)
        return made

    def stats(self, tx: Transaction, stored: StoredContribution, projection: Projection) -> Stats:
        """Return the sums of a contribution, from memory if it is solved."""
        with self._lock:
            found = self._known.get(stored.digest)
        return found.stats if found else read_stats(tx, stored, projection)
