"""Certificates without an authority: recognised by a fingerprint, or by a shared token."""

import socket
import ssl
import subprocess
import sys
from contextlib import ExitStack, closing
from hashlib import sha256
from threading import Event

import pytest

from edgemerge import certificates
from edgemerge.certificates import ServerCertificate, make_certificate, split_token
from edgemerge.core.errors import SettingError, UnavailableError
from edgemerge.core.ledger import Selection
from edgemerge.exchange.connection import MAX_PINS, Connection
from edgemerge.exchange.peer import PeerExchange
from tests.exchange.scripted import reply, scripted
from tests.exchange.test_contract import note
from tests.exchange.worlds import SHARED

pytestmark = pytest.mark.slow

SECRET = "emd_a-secret-that-nobody-may-see"
OTHER = "f" * 64
ANNOUNCED = {"Edgemerge-Next-Certificate": OTHER}
WISH = Selection(receiver="b")


@pytest.fixture
def own(tmp_path):
    return ServerCertificate.own(tmp_path / "hub.tls.pem", ["hub.example", "10.1.2.3"])


def served(certificate, *replies):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.cert, certificate.key)
    return scripted(*replies, wrap=lambda sock: context.wrap_socket(sock, server_side=True))


def address(server):
    return server.url.replace("http:", "https:")


def test_a_certificate_is_kept_with_its_key_for_its_owner_alone(own, tmp_path):
    again = ServerCertificate.own(tmp_path / "hub.tls.pem")
    assert again.pin == own.pin
    assert own.cert.stat().st_mode & 0o777 == 0o600
    assert ServerCertificate.own(tmp_path / "other.pem").pin != own.pin


@pytest.mark.parametrize("body", [b"x", b"x" * 2_000_000])
def test_what_can_be_repeated_is_asked_again_when_a_kept_connection_was_cut(own, body):
    """As a server cuts an idle connection to make room: without the goodbye of TLS."""

    def cut(sock):
        sock.sendall(reply(b"a"))
        sock.shutdown(socket.SHUT_RDWR)
        gone.set()

    gone = Event()
    token = f"{SECRET}.{own.pin}"
    with served(own, cut, reply(b"b")) as server, closing(Connection(address(server), token)) as to:
        assert to.ask("GET", "/").body == b"a"
        assert gone.wait(10)
        assert to.ask("PUT", "/", body=body).body == b"b"
    assert server.connections == 2


def test_openssl_reads_it_and_sees_the_same_fingerprint_and_names(own):
    def ask(*words):
        call = ["openssl", "x509", "-in", own.cert, "-noout", *words]
        return subprocess.run(call, check=True, capture_output=True, text=True, timeout=60).stdout

    shown = ask("-fingerprint", "-sha256").strip().split("=")[1]
    assert shown.replace(":", "").lower() == own.pin
    names = ask("-ext", "subjectAltName")
    for name in ("localhost", "127.0.0.1", "hub.example", "10.1.2.3"):
        assert name in names
    assert ask("-checkend", str(3600 * 24 * 3000)).strip() == "Certificate will not expire"


def test_the_token_reaches_the_named_certificate_only(own, tmp_path):
    stranger = ServerCertificate.own(tmp_path / "stranger.pem")
    with served(own, reply(b"a")) as server:
        with closing(Connection(address(server), f"{SECRET}.{own.pin}")) as there:
            assert there.ask("GET", "/").body == b"a"
        assert f"Bearer {SECRET}\r\n" in server.requests[0].decode()  # without the fingerprint
    with served(stranger, reply(b"a")) as server:
        with (
            closing(Connection(address(server), f"{SECRET}.{own.pin}")) as there,
            pytest.raises(UnavailableError, match="another certificate") as caught,
        ):
            there.ask("GET", "/")
        assert SECRET not in str(caught.value)
        assert not server.requests


def test_without_a_fingerprint_no_certificate_of_its_own_is_trusted(own):
    with served(own, reply(b"a")) as server:
        with (
            closing(Connection(address(server), SECRET)) as there,
            pytest.raises(UnavailableError, match="a token that carries its fingerprint"),
        ):
            there.ask("GET", "/")
        assert not server.requests


def test_a_next_certificate_is_announced_remembered_and_then_accepted(own, tmp_path):
    file = tmp_path / "state" / "server.pins"
    token, coming = f"{SECRET}.{own.pin}", certificates.prepare_next(own.cert)
    announced = {"Edgemerge-Next-Certificate": coming}
    with served(own, reply(b"a", **announced), reply(b"b", **announced)) as server:
        here = Connection(address(server), token, pins_file=file)
        beside = Connection(address(server), token, pins_file=file)  # has not heard of it
        with closing(here), closing(beside):
            assert here.ask("GET", "/").body == b"a"
    assert file.read_text() == f"{coming}\n"
    assert certificates.switch_to_next(own.cert) == coming
    for options in ({"pins_file": file}, {}):
        with (
            served(own, reply(b"c")) as server,
            closing(Connection(address(server), token, **options)) as there,
        ):
            if options:
                assert there.ask("GET", "/").body == b"c"
            else:
                with pytest.raises(UnavailableError, match="another certificate"):
                    there.ask("GET", "/")


def test_a_connection_looks_again_at_what_another_one_has_heard(own, tmp_path):
    file, stranger = tmp_path / "pins", ServerCertificate.own(tmp_path / "next.pem")
    with served(stranger, reply(b"a")) as server:
        there = Connection(address(server), f"{SECRET}.{own.pin}", pins_file=file)
        file.write_text(f"{stranger.pin}\n")
        with closing(there):
            assert there.ask("GET", "/").body == b"a"


