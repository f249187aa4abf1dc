"""The readout against computations that are not ours: lstsq, pinv, and the paper's recursion."""

from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from edgemerge import Projection, Readout, Stats
from edgemerge.core.errors import RidgeWarning, SettingError, SolveError
from edgemerge.core.readout import inverse_factor
from edgemerge.core.stats import elm
from tests.cases import parts

CLOSE = 1e-6  # the condition of U + ρI stays below 1e9
EPS = np.finfo(float).eps
DIGITS = 60  # the printed recursion loses two for each digit of the condition, which has up to 8


def ridge_problem(H, T, ridge):
    """Least squares on [H; √ρ·I], which NumPy solves by SVD without ever forming U."""
    N = H.shape[1]
    left = np.vstack([H, np.sqrt(ridge) * np.eye(N)])
    return np.linalg.lstsq(left, np.vstack([T, np.zeros((N, T.shape[1]))]), rcond=None)[0]


def paper_recursion(H, T, ridge, chunk=1):
    """OS-ELM as it is printed, with its own initial values and a plain inverse, in many digits.

    In float64 its own rounding grows with the square of the condition: ours could not be seen.
    """
    N = H.shape[1]
    with localcontext(prec=DIGITS):
        H, T, P = decimals(H), decimals(T), decimals(np.eye(N)) / Decimal(ridge)
        B = decimals(np.zeros((N, T.shape[1])))
        for i in range(0, len(H), chunk):
            h, t = H[i : i + chunk], T[i : i + chunk]
            P = P - P @ h.T @ inverse(decimals(np.eye(len(h))) + h @ P @ h.T) @ h @ P
            B = B + P @ h.T @ (t - h @ B)
    return P.astype(float), B.astype(float)


def decimals(A):
    return np.vectorize(Decimal, otypes=[object])(A)


def inverse(A):
    """Gauss and Jordan's, for a positive definite matrix: it needs no pivoting."""
    left, right = A.copy(), decimals(np.eye(len(A)))
    for i in range(len(A)):
        right[i], left[i] = right[i] / left[i, i], left[i] / left[i, i]
        for j in set(range(len(A))) - {i}:
            right[j], left[j] = right[j] - left[j, i] * right[i], left[j] - left[j, i] * left[i]
    return right


@st.composite
def problems(draw):
    projection, (X,) = draw(parts(count=1, min_rows=1))
    ridge = draw(st.sampled_from((1e-3, 0.1, 10.0)))
    ends = (projection.grid.to_readings(np.full(projection.n_inputs, e)) for e in (-3.0, 3.0))
    return problem_of(projection, np.clip(X, *ends), ridge)


def problem_of(projection, X, ridge):
    return projection, X, projection.hidden(X), projection.grid.rows(X), ridge


@given(problems())
def test_solving_sums_agrees_with_lstsq_on_the_samples(problem):
    projection, X, H, T, ridge = problem
    readout = Stats.of(projection, X).solve(ridge)
    scale = 1.0 + np.abs(T).max()
    assert pytest.approx(ridge_problem(H, T, ridge), rel=CLOSE, abs=CLOSE * scale) == readout.B
    assert readout.P @ (H.T @ H + ridge * np.eye(len(readout.P))) == pytest.approx(
        np.eye(len(readout.P)), abs=CLOSE
    )


LINE = Projection(n_inputs=1, n_hidden=5, seed=13, activation="identity", width=3.7, grid_bits=5)
ON_A_LINE = LINE.grid.to_readings(
    np.clip(np.random.default_rng(13).normal(0.0, 3.0, (14, 1)), -3.0, 3.0)
)


@given(problems(), st.integers(1, 7))
@example(problem_of(LINE, ON_A_LINE, 1e-3), 7)  # in float64 the printed recursion is 1e-3 off
def test_steps_and_chunks_follow_the_paper_s_recursion(problem, chunk):
    projection, _, H, T, ridge = problem
    P, B = paper_recursion(H, T, ridge, chunk)
    start = Stats.empty(projection).solve(ridge)
    stepped, chunked = start, start
    for h, t in zip(H, T, strict=True):
        stepped = stepped.step(h, t)
    for i in range(0, len(H), chunk):
        chunked = chunked.chunk(H[i : i + chunk], T[i : i + chunk])
    room = rounding(H, ridge)
    for found in (stepped, chunked):
        assert pytest.approx(P, abs=room / ridge) == found.P
        assert pytest.approx(B, abs=room * (np.abs(B).max() + np.abs(T).max())) == found.B
        assert np.array_equal(found.P, found.P.T)


