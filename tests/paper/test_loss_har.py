"""Loss before and after merging, human activities: the claims on rows, and on the real data."""

import os
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from edgemerge.paper import loss_har, plan
from edgemerge.paper.loss_figures import AFTER_MERGE, DEVICE_A, DEVICE_B, rows_of_cut
from edgemerge.paper.plan import Job, Plan, Scope
from edgemerge.paper.running import result_files
from tests.paper.toys import toy
from tests.services.missing import NO_DATA

COMMITTED = Path(__file__).parents[2] / "docs" / "results" / "paper"
LAST_DIGIT = 1e-5  # relative: one unit in the last of six digits
PATTERNS = (*loss_har.WALKING, "sitting", "standing", "laying")
BP = "BP-NN3"
METHODS = (DEVICE_A, DEVICE_B, *AFTER_MERGE.values())
LOSSES = {  # in the order of the patterns, as the paper says
    DEVICE_A: (0.10, 0.08, 0.18, 0.0012, 0.0015, 0.0080),
    DEVICE_B: (0.11, 0.07, 0.16, 0.0170, 0.0190, 0.0017),
    AFTER_MERGE[DEVICE_A]: (0.09, 0.06, 0.15, 0.0013, 0.0016, 0.0018),
    AFTER_MERGE[DEVICE_B]: (0.09, 0.06, 0.15, 0.0013, 0.0016, 0.0018),
    BP: (0.02, 0.01, 0.04, 0.0004, 0.0005, 0.0006),
}
FALLS, ORDER = "the loss of {} at {} falls", "BP-NN3 orders"


def made_up(losses):
    return [
        {"cut": "sample", "trial": trial, "method": method, "pattern": pattern}
        | {"loss": loss, "sums": "s"}
        for trial in range(2)
        for method, found in losses.items()
        for pattern, loss in zip(PATTERNS, found, strict=True)
    ]


def changed(method, pattern, loss):
    at, before = PATTERNS.index(pattern), LOSSES[method]
    return LOSSES | {method: (*before[:at], loss, *before[at + 1 :])}


def drawn(rows):
    return loss_har.plot(rows)[""].axes


def failed(rows):
    """What does not hold, without the split; the made-up rows have one."""
    found = [claim.text for claim in loss_har.claims(rows) if claim.holds is False]
    return [text.removeprefix("by sample: ") for text in found]


@pytest.fixture
def scope(monkeypatch, tmp_path):
    """Six made-up activities of few inputs, in the range of the real ones."""
    small = toy(patterns=6, samples=60, inputs=24)
    made = replace(small, name="har", X=2.0 * small.X - 1.0, patterns=PATTERNS, low=-1.0)
    monkeypatch.setattr(plan, "_dataset", lambda *_: made)
    return Scope(tmp_path)


def test_every_trial_measures_all_activities_at_all_devices(scope):
    rows = loss_har.run(Plan(scope, trials=2, baseline_trials=0))
    found = [(row["cut"], row["trial"], row["method"], row["pattern"]) for row in rows]
    assert found == list(product(("sample", "person"), range(2), METHODS, PATTERNS))
    rows = rows_of_cut(rows, "sample")
    loss = {(row["method"], row["pattern"]): row["loss"] for row in rows if row["trial"] == 0}
    assert (
        loss[DEVICE_A, "sitting"]
        < loss[DEVICE_B, "sitting"]
        > loss[AFTER_MERGE[DEVICE_B], "sitting"]
    )
    assert (
        loss[DEVICE_B, "laying"] < loss[DEVICE_A, "laying"] > loss[AFTER_MERGE[DEVICE_A], "laying"]
    )


@pytest.mark.slow
def test_bp_nn3_is_trained_in_as_many_trials_as_baselines_have_on_the_same_samples(scope):
    pytest.importorskip("torch")
    rows = rows_of_cut(loss_har.run(Plan(scope, trials=1, baseline_trials=2)), "sample")
    found = [(row["trial"], row["pattern"]) for row in rows if row["method"] == BP]
    assert found == [(t, p) for t in range(2) for p in PATTERNS]
    loss = {row["pattern"]: row["loss"] for row in rows if row["method"] == BP}
    others = [loss[p] for p in (*loss_har.WALKING, "standing")]
    assert max(loss["sitting"], loss["laying"]) < min(others)


