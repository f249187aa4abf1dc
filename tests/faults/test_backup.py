"""A backup by the command while a real server takes pushes; then the server is killed."""

from contextlib import contextmanager
from threading import Event, Thread

import numpy as np
import pytest

from edgemerge import Contribution, Stats
from edgemerge.core.ledger import Selection
from edgemerge.exchange.client import ServerClient
from edgemerge.exchange.http import HttpExchange
from edgemerge.files import read_token
from tests.cases import machine
from tests.cli.calls import program
from tests.cli.hubs import SHARED, start
from tests.waiting import until

DEVICES = ("pump-1", "pump-2", "pump-3", "pump-4")
FLEET = "pumps"
MIN_PUSHES = 5  # of each device, before and after the backup


@contextmanager
def serving(folder, url):
    """Run a server, which is killed at the end."""
    port, token = folder / "port", folder / "operator"
    port.unlink(missing_ok=True)
    words = ("--database", url, "--port", 0, "--port-file", port, "--admin-token-file", token)
    server = start(folder / "log", "serve", *words, "--audit-head-file", folder / "head")
    try:
        until(lambda: port.exists() or server.running.poll() is not None, "the port")
        assert server.running.poll() is None, server.log.read_text()
        yield f"http://127.0.0.1:{port.read_text().strip()}", read_token(token)
    finally:
        server.running.kill()
        server.running.wait()


def pushed(device, revision):
    rng = np.random.default_rng([revision, *device.encode()])
    return Contribution(device, Stats.of(SHARED, machine(0.3, 5 + revision, rng)), revision)


@contextmanager
def pushing(url, tokens):
    """Let devices push until the block ends; give the revisions that were acknowledged."""
    stop, acknowledged = Event(), dict.fromkeys(tokens, 0)

    def push(device):
        exchange = HttpExchange(url, FLEET, tokens[device], projection=SHARED)
        while not stop.is_set():
            exchange.push(pushed(device, acknowledged[device] + 1))
            acknowledged[device] += 1
        exchange.close()

    threads = [Thread(target=push, args=(device,)) for device in tokens]
    for thread in threads:
        thread.start()
    try:
        yield acknowledged
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_server_that_is_killed_is_restored_from_a_backup_made_under_load(kind, tmp_path, request):
    sqlite = str(tmp_path / "hub.sqlite")
    url = sqlite if kind == "sqlite" else request.getfixturevalue("fresh_postgres_url")
    file = tmp_path / "hub.backup"
    with serving(tmp_path, url) as (address, operator):
        client = ServerClient(address, operator)
        client.create_fleet(FLEET, SHARED, reads="contributions")
        tokens = {}
        for device in DEVICES:
            invitation = client.invite(FLEET, device)["token"]
            tokens[device] = ServerClient(address, invitation).enrol(FLEET, device)["token"]
        with pushing(address, tokens) as acknowledged:
            until(lambda: min(acknowledged.values()) >= MIN_PUSHES, "pushes")
            before = dict(acknowledged)
            made = program("backup", "--database", url, "--out", file)
            assert made.returncode == 0, made.stderr
            after = dict(acknowledged)
            until(lambda: all(acknowledged[d] >= after[d] + MIN_PUSHES for d in DEVICES), "pushes")
    assert after != before, "pushes went on while the backup was made"
    words = ("restore", file, "--database", url, "--audit-head-file", tmp_path / "head")
    restored = program(*words, "--replace")
    assert restored.returncode == 0, restored.stderr
    with serving(tmp_path, url) as (address, operator):
        client = ServerClient(address, operator)
        listed = client.contributions(FLEET)["contributions"]
        found = {each["device"]: each["revision"] for each in listed}
        for device in DEVICES:
            assert before[device] <= found[device] <= after[device] + 1
        exchange = HttpExchange(address, FLEET, tokens["pump-1"], projection=SHARED)
        others = [pushed(device, found[device]).stats for device in DEVICES[1:]]
        for grouped in (False, True):
            told = exchange.pull(Selection(receiver="pump-1"), grouped=grouped)
            assert told.total == Stats.total(SHARED, others)
        exchange.close()
        token = ("--server", address, "--token-file", tmp_path / "operator")
        verified = program("fleet", "audit", *token)
        assert verified.returncode == 0, verified.stderr
        assert "restore" in verified.stdout
        for device in DEVICES:  # what was lost is pushed again
            own = HttpExchange(address, FLEET, tokens[device], projection=SHARED)
            assert own.push(pushed(device, acknowledged[device] + 1))
            own.close()
