"""Reviews: what operators decide about a device's patterns and episodes, until the device did it.

A review waits in the device's desired-state document; the device's reports say up to which number
it has acted. Both adding a review and its end raise the fleet's epoch, so the document's revision
rises too. `epoch` is that of the last change of a review.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

from edgemerge.core.errors import EdgemergeError, SettingError, UnknownError
from edgemerge.core.ledger import must_be_name
from edgemerge.server import audit, fleets
from edgemerge.server.auth import Caller
from edgemerge.server.backup import numbers_begin
from edgemerge.server.db.base import WHERE_DEVICE, Database, SqlRow, Transaction, Writer
from edgemerge.server.episodes import acknowledge, list_unseen
from edgemerge.server.schemas import (
    Decision,
    PatternDecision,
    ReportedMonitor,
    ReportedReviews,
    ReviewRequest,
)

ReviewState = Literal["waiting", "done", "refused"]
MAX_REVIEWS = 200  # of a device; of those that do not wait, the oldest are forgotten
MAX_WAITING = 32  # of a device
REVIEW_COLUMNS = "number, at, actor, epoch, state, body"
PATTERN_DECISIONS = get_args(PatternDecision)
MAX_LISTED_PATTERNS = 48  # an agent lists no more: there may be others
FIRST_NAME = re.compile(r"odd-\d+")  # of a pattern, also of one that has become a fault

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Review:
    """One decision about a device.

    Args:
        number: Counts from 1 for each device; a device acts on numbers above its last.
        at: When it was decided, in Unix seconds.
        by: Who decided.
        decision: What was decided.
        pattern: The pattern it is about, "" if about none.
        name: What a fault is called.
        episode: The episode that is acknowledged; None: all.
        until: When a snooze ends; None: now.
        comment: Words for those who read it later.
        state: "waiting" until the device reported that it acted, then "done" or "refused".
        why: Why the device refused.
        epoch: The fleet's epoch of the last change of this review.
    """

    number: int
    at: float
    by: str
    decision: Decision
    pattern: str = ""
    name: str = ""
    episode: int | None = None
    until: float | None = None
    comment: str = ""
    state: ReviewState = "waiting"
    why: str = ""
    epoch: int = 0

    @property
    def plain(self) -> dict[str, Any]:
        """What the device gets to read of it."""
        left_out = ("state", "why", "epoch")
        return {name: value for name, value in asdict(self).items() if name not in left_out}

    @property
    def body(self) -> str:
        """What was decided, as it is stored."""
        columns = ("number", "at", "by", "state", "epoch")
        said = {name: value for name, value in asdict(self).items() if name not in columns}
        return json.dumps(said, separators=(",", ":"))

    def same(self, other: Review) -> bool:
        """Return whether both decide the same, comments aside."""
        return _decided(self) == _decided(other)


def _decided(review: Review) -> tuple[Any, ...]:
    return review.decision, review.pattern, review.name, review.episode, review.until


class WaitingReviews(NamedTuple):
    """Of one device: the epoch of its newest change, and the number that waits longest."""

    epoch: int
    first: int | None


def reviews_of(tx: Transaction, fleet: str, device: str) -> list[Review]:
    """Return the reviews of a device, newest first."""
    sql = f"select {REVIEW_COLUMNS} from reviews {WHERE_DEVICE} order by number desc"
    return [_review_from_row(row) for row in tx.rows(sql, fleet, device)]


def waiting_reviews(tx: Transaction, fleet: str, device: str) -> tuple[Review, ...]:
    """Return the reviews that a device has not acted upon, in the order in which it will."""
    sql = f"select {REVIEW_COLUMNS} from reviews {WHERE_DEVICE} and state = 'waiting'"
    return tuple(_review_from_row(row) for row in tx.rows(f"{sql} order by number", fleet, device))


def waiting_in_fleet(tx: Transaction, fleet: str) -> dict[str, list[Review]]:
    """Return the reviews of a fleet that wait, for each device in the order in which it will act.

    Args:
        tx: The transaction to read in.
        fleet: The fleet.
    """
    found: dict[str, list[Review]] = {}
    sql = f"select device, {REVIEW_COLUMNS} from reviews where fleet = ? and state = 'waiting'"
    for device, *row in tx.rows(f"{sql} order by device, number", fleet):
        found.setdefault(device, []).append(_review_from_row(tuple(row)))
    return found


def waiting_by_device(tx: Transaction, fleet: str) -> dict[str, WaitingReviews]:
    """Return what has changed last, and what waits, for each device that ever had a review."""
    rows = tx.rows(
        "select device, max(epoch), min(case when state = 'waiting' then number end)"
        " from reviews where fleet = ? group by device",
        fleet,
    )
    return {device: WaitingReviews(epoch, first) for device, epoch, first in rows}


def _review_from_row(row: SqlRow) -> Review:
    number, at, actor, epoch, state, body = row
    return Review(number=number, at=at, by=actor, epoch=epoch, state=state, **json.loads(body))


def check_review(asked: ReviewRequest) -> None:
    """Refuse a decision without what it needs, or with what it has no use for."""
    decision, about_pattern = asked.decision, asked.decision in PATTERN_DECISIONS
    if about_pattern:
        must_be_name("pattern", asked.pattern)
    if decision == "fault":
        must_be_name("name of the fault", asked.name)
    useless = {
        "pattern": bool(asked.pattern) and not about_pattern,
        "name": bool(asked.name) and decision != "fault",
        "episode": asked.episode is not None and decision != "acknowledge",
        "until": asked.until is not None and decision != "snooze",
    }
    for word, given in useless.items():
        if given:
            raise SettingError(f"found {word} for {decision!r}, expected none: leave it out")
    if not asked.comment.isprintable():
        raise SettingError(f"found comment {asked.comment[:80]!r}, expected one printable line")


class ReviewService:
    """Adds reviews, lists them, and notes what devices report about them; any thread may call."""

    def __init__(
        self,
        database: Database,
        writer: Writer,
        *,
        clock: Callable[[], float],
        done: Callable[[str, str], int],
        monitor: Callable[[str, str], ReportedMonitor | None],
        changed: Callable[[str], None],
    ) -> None:
        """Start on a database.

        Args:
            database: Where reviews are stored.
            writer: What commits changes.
            clock: The time of reviews, in Unix seconds.
            done: Returns the highest number that a device has reported as done.
            monitor: Returns what a device reported of its monitor last, if it did.
            changed: Is called with the name of a fleet after its reviews changed.
        """
        self._database, self._writer = database, writer
        self._clock, self._done, self._changed = clock, done, changed
        self._monitor = monitor
        self._settling: set[tuple[str, str]] = set()

    def add(self, fleet: str, device: str, asked: ReviewRequest, caller: Caller) -> Review:
        """Store a decision for a device; one that waits already is not made again."""
        check_review(asked)
        done = self._done(fleet, device)
        made = Review(0, self._clock(), caller.actor, **asked.model_dump())

        def change(tx: Transaction) -> Review:
            tx.lock(f"fleet {fleet}")
            if made.decision == "acknowledge":
                return _acknowledge(tx, fleet, device, made, done)
            _must_be_enrolled(tx, fleet, device)
            if made.decision in PATTERN_DECISIONS:
                _must_be_listed(tx, fleet, device, made.pattern, self._monitor(fleet, device))
            return _store_new(tx, fleet, device, made, done)

        found = self._writer.write(change, fleet=fleet)
        self._changed(fleet)
        return found

    def acknowledge_ended(self, fleet: str, caller: Caller, *, until: float) -> int:
        """Acknowledge all episodes of a fleet that ended; return how many they are.

        Args:
            fleet: The fleet.
            caller: Who has seen them.
            until: Of those, the ones whose last change is not later than this.
        """
        made = Review(0, self._clock(), caller.actor, "acknowledge")

        def change(tx: Transaction) -> int:
            tx.lock(f"fleet {fleet}")
            fleets.get(tx, fleet)
            found = list_unseen(tx, fleet, until)
            for each in found:
                done = self._done(fleet, each.device)
                # One review for all would acknowledge the open one, too.
                for number in each.numbers if each.open else [None]:
                    _acknowledge(tx, fleet, each.device, replace(made, episode=number), done)
            return sum(len(each.numbers) for each in found)

        found = self._writer.write(change, fleet=fleet)
        self._changed(fleet)
        return found

    def list_reviews(self, fleet: str, device: str) -> list[Review]:
        """Return the reviews of a device, newest first, with what became of each."""
        with self._database.reading() as tx:
            fleets.get(tx, fleet)
            _must_be_enrolled(tx, fleet, device, revoked=True)
            return reviews_of(tx, fleet, device)

    def settle(self, fleet: str, device: str, reported: ReportedReviews) -> None:
        """Note in the background what a device has acted upon; nothing is waited for."""
        key, now = (fleet, device), self._clock()
        if key in self._settling:
            return

        def change(tx: Transaction) -> bool:
            tx.lock(f"fleet {fleet}")
            return _store_settled(tx, key, reported, now)

        def settled(found: Future[bool]) -> None:
            self._settling.discard(key)
            if found.exception() is not None:  # the next report brings it again
                log.warning("reviews were not settled", extra={"values": {"device": device}})

        self._settling.add(key)
        try:
            self._writer.submit(change, fleet).add_done_callback(settled)
        except EdgemergeError:  # the next report brings it again
            self._settling.discard(key)


def _must_be_enrolled(tx: Transaction, fleet: str, device: str, *, revoked: bool = False) -> bool:
    """Refuse a device that is not there; return whether its token still works."""
    fleets.get(tx, fleet)
    row = tx.one(f"select revoked from devices {WHERE_DEVICE}", fleet, device)
    if row is None:
        raise fleets.unknown_device(fleet, device)
    if row[0] is not None and not revoked:
        raise SettingError(f"the token of {device} was revoked, so it cannot act on a review")
    return row[0] is None


def _must_be_listed(
    tx: Transaction, fleet: str, device: str, pattern: str, monitor: ReportedMonitor | None
) -> None:
    """Refuse a pattern that the device cannot know, if it has said which ones it knows."""
    if monitor is None or len(monitor.patterns) >= MAX_LISTED_PATTERNS:
        return
    names = [each.name for each in monitor.patterns]
    coming = [each.name for each in waiting_reviews(tx, fleet, device)]  # what it will call them
    has_faults = any(each.status == "fault" for each in monitor.patterns)
    if pattern in (*names, *coming) or (has_faults and FIRST_NAME.fullmatch(pattern)):
        return
    raise UnknownError(
        f"no pattern {pattern} of {device}, which last listed {', '.join(names) or 'none'}: "
        f"`edgemerge fleet monitor {fleet} {device}` shows them"
    )


def _acknowledge(tx: Transaction, fleet: str, device: str, made: Review, done: int) -> Review:
    """Note that episodes were seen, and store the review by which the device hears of it."""
    enrolled = _must_be_enrolled(tx, fleet, device, revoked=True)
    acknowledge(tx, fleet, device, made.episode, by=made.by, at=made.at, comment=made.comment)
    seen = made if enrolled else replace(made, state="done")  # its device will never hear of it
    return _store_new(tx, fleet, device, seen, done)


def _store_new(tx: Transaction, fleet: str, device: str, made: Review, done: int) -> Review:
    known = reviews_of(tx, fleet, device)
    waiting = [review for review in known if review.state == "waiting"]
    about = [review for review in waiting if review.pattern == made.pattern]
    if about and about[0].same(made):
        return about[0]
    if len(waiting) >= MAX_WAITING:
        raise SettingError(
            f"{device} has {len(waiting)} reviews that it has not acted upon, expected fewer than "
            f"{MAX_WAITING}: see that it reports"
        )
    # Above all that the device has done, also if this database is older than the device's state.
    number = max(known[0].number if known else 0, done, numbers_begin(tx)) + 1
    made = replace(made, number=number, epoch=fleets.next_epoch(tx, fleet))
    tx.run(
        f"insert into reviews (fleet, device, {REVIEW_COLUMNS}) values (?, ?, ?, ?, ?, ?, ?, ?)",
        *(fleet, device, made.number, made.at, made.by, made.epoch, made.state, made.body),
    )
    settled = [review for review in known if review.state != "waiting"]
    for review in settled[MAX_REVIEWS - MAX_WAITING :]:
        tx.run(f"delete from reviews {WHERE_DEVICE} and number = ?", fleet, device, review.number)
    said = {name: value for name, value in made.plain.items() if value not in (None, "")}
    for name in ("by", "at"):
        del said[name]
    audit.append(tx, made.at, made.by, "review", fleet, device, **said)
    return made


def _store_settled(
    tx: Transaction, key: tuple[str, str], reported: ReportedReviews, now: float
) -> bool:
    """Store what became of reviews that waited; return whether there were any."""
    fleet, device = key
    ended = [each for each in waiting_reviews(tx, *key) if each.number <= reported.done]
    if not ended:
        return False
    why: Mapping[int, str] = dict(reported.refused)
    epoch = fleets.next_epoch(tx, fleet)
    for review in ended:
        refused = review.number in why
        after = replace(
            review, state="refused" if refused else "done", why=why.get(review.number, "")
        )
        sql = f"update reviews set state = ?, epoch = ?, body = ? {WHERE_DEVICE} and number = ?"
        tx.run(sql, after.state, epoch, after.body, *key, after.number)
    actor = Caller(device, fleet).actor
    for state in ("done", "refused"):
        numbers = [each.number for each in ended if (each.number in why) == (state == "refused")]
        if numbers:
            audit.append(tx, now, actor, f"review {state}", fleet, device, numbers=numbers)
    return True
