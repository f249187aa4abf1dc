"""What a fleet's trust does not let in waits: stored, in no other device's sum, until decided."""

import tempfile
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgemerge import Bank, Contribution, Detector, Stats
from edgemerge.core.errors import SettingError, UnknownError
from edgemerge.core.ledger import Selection
from edgemerge.core.similarity import alike, distance
from edgemerge.core.trust import Trust
from edgemerge.server import trust as trust_module
from edgemerge.server.choices import rules
from edgemerge.server.fleets import ExistsError
from tests.cases import machine
from tests.server.test_choices import Chosen, acts, carry_out
from tests.server.world import FLEET, ROOT, SHARED, World, generator, note

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unchecked")]
FOUR = ("pump-1", "pump-2", "pump-3", "pump-9")
ODD = ("pump-9", 0, "normal")
ME = Selection(receiver="pump-1")
HERE, THERE = 0.5, 0.9


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path / 'fleets.db'}"


@pytest.fixture
def world(url):
    made = filled(url)
    yield made
    made.close()


def filled(url, **settings):
    """Three pumps that are alike, and one that is not."""
    made = World(url, **settings)
    for device in FOUR:
        place = THERE if device == "pump-9" else HERE
        made.put(note(device, 1, generator(int(device[-1])), place=place, rows=60))
    return made


def trust(world, rule):
    return world.service.choices.set_trust(FLEET, Trust.parse(rule), ROOT)


def decide(world, decision, key=ODD, **words):
    return world.service.choices.decide(FLEET, key, decision, ROOT, **words)


def devices(told):
    return [origin.device for origin in told.origins]


def waiting(world):
    return {each.stored.key: each for each in world.service.choices.list_waiting(FLEET)}


def entries(world, action):
    return [each for each in world.service.audit(FLEET, 0, 1000) if each.action == action]


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("members", ["pump-2", "pump-3", "pump-9"]),
        ("quorum:2", ["pump-2", "pump-3"]),
        ("quorum:3", ["pump-2", "pump-3"]),
        ("quorum:4", []),
        ("person", []),
    ],
)
def test_what_is_not_trusted_is_in_no_sum_of_others(world, rule, expected, grouped):
    trust(world, rule)
    told = world.told(ME, grouped=grouped)
    assert devices(told) == expected
    sums = [world.truth[name, 0, "normal"].stats for name in expected]
    assert told.total == Stats.total(SHARED, sums)
    trusted = {*expected, "pump-1"} if expected else set()  # it is as trusted as those like it
    assert {key[0] for key in waiting(world)} == {*FOUR} - trusted
    put = world.put(note("pump-9", 2, generator(9), place=THERE, rows=61))
    assert (put.new, put.problem) == (True, "")  # it is acknowledged all the same


def test_waiting_ones_are_described_by_what_they_are_like(world):
    trust(world, "quorum:2")
    (found,) = waiting(world).values()
    assert (found.stored.key, found.stored.samples) == (ODD, 60.0)
    assert "1 of the 2 devices that it takes contributed a similar pattern" in found.why
    odd = world.truth[ODD].stats
    ratios = {name: distance(odd, world.truth[name, 0, "normal"].stats) for name in FOUR[:3]}
    assert found.nearest[0] == min(ratios, key=ratios.get)
    assert found.ratio == pytest.approx(min(ratios.values()), rel=1e-9)  # sums in another order
    assert found.like_none
    world.put(note("pump-8", 1, generator(3), place=HERE, rows=60))
    trust(world, "person")
    decide(world, "approve", ("pump-1", 0, "normal"))
    like = waiting(world)["pump-8", 0, "normal"]
    assert (like.nearest, like.like_none) == (("pump-1", 0, "normal"), False)


