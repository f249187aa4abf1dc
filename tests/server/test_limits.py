"""A server that is asked too much: it says so, lets go of everything, and goes on."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from select import select
from threading import Event

import pytest

from edgemerge.core.errors import RejectedError, UnavailableError
from edgemerge.exchange.http import HttpExchange
from edgemerge.server.auth import Caller, PushLimiter, RateLimitError
from edgemerge.server.contributions import MAX_PER_DEVICE
from edgemerge.server.db.base import Writer
from edgemerge.server.fleets import Fleet
from edgemerge.server.http import Limits
from edgemerge.wire.codec import decode, encode
from tests.server.wire import SHARED, address, ask, dump, head, line, note, push, status_on
from tests.services.hub import running
from tests.waiting import until

pytestmark = pytest.mark.slow

WHOLE = encode(note("a"))
CHUNKED = b"%x\r\n%b\r\n0\r\n\r\n" % (len(WHOLE), WHOLE)
MAX_BYTES = Fleet("mine", encode(SHARED), "totals", 1, False, 0, 0.0).max_contribution_bytes
THREADS = 12


@contextmanager
def serving(tmp_path, **limits):
    """A server with a fleet and a device in it; gives it and the device's token."""
    with running(f"sqlite:///{tmp_path / 'fleets.db'}", Limits(**limits)) as here:
        hub = here.operator
        hub.create_fleet("mine", SHARED)
        hub.close()
        token = here.enrol("mine", "a")
        until(lambda: idle(here))  # an answer is read before the server has put its request aside
        yield here, token


@contextmanager
def half_sent(here, token, *lines, body=WHOLE):
    """A request of which half the body is under way; gives what sends the rest."""
    load = here.app.state.load
    known = load.bytes
    with line(here) as opened:
        lines = lines or (f"Content-Length: {len(body)}",)
        opened.sendall(head("PUT", address(note("a")), *lines, token=token) + body[:100])
        until(lambda: load.bytes > known)
        yield opened


def idle(here):
    load = here.app.state.load
    return load.bytes == load.requests == 0


def test_too_many_bytes_under_way_are_refused_until_there_is_room_again(tmp_path):
    with serving(tmp_path) as (here, token):
        here.app.state.load.limits = Limits(max_bytes_in_flight=len(WHOLE) + 50)
        with half_sent(here, token, "Transfer-Encoding: chunked", body=CHUNKED) as opened:
            before = dump(here)
            answered = push(here, token, note("a", pattern="idle"))
            assert answered.status == 503
            assert int(answered.headers["retry-after"]) >= 1
            assert "try again" in json.loads(answered.body)["error"]
            assert dump(here) == before
            assert ask(here, "GET", "/healthz").status == 200
            assert ask(here, "GET", "/fleets/mine/total", token=token).status == 200
            opened.sendall(CHUNKED[100:])
            assert status_on(opened) == 201
        until(lambda: idle(here))
        assert push(here, token, note("a", pattern="idle")).status == 201


def test_a_fleet_whose_contributions_could_never_be_sent_is_refused(tmp_path):
    database = f"sqlite:///{tmp_path / 'fleets.db'}"
    with running(database, Limits(max_bytes_in_flight=MAX_BYTES - 1)) as here:
        with pytest.raises(RejectedError, match=f"{MAX_BYTES} bytes.*choose fewer inputs"):
            here.operator.create_fleet("mine", SHARED)
        assert here.service.fleets(Caller("root")) == []


def test_too_many_requests_under_way_are_refused_until_there_are_fewer(tmp_path):
    with serving(tmp_path, max_requests_in_flight=3) as (here, token):
        with ExitStack() as stack:
            for _ in range(3):
                stack.enter_context(half_sent(here, token))
            answered = ask(here, "GET", "/fleets/mine", token=token)
            assert answered.status == 503
            assert int(answered.headers["retry-after"]) >= 1
        until(lambda: idle(here))
        assert ask(here, "GET", "/fleets/mine", token=token).status == 200


def test_bytes_count_when_they_arrive_not_when_they_are_announced(tmp_path):
    with serving(tmp_path) as (here, token):
        with half_sent(here, token, f"Content-Length: {MAX_BYTES}"):
            assert here.app.state.load.bytes == 100
        lines = "Content-Length: 1", "Transfer-Encoding: chunked"
        until(lambda: idle(here))
        with half_sent(here, token, *lines, body=CHUNKED) as opened:
            assert 0 < here.app.state.load.bytes <= 100
            opened.sendall(CHUNKED[100:])
            assert status_on(opened) == 201
        until(lambda: idle(here))


def test_one_device_cannot_take_what_all_may_use(tmp_path):
    with serving(tmp_path, max_caller_bytes=len(WHOLE)) as (here, token):
        other = here.enrol("mine", "b")
        with half_sent(here, token) as opened:
            assert push(here, token, note("a", pattern="idle")).status == 503
            assert push(here, other, note("b")).status == 201
            opened.sendall(WHOLE[100:])  # alone, a body may have any size that is allowed
            assert status_on(opened) == 201
        until(lambda: idle(here))
        assert push(here, token, note("a", pattern="idle")).status == 201
        assert not here.app.state.load.callers


