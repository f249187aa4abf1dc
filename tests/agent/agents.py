"""Agents for the tests: a stream of a simulated machine, configurations, and a sink that listens.

Run as a program, it is an agent in a process of its own, to be killed:
`agents.py CONFIG SCORES [table.key=value ...]`.
"""

import os
import sys
from pathlib import Path
from threading import Event, Thread

import numpy as np

from edgemerge import Projection
from edgemerge.agent.config import Config, read_config
from edgemerge.agent.state import merged_digest
from edgemerge.agent.supervisor import run
from edgemerge.agent.sync import plan_adoption
from edgemerge.daemon import stop_on_signals
from edgemerge.wire.codec import encode
from tests.waiting import DEADLINE_S, until

INPUTS = 6


def stream(rows, seed=0, place=0.2):
    """Samples of one mode of a machine: two causes behind six inputs."""
    rng = np.random.default_rng(seed)
    mixing = np.random.default_rng(int(100 * place)).normal(0.0, 0.1, (2, INPUTS))
    noise = rng.normal(0.0, 0.01, (rows, INPUTS))
    return place + rng.normal(size=(rows, 2)) @ mixing + noise


def shared(hidden=8):
    return Projection(n_inputs=INPUTS, n_hidden=hidden, seed=7)


def write_rows(path, rows, mode="w"):
    """Write samples as CSV, each number with all its digits."""
    with Path(path).open(mode) as file:
        file.writelines(",".join(map(repr, map(float, row))) + "\n" for row in rows)


def configured(folder, *settings, device="pump-1", kind="detector", learn="always") -> Config:
    """A configuration in a folder, with `table.key=value` over it.

    It learns everything and judges each sample by itself, unless a test is about that.
    """
    folder = Path(folder)
    (folder / "exchange").mkdir(exist_ok=True)
    path = folder / f"{device}.toml"
    path.write_text(
        f"""
        device = "{device}"
        state = "state-{device}"
        [projection]
        n_inputs = {INPUTS}
        n_hidden = 8
        seed = 7
        [source]
        kind = "csv"
        path = "{device}.csv"
        header = false
        [learner]
        kind = "{kind}"
        [monitor]
        learn = "{learn}"
        votes = {[1, 1] if learn == "always" else [3, 5]}
        [exchange]
        kind = "folder"
        path = "exchange"
        [sync]
        every_s = 0.05
        [save]
        every = 10
        """
    )
    return read_config(path, environment={}, overrides=settings)


def enrolled(hub, folder, *settings, device="pump-1", fleet="pumps") -> Config:
    """The configuration of a device that follows rows.csv and exchanges with a server on command.

    It has no projection: that is the fleet's.
    """
    folder.mkdir(exist_ok=True)
    (folder / "token").write_text(hub.enrol(fleet, device))
    path = folder / "agent.toml"
    path.write_text(
        f"""
        device = "{device}"
        state = "state"
        [source]
        kind = "tail"
        path = "rows.csv"
        [learner]
        kind = "detector"
        [exchange]
        kind = "http"
        url = "{hub.url}"
        fleet = "{fleet}"
        token_file = "token"
        [sync]
        every_s = 0
        """
    )
    return read_config(path, environment={}, overrides=settings)


def receive(sharing, merged):
    """Plan and adopt in this thread, as the workers and the loop do together."""
    held = sharing.memory.merged
    carry_out(sharing, sharing.consider(merged, merged_digest(encode(merged))))
    return sharing.memory.merged != held


def undo(sharing):
    carry_out(sharing, sharing.consider_undo())
    return sharing.message


def carry_out(sharing, job):
    while job is not None:
        job = sharing.finish(job, plan_adoption(job))


class Listener:
    """Remembers what it is told; with a path, it writes each score there with all its bits."""

    def __init__(self, path=None):
        self.verdicts, self.statuses = [], []
        self._file = None if path is None else Path(path).open("a", buffering=1)  # noqa: SIM115

    def verdict(self, verdict):
        self.verdicts.append(verdict)
        if self._file is not None:
            score = "none" if verdict.score is None else verdict.score.hex()
            self._file.write(f"{verdict.index} {score} {verdict.alarm} {verdict.pattern}\n")

    def status(self, status):
        self.statuses.append(status)

    def close(self):
        if self._file is not None:
            self._file.close()

    @property
    def scores(self):
        return [verdict.score for verdict in self.verdicts]


class Running:
    """An agent in a thread; leaving the block stops it and gives its exit code."""

    def __init__(self, config, **options):
        self.listener, self.stop, self.code = Listener(), Event(), None
        self._thread = Thread(target=self._run, args=(config, options))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_error):
        self.stop.set()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), "the agent does not stop"

    def _run(self, config, options):
        self.code = run(config, stop=self.stop, sinks=[self.listener], **options)

    def until(self, condition):
        """Wait until something is true of it."""
        until(condition)


def ran(config, **options):
    """Run an agent to the end of its source; give what it told."""
    listener = Listener()
    code = run(config, stop=Event(), sinks=[listener], **options)
    assert code == 0
    return listener


if __name__ == "__main__":
    told = Listener(sys.argv[2])
    said = read_config(sys.argv[1], environment=os.environ, overrides=sys.argv[3:])
    stop = Event()
    with stop_on_signals(stop):
        code = run(said, stop=stop, sinks=[told])
    told.close()
    sys.exit(code)
