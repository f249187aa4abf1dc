"""The commands of an operator with a real server."""

import json
import os
import stat
from contextlib import closing

import numpy as np
import pytest

from edgemerge import Contribution, Projection, Stats, load
from edgemerge.cli import agent
from edgemerge.cli import fleet as fleet_module
from edgemerge.cli.group import ExitCode
from edgemerge.cli.options import allows_plain_http
from edgemerge.core.errors import UnavailableError
from edgemerge.core.ledger import Selection
from edgemerge.exchange.client import ServerClient
from edgemerge.exchange.http import HttpExchange
from edgemerge.exchange.masked_fleet import MaskedExchange
from edgemerge.privacy.gate import min_cohort
from edgemerge.privacy.noise import NoiseSettings
from edgemerge.server import audit
from tests.cli.calls import call, failure, program
from tests.cli.hubs import IDLE, SHARED
from tests.services.hub import running

pytestmark = pytest.mark.slow


def test_a_fleet_is_created_once_shown_listed_and_deleted(hub, tmp_path):
    agree = ("--n-inputs", 6, "--n-hidden", 8, "--seed", 3, "--low", -1, "--high", 1)
    made = hub.fleet("create", "pumps", *agree, "--min-devices", 2, "--no-forgetting")
    created, first_total = made.stderr.splitlines()
    assert created == "Created fleet pumps."
    assert "first total once 3 of them have shared" in first_total
    again = hub.fleet("create", "pumps", *agree, "--min-devices", 2, "--no-forgetting")
    assert again.stderr == "Fleet pumps already exists with these settings.\n"
    assert "delete it first" in failure(hub.fleet("create", "pumps", *agree))
    shown = hub.told("show", "pumps", "--save-projection", tmp_path / "projection")
    assert (shown["reads"], shown["min_devices"], shown["no_forgetting"]) == ("totals", 2, True)
    assert (shown["least"], shown["growing"]) == (2, True)  # the names before
    lines = hub.fleet("show", "pumps").stdout.splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["min_devices", "no_forgetting"]
    assert shown["fingerprint"] == SHARED.fingerprint
    assert load(tmp_path / "projection") == SHARED
    assert "pumps" in [each["fleet"] for each in hub.told("list")]
    assert "\npumps  " in hub.fleet("list").stdout
    assert hub.fleet("delete", "pumps", "--yes").stdout == "Deleted fleet pumps.\n"
    assert "no fleet pumps" in failure(hub.fleet("show", "pumps"))


def test_totals_hide_three_devices_and_a_lower_number_says_what_it_gives_up(hub):
    agree = ("--n-inputs", 6, "--n-hidden", 8, "--low", -1, "--high", 1)
    made = hub.fleet("create", "hidden", *agree).stderr
    assert "first total once 4 of them have shared. For a smaller fleet, delete it" in made
    shown = hub.told("show", "hidden")
    assert shown["least"] == 3
    assert shown["released"] == (
        "nothing; the next release needs something new of 4 devices, and 0 have that"
    )
    made = hub.fleet("create", "trial", *agree, "--min-devices", 1)
    assert "a device can subtract two totals, and read what another one sent" in made.stderr
    assert "first total" not in made.stderr
    assert hub.told("show", "trial")["released"] == "every change at once"


def register_keys(hub, fleet, folder):
    """Let three devices of a masked fleet exchange once."""
    for name in ("pump-1", "pump-2", "pump-3"):
        hub.enrolled(fleet, name, folder / name)
        token, path = (folder / name).read_text().strip(), folder / f"{name}.masked"
        with closing(MaskedExchange(hub.url, fleet, token, device=name, path=path)) as there:
            there.pull(Selection(receiver=name))


