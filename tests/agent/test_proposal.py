"""What is found in a file of readings: the odd ones that people really have."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from edgemerge.agent.proposal import (
    MAX_ROWS,
    begins_outside,
    choose_columns,
    inspect_bytes,
    inspect_file,
    propose,
)
from edgemerge.agent.rows import CsvRows, RowReader, TimeFormat
from edgemerge.core.errors import SampleError

ROWS = np.random.default_rng(0).normal(size=(60, 3)).round(3)
START = datetime(2026, 11, 2, 8, 0, 0)


def point(value):
    return f"{value:.3f}"


def comma(value):
    return point(value).replace(".", ",")


def table(delimiter=",", number=point, names=("a", "b", "c"), times=None, name="time"):
    """Return a file: a header unless `names` is empty, and `times(i)` in the first column."""
    head = [delimiter.join([*([name] if times else []), *names])] if names else []
    lines = [
        delimiter.join([*([times(i)] if times else []), *map(number, row)])
        for i, row in enumerate(ROWS)
    ]
    return "\n".join([*head, *lines, ""])


def clock(pattern, step_s=1.0):
    return lambda i: (START + timedelta(seconds=step_s * i)).strftime(pattern)


def found(text):
    return inspect_bytes(text if isinstance(text, bytes) else text.encode())


def readings(report, text):
    """Read the file as the agent does, with what was found."""
    form = CsvRows(
        [column.name for column in report.usable()],
        time=report.time,
        header=report.header,
        delimiter=report.delimiter,
        decimal=report.decimal,
        skip_lines=report.skip_lines,
        time_format=TimeFormat(report.time_format),
    )
    reader = RowReader(form)
    lines = text.encode().split(b"\n")
    return [row for line in lines if (row := reader.row(line)) is not None], reader.skipped


FILES: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": (table(), {}),
    "without header": (table(names=()), {"header": False}),
    "semicolons and decimal commas": (table(";", comma), {"delimiter": ";", "decimal": ","}),
    "tabs": (table("\t"), {"delimiter": "\t"}),
    "spaces": (table(" ", names=()), {"delimiter": " ", "header": False}),
    "bars": (table("|"), {"delimiter": "|"}),
    "lines before the header": ("# logger 7\n# bar, l/s\n" + table(), {"skip_lines": 2}),
    "byte order mark and CRLF": ("\ufeff" + table().replace("\n", "\r\n"), {}),
    "header again": (table() + table(), {}),
    "ISO times": (table(times=clock("%Y-%m-%dT%H:%M:%S+01:00")), {"time": "time"}),
    "German times": (
        table(";", comma, times=clock("%d.%m.%Y %H:%M:%S"), name="Zeit"),
        {"delimiter": ";", "decimal": ",", "time": "Zeit", "time_format": "%d.%m.%Y %H:%M:%S"},
    ),
    "month first": (
        table(times=clock("%m/%d/%Y %H:%M:%S", 86400.0)),
        {"time": "time", "time_format": "%m/%d/%Y %H:%M:%S"},
    ),
    "day first": (
        table(times=clock("%d/%m/%Y %H:%M:%S", 86400.0)),
        {"time": "time", "time_format": "%d/%m/%Y %H:%M:%S"},
    ),
    "month first, by the order alone": (
        table(times=clock("%m/%d/%Y %H:%M:%S", 12_000.0)),
        {"time": "time", "time_format": "%m/%d/%Y %H:%M:%S"},
    ),
    "day first, by the order alone": (
        table(times=clock("%d/%m/%Y %H:%M:%S", 12_000.0)),
        {"time": "time", "time_format": "%d/%m/%Y %H:%M:%S"},
    ),
    "Unix seconds": (table(times=lambda i: str(1_794_000_000 + i)), {"time": "time"}),
    "milliseconds": (
        table(times=lambda i: str(1_794_000_000_000 + 20 * i), name="ts"),
        {"time": "ts", "time_format": "ms"},
    ),
    "date and time in two columns": (
        table(times=clock("%Y-%m-%d,%H:%M:%S", 12_000.0), name="Date,Time"),
        {"time": ("Date", "Time")},
    ),
    "date and time in two columns without names": (
        table(times=clock("%Y-%m-%d,%H:%M:%S"), names=()),
        {"header": False, "time": ("1", "2")},
    ),
    "time of day before a German date": (
        table(";", comma, times=clock("%H:%M:%S;%d.%m.%Y", 12_000.0), name="Zeit;Datum"),
        {
            "delimiter": ";",
            "decimal": ",",
            "time": ("Datum", "Zeit"),
            "time_format": "%d.%m.%Y %H:%M:%S",
        },
    ),
    "German date before a time of day": (
        table(";", comma, times=clock("%d.%m.%Y;%H:%M", 12_000.0), name="Datum;Zeit"),
        {
            "delimiter": ";",
            "decimal": ",",
            "time": ("Datum", "Zeit"),
            "time_format": "%d.%m.%Y %H:%M",
        },
    ),
    "date and time of day with points": (
        table(";", comma, times=clock("%d/%m/%Y;%H.%M.%S", 12_000.0), name="Date;Time"),
        {
            "delimiter": ";",
            "decimal": ",",
            "time": ("Date", "Time"),
            "time_format": "%d/%m/%Y %H.%M.%S",
        },
    ),
    "units below the header": (
        table(";", comma, times=clock("%d.%m.%Y %H:%M:%S"), name="Zeit").replace(
            "Zeit;a;b;c\n", "Anlage;Nord;;\nZeit;a;b;c\ndd.mm.yyyy;[bar];m³/h;A\n"
        ),
        {
            "delimiter": ";",
            "decimal": ",",
            "skip_lines": 1,
            "time": "Zeit",
            "time_format": "%d.%m.%Y %H:%M:%S",
        },
    ),
    "a name twice": (table(names=("a", "a", "b")), {}),
    "the first time is missing": (
        table(times=clock("%Y-%m-%dT%H:%M:%S")).replace("c\n2026-11-02T08:00:00", "c\n"),
        {"time": "time"},
    ),
    "seconds since the start": (table(times=lambda i: f"{0.001 * i:.3f}"), {}),
}
USUAL = {"delimiter": ",", "decimal": ".", "header": True, "skip_lines": 0, "time": None}


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_file_is_found_as_it_is_and_the_agent_reads_every_row_of_it(name):
    text, expected = FILES[name]
    report = found(text)
    assert {word: getattr(report, word) for word in USUAL} == USUAL | {
        word: value for word, value in expected.items() if word in USUAL
    }
    assert report.time_format == expected.get("time_format")
    assert [column.values.tolist() for column in report.usable()] == np.vstack(
        [ROWS] * (2 if name == "header again" else 1)
    ).T.tolist()
    rows, skipped = readings(report, text)
    first = 1 if name == "the first time is missing" else 0
    assert skipped == first
    assert np.array([row.values for row in rows])[: len(ROWS)].tolist() == ROWS[first:].tolist()
    if report.time is not None and name != "milliseconds":
        steps = np.diff([row.at for row in rows])
        assert set(steps.tolist()) <= {1.0, 12_000.0, 86400.0}


def test_a_single_column_with_decimal_commas_is_not_two():
    report = found("\n".join(["flow", *map(comma, ROWS[:, 0])]))
    assert (report.decimal, report.header) == (",", True)
    assert report.columns[0].values.tolist() == ROWS[:, 0].tolist()


@pytest.mark.parametrize("pattern", ["%d.%m.%Y;%H:%M:%S", "%d.%m.%Y;%H.%M.%S"])
def test_a_date_and_a_time_of_day_tell_the_delimiter_as_numbers_do(pattern):
    lines = [f"{clock(pattern)(i)};{comma(each)}" for i, each in enumerate(ROWS[:, 0])]
    report = found("\n".join(["Datum;Zeit;Wert", *lines]))
    assert (report.delimiter, report.decimal) == (";", ",")
    assert report.time == ("Datum", "Zeit")
    assert report.columns[2].values.tolist() == ROWS[:, 0].tolist()


def test_rate_gaps_and_steps_back_in_time():
    def times(i):
        return str(1_794_000_000 + 0.02 * i + (10.0 if i >= 30 else 0.0) - (5.0 if i == 50 else 0))

    report = found(table(times=times).replace("1794000010.98", "1794000005.98"))
    assert (report.rate_hz, report.gaps) == (50.0, 2)
    assert report.backward == 1


@pytest.mark.parametrize(
    ("name", "times", "rate_hz"),
    [
        ("Time (ms)", lambda i: str(10 * i), 100.0),
        ("time_min", lambda i: f"{i / 60.0:.6f}", 1.0),
        ("time", lambda i: f"{46_343.0 + i / 8640.0:.9f}", 0.1),  # as spreadsheets write dates
        ("time", clock("%H:%M:%S", 1800.0), 1.0 / 1800.0),  # over midnight
        ("Time", clock("%I:%M:%S %p", 1800.0), 1.0 / 1800.0),
    ],
)
def test_the_rate_is_found_from_times_without_a_date(name, times, rate_hz):
    report = found(table(times=times, name=name))
    assert report.rate_hz == pytest.approx(rate_hz, rel=1e-3)
    assert (report.time, report.time_format, report.backward) == (None, None, 0)


@pytest.mark.parametrize(
    ("times", "name"),
    [
        ("%Y-%m-%dT%H:%M:%S,%d.%m.%Y,%H:%M:%S", "stamp,day,clock"),
        ("%H:%M:%S,%Y-%m-%dT%H:%M:%S", "clock,stamp"),
    ],
)
def test_a_column_with_date_and_time_is_taken_alone(times, name):
    assert found(table(times=clock(times), name=name)).time == "stamp"


def test_one_reading_to_a_row_with_its_name_is_refused_unless_it_is_asked_for():
    lines = ["time,tag,value"]
    lines += [f"{1_794_000_000 + i},{'flow' if j else 'heat'},{x}" for i, row in enumerate(ROWS)
              for j, x in enumerate(row[:2])]  # fmt: skip
    report = found("\n".join(lines))
    with pytest.raises(SampleError, match=r"in 'tag' \(heat, flow\), expected a column for each"):
        choose_columns(report, [])
    assert [column.name for column in choose_columns(report, ["value"])] == ["value"]


def test_columns_that_cannot_be_watched_are_named():
    lines = ["n,a,const,copy,state,empty,rare"]
    for i, (a, b, _) in enumerate(ROWS):
        lines.append(f"{i},{a},5,{a},{'ok' if i % 2 else 'run'},,{b if i % 5 == 0 else ''}")
    report = found("\n".join(lines))
    kinds = {column.name: (column.kind, column.problem) for column in report.columns}
    assert kinds == {
        "n": ("number", "counts rows"),
        "a": ("number", ""),
        "const": ("number", "constant"),
        "copy": ("number", "same as a"),
        "state": ("text", ""),
        "empty": ("empty", ""),
        "rare": ("number", "mostly empty"),
    }
    assert [column.name for column in report.usable()] == ["a"]


def test_rows_that_do_not_fit_are_counted_and_cells_without_a_number_are_missing():
    text = table().replace("\n", "\n1,2\n", 5).replace(point(ROWS[7, 1]), "n/a")
    report = found(text)
    assert report.skipped == 4  # the first one is above the data
    assert [column.missing for column in report.columns] == [0, 1, 0]
    assert len(report.readings(report.usable())) == report.rows - 1


def test_json_lines():
    lines = [
        json.dumps({"t": 1_794_000_000 + i, "a": a, "s": "on"}) for i, (a, _, _) in enumerate(ROWS)
    ]
    report = found("\n".join(["{", *lines]))
    assert (report.format, report.time, report.skipped, report.rate_hz) == ("jsonl", "t", 1, 1.0)
    assert [column.name for column in report.usable()] == ["a"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "found no line, expected a table of numbers"),
        (table().encode("utf-16"), "iconv -f UTF-16 -t UTF-8"),
        (b"a,b\n\x81\x8d,1\n", "line 2 that are not UTF-8"),
        (b"hello\nworld\n", "found no row with a number"),
        (b"[\n[\n", "found no JSON object or array"),
    ],
)
def test_what_is_no_table_is_refused_with_what_to_do(data, words):
    with pytest.raises(SampleError, match=words.replace("[", r"\[")):
        inspect_bytes(data)


def test_only_the_beginning_of_a_large_file_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("edgemerge.agent.proposal.MAX_BYTES", 300)
    (tmp_path / "large.csv").write_text(table(names=("ä", "b", "c")))
    report = inspect_file(tmp_path / "large.csv")
    assert not report.whole
    assert 10 < report.rows < 30


@pytest.mark.parametrize("header", ["a,b\n", ""])
def test_of_a_file_with_many_rows_the_first_are_looked_at_and_none_is_called_unfit(header):
    lines = [f"{i % 7},{i % 5}\n" for i in range(MAX_ROWS + 200)]
    for more, whole in ((200, False), (1, False), (0, True)):
        report = found(header + "".join(lines[: MAX_ROWS + more]))
        assert (report.rows, report.skipped, report.whole) == (MAX_ROWS, 0, whole)


def proposed(rows, times=None, **settings):
    """Propose a configuration for rows of two columns; return it."""
    lines = [f"{a:.3f},{b:.3f}" for a, b in rows]
    head = "a,b" if times is None else "time,a,b"
    lines = lines if times is None else [",".join(p) for p in zip(times, lines, strict=True)]
    report = found("\n".join([head, *lines]))
    return propose(None, report, choose_columns(report, []), device="pump", **settings)


def test_a_beginning_unlike_the_rest_widens_the_range_only_if_the_agent_would_stop_at_it():
    rows = np.random.default_rng(0).normal(size=(40_000, 2))
    for starting, widens in ((400, False), (600, True)):
        rows[:starting, 0] = np.linspace(500.0, 50.0, starting)
        made = proposed(rows)
        assert not begins_outside(made.projection, rows)
        assert (made.projection.high[0] > 400.0) == widens
        assert any("cut those rows off" in words for words in made.remarks) == widens


def test_with_a_time_zone_nothing_is_said_of_utc_and_of_daylight_saving():
    rows = np.random.default_rng(0).normal(size=(300, 2))
    for start in (datetime(2026, 3, 28, 23, 0), datetime(2026, 10, 24, 22, 0)):  # in UTC
        minutes = (start.replace(tzinfo=UTC) + timedelta(minutes=i) for i in range(300))
        berlin = [
            f"{each.astimezone(ZoneInfo('Europe/Berlin')):%Y-%m-%d %H:%M}" for each in minutes
        ]
        (clocks, zone) = proposed(rows, berlin).remarks
        assert clocks in ("1 gap in time", "1 row is older than the row before")
        assert zone.endswith("are read as UTC: give --time-zone if they are not")
        assert proposed(rows, berlin, time_zone="Europe/Berlin").remarks == ()
