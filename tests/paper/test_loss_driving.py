"""Loss before and after merging, driving: on made-up trips, and on real ones where they are."""

import os
from pathlib import Path

import numpy as np
import pytest

from edgemerge.paper import loss_driving, loss_figures
from edgemerge.paper.data import MissingDataError
from edgemerge.paper.loss_figures import AFTER_MERGE, DEVICE_A, DEVICE_B, TwoDevices, all_stats
from edgemerge.paper.plan import Job, Plan, Scope
from tests.paper.driving import write_trips
from tests.services.missing import NO_DATA, NO_DRIVES

pytestmark = pytest.mark.slow

PATTERNS = ("normal", "aggressive", "drowsy")
TRIALS = 3
METHODS = (DEVICE_A, DEVICE_B, *AFTER_MERGE.values())
LOSSES = {  # of normal, aggressive and drowsy windows, as the paper says
    DEVICE_A: (0.001, 0.1, 0.05),
    DEVICE_B: (0.1, 0.002, 0.05),
    AFTER_MERGE[DEVICE_A]: (0.0012, 0.003, 0.04),
    AFTER_MERGE[DEVICE_B]: (0.0012, 0.003, 0.04),
}


def made_up(**changes):
    """Rows of two trials and both cuts that are as the paper says, apart from the changes."""
    return [
        {
            "cut": cut,
            "trial": trial,
            "method": method,
            "pattern": pattern,
            "loss": loss,
            "sums": "s",
        }
        for cut in ("window", "trip")
        for trial in range(2)
        for method, losses in (LOSSES | changes).items()
        for pattern, loss in zip(PATTERNS, losses, strict=True)
    ]


def drawn(rows):
    return loss_driving.plot(rows)[""]


