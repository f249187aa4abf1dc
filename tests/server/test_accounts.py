"""Accounts: roles, tokens that are added, rotated, revoked and expire, and what ends with them."""

import json
import os
from itertools import count

import pytest
import uvicorn

from edgemerge.core.errors import DeniedError, SettingError, UnknownError
from edgemerge.files import file_stamp
from edgemerge.server.auth import WALL_LINK_S, Caller, hash_token, new_token
from edgemerge.server.db.migrations import MIGRATIONS, SQLITE, connect, migrate
from edgemerge.server.db.sqlite import SqliteDatabase
from edgemerge.server.fleets import ExistsError
from edgemerge.server.main import Server, load_operator_token
from edgemerge.server.service import Service
from tests.server.world import FLEET

ADMIN = Caller("root", role="admin")


@pytest.fixture
def world(any_world):
    return any_world


@pytest.fixture
def accounts(world):
    return world.service.accounts


def told(world):
    """The audit log of accounts: who, what, about whom, and the detail."""
    entries = world.service.audit(None, 0, 1000)
    return [
        (e.actor, e.action, e.subject, json.loads(e.detail))
        for e in entries
        if e.action.endswith("account")
    ]


def works(world, token):
    try:
        return world.service.caller(token).role
    except DeniedError:
        return None


def test_an_account_has_its_role_and_a_token_that_is_stored_as_its_hash(world, accounts):
    for role in ("viewer", "operator", "admin"):
        made, token = accounts.add(f"eve-{role}", role, None, ADMIN)
        assert (made.role, made.expires, made.state(world.now)) == (role, None, "active")
        assert works(world, token) == role
    with world.service.database.reading() as tx:
        stored = repr(tx.rows("select * from accounts"))
    assert token not in stored
    assert hash_token(token) in stored
    assert [each.name for each in accounts.all()] == [
        "eve-admin",
        "eve-operator",
        "eve-viewer",
        "root",
    ]
    assert told(world)[-1] == ("admin root", "add account", "eve-admin", {"role": "admin"})


def test_names_and_roles_are_checked_before_anything_is_stored(accounts):
    for name, role, words in (("", "viewer", "found account"), ("eve", "wall", "found the role")):
        with pytest.raises(SettingError, match=words):
            accounts.add(name, role, None, ADMIN)
    with pytest.raises(ExistsError, match="choose another name"):
        accounts.add("root", "viewer", None, ADMIN)
    with pytest.raises(UnknownError, match="no account eve"):
        accounts.rotate("eve", ADMIN)
    assert [each.name for each in accounts.all()] == ["root"]


def test_a_token_works_until_it_expires_and_its_session_no_longer(world, accounts):
    _, token = accounts.add("eve", "viewer", 60.0, ADMIN)
    cookie, session = world.service.sessions.sign_in(token)
    assert session.expires == world.now + 60.0  # less than the twelve hours of others
    link = world.service.sessions.link(Caller("eve", role="viewer"))
    assert link.expires == world.now + 60.0
    world.now += 59.9
    assert works(world, token) == "viewer"
    assert world.service.sessions.session(cookie) is not None
    world.now += 0.1
    assert works(world, token) is None
    assert world.service.sessions.session(cookie) is None
    with pytest.raises(DeniedError):
        world.service.sessions.sign_in_by_link(link.token)
    assert accounts.get("eve").state(world.now) == "expired"


ENDS = {
    "rotate": lambda accounts: accounts.rotate("eve", ADMIN),
    "revoke": lambda accounts: accounts.revoke("eve", ADMIN),
    "role": lambda accounts: accounts.change("eve", ADMIN, role="viewer"),
    "expiry": lambda accounts: accounts.change("eve", ADMIN, valid_s=3600.0),
}


@pytest.mark.parametrize("way", ENDS)
def test_whatever_changes_in_an_account_ends_its_sessions_and_links_and_no_others(
    world, accounts, way
):
    _, token = accounts.add("eve", "operator", None, ADMIN)
    sessions, before = world.service.sessions, accounts.generation
    cookie, other = sessions.sign_in(token)[0], sessions.sign_in(world.operator_token)[0]
    link = sessions.link(Caller("eve")).token
    ENDS[way](accounts)
    assert accounts.generation > before  # streams look at once
    assert sessions.session(cookie) is None
    assert sessions.session(other) is not None
    with pytest.raises(DeniedError, match="unknown, used or expired"):
        sessions.sign_in_by_link(link)
    assert works(world, token) == {"role": "viewer", "expiry": "operator"}.get(way)


