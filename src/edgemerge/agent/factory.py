"""Make the parts of an agent from its configuration: source, features, learner, sinks, exchange.

Parts that need an extra are imported only when the configuration asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any, cast

from edgemerge.agent.config import (
    MQTT_PORT,
    Config,
    ExchangeConfig,
    FeaturesConfig,
    QualityConfig,
    SinkConfig,
    SourceConfig,
)
from edgemerge.agent.features import (
    NamedFeatures,
    Raw,
    SlidingWindow,
    Spectrum,
    Statistics,
    Transitions,
    WindowTransform,
)
from edgemerge.agent.industrial import (
    MODBUS_PORT,
    Link,
    ModbusLink,
    NodeValues,
    OpcUaAccess,
    OpcUaLink,
    PolledSource,
    Register,
)
from edgemerge.agent.quality import DataQuality
from edgemerge.agent.rows import (
    Column,
    CsvRows,
    DeviceRows,
    JsonRows,
    PayloadRows,
    RowFormat,
    TimeFormat,
    column_number,
    time_columns,
    time_zone,
)
from edgemerge.agent.sinks import DeliverySink, JsonLinesSink, RotatingFileSink, Sink
from edgemerge.agent.sources import FileSource, RateLimitedSource, Source, StdinSource, TailSource
from edgemerge.agent.sync import Clocks
from edgemerge.core.bank import Bank
from edgemerge.core.detector import Detector
from edgemerge.core.errors import MismatchError, SettingError
from edgemerge.core.monitor import Monitor
from edgemerge.core.projection import Projection
from edgemerge.delivery import (
    Channel,
    EmailChannel,
    ExecChannel,
    SyslogChannel,
    WebhookChannel,
)
from edgemerge.exchange.client import ReportClient
from edgemerge.exchange.folder import FolderExchange
from edgemerge.exchange.http import HttpExchange
from edgemerge.exchange.peer import PeerExchange
from edgemerge.exchange.protocol import Exchange
from edgemerge.files import read_secret, read_token
from edgemerge.signatures import KEY_FILE, KNOWN_KEYS_FILE

PINS_FILE = "server.pins"  # in the state folder
SPOOL, LAST_TOLD = "messages-{}.jsonl", "messages-{}.last"  # there, too, by the number of a sink
ALARM_SPOOL = "alarms-{}.jsonl"


def make_source(config: Config, projection: Projection | None = None) -> Source:
    """Make the source; raw readings without `columns` are found by the projection's names."""
    settings, columns, width = config.source, config.source.columns, None
    shared = projection or config.projection
    if shared is not None:
        width = shared.n_inputs // _features(config.features).n_outputs(1)
        if config.features.kind == "raw":
            columns = columns or tuple(shared.names or ())
    if settings.kind in ("opcua", "modbus"):
        return _polled_source(settings)
    form = _row_format(settings, columns, width)
    if settings.device_column is not None:
        if not columns:
            raise SettingError(
                "source.device_column needs source.columns: name the columns with numbers"
            )
        device = settings.device_value or config.device
        form = DeviceRows(form, settings.device_column, device, delimiter=settings.delimiter)
    source = _source(settings, form)
    return source if settings.rate_hz is None else RateLimitedSource(source, settings.rate_hz)


def make_file_source(config: Config) -> Source:
    """Make a source that reads the file once, as fast as possible, also one that grows."""
    settings = config.source
    kind = settings.format if settings.kind == "tail" else settings.kind
    return make_source(replace(config, source=replace(settings, kind=kind, rate_hz=None)))


