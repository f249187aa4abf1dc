"""Random projections and samples for the laws: every hyper-parameter varies."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from edgemerge import Projection
from edgemerge.core.projection import ACTIVATIONS

QUICK = 10  # examples for each law in `make quick`


def examples(most):
    """Draw so many examples, and in `make quick` no more than for any other law."""
    return settings(max_examples=min(most, QUICK) if settings().max_examples == QUICK else most)


@st.composite
def projections(draw, max_inputs=6, max_hidden=8):
    n = draw(st.integers(1, max_inputs))
    low = draw(st.floats(-100.0, 99.0))
    ends = {"low": low, "high": low + draw(st.floats(0.01, 100.0))}
    if draw(st.booleans()):
        ends = {"low": [low] * n, "high": [low + 1.0 + i for i in range(n)]}
    return Projection(
        n_inputs=n,
        n_hidden=draw(st.integers(1, max_hidden)),
        seed=draw(st.integers(0, 2**64 - 1)),
        activation=draw(st.sampled_from(tuple(ACTIVATIONS))),
        width=draw(st.sampled_from((0.0, 0.1, 1.0, 3.7))),
        grid_bits=draw(st.integers(4, 16)),
        names=[f"sensor {i}" for i in range(n)] if draw(st.booleans()) else None,
        **ends,
    )


@st.composite
def samples(draw, projection, min_rows=0, max_rows=40):
    """Rows about the projection's range; a few lie far outside."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = draw(st.integers(min_rows, max_rows))
    spread = draw(st.sampled_from((0.01, 0.5, 3.0)))
    X = projection.grid.to_readings(rng.normal(0.0, spread, (rows, projection.n_inputs)))
    far = projection.grid_bits <= 12  # on a finer grid a few far ones fill the exact range
    if rows and far and draw(st.booleans()):
        X[rng.integers(rows), rng.integers(projection.n_inputs)] *= 10.0 ** draw(st.integers(0, 6))
    return X


@st.composite
def parts(draw, count=2, **sizes):
    """A projection and several sets of samples for it."""
    projection = draw(projections())
    return projection, [draw(samples(projection, **sizes)) for _ in range(count)]


ridges = st.one_of(st.none(), st.floats(1e-3, 10.0))  # smaller: 1e12 of condition, rank 1
forgettings = st.sampled_from((0.5, 0.9, 0.99, 0.999))


def machine(place, rows, rng, inputs=6):
    """Samples of one mode of a machine: two causes behind six inputs."""
    mixing = np.random.default_rng(int(100 * place)).normal(0.0, 0.1, (2, inputs))
    return place + rng.normal(size=(rows, 2)) @ mixing + rng.normal(0.0, 0.01, (rows, inputs))
