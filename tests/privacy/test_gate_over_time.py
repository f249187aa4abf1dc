"""The release gate with patterns that forget, vanish, come back and give samples away."""

import pytest

from edgemerge.agent.sync import release_order
from edgemerge.privacy.gate import Gate, PatternSamples

LEAST = 10


def released(gate, name, life):
    """Let a pattern out once."""
    gate.look({name: PatternSamples(life, LEAST, float(LEAST))})
    decision = gate.decide(LEAST)
    assert decision.released == (name,)
    gate.record_release(decision)


def test_forgotten_samples_cover_for_nothing():
    gate = Gate()
    gate.look({"normal": PatternSamples("a", 5, 5.0)})
    gate.look({"normal": PatternSamples("a", 1000, LEAST - 0.5)})
    decision = gate.decide(LEAST)
    assert decision.released == ()
    assert decision.held == ("normal: 9 of 10 samples",)


def test_a_pattern_is_taken_back_only_together_with_what_is_released():
    gate = Gate()
    released(gate, "normal", "a")
    gate.look({})
    assert gate.decide(LEAST).withdrawn == ()
    gate.look({"idle": PatternSamples("b", LEAST, float(LEAST))})
    decision = gate.decide(LEAST)
    assert (decision.released, decision.withdrawn) == (("idle",), ("normal",))
    gate.record_release(decision)
    assert gate.decide(0).withdrawn == ()


def test_a_pattern_that_has_come_back_is_not_taken_back():
    gate = Gate()
    released(gate, "normal", "a")
    gate.look({})
    gate.look({"normal": PatternSamples("b", LEAST, float(LEAST))})
    decision = gate.decide(LEAST)
    assert (decision.released, decision.withdrawn) == (("normal",), ())
    assert gate.tracks["normal"].released


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_samples_that_move_between_two_known_patterns_are_never_counted_twice(names):
    gate = Gate()
    giver, taker = names
    exchange = {giver: set(range(20)), taker: set(range(20, 40))}
    gate.look({name: PatternSamples(name, 20, 20.0) for name in "ab"})
    gate.record_release(gate.decide(LEAST))
    now = {giver: set(range(5, 20)), taker: {*range(5), *range(20, 40)}}  # five have moved
    gate.look({name: PatternSamples(object(), LEAST, float(len(now[name]))) for name in "ab"})
    decision = gate.decide(LEAST)
    first, then = release_order(gate, decision)
    for name, samples in [*((n, set()) for n in first), *((n, now[n]) for n in then)]:
        exchange[name] = samples
        counted = [sample for each in exchange.values() for sample in each]
        assert len(counted) == len(set(counted))
    assert exchange == now
