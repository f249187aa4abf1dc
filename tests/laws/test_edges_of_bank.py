"""Edges of the bank: waiting samples, peers, parting and files."""

from dataclasses import replace

import numpy as np
import pytest

from edgemerge import Bank, Contribution, Projection, Stats
from edgemerge.core.detector import AdoptionPlan
from edgemerge.core.errors import CapacityError, SettingError
from edgemerge.core.stats import exact_limit
from edgemerge.wire.state import from_bytes, to_bytes
from tests.cases import machine

SHARED = Projection(n_inputs=6, n_hidden=12, seed=3)


def test_scores_while_learning_do_not_depend_on_how_samples_come():
    X = np.random.default_rng(0).normal(0.0, 0.2, (200, 6))
    whole, pieces = Bank(SHARED), Bank(SHARED)
    for bank in (whole, pieces):
        bank.learn(X[:37])
    found = [pieces.learn_and_score(x) for x in X[37:]]
    assert whole.learn_and_score(X[37:]) == pytest.approx(found, rel=1e-9)


def test_samples_that_wait_are_learnt_before_a_peer_is_heard():
    bank = Bank(SHARED)
    bank.learn(np.random.default_rng(0).normal(0.0, 0.2, (10, 6)))
    bank.adopt([])
    assert bank["normal"].own.count == 10


def test_a_peer_that_knows_only_part_of_a_pattern_is_kept_apart():
    rng = np.random.default_rng(0)
    shared = Projection(n_inputs=8, n_hidden=5, activation="identity")
    causes = rng.normal(0.0, 0.3, (3, 8))
    wide = rng.normal(size=(2000, 3)) @ causes + rng.normal(0.0, 0.01, (2000, 8))
    narrow = rng.normal(size=(2000, 3)) * [1.0, 1.0, 0.01] @ causes
    narrow += rng.normal(0.0, 0.01, (2000, 8))
    bank = Bank(shared, max_patterns=1, reject_above=None)
    bank.learn(wide)
    bank.adopt([Contribution("B", Stats.of(shared, narrow), 1)])
    assert list(bank) == ["normal", "B/normal"]


def test_a_pattern_that_came_back_can_be_gone_again():
    rng = np.random.default_rng(0)
    bank = Bank(SHARED, max_patterns=2)
    for place, rows in ((0.0, 320), (0.7, 1600), (0.0, 64), (0.7, 1600)):
        bank.learn(machine(place, rows, rng))
    assert [(e.kind, e.pattern) for e in bank.events].count(("gone", "normal")) == 2


def test_parting_takes_half_of_the_room_at_most():
    rng = np.random.default_rng(0)
    X = rng.permutation(
        np.vstack([machine(place, 400, rng) for place in (0.1, 0.3, 0.5, 0.7, 0.9)])
    )
    bank = Bank(
        Projection(n_inputs=6, n_hidden=4, activation="identity"), max_patterns=4, reject_above=None
    )
    bank.learn(X)
    assert [event.kind for event in bank.events].count("split") == 1


def test_leaving_out_the_first_odd_samples_keeps_what_was_told():
    X = machine(0.0, 200, np.random.default_rng(0))
    bank = Bank(SHARED, max_patterns=1)
    bank.learn(X[:64])
    bank.adopt([Contribution("B", Stats.of(SHARED, X[:64]), 1)])
    assert list(bank) == ["normal"]
    bank.learn(X[64:])
    assert bank.patterns.sifted
    assert bank["normal"].others == Stats.of(SHARED, X[:64])


def test_a_bank_file_keeps_all_that_upkeep_goes_by():

    bank = Bank(SHARED)
    bank.learn(machine(0.0, 200, np.random.default_rng(0)))
    again = from_bytes(to_bytes(bank))
    for name, each in bank.patterns.instances.items():
        same = again.patterns.instances[name]
        assert each.considered == same.considered > 0
        assert (each.used_at, each.moved, each.gone) == (same.used_at, same.moved, same.gone)


def test_two_kinds_of_peers_can_both_belong_to_one_pattern(monkeypatch):
    from edgemerge.core import patterns
    from edgemerge.core.similarity import Group

    monkeypatch.setattr(
        patterns, "group_to_limit", lambda notes, *_, **__: [Group((n,), n.stats) for n in notes]
    )
    X = machine(0.0, 2000, np.random.default_rng(0))
    bank = Bank(SHARED, max_patterns=1)
    bank.learn(X)
    notes = [Contribution(name, Stats.of(SHARED, X[i::2]), 1) for i, name in enumerate("BC")]
    bank.adopt(notes)
    assert list(bank) == ["normal"]
    assert bank["normal"].others == notes[0].stats + notes[1].stats


def test_a_plan_that_does_not_fit_any_more_changes_nothing():
    rng = np.random.default_rng(0)
    bank = Bank(SHARED)
    for name, place in (("idle", 0.0), ("fast", 0.7)):
        bank.patterns.add(name, Stats.of(SHARED, machine(place, 300, rng)), np.empty((0, 6)))
    peer = Stats.of(SHARED, machine(0.0, 100, rng))
    before = to_bytes(bank)
    large = replace(peer, count=exact_limit(SHARED.quantum) - 200)
    plan = AdoptionPlan({"idle": peer, "fast": large})
    with pytest.raises(CapacityError):
        bank.apply(plan)
    assert to_bytes(bank) == before


