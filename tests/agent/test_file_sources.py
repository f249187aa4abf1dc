"""Sources that read files: every row once, whatever happens to the file."""

import json
import os
import shutil
from itertools import islice
from threading import Event, Thread
from time import monotonic

import pytest

from edgemerge.agent.rows import CsvRows, JsonRows
from edgemerge.agent.sources import FileSource, TailSource
from edgemerge.core.errors import SettingError
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.slow


def table(rows, start=0):
    return "".join(f"{start + i},{(start + i) / 7!r}\n" for i in range(rows))


def firsts(readings):
    return [int(reading.values[0]) for reading in readings]


def all_of(source, position=None):
    return list(source.read(Event(), position))


BAD = "oops\n1,2,3\n,\nnan,1\n\n"


@pytest.mark.parametrize("kind", ["header", "plain", "crlf", "bad", "open end", "json"])
@pytest.mark.parametrize("source", [FileSource, TailSource])
def test_going_on_at_every_row_gives_each_row_once(tmp_path, kind, source):
    path = tmp_path / "data"
    text = table(40)
    if kind == "header":
        text = "n,value\n" + text
    if kind == "crlf":
        text = text.replace("\n", "\r\n")
    if kind == "bad":
        text = table(10) + BAD + table(20, start=10) + BAD + table(10, start=30)
    if kind == "json":
        text = "".join(json.dumps({"n": i, "v": i / 7}) + "\n" for i in range(40))
    path.write_text(text.rstrip("\n") if kind == "open end" and source is FileSource else text)

    def make():
        return source(path, JsonRows(width=2) if kind == "json" else CsvRows(width=2))

    whole = list(islice(make().read(Event()), 40))
    assert firsts(whole) == list(range(40))
    for i, reading in enumerate(whole):
        position = json.loads(json.dumps(reading.position))
        again = list(islice(make().read(Event(), position), 40 - i - 1))
        assert [x.values.tobytes() for x in again] == [x.values.tobytes() for x in whole[i + 1 :]]


def test_a_file_ends_and_counts_what_it_skipped(tmp_path):
    path = tmp_path / "data.csv"
    path.write_bytes(b"n,v\n0,1\n\xff\xfe,2\nx,3\n1,4\n" + b"9" * 500 + b"\n2,5\n")
    source = FileSource(path, CsvRows(), longest=100)
    assert firsts(all_of(source)) == [0, 1, 2]
    assert source.skipped == 3


def test_a_missing_file_is_refused_with_its_name(tmp_path):
    with pytest.raises(SettingError, match=r"gone\.csv: No such file"):
        all_of(FileSource(tmp_path / "gone.csv", CsvRows()))


