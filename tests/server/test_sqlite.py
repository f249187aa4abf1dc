"""What only SQLite does: its file on a full disk, damaged, of another program, opened twice."""

import os
import random
import sqlite3
import stat
from contextlib import closing, suppress
from threading import Event, Thread

import pytest

from edgemerge.core.errors import FormatError, SettingError
from edgemerge.server.db import sqlite
from edgemerge.server.db.base import DatabaseDamagedError, DiskFullError
from edgemerge.server.db.migrations import SQLITE, connect, migrate
from edgemerge.server.db.sqlite import SqliteDatabase
from tests.server.test_database import KEEP, written_until_full
from tests.services.disk import MIB, fill, small_disk


@pytest.fixture
def path(tmp_path):
    return tmp_path / "fleets.db"


def filled(path, rows):
    """A closed database with so many blobs in it; give them."""
    chance = random.Random(3)
    blobs = [chance.randbytes(100_000) for _ in range(rows)]
    database = connect(path)
    with database.writing() as tx:
        for blob in blobs:
            tx.run(KEEP, blob)
    database.close()
    return blobs


def blobs_of(database):
    with database.reading() as tx:
        return [data for (data,) in tx.rows("select data from bodies order by id")]


@pytest.mark.slow
@pytest.mark.parametrize("together", [1, 20])
def test_on_a_full_disk_nothing_is_lost_and_dropping_works_after_making_room(tmp_path, together):
    blob = random.Random(5).randbytes(640_000)
    with small_disk(tmp_path / "disk", 60 * MIB) as folder:
        database = SqliteDatabase(folder / "fleets.db")
        migrate(database, SQLITE)
        kept = written_until_full(database, blob, together=together)
        fill(folder)
        kept += written_until_full(database, blob)  # the log has the room of what did not fit
        with (
            pytest.raises(DiskFullError, match=r"free some space.*, or drop devices"),
            database.writing() as tx,
        ):
            tx.run(KEEP, blob)
        assert blobs_of(database) == [blob] * kept
        database.make_room()
        with database.writing() as tx:
            assert tx.run("delete from bodies where id > 5") == kept - 5
        with database.writing() as tx:
            tx.run(KEEP, blob)  # there is room again, in the file itself
        assert blobs_of(database) == [blob] * 6
        assert database.restore_reserve()
        assert (folder / "fleets.db.reserve").stat().st_blocks * 512 >= 8 * MIB
        database.close()


def test_on_a_full_disk_even_dropping_needs_the_reserve(tmp_path):
    with small_disk(tmp_path / "disk", 40 * MIB) as folder:
        filled(folder / "fleets.db", 100)
        database = connect(folder / "fleets.db")
        fill(folder)
        with pytest.raises(DiskFullError, match="drop devices"), database.writing() as tx:
            tx.run("delete from bodies where id > 5")
        database.make_room()
        with database.writing() as tx:
            assert tx.run("delete from bodies where id > 5") == 95
        database.close()


def test_on_a_full_disk_the_database_opens_and_devices_can_be_dropped(tmp_path):
    with small_disk(tmp_path / "disk", 40 * MIB) as folder:
        blobs = filled(folder / "fleets.db", 20)
        fill(folder)
        database = connect(folder / "fleets.db")
        assert blobs_of(database) == blobs
        with database.writing() as tx:
            assert tx.run("delete from bodies where id > 5") == 15
        database.close()


def fits(database, blob, times=1):
    """Whether a change with so many blobs fits on the disk; made as often as asked."""
    try:
        with database.writing() as tx:
            for _ in range(times):
                tx.run(KEEP, blob)
    except DiskFullError:
        return False
    return True


def test_a_log_that_filled_the_disk_beside_a_reader_is_emptied_when_a_change_fails(tmp_path):
    blob = random.Random(5).randbytes(640_000)
    with small_disk(tmp_path / "disk", 40 * MIB) as folder:
        database = SqliteDatabase(folder / "fleets.db")
        migrate(database, SQLITE)
        with database.reading():  # the log cannot begin anew
            written_until_full(database, blob)
        fill(folder)
        with suppress(DiskFullError), database.writing() as tx:  # nobody reads any more
            tx.run("delete from bodies where id > 5")
        with database.writing() as tx:
            tx.run("delete from bodies where id > 4")
        assert all(fits(database, blob) for _ in range(5))
        database.close()


def test_on_a_full_disk_free_pages_of_the_file_become_room_for_the_log(tmp_path):
    blob = random.Random(5).randbytes(640_000)
    with small_disk(tmp_path / "disk", 40 * MIB) as folder:
        filled(folder / "fleets.db", 80)
        database = SqliteDatabase(folder / "fleets.db")
        with database.writing() as tx:
            tx.run("delete from bodies where id > 5")
        fill(folder)
        assert not fits(database, blob, 5)
        assert any(fits(database, blob, 5) for _ in range(3))
        database.close()


def test_making_a_database_on_a_full_disk_says_so(tmp_path):
    with small_disk(tmp_path / "disk", MIB) as folder:
        fill(folder)
        with pytest.raises(DiskFullError, match="free some space"):
            connect(folder / "fleets.db")


def test_a_small_disk_has_no_reserve_that_would_fill_it(tmp_path):
    with small_disk(tmp_path / "disk", 12 * MIB) as folder:
        filled(folder / "fleets.db", 1)
        assert not (folder / "fleets.db.reserve").exists()


@pytest.mark.slow
@pytest.mark.parametrize("part", [0.999, 0.9, 0.5, 0.1, 0.001, 0.0])
def test_a_truncated_file_is_refused_with_words(path, part):
    filled(path, 20)
    os.truncate(path, int(path.stat().st_size * part))
    with pytest.raises(DatabaseDamagedError, match="restore it from a backup"):
        connect(path)


