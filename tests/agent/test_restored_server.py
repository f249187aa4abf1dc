"""A server that was restored from a backup meets devices that have newer revisions."""

import numpy as np
import pytest

from edgemerge import Contribution, Stats
from edgemerge.agent.background import ExchangeJob, KnownExchange, run_exchange
from edgemerge.agent.state import own_stats, state_from_bytes, state_to_bytes
from edgemerge.agent.sync import release_again
from edgemerge.core.errors import DeniedError, UnavailableError
from edgemerge.core.ledger import Selection
from edgemerge.exchange.http import HttpExchange
from edgemerge.exchange.protocol import MemoryExchange
from edgemerge.server.backup import backup, restore
from tests.agent.agents import shared, stream
from tests.agent.test_syncing import devices  # noqa: F401 - a fixture
from tests.services.hub import running
from tests.services.ports import free_port

P = shared()
FLEET = "pumps"


class Restored(MemoryExchange):
    """An exchange with a timeline, which forgets what it was told since a moment."""

    def __init__(self, timeline="one", held=()):
        super().__init__(P)
        self.timeline, self.asked = timeline, 0
        for contribution in held:
            self.push(contribution)

    def own_revisions(self, device, incarnation):
        self.asked += 1
        mine = [c for c in self._listed("normal") if c.key[:2] == (device, incarnation)]
        return {c.pattern: c.revision for c in mine if c.samples}


def held(exchange):
    """The revision and samples of each pattern."""
    return {c.pattern: (c.revision, c.samples) for c in exchange._listed("normal")}


@pytest.fixture
def device(devices):  # noqa: F811 - the fixture
    """Make devices that have shared forty samples on the timeline "one"."""

    def make():
        exchange = Restored()
        made = devices(exchange)
        made.learn(stream(40))
        made.sync()
        assert (made.memory.timeline, exchange.asked) == ("one", 0)
        return made

    return make


def moved_to(made, exchange, devices):  # noqa: F811 - the fixture
    """Let a device go on with another exchange."""
    return devices(exchange, memory=state_from_bytes(state_to_bytes(made.memory)))


def test_what_a_restored_exchange_lost_is_shared_again(device, devices):  # noqa: F811
    old = Restored("two")
    made = moved_to(device(), old, devices)
    made.sync()
    assert held(old) == {"normal": (2, 40.0)}
    assert old.pull(Selection()).total == Stats.of(P, stream(40))
    made.sync()
    assert (held(old), old.asked) == ({"normal": (2, 40.0)}, 1), "once is enough"


def test_samples_that_were_not_released_yet_wait_for_the_gate(device, devices):  # noqa: F811
    first = Contribution("pump-1", Stats.of(P, stream(40)[:20]), 1, incarnation=1000)
    old = Restored("two", held=[first])
    made = moved_to(device(), old, devices)
    made.learn(stream(3, 1))  # of sixteen
    made.sync()
    assert held(old) == {"normal": (1, 20.0)}, "what it has is true, and stays"
    made.learn(stream(13, 2))
    made.sync()
    assert held(old) == {"normal": (2, 56.0)}


def test_what_a_device_no_longer_shares_is_withdrawn_again(device, devices):  # noqa: F811
    gone = Contribution("pump-1", Stats.of(P, stream(40)[:20]), 1, "gone", 1000)
    earlier = Contribution("pump-1", Stats.of(P, stream(9, 8)), 1, "past", 7)
    old = Restored("two", held=[gone, earlier])
    made = moved_to(device(), old, devices)
    made.sync()
    assert held(old) == {"gone": (2, 0.0), "normal": (3, 40.0), "past": (1, 9.0)}


@pytest.mark.parametrize(("moved", "emptied"), [(5, True), (4, False), (0, False)])
def test_old_sums_go_if_samples_moved_between_patterns_since(device, moved, emptied):
    memory = device().memory
    memory.revision, memory.moved_revision = 7, moved
    memory.learner.learn(stream(1, 1)[0])  # it cannot be released again as it was
    release_again(memory, {"normal": 4})
    found = [(c.pattern, c.revision, c.samples) for c in memory.pending]
    assert found == ([("normal", 8, 0.0)] if emptied else [])


def test_a_release_after_samples_moved_is_remembered(device):
    made = device()
    assert made.memory.moved_revision == 0
    made.memory.gate.gone.add("old")  # a pattern that was joined with another one
    made.learn(stream(20, 1))
    made.sync()
    assert made.memory.moved_revision == made.memory.revision == 3
    assert state_from_bytes(state_to_bytes(made.memory)).moved_revision == 3


def test_a_new_incarnation_has_moved_nothing(device):
    made = device()
    made.memory.moved_revision = 5
    made.sharing.start_new_incarnation(lambda: 0.0)
    assert (made.memory.revision, made.memory.moved_revision) == (0, 0)


def test_nothing_is_shared_again_at_the_first_meeting_or_if_the_server_names_no_timeline(device):
    memory = device().memory
    for timeline, known in (("two", ""), ("", "one"), ("one", "one")):
        exchange = Restored(timeline)
        knows = KnownExchange(known, memory.device, memory.incarnation)
        found = run_exchange(exchange, ExchangeJob(pull=Selection(), knows=knows))
        assert (found.timeline, found.held) == ("two" if not known else "", {})
        assert exchange.asked == 0


def test_if_the_list_cannot_be_had_the_next_exchange_asks_again(device, monkeypatch):
    memory = device().memory
    exchange = Restored("two")

    def fails(*_):
        raise UnavailableError("gone")

    monkeypatch.setattr(exchange, "own_revisions", fails)
    knows = KnownExchange("one", memory.device, memory.incarnation)
    assert run_exchange(exchange, ExchangeJob(knows=knows)).timeline == ""


@pytest.mark.slow
def test_a_real_server_restored_from_a_backup_gets_back_what_its_devices_know(
    tmp_path,
    devices,  # noqa: F811
):
    port = free_port()
    url, file = str(tmp_path / "hub.sqlite"), tmp_path / "hub.backup"
    with running(url, port=port) as hub:
        hub.operator.create_fleet(FLEET, P, reads="contributions")
        tokens = {name: hub.enrol(FLEET, name) for name in ("pump-1", "pump-2")}
        exchange = HttpExchange(hub.url, FLEET, tokens["pump-1"], projection=P)
        made = devices(exchange)
        made.learn(stream(40))
        made.sync()
        first = made.memory.timeline
        assert first
        backup(url, file)
        made.learn(stream(40, 1))  # what follows is lost on the server
        made.sync()
        late = hub.enrol(FLEET, "pump-3")
        other = HttpExchange(hub.url, FLEET, tokens["pump-2"], projection=P)
        other.push(Contribution("pump-2", Stats.of(P, stream(30, 2)), 1))
    restore(file, url, replace_existing=True)
    with running(url, port=port) as hub:
        assert other.pull(Selection(receiver="pump-2")).total == Stats.of(P, stream(40))
        made.sync()
        assert made.memory.timeline != first
        rows = np.vstack([stream(40), stream(40, 1)])
        assert own_stats(made.memory.learner) == {"normal": Stats.of(P, rows)}
        assert other.pull(Selection(receiver="pump-2")).total == Stats.of(P, rows)
        assert other.push(Contribution("pump-2", Stats.of(P, stream(30, 2)), 1)), "it was lost"
        with pytest.raises(DeniedError, match="ask an operator for an invitation"):
            HttpExchange(hub.url, FLEET, late, projection=P).pull(Selection(receiver="pump-3"))
        assert hub.enrol(FLEET, "pump-3")
    exchange.close()
    other.close()
