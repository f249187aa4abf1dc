"""Sharing: what an agent releases, adopts, refuses and undoes, and what it says about it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from edgemerge.agent.memory import REFUSED, Memory, digest_of
from edgemerge.agent.preview import Preview
from edgemerge.agent.releases import release
from edgemerge.core.codec import encode
from edgemerge.core.errors import EdgemergeError
from edgemerge.core.told import Told
from edgemerge.failpoints import passing
from edgemerge.privacy.gate import Decision, Gate

logger = logging.getLogger(__name__)

MS = 1000  # in a second: an incarnation is the time at which it began


class Sharing:
    """Decides on the memory of one agent; it never talks to anybody."""

    def __init__(self, memory: Memory, *, gate: float | None, max_shift: float) -> None:
        """Hold back what covers fewer than `gate`·N samples; refuse what shifts us too far.

        While the gate is not known, nothing is released.
        """
        self.memory, self.gate = memory, gate
        memory.forget_refusals()  # what may be adopted can have been changed since
        self._max_shift = max_shift
        self.decision = Decision()
        self.preview: Preview | None = None
        self.shift: float | None = None  # by what is held, if it was adopted since the start
        self.said = "nothing was told yet"

    def release(self) -> int:
        """Put on its way what may leave; give the number of contributions."""
        if self.gate is None:
            return 0
        self.decision = release(self.memory, self.gate * self.memory.projection.n_hidden)
        if self.decision.held:
            logger.info("held back", extra={"values": {"patterns": self.decision.held}})
        if self.decision.released:
            values = {"patterns": self.decision.released, "revision": self.memory.revision}
            logger.info("a release is on its way", extra={"values": values})
        return len(self.memory.pending)

    def hear(self, told: Told) -> bool:
        """Adopt what was told, unless it is known, refused or undone; say whether it was new."""
        data = encode(told)
        known = self.memory.shunned.get(digest_of(data))
        if data == self.memory.told or known:
            self.said = f"not adopted: {known}" if known else "nothing new"
            return False
        try:
            self.preview = Preview.of(self.memory.learner, told)
            refusal = self.preview.refusal(self._max_shift)
        except EdgemergeError as error:
            refusal = str(error)
        if refusal:
            return self._refuse(told, refusal)
        passing("agent-before-adopt")
        self._adopt(told, data)
        passing("agent-after-adopt")
        return True

    def undo(self) -> str:
        """Go back to what was told before; give the words that say what happened."""
        memory = self.memory
        if memory.before is None:
            return "there is nothing to undo: only the last merge can be undone, and once"
        memory.shun(memory.read_told(memory.told), "it was undone")
        memory.learner.adopt(memory.read_told(memory.before))
        memory.told, memory.before = memory.before, None
        self.shift = None
        self.said = "the last merge was undone"
        logger.info(self.said)
        return self.said

    def start_anew(self, clock: Callable[[], float]) -> None:
        """Begin a new incarnation: this is an old copy of a state that has gone on elsewhere."""
        memory = self.memory
        old = memory.incarnation
        memory.learner.start_anew(memory.read_told(memory.told))
        memory.incarnation = max(int(clock() * MS), old + 1)
        memory.revision, memory.pending, memory.gate = 0, [], Gate()
        memory.told, memory.before = b"", None
        self.shift = None
        values = {"incarnation": memory.incarnation, "before": old}
        logger.warning(
            "the exchange knows a later state of this device: it runs on an old copy of its disk, "
            "and starts a new incarnation",
            extra={"values": values},
        )

    def plain(self) -> dict[str, Any]:
        """Give what was shared and told last, as plain JSON."""
        return {
            "pending": len(self.memory.pending),
            "held_back": list(self.decision.held),
            "told": self.said,
            "preview": None if self.preview is None else self.preview.plain(),
        }

    def _adopt(self, told: Told, data: bytes) -> None:
        memory = self.memory
        memory.learner.adopt(told)
        came_from_nobody = not memory.told
        memory.before = None if came_from_nobody else memory.told
        memory.told = data
        self.shift = self.preview.shift if self.preview else None
        found = self.preview.plain() if self.preview else {}
        self.said = f"adopted {found.get('samples', 0):g} samples of {found.get('devices')} devices"
        logger.info("adopted what others saw", extra={"values": found})

    def _refuse(self, told: Told, why: str) -> bool:
        self.memory.shun(told, f"{REFUSED}: {why}")
        self.said = f"not adopted: {REFUSED}: {why}"
        logger.warning("refused what others saw", extra={"values": {"why": why}})
        return False
