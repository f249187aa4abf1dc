"""What both databases promise: durable, whole, one state for a reader, nothing lost or doubled."""

import os
import random
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from edgemerge.core.errors import FormatError, SettingError, UnavailableError
from edgemerge.server.db.base import DiskFullError
from edgemerge.server.db.migrations import MIGRATIONS, POSTGRES, SQLITE, Migration, connect, migrate
from edgemerge.server.db.postgres import PostgresDatabase

KEEP = "insert into bodies (data) values (?) returning id"
TAKEN = r"(?i)unique"
KILLS = 15
WRITER = """
import os, sys
from itertools import count
from edgemerge.server.db.migrations import connect

def write(number):
    data = b"%d " % number * 20_000
    with database.writing() as tx:
        tx.run("insert into totals values ('f', ?, '', ?)", number, data)
        tx.run("insert into bodies (id, data) values (?, ?)", number, data)

for line in sys.stdin:  # one import serves all: each child is killed in its turn
    child = os.fork()
    if child == 0:
        database = connect(sys.argv[1])
        print(os.getpid(), flush=True)
        for number in count(int(line)):
            write(number)
            print(number, flush=True)
    os.waitpid(child, 0)
    print("gone", flush=True)
"""


def count_of(database):
    with database.reading() as tx:
        return tx.one("select count(*) from bodies")[0]


def written_until_full(database, blob, *, together=1):
    """Write until it is refused; give how many rows were acknowledged."""
    for kept in range(0, 1000, together):
        try:
            with database.writing() as tx:
                for _ in range(together):
                    tx.run(KEEP, blob)
        except DiskFullError:
            return kept
    raise AssertionError("the disk was never full")


def dialect_of(database):
    return POSTGRES if isinstance(database, PostgresDatabase) else SQLITE


