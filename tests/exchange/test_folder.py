"""A shared folder: strangers' files, half copied ones, several processes, no power."""

import errno
import fcntl
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from time import monotonic

import pytest

from edgemerge import Contribution, Projection, Stats, encode, load, save
from edgemerge.core.errors import RejectedError, UnavailableError
from edgemerge.core.ledger import Merged, Selection
from edgemerge.exchange import folder
from edgemerge.exchange.folder import FolderExchange
from edgemerge.exchange.stored_contributions import file_name, safe_name
from edgemerge.wire.codec import MAX_BYTES
from tests.exchange.test_contract import note
from tests.exchange.worlds import SHARED

WISH = Selection(receiver="b")
OTHER = Projection(n_inputs=6, n_hidden=8, seed=8, low=-1.0, high=2.0)
NAME = "a,0,normal.safetensors"
UNSOUND = replace(note("a").stats, U=-note("a").stats.U)


@pytest.fixture
def exchange(tmp_path):
    return FolderExchange(tmp_path, SHARED)


def foreign(path, data):
    path.write_bytes(data)


def huge(path):
    path.write_bytes(b"")
    os.truncate(path, MAX_BYTES + 1)


STRANGERS = {
    "text": lambda path: foreign(path, b"shopping list"),
    "empty": lambda path: foreign(path, b""),
    "half copied": lambda path: foreign(path, encode(note("a"))[:-100]),
    "stats": lambda path: save(note("a").stats, path),
    "unsound": lambda path: foreign(path, encode(Contribution("a", UNSOUND, 1))),
    "another projection": lambda path: save(Contribution("a", Stats.empty(OTHER), 1), path),
    "another's name": lambda path: save(note("c"), path),
    "folder": lambda path: path.mkdir(),
    "pipe": os.mkfifo,
    "far too large": huge,
    "dangling link": lambda path: path.symlink_to("nowhere"),
}


@pytest.mark.slow
@pytest.mark.parametrize("make", STRANGERS.values(), ids=STRANGERS)
def test_what_is_no_contribution_is_left_alone_and_named_once(make, exchange, tmp_path, caplog):
    exchange.push(note("d"))
    make(tmp_path / NAME)
    for _ in range(3):
        assert exchange.pull(WISH).total == note("d").stats
    named = [record.values["name"] for record in caplog.records]
    assert named == ([] if (tmp_path / NAME).is_symlink() else [NAME])


def test_a_copy_under_another_name_does_not_count_twice(exchange, tmp_path):
    exchange.push(note("a"))
    (tmp_path / "a,0,normal (copy).safetensors").write_bytes((tmp_path / NAME).read_bytes())
    assert exchange.pull(WISH).total == note("a").stats


def test_ones_own_half_written_file_is_replaced(exchange, tmp_path):
    foreign(tmp_path / NAME, encode(note("a", 9))[:-1])
    assert exchange.push(note("a", 1)) is True
    assert load(tmp_path / NAME) == note("a", 1)


def test_what_a_power_cut_left_is_swept_away_by_its_owner_only(exchange, tmp_path):
    for name in (f".{NAME}.abcd1234", ".c,0,normal.safetensors.abcd1234", ".hidden"):
        (tmp_path / name).write_bytes(b"half")
    assert exchange.pull(WISH) == Merged(SHARED)
    exchange.push(note("a"))
    found = sorted(path.name for path in tmp_path.iterdir())
    assert found == [".c,0,normal.safetensors.abcd1234", ".hidden", NAME]


@pytest.mark.parametrize("mode", [0o700, 0o775, 0o755])
def test_a_file_can_be_read_by_whoever_may_read_the_folder(mode, exchange, tmp_path):
    tmp_path.chmod(mode)
    exchange.push(note("a"))
    assert stat.S_IMODE((tmp_path / NAME).stat().st_mode) == mode & 0o666


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.EIO])
def test_a_file_system_that_cannot_sync_a_folder_will_do(number, exchange, monkeypatch):
    sync = os.fsync

    def only_files(handle):
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(number, os.strerror(number))
        sync(handle)

    monkeypatch.setattr(os, "fsync", only_files)
    if number == errno.EIO:  # but a broken one will not
        with pytest.raises(UnavailableError, match="cannot be reached"):
            exchange.push(note("a"))
    else:
        assert exchange.push(note("a")) is True
        assert exchange.pull(WISH).total == note("a").stats


