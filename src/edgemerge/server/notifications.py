"""Notifications: receivers of messages about a fleet, what they were notified of, and the worker.

Each report of a device is compared with the state that receivers were notified of. What is new
becomes a notice in the database, in the transaction that stores the new state: a restart neither
repeats nor loses one. Each receiver has its own place in the notices of its fleet, which moves on
after it has accepted a message; so a message arrives at least once. Several servers on one database
claim a receiver, for a limited time, before they send to it.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from threading import Event, Lock, Thread
from time import monotonic
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from edgemerge.core.errors import EdgemergeError, SettingError, UnknownError
from edgemerge.daemon import Backoff
from edgemerge.delivery import (
    FIRST_RETRY_S,
    MAX_RETRY_S,
    Channel,
    EmailChannel,
    Message,
    UndeliveredError,
    WebhookChannel,
    summarize,
    unusual,
)
from edgemerge.exchange.configuration import host_of
from edgemerge.failpoints import failpoint
from edgemerge.files import read_secret
from edgemerge.server import audit, fleets
from edgemerge.server.auth import Caller
from edgemerge.server.db.base import WHERE_DEVICE, Database, SqlRow, Transaction, Writer, upsert
from edgemerge.server.reports.history import MAX_RECORDS, History
from edgemerge.server.reports.model import QUIET_S, LatestReport, device_state, last_contact
from edgemerge.server.schemas import (
    NotificationEvent,
    ReceiverRequest,
    ReportedEpisode,
    ReportedMonitor,
    ReportedStatus,
)

MAX_RECEIVERS = 20  # of a fleet
MAX_NOTICES = 10_000  # of a fleet that wait; then the oldest are dropped, and counted
MAX_REASONS = 3  # inputs named in a message
MAX_TROUBLE_CHARS = 300
GATHER_S = 10.0  # after the first event, before a message is sent: others may come with it
STORM_DEVICES, STORM_S = 5, 60.0  # of so many devices, it is gathered for so long
LEASE_S = 120.0  # for which a server that sends has a receiver for itself
POLL_S = 5.0  # between two looks, where other servers write to the database
BUSY_POLL_S = 1.0  # while something waits to be sent
SWEEP_S = 15.0  # between two looks for devices that are offline
MAX_SENDING = 8  # messages under way
CLOSE_TIMEOUT_S = 3.0
REFUSED_MERGE = "not adopted:"  # how a device's words about a refused merge begin
SECRET_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
KINDS: dict[str, NotificationEvent] = {  # which setting of a receiver an event belongs to
    "alarm": "alarm",
    "recognized": "alarm",
    "all clear": "all clear",
    "problem": "problem",
    "problem over": "problem",
    "offline": "offline",
    "online": "offline",
    "merge refused": "merge refused",
}
RECEIVER_COLUMNS = (
    "fleet, name, body, secret, created, sent, next_at, claimed_until, failures, delivered, trouble"
)
WHERE_RECEIVER = "where fleet = ? and name = ?"

MakeMessage = Callable[..., Message]  # about a device

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class NotifiedState:
    """The state of a device that receivers were notified of.

    Args:
        incarnation: The device's incarnation, whose episodes are counted.
        newest: The highest number of an episode that is known.
        open: Numbers of the open episodes.
        recognized: Numbers of the open episodes that are like a known fault.
        problems: Names of problems that last.
        offline: Whether it is offline.
        refused: Whether it refused its last merge.
    """

    incarnation: int = 0
    newest: int = 0
    open: tuple[int, ...] = ()
    recognized: tuple[int, ...] = ()
    problems: tuple[str, ...] = ()
    offline: bool = False
    refused: bool = False

    @classmethod
    def parse(cls, text: str) -> NotifiedState:
        """Read what `json` wrote."""
        found = json.loads(text)
        return cls(
            **found | {name: tuple(found[name]) for name in ("open", "recognized", "problems")}
        )

    @property
    def json(self) -> str:
        """The state as it is stored."""
        return json.dumps(vars(self), separators=(",", ":"))


def compare(
    known: NotifiedState | None, fleet: str, latest: LatestReport, now: float
) -> tuple[list[Message], NotifiedState]:
    """Return messages about what is new in a device's report, and the state after them.

    Args:
        known: The state before; None if the device is new here: then episodes that have ended are
            history.
        fleet: The fleet.
        latest: The report, by the server's clock.
        now: The time, in Unix seconds.
    """
    status, make = latest.status, partial(Message, device=latest.device, fleet=fleet)
    before = known or NotifiedState(status.incarnation)
    episodes, after = _compare_episodes(before, status, make, now, new=known is None)
    problems = {each.name: each for each in reversed(status.problems)}
    found = [
        make("problem", at=one.since, words=f"{name}: {one.words}")
        for name, one in problems.items()
        if name not in before.problems
    ]
    found += [
        make("problem over", at=now, words=name) for name in before.problems if name not in problems
    ]
    refused = status.told.startswith(REFUSED_MERGE)
    if refused and not before.refused:
        found.append(make("merge refused", at=now, words=status.told))
    return episodes + found, replace(after, problems=tuple(sorted(problems)), refused=refused)


def _compare_episodes(
    before: NotifiedState, status: ReportedStatus, make: MakeMessage, now: float, *, new: bool
) -> tuple[list[Message], NotifiedState]:
    monitor = status.monitor
    if monitor is None:
        return [], before
    reported = {each.number: each for each in monitor.episodes}
    # Another incarnation may count from 1 again, or go on: what has ended by now is history.
    history = new or before.incarnation != status.incarnation
    found, still_open = [], []
    for number, episode in sorted(reported.items()):
        is_known = number in before.open
        is_new = number > before.newest or (history and episode.ended is None)
        if not is_known and (not is_new or (history and episode.ended is not None)):
            continue
        if not is_known:
            found.append(_alarm("alarm", episode, monitor, make))
        elif episode.fault and number not in before.recognized:
            found.append(_alarm("recognized", episode, monitor, make))
        if episode.ended is None:
            still_open.append(episode)
        else:
            about = {"fault": episode.fault, "like": episode.like}
            found.append(make("all clear", at=episode.ended, episode=number, **about))
    # One that is no longer reported has ended, and was acknowledged meanwhile.
    gone = [number for number in before.open if number not in reported]
    found += [make("all clear", at=now, episode=number) for number in gone]
    newest = max(reported, default=0)
    newest = newest if history else max(newest, before.newest)
    return found, replace(
        before,
        incarnation=status.incarnation,
        newest=newest,
        open=tuple(each.number for each in still_open),
        recognized=tuple(each.number for each in still_open if each.fault),
    )


def _alarm(
    event: str, episode: ReportedEpisode, monitor: ReportedMonitor, make: MakeMessage
) -> Message:
    reasons = tuple((name or "?", factor) for name, factor in episode.inputs[:MAX_REASONS])
    return make(
        event,
        at=episode.began,
        episode=episode.number,
        score=episode.peak,
        limit=monitor.limit.value,
        inputs=tuple(name for name, _ in unusual(reasons)),
        reasons=reasons,
        pattern=episode.pattern,
        fault=episode.fault,
        like=episode.like,
    )


class Notice(NamedTuple):
    """A message for receivers, and when it was found."""

    number: int
    at: float
    message: Message


@dataclass(frozen=True)
class Receiver:
    """A receiver of messages: of which events, how often, and how delivery goes.

    Args:
        fleet: The fleet.
        name: Its name in the fleet.
        settings: What an operator asked for, without the secret.
        secret: The secret itself, if it is stored here. It is never shown.
        created: When it was set, in Unix seconds.
        sent: The number of the last notice that was sent to it.
        next_at: Not before this time the next message is sent.
        claimed_until: Until then a server is sending to it; 0 if none is.
        failures: How often the next message has failed so far.
        delivered: How many messages it has accepted.
        trouble: Why the last message was not accepted; "" if it was.
    """

    fleet: str
    name: str
    settings: ReceiverRequest
    secret: str | None = field(repr=False)
    created: float
    sent: int
    next_at: float
    claimed_until: float
    failures: int
    delivered: int
    trouble: str

    @property
    def address(self) -> str:
        """Where it is; paths are left out, since those of chats and topics are secrets."""
        settings = self.settings
        if settings.kind == "email":
            return ", ".join(settings.to)
        return host_of(settings.url)

    @property
    def secret_kind(self) -> str:
        """Where its secret is: "stored", "file NAME" or "none"."""
        if self.settings.secret_file:
            return f"file {self.settings.secret_file}"
        return "stored" if self.secret is not None else "none"

    def wants(self, message: Message) -> bool:
        """Return whether it is sent messages about this event."""
        return KINDS.get(message.event) in self.settings.events

    def free_at(self, now: float) -> bool:
        """Return whether a message may be sent now; times far ahead come from a wrong clock."""
        waits = now < self.next_at <= now + max(self.settings.every_s, MAX_RETRY_S)
        claimed = now < self.claimed_until <= now + LEASE_S
        return not waits and not claimed


def _receiver(row: SqlRow) -> Receiver:
    fleet, name, body, *rest = row
    return Receiver(fleet, name, ReceiverRequest.model_validate_json(body), *rest)


class NotificationService:
    """Receivers of fleets, and the worker that sends to them; any thread may call."""

    def __init__(
        self,
        database: Database,
        writer: Writer,
        history: History,
        *,
        clock: Callable[[], float],
        secrets_folder: Path | None = None,
        public_url: str | None = None,
    ) -> None:
        """Start the worker.

        Args:
            database: Where receivers and notices are stored.
            writer: What commits changes.
            history: What devices reported.
            clock: The time in Unix seconds.
            secrets_folder: The folder of files with secrets; none by default: then they are stored.
            public_url: The address of this server for people, for links in messages.
        """
        self._database, self._writer, self._history = database, writer, history
        self._clock, self._secrets = clock, secrets_folder
        self._public_url = (public_url or "").rstrip("/")
        self._watched: frozenset[str] = frozenset()
        self._known: dict[tuple[str, str], NotifiedState] = {}
        self._recording: set[tuple[str, str]] = set()
        self._sending: dict[tuple[str, str], Thread] = {}
        self._lock, self._turn = Lock(), Lock()
        self._news, self._stopping = Event(), Event()
        self._looked_at = self._since = self._swept_at = clock()
        self._troubled = False
        try:
            found = self._watch()
            if found and not database.is_shared:  # no other server can be sending
                writer.write(lambda tx: tx.run("update receivers set claimed_until = 0"))
        except EdgemergeError as error:
            log.warning("receivers cannot be read", extra={"values": {"problem": str(error)}})
        self._thread = Thread(target=self._work, name="notifications", daemon=True)
        self._thread.start()

    # What operators do

    def receivers(self, fleet: str) -> list[tuple[Receiver, int]]:
        """Return the receivers of a fleet, each with the number of its pending notices."""
        with self._database.reading() as tx:
            fleets.get(tx, fleet)
            return [(each, len(_pending(tx, each))) for each in _receivers(tx, fleet)]

    def put(self, fleet: str, name: str, asked: ReceiverRequest, caller: Caller) -> bool:
        """Set a receiver of what happens from now on; return False if it replaces one.

        One that replaces another is sent what was pending, also if the first address was wrong. The
        old secret is not kept: it must not reach an address for which it was not meant.
        """
        self._check(asked)
        now = self._clock()

        def change(tx: Transaction) -> bool:
            tx.lock(f"fleet {fleet}")
            fleets.get(tx, fleet)
            known = {each.name: each for each in _receivers(tx, fleet)}
            if name not in known and len(known) >= MAX_RECEIVERS:
                raise SettingError(
                    f"{fleet} has {len(known)} receivers, expected at most {MAX_RECEIVERS}: "
                    "remove one first"
                )
            body = asked.model_dump_json(exclude={"secret"})
            old = known.get(name)
            sent, delivered = (old.sent, old.delivered) if old else (_newest(tx, fleet), 0)
            values = (fleet, name, body, asked.secret, now, sent, delivered)
            tx.run(f"delete from receivers {WHERE_RECEIVER}", fleet, name)
            sql = f"insert into receivers ({RECEIVER_COLUMNS})"
            tx.run(f"{sql} values (?, ?, ?, ?, ?, ?, 0, 0, 0, ?, '')", *values)
            made = _receivers(tx, fleet, name)[0]
            detail: dict[str, Any] = {"kind": asked.kind, "address": made.address}
            detail["secret"] = made.secret_kind
            detail |= {"events": asked.events, "every_s": asked.every_s}
            audit.append(tx, now, caller.actor, "set receiver", fleet, name, **detail)
            return name not in known

        new = self._writer.write(change, fleet=fleet)
        self._watch()
        return new

    def remove(self, fleet: str, name: str, caller: Caller) -> None:
        """Remove a receiver; what is pending for it is not sent any more."""
        now = self._clock()

        def change(tx: Transaction) -> None:
            tx.lock(f"fleet {fleet}")
            _find(tx, fleet, name)
            tx.run(f"delete from receivers {WHERE_RECEIVER}", fleet, name)
            if not _receivers(tx, fleet):  # nothing is sent any more, so no state is needed
                for table in ("notices", "told"):
                    tx.run(f"delete from {table} where fleet = ?", fleet)
            audit.append(tx, now, caller.actor, "remove receiver", fleet, name)

        self._writer.write(change, fleet=fleet)
        self.forget(fleet)
        self._watch()

    def test(self, fleet: str, name: str, caller: Caller) -> str:
        """Send a test message now; return why it was not accepted, "" if it was."""
        with self._database.reading() as tx:
            receiver = _find(tx, fleet, name)
        now = self._clock()
        words = f"this is a test message of fleet {fleet} to {name}"
        message = Message("test", fleet, now, fleet=fleet, words=words, link=self._link(fleet))
        try:
            self._channel(receiver).send(message.plain())
            trouble = ""
        except EdgemergeError as error:
            trouble = _short(error)
        note = partial(audit.append, delivered=not trouble)
        about = now, caller.actor, "test receiver", fleet, name
        self._writer.write(lambda tx: note(tx, *about), fleet=fleet)
        return trouble

    def forget(self, fleet: str) -> None:
        """Forget what is remembered of a fleet that was deleted or has no receivers any more."""
        with self._lock:
            for key in [key for key in self._known if key[0] == fleet]:
                del self._known[key]

    def close(self) -> None:
        """Stop; what is being sent has a moment to be accepted, the rest waits in the database."""
        self._stopping.set()
        self._news.set()
        end = monotonic() + CLOSE_TIMEOUT_S
        for thread in (self._thread, *self._sending.copy().values()):
            thread.join(max(0.0, end - monotonic()))

    # What devices report

    def take(self, fleet: str, latest: LatestReport | None) -> None:
        """Compare a device's last report with the state before; nothing is waited for."""
        if latest is None or fleet not in self._watched:
            return
        device, now = latest.device, self._clock()
        key = fleet, device
        known = self._known.get(key)
        if known is not None and compare(known, fleet, latest, now)[1] == known:
            return
        with self._lock:
            if key in self._recording:  # the next report says it again
                return
            self._recording.add(key)
        find = partial(compare, fleet=fleet, latest=latest, now=now)
        try:
            future = self._writer.submit(lambda tx: _record(tx, fleet, device, now, find), fleet)
        except EdgemergeError:  # too much waits: the next report says it again
            self._recording.discard(key)
        else:
            future.add_done_callback(partial(self._recorded, key))

    def _recorded(self, key: tuple[str, str], future: Future[NotifiedState]) -> None:
        with self._lock:
            self._recording.discard(key)
            if future.cancelled() or future.exception() is not None:
                return
            if len(self._known) >= MAX_RECORDS:
                self._known.clear()
            self._known[key] = future.result()
        self._news.set()

    # The worker

    def step(self) -> list[Thread]:
        """Do what is due: look for devices that are offline, and send; return what is under way."""
        with self._turn:
            now = self._clock()
            if not 0.0 <= now - self._looked_at <= QUIET_S / 2:
                self._since = now  # it slept or the clock was set: wait until devices are heard
            self._looked_at = now
            waiting = self._watch()
            if waiting and not 0.0 <= now - self._swept_at < SWEEP_S:
                self._sweep(now)
                self._swept_at = now
            for receiver in waiting:
                self._send_if_due(receiver, now)
            return list(self._sending.copy().values())

    def _work(self) -> None:
        while not self._stopping.is_set():
            try:
                self.step()
                if self._troubled:
                    log.info("notifications work again")
                self._troubled = False
            except EdgemergeError as error:
                if not self._troubled:
                    values = {"problem": str(error)}
                    log.warning("notifications wait for the database", extra={"values": values})
                self._troubled = True
            except Exception:
                log.exception("notifications failed")
            self._news.wait(self._pause_s())
            self._news.clear()

    def _pause_s(self) -> float | None:
        """Return how long to wait if nothing is heard; None: until something is."""
        if self._watched:
            return BUSY_POLL_S
        return POLL_S if self._database.is_shared else None

    def _watch(self) -> list[Receiver]:
        """Read all receivers, and remember which fleets have any."""
        with self._database.reading() as tx:
            found = _receivers(tx)
        watched = frozenset(each.fleet for each in found)
        if watched != self._watched:
            self._watched = watched
            self._news.set()
        return found

    def _sweep(self, now: float) -> None:
        """Find devices that have gone offline, or are back."""
        with self._database.reading() as tx:
            changed = {fleet: list(self._changed(tx, fleet, now)) for fleet in self._watched}
        for fleet, found in changed.items():
            if not found:
                continue
            record = partial(_record_states, now=now, fleet=fleet, messages=found)
            recorded = self._writer.write(record, fleet=fleet)
            with self._lock:
                self._known |= {
                    (fleet, m.device): state for m, state in zip(found, recorded, strict=True)
                }

    def _changed(self, tx: Transaction, fleet: str, now: float) -> Iterable[Message]:
        rows = tx.rows("select device, body from told where fleet = ?", fleet)
        known = {device: NotifiedState.parse(body) for device, body in rows}
        latest, traffic = self._history.latest_reports(fleet), self._history.traffic(fleet)
        sql = "select device, seen, revoked from devices where fleet = ?"
        for device, seen, revoked in tx.rows(sql, fleet):
            one = latest.get(device)
            if one is None:
                continue
            last = last_contact(seen, traffic.get(device))
            state = device_state(now, latest=one, seen=last, revoked=revoked)
            was_offline = known.get(device, NotifiedState()).offline
            make = partial(Message, device=device, at=one.heard, fleet=fleet)
            # What another server heard while this one was not running is not known yet.
            if state == "offline" and not was_offline and now - self._since >= QUIET_S:
                yield make("offline", words="its agent was stopped" if one.left else "")
            elif state == "online" and was_offline:
                yield make("online")

    def _send_if_due(self, receiver: Receiver, now: float) -> None:
        key = (receiver.fleet, receiver.name)
        busy = key in self._sending or len(self._sending) >= MAX_SENDING
        if busy or self._stopping.is_set() or not receiver.free_at(now):
            return
        with self._database.reading() as tx:
            notices = _notices(tx, receiver)
        if not notices:
            return
        wanted = [each for each in notices if receiver.wants(each.message)]
        last = notices[-1].number
        if not wanted:
            self._writer.write(lambda tx: _skip(tx, receiver, last), fleet=receiver.fleet)
            return
        gathered = now - wanted[0].at
        storm = len({each.message.device for each in wanted}) >= STORM_DEVICES
        if receiver.failures == 0 and 0.0 <= gathered < (STORM_S if storm else GATHER_S):
            return
        if not self._writer.write(lambda tx: _claim(tx, receiver, now), fleet=receiver.fleet):
            return  # another server was first
        dropped = notices[0].number - receiver.sent - 1
        sending = Thread(
            target=self._send,
            args=(receiver, [each.message for each in wanted], dropped, last),
            name=f"notify {receiver.name}",
            daemon=True,
        )
        self._sending[key] = sending
        try:
            sending.start()
        except RuntimeError:  # no more threads: it is sent when the claim has ended
            del self._sending[key]
            raise

    def _send(
        self, receiver: Receiver, messages: Sequence[Message], dropped: int, last: int
    ) -> None:
        """Send a message, and remember how that went."""
        try:
            linked = [replace(each, link=self._link(each.fleet, each.device)) for each in messages]
            about = summarize(
                receiver.fleet, linked, dropped=dropped, link=self._link(receiver.fleet)
            )
            trouble, permanent = self._try(receiver, about)
            failpoint("server-after-notification")
            now = self._clock()
            values = {"fleet": receiver.fleet, "receiver": receiver.name, "events": len(messages)}
            if trouble and not permanent:
                if not receiver.failures:
                    values |= {"why": trouble}
                    log.warning(
                        "a message could not be delivered: trying again", extra={"values": values}
                    )
                retry = Backoff(FIRST_RETRY_S, MAX_RETRY_S, failures=receiver.failures)
                change = _Outcome(receiver.sent, now + retry.next(), receiver.failures + 1, trouble)
            else:
                if permanent:
                    values |= {"why": trouble}
                    log.error("a message was refused and is dropped", extra={"values": values})
                change = _Outcome(last, now + receiver.settings.every_s, 0, trouble)
            self._writer.write(lambda tx: _finish(tx, receiver, change), fleet=receiver.fleet)
        except EdgemergeError as error:  # then its place is claimed for a while, and it is repeated
            values = {"receiver": receiver.name, "problem": str(error)}
            log.warning("a message may be sent again", extra={"values": values})
        except Exception:
            log.exception("sending a message failed")
        finally:
            self._sending.pop((receiver.fleet, receiver.name), None)
            self._news.set()

    def _try(self, receiver: Receiver, about: Mapping[str, Any]) -> tuple[str, bool]:
        """Send; return why it was not accepted, and whether it never will be."""
        try:
            self._channel(receiver).send(about)
        except UndeliveredError as error:
            return _short(error), error.permanent
        except SettingError as error:  # such as a file that is missing: it can be corrected
            return _short(error), False
        return "", False

    def _channel(self, receiver: Receiver) -> Channel:
        settings, secret = receiver.settings, receiver.secret
        if settings.secret_file:
            secret = read_secret(self._secret_path(settings.secret_file), strip="\r\n")
        return make_channel(settings, secret)

    def _check(self, asked: ReceiverRequest) -> None:
        """Refuse what cannot work, before it is stored."""
        if asked.secret is not None and asked.secret_file:
            raise SettingError("found both secret and secret_file, expected one of them")
        if asked.secret_file and not self._secret_path(asked.secret_file).is_file():
            raise SettingError(f"found no file {asked.secret_file} in the folder of secrets")
        make_channel(asked, asked.secret)

    def _secret_path(self, name: str) -> Path:
        """Return the path of a secret; names alone, so that no other file can be sent away."""
        if self._secrets is None:
            raise SettingError(
                "found secret_file, but this server has no folder of secrets: start it with "
                "--secrets-folder, or give the secret itself"
            )
        if not re.fullmatch(SECRET_NAME, name):
            raise SettingError(f"found the secret_file {name!r}, expected the name of a file")
        return self._secrets / name

    def _link(self, fleet: str | None, device: str = "") -> str | None:
        if not self._public_url or not fleet:
            return None
        page = f"{self._public_url}/ui/fleets/{quote(fleet, safe='')}"
        return f"{page}/devices/{quote(device, safe='')}" if device else page


