"""The trust rule: what enters others' sums at once, what waits, and what a decision covers."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgemerge import Contribution, Projection, Selection, Stats
from edgemerge.core.errors import SettingError
from edgemerge.core.similarity import alike, distance
from edgemerge.core.trust import (
    DISMISSED,
    FAR_ABOVE,
    MIN_OTHERS,
    Trust,
    TrustCheck,
    find_far_above,
    find_waiting,
)
from tests.cases import machine

SHARED = Projection(n_inputs=6, n_hidden=8, seed=7)
DEVICES = "abcdef"


@dataclass(frozen=True)
class Note:
    """A contribution of which only its key and its kind are known; equal kinds are alike."""

    key: tuple[str, int, str]
    kind: int


def same_kind(one, other):
    return one.kind == other.kind


keys = st.tuples(st.sampled_from(DEVICES), st.integers(0, 1), st.sampled_from(("normal", "idle")))
notes = st.builds(Note, keys, st.integers(0, 2))
fleets = st.lists(notes, max_size=12, unique_by=lambda note: note.key)
rules = st.sampled_from(("members", "quorum:2", "quorum:3", "person"))
some_keys = st.frozensets(keys, max_size=4)
names = st.frozensets(st.sampled_from(DEVICES), max_size=2)


@pytest.mark.parametrize("text", ["members", "person", "quorum:2", "quorum:10000"])
def test_a_rule_is_read_as_it_is_written(text):
    assert str(Trust.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["", "Members", "quorum", "quorum:", "quorum:1", "quorum:0", "quorum:-2", "quorum:2.5",
             "quorum:10001", "quorum:99999999999999999999", "quorum:٣", "person:2", "people"]
)  # fmt: skip
def test_anything_else_is_refused(text):
    with pytest.raises(SettingError, match="expected members, quorum:K with K from 2, or person"):
        Trust.parse(text)


def must_wait(rule, fleet, approved, dismissed, far_above, members):
    """What waits, by going through everybody for everyone."""
    covered = {n.key for n in fleet if n.key in approved and approved[n.key].kind == n.kind}
    supporting = [
        n for n in fleet
        if n.key[0] in members and n.key not in dismissed
        and (n.key[0] not in far_above or n.key in covered)
    ]  # fmt: skip
    waiting = set()
    for note in fleet:
        devices = {n.key[0] for n in supporting if n.kind == note.kind or n.key[0] == note.key[0]}
        enough = {"members": True, "person": False}.get(rule)
        if enough is None:
            enough = len(devices) >= int(rule.partition(":")[2])
        enough = enough and note.key[0] not in far_above
        if note.key in dismissed or not (note.key in covered or enough):
            waiting.add(note.key)
    return waiting


@given(
    rules,
    fleets.flatmap(lambda fleet: st.tuples(st.just(fleet), st.permutations(fleet))),
    st.dictionaries(keys, notes, max_size=4),
    some_keys,
    names,
    st.one_of(st.none(), st.frozensets(st.sampled_from(DEVICES), min_size=2)),
)
def test_what_waits_follows_from_current_sums_and_decisions_in_any_order(
    rule, orders, approved, dismissed, far_above, members
):
    fleet, shuffled = orders
    decided = {
        "approved": approved,
        "dismissed": dismissed,
        "far_above": dict.fromkeys(far_above, "far above"),
        "members": members,
    }
    found = find_waiting(Trust.parse(rule), fleet, same_kind, **decided)
    who = frozenset(DEVICES) if members is None else members
    assert set(found) == must_wait(rule, fleet, approved, dismissed, far_above, who)
    assert find_waiting(Trust.parse(rule), shuffled, same_kind, **decided) == found
    assert all(found.values())


def test_reasons_say_what_is_missing():
    fleet = [Note((name, 0, "normal"), kind) for name, kind in zip("abc", (0, 0, 1), strict=True)]
    found = find_waiting(Trust.parse("quorum:3"), fleet, same_kind)
    assert "2 of the 3 devices that it takes" in found["a", 0, "normal"]
    assert "1 of the 3 devices that it takes" in found["c", 0, "normal"]
    before = {("a", 0, "normal"): Note(("a", 0, "normal"), 2)}
    found = find_waiting(Trust.parse("person"), fleet, same_kind, approved=before)
    assert found["a", 0, "normal"].startswith("it is no longer like what was approved; every")
    assert found["b", 0, "normal"].startswith("every contribution needs a person's approval")
    found = find_waiting(Trust(), fleet, same_kind, dismissed=[("b", 0, "normal")])
    assert found == {("b", 0, "normal"): DISMISSED}


def test_a_large_fleet_of_two_kinds_takes_few_comparisons():
    asked = []

    def counting(one, other):
        asked.append(one.key)
        return same_kind(one, other)

    fleet = [Note((f"pump-{i}", 0, "normal"), i % 2) for i in range(200)]
    assert find_waiting(Trust.parse("quorum:3"), fleet, counting) == {}
    assert len(asked) <= 6 * len(fleet)


amounts = st.sampled_from((0.0, 1.0, 60.0, 3600.0, 86400.0, 4e5, 4e7, 1e12))


@given(st.dictionaries(st.sampled_from(DEVICES), st.tuples(amounts, amounts), max_size=6))
def test_a_device_stands_out_only_by_its_count_and_by_its_rate(fleet):
    samples = {name: count for name, (count, _) in fleet.items()}
    spans = {name: span for name, (_, span) in fleet.items()}
    rates = {name: samples[name] / max(spans[name], 60.0) for name in fleet}

    def exceeds(values, name):
        others = [value for other, value in values.items() if other != name and value > 0.0]
        return len(others) >= MIN_OTHERS and values[name] > FAR_ABOVE * np.median(others)

    expected = {name for name in fleet if exceeds(samples, name) and exceeds(rates, name)}
    found = find_far_above(samples, lambda: spans)
    assert set(found) == expected
    for name, why in found.items():
        assert f"{name} claims {samples[name]:.3g} samples" in why


def test_ages_are_not_asked_for_while_no_count_stands_out():
    def ages():
        raise AssertionError

    assert find_far_above(dict.fromkeys("abcd", 100.0), ages) == {}


def note(device, place, rows=200, seed=0, **more):
    stats = Stats.of(SHARED, machine(place, rows, np.random.default_rng(seed)))
    return Contribution(device, stats, 1, **more)


HERE, THERE = 0.1, 0.7


def test_a_check_lets_pass_what_a_quorum_supports_and_own_patterns_count():
    others = [note("b", HERE, seed=1), note("c", THERE, seed=2), note("d", THERE, seed=3)]
    check = TrustCheck(Trust.parse("quorum:2"), [note("me", HERE, seed=4)])
    assert [each.device for each in Selection(rule=check)(others)] == ["b", "c", "d"]
    check = TrustCheck(Trust.parse("quorum:2"), [])
    assert [each.device for each in Selection(rule=check)(others)] == ["c", "d"]
    assert list(check.waiting) == list(check.seen) == [("b", 0, "normal")]
    nearest = check.nearest(check.seen["b", 0, "normal"])
    assert nearest is not None
    key, ratio = nearest
    assert key[0] in ("c", "d")
    expected = min(distance(others[0].stats, each.stats) for each in others[1:])
    assert ratio == pytest.approx(expected, rel=1e-9)  # a sum in another order
    assert ratio > 2.5


def test_chosen_devices_never_wait_unless_they_were_dismissed():
    others = [note("b", HERE, seed=1), note("c", HERE, seed=2)]
    check = TrustCheck(Trust("person"), [], trusted=["b", "c"], dismissed=[("c", 0, "normal")])
    assert [each.device for each in check(others)] == ["b"]
    assert (check.waiting, check.seen) == ({("c", 0, "normal"): DISMISSED}, {})
    nearest = check.nearest(others[1])
    assert nearest is not None
    assert nearest[0] == ("b", 0, "normal")
    assert TrustCheck(Trust("person"), []).nearest(others[0]) is None


def test_small_steps_do_not_carry_an_approval_along():
    before, after = (machine(place, 200, np.random.default_rng(5)) for place in (HERE, THERE))
    mixed = (before + part * (after - before) for part in np.linspace(0.0, 1.0, 40))
    steps = [Stats.of(SHARED, rows) for rows in mixed]
    assert all(alike(a, b) for a, b in zip(steps[1:], steps, strict=False))
    first = Contribution("b", steps[0], 1)
    check = TrustCheck(Trust("person"), [], approved={first.key: first})
    passed = [bool(check([Contribution("b", stats, k)])) for k, stats in enumerate(steps, 1)]
    assert passed[0]
    assert not passed[-1]
    assert "no longer like what was approved" in check.waiting["b", 0, "normal"]
