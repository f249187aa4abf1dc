"""What the service lets whom do, and what it writes down about it."""

from dataclasses import replace
from functools import partial
from threading import Event
from time import monotonic

import pytest

from edgemerge import Contribution, EdgemergeError, Projection, Stats, decode, encode
from edgemerge.core.errors import (
    DeniedError,
    RejectedError,
    SettingError,
    UnavailableError,
    UnknownError,
)
from edgemerge.core.ledger import Selection
from edgemerge.exchange.connection import Connection
from edgemerge.server import audit, contributions
from edgemerge.server import totals as totals_module
from edgemerge.server.auth import Caller, hash_token
from edgemerge.server.db.base import DatabaseDamagedError
from edgemerge.server.fleets import Fleet
from edgemerge.server.main import create_app
from edgemerge.server.totals import group_by_part, shareable_groups
from tests.server.visiting import Visitor
from tests.server.world import FLEET, ROOT, SHARED, World, generator, note
from tests.services.hub import running
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.slow


@pytest.fixture
def world(any_world):
    return any_world


@pytest.fixture
def totals(tmp_path):
    made = World(str(tmp_path / "fleets.db"), read_mode="totals", min_devices=2)
    yield made
    made.close()


def test_a_fleet_that_exists_keeps_the_least_that_it_has(totals):
    assert not totals.service.create(totals.fleet, ROOT)
    other = replace(totals.fleet, min_devices=3)
    with pytest.raises(SettingError, match="exists with other settings"):
        totals.service.create(other, ROOT)
    assert not totals.service.create(other, ROOT, any_min_devices=True)
    assert totals.service.fleet(FLEET).min_devices == 2


@pytest.fixture
def few(tmp_path):
    """A fleet that gives single contributions, and no sum of fewer than two others."""
    made = World(str(tmp_path / "fleets.db"), min_devices=2)
    yield made
    made.close()


def test_a_contribution_is_kept_once_and_the_newest_stays(world):
    rng = generator(0)
    first, second = note("a", 1, rng), note("a", 2, rng)
    assert world.put(first).new
    again = world.put(first)
    assert (again.new, again.problem, again.revision) == (False, "", 1)
    assert world.put(second).new
    late = world.put(first)
    assert (late.new, late.problem, late.revision) == (False, "stale", 2)
    assert world.told().total == second.stats


def test_two_stories_under_one_revision_are_refused_and_written_down(world):
    rng = generator(1)
    world.put(note("a", 1, rng))
    before = world.told()
    assert world.put(note("a", 1, rng)).problem == "equivocation"
    assert world.told() == before
    last = world.service.audit(FLEET, 0, 100)[-1]
    assert (last.action, last.actor, last.subject) == ("equivocation", "device a", "a/0/normal")


def test_only_so_many_equivocations_are_written_down(world, monkeypatch):
    monkeypatch.setattr(contributions, "MAX_NOTED_CONTRADICTIONS", 2)
    rng = generator(1)
    world.put(note("a", 1, rng))
    for _ in range(4):
        assert world.put(note("a", 1, rng)).problem == "equivocation"
    actions = [entry.action for entry in world.service.audit(FLEET, 0, 100)]
    assert actions.count("equivocation") == 2


def test_a_contribution_checked_for_a_fleet_that_was_made_anew_is_refused(world):
    late = contributions.decode_and_check(
        encode(note("a", 1, generator(1))), world.fleet, ("a", 0, "normal")
    )
    world.service.delete(FLEET, ROOT)
    other = Fleet(FLEET, encode(Projection(n_inputs=6, n_hidden=5)), "totals", 1, False, 0, 0.0)
    world.service.create(other, ROOT)
    world.tokens.clear()
    caller = world.caller("a")
    with pytest.raises(RejectedError, match="made anew"):
        world.service.writer.write(
            lambda tx: contributions.put(tx, world.fleet, late, caller, world.now)
        )


