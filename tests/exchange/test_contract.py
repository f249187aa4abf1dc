"""What every way of exchanging promises: the same tests over all of them, over real connections."""

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from time import monotonic

import numpy as np
import pytest

from edgemerge import Contribution, Projection, Stats
from edgemerge.core.errors import RejectedError, StaleError, UnavailableError
from edgemerge.core.faults import FaultOrigin
from edgemerge.core.ledger import Merged, Origin, Selection
from edgemerge.exchange.peer import PeerExchange
from edgemerge.exchange.protocol import merge
from tests.cases import machine
from tests.exchange.worlds import SHARED, nobody
from tests.services.ports import free_port

pytestmark = pytest.mark.slow

OTHER = Projection(n_inputs=6, n_hidden=8, seed=8, low=-1.0, high=2.0)
PLACES = {"idle": 0.2, "normal": 0.5, "busy": 0.8}
LATEST_S = 5.0  # with a timeout of half a second, and a machine that others use too


def rows(place, number, seed=0):
    return machine(place, number, np.random.default_rng(seed))


def note(device="a", revision=1, *, pattern="normal", incarnation=0, number=40, seed=0):
    stats = Stats.of(SHARED, rows(PLACES.get(pattern, 0.5), number, seed))
    return Contribution(device, stats, revision, pattern, incarnation)


FLEET = [
    note("a", 3, number=30, seed=1),
    note("a", 1, pattern="idle", number=50, seed=2),
    note("a", 7, incarnation=1, number=60, seed=3),
    note("b", 2, number=70, seed=4),
    note("b", 2, pattern="busy", number=80, seed=5),
    note("c", 9, pattern="idle", number=90, seed=6),
]


def filled(world, notes=FLEET):
    for one in notes:
        assert world.exchange(one.device).push(one) is True
    return world


def as_map(told):
    """The parts by what is in them: the order of groups is nobody's promise."""
    found = {part.origins: part.stats for part in told.parts}
    assert len(found) == len(told.parts)
    return found


@pytest.mark.slow
def test_what_one_pushes_another_pulls_bit_for_bit(world):
    one = note("a", 5, pattern="idle", incarnation=2)
    assert world.exchange("a").push(one) is True
    told = world.exchange("b").pull(Selection(receiver="b"))
    assert isinstance(told, Merged)
    assert told.total == one.stats
    assert told.origins == (Origin("a", 2, "idle", 5),)
    assert told.projection == SHARED


def test_where_nothing_is_there_is_nothing_told(world):
    for grouped in (False, True):
        assert world.exchange("b").pull(Selection(receiver="b"), grouped=grouped) == Merged(SHARED)


def test_ones_own_is_left_out(world):
    filled(world, [note("a", seed=1), note("b", seed=2)])
    told = world.exchange("a").pull(Selection(receiver="a"))
    assert [origin.device for origin in told.origins] == ["b"]


def test_what_one_saw_in_an_earlier_life_comes_back(world):
    filled(world, [note("a", 4, seed=1), note("a", 1, incarnation=1, seed=2), note("b", seed=3)])
    told = world.exchange("a").pull(Selection(receiver="a", incarnation=1))
    assert told.origins == (Origin("a", 0, "normal", 4), Origin("b", 0, "normal", 1))
    assert told.total == note("a", seed=1).stats + note("b", seed=3).stats


def test_pushing_twice_is_once(world):
    assert world.exchange("a").push(note("a")) is True
    assert world.exchange("a").push(note("a")) is False
    assert world.exchange("b").pull(Selection(receiver="b")).total == note("a").stats


def test_a_higher_revision_replaces(world):
    filled(world, [note("a", 1, seed=1), note("a", 5, seed=2)])
    told = world.exchange("b").pull(Selection(receiver="b"))
    assert told.origins == (Origin("a", 0, "normal", 5),)
    assert told.total == note("a", seed=2).stats


@pytest.mark.parametrize(
    "late", [note("a", 3, seed=2), note("a", 4, seed=2)], ids=["late", "two stories"]
)
def test_what_is_not_newer_is_refused_with_the_newest_and_changes_nothing(world, late):
    filled(world, [note("a", 4, seed=1)])
    with pytest.raises(StaleError, match=r"incarnation|never share two") as caught:
        world.exchange("a").push(late)
    assert caught.value.newest == 4
    told = world.exchange("b").pull(Selection(receiver="b"))
    assert told.origins == (Origin("a", 0, "normal", 4),)
    assert told.total == note("a", seed=1).stats


