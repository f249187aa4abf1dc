"""Laws of choices: what a device is told is the exact sum of what operators let through for it."""

import tempfile
from dataclasses import replace
from threading import Event
from time import monotonic as real_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgemerge import Stats
from edgemerge.core.errors import SettingError, UnavailableError, UnknownError
from edgemerge.core.ledger import Selection
from edgemerge.server import audit
from edgemerge.server.choices import operator, rules
from tests.server.world import FLEET, ROOT, SHARED, World, generator, note
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unchecked")]

DEVICES = ("a", "b", "c", "d")
PATTERNS = ("normal", "idle")
keys = st.tuples(st.sampled_from(DEVICES), st.integers(0, 1), st.sampled_from(PATTERNS))
some = st.lists(st.sampled_from(DEVICES), max_size=3, unique=True)
wishes = st.builds(
    Selection,
    receiver=st.sampled_from((None, *DEVICES)),
    incarnation=st.sampled_from((None, 0, 1)),
    devices=st.sampled_from((None, ("a", "c"))),
    without=st.sampled_from(((), ("b",))),
    pattern=st.sampled_from((None, "idle")),
    largest=st.sampled_from((None, 2)),
)
acts = st.one_of(
    st.tuples(st.just("put"), keys, st.sampled_from((0, 3, 30))),
    st.tuples(st.just("pull"), wishes, st.booleans()),
    st.tuples(st.just("drop"), st.sampled_from(DEVICES)),
    st.tuples(st.just("adopt"), some, some.filter(bool)),
    st.tuples(st.sampled_from(("exclude", "undo")), st.integers(0, 9)),
    st.tuples(st.just("restart")),
)


class Chosen(World):
    """A world that remembers what was chosen, in the plainest way."""

    def __init__(self, url, **settings):
        super().__init__(url, **settings)
        self.documents = {}  # (device, revision): the desired state seen under it
        self.made = {}  # number: ("adopt", sources, targets) or ("exclude", key)
        for device in DEVICES:
            self.caller(device)

    @property
    def choices(self):
        return self.service.choices

    def adopt(self, sources, targets):
        made = self.choices.adopt(FLEET, sources, targets, ROOT)
        self.made[made.number] = ("adopt", set(sources), set(targets))
        return made

    def exclude(self, key):
        made = self.choices.exclude(FLEET, key, ROOT)
        self.made[made.number] = ("exclude", key)
        return made

    def undo(self, number):
        undone = self.choices.undo(FLEET, number, ROOT)
        self.made.pop(number, None)
        return undone

    def lets(self, key, device):
        """Whether a contribution may be told to a device, by going through all that was chosen."""
        sources = set(DEVICES)
        for _, decided in sorted(self.made.items()):
            if decided == ("exclude", key):
                return False
            if decided[0] == "adopt" and device in decided[2]:
                sources = decided[1]
        return key[0] == device or key[0] in sources

    def must_agree(self, selection, *, grouped=False):
        everything = self.truth
        self.truth = {k: c for k, c in everything.items() if self.lets(k, selection.receiver)}
        super().must_agree(selection, grouped=grouped)
        self.truth = everything

    def must_desire_what_is_told(self, device):
        """Compare the desired state with a pull; equal revisions stand for equal documents."""
        _, desired = self.choices.desired(FLEET, device)
        allowed = set(DEVICES) if desired.devices is None else {*desired.devices, device}
        wanted = [k for k in self.truth if k[0] in allowed and k not in desired.excluded]
        told = self.told(
            Selection(receiver=device, incarnation=99)
        )  # its own past comes back to it
        assert {o.key for o in told.origins} == {k for k in wanted if self.truth[k].stats.count}
        assert self.documents.setdefault((device, desired.revision), desired) == desired

    def must_agree_with_all(self):
        for device in DEVICES:
            self.must_desire_what_is_told(device)
        for receiver in (None, *DEVICES):
            for grouped in (False, True):
                self.must_agree(Selection(receiver=receiver), grouped=grouped)
        for device in DEVICES:
            _, seen = self.service.contributions(FLEET, self.caller(device))
            let = [k for k in sorted(self.truth) if k[0] == device or self.lets(k, device)]
            assert [entry.key for entry in seen] == let


