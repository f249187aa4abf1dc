"""Processes of the demo: a server and one agent per device, connected over loopback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import IO, Any, Self

import numpy as np
from numpy.typing import NDArray

from edgemerge.agent.control import send_command
from edgemerge.core.errors import EdgemergeError, UnavailableError
from edgemerge.core.projection import Projection
from edgemerge.exchange.client import ServerClient

Array = NDArray[np.float64]

START_TIMEOUT_S = 40.0
ANSWER_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
FLEET_NAME = "demo"
MAX_MESSAGE_BYTES = 65536

# The paper's flow: each sample is learnt and judged by itself. Later one device watches, as it
# would in a plant.
PAPER_POLICY, WATCHING_POLICY = 'learn = "always"\nvotes = [1, 1]', 'learn = "normal"'

CONFIG_TEMPLATE = """\
device = "{device}"
state = "{device}"

[source]
kind = "stdin"
format = "csv"
header = {header}

[monitor]
limit = {limit}
{policy}

[exchange]
kind = "http"
url = "{url}"
fleet = "{fleet}"
token_file = "{device}.token"

[sync]
every_s = 0
gate = 2  # made-up data, of a minute; leave it out where samples are confidential

[[sinks]]
kind = "jsonl"
path = "-"
{more}"""

# To a phone it would be `preset = "ntfy"` and the address of a topic.
MESSAGE_SINK = """
[[sinks]]
kind = "webhook"
url = "{url}"
"""


class AgentProcess:
    """An agent process: rows go to its standard input, results come from its standard output."""

    def __init__(self, device: str, folder: Path) -> None:
        """Start the process."""
        self.device, self.state = device, folder / device
        self.scores: list[float] = []
        self.verdicts: list[dict[str, Any]] = []
        self._log = (folder / f"{device}.log").open("wb")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        words = "agent", f"{device}.toml"
        self.process = start_process(*words, folder=folder, log=self._log, **pipes)
        self._listener = Thread(target=self._listen, daemon=True)
        self._listener.start()

    def feed(self, rows: Array) -> None:
        """Send rows; it reads them as fast as it can."""
        self.write(",".join(map(repr, row.tolist())) for row in rows)

    def write(self, lines: Iterable[str]) -> None:
        """Write lines to its standard input."""
        stdin: IO[bytes] | None = self.process.stdin
        if stdin is None:
            return
        with suppress(BrokenPipeError):
            for line in lines:
                stdin.write(line.encode() + b"\n")
            stdin.flush()

    def ask(self, command: str, **words: Any) -> dict[str, Any]:
        """Send a command over its control socket."""
        request = {"command": command, **words}
        answer: dict[str, Any] = send_command(self.state, request, ANSWER_TIMEOUT_S)
        if "error" in answer:
            raise EdgemergeError(f"{self.device}: {answer['error']}")
        return answer

    def wait_until_up(self, deadline: float) -> None:
        """Wait until it answers, or raise with the path of its log."""
        while True:
            try:
                self.ask("status")
                return
            except UnavailableError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    words = f"{self.device} did not start: its log is {self._log.name}"
                    raise EdgemergeError(words) from None
                time.sleep(0.05)

    def wait_for(self, count: int, deadline: float) -> Array:
        """Wait for a number of scores in total; return them."""
        while len(self.scores) < count:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise EdgemergeError(
                    f"{self.device} stopped without a result: its log is {self._log.name}"
                )
            time.sleep(0.02)
        return np.array(self.scores)

    def close(self) -> None:
        """Stop it, and close its pipes."""
        if self.process.stdin:
            with suppress(OSError):
                self.process.stdin.close()
        stop_process(self.process)
        self._listener.join(STOP_TIMEOUT_S)
        if self.process.stdout:
            self.process.stdout.close()
        self._log.close()

    def _listen(self) -> None:
        for line in self.process.stdout or ():
            found = json.loads(line)
            if "score" in found:
                self.verdicts.append(found)
                self.scores.append(found["score"] or 0.0)  # null until enough is known


class MessageReceiver:
    """Receives what an agent's webhook sends, in place of a phone, inside the `with` block."""

    def __init__(self) -> None:
        """Listen on a free port of this machine."""
        self.messages: list[dict[str, Any]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"

    def __enter__(self) -> Self:
        """Begin to receive."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop receiving."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def wait_for(self, count: int, deadline: float) -> list[dict[str, Any]]:
        """Wait for so many messages in total, or until the deadline; return them."""
        while len(self.messages) < count and time.monotonic() < deadline:
            time.sleep(0.02)
        return self.messages

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        messages = self.messages

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                size = min(int(self.headers.get("Content-Length", 0)), MAX_MESSAGE_BYTES)
                messages.append(json.loads(self.rfile.read(size)))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        return Handler


class FleetProcesses:
    """A server and one agent per device, which run inside the `with` block."""

    def __init__(
        self,
        folder: Path,
        projection: Projection,
        devices: Sequence[str],
        *,
        limit: float,
        inputs: Sequence[str] = (),
    ) -> None:
        """Set folder, devices, alarm limit and names of the inputs; nothing is started yet."""
        self.folder, self.projection, self.limit, self.inputs = folder, projection, limit, inputs
        self.devices = list(devices)
        self.agents: dict[str, AgentProcess] = {}
        self.server: subprocess.Popen[bytes] | None = None
        self.url = ""

    def __enter__(self) -> Self:
        """Start the server, enrol the devices, start the agents, and wait until all are up."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._log = (self.folder / "server.log").open("wb")
        port_file = self.folder / "port"
        port_file.unlink(missing_ok=True)
        options = ("serve", "--database", "fleet.sqlite", "--port", "0", "--port-file", "port")
        try:
            with interrupts_blocked():
                self.server = start_process(*options, folder=self.folder, log=self._log)
            self._start_agents(self.server, port_file)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop all processes."""
        self.close()

    @property
    def operator(self) -> ServerClient:
        """Return a client with the operator's token."""
        token = (self.folder / "fleet.sqlite.admin-token").read_text(encoding="utf-8").strip()
        return ServerClient(self.url, token)

    def feed(self, rows: Mapping[str, Array]) -> None:
        """Send every agent its rows, all at the same time."""
        with ThreadPoolExecutor(len(rows)) as pool:
            list(pool.map(lambda name: self.agents[name].feed(rows[name]), rows))

    def ask(self, command: str, **words: Any) -> dict[str, dict[str, Any]]:
        """Send a command to all agents at the same time."""
        with ThreadPoolExecutor(len(self.agents)) as pool:
            found = pool.map(lambda agent: agent.ask(command, **words), self.agents.values())
            return dict(zip(self.agents, found, strict=True))

    def close(self) -> None:
        """Stop the agents, then the server."""
        for agent in self.agents.values():
            agent.close()
        if self.server is not None:
            stop_process(self.server)
        self._log.close()

    def _start_agents(self, server: subprocess.Popen[bytes], port_file: Path) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not port_file.exists():
            if server.poll() is not None or time.monotonic() > deadline:
                raise EdgemergeError(f"the server did not start: its log is {self._log.name}")
            time.sleep(0.02)
        self.url = f"http://127.0.0.1:{port_file.read_text(encoding='utf-8').strip()}"
        operator = self.operator
        operator.create_fleet(FLEET_NAME, self.projection, least=1)
        for device in self.devices:
            self._enrol(operator, device)
            with interrupts_blocked():
                self.agents[device] = AgentProcess(device, self.folder)
        for agent in self.agents.values():
            self._begin(agent, deadline)

    def _begin(self, agent: AgentProcess, deadline: float) -> None:
        agent.wait_until_up(deadline)
        agent.write([",".join(self.inputs)] if self.inputs else ())

    def restart(self, device: str, policy: str, messages_to: str) -> AgentProcess:
        """Restart an agent with another policy, and a sink for messages, from its state."""
        self.agents[device].close()
        self._configure(device, policy, MESSAGE_SINK.format(url=messages_to))
        with interrupts_blocked():
            self.agents[device] = AgentProcess(device, self.folder)
        self._begin(self.agents[device], time.monotonic() + START_TIMEOUT_S)
        return self.agents[device]

    def _enrol(self, operator: ServerClient, device: str) -> None:
        invitation = operator.invite(FLEET_NAME, device)["token"]
        token = ServerClient(self.url, invitation).enrol(FLEET_NAME, device)["token"]
        secret = self.folder / f"{device}.token"
        secret.touch(mode=0o600)
        secret.write_text(token + "\n", encoding="utf-8")
        self._configure(device, PAPER_POLICY)

    def _configure(self, device: str, policy: str, more: str = "") -> None:
        names = {"device": device, "url": self.url, "fleet": FLEET_NAME}
        header = str(bool(self.inputs)).lower()
        options = {"limit": self.limit, "header": header, "policy": policy, "more": more}
        config = CONFIG_TEMPLATE.format(**names, **options)
        (self.folder / f"{device}.toml").write_text(config, encoding="utf-8")


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Defer Ctrl-C until a started process is recorded, so that it can be stopped."""
    if os.name == "nt":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_process(
    *words: str, folder: Path, log: IO[bytes], **pipes: Any
) -> subprocess.Popen[bytes]:
    """Start `edgemerge` as a process that Ctrl-C at the terminal does not reach."""
    command, apart = [sys.executable, "-m", "edgemerge", *words], os.name != "nt"
    return subprocess.Popen(command, cwd=folder, stderr=log, start_new_session=apart, **pipes)


def stop_process(process: subprocess.Popen[bytes]) -> None:
    """Terminate a process; kill it if it does not exit."""
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
