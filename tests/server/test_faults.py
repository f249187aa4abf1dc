"""The faults of a fleet on a server: apart from every total, told as agreed, on a page."""

import pytest

from edgemerge import Contribution, decode, encode
from edgemerge.core.errors import DeniedError, RejectedError, UnknownError
from edgemerge.core.ledger import Selection
from edgemerge.server import faults
from edgemerge.server.contributions import decode_and_check
from edgemerge.server.db.base import ValueDamagedError
from edgemerge.server.faults import put_fault
from edgemerge.server.main import create_app
from tests.server.reporting import monitor, report
from tests.server.visiting import Visitor
from tests.server.world import FLEET, ROOT, SHARED, World, generator, note


@pytest.fixture
def world(any_world):
    return any_world


def fault(device, name="bearing", revision=1, *, place=0.5, rows=30, seed=0):
    stats = note(device, 1, generator(seed), place=place, rows=rows).stats
    return Contribution(device, stats, revision, name, kind="fault", first=100.0 if rows else None)


def share(world, one):
    """Push as the device would; give the service's answer."""
    caller = world.caller(one.device)
    received = decode_and_check(encode(one), world.fleet, one.key, "fault")
    write = world.service.writer.write
    return write(lambda tx: put_fault(tx, world.fleet, received, caller, world.now))


def told(world, device=None, tag=None, **wish):
    """What a device, or an operator, is told; None if that is what it has."""
    caller = ROOT if device is None else world.caller(device)
    selection = Selection(receiver=device, **wish)
    answer = world.service.faults.pull(FLEET, selection, caller, tag)
    return answer.tag, None if answer.data is None else decode(answer.data, projection=SHARED)


def names(world, device=None, **wish):
    return [(each.name, each.devices) for each in told(world, device, **wish)[1]]


def test_faults_are_stored_apart_from_every_total(world):
    world.put(note("a", 1, generator(1), pattern="bearing", place=0.1))
    before = world.told()
    assert share(world, fault("a")).new
    assert not share(world, fault("a")).new
    assert world.told() == before
    world.must_agree(Selection(), grouped=True)
    assert world.service.capacity(FLEET).left == 1.0 - before.total.load
    tag, found = told(world, "b")
    assert found.known[0].stats == fault("a").stats
    assert told(world, "b", tag) == (tag, None)
    world.restart()
    assert told(world, "b", tag) == (tag, None)
    share(world, fault("b", seed=2))
    assert told(world, "b")[1] == found
    assert told(world, "c", tag)[1].known[0].devices == ["a", "b"]


def test_a_fault_is_refused_as_a_contribution_and_the_other_way_round(world):
    for one, kind in ((fault("a"), "normal"), (note("a", 1, generator(0)), "fault")):
        with pytest.raises(RejectedError, match="faults and what is normal are shared apart"):
            decode_and_check(encode(one), world.fleet, one.key, kind)


def test_revisions_rise_and_an_empty_one_withdraws(world):
    share(world, fault("a", revision=3))
    late = share(world, fault("a", revision=2, seed=1))
    assert (late.problem, late.revision) == ("stale", 3)
    assert share(world, fault("a", revision=3, seed=1)).problem == "equivocation"
    assert names(world, "b") == [("bearing", ["a"])]
    share(world, fault("a", revision=4, rows=0))
    assert names(world, "b") == names(world) == []
    assert share(world, fault("a", revision=3)).problem == "stale"
    actions = [each.action for each in world.service.audit(FLEET, 0, 99)]
    wanted = ["share fault", "equivocation", "withdraw fault"]
    assert [action for action in actions if action in wanted] == wanted


def test_a_fleet_that_tells_nothing_about_few_devices_tells_a_fault_when_enough_met_it(tmp_path):
    made = World(f"sqlite:///{tmp_path / 'f.db'}", read_mode="totals", min_devices=2)
    share(made, fault("a"))
    share(made, fault("b", seed=1))
    assert names(made, "a") == names(made, "b") == names(made, "c") == []
    share(made, fault("d", seed=2))
    assert names(made, "a") == [("bearing", ["b", "d"])]
    assert names(made, "c") == [("bearing", ["a", "b", "d"])]
    with pytest.raises(DeniedError, match="choosing devices would reveal single ones"):
        names(made, "c", without=("a",))
    assert names(made, without=("a",)) == [("bearing", ["b", "d"])]  # an operator may
    share(made, fault("a", revision=2, rows=0))
    assert names(made, "c") == []
    made.close()


def test_dropping_a_device_drops_its_faults_and_excluding_it_leaves_them_out(world):
    world.put(note("a", 1, generator(1)))
    share(world, fault("a"))
    share(world, fault("b", "leak", place=0.1))
    world.service.choices.exclude(FLEET, ("a", 0, "normal"), ROOT)
    assert names(world, "c") == [("leak", ["b"])]
    world.service.choices.adopt(FLEET, ["a"], ["c"], ROOT)
    assert names(world, "c") == []
    assert names(world, "d") == [("leak", ["b"])]
    assert world.service.drop(FLEET, "b", ROOT) == 1
    assert names(world) == []
    with pytest.raises(UnknownError):
        world.service.drop(FLEET, "b", ROOT)
    assert world.service.drop(FLEET, "a", ROOT) == 2
    world.service.delete(FLEET, ROOT)
    with world.service.database.reading() as tx:
        assert tx.one("select count(*) from faults") == (0,)


