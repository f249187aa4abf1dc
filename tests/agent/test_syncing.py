"""Syncing: schedule, courier, spool, restored disks; with an exchange that fails when told to."""

from itertools import pairwise
from math import inf
from threading import Event

import numpy as np
import pytest

from edgemerge import Bank, Contribution, Detector, Monitor, Stats
from edgemerge.agent.background import (
    SYNC_MAX_RETRY_S,
    ExchangeJob,
    SyncSchedule,
    exchange_worker,
    run_exchange,
)
from edgemerge.agent.config import SyncConfig
from edgemerge.agent.state import AgentState, own_stats, state_from_bytes, state_to_bytes
from edgemerge.agent.sync import Clocks, SharingPolicy, Synchronizer
from edgemerge.core.errors import DeniedError, RejectedError, StaleError, UnavailableError
from edgemerge.core.ledger import MAX_PATTERNS, Merged, Selection
from edgemerge.exchange.protocol import MemoryExchange
from edgemerge.wire.codec import encode
from tests.agent.agents import shared, stream
from tests.waiting import until

P = shared()
ALL = Selection()


class Failing:
    """An exchange that fails as it is told to, before or after the other one has done its part."""

    def __init__(self, exchange):
        self.exchange, self.before, self.after, self.push_fails = exchange, None, None, None
        self.seen = []

    def push(self, contribution):
        self.seen.append(contribution)
        self.fail(self.before or self.push_fails)
        kept = self.exchange.push(contribution)
        self.fail(self.after)
        return kept

    def pull(self, selection, *, grouped=False):
        self.fail(self.before)
        return self.exchange.pull(selection, grouped=grouped)

    def fail(self, error):
        if error is not None:
            raise error


class Device:
    """One device without a loop: it learns rows, and syncs when asked."""

    def __init__(self, exchange, memory=None, *, gate=2.0, **choice):
        learner = Detector(P)
        monitor = Monitor(learner, learn="always")
        self.memory = memory or AgentState("pump-1", 1000, monitor, merged=encode(Merged(P)))
        self.now, self.saved, self.can_save = 0.0, [], True
        self.sharing = SharingPolicy(self.memory, gate=gate, max_shift=1e9)
        self.syncing = Synchronizer(
            self.sharing,
            exchange_worker(exchange),
            SyncSchedule(60.0, 0.1, "pump-1"),
            SyncConfig(every_s=60.0, **choice),
            save=self.save,
            clocks=Clocks(lambda: 5000.0, lambda: self.now),
        )

    def save(self, done):
        if self.can_save:
            self.saved.append(state_to_bytes(self.memory))
        done("" if self.can_save else "full")

    def learn(self, rows):
        for x in rows:
            self.memory.learner.learn(x)

    def sync(self):
        answers = []
        self.syncing.begin(answers.append)
        self.tend_until(lambda: answers)
        return answers[0]

    def tend_until(self, condition):
        def tended():
            self.syncing.tend()
            return condition()

        until(tended)

    def copy(self, exchange):
        return Device(exchange, state_from_bytes(state_to_bytes(self.memory)))


@pytest.fixture
def exchange():
    return MemoryExchange(P)


@pytest.fixture
def devices():
    """Make devices whose threads end with the test."""
    made = []

    def make(exchange, like=None, **options):
        device = Device(exchange, **options) if like is None else like.copy(exchange)
        made.append(device)
        return device

    yield make
    for device in made:
        device.syncing.close(5.0)


def total(exchange):
    return exchange.pull(ALL).total


def test_what_was_learnt_is_shared_and_what_others_saw_is_adopted(exchange, devices):
    peer = Stats.of(P, stream(50, 1))
    exchange.push(Contribution("pump-2", peer, 1))
    device = devices(exchange)
    device.learn(stream(40))
    found = device.sync()
    assert found["pushed"] == 1
    assert found["exchange"] == "ok"
    assert device.memory.learner.others == peer
    assert total(exchange) == peer + Stats.of(P, stream(40))
    assert device.memory.pending == []


def test_too_few_fresh_samples_are_held_back_and_named(exchange, devices):
    device = devices(exchange)
    device.learn(stream(15))
    found = device.sync()
    assert (found["pushed"], found["held_back"]) == (0, ["normal: 15 of 16 samples"])
    assert total(exchange).count == 0


def test_the_gate_is_16_times_n_unless_another_is_chosen(exchange, devices):
    device = devices(exchange, gate=None)
    device.learn(stream(40))
    assert device.sync()["held_back"] == ["normal: 40 of 128 samples"]
    device.learn(stream(90, 1))
    assert device.sync()["pushed"] == 1


def test_pushing_and_pulling_can_be_left_out(exchange, devices):
    exchange.push(Contribution("pump-2", Stats.of(P, stream(50, 1)), 1))
    silent, deaf = devices(exchange, push=False), devices(exchange, pull=False)
    silent.learn(stream(40))
    deaf.learn(stream(40))
    assert silent.sync()["pushed"] == 0
    assert silent.memory.learner.others.count == 50
    assert deaf.sync()["pushed"] == 1
    assert deaf.memory.learner.others.count == 0


