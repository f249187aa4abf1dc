"""What goes wrong when programs start or connect: the words, the exit code, and nothing lost.

Each test runs the real programs.
"""

import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest

from edgemerge.agent.state import STATE_FILE
from edgemerge.cli.group import ExitCode
from tests.cli.calls import call, clean_environment, failure, program
from tests.cli.hubs import SHARED, start
from tests.services.disk import MIB, fill, small_disk
from tests.services.missing import left_out
from tests.waiting import DEADLINE_S, until

pytestmark = pytest.mark.long

ROWS = 300
CONFIG = f"""
device = "pump-1"
state = "state"
[projection]
n_inputs = {SHARED.n_inputs}
n_hidden = {SHARED.n_hidden}
seed = {SHARED.seed}
[source]
kind = "csv"
path = "pump.csv"
header = false
[monitor]
commissioning = 100
[[sinks]]
kind = "file"
path = "results.jsonl"
"""


@pytest.fixture
def config(tmp_path) -> Path:
    """An agent that reads a file once, and exchanges with nobody."""
    return configured(tmp_path)


def configured(folder: Path) -> Path:
    rows = np.random.default_rng(0).normal(0.0, 0.2, (ROWS, SHARED.n_inputs))
    np.savetxt(folder / "pump.csv", rows, "%.4f", ",")
    (folder / "pump.toml").write_text(CONFIG)
    return folder / "pump.toml"


def results(config: Path) -> int:
    return len((config.parent / "results.jsonl").read_text().splitlines())


def exchanging(url: str, fleet: str, token: Path) -> list[str]:
    """The flags with which the agent exchanges."""
    settings = {"kind": "http", "url": url, "fleet": fleet, "token_file": token}
    flags = [f"--set=exchange.{name}={value}" for name, value in settings.items()]
    return [*flags, "--set=sync.gate=2"]


