"""Cohorts on the page of a masked fleet: what is shown, forming and dropping them."""

import json
import re

import pytest

from edgemerge.privacy.noise import NoiseSettings
from edgemerge.server.auth import Caller
from edgemerge.server.main import create_app
from tests.server.signing_in import Page
from tests.server.test_masked_epochs import (
    DEVICES,
    MaskedWorld,
    join_many,
    let_all_send,
    members_of,
    three_cohorts,
)
from tests.server.visiting import Visitor
from tests.server.world import FLEET, World

pytestmark = pytest.mark.slow

PAGE = f"/ui/fleets/{FLEET}"
FIELDS = {"size": "3", "min_devices": "3", "hours": "6", "colluding": "0"}


@pytest.fixture
def world(tmp_path):
    made = MaskedWorld(f"sqlite:///{tmp_path / 'fleets.db'}")
    made.app = create_app(made.service)
    yield made
    made.close()


def visitor(world, role="admin"):
    made = Visitor(world.app)
    token = world.service.accounts.add(role, role, None, Caller("root", role="admin")).token
    assert made.sign_in(token).status_code == 303
    return made


def form(admin, **fields):
    return admin.post(f"{PAGE}/cohorts", {"csrf": admin.csrf()} | FIELDS | fields)


def rows_of(page):
    """Return the text of each row of the table of cohorts, without its head."""
    return [text for _, text in Page(page.text).all("tr")][1:]


def test_before_there_are_cohorts_the_page_says_what_to_do(world):
    page = visitor(world).get(PAGE)
    assert "No cohort yet: devices register their keys" in page.text
    assert "Of 5 devices with keys" in page.text


def test_an_open_fleet_has_no_cohorts_and_cannot_form_any(tmp_path):
    world = World(f"sqlite:///{tmp_path / 'fleets.db'}")
    world.app = create_app(world.service)
    admin = visitor(world)
    assert "ohorts" not in admin.get(PAGE).text
    refused = form(admin)
    assert refused.status_code == 422
    assert "is not a masked fleet" in refused.text
    world.close()


def test_cohorts_are_formed_from_the_page_with_what_was_asked(world):
    admin = visitor(world)
    names = join_many(world, 9)
    assert form(admin).headers["location"] == f"{PAGE}#cohorts"
    first = world.masked.records(FLEET)
    assert [len(members_of(record)) for record in first] == [3, 3, 3]
    assert {record.collect_s for record in first} == {6 * 3600.0}
    world.now += 1.0
    form(admin, mix="on", colluding="10")
    second = world.masked.records(FLEET)[-3:]
    assert all(len(members_of(a) & members_of(b)) == 1 for a in first for b in second)
    assert sorted(set().union(*map(members_of, second))) == names
    fields = {name: Page(admin.get(PAGE).text).all("input", name=name)[0][0] for name in FIELDS}
    assert {name: each["value"] for name, each in fields.items()} == FIELDS


def test_forming_again_keeps_the_slots_and_never_lowers_what_may_collude(world):
    join_many(world, 40)
    world.form(slots=["idle", "fast"], colluding=0.2, size=40)
    before = world.masked.records(FLEET)[-1].cohort
    admin = visitor(world)
    page = Page(admin.get(PAGE).text)
    named = {name: page.all("input", name=name)[0][0]["value"] for name in FIELDS}
    world.now += 1.0
    assert form(admin, **named).status_code == 303
    after = world.masked.records(FLEET)[-1].cohort
    assert after.slots == ("idle", "fast")
    assert after.threshold / after.keepers >= before.threshold / before.keepers


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"size": "x"}, "found a field that is no number"),
        ({"min_devices": "2"}, "min_devices"),
        ({"min_devices": "9"}, "found 5 devices with keys, expected 9 or more"),
        ({"colluding": "50"}, "colluding"),
        ({"hours": "0"}, "collect_s"),
    ],
)
def test_numbers_that_cannot_be_are_refused_in_words(world, fields, words):
    answer = form(visitor(world), **fields)
    assert answer.status_code == 422
    assert words in answer.text
    assert world.masked.records(FLEET) == []


