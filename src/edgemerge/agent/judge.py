"""Judge readings: score each sample, decide on an alarm, then learn the sample."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np

from edgemerge.agent.interfaces import Features, Reading, Verdict
from edgemerge.agent.state import AgentState
from edgemerge.core.detector import Detector, Seen
from edgemerge.core.errors import CapacityError, SampleError
from edgemerge.core.threshold import Threshold

NAMED_INPUTS = 3  # inputs that an alarm names
EXPLAINED_INPUTS = 8  # inputs whose part in the loss an alarm reports

logger = logging.getLogger(__name__)


class Judge:
    """Scores each sample before it is learnt: `judge`, then `learn`, project it once."""

    def __init__(
        self,
        memory: AgentState,
        features: Features,
        threshold: Threshold,
        names: Callable[[tuple[str, ...] | None], Sequence[str]],
        clock: Callable[[], float],
    ) -> None:
        """Judge samples; `names` returns the names of inputs for the names that a source read."""
        self._memory, self._features, self._threshold = memory, features, threshold
        self._names, self._clock = names, clock
        self._read: tuple[str, ...] | None = None
        self._seen: Seen | None = None  # judged, and not learnt yet

    def judge(self, reading: Reading) -> Verdict | None:
        """Return the verdict on the sample that a reading completes; None if it completes none."""
        self._memory.position, self._read = reading.position, reading.names
        self._seen = None
        try:
            sample = self._features.push(reading.values)
            if sample is None:
                return None
            self._seen = self._memory.learner.look(sample)
            return self._verdict(self._seen, reading.at)
        except SampleError as error:
            self._skip(error)
            return None

    def learn(self) -> None:
        """Learn the sample that was judged last, unless learning is paused."""
        if self._seen is not None and self._memory.learning:
            try:
                self._memory.learner.learn(self._seen)
            except CapacityError as error:
                self._memory.learning = False
                logger.error("learning has ended", extra={"values": {"why": error}})
        self._seen = None
        self._memory.index += 1

    def scores(self, rows: Sequence[Sequence[float]]) -> list[float]:
        """Score samples without learning them."""
        return [self._memory.learner.look(row).score for row in rows]

    @property
    def limit(self) -> float:
        """The score above which a sample counts as unusual now."""
        return self._threshold.limit

    def _verdict(self, seen: Seen, at: float | None) -> Verdict:
        memory, limit = self._memory, self._threshold.limit
        alarm = self._threshold.update(seen.score)
        memory.alarms += alarm
        carried = self._carried(seen) if alarm else ()
        return Verdict(
            device=memory.device,
            index=memory.index,
            at=self._clock() if at is None else at,
            score=seen.score,
            limit=limit,
            alarm=alarm,
            pattern=None if isinstance(memory.learner, Detector) else seen.pattern,
            why=tuple(name for name, _factor in carried[:NAMED_INPUTS]),
            carried=carried,
        )

    def _carried(self, seen: Seen) -> tuple[tuple[str, float], ...]:
        shares = self._memory.learner.explain(seen)
        names = self._names(self._read)
        first = np.argsort(-shares, kind="stable")[:EXPLAINED_INPUTS]
        return tuple((names[i], float(shares[i])) for i in first)

    def _skip(self, error: SampleError) -> None:
        self._memory.skipped += 1
        if self._memory.skipped & (self._memory.skipped - 1) == 0:  # the 1st, 2nd, 4th, 8th, …
            values = {"skipped": self._memory.skipped, "why": error}
            logger.warning("a sample was skipped", extra={"values": values})
