"""A connection over real sockets: slow, cut, oversized, busy, closed in between, hostile."""

import logging
import socket
import ssl
import subprocess
from contextlib import closing
from time import monotonic

import pytest

from edgemerge.core.errors import (
    DeniedError,
    RejectedError,
    SettingError,
    UnavailableError,
    UnknownError,
)
from edgemerge.exchange.connection import Connection, url_path
from tests.exchange.scripted import reply, scripted

pytestmark = pytest.mark.slow

SECRET = "a-very-secret-token"
SHORT_S = 0.2  # a wait that is over soon
PATIENT_S = 10.0  # no test comes near it


def connection(server, timeout_s=PATIENT_S, base=""):
    return closing(Connection(server.url + base, SECRET, timeout_s=timeout_s))


def failed(server, error, words="status", *, timeout_s=PATIENT_S):
    """Ask, and give the error that must come of it."""
    with connection(server, timeout_s) as there, pytest.raises(error, match=words) as caught:
        there.ask("GET", "/fleets")
    return caught.value


def test_a_request_arrives_as_it_was_asked_and_the_reply_comes_back():
    with scripted(reply(b"pong", ETag='"7"')) as server, connection(server) as there:
        found = there.ask(
            "PUT",
            url_path("fleets", "ä b"),
            query={"reads": "totals", "device": ["a&b", "c"], "pattern": None},
            body=b"ping",
            headers={"If-None-Match": '"6"'},
        )
    assert (found.status, found.body, found.headers["etag"]) == (200, b"pong", '"7"')
    head, body = server.requests[0].split(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"PUT /fleets/%C3%A4%20b?reads=totals&device=a%26b&device=c HTTP/1.1"
    assert body == b"ping"
    assert b"Authorization: Bearer " + SECRET.encode() in lines
    assert b'If-None-Match: "6"' in lines


def test_the_connection_is_kept_and_a_base_path_stays_in_front():
    with scripted(reply(b"a"), reply(b"b")) as server, connection(server, base="/hub/") as there:
        assert [there.ask("GET", "/x").body, there.ask("GET", "/y").body] == [b"a", b"b"]
    assert server.connections == 1
    assert server.requests[1].startswith(b"GET /hub/y HTTP/1.1")


def test_what_can_be_repeated_is_asked_once_more_when_a_kept_connection_was_closed():
    with scripted(reply(b"a"), b"", reply(b"b")) as server, connection(server) as there:
        there.ask("GET", "/")
        assert there.ask("PUT", "/", body=b"x").body == b"b"
    assert server.connections == 2


def test_it_is_asked_only_once_more():
    with scripted(reply(b"a"), b"", b"", reply(b"b")) as server, connection(server) as there:
        there.ask("GET", "/")
        with pytest.raises(UnavailableError, match="connection was closed"):
            there.ask("GET", "/")
    assert len(server.requests) == 3


def test_what_cannot_be_repeated_is_never_sent_twice():
    with scripted(reply(b"a"), b"", reply(b"b")) as server, connection(server) as there:
        there.ask("GET", "/")
        with pytest.raises(UnavailableError, match="connection was closed"):
            there.ask("POST", "/", body=b"x")
    assert len(server.requests) == 2


def test_what_may_be_lost_goes_over_the_same_connection():
    with scripted(reply(b"a"), reply(b"b")) as server, connection(server) as there:
        for _ in range(2):
            there.ask("POST", "/", body=b"x", allow_loss=True)
        assert server.connections == 1


def test_what_may_be_lost_is_not_said_twice_either():
    with scripted(reply(b"a"), b"", reply(b"b")) as server, connection(server) as there:
        there.ask("POST", "/", body=b"x", allow_loss=True)
        with pytest.raises(UnavailableError, match="connection was closed"):
            there.ask("POST", "/", body=b"x", allow_loss=True)
    assert len(server.requests) == 2


def test_a_fresh_connection_that_is_closed_is_not_tried_again():
    with scripted(b"", reply(b"b")) as server:
        failed(server, UnavailableError, "connection was closed")
    assert len(server.requests) == 1


def test_silence_ends_in_time():
    def wait(_sock):
        server.stop.wait(5)

    with scripted(wait) as server:
        start = monotonic()
        failed(server, UnavailableError, "no answer in time", timeout_s=SHORT_S)
        assert monotonic() - start < 3.0


@pytest.mark.slow
@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 200 OK\r\n", reply(b"x" * 1000)[:-999]])
def test_a_reply_that_comes_drop_by_drop_does_not_take_for_ever(start):
    def drip(sock):
        sock.sendall(start)
        while not server.stop.wait(0.01):
            sock.sendall(b"x")

    with scripted(drip) as server:
        failed(server, UnavailableError, "no answer in time", timeout_s=0.02)


@pytest.mark.slow
def test_a_slow_reply_is_not_a_dead_one():
    def slowly(sock):
        for byte in reply(b"abc"):
            server.stop.wait(0.01)
            sock.sendall(bytes([byte]))

    with scripted(slowly) as server, connection(server, 0.3) as there:
        assert there.ask("GET", "/").body == b"abc"


@pytest.mark.parametrize("cut", [reply(b"x" * 100)[:-1], reply(b"x")[:20]])
def test_a_reply_that_was_cut_is_no_reply(cut):
    with scripted(lambda sock: sock.sendall(cut)) as server:
        failed(server, UnavailableError, "cannot be reached: the reply was cut short")


def test_what_is_not_http_is_said_to_be_so():
    ssh = b"SSH-2.0-OpenSSH_9.2\r\n"
    with scripted(lambda sock: sock.sendall(ssh)) as server:
        failed(server, UnavailableError, "not HTTP")


def endless(sock):
    sock.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        sock.sendall(b"400\r\n" + b"x" * 1024 + b"\r\n")


@pytest.mark.parametrize("act", [reply(b"x" * 1001), endless])
def test_an_oversized_reply_is_not_read(act):
    with scripted(act, reply(b"x" * 1000)) as server, connection(server) as there:
        with pytest.raises(RejectedError, match="more than 1000 bytes"):
            there.ask("GET", "/", limit=1000)
        assert len(there.ask("GET", "/", limit=1000).body) == 1000


def test_a_long_error_is_cut_and_the_connection_goes_on():
    long = b'{"error": "' + b"x" * 100_000 + b'"}'
    with scripted(reply(long, "422 No"), reply(b"b")) as server, connection(server) as there:
        assert len(there.ask("GET", "/").body) == 2**14
        assert there.ask("GET", "/").body == b"b"


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ("500 Oh", UnavailableError),
        ("503 Busy", UnavailableError),
        ("507 Full", UnavailableError),
        ("429 Slower", UnavailableError),
        ("401 Who", DeniedError),
        ("403 No", DeniedError),
        ("404 Where", UnknownError),
    ],
)
def test_a_status_becomes_an_error_with_the_words_of_the_other_side(status, error):
    body = b'{"error": "the pumps\\u0007 are\\n out"}'
    with scripted(reply(body, status)) as server:
        failed(server, error, r"^the pumps are out \(GET http://\S+/fleets: status \d+\)$")


