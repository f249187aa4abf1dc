"""The courier: a thread that talks to the exchange, so that detection never waits for it.

Only values go in and come out: what to push and what to wish for, what was pushed and told.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, Queue
from threading import Thread

from edgemerge.core.contribution import Contribution
from edgemerge.core.errors import AwayError, DeniedError, EdgemergeError, RejectedError, StaleError
from edgemerge.core.told import Told
from edgemerge.exchange.protocol import Exchange, Wish
from edgemerge.failpoints import passing

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Errand:
    """What to push, in this order, and then to pull; and the rule of the gate, if not known yet."""

    push: tuple[Contribution, ...] = ()
    wish: Wish | None = None
    rule: Callable[[], float] | None = None


@dataclass(frozen=True)
class Outcome:
    """How many contributions are there now, what was told, and what stood in the way."""

    pushed: int = 0
    told: Told | None = None
    error: EdgemergeError | None = None
    gate: float | None = None


class Courier:
    """Runs one errand at a time; `outcome` gives its end, once."""

    def __init__(self, exchange: Exchange) -> None:
        """Have an exchange to talk to."""
        self._exchange = exchange
        self._errands: Queue[Errand | None] = Queue(1)
        self._outcomes: Queue[Outcome] = Queue(1)
        self._thread = Thread(target=self._work, name="courier", daemon=True)
        self.busy = False

    def start(self) -> None:
        """Be ready for errands."""
        self._thread.start()

    def send(self, errand: Errand) -> None:
        """Start an errand; the one before must have ended."""
        if self.busy:
            raise RuntimeError("an errand is under way: wait for its outcome")
        self.busy = True
        self._errands.put(errand)

    def outcome(self) -> Outcome | None:
        """Give the end of the errand, if it has come."""
        try:
            found = self._outcomes.get_nowait()
        except Empty:
            return None
        self.busy = False
        return found

    def close(self, timeout_s: float) -> None:
        """Let the exchange go; an errand that hangs is left behind, to end with the process."""
        if self.busy and not self._ends_within(timeout_s):
            return
        self._errands.put(None)
        self._thread.join(timeout_s)
        getattr(self._exchange, "close", bool)()

    def _ends_within(self, timeout_s: float) -> bool:
        try:
            self._outcomes.get(timeout=timeout_s)
        except Empty:
            return False
        return True

    def _work(self) -> None:
        while (errand := self._errands.get()) is not None:
            self._outcomes.put(self._run(errand))

    def _run(self, errand: Errand) -> Outcome:
        try:
            return run_errand(self._exchange, errand)
        except Exception as error:  # a mistake there must not stop detection
            logger.exception("the exchange failed in a way that it should not")
            return Outcome(error=AwayError(f"the exchange failed: {error!r}"))


def run_errand(exchange: Exchange, errand: Errand) -> Outcome:
    """Push, then pull; what stands in the way is part of the outcome."""
    pushed, refused = 0, None
    try:
        for i, note in enumerate(errand.push):
            _push(exchange, note, errand.push[i + 1 :])
            pushed += 1
    except StaleError as error:
        return Outcome(pushed, error=error)
    except RejectedError as error:
        refused = error  # for good, and what would have come behind it must not come without it
    except EdgemergeError as error:
        return Outcome(pushed, error=error)
    try:
        gate = errand.rule() if errand.rule else None
        told = exchange.pull(errand.wish) if errand.wish else None
    except EdgemergeError as error:
        return Outcome(pushed, error=refused or error)
    return Outcome(pushed, told, refused, gate)


def _push(exchange: Exchange, note: Contribution, later: Sequence[Contribution]) -> None:
    """Push one; one that was followed by another of ours before we were killed is there."""
    passing("agent-before-push")
    try:
        exchange.push(note)
    except StaleError as error:
        followed = any(each.key == note.key for each in later)
        if not (followed and error.newest > note.revision):  # if it is not ours, the next one tells
            raise
    passing("agent-after-push")


def is_hopeless(error: EdgemergeError) -> bool:
    """Say whether trying again soon would be of no use."""
    return isinstance(error, DeniedError) or not isinstance(error, AwayError)
