"""What a result's jobs come to: how many, how long, under which settings."""

from __future__ import annotations

from collections.abc import Sequence

from edgemerge.paper.data import NAMES
from edgemerge.paper.plan import Job
from edgemerge.paper.running.trials import Watch
from edgemerge.paper.running.workers import Done


class Tally:
    """Counts jobs, and passes on what it hears."""

    def __init__(self, watch: Watch) -> None:
        """Start at nothing."""
        self.watch = watch
        self.jobs, self.before, self.seconds = 0, 0, 0.0
        self.settings: dict[str, list[str]] = {}
        self.datasets: set[str] = set()

    def coming(self, jobs: Sequence[Job]) -> None:
        """Note the settings and the data sets."""
        self.datasets |= {job.dataset for job in jobs} & set(NAMES)
        for job in jobs:
            whose = " ".join(filter(None, (job.dataset, job.method)))
            known = self.settings.setdefault(whose, [])
            if job.settings and job.settings not in known:
                known.append(job.settings)
        self.watch.coming(jobs)

    def done(self, done: Done, *, before: bool) -> None:
        """Count a job."""
        self.jobs += 1
        self.before += before
        self.seconds += done.seconds or 0.0
        self.watch.done(done, before=before)

    def __str__(self) -> str:
        """Say how many jobs there were."""
        jobs = "1 job" if self.jobs == 1 else f"{self.jobs} jobs"
        return f"{jobs}, {self.before} of them done before" if self.before else jobs
