"""A private PostgreSQL on a free loopback port, in a folder of its own."""

import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp
from uuid import uuid4

import pytest

from tests.services.missing import SERVICES, left_out
from tests.services.ports import free_port
from tests.waiting import DEADLINE_S

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",  # tests kill its clients, never its machine
    "full_page_writes": "off",
    "shared_buffers": "16MB",
    "max_connections": "60",
    "logging_collector": "off",
}


def binaries() -> Path:
    """The newest folder in which initdb and postgres lie."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_version, reverse=True)
    with suppress(OSError, subprocess.CalledProcessError):
        told = subprocess.run(
            ["pg_config", "--bindir"], capture_output=True, check=True, text=True, timeout=10
        )
        folders.insert(0, Path(told.stdout.strip()))
    whole = [folder for folder in folders if (folder / "initdb").exists()]
    return whole[0] if whole else left_out("PostgreSQL", SERVICES)


def _version(folder: Path) -> float:
    with suppress(ValueError):
        return float(folder.parent.name)
    return 0.0


class Postgres:
    """A server of its own; it refuses to run as root, so then the user postgres runs it."""

    def __init__(self, **settings: str):
        self.bin = binaries()
        self._settings = {**SETTINGS, **settings}
        self.who = _somebody()
        where = os.environ.get("PYTEST_DEBUG_TEMPROOT")  # as other folders of tests
        self.folder = Path(mkdtemp(prefix="edgemerge-postgres-", dir=where))
        self.folder.chmod(0o755)
        self.home = self.folder / "data"
        if self.who:
            shutil.chown(self.folder, self.who["user"], self.who["group"])
        self.process: subprocess.Popen | None = None
        try:
            self._make()
            self.port = free_port()
            self.start()
        except BaseException:
            self.remove()
            raise

    @property
    def url(self) -> str:
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        return f"postgresql://tester@127.0.0.1:{self.port}/{database}"

    @property
    def copying(self) -> str:
        """How to copy a database in the least time; before 15 there is only this way."""
        return "strategy file_copy" if _version(self.bin) >= 15.0 else ""

    def start(self) -> None:
        settings = [part for pair in self._settings.items() for part in ("-c", "=".join(pair))]
        command = [self.bin / "postgres", "-D", self.home, "-p", str(self.port), *settings]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self.folder, **self.who
            )
        self._await()

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it: SIGINT rolls back what runs, SIGQUIT is like a crash."""
        self.process.send_signal(how)
        self.process.wait(DEADLINE_S)

    def remove(self) -> None:
        if self.process and self.process.poll() is None:
            self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder)

    def run(self, statement: str) -> None:
        """Run one statement as the owner of everything."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True, connect_timeout=10) as connection:
            connection.execute(statement)

    def _make(self) -> None:
        options = ["-A", "trust", "-U", "tester", "-E", "UTF8", "--locale=C", "--no-sync"]
        made = subprocess.run(
            [self.bin / "initdb", "-D", self.home, *options],
            capture_output=True,
            check=False,
            timeout=DEADLINE_S,
            cwd=self.folder,
            text=True,
            **self.who,
        )
        assert made.returncode == 0, made.stderr

    def _await(self) -> None:
        import psycopg

        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=10).close()
                return
            except psycopg.OperationalError:
                said = (self.folder / "log").read_text(errors="replace")
                assert self.process.poll() is None, said
                assert time.monotonic() < deadline, said
                time.sleep(0.02)


def _somebody() -> dict:
    """Who runs the server, for subprocess."""
    if os.geteuid() != 0:
        return {}
    try:
        user = pwd.getpwnam("postgres")
    except KeyError:
        left_out("the user postgres", SERVICES)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


@pytest.fixture(scope="session")
def postgres_server():
    """A running server for all tests of this session."""
    server = Postgres()
    yield server
    server.remove()


@pytest.fixture(scope="session")
def postgres_url(postgres_server):
    """The URL of its first database; take `fresh_postgres_url` to have one for a test alone."""
    return postgres_server.url


@contextmanager
def database_of(server: Postgres, template: str) -> Iterator[str]:
    """Make a copy of a database, and drop it at the end."""
    name = f"test_{uuid4().hex}"
    server.run(f"create database {name} template {template} {server.copying}")
    yield server.url_of(name)
    server.run(f"drop database {name} with (force)")


@pytest.fixture
def empty_postgres_url(postgres_server):
    """The URL of an empty database that no other test sees."""
    with database_of(postgres_server, "template0") as url:
        yield url


@pytest.fixture(scope="session")
def _with_tables(postgres_server):
    """A database with all tables: to copy it takes less time than to make them."""
    from edgemerge.server.db.migrations import connect

    postgres_server.run("create database with_tables")
    connect(postgres_server.url_of("with_tables")).close()
    return "with_tables"


@pytest.fixture
def fresh_postgres_url(postgres_server, _with_tables):
    """The URL of a database that no other test sees, with tables in which nothing is."""
    with database_of(postgres_server, _with_tables) as url:
        yield url