def test_a_masked_fleet_says_how_many_devices_hide_a_sample(hub, tmp_path):
    agree = ("--n-inputs", 6, "--n-hidden", 8, "--low", -1, "--high", 1)
    made = hub.fleet("create", "masked", *agree, "--reads", "masked")
    enough = min_cohort(SHARED)
    assert f"A total hides its samples from {enough} devices on" in made.stderr
    assert "cannot drop or choose devices, group patterns" in made.stderr
    register_keys(hub, "masked", tmp_path)
    expected = f"found 3 devices with keys, expected {enough} or more"
    assert expected in failure(hub.fleet("form-cohorts", "masked"))
    formed = hub.fleet("form-cohorts", "masked", "--least", 3)
    assert formed.exit_code == 0
    assert "A total of 3 devices can reveal whether a given sample is in it" in formed.stderr
    assert "an epoch waits until 3 of its 3 devices have sent" in formed.stderr
    assert [each["least"] for each in hub.told("cohorts", "masked")] == [3]
    assert hub.fleet("form-cohorts", "masked", "--min-devices", 3, "--mix").exit_code == 0
    first, second = hub.told("cohorts", "masked", "--all")
    assert first["ended"] is not None
    assert second["ended"] is None
    assert hub.told("cohorts", "masked") == [second]
    found = hub.fleet("cohorts", "masked", "--all")
    assert "DROPPED" in found.stdout
    assert first["digest"] in found.stderr  # of the second one, which has the same members
    assert found.stderr.count("has the digest") == 1
    assert hub.told("suspects", "masked") == {"devices": [], "times": 0, "formings": 0}
    assert "No cohort differs" in hub.fleet("suspects", "masked").stderr


def test_a_masked_fleet_with_noise_says_what_it_costs_and_protects(hub, tmp_path):
    agree = ("--n-inputs", 6, "--n-hidden", 8, "--low", -1, "--high", 1, "--reads", "masked")
    noise = ("--epsilon", 4, "--delta", 1e-5)
    made = hub.fleet("create", "noised", *agree, *noise, "--radius", 0.1)
    assert "with ε = 4 and δ = 1e-05 it can hardly be told" in made.stderr
    assert "many samples of one device or person together can" in made.stderr
    enough = NoiseSettings(4.0, 1e-5, radius=0.1).enough_samples(SHARED)
    assert f"About {enough} samples in a total outweigh its noise" in made.stderr
    assert "cannot drop or choose devices, group patterns" in made.stderr
    assert "noise          ε = 4, δ = 1e-05 (sums)\n" in hub.fleet("show", "noised").stdout
    assert hub.told("show", "noised")["noise"]["radius"] == 0.1
    register_keys(hub, "noised", tmp_path)
    formed = hub.fleet("form-cohorts", "noised")
    assert formed.exit_code == 0
    assert "each device adds 1/2 of the variance of ε = 4, δ = 1e-05 (sums)." in formed.stderr
    assert "can reveal whether" not in formed.stderr


def test_a_fleet_is_not_centred_on_one_without_a_mean(hub):
    agree = ("--n-inputs", 6, "--n-hidden", 8, "--low", -1, "--high", 1, "--reads", "masked")
    mean = ("--epsilon", 4, "--delta", 1e-5, "--release", "mean")
    assert hub.fleet("create", "means", *agree, *mean).exit_code == 0
    assert "5% of the budget" in hub.fleet("show", "means").stdout
    refused = failure(hub.fleet("create", "sums", "--reads", "masked", "--centred-on", "means"))
    assert "means has no mean yet" in refused
    refused = failure(hub.fleet("create", "sums", *agree, "--centred-on", "means"))
    assert "found --centred-on together with settings of a projection" in refused
    refused = failure(hub.fleet("create", "sums", *agree, "--epsilon", 4))
    assert "needs both epsilon and delta" in refused


