"""Who may do what: tokens, invitations, sign-in sessions, and limits on attempts.

A token is shown once and stored as its SHA-256; its prefix says what it is for. So are session
cookies and sign-in links.
"""

from __future__ import annotations

import hmac
import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest
from math import ceil, inf
from secrets import token_urlsafe
from threading import Lock
from time import monotonic
from typing import Any, NamedTuple

from edgemerge.certificates import split_token
from edgemerge.core.errors import DeniedError, UnavailableError, UnknownError
from edgemerge.server import audit
from edgemerge.server.db.base import Database, Transaction, Writer

TOKEN_PREFIXES = {"operator": "emo_", "invitation": "emi_", "device": "emd_"}


@dataclass(frozen=True)
class Caller:
    """Who sent a request: an operator, or a device of one fleet."""

    name: str
    fleet: str | None = None

    @property
    def is_operator(self) -> bool:
        """Whether it may do everything but speak for a device."""
        return self.fleet is None

    @property
    def actor(self) -> str:
        """How the audit log names it."""
        return f"operator {self.name}" if self.is_operator else f"device {self.name}"


@dataclass(frozen=True)
class Device:
    """A device that has enrolled."""

    device: str
    enrolled: float
    revoked: float | None
    seen: float | None
    contributions: int
    samples: float


def new_token(kind: str) -> str:
    """Draw a token of 32 random bytes."""
    return TOKEN_PREFIXES[kind] + token_urlsafe(32)


def hash_token(token: str) -> str:
    """Return what is stored of a token: of its secret, not of a fingerprint after it."""
    return sha256(split_token(token)[0].encode()).hexdigest()


def find_caller(tx: Transaction, token: str) -> Caller:
    """Return whose token it is, or refuse it."""
    token_hash = hash_token(token)
    if token.startswith(TOKEN_PREFIXES["operator"]):
        row = tx.one("select token_hash, name from operators where token_hash = ?", token_hash)
        if row and compare_digest(row[0], token_hash):
            return Caller(row[1])
    elif token.startswith(TOKEN_PREFIXES["device"]):
        row = tx.one(
            "select token_hash, device, fleet, revoked from devices where token_hash = ?",
            token_hash,
        )
        if row and compare_digest(row[0], token_hash) and row[3] is None:
            return Caller(row[1], row[2])
    raise DeniedError("this token is unknown or was revoked: ask an operator for an invitation")


def add_operator(tx: Transaction, token: str, name: str, now: float) -> None:
    """Accept an operator's token; repeating it changes nothing."""
    tx.run(
        "insert into operators (token_hash, name, created) values (?, ?, ?) on conflict do nothing",
        *(hash_token(token), name, now),
    )


def has_operator(tx: Transaction) -> bool:
    """Return whether there is an operator."""
    return tx.one("select 1 from operators limit 1") is not None


def invite(tx: Transaction, fleet: str, device: str | None, expires: float) -> str:
    """Make an invitation for one device, of this name or of any; it works once."""
    token = new_token("invitation")
    sql = "insert into invitations (token_hash, fleet, device, expires) values (?, ?, ?, ?)"
    tx.run(sql, hash_token(token), fleet, device, expires)
    return token


NO_INVITATION = (
    "this invitation is unknown, used, expired, or for another fleet or device: "
    "ask an operator for a new one"
)


def check_invitation(tx: Transaction, invitation: str, fleet: str, now: float) -> None:
    """Refuse an invitation that cannot be used, before anything else of a request is read."""
    sql = "select 1 from invitations where token_hash = ? and fleet = ? and used is null"
    if tx.one(f"{sql} and expires > ?", hash_token(invitation), fleet, now) is None:
        raise DeniedError(NO_INVITATION)


def enrol(tx: Transaction, invitation: str, fleet: str, device: str, now: float) -> str:
    """Use an invitation up; give the device its token. An earlier token of it works no more."""
    used = tx.run(
        "update invitations set used = ? where token_hash = ? and fleet = ? and used is null"
        " and expires > ? and (device is null or device = ?)",
        *(now, hash_token(invitation), fleet, now, device),
    )
    if not used:
        raise DeniedError(NO_INVITATION)
    _must_not_take_over(tx, invitation, fleet, device)
    token = new_token("device")
    tx.run(
        "insert into devices (fleet, device, token_hash, enrolled) values (?, ?, ?, ?)"
        " on conflict (fleet, device) do update set token_hash = excluded.token_hash,"
        " enrolled = excluded.enrolled, revoked = null",
        *(fleet, device, hash_token(token), now),
    )
    return token


