"""Laws of the detector: what it learns, shares and is told; row by row or at once."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from edgemerge import Detector, Projection, Stats
from edgemerge.core.detector import READY_SAMPLES_PER_HIDDEN, Model
from edgemerge.core.errors import CapacityError, MismatchError, SampleError, SettingError
from edgemerge.core.readout import ridge_for
from tests.cases import forgettings, parts, projections, ridges

CLOSE = 1e-4  # one sample 256 half-ranges out among usual ones: condition 1e10 of 1e16
SCORE = 1e-2  # where the fit is perfect, the usual loss is a difference of rounding errors


def taught(projection, X, **settings):
    detector = Detector(projection, **settings)
    detector.learn(X)
    return detector


def m11(projection, loss, leverage):
    """Return the score: both halves of M11, of which the loss has a quarter with cosine."""
    share = 0.25 if projection.activation == "cosine" else 0.5
    return share * loss + (1.0 - share) * leverage


@given(parts(count=2, min_rows=1), ridges)
def test_adopting_a_peer_is_like_having_seen_its_data(case, ridge):
    projection, (mine, theirs) = case
    alone = taught(projection, np.vstack([mine, theirs]), ridge=ridge)
    merged = taught(projection, mine, ridge=ridge)
    merged.adopt(Stats.of(projection, theirs))
    merged.adopt(Stats.of(projection, theirs))  # twice is once
    assert merged.own + merged.others == alone.own
    equal_ridge = taught(projection, np.vstack([mine, theirs]), ridge=merged.readout.ridge)
    assert np.array_equal(merged.readout.B, equal_ridge.readout.B)
    assert merged.loss(theirs) == pytest.approx(equal_ridge.loss(theirs), rel=CLOSE, abs=CLOSE)
    if len(mine) < READY_SAMPLES_PER_HIDDEN * projection.n_hidden:
        assert np.array_equal(merged.readout.B, alone.readout.B)
        assert merged.score(theirs) == pytest.approx(alone.score(theirs), rel=SCORE, abs=SCORE)


@given(parts(count=3, min_rows=12), ridges)
def test_own_samples_alone_set_the_scale_of_a_merged_readout(case, ridge):
    projection, (mine, theirs, probe) = case
    merged, own = taught(projection, mine, ridge=ridge), Stats.of(projection, mine)
    merged.adopt(Stats.of(projection, theirs))
    rho = ridge_for(projection, np.trace(own.U)) if ridge is None else ridge
    readout = (own + Stats.of(projection, theirs)).solve(rho)
    l = np.trace(own.U @ readout.P) / own.count  # noqa: E741  (the letter of M11)
    assume(1e-3 < l < 1.0 - 1e-3)  # else it is about rounding
    assume(own.mean_loss(readout) * own.count > 1e-8 * own.S.sum())
    usual = max(own.mean_loss(readout) / (1.0 - l) ** 2, projection.quantum / 12.0)
    H = projection.hidden(probe)
    leverage = np.einsum("ij,jk,ik->i", H, readout.P, H)
    slow = m11(projection, merged.loss(probe) / usual, leverage * (1.0 - l) / l)
    assert merged.readout.ridge == readout.ridge
    assert merged.score(probe) == pytest.approx(slow, rel=SCORE, abs=SCORE)
    by_input = (projection.grid.rows(probe) - H @ readout.B) ** 2
    usual_by_input = np.maximum(own.mean_losses(readout) / (1.0 - l) ** 2, projection.quantum / 12)
    residuals = merged.residuals(projection.grid.rows(probe), H)
    assert residuals**2 == pytest.approx(by_input / usual_by_input, rel=CLOSE)


@given(
    parts(count=2, min_rows=1, max_rows=90),
    ridges,
    st.sampled_from((None, 3.0)),
    forgettings | st.just(1.0),
)
def test_the_own_scale_is_followed_as_if_solved_afresh(case, ridge, reject_above, forgetting):
    projection, (mine, theirs) = case
    assume(forgetting == 1.0 or projection.grid_bits >= 10)
    settings = {"ridge": ridge, "reject_above": reject_above, "forgetting": forgetting}
    slow, fast = Detector(projection, **settings), Detector(projection, **settings)
    for each in (slow, fast):
        each.adopt(Stats.of(projection, theirs))
    one_by_one = []
    for x in mine:
        again = Detector.resume(slow.own, slow.others, **settings)
        one_by_one.append(slow.learn_and_score(x))
        if forgetting == 1.0:
            assert one_by_one[-1] == pytest.approx(again.score(x), rel=SCORE, abs=SCORE)
    assert fast.learn_and_score(mine) == pytest.approx(one_by_one, rel=SCORE, abs=SCORE)
    if forgetting == 1.0:
        assert (fast.own, fast.rejected) == (slow.own, slow.rejected)


@pytest.mark.slow
@given(parts(count=1, min_rows=1, max_rows=90), st.data())
def test_learning_row_by_row_equals_learning_at_once(case, data):
    projection, (X,) = case
    at_once, one_by_one, mixed = (Detector(projection) for _ in range(3))
    at_once.learn(X)
    for x in X:
        one_by_one.learn(x)
        if data.draw(st.booleans()):
            one_by_one.score(x)
    mixed.learn_and_score(X)
    assert one_by_one.own == at_once.own == mixed.own == Stats.of(projection, X)
    assert one_by_one.score(X) == pytest.approx(at_once.score(X), rel=SCORE, abs=SCORE)
    assert mixed.score(X) == pytest.approx(at_once.score(X), rel=SCORE, abs=SCORE)


@given(parts(count=1, min_rows=1, max_rows=90), ridges, st.sampled_from((None, 1.5, 3.0)))
def test_scores_in_blocks_are_those_of_one_sample_after_the_other(case, ridge, reject_above):
    projection, (X,) = case
    settings = {"ridge": ridge, "reject_above": reject_above}
    slow, fast = Detector(projection, **settings), Detector(projection, **settings)
    one_by_one = [slow.learn_and_score(x) for x in X]
    assert fast.learn_and_score(X) == pytest.approx(one_by_one, rel=SCORE, abs=SCORE)
    assert fast.own == slow.own
    assert fast.rejected == slow.rejected == len(X) - slow.own.count


@pytest.mark.slow
@given(parts(count=1, min_rows=1, max_rows=90), forgettings)
def test_with_forgetting_blocks_and_single_samples_agree_closely(case, forgetting):
    projection, (X,) = case
    assume(projection.grid_bits >= 10)  # on a coarse grid one quantum moves a perfect fit
    slow, fast = (Detector(projection, forgetting=forgetting) for _ in range(2))
    one_by_one = [slow.learn_and_score(x) for x in X]
    assert fast.learn_and_score(X) == pytest.approx(one_by_one, rel=SCORE, abs=SCORE)
    for a, b in zip(fast.own.arrays, slow.own.arrays, strict=True):
        assert np.abs(a - b).max() <= 4 * projection.quantum  # each settles once per half-life


@given(parts(count=1, min_rows=1, max_rows=60), forgettings)
def test_forgetting_is_the_fading_sum(case, forgetting):
    projection, (X,) = case
    faded = Stats.empty(projection)
    for x in X:
        faded = faded * forgetting**2 + Stats.of(projection, x)
    found = taught(projection, X, forgetting=forgetting).own
    room = projection.quantum / (1.0 - forgetting**2) + projection.quantum  # roundings that fade
    assert abs(found.count - faded.count) <= room
    for a, b in zip(found.arrays, faded.arrays, strict=True):
        assert np.abs(a - b).max() <= room + 1e-12 * np.abs(b).max()


@given(parts(count=3, min_rows=1))
def test_a_device_never_shares_what_it_was_told(case):
    projection, (mine, theirs, more) = case
    detector = taught(projection, mine)
    detector.adopt(Stats.of(projection, theirs))
    detector.learn(more)
    (note,) = detector.share("pump-3", revision=4, pattern="idle", incarnation=2)
    assert note.stats == Stats.of(projection, np.vstack([mine, more]))
    assert (note.device, note.revision, note.pattern, note.incarnation) == ("pump-3", 4, "idle", 2)
    assert detector.others == Stats.of(projection, theirs)


@given(parts(count=3, min_rows=1), st.integers(1, 5), ridges)
def test_the_number_of_merges_does_not_change_the_ridge(case, merges, ridge):
    projection, (mine, theirs, probe) = case
    often = taught(projection, mine, ridge=ridge)
    for _ in range(merges):
        often.adopt(Stats.of(projection, theirs))
        often.score(probe)
    once = taught(projection, mine, ridge=ridge)
    once.adopt(Stats.of(projection, theirs))
    assert often.readout.ridge == once.readout.ridge
    assert np.array_equal(often.readout.P, once.readout.P)


@given(parts(count=2, min_rows=1), ridges)
def test_loss_is_the_mean_squared_error_of_the_readout(case, ridge):
    projection, (X, probe) = case
    detector = taught(projection, X, ridge=ridge)
    rebuilt = projection.hidden(probe) @ detector.readout.B
    slow = ((projection.grid.rows(probe) - rebuilt) ** 2).mean(1)
    assert detector.loss(probe) == pytest.approx(slow, rel=CLOSE, abs=CLOSE)
    assert detector.loss(probe[0]) == pytest.approx(slow[0], rel=CLOSE, abs=CLOSE)


@given(parts(count=2, min_rows=2), ridges)
def test_score_is_m11_written_out(case, ridge):
    projection, (X, probe) = case
    detector, stats = taught(projection, X, ridge=ridge), Stats.of(projection, X)
    readout, H, c = stats.solve(ridge), projection.hidden(probe), stats.count
    f = np.trace(stats.U @ readout.P)
    spare = 1.0 - f / c
    usual = max(stats.mean_loss(readout) / spare**2, projection.quantum / 12.0)
    leverage = np.einsum("ij,jk,ik->i", H, readout.P, H)
    assume(f > 1e-3 and spare > 1e-3)  # else it is about rounding
    assume(stats.mean_loss(readout) * c > 1e-8 * stats.S.sum())
    slow = m11(projection, detector.loss(probe) / usual, (c / f) * spare * leverage)
    assert detector.score(probe) == pytest.approx(slow, rel=SCORE, abs=SCORE)


@given(parts(count=2, min_rows=1))
def test_looking_changes_nothing(case):
    projection, (X, probe) = case
    watched, alone = taught(projection, X), taught(projection, X)
    watched.score(probe), watched.loss(probe[0]), watched.explain(probe[0]), watched.readout.B
    assert watched.own == alone.own
    assert watched.score(probe) == pytest.approx(alone.score(probe), rel=SCORE, abs=SCORE)


@given(parts(count=1, min_rows=1), st.sampled_from((np.nan, np.inf)), st.data())
def test_a_bad_sample_leaves_the_state_as_it_was(case, bad, data):
    projection, (X,) = case
    detector = taught(projection, X)
    before = detector.own
    row = X[0].copy()
    row[data.draw(st.integers(0, projection.n_inputs - 1))] = bad
    for call in (detector.learn, detector.score, detector.learn_and_score, detector.explain):
        with pytest.raises(SampleError, match="expected a finite number"):
            call(row)
    with pytest.raises(SampleError, match="of row 1"):
        detector.learn(np.vstack([X[0], row]))
    with pytest.raises(SampleError, match="give every input of the projection"):
        detector.learn(np.append(row, 1.0))
    assert detector.own == before


@given(projections(), projections())
def test_what_a_stranger_tells_is_refused_and_changes_nothing(mine, other):
    detector = taught(mine, np.zeros((3, mine.n_inputs)))
    if other != mine:
        with pytest.raises(MismatchError, match="every device must build the same Projection"):
            detector.adopt(Stats.empty(other))
    assert detector.others == Stats.empty(mine)


@pytest.mark.parametrize("rows", [1, 300])
def test_a_full_detector_says_so_in_the_call_that_does_not_fit(rows):
    projection = Projection(n_inputs=2, n_hidden=3, grid_bits=16)
    big = np.full((rows, 2), 250.0)
    full = Detector.resume(Stats.of(projection, np.ones((1, 2))) * (2.0**21 - 1000.0))
    before = full.own
    with pytest.raises(CapacityError, match="share and start again"):
        full.learn(np.repeat(big, 8, axis=0) if rows > 1 else big[0])
    assert full.own == before
    full.learn([0.5, 0.5])
    assert full.count == 2.0**21 - 999.0


def test_settings_that_cannot_work_are_refused():
    shared = Projection(n_inputs=2, n_hidden=3)
    for setting, words in (
        ({"forgetting": 0.4}, "expected 0.5 to 1"),
        ({"forgetting": 1.1}, "expected 0.5 to 1"),
        ({"reject_above": 1.0}, "expected above 1, or None"),
        ({"ridge": -1.0}, "expected 0 or more, or None"),
    ):
        with pytest.raises(SettingError, match=words):
            Detector(shared, **setting)


def test_nothing_is_unusual_to_an_empty_detector():
    empty = Detector(Projection(n_inputs=2, n_hidden=3))
    assert empty.score([0.0, 0.0]) == 1.0
    assert empty.score(np.zeros((4, 2))).tolist() == [1.0] * 4
    assert not empty.ready
    assert empty.learn_and_score([[0.1, 0.2]]).tolist() == [1.0]


def test_samples_that_score_high_are_rejected_once_ready():
    rng = np.random.default_rng(0)
    pump = Detector(Projection(n_inputs=4, n_hidden=8), reject_above=4.0)
    pump.learn(rng.normal(0.0, 0.1, (200, 4)))
    known = pump.own
    pump.learn(rng.normal(0.8, 0.1, (50, 4)))
    assert pump.own == known
    assert pump.rejected >= 50


def test_explain_names_the_input_that_is_odd():
    rng = np.random.default_rng(0)
    pump = Detector(Projection(n_inputs=12, n_hidden=4))
    mixing = rng.normal(0.0, 0.2, (3, 12))  # three causes behind twelve inputs
    noise = np.linspace(0.01, 0.1, 12)
    steady, fresh = rng.normal(size=(2, 500, 3)) @ mixing + rng.normal(size=(2, 500, 12)) * noise
    pump.learn(steady)
    rows = pump.projection.to_rows(fresh)
    usual = (pump.residuals(rows, pump.projection.project(rows)) ** 2).mean(0)
    assert usual == pytest.approx(np.ones(12), abs=0.2)
    odd = steady[0].copy()
    odd[2] += 0.7
    assert pump.explain(odd).argmax() == 2


def test_what_others_told_keeps_its_weight_while_own_samples_fade():
    rng = np.random.default_rng(0)
    mine, theirs = rng.normal(-0.4, 0.05, (4000, 6)), rng.normal(0.4, 0.05, (600, 6))
    pump = Detector(Projection(n_inputs=6, n_hidden=12), forgetting=0.998)
    pump.learn(mine[:1000])
    pump.adopt(Stats.of(pump.projection, theirs[:300]))
    means = []
    for x in mine[1000:1400]:
        pump.learn_and_score(x)
        means.append(pump.score(theirs[300:]).mean())
    assert max(means) < 1.2 * min(means)
    assert min(means) > 0.8


@given(parts(count=3, min_rows=12))
def test_what_was_saved_on_the_scale_of_all_samples_is_solved_afresh(case):
    projection, (mine, theirs, probe) = case
    fresh = taught(projection, mine)
    fresh.adopt(Stats.of(projection, theirs))
    with pytest.MonkeyPatch.context() as patch:  # as it was before own samples set the scale
        patch.setattr(Model, "sets_scale", lambda _, count: 0.0 * count > 0.0)
        former = Detector.resume(fresh.own, fresh.others)
        former.score(probe)
        progress = former.progress()
    again = Detector.resume(fresh.own, fresh.others)
    again.restore(progress)
    assert np.array_equal(again.score(probe), fresh.score(probe))


@given(parts(count=3, min_rows=12), st.sampled_from((1.0, 0.99)))
def test_a_merged_detector_goes_on_bit_for_bit_from_what_was_saved(case, forgetting):
    projection, (mine, theirs, later) = case
    detector = taught(projection, mine[:-3], forgetting=forgetting)
    detector.adopt(Stats.of(projection, theirs))
    for x in mine[-3:]:
        detector.learn_and_score(x)
    again = Detector.resume(detector.own, detector.others, forgetting=forgetting)
    again.restore(detector.progress())
    for x in later:
        assert again.learn_and_score(x) == detector.learn_and_score(x)
