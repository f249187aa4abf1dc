"""UAH-DriveSet: trips in a folder or an archive, their oddities, and trips that are not there."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from edgemerge.paper.data import (
    DamagedDataError,
    IncompleteDataError,
    MissingDataError,
    driving,
    load,
)
from edgemerge.paper.data.catalog import UAH_PAGE
from tests.paper.data.small import put, zipped
from tests.paper.driving import GPS, ROOT, gps_text, trip_names, write_trips
from tests.services.missing import NO_DRIVES

pytestmark = pytest.mark.slow

SECONDS = 140  # three windows for each trip
TAIL = " 40.5 -3.4 618 4 5 12 0.1 0 0 0 \n"  # columns 3 to 12, and the blank


def trips(folder, **options):
    return write_trips(folder, 0, **{"seconds": SECONDS} | options)


def trip(folder, name):
    return next(folder.rglob(f"*{name}*")) / GPS


def lines(clock, speed):
    return "".join(f"{t:.2f} {v:.1f}{TAIL}" for t, v in zip(clock, speed, strict=True))


@pytest.mark.parametrize("place", [".", "driving", "uah-driveset", "data/uah"])
def test_forty_trips_are_found_up_to_three_folders_down(tmp_path, place):
    trips(tmp_path / place)
    put(tmp_path, {"other/D1/notes.txt": b"not a trip"})
    data = load("driving", tmp_path)
    assert data.X.shape == (3 * 40, 225)
    assert data.patterns == ("normal", "aggressive", "drowsy")
    assert data.origin.tolist() == np.repeat(np.arange(40), 3).tolist()
    behaviours = [name.split("-")[3][0] for name in trip_names()]
    assert data.y.tolist() == np.repeat(["NAD".index(b) for b in behaviours], 3).tolist()
    assert (data.low, data.high, data.X.min(), data.X.max()) == (0.0, 1.0, 0.0, 1.0)


def test_the_makers_archive_gives_the_same_as_the_folder(tmp_path):
    root = trips(tmp_path / "a")
    files = {p.relative_to(root.parent).as_posix(): p.read_bytes() for p in root.rglob(GPS)}
    shadows = {f"__MACOSX/{name}": b"shadow" for name in files}
    put(tmp_path / "b" / "driving", {"UAH-DRIVESET-v1.zip": zipped(files | shadows)})
    folder, archive = load("driving", tmp_path / "a"), load("driving", tmp_path / "b")
    assert (folder.X == archive.X).all()
    assert (folder.origin == archive.origin).all()


def test_the_made_up_trips_differ_by_behaviour_as_drives_do(tmp_path):
    data = load("driving", write_trips(tmp_path, 1, seconds=300))
    T = data.X.reshape(-1, 15, 15)
    stays = np.einsum("kaa->k", T) / T.any(axis=2).sum(axis=1)
    levels = T.any(axis=2).sum(axis=1)
    normal, aggressive, drowsy = (data.rows(pattern) for pattern in data.patterns)
    assert stays[aggressive].mean() < stays[normal].mean() < stays[drowsy].mean()
    assert levels[aggressive].mean() > levels[drowsy].mean() > levels[normal].mean()


def test_trips_are_made_again_from_their_seed(tmp_path):
    texts = [
        trip(write_trips(tmp_path / at, seed, seconds=9), "D2-DROWSY-M").read_bytes()
        for at, seed in (("a", 3), ("b", 3), ("c", 4))
    ]
    assert texts[0] == texts[1] != texts[2]


def test_missing_trips_are_told_by_driver(tmp_path):
    trips(tmp_path, missing=["D3", "D6", "D6"])
    words = r"has 37 trips, expected 40 \(D3 has 6 of 7; D6 has 3 of 5\): unpack .*partial"
    with pytest.raises(IncompleteDataError, match=words):
        load("driving", tmp_path)
    data = load("driving", tmp_path, partial=True)
    assert len(np.unique(data.origin)) == 37


def test_a_trip_without_its_readings_is_named(tmp_path):
    trips(tmp_path)
    path = trip(tmp_path, "D4-AGGRESSIVE-MOTORWAY")
    path.unlink()
    words = rf"D4 has 6 of 7; {path.parent.name} has no RAW_GPS.txt"
    with pytest.raises(IncompleteDataError, match=words):
        load("driving", tmp_path)
    assert load("driving", tmp_path, partial=True).origin.max() == 38


def test_a_trip_too_many_is_told_too(tmp_path):
    trips(tmp_path)
    other = trip(tmp_path, "D1-DROWSY-MOTORWAY").parent
    shutil.copytree(other, other.with_name("20160101000000-9km-D1-DROWSY-MOTORWAY"))
    with pytest.raises(IncompleteDataError, match=r"has 41 trips, .*D1 has 8 of 7"):
        load("driving", tmp_path)


def test_trips_without_any_readings_are_refused_even_in_part(tmp_path):
    (tmp_path / ROOT / "D1" / trip_names()[0]).mkdir(parents=True)
    with pytest.raises(IncompleteDataError, match="has 0 trips, expected 40"):
        load("driving", tmp_path, partial=True)


@pytest.mark.parametrize("partial", [False, True])
def test_an_empty_folder_tells_where_to_get_it_and_where_to_put_it(tmp_path, partial):
    with pytest.raises(MissingDataError, match="get it from the makers") as refused:
        load("driving", tmp_path, partial=partial)
    assert UAH_PAGE in str(refused.value)
    assert f"UAH-DRIVESET-v1 that is in it, into {tmp_path}" in str(refused.value)


def test_a_broken_archive_is_called_so(tmp_path):
    put(tmp_path, {"UAH-DRIVESET-v1.zip": b"PK half"})
    with pytest.raises(DamagedDataError, match="no whole zip archive"):
        load("driving", tmp_path)


def test_a_trip_shorter_than_a_window_is_refused(tmp_path):
    trips(tmp_path)
    trip(tmp_path, "D5-NORMAL-MOTORWAY").write_text(lines(range(119), [50] * 119))
    with pytest.raises(DamagedDataError, match=r"D5-NORMAL-MOTORWAY .*has 119 readings, .*120"):
        load("driving", tmp_path)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"3.0 50.0 1{TAIL}", "found 13 columns, expected 12"),
        ("3.0 50.0 \n", "found 2 columns, expected 12"),
        (f"3.0 fast{TAIL}", "fast.*, expected 12 numbers"),
        (f"3.0 nan{TAIL}", "found the word nan, expected 12 numbers"),
        (f"inf 5.0{TAIL}", "found the word inf"),
        (f"3.0 1_0{TAIL}", "found the word 1_0"),
        (f"3.0 -1.0{TAIL}", "found a speed of -1 km/h, expected 0 or more"),
        (f"3.0 5\xff{TAIL}", "expected 12 numbers"),
    ],
)
def test_a_malformed_row_is_told_by_file_and_line(tmp_path, line, words):
    trips(tmp_path)
    path = trip(tmp_path, "D2-NORMAL1-SECONDARY")
    text = path.read_text().splitlines(keepends=True)
    path.write_bytes("".join([*text[:4], line, *text[4:]]).encode("latin-1"))
    with pytest.raises(DamagedDataError, match=rf"D2-NORMAL1-SECONDARY in .*, line 5: .*{words}"):
        load("driving", tmp_path)


def test_blanks_and_line_ends_do_not_matter():
    plain = lines(range(3), [10, 20, 30])
    odd = plain.replace(" \n", "   \r\n") + " \r\n\n"
    assert (
        driving.parse_gps(odd.encode(), path=Path())
        == driving.parse_gps(plain.encode(), path=Path())
    ).all()


def test_rows_that_repeat_when_the_clock_jumps_back_are_dropped():
    text = lines(range(20), range(40, 60)).splitlines(keepends=True)
    jumped = [*text[:15], *text[6:15], *text[15:]]
    found = driving.parse_gps("".join(jumped).encode(), path=Path())
    assert (found == driving.parse_gps("".join(text).encode(), path=Path())).all()
    assert driving.is_next_second(found[:, 0]).all()


def test_rows_keep_their_order_when_the_clock_starts_again():
    text = lines([7, 8, 9, 0, 1], [50, 51, 52, 53, 54])
    found = driving.parse_gps(text.encode(), path=Path())
    assert found[:, 1].tolist() == [50, 51, 52, 53, 54]
    assert driving.is_next_second(found[:, 0]).tolist() == [True, True, False, True]


def test_equal_readings_at_other_times_are_kept():
    assert len(driving.parse_gps(lines(range(5), [50] * 5).encode(), path=Path())) == 5


@pytest.mark.parametrize(
    ("step", "counts"),
    [
        (0.98, True),
        (1.0, True),
        (1.3, True),
        (2.1, False),
        (10.1, False),
        (0.0, False),
        (-8, False),
    ],
)
def test_only_a_step_of_about_a_second_counts(step, counts):
    assert driving.is_next_second(np.array([30.0, 30.0 + step])).tolist() == [counts]


def test_a_gap_in_a_trip_takes_away_one_transition(tmp_path):
    trips(tmp_path)
    clock = np.arange(120.0)
    clock[60:] += 9.1
    speed = np.where(np.arange(120) < 60, 45.0, 85.0)
    path = trip(tmp_path, "D1-NORMAL-MOTORWAY")
    path.write_text(lines(clock, speed))
    data = load("driving", tmp_path)
    T = data.X[data.origin == 0].reshape(15, 15)
    assert (T[4, 4], T[8, 8], T.sum()) == (1.0, 1.0, 2.0)


def test_a_text_has_twelve_columns_and_ends_in_a_blank():
    text = gps_text([50.0, 60.0], np.random.default_rng(0))
    assert [len(line.split()) for line in text.splitlines()] == [12, 12]
    assert all(line.endswith(" ") for line in text.splitlines())


def test_the_real_one_has_forty_trips():
    folder = os.environ.get("EDGEMERGE_DATA")
    try:
        data = driving.read_all(driving.find(Path(folder or "nowhere")))
    except MissingDataError:
        pytest.skip(NO_DRIVES)
    assert len(np.unique(data.origin)) == 40
