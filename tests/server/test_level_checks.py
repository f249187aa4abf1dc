"""What does not fit a device is in no sum for it: contributions are checked one by one."""

import json
from dataclasses import replace

import numpy as np
import pytest

from edgemerge import Contribution, Stats
from edgemerge.core.errors import UnavailableError
from edgemerge.core.ledger import Selection
from edgemerge.core.similarity import LevelCheck, Profile
from edgemerge.server import fleets
from edgemerge.server.contributions import list_stored
from edgemerge.server.main import create_app
from edgemerge.server.releases import EVERY_DEVICE
from tests.server.signing_in import Page
from tests.server.visiting import Visitor
from tests.server.world import FLEET, ROOT, SHARED, generator, note

pytestmark = pytest.mark.slow  # many of a tenth of a second

ME = Selection(receiver="pump-1")


@pytest.fixture
def world(world):
    for device in ("pump-1", "pump-2", "pump-3"):
        world.put(note(device, 1, generator(int(device[-1])), place=0.5, rows=60))
    return world


def noise(device, revision=1, rows=40):
    drawn = np.random.default_rng(9).uniform(-1.0, 1.0, (rows, 6))
    return Contribution(device, Stats.of(SHARED, drawn), revision)


def liar(device, revision=1):
    honest = note(device, revision, generator(4), place=0.5, rows=60)
    return replace(honest, stats=replace(honest.stats, S=2.0 * honest.stats.S))


def devices(told):
    return [origin.device for origin in told.origins]


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("bad", [noise, liar])
def test_what_does_not_fit_is_in_no_sum_for_a_device_and_others_are(world, bad, grouped):
    world.put(bad("pump-9"))
    assert devices(world.told(ME, grouped=grouped)) == ["pump-2", "pump-3"]
    honest = [world.truth[name, 0, "normal"].stats for name in ("pump-2", "pump-3")]
    assert world.told(ME, grouped=grouped).total == honest[0] + honest[1]


def test_a_little_noise_does_no_harm_to_a_detector_but_is_no_pattern_of_a_bank(world):
    world.put(note("pump-1", 2, generator(1), place=0.5, rows=40_000))
    world.put(noise("pump-9", rows=5))
    assert devices(world.told(ME)) == ["pump-2", "pump-3", "pump-9"]
    assert devices(world.told(ME, grouped=True)) == ["pump-2", "pump-3"]


def test_an_operator_is_told_everything(world):
    world.put(noise("pump-9"))
    assert "pump-9" in devices(world.told())


def test_a_device_without_enough_samples_of_its_own_is_told_everything(world):
    world.put(noise("pump-9"))
    world.put(note("pump-4", 1, generator(5), place=0.5, rows=15))
    told = world.told(Selection(receiver="pump-4"))
    assert devices(told) == ["pump-1", "pump-2", "pump-3", "pump-9"]
    world.put(note("pump-4", 2, generator(5), place=0.5, rows=16))
    assert devices(world.told(Selection(receiver="pump-4"))) == ["pump-1", "pump-2", "pump-3"]


def test_what_a_device_saw_in_an_earlier_life_comes_back_to_it(world):
    world.put(replace(noise("pump-1"), incarnation=0, revision=2))
    world.put(note("pump-1", 1, generator(1), place=0.5, rows=60, incarnation=7))
    told = world.told(Selection(receiver="pump-1", incarnation=7))
    assert devices(told) == ["pump-1", "pump-2", "pump-3"]


def test_what_an_operator_chose_is_told(world):
    world.put(noise("pump-9"))
    world.service.choices.adopt(FLEET, ["pump-2", "pump-9"], ["pump-1"], ROOT)
    assert devices(world.told(ME)) == ["pump-2", "pump-9"]
    assert devices(world.told(Selection(receiver="pump-2"))) == ["pump-1", "pump-3"]


def test_each_pair_is_read_and_checked_once(world, monkeypatch):
    world.put(noise("pump-9"))
    checked, reason = [], LevelCheck.reason

    def recording(self, theirs):
        checked.append(theirs.stats.count)
        return reason(self, theirs)

    monkeypatch.setattr(LevelCheck, "reason", recording)
    for _ in range(3):
        world.told(ME)
    assert checked == [60.0, 60.0, 40.0]
    world.put(noise("pump-9", 2, rows=41))
    world.told(ME)
    assert checked == [60.0, 60.0, 40.0, 41.0]
    world.put(note("pump-1", 2, generator(1), place=0.5, rows=61))
    world.told(ME)
    assert len(checked) == 7


