"""Cost against N: rows, claims and figure; how fast anything is, is never asserted."""

import os
from pathlib import Path

import numpy as np
import pytest

from edgemerge import Detector, Stats, encode
from edgemerge.paper import cost
from edgemerge.paper.cost import AUCS, SIZES_SHOWN, TIMES, claims, join_aucs, plot
from edgemerge.paper.dataset import Dataset, Trial
from edgemerge.paper.hyperparameters import Layer
from edgemerge.paper.plan import Job, Plan, Scope
from edgemerge.paper.running.result_files import checked_rows, column_types, from_csv, to_csv
from tests.paper.toys import toy
from tests.services.missing import NO_DATA

FOLDER = os.environ.get("EDGEMERGE_DATA")


def made_up(gain=0.1, growth=1.0):
    """Rows in which every cost grows with N to the power of `growth`."""
    rows = []
    for N in (16, 32, 64):
        costs = dict.fromkeys([*TIMES, *SIZES_SHOWN], float(N) ** growth)
        rows.append({"hidden": N, **costs, "auc_before": 0.7, "auc_after": 0.7 + gain})
    return rows


@pytest.fixture
def small(monkeypatch):
    """A small data set under the name and with two patterns of HAR, and few N."""
    found = toy(samples=300, inputs=20)
    names = ("sitting", "laying", *found.patterns[2:])
    data = Dataset("har", found.X, found.y, names, found.origin)
    monkeypatch.setattr("edgemerge.paper.plan._dataset", lambda *_: data)
    monkeypatch.setattr(cost, "SIZES", (2, 4))
    monkeypatch.setattr(cost, "QUICK_S", 0.0)
    monkeypatch.setattr(cost, "SAMPLES_PER_TURN", 8)
    return Scope(Path(), quick=True)


@pytest.mark.slow
def test_there_is_a_row_for_each_n_with_every_cost(small):
    rows = cost.run(Plan(small))
    assert [row["hidden"] for row in rows] == [2, 4]
    for row in rows:
        assert all(row[key] > 0.0 for key in (*TIMES, *SIZES_SHOWN))
        assert all(0.0 <= row[key] <= 1.0 for key in AUCS)
        assert row["trials"] == 1
    kept = checked_rows(rows, "cost")
    columns = column_types(kept, "cost")
    assert from_csv(to_csv(kept, columns), columns, "cost") == kept


def test_a_full_run_takes_three_trials_or_as_many_as_it_is_given(monkeypatch):
    def work(job, _):
        auc = {"auc_before": 0.5, "auc_after": 0.5 + 0.1 * job.trial}
        return (
            [{"hidden": N} for N in (2, 4)] if not job.part else [{"hidden": int(job.part), **auc}]
        )

    monkeypatch.setattr(cost, "work", work)
    monkeypatch.setattr(cost, "SIZES", (2, 4))
    rows = cost.run(Plan(Scope(Path()), trials=50))
    assert [row["trials"] for row in rows] == [3, 3]
    assert rows[0]["auc_after"] == pytest.approx(0.6)
    assert cost.run(Plan(Scope(Path()), trials=2))[0]["trials"] == 2


@pytest.mark.slow
def test_bytes_are_those_of_the_messages_and_files(small):
    data = small.dataset("har")
    layer = Layer("identity", 4).projection(data, 7)
    X, Y = (data.X[data.rows(name)] for name in ("sitting", "laying"))
    found = cost.measure_bytes(layer, X, Y)
    device = Detector(layer)
    device.learn(X)
    (note,) = device.share("device-a", revision=1)
    assert found["float32_bytes"] == len(encode(note, "float32"))
    sums = sum(array.nbytes for array in device.own.arrays)
    weights = layer.A.nbytes + layer.b.nbytes
    assert found["memory_bytes"] >= 2 * sums - note.stats.U.nbytes + weights
    assert found["file_bytes"] > found["exact_bytes"]
    weighed = cost._merged_detector(layer, X, Y)
    assert weighed.own == device.own
    assert weighed.others == Stats.of(layer, Y)


def test_exams_are_taken_before_and_after_merging(small):
    trial = Trial(Job("cost", "har", "auc", 0), small)
    found = cost.pair_aucs(trial, 4)
    layer = Layer("identity", 4).projection(trial.data, trial.number("layer"))
    alone, told = [], []
    for a, b in trial.pairs():
        if a != b:
            device = Detector(layer)
            device.learn(trial.learnt(a))
            readings = trial.data.X[trial.eval_set(a, b).rows]
            alone.append(trial.row("", (a, b), device.loss(readings))["auc"])
            device.adopt(Stats.of(layer, trial.learnt(b)))
            told.append(trial.row("", (a, b), device.loss(readings))["auc"])
    assert found["auc_before"] == pytest.approx(sum(alone) / 12)
    assert found["auc_after"] == pytest.approx(sum(told) / 12)
    assert found["auc_before"] != found["auc_after"]


def test_aucs_of_trials_are_averaged_beside_their_own_n():
    aucs = [
        {"hidden": 16, "auc_before": 0.5, "auc_after": 0.6},
        {"hidden": 16, "auc_before": 0.7, "auc_after": 1.0},
        {"hidden": 32, "auc_before": 0.1, "auc_after": 0.2},
    ]
    first, second = join_aucs(
        [{"hidden": 16, "loss_us": 3.0}, {"hidden": 32, "loss_us": 4.0}], aucs
    )
    assert first == {
        "hidden": 16,
        "loss_us": 3.0,
        "auc_before": pytest.approx(0.6),
        "auc_after": pytest.approx(0.8),
        "trials": 2,
    }
    assert second["auc_after"] == 0.2


def test_claims_hold_when_merging_helps_and_costs_grow_with_n():
    assert all(claim.holds for claim in claims(made_up()))
    assert not claims(made_up(gain=-0.1))[0].holds
    steep = claims(made_up(growth=1.5))
    assert [claim.holds for claim in steep] == [True, False, False, False, True]
    assert "8 times" in steep[1].found
    assert [claim.holds for claim in claims([])] == [None]


def test_a_figure_shows_time_bytes_and_accuracy():
    (figure,) = plot(made_up()).values()
    times, sizes, aucs = figure.axes
    assert [len(axes.lines) for axes in (times, sizes, aucs)] == [6, 5, 2]
    assert [tick.get_text() for tick in aucs.get_xticklabels()] == ["16", "32", "64"]
    assert times.get_yscale() == sizes.get_yscale() == "log"
    assert max(np.asarray(sizes.lines[0].get_ydata())) == pytest.approx(0.064)


@pytest.mark.slow
@pytest.mark.skipif(not FOLDER, reason=NO_DATA)
@pytest.mark.long
def test_on_real_data_merging_helps_at_every_n():
    rows = cost.run(Plan(Scope(Path(FOLDER or ""), quick=True)))
    assert [row["hidden"] for row in rows] == [16, 32, 64, 128, 256]
    assert claims(rows)[0].holds
    sizes = [row["root16_bytes"] for row in rows]
    assert sizes == sorted(sizes)