def test_a_dropped_device_may_come_back_as_if_it_had_never_been_heard(world):
    rng = generator(2)
    world.put(note("a", 5, rng))
    world.told(Selection(), grouped=True)
    assert world.drop("a") == 1
    assert world.told().parts == ()
    assert world.put(note("a", 1, rng)).new
    world.must_agree(Selection())


def test_what_is_not_there_cannot_be_dropped_revoked_or_read(world):
    for act in (
        lambda: world.service.drop(FLEET, "nobody", ROOT),
        lambda: world.service.revoke(FLEET, "nobody", ROOT),
        lambda: world.service.contribution(FLEET, ("nobody", 0, "normal"), ROOT),
        lambda: world.service.fleet("nowhere"),
        lambda: world.service.delete("nowhere", ROOT),
        lambda: world.service.invite("nowhere", None, 1.0, ROOT),
    ):
        with pytest.raises(UnknownError, match="no "):
            act()
    with pytest.raises(UnknownError, match="nowhere"):
        world.service.pull("nowhere", Selection(), ROOT, None)


def test_an_invitation_works_once_in_time_and_for_its_device(world):
    named, _ = world.service.invite(FLEET, "a", 60.0, ROOT)
    for fleet, device in ((FLEET, "b"), ("other", "a")):
        with pytest.raises(DeniedError, match="ask an operator"):
            world.service.enrol(named, fleet, device)
    token, _ = world.service.enrol(named, FLEET, "a")
    assert world.service.caller(token).name == "a"
    with pytest.raises(DeniedError, match="used"):
        world.service.enrol(named, FLEET, "a")
    late, expires = world.service.invite(FLEET, None, 60.0, ROOT)
    world.now = expires
    with pytest.raises(DeniedError, match="expired"):
        world.service.enrol(late, FLEET, "c")


def test_an_invitation_for_any_name_does_not_give_away_a_name_that_is_taken(world):
    world.caller("a")
    anyone, _ = world.service.invite(FLEET, None, 60.0, ROOT)
    with pytest.raises(DeniedError, match="in its name"):
        world.service.enrol(anyone, FLEET, "a")
    token, _ = world.service.enrol(anyone, FLEET, "b")  # the refusal did not use it up
    assert world.service.caller(token).name == "b"


def test_enrolling_again_in_its_name_replaces_the_token(world):
    world.caller("a")
    old = world.tokens.pop("a")
    world.caller("a")
    with pytest.raises(DeniedError, match="revoked"):
        world.service.caller(old)


def test_a_revoked_device_is_out_but_what_it_said_stays(world):
    world.put(note("a", 1, generator(3)))
    caller = world.caller("a")
    world.service.revoke(FLEET, "a", ROOT)
    with pytest.raises(DeniedError, match="revoked"):
        world.service.caller(world.tokens["a"])
    late = contributions.decode_and_check(
        encode(note("a", 2, generator(3))), world.fleet, ("a", 0, "normal")
    )  # it was on its way
    with pytest.raises(DeniedError, match="revoked"):
        world.service.writer.write(
            lambda tx: contributions.put(tx, world.fleet, late, caller, world.now)
        )
    world.must_agree(Selection())


def test_tokens_are_stored_as_hashes_only(world):
    world.caller("a")
    with world.service.database.reading() as tx:
        rows = [
            str(row)
            for t in ("accounts", "devices", "invitations")
            for row in tx.rows(f"select * from {t}")
        ]
    text = " ".join(rows)
    assert world.tokens["a"] not in text
    assert hash_token(world.tokens["a"]) in text
    assert world.operator_token not in text


def test_a_fleet_keeps_what_it_agreed_on(world):
    assert world.service.create(world.fleet, ROOT) is False
    other = Fleet(FLEET, encode(Projection(n_inputs=6, n_hidden=5)), "totals", 1, False, 0, 0.0)
    with pytest.raises(SettingError, match="choose another name"):
        world.service.create(other, ROOT)
    wrong = Fleet("other", encode(Stats.empty(SHARED)), "totals", 1, False, 0, 0.0)
    with pytest.raises(SettingError, match="expected a projection"):
        world.service.create(wrong, ROOT)
    with pytest.raises(SettingError, match="letters"):
        world.service.create(Fleet("../x", encode(SHARED), "totals", 1, False, 0, 0.0), ROOT)


