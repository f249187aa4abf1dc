"""The arithmetic of cost is that of the codec."""

import pytest

from edgemerge.core.errors import CapacityError
from edgemerge.core.stats import must_fit
from edgemerge.scale.report import DeviceTraffic, max_samples, message_bytes
from edgemerge.scale.simulated_devices import SimulatedFleet
from edgemerge.scale.simulation_plan import Plan
from edgemerge.scale.sum_tree import device_message

HEADER = 1600  # bytes: words, names and shapes


@pytest.mark.parametrize(("n", "N"), [(8, 4), (64, 32), (561, 128)])
def test_a_message_is_its_numbers_and_a_header(n, N):
    triangle = N * (N + 1) // 2
    exact = 8 * (triangle + N * n + 2 * n)
    assert exact < message_bytes(n, N) < exact + HEADER
    assert exact / 2 < message_bytes(n, N, "float32") < exact / 2 + HEADER
    halves = 2 * (triangle + N * n) + 8 * n + N + n
    assert halves < message_bytes(n, N, "root16") < halves + HEADER


def test_a_message_is_as_long_as_those_of_the_simulation():
    plan = Plan(devices=10)
    assert len(device_message(SimulatedFleet(plan), 3, 1)) == message_bytes(
        plan.n_inputs, plan.n_hidden
    )


def test_a_day_has_what_goes_up_and_what_comes_down():
    device = DeviceTraffic(n_inputs=8, n_hidden=4, samples=1000.0, shares=24.0)
    assert device.sums("root16") == 48 * message_bytes(8, 4, "root16")
    assert device.averaging(50.0) == 2 * 50 * 4 * (8 * 4 + 4 + 4 * 8 + 8)
    assert device.raw() == 32_000.0


def test_at_the_break_even_raw_samples_are_as_many_bytes():
    device = DeviceTraffic(n_inputs=8, n_hidden=4, samples=0.0, shares=1.0)
    samples = device.break_even("float32")
    there = DeviceTraffic(n_inputs=8, n_hidden=4, samples=samples, shares=1.0)
    assert there.raw() == pytest.approx(there.sums("float32"))


@pytest.mark.parametrize("grid_bits", [8, 12])
def test_one_sample_more_than_the_most_does_not_fit(grid_bits):
    quantum = 2.0 ** (-2 * grid_bits)
    must_fit(max_samples(grid_bits) - 1.0, quantum)
    with pytest.raises(CapacityError):
        must_fit(max_samples(grid_bits), quantum)
