"""`edgemerge simulate`: prints what went through the tree, and fails if a sum is not exact."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from edgemerge.scale.simulated_devices import SimulatedFleet
from tests.cli.calls import call, clean_environment, failure, program

ONE_RUN = pytest.mark.xdist_group("simulate")
SMALL = ("--n-inputs", 4, "--n-hidden", 3, "--workers", 1)


@pytest.fixture(scope="module")
def printed():
    """A process of its own: the memory that it prints is then not that of all tests before it."""
    return program("simulate", "--devices", 2000, "--fan-out", 100, *SMALL)


@ONE_RUN
@pytest.mark.slow
def test_two_thousand_devices_add_up_exactly(printed):
    assert printed.returncode == 0, printed.stderr
    start = r"2,000 devices in 20 sites and 4 regions; 1 worker, at most [\d.]+ kB for sums\.\n"
    assert re.fullmatch(start, printed.stderr)  # no bar where nobody watches
    assert printed.stdout.count("\nequal: ") == 6
    assert "NOT EQUAL" not in printed.stdout


@ONE_RUN
@pytest.mark.slow
def test_people_see_sizes_speed_memory_bytes_and_the_time_of_a_change(printed):
    for words in (
        r"Tree +2,000 devices, 20 sites, 4 regions, one top",
        r"Sizes +4 inputs, 3 hidden, grid of 2\^-12, 864 bytes a message",
        r"Contributions +[\d,]+ a second with 1 worker, in",
        r"Sums +[\d,]+ a second by one thread: [\d.]+ GB/s, \d+ % of memory's [\d.]+ GB/s",
        r"Memory +\d{2,3} MB at most while gathering",
        r"A device's day +exact [\d.]+ kB, float32 [\d.]+ kB, root16 [\d.]+ kB",
        r"A change +reaches all in [\d.]+ s: [\d.]+ s of work and 6 links of 0.05 s",
        r"TIER +PLACES +MESSAGES +KEPT +LATE OR REPEATED +REFUSED +UP +DOWN",
        r"device to site +19\d\d +\d+ +\d+ +\d+ +\d+ +[\d.]+ MB +[\d.]+ MB",
        r"site to region +20 ",
        r"region to top +4 ",
        r"top sends to 4 regions +[\d.]+",
    ):
        assert re.search(words, printed.stdout), words


@pytest.mark.slow
def test_machines_get_the_same_as_json():
    shares = ("--drop-out", 0.5, "--repeat", 0, "--revise", 0.2, "--late", 0.1)
    words = ("--devices", 300, "--fan-out", 30, "--regions", 2, "--grid-bits", 8, "--samples", 2)
    times = ("--interval-s", 7200, "--latency-s", 1, "--check-every", 7, "--seed", 9)
    done = call("simulate", *words, *shares, *times, *SMALL, "--json")
    found = json.loads(done.stdout)
    sizes = {"devices": 300, "fan_out": 30, "sites": 10, "regions": 2, "grid_bits": 8, "seed": 9}
    more = {"n_inputs": 4, "n_hidden": 3, "samples": 2, "check_every": 7, "drop_out": 0.5}
    rest = {"repeat": 0.0, "revise": 0.2, "late": 0.1}
    assert found["sizes"].items() >= (sizes | more | rest).items()
    assert found["exact"] is True
    assert found["device_day"]["shares"] == 12.0
    assert found["change"]["latency_s"] == 1.0
    assert [tier["places"] for tier in found["tiers"]][1:] == [10, 2]
    assert found["tiers"][0]["up"]["refused"] > 30


@pytest.mark.long
@pytest.mark.slow
def test_a_sum_that_is_not_exact_is_told_and_fails(monkeypatch):
    right = SimulatedFleet.flat
    monkeypatch.setattr(
        SimulatedFleet,
        "flat",
        lambda *given: replace(right(*given), count=right(*given).count + 1.0),
    )
    done = call("simulate", "--devices", 60, "--fan-out", 10, *SMALL)
    assert done.exit_code == 1
    assert "NOT EQUAL: the total is the flat sum" in done.stdout
    assert "\nNot exact: a sum is wrong." in done.stderr


def test_too_many_samples_are_refused_in_one_line():
    assert "fewer grid_bits" in failure(call("simulate", "--devices", 10**8, *SMALL))


@pytest.mark.long
@pytest.mark.slow
def test_nobody_heard_is_no_error():
    done = call("simulate", "--devices", 20, "--drop-out", 1, "--late", 0, "--repeat", 0,
                "--revise", 0, *SMALL)  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "A change" not in done.stdout


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_ends_it_with_what_is_known_so_far(workers):
    words = ("--devices", 50_000, "--fan-out", 20, "--workers", workers, "--json")
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "edgemerge", "simulate", *map(str, words)],
        env=clean_environment(TERM="xterm"),
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        start_new_session=True,
    ) as child:
        os.close(theirs)
        try:
            shown = b""
            while not re.search(rb"Adding up.* [1-9]%", shown):  # a bar: stderr is a terminal
                shown += os.read(ours, 1024)
            os.killpg(child.pid, signal.SIGINT)  # a terminal tells the workers too
            found = json.loads(child.communicate(timeout=60)[0])
            assert b"Stopped: these are the results so far." in rest_of(ours)
        finally:
            child.kill()
            os.close(ours)
    assert child.returncode == 130
    assert (found["stopped"], found["exact"]) == (True, True)
    assert 0 < found["tiers"][0]["places"] < 50_000


def rest_of(terminal: int) -> bytes:
    found = b""
    while True:
        try:
            part = os.read(terminal, 4096)
        except OSError:  # nobody writes to it any more
            return found
        found += part
