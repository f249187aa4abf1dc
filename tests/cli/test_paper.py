"""`edgemerge paper`: results by name, all of them, the data and the report."""

import json
from pathlib import Path

import click
import pytest

from edgemerge.cli import paper
from edgemerge.cli.group import CommandError
from edgemerge.paper.data import NAMES as DATASETS
from edgemerge.paper.plan import NAMES
from edgemerge.paper.running import result_files
from edgemerge.paper.running.result_files import Record
from tests.cli.calls import call, failure, started
from tests.cli.test_main import BLOCKED
from tests.paper import made_up
from tests.paper.folders import result

WISH = {"seed": 7, "trials": 2, "baseline_trials": 0, "quick": False}


def make(folder: Path, *results, as_json: bool = False) -> None:
    paper.make_results(results, out=folder / "out", data=folder, as_json=as_json, workers=1, **WISH)


def test_there_is_a_command_for_every_result():
    assert tuple(paper.RESULTS) == NAMES
    with click.Context(paper.paper) as context:
        commands = ["data", "claims", "report", *NAMES, "all", *paper.COMPARISONS]
        assert paper.paper.list_commands(context) == commands


def test_there_is_a_module_for_every_comparison():
    for name in paper.COMPARISONS:
        assert name == paper.find_result(name).NAME


def test_one_shot_has_trials_of_its_own(tmp_path):
    usual = {"data": tmp_path, "seed": 7, "trials": None, "baseline_trials": None, "quick": False}
    plan = paper.make_plan(**usual, usual=paper.ONE_SHOT_TRIALS)
    assert (plan.trials, plan.baseline_trials) == (30, 10)


def test_there_is_none_for_anything_else():
    assert "No such command" in call("paper", "nonsense").stderr
    with pytest.raises(AttributeError, match="nonsense"):
        paper.nonsense  # noqa: B018 (asking is the test)


@pytest.mark.parametrize(
    ("given", "trials"),
    [
        ({}, (50, 3)),
        ({"quick": True}, (3, 1)),
        ({"trials": 9, "baseline_trials": 0}, (9, 0)),
    ],
    ids=str,
)
def test_trials_are_the_papers_unless_told_otherwise(given, trials, tmp_path):
    usual = {"data": tmp_path, "seed": 7, "trials": None, "baseline_trials": None, "quick": False}
    plan = paper.make_plan(**{**usual, **given})
    assert (plan.trials, plan.baseline_trials) == trials


@pytest.mark.slow
@pytest.mark.parametrize(
    ("missing", "words", "name"),
    [
        ("matplotlib", ["paper", "auc"], "matplotlib"),
        ("sklearn", ["paper", "all"], "scikit-learn"),
        ("matplotlib", ["paper", "report"], "matplotlib"),
    ],
)
def test_a_missing_extra_is_named_with_the_line_that_adds_it(missing, words, name):
    told = started(BLOCKED.format(missing=[missing], words=words))
    assert told == f"1 {name} is not installed: pip install '.[paper]' in a checkout of edgemerge\n"


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["river", "pysad"])
def test_a_comparison_names_the_library_that_is_missing(missing):
    told = started(BLOCKED.format(missing=[missing], words=["paper", "streams"]))
    assert (
        told == f"1 {missing} is not installed: pip install '.[bench]' in a checkout of edgemerge\n"
    )


@pytest.mark.slow
def test_one_result_has_a_page_of_its_own(tmp_path, monkeypatch):
    one = result(
        "cost",
        run=lambda _: [{"a": 1}, {"a": 2}],
        tables=lambda rows: {"Two | of them": rows, "None": []},
    )
    monkeypatch.setattr(paper, "find_result", lambda _: one)
    make(tmp_path, one)
    page = tmp_path / "docs" / "cost.md"
    found = call("paper", "report", "--only", "cost", "--out", tmp_path / "out", "--markdown", page)
    assert found.exit_code == 0
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# Title of cost\n\n<!-- Made by")
    assert "Two \\| of them:\n\n| " in text
    assert "None" not in text
    assert "## Machine and versions" in text
    assert "(../out/cost.csv)" in text


@pytest.mark.parametrize("name", ["loss-har", "loss-driving"])
def test_a_result_whose_data_are_missing_fails_with_what_to_do(tmp_path, name):
    found = call("paper", name, "--data", tmp_path, "--out", tmp_path / "out", "--workers", 1)
    assert (found.exit_code, found.stdout) == (5, "")
    assert found.stderr.count("\n") == 2
    assert f"{name}: skipped" in found.stderr
    assert f"was not found in {tmp_path}: " in found.stderr
    assert ("--fetch har" if name == "loss-har" else "its licence asks") in found.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_claims_are_printed_and_files_written(tmp_path, capsys):
    make(tmp_path, made_up)
    said, remarks = capsys.readouterr()
    lines = [line.split() for line in said.splitlines()]
    assert [line[0] for line in lines] == ["RESULT", "✓", "✗", "–"]
    assert lines[1][1:] == ["made-up", "There", "are", "rows", "2", "rows"]
    assert "made-up: 2 jobs, " in remarks
    assert f"`edgemerge paper report --out {tmp_path / 'out'}`" in remarks
    assert (tmp_path / "out" / "made-up-one.png").exists()


def test_all_makes_the_rest_and_the_report_where_only_driving_is_missing(tmp_path, capsys):
    driving = result("loss-driving", DATA=("driving",))
    make(tmp_path, driving, result("cost"))
    remarks = capsys.readouterr().err
    assert "loss-driving: skipped" in remarks
    assert "Missing: driving was not found" in remarks
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "Title of cost" in page
    assert "Not run" in page


