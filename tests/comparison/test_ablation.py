"""Ablation: what one setting changes and the others do not, splits, tables and claims."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgemerge import Detector, Projection
from edgemerge.comparison import ablation
from edgemerge.comparison.ablation import (
    LEARNERS,
    SETTINGS,
    SHARES,
    SMALL_PARTS,
    Split,
    Task,
    cut,
    measure,
    projection_with,
    trials,
    work,
)
from edgemerge.paper.plan import Job, Plan, Scope
from edgemerge.paper.running.job_cache import JobCache

SCOPE = Scope(Path(), 7, quick=True)
ROWS = np.random.default_rng(0).normal(0.0, 1.0, (300, 5))


def test_every_default_is_among_the_values_and_is_what_of_data_makes():
    usual = Projection.of_data(ROWS, n_hidden=128, seed=3)
    for setting, each in SETTINGS.items():
        assert each.default in each.values
        made = projection_with(ROWS, setting, each.default, 3)
        small = Projection.of_data(ROWS, n_hidden=32, seed=3)
        assert made == (small if setting == SMALL_PARTS else usual), setting


@pytest.mark.parametrize(
    ("setting", "value", "attribute", "expected"),
    [
        ("grid bits", "6", "grid_bits", 6),
        ("N", "256", "n_hidden", 256),
        ("activation", "relu", "activation", "relu"),
    ],
)
def test_a_setting_changes_one_thing(setting, value, attribute, expected):
    usual = projection_with(ROWS, setting, SETTINGS[setting].default, 3)
    made = projection_with(ROWS, setting, value, 3)
    assert getattr(made, attribute) == expected
    kept = {"grid_bits", "n_hidden", "activation", "low", "high", "seed"} - {attribute}
    assert all(getattr(made, name) == getattr(usual, name) for name in kept)


def test_the_width_is_in_units_of_the_usual_one():
    usual, quarter, four = (
        projection_with(ROWS, "width", value, 3).width for value in ("1", "1/4", "4")
    )
    assert (quarter, four) == (usual / 4, usual * 4)


def test_the_ridge_is_a_share_of_the_mean_of_the_diagonal():
    shared = projection_with(ROWS, "ridge", "1", 3)
    mean = np.mean(np.diag(np.asarray(Detector(shared).own.U)))
    assert mean == 0.0
    learnt = Detector(shared)
    learnt.learn(ROWS)
    expected = 4.0 * np.mean(np.diag(learnt.own.U))
    assert ablation._ridge(shared, ROWS, "4", "ridge") == pytest.approx(expected)
    assert ablation._ridge(shared, ROWS, "0.25", "ridge") is None
    assert ablation._ridge(shared, ROWS, "4", "N") is None


def test_dirt_is_a_tenth_of_the_rows_to_learn_and_is_not_tested():
    task = Task(np.zeros((1000, 2)), np.arange(4000.0).reshape(2000, 2) + 1.0)
    clean, dirty = (cut(task, share, np.random.default_rng(0)) for share in SHARES.values())
    assert not clean.train.any()
    assert len(clean.train) == len(dirty.train) == 600
    dirt = dirty.train[dirty.train.any(1)]
    assert len(dirt) == 60
    assert not (dirty.odd[:, None] == dirt[None]).all(2).any()
    assert len(clean.normal) == 400 == len(clean.odd)


def test_rows_to_learn_are_never_tested():
    numbers = np.arange(200.0).reshape(100, 2)
    split = cut(Task(numbers, numbers + 1000.0), 0.0, np.random.default_rng(0))
    assert len(split.train) == 60
    assert not (split.train[:, None] == split.normal[None]).all(2).any()
    assert len(split.normal) == 40


@pytest.mark.slow
def test_far_samples_are_told_and_bytes_grow_with_the_hidden_values():
    rng = np.random.default_rng(0)
    train, normal = rng.normal(size=(400, 5)), rng.normal(size=(100, 5))
    split = Split(train, normal, rng.normal(5.0, 1.0, (100, 5)))
    for learner in LEARNERS:
        small, large = (measure(split, "N", value, learner, 0) for value in ("16", "128"))
        assert small[0] > 0.95 < large[0]
        assert 3 * small[1] < large[1]


@pytest.mark.slow
def test_parts_are_found_where_there_is_room_for_them():
    rng = np.random.default_rng(0)
    places = np.vstack([rng.normal(far, 0.1, (150, 4)) for far in (-3.0, 0.0, 3.0, 6.0)])
    split = Split(rng.permutation(places), places[:50], rng.uniform(-3.0, 6.0, (50, 4)))
    one, eight = (measure(split, SMALL_PARTS, value, "bank", 0) for value in ("1", "8"))
    assert eight[1] > 1.5 * one[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["iris", "Bananas", "pump"])
def test_a_job_has_a_row_for_each_trial_and_is_the_same_each_time(monkeypatch, name):
    few = {"N": replace(SETTINGS["N"], values=("16", "128")), "ridge": SETTINGS["ridge"]}
    monkeypatch.setattr(ablation, "SETTINGS", few)
    rows = work(Job("ablation", name, "all", 0), SCOPE)
    assert len(rows) == len(SHARES) * len(list(trials())) == 2 * (4 + 7)
    assert rows == work(Job("ablation", name, "all", 0), SCOPE)
    assert all(0.3 < row["auc"] <= 1.0 for row in rows)


def made_up(better=0.0, sets=("a", "b")):
    """Rows in which every value but the default is better by so much."""
    rows = []
    for setting, value, learner in trials():
        for name in sets:
            for share in SHARES:
                auc = 0.9 if value == SETTINGS[setting].default else 0.9 + better
                key = {"set": name, "seed": 0, "share": share, "learner": learner}
                rows.append({**key, "setting": setting, "value": value, "auc": auc, "bytes": 1e4})
    return rows


def test_a_better_value_than_the_default_is_said():
    assert all(claim.holds for claim in ablation.claims(made_up(-0.01))[1:])
    assert all(claim.holds for claim in ablation.claims(made_up(0.004))[1:])
    behind = ablation.claims(made_up(0.01))
    assert not any(claim.holds for claim in behind)
    assert all(claim.holds is None for claim in ablation.claims([]))


def test_tables_show_differences_to_the_default():
    tables = ablation.tables(made_up(-0.02))
    assert list(tables) == [
        "Grid bits",
        "N",
        "Parts",
        "Parts, N = 32",
        "Activation",
        "Width",
        "Ridge",
    ]
    (default,) = (line for line in tables["N"] if "default" in line["N"])
    assert default["bank, clean"] == "0.900"
    assert tables["N"][0]["detector, dirty"] == "0.880; -20 (-20 to -20)"
    assert "detector, clean" not in tables["Parts"][0]


def test_a_run_that_was_stopped_goes_on_and_knows_its_sets(monkeypatch, tmp_path):
    done = []

    def counted(job, _scope):
        done.append(job)
        return made_up()[:1]

    monkeypatch.setattr(ablation, "work", counted)
    plan = Plan(replace(SCOPE, folder=tmp_path, quick=False), trials=2)
    run = replace(plan, spread=JobCache(tmp_path).spread)
    ablation.run(run)
    assert {job.dataset for job in done} == {*ablation.SETS} - {"har"}  # which is not there
    before = len(done)
    ablation.run(replace(run, trials=3))
    assert len(done) == before * 3 / 2


@pytest.mark.slow
def test_the_figure_has_a_panel_for_each_setting():
    (figure,) = ablation.plot(made_up(-0.01)).values()
    titles = [axes.get_title(loc="left") for axes in figure.axes if axes.axison]
    assert [title.rpartition(" (")[0] for title in titles] == list(SETTINGS)