def test_a_device_has_at_most_sixteen_faults_and_withdrawn_ones_take_no_place(world, monkeypatch):
    monkeypatch.setattr(faults, "MAX_PER_DEVICE", 2)
    share(world, fault("a", "one"))
    share(world, fault("a", "two", place=0.1))
    with pytest.raises(RejectedError, match="found the fault 'three' of a, which has 2 already"):
        share(world, fault("a", "three", place=0.9))
    assert share(world, fault("a", "two", 2, place=0.1, seed=1)).new
    share(world, fault("a", "one", 2, rows=0))
    assert share(world, fault("a", "three", place=0.9)).new
    monkeypatch.setattr(faults, "MAX_ROWS_PER_DEVICE", 3)
    share(world, fault("a", "two", 3, rows=0))
    with pytest.raises(RejectedError, match="an operator can drop"):
        share(world, fault("a", "four"))


def test_damage_on_disk_is_found(world):
    share(world, fault("a"))
    other = encode(fault("a", seed=1))
    world.service.writer.write(lambda tx: tx.run("update faults set data = ?", other))
    with pytest.raises(ValueDamagedError, match="the stored fault bearing of a is damaged"):
        names(world, "b")


@pytest.fixture
def shop(tmp_path):
    made = World(f"sqlite:///{tmp_path / 'fleets.db'}", min_devices=2)
    yield made
    made.close()


@pytest.mark.slow
def test_the_page_lists_known_faults_and_says_what_is_not_told(shop):
    operator = Visitor(create_app(shop.service))
    operator.sign_in(shop.operator_token)
    page = f"/ui/fleets/{FLEET}/faults"
    assert "No fault is known" in operator.get(page).text
    share(shop, fault("a"))
    share(shop, fault("b", "<b>Lager", seed=1))
    share(shop, fault("c", "leak", place=0.1))
    shown = operator.get(page).text
    assert "also called <bdi>&lt;b&gt;Lager</bdi>" in shown
    assert "not yet: 1 of 2 devices" in shown
    assert shown.count("not yet") == 1
    assert "shared the fault" in operator.get(f"/ui/fleets/{FLEET}/log").text


@pytest.mark.slow
def test_the_pages_show_names_and_what_stays_on_a_device(shop):
    shop.caller("a")
    operator = Visitor(create_app(shop.service))
    operator.sign_in(shop.operator_token)
    named = monitor()
    named["episodes"][1] |= {"fault": "bearing", "like": "most like bearing, first seen on b"}
    named["patterns"][0] |= {"like": "like none of the 3 known faults"}
    named["patterns"][1] |= {"sharing": "stays on this device: 84 of 128 samples"}
    status = {"monitor": named, "reviews": {"done": 0}}
    shop.service.history.take(FLEET, "a", report(shop.now, **status), shop.now)
    page = operator.get(f"/ui/fleets/{FLEET}/devices/a").text
    for words in ("most like bearing, first seen on b", "like none of the 3 known faults"):
        assert words in page
    assert "stays on this device: 84 of 128 samples" in page
    assert "like bearing" in operator.get(f"/ui/fleets/{FLEET}").text
    shop.now += 1e5  # it went silent: nobody knows whether the episode is still open
    assert "like bearing" not in operator.get(f"/ui/fleets/{FLEET}").text


@pytest.mark.slow
def test_the_routes_know_who_may_call(shop):
    client = Visitor(create_app(shop.service))
    share(shop, fault("a"))

    def ask(method, path, token, **more):
        headers = {"Authorization": f"Bearer {token}"}
        return client.ask(method, f"/fleets/{FLEET}/{path}", headers=headers, **more)

    shop.caller("b")
    token, body = shop.tokens["b"], encode(fault("b", seed=1))
    assert ask("PUT", "faults/a/0/bearing", token, content=encode(fault("a"))).status_code == 403
    assert ask("PUT", "faults/b/0/bearing", "wrong", content=body).status_code == 401
    assert ask("PUT", "faults/b/0/bearing", token, content=body).status_code == 201
    assert ask("PUT", "faults/b/0/bearing", token, content=body).status_code == 200
    late = encode(fault("b", revision=0))
    assert ask("PUT", "faults/b/0/bearing", token, content=late).json()["newest"] == 1
    wrong = encode(note("b", 1, generator(0), pattern="bearing"))
    assert ask("PUT", "faults/b/0/bearing", token, content=wrong).status_code == 422
    assert ask("PUT", "contributions/b/0/bearing", token, content=body).status_code == 422
    assert ask("GET", "faults/list", token).status_code == 403
    listed = ask("GET", "faults/list", shop.operator_token).json()
    assert [(each["name"], each["told"]) for each in listed] == [("bearing", True)]
    found = ask("GET", "faults", token)
    assert decode(found.content, projection=SHARED).known == ()
    assert ask("GET", "faults", shop.operator_token).status_code == 200
