"""The overview: what is there, what is not, and what to do about it, without raising."""

from edgemerge.paper.data import status as public_status
from edgemerge.paper.data.download import status
from tests.paper.data.small import (
    har_archive,
    har_arrays,
    har_known,
    mnist_files,
    mnist_known,
    packed,
    put,
)
from tests.paper.driving import ROOT, write_trips

ARRAYS, FILES = har_arrays(), mnist_files()
KNOWN = {"har": har_known(ARRAYS), "mnist": mnist_known(FILES)}


def test_an_empty_folder_lacks_all_three_and_tells_what_to_do(tmp_path):
    found = public_status(tmp_path)
    assert [(one.name, one.state) for one in found] == [
        ("har", "missing"),
        ("mnist", "missing"),
        ("driving", "missing"),
    ]
    assert "--fetch har" in found[0].advice
    assert "--fetch mnist" in found[1].advice
    assert "get it from the makers" in found[2].advice


def test_what_is_there_is_told_with_its_place_and_counts(tmp_path):
    put(tmp_path, {"har.zip": har_archive(ARRAYS)} | packed(FILES))
    write_trips(tmp_path, 0, seconds=130)
    har, mnist, driving = status(tmp_path, known=KNOWN)
    assert (har.state, har.where, har.rows) == ("found", tmp_path / "har.zip", 14)
    assert har.patterns["walking"] == 3
    assert har.patterns["laying"] == 1
    assert (mnist.rows, mnist.patterns["0"], mnist.patterns["9"]) == (19, 3, 1)
    assert (driving.where, driving.rows) == (tmp_path / ROOT, 80)
    assert driving.patterns == {"normal": 34, "aggressive": 22, "drowsy": 24}
    assert {one.advice for one in (har, mnist, driving)} == {""}


def test_damaged_and_incomplete_are_told_apart(tmp_path):
    files = packed(FILES)
    del files["train-labels-idx1-ubyte.gz"]
    put(tmp_path, {"har.npz": b"damaged"} | files)
    write_trips(tmp_path, 0, ["D2"], seconds=130)
    found = status(tmp_path, known=KNOWN)
    assert [one.state for one in found] == ["damaged", "incomplete", "incomplete"]
    assert "delete" in found[0].advice
    assert "train-labels" in found[1].advice
    assert "D2 has 6 of 7" in found[2].advice
