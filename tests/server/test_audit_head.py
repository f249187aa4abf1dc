"""A log that was cut or rewritten, seen by its head in a file outside; and one that is bounded."""

import json
import logging

import pytest

from edgemerge.server import audit
from edgemerge.server.audit import FIRST_HASH, HeadFile
from edgemerge.server.db.base import DatabaseDamagedError
from edgemerge.server.db.migrations import connect
from edgemerge.server.service import Service


@pytest.fixture
def database(tmp_path):
    found = connect(tmp_path / "fleets.db")
    yield found
    found.close()


@pytest.fixture
def each_database(database_url):
    found = connect(database_url)
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


KEEP = 100


def shorten(database, **options):
    with database.writing() as tx:
        return audit.delete_oldest(tx, at=9.0, keep=KEEP, **options)


def chain(database):
    with database.reading() as tx:
        return audit.verify(tx), [
            each.seq for each in audit.entries(tx, fleet=None, after=0, limit=1)
        ]


def test_the_oldest_entries_go_after_a_checkpoint_has_sealed_them(each_database):
    wrote(each_database, KEEP + 10)
    assert shorten(each_database) == 0  # not before a tenth too many are there
    wrote(each_database, 1)
    assert shorten(each_database) == 11
    assert chain(each_database) == (KEEP + 12, [12])
    with each_database.reading() as tx:
        last = audit.entries(tx, fleet=None, after=KEEP + 11, limit=9)
        first = audit.entries(tx, fleet=None, after=0, limit=1)[0]
    assert [(each.action, each.actor) for each in last] == [("checkpoint", "server")]
    assert json.loads(last[0].detail) == {"through": 11, "hash": first.previous}
    assert shorten(each_database) == 0


def test_a_log_is_shortened_again_and_again_and_never_grows_beyond(database):
    for _ in range(5):
        wrote(database, 30)
        shorten(database)
        last, first = chain(database)
        assert last - first[0] + 1 <= KEEP * 1.1 + 1


def test_no_more_is_deleted_at_once_than_takes_a_moment(database, monkeypatch):
    monkeypatch.setattr(audit, "DELETED_AT_ONCE", 5)
    wrote(database, KEEP + 20)
    assert [shorten(database) for _ in range(5)] == [5, 5, 5, 0, 0]
    assert chain(database)[1] == [16]


@pytest.mark.slow
@pytest.mark.parametrize(
    "sql",
    [
        "delete from audit where seq <= 20",  # more than the checkpoint sealed
        "delete from audit where action = 'checkpoint'",
        "delete from audit where seq = 50",
        "update audit set actor = 'x' where seq = 50",
        "update audit set detail = '{}' where action = 'checkpoint'",
        "update audit set previous = '00' where seq = 12",
    ],
)
def test_a_shortened_log_that_was_changed_is_found_out(database, sql):
    wrote(database, KEEP + 11)
    shorten(database)
    run(database, sql)
    with pytest.raises(DatabaseDamagedError, match="the audit log was changed at entry"):
        chain(database)


def test_what_the_head_file_names_stays_until_it_is_followed(database, tmp_path):
    head = HeadFile(tmp_path / "head")
    wrote(database, 10)
    follow(database, head)
    wrote(database, KEEP + 20)
    assert shorten(database, before=head.must_stay) == 9
    assert follow(database, head) is None  # it finds the tenth, and goes on
    assert shorten(database, before=head.must_stay) == 22
    assert follow(database, head) is None


def test_a_head_whose_entry_was_deleted_all_the_same_is_told(database, tmp_path):
    head = HeadFile(tmp_path / "head")
    wrote(database, 10)
    follow(database, head)
    wrote(database, KEEP + 20)
    assert shorten(database) > 10
    assert "entry 10 is gone" in (follow(database, head) or "")


def test_a_service_bounds_its_log_once_the_head_is_known(tmp_path):
    service = Service(
        connect(tmp_path / "fleets.db"),
        audit_head_file=tmp_path / "head",
        audit_entries=KEEP,
    )
    try:
        wrote(service.database, KEEP + 11)
        assert service.bound_audit_log() == 0  # the head file names none of them yet
        service.follow_audit_head()
        assert service.bound_audit_log() == 11
        service.follow_audit_head()
        assert service.audit_problem is None
        wrote(service.database, 20)
        run(service.database, "delete from audit where seq > 90")
        service.follow_audit_head()
        assert service.audit_problem
        wrote(service.database, 2 * KEEP)
        assert service.bound_audit_log() == 0  # whoever looks into it needs what is left
    finally:
        service.close()


def test_a_refusal_is_noted_once_however_often_it_is_repeated(each_database):
    about = {"at": 1.0, "actor": "device a", "action": "equivocation", "fleet": "f", "subject": "a"}

    def note(digest):
        with each_database.writing() as tx:
            audit.note_refusal(tx, 3, **about, digest=digest)
        with each_database.reading() as tx:
            return len(audit.entries(tx, fleet="f", after=0, limit=99))

    assert [note("one") for _ in range(4)] == [1] * 4
    assert [note(str(number)) for number in range(4)] == [2, 3, 3, 3]
