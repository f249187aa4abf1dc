"""Commands that speak to a server or an agent, where there is none; and what they refuse before."""

import json
import sys
from pathlib import Path

import pytest

from edgemerge.core.errors import RejectedError
from edgemerge.server.audit import FIRST_HASH, HASHED_FIELDS, entry_hash, verify_chain
from tests.cli.calls import call, failure
from tests.services.ports import free_port

CONFIG = """
device = "pump-1"
state = "state"
[projection]
n_inputs = 2
n_hidden = 8
[source]
kind = "csv"
path = "samples.csv"
[exchange]
kind = "http"
url = "https://hub:8470"
fleet = "pumps"
token_file = "secret"
"""


@pytest.fixture
def nowhere() -> str:
    return f"http://127.0.0.1:{free_port()}"


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.touch(mode=0o600)
    path.write_text("abc\n", encoding="utf-8")
    return path


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "agent.toml").write_text(CONFIG, encoding="utf-8")
    (tmp_path / "secret").write_text("do-not-tell", encoding="utf-8")
    return tmp_path / "agent.toml"


# fleet and enrol


def test_a_server_that_is_away_is_told_in_one_line(nowhere, token):
    where = ("--server", nowhere, "--token-file", token)
    assert f"{nowhere} cannot be reached" in failure(call("fleet", "list", *where))


def test_an_address_that_ends_before_the_port_is_told(token):
    words = failure(call("fleet", "list", "--server", "http://127.0.0.1:", "--token-file", token))
    assert "expected one with a port: start the server, wait until it logs `listening`" in words


def test_server_and_token_can_come_from_the_environment(nowhere, token):
    result = call("fleet", "list", EDGEMERGE_SERVER=nowhere, EDGEMERGE_TOKEN_FILE=str(token))
    assert nowhere in failure(result)


@pytest.mark.parametrize("missing", ["--server", "--token-file"])
def test_without_server_or_token_it_says_which_option_is_missing(nowhere, token, missing):
    options = {"--server": nowhere, "--token-file": token}
    del options[missing]
    result = call("fleet", "list", *(word for option in options.items() for word in option))
    assert result.exit_code == 2
    assert f"Missing option '{missing}'" in result.stderr


def test_a_token_file_for_others_to_read_is_remarked_upon(nowhere, token):
    token.chmod(0o644)
    result = call("fleet", "list", "--server", nowhere, "--token-file", token)
    assert result.stderr.startswith(
        f"Warning: {token} can be read by other users: chmod 600 {token}\n"
    )


def test_an_empty_token_file_is_refused(nowhere, token):
    token.write_text("\n", encoding="utf-8")
    where = ("--server", nowhere, "--token-file", token)
    assert failure(call("fleet", "list", *where)) == (
        f"found no token in {token}, expected one line of text"
    )


@pytest.mark.parametrize("words", [("delete", "pumps"), ("drop", "pumps", "pump-1")])
def test_what_cannot_be_undone_must_be_meant(nowhere, token, words):
    where = ("--server", nowhere, "--token-file", token)
    assert failure(call("fleet", *words, *where)).endswith("add --yes")


def test_a_token_is_not_overwritten(nowhere, token):
    words = ("enrol", nowhere, "pumps", "pump-1", "--invitation-file", "-", "--token-file", token)
    assert failure(call(*words, given="inv")) == f"{token} already exists: --force overwrites it"
    assert "cannot be reached" in failure(call(*words, "--force", given="inv"))
    assert token.read_text(encoding="utf-8") == "abc\n"


def test_an_invitation_is_not_used_up_when_the_token_could_not_be_kept(nowhere, tmp_path):
    words = ("enrol", nowhere, "pumps", "pump-1", "--invitation-file", "-", "--token-file")
    assert "make it first" in failure(call(*words, tmp_path / "no" / "token", given="inv"))
    assert "prints one" in failure(call(*words, tmp_path / "token", given=" "))


def test_a_fleet_needs_a_projection_before_anybody_is_asked(nowhere, token):
    where = ("--server", nowhere, "--token-file", token)
    assert "found no projection" in failure(call("fleet", "create", "pumps", *where))


# the chain of the audit log


def entries(count: int) -> list[dict[str, object]]:
    found, previous = [], FIRST_HASH
    for seq in range(1, count + 1):
        entry = dict.fromkeys(HASHED_FIELDS, "x") | {"seq": seq, "at": 0.5, "previous": previous}
        entry["hash"] = previous = entry_hash(entry)
        found.append(entry)
    return found


def test_a_chain_as_it_was_written_holds():
    assert list(verify_chain(entries(5))) == entries(5)