def test_since_when_it_waits_is_when_it_came_or_when_the_rule_changed(world):
    world.now = 2000.0
    trust(world, "quorum:2")
    assert waiting(world)[ODD].since == 2000.0
    world.now = 3000.0
    key = ("pump-8", 0, "normal")
    world.put(note("pump-8", 1, generator(8), place=0.1, rows=60))
    world.now = 4000.0
    world.put(note("pump-8", 2, generator(8), place=0.1, rows=61))
    assert waiting(world)[key].since == 3000.0
    decide(world, "approve", key)
    world.now = 5000.0
    world.put(note("pump-8", 3, generator(8), place=HERE + 0.2, rows=61))
    assert waiting(world)[key].since == 5000.0


@pytest.mark.parametrize("kind", [Detector, Bank])
@pytest.mark.parametrize("rule", ["quorum:2", "person"])
def test_undoing_an_approval_leaves_a_learner_as_if_it_never_had_been(world, rule, kind):
    trust(world, rule)
    learners = [kind(SHARED), kind(SHARED)]
    for each in learners:
        each.learn(ROWS)
    grouped = kind is Bank
    before = world.service.pull(FLEET, ME, ROOT, None, grouped=grouped)
    learners[0].adopt(world.told(ME, grouped=grouped))
    made = decide(world, "approve")
    assert "pump-9" in devices(world.told(ME, grouped=grouped))
    learners[1].adopt(world.told(ME, grouped=grouped))
    changed = world.service.pull(FLEET, ME, ROOT, before.tag, grouped=grouped)
    assert changed.data is not None
    world.service.choices.undo(FLEET, made.number, ROOT)
    again = world.service.pull(FLEET, ME, ROOT, changed.tag, grouped=grouped)
    assert (again.tag, again.data) == (before.tag, before.data)
    learners[1].adopt(world.told(ME, grouped=grouped))
    assert learners[0].score(ROWS).tolist() == learners[1].score(ROWS).tolist()
    for mine, theirs in zip(*(each.detectors.values() for each in learners), strict=True):
        assert (mine.own, mine.others) == (theirs.own, theirs.others)


ROWS = np.random.default_rng(4).uniform(-0.2, 0.2, (40, SHARED.n_inputs))


def test_an_approval_covers_what_stays_like_it_and_nothing_else(world):
    trust(world, "person")
    decide(world, "approve")
    assert devices(world.told(ME)) == ["pump-9"]
    world.put(note("pump-9", 2, generator(7), place=THERE, rows=90))
    assert devices(world.told(ME)) == ["pump-9"]
    world.put(note("pump-9", 3, generator(7), place=HERE, rows=90))  # bait and switch
    assert devices(world.told(ME)) == []
    assert waiting(world)[ODD].why.startswith("it is no longer like what was approved")
    world.restart()
    assert devices(world.told(ME)) == []
    world.put(note("pump-9", 4, generator(7), place=THERE, rows=90))
    assert devices(world.told(ME)) == ["pump-9"]


def test_small_steps_away_from_what_was_approved_do_not_add_up(world):
    trust(world, "person")
    decide(world, "approve")
    before, after = (machine(place, 60, generator(9)) for place in (THERE, HERE))
    mixed = (before + part * (after - before) for part in np.linspace(0.0, 1.0, 50))
    sums = [Stats.of(SHARED, rows) for rows in mixed]
    assert all(alike(a, b) for a, b in zip(sums[1:], sums, strict=False))
    for revision, stats in enumerate(sums, 2):
        world.put(Contribution("pump-9", stats, revision))
    assert devices(world.told(ME)) == []


def test_a_quorum_is_of_current_sums_and_of_members(world):
    trust(world, "quorum:3")
    assert devices(world.told(ME)) == ["pump-2", "pump-3"]
    world.put(note("pump-3", 2, generator(3), place=THERE, rows=60))
    assert devices(world.told(ME)) == []
    world.put(note("pump-3", 3, generator(3), place=HERE, rows=60))
    assert devices(world.told(ME)) == ["pump-2", "pump-3"]
    world.service.revoke(FLEET, "pump-3", ROOT)
    assert devices(world.told(ME)) == []  # a revoked device supports nobody
    trust(world, "quorum:2")
    assert devices(world.told(ME)) == ["pump-2", "pump-3"]