def test_a_copy_of_the_file_goes_on_and_another_begins_anew(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text(table(200))
    position = all_of(FileSource(path, CsvRows()))[149].position
    copy = tmp_path / "copy.csv"
    shutil.copy(path, copy)
    assert firsts(all_of(FileSource(copy, CsvRows()), position)) == list(range(150, 200))
    copy.write_text(table(300, start=1000))
    assert firsts(all_of(FileSource(copy, CsvRows()), position)) == list(range(1000, 1300))
    copy.write_text(table(100))  # begins alike, but ends before the position
    assert firsts(all_of(FileSource(copy, CsvRows()), position)) == list(range(100))


def test_stop_ends_reading_soon(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text(table(1000))
    stop = Event()
    readings = FileSource(path, CsvRows()).read(stop)
    next(readings)
    stop.set()
    assert list(readings) == []


# a growing file


class Following:
    """A tail in a thread, and what it has read."""

    def __init__(self, path, form=None, position=None, **options):
        self.source = TailSource(path, form or CsvRows(), **options)
        self.stop, self.found = Event(), []
        self.thread = Thread(target=self.run, args=(position,))
        self.thread.start()

    def run(self, position):
        for reading in self.source.read(self.stop, position):
            self.found.append(reading)

    def until(self, done, what="rows"):
        end = monotonic() + DEADLINE_S
        while not done():
            assert monotonic() < end, f"no {what} after {DEADLINE_S} s: {firsts(self.found)}"
            self.stop.wait(0.01)

    def until_rows(self, count):
        self.until(lambda: len(self.found) >= count)
        return firsts(self.found)

    def end(self):
        self.stop.set()
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive()
        return firsts(self.found)


@pytest.fixture
def following():
    started = []

    def start(*args, **options):
        started.append(Following(*args, **options))
        return started[-1]

    yield start
    for each in started:
        each.end()


def add(path, text):
    with path.open("a") as file:
        file.write(text)


def test_a_growing_file_is_followed_and_half_lines_wait(tmp_path, following):
    path = tmp_path / "data.csv"
    tail = following(path)
    path.write_text("n,v\n" + table(3))
    assert tail.until_rows(3) == [0, 1, 2]
    add(path, "3,0.5\n4,1")
    tail.until_rows(4)
    add(path, "2.5\n5,0\n")
    tail.until_rows(6)
    assert tail.found[4].values.tolist() == [4.0, 12.5]
    assert tail.end() == [0, 1, 2, 3, 4, 5]


def test_a_rotated_file_is_read_to_its_end_first(tmp_path, following):
    path = tmp_path / "data.csv"
    path.write_text("n,v\n" + table(3))
    tail = following(path, CsvRows(["n"]))
    tail.until_rows(3)
    writer = path.open("a")  # as a program that has not noticed yet
    path.rename(tmp_path / "data.csv.1")
    writer.write(table(2, start=3) + "5,")
    writer.close()
    path.write_text("v,n\n" + "0.5,5\n0.5,6\n")
    assert tail.until_rows(7) == list(range(7))
    assert tail.source.skipped == 1  # the half line


def test_a_rotated_file_without_header_keeps_the_names(tmp_path, following):
    path = tmp_path / "data.csv"
    path.write_text("n,v\n" + table(3))
    tail = following(path, CsvRows(["n"]))
    tail.until_rows(3)
    path.rename(tmp_path / "data.csv.1")
    path.write_text(table(3, start=3))
    assert tail.until_rows(6) == list(range(6))
    again = following(path, CsvRows(["n"]), tail.found[3].position)
    assert again.until_rows(2) == [4, 5]


def test_a_cut_file_is_read_from_its_start(tmp_path, following):
    path = tmp_path / "data.csv"
    path.write_text(table(5))
    tail = following(path)
    tail.until_rows(5)
    os.truncate(path, 0)
    add(path, table(2, start=5))
    assert tail.until_rows(7) == list(range(7))


def test_a_file_that_was_cut_in_its_middle_is_read_from_its_start(tmp_path, following):
    path = tmp_path / "data.csv"
    path.write_text(table(100))
    tail = following(path)
    tail.until_rows(100)
    path.write_text(table(50))  # its head is as before
    assert tail.until_rows(150) == [*range(100), *range(50)]


def test_a_file_that_was_cut_and_has_grown_past_where_we_were_is_noticed(tmp_path, following):
    path = tmp_path / "data.csv"
    path.write_text(table(5))
    tail = following(path)
    tail.until_rows(5)
    path.write_text(table(20, start=5))  # the same inode, longer than before, other bytes
    assert tail.until_rows(25) == list(range(25))


def test_rotation_while_away_loses_nothing(tmp_path, following):
    path = tmp_path / "data.csv"
    path.write_text("n,v\n" + table(6))
    first = following(path)
    first.until_rows(6)
    position = json.loads(json.dumps(first.found[3].position))
    first.end()
    add(path, table(2, start=6))
    path.rename(tmp_path / "data.csv.1")
    path.write_text("n,v\n" + table(3, start=8))
    assert following(path, position=position).until_rows(7) == list(range(4, 11))


def test_another_file_while_away_begins_anew(tmp_path, following):
    path = tmp_path / "data.csv"
    path.write_text(table(100))
    first = following(path)
    first.until_rows(100)
    position = first.found[-1].position
    first.end()
    path.unlink()
    waiting = following(path, position=position)
    (tmp_path / "new").write_text(table(150, start=500))
    (tmp_path / "new").rename(path)
    assert waiting.until_rows(150) == list(range(500, 650))


def test_starting_at_the_end_leaves_out_what_is_there_but_for_the_header(tmp_path, following):
    path = tmp_path / "data.csv"
    path.write_text("v,n\n" + "0.5,0\n" * 50 + "0.5,")
    tail = following(path, CsvRows(["n"]), at_end=True)
    tail.until(lambda: tail.source._reader.form.header is not None, "header")
    add(path, "7\n0.5,8\n")
    assert tail.until_rows(2) == [7, 8]


def test_rows_written_in_pieces_by_a_busy_program_arrive_once(tmp_path, following):
    path = tmp_path / "data.csv"
    tail = following(path)
    text = table(2000).encode()
    with path.open("wb", buffering=0) as file:
        for i in range(0, len(text), 777):
            file.write(text[i : i + 777])
    assert tail.until_rows(2000) == list(range(2000))
