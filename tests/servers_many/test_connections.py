"""Connections to PostgreSQL: too few of them, a pooler between, and lines that fall silent."""

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Barrier

import pytest

from edgemerge.core.errors import UnavailableError
from edgemerge.server.db.base import Writer
from edgemerge.server.db.migrations import connect
from edgemerge.server.db.postgres import SESSION_SETTINGS, PostgresDatabase
from tests.services.pgbouncer import pooled

KEEP = "insert into bodies (data) values (?)"
COUNT = "select count(*) from bodies"


@pytest.fixture
def few(postgres_server, fresh_postgres_url):
    """The URL of a database for a user who may have two connections."""
    name = fresh_postgres_url.rpartition("/")[2]
    postgres_server.run("create role few login connection limit 2")
    postgres_server.run(f"alter database {name} owner to few")
    yield fresh_postgres_url.replace("tester@", "few@")
    postgres_server.run(f"alter database {name} owner to tester")
    postgres_server.run("drop role few")


def test_without_connections_left_it_says_how_many_it_takes_and_recovers(few):
    database = PostgresDatabase(few)
    with ExitStack() as held:
        for _ in range(2):
            held.enter_context(database.reading()).one("select 1")
        with pytest.raises(
            UnavailableError, match=r"too many.*connections left: each server takes up to"
        ):
            held.enter_context(database.reading())
    for _ in range(3):
        with database.reading() as tx:
            assert tx.one("select 1") == (1,)
    database.close()


def test_a_line_that_falls_silent_is_noticed_although_nobody_speaks(fresh_postgres_url):
    database = PostgresDatabase(fresh_postgres_url)
    with database._pool.connection() as connection:
        there = socket.socket(fileno=socket.dup(connection.fileno()))
        with there:
            assert there.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert there.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 15
            assert there.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 3
            assert there.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
    database.close()


def settings_of(database):
    """What holds within a transaction, as PostgreSQL writes it."""
    with database.reading() as tx:
        shown = {each: tx.rows(f"show {each}")[0][0] for each in SESSION_SETTINGS}
    return {name: "60s" if value == "1min" else value for name, value in shown.items()}


def test_nothing_is_waited_for_without_end(fresh_postgres_url):
    database = PostgresDatabase(fresh_postgres_url)
    assert settings_of(database) == SESSION_SETTINGS
    database.close()


@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_several_servers_may_share_a_pooler(postgres_server, fresh_postgres_url, mode):
    name = fresh_postgres_url.rpartition("/")[2]
    size = 3 if mode == "transaction" else 40
    with pooled(postgres_server, name, mode=mode, size=size) as url:
        databases = [connect(url) for _ in range(3)]
        writers = [Writer(database) for database in databases]
        ready = Barrier(6)

        def work(number):
            ready.wait(30)
            for _ in range(20):  # often enough that statements would be prepared
                writers[number % 3].write(lambda tx: tx.run(KEEP, b"one"))
                with databases[number % 3].reading() as tx:
                    assert tx.one(COUNT)[0] > 0

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(work, range(6)))
        for database, writer in zip(databases, writers, strict=True):
            with database.reading() as tx:
                assert tx.one(COUNT) == (120,)
            assert settings_of(database) == SESSION_SETTINGS
            writer.close()
            database.close()
