"""The writer: fleets take turns, and on PostgreSQL none waits for another; batches stay whole."""

from functools import partial
from threading import Event

import pytest

from edgemerge.core.errors import SettingError, UnavailableError
from edgemerge.server import audit, fleets
from edgemerge.server.db import base
from edgemerge.server.db.base import Writer
from edgemerge.server.db.migrations import connect
from tests.server.world import FLEET, World
from tests.waiting import DEADLINE_S


@pytest.fixture
def writer(database):
    made = Writer(database)
    yield made
    made.close()


@pytest.fixture
def local_writer(tmp_path):
    database = connect(tmp_path / "fleets.db")
    made = Writer(database)
    yield made
    made.close()
    database.close()


def note(tx, fleet, subject="x"):
    audit.append(tx, at=0.0, actor="me", action="test", fleet=fleet, subject=subject)


def logged(database):
    with database.reading() as tx:
        audit.verify(tx)
        return [(e.fleet, e.subject) for e in audit.entries(tx, fleet=None, after=0, limit=1000)]


def held(writer, fleet, go, before=lambda _tx: None):
    """Let a change of a fleet wait within its transaction until it may go on."""
    inside = Event()

    def change(tx):
        before(tx)
        inside.set()
        assert go.wait(DEADLINE_S)

    done = writer.submit(change, fleet)
    assert inside.wait(DEADLINE_S)
    return done


def test_a_fleet_with_much_to_write_does_not_come_first(local_writer):
    go, order = Event(), []
    held(local_writer, "a", go)
    changes = [local_writer.submit(lambda _tx: order.append("a"), "a") for _ in range(99)]
    changes += [
        local_writer.submit(lambda _tx, name=name: order.append(name), name) for name in "bc"
    ]
    assert local_writer.waiting == 101
    go.set()
    for change in changes:
        change.result(DEADLINE_S)
    assert order[:4] == ["a", "b", "c", "a"]
    assert local_writer.waiting == 0


def test_changes_of_one_fleet_are_made_in_their_order(writer):
    order = []
    changes = [writer.submit(lambda _tx, i=i: order.append(i), "ab"[i % 2]) for i in range(200)]
    for change in changes:
        change.result(DEADLINE_S)
    for odd in (0, 1):
        assert [i for i in order if i % 2 == odd] == list(range(odd, 200, 2))


def test_a_commit_takes_no_further_change_after_a_while(local_writer, monkeypatch):
    monkeypatch.setattr(base, "MAX_BATCH_S", 0.0)
    go = Event()
    first = held(local_writer, "a", go)
    second = Event()
    waits = local_writer.submit(lambda _tx: second.wait(DEADLINE_S), "b")
    go.set()
    first.result(DEADLINE_S)  # though the other is not done
    assert not waits.done()
    second.set()
    waits.result(DEADLINE_S)


@pytest.mark.slow
def test_on_postgresql_a_fleet_does_not_wait_for_another_though_both_are_logged(
    fresh_postgres_url,
):
    database = connect(fresh_postgres_url)
    writer, go = Writer(database), Event()
    slow = held(writer, "a", go, lambda tx: note(tx, "a"))
    try:
        for i in range(3):
            writer.write(partial(note, fleet="b", subject=str(i)), DEADLINE_S, fleet="b")
        assert not slow.done()
        again = writer.submit(lambda tx: note(tx, "a", "later"), "a")
        assert not again.done(), "changes of one fleet keep their order"
    finally:
        go.set()
    slow.result(DEADLINE_S)
    again.result(DEADLINE_S)
    writer.close()
    assert logged(database) == [("b", "0"), ("b", "1"), ("b", "2"), ("a", "x"), ("a", "later")]
    database.close()


def test_of_a_change_that_is_refused_nothing_is_logged(writer, database):
    go = Event()
    held(writer, "a", go)

    def refused(tx):
        note(tx, "a", "refused")
        raise SettingError("no")

    changes = [
        writer.submit(lambda tx: note(tx, "a", "first"), "a"),
        writer.submit(refused, "a"),
        writer.submit(lambda tx: note(tx, "a", "last"), "a"),
    ]
    go.set()
    with pytest.raises(SettingError):
        changes[1].result(DEADLINE_S)
    changes[2].result(DEADLINE_S)
    assert logged(database) == [("a", "first"), ("a", "last")]


def test_a_database_that_is_away_is_told_to_all_who_wait(local_writer, monkeypatch):
    monkeypatch.setattr(base, "MAX_BATCH_S", 0.0)  # so that the others come in another commit
    go = Event()
    first = held(local_writer, "a", go)

    def away():
        raise UnavailableError("away")

    monkeypatch.setattr(local_writer._database, "writing", away)
    changes = [local_writer.submit(lambda _tx: None, name) for name in "abc"]
    go.set()
    first.result(DEADLINE_S)
    for change in changes:
        with pytest.raises(UnavailableError, match="away"):
            change.result(DEADLINE_S)


def test_a_change_that_asks_for_patience_does_not_take_others_with_it(writer, database):
    go = Event()
    held(writer, "a", go)

    def busy(tx):
        note(tx, "a", "busy")
        raise UnavailableError("there is much to check")

    changes = [
        writer.submit(lambda tx: note(tx, "a", "first"), "a"),
        writer.submit(busy, "a"),
        writer.submit(lambda tx: note(tx, "b", "last"), "b"),
    ]
    go.set()
    with pytest.raises(UnavailableError, match="much to check"):
        changes[1].result(DEADLINE_S)
    changes[0].result(DEADLINE_S)
    changes[2].result(DEADLINE_S)
    assert sorted(logged(database)) == [("a", "first"), ("b", "last")]


def test_a_fleet_made_again_in_the_same_commit_has_later_epochs(database_url):
    world = World(database_url)
    go = Event()
    slow = held(world.service.writer, FLEET, go)

    def again(tx):
        for _ in range(5):
            fleets.next_epoch(tx, FLEET)
            note(tx, FLEET)
        before = fleets.get(tx, FLEET).epoch
        fleets.delete(tx, FLEET)
        note(tx, FLEET)
        fleets.create(tx, world.fleet)
        return before, fleets.get(tx, FLEET).epoch

    change = world.service.writer.submit(again, FLEET)
    go.set()
    slow.result(DEADLINE_S)
    before, after = change.result(DEADLINE_S)
    assert after > before
    world.close()


def test_what_waits_is_written_before_the_writer_ends(tmp_path):
    database = connect(tmp_path / "fleets.db")
    writer, go = Writer(database), Event()
    held(writer, "a", go)
    changes = [writer.submit(lambda tx: note(tx, "b"), "b") for _ in range(50)]
    go.set()
    writer.close()
    assert all(change.done() for change in changes)
    assert len(logged(database)) == 50
    with pytest.raises(UnavailableError):
        writer.submit(lambda _tx: None)
    database.close()
