"""Exchange with a masked fleet over a real server: exact totals, and crashes at every point."""

import json
from dataclasses import replace

import numpy as np
import pytest

from edgemerge import Contribution, Detector, Stats
from edgemerge.agent.background import ExchangeJob, run_exchange
from edgemerge.core.errors import DeniedError, MismatchError, RejectedError, SettingError
from edgemerge.core.ledger import Selection
from edgemerge.exchange import masked_fleet
from edgemerge.exchange.masked_fleet import MaskedState
from edgemerge.privacy.masking import DeviceKeys, make_upload
from edgemerge.server import masked_epochs
from edgemerge.wire.admission import admit
from edgemerge.wire.codec import pack, unpack
from tests.exchange.worlds import DEVICES, SHARED, HttpWorld, Killed, MaskedWorld

pytestmark = pytest.mark.slow


@pytest.fixture
def world(hub, tmp_path):
    made = MaskedWorld(hub, tmp_path)
    yield made
    made.close()


def rows(device, revision=1):
    rng = np.random.default_rng([int(device.rpartition("-")[2]), revision])
    return rng.uniform(-1.0, 2.0, (20 * revision, SHARED.n_inputs))


def note(device, revision=1, pattern="normal"):
    return Contribution(device, Stats.of(SHARED, rows(device, revision)), revision, pattern)


def others(device, revision=1, devices=DEVICES):
    return sum(note(each, revision).stats for each in devices if each != device)


def pulled(world, device):
    found = world.exchange(device).pull(Selection(receiver=device))
    return sum(part.stats for part in found.parts) if found.parts else None


def test_everybody_gets_the_sum_of_all_others(world):
    world.form()
    for device in DEVICES:
        assert world.share(note(device))
    world.turn()
    for device in DEVICES:
        assert pulled(world, device) == others(device)


def test_an_agent_that_only_shares_takes_part(world):
    world.form()
    for _ in range(3):
        for device in DEVICES:
            assert run_exchange(world.exchange(device), ExchangeJob((note(device),))).error is None
    assert pulled(world, DEVICES[0]) == others(DEVICES[0])


def test_a_later_revision_travels_as_a_difference(world):
    world.form()
    for revision in (1, 2):
        for device in DEVICES:
            world.share(note(device, revision))
        world.turn()
    for device in DEVICES:
        assert pulled(world, device) == others(device, 2)


def test_an_empty_contribution_takes_back(world):
    world.form()
    for device in DEVICES:
        world.share(note(device))
    world.turn()
    empty = Contribution(DEVICES[0], Stats.empty(SHARED), 2)
    world.share(empty)
    for device in DEVICES[1:]:
        world.share(note(device, 2))
    world.turn()
    assert pulled(world, DEVICES[1]) == others(DEVICES[1], 2, DEVICES[1:])


def adding(monkeypatch):
    """Return a list to which each upload adds whose it is, and whether it says that it adds."""
    said = []

    def noted(cohort, keys, epoch, delta, random, *, adds):
        said.append((cohort.members[cohort.number_of(keys)].name, adds))
        return make_upload(cohort, keys, epoch, delta, random, adds=adds)

    monkeypatch.setattr(masked_fleet, "make_upload", noted)
    return said


def test_an_upload_adds_only_what_is_new_and_still_there(world, monkeypatch):
    """Samples that came and went before an upload are in no total: they must not count as new."""
    world.form()
    said = adding(monkeypatch)
    for device in DEVICES:
        world.share(note(device))
    world.turn()
    one = world.exchange(DEVICES[0])
    assert one.push(note(DEVICES[0], 2))
    assert one.push(Contribution(DEVICES[0], Stats.empty(SHARED), 3))
    assert not one.push(note(DEVICES[0], 2))  # an agent that was killed pushes again
    one.take_part()
    for device in DEVICES[1:]:
        world.share(note(device, 2))
    world.turn()
    assert said[5:] == [(DEVICES[0], False), *((device, True) for device in DEVICES[1:])]
    assert pulled(world, DEVICES[1]) == others(DEVICES[1], 2, DEVICES[1:])
    assert not one.push(note(DEVICES[0], 1))
    world.turn()
    assert len(said) == 10