def _row_format(settings: SourceConfig, columns: Sequence[Column], width: int | None) -> RowFormat:
    kind = settings.kind
    if settings.time_zone is not None:
        time_zone(settings.time_zone)  # or it is unknown, which is refused before anything is read
    times = TimeFormat(settings.time_format, settings.time_zone)
    options: dict[str, Any] = {"time": settings.time, "time_format": times, "width": width}
    if kind == "mqtt":
        return PayloadRows(columns, **options)
    if kind == "jsonl" or (kind != "csv" and settings.format == "jsonl"):
        return JsonRows(columns, **options)
    header = settings.header
    if header is None and kind == "csv":  # columns with names need a header
        chosen = (*columns, *time_columns(settings.time))
        named = [c for c in chosen if isinstance(c, str) and not c.isdecimal()]
        header = True if named else None
    names = ("delimiter", "decimal", "skip_lines")
    options |= {name: getattr(settings, name) for name in names}
    return CsvRows(columns, header=header, **options)


def _polled_source(settings: SourceConfig) -> Source:
    """Make a source that asks a server for its values."""
    link: Link
    if settings.kind == "opcua":
        names = ("username", "password_file", "security_policy", "certificate_file", "key_file")
        options = {name: getattr(settings, name) for name in (*names, "server_certificate_file")}
        place = _required("source", settings, "endpoint")
        nodes = [NodeValues.parse(each) for each in settings.nodes]
        link = OpcUaLink(OpcUaAccess(place, **options), nodes, settings.timeout_s)
    else:
        address = settings.host, settings.port or MODBUS_PORT
        place = f"{address[0]}:{address[1]}"
        link = ModbusLink(
            address,
            [Register.parse(each) for each in settings.registers],
            unit_id=settings.unit_id,
            word_order=settings.word_order,
            timeout_s=settings.timeout_s,
        )
    return PolledSource(
        link,
        place,
        tuple(map(str, settings.columns)),
        interval_s=settings.interval_s,
        timeout_s=settings.timeout_s,
    )


def _source(settings: SourceConfig, form: RowFormat) -> Source:
    longest = settings.max_line_bytes
    about: dict[str, Any] = {"longest": longest, "encoding": settings.encoding}
    if settings.kind == "stdin":
        return StdinSource(form, **about)
    if settings.kind == "mqtt":
        mqtt = import_module("edgemerge.agent.mqtt")
        topic = _required("source", settings, "topic")
        options = {"qos": settings.qos, "room": settings.queue, "longest": longest}
        return cast("Source", mqtt.MqttSource(_broker(settings), topic, form, **options))
    path = _required("source", settings, "path")
    if settings.kind == "tail":
        return TailSource(path, form, at_end=settings.start == "end", **about)
    return FileSource(path, form, **about)


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


def _features(settings: FeaturesConfig) -> NamedFeatures:
    transform: WindowTransform
    if settings.kind == "raw":
        return Raw()
    if settings.kind == "window":
        transform = Statistics(settings.statistics)
    elif settings.kind == "transitions":
        transform = Transitions(states=settings.states, low=settings.low, high=settings.high)
    else:
        transform = Spectrum(
            length=settings.length,
            rate_hz=_required("features", settings, "rate_hz"),
            bands=settings.bands,
            low_hz=settings.low_hz,
            high_hz=settings.high_hz,
        )
    return SlidingWindow(transform, settings.length, settings.step)


def input_names(
    config: Config, projection: Projection, read: Sequence[str] | None = None
) -> tuple[str, ...]:
    """Name each input of a sample: as the projection does, or after the columns.

    Columns without names have their number in the file, from 1.

    `read` are the names that the source has read, such as those in the first line of a CSV file.
    """
    if projection.names:
        return tuple(projection.names)
    features = _features(config.features)
    k = projection.n_inputs // features.n_outputs(1)
    names = features.names(read or _column_names(config.source) or _column_numbers(config, k))
    whole = len(names) == projection.n_inputs
    return names if whole else tuple(str(i + 1) for i in range(projection.n_inputs))


def _column_names(settings: SourceConfig) -> tuple[str, ...]:
    """Return the names of the chosen columns; bare numbers count from 0, what is shown from 1."""
    return tuple(
        str(each + 1 if isinstance(each, int) and each >= 0 else each) for each in settings.columns
    )


