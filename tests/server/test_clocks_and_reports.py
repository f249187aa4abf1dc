"""Reports when clocks differ, tokens change and readers stop; revoking what cannot be."""

import asyncio
import time
from threading import Event, Thread

import httpx
import numpy as np
import pytest

from edgemerge.core.errors import UnknownError
from edgemerge.server.dashboard.stream import EventStreamResponse, Viewers
from edgemerge.server.reports.history import DeviceId, DeviceRecords
from edgemerge.server.reports.model import drop_future
from edgemerge.server.schemas import ReportRequest
from tests.server.reporting import said
from tests.server.world import FLEET, ROOT, SHARED, World, generator, note
from tests.services.hub import running
from tests.waiting import DEADLINE_S


@pytest.fixture
def hub(tmp_path):
    with running(f"sqlite:///{tmp_path / 'fleets.db'}") as found:
        found.operator.create_fleet(FLEET, SHARED)
        yield found


def reported(hub, token):
    """Report as the device a; give the status of the answer."""
    return httpx.post(
        f"{hub.url}/fleets/{FLEET}/devices/a/report",
        headers={"Authorization": f"Bearer {token}"},
        json=said(time.time()),
        timeout=DEADLINE_S,
    ).status_code


@pytest.mark.parametrize("device", ["\0", "a\0", "", "a/b", "é"])
def test_revoking_what_no_device_can_be_called_finds_nothing_on_any_database(database_url, device):
    world = World(database_url)
    world.put(note("a", 1, generator(1)))
    with pytest.raises(UnknownError, match="no contribution"):
        world.service.choices.exclude(FLEET, (device, 0, "normal"), ROOT)
    world.close()


@pytest.mark.slow
def test_a_device_that_enrols_again_is_not_reported_for_with_its_old_token(hub):
    old = hub.enrol(FLEET, "a")
    assert reported(hub, old) == 200
    new = hub.enrol(FLEET, "a")
    assert (reported(hub, old), reported(hub, new)) == (401, 200)


@pytest.mark.slow
def test_the_first_report_of_a_fleet_holds_nobody_up_when_the_database_is_slow(hub):
    token, looking, go_on = hub.enrol(FLEET, "a"), Event(), Event()
    look = hub.service.choices._read_rules

    def slow(fleet):
        looking.set()
        go_on.wait(DEADLINE_S)
        return look(fleet)

    hub.service.choices._read_rules = slow
    reporting = Thread(target=reported, args=(hub, token))
    reporting.start()
    assert looking.wait(DEADLINE_S)
    try:
        answer = httpx.get(f"{hub.url}/ui/sign-in", timeout=DEADLINE_S / 2)
    finally:
        go_on.set()
        reporting.join()
    assert answer.status_code == 200


def test_scores_go_on_when_the_clock_of_the_server_is_set_back():
    tracks, who = DeviceRecords(), DeviceId("mine", "pump-1")
    for at, score in ((5000.0, 1.0), (5001.0, 1.0), (1400.0, 50.0), (1401.0, 51.0)):
        point = {"at": at, "score": score}
        status = {"samples": 1, "learnt": 1.0, "alarms": 0}
        told = ReportRequest.model_validate({"sent": at, "status": status, "points": [point]})
        tracks.take(who, told, at)
    glimpse = tracks.find(who).latest
    assert glimpse is not None
    assert [point.score for point in glimpse.points] == [50.0, 51.0]


def test_clocks_of_two_servers_may_differ_a_little():
    table = np.array([[100.0, 1.0, np.nan, 0.0], [130.0, 2.0, np.nan, 0.0]])
    assert len(drop_future(table, 110.0)) == 2
    assert len(drop_future(table, 60.0)) == 0


@pytest.mark.slow
def test_who_has_stopped_to_read_does_not_hold_up_a_server_that_leaves():
    async def never(*_message):
        await asyncio.Event().wait()

    async def told():
        yield "retry: 2000\n\n"

    async def streamed():
        stream = EventStreamResponse(told(), seats, lambda: True)
        assert seats.count == 1
        scope = {"type": "http", "asgi": {"spec_version": "2.3"}}
        await asyncio.wait_for(stream(scope, never, never), DEADLINE_S)

    seats = Viewers(tables=None)
    asyncio.run(streamed())
    assert seats.count == 0
