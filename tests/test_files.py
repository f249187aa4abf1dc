"""Saving then loading changes nothing, and a file is whole or not there."""

import os
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgemerge.core.bank import Bank
from edgemerge.core.detector import Detector
from edgemerge.core.errors import FormatError, SettingError
from edgemerge.core.ledger import Contribution, Ledger
from edgemerge.core.projection import Projection
from edgemerge.core.stats import Stats
from edgemerge.files import (
    file_stamp,
    load,
    lock_file,
    read_secret,
    read_token,
    save,
    write_atomically,
)
from edgemerge.wire.codec import decode, encode, pack, pack_payload, unpack, unpack_payload
from edgemerge.wire.state import from_bytes, to_bytes

SHARED = Projection(n_inputs=3, n_hidden=4, seed=7, names=("a", "b", "ü"))
ROWS = np.random.default_rng(0).normal(0.0, 0.3, (80, 3))
STATS = Stats.of(SHARED, ROWS)
SETTINGS = [
    {},
    {"ridge": 0.25},
    {"forgetting": 0.95},
    {"reject_above": 3.0},
    {"ridge": 1e-3, "forgetting": 0.9, "reject_above": 2.0},
]


def detector(**settings):
    taught = Detector(SHARED, **settings)
    taught.learn(ROWS)
    taught.adopt(STATS * 2.0)
    taught.learn(ROWS[3] * 1.5)
    return taught


def ledger():
    kept = Ledger(SHARED)
    for i, device in enumerate(("pump-2", "pump-10", "pump-1")):
        kept.put(Contribution(device, Stats.of(SHARED, ROWS[i:]), i, "idle", i))
    return kept


THINGS = [SHARED, STATS, Contribution("pump", STATS, 3), ledger(), Ledger(SHARED), Detector(SHARED)]


