"""Server processes at fixed ports, all on one database: killed, paused and started again."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from random import SystemRandom
from threading import Lock
from urllib.error import URLError
from urllib.request import urlopen

from tests.services.handle import Handle
from tests.waiting import DEADLINE_S

ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
FORKING = """
import json, os, signal, sys
from edgemerge.cli import main
import edgemerge.server.main, edgemerge.server.db.postgres, uvicorn.lifespan.on
import uvicorn.protocols.websockets.auto, uvicorn.loops.auto

children = set()
for line in sys.stdin:
    order = json.loads(line)
    children = {child for child in children if os.waitpid(child, os.WNOHANG) == (0, 0)}
    child = os.fork()
    if child == 0:
        log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.dup2(log, 2)
        sys.exit(main(order["options"], prog_name="edgemerge"))
    children.add(child)
    print(child, flush=True)
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""


class Nest:
    """Starts the command in a fork of a process that has imported all of it: faster."""

    def __init__(self):
        self._lock = Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-c", FORKING],
            env={**os.environ, **ENVIRONMENT},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, options: list[str], log: Path) -> int:
        with self._lock:
            order = json.dumps({"options": options, "log": str(log)})
            self._process.stdin.write(order + "\n")
            self._process.stdin.flush()
            return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(DEADLINE_S)
        self._process.stdout.close()


def quiet_port() -> int:
    """A free port that nobody is given by chance: while a server is down, it stays free."""
    while True:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", SystemRandom().randrange(12_000, 32_000)))
            return int(probe.getsockname()[1])


class Worker:
    """One `edgemerge serve`, at the same port whenever it is started."""

    def __init__(self, nest: Nest, folder: Path, database: str, number: int):
        self.port = quiet_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.name = f"edgemerge-{number}"
        self.log = folder / f"{self.name}.log"
        self._nest = nest
        self._options = [
            *("serve", "--database", f"{database}?application_name={self.name}"),
            *("--port", str(self.port), "--log-level", "warning"),
            *("--admin-token-file", str(folder / "admin.token")),
        ]
        self._handle: Handle | None = None

    def start(self) -> None:
        """Start it; it is not there yet when this returns."""
        self.close()
        self._handle = Handle(self._nest.start(self._options, self.log))

    def await_ready(self) -> None:
        end = time.monotonic() + DEADLINE_S
        while not self.is_ready():
            assert not self.is_gone(), self.log.read_text(encoding="utf-8")
            assert time.monotonic() < end, self.log.read_text(encoding="utf-8")
            time.sleep(0.02)

    def is_ready(self) -> bool:
        try:
            with urlopen(f"{self.url}/readyz", timeout=DEADLINE_S) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False

    def is_gone(self) -> bool:
        return self._handle.is_gone()

    def send(self, what: signal.Signals) -> None:
        self._handle.send(what)

    def end(self, how: signal.Signals = signal.SIGKILL) -> None:
        self._handle.end(how)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.close()
            self._handle = None
