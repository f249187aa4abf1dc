"""Reports over the wire: who may, how often, and what becomes of those that are no reports."""

import json
from math import inf

import pytest

from edgemerge.exchange.client import MAX_REPORT_BYTES
from edgemerge.server.auth import Caller, RateLimitError, ReportLimiter, new_token
from edgemerge.wire.codec import encode
from tests.server.reporting import alarm_of, merge_of, point, said
from tests.server.wire import SHARED, ask, dump, note, push
from tests.services.hub import running

ADDRESS = "/fleets/mine/devices/a/report"
GOOD = said(1000.0, points=[point(999.0)], alarms=[alarm_of(999.0)], merge=merge_of(990.0, 1, 2))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    where = tmp_path_factory.mktemp("reports")
    with running(f"sqlite:///{where / 'fleets.db'}") as here:
        here.operator.create_fleet("mine", SHARED)
        yield here


@pytest.fixture
def here(server):
    """The server, with all that it remembers of how often somebody reported gone."""
    server.service.report_limiter.__init__()
    return server


@pytest.fixture(scope="module")
def token(server):
    return server.enrol("mine", "a")


def send(here, token, given=GOOD, **more):
    body = given if isinstance(given, bytes) else json.dumps(given).encode()
    return ask(here, "POST", more.pop("address", ADDRESS), token=token, body=body, **more)


TAKES = {"monitor": True, "settings": True, "configuration": True, "problems": True}


def counted(here, outcome):
    return here.service.metrics.reports.labels(outcome)._value.get()


def test_a_device_reports_and_is_told_when_to_report_again(here, token):
    answered = send(here, token)
    assert answered.status == 200, answered.body
    told = {"every_s": 1.0, "choice": 0, "desired": 0, **TAKES}
    assert json.loads(answered.body) == told
    glimpse = here.service.history.latest("mine", "a")
    assert here.service.clock() - glimpse.heard < 60.0
    assert [one.at for one in glimpse.points] == [glimpse.heard - 1.0]


def test_a_choice_that_concerns_it_is_told(here, token, monkeypatch):
    monkeypatch.setattr(
        here.service.choices, "desired_revision", lambda *name: {("mine", "a"): 7}[name]
    )
    told = {"every_s": 1.0, "choice": 7, "desired": 7, **TAKES}
    assert json.loads(send(here, token).body) == told


def test_once_a_token_was_found_good_no_database_is_asked(here, token, monkeypatch):
    assert send(here, token).status == 200

    def asked():
        raise AssertionError("it was asked")

    monkeypatch.setattr(here.service.database, "reading", asked)
    monkeypatch.setattr(here.service.writer, "submit", lambda *_change: asked())
    for _ in range(3):
        assert send(here, token).status == 200


def test_a_revoked_device_reports_no_more(here):
    token = here.enrol("mine", "b")
    address = "/fleets/mine/devices/b/report"
    assert send(here, token, address=address).status == 200
    here.operator.revoke("mine", "b")
    assert send(here, token, address=address).status == 401


def test_a_device_of_a_deleted_fleet_reports_no_more(here):
    here.operator.create_fleet("brief", SHARED)
    token, address = here.enrol("brief", "a"), "/fleets/brief/devices/a/report"
    assert send(here, token, address=address).status == 200
    here.operator.delete_fleet("brief")
    assert send(here, token, address=address).status == 401


def test_nobody_reports_for_another(here, token):
    other = here.enrol("mine", "f")
    for who in (other, here.token):
        assert send(here, who).status == 403
    assert send(here, token, address="/fleets/mine/devices/f/report").status == 403
    assert here.service.history.latest("mine", "f") is None


def test_a_token_is_looked_up_again_after_a_while():
    now = [0.0]
    limiter, token = ReportLimiter(clock=lambda: now[0], most=2), new_token("device")
    assert limiter.known(token) is None
    limiter.remember(token, Caller("a", "mine"), limiter.generation)
    now[0] = 9.9
    assert limiter.known(token) == Caller("a", "mine")
    assert limiter.known(new_token("device")) is None
    now[0] = 10.0
    assert limiter.known(token) is None
    limiter.remember(token, Caller("a", "mine"), limiter.generation)
    limiter.forget("theirs")
    assert limiter.known(token) == Caller("a", "mine")
    limiter.forget("mine")
    assert limiter.known(token) is None
    tokens = [new_token("device") for _ in range(3)]
    for each in tokens:
        limiter.remember(each, Caller(each, "mine"), limiter.generation)
    assert [limiter.known(each) is not None for each in tokens] == [False, True, True]


