"""Who may do what: accounts and their roles, devices, tokens, sessions, and limits on attempts.

A token is shown once and stored as its SHA-256; its prefix says what it is for. So are session
cookies, sign-in links and wall links.
"""

from __future__ import annotations

import hmac
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest
from math import ceil, inf
from secrets import token_urlsafe
from threading import Lock
from time import monotonic
from typing import Any, NamedTuple, Protocol, TypeVar

from edgemerge.certificates import split_token
from edgemerge.core.errors import DeniedError, SettingError, UnavailableError, UnknownError
from edgemerge.server import audit, fleets
from edgemerge.server.db.base import Database, SqlRow, Transaction, Writer

T = TypeVar("T")
TOKEN_PREFIXES = {"operator": "emo_", "invitation": "emi_", "device": "emd_", "wall": "emw_"}
ROLES = ("viewer", "operator", "admin")  # each may do what those before it may
WALL = "wall"  # the role of a wall link: one page of one fleet, without a sign-in


@dataclass(frozen=True)
class Caller:
    """Who sent a request: a person with an account, or a device of one fleet.

    Args:
        name: The name of the account or device.
        fleet: The fleet of a device; None for a person.
        role: What a person may do, one of `ROLES`.
        token_hash: The hash of the device's token, by which it is known if it enrolled anew.
    """

    name: str
    fleet: str | None = None
    role: str = "operator"
    token_hash: str = field(default="", compare=False, repr=False)

    @property
    def is_person(self) -> bool:
        """Whether it is not a device."""
        return self.fleet is None

    @property
    def actor(self) -> str:
        """How the audit log names it: with its role."""
        return f"{self.role} {self.name}" if self.is_person else f"device {self.name}"

    def may(self, role: str) -> bool:
        """Return whether a person has this role, or one that may do more.

        >>> Caller("eve", role="operator").may("viewer"), Caller("pump-1", "pumps").may("viewer")
        (True, False)
        """
        return self.is_person and ROLES.index(self.role) >= ROLES.index(role)

    def must_be(self, role: str) -> None:
        """Refuse a device, and a person whose role is not enough."""
        if not self.is_person:
            raise DeniedError(
                f"found the token of a device, expected that of an account with the role {role}"
            )
        if not self.may(role):
            raise DeniedError(
                f"{self.name} has the role {self.role}, and this needs {role}: ask an admin"
            )


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


def find_caller(tx: Transaction, token: str, now: float) -> Caller:
    """Return whose token it is, or refuse it."""
    token_hash = hash_token(token)
    if token.startswith(TOKEN_PREFIXES["operator"]):
        row = tx.one(
            f"select token_hash, name, role from accounts where token_hash = ? and {IS_ACTIVE}",
            *(token_hash, now),
        )
        if row and compare_digest(row[0], token_hash):
            return Caller(row[1], role=row[2], token_hash=token_hash)
        raise DeniedError("this token is unknown, expired or was revoked: ask an admin for another")
    if token.startswith(TOKEN_PREFIXES["device"]):
        row = tx.one(
            "select token_hash, device, fleet, revoked from devices where token_hash = ?",
            token_hash,
        )
        if row and compare_digest(row[0], token_hash) and row[3] is None:
            return Caller(row[1], row[2], token_hash=token_hash)
        raise DeniedError("this token is unknown or was revoked: ask an operator for an invitation")
    raise DeniedError(
        "this token is unknown: it begins as none of this server's do; an admin gives those of "
        "accounts, and an operator's invitation lets a device enrol"
    )


def find_invalid(tx: Transaction, hashes: Collection[str], now: float) -> set[str]:
    """Return those of these token hashes that no device and no account may use any more."""
    left = sorted(hashes)
    valid: set[str] = set()
    while some := left[:MAX_SQL_VALUES]:
        left = left[MAX_SQL_VALUES:]
        among = f"token_hash in ({', '.join('?' * len(some))})"
        devices = f"select token_hash from devices where {among} and revoked is null"
        valid.update(row[0] for row in tx.rows(devices, *some))
        accounts = f"select token_hash from accounts where {among} and {IS_ACTIVE}"
        valid.update(row[0] for row in tx.rows(accounts, *some, now))
    return set(hashes) - valid


MAX_SQL_VALUES = 500  # in one statement
IS_ACTIVE = "revoked is null and (expires is null or expires > ?)"  # of an account, at a time
ACCOUNT_COLUMNS = (
    "name, role, fleet, created, issued, expires, revoked,"
    " case when file_hash = token_hash then 1 else 0 end"
)
WALL_LINK_S = 365 * 86_400.0


