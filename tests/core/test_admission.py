"""Contributions that no device can have come by honestly, each caught by the check made for it."""

from dataclasses import replace

import numpy as np
import pytest

from edgemerge.core.errors import MismatchError, RejectedError
from edgemerge.core.ledger import Contribution
from edgemerge.core.projection import ACTIVATIONS, Projection
from edgemerge.core.stats import Stats
from edgemerge.wire.admission import admit

RNG = np.random.default_rng(3)
ROWS = RNG.normal(0.0, 0.3, (400, 4)) @ RNG.normal(0.0, 0.7, (4, 12))


def projection(activation="tanh"):
    return Projection(n_inputs=12, n_hidden=8, seed=7, activation=activation)


def note(stats, revision=2, device="pump-3"):
    return Contribution(device, stats, revision, "idle")


def seen(activation="tanh", rows=ROWS):
    return Stats.of(projection(activation), rows)


def objection(contribution, **options):
    """Return why a contribution is refused, or None if it is admitted."""
    try:
        admit(contribution, **({"projection": contribution.stats.projection} | options))
    except RejectedError as error:
        return str(error)
    return None


def refused(stats, words, **options):
    with pytest.raises(RejectedError, match=rf"^pump-3, idle: .*{words}"):
        admit(note(stats), **({"projection": stats.projection} | options))


def scaled(array, by):
    return np.rint(array * (by * 2.0**24)) * 2.0**-24


def nan_at(array):
    broken = array.copy()
    broken.flat[0] = np.nan
    return broken


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_true_sums_are_admitted_at_once_and_after_an_earlier_revision(activation):
    assert objection(note(seen(activation))) is None
    last = note(seen(activation, ROWS[:200]), revision=1)
    assert objection(note(seen(activation)), last=last) is None


def test_a_device_that_is_not_on_the_list_is_refused():
    refused(seen(), "not on the list of 2", devices={"pump-1", "pump-2"})
    assert objection(note(seen()), devices={"pump-3"}) is None


def test_another_projection_is_refused_naming_both():
    refused(
        seen(), "found Projection.*tanh.*expected Projection.*relu", projection=projection("relu")
    )
    refused(
        seen("cosine"), "set activation='tanh', n_hidden=8 where cosine", projection=projection()
    )


@pytest.mark.parametrize(
    "change",
    [
        {"V": seen().V[:, :5]},
        {"U": seen().U[:3, :3]},
        {"U": seen().U.astype(np.float32)},
        {"S": seen().S[None]},
        {"C": [0.0] * 12},
    ],
)
def test_a_wrong_shape_or_type_is_refused(change):
    refused(replace(seen(), **change), "found arrays")


def test_another_task_is_admitted_when_it_is_expected():
    labels = Stats.of(projection(), ROWS, ROWS[:, :2] > 0.0)
    refused(labels, "found arrays")
    assert objection(note(labels), n_outputs=2) is None


@pytest.mark.parametrize("name", ["U", "V", "C", "S"])
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (nan_at, "NaN or infinity in"),
        (lambda a: a + np.inf, "NaN or infinity in"),
        (lambda a: a + 1e-9, "off the grid"),
        (lambda a: a + 2.0**29, "above"),
    ],
)
def test_numbers_that_no_sum_can_be_are_refused(name, spoil, words):
    stats = seen()
    refused(replace(stats, **{name: spoil(getattr(stats, name))}), words)


@pytest.mark.parametrize(("count", "words"), [(np.nan, "NaN"), (-1.0, "count -1"), (0.3, "grid")])
def test_a_count_that_is_none_is_refused(count, words):
    refused(replace(seen(), count=count), words)


def test_a_late_revision_is_refused_and_a_repeated_one_is_not():
    refused(seen(), "late", last=note(seen(), revision=3))
    refused(seen(), "late", last=note(seen(rows=ROWS[:9])))
    assert objection(note(seen()), last=note(seen())) is None


