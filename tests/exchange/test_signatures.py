"""Names bound to their first key: others' contributions under them are refused, over each way."""

import json
import shutil
from contextlib import ExitStack, closing

import pytest

from edgemerge import signatures
from edgemerge.core.errors import FormatError, RejectedError, SettingError
from edgemerge.core.ledger import Selection
from edgemerge.exchange.mqtt import MqttExchange
from edgemerge.exchange.peer import PeerExchange
from edgemerge.signatures import KnownKeys, OtherSenderError, SigningKey, verify
from tests.exchange.test_contract import note
from tests.exchange.worlds import SETTLE_S, SHARED, TOKEN

EVERYTHING = Selection()
DATA = b"sums"


def test_a_key_is_made_once_for_its_owner_only_and_signs_as_before(tmp_path):
    file = tmp_path / "state" / "device.key"
    made, again = SigningKey.own(file), SigningKey.own(file)
    assert made.public == again.public
    assert made.sign(DATA) == again.sign(DATA)
    assert file.stat().st_mode & 0o077 == 0
    assert SigningKey.own(tmp_path / "other.key").public != made.public
    file.write_text("no key\n")
    with pytest.raises(SettingError, match="remove it to have another made"):
        SigningKey.own(file)


def changed(signature, where):
    digit = "0" if signature[where] != "0" else "1"
    return signature[:where] + digit + signature[where + 1 :]


def test_a_signature_fits_its_bytes_and_its_key_alone():
    key = SigningKey(bytes(range(32)))
    signature = key.sign(DATA)
    assert verify(DATA, signature) == key.public
    wrong = [
        *("", "x", signature.upper(), signature + "0", signature.replace("ed25519", "rsa")),
        *(changed(signature, where) for where in (8, 40, 71, 73, 120, len(signature) - 1)),
        f"ed25519 {SigningKey(bytes(32)).public} {signature.split()[2]}",
    ]
    for each in wrong:
        with pytest.raises(RejectedError, match="signature"):
            verify(DATA, each)
    with pytest.raises(RejectedError, match="does not fit"):
        verify(DATA + b".", signature)
    raw = key._key.sign(DATA).hex()  # of something that was signed for another use
    with pytest.raises(RejectedError, match="does not fit"):
        verify(DATA, f"ed25519 {key.public} {raw}")


def test_the_first_key_is_remembered_and_another_needs_a_command(tmp_path):
    file, first, second = tmp_path / "known-keys.json", SigningKey(b"1" * 32), SigningKey(b"2" * 32)
    known = KnownKeys(file)
    known.check("pump-3", DATA, None)  # not signed yet, so nothing is remembered
    assert known.all() == {}
    known.check("pump-3", DATA, first.sign(DATA))
    known.check("pump-4", DATA, second.sign(DATA))
    for reader in (known, KnownKeys(file)):  # also after a restart
        reader.check("pump-3", DATA, first.sign(DATA))
        with pytest.raises(OtherSenderError) as caught:
            reader.check("pump-3", DATA, second.sign(DATA))
        assert f"edgemerge keys {tmp_path} --accept pump-3={second.public}" in str(caught.value)
        with pytest.raises(OtherSenderError, match=r"no signature.*install the extra tls"):
            reader.check("pump-3", DATA, None)
        with pytest.raises(RejectedError, match="does not fit"):
            reader.check("pump-5", DATA + b".", first.sign(DATA))
    KnownKeys(file).accept("pump-3", second.public)  # as the command does, in another program
    known.check("pump-3", DATA, second.sign(DATA))
    with pytest.raises(OtherSenderError):
        known.check("pump-3", DATA, first.sign(DATA))
    assert known.all() == {"pump-3": second.public, "pump-4": second.public}
    assert json.loads(file.read_text()) == known.all()


def test_names_that_are_remembered_are_bounded():
    known, key = KnownKeys(most=3), SigningKey(bytes(32))
    for i in range(3):
        known.check(f"d{i}", DATA, key.sign(DATA))
    with pytest.raises(RejectedError, match="3 names"):
        known.check("d3", DATA, key.sign(DATA))
    known.check("d2", DATA, key.sign(DATA))


@pytest.mark.parametrize("text", ["", "[]", '{"a": "b"}', '{"a": 1}', "{"])
def test_a_damaged_file_accepts_nobody(tmp_path, text):
    (tmp_path / "known").write_text(text)
    key = SigningKey(bytes(32))
    with pytest.raises(FormatError, match="restore it"):
        KnownKeys(tmp_path / "known").check("a", DATA, key.sign(DATA))
    assert (tmp_path / "known").read_text() == text