def test_a_copy_of_own_patterns_goes_on_apart():
    rng = np.random.default_rng(0)
    bank = Bank(SHARED)
    bank.learn(machine(0.0, 300, rng))
    bank.adopt([Contribution("B", Stats.of(SHARED, machine(0.7, 300, rng)), 1)])
    copy, before = bank.copy_own(), to_bytes(bank)
    assert list(copy) == [name for name in bank if bank[name].own_count] != list(bank)
    for name in copy:
        assert (copy[name].own, copy[name].others) == (bank[name].own, bank[name].others)
        copy[name].learn(machine(0.0, 50, rng))
        copy[name].adopt(Stats.empty(SHARED))
    assert to_bytes(bank) == before


def test_a_pattern_that_is_parted_keeps_what_was_told():
    rng = np.random.default_rng(0)
    both = rng.permutation(np.vstack([machine(0.2, 400, rng), machine(0.6, 400, rng)]))
    linear = Projection(n_inputs=6, n_hidden=4, activation="identity")
    bank = Bank(linear, max_patterns=4, reject_above=None)
    bank.patterns.add("normal", Stats.empty(linear), both[:0])
    bank["normal"].adopt(Stats.of(linear, both[:100]))
    bank.learn(both)
    assert bank.events[0].kind == "split"
    told = sum((bank[name].others for name in bank), start=Stats.empty(linear))
    assert told == Stats.of(linear, both[:100])


def test_what_peers_told_is_enough_to_reject_samples():
    rng = np.random.default_rng(0)
    bank = Bank(SHARED)
    bank.adopt([Contribution("B", Stats.of(SHARED, machine(0.0, 300, rng)), 1)])
    bank.learn(machine(0.7, 32, rng))
    assert bank.rejected == 32


def test_patterns_that_became_one_are_joined_whenever_something_was_shared():
    rng = np.random.default_rng(0)
    bank = Bank(SHARED, max_patterns=1, reject_above=None)
    bank.learn(machine(0.0, 1029, rng))
    bank.share("A", revision=1)
    bank.patterns.add("twin", Stats.of(SHARED, machine(0.0, 600, rng)), np.empty((0, 6)))
    bank.learn(machine(0.0, 2100, rng))
    assert "joined" in [event.kind for event in bank.events]


def test_a_peer_with_a_long_name_does_not_keep_us_from_sharing():
    rng = np.random.default_rng(0)
    bank = Bank(SHARED)
    bank.adopt([Contribution("x" * 200, Stats.of(SHARED, machine(0.0, 300, rng)), 1)])
    bank.learn(machine(0.0, 64, rng))
    assert len(bank.share("A", revision=1)) == 1
    for name in ("", "a\nb", "x" * 201):
        with pytest.raises(SettingError, match="printable characters"):
            bank.rename(next(iter(bank)), name)


def test_a_full_bank_refuses_all_rows_and_loses_none_that_wait():
    shared = Projection(n_inputs=2, n_hidden=3, grid_bits=16)
    bank = Bank(shared, reject_above=None)
    bank.learn(np.zeros((40, 2)))
    near = Stats.of(shared, np.ones((1, 2))) * (2.0**21 - 100.0)
    bank.patterns.add("full", near, np.empty((0, 2)))
    with pytest.raises(CapacityError, match="share and start again"):
        bank.learn(np.ones((200, 2)))
    assert len(bank.waiting) == 8
    assert bank.patterns.clock == 32


def test_settings_from_other_libraries_can_be_saved():
    bank = Bank(SHARED, max_patterns=np.int64(4), reject_above=np.float32(4.0))
    assert from_bytes(to_bytes(bank)).max_patterns == 4


def test_hidden_values_larger_than_the_samples_are_reckoned_with():
    wide = Projection(n_inputs=2, n_hidden=3, activation="identity", grid_bits=16, width=64.0)
    one = Stats.of(wide, np.ones((1, 2)))
    bank = Bank(wide, reject_above=None)
    bank.learn(np.zeros((40, 2)))
    bank.patterns.add("full", one * ((2.0**21 - 1000.0) / one.largest), np.empty((0, 2)))
    with pytest.raises(CapacityError, match="share and start again"):
        bank.learn(np.ones((200, 2)))
    assert len(bank.waiting) == 8
    assert bank.patterns.clock == 32


@pytest.mark.parametrize("activation", ["cosine", "tanh"])
def test_a_small_bank_of_cosine_scores_without_its_outliers(activation):
    rng = np.random.default_rng(0)
    odd = rng.normal(0.9, 0.01, (3, 6))
    rows = rng.permutation(np.vstack([rng.normal(0.0, 0.1, (40, 6)), odd]))
    shared = Projection(n_inputs=6, n_hidden=64, activation=activation)
    bank, everything = Bank(shared), Bank(shared, reject_above=None)
    for each in (bank, everything):
        each.learn(rows)
        assert each.score(odd).shape == (3,)
        each.catch_up()
        assert sum(c.stats.count for c in each.share("a", revision=1)) == 43
    higher = bank.score(odd).min() > 2.0 * everything.score(odd).max()
    assert higher == (activation == "cosine")
    usual = bank.score(rng.normal(0.0, 0.1, (40, 6)))
    assert np.median(usual) < 0.5 * bank.score(odd).min() or activation == "tanh"
    again = from_bytes(to_bytes(bank))
    assert np.array_equal(again.score(odd), bank.score(odd))
