"""Laws of the sums that a server keeps: they are what adding everything up would give."""

import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgemerge import Stats
from edgemerge.core.errors import UnavailableError
from edgemerge.core.ledger import Selection
from edgemerge.server import contributions, fleets, totals
from tests.server.world import FLEET, SHARED, World, generator, note

pytestmark = pytest.mark.slow  # many of a tenth of a second

DEVICES = ("a", "b", "c", "d")
wishes = st.builds(
    Selection,
    receiver=st.sampled_from((None, *DEVICES)),
    incarnation=st.sampled_from((None, 0, 1)),
    devices=st.sampled_from((None, ("a",), ("a", "c"), ())),
    without=st.sampled_from(((), ("b",), ("b", "c"))),
    pattern=st.sampled_from((None, "normal", "idle")),
    largest=st.sampled_from((None, 1, 3)),
)
acts = st.one_of(
    st.tuples(
        st.just("put"),
        st.sampled_from(DEVICES),
        st.sampled_from(("normal", "idle")),
        st.integers(0, 1),
        st.sampled_from((0, 3, 30)),
    ),
    st.tuples(st.just("pull"), wishes, st.booleans()),
    st.tuples(st.sampled_from(("fold", "place", "restart"))),
    st.tuples(st.just("drop"), st.sampled_from(DEVICES)),
)


def carry_out(world, act, number, rng):
    match act:
        case ("put", device, pattern, incarnation, rows):
            world.put(
                note(device, number, rng, pattern=pattern, incarnation=incarnation, rows=rows)
            )
        case ("pull", wish, grouped):
            world.must_agree(wish, grouped=grouped)
        case ("fold",):
            world.service.writer.write(
                lambda tx: totals.count_changes(tx, fleets.get(tx, FLEET), 2)
            )
        case ("place",):
            world.service.writer.write(
                lambda tx: totals.group_changes(tx, fleets.get(tx, FLEET), 9.0)
            )
        case ("restart",):
            world.restart()
        case ("drop", device) if any(key[0] == device for key in world.truth):
            world.drop(device)


@settings(max_examples=40)
@given(st.lists(acts, min_size=5, max_size=25), st.integers(0, 99))
def test_whatever_is_pushed_replaced_and_dropped_the_total_is_that_of_what_is_there(story, seed):
    rng = generator(seed)
    with tempfile.TemporaryDirectory() as folder:
        world = World(f"{folder}/fleets.db")
        try:
            for number, act in enumerate(story, start=1):
                carry_out(world, act, number, rng)
            world.must_agree(Selection())
            world.must_agree(Selection(), grouped=True)
        finally:
            world.close()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("seed", range(3))
def test_the_same_holds_on_both_databases(database_url, seed):
    rng, world = generator(seed), World(database_url)
    try:
        for number in range(1, 60):
            device = str(rng.choice(DEVICES))
            choice = rng.choice(["put", "put", "put", "pull", "place", "fold", "drop", "restart"])
            wish = Selection(receiver=device, incarnation=0)
            act = {
                "put": (
                    "put",
                    device,
                    str(rng.choice(["normal", "idle"])),
                    int(rng.integers(2)),
                    9,
                ),
                "pull": ("pull", wish, bool(rng.integers(2))),
                "drop": ("drop", device),
            }.get(str(choice), (str(choice),))
            carry_out(world, act, number, rng)
        world.must_agree(Selection())
        world.must_agree(Selection(), grouped=True)
    finally:
        world.close()


def test_two_servers_on_one_database_tell_the_same(fresh_postgres_url):
    rng, one = generator(1), World(fresh_postgres_url)
    two = World(fresh_postgres_url)
    two.truth, two.tokens = one.truth, one.tokens
    try:
        for number in range(1, 30):
            (one if number % 2 else two).put(note(str(rng.choice(DEVICES)), number, rng))
            (two if number % 2 else one).must_agree(Selection(), grouped=number % 3 == 0)
    finally:
        one.close()
        two.close()


def test_contributions_of_one_pattern_are_told_in_one_sum(world):
    rng = generator(5)
    for i in range(8):
        world.put(note(f"d{i}", 1, rng, place=(0.1, 0.8)[i % 2], rows=60))
    told = world.told(Selection(), grouped=True)
    assert [part.devices for part in told.parts] == [
        ["d0", "d2", "d4", "d6"],
        ["d1", "d3", "d5", "d7"],
    ] or [part.devices for part in told.parts] == [
        ["d1", "d3", "d5", "d7"],
        ["d0", "d2", "d4", "d6"],
    ]


def test_a_device_whose_pattern_has_changed_moves_to_another_sum(world):
    rng = generator(6)
    for i in range(6):
        world.put(note(f"d{i}", 1, rng, place=(0.1, 0.8)[i % 2], rows=60))
    world.told(Selection(), grouped=True)
    world.put(note("d0", 2, rng, place=0.8, rows=60))
    told = world.told(Selection(), grouped=True)
    assert sorted(part.devices for part in told.parts) == [["d0", "d1", "d3", "d5"], ["d2", "d4"]]


