"""Server processes that a test kills: forked from one that has imported everything, so fast."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from edgemerge.exchange.client import ServerClient
from tests.services.handle import Handle
from tests.waiting import DEADLINE_S, until

ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
FORKING = """
import json, os, signal, sys
from importlib import reload
from pathlib import Path

from edgemerge import failpoints
from edgemerge.daemon import log_to_stderr
from edgemerge.server.db import postgres
from edgemerge.server.main import serve

def arm(*_):
    os.environ["EDGEMERGE_FAILPOINT"] = armed.read_text()
    reload(failpoints)
    armed.unlink()

children = set()
for line in sys.stdin:
    order = json.loads(line)
    children = {child for child in children if os.waitpid(child, os.WNOHANG) == (0, 0)}
    child = os.fork()
    if child == 0:
        armed = Path(order.pop("armed"))
        signal.signal(signal.SIGUSR1, arm)
        log_to_stderr("warning")
        serve(**{name: Path(value) if name.endswith("file") else value
                 for name, value in order.items()})
        os._exit(0)
    children.add(child)
    print(child, flush=True)
for child in children:  # those that were left behind because the test was interrupted
    os.kill(child, signal.SIGKILL)  # its number is its own until it is waited for
    os.waitpid(child, 0)
"""


class Nest:
    """The process that servers are forked from; what they log is in `log`."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.log = folder / "servers.log"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", FORKING],
                env={**os.environ, **ENVIRONMENT},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def fork(self, **order) -> int:
        self._process.stdin.write(json.dumps(order, default=str) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, self.log.read_text()
        return int(line)

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(DEADLINE_S)
        self._process.stdout.close()


class Server:
    """One server on a database; killed and started again, at another port each time."""

    def __init__(self, nest: Nest, database: str, name: str = "server"):
        self._nest, self.database = nest, database
        self._port_file = nest.folder / f"{name}.port"
        self._armed = nest.folder / f"{name}.armed"
        self._token_file = nest.folder / "operator-token"
        self._handle: Handle | None = None
        self.url = ""

    @property
    def token(self) -> str:
        return self._token_file.read_text(encoding="utf-8").strip()

    @property
    def operator(self) -> ServerClient:
        return ServerClient(self.url, self.token)

    def start(self) -> None:
        self.close()
        self._port_file.unlink(missing_ok=True)
        number = self._nest.fork(
            database=self.database,
            port=0,
            port_file=self._port_file,
            admin_token_file=self._token_file,
            armed=self._armed,
        )
        self._handle = Handle(number)
        until(lambda: self._port_file.exists() or self.is_gone(), "the server listens")
        assert not self.is_gone(), self._nest.log.read_text()
        self.url = f"http://127.0.0.1:{int(self._port_file.read_text())}"

    def arm(self, failpoint: str) -> None:
        """Let it die by itself where it passes this place."""
        self._armed.with_suffix(".new").write_text(failpoint)
        self._armed.with_suffix(".new").rename(self._armed)
        self._handle.send(signal.SIGUSR1)
        until(lambda: not self._armed.exists() or self.is_gone(), "the failpoint is armed")

    def is_gone(self, within_s: float = 0.0) -> bool:
        return self._handle.is_gone(within_s)

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        self._handle.end(how)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.close()
            self._handle = None