@pytest.mark.slow
def test_a_pull_of_patterns_has_the_largest_if_there_are_many(monkeypatch):
    monkeypatch.setattr("edgemerge.exchange.protocol.MAX_PARTS", 2)
    notes = [note(p, pattern=p, number=n) for p, n in (("busy", 50), ("idle", 90), ("normal", 70))]
    told = merge(notes, SHARED, Selection(), grouped=True)
    assert [part.devices for part in told.parts] == [["idle"], ["normal"]]
    assert len(merge(notes, SHARED, Selection()).origins) == 3


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize(
    "wish",
    [
        Selection(receiver="c"),
        Selection(receiver="c", pattern="idle"),
        Selection(receiver="c", pattern="never heard of"),
        Selection(receiver="c", devices=("b",)),
        Selection(receiver="c", devices=("a", "c", "x")),
        Selection(receiver="c", devices=()),
        Selection(receiver="c", without=("a",)),
        Selection(receiver="c", without=("a", "b")),
        Selection(receiver="c", largest=2),
        Selection(receiver="c", largest=100, pattern="normal"),
        Selection(receiver="a", incarnation=1, devices=("a", "b"), largest=3),
        Selection(receiver="a", incarnation=9),
    ],
    ids=repr,
)
def test_every_wish_is_granted_as_if_all_contributions_were_at_hand(world, wish, grouped):
    filled(world)
    told = world.exchange(wish.receiver).pull(wish, grouped=grouped)
    expected = merge(FLEET, SHARED, wish, grouped=grouped)
    assert as_map(told) == as_map(expected)
    assert grouped or told == expected


def test_asking_again_tells_the_same_until_something_changes(world):
    filled(world, [note("a", 1, seed=1)])
    wish, asking = Selection(receiver="b"), world.exchange("b")
    first = asking.pull(wish)
    assert asking.pull(wish) == first
    filled(world, [note("a", 2, seed=2)])
    assert asking.pull(wish).total == note("a", seed=2).stats


def test_an_empty_contribution_withdraws(world):
    filled(world, [note("a", 1), note("c", 1, seed=3)])
    assert world.exchange("a").push(Contribution("a", Stats.empty(SHARED), 2)) is True
    told = world.exchange("b").pull(Selection(receiver="b"))
    assert [origin.device for origin in told.origins] == ["c"]


def test_sums_of_another_projection_are_refused(world):
    stranger = Contribution("a", Stats.of(OTHER, rows(0.5, 40)), 1)
    with pytest.raises(RejectedError, match="expected"):
        world.exchange("a").push(stranger)
    assert world.exchange("b").pull(Selection(receiver="b")) == Merged(SHARED)


def test_sums_that_no_samples_can_have_are_refused(world):
    stats = note().stats
    with pytest.raises(RejectedError, match="a, normal"):
        world.exchange("a").push(Contribution("a", replace(stats, U=-stats.U), 1))
    assert world.exchange("b").pull(Selection(receiver="b")) == Merged(SHARED)


STRANGE = [
    "A",
    "a b",
    "ü",
    "泵",
    "🔧",
    "100%",
    "%41",
    "a#",
    "+",
    "#",
    "$x",
    "a~b",
    "a,b",
    "x" * 200,
]
STRANGER = ["..", ".", "a/b", "/", "a\\b", "con", "nul.txt", "-", "*", "?"]


@pytest.mark.slow
def test_any_name_is_a_name_and_no_two_are_one(world):
    patterns = [*STRANGE, *([] if world.names_are_plain else STRANGER)]
    notes = [note("a", i, pattern=name, seed=i) for i, name in enumerate(patterns)]
    filled(world, notes)
    told = world.exchange("b").pull(Selection(receiver="b"))
    assert told == merge(notes, SHARED, Selection(receiver="b"))
    for one in (notes[0], notes[3], notes[-1]):
        assert (
            world.exchange("b").pull(Selection(receiver="b", pattern=one.pattern)).total
            == one.stats
        )