def test_a_token_that_is_revoked_while_it_is_looked_up_is_not_remembered():
    limiter, token = ReportLimiter(), new_token("device")
    before = limiter.generation
    limiter.forget("mine")  # revoked after the look into the database
    limiter.remember(token, Caller("a", "mine"), before)
    assert limiter.known(token) is None
    limiter.remember(token, Caller("a", "mine"), limiter.generation)
    assert limiter.known(token) == Caller("a", "mine")


def test_a_device_that_is_revoked_while_its_report_is_let_in_cannot_report_again(here, monkeypatch):
    token, service = here.enrol("mine", "late"), here.service
    find = service.caller

    def revoked_meanwhile(given):
        found = find(given)
        service.revoke("mine", "late", Caller("root"))
        return found

    monkeypatch.setattr(service, "caller", revoked_meanwhile)
    address = "/fleets/mine/devices/late/report"
    assert send(here, token, address=address).status == 200  # it was on its way
    monkeypatch.undo()
    assert send(here, token, address=address).status == 401


def test_a_device_that_reports_too_often_is_told_to_wait(here, token):
    before = counted(here, "too many")
    answers = [send(here, token) for _ in range(12)]
    assert [each.status for each in answers[:5]] == [200] * 5
    seq, rows = here.service.history.seq, dump(here)
    late = [each for each in answers if each.status != 200]
    assert {each.status for each in late} == {429}
    assert all(1 <= int(each.headers["retry-after"]) <= 2 for each in late)
    assert b"as often as the last answer said" in late[0].body
    assert counted(here, "too many") == before + len(late)
    while (last := send(here, token)).status == 200:
        seq = here.service.history.seq
    assert last.status == 429
    assert here.service.history.seq == seq
    assert rows.keys() == dump(here).keys()
    assert push(here, token, note("a")).status in (200, 201)  # shares do not count


def room(limiter, device="a"):
    try:
        limiter.admit(Caller(device, "mine"))
    except RateLimitError as error:
        return error.retry_s
    return 0.0


def test_a_device_has_a_burst_and_then_two_a_second():
    now = [0.0]
    limiter = ReportLimiter(clock=lambda: now[0])
    assert [room(limiter) for _ in range(6)] == [0.0] * 5 + [1.0]
    now[0] = 0.5
    assert [room(limiter) for _ in range(2)] == [0.0, 1.0]
    now[0] = 100.0
    assert [room(limiter) for _ in range(6)] == [0.0] * 5 + [1.0]
    assert room(limiter, "b") == 0.0


def test_all_devices_together_have_two_hundred_a_second():
    now = [0.0]
    limiter = ReportLimiter(clock=lambda: now[0])
    found = [room(limiter, f"d{i}") for i in range(250)]
    assert found == [0.0] * 200 + [1.0] * 50
    now[0] = 0.1
    assert [room(limiter, f"e{i}") for i in range(21)] == [0.0] * 20 + [1.0]


def test_what_is_remembered_of_reporters_is_bounded():
    limiter = ReportLimiter(clock=lambda: 0.0, most=3)
    for i in range(100):
        limiter.admit(Caller(f"d{i}", "mine"))
    assert len(limiter._rates._buckets) == 3


