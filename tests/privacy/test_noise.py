"""Noise: one row moves sums by no more than was said, the noise is as large, the budget stops."""

import sys
from math import inf, isclose, sqrt
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare, kstest

from edgemerge import (
    BudgetError,
    CapacityError,
    Detector,
    FormatError,
    MismatchError,
    Projection,
    RejectedError,
    SettingError,
    decode,
    encode,
)
from edgemerge.core.similarity import Profile
from edgemerge.core.stats import Stats
from edgemerge.privacy import noise as noise_module
from edgemerge.privacy.masking import stats_of, words_of
from edgemerge.privacy.noise import (
    WEIGHT_STEP,
    Blocks,
    Budget,
    ClippedSums,
    Noise,
    Noised,
    NoiseSettings,
    delta_of,
    discrete_gaussian,
    epsilon_of,
    multiplier_for,
)
from edgemerge.wire.admission import (
    Candidate,
    check_definite,
    check_explained_share,
    check_target_bounds,
)

CHANCE = 1e-9  # of a test that draws real noise to fail though all is right
ACTIVATIONS = ("identity", "sigmoid", "tanh", "relu", "cosine")
# ε by PLDAccountant of dp-accounting 0.6.0, for noise multipliers composed on the same samples; it
# rounds privacy losses up on a grid of 10⁻⁴, so its ε is a little above the exact one
PLD = [
    ((1.0,), 1e-5, 4.3771781000249295),
    ((1.0,), 1e-7, 5.349345413270691),
    ((2.0,), 1e-5, 1.99309140790881),
    ((0.6,), 1e-5, 8.003691057033603),
    ((4.0, 4.0, 4.0), 1e-5, 1.698035233018507),
    ((1.5, 3.0), 1e-5, 3.1246483992603804),
    ((10.0,) * 20, 1e-7, 2.2066235670248657),
]
PLD_GRID = 2e-3


def no_noise(values, scale):
    assert scale > 0.0
    return list(values)


def seeded(seed):
    rng = np.random.default_rng(seed)
    return lambda values, scale: np.rint(rng.normal(values, scale)).astype(np.int64)


def line(rng, k, n):
    """Samples that hang together: two factors and a little noise of their own."""
    return 0.1 * rng.normal(size=(k, 2)) @ rng.normal(size=(2, n)) + 0.05 * rng.normal(size=(k, n))


def scaled_distance(noise, a, b):
    """How far two sums are apart, in the scales of the blocks."""
    upper = np.triu_indices(len(a.U))
    parts = [
        (x.U[upper], x.V.ravel(), x.C, x.S.sum(keepdims=True), np.array([x.count])) for x in (a, b)
    ]
    found = 0.0
    for mine, theirs, scale in zip(*parts, noise.scales, strict=True):
        if scale:
            found += float(((mine - theirs) ** 2).sum()) / scale**2
        else:
            assert not (mine.any() or theirs.any()) or mine.size == 1
    return sqrt(found)


@given(
    seed=st.integers(0, 2**32),
    activation=st.sampled_from(ACTIVATIONS),
    n=st.integers(1, 6),
    N=st.integers(1, 8),
    spread=st.sampled_from([0.01, 0.2, 1.0, 30.0, 1e4]),
    radius=st.sampled_from([0.05, 0.2, 1.0]),
    grid_bits=st.sampled_from([4, 12]),
    of_mean=st.booleans(),
)
def test_one_row_moves_the_sums_by_no_more_than_the_sensitivity(
    seed, activation, n, N, spread, radius, grid_bits, of_mean
):
    shared = Projection(
        n_inputs=n, n_hidden=N, seed=seed % 100, activation=activation, grid_bits=grid_bits
    )
    noise = Noise.for_mean(shared, 1.0) if of_mean else Noise.for_sums(shared, 1.0, radius=radius)
    X = np.random.default_rng(seed).normal(0.0, spread, (9, n))
    with_row, without = noise.sums_of(X), noise.sums_of(X[:-1])
    assert scaled_distance(noise, with_row, without) <= noise.sensitivity
    assert noise.sensitivity >= 1.0


def test_rounding_is_part_of_the_sensitivity():
    coarse = Projection(n_inputs=3, n_hidden=4, grid_bits=4)
    noise = Noise(coarse, Blocks(U=1.0, V=2.0, S=3.0, count=1.0), 1.0)
    q = 2.0**-8
    expected = 1.0 + q * sqrt(10 / 1.0 + 12 / 4.0 + 9 / 9.0 + 1.0)  # ΣS has three rounded numbers
    assert noise.sensitivity == pytest.approx(expected, rel=1e-12)
    assert isclose(noise.sigma.V, 2.0 * expected)


