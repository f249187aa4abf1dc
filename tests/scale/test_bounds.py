"""Memory is bounded: what is alive does not grow with the number of devices."""

import os

import pytest

from edgemerge import Stats
from edgemerge.core.errors import SettingError
from edgemerge.scale import Plan, machine, record, simulate
from edgemerge.scale.machine import best_time, memory_bandwidth, peak_bytes, sums_per_second
from edgemerge.scale.simulated_devices import SimulatedFleet, cached_fleet
from edgemerge.workers import WorkerError, WorkerPool


@pytest.fixture
def alive(monkeypatch):
    """Counts the stats that are alive, and the most there were."""
    counts = {"now": 0, "most": 0}
    begin = Stats.__post_init__

    def born(stats):
        begin(stats)
        counts["now"] += 1
        counts["most"] = max(counts["most"], counts["now"])

    def gone(_):
        counts["now"] -= 1

    monkeypatch.setattr(Stats, "__post_init__", born)
    monkeypatch.setattr(Stats, "__del__", gone, raising=False)
    return counts


def most_alive(alive, plan):
    cached_fleet(plan)
    before = alive["most"] = alive["now"]
    simulate(plan, measure_s=None)
    return alive["most"] - before


@pytest.mark.slow
def test_ten_times_the_devices_are_not_ten_times_the_stats(alive):
    sizes = {"fan_out": 12, "n_inputs": 2, "n_hidden": 2}
    small = most_alive(alive, Plan(devices=100, regions=3, **sizes))
    large = most_alive(alive, Plan(devices=1000, regions=9, **sizes))
    # Sites of two regions, and regions: the square root of all sites.
    places = 2 * 10 + 9 - (2 * 3 + 3)
    assert small >= 12  # a site does know the newest of each of its devices
    assert large <= small + places


@pytest.mark.slow
def test_the_formula_of_memory_bounds_what_is_alive(alive):
    plan = Plan(devices=600, fan_out=30, n_inputs=2, n_hidden=2)
    assert (most_alive(alive, plan) + plan.pools.count) * plan.stats_bytes <= plan.memory(1)


def test_the_formula_grows_like_the_square_root_of_the_devices_at_most():
    one, hundred = (Plan(devices=n, grid_bits=10).memory(2) for n in (10**6, 10**8))
    places, shelves = 3 * (317 - 32), 2 * (Plan(devices=10**8, grid_bits=10).pools.count - 512)
    assert hundred - one <= 2 * (places + shelves) * Plan().stats_bytes


@pytest.mark.long
@pytest.mark.slow
def test_ten_times_the_devices_take_no_more_memory():
    def peak(devices):
        plan = Plan(devices=devices, fan_out=60, n_inputs=16, n_hidden=8)
        return record(simulate(plan, workers=2, measure_s=None))["memory"]["peak_bytes"]

    few = max(peak(300) for _ in range(3))  # a worker that starts late finds no site left to do
    assert peak(3000) <= 1.1 * few


def test_the_peak_of_a_process_is_at_least_what_it_holds():
    held = bytearray(2**24)
    process, peak = peak_bytes()
    assert peak > len(held)
    assert process > 0


def test_the_best_of_several_is_taken():
    calls = []
    assert best_time(lambda: calls.append(0), 0.0) > 0.0
    assert len(calls) == 4  # one to warm up


@pytest.mark.slow
def test_speed_is_counted_in_sums_and_in_bytes_read_and_written(monkeypatch):
    monkeypatch.setattr(
        machine, "best_time", lambda call, _seconds: 0.5 if call() is not None else 0.0
    )
    assert memory_bandwidth(0.0) == 2 * 3 * 8 * machine.ARRAY_LENGTH
    large, small = (
        SimulatedFleet(Plan(devices=9, n_inputs=n, n_hidden=N)) for n, N in ((200, 99), (1, 1))
    )
    assert sums_per_second(large, 0.0) == 2 * (machine.SUM_BYTES // large.plan.stats_bytes)
    assert sums_per_second(small, 0.0) == 2 * machine.MAX_SUMS


def counted(jobs, taken):
    for job in jobs:
        taken.append(job)
        yield job


@pytest.mark.slow
def test_workers_answer_in_order_and_few_jobs_are_handed_out_ahead():
    taken = []
    with WorkerPool(2) as workers:
        answers = workers.in_order(abs, counted(range(0, -20, -1), taken))
        assert next(answers) == 0
        assert len(taken) == 4  # two for each
        assert list(answers) == list(range(1, 20))


@pytest.mark.slow
def test_a_worker_that_dies_is_told():
    with WorkerPool(2) as workers, pytest.raises(WorkerError, match="use fewer --workers"):
        list(workers.in_order(os._exit, [1]))


def test_no_worker_at_all_is_refused():
    with pytest.raises(SettingError, match="found 0 workers, expected at least 1"):
        WorkerPool(0)
