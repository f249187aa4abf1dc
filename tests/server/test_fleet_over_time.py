"""A fleet over time: devices that come and go, sums that are let go of, and what is made anew."""

from dataclasses import replace
from time import monotonic

import numpy as np
import pytest

from edgemerge import Contribution, Stats
from edgemerge.core.errors import DeniedError
from edgemerge.core.ledger import Selection
from edgemerge.server import totals
from edgemerge.server.db.base import DiskFullError
from tests.server.world import FLEET, ROOT, SHARED, generator, note

pytestmark = pytest.mark.slow  # many of a tenth of a second


def seen(world):
    return {device.device: device.seen for device in world.service.devices(FLEET)}


def test_a_device_was_seen_when_it_last_pushed_new_or_not(world):
    contribution = note("a", 1, generator(0))
    world.caller("b")
    world.now = 2000.0
    world.put(contribution)
    assert seen(world) == {"a": 2000.0, "b": None}
    world.now = 3000.0
    assert not world.put(contribution).new
    assert seen(world) == {"a": 3000.0, "b": None}


def test_a_refused_push_is_no_sign_of_life(world):
    rng = generator(0)
    world.put(note("a", 2, rng))
    world.now = 3000.0
    assert world.put(note("a", 1, rng)).problem == "stale"
    assert world.put(note("a", 2, rng)).problem == "equivocation"
    assert seen(world) == {"a": 1000.0}


@pytest.mark.parametrize("grouped", [False, True])
def test_a_fleet_made_anew_tells_nothing_of_the_one_before(world, grouped):
    rng, wish = generator(0), Selection()
    world.put(note("a", 1, rng))
    world.must_agree(wish, grouped=grouped)
    world.service.delete(FLEET, ROOT)
    world.fleet = replace(world.fleet, created=1.0)
    world.service.create(world.fleet, ROOT)
    world.truth, world.tokens = {}, {}
    world.put(note("b", 1, rng))  # as many changes as the other fleet had
    world.must_agree(wish, grouped=grouped)


def revoked(world):
    return [device.revoked for device in world.service.devices(FLEET)]


def test_a_device_revoked_twice_was_revoked_the_first_time(world):
    world.caller("a")
    for world.now in (2000.0, 3000.0):
        world.service.revoke(FLEET, "a", ROOT)
        assert revoked(world) == [2000.0]


def test_a_revoked_device_is_let_in_again_by_an_invitation_in_its_name(world):
    contribution = note("a", 1, generator(0))
    world.caller("a")
    world.service.revoke(FLEET, "a", ROOT)
    with pytest.raises(DeniedError, match="ask an operator for an invitation"):
        world.put(contribution)
    del world.tokens["a"]
    assert world.put(contribution).new
    assert revoked(world) == [None]


def test_what_was_dropped_is_gone_from_the_disk_though_others_have_changed(world):
    rng = generator(0)
    for device in "abcd":
        world.put(note(device, 1, rng))
    world.must_agree(Selection(), grouped=True)
    for device in "abc":
        world.put(note(device, 2, rng))
    world.drop("d")
    with world.service.database.reading() as tx:
        assert tx.one("select count(*) from contributions where device = 'd'") == (0,)
        assert tx.one("select count(*) from bodies") == (6,)  # what is counted, and the newest
    world.must_agree(Selection())


@pytest.mark.parametrize("dropped", ["b", "c", "bc"])
def test_a_new_pattern_never_takes_the_place_of_one_that_is_there(world, dropped):
    rng = generator(0)
    centres = np.random.default_rng(3).uniform(-0.8, 0.8, (5, SHARED.n_inputs))
    for number, device in enumerate("abcde"):
        if device == "e":  # numbers of patterns below the last one are free
            for gone in dropped:
                world.drop(gone)
        rows = rng.normal(centres[number], 0.01, (60, SHARED.n_inputs))
        world.put(Contribution(device, Stats.of(SHARED, rows), revision=1))
        parts = world.told(Selection(), grouped=True).parts
        assert all(len(part.devices) == 1 for part in parts)
    left = [device for device in "abcde" if device not in dropped]
    assert sorted(part.devices[0] for part in parts) == left


def test_dropping_makes_room_so_the_server_is_ready_at_once(world):
    world.put(note("a", 1, generator(0)))
    world.service.writer.disk_full_at = monotonic()
    with pytest.raises(DiskFullError, match="free some space, or drop devices"):
        world.service.check()
    world.drop("a")
    world.service.check()


def test_a_device_is_dropped_though_the_sums_and_another_device_are_damaged(world):
    rng = generator(0)
    for device in "ab":
        world.put(note(device, 1, rng))
    world.must_agree(Selection(), grouped=True)
    broken = "select body from contributions where device = 'b'"
    with world.service.database.writing() as tx:
        tx.run("update totals set digest = 'x'")
        tx.run(f"update bodies set data = ? where id = ({broken})", b"no contribution")
    assert world.drop("a") == 1
    assert [entry.device for entry in world.service.contributions(FLEET, ROOT)[1]] == ["b"]


def test_only_so_many_answers_are_remembered(world):
    world.service.pull_service._answers.most = 2
    rng = generator(0)
    for revision in range(1, 6):
        world.put(note("a", revision, rng))
        world.must_agree(Selection())
    assert len(world.service.pull_service._answers) == 2


def test_sums_that_are_only_behind_are_not_taken_for_damaged(world, caplog):
    rng = generator(0)
    for revision in (1, 2):
        world.put(note("a", revision, rng))
        for grouped in (False, True):
            world.must_agree(Selection(), grouped=grouped)
    assert "damaged" not in caplog.text


def test_totals_are_told_though_the_disk_is_full(world, monkeypatch):
    def full(*_):
        raise DiskFullError("the disk is full")

    monkeypatch.setattr(totals, "MAX_INLINE_CHANGES", 1)
    monkeypatch.setattr(totals, "count_changes", full)
    rng = generator(0)
    for device in "abc":
        world.put(note(device, 1, rng))
    world.must_agree(Selection())