def make_channel(settings: ReceiverRequest, secret: str | None) -> Channel:
    """Return the way to a receiver.

    Args:
        settings: Where it is.
        secret: The token of a webhook, or the password of a mailbox.

    Raises:
        SettingError: Something is missing, or cannot work.
    """
    if settings.kind == "email":
        if not settings.host or not settings.sender or not settings.to:
            raise SettingError("a receiver of kind email needs host, sender and to: set them")
        return EmailChannel(
            settings.host,
            settings.port,
            sender=settings.sender,
            recipients=settings.to,
            security=settings.security,
            username=settings.username or None,
            password=secret,
        )
    if not settings.url:
        raise SettingError(f"a receiver of kind {settings.kind} needs url: set it")
    parts = urlsplit(settings.url)
    if "@" in parts.netloc or not settings.url.isascii() or not settings.url.isprintable():
        raise SettingError("found a url with a user or odd characters, expected a plain address")
    preset = "json" if settings.kind == "webhook" else settings.kind
    return WebhookChannel(settings.url, preset=preset, token=secret)


class _Outcome(NamedTuple):
    """What is remembered of a receiver after a message."""

    sent: int
    next_at: float
    failures: int
    trouble: str


def _receivers(tx: Transaction, fleet: str = "", name: str = "") -> list[Receiver]:
    """Return receivers: all, those of a fleet, or one."""
    where = " and ".join(f"{key} = ?" for key, value in (("fleet", fleet), ("name", name)) if value)
    sql = f"select {RECEIVER_COLUMNS} from receivers" + (f" where {where}" if where else "")
    rows = tx.rows(f"{sql} order by fleet, name", *filter(None, (fleet, name)))
    return [_receiver(row) for row in rows]