@pytest.mark.slow
def test_bp_nn3_is_the_network_of_the_roc_auc_s_trial(scope):
    pytest.importorskip("torch")
    from edgemerge.paper import backprop
    from edgemerge.paper import backprop as backprop_module
    from edgemerge.paper.dataset import Trial

    job = Job("auc", "har", BP, 1)
    trial = Trial(job, scope)
    net = backprop_module.train_pair(trial, BP, PATTERNS.index("sitting"), PATTERNS.index("laying"))
    kept = trial.data.between_0_and_1(trial.split.keep[0])
    (row, *_) = loss_har.work(Job(loss_har.NAME, "har", BP, 1, "sample"), scope)
    assert row["loss"] == pytest.approx(backprop.losses(net, kept).mean(), rel=1e-5)  # float32


def test_rows_as_the_paper_has_them_fulfil_every_claim():
    both = [row | {"cut": cut} for cut in loss_har.CUTS for row in made_up(LOSSES)]
    assert [claim.holds for claim in loss_har.claims(both)] == [True] * 17


@pytest.mark.parametrize(
    ("method", "pattern", "loss", "fails"),
    [
        (
            AFTER_MERGE[DEVICE_B],
            "sitting",
            0.018,
            [FALLS.format("sitting", DEVICE_B), "standing, which no device"],
        ),
        (AFTER_MERGE[DEVICE_A], "laying", 0.009, [FALLS.format("laying", DEVICE_A)]),
        (
            AFTER_MERGE[DEVICE_A],
            "sitting",
            0.006,
            ["the loss of sitting at Device-A, which learnt it"],
        ),
        (
            AFTER_MERGE[DEVICE_B],
            "laying",
            0.004,
            ["the loss of laying at Device-B, which learnt it"],
        ),
        (AFTER_MERGE[DEVICE_A], "walking", 0.04, ["the losses of the three ways of walking"]),
        (
            AFTER_MERGE[DEVICE_B],
            "walking_upstairs",
            0.17,
            ["the losses of the three ways of walking"],
        ),
        (AFTER_MERGE[DEVICE_B], "standing", 0.02, ["standing, which no device learnt"]),
        (BP, "laying", 0.09, []),
        (BP, "sitting", 0.09, [ORDER]),
    ],
)
def test_a_claim_that_does_not_hold_is_told(method, pattern, loss, fails):
    found = failed(made_up(changed(method, pattern, loss)))
    told = [text for text in found if any(text.startswith(start) for start in fails)]
    assert len(told) == len(fails)


def test_walking_that_is_rebuilt_well_is_not_anomalous_any_more():
    losses = LOSSES | {AFTER_MERGE[DEVICE_B]: (0.09, 0.015, 0.15, 0.0013, 0.0016, 0.0018)}
    assert any(
        text.startswith("after merging they are still anomalous")
        for text in failed(made_up(losses))
    )


def test_devices_that_differ_after_merging_are_told():
    rows = made_up(LOSSES)
    next(row for row in rows if row["method"] == AFTER_MERGE[DEVICE_A])["sums"] = "t"
    assert failed(rows) == [loss_har.claims(rows)[-1].text]


def test_what_was_not_measured_is_neither_true_nor_false():
    assert {claim.holds for claim in loss_har.claims([])} == {None}
    without = [row for row in made_up(LOSSES) if row["method"] != BP]
    found = {
        claim.text.removeprefix("by sample: "): claim.holds
        for claim in loss_har.claims(without)
        if not claim.text.startswith("by person: ")
    }
    assert [text[:13] for text, holds in found.items() if holds is None] == [ORDER]


@pytest.mark.parametrize(
    ("y", "expected"),
    [([1.0, 2.0, 11.0, 9.0], 1.0), ([4.0, 3.0, 1.0, 2.0], -1.0), ([1.0, 3.0, 4.0, 2.0], 0.8)],
)
def test_orders_agree_by_ranks(y, expected):
    x = np.array([0.1, 0.2, 40.0, 0.3])
    assert loss_har.rank_correlation(x, np.array(y)) == pytest.approx(expected)


