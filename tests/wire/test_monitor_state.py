"""The saved state of a monitor: nothing is lost, and what is damaged is refused."""

import json
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgemerge import Bank, Detector, Monitor, Projection, Stats
from edgemerge.core.errors import FormatError
from edgemerge.wire import codec
from edgemerge.wire.state import from_bytes, to_bytes
from tests.watched import COMMISSIONING, SHARED, Watched

pytestmark = pytest.mark.slow

LEARNERS = pytest.mark.parametrize("learner", [Detector, Bank])


def busy(learner=Detector, **options):
    """A monitor with everything that it may keep: patterns of each status, an open episode."""
    watched = Watched(learner, false_alarms="1 per 50 samples", **options).commissioned()
    for place, decision in ((0.6, "approve"), (-0.6, "fault"), (1.0, "dismiss")):
        watched.fault(40, place)
        watched.ordinary(20)
        newest = list(watched.monitor.odd_patterns)[-1]
        if watched.monitor.odd_patterns[newest].status == "unreviewed":
            watched.monitor.review(newest, decision)
    watched.take([[9.0, 0.0, 0.0, 0.0], *watched.rows(2)])
    watched.monitor.acknowledge(1)
    watched.fault(13, -1.0)
    watched.monitor.snoozed_until = watched.at - 1.0
    assert watched.monitor.episode is not None
    assert watched.monitor.block
    return watched


@cache
def saved():
    return to_bytes(busy().monitor)


@LEARNERS
def test_everything_that_a_monitor_knows_is_in_its_state(learner):
    watched = busy(learner)
    monitor, again = watched.monitor, from_bytes(to_bytes(watched.monitor))
    assert isinstance(again, Monitor)
    assert again.status() == monitor.status()
    assert again.options == monitor.options
    assert again.episodes == monitor.episodes
    assert again.episode is again.episodes[-1]
    assert list(again.events) == list(monitor.events)
    assert again.limit.state() == monitor.limit.state()
    assert again.level.state() == monitor.level.state()
    assert {p.status for p in again.odd_patterns.values()} >= {"normal", "fault"}
    for name, odd in monitor.odd_patterns.items():
        found = again.odd_patterns[name]
        assert found.stats == odd.stats
        assert np.array_equal(found.rows.array(4), odd.rows.array(4))
        assert np.array_equal(found.direction, odd.direction)
        assert found.plain() == odd.plain()
        assert (found.cosines, found.into) == (odd.cosines, odd.into)
    assert again.learner.share("pump", revision=1) == monitor.learner.share("pump", revision=1)
    assert again.learner.supervised
    assert to_bytes(again) == to_bytes(monitor)


@LEARNERS
@pytest.mark.parametrize("count", [6, 60])
def test_a_review_can_be_undone_after_a_restart_to_the_last_bit(learner, count):
    watched = Watched(learner).commissioned()
    watched.fault(count)
    watched.ordinary(20)
    before, odd = watched.own, watched.odd.stats
    watched.monitor.review("odd-1", "approve")
    again = Watched(monitor=from_bytes(to_bytes(watched.monitor)))
    again.monitor.review("odd-1", "undo")
    assert again.own == before
    assert again.odd.stats == odd


def test_a_bank_remembers_after_a_restart_what_may_not_be_joined():
    watched = Watched(Bank).commissioned()
    for count, place in ((60, 0.6), (6, -0.8)):
        watched.fault(count, place)
        watched.ordinary(20)
    watched.monitor.review("odd-1", "approve")
    watched.monitor.review("odd-2", "approve")
    again = from_bytes(to_bytes(watched.monitor))
    into = again.odd_patterns["odd-2"].into
    for learner in (watched.monitor.learner, again.learner):
        instances = learner.patterns.instances
        assert instances["odd-1"].pinned
        assert not instances[into].pinned
        assert instances[into].held == 1


@pytest.mark.parametrize("forgetting", [1.0, 0.999])
@pytest.mark.parametrize("small", [True, False])
def test_a_restart_keeps_the_ridge_that_commissioning_chose(forgetting, small):
    shared = Projection(n_inputs=4, n_hidden=8, seed=7, activation="cosine")
    watched = Watched(monitor=Monitor(Detector(shared, forgetting=forgetting))).commissioned()
    watched.monitor.learner.small_ridge = watched.monitor.snapshot.small_ridge = small
    watched.ordinary(150)  # not solved afresh just now
    again = Watched(monitor=from_bytes(to_bytes(watched.monitor)))
    again.at = watched.at
    rows = watched.rows(400, 0.05)
    assert again.take(rows) == watched.take(rows)
    assert again.monitor.drift == watched.monitor.drift != 1.0
    assert again.monitor.learner.small_ridge == small


def test_commissioning_goes_on_after_a_restart():
    watched = Watched()
    watched.ordinary(COMMISSIONING - 1)
    again = Watched(monitor=from_bytes(to_bytes(watched.monitor)))
    assert again.monitor.phase == "commissioning"
    again.ordinary(1)
    assert again.monitor.ready
    assert again.learnt == pytest.approx(COMMISSIONING, abs=4)


