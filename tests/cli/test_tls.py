"""A server with a certificate of its own, devices that pin it, and a change of certificate."""

import json
import sqlite3
import ssl
from contextlib import closing, contextmanager
from hashlib import sha256

import pytest

from edgemerge import Contribution, Stats, save
from edgemerge.certificates import ServerCertificate, read_fingerprint, split_token
from edgemerge.cli.group import ExitCode
from edgemerge.core.errors import SettingError, UnavailableError
from edgemerge.core.ledger import Selection
from edgemerge.exchange.http import HttpExchange
from edgemerge.server.auth import hash_token, new_token
from edgemerge.server.main import default_tls_file
from tests.cli.calls import call, failure
from tests.cli.hubs import IDLE, SHARED, start
from tests.waiting import until

pytestmark = pytest.mark.slow


@contextmanager
def serving(folder, *words):
    port = folder / "port"
    port.unlink(missing_ok=True)
    where = ("--database", folder / "hub.sqlite", "--port", 0, "--port-file", port)
    server = start(folder / "hub.log", "serve", *where, *words)
    try:
        until(port.exists, "the port")
        yield f"https://127.0.0.1:{port.read_text().strip()}"
    finally:
        assert server.stop() == 0


def told(*words):
    result = call(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.long
def test_a_device_pins_the_server_s_own_certificate_and_follows_its_change(tmp_path):
    file, projection = tmp_path / "hub.pem", tmp_path / "projection"
    save(SHARED, projection)
    with serving(tmp_path, "--tls-file", file) as url:
        operator = ("--server", url, "--token-file", tmp_path / "hub.sqlite.admin-token")
        told("fleet", "create", "pumps", "--projection", projection, *operator)
        call("fleet", "invite", "pumps", "pump-1", "--out", tmp_path / "invitation", *operator)
        first = read_fingerprint(file)
        assert split_token((tmp_path / "invitation").read_text().strip())[1] == first
        words = ("--invitation-file", tmp_path / "invitation", "--token-file", tmp_path / "token")
        told("enrol", url, "pumps", "pump-1", *words)
        token = (tmp_path / "token").read_text().strip()
        assert split_token(token)[1] == first

        pins = tmp_path / "state" / "server.pins"
        device = HttpExchange(url, "pumps", token, projection=SHARED, pins_file=pins)
        assert device.push(Contribution("pump-1", Stats.of(SHARED, IDLE), revision=1))

        coming = told("certificate", file, "--next")["next"]
        until(lambda: device.pull(Selection(receiver="pump-1")) is None or pins.exists(), "pins")
        assert pins.read_text().split() == [coming]
        late = HttpExchange(url, "pumps", token, projection=SHARED)  # was off all the time

        assert told("certificate", file, "--switch")["sha256"] == coming
        until(lambda: shown(url) == coming, "the new certificate")
        device.close()
        assert device.push(Contribution("pump-1", Stats.of(SHARED, IDLE), revision=2))
        with pytest.raises(UnavailableError, match="another certificate"):
            late.push(Contribution("pump-1", Stats.of(SHARED, IDLE), revision=3))
        marked = tmp_path / "hub.sqlite.admin-token"
        until(lambda: split_token(marked.read_text().strip())[1] == coming, "the operator's token")
        assert [each["fleet"] for each in told("fleet", "list", *operator)] == ["pumps"]
        device.close()
    with serving(tmp_path, "--tls-file", file) as url:  # the same after a restart
        assert shown(url) == coming


def shown(url):
    """Return the fingerprint of the certificate that a server shows."""
    host, port = url.removeprefix("https://").split(":")
    pem = ssl.get_server_certificate((host, int(port)), timeout=10)
    return sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()


def test_commands_refuse_plain_http_to_another_machine(tmp_path):
    (tmp_path / "token").write_text("emo_" + "x" * 40)
    (tmp_path / "token").chmod(0o600)
    operator = ("--server", "http://192.0.2.1:8470", "--token-file", tmp_path / "token")
    result = call("fleet", "list", *operator)
    assert "expected https:// to another machine" in failure(result, ExitCode.USAGE)
    assert "--insecure" in result.stderr


def test_first_the_next_certificate_is_made_then_it_is_switched_to(tmp_path):
    file = ServerCertificate.own(tmp_path / "hub.pem").cert
    assert "first --next" in failure(call("certificate", file, "--next", "--switch"))
    assert "make the next certificate first" in failure(call("certificate", file, "--switch"))
    assert told("certificate", file)["next"] == ""


def test_a_database_on_a_server_needs_a_place_for_the_certificate():
    with pytest.raises(SettingError, match="give --tls-file"):
        default_tls_file("postgresql://hub/fleets")
    assert str(default_tls_file("sqlite:///fleets.db")) == "fleets.db.tls.pem"


@pytest.mark.long
def test_an_emptied_audit_log_is_found_by_the_running_server(tmp_path):
    with serving(tmp_path, "--tls-file", tmp_path / "hub.pem") as url:
        operator = ("--server", url, "--token-file", tmp_path / "hub.sqlite.admin-token")
        save(SHARED, tmp_path / "projection")
        told("fleet", "create", "pumps", "--projection", tmp_path / "projection", *operator)
        assert call("fleet", "audit", *operator).exit_code == 0
        head = tmp_path / "hub.sqlite.audit-head"
        until(lambda: head.read_text().startswith("1 "), "the head")
        with closing(sqlite3.connect(tmp_path / "hub.sqlite")) as database, database:
            database.execute("delete from audit")
        until(lambda: "the audit log was cut" in (tmp_path / "hub.log").read_text(), "the log")
        result = call("fleet", "audit", *operator)
        assert "found 0 entries, expected 1 or more" in failure(result, ExitCode.REFUSED)


def test_a_whole_token_in_a_header_is_understood_too():
    token = new_token("device")
    assert hash_token(f"{token}.{'0' * 64}") == hash_token(token) != hash_token(f"{token}.x")
