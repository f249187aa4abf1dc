"""Known faults: merged by likeness, and the name that a pattern gets, or does not get."""

from functools import cache

import numpy as np
import pytest

from edgemerge import Bank, Contribution, Detector, Ledger, Stats
from edgemerge.core import faults as rules
from edgemerge.core.errors import MismatchError, RejectedError, SettingError
from edgemerge.core.faults import Faults, Likeness
from edgemerge.core.ledger import MergedPart, Selection
from edgemerge.core.projection import Projection
from edgemerge.core.similarity import Profile, centroid_shift
from edgemerge.wire.admission import admit
from tests.watched import SHARED, Watched

PLACES = {"bearing": 0.6, "leak": -0.6}


@cache
def sums(place, count=200, seed=0):
    rng = np.random.default_rng(seed)
    return Stats.of(SHARED, place + rng.normal(0.0, 0.1, (count, SHARED.n_inputs)))


def fault(device, name="bearing", *, place=None, seed=0, first=None, count=200):
    stats = sums(PLACES[name] if place is None else place, count, seed)
    return Contribution(device, stats, 1, name, kind="fault", first=first)


KNOWN = Faults.of([fault("pump-3", first=50.0), fault("pump-1", "leak")], SHARED)


def test_a_pattern_gets_the_name_of_the_fault_that_explains_it():
    found = KNOWN.compare(sums(0.6, seed=1))
    assert (found.name, found.known) == ("bearing", 2)
    assert [each.name for each in found.ranked] == ["bearing", "leak"]
    assert found.ranked[0].device == "pump-3"
    assert found.ranked[0].first == 50.0
    assert found.ranked[0].ratio < rules.MAX_RATIO < found.ranked[1].ratio
    assert found.words.startswith("most like bearing, first seen on pump-3, ratio ")


def test_what_no_fault_explains_gets_no_name():
    found = KNOWN.compare(sums(0.0, seed=1))
    assert found.name is None
    assert found.words.startswith("like none of the 2 known faults; nearest: ")
    assert Faults(SHARED).compare(sums(0.6)).words == "like none of the 0 known faults"


@pytest.mark.parametrize(
    ("ratios", "name"),
    [
        ([], None),
        ([("a", rules.MAX_RATIO)], "a"),
        ([("a", rules.MAX_RATIO + 0.001)], None),
        ([("a", 1.0), ("b", 1.11)], "a"),
        ([("a", 1.0), ("b", 1.09)], None),
        ([("a", 1.0), ("a", 1.01), ("b", 1.2)], "a"),
    ],
)
def test_the_nearest_must_be_near_and_clearly_nearer_than_another_name(ratios, name):
    assert rules._name([Likeness(n, "pump-1", None, r) for n, r in ratios]) == name


def test_patterns_of_one_fault_that_differ_are_known_by_its_one_name():
    one, other = fault("pump-3", first=50.0), fault("pump-3", "bearing (2)", place=0.35, first=60.0)
    known = Faults.of([one, other, fault("pump-1", "leak")], SHARED)
    assert [each.names for each in known if each.devices == ["pump-3"]] == [("bearing",)] * 2
    assert [each.name for each in known.origins] == ["leak", "bearing", "bearing (2)"]
    found = known.compare(sums(0.35, seed=1))
    assert [each.name for each in found.ranked] == ["bearing", "bearing", "leak"]
    assert found.name == "bearing"


def test_patterns_of_one_fault_that_are_alike_are_added_up():
    known = Faults.of([fault("pump-3"), fault("pump-3", "bearing (2)", place=0.6, seed=1)], SHARED)
    [one] = known
    assert (one.names, one.stats) == (("bearing",), sums(0.6) + sums(0.6, seed=1))


NEAR = rules.MAX_RATIO, rules.MAX_SHIFT
SAME = rules.SAME_RATIO, rules.SAME_MAX_SHIFT


@pytest.mark.parametrize(
    ("ratio", "shift", "near"),
    [
        (*NEAR, True),
        (NEAR[0] + 0.01, 0.0, False),
        (NEAR[0], NEAR[1] + 0.01, False),
        (*SAME, True),
        (SAME[0], SAME[1] + 0.01, False),
        (SAME[0] + 0.01, SAME[1], False),
    ],
)
def test_a_larger_shift_is_accepted_only_where_the_ratio_says_the_same(ratio, shift, near):
    found = Likeness("a", "pump-1", None, ratio, shift)
    assert found.is_near is near
    assert rules._name([found]) == ("a" if near else None)
    moved = not near and ratio <= rules.MAX_RATIO
    assert found.words == f"a of pump-1, {ratio:.3g}" + moved * f" with means {shift:.2g} apart"


WIDE = Projection(n_inputs=40, n_hidden=8, seed=7)