def _find(tx: Transaction, fleet: str, name: str) -> Receiver:
    fleets.get(tx, fleet)
    found = _receivers(tx, fleet, name)
    if not found:
        raise UnknownError(
            f"no receiver {name} in {fleet}: `edgemerge fleet receivers list {fleet}` lists them"
        )
    return found[0]


def _pending(tx: Transaction, receiver: Receiver) -> list[Notice]:
    return [each for each in _notices(tx, receiver) if receiver.wants(each.message)]


def _notices(tx: Transaction, receiver: Receiver) -> list[Notice]:
    """Return all notices since the last that was sent to a receiver, wanted or not."""
    sql = "select number, at, body from notices where fleet = ? and number > ? order by number"
    rows = tx.rows(sql, receiver.fleet, receiver.sent)
    return [Notice(number, at, _message(body)) for number, at, body in rows]


def _message(text: str) -> Message:
    found = json.loads(text)
    known = {each.name for each in fields(Message)}
    words = {name: value for name, value in found.items() if name in known}
    words["inputs"] = tuple(words.get("inputs", ()))
    words["reasons"] = tuple((name, factor) for name, factor in words.get("reasons", ()))
    return Message(**words)


def _newest(tx: Transaction, fleet: str) -> int:
    """Return the number of the newest notice; those that were sent everywhere are deleted."""
    noted = tx.one("select max(number) from notices where fleet = ?", fleet)
    sent = tx.one("select max(sent) from receivers where fleet = ?", fleet)
    return max(int(row[0] or 0) for row in (noted, sent) if row)


