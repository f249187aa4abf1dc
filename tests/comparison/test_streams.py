"""Streams: counting of episodes and delays, limits of others, undo, rows, claims and resuming."""

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from edgemerge.comparison import alarms, pump, streams
from edgemerge.comparison.alarms import OURS, RIVALS, Promised, RateLimit, make_projection
from edgemerge.comparison.pump import Fault, Stream
from edgemerge.comparison.streams import UNDO, auc, bootstrap_interval, judge, per_seed, undo, work
from edgemerge.paper.plan import Job, Plan, Row, Scope
from edgemerge.paper.running.job_cache import JobCache

SCOPE = Scope(Path(), 7, quick=True)


def truth(k=100, first=20, faults=((40, 60), (80, 90)), kinds=("stuck sensor", "overload")):
    """A stream whose rows do not matter."""
    found = tuple(Fault(kind, *ends) for kind, ends in zip(kinds, faults, strict=True))
    return Stream("steady", np.zeros((k, 8)), found, first, np.zeros(k, np.bool_))


def alarms_at(*ranges, k=100):
    found = np.zeros(k, np.bool_)
    for begin, end in ranges:
        found[begin:end] = True
    return found


def judged(stream, marks, scores=None):
    normal, *faults = judge(stream, np.arange(100.0) if scores is None else scores, marks)
    return normal, {row["kind"]: row for row in faults}


def test_an_episode_in_a_fault_is_a_detection_and_outside_it_is_false():
    normal, faults = judged(truth(), alarms_at((25, 28), (43, 62), (70, 71)))
    # 80 watched samples, without 30 of faults and 5 after each
    assert (normal["samples"], normal["episodes"]) == (40, 2)
    assert normal["in_alarm"] == 4 / 40
    assert (faults["stuck sensor"]["detected"], faults["stuck sensor"]["delay"]) == (1, 3.0)
    assert faults["stuck sensor"]["in_alarm"] == 17 / 20
    assert (faults["overload"]["detected"], faults["overload"]["delay"]) == (0, 10.0)


def test_an_alarm_that_never_ends_detects_nothing():
    normal, faults = judged(truth(), alarms_at((30, 100)))
    assert normal["episodes"] == 1
    assert faults["stuck sensor"]["detected"] == faults["overload"]["detected"] == 0
    assert faults["stuck sensor"]["delay"] == 20.0


def test_an_episode_right_after_a_fault_is_the_fault_s():
    normal, _ = judged(truth(), alarms_at((64, 66)))
    assert normal["episodes"] == 0
    normal, _ = judged(truth(), alarms_at((65, 66)))
    assert normal["episodes"] == 1


def test_commissioning_does_not_count():
    normal, _ = judged(truth(), alarms_at((5, 25)))
    assert normal["episodes"] == 1  # it is still there when watching begins
    normal, _ = judged(truth(), alarms_at((5, 20)))
    assert normal["episodes"] == 0


def test_late_episodes_are_those_of_the_second_half():
    normal, _ = judged(truth(), alarms_at((25, 26), (70, 72)))
    assert (normal["episodes"], normal["late_episodes"]) == (2, 1)
    assert normal["late_samples"] == 20


def test_two_faults_of_a_kind_are_averaged():
    stream = truth(kinds=("overload", "overload"))
    _, faults = judged(stream, alarms_at((44, 50)))
    assert faults["overload"]["faults"] == 2
    assert faults["overload"]["detected"] == 1
    assert faults["overload"]["delay"] == (4.0 + 10.0) / 2


def test_wild_samples_and_those_without_a_score_are_left_out_of_the_auc():
    stream = truth()
    scores = np.where(stream.fault, 2.0, 1.0)
    scores[25:30] = 9.0
    scores[30:35] = np.nan
    wild = alarms_at((25, 30))
    _, faults = judged(replace(stream, wild=wild), alarms_at(), scores)
    assert faults["overload"]["auc"] == 1.0
    _, faults = judged(stream, alarms_at(), scores)
    assert faults["overload"]["auc"] < 1.0


