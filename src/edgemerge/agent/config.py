"""The configuration of an agent: a TOML file, below the environment, below flags.

`EDGEMERGE_SYNC__EVERY_S=60` and `--set sync.every_s=60` say the same; the flag wins. Paths are
relative to the folder of the file. Secrets are never values: their keys name files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from edgemerge.agent.given import of_environment, of_flags, put, read_toml
from edgemerge.agent.tables import Place, fill, not_negative, positive, setting, unknown
from edgemerge.core.activation import Activation
from edgemerge.core.errors import EdgemergeError, SettingError
from edgemerge.core.projection import Projection
from edgemerge.files import load

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
MQTT_PORT = 1883

Number = float | tuple[float, ...]


def _is_name(value: str) -> bool:
    return NAME.fullmatch(value) is not None


def _is_topic(value: str) -> bool:
    return bool(value) and not value.startswith("/") and not set(value) & set("+#\0")


@dataclass(frozen=True)
class ProjectionConfig:
    """[projection]: the file of a saved projection, or its settings."""

    file: Path | None = None
    n_inputs: int | None = positive(None)
    n_hidden: int = 64
    seed: int = 0
    activation: Activation = "tanh"
    low: Number = -1.0
    high: Number = 1.0
    width: float = 0.0
    grid_bits: int = 12
    names: tuple[str, ...] | None = None


@dataclass(frozen=True)
class SourceConfig:
    """[source]: where readings come from."""

    kind: Literal["stdin", "csv", "jsonl", "tail", "mqtt"] = "stdin"
    format: Literal["csv", "jsonl"] = "csv"
    path: Path | None = None
    columns: tuple[int | str, ...] = ()
    time: int | str | None = None
    header: bool | None = None
    delimiter: str = setting(",", "one character", lambda value: len(value) == 1)
    rate_hz: float | None = positive(None)
    start: Literal["beginning", "end"] = "beginning"
    longest_line: int = positive(65536)
    host: str = "127.0.0.1"
    port: int = setting(MQTT_PORT, "1 to 65535", lambda value: 1 <= value <= 65535)
    topic: str | None = None
    qos: int = setting(0, "0, 1 or 2", lambda value: value in (0, 1, 2))
    username: str | None = None
    password_file: Path | None = None
    ca_file: Path | None = None
    queue: int = positive(1000)


@dataclass(frozen=True)
class FeaturesConfig:
    """[features]: how readings become samples."""

    kind: Literal["raw", "window", "spectrum", "transitions"] = "raw"
    length: int = setting(64, "2 or more", lambda value: value >= 2)
    step: int | None = positive(None)
    statistics: tuple[str, ...] = ("mean", "std", "min", "max")
    bands: int = positive(32)
    rate_hz: float | None = positive(None)
    low_hz: float = not_negative(0.0)
    high_hz: float | None = positive(None)
    states: int = setting(15, "2 or more", lambda value: value >= 2)
    low: float = 0.0
    high: float = 150.0


@dataclass(frozen=True)
class LearnerConfig:
    """[learner]: who learns; an unset `reject_above` is the default of its kind."""

    kind: Literal["bank", "detector"] = "bank"
    ridge: float | None = not_negative(None)
    forgetting: float = setting(1.0, "0.5 to 1", lambda value: 0.5 <= value <= 1.0)
    reject_above: float | Literal["never"] | None = setting(
        None, 'above 1, or "never"', lambda value: value == "never" or value > 1.0
    )
    max_patterns: int = positive(8)


@dataclass(frozen=True)
class ThresholdConfig:
    """[threshold]: when a score is an alarm; one of limit, quantile, sigmas."""

    limit: float | None = positive(None)
    quantile: float | None = setting(None, "0.5 to below 1", lambda value: 0.5 <= value < 1.0)
    sigmas: float | None = positive(None)
    window: int = positive(500)
    votes: tuple[int, ...] = setting(
        (1, 1), "[k, n], 1 ≤ k ≤ n", lambda value: len(value) == 2 and 1 <= value[0] <= value[1]
    )


@dataclass(frozen=True)
class ExchangeConfig:
    """[exchange]: how contributions travel."""

    kind: Literal["none", "http", "folder", "mqtt", "peer"] = "none"
    url: str | None = None
    fleet: str | None = setting(None, "letters, digits, '.', '_', '-', at most 100", _is_name)
    token_file: Path | None = None
    ca_file: Path | None = None
    path: Path | None = None
    host: str = "127.0.0.1"
    port: int = setting(MQTT_PORT, "1 to 65535", lambda value: 1 <= value <= 65535)
    prefix: str = setting("edgemerge", "a topic without +, # or a leading /", _is_topic)
    username: str | None = None
    password_file: Path | None = None
    listen: str | None = None
    peers: tuple[str, ...] = ()


@dataclass(frozen=True)
class SyncConfig:
    """[sync]: when to exchange, with whom, and what to refuse."""

    every_s: float = not_negative(3600.0)
    jitter: float = setting(0.1, "0 to 1", lambda value: 0.0 <= value <= 1.0)
    devices: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    largest: int | None = positive(None)
    pattern: str | None = None
    at_end: bool | None = None  # once more when the source has ended; None: if every_s > 0
    max_shift: float = positive(2.0)
    gate: float | None = not_negative(None)  # times N samples; None: 2, or 16 if peers see each
    push: bool = True
    pull: bool = True


@dataclass(frozen=True)
class ReportConfig:
    """[report]: what the server is told between exchanges, for exchange.kind = "http"."""

    every_s: float = not_negative(1.0)
    follow: bool = True  # exchange when the operator has chosen


@dataclass(frozen=True)
class SaveConfig:
    """[save]: how often the state is saved; whichever comes first."""

    every: int = positive(100)
    every_s: float = positive(10.0)


@dataclass(frozen=True)
class SinkConfig:
    """[[sinks]]: where verdicts go."""

    kind: Literal["jsonl", "file", "mqtt"] = "jsonl"
    path: Path | None = None
    largest: int = positive(10_000_000)
    keep: int = not_negative(3)
    host: str = "127.0.0.1"
    port: int = setting(MQTT_PORT, "1 to 65535", lambda value: 1 <= value <= 65535)
    username: str | None = None
    password_file: Path | None = None
    ca_file: Path | None = None
    prefix: str = setting("edgemerge", "a topic without +, # or a leading /", _is_topic)
    site: str = setting("site", "letters, digits, '.', '_', '-', at most 100", _is_name)
    scores_per_s: float = positive(1.0)
    discovery: bool = False


@dataclass(frozen=True)
class LogConfig:
    """[log]: what is told on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    form: Literal["lines", "json"] = "lines"


