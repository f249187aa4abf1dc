"""Three emulated boards and two Python agents in one fleet: `make mcu`.

A Cortex-M4, an M7 and an M3 in QEMU read a simulated pump over one UART and talk to
`edgemerge bridge` over another. Two agents in Python watch pumps of the same kind. All five are in
a fleet on a real server. The M4 and the agents have seen the pump run slow, the M7 and the M3 have
seen it run fast. Then:

1. the merged sums are those of five devices in Python, to the last bit;
2. the M4 has adopted what the others saw, and takes a fast pump for what it is: normal;
3. a bearing fails at the M7: it raises an alarm, which reaches the server;
4. the bridge is restarted in the middle, and the boards go on.
"""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from edgemerge import Detector, Projection, Selection, Stats
from edgemerge.demo.processes import FLEET_NAME, FleetProcesses, start_process, stop_process
from edgemerge.embedded.export import to_files
from edgemerge.exchange.client import ServerClient
from edgemerge.exchange.http import HttpExchange
from examples.microcontroller.firmware import BOARDS, EMULATOR, HERE, INSTALL, build, missing_tools

Rows = NDArray[np.int64]
SHARED = Projection(
    n_inputs=16, n_hidden=16, seed=7, low=0.0, high=4096.0
)  # 12 bits of a converter
ON_BOARDS = {"pump-1": "M4", "pump-2": "M7", "pump-3": "M3"}
IN_PYTHON = ("pump-4", "pump-5")
FAST = ("pump-2", "pump-3")
COMMISSIONING = 16 * SHARED.n_hidden  # samples, all of which a board learns
SHARE_EVERY = 128  # samples, as in main.c
CONFIG_ADDRESS, CONFIG_MAGIC = 0x00100000, b"edmc"
DEADLINE_S = 240.0  # emulated boards on a busy machine
LIMIT = 4.0  # of the score, from which on it is odd; as in edgemerge.h


def pump(rows: int, *, fast: bool, fault: bool = False, seed: int = 0) -> Rows:
    """Return readings of a pump: 16 bands of its vibration, by a converter of 12 bits."""
    rng = np.random.default_rng(seed)
    bands, load = np.arange(16), rng.uniform(0.7, 1.3, (rows, 1))
    first, second = (9.0, 13.0) if fast else (3.0, 7.0)  # the turning, and its harmonic
    shape = 1.5 * np.exp(-((bands - first) ** 2) / 3.0) + 0.8 * np.exp(
        -((bands - second) ** 2) / 2.0
    )
    level = 400.0 + 1300.0 * load * shape + rng.normal(0.0, 40.0, (rows, 16))
    if fault:
        level += 900.0 * np.exp(-((bands - 5.0) ** 2) / 2.0) * rng.uniform(0.6, 1.4, (rows, 1))
    return np.asarray(np.clip(np.rint(level), 0, 4095), dtype=np.int64)


class Sensor:
    """A pump that a board asks over its UART: each 'r' is answered with the next row."""

    def __init__(self) -> None:
        """Listen for the board."""
        self.rows: list[Rows] = []
        self.given = 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self._closed = Event()
        self._thread = Thread(target=self._serve, daemon=True)
        self._thread.start()

    def feed(self, rows: Rows) -> None:
        """Give the board these rows next."""
        self.rows += list(rows)

    def close(self) -> None:
        """Give nothing more; call it when the board has ended."""
        self._closed.set()
        with suppress(OSError):  # it was not listening any more
            self._server.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._server.close()

    def _serve(self) -> None:
        with suppress(OSError), self._server.accept()[0] as line:  # the board may end at any time
            while line.recv(1) == b"r":
                while self.given >= len(self.rows):
                    if self._closed.wait(0.01):
                        return
                line.sendall(self.rows[self.given].astype("<i2").tobytes())
                self.given += 1


class Agents(FleetProcesses):
    """A server and agents that learn every sample, as boards do while they are commissioned."""

    def _configure(self, device: str, policy: str, more: str = "") -> None:
        super()._configure(device, policy + '\n\n[learner]\nkind = "detector"', more)