def test_the_page_shows_epochs_distances_and_what_was_dropped(world):
    bad = three_cohorts(world)
    good, *_ = (r for r in world.masked.records(FLEET) if r.number != bad)
    world.upload(next(iter(members_of(good))))
    operator = visitor(world, "operator")
    shown = dict(zip(world_numbers(world), rows_of(operator.get(PAGE)), strict=False))
    assert "differs ×" in shown[bad]
    assert re.search(r"alike ×(0\.9[5-9]|1\.?0?)", shown[good.number])
    assert "1 of 3 have sent" in shown[good.number]
    assert all(name in shown[bad] for name in members_of(world.masked.records(FLEET)[1]))
    assert "the cohort and form mixed ones" in operator.get(PAGE).text
    asked = operator.get(f"{PAGE}/cohorts/{bad}/drop")
    assert f"Drop cohort {bad}?" in asked.text
    assert "600 samples" in asked.text
    done = operator.post(f"{PAGE}/cohorts/{bad}/drop", {"csrf": operator.csrf()})
    assert done.headers["location"] == f"{PAGE}#cohorts"
    assert world.masked.total(FLEET).dropped == (bad,)
    shown = dict(zip(world_numbers(world), rows_of(operator.get(PAGE)), strict=False))
    assert "dropped" in shown[bad]
    assert "already dropped" in operator.get(f"{PAGE}/cohorts/{bad}/drop").text


def world_numbers(world):
    return [record.number for record in world.masked.records(FLEET)]


def test_the_page_shows_how_many_keepers_have_signed_and_answered(world):
    world.form()
    for device in DEVICES:
        world.upload(device)
    admin = visitor(world)
    world.masked.status(FLEET, DEVICES[0])
    for place, device in enumerate(DEVICES[:3]):
        assert f"signing {place} of 3 keepers have signed" in rows_of(admin.get(PAGE))[0]
        world.sign(device)
    world.answer(DEVICES[0])
    assert "keeping 1 of 3 keepers have answered" in rows_of(admin.get(PAGE))[0]


def test_a_failed_epoch_says_why(world):
    world.form()
    for device in DEVICES:
        world.upload(device)
    world.now += 3600.0
    admin, words = visitor(world), "found 0 signatures of keepers, expected 3"
    for _ in range(3):  # the next one begins when a device asks again
        world.masked.status(FLEET, DEVICES[0])
        assert words in rows_of(admin.get(PAGE))[0]
    assert f"epoch 1 failed: {words}" in rows_of(admin.get(PAGE))[0]
    world.epoch()
    assert "failed" not in rows_of(admin.get(PAGE))[0]


def test_the_device_behind_cohorts_that_differed_is_named(world):
    names = join_many(world, 16)
    for _ in range(2):
        world.now += 1.0
        world.form(size=4, mix=True)
        let_all_send(world, names, {"pump-07"})
    page = visitor(world).get(PAGE).text
    (_, notice) = Page(page).all("p", id="suspects")[0]
    assert notice.startswith("pump-07 was in a cohort that differed, 2 of 2 times.")
    assert "edgemerge fleet revoke pumps pump-07" in notice


def test_viewers_and_walls_see_no_buttons(world):
    world.form()
    viewer = visitor(world, "viewer")
    page = viewer.get(PAGE).text
    assert rows_of(viewer.get(PAGE))
    assert "Drop…" not in page
    assert "Form cohorts" not in page
    assert "Form cohorts" not in visitor(world, "operator").get(PAGE).text
    root = Caller("root", role="admin")
    link = world.service.accounts.add_wall_link("hall", FLEET, root).token
    assert "ohorts" not in Visitor(world.app).get(f"/ui/wall/{link}").text


def test_no_cohort_of_this_number_is_a_page_that_says_so(world):
    answer = visitor(world).get(f"{PAGE}/cohorts/99/drop")
    assert answer.status_code == 404
    assert "o cohort 99 in pumps" in answer.text


def test_what_a_device_needs_names_masks(world):
    admin = visitor(world)
    made = admin.post(f"{PAGE}/add", {"csrf": admin.csrf(), "device": "new", "hours": "24"})
    assert "privacy = &#34;masked&#34;" in made.text or 'privacy = "masked"' in made.text


def test_a_fleet_with_noise_says_how_much_and_what_that_means(world):
    agreed = NoiseSettings(4.0, 1e-5)
    plain = json.dumps(agreed.plain())
    sql = "update fleets set noise = ? where fleet = ?"
    world.service.writer.write(lambda tx: tx.run(sql, plain, FLEET), fleet=FLEET)
    admin = visitor(world)
    page = admin.get(PAGE).text
    assert "noise: ε = 4, δ = 1e-05 (sums)" in page
    assert "Noise hides whether a given sample is in a total" in page
    assert "fewer can reveal" not in page
    assert form(admin, min_devices="").status_code == 303
    (record,) = world.masked.records(FLEET)
    assert (record.cohort.noise, record.cohort.least, record.cohort.noisy) == (agreed, 3, 2)
    asked = admin.get(f"{PAGE}/cohorts/{record.number}/drop").text
    assert "Its devices do not send it again" in asked