def in_threads(*calls):
    """Run each in a thread of its own at once; raise what any of them raises."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [done.result(60) for done in [pool.submit(call) for call in calls]]


def test_what_was_committed_is_seen_by_other_threads_and_after_opening_again(
    database, database_url
):
    with database.writing() as tx:
        tx.run(KEEP, b"one")
    assert in_threads(lambda: count_of(database)) == [1]
    database.close()
    again = connect(database_url)
    assert count_of(again) == 1
    again.close()


def test_an_error_that_leaves_the_block_undoes_all_of_it(database):
    def fail():
        with database.writing() as tx:
            tx.run(KEEP, b"one")
            tx.run(KEEP, b"two")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert count_of(database) == 0


def test_a_statement_that_failed_cannot_be_passed_over(database):
    def pass_over():
        with database.writing() as tx:
            tx.run("insert into bodies (id, data) values (1, ?)", b"one")
            for _ in range(2):
                with pytest.raises(Exception, match=TAKEN):
                    tx.run("insert into bodies (id, data) values (1, ?)", b"again")

    with pytest.raises(Exception, match=TAKEN):
        pass_over()
    assert count_of(database) == 0


def test_a_statement_that_failed_can_be_undone_by_a_savepoint(database):
    with database.writing() as tx:
        tx.run(KEEP, b"one")
        tx.run("savepoint here")
        with pytest.raises(Exception, match=TAKEN):
            tx.run("insert into bodies (id, data) values (1, ?)", b"again")
        tx.run("rollback to savepoint here")
        tx.run("release savepoint here")
        tx.run(KEEP, b"two")
    assert count_of(database) == 2


def test_a_reader_sees_one_state_while_a_writer_commits(database):
    def write():
        with database.writing() as tx:
            tx.run(KEEP, b"one")

    with database.reading() as tx:
        in_threads(write)  # before the reader has asked for anything
        assert tx.one("select count(*) from bodies") == (0,)
        in_threads(write)
        assert tx.one("select count(*) from bodies") == (0,)
    assert count_of(database) == 2


def test_a_reader_cannot_write(database):
    with pytest.raises(UnavailableError), database.reading() as tx:
        tx.run(KEEP, b"one")
    assert count_of(database) == 0


@pytest.mark.slow
def test_many_threads_lose_nothing(database):
    with database.writing() as tx:
        columns = "fleet, projection, reads, least, growing, epoch, created"
        sql = f"insert into fleets ({columns}) values ('f', ?, 'totals', 1, ?, 0, 0.5)"
        tx.run(sql, b"", True)

    def add():
        for _ in range(50):
            with database.writing() as tx:
                tx.lock("f")
                (epoch,) = tx.one("select epoch from fleets where fleet = ?", "f")
                tx.run("update fleets set epoch = ? where fleet = ?", epoch + 1, "f")

    in_threads(*[add] * 8)
    with database.reading() as tx:
        assert tx.rows("select fleet, growing, epoch, created from fleets") == [("f", 1, 400, 0.5)]


def test_values_come_back_as_they_went_in(database):
    blobs = [random.Random(1).randbytes(2**20), b"", b"\0%s?"]
    with database.writing() as tx:
        ids = [tx.one(KEEP, blob)[0] for blob in blobs]
    with database.reading() as tx:
        found = [tx.one("select data from bodies where id = ?", number)[0] for number in ids]
        odd = tx.one("select 'ü % ' || token_hash from accounts where name like 'a%'")
        total, rows = tx.one("select sum(id), count(*) from bodies")
    assert (type(total), total, rows) == (int, sum(ids), 3)
    assert found == blobs
    assert {type(blob) for blob in found} == {bytes}
    assert odd is None


def test_an_id_is_not_given_twice_and_changes_are_counted(database):
    with database.writing() as tx:
        first, second = (tx.one(KEEP, b"")[0] for _ in range(2))
        assert tx.run("delete from bodies where id >= ?", first) == 2
    with database.writing() as tx:
        assert tx.one(KEEP, b"")[0] > second
        assert tx.run("delete from bodies where id = ?", second) == 0


def test_migrating_twice_is_migrating_once(database):
    with database.writing() as tx:
        tx.run(KEEP, b"one")
    in_threads(*[lambda: migrate(database, dialect_of(database))] * 4)
    with database.reading() as tx:
        numbers = tx.rows("select number from migrations order by number")
        assert numbers == [(migration.number,) for migration in MIGRATIONS]
    assert count_of(database) == 1


def test_a_migration_that_fails_leaves_nothing_behind(database):
    wrong = Migration(99, ("create table half (a {integer}) {end}", "create nonsense"))
    with pytest.raises(Exception, match="syntax error"):
        migrate(database, dialect_of(database), (*MIGRATIONS, wrong))
    right = Migration(99, ("create table half (a {integer}) {end}",))
    migrate(database, dialect_of(database), (*MIGRATIONS, right))
    with database.reading() as tx:
        assert tx.one("select max(number) from migrations") == (99,)


def test_a_database_of_a_newer_edgemerge_is_refused(database, database_url):
    with database.writing() as tx:
        tx.run("insert into migrations values (99, 0.0)")
    database.close()
    with pytest.raises(FormatError, match=r"newer edgemerge .*99.*install that version"):
        connect(database_url)


@pytest.mark.long
@pytest.mark.slow
def test_every_acknowledged_row_survives_killing_the_process(database_url):
    chance = random.Random(7)
    acknowledged = []
    command = [sys.executable, "-c", WRITER, database_url]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        for kill in range(KILLS):
            parent.stdin.write(f"{1000 * kill}\n")
            parent.stdin.flush()
            acknowledged += killed_after(chance.randrange(20), parent.stdout)
        parent.stdin.close()
    must_be_there(database_url, acknowledged)


def killed_after(rows, lines):
    """Kill the writer after so many rows, wherever it is by then; give what it acknowledged."""
    process = int(lines.readline())
    seen = [int(lines.readline()) for _ in range(rows)]
    os.kill(process, signal.SIGKILL)
    while not (line := lines.readline()).endswith("gone\n"):  # after half a number, perhaps
        seen.append(int(line))
    return seen


def must_be_there(url, acknowledged):
    database = connect(url)
    with database.reading() as tx:
        found = dict(tx.rows("select id, data from bodies"))
        assert found == dict(tx.rows("select part, data from totals"))  # both or neither
    database.close()
    assert len(acknowledged) > KILLS
    assert set(acknowledged) <= set(found)
    assert all(data == b"%d " % number * 20_000 for number, data in found.items())


def test_an_address_of_a_file_may_be_relative_or_begin_at_the_root(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for url in ("a.db", "sqlite:///b.db", f"sqlite:///{tmp_path}/c.db"):
        connect(url).close()
    assert {path.name for path in tmp_path.glob("*.db")} == {"a.db", "b.db", "c.db"}
    with pytest.raises(SettingError, match="sqlite:///file"):
        connect("sqlite://d.db")
