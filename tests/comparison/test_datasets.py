"""Who learns what in a fleet, what is told apart, and that the halves do not overlap."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sklearn")

from edgemerge.comparison import datasets
from edgemerge.comparison.datasets import (
    CHOOSE,
    DIGITS,
    FULL,
    HAR,
    MACHINES,
    REPORT,
    TABULAR,
    Cell,
    draw_fleet,
    draw_pairs,
    halves_of,
    load_half,
)
from edgemerge.paper.dataset import Dataset, split_by_person, split_by_sample
from edgemerge.paper.plan import Scope

NOWHERE = Scope(Path("/nowhere"), seed=7, quick=True)
PATTERNS = 6
ROWS = 200  # of each pattern


def labelled(name: str = "toy") -> Dataset:
    """Rows that say themselves what they are: pattern, person, number."""
    pattern = np.repeat(np.arange(PATTERNS), ROWS)
    person = np.tile(np.arange(1, 11), PATTERNS * ROWS // 10)
    X = np.stack([pattern, person, np.arange(PATTERNS * ROWS)], axis=1).astype(float)
    return Dataset(name, X, pattern, tuple("abcdef"), person)


def drawn(cell: Cell, seed: int = 0, name: str = "toy"):
    fleet = draw_fleet(labelled(name), cell, np.random.default_rng(seed))
    assert fleet is not None
    return fleet


@pytest.mark.parametrize("devices", [2, 3, 5, 10, 30])
def test_with_one_pattern_each_no_device_has_a_row_of_another(devices):
    fleet = drawn(Cell(devices))
    found = [set(np.unique(rows[:, 0])) for rows in fleet.learnt]
    most = 2 if devices == 2 else 1
    assert all(len(each) <= most for each in found)
    assert len(set.union(*found)) == 3


def test_mixed_devices_have_rows_of_all_patterns():
    fleet = drawn(Cell(10, 1.0))
    assert all(len(np.unique(rows[:, 0])) == 3 for rows in fleet.learnt)


def test_half_mixed_devices_have_mostly_their_own_pattern():
    fleet = drawn(Cell(3, 0.5))
    for rows in fleet.learnt:
        shares = np.unique(rows[:, 0], return_counts=True)[1] / len(rows)
        assert max(shares) == pytest.approx(2 / 3, abs=0.12)


@pytest.mark.parametrize("cell", [Cell(2), Cell(10, 0.5), Cell(5, 0.0, 0.1)], ids=str)
def test_no_row_is_learnt_and_tested_or_held_back(cell):
    fleet = drawn(cell)
    learnt = np.vstack(fleet.learnt)[:, 2]
    others = np.concatenate([np.vstack(fleet.held_back)[:, 2], fleet.test[:, 2]])
    assert not set(learnt) & set(others)
    assert len(set(others)) == len(others)


def test_odd_rows_are_of_other_patterns_and_held_back_ones_are_normal():
    fleet = drawn(Cell(5, 0.0, 0.1))
    normal = set(fleet.test[~fleet.odd, 0])
    assert normal.isdisjoint(fleet.test[fleet.odd, 0])
    assert set(np.vstack(fleet.held_back)[:, 0]) == normal


def test_a_tenth_of_what_each_dirty_device_learns_is_odd():
    fleet = drawn(Cell(5, 0.0, 0.1))
    normal = set(fleet.test[~fleet.odd, 0])
    for rows in fleet.learnt:
        assert np.mean([row[0] not in normal for row in rows]) == pytest.approx(0.1, abs=0.02)


def test_of_har_nobody_is_learnt_and_tested():
    fleet = drawn(Cell(5), name=HAR)
    assert set(np.vstack(fleet.learnt)[:, 1]).isdisjoint(fleet.test[:, 1])


def test_a_device_with_too_few_rows_makes_no_fleet():
    assert draw_fleet(labelled(), Cell(60), np.random.default_rng(0)) is None


def test_pairs_are_the_papers_exam():
    data, rng = labelled(), np.random.default_rng(0)
    (fleet,) = draw_pairs(data, split_by_sample(data, rng), [(1, 4)], rng)
    assert [set(rows[:, 0]) for rows in fleet.learnt] == [{1.0}, {4.0}]
    assert set(fleet.test[~fleet.odd, 0]) == {1.0, 4.0}
    assert {1.0, 4.0}.isdisjoint(fleet.test[fleet.odd, 0])
    assert fleet.odd.sum() == round(0.1 * (~fleet.odd).sum())
    assert sum(map(len, fleet.learnt)) + sum(map(len, fleet.held_back)) == 2 * 0.8 * ROWS


def test_pairs_by_person_test_people_that_nobody_learnt():
    data, rng = labelled(), np.random.default_rng(0)
    (fleet,) = draw_pairs(data, split_by_person(data, rng), [(0, 1)], rng)
    learnt = np.vstack([*fleet.learnt, *fleet.held_back])
    assert set(learnt[:, 1]).isdisjoint(fleet.test[:, 1])


def test_the_halves_of_digits_have_different_digits():
    one, two = (load_half(DIGITS, half, NOWHERE) for half in (CHOOSE, REPORT))
    assert (one.patterns, two.patterns) == (tuple("01234"), tuple("56789"))
    assert len(one.X) + len(two.X) == len(load_half(DIGITS, FULL, NOWHERE).X) == 1797
    assert one.X.min() >= 0.0
    assert one.X.max() <= 1.0


class People:
    """A scope whose HAR has one row of each of 30 people."""

    seed, quick = 7, True

    def dataset(self, name):
        people = np.arange(1, 31)
        X = np.stack([people, people], axis=1).astype(float)
        return Dataset(name, X, np.arange(30) % 2, ("walk", "sit"), people, low=-1.0, high=1.0)


def test_the_halves_of_har_have_different_people():
    one, two, both = (load_half(HAR, half, People()) for half in (CHOOSE, REPORT, FULL))
    assert (set(one.origin), set(two.origin)) == (set(range(1, 16)), set(range(16, 31)))
    assert list(both.origin) == list(range(1, 31))
    assert two.X[0, 0] == 8.5  # 16, from between −1 and 1 to between 0 and 1


def test_the_halves_of_machines_run_at_different_speeds():
    one, two = (load_half(MACHINES, half, NOWHERE) for half in (CHOOSE, REPORT))
    assert set(one.patterns[:3]).isdisjoint(two.patterns[:3])
    assert one.patterns[3:] == two.patterns[3:] == ("bearing", "looseness")


def test_each_tabular_set_is_in_one_half():
    found = {name: halves_of(name) for name in TABULAR}
    assert list(found.values()).count((CHOOSE,)) == list(found.values()).count((REPORT,)) == 3
    assert list(TABULAR) == sorted(TABULAR, key=str.lower)
    assert halves_of(DIGITS) == (CHOOSE, REPORT)


@pytest.mark.parametrize("name", ["iris", "wine", "breast_cancer"])
def test_a_tabular_fleet_learns_one_class(name):
    data = load_half(name, FULL, NOWHERE)
    fleet = next(
        filter(None, (draw_fleet(data, Cell(2), np.random.default_rng(seed)) for seed in range(20)))
    )
    assert len(fleet.learnt) == 2
    assert fleet.rows.min() >= 0.0
    assert fleet.rows.max() <= 1.0
    assert fleet.odd.any()
    assert not fleet.odd.all()


def test_sets_without_files_are_left_out():
    names = datasets.set_names(NOWHERE)
    assert names[:2] == [DIGITS, MACHINES]
    assert HAR not in names


def test_the_benchmarks_read_the_same_bundled_sets():
    data = pytest.importorskip("benchmarks.data")
    found = {name: (X, y) for name, X, y in data.sources(quick=True)}
    assert set(found) == {*datasets.BUNDLED, *datasets.STREAMED}
    assert np.array_equal(found["wine"][0], datasets.bundled_set("wine")[0])
