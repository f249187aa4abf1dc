"""A private PgBouncer on a free loopback port, in front of a private PostgreSQL."""

import shutil
import signal
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import psycopg

from tests.services.missing import SERVICES, left_out
from tests.services.ports import free_port
from tests.services.postgres import Postgres
from tests.waiting import DEADLINE_S

SETTINGS = """
[databases]
{name} = host=127.0.0.1 port={behind} dbname={name} user=tester
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = {size}
"""


@contextmanager
def pooled(postgres: Postgres, name: str, *, mode: str, size: int):
    """The URL of a database behind a pool of so many connections, until the block ends."""
    program = shutil.which("pgbouncer")
    if program is None:
        left_out("PgBouncer", SERVICES)
    port = free_port()
    folder = postgres.folder / f"pgbouncer-{port}"  # it refuses to run as root, too
    folder.mkdir()
    if postgres.who:
        shutil.chown(folder, postgres.who["user"], postgres.who["group"])
    words = {"name": name, "behind": postgres.port, "port": port, "mode": mode, "size": size}
    (folder / "pgbouncer.ini").write_text(SETTINGS.format(**words), encoding="utf-8")
    with (folder / "log").open("wb") as log:
        command = [program, str(folder / "pgbouncer.ini")]
        process = subprocess.Popen(command, stderr=log, cwd=folder, **postgres.who)
    try:
        url = f"postgresql://tester@127.0.0.1:{port}/{name}"
        _await(url, process, folder)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(DEADLINE_S)


def _await(url: str, process: subprocess.Popen, folder: Path) -> None:
    end = time.monotonic() + DEADLINE_S
    while True:
        try:
            psycopg.connect(url, connect_timeout=10).close()
            return
        except psycopg.OperationalError:
            said = (folder / "log").read_text(errors="replace")
            assert process.poll() is None, said
            assert time.monotonic() < end, said
            time.sleep(0.02)