def test_a_full_stick_is_said_to_be_and_keeps_what_it_held(exchange, tmp_path, monkeypatch):
    exchange.push(note("a", 1))

    def full(_handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UnavailableError, match="No space left"):
        exchange.push(note("a", 2))
    assert [path.name for path in tmp_path.iterdir()] == [NAME]
    assert exchange.pull(WISH).total == note("a").stats


def test_a_file_in_the_place_of_the_folder_is_no_folder(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    there = FolderExchange(tmp_path / "file", SHARED)
    for call in (lambda: there.push(note("a")), lambda: there.pull(WISH)):
        with pytest.raises(UnavailableError, match=r"file\) cannot be reached: Not a directory"):
            call()


def test_too_many_files_are_not_read(exchange, monkeypatch):
    monkeypatch.setattr(folder, "MAX_FILES", 2)
    for device in "acd":
        exchange.push(note(device))
    with pytest.raises(RejectedError, match="found 3 contributions, expected at most 2"):
        exchange.pull(WISH)


def test_who_cannot_write_now_is_told_so_in_time(tmp_path):
    held = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        start = monotonic()
        with pytest.raises(UnavailableError, match="written by another process"):
            FolderExchange(tmp_path, SHARED, timeout_s=0.1).push(note("a"))
        assert monotonic() - start < 5.0
        assert FolderExchange(tmp_path, SHARED).pull(WISH) == Merged(SHARED)
    finally:
        os.close(held)


PUSHING = """
import sys
from contextlib import suppress
from edgemerge import load
from edgemerge.core.errors import StaleError
from edgemerge.exchange.folder import FolderExchange

where, *files = sys.argv[1:]
notes = [load(file) for file in files]
exchange = FolderExchange(where, notes[0].stats.projection, timeout_s=60)
print("ready", flush=True)
sys.stdin.readline()
for note in notes:
    with suppress(StaleError):
        exchange.push(note)
"""


@pytest.mark.slow
def test_processes_that_push_at_once_do_no_harm(exchange, tmp_path, tmp_path_factory):
    """The newest stays, though all write under one name; without the lock, an older one may."""
    files, outside = [], tmp_path_factory.mktemp("notes")
    for revision in range(1, 31):
        files.append(outside / str(revision))
        save(note("a", revision, seed=revision), files[-1])
    ran = [
        subprocess.Popen(
            [sys.executable, "-c", PUSHING, tmp_path, *files[start::3]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for start in range(3)
    ]
    try:
        for process in ran:
            assert process.stdout.readline() == "ready\n"
        for process in ran:
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in ran:
            process.communicate(timeout=60)
    finally:
        for process in ran:
            process.kill()
            process.wait()
    assert [process.returncode for process in ran] == [0, 0, 0]
    assert exchange.pull(WISH).origins[0].revision == 30
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


NAMES = ["a", "A", "å", "..", ".", "a/b", "con", "a b", "a.", "%41", "~", "x" * 48, "x" * 49]


def test_file_names_are_safe_on_every_file_system():
    longest = ["x" * 200, "X" * 200, "泵" * 200, "泵" * 199 + "a"]
    made = [safe_name(name) for name in (*NAMES, *longest)]
    assert len({name.lower() for name in made}) == len(made)
    for name in made:
        assert name == name.lower()
        assert not set(name) & set('./\\:*?"<>|+# ')
    key = ("泵" * 200, 2**63 - 1, "泵" * 200)
    assert len(f".{file_name(key)}.12345678") <= 143  # the least that file systems allow


def test_a_stick_carries_sums_from_one_device_to_the_next(tmp_path):
    """Two folders and a stick: what was copied by hand is the same."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    FolderExchange(here, SHARED).push(note("a"))
    for path in here.iterdir():
        Path(there / path.name.upper()).write_bytes(path.read_bytes())  # by an old system
    (there / NAME.upper()).rename(there / (NAME.upper()[: -len(".safetensors")] + ".safetensors"))
    assert FolderExchange(there, SHARED).pull(WISH).total == note("a").stats