def test_deleting_a_fleet_leaves_nothing_but_the_audit_log(world):
    world.put(note("a", 1, generator(4)))
    world.told(Selection(), grouped=True)
    world.put(note("a", 2, generator(5)))
    world.service.delete(FLEET, ROOT)
    with world.service.database.reading() as tx:
        for table in ("fleets", "devices", "invitations", "contributions", "bodies", "totals"):
            assert tx.one(f"select count(*) from {table}") == (0,), table
        assert audit.entries(tx, fleet=FLEET, after=0, limit=99)[-1].action == "delete"


def test_a_fleet_of_totals_tells_a_device_no_single_contribution(totals):
    rng = generator(6)
    for device in ("a", "b", "c"):
        totals.put(note(device, 1, rng))
    a = totals.caller("a")
    tell = totals.service.pull
    assert decode(tell(FLEET, Selection(receiver="a"), a, None).data).origins[0].device == "b"
    for wish in (
        Selection(receiver="a", devices=("b",)),
        Selection(receiver="a", without=("b",)),
        Selection(receiver="a", largest=1),
    ):
        with pytest.raises(DeniedError, match="only totals"):
            tell(FLEET, wish, a, None)
        tell(FLEET, wish, ROOT, None)  # an operator may
    with pytest.raises(DeniedError, match="single contributions"):
        totals.service.contribution(FLEET, ("b", 0, "normal"), a)
    totals.service.contribution(FLEET, ("a", 0, "normal"), a)
    assert [e.device for e in totals.service.contributions(FLEET, a)[1]] == ["a"]
    assert len(totals.service.contributions(FLEET, ROOT)[1]) == 3


def ask(world, device, *, grouped=False, **wish):
    """Pull as a device; the devices of each part."""
    answer = world.service.pull(
        FLEET, Selection(receiver=device, **wish), world.caller(device), None, grouped=grouped
    )
    return [part.devices for part in decode(answer.data).parts]


def test_a_sum_of_too_few_devices_is_not_told(totals):
    rng = generator(7)
    totals.put(note("a", 1, rng, place=0.1))
    totals.put(note("b", 1, rng, place=0.1))
    assert ask(totals, "a") == []
    assert ask(totals, "a", incarnation=9) == [["a"]]  # what it saw itself
    totals.put(note("c", 1, rng, place=0.1))
    assert ask(totals, "a") == [["b", "c"]]
    assert ask(totals, "a", incarnation=9) == [["a", "b", "c"]]


def test_where_single_contributions_can_be_read_a_sum_of_too_few_devices_is_refused(few):
    rng = generator(7)
    few.put(note("a", 1, rng, place=0.1))
    few.put(note("b", 1, rng, place=0.1))
    with pytest.raises(DeniedError, match="fewer than 2"):
        ask(few, "a")
    with pytest.raises(DeniedError, match="fewer than 2"):
        ask(few, "a", incarnation=9)  # its own would be in it, and it could take them away
    few.put(note("c", 1, rng, place=0.1))
    assert ask(few, "a") == [["b", "c"]]
    assert ask(few, "a", incarnation=9) == [["a", "b", "c"]]


def test_its_own_earlier_life_is_told_to_a_device_that_is_alone(totals):
    totals.put(note("a", 1, generator(7), incarnation=1))
    assert ask(totals, "a", incarnation=2) == [["a"]]
    assert ask(totals, "a", incarnation=2, grouped=True) == [["a"]]


def test_where_a_few_must_hide_no_pattern_can_be_chosen_because_answers_can_be_subtracted(totals):
    rng = generator(7)
    for device, pattern in ("bp", "bq", "bs", "cp", "cq", "dp"):  # total − p − q would be b's s
        totals.put(note(device, 1, rng, pattern=pattern))
    for pattern in "pqs":
        with pytest.raises(DeniedError, match="only totals"):
            ask(totals, "a", pattern=pattern)
    assert ask(totals, "a") == [["b", "c", "d"]]
    wish = Selection(pattern="p")
    assert decode(totals.service.pull(FLEET, wish, ROOT, None).data).parts  # an operator may


