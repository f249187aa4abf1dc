"""Results are made one after the other; one without data is skipped, and the rest is whole."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from edgemerge.paper.plan import Job, Plan, Scope, run_here
from edgemerge.paper.running import result_files
from edgemerge.paper.running import results_runner as runner
from edgemerge.paper.running.progress import Display
from edgemerge.paper.running.results_runner import (
    CompletedResult,
    RunContext,
    SkippedResult,
    planned_jobs,
    run_results,
    why_no_baselines,
)
from tests.paper import made_up
from tests.paper.folders import result

pytestmark = pytest.mark.slow


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def context(tmp_path, said) -> RunContext:
    plan = Plan(Scope(tmp_path), trials=3, baseline_trials=0)
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    return RunContext(plan, tmp_path / "out", run_here, Display(said.append), lambda: moment)


def test_rows_record_and_figures_are_written(context, said):
    [made] = run_results([made_up], context)
    assert isinstance(made, CompletedResult)
    names = {"made-up.csv", "made-up.json", "made-up-one.png", "made-up-two.png"}
    assert {path.name for path in made.files} == names
    assert {path.name for path in context.folder.iterdir()} == {"cache", *names}
    assert [claim.holds for claim in made.claims] == [True, False, None]
    assert said == ["made-up: 3 jobs, 0 s"]


def test_the_record_says_how_to_make_it_again(context):
    [made] = run_results([made_up], context)
    record = result_files.read_result(context.folder, "made-up").record
    assert record == made.kept.record
    assert (record.seed, record.trials, record.baseline_trials, record.quick) == (7, 3, 0, False)
    assert (record.date, record.jobs, record.jobs_before) == ("2026-01-02T03:04:05Z", 3, 0)
    assert record.baselines == "none were asked for"
    assert record.machine["cores"] >= 1
    assert {"numpy", "edgemerge"} <= set(record.packages)
    assert record.settings == {"any": []}
    assert record.columns == {"method": "str", "digit": "str", "trial": "int", "value": "float"}


def test_no_place_of_the_users_machine_is_written_down(context):
    list(run_results([made_up], context))
    text = (context.folder / "made-up.json").read_text(encoding="utf-8")
    assert str(context.folder.parent) not in text
    assert "/" not in json.loads(text)["machine"]["system"]


def test_a_second_run_does_nothing_twice(context, said):
    list(run_results([made_up], context))
    first = result_files.read_result(context.folder, "made-up").rows
    list(run_results([made_up], context))
    assert said[1] == "made-up: 3 jobs, 3 of them done before, 0 s"
    assert result_files.read_result(context.folder, "made-up").rows == first
    assert len(made_up.logged(context.plan.scope.folder)) == 3


def test_what_is_drawn_and_claimed_is_what_the_files_say(context):
    """A digit that looks like a number stays text, before and after it is read again."""
    heard = []

    def claims(rows):
        heard.append(rows)
        return []

    odd = result("odd", run=lambda _: [{"digit": "0", "auc": 1}], claims=claims)
    list(run_results([odd], context))
    assert (
        heard
        == [result_files.read_result(context.folder, "odd").rows]
        == [[{"digit": "0", "auc": 1}]]
    )


def test_a_result_without_data_is_skipped_and_the_rest_is_made(context, said):
    driving, har = (result(f"needs-{name}", DATA=(name,)) for name in ("driving", "har"))
    first, second, third = run_results([driving, har, made_up], context)
    assert isinstance(first, SkippedResult)
    assert first.optional
    assert "driving was not found" in first.why
    assert isinstance(second, SkippedResult)
    assert not second.optional
    assert "edgemerge paper data --fetch har" in second.why
    assert isinstance(third, CompletedResult)
    assert said[0] == "needs-driving: skipped, its data are missing"


def test_a_result_that_has_some_of_its_data_is_made_but_not_whole(context, monkeypatch, said):
    monkeypatch.setattr(runner, "dataset_digest", _only("har"))
    [made] = run_results([result("both", DATA=("har", "mnist"))], context)
    assert isinstance(made, CompletedResult)
    assert made.missing_data == SkippedResult("both", "mnist is missing", optional=False)
    assert made.kept.record.data == {"har": "ab"}
    assert said == ["both: 0 jobs, 0 s, not whole, as data are missing"]


def test_damaged_data_are_not_worked_around(context, monkeypatch):
    monkeypatch.setattr(runner, "dataset_digest", _only("har", "is damaged"))
    [skipped] = run_results([result("both", DATA=("har", "mnist"))], context)
    assert skipped == SkippedResult("both", "mnist is damaged", optional=False)


def _only(there: str, words: str = "is missing"):
    from edgemerge.paper.data import DamagedDataError, MissingDataError

    kind = DamagedDataError if "damaged" in words else MissingDataError

    def digest(name, _folder):
        if name != there:
            raise kind(f"{name} {words}")
        return "ab"

    return digest


def test_jobs_are_foreseen_without_doing_any(context):
    assert planned_jobs(made_up, context.plan) == made_up.jobs(3)
    assert planned_jobs(result("nothing"), context.plan) == []
    assert not made_up.logged(context.plan.scope.folder)


def test_without_torch_there_are_no_baselines(context, monkeypatch):
    wanted = replace(context.plan, baseline_trials=3)
    assert why_no_baselines(wanted) in ("", runner.NO_TORCH)
    monkeypatch.setattr(runner, "find_spec", lambda _: None)
    assert why_no_baselines(wanted).startswith("torch is not installed: pip install")
    seen = []

    def run(plan):
        seen.append(plan.baseline_trials)
        return []

    each = result("each", run=run)
    [made] = run_results([each], replace(context, plan=wanted))
    assert set(seen) == {0}
    assert made.kept.record.baselines == runner.NO_TORCH


def test_settings_and_data_sets_of_jobs_are_noted(context, monkeypatch):
    monkeypatch.setattr(runner, "dataset_digest", _only("har"))

    def run(plan):
        jobs = [Job("each", "har", "bank", t, settings=f"N = {t}") for t in range(2)]
        return plan.rows(made_up.work, [*jobs, Job("each", "mnist", "bank", 0)])

    [made] = run_results([result("each", run=run)], context)
    assert made.kept.record.settings == {"har bank": ["N = 0", "N = 1"], "mnist bank": []}
    assert made.kept.record.data == {"har": "ab"}