def test_patterns_and_incarnations_of_one_device_are_no_quorum(world):
    trust(world, "quorum:2")
    for life, pattern in ((0, "more"), (7, "normal"), (8, "normal")):
        words = {"pattern": pattern, "incarnation": life, "place": THERE}
        world.put(note("pump-9", 1, generator(life), rows=60, **words))
    assert "pump-9" not in devices(world.told(ME))
    world.put(note("pump-8", 1, generator(6), place=THERE, rows=60))
    assert devices(world.told(ME)).count("pump-9") == 4


def test_excluded_and_dismissed_ones_support_nobody(world):
    trust(world, "quorum:2")
    world.put(note("pump-8", 1, generator(6), place=THERE, rows=60))
    assert {"pump-8", "pump-9"} <= set(devices(world.told(ME)))
    made = world.service.choices.exclude(FLEET, ODD, ROOT)
    assert devices(world.told(ME)) == ["pump-2", "pump-3"]
    world.service.choices.undo(FLEET, made.number, ROOT)
    decide(world, "dismiss")
    assert devices(world.told(ME)) == ["pump-2", "pump-3"]


def test_a_dismissed_one_is_no_longer_listed_and_stays_out_until_it_is_undone(world):
    made = decide(world, "dismiss", comment="a fault")
    world.put(note("pump-9", 2, generator(7), place=HERE, rows=90))
    for rule in ("members", "quorum:2", "person"):
        trust(world, rule)
        assert ODD not in waiting(world)
        assert "pump-9" not in devices(world.told(ME))
    trust(world, "members")
    world.service.choices.undo(FLEET, made.number, ROOT)
    assert "pump-9" in devices(world.told(ME))


def test_the_newest_decision_counts_and_undoing_it_brings_the_one_before_back(world):
    trust(world, "person")
    decide(world, "approve")
    second = decide(world, "dismiss")
    assert devices(world.told(ME)) == []
    world.service.choices.undo(FLEET, second.number, ROOT)
    assert devices(world.told(ME)) == ["pump-9"]
    assert decide(world, "approve").number == 1  # it is in force already
    world.put(note("pump-9", 2, generator(7), place=THERE, rows=90))
    assert decide(world, "approve").number == 3  # of other sums


def test_what_an_operator_chose_does_not_wait_and_own_earlier_lives_never_do(world):
    trust(world, "person")
    world.service.choices.adopt(FLEET, ["pump-9", "pump-2"], ["pump-1"], ROOT)
    assert devices(world.told(ME)) == ["pump-2", "pump-9"]
    assert devices(world.told(Selection(receiver="pump-2"))) == []
    world.put(note("pump-2", 1, generator(2), place=THERE, rows=60, incarnation=5))
    told = world.told(Selection(receiver="pump-2", incarnation=5))
    assert devices(told) == ["pump-2"]
    decide(world, "dismiss")
    assert devices(world.told(ME)) == ["pump-2", "pump-2"]


def test_a_sum_without_what_waits_is_still_of_enough_devices(url):
    world = filled(url, read_mode="totals", min_devices=3, trust="quorum:2")
    caller = world.caller("pump-1")
    assert world.told(ME, caller).parts == ()
    decide(world, "approve")
    assert devices(world.told(ME, caller)) == ["pump-2", "pump-3", "pump-9"]
    world.close()


def test_a_preview_shows_what_would_be_adopted(world):
    trust(world, "quorum:2")
    preview = world.service.choices.preview
    (row,) = preview(FLEET, ["pump-2"], ["pump-1"])
    alone = row.before  # with pump-2 and pump-3
    trust(world, "members")
    (row,) = preview(FLEET, ["pump-9"], ["pump-1"])
    assert row.joined == 60.0
    assert row.before != alone
    trust(world, "person")
    (row,) = preview(FLEET, ["pump-9"], ["pump-1"])
    assert (row.joined, row.before) == (60.0, row.alone)


