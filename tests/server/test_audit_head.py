"""A log that was cut or rewritten, seen by its head in a file outside of the database."""

import logging

import pytest

from edgemerge.exchange.audit import FIRST_HASH
from edgemerge.server import audit
from edgemerge.server.audit import HeadFile
from edgemerge.server.db.migrations import connect


@pytest.fixture
def database(tmp_path):
    found = connect(tmp_path / "fleets.db")
    yield found
    found.close()


def wrote(database, count, actor="operator admin"):
    with database.writing() as tx:
        for number in range(count):
            about = {"action": "invite", "fleet": "pumps", "subject": f"pump-{number}"}
            audit.append(tx, at=float(number), actor=actor, **about)


def follow(database, head):
    with database.reading() as tx:
        head.follow(tx)
        return head.problem


def run(database, sql):
    with database.writing() as tx:
        tx.run(sql)


def test_a_log_that_grows_is_followed_and_the_file_is_written_only_then(database, tmp_path):
    head = HeadFile(tmp_path / "head")
    assert follow(database, head) is None
    assert (tmp_path / "head").read_text() == f"0 {FIRST_HASH}\n"
    wrote(database, 3)
    assert follow(database, head) is None
    seq, sealed = (tmp_path / "head").read_text().split()
    with database.reading() as tx:
        assert tx.one("select seq, hash from audit order by seq desc") == (int(seq), sealed)
    stamp = (tmp_path / "head").stat().st_ino
    assert follow(database, head) is None
    assert (tmp_path / "head").stat().st_ino == stamp
    assert follow(database, HeadFile(tmp_path / "head")) is None


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("delete from audit", "found 0 entries, expected 5 or more"),
        ("delete from audit where seq > 3", "found 3 entries, expected 5 or more"),
        (None, "entry 5 is not the one that was there before"),
    ],
)
def test_a_log_that_lacks_its_end_is_told_until_an_operator_removes_the_file(
    database, tmp_path, caplog, sql, words
):
    caplog.set_level(logging.ERROR)
    head = HeadFile(tmp_path / "head")
    wrote(database, 5)
    follow(database, head)
    known = (tmp_path / "head").read_text()
    if sql is None:
        run(database, "delete from audit where seq > 3")
        wrote(database, 4, actor="somebody else")
    else:
        run(database, sql)
    for each in (head, head, HeadFile(tmp_path / "head")):
        assert words in (follow(database, each) or "")
        assert "remove head" in (each.problem or "")
    assert len(caplog.records) == 2  # once for each server that finds it
    wrote(database, 9, actor="another one")
    follow(database, head)
    assert (tmp_path / "head").read_text() == known
    (tmp_path / "head").unlink()
    assert follow(database, head) is None


@pytest.mark.parametrize("text", ["", "x", "5", "x y", "-1 z"])
def test_a_damaged_file_is_no_excuse(database, tmp_path, text):
    (tmp_path / "head").write_text(text)
    assert follow(database, HeadFile(tmp_path / "head"))


def test_without_a_file_nothing_is_followed(database):
    assert follow(database, HeadFile(None)) is None
