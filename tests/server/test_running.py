"""The server as a process: it starts with nothing, says where it is, and stops when asked."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from threading import Timer

import pytest

from edgemerge import Projection
from edgemerge.core.errors import SettingError
from edgemerge.exchange.client import ServerClient
from edgemerge.server.auth import new_token
from edgemerge.server.main import default_token_file, listen, load_operator_token, make_token_file
from edgemerge.server.service import Service

pytestmark = pytest.mark.slow

DEADLINE_S = 30.0
SHARED = Projection(n_inputs=4, n_hidden=3)


@contextmanager
def serving(folder, *options, **environment):
    """`edgemerge serve` on a free port; the address and the process."""
    port_file = folder / "port"
    port_file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "edgemerge", "serve", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--port-file", port_file, *options],
        cwd=folder,
        env=os.environ | environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + DEADLINE_S
        while not port_file.exists():
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield f"http://127.0.0.1:{int(port_file.read_text())}", process
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def operator(folder, url):
    (file,) = folder.glob("*.operator-token")
    return ServerClient(url, file.read_text().strip())


def test_it_needs_nothing_but_an_empty_folder_and_remembers_after_a_restart(tmp_path):
    with serving(tmp_path) as (url, process):
        assert operator(tmp_path, url).create_fleet("pumps", SHARED)
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
    with serving(tmp_path) as (url, _):
        assert operator(tmp_path, url).projection("pumps") == SHARED


def test_the_files_are_for_the_owner_only(tmp_path):
    with serving(tmp_path):
        modes = {path.name: path.stat().st_mode & 0o077 for path in tmp_path.iterdir()}
    secret = {name for name in modes if "token" in name or "sqlite" in name}
    assert len(secret) >= 2
    assert all(modes[name] == 0 for name in secret), modes


def test_it_tells_systemd_when_it_is_ready(tmp_path):
    address = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as there:
        there.bind(str(address))
        there.settimeout(DEADLINE_S)
        with serving(tmp_path, NOTIFY_SOCKET=str(address)) as (_, process):
            assert there.recv(100) == b"READY=1"
            process.send_signal(signal.SIGTERM)
            assert there.recv(100) == b"STOPPING=1"


def test_a_port_that_is_taken_is_named():
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingError, match=f"port {port}.*--port"):
            listen("127.0.0.1", port)


def test_curl_can_talk_to_it(tmp_path):
    """A client that we did not write."""
    with serving(tmp_path) as (url, _):
        (file,) = tmp_path.glob("*.operator-token")
        ask = ["curl", "-sS", "-H", f"Authorization: Bearer {file.read_text().strip()}"]
        assert '"status":"ok"' in subprocess.check_output(
            ["curl", "-sS", f"{url}/healthz"], text=True
        )
        assert subprocess.check_output([*ask, f"{url}/fleets"], text=True) == "[]"
        told = subprocess.check_output([*ask, "-i", f"{url}/fleets/nowhere"], text=True)
        assert "404" in told.splitlines()[0]
        assert "an operator creates it" in told


def test_an_operator_is_let_in_by_a_file_that_is_made_once(tmp_path, database):
    service, file = Service(database), tmp_path / "root.token"
    with pytest.raises(SettingError, match="--operator-token-file"):
        load_operator_token(service, None)
    load_operator_token(service, file)
    token = file.read_text().strip()
    assert service.caller(token).may("admin")
    assert file.stat().st_mode & 0o077 == 0
    load_operator_token(service, file)
    assert file.read_text().strip() == token
    load_operator_token(service, None)
    (tmp_path / "wrong").write_text("hello\n")
    with pytest.raises(SettingError, match="holds no operator's token"):
        load_operator_token(service, tmp_path / "wrong")
    service.writer.close()


def test_of_servers_that_start_at_once_the_first_makes_the_token(tmp_path):
    file = tmp_path / "root.token"
    make_token_file(file)
    made = file.read_text()
    make_token_file(file)  # the second has looked before the first was done
    assert file.read_text() == made


def test_a_token_that_another_server_is_just_writing_is_waited_for(tmp_path, database):
    service, file = Service(database), tmp_path / "root.token"
    file.touch()
    writing = Timer(0.2, file.write_text, [new_token("operator") + "\n"])
    writing.start()
    load_operator_token(service, file)
    writing.join()
    assert service.caller(file.read_text().strip()).may("admin")
    service.writer.close()


def test_the_token_lies_beside_a_database_that_is_a_file():
    assert str(default_token_file("fleets.db")) == "fleets.db.operator-token"
    assert str(default_token_file("sqlite:///srv/fleets.db")) == "srv/fleets.db.operator-token"
    assert default_token_file("postgresql://somewhere/fleets") is None
