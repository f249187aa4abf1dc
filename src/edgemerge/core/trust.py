"""Trust: which contributions of others enter a sum at once, and which wait to be approved.

A fleet's rule is "members" (at once), "quorum:K" (when K devices contributed similar patterns) or
"person" (when a person approved it). Under each of them a person decides about a device that claims
far more samples than the others. An approval holds while the sums stay similar to those approved.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

import numpy as np

from edgemerge.core.errors import SettingError, must_be
from edgemerge.core.ledger import Contribution, Key
from edgemerge.core.similarity import Profile, alike, loss_ratios

TrustRule = Literal["members", "quorum", "person"]
TRUST_WORDS = "members, quorum:K with K from 2, or person"
MAX_QUORUM = 10_000
DISMISSED = "it was dismissed"

FAR_ABOVE = 100.0  # times the median of the other devices; see decision 0030
MIN_OTHERS = 3  # devices that have a median worth comparing with
MIN_SPAN_S = 60.0  # seconds over which a rate is taken at least


@dataclass(frozen=True)
class Trust:
    """A fleet's rule for contributions of other devices.

    Args:
        rule: "members" (the default) lets every member's contribution in at once, "quorum" when
            enough devices contributed similar patterns, "person" when a person approved it.
        quorum: How many different devices that takes, the sender included; 2 or more for "quorum",
            1 for the others.

    Raises:
        SettingError: The number does not fit the rule.

    >>> Trust.parse("quorum:3"), str(Trust())
    (Trust(rule='quorum', quorum=3), 'members')
    """

    rule: TrustRule = "members"
    quorum: int = 1

    def __post_init__(self) -> None:
        """Check the number."""
        least, most = (2, MAX_QUORUM) if self.rule == "quorum" else (1, 1)
        if not least <= self.quorum <= most:
            raise SettingError(f"found trust {self}, expected {TRUST_WORDS}")

    @classmethod
    def parse(cls, text: str) -> Trust:
        """Read a rule as it is written in settings.

        Args:
            text: "members", "quorum:K" or "person".

        Raises:
            SettingError: It is none of them.
        """
        must_be(text, str, f"write {TRUST_WORDS}")
        word, separator, number = text.partition(":")
        if text in ("members", "person"):
            return cls(text)  # type: ignore[arg-type]  # one of the words
        if word == "quorum" and separator and number.isascii() and number.isdecimal():
            return cls("quorum", int(number[:9]))
        raise SettingError(f"found trust {text[:40]!r}, expected {TRUST_WORDS}")

    def __str__(self) -> str:
        """Write it as `parse` reads it."""
        return f"quorum:{self.quorum}" if self.rule == "quorum" else self.rule


def is_trust(text: str) -> bool:
    """Return whether a text is a rule.

    Args:
        text: As it is written in settings.
    """
    try:
        Trust.parse(text)
    except SettingError:
        return False
    return True


class Trusted(Protocol):
    """What the rule is about: a contribution, or a server's record of one."""

    @property
    def key(self) -> Key:
        """Device, incarnation and pattern."""
        ...


T = TypeVar("T", bound=Trusted)


def find_waiting(
    trust: Trust,
    contributions: Sequence[T],
    is_alike: Callable[[T, Any], bool],
    *,
    approved: Mapping[Key, Any] | None = None,
    dismissed: Collection[Key] = (),
    far_above: Mapping[str, str] | None = None,
    members: Collection[str] | None = None,
) -> dict[Key, str]:
    """Return why contributions wait, by key; the others enter the sums of all devices.

    Only current sums matter, so what waits does not depend on the order of arrival.

    Args:
        trust: The fleet's rule.
        contributions: All that have samples and are not excluded.
        is_alike: Whether two of them, or one and something approved, describe similar data.
        approved: What a person approved, by key, as it was then. It covers the contribution that
            has this key now if that is still like it, whatever happened in between.
        dismissed: Keys that a person dismissed; newer revisions stay dismissed.
        far_above: Devices that a person must decide about under every rule, with the reason; see
            `find_far_above`.
        members: Devices that count for a quorum; None: all that contributed.
    """
    known = _Decided(approved or {}, frozenset(dismissed), far_above or {}, members, is_alike)
    supporting = _Support(trust.quorum, is_alike)
    found: dict[Key, str] = {}
    for one in contributions:
        if one.key in dismissed:
            found[one.key] = DISMISSED
            continue
        reason = known.far_above.get(one.key[0], "")
        if not reason and trust.rule == "person":
            reason = "every contribution needs a person's approval in this fleet"
        if not reason and trust.rule == "quorum" and not known.covers(one):
            reason = supporting.missing(one, filter(known.supports, contributions))
        if reason and not known.covers(one):
            changed = "it is no longer like what was approved; " * (one.key in known.approved)
            found[one.key] = changed + reason
    return found