@pytest.mark.parametrize("thing", THINGS, ids=repr)
def test_everything_comes_back_and_saved_again_is_the_same_file(thing, tmp_path):
    save(thing, tmp_path / "one")
    again = load(str(tmp_path / "one"))
    assert type(again) is type(thing)
    save(again, tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@pytest.mark.parametrize("settings", SETTINGS, ids=repr)
def test_a_detector_goes_on_where_it_stopped(settings, tmp_path):
    pump = detector(**settings)
    save(pump, tmp_path / "pump")
    again = load(tmp_path / "pump")
    assert (again.own, again.others, again.rejected) == (pump.own, pump.others, pump.rejected)
    assert again.ridge == pump.ridge
    assert again.forgetting == pump.forgetting
    assert again.reject_above == pump.reject_above
    # the one that was saved may have followed P sample by sample, the loaded one solves it afresh
    assert again.score(ROWS) == pytest.approx(pump.score(ROWS), rel=1e-9)
    for one in (pump, again):
        one.learn(ROWS[:20] * 0.5)
    assert again.own == pump.own


def test_a_ledger_keeps_what_it_knew(tmp_path):
    save(ledger(), tmp_path / "ledger")
    assert list(load(tmp_path / "ledger")) == list(ledger())


def test_the_old_file_stays_when_writing_fails(tmp_path, monkeypatch):
    save(STATS, tmp_path / "stats")

    def full(_handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        save(SHARED, tmp_path / "stats")
    assert load(tmp_path / "stats") == STATS
    assert [path.name for path in tmp_path.iterdir()] == ["stats"]


def test_the_new_file_is_on_disk_before_it_takes_its_name(tmp_path, monkeypatch):
    steps = []

    def noted(name, act):
        def both(*arguments):
            steps.append(name)
            return act(*arguments)

        return both

    monkeypatch.setattr(os, "fsync", noted("fsync", os.fsync))
    monkeypatch.setattr(Path, "replace", noted("rename", Path.replace))
    save(STATS, tmp_path / "stats")
    assert steps == ["fsync", "rename", "fsync"]


def test_a_file_of_another_kind_is_named(tmp_path):
    (tmp_path / "old.pkl").write_bytes(pickle.dumps(ROWS))
    with pytest.raises(FormatError, match=r"old\.pkl: found a pickle"):
        load(tmp_path / "old.pkl")


def test_a_file_above_the_limit_is_not_read(tmp_path):
    save(STATS, tmp_path / "stats")
    with pytest.raises(FormatError, match="more than 100 bytes"):
        load(tmp_path / "stats", limit=100)


def changed(thing, **words):
    payload = unpack_payload(to_bytes(thing))
    payload.metadata.update(words)
    return pack_payload(payload)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (changed(Detector(SHARED), forgetting=(3.0).hex()), "forgetting=3.0"),
        (changed(Detector(SHARED), forgetting="1.0"), "'forgetting' as 1.0, expected 0x1.0"),
        (changed(Detector(SHARED), rejected="x"), "invalid settings of a detector"),
        (changed(Detector(SHARED), ridge="0x1p9999"), "invalid settings of a detector"),
        (changed(ledger(), **{"1.device": "pump-1", "1.incarnation": "2"}), "found a contribution"),
        (changed(ledger(), **{"0.device": "pump-9"}), "'0.device' as pump-9, expected pump-"),
        (changed(ledger(), **{"7.device": "pump-9"}), "unknown metadata word '7.device'"),
        (changed(ledger(), **{"0.remark": "x"}), "unknown metadata word '0.remark'"),
        (changed(Detector(SHARED), remark="x"), "unknown metadata word 'remark'"),
    ],
)
def test_a_state_that_cannot_be_is_refused(data, words, tmp_path):
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(FormatError, match=words):
        load(tmp_path / "file")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"remark": "x"}, "unknown metadata word 'remark'"),
        ({"state": "{}"}, "invalid state of a bank"),
        ({}, "canonical"),
    ],
)
def test_the_bytes_of_a_bank_are_checked_as_a_whole(words, message):
    bank = Bank(SHARED)
    bank.learn(ROWS)
    metadata, tensors = unpack(to_bytes(bank), 10**7)
    if not words:  # the sums inside it have a word too many
        inner, sums = unpack(tensors["sums"].tobytes(), 10**7)
        tensors["sums"] = np.frombuffer(pack(inner | {"remark": "x"}, sums), np.int8)
    with pytest.raises(FormatError, match=message):
        from_bytes(pack(metadata | words, tensors))


@pytest.mark.parametrize("kind", [Detector, Bank])
def test_infinity_rejects_no_sample_and_is_saved(kind, tmp_path):
    never, none = kind(SHARED, reject_above=np.inf), kind(SHARED, reject_above=None)
    for learner in (never, none):
        learner.learn(ROWS)
        learner.learn(ROWS * 9.0)
    save(never, tmp_path / "never")
    assert load(tmp_path / "never").reject_above == np.inf
    assert never.rejected == none.rejected == 0
    assert never.score(ROWS[0]) == pytest.approx(none.score(ROWS[0]), rel=1e-12)


def test_sums_that_no_samples_have_are_refused(tmp_path):
    bank = Bank(SHARED)
    bank.learn(ROWS)
    for thing, words in (
        (detector(), "in a detector"),
        (ledger(), "in a contribution to a ledger"),
    ):
        payload = unpack_payload(to_bytes(thing))
        part = next(iter(payload.parts))
        payload.parts[part] = replace(payload.parts[part], S=payload.parts[part].S * 0.0)
        (tmp_path / "file").write_bytes(pack_payload(payload))
        with pytest.raises(FormatError, match=f"{words}.*the file is damaged, load another copy"):
            load(tmp_path / "file")
    metadata, tensors = unpack(to_bytes(bank), 10**7)
    payload = unpack_payload(tensors["sums"].tobytes())
    payload.parts["0.own."] = replace(payload.parts["0.own."], U=payload.parts["0.own."].U * -1.0)
    tensors["sums"] = np.frombuffer(pack_payload(payload), np.int8)
    with pytest.raises(FormatError, match="in the pattern 'normal': the file is damaged"):
        from_bytes(pack(metadata, tensors))