def test_a_pull_brings_the_kept_sums_up_to_date_so_that_the_next_reads_few(world):
    rng = generator(7)
    for i in range(40):
        world.put(note(f"d{i}", 1, rng, rows=5))
    world.must_agree(Selection())
    with world.service.database.reading() as tx:
        held = totals.load_parts(tx, fleets.get(tx, FLEET))
        left = contributions.list_uncounted(tx, FLEET, 99)
    assert len(left) <= totals.MAX_INLINE_CHANGES
    assert sum(part.count for part in held.values()) == (40 - len(left)) * 5


def test_when_there_is_too_much_to_add_up_the_asker_is_sent_away_for_a_while(world, monkeypatch):
    rng = generator(7)
    for i in range(60):
        world.put(note(f"d{i}", 1, rng, rows=5))
    monkeypatch.setattr(totals, "GROUPING_TIMEOUT_S", 0.0)
    with pytest.raises(UnavailableError, match="try again") as error:
        world.told()
    assert error.value.retry_s
    monkeypatch.undo()
    world.must_agree(Selection())


@pytest.mark.usefixtures("unchecked")
def test_pulls_of_patterns_that_are_grouped_do_not_wait_for_the_writer(world, monkeypatch):
    rng = generator(7)
    for device, place in (("a", 0.1), ("b", 0.8)):
        world.put(note(device, 1, rng, place=place, rows=60))
    first = world.told(Selection(), grouped=True)

    def refuse(*_):
        raise AssertionError("the writer was asked")

    monkeypatch.setattr(world.service.writer, "write", refuse)
    world.service.pull_service._answers.most = 0
    for wish in (Selection(), Selection(receiver="a"), Selection(largest=1)):
        assert world.told(wish, grouped=True).parts
    assert len(first.parts) == 2


def test_patterns_are_told_though_devices_push_faster_than_they_are_grouped(world, monkeypatch):
    rng, revisions = generator(7), iter(range(1, 99))
    world.put(note("a", next(revisions), rng, rows=60))
    real = totals.PullService.group

    def overtaken(service, name):
        real(service, name)
        world.put(note("a", next(revisions), rng, rows=60))

    monkeypatch.setattr(totals.PullService, "group", overtaken)
    told = world.told(Selection(), grouped=True)
    assert [part.devices for part in told.parts] == [["a"]]
    assert next(revisions) == 2 + totals.MAX_GROUPING_TRIES


def test_only_two_bodies_of_a_key_are_kept_however_often_it_is_replaced(world):
    rng = generator(8)
    for revision in range(1, 20):
        world.put(note("a", revision, rng))
        if revision == 4:
            world.service.writer.write(
                lambda tx: totals.count_changes(tx, fleets.get(tx, FLEET), 99)
            )
    with world.service.database.reading() as tx:
        assert tx.one("select count(*) from bodies") == (2,)
    world.service.writer.write(lambda tx: totals.count_changes(tx, fleets.get(tx, FLEET), 99))
    with world.service.database.reading() as tx:
        assert tx.one("select count(*) from bodies") == (1,)


def test_dropping_leaves_no_bytes_behind(world):
    rng = generator(9)
    for device in DEVICES:
        world.put(note(device, 1, rng))
    world.told(Selection(), grouped=True)
    for device in DEVICES:
        world.drop(device)
    world.told(Selection(), grouped=True)
    with world.service.database.reading() as tx:
        for table in ("bodies", "contributions", "totals"):
            assert tx.one(f"select count(*) from {table}") == (0,), table


def test_an_answer_has_the_same_tag_while_it_would_be_the_same(world):
    rng = generator(10)
    world.put(note("a", 1, rng))
    world.put(note("b", 1, rng))
    wish = Selection(receiver="a")
    for grouped in (False, True):
        first = world.service.pull(FLEET, wish, world.caller("a"), None, grouped=grouped)
        world.put(note("a", 2 + grouped, rng))  # one's own does not matter
        again = world.service.pull(FLEET, wish, world.caller("a"), first.tag, grouped=grouped)
        assert (again.tag, again.data) == (first.tag, None)
        world.put(note("b", 2 + grouped, rng))
        other = world.service.pull(FLEET, wish, world.caller("a"), first.tag, grouped=grouped)
        assert other.tag != first.tag
        assert other.data is not None


def test_nothing_to_tell_is_told_as_nothing(world):
    assert world.told().parts == ()
    assert world.told(Selection(), grouped=True).parts == ()
    world.put(note("a", 1, generator(0), rows=0))
    assert world.told().parts == ()
    assert world.told().total == Stats.empty(SHARED)
