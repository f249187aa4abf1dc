"""Each device is told the sum of the others, without its own, to the last bit."""

import numpy as np

from edgemerge import Contribution, Ledger, Stats
from edgemerge.core.ledger import Selection
from edgemerge.exchange.protocol import merge
from edgemerge.flower.aggregate import AdmissionRules, NodeReply, accept_replies, sums_of_others
from edgemerge.flower.fields import with_format
from tests.flower.fleet import SHARED, answer, note, rows


def told(*heard):
    """Give what is told to each node."""
    ledger = Ledger(SHARED)
    return ledger, {
        a.node: t
        for a, t in sums_of_others(ledger, accept_replies(ledger, heard, AdmissionRules()).answers)
    }


def test_each_is_told_what_the_others_saw_and_who_they_are():
    ledger, found = told(*(answer(i, note(f"pump-{i}", i)) for i in range(4)))
    for i in range(4):
        others = [j for j in range(4) if j != i]
        assert found[i].total == Stats.of(SHARED, np.vstack([rows(j) for j in others]))
        assert [origin.device for origin in found[i].origins] == [f"pump-{j}" for j in others]
        assert found[i] == merge(ledger, SHARED, Selection(receiver=f"pump-{i}", incarnation=0))


def test_a_bank_is_told_patterns_apart():
    line, cross = ([[k / 50, sign * k / 50, 0.1] for k in range(-50, 50)] for sign in (1, -1))
    kinds = {"a": line, "b": line[::2], "c": cross}
    notes = [Contribution(name, Stats.of(SHARED, X), 1) for name, X in kinds.items()]
    ledger, found = told(*(answer(i, each, grouped=1) for i, each in enumerate(notes)))
    assert found[0] == merge(ledger, SHARED, Selection(receiver="a", incarnation=0), grouped=True)
    assert [part.devices for part in found[0].parts] == [["c"], ["b"]]


def test_a_pattern_that_is_gone_is_not_named():
    ledger = Ledger(SHARED)
    before = answer(1, note("a", 1, pattern="idle"), note("a", 2, pattern="fast"))
    accept_replies(ledger, [before], AdmissionRules())
    now = [answer(1, note("a", 3, pattern="idle", revision=2)), answer(2, note("b", 4))]
    found = dict(
        enumerate(
            t
            for _, t in sums_of_others(
                ledger, accept_replies(ledger, now, AdmissionRules()).answers
            )
        )
    )
    assert [(each.device, each.pattern) for each in found[1].origins] == [("a", "idle")]


def test_all_patterns_of_ones_own_are_left_out_and_an_earlier_life_is_told():
    mine = [note("a", i, pattern=f"p{i}", incarnation=2) for i in (1, 2)]
    _, found = told(answer(1, *mine), answer(2, note("a", 3)))
    assert found[1].total == Stats.of(SHARED, rows(3))
    assert found[2].total == Stats.of(SHARED, np.vstack([rows(1), rows(2)]))


def test_whoever_is_alone_is_told_nothing():
    _, found = told(answer(1, note("a", 1)), NodeReply(2, with_format(device="b", revision=1)))
    assert found[1].parts == ()
    assert found[2].total == Stats.of(SHARED, rows(1))
