"""The alarm level, its counts, the promise of few false alarms, and the limit that keeps it."""

from itertools import pairwise
from math import inf, nextafter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from edgemerge import Detector, Monitor, Projection
from edgemerge.core.errors import SettingError
from edgemerge.core.limit import (
    BINS,
    FIXED_LIMIT,
    GENERATION,
    MAX_RISE,
    MIN_LIMIT,
    RENEW_EVERY,
    SETTLED,
    SHORT_EPISODE,
    AlarmLevel,
    Counts,
    Limit,
    Promise,
    bin_of,
    edge,
)

scores = st.lists(st.one_of(st.floats(0.001, 1e5), st.sampled_from((1.0, 2.0, 9.0))), max_size=60)
off_edges = scores.map(lambda values: [value * (1 + 1e-7) for value in values])  # of the bins
votes = st.integers(1, 6).flatmap(lambda n: st.tuples(st.integers(1, n), st.just(n)))


def alarms_by_the_rule(values, limit, votes):
    """Begin when k of the last n scores are above the limit, end after n in a row that are not."""
    k, n = votes
    found, on = [], False
    for i in range(len(values)):
        recent = [value > limit for value in values[max(0, i - n + 1) : i + 1]]
        on = any(recent) if on else sum(recent) >= k
        found.append(on)
    return found


def episodes_in(alarms):
    return sum(now and not before for before, now in pairwise([False, *alarms]))


def levels_of(values, votes):
    level = AlarmLevel(votes)
    return [level.update(value) for value in values]


def counted(levels):
    counts = Counts()
    for before, level in pairwise([0.0, *levels]):
        counts.add(before, level)
    return counts


@given(scores, votes, st.one_of(st.floats(0.001, 1e5), st.sampled_from((1.0, 2.0, 9.0))))
def test_the_level_is_above_any_limit_exactly_in_the_episodes_of_the_plain_rule(values, ks, limit):
    found = [level > limit for level in levels_of(values, ks)]
    assert found == alarms_by_the_rule(values, limit, ks)


def test_one_glitch_raises_no_alarm_even_as_the_first_score():
    assert levels_of([9.0, 1.0, 1.0, 1.0], (3, 5)) == [0.0, 0.0, 1.0, 1.0]
    assert levels_of([9.0, 1.0], (1, 1)) == [9.0, 1.0]


@given(scores, votes, st.integers(0, 60))
def test_a_level_goes_on_from_its_state(values, ks, cut):
    level = AlarmLevel(ks)
    for value in values[:cut]:
        level.update(value)
    again = AlarmLevel(ks)
    again.resume(level.state())
    assert again.state() == level.state()
    rest = values[cut:]
    assert [again.update(value) for value in rest] == [level.update(value) for value in rest]


@pytest.mark.parametrize("wrong", [(0, 1), (3, 2), (1, 2, 3), [3, 5], 3])
def test_votes_that_cannot_be_are_refused(wrong):
    with pytest.raises(SettingError, match=r"found votes=.*expected \(k, n\) with 1 ≤ k ≤ n"):
        AlarmLevel(wrong)


@given(off_edges, votes)
def test_passed_is_the_number_of_episodes_at_every_edge_of_a_bin(values, ks):
    counts = counted(levels_of(values, ks))
    assert counts.samples == len(values) == counts.held.sum()
    places = sorted({bin_of(value) for value in values} | {0, 300, BINS - 2})
    for i in {min(max(place + step, 0), BINS - 2) for place in places for step in (-1, 0, 1)}:
        alarms = alarms_by_the_rule(values, edge(i), ks)
        assert counts.passed[i] == episodes_in(alarms), (i, edge(i))
        assert counts.samples - counts.held[: i + 1].sum() == sum(alarms)


