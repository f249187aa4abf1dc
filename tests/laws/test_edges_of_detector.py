"""Edges of the detector: a full accumulator, forgetting, rejecting in blocks."""

import numpy as np
import pytest

from edgemerge import Bank, Contribution, Detector, Ledger, Projection, Stats
from edgemerge.core.detector import MAX_DRIFT
from edgemerge.core.errors import (
    CapacityError,
    MismatchError,
    SampleError,
    SettingError,
    SolveError,
)
from edgemerge.core.readout import Cache
from edgemerge.wire.state import from_bytes, to_bytes
from tests.cases import machine

SHARED = Projection(n_inputs=6, n_hidden=12, seed=3)


def test_fading_leaves_no_negative_zero():
    shared = Projection(n_inputs=1, n_hidden=1, activation="identity", seed=3)
    pump = Detector(shared, forgetting=0.5)
    pump.learn([[-shared.step]])
    for _ in range(30):
        pump.learn_and_score([0.0])
        for array in pump.own.arrays:
            assert not np.signbit(array[array == 0.0]).any()


@pytest.mark.parametrize("one_by_one", [False, True])
def test_with_forgetting_the_exact_range_is_guarded_too(one_by_one):
    shared = Projection(n_inputs=1, n_hidden=1, grid_bits=16, activation="identity", seed=3)
    pump = Detector(shared, forgetting=0.9999)
    far = np.full((31, 1), 256.0)
    pump.learn(far)
    before = pump.own

    def learn():
        for part in far if one_by_one else [far]:
            pump.learn_and_score(part) if one_by_one else pump.learn(part)

    with pytest.raises(CapacityError, match="share and start again"):
        learn()
    assert max(pump.own.S.max(), pump.own.U.max()) < 2.0**53 * shared.quantum
    if not one_by_one:
        assert pump.own == before


def test_samples_that_wait_are_sure_to_fit():
    shared = Projection(n_inputs=2, n_hidden=3, grid_bits=16)
    full = Detector.resume(Stats.of(shared, np.ones((1, 2))) * (2.0**21 - 1000.0))
    for i in range(3000):
        try:
            full.learn([1.0, 1.0])
        except CapacityError:
            break
        assert full.count == 2.0**21 - 999.0 + i
    assert full.own.count == full.count == 2.0**21 - 1000.0 + i


def test_a_fading_mean_counts_as_many_samples_as_its_weights_do():
    from edgemerge.core.readout import effective_count

    w = 0.9 ** np.arange(30)
    assert effective_count(w.sum(), 5.0, 0.9) == pytest.approx(w.sum() ** 2 / (w**2).sum() + 5.0)


def test_forgetting_in_blocks_is_forgetting_one_by_one():
    shared = Projection(n_inputs=3, n_hidden=4, grid_bits=12)
    X = np.random.default_rng(0).normal(0.0, 0.3, (100, 3))
    blocks, rows = (Detector(shared, forgetting=0.98) for _ in range(2))
    found = blocks.learn_and_score(X)
    rows.learn(X)
    one = Detector(shared, forgetting=0.98)
    assert found == pytest.approx([one.learn_and_score(x) for x in X], rel=1e-3)
    for a, b in zip(blocks.own.arrays, rows.own.arrays, strict=True):
        assert np.abs(a - b).max() <= 8 * shared.quantum


def test_with_forgetting_rows_are_rejected_as_single_samples_are():
    shared = Projection(n_inputs=6, n_hidden=4, activation="identity")
    X = machine(0.0, 120, np.random.default_rng(0))
    X[90] += 0.7
    rows, single = (Detector(shared, forgetting=0.9, reject_above=50.0) for _ in range(2))
    rows.learn_and_score(X)
    for x in X:
        single.learn_and_score(x)
    assert rows.rejected == single.rejected > 0


def test_blocks_solve_the_readout_afresh_as_single_samples_do():
    from edgemerge.core.detector import MAX_STEPS

    pump = Detector(SHARED)
    pump.learn_and_score(machine(0.0, 3 * MAX_STEPS + 100, np.random.default_rng(0)))
    assert 0 < pump.known.cache().steps < MAX_STEPS


def test_samples_that_wait_fit_even_where_the_bias_makes_hidden_values_large():
    shared = Projection(
        n_inputs=1, n_hidden=1, grid_bits=16, activation="identity", width=1.0, seed=4
    )
    x = np.sign(shared.A[0] * shared.b)
    one = Stats.of(shared, x)
    assert one.U[0, 0] > 2.0
    full = Detector.resume(one * ((2.0**21 - 100.0) / one.U[0, 0]))
    start = full.count
    learnt = []

    def learn():
        while len(learnt) < 200:
            full.learn(x)
            learnt.append(1)

    with pytest.raises(CapacityError, match="share and start again"):
        learn()
    assert full.own.count == pytest.approx(start + len(learnt))


def test_a_single_sample_that_does_not_fit_is_refused_while_scoring_too():
    shared = Projection(n_inputs=2, n_hidden=3, grid_bits=16)
    full = Detector.resume(Stats.of(shared, np.ones((1, 2))) * (2.0**21 - 1000.0))
    before = full.own
    with pytest.raises(CapacityError, match="share and start again"):
        full.learn_and_score([250.0, 250.0])
    assert full.own == before


def test_weights_that_grow_in_a_frame_never_pass_the_exact_range():
    shared = Projection(n_inputs=1, n_hidden=1, grid_bits=16, activation="identity", seed=3)
    pump = Detector(shared, forgetting=0.995)
    largest = [0.0]

    def learn():
        for _ in range(200):
            pump.learn_and_score([256.0])
            largest.append(pump.known.own.largest())

    with pytest.raises(CapacityError, match="share and start again"):
        learn()
    assert max(largest) < 2.0**53 * shared.quantum


