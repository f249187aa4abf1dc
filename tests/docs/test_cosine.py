"""What the pages say of cosine's bytes, time and privacy is what the committed rows say."""

import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.cosine import (
    ACTIVATIONS,
    ATTACKED,
    cost_table,
    membership,
    membership_table,
    read,
    time_ratios,
)
from edgemerge import Projection, Stats

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"


def test_the_tables_are_those_of_the_rows():
    rows = read()
    assert cost_table(rows) in (HOW_TO / "choose-a-projection.md").read_text(encoding="utf-8")
    assert membership_table(rows) in (HOW_TO / "what-sharing-reveals.md").read_text(
        encoding="utf-8"
    )


def test_the_ratio_of_times_in_the_text_is_that_of_the_rows():
    text = (HOW_TO / "choose-a-projection.md").read_text(encoding="utf-8")
    (said,) = re.findall(r"([0-9.]+) to ([0-9.]+) times that of `tanh` to learn and to score", text)
    ratios = time_ratios(read()).values()
    lowest, highest = min(low for low, _ in ratios), max(high for _, high in ratios)
    assert said == (f"{lowest:.2f}", f"{highest:.2f}")


def test_equal_hidden_values_need_equal_bytes():
    sizes = {}
    for row in read():
        if row["measure"] == "bytes":
            sizes.setdefault((row["inputs"], row["hidden"]), []).append(row["value"])
    assert len(sizes) == 6
    assert all(len(found) == 3 and max(found) <= 1.01 * min(found) for found in sizes.values())


def test_samples_per_hidden_value_count_more_than_the_activation():
    found = {}
    for row in read():
        if row["measure"] == "membership":
            key = row["activation"], row["hidden"], row["samples_per_hidden"]
            found.setdefault(key, []).append(row["value"])
    means = {key: float(np.mean(aucs)) for key, aucs in found.items()}
    for ratio in (2.0, 4.0, 8.0, 16.0, 32.0):
        alike = [means[a, hidden, ratio] for a in ACTIVATIONS for hidden in ATTACKED]
        assert max(alike) - min(alike) < 0.07
    assert means["cosine", 64, 2.0] > 0.95
    assert means["cosine", 64, 16.0] < 0.65


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_attack_tells_members_of_a_small_release_and_not_of_a_large_one(activation):
    X = np.random.default_rng(0).normal(size=(2000, 12))
    shared = Projection.of_data(X, n_hidden=16, activation=activation)
    aucs = [membership(Stats.of(shared, X[:k]), X[:k], X[1500 : 1500 + k]) for k in (20, 64, 480)]
    assert aucs[0] > 0.9
    assert aucs[0] > aucs[1] > aucs[2]
    assert aucs[2] < 0.6
    fresh = membership(Stats.of(shared, X[:64]), X[1000:1500], X[1500:])
    assert fresh == pytest.approx(0.5, abs=0.06)
