"""A device gives what it saw, under a revision that rises, and keeps what it is told."""

from time import time

import numpy as np
import pytest

from edgemerge import Bank, Detector, EdgemergeError, Ledger, Stats, encode, load, save
from edgemerge.core.ledger import Merged, MergedPart
from edgemerge.flower.device import adopt, decode_history
from tests.flower.fleet import OTHER, SHARED, note, rows
from tests.flower.nodes import given, learnt, node_of, told


def test_a_detector_in_a_file_gives_its_own_and_not_what_it_was_told(tmp_path):
    pump = Detector(SHARED)
    pump.adopt(Stats.of(SHARED, rows(9)))
    state = learnt(pump, tmp_path / "pump", 1)
    fields, [found] = given(node_of("a", state=state, incarnation=3))
    assert found.stats == Stats.of(SHARED, rows(1))
    assert found.key == ("a", 3, "normal")
    assert fields["revision"] == found.revision > 0
    assert (fields["grouped"], fields["incarnation"]) == (0, 3)


def test_a_bank_gives_its_patterns_and_is_not_changed_by_it(tmp_path):
    state = learnt(Bank(SHARED), tmp_path / "bank", 1, 2)
    before = state.read_bytes()
    fields, notes = given(node_of("a", state=state))
    assert fields["grouped"] == 1
    bank = load(state, Bank)
    assert {n.pattern: n.stats for n in notes} == {name: bank[name].own for name in bank}
    assert len(bank.waiting) == 16, "they leave with their block"
    assert state.read_bytes() == before
    assert given(node_of("a", state=state))[0] == fields


def test_bare_stats_get_an_origin(tmp_path):
    save(Stats.of(SHARED, rows(1)), tmp_path / "stats")
    _, [found] = given(node_of("a", state=tmp_path / "stats"))
    assert (found.device, found.stats) == ("a", Stats.of(SHARED, rows(1)))


def test_a_contribution_in_a_file_keeps_its_own_origin(tmp_path):
    save(note("a", 1, revision=17, pattern="idle", incarnation=2), tmp_path / "note")
    fields, found = given(node_of("a", state=tmp_path / "note", incarnation=2))
    assert found == [note("a", 1, revision=17, pattern="idle", incarnation=2)]
    assert (fields["revision"], fields["incarnation"]) == (17, 2)
    with pytest.raises(EdgemergeError, match="set `device` and `incarnation` of this node"):
        given(node_of("b", state=tmp_path / "note", incarnation=2))


def test_what_cannot_contribute_is_told(tmp_path):
    save(Ledger(SHARED), tmp_path / "ledger")
    with pytest.raises(EdgemergeError, match="found a ledger, expected a detector, bank, stats or"):
        given(node_of("a", state=tmp_path / "ledger"))
    with pytest.raises(EdgemergeError, match=r"set `state` to a file .* or `data` to samples"):
        given(node_of("a"))
    with pytest.raises(EdgemergeError, match="set `state`"):
        given(node_of("a"), samples=lambda i, _n: rows(i))


def test_a_partition_is_chosen_by_its_number():
    config = node_of("a", partition=2, partitions=5)
    _, [found] = given(config, samples=lambda number, parts: rows(10 * number + parts))
    assert found.stats == Stats.of(SHARED, rows(25))


@pytest.mark.parametrize("kind", ["npy", "csv"])
def test_samples_in_a_file_are_summed_up(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(
        "edgemerge.flower.device.CHUNK_VALUES", 21
    )  # so that there are several chunks
    path = tmp_path / f"part.{kind}"
    if kind == "npy":
        np.save(path, rows(1))
    else:
        np.savetxt(path, rows(1), fmt="%.17g", delimiter=",", header="a,b,c", comments="")
    _, [found] = given(node_of("a", data=path))
    assert found.stats == Stats.of(SHARED, rows(1))


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.txt", b"1", "expected samples in an .npy or .csv file"),
        ("a.npy", b"1", "found no array"),
        ("a.csv", b"1,2\n", "a.csv: "),
        ("a.csv", b"1,2,3\n1,2,x\n", "a.csv: line 2: "),
        ("a.csv", b"\xff\xfe1", "a.csv: found no text in UTF-8"),
    ],
)
def test_samples_that_cannot_be_read_are_told(tmp_path, name, data, words):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(EdgemergeError) as error:
        given(node_of("a", data=tmp_path / name))
    assert words in str(error.value)


def test_an_array_of_another_shape_or_of_objects_is_told(tmp_path):
    np.save(tmp_path / "a.npy", rows(1)[0])
    np.save(tmp_path / "b.npy", np.array([object()]), allow_pickle=True)
    with pytest.raises(EdgemergeError, match=r"found an array of shape \(3,\), expected samples"):
        given(node_of("a", data=tmp_path / "a.npy"))
    with pytest.raises(EdgemergeError, match="found no array"):
        given(node_of("a", data=tmp_path / "b.npy"))