def test_asking_about_other_lives_of_its_own_tells_a_device_nothing_new_about_others(totals):
    rng = generator(7)
    for device, place in (("b", 0.1), ("c", 0.1), ("d", 0.5), ("e", 0.5), ("f", 0.9)):
        totals.put(note(device, 1, rng, place=place, rows=60))
    for life, place, rows in ((1, 0.1, 200), (2, 0.5, 200), (3, 0.9, 200)):
        totals.put(note("a", 1, rng, place=place, rows=rows, incarnation=life))
    wishes = [{}, *({"incarnation": life} for life in (1, 2, 3, 4))]
    beside = [
        sorted(sorted(set(part) - {"a"}) for part in ask(totals, "a", grouped=True, **wish))
        for wish in wishes
    ]
    assert all([p for p in parts if p] == [p for p in beside[0] if p] for parts in beside)
    assert ["f"] not in beside[0]


@pytest.mark.usefixtures("unchecked")
def test_patterns_that_are_left_out_hide_among_others(few):
    rng = generator(7)
    for device in ("a", "b", "c"):
        few.put(note(device, 1, rng, place=0.1, rows=60))
    few.put(note("d", 1, rng, place=0.9, rows=60))
    assert ask(few, "a", grouped=True) == []  # else total − patterns would be d's alone
    few.put(note("e", 1, rng, place=0.9, rows=60))
    assert sorted(ask(few, "a", grouped=True)) == [["b", "c"], ["d", "e"]]
    few.put(note("f", 1, rng, place=0.5, rows=60))
    few.put(note("g", 1, rng, place=0.3, rows=60))
    assert sorted(ask(few, "a", grouped=True)) == [["b", "c"], ["d", "e"]]


def test_a_growing_fleet_refuses_sums_that_fell(tmp_path):
    world = World(str(tmp_path / "fleets.db"), growing_only=True)
    rng = generator(8)
    first = note("a", 1, rng, rows=50)
    more = Contribution("a", first.stats + note("a", 1, rng).stats, 2)
    try:
        world.put(first)
        with pytest.raises(RejectedError, match="fall"):
            world.put(note("a", 2, rng, rows=20))
        assert world.put(more).new
        world.must_agree(Selection())
    finally:
        world.close()


def test_a_device_cannot_fill_the_database_with_patterns(world, monkeypatch):
    monkeypatch.setattr(contributions, "MAX_PER_DEVICE", 3)
    rng = generator(9)
    for i in range(3):
        world.put(note("a", 1, rng, pattern=f"p{i}", incarnation=i))
    with pytest.raises(RejectedError, match=r"of a, which has 3 .*an operator can drop"):
        world.put(note("a", 1, rng, pattern="p3", incarnation=3))
    assert world.put(note("a", 2, rng, pattern="p2", incarnation=2)).new
    assert world.put(note("b", 1, rng, pattern="p3")).new


def test_a_device_has_at_most_16_patterns_in_an_incarnation(world):
    rng = generator(9)
    for i in range(16):
        world.put(note("a", 1, rng, pattern=f"p{i}"))
    before = world.told()
    with pytest.raises(RejectedError, match=r"'p16' of a, which has 16 .*expected at most 16"):
        world.put(note("a", 1, rng, pattern="p16"))
    assert world.told() == before
    assert world.put(note("a", 2, rng, pattern="p15")).new
    assert world.put(note("a", 1, rng, pattern="p16", incarnation=1)).new
    assert world.put(note("b", 1, rng, pattern="p16")).new


