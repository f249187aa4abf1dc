"""`edgemerge keys`: the key of a device, those that it knows, and a replaced one."""

import json

from edgemerge.signatures import KEY_FILE, KNOWN_KEYS_FILE, KnownKeys, SigningKey
from tests.cli.calls import call, failure


def test_keys_are_shown_and_that_of_a_replaced_device_is_accepted(tmp_path):
    assert "made at the first exchange" in call("keys", tmp_path).stdout
    own = SigningKey.own(tmp_path / KEY_FILE)
    old, new = SigningKey(b"1" * 32), SigningKey(b"2" * 32)
    KnownKeys(tmp_path / KNOWN_KEYS_FILE).check("pump-3", b"x", old.sign(b"x"))
    told = json.loads(call("keys", tmp_path, "--json").stdout)
    assert told == {"own": own.public, "known": {"pump-3": old.public}}
    result = call("keys", tmp_path, "--accept", f"pump-3={new.public}")
    assert new.public in result.stdout
    assert own.public in result.stdout
    KnownKeys(tmp_path / KNOWN_KEYS_FILE).check("pump-3", b"x", new.sign(b"x"))


def test_what_is_no_key_changes_nothing(tmp_path):
    for text, words in (("pump-3", "DEVICE=KEY"), ("pump-3=xyz", "64 hexadecimal digits")):
        assert words in failure(call("keys", tmp_path, "--accept", text))
    assert "run the agent first" in failure(call("keys", tmp_path, "--device", "y"))
    assert not (tmp_path / KNOWN_KEYS_FILE).exists()
