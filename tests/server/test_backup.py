"""Backups of both databases, under load, restored into either; what a restore means to devices."""

import json
import os
import shutil
import sqlite3
import stat
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from threading import Event, Thread
from uuid import uuid4

import pytest

from edgemerge import Stats, decode, encode
from edgemerge.core.errors import DeniedError, FormatError, SettingError, UnknownError
from edgemerge.core.ledger import Selection
from edgemerge.server import audit, backup, contributions
from edgemerge.server.audit import HeadFile
from edgemerge.server.auth import Caller
from edgemerge.server.db.migrations import MIGRATIONS, SQLITE, connect, migrate, sqlite_path
from edgemerge.server.schemas import ReviewRequest, SettingsRequest
from edgemerge.server.service import Service
from tests.server.reporting import report
from tests.server.world import FLEET, ROOT, SHARED, World, generator, note

pytestmark = pytest.mark.slow

CORPUS = Path(__file__).parents[1] / "golden/corpus"
CHANGED = {"timelines", "audit", "fleets", "migrations", *backup.VOIDED}  # by a restore
LATER = 5000.0


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def other_url(request, tmp_path):
    """The address of a second, empty database, of each kind in turn."""
    if request.param == "sqlite":
        yield str(tmp_path / "restored.db")
        return
    server, name = request.getfixturevalue("postgres_server"), f"other_{uuid4().hex}"
    server.run(f"create database {name}")
    yield server.url_of(name)
    server.run(f"drop database {name} with (force)")


@pytest.fixture
def local(tmp_path):
    """A world on SQLite, and the address of another SQLite database."""
    made = World(str(tmp_path / "local.db"))
    made.caller("a")
    made.service.settings.change(FLEET, "a", SettingsRequest(label="Pump ü"), ROOT)
    yield made, str(tmp_path / "restored.db")
    made.close()


@pytest.fixture
def world(database_url):
    made = World(database_url)
    rng = generator(3)
    for device in ("a", "b", "c"):
        for revision in (1, 2):
            made.put(note(device, revision, rng, pattern=f"p{revision % 2}"))
    made.told(Selection(), grouped=True)
    made.put(note("a", 3, rng))
    made.service.settings.change(FLEET, "a", SettingsRequest(label="Pump ü"), ROOT)
    made.service.take_report(FLEET, "b", report(made.now, points=[]), made.now)
    yield made
    made.close()


def content(url):
    """All rows of a database, by table."""
    database = connect(url)
    try:
        with database.reading() as tx:
            names = [table.name for table in tables()]
            return {name: sorted(tx.rows(f"select * from {name}"), key=repr) for name in names}
    finally:
        database.close()


def tables():
    with sqlite3.connect(":memory:") as connection:
        empty = backup._Image.__new__(backup._Image)
        empty._connection, empty._path = connection, Path("memory")
        connection.isolation_level = None
        migrate(empty, SQLITE)
        with empty.reading() as tx:
            return backup._tables(tx)


def restored(world, url, **options):
    """Make a backup of the world, and restore it; the world goes on."""
    file = Path(os.environ["PYTEST_TMP"]) / "some.backup"
    backup.backup(world.url, file)
    return backup.restore(file, url, clock=lambda: LATER, **options)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTEST_TMP", str(tmp_path))


def test_a_backup_of_either_database_is_restored_into_either(world, other_url):
    world.service.close()  # which writes the report
    made = restored(world, other_url)
    before, after = content(world.url), content(other_url)
    assert {name for name in before if before[name] != after[name]} <= CHANGED
    assert (made.backup.devices, made.backup.contributions) == (3, len(before["contributions"]))
    assert len(before["bodies"]) > 5
    service = Service(connect(other_url), clock=lambda: LATER)
    with service.database.reading() as tx:
        assert audit.verify(tx) == len(before["audit"]) + 1
        assert backup.current_timeline(tx) == made.timeline
    for grouped in (False, True):
        told = decode(service.pull(FLEET, Selection(), ROOT, None, grouped=grouped).data)
        assert told.total == Stats.total(SHARED, (c.stats for c in world.truth.values()))
    device = Caller("a", FLEET)
    newer = note("a", 4, generator(9))
    received = contributions.decode_and_check(encode(newer), world.fleet, newer.key)
    put = service.writer.write(
        lambda tx: contributions.put(tx, world.fleet, received, device, LATER), fleet=FLEET
    )
    assert put.new, "ids of new rows come after those that were copied"
    service.close()


