"""`edgemerge init`: from a file to a configuration that an agent runs with."""

import json
import stat
import sys
import tomllib
from threading import Event

import numpy as np
import pytest

from edgemerge import load
from edgemerge.agent.config import read_config
from edgemerge.agent.proposal import propose
from edgemerge.agent.supervisor import run
from edgemerge.cli.group import ExitCode
from tests.cli.calls import call, failure, program

pytestmark = pytest.mark.slow


def pump(path, rows=1500, fault=1200, rate_hz=1.0, decimal=","):
    """Write a semicolon file with German numbers: flow and current depend on the load."""
    rng = np.random.default_rng(0)
    load = 0.5 + 0.3 * np.sin(np.arange(rows) / 40.0)
    values = np.stack([20.0 + 15.0 * load, 3.0 + 2.0 * load, 5.0 + 6.0 * load], axis=1)
    values += rng.normal(0.0, [0.3, 0.05, 0.1], values.shape)
    values[fault:, 2] += 3.0
    lines = ["Zeit;Durchfluss;Druck;Strom;Status"]
    for i, row in enumerate(values):
        cells = [f"{value:.3f}".replace(".", decimal) for value in row]
        lines.append(
            ";".join([f"{1_794_000_000 + i / rate_hz:.4f}".replace(".", decimal), *cells, "ok"])
        )
    path.write_text("\n".join(lines) + "\n")
    return path


