"""Sources: rows and lines, standard input and a given speed; what is bad is left out."""

import json
import os
import time
from itertools import pairwise
from threading import Event, Thread

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgemerge.agent.rows import (
    BadRow,
    CsvRows,
    JsonRows,
    LineSplitter,
    PayloadRows,
    RowReader,
    _parse_number,
    _parse_values,
)
from edgemerge.agent.sources import RateLimitedSource, Reading, StdinSource
from edgemerge.core.errors import SettingError


def firsts(readings):
    return [int(reading.values[0]) for reading in readings]


# rows


def read(form, *lines):
    rows = [form.row(line) for line in lines]
    return [row.values.tolist() for row in rows if row is not None]


def test_column_numbers_in_text_count_from_1_unless_a_column_has_that_name():
    form = CsvRows(["3", "1"], time="2")
    assert form.row("5,60,7").values.tolist() == [7.0, 5.0]
    named = CsvRows(["1", "3"], header=True)
    assert named.row("3,2,1") is None
    assert named.row("5,6,7").values.tolist() == [7.0, 5.0]
    assert JsonRows(["2"], time="1").row("[60, 8]").values.tolist() == [8.0]
    assert JsonRows(time="1").row("[60, 8]").values.tolist() == [8.0]
    assert JsonRows(["2"]).row('{"2": 9}').values.tolist() == [9.0]
    with pytest.raises(SettingError, match=r'found no column "0" .* no header'):
        CsvRows(["0"]).row("5,6")


def test_columns_are_chosen_by_name_and_number():
    assert read(CsvRows(["b", 0]), "a,b,c", "1,2,3", "4,5,6") == [[2, 1], [5, 4]]
    assert read(CsvRows([2, -2]), "1,2,3") == [[3, 2]]
    assert read(JsonRows(["b", "a"]), '{"a": 1, "b": 2, "c": "x"}') == [[2, 1]]
    assert read(JsonRows([1]), "[1, 2, 3]") == [[2]]


def test_a_missing_column_is_an_error_in_the_first_header_and_a_bad_row_in_a_later_one():
    form = CsvRows(["flow"])
    with pytest.raises(SettingError, match=r'found no column "flow" .* did you mean "flows"'):
        form.row("flows,x")
    form.begin()
    assert form.row("flow,x") is None
    assert form.row("1,2").values.tolist() == [1.0]
    form.begin()
    assert form.row("flows,x") is None
    with pytest.raises(BadRow, match="there is no column 'flow'"):
        form.row("1,2")


@pytest.mark.parametrize(
    ("first", "header", "count"),
    [
        ("a,b", None, 1),
        ("1,2", None, 2),
        ("1,2", True, 1),
        ("1,2", False, 2),
        ("\ufeffa,b", None, 1),
    ],
)
def test_a_header_is_seen_or_told(first, header, count):
    assert len(read(CsvRows(header=header), first, "3,4")) == count


def test_a_time_that_is_no_number_makes_no_header():
    form = CsvRows(time=0)
    row = form.row("1970-01-01T00:02:00Z,5")
    assert (row.at, row.values.tolist()) == (120.0, [5.0])


def test_a_time_may_be_counted_from_the_end():
    form = CsvRows(time=-1)
    row = form.row("5,1970-01-01T00:02:00Z")
    assert row is not None, "the first row was taken for a header"
    assert (row.at, row.values.tolist()) == (120.0, [5.0])
    row = JsonRows(time=-1).row("[5, 120]")
    assert (row.at, row.values.tolist()) == (120.0, [5.0])


@pytest.mark.parametrize("told", ["90", "1970-01-01T00:01:30", '"1970-01-01 01:01:30+01:00"'])
def test_times_are_unix_seconds_or_iso(told):
    form = CsvRows(["x"], time="t")
    form.row("x,t")
    assert form.row(f"1,{told}").at == 90.0
    assert JsonRows(["x"], time="t").row(json.dumps({"x": 1, "t": told.strip('"')})).at == 90.0