def test_a_backup_is_private_and_says_what_is_in_it(world, tmp_path):
    file = tmp_path / "some.backup"
    file.write_text("an older one")
    made = backup.backup(world.url, file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert made == backup.read_facts(file)
    assert made.size + backup.TRAILER_BYTES == file.stat().st_size
    assert sha256(file.read_bytes()[: made.size]).hexdigest() == made.sha256
    assert made.schema == MIGRATIONS[-1].number
    assert not list(tmp_path.glob(".*"))
    with sqlite3.connect(file) as opened:  # with any tool for SQLite
        assert opened.execute("select count(*) from contributions").fetchone() == (
            made.contributions,
        )
        assert opened.execute("pragma integrity_check").fetchone() == ("ok",)


def test_a_server_does_not_run_on_a_backup(tmp_path):
    World(str(tmp_path / "fleets.db")).close()
    backup.backup(str(tmp_path / "fleets.db"), tmp_path / "some.backup")
    with pytest.raises(FormatError, match=r"is a backup: .*edgemerge restore"):
        connect(tmp_path / "some.backup")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A backup of a small SQLite database."""
    folder = tmp_path_factory.mktemp("made")
    small = World(str(folder / "fleets.db"))
    small.put(note("a", 1, generator(1)))
    small.close()
    backup.backup(small.url, folder / "some.backup")
    return folder / "some.backup"


def changed(file, tmp_path, change):
    data = bytearray(file.read_bytes())
    found = tmp_path / "changed.backup"
    found.write_bytes(change(data) or data)
    return found


def flip(place):
    def change(data):
        data[place] ^= 1

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data[:-1], "no backup of edgemerge, or is cut short"),
        (lambda data: data[: len(data) // 2], "no backup of edgemerge, or is cut short"),
        (lambda _data: b"x", "no backup of edgemerge, or is cut short"),
        (lambda data: data[5:], "it was cut or changed"),
        (flip(40_000), "its checksum is another"),
        (flip(-4000), "no backup of edgemerge, or is cut short"),
    ],
)
def test_a_backup_that_was_cut_or_changed_is_refused(made, tmp_path, change, words):
    target = tmp_path / "new.db"
    with pytest.raises(FormatError, match=words):
        backup.restore(changed(made, tmp_path, change), str(target))
    assert not target.exists()


def resealed(made, tmp_path, sql, **facts):
    """Change the rows of a backup, and give it another seal."""
    found = tmp_path / "forged.backup"
    old = backup.read_facts(made)
    found.write_bytes(made.read_bytes()[: old.size])
    with sqlite3.connect(found) as opened:
        opened.executescript(sql)
    opened.close()
    data = found.read_bytes()
    new = {**vars(old), "size": len(data), "sha256": sha256(data).hexdigest(), **facts}
    found.write_bytes(data + backup._trailer(backup.BackupFacts(**new)))
    return found


@pytest.mark.parametrize(
    ("sql", "facts", "words"),
    [
        ("delete from audit where seq = 2", {}, "audit log was changed at entry 2"),
        ("update audit set actor = 'me' where seq = 2", {}, "audit log was changed at entry 2"),
        ("", {"schema": MIGRATIONS[-1].number + 1}, "newer edgemerge"),
        ("", {"format": 2}, "newer edgemerge"),
        (f"insert into migrations values ({MIGRATIONS[-1].number + 1}, 0)", {}, "newer edgemerge"),
    ],
)
def test_what_is_in_a_backup_is_checked_before_anything_changes(made, tmp_path, sql, facts, words):
    target = tmp_path / "new.db"
    with pytest.raises((FormatError, OSError), match=words):
        backup.restore(resealed(made, tmp_path, sql, **facts), str(target))
    assert not target.exists()


def test_nothing_is_replaced_unless_that_is_said_and_then_it_is_kept(world, tmp_path):
    file = tmp_path / "some.backup"
    backup.backup(world.url, file)
    world.put(note("d", 1, generator(5)))
    with pytest.raises(SettingError, match="stop"):
        backup.restore(file, world.url, replace_existing=True)  # its server runs
    world.service.close()
    with pytest.raises(SettingError, match="--replace"):
        backup.restore(file, world.url)
    with_d = content(world.url)
    assert len(with_d["devices"]) == 4
    done = backup.restore(file, world.url, replace_existing=True, clock=lambda: LATER)
    after = content(world.url)
    assert len(after["devices"]) == 3
    last = max(with_d["audit"])
    assert done.replaced_head == f"{last[0]} {last[-1]}"
    entry = json.loads(max(after["audit"])[6])
    assert entry["replaced_head"] == done.replaced_head
    if sqlite_path(world.url) is None:
        backup.restore(done.replaced, str(tmp_path / "kept.db"), clock=lambda: LATER)
        kept = content(str(tmp_path / "kept.db"))
    else:
        kept = content(str(done.replaced))
    assert kept["devices"] == with_d["devices"]
    assert kept["bodies"] == with_d["bodies"]


def test_a_damaged_database_is_replaced_and_kept(made, tmp_path):
    broken = tmp_path / "fleets.db"
    broken.write_bytes(b"no database")
    (tmp_path / "fleets.db-wal").write_bytes(b"its log")
    done = backup.restore(made, str(broken), replace_existing=True)
    assert done.replaced_head == ""
    assert done.replaced.read_bytes() == b"no database"
    assert done.replaced.with_name(done.replaced.name + "-wal").read_bytes() == b"its log"
    assert not (tmp_path / "fleets.db-wal").exists()
    assert len(content(str(broken))["devices"]) == 1


def test_what_was_used_or_ended_since_the_backup_does_not_work_again(local):
    world, other_url = local
    invitation, _ = world.service.invite(FLEET, "d", 1e9, ROOT)
    cookie, _ = world.service.sessions.sign_in(world.operator_token)
    done = restored(world, other_url)
    world.service.enrol(invitation, FLEET, "d")
    world.service.sessions.sign_out(cookie)
    service = Service(connect(other_url), clock=lambda: world.now)
    assert done.voided >= 2
    with pytest.raises(DeniedError):
        service.enrol(invitation, FLEET, "d")
    assert service.sessions.session(cookie) is None
    assert service.caller(world.operator_token).may("admin")
    assert service.caller(world.tokens["a"]) == Caller("a", FLEET)
    service.close()


def approve(service, pattern):
    return service.reviews.add(FLEET, "a", ReviewRequest(decision="approve", pattern=pattern), ROOT)


def test_numbers_of_a_restored_server_come_after_all_that_a_device_has_seen(local):
    world, other_url = local
    approve(world.service, "odd-1")
    known = world.service.choices.desired_revision(FLEET, "a")
    restored(world, other_url)
    for number in (2, 3, 4):  # lost
        approve(world.service, f"odd-{number}")
        world.service.settings.change(FLEET, "a", SettingsRequest(limit=number), ROOT)
        known = world.service.choices.desired_revision(FLEET, "a")
    lost = world.service.settings.versions(FLEET, "a")[0].version
    service = Service(connect(other_url), clock=lambda: LATER)
    # Before the device has reported: nothing but the time of the restore is known.
    assert service.choices.desired_revision(FLEET, "a") > known
    assert approve(service, "odd-9").number == LATER + 1
    fresh = service.settings.change(FLEET, "a", SettingsRequest(limit=9.0), ROOT)
    assert fresh.version == LATER + 1 > lost
    # What the device did of the old numbers is done; what is new waits for it.
    service.take_report(FLEET, "a", report(LATER, reviews={"done": 4, "refused": []}), LATER)
    service.writer.write(lambda _tx: None, fleet=FLEET)  # what was submitted before is done
    states = {each.number: each.state for each in service.reviews.list_reviews(FLEET, "a")}
    assert states == {1: "done", LATER + 1: "waiting"}
    # Going back finds the version of before the restore.
    assert service.settings.undo(FLEET, "a", fresh.version, ROOT).label == "Pump ü"
    service.close()


def test_restoring_the_same_backup_again_does_not_repeat_numbers(local, tmp_path):
    world, _ = local
    file, target = tmp_path / "some.backup", str(tmp_path / "again.db")
    backup.backup(world.url, file)
    numbers, names = [], set()
    for later in (LATER, LATER + 60.0):
        clock = iter([later] * 1000).__next__
        done = backup.restore(file, target, replace_existing=True, clock=clock)
        names.add(done.timeline)
        service = Service(connect(target), clock=clock)
        numbers += [approve(service, f"odd-{i}").number for i in range(3)]
        numbers.append(service.choices.desired_revision(FLEET, "a") / 1e6)
        service.close()
    assert numbers[:3] == [5001, 5002, 5003]
    assert numbers[4:7] == [5061, 5062, 5063]
    assert numbers[7] > numbers[3]
    assert len(names) == 2


def test_a_backup_of_a_restored_database_begins_after_it_though_the_clock_went_back(made, tmp_path):
    first, second = str(tmp_path / "one.db"), str(tmp_path / "two.db")
    backup.restore(made, first, clock=lambda: LATER)
    backup.backup(first, tmp_path / "two.backup")
    backup.restore(tmp_path / "two.backup", second, clock=lambda: 0.0)
    service = Service(connect(second), clock=lambda: 0.0)
    assert approve(service, "odd-1").number > LATER
    service.close()


def test_the_head_of_the_log_continues_and_the_restore_is_an_entry(local, tmp_path):
    world, _ = local
    head, file, target = tmp_path / "head", tmp_path / "some.backup", str(tmp_path / "new.db")
    backup.backup(world.url, file)
    world.put(note("d", 1, generator(5)))
    with world.service.database.reading() as tx:
        HeadFile(head).follow(tx)
    lost = head.read_text()
    done = backup.restore(file, target, audit_head_file=head, clock=lambda: LATER)
    (kept,) = tmp_path.glob("head.replaced-*")
    assert kept.read_text() == lost
    assert head.read_text() == f"{done.audit_head}\n"
    database = connect(target)
    with database.reading() as tx:
        follow = HeadFile(head)
        follow.follow(tx)
        assert follow.problem is None
        (entry,) = audit.latest_entries(
            tx, fleet="", before=10**9, limit=1, action="restore", subject=""
        )
        assert f"{entry.seq} {entry.hash}" == done.audit_head
        assert json.loads(entry.detail)["backup_head"] == done.backup.audit_head
    with database.writing() as tx:
        tx.run("delete from audit where seq = ?", entry.seq)
    with database.reading() as tx:  # who hides the restore is found out
        follow.follow(tx)
        assert "edgemerge restore" in follow.problem
    database.close()


@pytest.mark.slow
def test_a_backup_under_load_has_all_that_was_acknowledged_before(world, tmp_path):
    """Devices push and are grouped all the time; the sums of each backup are those of its rows."""
    with pushing(world, "xyz") as acknowledged:
        backups = []
        for number in range(3):
            before, file = dict(acknowledged), tmp_path / f"{number}.backup"
            backup.backup(world.url, file)
            backups.append((file, before, dict(acknowledged)))
    assert any(before != after for _, before, after in backups), "nothing was pushed meanwhile"
    for file, before, after in backups:
        target = str(file.with_suffix(".db"))
        backup.restore(file, target, clock=lambda: LATER)
        service = Service(connect(target), clock=lambda: LATER)
        must_be_whole(service)
        found = {c.device: c.revision for c in service.contributions(FLEET, ROOT)[1]}
        for device in "xyz":
            assert before[device] <= found[device] <= after[device] + 1
        service.close()


@contextmanager
def pushing(world, devices):
    """Let devices push in threads until the block ends; give the revisions acknowledged."""
    acknowledged, stop = {}, Event()

    def push(device):
        rng, revision = generator(ord(device)), 10
        while not stop.is_set():
            revision += 1
            world.put(note(device, revision, rng))
            acknowledged[device] = revision
            if revision % 5 == 0:
                world.told(Selection(), grouped=True)

    for device in devices:
        world.caller(device)
    threads = [Thread(target=push, args=(device,)) for device in devices]
    for thread in threads:
        thread.start()
    try:
        while len(acknowledged) < len(devices):
            stop.wait(0.01)
        yield acknowledged
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)


def must_be_whole(service):
    """The total is the sum of what is there, and the chain of the log holds."""
    with service.database.reading() as tx:
        audit.verify(tx)
        stored = contributions.list_stored(tx, FLEET)
        sums = [contributions.read_stats(tx, each, SHARED) for each in stored]
    for grouped in (False, True):
        told = decode(service.pull(FLEET, Selection(), ROOT, None, grouped=grouped).data)
        assert told.total == Stats.total(SHARED, sums)


def test_the_schema_of_80453b9_is_backed_up_and_restored_into_either_database(tmp_path, other_url):
    old = tmp_path / "hub.sqlite"
    shutil.copy(CORPUS / "server/hub.sqlite", old)
    unchanged = old.read_bytes()
    made = backup.backup(str(old), tmp_path / "old.backup")
    assert made.schema == 3
    assert old.read_bytes() == unchanged, "the tables of a server that runs are not migrated"
    backup.restore(tmp_path / "old.backup", other_url)
    recorded = json.loads((CORPUS / "server.json").read_text(encoding="utf-8"))
    service = Service(connect(other_url))
    checked = 0
    for entry in recorded["answers"]:
        fleet, _, rest = entry["path"].removeprefix("/fleets/").partition("/")
        if "file" in entry and rest in ("total", "patterns") and entry["who"] == "operator":
            found = service.pull(fleet, Selection(), ROOT, None, grouped=rest == "patterns")
            assert found.data == (CORPUS / entry["file"]).read_bytes()
            checked += 1
    assert checked
    service.close()


def test_a_database_that_is_not_there_or_not_ours_is_not_backed_up(tmp_path):
    with pytest.raises(UnknownError, match="there is no database"):
        backup.backup(str(tmp_path / "none.db"), tmp_path / "out")
    sqlite3.connect(tmp_path / "other.db").executescript("create table t (x)")
    with pytest.raises(FormatError, match="database of another program"):
        backup.backup(str(tmp_path / "other.db"), tmp_path / "out")
    (tmp_path / "pump.csv").write_text("time,flow\n1,2\n")
    with pytest.raises(SettingError, match=r"no database of edgemerge .*name another file"):
        backup.backup(str(tmp_path / "pump.csv"), tmp_path / "out")
    World(str(tmp_path / "fleets.db")).close()
    with pytest.raises(SettingError, match="cannot be written"):
        backup.backup(str(tmp_path / "fleets.db"), tmp_path / "nowhere" / "out")
    assert not list(tmp_path.glob("*out*"))