@pytest.mark.parametrize("status", [200, 201, 304, 400, 409, 413, 422])
def test_other_statuses_are_for_the_caller(status):
    body = b"" if status == 304 else b'{"error": "no"}'
    with scripted(reply(body, f"{status} X")) as server, connection(server) as there:
        found = there.ask("GET", "/")
    assert found.status == status
    with pytest.raises(RejectedError, match=rf"^no.* \(status {status}\)$"):
        found.must_be(204)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("7", 7.0),
        ("999999999", 3600.0),
        ("9" * 5000, None),
        ("-3", None),
        ("soon", None),
        ("²", None),
    ],
)
def test_when_to_try_again_is_told_within_bounds(header, expected):
    said = f"HTTP/1.1 503 Busy\r\nRetry-After: {header}\r\nContent-Length: 0\r\n\r\n"
    with scripted(said.encode("latin-1")) as server:
        assert failed(server, UnavailableError).retry_s == expected


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b'"x"',
        b"[" * 10_000,
        b'{"error": {"a": 1}}',
        b'{"error": "' + b"x" * 9999 + b'"}',
    ],
)
def test_hostile_words_stay_short(body):
    with scripted(reply(body, "500 X")) as server:
        assert len(str(failed(server, UnavailableError))) < 400


def test_the_token_is_in_no_error_repr_or_log(caplog):
    echo = b'{"error": "you sent ' + SECRET.encode() + b'"}'
    with scripted(reply(echo, "401 Who"), reply(echo, "409 No")) as server:
        assert SECRET not in str(failed(server, DeniedError, "you sent"))
        with connection(server) as there:
            assert SECRET not in repr(there)
            assert SECRET not in there.ask("GET", "/").error_text
    with pytest.raises(SettingError) as refused:
        Connection("http://127.0.0.1:1", SECRET + "\r\nX: y")
    assert SECRET not in str(refused.value)
    assert SECRET not in caplog.text


