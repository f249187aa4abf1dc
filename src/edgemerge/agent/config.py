"""The agent's configuration: a TOML file, overridden by the environment, overridden by flags.

`EDGEMERGE_SYNC__EVERY_S=60` and `--set sync.every_s=60` set the same key; the flag wins. Relative
paths start at the folder of the file. Secrets are never values: their keys name files.

Below all of these are the tables of the fleet's configuration, if the server has one: they hold
where the device's own file, environment and flags say nothing.
"""

from __future__ import annotations

import json
import logging
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import Field, asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

from edgemerge.agent.industrial import value_names
from edgemerge.agent.rows import MAX_LINE_BYTES, time_columns
from edgemerge.core.detector import Detector
from edgemerge.core.errors import EdgemergeError, SettingError
from edgemerge.core.monitor import Monitor
from edgemerge.core.projection import Activation, Projection
from edgemerge.core.trust import TRUST_WORDS, is_trust
from edgemerge.exchange.configuration import (
    ALLOWED_KEYS,
    PLAIN_NAME,
    check_tables,
    without_rival_limit,
)
from edgemerge.files import load, write_atomically

T = TypeVar("T")

logger = logging.getLogger(__name__)

TYPE_NAMES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
    tuple: "a list",
}


class TextValue(str):
    """A value from the environment or the command line, where all is text."""

    __slots__ = ()


class TableLocation(NamedTuple):
    """Where a table was found: the file, and the table's name in it ("" for the top)."""

    file: Path
    table: str = ""

    def key(self, name: str) -> str:
        """Name one key of the table, as `--set` does."""
        return f"{self.table}.{name}" if self.table else name

    def origin(self, value: object) -> str:
        """Return where a value was set: in this file, or by what overrides it."""
        return "the environment or a flag" if isinstance(value, TextValue) else str(self.file)


def setting(
    default: Any, words: str = "", ok: Callable[[Any], bool] | None = None, *, was: str = ""
) -> Any:
    """Declare a key.

    Args:
        default: The value of a key that is not set.
        words: The allowed values, for error messages.
        ok: Whether a value is allowed; by default every value of the right type is.
        was: The key's former name, which still works and logs a warning.
    """
    return field(default=default, metadata={"words": words, "ok": ok, "was": was})


def positive(default: Any, *, was: str = "") -> Any:
    """Declare a number that must be above 0."""
    return setting(default, "above 0", lambda value: value > 0, was=was)


def not_negative(default: Any) -> Any:
    """Declare a number that must be 0 or more."""
    return setting(default, "0 or more", lambda value: value >= 0)


def parse_table(kind: type[T], table: object, place: TableLocation) -> T:
    """Make the dataclass from a table; what is missing has its default."""
    if not isinstance(table, Mapping):
        raise SettingError(
            f"found {place.table} = {table!r} in {place.file}, expected a table: "
            f"write [{place.table}] on a line of its own, and its keys below"
        )
    hints = get_type_hints(kind)
    known: dict[str, Field[Any]] = {each.name: each for each in fields(kind)}  # type: ignore[arg-type] # a dataclass
    values = {}
    for name, value in _with_new_names(table, known, place).items():
        if name not in known:
            where = "the environment or a flag" if isinstance(value, TextValue) else place.file.name
            raise unknown_key_error(place.key(name), [place.key(each) for each in known], where)
        values[name] = _checked_value(value, hints[name], known[name], place)
    return kind(**values)


def _with_new_names(
    table: Mapping[str, Any], known: Mapping[str, Field[Any]], place: TableLocation
) -> dict[str, Any]:
    """Return the table with keys that were renamed under their new names."""
    values = dict(table)
    for name, declared in known.items():
        old_name = declared.metadata.get("was")
        if not old_name or old_name not in values:
            continue
        old, new = values.pop(old_name), values.get(name)
        logger.warning("%s is now %s: rename it", place.key(old_name), place.key(name))
        # The new name wins, but a flag wins over the file under either name.
        if new is None or (isinstance(old, TextValue) and not isinstance(new, TextValue)):
            values[name] = old
    return values


def unknown_key_error(name: str, known: list[str], where: str) -> SettingError:
    """Return the error for an unknown key, with the most similar known one."""
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    advice = f"Did you mean '{near[0]}'?" if near else f"Known keys: {', '.join(known)}."
    return SettingError(f"Unknown key '{name}' in {where}. {advice}")


def _checked_value(value: Any, hint: Any, declared: Field[Any], place: TableLocation) -> Any:
    """Return the value as the type that the field has, within the range that it has."""
    found_it = f"found {place.key(declared.name)} = {value!r} in {place.origin(value)}"
    try:
        found = _convert_any(hint, value, place.file.parent)
    except TypeError:
        raise SettingError(f"{found_it}, expected {_type_words(hint)}") from None
    ok = declared.metadata.get("ok")
    if ok is not None and not ok(found):
        raise SettingError(f"{found_it}, expected {declared.metadata['words']}")
    return found