def rounding(H, ridge):
    """What float64 may lose of P and B: a rounding for each operation on a value, times condition.

    Each sample is one, and the solution that all begins with takes three: root, division, product.
    """
    condition = 1.0 + np.linalg.norm(H, 2) ** 2 / ridge
    return (len(H) + 3) * H.shape[1] * EPS * condition


@given(problems())
def test_sums_come_back_from_p_and_b(problem):
    projection, X, _, _, ridge = problem
    stats = Stats.of(projection, X)
    U, V = stats.solve(ridge).sums()
    room = 1e-6 * (1.0 + np.abs(stats.U).max() + np.abs(stats.V).max())
    assert pytest.approx(stats.U, abs=room) == U
    assert pytest.approx(stats.V, abs=room) == V


@given(problems(), st.integers(1, 3))
def test_mean_loss_is_that_of_the_rows_under_any_readout(problem, outputs):
    projection, X, H, _, ridge = problem
    rng = np.random.default_rng(outputs)
    T = np.rint(rng.uniform(-1, 1, (len(X), outputs)) / projection.step) * projection.step
    foreign = Readout(np.eye(projection.n_hidden), rng.normal(size=(projection.n_hidden, outputs)))
    slow = ((T - H @ foreign.B) ** 2).mean()
    stats = Stats.of(projection, X, T)
    assert stats.mean_loss(foreign) == pytest.approx(slow, rel=1e-9, abs=1e-9)
    own = stats.solve(ridge)
    assert stats.mean_loss(own) == pytest.approx(((T - H @ own.B) ** 2).mean(), rel=1e-6, abs=1e-9)


@given(problems())
def test_all_batch_ways_agree_with_the_pseudo_inverse(problem):
    projection, X, H, T, _ = problem
    assume(len(H) >= H.shape[1] and np.linalg.cond(H) < 1e4)
    reference = np.linalg.pinv(H) @ T
    room = 1e-5 * (1.0 + np.abs(reference).max())
    for way in ("svd", "qr", "normal"):
        assert elm(projection, X, by=way) == pytest.approx(reference, abs=room)


@given(problems(), st.data())
def test_e2lm_adds_subtracts_and_replaces_as_if_trained_afresh(problem, data):
    projection, X, _, _, ridge = problem
    cut = data.draw(st.integers(0, len(X)))
    old, kept = Stats.of(projection, X[:cut]), Stats.of(projection, X[cut:])
    other = (X[:cut] + X.mean(0)) / 2.0
    new = Stats.of(projection, other)
    fresh = Stats.of(projection, np.vstack([X[cut:], other]))
    replaced = old + kept - old + new
    assert np.array_equal(replaced.solve(ridge).B, fresh.solve(ridge).B)


def test_any_other_target_is_learnt_too():
    shared = Projection(n_inputs=2, n_hidden=64, seed=3)
    X = np.random.default_rng(0).uniform(-1.0, 1.0, (2000, 2))
    T = np.column_stack([np.sin(3 * X[:, 0]), X[:, 0] * X[:, 1]])
    readout = Stats.of(shared, X[:1500], T[:1500]).solve(ridge=1e-6)
    assert np.abs(shared.hidden(X[1500:]) @ readout.B - T[1500:]).mean() < 0.02


def test_without_a_ridge_too_few_samples_are_an_error():
    shared = Projection(n_inputs=3, n_hidden=8)
    few = np.random.default_rng(0).uniform(-1, 1, (7, 3))
    with pytest.raises(SolveError, match="learn more samples than there are hidden values"):
        Stats.of(shared, few).solve(ridge=0.0)
    with pytest.raises(SolveError, match="expected at least"):
        elm(shared, few, by="qr")
    with pytest.raises(SolveError, match="linearly dependent"):
        elm(shared, np.repeat(few, 2, axis=0), by="qr")
    with pytest.raises(SettingError, match="'svd', 'qr' or 'normal'"):
        elm(shared, few, by="lu")


def test_a_ridge_that_is_too_small_is_raised_and_said():
    U = np.array([[1.0, 1.0], [1.0, 1.0 - 1e-9]])  # indefinite by rounding
    with pytest.warns(RidgeWarning, match="raised to"):
        _, ridge = inverse_factor(U, 1e-10)
    assert ridge == pytest.approx(1e-8) or ridge == pytest.approx(1e-9)
    with pytest.raises(SolveError, match="does not determine a readout"):
        inverse_factor(-np.eye(2), 1e-3)
    with pytest.raises(SolveError, match="NaN or infinity"):
        inverse_factor(np.full((2, 2), np.nan), 1.0)
    with pytest.raises(SettingError, match="expected 0 or more"):
        inverse_factor(np.eye(2), -1.0)