def test_a_pattern_without_samples_takes_no_place_and_gets_its_own_back_only_if_one_is_free(world):
    rng = generator(9)
    for i in range(16):
        world.put(note("a", 1, rng, pattern=f"p{i}"))
    assert world.put(note("a", 1, rng, pattern="p16", rows=0)).new
    assert world.put(note("a", 2, rng, pattern="p3", rows=0)).new
    assert world.put(note("a", 2, rng, pattern="p16")).new
    with pytest.raises(RejectedError, match="withdraw a pattern"):
        world.put(note("a", 3, rng, pattern="p3"))
    world.put(note("a", 3, rng, pattern="p16", rows=0))
    assert world.put(note("a", 3, rng, pattern="p3")).new
    world.must_agree(Selection())


def test_patterns_beyond_16_of_an_older_version_can_still_be_renewed(world, monkeypatch):
    rng = generator(9)
    monkeypatch.setattr(contributions, "MAX_PATTERNS", 20)
    for i in range(18):
        world.put(note("a", 1, rng, pattern=f"p{i:02}"))
    monkeypatch.undo()
    for i in range(18):
        assert world.put(note("a", 2, rng, pattern=f"p{i:02}")).new
    with pytest.raises(RejectedError, match="at most 16"):
        world.put(note("a", 1, rng, pattern="p18"))


def stored(device, samples, part, pattern="normal"):
    return contributions.StoredContribution(
        device, 0, pattern, 1, samples, 9, f"{device}{pattern}", "exact", 0.0, part=part
    )


def test_a_pull_has_at_most_64_patterns_the_largest_and_of_equal_ones_the_first_keys():
    sizes = {part: float(1 + part % 7) for part in range(1, 101)}
    names = {part: f"d{(37 * part) % 101:03}" for part in sizes}  # in another order than parts
    found = [stored(names[part], size, part) for part, size in sizes.items()]
    given = shareable_groups(Selection(receiver="me"), group_by_part(found), 1)
    expected = sorted(sizes, key=lambda part: (-sizes[part], names[part]))[:64]
    assert list(given) == expected
    again = shareable_groups(Selection(receiver="me"), group_by_part(found[::-1]), 1)
    assert list(again) == expected


def test_where_a_few_must_hide_what_a_pull_leaves_off_is_of_enough_devices():
    pairs = [(f"{part:03}{who}", part) for part in range(1, 81) for who in "ab"]
    found = [stored(device, 500.0 - part, part) for device, part in pairs]
    lonely = [stored("c", 1000.0, 81)]
    given = shareable_groups(Selection(receiver="me"), group_by_part(found + lonely), 2)
    assert list(given) == list(range(1, 65))
    hidden = {c.device for c in found + lonely if c.part not in given}
    assert len(hidden) >= 2


def test_a_bank_is_told_the_largest_patterns_and_the_log_how_many_there_were(
    world, monkeypatch, caplog
):
    monkeypatch.setattr(totals_module, "MAX_PARTS", 2)
    rng = generator(7)
    for device, place, rows in (("b", 0.1, 60), ("c", 0.5, 90), ("d", 0.9, 80)):
        world.put(note(device, 1, rng, place=place, rows=rows))
    for _ in range(2):  # the second is answered from memory
        assert ask(world, "a", grouped=True) == [["c"], ["d"]]
    (noted,) = [each for each in caplog.records if "left out patterns" in each.message]
    assert noted.values == {"fleet": FLEET, "patterns": 3, "given": 2}
    assert ask(world, "a") == [["b", "c", "d"]]  # one sum has everything


@pytest.mark.parametrize("pattern", ["a/b", "..", ".", "a\\b"])
def test_a_pattern_that_could_be_a_path_is_refused(world, pattern):
    with pytest.raises(EdgemergeError, match="without slashes"):
        world.put(note("a", 1, generator(0), pattern=pattern))


