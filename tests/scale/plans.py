"""Random plans for the laws: every number of a simulation varies."""

from hypothesis import strategies as st

from edgemerge.scale import Plan

CALM = {"drop_out": 0.0, "repeat": 0.0, "revise": 0.0, "late": 0.0}


@st.composite
def plans(draw, max_devices=40):
    devices, fan_out = draw(st.integers(1, max_devices)), draw(st.integers(1, 12))
    shares = draw(st.lists(st.floats(0.0, 0.25), min_size=4, max_size=4))
    sites = -(-devices // fan_out)
    return Plan(
        devices=devices,
        fan_out=fan_out,
        regions=draw(st.none() | st.integers(1, sites)),
        n_inputs=draw(st.integers(1, 4)),
        n_hidden=draw(st.integers(1, 4)),
        grid_bits=draw(st.integers(4, 14)),
        samples=draw(st.integers(1, 3)),
        seed=draw(st.integers(0, 2**64 - 1)),
        check_every=draw(st.integers(1, 3)),
        **dict(zip(CALM, shares, strict=True)),
    )