def test_auc_agrees_with_scikit_learn():
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(0)
    normal, odd = rng.integers(0, 9, 200).astype(float), rng.integers(3, 12, 70).astype(float)
    label = np.repeat([0, 1], [200, 70])
    assert auc(normal, odd) == pytest.approx(roc_auc_score(label, np.concatenate([normal, odd])))


def test_the_interval_is_around_the_mean_and_shrinks_with_the_seeds():
    rng = np.random.default_rng(0)
    few, many = rng.normal(size=5), rng.normal(size=500)
    assert (
        bootstrap_interval(few)[1]
        < few.mean()
        == bootstrap_interval(few)[0]
        < bootstrap_interval(few)[2]
    )
    _, low, high = bootstrap_interval(many)
    assert high - low == pytest.approx(2 * 1.96 / math.sqrt(500), rel=0.15)
    assert bootstrap_interval(few) == bootstrap_interval(few)


def test_a_rate_limit_is_passed_as_often_as_promised():
    rng = np.random.default_rng(0)
    levels = rng.normal(size=4000) - 5.0  # any scale, also below 0
    limit = RateLimit(0.01)
    limit.count(list(pairwise(levels)))
    rises = (levels[1:] > limit.value) & (levels[:-1] <= limit.value)
    assert rises.sum() <= 0.01 * 4000 - 1.0
    lower = np.sort(levels[1:])[np.searchsorted(np.sort(levels[1:]), limit.value) - 1]
    more = (levels[1:] > lower) & (levels[:-1] <= lower)
    assert more.sum() > 0.01 * 4000 - 1.0


def test_with_too_few_samples_the_rate_limit_is_above_all_of_them():
    limit = RateLimit(0.001)
    assert limit.value == math.inf
    limit.count([(0.0, 3.0), (3.0, 7.0), (7.0, 2.0)])
    assert limit.value == 7.0


class Known:
    """A scorer that says what is in the first input, and remembers what it learnt."""

    def __init__(self):
        self.learnt = []

    def learn(self, x):
        self.learnt.append(float(x[0]))

    def score(self, x):
        return float(x[0])


def promised(first=400):
    rows = np.vstack([np.full(8, -1.0), np.full(8, 1.0)])
    return Promised(Known(), make_projection(rows, "tanh", 0), first)


def take(watcher, value):
    return watcher.take(np.full(8, value))


def test_another_detector_learns_nothing_in_an_alarm_until_it_is_approved():
    watcher = promised()
    for value in np.random.default_rng(0).uniform(0.0, 0.1, 400):
        assert take(watcher, value) == (None, False)
    assert len(watcher.scorer.learnt) == 400
    states = [take(watcher, 0.9)[1] for _ in range(10)]
    assert states == [False] * 2 + [True] * 8
    assert len(watcher.scorer.learnt) == 402
    watcher.approve()
    assert watcher.scorer.learnt[402:] == pytest.approx([0.9] * 8)
    assert take(watcher, 0.9)[1]
    assert len(watcher.scorer.learnt) == 411


def test_levels_of_a_short_episode_count_and_those_of_a_long_one_do_not():
    for length, counted in ((10, True), (60, False)):
        watcher = promised()
        for value in np.random.default_rng(0).uniform(0.0, 0.1, 400):
            take(watcher, value)
        before = len(watcher.limit.steps)
        for _ in range(length):
            take(watcher, 0.9)
        for _ in range(20):
            take(watcher, 0.05)
        highest = max(level for _, level in watcher.limit.steps[before:])
        assert (highest > 0.5) == counted


def test_inputs_of_other_detectors_are_scaled_by_the_range():
    rows = np.random.default_rng(0).uniform(3.0, 5.0, (50, 8))
    watcher = Promised(Known(), make_projection(rows, "tanh", 0), 10)
    assert watcher.scaled(rows).min() == pytest.approx(-1.0)
    assert watcher.scaled(rows).max() == pytest.approx(1.0)


