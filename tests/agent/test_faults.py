"""An agent's faults: released by the gate, withdrawn, renamed, and named on another device."""

from contextlib import ExitStack

import numpy as np
import pytest

from edgemerge import Detector, Monitor, Selection
from edgemerge.agent.background import ExchangeJob, run_exchange
from edgemerge.agent.control import send_command
from edgemerge.agent.faults import FaultSharing, exchange_faults
from edgemerge.agent.state import AgentState, state_from_bytes, state_to_bytes
from edgemerge.core import faults as rules
from edgemerge.core.errors import RejectedError
from edgemerge.exchange.protocol import MemoryExchange
from tests.agent.agents import Running, enrolled, shared, stream, write_rows
from tests.services.hub import running
from tests.waiting import DEADLINE_S, until

P = shared()
ODD = np.array([0.0, 0.0, 0.0, 0.0, 0.5, 0.2])
NOW = 1_700_000_000.0
GATE = 2.0 * P.n_hidden


class Device:
    """An agent's state that exchanges faults in this thread."""

    def __init__(self, name, exchange):
        monitor = Monitor(Detector(P), limit=30.0)
        self.memory = AgentState(name, 1, monitor)
        self.exchange, self.at = exchange, NOW
        self.sharing = FaultSharing(self.memory)
        self.take(stream(200))

    def take(self, rows):
        for x in rows:
            self.at += 1.0
            self.memory.monitor.take(x, self.at)
        return self

    def meets(self, count, seed=1):
        return self.take(stream(count, seed) + ODD)

    def review(self, *decision, **more):
        self.memory.monitor.review(*decision, **more)
        return self

    def sync(self, least=GATE):
        wish = Selection(receiver=self.memory.device)
        outcome = exchange_faults(self.exchange, self.sharing.job(least, wish))
        self.sharing.finish(outcome)
        return outcome

    def restart(self):
        self.memory = state_from_bytes(state_to_bytes(self.memory))
        self.sharing = FaultSharing(self.memory)
        return self

    @property
    def named(self):
        """What its patterns are like."""
        found = self.memory.monitor.odd_patterns.values()
        return [pattern.like.name if pattern.like else None for pattern in found]


@pytest.fixture
def exchange():
    return MemoryExchange(P)


def everything(exchange):
    return list(exchange._ledgers["fault"])


def test_a_fault_stays_until_it_passes_the_gate_and_the_status_says_so(exchange):
    a = Device("a", exchange).meets(12).review("odd-1", "fault", name="bearing")
    samples = int(a.memory.monitor.odd_patterns["bearing"].stats.count)
    assert samples < GATE
    a.sync()
    assert everything(exchange) == []
    assert a.sharing.sharing_of("bearing") == f"stays on this device: {samples} of 16 samples"
    assert a.sharing.plain()["held_back"] == [f"bearing: {samples} of 16 samples"]
    a.meets(30)
    a.sync()
    (one,) = everything(exchange)
    assert (one.pattern, one.kind, one.incarnation) == ("bearing", "fault", 0)
    assert one.first == a.memory.monitor.odd_patterns["bearing"].first
    assert one.stats == a.memory.monitor.odd_patterns["bearing"].stats
    assert a.sharing.sharing_of("bearing") == "shared"
    assert a.sharing.plain()["shared"] == ["bearing"]


def test_a_release_covers_enough_fresh_samples(exchange):
    a = Device("a", exchange).meets(40).review("odd-1", "fault", name="bearing")
    a.sync()
    a.meets(8)
    a.sync()
    assert [one.revision for one in everything(exchange)] == [1]
    a.restart().meets(16)
    a.sync()
    assert [one.revision for one in everything(exchange)] == [2]


def test_a_fault_that_a_restored_exchange_lost_is_shared_again_as_it_was(exchange):
    a = Device("a", exchange).meets(40).review("odd-1", "fault", name="bearing")
    a.sync()
    released = everything(exchange)[0].stats
    a.meets(8)  # too few for a release
    a.exchange = MemoryExchange(P)
    a.sync()
    assert everything(a.exchange) == [], "it does not know yet"
    a.sharing.share_again()
    a.sync()
    (one,) = everything(a.exchange)
    assert (one.pattern, one.revision, one.stats) == ("bearing", 2, released)


def test_another_name_is_given_to_the_same_sums_and_undo_withdraws(exchange):
    a = Device("a", exchange).meets(40).review("odd-1", "fault", name="baering")
    a.sync()
    released = everything(exchange)[0].stats
    a.meets(8).review("baering", "undo").review("odd-1", "fault", name="bearing")
    a.sync()
    by_name = {one.pattern: one.stats for one in everything(exchange)}
    assert by_name["baering"].count == 0
    assert by_name["bearing"] == released  # not the eight samples more
    a.review("bearing", "undo")
    a.restart().sync()
    assert all(one.samples == 0 for one in everything(exchange))
    a.review("odd-1", "fault", name="bearing")
    a.sync()
    assert {o.pattern: o.stats for o in everything(exchange)}["bearing"] == released


def test_what_is_withdrawn_before_it_was_sent_is_never_told(exchange):
    a = Device("a", exchange).meets(40).review("odd-1", "fault", name="bearing")
    a.sharing.job(GATE, None)
    assert a.sharing.sharing_of("bearing") == "will be shared: with the next exchange"
    a.review("bearing", "undo").restart().sync()
    assert a.memory.pending_faults == []
    assert Device("b", exchange).meets(40).sync().faults is None  # nothing is known