def test_what_was_sent_before_does_not_make_a_take_back_add_something(world, monkeypatch):
    """Patterns share the one slot: the samples of one are in the total already."""
    world.form()
    said = adding(monkeypatch)
    for device in DEVICES:
        world.exchange(device).push(note(device, pattern="idle"))
        world.share(note(device, pattern="fast"))
    world.turn()
    world.share(Contribution(DEVICES[0], Stats.empty(SHARED), 2, "fast"))
    assert said[5:] == [(DEVICES[0], False)]


def test_a_pattern_without_a_slot_adds_nothing(hub, tmp_path, monkeypatch):
    world = MaskedWorld(hub, tmp_path, slots=["idle", "fast"])
    world.form()
    said = adding(monkeypatch)
    world.share(note(DEVICES[0], pattern="slow"))
    world.share(note(DEVICES[1], pattern="idle"))
    assert said == [(DEVICES[0], False), (DEVICES[1], True)]
    world.close()


def test_a_take_back_that_was_not_counted_goes_again(world):
    world.form()
    for device in DEVICES:
        world.share(note(device))
    world.turn()
    leaving, *rest = DEVICES
    world.share(Contribution(leaving, Stats.empty(SHARED), 2))
    world.form()  # ends the epoch that has it
    for device in rest:
        world.share(note(device, 2))
    world.turn()
    assert world.place.service.masked.result(world.fleet, 2)["state"] == "failed"
    assert pulled(world, rest[0]) == others(rest[0], 2, rest)


def test_files_of_older_versions_say_whether_something_is_fresh():
    for fresh, found in ((True, {"idle", "fast"}), (False, set())):
        state = MaskedState(bytes(32), "ab", {"idle": b"12", "fast": b"3"})
        metadata, tensors = unpack(state.to_bytes(), 2**20)
        plain = json.loads(metadata["masked"]) | {"fresh": fresh}
        data = pack({"masked": json.dumps(plain)}, tensors)
        assert MaskedState.from_bytes(data).fresh == found


def test_a_detector_adopts_it(world):
    world.form()
    for device in DEVICES:
        world.share(note(device))
    world.turn()
    pump = Detector(SHARED)
    pump.learn(rows(DEVICES[0]))
    pump.adopt(world.exchange(DEVICES[0]).pull(Selection(receiver=DEVICES[0])))
    assert pump.own + pump.others == sum(note(device).stats for device in DEVICES)


def test_without_something_fresh_nothing_is_sent_again(world):
    world.form()
    for device in DEVICES:
        world.share(note(device))
    world.turn()
    assert not world.share(note(DEVICES[0]))
    world.turn()
    status = world.place.operator.cohorts(world.fleet)[0]
    assert (status["epoch"], status["state"]) == (2, "collecting")
    for device in DEVICES:
        state = MaskedState.from_bytes((world.folder / f"{device}.masked").read_bytes())
        assert state.epoch == 0


def test_a_device_that_is_missing_is_in_a_later_epoch(world, hub):
    world.form(collect_s=50.0)
    *here, away = DEVICES
    for device in here:
        world.share(note(device))
    world.turn(here)
    assert pulled(world, here[0]) is None  # it waits for the last one
    hub.service.masked._clock = lambda: hub.service.clock() + 60.0
    world.turn(here)
    hub.service.masked._clock = hub.service.clock
    assert pulled(world, here[0]) == others(here[0], devices=here)
    assert pulled(world, away) == sum(note(device).stats for device in here)
    world.share(note(away))
    for device in here:
        world.share(note(device, 2))
    world.turn()
    assert pulled(world, here[0]) == others(here[0], 2, here) + note(away).stats


FAILPOINTS = [f"masked-before-{what}" for what in ("upload", "signature", "answer", "settle")]