def test_a_rotated_token_is_valid_for_as_long_as_the_one_before(world, accounts):
    _, old = accounts.add("eve", "viewer", 90.0, ADMIN)
    world.now += 80.0
    made, token = accounts.rotate("eve", ADMIN)
    assert (works(world, old), works(world, token)) == (None, "viewer")
    assert (made.issued, made.expires) == (world.now, world.now + 90.0)
    world.now += 10.0
    assert accounts.rotate("eve", ADMIN).account.expires == world.now + 90.0
    assert accounts.rotate("eve", ADMIN, valid_s=None).account.expires is None
    assert accounts.rotate("eve", ADMIN, valid_s=5.0).account.expires == world.now + 5.0
    assert told(world)[-1] == ("admin root", "rotate account", "eve", {"expires": world.now + 5.0})


def test_a_revoked_account_stays_in_the_list_and_its_name_can_be_used_again(world, accounts):
    _, old = accounts.add("eve", "operator", None, ADMIN)
    accounts.revoke("eve", ADMIN)
    entries = len(told(world))
    accounts.revoke("eve", ADMIN)  # twice is once
    assert len(told(world)) == entries
    assert accounts.get("eve").state(world.now) == "revoked"
    for change in (ENDS["rotate"], ENDS["role"]):
        with pytest.raises(SettingError, match="was revoked"):
            change(accounts)
    _, token = accounts.add("eve", "viewer", None, ADMIN)
    assert (works(world, old), works(world, token)) == (None, "viewer")


def test_the_last_admin_whose_token_never_expires_stays(world, accounts):
    accounts.add("soon", "admin", 60.0, ADMIN)  # would leave nobody some day
    refused = (
        lambda: accounts.revoke("root", ADMIN),
        lambda: accounts.change("root", ADMIN, role="operator"),
        lambda: accounts.change("root", ADMIN, valid_s=60.0),
        lambda: accounts.rotate("root", ADMIN, valid_s=60.0),
    )
    before = told(world)
    cookie, _ = world.service.sessions.sign_in(world.operator_token)
    for change in refused:
        with pytest.raises(SettingError, match="add another one first"):
            change()
    assert told(world) == before
    assert works(world, world.operator_token) == "admin"
    assert world.service.sessions.session(cookie) is not None
    accounts.change("soon", ADMIN, valid_s=None)
    accounts.revoke("root", ADMIN)
    assert works(world, world.operator_token) is None
    assert accounts.has_admin()


def test_a_wall_link_is_of_one_fleet_expires_and_goes_with_it(world, accounts):
    with pytest.raises(UnknownError, match="no fleet nowhere"):
        accounts.add_wall_link("hall", "nowhere", ADMIN)
    made, link = accounts.add_wall_link("hall", FLEET, ADMIN)
    assert (made.role, made.fleet, made.expires) == ("wall", FLEET, world.now + WALL_LINK_S)
    assert accounts.wall(link) == made
    assert works(world, link) is None
    assert accounts.wall(world.operator_token) is None
    for change in (
        lambda: accounts.change("hall", ADMIN, role="admin"),
        lambda: accounts.change("hall", ADMIN, valid_s=None),
    ):
        with pytest.raises(SettingError, match="wall link"):
            change()
    _, again = accounts.rotate("hall", ADMIN)
    assert (accounts.wall(link), accounts.wall(again)) == (None, accounts.get("hall"))
    assert world.service.audit(FLEET, 0, 100)[-1].action == "rotate account"  # in the fleet's log
    world.now += WALL_LINK_S
    assert accounts.wall(again) is None
    _, other = accounts.add_wall_link("office", FLEET, ADMIN)
    world.service.delete(FLEET, ADMIN)
    assert accounts.wall(other) is None
    assert [each.name for each in accounts.all()] == ["root"]


