"""The check of what others claim against own samples: attacks fail it, honest patterns pass."""

from dataclasses import replace
from math import ceil

import numpy as np
import pytest

from edgemerge import Contribution, Projection, Selection, Stats
from edgemerge.core.similarity import (
    CHECK_SAMPLES_PER_HIDDEN,
    LEVEL_FACTOR,
    LEVEL_RATIOS,
    SMALL_LEVEL_FACTOR,
    LevelCheck,
    Profile,
    fresh_loss,
    level_of,
    level_ratio,
)
from tests.cases import machine

SHARED = Projection(n_inputs=6, n_hidden=16, seed=7)
ENOUGH = ceil(CHECK_SAMPLES_PER_HIDDEN * SHARED.n_hidden)


def stats(place, rows, seed=0):
    return Stats.of(SHARED, machine(place, rows, np.random.default_rng(seed)))


def noise(rows):
    return Stats.of(SHARED, np.random.default_rng(5).uniform(-1.0, 1.0, (rows, 6)))


OWN = stats(0.2, 400)
ONE_ROW = Stats.of(SHARED, machine(0.2, 1, np.random.default_rng(4)))
HONEST = {
    "the same machine": stats(0.2, 300, 1),
    "a larger one": stats(0.2, 4000, 2),
    "another pattern": stats(0.7, 300, 3),
    "nothing": Stats.empty(SHARED),
}
ATTACKS = {
    "noise": noise(1000),
    "a little noise": noise(64),
    "a false count": replace(HONEST["the same machine"], count=3e7),
    "a count that is too low": replace(HONEST["a larger one"], count=30.0),
    "one row many times": ONE_ROW * 1e5,
}


def test_the_ratio_compares_the_level_of_all_with_that_of_own_samples_under_one_readout():
    theirs = HONEST["another pattern"]
    together = OWN + theirs
    readout = together.solve(OWN.solve().ridge)
    expected = level_of(together, readout).usual_loss / fresh_loss(OWN, readout)
    assert level_ratio(OWN, theirs) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("name", HONEST)
def test_honest_sums_pass(name, apart):
    assert LevelCheck({"normal": OWN}, apart=apart).reason(HONEST[name]) == ""


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_refused_with_a_reason(name, apart):
    reason = LevelCheck({"normal": OWN}, apart=apart).reason(ATTACKS[name])
    level, own = Profile.of(ATTACKS[name]).usual_loss, Profile.of(OWN).usual_loss
    factor = LEVEL_FACTOR if Profile.of(ATTACKS[name]).known else SMALL_LEVEL_FACTOR
    assert f"found a usual loss of {level:.3g}, expected {own / factor:.3g} to" in reason
    low, high = LEVEL_RATIOS
    assert not low <= level_ratio(OWN, ATTACKS[name]) <= high


@pytest.mark.parametrize(("count", "provisional"), [(ENOUGH - 1, True), (ENOUGH, False)])
def test_nothing_is_checked_before_there_are_enough_own_samples(count, provisional):
    check = LevelCheck({"normal": stats(0.2, count)}, apart=True)
    assert check.provisional is provisional
    assert (check.reason(noise(1000)) == "") is provisional


def test_patterns_count_together_and_small_ones_have_no_level():
    parts = {f"normal-{k}": stats(0.2, ENOUGH // 2, k) for k in range(2)}
    check = LevelCheck(parts, apart=True)
    assert not check.provisional
    assert check.reason(noise(1000))
    assert not check.reason(HONEST["the same machine"])
    tiny = {"normal": OWN, "odd": Stats.of(SHARED, np.random.default_rng(8).uniform(-1, 1, (6, 6)))}
    assert LevelCheck(tiny, apart=True).reason(noise(1000))


@pytest.mark.parametrize("apart", [False, True])
def test_one_pattern_that_fits_is_enough(apart):
    rough = Stats.of(SHARED, np.random.default_rng(1).normal(0.2, 0.2, (400, 6)))
    more = Stats.of(SHARED, np.random.default_rng(2).normal(0.2, 0.2, (4000, 6)))
    assert LevelCheck({"normal": OWN}, apart=apart).reason(more)
    assert not LevelCheck({"normal": OWN, "rough": rough}, apart=apart).reason(more)


def test_a_few_rows_of_noise_among_many_own_ones_are_no_pattern_of_a_bank():
    own, few = stats(0.2, 40_000), noise(20)
    low, high = LEVEL_RATIOS
    assert low < level_ratio(own, few) < high
    assert LevelCheck({"normal": own}, apart=False).reason(few) == ""
    assert "found a usual loss" in LevelCheck({"normal": own}, apart=True).reason(few)


@pytest.mark.slow
@pytest.mark.parametrize("within", [True, False])
@pytest.mark.parametrize(
    ("rows", "factor", "low"),
    [(60, LEVEL_FACTOR, False), (60, LEVEL_FACTOR, True), (12, SMALL_LEVEL_FACTOR, False)],
)
def test_levels_of_patterns_may_be_apart_by_a_factor(rows, factor, low, within):
    wide = Projection(n_inputs=16, n_hidden=16, seed=7, activation="identity")
    rng = np.random.default_rng(3)
    own = Stats.of(wide, 0.1 * rng.normal(size=(4000, 16)))
    edge = 1.0 / factor if low else factor
    beyond = within == low  # above the edge
    bounds = (edge, 1.1 * edge) if beyond else (edge / 1.1, edge)
    for spread in np.geomspace(1e-4, 3.0, 2000):
        theirs = Stats.of(wide, spread * rng.normal(size=(rows, 16)))
        if Profile.of(theirs).known != (factor == LEVEL_FACTOR):
            continue
        if bounds[0] < Profile.of(theirs).usual_loss / Profile.of(own).usual_loss < bounds[1]:
            break
    else:
        raise AssertionError("no such pattern was drawn")
    reason = LevelCheck({"normal": own}, apart=True).reason(theirs)
    assert ("found a usual loss" in reason) != within


def test_it_is_a_rule_of_a_selection_and_names_what_it_refuses():
    check = LevelCheck({"normal": OWN}, apart=False)
    notes = [
        Contribution("pump-2", HONEST["the same machine"], 1),
        Contribution("pump-9", ATTACKS["noise"], 1),
    ]
    chosen = Selection(receiver="pump-1", rule=check)(notes)
    assert [note.device for note in chosen] == ["pump-2"]
    assert [*check.refused] == [notes[1].key]
    assert check(notes[:1]) == notes[:1]
    assert check.refused == {}
