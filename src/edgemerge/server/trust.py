"""Trust in the server: which contributions wait and why, and which do not fit a receiver.

What waits follows from the fleet's rule, operators' decisions and the current sums; nothing about
it is stored. Comparing has a time budget: what was not compared in time waits, and pairs that were
compared are remembered, so that the next pull goes on.

A device that adopts a sum cannot look at the single contributions in it, so the server checks each
against what the device has shared itself. What does not fit is left out of the sums for this
receiver alone. Each pair is checked once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from threading import Lock
from time import monotonic

from edgemerge.core.errors import UnavailableError
from edgemerge.core.ledger import Key
from edgemerge.core.similarity import SIMILAR_FACTOR, LevelCheck, Profile, alike, can_check
from edgemerge.core.stats import Stats
from edgemerge.core.trust import DISMISSED, Trust, find_far_above, find_waiting, nearest
from edgemerge.server.choices.rules import Choice, Rules, approved_stats
from edgemerge.server.contributions import (
    ProfileCache,
    StoredContribution,
    current_contributions,
    read_stats,
)
from edgemerge.server.db.base import BoundedCache, Transaction
from edgemerge.server.fleets import Fleet

MAX_REMEMBERED = 200_000  # pairs
COMPARE_TIMEOUT_S = 5.0  # of one pull
MAX_FLEETS = 64  # whose result is remembered
MAX_AT_ONCE = 50  # contributions that wait, in memory at once
MAX_COMPARED = 200  # trusted contributions, the largest, that a waiting one is compared with
NOT_COMPARED = "; it is not compared with all others yet"

Waiting = Mapping[Key, str]


@dataclass(frozen=True)
class WaitingContribution:
    """A contribution that waits.

    Args:
        stored: The contribution.
        since: Since when it waits, in Unix seconds.
        why: Why it waits.
        nearest: The trusted contribution that is most like it, None if there is none.
        ratio: The worse of the loss ratios between both (M10).
    """

    stored: StoredContribution
    since: float
    why: str
    nearest: Key | None = None
    ratio: float | None = None

    @property
    def like_none(self) -> bool:
        """Whether no trusted contribution is similar."""
        return self.ratio is None or self.ratio > SIMILAR_FACTOR


class TrustChecks:
    """Finds what waits, and remembers comparisons; any thread may call."""

    def __init__(self, profiles: ProfileCache) -> None:
        """Have compared nothing yet."""
        self._profiles = profiles
        self._pairs = BoundedCache[tuple[str, str], bool](MAX_REMEMBERED)
        self._found = BoundedCache[str, tuple[object, Waiting]](MAX_FLEETS)
        self._comparing = Lock()

    def waiting(
        self,
        tx: Transaction,
        fleet: Fleet,
        contributions: Sequence[StoredContribution],
        rules: Rules,
    ) -> Waiting:
        """Return why contributions wait, by key, with what was dismissed.

        Args:
            tx: The transaction to read in.
            fleet: The fleet.
            contributions: All that it has.
            rules: What operators have decided.
        """
        trust = Trust.parse(fleet.trust)
        members = _members(tx, fleet.name) if trust.rule == "quorum" else None
        state = fleet.epoch, members
        known = self._found.get(fleet.name)
        if known is not None and known[0] == state:
            return known[1]
        some = _in_question(contributions, rules)
        far_above = find_far_above(_samples(some), partial(_spans, tx, fleet.name, some))
        with self._comparing:
            compare = _Comparison(tx, fleet, self._profiles, self._pairs)
            found = find_waiting(
                trust,
                some,
                compare.alike,
                approved=rules.approved,
                dismissed=rules.dismissed,
                far_above=far_above,
                members=members,
            )
        if compare.out_of_time:
            return {key: why + NOT_COMPARED * (why != DISMISSED) for key, why in found.items()}
        self._found.put(fleet.name, (state, found))
        return found

    def describe(
        self,
        tx: Transaction,
        fleet: Fleet,
        contributions: Sequence[StoredContribution],
        waiting: Waiting,
        rules: Rules,
        limit: int | None = None,
    ) -> list[WaitingContribution]:
        """Describe what waits, without what was dismissed, the longest first.

        Each is compared with the largest trusted contributions, also of its own device.

        Args:
            tx: The transaction to read in.
            fleet: The fleet.
            contributions: Those to describe, and those that are trusted.
            waiting: What `waiting` returned.
            rules: What operators have decided.
            limit: How many to describe; None: all.
        """
        some = _in_question(contributions, rules)
        asked = [each for each in some if waiting.get(each.key, DISMISSED) != DISMISSED]
        trusted = [each for each in some if each.key not in waiting]
        trusted = sorted(trusted, key=lambda each: (-each.samples, each.key))[:MAX_COMPARED]
        profile = partial(self._profiles.profile, tx, projection=fleet.projection)
        since = {each.key: _since(tx, fleet.name, each, rules) for each in asked}
        asked = sorted(asked, key=lambda each: (since[each.key], each.key))[:limit]
        known = {each.key: profile(each) for each in trusted} if asked else {}
        found = []
        for start in range(0, len(asked), MAX_AT_ONCE):
            part = asked[start : start + MAX_AT_ONCE]
            for each, best in zip(part, nearest(list(map(profile, part)), known), strict=True):
                words = since[each.key], waiting[each.key]
                found.append(WaitingContribution(each, *words, *(best or (None, None))))
        return found


class _Comparison:
    """Compares within a time budget; afterwards nothing is alike that was not known to be."""

    def __init__(
        self,
        tx: Transaction,
        fleet: Fleet,
        profiles: ProfileCache,
        pairs: BoundedCache[tuple[str, str], bool],
    ) -> None:
        self._tx, self._fleet, self._profiles, self._pairs = tx, fleet, profiles, pairs
        self._end = monotonic() + COMPARE_TIMEOUT_S
        self.out_of_time = False

    def alike(self, one: StoredContribution, other: StoredContribution | Choice) -> bool:
        """Return whether two contributions, or one and what was approved, are similar."""
        a, b = sorted((one.digest, other.digest or ""))
        if a == b:
            return True
        found = self._pairs.get((a, b))
        if found is None:
            if monotonic() > self._end:
                self.out_of_time = True
                return False
            found = self._compare(one, other)
            self._pairs.put((a, b), found)
        return found

    def _compare(self, one: StoredContribution, other: StoredContribution | Choice) -> bool:
        mine, theirs = self._profile(one), self._profile(other)
        if mine is None or theirs is None:
            return False
        return alike(mine, theirs)

    def _profile(self, one: StoredContribution | Choice) -> Profile | None:
        projection = self._fleet.projection
        if isinstance(one, StoredContribution):
            return self._profiles.profile(self._tx, one, projection)
        stats = approved_stats(self._tx, self._fleet.name, one, projection)
        return None if stats is None else Profile.of(stats)


def _in_question(
    contributions: Sequence[StoredContribution], rules: Rules
) -> list[StoredContribution]:
    """Return what is not excluded, first of devices with few patterns: others may have to wait."""
    some = [each for each in contributions if each.samples > 0 and each.key not in rules.excluded]
    patterns = Counter(each.device for each in some)
    return sorted(some, key=lambda each: (patterns[each.device], each.key))


def _samples(contributions: Sequence[StoredContribution]) -> dict[str, float]:
    found: dict[str, float] = {}
    for each in contributions:
        found[each.device] = found.get(each.device, 0.0) + each.samples
    return found


def _members(tx: Transaction, fleet: str) -> frozenset[str]:
    sql = "select device from devices where fleet = ? and revoked is null"
    return frozenset(device for (device,) in tx.rows(sql, fleet))


def _spans(
    tx: Transaction, fleet: str, contributions: Sequence[StoredContribution]
) -> dict[str, float]:
    """Return for how long each device had been a member when it last pushed, in seconds.

    It begins with the first enrolment: a device that enrols again has not begun anew.
    """
    sql = "select device, coalesce(first_enrolled, enrolled) from devices where fleet = ?"
    began: dict[str, float] = dict(tx.rows(sql, fleet))
    last: dict[str, float] = {}
    for each in contributions:
        last[each.device] = max(each.received, last.get(each.device, each.received))
    return {device: last[device] - float(began[device]) for device in last if device in began}


def _since(tx: Transaction, fleet: str, stored: StoredContribution, rules: Rules) -> float:
    """Return when the first revision came, or when the trust was changed if that was later.

    What was approved, and is another now, waits since it is.
    """
    if stored.key in rules.approved:
        return stored.received
    sql = "select min(at), max(at) from audit where fleet = ? and subject = ? and action = ?"
    first = tx.one(sql, fleet, "/".join(map(str, stored.key)), "contribute") or (None, None)
    changed = tx.one(sql, fleet, fleet, "trust") or (None, None)
    return max(float(first[0] or stored.received), float(changed[1] or 0.0))


CHECK_TIMEOUT_S = 10.0  # of one pull; the next one goes on where it ended

Refusals = Mapping[Key, str]


class _Judge:
    """A receiver with what it has shared, and what does not fit that."""

    def __init__(self, receiver: str, own: list[StoredContribution], *, apart: bool) -> None:
        self.receiver, self.refused = receiver, dict[Key, str]()
        self._own, self._apart = own, apart
        self._check: LevelCheck | None = None
        self.digest = sha256(f"{apart} {[each.digest for each in own]}".encode()).hexdigest()

    @property
    def samples(self) -> float:
        return sum(stored.samples for stored in self._own)

    def check(self, read: Callable[[StoredContribution], Stats]) -> LevelCheck:
        if self._check is None:
            mine = {stored.pattern: read(stored) for stored in self._own}
            self._check = LevelCheck(mine, apart=self._apart)
        return self._check


def _solved(sums: Stats) -> Stats | Profile:
    """Return sums for several comparisons; empty ones are not compared."""
    return Profile.of(sums) if sums.count else sums


def _must_not_be_late(end: float) -> None:
    if monotonic() > end:
        raise UnavailableError("too many contributions wait to be checked: try again", retry_s=1.0)


class LevelChecks:
    """Leaves out what does not fit a receiver, and remembers why; any thread may call."""

    def __init__(self) -> None:
        """Start with nothing checked."""
        self._reasons = BoundedCache[tuple[str, str], str](MAX_REMEMBERED)
        self._refused: dict[tuple[str, str], Refusals] = {}
        self._lock = Lock()

    def fitting(
        self,
        tx: Transaction,
        fleet: Fleet,
        receiver: str | None,
        chosen: list[StoredContribution],
        contributions: Sequence[StoredContribution],
        *,
        trusted: frozenset[str] | None,
        apart: bool,
    ) -> tuple[list[StoredContribution], Refusals]:
        """Return those chosen that fit what the receiver has shared, and why others do not.

        Args:
            tx: The transaction to read in.
            fleet: The fleet.
            receiver: The device that would adopt them; for None, an operator, all fit.
            chosen: What it would adopt.
            contributions: All that the fleet has.
            trusted: Devices that an operator chose for it: what they sent was decided upon.
            apart: Whether it keeps patterns apart, as a bank does.

        Raises:
            UnavailableError: There is much to check; what was done is remembered.
        """
        if receiver is None:
            return chosen, {}
        others = [stored for stored in chosen if stored.device not in (trusted or ())]
        (refused,) = self.refusals(tx, fleet, [receiver], others, contributions, apart=apart)
        return [stored for stored in chosen if stored.key not in refused], refused

    def refusals(
        self,
        tx: Transaction,
        fleet: Fleet,
        receivers: Sequence[str],
        chosen: list[StoredContribution],
        contributions: Sequence[StoredContribution],
        *,
        apart: bool,
    ) -> list[Refusals]:
        """Return for each receiver what does not fit it, and why: see `fitting`.

        Each contribution is read and solved once for all of them.
        """
        read = partial(read_stats, tx, projection=fleet.projection)
        judges = [
            _Judge(who, current_contributions(contributions, who), apart=apart) for who in receivers
        ]
        able = [judge for judge in judges if can_check(judge.samples, fleet.projection)]
        end = monotonic() + CHECK_TIMEOUT_S
        for stored in chosen:
            theirs: Stats | Profile | None = None
            for judge in able:
                if stored.device == judge.receiver:  # what it saw in earlier incarnations
                    continue
                reason = self._reasons.get((judge.digest, stored.digest))
                if reason is None:
                    _must_not_be_late(end)
                    theirs = theirs or _solved(read(stored))
                    reason = judge.check(read).reason(theirs)
                    self._reasons.put((judge.digest, stored.digest), reason)
                if reason:
                    judge.refused[stored.key] = reason
        return [judge.refused for judge in judges]

    def record(self, fleet: str, receiver: str, refused: Refusals) -> Refusals:
        """Keep what was left out of the last sum for a device; return what is new of it."""
        with self._lock:
            before = self._refused.get((fleet, receiver), {})
            self._refused[fleet, receiver] = refused
        return {key: why for key, why in refused.items() if key not in before}

    def refusals_for(self, fleet: str, receiver: str) -> Refusals:
        """Return what was left out of the last sum for a device, and why."""
        with self._lock:
            return self._refused.get((fleet, receiver), {})

    def refusals_of(self, fleet: str, device: str) -> dict[str, Refusals]:
        """Return which receivers leave out contributions of a device, and why."""
        with self._lock:
            known = [(who, each) for (name, who), each in self._refused.items() if name == fleet]
        found = {
            who: {key: why for key, why in each.items() if key[0] == device} for who, each in known
        }
        return {who: each for who, each in sorted(found.items()) if each}
