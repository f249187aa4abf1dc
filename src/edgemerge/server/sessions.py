"""Sessions: operators who signed in at the dashboard, by their token or by a link that works once.

What is stored of a cookie or a link is its SHA-256. Both end with the operator's row.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable
from dataclasses import dataclass
from secrets import token_urlsafe
from typing import Any, NamedTuple

from edgemerge.core.errors import DeniedError
from edgemerge.server import audit, tokens
from edgemerge.server.attempts import Attempts
from edgemerge.server.store.database import Database, Transaction
from edgemerge.server.store.writer import Writer
from edgemerge.server.tokens import Caller, hashed

COOKIE, LINK = "ems_", "eml_"  # how they begin, as tokens do
SESSION_S = 12 * 3600.0
LINK_S = 600.0
MOST = 100  # sessions of one operator, and links: the oldest go
LONGEST = 200  # characters of anything that we handed out
REFUSED = (
    "this token does not open the dashboard: take the operator's, from the file that "
    "edgemerge serve was given or made beside its database"
)
USED = (
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
        """Who asks."""
        return Caller(self.name)


class Link(NamedTuple):
    """A link that works once."""

    token: str
    expires: float


class Sessions:
    """Who is signed in; any thread may call."""

    def __init__(self, database: Database, writer: Writer, clock: Callable[[], float]) -> None:
        """Start with whoever is signed in according to the database."""
        self._database, self._writer, self._clock = database, writer, clock
        self._attempts = Attempts()

    def sign_in(self, token: str) -> tuple[str, Session]:
        """Let in who has an operator's token; the string is for the cookie."""
        try:
            caller = self._operator(token)
        except DeniedError as error:
            raise self._refused(REFUSED) from error
        return self._writer.write(lambda tx: self._begin(tx, caller.name, by="token"))

    def link(self, caller: Caller) -> Link:
        """Make a link for an operator, which works once, for ten minutes."""
        token = LINK + token_urlsafe(32)

        def change(tx: Transaction) -> Link:
            expires = self._from(tx, caller.name) + LINK_S
            _make_room(tx, "links", caller.name, self._clock())
            sql = "insert into links (token_hash, name, expires) values (?, ?, ?)"
            tx.run(sql, hashed(token), caller.name, expires)
            self._record(tx, caller.name, "make sign-in link", expires=expires)
            return Link(token, expires)

        return self._writer.write(change)

    def sign_in_by_link(self, link: str) -> tuple[str, Session]:
        """Let in who has a link, and use it up."""
        if not self._can_be_used(link):
            raise self._refused(USED)

        def change(tx: Transaction) -> tuple[str, Session]:
            now, mark = self._clock(), hashed(link)
            sql = "update links set used = ? where token_hash = ? and used is null and expires > ?"
            if not tx.run(sql, now, mark, now):
                raise DeniedError(USED)  # somebody was faster
            found = tx.one("select name from links where token_hash = ?", mark)
            return self._begin(tx, str(found and found[0]), by="link")

        return self._writer.write(change)

    def session(self, cookie: str) -> Session | None:
        """Say who is signed in with this cookie; None: it is unknown, or has expired."""
        if not _may_be(cookie, COOKIE):
            return None
        with self._database.reading() as tx:
            row = tx.one(
                "select s.name, s.expires from sessions s where s.token_hash = ? and s.expires > ?"
                " and exists (select 1 from operators o"
                " where o.name = s.name and o.created <= s.created)",
                hashed(cookie),
                self._clock(),
            )
        return Session(row[0], csrf_of(cookie), row[1]) if row else None

    def sign_out(self, cookie: str) -> None:
        """End a session; doing it twice is doing it once."""
        session = self.session(cookie)
        if session is None:
            return

        def change(tx: Transaction) -> None:
            if tx.run("delete from sessions where token_hash = ?", hashed(cookie)):
                self._record(tx, session.name, "sign out")

        self._writer.write(change)

    def _operator(self, token: str) -> Caller:
        if not _may_be(token, tokens.KINDS["operator"]):
            raise DeniedError(REFUSED)
        with self._database.reading() as tx:
            return tokens.caller(tx, token)

    def _can_be_used(self, link: str) -> bool:
        """Say whether a link opens something; an operator's row must be older than the link."""
        if not _may_be(link, LINK):
            return False
        with self._database.reading() as tx:
            return bool(
                tx.one(
                    "select 1 from links l where l.token_hash = ? and l.used is null"
                    " and l.expires > ? and exists (select 1 from operators o"
                    " where o.name = l.name and o.created <= l.expires - ?)",
                    hashed(link),
                    self._clock(),
                    LINK_S,
                )
            )

    def _begin(self, tx: Transaction, name: str, *, by: str) -> tuple[str, Session]:
        cookie, start = COOKIE + token_urlsafe(32), self._from(tx, name)
        session = Session(name, csrf_of(cookie), start + SESSION_S)
        _make_room(tx, "sessions", name, self._clock())
        tx.run(
            "insert into sessions (token_hash, name, created, expires) values (?, ?, ?, ?)",
            hashed(cookie),
            name,
            start,
            session.expires,
        )
        self._record(tx, name, "sign in", by=by)
        return cookie, session

    def _from(self, tx: Transaction, name: str) -> float:
        """Give the moment, never before the operator's row: clocks are set back at times."""
        row = tx.one("select min(created) from operators where name = ?", name)
        if row is None or row[0] is None:
            raise DeniedError(f"found no operator {name}: it was removed")
        return max(self._clock(), float(row[0]))

    def _refused(self, words: str) -> DeniedError:
        """Count and log a wrong attempt; beyond a few in a minute, ask for patience instead."""
        self._attempts.note_wrong()
        log.warning("a sign-in was refused")
        return DeniedError(words)

    def _record(self, tx: Transaction, name: str, action: str, **detail: Any) -> None:
        at, actor = self._clock(), Caller(name).actor
        audit.append(tx, at=at, actor=actor, action=action, fleet="", subject=name, **detail)


def csrf_of(cookie: str) -> str:
    """Derive what forms carry from the cookie, which cannot be found from it."""
    return hmac.new(cookie.encode(), b"csrf", "sha256").hexdigest()


def _may_be(text: str, start: str) -> bool:
    return text.startswith(start) and len(text) <= LONGEST and text.isascii()


def _make_room(tx: Transaction, table: str, name: str, now: float) -> None:
    """Remove what has expired, and the oldest of an operator who has too many."""
    tx.run(f"delete from {table} where expires <= ?", now)
    tx.run(
        f"delete from {table} where name = ? and token_hash not in (select token_hash"
        f" from {table} where name = ? order by expires desc, token_hash limit ?)",
        name,
        name,
        MOST - 1,
    )