DEEP = b'{"sent":' + b"[" * 20_000 + b"]" * 20_000 + b"}"
HOSTILE = {
    "nothing": b"",
    "no JSON": b"garbage",
    "half of one": json.dumps(GOOD).encode()[:-9],
    "a list": b"[]",
    "null": b"null",
    "bytes that are no text": b'{"sent": "\xff\xfe"}',
    "a lone surrogate": {**GOOD, "status": GOOD["status"] | {"exchange": "\ud800"}},
    "NaN": said(1000.0, points=[point(1.0, float("nan"))]),
    "infinity": said(1000.0, points=[point(1.0, inf)]),
    "a time without end": said(inf),
    "a number that is too large": json.dumps(GOOD).encode().replace(b"1000.0", b"1e400"),
    "digits without end": json.dumps(GOOD).encode().replace(b"1000.0", b"9" * 5000),
    "deep lists": DEEP,
    "deep objects": b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
    "a negative time": said(-1.0),
    "a time as text": said("1000"),
    "a truth as a number": said(1000.0, leaving=1),
    "half an alarm": said(1000.0, alarms=[point(1.0)]),
    "a part of a sample": said(1000.0, alarms=[alarm_of(1.0, 1.5)]),
    "too large a sample": said(1000.0, alarms=[alarm_of(1.0, 2**63)]),
    "a negative score": said(1000.0, points=[point(1.0, -1.0)]),
    "too many points": said(1000.0, points=[point(1.0)] * 241),
    "too many alarms": said(1000.0, alarms=[alarm_of(1.0)] * 21),
    "too many reasons": said(1000.0, alarms=[alarm_of(1.0, why=[("x", 1.0)] * 9)]),
    "a long name": said(1000.0, pattern="x" * 201),
    "a digest that is none": {**GOOD, "merge": merge_of(1.0) | {"digest": "xyz"}},
    "a field that nobody knows": {**GOOD, "admin": True},
    "one further in": {**GOOD, "status": GOOD["status"] | {"admin": True}},
    "no status": {"sent": 1.0},
    "a thousand mistakes": said(1000.0, points=[{}] * 240),
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE)
def test_what_is_no_report_is_refused_and_changes_nothing(here, token, body):
    before, rows, seq = counted(here, "refused"), dump(here), here.service.history.seq
    answered = send(here, token, body)
    assert answered.status == 422, answered
    assert len(answered.body) < 4_000
    assert json.loads(answered.body)["error"]
    assert counted(here, "refused") == before + 1
    assert dump(here) == rows
    assert here.service.history.seq == seq


@pytest.mark.parametrize("headers", [{}, {"Transfer-Encoding": "chunked"}])
def test_a_report_has_a_largest_size(here, token, headers):
    body = json.dumps(GOOD).encode()
    whole = body + b" " * (MAX_REPORT_BYTES - len(body))
    assert send(here, token, whole).status == 200
    if headers:
        large = b"%x\r\n%b\r\n0\r\n\r\n" % (MAX_REPORT_BYTES + 1, whole + b" ")
        answered = send(here, token, large, headers=headers)
    else:
        answered = send(here, token, whole + b" ")
    assert answered.status == 413


def test_the_largest_report_is_taken(here, token):
    reasons = [(f"input {i}", 1.5) for i in range(8)]
    largest = said(
        1000.0,
        points=[point(1000.0 - i / 9, 1 / 3) for i in range(240)],
        alarms=[alarm_of(1000.0 - i, i, why=reasons) for i in range(20)],
        merge=merge_of(1000.0, 77, origins=300),
        exchange="é\u0000<script>" * 10,
    )
    assert send(here, token, largest).status == 200
    here.service.history.flush()
    history = here.service.history
    assert len(history.latest("mine", "a").points) >= 240
    assert history.latest("mine", "a").status.exchange == "é\u0000<script>" * 10
    assert len(history.merges("mine", "a")[0].origins) == 300


def test_pushes_and_pulls_are_counted(here):
    token = here.enrol("mine", "c")
    told = note("c")
    assert push(here, token, told).status == 201
    first = ask(here, "GET", "/fleets/mine/total?incarnation=5", token=token)
    assert first.status == 200
    headers = {"If-None-Match": first.headers["etag"]}
    again = ask(here, "GET", "/fleets/mine/total?incarnation=5", token=token, headers=headers)
    assert again.status == 304
    assert ask(here, "GET", "/fleets/mine/patterns", token=token).status == 200
    assert ask(here, "GET", "/fleets/mine/total", token=here.token).status == 200
    moved = here.service.history.traffic("mine")["c"]
    assert (moved.pushes, moved.pushed_bytes) == (1, len(encode(told)))
    assert moved.pulls == 3
    assert moved.pulled_bytes > len(first.body)
    assert here.service.clock() - moved.last < 60.0
    assert "test" not in here.service.history.traffic("mine")


def test_a_contribution_that_is_not_kept_is_not_counted(here):
    token = here.enrol("mine", "e")
    assert push(here, token, note("e", 2)).status == 201
    assert push(here, token, note("e", 1)).status == 409
    assert push(here, token, note("e", 2)).status == 200  # is there already
    assert here.service.history.traffic("mine")["e"].pushes == 1