class AccountError(SettingError):
    """A change that does not fit the account as it is, or would leave no admin."""


@dataclass(frozen=True)
class Account:
    """A person with a token, or a wall link.

    Args:
        name: Its name.
        role: One of `ROLES`, or `WALL`.
        fleet: The fleet of a wall link; None for a person.
        created: When it was added.
        issued: When its present token was made.
        expires: When its token stops working; None: never.
        revoked: When it was revoked; None: it was not.
        from_file: Whether its present token came from the file that `edgemerge serve` reads.
    """

    name: str
    role: str
    fleet: str | None
    created: float
    issued: float
    expires: float | None
    revoked: float | None
    from_file: bool

    def state(self, now: float) -> str:
        """Return "active", "expired" or "revoked"."""
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and self.expires <= now else "active"


def _account(tx: Transaction, name: str) -> Account | None:
    row = tx.one(f"select {ACCOUNT_COLUMNS} from accounts where name = ?", name)
    return _account_from_row(row) if row else None


def _account_from_row(row: SqlRow) -> Account:
    name, role, fleet, created, issued, expires, revoked, from_file = row
    return Account(name, role, fleet, created, issued, expires, revoked, bool(from_file))


def end_sessions(tx: Transaction, name: str) -> None:
    """End the sessions of an account, and make its sign-in links useless."""
    for table in ("sessions", "links"):
        tx.run(f"delete from {table} where name = ?", name)


class Issued(NamedTuple):
    """An account, and its token, which is not shown again."""

    account: Account
    token: str


class Keep:
    """Stands for "as it is" where None means never."""


KEEP = Keep()