@pytest.mark.slow
@pytest.mark.parametrize("method", RIVALS)
def test_other_detectors_score_an_overload_above_most_of_normal(method):
    rng = np.random.default_rng(0)
    rows = pump.normal_rows(600, rng)
    odd = pump.faulty(pump.normal_rows(50, rng), "overload", rng)
    low, high = rows.min(0), rows.max(0)
    scorer = RIVALS[method](8, 600, 3)
    scaled, far = (2.0 * (X - low) / (high - low) - 1.0 for X in (rows, odd))
    for x in scaled[:500]:
        scorer.learn(x)
    normal = np.array([scorer.score(x) for x in scaled[500:]])
    assert auc(normal, np.array([scorer.score(x) for x in far])) > 0.7


@pytest.mark.slow
@pytest.mark.parametrize("method", [name for name in OURS if "," in name and name.count(",") == 1])
def test_undo_equals_retraining_to_the_bit(method):
    found = undo(method, 3, 256)
    assert found["same_sums"] == 1
    assert found["difference"] == 0.0
    assert found["auc"] == found["auc_retrained"]
    assert found["auc"] > found["auc_with_bad"] + 0.02


def test_undo_does_not_pass_for_equal_what_differs(monkeypatch):
    real, calls = alarms.adopt_from, []

    def lazy(learner, peers):
        calls.append(len(peers))
        real(learner, peers if len(calls) < 12 else peers[1:])  # the retrained one lacks a peer

    monkeypatch.setattr(streams, "adopt_from", lazy)
    found = undo("detector, tanh", 3, 128)
    assert found["same_sums"] == 0
    assert found["difference"] > 0.0


@pytest.mark.slow
def test_a_job_gives_the_same_rows_each_time_but_for_the_times():
    job = Job("streams", "steady", "detector, tanh", 0)
    one, two = (
        [{key: value for key, value in row.items() if key != "us"} for row in work(job, SCOPE)]
        for _ in range(2)
    )
    assert one == two
    assert one[0]["kind"] == "normal"
    assert {row["kind"] for row in one[1:]} == set(pump.KINDS)


@pytest.mark.long
@pytest.mark.slow
def test_peers_keep_a_late_device_calm():
    alone, merged = (
        work(Job("streams", "late device", "bank, tanh", 0, part), SCOPE)[0]
        for part in ("", "merged")
    )
    assert merged["in_alarm"] < 0.1 < alone["in_alarm"]


@pytest.mark.slow
def test_a_person_s_approval_reaches_the_monitor():
    stream = pump.make_stream(pump.NEW_SPEED, 5, shape=pump.FULL)
    cut = replace(stream, rows=stream.rows[: stream.review + 150], faults=stream.faults[:1])
    cut = replace(cut, wild=cut.wild[: len(cut.rows)])
    quiet, loud = (
        streams.watch(alarms.make_watcher("bank, tanh", cut.first, cut.rows[: cut.first], 5), each)[
            1
        ]
        for each in (cut, replace(cut, review=None))
    )
    fast = slice(stream.faults[0].begin, stream.review + 50)
    assert loud[fast].mean() > 0.9
    assert quiet[stream.review + 20 : stream.review + 50].mean() < 0.2


def small(monkeypatch):
    """Let a run have few jobs that do nothing but count."""
    done = []

    def counted(job, _scope):
        done.append(job)
        return made_up()

    monkeypatch.setattr(streams, "work", counted)
    return done


def made_up(stream="steady", method="bank, tanh", seed=0, part="", **normal):
    key = {"stream": stream, "method": method, "with": part, "seed": seed}
    calm = {"kind": "normal", "samples": 1000, "episodes": 0, "in_alarm": 0.0, "limit": 4.0}
    calm |= normal
    fault = {"kind": "overload", "samples": 160, "in_alarm": 0.9, "faults": 2, "detected": 2}
    return [{**key, **calm}, {**key, **fault, "delay": 3.0, "auc": 0.9}]


