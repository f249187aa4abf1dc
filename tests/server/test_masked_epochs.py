"""Masked epochs on the server: when they move on, what they refuse, on both databases."""

import json
import random as insecure
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest

from edgemerge import Stats
from edgemerge.core.errors import RejectedError, SettingError, UnavailableError, UnknownError
from edgemerge.core.similarity import SIMILAR_FACTOR
from edgemerge.privacy.gate import min_cohort
from edgemerge.privacy.masking import (
    DeviceKeys,
    Keeper,
    Survivors,
    make_upload,
    stats_of,
    words_of,
)
from edgemerge.privacy.noise import NoiseSettings
from edgemerge.server import masked_epochs
from edgemerge.server.fleets import ExistsError
from edgemerge.server.masked_epochs import MAX_FORMINGS, compare_sums
from edgemerge.server.schemas import CohortRequest
from tests.cases import machine
from tests.server.world import FLEET, ROOT, SHARED, World

pytestmark = pytest.mark.slow

DEVICES = [f"pump-{i}" for i in range(5)]
COLLECT_S = 60.0


class MaskedWorld(World):
    """A masked fleet whose devices call the service."""

    def __init__(self, url):
        super().__init__(url, read_mode="masked")
        self.masked = self.service.masked
        self.random = insecure.Random(0).randbytes
        self.keys = {device: DeviceKeys.draw(self.random) for device in DEVICES}
        self.register_all()

    def register_all(self, samples=9):
        """Let the devices in, each with so many samples."""
        self.deltas = {
            device: words_of(Stats.of(SHARED, machine(0.5, samples, self.rng)))
            for device in DEVICES
        }
        for device in DEVICES:
            self.caller(device)
            self.masked.register(FLEET, self.keys[device].member(device))

    def form(self, **options):
        chosen = {"least": 3, "slots": ["normal"], "collect_s": COLLECT_S} | options
        return self.masked.form(FLEET, ROOT, **chosen)[0][1]

    def upload(self, device, delta=None, *, adds=True):
        """Send an upload in the epoch that collects; return its number."""
        cohort = self.masked.cohort_of(FLEET, device)[1]
        epoch = self.masked.status(FLEET, device).epoch
        words = self.deltas[device] if delta is None else delta
        data = make_upload(cohort, self.keys[device], epoch, words, self.random, adds=adds)
        self.masked.upload(FLEET, device, epoch, data)
        return epoch

    def sign(self, device):
        """Sign the list as a keeper, if the epoch asks for it; return the signature."""
        status = self.masked.status(FLEET, device)
        if not (status.asked and status.state == "signing"):
            return None
        cohort = self.masked.cohort_of(FLEET, device)[1]
        told = json.loads(status.listed)
        survivors = Survivors(status.epoch, {int(n): bytes.fromhex(told[n]) for n in told})
        signature = Keeper(cohort, self.keys[device]).sign(survivors)
        self.masked.sign(FLEET, device, status.epoch, signature)
        return signature

    def answer(self, device):
        """Answer as a keeper, if the epoch asks for it, once so many have signed as are needed."""
        cohort = self.masked.cohort_of(FLEET, device)[1]
        for member in cohort.members:
            self.sign(member.name)
        status = self.masked.status(FLEET, device)
        if status.asked:
            request = self.masked.request(FLEET, device, status.epoch)
            data = Keeper(cohort, self.keys[device]).answer(status.epoch, request)
            self.masked.answer(FLEET, device, status.epoch, data)

    def epoch(self, devices=DEVICES):
        """Let an epoch pass with these devices."""
        for device in devices:
            number = self.upload(device)
        if set(devices) < set(DEVICES):
            self.now += COLLECT_S
        for device in devices:
            self.answer(device)
        return number

    def total(self):
        return self.masked.total(FLEET)[1]

    def expected(self, devices=DEVICES):
        return sum(self.deltas[device] for device in devices)