def test_usual_rows_count_fully_and_far_ones_not_at_all():
    shared = Projection(n_inputs=50, n_hidden=16)
    noise = Noise.for_sums(shared, 1.0)
    X = np.random.default_rng(0).normal(0.0, 0.15, (200, 50))
    rows = shared.to_rows(np.vstack([X, np.full(50, 0.4), np.full(50, 200.0)]))
    found = noise.weights(rows, shared.project(rows))
    assert (found[:200] == 1.0).mean() > 0.9
    assert 0.1 < found[200] < 0.6
    assert found[201] == 0.0
    assert (found % WEIGHT_STEP == 0.0).all()


def test_more_samples_than_are_exact_are_refused():
    fine = Projection(n_inputs=1, n_hidden=1, grid_bits=16)
    noise = Noise.for_sums(fine, 1.0)
    parts = noise.sums_of(np.zeros((5000, 1))) + noise.sums_of(np.zeros((5000, 1)))
    assert parts.count == 10_000.0
    with pytest.raises(CapacityError, match="share and start again"):
        noise.sums_of(np.zeros((10_000, 1)))  # 2⁵³ quanta of 2⁻³², in 256 parts: 8192


def test_a_sum_of_squares_that_is_not_exact_is_refused():
    fine = Projection(n_inputs=300, n_hidden=1, grid_bits=16)
    noise = Noise.for_sums(fine, 1.0, radius=40.0)
    assert noise.sums_of(np.full((20, 300), 16.0)).S[0] == 20 * 300 * 16.0**2
    with pytest.raises(CapacityError, match=r"2\.38e\+06"):
        noise.sums_of(np.full((31, 300), 16.0))  # each of the 300 would still fit
    with pytest.raises(CapacityError, match=r"1\.97e\+07"):
        noise.whole_sums_of(np.full((1, 300), 16.0))


def test_only_positive_eigenvalues_follow_the_noise():
    found = noise_module._mean_shift(np.array([-1.0, 2.0]), np.array([[3.0], [5.0]]), 4.0)
    low, high = 1.0 / 4.0, 1.0 / 6.0  # φ; ψ is 0, ⅔ and 1
    expected = 9.0 * low**2 * (2.0 / 3.0) * high
    expected += 25.0 * high**2 * ((2.0 / 3.0) * low + high + high)
    assert found == pytest.approx(expected, rel=1e-12)


def test_noised_sums_travel_behind_masks_and_in_files_as_they_are():
    shared = Projection(n_inputs=3, n_hidden=4)
    noise = Noise.for_sums(shared, 50.0, least=2)
    X = line(np.random.default_rng(0), 40, 3)
    parts = [noise.add(noise.sums_of(X), seeded(seed)) for seed in range(3)]
    words = sum((words_of(part.sums) for part in parts[1:]), start=words_of(parts[0].sums))
    total = sum(parts).sums
    assert total.U.diagonal().min() < 0.0  # such sums no samples have
    assert stats_of(shared, words) == total
    assert decode(encode(total), Stats) == total


def test_rows_within_the_range_count_fully_in_a_mean():
    shared = Projection(n_inputs=3, n_hidden=4)
    noise = Noise.for_mean(shared, 1.0)
    X = np.random.default_rng(0).uniform(-0.99, 0.99, (100, 3))
    assert noise.sums_of(X).count == 100.0
    assert np.array_equal(noise.sums_of(X).C, Stats.of(shared, X).C)


@pytest.mark.parametrize("scale", [1.5, 4.0])
def test_the_noise_is_a_discrete_gaussian(scale):
    found = np.array(discrete_gaussian([7] * 4000, scale)) - 7
    edge = int(2.5 * scale)
    places = np.arange(-edge, edge + 1)
    every = np.exp(-(np.arange(-60, 61) ** 2) / (2.0 * scale**2))
    expected = 4000 * np.exp(-(places**2) / (2.0 * scale**2)) / every.sum()
    counts = [(found == k).sum() for k in places]
    counts, expected = [*counts, 4000 - sum(counts)], [*expected, 4000 - expected.sum()]
    assert chisquare(counts, expected).pvalue > CHANCE


