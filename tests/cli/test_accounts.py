"""`edgemerge accounts` and `edgemerge fleet replace`: people and screens, from the command line."""

import json
import re
from urllib.request import urlopen

import pytest

from edgemerge.exchange.client import ServerClient
from edgemerge.files import read_token
from tests.cli.calls import call, failure
from tests.cli.hubs import SHARED

pytestmark = pytest.mark.slow


def asked(hub, *words):
    return call("accounts", *words, "--server", hub.url, "--token-file", hub.token)


def client(hub, token=None):
    return ServerClient(hub.url, token or read_token(hub.token))


def test_an_account_is_added_listed_changed_rotated_and_revoked(hub, tmp_path):
    file = tmp_path / "eve.token"
    added = asked(hub, "add", "eve", "--role", "operator", "--expires", "90d", "--out", str(file))
    assert (added.exit_code, added.stdout) == (0, f"{file}\n"), added.stderr
    assert "The token of eve, operator, until 20" in added.stderr
    assert file.stat().st_mode & 0o077 == 0
    eve = read_token(file)
    client(hub, eve).fleets()
    assert eve not in added.stderr
    (mine,) = [each for each in client(hub).accounts() if each["name"] == "eve"]
    assert mine["expires"] - mine["issued"] == 90 * 86_400
    listed = asked(hub, "list").stdout
    assert re.search(r"^eve +operator +- +active +\S+Z +\S+Z$", listed, re.MULTILINE)
    assert re.search(r"^\S+ +admin +- +active +\S+Z +-$", listed, re.MULTILINE)
    changed = asked(hub, "change", "eve", "--role", "viewer")
    assert re.search(r"^role +viewer$", changed.stdout, re.MULTILINE)
    assert re.search(r"^expires +20\S+Z$", changed.stdout, re.MULTILINE)  # as it was
    never = json.loads(asked(hub, "change", "eve", "--expires", "never", "--json").stdout)
    assert (never["role"], never["expires"]) == ("viewer", None)
    rotated = asked(hub, "rotate", "eve").stdout.strip()
    assert rotated.startswith("emo_")
    with pytest.raises(PermissionError):
        client(hub, eve).fleets()
    client(hub, rotated).fleets()
    assert asked(hub, "revoke", "eve", "--yes").stdout == "Revoked eve.\n"
    with pytest.raises(PermissionError):
        client(hub, rotated).fleets()


def test_an_account_without_a_role_is_a_viewers_and_machines_get_json(hub):
    found = json.loads(asked(hub, "add", "vera", "--json").stdout)
    assert (found["role"], found["expires"], found["state"]) == ("viewer", None, "active")
    with pytest.raises(PermissionError, match="this needs admin"):
        client(hub, found["token"]).create_fleet("another", SHARED)


def test_a_wall_link_opens_the_page_of_its_fleet(hub, fleet):
    made = asked(hub, "wall-link", "hall-b", fleet)
    link = made.stdout.strip()
    assert link.startswith(f"{hub.url}/ui/wall/emw_")
    with urlopen(link) as page:
        assert fleet.encode() in page.read()
    again = asked(hub, "rotate", "hall-b").stdout.strip()
    assert again.startswith(f"{hub.url}/ui/wall/emw_")
    assert again != link
    (listed,) = [each for each in client(hub).accounts() if each["role"] == "wall"]
    assert (listed["fleet"], listed["expires"] - listed["issued"]) == (fleet, 365 * 86_400)


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (("add", "eve", "--expires", "soon"), 2, "expected such as 90d"),
        (("change", "eve"), 2, "expected --role or --expires"),
        (("wall-link", "hall", "pumps", "--expires", "never"), 2, "expected a time"),
        (("rotate", "nobody"), 5, "no account nobody"),
        (("revoke", "nobody", "--yes"), 5, "no account nobody"),
    ],
)
def test_what_cannot_be_done_is_said(hub, words, code, expected):
    result = asked(hub, *words)
    assert (result.exit_code, result.stdout) == (code, "")
    assert expected in result.stderr


def test_the_last_admin_cannot_be_revoked(hub):
    result = asked(hub, "revoke", "admin", "--yes")
    assert result.exit_code != 0
    assert "add another one first" in failure(result)


def test_new_hardware_gets_an_invitation_in_the_name_of_a_device_that_is_there(
    hub, fleet, tmp_path
):
    where = ("--server", hub.url, "--token-file", hub.token)
    nothing = call("fleet", "replace", fleet, "pump-1", *where)
    assert (nothing.exit_code, "nothing to replace: invite it" in failure(nothing)) == (5, True)
    first = client(hub).invite(fleet, "pump-1")["token"]
    old = client(hub, first).enrol(fleet, "pump-1")["token"]
    file = tmp_path / "invitation"
    made = call("fleet", "replace", fleet, "pump-1", "--out", str(file), *where)
    assert (made.exit_code, made.stdout) == (0, f"{file}\n"), made.stderr
    assert "The old token works until it enrols." in made.stderr
    assert len(client(hub, old).fleets()) == 1
    new = client(hub, read_token(file)).enrol(fleet, "pump-1")["token"]
    assert len(client(hub, new).fleets()) == 1
    with pytest.raises(PermissionError):
        client(hub, old).fleets()