class Accounts:
    """Accounts and wall links: add, change, rotate, revoke; any thread may call.

    Whatever changes in an account ends its sessions. There is always an admin whose token does not
    expire, so that admins cannot lock themselves out.
    """

    def __init__(
        self,
        database: Database,
        writer: Writer,
        clock: Callable[[], float],
        connections: Connections,
    ) -> None:
        """Start with the accounts in the database; connections of tokens that end are cut."""
        self._database, self._writer, self._clock = database, writer, clock
        self._connections = connections
        self.generation = 0  # rises with every change here; streams then look at their session

    def all(self) -> list[Account]:
        """Return all accounts and wall links in the order of their names, revoked ones too."""
        with self._database.reading() as tx:
            rows = tx.rows(f"select {ACCOUNT_COLUMNS} from accounts order by name")
        return [_account_from_row(row) for row in rows]

    def get(self, name: str) -> Account:
        """Return an account that must be there."""
        with self._database.reading() as tx:
            return _must_be_there(_account(tx, name), name)

    def wall(self, token: str) -> Account | None:
        """Return the wall link with this token; None if there is none, or it has ended."""
        if not _has_prefix(token, TOKEN_PREFIXES["wall"]):
            return None
        with self._database.reading() as tx:
            sql = f"select name from accounts where token_hash = ? and {IS_ACTIVE}"
            row = tx.one(sql, hash_token(token), self._clock())
            return _account(tx, row[0]) if row else None

    def add(self, name: str, role: str, valid_s: float | None, caller: Caller) -> Issued:
        """Add an account; one of that name must not be there, unless it was revoked.

        Args:
            name: Its name.
            role: One of `ROLES`.
            valid_s: After how many seconds its token expires; None: never.
            caller: Who adds it.
        """
        if role not in ROLES:
            raise SettingError(f"found the role {role[:20]!r}, expected {', '.join(ROLES)}")
        return self._add(name, role, None, valid_s, caller)

    def add_wall_link(
        self, name: str, fleet: str, caller: Caller, *, valid_s: float = WALL_LINK_S
    ) -> Issued:
        """Make a link that shows the page of a fleet without a sign-in, and nothing else.

        Args:
            name: What it is called in the list of accounts.
            fleet: The fleet.
            caller: Who makes it.
            valid_s: After how many seconds it expires. Default: a year.
        """
        return self._add(name, WALL, fleet, valid_s, caller)

    def _add(
        self, name: str, role: str, fleet: str | None, valid_s: float | None, caller: Caller
    ) -> Issued:
        fleets.must_be_plain_name("account", name)
        token = new_token("wall" if role == WALL else "operator")

        def change(tx: Transaction) -> Account:
            if fleet is not None:
                fleets.get(tx, fleet)
            known, now = _account(tx, name), self._clock()
            if known is not None and known.revoked is None:
                raise fleets.ExistsError(
                    f"an account {name} already exists: choose another name, or rotate its token"
                )
            expires = None if valid_s is None else now + valid_s
            tx.run("delete from accounts where name = ?", name)
            tx.run(
                "insert into accounts (name, role, fleet, token_hash, created, issued, expires)"
                " values (?, ?, ?, ?, ?, ?, ?)",
                *(name, role, fleet, hash_token(token), now, now, expires),
            )
            about = {"role": role, "expires": expires}
            self._audit(tx, caller, "add account", name, fleet, **about)
            return _must_be_there(_account(tx, name), name)

        return Issued(self._change(change), token)

    def rotate(self, name: str, caller: Caller, *, valid_s: float | Keep | None = KEEP) -> Issued:
        """Give an account a new token; the old one and all its sessions end at once.

        Args:
            name: Its name.
            caller: Who does it.
            valid_s: After how many seconds the new token expires, None: never. By default it is
                valid for as long as the old one was when that was made.
        """
        old: list[str] = []
        kind = TOKEN_PREFIXES["wall"] if self.get(name).role == WALL else TOKEN_PREFIXES["operator"]
        token = kind + token_urlsafe(32)

        def change(tx: Transaction) -> Account:
            known, now = _must_work(_account(tx, name), name), self._clock()
            span = known.expires - known.issued if known.expires is not None else None
            span = span if isinstance(valid_s, Keep) else valid_s
            expires = _expiry(known, span, now)
            old.extend(_token_hash(tx, name))
            sql = "update accounts set token_hash = ?, issued = ?, expires = ? where name = ?"
            tx.run(sql, hash_token(token), now, expires, name)
            end_sessions(tx, name)
            _must_have_admin(tx)
            self._audit(tx, caller, "rotate account", name, known.fleet, expires=expires)
            return _must_be_there(_account(tx, name), name)

        return Issued(self._change(change, old, caller), token)

    def change(
        self,
        name: str,
        caller: Caller,
        *,
        role: str | None = None,
        valid_s: float | Keep | None = KEEP,
    ) -> Account:
        """Change what an account may do, or for how long; its token stays, its sessions end.

        Args:
            name: Its name.
            caller: Who does it.
            role: The new role; None: as it is. A wall link has no other.
            valid_s: After how many seconds from now its token expires; None: never.
        """
        if role is not None and role not in ROLES:
            raise SettingError(f"found the role {role[:20]!r}, expected {', '.join(ROLES)}")

        def change(tx: Transaction) -> Account:
            known, now = _must_work(_account(tx, name), name), self._clock()
            if known.role == WALL and role is not None:
                raise AccountError(f"{name} is a wall link, which has no role to change")
            expires = known.expires
            if not isinstance(valid_s, Keep):
                expires = _expiry(known, valid_s, now)
            tx.run(
                "update accounts set role = ?, expires = ? where name = ?",
                *(role or known.role, expires, name),
            )
            end_sessions(tx, name)
            _must_have_admin(tx)
            about = {"role": role or known.role, "expires": expires}
            self._audit(tx, caller, "change account", name, known.fleet, **about)
            return _must_be_there(_account(tx, name), name)

        return self._change(change)

    def revoke(self, name: str, caller: Caller) -> None:
        """Revoke an account's token, its sessions and links; it stays in the list."""
        old: list[str] = []

        def change(tx: Transaction) -> None:
            known = _must_be_there(_account(tx, name), name)
            if known.revoked is not None:
                return
            old.extend(_token_hash(tx, name))
            tx.run("update accounts set revoked = ? where name = ?", self._clock(), name)
            end_sessions(tx, name)
            _must_have_admin(tx)
            self._audit(tx, caller, "revoke account", name, known.fleet, role=known.role)

        self._change(change, old, caller)

    def accept_from_file(self, token: str, name: str) -> None:
        """Accept the token in the file of `edgemerge serve` as that of an admin.

        If the file has another token than last time, that of last time stops working. If it has
        the same, whatever was changed in the account since stays as it is.
        """
        token_hash, old = hash_token(token), list[str]()

        def change(tx: Transaction) -> None:
            now = self._clock()
            sql = "select name, token_hash from accounts where file_hash = ? or token_hash = ?"
            known = tx.one(sql, token_hash, token_hash)
            if known is not None:
                if known[1] == token_hash:
                    sql = "update accounts set file_hash = ? where token_hash = ?"
                    tx.run(sql, token_hash, token_hash)
                return
            old.extend(_token_hash(tx, name))
            end_sessions(tx, name)
            tx.run(
                "insert into accounts (name, role, token_hash, created, issued, file_hash)"
                " values (?, 'admin', ?, ?, ?, ?) on conflict (name) do update set role = 'admin',"
                " fleet = null, token_hash = excluded.token_hash, issued = excluded.issued,"
                " expires = null, revoked = null, file_hash = excluded.file_hash",
                *(name, token_hash, now, now, token_hash),
            )
            action = "rotate account" if old else "add account"
            audit.append(tx, now, "the server", action, "", name, role="admin", by="token file")

        self._change(change, old)

    def has_admin(self) -> bool:
        """Return whether somebody can manage accounts."""
        with self._database.reading() as tx:
            return _has_admin(tx)

    def _change(
        self,
        change: Callable[[Transaction], T],
        old: Collection[str] = (),
        caller: Caller | None = None,
    ) -> T:
        """Make a change; then end what still uses the old token, or a session of the account.

        The caller's own connection stays for the answer; its next request is refused.
        """
        found = self._writer.write(change)
        self.generation += 1
        self._connections.cut(set(old) - {caller.token_hash if caller else ""})
        return found

    def _audit(
        self,
        tx: Transaction,
        caller: Caller,
        action: str,
        name: str,
        fleet: str | None,
        **detail: Any,
    ) -> None:
        shown = {key: value for key, value in detail.items() if value is not None}
        audit.append(tx, self._clock(), caller.actor, action, fleet or "", name, **shown)