def union_members(hint: Any) -> list[Any]:
    """Return the types of a union, without None; a single type is a union of one."""
    found = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return [arm for arm in found if arm is not NoneType]


def _convert(kind: Any, value: Any, folder: Path) -> Any:
    """Return the value as that type, or raise TypeError or ValueError."""
    if get_origin(kind) is tuple:
        return tuple(_convert_any(get_args(kind)[0], each, folder) for each in _items(value))
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise ValueError
        return str(value)
    if isinstance(value, TextValue) and kind not in (str, Path):
        value = tomllib.loads(f"x = {value}")["x"]
    return _convert_plain(kind, value, folder)


def _convert_any(hint: Any, value: Any, folder: Path) -> Any:
    """Return the value as the first type of a union that takes it, or raise TypeError."""
    kinds = union_members(hint)
    if isinstance(value, TextValue) and value.startswith("["):  # which is also a `str`
        kinds = [kind for kind in kinds if get_origin(kind) is tuple] or kinds
    for kind in kinds:
        with suppress(TypeError, ValueError):
            return _convert(kind, value, folder)
    raise TypeError


def _items(value: Any) -> list[Any]:
    """Return the items of a list; as text it is written like in TOML, or with commas between."""
    if isinstance(value, TextValue):
        if value.startswith("["):
            value = tomllib.loads(f"x = {value}")["x"]
        else:
            value = [TextValue(each.strip()) for each in value.split(",") if each.strip()]
    if not isinstance(value, list | tuple):
        raise TypeError
    return list(value)


def _convert_plain(kind: Any, value: Any, folder: Path) -> Any:
    if kind is Path and isinstance(value, str) and value:
        return Path("-") if value == "-" else folder / Path(value).expanduser()
    if kind is float and type(value) in (int, float) and isfinite(value):
        return float(value)
    if kind is str and isinstance(value, str):
        return str(value)
    if kind in (bool, int) and type(value) is kind:
        return value
    raise TypeError


def _type_words(hint: Any) -> str:
    """Say in words what a type takes."""
    found = []
    for arm in union_members(hint):
        if get_origin(arm) is Literal:
            found += [f'"{each}"' for each in get_args(arm)]
        elif get_origin(arm) is tuple:
            found.append(f"a list, each {_type_words(get_args(arm)[0])}")
        else:
            found.append(TYPE_NAMES[arm])
    return " or ".join(found)


ENVIRONMENT_PREFIX = "EDGEMERGE_"

Keys = list[str]


INIT_ADVICE = "if it holds readings, `edgemerge init` writes a configuration for them"


def read_toml(path: Path, advice: str = INIT_ADVICE) -> dict[str, Any]:
    """Read the file as it is; `advice` ends the error if it is none."""
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise SettingError(
            f"{path} cannot be read ({error.strerror}), expected a TOML file: {advice}"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"{path} is not TOML: {error}: {advice}") from error


def environment_overrides(
    environment: Mapping[str, str], top: Iterable[str]
) -> Iterator[tuple[Keys, str]]:
    """Find EDGEMERGE_TABLE__KEY, and EDGEMERGE_KEY for the keys above all tables.

    >>> found = {"EDGEMERGE_SYNC__EVERY_S": "60", "EDGEMERGE_DATA": "x"}
    >>> list(environment_overrides(found, ["device"]))
    [(['sync', 'every_s'], '60')]
    """
    for name, value in sorted(environment.items()):
        if name.startswith(ENVIRONMENT_PREFIX):
            keys = name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
            if len(keys) > 1 or keys[0] in top:
                yield keys, value


def flag_overrides(overrides: Sequence[str]) -> Iterator[tuple[Keys, str]]:
    """Take `--set table.key=value` apart."""
    for flag in overrides:
        name, equals, value = flag.partition("=")
        if not equals:
            raise SettingError(f"found --set {flag}, expected --set table.key=value")
        yield name.strip().split("."), value.strip()


def apply_override(given: dict[str, Any], keys: Keys, value: str) -> None:
    """Set one value; `sinks.0.path` is in the first sink, and the next number adds one."""
    table: Any = given
    for key in keys[:-1]:
        table = _descend(table, key, ".".join(keys))
    if not isinstance(table, dict):
        raise _bad_key_error(".".join(keys))
    table[keys[-1]] = TextValue(value)


def _descend(table: Any, key: str, name: str) -> Any:
    if isinstance(table, list):
        if not key.isdecimal() or int(key) > len(table):
            raise _bad_key_error(name)
        if int(key) == len(table):
            table.append({})
        return table[int(key)]
    if not isinstance(table, dict):
        raise _bad_key_error(name)
    return table.setdefault(key, [] if key in ("sinks", "devices") else {})