class Fleet:
    """A server, two agents, a bridge and three boards, which run inside the `with` block."""

    def __init__(self, folder: Path) -> None:
        """Set the folder; nothing is started yet."""
        self.folder = folder
        self.processes = Agents(folder, SHARED, IN_PYTHON, limit=LIMIT)
        self.sensors = {name: Sensor() for name in ON_BOARDS}
        self.bridge_port = 0

    def enrol(self, device: str) -> str:
        """Enrol a device; return its token."""
        invitation = self.processes.operator.invite(FLEET_NAME, device)["token"]
        return str(ServerClient(self.processes.url, invitation).enrol(FLEET_NAME, device)["token"])

    def start_bridge(self) -> subprocess.Popen[bytes]:
        """Start the bridge, at the same port as before; wait until it listens."""
        port_file = self.folder / "bridge.port"
        port_file.unlink(missing_ok=True)
        words = (
            *("bridge", "--server", self.processes.url, "--fleet", FLEET_NAME),
            *("--tokens", "tokens", "--port-file", port_file.name),
            *("--listen", f"127.0.0.1:{self.bridge_port}"),
        )
        with (self.folder / "bridge.log").open("ab") as log:
            found = start_process(*words, folder=self.folder, log=log)
        wait_until("the bridge listens", lambda: port_file.exists() or found.poll() is not None)
        if found.poll() is not None:
            raise SystemExit((self.folder / "bridge.log").read_text(encoding="utf-8"))
        self.bridge_port = int(port_file.read_text(encoding="utf-8"))
        return found

    @contextmanager
    def board(self, device: str, program: Path) -> Iterator[None]:
        """Run a board in QEMU; name and token are written to its flash."""
        token = (self.folder / "tokens" / f"{device}.token").read_text(encoding="utf-8").strip()
        config = self.folder / f"{device}.config"
        config.write_bytes(
            struct.pack("<4sI64s184s", CONFIG_MAGIC, 0, device.encode(), token.encode())
        )
        ports = (self.bridge_port, self.sensors[device].port)
        lines = [
            word
            for number, port in enumerate(ports)
            for word in (
                *("-chardev", f"socket,id=line{number},host=127.0.0.1,port={port},reconnect=1"),
                *("-serial", f"chardev:line{number}"),
            )
        ]
        words = [
            *(EMULATOR, "-M", BOARDS[ON_BOARDS[device]].machine, "-display", "none"),
            *("-monitor", "none", *lines, "-kernel", str(program)),
            *("-device", f"loader,file={config},addr={CONFIG_ADDRESS:#x},force-raw=on"),
        ]
        with (self.folder / f"{device}.log").open("wb") as log:
            process = subprocess.Popen(words, stderr=log)
        try:
            yield
        finally:
            stop_process(process)
            self.sensors[device].close()

    def status(self, device: str) -> dict[str, Any]:
        """Return what the server knows of a device's status."""
        return dict(self.processes.operator.device(FLEET_NAME, device).get("status") or {})

    def samples(self, device: str) -> float:
        """Return how many samples the fleet has of a device."""
        listed = self.processes.operator.contributions(FLEET_NAME)["contributions"]
        return float(sum(each["samples"] for each in listed if each["device"] == device))


def wait_until(what: str, holds: Callable[[], object]) -> None:
    """Wait until something holds, or end with what did not."""
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        if time.monotonic() > deadline:
            fail(f"waited {DEADLINE_S:g} s in vain until {what}")
        time.sleep(0.05)


def fail(words: str) -> NoReturn:
    """End with a message."""
    raise SystemExit(f"FAILED: {words}")


def say(words: str) -> None:
    """Print one line."""
    print(words, flush=True)


def build_firmware(folder: Path) -> dict[str, Path]:
    """Compile the firmware for each board; return the programs."""
    for file, text in to_files(SHARED, "pump").items():
        (folder / file).write_text(text, encoding="utf-8")
    programs = {}
    for device, name in ON_BOARDS.items():
        board, target = BOARDS[name], folder / f"{name}.elf"
        programs[device] = build(board, [HERE / "main.c"], target, "-O2", include=[folder])
    return programs


