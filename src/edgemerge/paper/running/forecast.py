"""How long jobs will still take, from how long those of their kind took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from edgemerge.paper.plan import Job
from edgemerge.paper.running.trials import kind

Kind = tuple[str, str, str]


class Forecast:
    """Jobs that are to come, jobs that are done, and what the latter took."""

    def __init__(self, workers: int = 1) -> None:
        """Expect nothing yet."""
        self.workers = workers
        self._coming: set[Job] = set()
        self._done: set[Job] = set()
        self._seconds: dict[Kind, list[float]] = {}

    def expect(self, jobs: Sequence[Job]) -> None:
        """Hear of jobs, perhaps again."""
        self._coming.update(set(jobs) - self._done)

    def done(self, job: Job, seconds: float | None) -> None:
        """Hear that a job is done, and what it took, if that is known."""
        self._coming.discard(job)
        self._done.add(job)
        if seconds is not None:
            self._seconds.setdefault(kind(job), []).append(seconds)

    @property
    def jobs(self) -> tuple[int, int]:
        """How many are done, and how many there are."""
        return len(self._done), len(self._done) + len(self._coming)

    @property
    def left_s(self) -> float | None:
        """The seconds until all is done, or None as long as no job was timed."""
        if not self._seconds:
            return None
        return self._work(self._coming) / max(1, min(self.workers, len(self._coming)))

    @property
    def share(self) -> float:
        """The part of all work that is done, from 0 to 1; jobs count by their time."""
        done, coming = self._work(self._done), self._work(self._coming)
        return done / (done + coming) if done + coming else 0.0

    def _work(self, jobs: set[Job]) -> float:
        return sum(self._mean(one) * n for one, n in Counter(map(kind, jobs)).items())

    def _mean(self, one: Kind) -> float:
        """The mean time of a kind; of one that is not known yet, the mean of all kinds."""
        if one in self._seconds:
            return fmean(self._seconds[one])
        return fmean(map(fmean, self._seconds.values())) if self._seconds else 1.0


def clock(seconds: float | None) -> str:
    """Write a time for people.

    >>> clock(3.4), clock(200), clock(7330), clock(None)
    ('3 s', '3 min 20 s', '2 h 02 min', 'unknown')
    """
    if seconds is None:
        return "unknown"
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
