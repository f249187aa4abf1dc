"""The release gate, over random lives of patterns: what is released covers enough, and only once.

The world here is sets: each sample is a number, and a pattern is the set of its samples.
"""

import json

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from edgemerge import Projection, Stats
from edgemerge.agent.sync import release_order
from edgemerge.privacy.gate import (
    SAMPLES_PER_NUMBER,
    Gate,
    PatternSamples,
    count_numbers,
    min_cohort,
    min_fresh_samples,
    min_unsolvable,
)

LEAST = 4
few = st.integers(1, 6 * LEAST)
chance = st.randoms(use_true_random=False)


class Pattern:
    """What a bank has of one pattern: a new life whenever samples are moved in or out."""

    def __init__(self, samples):
        self.samples, self.learnt, self.life = set(samples), 0, object()

    def seen(self):
        return PatternSamples(self.life, self.learnt, float(len(self.samples)))


class Lives(RuleBasedStateMachine):
    """Patterns live, samples move, and somebody watches all that is ever pushed."""

    def __init__(self):
        super().__init__()
        self.patterns, self.gate, self.next = {}, Gate(), 0
        self.exchange, self.watched = {}, set()

    def census(self):
        return {name: each.seen() for name, each in self.patterns.items() if each.samples}

    def fresh(self, count):
        self.next += count
        return set(range(self.next - count, self.next))

    def free_name(self):
        return next(n for n in map(str, range(99)) if n not in self.patterns)

    def one(self, random):
        return random.choice(sorted(self.patterns))

    @rule(count=few)
    def appear(self, count):
        self.patterns[self.free_name()] = Pattern(self.fresh(count))

    @precondition(lambda self: self.patterns)
    @rule(random=chance, count=few)
    def learn(self, random, count):
        pattern = self.patterns[self.one(random)]
        pattern.samples |= self.fresh(count)
        pattern.learnt += count

    @precondition(lambda self: self.patterns)
    @rule(random=chance)
    def part(self, random):
        name = self.one(random)
        samples = sorted(self.patterns[name].samples)
        moved = set(random.sample(samples, len(samples) // 2))
        self.patterns[name] = Pattern(set(samples) - moved)
        self.patterns[self.free_name()] = Pattern(moved)

    @precondition(lambda self: len(self.patterns) > 1)
    @rule(random=chance)
    def join(self, random):
        a, b = random.sample(sorted(self.patterns), 2)
        self.patterns[a] = Pattern(self.patterns[a].samples | self.patterns.pop(b).samples)

    @precondition(lambda self: self.patterns)
    @rule(random=chance)
    def retire(self, random):
        del self.patterns[self.one(random)]

    @precondition(lambda self: self.patterns)
    @rule(random=chance)
    def sift(self, random):
        name = self.one(random)
        self.patterns[name] = Pattern(set(list(self.patterns[name].samples)[1:]))

    @rule()
    def look(self):
        self.gate.look(self.census())

    @rule()
    def survive(self):
        self.gate.look(self.census())
        for pattern in self.patterns.values():
            pattern.life, pattern.learnt = object(), 0
        self.gate = Gate.of(json.loads(json.dumps(self.gate.state())), self.census())

    @rule()
    def release(self):
        self.gate.look(self.census())
        decision = self.gate.decide(LEAST)
        first, then = release_order(self.gate, decision)
        seen_before, there_before = set(self.watched), self.there()
        for name in first:
            self.push(name, set())
        for name in then:
            samples = set(self.patterns[name].samples)
            assert len(samples - seen_before) >= LEAST, f"{name} tells too much"
            self.push(name, samples)
        self.gate.record_release(decision)
        known = {sample for each in self.patterns.values() for sample in each.samples}
        assert there_before & known <= self.there(), "a sample that is known is shared no more"

    def there(self):
        return {sample for samples in self.exchange.values() for sample in samples}

    def push(self, name, samples):
        self.exchange[name] = samples
        self.watched |= samples
        self.counted_once()

    @invariant()
    def counted_once(self):
        every = [sample for samples in self.exchange.values() for sample in samples]
        assert len(every) == len(set(every)), "a sample is counted twice"

    @precondition(lambda self: self.patterns)
    @rule()
    def in_the_end_all_is_shared(self):
        for pattern in self.patterns.values():
            pattern.samples |= self.fresh(LEAST)
            pattern.learnt += LEAST
        self.gate.look(self.census())
        for pattern in self.patterns.values():  # the new life of a name has to earn it once more
            pattern.samples |= self.fresh(LEAST)
            pattern.learnt += LEAST
        self.release()
        there = {name: samples for name, samples in self.exchange.items() if samples}
        assert there == {name: each.samples for name, each in self.patterns.items()}


Lives.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestLives = pytest.mark.slow(Lives.TestCase)


def test_the_gate_says_what_it_holds_back_and_what_is_missing():
    gate = Gate()
    a, b = object(), object()
    gate.look({"normal": PatternSamples(a, 12, 12.0), "idle": PatternSamples(b, 200, 200.0)})
    decision = gate.decide(128)
    assert decision.released == ("idle",)
    assert decision.held == ("normal: 12 of 128 samples",)


def test_an_unchanged_pattern_is_not_released_again():
    gate, life = Gate(), object()
    gate.look({"normal": PatternSamples(life, 200, 200.0)})
    gate.record_release(gate.decide(128))
    gate.look({"normal": PatternSamples(life, 200, 200.0)})
    assert gate.decide(128).released == ()
    assert gate.decide(0).released == ()


def test_patterns_that_samples_moved_between_wait_for_each_other():
    gate, life = Gate(), object()
    gate.look({"normal": PatternSamples(life, 200, 200.0)})
    gate.record_release(gate.decide(100))
    a, b = object(), object()
    gate.look({"normal": PatternSamples(a, 100, 200.0), "normal-2": PatternSamples(b, 30, 130.0)})
    decision = gate.decide(100)
    assert decision.released == ()
    assert decision.held == ("normal: waits for normal-2", "normal-2: 30 of 100 samples")


def test_forgotten_samples_do_not_count():
    gate = Gate()
    gate.look({"normal": PatternSamples("a", 1000, 50.0)})
    assert gate.decide(100).held == ("normal: 50 of 100 samples",)


@pytest.mark.parametrize("least", [0, 1])
def test_an_open_gate_lets_everything_new_through(least):
    gate = Gate()
    gate.look({"normal": PatternSamples("a", 1, 1.0)})
    assert gate.decide(least).released == ("normal",)


def shared(**patterns):
    """A world whose patterns have been released as they are."""
    lives = Lives()
    for name, count in patterns.items():
        lives.patterns[name] = Pattern(lives.fresh(count))
    lives.release()
    assert lives.there() == set(range(lives.next))
    return lives


def test_a_pattern_that_was_joined_stays_shared_until_the_joint_one_may_be():
    lives = shared(a=9, b=9)
    lives.patterns["a"] = Pattern(lives.patterns["a"].samples | lives.patterns.pop("b").samples)
    lives.look()  # else the gate would take c for one that may hold what moved
    lives.patterns["c"] = Pattern(lives.fresh(9))
    lives.release()
    assert set(lives.exchange) == {"a", "b", "c"}
    assert lives.there() == set(range(27))


def test_what_parts_from_a_part_of_a_released_pattern_is_not_new():
    lives = shared(a=32)
    for old, new in (("a", "b"), ("b", "c")):
        samples = sorted(lives.patterns[old].samples)
        lives.patterns[old] = Pattern(samples[::2])
        lives.patterns[new] = Pattern(samples[1::2])
        lives.release()
    assert set(lives.exchange) == {"a"}


def gate_of(**counts):
    """Return a gate that has seen patterns with so many samples each."""
    gate, lives = Gate(), {name: object() for name in counts}
    gate.look({name: PatternSamples(lives[name], n, float(n)) for name, n in counts.items()})
    return gate, lives


def test_of_more_patterns_than_the_exchange_takes_the_largest_are_released_first():
    gate, lives = gate_of(a=5, b=30, c=10, d=20)
    decision = gate.decide(LEAST, 2)
    assert decision.released == ("b", "d")
    assert [each.partition(":")[0] for each in decision.held] == ["c", "a"]
    assert "2 patterns are shared, and a fleet takes no more of one device" in decision.held[0]
    gate.record_release(decision)
    larger = {"a": 90, "b": 40, "c": 80, "d": 20}
    gate.look({name: PatternSamples(lives[name], n, float(n)) for name, n in larger.items()})
    assert gate.decide(LEAST, 2).released == ("b",)  # those that are there stay
    assert gate.decide(LEAST).released == ("a", "b", "c")


def test_a_pattern_that_is_gone_makes_room_for_another():
    gate, lives = gate_of(a=30, b=20, c=10)
    gate.record_release(gate.decide(LEAST, 2))
    left = {"b": 20, "c": 10}
    gate.look({name: PatternSamples(lives[name], n, float(n)) for name, n in left.items()})
    decision = gate.decide(LEAST, 2)
    assert (decision.released, decision.withdrawn) == (("c",), ("a",))


def test_what_finds_no_room_withdraws_nothing():
    gate, lives = gate_of(a=30, b=20)
    gate.record_release(gate.decide(LEAST, 1))
    gate.look(
        {name: PatternSamples(lives[name], n, float(n)) for name, n in (("a", 30), ("b", 20))}
    )
    assert gate.decide(LEAST, 1).released == gate.decide(LEAST, 1).withdrawn == ()


@pytest.mark.parametrize("n", [1, 2, 3, 8, 561])
@pytest.mark.parametrize("N", [1, 16, 128])
def test_the_default_gate_is_16_times_n_and_has_more_unknowns_than_equations(n, N):
    shared = Projection(n_inputs=n, n_hidden=N)
    sums = Stats.of(shared, [[0.0] * n])
    equations = N * (N + 1) // 2 + sums.V.size + sums.C.size + sums.S.size
    least = min_fresh_samples(shared)
    assert least >= 16 * N
    assert least * n > equations
    assert (min_unsolvable(shared) - 1) * n <= equations < min_unsolvable(shared) * n
    assert least in (16 * N, min_unsolvable(shared))  # no more than either asks for


def test_a_gate_that_was_chosen_replaces_both():
    shared = Projection(n_inputs=1, n_hidden=128)
    assert min_fresh_samples(shared, 2.0) == 256.0
    assert min_fresh_samples(shared, 0.0) == 0.0


@pytest.mark.parametrize(("n_inputs", "n_hidden"), [(3, 16), (16, 64), (561, 64)])
@pytest.mark.parametrize("gate", [None, 2.0, 64.0])
def test_a_cohort_has_enough_samples_for_each_number_and_no_more(n_inputs, n_hidden, gate):
    shared = Projection(n_inputs=n_inputs, n_hidden=n_hidden)
    stats = Stats.empty(shared)
    upper = n_hidden * (n_hidden + 1) // 2
    assert count_numbers(shared) == upper + stats.V.size + stats.C.size + stats.S.size
    devices, fresh = min_cohort(shared, gate), min_fresh_samples(shared, gate)
    assert devices * fresh >= SAMPLES_PER_NUMBER * count_numbers(shared)
    assert devices == 3 or (devices - 1) * fresh < SAMPLES_PER_NUMBER * count_numbers(shared)


def test_a_total_of_two_devices_is_never_enough():
    assert min_cohort(Projection(n_inputs=3, n_hidden=2), gate=10_000.0) == 3
