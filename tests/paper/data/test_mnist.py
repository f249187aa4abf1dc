"""MNIST: packed or not, in any of its places, and refused when it is not what was published."""

import os
from pathlib import Path

import numpy as np
import pytest

from edgemerge.paper.data import (
    DamagedDataError,
    IncompleteDataError,
    MissingDataError,
    load,
    mnist,
)
from tests.paper.data.small import idx, mnist_files, mnist_known, packed, put
from tests.services.missing import NO_DATA

FILES = mnist_files()
KNOWN = mnist_known(FILES)
FORMS = {"packed": packed(FILES), "unpacked": FILES, "both": FILES | packed(FILES)}
IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def below(place, files):
    return {f"{place}/{name}": data for name, data in files.items()}


def loaded(folder, known=KNOWN):
    return mnist.read_all(mnist.find(folder, known=known))


@pytest.mark.parametrize("place", ["", "mnist", "MNIST/raw", "mnist/MNIST/raw"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_train_then_test_in_0_to_1(tmp_path, place, form):
    data = loaded(put(tmp_path, below(place or ".", FORMS[form])))
    pixels = b"".join(FILES[f"{half}-images-idx3-ubyte"][16:] for half in ("train", "t10k"))
    expected = np.frombuffer(pixels, np.uint8).reshape(19, 784) / 255.0
    assert (expected == data.X).all()
    assert data.X.dtype == np.float64
    assert data.y.tolist() == [*np.arange(12) % 10, *np.arange(7)]
    assert data.origin.tolist() == [0] * 12 + [1] * 7
    assert (data.patterns, data.low, data.high) == (tuple("0123456789"), 0.0, 1.0)


def test_a_place_that_holds_all_goes_before_one_that_holds_some(tmp_path):
    put(tmp_path, below("mnist", {f"{IMAGES}.gz": b"half"}) | below("MNIST/raw", FILES))
    assert mnist.find(tmp_path, known=KNOWN).where == tmp_path / "MNIST" / "raw"


def test_a_packed_file_goes_before_its_unpacked_copy(tmp_path):
    put(tmp_path, FORMS["both"] | {IMAGES: b"half unpacked"})
    assert len(loaded(tmp_path).X) == 19


def test_a_lost_file_is_named(tmp_path):
    files = packed(FILES)
    del files[f"{LABELS}.gz"]
    with pytest.raises(IncompleteDataError, match=f"lacks {LABELS} .*--fetch mnist"):
        mnist.find(put(tmp_path, files), known=KNOWN)


def test_an_empty_folder_tells_how_to_get_it(tmp_path):
    with pytest.raises(MissingDataError, match="--fetch mnist`, or set EDGEMERGE_DATA"):
        mnist.find(tmp_path)


def test_a_half_download_is_not_taken_for_the_file(tmp_path):
    put(tmp_path, below("mnist", {f"{name}.gz.part": data for name, data in FILES.items()}))
    with pytest.raises(MissingDataError, match=r"a half is there: .*--fetch mnist.* goes on"):
        mnist.find(tmp_path, known=KNOWN)


@pytest.mark.parametrize("form", ["packed", "unpacked"])
def test_a_changed_byte_is_noticed(tmp_path, form):
    put(tmp_path, FORMS[form])
    path = max(tmp_path.iterdir())
    path.write_bytes(path.read_bytes()[:-1] + b"\x77")
    words = rf"{path.name} is damaged .*sha256:.*expected sha256:.*: delete .*--fetch mnist"
    with pytest.raises(DamagedDataError, match=words):
        mnist.find(tmp_path, known=KNOWN)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({LABELS: idx(np.arange(12))}, "found the label 11, expected 0 to 9"),
        ({LABELS: idx(np.zeros(11))}, r"images \(12, 28, 28\), expected \(11, 28, 28\)"),
        ({IMAGES: idx(np.zeros((12, 28, 27)))}, r"found train images \(12, 28, 27\)"),
        ({IMAGES: idx(np.zeros((12, 784)))}, "first bytes 00 00 08 02"),
        ({IMAGES: FILES[IMAGES][:-1]}, "is no whole idx file"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(tmp_path, change, words):
    files = FILES | change
    with pytest.raises(DamagedDataError, match=words):
        loaded(put(tmp_path, files), mnist_known(files))


def test_what_is_not_gzip_or_too_long_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.gz"
    for data in (b"no", packed({"a": b"12345678"})["a.gz"][:-9]):
        with pytest.raises(DamagedDataError, match="no gzip file"):
            mnist._unpacked(data, path)
    monkeypatch.setattr(mnist, "MAX_FILE_BYTES", 7)
    with pytest.raises(DamagedDataError, match="unpacks to more than 7 bytes"):
        mnist._unpacked(packed({"a": b"12345678"})["a.gz"], path)


@pytest.mark.slow
@pytest.mark.skipif("EDGEMERGE_DATA" not in os.environ, reason=NO_DATA)
def test_the_real_one_has_all_digits():
    data = load("mnist", None)
    train, test = data.y[:60000], data.y[60000:]
    known = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(train).tolist() == known
    assert np.bincount(test).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert data.X.shape == (70000, 784)
    assert (data.X[0].min(), data.X[0].max()) == (0.0, 1.0)


@pytest.mark.skipif("EDGEMERGE_DATA" not in os.environ, reason=NO_DATA)
def test_the_real_one_may_be_unpacked(tmp_path):
    folder = mnist.find(Path(os.environ["EDGEMERGE_DATA"]))
    put(tmp_path, folder.files)
    assert mnist.find(tmp_path).files == folder.files
