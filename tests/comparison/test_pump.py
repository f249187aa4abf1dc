"""The generated pump: what a stream says of itself is what its rows show."""

import numpy as np
import pytest

from edgemerge.comparison import pump
from edgemerge.comparison.pump import (
    DIRT,
    DRIFT,
    FLOW,
    HEAT,
    KINDS,
    NEW_SPEED,
    NOISE,
    POWER,
    PRESSURE,
    QUICK,
    REVIEW_AFTER,
    SPEED,
    STREAMS,
    VALVE,
    make_stream,
    normal_rows,
)


def residuals(rows):
    """How far each reading is from what speed and valve say, (k, 8)."""
    return rows - pump._physics(rows[:, SPEED], rows[:, VALVE])


@pytest.mark.parametrize("name", STREAMS)
def test_equal_seeds_give_equal_bits_and_others_do_not(name):
    one, two, other = (make_stream(name, seed, shape=QUICK) for seed in (3, 3, 4))
    assert (one.rows == two.rows).all()
    assert one.faults == two.faults
    assert not (one.rows[:100] == other.rows[:100]).any()


@pytest.mark.parametrize("name", STREAMS)
def test_every_kind_of_fault_comes_as_often_and_leaves_room_around(name):
    stream = make_stream(name, 0)
    kinds = [fault.kind for fault in stream.faults if fault.kind != NEW_SPEED]
    assert sorted(kinds) == sorted(KINDS * 2)
    ends = [stream.first, *(fault.end for fault in stream.faults)]
    begins = [*(fault.begin for fault in stream.faults), len(stream.rows)]
    assert all(begin - end >= 25 for begin, end in zip(begins, ends, strict=True))
    assert stream.fault.sum() == sum(fault.end - fault.begin for fault in stream.faults)
    assert not stream.fault[: stream.first].any()


def test_faults_change_what_they_say_and_nothing_else():
    rng = np.random.default_rng(0)
    rows = normal_rows(400, rng)
    changed = {
        kind: np.flatnonzero((pump.faulty(rows, kind, rng) != rows).any(0)).tolist()
        for kind in KINDS
    }
    assert changed == {
        "worn impeller": [FLOW, POWER],
        "stuck sensor": [HEAT],
        "noisy sensor": [pump.VIBRATION],
        "broken relation": [PRESSURE],
        "overload": [pump.CURRENT],
    }
    with pytest.raises(ValueError, match="found kind 'rust', expected one of"):
        pump.faulty(rows, "rust", rng)


def test_all_but_overload_stay_within_the_range_of_normal():
    rng = np.random.default_rng(0)
    many = normal_rows(5000, rng)
    low, high = many.min(0) - 3 * NOISE, many.max(0) + 3 * NOISE
    for kind in ("stuck sensor", "broken relation"):
        rows = pump.faulty(normal_rows(400, rng), kind, rng)
        assert ((rows >= low) & (rows <= high)).all(), kind
    overload = pump.faulty(normal_rows(400, rng), "overload", rng)
    assert (overload[:, pump.CURRENT] > high[pump.CURRENT]).mean() > 0.9


def test_drift_moves_two_readings_by_five_times_their_noise():
    stream = make_stream("slow drift", 0)
    calm = ~stream.fault
    far = residuals(stream.rows)
    # the first and the last tenth of the watched samples
    watched = np.flatnonzero(calm)[np.searchsorted(np.flatnonzero(calm), stream.first) :]
    first, last = watched[: len(watched) // 10], watched[-len(watched) // 10 :]
    moved = far[last].mean(0) - far[first].mean(0)
    assert moved[[PRESSURE, HEAT]] == pytest.approx([0.9 * DRIFT] * 2, abs=0.02)
    others = [i for i in range(8) if i not in (PRESSURE, HEAT, POWER)]
    assert abs(moved[others]).max() < 0.02


def test_contaminated_commissioning_has_its_share_of_a_fault():
    stream = make_stream("contaminated", 0)
    dirty = residuals(stream.rows[: stream.first])[:, FLOW] < -0.1
    assert dirty.mean() == pytest.approx(DIRT, abs=0.01)
    assert not stream.wild[: stream.first].any()
    assert not (stream.wild & stream.fault).any()
    assert 0.005 < stream.wild[stream.first :].mean() < 0.02
    assert not any(make_stream(name, 0).wild.any() for name in STREAMS if name != "contaminated")


def test_a_new_speed_begins_as_a_fault_and_is_approved():
    stream = make_stream(NEW_SPEED, 0)
    change = stream.faults[0]
    assert change.kind == NEW_SPEED
    assert stream.review == change.end == change.begin + REVIEW_AFTER
    assert stream.rows[: change.begin, SPEED].max() < 1.4
    assert stream.rows[change.begin : change.end, SPEED].min() > 1.2
    later = stream.rows[change.end :, SPEED]
    assert 0.3 < (later > 1.3).mean() < 0.7


def test_a_late_device_knows_one_speed_and_its_peers_both():
    stream = make_stream("late device", 0)
    assert stream.first == 256
    assert stream.rows[: stream.first, SPEED].max() < 1.4
    assert (stream.rows[stream.first :, SPEED] > 1.4).mean() > 0.2
    assert len(stream.peers) == 5
    assert all(0.2 < (rows[:, SPEED] > 1.4).mean() < 0.7 for rows in stream.peers)
    assert all(not make_stream(name, 0).peers for name in STREAMS if name != "late device")
