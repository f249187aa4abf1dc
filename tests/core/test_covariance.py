"""The explanation: the input that moved is named, not those that hang together with it."""

import numpy as np
import pytest

from edgemerge import Bank, Detector, Monitor, Projection, Stats
from edgemerge.core.stats import MAX_MOVED, MOVED, Covariance

pytestmark = pytest.mark.slow

ACTIVATIONS = ("identity", "tanh", "sigmoid", "relu", "cosine")
CLOSE = 1e-6  # Woodbury against a dense inverse, at a condition of about 1e7


def sensors(rows, seed, n=8):
    """Three causes behind n inputs that all hang together, with some noise of their own."""
    mixing = np.random.default_rng(5).normal(0.0, 0.3, (3, n))
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, 3)) @ mixing + rng.normal(size=(rows, n)) * 0.03


def moved(rows, inputs, by=1.0):
    rows = rows.copy()
    rows[:, inputs] += by
    return rows


def taught(activation, make=Detector, n_hidden=64, n=8):
    learnt = sensors(1000, 0, n)
    learner = make(Projection.of_data(learnt, activation=activation, n_hidden=n_hidden, seed=7))
    learner.learn(learnt)
    return learner


def slow_shares(mean, sigma, rows):
    """Return the shares by the definition: conditional distributions of a dense covariance."""

    def shares(inputs, given):
        found = {}
        for j in inputs:
            rest = [i for i in given if i != j]
            gain = np.linalg.solve(sigma[np.ix_(rest, rest)], sigma[rest, j])
            away = (rows[:, j] - mean[j]) - (rows[:, rest] - mean[rest]) @ gain
            found[j] = (away**2).mean() / (sigma[j, j] - sigma[j, rest] @ gain)
        return found

    n, out = len(mean), []
    while True:
        kept = [i for i in range(n) if i not in out]
        found = shares(kept, kept)
        j = max(found, key=found.get)
        if found[j] < MOVED or len(out) == min(MAX_MOVED, n // 2):
            break
        out.append(j)
    return np.array([(found | shares(out, kept))[j] for j in range(n)])


def dense(known):
    """Return the covariance whose inverse is held as diag(1/D) − YYᵀ."""
    return np.linalg.inv(np.diag(1.0 / known.D) - known.Y @ known.Y.T)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("n_hidden", [4, 32])
@pytest.mark.parametrize("inputs", [[], [2], [1, 6], [0, 3, 4, 5, 7]])
def test_shares_are_squared_distances_from_what_the_other_inputs_say(activation, n_hidden, inputs):
    learner = taught(activation, n_hidden=n_hidden)
    rows = learner.projection.to_rows(moved(sensors(5, 1), inputs))
    known = Covariance.of(learner.own)
    expected = slow_shares(known.mean, dense(known), rows)
    assert known.shares(rows) == pytest.approx(expected, rel=CLOSE)
    assert learner.explain_together(rows) == pytest.approx(expected, rel=CLOSE)


def test_at_most_half_of_the_inputs_are_left_out_of_what_the_others_say():
    rng = np.random.default_rng(0)
    learnt = rng.normal(0.0, 0.1, (1000, 1)) + rng.normal(0.0, 0.05, (1000, 3))
    shared = Projection(n_inputs=3, n_hidden=12, activation="identity", seed=7)
    known = Covariance.of(Stats.of(shared, learnt))
    rows = shared.to_rows([[0.9, -0.9, 0.0]])
    expected = slow_shares(known.mean, dense(known), rows)
    assert (expected > MOVED).sum() >= 2  # so a second one would be left out if it might
    assert known.shares(rows) == pytest.approx(expected, rel=CLOSE)


def test_with_few_samples_more_of_the_variance_is_taken_to_be_left():
    learnt = sensors(45, 0, n=100)
    learner = Detector(Projection.of_data(learnt, activation="identity", n_hidden=32, seed=7))
    learner.learn(learnt)
    assert learner.explain(sensors(300, 2, n=100)).mean() < 1.0


@pytest.mark.parametrize("n_hidden", [12, 24])
def test_with_enough_linear_features_the_sums_hold_the_covariance_of_the_samples(n_hidden):
    learnt = sensors(2000, 0)
    shared = Projection.of_data(learnt, activation="identity", n_hidden=n_hidden, seed=7)
    stats, rows = Stats.of(shared, learnt), shared.to_rows(learnt)
    known = Covariance.of(stats)
    sigma = np.cov(rows.T, bias=True)
    assert known.mean == pytest.approx(rows.mean(0))
    # a hidden value is rounded to the grid, which blurs XᵀX by about as much
    assert dense(known) == pytest.approx(sigma, abs=2.0 * shared.step * np.abs(sigma).max())


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("n_hidden", [4, 32])
def test_what_is_rebuilt_and_what_is_left_make_the_variance_of_each_input(activation, n_hidden):
    learnt = sensors(2000, 0)
    shared = Projection.of_data(learnt, activation=activation, n_hidden=n_hidden, seed=7)
    known = Covariance.of(Stats.of(shared, learnt))
    variance = shared.to_rows(learnt).var(0)
    fresh = n_hidden / 2000 * 2.5  # what is left is larger for samples that were not learnt
    assert known.variance == pytest.approx(np.diag(dense(known)), rel=1e-6)
    assert (
        (known.variance >= variance * (1 - 1e-9)) & (known.variance < variance * (1 + fresh))
    ).all()


@pytest.mark.parametrize("make", [Detector, Bank])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_input_that_moved_is_named_first_and_its_neighbours_stay_usual(activation, make):
    learner = taught(activation, make)
    for j in range(8):
        found = learner.explain(moved(sensors(20, 1), [j], by=0.5))
        assert (found.argmax(1) == j).mean() >= 0.95
        assert np.median(np.delete(found, j, axis=1)) < 1.5
        assert np.median(found[:, j]) > MOVED


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_means_that_are_large_against_the_spreads_hide_nothing(activation):
    rng, n = np.random.default_rng(3), 200
    spread = np.exp(rng.uniform(np.log(0.01), np.log(0.3), n))
    offset = np.where(spread < 0.1, -0.97, 0.0) + rng.uniform(0.0, 0.03, n)
    mixing = rng.normal(0.0, 0.4, (6, n))

    def drawn(rows, seed):
        own = np.random.default_rng(seed)
        return offset + spread * (
            own.normal(size=(rows, 6)) @ mixing + 0.5 * own.normal(size=(rows, n))
        )

    learner = Detector(Projection(n_inputs=n, n_hidden=32, activation=activation, seed=7))
    learner.learn(drawn(400, 0))
    rows, which = drawn(50, 1), rng.integers(0, n, 50)
    rows[np.arange(50), which] += 4.0 * spread[which]
    assert (learner.explain(rows).argmax(1) == which).mean() >= 0.95


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("inputs", "share"), [([1, 4], 0.95), ([1, 4, 6], 0.95)])
def test_several_inputs_that_moved_are_all_named_before_the_others(activation, inputs, share):
    rows = moved(sensors(40, 1, n=16), inputs, by=0.6)
    first = np.argsort(-taught(activation, n=16).explain(rows), axis=1)[:, : len(inputs)]
    assert (np.sort(first, axis=1) == inputs).all(1).mean() >= share


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_fresh_samples_have_shares_of_about_one_or_less(activation):
    # less where few hidden values, or a large ridge, do not rebuild how inputs hang together
    least = {"identity": 0.7, "relu": 0.7, "tanh": 0.2, "sigmoid": 0.2, "cosine": 0.1}[activation]
    usual = taught(activation, n_hidden=64).explain(sensors(400, 2)).mean(0)
    assert least < usual.min() < usual.max() < 1.3


