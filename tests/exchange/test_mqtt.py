"""MQTT with a real broker: other clients, strangers, caps, passwords, TLS, no thread left."""

import shutil
import subprocess
import threading
from dataclasses import replace
from pathlib import Path
from time import monotonic

import pytest
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from edgemerge import Contribution, Projection, Stats, decode, encode
from edgemerge.core.errors import DeniedError, RejectedError, SettingError, UnavailableError
from edgemerge.core.ledger import Merged, Selection
from edgemerge.exchange import mqtt as visits
from edgemerge.exchange.mqtt import MqttExchange
from tests.exchange.test_connection import certificate  # noqa: F401 - pytest finds it here
from tests.exchange.test_contract import note
from tests.exchange.worlds import SETTLE_S, SHARED, nobody
from tests.services.missing import SERVICES, left_out
from tests.services.mosquitto import broker
from tests.waiting import DEADLINE_S

WISH = Selection(receiver="b")
OTHER = Projection(n_inputs=6, n_hidden=8, seed=8, low=-1.0, high=2.0)
UNSOUND = replace(note("a").stats, U=-note("a").stats.U)
VERSIONS = [5, 4]


def exchange(port, fleet, **options):
    settings = {"projection": SHARED, "settle_s": SETTLE_S, "timeout_s": 5.0}
    return MqttExchange("127.0.0.1", port, fleet=fleet, **settings | options)


def tool(name):
    found = shutil.which(name)
    return found or left_out(name, SERVICES)


def put(port, topic, data, folder):
    """Retain a message with a program that we did not write."""
    (folder / "message").write_bytes(data)
    what = ["-t", topic, "-f", folder / "message", "-r", "-q", "1"]
    subprocess.run([tool("mosquitto_pub"), "-p", str(port), *what], check=True, timeout=DEADLINE_S)


def test_another_client_sees_what_was_pushed(mosquitto):
    exchange(mosquitto, "Old pumps").push(note("Pump 3", 2, pattern="idle"))
    topic = f"edgemerge/%4fld%20pumps/{SHARED.fingerprint[:16]}/contribution/%50ump%203/0/idle"
    asked = [tool("mosquitto_sub"), "-p", str(mosquitto), "-t", topic, "-C", "1", "-N", "-W", "20"]
    seen = subprocess.run(asked, check=True, capture_output=True, timeout=DEADLINE_S).stdout
    assert decode(seen) == note("Pump 3", 2, pattern="idle")


def test_what_another_client_put_is_pulled(mosquitto, tmp_path):
    there = exchange(mosquitto, "foreign")
    put(mosquitto, f"{there.root}/contribution/c/0/normal", encode(note("c")), tmp_path)
    assert there.pull(WISH).total == note("c").stats


