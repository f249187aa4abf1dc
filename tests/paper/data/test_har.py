"""HAR: every form in which it may lie in a folder gives the same rows, damaged ones none."""

import os
import struct
from pathlib import Path

import numpy as np
import pytest

from edgemerge.paper.data import DamagedDataError, IncompleteDataError, MissingDataError, har, load
from edgemerge.paper.data.verified_files import Manifest, verify_digest
from tests.paper.data.small import (
    har_archive,
    har_arrays,
    har_known,
    har_npz,
    har_texts,
    har_wrapped,
    put,
    zipped,
)
from tests.services.missing import NO_DATA

pytestmark = pytest.mark.slow

ARRAYS = har_arrays()
COMPACT = har_npz(ARRAYS)
KNOWN = har_known(ARRAYS, COMPACT)
PRINTED = 1e-7  # the texts have eight digits
FORMS = {
    "compact": {"har/har.npz": COMPACT},
    "compact on top": {"har.npz": COMPACT},
    "texts on top": har_texts(ARRAYS),
    "folder": {f"UCI HAR Dataset/{name}": data for name, data in har_texts(ARRAYS).items()},
    "folder below": {f"har/UCI HAR Dataset/{n}": data for n, data in har_texts(ARRAYS).items()},
    "archive": {"UCI HAR Dataset.zip": har_archive(ARRAYS)},
    "archive below": {"har/UCI HAR Dataset.zip": har_archive(ARRAYS)},
    "archive of UCI": {"human+activity+recognition+using+smartphones.zip": har_wrapped(ARRAYS)},
}


def loaded(folder, known=KNOWN):
    return har.read_all(har.find(folder, known=known))


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_train_then_test_with_activity_and_person(tmp_path, form):
    data = loaded(put(tmp_path, FORMS[form]))
    expected = np.vstack([ARRAYS["X_train"], ARRAYS["X_test"]])
    assert abs(data.X - expected).max() <= PRINTED
    assert data.X.dtype == np.float64
    assert data.y.tolist() == [*np.arange(9) % 6, *np.arange(5) % 6]
    people = [*ARRAYS["subject_train"], *ARRAYS["subject_test"]]
    assert data.origin.tolist() == people
    assert (data.name, data.low, data.high) == ("har", -1.0, 1.0)
    assert data.patterns[3:] == ("sitting", "standing", "laying")


def test_an_archive_of_something_else_is_passed_over(tmp_path):
    put(tmp_path, {"har.zip": zipped({"notes.txt": b"HAR"})})
    with pytest.raises(MissingDataError, match="paper data --fetch har"):
        har.find(tmp_path)
    assert len(loaded(put(tmp_path, FORMS["archive below"])).X) == 14


def test_a_copy_deeper_down_is_not_mixed_in(tmp_path):
    other = {f"a/b/{name}": b"other" for name in har.TEXTS}
    put(tmp_path, FORMS["texts on top"] | other)
    assert len(loaded(tmp_path).X) == 14


def test_an_empty_folder_tells_how_to_get_it(tmp_path):
    with pytest.raises(MissingDataError, match="--fetch har`, or set EDGEMERGE_DATA"):
        har.find(tmp_path)
    with pytest.raises(FileNotFoundError, match="which does not exist"):
        har.find(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "name", ["train/X_train.txt", "test/y_test.txt", "train/subject_train.txt"]
)
@pytest.mark.parametrize("form", ["folder", "archive", "archive of UCI"])
def test_one_changed_digit_is_noticed_in_any_text(tmp_path, name, form):
    arrays = {key: array.copy() for key, array in ARRAYS.items()}
    arrays[Path(name).stem].flat[-1] = 1
    changed = {
        "folder": {f"UCI HAR Dataset/{n}": data for n, data in har_texts(arrays).items()},
        "archive": {"UCI HAR Dataset.zip": har_archive(arrays)},
        "archive of UCI": {"human activity.zip": har_wrapped(arrays)},
    }
    put(tmp_path, changed[form])
    words = rf"{name} in .* found \d+ bytes with \w+:\w{{12}}…, expected .*: delete .*--fetch har"
    with pytest.raises(DamagedDataError, match=words):
        har.find(tmp_path, known=KNOWN)


