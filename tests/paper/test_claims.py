"""The paper's own claims: judged by rows, left open without them, and written beside them."""

import csv

import pytest

from edgemerge.paper import claims, small_experiments
from edgemerge.paper.auc import OTHERS, SHARED
from edgemerge.paper.claims import FAILS, HOLDS, IN_PART, NOT_RUN, judge_claims
from edgemerge.paper.data.catalog import MissingDataError
from edgemerge.paper.plan import Row
from edgemerge.paper.running import result_files
from edgemerge.paper.running.result_files import Record
from edgemerge.paper.timing import MERGE, OURS, PREDICT, TRAIN

COLUMNS = ["claim", "where", "measured", "result", "found", "interval", "verdict"]
COMBINATIONS, SIMILAR = "in all combinations", "very similar"


def auc_row(dataset, method, a, b, auc, trials=50):
    names = {"dataset": dataset, "method": method, "device_a": a, "device_b": b}
    return names | {"trials": trials, "auc": auc, "spread": 0.01}


def auc_rows(dataset="har", after=0.89, **networks):
    """Rows of two patterns, merged, and of networks in three trials."""
    means = {"before": 0.73, "after": after}
    rows = []
    for method, mean in means.items():
        rows += [auc_row(dataset, method, x, y, 0.95) for x, y in ("aa", "bb")]
        rows += [auc_row(dataset, method, x, y, mean) for x, y in ("ab", "ba")]
    for method, mean in {**means, **networks}.items():
        trials = 3 if method in networks else 50
        rows.append(auc_row(dataset, method, "all", OTHERS, mean, trials))
        rows.append(auc_row(dataset, method, "all", SHARED, mean, 3))
    return rows


def small(experiment, split, setting, value, *, measure="ROC-AUC", half=0.005):
    names = {"experiment": experiment, "split": split, "setting": setting, "measure": measure}
    return names | {"trials": 30, "value": value, "low": value - half, "high": value + half}


def judged(words, **known):
    """The row of the one claim that has these words, by results whose names have underscores."""
    rows = judge_claims({name.replace("_", "-"): rows for name, rows in known.items()})
    (row,) = (row for row in rows if words in row["claim"])
    return row


def test_without_results_every_claim_is_left_open_and_says_so():
    rows = judge_claims({})
    assert {row["verdict"] for row in rows} == {NOT_RUN}
    assert all(row["found"] and row["where"] and row["measured"] for row in rows)
    assert [list(row) for row in rows] == [COLUMNS] * len(rows)
    assert len({row["claim"] for row in rows}) == len(rows)


def test_driving_was_run_elsewhere_and_is_not_counted_as_ours():
    row = judged("driving")
    assert row["verdict"] == NOT_RUN
    assert "run elsewhere on all 40 real trips: 9 of 9 claims hold" in row["found"]
    assert "0.43 to 0.50" in row["found"]


def test_driving_is_judged_by_the_rows_if_there_are_any():
    found = [
        {"cut": cut, "trial": 0, "method": method, "pattern": pattern, "loss": 1.0, "sums": "s"}
        for cut in ("window", "trip")
        for method in ("Device-A", "Device-B", "Device-A with B", "Device-B with A")
        for pattern in ("normal", "aggressive")
    ]
    row = judged("driving", loss_driving=found)
    assert (row["found"], row["verdict"]) == ("1 of 9 claims hold", IN_PART)


def test_pairs_that_merging_makes_worse_are_named():
    assert judged(COMBINATIONS, auc=auc_rows())["verdict"] == HOLDS
    rows = auc_rows()
    next(r for r in rows if r["method"] == "after" and r["device_a"] == "b" != r["device_b"])[
        "auc"
    ] = 0.7
    row = judged(COMBINATIONS, auc=rows)
    assert row["verdict"] == IN_PART
    assert row["found"] == "har: 1 of 2 (b–a -0.030)"
    assert judged(COMBINATIONS, auc=auc_rows(after=0.7))["verdict"] == FAILS


