"""Event streams: what changes is sent soon and once, and no stream outlives what it is for."""

import asyncio
import json
import signal
import time
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest

from edgemerge.core.errors import EdgemergeError, UnknownError
from edgemerge.server.auth import Caller
from edgemerge.server.dashboard import live as device_watching
from edgemerge.server.dashboard import stream
from edgemerge.server.dashboard import stream as streaming
from edgemerge.server.dashboard.device import device_view, event_id
from edgemerge.server.dashboard.live import DeviceEvents
from edgemerge.server.dashboard.stream import Event, Viewers, event_stream
from edgemerge.server.reports.model import ScorePoint
from tests.server.reporting import alarm_of, merge_of, point, report
from tests.server.test_running import operator as hub_of
from tests.server.test_running import serving
from tests.server.world import SHARED
from tests.services.hub import running
from tests.waiting import DEADLINE_S, until

pytestmark = pytest.mark.slow

FLEET = "pumps"
BAD = "</script><script>alert(1)</script>"


@pytest.fixture
def here(tmp_path):
    with running(f"sqlite:///{tmp_path / 'fleets.db'}") as made:
        made.operator.create_fleet(FLEET, SHARED)
        made.enrol(FLEET, "pump-1")
        made.enrol(FLEET, "pump-2")
        yield made


@pytest.fixture
def quick(monkeypatch):
    """Let streams look, speak and check as often as a test has patience."""
    monkeypatch.setattr(streaming, "POLL_S", 0.02)
    monkeypatch.setattr(streaming, "SESSION_CHECK_S", 0.05)
    monkeypatch.setattr(streaming, "KEEPALIVE_S", 0.1)


def take(here, device, **words):
    now = time.time()
    here.service.history.take(FLEET, device, report(now, **words), now)