def spread(moved=0.0, count=400, seed=0):
    """Samples with a little in common, of which one input is elsewhere."""
    rng = np.random.default_rng(seed)
    X = 0.1 * rng.normal(size=(count, 1)) + 0.2 * rng.normal(size=(count, 40))
    X[:, :2] += moved
    return Stats.of(WIDE, X)


def test_a_pattern_whose_mean_is_elsewhere_gets_no_name_even_if_the_ratio_is_small():
    known = Faults.of([Contribution("pump-3", spread(), 1, "bearing", kind="fault")], WIDE)
    same, other = known.compare(spread(seed=1)), known.compare(spread(0.3, seed=1))
    assert same.name == "bearing"
    assert other.ranked[0].ratio < rules.MAX_RATIO
    assert other.name is None
    assert "nearest: bearing of pump-3, " in other.words
    assert other.words.endswith("apart")


def test_the_shift_counts_less_where_the_readout_explains_more():
    known = Faults.of([Contribution("pump-3", spread(), 1, "bearing", kind="fault")], WIDE)
    [fault] = known
    [found] = known.compare(spread(0.3, seed=1)).ranked
    share = np.sqrt(min(fault.profile.unexplained, 1.0))
    expected = share * centroid_shift(fault.profile, spread(0.3, seed=1))
    assert 0.0 < share < 1.0
    assert found.shift == pytest.approx(expected, rel=1e-5)


def test_what_nothing_explains_is_not_compared(monkeypatch):
    known = Faults.of([Contribution("pump-3", spread(), 1, "bearing", kind="fault")], WIDE)
    unexplained = Profile.of(spread(seed=1)).unexplained
    monkeypatch.setattr(rules, "MAX_UNEXPLAINED", unexplained)
    assert known.compare(spread(seed=1)).name == "bearing"
    monkeypatch.setattr(rules, "MAX_UNEXPLAINED", 0.999 * unexplained)
    assert known.compare(spread(seed=1)).name is None


def test_a_name_that_was_saved_before_there_were_shifts_is_read():
    plain = KNOWN.compare(sums(0.6, seed=1)).plain()
    assert rules.FaultName.from_plain(plain).plain() == plain
    for each in plain["ranked"]:
        del each["shift"]
    assert [each.shift for each in rules.FaultName.from_plain(plain).ranked] == [0.0, 0.0]


def test_alike_faults_are_one_with_the_most_frequent_name_first():
    notes = [
        fault("d", seed=4, first=10.0),
        fault("a", seed=1, first=30.0),
        Contribution("b", sums(0.6, seed=2), 1, "Lager", kind="fault", first=5.0),
        fault("c", "leak", seed=3),
    ]
    one, other = Faults.of(notes, SHARED)
    assert one.names == ("bearing", "Lager")
    assert (one.earliest.device, one.earliest.first) == ("b", 5.0)
    assert one.devices == ["a", "b", "d"]
    assert one.stats == notes[0].stats + notes[1].stats + notes[2].stats
    assert (other.name, other.devices) == ("leak", ["c"])


def test_one_name_for_two_unlike_faults_stays_two():
    found = Faults.of([fault("a", place=0.6), fault("b", place=-0.6, seed=1)], SHARED)
    assert [each.devices for each in found] == [["a"], ["b"]]


def test_a_name_of_few_devices_is_not_told_where_that_is_asked_for():
    groups = Faults.groups_of([fault("a"), fault("b", seed=1), fault("c", "leak")])
    told = Faults.of_groups(groups, SHARED, Selection(receiver="x"), min_devices=2)
    assert [each.name for each in told] == ["bearing"]
    assert len(Faults.of_groups(groups, SHARED, Selection(receiver="a"), min_devices=2)) == 0


def test_one_device_with_many_faults_pushes_out_its_own(monkeypatch):
    monkeypatch.setattr(rules, "MAX_GROUPED", 3)
    many = [fault("noisy", place=0.1 * k, name="leak", count=900 + k) for k in range(3)]
    many = [
        Contribution("noisy", each.stats, 1, f"n{k}", kind="fault") for k, each in enumerate(many)
    ]
    gone = Contribution("0", Stats.empty(SHARED), 2, "gone", kind="fault")  # takes no place
    found = Faults.of([gone, *many, fault("a"), fault("b", "leak", seed=1)], SHARED)
    assert {origin.device for origin in found.origins} == {"noisy", "a", "b"}
    monkeypatch.setattr(rules, "MAX_FAULTS", 1)
    assert len(Faults.of([fault("a"), fault("b", "leak")], SHARED)) == 1