def test_the_noise_of_a_large_scale_is_gaussian():
    found = np.array(discrete_gaussian([0] * 2000, 3e8)) / 3e8
    assert kstest(found, "norm").pvalue > CHANCE


def test_the_sum_over_the_least_devices_has_the_promised_noise():
    shared = Projection(n_inputs=24, n_hidden=24)
    noise = Noise.for_sums(shared, 2.0, least=3)
    empty = Stats.empty(shared)
    total = sum(noise.add(empty) for _ in range(3))
    for found, expected in zip(total.sigma, noise.sigma, strict=True):
        assert found == pytest.approx(expected, rel=1e-12)
    upper = np.triu_indices(24)
    for entries, sigma in ((total.sums.U[upper], noise.sigma.U), (total.sums.V, noise.sigma.V)):
        assert kstest(entries.ravel() / sigma, "norm").pvalue > CHANCE
    assert np.array_equal(total.sums.U, total.sums.U.T)
    assert not total.sums.C.any()
    assert not total.sums.S[1:].any()
    assert total.sums.S[0] != 0.0
    assert total.sums.count != 0.0


def test_more_devices_than_the_least_add_more_noise_and_one_less_would_be_too_little():
    shared = Projection(n_inputs=2, n_hidden=3)
    noise = Noise.for_sums(shared, 1.0, least=4)
    parts = [noise.add(Stats.empty(shared), no_noise) for _ in range(5)]
    assert sum(parts[:3]).sigma.V < noise.sigma.V < sum(parts).sigma.V
    without_own = sum(parts) - parts[0]
    assert isclose(without_own.sigma.V, noise.sigma.V)


def test_each_block_gets_noise_of_its_own_scale_and_zeros_get_none():
    shared = Projection(n_inputs=2, n_hidden=3)
    asked = []

    def draw(values, scale):
        asked.append((len(values), scale * shared.quantum))
        return values

    noise = Noise.for_mean(shared, 3.0, least=4)
    noise.add(Stats.empty(shared), draw)
    assert asked == [
        (2, pytest.approx(noise.sigma.C / 2)),
        (1, pytest.approx(noise.sigma.count / 2)),
    ]
    sigma = noise.sigma
    assert isclose(sigma.C, 3.0 * noise.scales.C, rel_tol=1e-5)
    assert sigma.U == sigma.V == sigma.S == 0.0


def test_a_share_of_other_sums_is_refused():
    noise = Noise.for_sums(Projection(n_inputs=2, n_hidden=3), 1.0)
    with pytest.raises(MismatchError, match="same Projection"):
        noise.add(Stats.empty(Projection(n_inputs=2, n_hidden=3, seed=1)), no_noise)


@pytest.mark.parametrize(("multipliers", "delta", "expected"), PLD)
def test_epsilon_is_that_of_a_numerical_accountant(multipliers, delta, expected):
    found = epsilon_of(1.0 / sqrt(sum(z**-2 for z in multipliers)), delta)
    assert expected - PLD_GRID < found <= expected


@given(epsilon=st.floats(0.05, 50.0), delta=st.sampled_from([1e-9, 1e-5, 1e-2]))
def test_the_multiplier_gives_the_epsilon_and_no_more(epsilon, delta):
    z = multiplier_for(epsilon, delta)
    assert delta_of(z, epsilon) <= delta
    assert epsilon_of(z, delta) == pytest.approx(epsilon, rel=1e-4)
    assert epsilon_of(2.0 * z, delta) < epsilon_of(z, delta) < epsilon_of(z / 2.0, delta)


def test_without_a_release_nothing_is_spent():
    assert epsilon_of(inf, 1e-5) == 0.0
    assert Budget(4.0, 1e-5).spent_epsilon == 0.0


@given(
    epsilon=st.floats(0.1, 20.0),
    shares=st.lists(st.floats(0.01, 0.3), min_size=1, max_size=3),
)
def test_shares_of_a_budget_compose_to_its_epsilon_at_most(epsilon, shares):
    budget, spent, before = Budget(epsilon, 1e-5), [], 0.0
    for share in shares:
        spent.append(budget.spend(share, "sums"))
        assert before < budget.spent_epsilon <= epsilon
        before = budget.spent_epsilon
    composed = epsilon_of(1.0 / sqrt(sum(z**-2 for z in spent)), 1e-5)
    assert composed == pytest.approx(budget.spent_epsilon, rel=1e-6)


