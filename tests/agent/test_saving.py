"""Saving in the background: what is written, when, and what waits for it."""

from threading import Event, current_thread

import pytest

from edgemerge import Contribution, Detector, MemoryExchange, Monitor, Stats
from edgemerge.agent.background import SyncSchedule, exchange_worker, save_worker
from edgemerge.agent.config import SaveConfig, SyncConfig
from edgemerge.agent.features import Raw
from edgemerge.agent.state import AgentState, StateFolder, StateSaver, seal_state, state_from_bytes
from edgemerge.agent.sync import Clocks, SharingPolicy, Synchronizer
from edgemerge.core.ledger import Merged, Selection
from edgemerge.wire.codec import encode
from tests.agent.agents import shared, stream
from tests.waiting import DEADLINE_S, until

P = shared()
PEER = Contribution("pump-2", Stats.of(P, stream(200, 5)), 1)


class Disk:
    """A state folder that writes when it is told to, and keeps what it wrote."""

    def __init__(self):
        self.free, self.states, self.writers, self.error = Event(), [], [], None
        self.free.set()

    def write(self, tensors):
        assert self.free.wait(DEADLINE_S)
        self.writers.append(current_thread())
        if self.error is not None:
            raise self.error
        self.states.append(state_from_bytes(seal_state(tensors)))

    def discard(self):
        self.states.append(None)


class Desk:
    """A state with what saves it."""

    def __init__(self, disk):
        self.disk, self.now, self.told = disk, 0.0, []
        monitor = Monitor(Detector(P), learn="always")
        self.memory = AgentState("pump-1", 1000, monitor, merged=encode(Merged(P)))
        self.worker = save_worker(disk)
        often = SaveConfig(every=100, every_s=10.0)
        self.keeper = StateSaver(
            disk, self.memory, Raw(), often, worker=self.worker, steady=lambda: self.now
        )

    def tend_until(self, condition):
        def tended():
            self.keeper.tend()
            return condition()

        until(tended)


@pytest.fixture
def disk():
    return Disk()


@pytest.fixture
def desk(disk):
    made = Desk(disk)
    yield made
    disk.free.set()
    made.worker.close(5.0)


def test_few_readings_are_saved_after_a_while(desk):
    desk.keeper.count()
    for desk.now, writes in ((9.9, 0), (10.0, 1), (30.0, 1)):  # nothing has come in since
        desk.keeper.tend()
        desk.tend_until(lambda: not desk.keeper.busy)
        assert len(desk.disk.states) == writes
    desk.keeper.count()
    desk.keeper.tend()
    desk.tend_until(lambda: len(desk.disk.states) == 2)


def test_many_readings_are_saved_at_once(desk):
    for _ in range(100):
        assert not desk.keeper.busy
        desk.keeper.count()
        desk.keeper.tend()
    assert desk.keeper.busy


def test_the_state_is_copied_here_and_now_and_written_in_another_thread(desk):
    desk.disk.free.clear()
    desk.memory.index = 7
    desk.memory.learner.learn(stream(10))
    own = desk.memory.learner.own
    desk.keeper.begin(desk.told.append)
    assert desk.keeper.busy  # it has returned, and nothing is written yet
    desk.memory.index = 8
    desk.memory.learner.learn(stream(10, 1))
    desk.disk.free.set()
    desk.tend_until(lambda: desk.told)
    [saved] = desk.disk.states
    assert (saved.index, desk.told) == (7, [""])
    assert saved.learner.own == own
    assert desk.disk.writers != [current_thread()]


def test_what_is_asked_for_during_a_write_is_in_the_next(desk):
    desk.disk.free.clear()
    desk.keeper.begin(lambda why: desk.told.append(("first", why)))
    desk.memory.index = 1
    desk.keeper.begin(lambda why: desk.told.append(("second", why)))
    desk.keeper.begin(lambda why: desk.told.append(("third", why)))
    desk.keeper.tend()
    assert not desk.told
    desk.disk.free.set()
    desk.tend_until(lambda: len(desk.told) == 3)
    assert [each.index for each in desk.disk.states] == [0, 1]  # one write for both
    assert [name for name, _ in desk.told] == ["first", "second", "third"]


def test_saving_now_waits_for_a_write_and_writes_again(desk):
    desk.keeper.begin(desk.told.append)
    desk.memory.index = 1
    assert desk.keeper.save()
    assert (desk.told, desk.disk.states[-1].index) == ([""], 1)


def test_a_full_disk_is_told_to_all_who_wait_and_mended_later(desk, caplog):
    desk.disk.error = OSError(28, "No space left on device")
    desk.keeper.begin(desk.told.append)
    assert not desk.keeper.save()
    assert desk.told == ["No space left on device"]
    assert desk.keeper.trouble == "the state cannot be saved: No space left on device"
    assert len([each for each in caplog.records if "cannot be saved" in each.message]) == 1
    desk.disk.error = None
    assert desk.keeper.save()
    assert not desk.keeper.trouble