def _bad_key_error(name: str) -> SettingError:
    return SettingError(
        f"found the setting {name}, expected table.key (sync.every_s), or sinks.0.key for a sink"
    )


MQTT_PORT = 1883

Number = float | tuple[float, ...]


def _is_name(value: str) -> bool:
    return re.fullmatch(PLAIN_NAME, value) is not None


def _is_digest(value: str) -> bool:
    return re.fullmatch("[0-9a-f]{64}", value) is not None


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
    width: float | None = None
    grid_bits: int = 12
    names: tuple[str, ...] | None = None


@dataclass(frozen=True)
class SourceConfig:
    """[source]: where readings come from."""

    kind: Literal["stdin", "csv", "jsonl", "tail", "mqtt", "opcua", "modbus"] = "stdin"
    format: Literal["csv", "jsonl"] = "csv"
    path: Path | None = None
    columns: tuple[int | str, ...] = ()
    units: tuple[str, ...] = ()  # of the columns, in their order
    time: int | str | tuple[int | str, ...] | None = setting(
        None,
        'a column, or two: ["date", "time of day"]',
        lambda value: not isinstance(value, tuple) or len(value) == 2,
    )
    device_column: int | str | None = None
    device_value: str | None = None
    header: bool | None = None
    encoding: Literal["utf-8", "cp1252"] = "utf-8"
    delimiter: str = setting(",", "one character", lambda value: len(value) == 1)
    decimal: Literal[".", ","] = "."
    skip_lines: int = not_negative(0)
    time_format: str | None = None
    time_zone: str | None = None
    rate_hz: float | None = positive(None)
    start: Literal["beginning", "end"] = "beginning"
    max_line_bytes: int = positive(MAX_LINE_BYTES, was="longest_line")
    host: str = "127.0.0.1"
    port: int | None = setting(None, "1 to 65535", lambda value: 1 <= value <= 65535)
    topic: str | None = None
    qos: int = setting(0, "0, 1 or 2", lambda value: value in (0, 1, 2))
    username: str | None = None
    password_file: Path | None = None
    ca_file: Path | None = None
    queue: int = positive(1000)
    interval_s: float = positive(1.0)
    timeout_s: float = positive(4.0)  # of one answer
    endpoint: str | None = setting(
        None, "opc.tcp://host:port", lambda value: value.startswith("opc.tcp://")
    )
    nodes: tuple[str, ...] = ()
    security_policy: Literal[
        "none", "Basic256Sha256", "Aes128Sha256RsaOaep", "Aes256Sha256RsaPss"
    ] = "none"
    certificate_file: Path | None = None
    key_file: Path | None = None
    server_certificate_file: Path | None = None
    registers: tuple[str, ...] = ()
    unit_id: int = setting(1, "0 to 255", lambda value: 0 <= value <= 255)
    word_order: Literal["big", "little"] = "big"


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


def _is_votes(value: tuple[int, ...]) -> bool:
    return len(value) == 2 and 1 <= value[0] <= value[1]


@dataclass(frozen=True)
class MonitorConfig:
    """[monitor]: what is learnt, and when an alarm is raised; limit or false_alarms, not both."""

    learn: Literal["normal", "always", "off"] = "normal"
    limit: float | None = positive(None)
    false_alarms: float | str | None = None
    votes: tuple[int, ...] = setting((3, 5), "[k, n], 1 ≤ k ≤ n", _is_votes)
    commissioning: int | str | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The settings of a `Monitor`."""
        return asdict(self) | {"votes": (self.votes[0], self.votes[1])}

    def options_with(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return them with the limit that an operator set, or as they are if there is none.

        >>> MonitorConfig(false_alarms="1 per day").options_with({"limit": 5.0})["false_alarms"]
        """
        limit = {name: settings.get(name) for name in ("limit", "false_alarms")}
        return self.options | (limit if any(limit.values()) else {})


@dataclass(frozen=True)
class QualityConfig:
    """[quality]: when something is wrong with the data; detection goes on in any case."""

    no_data_s: float | None = not_negative(None)  # 0: never
    stuck_rows: int = not_negative(300)  # 0: never
    rate_hz: float | None = positive(None)  # of the rows; None: that of [features]


@dataclass(frozen=True)
class ThresholdConfig:
    """[threshold]: the former name of [monitor], with its former keys."""

    limit: float | None = positive(None)
    quantile: float | None = setting(None, "0.5 to below 1", lambda value: 0.5 <= value < 1.0)
    sigmas: float | None = positive(None)
    window: int | None = positive(None)
    votes: tuple[int, ...] | None = setting(None, "[k, n], 1 ≤ k ≤ n", _is_votes)


