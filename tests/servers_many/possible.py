"""What may be the case at any moment, as far as those can know who asked for it.

Before something is asked for it may be so; once it is acknowledged it must be so. Between two
moments everything is possible that was possible at any time between them.
"""

from collections import defaultdict
from threading import Lock


class Possible:
    """For each subject the values of which one must be true; unknown subjects have `first`."""

    def __init__(self, first=None):
        self._first = frozenset([first])
        self._now = {}
        self._log = []
        self._lock = Lock()

    def may(self, subject, value):
        """From now on this may be so, too."""
        with self._lock:
            self._set(subject, self._now.get(subject, self._first) | {value})

    def must(self, subject, *values):
        """From now on one of these is so."""
        with self._lock:
            self._set(subject, frozenset(values))

    def now(self, subject):
        """What is possible at this moment."""
        with self._lock:
            return self._now.get(subject, self._first)

    def subjects(self):
        with self._lock:
            return list(self._now)

    def mark(self):
        """Remember this moment."""
        with self._lock:
            return dict(self._now), len(self._log)

    def since(self, mark):
        """All that was possible at some time since a moment."""
        before, length = mark
        with self._lock:
            later = self._log[length:]
        found = defaultdict(lambda: self._first, before)
        for subject, values in later:
            found[subject] |= values
        return found

    def _set(self, subject, values):
        self._now[subject] = values
        self._log.append((subject, values))
