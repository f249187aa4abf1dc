"""A hundred thousand mutated contributions: each is refused in our words, or is sound and whole."""

import json
import tracemalloc
from collections import Counter
from math import prod

import numpy as np
import pytest

from edgemerge.core.errors import EdgemergeError, FormatError
from edgemerge.core.ledger import Contribution
from edgemerge.wire.admission import admit
from edgemerge.wire.codec import decode_with_form, encode
from tests.server.mutants import LIMIT, NOTES, SEEDS, joined, mutant, parts, written
from tests.server.wire import SHARED

MUTANTS = 100_000
CHUNKS = 20
IN_CHECK = 5  # chunks, each of all kinds of mutants
SLACK = {  # of tr(U): a few times what a number is rounded by in each form
    "exact": 2.0**-20,
    "float32": 2.0**-20,
    "root16": 2.0**-9,
}
ROOM = 2**20  # bytes, sixteen times what the largest may have: JSON and copies take some


def taken_in(data):
    """Do what the server does with a body; give what it is taken for, or the error's name."""
    try:
        value, form = decode_with_form(data, limit=LIMIT, projection=SHARED)
        if isinstance(value, Contribution):
            admit(value, projection=SHARED, form=form)
    except EdgemergeError as error:
        str(error).encode("utf-8")  # it must be possible to tell it
        return type(error).__name__
    must_be_whole(value, form, data)
    return type(value).__name__


def must_be_whole(value, form, data):
    again = encode(value, form)
    if form != "root16":  # which rounds each time that it writes
        assert again == data
    if isinstance(value, Contribution):
        U, _, C, S = value.stats.arrays
        slack = SLACK[form] * max(1.0, np.trace(U))
        assert np.array_equal(U, U.T)
        assert np.linalg.eigvalsh(U)[0] >= -slack
        assert (value.stats.count * (S + slack) >= C**2 - slack).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "chunk",
    [*range(IN_CHECK), *(pytest.param(i, marks=pytest.mark.long) for i in range(IN_CHECK, CHUNKS))],
)
def test_a_mutant_is_refused_or_sound(chunk):
    found = Counter(map(taken_in, map(mutant, range(chunk, MUTANTS, CHUNKS))))
    assert set(found) <= {
        *("FormatError", "RejectedError", "Contribution", "Stats", "Merged", "Projection")
    }
    assert found["FormatError"] > 1000
    assert found["RejectedError"] > 50  # well-formed bytes reach the checks of the sums
    assert found["Contribution"] > 50


def test_what_was_not_mutated_is_taken_in():
    kinds = Counter(map(taken_in, SEEDS))
    assert kinds["Contribution"] == 3 * len(NOTES)
    assert kinds["RejectedError"] == 1  # that of another projection


def peak_of(data):
    """Give the most memory that taking it in needed beside the data themselves."""
    tracemalloc.start()
    try:
        outcome = taken_in(data)
        return outcome, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_no_mutant_takes_much_memory():
    peaks = [peak_of(mutant(seed))[1] for seed in range(3000)]
    assert max(peaks) < ROOM


def announcing(shape, **words):
    """Give a U of this shape, in a header that is all right otherwise."""
    entries = json.loads(parts(SEEDS[0])[0])
    entries["U"]["shape"], end = shape, 0
    for name in "UVCS":
        start, end = end, end + 8 * prod(entries[name]["shape"])
        entries[name]["data_offsets"] = [start, end]
    entries["__metadata__"] |= words
    return joined(written(entries), bytes(200))


def with_settings(**changes):
    entries = json.loads(parts(SEEDS[0])[0])
    changed = json.loads(entries["__metadata__"]["projection"]) | changes
    entries["__metadata__"]["projection"] = written(changed).decode()
    return joined(written(entries), parts(SEEDS[0])[1])


@pytest.mark.parametrize(
    "data",
    [
        announcing([2**37]),
        announcing([2**39, 2**39]),
        announcing([2**40 - 1]),
        announcing([2**37, 0]),
        announcing([2**37], kind="told"),
        (2**62).to_bytes(8, "little") + SEEDS[0][8:],
        with_settings(n_hidden=2**40),
        with_settings(n_inputs=0, n_hidden=2**62),
        with_settings(n_inputs=-(2**40), n_hidden=-(2**40)),
        with_settings(n_inputs=1, n_hidden=LIMIT // 8),
        with_settings(n_inputs=LIMIT // 8, n_hidden=1),
        with_settings(n_inputs=2**40, n_hidden=0),
        joined(SEEDS[0][8:38] + b"[" * 60_000, b""),
    ],
    ids=range(13),
)
def test_what_announces_terabytes_is_given_none(data):
    assert len(data) < LIMIT
    outcome, peak = peak_of(data)
    assert outcome == FormatError.__name__
    assert peak < 4 * ROOM


def test_more_than_the_limit_is_not_even_looked_at():
    data = SEEDS[0] + bytes(2**24)
    outcome, peak = peak_of(data)
    assert outcome == FormatError.__name__
    assert peak < 2**14