def test_a_sample_is_explained_as_in_a_table_of_samples_and_as_it_was_looked_at():
    for make in (Detector, Bank):
        learner, rows = taught("tanh", make), moved(sensors(3, 1), [5])
        table = learner.explain(rows)
        assert table.shape == (3, 8)
        assert np.array_equal(learner.explain(rows[1]), table[1])
        assert np.array_equal(learner.explain(learner.look(rows[1])), table[1])
        assert learner.explain(rows[:0]).shape == (0, 8)
        assert learner.explain_together(learner.projection.to_rows(rows[:1])) == pytest.approx(
            table[0]
        )


def test_samples_together_tell_what_one_alone_leaves_open():
    learner = taught("identity")
    rows = learner.projection.to_rows(moved(sensors(200, 1), [3], by=0.1))
    alone = (learner.explain_each(rows).argmax(1) == 3).mean()
    blocks = [learner.explain_together(block).argmax() == 3 for block in np.split(rows, 25)]
    assert alone < 0.95 < np.mean(blocks)


def test_a_bank_explains_each_sample_by_its_own_pattern():
    rng = np.random.default_rng(0)
    slow, fast = (
        rng.normal(-0.5, 0.05, (400, 4)),
        rng.normal(0.5, [0.05, 0.05, 0.05, 0.2], (400, 4)),
    )
    bank = Bank(Projection(n_inputs=4, n_hidden=8, seed=7))
    bank.learn(slow)
    bank.learn(fast)
    odd = np.array([[-0.5, -0.5, -0.5, -0.1], [0.5, 0.5, 0.5, 0.9]])
    found = bank.explain(odd)
    for row, share in zip(odd, found, strict=True):
        assert np.array_equal(share, bank[bank.closest(row)].explain(row))
    assert found[0, 3] > 20.0 > MOVED > found[1, 3]  # the same step is usual for one of them
    rows = bank.projection.to_rows(odd)
    assert bank.explain_together(rows) == pytest.approx(found.mean(0))