def test_people_held_out_stand_beside_samples_held_out():
    row = judged("significantly raises", auc=auc_rows(), auc_by_person=auc_rows(after=0.86))
    assert row["found"] == "har 0.730 → 0.890; har by person 0.730 → 0.860"
    assert row["interval"].startswith(
        "har: before 0.727 to 0.733 (50 trials), after 0.887 to 0.893"
    )
    worse = judged("significantly raises", auc=auc_rows(), auc_by_person=auc_rows(after=0.731))
    assert worse["verdict"] == IN_PART, "within both intervals"


@pytest.mark.parametrize(("network", "expected"), [(0.88, HOLDS), (0.8999, HOLDS), (0.91, FAILS)])
def test_as_accurate_means_at_most_a_hundredth_below(network, expected):
    row = judged("as accurate as BP-NN3 and", auc=auc_rows(**{"BP-NN3": network}))
    assert row["verdict"] == expected
    assert row["found"] == f"merging 0.890, BP-NN3 {network:.3f} ({network - 0.89:+.3f})"
    assert "(3 trials)" in row["interval"]


@pytest.mark.parametrize(
    ("network", "expected"), [(0.90, HOLDS), (0.95, FAILS), (0.88, FAILS), (0.89, FAILS)]
)
def test_slightly_higher_means_higher_and_not_by_much(network, expected):
    row = judged("slightly higher", auc=auc_rows("mnist", **{"BP-NN5": network}))
    assert row["verdict"] == expected