def test_the_state_is_saved_with_the_release_before_it_is_pushed(exchange, devices):
    failing = Failing(exchange)
    failing.before = UnavailableError("gone")
    device = devices(failing)
    device.learn(stream(40))
    device.sync()
    before = state_from_bytes(device.saved[0])
    (waiting,) = before.pending
    assert before.revision == waiting.revision == 1
    assert failing.seen == [waiting]
    assert failing.seen[0] is device.memory.pending[0]  # what waits is not decoded each time


def test_who_asks_while_an_exchange_is_under_way_gets_what_was_learnt_since(exchange, devices):
    device = devices(exchange)
    device.learn(stream(40))
    device.syncing.begin()
    assert device.syncing.busy
    device.learn(stream(30, 1))
    device.sync()
    assert total(exchange) == Stats.of(P, np.vstack([stream(40), stream(30, 1)]))


def test_without_a_disk_nothing_is_pushed(exchange, devices):
    device = devices(exchange)
    device.learn(stream(40))
    device.can_save = False
    assert "cannot be saved" in device.sync()["exchange"]
    assert total(exchange).count == 0
    device.can_save = True
    assert device.sync()["pushed"] == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_after_a_failure_the_very_same_is_pushed_again_and_then_what_is_new(
    exchange, devices, when
):
    failing = Failing(exchange)
    setattr(failing, when, UnavailableError("gone"))
    device = devices(failing)
    device.learn(stream(40))
    assert "away since" in device.sync()["exchange"]
    first = list(device.memory.pending)
    again = devices(failing, like=device)  # after a restart
    again.learn(stream(30, 1))
    assert again.memory.pending == first
    setattr(failing, when, None)
    found = again.sync()
    assert found["pushed"] == 2  # the old one, and in the same go the new one
    assert total(exchange) == Stats.of(P, np.vstack([stream(40), stream(30, 1)]))


def test_while_the_exchange_is_away_memory_and_disk_stay_bounded(exchange, devices):
    failing = Failing(exchange)
    failing.before = UnavailableError("gone")
    device = devices(failing)
    device.learn(stream(300))
    device.sync()
    size = len(device.saved[-1])
    for _ in range(5):
        device.learn(stream(256))
        device.sync()
    assert len(device.memory.pending) == 1
    assert len(device.saved[-1]) < size + 100


def test_who_is_denied_goes_on_and_tries_again_late(exchange, devices):
    failing = Failing(exchange)
    failing.before = DeniedError("token revoked")
    device = devices(failing)
    device.learn(stream(40))
    assert device.sync()["exchange"] == "denied: token revoked"
    assert 30.0 <= device.syncing._schedule.next <= 60.0
    failing.before = None
    assert device.sync()["exchange"] == "ok"


def test_what_is_refused_for_good_is_not_pushed_for_ever(exchange, devices):
    failing = Failing(exchange)
    failing.push_fails = RejectedError("sums fell")
    device = devices(failing)
    device.learn(stream(40))
    assert device.sync()["exchange"] == "refused: sums fell"
    assert device.memory.pending == []


def test_a_mistake_in_an_exchange_does_not_end_the_courier(exchange, devices):
    failing = Failing(exchange)
    failing.before = ZeroDivisionError("a bug")
    device = devices(failing)
    assert "a bug" in device.sync()["exchange"]
    failing.before = None
    assert device.sync()["exchange"] == "ok"


def test_a_restored_disk_starts_a_new_incarnation_and_counts_every_sample_once(
    exchange, devices, caplog
):
    device = devices(exchange)
    device.learn(stream(40))
    device.sync()
    old = devices(exchange, like=device)  # a copy of the disk, taken now
    device.learn(stream(40, 1))
    device.sync()
    usual = stream(1, 9)[0]
    score = device.memory.learner.score(usual)
    old.learn(stream(30, 2))  # the copy goes on, and meets what came after it
    assert old.sync()["exchange"] == "ok"
    assert "old copy of its disk" in caplog.text
    assert old.memory.incarnation == 5_000_000
    assert own_stats(old.memory.learner) == {}
    assert old.memory.pending == []
    assert old.memory.learner.others == Stats.of(P, np.vstack([stream(40), stream(40, 1)]))
    assert old.memory.learner.score(usual) == pytest.approx(score)
    old.learn(stream(20, 3))
    old.sync()
    every = np.vstack([stream(40), stream(40, 1), stream(20, 3)])
    assert total(exchange) == Stats.of(P, every)
    thing = old.memory.learner
    assert thing.own + thing.others == Stats.of(P, every)


def test_a_new_incarnation_rises_even_if_the_clock_has_jumped_back(exchange, devices):
    device = devices(exchange)
    device.memory.incarnation = 10**15
    device.sharing.start_new_incarnation(lambda: 3.0)
    assert device.memory.incarnation == 10**15 + 1