@given(scores, scores)
def test_counts_add_as_if_one_had_counted_both(first, second):
    a, b, both = counted(first), counted(second), counted(first)
    for before, level in pairwise([0.0, *second]):
        both.add(before, level)
    assert (a + b).state() == both.state() == (b + a).state()
    assert Counts.of(both.state()).state() == both.state()


def test_levels_that_no_bin_holds_are_counted_at_the_ends():
    assert [bin_of(level) for level in (-1.0, 0.0, 1e-9, 1e300, inf)] == [
        0,
        0,
        0,
        BINS - 1,
        BINS - 1,
    ]
    for i in range(BINS - 1):
        assert bin_of(nextafter(edge(i), 0.0) * (1 - 1e-12)) == i
        assert bin_of(edge(i) * (1 + 1e-12)) == i + 1


@given(off_edges, votes, st.floats(0.01, 0.9))
def test_the_limit_from_counts_keeps_its_rate_and_the_next_lower_does_not(values, ks, rate):
    counts = counted(levels_of(values, ks))
    allowed = rate * (len(values) + 1) - 1.0
    limit = counts.limit(rate)
    if allowed < 0.0:
        assert limit is None
        return
    assert episodes_in(alarms_by_the_rule(values, limit, ks)) <= allowed
    i = bin_of(limit * (1 - 1e-9))
    assert counts.episodes(limit * (1 - 1e-9)) == counts.passed[i] <= allowed
    if i:
        assert episodes_in(alarms_by_the_rule(values, edge(i - 1), ks)) > allowed


@given(st.integers(2, 3000), st.integers(0, 99), st.floats(0.01, 0.5))
def test_the_limit_for_single_samples_is_the_conformal_quantile_to_a_bin(size, seed, rate):
    values = np.random.default_rng(seed).exponential(1.0, size)
    limit = counted(values).limit(rate, "sample")
    allowed = rate * (size + 1) - 1.0
    if allowed < 0.0:
        assert limit is None
        return
    above = np.sort(values)[::-1][int(allowed)]  # so many are above it
    assert limit == pytest.approx(max(above, edge(0)), rel=2.0 ** (1 / 32) - 1 + 1e-9)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("1 per week", (1.0, 604800.0, True)),
        ("2 per 10000 samples", (2.0, 10000.0, False)),
        ("2 per 10_000 samples", (2.0, 10000.0, False)),
        ("1 per 12 hours", (1.0, 43200.0, True)),
        (" 3 A Day ", (3.0, 86400.0, True)),
        ("0.5 an hour", (0.5, 3600.0, True)),
        ("1 in 1.5 months", (1.0, 1.5 * 2629746.0, True)),
        ("1 per 10000samples", (1.0, 10000.0, False)),
        (0.25, (0.25, 1.0, False)),
    ],
)
def test_a_promise_is_read_from_words_or_a_rate(words, expected):
    found = Promise.of(words)
    assert (found.alarms, found.per, found.timed) == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("weekly", "1 per week"),
        ("1 per fortnight", "2 per 10000 samples"),
        ("one per week", "1 per week"),
        ("-1 per week", "1 per week"),
        ("1.2.3 per week", "1 per week"),
        ("1 per 1.2.3 weeks", "1 per week"),
        (". per week", "1 per week"),
        ("", "1 per week"),
        ("0 per week", "numbers above 0"),
        ("1 per 0 weeks", "numbers above 0"),
        ("1 per 0 samples", "between 0 and 1"),
        ("5 per 2 samples", "between 0 and 1"),
        ("0 per 5 samples", "between 0 and 1"),
        (0, "between 0 and 1"),
        (1.0, "between 0 and 1"),
        (-0.1, "between 0 and 1"),
        (float("nan"), "between 0 and 1"),
    ],
)
def test_a_promise_that_cannot_be_kept_or_read_is_refused(words, expected):
    with pytest.raises(SettingError, match=f"found false_alarms=.*expected.*{expected}"):
        Promise.of(words)