def test_keys_that_cannot_be_read_now_accept_nobody_and_are_not_forgotten(tmp_path):
    folder, first, second = tmp_path / "state", SigningKey(b"1" * 32), SigningKey(b"2" * 32)
    folder.mkdir()
    known = KnownKeys(folder / "known-keys.json")
    known.check("a", DATA, first.sign(DATA))
    folder.rename(tmp_path / "away")
    folder.touch()  # a file: what lies below it cannot be looked at
    for reader in (known, KnownKeys(folder / "known-keys.json")):
        with pytest.raises(FormatError, match=r"found no known keys in .*restore it"):
            reader.check("a", DATA, second.sign(DATA))
    folder.unlink()
    (tmp_path / "away").rename(folder)
    with pytest.raises(OtherSenderError):
        known.check("a", DATA, second.sign(DATA))


def test_a_disk_that_is_full_stops_nothing(tmp_path, caplog):
    known, key = KnownKeys(tmp_path / "gone" / "known"), SigningKey(bytes(32))
    known.check("a", DATA, key.sign(DATA))
    assert "was not written" in caplog.text
    with pytest.raises(OtherSenderError):
        known.check("a", DATA, SigningKey(b"1" * 32).sign(DATA))


def test_without_the_package_it_works_unsigned_and_says_so(tmp_path, monkeypatch, caplog):
    signature = SigningKey(bytes(32)).sign(DATA)
    monkeypatch.setattr(signatures, "CAN_SIGN", False)
    assert SigningKey.own(tmp_path / "key") is None
    assert "install the extra tls of edgemerge" in caplog.text
    known = KnownKeys()
    known.check("a", DATA, signature)
    known.check("a", DATA, None)
    assert known.all() == {}


def files(folder):
    return {"key_file": folder / "device.key", "known_keys_file": folder / "known-keys.json"}


class PeerFleet(ExitStack):
    """Three devices; the third one is asked, and has met the others."""

    def __init__(self, _port, folder):
        super().__init__()
        self.folder, self.met = folder, []

    def device(self, name):
        made = PeerExchange(SHARED, token=TOKEN, peers=self.met, **files(self.folder / name))
        self.met.append(made.url)
        return self.enter_context(closing(made))


class MqttFleet(ExitStack):
    """The same over a broker."""

    def __init__(self, port, folder):
        super().__init__()
        self.folder, self.port = folder, port

    def device(self, name):
        options = {"projection": SHARED, "settle_s": SETTLE_S, **files(self.folder / name)}
        return MqttExchange("127.0.0.1", self.port, fleet=self.folder.name, **options)


@pytest.fixture(params=["peer", pytest.param("mqtt", marks=pytest.mark.slow)])
def fleet(request, tmp_path):
    kinds = {"peer": lambda: (PeerFleet, 0), "mqtt": lambda: (MqttFleet, mosquitto(request))}
    kind, port = kinds[request.param]()
    with kind(port, tmp_path) as made:
        yield made


def mosquitto(request):
    return request.getfixturevalue("mosquitto")


def names(exchange):
    return {(each.device, each.revision) for each in exchange.pull(EVERYTHING).origins}


def test_a_name_that_another_takes_over_keeps_its_first_sender(fleet, tmp_path, caplog):
    a, thief = fleet.device("a"), fleet.device("thief")
    c = fleet.device("c")
    a.push(note("a", 1))
    assert names(c) == {("a", 1)}
    thief.push(note("thief", 1))
    thief.push(note("a", 9, incarnation=5))  # as a new incarnation, so that nothing is stale
    assert names(c) == {("a", 1), ("thief", 1)}
    assert "--accept a=" in " ".join(str(record.values.get("why")) for record in caplog.records)
    a.push(note("a", 2))
    assert names(c) == {("a", 2), ("thief", 1)}
    # the operator finds that it is a replaced device, and takes the key that it shows
    shown = SigningKey.own(tmp_path / "thief" / "device.key").public
    KnownKeys(tmp_path / "c" / "known-keys.json").accept("a", shown)
    assert ("a", 9) in names(c)


def test_bytes_are_those_of_before_and_whoever_cannot_sign_is_heard(fleet, monkeypatch):
    a = fleet.device("a")
    monkeypatch.setattr(signatures, "CAN_SIGN", False)
    unsigned, c = fleet.device("unsigned"), fleet.device("c")
    unsigned.push(note("unsigned", 1))
    a.push(note("a", 1))
    assert names(c) == {("a", 1), ("unsigned", 1)}
    (found,) = c.pull(Selection(devices=["a"])).parts
    assert found.stats == note("a").stats


def test_a_device_that_lost_its_state_is_refused_until_it_is_accepted(fleet, tmp_path):
    a, c = fleet.device("a"), fleet.device("c")
    if isinstance(fleet, PeerFleet):
        a.meet(c.url)
        c.meet(a.url)
    a.push(note("a", 1))
    assert names(c) == {("a", 1)}
    shutil.rmtree(tmp_path / "a")
    again = fleet.device("a")
    if isinstance(fleet, PeerFleet):
        c.meet(again.url)
    again.push(note("a", 1, incarnation=7))
    assert names(c) == {("a", 1)}
    assert [origin.incarnation for origin in c.pull(EVERYTHING).origins] == [0]