@dataclass(frozen=True)
class ExchangeConfig:
    """[exchange]: how contributions travel."""

    kind: Literal["none", "http", "folder", "mqtt", "peer"] = "none"
    url: str | None = None
    fleet: str | None = setting(None, "letters, digits, '.', '_', '-', at most 100", _is_name)
    token_file: Path | None = None
    ca_file: Path | None = None
    insecure: bool = False  # whether plain http is allowed to another machine
    privacy: Literal["open", "masked"] = "open"  # masked: the server sees totals only
    cohort: str | None = setting(None, "64 hexadecimal digits", _is_digest)  # the only one to join
    epsilon: float | None = positive(None)  # the largest of a masked fleet's noise
    delta: float | None = positive(None)  # likewise
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
    max_contributions: int | None = positive(None, was="largest")
    pattern: str | None = None
    at_end: bool | None = None  # once more when the source has ended; None: if every_s > 0
    max_shift: float = positive(2.0)
    adopt_timeout_s: float = positive(10.0)  # to compare what others saw with our own patterns
    gate: float | None = not_negative(None)  # times N samples; None: 16, and enough unknowns
    trust: str = setting("members", TRUST_WORDS, is_trust)  # of peers' contributions, no server's
    push: bool = True
    pull: bool = True


@dataclass(frozen=True)
class ReportConfig:
    """[report]: reports to the server between exchanges, for exchange.kind = "http"."""

    every_s: float = not_negative(1.0)
    follow: bool = True  # exchange when the operator has chosen
    report_values: bool = False  # the latest reading, too; problems quote single ones


@dataclass(frozen=True)
class SaveConfig:
    """[save]: how often the state is saved; whichever comes first."""

    every: int = positive(100)
    every_s: float = positive(10.0)


@dataclass(frozen=True)
class SinkConfig:
    """[[sinks]]: where results and alarms go."""

    kind: Literal["jsonl", "file", "mqtt", "webhook", "email", "exec", "syslog"] = "jsonl"
    path: Path | None = None
    max_bytes: int = positive(10_000_000, was="largest")
    keep: int = not_negative(3)
    host: str = "127.0.0.1"
    port: int | None = setting(None, "1 to 65535", lambda value: 1 <= value <= 65535)
    username: str | None = None
    password_file: Path | None = None
    ca_file: Path | None = None
    prefix: str = setting("edgemerge", "a topic without +, # or a leading /", _is_topic)
    site: str = setting("site", "letters, digits, '.', '_', '-', at most 100", _is_name)
    scores_per_s: float = positive(1.0)
    discovery: bool = False
    url: str | None = None
    preset: Literal["json", "ntfy", "slack"] = "json"
    template: str | None = None
    headers: tuple[str, ...] = ()
    link: str | None = None
    token_file: Path | None = None
    sender: str | None = None
    to: tuple[str, ...] = ()
    security: Literal["starttls", "tls", "none"] = "starttls"
    command: tuple[str, ...] = ()
    timeout_s: float = positive(60.0)
    protocol: Literal["udp", "tcp"] = "udp"