@pytest.fixture
def world(tmp_path):
    made = MaskedWorld(f"sqlite:///{tmp_path / 'fleets.db'}")
    yield made
    made.service.close()


@pytest.fixture
def anywhere(database_url):
    made = MaskedWorld(database_url)
    yield made
    made.service.close()


def test_epochs_add_up_with_and_without_a_device(anywhere):
    anywhere.form()
    first = anywhere.epoch()
    second = anywhere.epoch(DEVICES[1:])
    assert np.array_equal(anywhere.total(), anywhere.expected() + anywhere.expected(DEVICES[1:]))
    states = [anywhere.masked.result(FLEET, number) for number in (first, second)]
    assert [(each["state"], len(each["survivors"])) for each in states] == [
        ("done", 5),
        ("done", 4),
    ]
    with anywhere.service.database.reading() as tx:
        assert tx.one("select count(*) from epoch_messages") == (0,)


def test_two_servers_that_open_an_epoch_count_it_once(anywhere, monkeypatch):
    anywhere.form()
    finish = anywhere.masked._finish

    def finish_twice(*about):
        finish(*about)
        return finish(*about)

    monkeypatch.setattr(anywhere.masked, "_finish", finish_twice)
    anywhere.epoch()
    assert np.array_equal(anywhere.total(), anywhere.expected())


def test_cohorts_that_are_formed_again_end_the_epoch_of_those_before(anywhere):
    old = anywhere.form()
    epoch = anywhere.upload(DEVICES[0])
    stale = make_upload(old, anywhere.keys[DEVICES[1]], epoch, anywhere.deltas[DEVICES[1]])
    new = anywhere.form()
    assert new.digest == old.digest  # the same members and numbers
    assert [len(cohort.members) for _, cohort, _ in anywhere.masked.cohorts(FLEET)] == [5]
    assert anywhere.masked.result(FLEET, epoch)["state"] == "failed"
    with pytest.raises(ExistsError, match="ask for the status"):
        anywhere.masked.upload(FLEET, DEVICES[1], epoch, stale)
    assert anywhere.epoch() > epoch
    assert np.array_equal(anywhere.total(), anywhere.expected())


def test_too_few_uploads_are_never_opened(world):
    world.form()
    for device in DEVICES[:2]:
        world.upload(device)
    world.now += 10 * COLLECT_S
    assert world.masked.status(FLEET, DEVICES[0]).state == "collecting"
    world.upload(DEVICES[2])
    assert world.masked.status(FLEET, DEVICES[0]).state == "signing"


def test_the_fewest_devices_of_a_total_are_taken_under_both_names():
    for asked in ({"min_devices": 4}, {"least": 4}, {"min_devices": 4, "least": 9}):
        assert CohortRequest(**asked).settings() == CohortRequest().settings() | {"least": 4}


def test_keepers_are_not_asked_while_there_are_too_few_of_them(world):
    """Their epoch could only fail, and with noise its samples would be lost."""
    assert world.form(colluding=0.4, missing=0.0).threshold == 4
    for device in DEVICES[:3]:
        world.upload(device)
    world.now += COLLECT_S
    assert world.masked.status(FLEET, DEVICES[0]).state == "collecting"
    world.upload(DEVICES[3])
    assert world.masked.status(FLEET, DEVICES[0]).state == "signing"


def test_the_same_bytes_may_come_again_and_no_others(anywhere):
    """An acknowledgement may be lost; two uploads of an epoch would show their difference."""
    cohort, device = anywhere.form(), DEVICES[0]
    epoch = anywhere.masked.status(FLEET, device).epoch
    about = (cohort, anywhere.keys[device], epoch, anywhere.deltas[device], anywhere.random)
    first, second = make_upload(*about), make_upload(*about)
    assert first != second
    assert anywhere.masked.upload(FLEET, device, epoch, first).uploaded
    assert anywhere.masked.upload(FLEET, device, epoch, first).uploaded
    with pytest.raises(ExistsError, match="takes no other upload"):
        anywhere.masked.upload(FLEET, device, epoch, second)
    with anywhere.service.database.reading() as tx:
        assert tx.rows("select data from epoch_messages") == [(first,)]