def test_a_spent_budget_stops_releases_and_says_so():
    budget = Budget(4.0, 1e-5)
    for _ in range(10):
        budget.spend(0.1, "epoch")
    assert budget.spent_epsilon == pytest.approx(4.0, rel=1e-6)
    with pytest.raises(BudgetError, match=r"0% of the budget of ε = 4.* 10% for epoch 11.*fresh"):
        budget.spend(0.1, "epoch 11")
    saved = Budget(4.0, 1e-5, spent=0.95)
    with pytest.raises(BudgetError, match="found 5%"):
        saved.spend(0.1, "the sums")
    assert saved.spent == 0.95
    assert saved.spend(0.05, "less") > 0.0


@pytest.mark.parametrize(
    ("epsilon", "delta", "spent"),
    [(0.0, 1e-5, 0), (inf, 1e-5, 0), (4, 0.0, 0), (4, 1.0, 0), (4, 1e-5, 1.1), (4, 1e-5, -0.1)],
)
def test_a_budget_that_means_nothing_is_refused(epsilon, delta, spent):
    with pytest.raises(SettingError, match="expected"):
        Budget(epsilon, delta, spent)


def test_settings_that_mean_nothing_are_refused():
    shared = Projection(n_inputs=2, n_hidden=3)
    for wrong in ({"multiplier": 0.0}, {"multiplier": 1.0, "least": 0}):
        with pytest.raises(SettingError, match="Budget"):
            Noise.for_sums(shared, **wrong)
    with pytest.raises(SettingError, match="radius"):
        Noise.for_sums(shared, 1.0, radius=0.0)
    with pytest.raises(SettingError, match="share"):
        Budget(4.0, 1e-5).spend(0.0, "nothing")


def test_the_range_is_centred_on_the_mean_and_keeps_its_width():
    shared = Projection(n_inputs=2, n_hidden=3, low=[0.0, -10.0], high=[100.0, 10.0])
    noise = Noise.for_mean(shared, 0.5)
    X = np.random.default_rng(0).normal([70.0, 2.0], [1.0, 0.1], (5000, 2))
    released = noise.add(noise.sums_of(X), seeded(1))
    centred = released.centred()
    assert released.mean == pytest.approx([70.0, 2.0], abs=0.2)
    assert np.subtract(centred.high, centred.low) == pytest.approx([100.0, 20.0])
    assert np.abs(centred.to_rows(X).mean(0)).max() < 0.02


def test_a_mean_that_is_lost_in_noise_stays_within_the_range():
    shared = Projection(n_inputs=4, n_hidden=3, low=0.0, high=100.0)
    noise = Noise.for_mean(shared, 1000.0)
    found = noise.add(noise.sums_of(np.full((10, 4), 50.0)), seeded(0)).mean
    assert ((found >= 0.0) & (found <= 100.0)).all()


def test_without_noise_the_sums_are_as_they_were():
    shared = Projection(n_inputs=5, n_hidden=8)
    noise = Noise.for_sums(shared, 1.0)
    X = line(np.random.default_rng(0), 500, 5)
    clipped = noise.sums_of(X)
    weights = noise.weights(shared.to_rows(X), shared.hidden(X))
    exact = Stats.of(shared, X, weights=weights)
    found = Noised(clipped, Blocks()).denoised()
    assert np.array_equal(found.V, exact.V)
    assert np.allclose(found.U, exact.U, rtol=0.0, atol=1e-6)
    assert found.count == exact.count
    assert found.mean_loss(found.solve()) == pytest.approx(exact.mean_loss(exact.solve()), rel=1e-4)


@pytest.mark.parametrize(
    ("multiplier", "count", "within"), [(0.5, 3000, 0.1), (2.0, 3000, 0.1), (1.0, 60, 0.3)]
)
def test_the_usual_loss_is_that_of_fresh_samples_in_spite_of_the_noise(multiplier, count, within):
    shared, rng = Projection(n_inputs=12, n_hidden=16), np.random.default_rng(3)
    X = line(rng, 3000 + count, 12)
    train, fresh = X[:count], X[count:]
    noise = Noise.for_sums(shared, multiplier)
    sums, ratios = noise.sums_of(train), []
    for seed in range(20):
        found = noise.add(sums, seeded(seed)).denoised()
        profile = Profile.of(found)
        true = ((shared.to_rows(fresh) - shared.hidden(fresh) @ profile.readout.B) ** 2).mean()
        ratios.append(profile.usual_loss / true)
    assert np.mean(ratios) == pytest.approx(1.0, abs=within)


