"""What a device's page shows for reviews: patterns, episodes, phase, limit and drift."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edgemerge.core.errors import SettingError
from edgemerge.delivery import unusual
from edgemerge.server.dashboard.formatting import amount, count, duration, score, share, times
from edgemerge.server.dashboard.sign_in import Form
from edgemerge.server.http import refuse_invalid
from edgemerge.server.reviews import PATTERN_DECISIONS, Review
from edgemerge.server.schemas import (
    ReportedEpisode,
    ReportedMonitor,
    ReportedOddPattern,
    ReviewRequest,
)

SHOWN_REFUSED = 3
SHOWN_INPUTS = 3
HOUR_S = 3600.0
LIMIT_KINDS = {
    "fixed": "fixed",
    "default": "the default",
    "commissioned": "set by commissioning",
    "promised": "promised, from the device's own scores",
    "provisional": "provisional, until the promised limit is known",
    "bounded": "as high as it may rise; there are more episodes than promised, review them",
}
DECISION_WORDS = {
    "approve": "Approve",
    "fault": "Fault",
    "dismiss": "Dismiss",
    "undo": "Undo the review of",
    "acknowledge": "Acknowledge",
    "snooze": "Snooze",
    "watch": "End commissioning",
    "relearn": "Relearn",
    "accept_drift": "Accept the drift",
}


def describe_review(review: Review) -> str:
    """Describe a decision in words, without the time of a snooze.

    >>> describe_review(Review(1, 0.0, "operator eve", "fault", pattern="odd-1", name="worn"))
    'Fault odd-1: worn'
    >>> describe_review(Review(2, 0.0, "operator eve", "acknowledge"))
    'Acknowledge all episodes'
    """
    words = DECISION_WORDS[review.decision]
    if review.decision == "acknowledge":
        which = "all episodes" if review.episode is None else f"episode {review.episode}"
        return f"{words} {which}"
    if review.decision == "snooze" and review.until is None:
        return "End the snooze"
    return f"{words} {review.pattern}".rstrip() + (f": {review.name}" if review.name else "")


@dataclass(frozen=True)
class ReviewView:
    """What a person should look at; `monitor` is None if the device has none, or never reported."""

    monitor: ReportedMonitor | None
    reviews: list[Review]  # newest first
    now: float

    @property
    def shown(self) -> bool:
        """Whether there is anything to show."""
        return self.monitor is not None or bool(self.reviews)

    @property
    def waiting(self) -> list[Review]:
        """The reviews that the device has not acted upon, in the order in which it will."""
        return [review for review in reversed(self.reviews) if review.state == "waiting"]

    @property
    def refused(self) -> list[Review]:
        """The last reviews, if the device refused them."""
        return [review for review in self.reviews[:SHOWN_REFUSED] if review.state == "refused"]

    @property
    def unreviewed(self) -> list[ReportedOddPattern]:
        """Patterns that wait for a review, the one that was met last first."""
        return self._patterns(unreviewed=True)

    @property
    def reviewed(self) -> list[ReportedOddPattern]:
        """Patterns that were reviewed."""
        return self._patterns(unreviewed=False)

    @property
    def episodes(self) -> list[ReportedEpisode]:
        """Episodes that are open or not acknowledged: open ones first, then the newest."""
        found = self.monitor.episodes if self.monitor else []
        return sorted(found, key=lambda each: (each.ended is not None, -each.number))

    def awaited(self, decision: str = "", *, pattern: str = "", episode: int = 0) -> Review | None:
        """Return the last review that waits: of a decision, or about a pattern or an episode."""
        for review in reversed(self.waiting):
            about = bool(pattern) and pattern in (review.pattern, review.name)
            seen = review.decision == "acknowledge" and review.episode in (None, episode)
            if about or (episode and seen) or (decision and review.decision == decision):
                return review
        return None

    @property
    def snoozed(self) -> bool:
        """Whether alarms are off for a time."""
        until = self.monitor.snoozed_until if self.monitor else None
        return until is not None and until > self.now

    @property
    def phase(self) -> str:
        """In which phase the monitor is, and how far commissioning has come."""
        monitor = self.monitor
        if monitor is None or monitor.phase != "commissioning":
            return monitor.phase if monitor else ""
        samples, of = monitor.commissioning.samples, monitor.commissioning.of
        if not of:
            return f"commissioning, {amount(samples)} samples so far"
        return f"commissioning, {count(samples)} of {count(of)} samples ({share(samples, of)})"

    @property
    def limit(self) -> str:
        """The limit, of which kind it is, and what is missing for a promised one."""
        limit = self.monitor.limit if self.monitor else None
        if limit is None:
            return ""
        words = f"{score(limit.value)}, {LIMIT_KINDS.get(limit.kind, limit.kind)}"
        if limit.kind == "provisional" and limit.missing is None:
            return f"{words}: the rate of samples is not known yet"
        return f"{words}: {count(limit.missing)} samples are missing" if limit.missing else words

    @property
    def drift(self) -> tuple[str, str]:
        """The drift in words, and how bad it is: "", "warn" or "bad"."""
        monitor = self.monitor
        if monitor is None:
            return "", ""
        if monitor.learning_stopped:
            return f"{times(monitor.drift)}: learning stopped", "bad"
        return times(monitor.drift), "warn" if monitor.drifts else ""

    def lasted(self, episode: ReportedEpisode) -> str:
        """How long an episode lasted, or has lasted so far."""
        return duration(episode.began, self.now if episode.ended is None else episode.ended)

    @staticmethod
    def inputs(each: ReportedOddPattern | ReportedEpisode) -> list[tuple[str, str]]:
        """Return the inputs that carry a pattern or an episode most, each with its factor."""
        found = unusual(each.inputs)[:SHOWN_INPUTS]
        return [(name or "?", times(factor)) for name, factor in found]

    @staticmethod
    def describe(review: Review) -> str:
        """Describe a decision in words."""
        return describe_review(review)

    def _patterns(self, *, unreviewed: bool) -> list[ReportedOddPattern]:
        found = self.monitor.patterns if self.monitor else []
        some = [each for each in found if (each.status == "unreviewed") == unreviewed]
        return sorted(some, key=lambda each: -each.last)


def read_review(form: Form, now: float) -> ReviewRequest:
    """Read a decision from a form of the page; fields that it has no use for are left out."""
    decision = form.one("decision")
    asked: dict[str, Any] = {"decision": decision, "comment": form.one("comment")}
    if decision in PATTERN_DECISIONS:
        asked["pattern"] = form.one("pattern")
    if decision == "fault":
        asked["name"] = form.one("name")
    if decision == "acknowledge" and form.one("episode"):
        asked["episode"] = whole_number("episode", form.one("episode"))
    if decision == "snooze" and form.one("hours"):
        asked["until"] = now + HOUR_S * whole_number("hours", form.one("hours"))
    with refuse_invalid():
        return ReviewRequest(**asked)


def whole_number(word: str, text: str) -> int:
    """Read a whole number from a field of a form."""
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise SettingError(f"found {word} {text[:20]!r}, expected a whole number")
    return int(text)
