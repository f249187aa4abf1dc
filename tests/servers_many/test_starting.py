"""Several servers that start at the same moment on an empty database, and what they share."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from edgemerge.server.db.migrations import MIGRATIONS, connect
from edgemerge.server.main import load_operator_token
from edgemerge.server.service import Service

SERVERS = 6


def test_servers_that_start_at_once_make_the_tables_and_the_operator_once(
    tmp_path, fresh_postgres_url
):
    file, ready = tmp_path / "admin.token", Barrier(SERVERS)

    def start(_number):
        ready.wait(30)
        service = Service(connect(fresh_postgres_url))
        ready.wait(30)
        load_operator_token(service, file)
        return service

    with ThreadPoolExecutor(SERVERS) as pool:
        services = list(pool.map(start, range(SERVERS)))
    token = file.read_text(encoding="utf-8").strip()
    assert all(service.caller(token).may("admin") for service in services)
    with services[0].database.reading() as tx:
        assert tx.one("select count(*) from accounts") == (1,)
        assert tx.one("select count(*) from migrations") == (len(MIGRATIONS),)
    for service in services:
        service.close()