@pytest.mark.slow
@pytest.mark.parametrize("make", [Detector, Bank])
def test_a_monitor_names_the_moved_input_of_episodes_and_of_patterns_that_wait(make):
    first, odd = sensors(700, 0), moved(sensors(80, 1), [3])
    shared = Projection.of_data(first, activation="tanh", n_hidden=32, seed=7)
    monitor = Monitor(make(shared), commissioning=760)
    stream = np.vstack([first[:300], odd[:60], first[300:], sensors(40, 2), moved(odd, [3], -1.5)])
    for at, x in enumerate(stream):
        result = monitor.take(x, at)
        if monitor.episode is not None and monitor.episode.samples == 1:
            assert monitor.episode.inputs[0][0] == 3  # from one sample
    assert result.alarm
    aside, *later = monitor.odd_patterns.values()
    assert aside.first < 760.0 <= later[0].first
    assert {each.inputs[0][0] for each in (aside, *later)} == {3}
    assert {each.inputs[0][0] for each in monitor.episodes} == {3}
    assert all(share < MOVED for _input, share in later[0].inputs[1:])


def test_what_others_saw_counts_as_known():
    learnt = sensors(600, 0)
    shared = Projection.of_data(learnt, activation="tanh", n_hidden=16, seed=7)
    alone, told = Detector(shared), Detector(shared)
    alone.learn(learnt)
    told.learn(learnt[:2])
    told.adopt(Stats.of(shared, learnt[2:]))
    odd = moved(learnt[:5], [2])
    assert told.explain(odd) == pytest.approx(alone.explain(odd), rel=1e-6)


def test_inputs_that_never_change_and_single_inputs_are_explained_too():
    learnt = np.column_stack([np.random.default_rng(0).normal(0.0, 0.2, 200), np.full(200, 0.25)])
    pump = Detector(Projection(n_inputs=2, n_hidden=8, seed=7))
    pump.learn(learnt)
    assert pump.explain([0.1, 0.25]) == pytest.approx([0.25, 0.0], abs=0.1)
    assert pump.explain([0.1, 0.3])[1] > 1e3
    single = Detector(Projection(n_inputs=1, n_hidden=4, seed=7))
    single.learn(learnt[:, :1])
    x, (mean, spread) = 0.7, (learnt[:, 0].mean(), learnt[:, 0].std())
    assert single.explain([x]) == pytest.approx([((x - mean) / spread) ** 2], rel=0.1)


@pytest.mark.parametrize("make", [Detector, Bank])
def test_names_come_from_the_projection_and_the_largest_first(make):
    names = [f"sensor {i}" for i in range(8)]
    learnt = sensors(600, 0)
    learner = make(Projection.of_data(learnt, n_hidden=16, seed=7, names=names))
    assert learner.explain_by_name(learnt[0], most=2) == {"sensor 0": 1.0, "sensor 1": 1.0}
    learner.learn(learnt)
    odd = moved(learnt[:1], [6])[0]
    found = learner.explain_by_name(odd)
    assert len(found) == 3
    assert next(iter(found)) == "sensor 6"
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert found["sensor 6"] == learner.explain(odd)[6]
    assert learner.explain_by_name(learner.look(odd)) == found
    shuffled = {name: odd[int(name[-1])] for name in reversed(names)}
    assert learner.explain_by_name(shuffled) == found


def test_inputs_without_names_have_numbers():
    learner = taught("tanh")
    assert list(learner.explain_by_name(moved(sensors(1, 1), [6])[0], most=1)) == ["6"]