def test_a_run_that_was_stopped_goes_on(monkeypatch, tmp_path):
    done = small(monkeypatch)
    plan = Plan(replace(SCOPE, quick=False), trials=1)

    def stopping(work, jobs, scope):
        from edgemerge.paper.plan import run_here

        for i, finished in enumerate(run_here(work, jobs, scope)):
            if i == 5:
                raise KeyboardInterrupt
            yield finished

    with pytest.raises(KeyboardInterrupt):
        streams.run(replace(plan, spread=JobCache(tmp_path, stopping).spread))
    assert len(done) == 6
    rows = streams.run(replace(plan, spread=JobCache(tmp_path).spread))
    assert len(done) == 6 + len(rows) / 2 - 5
    streams.run(replace(plan, spread=JobCache(tmp_path).spread))
    assert len(done) == 6 + len(rows) / 2 - 5


def test_every_stream_has_every_method_and_peers_come_to_the_late_device_only(monkeypatch):
    done = small(monkeypatch)
    streams.run(Plan(replace(SCOPE, quick=False), trials=50))
    assert {job.trial for job in done} == set(range(10))
    assert {job.dataset for job in done} == {*pump.STREAMS, UNDO}
    assert {job.method for job in done} == {*OURS, *RIVALS}
    assert {job.dataset for job in done if job.part} == {"late device"}
    assert len(done) == len(set(done))


def test_measures_are_taken_from_the_rows_of_each_seed():
    rows = [
        *made_up(seed=0, episodes=2, samples=4000),
        *made_up(seed=1, episodes=1, samples=500),
        *made_up(stream="late device", part="merged", seed=0),
    ]
    assert per_seed(rows, "false")["steady", "", "bank, tanh"] == [0.5, 2.0]
    assert per_seed(rows, "detected")["late device", "peers", "bank, tanh"] == [1.0]
    rows[1]["detected"], rows[1]["delay"] = 1, 40.0
    assert per_seed(rows, "detected")["steady", "", "bank, tanh"] == [0.5, 1.0]
    assert per_seed(rows, "delay")["steady", "", "bank, tanh"] == [40.0, 3.0]


def claim(rows, start):
    (found,) = (each for each in streams.claims(rows) if each.text.startswith(start))
    return found


def test_a_promise_that_one_monitor_breaks_does_not_hold():
    good = [*made_up(), *made_up(method="detector, tanh")]
    assert claim(good, "steady: no monitor").holds is True
    bad = [*good, *made_up(method="bank, cosine", episodes=2)]
    assert claim(bad, "steady: no monitor").holds is False
    assert "bank, cosine 2" in claim(bad, "steady: no monitor").found
    free = [*good, *made_up(method="bank, tanh, no promise", episodes=9)]
    assert claim(free, "steady: no monitor").holds is True
    assert claim(good, "heavy tails: no monitor").holds is None


def test_a_promise_that_holds_on_average_says_whose_interval_ends_above_it():
    rows = [*made_up(seed=0, samples=1000, episodes=0), *made_up(seed=1, samples=1000, episodes=2)]
    for start in ("steady: no monitor", "steady: bank, tanh keeps"):
        assert claim(rows, start).holds is True
        assert claim(rows, start).found.endswith("above the promise: bank, tanh to 2")
    assert "above" not in claim(made_up(), "steady: no monitor").found


