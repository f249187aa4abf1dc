"""Versions that meet: an agent of commit 80453b9 and a server of today, and fields of tomorrow."""

import shutil
from pathlib import Path

import pytest

from edgemerge import Stats
from edgemerge.agent.state import own_stats, state_from_bytes
from edgemerge.core.errors import RejectedError
from edgemerge.core.ledger import Selection
from edgemerge.exchange.client import ReportClient, parse_desired
from edgemerge.exchange.http import HttpExchange
from edgemerge.privacy.gate import Gate
from edgemerge.server.db.migrations import MIGRATIONS, connect
from tests.agent.test_syncing import Device
from tests.server.reporting import said
from tests.services.hub import running

CORPUS = Path(__file__).parent / "corpus"
FLEET = "pumps"


def test_the_database_of_80453b9_gets_the_newest_tables(tmp_path):
    shutil.copy(CORPUS / "server/hub.sqlite", tmp_path)
    for _ in range(2):  # once is enough
        database = connect(tmp_path / "hub.sqlite")
        with database.reading() as tx:
            numbers = [number for (number,) in tx.rows("select number from migrations")]
            assert sorted(numbers) == [migration.number for migration in MIGRATIONS]
            assert tx.one("select count(*) from contributions") == (12,)
            assert tx.one("select count(*) from timelines") == (1,)
        database.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pump-1", "pump-2"])
def test_an_agent_s_state_of_80453b9_is_shared_with_a_server_of_today(name, tmp_path):
    memory = state_from_bytes((CORPUS / f"agent/state-{name}/agent.state").read_bytes())
    with running(str(tmp_path / "hub.sqlite")) as hub:
        hub.operator.create_fleet(FLEET, memory.projection, reads="contributions")
        exchange = HttpExchange(
            hub.url, FLEET, hub.enrol(FLEET, name), projection=memory.projection
        )
        memory.gate = Gate()  # nothing of it is on this server, so all that it saw is new there
        device = Device(exchange, memory, gate=1.0)
        assert device.sync()["exchange"] == "ok"
        device.syncing.close(5.0)
        told = HttpExchange(hub.url, FLEET, hub.enrol(FLEET, "other"), projection=memory.projection)
        total = told.pull(Selection(receiver="other")).total
        assert total == Stats.total(memory.projection, own_stats(memory.learner).values())
        assert memory.timeline == hub.service.timeline
        told.close()


def test_what_a_newer_server_adds_to_a_desired_state_is_ignored():
    known = {"format": 1, "revision": 7, "adopt": {"devices": None, "excluded": []}}
    newer = known | {"colour": "red", "adopt": known["adopt"] | {"mood": 1}}
    assert parse_desired(newer) == parse_desired(known)
    with pytest.raises(RejectedError, match="update the agent"):
        parse_desired(known | {"format": 2})


@pytest.mark.slow
def test_what_a_newer_agent_adds_to_a_report_is_refused_by_its_name_or_ignored(tmp_path):
    with running(str(tmp_path / "hub.sqlite")) as hub:
        memory = state_from_bytes((CORPUS / "agent/state-pump-1/agent.state").read_bytes())
        hub.operator.create_fleet(FLEET, memory.projection)
        client = ReportClient(hub.url, FLEET, "pump-1", hub.enrol(FLEET, "pump-1"))
        answer = client.send(said(1000.0))
        assert (answer.monitor, answer.settings, answer.problems) == (True, True, True)
        with pytest.raises(RejectedError, match="colour"):
            client.send(said(1000.0) | {"colour": "red"})
        client.close()