def test_with_forgetting_the_score_hardly_depends_on_when_p_was_solved():
    pump = Detector(SHARED, forgetting=0.999)
    X = machine(0.0, 700, np.random.default_rng(0))
    pump.learn(X[:300])
    for x in X[300:540]:
        pump.learn_and_score(x)
    followed = pump.score(X[600:]).mean()
    assert pump.known.frame < 0.7
    assert pump.own.count > 0  # P is solved afresh after this
    assert followed == pytest.approx(pump.score(X[600:]).mean(), rel=0.1)


def test_sums_of_another_task_are_refused_wherever_they_come_in():
    X = np.random.default_rng(0).normal(0.0, 0.1, (50, 6))
    other = Stats.of(SHARED, X, X[:, :1])
    pump, bank, ledger = Detector(SHARED), Bank(SHARED), Ledger(SHARED)
    pump.learn(X)
    for call in (
        lambda: pump.adopt(other),
        lambda: Detector.resume(other),
        lambda: bank.adopt([Contribution("B", other, 1)]),
        lambda: ledger.put(Contribution("B", other, 1)),
    ):
        with pytest.raises(MismatchError, match="found 1 outputs, expected 6"):
            call()
    assert ledger.total() == Stats.empty(SHARED)
    single = Ledger(SHARED, n_outputs=1)
    single.put(Contribution("B", other, 1))
    assert single.total() == other
    assert from_bytes(to_bytes(single)).total() == other


def test_what_does_not_fit_beside_our_own_is_refused():
    shared = Projection(n_inputs=1, n_hidden=2, grid_bits=16)
    half = Stats.of(shared, [[1.0]]) * 2.0**20
    pump = Detector.resume(half)
    with pytest.raises(CapacityError, match="share and start again"):
        pump.adopt(half + half - Stats.of(shared, [[1.0]]))
    assert pump.others == Stats.empty(shared)


def test_rows_that_do_not_all_fit_are_refused_before_the_first_is_learnt():
    shared = Projection(n_inputs=2, n_hidden=3, grid_bits=16)
    full = Detector.resume(Stats.of(shared, np.ones((1, 2))) * (2.0**21 - 50.0))
    before = full.own
    with pytest.raises(CapacityError, match="share and start again"):
        full.learn_and_score(np.ones((100, 2)))
    assert full.own == before


def test_without_a_ridge_samples_are_kept_until_there_are_enough():
    X = np.random.default_rng(0).uniform(-1.0, 1.0, (40, 6))
    pump = Detector(SHARED, ridge=0.0)
    for x in X[:5]:
        pump.learn(x)
        assert pump.own.count > 0
    with pytest.raises(SolveError, match="learn more samples"):
        pump.learn_and_score(X[5:])
    assert pump.own == Stats.of(SHARED, X[:5])
    pump.learn(X[5:])
    assert np.isfinite(pump.learn_and_score(X)).all()


def test_values_do_not_change_by_accident():
    stats = Stats.of(SHARED, np.zeros((2, 6)))
    pump = Detector(SHARED)
    pump.adopt(stats)
    for array in (stats.U, pump.others.V, pump.own.S, SHARED.A, SHARED.b):
        with pytest.raises(ValueError, match="read-only"):
            array[:] = 1.0


def test_an_empty_detector_checks_samples_too():
    with pytest.raises(SampleError, match="expected a finite number"):
        Detector(SHARED).score([np.nan] * 6)
    with pytest.raises(SampleError, match="give every input"):
        Detector(SHARED).score([1.0] * 9)


def test_ranges_too_narrow_or_too_wide_for_floats_never_make_nan():
    for values in ([[0.0], [1e-310]], [[1e300]], [[-1e300], [1e300]]):
        shared = Projection.of_data(values, n_hidden=2)
        assert np.isfinite(Stats.of(shared, values).C).all()
    with pytest.raises(SettingError, match="low below high"):
        Projection(n_inputs=1, low=0.0, high=1e-310)


def test_sums_that_are_large_in_different_places_fit_together():
    shared = Projection(n_inputs=2, n_hidden=1, grid_bits=16)
    one, other = (np.tile(row, (24, 1)) for row in ([256.0, 0.0], [0.0, 256.0]))
    pump = Detector(shared)
    pump.learn(one)
    pump.learn(other)
    assert pump.own == Stats.of(shared, one) + Stats.of(shared, other)
    with pytest.raises(CapacityError, match="share and start again"):
        pump.learn(other)


def test_others_weigh_on_the_whole_what_they_count_while_own_samples_fade():
    X = machine(0.0, 1200, np.random.default_rng(0))
    pump = Detector(SHARED, forgetting=0.999)
    pump.learn(X[:300])
    pump.adopt(Stats.of(SHARED, X[300:500]))
    weights, solved = [], []
    for x in X[500:]:
        pump.learn_and_score(x)
        solved.append(pump.known.cache())
        weights.append(pump.known.frame)  # that of others, as of all that weighs 1 in the sums
        assert pump.count == pytest.approx(pump.own_count + 200.0)
    assert max(weights) <= 1.0 + MAX_DRIFT
    assert min(weights) > (1.0 - MAX_DRIFT) * 0.999**2
    assert np.mean(weights) == pytest.approx(1.0, abs=0.02)
    assert len(set(map(id, solved))) < 7


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("place", [(1, 1), (2, 0), (4, 4)])
def test_sums_that_are_not_finite_have_no_solution(bad, place):
    U = np.asfortranarray(np.eye(5))
    U[place] = bad
    with pytest.raises(SolveError, match="NaN or infinity"):
        Cache(U, 1.0)
