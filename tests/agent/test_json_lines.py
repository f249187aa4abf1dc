"""JSON lines to a pipe: a slow reader gets everything, one that stalls holds nothing up."""

import errno
import json
import os
import re
import select
import signal
import subprocess
import sys
from threading import Event, Timer
from time import sleep

import pytest

from edgemerge.agent.sinks import BackgroundWriter
from edgemerge.agent.state import state_from_bytes
from tests.agent.agents import configured, stream, write_rows
from tests.cli.calls import clean_environment
from tests.waiting import DEADLINE_S, until

AS_USUAL = {"PYTHONUNBUFFERED": ""}
MANY = 20_000
TALK = """
import os
import sys
from pathlib import Path
from edgemerge.agent.judge import Verdict
from edgemerge.agent.sinks import JsonLinesSink
from edgemerge.daemon import TextFormatter, log_to_stderr
log_to_stderr("info", form=TextFormatter)
print("before")
if "impatient" in sys.argv:  # as others may make a pipe that they share
    os.set_blocking(1, False)
sink = JsonLinesSink(Path("-"))
def tell(start, count):
    for index in range(start, start + count):
        sink.verdict(Verdict("pump-3", index, 0.0, 1.0, 4.0, False))
    sys.stderr.write("told\\n")
    sys.stderr.flush()
tell(0, MANY)
if sys.stdin.readline():
    tell(MANY, 10)
sink.close()
""".replace("MANY", str(MANY))
NOBODY = "results are not read: dropping them until they are"


class Talk:
    """A process that tells verdicts through a pipe, which we read as we like."""

    def __init__(self, *words, **options):
        options = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE) | options
        words = (sys.executable, *map(str, words))
        self.process = subprocess.Popen(words, env=clean_environment(**AS_USUAL), **options)

    def __enter__(self):
        self.timer = Timer(DEADLINE_S, self.process.kill)  # or we wait for what it says
        self.timer.start()
        return self

    def __exit__(self, *_error):
        self.timer.cancel()
        self.process.kill()
        self.process.communicate()

    def log(self, words):
        """Read what is logged, up to a line with these words."""
        while words not in (line := self.process.stderr.readline().decode()):
            assert line, f"it ended before it said {words!r}"
        return line

    def read(self, quiet_s=DEADLINE_S, pause_s=0.0):
        """Read until the pipe is closed, or nothing has come for a while."""
        told, pipe = b"", self.process.stdout.fileno()
        while select.select([pipe], [], [], quiet_s)[0] and (part := os.read(pipe, 65536)):
            told += part
            sleep(pause_s)
        return told


def indices(told):
    """The numbers of the verdicts: each line must be whole."""
    return [json.loads(line)["index"] for line in told.splitlines()]


class Reader:
    """Takes some bytes of what it is given, after a while."""

    def __init__(self, pause_s=0.0, most=4096):
        self.pause_s, self.most = pause_s, most
        self.told, self.errors = b"", []

    def take(self, piece):
        sleep(self.pause_s)
        self.told += bytes(piece[: self.most])
        return min(len(piece), self.most)


@pytest.mark.slow
def test_a_reader_who_takes_a_little_at_a_time_is_waited_for(monkeypatch):
    monkeypatch.setattr("edgemerge.agent.sinks.STALL_TIMEOUT_S", 0.2)
    reader = Reader(pause_s=0.01, most=1000)  # a second for all that may wait
    outlet = BackgroundWriter(reader.take, reader.errors.append)
    lines = [f"{index:0100}\n".encode() for index in range(2500)]
    for line in lines:
        outlet.put(line)
    assert outlet.close()
    assert (reader.told, outlet.left_out) == (b"".join(lines), 0)


@pytest.mark.slow
def test_whether_all_has_left_is_said():
    reader, taken = Reader(), Event()
    outlet = BackgroundWriter(
        lambda piece: taken.wait() and reader.take(piece), reader.errors.append
    )
    outlet.put(b"line\n")
    assert not outlet.close()
    taken.set()
    assert outlet.close()
    assert reader.told == b"line\n"


