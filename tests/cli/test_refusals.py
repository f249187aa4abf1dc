"""What commands on files refuse, each with words about what to do, and nothing written."""

import pytest

from edgemerge import (
    Bank,
    Contribution,
    Projection,
    Stats,
    save,
)
from edgemerge.core.ledger import Merged, MergedPart
from tests.cli.calls import call, failure
from tests.cli.pumps import AGREE, FAST, IDLE, SHARED, detector, written


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("learn", "none", "s.csv"), "No such file; --new bank creates it"),
        (("learn", "pump", "s.csv", "--new", "bank"), "leave --new out to continue"),
        (("learn", "pump", "s.csv", "--n-hidden", 3), "add --new bank, or leave them out"),
        (("learn", "new", "s.csv", "--new", "bank"), "--range-from SAMPLES, or --n-inputs, --low"),
        (
            ("learn", "new", "s.csv", "--new", "bank", "--projection", "pump", "--seed", 1),
            "expected one of them",
        ),
        (
            ("learn", "new", "s.csv", "--new", "bank", "--range-from", "s.csv", "--low", -1),
            "expected one of them",
        ),
        (
            ("learn", "new", "s.csv", "--new", "detector", *AGREE, "--max-patterns", 2),
            "leave --max-patterns out",
        ),
        (
            ("learn", "new", "s.csv", "--new", "bank", "--range-from", "empty.csv"),
            "found no samples",
        ),
        (
            ("learn", "new", "s.csv", "--new", "bank", "--range-from", "s.csv", "--n-inputs", 5),
            "expected --n-inputs of them",
        ),
        (
            ("learn", "pump", "empty.csv", "--columns", "a,b"),
            "empty.csv: found no sample, expected",
        ),
        (("learn", "pump", "gone.csv"), "gone.csv: No such file or directory"),
        (("learn", "note", "s.csv"), "found a contribution, expected a detector or bank"),
        (("score", "note", "s.csv"), "`edgemerge learn` makes one"),
        (("share", "note", "--device", "a", "--revision", 1, "--out", "x"), "expected a detector"),
        (("share", "pump", "--device", "", "--revision", 1, "--out", "x"), "device ''"),
        (
            ("share", "bank", "--device", "a", "--revision", 1, "--out", "x"),
            "let it learn first",
        ),
        (
            ("share", "bank", "--device", "a", "--revision", 1, "--out", "x", "--pattern", "p"),
            "names its patterns itself: leave it out",
        ),
        (("merge", "pump", "--out", "x"), "expected a learner and contributions"),
        (("merge", "pump", "pump", "--out", "x"), "found a detector, expected a contribution"),
        (("merge", "pump", "other", "--out", "x"), "every device must build the same Projection"),
        (("merge", "--total", "note", "other", "--out", "x"), "other: Projection("),
        (("merge", "pump", "lie", "--out", "x"), "lie: pump-9, normal: found a U and V"),
        (("merge", "bank", "sums", "--out", "x"), "expected contributions for a bank"),
        (("merge", "--total", "sums", "--out", "x"), "add --as stats"),
        (("merge", "pump", "told", "note", "--out", "x"), "leave one of them out"),
        (("merge", "pump", "told", "--without", "pump-2", "--out", "x"), "pull a sum without it"),
        (("merge", "pump", "mine", "--out", "x"), "add --without pump-1"),
    ],
)
def test_what_cannot_be_done_is_told_with_what_to_do(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "s.csv", IDLE)
    (tmp_path / "empty.csv").write_text("a,b\n", encoding="utf-8")
    pump, fast = detector(IDLE), Stats.of(SHARED, FAST)
    note = Contribution("pump-2", fast, revision=1)
    (mine,) = pump.share("pump-1", revision=1)
    other = Projection(n_inputs=6, n_hidden=16, seed=8)
    lie = Stats(SHARED, fast.U.copy(), -fast.V, fast.C.copy(), fast.S.copy(), fast.count)
    for name, thing in {
        "pump": pump,
        "bank": Bank(SHARED),
        "note": note,
        "mine": mine,
        "other": Contribution("pump-3", Stats.of(other, FAST), revision=1),
        "lie": Contribution("pump-9", lie, revision=1),
        "sums": fast,
        "told": Merged(SHARED, (MergedPart.of([note], SHARED),)),
    }.items():
        save(thing, tmp_path / name)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert words in failure(call(*arguments))
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert after == before