def _column_numbers(config: Config, k: int) -> tuple[str, ...]:
    """Return the numbers of all k columns but those of the time."""
    times = time_columns(config.source.time)
    count = k + len(times)
    taken = {number % count for each in times if (number := column_number(each)) is not None}
    return tuple(str(i + 1) for i in range(count) if i not in taken)[:k]


def make_learner(config: Config, projection: Projection) -> Detector | Bank:
    """Make the detector or bank, which has learnt nothing yet."""
    settings = config.learner
    options: dict[str, Any] = {"ridge": settings.ridge, "forgetting": settings.forgetting}
    if settings.reject_above is not None:
        never = settings.reject_above == "never"
        options["reject_above"] = None if never else settings.reject_above
    if settings.kind == "detector":
        return Detector(projection, **options)
    return Bank(projection, max_patterns=settings.max_patterns, **options)


def quality_settings(config: Config) -> QualityConfig:
    """Return the settings of [quality]; a rate that is not there is that of [features]."""
    rate_hz = config.quality.rate_hz or config.features.rate_hz
    return replace(config.quality, rate_hz=rate_hz)


def make_quality(config: Config, clocks: Clocks) -> DataQuality:
    """Make what notices problems with the data."""
    settings, source = quality_settings(config), config.source
    columns = _column_names(source)
    if not columns and config.features.kind == "raw" and config.projection is not None:
        columns = tuple(config.projection.names or ())
    live = source.kind not in ("csv", "jsonl") and source.rate_hz is None
    return DataQuality(settings, clocks=clocks, live=live, columns=columns)


def make_monitor(config: Config, projection: Projection) -> Monitor:
    """Make the monitor around a new learner."""
    return Monitor(make_learner(config, projection), **config.monitor.options)


def make_sinks(config: Config) -> list[Sink]:
    """Make the sinks; if one fails, those made before it are closed again."""
    with ExitStack() as made:
        sinks = []
        for number, settings in enumerate(config.sinks):
            sinks.append(_sink(config, settings, number))
            made.callback(sinks[-1].close)
        made.pop_all()
        return sinks


def _sink(config: Config, settings: SinkConfig, number: int) -> Sink:
    if settings.kind == "mqtt":
        mqtt = import_module("edgemerge.agent.mqtt")
        topics = mqtt.Topics(settings.prefix, settings.site, config.device)
        spool = config.state / ALARM_SPOOL.format(number)
        options = {"scores_per_s": settings.scores_per_s, "discovered": settings.discovery}
        return cast("Sink", mqtt.MqttSink(_broker(settings), topics, spool, **options))
    name = f"sinks.{number}"
    if settings.kind in CHANNELS:
        spool = config.state / SPOOL.format(number)
        try:
            channel = CHANNELS[settings.kind](settings, name)
            return DeliverySink(channel, spool, link=settings.link)
        except (SettingError, OSError) as error:
            raise SettingError(f"{name}: {error}") from error
    path = _required(name, settings, "path")
    try:
        if settings.kind == "file":
            return RotatingFileSink(path, largest=settings.max_bytes, keep=settings.keep)
        return JsonLinesSink(path)
    except OSError as error:
        raise SettingError(f"{name}.path {path}: {error.strerror}") from error


def _webhook(settings: SinkConfig, name: str) -> Channel:
    token = None if settings.token_file is None else read_token(settings.token_file)
    options = {key: getattr(settings, key) for key in ("preset", "template", "headers", "ca_file")}
    return WebhookChannel(_required(name, settings, "url"), token=token, **options)


def _email(settings: SinkConfig, name: str) -> Channel:
    if not settings.to:
        raise SettingError(f'{name}.kind = "email" needs {name}.to: set it')
    file, password = settings.password_file, None
    if file is not None:
        password = read_secret(file, "password", strip="\r\n")
    return EmailChannel(
        settings.host,
        settings.port,
        sender=_required(name, settings, "sender"),
        recipients=settings.to,
        security=settings.security,
        username=settings.username,
        password=password,
        ca_file=settings.ca_file,
    )