@pytest.mark.parametrize("failpoint", FAILPOINTS)
def test_killed_anywhere_nothing_is_lost_or_doubled(world, failpoint, monkeypatch):
    world.form()
    killed = set()

    def kill(name):
        if name == failpoint and (name, dying) not in killed:
            killed.add((name, dying))
            raise Killed

    monkeypatch.setattr("edgemerge.exchange.masked_fleet.failpoint", kill)
    for revision in (1, 2):
        killed.clear()
        for dying in DEVICES:
            world.survive(dying, lambda there, r=revision: world.share(note(there.device, r)))
        for dying in DEVICES * 4:
            world.survive(dying, lambda there: there.pull(Selection(receiver=there.device)))
        assert killed
    for dying in DEVICES:
        assert pulled(world, dying) == others(dying, 2)


def test_patterns_have_slots(hub, tmp_path):
    world = MaskedWorld(hub, tmp_path, slots=["idle", "fast"])
    world.form()
    for i, device in enumerate(DEVICES):
        world.share(note(device, pattern=("idle", "fast")[i % 2]))
    world.turn()
    found = world.exchange(DEVICES[0]).pull(Selection(receiver=DEVICES[0]), grouped=True)
    idle = note(DEVICES[2]).stats + note(DEVICES[4]).stats
    fast = note(DEVICES[1]).stats + note(DEVICES[3]).stats
    assert [part.stats for part in found.parts] == [idle, fast]
    world.close()


def test_open_contributions_and_pulls_are_refused(world):
    world.form()
    there = world.place.exchange(world.fleet, "pump-9", SHARED)
    with pytest.raises(DeniedError, match="masked"):
        there.push(Contribution("pump-9", Stats.of(SHARED, rows("pump-0")), 1))
    with pytest.raises(DeniedError, match="masked"):
        there.pull(Selection(receiver="pump-9"))


def test_sums_of_another_projection_are_refused_and_not_stored(world):
    world.form()
    one = DEVICES[0]
    stats = Stats.of(replace(SHARED, seed=SHARED.seed + 1), rows(one))
    with pytest.raises(MismatchError, match="is not of the projection of"):
        world.exchange(one).push(Contribution(one, stats, 1))
    assert world.share(note(one))  # the first that is stored


def test_a_fault_is_not_added_to_what_is_normal(world):
    world.form()
    fault = replace(note(DEVICES[0], pattern="bearing"), kind="fault")
    with pytest.raises(RejectedError, match="fault"):
        world.exchange(DEVICES[0]).push(fault)
    assert not world.exchange(DEVICES[0])._state.newest


def test_devices_cannot_be_chosen(world):
    world.form()
    with pytest.raises(SettingError, match="only one total"):
        world.exchange("pump-0").pull(Selection(receiver="pump-0", without=("pump-1",)))


def test_another_cohort_than_the_wanted_one_is_refused(world):
    world.form()
    world.exchange("pump-0")._wanted = "0" * 64
    world.exchange("pump-0")._cohort = None
    with pytest.raises(RejectedError, match=r"set exchange\.cohort"):
        world.share(note("pump-0"))


def test_lost_keys_are_refused_until_an_operator_forgets_them(world):
    world.form()
    (world.folder / "pump-0.masked").unlink()
    world.exchange("pump-0").close()
    world._exchanges.pop("pump-0")
    again = world.made("pump-0")
    again._keys = DeviceKeys(bytes(32))
    with pytest.raises(RejectedError, match="has other keys here"):
        again._register()
    world.place.operator.forget_keys(world.fleet, "pump-0")
    again._register()


def test_the_state_is_the_same_after_bytes():
    state = MaskedState(bytes(range(32)), "ab", {"idle": b"12", "fast": b""}, fresh={"idle"})
    state.counted, state.through = (
        {3: np.array([2**63 + 1], np.uint64), 12: np.zeros(1, np.uint64)},
        2,
    )
    state.epoch, state.last, state.cohort = 3, 4, 12
    state.delta, state.upload, state.keeper = np.array([7], np.uint64), b"up", b"keep"
    again = MaskedState.from_bytes(state.to_bytes())
    assert again.to_bytes() == state.to_bytes()
    assert {n: words.tolist() for n, words in again.counted.items()} == {3: [2**63 + 1], 12: [0]}
    assert (again.newest, again.through, again.epoch, again.last) == (state.newest, 2, 3, 4)
    assert (again.cohort, again.fresh) == (12, {"idle"})