@dataclass(frozen=True)
class LogConfig:
    """[log]: what is logged to standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["lines", "json"] = setting("lines", was="form")


@dataclass(frozen=True)
class Config:
    """The configuration of an agent; without a projection it asks the fleet."""

    device: str
    state: Path
    projection: Projection | None = None
    source: SourceConfig = field(default_factory=SourceConfig)
    features: FeaturesConfig = field(default_factory=FeaturesConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    monitor: MonitorConfig = field(default_factory=MonitorConfig)
    quality: QualityConfig = field(default_factory=QualityConfig)
    exchange: ExchangeConfig = field(default_factory=ExchangeConfig)
    sync: SyncConfig = field(default_factory=SyncConfig)
    report: ReportConfig = field(default_factory=ReportConfig)
    save: SaveConfig = field(default_factory=SaveConfig)
    sinks: tuple[SinkConfig, ...] = ()
    log: LogConfig = field(default_factory=LogConfig)
    next: Config | None = None  # runs beside this one until it watches, and replaces it then
    # What the file, the environment and the flags say, for a fleet's configuration to go below.
    given: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    file: Path = field(default=Path(), repr=False, compare=False)

    @property
    def devices(self) -> tuple[Config, ...]:
        """This device alone, as in a `GatewayConfig`."""
        return (self,)


@dataclass(frozen=True)
class GatewayConfig:
    """The configuration of several devices in one process."""

    state: Path  # has a folder for each device, and the control socket of the process
    devices: tuple[Config, ...]
    log: LogConfig


@dataclass(frozen=True)
class TopLevelConfig:
    """The keys above all tables; both must be set."""

    device: str = setting("", "letters, digits, '.', '_', '-', at most 100", _is_name)
    state: Path | None = None


TABLES: dict[str, type[Any]] = {
    "projection": ProjectionConfig,
    "source": SourceConfig,
    "features": FeaturesConfig,
    "learner": LearnerConfig,
    "monitor": MonitorConfig,
    "quality": QualityConfig,
    "exchange": ExchangeConfig,
    "sync": SyncConfig,
    "report": ReportConfig,
    "save": SaveConfig,
    "log": LogConfig,
}


TOP_KEYS = tuple(each.name for each in fields(TopLevelConfig))


def read_config(
    path: str | Path,
    *,
    environment: Mapping[str, str],
    overrides: Sequence[str] = (),
    device: str | None = None,
) -> Config:
    """Read the configuration of one device.

    Args:
        path: The file.
        environment: What overrides it.
        overrides: What overrides both, each as `table.key=value`.
        device: The name of the device; needed if the file has several.
    """
    devices = read_configuration(path, environment=environment, overrides=overrides).devices
    names = [each.device for each in devices]
    if device is None and len(devices) > 1:
        raise SettingError(
            f"{path} has {len(devices)} devices: choose one with --device ({', '.join(names)})"
        )
    if device is not None and device not in names:
        raise SettingError(f"{path} has no device {device!r}, but {', '.join(names)}")
    return devices[0 if device is None else names.index(device)]


def read_configuration(
    path: str | Path, *, environment: Mapping[str, str], overrides: Sequence[str] = ()
) -> Config | GatewayConfig:
    """Read the file, apply the environment and the flags, and validate the result.

    A file with `[[devices]]` is the configuration of several devices in one process.
    """
    file = Path(path).absolute()
    given = read_toml(file)
    for keys, value in [*environment_overrides(environment, TOP_KEYS), *flag_overrides(overrides)]:
        apply_override(given, keys, value)
    return _gateway(given, file) if "devices" in given else _config(given, file)


def _gateway(given: dict[str, Any], file: Path) -> GatewayConfig:
    """Validate the configuration of several devices: what they share, and `[[devices]]`."""
    entries = given.pop("devices")
    if (
        not isinstance(entries, list)
        or not entries
        or not all(isinstance(e, dict) for e in entries)
    ):
        raise SettingError(f"found devices = {entries!r} in {file}, expected [[devices]] tables")
    if "device" in given:
        raise SettingError(f"found `device` above [[devices]] in {file}: set it in each of them")
    if "state" not in given:
        raise SettingError(f"{file} does not set `state`: add it at its top")
    _replace_threshold(given, file)
    head = parse_table(TopLevelConfig, {"state": given.pop("state")}, TableLocation(file))
    state = head.state or file.parent
    found: list[Config] = []
    for number, entry in enumerate(entries):
        name = entry.get("device")
        if not isinstance(name, str) or not _is_name(name):
            raise SettingError(
                f"found devices.{number}.device = {name!r} in {file}, expected a name: letters, "
                "digits, '.', '_', '-', at most 100"
            )
        if "log" in entry:
            raise SettingError(f"found devices.{number}.log in {file}: all devices share one [log]")
        table = {"state": str(state / name)} | _merge_tables(given, entry)
        try:
            found.append(_config(_with_device_name(table, name), file))
        except SettingError as error:
            raise SettingError(f"device {name}: {error}") from error
    _must_be_apart(found, file)
    return GatewayConfig(state, tuple(found), found[0].log)


def _merge_tables(shared: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the shared tables with a device's own values in them; a flag wins over the file."""
    found = dict(shared)
    for name, value in own.items():
        before = found.get(name)
        if isinstance(before, dict) and isinstance(value, dict):
            found[name] = _merge_tables(before, value)
        elif not isinstance(before, TextValue) or isinstance(value, TextValue):
            found[name] = value
    return found


DEVICE_NAME = re.compile(r"(?<!\$)\{device\}")  # templates of messages have ${device}


def _with_device_name(value: Any, name: str) -> Any:
    """Return a value with the device's name in place of {device}."""
    if isinstance(value, str):
        return type(value)(DEVICE_NAME.sub(name, value))
    if isinstance(value, dict):
        return {key: _with_device_name(each, name) for key, each in value.items()}
    return [_with_device_name(each, name) for each in value] if isinstance(value, list) else value


def _must_be_apart(devices: Sequence[Config], file: Path) -> None:
    """Refuse devices of the same name, and those that would use the same place."""
    names = Counter(config.device for config in devices)
    if len(names) < len(devices):
        twice = names.most_common(1)[0][0]
        raise SettingError(f"found two devices named {twice} in {file}: give each its own name")
    taken: dict[tuple[str, object], str] = {}
    for config in devices:
        for what, place in _own_places(config):
            other = taken.setdefault((what, place), config.device)
            if other != config.device:
                raise SettingError(
                    f"{other} and {config.device} in {file} have the same {what}, {place}: "
                    "give each its own, as with {device} in a path"
                )