class Listener:
    """Reads a stream, event by event."""

    def __init__(self, answer):
        self.answer = answer

    def block(self):
        """Give the lines of the next block; none at the end."""
        lines = []
        while line := self.answer.readline().decode():
            if line == "\n":
                return lines
            lines.append(line.rstrip("\n"))
        return lines

    def event(self):
        """Give the next event: its name or id, and its data."""
        deadline = time.monotonic() + DEADLINE_S
        while lines := self.block():
            told = dict(line.split(": ", 1) for line in lines if not line.startswith(":"))
            if "data" in told:
                return told.get("event") or told["id"], json.loads(told["data"])
            assert time.monotonic() < deadline, "no event, only signs of life"
        return None, None

    def until(self, wanted):
        """Give the first event whose data are wanted."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            mark, data = self.event()
            assert data is not None, "the stream has ended"
            if wanted(data):
                return mark, data
        raise AssertionError("it never came")


@contextmanager
def asked(here, path=f"/ui/fleets/{FLEET}/live", *, cookie=None, **headers):
    """Ask for a stream; the answer is read by a listener."""
    known = here.service.sessions.sign_in(here.token)[0] if cookie is None else cookie
    connection = HTTPConnection(urlsplit(here.url).netloc, timeout=DEADLINE_S)
    name = f"edgemerge-{urlsplit(here.url).port}"
    sent = {"Cookie": f"{name}={known}", **{k.replace("_", "-"): v for k, v in headers.items()}}
    connection.request("GET", path, headers=sent)
    answer = connection.getresponse()
    try:
        yield answer, Listener(answer)
    finally:
        answer.close()
        connection.close()


def names(data):
    return [row[0] for row in data["rows"]]


def test_strangers_hear_nothing(here):
    with asked(here, cookie="ems_wrong") as (answer, _):
        assert answer.status == 401
    with asked(here, "/ui/session", cookie="") as (answer, _):
        assert answer.status == 401


def test_who_is_signed_in_can_be_asked(here):
    with asked(here, "/ui/session") as (answer, _):
        told = json.loads(answer.read())
    assert told["name"] == "test"
    assert told["expires"] > time.time()


def test_a_stream_begins_with_all_and_goes_on_with_what_changes(here):
    with asked(here) as (answer, listener):
        assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["Cache-Control"] == "no-store"
        assert listener.block() == ["retry: 2000"]
        _, first = listener.event()
        assert sorted(names(first)) == ["pump-1", "pump-2"]
        assert first["totals"]["devices"] == "2"
        take(here, "pump-2", points=[point(time.time(), 7.5, 4.0, True)])
        start = time.monotonic()
        _, second = listener.until(lambda data: "7.5" in str(data["rows"]))
        assert names(second) == ["pump-2"]
        assert second["totals"]["states"] == "1 online, 1 offline"
        assert time.monotonic() - start < 2.0


def test_totals_change_without_any_row(here):
    with asked(here) as (_, listener):
        listener.event()
        here.service.history.pushed(FLEET, "pump-1", 5_000)
        _, data = listener.until(lambda data: "5 kB shared" in data["totals"]["counted"])
        assert data["totals"]["saved"] == "−5 kB"


def test_who_comes_back_is_sent_what_was_missed(here):
    with asked(here) as (_, listener):
        mark, _ = listener.event()
    take(here, "pump-1", learnt=123.0)
    with asked(here, Last_Event_ID=mark) as (_, listener):
        assert names(listener.until(names)[1]) == ["pump-1"]
    with asked(here, f"/ui/fleets/{FLEET}/live?since={mark}") as (_, listener):
        assert names(listener.until(names)[1]) == ["pump-1"]
    with asked(here, Last_Event_ID="00000000-7") as (_, listener):  # of another run
        assert sorted(names(listener.event()[1])) == ["pump-1", "pump-2"]


def test_a_device_has_a_stream_of_its_own(here):
    take(here, "pump-1", points=[point(time.time(), 1.5, 4.0)])
    with asked(here, f"/ui/fleets/{FLEET}/live?device=pump-1") as (_, listener):
        _, first = listener.event()
        assert first["all"][1] == [1.5]
        assert "1.5" in first["parts"]["head"]
        assert "alarm" not in first
        hostile = alarm_of(time.time(), why=[(BAD, 2.0)])
        take(here, "pump-1", points=[point(time.time(), 9.5, 4.0, True)], alarms=[hostile])
        _, second = listener.until(lambda data: "points" in data)
        assert second["points"][1] == [9.5]
        assert second["alarm"] == "Alarm of pump-1: score 5, limit 2"
        assert "&lt;/script&gt;&lt;script&gt;alert(1)" in second["parts"]["reasons"]
        assert "<script" not in str(second["parts"])
        assert "shared" not in second["parts"]  # nothing changed in it


def test_a_stream_of_what_is_not_there_is_gone_at_once(here):
    for path in ("/ui/fleets/nowhere/live", f"/ui/fleets/{FLEET}/live?device=nobody"):
        with asked(here, path) as (_, listener):
            assert listener.event() == ("gone", {})
            assert listener.event() == (None, None)


@pytest.mark.usefixtures("quick")
def test_a_stream_is_gone_with_the_session(here):
    cookie, _ = here.service.sessions.sign_in(here.token)
    with asked(here, cookie=cookie) as (_, listener):
        listener.event()
        here.service.sessions.sign_out(cookie)
        assert listener.event() == ("gone", {})
        assert listener.block() == []


@pytest.mark.parametrize("way", ["rotate", "revoke"])
def test_a_stream_ends_at_once_with_the_token_of_its_account(here, way, monkeypatch):
    monkeypatch.setattr(stream, "SESSION_CHECK_S", 1e9)  # only a change is a reason to look
    accounts, admin = here.service.accounts, Caller("test", role="admin")
    token = accounts.add("eve", "viewer", None, admin).token
    cookie, _ = here.service.sessions.sign_in(token)
    with asked(here, cookie=cookie) as (_, listener), asked(here) as (_, other):
        listener.event()
        other.event()
        getattr(accounts, way)("eve", admin)
        assert listener.event() == ("gone", {})
        take(here, "pump-1", learnt=321.0)
        assert names(other.until(names)[1]) == ["pump-1"]


def test_a_wall_link_has_a_stream_until_it_is_revoked(here, monkeypatch):
    monkeypatch.setattr(stream, "SESSION_CHECK_S", 1e9)
    accounts, admin = here.service.accounts, Caller("test", role="admin")
    link = accounts.add_wall_link("hall", FLEET, admin).token
    with asked(here, f"/ui/wall/{link}/live", cookie="") as (_, listener):
        assert sorted(names(listener.event()[1])) == ["pump-1", "pump-2"]
        accounts.revoke("hall", admin)
        assert listener.event() == ("gone", {})


@pytest.mark.usefixtures("quick")
def test_a_fleet_that_is_deleted_ends_its_streams(here):
    with asked(here) as (_, listener):
        listener.event()
        here.service.delete(FLEET, Caller("test"))
        assert listener.event() == ("gone", {})


@pytest.mark.usefixtures("quick")
def test_only_so_many_streams_are_open_at_once(here, monkeypatch):
    monkeypatch.setattr(stream, "MAX_STREAMS", 2)
    gauge = here.service.metrics.open_streams
    with ExitStack() as open_now:
        for _ in range(2):
            open_now.enter_context(asked(here))
        with asked(here) as (answer, _):
            assert answer.status == 503
            assert answer.headers["Retry-After"] == "10"
        assert gauge._value.get() == 2
    until(lambda: gauge._value.get() == 0)
    with asked(here) as (answer, _):
        assert answer.status == 200


@pytest.mark.usefixtures("quick")
def test_a_stream_that_has_nothing_to_say_gives_a_sign(here):
    with asked(here) as (_, listener):
        listener.event()
        assert listener.block() == [": still here"]


class Watched:
    """Gives events, or raises, as it was told to."""

    def __init__(self, *told):
        self.told = list(told)

    def poll(self):
        told = self.told.pop(0) if self.told else None
        if isinstance(told, Exception):
            raise told
        return told


def heard(watch, *, signed_in=lambda: True, is_stopping=lambda: False, longest_s=0.3):
    async def listen():
        settings = {"signed_in": signed_in, "is_stopping": is_stopping, "longest_s": longest_s}
        return [text async for text in event_stream(watch, **settings)]

    return asyncio.run(listen())


def test_an_event_is_one_line_of_data():
    text = Event("run-3", {"words": "two\nlines\u2028\r"}).text
    assert text.startswith("id: run-3\ndata: ")
    assert len(text.splitlines()) == 3
    assert text.endswith("\n\n")


@pytest.mark.usefixtures("quick")
def test_a_stream_ends_by_itself():
    start = time.monotonic()
    told = heard(Watched(Event("a", {})))
    assert told[:2] == ["retry: 2000\n\n", Event("a", {}).text]
    assert 0.3 <= time.monotonic() - start < 3.0
    assert set(told[2:]) == {": still here\n\n"}


@pytest.mark.usefixtures("quick")
def test_a_stream_ends_when_the_server_is_asked_to_stop():
    told = heard(Watched(Event("a", {})), is_stopping=lambda: True, longest_s=60.0)
    assert told == ["retry: 2000\n\n"]


@pytest.mark.usefixtures("quick")
def test_the_session_is_looked_at_again_and_again():
    answers = [True, True, False]
    told = heard(Watched(), signed_in=lambda: answers.pop(0), longest_s=60.0)
    assert told[-1] == streaming.GONE_EVENT
    assert answers == []


@pytest.mark.usefixtures("quick")
def test_what_vanishes_is_gone_and_other_troubles_only_end_the_stream(caplog):
    assert heard(Watched(UnknownError("no fleet")), longest_s=60.0)[-1] == streaming.GONE_EVENT
    assert heard(Watched(EdgemergeError("the disk")), longest_s=60.0) == ["retry: 2000\n\n"]
    assert "a stream ended" in caplog.text


def test_limits_are_those_that_were_promised():
    assert streaming.POLL_S <= 0.5
    assert streaming.SESSION_CHECK_S + streaming.POLL_S <= 5.0
    assert streaming.KEEPALIVE_S + streaming.POLL_S <= 15.0
    assert streaming.MAX_STREAM_S == 600.0
    assert stream.MAX_STREAMS == 64


def device_watch(here, mark=""):
    seats = Viewers(here.app.state.viewers.tables, run="run")
    return DeviceEvents(here.service, seats, FLEET, "pump-1", mark)


@pytest.fixture
def boards(here):
    with asked(here):
        until(lambda: hasattr(here.app.state, "viewers"))
    return here


def test_points_are_sent_once_and_none_is_left_out(boards):
    watch, now = device_watch(boards), time.time()
    take(boards, "pump-1", points=[point(now - 3.0), point(now - 2.0)])
    first = watch.poll()
    assert len(first.data["all"][0]) == 2
    assert watch.poll() is None
    take(boards, "pump-1", points=[point(now - 1.0, 2.0), point(now, 3.0)])
    second = watch.poll()
    assert second.data["points"][1] == [2.0, 3.0]
    again = device_watch(boards, first.id).poll()
    assert again.data["points"] == second.data["points"]
    assert "all" in device_watch(boards, "other-" + first.id.partition("-")[2]).poll().data
    assert "all" in device_watch(boards, "run-nonsense").poll().data


def test_a_page_knows_up_to_where_it_has_the_points(boards):
    now = time.time()
    take(boards, "pump-1", points=[point(now - 2.0), point(now - 1.0)])
    points = list(boards.service.history.latest(FLEET, "pump-1").points)
    assert "points" not in device_watch(boards, event_id(points, "run")).poll().data
    assert device_watch(boards, event_id(points[:1], "run")).poll().data["points"][0]
    assert "all" in device_watch(boards, event_id([], "run")).poll().data
    assert event_id([ScorePoint(5.0, 1.0, None, False)], "run") == "run-5.0"


def test_only_parts_that_changed_are_sent(boards):
    watch = device_watch(boards)
    take(boards, "pump-1")
    assert set(watch.poll().data["parts"]) >= {"head", "status", "sources", "merges", "shared"}
    take(boards, "pump-1", merge=merge_of(time.time()))
    changed = watch.poll().data["parts"]
    assert {"sources", "merges"} <= set(changed)
    assert not {"shared", "reasons", "patterns", "alarms"} & set(changed)


def test_a_page_is_not_made_again_as_long_as_nothing_is_new(boards, monkeypatch):
    watch, made, real = device_watch(boards), [], device_view

    def making(*of):
        made.append(of)
        return real(*of)

    monkeypatch.setattr(device_watching, "device_view", making)
    take(boards, "pump-1")
    for _ in range(3):
        watch.poll()
    assert len(made) == 1
    take(boards, "pump-1")
    watch.poll()
    assert len(made) == 2


def test_an_alarm_is_announced_once(boards):
    watch = device_watch(boards)
    take(boards, "pump-1", alarms=[alarm_of(time.time() - 9.0)])
    assert "alarm" not in watch.poll().data  # it was there before anybody looked
    take(boards, "pump-1", alarms=[alarm_of(time.time())])
    assert "score 5" in watch.poll().data["alarm"]
    take(boards, "pump-1", learnt=5.0)
    assert "alarm" not in watch.poll().data


def test_a_server_with_an_open_stream_stops_within_two_seconds(tmp_path):
    with serving(tmp_path) as (url, process):
        hub_of(tmp_path, url).create_fleet(FLEET, SHARED)
        (file,) = tmp_path.glob("*.admin-token")
        connection = HTTPConnection(urlsplit(url).netloc, timeout=DEADLINE_S)
        form, kind = f"token={file.read_text().strip()}", "application/x-www-form-urlencoded"
        connection.request("POST", "/ui/sign-in", form, {"Content-Type": kind, "Origin": url})
        answer = connection.getresponse()
        cookie = answer.headers["Set-Cookie"].partition(";")[0]
        answer.read()
        connection.request("GET", f"/ui/fleets/{FLEET}/live", headers={"Cookie": cookie})
        listener = Listener(connection.getresponse())
        assert listener.event()[1]["rows"] == []
        start = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
        assert time.monotonic() - start < 2.0
        connection.close()
