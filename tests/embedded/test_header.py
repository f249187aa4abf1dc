"""edgemerge.h, compiled for this machine: the same bytes as Python, and the same decisions."""

import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from edgemerge import Contribution, Detector, Projection, Stats, encode, save
from edgemerge.core.errors import SettingError
from edgemerge.core.limit import AlarmLevel
from edgemerge.embedded.export import header_text, to_c
from tests.cli.calls import call
from tests.services.missing import SERVICES, left_out

pytestmark = pytest.mark.slow

ACTIVATIONS = ("identity", "sigmoid", "tanh", "relu", "cosine")
N_INPUTS, N_HIDDEN = 6, 12
FLOAT_TOLERANCE = 2e-4  # of a score, with float32 and one refinement of B
DOUBLE_TOLERANCE = 1e-6  # scores are float32 then, too
NOT_FINITE, FULL, BAD_BYTES, OTHER_FLEET, CORRUPT, WRITE_FAILED = -2, -3, -4, -5, -6, -7
FLAGS = ("-std=c99", "-Wall", "-Wextra", "-Wconversion", "-Werror")
SANITIZED = ("-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def projection(activation="tanh", **settings) -> Projection:
    low = np.linspace(-2.0, 0.5, N_INPUTS)
    sizes = {"n_inputs": N_INPUTS, "n_hidden": N_HIDDEN, "seed": 5}
    return Projection(
        **{**sizes, "activation": activation, "low": low, "high": low + 3.0, **settings}
    )


def samples(rows: int, seed: int = 0) -> np.ndarray:
    """Return correlated readings in the range of the projection, as three hidden causes make."""
    rng = np.random.default_rng(seed)
    mix = np.random.default_rng(99).normal(size=(3, N_INPUTS))
    found = rng.normal(0.0, 0.25, (rows, 3)) @ mix + rng.normal(0.0, 0.05, (rows, N_INPUTS))
    return found + np.linspace(-0.5, 2.0, N_INPUTS)


@dataclass
class Device:
    """Commands for the compiled device, and what it answered."""

    program: Path
    words: list[bytes] = field(default_factory=list)

    def ask(self, command: str, number: int = 0, data: bytes = b"") -> None:
        self.words.append(command.encode() + number.to_bytes(4, "little") + data)

    def rows(self, command: str, X: np.ndarray, kind: str = "<f8") -> None:
        self.ask(command, len(X), X.astype(kind).tobytes())

    def answers(self) -> "Answers":
        done = subprocess.run(
            [self.program], input=b"".join(self.words), capture_output=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr.decode()[-2000:]
        return Answers(done.stdout)


class Answers:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def take(self, kind: str, count: int = 1) -> np.ndarray:
        size = np.dtype(kind).itemsize * count
        found, self.data = np.frombuffer(self.data[:size], kind), self.data[size:]
        assert len(found) == count
        return found

    def error(self) -> int:
        return int(self.take("<i4")[0])

    def scores(self, count: int) -> np.ndarray:
        found = self.take("<i4,<f4", count)
        assert not found["f0"].any()
        return found["f1"].astype(float)

    def results(self, count: int) -> np.ndarray:
        found = self.take([("error", "<i4"), ("score", "<f4"), ("level", "<f4"), ("ready", "?"),
                           ("alarm", "?"), ("learnt", "?"), ("", "u1")], count)  # fmt: skip
        assert not found["error"].any()
        return found

    def contribution(self) -> bytes:
        assert self.error() == 0
        return self.take("u1", int(self.take("<u4")[0])).tobytes()

    def digest(self) -> tuple[int, int]:
        assert self.error() == 0
        return int(self.take("<u4")[0]), int(self.take("<i8")[0])


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Return a function that compiles the harness for a projection, once for each."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        left_out("a C compiler", SERVICES)
    known: dict[tuple[str, tuple[str, ...]], Path] = {}

    def build(p: Projection, *options: str) -> Device:
        key = p.fingerprint, options
        if key not in known:
            folder = tmp_path_factory.mktemp("embedded")
            (folder / "edgemerge.h").write_text(header_text(), encoding="utf-8")
            (folder / "pump.h").write_text(to_c(p, "pump"), encoding="utf-8")
            source = Path(__file__).with_name("harness.c")
            words = [*FLAGS, *SANITIZED, *options, "-I", folder, source, "-o", folder / "run"]
            subprocess.run([compiler, *words], check=True, timeout=120)
            known[key] = folder / "run"
        return Device(known[key])

    return build


@pytest.mark.parametrize("level", ["-O1", "-O2", "-O3", "-Os"])
def test_the_optimizer_finds_nothing_to_warn_of(compiled, level, tmp_path):
    folder = compiled(projection()).program.parent
    source = Path(__file__).with_name("harness.c")
    words = [*FLAGS, level, "-I", folder, "-c", source, "-o", tmp_path / "harness.o"]
    subprocess.run(["cc", *words], check=True, timeout=120)


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.max(np.abs(found - expected) / expected))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_contributions_are_equal_to_the_byte_and_scores_to_float_precision(compiled, activation):
    # with identity, more hidden values than inputs make U singular: that needs EM_DOUBLE
    sizes = {"n_hidden": 4} if activation == "identity" else {}
    p = projection(activation, names=[f"sensor {i}" for i in range(N_INPUTS)], **sizes)
    X = samples(600)
    X[300:303] *= 40.0  # far outside the range
    device, python = compiled(p), Detector(p)
    device.rows("L", X)
    device.ask("C")
    answers = device.answers()
    expected = np.array([python.learn_and_score(x) for x in X])
    ready = 2 * N_HIDDEN
    assert relative(answers.scores(len(X))[ready:300], expected[ready:300]) < FLOAT_TOLERANCE
    assert answers.contribution() == encode(python.share("pump-3", revision=1)[0])


def test_with_double_precision_scores_are_those_of_python(compiled):
    p, X = projection("sigmoid"), samples(600)
    device, python = compiled(p, "-DEM_DOUBLE"), Detector(p)
    device.rows("L", X)
    expected = np.array([python.learn_and_score(x) for x in X])
    found = device.answers().scores(len(X))
    assert relative(found[2 * N_HIDDEN :], expected[2 * N_HIDDEN :]) < DOUBLE_TOLERANCE


@pytest.mark.parametrize(
    "settings", [{"grid_bits": 8}, {"width": 40.0}, {"low": -1.0, "high": 1.0}]
)
def test_other_grids_widths_and_ranges_give_the_same_bytes(compiled, settings):
    p, X = projection("cosine" if "width" in settings else "tanh", **settings), samples(50)
    device = compiled(p)
    device.rows("L", X)
    device.ask("C")
    answers = device.answers()
    answers.scores(len(X))
    assert answers.contribution() == encode(Contribution("pump-3", Stats.of(p, X), revision=1))


def test_a_weight_of_negative_zero_keeps_its_sign_in_the_fingerprint(compiled):
    p = projection(width=2.0**-14)  # so that many weights round to 0
    assert np.signbit(p.A[p.A == 0.0]).any()
    compiled(p).answers()  # which recomputes the fingerprint first


def test_what_others_saw_is_adopted_and_taken_back(compiled):
    p, X, Y, Z = projection(), samples(60), samples(400, 1) + 0.4, samples(100, 2)
    total, device = encode(Stats.of(p, Y)), compiled(p, "-DEM_DOUBLE")
    device.rows("L", X[:8])
    device.ask("A", len(total), total)
    device.rows("S", Z)  # the scale is that of all samples while own ones are few
    device.rows("L", X[8:])
    device.rows("S", Z)  # and then that of own samples
    device.ask("C")
    device.ask("A")
    device.rows("S", Z)
    answers, python = device.answers(), Detector(p)
    answers.scores(8)
    python.learn(X[:8])
    python.adopt(Stats.of(p, Y))
    assert answers.error() == 0
    assert relative(answers.scores(100), np.array([python.score(z) for z in Z])) < DOUBLE_TOLERANCE
    expected = np.array([python.learn_and_score(x) for x in X[8:]])
    assert relative(answers.scores(52), expected) < 1e-5  # rounded to float in between
    assert relative(answers.scores(100), np.array([python.score(z) for z in Z])) < 1e-5
    assert answers.contribution() == encode(python.share("pump-3", revision=1)[0])
    assert answers.error() == 0
    python.adopt(Stats.empty(p))
    assert relative(answers.scores(100), np.array([python.score(z) for z in Z])) < DOUBLE_TOLERANCE


def mutants(data: bytes, count: int):
    rng = np.random.default_rng(3)
    for _ in range(count):
        changed = bytearray(data)
        for place in rng.integers(0, len(data), rng.integers(1, 4)):
            changed[place] = rng.integers(0, 256)
        end = len(data) if rng.random() < 0.8 else int(rng.integers(0, len(data)))
        if bytes(changed[:end]) != data:
            yield bytes(changed[:end])


def test_bad_bytes_are_refused_and_change_nothing(compiled):
    p, X = projection(), samples(100)
    device, total = compiled(p), encode(Stats.of(p, samples(300, 1)))
    other = encode(Stats.of(projection(seed=6), samples(300, 1)))
    wrong = [total[:-1], total + b"\0", total.replace(b'"exact"', b'"exacT"'), other]
    several = list(mutants(total, 2000))
    device.rows("L", X)
    device.ask("A", len(total), total)
    for each in (*wrong, *several):
        device.ask("A", len(each), each)
        device.ask("D")
    device.rows("S", X)
    answers = device.answers()
    answers.scores(len(X))
    assert answers.error() == 0
    errors, digests = [], set()
    for _ in (*wrong, *several):
        errors.append(answers.error())
        digests.add(answers.digest())
    assert errors[:4] == [BAD_BYTES, BAD_BYTES, OTHER_FLEET, OTHER_FLEET]
    assert set(errors) <= {0, FULL, BAD_BYTES, OTHER_FLEET}
    assert errors.count(0) < len(errors) / 2  # a changed digit of a sum may be a sum as well
    assert len(digests) == 1


def test_readings_that_are_no_numbers_and_full_sums_are_refused(compiled):
    p, X = projection(), samples(5)
    X[2, 3], X[3, 1], X[4, 0] = np.nan, np.inf, -np.inf
    device = compiled(p)
    device.rows("L", X)
    device.ask("D")
    answers = device.answers()
    found = answers.take("<i4,<f4", 5)
    assert found["f0"].tolist() == [0, 0, NOT_FINITE, NOT_FINITE, NOT_FINITE]
    assert answers.digest()[1] == 2
    wide = projection("identity", grid_bits=16, width=1024.0)
    device = compiled(wide)
    device.rows("L", np.full((2, N_INPUTS), 1e9))
    device.ask("D")
    answers = device.answers()
    assert answers.take("<i4,<f4", 2)["f0"].tolist() == [FULL, FULL]
    assert answers.digest()[1] == 0


def test_power_may_fail_at_any_moment_of_saving(compiled):
    p, X = projection(), samples(60)
    size = 14 * 8 + 8 * (N_HIDDEN * (N_HIDDEN + 1) // 2 + N_HIDDEN * N_INPUTS + 2 * N_INPUTS)
    device, cuts = compiled(p), (0, 1, 8, 40, 100, size // 2, size - 8, size - 1)
    device.ask("R")  # nothing was ever saved
    device.rows("L", X[:20])
    device.ask("D")
    device.ask("W", size)
    for cut in cuts:
        device.rows("L", X[20:22])
        device.ask("W", cut)
        device.ask("R")
        device.ask("D")
    device.rows("L", X[20:])
    device.ask("W", size)
    device.ask("R")
    device.ask("C")
    answers = device.answers()
    assert answers.error() == CORRUPT
    answers.scores(20)
    before = answers.digest()
    assert answers.error() == 0
    for _ in cuts:
        answers.scores(2)
        assert answers.error() == WRITE_FAILED
        assert answers.error() == 0
        assert answers.digest() == before
    answers.scores(40)
    assert (answers.error(), answers.error()) == (0, 0)
    assert answers.contribution() == encode(Contribution("pump-3", Stats.of(p, X), revision=1))


def test_a_fault_that_lasts_stays_an_alarm_and_is_never_learnt(compiled):
    p, calm, odd = projection(), samples(16 * N_HIDDEN + 200), samples(300, 1)
    odd[:, 2] += 1.5
    glitch = odd[:1]
    device = compiled(p)
    device.rows("T", calm)
    device.ask("D")
    device.rows("T", odd)
    device.ask("D")
    device.rows("T", calm[:100])
    device.rows("T", np.vstack([glitch, calm[100:110]]))
    answers = device.answers()
    first = answers.results(len(calm))
    assert first["ready"].argmax() == 16 * N_HIDDEN
    assert not first["alarm"].any()
    before = answers.digest()
    found = answers.results(len(odd))
    assert found["alarm"].sum() == len(odd) - 2  # it begins with the third odd sample
    assert not found["learnt"][2:].any()
    assert answers.digest() == before
    back = answers.results(100)
    assert back["alarm"][:4].all()  # it ends after five quiet ones in a row
    assert not back["alarm"][20:].any()
    assert not answers.results(11)["alarm"].any()  # one glitch is none


def test_alarms_follow_from_scores_as_in_a_monitor(compiled):
    p, rng = projection(), np.random.default_rng(4)
    X = samples(16 * N_HIDDEN + 400)
    X[16 * N_HIDDEN :][rng.random(400) < 0.3] += 1.0  # flickers
    device, level = compiled(p), AlarmLevel()
    device.rows("T", X)
    found = device.answers().results(len(X))[16 * N_HIDDEN :]
    expected = [level.update(float(score)) for score in found["score"]]
    assert found["level"] == pytest.approx(expected, rel=1e-6)
    assert (found["alarm"] == (found["level"] > 4.0)).all()
    assert found["alarm"].any()
    assert not found["alarm"].all()


def test_isolated_odd_samples_are_learnt_when_no_episode_followed(compiled):
    p, X = projection(), samples(16 * N_HIDDEN + 200)
    X[16 * N_HIDDEN + 50, 2] += 0.35  # odd, but not very
    device = compiled(p)
    device.rows("T", X)
    device.ask("D")
    answers = device.answers()
    found = answers.results(len(X))
    odd = (found["score"] > 4.0) & found["ready"]
    assert 0 < odd.sum() < 10
    assert not found["alarm"].any()
    assert answers.digest()[1] == len(X) - (found["score"][odd] > 16.0).sum()


def test_integers_on_the_grid_give_the_same_as_readings(compiled):
    p, X = projection(), samples(300)
    one, other = compiled(p), compiled(p)
    one.rows("T", X)
    other.rows("G", p.to_grid(X) / p.step, "<i4")
    assert one.answers().data == other.answers().data


def test_the_command_writes_the_header_and_the_constants(tmp_path):
    p = projection("cosine")
    save(p, tmp_path / "pump.projection")
    answer = call("export", str(tmp_path / "pump.projection"), "--name", "pump", "--out", tmp_path)
    assert answer.exit_code == 0
    assert (tmp_path / "edgemerge.h").read_text(encoding="utf-8") == header_text()
    assert (tmp_path / "pump.h").read_text(encoding="utf-8") == to_c(p, "pump")


def test_a_name_that_c_does_not_allow_is_refused():
    with pytest.raises(SettingError, match="letters, digits and underscores"):
        to_c(projection(), "pump-3")
