"""What the page on sharing says is what the committed rows of the attacks say."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import sharing
from edgemerge import Projection, Stats
from edgemerge.privacy.gate import SAMPLES_PER_NUMBER, min_fresh_samples

# Of 512 uniform rows of three inputs, one in 2 000 is as near to one of 512 others: one row may be.
CHANCE = 0.005
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "what-sharing-reveals.md"


@pytest.fixture(scope="module")
def rows():
    return sharing.read()


@pytest.mark.parametrize("table", sharing.TABLES)
def test_the_tables_are_those_of_the_rows(table, rows):
    assert table(rows) in PAGE.read_text(encoding="utf-8")


def test_the_default_gate_gives_no_row_back(rows):
    for N, n in sharing.SOLVED:
        least = min_fresh_samples(Projection(n_inputs=n, n_hidden=N))
        safe = [r for r in rows if r["attack"] == "rows" and (r["hidden"], r["inputs"]) == (N, n)]
        assert [r["value"] for r in safe if r["samples"] >= least]
        assert all(r["value"] <= CHANCE for r in safe if r["samples"] >= least)
    few = sharing.values(rows, "rows", "2N", hidden=16, inputs=3)
    assert np.mean(few) > 0.9  # the attack works


def test_with_three_devices_no_difference_isolates_one(rows):
    found = [row for row in rows if row["attack"] == "difference"]
    assert len(found) == 2 * len(sharing.DIFFERENCES) * sharing.TRIES
    assert not any(r["value"] for r in found if r["setting"].endswith("--min-devices 3"))
    assert sum(r["value"] for r in found if r["setting"].endswith("--min-devices 1")) >= 30


def test_the_calibrated_attack_is_the_stronger_one_and_more_samples_weaken_it(rows):
    for N in sharing.ATTACKED:
        found = {
            (gate, name): np.mean(sharing.values(rows, "membership", f"{gate}N, {name}", hidden=N))
            for gate in sharing.GATES
            for name in (sharing.PLAIN, sharing.CALIBRATED)
        }
        for gate in sharing.GATES[1:]:
            assert found[gate, sharing.CALIBRATED] >= found[gate, sharing.PLAIN]
        assert found[2, sharing.CALIBRATED] > 0.9
        assert found[32, sharing.CALIBRATED] < found[4, sharing.CALIBRATED]


def test_rows_of_few_samples_are_solved_for():
    assert sharing.solve_rows(8, 2, 8, seed=0) == 1.0


def test_a_difference_of_one_device_is_found():
    shared, X = Projection(n_inputs=2, n_hidden=3), np.random.default_rng(0).normal(size=(8, 2))
    a, b = [Stats.of(shared, X[:3]), Stats.of(shared, X[:5])], Stats.of(shared, X[5:])
    server = SimpleNamespace(sent={"a": a, "b": [b]})
    assert sharing.isolates([a[0] + b, a[1] + b], server)
    assert not sharing.isolates([a[0] + b], server)


def test_members_of_a_default_masked_total_are_hardly_recognised(rows):
    found = [row for row in rows if row["attack"] == "cohort"]
    safe = [row["value"] for row in found if f", {SAMPLES_PER_NUMBER}, " in row["setting"]]
    sizes = len(sharing.COHORT_SIZES) + len(sharing.MOTION_SIZES)
    assert len(safe) == 2 * sizes * sharing.SEEDS
    assert max(safe) <= 0.55
    few = [row["value"] for row in found if row["setting"] == "independent, 4, all sums"]
    assert np.mean(few) > 0.58  # the attack works
