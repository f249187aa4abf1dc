"""Keeping: saves the memory of an agent every so many readings or seconds, and when asked to."""

from __future__ import annotations

import logging
from collections.abc import Callable

from edgemerge.agent.config import SaveConfig
from edgemerge.agent.limits import threshold_state
from edgemerge.agent.memory import Memory
from edgemerge.agent.parts import Features
from edgemerge.agent.state import StateFolder
from edgemerge.core.threshold import Threshold

logger = logging.getLogger(__name__)


class Keeper:
    """Saves; a disk that is full or gone does not stop detection, and is told of in the status."""

    def __init__(
        self,
        folder: StateFolder,
        memory: Memory,
        features: Features,
        threshold: Threshold,
        often: SaveConfig,
        *,
        steady: Callable[[], float],
    ) -> None:
        """Save what these remember, as often as that."""
        self._folder, self._memory = folder, memory
        self._features, self._threshold = features, threshold
        self._often, self._steady = often, steady
        self._readings, self._at = 0, steady()
        self.trouble = ""

    def count(self) -> None:
        """Take note of a reading that was dealt with."""
        self._readings += 1

    def tend(self) -> None:
        """Save if it is time."""
        if not self._readings:
            return
        late = self._steady() - self._at >= self._often.every_s
        if late or self._readings >= self._often.every:
            self.save()

    def save(self) -> bool:
        """Save now; say whether it worked."""
        self._memory.features = self._features.state()
        self._memory.threshold = threshold_state(self._threshold)
        self._readings, self._at = 0, self._steady()
        try:
            self._folder.write(self._memory)
        except OSError as error:
            if not self.trouble:
                logger.error("the state cannot be saved", extra={"values": {"why": error}})
            self.trouble = f"the state cannot be saved: {error.strerror or error}"
            return False
        self.trouble = ""
        return True
