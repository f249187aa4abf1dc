"""The capacity of a fleet, up to which sums are exact: checked at intake, watched, won back."""

import json
import logging
import re
import tempfile
from contextlib import contextmanager
from sqlite3 import connect as open_sqlite

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgemerge import Contribution, Stats
from edgemerge.core.errors import CapacityError, RejectedError, UnknownError
from edgemerge.core.ledger import Selection
from edgemerge.core.stats import exact_limit
from edgemerge.server import contributions, fleets, totals
from edgemerge.server.main import create_app
from tests.server.signing_in import Page
from tests.server.visiting import Visitor
from tests.server.world import FLEET, ROOT, SHARED, World, generator, note

pytestmark = pytest.mark.slow  # many of a tenth of a second

LIMIT = exact_limit(SHARED.quantum)


def heavy(device, revision, load, *, pattern="normal", incarnation=0, place=0.5):
    """A contribution that uses about so much of the capacity, and passes all checks."""
    once = note(device, revision, generator(0), place=place).stats
    stats = once * int(load / once.load)
    return Contribution(device, stats, revision, pattern, incarnation)


@pytest.fixture
def world(any_world):
    return any_world


@contextmanager
def unchecked():
    """As a version before let contributions in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contributions, "_must_fit_capacity", lambda *_: None)
        yield


def left(world):
    return world.service.capacity(FLEET).left


loads = st.sampled_from((0.0, 1e-6, 0.2, 0.3, 0.45, 0.6, 0.9))
acts = st.one_of(
    st.tuples(st.just("put"), st.sampled_from("abcd"), st.sampled_from(("p", "q")), loads),
    st.tuples(st.sampled_from(("count", "group")), st.integers(1, 3)),
    st.tuples(st.just("drop"), st.sampled_from("abcd")),
)


def carry_out(world, act, number):
    match act:
        case ("put", device, pattern, load):
            place = {"p": 0.1, "q": 0.9}[pattern]
            new = heavy(device, number, load, pattern=pattern, place=place)
            others = [c.stats for key, c in world.truth.items() if key != new.key]
            fits = sum(stats.largest for stats in [*others, new.stats]) < LIMIT
            if fits:
                assert world.put(new).new
            else:
                with pytest.raises(RejectedError, match="capacity"):
                    world.put(new)
        case ("count", limit):
            world.service.writer.write(
                lambda tx: totals.count_changes(tx, fleets.get(tx, FLEET), limit)
            )
        case ("group", _):
            world.service.writer.write(
                lambda tx: totals.group_changes(tx, fleets.get(tx, FLEET), 9.0)
            )
        case ("drop", device) if any(key[0] == device for key in world.truth):
            world.drop(device)


@pytest.mark.usefixtures("unchecked")
@settings(max_examples=25)
@given(st.lists(acts, min_size=5, max_size=25))
def test_whatever_is_accepted_every_sum_of_it_can_be_given(story):
    with tempfile.TemporaryDirectory() as folder:
        world = World(f"{folder}/fleets.db")
        try:
            for number, act in enumerate(story, start=1):
                carry_out(world, act, number)
                assert left(world) == 1.0 - sum(c.stats.load for c in world.truth.values())
                world.must_agree(Selection(receiver="a"))
            for selection in (Selection(), Selection(pattern="p"), Selection(largest=2)):
                world.must_agree(selection)
                world.must_agree(selection, grouped=True)
        finally:
            world.close()


def test_what_the_total_cannot_hold_is_refused_by_name_and_nothing_changes(world):
    world.put(heavy("a", 1, 0.5))
    world.put(heavy("b", 1, 0.25))
    before, epoch = world.told(), world.service.fleet(FLEET).epoch
    with pytest.raises(RejectedError, match="capacity") as refused:
        world.put(heavy("b", 2, 0.6))
    words = str(refused.value)
    assert "b, normal: found sums that need 60 %" in words
    assert "less than 50 %, which is left" in words  # b's own old ones would be replaced
    assert "new generation" in words
    assert world.told() == before
    assert world.service.fleet(FLEET).epoch == epoch
    assert world.put(heavy("b", 2, 0.45)).new
    world.must_agree(Selection())


def test_a_count_that_fills_the_fleet_by_itself_cannot_stop_its_totals(world):
    world.put(heavy("a", 1, 0.01))
    once = note("b", 1, generator(0), rows=1).stats
    huge = Stats(SHARED, *(once * (2**29 - 2)).arrays, 2.0**29 - 1)
    with pytest.raises(RejectedError, match="capacity"):
        world.put(Contribution("b", huge, 1))
    world.must_agree(Selection())


def test_a_fleet_that_is_too_full_already_can_become_smaller(world):
    with unchecked():
        for device in "abc":
            world.put(heavy(device, 1, 0.6))
        world.put(note("b", 1, generator(0), pattern="idle"))
    with pytest.raises(CapacityError):
        world.told()
    with pytest.raises(RejectedError, match="less than 0 %"):
        world.put(heavy("a", 2, 0.7))
    assert world.put(heavy("a", 2, 0.5)).new
    assert world.drop("b") == 2  # the rest cannot be added up yet, and is dropped all the same
    assert world.drop("c") == 1
    world.must_agree(Selection())
    assert left(world) == pytest.approx(0.5, abs=1e-6)


def test_sums_that_are_not_replaced_yet_do_not_take_the_place_of_new_ones(world, monkeypatch):
    def count():
        world.service.writer.write(lambda tx: totals.count_changes(tx, fleets.get(tx, FLEET), 1))

    def in_order(tx, fleet, limit):  # which change is counted first is up to the database
        found = contributions.list_uncounted(tx, fleet, 99)
        return sorted(found, key=lambda stored: stored.key)[:limit]

    monkeypatch.setattr(totals, "list_uncounted", in_order)
    world.put(heavy("z", 1, 0.9))
    count()
    world.put(heavy("z", 2, 0.1))
    world.put(heavy("a", 1, 0.8))
    count()  # a, beside what z had
    count()
    world.must_agree(Selection())


def test_readings_far_outside_the_range_use_more_than_their_count(world):
    once = Stats.of(SHARED, 10.0 * generator(0).normal(size=(40, 6)))
    assert once.S.max() > 50.0 * once.count
    far = once * int(0.6 / once.load)
    world.put(Contribution("a", far, 1))
    with pytest.raises(RejectedError, match="capacity"):
        world.put(Contribution("b", far, 1))
    world.must_agree(Selection())


def test_little_capacity_is_told_in_the_log_once_for_each_crossing(world, caplog):
    def warned(contribution):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "edgemerge.server.contributions"):
            world.put(contribution)
        ours = [each for each in caplog.records if each.name == contributions.__name__]
        return [record.values for record in ours]

    assert warned(heavy("a", 1, 0.5)) == []
    (values,) = warned(heavy("b", 1, 0.41))
    assert (values["fleet"], values["device"]) == (FLEET, "b")
    assert values["left"] == pytest.approx(0.09, abs=1e-6)
    assert warned(heavy("c", 1, 0.05)) == []  # it is known
    assert warned(heavy("b", 2, 0.1)) == []
    assert len(warned(heavy("b", 3, 0.42))) == 1


def test_little_capacity_is_on_the_page_with_the_device_that_uses_most(tmp_path):
    world = World(f"sqlite:///{tmp_path / 'fleets.db'}")
    operator = Visitor(create_app(world.service))
    operator.sign_in(world.operator_token)

    def notice():
        page = Page(operator.get(f"/ui/fleets/{FLEET}").text)
        return [text for _, text in page.all("p", role="status", **{"class": "notice bad"})]

    world.put(heavy("a", 1, 0.3))
    world.put(heavy("b", 1, 0.55))
    assert notice() == []
    world.put(heavy("b", 2, 0.62))
    (words,) = notice()
    assert "8 % of the capacity" in words
    assert "b uses most of it (62 %): start a new generation" in words
    with unchecked():
        world.put(heavy("a", 2, 0.6))
    assert "Nothing of the capacity" in notice()[0]
    world.close()


def test_the_metric_is_of_the_fullest_fleet(world):
    def told():
        with world.service.database.reading() as tx:
            text = world.service.metrics.text(tx, world.service.history, world.now).decode()
        (line,) = re.findall(r"^edgemerge_capacity_left_ratio (.*)$", text, re.MULTILINE)
        return float(line)

    assert told() == 1.0
    world.put(heavy("a", 1, 0.4))
    world.put(heavy("b", 1, 0.2))
    world.service.writer.write(
        lambda tx: tx.run(
            "insert into contributions (fleet, device, incarnation, pattern, revision, samples,"
            " bytes, digest, form, received, epoch, part, load)"
            " values ('other', 'a', 0, 'normal', 1, 9, 9, '', 'exact', 0, 1, 0, 0.01)"
        )
    )
    assert told() == left(world) == pytest.approx(0.4, abs=1e-6)
    world.drop("a")
    assert told() == pytest.approx(0.8, abs=1e-6)


def test_dropping_an_old_incarnation_leaves_exactly_the_new_one(world):
    old, new = heavy("a", 7, 0.6), heavy("a", 1, 0.2, incarnation=5)
    world.put(old)
    world.put(new)
    world.put(heavy("b", 1, 0.1))
    with pytest.raises(RejectedError, match="drop old incarnations"):
        world.put(heavy("a", 2, 0.35, incarnation=5))
    with pytest.raises(UnknownError, match="incarnation 4"):
        world.service.drop(FLEET, "a", ROOT, incarnation=4)
    assert world.service.drop(FLEET, "a", ROOT, incarnation=0) == 1
    del world.truth[old.key]
    world.must_agree(Selection())
    world.must_agree(Selection(), grouped=True)
    assert world.put(heavy("a", 2, 0.35, incarnation=5)).new
    noted = world.service.audit(FLEET, 0, 100)[-2]
    assert (noted.action, noted.subject) == ("drop", "a")
    assert json.loads(noted.detail) == {"contributions": 1, "incarnation": 0}


def test_what_is_dropped_uses_no_capacity_even_before_the_totals_are_without_it(world):
    world.put(heavy("a", 1, 0.6))
    world.told(grouped=True)
    world.service.writer.write(lambda tx: contributions.drop_device(tx, FLEET, "a"))
    assert left(world) == 1.0
    assert world.put(heavy("b", 1, 0.9)).new


def test_a_database_of_the_version_before_gets_the_loads_of_what_is_in_it(tmp_path):
    path = tmp_path / "fleets.db"
    world = World(f"sqlite:///{path}")
    world.put(heavy("a", 1, 0.5))
    world.put(heavy("b", 1, 0.3))
    world.put(heavy("c", 1, 0.1))
    before = left(world)
    world.close()
    with open_sqlite(path) as raw:
        raw.execute("drop index contributions_by_load")
        raw.execute("alter table contributions drop column load")
        raw.execute("delete from migrations where number = 5")
    world.restart()
    assert left(world) == before
    world.close()
    with open_sqlite(path) as raw:  # what cannot be read does not keep the server from starting
        raw.execute("drop index contributions_by_load")
        raw.execute("alter table contributions drop column load")
        raw.execute("delete from migrations where number = 5")
        raw.execute(
            "update bodies set data = x'00' where id ="
            " (select body from contributions where device = 'a')"
        )
    world.restart()
    assert left(world) == pytest.approx(0.6, abs=1e-6)
    world.close()