def test_other_devices_do_not_see_what_waits(world):
    trust(world, "quorum:2")
    caller = world.caller("pump-1")
    _, seen = world.service.contributions(FLEET, caller)
    assert [each.device for each in seen] == ["pump-1", "pump-2", "pump-3"]
    with pytest.raises(UnknownError):
        world.service.contribution(FLEET, ODD, caller)
    assert world.service.contribution(FLEET, ODD, world.caller("pump-9"))
    assert world.service.contribution(FLEET, ODD, ROOT)


def test_devices_hear_of_every_change_and_all_is_in_the_audit_log(world):
    choices = world.service.choices

    def revision():
        return choices.desired_revision(FLEET, "pump-1")

    revisions = [revision()]
    trust(world, "person")
    revisions.append(revision())
    made = decide(world, "approve", comment="looked at it", revision=1)
    revisions.append(revision())
    choices.undo(FLEET, made.number, ROOT)
    revisions.append(revision())
    decide(world, "dismiss")
    revisions.append(revision())
    assert revisions == sorted(set(revisions))
    assert not trust(world, "person")
    assert revision() == revisions[-1]
    (changed,) = entries(world, "trust")
    assert ('"before":"members"' in changed.detail, changed.actor) == (True, "operator root")
    (approved,) = entries(world, "approve contribution")
    assert approved.subject == "pump-9/0/normal"
    assert '"comment":"looked at it"' in approved.detail
    assert '"digest"' in approved.detail
    assert len(entries(world, "dismiss contribution")) == len(entries(world, "undo")) == 1


def test_what_has_changed_since_it_was_looked_at_is_not_approved_unseen(world):
    trust(world, "person")
    world.put(note("pump-9", 2, generator(7), place=HERE, rows=90))
    with pytest.raises(SettingError, match="found revision 2 of pump-9/0/normal, and 1 was looked"):
        decide(world, "approve", revision=1)
    assert devices(world.told(ME)) == []
    with pytest.raises(UnknownError):
        decide(world, "approve", ("pump-7", 0, "normal"))
    with pytest.raises(SettingError, match="expected one line of at most 500"):
        decide(world, "approve", comment="two\nlines")


def test_approved_sums_that_are_damaged_approve_only_what_is_equal(world, caplog):
    trust(world, "person")
    decide(world, "approve")
    world.put(note("pump-9", 2, generator(7), place=THERE, rows=90))
    world.service.writer.write(lambda tx: tx.run("update approvals set data = ?", b"x"))
    assert devices(world.told(ME)) == []
    assert "approved sums are damaged" in caplog.text


def test_undone_approvals_keep_no_sums_and_a_fleet_goes_with_all_of_them(world):
    def kept():
        with world.service.database.reading() as tx:
            return tx.one("select count(*) from approvals")[0]

    made = decide(world, "approve")
    decide(world, "approve", ("pump-1", 0, "normal"))
    assert kept() == 2
    world.service.choices.undo(FLEET, made.number, ROOT)
    assert kept() == 1
    world.service.delete(FLEET, ROOT)
    assert kept() == 0


def test_decisions_have_a_limit_of_their_own(world, monkeypatch):
    monkeypatch.setattr(rules, "MAX_DECISIONS", 1)
    monkeypatch.setattr(rules, "MAX_CHOICES", 1)
    decide(world, "approve")
    world.service.choices.exclude(FLEET, ODD, ROOT)
    with pytest.raises(SettingError, match="1 choices in force"):
        decide(world, "approve", ("pump-1", 0, "normal"))
    with pytest.raises(SettingError, match="1 choices in force"):
        world.service.choices.exclude(FLEET, ("pump-1", 0, "normal"), ROOT)