def test_a_promise_per_time_needs_the_interval_between_samples():
    promise = Promise.of("1 per hour")
    assert promise.rate() == promise.rate(None) == 0.0
    assert promise.rate(36.0) == pytest.approx(0.01)
    assert promise.rate(1e9) == 0.5  # fewer samples than alarms: at most every second is one


def test_a_fixed_limit_is_four_unless_told_and_counts_nothing():
    assert Limit().value == FIXED_LIMIT == 4.0
    limit = Limit(2.5)
    for _ in range(2 * RENEW_EVERY):
        limit.count(0.0, 9.0, inside=False)
    assert (limit.value, limit.kind, limit.missing, limit.counts.samples) == (2.5, "fixed", 0, 0)


@pytest.mark.parametrize("n_inputs", [1, 2, 3, 8])
def test_with_few_inputs_a_limit_may_begin_as_high_as_is_as_rare_as_6_with_eight(n_inputs):
    """The oracle: what a mean of so many squares of Gaussian errors exceeds as rarely."""
    limit, promised = Limit(), Limit(false_alarms=1e-9)
    for each in (limit, promised):
        each.start(np.full(1000, 99.0), n_inputs=n_inputs)
    same = chi2.isf(chi2.sf(6.0 * 8, 8), n_inputs) / n_inputs
    assert limit.value == pytest.approx(same, rel=0.02)
    for _ in range(2 * RENEW_EVERY):
        promised.count(0.0, 1.0)
    assert (promised.kind, promised.value) == ("provisional", limit.value)


def test_with_few_inputs_fewer_samples_of_commissioning_may_be_above_the_limit():
    levels = np.r_[np.ones(990), np.full(10, 5.0)]
    limit = Limit()
    for n_inputs, expected in ((3, 5.0), (4, 4.0)):
        limit.start(levels, n_inputs=n_inputs)
        assert limit.value == expected


def test_a_monitor_of_one_input_begins_above_the_extremes_of_normal():
    rng = np.random.default_rng(3)
    x = np.round(rng.normal(size=(2000, 1)), 1)
    shared = Projection.of_data(x[:600], n_hidden=16, seed=3, activation="tanh")
    monitor = Monitor(Detector(shared), commissioning=1000)
    for at, each in enumerate(x):
        monitor.take(each, float(at))
    assert monitor.limit.value > 6.0


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ([1.0] * 100, 4.0),
        ([5.0] * 100, 5.0),
        ([1.0] * 99 + [50.0], 4.0),  # 2 % may be above
        ([1.0] * 95 + [5.5] * 5, 5.5),
        ([50.0] * 100, 6.0),
    ],
)
def test_a_limit_begins_above_nearly_all_levels_of_commissioning_from_4_to_6(levels, expected):
    default, given, promised = Limit(), Limit(9.0), Limit(false_alarms=0.001)
    for limit in (default, given, promised):
        limit.start(np.array(levels), n_inputs=8)
    assert (default.value, given.value, promised.value) == (expected, 9.0, expected)
    again = Limit()
    again.resume(default.state())
    assert again.value == expected
    old = default.state()
    del old["started"]  # as version 0.1 wrote it
    again.resume(old)
    assert again.value == 4.0


def test_a_provisional_limit_stays_above_where_it_began_and_a_settled_one_does_not():
    limit = Limit(false_alarms=0.01)
    limit.start(np.full(100, 5.5), n_inputs=8)
    for _ in range(64):
        limit.count(1.0, 1.0)
    assert (limit.kind, limit.value) == ("provisional", 5.5)
    for _ in range(64):
        limit.count(1.0, 1.0)
    assert (limit.kind, limit.value) == ("promised", 3.0)
    limit.start(np.full(100, 5.5), n_inputs=8)  # commissioned again
    assert limit.value == 3.0


@pytest.mark.parametrize("wrong", [0.0, -1.0, inf, float("nan")])
def test_a_limit_that_cannot_be_is_refused(wrong):
    with pytest.raises(SettingError, match=r"found limit=.*expected a finite number above 0"):
        Limit(wrong)