def test_a_time_may_be_in_two_columns():
    form = CsvRows(time=["Date", "Time"], delimiter=";", decimal=",")
    form.row("Time;x;Date")
    row = form.row("00:01:30;1,5;1970-01-01")
    assert (row.at, row.values.tolist(), row.names) == (90.0, [1.5], ("x",))
    assert CsvRows(time=["1", "2"]).row("1970-01-01,00:01:30,5").at == 90.0
    text = '{"Date": "1970-01-01", "Time": "00:01:30", "x": 1}'
    row = JsonRows(time=["Date", "Time"]).row(text)
    assert (row.at, row.values.tolist()) == (90.0, [1.0])
    row = JsonRows(time=["1", "2"]).row('["1970-01-01", "00:01:30", 5]')
    assert (row.at, row.values.tolist()) == (90.0, [5.0])
    with pytest.raises(SettingError, match=r'found no column "Tme" \(source.time\)'):
        CsvRows(time=["Date", "Tme"]).row("Date,Time,x")


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="Windows has its own way")
def test_a_time_without_a_zone_is_utc_wherever_the_device_is(monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert JsonRows(["x"], time="t").row('{"x": 1, "t": "1970-01-01T00:01:30"}').at == 90.0
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_delimiter_and_quotes():
    assert read(CsvRows(delimiter=";", header=False), '1;"2"', " 3 ; 4 ") == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("form", "line", "why"),
    [
        (CsvRows(header=False), "1,x", "'x' is no finite number"),
        (CsvRows(header=False), "1,nan", "no finite number"),
        (CsvRows(header=False), "1,inf", "no finite number"),
        (CsvRows(header=False), "1,", "'' is no finite number"),
        (CsvRows(header=False, width=3), "1,2", "2 values instead of 3"),
        (CsvRows([5], header=False), "1,2", "there is no column 5 among 2"),
        (CsvRows(["q"], header=False), "1,2", "there is no column 'q'"),
        (CsvRows(time=0, header=False), "yesterday,2", "'yesterday' is no time"),
        (JsonRows(), "{", "not JSON"),
        (JsonRows(), "3", "int instead of an object or array"),
        (JsonRows(), "[" * 100_000, "not JSON"),
        (JsonRows(), "[1, true]", "'True' is no finite number"),
        (JsonRows(), "[1, NaN]", "no finite number"),
        (JsonRows(), "[1, 1e999]", "no finite number"),
        (JsonRows(), "[1, " + "9" * 400 + "]", "no finite number"),
        (JsonRows(), "[]", "no values"),
        (JsonRows(["a"]), '{"b": 1}', "there is no column 'a'"),
        (JsonRows(["a"]), "[1]", "there is no column 'a'"),
        (JsonRows([0]), '{"b": 1}', "there is no column 0"),
        (PayloadRows(width=2), "[1]", "1 values instead of 2"),
        (PayloadRows(width=2), "1", "1 values instead of 2"),
    ],
)
def test_a_bad_row_says_why(form, line, why):
    with pytest.raises(BadRow, match=why):
        form.row(line)


def test_a_row_with_other_fields_than_the_header_is_bad():
    form = CsvRows()
    form.row("a,b")
    with pytest.raises(BadRow, match="3 fields instead of 2"):
        form.row("1,2,3")


def test_objects_without_columns_keep_the_keys_of_the_first():
    form = JsonRows(time="t")
    assert read(form, '{"t": 1, "b": 2, "a": 3}', '{"a": 5, "b": 4, "t": 2}') == [[2, 3], [4, 5]]


def test_payloads_are_json_or_numbers():
    form = PayloadRows(width=2)
    assert read(form, "[1, 2]", '{"x": 3, "y": 4}', "5,6") == [[1, 2], [3, 4], [5, 6]]


@given(st.text(max_size=60))
def test_whatever_a_line_holds_it_is_a_row_or_none_or_bad(line):
    for form in (CsvRows(), CsvRows([0], time=1), JsonRows(), JsonRows(["a"]), PayloadRows()):
        reader = RowReader(form)
        for _ in range(2):
            row = reader.row(line.encode(errors="surrogatepass"))
            assert row is None or row.values.ndim == 1


