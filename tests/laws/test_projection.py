"""Laws of the projection: equal settings, equal numbers; samples and hidden values on the grid."""

import pickle
import re
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from edgemerge import Detector, Projection
from edgemerge.cli.files import learn
from edgemerge.core import projection as projection_module
from edgemerge.core.errors import MismatchError, SampleError, SettingError
from edgemerge.core.projection import (
    ACTIVATIONS,
    MAX_ABS_INPUT,
    SPLITMIX_GAMMA,
    Activation,
    activation_rule,
    activation_table,
    default_width,
    random_gaussian,
    random_words,
    splitmix64,
)
from edgemerge.wire.admission import RELATIONS
from tests.cases import projections, samples


def test_the_generator_is_splitmix64_as_published():
    seed, steps = np.uint64(1234567), np.arange(1, 6, dtype=np.uint64)
    with np.errstate(over="ignore"):
        found = splitmix64(seed + steps * SPLITMIX_GAMMA)
    assert found.tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_the_numbers_of_a_seed_are_pinned():
    shared = Projection(n_inputs=3, n_hidden=2, seed=7, activation="identity", width=1.0)
    assert (shared.A * 2**20).tolist() == [
        [944057.0, 796261.0],
        [51432.0, -1044667.0],
        [-948440.0, -202924.0],
    ]
    assert (shared.b * 2**20).tolist() == [-329627.0, -478088.0]
    assert shared.fingerprint == "c4d2281234dd4699dc9828b2b8248dbc8a4d7f3507841fa26e0db643acc883d9"


@pytest.mark.slow
@given(projections(), st.data())
def test_every_value_lies_on_its_grid_and_the_product_is_exact(projection, data):
    X = projection.grid.rows(data.draw(samples(projection)))
    H = projection.project(X)
    for values in (X, H):
        assert np.array_equal(values / projection.step, np.rint(values / projection.step))
    assert np.abs(X).max(initial=0.0) <= MAX_ABS_INPUT
    exact = X.astype(object) @ projection.A.astype(object) if len(X) else X @ projection.A
    assert np.array_equal(X @ projection.A, exact.astype(float))


@given(projections(), st.data())
def test_hidden_values_follow_m1(projection, data):
    X = data.draw(samples(projection))
    Z = projection.grid.rows(X) @ projection.A + projection.b
    plain = {
        "identity": lambda z: z,
        "relu": lambda z: np.maximum(z, 0.0),
        "sigmoid": lambda z: 1.0 / (1.0 + np.exp(-z)),
        "tanh": np.tanh,
        "cosine": lambda z: np.cos(np.pi / 4.0 * z),
    }
    with np.errstate(over="ignore"):
        slow = plain[projection.activation](Z)
    assert np.abs(projection.hidden(X) - slow).max(initial=0.0) <= projection.step


@given(projections())
def test_equal_settings_are_equal_and_any_other_setting_is_not(projection):
    from dataclasses import replace

    assert replace(projection) == projection
    assert hash(replace(projection)) == hash(projection)
    assert replace(projection, seed=projection.seed ^ 1) != projection
    assert replace(projection, n_hidden=projection.n_hidden + 1) != projection
    assert replace(projection, grid_bits=4 + (projection.grid_bits - 3) % 13) != projection
    assert replace(projection, high=np.float64(projection.high) * 2 + 201.0) != projection


def test_every_list_of_activations_has_all_of_them():
    option = next(p for p in learn.params if p.name == "activation")
    offered = option.to_info_dict()["type"]["choices"]
    assert set(ACTIVATIONS) == set(get_args(Activation)) == set(RELATIONS) == set(offered)


