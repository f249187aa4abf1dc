"""Judging: from a reading to a verdict, and on to what is learnt from it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from edgemerge.agent.interfaces import Features, Reading, Verdict
from edgemerge.agent.state import AgentState
from edgemerge.core.errors import CapacityError, SampleError
from edgemerge.core.threshold import Threshold

Array = NDArray[np.float64]

NAMED_INPUTS = 3  # inputs that are named when there is an alarm
EXPLAINED_INPUTS = 8  # of which it is known how much they carry

logger = logging.getLogger(__name__)


class Judge:
    """Scores each sample before it is learnt, so that a score never knows its own sample."""

    def __init__(
        self,
        memory: AgentState,
        features: Features,
        threshold: Threshold,
        names: Callable[[tuple[str, ...] | None], Sequence[str]],
        clock: Callable[[], float],
    ) -> None:
        """Judge samples; `names` gives those of their inputs, from those that the source read."""
        self._memory, self._features, self._threshold = memory, features, threshold
        self._names, self._clock = names, clock
        self._read: tuple[str, ...] | None = None
        self._sample: Array | None = None  # judged, and not learnt yet

    def judge(self, reading: Reading) -> Verdict | None:
        """Give the verdict on the sample that a reading completes, if it does."""
        self._memory.position, self._read = reading.position, reading.names
        try:
            self._sample = self._features.push(reading.values)
            return None if self._sample is None else self._verdict(self._sample, reading.at)
        except SampleError as error:
            self._skip(error)
            return None

    def learn(self) -> None:
        """Learn the sample that was judged last, unless learning is paused."""
        if self._sample is not None and self._memory.learning:
            try:
                self._memory.learner.learn(self._sample)
            except CapacityError as error:
                self._memory.learning = False
                logger.error("learning has ended", extra={"values": {"why": error}})
        self._sample = None
        self._memory.index += 1

    def scores(self, rows: Sequence[Sequence[float]]) -> list[float]:
        """Score samples without learning them."""
        return [self._memory.learner.score(np.asarray(row, dtype=np.float64)) for row in rows]

    @property
    def limit(self) -> float:
        """The score above which a sample counts as unusual now."""
        return self._threshold.limit

    def _verdict(self, x: Array, at: float | None) -> Verdict:
        memory, limit = self._memory, self._threshold.limit
        score = memory.learner.score(x)
        alarm = self._threshold.update(score)
        memory.alarms += alarm
        carried = self._carried(x) if alarm else ()
        return Verdict(
            device=memory.device,
            index=memory.index,
            at=self._clock() if at is None else at,
            score=score,
            limit=limit,
            alarm=alarm,
            pattern=memory.learner.closest(x),
            why=tuple(name for name, _factor in carried[:NAMED_INPUTS]),
            carried=carried,
        )

    def _carried(self, x: Array) -> tuple[tuple[str, float], ...]:
        shares = self._memory.learner.explain(x)
        names = self._names(self._read)
        first = np.argsort(-shares, kind="stable")[:EXPLAINED_INPUTS]
        return tuple((names[i], float(shares[i])) for i in first)

    def _skip(self, error: SampleError) -> None:
        self._sample = None
        self._memory.skipped += 1
        if self._memory.skipped & (self._memory.skipped - 1) == 0:  # the 1st, 2nd, 4th, 8th, …
            values = {"skipped": self._memory.skipped, "why": error}
            logger.warning("a sample was skipped", extra={"values": values})