CHANNELS: dict[str, Callable[[SinkConfig, str], Channel]] = {
    "webhook": _webhook,
    "email": _email,
    "exec": lambda settings, _: ExecChannel(settings.command, timeout_s=settings.timeout_s),
    "syslog": lambda settings, _: SyslogChannel(
        settings.host, settings.port, protocol=settings.protocol
    ),
}


def make_exchange(config: Config, projection: Projection | None) -> Exchange | None:
    """Make the exchange, or None; without a projection, that of HTTP asks the fleet for it."""
    settings, required = config.exchange, partial(_required, "exchange", config.exchange)
    if settings.kind == "none":
        return None
    if settings.kind == "http":
        url, fleet, token = server_access(settings)
        options = {"projection": projection, **tls_options(config)}
        if settings.privacy == "open":
            return HttpExchange(url, fleet, token, **options)
        masked = import_module("edgemerge.exchange.masked_fleet")  # needs an extra
        whose = {"device": config.device, "path": config.state / "masked"}
        whose |= {name: getattr(settings, name) for name in ("cohort", "epsilon", "delta")}
        return cast(
            "Exchange",
            masked.MaskedExchange(url, fleet, token, **whose, **options),
        )
    if projection is None:
        raise SettingError(f'exchange.kind = "{settings.kind}" needs [projection]: add it')
    if settings.kind == "folder":
        return FolderExchange(required("path"), projection)
    if settings.kind == "mqtt":
        names = ("prefix", "username", "password_file", "ca_file")
        options = {name: getattr(settings, name) for name in names}
        options |= {"fleet": required("fleet"), "projection": projection, **_key_files(config)}
        mqtt = import_module("edgemerge.exchange.mqtt")
        return cast("Exchange", mqtt.MqttExchange(settings.host, settings.port, **options))
    return PeerExchange(
        projection,
        listen=_address(required("listen")),
        peers=settings.peers,
        token=read_token(required("token_file")),
        insecure=settings.insecure,
        **_key_files(config),
    )


def _key_files(config: Config) -> dict[str, Any]:
    """Return where the device's own key is, and those of others: with the state."""
    return {
        "key_file": config.state / KEY_FILE,
        "known_keys_file": config.state / KNOWN_KEYS_FILE,
    }


def make_reports(config: Config) -> ReportClient | None:
    """Make the client for reports, or None: they go to a server, and can be turned off."""
    if config.exchange.kind != "http" or not config.report.every_s:
        return None
    url, fleet, token = server_access(config.exchange)
    return ReportClient(url, fleet, config.device, token, **tls_options(config))


def tls_options(config: Config) -> dict[str, Any]:
    """Return how the server is recognised; what it announces is remembered with the state."""
    settings = config.exchange
    return {
        "ca_file": settings.ca_file,
        "insecure": settings.insecure,
        "pins_file": config.state / PINS_FILE,
    }


def server_access(settings: ExchangeConfig) -> tuple[str, str, str]:
    """Return the server's URL, the fleet and the token."""
    url, fleet, file = (_required("exchange", settings, n) for n in ("url", "fleet", "token_file"))
    return url, fleet, read_token(file)


def _address(text: str) -> tuple[str, int]:
    """Take "host:port" apart.

    >>> _address("[::1]:8471")
    ('::1', 8471)
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise SettingError(f'found exchange.listen = "{text}", expected "host:port"')
    return host.strip("[]"), int(port)


def _broker(settings: SourceConfig | SinkConfig) -> Any:
    mqtt = import_module("edgemerge.agent.mqtt")
    names = ("username", "password_file", "ca_file")
    place = settings.host, settings.port or MQTT_PORT
    return mqtt.agent_broker(*place, *(getattr(settings, name) for name in names))


def _required(table: str, settings: Any, name: str) -> Any:
    """Return a setting that this kind needs."""
    found = getattr(settings, name)
    if found is None:
        raise SettingError(f'{table}.kind = "{settings.kind}" needs {table}.{name}: set it')
    return found