def test_with_noise_beyond_all_sums_the_level_stays_above_zero_and_sums_stay_sums():
    shared = Projection(n_inputs=6, n_hidden=8)
    noise = Noise.for_sums(shared, 200.0)
    sums = noise.sums_of(line(np.random.default_rng(0), 300, 6))
    for seed in range(10):
        total = noise.add(sums, seeded(seed))
        total.check()
        found = total.denoised()
        assert Profile.of(found).usual_loss > 1e-3
        contribution = SimpleNamespace(stats=found, device="total", pattern="normal")
        case = Candidate(contribution, shared, None, None, 1.0, "exact", None)
        for check in (check_definite, check_target_bounds, check_explained_share):
            assert check(case) is None
        device = Detector(shared)
        device.adopt(found)
        assert np.isfinite(device.score(line(np.random.default_rng(1), 5, 6))).all()


def test_a_loss_that_is_lost_in_noise_is_as_large_as_what_is_unknown_of_it():
    shared = Projection(n_inputs=3, n_hidden=4)
    exact = Stats.of(shared, line(np.random.default_rng(0), 50_000, 3))
    lost = np.array([-1e6, 0.0, 0.0])
    sums = Stats(shared, exact.U, exact.V, exact.C, lost, exact.count)
    for variances, unknown in (
        (Blocks(U=9.0), lambda B: 3.0 * sqrt(2.0) * np.linalg.norm(B @ B.T)),
        (Blocks(V=9.0), lambda B: 6.0 * np.linalg.norm(B)),
        (Blocks(S=9e6), lambda _: 3000.0),
    ):
        found = Noised(sums, variances).denoised()
        readout = found.solve()
        loss = found.mean_loss(readout) * found.count * 3
        assert loss == pytest.approx(unknown(readout.B), rel=0.02)


def test_a_device_scores_as_usual_with_noised_sums_of_others():
    rng = np.random.default_rng(5)
    shared = Projection(n_inputs=12, n_hidden=16)
    X = line(rng, 4000, 12)
    noise = Noise.for_sums(shared, multiplier_for(4.0, 1e-5))
    device = Detector(shared)
    device.learn(X[:100])
    device.adopt(noise.add(noise.sums_of(X[100:3000]), seeded(2)).denoised())
    assert np.mean(device.score(X[3000:])) == pytest.approx(1.0, abs=0.15)


def broken(noised, **changes):
    sums = noised.sums
    arrays = {"U": sums.U, "V": sums.V, "S": sums.S, "count": sums.count} | changes
    return Noised(
        Stats(sums.projection, arrays["U"], arrays["V"], sums.C, arrays["S"], arrays["count"]),
        noised.variances,
    )


def test_sums_that_no_samples_have_are_refused_whatever_the_noise_is():
    shared = Projection(n_inputs=6, n_hidden=8)
    noise = Noise.for_sums(shared, 0.5)
    total = noise.add(noise.sums_of(line(np.random.default_rng(0), 3000, 6)), seeded(0))
    total.check()
    U, V, S, count = total.sums.U, total.sums.V, total.sums.S, total.sums.count
    for changes, words in (
        ({"U": -U}, "not definite"),
        ({"V": 30.0 * V}, "V too large"),
        ({"S": -S}, "negative ΣS"),
        ({"count": -count}, "negative count"),
        ({"count": count / 30}, "hidden values too large for 98 samples"),
    ):
        with pytest.raises(RejectedError, match=words):
            broken(total, **changes).check()


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    noise_module._measurement.cache_clear()
    monkeypatch.setitem(sys.modules, "opendp.prelude", None)
    with pytest.raises(ModuleNotFoundError, match="install the extra 'privacy' of edgemerge"):
        discrete_gaussian([0], 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [4.0, 1.0])