@pytest.mark.parametrize("form", ["float32", "root16"])
def test_sums_that_were_rounded_on_the_way_are_loaded(form, tmp_path):
    kept = Ledger(SHARED)
    for i in range(9):
        rows = np.random.default_rng(i).normal(0.0, 0.3, (30, 3))
        arrived = decode(encode(Contribution(f"pump-{i}", Stats.of(SHARED, rows), 1), form))
        kept.put(arrived)
    for thing in (kept, Detector.resume(kept.total())):
        save(thing, tmp_path / "file")
        assert repr(load(tmp_path / "file")) == repr(thing)


def test_permissions_follow_the_umask_if_asked(tmp_path):
    before = os.umask(0o027)
    try:
        write_atomically(b"x", tmp_path / "private")
        write_atomically(b"x", tmp_path / "shared", mode="umask")
        write_atomically(b"x", tmp_path / "exact", mode=0o666)
    finally:
        os.umask(before)
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("private", "shared", "exact")]
    assert modes == [0o600, 0o640, 0o666]


def test_folders_are_created_and_syncing_is_skipped_only_if_asked(tmp_path, monkeypatch):
    path = tmp_path / "a" / "b" / "file"
    with pytest.raises(FileNotFoundError):
        write_atomically(b"x", path)
    monkeypatch.setattr(os, "fsync", lambda _handle: pytest.fail("synced"))
    write_atomically(b"x", path, parents=True, sync=False)
    assert [path.read_bytes(), *path.parent.iterdir()] == [b"x", path]


def test_the_stamp_of_a_file_changes_when_it_is_written_anew(tmp_path):
    file = tmp_path / "key"
    assert file_stamp(file) is None
    write_atomically(b"one", file)
    before, written = file_stamp(file), file.stat().st_mtime_ns
    os.utime(file, ns=(0, written))
    assert file_stamp(file) == before
    write_atomically(b"two", file)
    os.utime(file, ns=(0, written))  # a clock that is coarse, or was set back
    assert file_stamp(file) not in (None, before)
    assert file_stamp(file / "below") == (0, 0, 0)  # not None: there may be a file


def test_a_lock_is_for_one_process_and_ends_with_its_descriptor(tmp_path):
    first, second = (os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT) for _ in range(2))
    try:
        assert lock_file(first)
        assert not lock_file(second)
        assert not lock_file(second, timeout_s=0.02)
        os.close(first)
        assert lock_file(second)
    finally:
        os.close(second)


@pytest.mark.parametrize("content", [b"", b" \n", b"\xff\xfe", b"two\nlines", b"x" * 4097, b"\0"])
def test_a_file_without_one_line_of_text_is_no_secret(tmp_path, content):
    (tmp_path / "token").write_bytes(content)
    with pytest.raises(SettingError, match=r"found no token in .*expected one line") as caught:
        read_secret(tmp_path / "token", "token")
    assert "two" not in str(caught.value)


def test_a_secret_loses_white_space_and_a_password_only_its_line_end(tmp_path):
    (tmp_path / "secret").write_bytes(b" a b \r\n")
    assert read_secret(tmp_path / "secret") == "a b"
    assert read_secret(tmp_path / "secret", strip="\r\n") == " a b "
    with pytest.raises(SettingError, match=r"found spaces in the token in .*: replace it"):
        read_token(tmp_path / "secret")
    with pytest.raises(SettingError, match=r"cannot read the secret in .*gone: No such file"):
        read_secret(tmp_path / "gone")


def test_a_file_system_that_refuses_locks_is_not_taken_for_a_lock_that_is_held(
    tmp_path, monkeypatch
):
    fcntl = pytest.importorskip("fcntl")

    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(fcntl, "flock", refuse)
    handle = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    try:
        with pytest.raises(PermissionError):
            lock_file(handle)
    finally:
        os.close(handle)