def test_a_line_that_fails_does_not_keep_the_next_from_leaving():
    reader = Reader()

    def failing_at_first(piece):
        if not reader.errors:
            raise OSError(errno.EIO, "broken")
        return reader.take(piece)

    outlet = BackgroundWriter(failing_at_first, reader.errors.append)
    outlet.put(b"lost\n")
    until(lambda: reader.errors)
    outlet.put(b"kept\n")
    assert outlet.close()
    assert [error.errno for error in reader.errors] == [errno.EIO]
    assert reader.told == b"kept\n"


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("impatient",)])
def test_a_slow_reader_gets_every_line_in_order_after_what_was_said_before(words):
    with Talk("-c", TALK, *words, stdin=subprocess.DEVNULL) as talk:
        first, told = talk.read(pause_s=0.05).split(b"\n", 1)
        assert talk.process.wait(DEADLINE_S) == 0
        assert talk.process.stderr.read() == b"told\n"
    assert first == b"before"
    assert indices(told) == list(range(MANY))


@pytest.mark.long
@pytest.mark.slow
def test_a_reader_who_sleeps_loses_lines_that_are_counted_and_hears_of_the_next():
    with Talk("-c", TALK) as talk:
        talk.log(NOBODY)
        talk.log("told")  # it was not held up
        told = talk.read(quiet_s=1.0).removeprefix(b"before\n")
        talk.process.stdin.write(b"go on\n")
        talk.process.stdin.flush()
        lost = int(re.search(r"read again.*lost=(\d+)", talk.log("read again")).group(1))
        found = indices(told + talk.read())
        assert talk.process.wait(DEADLINE_S) == 0
    assert found == [*range(MANY - lost), *range(MANY, MANY + 10)]
    assert 0 < lost < MANY


@pytest.mark.long
@pytest.mark.slow
def test_when_nobody_reads_the_end_comes_all_the_same():
    with Talk("-c", TALK, stdin=subprocess.DEVNULL) as talk:
        _, log = talk.log(NOBODY), talk.process.stderr.read()
        assert talk.process.wait(DEADLINE_S) == 0
        found = indices(talk.read().removeprefix(b"before\n").rpartition(b"\n")[0])
    told, end = log.decode().splitlines()
    assert told == "told"
    lost = int(re.search(r"the last results were not read.*at_least=(\d+)", end).group(1))
    assert MANY - 2500 < lost < MANY - len(found)  # a pipe and a batch hold so many
    assert found == list(range(len(found)))
    assert len(found) > 100


@pytest.mark.slow
def test_standard_output_that_was_closed_from_the_start_is_no_trouble():
    words = ("sh", "-c", 'exec "$0" -c "$1" >&-', sys.executable, TALK)
    told = subprocess.run(
        words, env=clean_environment(), stdin=subprocess.DEVNULL, capture_output=True, check=True
    )
    assert (told.stdout, told.stderr) == (b"", b"told\n")


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csv", "tail"])
def test_an_agent_whom_nobody_reads_learns_everything_and_ends(tmp_path, kind):
    write_rows(tmp_path / "pump-1.csv", stream(5000))
    config = configured(tmp_path)
    with (tmp_path / "pump-1.toml").open("a") as file:
        file.write('[[sinks]]\nkind = "jsonl"\npath = "-"\n')
    words = ("agent", "pump-1.toml", "--set", f"source.kind={kind}", "--set", "save.every=5000")
    with Talk("-m", "edgemerge", *words, cwd=tmp_path) as talk:
        talk.log(NOBODY)
        if kind == "tail":  # it would go on for ever
            until(lambda: saved(config).index == 5000)
            talk.process.send_signal(signal.SIGTERM)
        assert talk.process.wait(DEADLINE_S) == 0
        assert b"Traceback" not in talk.process.stderr.read()
    assert saved(config).index == 5000


def saved(config):
    return state_from_bytes((config.state / "agent.state").read_bytes())
