"""The server as a process: it starts with nothing, says where it is, and stops when asked."""

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Timer
from urllib.parse import urlsplit

import pytest
import uvicorn

from edgemerge import Contribution, Projection, Stats
from edgemerge.core.errors import SettingError
from edgemerge.exchange.client import ServerClient
from edgemerge.exchange.connection import Connection
from edgemerge.exchange.http import HttpExchange
from edgemerge.server import audit, main
from edgemerge.server.auth import new_token
from edgemerge.server.db.migrations import connect
from edgemerge.server.main import (
    default_token_file,
    listen,
    load_operator_token,
    make_token_file,
    serve,
)
from edgemerge.server.service import Service
from tests.waiting import DEADLINE_S, until

pytestmark = pytest.mark.slow

SHARED = Projection(n_inputs=4, n_hidden=3)


@contextmanager
def serving(folder, *options, limit=None, **environment):
    """`edgemerge serve` on a free port, perhaps after `ulimit -n`; the address and the process."""
    port_file = folder / "port"
    port_file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "edgemerge", "serve", "--port", "0"]
    if limit is not None:
        command = ["sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh", *command]
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
        scheme = "https" if "--tls-file" in options else "http"
        yield f"{scheme}://127.0.0.1:{int(port_file.read_text())}", process
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def operator(folder, url):
    (file,) = folder.glob("*.admin-token")
    return ServerClient(url, file.read_text().strip())


def test_it_needs_nothing_but_an_empty_folder_and_remembers_after_a_restart(tmp_path):
    with serving(tmp_path) as (url, process):
        assert operator(tmp_path, url).create_fleet("pumps", SHARED)
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
    with serving(tmp_path) as (url, _):
        assert operator(tmp_path, url).projection("pumps") == SHARED


def test_the_files_are_for_the_owner_only(tmp_path):
    modes = {}
    with serving(tmp_path):
        for path in tmp_path.iterdir():
            with suppress(FileNotFoundError):  # a file that has got its name meanwhile
                modes[path.name] = path.stat().st_mode & 0o077
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


def test_a_host_that_is_not_this_machine_is_named_and_nothing_is_made(tmp_path):
    for host in ("203.0.113.5", "no.such.host.invalid"):
        with pytest.raises(SettingError, match=f"--host {host}, expected an address of this mac"):
            serve(database=str(tmp_path / "hub.sqlite"), host=host, port=0)
    assert not list(tmp_path.iterdir())


def test_curl_can_talk_to_it(tmp_path):
    """A client that we did not write."""
    with serving(tmp_path) as (url, _):
        (file,) = tmp_path.glob("*.admin-token")
        ask = ["curl", "-sS", "-H", f"Authorization: Bearer {file.read_text().strip()}"]
        assert '"status":"ok"' in subprocess.check_output(
            ["curl", "-sS", f"{url}/healthz"], text=True
        )
        assert subprocess.check_output([*ask, f"{url}/fleets"], text=True) == "[]"
        told = subprocess.check_output([*ask, "-i", f"{url}/fleets/nowhere"], text=True)
        assert "404" in told.splitlines()[0]
        assert "an admin creates one" in told


def test_an_operator_is_let_in_by_a_file_that_is_made_once(tmp_path, database):
    service, file = Service(database), tmp_path / "root.token"
    with pytest.raises(SettingError, match="--admin-token-file"):
        load_operator_token(service, None)
    load_operator_token(service, file)
    token = file.read_text().strip()
    assert service.caller(token).may("admin")
    assert file.stat().st_mode & 0o077 == 0
    load_operator_token(service, file)
    assert file.read_text().strip() == token
    load_operator_token(service, None)
    (tmp_path / "wrong").write_text("hello\n")
    with pytest.raises(SettingError, match="holds no admin's token"):
        load_operator_token(service, tmp_path / "wrong")
    service.close()


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
    service.close()


