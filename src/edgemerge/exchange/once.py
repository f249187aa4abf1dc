"""A log of things that were left alone, each named once: they are met again at every pull."""

from __future__ import annotations

from logging import Logger

MOST = 1000  # names remembered


class Once:
    """Says what is wrong with a thing when it is first met, or when something else is wrong."""

    def __init__(self, logger: Logger, words: str) -> None:
        """Say it with these words, and with the name and the reason as values."""
        self._logger, self._words = logger, words
        self._said: dict[str, str] = {}

    def say(self, name: str, error: Exception) -> None:
        """Log it, unless that is what was said last time."""
        why = str(error)[:300]
        if self._said.get(name) == why:
            return
        if len(self._said) >= MOST:
            self._said.clear()
        self._said[name] = why
        self._logger.warning(self._words, extra={"values": {"name": name[:300], "why": why}})

    def well(self, name: str) -> None:
        """Take back what was said: a next time is news again."""
        self._said.pop(name, None)