@pytest.mark.slow
def test_any_name_is_a_device(world):
    plain = ["Pump", "pump", "pump.3", "PUMP_3", "x" * 100]
    names = plain if world.names_are_plain else [*plain, *STRANGE[1:8], *STRANGER[:3]]
    notes = [note(name, i, seed=i) for i, name in enumerate(names)]
    filled(world, notes)
    last = names[-1]
    told = world.exchange(last).pull(Selection(receiver=last))
    assert told == merge(notes, SHARED, Selection(receiver=last))
    assert (
        world.exchange("b").pull(Selection(receiver="b", devices=(last,))).total == notes[-1].stats
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_order_and_repetition_make_no_difference(world, seed):
    rng = np.random.default_rng(seed)
    earlier = [replace(one, revision=one.revision - 1, stats=one.stats * 0.5) for one in FLEET]
    every = [*FLEET, *earlier]
    for i in rng.permutation(np.repeat(np.arange(len(every)), 2)):
        with suppress(StaleError):
            world.exchange(every[i].device).push(every[i])
    wish = Selection(receiver="x")
    for grouped in (False, True):
        told = world.exchange("x").pull(wish, grouped=grouped)
        assert as_map(told) == as_map(merge(FLEET, SHARED, wish, grouped=grouped))


def test_nothing_is_counted_twice_after_many_rounds(world):
    """The mistake of adding what was told to what is shared: it would grow without bound."""
    for revision in range(1, 4):
        for device in ("a", "b"):
            world.exchange(device).push(note(device, revision, number=40 + revision, seed=1))
            told = world.exchange(device).pull(Selection(receiver=device))
            counts = Counter(origin.device for origin in told.origins)
            assert max(counts.values(), default=0) <= 1
    assert told.total.count == 43


@pytest.mark.slow
@pytest.mark.parametrize("how", ["refused", "silent"])
def test_who_is_away_is_said_to_be_within_the_time(world, how):
    with nobody() as silent:
        there = world.away(silent if how == "silent" else free_port())
        if there is None:
            return  # memory is always here
        calls = [lambda: there.pull(Selection(receiver="b"))]
        if not isinstance(there, PeerExchange):
            calls.append(lambda: there.push(note("b")))  # a peer keeps its own
        for call in calls:
            start = monotonic()
            with pytest.raises(
                UnavailableError, match=r"cannot be reached|no answer in time|no peer"
            ):
                call()
            assert monotonic() - start < LATEST_S


def fault(device="a", revision=1, *, name="bearing", seed=0, first=5.0):
    """A fault that is called like a pattern, or not."""
    stats = note(number=40, seed=seed).stats
    return Contribution(device, stats, revision, name, kind="fault", first=first)


def names_of(world, device, **wish):
    """What a device knows of faults: names, and who gave them."""
    found = world.exchange(device).pull_faults(Selection(receiver=device, **wish))
    return [(fault.name, fault.devices) for fault in found]


def test_a_fault_is_pulled_as_a_fault_and_is_in_no_total(world):
    one = fault(name="normal")  # like the pattern of the same device
    filled(world, [note("a", seed=7), one])
    assert world.exchange("a").push(one) is False
    for grouped in (False, True):
        told = world.exchange("b").pull(Selection(receiver="b"), grouped=grouped)
        assert told.origins == (Origin("a", 0, "normal", 1),)
        assert told.total == note("a", seed=7).stats
    (found,) = world.exchange("b").pull_faults(Selection(receiver="b"))
    assert found.stats == one.stats
    assert found.earliest == FaultOrigin("a", 0, "normal", 1, 5.0)
    assert names_of(world, "a") == []


def test_alike_faults_are_one_without_ones_own_and_withdrawn_ones_are_gone(world):
    filled(world, [fault("a", seed=1), fault("b", name="Lager", seed=2), fault("c", seed=3)])
    assert names_of(world, "d") == [("bearing", ["a", "b", "c"])]
    assert names_of(world, "c") == [("bearing", ["a", "b"])]
    assert names_of(world, "d", without=("a", "c")) == [("Lager", ["b"])]
    assert names_of(world, "d", devices=("a",)) == [("bearing", ["a"])]
    nothing = Stats.empty(SHARED)
    for device in "ac":
        withdrawn = Contribution(device, nothing, 2, "bearing", kind="fault")
        assert world.exchange(device).push(withdrawn) is True
    assert names_of(world, "d") == [("Lager", ["b"])]
    with pytest.raises(StaleError) as caught:
        world.exchange("a").push(fault("a", seed=1))
    assert caught.value.newest == 2
    assert names_of(world, "d") == [("Lager", ["b"])]
