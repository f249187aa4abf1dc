"""The mistakes that newcomers make, and the words that they get."""

import numpy as np
import pytest

from edgemerge import (
    Bank,
    Contribution,
    Detector,
    EdgemergeError,
    Ledger,
    Monitor,
    Projection,
    Stats,
    Threshold,
    admit,
    decode,
    save,
)

SHARED = Projection(n_inputs=2, n_hidden=3)
NOTE = Contribution("A", Stats.of(SHARED, [[0.1, 0.2]]), 1)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Detector(4), "found int, expected Projection"),
        (lambda: Bank(4), "found int, expected Projection"),
        (lambda: Detector(SHARED).adopt(NOTE), "give the stats of a contribution"),
        (lambda: Detector(SHARED).adopt(Ledger(SHARED)), "or the total of a ledger"),
        (lambda: Ledger(SHARED).put(NOTE.stats), r"share\(\) makes one"),
        (lambda: Bank(SHARED).adopt([NOTE.stats]), "what peers share"),
        (lambda: admit(NOTE.stats, projection=SHARED), r"decode\(\) gives one"),
        (lambda: decode("text"), "found str, expected bytes"),  # type: ignore[call-overload] # on purpose
        (lambda: save("x", "y"), "also takes Detector, Bank, Ledger and Monitor"),
        (lambda: Monitor(Detector(SHARED), limit="4"), "found str, .* give the limit"),
        (lambda: Detector(SHARED).share(3, revision=1), "name the device"),
        (lambda: Detector(SHARED).share("A", revision=1.5), "revision=1.5, expected a whole"),
        (lambda: Projection(n_inputs="4"), "n_inputs='4', expected a whole number"),
        (lambda: Projection(n_inputs=4, n_hidden=8.5), "n_hidden=8.5, expected a whole number"),
        (lambda: Projection.of_data([["a"]]), "samples that are not numbers"),
        (lambda: Projection.of_data([[1.0]], margin=-0.6), "margin=-0.6, expected 0 or more"),
        (lambda: Stats.of(SHARED, [[0.0, 0.0]], T=["a"]), "targets must be numbers"),
        (lambda: Stats.of(SHARED, [[0.0, 1j]]), "must be 2 numbers"),
        (lambda: Threshold(votes=3), "votes=3, expected"),
        (lambda: Ledger(SHARED).total(devices=["B"]), r"no contribution of \['B'\]; known: \[\]"),
        (lambda: Bank(SHARED).rename("idle", "fast"), "no pattern 'idle'"),
    ],
)
def test_a_mistake_is_named_with_what_to_do(call, words):
    with pytest.raises(EdgemergeError, match=words):
        call()


def test_what_is_meant_well_works():
    ledger = Ledger(SHARED)
    ledger.put(NOTE)
    ledger.put(Contribution("AB", NOTE.stats, np.int64(2)))
    assert ledger.total(devices="A").count == 1
    assert sum([NOTE.stats, NOTE.stats]) == NOTE.stats + NOTE.stats
    assert Projection(n_inputs=np.int64(2), n_hidden=3) == SHARED
    assert Detector(SHARED).explain([0.0, 0.0]).tolist() == [1.0, 1.0]
    assert Threshold(limit=4.0).update(np.float64(5.0)) is True
    bank = Bank(SHARED)
    bank.learn(np.zeros((32, 2)))
    bank.rename("normal", "idle")
    assert list(bank) == ["idle"]
    bank.adopt(NOTE)
    with pytest.raises(EdgemergeError, match="expected a name that no pattern has"):
        bank.rename("idle", "idle")
