"""The demo's claim: after one exchange peers' normal is normal, and faults still are not."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from edgemerge.core.errors import SettingError
from edgemerge.demo.conducting import ours, run
from edgemerge.demo.live import View
from edgemerge.demo.material import FAULTS, PHONES, PUMPS, har, pumps
from edgemerge.demo.outcome import THRESHOLD, Outcome, roc_auc
from edgemerge.demo.simulation import BAND_HZ, BEARING, LOOSE, SOUND, Pattern, spectra
from edgemerge.demo.table import summary, table

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("demo")]  # one run serves many tests

RUNNING = PUMPS["pump-3"]
DATA = os.environ.get("EDGEMERGE_DATA")


@pytest.fixture(scope="module")
def told() -> list[str]:
    return []


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("demo") / "fleet"


@pytest.fixture(scope="module")
def outcome(folder, told) -> Outcome:
    """One run with a real server and five real agents."""
    return run(pumps(seed=7), 7, folder, say=told.append)


def printed(outcome: Outcome, width: int) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(table(outcome))
    return capture.get()


def band(hertz: float) -> int:
    return int(hertz / BAND_HZ)


def test_alone_every_pump_takes_its_peers_normal_for_a_fault(outcome):
    for row in outcome.told(merged=False):
        assert row.scores["own"].mean < 1.3
        assert row.scores["peers"].mean > THRESHOLD
        assert row.scores["peers"].alarms > 0.5


def test_after_merging_peers_normal_is_as_usual_on_every_pump(outcome):
    for row in outcome.told(merged=True):
        assert 0.5 < row.scores["peers"].mean < 1.5
        assert row.scores["peers"].high < THRESHOLD
        assert row.scores["own"].high < THRESHOLD


def test_after_merging_faults_still_raise_an_alarm_on_every_pump(outcome):
    for row in outcome.told(merged=True):
        for fault in FAULTS:
            assert row.scores[fault.name].low > THRESHOLD


def test_merging_tells_faults_from_any_normal_better_on_every_pump(outcome):
    for before, after in zip(outcome.told(merged=False), outcome.told(merged=True), strict=True):
        assert before.auc < 0.95
        assert after.auc > 0.99


def test_the_sums_are_many_times_smaller_than_the_samples(outcome):
    assert outcome.bytes_sums * 5 < outcome.bytes_samples


def test_the_same_seed_gives_the_same_samples_and_another_seed_others():
    one, again, other = pumps(3), pumps(3), pumps(4)
    assert all(np.array_equal(one.learn[name], again.learn[name]) for name in PUMPS)
    assert not np.array_equal(one.learn["pump-1"], other.learn["pump-1"])
    assert one.projection == again.projection != other.projection


@pytest.mark.parametrize("width", [80, 100])
def test_the_table_fits_the_terminal_with_nothing_cut_off(outcome, width):
    lines = printed(outcome, width).splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    assert sum("pump-" in line and line.count("→") == 5 for line in lines) == len(PUMPS)


def test_the_summary_says_what_changed_and_what_travelled(outcome):
    said = summary(outcome)
    assert "80 % of its peers' normal samples" in said
    assert f"{outcome.bytes_sums / 1000:.0f} kB of sums" in said
    assert f"{outcome.bytes_samples / 1000:.0f} kB of samples" in said


def test_the_figure_is_a_png_of_some_size(outcome, tmp_path):
    figure = pytest.importorskip("edgemerge.demo.figure")
    figure.plot(outcome, tmp_path / "demo.png")
    content = (tmp_path / "demo.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) > 50_000


def test_a_faster_shaft_moves_the_peaks():
    rng = np.random.default_rng(1)
    slow, fast = (spectra(Pattern("any", hz, load=0.5), 50, rng).mean(0) for hz in (12.5, 42.0))
    assert slow[:3].argmax() == band(12.5)
    assert fast[:8].argmax() == band(42.0)


def test_looseness_raises_once_and_twice_the_speed_and_not_the_high_bands():
    rng = np.random.default_rng(1)
    sound, loose = (spectra(RUNNING, 50, rng, fault).mean(0) for fault in (SOUND, LOOSE))
    risen = loose - sound
    assert risen[band(25.0)] > 10.0
    assert risen[band(50.0)] > 10.0
    assert abs(risen[band(200.0) :]).max() < 3.0


def test_a_bearing_fault_raises_harmonics_of_the_ball_pass_and_their_sidebands():
    rng = np.random.default_rng(1)
    sound, worn = (spectra(RUNNING, 50, rng, fault).mean(0) for fault in (SOUND, BEARING))
    risen = worn - sound
    for harmonic in (2, 3, 5):
        centre = harmonic * 3.58 * RUNNING.speed_hz
        assert risen[band(centre)] > 6.0
        assert risen[band(centre - RUNNING.speed_hz)] > 3.0
    assert abs(risen[band(25.0)]) < 3.0


def test_roc_auc_counts_pairs_and_halves_ties():
    rng = np.random.default_rng(2)
    normal, odd = rng.integers(0, 9, 40).astype(float), rng.integers(3, 12, 30).astype(float)
    pairs = [(o > n) + 0.5 * (o == n) for o in odd for n in normal]
    assert roc_auc(normal, odd) == pytest.approx(np.mean(pairs), rel=1e-12)


def test_it_says_what_it_does_and_leaves_nothing_running(outcome, told, folder):
    assert outcome.seconds > 0.0
    assert [line[:6] for line in told[1:]] == ["1 of 4", "2 of 4", "3 of 4", "4 of 4"]
    left = subprocess.run(["pgrep", "-f", str(folder)], capture_output=True, text=True, check=False)
    assert left.stdout == ""
    assert not [path for path in folder.rglob("*") if path.name == "agent.state.broken-1"]


def test_its_folder_is_made_anew_but_never_somebody_elses(tmp_path):
    ours(tmp_path / "mine")
    (tmp_path / "mine" / "old").touch()
    ours(tmp_path / "mine")
    assert not (tmp_path / "mine" / "old").exists()
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "thesis.txt").touch()
    with pytest.raises(SettingError, match="choose another folder"):
        ours(tmp_path / "theirs")
    assert (tmp_path / "theirs" / "thesis.txt").exists()


def test_the_view_fits_a_terminal_and_tells_odd_from_calm():
    agent = SimpleNamespace(scores=[1.0] * 200 + [9.0] * 200)
    fleet = SimpleNamespace(agents=dict.fromkeys(PUMPS, agent))
    console = Console(width=80)
    with console.capture() as capture:
        console.print(View(fleet, {name: like.name for name, like in PUMPS.items()}))
    lines = [line for line in capture.get().splitlines() if line.startswith("pump-")]
    assert len(lines) == len(PUMPS)
    assert all("▃" in line and "▇" in line and "9.0" in line and "…" not in line for line in lines)


@pytest.mark.parametrize("moment", ["fleet.sqlite", "pump-1.log", "pump-5.log"])
def test_ctrl_c_ends_everything(tmp_path, moment):
    command = [sys.executable, "-m", "edgemerge", "demo", "--keep", "--json", "--out", "out"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    mark = tmp_path / "out" / "fleet" / moment
    deadline = time.monotonic() + 60.0
    while not mark.exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) != 0
    process.stderr.close()
    left = subprocess.run(
        ["pgrep", "-f", "edgemerge (serve|agent)"], capture_output=True, text=True, check=False
    )
    mine = [pid for pid in left.stdout.split() if is_in(tmp_path, pid)]
    assert mine == []


def is_in(folder, pid):
    try:
        return Path(f"/proc/{pid}/cwd").resolve().is_relative_to(folder)
    except OSError:
        return False


@pytest.mark.skipif(not DATA, reason="EDGEMERGE_DATA names no folder with real data")
def test_real_people_can_be_shown_too():
    material = har(Path(DATA) / "har" / "har.npz", seed=7)
    assert list(material.learn) == list(PHONES)
    least = 2 * material.projection.n_hidden  # else the release gate would hold them back
    assert min(map(len, material.learn.values())) > least
    for rows in (*material.learn.values(), *material.normal.values(), *material.odd.values()):
        assert np.abs(rows).max() <= 1.0 + 1e-6


def test_data_that_are_not_there_are_named(tmp_path):
    with pytest.raises(SettingError, match="EDGEMERGE_DATA"):
        har(tmp_path / "har.npz", seed=7)
