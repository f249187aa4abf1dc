"""edgemerge.h, compiled for this machine: the same bytes as Python, and the same decisions."""

import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from edgemerge import Contribution, Detector, Monitor, Projection, Stats, decode, encode, save
from edgemerge.core.errors import CapacityError, SettingError
from edgemerge.core.limit import AlarmLevel
from edgemerge.embedded.export import header_text, to_c, to_files
from tests.cli.calls import call
from tests.embedded.conftest import FLAGS, SANITIZED
from tests.oracle.test_real_data import har, needs_data

pytestmark = pytest.mark.slow

ACTIVATIONS = ("identity", "sigmoid", "tanh", "relu", "cosine")
N_INPUTS, N_HIDDEN = 6, 12
FLOAT_TOLERANCE = 2e-4  # of a score, with float32 and one refinement of B
SINGULAR_TOLERANCE = 1e-2  # with float32, where the readout is nearly singular
DOUBLE_TOLERANCE = 1e-6  # scores are float32 then, too
NOT_FINITE, FULL, BAD_BYTES, OTHER_FLEET, CORRUPT, WRITE_FAILED = -2, -3, -4, -5, -6, -7


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

    def answers(self, timeout_s: float = 60.0) -> "Answers":
        done = subprocess.run(
            [self.program],
            input=b"".join(self.words),
            capture_output=True,
            check=False,
            timeout=timeout_s,
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


@pytest.mark.parametrize(
    "level",
    ["-Os", *(pytest.param(each, marks=pytest.mark.long) for each in ("-O1", "-O2", "-O3"))],
)
def test_the_optimizer_finds_nothing_to_warn_of(compiled, level, tmp_path):
    folder = compiled(projection()).program.parent
    source = Path(__file__).with_name("harness.c")
    words = [*FLAGS, level, "-I", folder, "-c", source, "-o", tmp_path / "harness.o"]
    subprocess.run(["cc", *words], check=True, timeout=120)


@pytest.fixture
def compiled(build):
    """Return a function that starts commands for a device with a projection."""
    return lambda p, *options, **more: Device(build(p, "harness.c", *options, **more))


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
    assert relative(found[1:], expected[1:]) < DOUBLE_TOLERANCE  # also while they are fewer than N


@pytest.mark.parametrize(("activation", "n_hidden"), [("identity", N_HIDDEN), ("relu", 24)])
def test_with_a_nearly_singular_readout_scores_in_float_are_off_by_thousandths(
    compiled, activation, n_hidden
):
    p, X = projection(activation, n_hidden=n_hidden), samples(600)
    device, python = compiled(p), Detector(p)
    device.rows("L", X)
    expected = np.array([python.learn_and_score(x) for x in X])
    found = device.answers().scores(len(X))
    assert relative(found[2 * n_hidden :], expected[2 * n_hidden :]) < SINGULAR_TOLERANCE


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


def test_ties_between_two_steps_are_rounded_as_in_python(compiled):
    rng = np.random.default_rng(6)
    even = projection("identity", low=-1.0, high=1.0)
    whole = rng.integers(-8, 9, (600, N_INPUTS)).astype(float)  # many XA + b lie between two steps
    p = projection("relu")
    ties = rng.integers(-4000, 4000, (600, N_INPUTS)) + 0.5
    ties = (ties - p.grid.shift) / p.grid.gain
    ties = np.nextafter(ties, ties * rng.choice([0.0, 1.0, 2.0], ties.shape))
    for each, X in ((even, whole), (p, ties)):
        device = compiled(each)
        device.rows("L", X)
        device.ask("C")
        answers = device.answers()
        answers.scores(len(X))
        expected = encode(Contribution("pump-3", Stats.of(each, X), revision=1))
        assert answers.contribution() == expected


def test_a_weight_of_negative_zero_keeps_its_sign_in_the_fingerprint(compiled):
    p = projection(width=2.0**-14)  # so that many weights round to 0
    assert np.signbit(p.A[p.A == 0.0]).any()
    compiled(p).answers()  # which recomputes the fingerprint first


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_weights_drawn_on_the_device_are_those_of_python(compiled, activation):
    names = tuple("abcdef") if activation in ("relu", "cosine") else None
    p, X = projection(activation, names=names, seed=2**64 - 3, grid_bits=9), samples(40)
    device = compiled(p, draw=True)  # which recomputes the fingerprint before and after
    device.rows("L", X)
    device.ask("C")
    answers = device.answers()
    answers.scores(len(X))
    assert answers.contribution() == encode(Contribution("pump-3", Stats.of(p, X), revision=1))


def test_drawn_weights_of_negative_zero_keep_their_sign(compiled):
    p = projection(width=2.0**-18)
    assert np.signbit(p.A[p.A == 0.0]).any()
    assert not np.signbit(p.A[p.A == 0.0]).all()
    compiled(p, draw=True).answers()


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


def test_sums_of_others_that_are_zero_or_negative_are_read_as_such(compiled):
    p, X, Z = projection("relu", names=tuple("abcdef")), samples(60), samples(100, 2)
    Y = samples(2000, 1)
    dark = int((p.project(Y) == 0.0).mean(0).argmax())
    Y = Y[p.project(Y)[:, dark] == 0.0]  # others never saw this hidden value
    total, device, python = Stats.of(p, Y), compiled(p, "-DEM_DOUBLE"), Detector(p)
    assert len(Y) > 2 * N_HIDDEN
    assert (total.U == 0.0).any()
    assert (total.V < 0.0).any()
    device.rows("L", X)
    data = encode(total)
    device.ask("A", len(data), data)
    device.rows("S", Z)
    answers = device.answers()
    answers.scores(len(X))
    assert answers.error() == 0
    python.learn(X)
    python.adopt(total)
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
    first = len(total) - 8 * (N_HIDDEN * (N_HIDDEN + 1) // 2 + (N_HIDDEN + 2) * N_INPUTS)
    for place in (0, N_HIDDEN):  # a sum of squares that is less than 0
        negative = bytearray(total)
        negative[first + 8 * place + 7] ^= 128
        wrong.append(bytes(negative))
    wrong.append(encode(Stats.of(p, samples(301, 1)) * 0.5))  # a count that is not whole
    wrong.append(first.to_bytes(8, "little") + total[8:first] + b" " * 8 + total[first:])
    round_the_end = (first + 96 - len(total)) % 2**64  # a length that 64 bits lead back to 104
    wrong.append(round_the_end.to_bytes(8, "little") + total[8:104])
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
    expected = [BAD_BYTES, BAD_BYTES, OTHER_FLEET, OTHER_FLEET, *[BAD_BYTES] * 5]
    assert errors[: len(wrong)] == expected
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


@pytest.mark.parametrize("activation", ["identity", "relu"])
def test_hidden_values_beyond_what_sums_can_hold_are_refused(compiled, activation):
    p = projection(activation, grid_bits=16, width=1024.0, n_hidden=1, low=-1.0, high=1.0)
    X = np.linspace(-250.0, 250.0, 401)[:, None] * np.ones(N_INPUTS)
    device = compiled(p)
    device.rows("S", X)
    found = device.answers().take("<i4,<f4", len(X))["f0"]
    far = np.abs(p.hidden(X)[:, 0]) > 2.0**26 * p.step
    assert found.tolist() == np.where(far, FULL, 0).tolist()
    assert 0 < far.sum() < len(X)


@pytest.mark.parametrize(
    ("activation", "sign", "error"),
    [("identity", 1, FULL), ("identity", -1, FULL), ("relu", 1, FULL), ("relu", -1, 0)],
)
def test_hidden_values_too_large_for_sums_are_refused(compiled, activation, sign, error):
    sizes = {"n_inputs": 40, "n_hidden": 1, "low": -1.0, "high": 1.0}
    p = projection(activation, grid_bits=16, **sizes)
    device = compiled(p)
    device.rows("S", sign * 256.0 * np.sign(p.A.T))  # as far as readings go
    assert device.answers().take("<i4,<f4")["f0"] == error


def almost_full() -> tuple[Projection, np.ndarray]:
    """Return a projection, and samples of two kinds that fill its sums after about a thousand."""
    p = projection("identity", grid_bits=16, low=-1.0, high=1.0, n_hidden=4)
    X = np.zeros((1500, N_INPUTS))
    X[::2, 0], X[1::2, 1] = 64.0, 64.0  # each fills its own
    return p, X


def learns(python: Detector, x: np.ndarray) -> bool:
    try:
        python.learn(x)
    except CapacityError:
        return False
    return True


def test_sums_are_full_when_one_of_them_is_as_in_python(compiled):
    p, X = almost_full()
    device, python = compiled(p), Detector(p)
    device.rows("L", X)
    found = device.answers().take("<i4,<f4", len(X))["f0"]
    expected = next(i for i, x in enumerate(X) if not learns(python, x))
    assert set(found.tolist()) == {0, FULL}
    assert (
        abs(int((found == FULL).argmax()) - expected) <= 2
    )  # all of a row must fit there, and each sum here
    assert 64.0**2 * 1.5 * expected > 2.0**21  # a bound for both kinds together would be full


def test_a_total_that_does_not_fit_with_own_sums_is_refused(compiled):
    p, X = almost_full()
    some, most = encode(Stats.of(p, X[:100])), encode(Stats.of(p, X[:900]))
    device = compiled(p)
    device.rows("L", X[:200])
    device.ask("A", len(some), some)
    device.rows("S", X[:4])
    device.ask("A", len(most), most)
    device.ask("D")
    device.rows("S", X[:4])
    answers = device.answers()
    answers.scores(200)
    assert answers.error() == 0
    before = answers.scores(4)
    assert answers.error() == FULL
    assert answers.digest()[1] == 200
    assert np.array_equal(answers.scores(4), before)


def test_a_share_that_fails_anywhere_ends_there_and_uses_up_its_revision(compiled):
    device, places = compiled(projection()), (0, 1, 2, 9, 30, 31, 100, 10**6)
    device.rows("L", samples(20))
    for place in places:
        device.ask("B", place)
    answers = device.answers()
    answers.scores(20)
    found = [answers.take("<i4,<u4,<u4").item() for _ in places]
    writes = found[-1][1]
    expected = [(WRITE_FAILED, place + 1, i) for i, place in enumerate(places[:-1], start=1)]
    assert found == [*expected, (0, writes, len(places))]
    assert writes > 100


def test_storage_that_cannot_be_erased_keeps_what_was_saved(compiled):
    device = compiled(projection())
    device.rows("L", samples(20))
    device.ask("W", 10**6)
    device.ask("D")
    device.rows("L", samples(5))
    device.ask("W", 2**32 - 1)
    device.ask("R")
    device.ask("D")
    answers = device.answers()
    answers.scores(20)
    assert answers.error() == 0
    before = answers.digest()
    answers.scores(5)
    assert [answers.error() for _ in "WR"] == [WRITE_FAILED, 0]
    assert answers.digest() == before


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


def test_no_flipped_bit_of_a_saved_state_goes_unseen(compiled):
    p, (calm, odd, _) = projection(), episodes()
    device = compiled(p)
    device.rows("T", np.vstack([calm, odd[:20]]))  # so that there is an episode to count
    size = 8 * (14 + N_HIDDEN * (N_HIDDEN + 1) // 2 + N_HIDDEN * N_INPUTS + 2 * N_INPUTS)
    bits = [*range(13 * 64), *range(13 * 64, 8 * size - 64, 61), *range(8 * size - 64, 8 * size)]
    device.ask("W", size)
    device.ask("E")
    device.ask("D")
    for bit in bits:
        device.ask("Y", bit)
        device.ask("R")
        device.ask("E")
        device.ask("D")
        device.ask("Y", bit)
    answers = device.answers()
    answers.results(len(calm) + 20)
    assert answers.error() == 0
    saved, digest = answers.take("<u4", 6), answers.digest()
    assert saved[1] == 1  # episode
    fingerprint = range(128, 640)
    for bit in bits:
        error, found, sums = answers.error(), answers.take("<u4", 6), answers.digest()
        if error:
            assert error == (OTHER_FLEET if bit in fingerprint else CORRUPT)
            assert sums[1] == 0
        else:  # the last half word is not used
            assert bit >= 8 * size - 64
            assert (found.tolist(), sums) == (saved.tolist(), digest)


def test_a_state_that_was_resumed_is_complete_before_the_next_sample(compiled):
    p, X, Z = projection(), samples(100), samples(50, 1)
    total, device = encode(Stats.of(p, samples(300, 2))), compiled(p)
    device.rows("L", X)
    device.ask("W", 10**6)
    device.ask("A", len(total), total)
    device.rows("S", Z)
    device.ask("R")
    device.ask("A", len(total), total)
    device.rows("S", Z)
    answers = device.answers()
    answers.scores(len(X))
    assert (answers.error(), answers.error()) == (0, 0)
    before = answers.scores(len(Z))
    assert (answers.error(), answers.error()) == (0, 0)  # there is room for what others saw
    assert np.array_equal(answers.scores(len(Z)), before)


def test_the_newest_of_two_whole_states_is_resumed_and_counts_what_fits(compiled):
    p = projection("identity", grid_bits=16, low=-1.0, high=1.0)
    X = np.full((150, N_INPUTS), 60.0)  # fills the sums within so many samples
    device, other = compiled(p), compiled(p)
    for part in (X[:5], X[5:10], X[10:15]):  # in one slot, the other, the first again
        device.rows("L", part)
        device.ask("W", 10**6)
        device.ask("R")
        device.ask("D")
    device.rows("L", X[15:])
    other.rows("L", X)
    answers = device.answers()
    for count in (5, 10, 15):
        answers.take("<i4,<f4", 5)
        assert (answers.error(), answers.error()) == (0, 0)
        assert answers.digest()[1] == count
    found = answers.take("<i4,<f4", 135)["f0"]
    assert found.tolist() == other.answers().take("<i4,<f4", 150)["f0"][15:].tolist()
    assert set(found.tolist()) == {0, FULL}


def test_a_pattern_is_saved_with_the_state(compiled):
    p = projection()
    calm, odd, other = episodes()
    quiet = calm[:30]
    found = []
    for cut in (False, True):
        device = compiled(p)
        device.ask("K")
        for part in (calm, odd, quiet):
            device.rows("T", part)
        device.ask("W", 10**6)
        if cut:
            device.ask("R", 1)
        device.ask("F")
        for part in (other, quiet, odd[50:101], quiet):
            device.rows("T", part)
        for each in "FCF":
            device.ask(each)
        device.ask("V", 1)
        device.ask("C")
        answers = device.answers()
        assert answers.error() == 0
        for part in (calm, odd, quiet):
            answers.results(len(part))
        assert answers.error() == 0
        assert not cut or answers.error() == 0
        kept = [decode(answers.contribution(), Contribution).stats]
        results = [answers.results(len(part)) for part in (other, quiet, odd[50:101], quiet)]
        kept += [decode(answers.contribution(), Contribution).stats for _ in "FCF"]
        assert answers.error() == 0
        kept.append(decode(answers.contribution(), Contribution).stats)
        found.append((kept, [each["alarm"].tolist() for each in results[::2]]))
    assert found[0][0][0].count > 100
    assert found[0][0][1].count > found[0][0][0].count  # what points the same way joins it later
    assert found[1] == found[0]


def test_a_pattern_that_was_resumed_knows_its_blocks_and_its_largest_sum(compiled):
    calm, odd, other = episodes()
    device = compiled(projection())
    device.ask("K")
    for part in (calm, odd, calm[:30], other, calm[:30]):
        device.rows("T", part)
    device.ask("P")
    device.ask("W", 10**6)
    device.ask("R", 1)
    device.ask("P")
    device.ask("F")
    answers = device.answers()
    assert answers.error() == 0
    answers.results(2 * 30 + len(calm) + len(odd) + len(other))
    before = answers.take("<u4,<u4,<i8").item()
    assert [answers.error() for _ in "WR"] == [0, 0]
    after = answers.take("<u4,<u4,<i8").item()
    assert min(before) > 0
    assert after[:2] == before[:2]
    sums = decode(answers.contribution(), Contribution).stats
    quanta = sums.U.max() * 4.0**sums.projection.grid_bits
    assert quanta <= after[2] <= before[2]  # a bound while samples are added


def test_a_pattern_approved_after_a_restart_is_learnt(compiled):
    p = projection()
    calm, odd, _ = episodes()
    device = compiled(p)
    device.ask("K")
    device.rows("T", calm)
    device.rows("T", odd)
    device.ask("F")
    device.ask("W", 10**6)
    device.ask("R", 1)
    device.ask("V", 1)
    device.ask("C")
    answers = device.answers()
    assert answers.error() == 0
    learnt = answers.results(len(calm))["learnt"].sum()
    answers.results(len(odd))
    pattern = decode(answers.contribution(), Contribution).stats
    assert [answers.error() for _ in "WRV"] == [0, 0, 0]
    mine = decode(answers.contribution(), Contribution).stats
    assert mine.count == pytest.approx(learnt + pattern.count, abs=5)  # some odd ones waited


def test_a_state_with_a_pattern_is_resumed_without_memory_for_it(compiled):
    p = projection()
    calm, odd, _ = episodes()
    device = compiled(p)
    device.ask("K")
    device.rows("T", calm)
    device.rows("T", odd)
    device.ask("D")
    device.ask("W", 10**6)
    device.ask("R", 0)
    device.ask("D")
    answers = device.answers()
    assert answers.error() == 0
    answers.results(len(calm))
    answers.results(len(odd))
    before = answers.digest()
    assert (answers.error(), answers.error()) == (0, 0)
    assert answers.digest() == before


def test_storage_that_fails_while_it_is_read_leaves_a_device_that_starts_afresh(compiled):
    p = projection()
    calm, odd, _ = episodes()
    empty, device = compiled(p), compiled(p)
    empty.ask("K")
    empty.ask("D")
    empty.ask("F")
    device.ask("K")
    device.rows("T", calm)
    device.rows("T", odd)
    device.ask("W", 10**6)
    sums = N_HIDDEN * (N_HIDDEN + 1) // 2 + N_HIDDEN * N_INPUTS + 2 * N_INPUTS
    whole = 8 * (17 + 2 * sums + N_INPUTS)
    for more in (8, 8 * 20, whole - 96):  # both slots were read: the first is empty
        device.ask("Q", 8 + whole + more)
        device.ask("D")
        device.ask("F")
    answers, nothing = device.answers(), empty.answers()
    assert (answers.error(), nothing.error()) == (0, 0)
    answers.results(len(calm))
    answers.results(len(odd))
    assert answers.error() == 0
    before, pattern = nothing.digest(), nothing.contribution()
    for _ in range(3):
        assert answers.error() == CORRUPT
        assert answers.digest() == before
        assert answers.contribution() == pattern


def test_a_total_without_samples_is_as_good_as_none(compiled):
    p, X = projection(), samples(100)
    total, device = encode(Stats.empty(p)), compiled(p)
    device.ask("A", len(total), total)
    device.rows("L", X)
    answers, python = device.answers(), Detector(p)
    assert answers.error() == 0
    expected = np.array([python.learn_and_score(x) for x in X])
    found = answers.scores(len(X))
    assert np.isfinite(found).all()
    assert relative(found[2 * N_HIDDEN :], expected[2 * N_HIDDEN :]) < FLOAT_TOLERANCE


@pytest.mark.parametrize("activation", ["tanh", "identity"])
def test_steps_far_outside_the_range_are_clipped_as_readings_are(compiled, activation):
    p, X = projection(activation), p_steps(samples(40), activation)
    far = np.array([[2**31 - 1, -(2**31), 2**30, 256 << 12, -(256 << 12) - 1, 5]])
    one, other = compiled(p), compiled(p)
    one.rows("G", np.vstack([X, far, X]), "<i4")
    other.rows("G", np.vstack([X, np.clip(far, -(256 << 12), 256 << 12), X]), "<i4")
    assert one.answers().data == other.answers().data


def p_steps(X: np.ndarray, activation: str) -> np.ndarray:
    p = projection(activation)
    return p.to_grid(X) / p.step


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


@pytest.mark.parametrize("odd_share", [0.2, 0.4])
def test_what_is_learnt_follows_from_scores_and_alarms_as_in_a_monitor(compiled, odd_share):
    p, rng, first = projection(), np.random.default_rng(8), 16 * N_HIDDEN
    X = samples(first + 1500)
    X[first:, 2] += np.where(rng.random(1500) < odd_share, rng.choice([0.5, 1.5], 1500), 0.0)
    device = compiled(p)
    device.rows("T", X)
    device.ask("C")
    answers = device.answers()
    found = answers.results(len(X))
    learnt, waiting, longest = [], [], 0
    for at, (_, score, _, ready, alarm, _, *_) in enumerate(found.tolist()):
        if alarm:
            waiting = []
            continue
        (waiting if ready and score > 4.0 else learnt).append(at)
        if waiting and waiting[0] <= at - 5:
            isolated = waiting.pop(0)
            learnt += [isolated] if found["score"][isolated] <= 16.0 else []
        longest = max(longest, len(waiting))
    assert longest == 2  # with three there is an episode
    assert found["alarm"].any()
    assert decode(answers.contribution(), Contribution).stats == Stats.of(p, X[learnt])


def test_odd_samples_beyond_the_room_for_them_are_left_out_when_the_limit_is_raised(compiled):
    p, first = projection(), 16 * N_HIDDEN
    X = samples(first + 40)
    X[first : first + 8, 2] += [0.0, 0.6, 0.6, 1.5, 1.5, 1.5, 1.5, 0.0]
    device = compiled(p)
    device.rows("T", X[: first + 3])
    device.ask("M", 256 * 20)
    device.rows("T", X[first + 3 :])
    device.ask("D")
    answers = device.answers()
    before, after = answers.results(first + 3), answers.results(37)
    assert (before["score"][-2:] > 4.0).all()
    assert not before["alarm"].any()
    assert (after["score"][:3] > 20.0).all()
    assert after["alarm"].sum() >= 3
    assert answers.digest()[1] <= len(X) - 4


def test_full_sums_are_scored_and_alarm_and_stay_as_they_are(compiled):
    p = projection("identity", grid_bits=16, low=-1.0, high=1.0, n_hidden=4)
    rng = np.random.default_rng(9)
    X = rng.normal(0.0, 60.0, (400, 1)) * np.ones(N_INPUTS) + rng.normal(0.0, 1.0, (400, N_INPUTS))
    device = compiled(p)
    device.rows("L", X)
    device.ask("D")
    device.rows("T", X[:20])
    device.rows("T", X[:20] * [1.0, -1.0, 1.0, -1.0, 1.0, -1.0])
    device.ask("D")
    answers = device.answers()
    errors = answers.take("<i4,<f4", len(X))["f0"]
    assert set(errors.tolist()) == {0, FULL}
    before = answers.digest()
    assert before[1] == (errors == 0).sum()
    kind = [("error", "<i4"), ("score", "<f4"), ("level", "<f4"), ("marks", "u1", 4)]
    found = answers.take(kind, 40)
    assert (found["score"] > 0.0).all()
    assert (found["error"][:20] == FULL).any()
    assert found["marks"][-1, 1]  # an alarm is raised all the same
    assert answers.digest() == before


def test_integers_on_the_grid_give_the_same_as_readings(compiled):
    p, X = projection(), samples(300)
    one, other = compiled(p), compiled(p)
    one.rows("T", X)
    other.rows("G", p.to_grid(X) / p.step, "<i4")
    assert one.answers().data == other.answers().data


@pytest.mark.parametrize(
    "ranges",
    [
        # steps of two, exact; every second reading is a tie; converters; beyond integers: doubles
        [(0, 4096), (0, 16384), (0, 3300), (-32768, 32767), (-3, 5), (-1e300, 1e300)],
        [
            (1e9, 1e9 + 7),
            (0.1, 0.2),
            (12345.678, 12346),
            (-7.5, 0.25),
            (0, 1e6),
            (2.0**70, 2.0**70 + 2**20),
        ],
    ],
)
def test_whole_numbers_need_no_doubles_and_give_the_same(compiled, ranges):
    low, high = np.array(ranges).T
    p = projection(low=low, high=high)
    rng = np.random.default_rng(1)
    ends = np.clip([low - 2.0 * (high - low), high + 2.0 * (high - low)], -(2.0**31), 2.0**31 - 1)
    edges = np.array([-(2**31), 2**31 - 1, 0, 1, -1, 2])
    lowest, highest = np.rint(ends).astype(np.int64)
    near = rng.integers(lowest, highest, size=(20000, N_INPUTS), endpoint=True)
    X = np.vstack([near, rng.integers(-(2**31), 2**31, (2000, N_INPUTS)), edges])
    device = compiled(p)
    device.rows("X", X, "<i4")
    found = device.answers().take("<i4", X.size).reshape(X.shape)
    assert np.array_equal(found, p.to_grid(X.astype(float)) / p.step)


def test_whole_numbers_are_taken_like_readings(compiled):
    p = projection(low=0.0, high=3300.0)
    X = np.rint((samples(300) + 3.0) * 400.0)
    one, other = compiled(p), compiled(p)
    one.rows("T", X)
    other.rows("I", X, "<i4")
    assert one.answers().data == other.answers().data


def episodes() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return calm samples, and odd ones of two kinds."""
    calm, odd, other = samples(16 * N_HIDDEN + 100), samples(150, 1), samples(150, 2)
    odd[:, 2] += 1.5
    other[:, 4] -= 1.5
    return calm, odd, other


def test_the_odd_samples_of_an_episode_are_kept_as_in_a_monitor(compiled):
    p = projection()
    calm, odd, other = episodes()
    quiet = calm[:30]
    device = compiled(p, "-DEM_DOUBLE")
    device.ask("K")
    parts = [calm, odd, quiet, odd[:3], quiet, other, quiet, odd[50:101], quiet]
    for part in parts:
        device.rows("T", part)
    device.ask("F")
    device.ask("C")
    answers = device.answers()
    assert answers.error() == 0
    results = [answers.results(len(part)) for part in parts]
    assert [r["alarm"].any() for r in results[1::2]] == [True, True, True, True]
    fault = decode(answers.contribution(), Contribution)
    # a monitor on a learner that has learnt what the device had learnt when the fault began
    learner = Detector(p)
    learner.learn(calm[results[0]["learnt"]])
    monitor = Monitor(learner, limit=4.0)
    for part in parts[1:]:
        for at, x in enumerate(part):
            monitor.take(x, float(at))
    known = monitor.odd_patterns["odd-1"]
    assert fault.stats == known.stats
    assert (fault.kind, fault.pattern, fault.device) == ("fault", "bearing", "pump-3")
    assert 150 < fault.stats.count < 220  # of odd samples, and of none of the other kind
    assert answers.contribution().find(b'"revision":"2"') > 0


TURNS = {  # of the direction in which a block of samples is odd, in radians
    "not below 0.5": [0, 1.26, -1.26, -0.93, -0.92, 0.91, 0.94, 1.27, -1.29, 1.16, -0.05, 1.22],
    "not above 0.9": [0, 0, 0, -0.6, -0.9, -1.2, -0.3, -0.3],
    "from four blocks on": [0, -0.5, 0.2, 0.7, 0.5, 1, 0.9, 1],
    "not from three on": [0, -0.6, -1.1, -1.2, 0.8, 1, 0.3, 0.6],
}


@pytest.mark.parametrize("case", TURNS)
def test_blocks_join_the_pattern_up_to_the_angle_of_a_monitor(compiled, case):
    p, calm, turns = projection(), episodes()[0], np.repeat(TURNS[case], 8)
    odd = samples(len(turns), 51)
    odd[:, 2] += 1.5 * np.cos(turns)
    odd[:, 4] -= 1.5 * np.sin(turns)
    device = compiled(p, "-DEM_DOUBLE")
    device.ask("K")
    device.rows("T", calm)
    device.rows("T", odd)
    device.ask("F")
    answers, learner = device.answers(), Detector(p)
    assert answers.error() == 0
    learner.learn(calm[answers.results(len(calm))["learnt"]])
    answers.results(len(odd))
    monitor = Monitor(learner, limit=4.0)
    for at, x in enumerate(odd):
        monitor.take(x, float(at))
    pattern = decode(answers.contribution(), Contribution).stats
    assert pattern == monitor.odd_patterns["odd-1"].stats


def test_without_memory_for_a_pattern_there_is_none_to_share_or_review(compiled):
    device = compiled(projection())
    device.ask("F")
    for approve in (0, 1):
        device.ask("V", approve)
    device.ask("D")
    answers = device.answers()
    assert [answers.error() for _ in "FVV"] == [BAD_BYTES, 0, 0]
    assert answers.digest()[1] == 0


def test_a_pattern_for_which_there_is_no_room_is_not_approved(compiled):
    p, X = almost_full()
    rng = np.random.default_rng(4)
    calm = X[:1000] + rng.normal(0.0, 1.0, (1000, N_INPUTS))
    odd = rng.normal(0.0, 1.0, (60, N_INPUTS)) + 100.0 * np.array([1, -1, 1, -1, 1, -1])
    device = compiled(p)
    device.ask("K")
    device.rows("L", calm)
    device.rows("T", odd)
    for each in "FD":
        device.ask(each)
    device.ask("V", 1)
    for each in "DF":
        device.ask(each)
    answers = device.answers()
    assert answers.error() == 0
    answers.scores(len(calm))
    answers.take([("error", "<i4"), ("score", "<f4"), ("level", "<f4"), ("marks", "u1", 4)], 60)
    pattern, before = answers.contribution(), answers.digest()
    assert decode(pattern, Contribution).stats.count > 20
    assert answers.error() == FULL
    assert answers.digest() == before
    kept = decode(answers.contribution(), Contribution).stats
    assert kept == decode(pattern, Contribution).stats


@pytest.mark.parametrize("approve", [1, 0])
def test_a_pattern_is_approved_or_dismissed(compiled, approve):
    p = projection()
    calm, odd, _ = episodes()
    device = compiled(p)
    device.ask("K")
    device.rows("T", calm)
    device.rows("T", odd)
    for each in "CF":
        device.ask(each)
    device.ask("V", approve)
    for each in "CF":
        device.ask(each)
    device.rows("T", odd)
    answers = device.answers()
    assert answers.error() == 0
    answers.results(len(calm))
    assert answers.results(len(odd))["alarm"][-1]
    own, pattern = (decode(answers.contribution(), Contribution).stats for _ in "CF")
    assert pattern.count == 8 * (len(odd) // 8)  # whole blocks of samples
    assert answers.error() == 0
    mine, left = (decode(answers.contribution(), Contribution).stats for _ in "CF")
    assert mine == (own + pattern if approve else own)
    assert left == Stats.empty(p)
    assert answers.results(len(odd))["alarm"][20:].any() == (not approve)


@pytest.mark.parametrize("options", [(), ("--c", "--draw")])
def test_the_command_writes_headers_constants_and_an_example(tmp_path, options):
    p = projection("cosine")
    save(p, tmp_path / "pump.projection")
    words = (str(tmp_path / "pump.projection"), "--name", "mill", "--out", tmp_path, *options)
    answer = call("export", *words)
    assert answer.exit_code == 0
    assert (tmp_path / "edgemerge.h").read_text(encoding="utf-8") == header_text()
    expected = to_c(p, "mill", draw=bool(options))
    assert (tmp_path / "mill.h").read_text(encoding="utf-8") == expected
    build = ["cc", *FLAGS, "-O2", "-c", tmp_path / "mill_example.c", "-o", tmp_path / "mill.o"]
    subprocess.run(build, check=True, timeout=120)


def test_the_example_goes_on_watching_when_its_sums_are_full(tmp_path):
    p = projection("identity", grid_bits=16, n_hidden=4, low=-100.0, high=100.0)
    for file, text in to_files(p, "pump").items():
        (tmp_path / file).write_text(text, encoding="utf-8")
    board, program = Path(__file__).with_name("board.c"), tmp_path / "run"
    words = [*FLAGS, *SANITIZED, "-I", tmp_path, tmp_path / "pump_example.c", board, "-o", program]
    subprocess.run(["cc", *words], check=True, timeout=120)
    rng = np.random.default_rng(9)
    calm = rng.normal(0.0, 6000.0, (400, 1)) * np.ones(N_INPUTS) + rng.normal(0, 99.0, (400, 6))
    odd = calm[:20] * [1.0, -1.0, 1.0, -1.0, 1.0, -1.0]
    with pytest.raises(CapacityError):
        Detector(p).learn(np.rint(calm))
    data = np.rint(np.vstack([calm, odd])).astype("<i4").tobytes()
    done = subprocess.run([program], input=data, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    assert set(done.stdout) == set(b"a")
    assert len(done.stdout) >= 15


@pytest.mark.mcu_long
def test_a_million_samples_with_a_stuck_sensor_leave_a_finite_and_right_score(compiled):
    p, X = projection(), np.tile(samples(10_000), (100, 1))
    X[1000:, 3] = X[1000, 3]
    Z = samples(200, 5)
    device, python = compiled(p, "-O2"), Detector(p)
    device.rows("L", X)
    device.rows("S", Z)
    device.ask("C")
    answers = device.answers(280)
    assert np.isfinite(answers.scores(len(X))).all()
    python.learn(X)
    expected = np.array([python.score(z) for z in Z])
    assert relative(answers.scores(len(Z)), expected) < FLOAT_TOLERANCE
    assert answers.contribution() == encode(python.share("pump-3", revision=1)[0])


@pytest.mark.mcu_long
@needs_data
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_ten_thousand_samples_of_har_give_the_same_bytes_and_alarms(compiled, activation):
    X = np.ascontiguousarray(har()[0][:10_000])
    p = Projection(n_inputs=561, n_hidden=64, seed=7, activation=activation)
    device, python = compiled(p, "-O2"), Detector(p)
    device.rows("L", X)
    device.ask("C")
    answers = device.answers(280)
    expected = np.array([python.learn_and_score(x) for x in X])
    found, ready = answers.scores(len(X)), int(1.3 * 64) + 1
    assert answers.contribution() == encode(python.share("pump-3", revision=1)[0])
    assert relative(found[ready:], expected[ready:]) < FLOAT_TOLERANCE
    one, other = AlarmLevel(), AlarmLevel()
    pairs = zip(found[ready:], expected[ready:], strict=True)
    decisions = [(one.update(a) > 4.0, other.update(b) > 4.0) for a, b in pairs]
    assert all(mine == theirs for mine, theirs in decisions)


def test_a_name_that_c_does_not_allow_is_refused():
    with pytest.raises(SettingError, match="letters, digits and underscores"):
        to_c(projection(), "pump-3")