def test_a_damaged_compact_file_is_refused(tmp_path):
    put(tmp_path, {"har/har.npz": COMPACT[:-9]})
    words = r"har\.npz is damaged .* expected sha256:\w{12}…: delete .*har\.npz and run"
    with pytest.raises(DamagedDataError, match=words) as refused:
        har.find(tmp_path, known=KNOWN)
    assert refused.value.path == tmp_path / "har" / "har.npz"


def test_half_an_archive_is_called_so(tmp_path):
    archive = put(tmp_path, {"UCI HAR Dataset.zip": har_archive(ARRAYS)[:5000]})
    with pytest.raises(DamagedDataError, match=r"no whole zip archive .*: delete it and fetch"):
        har.find(archive, known=KNOWN)


def test_a_lost_text_is_named(tmp_path):
    texts = har_texts(ARRAYS)
    del texts["test/y_test.txt"]
    put(tmp_path, texts)
    with pytest.raises(IncompleteDataError, match=r"lacks test/y_test\.txt: unpack"):
        har.find(tmp_path, known=KNOWN)


def test_an_entry_that_would_unpack_to_gigabytes_is_not_read(tmp_path):
    archive = bytearray(har_archive(ARRAYS))
    at = archive.find(b"PK\x01\x02")  # of the first entry, in the directory at the end
    struct.pack_into("<I", archive, at + 24, 2**31)
    put(tmp_path, {"har.zip": bytes(archive)})
    with pytest.raises(DamagedDataError, match="found 2147483648 bytes, expected at most"):
        har.find(tmp_path, known=KNOWN)


def test_pickled_arrays_are_never_loaded(tmp_path):
    compact = har_npz(ARRAYS | {"y_train": np.array([print] * 9, dtype=object)})
    put(tmp_path, {"har.npz": compact})
    found = har.find(tmp_path, known=har_known(ARRAYS, compact))
    with pytest.raises(DamagedDataError, match="allow_pickle=False"):
        har.labels(found)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"y_train": np.arange(9)}, "found activities .*, expected 1 to 6"),
        ({"y_train": np.ones(8, dtype=int)}, r"X \(14, 561\), y \(13,\)"),
        ({"X_test": np.ones((5, 560))}, "expected numbers in the X files"),
        ({"subject_test": np.ones(4, dtype=int)}, r"subject \(13,\)"),
        ({"X_test": np.full((5, 561), 1.5)}, r"not in \[-1, 1\]"),
        ({"X_test": np.full((5, 561), np.nan)}, r"not in \[-1, 1\]"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(tmp_path, change, words):
    arrays = ARRAYS | change
    compact = har_npz(arrays)
    put(tmp_path, {"har.npz": compact})
    with pytest.raises(DamagedDataError, match=words):
        loaded(tmp_path, Manifest(KNOWN.digests | har_known(ARRAYS, compact).digests, ()))


@pytest.mark.skipif("EDGEMERGE_DATA" not in os.environ, reason=NO_DATA)
def test_the_real_one_has_all_rows_of_all_people():
    data = load("har", None)
    assert data.X.shape == (10299, 561)
    assert np.bincount(data.y).tolist() == [1722, 1544, 1406, 1777, 1906, 1944]
    assert (np.abs(data.X).max(axis=0) == 1.0).all()
    assert sorted(set(data.origin)) == list(range(1, 31))
    assert set(data.origin[7352:]) == {2, 4, 9, 10, 12, 13, 18, 20, 24}


@pytest.mark.skipif("EDGEMERGE_DATA" not in os.environ, reason=NO_DATA)
def test_the_makers_own_small_texts_have_the_fingerprints_we_expect():
    folder = Path(os.environ["EDGEMERGE_DATA"]) / "har"
    small = [name for name in har.TEXTS if "X_" not in name]
    there = [name for name in small if (folder / Path(name).name).is_file()]
    if not there:
        pytest.skip("the texts are not beside the compact file")
    for name in there:
        data = (folder / Path(name).name).read_bytes()
        verify_digest(data, har.MANIFEST.digests[name], path=folder, part=name, name="har")
