"""Reports over HTTP: what is sent, what is believed of the answer, and what stands in the way."""

import json

import pytest

from edgemerge.core.errors import DeniedError, RejectedError, UnavailableError, UnknownError
from edgemerge.exchange.client import (
    MAX_ANSWER_BYTES,
    MAX_REPORT_BYTES,
    ReportAnswer,
    ReportClient,
    encode_report,
    was_not_sent,
)
from edgemerge.server.schemas import ReportRequest
from tests.services.ports import free_port
from tests.services.reports import dead, standing_in

STATUS = {"samples": 1, "learnt": 1.0, "alarms": 0}
REPORT = {"sent": 100.0, "status": STATUS, "points": [{"at": 99.0, "score": 1.0}]}
NOBODY = ReportAnswer(None, None)


@pytest.fixture
def server():
    with standing_in() as found:
        yield found
    assert found.refused == []


@pytest.fixture
def reports(server):
    made = ReportClient(server.url, "pumps", "pump-1", "secret")
    yield made
    made.close()


def test_a_report_arrives_under_the_name_of_the_device_with_its_token(server, reports):
    server.answer = {"every_s": 5.0, "choice": 3}
    assert reports.send(REPORT) == ReportAnswer(5.0, 3)
    assert server.asked == [("/fleets/pumps/devices/pump-1/report", "Bearer secret")]
    assert server.reports == [ReportRequest.model_validate(REPORT)]
    assert repr(reports) == f"ReportClient({server.url}/fleets/pumps/devices/pump-1/report)"


@pytest.mark.parametrize(
    ("answer", "heard"),
    [
        (b'{"every_s": NaN, "choice": 2}', ReportAnswer(None, 2)),
        (b'{"every_s": 1e99, "choice": "2"}', ReportAnswer(3600.0, None)),
        (b'{"every_s": -5, "choice": -1}', NOBODY),
        (b'{"every_s": 0, "choice": true}', NOBODY),
        (b'{"every_s": 0.0001, "choice": 1.0}', ReportAnswer(0.2, None)),
        (b'{"every_s": "5", "choice": 9223372036854775808}', NOBODY),
        (b'{"every_s": Infinity, "choice": null}', NOBODY),
        (b'{"every_s": ' + b"9" * 4000 + b"}", ReportAnswer(3600.0, None)),
        (b"{}", NOBODY),
    ],
)
def test_of_an_answer_only_what_makes_sense_is_believed(server, reports, answer, heard):
    server.answer = answer
    assert reports.send(REPORT) == heard


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"<html>", "not JSON"),
        (b"", "not JSON"),
        (b"[1, 2]", "no JSON object"),
        (b"[" * 4000, "not JSON"),
        (b'"\xff\xfe"', "not JSON"),
        (b" " * (MAX_ANSWER_BYTES + 1), f"more than {MAX_ANSWER_BYTES} bytes"),
        (b" " * 10_000_000, f"more than {MAX_ANSWER_BYTES} bytes"),
    ],
)
def test_an_answer_that_is_none_is_told_as_such(server, reports, answer, words):
    server.answer = answer
    with pytest.raises(RejectedError, match=words):
        reports.send(REPORT)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        *((401, DeniedError), (403, DeniedError), (404, UnknownError), (429, UnavailableError)),
        *(
            (500, UnavailableError),
            (503, UnavailableError),
            (413, RejectedError),
            (204, RejectedError),
        ),
    ],
)
def test_what_stands_in_the_way_is_told_apart_and_tried_once(server, reports, status, error):
    server.status, server.answer = status, b"" if status == 204 else {"every_s": 1.0}
    with pytest.raises(error) as found:
        reports.send(REPORT)
    assert len(server.asked) == 1
    assert not was_not_sent(found.value)


def test_a_server_that_never_answers_is_left_in_time():
    with dead() as url:
        reports = ReportClient(url, "pumps", "pump-1", "secret", timeout_s=0.1)
        with pytest.raises(UnavailableError, match="no answer in time") as found:
            reports.send(REPORT)
    assert not was_not_sent(found.value)  # it may have been read


def test_a_report_to_nobody_never_left():
    reports = ReportClient(f"http://127.0.0.1:{free_port()}", "pumps", "pump-1", "secret")
    with pytest.raises(UnavailableError) as found:
        reports.send(REPORT)
    assert was_not_sent(found.value)


def large(**more):
    origin = {"device": "d" * 100, "incarnation": 2**62, "pattern": "p" * 100, "revision": 7}
    merge = {"at": 1.0, "digest": "0" * 64, "samples": 5.0, "devices": 2000, "shift": 1.0}
    merge["origins"] = [origin | {"device": f"d{i}" + "d" * 90} for i in range(2000)]
    return REPORT | {"merge": merge} | more


def test_of_a_report_that_is_too_large_the_first_origins_stay_and_everything_else():
    report = large()
    body = encode_report(report)
    assert 0.8 * MAX_REPORT_BYTES < len(body) <= MAX_REPORT_BYTES
    found = ReportRequest.model_validate_json(body)
    assert found.points == ReportRequest.model_validate(REPORT).points
    assert found.merge.devices == 2000
    names = [each.device for each in found.merge.origins]
    assert names == [each["device"] for each in report["merge"]["origins"][: len(names)]]
    assert len(report["merge"]["origins"]) == 2000  # what was handed in is as it was


def test_of_alarms_and_scores_that_are_too_much_the_newest_stay():
    why = [{"input": "é" * 200, "factor": 1.0}] * 8
    alarms = [{"at": float(i), "score": 9.0, "sample": i, "why": why} for i in range(20)]
    found = json.loads(encode_report(large(alarms=alarms)))
    assert found["merge"]["origins"] == []
    kept = [each["sample"] for each in found["alarms"]]
    assert kept == list(range(20 - len(kept), 20))
    assert 15 <= len(kept) < 20
    assert found["points"] == REPORT["points"]


def test_text_is_sent_as_it_is(server, reports):
    reports.send(REPORT | {"status": STATUS | {"exchange": "für <b> \N{SNOWMAN}"}})
    assert server.reports[0].status.exchange == "für <b> \N{SNOWMAN}"
