"""What a peer's pattern may claim to be usual: no more than own samples that it explains show."""

from math import inf

import numpy as np
import pytest

from edgemerge import Bank, Contribution, Monitor, Projection, Stats
from edgemerge.core.ledger import Merged, MergedPart
from edgemerge.core.patterns import _join_most_similar, level_ceiling
from edgemerge.core.readout import NO_CEILING, Ceiling
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
    free["peer-0/normal"].known.ceiling = NO_CEILING
    rates = [(each.score(FAULT) > 4.0).mean() for each in (alone, told, free)]
    assert rates[0] > 0.95
    assert rates[1] > rates[0] - 0.05
    assert rates[2] < 0.1  # that is what the ceiling is for


def test_the_ceiling_is_what_is_usual_for_own_samples_that_the_pattern_explains():
    own = {"low": Stats.of(SHARED, samples(400, 1)), "high": noisy(400, 4)}
    low, high = (Profile.of(stats) for stats in own.values())
    foreign = Profile.of(noisy(1000, 60))
    found = level_ceiling(foreign, [low])
    assert found.loss == pytest.approx(low.usual_loss)
    H = SHARED.hidden(samples(400, 1))
    leverages = np.einsum("ij,jk,ik->i", H, foreign.readout.P, H)
    assert found.leverage == pytest.approx(leverages.mean(), rel=1e-6)
    both, count = level_ceiling(foreign, [low, high]), high.stats.count + low.stats.count
    mean = (400 * low.usual_loss + high.stats.count * high.usual_loss) / count
    assert both.loss == pytest.approx(mean)
    assert low.usual_loss < mean < high.usual_loss
    few = Profile.of(Stats.of(SHARED, samples(2, 1)))
    assert level_ceiling(foreign, [few]) == NO_CEILING  # too few to have a level


def test_noise_makes_no_direction_usual():
    foreign = Profile.of(noisy(1000, 60))
    ceiling = level_ceiling(foreign, [Profile.of(Stats.of(SHARED, samples(400, 1)))])
    level = foreign.level
    claimed = level.freedom / level.count / level.residual_share
    assert ceiling.leverage < 0.9 * claimed
    bound = level._replace(ceiling=Ceiling(leverage=ceiling.leverage))
    more = bound.score(0.0, 2.0 * claimed) / level.score(0.0, 2.0 * claimed)
    assert more == pytest.approx(claimed / ceiling.leverage)
    assert level._replace(ceiling=Ceiling(leverage=9.0)).score(0.0, 1.0) == level.score(0.0, 1.0)


def test_a_pattern_that_does_not_explain_own_samples_keeps_its_level():
    other = Stats.of(SHARED, samples(400, 2, place=0.7, noise=0.1))
    found = bank(other)
    assert set(ceilings(found).values()) == {NO_CEILING}
    level = found["peer-0/normal"].known.level().usual_loss
    assert level == pytest.approx(Profile.of(other).usual_loss)


def test_sums_are_as_they_were_sent_whatever_the_ceiling():
    bad = noisy(1000, 60)
    assert bank(bad)["peer-0/normal"].others == bad


def test_own_samples_set_the_scale_of_a_pattern_as_soon_as_there_are_enough():
    found = bank(noisy(1000, 60))
    known = found["peer-0/normal"].known
    level = known.level().usual_loss
    assert level == known.ceiling.loss
    detector = found["peer-0/normal"].with_own(noisy(20, 10))
    assert detector.known.on_own_scale
    assert detector.known.level().usual_loss > known.ceiling.loss


def test_patterns_that_are_joined_have_the_lower_ceiling():
    found = bank(noisy(1000, 60), Stats.of(SHARED, samples(400, 2, place=0.7)))
    ceiling = ceilings(found)["peer-0/normal"]
    for name in list(found):
        if not name.startswith("peer"):
            del found.patterns.instances[name]
    assert set(ceilings(found).values()) == {ceiling, NO_CEILING}
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


def test_a_bank_that_was_saved_without_the_second_ceiling_is_read():
    found = bank(noisy(1000, 60))
    expected = ceilings(found)["peer-0/normal"]
    found["peer-0/normal"].known.ceiling = Ceiling(expected.loss)
    assert b"leverage_ceiling" not in to_bytes(found)
    again = from_bytes(to_bytes(found))
    assert ceilings(again)["peer-0/normal"] == Ceiling(expected.loss)


def test_the_lower_of_two_ceilings_is_taken_one_by_one():
    assert Ceiling(1.0, 4.0).below(Ceiling(2.0, 3.0)) == Ceiling(1.0, 3.0)
