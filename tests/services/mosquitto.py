"""A private MQTT broker for the tests: mosquitto on a free port of this machine, in memory."""

import os
import shutil
import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path
from pwd import getpwuid
from time import monotonic, sleep

import pytest

from tests.services.missing import SERVICES, left_out
from tests.services.ports import free_port
from tests.waiting import DEADLINE_S


@pytest.fixture(scope="session")
def mosquitto(tmp_path_factory):
    """The port of a broker that takes everybody."""
    with broker(tmp_path_factory.mktemp("mosquitto")) as port:
        yield port


@contextmanager
def broker(folder: Path, *lines: str):
    """Run a broker with more lines of configuration; give its port."""
    program = shutil.which(
        "mosquitto", path=f"{Path.home()}/bin:/usr/sbin:/usr/local/sbin:/usr/bin"
    )
    if program is None:
        left_out("mosquitto", SERVICES)
    port = free_port()
    me = getpwuid(os.getuid()).pw_name  # as root it would become somebody who cannot read our files
    settings = [
        f"listener {port} 127.0.0.1",
        f"user {me}",
        "persistence false",
        "log_dest stdout",
        "set_tcp_nodelay true",
    ]
    anonymous = [] if any("allow_anonymous" in line for line in lines) else ["allow_anonymous true"]
    config = folder / f"{port}.conf"
    config.write_text("\n".join([*settings, *anonymous, *lines, ""]))
    with (folder / f"{port}.log").open("wb") as log:
        process = subprocess.Popen([program, "-c", config], stdout=log, stderr=subprocess.STDOUT)
    try:
        for each in (
            port,
            *(int(line.split()[1]) for line in lines if line.startswith("listener")),
        ):
            wait_until_open(each, process)
        yield port
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


def wait_until_open(port, process):
    end = monotonic() + DEADLINE_S
    while monotonic() < end and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            sleep(0.02)
        else:
            return
    pytest.fail(f"mosquitto does not accept connections on port {port}")