def test_all_fails_at_its_end_where_data_are_missing_that_everyone_can_have(tmp_path, capsys):
    with pytest.raises(
        CommandError, match="missing or incomplete for lack of data: loss-har"
    ) as found:
        make(tmp_path, result("loss-har", DATA=("har",)), result("cost"))
    assert found.value.exit_code == 5
    assert "--fetch har" in capsys.readouterr().err
    assert (tmp_path / "out" / "cost.csv").exists()
    assert (tmp_path / "out" / "report.html").exists()


def test_machines_are_told_too(tmp_path, capsys):
    driving = result("loss-driving", DATA=("driving",))
    cost = result("cost", claims=made_up.claims)
    make(tmp_path, driving, cost, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["made"][0]["result"] == "cost"
    assert [claim["holds"] for claim in told["made"][0]["claims"]] == [False, True, None]
    assert told["made"][0]["files"] == [
        str(tmp_path / "out" / f"cost.{e}") for e in ("csv", "json")
    ]
    assert told["skipped"][0]["result"] == "loss-driving"


def test_the_data_that_are_missing_are_told_with_advice_and_terms(tmp_path):
    found = call("paper", "data", "--data", tmp_path)
    assert found.exit_code == 0
    assert [line.split()[:2] for line in found.stdout.splitlines()[1:4]] == [
        [name, "missing"] for name in DATASETS
    ]
    for words in ("--fetch har", "--fetch mnist", "http://www.robesafe", "forbids commercial use"):
        assert words in found.stdout
    told = json.loads(call("paper", "data", "--data", tmp_path, "--json").stdout)
    assert told["folder"] == str(tmp_path)
    assert [one["state"] for one in told["data"]] == ["missing"] * 3
    assert all(one["advice"] and one["terms"] for one in told["data"])


def test_the_folder_of_the_data_can_be_named_by_the_environment(tmp_path):
    found = call("paper", "data", "--json", EDGEMERGE_DATA=str(tmp_path))
    assert json.loads(found.stdout)["folder"] == str(tmp_path)


def test_damaged_data_are_told_and_not_used(tmp_path):
    (tmp_path / "har").mkdir()
    (tmp_path / "har" / "har.npz").write_bytes(b"half a file")
    found = call("paper", "data", "--data", tmp_path, "--json")
    assert json.loads(found.stdout)["data"][0]["state"] == "damaged"
    found = call("paper", "loss-har", "--data", tmp_path, "--out", tmp_path / "out", "--workers", 1)
    assert found.exit_code == 5
    assert "har.npz" in found.stderr
    found = call("paper", "data", "--data", tmp_path, "--fetch", "har")
    assert (found.exit_code, found.stdout) == (1, "")
    assert "har.npz" in found.stderr.splitlines()[-1]


def test_driving_cannot_be_fetched():
    assert "'driving' is not one of" in call("paper", "data", "--fetch", "driving").stderr


def test_what_is_asked_for_is_fetched_once(tmp_path, monkeypatch):
    from edgemerge.paper import data

    asked = []

    def fetch(name, *_, **__):
        asked.append(name)
        return [tmp_path]

    monkeypatch.setattr(data, "fetch", fetch)
    for words, names in [(["har", "har"], ["har"]), (["all"], ["har", "mnist"])]:
        asked.clear()
        options = [part for word in words for part in ("--fetch", word)]
        found = call("paper", "data", "--data", tmp_path, *options)
        assert asked == names
        assert f"har: {tmp_path}" in found.stderr
        assert "forbids commercial use" in found.stderr


def test_claims_are_judged_by_the_files_and_written_beside_them(tmp_path):
    names = {"dataset": "har", "device_a": "all", "device_b": "others", "trials": 50}
    rows = [
        names | {"method": method, "auc": auc, "spread": 0.01}
        for method, auc in (("before", 0.7), ("after", 0.9))
    ]
    result_files.save_result(tmp_path, Record("auc", "2026", "0.1.0", 7, False, 50, 0), rows)
    shown = call("paper", "claims", "--out", tmp_path)
    assert "har 0.700 → 0.900" in shown.stdout
    assert "claims.csv" in shown.stderr
    found = json.loads(call("paper", "claims", "--out", tmp_path, "--json").stdout)
    assert found["file"] == str(tmp_path / "claims.csv")
    verdicts = [one["verdict"] for one in found["claims"]]
    assert (verdicts.count("holds"), set(verdicts)) == (1, {"holds", "not run here"})
    kept = (tmp_path / "claims.csv").read_text(encoding="utf-8")
    assert len(kept.splitlines()) == 1 + len(verdicts)


def test_without_results_there_is_nothing_to_judge(tmp_path):
    assert "holds no results" in failure(call("paper", "claims", "--out", tmp_path))


def test_a_folder_without_results_has_no_report(tmp_path):
    assert "holds no results: run `edgemerge paper all" in failure(
        call("paper", "report", "--out", tmp_path)
    )


def test_the_report_is_made_from_the_files_alone(tmp_path):
    name = "cost"
    result_files.save_result(tmp_path, Record(name, "2026", "0", 7, False, 1, 0), [])
    (tmp_path / f"{name}.csv").write_text("wrong\n", encoding="utf-8")
    assert "found the columns wrong" in failure(call("paper", "report", "--out", tmp_path))
