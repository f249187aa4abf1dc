"""Adopting in the background: planned in another thread, applied between two samples."""

from collections import Counter
from functools import partialmethod
from threading import Event, get_ident

import numpy as np
import pytest

from edgemerge import Bank, Contribution, Detector, Monitor, Stats
from edgemerge.agent.background import (
    ExchangeJob,
    OverBudgetError,
    TimeBudget,
    fair_share,
    run_exchange,
)
from edgemerge.agent.state import AgentState, merged_digest, state_from_bytes, state_to_bytes
from edgemerge.agent.sync import MAX_PLANS
from edgemerge.core.ledger import Merged, MergedPart, Selection
from edgemerge.exchange.folder import FolderExchange
from edgemerge.exchange.protocol import MemoryExchange
from edgemerge.wire.codec import encode
from edgemerge.wire.state import to_bytes
from tests.agent.agents import Running, configured, shared, stream, write_rows
from tests.agent.test_syncing import Device
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.usefixtures("unchecked")

P = shared()
TRY = stream(40, seed=99)
MINE, MORE = stream(200), stream(70, seed=4)
PLACES = (0.2, 0.5, 0.8, 0.0, 0.65)
PLANS = {kind: kind.plan for kind in (Bank, Detector)}
KINDS = {"detector": Detector, "bank": lambda shared: Bank(shared, max_patterns=2)}  # no splits


def peers(count=3, rows=100):
    """What other devices saw: the first is like us, the others are not."""
    return [
        Contribution(f"peer-{i}", Stats.of(P, stream(rows, 10 + i, PLACES[i])), 1)
        for i in range(count)
    ]


def merged_of(notes):
    return Merged(P, tuple(MergedPart.of([note], P) for note in notes))


class Held:
    """Stands in for `plan`: it waits until it is let go, and remembers its threads."""

    def __init__(self, real):
        self.real, self.started, self.go, self.threads = real, Event(), Event(), []

    def __call__(self, *given):
        self.threads.append(get_ident())
        self.started.set()
        assert self.go.wait(DEADLINE_S)
        return self.real(*given)

    def hold(self):
        self.started.clear()
        self.go.clear()


@pytest.fixture
def held(monkeypatch):
    found = Held(lambda learner, *given: PLANS[type(learner)](learner, *given))
    for kind in PLANS:
        monkeypatch.setattr(kind, "plan", partialmethod(found))
    yield found
    found.go.set()


@pytest.fixture
def exchange():
    made = MemoryExchange(P)
    for note in peers():
        made.push(note)
    return made


@pytest.fixture
def devices(held):
    """Make devices that have learnt something, and whose threads end with the test."""
    made = []

    def make(exchange, kind="bank"):
        monitor = Monitor(KINDS[kind](P), learn="always")
        memory = AgentState("pump-1", 1000, monitor, merged=encode(Merged(P)))
        device = Device(exchange, memory, push=False)
        goes_on(device.memory.learner, MINE)
        made.append(device)
        return device

    yield make
    held.go.set()
    for device in made:
        device.syncing.close(5.0)


def goes_on(learner, rows):
    for x in rows:
        learner.learn(learner.look(x))


def copy(device):
    return state_from_bytes(state_to_bytes(device.memory)).learner


def begun(device, held):
    """Exchange until the plan is under way; give what will be answered."""
    answers = []
    device.syncing.begin(answers.append)
    device.tend_until(held.started.is_set)
    return answers


def synced(device, held):
    held.go.set()
    return device.sync()


def scores(learner):
    return [learner.score(x) for x in TRY]


def same(one, other):
    """Whether two learners know the same, to the last bit, and score alike."""
    assert scores(one) == scores(other)
    return to_bytes(one) == to_bytes(other)


def recording(threads, function):
    """Wrap a function so that the threads that call it are remembered."""

    def called(*given):
        threads.add(get_ident())
        return function(*given)

    return called


