"""Agents in processes of their own, killed by SIGKILL anywhere: every sample counts, and once.

EDGEMERGE_KILLS says how many kills at random moments; a long run has hundreds.
"""

import os
import shutil
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from random import Random
from time import monotonic

import numpy as np
import pytest

from edgemerge import Bank, Contribution, Detector, Monitor, Stats
from edgemerge.agent.state import StateFolder, own_stats
from edgemerge.core.ledger import Selection
from edgemerge.exchange.folder import FolderExchange
from tests.agent.agents import configured, ran, shared, stream, write_rows
from tests.waiting import until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
P = shared()
KILLS = int(os.environ.get("EDGEMERGE_KILLS", "8"))
ROWS = np.vstack([stream(900), stream(450, 1, 0.8)])  # enough for several exchanges
PEER = Contribution("pump-2", Stats.of(P, stream(90, 5)), 1)
FAILPOINTS = (  # what is adopted and saved is not adopted again
    *("before-save:1", "after-save:1", "before-adopt:1", "after-adopt:1", "before-push:1"),
    *("after-push:1", "after-push:2", "before-push:2", "after-save:3", "before-save:4"),
)
MOST_TOLD = 300  # scores, before a kill
SETTINGS = ("sync.gate=0", "sync.every_s=0.02", "sync.max_shift=1e9")


VOTES = {"always": (1, 1), "normal": (3, 5)}


@cache
def expected(kind, learn):
    """Results and own sums of a run that nobody disturbs."""
    learner = Bank(P) if kind == "bank" else Detector(P)
    monitor = Monitor(learner, learn=learn, votes=VOTES[learn])
    results = [monitor.take(x, at) for at, x in enumerate(ROWS)]
    return results, own_stats(monitor.learner)


class Agent:
    """An agent over all rows that is started again and again until it comes to the end."""

    def __init__(self, folder, kind="detector", learn="always"):
        folder.mkdir(exist_ok=True)
        self.folder, self.kind = folder, (kind, learn)
        self.config = configured(folder, *SETTINGS, kind=kind, learn=learn)
        self.exchange = FolderExchange(self.config.exchange.path, P)
        self.scores = folder / "scores"
        self.scores.touch()
        write_rows(folder / "pump-1.csv", ROWS)

    def start(self, failpoint="", *more):
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
            "OPENBLAS_NUM_THREADS": "1",
            "EDGEMERGE_FAILPOINT": failpoint,
        }
        program = [sys.executable, str(ROOT / "tests/agent/agents.py")]
        given = [str(self.folder / "pump-1.toml"), str(self.scores), *SETTINGS, *more]
        return subprocess.Popen([*program, *given], env=environment, stderr=subprocess.PIPE)

    def ends(self, process):
        """Wait for the end; say whether it was killed."""
        _, words = process.communicate(timeout=60.0)
        assert process.returncode in (0, -signal.SIGKILL), words.decode()
        return process.returncode != 0

    def dies_at(self, failpoint):
        return self.ends(self.start(f"agent-{failpoint}"))

    def is_killed_after(self, count):
        """Kill it when it has told so many scores, unless it comes to the end."""
        begun = self.told()
        process = self.start()
        until(lambda: self.told() >= begun + count or process.poll() is not None)
        process.kill()
        return self.ends(process)

    def told(self):
        return self.scores.read_bytes().count(b"\n")

    def memory(self):
        folder = StateFolder(self.config.state)
        memory = folder.read()
        folder.close()
        return memory

    def must_have_counted_every_sample_once(self):
        memory, (_, own) = self.memory(), expected(*self.kind)
        assert memory.index == len(ROWS)
        assert own_stats(memory.learner) == own
        there = self.exchange.pull(Selection(devices=("pump-1",)))
        assert {origin.incarnation for origin in there.origins} == {memory.incarnation}
        assert there.total == Stats.total(P, own.values())

    def must_be_as_if_nothing_had_been(self):
        self.must_have_counted_every_sample_once()
        told = {}
        for line in self.scores.read_text().splitlines():
            index, *rest = line.split()
            told.setdefault(int(index), set()).add(tuple(rest))
        single = self.kind[0] == "detector"
        for index, result in enumerate(expected(*self.kind)[0]):
            score = "none" if result.score is None else result.score.hex()
            pattern = None if single and not result.alarm else result.pattern
            assert told[index] == {(score, str(result.alarm), str(pattern))}


@pytest.mark.long
def test_killed_at_every_failpoint_it_counts_every_sample_once(tmp_path):
    agent = Agent(tmp_path)
    agent.exchange.push(PEER)
    for failpoint in FAILPOINTS:
        assert agent.dies_at(failpoint), failpoint
    assert not agent.dies_at("nowhere")
    agent.must_have_counted_every_sample_once()
    assert agent.memory().learner.others == PEER.stats


@pytest.mark.parametrize(
    ("kind", "learn"),
    [
        ("bank", "normal"),
        pytest.param("bank", "always", marks=pytest.mark.long),
        pytest.param("detector", "normal", marks=pytest.mark.long),
        pytest.param("detector", "always", marks=pytest.mark.long),
    ],
)
def test_killed_at_random_moments_it_goes_on_to_the_last_bit(tmp_path, kind, learn):
    agent, random, kills = Agent(tmp_path, kind, learn), Random(kind), 0
    while kills < KILLS // 2:
        if agent.is_killed_after(random.randrange(MOST_TOLD)):
            kills += 1
        else:
            agent.must_be_as_if_nothing_had_been()
            agent = Agent(tmp_path / f"after-{kills}", kind, learn)
    assert not agent.dies_at("nowhere")
    agent.must_be_as_if_nothing_had_been()
    told = f"{kills} kills of an agent with a {kind}, 0 samples lost or doubled"
    print(f"\n{told}")  # noqa: T201 - scripts/faults.py counts these


def test_asked_to_stop_it_saves_and_leaves_at_once(tmp_path):
    agent = Agent(tmp_path)
    process = agent.start("", "source.kind=tail", "save.every=1000000", "save.every_s=1000")
    until(lambda: agent.told() == len(ROWS))
    process.send_signal(signal.SIGTERM)
    asked = monotonic()
    assert not agent.ends(process)
    assert monotonic() - asked < 5.0  # two seconds, on a machine that does nothing else
    assert agent.memory().index == len(ROWS)


def test_a_state_folder_put_back_from_a_copy_counts_every_sample_once(tmp_path, caplog):
    config = configured(tmp_path, "sync.gate=0", "sync.every_s=3600")
    write_rows(tmp_path / "pump-1.csv", ROWS[:200])
    first = ran(config, clock=lambda: 1000.0)
    shutil.copytree(config.state, tmp_path / "copy")
    for part in (ROWS[200:250], ROWS[250:300]):
        write_rows(tmp_path / "pump-1.csv", part, "a")
        ran(config)
    shutil.rmtree(config.state)
    shutil.copytree(tmp_path / "copy", config.state)
    ran(config, clock=lambda: 2000.0)  # reads once more what the exchange has already
    assert "old copy of its disk" in caplog.text
    write_rows(tmp_path / "pump-1.csv", ROWS[300:], "a")
    last = ran(config)
    assert first.statuses[-1]["incarnation"] == 1_000_000
    assert last.statuses[-1]["incarnation"] == 2_000_000
    assert last.statuses[-1]["patterns"] == {"normal": len(ROWS)}
    assert FolderExchange(config.exchange.path, P).pull(Selection()).total == Stats.of(P, ROWS)