def test_another_device_says_what_its_pattern_is_most_like_until_it_is_withdrawn(exchange):
    a = Device("a", exchange).meets(60).review("odd-1", "fault", name="bearing")
    a.sync()
    b = Device("b", exchange).meets(40, seed=2)
    assert b.named == [None]
    b.sync()
    assert b.named == ["bearing"]
    assert b.memory.monitor.episode.number == 1
    assert b.restart().named == ["bearing"]
    assert b.sync().faults is None  # nothing new is compared
    a.review("bearing", "undo").sync()
    b.sync()
    assert b.named == [None]
    assert len(b.memory.monitor.faults) == 0


def test_an_old_copy_of_the_state_goes_on_after_what_the_exchange_knows(exchange):
    a = Device("a", exchange).meets(40).review("odd-1", "fault", name="bearing")
    old = state_to_bytes(a.memory)
    a.sync()
    a.meets(40).sync()
    assert [one.revision for one in everything(exchange)] == [2]
    a.memory = state_from_bytes(old)
    a.sharing = FaultSharing(a.memory)
    a.meets(24, seed=9).sync()
    a.sync()
    (one,) = everything(exchange)
    assert one.revision == 3
    assert one.stats == a.memory.monitor.odd_patterns["bearing"].stats


def test_a_fault_that_is_refused_for_good_stays_and_says_why(exchange, monkeypatch):
    a = Device("a", exchange).meets(40).review("odd-1", "fault", name="bearing")
    push = exchange.push
    monkeypatch.setattr(exchange, "push", refusing)
    a.sync()
    assert a.sharing.sharing_of("bearing") == "stays on this device: too many"
    monkeypatch.setattr(exchange, "push", push)
    a.sync()
    assert everything(exchange) == []
    assert a.sharing.plain()["held_back"] == ["bearing: too many"]
    a.restart().sync()  # it tries again after a restart
    assert len(everything(exchange)) == 1


def refusing(_contribution):
    raise RejectedError("too many")


def test_at_most_sixteen_are_shared(exchange, monkeypatch):
    monkeypatch.setattr("edgemerge.agent.faults.MAX_PER_DEVICE", 0)
    a = Device("a", exchange).meets(40).review("odd-1", "fault", name="bearing")
    a.sync()
    assert a.sharing.sharing_of("bearing") == "stays on this device: 0 faults are shared"
    assert rules.MAX_PER_DEVICE == 16


class Plain:
    """An exchange of somebody else, which knows no faults."""

    def push(self, contribution):
        raise AssertionError(f"found {contribution}, expected no fault here")

    def pull(self, _selection, **_how):
        raise AssertionError("nothing was to be pulled")


def test_an_exchange_that_knows_no_faults_gets_none():
    a = Device("a", Plain()).meets(40).review("odd-1", "fault", name="bearing")
    job = ExchangeJob(faults=a.sharing.job(GATE, Selection()))
    outcome = run_exchange(Plain(), job)
    assert outcome.error is None
    a.sharing.finish(outcome.faults)
    assert a.sharing.trouble == "this exchange shares no faults"
    assert a.sharing.sharing_of("bearing") == "will be shared: this exchange shares no faults"


@pytest.mark.slow
def test_a_fault_named_on_one_device_is_named_on_another_until_it_is_undone(tmp_path):
    with running(str(tmp_path / "hub.db")) as hub, ExitStack() as stack:
        operator = hub.operator
        operator.create_fleet("pumps", P, least=1)
        operator.close()
        states, agents = {}, {}
        for seed, device in enumerate(("pump-3", "pump-4")):
            settings = "monitor.limit=30.0", "sync.gate=2"
            config = enrolled(hub, tmp_path / device, *settings, device=device)
            rows = np.vstack([stream(200, seed), stream(60, seed + 5) + ODD])
            write_rows(tmp_path / device / "rows.csv", rows)
            agents[device] = stack.enter_context(Running(config))
            states[device] = config.state
        for agent in agents.values():
            until(lambda agent=agent: len(agent.listener.verdicts) == 260)

        def ask(device, command, **more):
            return send_command(states[device], {"command": command, **more}, DEADLINE_S)

        said = {"pattern": "odd-1", "decision": "fault", "name": "bearing"}
        ask("pump-3", "review", **said)
        assert ask("pump-3", "sync")["faults"]["shared"] == ["bearing"]
        (pattern,) = ask("pump-3", "status")["monitor"]["patterns"]
        assert (pattern["name"], pattern["sharing"]) == ("bearing", "shared")

        ask("pump-4", "sync")
        (episode,) = ask("pump-4", "status")["monitor"]["episodes"]
        assert episode["like"]["words"].startswith("most like bearing, first seen on pump-3, ratio")
        write_rows(tmp_path / "pump-4" / "rows.csv", stream(1, 9) + ODD, "a")
        verdicts = agents["pump-4"].listener.verdicts
        until(lambda: len(verdicts) == 261)
        assert verdicts[-1].fault == "bearing"

        ask("pump-3", "review", pattern="bearing", decision="undo")
        ask("pump-3", "sync")
        ask("pump-4", "sync")
        status = ask("pump-4", "status")
        assert status["monitor"]["episodes"][0]["like"] is None
        assert status["faults"]["known"] == []
