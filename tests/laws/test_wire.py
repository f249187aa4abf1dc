"""Laws of the wire: bytes → object → bytes is the identity; honest sums pass, whatever they are."""

import json

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from edgemerge.core.detector import Detector
from edgemerge.core.errors import CapacityError, FormatError, RejectedError
from edgemerge.core.ledger import Contribution
from edgemerge.core.projection import ACTIVATIONS, Projection
from edgemerge.core.stats import Stats
from edgemerge.wire.admission import admit
from edgemerge.wire.codec import decode, encode
from tests.cases import examples

FORMS = ["exact", "float32", "root16"]
KINDS = ["plain", "weighed", "scaled", "sum", "none"]
SCALES = [0.0, 1e-3, 0.3, 1.0, 30.0, 1e5]  # the last two far out of range

projections = st.builds(
    Projection,
    n_inputs=st.integers(1, 8),
    n_hidden=st.integers(1, 10),
    seed=st.integers(0, 2**64 - 1),
    activation=st.sampled_from(tuple(ACTIVATIONS)),
    low=st.floats(-3.0, -0.5),
    width=st.sampled_from([0.0, 0.01, 1.0, 20.0]),
    grid_bits=st.integers(4, 16),
)
seeds = st.integers(0, 2**32 - 1)
names = st.text(min_size=1, max_size=9).filter(str.isprintable)


def rows(projection, seed, most=40):
    rng = np.random.default_rng(seed)
    k, rank = rng.integers(1, most), rng.integers(1, projection.n_inputs + 1)
    mix = rng.normal(0.0, 1.0, (rank, projection.n_inputs))
    return rng.normal(rng.normal(), rng.choice(SCALES), (k, rank)) @ mix


@st.composite
def sums(draw, *, forgetting=False):
    projection, seed = draw(projections), draw(seeds)
    kind = "faded" if forgetting else draw(st.sampled_from(KINDS))
    try:
        return made(kind, projection, seed)
    except CapacityError:
        assume(False)


def made(kind, projection, seed):
    X, rng = rows(projection, seed), np.random.default_rng(seed)
    plain = Stats.of(projection, X)
    if kind == "faded":
        return faded(projection, X, seed)
    if kind == "weighed":
        return Stats.of(projection, X, weights=1.0 + rng.exponential(2.0, len(X)))
    if kind == "scaled":
        return plain * (1.0 / 3.0)
    if kind == "sum":
        return plain * 2.7 + faded(projection, X, seed) + Stats.of(projection, rows(projection, 1))
    return plain if kind == "plain" else Stats.empty(projection)


def faded(projection, X, seed):
    """What a device that forgets has seen, learnt in pieces, with looks in between."""
    rng = np.random.default_rng(seed)
    pump = Detector(projection, forgetting=float(rng.choice([0.6, 0.9, 0.99, 0.9999])))
    for part in np.array_split(X, rng.integers(1, 5)):
        for piece in (part, part[0] if len(part) else part):
            if len(piece):
                pump.learn(piece)
            if rng.random() < 0.5:
                assert pump.own.count >= 0.0
    return pump.own


@given(sums(), names, names, st.integers(0, 2**63 - 1), st.sampled_from(FORMS[:2]))
def test_bytes_to_object_to_bytes_is_the_identity(stats, device, pattern, number, form):
    data = encode(Contribution(device, stats, number, pattern, number), form)
    note = decode(data)
    assert encode(note, form) == data
    assert (note.key, note.revision) == ((device, number, pattern), number)
    if form == "exact":
        assert note.stats == stats


@given(sums())
def test_float32_keeps_seven_digits(stats):
    for sent, found in zip(stats.arrays, decode(encode(stats, "float32")).arrays, strict=True):
        assert found == pytest.approx(sent, rel=2.0**-23, abs=0.0)


