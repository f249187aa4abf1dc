"""What a run of the tests promises: its examples, limits in time, Ctrl-C, nothing left behind."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS = """
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given, strategies as st

from tests.services.missing import SERVICES, left_out

LIMIT = pytest.mark.timeout(1)


@given(st.integers(), st.floats())
def test_examples_are_drawn(n, x):
    print("drawn", n, x)
    assert len(str(n)) < 3  # shows what was drawn


@LIMIT
def test_that_waits():
    time.sleep(60)


@LIMIT
@given(st.integers())
def test_of_which_an_example_waits(n):
    time.sleep(60)


@pytest.fixture
def slow_to_end():
    yield
    time.sleep(60)


@LIMIT
def test_that_fails_and_does_not_end(slow_to_end):
    raise ValueError


def test_ctrl_c_ends_a_program():
    words = "import time; print('here', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", words], stdout=-1, stderr=-1) as program:
        program.stdout.readline()
        program.send_signal(signal.SIGINT)
        assert b"KeyboardInterrupt" in program.communicate(timeout=20)[1]
        assert program.returncode == -signal.SIGINT


@pytest.mark.parametrize("n", range(3))
def test_a_service_is_missing(n):
    left_out("PostgreSQL", SERVICES)
"""
TESTS_OF_THREADS = """
import threading
import time

import pytest

from tests import threads

threads.TO_END_S = 0.1


@pytest.fixture(scope="session")
def serves_many_files():
    threading.Thread(target=time.sleep, args=(60,), name="of many", daemon=True).start()


def test_that_leaves_a_thread(serves_many_files):
    threading.Thread(target=time.sleep, args=(60,), name="forgotten", daemon=True).start()


def test_behind_it():
    pass
"""
PATIENCE_S = 200
pytestmark = [  # one run serves many tests
    pytest.mark.slow,
    pytest.mark.timeout(3 * PATIENCE_S),
    pytest.mark.xdist_group("conftest"),
]


def ignoring_interrupts():
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def said_by(folder, *words, **environment):
    """Run the tests above as nohup does, in two processes; give what was said."""
    folder.mkdir()
    (folder / "test_all.py").write_text(TESTS, encoding="utf-8")
    (folder / "test_threads.py").write_text(TESTS_OF_THREADS, encoding="utf-8")
    ours = {"CI", "NO_COLOR", "PYTEST_ADDOPTS"}  # of the run that this test is a part of
    inherited = {key: value for key, value in os.environ.items() if key not in ours}
    plugins = ("-ptests.conftest", "-pno:anyio", "-pno:cacheprovider", "-pno:schemathesis")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-cpyproject.toml", *plugins, folder, *words],
        cwd=ROOT,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        preexec_fn=ignoring_interrupts,
    )
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    return said_by(tmp_path_factory.mktemp("session") / "tests", "-n2", "--dist=loadfile")


@pytest.mark.parametrize(
    "name",
    ["test_that_waits", "test_of_which_an_example_waits", "test_that_fails_and_does_not_end"],
)
def test_a_test_that_takes_too_long_is_named(said, name):
    assert re.search(rf"TimeLimitExceeded: \S*::{name} took more than 1 s", said), said


def test_a_thread_that_goes_on_is_told_with_its_test_at_the_end_of_the_file(said):
    (left,) = re.findall(r"^E +tests\.threads\.ThreadsLeft: (.*)", said, re.MULTILINE)
    assert re.fullmatch(r"forgotten \(\S*::test_that_leaves_a_thread\S*\)", left), said
    assert re.search(r"ERROR \S*::test_behind_it", said), said


def test_programs_under_test_end_at_ctrl_c_though_the_run_ignores_it(said):
    assert "test_ctrl_c_ends_a_program" not in said, said


def test_the_last_lines_count_what_was_skipped(said):
    line = "3 tests skipped: 3 without PostgreSQL (to run them: make services)"
    assert said.splitlines().count(line) == 1, said


def drawn(said):
    return re.findall("drawn .*", said)


@pytest.mark.long
def test_the_same_examples_are_drawn_everywhere_unless_asked_for_others(said, tmp_path):
    only = ("-k", "drawn")
    assert len(drawn(said)) > 1
    assert drawn(said_by(tmp_path / "ci", *only, CI="true")) == drawn(said)
    assert drawn(said_by(tmp_path / "fuzz", *only, "--hypothesis-profile=fuzz")) != drawn(said)