def _must_not_take_over(tx: Transaction, invitation: str, fleet: str, device: str) -> None:
    """An invitation for any name must not give away the name of a device that is there."""
    named = tx.one("select device from invitations where token_hash = ?", hash_token(invitation))
    known = tx.one("select 1 from devices where fleet = ? and device = ?", fleet, device)
    if known and named == (None,):
        raise DeniedError(
            f"{device} has enrolled before: ask an operator for an invitation in its name"
        )


def revoke_device(tx: Transaction, fleet: str, device: str, now: float) -> None:
    """Revoke a device's token; its contributions stay until they are dropped."""
    if not tx.run(
        "update devices set revoked = coalesce(revoked, ?) where fleet = ? and device = ?",
        *(now, fleet, device),
    ):
        raise UnknownError(f"no device {device} in {fleet}")


def devices_of(tx: Transaction, fleet: str) -> list[Device]:
    """Return the devices of a fleet, in order of their names."""
    rows = tx.rows(
        "select d.device, d.enrolled, d.revoked, d.seen, count(c.body), coalesce(sum(c.samples), 0)"
        " from devices d left join contributions c on c.fleet = d.fleet and c.device = d.device"
        " and c.body is not null where d.fleet = ?"
        " group by d.device, d.enrolled, d.revoked, d.seen order by d.device",
        fleet,
    )
    return [Device(*row) for row in rows]


MAX_WRONG_ATTEMPTS = 10
ATTEMPT_WINDOW_S = 60.0


class TooManyAttemptsError(UnavailableError):
    """More wrong attempts than are answered; `retry_s` says when another is."""


