"""Sinks: what they say, and that trouble outside never stops the one who speaks."""

import errno
import json
import os
import resource
import subprocess
import sys
from math import isfinite, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgemerge.agent.judge import Verdict
from edgemerge.agent.sinks import (
    JsonLinesSink,
    RotatingFileSink,
    verdict_to_dict,
)
from edgemerge.files import DiskQueue, to_json_line
from tests.agent.listening import said
from tests.cases import examples
from tests.waiting import DEADLINE_S

KEYS = ["device", "index", "at", "score", "limit", "alarm", "pattern", "why"]
KEYS += ["ready", "level", "episode"]


# what is said


def test_a_verdict_is_one_object_with_short_numbers():
    found = json.loads(to_json_line(verdict_to_dict(said(7, alarm=True, score=12.3456789))))
    assert list(found) == KEYS
    assert found["score"] == 12.3457
    assert found["why"] == ["x"]


@given(st.floats(), st.floats())
def test_what_json_has_no_word_for_is_null(score, limit):
    found = json.loads(to_json_line(verdict_to_dict(Verdict("a", 0, 0.0, score, limit, False))))
    for told, meant in ((found["score"], score), (found["limit"], limit)):
        if not isfinite(meant):
            assert told is None
        else:
            assert told == pytest.approx(meant, rel=1e-5, abs=5e-324)
    assert verdict_to_dict(Verdict("a", 0, nan, 1.0, 1.0, False))["at"] is None


# files


def test_json_lines_are_flushed_one_by_one_and_added_to(tmp_path):
    path = tmp_path / "new" / "out.jsonl"
    for start in (0, 2):
        sink = JsonLinesSink(path)
        for index in (start, start + 1):
            sink.verdict(said(index))
            assert json.loads(path.read_text().splitlines()[-1])["index"] == index
        sink.status({"anything": 1})
        sink.close()
    assert len(path.read_text().splitlines()) == 4


TALK = """
import sys
from pathlib import Path
from edgemerge.agent.judge import Verdict
from edgemerge.agent.sinks import JsonLinesSink
sink = JsonLinesSink(Path("-"))
for index in range(20_000):
    sink.verdict(Verdict("pump-3", index, 0.0, 1.0, 4.0, False))
sink.close()
print("and whatever else is said there later")
print(index, file=sys.stderr)
"""


@pytest.mark.slow
def test_a_closed_pipe_ends_nothing():
    talk = subprocess.Popen(
        [sys.executable, "-c", TALK], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert json.loads(talk.stdout.readline())["index"] == 0
    talk.stdout.close()
    told = talk.stderr.read()
    talk.stderr.close()
    assert (talk.wait(DEADLINE_S), told) == (0, "19999\n")


class Full:
    """A disk without room, behind an open file."""

    def __init__(self, file):
        self.file = file

    def __getattr__(self, name):
        return getattr(self.file, name)

    def write(self, _data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("kind", [JsonLinesSink, RotatingFileSink])
def test_a_full_disk_is_told_once_and_stops_nothing(tmp_path, kind, caplog):
    sink = kind(tmp_path / "out.jsonl")
    file = sink._file
    sink._file = Full(file)
    for index in range(3):
        sink.verdict(said(index))
    sink._file = file
    sink.verdict(said(3))
    sink.close()
    assert sink.failed == 3
    assert [record.values["why"] for record in caplog.records] == [os.strerror(errno.ENOSPC)]
    assert json.loads((tmp_path / "out.jsonl").read_text())["index"] == 3


@pytest.mark.parametrize("kind", [JsonLinesSink, RotatingFileSink])
def test_a_line_that_a_loss_of_power_has_cut_off_does_not_spoil_the_next(tmp_path, kind):
    path = tmp_path / "out.jsonl"
    path.write_text('{"index": 0}\n{"ind')
    sink = kind(path)
    sink.verdict(said(1))
    sink.close()
    *before, last = path.read_text().splitlines()
    assert before == ['{"index": 0}', '{"ind']
    assert json.loads(last)["index"] == 1


class NearlyFull(Full):
    """A disk with room for a few bytes."""

    def write(self, data):
        return self.file.write(data[:9])


def test_a_line_that_a_full_disk_has_cut_off_does_not_spoil_the_next(tmp_path):
    path = tmp_path / "out.jsonl"
    sink: Any = RotatingFileSink(path)
    sink._file = NearlyFull(sink._file)
    for index in range(2):
        sink.verdict(said(index))
    sink.close()
    first, last = path.read_text().splitlines()
    assert len(first) == 9
    assert json.loads(last)["index"] == 1
    assert sink.failed == 1


@pytest.mark.parametrize("keep", [0, 1, 3])
def test_a_file_is_changed_before_it_is_too_large(tmp_path, keep):
    path = tmp_path / "out.jsonl"
    sink = RotatingFileSink(path, largest=1000, keep=keep)
    for index in range(100):
        if index == 50:  # and after a restart
            sink.close()
            sink = RotatingFileSink(path, largest=1000, keep=keep)
        sink.verdict(said(index))
    sink.close()
    files = [*(tmp_path / f"out.jsonl.{i}" for i in range(keep, 0, -1)), path]
    assert set(tmp_path.iterdir()) == set(files)
    assert all(0 < file.stat().st_size <= 1000 for file in files)
    lines = [json.loads(line)["index"] for file in files for line in file.read_text().splitlines()]
    assert lines == list(range(100 - len(lines), 100))


# the spool


def test_a_message_that_a_full_disk_has_cut_off_does_not_spoil_the_next(tmp_path):
    path = tmp_path / "alarms"
    spool = DiskQueue(path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5, before[1]))
    try:
        spool.add("first")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.stat().st_size == 5
    spool.add("second")
    assert [*DiskQueue(path)._waiting] == ["first", "second"]


@examples(30)  # each writes files, and waits for the disk
@given(st.lists(st.one_of(st.none(), st.text(max_size=5), st.just(...)), max_size=40))
def test_the_spool_is_a_ring_that_survives(tmp_path_factory, steps):
    """A text is added, None sends the first, ... starts again from the file."""
    path = tmp_path_factory.mktemp("spool") / "alarms"
    spool, expected = DiskQueue(path, room=4), []
    for step in steps:
        if step is ...:
            again = DiskQueue(path, room=4)
            kept = [again._waiting[i] for i in range(len(again))]
            assert kept[len(kept) - len(expected) :] == expected  # some may be sent twice
            spool, expected = again, kept
        elif step is None:
            first = spool.first()
            assert first == (expected[0] if expected else None)
            if first is not None:
                spool.done(first)
                expected = expected[1:]
        else:
            spool.add(step)
            expected = [*expected, step][-4:]
        assert len(spool) == len(expected)
        assert path.stat().st_size < 4 * 2 * 100


def test_the_file_of_the_spool_does_not_grow_for_ever(tmp_path):
    spool = DiskQueue(tmp_path / "alarms", room=4)
    for number in range(100):
        spool.add(str(number))
        assert len((tmp_path / "alarms").read_text().splitlines()) <= 8
    assert (spool.first(), spool.dropped) == ("96", 96)


def test_a_message_that_a_kill_cut_off_is_left_out(tmp_path):
    path = tmp_path / "alarms"
    spool = DiskQueue(path)
    spool.add("one")
    spool.add("two")
    path.write_bytes(path.read_bytes()[:-3])
    assert DiskQueue(path).first() == "one"
    path.write_bytes(b"\xff\xfe{}\n[1]\n")
    assert DiskQueue(path).first() is None