def test_a_fault_is_in_no_sum_of_what_is_normal():
    ledger, one = Ledger(SHARED), fault("a")
    for take in (
        ledger.put,
        lambda each: MergedPart.of([each], SHARED),
        Bank(SHARED).adopt,
        lambda each: admit(each, projection=SHARED),
    ):
        with pytest.raises(RejectedError, match="a, bearing: found fault, expected normal"):
            take(one)
    with pytest.raises(RejectedError, match="found normal, expected fault"):
        Faults.of([Contribution("a", sums(0.6), 1)], SHARED)
    with pytest.raises(RejectedError, match="found normal, expected fault"):
        Ledger(SHARED, kind="fault").put(Contribution("a", sums(0.6), 1))


def test_only_faults_have_a_date_and_kinds_are_known():
    with pytest.raises(SettingError, match=r"found first=1\.0"):
        Contribution("a", sums(0.6), 1, first=1.0)
    with pytest.raises(SettingError, match="found first=nan"):
        Contribution("a", sums(0.6), 1, kind="fault", first=float("nan"))
    with pytest.raises(SettingError, match="found kind 'odd'"):
        Contribution("a", sums(0.6), 1, kind="odd")


def test_an_episode_is_named_once_its_pattern_is_large_enough():
    watched = Watched().commissioned()
    watched.monitor.know_faults(KNOWN)
    results = watched.fault(40)
    named = [result.fault for result in results]
    first = named.index("bearing")
    assert 14 <= first <= 24  # 2N samples, and blocks of eight
    assert set(named[:first]) == {None}
    assert set(named[first:]) == {"bearing"}
    status = watched.monitor.status()
    assert status["known_faults"] == 2
    assert status["episodes"][0]["like"]["name"] == "bearing"
    assert status["patterns"][0]["like"]["ranked"][0]["device"] == "pump-3"


@pytest.mark.slow
def test_naming_takes_a_few_comparisons_however_long_a_fault_lasts(monkeypatch):
    watched = Watched().commissioned()
    watched.monitor.know_faults(KNOWN)
    compare, counts = Faults.compare, []

    def counted(self, data):
        counts.append(data.count)
        return compare(self, data)

    monkeypatch.setattr(Faults, "compare", counted)
    watched.fault(1000)
    assert 5 <= len(counts) <= 8  # at 16, 32, 64, 128, 256, 512 samples or a block later


def test_new_faults_name_what_is_open_and_withdrawn_ones_take_their_name_along():
    watched = Watched().commissioned()
    watched.fault(60)
    assert watched.fault(1)[0].fault is None
    watched.monitor.know_faults(KNOWN)
    assert watched.fault(1)[0].fault == "bearing"
    assert watched.monitor.fault_words(watched.monitor.episodes[0]).startswith("most like bearing")
    watched.monitor.know_faults(Faults.of([fault("pump-1", "leak")], SHARED))
    assert watched.fault(1)[0].fault is None
    assert watched.monitor.status()["episodes"][0]["like"]["known"] == 1
    watched.monitor.know_faults(Faults(SHARED))
    assert watched.monitor.status()["episodes"][0]["like"] is None


@pytest.mark.parametrize("decision", ["approve", "dismiss"])
def test_an_open_episode_loses_its_name_when_a_person_decides_that_it_is_no_fault(decision):
    watched = Watched().commissioned()
    watched.monitor.know_faults(KNOWN)
    watched.fault(60)
    [episode] = watched.monitor.episodes
    assert (episode.ended, watched.monitor.fault_of(episode)) == (None, "bearing")
    watched.monitor.review("odd-1", decision)
    assert watched.monitor.fault_of(episode) is None
    assert watched.monitor.status()["episodes"][0]["like"] is None
    watched.monitor.review("odd-1", "undo")
    assert watched.monitor.fault_of(episode) == "bearing"
    watched.monitor.review("odd-1", "fault", name="Lager")
    assert watched.monitor.fault_of(episode) == "bearing"


def test_names_that_were_found_elsewhere_are_taken_over():
    watched = Watched().commissioned()
    watched.fault(60)
    number = watched.monitor.odd_patterns["odd-1"].number
    watched.monitor.know_faults(KNOWN, {number: KNOWN.compare(sums(-0.6, seed=3))})
    assert watched.fault(1)[0].fault == "leak"
    watched.monitor.know_faults(KNOWN, {})
    assert watched.fault(1)[0].fault is None
    assert watched.fault(16)[-1].fault == "bearing"  # with the next block


def test_faults_of_another_projection_are_refused():
    other = Projection(n_inputs=4, n_hidden=8, seed=8)
    with pytest.raises(MismatchError):
        Watched().monitor.know_faults(Faults(other))
    with pytest.raises(MismatchError):
        KNOWN.compare(Stats.empty(other))


def test_a_fault_keeps_its_number_when_it_is_renamed():
    watched = Watched(Detector).commissioned()
    watched.fault(40)
    watched.monitor.review("odd-1", "fault", name="bearing")
    assert watched.monitor.odd_patterns["bearing"].number == 1