def test_a_late_upload_waits_for_the_next_epoch(world):
    cohort = world.form()
    for device in DEVICES[:4]:
        epoch = world.upload(device)
    world.now += COLLECT_S
    assert world.masked.status(FLEET, DEVICES[4]).state == "signing"
    late = make_upload(cohort, world.keys[DEVICES[4]], epoch, world.deltas[DEVICES[4]])
    with pytest.raises(ExistsError, match="takes no other upload"):
        world.masked.upload(FLEET, DEVICES[4], epoch, late)


def asked(world, device):
    status = world.masked.status(FLEET, device)
    assert bool(status.listed) == (status.asked and status.state == "signing")
    return status.asked and status.state


def test_a_keeper_is_asked_until_it_has_signed_and_answered(world):
    threshold = world.form().threshold
    for device in DEVICES:
        world.upload(device)
    for device in DEVICES[: threshold - 1]:
        assert asked(world, device) == "signing"
        world.sign(device)
        assert not asked(world, device)
    world.sign(DEVICES[threshold - 1])
    assert {asked(world, device) for device in DEVICES} == {"keeping"}  # also who has not signed
    world.answer(DEVICES[0])
    assert not asked(world, DEVICES[0])


def test_a_signature_may_come_again_and_not_too_late(anywhere):
    anywhere.form()
    for device in DEVICES:
        epoch = anywhere.upload(device)
    first = anywhere.sign(DEVICES[0])
    anywhere.masked.sign(FLEET, DEVICES[0], epoch, first)
    status = anywhere.masked.status(FLEET, DEVICES[4])
    told = json.loads(status.listed)
    survivors = Survivors(epoch, {int(n): bytes.fromhex(told[n]) for n in told})
    cohort = anywhere.masked.cohort_of(FLEET, DEVICES[4])[1]
    late = Keeper(cohort, anywhere.keys[DEVICES[4]]).sign(survivors)
    for device in DEVICES[1:3]:
        anywhere.sign(device)
    anywhere.masked.sign(FLEET, DEVICES[0], epoch, first)
    with pytest.raises(ExistsError, match="takes no other signature"):
        anywhere.masked.sign(FLEET, DEVICES[4], epoch, late)
    for device in DEVICES:
        anywhere.answer(device)
    assert anywhere.masked.result(FLEET, epoch)["state"] == "done"
    for signature in (first, late):
        with pytest.raises(ExistsError, match=f"epoch {epoch} is over"):
            anywhere.masked.sign(FLEET, DEVICES[0], epoch, signature)
    assert len(anywhere.masked.result(FLEET, epoch)["signatures"]) == 3


def test_only_a_keepers_own_signature_of_the_list_is_stored(world):
    world.form()
    for device in DEVICES:
        epoch = world.upload(device)
    signature = world.sign(DEVICES[0])
    for wrong in (signature, bytes(64), b""):
        with pytest.raises(RejectedError, match="no signature of pump-1"):
            world.masked.sign(FLEET, DEVICES[1], epoch, wrong)
    with world.service.database.reading() as tx:
        sql = "select count(*) from epoch_messages where kind = 'signature'"
        assert tx.one(sql) == (1,)


