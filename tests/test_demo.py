"""The demo's claim: after one exchange peers' normal is normal, and faults still are not."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from http.client import HTTPConnection
from itertools import groupby, islice
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from urllib.parse import urlsplit

import numpy as np
import pytest
from rich.console import Console

from edgemerge.agent.control import send_command
from edgemerge.cli.demo import STOP_SIGNALS
from edgemerge.core.errors import SettingError
from edgemerge.daemon import interrupt_on_signals
from edgemerge.demo import scenario
from edgemerge.demo.data import (
    BAND_HZ,
    BEARING,
    FAULTS,
    LOOSENESS,
    NO_FAULT,
    PHONES,
    PUMPS,
    Pattern,
    har,
    pumps,
    spectra,
)
from edgemerge.demo.outcome import THRESHOLD, Outcome, result_table, roc_auc, summary_text
from edgemerge.demo.scenario import (
    MAX_KEPT_SCORES,
    SAMPLES_BETWEEN_FAULTS,
    SAMPLES_PER_FAULT,
    LiveView,
    feed_forever,
    prepare_folder,
    readings,
    run_demo,
)
from tests.cli.calls import call
from tests.services.missing import NO_DATA

# One run serves many tests.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("demo")]

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
    return run_demo(pumps(seed=7), 7, folder, say=told.append)


def printed(outcome: Outcome, width: int) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(result_table(outcome))
    return capture.get()


def band(hertz: float) -> int:
    return int(hertz / BAND_HZ)


def test_alone_every_pump_takes_its_peers_normal_for_a_fault(outcome):
    for row in outcome.device_rows(merged=False):
        assert row.scores["own"].mean < 1.3
        assert row.scores["peers"].mean > THRESHOLD
        assert row.scores["peers"].alarms > 0.5


def test_after_merging_peers_normal_is_as_usual_on_every_pump(outcome):
    for row in outcome.device_rows(merged=True):
        assert 0.5 < row.scores["peers"].mean < 1.5
        assert row.scores["peers"].high < THRESHOLD
        assert row.scores["own"].high < THRESHOLD


def test_after_merging_faults_still_raise_an_alarm_on_every_pump(outcome):
    for row in outcome.device_rows(merged=True):
        for fault in FAULTS:
            assert row.scores[fault.name].low > THRESHOLD


def test_merging_tells_faults_from_any_normal_better_on_every_pump(outcome):
    for before, after in zip(
        outcome.device_rows(merged=False), outcome.device_rows(merged=True), strict=True
    ):
        assert before.auc < 0.95
        assert after.auc > 0.99


def test_the_sums_are_many_times_smaller_than_the_samples(outcome):
    assert outcome.bytes_sums * 5 < outcome.bytes_samples


@pytest.mark.long
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
    said = summary_text(outcome)
    assert "80 % of its peers' normal samples" in said
    assert f"{outcome.bytes_sums / 1000:.0f} kB of sums" in said
    assert f"{outcome.bytes_samples / 1000:.0f} kB of samples" in said


def test_a_fault_that_lasts_stays_an_alarm_and_is_known_by_its_name_after_a_review(outcome):
    fault = outcome.fault
    assert fault.alarms == fault.samples - 2  # an alarm begins with the third odd sample
    assert fault.samples > 100
    assert (fault.found_as, fault.again) == ("odd-1", fault.kind)
    assert fault.messages == tuple(
        f"{fault.device}: {event}"
        for event in ("alarm", "all clear", "alarm", f"alarm, most like {fault.kind}")
    )
    assert len(set(fault.inputs)) == 3
    assert f"{fault.alarms} of its {fault.samples} samples are in alarm" in summary_text(outcome)


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
    sound, loose = (spectra(RUNNING, 50, rng, fault).mean(0) for fault in (NO_FAULT, LOOSENESS))
    risen = loose - sound
    assert risen[band(25.0)] > 10.0
    assert risen[band(50.0)] > 10.0
    assert abs(risen[band(200.0) :]).max() < 3.0


def test_a_bearing_fault_raises_harmonics_of_the_ball_pass_and_their_sidebands():
    rng = np.random.default_rng(1)
    sound, worn = (spectra(RUNNING, 50, rng, fault).mean(0) for fault in (NO_FAULT, BEARING))
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
    assert "keep the defaults for confidential data" in told[1]
    assert [line[:6] for line in told[2:]] == ["1 of 5", "2 of 5", "3 of 5", "4 of 5", "5 of 5"]
    left = subprocess.run(["pgrep", "-f", str(folder)], capture_output=True, text=True, check=False)
    assert left.stdout == ""
    assert not [path for path in folder.rglob("*") if path.name == "agent.state.broken-1"]


def test_its_folder_is_made_anew_but_never_somebody_elses(tmp_path):
    prepare_folder(tmp_path / "mine")
    (tmp_path / "mine" / "old").touch()
    prepare_folder(tmp_path / "mine")
    assert not (tmp_path / "mine" / "old").exists()
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "thesis.txt").touch()
    with pytest.raises(SettingError, match="choose another folder"):
        prepare_folder(tmp_path / "theirs")
    assert (tmp_path / "theirs" / "thesis.txt").exists()


def test_the_view_fits_a_terminal_and_tells_odd_from_calm():
    agent = SimpleNamespace(scores=[1.0] * 200 + [9.0] * 200)
    fleet = SimpleNamespace(agents=dict.fromkeys(PUMPS, agent))
    console = Console(width=80)
    with console.capture() as capture:
        console.print(LiveView(fleet, {name: like.name for name, like in PUMPS.items()}))
    lines = [line for line in capture.get().splitlines() if line.startswith("pump-")]
    assert len(lines) == len(PUMPS)
    assert all("▃" in line and "▇" in line and "9.0" in line and "…" not in line for line in lines)


@pytest.mark.long
@pytest.mark.parametrize("moment", ["pump-5.log", "fleet.sqlite", "pump-1.log"])
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
    assert left_in(tmp_path) == []


def pages_of(line, *paths):
    """Sign in with the link in a line; give what some pages say."""
    address = urlsplit(line.split()[-1])
    there = HTTPConnection(address.netloc, timeout=30)
    kind = "application/x-www-form-urlencoded"
    form = {"Content-Type": kind, "Origin": f"http://{address.netloc}"}
    try:
        there.request("POST", "/ui/sign-in", address.query, form)
        answer = there.getresponse()
        answer.read()
        cookie = answer.headers["Set-Cookie"].partition(";")[0]
        for path in paths:
            there.request("GET", path, headers={"Cookie": cookie})
            yield there.getresponse().read().decode()
    finally:
        there.close()


def judged(folder):
    """How many samples each agent has judged."""
    return [send_command(folder / name, {"command": "status"}, 10.0)["samples"] for name in PUMPS]


def until_it_stays(process):
    """Everything that it says until it only waits for Ctrl-C."""
    said = []
    for line in process.stderr:
        said.append(line)
        if "Stop with Ctrl-C" in line:
            break
    return said


def read_all(terminal):
    """Read what is shown, so that there is room for more; a closed terminal is an error here."""
    with suppress(OSError):
        while os.read(terminal, 4096):
            pass


@pytest.mark.long
def test_at_a_terminal_the_page_lives_until_ctrl_c(tmp_path):
    outer, inner = os.openpty()
    few = "from edgemerge.demo import data as d; d.TRAINING_SAMPLES, d.TEST_SAMPLES = 300, 30"
    words = [sys.executable, "-c", f"{few}\nfrom edgemerge.cli import main; main()", "demo"]
    words += ["--out", "out"]
    process = subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, stdout=inner, text=True)
    os.close(inner)
    reading = Thread(target=read_all, args=(outer,))
    reading.start()
    try:
        said = until_it_stays(process)
        link = next(line for line in said if "/ui/sign-in?link=eml_" in line)
        fleet, pump = pages_of(link, "/ui/fleets/demo", "/ui/fleets/demo/devices/pump-3")
        assert [name for name in PUMPS if name not in fleet] == []
        assert re.search(r"\d-\d+ Hz", pump), "an alarm names the bands that carry it"
        folder = tmp_path / "out" / "fleet"
        before, deadline = judged(folder), time.monotonic() + 30.0
        while min(np.subtract(judged(folder), before)) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        process.send_signal(signal.SIGINT)
        ended = process.wait(60)
        process.stderr.close()
        reading.join(10.0)
        os.close(outer)
    assert ended == 0
    assert left_in(tmp_path) == []


def left_in(folder):
    """Processes of ours that still run in a folder."""
    found = subprocess.run(
        ["pgrep", "-f", "edgemerge (serve|agent)"], capture_output=True, text=True, check=False
    )
    return [pid for pid in found.stdout.split() if is_in(folder, pid)]


@pytest.mark.parametrize(
    "keep", [(), ("--keep",), ("--no-keep",), ("--keep", "--json")], ids=" ".join
)
def test_the_demo_ends_with_a_link_and_stays_only_if_asked(tmp_path, monkeypatch, keep):
    stayed = []
    hub = SimpleNamespace(
        sign_in_link=lambda: {"path": "/ui/sign-in?link=eml_x"}, close=lambda: None
    )
    fleet = SimpleNamespace(operator=hub, url="http://127.0.0.1:1", folder=tmp_path)
    (tmp_path / "pump-1.toml").touch()
    monkeypatch.setattr(scenario, "run_demo", lambda *_, done, **__: done(None, fleet))
    monkeypatch.setattr("edgemerge.cli.demo.print_outcome", lambda *_, **__: None)
    monkeypatch.setattr("edgemerge.cli.demo.load_dataset", lambda *_: None)
    monkeypatch.setattr(scenario, "feed_forever", lambda *_, **__: stayed.append(True))
    result = call("demo", "--out", tmp_path, *keep)
    assert result.exit_code == 0, result.output
    assert "http://127.0.0.1:1/ui/\n" in result.stderr
    assert "http://127.0.0.1:1/ui/sign-in?link=eml_x\n" in result.stderr
    assert (stayed == [True]) == ("--keep" in keep) == ("Still running" in result.stderr)
    assert ("--keep keeps it running" in result.stderr) == ("--keep" not in keep)


@pytest.fixture(scope="module")
def material():
    return pumps(7)


def test_afterwards_devices_are_mostly_normal_and_one_at_a_time_is_odd(material):
    odd = {row.tobytes() for rows in material.odd.values() for row in rows}
    found = islice(readings(material, np.random.default_rng(1)), 3000)
    sick = [[name for name, row in rows.items() if row[0].tobytes() in odd] for rows in found]
    assert max(map(len, sick)) == 1
    assert {names[0] for names in sick if names} == set(PUMPS)
    spells = [(bool(names), len(list(group))) for names, group in groupby(sick)]
    assert all(
        SAMPLES_PER_FAULT[0] <= length < SAMPLES_PER_FAULT[1] for ill, length in spells[1:-1] if ill
    )
    assert all(
        SAMPLES_BETWEEN_FAULTS[0] <= length < SAMPLES_BETWEEN_FAULTS[1]
        for ill, length in spells[1:-1]
        if not ill
    )


def test_the_fault_that_a_pump_has_is_one_of_its_own(material):
    for rows in islice(readings(material, np.random.default_rng(2)), 1000):
        for i, name in enumerate(PUMPS):
            row = rows[name][0]
            mine = [material.normal[name], *(np.split(odd, 5)[i] for odd in material.odd.values())]
            assert any((row == each).all(axis=1).any() for each in mine)


def test_every_agent_is_fed_until_it_is_time_to_stop_and_memory_has_a_bound(material):
    fed = []
    agents = {
        name: SimpleNamespace(
            scores=[1.0] * 2 * MAX_KEPT_SCORES,
            feed=lambda rows, n=name: fed.append((n, rows.shape)),
        )
        for name in PUMPS
    }
    waited = []

    def wait(seconds):
        waited.append(seconds)
        return len(waited) == 3

    stop = SimpleNamespace(wait=wait)
    feed_forever(SimpleNamespace(agents=agents), material, seed=7, stop=stop)
    assert fed == [(name, (1, 64)) for name in PUMPS] * 3
    assert waited == [0.5] * 3
    assert all(len(agent.scores) == MAX_KEPT_SCORES for agent in agents.values())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_closed_terminal_ends_it_as_ctrl_c_does(number):
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), interrupt_on_signals(*STOP_SIGNALS):
        signal.raise_signal(number)
    assert signal.getsignal(number) is before


def is_in(folder, pid):
    try:
        return Path(f"/proc/{pid}/cwd").resolve().is_relative_to(folder)
    except OSError:
        return False


@pytest.mark.skipif(not DATA, reason=NO_DATA)
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