@pytest.mark.parametrize("word", [*HASHED_FIELDS, "previous", "hash"])
def test_a_change_of_any_word_is_found(word):
    found = entries(3)
    found[1] = found[1] | {word: "y"}
    with pytest.raises(RejectedError, match="the audit log was changed at entry 2"):
        list(verify_chain(found))


def test_a_missing_or_exchanged_entry_is_found():
    one, two, three = entries(3)
    for wrong in ([one, three], [two, three], [one, three, two]):
        with pytest.raises(RejectedError, match="the audit log was changed at entry"):
            list(verify_chain(wrong))


def test_numbers_that_were_left_out_are_found_though_all_is_sealed():
    (one,) = entries(1)
    third = one | {"seq": 3, "previous": one["hash"]}
    third["hash"] = entry_hash(third)
    with pytest.raises(RejectedError, match="changed at entry 2: the next one is 3"):
        list(verify_chain([one, third]))


def test_an_entry_that_was_changed_and_sealed_again_is_found():
    one, two, three = entries(3)
    two |= {"actor": "somebody else"}
    two["hash"] = entry_hash(two)
    with pytest.raises(RejectedError, match="entry 3: it does not follow"):
        list(verify_chain([one, two, three]))


# serve


def test_a_certificate_without_its_key_is_refused(tmp_path):
    (tmp_path / "c").touch()
    assert "expected both or none" in failure(call("serve", "--tls-cert", tmp_path / "c"))


def test_a_certificate_that_is_not_there_is_named_before_anything_is_made(tmp_path):
    result = call("serve", "--tls-cert", tmp_path / "c", "--tls-key", tmp_path / "k")
    assert result.exit_code == 2
    assert "does not exist" in result.stderr
    assert list(tmp_path.iterdir()) == []


# agent and sync


def test_the_configuration_is_told_without_running_anything(config, tmp_path):
    before = sorted(tmp_path.iterdir())
    result = call("agent", config, "--check")
    said = dict(line.split(maxsplit=1) for line in result.stdout.splitlines())
    assert (result.exit_code, said["device"]) == (0, "pump-1")
    assert said["source"] == f"csv, path {tmp_path / 'samples.csv'}"
    assert said["exchange"].startswith("http, url https://hub:8470, fleet pumps")
    assert said["learner"] == "bank"
    assert said["projection"].startswith("Projection(2 inputs, 8 hidden")
    assert "do-not-tell" not in result.output
    assert sorted(tmp_path.iterdir()) == before


def test_the_configuration_for_machines_is_json_with_what_was_set_over_it(config):
    words = ("--set", "sync.every_s=7", "--set", "monitor.votes=[2, 3]")
    told = json.loads(call("agent", config, "--check", "--json", *words).stdout)
    assert told["sync"]["every_s"] == 7.0
    assert told["monitor"]["votes"] == [2, 3]
    assert told["projection"]["hidden"] == 8
    environment = {"EDGEMERGE_SYNC__EVERY_S": "9"}
    told = json.loads(call("agent", config, "--check", "--json", **environment).stdout)
    assert told["sync"]["every_s"] == 9.0


def test_a_setting_that_does_not_exist_is_told_in_one_line(config):
    assert "sync.evry_s" in failure(call("agent", config, "--set", "sync.evry_s=7"))


def test_an_agent_that_speaks_mqtt_names_the_extra(config, monkeypatch):
    monkeypatch.setitem(sys.modules, "paho.mqtt.client", None)
    words = ("--set", "source.kind=mqtt", "--set", "source.topic=pumps/1")
    assert failure(call("agent", config, *words)) == (
        "paho is not installed: pip install '.[mqtt]' in a checkout of edgemerge"
    )


@pytest.mark.parametrize("by", ["state folder", "configuration"])
def test_without_an_agent_sync_says_how_to_start_one(config, tmp_path, by):
    (tmp_path / "state").mkdir()
    place = config if by == "configuration" else tmp_path / "state"
    state = tmp_path / "state"
    words = (
        f"no agent runs on {state}: `edgemerge agent CONFIG.toml` starts one; it ends with a file "
        f"that does not grow, and `edgemerge show {state}` shows what it kept"
    )
    assert failure(call("sync", place)) == words


def test_a_folder_that_no_agent_keeps_is_not_shown(tmp_path):
    words = f"{tmp_path}: found no agent.state in it, expected the state folder of an agent"
    assert failure(call("show", tmp_path)) == words
    (tmp_path / "agent.state").write_bytes(b"junk")
    assert failure(call("show", tmp_path)).startswith(f"{tmp_path / 'agent.state'}: found 4 bytes")
