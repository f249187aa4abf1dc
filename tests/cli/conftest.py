"""A server that runs, for the tests that need one."""

from collections.abc import Iterator

import pytest

from edgemerge import save
from edgemerge.exchange.client import ReportClient
from tests.cli.hubs import SHARED, Hub, start
from tests.waiting import until


@pytest.fixture(scope="session")
def hub(tmp_path_factory) -> Iterator[Hub]:
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    folder = tmp_path_factory.mktemp("hub")
    words = ("--database", folder / "hub.sqlite", "--port", 0, "--port-file", folder / "port")
    server = start(folder / "log", "serve", *words)
    try:
        until(lambda: (folder / "port").exists() or server.running.poll() is not None, "a port")
        assert server.running.poll() is None, server.log.read_text(encoding="utf-8")
        port = (folder / "port").read_text(encoding="utf-8").strip()
        yield Hub(f"http://127.0.0.1:{port}", folder)
        assert server.stop() == 0
    finally:
        server.running.kill()
        server.running.wait()


@pytest.fixture
def fleet(hub, tmp_path, request) -> str:
    """A new fleet for each test."""
    name = str(request.node.name).replace("_", "-")[:80]
    save(SHARED, tmp_path / "shared")
    made = hub.fleet(
        "create", name, "--projection", tmp_path / "shared", "--reads", "contributions"
    )
    assert made.exit_code == 0, made.stderr
    return name


@pytest.fixture
def client(hub, fleet, tmp_path) -> Iterator[ReportClient]:
    """What pump-1 of that fleet reports through."""
    hub.enrolled(fleet, "pump-1", tmp_path / "token")
    token = (tmp_path / "token").read_text(encoding="utf-8").strip()
    made = ReportClient(hub.url, fleet, "pump-1", token)
    yield made
    made.close()