@dataclass(frozen=True)
class Config:
    """Everything that an agent is told; without a projection it asks the fleet."""

    device: str
    state: Path
    projection: Projection | None = None
    source: SourceConfig = field(default_factory=SourceConfig)
    features: FeaturesConfig = field(default_factory=FeaturesConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    threshold: ThresholdConfig = field(default_factory=ThresholdConfig)
    exchange: ExchangeConfig = field(default_factory=ExchangeConfig)
    sync: SyncConfig = field(default_factory=SyncConfig)
    report: ReportConfig = field(default_factory=ReportConfig)
    save: SaveConfig = field(default_factory=SaveConfig)
    sinks: tuple[SinkConfig, ...] = ()
    log: LogConfig = field(default_factory=LogConfig)


@dataclass(frozen=True)
class Top:
    """The keys above all tables; both must be set."""

    device: str = setting("", "letters, digits, '.', '_', '-', at most 100", _is_name)
    state: Path | None = None


TABLES: dict[str, type[Any]] = {
    "projection": ProjectionConfig,
    "source": SourceConfig,
    "features": FeaturesConfig,
    "learner": LearnerConfig,
    "threshold": ThresholdConfig,
    "exchange": ExchangeConfig,
    "sync": SyncConfig,
    "report": ReportConfig,
    "save": SaveConfig,
    "log": LogConfig,
}


def read_config(
    path: str | Path, *, environment: Mapping[str, str], overrides: Sequence[str] = ()
) -> Config:
    """Read the file and what the environment and the flags say over it; refuse what cannot be."""
    file = Path(path).absolute()
    given = read_toml(file)
    top = [each.name for each in fields(Top)]
    for keys, value in [*of_environment(environment, top), *of_flags(overrides)]:
        put(given, keys, value)
    known = [*top, *TABLES, "sinks"]
    for name in given:
        if name not in known:
            raise unknown(name, known, str(file))
    head = fill(Top, {name: given[name] for name in top if name in given}, Place(file))
    if not head.device or head.state is None:
        raise SettingError(f"{file} does not say `device` and `state`: both must be set at its top")
    parts = {
        name: fill(kind, given.get(name, {}), Place(file, name)) for name, kind in TABLES.items()
    }
    shared = _projection(parts.pop("projection"), "projection" in given, file)
    if shared is None and parts["exchange"].kind != "http":
        raise SettingError(
            f'{file} has no [projection]: say it there, or let exchange.kind = "http" ask the fleet'
        )
    sinks = _sinks(given.get("sinks", []), file)
    return Config(head.device, head.state, shared, sinks=sinks, **parts)


def _sinks(given: object, file: Path) -> tuple[SinkConfig, ...]:
    if not isinstance(given, list):
        raise SettingError(f"found sinks = {given!r} in {file}, expected [[sinks]] tables")
    return tuple(fill(SinkConfig, each, Place(file, f"sinks.{i}")) for i, each in enumerate(given))


def _projection(told: ProjectionConfig, given: bool, file: Path) -> Projection | None:  # noqa: FBT001 - private
    if not given:
        return None
    settings = asdict(told)
    saved = settings.pop("file")
    if saved is not None:
        return _loaded(saved, told, file)
    settings["n_inputs"] = told.n_inputs or len(told.names or ())
    try:
        return Projection(**settings)
    except EdgemergeError as error:
        raise SettingError(f"[projection] in {file}: {error}") from error


def _loaded(saved: Path, told: ProjectionConfig, file: Path) -> Projection:
    if told != ProjectionConfig(file=saved):
        raise SettingError(f"[projection] in {file} has both a file and settings: keep one of them")
    try:
        found = load(saved)
    except OSError as error:
        raise SettingError(f"projection.file {saved}, of {file}: {error.strerror}") from error
    if not isinstance(found, Projection):
        raise SettingError(f"{saved} holds a {type(found).__name__}, expected a Projection")
    return found
