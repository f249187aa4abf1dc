"""Syncing: brings schedule, sharing and the courier together; all but the courier in one thread."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from edgemerge.agent.courier import Courier, Errand, Outcome, is_hopeless
from edgemerge.agent.schedule import Schedule
from edgemerge.agent.sharing import Sharing
from edgemerge.core.errors import (
    AwayError,
    DeniedError,
    EdgemergeError,
    RejectedError,
    StaleError,
)
from edgemerge.exchange.protocol import Wish

logger = logging.getLogger(__name__)

Answer = Callable[[dict[str, Any]], None]


class Choice(Protocol):
    """The part of [sync] that says what to exchange, and with whom."""

    @property
    def push(self) -> bool:
        """Whether to share."""
        ...

    @property
    def pull(self) -> bool:
        """Whether to adopt."""
        ...

    @property
    def devices(self) -> tuple[str, ...]:
        """Of whom; all, if none is named."""
        ...

    @property
    def without(self) -> tuple[str, ...]:
        """Not of whom."""
        ...

    @property
    def pattern(self) -> str | None:
        """Of which pattern."""
        ...

    @property
    def largest(self) -> int | None:
        """Only so many contributions, the largest."""
        ...


@dataclass(frozen=True)
class Clocks:
    """The time of day, which may jump, and one that does not."""

    wall: Callable[[], float]
    steady: Callable[[], float]


class Syncing:
    """Exchanges when it is due or asked for; detection goes on meanwhile."""

    def __init__(
        self,
        sharing: Sharing,
        courier: Courier,
        schedule: Schedule,
        choice: Choice,
        *,
        save: Callable[[], bool],
        clocks: Clocks,
        rule: Callable[[], float] | None = None,
    ) -> None:
        """Start the courier and the schedule; `save` says whether it could.

        `rule` asks the exchange for the gate, when `sharing` does not know it.
        """
        self._sharing, self._courier, self._schedule = sharing, courier, schedule
        self._choice, self._save, self._clocks, self._rule = choice, save, clocks, rule
        self._followers: list[Answer] = []
        self._again = False  # what is on its way now is from earlier: start anew behind it
        self._pushed = 0
        self.last: float | None = None  # when it went well, by the time of day
        self.state = "not asked yet"
        schedule.start(clocks.steady())
        courier.start()

    @property
    def busy(self) -> bool:
        """Whether an exchange is under way."""
        return self._courier.busy

    @property
    def shift(self) -> float | None:
        """What adopting did to our own level, if what is held now was adopted since the start."""
        return self._sharing.shift

    def tend(self) -> None:
        """Do what there is to do now, without waiting."""
        outcome = self._courier.outcome()
        if outcome is not None:
            self._heed(outcome)
        if not self._courier.busy and self._schedule.due(self._clocks.steady()):
            self.begin()

    def begin(self, answer: Answer | None = None) -> None:
        """Exchange now; who asks is answered at the end."""
        if answer is not None:
            self._followers.append(answer)
        if self._courier.busy:
            self._again = True  # what is under way knows nothing of what was learnt since
            return
        self._pushed = 0
        self._start()

    def undo(self) -> str:
        """Undo the last merge."""
        words = self._sharing.undo()
        self._save()
        return words

    def close(self, timeout_s: float) -> None:
        """Wait no longer than that for the courier."""
        self._courier.close(timeout_s)

    def plain(self) -> dict[str, Any]:
        """Give how it went, as plain JSON."""
        last = None if self.last is None else _time(self.last)
        return {"exchange": self.state, "last_sync": last, **self._sharing.plain()}

    def _start(self) -> None:
        memory = self._sharing.memory
        rule = self._rule if self._sharing.gate is None else None
        self._again = self._choice.push and bool(memory.pending or rule)
        if self._choice.push and not memory.pending:
            self._sharing.release()
        if not self._save():
            self._failed(AwayError("the state cannot be saved, so nothing is shared"))
            self._answer()
            return
        push = memory.contributions() if self._choice.push else ()
        wish = self._wish() if self._choice.pull and not self._again else None
        self._courier.send(Errand(push, wish, rule))

    def _wish(self) -> Wish:
        memory, choice = self._sharing.memory, self._choice
        return Wish(
            device=memory.device,
            incarnation=memory.incarnation,
            devices=choice.devices or None,
            without=choice.without,
            pattern=choice.pattern,
            largest=choice.largest,
            grouped=memory.learner.grouped,
        )

    def _heed(self, outcome: Outcome) -> None:
        memory = self._sharing.memory
        del memory.pending[: outcome.pushed]
        self._pushed += outcome.pushed
        if outcome.gate is not None:
            self._sharing.gate = outcome.gate
        if outcome.told is not None:
            self._sharing.hear(outcome.told)
        if isinstance(outcome.error, StaleError):  # and be told what the earlier life had seen
            self._sharing.start_anew(self._clocks.wall)
            self._start()
            return
        if outcome.error is None:
            self._went_well()
        else:
            self._failed(outcome.error)
        self._save()
        if self._again and outcome.error is None:
            self._start()
        else:
            self._answer()

    def _went_well(self) -> None:
        self.last, self.state = self._clocks.wall(), "ok"
        self._schedule.succeeded(self._clocks.steady())

    def _failed(self, error: EdgemergeError) -> None:
        if isinstance(error, RejectedError):
            self._sharing.memory.pending.clear()
        self.state = self._words(error)
        retry_s = error.retry_s if isinstance(error, AwayError) else None
        self._schedule.failed(self._clocks.steady(), retry_s, hopeless=is_hopeless(error))
        logger.warning("the exchange did not work", extra={"values": {"why": error}})

    def _words(self, error: EdgemergeError) -> str:
        if isinstance(error, AwayError):
            since = _time(self._clocks.wall())
            return self.state if self.state.startswith("away") else f"away since {since}: {error}"
        return f"{'denied' if isinstance(error, DeniedError) else 'refused'}: {error}"

    def _answer(self) -> None:
        followers, self._followers = self._followers, []
        for answer in followers:
            answer({"pushed": self._pushed, **self.plain()})


def _time(at: float) -> str:
    try:
        return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return f"{at:.0f}"
