"""Two releases of a device never differ by few samples; what is held back is given later."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from edgemerge import Bank, Detector, EdgemergeError, Projection, Stats, load, save
from edgemerge.flower.device import (
    HistoryFile,
    PatternProgress,
    PatternState,
    ReleaseHistory,
    adopt,
    contribute,
    decode_history,
    encode_history,
    release,
)
from tests.flower.fleet import OTHER, SHARED, note, rows
from tests.flower.nodes import given, learnt, node_of, told

LEAST = 8  # 2N


def one_more(config, seed, count=1):
    """Let the learner in a state learn some samples more."""
    learner = load(config.state)
    learner.learn(rows(seed, count))
    save(learner, config.state)


def counts(config):
    """Give the samples of each pattern that leave, and what is held back."""
    fields, notes = given(config)
    return {note.pattern: note.stats.count for note in notes}, fields["held"]


def pump_in(folder, **settings):
    state = learnt(Detector(SHARED, **settings), folder / "pump", 1)
    return node_of("a", state=state)


def test_too_few_samples_are_held_back_until_there_are_enough(tmp_path):
    pump = Detector(SHARED)
    pump.learn(rows(1, 7))
    save(pump, tmp_path / "pump")
    config = node_of("a", state=tmp_path / "pump")
    assert counts(config) == ({}, "normal: 7 of 8 samples")
    one_more(config, 2)
    assert counts(config) == ({"normal": 8}, "")


def test_what_left_last_is_given_again_until_enough_samples_entered(tmp_path):
    config = pump_in(tmp_path)
    first = given(config)[0]
    for entered in range(1, LEAST):
        one_more(config, entered)
        fields, [found] = given(config)
        assert found.stats == Stats.of(SHARED, rows(1))
        assert fields["revision"] == first["revision"]
        assert fields["held"] == f"normal: {entered} of 8 samples"
    one_more(config, LEAST)
    fields, [found] = given(config)
    assert (found.stats.count, fields["held"]) == (48, "")
    assert fields["revision"] > first["revision"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_no_two_releases_differ_by_few_samples(tmp_path, seed):
    config, rng = pump_in(tmp_path), np.random.default_rng(seed)
    left = []
    for i in range(40):
        one_more(config, i, int(rng.integers(1, 6)))
        left.append(given(config)[1][0].stats)
    steps = [b.count - a.count for a, b in pairwise(left) if a != b]
    assert len(steps) > 5
    assert min(steps) >= LEAST


def test_without_a_gate_everything_leaves_at_once(tmp_path):
    config = replace(pump_in(tmp_path), gate=0.0)
    given(config)
    one_more(config, 2)
    assert counts(config) == ({"normal": 41}, "")
    guarded = replace(config, gate=2.0)
    one_more(config, 3)
    assert counts(guarded) == ({"normal": 41}, "normal: 1 of 8 samples"), "it counts from then on"


WIDE = Projection(n_inputs=4, n_hidden=16, seed=7)  # enough for patterns to be told apart


def idle(count, seed=1):
    return np.random.default_rng(seed).normal(-0.5, 0.05, (count, 4))


def fast(count, seed=2):
    return np.random.default_rng(seed).normal(0.5, 0.05, (count, 4))


def kept_in(folder, bank):
    """Save a bank, and give the node that it is at."""
    bank.catch_up()
    save(bank, folder / "bank")
    return node_of("a", state=folder / "bank")


def of_bank(config):
    """Give the samples of each pattern of a bank that leave, and what is held back."""
    fields, notes = given(config, shared=WIDE)
    return {note.pattern: note.stats.count for note in notes}, fields["held"]


def test_of_a_bank_a_single_sample_of_a_pattern_does_not_leave_with_many_of_another(tmp_path):
    bank = Bank(WIDE)
    bank.learn(idle(400))
    bank.learn(fast(400))
    before, _ = of_bank(kept_in(tmp_path, bank))
    few, many = bank.closest(idle(1)[0]), bank.closest(fast(1)[0])
    bank.learn(np.vstack([idle(1, 3), fast(63, 4)]))
    after, held = of_bank(kept_in(tmp_path, bank))
    assert bank[few].own.count == before[few] + 1
    assert after == before | {many: bank[many].own.count}
    assert held == f"{few}: 1 of 32 samples"


def crossing(seed, count=16):
    """Give samples on two lines, which part a pattern."""
    rng = np.random.default_rng(seed)
    x, noise = rng.uniform(-0.8, 0.8, (2 * count, 1)), rng.normal(0.0, 0.02, (2 * count, 4))
    sign = np.where(np.arange(2 * count) % 2, 1.0, -1.0)[:, None]
    return np.hstack([x, sign * x, 0.5 * sign * x, -x]) + noise


def test_samples_that_moved_between_patterns_leave_only_among_fresh_ones(tmp_path):
    bank = Bank(WIDE, reject_above=None)
    bank.learn(np.vstack([crossing(1), crossing(2)]))
    before = given(kept_in(tmp_path, bank), shared=WIDE)
    assert [each.pattern for each in before[1]] == ["normal"]
    bank.learn(crossing(3))
    assert len(bank) > 1, "the samples that left are in several patterns now"
    at_move = given(kept_in(tmp_path, bank), shared=WIDE)
    bank.learn(crossing(4))
    again = given(kept_in(tmp_path, bank), shared=WIDE)
    assert at_move[1] == again[1] == before[1]
    assert "normal: 0 of 32 samples" in at_move[0]["held"]
    for seed in range(5, 35):
        bank.learn(crossing(seed))
        if seed == 20:  # whatever has moved until now is seen here
            assert of_bank(kept_in(tmp_path, bank))[0] == {"normal": 64}
    parted, held = of_bank(kept_in(tmp_path, bank))
    assert (sum(parted.values()), held) == (34 * 32, "")
    assert parted == {name: bank[name].own.count for name in bank}


def test_samples_that_a_bank_takes_out_when_it_sifts_are_not_shown_by_the_difference(tmp_path):
    bank = Bank(WIDE)
    bank.learn(idle(64))
    first, _ = of_bank(kept_in(tmp_path, bank))
    bank.learn(idle(64, 3))
    assert bank.patterns.sifted
    assert bank.events == []
    assert of_bank(kept_in(tmp_path, bank)) == (first, "normal: 0 of 32 samples")


def test_a_pattern_that_is_no_more_is_taken_back_with_the_next_release(tmp_path):
    bank = Bank(WIDE)
    bank.learn(idle(400))
    bank.learn(fast(400))
    before, _ = of_bank(kept_in(tmp_path, bank))
    gone = bank.closest(fast(1)[0])
    del bank.patterns.instances[gone]
    bank.learn(idle(8, 3))
    assert of_bank(kept_in(tmp_path, bank))[0] == before
    bank.learn(idle(400, 4))
    after, held = of_bank(kept_in(tmp_path, bank))
    assert (after, held) == ({name: bank[name].own.count for name in bank}, "")


def test_of_a_detector_that_forgets_nothing_leaves_twice_unless_there_is_no_gate(tmp_path):
    config = pump_in(tmp_path, forgetting=0.99)
    first, _ = counts(config)
    one_more(config, 2, 100)
    again, held = counts(config)
    assert again == first
    assert "use a bank, which does, or gate = 0" in held
    assert counts(replace(config, gate=0.0))[0] != first


def test_of_a_bank_that_forgets_samples_are_counted(tmp_path):
    bank = Bank(WIDE, forgetting=0.999, max_patterns=1)
    bank.learn(idle(128))
    first, _ = of_bank(kept_in(tmp_path, bank))
    bank.learn(idle(20, 3))
    assert of_bank(kept_in(tmp_path, bank)) == (first, "normal: 20 of 32 samples")
    bank.learn(idle(20, 4))
    assert of_bank(kept_in(tmp_path, bank))[1] == ""


def test_a_file_of_samples_that_grows_by_a_row_is_held_back_in_the_next_run_too(tmp_path):
    config, data = node_of("a", data=tmp_path / "a.npy"), rows(1, 60)
    np.save(config.data, data[:40])
    assert counts(config) == ({"normal": 40}, "")
    np.save(config.data, data[:41])
    assert counts(config) == ({"normal": 40}, "normal: 1 of 8 samples")
    np.save(config.data, data[1:40])
    assert counts(config) == ({"normal": 40}, "normal: 0 of 8 samples"), "one was taken out"
    np.save(config.data, data[1:48])
    assert counts(config) == ({"normal": 47}, "")


def test_beside_samples_that_nobody_guards_nothing_is_written(tmp_path):
    np.save(tmp_path / "a.npy", rows(1))
    given(node_of("a", data=tmp_path / "a.npy", gate=0.0))
    assert [path.name for path in tmp_path.iterdir()] == ["a.npy"]


def test_an_incarnation_begins_anew(tmp_path):
    config = pump_in(tmp_path)
    given(config)
    learnt(Detector(SHARED), config.state, 2)
    again = replace(config, incarnation=1)
    assert given(again)[1][0].stats == Stats.of(SHARED, rows(2))
    assert given(config)[1][0].incarnation == 0


def test_under_another_name_the_same_sums_leave(tmp_path):
    config = pump_in(tmp_path)
    given(config)
    one_more(config, 2)
    [found] = given(replace(config, device="b"))[1]
    assert (found.device, found.stats.count) == ("b", 40)


def test_another_projection_is_refused_before_anything_leaves(tmp_path):
    config = node_of("a", state=learnt(Detector(OTHER), tmp_path / "pump", 1))
    with pytest.raises(EdgemergeError, match="every device must build the same Projection"):
        given(config)
    assert not (tmp_path / "pump.release").exists()
    contribute(config, OTHER, None, HistoryFile(config.state), lambda: 1.0)
    config.state.unlink()
    learnt(Detector(SHARED), config.state, 1)
    with pytest.raises(EdgemergeError, match="under another projection before: raise its `incarn"):
        given(config)


def test_an_older_copy_of_a_state_gives_again_what_left_last(tmp_path):
    config = pump_in(tmp_path)
    old = config.state.read_bytes()
    one_more(config, 2, 40)
    first = given(config)
    config.state.write_bytes(old)
    assert given(config)[1] == first[1]


def test_what_is_remembered_survives_bytes():
    patterns = {
        name: PatternState(note("a", 1).stats, PatternProgress("new 3", 40))
        for name in ("idle", "fäst")
    }
    past = release(ReleaseHistory(2), patterns, LEAST, 77).past
    assert decode_history(encode_history(past)) == past
    assert (past.incarnation, past.revision, list(past.left)) == (2, 77, ["idle", "fäst"])


def test_adopting_is_not_learning(tmp_path):
    config = pump_in(tmp_path)
    before = given(config)
    adopt(config, told(note("b", 2)))
    assert given(config) == before


def test_a_projection_with_other_numbers_is_told_by_both_names():
    state = Projection(n_inputs=3, n_hidden=4, seed=9)
    with pytest.raises(EdgemergeError, match=r"seed 9[\s\S]*seed 1|seed 1[\s\S]*seed 9"):
        SHARED.must_equal(state)
