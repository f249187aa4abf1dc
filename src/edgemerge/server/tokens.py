"""Who may do what: operators, devices, and the invitations by which devices enrol.

A token is shown once and stored as its SHA-256; the first letters say what it is for.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest
from secrets import token_urlsafe

from edgemerge.core.errors import DeniedError, UnknownError
from edgemerge.server.store.database import Transaction

KINDS = {"operator": "emo_", "invitation": "emi_", "device": "emd_"}


@dataclass(frozen=True)
class Caller:
    """Who asks: an operator, or a device of one fleet."""

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
    return KINDS[kind] + token_urlsafe(32)


def hashed(token: str) -> str:
    """Give what is stored of a token."""
    return sha256(token.encode()).hexdigest()


def caller(tx: Transaction, token: str) -> Caller:
    """Say whose token it is, or refuse it."""
    mark = hashed(token)
    if token.startswith(KINDS["operator"]):
        row = tx.one("select token_hash, name from operators where token_hash = ?", mark)
        if row and compare_digest(row[0], mark):
            return Caller(row[1])
    elif token.startswith(KINDS["device"]):
        row = tx.one(
            "select token_hash, device, fleet, revoked from devices where token_hash = ?", mark
        )
        if row and compare_digest(row[0], mark) and row[3] is None:
            return Caller(row[1], row[2])
    raise DeniedError("this token is unknown or was revoked: ask an operator for an invitation")


def add_operator(tx: Transaction, token: str, name: str, now: float) -> None:
    """Let an operator in; doing it twice is doing it once."""
    tx.run(
        "insert into operators (token_hash, name, created) values (?, ?, ?) on conflict do nothing",
        hashed(token),
        name,
        now,
    )


def has_operator(tx: Transaction) -> bool:
    """Say whether there is anybody who could let others in."""
    return tx.one("select 1 from operators limit 1") is not None


def invite(tx: Transaction, fleet: str, device: str | None, expires: float) -> str:
    """Make an invitation for one device, of this name or of any; it works once."""
    token = new_token("invitation")
    sql = "insert into invitations (token_hash, fleet, device, expires) values (?, ?, ?, ?)"
    tx.run(sql, hashed(token), fleet, device, expires)
    return token


def enrol(tx: Transaction, invitation: str, fleet: str, device: str, now: float) -> str:
    """Use an invitation up; give the device its token. An earlier token of it works no more."""
    used = tx.run(
        "update invitations set used = ? where token_hash = ? and fleet = ? and used is null"
        " and expires > ? and (device is null or device = ?)",
        now,
        hashed(invitation),
        fleet,
        now,
        device,
    )
    if not used:
        raise DeniedError(
            "this invitation is unknown, used, expired, or for another fleet or device: "
            "ask an operator for a new one"
        )
    _must_not_take_over(tx, invitation, fleet, device)
    token = new_token("device")
    tx.run(
        "insert into devices (fleet, device, token_hash, enrolled) values (?, ?, ?, ?)"
        " on conflict (fleet, device) do update set token_hash = excluded.token_hash,"
        " enrolled = excluded.enrolled, revoked = null",
        fleet,
        device,
        hashed(token),
        now,
    )
    return token


def _must_not_take_over(tx: Transaction, invitation: str, fleet: str, device: str) -> None:
    """An invitation for any name must not give away the name of a device that is there."""
    named = tx.one("select device from invitations where token_hash = ?", hashed(invitation))
    known = tx.one("select 1 from devices where fleet = ? and device = ?", fleet, device)
    if known and named == (None,):
        raise DeniedError(
            f"{device} has enrolled before: ask an operator for an invitation in its name"
        )


def revoke(tx: Transaction, fleet: str, device: str, now: float) -> None:
    """Let a device in no more; what it contributed stays until it is dropped."""
    if not tx.run(
        "update devices set revoked = coalesce(revoked, ?) where fleet = ? and device = ?",
        now,
        fleet,
        device,
    ):
        raise UnknownError(f"no device {device} in {fleet}")


def devices(tx: Transaction, fleet: str) -> list[Device]:
    """Give the devices of a fleet, in order of their names."""
    rows = tx.rows(
        "select d.device, d.enrolled, d.revoked, d.seen, count(c.body), coalesce(sum(c.samples), 0)"
        " from devices d left join contributions c on c.fleet = d.fleet and c.device = d.device"
        " and c.body is not null where d.fleet = ?"
        " group by d.device, d.enrolled, d.revoked, d.seen order by d.device",
        fleet,
    )
    return [Device(*row) for row in rows]