def test_keepers_that_do_not_sign_fail_the_epoch_and_have_their_own_time(world):
    world.form()
    for device in DEVICES[:4]:
        epoch = world.upload(device)
    world.now += COLLECT_S
    assert asked(world, DEVICES[0]) == "signing"
    world.now += COLLECT_S - 1.0
    world.sign(DEVICES[0])
    assert asked(world, DEVICES[1]) == "signing"
    world.now += 1.0
    world.masked.status(FLEET, DEVICES[0])
    found = world.masked.result(FLEET, epoch)
    assert (found["state"], found["why"]) == (
        "failed",
        "found 1 signatures of keepers, expected 3",
    )
    for device in DEVICES[:4]:
        epoch = world.upload(device)
    world.now += COLLECT_S
    for device in DEVICES[:3]:
        world.sign(device)
    world.now += COLLECT_S - 1.0  # for the answers, from the last signature on
    for device in DEVICES[:3]:
        world.answer(device)
    assert world.masked.result(FLEET, epoch)["state"] == "done"


def test_keepers_that_do_not_answer_fail_the_epoch(world):
    world.form()
    for device in DEVICES:
        epoch = world.upload(device)
    world.answer(DEVICES[0])
    world.now += COLLECT_S
    world.masked.status(FLEET, DEVICES[0])
    found = world.masked.result(FLEET, epoch)
    assert (found["state"], found["why"]) == (
        "failed",
        "found 1 valid answers of keepers, expected 3",
    )
    with world.service.database.reading() as tx:
        assert tx.one("select count(*) from epoch_messages") == (0,)
        assert tx.one("select count(*) from epoch_boxes") == (0,)
    world.epoch()
    assert np.array_equal(world.total(), world.expected())


def test_an_epoch_that_another_server_has_opened_does_not_fail(anywhere):
    """Devices would send what the total has once more."""
    anywhere.form()
    for device in DEVICES:
        number = anywhere.upload(device)
    for device in DEVICES:
        anywhere.sign(device)
    ((cohort, _, keeping),) = anywhere.masked.cohorts(FLEET)
    for device in DEVICES:
        anywhere.answer(device)
    assert keeping.state == "keeping"
    assert anywhere.masked._fail(FLEET, cohort, keeping, "too late").number == number + 1
    assert anywhere.masked.result(FLEET, number)["state"] == "done"


def test_a_total_with_the_same_epochs_of_another_history_has_another_version(world):
    """A server that was restored counts the same numbers anew, of other uploads."""
    world.form()
    number = world.epoch()
    before = world.masked.total(FLEET)
    sql = "update epochs set signatures = '{}' where fleet = ? and epoch = ?"
    world.service.writer.write(lambda tx: tx.run(sql, FLEET, number))
    after = world.masked.total(FLEET)
    assert after.through == before.through
    assert after.version != before.version


def test_a_revoked_device_is_in_no_new_cohort(world):
    world.service.revoke(FLEET, DEVICES[0], ROOT)
    assert [member.name for member in world.form().members] == DEVICES[1:]


def test_by_default_a_cohort_hides_its_samples(world):
    least = min_cohort(SHARED)
    with pytest.raises(SettingError, match=f"found 5 devices with keys, expected {least} or more"):
        world.form(least=None)
    for i in range(5, least):
        name = f"pump-{i}"
        world.caller(name)
        world.masked.register(FLEET, DeviceKeys(bytes([i] * 32)).member(name))
    assert world.form(least=None).least == least


@pytest.mark.parametrize(("least", "found"), [(3, [3, 3, 3]), (4, [9]), (5, [9])])
def test_cohorts_that_must_be_larger_have_room_for_those_that_miss_an_epoch(world, least, found):
    """With nine devices and a size of three: four of a third more would be six of nine."""
    for i in range(5, 9):
        world.caller(f"pump-{i}")
        world.masked.register(FLEET, DeviceKeys(bytes([i] * 32)).member(f"pump-{i}"))
    world.form(size=3, least=least)
    assert [len(cohort.members) for _, cohort, _ in world.masked.cohorts(FLEET)] == found


@pytest.mark.parametrize(("size", "least", "found"), [(2, 4, [5]), (4, 3, [5]), (5, 3, [5])])
def test_cohorts_are_not_cut_below_the_fewest_survivors(world, size, least, found):
    world.form(size=size, least=least)
    assert [len(cohort.members) for _, cohort, _ in world.masked.cohorts(FLEET)] == found


