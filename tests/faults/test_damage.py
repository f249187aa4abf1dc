"""Damage to what a server has stored: refused in words, or mended, and never told as right."""

import logging
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from edgemerge import encode
from edgemerge.core.errors import FormatError
from edgemerge.server import audit
from edgemerge.server.db.base import DatabaseDamagedError
from edgemerge.server.db.migrations import connect
from tests.faults.acknowledged import ORPHANS
from tests.faults.local import (
    FLEET,
    fill,
    must_be_right,
    must_be_right_or_refused,
    opened,
    share,
)

pytestmark = pytest.mark.slow  # many of a tenth of a second

FLIPS = int(os.environ.get("EDGEMERGE_FLIPS", "100"))
SETTLED, BEHIND = "pump-3", "pump-1"  # the kept sums hold the newest of one, and an old one of one
ONE = f"fleet = '{FLEET}' and device = ? and pattern = 'idle'"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The file of a database with something in every table, its tokens, what it should hold."""
    path, tokens = tmp_path_factory.mktemp("whole") / "fleets.db", {}
    with opened(str(path), tokens) as local:
        newest = fill(local)
    assert not path.with_name("fleets.db-wal").exists(), "all is in the file"
    return path, tokens, newest


@pytest.fixture
def newest(whole):
    """The newest contributions in the database."""
    return whole[2]


@pytest.fixture
def tokens(whole):
    return dict(whole[1])


@pytest.fixture
def url(whole, tmp_path):
    """A copy of the database, which no server has open."""
    return str(shutil.copy(whole[0], tmp_path))


def change(url, sql, *values):
    """Change stored rows behind the back of a server that is not running."""
    database = connect(url)
    with database.writing() as tx:
        changed = tx.run(sql, *values)
    database.close()
    assert changed > 0, sql


def flip(url, table, column, where, *values):
    """Flip one bit in the midst of a blob."""
    database = connect(url)
    with database.writing() as tx:
        ((data,),) = tx.rows(f"select {column} from {table} where {where} limit 1", *values)
        turned = bytearray(data)
        turned[-40] ^= 4  # a number, not its header
        changed = tx.run(f"update {table} set {column} = ? where {where}", bytes(turned), *values)
    database.close()
    assert changed > 0


def all_is_well(local, newest):
    """Whatever is asked, the answer is right."""
    for grouping in ("total", "patterns", "total"):
        must_be_right(local.told(grouping), newest)
    for key, note in newest.items():
        assert local.get(key).content == encode(note)
    with local.service.database.reading() as tx:
        assert tx.one(ORPHANS) == (0,)
        audit.verify(tx)


SUMS = {
    "a number of a sum": ("flip", "totals", "data", "part = 1"),
    "the digest of a sum": ("update totals set digest = 'x' where part = 1",),
    "a sum is missing": ("delete from totals where part = 1",),
    "all sums are missing": ("delete from totals",),
    "a sum under another number": ("update totals set part = 7 where part = 1",),
    "a contribution in another part": ("update contributions set part = 2 where part = 1",),
    "another body counted": (f"update contributions set counted = 2 where {ONE}", BEHIND),
    "nothing counted": (f"update contributions set counted = null where {ONE}", SETTLED),
    "the digest of what was counted": (
        f"update contributions set counted_digest = 'x' where {ONE}",
        BEHIND,
    ),
    "what was counted": (
        *("flip", "bodies", "data"),
        f"id = (select counted from contributions where {ONE})",
        BEHIND,
    ),
    "what was counted is missing": (
        f"delete from bodies where id = (select counted from contributions where {ONE})",
        BEHIND,
    ),
}


@pytest.mark.parametrize("grouping", ["total", "patterns"])
@pytest.mark.parametrize("damage", SUMS)
def test_damaged_sums_are_summed_up_afresh(url, newest, tokens, damage, grouping, caplog):
    how, *values = SUMS[damage]
    flip(url, *values) if how == "flip" else change(url, how, *values)
    with opened(url, tokens) as local, caplog.at_level(logging.ERROR):
        must_be_right(local.told(grouping), newest)
        all_is_well(local, newest)
        assert "kept sums cannot be used" in caplog.text
        note = share(BEHIND, "idle", 3)
        assert local.push(note).status_code == 201
        all_is_well(local, newest | {note.key: note})
    with opened(url, tokens) as local:
        caplog.clear()
        all_is_well(local, newest | {note.key: note})
        assert "damaged" not in caplog.text


@pytest.mark.long
def test_damaged_sums_are_mended_in_postgres_too(fresh_postgres_url):
    for number, (how, *values) in enumerate(SUMS.values()):
        url, tokens = fresh_postgres_url, {}
        with opened(url, tokens) as local:
            local.ask("DELETE", f"/fleets/{FLEET}")
            newest = fill(local)
        flip(url, *values) if how == "flip" else change(url, how, *values)
        with opened(url, tokens) as local:
            all_is_well(local, newest)
            assert local.drop(BEHIND).json() == {"dropped": 2}, number


@pytest.mark.parametrize("device", [SETTLED, BEHIND])
def test_a_damaged_contribution_is_told_in_no_sum_until_it_comes_anew(url, newest, tokens, device):
    body = f"id = (select body from contributions where {ONE})"
    flip(url, "bodies", "data", body, device)
    with opened(url, tokens) as local:
        refused = local.get((device, 0, "idle"))
        assert refused.status_code == 500
        assert f"contribution of {device}, idle is damaged: drop" in refused.json()["error"]
        for grouping in ("total", "patterns"):
            must_be_right_or_refused(local.told(grouping), newest)
        note = share(device, "idle", 3)
        assert local.push(note).status_code == 201
        all_is_well(local, newest | {note.key: note})


@pytest.mark.parametrize("device", [SETTLED, BEHIND])
@pytest.mark.parametrize("others", [(), ("pump-2",)])
def test_a_device_can_be_dropped_whatever_is_damaged(url, newest, tokens, device, others):
    for one in (device, *others):
        flip(url, "bodies", "data", f"id = (select body from contributions where {ONE})", one)
    flip(url, "totals", "data", "part = 1")
    with opened(url, tokens) as local:
        for one in (device, *others):
            newest = {key: note for key, note in newest.items() if key[0] != one}
            assert local.drop(one).json() == {"dropped": 2}
        all_is_well(local, newest)


def test_a_push_beside_a_damaged_sum_is_kept(url, newest, tokens):
    flip(url, "totals", "data", "part = 1")
    with opened(url, tokens) as local:
        note = share(BEHIND, "idle", 3)
        assert local.push(note).status_code == 201
        all_is_well(local, newest | {note.key: note})


@pytest.mark.parametrize(
    "column", ["revision = revision + 7", "samples = samples + 1", "digest = 'x'"]
)
@pytest.mark.parametrize("device", [SETTLED, BEHIND])
def test_a_row_that_does_not_fit_its_contribution_is_damaged(url, newest, tokens, device, column):
    change(url, f"update contributions set {column} where {ONE}", device)
    with opened(url, tokens) as local:
        if "revision" not in column:  # which is told, but is in no sum
            for grouping in ("total", "patterns"):
                must_be_right_or_refused(local.told(grouping), newest)
        else:
            late = local.push(share(device, "idle", 5))  # 409 would make it start a new life
            assert late.status_code == 500
            assert "damaged" in late.json()["error"]
        local.drop(device)
        all_is_well(local, {key: note for key, note in newest.items() if key[0] != device})


def test_a_fleet_with_a_damaged_projection_says_so_and_can_be_deleted(url, tokens):
    flip(url, "fleets", "projection", f"fleet = '{FLEET}'")
    with opened(url, tokens) as local:
        for reply in (local.told(), local.push(share(BEHIND, "idle", 3))):
            assert reply.status_code == 500
            assert "restore the database from a backup" in reply.json()["error"]
        assert local.ask("DELETE", f"/fleets/{FLEET}").status_code in (200, 204)
        tokens.clear()
        all_is_well(local, fill(local))


@pytest.mark.parametrize("column", ["actor", "action", "detail", "subject", "hash", "previous"])
def test_a_changed_audit_entry_is_named(url, column):
    change(url, f"update audit set {column} = 'x' where seq = 3")
    with opened(url) as local, local.service.database.reading() as tx:
        with pytest.raises(DatabaseDamagedError, match="audit log was changed at entry 3"):
            audit.verify(tx)
        assert local.ask("GET", "/audit").json()["entries"][2]["seq"] == 3


def test_a_removed_audit_entry_is_noticed(url):
    change(url, "delete from audit where seq = 3")
    with opened(url) as local, local.service.database.reading() as tx:
        words = "audit log was changed at entry 3"
        with pytest.raises(DatabaseDamagedError, match=words):
            audit.verify(tx)


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_database_is_refused_in_words(url, part):
    os.truncate(url, int(part * Path(url).stat().st_size))
    with pytest.raises(DatabaseDamagedError, match=r"(damaged|empty).*backup"):
        connect(url)


def test_no_flipped_bit_anywhere_makes_a_server_tell_a_wrong_sum(whole, tmp_path):
    path, _, newest = whole
    rng = np.random.default_rng(5)
    outcomes = {"refused": 0, "opened": 0}
    for trial in range(FLIPS):
        damaged = tmp_path / f"{trial}.db"
        shutil.copy(path, damaged)
        _flip_in_file(damaged, rng)
        outcomes[_outcome(damaged, newest)] += 1
        for left in tmp_path.glob(f"{trial}.db*"):
            left.unlink()
    assert min(outcomes.values()) > 0, outcomes


def _flip_in_file(path, rng):
    """Flip one bit that is not in a page of nothing: those teach nothing."""
    with path.open("r+b") as file:
        data = bytearray(file.read())
        page = 16384 * int(rng.integers(len(data) // 16384))
        used = np.flatnonzero(np.frombuffer(data[page : page + 16384], np.uint8))
        place = page + int(rng.choice(used)) if len(used) else page
        file.seek(place)
        file.write(bytes([data[place] ^ 1 << int(rng.integers(8))]))


def _outcome(path, newest):
    try:
        with opened(str(path)) as local:
            for grouping in ("total", "patterns"):
                must_be_right_or_refused(local.told(grouping), newest)
            for key, note in newest.items():
                reply = local.get(key)
                assert reply.status_code == 500 or reply.content == encode(note), reply.text
    except (DatabaseDamagedError, FormatError):
        return "refused"
    return "opened"
