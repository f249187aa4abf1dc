"""Puts an agent together from its configuration; what needs an extra is imported when asked for."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from edgemerge.agent.config import Config, FeaturesConfig, SinkConfig, SourceConfig
from edgemerge.agent.features.raw import Raw
from edgemerge.agent.features.sliding import Sliding
from edgemerge.agent.features.spectrum import Spectrum
from edgemerge.agent.features.statistics import Statistics
from edgemerge.agent.features.transitions import Transitions
from edgemerge.agent.parts import Features, Sink, Source
from edgemerge.agent.sinks.jsonl import JsonLines
from edgemerge.agent.sinks.rotating import Rotating
from edgemerge.agent.sources.files import File, Tail
from edgemerge.agent.sources.pace import Paced
from edgemerge.agent.sources.rows import Column, CsvRows, Form, JsonRows, Payloads
from edgemerge.agent.sources.stdin import Stdin
from edgemerge.core.bank import Bank
from edgemerge.core.detector import Detector
from edgemerge.core.errors import MismatchError, SettingError
from edgemerge.core.projection import Projection
from edgemerge.core.threshold import Threshold
from edgemerge.exchange.protocol import Exchange
from edgemerge.exchange.reports import Reports


class NamedFeatures(Features, Protocol):
    """Features that also say what their samples look like."""

    def n_outputs(self, n_readings: int) -> int:
        """Give the length of a sample from readings of that length."""
        ...

    def names(self, readings: Sequence[str]) -> tuple[str, ...]:
        """Name the inputs of a sample."""
        ...


def make_source(config: Config, projection: Projection | None = None) -> Source:
    """Make the source; raw readings without `columns` are found by the projection's names."""
    said, columns, width = config.source, config.source.columns, None
    shared = projection or config.projection
    if shared is not None:
        width = shared.n_inputs // _features(config.features).n_outputs(1)
        if config.features.kind == "raw":
            columns = columns or tuple(shared.names or ())
    source = _source(said, _form(said, columns, width))
    return source if said.rate_hz is None else Paced(source, said.rate_hz)


def _form(said: SourceConfig, columns: Sequence[Column], width: int | None) -> Form:
    if said.kind == "mqtt":
        return Payloads(columns, time=said.time, width=width)
    if said.kind == "jsonl" or (said.kind != "csv" and said.format == "jsonl"):
        return JsonRows(columns, time=said.time, width=width)
    header = True if said.header is None and _are_names(said, columns) else said.header
    return CsvRows(columns, time=said.time, header=header, delimiter=said.delimiter, width=width)


def _are_names(said: SourceConfig, columns: Sequence[Column]) -> bool:
    """Say whether columns are named in a file of which the first line must then be a header."""
    return said.kind == "csv" and any(isinstance(each, str) for each in (*columns, said.time))


def _source(said: SourceConfig, form: Form) -> Source:
    if said.kind == "stdin":
        return Stdin(form, longest=said.longest_line)
    if said.kind == "mqtt":
        mqtt = import_module("edgemerge.agent.sources.mqtt")
        topic = _said("source", said, "topic")
        options = {"qos": said.qos, "room": said.queue, "longest": said.longest_line}
        return cast("Source", mqtt.Mqtt(_broker(said), topic, form, **options))
    path = _said("source", said, "path")
    if said.kind == "tail":
        return Tail(path, form, longest=said.longest_line, at_end=said.start == "end")
    return File(path, form, longest=said.longest_line)


