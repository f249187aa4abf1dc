"""The demo's claim: after one exchange peers' normal is normal, and faults still are not."""

import numpy as np
import pytest
from rich.console import Console

from edgemerge import Projection
from edgemerge.demo.fleet import FAULTS, FLEET, THRESHOLD, Outcome, merge, roc_auc, run, taught
from edgemerge.demo.simulation import BAND_HZ, BANDS, BEARING, LOOSE, SOUND, Pattern, spectra
from edgemerge.demo.table import summary, table

RUNNING = FLEET["pump-3"]


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return run(seed=7)


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
        assert before.auc < 0.95 < after.auc


def test_the_sums_are_many_times_smaller_than_the_samples(outcome):
    assert outcome.bytes_sums * 10 < outcome.bytes_samples


def test_the_same_seed_gives_the_same_rows_and_another_seed_others(outcome):
    assert run(seed=7).rows == outcome.rows
    assert run(seed=8).rows != outcome.rows


def test_merging_leaves_every_pump_with_the_same_sums():
    rng = np.random.default_rng(3)
    shared = Projection(n_inputs=BANDS, n_hidden=8)
    pumps = {name: taught(shared, spectra(like, 40, rng)) for name, like in FLEET.items()}
    merge(shared, pumps)
    assert len({(pump.own + pump.others).digest for pump in pumps.values()}) == 1


@pytest.mark.parametrize("width", [80, 100])
def test_the_table_fits_the_terminal_with_nothing_cut_off(outcome, width):
    lines = printed(outcome, width).splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    assert sum("pump-" in line and line.count("→") == 5 for line in lines) == len(FLEET)


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
