"""Released totals: when there is a new one, what it holds, and what withdraws it."""

from dataclasses import replace

import pytest

from edgemerge import Contribution, Stats, decode, encode
from edgemerge.core.errors import DeniedError
from edgemerge.core.faults import Faults
from edgemerge.core.ledger import Selection
from edgemerge.server import releases
from edgemerge.server.contributions import decode_and_check
from edgemerge.server.db.base import DiskFullError
from edgemerge.server.db.migrations import connect
from edgemerge.server.faults import put_fault
from edgemerge.server.service import Service
from edgemerge.server.totals import rebuild_totals
from tests.cases import machine
from tests.server.world import FLEET, ROOT, SHARED, World, generator, note

pytestmark = pytest.mark.slow  # many of a tenth of a second
TOTALS = {"read_mode": "totals", "min_devices": 3}
FEW = 10  # samples: a device with so few judges nothing


@pytest.fixture
def world(tmp_path):
    made = World(f"sqlite:///{tmp_path / 'fleets.db'}", **TOTALS)
    yield made
    made.close()


def push(world, devices, revision=1, *, place=0.1, pattern="normal", incarnation=0, rows=30):
    for device in devices:
        world.put(
            note(
                *(device, revision, world.rng),
                place=place,
                pattern=pattern,
                incarnation=incarnation,
                rows=rows,
            )
        )


def got(world, who="z", *, grouped=False, incarnation=None):
    asked = Selection(receiver=who, incarnation=incarnation)
    return world.told(asked, world.caller(who), grouped=grouped)


def total(world, devices, pattern="normal"):
    return Stats.total(SHARED, (world.truth[device, 0, pattern].stats for device in devices))


def test_nothing_is_given_before_one_device_more_than_asked_for_has_shared(world):
    push(world, "abc")
    assert got(world).parts == ()
    push(world, "d")
    assert got(world).total == total(world, "abcd")
    assert got(world, "a").total == total(world, "bcd")


def test_a_new_total_waits_for_something_new_of_as_many_devices(world):
    push(world, "abcde")
    first = total(world, "abcde")
    assert got(world).total == first
    for device in "abc":
        push(world, device, revision=2)
        assert got(world).total == first
    push(world, "d", revision=2)
    assert got(world).total == total(world, "abcde") != first


def test_the_callers_own_part_is_taken_out_as_it_is_in_the_total(world):
    push(world, "abcd")
    others = total(world, "bcd")
    assert got(world, "a").total == others
    push(world, "a", revision=2)
    assert got(world, "a").total == others


def test_an_unchanged_answer_costs_no_bytes(world):
    push(world, "abcd")
    asked, caller = Selection(receiver="a"), world.caller("a")
    first = world.service.pull(FLEET, asked, caller, None)
    push(world, "ab", revision=2)
    again = world.service.pull(FLEET, asked, caller, first.tag)
    assert (again.tag, again.data) == (first.tag, None)


def test_the_same_sums_as_a_new_revision_are_nothing_new(world):
    push(world, "abcd")
    first = got(world).total
    for device in "abc":
        world.put(replace(world.truth[device, 0, "normal"], revision=2))
    push(world, "d", revision=2)
    assert got(world).total == first


def withdraw_by_drop(world):
    world.service.drop(FLEET, "b", ROOT)


def withdraw_by_emptying(world):
    push(world, "b", revision=2, rows=0)


def withdraw_by_exclusion(world):
    world.service.choices.exclude(FLEET, ("b", 0, "normal"), ROOT)


def withdraw_by_dismissal(world):
    world.service.choices.decide(FLEET, ("b", 0, "normal"), "dismiss", ROOT)


@pytest.mark.parametrize(
    "act", [withdraw_by_drop, withdraw_by_emptying, withdraw_by_exclusion, withdraw_by_dismissal]
)
def test_what_must_not_be_given_any_more_withdraws_the_total_at_once(world, act):
    push(world, "abcdef")
    assert got(world).parts
    act(world)
    assert got(world).parts == ()
    push(world, "acd", revision=3)
    assert got(world).parts == ()
    push(world, "e", revision=3)
    assert got(world).total == total(world, "acdef")


def test_a_device_that_comes_back_with_what_it_had_is_nothing_new(world):
    push(world, "abcd")
    assert got(world).parts
    known = dict(world.truth)
    for device in "abcd":
        world.drop(device)
        world.put(known[device, 0, "normal"])
    assert got(world).parts == ()
    push(world, "abcd", revision=2)
    assert got(world).total == total(world, "abcd")