class SignInAttempts:
    """The wrong attempts of the last minute, over all who try; any thread may call."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        """Start with none."""
        self._clock, self._lock = clock, Lock()
        self._wrong: deque[float] = deque(maxlen=MAX_WRONG_ATTEMPTS)

    def record_failure(self) -> None:
        """Count a wrong attempt, or refuse to go into it."""
        with self._lock:
            now = self._clock()
            full = len(self._wrong) == MAX_WRONG_ATTEMPTS
            wait = self._wrong[0] + ATTEMPT_WINDOW_S - now if full else 0.0
            if wait <= 0.0:
                self._wrong.append(now)
                return
        raise TooManyAttemptsError(
            f"found more than {MAX_WRONG_ATTEMPTS} wrong attempts within a "
            f"minute: try again in {ceil(wait)} s",
            retry_s=float(ceil(wait)),
        )


COOKIE_PREFIX, LINK_PREFIX = "ems_", "eml_"  # how they begin, as tokens do
SESSION_S = 12 * 3600.0
LINK_S = 600.0
MAX_SESSIONS = 100  # sessions of one operator, and links: the oldest go
MAX_TOKEN_CHARS = 200  # characters of anything that we handed out
TOKEN_REFUSED = (
    "this token does not open the dashboard: take the operator's, from the file that "
    "edgemerge serve was given or made beside its database"
)
LINK_REFUSED = (
    "this link is unknown, used or expired: links work once, for ten minutes; "
    "edgemerge dashboard makes another"
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Session:
    """An operator who is signed in; `csrf` must come with everything that changes something."""

    name: str
    csrf: str
    expires: float

    @property
    def caller(self) -> Caller:
        """Who sent the request."""
        return Caller(self.name)


class Link(NamedTuple):
    """A link that works once."""

    token: str
    expires: float


class Sessions:
    """Who is signed in; any thread may call."""

    def __init__(self, database: Database, writer: Writer, clock: Callable[[], float]) -> None:
        """Start with the sessions in the database."""
        self._database, self._writer, self._clock = database, writer, clock
        self._attempts = SignInAttempts()

    def sign_in(self, token: str) -> tuple[str, Session]:
        """Let in who has an operator's token; the string is for the cookie."""
        if not _has_prefix(token, TOKEN_PREFIXES["operator"]):
            raise self._refused(TOKEN_REFUSED)
        try:
            with self._database.reading() as tx:
                caller = find_caller(tx, token)
        except DeniedError as error:
            raise self._refused(TOKEN_REFUSED) from error
        return self._writer.write(lambda tx: self._begin(tx, caller.name, by="token"))

    def link(self, caller: Caller) -> Link:
        """Make a link for an operator, which works once, for ten minutes."""
        token = LINK_PREFIX + token_urlsafe(32)

        def change(tx: Transaction) -> Link:
            expires = self._from(tx, caller.name) + LINK_S
            _delete_expired(tx, "links", caller.name, self._clock())
            sql = "insert into links (token_hash, name, expires) values (?, ?, ?)"
            tx.run(sql, hash_token(token), caller.name, expires)
            self._record(tx, caller.name, "make sign-in link", expires=expires)
            return Link(token, expires)

        return self._writer.write(change)

    def sign_in_by_link(self, link: str) -> tuple[str, Session]:
        """Let in who has a link, and use it up."""
        if not self._can_be_used(link):
            raise self._refused(LINK_REFUSED)

        def change(tx: Transaction) -> tuple[str, Session]:
            now, token_hash = self._clock(), hash_token(link)
            sql = "update links set used = ? where token_hash = ? and used is null and expires > ?"
            if not tx.run(sql, now, token_hash, now):
                raise DeniedError(LINK_REFUSED)  # used meanwhile
            found = tx.one("select name from links where token_hash = ?", token_hash)
            return self._begin(tx, str(found and found[0]), by="link")

        return self._writer.write(change)

    def session(self, cookie: str) -> Session | None:
        """Return who is signed in with this cookie; None: it is unknown, or has expired."""
        if not _has_prefix(cookie, COOKIE_PREFIX):
            return None
        with self._database.reading() as tx:
            row = tx.one(
                "select s.name, s.expires from sessions s where s.token_hash = ? and s.expires > ?"
                " and exists (select 1 from operators o"
                " where o.name = s.name and o.created <= s.created)",
                hash_token(cookie),
                self._clock(),
            )
        return Session(row[0], csrf_token(cookie), row[1]) if row else None

    def sign_out(self, cookie: str) -> None:
        """End a session; repeating it changes nothing."""
        session = self.session(cookie)
        if session is None:
            return

        def change(tx: Transaction) -> None:
            if tx.run("delete from sessions where token_hash = ?", hash_token(cookie)):
                self._record(tx, session.name, "sign out")

        self._writer.write(change)

    def _can_be_used(self, link: str) -> bool:
        """Return whether a link opens something; an operator's row must be older than the link."""
        if not _has_prefix(link, LINK_PREFIX):
            return False
        with self._database.reading() as tx:
            return bool(
                tx.one(
                    "select 1 from links l where l.token_hash = ? and l.used is null"
                    " and l.expires > ? and exists (select 1 from operators o"
                    " where o.name = l.name and o.created <= l.expires - ?)",
                    *(hash_token(link), self._clock(), LINK_S),
                )
            )

    def _begin(self, tx: Transaction, name: str, *, by: str) -> tuple[str, Session]:
        cookie, start = COOKIE_PREFIX + token_urlsafe(32), self._from(tx, name)
        session = Session(name, csrf_token(cookie), start + SESSION_S)
        _delete_expired(tx, "sessions", name, self._clock())
        tx.run(
            "insert into sessions (token_hash, name, created, expires) values (?, ?, ?, ?)",
            *(hash_token(cookie), name, start, session.expires),
        )
        self._record(tx, name, "sign in", by=by)
        return cookie, session

    def _from(self, tx: Transaction, name: str) -> float:
        """Return the moment, never before the operator's row: clocks are set back at times."""
        row = tx.one("select min(created) from operators where name = ?", name)
        if row is None or row[0] is None:
            raise DeniedError(f"found no operator {name}: it was removed")
        return max(self._clock(), float(row[0]))

    def _refused(self, words: str) -> DeniedError:
        """Count and log a wrong attempt; beyond a few in a minute, ask for patience instead."""
        self._attempts.record_failure()
        log.warning("a sign-in was refused")
        return DeniedError(words)

    def _record(self, tx: Transaction, name: str, action: str, **detail: Any) -> None:
        at, actor = self._clock(), Caller(name).actor
        audit.append(tx, at=at, actor=actor, action=action, fleet="", subject=name, **detail)


