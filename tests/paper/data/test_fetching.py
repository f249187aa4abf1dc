"""Fetching data sets: what is asked for, what is kept, and what is refused before it is asked."""

import os
from pathlib import Path

import pytest

from edgemerge.paper.data import (
    DamagedDataError,
    FetchError,
    IncompleteDataError,
    MissingDataError,
    har,
    mnist,
)
from edgemerge.paper.data import fetch as public_fetch
from edgemerge.paper.data.download import fetch
from tests.paper.data.serving import serving
from tests.paper.data.small import (
    har_arrays,
    har_known,
    har_texts,
    har_wrapped,
    mnist_files,
    mnist_known,
    packed,
    put,
)
from tests.services.missing import NO_DATA


def test_har_comes_as_the_archive_of_uci_and_is_then_found(tmp_path, retry):
    arrays = har_arrays()
    name = "human+activity+recognition+using+smartphones.zip"
    with serving({f"/240/{name}": har_wrapped(arrays)}) as served:
        known = har_known(arrays, addresses=[f"{served.url}/240/{name}"])
        options = {"known": known, "retry": retry}
        assert fetch("har", tmp_path, **options) == [tmp_path / "har" / name]
        assert fetch("har", tmp_path, **options) == [tmp_path / "har" / name]
    assert len(served.asked) == 1  # the second time it was there
    assert len(har.read_all(har.find(tmp_path, known=known)).X) == 14


@pytest.mark.parametrize("sent", [har_wrapped(har_arrays(seed=1)), b"PK nonsense"])
def test_har_with_other_content_is_refused_whatever_the_archive(tmp_path, retry, sent):
    with serving({"/har.zip": sent}) as served:
        known = har_known(har_arrays(), addresses=[f"{served.url}/har.zip"])
        with pytest.raises(FetchError, match=r"X_train\.txt in .*expected git:|no whole zip"):
            fetch("har", tmp_path, known=known, retry=retry)
    assert not list((tmp_path / "har").iterdir())


def test_the_second_address_of_har_has_another_name_and_part(tmp_path, retry):
    arrays = har_arrays()
    with serving(
        {"/a/outer.zip": har_wrapped(arrays), "/b/UCI%20HAR.zip": har_wrapped(arrays)}, "cut", "404"
    ) as served:
        known = har_known(
            arrays, addresses=[f"{served.url}/a/outer.zip", f"{served.url}/b/UCI%20HAR.zip"]
        )
        paths = fetch("har", tmp_path, known=known, retry=retry)
    assert paths == [tmp_path / "har" / "UCI HAR.zip"]
    assert served.asked[-1] == ("/b/UCI%20HAR.zip", None)


def test_mnist_comes_as_four_files_and_only_what_is_lost_or_damaged(tmp_path, retry):
    files = mnist_files()
    there = packed(files)
    with serving({f"/m/{name}": data for name, data in there.items()}) as served:
        known = mnist_known(files, [f"{served.url}/gone/", f"{served.url}/m/"])
        options = {"known": known, "retry": retry}
        paths = fetch("mnist", tmp_path, **options)
        assert [path.name for path in paths] == list(there)
        assert len(served.asked) == 8
        paths[2].unlink()
        fetch("mnist", tmp_path, **options)
        paths[3].write_bytes(b"damaged")
        fetch("mnist", tmp_path, **options)
    asked = [path for path, _ in served.asked[8:]]
    assert asked == [f"/{at}/{path.name}" for path in paths[2:] for at in ("gone", "m")]
    assert len(mnist.read_all(mnist.find(tmp_path, known=known)).X) == 19


def test_damage_that_fetching_would_not_mend_is_told_before(tmp_path, retry):
    arrays = har_arrays()
    texts = har_texts(arrays)
    del texts["test/y_test.txt"]
    with serving({"/har.zip": har_wrapped(arrays)}) as served:
        known = har_known(arrays, addresses=[f"{served.url}/har.zip"])
        options = {"known": known, "retry": retry}
        with pytest.raises(IncompleteDataError, match=r"or delete it and run"):
            fetch("har", put(tmp_path / "a", texts), **options)
        with pytest.raises(DamagedDataError, match=r"delete .*har\.npz and run"):
            fetch("har", put(tmp_path / "b", {"har.npz": b"damaged"}), **options)
    assert served.asked == []


def test_driving_is_not_fetched_but_told_where(tmp_path):
    with pytest.raises(MissingDataError, match=r"get it from the makers: http"):
        public_fetch("driving", tmp_path)


def test_every_address_is_one_of_the_makers_or_a_known_mirror_by_https():
    addresses = [*har.MANIFEST.addresses, *mnist.MANIFEST.addresses]
    assert all(address.startswith("https://") for address in addresses)
    assert [one.addresses[0].rpartition("/")[2] for one in mnist.remotes()] == [
        "train-images-idx3-ubyte.gz",
        "train-labels-idx1-ubyte.gz",
        "t10k-images-idx3-ubyte.gz",
        "t10k-labels-idx1-ubyte.gz",
    ]


@pytest.mark.skipif("EDGEMERGE_DATA" not in os.environ, reason=NO_DATA)
def test_what_is_there_is_not_fetched_again():
    folder = Path(os.environ["EDGEMERGE_DATA"])
    assert public_fetch("har", folder) == [har.find(folder).where]