def test_an_older_revision_after_a_drop_is_nothing_new(world):
    push(world, "abcd", revision=2)
    assert got(world).parts
    for device in "abcd":
        world.drop(device)
    push(world, "abcd", revision=1)
    assert got(world).parts == ()


def test_a_drop_leaves_nothing_of_the_device_on_disk(world):
    push(world, "abcd")
    assert got(world).parts
    push(world, "b", revision=2)
    world.drop("b")
    with world.service.database.reading() as tx:
        assert tx.one("select count(*) from released") == (0,)
        assert tx.one("select count(*) from bodies") == (3,)


def test_the_bodies_of_a_total_stay_until_the_next_one(world):
    push(world, "abcd")
    first = got(world, "a").total
    push(world, "abc", revision=2)
    world.told(grouped=True)  # counts the changes
    world.restart()
    assert got(world, "a").total == first
    push(world, "d", revision=2)
    assert got(world, "a").total == total(world, "bcd")
    with world.service.database.reading() as tx:
        assert tx.one("select count(*) from bodies") == (4,)


def test_they_stay_though_kept_sums_were_made_anew(world):
    push(world, "abcd")
    first = got(world, "a").total
    with world.service.database.writing() as tx:
        rebuild_totals(tx, FLEET, ValueError("for the test"))
    push(world, "abc", revision=2)
    world.restart()
    assert got(world, "a").total == first


def test_two_servers_on_one_database_give_the_same(fresh_postgres_url):
    world = World(fresh_postgres_url, **TOTALS)
    world.rng = generator(0)
    push(world, "abcd")
    other = Service(connect(world.url), clock=lambda: world.now)
    try:
        asked, caller = Selection(receiver="a"), world.caller("a")
        one = world.service.pull(FLEET, asked, caller, None)
        two = other.pull(FLEET, asked, caller, None)
        assert (one.tag, one.data) == (two.tag, two.data)
        push(world, "abcd", revision=2)
        two = other.pull(FLEET, asked, caller, None)
        assert world.service.pull(FLEET, asked, caller, None).data == two.data != one.data
        world.drop("b")
        asked, caller = Selection(receiver="a"), world.caller("a")
        answer = other.pull(FLEET, asked, caller, None)
        assert decode(answer.data, projection=SHARED).parts == ()
    finally:
        other.close()
        world.close()


def test_patterns_of_enough_devices_are_given_one_by_one_and_the_rest_in_the_total_alone(world):
    push(world, "abcd", pattern="idle")
    push(world, "abcde", pattern="run", place=0.9)
    push(world, "ab", pattern="rare", place=0.5)
    parts = got(world, grouped=True).parts
    sums = [part.stats for part in parts]
    assert sums == [total(world, "abcde", "run"), total(world, "abcd", "idle")]
    assert got(world).total == sums[0] + sums[1]
    push(world, "cd", pattern="rare", place=0.5)
    assert len(got(world, grouped=True).parts) == 3
    push(world, "fghi", pattern="odd", place=0.3)
    assert got(world).total == Stats.total(SHARED, (c.stats for c in world.truth.values()))


def test_unlike_devices_are_pooled_and_a_pool_is_no_pattern(world):
    for device, place in zip("abcd", (0.1, 0.4, 0.6, 0.9), strict=True):
        push(world, device, place=place, rows=FEW)
    assert got(world, grouped=True).parts == ()
    assert got(world).total == total(world, "abcd")


def test_origins_name_the_devices_of_the_whole_answer_for_every_part(world):
    push(world, "abcd", pattern="idle", rows=FEW)
    push(world, "efgh", pattern="run", place=0.9, rows=FEW)
    for part in got(world, "a", grouped=True).parts:
        assert part.devices == list("bcdefgh")
        assert {(origin.incarnation, origin.pattern) for origin in part.origins} in (
            {(0, "idle")},
            {(0, "run")},
        )
    (whole,) = got(world, "a").parts
    assert whole.devices == list("bcdefgh")
    assert len({origin.revision for origin in whole.origins}) == 1


def test_a_name_that_few_devices_use_is_not_told(world):
    for device in "abcd":
        push(world, device, pattern=f"hall of {device}")
    (part,) = got(world, grouped=True).parts
    assert {origin.pattern for origin in part.origins} == {"pattern-1"}


