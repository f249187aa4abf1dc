"""What the evaluation relies on in the core: blocks added in place, and banks that judge late."""

import numpy as np
import pytest

from edgemerge import Bank, Detector, Projection
from edgemerge.core.stats import CHUNK_ROWS


def cluster(centre, count, spread=0.01, seed=0):
    return np.random.default_rng(seed).normal(centre, spread, (count, len(centre)))


def test_a_bank_that_knows_too_little_rejects_nothing():
    bank = Bank(Projection(n_inputs=4, n_hidden=32, seed=7), reject_above=8.0)
    bank.learn(cluster([0.5, 0.5, 0.5, 0.5], 32))
    bank.learn(cluster([-0.5, 0.9, -0.9, 0.1], 8))
    bank.catch_up()
    assert bank.rejected == 0
    assert sum(bank[name].count for name in bank) == 40


def test_a_sample_that_the_nearest_pattern_does_not_explain_goes_to_one_that_does():
    shared = Projection(n_inputs=4, n_hidden=8, seed=7)
    rng = np.random.default_rng(0)
    line = np.column_stack([rng.uniform(-0.9, 0.9, 400), rng.normal(0.0, 0.01, (400, 3))])
    peer = Detector(shared)
    peer.learn(line)
    bank = Bank(shared, max_patterns=1)
    bank.learn(cluster([0.8, 0.2, 0.2, 0.2], 400))
    bank.adopt(peer.share("peer", revision=1))
    before, rejected = bank["normal"].own.count, bank.rejected
    bank.learn(cluster([0.8, 0.0, 0.0, 0.0], 32))
    assert bank.closest([0.8, 0.0, 0.0, 0.0]) == "normal"
    assert bank["peer/normal"].own.count == 32
    assert (bank["normal"].own.count, bank.rejected) == (before, rejected)


@pytest.mark.parametrize("forgetting", [1.0, 0.999])
@pytest.mark.parametrize("size", [3, CHUNK_ROWS, CHUNK_ROWS + 1])
def test_every_row_counts_as_learnt_however_it_was_added(forgetting, size):
    detector = Detector(Projection(n_inputs=4, n_hidden=8, seed=7), forgetting=forgetting)
    detector.learn(cluster([0.0, 0.1, 0.2, 0.3], size))
    detector.learn(cluster([0.0, 0.1, 0.2, 0.3], 5))
    assert detector.learnt == size + 5


def test_rows_added_in_place_are_added_to_what_was_there():
    shared = Projection(n_inputs=4, n_hidden=8, seed=7)
    rows = cluster([0.0, 0.1, 0.2, 0.3], 300, spread=0.2)
    whole, parts = Detector(shared), Detector(shared)
    whole.learn(rows)
    for start in range(0, 300, 7):
        parts.learn(rows[start : start + 7])
    assert parts.own == whole.own


def test_samples_that_wait_do_not_keep_all_rows_in_memory():
    bank = Bank(Projection(n_inputs=4, n_hidden=8, seed=7))
    bank.learn(cluster([0.0, 0.1, 0.2, 0.3], 333))
    assert bank.waiting.shape == (13, 4)
    assert bank.waiting.base is None
