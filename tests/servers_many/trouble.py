"""Trouble: servers that are killed, stopped or paused, a database that hangs up or crashes."""

import signal
import time
from collections import Counter
from threading import Event

import numpy as np

from tests.servers_many.workers import Worker

KINDS = ("kill", "kill", "kill", "hang up", "kill", "kill", "stop", "pause", "kill", "crash")
HANG_UP = "select pg_terminate_backend(pid) from pg_stat_activity where application_name like '{}'"


class Trouble:
    """One trouble after the other, until there were so many kills or it is told to stop."""

    def __init__(self, workers: list[Worker], postgres, seed: int, *, kills: float):
        self._workers, self._postgres, self._kills = workers, postgres, kills
        self._rng = np.random.default_rng(seed)
        self.counts: Counter[str] = Counter()
        self.done = Event()

    def work(self, stop: Event) -> None:
        number = 0
        while not stop.wait(self._rng.uniform(0.2, 0.8)) and self.counts["kills"] < self._kills:
            worker = self._workers[self._rng.integers(len(self._workers))]
            self._make(KINDS[number % len(KINDS)], worker)
            number += 1
        self.done.set()

    def _make(self, kind: str, worker: Worker) -> None:
        if kind == "hang up":
            every = self._rng.random() < 0.5
            self._postgres.run(HANG_UP.format("edgemerge-%" if every else worker.name))
            self.counts["connection losses"] += 1
        elif kind == "crash":
            self._postgres.stop(signal.SIGQUIT)
            self._postgres.start()
            self.counts["crashes of PostgreSQL"] += 1
        elif kind == "pause":
            worker.send(signal.SIGSTOP)
            time.sleep(self._rng.uniform(0.1, 0.6))  # the trouble itself
            worker.send(signal.SIGCONT)
            self.counts["pauses"] += 1
        else:
            worker.end(signal.SIGTERM if kind == "stop" else signal.SIGKILL)
            time.sleep(self._rng.uniform(0.0, 0.5))  # for so long it is missing
            worker.start()
            worker.await_ready()
            self.counts["kills" if kind == "kill" else "stops"] += 1