def _record(
    tx: Transaction,
    fleet: str,
    device: str,
    now: float,
    find: Callable[[NotifiedState | None], tuple[list[Message], NotifiedState]],
) -> NotifiedState:
    """Compare with the stored state, append notices of what is new, and store the new state."""
    row = tx.one(f"select body from told {WHERE_DEVICE}", fleet, device)
    before = NotifiedState.parse(row[0]) if row else None
    messages, after = find(before)
    enrolled = tx.one(f"select 1 from devices {WHERE_DEVICE}", fleet, device)
    receivers = _receivers(tx, fleet)
    if enrolled is None or not receivers:
        return after  # all was deleted meanwhile
    wanted = [each for each in messages if any(one.wants(each) for one in receivers)]
    if wanted:
        _append(tx, fleet, wanted, now)
    if after != before:
        upsert(tx, "told", "fleet, device, body", (fleet, device, after.json))
    return after


def _record_states(
    tx: Transaction, *, now: float, fleet: str, messages: Sequence[Message]
) -> list[NotifiedState]:
    return [_record_state(tx, now, fleet, each.device, each) for each in messages]


def _record_state(
    tx: Transaction, now: float, fleet: str, device: str, message: Message
) -> NotifiedState:
    """Record that a device went offline or is back, unless another server has."""
    offline = message.event == "offline"

    def find(before: NotifiedState | None) -> tuple[list[Message], NotifiedState]:
        known = before or NotifiedState()
        return [message] if known.offline != offline else [], replace(known, offline=offline)

    return _record(tx, fleet, device, now, find)