def test_the_best_attack_on_a_total_reaches_the_bound_and_does_not_pass_it(epsilon):
    """A member of the cohort that knows all samples but one, and its own noise, reads the total."""
    shared = Projection(n_inputs=2, n_hidden=3)
    agreed, rng = NoiseSettings(epsilon, 1e-5), np.random.default_rng(0)
    others = shared.to_rows(rng.uniform(-0.3, 0.3, (20, 2)))
    row = shared.to_rows([[0.4, -0.4]])  # beyond the radius: it counts with the whole bound
    noise = agreed.noise(shared, least=2)  # of three survivors two are not the reader
    scales = np.array([*agreed.noise(shared).sigma])
    known = noise.whole_sums_of(others) * 2.0**-8
    with_row = (noise.whole_sums_of(others) + noise.whole_sums_of(row)) * 2.0**-8
    upper = np.triu_indices(3)

    def numbers(sums):
        parts = sums.U[upper], sums.V.ravel(), sums.S[:1], [sums.count]
        return np.concatenate(
            [np.ravel(p) / s for p, s in zip(parts, scales[[0, 1, 3, 4]], strict=True)]
        )

    way = numbers(with_row) - numbers(known)

    def seen(sums, seed):
        draw = seeded(seed)
        parts = [noise.add(sums, draw), noise.add(Stats.empty(shared), draw)]
        words = np.sum([agreed.words_of(each) for each in parts], axis=0, dtype=np.uint64)
        return float(way @ (numbers(agreed.read(shared, words).sums) - numbers(known)))

    inside = np.array([seen(with_row, seed) for seed in range(1000)])
    outside = np.array([seen(known, seed) for seed in range(1000, 2000)])
    found = (inside.mean() - outside.mean()) / np.sqrt((inside.var() + outside.var()) / 2.0)
    bound = 1.0 / multiplier_for(epsilon, 1e-5)  # deviations by which a row moves the total
    chance = np.sqrt(2.0 / 1000)  # of this estimate
    assert 0.98 * bound - 4 * chance < found < bound + 4 * chance


@given(st.integers(0, 2**32 - 1), st.lists(st.integers(1, 90), min_size=1, max_size=4))
def test_clipped_sums_are_the_same_however_they_are_grouped(seed, sizes):
    shared = Projection(n_inputs=3, n_hidden=4)
    X = shared.to_rows(np.random.default_rng(seed).normal(0.0, 0.5, (sum(sizes), 3)))
    agreed = NoiseSettings(4.0, 1e-5)
    clipped, parts = ClippedSums(agreed, shared), []
    for part in np.split(X, np.cumsum(sizes)[:-1]):
        for row in part:
            clipped.push(row)
        parts.append(clipped.take())
    noise = agreed.noise(shared)
    assert sum(parts) == noise.whole_sums_of(X)
    difference = sum(parts) * 2.0**-8 - noise.sums_of(X)
    assert max(np.abs(a).max() for a in difference.arrays) <= 3 * shared.quantum


def test_a_row_that_is_written_over_later_is_in_clipped_sums_as_it_was():
    shared = Projection(n_inputs=3, n_hidden=4)
    clipped, row = ClippedSums(NoiseSettings(4.0, 1e-5), shared), np.array([0.25, 0.5, 0.0])
    expected = clipped.settings.noise(shared).whole_sums_of(row[None].copy())
    clipped.push(row)
    row[:] = 0.75
    assert clipped.take() == expected


@pytest.mark.parametrize("release", ["sums", "mean"])
def test_a_release_is_the_same_after_words(release):
    shared = Projection(n_inputs=3, n_hidden=4)
    agreed = NoiseSettings(4.0, 1e-5, release=release)
    noise = agreed.noise(shared, least=3)
    X = np.random.default_rng(0).normal(0.0, 0.2, (50, 3))
    parts = [noise.add(noise.sums_of(X), seeded(seed)) for seed in range(4)]
    words = np.sum([agreed.words_of(each) for each in parts], axis=0, dtype=np.uint64)
    assert words.shape == (agreed.length(shared),)
    found, expected = agreed.read(shared, words), sum(parts)
    assert found.sums == expected.sums
    for mine, theirs in zip(found.variances, expected.variances, strict=True):
        assert theirs <= mine <= theirs * (1.0 + 1e-5)
    with pytest.raises(FormatError, match="found noise of"):
        agreed.read(shared, np.append(words[:-1], np.uint64(2**64 - 1)))


@pytest.mark.parametrize(
    "settings", [{"radius": 0.0}, {"release": "all"}, {"share": 0.0}, {"share": 1.1}]
)
def test_noise_of_a_fleet_that_means_nothing_is_refused(settings):
    with pytest.raises(SettingError, match=next(iter(settings))):
        NoiseSettings(4.0, 1e-5, **settings)