def test_the_server_stores_no_upload_of_an_opened_epoch(world):
    world.form()
    for device in DEVICES:
        world.share(note(device))
    world.turn()
    with world.place.service.database.reading() as tx:
        left = tx.one("select count(*) from epoch_messages where fleet = ?", world.fleet)
        boxes = tx.one("select count(*) from epoch_boxes where fleet = ?", world.fleet)
        entries = tx.rows("select action, detail from audit where fleet = ?", world.fleet)
    assert (left, boxes) == ((0,), (0,))
    opened = [json.loads(detail) for action, detail in entries if action == "open total"]
    assert opened == [{"members": 5, "survivors": 5}]


def test_a_total_that_lacks_what_was_counted_is_refused(world):
    """As after a backup was restored: subtracting would give sums that nobody saw."""
    world.form()
    for device in DEVICES:
        world.share(note(device))
    world.turn()
    world.place.service.writer.write(
        lambda tx: tx.run("update cohort_totals set through = 0 where fleet = ?", world.fleet)
    )
    with pytest.raises(RejectedError, match="restored from a backup"):
        pulled(world, DEVICES[0])


def restored(world, monkeypatch, change):
    """Let the server name another timeline, after something was lost."""
    world.place.service.writer.write(change)
    for device in DEVICES:
        there = world.exchange(device)
        ask = there._connection.ask

        def renamed(*about, ask=ask, there=there, **rest):
            reply = ask(*about, **rest)
            there._connection.timeline = "another"
            return reply

        monkeypatch.setattr(there._connection, "ask", renamed)


@pytest.mark.parametrize("lost", [True, False])
def test_a_restored_server_must_still_have_what_was_counted(world, monkeypatch, lost):
    """Others may have brought it as far as it was, without the sums of this device."""
    world.form()
    for device in DEVICES:
        world.share(note(device))
    world.turn()
    sql = "update epochs set survivors = '{}' where fleet = ? and epoch = 1"
    restored(world, monkeypatch, lambda tx: tx.run(sql, world.fleet) if lost else None)
    if lost:
        with pytest.raises(RejectedError, match="restored from a backup"):
            pulled(world, DEVICES[0])
    else:
        assert pulled(world, DEVICES[0]) == others(DEVICES[0])
        assert world.exchange(DEVICES[0])._state.timeline == "another"


def test_a_file_of_another_fleet_keeps_its_keys_alone(world, hub):
    world.form()
    for device in DEVICES:
        world.share(note(device))
    world.turn()
    second = MaskedWorld(hub, world.folder)
    try:
        second.form()
        for device in DEVICES:
            assert second.exchange(device)._keys.seed == world.exchange(device)._keys.seed
            assert second.share(note(device))
        second.turn()
        assert pulled(second, DEVICES[0]) == others(DEVICES[0])
    finally:
        second.close()


def test_an_epoch_far_ahead_is_refused(world, monkeypatch):
    """A device that uploads in the last epoch of all could never upload again."""
    world.form()
    there = world.exchange(DEVICES[0])
    ask = there._ask

    def far(method, *words, **rest):
        reply = ask(method, *words, **rest)
        if words != ("status",):
            return reply
        return replace(reply, body=json.dumps(reply.json_object() | {"epoch": 2**63}).encode())

    monkeypatch.setattr(there, "_ask", far)
    there.push(note(DEVICES[0]))
    with pytest.raises(RejectedError, match="expected one after 0"):
        there.take_part()
    assert there._state.last == 0