def _append(tx: Transaction, fleet: str, messages: Iterable[Message], now: float) -> None:
    number = _newest(tx, fleet)
    for number, message in enumerate(messages, number + 1):  # noqa: B020 - it goes on from there
        body = json.dumps(vars(message), separators=(",", ":"), ensure_ascii=False)
        sql = "insert into notices (fleet, number, at, body) values (?, ?, ?, ?)"
        tx.run(sql, fleet, number, now, body)
    sql = "delete from notices where fleet = ? and number <= ?"
    tx.run(sql, fleet, number - MAX_NOTICES)


def _claim(tx: Transaction, receiver: Receiver, now: float) -> bool:
    """Claim a receiver for this server; return False if another server has it, or was quicker."""
    sql = f"update receivers set claimed_until = ? {WHERE_RECEIVER} and created = ? and sent = ?"
    free = "and (claimed_until <= ? or claimed_until > ?)"
    which = (receiver.fleet, receiver.name, receiver.created, receiver.sent)
    return tx.run(f"{sql} {free}", now + LEASE_S, *which, now, now + LEASE_S) == 1


def _finish(tx: Transaction, receiver: Receiver, outcome: _Outcome) -> None:
    taken = outcome.sent > receiver.sent and not outcome.trouble
    tx.run(
        "update receivers set claimed_until = 0, sent = ?, next_at = ?, failures = ?, trouble = ?,"
        f" delivered = delivered + ? {WHERE_RECEIVER} and created = ?",
        *(*outcome, int(taken), receiver.fleet, receiver.name, receiver.created),
    )
    _delete_sent(tx, receiver.fleet)


def _skip(tx: Transaction, receiver: Receiver, number: int) -> None:
    """Move a receiver's place past notices that it does not want."""
    sql = f"update receivers set sent = ? {WHERE_RECEIVER} and created = ? and sent = ?"
    tx.run(sql, number, receiver.fleet, receiver.name, receiver.created, receiver.sent)
    _delete_sent(tx, receiver.fleet)


def _delete_sent(tx: Transaction, fleet: str) -> None:
    sql = "delete from notices where fleet = ? and number <="
    tx.run(f"{sql} (select min(sent) from receivers where fleet = ?)", fleet, fleet)


def _short(error: Exception) -> str:
    text = "".join(each if each.isprintable() else " " for each in str(error))
    return text[:MAX_TROUBLE_CHARS] or repr(type(error).__name__)
