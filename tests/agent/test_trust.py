"""Trust without a server: what waits is listed, approved and dismissed by command, exactly."""

import json
from threading import Event

import pytest
from click.testing import CliRunner

from edgemerge import Bank, Contribution, Detector, Monitor, Stats
from edgemerge.agent.background import SyncSchedule, exchange_worker
from edgemerge.agent.config import SyncConfig, read_config
from edgemerge.agent.control import send_command
from edgemerge.agent.state import AgentState
from edgemerge.agent.supervisor import run
from edgemerge.agent.sync import DECISIONS_FILE, Clocks, PeerDecisions, SharingPolicy, Synchronizer
from edgemerge.cli import main
from edgemerge.core.errors import SettingError
from edgemerge.core.ledger import Merged
from edgemerge.core.trust import Trust
from edgemerge.exchange.folder import FolderExchange
from edgemerge.exchange.protocol import MemoryExchange
from edgemerge.wire.codec import encode
from tests.agent.agents import Running, configured, shared, stream, write_rows
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unchecked")]
P = shared()
FAULT = 0.7
TRY = stream(40, seed=99)


def stats(rows=200, seed=1, place=0.2):
    return Stats.of(P, stream(rows, seed, place))


class Device:
    """One device without a loop, on a folder for its decisions."""

    def __init__(self, exchange, folder, trust, kind=Detector):
        learner = kind(P)
        learner.learn(stream(200))
        if kind is Bank:
            learner.catch_up()
        self.learner = learner
        monitor = Monitor(learner, learn="always")
        memory = AgentState("pump-1", 1000, monitor, merged=encode(Merged(P)))
        self.decisions = PeerDecisions(folder, Trust.parse(trust), P, clock=lambda: 5.0)
        self.syncing = Synchronizer(
            SharingPolicy(memory, gate=2.0, max_shift=1e9),
            exchange_worker(exchange),
            SyncSchedule(60.0, 0.1, "pump-1"),
            SyncConfig(every_s=60.0),
            save=lambda done: done(""),
            clocks=Clocks(lambda: 5000.0, lambda: 0.0),
            decisions=self.decisions,
        )

    def sync(self):
        answers = []
        self.syncing.begin(answers.append)

        def tended():
            self.syncing.tend()
            return answers

        until(tended)
        return answers[0]

    def decide(self, decision, device, **more):
        about = {"decision": decision, "device": device, "incarnation": 0, "pattern": "normal"}
        return self.syncing.decide(about | more)

    @property
    def adopted(self):
        return sum(each.others.count for each in self.learner.detectors.values())


@pytest.fixture
def exchange():
    found = MemoryExchange(P)
    found.push(Contribution("pump-2", stats(), 1))
    found.push(Contribution("pump-9", stats(150, 3, FAULT), 1))
    return found


@pytest.fixture
def make(exchange, tmp_path):
    made = []

    def device(trust, kind=Detector, folder=tmp_path):
        made.append(Device(exchange, folder, trust, kind))
        return made[-1]

    yield device
    for each in made:
        each.syncing.close(5.0)


def test_a_decision_that_cannot_be_saved_is_refused_and_detection_goes_on(make, tmp_path):
    device = make("person")
    device.sync()
    (tmp_path / DECISIONS_FILE).mkdir()  # as on a full disk, it cannot be written
    with pytest.raises(SettingError, match=r"cannot be saved .*: nothing has changed"):
        device.decide("approve", "pump-2")
    (tmp_path / DECISIONS_FILE).rmdir()
    device.sync()
    assert device.adopted == 0
    device.decide("approve", "pump-2")
    device.sync()
    assert device.adopted == 200


@pytest.mark.parametrize("kind", [Detector, Bank])
@pytest.mark.parametrize(
    ("trust", "adopted", "waits"),
    [
        ("members", 350, []),
        ("quorum:2", 200, ["pump-9"]),  # pump-2 is like this device itself
        ("quorum:3", 0, ["pump-2", "pump-9"]),
        ("person", 0, ["pump-2", "pump-9"]),
    ],
)
def test_what_is_not_trusted_is_listed_and_not_adopted(make, kind, trust, adopted, waits):
    device = make(trust, kind)
    found = device.sync()
    assert (found["trust"], device.adopted) == (trust, adopted)
    assert [each["device"] for each in found["untrusted"]] == waits
    assert found["left_out"] == []
    for each in found["untrusted"]:
        assert each["why"]
        assert each["nearest"].startswith("pump-1/1000/normal") or adopted  # its own pattern
        assert each["like_none"] == (each["device"] == "pump-9")


@pytest.mark.parametrize("kind", [Detector, Bank])
def test_an_approval_that_is_undone_leaves_the_learner_as_if_it_had_never_been(make, kind):
    one, other = make("person", kind), make("person", kind)
    for device in (one, other):
        device.sync()
    before = [one.learner.score(x) for x in TRY]
    assert (
        one.decide("approve", "pump-2") == "pump-2/0/normal is approved, from the next exchange on"
    )
    assert one.sync()["untrusted"][0]["device"] == "pump-9"
    assert one.adopted == 200
    one.decide("undo", "pump-2")
    one.sync()
    assert one.adopted == 0
    assert [one.learner.score(x) for x in TRY] == before
    for mine, theirs in zip(
        one.learner.detectors.values(), other.learner.detectors.values(), strict=True
    ):
        assert (mine.own, mine.others) == (theirs.own, theirs.others)