def test_a_large_fleet_is_cut_into_cohorts(world):
    for i in range(5, 9):
        world.caller(f"pump-{i}")
        world.masked.register(FLEET, DeviceKeys(bytes([i] * 32)).member(f"pump-{i}"))
    world.form(size=4, least=3)
    assert [len(cohort.members) for _, cohort, _ in world.masked.cohorts(FLEET)] == [3, 3, 3]


def take_back(world, name, samples):
    """Let a device add so many samples less than none to what it sends."""
    rows = machine(0.1, samples, world.rng)
    world.deltas[name] = world.deltas[name] - words_of(Stats.of(SHARED, rows))


def test_a_cohort_with_sums_of_no_samples_differs(world):
    """One device pushes its cohort below zero; the whole fleet still has sums of samples."""
    three_cohorts(world, bad_place=0.1)
    (_, first, _), (second, cohort, _), *_ = world.masked.cohorts(FLEET)
    for member in cohort.members:
        take_back(world, member.name, 500)
        world.upload(member.name)
    for member in cohort.members:
        world.answer(member.name)
    found = world.masked.records(FLEET)
    assert [record.number for record in found if record.differs] == [second]
    assert [(r.impossible, r.distance is None) for r in found if r.differs] == [(True, True)]
    assert world.masked.suspects(FLEET).devices == sorted(m.name for m in cohort.members)
    world.now += 1.0
    world.form(size=9)  # what devices take back now may have been added before
    for name in sorted(world.keys):
        world.deltas[name] = np.zeros_like(world.deltas[name])
    take_back(world, first.members[0].name, 5)
    for name in sorted(world.keys):
        world.upload(name)
    for name in sorted(world.keys):
        world.answer(name)
    *_, last = world.masked.records(FLEET)
    assert (last.samples, last.impossible, last.differs) == (-5.0, False, False)


def test_what_could_not_be_opened_is_tried_again_with_more_answers_only(world, monkeypatch):
    world.form()
    for device in DEVICES:
        world.upload(device)
    tried = []

    def refuse(_cohort, _epoch, _uploads, answers):
        tried.append(len(answers))
        raise RejectedError("a keeper lied")

    monkeypatch.setattr("edgemerge.server.masked_epochs.open_total", refuse)
    for device in DEVICES:
        world.answer(device)
        for other in DEVICES:
            world.masked.status(FLEET, other)
    assert tried == [3, 4, 5]
    with world.service.database.reading() as tx:
        assert tx.one("select state, why from epochs where epoch = 1") == (
            "failed",
            "a keeper lied",
        )


def test_an_epoch_in_which_too_many_take_back_waits_for_others_and_then_ends(anywhere):
    anywhere.form()
    for device in DEVICES[:2]:
        anywhere.upload(device, adds=False)
    for device in DEVICES[2:4]:
        anywhere.upload(device)
    anywhere.now += COLLECT_S
    assert anywhere.masked.status(FLEET, DEVICES[0]).state == "collecting"  # the last may add
    number = anywhere.upload(DEVICES[4], adds=False)
    assert anywhere.masked.status(FLEET, DEVICES[0]).epoch == number + 1
    found = anywhere.masked.result(FLEET, number)
    assert found["state"] == "failed"
    assert found["why"] == "too many devices take back: fewer than 3 can add something new"
    for device in DEVICES[:2]:
        anywhere.upload(device, adds=False)
    for device in DEVICES[2:]:
        anywhere.upload(device)
    for device in DEVICES:
        anywhere.answer(device)
    assert anywhere.masked.result(FLEET, number + 1)["state"] == "done"


def test_keepers_are_not_asked_while_a_part_could_be_told_from_the_rest(world, monkeypatch):
    world.form()
    monkeypatch.setattr("edgemerge.privacy.masking.Cohort.holds_together", lambda *_: False)
    for device in DEVICES:
        world.upload(device)
    assert world.masked.status(FLEET, DEVICES[0]).state == "collecting"


