"""A result in a folder: NAME.csv with its rows, NAME.json with what made them, its figures."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from edgemerge.paper.plan import Rows
from edgemerge.paper.running.rows import RowError, Types, from_csv, plain, to_csv, types
from edgemerge.paper.running.whole import write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AGAIN = "run `edgemerge paper {name}` again"


@dataclass(frozen=True)
class Record:
    """How rows were made, for whoever wants to make them again."""

    result: str
    date: str  # UTC, ISO 8601
    version: str
    seed: int
    quick: bool
    trials: int
    baseline_trials: int
    baselines: str = ""  # why there are none, if so
    settings: dict[str, list[str]] = field(default_factory=dict)  # of each data set and method
    jobs: int = 0
    jobs_before: int = 0  # of them, done in an earlier run
    seconds: float = 0.0  # of this run
    job_seconds: float = 0.0  # of all jobs, one after the other, as far as known
    machine: dict[str, str | int] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)
    data: dict[str, str] = field(default_factory=dict)  # SHA-256 over the files of each data set
    columns: Types = field(default_factory=dict)


@dataclass(frozen=True)
class Kept:
    """A result as it is in a folder."""

    record: Record
    rows: Rows


def save(folder: Path, record: Record, rows: Rows) -> Kept:
    """Write rows and record, and give them as they will be read."""
    name = record.result
    rows = plain(rows, name)
    columns = types(rows, name)
    document = json.dumps({**asdict(record), "columns": columns}, indent=2, ensure_ascii=False)
    write(to_csv(rows, columns).encode(), folder / f"{name}.csv")
    write(f"{document}\n".encode(), folder / f"{name}.json")
    return Kept(Record(**json.loads(document)), from_csv(to_csv(rows, columns), columns, name))


def read(folder: Path, name: str) -> Kept | None:
    """Read a result; None if it is not there."""
    table, document = folder / f"{name}.csv", folder / f"{name}.json"
    if not table.exists() and not document.exists():
        return None
    try:
        record = Record(**json.loads(_text(document)))
    except (ValueError, TypeError) as error:
        raise RowError(f"{document} is damaged ({error}): {AGAIN.format(name=name)}") from error
    return Kept(record, from_csv(_text(table), record.columns, str(table)))


def _text(path: Path) -> str:
    if not path.exists():
        raise RowError(f"{path} is missing: {AGAIN.format(name=path.stem)}")
    return path.read_bytes().decode("utf-8")


def file_name(result: str, end: str) -> str:
    """Name the file of a figure.

    >>> file_name("auc", "har"), file_name("latency", "")
    ('auc-har.png', 'latency.png')
    """
    return f"{result}-{end}.png" if end else f"{result}.png"


def png(figure: Figure) -> bytes:
    """Draw a figure; the same figure gives the same bytes."""
    file = BytesIO()
    figure.savefig(file, format="png", facecolor="white", metadata={"Software": None})
    return file.getvalue()


def draw(folder: Path, result: str, figures: dict[str, Figure]) -> list[Path]:
    """Write the figures of a result."""
    paths = [folder / file_name(result, end) for end in figures]
    for path, figure in zip(paths, figures.values(), strict=True):
        write(png(figure), path)
    return paths
