"""A configuration for a file of readings: features, ranges and sizes that suit what was found.

It is a start that works without tuning; the TOML file that it becomes says what each choice means.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgemerge.agent.config import Config, FeaturesConfig, SinkConfig, SourceConfig
from edgemerge.agent.inspection import ColumnReport, FileReport
from edgemerge.agent.runner import make_features
from edgemerge.core.errors import SampleError, SettingError
from edgemerge.core.monitor import COMMISSIONING_PER_HIDDEN
from edgemerge.core.patterns import inliers
from edgemerge.core.projection import Projection

Array = NDArray[np.float64]
FeatureKind = Literal["raw", "window", "spectrum"]

SPECTRUM_HZ = 100.0  # readings a second from which a spectrum tells most
WINDOW_HZ = 2.0  # and from which statistics of windows do
MAX_SPECTRUM_COLUMNS, MAX_WINDOW_COLUMNS = 8, 32
WINDOW_S = 5.0  # seconds in a window of statistics
MIN_SAMPLES = 200  # fewer samples than that tell too little: then shorter windows, or none
HIDDEN = (64, 32, 16, 8)
COMMISSIONING_SHARE = 0.5  # of the file's samples at most
MARGIN = 0.1  # of the range, on either side


@dataclass(frozen=True, eq=False)
class Proposal:
    """A configuration, the projection that it needs, and what was noticed on the way."""

    config: Config
    projection: Projection
    samples: int
    remarks: tuple[str, ...]

    @property
    def commissioning(self) -> int:
        """The samples after which watching begins."""
        return COMMISSIONING_PER_HIDDEN * self.projection.n_hidden


def choose_columns(report: FileReport, names: Sequence[str]) -> list[ColumnReport]:
    """Return the columns of these names or numbers, or all that can be watched."""
    if not names:
        found = report.usable()
        if not found:
            kinds = ", ".join(f"{c.name}: {c.problem or c.kind}" for c in report.columns)
            raise SampleError(f"found no column of numbers that change ({kinds}), expected one")
        return found
    known = {column.name: column for column in report.columns}
    known |= {str(c.number): c for c in report.columns if str(c.number) not in known}
    missing = [name for name in names if name not in known]
    if missing:
        raise SettingError(
            f"found no column {missing[0]!r}, expected some of "
            f"{', '.join(column.name for column in report.columns)}"
        )
    return [known[name] for name in names]


def propose(
    path: Path,
    report: FileReport,
    columns: Sequence[ColumnReport],
    *,
    device: str,
    features: FeatureKind | None = None,
    n_hidden: int | None = None,
    seed: int = 0,
    time_zone: str | None = None,
    follow: bool = False,
) -> Proposal:
    """Choose features, ranges and sizes for a file.

    Args:
        path: The file.
        report: What was found in it.
        columns: Those to watch.
        device: The name of the device.
        features: What samples are made of; None chooses by the rate and the number of columns.
        n_hidden: The hidden values; None takes as many as half of the samples can commission.
        seed: The seed of the projection; all devices of a fleet need the same.
        time_zone: The time zone of times that name none; None means UTC.
        follow: Whether the file grows, and is followed.
    """
    readings = report.readings(columns)
    chosen = _features(features, report, readings)
    source = _source(path, report, columns, time_zone, follow=follow)
    state, sinks = Path(f"{device}-state"), (SinkConfig(kind="file", path=Path(f"{device}.jsonl")),)
    config = Config(device, state, source=source, features=chosen, sinks=sinks)
    samples = _samples(config, readings)
    if not len(samples):
        raise SampleError(f"found {len(readings)} complete rows, expected {chosen.length} at least")
    hidden = n_hidden or _hidden(len(samples))
    names = make_features(config).names([column.name for column in columns])
    kept = samples[inliers(samples)] if len(samples) >= MIN_SAMPLES else samples
    settings: dict[str, Any] = {"n_hidden": hidden, "seed": seed, "activation": "tanh"}
    shared = Projection.of_data(kept, margin=MARGIN, names=_unique(names), **settings)
    return Proposal(config, shared, len(samples), tuple(_remarks(report, columns, samples, hidden)))


def _features(kind: FeatureKind | None, report: FileReport, readings: Array) -> FeaturesConfig:
    rate, columns = report.rate_hz or 0.0, readings.shape[1]
    if kind is None:
        kind = "raw"
        if rate >= SPECTRUM_HZ and columns <= MAX_SPECTRUM_COLUMNS:
            kind = "spectrum"
        elif rate >= WINDOW_HZ and columns <= MAX_WINDOW_COLUMNS:
            kind = "window"
        if kind != "raw" and len(readings) < MIN_SAMPLES * 8:
            kind = "raw"  # too few readings for windows
    if kind == "raw":
        return FeaturesConfig()
    longest = max(8, len(readings) // MIN_SAMPLES)
    if kind == "window":
        length = min(max(8, round(WINDOW_S * rate)), longest, 512)
        return FeaturesConfig(kind="window", length=length)
    if not rate:
        raise SettingError("a spectrum needs the rate of readings: the file has no column of times")
    length = 2 ** int(np.log2(min(max(rate / 2.0, 64.0), longest, 1024.0)))
    bands = min(length // 4, 32 if columns <= 2 else 16)
    return FeaturesConfig(kind="spectrum", length=length, bands=bands, rate_hz=rate)


def _source(
    path: Path,
    report: FileReport,
    columns: Sequence[ColumnReport],
    time_zone: str | None,
    *,
    follow: bool,
) -> SourceConfig:
    by_name = report.header
    every = len(columns) == len(report.columns) - (report.time is not None)
    names = tuple(c.name if by_name else str(c.number) for c in columns)
    source = SourceConfig(
        kind="tail" if follow else report.format,
        format=report.format,
        path=path,
        columns=() if every and not by_name else names,
        time=report.time,
    )
    if report.format == "jsonl":
        return replace(source, time_format=report.time_format, time_zone=time_zone)
    return replace(
        source,
        header=report.header,
        delimiter=report.delimiter,
        decimal=report.decimal,
        skip_lines=report.skip_lines,
        time_format=report.time_format,
        time_zone=time_zone,
    )


def _samples(config: Config, readings: Array) -> Array:
    features = make_features(config)
    found = [sample for row in readings if (sample := features.push(row)) is not None]
    return np.array(found).reshape(len(found), -1)


def _hidden(samples: int) -> int:
    fitting = [n for n in HIDDEN if COMMISSIONING_PER_HIDDEN * n <= COMMISSIONING_SHARE * samples]
    return fitting[0] if fitting else HIDDEN[-1]


def _unique(names: Sequence[str]) -> tuple[str, ...] | None:
    return tuple(names) if len(set(names)) == len(names) else None


def _remarks(
    report: FileReport, columns: Sequence[ColumnReport], samples: Array, hidden: int
) -> list[str]:
    found = []
    if report.skipped:
        found.append(f"{report.skipped:,} rows do not fit the others and will be skipped")
    missing = sum(column.missing for column in columns)
    if missing:
        found.append(f"{missing:,} cells have no number; their rows will be skipped")
    if report.gaps:
        found.append(f"{report.gaps:,} gaps in time")
    if report.backward:
        found.append(f"{report.backward:,} rows are older than the row before them")
    if not report.zone_is_known:
        found.append("times name no zone and are read as UTC: set source.time_zone if they are not")
    need = COMMISSIONING_PER_HIDDEN * hidden
    if len(samples) < need:
        found.append(f"{len(samples):,} samples are fewer than the {need:,} for commissioning")
    return found


def to_toml(proposal: Proposal, projection_file: Path) -> str:
    """Return the configuration as a commented TOML file."""
    config = proposal.config
    source, features = config.source, config.features
    lines = [
        f"# Watches {source.path}; see docs/reference/agent-configuration.md for all settings.",
        f"device = {_toml(config.device)}",
        f"state = {_toml(config.state)}  # what the agent keeps; delete it to start anew",
        "",
        "[projection]  # the same file on all devices that share what they learn",
        f"file = {_toml(projection_file)}",
        "",
        "[source]",
        f'kind = {_toml(source.kind)}  # "tail" follows a file that grows, "csv" reads it once',
    ]
    if source.kind == "tail":
        lines.append(f"format = {_toml(source.format)}")
    lines.append(f"path = {_toml(source.path)}")
    usual = SourceConfig()
    names = ("columns", "time", "time_format", "time_zone", "header", "delimiter", "decimal")
    for name in (*names, "skip_lines"):
        value = getattr(source, name)
        if value != getattr(usual, name):
            lines.append(f"{name} = {_toml(value)}")
    lines += ["", "[features]  # what a sample is made of", f"kind = {_toml(features.kind)}"]
    if features.kind != "raw":
        lines.append(f"length = {features.length}  # readings in a window")
    if features.kind == "window":
        lines.append(f"statistics = {_toml(features.statistics)}")
    if features.kind == "spectrum":
        lines += [f"bands = {features.bands}", f"rate_hz = {features.rate_hz:g}"]
    lines += [
        "",
        "[learner]",
        'kind = "bank"  # several kinds of normal; "detector" knows one',
        "",
        "[monitor]",
        f"# Learns what is normal from the first {proposal.commissioning:,} samples, then watches.",
        '# Set commissioning to a number of samples, or to a time such as "2 hours".',
        'limit = 4  # or: false_alarms = "1 per week"',
        "",
        "[[sinks]]  # where results go; the log on the terminal says when an episode begins",
        'kind = "file"',
        f"path = {_toml(config.sinks[0].path)}",
        "",
    ]
    return "\n".join(lines)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, int | float):
        return str(value)
    return json.dumps(str(value), ensure_ascii=False)  # TOML's basic strings are like JSON's