def test_a_database_that_is_busy_fails_no_epoch(world, monkeypatch):
    world.form()
    for device in DEVICES:
        world.upload(device)
    finish, times = world.masked._finish, []

    def busy(*about):
        times.append(about)
        if len(times) == 1:
            raise UnavailableError("all connections are in use")
        return finish(*about)

    monkeypatch.setattr(world.masked, "_finish", busy)
    for device in DEVICES[:2]:
        world.answer(device)
    with pytest.raises(UnavailableError):
        world.answer(DEVICES[2])
    world.masked.status(FLEET, DEVICES[0])
    assert world.masked.result(FLEET, 1)["state"] == "done"


def three_cohorts(world, bad_place=0.9):
    """Form cohorts of three devices each, of which one sends other data; return its number."""
    for i in range(5, 9):
        name = f"pump-{i}"
        world.caller(name)
        world.keys[name] = DeviceKeys(bytes([i] * 32))
        world.masked.register(FLEET, world.keys[name].member(name))
    world.form(size=4)
    places = {number: 0.1 for number, _, _ in world.masked.cohorts(FLEET)}
    bad = list(places)[1]
    places[bad] = bad_place
    for number, cohort, _ in world.masked.cohorts(FLEET):
        for member in cohort.members:
            rows = machine(places[number], 200, world.rng)
            world.deltas[member.name] = words_of(Stats.of(SHARED, rows))
            world.upload(member.name)
        for member in cohort.members:
            world.answer(member.name)
    return bad


def test_a_cohort_that_differs_from_the_others_is_seen_and_dropped_whole(anywhere):
    bad = three_cohorts(anywhere)
    before = {number: cohort for number, cohort, _ in anywhere.masked.cohorts(FLEET)}
    found = anywhere.masked.records(FLEET)
    assert [record.samples for record in found] == [600.0, 600.0, 600.0]
    assert [record.number for record in found if record.differs] == [bad]
    anywhere.masked.drop_cohort(FLEET, bad, ROOT)
    again = anywhere.masked.records(FLEET)
    assert [record.number for record in again if record.dropped] == [bad]
    assert [record.number for record in again if record.differs] == [bad]
    assert [record.number for record in again if record.ended is None] == list(
        dict.fromkeys(n for n in before if n != bad)
    )
    kept = [m.name for n, cohort in before.items() if n != bad for m in cohort.members]
    total = anywhere.masked.total(FLEET)
    assert np.array_equal(total.words, anywhere.expected(kept))
    assert (total.devices, total.dropped) == (frozenset(kept), (bad,))
    assert [number for number, *_ in anywhere.masked.cohorts(FLEET)] == [
        n for n in before if n != bad
    ]
    out = before[bad].members[0].name
    assert anywhere.masked.status(FLEET, out).dropped == (bad,)
    assert anywhere.masked.status(FLEET, out).cohort is None


def test_one_cohort_has_no_others_to_differ_from(world):
    world.form()
    world.epoch()
    (record,) = world.masked.records(FLEET)
    assert (record.samples, record.distance, record.differs) == (45.0, None, False)


def test_no_cohort_is_compared_with_a_dropped_one(world):
    good, bad = (Stats.of(SHARED, machine(place, 200, world.rng)) for place in (0.1, 0.9))
    assert compare_sums({1: good, 2: bad}, {2})[1] == (200.0, None, False)
    samples, far, _ = compare_sums({1: good, 2: bad}, {2})[2]
    assert samples == 200.0
    assert far is not None
    assert far > SIMILAR_FACTOR