def secret(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


# ---------------------------------------------------------------- disk, permissions, state


def test_on_a_full_disk_the_agent_goes_on_and_says_that_nothing_is_saved(config, tmp_path):
    with small_disk(tmp_path / "disk", MIB) as disk:
        done = program("agent", config, "--set", f"state={disk / 'state'}")
        assert done.returncode == 0, done.stderr
        before = (disk / "state" / STATE_FILE).read_bytes()
        with (tmp_path / "pump.csv").open("a") as file:
            file.writelines("0.1,0.1,0.1,0.1,0.1,0.1\n" for _ in range(50))
        fill(disk)
        done = program("agent", config, "--set", f"state={disk / 'state'}")
        assert done.returncode == ExitCode.FAILED
        assert "error the state cannot be saved" in done.stderr
        assert "No space left on device" in done.stderr
        assert results(config) == ROWS + 50  # every row was judged
        assert (disk / "state" / STATE_FILE).read_bytes() == before  # the last one that was saved
        (disk / "ballast").unlink()
        done = program("agent", config, "--set", f"state={disk / 'state'}")
        assert done.returncode == 0, done.stderr
        assert results(config) == ROWS + 100  # what was not saved is judged again


def test_a_disk_that_is_full_from_the_start_is_told(config, tmp_path):
    with small_disk(tmp_path / "disk", MIB) as disk:
        fill(disk)
        done = program("agent", config, "--set", f"state={disk / 'state'}")
        assert done.returncode in (ExitCode.FAILED, ExitCode.USAGE)
        assert "No space left on device" in done.stderr


NO_RIGHTS = ("setpriv", "--bounding-set=-dac_override,-dac_read_search,-fowner")


def without_rights(*words: object) -> subprocess.CompletedProcess[str]:
    """Run the program without root's right to read and write what belongs to others."""
    if os.geteuid() != 0 or shutil.which(NO_RIGHTS[0]) is None:
        left_out("a user without rights", "run as root, with setpriv")
    return subprocess.run(
        [*NO_RIGHTS, sys.executable, "-m", "edgemerge", *map(str, words)],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def give_away(path: Path, mode: int) -> None:
    """Let a file or folder belong to another user."""
    nobody = pwd.getpwnam("nobody")
    os.chown(path, nobody.pw_uid, nobody.pw_gid)
    path.chmod(mode)


def refused(*words: object) -> str:
    done = without_rights(*words)
    assert done.returncode == ExitCode.FAILED, done.stderr
    return done.stderr.splitlines()[-1]


@pytest.mark.long
def test_without_permission_it_is_said_what_may_not_be_written_or_read(config, tmp_path):
    (tmp_path / "locked").mkdir()
    give_away(tmp_path / "locked", 0o755)
    state = tmp_path / "locked" / "state"
    assert refused("agent", config, "--set", f"state={state}") == (
        f"Error: the state folder {state} cannot be used (Permission denied): "
        "name a folder that this user may write to"
    )
    sink = tmp_path / "locked" / "results.jsonl"
    assert refused("agent", config, "--set", f"sinks.0.path={sink}") == (
        f"Error: sinks.0.path {sink}: Permission denied"
    )
    checked = without_rights("doctor", "--config", config, "--json")
    assert checked.returncode == 0, checked.stdout
    give_away(tmp_path / "pump.csv", 0o600)
    words = f"source.path {tmp_path / 'pump.csv'}: Permission denied"
    assert words in refused("agent", config)
    checked = without_rights("doctor", "--config", config, "--json")
    assert checked.returncode == ExitCode.FAILED
    assert "Permission denied" in checked.stdout
    token = secret(tmp_path / "token", "x")
    give_away(token, 0o600)
    assert refused("agent", config, *exchanging("http://127.0.0.1:9", "f", token)) == (
        f"Error: cannot read the token in {token}: Permission denied"
    )
    give_away(config, 0o600)
    assert f"{config}' is not readable" in without_rights("agent", config).stderr


def test_a_second_agent_on_one_state_is_refused_and_names_the_first(config, tmp_path):
    first = start(tmp_path / "log", "agent", config, "--set", "source.kind=tail")
    try:
        until((tmp_path / "state" / "control").exists, "the first agent")
        done = program("agent", config)
        assert done.returncode == ExitCode.FAILED
        assert done.stderr == (
            f"Error: the state folder {tmp_path / 'state'} is in use by another agent (process "
            f"{first.running.pid}): stop that one, or give this one a folder of its own\n"
        )
        assert call("monitor", "show", config).exit_code == 0  # the first one goes on
        assert first.stop() == 0
    finally:
        first.running.kill()
        first.running.wait()


def test_the_state_of_another_projection_or_device_is_refused(config, tmp_path):
    assert program("agent", config).returncode == 0
    before = (tmp_path / "state" / STATE_FILE).read_bytes()
    done = program("agent", config, "--set", "projection.seed=5")
    assert done.returncode == ExitCode.USAGE
    assert "holds what was learnt with Projection(6 inputs, 8 hidden" in done.stderr
    assert "change it back, or choose another state folder" in done.stderr
    done = program("agent", config, "--set", "device=pump-2")
    assert done.returncode == ExitCode.USAGE
    assert "holds the state of device 'pump-1', and the configuration has 'pump-2'" in done.stderr
    assert (tmp_path / "state" / STATE_FILE).read_bytes() == before


# ---------------------------------------------------------------- names, ports


def test_a_device_name_with_spaces_is_refused_everywhere(config, tmp_path, hub, fleet):
    done = program("agent", config, "--set", "device=pump 1")
    assert done.returncode == ExitCode.USAGE
    assert "found device = 'pump 1' in the environment or a flag, expected letters" in done.stderr
    words = failure(hub.fleet("invite", fleet, "pump 1"), ExitCode.USAGE)
    assert "found the device name 'pump 1'" in words
    invitation = secret(tmp_path / "invitation", hub.fleet("invite", fleet).stdout)
    enrol = ("enrol", hub.url, fleet, "pump 1", "--invitation-file", invitation)
    words = failure(call(*enrol, "--token-file", tmp_path / "token"), ExitCode.USAGE)
    assert words.rstrip().endswith("such as pump-1")
    enrol = ("enrol", hub.url, fleet, "pump-1", "--invitation-file", invitation)
    assert call(*enrol, "--token-file", tmp_path / "token").exit_code == 0  # not used up


def test_a_port_in_use_is_told_by_server_and_agent(config, tmp_path):
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        done = program("serve", "--port", port, "--database", tmp_path / "hub.sqlite")
        assert done.returncode == ExitCode.USAGE
        assert done.stderr.splitlines()[-1] == (
            f"Error: port {port} on 127.0.0.1 cannot be taken (Address already in use): "
            "choose another with --port"
        )
        token = secret(tmp_path / "token", "a-secret-that-all-peers-have-in-common")
        peer = {"kind": "peer", "listen": f"127.0.0.1:{port}", "token_file": token}
        flags = [f"--set=exchange.{name}={value}" for name, value in peer.items()]
        done = program("agent", config, *flags)
        assert done.returncode == ExitCode.USAGE
        assert done.stderr.splitlines()[-1].startswith(
            f"Error: cannot listen on 127.0.0.1:{port} (Address already in use): choose another"
        )


# ---------------------------------------------------------------- the server


@pytest.fixture
def token(hub, fleet, tmp_path: Path) -> Path:
    hub.enrolled(fleet, "pump-1", tmp_path / "token")
    return tmp_path / "token"


def without_projection(config: Path) -> Path:
    """The same agent, which asks the fleet for its projection."""
    text = config.read_text()
    start, end = text.index("[projection]"), text.index("[source]")
    config.write_text(text[:start] + text[end:])
    return config


def agent_fails(config: Path, code: ExitCode, *flags: str) -> str:
    """Run the agent; it must judge every row and end with that code. Return its log."""
    done = program("agent", config, *flags)
    assert done.returncode == code, done.stderr
    assert results(config) == ROWS
    shutil.rmtree(config.parent / "state")
    return done.stderr


def test_a_wrong_token_does_not_stop_detection_and_is_told(config, tmp_path, hub, fleet):
    flags = exchanging(hub.url, fleet, secret(tmp_path / "wrong", "not-this-one"))
    words = "this token is unknown: it begins as none of this server's do"
    log = agent_fails(config, ExitCode.REFUSED, *flags)
    assert "warning the exchange failed why=" in log
    assert words in log
    assert "status 401)" in log
    assert "warning a report did not reach the server" in log
    done = program("agent", without_projection(config), *flags)
    assert done.returncode == ExitCode.REFUSED
    assert words in done.stderr


def test_a_revoked_token_shows_in_the_agent_that_runs(config, tmp_path, hub, fleet, token):
    flags = exchanging(hub.url, fleet, token)
    running = start(tmp_path / "log", "agent", config, "--set", "source.kind=tail", *flags)
    try:
        until((tmp_path / "state" / "control").exists, "the agent")
        assert call("sync", config).exit_code == 0
        assert hub.fleet("revoke", fleet, "pump-1").exit_code == 0
        done = call("sync", config)
        assert done.exit_code == ExitCode.REFUSED
        assert "the exchange failed: denied: " in done.stderr
        assert "this token is unknown or was revoked" in done.stderr
        assert call("monitor", "show", config).exit_code == 0
        assert running.stop() == 0  # what a signal stops has not failed
    finally:
        running.running.kill()
        running.running.wait()


def test_an_unknown_fleet_is_told(config, hub, token):
    log = agent_fails(config, ExitCode.REFUSED, *exchanging(hub.url, "nope", token))
    assert "this token is of another device or fleet" in log
    words = failure(hub.fleet("show", "nope"), ExitCode.NO_DATA)
    assert "no fleet nope: `edgemerge fleet list` lists them" in words


def test_a_projection_that_is_not_the_fleets_is_told(config, hub, fleet, token):
    flags = exchanging(hub.url, fleet, token)
    log = agent_fails(config, ExitCode.REFUSED, "--set", "projection.seed=5", *flags)
    assert "found Projection(6 inputs, 8 hidden, tanh, seed 5" in log
    assert "expected Projection(6 inputs, 8 hidden, tanh, seed 3" in log
    assert "build the same Projection" in log
    assert hub.told("contributions", fleet)["contributions"] == []


def test_a_server_that_is_not_there_is_told_and_what_was_learnt_is_kept(config, hub, fleet, token):
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    done = program("agent", config, *exchanging(url, fleet, token))
    assert done.returncode == ExitCode.UNREACHABLE
    words = "cannot be reached: Connection refused: check the address, and that the server runs"
    assert f"warning the exchange failed why={url} {words}" in done.stderr
    done = program("agent", config, *exchanging(hub.url, fleet, token))  # reads no more, pushes
    assert done.returncode == 0, done.stderr
    found = hub.told("contributions", fleet)["contributions"]
    assert sum(each["samples"] for each in found) > 0.9 * ROWS
    assert results(config) == ROWS


def test_https_to_a_port_without_tls_and_the_reverse_are_told(config, tmp_path, hub, fleet, token):
    url = hub.url.replace("http://", "https://")
    log = agent_fails(config, ExitCode.UNREACHABLE, *exchanging(url, fleet, token))
    words = "it does not speak TLS: write http:// instead of https://"
    assert f"the exchange failed why={url} cannot be reached: {words}" in log
    result = call("fleet", "list", "--server", url, "--token-file", hub.token)
    assert words in failure(result, ExitCode.UNREACHABLE)
    certificate = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj",
                   "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]  # fmt: skip
    files = ["-keyout", tmp_path / "key.pem", "-out", tmp_path / "cert.pem"]
    subprocess.run([*certificate, *files], check=True, capture_output=True, timeout=60)
    words_of = ("--tls-cert", tmp_path / "cert.pem", "--tls-key", tmp_path / "key.pem")
    where = ("--database", tmp_path / "tls.sqlite", "--port", 0, "--port-file", tmp_path / "port")
    server = start(tmp_path / "tls.log", "serve", *words_of, *where)
    try:
        until((tmp_path / "port").exists, "the port")
        address = f"127.0.0.1:{(tmp_path / 'port').read_text().strip()}"
        operator = ("--token-file", tmp_path / "tls.sqlite.admin-token")
        plain = call("fleet", "list", "--server", f"http://{address}", *operator)
        words = failure(plain, ExitCode.UNREACHABLE)
        assert "if it has TLS, write https:// instead of http://" in words
        unknown = call("fleet", "list", "--server", f"https://{address}", *operator)
        assert "its certificate is not trusted" in failure(unknown, ExitCode.UNREACHABLE)
        trusted = ("--ca-file", tmp_path / "cert.pem")
        right = call("fleet", "list", "--server", f"https://{address}", *operator, *trusted)
        assert right.exit_code == 0, right.stderr
    finally:
        server.running.kill()
        server.running.wait()


class OldServer(BaseHTTPRequestHandler):
    """Passes requests on to a server, without the routes that former versions did not have."""

    protocol_version = "HTTP/1.1"
    target = ""
    missing = ("/report", "/desired", "/faults")

    def log_message(self, *_words: object) -> None:
        """Print nothing."""

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if any(part in self.path for part in self.missing):
            self._answer(404, {"Content-Type": "application/json"}, b'{"detail":"Not Found"}')
            return
        kept = {k: v for k, v in self.headers.items() if k not in ("Host", "Connection")}
        asked = Request(self.target + self.path, body or None, kept, method=self.command)
        try:
            with urlopen(asked, timeout=DEADLINE_S) as reply:
                self._answer(reply.status, dict(reply.headers), reply.read())
        except HTTPError as error:
            self._answer(error.code, dict(error.headers), error.read())

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_DELETE = _pass_on


@contextmanager
def old_server(url: str) -> Iterator[str]:
    handler = type("Handler", (OldServer,), {"target": url})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_a_server_of_a_former_version_gets_contributions_and_no_more(config, hub, fleet, token):
    with old_server(hub.url) as url:
        done = program("agent", config, *exchanging(url, fleet, token))
    assert done.returncode == 0, done.stderr
    assert "info the server does not accept reports: not sending any" in done.stderr
    found = hub.told("contributions", fleet)["contributions"]
    assert {each["device"] for each in found} == {"pump-1"}
    assert json.loads((config.parent / "results.jsonl").read_text().splitlines()[-1])["ready"]
