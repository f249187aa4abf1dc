"""The idx format: what was written is read, and anything else is refused in words."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from edgemerge.paper.data import DamagedDataError
from edgemerge.paper.data.mnist import parse_idx
from tests.paper.data.small import idx

PATH = Path("some-idx-ubyte")
shapes = arrays.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5)
contents = shapes.flatmap(lambda shape: arrays.arrays(np.uint8, shape))


@given(contents)
def test_what_was_written_is_read(array):
    found = parse_idx(idx(array), n_dims=array.ndim, path=PATH)
    assert found.shape == array.shape
    assert (found == array).all()


@given(contents, st.integers(-40, 40).filter(bool))
def test_a_byte_less_or_more_is_refused(array, change):
    data = idx(array)
    wrong = data + bytes(change) if change > 0 else data[:change]
    with pytest.raises(DamagedDataError, match="--fetch mnist"):
        parse_idx(wrong, n_dims=array.ndim, path=PATH)


@given(st.binary(max_size=40), st.integers(1, 3))
def test_any_bytes_are_read_whole_or_refused(data, n_dims):
    try:
        found = parse_idx(data, n_dims=n_dims, path=PATH)
    except DamagedDataError:
        return
    assert idx(found) == data


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "first bytes missing, expected 00 00 08 01"),
        (b"\x1f\x8b\x08\x08", "first bytes 1f 8b 08 08"),
        (bytes([0, 0, 13, 1, 0, 0, 0, 0]), "first bytes 00 00 0d 01"),  # floats
        (bytes([0, 0, 8, 3, 0, 0, 0, 0]), "first bytes 00 00 08 03"),
        (bytes([0, 0, 8, 1, 0, 0]), "found 6 bytes, expected a header of 8"),
        (bytes([0, 0, 8, 1, 255, 255, 255, 255, 1]), "expected 4294967303 for 4294967295 entries"),
    ],
)
def test_the_refusal_says_what_was_found(data, words):
    with pytest.raises(DamagedDataError, match=words):
        parse_idx(data, n_dims=1, path=PATH)