def test_a_cohort_is_compared_anew_when_it_has_added_up_more(world):
    three_cohorts(world)
    before = world.masked.records(FLEET)
    assert world.masked.records(FLEET) == before
    names = [member.name for member in before[0].cohort.members]
    for act in (world.upload, world.answer):
        for name in names:
            act(name)
    after = world.masked.records(FLEET)
    assert [record.samples for record in after] == [1200.0, 600.0, 600.0]


def join_many(world, count):
    """Let so many devices in, in all."""
    names = [f"pump-{i:02}" for i in range(count)]
    for i, name in enumerate(names):
        world.caller(name)
        world.keys[name] = DeviceKeys(bytes([i + 1] * 32))
        world.masked.register(FLEET, world.keys[name].member(name))
    for device in DEVICES:
        world.service.revoke(FLEET, device, ROOT)
    return names


def members_of(record):
    return {member.name for member in record.cohort.members}


def test_mixing_parts_devices_that_were_in_one_cohort(anywhere):
    names = join_many(anywhere, 30)
    anywhere.form(size=5)
    before = anywhere.masked.records(FLEET)
    for _ in range(3):
        anywhere.now += 1.0
        anywhere.form(size=5, mix=True)
        after = anywhere.masked.records(FLEET)[-6:]
        assert sorted(name for record in after for name in members_of(record)) == names
        assert all(len(members_of(a) & members_of(b)) <= 1 for a in before for b in after)
        before = after


def test_without_mixing_the_same_devices_give_the_same_cohorts(world):
    join_many(world, 9)
    digests = []
    for _ in range(2):
        world.now += 1.0
        world.form(size=3)
        digests.append([r.cohort.digest for r in world.masked.records(FLEET)[-3:]])
    assert digests[0] == digests[1]


def let_all_send(world, names, liars):
    """Let everybody send data of one kind, and liars of another, in the cohorts that there are."""
    for name in names:
        rows = machine(0.9 if name in liars else 0.1, 60, world.rng)
        world.deltas[name] = words_of(Stats.of(SHARED, rows))
        world.upload(name)
    for name in names:
        world.answer(name)


def hunt(world, names, liars):
    """Drop what differs and mix, until one device is left; return it and the formings it took."""
    for forming in range(1, 6):
        world.now += 1.0
        world.form(size=5, mix=True)
        let_all_send(world, names, liars)
        for record in world.masked.records(FLEET):
            if record.differs and record.ended is None:
                world.masked.drop_cohort(FLEET, record.number, ROOT)
        found = world.masked.suspects(FLEET)
        if len(found.devices) == 1:
            assert (found.times, found.formings) == (forming, forming)
            return found.devices[0], forming
    raise AssertionError(f"still {len(found.devices)} suspects")


@pytest.mark.parametrize("liar", ["pump-00", "pump-17", "pump-29"])
def test_one_liar_among_thirty_is_found_in_two_formings(world, liar):
    names = join_many(world, 30)
    assert hunt(world, names, {liar}) == (liar, 2)
    honest = [name for name in names if name != liar]
    total = world.masked.total(FLEET)
    assert liar not in total.devices
    world.service.revoke(FLEET, liar, ROOT)
    assert world.masked.suspects(FLEET) == ([], 0, 0)  # it explains all cohorts that differed
    world.now += 1.0
    world.form(size=5, mix=True)
    let_all_send(world, honest, set())
    assert not any(record.differs for record in world.masked.records(FLEET)[-5:])


def test_after_one_liar_another_is_found(world):
    names = join_many(world, 30)
    liar, _ = hunt(world, names, {"pump-03"})
    world.service.revoke(FLEET, liar, ROOT)
    left = [name for name in names if name != liar]
    assert hunt(world, left, {"pump-21"}) == ("pump-21", 2)


def test_where_no_cohort_differs_nobody_is_suspected(world):
    names = join_many(world, 9)
    world.form(size=3)
    let_all_send(world, names, set())
    assert world.masked.suspects(FLEET) == ([], 0, 0)


