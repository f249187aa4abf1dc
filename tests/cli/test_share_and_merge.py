"""Sharing and merging by files."""

import json
from pathlib import Path

import numpy as np
import pytest

from edgemerge import (
    Bank,
    Contribution,
    Detector,
    Ledger,
    Projection,
    Stats,
    admit,
    decode,
    encode,
    load,
)
from edgemerge.core.errors import RejectedError
from edgemerge.core.ledger import Merged, MergedPart
from edgemerge.core.limit import loss_shift
from edgemerge.wire.codec import form_of
from tests.cli.calls import call, failure
from tests.cli.pumps import FAST, IDLE, SHARED, detector, saved


@pytest.mark.parametrize("form", ["exact", "float32", "root16"])
def test_a_detector_is_shared_as_one_file_in_any_form(tmp_path, form):
    pump = saved(detector(IDLE), tmp_path / "pump")
    words = ("--device", "pump-1", "--revision", 3, "--incarnation", 2, "--pattern", "idle")
    result = call("share", pump, *words, "--form", form, "--out", tmp_path / "note", "--json")
    data = (tmp_path / "note").read_bytes()
    (told,) = json.loads(result.stdout)
    assert told["bytes"] == len(data)
    assert form_of(data) == form
    note = load(tmp_path / "note")
    assert (note.device, note.revision, note.incarnation) == ("pump-1", 3, 2)
    assert (note.pattern, note.stats.count) == ("idle", 400.0)
    assert (note.stats == detector(IDLE).own) == (form == "exact")


def test_a_bank_is_shared_as_a_folder_with_a_file_for_each_pattern(tmp_path):
    bank = Bank(SHARED)
    bank.learn(np.vstack([IDLE, FAST]))
    assert len(bank) > 1
    first = next(iter(bank))
    bank.rename(first, "../ü /x")
    path = saved(bank, tmp_path / "bank")
    call("share", path, "--device", "pump-1", "--revision", 1, "--out", tmp_path / "out")
    files = list((tmp_path / "out").iterdir())
    shared = {note.pattern: note.stats for note in load(path).share("pump-1", revision=1)}
    assert {load(file).pattern: load(file).stats for file in files} == shared
    assert len(list(tmp_path.iterdir())) == 2


def test_few_samples_are_shared_with_a_warning(tmp_path):
    pump = saved(detector(IDLE[:31]), tmp_path / "pump")
    result = call("share", pump, "--device", "a", "--revision", 1, "--out", tmp_path / "note")
    assert result.exit_code == 0
    assert "share after 32 or more" in result.stderr
    enough = saved(detector(IDLE[:32]), tmp_path / "enough")
    result = call("share", enough, "--device", "a", "--revision", 1, "--out", tmp_path / "note")
    assert result.stderr == ""


# merge


@pytest.fixture
def notes(tmp_path) -> list[Path]:
    parts = {"pump-2": FAST[:200], "pump-3": FAST[200:]}
    return [
        saved(Contribution(device, Stats.of(SHARED, rows), revision=1), tmp_path / device)
        for device, rows in parts.items()
    ]


def test_a_detector_adopts_contributions_as_if_it_had_seen_all(tmp_path, notes):
    pump = saved(detector(IDLE), tmp_path / "pump")
    result = call("merge", pump, *notes, notes[0], "--out", tmp_path / "merged", "--json")
    told = json.loads(result.stdout)
    merged = load(tmp_path / "merged")
    assert merged.others == Stats.of(SHARED, FAST)
    assert merged.own == Stats.of(SHARED, IDLE)
    assert (told["own_samples"], told["others_before"], told["others_samples"]) == (400, 0, 400)
    assert told["devices"] == ["pump-2", "pump-3"]
    before, after = detector(IDLE).readout, merged.readout
    expected = loss_shift(detector(IDLE).own, before, after)
    assert told["level_shift"] == {"normal": pytest.approx(expected, abs=1e-4)}


def test_a_merge_that_raises_its_own_level_is_remarked_upon(tmp_path, notes):
    result = call("merge", saved(detector(IDLE), tmp_path / "p"), *notes, "--out", tmp_path / "m")
    shift = float(result.stdout.split()[-1])
    assert ("check what was merged" in result.stderr) == (shift > 2.0)


