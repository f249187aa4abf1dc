"""No combination of the totals that a device gets is about fewer than `min_devices` others."""

from contextlib import suppress
from dataclasses import replace
from itertools import combinations
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edgemerge import Contribution, Stats
from edgemerge.core.errors import EdgemergeError
from edgemerge.core.ledger import Selection
from edgemerge.server.releases import load_releases
from tests.cases import machine
from tests.server.world import FLEET, ROOT, SHARED, World

pytestmark = pytest.mark.slow  # each example has a database of its own
DEVICES = "abcdefg"
ATTACKERS = "a", "z"  # one that also pushes, and one that never does

devices, patterns = st.sampled_from(DEVICES), st.sampled_from(["idle", "run"])
steps = st.one_of(
    st.tuples(st.just("push"), devices, patterns),
    st.tuples(st.just("push"), devices, patterns),
    st.tuples(st.just("push all"), st.integers(3, len(DEVICES)), patterns),
    st.tuples(st.just("withdraw"), devices, patterns),
    st.tuples(st.just("drop"), devices, st.none()),
    st.tuples(st.just("push again"), devices, patterns),
    st.tuples(st.just("repeat"), devices, patterns),
    st.tuples(st.just("exclude"), devices, patterns),
    st.tuples(st.just("dismiss"), devices, patterns),
    st.tuples(st.just("undo"), st.none(), st.none()),
    st.tuples(st.just("choose"), st.sets(devices, max_size=6), st.sampled_from(ATTACKERS)),
    st.tuples(st.just("restart"), st.none(), st.none()),
    st.tuples(st.just("look"), st.none(), st.none()),
)


class History:
    """A fleet, and all that two devices ever got of it."""

    def __init__(self, folder, least):
        self.world = World(f"sqlite:///{folder}/fleets.db", read_mode="totals", min_devices=least)
        self.least, self.rng = least, np.random.default_rng(0)
        self.revision = 0
        self.sent = {}  # sums, by version: key and first revision
        self.versions = {}  # by key and revision
        self.newest = {}  # by key
        self.got = {who: [] for who in ATTACKERS}  # sets of versions of others
        for who in ATTACKERS:
            self.world.caller(who)

    def do(self, action, one, other):
        act = getattr(self, "_" + action.replace(" ", "_"))
        with suppress(EdgemergeError):  # such as what is not there, or too few sources
            act(one, other)
        for who in ATTACKERS:
            for grouped in (False, True) if action != "look" else (False,):
                self.pull(who, grouped=grouped)

    def _push(self, device, pattern, rows=30):
        self.revision += 1
        place = {"idle": 0.1, "run": 0.9}[pattern]
        found = machine(place, rows, self.rng)
        stats = Stats.of(SHARED, found) if rows else Stats.empty(SHARED)
        self._send(Contribution(device, stats, self.revision, pattern, 0))

    def _send(self, note):
        if self.world.put(note).new:
            same = [v for v, stats in self.sent.items() if stats == note.stats]
            version = same[0] if same else (*note.key, note.revision)
            self.sent[version] = note.stats
            self.versions[*note.key, note.revision] = version
            self.newest[note.key] = note

    def _push_all(self, count, pattern):
        for device in DEVICES[:count]:
            self._push(device, pattern)

    def _withdraw(self, device, pattern):
        if (device, 0, pattern) in self.newest:
            self._push(device, pattern, rows=0)

    def _drop(self, device, _):
        self.world.service.drop(FLEET, device, ROOT)

    def _push_again(self, device, pattern):
        if (device, 0, pattern) in self.newest:
            self._send(self.newest[device, 0, pattern])

    def _repeat(self, device, pattern):
        """Push the same sums as a new revision."""
        if (device, 0, pattern) in self.newest:
            self.revision += 1
            self._send(replace(self.newest[device, 0, pattern], revision=self.revision))

    def _exclude(self, device, pattern):
        self.world.service.choices.exclude(FLEET, (device, 0, pattern), ROOT)

    def _dismiss(self, device, pattern):
        self.world.service.choices.decide(FLEET, (device, 0, pattern), "dismiss", ROOT)

    def _undo(self, *_):
        made = self.world.service.choices.list_choices(FLEET)
        self.world.service.choices.undo(FLEET, made[0].number if made else 1, ROOT)

    def _choose(self, sources, target):
        self.world.service.choices.adopt(FLEET, sorted(sources), [target], ROOT)

    def _restart(self, *_):
        self.world.restart()

    def _look(self, *_):
        self.world.told(grouped=True)  # groups by pattern, as an operator

    def pull(self, who, *, grouped):
        """Pull, and find out what the answer is the sum of."""
        told = self.world.told(Selection(receiver=who), self.world.caller(who), grouped=grouped)
        with self.world.service.database.reading() as tx:
            releases = load_releases(tx, FLEET)
        sums = [self._versions(each, who) for each in releases]
        if grouped:
            for part in told.parts:
                (versions,) = [v for v in sums if self._total(v) == part.stats]
                self.got[who].append(versions)
        elif told.parts:
            given = self._given(sums, told.total)
            self.got[who].append(frozenset().union(*given))

    def _versions(self, release, who):
        return frozenset(
            self.versions[*m.key, m.revision] for m in release.members if m.device != who
        )

    def _total(self, versions):
        return Stats.total(SHARED, (self.sent[version] for version in versions))

    def _given(self, sums, total):
        """Return which releases make up a total, exactly."""
        every = (some for k in range(len(sums), 0, -1) for some in combinations(sums, k))
        return next(some for some in every if self._total(frozenset().union(*some)) == total)

    def must_isolate_nobody(self):
        """No weighted sum of all that a device got is about a few others alone."""
        for who in ATTACKERS:
            vectors = sorted(set(self.got[who]), key=sorted)
            versions = sorted(frozenset().union(*vectors))
            if not vectors:
                continue
            M = np.array([[v in vector for v in versions] for vector in vectors], np.float64)
            rank = np.linalg.matrix_rank(M)
            for few in combinations(DEVICES, self.least - 1):
                others = [v[0] not in few for v in versions]
                assert np.linalg.matrix_rank(M[:, others]) == rank, (who, few)


