"""Laws of the bank: every sample is counted once, whatever happens to the patterns."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgemerge import Bank, Contribution, Projection, Stats
from edgemerge.core.errors import (
    FormatError,
    MismatchError,
    SampleError,
    SettingError,
    UnknownError,
)
from edgemerge.wire.state import from_bytes, to_bytes
from tests.cases import examples, machine, projections, samples


def seen(bank):
    return sum((bank[name].own for name in bank), start=Stats.empty(bank.projection))


@st.composite
def streams(draw, max_rows=400):
    """A projection with few hidden values, and a stream that changes its place now and then."""
    projection = draw(projections(max_inputs=3, max_hidden=3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    places = rng.uniform(-1.0, 1.0, (draw(st.integers(1, 4)), projection.n_inputs))
    rows = draw(st.integers(1, max_rows))
    which = (np.arange(rows) // draw(st.integers(1, 200))) % len(places)
    X = places[which] + rng.normal(0.0, draw(st.sampled_from((0.01, 0.2))), (rows, places.shape[1]))
    return projection, projection.grid.to_readings(X)


@given(streams(), st.integers(1, 6))
@examples(40)
def test_without_rejection_the_patterns_add_up_to_all_samples(case, most):
    projection, X = case
    bank = Bank(projection, max_patterns=most, reject_above=None)
    bank.learn(X)
    bank.catch_up()
    assert seen(bank) == Stats.of(projection, X)
    assert len(bank) <= most


@given(streams(), st.integers(1, 6), st.floats(1.5, 20.0))
@examples(40)
def test_every_sample_is_learnt_once_or_rejected(case, most, reject_above):
    projection, X = case
    bank = Bank(projection, max_patterns=most, reject_above=reject_above)
    bank.learn(X)
    bank.catch_up()
    found = sum(bank[e.pattern].count for e in bank.events if e.kind == "new" and e.pattern in bank)
    lost = [event for event in bank.events if event.kind == "retired"]
    assert seen(bank).count <= len(X)
    if not lost:
        assert seen(bank).count >= len(X) - bank.rejected
    if not lost and not found:
        assert seen(bank).count == len(X) - bank.rejected


@pytest.mark.slow
@given(streams(), st.lists(st.integers(1, 90), max_size=8), st.sampled_from((None, 4.0)))
@examples(40)
def test_grouping_does_not_matter(case, sizes, reject_above):
    projection, X = case
    at_once, in_pieces = (Bank(projection, reject_above=reject_above) for _ in range(2))
    at_once.learn(X)
    for piece in np.split(X, np.cumsum(sizes)[np.cumsum(sizes) < len(X)]):
        for x in piece if len(piece) < 5 else [piece]:
            in_pieces.learn(x)
    assert at_once.share("A", revision=1) == in_pieces.share("A", revision=1)
    assert at_once.events == in_pieces.events


@given(streams(max_rows=200), st.data())
@examples(30)
def test_adopting_twice_is_once_and_adopting_nothing_is_never_having_heard(mine, data):
    projection, X = mine
    peer = Bank(projection)
    peer.learn(data.draw(samples(projection, min_rows=1)))
    notes = peer.share("B", revision=1)
    bank = Bank(projection)
    bank.learn(X)
    bank.catch_up()
    own, probe = bank.share("A", revision=1), X[:20]
    before = bank.score(probe)
    bank.adopt(notes)
    told = bank.score(probe)
    bank.adopt(notes)
    assert bank.share("A", revision=1) == own  # what was told is never shared
    assert bank.score(probe) == pytest.approx(told, rel=1e-9, abs=1e-9)
    total = sum((bank[name].others for name in bank), start=Stats.empty(projection))
    assert total == sum((note.stats for note in notes), start=Stats.empty(projection))
    bank.adopt([])
    assert list(bank) == [note.pattern for note in own]
    assert bank.score(probe) == pytest.approx(before, rel=1e-9, abs=1e-9)


SHARED = Projection(n_inputs=6, n_hidden=12, seed=3)


def test_a_mode_that_lasts_becomes_a_pattern_and_old_ones_stay():
    rng = np.random.default_rng(0)
    bank = Bank(SHARED)
    bank.learn(machine(0.0, 300, rng))
    patterns = set(bank)
    assert bank.score(machine(0.7, 100, rng)).min() > 8.0
    bank.learn(machine(0.7, 300, rng))
    kinds = [(event.kind, event.pattern) for event in bank.events if event.kind == "new"]
    assert len(kinds) == 1
    assert kinds[0][1] not in patterns
    assert bank.score(machine(0.7, 100, rng)).mean() < 1.5
    assert bank.score(machine(0.0, 100, rng)).mean() < 1.5
    assert bank.closest(machine(0.7, 1, rng)[0]) == kinds[0][1]
    assert bank.closest(machine(0.0, 1, rng)[0]) in patterns


def test_anomalies_here_and_there_never_become_a_pattern():
    rng = np.random.default_rng(0)
    stream = machine(0.0, 2000, rng)
    odd = np.sort(rng.choice(np.arange(400, 2000), 200, replace=False))
    stream[odd] = machine(0.7, 200, rng)
    bank = Bank(SHARED)
    bank.learn(stream)
    bank.catch_up()
    assert bank.rejected >= 200
    assert not [event for event in bank.events if event.kind == "new"]
    assert bank.score(machine(0.7, 100, rng)).min() > 8.0


def test_a_pattern_of_two_kinds_is_parted_and_scores_sharpen():
    rng = np.random.default_rng(0)
    both = np.vstack([machine(0.2, 400, rng), machine(0.6, 400, rng)])
    linear = Projection(n_inputs=6, n_hidden=4, activation="identity")
    one, several = Bank(linear, max_patterns=1), Bank(linear, max_patterns=4)
    for bank in (one, several):
        bank.learn(np.random.default_rng(1).permutation(both))
        assert bank.score(machine(0.6, 100, rng)).mean() < 1.3
    assert several.events[0].kind == "split"
    between = machine(0.4, 50, rng)
    assert np.median(several.score(between)) > 1.5 * np.median(one.score(between))


def test_a_full_bank_joins_the_two_most_alike_for_what_is_new():
    rng = np.random.default_rng(0)
    bank = Bank(SHARED, max_patterns=2)
    for place in (0.0, 0.2, 0.9):
        bank.learn(machine(place, 300, rng))
    kinds = [event.kind for event in bank.events]
    assert kinds == ["new", "joined", "new"]
    for place in (0.0, 0.2, 0.9):
        assert bank.score(machine(place, 100, rng)).mean() < 2.0


def test_parting_leaves_room_for_new_modes():
    rng = np.random.default_rng(2)
    places = rng.uniform(-0.7, 0.7, (3, 8))
    bank = Bank(Projection(n_inputs=8, n_hidden=16, seed=2))
    for place in places:
        bank.learn(place + rng.normal(0.0, 0.05, (800, 8)))
    assert [event.kind for event in bank.events].count("new") == 2
    for place in places:
        assert bank.score(place + rng.normal(0.0, 0.05, (200, 8))).mean() < 1.3


@pytest.mark.slow
def test_a_fleet_with_very_many_patterns_takes_bounded_room():
    rng = np.random.default_rng(0)
    bank = Bank(SHARED, max_patterns=2)
    bank.learn(machine(0.0, 300, rng))
    notes = [
        Contribution(f"pump-{i}", Stats.of(SHARED, machine(i / 50, 60, rng)), 1) for i in range(40)
    ]
    bank.adopt(notes)
    assert len(bank) <= 2 + 4 * 2
    told = sum((bank[name].others for name in bank), start=Stats.empty(SHARED))
    assert told == sum((note.stats for note in notes), start=Stats.empty(SHARED))


def test_the_first_samples_that_lie_far_out_are_left_out_whatever_the_pattern_is_called():
    rng = np.random.default_rng(0)
    stream = machine(0.0, 320, rng)
    odd = rng.choice(320, 16, replace=False)
    stream[odd] = machine(0.7, 16, rng)
    bank = Bank(SHARED)
    bank.learn(stream[:64])
    bank.rename("normal", "idle")
    bank.learn(stream[64:])
    assert bank.rejected >= 16
    assert bank.score(machine(0.7, 100, rng)).min() > 8.0
    assert bank.score(machine(0.0, 100, rng)).mean() < 1.5


def test_slow_drift_is_told_and_a_pattern_left_alone_is_gone():
    rng = np.random.default_rng(0)
    bank = Bank(SHARED, max_patterns=1, reject_above=None)
    bank.learn(machine(0.0, 500, rng))
    assert bank.drift("normal") < 0.25
    for shift in np.linspace(0.0, 0.5, 50):
        bank.learn(machine(0.0, 16, rng) + shift)
    assert "moved" in [event.kind for event in bank.events]
    assert bank.drift("normal") > 0.5
    two = Bank(SHARED)
    two.learn(machine(0.0, 300, rng))
    two.learn(machine(0.7, 1600, rng))
    assert "gone" in [event.kind for event in two.events]


def test_a_full_bank_retires_what_is_gone_for_what_is_new():
    rng = np.random.default_rng(0)
    bank = Bank(SHARED, max_patterns=1)
    bank.learn(machine(0.0, 300, rng))
    bank.learn(machine(0.7, 1600, rng))
    assert [e.kind for e in bank.events if e.kind != "split"] == ["gone", "retired", "new"]
    assert bank.score(machine(0.7, 100, rng)).mean() < 1.5
    assert bank.score(machine(0.0, 100, rng)).min() > 8.0


def test_the_same_pattern_of_a_peer_is_added_and_another_is_kept_apart():
    rng = np.random.default_rng(0)
    mine, peer = Bank(SHARED, max_patterns=1), Bank(SHARED, max_patterns=1)
    mine.learn(machine(0.0, 2000, rng))
    peer.learn(machine(0.0, 2000, rng))
    mine.adopt(peer.share("B", revision=1))
    assert list(mine) == ["normal"]
    assert mine["normal"].others == peer["normal"].own
    other = Bank(SHARED, max_patterns=1)
    other.learn(machine(0.7, 2000, rng))
    mine.adopt(other.share("C", revision=1))
    assert list(mine) == ["normal", "C/normal"]
    assert mine.score(machine(0.7, 100, rng)).mean() < 1.5
    mine.learn(machine(0.7, 64, rng))  # this device now sees it itself
    assert [note.pattern for note in mine.share("A", revision=1)] == ["normal", "C/normal"]


def test_two_patterns_that_have_become_one_are_joined():
    rng = np.random.default_rng(0)
    bank = Bank(SHARED, max_patterns=1, reject_above=None)
    bank.learn(machine(0.0, 1024, rng))
    twin = Stats.of(SHARED, machine(0.0, 600, rng))
    bank.patterns.add("twin", twin, np.empty((0, 6)))
    total = seen(bank)
    more = machine(0.0, 1024, rng)
    bank.learn(more)
    assert ("joined", "twin") in [(event.kind, event.other) for event in bank.events]
    assert "twin" not in bank
    assert seen(bank) == total + Stats.of(SHARED, more)


def test_bad_input_changes_nothing_and_says_what_to_do():
    rng = np.random.default_rng(0)
    bank = Bank(SHARED)
    with pytest.raises(UnknownError, match="let it learn first"):
        bank.closest(np.zeros(6))
    assert bank.score(np.zeros(6)) == 1.0
    bank.learn(machine(0.0, 200, rng))
    before = bank.share("A", revision=1)
    bad = machine(0.0, 40, rng)
    bad[39, 5] = np.nan
    for call in (bank.learn, bank.score, bank.learn_and_score):
        with pytest.raises(SampleError, match="at input 5 of row 39"):
            call(bad)
    with pytest.raises(UnknownError, match="no pattern 'idle'; known:"):
        bank["idle"]
    other = Projection(n_inputs=6, n_hidden=12, seed=4)
    with pytest.raises(MismatchError, match="every device must build the same Projection"):
        bank.adopt([Contribution("B", Stats.empty(other), 1)])
    with pytest.raises(SettingError, match="expected 1 or more"):
        Bank(SHARED, max_patterns=0)
    with pytest.raises(SettingError, match="expected above 1, or None"):
        Bank(SHARED, reject_above=0.5)
    assert bank.share("A", revision=1) == before


def test_scoring_while_learning_scores_each_sample_before_it_is_learnt():
    rng = np.random.default_rng(0)
    X = machine(0.0, 500, rng)
    fast, slow = Bank(SHARED), Bank(SHARED)
    expected = []
    for x in X:
        expected.append(slow.score(x))
        slow.learn(x)
    assert fast.learn_and_score(X) == pytest.approx(expected, rel=1e-9)
    assert fast.share("A", revision=1) == slow.share("A", revision=1)
    assert slow.explain(X[0]).shape == (6,)
    assert repr(slow).startswith("Bank(")


@pytest.mark.slow
@given(streams(), st.sampled_from((None, 4.0)), st.sampled_from((1.0, 0.99)))
@examples(25)
def test_a_bank_goes_on_after_saving_as_if_nothing_had_been(case, reject_above, forgetting):
    projection, X = case
    bank = Bank(projection, reject_above=reject_above, forgetting=forgetting)
    bank.learn(X)
    bank.adopt([Contribution("B", Stats.of(projection, X[::2]), 1)])
    data = to_bytes(bank)
    again = from_bytes(data)
    assert to_bytes(again) == data
    more = np.random.default_rng(0).permutation(X)
    for each in (bank, again):
        each.learn(more)
    assert to_bytes(again) == to_bytes(bank)
    assert again.events == bank.events


def saved_bank():
    bank = Bank(SHARED)
    bank.learn(machine(0.0, 200, np.random.default_rng(0)))
    return to_bytes(bank)


SAVED = saved_bank()


@pytest.mark.slow
@given(st.integers(0, len(SAVED) - 1), st.integers(0, 7))
@examples(300)
def test_a_flipped_bit_in_a_bank_file_is_refused_or_is_another_bank(place, bit):
    data = bytearray(SAVED)
    data[place] ^= 1 << bit
    try:
        other = from_bytes(bytes(data))
    except FormatError:
        return
    assert to_bytes(other) == bytes(data)


def test_a_bank_file_that_says_too_little_or_is_cut_is_refused():
    for wrong in (SAVED[:-1], SAVED.replace(b"used_at", b"used_by"), SAVED + b"0"):
        with pytest.raises(FormatError):
            from_bytes(wrong)
