"""`edgemerge init`: from a file to a configuration that an agent runs with."""

import json
import tomllib
from threading import Event

import numpy as np
import pytest

from edgemerge.agent.config import read_config
from edgemerge.agent.proposal import propose
from edgemerge.agent.runner import run
from edgemerge.cli.group import ExitCode
from tests.cli.calls import call, failure

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


def test_what_is_printed_is_a_table_a_plot_and_the_next_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = call("init", pump(tmp_path / "pump.csv", rows=300))
    assert result.exit_code == 0, result.output
    assert "CSV with semicolons, decimal commas, 300 rows, one every 1 s" in result.stdout
    assert "Durchfluss" in result.stdout
    assert "█" in result.stdout
    assert result.stdout.endswith("next: edgemerge agent pump.toml\n")
    assert "300 samples" not in result.stderr


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
    assert "is no file" in failure(call("init", "gone.csv"), ExitCode.NO_DATA)
    words = failure(call("init", path, "--columns", "Drück"), ExitCode.USAGE)
    assert "found no column 'Drück', expected some of Zeit, Durchfluss" in words
    (tmp_path / "text.csv").write_text("a;b\nx;y\n")
    assert "found no row with a number" in failure(call("init", "text.csv"), ExitCode.REFUSED)


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
    expected = "source.delimiter is not" if code == ExitCode.USAGE else "no row could be read"
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


def test_a_proposal_has_ranges_of_its_own_for_each_feature(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    from edgemerge.agent.proposal import inspect_file

    path = pump(tmp_path / "pump.csv")
    report = inspect_file(path)
    shared = propose(path, report, report.usable(), device="pump").projection
    assert np.all(np.array(shared.low) < [26.0, 3.8, 7.5])
    assert np.all(np.array(shared.high) > [30.0, 4.3, 9.0])
    assert np.all(np.array(shared.high) < [40.0, 6.0, 16.0])
