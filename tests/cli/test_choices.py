"""The commands by which an operator chooses who is told what, with a real server."""

import numpy as np
import pytest

from edgemerge import Contribution, Stats
from edgemerge.cli.group import ExitCode
from edgemerge.core.ledger import Selection
from edgemerge.exchange.client import ServerClient
from edgemerge.exchange.http import HttpExchange
from tests.cases import machine
from tests.cli.calls import call, failure
from tests.cli.hubs import SHARED

pytestmark = pytest.mark.slow
PLACES = {"pump-1": 0.1, "pump-2": 0.1, "pump-3": 0.7}


@pytest.fixture
def pumps(hub, fleet, tmp_path):
    """Three devices that have contributed, each with its exchange."""
    found = {}
    for seed, (device, place) in enumerate(PLACES.items()):
        hub.enrolled(fleet, device, tmp_path / device)
        token = (tmp_path / device).read_text(encoding="utf-8").strip()
        found[device] = HttpExchange(hub.url, fleet, token, projection=SHARED)
        rows = machine(place, 200, np.random.default_rng(seed))
        found[device].push(Contribution(device, Stats.of(SHARED, rows), revision=1))
    yield found
    for exchange in found.values():
        exchange.close()


def told(exchange, device):
    return [origin.device for origin in exchange.pull(Selection(receiver=device)).origins]


def test_devices_are_told_of_whom_was_chosen_until_it_is_undone(hub, fleet, pumps):
    nothing = hub.fleet("choices", fleet)
    assert "adopts from all others" in nothing.stderr
    made = hub.fleet("adopt", fleet, "--source", "pump-2", "--target", "pump-1")
    assert made.stdout == "Choice 1: pump-1 adopt from pump-2 only.\n"
    assert "next exchange" in made.stderr
    assert told(pumps["pump-1"], "pump-1") == ["pump-2"]
    words = ("--no-source", "--target", "pump-2", "--target", "pump-3")
    assert hub.told("adopt", fleet, *words)["sources"] == []
    assert told(pumps["pump-2"], "pump-2") == []
    listed = hub.fleet("choices", fleet).stdout
    assert "pump-2, pump-3 adopt from no device only" in listed
    assert listed.index("no device") < listed.index("pump-1 adopt from pump-2 only")
    undone = hub.fleet("undo", fleet, 1)
    assert undone.stdout == "Undone 1: pump-1 adopt from pump-2 only.\n"
    assert told(pumps["pump-1"], "pump-1") == ["pump-2", "pump-3"]
    assert [each["number"] for each in hub.told("choices", fleet)] == [2]
    everything = hub.told("choices", fleet, "--include-undone")
    assert [(each["number"], bool(each["undone"])) for each in everything] == [
        (2, False),
        (1, True),
    ]
    again = hub.told("undo", fleet, 1)
    assert again["undone"] == everything[1]["undone"]
    assert again["undone"].endswith("Z")


def test_a_contribution_is_withheld_from_everybody_until_that_is_undone(hub, fleet, pumps):
    made = hub.fleet("exclude", fleet, "pump-3", 0, "normal")
    assert made.stdout == "Choice 1: excluded pump-3/0/normal.\n"
    assert told(pumps["pump-1"], "pump-1") == ["pump-2"]
    assert hub.told("choices", fleet)[0]["device"] == "pump-3"
    assert hub.told("devices", fleet)[2]["revoked"] is None  # it is not locked out
    actions = [each["action"] for each in hub.told("audit", "--fleet", fleet)["entries"]]
    assert actions[-1] in ("exclude contribution", "revoke contribution")
    hub.fleet("undo", fleet, 1)
    assert told(pumps["pump-1"], "pump-1") == ["pump-2", "pump-3"]


def test_what_adopting_would_do_is_shown_and_not_done(hub, fleet, pumps):
    assert pumps
    words = ("--source", "pump-3", "--target", "pump-1", "--target", "pump-2")
    rows = hub.told("preview", fleet, *words)
    assert [row["device"] for row in rows] == ["pump-1", "pump-2"]
    for row in rows:
        assert row["joined"] == 200
        assert row["shift"] == row["after"] / row["alone"]
    shown = hub.fleet("preview", fleet, *words).stdout.splitlines()
    assert shown[0].split()[-4:] == ["ALONE", "BEFORE", "AFTER", "SHIFT"]
    assert len(shown) == 3
    assert hub.told("choices", fleet) == []
    quiet = hub.fleet("preview", fleet, "--no-source", "--target", "pump-1")
    assert "0" in quiet.stdout.splitlines()[1].split()