@given(sums())
def test_the_square_root_form_keeps_three_digits_and_what_is_left(stats):
    found = decode(encode(stats, "root16"))
    room = 4.0 * stats.projection.quantum * (stats.count + 1.0) * (2 * len(stats.U) + 2)
    root, length = np.sqrt(np.abs(np.diag(stats.U)) + room), np.sqrt(np.abs(stats.S) + room)
    assert np.all(np.abs(found.U - stats.U) <= 2.0**-9 * np.outer(root, root) + room)
    assert np.all(np.abs(found.V - stats.V) <= 2.0**-9 * np.outer(root, length) + room)
    assert np.all(np.abs(found.S - stats.S) <= 2.0**-9 * length**2 + room)
    assert encode(found) == encode(decode(encode(stats, "root16")))


def objection(note, **options):
    """Return why a contribution is refused, or None if it is admitted."""
    try:
        admit(note, projection=note.stats.projection, **options)
    except RejectedError as error:
        return str(error)
    return None


@pytest.mark.slow
@examples(200)
@given(st.one_of(sums(), sums(forgetting=True)), st.sampled_from(FORMS))
def test_whatever_a_device_can_honestly_have_seen_is_admitted(stats, form):
    note = decode(encode(Contribution("pump", stats, 1), form))
    assert objection(note, form=form) is None


def fits(projection, *seeds):
    try:
        return Stats.of(projection, np.vstack([rows(projection, seed) for seed in seeds])).count
    except CapacityError:
        return False


@given(projections, seeds, seeds, st.sampled_from(FORMS))
def test_a_device_that_goes_on_learning_is_admitted_again(projection, seed, later, form):
    pump = Detector(projection)
    assume(fits(projection, seed, later))
    pump.learn(rows(projection, seed))
    last = decode(encode(pump.share("pump", revision=1)[0], form))
    pump.learn(rows(projection, later))
    note = decode(encode(pump.share("pump", revision=2)[0], form))
    assert objection(note, last=last, form=form) is None
    assert "revision 1 after 2" in objection(last, last=note, form=form)


NOTE = Contribution(
    "pump", Stats.of(Projection(n_inputs=2, n_hidden=3), [[0.1, 0.2], [0.5, -0.4]]), 1
)
MESSAGES = {form: encode(NOTE, form) for form in FORMS}


def refused_or_canonical(data):
    """Nothing but FormatError may come of any bytes; what is accepted, we could have written."""
    try:
        value = decode(data)
    except FormatError:
        return
    form = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]["form"]
    assert form == "root16" or encode(value, form) == data


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_in_our_words(data):
    with pytest.raises(FormatError):
        decode(data)
    refused_or_canonical(MESSAGES["exact"][:38] + data)


@examples(300)
@given(st.sampled_from(FORMS), st.data())
def test_a_flipped_bit_or_a_cut_is_refused_or_gives_other_canonical_bytes(form, data):
    message = bytearray(MESSAGES[form])
    for _ in range(data.draw(st.integers(1, 3))):
        message[data.draw(st.integers(0, len(message) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    refused_or_canonical(bytes(message))
    cut = data.draw(st.integers(0, len(message) - 1))
    with pytest.raises(FormatError):
        decode(MESSAGES[form][:cut])


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@pytest.mark.slow
@examples(300)
@given(st.sampled_from(FORMS), st.data())
def test_an_edited_header_is_refused_or_canonical(form, data):
    message = MESSAGES[form]
    length = int.from_bytes(message[:8], "little")
    header = json.loads(message[8 : 8 + length])
    words = header["__metadata__"]
    inside = json.loads(words["projection"])
    where = data.draw(st.sampled_from([header, words, inside, header["C"]]))
    where[data.draw(st.sampled_from([*where, "new"]))] = data.draw(values)
    if where is inside:
        words["projection"] = json.dumps(inside, separators=(",", ":"))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    refused_or_canonical(len(text).to_bytes(8, "little") + text + message[8 + length :])