@pytest.mark.parametrize(
    "change",
    [
        {"cohort": {}},
        {"cohort": "1"},
        {"cohort": True},
        {"epoch": "1"},
        {"epoch": 1.0},
        {"state": None},
        {"uploaded": 0},
        {"asked": "no"},
        {"registered": None},
        {"through": "0"},
        {"dropped": 1},
        {"dropped": ["1"]},
    ],
)
def test_a_status_that_is_none_is_refused_and_leaves_no_trace(world, monkeypatch, change):
    """What a device stores of it would keep it from taking part for ever."""
    world.form()
    there = world.exchange(DEVICES[0])
    ask = there._ask

    def lied_to(method, *words, **rest):
        reply = ask(method, *words, **rest)
        if reply.status != 200 or words[-1] not in ("status", "upload"):
            return reply
        return replace(reply, body=json.dumps(reply.json_object() | change).encode())

    there.push(note(DEVICES[0]))
    before = there._path.read_bytes()
    monkeypatch.setattr(there, "_ask", lied_to)
    with pytest.raises(RejectedError, match=f"found a status with .* as {next(iter(change))}"):
        there.take_part()
    assert there._path.read_bytes() == before
    monkeypatch.undo()
    for device in DEVICES:
        world.share(note(device))
    world.turn()
    assert pulled(world, DEVICES[0]) == others(DEVICES[0])


def test_no_other_cohort_is_joined_while_an_upload_waits(world, monkeypatch):
    """Its keepers could sign that the upload was left out."""
    world.form()
    there = world.exchange(DEVICES[0])
    world.share(note(DEVICES[0]))
    pin = there._state.pin
    monkeypatch.setattr(there, "_settle", lambda: False)
    world.form(DEVICES[:4], least=4)
    with pytest.raises(RejectedError, match="another cohort while an upload waits"):
        there.take_part()
    assert there._state.pin == pin


def test_a_total_that_holds_an_upload_is_settled_before_it_is_used(world):
    """The epoch may end between a device's last look and its question for the total."""
    world.form()
    for revision in (1, 2):
        world.turn()
        for device in DEVICES:
            world.share(note(device, revision))
    there = world.restarted(DEVICES[0])
    there._take_part()
    world.turn(DEVICES[1:])
    assert there._state.epoch == 2
    found = there._others(grouped=False)
    assert found.parts[0].stats == others(DEVICES[0], 2)


def test_an_upload_that_is_counted_meanwhile_is_in_the_total_that_is_used(hub, tmp_path):
    """One cohort ends an epoch, after another one has ended a later one, amid a pull."""
    devices = [f"pump-{i}" for i in range(6)]
    world = MaskedWorld(hub, tmp_path, size=3)
    world.form(devices)
    mine, theirs = devices[0::2], devices[1::2]
    for device in devices:
        world.share(note(device))
    world.turn(devices)
    for device in (mine[0], *theirs):
        world.share(note(device, 2))
    world.turn(theirs)
    there = world.exchange(mine[0])
    there.pull(Selection(receiver=mine[0]))
    ask, ended = there._ask, []

    def meanwhile(*words, **rest):
        reply = ask(*words, **rest)
        if not ended:
            ended.append(words)
            for device in mine[1:]:
                world.share(note(device, 2))
            world.turn(mine[1:])
        return reply

    there._ask = meanwhile
    assert there._state.epoch
    (found,) = there.pull(Selection(receiver=mine[0])).parts
    assert ended == [("GET", "status")]
    assert found.stats == others(mine[0], 2, devices)
    world.close()


def note_questions(there, monkeypatch):
    """Return the list to which all that an exchange asks of its server is added."""
    asked, ask = [], there._ask

    def noted(*words, **rest):
        asked.append(words)
        return ask(*words, **rest)

    monkeypatch.setattr(there, "_ask", noted)
    return asked