def test_a_server_cannot_fill_the_file_or_put_anything_else_there(own, tmp_path):
    file, pins = tmp_path / "pins", [f"{number:064x}" for number in range(9)]
    bad = ["", "x" * 64, "0" * 63, "0" * 65, "../../" + "0" * 58]
    heads = [{"Edgemerge-Next-Certificate": each} for each in [*pins, *bad]]
    replies = [reply(b"a", **each) for each in heads]
    with (
        served(own, *replies) as server,
        closing(Connection(address(server), f"{SECRET}.{own.pin}", pins_file=file)) as there,
    ):
        for _ in replies:
            there.ask("GET", "/")
    assert file.read_text().split() == pins[-(MAX_PINS - 1) :]


def test_what_is_announced_without_a_fingerprint_is_not_believed(tmp_path):
    file = tmp_path / "pins"
    with (
        scripted(reply(b"a", **ANNOUNCED)) as server,
        closing(Connection(server.url, SECRET, pins_file=file)) as there,
    ):
        assert there.ask("GET", "/").body == b"a"
    assert not file.exists()


@pytest.mark.parametrize("token", [SECRET, f"{SECRET}.", f"{SECRET}.abc", f".{'0' * 64}"])
def test_only_a_fingerprint_is_taken_off_a_token(token):
    assert split_token(token) == (token, None)


def test_other_files_are_taken_over_while_running_and_a_wrong_pair_is_not(own, caplog):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.cert)
    own.follow(context)
    assert not own.refresh()

    def shown():
        with (
            scripted(reply(b"a"), wrap=lambda s: context.wrap_socket(s, server_side=True)) as there,
            closing(Connection(address(there), pin=own.pin)) as asked,
        ):
            return asked.ask("GET", "/").body

    before, good = own.pin, own.cert.read_bytes()
    own.cert.write_bytes(make_certificate())
    assert own.refresh()
    assert own.pin != before
    assert shown() == b"a"
    key, _, _ = good.partition(b"-----BEGIN CERTIFICATE")
    _, mark, cert = own.cert.read_bytes().partition(b"-----BEGIN CERTIFICATE")
    own.cert.write_bytes(key + mark + cert)  # a key of another certificate
    assert not own.refresh()
    assert "kept the old certificate" in caplog.text
    assert shown() == b"a"
    assert not own.refresh()  # it is said once


def test_there_is_no_switch_without_a_next_one(own):
    with pytest.raises(SettingError, match="make the next certificate first"):
        certificates.switch_to_next(own.cert)
    assert own.next_pin is None
    coming = certificates.prepare_next(own.cert)
    assert certificates.prepare_next(own.cert) == coming
    assert not own.refresh()  # the certificate itself is the same
    assert own.next_pin == coming


def test_what_is_no_certificate_is_named(tmp_path):
    (tmp_path / "bad.pem").write_text("nothing")
    with pytest.raises(SettingError, match=r"no certificate with its key in .*bad\.pem"):
        ServerCertificate(tmp_path / "bad.pem")


def test_without_cryptography_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(SettingError, match=r"pip install '\.\[tls\]'"):
        make_certificate()


def test_peers_encrypt_and_prove_their_certificates_by_the_token():
    with ExitStack() as stack:

        def peer(*peers, token=SECRET):
            made = PeerExchange(SHARED, token=token, peers=peers, tls=True)
            return stack.enter_context(closing(made))

        a = peer()
        b = peer(a.url)
        assert a.url.startswith("https://")
        a.push(note("a", seed=1))
        assert b.pull(WISH).total == note(seed=1).stats
        a.push(note("a", 2, seed=2))
        assert b.pull(WISH).total == note(seed=2).stats


def test_who_cannot_prove_that_it_has_the_token_does_not_get_it(own):
    wrong = sha256(b"wrong").hexdigest().encode()
    with served(own, reply(wrong), reply(wrong)) as server:
        with (
            closing(PeerExchange(SHARED, token=SECRET, peers=[address(server)])) as b,
            pytest.raises(UnavailableError, match="another certificate"),
        ):
            b.pull(WISH)
        assert server.requests
        assert not any(SECRET.encode() in each for each in server.requests)


def test_a_proof_that_was_made_for_another_certificate_is_worth_nothing(own):
    """Someone between two peers passes the question on."""
    with closing(PeerExchange(SHARED, token=SECRET, tls=True)) as a, ExitStack() as stack:
        asking = stack.enter_context(closing(Connection(a.url, SECRET, is_peer=True)))

        def pass_on(sock):
            path = server.requests[-1].decode().split(" ")[1]
            proof = asking.ask("GET", path).body  # a true one, of the certificate of a
            sock.sendall(reply(proof))

        server = stack.enter_context(served(own, pass_on, pass_on))
        b = stack.enter_context(
            closing(PeerExchange(SHARED, token=SECRET, peers=[address(server)]))
        )
        with pytest.raises(UnavailableError, match="another certificate"):
            b.pull(WISH)
        assert server.requests
        assert not any(SECRET.encode() in each for each in server.requests)


def test_a_short_token_proves_nothing_and_is_refused():
    with pytest.raises(SettingError, match="found a token of 5 characters"):
        PeerExchange(SHARED, token="short", tls=True)