def test_a_fleet_is_made_with_its_trust_and_made_again_under_any_if_none_is_given(url):
    world = World(url, trust="quorum:2")
    assert world.service.fleet(FLEET).trust == "quorum:2"
    assert not world.service.create(world.fleet, ROOT)
    other = replace(world.fleet, trust="members")
    assert not world.service.create(other, ROOT, any_trust=True)
    with pytest.raises(ExistsError, match="its trust can be changed"):
        world.service.create(other, ROOT)
    with pytest.raises(SettingError, match="expected members, quorum:K"):
        world.service.create(replace(world.fleet, name="x", trust="all"), ROOT)
    world.close()


def test_what_cannot_be_compared_in_time_waits_and_the_next_pull_goes_on(world, monkeypatch):
    trust(world, "quorum:2")
    times = iter([0.0, 0.0, *([6.0] * 50)])
    monkeypatch.setattr(trust_module, "monotonic", lambda: next(times))
    reasons = world.service.choices.waiting(FLEET)
    assert {key[0] for key in reasons} == {"pump-3", "pump-9"}  # one pair was compared
    assert all("not compared with all others yet" in why for why in reasons.values())
    monkeypatch.undo()
    assert devices(world.told(ME)) == ["pump-2", "pump-3"]


def test_each_pair_is_compared_once_and_few_are_remembered(world, monkeypatch):
    compared = []

    def recording(one, other):
        compared.append(1)
        return alike(one, other)

    monkeypatch.setattr(trust_module, "alike", recording)
    trust(world, "quorum:2")
    for _ in range(3):
        world.told(ME)
    first = len(compared)
    assert first <= 6
    world.put(note("pump-2", 2, generator(5), place=HERE, rows=60))
    world.told(ME)
    assert len(compared) <= first + 3
    world.service.pull_service.trust._pairs.most = 1
    world.put(note("pump-2", 3, generator(6), place=HERE, rows=60))
    assert devices(world.told(ME)) == ["pump-2", "pump-3"]
    assert len(world.service.pull_service.trust._pairs) == 1


def honest(device, count, revision=1):
    """Sums of a few samples, times a number: as if so many had been seen."""
    few = note(device, revision, generator(3), place=HERE, rows=60)
    return replace(few, stats=few.stats * (count / 60.0))


def test_a_count_far_above_the_fleets_waits_for_a_person_under_every_rule(world):
    world.now += 3600.0
    for rule in ("members", "quorum:2", "person"):
        trust(world, rule)
        world.put(honest("pump-4", 60.0 * 101, revision=world.service.fleet(FLEET).epoch))
        why = world.service.choices.waiting(FLEET)["pump-4", 0, "normal"]
        assert "pump-4 claims 6.06e+03 samples, more than 100 times the median" in why
        assert "pump-4" not in devices(world.told(ME))
    trust(world, "members")
    made = decide(world, "approve", ("pump-4", 0, "normal"))
    assert "pump-4" in devices(world.told(ME))
    world.service.choices.undo(FLEET, made.number, ROOT)
    world.put(honest("pump-4", 60.0 * 99, revision=10**6))
    assert "pump-4" in devices(world.told(ME))


def test_an_old_device_beside_new_ones_does_not_stand_out(url):
    world = World(url)
    world.caller("old")
    world.now += 3.2e7  # a year later
    for device in FOUR:
        world.put(note(device, 1, generator(int(device[-1])), place=HERE, rows=60))
    world.put(honest("old", 3.2e6))
    assert "old" in devices(world.told(ME))
    token, _ = world.service.invite(FLEET, "old", 60.0, ROOT)
    world.tokens["old"] = world.service.enrol(token, FLEET, "old")[0]  # again
    world.put(honest("old", 3.3e6, revision=2))
    assert "old" in devices(world.told(ME))
    world.put(honest("new", 3.2e6))
    assert "new" not in devices(world.told(ME))
    world.close()