def test_a_limit_and_a_promise_together_are_refused():
    with pytest.raises(SettingError, match="expected one of them: leave one out"):
        Limit(4.0, "1 per week")


def fed(limit, levels):
    """Count levels outside episodes."""
    for before, level in pairwise([0.0, *levels]):
        limit.count(before, level, inside=False)
    return limit


def asking(level, rate):
    """Return a promised limit after a commissioning that asked for this one."""
    limit = Limit(false_alarms=rate)
    limit.start(np.full(100, level), n_inputs=8)
    return limit


def peaks(height, *, every, count, low=1.0):
    """Levels with a peak every few samples."""
    levels = np.full(count, low)
    levels[every - 1 :: every] = height
    return levels


def test_a_limit_is_provisional_until_the_promise_has_enough_samples():
    limit = Limit(false_alarms="1 per 1000 samples")
    assert (limit.kind, limit.missing, limit.value) == ("provisional", 999, 4.0)
    fed(limit, np.ones(900))
    assert (limit.kind, limit.missing, limit.value) == ("provisional", 99, 4.0)
    fed(limit, np.ones(200))
    assert (limit.kind, limit.missing, limit.value) == ("promised", 0, MIN_LIMIT)


@pytest.mark.parametrize("rounds", range(1, 12))
@pytest.mark.parametrize(("height", "expected"), [(2.0, 4.0), (5.0, 5.0), (50.0, 6.0)])
def test_a_provisional_limit_is_above_everything_counted_from_4_to_6(height, expected, rounds):
    size = RENEW_EVERY * rounds
    limit = fed(Limit(false_alarms="1 per 100000 samples"), peaks(height, every=10, count=size))
    assert limit.kind == "provisional"
    assert expected <= limit.value <= expected * 2.0 ** (2 / 32)
    assert limit.value <= MAX_RISE * FIXED_LIMIT


