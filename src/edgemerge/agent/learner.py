"""Learners as an agent uses them: a detector or a bank whose scores depend on the samples alone.

Neither saving nor sharing changes a later score, not even in its last bit. A bank solves P afresh
for every block. A detector follows P from sample to sample, so it is refreshed from its sums after
every `REFRESH_EVERY` samples, counted from the first; the saved state is the last refresh and the
rows since then.

x (n,) is a sample.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgemerge.core.bank import Bank
from edgemerge.core.detector import READY_SAMPLES_PER_HIDDEN, Detector
from edgemerge.core.ledger import Contribution, Merged
from edgemerge.core.stats import Stats
from edgemerge.core.threshold import loss_shift
from edgemerge.privacy.gate import PatternSamples
from edgemerge.wire.state import from_bytes, to_bytes

Array = NDArray[np.float64]

REFRESH_EVERY = 256  # rows that a detector learns between two settlements
NORMAL = "normal"


class Learner(Protocol):
    """What an agent asks of a learner."""

    grouped: bool  # whether it wants to be told by pattern

    @property
    def thing(self) -> Detector | Bank:
        """The detector or bank itself, to look at."""
        ...

    def score(self, x: Array) -> float:
        """Say how unusual a sample is."""
        ...

    def learn(self, x: Array) -> None:
        """Learn a sample."""
        ...

    def explain(self, x: Array) -> Array:
        """Say which inputs carry the loss, (n,)."""
        ...

    def closest(self, x: Array) -> str | None:
        """Name the pattern that a sample belongs to."""
        ...

    def census(self) -> dict[str, PatternSamples]:
        """Give the patterns that have samples of our own, for the release gate."""
        ...

    def own(self) -> dict[str, Stats]:
        """Give what was seen here, by pattern, under the names that travel."""
        ...

    def adopt(self, told: Merged) -> None:
        """Set what the others have seen."""
        ...

    def shifts(self, told: Merged) -> dict[str, float]:
        """Give the factor by which adopting would raise the level of each pattern of our own."""
        ...

    def start_new_incarnation(self, told: Merged) -> None:
        """Keep what was seen here as if it had been told, beside what was; own is empty then."""
        ...

    def state(self) -> tuple[bytes, Array]:
        """Give all that it needs to go on: bytes, and rows (k, n) to learn after them."""
        ...


class DetectorLearner:
    """A detector: everything normal is one pattern."""

    grouped = False

    def __init__(self, detector: Detector, rows: Array | None = None) -> None:
        """Go on from a detector that learns these rows first."""
        self._detector = self._base = detector
        self._rows: list[Array] = []
        self._before = 0  # samples learnt before the last settlement
        self._settle()
        for row in () if rows is None else rows:
            self.score(row)
            self.learn(row)

    @property
    def thing(self) -> Detector:
        """The detector itself."""
        return self._detector

    def score(self, x: Array) -> float:
        """Say how unusual a sample is."""
        return _score(self._detector, x)

    def learn(self, x: Array) -> None:
        """Learn a sample."""
        self._detector.learn_and_score(x)
        self._rows.append(np.array(x, dtype=np.float64))
        if len(self._rows) >= REFRESH_EVERY:
            self._settle()

    def explain(self, x: Array) -> Array:
        """Say which inputs carry the loss, (n,)."""
        return self._looked_at().explain(x)

    def closest(self, x: Array) -> str | None:  # noqa: ARG002 - there is but one
        """Give no name: there is but one."""
        return None

    def census(self) -> dict[str, PatternSamples]:
        """Give the one pattern, if there is something in it."""
        learnt, known = self._before + self._detector.learnt, self._detector.known
        count = self._detector.count - known.told * known.frame
        return {NORMAL: PatternSamples(NORMAL, learnt, count)} if count else {}

    def own(self) -> dict[str, Stats]:
        """Give what was seen here."""
        return {NORMAL: self._looked_at().own} if self.census() else {}

    def adopt(self, told: Merged) -> None:
        """Set what the others have seen."""
        self._detector.adopt(told.total)
        self._settle()

    def shifts(self, told: Merged) -> dict[str, float]:
        """Give the factor by which adopting would raise our level, once we have one."""
        aside = self._aside()
        own, before = aside.own, aside.readout
        aside.adopt(told.total)
        return {NORMAL: loss_shift(own, before, aside.readout)} if _has_level(own) else {}

    def start_new_incarnation(self, told: Merged) -> None:  # noqa: ARG002 - it is among what others saw
        """Keep what was seen here as if it had been told."""
        known = self._detector.own + self._detector.others
        self._detector = _resume_detector(self._detector, Stats.empty(known.projection), known)
        self._settle()
        self._before = 0

    def state(self) -> tuple[bytes, Array]:
        """Give the detector as it was settled last, and the rows since."""
        rows = np.array(self._rows).reshape(-1, self._base.projection.n_inputs)
        return to_bytes(self._base), rows

    def _settle(self) -> None:
        self._before += self._detector.learnt
        own, others = self._detector.own, self._detector.others
        self._base = _resume_detector(self._detector, own, others)
        self._detector = _resume_detector(self._detector, own, others)
        self._rows = []

    def _looked_at(self) -> Detector:
        """Give one whose sums may be looked at, which with forgetting would round them."""
        return self._detector if self._detector.forgetting == 1.0 else self._aside()

    def _aside(self) -> Detector:
        aside = _resume_detector(self._base, self._base.own, self._base.others)
        for row in self._rows:
            _score(aside, row)
            aside.learn_and_score(row)
        return aside


class BankLearner:
    """A bank: one pattern for each kind of normal."""

    grouped = True

    def __init__(self, bank: Bank) -> None:
        """Go on from a bank."""
        self._bank = bank

    @property
    def thing(self) -> Bank:
        """The bank itself."""
        return self._bank

    def score(self, x: Array) -> float:
        """Say how unusual a sample is."""
        for name in self._bank:
            _ensure_solved(self._bank[name])
        return float(self._bank.score(x))

    def learn(self, x: Array) -> None:
        """Learn a sample that was scored; it may wait for its block."""
        self._bank.learn(x)

    def explain(self, x: Array) -> Array:
        """Say which inputs carry the loss, (n,), for the pattern that it belongs to."""
        return self._bank.explain(x) if len(self._bank) else np.ones_like(x)

    def closest(self, x: Array) -> str | None:
        """Name the pattern that a sample belongs to, if there is one yet."""
        return self._bank.closest(x) if len(self._bank) else None

    def census(self) -> dict[str, PatternSamples]:
        """Give the patterns that have samples of our own."""
        return {
            _wire_name(name): PatternSamples(each, each.learnt, each.known.own.count)
            for name in self._bank
            if (each := self._bank[name]).known.own.count
        }

    def own(self) -> dict[str, Stats]:
        """Give what was seen here; samples that wait for their block are not in it yet."""
        names = [name for name in self._bank if self._bank[name].known.own.count]
        return {_wire_name(name): self._bank[name].own for name in names}

    def adopt(self, told: Merged) -> None:
        """Set what the others have seen; samples that wait go on waiting."""
        _adopt(self._bank, told.contributions)

    def shifts(self, told: Merged) -> dict[str, float]:
        """Give the factor by which adopting would raise the level of each pattern of our own."""
        aside = from_bytes(to_bytes(self._bank))
        if not isinstance(aside, Bank):
            raise TypeError("a bank was saved and something else came back")
        _adopt(aside, told.contributions)
        return {
            name: loss_shift(self._bank[name].own, self._bank[name].readout, aside[name].readout)
            for name in self._bank
            if _has_level(self._bank[name].own)
        }

    def start_new_incarnation(self, told: Merged) -> None:
        """Keep the patterns seen here as if they had been told, beside what was."""
        old, mine = self._bank, self.own().items()
        waiting, old.waiting = old.waiting, old.waiting[:0]
        options: dict[str, Any] = {
            name: getattr(old, name)
            for name in ("max_patterns", "reject_above", "ridge", "forgetting")
        }
        self._bank = Bank(old.projection, **options)
        kept = [Contribution("here", stats, revision=0, pattern=name) for name, stats in mine]
        _adopt(self._bank, kept + told.contributions)
        self._bank.waiting = waiting

    def state(self) -> tuple[bytes, Array]:
        """Give the bank as it is."""
        return to_bytes(self._bank), np.empty((0, self._bank.projection.n_inputs))


def as_learner(thing: Detector | Bank, rows: Array | None = None) -> Learner:
    """Make a learner of a detector or a bank, and of the rows that `state` gave beside it."""
    return DetectorLearner(thing, rows) if isinstance(thing, Detector) else BankLearner(thing)


def _resume_detector(like: Detector, own: Stats, others: Stats) -> Detector:
    options = {name: getattr(like, name) for name in ("ridge", "forgetting", "reject_above")}
    return Detector.resume(own, others, rejected=like.rejected, **options)


def _score(detector: Detector, x: Array) -> float:
    _ensure_solved(detector)
    return float(detector.score(x))


def _ensure_solved(detector: Detector) -> None:
    """Have P at hand: the very first look at a sample, without it, has other last bits."""
    if detector.known.count:
        detector.known.level()


def _adopt(bank: Bank, contributions: list[Contribution]) -> None:
    waiting, bank.waiting = bank.waiting, bank.waiting[:0]
    bank.adopt(contributions)
    bank.waiting = waiting


def _has_level(own: Stats) -> bool:
    return own.count >= READY_SAMPLES_PER_HIDDEN * own.projection.n_hidden


def _wire_name(name: str) -> str:
    """Give a pattern's name as it travels: what peers told may have a slash in its name."""
    return name.replace("/", "~").replace("\\", "~")