def test_one_device_cannot_have_any_number_of_bodies_under_way(tmp_path):
    with serving(tmp_path, max_caller_bodies=2) as (here, token):
        other = here.enrol("mine", "b")
        with half_sent(here, token), half_sent(here, token):
            assert push(here, token, note("a", pattern="idle")).status == 503
            assert push(here, other, note("b")).status == 201
        until(lambda: idle(here))
        assert push(here, token, note("a", pattern="idle")).status == 201


ENROL = ("POST", "/fleets/mine/devices", "Content-Length: 1000")


@pytest.mark.parametrize("token", ["emi_" + "x" * 40, "emd_" + "x" * 40, "x"])
def test_without_a_valid_invitation_nothing_more_of_a_request_is_read(tmp_path, token):
    with serving(tmp_path) as (here, _), line(here) as opened:
        opened.sendall(head(*ENROL, token=token))  # and no body
        assert status_on(opened) == 401
        until(lambda: idle(here))


def test_guests_that_send_slowly_keep_only_each_other_waiting(tmp_path):
    limits = {"max_guest_bodies": 3, "max_requests_in_flight": 8}
    with serving(tmp_path, **limits) as (here, token), ExitStack() as stack:
        hub = here.operator
        stack.callback(hub.close)
        invited = [hub.invite("mine", f"d{i}")["token"] for i in range(20)]
        opened = [stack.enter_context(line(here)) for _ in invited]
        for each, invitation in zip(opened, invited, strict=True):
            each.sendall(head(*ENROL, token=invitation) + b"{")
            until(lambda: idle_but_guests(here))
        until(lambda: len(select(opened, [], [], 0.0)[0]) == 17)
        refused = select(opened, [], [], 0.0)[0]
        assert [status_on(each) for each in refused] == [503] * 17
        assert push(here, token, note("a")).status == 201
        assert ask(here, "GET", "/healthz").status == 200
        assert hub.invite("mine", "late")


def idle_but_guests(here):
    load = here.app.state.load
    return load.requests == sum(usage.bodies for usage in load.callers.values())


def test_a_guest_that_sends_slowly_is_given_up_sooner_than_a_device(tmp_path):
    with serving(tmp_path, guest_seconds=0.2) as (here, token), half_sent(here, token) as device:
        with line(here) as opened:
            hub = here.operator
            opened.sendall(head(*ENROL, token=hub.invite("mine", "b")["token"]) + b"{")
            hub.close()
            assert status_on(opened) == 400
        device.sendall(WHOLE[100:])
        assert status_on(device) == 201


def test_health_and_metrics_are_answered_however_busy_it_is(tmp_path):
    with running(f"sqlite:///{tmp_path / 'fleets.db'}", Limits(max_requests_in_flight=0)) as here:
        assert ask(here, "GET", "/fleets", token=here.token).status == 503
        for path in ("/healthz", "/readyz", "/metrics"):
            assert ask(here, "GET", path).status == 200


def test_a_body_that_does_not_arrive_in_time_is_given_up(tmp_path):
    with serving(tmp_path, seconds=0.2) as (here, token):
        before = dump(here)
        with half_sent(here, token) as opened:
            assert status_on(opened) == 400
            until(lambda: idle(here))
        assert dump(here) == before
        assert push(here, token, note("a")).status == 201


def test_a_body_that_trickles_is_given_up_too(tmp_path):
    with serving(tmp_path, seconds=0.5) as (here, token), half_sent(here, token) as opened:
        left = iter(WHOLE[100:])
        opened.settimeout(0.01)
        for byte in left:  # far more of them than there is time for
            opened.sendall(bytes([byte]))
            try:
                assert b" 400 " in opened.recv(2**16)
                break
            except TimeoutError:
                continue
        assert next(left, None) is not None
        until(lambda: idle(here))


def test_of_a_request_that_breaks_off_nothing_is_stored(tmp_path):
    with serving(tmp_path) as (here, token):
        before = dump(here)
        for _ in range(5):
            with half_sent(here, token):
                pass
            until(lambda: idle(here))
        assert dump(here) == before
        assert push(here, token, note("a")).status == 201


@pytest.mark.slow
def test_all_that_was_acknowledged_to_many_at_once_is_there(tmp_path):
    with serving(tmp_path) as (here, _):
        tokens = {f"d{i}": here.enrol("mine", f"d{i}") for i in range(THREADS)}

        def work(device):
            sent = [note(device, i, pattern=f"p{i % 3}") for i in range(1, 13)]
            return [(one, push(here, tokens[device], one).status) for one in sent]

        with ThreadPoolExecutor(THREADS) as pool:
            done = [pair for pairs in pool.map(work, tokens) for pair in pairs]
        assert {status for _, status in done} == {201}
        newest = {one.key: encode(one) for one, _ in done}
        for one, _ in done:
            assert ask(here, "GET", address(one), token=here.token).body == newest[one.key]
        told = decode(ask(here, "GET", "/fleets/mine/total", token=here.token).body)
        assert len(told.origins) == len(newest) == 3 * THREADS
        assert told.total.count == 4 * len(newest)
        until(lambda: idle(here))