def test_an_agent_plans_in_another_thread_than_that_of_its_results(tmp_path, held, monkeypatch):
    held.go.set()
    config = configured(tmp_path, "sync.gate=0", kind="bank")
    exchange = FolderExchange(tmp_path / "exchange", P)
    for note in peers():
        exchange.push(note)
    write_rows(tmp_path / "pump-1.csv", MINE)
    results, applied = set(), set()
    monkeypatch.setattr(Bank, "apply", recording(applied, Bank.apply))
    running = Running(config)
    listens = running.listener
    monkeypatch.setattr(listens, "verdict", recording(results, listens.verdict))
    with running:
        running.until(lambda: applied)
    assert len(results) == 1
    assert applied == results
    assert not results & set(held.threads)


@pytest.mark.parametrize("kind", KINDS)
def test_results_come_while_it_is_planned_and_the_answer_comes_after(exchange, devices, held, kind):
    device = devices(exchange, kind)
    learner, before = device.memory.learner, device.memory.merged
    alone, answers = copy(device), begun(device, held)
    for x in MORE:
        seen, expected = learner.look(x), alone.look(x)
        assert seen.score == expected.score
        learner.learn(seen)
        alone.learn(expected)
        device.syncing.tend()
        assert device.syncing.busy
    assert answers == []
    assert device.memory.merged == before
    assert {each.others.count for each in learner.detectors.values()} == {0.0}
    held.go.set()
    others = []
    device.syncing._callbacks.append(lambda _: others.append(copy(device)))
    device.tend_until(lambda: answers)
    assert "adopted 300 samples of 3 devices" in answers[0]["told"]
    assert sum(each.others.count for each in others[0].detectors.values()) == 300
    saved = state_from_bytes(device.saved[-1])
    assert saved.merged == device.memory.merged != before
    assert to_bytes(saved.learner) == to_bytes(learner)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "first", "more", "plans"),
    [
        ("detector", 0, 70, 1),
        ("bank", 0, 0, 1),
        ("bank", 0, 20, 1),  # they are buffered
        ("bank", 40, 30, 1),  # a block is learnt, and nothing belongs elsewhere
        ("bank", 0, 40, 2),  # what was foreign is like our own now
    ],
)
def test_a_plan_does_what_adopting_does_at_that_sample(
    exchange, devices, held, kind, first, more, plans
):
    device = devices(exchange, kind)
    goes_on(device.memory.learner, MORE[:first])
    answers = begun(device, held)
    goes_on(device.memory.learner, MORE[first : first + more])
    direct = copy(device)
    held.go.set()
    device.tend_until(lambda: answers)
    direct.adopt(device.memory.decode_merged(device.memory.merged))
    assert same(device.memory.learner, direct)
    assert list(direct.detectors) == list(device.memory.learner.detectors)
    assert len(held.threads) == plans
    goes_on(device.memory.learner, MINE)
    goes_on(direct, MINE)
    assert same(device.memory.learner, direct)


def renamed(bank):
    bank.rename("normal", "idle")


def approved(bank):
    rows = stream(20, seed=7)
    bank.include(Stats.of(P, rows), rows, None)


def found_new(bank):
    goes_on(bank, np.vstack([stream(100, 20), stream(200, 21, place=0.6)]))
    assert [each.kind for each in bank.events] == ["new"]


@pytest.mark.slow
@pytest.mark.parametrize("change", [renamed, approved, found_new])
def test_a_plan_for_patterns_that_have_changed_is_made_again(exchange, devices, held, change):
    device = devices(exchange)
    answers = begun(device, held)
    change(device.memory.learner)
    direct = copy(device)
    held.go.set()
    device.tend_until(lambda: answers)
    assert len(held.threads) == 2
    direct.adopt(device.memory.decode_merged(device.memory.merged))
    assert direct.detectors.keys() == device.memory.learner.detectors.keys()
    assert same(device.memory.learner, direct)


