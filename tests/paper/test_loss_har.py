"""Loss before and after merging, human activities: the claims on rows, and on the real data."""

import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from edgemerge.paper import loss_har, plan
from edgemerge.paper.loss_figures import AFTER_MERGE, DEVICE_A, DEVICE_B
from edgemerge.paper.plan import Job, Plan, Scope
from tests.paper.toys import toy
from tests.services.missing import NO_DATA

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
        {"trial": trial, "method": method, "pattern": pattern, "loss": loss, "sums": "s"}
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
    return [claim.text for claim in loss_har.claims(rows) if claim.holds is False]


@pytest.fixture
def scope(monkeypatch, tmp_path):
    """Six made-up activities of few inputs, in the range of the real ones."""
    small = toy(patterns=6, samples=60, inputs=24)
    made = replace(small, name="har", X=2.0 * small.X - 1.0, patterns=PATTERNS, low=-1.0)
    monkeypatch.setattr(plan, "_dataset", lambda *_: made)
    return Scope(tmp_path)


def test_every_trial_measures_all_activities_at_all_devices(scope):
    rows = loss_har.run(Plan(scope, trials=2, baseline_trials=0))
    found = [(row["trial"], row["method"], row["pattern"]) for row in rows]
    assert found == [(t, m, p) for t in range(2) for m in METHODS for p in PATTERNS]
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
    rows = loss_har.run(Plan(scope, trials=1, baseline_trials=2))
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
    (row, *_) = loss_har.work(Job(loss_har.NAME, "har", BP, 1), scope)
    assert row["loss"] == pytest.approx(backprop.losses(net, kept).mean(), rel=1e-5)  # float32


def test_rows_as_the_paper_has_them_fulfil_every_claim():
    assert [claim.holds for claim in loss_har.claims(made_up(LOSSES))] == [True] * 9


@pytest.mark.parametrize(
    ("method", "pattern", "loss", "fails"),
    [
        (
            AFTER_MERGE[DEVICE_B],
            "sitting",
            0.018,
            [FALLS.format("sitting", DEVICE_B), "standing, which nobody"],
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
        (AFTER_MERGE[DEVICE_B], "standing", 0.02, ["standing, which nobody learnt"]),
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
    found = {claim.text: claim.holds for claim in loss_har.claims(without)}
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
        "pattern": "sitting",
        DEVICE_A: 0.0012,
        DEVICE_B: 0.017,
        AFTER_MERGE[DEVICE_A]: 0.0013,
        BP: 0.0004,
    }


def test_bp_nn3_has_a_log_axis_of_its_own_on_the_right_in_grey():
    left, right = drawn(made_up(LOSSES))
    assert (left.get_yscale(), right.get_yscale()) == ("log", "log")
    assert len({bar.get_facecolor() for bar in left.patches}) == 3
    (grey,) = {bar.get_facecolor()[:3] for bar in right.patches}
    assert len(set(grey)) == 1
    assert right.yaxis.get_label_position() == "right"
    assert [bar.get_height() for bar in right.patches] == pytest.approx(LOSSES[BP])


def test_both_axes_have_as_many_decades_and_no_bar_hides_another():
    left, right = drawn(made_up(LOSSES))
    spans = [axes.get_ylim()[1] / axes.get_ylim()[0] for axes in (left, right)]
    assert spans[0] == pytest.approx(spans[1])
    bars = sorted((bar.get_x(), bar.get_width()) for axes in (left, right) for bar in axes.patches)
    assert len(bars) == 4 * len(PATTERNS)
    assert all(a + width <= b for (a, width), (b, _) in pairwise(bars))
    for axes in (left, right):
        low, high = axes.get_ylim()
        assert all(low < bar.get_height() < high for bar in axes.patches)


def test_bars_of_both_axes_stand_at_one_height():
    left, right = drawn(
        made_up(LOSSES | {BP: [loss / 4 for loss in LOSSES[AFTER_MERGE[DEVICE_A]]]})
    )
    assert right.get_ylim() == pytest.approx([end / 4 for end in left.get_ylim()])


def test_without_bp_nn3_the_devices_are_drawn_alone():
    rows = [row for row in made_up(LOSSES) if row["method"] != BP]
    _, right = drawn(rows)
    assert not right.patches


@pytest.mark.slow
@pytest.mark.skipif("EDGEMERGE_DATA" not in os.environ, reason=NO_DATA)
def test_on_real_activities_the_paper_s_claims_hold():
    pytest.importorskip("torch")
    scope = Scope(Path(os.environ["EDGEMERGE_DATA"]), quick=True)
    rows = loss_har.run(Plan(scope, trials=3, baseline_trials=1))
    assert [claim.text for claim in loss_har.claims(rows) if not claim.holds] == []