def carry_out(world, act, number, rng):
    match act:
        case ("put", (device, life, pattern), rows):
            world.put(note(device, number, rng, pattern=pattern, incarnation=life, rows=rows))
        case ("pull", wish, grouped):
            world.must_agree(wish, grouped=grouped)
        case ("drop", device) if any(key[0] == device for key in world.truth):
            world.drop(device)
        case ("adopt", sources, targets):
            world.adopt(sources, targets)
        case ("exclude", index) if world.truth:
            world.exclude(sorted(world.truth)[index % len(world.truth)])
        case ("undo", index) if world.made:  # what was undone before is undone again
            world.undo(index % max(world.made) + 1)
        case ("restart",):
            world.restart()


@settings(max_examples=25)
@given(st.lists(acts, min_size=6, max_size=24), st.integers(0, 99))
def test_whatever_is_pushed_dropped_and_chosen_each_is_told_the_sum_of_what_is_let_through(
    story, seed
):
    rng = generator(seed)
    with tempfile.TemporaryDirectory() as folder:
        world = Chosen(f"{folder}/fleets.db")
        try:
            for number, act in enumerate(story, start=1):
                carry_out(world, act, number, rng)
                if act[0] in ("adopt", "exclude", "undo"):
                    for device in DEVICES:
                        world.must_desire_what_is_told(device)
            world.must_agree_with_all()
        finally:
            world.close()


def drawn(rng):
    """Draw an act, as Hypothesis would, but few of them: each database is slow."""
    key = (str(rng.choice(DEVICES)), int(rng.integers(2)), str(rng.choice(PATTERNS)))
    devices = [device for device in DEVICES if rng.integers(2)]
    wish = Selection(receiver=key[0], incarnation=0)
    acts = {
        "put": ("put", key, 9),
        "pull": ("pull", wish, bool(rng.integers(2))),
        "drop": ("drop", key[0]),
        "adopt": ("adopt", devices, [key[0]]),
        "exclude": ("exclude", int(rng.integers(10))),
        "undo": ("undo", int(rng.integers(10))),
        "restart": ("restart",),
    }
    return acts[str(rng.choice([*acts, "put", "put", "pull"]))]


@pytest.mark.parametrize("seed", range(2))
def test_the_same_holds_on_both_databases(database_url, seed):
    rng, world = generator(seed), Chosen(database_url)
    try:
        for number in range(1, 60):
            carry_out(world, drawn(rng), number, rng)
        world.must_agree_with_all()
    finally:
        world.close()


@pytest.fixture
def world(tmp_path):
    made = Chosen(str(tmp_path / "fleets.db"))
    for device in DEVICES:
        made.put(note(device, 1, generator(ord(device))))
    yield made
    made.close()


@pytest.fixture
def shy(tmp_path):
    """A fleet that tells only totals, and nothing about fewer than two."""
    made = Chosen(str(tmp_path / "shy.db"), read_mode="totals", min_devices=2)
    for device in DEVICES:
        made.put(note(device, 1, generator(ord(device)), place=0.1, rows=60))
    yield made
    made.close()


def told_to(world, device, *, grouped=False, **wish):
    """The devices that one is told of."""
    answer = world.told(Selection(receiver=device, **wish), world.caller(device), grouped=grouped)
    return sorted({origin.device for origin in answer.origins})


def test_targets_are_told_of_their_sources_and_all_others_of_all(world):
    world.adopt(["b", "c"], ["a", "b"])
    assert told_to(world, "a") == ["b", "c"]
    assert told_to(world, "b") == ["c"]
    assert told_to(world, "c") == ["a", "b", "d"]


def test_the_newest_choice_counts_and_without_it_the_one_before(world):
    world.adopt(["b"], ["a"])
    newest = world.adopt(["c"], ["a", "d"])
    assert told_to(world, "a") == ["c"]
    world.undo(newest.number)
    assert told_to(world, "a") == ["b"]
    assert told_to(world, "d") == ["a", "b", "c"]


def test_a_device_may_be_told_of_nobody(world):
    world.adopt([], ["a"])
    assert told_to(world, "a") == []
    assert world.told(Selection(receiver="a"), world.caller("a")).total == Stats.empty(SHARED)


def test_what_comes_later_from_the_sources_is_told_and_from_others_is_not(world):
    world.adopt(["b"], ["a"])
    world.put(note("b", 1, generator(1), pattern="idle", incarnation=3))
    world.put(note("c", 2, generator(1)))
    assert [o.incarnation for o in world.told(Selection(receiver="a")).origins] == [0, 3]
    world.must_agree_with_all()