def test_patterns_that_never_rest_are_planned_for_again_at_the_next_exchange(
    exchange, devices, held
):
    device = devices(exchange)
    names = iter("abcdefg")
    answers = begun(device, held)
    plan = held.real

    def changing(*given):
        device.memory.learner.rename(next(iter(device.memory.learner)), next(names))
        return plan(*given)

    held.real = changing
    held.go.set()
    device.tend_until(lambda: answers)
    assert len(held.threads) == MAX_PLANS
    assert "patterns changed 3 times" in answers[0]["told"]
    assert device.memory.rejected == {}
    held.real = plan
    assert "adopted 300 samples" in device.sync()["told"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_takes_too_long_is_refused_with_the_device_that_has_most_patterns(
    devices, held, kind, caplog
):
    exchange = MemoryExchange(P)
    for i, place in enumerate(PLACES):
        stats = Stats.of(P, stream(40, 50 + i, place))
        exchange.push(Contribution("hostile", stats, 1, f"pattern-{i}"))
    exchange.push(peers()[0])
    device = devices(exchange, kind)
    before, merged = to_bytes(device.memory.learner), device.memory.merged
    device.sharing._timeout_s = 1e-9
    found = synced(device, held)
    assert "5 of 6 patterns are of hostile" in found["told"]
    assert "sync.without" in found["told"]
    assert "sync.adopt_timeout_s" in found["told"]
    assert found["exchange"] == "ok"
    assert "refused a merge" in caplog.text
    assert to_bytes(device.memory.learner) == before
    assert device.memory.merged == merged
    assert "refused" in synced(device, held)["told"]
    assert len(held.threads) == 1  # it is not tried again


def test_a_mistake_in_planning_does_not_end_the_agent(exchange, devices, held):
    device = devices(exchange)

    def fails(*_given):
        raise ZeroDivisionError("as planned")

    plan, held.real = held.real, fails
    assert "ZeroDivisionError" in synced(device, held)["told"]
    held.real = plan
    exchange.push(Contribution("peer-9", Stats.of(P, stream(60, 77)), 1))
    assert "adopted 360 samples" in synced(device, held)["told"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_merge_is_undone_in_the_background_to_the_last_bit(exchange, devices, held, kind):
    device = devices(exchange, kind)
    synced(device, held)
    first, held_before = scores(device.memory.learner), device.memory.merged
    exchange.push(Contribution("peer-9", Stats.of(P, stream(60, 77)), 1))
    synced(device, held)
    assert scores(device.memory.learner) != first
    held.hold()
    told = []
    device.syncing.undo(told.append)
    device.tend_until(held.started.is_set)
    device.syncing.undo(told.append)  # twice is once
    assert told == []
    assert get_ident() not in held.threads
    held.go.set()
    device.tend_until(lambda: told)
    assert told == 2 * [{"told": "the last merge was undone"}]
    assert scores(device.memory.learner) == first
    assert state_from_bytes(device.saved[-1]).merged == held_before
    assert "it was undone" in synced(device, held)["told"]
    device.syncing.undo(told.append)
    assert "nothing to undo" in told[-1]["told"]


def test_undoing_means_the_merge_that_is_held_not_the_one_being_planned(exchange, devices, held):
    device = devices(exchange)
    first = scores(device.memory.learner)
    synced(device, held)
    held.hold()
    exchange.push(Contribution("peer-9", Stats.of(P, stream(60, 77)), 1))
    answers, told = begun(device, held), []
    device.syncing.undo(told.append)
    held.go.set()
    device.tend_until(lambda: told and answers)
    assert told == [{"told": "the last merge was undone"}]
    assert device.memory.merged == encode(Merged(P))
    assert scores(device.memory.learner) == first
    assert "adopted 360 samples" in synced(device, held)["told"]


def test_undoing_while_an_exchange_is_under_way_does_not_end_it(exchange, devices, held):
    device = devices(exchange)
    synced(device, held)
    hangs, pull = Event(), exchange.pull
    exchange.pull = lambda *given, **how: (hangs.wait(DEADLINE_S), pull(*given, **how))[1]
    answers, told = [], []
    device.syncing.begin(answers.append)
    device.syncing.undo(told.append)
    device.tend_until(lambda: told)
    assert answers == []
    assert device.syncing.busy
    hangs.set()
    device.tend_until(lambda: answers)
    assert "it was undone" in answers[0]["told"]


def test_who_asks_while_it_is_planned_gets_what_was_pushed_since(exchange, devices, held):
    device = devices(exchange)
    first, later = begun(device, held), []
    exchange.push(Contribution("peer-9", Stats.of(P, stream(60, 77)), 1))
    device.syncing.begin(later.append)
    held.go.set()
    device.tend_until(lambda: first and later)
    assert "adopted 360 samples" in later[0]["told"]


def test_a_sync_that_is_asked_for_while_undoing_is_made_after_it(exchange, devices, held):
    device = devices(exchange)
    synced(device, held)
    device.syncing._ok = False  # as after an exchange that failed
    held.hold()
    told, answers = [], []
    device.syncing.undo(told.append)
    device.tend_until(held.started.is_set)
    device.syncing.begin(answers.append)
    held.go.set()
    device.tend_until(lambda: answers)
    assert told == [{"told": "the last merge was undone"}]
    assert "it was undone" in answers[0]["told"]


def test_a_plan_that_hangs_is_left_behind(exchange, devices, held):
    device = devices(exchange)
    begun(device, held)
    device.syncing.close(0.05)  # returns
    assert device.syncing.busy


def hostile(patterns, count=5000):
    parts = [Stats.of(P, stream(count // 100, 30 + i)) for i in range(patterns)]
    return [Contribution("a-hostile", each, 1, f"p{i:03}") for i, each in enumerate(parts)]


def test_a_device_with_many_patterns_pushes_out_its_own_only():
    notes = [*hostile(30), *peers(5, rows=20)]
    kept = fair_share(merged_of(notes), 10)
    devices = Counter(origin.device for origin in kept.origins)
    assert devices.pop("a-hostile") == 5
    assert devices == {f"peer-{i}": 1 for i in range(5)}
    few = merged_of(peers())
    assert fair_share(few, 3) is few


def test_of_each_device_the_largest_patterns_are_kept_in_their_order():
    sizes = [20, 60, 40, 80]
    notes = [
        Contribution("peer", Stats.of(P, stream(rows, i)), 1, f"p{i}")
        for i, rows in enumerate(sizes)
    ]
    kept = fair_share(merged_of(notes), 2)
    assert [part.stats.count for part in kept.parts] == [60, 80]


def test_an_exchange_says_what_it_left_out():
    exchange = MemoryExchange(P)
    for i, place in enumerate(PLACES):
        exchange.push(Contribution("hostile", Stats.of(P, stream(40, 50 + i, place)), 1, f"p{i}"))
    found = run_exchange(exchange, ExchangeJob((), Selection(), most=2))
    assert len(found.merged.parts) == 2
    assert "3 patterns were left out, since at most 2 are compared; 3 of" in found.left_out
    assert "of hostile" in found.left_out
    assert found.digest == merged_digest(encode(found.merged))
    assert run_exchange(exchange, ExchangeJob((), Selection(), most=5)).left_out == ""


def test_a_bank_of_many_hostile_patterns_says_what_it_left_out(devices, held, monkeypatch):
    monkeypatch.setattr(Bank, "max_compared", 3)
    exchange = MemoryExchange(P)
    for i, place in enumerate(PLACES):
        exchange.push(Contribution("hostile", Stats.of(P, stream(40, 50 + i, place)), 1, f"p{i}"))
    device = devices(exchange)
    told = synced(device, held)["told"]
    assert "adopted 120 samples of 1 devices; 2 patterns were left out" in told
    assert synced(device, held)["told"] == "nothing new"


def test_twice_the_patterns_that_a_bank_can_keep_are_compared():
    assert Bank(P, max_patterns=3).max_compared == 24
    assert Detector(P).max_compared is None


class Time:
    """A clock that goes on by itself, and by pauses."""

    def __init__(self, step_s):
        self.now, self.step_s, self.paused = 0.0, step_s, []

    def __call__(self):
        self.now += self.step_s
        return self.now

    def pause(self, seconds):
        self.paused.append(seconds)
        self.now += seconds


def test_a_budget_leaves_half_of_the_time_to_others_and_then_ends():
    time = Time(0.001)
    budget = TimeBudget(1.0, time, time.pause)
    while time.now < 1.0:
        budget.check()
    with pytest.raises(OverBudgetError, match="longer than 1 s"):
        budget.check()
    assert 0.3 < sum(time.paused) < 0.6
    assert 1.0 <= time.now < 1.1


def test_a_long_step_is_followed_by_a_short_pause():
    time = Time(0.5)
    budget = TimeBudget(10.0, time, time.pause)
    budget.check()
    assert time.paused == [0.01]