def test_both_databases_keep_the_rule_the_decisions_and_the_approved_sums(database_url):
    world = filled(database_url, trust="person")
    world.now = 2000.0
    decide(world, "approve", comment="looked at it")
    decide(world, "dismiss", ("pump-2", 0, "normal"))
    world.put(note("pump-9", 2, generator(7), place=THERE, rows=90))
    world.restart()
    assert devices(world.told(ME)) == ["pump-9"]
    assert set(waiting(world)) == {("pump-1", 0, "normal"), ("pump-3", 0, "normal")}
    assert trust(world, "quorum:2")
    assert devices(world.told(ME)) == ["pump-3", "pump-9"]
    world.service.choices.undo(FLEET, 1, ROOT)
    assert waiting(world)[ODD].since == 2000.0
    world.put(honest("pump-4", 6e5))
    assert "pump-4 claims" in world.service.choices.waiting(FLEET)["pump-4", 0, "normal"]
    world.restart()
    assert world.service.fleet(FLEET).trust == "quorum:2"
    assert set(waiting(world)) == {ODD, ("pump-4", 0, "normal")}
    world.service.delete(FLEET, ROOT)
    with world.service.database.reading() as tx:
        assert tx.one("select count(*) from approvals") == (0,)
    world.close()


class Trusting(Chosen):
    """A world that also remembers the rule and what was approved and dismissed."""

    rule = "members"

    def decide(self, decision, key):
        made = self.choices.decide(FLEET, key, decision, ROOT)
        self.made[made.number] = (decision, key, self.truth[key].stats)

    def trust(self, rule):
        self.choices.set_trust(FLEET, Trust.parse(rule), ROOT)
        self.rule = rule

    def lets(self, key, device):
        sources, excluded, decided = None, set(), {}
        for _, made in sorted(self.made.items()):
            if made[0] == "exclude":
                excluded.add(made[1])
            elif made[0] == "adopt":
                sources = made[1] if device in made[2] else sources
            else:
                decided[made[1]] = made
        if not super().lets(key, device) or key[0] == device:
            return super().lets(key, device)
        found = decided.get(key)
        if found is not None and found[0] == "dismiss":
            return False
        if sources is not None:
            return True  # it lets this device, so it was chosen
        return self.trusted(key, excluded, decided)

    def trusted(self, key, excluded, decided):
        mine = self.truth[key].stats
        if self.rule == "members" or not mine.count:
            return True
        if key in decided and alike(mine, decided[key][2]):
            return True
        if self.rule == "person":
            return False
        similar = {
            k[0] for k, c in self.truth.items()
            if c.stats.count and k not in excluded and decided.get(k, ("",))[0] != "dismiss"
            and (k[0] == key[0] or alike(mine, c.stats))
        }  # fmt: skip
        return len(similar) >= int(self.rule.partition(":")[2])

    def must_desire_what_is_told(self, device):
        """The desired state names sources and exclusions; trust is the server's alone."""


more = st.one_of(
    acts,
    st.tuples(st.sampled_from(("approve", "dismiss")), st.integers(0, 9)),
    st.tuples(st.just("trust"), st.sampled_from(("members", "quorum:2", "quorum:3", "person"))),
)


@given(st.lists(more, max_size=25), st.integers(0, 2**32))
@settings(max_examples=40)
def test_whatever_is_decided_what_is_told_is_the_exact_sum_of_what_is_trusted(todo, seed):
    rng = generator(seed)
    with tempfile.TemporaryDirectory() as folder:
        world = Trusting(f"sqlite:///{folder}/fleets.db")
        try:
            for number, act in enumerate(todo, 1):
                keys = sorted(world.truth)
                if act[0] in ("approve", "dismiss"):
                    if keys:
                        world.decide(act[0], keys[act[1] % len(keys)])
                elif act[0] == "trust":
                    world.trust(act[1])
                else:
                    carry_out(world, act, number, rng)
            world.must_agree_with_all()
        finally:
            world.close()