def test_a_excluded_contribution_stays_excluded_under_newer_revisions_but_a_new_life_does_not(
    world,
):
    world.exclude(("b", 0, "normal"))
    world.put(note("b", 2, generator(1)))
    assert told_to(world, "a") == ["c", "d"]
    world.put(note("b", 1, generator(1), incarnation=1))
    assert world.told(Selection(receiver="a")).origins[0][:2] == ("b", 1)
    world.drop("b")
    world.put(note("b", 5, generator(1)))  # dropping a device leaves what was chosen as it is
    assert told_to(world, "a") == ["c", "d"]


def test_what_a_device_saw_in_an_earlier_life_comes_back_to_it_unless_it_was_excluded(world):
    world.put(note("a", 1, generator(1), incarnation=1))
    world.adopt(["b"], ["a"])
    assert told_to(world, "a", incarnation=1) == ["a", "b"]
    world.exclude(("a", 0, "normal"))
    assert told_to(world, "a", incarnation=1) == ["b"]


def test_operators_are_told_all_but_what_was_excluded(world):
    world.adopt(["b"], ["a"])
    world.exclude(("b", 0, "normal"))
    assert sorted(origin.device for origin in world.told().origins) == ["a", "c", "d"]
    assert len(world.service.contributions(FLEET, ROOT)[1]) == 4  # they see that it is there


def test_a_device_neither_lists_nor_reads_what_is_not_let_through_but_its_own(world):
    key = ("b", 0, "normal")
    world.exclude(key)
    world.adopt(["b", "c"], ["a"])
    a, b = world.caller("a"), world.caller("b")
    assert [e.device for e in world.service.contributions(FLEET, a)[1]] == ["a", "c"]
    for hidden in (key, ("d", 0, "normal")):
        with pytest.raises(UnknownError, match="no contribution"):
            world.service.contribution(FLEET, hidden, a)
    assert world.service.contribution(FLEET, ("c", 0, "normal"), a)
    for caller in (b, ROOT):
        assert world.service.contribution(FLEET, key, caller)[0].device == "b"
        assert "b" in [e.device for e in world.service.contributions(FLEET, caller)[1]]


def test_after_undoing_everything_is_told_bit_for_bit_as_before(world):
    def answers():
        asked = [(Selection(receiver=d), g) for d in (None, *DEVICES) for g in (False, True)]
        return [world.service.pull(FLEET, s, ROOT, None, grouped=g) for s, g in asked]

    before = answers()
    made = [world.adopt(["b"], ["a", "c"]), world.exclude(("d", 0, "normal"))]
    changed = answers()
    assert [a.tag for a in changed] != [a.tag for a in before]
    for choice in made:
        world.undo(choice.number)
    assert answers() == before


def test_a_fleet_that_tells_nothing_about_few_does_not_for_any_choice(shy):
    with pytest.raises(SettingError, match="choose more sources, or none"):
        shy.adopt(["b"], ["a"])
    too_few = pytest.raises(SettingError, match=r"d would adopt from 1 device, .*fewer than 2")
    with too_few:
        shy.adopt(["b", "d"], ["a", "d"])
    with too_few:
        shy.choices.preview(FLEET, ["b", "d"], ["a", "d"])
    assert told_to(shy, "a", grouped=True) == told_to(shy, "a") == ["b", "c", "d"]
    shy.adopt(["b", "c"], ["a"])  # the total holds d, too, and without it would tell d alone
    assert told_to(shy, "a") == told_to(shy, "a", grouped=True) == []
    assert told_to(shy, "b") == ["a", "c", "d"]
    shy.adopt(["b", "c", "d"], ["a"])
    assert told_to(shy, "a") == told_to(shy, "a", grouped=True) == ["b", "c", "d"]
    shy.exclude(("b", 0, "normal"))
    assert told_to(shy, "a") == told_to(shy, "a", grouped=True) == []
    shy.adopt([], ["a"])
    assert told_to(shy, "a") == []