def test_an_emptied_pattern_that_was_filled_again_before_a_kill_is_not_stale(exchange):
    empty = Contribution("pump-1", Stats.empty(P), 4)
    full = Contribution("pump-1", Stats.of(P, stream(40)), 5)
    both = ExchangeJob((empty, full))
    assert run_exchange(exchange, both).error is None
    again = run_exchange(exchange, both)
    assert (again.pushed, again.error) == (2, None)
    exchange.push(Contribution("pump-1", Stats.of(P, stream(50)), 6))
    assert isinstance(run_exchange(exchange, both).error, StaleError)


@pytest.mark.parametrize("revision", [4, 5, 6])
def test_what_another_copy_of_the_disk_pushed_is_not_taken_for_ours(exchange, revision):
    theirs = Contribution("pump-1", Stats.of(P, stream(50)), revision)
    exchange.push(theirs)
    empty = Contribution("pump-1", Stats.empty(P), 4)
    full = Contribution("pump-1", Stats.of(P, stream(40)), 5)
    assert isinstance(run_exchange(exchange, ExchangeJob((empty, full))).error, StaleError)
    assert total(exchange) == theirs.stats


def test_a_courier_that_hangs_is_left_behind():
    hangs, closed = Event(), Event()

    class Hanging:
        def pull(self, _selection, **_how):
            hangs.wait(60.0)

        def close(self):
            closed.set()  # a connection that is in use would make whoever closes it wait

    courier = exchange_worker(Hanging())
    courier.send(ExchangeJob(pull=ALL))
    courier.close(0.05)  # returns
    assert courier.outcome() is None
    assert not closed.is_set()
    hangs.set()
    courier.close(20.0)
    assert closed.is_set()


def test_devices_sync_at_different_times_but_each_at_the_same():
    firsts = []
    for device in ("a", "b", "c", "a"):
        schedule = SyncSchedule(100.0, 0.1, device)
        schedule.start(0.0)
        firsts.append(schedule.next)
    assert len(set(firsts)) == 3
    assert firsts[0] == firsts[3]
    assert all(0.0 <= first <= 100.0 for first in firsts)


def test_intervals_have_jitter_and_failures_growing_delays_with_a_bound():
    schedule = SyncSchedule(3600.0, 0.1, "pump-1")
    for _ in range(50):
        schedule.succeeded(0.0)
        assert 3240.0 <= schedule.next <= 3960.0
    waits = []
    for _ in range(30):
        schedule.failed(0.0)
        waits.append(schedule.next)
    assert waits[0] <= 2.0
    assert all(late > 2 * early for early, late in pairwise(waits[:8:3]))
    assert SYNC_MAX_RETRY_S / 2 <= waits[-1] <= SYNC_MAX_RETRY_S
    assert len(set(waits[-5:])) == 5
    schedule.failed(0.0, retry_s=700.0)
    schedule.succeeded(0.0)
    schedule.failed(0.0, retry_s=700.0)
    assert schedule.next == 700.0
    schedule.failed(0.0, retry_s=1e9)
    assert schedule.next <= SYNC_MAX_RETRY_S


def test_an_interval_of_nothing_means_on_command_only():
    schedule = SyncSchedule(0.0, 0.1, "pump-1")
    schedule.start(0.0)
    assert schedule.next == inf
    schedule.failed(0.0)
    assert schedule.next == inf
    schedule.succeeded(0.0)
    assert not schedule.due(1e300)


def test_a_sync_is_begun_when_it_is_due(exchange, devices):
    device = devices(exchange)
    device.learn(stream(40))
    device.syncing.tend()
    assert not device.syncing.busy
    device.now = 60.0
    device.tend_until(lambda: total(exchange).count and not device.syncing.busy)
    assert device.syncing.plain()["last_sync"] == "1970-01-01T01:23:20Z"
    assert device.syncing._schedule.next > 60.0


class Sixteen(MemoryExchange):
    """An exchange that takes 16 patterns of a device, as a server does."""

    def push(self, contribution):
        there = {origin.pattern for origin in self.pull(Selection()).origins}
        if len(there | {contribution.pattern}) > MAX_PATTERNS:
            raise RejectedError("expected at most 16 patterns of a device")
        super().push(contribution)


def test_of_more_than_sixteen_patterns_the_largest_are_shared_and_none_is_lost(devices):
    bank, exchange = Bank(P, max_patterns=20), Sixteen(P)
    for k in range(18):
        bank.patterns.add(f"p{k:02}", Stats.of(P, stream(40 + k, k)), np.empty((0, P.n_inputs)))
    monitor = Monitor(bank, learn="always")
    state = AgentState("pump-1", 1000, monitor, merged=encode(Merged(P)))
    device = devices(exchange, memory=state)
    found = device.sync()
    assert (found["pushed"], found["exchange"], found["pending"]) == (MAX_PATTERNS, "ok", 0)
    there = {origin.pattern for origin in exchange.pull(Selection()).origins}
    assert there == {f"p{k:02}" for k in range(2, 18)}
    assert [each.partition(":")[0] for each in found["held_back"]] == ["p01", "p00"]
    assert "lower learner.max_patterns" in found["held_back"][0]
    assert device.sync()["pushed"] == 0