def run(folder: Path) -> dict[str, float]:
    """Run the whole story; return what was measured."""
    began = time.monotonic()
    programs = build_firmware(folder)
    fleet = Fleet(folder)
    names = (*ON_BOARDS, *IN_PYTHON)
    first = {
        name: pump(COMMISSIONING, fast=name in FAST, seed=number)
        for number, name in enumerate(names)
    }
    with ExitStack() as stack:
        stack.enter_context(fleet.processes)
        (folder / "tokens").mkdir(exist_ok=True)
        for device in ON_BOARDS:
            secret = folder / "tokens" / f"{device}.token"
            secret.touch(mode=0o600)
            secret.write_text(fleet.enrol(device) + "\n", encoding="utf-8")
        bridge = fleet.start_bridge()
        for device, program in programs.items():
            stack.enter_context(fleet.board(device, program))
        passed = time.monotonic() - began
        say(f"A server, two agents, a bridge and three boards run after {passed:.0f} s.")
        for device, sensor in fleet.sensors.items():
            sensor.feed(first[device][:SHARE_EVERY])
        wait_until("the boards have shared", lambda: all(map(fleet.samples, ON_BOARDS)))
        stop_process(bridge)
        bridge = fleet.start_bridge()
        stack.callback(lambda: stop_process(bridge))
        say("The bridge was restarted; the boards go on.")
        for device, sensor in fleet.sensors.items():
            sensor.feed(first[device][SHARE_EVERY:])
        fleet.processes.feed({name: first[name].astype(float) for name in IN_PYTHON})
        for agent in fleet.processes.agents.values():
            agent.wait_for(COMMISSIONING, time.monotonic() + DEADLINE_S)
        fleet.processes.ask("sync")
        everyone = [(name, COMMISSIONING) for name in names]
        wait_until("all have shared", lambda: all(fleet.samples(n) == c for n, c in everyone))
        checker = HttpExchange(fleet.processes.url, FLEET_NAME, fleet.enrol("checker"))
        merged = checker.pull(Selection(receiver="checker")).total
        expected = Stats.empty(SHARED)
        for rows in first.values():
            expected = expected + Stats.of(SHARED, rows.astype(float))
        if merged != expected:
            fail("the merged sums are not those of five devices in Python")
        say(f"The merged sums are those of five devices in Python, to the bit: {merged}.")
        show_alarms(fleet)
    return {"seconds": time.monotonic() - began, "samples": merged.count}


def show_alarms(fleet: Fleet) -> None:
    """Let the boards adopt what the others saw, then show a new speed, then a fault."""
    for seed, (device, sensor) in enumerate(fleet.sensors.items(), start=20):
        sensor.feed(pump(SHARE_EVERY, fast=device in FAST, seed=seed))
    others = (len(ON_BOARDS) + len(IN_PYTHON) - 1) * COMMISSIONING

    def counted(device: str, what: str) -> float:
        patterns = fleet.status(device).get("patterns") or [{}]
        return float(patterns[0].get(what, 0.0))

    wait_until(
        "the boards have adopted what others saw",
        lambda: all(counted(name, "told") >= others for name in ON_BOARDS),
    )
    alone = Detector(SHARED)
    alone.learn(pump(COMMISSIONING, fast=False, seed=0).astype(float))
    before, fast = counted("pump-1", "own"), pump(64, fast=True, seed=30)
    odd = float(np.median(alone.score(fast.astype(float))))
    if odd < LIMIT:
        fail(f"pump-1 would not need the others: alone it gives a fast pump a score of {odd:.1f}")
    fleet.sensors["pump-1"].feed(fast)
    wait_until("pump-1 has learnt it", lambda: counted("pump-1", "own") > before + 48)
    if fleet.status("pump-1")["alarms"]:
        fail("pump-1 takes a speed for a fault that others have seen")
    say(f"pump-1 runs fast for the first time, which alone it would score {odd:.0f}: no alarm.")
    fleet.sensors["pump-2"].feed(pump(64, fast=True, fault=True, seed=31))
    operator = fleet.processes.operator
    wait_until(
        "pump-2 raises an alarm",
        lambda: operator.episodes(FLEET_NAME, open_only=True, device="pump-2")["episodes"],
    )
    say("A bearing fails at pump-2: its alarm has reached the server.")
    quiet = [name for name in ON_BOARDS if name != "pump-2"]
    if any(fleet.status(name)["alarms"] for name in quiet):
        fail("a healthy pump is in alarm")


def main() -> None:
    """Run it in a folder that is removed afterwards, or in the one that is given."""
    if missing := missing_tools():
        fail(f"{', '.join(missing)} is missing: run {INSTALL}")
    with tempfile.TemporaryDirectory() as folder:
        found = run(Path(sys.argv[1] if len(sys.argv) > 1 else folder))
    say(json.dumps(found))


if __name__ == "__main__":
    main()