def test_an_approval_covers_what_stays_like_it(make, exchange):
    device = make("person")
    device.sync()
    device.decide("approve", "pump-2")
    exchange.push(Contribution("pump-2", stats(300, 5), 2))
    device.sync()
    assert device.adopted == 300
    exchange.push(Contribution("pump-2", stats(300, 5, FAULT), 3))
    (switched, _) = device.sync()["untrusted"]
    assert switched["why"].startswith("it is no longer like what was approved")
    assert device.adopted == 0


def test_what_was_seen_is_approved_not_what_came_since(make, exchange):
    device = make("person")
    device.sync()
    exchange.push(Contribution("pump-2", stats(300, 5, FAULT), 2))
    device.decide("approve", "pump-2")
    device.sync()
    assert device.adopted == 0


def test_a_dismissed_one_is_not_listed_until_that_is_undone(make):
    device = make("person")
    device.sync()
    device.decide("dismiss", "pump-9", comment="a fault")
    assert [each["device"] for each in device.sync()["untrusted"]] == ["pump-2"]
    device.decide("undo", "pump-9")
    assert len(device.sync()["untrusted"]) == 2


def test_decisions_are_known_after_a_restart_and_a_broken_file_approves_nothing(
    make, tmp_path, caplog
):
    device = make("person")
    device.sync()
    device.decide("approve", "pump-2")
    device.decide("dismiss", "pump-9")
    again = make("person")
    assert (again.sync()["untrusted"], again.adopted) == ([], 200)
    (tmp_path / DECISIONS_FILE).write_bytes(b"broken")
    broken = make("person")
    assert (len(broken.sync()["untrusted"]), broken.adopted) == (2, 0)
    assert "decisions about peers cannot be read" in caplog.text


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ({"decision": "approve", "device": "pump-7"}, "pump-7/0/normal does not wait; .*pump-2/0"),
        ({"decision": "undo", "device": "pump-7"}, "no decision about pump-7/0/normal"),
        ({"decision": "maybe", "device": "pump-2"}, "expected .approve., .dismiss. or .undo."),
        ({"decision": "approve", "device": "pump-2", "incarnation": "0"}, "a number"),
        ({"decision": "approve", "device": "pump-2", "comment": "a\nb"}, "one printable line"),
    ],
)
def test_what_cannot_be_decided_says_why(make, command, words):
    device = make("person")
    device.sync()
    with pytest.raises(SettingError, match=words):
        device.decide(**{"incarnation": 0, **command})
    assert len(device.sync()["untrusted"]) == 2


def test_decisions_have_a_limit(make, monkeypatch):
    monkeypatch.setattr("edgemerge.agent.sync.MAX_DECISIONS", 1)
    device = make("person")
    device.sync()
    device.decide("approve", "pump-2")
    with pytest.raises(SettingError, match="found 1 decisions, expected fewer"):
        device.decide("approve", "pump-9")


def test_a_server_decides_where_there_is_one(tmp_path):
    path = configured(tmp_path).state.parent / "pump-1.toml"
    with pytest.raises(SettingError, match="edgemerge fleet trust"):
        read_config(
            path,
            environment={},
            overrides=["exchange.kind=http", "exchange.url=http://x", "sync.trust=person"],
        )
    with pytest.raises(SettingError, match="quorum:K with K from 2"):
        read_config(path, environment={}, overrides=["sync.trust=quorum:1"])


def test_a_running_agent_lists_and_takes_decisions_by_command(tmp_path):
    config = configured(tmp_path, "sync.trust=person", "sync.every_s=0", "source.kind=tail")
    write_rows(tmp_path / "pump-1.csv", stream(200))
    FolderExchange(config.exchange.path, P).push(Contribution("pump-2", stats(), 1))

    def sync(*words):
        found = CliRunner().invoke(main, ["sync", str(config.state), "--json", *words])
        assert found.exit_code == 0, found.output
        return json.loads(found.stdout)

    with Running(config) as agent:
        until(lambda: len(agent.listener.verdicts) == 200)
        (waits,) = sync()["untrusted"]
        assert (waits["device"], waits["samples"]) == ("pump-2", 200.0)
        status = send_command(config.state, "status", 30.0)
        assert [each["device"] for each in status["untrusted"]] == ["pump-2"]
        found = sync("--approve", "pump-2/0/normal", "--comment", "the same pump")
        assert found["untrusted"] == []
        assert "adopted 200 samples" in found["told"]
        assert sync("--undo-decision", "pump-2/0/normal")["untrusted"]
        wrong = CliRunner().invoke(main, ["sync", str(config.state), "--approve", "pump-2"])
        assert "expected DEVICE/INCARNATION/PATTERN" in wrong.output


@pytest.mark.parametrize("kind", ["detector", "bank"])
def test_an_agent_adopts_nothing_of_a_folder_that_no_quorum_supports(tmp_path, kind):
    config = configured(tmp_path, "sync.gate=0", "sync.trust=quorum:2", kind=kind)
    write_rows(tmp_path / "pump-1.csv", stream(200))
    folder = FolderExchange(config.exchange.path, P)
    folder.push(Contribution("peer", stats(400, 5), 1))
    folder.push(Contribution("pump-9", stats(400, 3, FAULT), 1))
    assert run(config, stop=Event(), sinks=[]) == 0
    shown = CliRunner().invoke(main, ["show", str(config.state), "--json"]).stdout
    assert json.loads(shown)["told_by"] == ["peer"]