def test_the_range_of_a_fleet_can_come_from_samples(hub, tmp_path):
    np.savetxt(tmp_path / "samples.csv", IDLE, delimiter=",")
    made = hub.told("create", "ranged", "--range-from", tmp_path / "samples.csv", "--n-hidden", 8)
    rows = np.loadtxt(tmp_path / "samples.csv", delimiter=",")
    assert made["fingerprint"] == Projection.of_data(rows, n_hidden=8).fingerprint
    chosen = ("--range-from", tmp_path / "samples.csv", "--n-hidden", 8, "--columns", "1,3")
    made = hub.told("create", "chosen", *chosen)
    assert made["fingerprint"] == Projection.of_data(rows[:, [0, 2]], n_hidden=8).fingerprint


@pytest.mark.slow
def test_a_file_that_exists_is_not_replaced_without_force(hub, fleet, tmp_path):
    file, where = tmp_path / "kept", ("--server", hub.url, "--token-file", hub.token)
    ann = f"ann-{fleet}"
    for words in (
        ("fleet", "show", fleet, "--save-projection"),
        ("fleet", "invite", fleet, "--out"),
        ("fleet", "replace", fleet, "pump-1", "--out"),
        ("accounts", "add", ann, "--out"),
        ("accounts", "rotate", ann, "--out"),
    ):
        file.write_text("kept\n")
        refused = failure(call(*words, file, *where), ExitCode.USAGE)
        assert f"{file} already exists: --force overwrites it" in refused
        assert file.read_text() == "kept\n"
        if words[1] != "replace":  # of a device, which there is none yet
            done = call(*words, file, "--force", *where)
            assert done.exit_code == 0, done.stderr
            assert file.read_bytes() != b"kept\n"


def test_a_device_enrols_once_with_an_invitation_in_a_file(hub, fleet, tmp_path):
    invited = hub.told("invite", fleet, "--out", tmp_path / "invitation", "--valid-s", 60)
    assert "token" not in invited
    words = ("--invitation-file", tmp_path / "invitation", "--token-file", tmp_path / "token")
    result = call("enrol", hub.url, fleet, "pump-1", *words, "--json")
    token = (tmp_path / "token").read_text(encoding="utf-8").strip()
    assert json.loads(result.stdout)["device"] == "pump-1"
    assert token not in result.output
    for secret in ("invitation", "token"):
        assert stat.S_IMODE((tmp_path / secret).stat().st_mode) == 0o600
    again = call("enrol", hub.url, fleet, "pump-2", *words, "--force")
    assert "ask an operator for a new one" in failure(again)
    assert (tmp_path / "token").read_text(encoding="utf-8").strip() == token


