"""Latency: times become rows, ratios, a table and claims. How fast is never asserted."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from edgemerge import Detector
from edgemerge.paper import latency, latency_steps
from edgemerge.paper.dataset import Dataset, Trial
from edgemerge.paper.hyperparameters import FEDERATED, ROUNDS, Layer, Network, trained_detector
from edgemerge.paper.latency import claims, plot, rows_of, table
from edgemerge.paper.plan import Job, Plan, Scope
from edgemerge.paper.running.result_files import checked_rows, column_types, from_csv, to_csv
from edgemerge.paper.timing import (
    ALL_ROUNDS,
    DEFERRED,
    EPOCH_PER_ROUND,
    EPOCHS_IN_ALL,
    IN_CHUNKS,
    MERGE,
    MIN_ROUNDS,
    ONE_BY_ONE,
    ONE_ROUND,
    OURS,
    PAIR,
    PAPER_MS,
    PREDICT,
    PUBLISHED,
    READY_FOR_LOSS,
    READY_FOR_SCORE,
    SUMS_FROM_P,
    SUMS_KEPT,
    TEXTBOOK,
    TRAIN,
    Step,
    TimedCall,
    best_times,
)
from tests.paper.toys import toy
from tests.services.missing import NO_DATA

pytestmark = pytest.mark.slow  # PyTorch takes seconds to import

FOLDER = os.environ.get("EDGEMERGE_DATA")
STEPS = {
    *(Step(TRAIN, OURS, what) for what in (DEFERRED, READY_FOR_LOSS, READY_FOR_SCORE)),
    *(
        Step(job, OURS, what)
        for job in (PREDICT, MERGE)
        for what in (READY_FOR_LOSS, READY_FOR_SCORE)
    ),
    *(Step(job, way) for job in (TRAIN, PREDICT) for way in (PUBLISHED, TEXTBOOK, FEDERATED)),
    *(Step(MERGE, PUBLISHED, what) for what in (SUMS_KEPT, SUMS_FROM_P)),
    *(Step(MERGE, FEDERATED, what) for what in (ONE_ROUND, ALL_ROUNDS)),
}
PAIRS = {
    *(
        Step(PAIR, way, what)
        for way in ("after", "bank", "ours")
        for what in (IN_CHUNKS, ONE_BY_ONE)
    ),
    *(
        Step(PAIR, "BP-NN3", EPOCHS_IN_ALL),
        Step(PAIR, FEDERATED, EPOCHS_IN_ALL),
        Step(PAIR, FEDERATED, EPOCH_PER_ROUND),
    ),
}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def named(name, **options):
    found = toy(samples=400, **options)
    return Dataset(name, found.X, found.y, found.patterns, found.origin)


def step_of(row):
    return Step(row["job"], row["method"], row["what"])


def made_up(ours=1.0):
    """Rows in which everything takes a second, but ours."""
    data, rows = named("har"), []
    for N in (64, 128):
        times = {step: ours if step.method == OURS else 1.0 for step in sorted(STEPS)}
        rows += rows_of(data, times, hidden=N)
    times = {step: ours if step.method == "ours" else 1.0 for step in sorted(PAIRS)}
    return rows + rows_of(data, times)


def test_ratios_are_those_of_the_times():
    times = {step: 1.0 + i for i, step in enumerate(sorted(STEPS))}
    for row in rows_of(named("har"), times, hidden=64):
        of_fl, of_published = latency.COMPARED_WITH[str(row["job"])]
        assert row["ms"] == 1e3 * times[step_of(row)]
        assert row["of_fl"] == pytest.approx(row["ms"] / (1e3 * times[of_fl]))
        assert row["of_published"] == pytest.approx(row["ms"] / (1e3 * times[of_published]))


def test_what_the_paper_printed_stands_beside_the_same_step():
    found = {
        (step_of(row), row["hidden"]): row["paper_ms"] for row in made_up() if "paper_ms" in row
    }
    assert found == PAPER_MS
    assert found[Step(MERGE, FEDERATED, ALL_ROUNDS), 128] == 2.42 * 50


def test_the_table_has_both_sizes_beside_each_other_and_no_pairs():
    lines = table(made_up(0.5))
    assert len(lines) == len(STEPS)
    first = next(line for line in lines if line["method"] == OURS)
    assert first["ms, N = 64"] == first["ms, N = 128"] == 500.0
    assert first["of BP-NN3-FL, N = 64"] == 0.5


def test_rows_survive_being_written():
    rows = checked_rows(made_up(), "latency")
    columns = column_types(rows, "latency")
    assert from_csv(to_csv(rows, columns), columns, "latency") == rows


def test_claims_hold_when_ours_is_fast_and_say_by_how_much_when_not():
    assert all(claim.holds for claim in claims(made_up(0.01)))
    slow = {claim.text: claim for claim in claims(made_up(2.0))}
    assert not any(claim.holds for claim in slow.values())
    assert (
        "2 of its time" in slow["Predicting a loss takes no longer than the published style"].found
    )
    pair = next(claim for text, claim in slow.items() if "trains a pair" in text)
    assert "missed by a factor of 40" in pair.found


def test_claims_about_what_was_not_measured_are_left_open():
    found = claims([])
    assert found
    assert all(claim.holds is None for claim in found)
    only = [row for row in made_up() if row["job"] == TRAIN]
    assert {claim.holds is None for claim in claims(only)} == {True, False}


def test_one_size_that_is_slower_breaks_a_claim():
    rows = made_up(0.5)  # of a second
    for row in rows:
        if row.get("hidden") == 128 and row["method"] == OURS:
            row["ms"] = 5000.0
    assert not any(claim.holds for claim in claims(rows) if "pair" not in claim.text)


def test_figures_are_drawn_for_what_there_is():
    rows = made_up()
    assert set(plot(rows)) == {"steps", "pair"}
    assert set(plot([row for row in rows if row["job"] == PAIR])) == {"pair"}
    steps = plot([row for row in rows if row["job"] != PAIR])
    assert set(steps) == {"steps"}
    assert len(steps["steps"].axes) == 6
    for panel in [*steps["steps"].axes, *plot(rows)["pair"].axes]:
        assert panel.get_xscale() == "log"
        assert not panel.patches, "a bar on a log axis has no length"
        assert len(panel.collections[0].get_offsets()) == len(panel.texts), "a number at each point"


def test_every_step_of_every_method_is_timed(monkeypatch):
    monkeypatch.setattr(latency_steps, "SAMPLES_PER_TURN", 8)
    monkeypatch.setattr(latency_steps, "GRADIENT_STEPS", 4)
    data = named("har")
    X, Y = (data.X[data.rows(name)] for name in data.patterns[:2])
    times = latency_steps.measure_steps(Layer("identity", 4).projection(data, 7), X, Y, 0.0)
    assert set(times) == STEPS
    differences = {Step(TRAIN, OURS, what) for what in (READY_FOR_LOSS, READY_FOR_SCORE)}
    assert all(time > 0.0 for step, time in times.items() if step not in differences)
    one = times[Step(MERGE, FEDERATED, ONE_ROUND)]
    assert times[Step(MERGE, FEDERATED, ALL_ROUNDS)] == ROUNDS * one


def test_a_timed_step_really_learns_and_merges():
    data = named("har")
    layer = Layer("identity", 4).projection(data, 7)
    X, Y = (data.X[data.rows(name)] for name in data.patterns[:2])
    device, twin = (trained_detector(layer, X) for _ in range(2))
    latency_steps.learn_each(device.learn, device.loss, list(Y[:20]))
    twin.learn(Y[:20])
    assert device.own == twin.own
    told = twin.own
    latency_steps.merge_each(device, told, device.score, X[0])
    assert device.others == told


def test_training_is_timed_with_an_answer_about_another_sample_that_is_taken_off(monkeypatch):
    data, calls = named("har"), []
    rows = list(data.X[:3])
    latency_steps.learn_each(lambda x: calls.append(x[0]), lambda x: calls.append(x[0]), rows)
    first, second, third = (row[0] for row in rows)
    assert calls == [first, third, second, first, third, second]
    monkeypatch.setattr(latency_steps, "best_times", lambda calls, _s: range(3, len(calls) + 3))
    X, Y = (data.X[data.rows(name)] for name in data.patterns[:2])
    times = latency_steps.measure_steps(Layer("identity", 4).projection(data, 7), X, Y, 0.0)
    for what in (READY_FOR_LOSS, READY_FOR_SCORE):
        assert times[Step(TRAIN, OURS, what)] == 4 - 6  # of learn and ask, then of ask alone


def test_all_training_is_counted_in_steps():
    network = Network((4,), batch=8, epochs=20)
    found = latency_steps.total_times(network, (9, 16), step=1.0, mean=0.01)
    assert found[Step(PAIR, "BP-NN3", EPOCHS_IN_ALL)] == 4 * 20
    assert found[Step(PAIR, FEDERATED, EPOCHS_IN_ALL)] == pytest.approx(23 + 40 + 50 * 0.01)
    assert found[Step(PAIR, FEDERATED, EPOCH_PER_ROUND)] == pytest.approx((2 + 2) * 50 + 50 * 0.01)


def test_a_trained_pair_knows_both_parts():
    data = named("har")
    X, Y = (data.X[data.rows(name)] for name in data.patterns[:2])
    made = []

    def make():
        made.append(Detector(Layer("identity", 4).projection(data, 7)))
        return made[-1]

    latency_steps.train_and_merge(make, (X, Y), latency_steps.learn_in_chunks)
    assert [device.own.count for device in made] == [400, 400]
    assert made[0].others == made[1].own
    assert made[1].others == made[0].own


def test_a_pair_is_timed_for_every_method(monkeypatch):
    monkeypatch.setattr("edgemerge.paper.plan._dataset", lambda *_: named("har", inputs=20))
    trial = Trial(Job("latency", "har", "all", 0), Scope(Path(), quick=True))
    times = latency_steps.measure_pair(trial, 0, 1, 0.0)
    assert set(times) == PAIRS
    differences = {Step(TRAIN, OURS, what) for what in (READY_FOR_LOSS, READY_FOR_SCORE)}
    assert all(time > 0.0 for step, time in times.items() if step not in differences)


def test_the_best_time_of_many_turns_counts_for_one_unit():
    calls = []
    turns = [TimedCall("a", "", lambda: calls.append("a"), 4), TimedCall("b", "", list)]
    found = best_times(turns, 0.0)
    assert len(calls) == 1 + MIN_ROUNDS
    assert all(0.0 <= time < 1.0 for time in found)


@pytest.mark.long
@pytest.mark.skipif(not FOLDER, reason=NO_DATA)
def test_a_quick_run_measures_all_on_real_data():
    rows = latency.run(Plan(Scope(Path(FOLDER or ""), quick=True)))
    for N in (64, 128):
        assert {step_of(row) for row in rows if row.get("hidden") == N} == STEPS
    assert {row["dataset"] for row in rows if row["job"] == PAIR} >= {"har"}
    assert all(np.isfinite(row["ms"]) and row["ms"] > 0.0 for row in rows)
    assert all(claim.holds is not None for claim in claims(rows))
