"""What nodes answer is admitted and summed up, or refused with words; no engine is needed."""

from dataclasses import replace

import numpy as np
import pytest

from edgemerge import Ledger, Stats, encode
from edgemerge.flower.aggregate import (
    ACCEPTED,
    FAILED,
    HELD_BACK,
    AdmissionRules,
    NodeReply,
    accept_replies,
)
from edgemerge.flower.fields import with_format
from tests.flower.fleet import OTHER, SHARED, answer, note, rows


def taken(ledger, *heard, **rules):
    """Take what was heard, and give the standings by node."""
    return {s.node: s for s in accept_replies(ledger, heard, AdmissionRules(**rules)).standings}


def test_the_sum_is_what_one_process_would_have_seen_whatever_the_order():
    notes = [note(f"pump-{i}", i) for i in range(5)]
    ledger, backwards = Ledger(SHARED), Ledger(SHARED)
    accept_replies(ledger, [answer(i, each) for i, each in enumerate(notes)], AdmissionRules())
    accept_replies(
        backwards,
        [answer(9 - i, each) for i, each in reversed(list(enumerate(notes)))],
        AdmissionRules(),
    )
    alone = Stats.of(SHARED, np.vstack([rows(i) for i in range(5)]))
    assert ledger.total() == backwards.total() == alone


def test_a_repeat_is_once_and_a_newer_revision_replaces():
    ledger = Ledger(SHARED)
    assert taken(ledger, answer(7, note("a", 1)))[7].words == ""
    assert taken(ledger, answer(8, note("a", 1)))[8].words == "as before"
    assert ledger.total() == Stats.of(SHARED, rows(1))
    assert taken(ledger, answer(7, note("a", 2, revision=2)))[7].state == ACCEPTED
    assert ledger.total() == Stats.of(SHARED, rows(2))


def test_samples_are_said_of_each_node_and_standings_come_in_the_order_of_nodes():
    found = accept_replies(
        Ledger(SHARED), [answer(9, note("a", 1)), answer(3, note("b", 2))], AdmissionRules()
    )
    assert [(s.node, s.device, s.samples) for s in found.standings] == [(3, "b", 40), (9, "a", 40)]


def test_a_late_revision_is_refused_by_name_and_changes_nothing():
    ledger = Ledger(SHARED)
    taken(ledger, answer(7, note("a", 2, revision=5)))
    late = taken(ledger, answer(7, note("a", 1, revision=4)))[7]
    assert (late.state, late.device) == (FAILED, "a")
    assert late.words.startswith("not admitted: a, normal: revision 4 is late, 5 is known")
    assert ledger.total() == Stats.of(SHARED, rows(2))


def test_of_a_device_at_two_nodes_the_newest_counts_and_the_other_is_named():
    ledger = Ledger(SHARED)
    found = taken(ledger, answer(1, note("a", 1, revision=4)), answer(2, note("a", 2, revision=5)))
    assert (found[1].state, found[2].state) == (FAILED, ACCEPTED)
    assert "node 2 answers as a too: give each its own `device`" in found[1].words
    assert "revision 4 is late" in found[1].words
    assert ledger.total() == Stats.of(SHARED, rows(2))


def test_a_late_revision_after_the_answer_of_another_device_is_nobodys_twin():
    ledger = Ledger(SHARED)
    taken(ledger, answer(2, note("b", 2, revision=5)))
    found = taken(ledger, answer(1, note("a", 1)), answer(2, note("b", 1, revision=4)))
    assert found[2].words.startswith("not admitted: b, normal: revision 4 is late")


def test_two_stories_under_one_revision_are_refused():
    ledger = Ledger(SHARED)
    found = taken(ledger, answer(1, note("a", 1)), answer(2, note("a", 2)))
    assert "node 1 answers as a too" in found[2].words
    assert "came twice with different numbers" in found[2].words
    assert ledger.total() == Stats.of(SHARED, rows(1))


def test_incarnations_of_a_device_both_count():
    ledger = Ledger(SHARED)
    taken(ledger, answer(1, note("a", 1)), answer(2, note("a", 2, incarnation=1)))
    assert ledger.total() == Stats.of(SHARED, rows(1)) + Stats.of(SHARED, rows(2))


def test_a_wrong_projection_is_refused_with_both_named():
    ledger = Ledger(SHARED)
    found = taken(ledger, answer(1, note("a", 1, shared=OTHER)), answer(2, note("b", 2)))
    assert (found[1].state, found[1].device) == (FAILED, "a")
    assert "seed 2" in found[1].words
    assert "seed 1" in found[1].words
    assert "build the same Projection" in found[1].words
    assert ledger.total() == Stats.of(SHARED, rows(2))


def test_a_lie_is_refused_and_the_rest_goes_on():
    true = note("a", 1)
    lie = replace(true, stats=replace(true.stats, V=-true.stats.V))
    ledger = Ledger(SHARED)
    found = taken(ledger, answer(1, lie), answer(2, note("b", 2)))
    assert "not admitted: a, normal: found a U and V that no samples have" in found[1].words
    assert ledger.total() == Stats.of(SHARED, rows(2))


def test_an_answer_counts_as_a_whole_or_not_at_all():
    good, bad = note("a", 1, pattern="idle"), note("a", 2, pattern="fast")
    bad = replace(bad, stats=replace(bad.stats, U=-bad.stats.U))
    ledger = Ledger(SHARED)
    assert taken(ledger, answer(1, good, bad))[1].state == FAILED
    assert len(ledger) == 0


