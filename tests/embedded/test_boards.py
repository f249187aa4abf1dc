"""edgemerge.h on emulated boards and on 32-bit ARM Linux: the same bytes as Python."""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from edgemerge import Detector, Projection, encode
from examples.microcontroller import try_it
from examples.microcontroller.firmware import (
    BOARDS,
    INSTALL,
    LINUX_COMPILER,
    LINUX_EMULATOR,
    WARNINGS,
    build,
    missing_tools,
    run,
)
from tests.embedded.conftest import write_headers
from tests.oracle.test_real_data import har, needs_data
from tests.services.missing import reason

HARNESS = Path(__file__).with_name("harness.c")
MISSING = missing_tools()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=reason(", ".join(MISSING), INSTALL)),
]
FLOAT_TOLERANCE = 2e-4  # of a score
EMULATED_S = 1500
ACTIVATIONS = ("identity", "sigmoid", "tanh", "relu", "cosine")


def learnt_on(name: str, p: Projection, X: np.ndarray, folder: Path, draw: bool = False) -> bytes:
    """Let a board learn and score samples, then share; return what it wrote."""
    write_headers(p, folder, draw=draw)
    words = ["-O2", *(["-DSMALL"] if name == "M0" else []), *(["-DDRAWN"] if draw else [])]
    data = b"L" + len(X).to_bytes(4, "little") + X.tobytes() + b"C\0\0\0\0"
    if name == "armv7":
        sources = [*WARNINGS, *words, "-static", "-I", folder, HARNESS, "-o", folder / "run"]
        subprocess.run([LINUX_COMPILER, *sources], check=True, timeout=120)
        words = [LINUX_EMULATOR, str(folder / "run")]
        done = subprocess.run(
            words, input=data, check=True, capture_output=True, timeout=EMULATED_S
        )
        return done.stdout
    board = BOARDS[name]
    program = build(board, [HARNESS], folder / "run.elf", *words, include=[folder], semihosted=True)
    return run(board, program, data, timeout_s=EMULATED_S)


def compare(p: Projection, X: np.ndarray, answer: bytes, *, after: int) -> None:
    """Compare the scores from a sample on, and the bytes of the contribution."""
    found = np.frombuffer(answer[: 8 * len(X)], "<i4,<f4")
    assert not found["f0"].any()
    python = Detector(p)
    expected = np.array([python.learn_and_score(x) for x in X])
    difference = np.abs(found["f1"][after:] / expected[after:] - 1.0)
    assert difference.max() < FLOAT_TOLERANCE
    assert answer[8 * len(X) + 8 :] == encode(python.share("pump-3", revision=1)[0])


def correlated(rows: int, n: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    mix = np.random.default_rng(99).normal(size=(3, n))
    return rng.normal(0.0, 0.25, (rows, 3)) @ mix + rng.normal(0.0, 0.05, (rows, n))


@pytest.mark.parametrize("name", [*BOARDS, "armv7"])
def test_a_board_shares_the_bytes_of_python(name, tmp_path):
    p, X = Projection(n_inputs=16, n_hidden=16, seed=7, low=-2.0, high=1.5), correlated(400, 16)
    compare(p, X, learnt_on(name, p, X, tmp_path), after=32)


@pytest.mark.mcu_long
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("name", [*BOARDS, "armv7"])
def test_all_activations_ranges_names_and_drawn_weights(name, activation, tmp_path):
    low = np.linspace(-2.0, -1.0, 16)
    p = Projection(
        n_inputs=16,
        n_hidden=8 if activation == "identity" else 16,
        seed=3,
        activation=activation,
        low=low,
        high=low + 3.3,
        names=[f"sensor {i}" for i in range(16)],
    )
    X = correlated(600, 16)
    compare(p, X, learnt_on(name, p, X, tmp_path, draw=name != "M0"), after=32)


@pytest.mark.mcu_long
@pytest.mark.timeout(EMULATED_S)  # 10⁴ samples are some 10¹⁰ instructions
@needs_data
@pytest.mark.parametrize("name", ["M7", "M4", "M3", "armv7"])
def test_ten_thousand_samples_of_har_give_the_same_bytes(name, tmp_path):
    X = np.ascontiguousarray(har()[0][:10_000])
    p = Projection(n_inputs=X.shape[1], n_hidden=64, seed=7)
    answer = learnt_on(name, p, X, tmp_path)
    python = Detector(p)
    python.learn(X)
    assert answer[8 * len(X) + 8 :] == encode(python.share("pump-3", revision=1)[0])


@pytest.mark.mcu_long
@pytest.mark.timeout(EMULATED_S)
def test_three_boards_and_two_agents_are_one_fleet(tmp_path, capsys):
    found = try_it.run(tmp_path)
    said = capsys.readouterr().out
    assert "are those of five devices in Python, to the bit" in said
    assert "its alarm has reached the server" in said
    assert found["samples"] == 5 * try_it.COMMISSIONING
