"""A server and agents as processes of their own, and the operator's shell."""

import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from click.testing import Result

from edgemerge import Projection
from tests.cases import machine
from tests.cli.calls import call, clean_environment
from tests.waiting import DEADLINE_S

SHARED = Projection(n_inputs=6, n_hidden=8, seed=3)
IDLE = machine(0.1, 200, np.random.default_rng(0))
FAST = machine(0.7, 200, np.random.default_rng(1))


@dataclass(frozen=True)
class Process:
    running: subprocess.Popen[bytes]
    log: Path

    def stop(self) -> int:
        self.running.send_signal(signal.SIGTERM)
        return self.running.wait(DEADLINE_S)


def start(log: Path, *words: object, stdin: int | None = None) -> Process:
    with log.open("wb") as out:
        found = subprocess.Popen(
            [sys.executable, "-m", "edgemerge", *map(str, words)],
            env=clean_environment(),
            stderr=out,
            stdin=stdin,
        )
    return Process(found, log)


@dataclass(frozen=True)
class Hub:
    """A server that runs, and its operator's shell."""

    url: str
    folder: Path

    @property
    def token(self) -> Path:
        return self.folder / "hub.sqlite.admin-token"

    def fleet(self, *words: object) -> Result:
        return call(
            "fleet", *words, EDGEMERGE_SERVER=self.url, EDGEMERGE_TOKEN_FILE=str(self.token)
        )

    def told(self, *words: object) -> object:
        result = self.fleet(*words, "--json")
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)

    def enrolled(self, fleet: str, device: str, token: Path) -> None:
        invitation = self.fleet("invite", fleet, device).stdout
        words = ("--invitation-file", "-", "--token-file", token)
        assert call("enrol", self.url, fleet, device, *words, given=invitation).exit_code == 0