def test_a_pattern_that_is_no_longer_named_is_gone():
    ledger = Ledger(SHARED)
    taken(ledger, answer(1, note("a", 1, pattern="idle"), note("a", 2, pattern="fast")))
    taken(ledger, answer(1, note("a", 3, pattern="idle", revision=2)))
    assert ledger.total() == Stats.of(SHARED, rows(3))
    again = answer(1, note("a", 1, pattern="idle"), note("a", 2, pattern="fast"))
    assert taken(ledger, again)[1].state == FAILED
    assert ledger.total() == Stats.of(SHARED, rows(3))


def test_a_device_that_has_seen_nothing_says_so():
    nothing = NodeReply(1, with_format(device="a", revision=1))
    assert taken(Ledger(SHARED), nothing)[1].words == "has seen nothing yet"


def test_a_device_that_has_nothing_any_more_leaves_nothing():
    ledger = Ledger(SHARED)
    taken(ledger, answer(1, note("a", 1)))
    taken(ledger, NodeReply(1, with_format(device="a", revision=2)))
    assert ledger.total() == Stats.empty(SHARED)


def test_only_devices_on_the_list_may_contribute():
    found = taken(Ledger(SHARED), answer(1, note("a", 1)), answer(2, note("b", 2)), devices={"b"})
    assert "not on the list" in found[1].words
    assert found[2].state == ACCEPTED


def test_sums_that_fall_are_refused_if_asked():
    ledger = Ledger(SHARED)
    taken(ledger, answer(1, note("a", 1)))
    fallen = answer(1, note("a", 2, revision=2))
    assert "since its last revision" in taken(ledger, fallen, no_forgetting=True)[1].words
    assert taken(ledger, fallen)[1].state == ACCEPTED


def test_who_is_held_back_or_failed_is_said_in_its_own_words():
    found = taken(
        Ledger(SHARED),
        NodeReply(1, with_format(device="a", held="3 of 8 samples")),
        NodeReply(2, with_format(device="b", problem="No such file: b.safetensors")),
        NodeReply(3, problem="no answer within 5 s"),
    )
    assert (found[1].state, found[1].device, found[1].words) == (HELD_BACK, "a", "3 of 8 samples")
    assert (found[2].state, found[2].device) == (FAILED, "b")
    assert found[2].words == "No such file: b.safetensors"
    assert (found[3].state, found[3].device) == (FAILED, "")
    assert found[3].words == "no answer within 5 s"


def test_of_a_device_that_gives_and_holds_back_both_are_said():
    ledger = Ledger(SHARED)
    held = answer(1, note("a", 1), held="normal: 3 of 8 samples")
    assert taken(ledger, held)[1].words == "held back: normal: 3 of 8 samples"
    found = taken(ledger, held)[1]
    assert (found.state, found.samples) == (ACCEPTED, 40)
    assert found.words == "as before; held back: normal: 3 of 8 samples"


@pytest.mark.parametrize("field", ["device", "problem", "held"])
def test_what_a_node_says_stays_in_its_own_line(field):
    lie = "x\n7  pump-7  in the sum\r\x1b[2K\u2028" + "y" * 1000
    said = {"device": "a", "problem": "p", field: lie}
    if field == "held":
        del said["problem"]
    [found] = accept_replies(
        Ledger(SHARED), [NodeReply(1, with_format(**said))], AdmissionRules()
    ).standings
    words = f"{found.device} {found.words}"
    assert words.isprintable()
    assert "x 7 pump-7 in the sum ?[2K" in words
    assert words.rstrip().endswith("y" if field != "device" else "p")
    assert len(words) < 900


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"format": 2}, "found format 2, expected 1: run the same version"),
        ({"format": "x" * 10_000}, "found format 'xxx"),
        ({"device": 3}, "found device of the type int, expected str"),
        ({"device": ""}, "found device '', expected 1 to 200"),
        ({"device": "b"}, "in the answer of b"),
        ({"revision": 3}, "in the answer of a, revision 3"),
        ({"incarnation": 3}, "in the answer of a, revision 1"),
        ({"revision": True}, "found revision of the type bool, expected int"),
        ({"revision": -1}, "found revision -1, expected 0"),
        ({"grouped": "yes"}, "found grouped of the type str, expected int"),
        ({"contributions": b"x"}, "found contributions of the type bytes, expected list"),
        ({"contributions": ["x"]}, "expected one of bytes"),
        ({"contributions": [b"\x00" * 99]}, "not understood"),
        ({"contributions": [encode(SHARED)]}, "found Projection in the form exact, expected a"),
        ({"contributions": [encode(note("a", 1), "float32")]}, "in the form float32, expected"),
        ({"contributions": [encode(note("a", 1))] * 2}, "found a pattern twice"),
        ({"problem": 5}, "found problem of the type int"),
    ],
)
def test_garbage_is_refused_with_words_and_the_rest_goes_on(changed, words):
    ledger = Ledger(SHARED)
    found = taken(ledger, answer(1, note("a", 1), **changed), answer(2, note("z", 2)))
    assert found[1].state == FAILED
    assert words in found[1].words
    assert len(found[1].words) < 500
    assert ledger.total() == Stats.of(SHARED, rows(2))


def test_a_contribution_above_the_limit_is_refused():
    found = taken(Ledger(SHARED), answer(1, note("a", 1)), limit=100)
    assert "100" in found[1].words