@dataclass(frozen=True, eq=False)
class _Decided:
    """What persons have decided, and who may support others."""

    approved: Mapping[Key, Any]
    dismissed: frozenset[Key]
    far_above: Mapping[str, str]
    members: Collection[str] | None
    is_alike: Callable[[Any, Any], bool]
    covered: dict[Key, bool] = field(default_factory=dict)

    def covers(self, one: Trusted) -> bool:
        """Return whether a contribution is like what was approved of it."""
        if one.key not in self.covered:
            before = self.approved.get(one.key)
            self.covered[one.key] = before is not None and self.is_alike(one, before)
        return self.covered[one.key]

    def supports(self, one: Trusted) -> bool:
        """Return whether a contribution counts for a quorum of others."""
        known = self.members is None or one.key[0] in self.members
        stands_out = one.key[0] in self.far_above
        return known and one.key not in self.dismissed and (not stands_out or self.covers(one))


class _Support:
    """Counts the devices that contributed similar patterns."""

    def __init__(self, quorum: int, is_alike: Callable[[Any, Any], bool]) -> None:
        self._quorum, self._is_alike = quorum, is_alike
        self._matched: dict[Key, Any] = {}  # what others were like before is tried first

    def missing(self, one: T, others: Iterable[T]) -> str:
        """Return how many devices there are; empty if there are enough, which ends comparing."""
        similar: set[str] = set()
        tried: set[Key] = set()
        for other in (*reversed(self._matched.values()), *others):
            device = other.key[0]
            if device in similar or other.key in tried:
                continue
            tried.add(other.key)
            if device == one.key[0]:
                similar.add(device)
            elif self._is_alike(one, other):
                similar.add(device)
                self._matched.pop(other.key, None)
                self._matched[other.key] = other
            if len(similar) >= self._quorum:
                return ""
        return (
            f"{len(similar)} of the {self._quorum} devices that it takes contributed a similar "
            "pattern"
        )


def find_far_above(
    samples: Mapping[str, float], spans_s: Callable[[], Mapping[str, float]]
) -> dict[str, str]:
    """Return the devices that claim far more samples than the others, with the reason.

    That is more than 100 times the median of the other devices, of which there must be 3, both in
    all and for each second that a device could have sampled. So a device that has run for a year
    beside new ones does not stand out, and neither does a fast one; one that is fast and old may.

    Args:
        samples: How many samples each device claims in all its contributions.
        spans_s: Returns for how long each device has been a member, in seconds; it is called only
            if the samples of some device stand out. A device without one does not stand out.

    >>> year, hour = 3.2e7, 3600.0
    >>> ages = {"old": year, "a": hour, "b": hour, "c": hour}
    >>> find_far_above({"old": 3.2e7, "a": 3600.0, "b": 3600.0, "c": 3600.0}, lambda: ages)
    {}
    >>> sorted(find_far_above({"old": 5e12, "a": 3600.0, "b": 3600.0, "c": 3600.0}, lambda: ages))
    ['old']
    """
    many = medians_exceeded(samples)
    if not many:
        return {}
    spans = {name: max(each, MIN_SPAN_S) for name, each in spans_s().items() if name in samples}
    fast = medians_exceeded({name: samples[name] / spans[name] for name in spans})
    return {
        name: (
            f"{name} claims {samples[name]:.3g} samples, more than {FAR_ABOVE:g} times the median "
            f"of the other devices ({median:.3g}), and more than {FAR_ABOVE:g} times as many a "
            "second: a person must decide"
        )
        for name, median in many.items()
        if name in fast
    }