def test_every_choice_is_in_the_audit_log_with_who_made_it(world):
    adopted = world.adopt(["b"], ["a", "c"])
    excluded = world.exclude(("d", 0, "normal"))
    world.undo(adopted.number)
    last = world.service.audit(FLEET, 0, 100)[-3:]
    assert [(e.action, e.actor, e.subject) for e in last] == [
        ("adopt", "operator root", "a, c"),
        ("exclude contribution", "operator root", "d/0/normal"),
        ("undo", "operator root", "choice 1"),
    ]
    assert last[0].detail == '{"number":1,"sources":["b"],"targets":["a","c"]}'
    assert last[1].detail == f'{{"number":{excluded.number}}}'
    with world.service.database.reading() as tx:
        audit.verify(tx)


def test_choices_are_listed_newest_first_with_those_that_were_undone(world):
    first, second = world.adopt(["c", "b", "c"], ["a"]), world.exclude(("d", 0, "normal"))
    world.now = 2000.0
    world.undo(1)
    assert [c.number for c in world.choices.list_choices(FLEET)] == [2, 1]
    excluded, undone = world.choices.list_choices(FLEET)
    assert excluded == second
    assert (first.sources, first.targets, first.at) == (("b", "c"), ("a",), 1000.0)
    assert (undone.sources, undone.undone, excluded.key) == (("b", "c"), 2000.0, second.key)
    assert world.choices.excluded(FLEET) == {("d", 0, "normal")}


def test_doing_it_twice_is_doing_it_once(world):
    count = len(world.service.audit(FLEET, 0, 100))
    one = world.adopt(["b"], ["a"])
    assert world.adopt(["b", "b"], ["a"]) == one
    other = world.exclude(("d", 0, "normal"))
    assert world.exclude(("d", 0, "normal")) == other
    assert world.adopt(["b"], ["a"]) == one  # a revocation in between does not matter
    gone = world.undo(one.number)
    world.now += 5.0
    assert world.undo(one.number) == gone
    assert len(world.service.audit(FLEET, 0, 100)) == count + 3


def test_the_same_choice_after_another_about_the_device_is_made_again(world):
    world.adopt(["b"], ["a"])
    world.adopt(["c"], ["a"])
    assert world.adopt(["b"], ["a"]).number == 3
    assert told_to(world, "a") == ["b"]


def test_a_number_is_never_given_twice(world):
    for _ in range(3):
        made = world.adopt(["b"], ["a"])
        world.undo(made.number)
    assert made.number == 3
    assert world.exclude(("d", 0, "normal")).number == 4


def test_what_is_not_there_cannot_be_chosen(world):
    act = world.choices
    for wrong in (
        lambda: act.adopt(FLEET, ["b", "nobody"], ["a"], ROOT),
        lambda: act.adopt(FLEET, ["b"], ["nobody"], ROOT),
        lambda: act.exclude(FLEET, ("a", 0, "idle"), ROOT),
        lambda: act.exclude(FLEET, ("a", 1, "normal"), ROOT),
        lambda: act.undo(FLEET, 1, ROOT),
        lambda: act.adopt("nowhere", ["b"], ["a"], ROOT),
        lambda: act.list_choices("nowhere"),
    ):
        with pytest.raises(UnknownError, match=r"^no "):
            wrong()
    with pytest.raises(SettingError, match="1 to 5000"):
        act.adopt(FLEET, ["b"], [], ROOT)
    with pytest.raises(UnknownError, match="x0, x1, x2 and 7 more"):
        act.adopt(FLEET, [f"x{i}" for i in range(10)], ["a"], ROOT)
    assert act.list_choices(FLEET) == []


def test_a_pattern_that_no_database_likes_is_not_there(database_url):
    world = Chosen(database_url)
    try:
        for pattern in ("nor\0mal", "a/b", "\ud800", "x" * 300):
            with pytest.raises(UnknownError, match="no contribution"):
                world.choices.exclude(FLEET, ("a", 0, pattern), ROOT)
    finally:
        world.close()


def test_only_so_many_choices_are_in_force_and_undoing_one_makes_room(world, monkeypatch):
    monkeypatch.setattr(rules, "MAX_CHOICES", 3)
    for sources in ("b", "c", "d"):
        world.adopt([sources], ["a"])
    with pytest.raises(SettingError, match="undo some first"):
        world.exclude(("d", 0, "normal"))
    world.undo(1)
    world.exclude(("d", 0, "normal"))
    for number in (2, 3, 4):
        world.undo(number)
    kept = [choice.number for choice in world.choices.list_choices(FLEET)]
    assert kept == [4, 3, 2]  # of those that were undone, the oldest are forgotten
    assert world.adopt(["b"], ["a"]).number == 5