@pytest.mark.parametrize("size", [47, 48, 832])  # of the last two, the rate times the size rounds
@pytest.mark.parametrize("unit", ["sample", "episode"])
def test_the_least_rate_that_counts_can_promise_gives_a_limit_just_above_all_of_them(size, unit):
    highest = counted([1.0, 5.0] * (size // 2) + [1.0] * (size % 2)).limit(1.0 / (size + 1.0), unit)
    assert highest == pytest.approx(5.0, rel=2.0 ** (2 / 32) - 1.0)


def test_a_promised_limit_lets_pass_what_was_promised_and_not_more():
    rng = np.random.default_rng(0)
    ordinary, rare = rng.uniform(1.0, 4.0, 20_000), rng.uniform(7.0, 8.8, 20_000)
    levels = np.where(rng.random(20_000) < 0.005, rare, ordinary)
    often, seldom = (fed(asking(6.0, rate), levels) for rate in (0.1, 0.0001))
    assert often.kind == seldom.kind == "promised"
    assert often.value < 4.0
    assert seldom.value > 8.5
    assert often.counts.episodes(often.value) <= 0.1 * (often.counts.samples + 1)


def test_a_promised_limit_is_three_at_least():
    assert fed(Limit(false_alarms=0.01), np.full(1000, 0.1)).value == MIN_LIMIT


def test_a_limit_that_is_settled_rises_by_half_at_most_when_a_fault_creeps_in():
    rate = 0.05
    limit = fed(asking(5.0, rate), peaks(4.0, every=4, count=int(SETTLED / rate) + 128))
    settled = limit.settled
    assert limit.value == settled == pytest.approx(4.0, rel=0.05)
    for height in np.geomspace(4.0, 400.0, 100):
        fed(limit, peaks(height, every=4, count=int(GENERATION / rate)))
        assert limit.value <= MAX_RISE * settled
    assert limit.value == MAX_RISE * settled
    assert limit.settled == settled


def with_short_episodes(limit, height, *, calm=100, times=40):
    """Count calm samples, and again and again a short episode, as of a fault that flickers."""
    for _ in range(times):
        fed(limit, np.ones(calm))
        for before in (1.0, height, height):
            limit.count(before, height, inside=True)
        limit.close()
    return limit


@pytest.mark.parametrize(("began", "highest"), [(2.0, 6.0), (5.0, 7.5), (50.0, 9.0)])
def test_a_fault_that_comes_and_goes_does_not_carry_a_limit_along_before_it_has_settled(
    began, highest
):
    limit = with_short_episodes(asking(began, 0.001), 800.0)
    assert limit.seen * 0.001 < SETTLED
    assert limit.value == pytest.approx(highest)
    assert limit.wanted > 800.0
    assert limit.kind == "bounded"  # the promise is not kept, and the status says so
    again = Limit(false_alarms=0.001)
    again.resume(limit.state())
    assert (again.kind, again.value, again.wanted) == ("bounded", limit.value, limit.wanted)


def test_a_bounded_limit_keeps_its_promise_again_when_the_episodes_have_ended():
    limit = with_short_episodes(asking(4.0, 0.05), 800.0, calm=10)
    assert limit.kind == "bounded"
    fed(limit, np.ones(int(3 * GENERATION / 0.05)))
    assert (limit.kind, limit.value, limit.wanted) == ("promised", MIN_LIMIT, MIN_LIMIT)


def test_a_limit_that_an_earlier_version_let_rise_falls_to_its_bound():
    limit = asking(4.0, 0.001)
    old = limit.state() | {"value": 827.0, "settled": 827.0}
    del old["wanted"]
    again = Limit(false_alarms=0.001)
    again.resume(old)
    assert again.value == MAX_RISE * 4.0


@given(
    st.floats(0.001, 0.4),
    st.floats(0.1, 100.0),
    st.lists(st.tuples(st.floats(0.1, 1e6), st.integers(1, 80), st.booleans()), max_size=30),
)
def test_no_promised_limit_exceeds_what_commissioning_asked_for_by_more_than_half(
    rate, began, runs
):
    limit, before = asking(began, rate), 0.0
    for level, length, inside in runs:
        for _ in range(length):
            limit.count(before, level, inside=inside)
            before = level
        if inside:
            limit.close()
        assert limit.value <= MAX_RISE * limit.fixed <= MAX_RISE**2 * FIXED_LIMIT
        promising = limit.kind in ("promised", "bounded")
        assert promising == (limit.settled is not None)
        assert (limit.kind == "bounded") == (promising and limit.wanted > limit.value)


def test_a_settled_limit_falls_when_scores_fall_since_old_counts_are_let_go():
    rate = 0.05
    limit = fed(asking(6.0, rate), peaks(8.0, every=4, count=1000))
    assert limit.value > 7.5
    fed(limit, peaks(4.0, every=4, count=int(3 * GENERATION / rate)))
    assert limit.value < 4.5
    assert limit.seen > limit.counts.samples >= GENERATION / rate


@pytest.mark.parametrize(
    ("length", "counts"), [(1, True), (SHORT_EPISODE, True), (SHORT_EPISODE + 1, False)]
)
def test_an_episode_is_counted_when_it_has_ended_if_it_was_short(length, counts):
    limit = fed(Limit(false_alarms=0.01), np.ones(100))
    for before in [1.0, *[9.0] * (length - 1)]:
        limit.count(before, 9.0, inside=True)
    assert limit.counts.samples == 100
    assert limit.counts.episodes(5.0) == 0
    limit.close()
    assert limit.counts.samples == 100 + length * counts
    assert limit.counts.episodes(5.0) == int(counts)
    limit.close()  # nothing is open
    assert limit.counts.samples == 100 + length * counts


def test_a_short_episode_in_drift_is_counted_with_the_drift():
    limit = Limit(false_alarms=0.01)
    limit.count(1.0, 9.0, inside=True)
    limit.close(doubtful=True)
    assert limit.counts.samples == 0
    limit.count(9.0, 1.0, doubtful=True)
    limit.accept()
    assert (limit.counts.samples, limit.seen) == (2, 2)
    assert limit.counts.episodes(5.0) == 1
    limit.accept()
    assert limit.counts.samples == 2


def test_two_long_episodes_are_not_mixed_up():
    limit = Limit(false_alarms=0.01)
    for length, expected in ((SHORT_EPISODE + 1, 0), (3, 3)):
        for _ in range(length):
            limit.count(9.0, 9.0, inside=True)
        limit.close()
        assert limit.counts.samples == expected


def test_the_interval_is_learnt_from_times_and_a_gap_hardly_counts():
    limit = Limit(false_alarms="1 per hour")
    assert limit.missing is None
    limit.tell_interval(2.0)
    assert [limit.interval_s, limit.missing] == [2.0, 1799]
    for _ in range(3000):
        limit.tell_interval(1.0)
    assert limit.interval_s == pytest.approx(1.0, rel=1e-3)
    before = limit.interval_s
    limit.tell_interval(1e6)
    assert before < limit.interval_s < 1.01 * before
    for wrong in (0.0, -5.0, inf, float("nan")):
        kept = limit.interval_s
        limit.tell_interval(wrong)
        assert limit.interval_s == kept


def test_a_promise_per_samples_needs_no_interval():
    limit = Limit(false_alarms=0.01)
    limit.tell_interval(2.0)
    assert limit.interval_s is None
    assert limit.missing == 99


def test_a_promise_per_time_waits_for_the_interval():
    limit = fed(Limit(false_alarms="1 per minute"), np.full(640, 2.0))
    assert limit.kind == "provisional"
    limit.tell_interval(1.0)
    assert fed(limit, np.full(64, 2.0)).kind == "promised"


@given(
    st.lists(st.tuples(st.floats(0.01, 100.0), st.booleans(), st.booleans()), max_size=40),
    st.integers(0, 40),
)
def test_a_limit_goes_on_from_its_state(steps, cut):
    limit, again = Limit(false_alarms="1 per 70 samples"), Limit(false_alarms="1 per 70 samples")
    feed(limit, steps[:cut])
    again.resume(limit.state())
    assert again.state() == limit.state()
    for each in (limit, again):
        feed(each, steps[cut:])
        each.accept()
    assert again.state() == limit.state()


def feed(limit, steps):
    for level, inside, doubtful in steps:
        for _ in range(5):
            limit.count(0.5 * level, level, inside=inside, doubtful=doubtful)
        limit.tell_interval(level)
        if not inside:
            limit.close(doubtful=doubtful)


def test_the_kind_says_where_a_limit_came_from():
    limit = Limit()
    assert (limit.value, limit.kind) == (4.0, "default")
    limit.start(np.full(100, 2.0), n_inputs=8)  # nothing asks for more
    assert (limit.value, limit.kind) == (4.0, "default")
    limit.start(np.full(100, 5.0), n_inputs=8)
    assert (limit.value, limit.kind) == (5.0, "commissioned")
    again = Limit()
    again.resume(limit.state())
    assert (again.value, again.kind) == (5.0, "commissioned")
    given = Limit(4.0)
    given.start(np.full(100, 5.0), n_inputs=8)
    assert (given.value, given.kind) == (4.0, "fixed")


def test_another_setting_goes_on_from_the_same_counts():
    state = fed(Limit(false_alarms=0.01), np.full(1000, 2.0)).state()
    fixed, other = Limit(5.0), Limit(false_alarms=0.02)
    for each in (fixed, other):
        each.resume(state)
        assert each.counts.samples == 1000
    assert (fixed.value, fixed.kind) == (5.0, "fixed")
    assert (other.value, other.kind) == (MIN_LIMIT, "promised")
