"""What a preview says is what happens, and what a matrix shows is what each pair is."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgemerge import Bank, Contribution, Detector, Stats
from edgemerge.agent.state import own_stats
from edgemerge.agent.sync import MergePreview
from edgemerge.core.errors import SettingError, UnavailableError, UnknownError
from edgemerge.core.ledger import Selection
from edgemerge.core.similarity import Profile, fresh_loss, loss_ratio
from edgemerge.server import contributions, totals
from edgemerge.server.choices import preview
from edgemerge.server.contributions import ProfileCache, profile_bytes
from edgemerge.server.reports.model import LatestReport
from edgemerge.server.schemas import ReportedPattern, ReportedStatus
from tests.cases import machine
from tests.server.world import FLEET, ROOT, SHARED, World, generator, note

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unchecked")]

DEVICES = ("a", "b", "c", "d")
ROUNDING = 1e-6  # of levels solved from equal sums in another order of operations


class Fleet:
    """A world whose devices are learners, as agents run them."""

    def __init__(self, url, kind, places, rows=60, **settings):
        self.world = World(url, **settings)
        self.learners = {}
        for i, (device, modes) in enumerate(places.items()):
            X = np.vstack([machine(place, rows, generator(i)) for place in modes])
            learner = kind(SHARED)
            learner.learn(X)
            self.learners[device] = learner
            for pattern, stats in own_stats(learner).items():
                self.world.put(Contribution(device, stats, 1, pattern))

    @property
    def choices(self):
        return self.world.service.choices

    def told(self, device):
        """Pull as the agent of a device does."""
        wish = Selection(receiver=device, incarnation=0)
        grouped = isinstance(self.learners[device], Bank)
        return self.world.told(wish, self.world.caller(device), grouped=grouped)

    def exchange(self):
        """Let every device adopt what it is told now."""
        for device, learner in self.learners.items():
            learner.adopt(self.told(device))

    def must_agree(self, sources, targets):
        """Preview, then choose, and let the agents themselves say what it would do to them."""
        self.exchange()
        rows = self.choices.preview(FLEET, sources, targets)  # by what they asked for
        made = self.choices.adopt(FLEET, sources, targets, ROOT)
        for device in targets:
            mine = {row.pattern: row for row in rows if row.device == device}
            told, learner = self.told(device), self.learners[device]
            found = MergePreview.of(learner, told, learner.plan(told))
            assert set(mine) == set(own_stats(learner))
            for pattern, shift in found.patterns.items():
                assert mine[pattern].shift == pytest.approx(shift, rel=ROUNDING)
            assert max(row.shift for row in mine.values()) == pytest.approx(found.shift)
            learner.adopt(told)
            self.must_be_what_is_known(device, mine)
        return made, rows

    def must_be_what_is_known(self, device, rows):
        learner = self.learners[device]
        own = own_stats(learner)
        for pattern, row in rows.items():
            detector = learner.detectors[pattern]
            assert row.samples == own[pattern].count
            assert row.joined == detector.others.count
            level = fresh_loss(own[pattern], detector.readout)
            assert row.after == pytest.approx(level, rel=ROUNDING)
            assert row.alone == fresh_loss(own[pattern], own[pattern].solve())


@pytest.fixture
def detectors(tmp_path):
    modes = {"a": [0.1], "b": [0.1], "c": [0.5], "d": [0.9]}
    made = Fleet(str(tmp_path / "fleets.db"), Detector, modes)
    yield made
    made.world.close()


@pytest.fixture
def banks(tmp_path):
    modes = {"a": [0.1, 0.9], "b": [0.9], "c": [0.1], "d": [0.5]}
    made = Fleet(str(tmp_path / "fleets.db"), Bank, modes, rows=200)
    yield made
    made.world.close()


def glimpse(*names):
    """What a device reports: the names of its patterns."""
    patterns = [ReportedPattern(pattern=name, own=9.0, told=0.0, used=0) for name in names]
    status = ReportedStatus(samples=9, learnt=9.0, alarms=0, patterns=patterns)
    return LatestReport("a", 0.0, 5.0, False, status, (), None, None, 1)


subsets = st.lists(st.sampled_from(DEVICES), unique=True)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(subsets, subsets.filter(bool))
def test_a_detectors_preview_is_what_its_agent_would_say(detectors, sources, targets):
    made, _ = detectors.must_agree(sources, targets)
    if len(sources) % 2:  # others stay, so that what is told before differs, too
        detectors.choices.undo(FLEET, made.number, ROOT)


@pytest.mark.parametrize(
    ("sources", "targets"),
    [("bcd", "abcd"), ("d", "ab"), ("", "abc"), ("abcd", "abcd"), ("c", "ab")],
)
def test_a_banks_preview_is_what_its_agent_would_say(banks, sources, targets):
    banks.must_agree(list(sources), list(targets))
    banks.must_agree(list("ab"), ["c", "d"])


def test_a_pattern_told_joins_the_one_that_it_is_and_a_strange_one_none(banks):
    rows = banks.choices.preview(FLEET, ["d"], ["a"])
    assert [row.joined for row in rows] == [0.0] * len(rows)
    rows = banks.choices.preview(FLEET, ["b", "c", "d"], ["a"])
    assert 0 < sum(row.joined for row in rows) <= 400  # of b and c


def test_adopting_what_spoils_a_level_is_seen_before(tmp_path):
    fleet = Fleet(str(tmp_path / "f.db"), Detector, {"a": [0.1], "b": [0.1]})
    X = generator(3).uniform(-1.0, 1.0, (4000, 6))  # hangs together in no way
    fleet.world.put(Contribution("c", Stats.of(SHARED, X), 1))
    fleet.world.service.choices.adopt(FLEET, ["b"], ["a"], ROOT)
    try:
        (row,) = fleet.choices.preview(FLEET, ["c"], ["a"])
        assert row.shift > 2
        assert row.before == pytest.approx(row.alone, rel=0.3)
        (row,) = fleet.choices.preview(FLEET, ["b"], ["a"])
        assert row.shift == row.before / row.alone
        assert fleet.choices.list_choices(FLEET)[0].number == 1  # looking has chosen nothing
    finally:
        fleet.world.close()


def test_a_fleet_that_tells_nothing_about_few_refuses_a_preview_of_few_as_it_does_adopting(
    tmp_path,
):
    modes = {"a": [0.1], "b": [0.5]}
    fleet = Fleet(str(tmp_path / "f.db"), Detector, modes, read_mode="totals", min_devices=2)
    try:
        with pytest.raises(SettingError, match="a would adopt from 1 device"):
            fleet.choices.preview(FLEET, ["b"], ["a"])
        (row,) = fleet.choices.preview(FLEET, [], ["a"])
        assert (row.joined, row.before, row.after) == (0.0, row.alone, row.alone)
    finally:
        fleet.world.close()


def test_a_device_with_few_samples_has_no_level_that_could_shift(detectors):
    detectors.world.put(note("few", 1, generator(1), rows=5))
    (row,) = detectors.choices.preview(FLEET, ["d"], ["few"])
    assert not row.ready
    assert row.shift == 1.0
    assert row.after != row.before
    (row,) = detectors.choices.preview(FLEET, ["d"], ["a"])
    assert row.ready


def test_a_device_without_contributions_has_nothing_to_preview(detectors):
    detectors.world.caller("silent")
    assert detectors.choices.preview(FLEET, ["silent"], ["silent"]) == []


def test_only_the_present_life_is_a_devices_own(detectors):
    detectors.world.put(note("a", 1, generator(1), incarnation=4, rows=50))
    (row,) = detectors.choices.preview(FLEET, ["b"], ["a"])
    assert row.samples == 50
    assert row.joined == 60 + 60  # of b, and of its own earlier life


def test_a_revoked_contribution_is_in_no_preview(detectors):
    detectors.choices.exclude(FLEET, ("b", 0, "normal"), ROOT)
    (row,) = detectors.choices.preview(FLEET, ["b", "c"], ["a"])
    assert row.joined == 60


def test_what_may_be_previewed_is_bounded_and_must_be_there(detectors, monkeypatch):
    look = detectors.choices.preview
    for sources, targets in ((["nobody"], ["a"]), (["a"], ["nobody"])):
        with pytest.raises(UnknownError, match="no device nobody"):
            look(FLEET, sources, targets)
    with pytest.raises(UnknownError, match="no fleet"):
        look("nowhere", ["a"], ["b"])
    with pytest.raises(SettingError, match="at most 200"):
        look(FLEET, ["a"], [f"d{i}" for i in range(201)])
    monkeypatch.setattr(preview, "PREVIEW_TIMEOUT_S", -1.0)
    with pytest.raises(UnavailableError, match="fewer targets"):
        look(FLEET, ["a"], ["b"])


@pytest.mark.parametrize(
    ("names", "seen", "grouped", "bank"),
    [
        ({"normal"}, None, None, False),
        ({"normal", "idle"}, None, None, True),
        ({"idle"}, None, None, True),
        ({"normal"}, glimpse(), None, False),
        ({"normal"}, glimpse("normal"), None, False),
        ({"normal"}, glimpse("normal", "b~normal"), None, True),
        ({"normal"}, None, True, True),
        ({"idle"}, glimpse("idle", "normal"), False, False),
    ],
)
def test_a_bank_is_who_asked_for_patterns_or_has_several(names, seen, grouped, bank):
    entry = contributions.StoredContribution("a", 0, "normal", 1, 9.0, 9, "", "", 0.0)
    own = [replace(entry, pattern=name) for name in names]
    assert preview.is_bank(own, seen, grouped=grouped) == bank


def test_kept_sums_that_are_damaged_are_made_anew_for_a_preview(banks):
    before = banks.choices.preview(FLEET, ["b"], ["a"])
    banks.world.service.writer.write(
        lambda tx: tx.run("update totals set digest = ? where fleet = ?", "0" * 64, FLEET)
    )
    assert banks.choices.preview(FLEET, ["b"], ["a"]) == before


def test_patterns_are_grouped_for_a_preview_though_nobody_has_asked_for_them(
    banks, monkeypatch, caplog
):
    for revision in (2, 3):
        banks.world.put(note("c", revision, generator(5), place=0.1, rows=200))
        assert banks.choices.preview(FLEET, ["c"], ["a"])
    assert "damaged" not in caplog.text  # nothing had to be made anew
    banks.world.put(note("c", 4, generator(5), place=0.1, rows=200))
    monkeypatch.setattr(totals.PullService, "group", lambda *_: None)  # others are always faster
    with pytest.raises(UnavailableError, match="try again"):
        banks.choices.preview(FLEET, ["c"], ["a"])


def test_sums_of_a_selection_are_read_once_for_all_targets(detectors, monkeypatch):
    read, real = [], contributions.read_contribution

    def reading(tx, entry, projection):
        read.append(entry.device)
        return real(tx, entry, projection)

    monkeypatch.setattr(contributions, "read_contribution", reading)
    detectors.world.told()
    read.clear()
    detectors.choices.preview(FLEET, ["b", "c"], ["a", "d"])
    assert sorted(read) == ["a", "b", "c", "d"]
    detectors.choices.exclude(FLEET, ("c", 0, "normal"), ROOT)
    detectors.world.told()
    read.clear()
    detectors.choices.preview(FLEET, ["b", "c"], ["a", "d"])
    assert read.count("b") == 1
    assert read.count("c") <= 1  # to take it from the total


def pairwise(contributions):
    """Ratios between devices, in the plainest way."""
    by_device = {}
    for each in contributions:
        by_device.setdefault(each.device, []).append(Profile.of(each.stats))

    def ratio(a, b):
        weights = [q.stats.count for q in by_device[b]]
        best = [min(loss_ratio(p, q) for p in by_device[a]) for q in by_device[b]]
        return np.average(best, weights=weights)

    return {(a, b): ratio(a, b) for a in by_device for b in by_device}


def test_the_matrix_is_what_each_pair_of_devices_is(banks):
    found = banks.choices.similarity(FLEET)
    expected = pairwise(banks.world.truth.values())
    assert sorted(found.devices) == list(DEVICES)
    for i, a in enumerate(found.devices):
        for j, b in enumerate(found.devices):
            assert found.ratios[i, j] == pytest.approx(expected[a, b], rel=ROUNDING)
    again = banks.choices.similarity(FLEET)
    assert (again.ratios == found.ratios).all()


def test_groups_of_like_devices_stand_together(detectors):
    found = detectors.choices.similarity(FLEET)
    groups = dict(zip(found.devices, found.groups, strict=True))
    assert groups["a"] == groups["b"]
    assert len({groups["a"], groups["c"], groups["d"]}) == 3
    assert abs(found.devices.index("a") - found.devices.index("b")) == 1
    assert found.left_out == 0


def test_each_device_is_shown_with_its_samples(detectors):
    modes = {"a": (0.1, 64), "c": (0.5, 63), "d": (0.9, 62), "b": (0.1, 61)}
    for device, (place, rows) in modes.items():  # by samples a and b are apart, by likeness not
        detectors.world.put(note(device, 2, generator(ord(device)), place=place, rows=rows))
    found = detectors.choices.similarity(FLEET)
    expected = {device: float(rows) for device, (_, rows) in modes.items()}
    assert dict(zip(found.devices, found.samples, strict=True)) == expected
    assert list(found.devices) != list(modes)


def test_devices_with_most_samples_are_compared_unless_they_are_named(detectors, monkeypatch):
    monkeypatch.setattr(preview, "DEFAULT_DEVICES", 2)
    detectors.world.put(note("e", 1, generator(1), rows=90))
    detectors.world.put(note("e", 1, generator(1), rows=10, pattern="idle"))
    detectors.world.put(note("f", 1, generator(1), rows=80))
    detectors.world.put(note("g", 1, generator(1), rows=0))
    found = detectors.choices.similarity(FLEET)
    assert sorted(zip(found.devices, found.samples, strict=True)) == [("e", 100.0), ("f", 80.0)]
    assert found.left_out == 4
    named = detectors.choices.similarity(FLEET, ["a", "b", "c", "g"])
    assert sorted(named.devices) == ["a", "b", "c"]
    assert named.left_out == 3
    with pytest.raises(UnknownError, match="no device nobody"):
        detectors.choices.similarity(FLEET, ["nobody"])
    for i in range(5):
        detectors.world.caller(f"x{i}")
    monkeypatch.setattr(preview, "MAX_DEVICES", 4)
    with pytest.raises(SettingError, match="at most 4"):
        detectors.choices.similarity(FLEET, [f"x{i}" for i in range(5)])


def test_a_fleet_without_contributions_has_an_empty_matrix(tmp_path):
    world = World(str(tmp_path / "f.db"))
    try:
        found = world.service.choices.similarity(FLEET)
        assert (found.devices, found.ratios.shape) == ((), (0, 0))
        world.put(note("a", 1, generator(1)))
        assert world.service.choices.similarity(FLEET).groups == (0,)
    finally:
        world.close()


def test_of_many_patterns_the_largest_are_compared(detectors, monkeypatch):
    for i in range(12):
        detectors.world.put(note("a", 1, generator(i), pattern=f"p{i}", rows=10 + i))
    with detectors.world.service.database.reading() as tx:
        entries = contributions.list_stored(tx, FLEET)
    found = preview.select_patterns(entries, None, size=1000)
    assert [e.pattern for e in found.patterns["a"]][:3] == ["normal", "p11", "p10"]
    assert len(found.patterns["a"]) == preview.MAX_PATTERNS
    assert found.samples["a"] == 60 + sum(range(10, 22))
    monkeypatch.setattr(preview, "PROFILES_BYTES", 8000)  # room for two of each device
    assert len(preview.select_patterns(entries, None, size=1000).patterns["a"]) == 2
    assert len(preview.select_patterns(entries, None, size=9000).patterns["a"]) == 1


def test_solved_contributions_are_remembered_while_there_is_room(detectors, monkeypatch):
    made, real = [], contributions.read_contribution

    def reading(tx, entry, projection):
        made.append(entry.device)
        return real(tx, entry, projection)

    monkeypatch.setattr(contributions, "read_contribution", reading)
    few = ProfileCache(room=2 * profile_bytes(SHARED))
    with detectors.world.service.database.reading() as tx:
        entries = contributions.list_stored(tx, FLEET)[:3]
        first = few.profile(tx, entries[0], SHARED)
        few.profile(tx, entries[1], SHARED)
        assert few.profile(tx, entries[0], SHARED) is first
        assert len(made) == 2
        few.profile(tx, entries[2], SHARED)  # the second was not asked for longest
        assert few.profile(tx, entries[0], SHARED) is first
        few.profile(tx, entries[1], SHARED)
    assert len(made) == 4
    assert len(few._known) == 2


def test_a_newer_revision_is_compared_instead(detectors):
    before = detectors.choices.similarity(FLEET, ["a", "c"])
    detectors.world.put(note("c", 2, generator(9), place=0.1, rows=60))
    after = detectors.choices.similarity(FLEET, ["a", "c"])
    assert set(before.groups) == {0, 1}
    assert set(after.groups) == {0}