@pytest.mark.parametrize("use", [activation_rule, lambda name: default_width(name, 3)])
@pytest.mark.parametrize("name", ["swish", "", None, []])
def test_an_unknown_activation_is_refused_by_name(use, name):
    with pytest.raises(SettingError, match=re.escape(f"found activation={name!r}, expected one")):
        use(name)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_no_hidden_value_is_beyond_the_largest_of_its_activation(name):
    z = np.linspace(-40.0, 40.0, 1001)
    largest = np.abs(activation_rule(name).function(z)).max()
    assert largest == (40.0 if activation_rule(name).largest == np.inf else 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sigmoid", "tanh", "cosine"])
@pytest.mark.parametrize("bits", range(4, 17))
def test_no_entry_of_a_table_depends_on_whose_exp_or_cos_is_used(name, bits):
    table, first = activation_table(name, bits), {"cosine": 0}
    z = (np.arange(len(table)) - first.get(name, len(table) // 2)) * 2.0**-bits
    scaled = activation_rule(name).function(z) * 2.0**bits
    to_boundary = np.abs(scaled - np.floor(scaled) - 0.5)
    # twice what exp, + and / can be off together; an angle up to 2π is off by four times as much
    ulps = (8 if name == "cosine" else 2) * np.finfo(float).eps * 2.0**bits
    assert to_boundary[z != 0.0].min() > ulps
    ends = {"sigmoid": (0.0, 1.0), "tanh": (-1.0, 1.0), "cosine": (1.0, table[1])}
    assert (table[0], table[-1]) == ends[name]


@pytest.mark.parametrize("bits", [4, 12, 16])
def test_a_table_of_cosine_is_one_whole_period(bits):
    table = activation_table("cosine", bits)
    quarter = len(table) // 4
    assert len(table) == 8 * 2**bits
    assert table[[0, quarter, 2 * quarter, 3 * quarter]].tolist() == [1.0, 0.0, -1.0, 0.0]
    assert np.array_equal(table, -np.roll(table, 2 * quarter))


@given(st.integers(-(2**40), 2**40), st.integers(4, 16))
def test_cosine_repeats_after_each_period_to_the_last_bit(periods, bits):
    shared = Projection(n_inputs=1, n_hidden=16, activation="cosine", width=1.0, grid_bits=bits)
    vars(shared)["A"] = np.full((1, 16), 8.0)  # a step of 1 of the input is one period
    x, far = np.array([[0.25]]), np.array([[0.25 + periods % 256]])
    assert np.array_equal(shared.project(x), shared.project(far))


def test_weights_of_cosine_are_gaussian_and_pinned():
    shared = Projection(n_inputs=40, n_hidden=500, seed=7, activation="cosine", width=0.5)
    values = shared.A.ravel() / 0.5
    moments = [float((values**k).mean()) for k in (1, 2, 4)]
    assert moments == pytest.approx([0.0, 1.0, 2.9], abs=0.06)  # 3 − 12·(6/5)/12² for a sum of 12
    assert np.abs(values).max() < 6.0
    assert (shared.b.min(), shared.b.max()) == pytest.approx((-4.0, 4.0), abs=0.05)
    few = Projection(n_inputs=3, n_hidden=2, seed=7, activation="cosine", width=1.0)
    assert (few.A * 2**17).tolist() == [
        [111646.0, 7324.0],
        [-153088.0, -117808.0],
        [-10518.0, 11960.0],
    ]
    assert (few.b * 2**17).tolist() == [-164814.0, -239044.0]
    assert few.fingerprint == "96f6614c91bda9769e27131c99d6175478a8effa7447d0f20fdcbafe132b8f05"


def test_a_gaussian_is_the_sum_of_twelve_uniform_integers():
    keys = np.array([5, 2**63], dtype=np.uint64)
    words = random_words(9, keys, 6)
    slow = [
        [sum(int(word) >> s & 0xFFFF for word in row[3 * i : 3 * i + 3] for s in (0, 16, 32, 48))
         for i in range(2)]
        for row in words
    ]  # fmt: skip
    assert (random_gaussian(9, keys, 2) * 2**16 + 6 * 65535).tolist() == slow


def test_no_width_and_a_width_of_zero_choose_the_same():
    chosen = Projection(n_inputs=3, n_hidden=4)
    assert chosen.width == Projection(n_inputs=3, n_hidden=4, width=0.0).width == 4.0
    assert chosen == Projection(n_inputs=3, n_hidden=4, width=None)
    assert chosen == Projection(n_inputs=3, n_hidden=4, width=4.0)
    assert chosen == pickle.loads(pickle.dumps(chosen))  # noqa: S301 - our own bytes


def test_an_anomaly_far_outside_the_range_stays_one():
    shared = Projection(n_inputs=2, low=0.0, high=10.0)
    near, far, absurd = (shared.grid.one([5.0, v]) for v in (10.0, 100.0, 1e300))
    assert near[1] == 1.0
    assert far[1] == 19.0
    assert absurd[1] == MAX_ABS_INPUT


@pytest.mark.parametrize("name", ["tanh", "sigmoid", "cosine"])
def test_a_machine_with_narrow_indices_has_the_same_hidden_values(monkeypatch, name):
    """NumPy's indices have 32 bits on armv7, and a far sample's place in a table has more."""
    shared = Projection(n_inputs=3, n_hidden=8, activation=name)
    X = np.array([[0.1, -0.4, 0.9], [1e9, 1e9, 1e9], [-1e9, 1e9, -1e9]])
    wide = shared.project(X)
    monkeypatch.setattr(projection_module, "INDEX_BITS", 32)
    monkeypatch.setattr(np, "intp", np.int32)
    assert (shared.project(X) == wide).all()


def test_the_range_can_be_fixed_from_a_first_stretch_of_data():
    X = [[0.0, 5.0, 7.0], [10.0, 9.0, 7.0]]
    shared = Projection.of_data(X, n_hidden=4, margin=0.1)
    assert shared.low == (-1.0, 4.6, 6.0)
    assert shared.high == (11.0, 9.4, 8.0)
    with pytest.raises(SampleError, match="found nan at input 0 of row 0, expected a fin"):
        Projection.of_data([[np.nan]])
    with pytest.raises(SampleError, match="one at least"):
        Projection.of_data(np.empty((0, 3)))


def test_wild_values_do_not_widen_a_range():
    X = np.random.default_rng(0).normal(0.0, 1.0, (500, 4))
    calm = Projection.of_data(X)
    X[0] = [1e5, -1e5, 1e300, 0.0]
    for rows in (X, np.where(np.arange(500)[:, None] < 4, 1e5, X)):
        wild = Projection.of_data(rows)
        assert max(np.subtract(wild.high, wild.low)) < 60.0
        pump = Detector(wild)
        pump.learn(rows[5:])
        far = pump.score(X[5:55] + 10.0)
        assert far.min() > 10.0 * pump.score(X[5:]).mean()
    assert np.array_equal(calm.high, np.random.default_rng(0).normal(0.0, 1.0, (500, 4)).max(0))
    assert max(Projection.of_data(X[:63]).high) == 1e300  # too few to tell


def test_tails_that_are_only_heavy_stay_in_the_range():
    X = np.random.default_rng(0).standard_t(3, (500, 2))
    shared = Projection.of_data(X)
    assert np.array_equal(shared.low, X.min(0))
    assert np.array_equal(shared.high, X.max(0))


def test_an_input_that_is_mostly_constant_keeps_its_rare_values_but_not_a_glitch():
    X = np.full((1000, 2), 7.0)
    X[:4, 0] = 9.0, 11.0, 12.0, 1e6
    X[:2, 1] = 1e6
    shared = Projection.of_data(X)
    assert (shared.low, shared.high) == ((7.0, 6.0), (7.0 + 21 * 4.0, 8.0))


@pytest.mark.parametrize("value", [0.0, 1000.0, -5e4])
def test_a_change_of_one_unit_of_a_constant_input_is_seen(value):
    X = np.random.default_rng(0).normal(0.0, 1.0, (500, 3))
    X[:, 1] = value
    pump = Detector(Projection.of_data(X, n_hidden=16))
    pump.learn(X)
    before = float(pump.score([0.0, value, 0.0]))
    assert pump.score([0.0, value + 1.0, 0.0]) > max(4.0, 10.0 * before)


@given(arrays(np.float64, (80, 2), elements=st.floats(-1e6, 1e6)), st.data())
def test_a_range_counts_a_weight_of_two_as_two_samples(X, data):
    weights = data.draw(arrays(np.int64, 80, elements=st.integers(0, 3)))
    if not weights.any():
        weights[0] = 1
    weighted = Projection.of_data(X, weights=weights, n_hidden=2)
    assert weighted == Projection.of_data(X.repeat(weights, axis=0), n_hidden=2)


def test_data_choose_cosine_and_its_size_and_width():
    X = np.random.default_rng(0).normal(0.0, [1.0, 5.0, 0.2], (512, 3))
    few, many = Projection.of_data(X[:511], seed=3), Projection.of_data(X)
    assert (few.activation, few.n_hidden, few.seed, many.n_hidden) == ("cosine", 128, 3, 256)
    assert Projection.of_data(X, n_hidden=7, width=0.3).width == 0.3
    old = Projection.of_data(X, activation="tanh")
    assert (old.n_hidden, old.width) == (64, default_width("tanh", 3))
    assert Projection.of_data([[1.0, 2.0]] * 9).width == default_width("cosine", 2)


@pytest.mark.parametrize(("rows", "inputs"), [(20, 1), (500, 2), (60, 9), (300, 40)])
def test_the_width_of_cosine_follows_scotts_rule(rows, inputs):
    X = np.random.default_rng(rows).normal(0.0, 1.0, (rows, inputs)) ** 3
    shared = Projection.of_data(X, n_hidden=8)
    Z = (X - shared.low) / np.subtract(shared.high, shared.low) * 2.0 - 1.0
    squares = ((Z[:, None] - Z[None]) ** 2).sum(2)  # of all pairs, each with itself too
    sigma = np.sqrt(squares.mean()) * rows ** (-1.0 / (inputs + 4))
    assert shared.width == pytest.approx(8.0 / (2.0 * np.pi * sigma), rel=1.0 / 8)
    assert shared.width == Projection.of_data(X[::-1] * 7.0 - 3.0, n_hidden=8).width


def test_features_of_cosine_are_those_of_a_gaussian_kernel():
    shared = Projection(n_inputs=2, n_hidden=4096, activation="cosine", width=1.0, seed=1)
    X = np.random.default_rng(0).uniform(-1.0, 1.0, (20, 2))
    H, sigma = shared.hidden(X), 8.0 / (2.0 * np.pi)
    squares = ((X[:, None] - X[None]) ** 2).sum(2)
    expected = 0.5 * np.exp(-squares / (2.0 * sigma**2))
    assert np.abs(H @ H.T / 4096 - expected).max() < 5.0 * 0.5 / 64.0  # five deviations


def test_versions_with_different_defaults_say_how_to_agree():
    X = np.random.default_rng(0).normal(0.0, 1.0, (50, 2))
    old, new = Projection.of_data(X, activation="tanh"), Projection.of_data(X)
    for mine, its in ((old, new), (new, old)):
        with pytest.raises(MismatchError, match=r"; set activation='tanh', n_hidden=64 "):
            mine.must_equal(its)
    with pytest.raises(MismatchError, match=r"differs in seed: .* build the same Projection$"):
        new.must_equal(Projection.of_data(X, seed=1))


def test_named_inputs_keep_their_weights_when_others_appear():
    few = Projection(n_inputs=2, n_hidden=4, names=["b", "c"], width=1.0)
    more = Projection(n_inputs=3, n_hidden=4, names=["a", "b", "c"], width=1.0)
    assert np.array_equal(few.A, more.A[1:])
    assert np.array_equal(few.b, more.b)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"n_inputs": 0}, "expected at least 1"),
        ({"n_hidden": 0}, "expected 1 to 65536"),
        ({"seed": -1}, "expected 0 to 2"),
        ({"activation": "swish"}, "expected one of"),
        ({"grid_bits": 17}, "expected 4 to 16"),
        ({"width": -1.0}, "expected above 0"),
        ({"low": [0.0]}, "expected one number or 2"),
        ({"low": 1.0}, "low below high"),
        ({"high": np.inf}, "expected finite"),
        ({"names": ["a", "a"]}, "expected 2 different names"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(setting, words):
    with pytest.raises(SettingError, match=words):
        Projection(**({"n_inputs": 2} | setting))
