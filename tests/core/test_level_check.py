"""The check of what others claim against own samples: attacks fail it, honest patterns pass."""

from dataclasses import replace
from math import ceil

import numpy as np
import pytest
from scipy.linalg import eigh

from edgemerge import Bank, Contribution, Detector, Projection, Selection, Stats
from edgemerge.core.similarity import (
    CHECK_SAMPLES_PER_HIDDEN,
    LEVEL_FACTOR,
    LEVEL_RATIOS,
    MAX_NOISE_TIMES_N,
    MAX_OWN_SHARE,
    MIN_NOISE_HIDDEN,
    NOISE_SHARE,
    OWN_NOISE_FACTOR,
    SMALL_LEVEL_FACTOR,
    STRUCTURED_LEVEL_FACTOR,
    STRUCTURED_SHARE,
    LevelCheck,
    Profile,
    fresh_loss,
    level_of,
    level_ratio,
    noise_profile,
    noise_share,
    unexplained_noise,
)
from tests.cases import machine

pytestmark = pytest.mark.slow

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
    "a count that is too low": replace(HONEST["a larger one"], count=30.0),
}
HARMLESS = {  # their usual loss is too low: they explain nothing
    "a false count": replace(HONEST["the same machine"], count=3e7),
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
    found = min(Profile.of(ATTACKS[name]).unexplained, 1.0)
    words = f"found that {found:.0%} of the variance is unexplained, expected 8% at most"
    assert reason == f"{words}: these sums look like noise"
    low, high = LEVEL_RATIOS
    assert not low <= level_ratio(OWN, ATTACKS[name]) <= high


FEW_INPUTS = Projection(n_inputs=4, n_hidden=32)  # as `init` proposes: it explains noise, too


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("sensors", [0.04, 0.06])
def test_where_even_noise_is_explained_honest_parts_of_what_a_machine_does_pass(seed, sensors):
    rng = np.random.default_rng(seed)

    def seen(low, high, rows=600):
        load = rng.uniform(low, high, (rows, 1))
        whole = 0.6 * np.hstack([load, load, (0.8 + 0.05 * seed) * load, load**2])
        return Stats.of(FEW_INPUTS, whole + rng.normal(0.0, sensors, (rows, 4)))

    assert unexplained_noise(FEW_INPUTS) < 0.03
    check = LevelCheck({"normal": seen(-0.9, 0.9)}, apart=True)
    parts = [seen(low, low + 0.4) for low in np.arange(-0.9, 0.6, 0.2)]
    assert [check.reason(part) for part in parts] == [""] * len(parts)
    for reach in (1.0, 0.5):
        odd = Stats.of(FEW_INPUTS, rng.uniform(-reach, reach, (1000, 4)))
        assert check.reason(odd)


@pytest.mark.parametrize("kind", [Detector, Bank])
@pytest.mark.parametrize("name", HARMLESS)
def test_sums_with_too_low_a_usual_loss_pass_and_neither_hide_nor_cause_an_alarm(name, kind):
    assert LevelCheck({"normal": OWN}, apart=kind is Bank).reason(HARMLESS[name]) == ""
    learnt, normal = np.split(machine(0.2, 800, np.random.default_rng(0)), 2)
    odd = np.random.default_rng(6).uniform(-1.0, 1.0, (200, 6))
    alone, told = kind(SHARED), kind(SHARED)
    for each in (alone, told):
        each.learn(learnt)
    told.adopt(
        Selection()([Contribution("bad", HARMLESS[name], 1)]) if kind is Bank else HARMLESS[name]
    )
    rates = [((each.score(rows) > 4.0).mean()) for each in (alone, told) for rows in (normal, odd)]
    assert rates[2] <= rates[0] + 0.01
    assert rates[3] >= rates[1] - 0.05


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
    own, few = stats(0.2, 40_000), noise(16)
    low, high = LEVEL_RATIOS
    assert low < level_ratio(own, few) < high
    assert not Profile.of(few).known
    assert LevelCheck({"normal": own}, apart=False).reason(few) == ""
    assert "found a usual loss" in LevelCheck({"normal": own}, apart=True).reason(few)


WIDE = Projection(n_inputs=64, n_hidden=16, seed=7, activation="identity")


def causes(strength, noise, rows=2000, seed=0, number=4):
    """Samples with a few causes behind 64 inputs, and noise on each."""
    rng = np.random.default_rng(seed)
    mixing = np.random.default_rng(8).normal(0.0, 1.0, (number, 64))
    X = strength * rng.normal(size=(rows, number)) @ mixing + noise * rng.normal(size=(rows, 64))
    return Stats.of(WIDE, X)


def share(stats):
    return Profile.of(stats).unexplained / unexplained_noise(WIDE)


def test_the_unexplained_share_is_that_of_a_plain_computation():
    X = 0.1 * np.random.default_rng(1).normal(size=(4000, 64)) + 0.3
    grid = WIDE.to_rows(X)
    B = Stats.of(WIDE, X).solve().B
    residual = grid - WIDE.hidden(X) @ B
    plain = (residual**2).mean() / grid.var(axis=0).mean()
    assert Profile.of(Stats.of(WIDE, X)).unexplained == pytest.approx(plain, rel=0.02)
    assert share(Stats.of(WIDE, X)) == pytest.approx(1.0, abs=0.1)  # noise, in a smaller range


def closest_to(level, drawn):
    found = min(drawn, key=lambda each: abs(Profile.of(each).usual_loss - level))
    assert Profile.of(found).usual_loss == pytest.approx(level, rel=0.08)
    return found


@pytest.mark.parametrize("beyond", [0.9, 1.1])
@pytest.mark.parametrize(
    ("strength", "structured", "factor"),
    [(0.01, False, LEVEL_FACTOR), (0.1, True, STRUCTURED_LEVEL_FACTOR)],
)
def test_a_usual_loss_may_be_three_times_ones_own_or_eight_times_if_it_is_structured(
    strength, structured, factor, beyond
):
    own = causes(strength, 0.012)
    drawn = [causes(strength, noise, seed=1) for noise in np.linspace(0.012, 0.04, 60)]
    theirs = closest_to(beyond * factor * Profile.of(own).usual_loss, drawn)
    assert (share(theirs) <= STRUCTURED_SHARE) is structured
    assert share(theirs) < NOISE_SHARE
    reason = LevelCheck({"normal": own}, apart=True).reason(theirs)
    assert ("found a usual loss" in reason) == (beyond > 1.0)


def test_structure_means_nothing_where_noise_has_as_much():
    own = stats(0.2, 400)
    theirs = Stats.of(SHARED, np.random.default_rng(2).normal(0.2, 0.2, (4000, 6)))
    assert LEVEL_FACTOR < Profile.of(theirs).usual_loss / Profile.of(own).usual_loss < 8.0
    assert Profile.of(theirs).unexplained < STRUCTURED_SHARE * unexplained_noise(SHARED)
    assert "found a usual loss" in LevelCheck({"normal": own}, apart=True).reason(theirs)


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_few_samples_may_have_six_times_ones_own_usual_loss(factor):
    own, rng = causes(0.1, 0.02), np.random.default_rng(3)
    rows = 0.02 * rng.normal(size=(12, 64))
    few = [Stats.of(WIDE, scale * rows) for scale in np.geomspace(0.05, 20.0, 200)]
    theirs = closest_to(SMALL_LEVEL_FACTOR * factor * Profile.of(own).usual_loss, few)
    assert not Profile.of(theirs).known
    reason = LevelCheck({"normal": own}, apart=True).reason(theirs)
    assert ("found a usual loss" in reason) == (factor > 1.0)


@pytest.mark.parametrize("apart", [False, True])
def test_noise_is_refused_unless_it_is_small_or_own_samples_are_noise_too(apart):
    own, noises = causes(0.1, 0.02), [causes(0.0, each) for each in (0.02, 0.03)]
    levels = [Profile.of(each).usual_loss / Profile.of(own).usual_loss for each in noises]
    assert levels[0] < 1.0 < levels[1] < LEVEL_FACTOR
    assert share(own) < MAX_OWN_SHARE < NOISE_SHARE < min(map(share, noises))
    check = LevelCheck({"normal": own}, apart=apart)
    assert [check.reason(each)[-10:] for each in noises] == ["", "like noise"]
    assert LevelCheck({"normal": noises[0]}, apart=apart).reason(noises[1]) == ""


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


BROAD = Projection(n_inputs=128, n_hidden=32, seed=7, activation="identity")


def spoilt(part, seed=1, noise=0.08, shared=BROAD):
    """Return samples with a few causes and a little noise, and a part of noise everywhere."""
    rng, n = np.random.default_rng(seed), shared.n_inputs
    mixing = np.random.default_rng(8).normal(0.0, 0.2, (4, n))
    X = rng.normal(size=(2000, 4)) @ mixing + noise * rng.normal(size=(2000, n))
    return Stats.of(shared, np.vstack([X, rng.uniform(-1.0, 1.0, (int(2000 * part), n))]))


@pytest.mark.parametrize("part", [0.05, 0.1, 0.3])
def test_the_share_of_noise_is_about_what_was_mixed_in(part):
    found, noise = spoilt(part), noise_profile(BROAD).stats
    share = noise_share(found)
    assert 0.4 * part < share < 1.1 * part
    least = eigh(found.U / found.count, noise.U / noise.count, eigvals_only=True)[0]
    assert share == pytest.approx(least, rel=5e-3)  # the ridge of the noise
    assert noise_share(noise) == pytest.approx(1.0, rel=5e-3)
    assert noise_share(spoilt(0.0, noise=0.02)) < 1e-3


@pytest.mark.parametrize("apart", [False, True])
def test_honest_samples_that_are_mixed_with_noise_are_refused(apart):
    own, mixed = spoilt(0.0, seed=2), spoilt(0.1)
    most = max(MAX_NOISE_TIMES_N / BROAD.n_hidden, OWN_NOISE_FACTOR * noise_share(own))
    check = LevelCheck({"normal": own}, apart=apart)
    reason = check.reason(mixed)
    assert reason.startswith(f"found in every direction what {noise_share(mixed):.1%} of noise")
    assert f"expected {most:.1%} at most: these sums look mixed with noise" in reason
    assert noise_share(spoilt(0.01)) < most
    assert "mixed" not in check.reason(spoilt(0.01))
    assert not check.reason(spoilt(0.0, seed=3))


def test_where_own_samples_are_mixed_so_may_others_be():
    own = {"normal": spoilt(0.1)}
    most = OWN_NOISE_FACTOR * noise_share(own["normal"])
    assert noise_share(spoilt(0.25, seed=2)) < most < noise_share(spoilt(0.42, seed=2))
    check = LevelCheck(own, apart=False)
    assert "mixed" not in check.reason(spoilt(0.25, seed=2))
    assert "mixed" in check.reason(spoilt(0.42, seed=2))


def test_what_is_mixed_and_calls_nothing_more_usual_than_own_samples_passes():
    own = {"normal": spoilt(0.0, seed=2), "rough": spoilt(0.0, noise=0.5)}
    mixed = spoilt(0.1)
    assert Profile.of(mixed).usual_loss < max(Profile.of(each).usual_loss for each in own.values())
    assert LevelCheck(own, apart=True).reason(mixed) == ""


def test_with_few_hidden_values_honest_samples_may_fill_every_direction():
    narrow = replace(BROAD, n_hidden=MIN_NOISE_HIDDEN - 1)
    own = {"normal": spoilt(0.0, seed=2, shared=narrow)}
    assert noise_share(spoilt(0.1, shared=narrow)) > MAX_NOISE_TIMES_N / narrow.n_hidden
    assert "mixed" not in LevelCheck(own, apart=True).reason(spoilt(0.1, shared=narrow))
