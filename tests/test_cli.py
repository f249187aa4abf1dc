"""The command line: results on stdout, remarks on stderr, one line for what went wrong."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from edgemerge import Bank, Contribution, Detector, Ledger, Projection, Stats, __version__, files
from edgemerge.cli import THREADS, description, lines, main
from edgemerge.core.errors import FormatError
from edgemerge.demo import fleet
from edgemerge.files import save

SOURCE = Path(__file__).parents[1] / "src"
SHARED = Projection(n_inputs=2, n_hidden=3, seed=5)
SEEN = Stats.of(SHARED, [[0.1, 0.2], [0.3, 0.4]])


@pytest.fixture(scope="module")
def outcome() -> fleet.Outcome:
    return fleet.run(seed=7)


@pytest.fixture
def quick_demo(monkeypatch, outcome) -> None:
    monkeypatch.setattr(fleet, "run", lambda _seed: outcome)


@pytest.fixture
def no_matplotlib(monkeypatch) -> None:
    monkeypatch.delitem(sys.modules, "edgemerge.demo.figure", raising=False)
    for module in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, module, None)


def call(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def started(code: str, **environment: str) -> str:
    """What a fresh interpreter prints, without the settings of this one for BLAS threads."""
    clean = {name: value for name, value in os.environ.items() if name not in THREADS}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**clean, "PYTHONPATH": str(SOURCE), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


def test_the_version_is_told():
    assert call("--version").stdout == f"edgemerge {__version__}\n"


def test_help_does_not_wait_for_numpy():
    code = (
        "import sys; from edgemerge.cli import main; main(['--help'], standalone_mode=False);"
        "print({'numpy', 'scipy', 'rich', 'matplotlib'} & set(sys.modules))"
    )
    assert started(code).endswith("\nset()\n")


ASK = (
    "import click, os; from edgemerge.cli import THREADS, main;"
    "main.add_command(click.command('ask')("
    "lambda: print(*(os.environ.get(name) for name in THREADS))));"
)


def test_commands_run_with_one_blas_thread_set_before_numpy_is_imported():
    imported = "import sys; assert 'numpy' not in sys.modules;"
    assert started(ASK + imported + "main(['ask'])") == "1 1 1\n"


def test_a_number_of_threads_that_the_user_set_is_left_alone():
    assert started(ASK + "main(['ask'])", OMP_NUM_THREADS="4") == "None 4 None\n"


@pytest.mark.usefixtures("quick_demo")
def test_the_demo_prints_a_table_and_says_where_the_figure_lies(tmp_path):
    pytest.importorskip("matplotlib")
    result = call("demo", "--out", tmp_path / "new" / "folder")
    figure = tmp_path / "new" / "folder" / "demo.png"
    assert result.exit_code == 0
    assert "pump-5 fast" in result.stdout
    assert "of sums instead of" in result.stdout
    assert result.stderr == f"Figure: {figure}\n"
    assert figure.read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("quick_demo", "no_matplotlib")
def test_the_demo_for_machines_is_json_and_nothing_else(tmp_path, outcome):
    told = json.loads(call("demo", "--json", "--out", tmp_path).stdout)
    assert told["threshold"] == fleet.THRESHOLD
    assert [row["auc"] for row in told["rows"]] == [row.auc for row in outcome.rows]
    assert told["rows"][0]["scores"]["peers"]["mean"] == outcome.rows[0].scores["peers"].mean


@pytest.mark.usefixtures("quick_demo", "no_matplotlib")
def test_without_matplotlib_the_demo_shows_the_table_and_how_to_get_the_figure(tmp_path):
    result = call("demo", "--out", tmp_path / "folder")
    assert result.exit_code == 0
    assert "pump-5 fast" in result.stdout
    advice = "No figure: matplotlib is missing: pip install 'edgemerge[plot]'\n"
    assert result.stderr == advice
    assert not (tmp_path / "folder").exists()


def test_the_seed_of_the_demo_is_passed_on(monkeypatch, outcome, tmp_path):
    monkeypatch.setattr(fleet, "run", lambda seed: replace(outcome, seed=seed))
    told = json.loads(call("demo", "--seed", 11, "--json", "--out", tmp_path).stdout)
    assert told["seed"] == 11


@pytest.mark.usefixtures("quick_demo")
def test_a_folder_that_cannot_be_made_is_told_in_one_line(tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "taken").write_text("a file", encoding="utf-8")
    result = call("demo", "--json", "--out", tmp_path / "taken" / "below")
    assert result.exit_code == 2
    assert result.stderr == f"Error: {tmp_path / 'taken' / 'below'}: Not a directory\n"


def test_show_says_what_is_in_a_file(tmp_path):
    save(Contribution("pump-3", SEEN, revision=4, pattern="idle"), tmp_path / "file")
    result = call("show", tmp_path / "file")
    said = dict(line.split(maxsplit=1) for line in result.stdout.splitlines())
    assert said["kind"] == "contribution"
    assert (said["device"], said["pattern"], said["revision"]) == ("pump-3", "idle", "4")
    assert (said["samples"], said["inputs"], said["hidden"]) == ("2", "2", "3")
    assert said["fingerprint"] == SHARED.fingerprint


def test_show_for_machines_is_json(tmp_path):
    save(SEEN, tmp_path / "file")
    told = json.loads(call("show", tmp_path / "file", "--json").stdout)
    assert (told["kind"], told["samples"], told["digest"]) == ("stats", 2.0, SEEN.digest)


def test_a_wrong_file_is_told_in_one_line(tmp_path):
    (tmp_path / "model.pkl").write_bytes(b"\x80\x04K\x01.")
    result = call("show", tmp_path / "model.pkl")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"Error: {tmp_path / 'model.pkl'}: found ")
    assert result.stderr.count("\n") == 1


def test_a_message_of_several_lines_is_told_in_one(monkeypatch):
    def refuse(_: Path) -> None:
        raise FormatError("found this,\n  expected that")

    monkeypatch.setattr(files, "load", refuse)
    assert call("show", "any").stderr == "Error: found this, expected that\n"


def test_a_missing_file_is_told_in_one_line():
    result = call("show", "nowhere")
    assert result.exit_code == 2
    assert result.stderr == "Error: nowhere: No such file or directory\n"


def test_a_bug_of_ours_is_not_hidden(monkeypatch):
    monkeypatch.setattr(files, "load", lambda _: 1 / 0)
    assert isinstance(call("show", "any").exception, ZeroDivisionError)


def test_a_ledger_is_described_with_one_line_for_each_contribution():
    ledger = Ledger(SHARED)
    for device in ("pump-1", "pump-2"):
        ledger.put(Contribution(device, SEEN, revision=1))
    said = [line for line in lines(description(ledger)) if line.startswith("contribution")]
    assert len(said) == 2
    assert said[1].endswith("pump-2/normal, revision 1, 2 samples")
    assert "contributions  none" in lines(description(Ledger(SHARED)))


def test_a_detector_is_described_by_what_it_saw_and_what_it_was_told():
    pump = Detector(SHARED, forgetting=0.9, reject_above=5.0)
    pump.adopt(SEEN)
    found = description(pump)
    assert (found["own_samples"], found["others_samples"]) == (0.0, 2.0)
    assert (found["forgetting"], found["reject_above"]) == (0.9, 5.0)


def test_a_projection_is_described_by_its_settings():
    found = description(SHARED)
    assert (found["kind"], found["seed"], found["activation"]) == ("projection", 5, "tanh")


def test_show_tells_the_patterns_of_a_bank(tmp_path):
    bank = Bank(Projection(n_inputs=3, n_hidden=8, seed=1))
    bank.learn(np.random.default_rng(0).normal(0.0, 0.1, (96, 3)))
    save(bank, tmp_path / "bank.safetensors")
    told = CliRunner().invoke(main, ["show", str(tmp_path / "bank.safetensors")])
    assert told.exit_code == 0
    assert "normal: " in told.stdout
    assert "rejected" in told.stdout
    as_json = CliRunner().invoke(main, ["show", "--json", str(tmp_path / "bank.safetensors")])
    assert json.loads(as_json.stdout)["patterns"][0]["pattern"] == "normal"