def test_plain_http_is_refused_unless_it_stays_on_this_machine_or_is_asked_for(caplog):
    for url in ("http://127.0.0.1:1", "http://localhost:1", "http://[::1]:1", "https://hub:1"):
        Connection(url, SECRET)
    for token in (None, SECRET):
        with pytest.raises(SettingError, match=r"found http://hub:1, expected https://") as refused:
            Connection("http://hub:1", token)
        assert SECRET not in str(refused.value)
    assert not caplog.records
    Connection("http://hub:1", insecure=True)
    assert not caplog.records
    Connection("http://hub:1", SECRET, insecure=True)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "plain http" in caplog.text


@pytest.mark.parametrize(
    "url",
    ["", "hub:8470", "ftp://hub", "http://", "http://u:p@hub", "http://hub/?a=b", "http://h:99999"],
)
def test_an_address_that_leads_nowhere_is_refused(url):
    with pytest.raises(SettingError, match="found url"):
        Connection(url)


def test_nobody_there_is_said_so():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(UnavailableError, match="refused"):
        Connection(f"http://127.0.0.1:{port}").ask("GET", "/")


def test_a_refusal_before_the_body_was_read_is_heard():
    def refuse(sock):
        sock.sendall(reply(b'{"error": "too large"}', "413 No", Connection="close"))

    with scripted(refuse) as server, connection(server) as there:
        server._request = lambda sock: sock.recv(100)
        assert there.ask("PUT", "/", body=bytes(40_000_000)).error_text == "too large"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "a\nb"])
def test_a_name_that_would_change_the_address_is_refused(name):
    with pytest.raises(SettingError, match="not only dots"):
        url_path("fleets", name)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        [*make, *names, "-keyout", key, "-out", cert], check=True, capture_output=True, timeout=60
    )
    return cert, key


@pytest.mark.slow
def test_https_trusts_the_given_certificate_and_no_other(certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    wrap = {"wrap": lambda sock: context.wrap_socket(sock, server_side=True)}
    with scripted(reply(b"a"), **wrap) as server:
        url = server.url.replace("http:", "https:")
        with pytest.raises(UnavailableError, match=r"not trusted .*, or give its certificate"):
            Connection(url, SECRET).ask("GET", "/")
        assert not server.requests
        with closing(Connection(url, SECRET, ca_file=str(certificate[0]))) as there:
            assert there.ask("GET", "/").body == b"a"


def test_a_file_without_certificates_is_named(tmp_path):
    with pytest.raises(SettingError, match=r"no certificates in .*missing\.pem"):
        Connection("https://hub", ca_file=str(tmp_path / "missing.pem"))