def verdicts(rows):
    return {claim.text: claim.holds for claim in loss_driving.claims(rows)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("trips")
    write_trips(place, 0)
    return place


@pytest.fixture(scope="module")
def rows(folder):
    return loss_driving.run(Plan(Scope(folder, quick=True), trials=TRIALS))


@pytest.mark.slow
def test_every_trial_measures_all_patterns_at_all_devices_for_both_cuts(rows):
    found = [(row["cut"], row["trial"], row["method"], row["pattern"]) for row in rows]
    assert len(set(found)) == len(found) == 2 * TRIALS * len(METHODS) * len(PATTERNS)
    assert {type(value) for row in rows for value in row.values()} == {str, int, float}


def test_on_made_up_trips_the_paper_s_claims_hold(rows):
    found = loss_driving.claims(rows)
    assert len(found) == 9
    assert [claim.text for claim in found if not claim.holds] == []
    assert found[-1].found == "equal in 6 of 6 trials"


def test_the_cut_by_trip_keeps_whole_trips_apart_and_the_one_by_window_does_not(folder):
    shared = {}
    for cut, split_by in loss_driving.CUTS.items():
        job = Job(loss_driving.NAME, "driving", "merging", 0, cut)
        devices = TwoDevices(job, Scope(folder), ("normal", "aggressive"), cut=split_by)
        pairs = zip(devices.split.learn, devices.split.keep, strict=True)
        origin = devices.data.origin
        shared[cut] = [len(np.intersect1d(origin[a], origin[b])) for a, b in pairs]
    assert shared["trip"] == [0, 0, 0]
    assert min(shared["window"]) > 0


def test_the_two_cuts_give_different_losses(rows):
    means = [
        loss_figures.summarise_losses(loss_figures.rows_of_cut(rows, cut), DEVICE_A, "normal")
        for cut in ("window", "trip")
    ]
    assert means[0] != means[1]


def test_each_device_learns_its_own_pattern_and_is_told_the_other(folder):
    job = Job(loss_driving.NAME, "driving", "merging", 0, "window")
    devices = TwoDevices(job, Scope(folder), ("normal", "aggressive"))
    a, b = devices.devices.values()
    assert (a.count, b.count) == (len(devices.learnt("normal")), len(devices.learnt("aggressive")))
    assert not a.others.count
    devices.exchange()
    assert a.others == b.own
    assert b.others == a.own
    assert all_stats(a) == all_stats(b)


def test_losses_are_of_kept_windows_only(folder):
    job = Job(loss_driving.NAME, "driving", "merging", 1, "window")
    devices = TwoDevices(job, Scope(folder), ("normal", "aggressive"))
    expected = devices.devices[DEVICE_B].loss(devices.data.X[devices.split.keep[2]]).mean()
    (found,) = (
        row["loss"]
        for row in devices.rows()
        if (row["method"], row["pattern"]) == (DEVICE_B, "drowsy")
    )
    assert found == pytest.approx(expected, rel=5e-6), "six digits"
    for learnt, kept in zip(devices.split.learn, devices.split.keep, strict=True):
        assert not np.intersect1d(learnt, kept).size


def test_trials_differ_and_a_trial_can_be_repeated(rows, folder):
    job = Job(loss_driving.NAME, "driving", "merging", 1, "trip")
    again = loss_driving.work(job, Scope(folder, quick=True))
    trials = [[row for row in rows if (row["cut"], row["trial"]) == ("trip", t)] for t in range(2)]
    assert again == trials[1]
    assert again[0]["loss"] != trials[0][0]["loss"]


def test_rows_as_the_paper_has_them_fulfil_every_claim():
    assert set(verdicts(made_up()).values()) == {True}


@pytest.mark.parametrize(
    ("method", "losses", "fails"),
    [
        (AFTER_MERGE[DEVICE_A], (0.0012, 0.11, 0.04), "the loss of aggressive at Device-A falls"),
        (
            AFTER_MERGE[DEVICE_A],
            (0.02, 0.003, 0.04),
            "the loss of normal at Device-A, which learnt it, stays low",
        ),
        (AFTER_MERGE[DEVICE_B], (0.11, 0.003, 0.04), "the loss of normal at Device-B falls"),
        (
            AFTER_MERGE[DEVICE_B],
            (0.0012, 0.02, 0.04),
            "the loss of aggressive at Device-B, which learnt it, stays",
        ),
    ],
)
def test_a_claim_that_does_not_hold_is_told_for_each_cut(method, losses, fails):
    failed = [text for text, holds in verdicts(made_up(**{method: losses})).items() if not holds]
    assert [
        text.startswith(f"by {cut}: {fails}")
        for text, cut in zip(failed, ("window", "trip"), strict=True)
    ] == [True, True]


def test_merged_devices_that_differ_in_one_trial_are_not_identical():
    rows = made_up()
    next(row for row in rows if row["method"] == AFTER_MERGE[DEVICE_B])["sums"] = "t"
    claim = loss_driving.claims(rows)[-1]
    assert (claim.holds, claim.found) == (False, "equal in 3 of 4 trials")


def test_what_was_not_measured_is_neither_true_nor_false():
    assert set(verdicts([]).values()) == {None}
    by_window = verdicts(loss_figures.rows_of_cut(made_up(), "window"))
    assert {holds for text, holds in by_window.items() if text.startswith("by trip")} == {None}
    assert {holds for text, holds in by_window.items() if not text.startswith("by trip")} == {True}


def test_a_claim_names_the_numbers():
    claim = loss_driving.claims(made_up())[0]
    assert claim.found == "0.10 → 0.0030, 33.3 times lower"
    assert loss_driving.claims(made_up())[1].found == (
        "0.0010 → 0.0012, +20%; at Device-B before: 0.10"
    )


def test_the_table_has_a_line_for_each_cut_and_pattern():
    table = loss_driving.table(made_up())
    assert [(row["cut"], row["pattern"]) for row in table] == [
        (cut, pattern) for cut in ("by window", "by trip") for pattern in PATTERNS
    ]
    assert table[1][DEVICE_A] == 0.1
    assert table[1][AFTER_MERGE[DEVICE_A]] == 0.003


def test_the_figure_has_a_panel_for_each_cut_and_three_colours_on_one_log_axis(rows):
    figure = drawn(rows)
    assert [axes.get_title(loc="left")[:11] for axes in figure.axes] == [
        "cut by wind",
        "cut by trip",
    ]
    for axes in figure.axes:
        assert axes.get_yscale() == "log"
        assert axes.get_ylim() == figure.axes[0].get_ylim()
        assert len({points.get_color() for points in axes.lines}) == 3
        assert [label.get_text() for label in axes.get_xticklabels()] == list(PATTERNS)
    assert len(drawn(loss_figures.rows_of_cut(rows, "trip")).axes) == 1


def test_points_stand_at_the_mean_and_lines_hold_the_spread_of_the_trials():
    rows = made_up()
    for row in rows:
        row["loss"] *= 1 + row["trial"]
    axes = drawn(rows).axes[0]
    heights = [y for points in axes.lines for y in points.get_ydata()]
    assert heights == pytest.approx([1.5 * loss for m in METHODS[:3] for loss in LOSSES[m]])
    spread = axes.collections[0].get_segments()[1][:, 1]
    assert not axes.patches
    found = loss_figures.summarise_losses(
        loss_figures.rows_of_cut(rows, "trip"), DEVICE_A, "aggressive"
    )
    assert found == pytest.approx((0.15, 0.11, 0.19))
    assert list(spread) == pytest.approx([0.11, 0.19])


@pytest.mark.parametrize("value", [0.001, 0.000123, 1.0])
def test_numbers_have_two_digits_that_matter_and_no_exponent(value):
    text = loss_figures.two_digits(value)
    assert float(text) == pytest.approx(value, rel=0.05)
    assert "e" not in text


@pytest.mark.skipif("EDGEMERGE_DATA" not in os.environ, reason=NO_DATA)
def test_on_real_trips_each_device_takes_in_the_other_s_way_of_driving():
    scope = Scope(Path(os.environ["EDGEMERGE_DATA"]), quick=True)
    try:
        rows = loss_driving.run(Plan(scope, trials=TRIALS))
    except MissingDataError:
        pytest.skip(NO_DRIVES)
    found = verdicts(rows)
    assert all(holds for text, holds in found.items() if "falls" in text or "identical" in text)