STRANGERS = {
    "text": ("a/0/normal", b"23.5"),
    "half": ("a/0/normal", encode(note("a"))[:-5]),
    "stats": ("a/0/normal", encode(note("a").stats)),
    "another's topic": ("c/0/normal", encode(note("a"))),
    "unsound": ("a/0/normal", encode(Contribution("a", UNSOUND, 1))),
    "another projection": ("a/0/normal", encode(Contribution("a", Stats.empty(OTHER), 1))),
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_what_is_no_contribution_is_left_alone_and_named_once(kind, mosquitto, tmp_path, caplog):
    there = exchange(mosquitto, f"strangers {kind}")
    there.push(note("d"))
    topic, data = STRANGERS[kind]
    put(mosquitto, f"{there.root}/contribution/{topic}", data, tmp_path)
    for _ in range(2):
        assert there.pull(WISH).total == note("d").stats
    where = f"{there.root}/contribution/{topic}"
    assert [record.values["name"] for record in caplog.records] == [where]
    assert there.push(note("a", 1)) is True  # its owner may replace it
    assert "a" in [origin.device for origin in there.pull(WISH).origins]


def test_fleets_and_projections_do_not_mix(mosquitto):
    exchange(mosquitto, "one").push(note("a"))
    assert exchange(mosquitto, "two").pull(WISH) == Merged(SHARED)
    assert exchange(mosquitto, "one", projection=OTHER).pull(WISH) == Merged(OTHER)
    assert exchange(mosquitto, "one", prefix="else/where").pull(WISH) == Merged(SHARED)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_broker_that_does_not_keep_it_is_found_out(version, tmp_path):
    capped = pytest.raises((RejectedError, UnavailableError), match=r"caps? the size of ")
    with broker(tmp_path, "message_size_limit 1000") as port, capped:
        exchange(port, "capped", version=version).push(note("a"))


def test_a_broker_that_says_how_much_it_takes_is_believed(tmp_path):
    with broker(tmp_path, "max_packet_size 1000") as port:
        with pytest.raises(RejectedError, match="packets of at most 1000: raise its limit"):
            exchange(port, "capped").push(note("a"))
        with pytest.raises((UnavailableError, RejectedError), match="caps the size"):
            exchange(port, "capped", version=4).push(note("a"))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A broker that wants a password; `reader` may only read."""
    folder = tmp_path_factory.mktemp("guarded")
    for name in ("writer", "reader"):
        made = ["-b", *([] if (folder / "users").exists() else ["-c"]), folder / "users"]
        command = [tool("mosquitto_passwd"), *made, name, f"{name}-secret"]
        subprocess.run(command, check=True, capture_output=True, timeout=DEADLINE_S)
        (folder / name).write_text(f"{name}-secret\n")
    (folder / "rights").write_text("user writer\ntopic #\nuser reader\ntopic read #\n")
    lines = ["allow_anonymous false", f"password_file {folder / 'users'}"]
    with broker(folder, *lines, f"acl_file {folder / 'rights'}") as port:
        yield port, folder


def user(folder, name, file=None):
    return {"username": name, "password_file": folder / (file or name)}


@pytest.mark.parametrize("version", VERSIONS)
def test_who_has_the_password_gets_in_and_nobody_else(version, guarded, caplog):
    port, folder = guarded
    there = exchange(port, f"guarded {version}", version=version, **user(folder, "writer"))
    assert there.push(note("a")) is True
    assert there.pull(WISH).total == note("a").stats
    for wrong in ({}, user(folder, "writer", "reader"), user(folder, "nobody", "writer")):
        outside = exchange(port, "guarded", version=version, **wrong)
        with pytest.raises(DeniedError, match=r"Not authorized|Bad user name") as caught:
            outside.pull(WISH)
        assert "-secret" not in str(caught.value) + repr(outside) + caplog.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "error", "words"),
    [
        (5, DeniedError, "Not authorized"),
        (4, UnavailableError, "may this user write and read there"),
    ],
)
def test_who_may_not_write_is_told_so(version, error, words, guarded):
    port, folder = guarded
    there = exchange(
        port, "guarded", version=version, **user(folder, "reader") | {"timeout_s": 0.5}
    )
    with pytest.raises(error, match=words):
        there.push(note("a"))


@pytest.mark.slow
def test_tls_trusts_the_given_certificate_and_no_other(certificate, tmp_path):  # noqa: F811 - fixture
    cert, key = certificate
    with broker(tmp_path, f"certfile {cert}", f"keyfile {key}") as port:
        there = exchange(port, "tls", ca_file=str(cert))
        assert there.push(note("a")) is True
        assert there.pull(WISH).total == note("a").stats
        for wrong in ({"tls": True}, {}):
            with pytest.raises(UnavailableError, match=r"certificate|hung up|no answer"):
                exchange(port, "tls", timeout_s=1.0, **wrong).pull(WISH)


@pytest.mark.slow
def test_a_broker_that_shakes_no_hands_is_away_in_time():
    start = monotonic()
    with nobody() as port, pytest.raises(UnavailableError, match="no answer in time"):
        exchange(port, "tls", timeout_s=0.3, tls=True).pull(WISH)
    assert monotonic() - start < 5.0


def test_a_broker_that_holds_too_much_is_not_swallowed(mosquitto, monkeypatch):
    there = exchange(mosquitto, "many")
    for device in "acd":
        there.push(note(device))
    monkeypatch.setattr(visits, "MAX_KEPT", 2)
    with pytest.raises(RejectedError, match="more than 2 contributions"):
        there.pull(WISH)
    monkeypatch.setattr(visits, "MAX_KEPT", 3)
    monkeypatch.setattr(visits, "MAX_TOTAL_BYTES", 3 * len(encode(note("a"))) - 1)
    with pytest.raises(RejectedError, match="bytes: remove those"):
        there.pull(WISH)


def test_a_thread_that_ends_while_it_is_waited_for_does_no_harm(mosquitto, monkeypatch):
    real = Client.loop_stop

    def ended_meanwhile(client):
        real(client)
        raise AttributeError("'NoneType' object has no attribute 'join'")

    monkeypatch.setattr(Client, "loop_stop", ended_meanwhile)
    there = exchange(mosquitto, "ending")
    there.push(note("a"))
    assert there.pull(WISH).total == note("a").stats


def test_no_thread_is_left_behind(mosquitto, tmp_path):
    before = set(threading.enumerate())
    there = exchange(mosquitto, "threads")
    there.push(note("a"))
    there.pull(WISH)
    with broker(tmp_path, "allow_anonymous false") as port, pytest.raises(DeniedError):
        exchange(port, "threads").pull(WISH)
    assert not set(threading.enumerate()) - before  # others may have ended


def test_a_large_contribution_arrives(mosquitto):
    shared = Projection(n_inputs=561, n_hidden=128)
    stats = Stats.of(shared, [[0.5] * 561] * 3)
    there = exchange(mosquitto, "large", projection=shared)
    assert there.push(Contribution("a", stats, 1)) is True
    assert there.pull(WISH).total == stats


@pytest.mark.parametrize("prefix", ["", "/a", "a/", "a//b", "a/+", "#", "$SYS", "a\nb"])
def test_a_prefix_that_is_no_topic_is_refused(prefix):
    with pytest.raises(SettingError, match="expected a topic"):
        exchange(1, "pumps", prefix=prefix)


def test_a_password_over_a_plain_connection_is_warned_of(tmp_path, caplog):
    secret = {"username": "a", "password_file": tmp_path / "missing"}
    exchange(1, "pumps", **secret)
    assert not caplog.records
    MqttExchange("broker", fleet="pumps", projection=SHARED, tls=True, **secret)
    assert not caplog.records
    MqttExchange("broker", fleet="pumps", projection=SHARED, **secret)
    assert "without TLS" in caplog.text


@pytest.mark.parametrize("data", [None, b"", b"  \n", b"two\nlines", b"\xff", b"x" * 5000])
def test_a_password_that_is_none_is_said_so_but_not_shown(data, mosquitto, tmp_path):
    file = tmp_path / "password"
    if data is not None:
        file.write_bytes(data)
    with pytest.raises(SettingError, match=f"password in {file}") as caught:
        exchange(mosquitto, "secret", username="a", password_file=file).pull(WISH)
    assert "lines" not in str(caught.value)


ACL = Path(__file__).parents[2] / "deploy" / "mosquitto.acl.example"


@pytest.fixture
def by_example(tmp_path):
    """A broker with the example of deploy/ for access; gives an exchange for a user name."""
    users = ("pump-1", "pump-2", "thief", "operator")
    for user in users:
        (tmp_path / user).write_text(f"secret of {user}\n")
    lines = [f"{user}:secret of {user}" for user in users]
    (tmp_path / "passwords").write_text("\n".join([*lines, ""]))
    subprocess.run(
        [tool("mosquitto_passwd"), "-U", tmp_path / "passwords"], check=True, timeout=DEADLINE_S
    )
    settings = ("allow_anonymous false", f"password_file {tmp_path / 'passwords'}")
    with broker(tmp_path, *settings, f"acl_file {ACL}") as port:

        def login(user, **options):
            files = {"password_file": tmp_path / user, **options}
            return exchange(port, "pumps", username=user, **files)

        yield login


@pytest.mark.slow
def test_by_the_example_for_access_a_device_writes_its_own_topics_only(by_example):
    first, second, thief = by_example("pump-1"), by_example("pump-2"), by_example("thief")
    assert first.push(note("pump-1", 1))
    assert second.push(note("pump-2", 1))
    assert first.push(replace(note("pump-1", 1, pattern="bearing"), kind="fault"))
    assert first.push(note("pump-1", 2))
    assert [each.device for each in second.pull(Selection(receiver="pump-2")).origins] == ["pump-1"]
    assert second.pull_faults(Selection(receiver="pump-2")).known
    for stolen in (note("pump-1", 3), note("pump-1", 1, incarnation=9), note("pump-3", 1)):
        with pytest.raises(DeniedError, match="refused"):
            thief.push(stolen)
    with pytest.raises(DeniedError, match="refused"):
        thief.push(replace(note("pump-1", 2, pattern="bearing"), kind="fault"))
    everything = by_example("operator").pull(Selection()).origins
    assert {(each.device, each.revision) for each in everything} == {("pump-1", 2), ("pump-2", 1)}


GARBAGE = 3000


def fill(port, messages):
    """Retain many messages at once."""
    client = Client(CallbackAPIVersion.VERSION2)
    client.connect("127.0.0.1", port)
    client.loop_start()
    sent = [client.publish(topic, data, qos=1, retain=True) for topic, data in messages]
    sent[-1].wait_for_publish(60)
    client.disconnect()
    client.loop_stop()


@pytest.mark.long
@pytest.mark.parametrize("kind", ["text", "alike"])
def test_thousands_of_garbage_topics_do_not_break_a_pull(tmp_path, caplog, kind):
    alike = bytes(8) + b"{" + bytes(200)  # only reading it shows that it is no contribution
    data = {"text": b"23.5", "alike": alike}[kind]
    with broker(tmp_path) as port:
        there = exchange(port, "pumps")
        for device in ("a", "zzz"):
            there.push(note(device))
        root = f"{there.root}/contribution"
        fill(port, [(f"{root}/garbage-{i}/0/x", data) for i in range(GARBAGE)])
        caplog.clear()
        for _ in range(2):
            merged = there.pull(Selection())
            assert [each.device for each in merged.origins] == ["a", "zzz"]
            assert there.skipped == GARBAGE
        assert there.push(note("a", 2))
        assert len(caplog.records) == visits.MAX_LOGGED + 1  # some by name, then how many
        assert f"{GARBAGE} messages" in caplog.records[-1].values["why"]


@pytest.mark.slow
def test_devices_that_are_known_are_found_where_the_broker_drops_messages(tmp_path, monkeypatch):
    monkeypatch.setattr(visits, "RECEIVE_MAXIMUM", 20)
    monkeypatch.setattr(visits, "MAX_MESSAGES", 30)
    monkeypatch.setattr(visits, "CUT_S", 0.2)
    with broker(tmp_path, "max_queued_messages 20") as port:
        there = exchange(port, "pumps")
        for device in ("a", "zzz"):
            there.push(note(device))
        assert len(there.pull(Selection()).origins) == 2
        root = f"{there.root}/contribution"
        fill(port, [(f"{root}/garbage-{i}/0/x", b"x") for i in range(500)])
        assert [each.device for each in there.pull(Selection()).origins] == ["a", "zzz"]
        assert 0 < there.skipped < 500  # the others were never sent


def test_a_broker_that_drops_what_it_should_confirm_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(visits, "CUT_S", 0.01)
    session = visits.BrokerSession(visits.Broker(), timeout_s=0.02)
    with pytest.raises(UnavailableError, match="it did not answer"):
        session._progress(lambda: False, "it did not answer")
    session._gathered.received = visits.MAX_MESSAGES + 1
    session.timeout_s = 60.0
    session._progress(lambda: False, "it did not answer")
    assert session._gathered.is_cut


def test_memory_for_messages_is_bounded_and_known_devices_come_first(mosquitto, monkeypatch):
    there = exchange(mosquitto, "bounded")
    there.push(note("zzz"))
    assert len(there.pull(Selection()).origins) == 1
    for device in ("a", "b", "c"):
        there.push(note(device))
    monkeypatch.setattr(visits, "MAX_KEPT", 2)
    assert [each.device for each in there.pull(Selection()).origins] == ["zzz"]
    assert there.skipped == 2
    with pytest.raises(RejectedError, match="more than 2 contributions"):
        exchange(mosquitto, "bounded").pull(Selection())
