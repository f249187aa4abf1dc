"""Wrong data, one case after the other: words, exit code, what is lost, what the status shows.

The table in `docs/how-to/when-data-goes-wrong.md` says the same to users.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from time import monotonic

import numpy as np
import pytest

from edgemerge.agent.config import read_config
from edgemerge.agent.supervisor import run
from tests.agent.agents import Listener, Running
from tests.waiting import DEADLINE_S, until

pytestmark = pytest.mark.slow

NAMES = ("flow", "heat", "noise")
HEADER = "t,flow,heat,noise"
START = datetime(2026, 3, 1, tzinfo=UTC)
COUNT = 200
GIB = 2**30


def values(count=COUNT, seed=0):
    return np.random.default_rng(seed).normal(0.0, 1.0, (count, 3)).round(3)


def table(rows=None, *, header=HEADER, start=START, step_s=1.0, end="\n"):
    """The text of a CSV file: a time and three values in each row."""
    lines = [header] if header else []
    for i, row in enumerate(values() if rows is None else rows):
        at = (start + timedelta(seconds=i * step_s)).isoformat()
        lines.append(",".join([at, *map(str, row)]))
    return "".join(line + end for line in lines)


def spoilt(row, at=range(50, 100)):
    """A table in which `row(time, *values)` makes other lines of some rows."""
    lines = table().splitlines()
    for i in at:
        lines[i + 1] = row(*lines[i + 1].split(","))
    return "\n".join(lines) + "\n"


def configured(folder, *settings, path="data.csv"):
    file = folder / "pump-1.toml"
    file.write_text(
        f"""
        device = "pump-1"
        state = "state"
        [projection]
        names = {list(NAMES)}
        n_hidden = 4
        low = -5.0
        high = 5.0
        [source]
        kind = "csv"
        path = "{path}"
        columns = {list(NAMES)}
        time = "t"
        [learner]
        kind = "detector"
        [sync]
        every_s = 0
        """
    )
    return read_config(file, environment={}, overrides=settings)


@dataclass
class Case:
    """A wrong thing, and what it gets."""

    name: str
    data: str | bytes
    settings: tuple[str, ...] = ()
    code: int = 0
    read: int = COUNT
    skipped: int = 0
    problems: list[str] = field(default_factory=list)
    words: str = ""


def two_formats(*cells):
    at = datetime.fromisoformat(cells[0]).strftime("%d.%m.%Y %H:%M:%S")
    return ",".join([at, *cells[1:]])


def local_times(start, zone_shift):
    """A table in local time without a zone, one row a minute; its clock is set at 01:00 UTC."""
    lines = [HEADER]
    for i, row in enumerate(values()):
        at = datetime.fromisoformat(start) + timedelta(minutes=i)
        at += zone_shift if at.hour >= 1 else timedelta(0)
        shown = (at + timedelta(hours=1 if zone_shift > timedelta(0) else 2)).strftime(
            "%Y-%m-%d %H:%M"
        )
        lines.append(",".join([shown, *map(str, row)]))
    return "\n".join(lines) + "\n"


SPRING = local_times("2026-03-29 00:00", timedelta(hours=1))
AUTUMN = local_times("2026-10-25 00:00", timedelta(hours=-1))
BERLIN = "source.time_zone=Europe/Berlin"
UNREADABLE = ["unreadable rows"]
FEW = range(50, 100, 5)
SEMICOLONS = table().replace(",", ";")

CASES = [
    Case("nothing", table()),
    Case(
        "typo in a column", table(), ('source.columns=["flwo", "heat", "noise"]',), 2, 0,
        words='found no column "flwo" (source.columns) in the header t, flow, heat, noise: '
        'did you mean "flow"?',
    ),
    Case(
        "semicolons", SEMICOLONS, code=2, read=0,
        words="the line has one field only, so the delimiter is not ',': "
        'set source.delimiter = ";"',
    ),
    Case(
        "semicolons, columns by number", SEMICOLONS,
        ('source.columns=["2", "3", "4"]', "source.time=0", "source.header=true"), 5, 0, COUNT,
        UNREADABLE, 'set source.delimiter = ";"',
    ),
    Case(
        "decimal commas", SEMICOLONS.replace(".", ","), ("source.delimiter=;",), 5, 0, COUNT,
        UNREADABLE, 'is no finite number (column flow): set source.decimal = ","',
    ),
    Case(
        "header missing", table(header=None), code=2, read=0,
        words="the file has no header: set source.header = false, and columns by number",
    ),
    Case(
        "header twice in the middle",
        table() + table(values(seed=1), start=START + timedelta(seconds=COUNT)), read=2 * COUNT,
    ),
    Case(
        "timestamp as text", spoilt(lambda _, *row: ",".join(["Monday noon", *row]), range(COUNT)),
        code=5, read=0, skipped=COUNT, problems=UNREADABLE, words="'Monday noon' is no time",
    ),
    Case(
        "a time that is not named", table(),
        ('source.columns=["t", "flow", "heat"]', "source.time=flow"), 5, 0, COUNT, UNREADABLE,
        "it is a time, so set source.time to that column",
    ),
    Case(
        "two time formats", spoilt(two_formats), read=150, skipped=50,
        problems=UNREADABLE, words="'01.03.2026 00:00:50' is no time",
    ),
    Case(
        "an empty cell now and then",  # the reader is ahead of what was judged
        spoilt(lambda t, _f, h, n: f"{t},,{h},{n}", range(30, 200, 30)), read=194, skipped=6,
        words="the cell is empty; fill it, or leave a column out that often is",
    ),
    Case(
        "empty cells", spoilt(lambda t, _f, h, n: f"{t},,{h},{n}"), read=150, skipped=50,
        problems=UNREADABLE, words="(column flow): the cell is empty",
    ),
    Case(
        "a few empty cells", spoilt(lambda t, _f, h, n: f"{t},,{h},{n}", [70]), read=199, skipped=1,
        words="'' is no finite number (column flow): the cell is empty",
    ),
    Case(
        "NaN", spoilt(lambda t, f, h, _n: f"{t},{f},{h},NaN", FEW), read=190, skipped=10,
        problems=UNREADABLE, words="'NaN' is no finite number (column noise)",
    ),
    Case(
        "text in a number", spoilt(lambda t, f, _h, n: f"{t},{f},error,{n}", FEW), read=190,
        skipped=10, problems=UNREADABLE, words="'error' is no finite number (column heat)",
    ),
    Case(
        "one column more", spoilt(lambda *row: ",".join([*row, "7"]), FEW), read=190, skipped=10,
        problems=UNREADABLE, words="5 fields instead of 4",
    ),
    Case(
        "one column less", spoilt(lambda *row: ",".join(row[:-1]), FEW), read=190, skipped=10,
        problems=UNREADABLE, words="3 fields instead of 4",
    ),
    Case(
        "UTF-16", table().encode("utf-16"), code=2, read=0,
        words="found UTF-16, expected UTF-8: export it as CSV UTF-8, or convert it, as with `iconv",
    ),
    Case(
        "UTF-16 without a mark", table().encode("utf-16-le"), code=2, read=0,
        words="found UTF-16",
    ),
    Case("BOM", b"\xef\xbb\xbf" + table().encode()),
    Case("CRLF", table(end="\r\n")),
    Case("units below the header", table(header=f"{HEADER}\n,m³/h,[°C],dB")),
    Case(
        "half the sampling rate", table(step_s=0.02), ("quality.rate_hz=100",),
        problems=["wrong rate"], words="there are 50 rows a second, expected 100 (rate_hz)",
    ),
    Case(
        "clock set back",
        table(values()[:170])
        + table(values()[170:], header=None, start=START - timedelta(hours=1)),
        problems=["gap"], words="the times of the rows go back by 1 h, to 2026-02-28T23:00:00",
    ),
    Case("daylight saving begins", SPRING, (BERLIN,)),
    Case("daylight saving ends", AUTUMN, (BERLIN,)),
    Case(
        "stuck sensor", spoilt(lambda t, _f, h, n: f"{t},1.5,{h},{n}", range(50, 200)),
        ("quality.stuck_rows=100",), problems=["stuck sensor"],
        words="flow has not changed for a long time (100 rows at 1.5), and did before. Check",
    ),
    Case(
        "a range ten times too small", table(),
        ("projection.low=-0.1", "projection.high=0.1"), 5, 200,
        words="lie far outside the projection's range: found flow from",
    ),
    Case(
        "other units later on",
        spoilt(lambda t, f, h, n: f"{t},{f},{h},{float(n) * 1000}", range(150, 200)),
        problems=["outside range"], words="expected -5 to 5. Check sensor and units",
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_wrong_data_get_words_a_code_and_a_state(case, tmp_path, caplog):
    data = case.data if isinstance(case.data, bytes) else case.data.encode()
    (tmp_path / "data.csv").write_bytes(data)
    config, told = configured(tmp_path, *case.settings), Listener()
    code = run(config, stop=Event(), sinks=[told])
    logged = "\n".join(
        f"{each.getMessage()} {getattr(each, 'values', '')}" for each in caplog.records
    )
    assert (code, len(told.verdicts)) == (case.code, case.read), logged
    assert case.words in logged.replace("\\'", "'")
    began = [
        each.values["problem"]
        for each in caplog.records
        if each.getMessage() == "a problem with the data began"
    ]
    assert began == case.problems or case.name.startswith("a range")
    if told.statuses:
        status = told.statuses[-1]
        assert status["skipped"] == case.skipped
        assert [each["name"] for each in status["problems"]] == case.problems
    times = [verdict.at for verdict in told.verdicts]
    if case.name.startswith("daylight"):
        assert np.diff(times).tolist() == [60.0] * (COUNT - 1)


def following(folder, *settings, rows=100):
    """The configuration of an agent that follows a file with some rows."""
    (folder / "data.csv").write_text(table(values(rows)))
    fast = ("source.kind=tail", "save.every_s=0.01", "quality.no_data_s=0.3")
    return configured(folder, *fast, *settings)


def more(rows, start, header=None):
    return table(rows, header=header, start=START + timedelta(seconds=start))


def problems(agent):
    status = agent.listener.statuses[-1] if agent.listener.statuses else {"problems": []}
    return {each["name"]: each["words"] for each in status["problems"]}


def rotate(path):
    path.rename(path.with_name("data.csv.1"))
    path.write_text(more(values(50, 1), 100, HEADER))


def truncate(path):
    path.write_text(more(values(50, 1), 100, HEADER))


def delete(path):
    path.unlink()
    path.write_text(more(values(50, 1), 100, HEADER))


def replace(path):
    new = path.with_name("new.csv")
    new.write_text(more(values(50, 1), 100, HEADER))
    new.replace(path)


def replace_without_header(path):
    new = path.with_name("new.csv")
    new.write_text(more(values(50, 1), 100))
    new.replace(path)


@pytest.mark.parametrize("change", [rotate, truncate, delete, replace, replace_without_header])
def test_a_file_that_is_exchanged_loses_no_row(tmp_path, change):
    with Running(following(tmp_path)) as agent:
        until(lambda: len(agent.listener.verdicts) == 100)
        change(tmp_path / "data.csv")
        until(lambda: len(agent.listener.verdicts) == 150)
    assert agent.code == 0
    times = [verdict.at for verdict in agent.listener.verdicts]
    assert np.diff(times).tolist() == [1.0] * 149
    assert agent.listener.statuses[-1]["skipped"] == 0


def test_a_file_that_is_gone_is_no_data_until_it_is_there_again(tmp_path, caplog):
    caplog.set_level("INFO")
    path, count = tmp_path / "data.csv", 100

    def grows():
        nonlocal count
        count += 1
        with path.open("a") as file:
            file.write(more(values(1), count))

    with Running(following(tmp_path, "quality.no_data_s=2")) as agent:
        until(lambda: len(agent.listener.verdicts) == 100)
        path.unlink()
        until(lambda: "no data" in problems(agent))
        assert f"{path} does not exist" in problems(agent)["no data"]
        path.write_text(HEADER + "\n")
        until(lambda: grows() or "no data" not in problems(agent))
    assert agent.code == 0
    assert "a problem with the data has ended" in caplog.text


def test_a_file_that_was_never_there_is_no_data(tmp_path):
    with Running(following(tmp_path, "source.path=other.csv")) as agent:
        until(lambda: "no data" in problems(agent))
        words = problems(agent)["no data"]
    assert "no usable row since the start, for" in words
    assert "other.csv does not exist. Check what writes the data, and [source]." in words


def test_a_file_that_follows_with_other_columns_is_named_and_detection_goes_on(tmp_path):
    with Running(following(tmp_path)) as agent:
        until(lambda: len(agent.listener.verdicts) == 100)
        new = tmp_path / "new.csv"
        new.write_text(more(values(50, 1), 100, "t,flows,heat,noise"))
        new.replace(tmp_path / "data.csv")
        until(lambda: "unreadable rows" in problems(agent))
        assert "there is no column 'flow'" in problems(agent)["unreadable rows"]
        new.write_text(more(values(50, 1), 150, HEADER))
        new.replace(tmp_path / "data.csv")
        until(lambda: len(agent.listener.verdicts) == 150)
    assert agent.code == 0
    assert agent.listener.statuses[-1]["skipped"] == 50


@pytest.mark.parametrize("kind", ["tail", "csv"])
def test_a_pipe_without_a_writer_is_no_data_until_one_writes(tmp_path, kind):
    config = following(tmp_path, f"source.kind={kind}", "source.path=pipe")
    os.mkfifo(tmp_path / "pipe")
    with Running(config) as agent:
        until(lambda: "no data" in problems(agent))
        assert f"no program writes to the pipe {tmp_path / 'pipe'}" in problems(agent)["no data"]
        with (tmp_path / "pipe").open("w") as pipe:
            pipe.write(table())
        until(lambda: len(agent.listener.verdicts) == COUNT)
        if kind == "tail":  # the next writer begins with a header of its own
            with (tmp_path / "pipe").open("w") as pipe:
                pipe.write(more(values(seed=2), COUNT, HEADER))
            until(lambda: len(agent.listener.verdicts) == 2 * COUNT)
    assert agent.code == 0
    assert agent.listener.statuses[-1]["skipped"] == 0


def test_an_agent_that_waits_for_a_pipe_stops_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with Running(following(tmp_path, "source.path=pipe")) as agent:
        until(lambda: "no data" in problems(agent))
        begun = monotonic()
    assert monotonic() - begun < 5.0
    assert agent.code == 0


def test_an_agent_that_could_read_no_row_says_so_when_it_is_stopped(tmp_path, caplog):
    (tmp_path / "data.csv").write_text(table())
    settings = ("source.kind=tail", "source.time_format=%d.%m.%Y")
    with Running(configured(tmp_path, *settings)) as agent:
        until(lambda: "unreadable rows" in problems(agent))
    assert agent.code == 5
    assert "no row could be read" in caplog.text


def test_skipped_rows_are_counted_once_over_restarts_and_by_show(tmp_path):
    from click.testing import CliRunner

    from edgemerge.cli import main

    bad = "".join("2026-03-01T00:00:00,x,1,2\n" for _ in range(7))
    (tmp_path / "data.csv").write_text(table() + bad)
    config = configured(tmp_path)
    for _ in range(3):
        told = Listener()
        run(config, stop=Event(), sinks=[told])
        assert told.statuses[-1]["skipped"] == 7
    with (tmp_path / "data.csv").open("a") as file:
        file.write(more(values(1), COUNT) + bad)
    assert run(config, stop=Event(), sinks=[told]) == 0
    assert told.statuses[-1]["skipped"] == 14
    shown = CliRunner().invoke(main, ["show", str(config.state), "--json"])
    assert '"skipped": 14' in shown.stdout


def test_rows_that_could_not_be_read_are_read_when_the_settings_are_right(tmp_path):
    text = table().replace(",", ";").replace(".", ",")
    (tmp_path / "data.csv").write_text(text)
    assert run(configured(tmp_path, "source.delimiter=;"), stop=Event()) == 5
    told = Listener()
    right = configured(tmp_path, "source.delimiter=;", "source.decimal=,")
    assert run(right, stop=Event(), sinks=[told]) == 0
    assert len(told.verdicts) == COUNT
    assert told.statuses[-1]["skipped"] == 0


@pytest.mark.parametrize("start", ["beginning", "end"])
def test_a_large_file_starts_at_once_in_bounded_memory(tmp_path, start):
    path, verdicts, count = tmp_path / "data.csv", tmp_path / "verdicts.jsonl", 100
    path.write_text(table(values(100)))
    with path.open("ab") as file:
        file.truncate(2 * GIB)  # sparse: it takes no room
        file.seek(0, os.SEEK_END)
        file.write(b"\n")

    def grows():
        nonlocal count
        count += 1
        with path.open("a") as file:
            file.write(more(values(1), count))

    def found():
        return [json.loads(line) for line in verdicts.read_text().splitlines()]

    configured(tmp_path)
    settings = ["source.kind=tail", f"source.start={start}", "sinks.0.path=verdicts.jsonl"]
    flags = [flag for each in settings for flag in ("--set", each)]
    command = [sys.executable, "-m", "edgemerge", "agent", "pump-1.toml", *flags]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE) as agent:
        try:
            until(lambda: grows() or (verdicts.exists() and len(found()) >= 20))
            status = Path(f"/proc/{agent.pid}/status").read_text()
        finally:
            agent.terminate()
            agent.communicate(timeout=DEADLINE_S)
    assert agent.returncode == 0
    first = found()[0]["at"] - START.timestamp()
    assert first == 0.0 if start == "beginning" else first > 100.0
    (peak,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
    assert int(peak.split()[1]) < 300_000  # kB, of which Python, NumPy and SciPy take most