def test_one_data_set_that_fails_makes_the_whole_hold_in_part():
    rows = auc_rows(**{"BP-NN3": 0.88}) + auc_rows("mnist", **{"BP-NN3": 0.92})
    assert judged("back-propagation and federated", auc=rows)["verdict"] == IN_PART
    assert judged("back-propagation and federated", auc=rows[: len(rows) // 2])["verdict"] == HOLDS


def averaging(far, *, seeds=3):
    """Rows of two pairs whose difference is `far`, as the experiment makes them."""
    rows: list[Row] = [
        {
            "split": "sample",
            "method": method,
            "trial": t,
            "device_a": "a",
            "device_b": b,
            "auc": auc,
        }
        for t in range(seeds)
        for b in "bc"
        for method, auc in (("after", 0.9), ("BP-NN3-FL", 0.9 + far + t / 1000))
    ]
    return small_experiments.summarise(rows)


@pytest.mark.parametrize(("far", "expected"), [(-0.004, HOLDS), (0.004, HOLDS), (-0.05, FAILS)])
def test_very_similar_means_that_the_interval_of_the_difference_is_small(far, expected):
    row = judged(SIMILAR, small_experiments=averaging(far))
    assert row["verdict"] == expected
    mean, half = far + 0.001, 0.00248  # of 0, 1 and 2 thousandths
    ends = f"{mean - half:+.3f} to {mean + half:+.3f}"
    assert row["interval"] == f"by sample: {ends} (3 seeds)"
    each = f"a and b {mean:+.3f}, a and c {mean:+.3f}"
    assert row["found"] == f"by sample: {mean:+.3f}, {each}"


def test_all_pairs_with_few_seeds_count_for_similarity_as_well():
    few = auc_rows(**{"BP-NN3-FL": 0.84})
    row = judged(SIMILAR, auc=few)
    assert (row["verdict"], row["found"]) == (FAILS, "by sample, all pairs of auc: -0.050")
    both = judged(SIMILAR, auc=few, small_experiments=averaging(0.0))
    assert both["verdict"] == IN_PART
    assert both["interval"].endswith("BP-NN3-FL 0.815 to 0.865 (3 trials)")


def test_an_experiment_needs_both_splits_to_hold_whole():
    def rejection(split, gain):
        return [
            small("rejection", split, "learns everything", 0.9),
            small("rejection", split, "rejects high scores", 0.9 + gain),
        ]

    good, bad = rejection("sample", 0.05), rejection("person", 0.005)
    assert judged("rejected before", small_experiments=good)["verdict"] == HOLDS
    row = judged("rejected before", small_experiments=good + bad)
    assert row["verdict"] == IN_PART, "intervals overlap"
    assert row["found"].endswith("by person: learns everything 0.900, rejects high scores 0.905")
    assert row["interval"].endswith("by person: 0.895 to 0.905, 0.900 to 0.910 (30 trials each)")


def test_sums_of_few_samples_hide_nothing_so_privacy_holds_in_part():
    rows = [small("membership", "", "1 sample", 1e-4, measure="largest error of the recovered")]
    attack = {1: 1.0, 2: 0.99, 4: 0.88, 8: 0.69, 16: 0.6, 32: 0.55}
    rows += [small("membership", "", f"{n}N samples", auc) for n, auc in attack.items()]
    row = judged("privacy", small_experiments=rows)
    assert row["verdict"] == IN_PART
    assert "0.550 at 32N" in row["found"]
    rows[-1] = small("membership", "", "32N samples", 0.7)
    assert judged("privacy", small_experiments=rows)["verdict"] == FAILS


def test_losses_have_the_intervals_of_their_means():
    rows = [
        {"cut": "person", "trial": trial, "method": method, "pattern": "sitting", "sums": "s"}
        | {"loss": loss + 0.001 * trial}
        for method, loss in (("Device-B", 0.017), ("Device-B with A", 0.001))
        for trial in range(2)
    ]
    row = judged("the loss of sitting at Device-B falls", loss_har=rows)
    assert row["verdict"] == HOLDS
    assert row["interval"] == (
        "by person: 0.0111 to 0.0239 (2 trials) → -0.00485 to 0.00785 (2 trials)"
    )
    assert row["found"].startswith("by sample: not measured; by person: 0.018 → 0.0015")


def test_a_fleet_s_mean_has_an_interval_too():
    rows = [
        {
            "trial": t,
            "pair": "a, b",
            "method": "after",
            "devices": k,
            "auc": auc + t / 100,
            "same": 1,
        }
        for k, auc in ((1, 0.7), (2, 0.75), (8, 0.8), (30, 0.87))
        for t in range(3)
    ]
    row = judged("gains from those of others", devices=rows)
    assert row["verdict"] == HOLDS
    assert row["interval"] == "1: 0.685 to 0.735 (3 fleets), 30: 0.855 to 0.905 (3 fleets)"


def test_a_merge_is_compared_with_a_step_and_between_sizes():
    def latency(merge):
        times = {MERGE: merge, TRAIN: 0.1, PREDICT: 0.05}
        return [
            {"job": job, "method": OURS, "what": "ready for a loss", "hidden": N, "ms": ms * N / 64}
            for N in (64, 128)
            for job, ms in times.items()
        ]

    assert judged("is modest", latency=latency(0.2))["verdict"] == HOLDS
    assert judged("is modest", latency=latency(0.07))["verdict"] == IN_PART
    assert judged("is modest", latency=latency(0.2)[:4])["verdict"] == NOT_RUN


def test_claims_are_written_beside_the_results(tmp_path):
    record = Record("auc", "2026-01-02", "0.1.0", 7, False, 50, 3)
    result_files.save_result(tmp_path, record, auc_rows())
    path = claims.save_claims(tmp_path, claims.read_claims(tmp_path))
    with path.open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    assert found == claims.read_claims(tmp_path)
    assert {row["verdict"] for row in found} == {HOLDS, NOT_RUN}


def test_a_folder_without_results_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(MissingDataError, match=r"holds no results: run `edgemerge paper all --out"):
        claims.read_claims(tmp_path)


def test_of_many_pairs_the_two_ends_are_named():
    values = {"a": 0.01, "b": -0.2, "c": 0.0, "d": -0.1}
    pairs = {name: {"value": value} for name, value in values.items()}
    assert small_experiments.pairs_as_text(pairs) == "a +0.010 to b -0.200"
    del pairs["d"]
    assert small_experiments.pairs_as_text(pairs) == "a +0.010, c +0.000, b -0.200"