def test_a_device_that_contributed_nothing_has_nothing_to_preview(hub, fleet, pumps, tmp_path):
    assert pumps
    hub.enrolled(fleet, "pump-4", tmp_path / "4")
    found = hub.fleet("preview", fleet, "--source", "pump-1", "--target", "pump-4")
    assert "nothing to compare" in found.stderr


def test_mistakes_are_told_in_one_line(hub, fleet, pumps):
    assert pumps
    to = ("--target", "pump-1")
    assert "no device nobody" in failure(hub.fleet("adopt", fleet, "--source", "nobody", *to))
    words = failure(hub.fleet("exclude", fleet, "pump-1", 0, "idle"), ExitCode.NO_DATA)
    assert words.startswith(f"no contribution pump-1/0/idle in {fleet}: see `edgemerge fleet cont")
    words = failure(hub.fleet("undo", fleet, 7), ExitCode.NO_DATA)
    assert words.startswith(f"no choice 7 in {fleet}: `edgemerge fleet choices {fleet} --inc")
    for word in ("drop", "revoke"):
        yes = ("--yes",) if word == "drop" else ()
        words = failure(hub.fleet(word, fleet, "pump-9", *yes), ExitCode.NO_DATA)
        assert f"pump-9 in {fleet}: `edgemerge fleet " in words
    words = failure(hub.fleet("show", "nope"), ExitCode.NO_DATA)
    assert words.startswith("no fleet nope: `edgemerge fleet list` lists them, and an admin crea")
    words = failure(hub.fleet("show", "a b"), ExitCode.REFUSED)
    assert words.startswith("fleet: found 'a b', expected letters, digits, '.', '_' and '-'")
    for sources in ((), ("--no-source", "--source", "pump-2")):
        wrong = hub.fleet("adopt", fleet, *sources, *to)
        assert wrong.exit_code == 2
        assert "--no-source" in wrong.stderr
    assert hub.told("choices", fleet) == []


def test_a_device_may_not_choose(hub, fleet, pumps, tmp_path):
    assert pumps
    where = ("--server", hub.url, "--token-file", tmp_path / "pump-1")
    found = call("fleet", "exclude", fleet, "pump-3", 0, "normal", *where)
    assert "expected that of an account" in failure(found)


def test_likeness_is_told_in_groups(hub, fleet, pumps):
    assert pumps
    operator = ServerClient(hub.url, hub.token.read_text(encoding="utf-8").strip())
    found = operator.similarity(fleet)
    groups = dict(zip(found["devices"], found["groups"], strict=True))
    assert groups["pump-1"] == groups["pump-2"] != groups["pump-3"]
    assert len(found["ratios"]) == len(found["ratios"][0]) == 3
    named = operator.similarity(fleet, ["pump-1", "pump-3"])
    assert sorted(named["devices"]) == ["pump-1", "pump-3"]
    assert named["left_out"] == 1
    operator.close()


def test_what_is_not_trusted_waits_until_it_is_approved(hub, fleet, pumps):
    assert "Nothing waits" in hub.fleet("waiting", fleet).stderr
    assert hub.fleet("trust", fleet, "quorum:2").stdout == f"The trust of {fleet} is quorum:2.\n"
    assert told(pumps["pump-1"], "pump-1") == ["pump-2"]
    listed = hub.fleet("waiting", fleet).stdout
    assert "pump-3" in listed
    assert "1 of the 2 devices" in listed
    assert "none (nearest pump-" in listed
    (found,) = hub.told("waiting", fleet)
    assert (found["device"], found["like_none"], found["samples"]) == ("pump-3", True, 200.0)
    key = ("pump-3", 0, "normal")
    made = hub.fleet("approve", fleet, *key, "--revision", 1, "--comment", "a new kind")
    assert made.stdout == "Choice 1: approved pump-3/0/normal (a new kind).\n"
    assert told(pumps["pump-1"], "pump-1") == ["pump-2", "pump-3"]
    assert hub.told("waiting", fleet) == []
    hub.fleet("undo", fleet, 1)
    assert hub.told("dismiss", fleet, *key)["kind"] == "dismiss"
    assert (hub.told("waiting", fleet), told(pumps["pump-1"], "pump-1")) == ([], ["pump-2"])
    assert hub.told("show", fleet)["trust"] == "quorum:2"
