"""`edgemerge backup` and `edgemerge restore`."""

import json

import pytest

from edgemerge.cli.group import ExitCode
from tests.cli.calls import call, failure
from tests.server.world import World, generator, note


@pytest.fixture
def hub(tmp_path):
    """A database with one device."""
    world = World(str(tmp_path / "hub.sqlite"))
    world.put(note("pump-1", 1, generator(1)))
    world.close()
    return tmp_path / "hub.sqlite"


def test_a_backup_is_made_and_restored_and_what_that_means_is_said(hub, tmp_path):
    made = call("backup", "--database", hub, "--out", tmp_path / "hub.backup", "--json")
    facts = json.loads(made.stdout)
    assert (facts["fleets"], facts["devices"], facts["contributions"]) == (1, 1, 1)
    again = ("restore", tmp_path / "hub.backup", "--database", hub)
    assert "--replace" in failure(call(*again))
    (tmp_path / "hub.sqlite.audit-head").write_text("9 lost\n")
    done = call(*again, "--replace", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["sha256"] == facts["sha256"]
    assert found["replaced"].startswith(f"{hub}.replaced-")
    assert f"What happened after {facts['made']} is lost" in done.stderr
    assert "need a new invitation" in done.stderr
    assert (tmp_path / "hub.sqlite.audit-head").read_text() == f"{found['audit_head']}\n"


def test_the_database_can_be_named_by_the_variable_of_the_server(hub, tmp_path):
    out = tmp_path / "hub.backup"
    made = call("backup", "--out", out, EDGEMERGE_DATABASE=str(hub))
    assert made.exit_code == 0
    assert "contributions  1" in made.stdout
    new = tmp_path / "new.sqlite"
    restored = call("restore", out, EDGEMERGE_DATABASE=f"sqlite:///{new}")
    assert restored.exit_code == 0
    assert "replaced       none\n" in restored.stdout
    assert new.exists()


def test_what_cannot_be_backed_up_or_restored_is_refused_in_one_line(tmp_path):
    none = call("backup", "--database", tmp_path / "none", "--out", tmp_path / "out")
    assert "there is no database" in failure(none, ExitCode.NO_DATA)
    (tmp_path / "no.backup").write_text("text")
    wrong = call("restore", tmp_path / "no.backup", "--database", tmp_path / "new.sqlite")
    assert "is no backup of edgemerge" in failure(wrong)
    assert call("backup", "--out", tmp_path / "out").exit_code == ExitCode.USAGE