def test_other_methods_are_told_which_there_are(tmp_path):
    with serving(tmp_path) as (here, _):
        before = dump(here)
        for path, methods in here.app.openapi()["paths"].items():
            there = {method.upper() for method in methods}
            for method in {"HEAD", "OPTIONS", "PATCH", "DELETE", "BREW", "TRACE"} - there:
                filled = re.sub(r"\{\w+\}", "0", path)
                answered = ask(here, method, filled, token=here.token)
                assert answered.status == 405, (method, path)
                assert set(answered.headers["allow"].split(", ")) == there
        assert dump(here) == before


def test_what_is_counted_cannot_be_invented_by_strangers(tmp_path):
    with serving(tmp_path) as (here, _):
        for i in range(30):
            assert ask(here, f"BREW{i}", f"/fleets/{i}").status == 405
            assert ask(here, f"BREW{i}", f"/{i}").status == 404
        told = ask(here, "GET", "/metrics").body.decode()
        assert "BREW" not in told
        assert told.count("edgemerge_requests_total{") < 10


def test_the_description_needs_nothing_from_elsewhere(tmp_path):
    with serving(tmp_path) as (here, _):
        told = ask(here, "GET", "/openapi.json")
        assert told.status == 200
        assert not re.findall(rb"https?://|//cdn|<script", told.body)
        for page in ("/docs", "/redoc", "/docs/oauth2-redirect"):
            assert ask(here, "GET", page).status == 404


def test_a_change_that_nobody_waits_for_any_more_does_not_stop_the_writer(tmp_path):
    with serving(tmp_path) as (here, token):
        writer, go = here.service.writer, Event()
        first = writer.submit(lambda _tx: go.wait(30))
        until(lambda: writer.waiting == 0)
        assert writer.submit(lambda tx: tx.run("delete from fleets")).cancel()
        go.set()
        assert first.result(30)
        assert push(here, token, note("a")).status == 201


def test_whoever_waits_too_long_for_a_change_is_told_to_try_again(tmp_path):
    with serving(tmp_path) as (here, _):
        writer, go = Writer(here.service.database), Event()
        with pytest.raises(UnavailableError, match="not written in time"):
            writer.write(lambda _tx: go.wait(30), timeout_s=0.01)
        go.set()
        writer.close()


def test_a_device_pushes_as_often_as_it_may_and_is_told_when_again(tmp_path):
    with serving(tmp_path) as (here, token):
        here.service.push_limiter = PushLimiter(60.0, 3.0, clock=lambda: now[0])
        now, other = [0.0], here.enrol("mine", "b")
        assert [push(here, token, note("a", i)).status for i in range(1, 4)] == [201] * 3
        before = dump(here)
        answered = push(here, token, note("a", 4))
        assert answered.status == 429
        assert answered.headers["retry-after"] == "1"
        assert "--pushes-per-minute" in json.loads(answered.body)["error"]
        fault = "/fleets/mine/faults/a/0/bearing"  # named faults count as well, and what is dropped
        assert ask(here, "PUT", fault, token=token, body=b"").status == 429
        assert ask(here, "DELETE", "/fleets/mine/contributions/a", token=token).status == 429
        with (
            closing(HttpExchange(here.url, "mine", token, projection=SHARED)) as agent,
            pytest.raises(UnavailableError, match="push less often") as caught,
        ):
            agent.push(note("a", 4))
        assert caught.value.retry_s == 1.0  # the agent's schedule waits as long at least
        assert dump(here) == before
        assert push(here, other, note("b")).status == 201
        assert ask(here, "GET", "/fleets/mine/total", token=token).status == 200
        now[0] = 1.0
        assert push(here, token, note("a", 4)).status == 201
        assert push(here, token, note("a", 5)).status == 429


def test_without_a_setting_a_device_can_send_all_that_it_may_have_twice_over():
    limiter, device = PushLimiter(clock=lambda: 0.0), Caller("a", "mine")
    for _ in range(2 * MAX_PER_DEVICE):
        limiter.admit(device)
    with pytest.raises(RateLimitError, match="120 pushes in a minute"):
        limiter.admit(device)


def test_what_a_device_repeats_is_in_the_audit_log_once(tmp_path):
    with serving(tmp_path) as (here, token):
        assert push(here, token, note("a")).status == 201
        long = len(here.service.audit("mine", 0, 1000))
        other = note("a", rows=[[0.9, 0.9]])
        assert [push(here, token, other).status for _ in range(20)] == [409] * 20
        assert [push(here, token, note("a")).status for _ in range(20)] == [200] * 20
        assert len(here.service.audit("mine", 0, 1000)) == long + 1