def test_a_total_that_is_the_same_is_not_sent_again(world, monkeypatch):
    world.form()
    there = world.exchange(DEVICES[0])
    asked = note_questions(there, monkeypatch)
    assert there.pull(Selection(receiver=DEVICES[0])).parts == ()
    assert ("GET", "total") not in asked  # there is none
    for revision in (1, 2):
        for device in DEVICES:
            world.share(note(device, revision))
        world.turn()
        for _ in range(3):
            assert pulled(world, DEVICES[0]) == others(DEVICES[0], revision)
        assert asked.count(("GET", "total")) == revision
    number = world.place.operator.cohorts(world.fleet)[0]["cohort"]
    world.place.operator.drop_cohort(world.fleet, number)
    there.pull(Selection(receiver=DEVICES[0]))
    assert asked.count(("GET", "total")) == 3


def test_a_total_is_checked_once_until_it_or_the_own_part_is_another(world, monkeypatch):
    world.form()
    checked = []

    def noted(contribution, **rest):
        checked.append(contribution)
        return admit(contribution, **rest)

    monkeypatch.setattr(masked_fleet, "admit", noted)
    me = DEVICES[0]
    for revision in (1, 2):
        for device in DEVICES:
            world.share(note(device, revision))
        world.turn()
        assert pulled(world, me) == others(me, revision)
        checked.clear()
        assert pulled(world, me) == others(me, revision)
        assert not checked
    world.exchange(me).pull(Selection(receiver=me), grouped=True)
    assert len(checked) == 1


def test_the_reply_to_a_message_tells_the_status(world, monkeypatch):
    world.form()
    there = world.exchange(DEVICES[0])
    asked = note_questions(there, monkeypatch)
    there.push(note(DEVICES[0]))
    there.take_part()
    assert [words[-1] for words in asked] == ["status", "upload"]
    for device in DEVICES[1:]:
        world.share(note(device))
    world.turn(DEVICES[1:])
    asked.clear()
    assert pulled(world, DEVICES[0]) == others(DEVICES[0])
    assert [words[-1] for words in asked] == ["status", "total"]


def test_while_an_epoch_is_under_way_its_result_is_not_asked_for(world, monkeypatch):
    world.form()
    for device in DEVICES:
        world.share(note(device))
    there = world.exchange(DEVICES[-1])  # which has signed
    asked = note_questions(there, monkeypatch)
    status = world.place.service.masked.status
    for signing, device in ((True, DEVICES[0]), (True, DEVICES[1]), (False, DEVICES[2])):
        assert (status(world.fleet, DEVICES[2]).state == "signing") == signing
        there.take_part()
        world.exchange(device).take_part()
    assert [words[-1] for words in asked[:2]] == ["status", "status"]


def test_a_server_that_tells_less_with_the_status_is_asked(world, monkeypatch):
    """As one of an older version."""
    world.form()
    there = world.exchange(DEVICES[0])
    ask = there._ask

    def older(method, *words, **rest):
        rest.pop("query", None)
        return ask(method, *words, **rest)

    monkeypatch.setattr(there, "_ask", older)
    asked = note_questions(there, monkeypatch)
    for device in DEVICES:
        world.share(note(device))
    world.turn()
    assert pulled(world, DEVICES[0]) == others(DEVICES[0])
    assert ("GET", "cohort") in asked
    assert ("GET", "epochs", 1) in asked


@pytest.mark.parametrize("told", ["nothing", {"epoch": 7, "state": "failed"}])
def test_a_result_of_another_epoch_is_not_taken_for_that_of_the_upload(world, monkeypatch, told):
    """An upload that is taken for lost would be sent, and counted, twice."""
    world.form()
    there = world.exchange(DEVICES[0])
    for device in DEVICES:
        world.share(note(device))
    ask = there._ask

    def lied_to(method, *words, **rest):
        reply = ask(method, *words, **rest)
        if words != ("status",):
            return reply
        return replace(reply, body=json.dumps(reply.json_object() | {"result": told}).encode())

    monkeypatch.setattr(there, "_ask", lied_to)
    asked = note_questions(there, monkeypatch)
    world.turn()
    assert pulled(world, DEVICES[0]) == others(DEVICES[0])
    assert ("GET", "epochs", 1) in asked


