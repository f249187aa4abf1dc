"""Settings of a run and of a node, checked; and the projection that a run's settings describe.

A run's settings are in `[tool.flwr.app.config]` of the app, and `flwr run --run-config` overrides
them. A node's are in `flower-supernode --node-config`, and come first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Any

from edgemerge.core.errors import SettingError
from edgemerge.core.ledger import must_be_name
from edgemerge.core.projection import Projection
from edgemerge.exchange.stored_contributions import safe_name
from edgemerge.files import load

Config = Mapping[str, Any]

CONTINUE, STOP = "go-on", "stop"
PATH_FIELDS = ("device", "partition")  # what a path may name in braces


@dataclass(frozen=True)
class ServerConfig:
    """The settings of a run, with their defaults."""

    rounds: int = 1
    min_nodes: int = 1  # that are waited for before the first is asked
    min_answers: int = 1  # that count, in each round, or the run ends
    timeout_s: float = 60.0  # for each wait
    on_failure: str = CONTINUE
    devices: tuple[str, ...] | None = None
    no_forgetting: bool = False  # refuse sums that fall: no device forgets, or has a bank
    ledger: Path | None = None  # kept from run to run
    out: Path | None = None  # the folder of the result

    @classmethod
    def of(cls, config: Config) -> ServerConfig:
        """Read the settings of a run."""
        names = tuple(filter(None, map(str.strip, _text(config, "devices").split(","))))
        for name in names:
            must_be_name("device", name)
        return cls(
            rounds=_int(config, "rounds", cls.rounds, least=1),
            min_nodes=_int(config, "min-nodes", cls.min_nodes, least=1),
            min_answers=_int(config, "min-answers", cls.min_answers, least=1),
            timeout_s=_seconds(config, "timeout-s", cls.timeout_s),
            on_failure=_choice(config, "on-failure", (CONTINUE, STOP)),
            devices=names or None,
            no_forgetting=_flag(config, _given_name(config, "no-forgetting", former="growing")),
            ledger=_path(config, "ledger"),
            out=_path(config, "out"),
        )


@dataclass(frozen=True)
class NodeConfig:
    """Which device a node is, where its stats come from, and where the answer goes."""

    device: str
    state: Path | None = None  # a file of `save`: a detector, bank, stats or contribution
    data: Path | None = None  # samples: .npy or .csv
    merged_file: Path | None = None  # where to save what others have seen, too
    incarnation: int = 0
    gate: float | None = None  # times N: the fresh samples of a release; None: 16, or more
    partition: int | None = None
    partitions: int | None = None

    @property
    def file(self) -> Path | None:
        """The file beside which the release history is kept; None for data without a gate."""
        return self.state or (self.data if self.gate != 0 else None)

    @classmethod
    def of(cls, node: Config, run: Config) -> NodeConfig:
        """Read the settings of a node, and those of the run where it has none."""
        config = {**run, **node}
        partition = _optional_int(config, "partition-id")
        device = _device(config, partition)
        places = {"device": device, "partition": partition}
        state, data = (_path(config, name, places) for name in ("state", "data"))
        if state and data:
            raise SettingError("found both `state` and `data`, expected one of both")
        merged_file = _given_name(config, "merged-file", former="told")
        return cls(
            device=device,
            state=state,
            data=data,
            merged_file=_path(config, merged_file, places),
            incarnation=_int(config, "incarnation", cls.incarnation, least=0),
            gate=_number(config, "gate", 0.0) if "gate" in config else cls.gate,
            partition=partition,
            partitions=_optional_int(config, "num-partitions"),
        )


def _device(config: Config, partition: int | None) -> str:
    name = _text(config, "device")
    if not name and partition is None:
        raise SettingError(
            "this node does not say which device it is: start it with "
            "--node-config 'device=\"pump-3\"'"
        )
    name = name or f"device-{partition}"
    must_be_name("device", name)
    return name


def _given_name(config: Config, name: str, *, former: str) -> str:
    """Return the former name of a setting if only that is given."""
    return former if config.get(former) and not config.get(name) else name


def _text(config: Config, name: str) -> str:
    value = config.get(name, "")
    if not isinstance(value, str):
        raise SettingError(f"found {name} = {value!r}, expected text in quotes")
    return value


def _int(config: Config, name: str, default: int, *, least: int) -> int:
    value = config.get(name, default)
    if type(value) is not int or not least <= value < 2**63:
        raise SettingError(f"found {name} = {value!r}, expected a whole number of {least} or more")
    return value


def _optional_int(config: Config, name: str) -> int | None:
    if name not in config:
        return None
    text = str(config[name])  # some of Flower's engines give it as text
    return _int({name: int(text) if text.isdecimal() else config[name]}, name, 0, least=0)


def _number(config: Config, name: str, default: float) -> float:
    value = config.get(name, default)
    if type(value) not in (int, float) or not 0.0 <= value < float("inf"):
        raise SettingError(f"found {name} = {value!r}, expected a number of 0 or more")
    return float(value)


def _seconds(config: Config, name: str, default: float) -> float:
    seconds = _number(config, name, default)
    if not seconds:
        raise SettingError(f"found {name} = 0, expected a time in seconds")
    return seconds


def _flag(config: Config, name: str) -> bool:
    value = config.get(name, False)
    if type(value) is not bool:
        raise SettingError(f"found {name} = {value!r}, expected true or false")
    return value


def _choice(config: Config, name: str, words: tuple[str, ...]) -> str:
    value = _text(config, name) or words[0]
    if value not in words:
        raise SettingError(f"found {name} = {value!r}, expected one of {', '.join(words)}")
    return value


def _path(config: Config, name: str, places: Mapping[str, Any] | None = None) -> Path | None:
    pattern = _text(config, name)
    if not pattern or places is None:
        return Path(pattern) if pattern else None
    try:
        named = {field for _, field, _, _ in Formatter().parse(pattern) if field is not None}
    except ValueError:
        named = {pattern}
    if named - set(PATH_FIELDS) or ("partition" in named and places["partition"] is None):
        known = "{device}" if places["partition"] is None else "{device} and {partition}"
        raise SettingError(f"found {name} = {pattern!r}, in which only {known} can be named")
    return Path(pattern.format(**{place: safe_name(str(value)) for place, value in places.items()}))


PROJECTION_SETTINGS = (
    "n-inputs",
    "n-hidden",
    "seed",
    "activation",
    "low",
    "high",
    "width",
    "grid-bits",
)
RANGE_SETTINGS = ("low", "high")  # one number, or one for each input with commas between


def projection_from_settings(config: Mapping[str, Any]) -> Projection:
    """Return the projection in the file `projection`, or build it from the settings."""
    if path := config.get("projection"):
        thing: Any = load(str(path))
        found: Projection = getattr(getattr(thing, "stats", thing), "projection", thing)
        return found
    given = {name.replace("-", "_"): config[name] for name in PROJECTION_SETTINGS if name in config}
    if not given.get("n_inputs"):
        raise SettingError(
            "the run does not say what devices agree on: set `projection` to a file of any "
            "device, or `n-inputs`, `low` and `high`"
        )
    return Projection(
        **given | {end: _parse_range(end, given[end]) for end in RANGE_SETTINGS if end in given}
    )


def _parse_range(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return [float(part) for part in value.split(",")]
    except ValueError as error:
        raise SettingError(f"found {name} = {value!r}, expected numbers with commas") from error