def test_another_token_in_the_servers_file_ends_the_one_before(world, accounts):
    first, second = world.operator_token, new_token("operator")
    cookie, _ = world.service.sessions.sign_in(first)
    accounts.accept_from_file(second, "root")
    assert (works(world, first), works(world, second)) == (None, "admin")
    assert world.service.sessions.session(cookie) is None
    assert told(world)[-1][:3] == ("the server", "rotate account", "root")
    before = told(world)
    accounts.accept_from_file(second, "root")  # at the next start
    assert told(world) == before


def test_the_servers_file_does_not_bring_back_what_was_rotated_or_revoked(world, accounts):
    old = world.operator_token
    assert accounts.get("root").from_file
    _, token = accounts.rotate("root", ADMIN)
    assert not accounts.get("root").from_file
    accounts.accept_from_file(old, "root")  # the file was not changed
    assert (works(world, old), works(world, token)) == (None, "admin")
    accounts.accept_from_file(token, "root")  # now it was
    assert works(world, token) == "admin"
    accounts.add("other", "admin", None, ADMIN)
    accounts.revoke("root", ADMIN)
    accounts.accept_from_file(token, "root")
    assert works(world, token) is None
    accounts.accept_from_file(new := new_token("operator"), "root")
    assert works(world, new) == "admin"


def test_a_token_file_is_read_again_when_it_was_changed(tmp_path, database):
    service, file = Service(database), tmp_path / "hub.token"
    load_operator_token(service, file)
    old, before = file.read_text().strip(), file_stamp(file)
    assert file_stamp(file) == before
    new = new_token("operator")
    file.write_text(new + "\n")
    os.utime(file, (1, 1))
    assert file_stamp(file) not in (None, before)
    load_operator_token(service, file)
    assert service.caller(new).name == "hub"
    with pytest.raises(DeniedError):
        service.caller(old)
    service.close()


def test_a_running_server_follows_its_token_file(tmp_path, database):
    service, file = Service(database), tmp_path / "hub.token"
    load_operator_token(service, file)
    server = Server(uvicorn.Config(lambda: None), service, file)
    old, new = file.read_text().strip(), new_token("operator")
    server._follow_files()
    assert service.caller(old).may("admin")
    file.write_text("nonsense\n")
    server._follow_files()  # is logged, and changes nothing
    assert service.caller(old).may("admin")
    file.write_text(new + "\n")
    server._follow_files()
    assert service.caller(new).may("admin")
    with pytest.raises(DeniedError):
        service.caller(old)
    file.unlink()
    server._follow_files()
    assert service.caller(new).may("admin")
    service.close()


def test_operators_of_older_databases_become_admins_each_with_its_newest_token(tmp_path):
    database = SqliteDatabase(str(tmp_path / "old.db"))
    before = [each for each in MIGRATIONS if "create table accounts" not in str(each.statements)]
    older = before[: MIGRATIONS.index(next(m for m in MIGRATIONS if m not in before))]
    migrate(database, SQLITE, older)
    old, new, other = (new_token("operator") for _ in range(3))
    numbers = count()
    with database.writing() as tx:
        for token, name in ((old, "admin"), (new, "admin"), (other, "ops")):
            sql = "insert into operators (token_hash, name, created) values (?, ?, ?)"
            tx.run(sql, hash_token(token), name, float(next(numbers)))
        for name in ("admin", "ops"):
            sql = "insert into sessions (token_hash, name, created, expires) values (?, ?, 0, 9e9)"
            tx.run(sql, hash_token(f"ems_{name}"), name)
    database.close()
    service = Service(connect(tmp_path / "old.db"), clock=lambda: 100.0)
    found = {
        each.name: (each.role, each.expires, each.from_file) for each in service.accounts.all()
    }
    assert found == {"admin": ("admin", None, True), "ops": ("admin", None, True)}
    assert service.caller(new).may("admin")
    assert service.caller(other).may("admin")
    with pytest.raises(DeniedError):
        service.caller(old)
    assert service.sessions.session("ems_ops") is not None
    assert service.sessions.session("ems_admin") is None  # it may have been the old token's
    service.close()