def inits(folder, monkeypatch, *options):
    monkeypatch.chdir(folder)
    result = call("init", *options, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_from_a_file_to_a_first_alarm_without_an_edit(tmp_path, monkeypatch):
    found = inits(tmp_path, monkeypatch, pump(tmp_path / "pump.csv"))
    assert (found["features"], found["n_inputs"], found["n_hidden"]) == ("raw", 3, 32)
    assert found["config"] == "pump.toml"
    config = read_config(tmp_path / "pump.toml", environment={})
    assert run(config, stop=Event()) == 0
    results = [json.loads(line) for line in (tmp_path / "pump.jsonl").read_text().splitlines()]
    assert len(results) == 1500
    assert results[0]["at"] == 1_794_000_000
    assert not any(result["alarm"] for result in results[:1200])
    assert sum(result["alarm"] for result in results[1200:]) >= 295
    assert results[-1]["why"][0] == "Strom"


def test_date_and_time_in_two_columns_are_the_time_of_a_row(tmp_path, monkeypatch):
    path = pump(tmp_path / "pump.csv", rows=1500)
    lines = [line.split(";", 1)[1] for line in path.read_text().splitlines()]
    clocks = [
        f"03.01.2026;{8 + i // 3600:02d}:{i // 60 % 60:02d}:{i % 60:02d}" for i in range(1500)
    ]
    path.write_text("\n".join(map(";".join, zip(["Datum;Uhrzeit", *clocks], lines, strict=True))))
    found = inits(tmp_path, monkeypatch, path)
    assert (found["time"], found["rate_hz"]) == (["Datum", "Uhrzeit"], 1.0)
    assert not any("Datum" in words or "no column has date" in words for words in found["remarks"])
    config = read_config(tmp_path / "pump.toml", environment={})
    assert run(config, stop=Event()) == 0
    results = [json.loads(line) for line in (tmp_path / "pump.jsonl").read_text().splitlines()]
    assert [results[i]["at"] for i in (0, 1499)] == [1_767_427_200, 1_767_428_699]
    said = call("doctor", "pump.toml").output
    assert "date and time are in Datum and Uhrzeit" in said
    text = (
        (tmp_path / "pump.toml")
        .read_text()
        .replace('time = ["Datum", "Uhrzeit"]', 'time = "Datum"')
    )
    (tmp_path / "pump.toml").write_text(text)
    said = call("doctor", "pump.toml").output
    assert 'set source.time = ["Datum", "Uhrzeit"]' in said


def test_what_is_printed_is_a_table_a_plot_and_the_next_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = call("init", pump(tmp_path / "pump.csv", rows=300))
    assert result.exit_code == 0, result.output
    assert "CSV with semicolons, decimal commas, 300 rows, one every 1 s" in result.stdout
    assert "Durchfluss" in result.stdout
    assert "█" in result.stdout
    assert result.stdout.endswith("next: edgemerge agent pump.toml\n")
    assert "300 samples" not in result.stderr


def test_names_that_come_twice_are_two_inputs_and_units_are_no_names(tmp_path, monkeypatch):
    path = pump(tmp_path / "pump.csv")
    lines = path.read_text().splitlines()
    lines[0] = "Zeit;Sensor;Druck;Sensor;Status\ns;m³/h;[bar];A;"
    path.write_text("\n".join(lines))
    found = inits(tmp_path, monkeypatch, path)
    assert (found["n_inputs"], found["skip_lines"]) == (3, 0)
    plain = tomllib.loads((tmp_path / "pump.toml").read_text())
    assert plain["source"]["columns"] == ["Sensor", "Druck", "Sensor (4)"]
    assert plain["source"]["units"] == ["m³/h", "bar", "A"]
    assert run(read_config(tmp_path / "pump.toml", environment={}), stop=Event()) == 0
    results = [json.loads(line) for line in (tmp_path / "pump.jsonl").read_text().splitlines()]
    assert len(results) == 1500
    assert results[-1]["why"][0] == "Sensor (4)"


def test_a_file_of_a_windows_program_is_read_in_its_encoding(tmp_path, monkeypatch):
    path = pump(tmp_path / "pump.csv")
    path.write_bytes(path.read_text().replace("Strom", "Öl °C").encode("cp1252"))
    found = inits(tmp_path, monkeypatch, path, "--follow")
    assert found["encoding"] == "cp1252"
    config = read_config(tmp_path / "pump.toml", environment={}, overrides=["source.kind=csv"])
    assert run(config, stop=Event()) == 0
    results = [json.loads(line) for line in (tmp_path / "pump.jsonl").read_text().splitlines()]
    assert len(results) == 1500
    assert results[-1]["why"][0] == "Öl °C"
    result = call("doctor", tmp_path / "pump.toml", EDGEMERGE_SOURCE__ENCODING="utf-8")
    assert result.exit_code == ExitCode.FAILED
    assert 'set source.encoding = "cp1252"' in result.stdout
    assert call("doctor", tmp_path / "pump.toml").exit_code == 0


def test_commissioning_sets_the_limit_of_a_proposal(tmp_path, monkeypatch):
    inits(tmp_path, monkeypatch, pump(tmp_path / "pump.csv"))
    config = read_config(tmp_path / "pump.toml", environment={})
    assert config.monitor.limit is None
    assert config.monitor.false_alarms is None


def test_a_file_whose_newest_row_comes_first_is_told(tmp_path, monkeypatch):
    path = pump(tmp_path / "pump.csv")
    head, *rows = path.read_text().splitlines()
    path.write_text("\n".join([head, *reversed(rows)]))
    remarks = inits(tmp_path, monkeypatch, path)["remarks"]
    assert any("the newest row comes first" in each for each in remarks)


@pytest.mark.parametrize(
    ("rate_hz", "rows", "kind"),
    [(1.0, 3000, "raw"), (10.0, 3000, "window"), (200.0, 20_000, "spectrum"), (200.0, 900, "raw")],
)
def test_features_follow_the_rate_and_the_number_of_readings(
    tmp_path, monkeypatch, rate_hz, rows, kind
):
    found = inits(tmp_path, monkeypatch, pump(tmp_path / "p.csv", rows, rows, rate_hz))
    assert found["features"] == kind
    assert found["samples"] >= min(rows, 200)
    assert read_config(tmp_path / "p.toml", environment={}).features.kind == kind


def test_options_answer_what_would_be_chosen(tmp_path, monkeypatch):
    found = inits(
        tmp_path, monkeypatch, pump(tmp_path / "pump.csv"), "--columns", "Druck,4", "--device",
        "pump-3", "--features", "window", "--n-hidden", 8, "--seed", 5, "--follow", "--time-zone",
        "Europe/Berlin", "-o", "other.toml",
    )  # fmt: skip
    assert found["config"] == "other.toml"
    plain = tomllib.loads((tmp_path / "other.toml").read_text())
    assert plain["source"]["columns"] == ["Druck", "Strom"]
    assert plain["source"]["kind"] == "tail"
    config = read_config(tmp_path / "other.toml", environment={})
    assert (config.device, config.source.time_zone) == ("pump-3", "Europe/Berlin")
    assert (config.projection.n_hidden, config.projection.seed) == (8, 5)
    assert list(config.projection.names or ())[:2] == ["Druck mean", "Druck std"]


@pytest.mark.long
def test_nothing_is_replaced_without_being_asked(tmp_path, monkeypatch):
    inits(tmp_path, monkeypatch, pump(tmp_path / "pump.csv"))
    before = (tmp_path / "pump.toml").read_text()
    (tmp_path / "pump.toml").write_text("mine")
    assert "add --yes to replace it" in failure(call("init", tmp_path / "pump.csv"), ExitCode.USAGE)
    assert (tmp_path / "pump.toml").read_text() == "mine"
    inits(tmp_path, monkeypatch, tmp_path / "pump.csv", "--yes")
    assert (tmp_path / "pump.toml").read_text() == before


def test_what_cannot_be_is_told_with_its_exit_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = pump(tmp_path / "pump.csv")
    assert "is not a file" in failure(call("init", "gone.csv"), ExitCode.NO_DATA)
    assert 'kind = "opcua" or "modbus"' in failure(call("init", "opc.tcp://plc:4840"))
    words = failure(call("init", path, "--columns", "Drück"), ExitCode.USAGE)
    assert "found no column 'Drück', expected some of Zeit, Durchfluss" in words
    words = failure(call("init", path, "--device", "pump 3"), ExitCode.USAGE)
    assert "found the device name 'pump 3', expected letters" in words
    assert words.rstrip().endswith("such as pump-3")
    (tmp_path / "text.csv").write_text("a;b\nx;y\n")
    assert "found no row with a number" in failure(call("init", "text.csv"), ExitCode.NO_DATA)


def test_a_wrong_column_ends_the_agent_at_the_start_with_the_header(tmp_path, monkeypatch, caplog):
    inits(tmp_path, monkeypatch, pump(tmp_path / "pump.csv"))
    changes = ["source.columns=Durchflus,Druck,Strom"]
    config = read_config(tmp_path / "pump.toml", environment={}, overrides=changes)
    assert run(config, stop=Event()) == ExitCode.USAGE
    words = str(caplog.records[-1].values["why"])
    assert 'found no column "Durchflus" (source.columns) in the header Zeit, Durchfluss' in words
    assert 'did you mean "Durchfluss"?' in words
    assert not (tmp_path / "pump.jsonl").read_text()


@pytest.mark.parametrize(
    ("change", "code"),
    [("source.delimiter=,", ExitCode.USAGE), ("source.decimal=.", ExitCode.NO_DATA)],
)
def test_a_file_of_which_nothing_can_be_read_is_no_success(
    tmp_path, monkeypatch, caplog, change, code
):
    inits(tmp_path, monkeypatch, pump(tmp_path / "pump.csv"))
    config = read_config(tmp_path / "pump.toml", environment={}, overrides=[change])
    assert run(config, stop=Event()) == code
    expected = "so the delimiter is not" if code == ExitCode.USAGE else "no row could be read"
    assert expected in f"{caplog.text} {caplog.records[-1].values}"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ([], "1,500 rows of 5 columns, 0 do not fit"),
        (["source.delimiter=,"], 'set source.delimiter = ";"'),
        (["source.decimal=."], 'set source.decimal = ","'),
        (["source.time=Zeiten"], "there is no column 'Zeiten' among Zeit, Durchfluss"),
    ],
)
def test_doctor_says_what_the_file_looks_like(tmp_path, monkeypatch, change, words):
    inits(tmp_path, monkeypatch, pump(tmp_path / "pump.csv"))
    for each in change:
        key, _, value = each.partition("=")
        monkeypatch.setenv(f"EDGEMERGE_{key.upper().replace('.', '__')}", value)
    result = call("doctor", "--config", "pump.toml")
    assert words in result.stdout
    assert ("fail" in result.stdout) == bool(change)