def test_a_contribution_is_solved_once_for_all_receivers(world, monkeypatch):
    world.put(noise("pump-9"))
    service, solved, of = world.service, [], Profile.of

    def recording(stats):
        solved.extend([] if isinstance(stats, Profile) else [stats.count])
        return of(stats)

    monkeypatch.setattr(Profile, "of", recording)
    receivers = ["pump-1", "pump-2", "pump-3"]
    with service.database.reading() as tx:
        fleet, stored = fleets.get(tx, FLEET), list_stored(tx, FLEET)
        about = (tx, fleet, receivers, stored, stored)
        found = service.pull_service.checks.refusals(*about, apart=False)
        alone = [
            service.pull_service.checks.fitting(
                *(tx, fleet, receiver, stored, stored), trusted=None, apart=False
            )[1]
            for receiver in receivers
        ]
    assert [[key[0] for key in refused] for refused in found] == [["pump-9"]] * 3
    assert found == alone
    assert solved.count(40.0) == 1


def test_a_pull_that_has_much_to_check_goes_on_where_it_ended(world, monkeypatch):
    times = iter([0.0, 0.0, 11.0, 11.0, 11.0, 11.0])
    monkeypatch.setattr("edgemerge.server.trust.monotonic", lambda: next(times))
    with pytest.raises(UnavailableError, match="wait to be checked"):
        world.told(ME)
    assert devices(world.told(ME)) == ["pump-2", "pump-3"]


def test_pairs_that_were_not_asked_for_longest_are_forgotten(world):
    world.service.pull_service.checks._reasons.most = 1
    world.put(noise("pump-9"))
    assert devices(world.told(ME)) == devices(world.told(ME)) == ["pump-2", "pump-3"]
    assert len(world.service.pull_service.checks._reasons) == 1


def test_what_is_left_out_is_in_the_audit_log_once_with_receiver_and_reason(world):
    world.put(noise("pump-9"))
    for _ in range(2):
        world.told(ME)
    world.service.writer.write(lambda _: None, fleet=FLEET)  # what waits is written before
    (entry,) = [e for e in world.service.audit(FLEET, 0, 100) if e.action == "leave out"]
    assert (entry.actor, entry.subject) == ("server", "pump-9/0/normal")
    detail = json.loads(entry.detail)
    assert detail["receiver"] == "pump-1"
    assert "found a usual loss of" in detail["why"]


def test_the_pages_name_who_is_left_out_by_whom_and_why(world):
    operator = Visitor(create_app(world.service))
    operator.sign_in(world.operator_token)
    world.put(noise("pump-9"))
    world.told(ME)

    def section(device, name):
        page = Page(operator.get(f"/ui/fleets/{FLEET}/devices/{device}").text)
        (text,) = [text for a, text in page.all("section") if a.get("id") == name]
        return text

    assert "Left out" in section("pump-1", "part-sources")
    assert "pump-9, normal: found a usual loss of" in section("pump-1", "part-sources")
    assert "1 device leaves out what this device shared" in section("pump-9", "part-shared")
    assert "pump-1: found a usual loss of" in section("pump-9", "part-shared")
    assert "Left out" not in section("pump-2", "part-sources")
    assert "leaves out" not in section("pump-2", "part-shared")
    world.put(note("pump-9", 2, generator(8), place=0.5, rows=60))
    world.told(ME)
    assert "Left out" not in section("pump-1", "part-sources")
    assert "leaves out" not in section("pump-9", "part-shared")


@pytest.mark.parametrize("receivers", [["pump-1"], ["pump-1", "pump-2"], [EVERY_DEVICE]])
def test_the_merge_page_says_of_each_contribution_who_leaves_it_out_and_why(world, receivers):
    operator = Visitor(create_app(world.service))
    operator.sign_in(world.operator_token)
    world.put(noise("pump-9"))
    for receiver in receivers:
        key = "pump-9", 0, "normal"
        world.service.pull_service.checks.record(FLEET, receiver, {key: "found noise"})
    page = Page(operator.get(f"/ui/fleets/{FLEET}/merge").text)
    rows = [text for a, text in page.all("tr") if "Exclude" in text]
    (left_out,) = [text for text in rows if "left out" in text]
    who = {("pump-1",): "1 device", ("pump-1", "pump-2"): "2 devices"}
    assert left_out.startswith("pump-9")
    assert f"by {who.get(tuple(receivers), 'every device')}: found noise" in left_out
    assert all("included" in text for text in rows if text is not left_out)
    page = Page(operator.get(f"/ui/fleets/{FLEET}/devices/pump-9").text)
    (shared,) = [text for a, text in page.all("section") if a.get("id") == "part-shared"]
    words = {1: "1 device leaves out what", 2: "2 devices leave out what"}[len(receivers)]
    assert ("No device gets what" if receivers == [EVERY_DEVICE] else words) in shared