def test_the_same_sums_leave_under_the_same_revision_over_restarts(tmp_path):
    config = node_of("a", state=learnt(Detector(SHARED), tmp_path / "pump", 1))
    first = given(config)[0]
    assert given(config)[0] == first
    learnt(load(config.state), config.state, 2)
    assert given(config)[0]["revision"] > first["revision"]


def test_a_revision_rises_when_the_clock_goes_back_and_when_its_memory_is_lost(tmp_path):
    config = node_of("a", state=learnt(Detector(SHARED), tmp_path / "pump", 1))
    first = given(config, clock=lambda: 1000.0)[0]["revision"]
    learnt(load(config.state), config.state, 2)
    second = given(config, clock=lambda: 5.0)[0]["revision"]
    (tmp_path / "pump.release").unlink()
    third = given(config, clock=lambda: 1001.0)[0]["revision"]
    assert first < second < third


def test_a_release_is_remembered_before_it_leaves(tmp_path):
    config = node_of("a", state=learnt(Detector(SHARED), tmp_path / "pump", 1))
    fields, [found] = given(config)
    kept = decode_history((tmp_path / "pump.release").read_bytes())
    assert (kept.revision, dict(kept.left)) == (fields["revision"], {"normal": found.stats})


@pytest.mark.parametrize("data", [b'{"revision": 3}', b"", encode(SHARED)])
def test_a_damaged_memory_is_told(tmp_path, data):
    config = node_of("a", state=learnt(Detector(SHARED), tmp_path / "pump", 1))
    (tmp_path / "pump.release").write_bytes(data)
    with pytest.raises(EdgemergeError, match=r"pump\.release: .*: remove it"):
        given(config)


def test_whoever_has_seen_nothing_says_so_and_is_not_held_back(tmp_path):
    fields, notes = given(node_of("a", state=learnt(Detector(SHARED), tmp_path / "pump")))
    assert (notes, fields["held"]) == ([], "")


def test_a_detector_adopts_and_goes_on_from_there(tmp_path):
    config = node_of("a", state=learnt(Detector(SHARED), tmp_path / "pump", 1))
    for _ in range(2):  # twice is once
        assert adopt(config, told(note("b", 2), note("c", 3))) == {"kept": 1, "others": 80.0}
    after = load(config.state)
    assert after.own == Stats.of(SHARED, rows(1))
    assert after.others == Stats.of(SHARED, np.vstack([rows(2), rows(3)]))


def test_a_bank_adopts_patterns(tmp_path):
    config = node_of("a", state=learnt(Bank(SHARED), tmp_path / "bank", 1))
    adopt(config, told(note("b", 2)))
    after = load(config.state, Bank)
    assert sum(after[name].others.count for name in after) == 40


def test_the_answer_is_kept_in_a_file_if_asked(tmp_path):
    config = node_of("a", merged_file=tmp_path / "others")
    assert adopt(config, told(note("b", 2))) == {"kept": 1, "others": 40.0}
    assert load(tmp_path / "others").total == Stats.of(SHARED, rows(2))
    assert adopt(node_of("a"), told(note("b", 2)))["kept"] == 0


def test_an_answer_beside_bare_stats_changes_them_not(tmp_path):
    save(Stats.of(SHARED, rows(1)), tmp_path / "stats")
    before = (tmp_path / "stats").read_bytes()
    assert adopt(node_of("a", state=tmp_path / "stats"), told(note("b", 2)))["kept"] == 0
    assert (tmp_path / "stats").read_bytes() == before


def test_ones_own_is_not_adopted_and_nothing_changes(tmp_path):
    config = node_of("a", state=learnt(Detector(SHARED), tmp_path / "pump", 1))
    before = config.state.read_bytes()
    with pytest.raises(EdgemergeError, match="found what a saw itself among what others saw"):
        adopt(config, told(note("a", 1), note("b", 2)))
    assert adopt(config, told(note("a", 5, incarnation=7)))["others"] == 40, "an earlier life"
    config.state.write_bytes(before)
    with pytest.raises(EdgemergeError, match="every device must build the same Projection"):
        adopt(config, encode(Merged(OTHER, (MergedPart.of([note("b", 2, shared=OTHER)], OTHER),))))
    with pytest.raises(EdgemergeError, match="found Stats, expected what the others have seen"):
        adopt(config, encode(Stats.of(SHARED, rows(1))))
    assert config.state.read_bytes() == before


def test_revisions_are_of_this_time():
    fields, _ = given(node_of("a", partition=0), samples=lambda i, _n: rows(i), clock=time)
    assert abs(fields["revision"] / 1000 - time()) < 60