def test_the_audit_log_tells_everything_and_cannot_be_changed_unseen(world):
    rng = generator(10)
    world.put(note("a", 1, rng))
    world.drop("a")
    world.service.revoke(FLEET, "a", ROOT)
    entries = world.service.audit(None, 0, 100)
    assert [entry.action for entry in entries] == [
        "add account",
        "create",
        "invite",
        "enrol",
        "contribute",
        "drop",
        "revoke",
    ]
    assert world.service.audit(None, 2, 1) == entries[2:3]
    with world.service.database.reading() as tx:
        assert audit.verify(tx) == 7
    for forged in (
        "update audit set actor = 'nobody' where seq = 4",
        "delete from audit where seq = 3",
        "update audit set hash = previous where seq = 2",
    ):
        world.service.writer.write(lambda tx, sql=forged: tx.run(sql))
        with (
            world.service.database.reading() as tx,
            pytest.raises(DatabaseDamagedError, match="changed"),
        ):
            audit.verify(tx)


def test_one_change_that_is_refused_does_not_take_others_with_it(world):
    """All three are gathered into one commit, because the writer is held up first."""
    go, rng = Event(), generator(11)
    callers = [world.caller("a"), Caller("gone", FLEET), world.caller("b")]
    notes = [note("a", 1, rng), note("gone", 1, rng), note("b", 1, rng)]
    arrived = [contributions.decode_and_check(encode(c), world.fleet, c.key) for c in notes]
    held = world.service.writer.submit(lambda _tx: go.wait(DEADLINE_S))
    changes = [
        world.service.writer.submit(
            partial(
                contributions.put, checked=world.fleet, received=each, caller=who, now=world.now
            )
        )
        for each, who in zip(arrived, callers, strict=True)
    ]
    assert not any(change.done() for change in changes)
    go.set()
    held.result(DEADLINE_S)
    assert changes[0].result(DEADLINE_S).new
    with pytest.raises(DeniedError, match="revoked"):
        changes[1].result(DEADLINE_S)
    assert changes[2].result(DEADLINE_S).new
    assert [e.device for e in world.service.contributions(FLEET, ROOT)[1]] == ["a", "b"]


def test_whether_it_is_ready_is_told_to_anybody_but_not_why(tmp_path):
    with running(str(tmp_path / "fleets.db")) as here:
        there = Connection(here.url)
        assert there.ask("GET", "/readyz").status == 200
        here.service.writer.disk_full_at = here.service._checked_at = monotonic()
        with pytest.raises(UnavailableError, match=r"not ready|disk is full|503"):
            there.ask("GET", "/readyz")
        there.close()


def asked_over_http(world, method, path, **sent):
    headers = {"Authorization": f"Bearer {world.operator_token}"}
    return Visitor(create_app(world.service)).ask(method, path, headers=headers, **sent)


@pytest.mark.parametrize(
    ("method", "path", "unknown", "known"),
    [
        ("PUT", "/fleets/other?minimal_devices=1&reads=totals", "minimal_devices", "reads"),
        ("GET", f"/fleets/{FLEET}?x=1&y=2", "x, y", "none"),
        (
            "GET",
            f"/fleets/{FLEET}/total?largest=3&nosuch=1",
            "nosuch",
            "largest",
        ),  # of a dependency
    ],
)
def test_unknown_query_parameters_are_refused_and_named(world, method, path, unknown, known):
    refused = asked_over_http(world, method, path, content=encode(SHARED))
    assert refused.status_code == 422, refused.text
    assert f"query: unknown {unknown}; known here: " in refused.json()["error"]
    assert known in refused.json()["error"].partition("known here: ")[2]
    assert [fleet.name for fleet, _ in world.service.fleets(ROOT)] == [FLEET]


def test_what_watches_the_server_may_add_parameters_of_its_own(world):
    for path in ("/healthz", "/readyz", "/metrics"):
        assert asked_over_http(world, "GET", f"{path}?from=probe").status_code == 200


def test_a_deprecated_address_names_its_successor_and_others_do_not(world):
    old = asked_over_http(world, "GET", f"/fleets/{FLEET}/likeness")
    assert old.status_code == 200
    assert old.headers["link"] == f'</fleets/{FLEET}/similarity>; rel="successor-version"'
    assert old.headers["deprecation"].startswith("@")
    new = asked_over_http(world, "GET", f"/fleets/{FLEET}/similarity")
    assert new.json() == old.json()
    assert not {"link", "deprecation"} & set(new.headers)
