"""Transition tables: probabilities of what was counted, and nothing across a gap."""

from collections import Counter
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edgemerge.agent.features import Transitions
from edgemerge.paper.data.driving import (
    LEVELS,
    STEP_S,
    WINDOW_S,
    speed_levels,
    transition_table,
    transition_windows,
)

ROUNDING = 1e-12  # a row adds fifteen shares in float64

drives = st.lists(st.tuples(st.floats(0.0, 200.0), st.booleans()), min_size=1, max_size=60)


def parted(drive):
    """Give the speeds, and for each but the first whether it follows the one before."""
    speed, follows = zip(*drive, strict=True)
    return np.array(speed), np.array(follows[1:], dtype=bool)


def matrix(speed, follows):
    return transition_table(speed_levels(speed), follows).reshape(LEVELS, LEVELS)


@given(drives)
def test_each_row_is_a_probability_or_nothing(drive):
    T = matrix(*parted(drive))
    total = T.sum(axis=1)
    assert (T >= 0).all()
    assert ((abs(total - 1) < ROUNDING) | (total == 0)).all()


@given(drives)
def test_the_table_agrees_with_counting_by_hand(drive):
    speed, follows = parted(drive)
    level = [sum(v >= 10 * k for k in range(1, 15)) for v in speed]
    steps = [step for step, counted in zip(pairwise(level), follows, strict=True) if counted]
    left, counts = Counter(a for a, _ in steps), Counter(steps)
    T = matrix(speed, follows)
    assert all(T[a, b] == n / left[a] for (a, b), n in counts.items())
    assert np.count_nonzero(T) == len(counts)


@given(st.lists(st.integers(0, 199), min_size=2, max_size=60))
def test_the_agent_makes_the_same_table_of_readings_without_gaps(whole):
    speed = np.array(whole) + 0.5  # in the middle: on the edges rounding decides
    ours = transition_table(speed_levels(speed), np.ones(len(speed) - 1, dtype=bool))
    assert (ours == Transitions().of(speed[:, None])[0]).all()


@given(drives, st.integers(1, 3))
def test_driving_the_same_again_after_a_gap_changes_nothing(drive, times):
    speed, follows = parted(drive)
    again = np.concatenate([follows, *[np.append([False], follows)] * times])
    assert (matrix(np.tile(speed, times + 1), again) == matrix(speed, follows)).all()


@given(drives, st.floats(0.0, 9.0))
def test_only_the_level_counts(drive, shift):
    speed, follows = parted(drive)
    moved = speed // 10 * 10 + shift
    assert (matrix(moved, follows) == matrix(speed, follows)).all()


@given(st.integers(1, 400))
def test_windows_start_every_few_seconds_and_are_whole(seconds):
    rng = np.random.default_rng(seconds)
    speed, follows = rng.uniform(0, 150, seconds), rng.random(seconds - 1) < 0.9
    found = transition_windows(speed, follows)
    starts = [s for s in range(0, seconds, STEP_S) if s + WINDOW_S <= seconds]
    assert found.shape == (len(starts), LEVELS**2)
    for row, s in zip(found, starts, strict=True):
        within = slice(s, s + WINDOW_S)
        assert (
            row == transition_table(speed_levels(speed)[within], follows[within][: WINDOW_S - 1])
        ).all()


def test_a_step_across_a_gap_is_in_no_window():
    speed = np.full(130, 45.0)
    speed[60:] = 85.0
    follows = np.ones(129, dtype=bool)
    follows[59] = False  # from level 4 to level 8
    T = transition_windows(speed, follows).reshape(-1, LEVELS, LEVELS)
    assert len(T) == 2
    assert (T[:, 4, 4] == 1.0).all()
    assert (T[:, 8, 8] == 1.0).all()
    assert T.sum() == 4.0