def test_a_list_that_keepers_have_not_signed_is_not_believed(world, monkeypatch):
    """A device that is told it was left out would send its sums, which the total has, again."""
    world.form()
    for device in DEVICES:
        world.share(note(device))
    world.turn(DEVICES[1:])
    there = world.exchange(DEVICES[0])
    ask = there._ask

    def lied_to(*words, **rest):
        reply = ask(*words, **rest)
        told = reply.json_object()
        told["result"]["survivors"].pop("0")
        return replace(reply, body=json.dumps(told).encode())

    monkeypatch.setattr(there, "_ask", lied_to)
    with pytest.raises(DeniedError, match="found 0 valid signatures"):
        there.take_part()
    assert there._state.epoch == 1
    monkeypatch.undo()
    assert pulled(world, DEVICES[0]) == others(DEVICES[0])
    assert not there._state.epoch


@pytest.mark.parametrize(
    "change", [{"slots": []}, {"slots": [1]}, {"devices": [7]}, {"through": "1"}, {"dropped": [""]}]
)
def test_a_total_that_says_nothing_of_use_is_refused(world, monkeypatch, change):
    world.form()
    for device in DEVICES:
        world.share(note(device))
    world.turn()
    there = world.exchange(DEVICES[0])
    ask = there._ask

    def lied_to(method, *words, **rest):
        reply = ask(method, *words, **rest)
        if words != ("total",):
            return reply
        metadata, tensors = unpack(reply.body, len(reply.body))
        about = json.loads(metadata["total"]) | change
        return replace(reply, body=pack({"total": json.dumps(about)}, tensors))

    monkeypatch.setattr(there, "_ask", lied_to)
    with pytest.raises(RejectedError, match="the total cannot be read"):
        pulled(world, DEVICES[0])


def test_the_file_is_for_its_owner_alone(world):
    world.exchange("pump-0").pull(Selection(receiver="pump-0"))
    assert (world.folder / "pump-0.masked").stat().st_mode & 0o777 == 0o600


def test_a_cohort_with_other_keys_of_this_device_is_not_taken(world):
    world.form()
    world.turn()
    there = world.exchange("pump-0")
    pin = there._state.pin
    world.place.operator.forget_keys(world.fleet, "pump-0")
    world.place.service.masked.register(world.fleet, DeviceKeys(bytes(32)).member("pump-0"))
    world.place.operator.form_cohorts(world.fleet, **world.options)
    there.push(note("pump-0"))
    with pytest.raises(DeniedError, match="not in the cohort"):
        there.take_part()
    assert there._state.pin == pin != ""


def test_no_epoch_gets_a_second_upload_whatever_the_server_says(world, monkeypatch):
    """The masks of an epoch are the same for both: their difference would be open."""
    world.form()
    for device in DEVICES:
        world.share(note(device))
    world.turn()
    there, asked = world.exchange(DEVICES[0]), []
    ask = there._ask

    def lied_to(method, *words, **rest):
        asked.append((method, *words))
        reply = ask(method, *words, **rest)
        if words != ("status",):
            return reply
        status = reply.json_object() | {"epoch": 1, "state": "collecting", "uploaded": False}
        return replace(reply, body=json.dumps(status | {"asked": False}).encode())

    monkeypatch.setattr(there, "_ask", lied_to)
    there.push(note(DEVICES[0], 2))
    there.take_part()
    assert asked == [("GET", "status")]
    monkeypatch.undo()
    there.push(note(DEVICES[0], 2))
    there.take_part()
    assert there._state.epoch == 2


def test_a_cohort_of_another_fleet_is_not_taken(world, monkeypatch):
    """A device may have sent an upload of this epoch there, with the same masks."""
    world.form()
    masked = world.place.service.masked
    number, cohort = masked.cohort_of(world.fleet, "pump-0")
    other = replace(cohort, fleet="fans")
    monkeypatch.setattr(masked_epochs, "_find_cohort", lambda *_: (number, other))
    with pytest.raises(RejectedError, match="one of fans: it is not taken"):
        world.share(note("pump-0"))
    assert not world.exchange("pump-0")._state.pin