PUSHES = [("push all", 4, "idle"), ("push", "b", "idle"), ("push", "c", "idle")]
COMES_BACK = [
    ("push all", 5, "idle"),
    *(("push", device, "run") for device in "bcdefg"),
    *(("drop", device, None) for device in "fg"),
    ("push", "b", "idle"),
]
REPEATED = [
    ("push all", 4, "idle"),
    *(("drop", device, None) for device in "abcd"),
    *(("push again", device, "idle") for device in "abcd"),
    ("push", "b", "idle"),
]
REPEATED_LATER = [
    ("push all", 5, "idle"),
    *(("repeat", device, "idle") for device in "bcd"),
    ("push", "e", "idle"),
]


def tried(least, history):
    with TemporaryDirectory() as folder:
        fleet = History(folder, least)
        try:
            for step in history:
                fleet.do(*step)
            fleet.must_isolate_nobody()
        finally:
            fleet.world.close()
    return fleet


histories = st.integers(2, 3), st.lists(steps, min_size=4, max_size=12)


@settings(max_examples=5)
@given(*histories)
@example(3, PUSHES)
@example(3, COMES_BACK)
@example(3, REPEATED)
@example(3, REPEATED_LATER)
@example(2, [("push all", 5, "idle"), ("push all", 5, "run"), ("drop", "b", None)])
def test_no_combination_of_what_a_device_gets_is_about_few_others(least, history):
    tried(least, history)


@pytest.mark.long
@settings(max_examples=100)
@given(*histories)
def test_no_combination_in_many_histories_either(least, history):
    tried(least, history)


def test_the_law_has_something_to_look_at():
    every = [("push all", 6, "idle"), ("push all", 6, "run"), ("push all", 5, "idle")]
    got = tried(3, every).got["z"]
    assert len(set(got)) >= 4  # totals, and sums of patterns, that differ