def test_the_highest_number_is_remembered_however_much_is_undone(world, monkeypatch):
    monkeypatch.setattr(rules, "MAX_CHOICES", 2)
    world.adopt(["b"], ["a"])
    world.undo(1)
    for sources in ("b", "c"):
        world.adopt([sources], ["a"])
    for number in (3, 2):
        world.undo(number)
    assert [choice.number for choice in world.choices.list_choices(FLEET)] == [3, 2]
    assert world.adopt(["b"], ["a"]).number == 4


def test_too_many_names_are_refused(world, monkeypatch):
    monkeypatch.setattr(rules, "MAX_NAMES", 2)
    with pytest.raises(SettingError, match="3 sources"):
        world.adopt(["a", "b", "c"], ["d"])


def test_a_device_hears_of_every_choice_about_it_made_or_undone(world):
    newest = lambda device: world.choices.desired_revision(FLEET, device)  # noqa: E731
    seen = [newest("a")]
    assert seen == [0]
    first = world.adopt(["b"], ["a"])
    seen.append(newest("a"))
    assert newest("b") == 0
    world.exclude(("d", 0, "normal"))  # concerns all
    seen.append(newest("a"))
    assert newest("b") == seen[-1]
    world.undo(first.number)
    seen.append(newest("a"))
    assert newest("b") == seen[-2]
    assert sorted(set(seen)) == seen
    world.restart()
    assert newest("a") == seen[-1]


def test_it_is_looked_up_at_most_once_a_second_and_nobody_waits_for_it(world, monkeypatch):
    looks, go, real = [], Event(), world.choices._read_rules

    def slow(fleet):
        looks.append(fleet)
        go.wait(10)
        return real(fleet)

    world.adopt(["b"], ["a"])
    known = world.choices.desired_revision(FLEET, "a")
    monkeypatch.setattr(world.choices, "_read_rules", slow)
    assert world.choices.desired_revision(FLEET, "a") == known
    assert looks == []
    monkeypatch.setattr(operator, "monotonic", lambda: real_time() + operator.RULES_MAX_AGE_S)
    for _ in range(3):
        assert world.choices.desired_revision(FLEET, "a") == known
    until(lambda: looks)
    assert len(looks) == 1
    go.set()


def test_a_database_that_is_away_leaves_what_is_known(world, monkeypatch, caplog):
    world.adopt(["b"], ["a"])
    known = world.choices.desired_revision(FLEET, "a")

    def away(_fleet):
        raise UnavailableError("the database is away")

    monkeypatch.setattr(world.choices, "_read_rules", away)
    monkeypatch.setattr(operator, "RULES_MAX_AGE_S", 0.0)
    assert world.choices.desired_revision(FLEET, "a") == known
    until(lambda: "choices were not read" in caplog.text)
    assert world.choices.desired_revision(FLEET, "a") == known


def test_what_another_process_chose_holds_at_once_and_is_heard_of(fresh_postgres_url, monkeypatch):
    monkeypatch.setattr(operator, "RULES_MAX_AGE_S", 0.0)
    one = Chosen(fresh_postgres_url)
    two = Chosen(fresh_postgres_url)
    two.truth, two.made, one.tokens = one.truth, one.made, two.tokens
    try:
        for device in DEVICES:
            one.put(note(device, 1, generator(ord(device))))
        two.must_agree_with_all()
        made = one.adopt(["b"], ["a"])
        two.must_agree_with_all()
        until(lambda: two.choices.desired_revision(FLEET, "a"))
        two.exclude(("c", 0, "normal"))
        heard = two.choices.desired_revision(FLEET, "a")
        one.must_agree_with_all()
        one.undo(made.number)
        until(lambda: two.choices.desired_revision(FLEET, "a") > heard)
        two.must_agree_with_all()
    finally:
        one.close()
        two.close()


def test_a_fleet_that_is_made_anew_knows_no_choice(world):
    world.adopt(["b"], ["a"])
    world.must_agree_with_all()
    world.service.delete(FLEET, ROOT)
    world.service.create(replace(world.fleet), ROOT)
    world.tokens, world.truth, world.made = {}, {}, {}
    for device in DEVICES:
        world.put(note(device, 1, generator(ord(device))))
    world.adopt(["c"], ["a"])  # as many as before
    world.must_agree_with_all()