def test_the_last_one_must_be_of_the_same_device():
    with pytest.raises(MismatchError, match="expected one with the key"):
        admit(note(seen()), projection=projection(), last=note(seen(), 1, "pump-4"))


def test_without_forgetting_sums_and_counts_cannot_fall():
    fewer = seen(rows=ROWS[:200])
    refused(fewer, "200 samples after 400", last=note(seen(), revision=1))
    swapped = replace(seen(rows=ROWS[:200]), count=400.0)
    refused(swapped, "sums that fell", last=note(seen(rows=ROWS[200:]), revision=1))
    assert objection(note(fewer), last=note(seen(), revision=1), forgetting=0.99) is None


def test_a_u_that_is_not_symmetric_is_refused():
    refused(replace(seen(), U=seen().U + np.tri(8, k=-1)), "not symmetric")


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("count", [1, 300])
def test_equal_samples_with_nearly_no_weights_are_admitted(activation, count):
    for seed in range(9):
        shared = Projection(
            n_inputs=2, n_hidden=8, seed=seed, activation=activation, grid_bits=8, width=0.001
        )
        same = Contribution("pump-3", Stats.of(shared, [[0.7, -0.2]] * count), 2, "idle")
        admit(same, projection=shared)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_negative_or_indefinite_u_is_refused(activation):
    stats = seen(activation)
    refused(replace(stats, U=-stats.U), "negative eigenvalue")
    swapped = stats.U.copy()
    swapped[0, 1] = swapped[1, 0] = 2.0 * swapped.max()
    refused(replace(stats, U=swapped), "negative eigenvalue")


@pytest.mark.parametrize("activation", ["sigmoid", "tanh", "cosine"])
def test_hidden_values_larger_than_the_activation_are_refused(activation):
    stats = seen(activation)
    refused(replace(stats, U=8.0 * stats.U, V=2.0 * stats.V), "hidden values too large")
    refused(replace(stats, count=20.0), "hidden values too large")


def test_samples_further_out_than_the_grid_are_refused():
    refused(replace(seen(), S=seen().S * 2.0**17), "S too large")
    refused(replace(seen("relu"), count=2.0**-20), "hidden values too large")


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_v_or_c_too_large_for_s_is_refused(activation):
    stats = seen(activation)
    refused(replace(stats, V=64.0 * stats.V), "V too large")
    refused(replace(stats, C=stats.C + 400.0), "C too large")
    refused(replace(stats, S=-stats.S), "negative S")


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_v_that_explains_more_than_there_is_is_refused(activation):
    stats = seen(activation)
    refused(replace(stats, V=scaled(stats.V, 1.15)), "explains more than there is")
    refused(replace(stats, S=scaled(stats.S, 0.75)), "explains more than there is")


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_flipped_sign_is_refused(activation):
    # cosine has either sign around the middle of the range: see its relation
    stats = seen(activation, 0.05 * ROWS + 0.3 if activation == "cosine" else ROWS)
    refused(replace(stats, V=-stats.V), "no samples have")
    refused(replace(stats, V=-stats.V, C=-stats.C), "no samples have")


@pytest.mark.parametrize("count", [200.0, 390.0, 410.0, 800.0])
def test_with_identity_any_lie_about_the_count_is_refused(count):
    refused(replace(seen("identity"), count=count), "no samples have|too large")


def test_with_identity_a_scaled_v_is_refused():
    stats = seen("identity")
    refused(replace(stats, V=scaled(stats.V, 0.9)), "no samples have")


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_garbage_is_refused(activation):
    rng, stats = np.random.default_rng(0), seen(activation)
    sums = (np.rint(rng.normal(0.0, 9.0, np.shape(a))) for a in stats.arrays)
    U, V, C, S = sums
    refused(replace(stats, U=U @ U.T, V=V, C=C, S=S**2), "found")