def _own_places(config: Config) -> Iterator[tuple[str, object]]:
    yield "state folder", config.state
    if config.source.kind == "stdin":
        yield "source", "standard input"
    if config.source.path is not None and config.source.path.is_fifo():
        yield "source", config.source.path  # a line of a pipe is read once
    if config.exchange.kind == "peer":
        yield "exchange.listen", config.exchange.listen
    for sink in config.sinks:
        if sink.kind in ("file", "jsonl") and sink.path not in (None, Path("-")):
            yield "sinks.path", sink.path


def _config(given: dict[str, Any], file: Path) -> Config:
    """Validate the configuration of one device."""
    _replace_threshold(given, file)
    kept = deepcopy(given)
    top, following = TOP_KEYS, given.pop("next", None)
    known = [*top, *TABLES, "sinks"]
    for name in given:
        if name not in known:
            raise unknown_key_error(name, known, file.name)
    head = parse_table(
        TopLevelConfig, {name: given[name] for name in top if name in given}, TableLocation(file)
    )
    if not head.device or head.state is None:
        raise SettingError(f"{file} does not set `device` and `state`: add both at its top")
    parts = {
        name: parse_table(kind, given.get(name, {}), TableLocation(file, name))
        for name, kind in TABLES.items()
    }
    shared = _projection(parts.pop("projection"), "projection" in given, file)
    if shared is None and parts["exchange"].kind != "http":
        raise SettingError(
            f'{file} has no [projection]: add it, or let exchange.kind = "http" ask the fleet'
        )
    if parts["exchange"].kind == "http" and parts["sync"].trust != SyncConfig.trust:
        raise SettingError(
            f'found sync.trust in {file} with exchange.kind = "http", expected none: the server '
            "applies the fleet's trust; change it with edgemerge fleet trust"
        )
    parts["source"] = _name_values(parts["source"], file)
    _check_units(parts["source"], file)
    sinks = _sinks(given.get("sinks", []), file)
    _check_monitor(parts["monitor"], file)
    _warn_of_bare_columns(parts["source"])
    found = Config(head.device, head.state, shared, sinks=sinks, **parts, given=kept, file=file)
    return found if following is None else _with_next(found, following)


REPLACED_FILE = "replaced-the-former"  # in the state folder of a [next] that watches


def _with_next(config: Config, following: object) -> Config:
    """Add the generation that comes next; if it watches already, it is the configuration."""
    if not isinstance(following, dict) or "state" not in following:
        raise SettingError(
            f"found [next] without `state` in {config.file}: give it a state folder of its own"
        )
    former = {name: value for name, value in config.given.items() if name != "next"}
    try:
        found = _config(deepcopy(_merge_tables(former, following)), config.file)
    except SettingError as error:
        raise SettingError(f"[next]: {error}") from error
    if (found.device, found.next) != (config.device, None):
        raise SettingError(f"found `device` or `next` in [next] of {config.file}: leave it out")
    for what, place in _own_places(replace(found, sinks=())):
        if (what, place) in list(_own_places(config)):
            raise SettingError(
                f"[next] in {config.file} has the same {what}, {place}: both run side by side, so "
                "give it its own, and a source that two can read"
            )
    current = current_generation(replace(config, next=found))
    if current is found:
        logger.info("[next] has replaced what is above it: leave out the former tables")
    return current


def current_generation(config: Config) -> Config:
    """Return the next generation if it has replaced this one, else the configuration itself."""
    following = config.next
    return following if following and (following.state / REPLACED_FILE).exists() else config


HELD_FILE = "fleet-configuration.json"  # in the state folder
MAX_HELD_BYTES = 2**20