def medians_exceeded(values: Mapping[str, float]) -> dict[str, float]:
    """Return the median of the others for each name whose value is far above it.

    Args:
        values: A number for each name; those that are not above 0 are left out.
    """
    order = sorted((value, name) for name, value in values.items() if value > 0.0)
    others = len(order) - 1
    if others < MIN_OTHERS:
        return {}
    found = {}
    for place, (value, name) in enumerate(order):
        low, high = ((at if at < place else at + 1) for at in ((others - 1) // 2, others // 2))
        median = (order[low][0] + order[high][0]) / 2.0
        if value > FAR_ABOVE * median:
            found[name] = median
    return found


class TrustCheck:
    """Lets contributions pass that a trust rule lets in; the others wait.

    It is a `rule` of a `Selection`, for exchanges that have single contributions at hand. Counts
    are not compared: without a server nothing says for how long a device has been a member.

    Args:
        trust: The rule.
        own: What this device would contribute itself; it counts for a quorum.
        trusted: Devices whose contributions never wait; none unless given.
        approved: What a person approved, by key.
        dismissed: Keys that a person dismissed.

    Attributes:
        waiting: Why, by key, in the last list that was checked, with what was dismissed.
        seen: The contributions that wait, by key, without what was dismissed.
    """

    def __init__(
        self,
        trust: Trust,
        own: Sequence[Contribution],
        *,
        trusted: Collection[str] = (),
        approved: Mapping[Key, Contribution] | None = None,
        dismissed: Collection[Key] = (),
    ) -> None:
        """Have checked nothing yet."""
        self._trust, self._own, self._trusted = trust, list(own), frozenset(trusted)
        self._approved, self._dismissed = dict(approved or {}), frozenset(dismissed)
        self._profiles: dict[int, tuple[Contribution, Profile]] = {}
        self._passed: list[Contribution] = []
        self.waiting: dict[Key, str] = {}
        self.seen: dict[Key, Contribution] = {}

    def __call__(self, contributions: list[Contribution]) -> list[Contribution]:
        """Return those that need not wait; `waiting` says why the others do.

        Args:
            contributions: What others claim to have seen.
        """
        filled = [each for each in contributions if each.samples > 0]
        found = find_waiting(
            self._trust,
            [*filled, *self._own],
            self._alike,
            approved=self._approved,
            dismissed=self._dismissed,
        )
        mine = {each.key for each in self._own}
        self.waiting = {
            key: why
            for key, why in found.items()
            if key not in mine and (key[0] not in self._trusted or why == DISMISSED)
        }
        self.seen = {
            each.key: each for each in filled if self.waiting.get(each.key, DISMISSED) != DISMISSED
        }
        self._passed = [each for each in contributions if each.key not in self.waiting]
        return self._passed

    def nearest(self, one: Contribution) -> tuple[Key, float] | None:
        """Return the trusted contribution, or own pattern, that is most like one, and the distance.

        Args:
            one: A contribution that waits.
        """
        known = [each for each in (*self._passed, *self._own) if each.samples > 0]
        profiles = {each.key: self._profile(each) for each in known}
        return nearest([self._profile(one)], profiles)[0]

    def _alike(self, one: Contribution, other: Contribution) -> bool:
        return alike(self._profile(one), self._profile(other))

    def _profile(self, one: Contribution) -> Profile:
        if id(one) not in self._profiles:  # kept with its contribution, so that the id stays its
            self._profiles[id(one)] = one, Profile.of(one.stats)
        return self._profiles[id(one)][1]


def nearest(
    some: Sequence[Profile], known: Mapping[Key, Profile]
) -> list[tuple[Key, float] | None]:
    """Return for each profile the most similar known one and the distance to it (M10), or None.

    Args:
        some: What is compared.
        known: The candidates.
    """
    if not known:
        return [None] * len(some)
    keys, profiles = list(known), list(known.values())
    apart = np.maximum(loss_ratios(profiles, some), loss_ratios(some, profiles).T)
    return [(keys[int(column.argmin())], float(column.min())) for column in apart.T]