def test_the_table_has_a_line_for_each_activity():
    table = loss_har.table(made_up(LOSSES))
    assert [row["pattern"] for row in table] == list(PATTERNS)
    assert table[3] == {
        "cut": "by sample",
        "pattern": "sitting",
        DEVICE_A: 0.0012,
        DEVICE_B: 0.017,
        AFTER_MERGE[DEVICE_A]: 0.0013,
        BP: 0.0004,
    }


def test_bp_nn3_has_a_log_axis_of_its_own_on_the_right_in_grey():
    left, right = drawn(made_up(LOSSES))
    assert (left.get_yscale(), right.get_yscale()) == ("log", "log")
    assert len({points.get_color() for points in left.lines}) == 3
    (grey,) = {to_rgb(points.get_color()) for points in right.lines}
    assert len(set(grey)) == 1
    assert right.yaxis.get_label_position() == "right"
    assert list(right.lines[0].get_ydata()) == pytest.approx(LOSSES[BP])


def test_both_axes_have_as_many_decades_and_no_point_hides_another():
    left, right = drawn(made_up(LOSSES))
    spans = [axes.get_ylim()[1] / axes.get_ylim()[0] for axes in (left, right)]
    assert spans[0] == pytest.approx(spans[1])
    drawn_points = [*left.lines, *right.lines]
    assert len({points.get_marker() for points in drawn_points}) == 4, "told apart in grey, too"
    places = sorted(x for points in drawn_points for x in points.get_xdata())
    assert len(places) == 4 * len(PATTERNS)
    assert min(b - a for a, b in pairwise(places)) > 0.15
    for axes in (left, right):
        low, high = axes.get_ylim()
        assert all(low < y < high for points in axes.lines for y in points.get_ydata())
        assert not axes.patches, "a bar on a log axis has no length"


def test_points_of_both_axes_stand_at_one_height():
    left, right = drawn(
        made_up(LOSSES | {BP: [loss / 4 for loss in LOSSES[AFTER_MERGE[DEVICE_A]]]})
    )
    assert right.get_ylim() == pytest.approx([end / 4 for end in left.get_ylim()])


def test_without_bp_nn3_the_devices_are_drawn_alone():
    rows = [row for row in made_up(LOSSES) if row["method"] != BP]
    _, right = drawn(rows)
    assert not right.lines


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif("EDGEMERGE_DATA" not in os.environ, reason=NO_DATA)
def test_on_real_activities_the_paper_s_claims_hold():
    pytest.importorskip("torch")
    scope = Scope(Path(os.environ["EDGEMERGE_DATA"]), quick=True)
    rows = loss_har.run(Plan(scope, trials=3, baseline_trials=1))
    assert [claim.text for claim in loss_har.claims(rows) if not claim.holds] == []


@pytest.mark.slow
@pytest.mark.skipif("EDGEMERGE_DATA" not in os.environ, reason=NO_DATA)
@pytest.mark.parametrize("cut", loss_har.CUTS)
def test_committed_losses_are_made_again_to_the_digits_that_are_printed(cut):
    kept = result_files.read_result(COMMITTED, loss_har.NAME)
    job = Job(loss_har.NAME, "har", "merging", 0, cut)
    made = loss_har.work(job, Scope(Path(os.environ["EDGEMERGE_DATA"]), kept.record.seed))
    wanted = [
        row for row in rows_of_cut(kept.rows, cut) if row["trial"] == 0 and row["method"] != BP
    ]
    assert len(made) == len(wanted) == len(METHODS) * len(PATTERNS)
    for row, before in zip(made, wanted, strict=True):
        assert row["sums"] == before["sums"], "sums are equal to the last bit everywhere"
        assert row["loss"] == pytest.approx(before["loss"], rel=LAST_DIGIT)
        assert float(f"{before['loss']:.6g}") == before["loss"], "no digit that may differ"
        assert {k: v for k, v in row.items() if k != "loss"}.items() <= before.items()