def _expiry(account: Account, valid_s: float | None, now: float) -> float | None:
    if account.role == WALL and valid_s is None:
        raise AccountError(f"{account.name} is a wall link, which must expire: say when")
    return None if valid_s is None else now + valid_s


def _token_hash(tx: Transaction, name: str) -> list[str]:
    return [row[0] for row in tx.rows("select token_hash from accounts where name = ?", name)]


def _must_be_there(account: Account | None, name: str) -> Account:
    if account is None:
        raise UnknownError(f"no account {name[:100]}: `edgemerge accounts list` shows all")
    return account


def _must_work(account: Account | None, name: str) -> Account:
    found = _must_be_there(account, name)
    if found.revoked is not None:
        raise AccountError(f"the account {name} was revoked: add it again, with a new token")
    return found


def _has_admin(tx: Transaction) -> bool:
    sql = "select 1 from accounts where role = 'admin' and revoked is null and expires is null"
    return tx.one(sql) is not None


def _must_have_admin(tx: Transaction) -> None:
    """Refuse a change after which nobody could manage accounts, now or some day."""
    if not _has_admin(tx):
        raise AccountError(
            "this would leave no admin whose token never expires: add another one first"
        )


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


def device_token_hash(tx: Transaction, fleet: str, device: str) -> str | None:
    """Return the hash of a device's token; None if it never enrolled."""
    sql = "select token_hash from devices where fleet = ? and device = ?"
    row = tx.one(sql, fleet, device)
    return str(row[0]) if row else None


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
        "insert into devices (fleet, device, token_hash, enrolled, first_enrolled)"
        " values (?, ?, ?, ?, ?)"
        " on conflict (fleet, device) do update set token_hash = excluded.token_hash,"
        " enrolled = excluded.enrolled, revoked = null",
        *(fleet, device, hash_token(token), now, now),
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
        raise UnknownError(
            f"no device {device} in {fleet}: `edgemerge fleet devices {fleet}` lists its devices"
        )


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
MAX_SESSIONS = 100  # sessions of one account, and links: the oldest go
MAX_TOKEN_CHARS = 200  # characters of anything that we handed out
TOKEN_REFUSED = (
    "this token does not open the dashboard: take that of your account, which an admin gives you, "
    "or the one in the file that edgemerge serve was given or made beside its database"
)
LINK_REFUSED = (
    "this link is unknown, used or expired: links work once, for ten minutes; "
    "edgemerge dashboard makes another"
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Session:
    """A person who is signed in; `csrf` must come with everything that changes something."""

    name: str
    csrf: str
    expires: float
    role: str

    @property
    def caller(self) -> Caller:
        """Who sent the request."""
        return Caller(self.name, role=self.role)

    @property
    def may_change(self) -> bool:
        """Whether pages show what an operator may do."""
        return self.caller.may("operator")

    @property
    def is_admin(self) -> bool:
        """Whether pages show what an admin may do."""
        return self.caller.may("admin")

    @property
    def form_csrf(self) -> str:
        """What forms of an operator carry; "" for those who have no such forms."""
        return self.csrf if self.may_change else ""


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
        """Let in who has the token of an account; the string is for the cookie."""
        if not _has_prefix(token, TOKEN_PREFIXES["operator"]):
            raise self._refused(TOKEN_REFUSED)
        try:
            with self._database.reading() as tx:
                caller = find_caller(tx, token, self._clock())
        except DeniedError as error:
            raise self._refused(TOKEN_REFUSED) from error

        def change(tx: Transaction) -> tuple[str, Session]:
            find_caller(tx, token, self._clock())  # it may have been rotated meanwhile
            return self._begin(tx, caller.name, by="token")

        return self._writer.write(change)

    def link(self, caller: Caller) -> Link:
        """Make a link for an account, which works once, for ten minutes."""
        token = LINK_PREFIX + token_urlsafe(32)

        def change(tx: Transaction) -> Link:
            account, now = self._active(tx, caller.name), self._clock()
            expires = min(now + LINK_S, inf if account.expires is None else account.expires)
            _delete_expired(tx, "links", caller.name, now)
            sql = "insert into links (token_hash, name, expires) values (?, ?, ?)"
            tx.run(sql, hash_token(token), caller.name, expires)
            self._record(tx, account, "make sign-in link", expires=expires)
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
            sql = "select name, expires from sessions where token_hash = ? and expires > ?"
            row = tx.one(sql, hash_token(cookie), self._clock())
            account = _account(tx, row[0]) if row else None
        if row is None or account is None or account.state(self._clock()) != "active":
            return None
        return Session(account.name, csrf_token(cookie), row[1], account.role)

    def sign_out(self, cookie: str) -> None:
        """End a session; repeating it changes nothing."""
        session = self.session(cookie)
        if session is None:
            return

        def change(tx: Transaction) -> None:
            if tx.run("delete from sessions where token_hash = ?", hash_token(cookie)):
                self._record(tx, session, "sign out")

        self._writer.write(change)

    def _can_be_used(self, link: str) -> bool:
        """Return whether a link opens something; those of an account end with its token."""
        if not _has_prefix(link, LINK_PREFIX):
            return False
        with self._database.reading() as tx:
            sql = "select 1 from links where token_hash = ? and used is null and expires > ?"
            return tx.one(sql, hash_token(link), self._clock()) is not None

    def _begin(self, tx: Transaction, name: str, *, by: str) -> tuple[str, Session]:
        account, now = self._active(tx, name), self._clock()
        cookie = COOKIE_PREFIX + token_urlsafe(32)
        end = min(now + SESSION_S, inf if account.expires is None else account.expires)
        session = Session(name, csrf_token(cookie), end, account.role)
        _delete_expired(tx, "sessions", name, now)
        tx.run(
            "insert into sessions (token_hash, name, created, expires) values (?, ?, ?, ?)",
            *(hash_token(cookie), name, now, session.expires),
        )
        self._record(tx, account, "sign in", by=by)
        return cookie, session

    def _active(self, tx: Transaction, name: str) -> Account:
        account = _account(tx, name)
        if account is None or account.state(self._clock()) != "active":
            raise DeniedError(f"found no account {name}: it was removed, revoked or has expired")
        return account

    def _refused(self, words: str) -> DeniedError:
        """Count and log a wrong attempt; beyond a few in a minute, ask for patience instead."""
        self._attempts.record_failure()
        log.warning("a sign-in was refused")
        return DeniedError(words)

    def _record(self, tx: Transaction, who: Account | Session, action: str, **detail: Any) -> None:
        actor = Caller(who.name, role=who.role).actor
        audit.append(tx, self._clock(), actor, action, "", who.name, **detail)


def csrf_token(cookie: str) -> str:
    """Derive what forms carry from the cookie, which cannot be found from it."""
    return hmac.new(cookie.encode(), b"csrf", "sha256").hexdigest()


def _has_prefix(text: str, start: str) -> bool:
    return text.startswith(start) and len(text) <= MAX_TOKEN_CHARS and text.isascii()


def _delete_expired(tx: Transaction, table: str, name: str, now: float) -> None:
    """Remove what has expired, and the oldest of an account that has too many."""
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
# Twice what a device may have stored at once, so that it can always send everything anew.
PUSH_BURST, PUSHES_PER_MINUTE = 512.0, 120.0


class RateLimitError(UnavailableError):
    """More requests than are taken; `retry_s` says when the next will be."""


@dataclass
class TokenBucket:
    """A rate limit: `burst` requests at once, then `per_second`."""

    burst: float
    per_second: float
    room: float
    at: float

    def take(self, now: float) -> float:
        """Take room for one request; return the seconds until there is some, 0 if there was."""
        self.room = min(self.burst, self.room + (now - self.at) * self.per_second)
        self.at = now
        if self.room < 1.0:
            return (1.0 - self.room) / self.per_second
        self.room -= 1.0
        return 0.0


class DeviceRates:
    """One rate limit for each device; those that were quiet longest are forgotten first."""

    def __init__(self, burst: float, per_second: float, most: int = MAX_CACHED_DEVICES) -> None:
        """Start with none."""
        self._burst, self._per_second, self._most = burst, per_second, most
        self._buckets: OrderedDict[Caller, TokenBucket] = OrderedDict()

    def take(self, caller: Caller, now: float) -> float:
        """Take room for one request of a device; return the seconds until there is some, or 0."""
        bucket = self._buckets.setdefault(
            caller, TokenBucket(self._burst, self._per_second, self._burst, now)
        )
        self._buckets.move_to_end(caller)
        if len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        return bucket.take(now)


class PushLimiter:
    """How often each device pushes; any thread may call.

    Args:
        per_minute: Pushes of one device in a minute, over all its patterns and faults.
        burst: Pushes at once, after a time without any.
        clock: The time, in seconds.
    """

    def __init__(
        self,
        per_minute: float = PUSHES_PER_MINUTE,
        burst: float = PUSH_BURST,
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Start with room for all."""
        self._clock, self._lock = clock, Lock()
        self._rates = DeviceRates(burst, per_minute / 60.0)
        self._words = f"found more than {per_minute:g} pushes in a minute"

    def admit(self, caller: Caller) -> None:
        """Admit a push of a device, or raise with the time until the next one."""
        with self._lock:
            wait = self._rates.take(caller, self._clock())
        if wait:
            raise RateLimitError(
                f"{self._words}: push less often, or raise --pushes-per-minute of the server",
                retry_s=float(ceil(wait)),
            )


class ReportLimiter:
    """How often each device reports, and a cache of tokens that were valid a moment ago."""

    def __init__(
        self, *, clock: Callable[[], float] = monotonic, most: int = MAX_CACHED_DEVICES
    ) -> None:
        """Start with an empty cache."""
        self._clock, self._most, self._lock = clock, most, Lock()
        self._known: OrderedDict[str, tuple[Caller, float]] = OrderedDict()
        self._rates = DeviceRates(DEVICE_BURST, DEVICE_REPORTS_PER_S, most)
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
            wait = self._rates.take(caller, now) or self._all.take(now)
        if wait:
            raise RateLimitError(
                "found too many reports: report as often as the last answer said",
                retry_s=float(ceil(wait)),
            )


class Connection(Protocol):
    """A connection of a client, which may carry requests of several in turn."""

    on_lost: Callable[[Connection], None] | None

    def cut(self, is_meant: Callable[[], bool]) -> None:
        """End it, from any thread, with whatever is under way, if it is still the one meant."""
        ...


class Connections:
    """Open connections by the token of their last request, so that they end with that token.

    A proxy sends requests of many devices over one connection: only the last one counts, since it
    is under way or was the last to be answered. Any thread may call.
    """

    def __init__(self) -> None:
        """Start with none."""
        self._lock = Lock()
        self._tokens: dict[Connection, str] = {}

    def use(self, connection: Connection, caller: Caller | None) -> None:
        """Remember whose request is under way; None: a new one, whose caller is not known yet."""
        with self._lock:
            if caller is None:
                self._tokens.pop(connection, None)
                return
            self._tokens[connection] = caller.token_hash
            connection.on_lost = self._lost

    def hashes(self) -> set[str]:
        """Return the hashes of the tokens that were used."""
        with self._lock:
            return set(self._tokens.values())

    def cut(self, hashes: Collection[str]) -> None:
        """End the connections of these tokens."""
        with self._lock:
            found = [each for each, known in self._tokens.items() if known in hashes]
        for connection in found:
            connection.cut(lambda each=connection: self._tokens.get(each) in hashes)  # type: ignore[misc]  # bound now

    def _lost(self, connection: Connection) -> None:
        with self._lock:
            self._tokens.pop(connection, None)