def test_only_the_last_ten_formings_are_compared(world):
    for _ in range(MAX_FORMINGS + 2):
        world.now += 1.0
        world.form()
    found = world.masked.records(FLEET)
    assert len(found) == MAX_FORMINGS
    assert found[-1].ended is None


def test_only_a_cohort_of_the_fleet_is_dropped(world):
    world.form()
    with pytest.raises(UnknownError, match="no cohort 99"):
        world.masked.drop_cohort(FLEET, 99, ROOT)


def test_a_total_keeps_its_slots(world):
    world.form()
    world.epoch()
    cohort = world.form(slots=["idle", "fast"])
    for device in DEVICES:
        epoch = world.upload(device, np.zeros(cohort.words, np.uint64))
    for device in DEVICES:
        world.answer(device)
    found = world.masked.result(FLEET, epoch)
    assert found["state"] == "failed"
    assert "other slots" in found["why"]
    assert np.array_equal(world.total(), world.expected())


def test_a_total_that_no_samples_have_is_refused(world):
    world.form()
    negative = -words_of(Stats.of(SHARED, machine(0.5, 99, world.rng)))
    world.deltas[DEVICES[0]] = negative
    epoch = world.epoch()
    assert world.masked.result(FLEET, epoch)["state"] == "failed"
    assert world.total().size == 0


def test_keys_are_those_of_the_device(world):
    world.form()
    other = world.keys[DEVICES[1]].member(DEVICES[0])
    with pytest.raises(ExistsError, match="forget-keys"):
        world.masked.register(FLEET, other)
    world.masked.register(FLEET, world.keys[DEVICES[0]].member(DEVICES[0]))  # again


def test_an_open_fleet_has_no_masked_epochs(tmp_path):
    world = World(f"sqlite:///{tmp_path / 'fleets.db'}")
    world.caller(DEVICES[0])
    with pytest.raises(SettingError, match="--reads masked"):
        world.service.masked.register(FLEET, DeviceKeys(bytes(32)).member(DEVICES[0]))
    for ask in (world.service.masked.total, world.service.masked.total_bytes):
        with pytest.raises(SettingError, match="--reads masked"):
            ask(FLEET)
    world.service.close()


def test_a_fleet_that_is_not_masked_cannot_have_noise(world):
    fleet = replace(
        world.fleet, name="open", read_mode="contributions", noise=NoiseSettings(4.0, 1e-5)
    )
    with pytest.raises(SettingError, match="noise for reads=contributions, expected masked"):
        world.service.create(fleet, ROOT)


def test_a_total_is_packed_once_for_all_who_ask_for_it(world, monkeypatch):
    pack = Mock(wraps=masked_epochs._pack_total)
    monkeypatch.setattr(masked_epochs, "_pack_total", pack)
    world.form()
    for times in (1, 2):
        world.epoch()
        first, again = (world.masked.total_bytes(FLEET) for _ in range(2))
        assert first == again
        assert pack.call_count == times


def test_what_was_added_up_are_sums(world):
    world.form()
    world.epoch()
    assert stats_of(SHARED, world.total()).count == 5 * 9


def test_a_fleet_that_is_made_anew_under_an_old_name_begins_with_nothing(world):
    """Cohorts and epochs get the same numbers again; nothing in memory may be taken for theirs."""
    world.form()
    world.epoch()
    assert world.masked.total_bytes(FLEET)
    assert [record.samples for record in world.masked.records(FLEET)] == [45.0]
    world.service.delete(FLEET, ROOT)
    world.now += 1.0
    world.tokens = {}
    world.service.create(world.fleet, ROOT)
    world.register_all(samples=7)
    assert world.masked.total_bytes(FLEET) == b""
    world.form()
    assert {world.upload(device) for device in DEVICES} == {1}
    for device in DEVICES[:3]:  # as many as were enough before
        world.answer(device)
    assert np.array_equal(world.total(), world.expected())
    assert [record.samples for record in world.masked.records(FLEET)] == [35.0]