def test_the_token_lies_beside_a_database_that_is_a_file():
    assert str(default_token_file("fleets.db")) == "fleets.db.admin-token"
    assert str(default_token_file("sqlite:///srv/fleets.db")) == "srv/fleets.db.admin-token"
    assert default_token_file("postgresql://somewhere/fleets") is None


def test_a_token_that_an_earlier_version_made_beside_the_database_is_still_used(tmp_path):
    database, former = tmp_path / "fleets.db", tmp_path / "fleets.db.operator-token"
    token = new_token("operator")
    former.write_text(token + "\n")
    service = Service(connect(str(database)))
    file = default_token_file(str(database))
    assert file == former
    load_operator_token(service, file)
    assert service.caller(token).name == "admin"
    service.close()


FLOOD = 2000  # connections, about twice as many as there are descriptors
DESCRIPTORS = 1024


@contextmanager
def flooded(url, sent):
    """Open many connections that send this much and no more, while the block runs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, FLOOD + 500), hard))
    where, opened = urlsplit(url), []
    try:
        for _ in range(FLOOD):
            opened.append(socket.create_connection((where.hostname, where.port), DEADLINE_S))
            with suppress(ConnectionError):  # it may have been closed already
                opened[-1].sendall(sent)
        yield opened
    finally:
        for each in opened:
            each.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def descriptors(process):
    return sum(1 for _ in Path(f"/proc/{process.pid}/fd").iterdir())


@pytest.mark.parametrize(
    ("sent", "options"),
    [
        pytest.param(b"", (), marks=pytest.mark.long),
        pytest.param(b"GET /healthz HT", (), marks=pytest.mark.long),
        pytest.param(b"", ("--tls-file", "tls.pem"), marks=pytest.mark.long),
    ],
)
def test_twice_as_many_connections_as_descriptors_lock_nobody_out(tmp_path, sent, options):
    with serving(tmp_path, *options, limit=DESCRIPTORS) as (url, process):
        hub = operator(tmp_path, url)
        hub.create_fleet("pumps", SHARED)
        token = ServerClient(url, hub.invite("pumps", "a")["token"]).enrol("pumps", "a")["token"]
        exchange = HttpExchange(url, "pumps", token)
        note = Contribution("a", Stats.of(SHARED, [[0.1, 0.2, 0.3, 0.4]]), 1)
        assert exchange.push(note)
        with flooded(url, sent):
            for revision in range(2, 12):
                assert exchange.push(replace(note, revision=revision))  # on its own connection
                with closing(operator(tmp_path, url)) as other:  # and on new ones
                    assert other.fleets()
                assert health(url, tmp_path) == (200, 200)
                assert descriptors(process) < DESCRIPTORS
        assert exchange.push(replace(note, revision=12))
        until(lambda: descriptors(process) < 100)
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
        said = process.stderr.read()
        assert said.count("too many connections") == 1  # and no storm of errors
        assert "Traceback" not in said
        exchange.close()
        hub.close()


def health(url, folder):
    (file,) = folder.glob("*.admin-token")
    with closing(Connection(url, file.read_text().strip())) as asking:
        return asking.ask("GET", "/healthz").status, asking.ask("GET", "/metrics").status


def listener(monkeypatch, most):
    monkeypatch.setattr(main, "max_connections", lambda: most)
    return listen("127.0.0.1", 0)


def accepted(listening, count):
    """Let clients connect and be accepted; give both ends of each."""
    pairs = []
    for _ in range(count):
        client = socket.create_connection(listening.getsockname(), DEADLINE_S)
        pairs.append((client, listening.accept()[0]))
    return pairs


def test_who_has_waited_longest_goes_first_and_who_is_served_stays(monkeypatch):
    monkeypatch.setattr(main, "CLOSED_AT_ONCE", 1)
    with ExitStack() as stack:
        listening = stack.enter_context(listener(monkeypatch, 4))
        pairs = accepted(listening, 4)
        for each in (end for pair in pairs for end in pair):
            stack.enter_context(each)
        (_, busy), (_, asked), (_, first), (_, second) = pairs
        listening.mark(busy, busy=True)
        listening.mark(asked, busy=True)
        listening.mark(asked, busy=False)  # from now on it waits for the next request
        stack.enter_context(socket.create_connection(listening.getsockname(), DEADLINE_S))
        gone = []
        for ours in (first, second, asked):
            with pytest.raises(BlockingIOError):
                listening.accept()
            gone.append(pairs[[pair[1] for pair in pairs].index(ours)][0].recv(1))
            ours.close()
            assert listening.connections == 4 - len(gone)
            listening.max_connections -= 1
        assert gone == [b""] * 3  # their clients see the end
        with pytest.raises(BlockingIOError):  # nobody else can go, so the new one is refused
            listening.accept()
        busy.sendall(b"x")
        assert pairs[0][0].recv(1) == b"x"
        listening.max_connections = 4
        listening.setblocking(False)
        with pytest.raises(BlockingIOError):
            listening.accept()  # it was closed, and no other waits


def test_after_some_connections_in_a_row_others_have_their_turn(monkeypatch):
    monkeypatch.setattr(main, "ACCEPTED_AT_ONCE", 2)
    with listener(monkeypatch, 100) as listening, ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(socket.create_connection(listening.getsockname(), DEADLINE_S))
        for some in (2, 2, 1):
            for _ in range(some):
                stack.enter_context(listening.accept()[0])
            if some == 2:
                with pytest.raises(BlockingIOError):
                    listening.accept()
        assert listening.connections == 5


def test_without_a_descriptor_the_spare_one_refuses(monkeypatch):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with listener(monkeypatch, 100) as listening, ExitStack() as stack:
        client = socket.create_connection(listening.getsockname(), DEADLINE_S)
        stack.enter_context(client)
        most = max(int(each.name) for each in Path("/proc/self/fd").iterdir()) + 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        try:
            with suppress(OSError):
                while True:
                    stack.enter_context(Path(os.devnull).open("rb"))
            with pytest.raises(BlockingIOError):
                listening.accept()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert client.recv(1) == b""
        for each in accepted(listening, 1)[0]:
            stack.enter_context(each)


def test_the_limit_of_descriptors_is_raised_as_far_as_it_may_be(monkeypatch):
    limits = [(1024, 1_048_576)]
    monkeypatch.setattr("resource.getrlimit", lambda _which: limits[-1])
    monkeypatch.setattr("resource.setrlimit", lambda _which, both: limits.append(both))
    main.raise_descriptor_limit()
    assert limits[-1] == (8320, 1_048_576)
    assert main.max_connections() == 8192
    main.raise_descriptor_limit()
    assert len(limits) == 2
    for soft, expected in ((1024, 896), (130, 16), (resource.RLIM_INFINITY, 8192)):
        limits.append((soft, soft))
        assert main.max_connections() == expected
        main.raise_descriptor_limit()
        assert limits[-1] == (soft, soft)


def test_a_running_server_keeps_its_audit_log_short_and_its_head_known(tmp_path):
    with closing(
        Service(connect(tmp_path / "db"), audit_head_file=tmp_path / "head", audit_entries=10)
    ) as service:
        about = {"actor": "operator x", "action": "invite", "fleet": "pumps", "subject": "any"}
        with service.database.writing() as tx:
            for at in range(20):
                audit.append(tx, at=float(at), **about)
        server = main.Server(uvicorn.Config(main.create_app(service)), service, None)
        server._follow_files()  # as it does every two seconds
        assert (tmp_path / "head").read_text().split()[0] == "20"
        with service.database.reading() as tx:
            assert [entry.seq for entry in service.audit(None, 0, 99)] == list(range(11, 22))
            assert audit.verify(tx) == 21