def test_a_state_that_is_being_written_does_not_come_back_after_it_is_discarded(desk):
    desk.keeper.begin()
    desk.keeper.discard()
    assert desk.disk.states[-1] is None
    assert len(desk.disk.states) == 2


def test_the_folder_reads_what_was_written(tmp_path):
    folder = StateFolder(tmp_path)
    desk = Desk(folder)
    desk.memory.index = 5
    assert desk.keeper.save()
    assert folder.read().index == 5
    desk.worker.close(5.0)
    folder.close()


class Synced(Desk):
    """It also exchanges."""

    def __init__(self, disk, exchange):
        super().__init__(disk)
        self.exchanging = exchange_worker(exchange)
        self.syncing = Synchronizer(
            SharingPolicy(self.memory, gate=2.0, max_shift=1e9),
            self.exchanging,
            SyncSchedule(0.0, 0.0, "pump-1"),
            SyncConfig(every_s=0.0),
            save=self.keeper.begin,
            clocks=Clocks(lambda: 5000.0, lambda: self.now),
        )

    def tend_until(self, condition):
        def tended():
            self.syncing.tend()
            self.keeper.tend()
            return condition()

        until(tended)

    def sync(self):
        answers = []
        self.syncing.begin(answers.append)
        self.tend_until(lambda: answers)
        return answers[0]


@pytest.fixture
def exchange():
    return MemoryExchange(P)


@pytest.fixture
def synced(disk, exchange):
    made = Synced(disk, exchange)
    made.memory.learner.learn(stream(200))
    exchange.push(PEER)
    yield made
    disk.free.set()
    made.syncing.close(5.0)
    made.worker.close(5.0)


def devices_of(exchange):
    return {origin.device for origin in exchange.pull(Selection()).origins}


def test_nothing_is_pushed_before_it_is_saved(synced, exchange, disk):
    disk.free.clear()
    synced.syncing.begin(synced.told.append)
    for _ in range(20):
        synced.syncing.tend()
        synced.keeper.tend()
        assert synced.syncing.busy
    assert devices_of(exchange) == {"pump-2"}
    disk.free.set()
    synced.tend_until(lambda: synced.told)
    assert devices_of(exchange) == {"pump-1", "pump-2"}
    assert disk.states[0].pending  # a restart would push it again
    assert synced.told[0]["pushed"] == 1


def test_what_was_adopted_is_saved_before_the_answer(synced, disk):
    assert synced.sync()["told"] == "adopted 200 samples of 1 devices"
    assert disk.states[-1].merged == synced.memory.merged
    assert not disk.states[-1].pending
    assert disk.states[-1].learner.others == synced.memory.learner.others


def test_nothing_is_pushed_if_it_cannot_be_saved(synced, exchange, disk):
    disk.error = OSError(28, "No space left on device")
    assert "nothing is shared" in synced.sync()["exchange"]
    assert devices_of(exchange) == {"pump-2"}
    disk.error = None
    assert synced.sync()["pushed"] == 1


def test_undo_while_the_merge_is_being_saved_comes_after_it(synced, disk):
    before = synced.memory.learner.others
    synced.syncing.begin(synced.told.append)
    synced.tend_until(lambda: synced.memory.learner.others != before)
    assert synced.syncing.busy  # what was adopted is being saved
    undone = []
    synced.syncing.undo(undone.append)
    synced.tend_until(lambda: undone)
    assert undone == [{"told": "the last merge was undone"}]
    assert synced.memory.learner.others == before
    assert disk.states[-1].learner.others == before


def test_what_an_exchange_brings_waits_while_an_undo_is_being_saved(synced, exchange, disk):
    synced.sync()
    exchange.push(Contribution("pump-2", Stats.of(P, stream(300, 5)), 2))
    synced.syncing.begin(synced.told.append)
    synced.tend_until(lambda: synced.exchanging.busy)
    disk.free.clear()
    undone = []
    synced.syncing.undo(undone.append)
    synced.tend_until(lambda: synced.keeper.busy)
    until(synced.exchanging._results.full)  # it has ended
    for _ in range(20):
        synced.syncing.tend()
        assert synced.syncing.plain()["told"] == "the last merge was undone"
    disk.free.set()
    synced.tend_until(lambda: undone and synced.told)
    assert synced.told[0]["told"] == "adopted 300 samples of 1 devices"


def test_an_exchange_that_is_asked_for_during_a_save_is_made_after_it(synced, exchange, disk):
    disk.free.clear()
    synced.syncing.begin(synced.told.append)
    synced.syncing.begin(synced.told.append)
    disk.free.set()
    synced.tend_until(lambda: len(synced.told) == 2)
    assert devices_of(exchange) == {"pump-1", "pump-2"}