@pytest.mark.slow
def test_a_flipped_bit_is_refused_or_harms_nothing_but_a_blob(path):
    """SQLite has no checksums: inside a blob only the digest of a contribution can tell."""
    blobs = filled(path, 4)
    database = connect(path)
    with database.writing() as tx:
        tx.run("insert into links values ('hash', 'ops', 1.5, null)")
    database.close()
    original, chance, refused = path.read_bytes(), random.Random(11), 0
    heads = range(0, len(original), 16384)  # where a page says what it is
    places = [*range(100), *heads, *(chance.randrange(len(original)) for _ in range(200))]
    for place in places:
        damaged = bytearray(original)
        damaged[place] ^= 1 << chance.randrange(8)
        for beside in path.parent.glob("fleets.db*"):
            beside.unlink()
        path.write_bytes(damaged)
        path.chmod(0o600)
        refused += is_refused(path, blobs)
    assert 40 < refused < len(places)


def is_refused(path, blobs):
    """Open it and read everything; give whether our errors say that something is wrong."""
    try:
        database = connect(path)
    except (DatabaseDamagedError, FormatError, SettingError, DiskFullError):
        return True
    try:
        found = blobs_of(database)
        with database.reading() as tx:
            tx.rows("select * from links")
    except DatabaseDamagedError:
        return True
    finally:
        database.close()
    assert len(found) == len(blobs)
    return False


def test_damage_is_found_at_opening_even_where_nobody_reads_yet(path):
    filled(path, 1)
    with closing(sqlite3.connect(path)) as other:
        ((page,),) = other.execute("select rootpage from sqlite_schema where name = 'audit'")
    with path.open("r+b") as file:
        file.seek((page - 1) * 16384)
        file.write(b"\0")
    with pytest.raises(DatabaseDamagedError, match=r"restore it from a backup, with fleets.db-wal"):
        connect(path)


def test_a_file_that_is_no_database_is_refused_and_stays_as_it_was(path):
    path.write_text("remember the milk\n" * 100)
    path.chmod(0o644)
    with pytest.raises(SettingError, match=r"no database of edgemerge .*name another file"):
        connect(path)
    assert path.read_text() == "remember the milk\n" * 100
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(path.parent.iterdir()) == [path]


def test_a_database_of_another_program_is_refused_and_stays_as_it_was(path):
    with closing(sqlite3.connect(path)) as other:
        other.execute("create table notes (words text)")
    path.chmod(0o644)
    before = path.read_bytes()
    with pytest.raises(FormatError, match=r"of another program .*give another name"):
        connect(path)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (before, 0o644)
    assert list(path.parent.iterdir()) == [path]


def test_a_second_server_is_refused_until_the_first_has_closed(path):
    first = connect(path)
    link = path.with_name("link.db")
    link.symlink_to(path)
    for name in (path, link):
        with pytest.raises(SettingError, match="in use by another server: stop that one first"):
            connect(name)
    first.close()
    connect(path).close()


@pytest.mark.parametrize("name", ["missing/fleets.db", "."])
def test_a_place_where_no_file_can_be_is_refused_with_words(tmp_path, name):
    with pytest.raises(SettingError, match=r"make it, or put|name of a file"):
        connect(tmp_path / name)


def test_only_the_owner_may_read_any_of_its_files(path):
    filled(path, 1)
    path.chmod(0o644)
    database = connect(path)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    database.close()
    names = {"", "-wal", "-shm", ".lock", ".reserve"}
    assert modes == {f"fleets.db{name}": 0o600 for name in names}


def test_the_settings_that_make_it_durable_are_on(path):
    database = connect(path)
    with database.writing() as tx:
        assert tx.one("pragma synchronous") == (2,)  # full
        assert tx.one("pragma journal_mode") == ("wal",)
        assert tx.one("pragma page_size") == (16384,)
    database.close()


@pytest.mark.slow
def test_the_log_stays_bounded_though_some_reader_always_reads(path, monkeypatch):
    monkeypatch.setattr(sqlite, "MAX_WAL_BYTES", 4 * MIB)
    monkeypatch.setattr(sqlite, "CHECKPOINT_PAGES", 64)
    database, done = SqliteDatabase(path), Event()
    with database.writing() as tx:
        tx.run("create table bodies (id integer primary key, data blob)")
    threads = [Thread(target=overlapping, args=(database, done)) for _ in range(3)]
    for thread in threads:
        thread.start()
    longest = 0
    for _ in range(60):
        with database.writing() as tx:
            tx.run(KEEP, bytes(640_000))
        longest = max(longest, path.with_name("fleets.db-wal").stat().st_size)
    done.set()
    for thread in threads:
        thread.join()
    database.close()
    assert longest < 10 * MIB


def overlapping(database, done):
    """Hold a state of the database until another thread has had the time to take a newer one."""
    while not done.is_set():
        with database.reading() as tx:
            tx.rows("select count(*) from bodies")
            done.wait(0.02)


@pytest.mark.slow
def test_space_of_what_was_dropped_is_given_back_to_the_disk(path, monkeypatch):
    monkeypatch.setattr(sqlite, "SPARE_PAGES", 16)
    filled(path, 300)
    before = path.stat().st_size
    database = connect(path)
    with database.writing() as tx:
        tx.run("delete from bodies where id > 1")
    for number in range(10):
        with database.writing() as tx:
            tx.run("insert into links values (?, 'ops', 0.0, null)", str(number))
    database.close()
    assert path.stat().st_size < before / 10
