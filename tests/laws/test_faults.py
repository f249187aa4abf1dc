"""Laws of faults: they change no total, and withdrawing equals never having sent."""

from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edgemerge import Contribution, Stats, decode, encode
from edgemerge.core.errors import FormatError
from edgemerge.core.faults import Faults
from edgemerge.core.ledger import Selection
from edgemerge.exchange.protocol import MemoryExchange
from tests.core.test_faults import sums
from tests.watched import SHARED

pytestmark = pytest.mark.slow

devices, names = st.sampled_from("abc"), st.sampled_from(("bearing", "leak", "normal"))
places, seeds = st.sampled_from((-0.6, 0.0, 0.6)), st.integers(0, 3)
shared = st.tuples(devices, names, places, seeds)
FEW = settings(max_examples=25)  # each compares several sums with each other


def pushed(acts, kind):
    """An exchange after some pushes, each of a higher revision."""
    exchange = MemoryExchange(SHARED)
    for revision, (device, name, place, seed) in enumerate(acts):
        stats = Stats.empty(SHARED) if place is None else sums(place, 40, seed)
        exchange.push(Contribution(device, stats, revision, name, kind=kind))
    return exchange


@FEW
@given(st.lists(shared, max_size=4), st.lists(shared, max_size=6))
def test_faults_change_no_total(normal, faults):
    both = pushed(normal, "normal")
    for revision, (device, name, place, seed) in enumerate(faults):
        both.push(Contribution(device, sums(place, 40, seed), revision, name, kind="fault"))
    alone = pushed(normal, "normal")
    for grouped in (False, True):
        assert both.pull(Selection(), grouped=grouped) == alone.pull(Selection(), grouped=grouped)
    assert both.pull_faults(Selection()) == pushed(faults, "fault").pull_faults(Selection())


TIE = [("a", "leak", 0.0, 3), ("b", "bearing", 0.0, 0)]  # which of them comes first matters


@FEW
@example(TIE, ("a", "bearing", -0.6, 0))
@given(st.lists(shared, max_size=4), shared)
def test_withdrawing_equals_never_having_sent(others, one):
    device, name, *_ = one
    others = [each for each in others if each[:2] != (device, name)]
    taken_back = pushed([*others, one, (device, name, None, 0)], "fault")
    assert taken_back.pull_faults(Selection()) == pushed(others, "fault").pull_faults(Selection())


@FEW
@example(TIE, Random(0))
@example(TIE, Random(1))
@given(st.lists(shared, max_size=4), st.randoms(use_true_random=False))
def test_the_order_of_arrival_does_not_matter(acts, random):
    newest = {}
    for revision, (device, name, place, seed) in enumerate(acts):
        stats = sums(place, 40, seed)
        newest[device, name] = Contribution(device, stats, revision, name, kind="fault")
    notes = list(newest.values())
    random.shuffle(notes)
    assert Faults.of(notes, SHARED) == Faults.of(newest.values(), SHARED)


@FEW
@given(st.lists(shared, max_size=4))
def test_bytes_hold_faults_to_the_last_bit(acts):
    notes = [
        Contribution(device, sums(place, 40, seed), i, f"{name}{i}", kind="fault", first=i / 7)
        for i, (device, name, place, seed) in enumerate(acts)
    ]
    for note in notes:
        found = decode(encode(note), Contribution)
        assert found == note
        assert (found.kind, found.first) == ("fault", note.first)
        assert encode(found) == encode(note)
    faults = Faults.of(notes, SHARED)
    assert decode(encode(faults), Faults) == faults
    assert encode(decode(encode(faults), Faults)) == encode(faults)


def test_an_unknown_kind_of_bytes_is_refused():
    data = encode(Contribution("a", sums(0.6), 1, "bearing", kind="fault"))
    assert b'"kind":"fault"' in data
    with pytest.raises(FormatError, match="found 'fauld' with 1 sums"):
        decode(data.replace(b'"kind":"fault"', b'"kind":"fauld"'))


def test_the_header_of_a_normal_contribution_has_no_word_more():
    data = encode(Contribution("a", sums(0.6), 1, "bearing"))
    assert b'"kind":"contribution"' in data
    assert b'"first"' not in data