def make_features(config: Config, projection: Projection | None = None) -> NamedFeatures:
    """Make the features; refuse those whose samples do not fit the projection."""
    features = _features(config.features)
    shared = projection or config.projection
    if shared is not None:
        each = features.n_outputs(1)
        k = len(config.source.columns) or max(1, shared.n_inputs // each)
        if k * each != shared.n_inputs:
            raise MismatchError(
                f"{k} columns and {config.features.kind} features give samples of {k * each} "
                f"values, expected {shared.n_inputs} for {shared}: "
                "change [source] columns, [features] or [projection]"
            )
    return features


def _features(said: FeaturesConfig) -> NamedFeatures:
    if said.kind == "raw":
        return Raw()
    if said.kind == "window":
        return Sliding(Statistics(said.statistics), said.length, said.step)
    if said.kind == "transitions":
        table = Transitions(states=said.states, low=said.low, high=said.high)
        return Sliding(table, said.length, said.step)
    spectrum = Spectrum(
        length=said.length,
        rate_hz=_said("features", said, "rate_hz"),
        bands=said.bands,
        low_hz=said.low_hz,
        high_hz=said.high_hz,
    )
    return Sliding(spectrum, said.length, said.step)


def input_names(
    config: Config, projection: Projection, read: Sequence[str] | None = None
) -> tuple[str, ...]:
    """Name each input of a sample: as the projection does, or after the columns, or by number.

    `read` are the names that the source has read, such as those in the first line of a CSV file.
    """
    if projection.names:
        return tuple(projection.names)
    features = _features(config.features)
    columns = list(read or map(str, config.source.columns))
    k = len(columns) or projection.n_inputs // features.n_outputs(1)
    names = features.names(columns or [str(i) for i in range(k)])
    whole = len(names) == projection.n_inputs
    return names if whole else tuple(str(i) for i in range(projection.n_inputs))


def make_learner(config: Config, projection: Projection) -> Detector | Bank:
    """Make the detector or bank, which has learnt nothing yet."""
    said = config.learner
    options: dict[str, Any] = {"ridge": said.ridge, "forgetting": said.forgetting}
    if said.reject_above is not None:
        options["reject_above"] = None if said.reject_above == "never" else said.reject_above
    if said.kind == "detector":
        return Detector(projection, **options)
    return Bank(projection, max_patterns=said.max_patterns, **options)


def make_threshold(config: Config) -> Threshold:
    """Make the threshold."""
    said = config.threshold
    return Threshold(
        limit=said.limit,
        quantile=said.quantile,
        sigmas=said.sigmas,
        window=said.window,
        votes=(said.votes[0], said.votes[1]),
    )


def make_sinks(config: Config) -> list[Sink]:
    """Make the sinks; should one fail, those made before it are closed again."""
    sinks: list[Sink] = []
    try:
        for number, said in enumerate(config.sinks):
            sinks.append(_sink(config, said, number))
    except Exception:
        for sink in sinks:
            sink.close()
        raise
    return sinks


def _sink(config: Config, said: SinkConfig, number: int) -> Sink:
    if said.kind == "mqtt":
        mqtt = import_module("edgemerge.agent.sinks.mqtt")
        topics = mqtt.Topics(said.prefix, said.site, config.device)
        spool = config.state / f"alarms-{number}.jsonl"
        options = {"scores_per_s": said.scores_per_s, "discovered": said.discovery}
        return cast("Sink", mqtt.MqttSink(_broker(said), topics, spool, **options))
    name = f"sinks.{number}"
    path = _said(name, said, "path")
    try:
        if said.kind == "file":
            return Rotating(path, largest=said.largest, keep=said.keep)
        return JsonLines(path)
    except OSError as error:
        raise SettingError(f"{name}.path {path}: {error.strerror}") from error


def make_exchange(config: Config, projection: Projection | None) -> Exchange | None:
    """Make the exchange, or None; without a projection, that of HTTP asks the fleet for it."""
    said, options = config.exchange, dict[str, Any]()
    if said.kind == "none":
        return None
    if said.kind == "http":
        must = [_said("exchange", said, name) for name in ("url", "fleet")]
        token = secret(_said("exchange", said, "token_file"))
        options = {"projection": projection, "ca_file": _text(said.ca_file)}
        return _exchange("http", "HttpExchange", *must, token, **options)
    if projection is None:
        raise SettingError(f'exchange.kind = "{said.kind}" needs [projection]: say it there')
    if said.kind == "folder":
        return _exchange("folder", "FolderExchange", _said("exchange", said, "path"), projection)
    if said.kind == "mqtt":
        options = {name: getattr(said, name) for name in ("prefix", "username")}
        files = {name: getattr(said, name) for name in ("password_file", "ca_file")}
        options |= {"fleet": _said("exchange", said, "fleet"), "projection": projection}
        return _exchange("mqtt", "MqttExchange", said.host, said.port, **options, **files)
    listen = _address(_said("exchange", said, "listen"))
    token = secret(_said("exchange", said, "token_file"))
    options = {"listen": listen, "peers": list(said.peers), "token": token}
    return _exchange("peer", "PeerExchange", projection, **options)


def make_reports(config: Config) -> Reports | None:
    """Make what reports go through, or None: they go to a server, and may be turned off."""
    said = config.exchange
    if said.kind != "http" or not config.report.every_s:
        return None
    url, fleet = (_said("exchange", said, name) for name in ("url", "fleet"))
    token = secret(_said("exchange", said, "token_file"))
    return Reports(url, fleet, config.device, token, ca_file=_text(said.ca_file))


def _exchange(module: str, name: str, *values: Any, **options: Any) -> Exchange:
    make = getattr(import_module(f"edgemerge.exchange.{module}"), name)
    return cast("Exchange", make(*values, **options))


def _address(text: str) -> tuple[str, int]:
    """Take "host:port" apart.

    >>> _address("[::1]:8471")
    ('::1', 8471)
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise SettingError(f'found exchange.listen = "{text}", expected "host:port"')
    return host.strip("[]"), int(port)


def secret(path: Path) -> str:
    """Read a token from its file."""
    try:
        found = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise SettingError(f"token_file {path}: {error.strerror}") from error
    if not found or len(found.split()) != 1:
        raise SettingError(f"{path} does not hold one token and nothing else")
    return found


def _broker(said: SourceConfig | SinkConfig) -> Any:
    broker = import_module("edgemerge.agent.broker")
    return broker.Broker(said.host, said.port, said.username, said.password_file, said.ca_file)


def _said(table: str, said: Any, name: str) -> Any:
    """Give a setting that this kind cannot do without."""
    found = getattr(said, name)
    if found is None:
        raise SettingError(f'{table}.kind = "{said.kind}" needs {table}.{name}: say it')
    return found


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
