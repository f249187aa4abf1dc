"""The mistakes that newcomers make, and the words that they get."""

from functools import partial

import numpy as np
import pytest
from scipy.sparse import coo_array

from edgemerge import (
    Bank,
    Contribution,
    Detector,
    EdgemergeError,
    Ledger,
    Monitor,
    Projection,
    SampleError,
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
        (lambda: Projection(n_inputs=2, low="x"), "low='x', expected a number, or one for each"),
        (lambda: Projection(n_inputs=2, low=None), "low=None, expected a number"),
        (lambda: Projection(n_inputs=2, high=[0, None]), "high=None, expected a number"),
        (lambda: Projection(n_inputs=2, width="x"), "width='x', expected a number"),
        (lambda: Projection(n_inputs=2, names=5), "names=5, expected a list of names"),
        (lambda: Projection(n_inputs=2, names="ab"), "names='ab', expected a list of names"),
        (lambda: Projection(n_inputs=1, names=["\ud800"]), "expected names that UTF-8 can hold"),
        (lambda: Projection.of_data([["a"]]), "found 'a' .* samples must be numbers: convert"),
        (lambda: Projection.of_data([[1.0]], margin=-0.6), "margin=-0.6, expected 0 or more"),
        (lambda: Projection.of_data([[1.0]], margin="x"), "margin='x', expected a number"),
        (lambda: Projection.of_data([]), "found samples of shape .* one at least"),
        (lambda: Projection.of_data(np.zeros((2, 2, 2))), r"found samples of shape \(2, 2, 2\)"),
        (lambda: Projection.of_data({"a": [1.0], "b": [np.nan]}), "nan at input 'b' of row 0"),
        (lambda: Projection.of_data([[1e308], [-1e308]]), "a range that floats can hold"),
        (lambda: Projection.of_data([[1.0]], low=0.0), "low=0.0, which the samples tell: leave"),
        (lambda: Projection.of_data([[1.0]], weights=[1, 1]), r"weights of shape \(2,\)"),
        (lambda: Projection.of_data([[1.0]], weights=[0]), "weights that are all 0"),
        (lambda: Projection.of_data([[1.0]], weights=[np.nan]), "the weight nan of row 0"),
        (lambda: Projection.of_data([[1.0]], weights=["x"]), "weights must be numbers"),
        (lambda: Detector(SHARED, ridge="x"), "ridge='x', expected 0 or more"),
        (lambda: Detector(SHARED, forgetting=None), "forgetting=None, expected 0.5 to 1"),
        (lambda: Bank(SHARED, forgetting="x"), "forgetting='x', expected 0.5 to 1"),
        (lambda: Bank(SHARED, reject_above="x"), "reject_above='x', expected above 1"),
        (lambda: Stats.of(SHARED, [[0.0, 0.0]], weights=["x"]), "weights must be numbers"),
        (lambda: Stats.of(SHARED, [[0.0, 0.0]], T=[np.nan]), "the target nan in column 0 of row 0"),
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


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        (None, "found NoneType, but a sample must be 2 numbers: give an array"),
        ({1.0, 2.0}, "found set, but"),
        ("ab", "found str, but"),
        (coo_array(np.eye(2)), "found coo_array, but"),
        (["1", "x"], "found 'x' at input 1, but a sample must be 2 numbers: convert"),
        ([[1.0, 2.0], [1.0, None]], "found nan at input 1 of row 1"),
        ([[1.0, 2.0], [1.0]], "found rows of different lengths, but"),
        (np.zeros(2, complex), "found complex numbers, but"),
        (np.zeros(2, "M8[s]"), "found dates, but"),
        (np.zeros(2, "m8[s]"), "found durations, but"),
        (np.zeros(1, [("a", "f8"), ("b", "f8")]), "found a structured array, but"),
        (np.ma.array([1.0, 2.0], mask=[False, True]), "found masked values, but"),
        ([1.0, 10**400], "found 1000.* at input 1, but"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("make", [Detector, Bank])
def test_what_is_no_sample_is_named_with_what_to_do(make, sample, words):
    learner = make(SHARED)
    for learnt in (False, True):  # at first NumPy reads samples, then the kernel
        for use in (learner.score, learner.learn, learner.learn_and_score, learner.explain):
            with pytest.raises(SampleError, match=words):
                use(sample)
        if not learnt:
            learner.learn(np.zeros((40, 2)))
            learner.learn_and_score([0.1, 0.2])
            learner.score([0.1, 0.2])


def test_what_takes_one_sample_says_so_when_it_gets_rows():
    for learner in (Detector(SHARED), Bank(SHARED)):
        for use in (learner.look, learner.explain_by_name, partial(Monitor(learner).take, at=0.0)):
            for rows in (np.zeros((2, 2)), np.zeros((1, 2)), [0.0, 0.0, 0.0]):
                with pytest.raises(SampleError, match=r"expected one of shape \(2,\): give one"):
                    use(rows)