def test_a_cohort_for_sums_of_another_size_is_not_taken(world, monkeypatch):
    world.form()
    masked = world.place.service.masked
    number, cohort = masked.cohort_of(world.fleet, "pump-0")
    larger = replace(cohort, words=cohort.words + 1)
    monkeypatch.setattr(masked_epochs, "_find_cohort", lambda *_: (number, larger))
    with pytest.raises(MismatchError, match="another size"):
        world.share(note("pump-0"))


def test_a_dropped_cohort_is_in_no_total_and_its_devices_send_again(world):
    first = world.form()[0]["cohort"]
    for device in DEVICES:
        world.share(note(device))
    world.turn()
    world.place.operator.drop_cohort(world.fleet, first)
    assert world.place.operator.cohorts(world.fleet) == []
    assert pulled(world, DEVICES[0]) is None
    world.form()
    for device in DEVICES:
        world.share(note(device, 2))
    world.turn()
    for device in DEVICES:
        assert pulled(world, device) == others(device, 2)


EPOCH_S = 50.0  # that an epoch of these histories waits
STEPS, LAST_PUSHES = 8, 3


class History:
    """What may happen to a masked fleet, drawn at random, and an open one with the same pushes.

    Cohorts have random sizes; devices send, ask and restart in random order; epochs end without
    some of them; cohorts are mixed and dropped.
    """

    def __init__(self, hub, folder, seed):
        self.rng, self.later, self.newest = np.random.default_rng(seed), 0.0, {}
        self.open = HttpWorld(hub)
        self.devices = [f"pump-{i}" for i in range(self.rng.integers(6, 9))]
        size = int(self.rng.integers(3, 5))
        self.world = MaskedWorld(hub, folder, size=size, collect_s=EPOCH_S)
        hub.service.masked._clock = lambda: hub.service.clock() + self.later
        self.world.form(self.devices)

    def some(self):
        count = self.rng.integers(1, len(self.devices) + 1)
        return self.rng.permutation(self.devices)[:count].tolist()

    def push(self, devices=None):
        for device in devices or self.some():
            revision = self.newest[device].revision + 1 if device in self.newest else 1
            rows = self.rng.uniform(-1.0, 2.0, (5 + revision, SHARED.n_inputs))
            self.newest[device] = Contribution(device, Stats.of(SHARED, rows), revision)
            self.world.exchange(device).push(self.newest[device])
            self.open.exchange(device).push(self.newest[device])

    def turn(self):
        self.world.turn(self.some())

    def restart(self):
        for device in self.some():
            self.world.restarted(device)

    def leave_out(self):
        self.later += 2 * EPOCH_S  # whoever has not sent is missing

    def mix(self):
        self.world.form(self.devices, mix=True)

    def drop(self):
        if cohorts := self.world.place.operator.cohorts(self.world.fleet):
            chosen = cohorts[self.rng.integers(len(cohorts))]["cohort"]
            self.world.place.operator.drop_cohort(self.world.fleet, chosen)

    def end(self):
        """Let everybody send something fresh until all is counted."""
        self.mix()
        for _ in range(LAST_PUSHES):
            self.push(self.rng.permutation(self.devices).tolist())
            self.world.turn(self.devices)


@pytest.mark.parametrize("seed", range(3))
def test_whatever_happens_a_masked_fleet_adds_up_what_an_open_one_does(hub, tmp_path, seed):
    now = History(hub, tmp_path, seed)
    may_happen = [now.push, now.push, now.turn, now.restart, now.leave_out, now.mix, now.drop]
    for _ in range(STEPS):
        now.rng.choice(may_happen)()
    now.end()
    hub.service.masked._clock = hub.service.clock
    for device in now.devices:
        expected = [now.newest[other].stats for other in now.devices if other != device]
        found = now.open.exchange(device).pull(Selection(receiver=device)).total
        assert pulled(now.world, device) == found == Stats.total(SHARED, expected)
    for world in (now.world, now.open):
        world.close()