def test_doctor_says_that_times_as_iso_8601_need_no_format(tmp_path, monkeypatch):
    path = tmp_path / "pump.csv"
    rows = (f"2026-01-03T08:{i // 60:02d}:{i % 60:02d}Z,{i % 7}.5\n" for i in range(600))
    path.write_text("time,flow\n" + "".join(rows), encoding="utf-8")
    inits(tmp_path, monkeypatch, path)
    monkeypatch.setenv("EDGEMERGE_SOURCE__TIME_FORMAT", "%d.%m.%Y %H:%M:%S")
    result = call("doctor", "--config", "pump.toml")
    assert "leave source.time_format out: ISO 8601 and Unix seconds need none" in result.stdout


def test_a_proposal_has_ranges_of_its_own_for_each_feature(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    from edgemerge.agent.proposal import inspect_file

    path = pump(tmp_path / "pump.csv")
    report = inspect_file(path)
    shared = propose(path, report, report.usable(), device="pump").projection
    assert np.all(np.array(shared.low) < [26.0, 3.8, 7.5])
    assert np.all(np.array(shared.high) > [30.0, 4.3, 9.0])
    assert np.all(np.array(shared.high) < [40.0, 6.0, 16.0])


# ---------------------------------------------------------------- folders, Parquet, standard input


def hall(folder, names, *, hours=0.0, rows=700, fault=600):
    """Write a file for each name; each begins `hours` after the one before."""
    folder.mkdir()
    for i, name in enumerate(names):
        rng = np.random.default_rng(i)
        load = 0.5 + 0.3 * np.sin(np.arange(rows) / 40.0 + i)
        values = np.stack([20.0 + 15.0 * load, 5.0 + 6.0 * load], axis=1)
        values += rng.normal(0.0, [0.3, 0.1], values.shape)
        values[fault:, 1] += 3.0
        start = 1_794_000_000 + 3600.0 * hours * i
        lines = [f"{start + k:.0f},{a:.3f},{b:.3f},ok" for k, (a, b) in enumerate(values)]
        (folder / f"{name}.csv").write_text("time,flow,current,note\n" + "\n".join(lines) + "\n")
    return folder


def results_of(path):
    return [json.loads(line)["alarm"] for line in path.read_text().splitlines()]


@pytest.mark.long
def test_each_file_of_a_folder_is_a_device_and_one_command_runs_them_all(tmp_path, monkeypatch):
    hall(tmp_path / "hall", ["pump 1", "pump 2", "fan"])
    (tmp_path / "hall" / "notes.txt").write_text("not a table\n")
    found = inits(tmp_path, monkeypatch, tmp_path / "hall")
    assert found["devices"] == ["fan", "pump-1", "pump-2"]
    assert list(found["left_out"]) == ["notes.txt"]
    assert found["next"] == "edgemerge agent hall.toml"
    assert call("agent", "hall.toml").exit_code == 0
    for name in found["devices"]:
        alarms = results_of(tmp_path / f"{name}.jsonl")
        assert len(alarms) == 700
        assert sum(alarms[600:]) >= 90
        assert sum(alarms[:600]) <= 30  # a short file, half of it for commissioning


@pytest.mark.long
def test_files_one_after_the_other_are_of_one_device_and_are_read_from_a_pipe(
    tmp_path, monkeypatch
):
    hall(tmp_path / "log", ["log-2026-11-01", "log-2026-11-02"], hours=24.0, fault=700)
    found = inits(tmp_path, monkeypatch, tmp_path / "log")
    assert found["devices"] == []
    assert found["samples"] == 1400
    assert found["next"] == f"cat {tmp_path / 'log'}/*.csv | edgemerge agent log.toml"
    config = read_config(tmp_path / "log.toml", environment={})
    assert (config.device, config.source.kind, config.source.format) == ("log", "stdin", "csv")
    whole = "".join(path.read_text() for path in sorted((tmp_path / "log").iterdir()))
    done = program("agent", "log.toml", given=whole)
    assert done.returncode == 0, done.stderr
    assert len(results_of(tmp_path / "log.jsonl")) == 1400
    found = inits(tmp_path, monkeypatch, tmp_path / "log", "--yes", "--devices", "each")
    assert found["devices"] == ["log-2026-11-01", "log-2026-11-02"]
    found = inits(tmp_path, monkeypatch, tmp_path / "log", "--yes", "--follow")
    config = read_config(tmp_path / "log.toml", environment={})
    assert config.source.kind == "tail"
    assert config.source.path.name.startswith("log-2026-11-0")


def test_files_with_other_columns_are_left_out_and_told(tmp_path, monkeypatch):
    hall(tmp_path / "hall", ["a", "b"])
    (tmp_path / "hall" / "c.csv").write_text("x,y\n1,2\n3,5\n")
    monkeypatch.chdir(tmp_path)
    result = call("init", "hall")
    assert result.exit_code == 0
    assert "note: c.csv is left out: it has other columns than most" in result.stderr
    assert "hall: 2 files, CSV with commas; the newest has 700 rows" in result.stdout
    assert "devices    2: a, b" in result.stdout
    (tmp_path / "empty").mkdir()
    assert "found no table in empty" in failure(call("init", "empty"), ExitCode.NO_DATA)


@pytest.mark.long
def test_rows_of_several_devices_in_one_file_become_devices(tmp_path, monkeypatch):
    hall(tmp_path / "hall", ["Pump 1", "Pump 2"])
    lines = ["time,machine,flow,current"]
    rows = [
        (tmp_path / "hall" / f"{name}.csv").read_text().splitlines()[1:]
        for name in ("Pump 1", "Pump 2")
    ]
    for one, two in zip(*rows, strict=True):
        for name, line in (("Pump 1", one), ("Pump 2", two)):
            time, flow, current, _ = line.split(",")
            lines.append(f"{time},{name},{flow},{current}")
    (tmp_path / "all.csv").write_text("\n".join(lines) + "\n")
    found = inits(tmp_path, monkeypatch, tmp_path / "all.csv")
    assert found["devices"] == ["Pump-1", "Pump-2"]
    assert call("agent", "all.toml").exit_code == 0
    for name in found["devices"]:
        alarms = results_of(tmp_path / f"{name}.jsonl")
        assert len(alarms) == 700
        assert sum(alarms[600:]) >= 90
    found = inits(tmp_path, monkeypatch, tmp_path / "all.csv", "--yes", "--device-column", "")
    assert found["devices"] == []
    words = failure(call("init", "all.csv", "--yes", "--device-column", "x"), ExitCode.USAGE)
    assert "found no column 'x'" in words
    words = failure(call("init", "all.csv", "--yes", "--devices", "each"), ExitCode.USAGE)
    assert "is for a folder" in words


def as_parquet(path, target):
    import pyarrow as pa
    from pyarrow import csv, parquet

    table = csv.read_csv(path)
    times = pa.array([int(1e6 * t) for t in table["time"].to_pylist()], pa.timestamp("us", "UTC"))
    table = table.set_column(0, "time", times).append_column("raw", [[[1]] * len(table)])
    parquet.write_table(table, target)


@pytest.mark.long
def test_parquet_becomes_a_file_that_the_agent_reads(tmp_path, monkeypatch):
    hall(tmp_path / "hall", ["pump"])
    as_parquet(tmp_path / "hall/pump.csv", tmp_path / "pump.parquet")
    found = inits(tmp_path, monkeypatch, tmp_path / "pump.parquet")
    assert (found["time"], found["rate_hz"], found["rows"]) == ("time", 1.0, 700)
    assert "raw" not in [column["name"] for column in found["columns"]]
    assert call("agent", "pump.toml").exit_code == 0
    results = [json.loads(line) for line in (tmp_path / "pump.jsonl").read_text().splitlines()]
    assert results[0]["at"] == 1_794_000_000
    assert sum(result["alarm"] for result in results[600:]) >= 90
    assert "pump.csv exists" not in call("init", "pump.parquet", "--yes").output
    assert len((tmp_path / "pump.csv").read_text().splitlines()) == 701  # replaced, not added to


@pytest.mark.long
def test_a_folder_of_parquet_files_is_read_in_both_ways(tmp_path, monkeypatch):
    source = hall(tmp_path / "csv", ["a", "b"], hours=1.0)
    (tmp_path / "hall").mkdir()
    for name in ("a", "b"):
        as_parquet(source / f"{name}.csv", tmp_path / "hall" / f"{name}.parquet")
    found = inits(tmp_path, monkeypatch, "hall")
    assert (found["devices"], found["next"]) == ([], "edgemerge agent hall.toml")
    assert call("agent", "hall.toml").exit_code == 0
    assert len(results_of(tmp_path / "hall.jsonl")) == 1400
    found = inits(tmp_path, monkeypatch, "hall", "--yes", "--devices", "each", "-o", "each.toml")
    assert found["devices"] == ["a", "b"]
    assert call("agent", "each.toml").exit_code == 0
    assert len(results_of(tmp_path / "b.jsonl")) == 700


def test_without_the_library_for_parquet_the_extra_is_named(tmp_path, monkeypatch):
    (tmp_path / "pump.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "edgemerge.bulk.parquet_file", raising=False)
    words = failure(call("init", tmp_path / "pump.parquet"), ExitCode.FAILED)
    assert "pyarrow is not installed: pip install '.[parquet]'" in words


def test_a_parquet_file_that_is_none_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pump.parquet").write_bytes(b"PAR1 but no more")
    words = failure(call("init", "pump.parquet"), ExitCode.REFUSED)
    assert "pump.parquet: found no Parquet that can be read" in words


def test_standard_input_is_looked_at_and_the_agent_reads_it_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (hall(tmp_path / "hall", ["pump"]) / "pump.csv").read_text()
    result = call("init", "-", "--device", "pump-7", given=text)
    assert result.exit_code == 0, result.output
    assert "standard input: CSV with commas, 700 rows" in result.stdout
    assert result.stdout.endswith("next: ... | edgemerge agent pump-7.toml\n")
    done = program("agent", "pump-7.toml", given=text)
    assert done.returncode == 0, done.stderr
    assert sum(results_of(tmp_path / "pump-7.jsonl")[600:]) >= 90
    assert "found no line" in failure(call("init", "-", given=""), ExitCode.NO_DATA)


def test_what_is_left_out_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = [f"{v:.3f},{v:.3f},7,{i},word" for i, v in enumerate(rng.normal(size=300))]
    (tmp_path / "p.csv").write_text("a,b,setpoint,n,state\n" + "\n".join(rows) + "\n")
    result = call("init", "p.csv")
    assert result.exit_code == 0
    for words in ("b is left out: same as a", "setpoint is left out: constant",
                  "n is left out: counts rows", "state is left out: text"):  # fmt: skip
        assert f"note: {words}" in result.stderr


def test_questions_on_a_terminal_have_the_proposal_as_default(tmp_path, monkeypatch):
    hall(tmp_path / "hall", ["a", "b"])
    monkeypatch.chdir(tmp_path)
    asked = []

    def confirm(question, *, default=False, **_options):
        asked.append((question, default))
        return not default

    monkeypatch.setattr("edgemerge.cli.init._is_terminal", lambda: True)
    monkeypatch.setattr("click.confirm", confirm)
    monkeypatch.setattr("click.prompt", lambda _question, *, default, **_options: f"my-{default}")
    result = call("init", "hall")
    assert result.exit_code == 0, result.output
    assert asked == [("Is each of the 2 files a device? No: all are of one.", True)]
    assert read_config(tmp_path / "my-hall.toml", environment={}).device == "my-hall"


# ---------------------------------------------------------------- into a fleet


@pytest.mark.long
def test_devices_join_a_fleet_at_once(hub, tmp_path, monkeypatch):
    operator = ("--server", hub.url, "--token-file", hub.token)
    hall(tmp_path / "hall", ["a", "b"])
    found = inits(tmp_path, monkeypatch, "hall", "--fleet", "halls", *operator)
    assert found["devices"] == ["a", "b"]
    assert {each["device"] for each in hub.told("devices", "halls")} == {"a", "b"}
    assert stat.S_IMODE((tmp_path / "a.token").stat().st_mode) == 0o600
    done = program("agent", "hall.toml", "--set", "sync.gate=2")
    assert done.returncode == 0, done.stderr
    contributions = hub.told("contributions", "halls")["contributions"]
    assert {each["device"] for each in contributions} == {"a", "b"}
    # A machine that comes later gets the fleet's projection, whatever its own range is.
    hall(tmp_path / "later", ["c"])
    inits(tmp_path, monkeypatch, "later/c.csv", "--fleet", "halls", *operator)
    one, other = (load(tmp_path / f"{name}.projection") for name in ("hall", "c"))
    assert one == other
    assert program("agent", "c.toml").returncode == 0


def test_a_fleet_with_other_inputs_and_a_fleet_without_a_server_are_refused(
    hub, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    operator = ("--server", hub.url, "--token-file", hub.token)
    hall(tmp_path / "hall", ["a"])
    inits(tmp_path, monkeypatch, "hall/a.csv", "--fleet", "others", *operator)
    result = call(
        "init", "hall/a.csv", "--columns", "flow", "--yes", "--fleet", "others", *operator
    )
    words = failure(result, ExitCode.REFUSED)
    assert "the fleet others has the inputs flow, current, and this file gives flow" in words
    words = failure(call("init", "hall/a.csv", "--yes", "--fleet", "others"), ExitCode.USAGE)
    assert "--fleet needs --server and --token-file" in words
    gone = call("init", "hall/a.csv", "--fleet", "x", "--server", "http://127.0.0.1:9",
                "--token-file", hub.token, "--device", "new")  # fmt: skip
    failure(gone, ExitCode.UNREACHABLE)
    assert not (tmp_path / "new.toml").exists()


def test_the_file_of_the_demo_leads_to_one_alarm_at_its_fault(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call("demo", "--csv", "pump.csv").stderr == (
        "Wrote pump.csv. Next: edgemerge init pump.csv\n"
    )
    lines = (tmp_path / "pump.csv").read_text().splitlines()
    assert len(lines) == 7201
    (tmp_path / "mine.csv").write_text("kept\n")
    again = call("demo", "--csv", "mine.csv")
    assert "mine.csv already exists: --force overwrites it" in failure(again, ExitCode.USAGE)
    assert (tmp_path / "mine.csv").read_text() == "kept\n"
    assert call("demo", "--csv", "mine.csv", "--force").exit_code == 0
    assert (tmp_path / "mine.csv").read_text().splitlines() == lines
    (tmp_path / "short.csv").write_text("\n".join(lines[:1] + lines[4200:]) + "\n")  # less to wait
    found = inits(tmp_path, monkeypatch, "short.csv")
    assert found["remarks"][:2] == ["setpoint is left out: constant", "state is left out: text"]
    assert call("agent", "short.toml").exit_code == 0
    alarms = results_of(tmp_path / "short.jsonl")
    assert 0 <= alarms.index(True) - 2400 < 30
    assert sum(alarms) > 560


def test_commissioning_lasts_until_the_machine_has_shown_what_it_does(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    for name, period in (("quick", 50.0), ("slow", 700.0)):
        load_ = np.sin(2.0 * np.pi * np.arange(4000) / period)
        rows = np.stack([load_, 2.0 * load_], axis=1) + rng.normal(0.0, 0.01, (4000, 2))
        text = "\n".join(f"{a:.4f},{b:.4f}" for a, b in rows)
        (tmp_path / f"{name}.csv").write_text(f"a,b\n{text}\n")
    quick, slow = (
        inits(tmp_path, monkeypatch, f"{name}.csv", "--n-hidden", 16)["commissioning"]
        for name in ("quick", "slow")
    )
    assert (quick, slow) == (256, 1024)
    assert read_config(tmp_path / "slow.toml", environment={}).monitor.commissioning == 1024
