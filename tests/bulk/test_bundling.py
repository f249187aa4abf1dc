"""Small chunks are put together, in order, and none is lost."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from edgemerge.bulk.chunk import CHUNK_BYTES
from edgemerge.dask.tasks import MAX_BUNDLE, Bundle, make_bundles
from tests.bulk.readers import Small

sizes = st.lists(st.sampled_from((0, 1, CHUNK_BYTES // 3, CHUNK_BYTES, 3 * CHUNK_BYTES)))


def size(bundle):
    return sum(chunk.bytes for chunk in bundle.chunks)


@given(sizes)
def test_bundles_are_no_larger_than_a_chunk_unless_one_is(given_sizes):
    chunks = [Small(number, size) for number, size in enumerate(given_sizes)]
    bundles = list(make_bundles(chunks))
    assert [chunk for bundle in bundles for chunk in bundle.chunks] == chunks
    for bundle in bundles:
        assert len(bundle.chunks) == 1 or size(bundle) <= CHUNK_BYTES
    for bundle, after in pairwise(bundles):
        assert size(bundle) + after.chunks[0].bytes > CHUNK_BYTES


def test_a_bundle_has_few_enough_chunks_to_be_named():
    bundles = list(make_bundles(Small(number) for number in range(2 * MAX_BUNDLE + 1)))
    assert [len(bundle.chunks) for bundle in bundles] == [MAX_BUNDLE, MAX_BUNDLE, 1]
    assert str(bundles[0]) == f"small chunk 0 and {MAX_BUNDLE - 1} more"
    assert str(bundles[2]) == f"small chunk {2 * MAX_BUNDLE}"


def test_a_bundle_is_taken_apart_and_remembers_what_was_reported():
    bundle = Bundle((1, 2))
    assert list(bundle.apart(reported=False)) == [
        Bundle((1,), alone=True),
        Bundle((2,), alone=True),
    ]
    (again,) = Bundle((1,), reported=True).apart(reported=False)
    assert again == Bundle((1,), alone=True, reported=True)
    assert next(bundle.apart(reported=True)).reported


def test_what_has_no_size_is_by_itself():
    assert list(make_bundles(range(3))) == [Bundle((0,)), Bundle((1,)), Bundle((2,))]