@LEARNERS
def test_states_of_learners_alone_load_into_watching_if_they_are_ready(learner):
    alone = learner(SHARED)
    alone.learn(np.random.default_rng(0).normal(0.0, 0.1, (256, 4)))
    monitor = Monitor(from_bytes(to_bytes(alone)))
    assert monitor.ready
    assert monitor.snapshot is not None
    assert to_bytes(monitor.snapshot) == to_bytes(monitor.learner)
    young = Monitor(from_bytes(to_bytes(learner(SHARED))))
    assert young.phase == "commissioning"
    assert young.snapshot is None


def parts_of(data):
    metadata, tensors = codec.read_container(data, codec.MAX_BYTES)
    return metadata, json.loads(metadata["state"]), dict(tensors)


def packed(plain, tensors):
    return codec.pack({"kind": "monitor", "state": json.dumps(plain)}, tensors)


def test_a_state_in_which_a_bit_has_turned_is_refused_wherever_it_is():
    data = saved()
    places = np.random.default_rng(0).permutation(8 * len(data))[:400].tolist()
    for place in [*places, 0, 8 * len(data) - 1]:
        turned = bytearray(data)
        turned[place // 8] ^= 1 << place % 8
        with pytest.raises(FormatError):
            from_bytes(bytes(turned))


def test_a_state_without_a_checksum_is_read_as_older_versions_wrote_it():
    metadata, plain, tensors = parts_of(saved())
    assert list(metadata) == ["kind", "state", "sha256"]
    assert to_bytes(from_bytes(packed(plain, tensors))).startswith(saved()[:100])
    with pytest.raises(FormatError, match="unknown metadata word 'remark'"):
        from_bytes(codec.pack(metadata | {"remark": "x"}, tensors))
    with pytest.raises(FormatError, match="the checksum of the monitor does not fit"):
        from_bytes(codec.pack(metadata | {"state": metadata["state"] + " "}, tensors))


def test_a_state_without_a_field_is_refused_whichever_it_is():
    _, plain, tensors = parts_of(saved())
    for name in plain:
        less = {key: value for key, value in plain.items() if key != name}
        with pytest.raises(FormatError):
            from_bytes(packed(less, tensors))
    for name in tensors:
        less = {key: value for key, value in tensors.items() if key != name}
        with pytest.raises(FormatError):
            from_bytes(packed(plain, less))


@pytest.mark.parametrize("name", ["first", "sketch", "pending", "block", "recent", "0.rows"])
def test_rows_of_another_size_or_not_finite_are_refused(name):
    _, plain, tensors = parts_of(saved())
    for wrong in (np.zeros((3, 5), np.float32), np.full((1, 4), np.nan, np.float32)):
        with pytest.raises(FormatError):
            from_bytes(packed(plain, tensors | {name: wrong}))


def test_a_state_that_holds_something_else_than_a_learner_is_refused():
    _, plain, tensors = parts_of(saved())
    other = np.frombuffer(to_bytes(Stats.empty(SHARED)), np.int8)
    with pytest.raises(FormatError, match="found Stats, expected a detector or a bank"):
        from_bytes(packed(plain, tensors | {"learner": other}))


def test_a_state_with_settings_that_cannot_be_is_refused():
    _, plain, tensors = parts_of(saved())
    plain["options"]["learn"] = "sometimes"
    with pytest.raises(FormatError, match=r"invalid state of a monitor.*found learn"):
        from_bytes(packed(plain, tensors))


def test_a_state_that_is_cut_or_longer_is_refused():
    data = saved()
    for wrong in (data[:-1], data + b"0", data[:100], data.replace(b"phase", b"phrase")):
        with pytest.raises(FormatError):
            from_bytes(wrong)


@pytest.mark.slow
@given(st.data(), st.integers(0, 7))
@settings(max_examples=100)
def test_a_flipped_bit_is_refused_or_gives_a_monitor_that_works(chance, bit):
    data = bytearray(saved())
    place = chance.draw(st.integers(0, len(data) - 1))
    data[place] ^= 1 << bit
    try:
        monitor = from_bytes(bytes(data))
    except FormatError:
        return
    assert isinstance(monitor, Monitor)
    assert monitor.take(np.zeros(4), 1e6).at == 1e6


def test_an_open_episode_that_an_older_version_saved_goes_on():
    watched = Watched().commissioned()
    watched.fault(13)
    _, plain, tensors = parts_of(to_bytes(watched.monitor))
    assert plain["block"], "in the middle of a block"
    old = plain | {"open": True, "block": [at for at, _score in plain["block"]]}
    again = Watched(monitor=from_bytes(packed(old, tensors)))
    again.at = watched.at
    rows = np.vstack([watched.rows(30, 0.6), watched.rows(20)])
    again.take(rows)
    watched.take(rows)
    assert again.monitor.episodes == watched.monitor.episodes
    assert again.odd.stats == watched.odd.stats
