"""Heat maps and what is summed up: rows are Device-A, and compared is what can be compared."""

import numpy as np
import pytest

from edgemerge.paper import auc

PATTERNS = ("x", "y", "z")


def rows_of(method, value, dataset="har", trials=(0,)):
    """One row for each pair; `value` is its AUC, or gives it."""
    return [
        {"dataset": dataset, "method": method, "trial": trial}
        | {"device_a": a, "device_b": b, "auc": value(i, j) if callable(value) else value}
        for trial in trials
        for i, a in enumerate(PATTERNS)
        for j, b in enumerate(PATTERNS)
    ]


def slanted(i, j):
    return 0.5 + 0.1 * i + 0.01 * j


def drawn(rows):
    (figure,) = auc.plot_heatmaps(auc.summarise(rows)).values()
    return [axes for axes in figure.axes if axes.texts]


def test_rows_are_what_device_a_learnt_and_columns_what_device_b_learnt():
    (axes,) = drawn(rows_of("before", slanted))
    shown = np.asarray(axes.images[0].get_array())
    assert shown == pytest.approx(np.array([[slanted(i, j) for j in range(3)] for i in range(3)]))
    texts = {text.get_position(): text.get_text() for text in axes.texts}
    assert texts[2, 0] == ".52"  # at the right of the top row: A learnt x, B learnt z
    assert texts[0, 2] == ".70"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("Device-B", "Device-A")


def test_an_auc_of_one_is_not_shown_as_nought():
    (axes,) = drawn(rows_of("before", 1.0))
    assert {text.get_text() for text in axes.texts} == {"1.00"}


def test_each_map_bears_the_mean_of_its_own_data_set():
    both = auc.summarise(rows_of("after", 0.6) + rows_of("after", 0.9, "mnist"))
    titles = {
        name: [axes.get_title() for axes in figure.axes if axes.texts]
        for name, figure in auc.plot_heatmaps(both).items()
    }
    assert titles == {"har": ["after merging: 0.600"], "mnist": ["after merging: 0.900"]}


def test_ours_takes_no_bold_from_the_papers_five():
    maps = drawn(rows_of("after", 0.8) + rows_of("ours", 0.9))
    for axes in maps:
        assert {text.get_fontweight() for text in axes.texts} == {"bold"}


def test_ours_is_bold_only_where_it_is_better_than_all_five():
    _, ours = drawn(rows_of("after", 0.9) + rows_of("ours", 0.9))
    assert {text.get_fontweight() for text in ours.texts} == {"normal"}


def test_pairs_on_the_diagonal_are_not_counted_as_made_better():
    rows = auc.summarise(
        rows_of("before", 0.7) + rows_of("after", lambda i, j: 0.7 + 0.1 * (i == j))
    )
    assert "better in 0 of 6 pairs" in auc.claims(rows)[0].found


def test_a_reproduction_is_near_only_if_before_and_after_both_are():
    for before, after, near in ((0.735, 0.892, True), (0.735, 0.8, False), (0.7, 0.892, False)):
        rows = rows_of("before", before) + rows_of("after", after)
        assert auc.claims(auc.summarise(rows))[1].holds is near


def test_the_best_baseline_is_the_one_to_beat():
    methods = {"before": 0.7, "after": 0.8, "BP-NN3": 0.9, "BP-NN5": 0.95, "ours": 0.93}
    rows = [row for name, v in methods.items() for row in rows_of(name, v)]
    claim = auc.claims(auc.summarise(rows))[2]
    assert claim.holds is False
    assert "(BP-NN5)" in claim.found


def test_ours_is_held_against_the_baselines_over_the_trials_that_both_have():
    """In trial 0, the only one of the baseline, ours is worse; in others, easier ones, better."""
    ours = rows_of("ours", 0.80) + rows_of("ours", 0.99, trials=(1, 2))
    rest = rows_of("before", 0.7) + rows_of("after", 0.8)
    rows = auc.summarise(ours + rest + rows_of("BP-NN3", 0.85))
    above = next(claim for claim in auc.claims(rows) if "above the best" in claim.text)
    assert above.holds is False


def test_a_claim_that_names_numbers_of_others_says_whose_they_are():
    rows = auc.summarise(rows_of("before", 0.7) + rows_of("after", 0.8))
    assert "earlier" in auc.claims(rows)[1].text