# lines


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=8))
def test_lines_do_not_depend_on_how_bytes_come_in(data, cuts):
    data = data.replace(b"\x00", b"\n")
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    splitter = LineSplitter()
    lines = []
    for a, b in pairwise(places):
        lines += splitter.feed(data[a:b])
    lines.append(splitter.rest())
    assert [line.text for line in lines] == [each.rstrip(b"\r") for each in data.split(b"\n")]
    assert lines[-1].end == len(data)
    assert all(data[: line.end].endswith(b"\n") for line in lines[:-1])


def test_a_line_that_is_too_long_is_left_out_and_never_held():
    splitter = LineSplitter(longest=10)
    lines = [line for _ in range(1000) for line in splitter.feed(b"x" * 100)]
    assert lines == []
    assert len(splitter._rest) <= 12
    assert [line.text for line in splitter.feed(b"\n1,2\n")] == [None, b"1,2"]


def test_many_bad_rows_are_counted_and_told_once_a_minute(caplog):
    now = [0.0]
    reader = RowReader(CsvRows(header=False), clock=lambda: now[0])
    for second in range(120):
        now[0] = float(second)
        reader.row(b"x")
    assert reader.skipped == 120
    assert [record.values["skipped"] for record in caplog.records] == [1, 61]


# standard input, and a given speed


def test_standard_input_ends_with_the_pipe_and_stops_when_asked():
    out, into = os.pipe()
    source, stop = StdinSource(CsvRows(), handle=out), Event()
    os.write(into, b"n,v\n0,1\n1,2\n2,")
    readings = source.read(stop)
    assert firsts([next(readings), next(readings)]) == [0, 1]
    os.write(into, b"7")
    os.close(into)
    assert [reading.values.tolist() for reading in readings] == [[2.0, 7.0]]
    os.close(out)


def test_standard_input_looks_at_stop_while_nothing_comes():
    out, into = os.pipe()
    stop, found = Event(), []
    thread = Thread(target=lambda: found.extend(StdinSource(CsvRows(), handle=out).read(stop)))
    thread.start()
    stop.set()
    thread.join(2.0)
    assert not thread.is_alive()
    os.close(out)
    os.close(into)


class Clock:
    """A clock that moves by what is waited for; it stands in for `stop` as well."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def wait(self, seconds):
        self.now += seconds
        return False


class Given:
    """Readings that are there at once, or at times of their own."""

    def __init__(self, clock, gaps):
        self.clock, self.gaps = clock, gaps

    def read(self, _stop, _position=None):
        for i, gap in enumerate(self.gaps):
            self.clock.now += gap
            yield Reading(i)


@pytest.mark.parametrize(
    ("gaps", "at"),
    [([0.0] * 4, [0.0, 0.5, 1.0, 1.5]), ([0.0, 3.0, 0.0, 0.0], [0.0, 3.0, 3.5, 4.0])],
)
def test_readings_come_at_the_given_speed(gaps, at):
    clock = Clock()
    paced = RateLimitedSource(Given(clock, gaps), 2.0, clock=clock)
    assert [clock.now for _ in paced.read(clock)] == at


def test_utf_16_is_an_error_at_the_start_and_a_bad_row_in_a_later_file():
    line = "1,2".encode("utf-16")
    with pytest.raises(SettingError, match="found UTF-16, expected UTF-8"):
        RowReader(CsvRows(header=False)).row(line)
    reader = RowReader(CsvRows(header=False))
    assert reader.row(b"1,2") is not None
    assert reader.row(line) is None
    assert (reader.skipped, reader.why_skipped[:12]) == (1, "found UTF-16")


cells = st.one_of(
    st.floats().map(repr),
    st.sampled_from(["", " 7 ", "1_000", "1e999", "nan", "on", "١", "0x1f", "1,5", "-0"]),
    st.floats(),
    st.integers(-(10**400), 10**400),
    st.sampled_from([True, None, [1.0]]),
)


def told(parse):
    """Return what comes of parsing, a list or the words of a refusal."""
    try:
        return np.asarray(parse()).tolist()
    except BadRow as error:
        return str(error)


@given(st.lists(cells, min_size=1, max_size=5))
def test_numbers_that_are_read_at_once_are_those_read_one_by_one(found):
    one_by_one = told(lambda: [_parse_number(each, i, None) for i, each in enumerate(found)])
    assert told(lambda: _parse_values(found, None)) == one_by_one
