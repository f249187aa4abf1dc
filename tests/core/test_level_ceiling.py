"""What a peer's pattern may claim to be usual: no more than own samples that it explains show."""

from math import inf

import numpy as np
import pytest

from edgemerge import Bank, Contribution, Monitor, Projection, Stats
from edgemerge.core.ledger import Merged, MergedPart
from edgemerge.core.patterns import _join_most_similar, level_ceiling
from edgemerge.core.similarity import Profile
from edgemerge.wire.state import from_bytes, to_bytes

SHARED = Projection(n_inputs=32, n_hidden=16, seed=7)


def samples(rows, seed, place=0.0, noise=0.02):
    """Samples of a machine with four causes behind 32 inputs."""
    rng, fixed = np.random.default_rng(seed), np.random.default_rng(int(100 * place) + 5)
    middle, mixing = place * fixed.choice([-1.0, 1.0], 32), fixed.normal(0.0, 0.1, (4, 32))
    return middle + rng.normal(size=(rows, 4)) @ mixing + noise * rng.normal(size=(rows, 32))


def noisy(rows, of_noise):
    """Return honest sums of the same machine, with rows of noise among them."""
    noise = np.random.default_rng(9).uniform(-1.0, 1.0, (of_noise, 32))
    return Stats.of(SHARED, np.vstack([samples(rows, 3), noise]))


def bank(*peers, rows=400):
    found = Bank(SHARED)
    found.learn(samples(rows, 1))
    found.catch_up()
    found.adopt([Contribution(f"peer-{k}", stats, 1) for k, stats in enumerate(peers)])
    return found


def ceilings(found):
    return {name: each.known.ceiling for name, each in found.detectors.items()}


FAULT = samples(200, 4)
FAULT[:, 0] += 0.5


def test_noise_among_a_peer_s_samples_hides_no_fault():
    bad = noisy(1000, 60)
    alone, told = bank(), bank(bad)
    levels = [Profile.of(each.own).usual_loss for each in alone.detectors.values()]
    assert Profile.of(bad).usual_loss > 4.0 * max(levels)
    free = bank(bad)
    free["peer-0/normal"].known.ceiling = inf
    rates = [(each.score(FAULT) > 4.0).mean() for each in (alone, told, free)]
    assert rates[0] > 0.95
    assert rates[1] > rates[0] - 0.05
    assert rates[2] < 0.1  # that is what the ceiling is for


def test_the_ceiling_is_the_usual_loss_of_own_samples_that_the_pattern_explains():
    own = {"low": Stats.of(SHARED, samples(400, 1)), "high": noisy(400, 4)}
    profiles = {name: Profile.of(stats) for name, stats in own.items()}
    foreign = Profile.of(noisy(1000, 60))
    assert level_ceiling(foreign, [profiles["low"]]) == profiles["low"].usual_loss
    both = max(each.usual_loss for each in profiles.values())
    assert level_ceiling(foreign, profiles.values()) == both == profiles["high"].usual_loss
    few = Profile.of(Stats.of(SHARED, samples(2, 1)))
    assert level_ceiling(foreign, [few]) == inf  # too few to have a level


def test_a_pattern_that_does_not_explain_own_samples_keeps_its_level():
    other = Stats.of(SHARED, samples(400, 2, place=0.7, noise=0.1))
    found = bank(other)
    assert set(ceilings(found).values()) == {inf}
    level = found["peer-0/normal"].known.level().usual_loss
    assert level == pytest.approx(Profile.of(other).usual_loss)


def test_sums_are_as_they_were_sent_whatever_the_ceiling():
    bad = noisy(1000, 60)
    assert bank(bad)["peer-0/normal"].others == bad


def test_own_samples_set_the_scale_of_a_pattern_as_soon_as_there_are_enough():
    found = bank(noisy(1000, 60))
    known = found["peer-0/normal"].known
    level = known.level().usual_loss
    assert level == known.ceiling
    detector = found["peer-0/normal"].with_own(noisy(20, 10))
    assert detector.known.on_own_scale
    assert detector.known.level().usual_loss > known.ceiling


def test_patterns_that_are_joined_have_the_lower_ceiling():
    found = bank(noisy(1000, 60), Stats.of(SHARED, samples(400, 2, place=0.7)))
    ceiling = ceilings(found)["peer-0/normal"]
    for name in list(found):
        if not name.startswith("peer"):
            del found.patterns.instances[name]
    assert set(ceilings(found).values()) == {ceiling, inf}
    _join_most_similar(found.patterns, inf)
    assert list(ceilings(found).values()) == [ceiling]


def test_the_ceiling_survives_saving_joining_and_what_is_added():
    found = bank(noisy(1000, 60))
    ceiling = ceilings(found)["peer-0/normal"]
    again = from_bytes(to_bytes(found))
    assert ceilings(again) == ceilings(found)
    assert (again.score(FAULT) == found.score(FAULT)).all()
    few = found["peer-0/normal"].with_own(Stats.of(SHARED, samples(5, 8)))
    assert few.known.ceiling == ceiling
    assert few.without(Stats.of(SHARED, samples(5, 8))).known.ceiling == ceiling
    monitor = Monitor(found)
    assert ceilings(from_bytes(to_bytes(monitor)).learner) == ceilings(found)
    found.adopt(Merged(SHARED, (MergedPart.of([Contribution("x", noisy(900, 1), 1)], SHARED),)))
    assert ceiling not in ceilings(found).values()