@dataclass(frozen=True)
class FleetConfiguration:
    """The fleet's configuration on a device.

    Args:
        version: The version in force; 0 for none.
        tables: Its tables.
        seen: The version that was looked at last.
        refused: Why that one is not in force; empty if it is.
        restart: Tables of it that wait for a restart of the agent.
    """

    version: int = 0
    tables: Mapping[str, Any] = field(default_factory=dict)
    seen: int = 0
    refused: str = ""
    restart: tuple[str, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> FleetConfiguration:
        """Read what is held in a state folder; nothing if it is missing or broken."""
        try:
            with (folder / HELD_FILE).open("rb") as file:
                found = json.loads(file.read(MAX_HELD_BYTES))
            held = cls(**{**found, "restart": ()})
            check_tables(held.tables)
        except FileNotFoundError:
            return cls()
        except (OSError, TypeError, ValueError) as error:
            logger.warning(
                "the fleet's configuration on disk cannot be used, and is fetched again",
                extra={"values": {"file": folder / HELD_FILE, "why": error}},
            )
            return cls()
        return held

    def save(self, folder: Path) -> None:
        """Write it to a state folder; a full disk is logged, and detection goes on."""
        try:
            write_atomically(json.dumps(asdict(self)).encode(), folder / HELD_FILE)
        except OSError as error:
            logger.error(
                "the fleet's configuration cannot be saved", extra={"values": {"why": error}}
            )

    def plain(self) -> dict[str, Any]:
        """Return which version is in force, which was refused and why, as plain JSON."""
        found = asdict(self)
        return {name: found[name] for name in ("version", "seen", "refused", "restart")}


def with_fleet_tables(config: Config, tables: object) -> Config:
    """Return the configuration with a fleet's tables below what the device itself says.

    Raises:
        SettingError: The tables set what only the device's own file may, or do not fit it.
    """
    allowed = check_tables(tables)
    if not allowed:
        return config
    below = _with_device_name(deepcopy(allowed), config.device)
    given = deepcopy(dict(config.given))
    former = below.get("monitor"), given.get("monitor")
    if isinstance(former[0], dict) and isinstance(former[1], dict):
        below["monitor"] = without_rival_limit(former[0], former[1])
    sinks = [*given.get("sinks", []), *below.pop("sinks", [])]
    merged = _merge_tables(below, given) | ({"sinks": sinks} if sinks else {})
    merged.pop("next", None)
    found = _config(merged, config.file)
    return replace(found, next=config.next, given=config.given)


def read_fleet_tables(path: Path) -> dict[str, Any]:
    """Read a file with the configuration of a fleet, and check it as far as no device is needed.

    Raises:
        SettingError: It sets what only the device's own file may, or a value that cannot be.
    """
    found = read_toml(path, "give tables such as [monitor]")
    _must_be_known(found, path.name)
    tables = check_tables(found)
    for name, table in tables.items():
        if name == "sinks":
            _sinks(table, path)
        else:
            parsed = parse_table(TABLES[name], table, TableLocation(path, name))
            if name == "monitor":
                _check_monitor(parsed, path)
    return tables


def _must_be_known(tables: Mapping[str, Any], where: str) -> None:
    """Refuse keys that no file may set; others may be for the device's own file only."""
    for name, table in tables.items():
        if name not in (*TABLES, *TOP_KEYS, "sinks", "devices", "next"):
            raise unknown_key_error(name, [*ALLOWED_KEYS, "sinks"], where)
        declared = fields(TABLES[name]) if name in TABLES and isinstance(table, dict) else ()
        known = {key for each in declared for key in (each.name, each.metadata.get("was"))}
        for key in table if declared else ():
            if key not in known:
                allowed = [f"{name}.{each}" for each in ALLOWED_KEYS.get(name, known - {None})]
                raise unknown_key_error(f"{name}.{key}", allowed, where)


def origins_of(config: Config, held: FleetConfiguration) -> dict[str, str]:
    """Return where each value comes from that is not the default, by its key."""
    fleet = f"the fleet's configuration, version {held.version}"
    found = {}
    for name, table in held.tables.items():
        own = config.given.get(name)
        if not isinstance(table, dict):
            found[name] = fleet if own is None else f"{config.file} and {fleet}"
            continue
        if isinstance(own, dict):
            table = without_rival_limit(table, own)
        found |= {f"{name}.{key}": fleet for key in table}
    for name, own in config.given.items():
        if isinstance(own, dict) and name in TABLES:
            place = TableLocation(config.file, name)
            found |= {place.key(key): place.origin(value) for key, value in own.items()}
        else:
            found.setdefault(name, TableLocation(config.file).origin(own))
    return found


FORMER_POLICY = (("learner", "reject_above"), ("threshold", "sigmas"), ("threshold", "window"))
LIMIT_ADVICE = 'use monitor.limit = 4, or monitor.false_alarms = "1 per week"'


def _replace_threshold(given: dict[str, Any], file: Path) -> None:
    """Turn the former table [threshold] into [monitor], and log what to write instead.

    Samples above `reject_above` or a limit that follows the last scores were what kept faults out,
    and did not keep out those that last. A file that says so, and nothing of [monitor], keeps that
    policy, which learns everything else at once.
    """
    former = [
        f"{table}.{name}"
        for table, name in FORMER_POLICY
        if isinstance(given.get(table), dict) and name in given[table]
    ]
    instead: dict[str, Any] = {}
    if former and "monitor" not in given:
        instead = {"learn": "always", "votes": [1, 1]}
        logger.warning(
            "%s without [monitor]: samples are learnt as in former versions, and so is a fault "
            "that lasts. Leave it out, and %s",
            *(" and ".join(former), LIMIT_ADVICE),
        )
    if "threshold" in given:
        instead |= _threshold_as_monitor(given, file)
        words = ", ".join(
            f"{name} = {value if isinstance(value, TextValue) else json.dumps(value)}"
            for name, value in instead.items()
        )
        logger.warning("[threshold] is now [monitor]: write %s there", words or "its settings")
    new = given.setdefault("monitor", {}) if instead else {}
    if not isinstance(new, dict):
        return
    for name, value in instead.items():
        # The new name wins, but a flag wins over the file under either name.
        flag = isinstance(value, TextValue) and not isinstance(new.get(name), TextValue)
        if name not in new or flag:
            new[name] = value


def _threshold_as_monitor(given: dict[str, Any], file: Path) -> dict[str, Any]:
    raw = given.pop("threshold")
    old = parse_table(ThresholdConfig, raw, TableLocation(file, "threshold"))
    gone = [name for name in ("sigmas", "window") if getattr(old, name) is not None]
    if gone and "monitor" in given:
        raise SettingError(
            f"found threshold.{gone[0]} in {file}, expected [monitor] alone: that limit followed "
            f"the last scores, and so a fault that lasts; {LIMIT_ADVICE}"
        )
    found = {name: raw[name] for name in ("limit", "votes") if name in raw}
    if old.quantile is not None:
        found["false_alarms"] = float(f"{1.0 - old.quantile:.6g}")
    return found


def _check_monitor(said: MonitorConfig, file: Path) -> None:
    """Refuse settings that no monitor takes; `commissioning` also depends on the projection."""
    smallest = Detector(Projection(n_inputs=1, n_hidden=1))
    try:
        Monitor(smallest, **said.options)
    except SettingError as error:
        raise SettingError(f"[monitor] in {file}: {error}") from error


def _name_values(source: SourceConfig, file: Path) -> SourceConfig:
    """Check nodes and registers, and let `columns` name each value of them."""
    wanted = {"opcua": source.nodes, "modbus": source.registers}
    for kind, key in (("opcua", "nodes"), ("modbus", "registers")):
        if bool(wanted[kind]) != (source.kind == kind):
            raise SettingError(
                f"found source.{key} = {list(wanted[kind])} in {file} with source.kind = "
                f'"{source.kind}", expected some for "{kind}", and none for others'
            )
    if source.kind not in wanted:
        return source
    if "@" in urlsplit(source.endpoint or "").netloc:  # it would be in logs and reports
        raise SettingError(
            f"found a user in source.endpoint of {file}, expected none: set source.username and "
            "source.password_file"
        )
    if source.security_policy != "none" and not (source.certificate_file and source.key_file):
        raise SettingError(
            f"source.security_policy in {file} needs source.certificate_file and source.key_file"
        )
    names = value_names(source.nodes, source.registers)
    columns = tuple(map(str, source.columns)) or names
    if len(columns) != len(names):
        raise SettingError(
            f"found {len(columns)} source.columns in {file}, expected {len(names)}: a name for "
            "each value, in their order, or none"
        )
    return replace(source, columns=columns)


def _check_units(source: SourceConfig, file: Path) -> None:
    if source.units and source.columns and len(source.units) != len(source.columns):
        raise SettingError(
            f"found {len(source.units)} source.units in {file}, expected {len(source.columns)}, "
            'one for each of source.columns: "" where there is none'
        )


def _warn_of_bare_columns(source: SourceConfig) -> None:
    """Log how to write column numbers so that they count from 1, as on the command line."""
    for name, columns in (("columns", source.columns), ("time", time_columns(source.time))):
        numbers = [each for each in columns if isinstance(each, int) and each >= 0]
        if numbers:
            texts = ", ".join(f'"{each + 1}"' for each in numbers)
            bare = ", ".join(map(str, numbers))
            logger.warning(
                "source.%s: bare numbers (%s) count from 0. Write %s in quotes to count from 1, "
                "as on the command line.",
                name,
                bare,
                texts,
            )


def _sinks(given: object, file: Path) -> tuple[SinkConfig, ...]:
    if not isinstance(given, list):
        raise SettingError(f"found sinks = {given!r} in {file}, expected [[sinks]] tables")
    return tuple(
        parse_table(SinkConfig, each, TableLocation(file, f"sinks.{i}"))
        for i, each in enumerate(given)
    )


def _projection(config: ProjectionConfig, given: bool, file: Path) -> Projection | None:  # noqa: FBT001 - private
    if not given:
        return None
    settings = asdict(config)
    saved = settings.pop("file")
    if saved is not None:
        return _load_projection(saved, config, file)
    settings["n_inputs"] = config.n_inputs or len(config.names or ())
    try:
        return Projection(**settings)
    except EdgemergeError as error:
        raise SettingError(f"[projection] in {file}: {error}") from error


def _load_projection(saved: Path, config: ProjectionConfig, file: Path) -> Projection:
    if config != ProjectionConfig(file=saved):
        raise SettingError(f"[projection] in {file} has both a file and settings: keep one of them")
    try:
        found = load(saved)
    except OSError as error:
        raise SettingError(f"projection.file {saved}, of {file}: {error.strerror}") from error
    if not isinstance(found, Projection):
        raise SettingError(f"{saved} holds a {type(found).__name__}, expected a Projection")
    return found
