"""What is built from a configuration."""

from threading import Event

import pytest

from edgemerge.agent import factory
from edgemerge.agent.sinks import RotatingFileSink
from edgemerge.agent.sources import FileSource, RateLimitedSource, TailSource
from edgemerge.core.bank import Bank
from edgemerge.core.detector import Detector
from edgemerge.core.errors import EdgemergeError, MismatchError, SettingError
from edgemerge.core.monitor import Monitor
from edgemerge.exchange.mqtt import MqttExchange
from tests.agent.configuring import SHARED


def test_sources_are_built(configured, tmp_path):
    (tmp_path / "in.csv").write_text("b,a,t\n1,2,60\n")
    text = "[projection]\nnames = ['a', 'b']\n[source]\nkind = 'csv'\npath = 'in.csv'\ntime = 't'\n"
    config = configured(text)
    source = factory.make_source(config)
    assert isinstance(source, FileSource)
    (reading,) = source.read(Event())
    assert (reading.values.tolist(), reading.at) == ([2.0, 1.0], 60.0)
    assert isinstance(factory.make_source(configured(text, "source.kind=tail")), TailSource)
    assert isinstance(factory.make_source(configured(text, "source.rate_hz=5")), RateLimitedSource)
    with pytest.raises(SettingError, match=r'source\.kind = "csv" needs source\.path'):
        factory.make_source(configured(SHARED, "source.kind=csv"))


@pytest.mark.parametrize(
    ("settings", "columns", "each"),
    [
        (["features.kind=raw"], "a,b", 1),
        (["features.kind=window", 'features.statistics=["rms"]'], "a,b", 1),
        (["features.kind=spectrum", "features.rate_hz=100", "features.bands=8"], "a,b", 8),
        (["features.kind=transitions", "features.states=3"], "a", 9),
    ],
)
def test_features_are_built_and_must_fit_the_projection(configured, settings, columns, each):
    n = each * len(columns.split(","))
    settings = [*settings, f"source.columns={columns}"]
    config = configured(f"[projection]\nn_inputs = {n}\n", *settings)
    features = factory.make_features(config)
    assert features.n_outputs(len(columns.split(","))) == n
    assert factory.input_names(config, config.projection) == features.names(columns.split(","))
    with pytest.raises(MismatchError, match=f"samples of {n} values, expected {n + 1}"):
        factory.make_features(configured(f"[projection]\nn_inputs = {n + 1}\n", *settings))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ([], ("1", "2", "3")),
        (["source.time=1"], ("1", "3", "4")),  # a bare number counts from 0
        (["source.time=-1"], ("1", "2", "3")),
        (['source.time=["1", "3"]'], ("2", "4", "5")),
        (['source.columns=["4", "2", "5"]'], ("4", "2", "5")),
        (["source.columns=[3, 1, -1]"], ("4", "2", "-1")),
    ],
)
def test_inputs_without_names_have_the_number_of_their_column_from_1(
    configured, settings, expected
):
    config = configured("[projection]\nn_inputs = 3\n", *settings)
    assert factory.input_names(config, config.projection) == expected


def test_learners_have_the_defaults_of_their_kind(configured):
    shared = configured().projection
    bank = factory.make_learner(configured(SHARED, "learner.max_patterns=3"), shared)
    assert isinstance(bank, Bank)
    assert (bank.max_patterns, bank.reject_above) == (3, Bank(shared).reject_above)
    detector = factory.make_learner(configured(SHARED, "learner.kind=detector"), shared)
    assert isinstance(detector, Detector)
    assert detector.reject_above is Detector(shared).reject_above is None
    never = factory.make_learner(configured(SHARED, "learner.reject_above=never"), shared)
    assert never.reject_above is None
    some = factory.make_learner(configured(SHARED, "learner.reject_above=5"), shared)
    assert some.reject_above == 5.0


def test_monitors_are_built(configured):
    shared = configured().projection

    def made(*settings):
        return factory.make_monitor(configured(SHARED, *settings), shared)

    assert made().options == Monitor(Detector(shared)).options
    assert (made().limit.value, made().phase) == (4.0, "commissioning")
    assert made("monitor.limit=3").limit.value == 3.0
    found = made("monitor.false_alarms=1 per week", "monitor.commissioning=2 hours")
    assert (found.limit.kind, found.commissioning) == ("provisional", "2 hours")
    assert made("monitor.false_alarms=0.001").options["false_alarms"] == 0.001
    assert made("monitor.learn=off", "monitor.votes=[1, 2]").options["votes"] == (1, 2)


def test_sinks_are_built(configured, tmp_path):
    config = configured(SHARED, "sinks.0.kind=file", "sinks.0.path=out/verdicts.jsonl")
    (sink,) = factory.make_sinks(config)
    assert isinstance(sink, RotatingFileSink)
    sink.close()
    assert (tmp_path / "out" / "verdicts.jsonl").exists()
    with pytest.raises(SettingError, match=r"needs sinks\.0\.path"):
        factory.make_sinks(configured(SHARED, "sinks.0.kind=jsonl"))


def test_exchanges_are_built_with_secrets_from_files(configured, tmp_path):
    shared = configured().projection
    assert factory.make_exchange(configured(), shared) is None
    folder = configured(SHARED, "exchange.kind=folder", "exchange.path=stick")
    assert factory.make_exchange(folder, shared).path == tmp_path / "stick"
    flags = ["exchange.kind=http", "exchange.url=http://127.0.0.1:1", "exchange.fleet=pumps"]
    with pytest.raises(SettingError, match=r"needs exchange\.token_file"):
        factory.make_exchange(configured("", *flags), None)
    flags.append("exchange.token_file=token")
    with pytest.raises(SettingError, match=r"the token in .*No such file"):
        factory.make_exchange(configured("", *flags), None)
    (tmp_path / "token").write_text("\n")
    with pytest.raises(SettingError, match="expected one"):
        factory.make_exchange(configured("", *flags), None)
    (tmp_path / "token").write_text("abc\n")
    assert factory.make_exchange(configured("", *flags), None).fleet == "pumps"


def test_exchanges_with_a_broker_and_with_peers_are_built(configured, tmp_path):
    shared = configured().projection
    (tmp_path / "token").write_text("abcdefghijklmnopqrstuvwxyz012345\n")
    flags = ["exchange.kind=peer", "exchange.token_file=token", "exchange.listen=127.0.0.1:0"]
    peer = factory.make_exchange(configured(SHARED, *flags), shared)
    assert peer.url.startswith("http://127.0.0.1:")
    peer.close()
    with pytest.raises(SettingError, match=r"needs exchange\.listen"):
        factory.make_exchange(configured(SHARED, *flags[:2]), shared)
    flags = ["exchange.kind=mqtt", "exchange.fleet=pumps", "exchange.prefix=plant"]
    assert isinstance(factory.make_exchange(configured(SHARED, *flags), shared), MqttExchange)


def test_an_address_to_listen_at_is_host_and_port(configured, tmp_path):
    (tmp_path / "token").write_text("abc\n")
    flags = ["exchange.kind=peer", "exchange.token_file=token", "exchange.listen=nowhere"]
    with pytest.raises(EdgemergeError, match='expected "host:port"'):
        factory.make_exchange(configured(SHARED, *flags), configured().projection)