def test_what_a_device_saw_before_comes_back_to_it_alone(world):
    push(world, "a", incarnation=1)
    push(world, "a", incarnation=2)
    mine = world.truth["a", 1, "normal"].stats
    assert got(world, "a", incarnation=2).total == mine
    assert got(world, "b", incarnation=2).parts == ()
    push(world, "bcde")
    assert len(got(world, "a", incarnation=2, grouped=True).parts) == 2
    assert got(world, "a", incarnation=2).total == mine + total(world, "bcde")
    assert got(world, "a").total == total(world, "bcde")


def test_a_choice_leaves_out_whole_totals(world):
    push(world, "abcd", pattern="idle")
    push(world, "bcde", pattern="run", place=0.9)
    idle, run = (total(world, d, p) for d, p in (("abcd", "idle"), ("bcde", "run")))
    assert len(got(world, grouped=True).parts) == 2
    world.service.choices.adopt(FLEET, list("abcd"), ["z"], ROOT)
    assert [part.stats for part in got(world, grouped=True).parts] == [idle]
    assert got(world).total == idle
    world.service.choices.adopt(FLEET, list("abc"), ["z"], ROOT)
    assert got(world).parts == ()
    assert got(world, "a", grouped=True).total == total(world, "bcd", "idle") + run


def test_what_waits_for_trust_is_in_no_total(tmp_path):
    world = World(f"sqlite:///{tmp_path / 'fleets.db'}", trust="person", **TOTALS)
    world.rng = generator(0)
    push(world, "abcde")
    for device in "abc":
        world.service.choices.decide(FLEET, (device, 0, "normal"), "approve", ROOT)
        assert got(world).parts == ()
    world.service.choices.decide(FLEET, ("d", 0, "normal"), "approve", ROOT)
    assert got(world).total == total(world, "abcd")
    world.close()


def test_what_does_not_fit_most_devices_is_in_no_total_unless_it_was_approved(world):
    push(world, "abcde", rows=60)
    noise = Stats.of(SHARED, world.rng.uniform(-1.0, 1.0, (60, 6)))
    world.put(Contribution("x", noise, 1))
    assert got(world).total == total(world, "abcde")
    refused = world.service.pull_service.checks.refusals_for(FLEET, releases.EVERY_DEVICE)
    assert list(refused) == [("x", 0, "normal")]
    entries = world.service.audit(FLEET, 0, 1000)
    assert "leave out" in [entry.action for entry in entries]
    world.service.choices.decide(FLEET, ("x", 0, "normal"), "approve", ROOT)
    push(world, "abcd", revision=2, rows=60)
    assert got(world).total == total(world, "abcdex")


@pytest.mark.parametrize(
    ("refusing", "judges", "device", "left_out"),
    [
        (1, "abcdef", "a", False),
        (3, "abcdef", "a", False),  # of two halves none wins
        (4, "abcdef", "a", True),
        (3, "abc", "x", True),
        (2, "abc", "a", False),  # two others are too few to decide
    ],
)
def test_most_judges_and_three_at_least_leave_something_out(refusing, judges, device, left_out):
    assert releases.is_majority(refusing, judges, device) == left_out


def test_a_few_judges_leave_nothing_out(world):
    push(world, "ab", rows=60)
    push(world, "cdef", rows=FEW)
    world.put(Contribution("x", Stats.of(SHARED, world.rng.uniform(-1.0, 1.0, (60, 6))), 1))
    assert got(world).total == total(world, "abcdefx")


def test_a_device_chooses_nothing_in_a_fleet_of_totals_whatever_its_least(tmp_path):
    for least in (1, 3):
        settings = {**TOTALS, "min_devices": least}
        world = World(f"sqlite:///{tmp_path / f'{least}.db'}", **settings)
        for choice in ({"pattern": "normal"}, {"devices": ("a",)}, {"largest": 1}):
            with pytest.raises(DeniedError, match=r"gives only totals: .*; an operator can"):
                world.told(Selection(receiver="z", **choice), world.caller("z"))
            world.told(Selection(**choice))
        world.close()


def test_operators_get_every_change_at_once(world):
    push(world, "a")
    assert world.told().total == total(world, "a")


def test_with_a_least_of_one_devices_do_too(tmp_path):
    settings = {**TOTALS, "min_devices": 1}
    world = World(f"sqlite:///{tmp_path / 'fleets.db'}", **settings)
    world.rng = generator(0)
    push(world, "a")
    assert got(world).total == total(world, "a")
    world.close()