def test_of_two_revisions_the_newer_counts_whatever_their_order(tmp_path, notes):
    new = Contribution("pump-2", Stats.of(SHARED, FAST[:300]), revision=2)
    newer = saved(new, tmp_path / "newer")
    pump = saved(detector(IDLE), tmp_path / "pump")
    for files in ([notes[0], newer], [newer, notes[0]]):
        assert call("merge", pump, *files, "--out", tmp_path / "merged").exit_code == 0
        assert load(tmp_path / "merged").others == new.stats


def test_ledgers_sums_and_what_an_exchange_told_are_merged_too(tmp_path, notes):
    ledger = Ledger(SHARED)
    ledger.put(load(notes[0]))
    told = Merged(SHARED, (MergedPart.of([load(notes[1])], SHARED),))
    files = [saved(ledger, tmp_path / "ledger"), saved(told, tmp_path / "told")]
    files.append(saved(Stats.of(SHARED, IDLE[:7]), tmp_path / "sums"))
    pump = saved(detector(IDLE), tmp_path / "pump")
    assert call("merge", pump, *files, "--out", tmp_path / "merged").exit_code == 0
    expected = Stats.of(SHARED, np.vstack([FAST, IDLE[:7]]))
    assert load(tmp_path / "merged").others == expected


def test_ones_own_contribution_is_left_out_by_name(tmp_path, notes):
    pump = detector(IDLE)
    mine = saved(pump.share("pump-1", revision=1)[0], tmp_path / "mine")
    path = saved(pump, tmp_path / "pump")
    result = call("merge", path, *notes, mine, "--without", "pump-1", "--out", path)
    assert result.exit_code == 0
    assert load(path).others == Stats.of(SHARED, FAST)


def test_a_bank_adopts_patterns_and_knows_them_afterwards(tmp_path, notes):
    bank = Bank(SHARED)
    bank.learn(IDLE[:390])
    path = saved(bank, tmp_path / "bank")
    assert len(bank.waiting)
    assert bank.score(FAST).mean() > 4.0
    result = call("merge", path, *notes, "--out", path, "--json")
    told, merged = json.loads(result.stdout), load(path)
    assert merged.score(FAST).mean() < 2.0
    assert told["others_samples"] == 400.0
    assert told["own_samples"] + merged.rejected == 390.0
    assert all(shift == 1.0 for shift in told["level_shift"].values())


def test_contributions_in_a_smaller_form_are_checked_with_the_slack_of_that_form(tmp_path):
    straight = Projection(n_inputs=6, n_hidden=16, seed=7, activation="identity")
    note = tmp_path / "note"
    note.write_bytes(encode(Contribution("pump-2", Stats.of(straight, FAST), 1), "root16"))
    with pytest.raises(RejectedError):
        admit(load(note), projection=straight)  # as exact, it could not be true
    pump = saved(Detector(straight), tmp_path / "pump")
    assert call("merge", pump, note, "--out", tmp_path / "merged").exit_code == 0
    assert load(tmp_path / "merged").others.count == 400.0


def test_ones_own_contribution_is_recognised_when_its_sums_were_rounded(tmp_path):
    pump = detector(np.tile(FAST, (60, 1)))
    data = encode(pump.share("pump-1", revision=1)[0], "float32")
    assert not np.array_equal(decode(data).stats.C, pump.own.C)
    (tmp_path / "note").write_bytes(data)
    path = saved(pump, tmp_path / "pump")
    result = call("merge", path, tmp_path / "note", "--out", tmp_path / "merged")
    assert failure(result).endswith("add --without pump-1")


def test_contributions_are_summed_up_with_or_without_their_origin(tmp_path, notes):
    call("merge", "--total", *notes, "--out", tmp_path / "ledger")
    assert load(tmp_path / "ledger").devices == ["pump-2", "pump-3"]
    result = call("merge", "--total", *notes, "--as", "stats", "--out", tmp_path / "sum", "--json")
    assert load(tmp_path / "sum") == Stats.of(SHARED, FAST)
    assert json.loads(result.stdout)["samples"] == 400.0
