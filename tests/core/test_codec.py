"""Bytes from outside: what we did not write is refused, with words that say what it is."""

import json
import pickle
import zipfile
from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
from safetensors import numpy as foreign

from edgemerge.core.errors import FormatError, SettingError, SolveError
from edgemerge.core.ledger import Contribution
from edgemerge.core.projection import Projection
from edgemerge.core.stats import Stats
from edgemerge.wire.codec import decode, encode, form_of, unpack

SHARED = Projection(n_inputs=3, n_hidden=4, seed=7, low=(-1.0, 0.0, 2.0), high=5.0)
ROWS = np.random.default_rng(0).uniform(0.0, 3.0, (50, 3))
NOTE = Contribution("pump-3 ä", Stats.of(SHARED, ROWS), 5, "idle", 2)
FORMS = ["exact", "float32", "root16"]


def parts(data):
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def joined(header, body):
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + body


def with_words(data, **words):
    header, body = parts(data)
    header["__metadata__"].update(words)
    return joined(header, body)


def with_settings(data, **changes):
    settings = json.loads(parts(data)[0]["__metadata__"]["projection"]) | changes
    return with_words(data, projection=json.dumps(settings, separators=(",", ":")))


def test_what_we_write_any_safetensors_reader_can_read():
    arrays = foreign.load(encode(NOTE))
    assert np.array_equal(arrays["V"], NOTE.stats.V)
    assert np.array_equal(arrays["U"], NOTE.stats.U[np.triu_indices(4)])


@pytest.mark.parametrize("value", [NOTE, NOTE.stats, SHARED], ids=lambda v: type(v).__name__)
def test_every_value_comes_back_as_it_was(value):
    assert decode(encode(value)) == value
    assert encode(decode(encode(value))) == encode(value)


def test_equal_sums_are_equal_bytes_even_where_one_has_a_negative_zero():
    signed = replace(NOTE.stats, C=np.array([-0.0, 1.0, 1.0]))
    plain = replace(NOTE.stats, C=np.array([0.0, 1.0, 1.0]))
    assert encode(signed) == encode(plain)


def test_smaller_forms_are_smaller():
    wide = Projection(n_inputs=60, n_hidden=40)
    stats = Stats.of(wide, np.random.default_rng(0).uniform(-1.0, 1.0, (100, 60)))
    exact, single, root = (len(encode(stats, form)) for form in FORMS)
    assert single < 0.6 * exact
    assert root < 0.35 * exact


def test_the_form_can_be_asked_for():
    assert [form_of(encode(NOTE, form)) for form in FORMS] == FORMS


def test_a_projection_at_hand_is_used_again():
    assert decode(encode(NOTE), projection=SHARED).stats.projection is SHARED
    other = Projection(n_inputs=3, n_hidden=4, seed=8)
    assert decode(encode(NOTE), projection=other) == NOTE


def test_an_indefinite_u_has_no_square_root():
    with pytest.raises(SolveError, match="send them exact"):
        encode(replace(NOTE.stats, U=-NOTE.stats.U), "root16")


@pytest.mark.parametrize("form", ["float16", "", "EXACT"])
def test_a_form_that_is_not_offered_is_named(form):
    with pytest.raises(SettingError, match="expected one of"):
        encode(NOTE, form)


def test_only_values_can_be_written():
    with pytest.raises(SettingError, match="found dict"):
        encode({})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"U": NOTE.stats.U + np.tri(4, k=-1)}, "not symmetric"),
        ({"V": NOTE.stats.V + 1e-9}, "off the grid"),
        ({"S": np.full(3, np.nan)}, "NaN"),
        ({"C": np.full(3, 2.0**30)}, "not below"),
    ],
)
def test_sums_that_are_none_are_not_written(change, words):
    with pytest.raises(FormatError, match=words):
        encode(replace(NOTE.stats, **change))


def zipped():
    file = BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a", "b")
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "found no bytes"),
        (pickle.dumps(ROWS), "found a pickle"),
        (zipped(), "found a zip archive"),
        (b"\x93NUMPY\x01\x00v\x00{}", "found a NumPy file"),
        (b"\x1f\x8b\x08\x00 and so on", "found gzip"),
        (b'{"U": 3}', "found JSON"),
        (b"what is this, really?", "21 bytes in an unknown format"),
        (foreign.save({"U": ROWS}), "safetensors file of another program"),
        (encode(NOTE)[:100], "truncated"),
        (encode(NOTE)[:-1], "truncated"),
        (encode(NOTE) + b"\0", "followed by other bytes"),
    ],
)
def test_bytes_of_another_kind_are_named(data, words):
    with pytest.raises(FormatError, match=words):
        decode(data)


