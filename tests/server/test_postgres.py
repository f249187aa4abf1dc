"""What only PostgreSQL does: names locked between processes, restarts, secrets in its address."""

import json
import random
import shutil
import signal
import time
from threading import Barrier, Event

import pytest

from edgemerge.core.errors import SettingError, UnavailableError
from edgemerge.server.db.migrations import connect
from edgemerge.server.db.postgres import PostgresDatabase
from tests.server.test_database import KEEP, count_of, in_threads, written_until_full
from tests.services.disk import MIB, small_disk


def test_a_locked_name_serialises_two_server_processes(fresh_postgres_url):
    databases = [connect(fresh_postgres_url) for _ in range(2)]
    locked, meanwhile = Event(), []

    def first():
        with databases[0].writing() as tx:
            tx.lock("audit")
            locked.set()
            with databases[1].writing() as other:
                other.lock("another name")  # is free
            await_one_that_waits(databases[0])
            meanwhile.append("first")
            tx.run(KEEP, b"one")

    def second():
        assert locked.wait(30)
        with databases[1].writing() as tx:
            tx.lock("audit")
            meanwhile.append("second")
            assert tx.one("select count(*) from bodies") == (1,)  # sees what the first did

    in_threads(first, second)
    assert meanwhile == ["first", "second"]
    for database in databases:
        database.close()


def await_one_that_waits(database):
    """Return once another transaction waits for a name."""
    deadline, waiting = time.monotonic() + 30, None
    while waiting is None:
        assert time.monotonic() < deadline
        with database.reading() as tx:
            sql = "select 1 from pg_locks where locktype = 'advisory' and not granted"
            waiting = tx.one(sql)


def test_two_writers_that_wait_for_each_other_are_told_to_try_again(fresh_postgres_url):
    database, both = connect(fresh_postgres_url), Barrier(2)

    def lock(names):
        with database.writing() as tx:
            tx.lock(names[0])
            both.wait(30)
            tx.lock(names[1])

    with pytest.raises(UnavailableError, match=r"deadlock.*try again"):
        in_threads(lambda: lock("ab"), lambda: lock("ba"))
    database.close()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["restart", "crash"])
def test_a_restart_of_postgresql_breaks_only_what_runs(postgres_server, fresh_postgres_url, how):
    database = connect(fresh_postgres_url)
    with database.writing() as tx:
        tx.run(KEEP, b"before")

    def interrupted():
        with database.writing() as tx:
            tx.run(KEEP, b"lost")
            in_threads(*[lambda: count_of(database)] * 4)  # several connections wait in the pool
            postgres_server.stop(how)
            tx.run(KEEP, b"lost too")

    with pytest.raises(UnavailableError, match="try again"):
        interrupted()
    with pytest.raises(UnavailableError, match="cannot be reached"):
        count_of(database)
    postgres_server.start()
    assert [count_of(database) for _ in range(5)] == [1] * 5
    database.close()


def test_idle_connections_do_not_notice_a_restart(postgres_server, fresh_postgres_url):
    database = connect(fresh_postgres_url)
    in_threads(*[lambda: count_of(database)] * 4)
    postgres_server.stop()
    postgres_server.start()
    assert in_threads(*[lambda: count_of(database)] * 4) == [0] * 4
    database.close()


def test_on_a_full_disk_nothing_is_lost_and_dropping_works(postgres_server):
    with small_disk(postgres_server.folder / "small", 32 * MIB) as folder:
        place = folder / "place"
        place.mkdir()
        shutil.chown(place, "postgres")
        postgres_server.run(f"create tablespace small location '{place}'")
        postgres_server.run("create database small tablespace small")
        database = connect(postgres_server.url_of("small"))
        kept = written_until_full(database, random.Random(5).randbytes(640_000))
        assert kept == count_of(database) > 5
        with database.writing() as tx:
            assert tx.run("delete from bodies where id > 5") == kept - 5
        database.close()
        postgres_server.run("drop database small with (force)")
        postgres_server.run("drop tablespace small")
    folder.rmdir()


def test_text_sorts_by_its_characters_whatever_the_locale(postgres_server):
    postgres_server.run(
        "create database words template template0 locale_provider icu icu_locale 'en'"
    )
    database = connect(postgres_server.url_of("words"))
    with database.writing() as tx:
        for name in ("b", "B", "a", "_", "ä"):
            tx.run("insert into links values (?, ?, 0.0, null)", name, name)
        rows = tx.rows("select name from links order by name")
    database.close()
    postgres_server.run("drop database words")
    assert [name for (name,) in rows] == ["B", "_", "a", "b", "ä"]


def test_a_full_pool_says_so_instead_of_waiting_for_ever(fresh_postgres_url, monkeypatch):
    monkeypatch.setattr("edgemerge.server.db.postgres.POOL_TIMEOUT_S", 0.05)
    database = PostgresDatabase(fresh_postgres_url, connections=1)
    with database.reading(), pytest.raises(UnavailableError, match="in use"), database.reading():
        pass
    database.close()
    with pytest.raises(UnavailableError, match="closed"), database.reading():
        pass


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://fleet:hunter2@127.0.0.1:1/fleets",
        "postgresql://fleet:hun@ter2@127.0.0.1:1/fleets",
        "postgresql://fleet:hun/ter2@127.0.0.1:1/fleets",
        "postgresql://fleet@127.0.0.1:1/fleets?password=hunter2",
        "postgresql://fleet:hun%ter2@127.0.0.1/fleets",
        "postgresql://fleet:hun ter2@[::1/fleets",
        "mysql://fleet:hunter2@127.0.0.1/fleets",
    ],
)
def test_a_password_is_never_shown(url):
    with pytest.raises((UnavailableError, SettingError)) as caught:
        connect(url)
    chain = [caught.value, caught.value.__cause__, caught.value.__context__]
    words = json.dumps([f"{error} {error!r}" for error in chain], ensure_ascii=False)
    assert not [secret for secret in ("hun", "ter2") if secret in words]
    assert "://" in words
