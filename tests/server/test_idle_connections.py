"""Connections on which nothing sensible comes are closed; slow but honest ones are not."""

import socket
import time
from contextlib import suppress

import pytest

from edgemerge.server.main import HeadTimeoutProtocol
from tests.services.hub import running
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.slow

SHORT_S = 0.4
ASK = b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n"


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    before, HeadTimeoutProtocol.head_timeout_s = HeadTimeoutProtocol.head_timeout_s, SHORT_S
    with running(str(tmp_path_factory.mktemp("patience") / "fleets.db")) as here:
        yield int(here.url.rpartition(":")[2])
    HeadTimeoutProtocol.head_timeout_s = before


def connect(port):
    there = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
    there.settimeout(DEADLINE_S)
    return there


def heard(there):
    """Read one answer to the end."""
    told = b""
    while not told.endswith(b"}"):
        told += there.recv(1000)
    return b"200 OK" in told


@pytest.mark.parametrize("said", [b"", b"GET /healthz HT", b"GET /healthz HTTP/1.1\r\nHost: he"])
def test_silence_and_half_a_request_end_the_connection(port, said):
    with connect(port) as there:
        there.sendall(said)
        assert there.recv(1000) == b""  # closed, before the deadline


def test_half_a_second_request_ends_it_too(port):
    with connect(port) as there:
        there.sendall(ASK)
        assert heard(there)
        there.sendall(b"GET /heal")
        assert there.recv(1000) == b""


def test_dripping_headers_do_not_keep_it_open(port):
    with connect(port) as there:
        there.sendall(b"GET /healthz HTTP/1.1\r\n")
        with pytest.raises(OSError, match=r"reset|[Bb]roken pipe|aborted"):
            drip(there)


def drip(there):
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        there.sendall(b"x: y\r\n")
        time.sleep(SHORT_S / 8)


def test_a_pause_between_two_requests_is_fine(port):
    with connect(port) as there:
        there.sendall(ASK)
        assert heard(there)
        time.sleep(2 * SHORT_S)
        there.sendall(ASK)
        assert heard(there)


def test_a_slow_body_has_the_time_that_bodies_have(port):
    head = b"PUT /fleets/f HTTP/1.1\r\nHost: here\r\nContent-Length: 8\r\n\r\n"
    with connect(port) as there:
        there.sendall(head)
        with suppress(BrokenPipeError, ConnectionResetError):  # the answer may come before the end
            for _ in range(4):
                there.sendall(b"ab")
                time.sleep(SHORT_S / 2)
        assert b"401" in there.recv(1000)
