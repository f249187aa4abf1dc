"""What the page on noise says is what the committed rows say."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import noise

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "add-noise.md"


@pytest.fixture(scope="module")
def rows():
    return noise.read()


@pytest.mark.parametrize("table", noise.TABLES)
def test_the_tables_are_those_of_the_rows(table, rows):
    assert table(rows) in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("epsilon", [8.0, 4.0])
def test_noised_sums_detect_better_than_the_noised_mean(epsilon, rows):
    ours, theirs = (noise.values(rows, "auc", way, epsilon) for way in (noise.SUMS, noise.CENTROID))
    assert len(ours) == len(theirs) == noise.SEEDS
    assert (np.array(ours) > np.array(theirs)).all()


@pytest.mark.parametrize("epsilon", [8.0, 4.0, 1.0])
def test_the_attack_is_weaker_than_without_noise_and_than_its_bound(epsilon, rows):
    found = np.mean(noise.values(rows, "membership", noise.SUMS, epsilon))
    assert found <= 0.55
    assert found < np.mean(noise.values(rows, "membership", noise.SUMS, np.inf))
    assert found < noise.worst_membership(epsilon)