def csrf_token(cookie: str) -> str:
    """Derive what forms carry from the cookie, which cannot be found from it."""
    return hmac.new(cookie.encode(), b"csrf", "sha256").hexdigest()


def _has_prefix(text: str, start: str) -> bool:
    return text.startswith(start) and len(text) <= MAX_TOKEN_CHARS and text.isascii()


def _delete_expired(tx: Transaction, table: str, name: str, now: float) -> None:
    """Remove what has expired, and the oldest of an operator who has too many."""
    tx.run(f"delete from {table} where expires <= ?", now)
    tx.run(
        f"delete from {table} where name = ? and token_hash not in (select token_hash"
        f" from {table} where name = ? order by expires desc, token_hash limit ?)",
        *(name, name, MAX_SESSIONS - 1),
    )


TOKEN_CACHE_S = 10.0  # after which it is looked up again whether a token still works
MAX_CACHED_DEVICES = 10_000  # devices that are remembered
DEVICE_BURST, DEVICE_REPORTS_PER_S = 5.0, 2.0  # of one device
TOTAL_BURST, TOTAL_REPORTS_PER_S = 200.0, 200.0  # of all


class TooManyReportsError(UnavailableError):
    """More reports than are taken; `retry_s` says when the next will be."""


@dataclass
class TokenBucket:
    """A rate limit: `burst` reports at once, then `per_second`."""

    burst: float
    per_second: float
    room: float
    at: float

    def take(self, now: float) -> float:
        """Take room for one report; return the seconds until there is some, 0 if there was."""
        self.room = min(self.burst, self.room + (now - self.at) * self.per_second)
        self.at = now
        if self.room < 1.0:
            return (1.0 - self.room) / self.per_second
        self.room -= 1.0
        return 0.0


class ReportLimiter:
    """How often each device reports, and a cache of tokens that were valid a moment ago."""

    def __init__(
        self, *, clock: Callable[[], float] = monotonic, most: int = MAX_CACHED_DEVICES
    ) -> None:
        """Start with an empty cache."""
        self._clock, self._most, self._lock = clock, most, Lock()
        self._known: OrderedDict[str, tuple[Caller, float]] = OrderedDict()
        self._buckets: OrderedDict[Caller, TokenBucket] = OrderedDict()
        self._all = TokenBucket(TOTAL_BURST, TOTAL_REPORTS_PER_S, TOTAL_BURST, clock())
        self.generation = 0  # rises with every `forget`

    def known(self, token: str) -> Caller | None:
        """Return whose token it is, if it was valid a moment ago."""
        with self._lock:
            caller, until = self._known.get(hash_token(token), (None, -inf))
            return caller if self._clock() < until else None

    def remember(self, token: str, caller: Caller, generation: int) -> None:
        """Cache a valid token, unless one was revoked since `generation` was read.

        A look into the database may have come before the revocation, and its result after it.
        """
        with self._lock:
            if generation != self.generation:
                return
            token_hash = hash_token(token)
            self._known[token_hash] = (caller, self._clock() + TOKEN_CACHE_S)
            self._known.move_to_end(token_hash)
            if len(self._known) > self._most:
                self._known.popitem(last=False)

    def forget(self, fleet: str) -> None:
        """Remove the devices of a fleet from the cache."""
        with self._lock:
            self.generation += 1
            for each in [each for each, (who, _) in self._known.items() if who.fleet == fleet]:
                del self._known[each]

    def admit(self, caller: Caller) -> None:
        """Admit a report of a device, or raise with the time until the next one."""
        with self._lock:
            now = self._clock()
            wait = self._bucket(caller, now).take(now) or self._all.take(now)
        if wait:
            raise TooManyReportsError(
                "found more reports than are taken: report as often as the last answer said",
                retry_s=float(ceil(wait)),
            )

    def _bucket(self, caller: Caller, now: float) -> TokenBucket:
        bucket = self._buckets.setdefault(
            caller, TokenBucket(DEVICE_BURST, DEVICE_REPORTS_PER_S, DEVICE_BURST, now)
        )
        self._buckets.move_to_end(caller)
        if len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        return bucket