def test_size_is_limited_before_anything_is_read():
    data = encode(NOTE)
    assert decode(data, limit=len(data)) == NOTE
    with pytest.raises(FormatError, match="raise `limit`"):
        decode(data, limit=len(data) - 1)


def test_a_header_cannot_ask_for_more_memory_than_the_limit():
    with pytest.raises(FormatError, match="weights alone need more"):
        decode(with_settings(encode(NOTE), n_inputs=10**9))
    header, body = parts(encode(NOTE))
    header["V"]["shape"] = [2**30, 2**30]
    with pytest.raises(FormatError, match=r"canonical|expected"):
        decode(joined(header, body))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"edgemerge": "2"}, "found format 2, expected 1"),
        ({"kind": "model"}, "found 'model'"),
        ({"form": "float16"}, "found form 'float16'"),
        ({"fingerprint": "0" * 64}, "found fingerprint '0000"),
        ({"device": ""}, "printable"),
        ({"device": "a\nb"}, "printable"),
        ({"revision": "05"}, "found the metadata word 'revision' as 05, expected 5"),
        ({"revision": "-1"}, "expected 0 to"),
        ({"revision": "five"}, "origin"),
        ({"count": "50"}, "'count' as 50, expected 0x1.4"),
        ({"count": "nan"}, "found count nan"),
        ({"count": "many"}, "hexadecimal"),
        ({"count": "0x1p99999"}, "hexadecimal"),
        ({"count": (-1.0).hex()}, "found count -1"),
        ({"count": (1e-9).hex()}, "in steps of"),
        ({"projection": "{"}, "invalid projection settings"),
        ({"projection": "[" * 100_000}, "invalid projection settings"),
        ({"remark": "hello"}, "unknown metadata word 'remark'"),
        ({"format": "2"}, "found format 2, expected 1"),
        ({"format": "1"}, "unknown metadata word 'format'"),
        ({"discount": "0x0.0p+0"}, "for 'discount'"),
    ],
)
def test_words_that_do_not_fit_are_named(words, message):
    with pytest.raises(FormatError, match=message):
        decode(with_words(encode(NOTE), **words))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seed": 8}, "found fingerprint"),
        ({"seed": -1}, "seed"),
        ({"n_inputs": True}, "whole number"),
        ({"n_hidden": 5}, "found fingerprint"),
        ({"width": 0.0}, "canonical"),
        ({"width": 1}, "width of the wrong type"),
        ({"low": [0.0, 1.0]}, "one number or 3"),
        ({"low": float("inf")}, "finite"),
        ({"low": -1e308, "high": 1e308}, "finite"),
        ({"names": ["a", "b", "\ud800"]}, "invalid projection settings"),
        ({"activation": "gelu"}, "activation"),
        ({"activation": []}, "invalid projection settings"),
        ({"extra": 1}, "invalid projection settings"),
    ],
)
def test_settings_that_do_not_fit_are_named(settings, message):
    with pytest.raises(FormatError, match=message):
        decode(with_settings(encode(NOTE), **settings))


def test_a_header_has_one_canonical_form():
    header, body = parts(encode(NOTE))
    spaced = json.dumps(header, separators=(", ", ":")).encode()
    with pytest.raises(FormatError, match="canonical"):
        decode(len(spaced).to_bytes(8, "little") + spaced + body)
    with pytest.raises(FormatError, match="canonical"):
        unpack(len(spaced).to_bytes(8, "little") + spaced + body, 10**6)
    swapped = {"__metadata__": header.pop("__metadata__"), **dict(reversed(header.items()))}
    with pytest.raises(FormatError, match="canonical"):
        decode(joined(swapped, body))


@pytest.mark.parametrize("form", FORMS)
def test_an_array_too_many_is_refused(form):
    header, body = parts(encode(NOTE, form))
    header["W"] = {"dtype": "I8", "shape": [1], "data_offsets": [len(body), len(body) + 1]}
    with pytest.raises(FormatError, match="unknown array 'W'"):
        decode(joined(header, body + b"\0"))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.nan, "NaN"),
        (np.inf, "NaN or infinity"),
        (-0.0, "canonical"),
        (1e-9, "off the grid"),
        (1e20, "not below"),
    ],
)
def test_a_number_that_no_sum_can_be_is_refused(value, words):
    data = encode(NOTE)
    with pytest.raises(FormatError, match=words):
        decode(data[:-8] + np.float64(value).tobytes())


def test_a_square_root_has_scaled_columns_and_no_negative_rest():
    header, body = parts(encode(NOTE, "root16"))
    for name, value in (("E", np.float32(-1.0)), ("R", np.float16(2.0))):
        start = header[name]["data_offsets"][0]
        changed = body[:start] + value.tobytes() + body[start + value.nbytes :]
        with pytest.raises(FormatError, match="scaled columns"):
            decode(joined(header, changed))
