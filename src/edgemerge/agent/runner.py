"""Build an agent from its configuration, run it, and take it down again; one device or several.

Parts that need an extra are imported only when the configuration asks for them. Several devices in
one process have a thread each, one log, and one control socket for all. Each is run as by an agent
of its own, with its own state folder, exchange and sinks, and so its scores are those of such an
agent. A device that fails is started again after a while; the others do not notice.
"""

from __future__ import annotations

import logging
import math
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from functools import partial
from importlib import import_module
from random import Random
from threading import Event, Thread
from typing import Any, NamedTuple, Protocol, cast

from edgemerge.agent.background import (
    ReadAhead,
    SyncSchedule,
    exchange_worker,
    report_worker,
    save_worker,
)
from edgemerge.agent.config import (
    MQTT_PORT,
    REPLACED_FILE,
    Config,
    ExchangeConfig,
    FeaturesConfig,
    FleetConfiguration,
    GatewayConfig,
    MonitorConfig,
    QualityConfig,
    SinkConfig,
    SourceConfig,
    current_generation,
    with_fleet_tables,
)
from edgemerge.agent.control import ControlSocket
from edgemerge.agent.features import (
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
from edgemerge.agent.interfaces import Features, Sink, Source, Verdict
from edgemerge.agent.judge import Judge, OutsideError
from edgemerge.agent.loop import Agent, Loop
from edgemerge.agent.quality import DataQuality, ProblemEvent
from edgemerge.agent.reports import DeviceReporter, describe_values
from edgemerge.agent.reviewer import MAX_REASON_CHARS, Reviewer
from edgemerge.agent.rows import (
    Column,
    CsvRows,
    DeviceRows,
    JsonRows,
    PayloadRows,
    RowFormat,
    TimeFormat,
    time_columns,
    time_zone,
)
from edgemerge.agent.sinks import DeliverySink, JsonLinesSink, RotatingFileSink
from edgemerge.agent.sources import FileSource, RateLimitedSource, StdinSource, TailSource
from edgemerge.agent.state import AgentState, AppliedSettings, StateFolder, StateSaver
from edgemerge.agent.sync import MS_PER_S, Clocks, PeerDecisions, SharingPolicy, Synchronizer
from edgemerge.core.bank import Bank
from edgemerge.core.detector import Detector
from edgemerge.core.errors import (
    EdgemergeError,
    MismatchError,
    SettingError,
    UnavailableError,
)
from edgemerge.core.ledger import Merged
from edgemerge.core.monitor import Monitor
from edgemerge.core.projection import Projection
from edgemerge.core.trust import Trust
from edgemerge.daemon import Backoff, in_context, log_values, notify
from edgemerge.delivery import (
    Channel,
    EmailChannel,
    ExecChannel,
    SyslogChannel,
    WebhookChannel,
)
from edgemerge.exchange.client import ReportClient
from edgemerge.exchange.configuration import SAMPLE_TABLES
from edgemerge.exchange.folder import FolderExchange
from edgemerge.exchange.http import HttpExchange
from edgemerge.exchange.peer import PeerExchange
from edgemerge.exchange.protocol import Exchange, is_masked
from edgemerge.files import read_secret, read_token
from edgemerge.privacy.gate import min_fresh_samples, min_unsolvable
from edgemerge.signatures import KEY_FILE, KNOWN_KEYS_FILE
from edgemerge.wire.codec import encode


class NamedFeatures(Features, Protocol):
    """Features that also know the length and the names of their samples."""

    def n_outputs(self, n_readings: int) -> int:
        """Return the length of a sample from readings of that length."""
        ...

    def names(self, readings: Sequence[str]) -> tuple[str, ...]:
        """Name the inputs of a sample."""
        ...


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
    settings = config.learner
    options: dict[str, Any] = {"ridge": settings.ridge, "forgetting": settings.forgetting}
    if settings.reject_above is not None:
        never = settings.reject_above == "never"
        options["reject_above"] = None if never else settings.reject_above
    if settings.kind == "detector":
        return Detector(projection, **options)
    return Bank(projection, max_patterns=settings.max_patterns, **options)


def _quality_settings(config: Config) -> QualityConfig:
    rate_hz = config.quality.rate_hz or config.features.rate_hz
    return replace(config.quality, rate_hz=rate_hz)


def make_quality(config: Config, clocks: Clocks) -> DataQuality:
    """Make what notices problems with the data."""
    settings, source = _quality_settings(config), config.source
    columns = tuple(map(str, source.columns))
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
        url, fleet, token = _server_access(settings)
        options = {"projection": projection, **_tls_options(config)}
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
    url, fleet, token = _server_access(config.exchange)
    return ReportClient(url, fleet, config.device, token, **_tls_options(config))


def _tls_options(config: Config) -> dict[str, Any]:
    """Return how the server is recognised; what it announces is remembered with the state."""
    settings = config.exchange
    return {
        "ca_file": settings.ca_file,
        "insecure": settings.insecure,
        "pins_file": config.state / PINS_FILE,
    }


def _server_access(settings: ExchangeConfig) -> tuple[str, str, str]:
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


FIRST_RETRY_S, MAX_RETRY_S = 2.0, 60.0  # for fetching the projection at the start
FIRST_RESTART_S, MAX_RESTART_S = 10.0, 600.0  # until a device that failed is started again
START_TIMEOUT_S = 10.0  # for devices to start, until the process counts as ready without them
POLL_S = 0.2
PINS_FILE = "server.pins"  # in the state folder
SPOOL, LAST_TOLD = "messages-{}.jsonl", "messages-{}.last"  # there, too, by the number of a sink
ALARM_SPOOL = "alarms-{}.jsonl"

logger = logging.getLogger(__name__)


def known_projection(
    config: Config, folder: StateFolder, memory: AgentState | None
) -> Projection | None:
    """Return the projection of the state, the configuration or the folder, in this order."""
    if memory is None:
        return config.projection or folder.projection()
    if config.projection is not None and config.projection != memory.projection:
        raise SettingError(
            f"{folder.path} holds what was learnt with {memory.projection}, and the configuration "
            f"has {config.projection}: change it back, or choose another state folder"
        )
    return memory.projection


def fetch_projection(
    exchange: Exchange | None, stop: Event, on_state: Callable[[str], None] = notify
) -> Projection | None:
    """Fetch the projection from the fleet, retrying until it works; None if `stop` is set first.

    Args:
        exchange: The fleet's server.
        stop: Set it to give up.
        on_state: Called with WAITING if the server cannot be reached: systemd would kill an agent
            that is not ready within 90 s. Afterwards that status is cleared.
    """
    backoff = Backoff(FIRST_RETRY_S, MAX_RETRY_S)
    while not stop.is_set():
        try:
            found: Projection = exchange.projection  # type: ignore[union-attr] # HTTP has it
        except UnavailableError as error:
            wait_s = backoff.next(retry_after_s=error.retry_s)
            values = {"why": error, "retry_s": round(wait_s, 1)}
            logger.warning(
                "the projection could not be fetched from the fleet", extra={"values": values}
            )
            on_state(WAITING)
            stop.wait(wait_s)
        else:
            on_state(NO_STATUS)
            return found
    return None


def new_state(config: Config, projection: Projection, clock: Callable[[], float]) -> AgentState:
    """Return the empty state of a new incarnation."""
    monitor = make_monitor(config, projection)
    now = max(0, int(clock() * MS_PER_S))
    memory = AgentState(config.device, now, monitor, merged=encode(Merged(projection)))
    values = {"device": memory.device, "incarnation": memory.incarnation}
    logger.info("a new incarnation begins", extra={"values": values})
    return memory


def check_state(memory: AgentState, config: Config) -> None:
    """Refuse the state of another device or kind of learner; warn of changed settings."""
    learner = memory.learner
    kind = "detector" if isinstance(learner, Detector) else "bank"
    for word, found, expected in (
        ("device", memory.device, config.device),
        ("learner.kind", kind, config.learner.kind),
    ):
        if found != expected:
            raise SettingError(
                f"{config.state} holds the state of {word} {found!r}, and the configuration has "
                f"{expected!r}: change it back, or choose another state folder"
            )
    kept, wanted = (
        _learner_options(learner),
        _learner_options(make_learner(config, memory.projection)),
    )
    changed = [name for name in kept if kept[name] != wanted[name]]
    if changed:
        values = {"changed": changed, "kept": {name: kept[name] for name in changed}}
        logger.warning(
            "settings of [learner] have changed: what was learnt keeps the ones it began with",
            extra={"values": values},
        )


def follow_settings(memory: AgentState, config: Config) -> None:
    """Let a restored monitor follow the configuration, and warn of settings that do harm."""
    given, monitor = config.monitor, memory.monitor
    before = monitor.options
    try:
        monitor.change(**given.options_with(asdict(memory.settings)))
    except SettingError as error:  # what the server set does not fit the file any more
        logger.warning("settings of the server were refused", extra={"values": {"why": error}})
        kept = AppliedSettings(version=memory.settings.version, refused=str(error))
        memory.settings = replace(kept, label=memory.settings.label)
        monitor.change(**given.options)
    changed = [name for name, value in monitor.options.items() if value != before[name]]
    if changed:
        logger.info("settings of [monitor] have changed", extra={"values": {"changed": changed}})
    if given.learn == "always":
        logger.warning('monitor.learn = "always": a fault that lasts will be learnt as normal')
    elif config.learner.reject_above is not None:
        logger.warning(
            'learner.reject_above has no effect: monitor.learn = "%s" decides what is learnt',
            given.learn,
        )


def _warn_of_gate(config: Config, projection: Projection) -> None:
    """Say what a lower gate than the default gives up."""
    gate = config.sync.gate
    if gate is None or gate * projection.n_hidden >= min_fresh_samples(projection):
        return
    solvable = gate * projection.n_hidden < min_unsolvable(projection)
    words = (
        "single samples can be recovered from what is shared"
        if solvable
        else "whether a sample was among those learnt can often be told from what is shared"
    )
    values = {"gate": gate, "default": min_fresh_samples(projection) / projection.n_hidden}
    logger.warning(f"sync.gate is lower than the default: {words}", extra={"values": values})


def _learner_options(learner: Detector | Bank) -> dict[str, object]:
    names = ("ridge", "forgetting", "reject_above", "max_patterns")
    return {name: getattr(learner, name) for name in names if hasattr(learner, name)}


WRONG_SETTING = 2  # the exit code if the file is not as the configuration says
EXCHANGE_REFUSED, EXCHANGE_UNREACHABLE = 3, 4  # if the last exchange failed
NO_USABLE_DATA = 5  # and if no row could be read, or samples do not fit the projection's range
SAVE_TIMEOUT_S = 10.0  # for a state that is being written at the end
READY, STOPPING, NO_STATUS = "READY=1", "STOPPING=1", "STATUS="  # for systemd
WAITING = f"{READY}\nSTATUS=waiting for the projection of the fleet"
CLOSE_TIMEOUT_S = 1.0  # for a thread that may hang on the network; closing a peer takes 0.5 s


class Ending(NamedTuple):
    """How the run of a device ended: its exit code, and what went wrong."""

    code: int
    why: str = ""


def run(
    config: Config,
    *,
    stop: Event,
    clock: Callable[[], float] = time.time,
    sinks: Iterable[Sink] = (),
) -> int:
    """Run the agent of one device; return the exit code.

    Args:
        config: What to run.
        stop: Set it to end the agent.
        clock: The time of day in seconds; tests replace it.
        sinks: Receive verdicts in addition to the sinks of the configuration.
    """
    return run_device(config, stop=stop, clock=clock, sinks=sinks).code


def run_device(
    config: Config,
    *,
    stop: Event,
    clock: Callable[[], float] = time.time,
    sinks: Iterable[Sink] = (),
    on_state: Callable[[str], None] = notify,
    may_pass: Callable[[float], bool] | None = None,
) -> Ending:
    """Run a device until its source ends or `stop` is set.

    Args:
        config: What to run.
        stop: Set it to end the device.
        clock: The time of day in seconds; tests replace it.
        sinks: Receive verdicts in addition to the sinks of the configuration.
        on_state: Called with WAITING while the server with the projection cannot be reached, with
            READY when readings can be judged, and with STOPPING when no more are.
        may_pass: Returns whether a reading of this time may be judged yet; else it waits.
    """
    config = current_generation(config)  # it may have been replaced since the file was read
    if config.next is not None:
        return Generations(config, stop, clock, sinks, on_state).run(config.next)
    return _run_one(
        config, stop=stop, clock=clock, sinks=sinks, on_state=on_state, may_pass=may_pass
    )


def _run_one(
    own: Config,
    *,
    stop: Event,
    clock: Callable[[], float],
    sinks: Iterable[Sink],
    on_state: Callable[[str], None],
    may_pass: Callable[[float], bool] | None = None,
) -> Ending:
    """Run one device by its own configuration, and the fleet's below it."""
    with ExitStack() as ends:
        folder = StateFolder(own.state)
        ends.callback(folder.close)
        memory = folder.read()
        shared = known_projection(own, folder, memory)
        exchange = make_exchange(own, shared)
        held = FleetConfiguration.read(own.state)
        if held.refused:  # the device's own file may have changed, so look at it again
            held = replace(held, seen=0, refused="")
        if memory is None:
            held = fetch_configuration(own, stop, on_state, needed=shared is None) or held
        shared = shared or fetch_projection(exchange, stop, on_state)
        if shared is None:
            return Ending(0)
        if own.projection is None:
            folder.save_projection(shared)
        clocks = Clocks(clock, time.monotonic)
        parts = partial(_start_agent, memory, shared, folder, exchange, clocks, may_pass)
        config, agent, held = _start_with_fleet(own, held, parts, ends)
        if own.report.follow:
            configure = Reconfiguration(own, config, agent).apply
            agent.reviews.follow_configuration(held, own.state, configure)
        agent.sinks += sinks
        if not agent.sinks and agent.reporting is None:
            logger.warning(
                "No output is configured, so alarms will not be delivered. Add a [[sinks]] section."
            )
        return _run(config, agent, stop, clocks, ends, on_state)


def fetch_configuration(
    config: Config, stop: Event, on_state: Callable[[str], None] = notify, *, needed: bool
) -> FleetConfiguration | None:
    """Fetch the fleet's configuration before the first sample; None if there is none.

    Only then may it say what a sample is. With `needed` the server must be reached anyway, and is
    asked until it answers, while `on_state` is called with WAITING; else once.
    """
    if config.exchange.kind != "http" or not config.report.follow:
        return None
    url, fleet, token = _server_access(config.exchange)
    backoff = Backoff(FIRST_RETRY_S, MAX_RETRY_S)
    client = ReportClient(url, fleet, config.device, token, **_tls_options(config))
    with closing(client):
        while not stop.is_set():
            try:
                found = client.desired()
            except UnavailableError as error:
                values = {"why": error}
                logger.warning(
                    "the fleet's configuration was not fetched", extra={"values": values}
                )
                if not needed:
                    return None
                on_state(WAITING)
                stop.wait(backoff.next(retry_after_s=error.retry_s))
            except EdgemergeError:
                return None  # an older server, or a device that has not enrolled
            else:
                wanted = None if found is None else found.configuration
                if wanted is None:
                    return None
                version = wanted["version"]
                return FleetConfiguration(version, wanted.get("tables", {}), version)
    return None


def _start_with_fleet(
    own: Config,
    held: FleetConfiguration,
    parts: Callable[[Config, ExitStack], Agent],
    ends: ExitStack,
) -> tuple[Config, Agent, FleetConfiguration]:
    """Start with the fleet's configuration; by the device's own alone if that does not fit."""
    if held.tables and own.report.follow:
        try:
            config = with_fleet_tables(own, held.tables)
            with ExitStack() as begun:
                agent = parts(config, begun)
                ends.push(begun.pop_all())
        except Exception as error:  # noqa: BLE001 - whatever it is must not stop detection
            why = str(error)[:MAX_REASON_CHARS] or repr(error)
            values = {"version": held.version, "why": why}
            logger.warning("the fleet's configuration was refused", extra={"values": values})
            held = FleetConfiguration(seen=held.seen, refused=why)
        else:
            held.save(own.state)
            return config, agent, held
    agent = parts(own, ends)
    if held.seen:
        held.save(own.state)
    return own, agent, held


def _start_agent(
    memory: AgentState | None,
    shared: Projection,
    folder: StateFolder,
    exchange: Exchange | None,
    clocks: Clocks,
    may_pass: Callable[[float], bool] | None,
    config: Config,
    ends: ExitStack,
) -> Agent:
    memory = memory or new_state(config, shared, clocks.wall)
    check_state(memory, config)
    follow_settings(memory, config)
    return _build_agent(config, memory, folder, exchange, clocks, may_pass, ends)


class Reconfiguration:
    """Lets a running agent follow the fleet's configuration, as far as that needs no restart.

    Args:
        own: What the device itself says.
        built: What the agent was built with.
        agent: The agent.
    """

    def __init__(self, own: Config, built: Config, agent: Agent) -> None:
        """Begin with what it was built with."""
        self._own, self._built, self._now, self._agent = own, built, built, agent

    def apply(self, tables: object) -> tuple[MonitorConfig, tuple[str, ...]]:
        """Apply tables; return the settings of the monitor, and the tables that need a restart.

        Raises:
            SettingError: They do not fit, with the reason; nothing has changed.
        """
        new, agent, memory = with_fleet_tables(self._own, tables), self._agent, self._agent.memory
        changed = [
            name for name in SAMPLE_TABLES if getattr(new, name) != getattr(self._built, name)
        ]
        if changed and memory.index:
            raise SettingError(
                f"it changes {_changed_keys(self._built, new, changed)}, and so what a sample is, "
                f"but this device has {memory.index} samples: start a new generation with [next], "
                "or leave that out"
            )
        make_features(new, memory.projection)
        memory.monitor.change(**new.monitor.options_with(asdict(memory.settings)))
        if new.quality != self._now.quality and agent.quality is not None:
            agent.quality.change(_quality_settings(new))
        if new.sync != self._now.sync and agent.syncing is not None:
            agent.syncing.change(new.sync)
        if new.report != self._now.report and agent.reporting is not None:
            agent.reporting.change(new.report)
        agent.keeper.change(new.save)
        self._now = new
        if new.sinks != self._built.sinks:
            changed.append("sinks")
        return new.monitor, tuple(changed)


def _changed_keys(before: Config, after: Config, tables: Iterable[str]) -> str:
    found = []
    for name in tables:
        old, new = asdict(getattr(before, name)), asdict(getattr(after, name))
        found += [f"{name}.{key}" for key in old if old[key] != new[key]]
    return ", ".join(found)


def _build_agent(
    config: Config,
    memory: AgentState,
    folder: StateFolder,
    exchange: Exchange | None,
    clocks: Clocks,
    may_pass: Callable[[float], bool] | None,
    ends: ExitStack,
) -> Agent:
    source = make_source(config, memory.projection)
    features = make_features(config, memory.projection)
    if memory.features is not None:
        features.resume(memory.features)
    names = partial(input_names, config, memory.projection)
    worker = save_worker(folder)
    ends.callback(worker.close, SAVE_TIMEOUT_S)
    keeper = StateSaver(folder, memory, features, config.save, worker=worker, steady=clocks.steady)
    quality = make_quality(config, clocks)
    judge = Judge(memory, features, names, clocks.wall, quality)
    quality.range_words = judge.range_words
    follow = config.report.follow
    reviews = Reviewer(
        memory, judge, keeper, clock=clocks.wall, follow=follow, monitor=config.monitor
    )
    sinks = make_sinks(config) if may_pass is None else []  # else the handover makes them
    for sink in sinks:
        ends.callback(sink.close)
    syncing = None
    if exchange is not None:
        syncing = _build_sync(config, memory, exchange, keeper, clocks)
        ends.callback(syncing.close, CLOSE_TIMEOUT_S)
    reporting, reports = None, make_reports(config)
    if reports is not None:
        reporter = report_worker(reports, memory.desired and int(memory.desired["revision"]))
        values = partial(_read_values, config, judge) if config.report.report_values else None
        reporting = DeviceReporter(
            memory, syncing, reporter, config.report, clocks=clocks, values=values
        )
        ends.callback(reporting.close)
    inbox = ReadAhead(source, memory.position, may_pass=may_pass, clock=clocks.wall)
    ends.callback(inbox.close)
    return Agent(memory, inbox, judge, keeper, syncing, sinks, reviews, reporting, quality)


def _read_values(config: Config, judge: Judge) -> list[dict[str, Any]]:
    """Return the last reading for a report, which the device's own file has asked for."""
    columns = [str(each) for each in config.source.columns]
    return describe_values(judge.reading, columns, config.source.units)


def _build_sync(
    config: Config, memory: AgentState, exchange: Exchange, keeper: StateSaver, clocks: Clocks
) -> Synchronizer:
    _warn_of_gate(config, memory.projection)
    limits = {"max_shift": config.sync.max_shift, "timeout_s": config.sync.adopt_timeout_s}
    sharing = SharingPolicy(memory, gate=config.sync.gate, **limits)
    if is_masked(exchange):
        sharing.agreed = exchange.noise_known
        memory.clip(exchange.noise if exchange.noise_known else None)
    else:
        memory.clip(None)
    schedule = SyncSchedule(config.sync.every_s, config.sync.jitter, config.device)
    worker = exchange_worker(exchange)
    decisions = None
    if config.exchange.kind != "http":
        trust = Trust.parse(config.sync.trust)
        decisions = PeerDecisions(config.state, trust, memory.projection, clock=clocks.wall)
    return Synchronizer(
        sharing,
        worker,
        schedule,
        config.sync,
        save=keeper.begin,
        clocks=clocks,
        decisions=decisions,
    )


def _run(
    config: Config,
    agent: Agent,
    stop: Event,
    clocks: Clocks,
    ends: ExitStack,
    on_state: Callable[[str], None],
) -> Ending:
    control = ControlSocket(config.state)
    ends.callback(control.close)
    agent.keeper.save()  # a failure is logged, and detection goes on
    on_state(READY)
    at_end = config.sync.every_s > 0 if config.sync.at_end is None else config.sync.at_end
    try:
        Loop(agent, control, steady=clocks.steady).run(stop, sync_at_end=at_end)
    except OutsideError as error:
        agent.keeper.discard()
        logger.error("the agent stops", extra={"values": {"why": error}})
        return Ending(NO_USABLE_DATA, str(error))
    on_state(STOPPING)
    ending = _ending(agent)
    return ending if ending.code or not at_end or stop.is_set() else _exchange_ending(agent)


def _exchange_ending(agent: Agent) -> Ending:
    """Return how the last exchange ended, after the source had; nothing is lost if it failed."""
    state = "ok" if agent.syncing is None else agent.syncing.state
    if state.startswith(("denied", "refused")):
        return Ending(EXCHANGE_REFUSED, f"the exchange failed: {state}")
    if state.startswith("away"):
        return Ending(EXCHANGE_UNREACHABLE, f"the exchange failed: {state}")
    return Ending(0)


def _ending(agent: Agent) -> Ending:
    """Return how reading ended, and log what went wrong."""
    inbox = agent.inbox
    if inbox.error is not None:
        logger.error("the source failed", extra={"values": {"why": inbox.error}})
        code = WRONG_SETTING if isinstance(inbox.error, SettingError) else 1
        return Ending(code, f"the source failed: {inbox.error}")
    nothing_yet = not agent.memory.index and bool(inbox.skipped or inbox.ended)
    if not inbox.taken and (nothing_yet or (inbox.ended and inbox.skipped)):
        values = {
            "skipped": inbox.skipped,
            **({"last": inbox.why_skipped} if inbox.why_skipped else {}),
            "advice": "`edgemerge doctor CONFIG.toml` says what to set",
        }
        logger.error("no row could be read", extra={"values": values})
        return Ending(NO_USABLE_DATA, f"no row could be read, {inbox.skipped:,} were skipped")
    return Ending(1, agent.keeper.trouble) if agent.keeper.trouble else Ending(0)


MAX_WITHHELD = 1000  # verdicts of the next generation, while the former one ends; then it waits
MAX_DOUBTFUL = 64  # alarms of the former one that are remembered
BEHIND = 32  # samples by which the next one follows: an alarm opens within 30 (docs/streams.md)
SKEW_S = 2.0  # between the two, when they read the same row, and it has no time of its own
SILENT_S = 600.0  # without a verdict: then the next one does not wait for the former


class FormerWatch:
    """A sink of the former generation: when the next one may have a reading, and learn from it.

    An alarm begins some samples after its fault. So a reading waits until the former generation has
    judged `BEHIND` samples since, and is doubtful if it is of an alarm or as many samples before.

    Args:
        steady: A monotonic clock.
    """

    def __init__(self, steady: Callable[[], float] = time.monotonic) -> None:
        """Begin without an alarm."""
        self._steady, self._judged_at, self._ended = steady, steady(), False
        self._times: deque[float] = deque(maxlen=BEHIND)  # of the last samples
        self._doubtful: tuple[tuple[float, float], ...] = ()  # from when to when, the newest last
        self._alarm = False

    @property
    def alarm(self) -> bool:
        """Whether the former generation is in alarm, and still judges."""
        return self._alarm and not self._is_gone

    @property
    def _is_gone(self) -> bool:
        return self._ended or self._steady() - self._judged_at > SILENT_S

    def has_passed(self, at: float) -> bool:
        """Return whether enough was judged since a time, or nothing is judged any more."""
        return self._is_gone or (len(self._times) == BEHIND and self._times[0] >= at)

    def is_doubtful(self, at: float) -> bool:
        """Return whether a reading of this time may be of a fault."""
        if self._is_gone and self._times and at > self._times[-1] + SKEW_S:
            return False  # an alarm that nobody can end any more
        return any(begin - SKEW_S <= at <= end + SKEW_S for begin, end in self._doubtful)

    def verdict(self, verdict: Verdict) -> None:
        """Look at a verdict."""
        self._times.append(verdict.at)
        if verdict.alarm and not self._alarm:
            known = len(self._times) == BEHIND  # else it may have begun before a restart
            spans = (*self._doubtful, (self._times[0] if known else -math.inf, math.inf))
            self._doubtful = spans[-MAX_DOUBTFUL:]
        elif self._alarm and not verdict.alarm:
            self._doubtful = (*self._doubtful[:-1], (self._doubtful[-1][0], verdict.at))
        self._alarm = verdict.alarm
        self._judged_at = self._steady()

    def status(self, status: dict[str, Any]) -> None:
        """Need none."""

    def close(self) -> None:
        """Hold nothing back any more."""
        self._ended = True


class Handover:
    """A sink of the next generation: delivers nothing until the former one has ended.

    `ready` is set when the next one watches, and the former one is not in alarm. The next one does
    not learn from an alarm of the former one. When that has ended, the sinks are made, and get the
    verdicts since then first: some rows are judged twice, and none goes unseen.

    Args:
        config: The next generation, with its sinks.
        former: What the former one has judged.
        sinks: More sinks, from then on.
        replaces: The former generation, whose messages that wait are delivered.
    """

    def __init__(
        self,
        config: Config,
        former: FormerWatch,
        sinks: Iterable[Sink] = (),
        *,
        replaces: Config | None = None,
    ) -> None:
        """Wait for the next generation to watch."""
        self._config, self._former, self._more = config, former, tuple(sinks)
        self._replaces = replaces
        self._sinks: list[Sink] | None = None
        self._withheld: deque[Verdict] = deque()
        self._paused: bool | None = None  # learning, by us; None: not known yet
        self._pause = False  # for the reading that comes next
        self.ready, self.former_ended = Event(), Event()

    def verdict(self, verdict: Verdict) -> None:
        """Deliver a verdict if the former generation has ended."""
        if verdict.ready and not self._former.alarm:
            self.ready.set()
        if self.ready.is_set():
            self._withheld.append(verdict)
        self._own_sinks()

    def status(self, status: dict[str, Any]) -> None:
        """Deliver the status, likewise."""
        for sink in self._own_sinks():
            sink.status(status)

    def problem(self, device: str, event: ProblemEvent) -> None:
        """Deliver a problem with the data, likewise."""
        for sink in self._own_sinks():
            deliver = getattr(sink, "problem", None)
            if deliver is not None:
                deliver(device, event)

    def may_pass(self, at: float) -> bool:
        """Return whether the next generation may have a reading of this time.

        If learning has to be switched on or off for it, that is done first: see `commands`. It
        waits while much is withheld.
        """
        alone = self.former_ended.is_set() or self.ready.is_set()
        passed = alone or self._former.has_passed(at)
        self._pause = not alone and self._former.is_doubtful(at)  # after what it may have heard
        room = len(self._withheld) < MAX_WITHHELD
        return passed and room and self._pause == self._paused

    def commands(self) -> list[Any]:
        """Return commands of the sinks, and whether to learn."""
        found = [each for sink in self._own_sinks() for each in getattr(sink, "commands", list)()]
        if self._pause != self._paused:
            self._paused = self._pause
            found.append({"command": "learn", "on": not self._paused})
        return found

    def start_again(self) -> None:
        """Begin anew with a next one that has failed, and goes on with what it has saved."""
        self._paused = None  # tell it again whether to learn
        self.ready.clear()
        self._withheld.clear()  # the former one judges these rows, too

    def close(self) -> None:
        """Deliver what was withheld, if the former one has ended; close what was made here."""
        for sink in self._own_sinks():
            if sink not in self._more:
                sink.close()

    def _made_sinks(self) -> list[Sink]:
        """Make the sinks, with those of the fleet if they can be used."""
        if self._replaces is not None:
            _take_over_messages(self._replaces, self._config)
        follow, held = self._config.report.follow, FleetConfiguration.read(self._config.state)
        for tables in [held.tables, {}] if follow and held.tables else [{}]:
            try:
                return make_sinks(with_fleet_tables(self._config, tables))
            except (EdgemergeError, ImportError, OSError) as error:
                logger.error("sinks cannot be used", extra={"values": {"why": error}})
        return []

    def _own_sinks(self) -> list[Sink]:
        if self._sinks is None:
            if not self.former_ended.is_set():
                return []
            self._sinks = [*self._made_sinks(), *self._more]
        while self._withheld:
            verdict = self._withheld.popleft()
            for sink in self._sinks:
                sink.verdict(verdict)
        return self._sinks


def _take_over_messages(former: Config, following: Config) -> None:
    """Move messages that could not be delivered yet, where both generations have the same sink."""
    for number, (old, new) in enumerate(zip(former.sinks, following.sinks, strict=False)):
        names = (SPOOL.format(number), LAST_TOLD.format(number), ALARM_SPOOL.format(number))
        for name in names if old == new else ():
            try:
                shutil.move(former.state / name, following.state / name)
            except FileNotFoundError:
                pass  # another kind of sink
            except OSError as error:
                values = {"file": former.state / name, "why": error}
                logger.error("messages that wait stay behind", extra={"values": values})


class Generations:
    """A device, and its next generation beside it; when that watches, it goes on alone.

    Each has a source, a state and an exchange of its own, so that the former one judges as if it
    were alone. The next one is started again if it fails. The sinks are the same, so those of the
    next one are made when the former one has ended.

    Args:
        config: The former generation, with the next one.
        stop: Set it to end both.
        clock: The time of day in seconds.
        sinks: Receive verdicts in addition to the sinks of the configuration.
        on_state: Called with READY and STOPPING.
    """

    def __init__(
        self,
        config: Config,
        stop: Event,
        clock: Callable[[], float],
        sinks: Iterable[Sink],
        on_state: Callable[[str], None],
    ) -> None:
        """Start nothing yet."""
        self._config, self._stop, self._clock = config, stop, clock
        self._sinks, self._on_state = tuple(sinks), on_state
        self._former_stop, self._next_stop, self._replaced = Event(), Event(), Event()

    def run(self, following: Config) -> Ending:
        """Run both until one is left, and that one until it ends."""
        former = FormerWatch()
        handover = Handover(following, former, self._sinks, replaces=self._config)
        beside = DeviceThread(
            following,
            self._next_stop,
            self._clock,
            lambda _error: 1,
            sinks=[handover],
            may_pass=handover.may_pass,
        )
        watch = in_context(partial(self._watch, following, handover, beside))
        watcher = Thread(target=watch, name="generations", daemon=True)
        watcher.start()
        try:
            ending = _run_one(
                replace(self._config, next=None),
                stop=self._former_stop,
                clock=self._clock,
                sinks=[*self._sinks, former],
                on_state=self._on_state_of_former,
            )
            former.close()
            while beside.is_alive and not self._stop.wait(POLL_S):
                if self._replaced.is_set():
                    handover.former_ended.set()
                elif ending.code:
                    break
        finally:
            self._former_stop.set()
            self._next_stop.set()
            watcher.join()
            beside.join()
            if self._replaced.is_set():
                handover.former_ended.set()
            handover.close()
        if not self._replaced.is_set():
            return ending
        self._on_state(STOPPING)
        return beside.ending

    def _watch(self, following: Config, handover: Handover, beside: DeviceThread) -> None:
        """End the former generation when asked to, or when the next one watches."""
        trouble = ""
        while not self._former_stop.wait(POLL_S):
            if self._stop.is_set():
                self._former_stop.set()
                return
            try:
                self._look_after(following, handover, beside)
            except (OSError, RuntimeError) as error:  # a full disk, or no more threads
                if str(error) != trouble:
                    trouble = str(error)
                    values = {"why": error}
                    logger.error(
                        "the next generation waits: the former one goes on",
                        extra={"values": values},
                    )

    def _look_after(self, following: Config, handover: Handover, beside: DeviceThread) -> None:
        """Let the next generation replace the former one, or start it again if it failed."""
        if handover.ready.is_set() and beside.state != "failed":
            (following.state / REPLACED_FILE).touch()
            logger.info("the next generation watches, and replaces the former one")
            self._replaced.set()
            self._former_stop.set()
        elif not beside.is_alive:
            handover.start_again()
            beside.tend()

    def _on_state_of_former(self, state: str) -> None:
        if state != STOPPING or not self._replaced.is_set():
            self._on_state(state)


class DeviceThread:
    """Runs one device, again and again if it fails; `state` says in words what it does now.

    Args:
        config: The device.
        stop: Set it to end the device.
        clock: The time of day in seconds.
        exit_code: Returns the exit code for an error.
        sinks: Receive verdicts in addition to the sinks of the configuration.
        may_pass: Returns whether a reading of this time may be judged yet; else it waits.
    """

    def __init__(
        self,
        config: Config,
        stop: Event,
        clock: Callable[[], float],
        exit_code: Callable[[Exception], int],
        *,
        sinks: Iterable[Sink] = (),
        may_pass: Callable[[float], bool] | None = None,
    ) -> None:
        """Start the thread."""
        self.config, self._sinks, self._may_pass = config, tuple(sinks), may_pass
        self.state, self.ending = "starting", Ending(0)
        self._stop, self._clock, self._exit_code = stop, clock, exit_code
        self._backoff = Backoff(FIRST_RESTART_S, MAX_RESTART_S, Random(config.device))
        self._retry_at = 0.0
        self._start()

    @property
    def is_alive(self) -> bool:
        """Whether the device runs, or is being started."""
        return self._thread.is_alive()

    def tend(self) -> None:
        """Start the device again if it failed and the time has come."""
        if not self.is_alive and self.ending.code and time.monotonic() >= self._retry_at:
            self.state = "starting"
            self._start()

    def join(self) -> None:
        """Wait for its end."""
        self._thread.join()

    def plain(self) -> dict[str, Any]:
        """Return its status as plain JSON."""
        found = {"device": self.config.device, "state": self.state, "why": self.ending.why}
        return found | {"folder": str(current_generation(self.config).state)}

    def _start(self) -> None:
        self._thread = Thread(target=in_context(self._run), name=self.config.device, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        log_values.set({"device": self.config.device})
        began = time.monotonic()
        try:
            self.ending = run_device(
                self.config,
                stop=self._stop,
                clock=self._clock,
                sinks=self._sinks,
                on_state=self._follow,
                may_pass=self._may_pass,
            )
        except (EdgemergeError, OSError) as error:
            self.ending = Ending(self._exit_code(error), str(error))
        except Exception as error:  # a bug that one device shows must not stop the others
            logger.exception("the device failed unexpectedly")
            self.ending = Ending(self._exit_code(error), repr(error))
        self.state = "ended"
        if self.ending.code:
            self.state = "failed"
            if time.monotonic() - began > MAX_RESTART_S:
                self._backoff.reset()  # this is another trouble than the one before
            wait_s = self._backoff.next()
            self._retry_at = time.monotonic() + wait_s
            values = {"why": self.ending.why, "retry_s": round(wait_s, 1)}
            logger.error("the device failed: the others go on", extra={"values": values})

    def _follow(self, state: str) -> None:
        if state == READY:
            self.state, self.ending = "running", Ending(0)
        elif state == STOPPING:
            self.state = "stopping"


def run_gateway(
    config: GatewayConfig,
    *,
    stop: Event,
    clock: Callable[[], float] = time.time,
    exit_code: Callable[[Exception], int] = lambda _error: 1,
) -> int:
    """Run all devices until their sources end or `stop` is set; return the exit code.

    It is 0 if all devices ended well, else that of the first one in the configuration that did not.
    A device that fails is started again as long as another one runs.

    Args:
        config: What to run.
        stop: Set it to end all devices.
        clock: The time of day in seconds; tests replace it.
        exit_code: Returns the exit code for an error that ended a device.
    """
    with closing(StateFolder(config.state)), closing(ControlSocket(config.state)) as control:
        devices = [DeviceThread(each, stop, clock, exit_code) for each in config.devices]
        logger.info("devices are started", extra={"values": {"devices": len(devices)}})
        is_ready, give_up_at = False, time.monotonic() + START_TIMEOUT_S
        while any(each.is_alive for each in devices) and not stop.wait(POLL_S):
            starting = any(each.state == "starting" for each in devices)
            if not is_ready and (not starting or time.monotonic() >= give_up_at):
                is_ready = True
                notify(READY)
            _answer(control, devices)
            for each in devices:
                each.tend()
        notify(STOPPING)
        for each in devices:
            each.join()
    return next((each.ending.code for each in devices if each.ending.code), 0)


def _answer(control: ControlSocket, devices: Sequence[DeviceThread]) -> None:
    for request in control.requests():
        if request.command.get("command") == "status":
            request.answer({"devices": [each.plain() for each in devices]})
        else:
            names = ", ".join(each.config.device for each in devices)
            request.answer({"error": f"several devices run here: choose one with --device {names}"})