def test_being_sooner_counts_only_among_those_that_keep_the_promise():
    ours = made_up()
    slow, fast = (made_up(method="LODA (River)", episodes=n) for n in (0, 2))
    fast[1]["delay"] = 2.0
    slow[1]["delay"] = 5.0
    assert claim([*ours, *slow], "steady: bank, tanh keeps").holds is True
    assert claim([*ours, *fast], "steady: bank, tanh keeps").holds is True
    fast[0]["episodes"] = 0
    assert claim([*ours, *fast], "steady: bank, tanh keeps").holds is False
    late = made_up(episodes=2)
    assert claim([*late, *slow], "steady: bank, tanh keeps").holds is False


def test_a_claim_of_being_sooner_says_where_the_intervals_overlap():
    ours, others = (
        [made_up(method=method, seed=seed) for seed in (0, 1)]
        for method in ("bank, tanh", "LODA (River)")
    )
    others[1][1]["delay"] = 20.0
    rows = [row for each in (*ours, *others) for row in each]
    others[0][1]["delay"] = 2.0
    assert claim(rows, "steady: bank, tanh keeps").holds is True
    assert claim(rows, "steady: bank, tanh keeps").found.endswith("; the intervals overlap")
    others[0][1]["delay"] = 5.0
    assert "overlap" not in claim(rows, "steady: bank, tanh keeps").found


def test_what_a_promise_costs_is_said():
    with_it, without = made_up(limit=30.0), made_up(method="bank, tanh, no promise", limit=4.0)
    text = "bank, tanh raises the alarm as soon with a promise"
    assert claim([*with_it, *without], text).holds is True
    with_it[1]["delay"] = 9.0
    found = claim([*with_it, *without], text)
    assert found.holds is False
    assert "steady 9 against 3 samples" in found.found
    assert "limits at the end 30 and 4" in found.found
    assert claim(with_it, text).holds is None


def test_where_others_are_ahead_is_listed():
    title = "Where another detector is ahead of bank, tanh, mean over seeds"
    ours, other = made_up(), made_up(method="LODA (River)")
    other[1]["auc"] = ours[1]["auc"] * (1.0 + 1e-12)  # rounding is no lead
    assert title not in streams.tables([*ours, *other])
    other[1]["delay"], other[1]["auc"] = 2.0, 0.95
    lines = streams.tables([*ours, *other])[title]
    assert [(line["measure"], line["ahead"], line["it"]) for line in lines] == [
        ("samples to the alarm", "LODA (River)", "2"),
        ("ROC-AUC", "LODA (River)", "0.95"),
    ]
    other[0]["episodes"] = 2  # more than promised, so its time does not count
    lines = streams.tables([*ours, *other])[title]
    assert [line["measure"] for line in lines] == ["ROC-AUC"]
    ours[0]["episodes"] = 3
    lines = streams.tables([*ours, *other])[title]
    assert lines[0]["measure"] == "false episodes in 1 000"
    assert len(lines) == 3


def test_undo_claims_follow_their_rows():
    row: Row = {"stream": UNDO, "method": "bank, tanh", "with": "", "seed": 0, "kind": UNDO}
    row |= {"same_sums": 1, "difference": 0.0, "undo_s": 1.0, "retrain_s": 4.0, "auc": 0.9}
    row |= {"auc_with_bad": 0.5}
    assert [c.holds for c in streams.claims([row])[-2:]] == [True, True]
    assert (
        streams.tables([row])["A bad device taken back, against retraining"][0][
            "equal to retraining, to the bit"
        ]
        == "1 of 1"
    )
    for change in ({"difference": 1e-9}, {"same_sums": 0}):
        assert streams.claims([{**row, **change}])[-2].holds is False
    assert streams.claims([{**row, "undo_s": 5.0}])[-1].holds is False


@pytest.mark.slow
def test_the_figure_has_a_panel_for_each_stream():
    rows = [row for stream in pump.STREAMS for row in made_up(stream=stream)]
    rows += made_up(stream="late device", part="merged")
    (figure,) = streams.plot(rows).values()
    titles = [axes.get_title(loc="left") for axes in figure.axes if axes.axison]
    assert titles == [*pump.STREAMS, "late device, with peers"]
