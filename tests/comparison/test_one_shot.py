"""`edgemerge paper one-shot`: choosing, reporting, resuming, and the page of the rows."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")

from edgemerge.comparison import one_shot
from edgemerge.comparison.datasets import CHOOSE, DIGITS, FULL, HAR, MNIST, REPORT, Cell
from edgemerge.comparison.methods import ALONE, BEST, KNN, LOF, METHODS, RIVALS
from edgemerge.comparison.one_shot import BY_PERSON, BY_SAMPLE, FLEET, PAIRS
from edgemerge.paper.plan import Job, Plan, Scope
from edgemerge.paper.running.job_cache import JobCache
from edgemerge.paper.running.result_files import SavedResult
from tests.cli.calls import call
from tests.paper.folders import RECORD

NOWHERE = Scope(Path("/nowhere"), seed=7, quick=True)
SMALL = {"activation": "identity", "n_hidden": 8, "width": 1.0, "parts": 2}
SMALL |= {"sift": False, "form": "root16"}
CHOSEN = {BEST: SMALL} | {method: tried[0] for method, tried in RIVALS.items()}


def tried(method: str, setting: int, auc: float, sent: int, name: str = DIGITS):
    head = {"set": name, "exam": FLEET, "part": "", "method": method}
    return {**head, "setting": json.dumps({"k": setting}), "auc": auc, "bytes": sent}


def test_the_setting_with_the_best_mean_is_chosen():
    rows = [tried(BEST, 1, 0.8, 10), tried(BEST, 1, 0.9, 10), tried(BEST, 2, 0.88, 99)]
    rows += [tried(BEST, 2, 0.9, 99), tried(LOF, 7, 0.5, 1)]
    assert one_shot.choose(rows) == {(DIGITS, FLEET): {BEST: {"k": 2}, LOF: {"k": 7}}}


def test_of_settings_about_as_good_the_smallest_is_chosen():
    rows = [tried(BEST, 1, 0.9, 1000), tried(BEST, 2, 0.8985, 10), tried(BEST, 3, 0.89, 1)]
    assert one_shot.choose(rows)[DIGITS, FLEET][BEST] == {"k": 2}


def test_tabular_sets_choose_together():
    rows = [tried(BEST, 1, 0.9, 1, "Bananas"), tried(BEST, 1, 0.5, 1, "breast_cancer")]
    rows += [tried(BEST, 2, 0.8, 1, "Bananas"), tried(BEST, 2, 0.8, 1, "breast_cancer")]
    assert one_shot.choose(rows) == {("tabular", FLEET): {BEST: {"k": 2}}}


def test_the_rows_that_chose_are_kept_and_marked():
    rows = [tried(BEST, 1, 0.9, 10), tried(BEST, 2, 0.7, 10)]
    found = one_shot.choice_rows(rows, one_shot.choose(rows))
    assert [(row["setting"], row["auc"], row["chosen"]) for row in found] == [
        ('{"k": 1}', 0.9, 1),
        ('{"k": 2}', 0.7, 0),
    ]


def test_settings_are_tried_on_one_half_and_reported_on_the_other():
    plan = Plan(replace(NOWHERE, quick=False), trials=4, baseline_trials=2)
    names, chosen = [HAR, MNIST, DIGITS, "Bananas", "wine"], {}
    for job in one_shot.choice_jobs(plan, names):
        chosen[one_shot.group_of(job.dataset), job.method.removeprefix("choose ")] = CHOSEN
    assert "wine" not in {job.dataset for job in one_shot.choice_jobs(plan, names)}
    pairs = one_shot.pair_jobs(plan, names, chosen)
    assert {job.part for job in pairs} == {REPORT, FULL}
    assert {(job.dataset, job.method) for job in pairs} == set(one_shot.PAIR_EXAMS)
    fleets = one_shot.fleet_jobs(plan, names, chosen)
    halves = {(job.dataset, job.part.split(",")[0]) for job in fleets}
    assert halves == {*((n, REPORT) for n in (HAR, MNIST, DIGITS, "wine")), ("Bananas", CHOOSE)}


def test_every_pair_of_the_reported_half_has_its_turn():
    scope, seen = NOWHERE, []
    exam = BY_SAMPLE
    for trial in range(5):
        seen += [name for name, _ in one_shot.pair_fleets(DIGITS, exam, REPORT, trial, scope)]
    assert len(set(seen)) == 10


def job(trial: int = 0) -> Job:
    settings = one_shot.job_settings(CHOSEN)
    return Job(one_shot.NAME, DIGITS, FLEET, trial, f"{REPORT}, {Cell(2)}", settings)


@pytest.mark.slow
def test_a_job_runs_every_method_with_its_settings_on_the_same_fleet():
    rows = one_shot.work(job(), NOWHERE)
    assert [row["method"] for row in rows] == list(METHODS)
    assert {(row["devices"], row["mix"], row["dirt"], row["half"]) for row in rows} == {
        (2, 0.0, 0.0, REPORT)
    }
    aucs = {row["method"]: row["auc"] for row in rows}
    assert aucs[BEST] > aucs[ALONE]
    again = one_shot.work(job(), NOWHERE)
    assert [row["auc"] for row in again] == [row["auc"] for row in rows]


@pytest.mark.slow
def test_what_is_done_is_not_done_again(tmp_path):
    cache, done = JobCache(tmp_path), []

    def work(one, scope):
        done.append(one)
        return one_shot.work(one, scope)

    first = list(cache.spread(work, [job()], NOWHERE))
    both = list(cache.spread(work, [job(), job(trial=1)], NOWHERE))
    assert both[0] == first[0]
    assert [one.trial for one in done] == [0, 1]


def row(method: str, seed: int, auc: float, **place):
    where = {"kind": PAIRS, "set": MNIST, "exam": BY_SAMPLE, "half": REPORT, "devices": 2}
    figures = {"precision": 0.5, "false_alarms": 0.01, "detected": 0.4, "bytes": 2000.0}
    head = {**where, "mix": 0.0, "dirt": 0.0, **place, "method": method, "seed": seed}
    return {**head, "auc": auc, **figures, "seconds": 0.1}


def made_up(gap: float = 0.0, seeds: int = 30):
    rng, rows = np.random.default_rng(0), []
    for seed in range(seeds):
        auc = float(rng.normal(0.95, 0.005))
        noise = float(rng.normal(0.0, 0.002))
        for place in ({}, {"set": HAR}, {"set": HAR, "exam": BY_PERSON}):
            rows += [row(LOF, seed, auc, **place), row(BEST, seed, auc + gap + noise, **place)]
        for dirt in (0.0, 0.1):
            rows += [
                row(method, seed, found, kind=FLEET, set=DIGITS, exam=FLEET, dirt=dirt)
                for method, found in ((LOF, auc), (BEST, auc + gap + noise))
            ]
    choice = tried(BEST, 1, 0.9, 10)
    return rows + one_shot.choice_rows([choice], one_shot.choose([choice]))


def test_claims_say_by_how_much_a_target_is_missed():
    by_sample, by_person, lof = one_shot.claims(made_up(gap=-0.001))
    assert (by_sample.holds, by_person.holds, lof.holds) == (False, True, True)
    assert "missed by 0.01" in by_sample.found
    assert "2 kB a device" in by_sample.found
    assert "30 seeds" in lof.found


def test_a_method_far_behind_lof_fails_the_margin():
    assert one_shot.claims(made_up(gap=-0.01))[2].holds is False


def test_claims_without_rows_were_not_measured():
    assert [claim.holds for claim in one_shot.claims([])] == [None, None, None]


def test_a_comparison_takes_the_seeds_that_both_have():
    rows = [row(BEST, seed, 0.9) for seed in range(10)]
    rows += [row(LOF, seed, 0.8) for seed in range(6, 12)]
    (found,) = one_shot.compare(rows)
    assert found.ahead.count == 4
    assert found.ahead.mean == pytest.approx(0.1)


def test_where_we_lose_lists_only_what_is_ahead_of_ours():
    assert not one_shot.losses_table(made_up(gap=0.01)).lines
    lines = one_shot.losses_table(made_up(gap=-0.01)).lines
    assert ["MNIST, pairs", LOF] in [line[:2] for line in lines]
    assert ["digits, fleets, dirty", LOF] in [line[:2] for line in lines]
    ahead, behind, count = one_shot.wins(made_up(gap=-0.01))
    assert (ahead, behind, count) == (0, 5, 5)
    assert one_shot.wins(made_up(gap=-0.01), [LOF]) == (0, 5, 5)
    assert one_shot.wins(made_up(gap=-0.01), [KNN]) == (0, 0, 0)


def test_pairs_become_one_row_a_seed_and_a_matrix_of_the_full_data():
    rows = [
        {**row(BEST, 0, auc, half=half), "pair": pair}
        for half in (REPORT, FULL)
        for pair, auc in (("0 / 1", 0.8), ("0 / 2", 1.0))
    ]
    for one in rows:
        del one["kind"]
    found = one_shot.summarise(rows)
    assert [(r["kind"], r["half"], r["auc"]) for r in found] == [
        ("pairs", REPORT, 0.9),
        ("pairs", FULL, 0.9),
        ("matrix", FULL, 0.8),
        ("matrix", FULL, 1.0),
    ]


def saved(rows) -> SavedResult:
    return SavedResult(replace(RECORD, result=one_shot.NAME), rows)


def test_tables_are_filled_into_the_page_and_nothing_else_changes():
    text = "# T\n\nBefore.\n\n<!-- MNIST, pairs -->\n\nold\n\n<!-- end -->\n\nAfter.\n"
    made = one_shot.page(saved(made_up()), text)
    assert made.startswith("# T\n\nBefore.\n\n<!-- MNIST, pairs -->\n\n| method | AUC |")
    assert made.endswith("<!-- end -->\n\nAfter.\n")
    assert "old" not in made
    assert one_shot.page(saved(made_up()), made) == made


def test_the_page_says_that_a_run_is_not_finished():
    made = one_shot.page_tables(saved(made_up(seeds=12)))["claims"]
    assert "Seeds so far: pairs 12 of 50, fleets 12 of 50, networks 0 of 3." in made


def test_a_finished_run_says_nothing_of_the_kind():
    record = replace(RECORD, result=one_shot.NAME, trials=12, baseline_trials=0)
    made = one_shot.page_tables(SavedResult(record, made_up(seeds=12)))["claims"]
    assert "not finished" not in made


def test_without_a_page_all_tables_are_given():
    made = one_shot.page(saved(made_up()))
    for name in ("claims", "MNIST, pairs", "fleets by data set", "settings", "rows"):
        assert f"<!-- {name} -->" in made


@pytest.mark.slow
def test_the_figure_has_a_panel_for_each_large_set():
    figures = one_shot.plot(made_up())
    assert list(figures) == ["devices"]
    assert [axes.get_title(loc="left") for axes in figures["devices"].axes] == [DIGITS]


@pytest.mark.slow
def test_the_matrix_shows_ours_above_the_diagonal_and_lof_below():
    pairs = {"0 / 1": 0.91, "0 / 2": 0.92, "1 / 2": 0.93}
    rows = [
        row(method, 0, auc - 0.1 * (method == LOF), kind="matrix", half=FULL) | {"pair": pair}
        for method in (BEST, LOF)
        for pair, auc in pairs.items()
    ]
    axes, scale = one_shot.plot(rows)["pairs"].axes
    assert scale.get_ylabel() == "AUC"
    found = {text.get_position(): text.get_text() for text in axes.texts}
    assert found[1, 0] == ".91"  # column 1, line 0: ours
    assert found[0, 1] == ".81"
    assert found[2, 1] == ".93"


def test_the_report_says_what_is_missing(tmp_path):
    words = ("paper", "report", "--only", "one-shot", "--out", tmp_path)
    found = call(*words, "--markdown", tmp_path / "page.md")
    assert found.exit_code == 5
    assert "edgemerge paper one-shot" in found.stderr
