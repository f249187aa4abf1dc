"""Merging at once against learning one by one: the lines, where they meet, and what it costs."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgemerge import Projection, Stats
from edgemerge.paper import convergence, plan
from edgemerge.paper.convergence import LossCurves
from edgemerge.paper.loss_figures import DEVICE_B, TwoDevices
from edgemerge.paper.plan import Plan, Scope
from tests.paper.toys import toy
from tests.services.missing import NO_DATA

PATTERNS = ("walking", "walking_upstairs", "walking_downstairs", "sitting", "standing", "laying")
PRINTED = 5e-6  # relative: half of the last of six digits
SAMPLES, LEARNT = 160, 128  # of each pattern: 50, 100 and a rest
TIMES = {
    convergence.UPDATE_TIME: 1e-4,
    convergence.SCORED_UPDATE_TIME: 5e-4,
    convergence.MERGE_TIME: 1e-3,
}
AT_ONCE, HUNDREDS, PAPER, WHY, SAME, FASTER = range(6)
MEETS = {  # after so many updates, within 5 %
    "as shown": 1350,
    "no ridge": 1350,
    "loss of learnt samples": 1400,
    "people held out": 1400,
    "Device-B learnt 200 samples": 1300,
    "N = 64": 1250,
    "N = 256": 1400,
    "Device-A learnt 1000 samples": 900,
    "Device-A learnt 700 samples": 650,
}


def row(trial, what, updates, value):
    return {"trial": trial, "what": what, "updates": updates, "value": value}


def made_up(lines, *, step=50, times=TIMES, same=1):
    """Rows of one line of losses for each trial; the last loss is the merged one."""
    rows = [row(0, what, 1, value) for what, value in times.items()]
    for trial, losses in enumerate(lines):
        end = step * (len(losses) - 1)
        rows += [
            row(trial, convergence.ONE_BY_ONE, step * i, loss) for i, loss in enumerate(losses)
        ]
        rows += [row(trial, convergence.MERGED, end, losses[-1])]
        rows += [row(trial, convergence.SAME_SUMS, end, same)]
    return rows


def meetings(changed=(), wide=600):
    """Rows of where the lines of each variation meet, and of the run shown for each tolerance."""
    updates = {(name, 0.05): k for name, k in (MEETS | dict(changed)).items()}
    updates |= {("as shown", 0.1): 1200, ("as shown", 0.2): 950, ("as shown", 0.4): wide}
    return [row(0, convergence.MEETING + name, k, t) for (name, t), k in updates.items()]


def drawn(rows):
    return convergence.plot(rows)[""].axes


def falling(end, near):
    """Losses that are twice the last one until `near` updates, and then 4 % above it."""
    return [9.0, *([2.0] * (near // 50 - 1)), *([1.04] * ((end - near) // 50)), 1.0]


@pytest.fixture
def scope(monkeypatch, tmp_path):
    """Six made-up activities of few inputs, in the range of the real ones."""
    small = toy(patterns=6, samples=SAMPLES, inputs=24)
    made = replace(small, name="har", X=2.0 * small.X - 1.0, patterns=PATTERNS, low=-1.0)
    monkeypatch.setattr(plan, "_dataset", lambda *_: made)
    monkeypatch.setattr(convergence, "TIMING_S", 0.0)
    return Scope(tmp_path)


def test_the_loss_is_looked_at_every_fifty_updates_up_to_all_samples_of_device_a(scope):
    rows = convergence.run(Plan(scope, trials=2))
    lines = LossCurves.of(rows)
    assert lines.updates.tolist() == [0, 50, 100, LEARNT]
    assert (lines.losses.shape, lines.merged.shape) == ((2, 4), (2,))
    assert (lines.losses[:, 0] > 3.0 * lines.merged).all()


def test_learning_all_of_a_device_s_samples_is_merging_it_to_the_last_bit(scope):
    rows = convergence.run(Plan(scope, trials=3))
    lines = LossCurves.of(rows)
    assert lines.losses[:, -1].tolist() == lines.merged.tolist()
    assert convergence.claims(rows)[SAME].holds
    assert all(line["same sums"] == "yes" for line in convergence.table(rows))


def test_the_loss_is_that_of_kept_samples_at_device_b(scope):
    rows = convergence.run(Plan(scope, trials=1))
    job = plan.Job(convergence.NAME, "har", "lines", 0)
    devices = TwoDevices(job, scope, ("laying", "walking"))
    kept = devices.data.X[devices.split.keep[PATTERNS.index("laying")]]
    before = devices.devices[DEVICE_B].loss(kept).mean()
    assert LossCurves.of(rows).losses[0, 0] == pytest.approx(before, rel=PRINTED)
    devices.exchange()
    after = devices.devices[DEVICE_B].loss(kept).mean()
    assert LossCurves.of(rows).merged[0] == pytest.approx(after, rel=PRINTED)


def test_there_are_at_most_ten_trials_and_times_are_measured_once():
    jobs = []

    def note(_, found, __):
        jobs.extend(found)
        return iter(())

    convergence.run(Plan(Scope(Path()), trials=50, spread=note))
    assert [job.method for job in jobs] == ["lines"] * 10 + ["meeting"] * 3 + ["times"]


def test_rows_are_numbers_and_words_of_one_type_each(scope):
    rows = convergence.run(Plan(scope, trials=1))
    assert {tuple(found) for found in rows} == {("trial", "what", "updates", "value")}
    assert {type(found["updates"]) for found in rows} == {int}


def test_lines_meet_where_the_loss_is_first_within_five_per_cent():
    lines = LossCurves.of(made_up([falling(1500, 650), falling(1500, 700), falling(1500, 900)]))
    assert lines.crossings.tolist() == [650, 700, 900]
    assert lines.median_crossing == 700


def test_lines_that_never_come_near_meet_at_the_end():
    rows = made_up([[9.0, 5.0, 4.0, 3.0]])
    next(found for found in rows if found["what"] == convergence.MERGED)["value"] = 1.0
    assert LossCurves.of(rows).median_crossing == 150


def test_where_lines_meet_tells_how_many_samples_the_other_device_had():
    losses = [9.0, 4.0, 2.0, 1.5, 1.22, 1.2, 1.18, 1.1, 1.0]
    lines = LossCurves.of(made_up([losses]))
    assert lines.samples_to_cross_at(200) == 300  # 1.22 is within 5 % of 1.18, and not of 1.1
    assert lines.above(150) == pytest.approx(1.5)


def test_lines_that_meet_about_where_the_paper_s_do_fulfil_every_claim():
    rows = made_up([falling(1500, 650)]) + meetings()
    assert [claim.holds for claim in convergence.claims(rows)] == [True] * 6


def test_what_moves_the_meeting_is_told_with_the_numbers():
    lines = made_up([falling(1500, 1350)])
    claim = convergence.claims(lines + meetings())[WHY]
    assert claim.holds
    assert "no ridge 1350" in claim.found
    assert "Device-A learnt 700 samples 650" in claim.found
    assert claim.found.endswith("as shown, within 5% 1350, 10% 1200, 20% 950, 40% 600")
    for other in (meetings({"no ridge": 700}), meetings(wide=900)):
        assert convergence.claims(lines + other)[WHY].holds is False
    late = meetings({"Device-A learnt 700 samples": 300})
    assert convergence.claims(lines + late)[WHY].holds is False
    assert convergence.claims(made_up([falling(320, 300)]) + meetings())[WHY].holds is None


def test_a_variation_meets_at_the_first_point_within_the_tolerance(scope):
    rows = convergence.work(plan.Job(convergence.NAME, "har", "meeting", 0), scope)
    assert len(rows) == len(convergence.VARIATIONS) * len(convergence.TOLERANCES)
    losses = LossCurves.of(convergence.run(Plan(scope, trials=1)))
    for tolerance in convergence.TOLERANCES:
        near = losses.losses[0] <= (1.0 + tolerance) * losses.merged[0]
        expected = losses.updates[near.argmax()]
        assert convergence.meeting(rows, "as shown", tolerance) == expected
    later = [convergence.meeting(rows, "no ridge", t) or 0 for t in convergence.TOLERANCES]
    assert 0 not in later
    assert later == sorted(later, reverse=True)
    assert convergence.meeting(rows, "no such variation") is None


def test_lines_that_meet_elsewhere_are_told_with_the_number():
    claim = convergence.claims(made_up([falling(1500, 1350)]))[PAPER]
    assert not claim.holds
    assert claim.found.startswith("they meet after 1350; after 650 the loss is still 2.00 times")


def test_with_fewer_samples_than_the_paper_s_650_the_comparison_is_left_out():
    found = convergence.claims(made_up([falling(320, 300)]))
    assert found[PAPER].holds is None
    assert found[HUNDREDS].holds


def test_lines_that_meet_early_are_told():
    assert convergence.claims(made_up([falling(1500, 100)]))[HUNDREDS].holds is False


def test_a_merge_that_does_not_help_is_told():
    assert convergence.claims(made_up([[1.0, 1.0, 1.0]]))[AT_ONCE].holds is False


@pytest.mark.parametrize("change", ["sums", "loss"])
def test_an_end_that_is_not_the_same_is_told(change):
    rows = made_up([falling(1500, 650)] * 2, same=0 if change == "sums" else 1)
    if change == "loss":
        end = [found for found in rows if found["what"] == convergence.ONE_BY_ONE][-1]
        end["value"] = np.nextafter(end["value"], 2.0).item()
    claim = convergence.claims(rows)[SAME]
    assert claim.holds is False
    assert claim.found == f"equal sums and equal losses in {int(change == 'loss')} of 2 trials"


def test_a_merge_is_compared_with_the_updates_until_the_lines_meet():
    claim = convergence.claims(made_up([falling(1500, 650)]))[FASTER]
    assert claim.holds
    assert claim.found.startswith(
        "one merge 1.0 ms; 650 updates 65 ms, 65 times as long (325 ms with a score of each sample)"
    )
    slow = TIMES | {convergence.MERGE_TIME: 0.066}
    assert convergence.claims(made_up([falling(1500, 650)], times=slow))[FASTER].holds is False


def test_what_was_not_measured_is_neither_true_nor_false():
    assert {claim.holds for claim in convergence.claims([])} == {None}
    assert convergence.table([]) == []
    no_times = convergence.claims(made_up([falling(1500, 650)], times={}))
    assert [claim.holds for claim in no_times] == [True, True, True, None, True, None]


def test_an_update_s_time_is_that_of_one_of_many_and_a_merge_s_of_one_merge(monkeypatch):
    clock = iter(range(10**6))
    monkeypatch.setattr("edgemerge.paper.timing.process_time", lambda: next(clock))
    monkeypatch.setattr(convergence, "TIMING_S", 0.0)
    layer = Projection(n_inputs=4, n_hidden=3)
    X = np.random.default_rng(0).uniform(-1, 1, (40, 4))
    stats = Stats.of(layer, X)
    assert convergence.time_updates(stats, stats, X) == {
        convergence.UPDATE_TIME: 1 / 40,
        convergence.SCORED_UPDATE_TIME: 1 / 40,
        convergence.MERGE_TIME: 1 / convergence.MERGES_PER_TURN,
    }


def test_the_figure_has_a_falling_and_a_flat_line_on_a_log_axis_and_marks_where_they_meet():
    (axes,) = drawn(made_up([falling(1500, 1350)] * 2))
    falls, flat, *marks = axes.lines
    assert axes.get_yscale() == "log"
    assert falls.get_ydata()[0] > falls.get_ydata()[-1]
    assert set(flat.get_ydata()) == {1.0}
    assert sorted(mark.get_xdata()[0] for mark in marks) == [650, 1350]
    assert [text.get_text()[:20] for text in axes.texts] == [
        "within 5 % after 135",
        "the paper: about 650",
    ]


def test_the_paper_s_mark_is_left_out_where_the_line_is_shorter():
    (axes,) = drawn(made_up([falling(320, 300)]))
    assert [text.get_text() for text in axes.texts] == ["within 5 % after 300 updates"]


@pytest.mark.slow
@pytest.mark.skipif("EDGEMERGE_DATA" not in os.environ, reason=NO_DATA)
@pytest.mark.long
def test_on_real_activities_merging_is_at_once_where_learning_ends(monkeypatch):
    monkeypatch.setattr(convergence, "TIMING_S", 0.1)
    scope = Scope(Path(os.environ["EDGEMERGE_DATA"]), quick=True)
    found = convergence.claims(convergence.run(Plan(scope, trials=3)))
    assert [claim.holds for claim in found] == [True, True, None, None, True, True]