def test_a_device_enrols_by_its_configuration_with_the_invitation_of_a_new_fleet(
    hub, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    settings = ("--n-inputs", 3, "--low=-1", "--high", 1, "--n-hidden", 4)
    made = hub.told("create", "fans", *settings, "--invite", "fan-1")
    assert made["invitation"] == "fan-1.invitation"
    assert stat.S_IMODE((tmp_path / "fan-1.invitation").stat().st_mode) == 0o600
    (tmp_path / "fan.toml").write_text(
        'device = "fan-1"\nstate = "state"\n[source]\nkind = "stdin"\n[exchange]\nkind = "http"\n'
        f'url = "{hub.url}"\nfleet = "fans"\ntoken_file = "fan.token"\n'
    )
    words = ("enrol", "--config", "fan.toml", "--invitation-file", "fan-1.invitation")
    found = call(*words, "--json")
    assert json.loads(found.stdout)["device"] == "fan-1", found.output
    assert [each["device"] for each in hub.told("devices", "fans")] == ["fan-1"]
    token = (tmp_path / "fan.token").read_text(encoding="utf-8").strip()
    HttpExchange(hub.url, "fans", token, projection=None).close()
    assert "already exists" in failure(call(*words))


def test_enrol_connects_as_the_configuration_says(tmp_path, monkeypatch):
    seen = []

    def connect(url, token, ca_file):
        seen.append((url, token, ca_file, allows_plain_http()))
        raise UnavailableError("not today")

    monkeypatch.setattr(agent, "server_connection", connect)
    (tmp_path / "invitation").write_text("x\n")
    (tmp_path / "invitation").chmod(0o600)
    (tmp_path / "ca.pem").touch()
    (tmp_path / "fan.toml").write_text(
        'device = "fan-1"\nstate = "state"\n[source]\nkind = "stdin"\n[exchange]\nkind = "http"\n'
        'url = "http://hub"\nfleet = "fans"\ntoken_file = "token"\nca_file = "ca.pem"\n'
        "insecure = true\n"
    )
    words = ("--config", tmp_path / "fan.toml", "--invitation-file", tmp_path / "invitation")
    assert "not today" in failure(call("enrol", *words))
    assert seen == [("http://hub", "x", tmp_path / "ca.pem", True)]


def test_what_enrol_lacks_is_named(tmp_path):
    (tmp_path / "invitation").write_text("x\n")
    (tmp_path / "invitation").chmod(0o600)
    (tmp_path / "fan.toml").write_text(
        'device = "fan-1"\nstate = "state"\n[source]\nkind = "stdin"\n'
        "[projection]\nn_inputs = 3\nlow = 0.0\nhigh = 1.0\n"
    )
    words = ("enrol", "--invitation-file", tmp_path / "invitation")
    configured = ("--config", tmp_path / "fan.toml")
    assert "give them, or --config" in call(*words, "https://hub").stderr
    assert "give one of them" in call(*words, *configured, "https://hub").stderr
    assert "give --token-file" in call(*words, "https://hub", "fans", "fan-1").stderr
    assert "set url and fleet in [exchange]" in failure(call(*words, *configured))


def test_contributions_are_listed_and_dropped_and_devices_revoked(hub, fleet, tmp_path):
    hub.enrolled(fleet, "pump-1", tmp_path / "token")
    token = (tmp_path / "token").read_text(encoding="utf-8").strip()
    exchange = HttpExchange(hub.url, fleet, token, projection=SHARED)
    exchange.push(Contribution("pump-1", Stats.of(SHARED, IDLE), revision=1, pattern="idle"))
    (note,) = hub.told("contributions", fleet)["contributions"]
    assert (note["device"], note["pattern"], note["samples"]) == ("pump-1", "idle", 200.0)
    (device,) = hub.told("devices", fleet)
    assert (device["contributions"], device["revoked"]) == (1, None)
    assert "idle" in hub.fleet("contributions", fleet).stdout
    exchange.push(Contribution("pump-1", Stats.of(SHARED, IDLE), revision=1, incarnation=2))
    assert hub.fleet("revoke", fleet, "pump-1").exit_code == 0
    assert hub.told("devices", fleet)[0]["revoked"].endswith("Z")
    assert "incarnation 3" in failure(
        hub.fleet("drop", fleet, "pump-1", "--incarnation", 3, "--yes")
    )
    assert hub.told("drop", fleet, "pump-1", "--incarnation", 2, "--yes")["dropped"] == 1
    (note,) = hub.told("contributions", fleet)["contributions"]
    assert note["incarnation"] == 0
    assert hub.told("drop", fleet, "pump-1", "--yes")["dropped"] == 1
    assert hub.told("contributions", fleet)["contributions"] == []
    exchange.close()


def test_the_audit_log_is_checked_and_told(hub, fleet, monkeypatch):
    monkeypatch.setattr(fleet_module, "AUDIT_PAGE_SIZE", 2)
    for _ in range(3):
        assert hub.fleet("invite", fleet).exit_code == 0
    told = hub.told("audit", "--fleet", fleet)
    assert [entry["action"] for entry in told["entries"]] == ["create", *["invite"] * 3]
    assert told["verified"] >= 4
    hub.fleet("invite", fleet)
    result = hub.fleet("audit", "--last", 1, "--expect-head", told["head"])
    assert result.exit_code == 0
    assert "invite" in result.stdout
    assert "Verified " in result.stderr
    assert "was rewritten" in failure(hub.fleet("audit", "--expect-head", "0" * 64))


def test_a_device_may_not_do_what_an_operator_may(hub, fleet, tmp_path):
    hub.enrolled(fleet, "pump-1", tmp_path / "token")
    where = ("--server", hub.url, "--token-file", tmp_path / "token")
    assert "expected that of an account" in failure(call("fleet", "devices", fleet, *where))


def test_the_doctor_finds_the_server_well(hub):
    done = program("doctor", "--server", hub.url, EDGEMERGE_TOKEN_FILE=str(hub.token))
    assert done.returncode == 0, done.stdout
    assert f"{hub.url} answers, version " in done.stdout


def test_a_port_that_is_taken_is_told_in_one_line(hub, tmp_path):
    port = hub.url.rpartition(":")[2]
    done = program("serve", "--database", tmp_path / "db.sqlite", "--port", port)
    assert done.returncode == 2
    assert "choose another with --port" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_server_whose_audit_head_cannot_be_kept_does_not_start(tmp_path):
    head = tmp_path / "nowhere" / "head"
    where = ("--database", tmp_path / "hub.sqlite", "--audit-head-file", head)
    done = program("serve", "--port", "0", *where)
    assert done.returncode == ExitCode.USAGE
    assert done.stderr.splitlines()[-1].startswith(
        f"Error: the head of the audit log cannot be kept in {head}: "
        f"the folder {head.parent} is not there; "
    )
    assert not list(tmp_path.iterdir())


def test_no_secret_is_in_the_log_of_the_server(hub):
    token = hub.token.read_text(encoding="utf-8").strip()
    log = (hub.folder / "log").read_text(encoding="utf-8")
    assert "listening" in log
    assert token not in log
    assert os.fsencode(token) not in (hub.folder / "hub.sqlite").read_bytes()


def test_an_audit_log_whose_oldest_entries_went_is_checked_from_there_on(tmp_path, monkeypatch):
    monkeypatch.setattr(fleet_module, "AUDIT_PAGE_SIZE", 10)
    with running(f"sqlite:///{tmp_path / 'fleets.db'}") as here:
        (tmp_path / "token").write_text(here.token)
        asked = ("fleet", "audit", "--server", here.url, "--token-file", tmp_path / "token")
        about = {"actor": "operator x", "action": "invite", "fleet": "pumps", "subject": "any"}
        database = here.service.database
        with database.writing() as tx:
            for at in range(39):  # the first is about the account
                audit.append(tx, at=float(at), **about)
        with database.writing() as tx:
            noted = [entry.hash for entry in audit.entries(tx, fleet=None, after=0, limit=40)]
            assert audit.delete_oldest(tx, at=99.0, keep=30) == 10
        result = call(*asked, "--last", 1)
        assert "Verified 31 entries from entry 11 on; a checkpoint seals the older" in result.stderr
        told = json.loads(call(*asked, "--json", "--last", 40).stdout)
        assert (told["first"], told["verified"], len(told["entries"])) == (11, 41, 31)
        for head in (noted[9], noted[10], noted[-1]):  # the first is that which is sealed
            assert call(*asked, "--expect-head", head).exit_code == 0
        result = call(*asked, "--expect-head", noted[8])
        assert (result.exit_code, "among the oldest" in result.stderr) == (3, True)

        ask = ServerClient.audit
        pages = iter([True])

        def shortened(client, *given, **options):
            found = ask(client, *given, **options)
            if options.get("after") and next(pages, None):  # between two pages, once
                with database.writing() as tx:
                    audit.delete_oldest(tx, at=99.0, keep=5)
            return found

        monkeypatch.setattr(ServerClient, "audit", shortened)
        assert "from entry 37 on" in call(*asked).stderr
        with database.writing() as tx:
            tx.run("delete from audit where seq = 37")
        result = call(*asked)
        assert (result.exit_code, "changed at entry 37" in result.stderr) == (3, True)