def test_a_fleet_says_what_is_released_and_what_the_next_release_needs(world):
    def said():
        ((_, counts),) = world.service.fleets(ROOT)
        return counts.released

    push(world, "ab")
    got(world)
    needs = "the next release needs something new of 4 devices"
    assert said() == f"nothing; {needs}, and 2 have that"
    push(world, "cde")
    got(world)
    push(world, "a", revision=2)
    assert said() == f"a total of 5 devices; {needs}, and 1 have that"


def test_a_damaged_sum_is_added_up_again(world, caplog):
    push(world, "abcd")
    first = got(world).total
    with world.service.database.writing() as tx:
        tx.run("update releases set data = ?", b"no sums")
    world.restart()
    assert got(world).total == first
    assert "a released sum is damaged" in caplog.text


def test_what_is_released_is_given_and_what_was_excluded_is_not_though_the_disk_is_full(
    world, monkeypatch
):
    push(world, "abcd")
    first = got(world).total
    push(world, "abcd", revision=2)

    def full(_change, **_of):
        raise DiskFullError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(world.service.writer, "write", full)
        assert got(world).total == first
    world.service.choices.exclude(FLEET, ("a", 0, "normal"), ROOT)
    with monkeypatch.context() as patched:
        patched.setattr(world.service.writer, "write", full)
        assert got(world).parts == ()
        assert got(world, grouped=True).parts == ()


def test_releases_are_made_though_devices_push_all_the_time(world, monkeypatch):
    push(world, "abcd")
    caller = world.caller("z")
    look = world.service.releases._look_and_release

    def interrupted(*state):
        push(world, "e", revision=len(world.truth) + state[1])
        return look(*state)

    monkeypatch.setattr(world.service.releases, "_look_and_release", interrupted)
    answer = world.service.pull(FLEET, Selection(receiver="z"), caller, None)
    assert decode(answer.data, projection=SHARED).total == total(world, "abcde")


def test_a_deleted_fleet_leaves_nothing_behind(world):
    push(world, "abcd")
    assert got(world).parts
    push(world, "a", revision=2)
    world.service.delete(FLEET, ROOT)
    with world.service.database.reading() as tx:
        for table in ("released", "releases", "released_revisions", "bodies"):
            assert tx.one(f"select count(*) from {table}") == (0,)


def test_a_preview_shows_what_is_released(world):
    push(world, "abcd")
    got(world)
    push(world, "bcd", revision=2, rows=90)
    (row,) = world.service.choices.preview(FLEET, list("bcd"), ["a"])
    assert row.joined == 90.0  # of three devices, as released
    push(world, "a", incarnation=1, rows=40)
    (row,) = world.service.choices.preview(FLEET, list("bcd"), ["a"])
    assert (row.samples, row.joined) == (40.0, 90.0 + 30.0)  # and what it saw before
    (row,) = world.service.choices.preview(FLEET, [], ["a"])
    assert row.joined == 30.0


def name_fault(world, device, revision, place=0.7, rows=60):
    stats = Stats.of(SHARED, machine(place, rows, world.rng)) if rows else Stats.empty(SHARED)
    fault = Contribution(device, stats, revision, "leak", kind="fault", first=1.0)
    send_fault(world, fault)
    return stats


def send_fault(world, fault):
    caller = world.caller(fault.device)
    received = decode_and_check(encode(fault), world.fleet, fault.key, "fault")
    world.service.writer.write(lambda tx: put_fault(tx, world.fleet, received, caller, 1.0))


def told_faults(world, who="z"):
    asked = Selection(receiver=who)
    answer = world.service.faults.pull(FLEET, asked, world.caller(who), None)
    return [fault.stats for fault in decode(answer.data, Faults, projection=SHARED)]


def test_faults_are_released_in_the_same_way(world):
    sent = {device: name_fault(world, device, 1) for device in "abc"}
    assert told_faults(world) == []
    sent["d"] = name_fault(world, "d", 1)
    first = Stats.total(SHARED, sent.values())
    assert told_faults(world) == [first]
    assert told_faults(world, "a") == [first - sent["a"]]
    name_fault(world, "b", 2)
    assert told_faults(world) == [first]
    world.restart()
    assert told_faults(world) == [first]
    name_fault(world, "c", 2, rows=0)  # withdrawn
    assert told_faults(world) == []
    now = {device: name_fault(world, device, 3) for device in "abcd"}
    assert told_faults(world) == [Stats.total(SHARED, now.values())]
    world.service.drop(FLEET, "a", ROOT)
    assert told_faults(world) == []
    with world.service.database.reading() as tx:
        assert tx.one("select count(*) from bodies") == (0,)
