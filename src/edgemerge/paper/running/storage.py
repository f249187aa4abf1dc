"""What a run keeps on disk: rows as CSV, the record as JSON, figures, and a cache of finished jobs.

A result is NAME.csv, NAME.json and its figures. The cache holds one JSON file for each job, so that
a run that was stopped goes on.
"""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from io import BytesIO, StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote

from edgemerge import EdgemergeError
from edgemerge.files import write_atomically
from edgemerge.paper.plan import (
    FinishedJob,
    Job,
    JobExecutor,
    JobFunction,
    Row,
    Rows,
    Scope,
    job_label,
    run_here,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# Results can be made again, so they need not wait for the disk; anyone may read them.
write_file = partial(write_atomically, mode="umask", parents=True, sync=False)

ColumnTypes = dict[str, str]  # of each column: "str", "int" or "float"
_PARSERS: dict[str, Callable[[str | int | float], str | int | float]] = {
    "str": str,
    "int": int,
    "float": float,
}


class RowError(EdgemergeError, ValueError):
    """Rows that could not be written and read again without loss."""


def checked_rows(rows: Rows, whose: str) -> Rows:
    """Give the rows as they are after writing and reading; refuse what would not survive that.

    >>> checked_rows([{"auc": float("nan")}], "auc")
    Traceback (most recent call last):
    edgemerge.paper.running.storage.RowError: auc: found auc = nan, expected text or a finite number
    """
    return [{key: _checked_value(key, value, whose) for key, value in row.items()} for row in rows]


def _checked_value(key: str, value: object, whose: str) -> str | int | float:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    raise RowError(f"{whose}: found {key} = {value!r}, expected text or a finite number")


def column_types(rows: Rows, whose: str) -> ColumnTypes:
    """Tell the type of each column, in the order in which columns appear.

    >>> column_types([{"device": "a", "auc": 1}, {"device": "b", "auc": 0.5}], "auc")
    {'device': 'str', 'auc': 'float'}
    """
    seen: dict[str, set[str]] = {}
    for row in rows:
        for key, value in row.items():
            seen.setdefault(key, set()).add(type(value).__name__)
    return {key: _column_type(key, found, whose) for key, found in seen.items()}


def _column_type(key: str, found: set[str], whose: str) -> str:
    if len(found) > 1 and "str" in found:
        raise RowError(f"{whose}: column {key} holds text and numbers, expected one of both")
    return "float" if "float" in found else found.pop()


def to_csv(rows: Rows, columns: Mapping[str, str]) -> str:
    """Write rows as a table; a row without some column has an empty cell there."""
    text = StringIO()
    table = csv.DictWriter(text, list(columns), lineterminator="\n")
    table.writeheader()
    for row in rows:
        table.writerow({key: _PARSERS[columns[key]](value) for key, value in row.items()})
    return text.getvalue()


def from_csv(text: str, columns: Mapping[str, str], whose: str) -> Rows:
    """Read what `to_csv` wrote; an empty cell is empty text, or no number at all."""
    table = csv.DictReader(StringIO(text, newline=""))
    if list(table.fieldnames or []) != list(columns):
        found = ", ".join(table.fieldnames or ["nothing"])
        raise RowError(f"{whose}: found the columns {found}, expected {', '.join(columns)}")
    return [_parse_row(cells, columns, f"{whose}, line {table.line_num}") for cells in table]


def _parse_row(cells: Mapping[str, str | None], columns: Mapping[str, str], whose: str) -> Row:
    if None in cells or None in cells.values():
        raise RowError(f"{whose}: expected {len(columns)} cells; restore the file, or run it again")
    try:
        kept = {key: cell for key, cell in cells.items() if cell or columns[key] == "str"}
        return {key: _PARSERS[columns[key]](cell or "") for key, cell in kept.items()}
    except ValueError as error:
        raise RowError(f"{whose}: {error}; restore the file, or run it again") from error


RERUN = "run `edgemerge paper {name}` again"


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
    columns: ColumnTypes = field(default_factory=dict)


@dataclass(frozen=True)
class SavedResult:
    """A result as it is in a folder."""

    record: Record
    rows: Rows


def save_result(folder: Path, record: Record, rows: Rows) -> SavedResult:
    """Write rows and record, and give them as they will be read."""
    name = record.result
    rows = checked_rows(rows, name)
    columns = column_types(rows, name)
    document = json.dumps({**asdict(record), "columns": columns}, indent=2, ensure_ascii=False)
    write_file(to_csv(rows, columns).encode(), folder / f"{name}.csv")
    write_file(f"{document}\n".encode(), folder / f"{name}.json")
    return SavedResult(
        Record(**json.loads(document)), from_csv(to_csv(rows, columns), columns, name)
    )


def read_result(folder: Path, name: str) -> SavedResult | None:
    """Read a result; None if it is not there."""
    table, document = folder / f"{name}.csv", folder / f"{name}.json"
    if not table.exists() and not document.exists():
        return None
    try:
        record = Record(**json.loads(_read_text(document)))
    except (ValueError, TypeError) as error:
        raise RowError(f"{document} is damaged ({error}): {RERUN.format(name=name)}") from error
    return SavedResult(record, from_csv(_read_text(table), record.columns, str(table)))


def _read_text(path: Path) -> str:
    if not path.exists():
        raise RowError(f"{path} is missing: {RERUN.format(name=path.stem)}")
    return path.read_bytes().decode("utf-8")


def figure_name(result: str, end: str) -> str:
    """Name the file of a figure.

    >>> figure_name("auc", "har"), figure_name("latency", "")
    ('auc-har.png', 'latency.png')
    """
    return f"{result}-{end}.png" if end else f"{result}.png"


def figure_png(figure: Figure) -> bytes:
    """Draw a figure; the same figure gives the same bytes."""
    file = BytesIO()
    figure.savefig(file, format="png", facecolor="white", metadata={"Software": None})
    return file.getvalue()


def save_figures(folder: Path, result: str, figures: dict[str, Figure]) -> list[Path]:
    """Write the figures of a result."""
    paths = [folder / figure_name(result, end) for end in figures]
    for path, figure in zip(paths, figures.values(), strict=True):
        write_file(figure_png(figure), path)
    return paths


CACHE_FORMAT = 1  # of the files; raised when what a job computes changes though its settings do not


class JobListener(Protocol):
    """Somebody who wants to know how far the jobs are."""

    def jobs_added(self, jobs: Sequence[Job]) -> None:
        """Hear which jobs there are."""

    def done(self, done: FinishedJob, *, before: bool) -> None:
        """Hear of a job that is done; `before`: in an earlier run."""


class NullListener:
    """Does not want to know."""

    def jobs_added(self, jobs: Sequence[Job]) -> None:
        """Ignore it."""

    def done(self, done: FinishedJob, *, before: bool) -> None:
        """Ignore it."""


class JobCache:
    """Lets jobs be done, and keeps what they found in a folder."""

    def __init__(
        self, folder: Path, do: JobExecutor = run_here, watch: JobListener | None = None
    ) -> None:
        """Remember where to keep, who does the jobs, and who watches."""
        self.folder, self.do, self.watch = folder, do, watch or NullListener()

    def spread(self, work: JobFunction, jobs: Sequence[Job], scope: Scope) -> Iterator[Rows]:
        """Give each job's rows in the order of the jobs; what is kept is not done again."""
        _check_unique([self.path(job, scope) for job in jobs])
        self.watch.jobs_added(jobs)
        found = {job: done.rows for job, done in self._kept(jobs, scope)}
        for done in self.do(work, interleave([job for job in jobs if job not in found]), scope):
            found[done.job] = self.keep(done, scope)
            self.watch.done(done, before=False)
        return (found[job] for job in jobs)

    def _kept(self, jobs: Sequence[Job], scope: Scope) -> Iterator[tuple[Job, FinishedJob]]:
        for job in jobs:
            done = self.kept(job, scope)
            if done is not None:
                self.watch.done(done, before=True)
                yield job, done

    def kept(self, job: Job, scope: Scope) -> FinishedJob | None:
        """Give a job that was done before under the same settings; a damaged file is none."""
        try:
            record = json.loads(self.path(job, scope).read_text(encoding="utf-8"))
            if record["head"] != _cache_key(job, scope):
                return None
            return FinishedJob(
                job, checked_rows(record["rows"], job_label(job)), record.get("seconds")
            )
        except (FileNotFoundError, ValueError, LookupError, TypeError, AttributeError):
            return None

    def keep(self, done: FinishedJob, scope: Scope) -> Rows:
        """Write a job's rows, whole or not at all, and give them as they will be read."""
        path, rows = self.path(done.job, scope), checked_rows(done.rows, job_label(done.job))
        record = {"head": _cache_key(done.job, scope), "seconds": done.seconds, "rows": rows}
        write_file(json.dumps(record, allow_nan=False).encode(), path)
        return rows

    def path(self, job: Job, scope: Scope) -> Path:
        """Say where a job's rows are kept."""
        size = "quick" if scope.quick else "full"
        part = f"-{quote(job.part, safe='')}" if job.part else ""
        place = self.folder / job.result / job.dataset / job.method / f"{size}-seed-{scope.seed}"
        return place / f"trial-{job.trial:03d}{part}.json"


def interleave(jobs: Sequence[Job]) -> list[Job]:
    """Put jobs in the order to do them: one of each kind first, so that all are timed early."""
    seen: Counter[tuple[str, ...]] = Counter()
    turns = []
    for job in jobs:
        turns.append(seen[job_kind(job)])
        seen[job_kind(job)] += 1
    return [jobs[i] for i in sorted(range(len(jobs)), key=turns.__getitem__)]


def job_kind(job: Job) -> tuple[str, str, str]:
    """Give what jobs that take about equally long have in common."""
    return job.result, job.dataset, job.method


def _cache_key(job: Job, scope: Scope) -> dict[str, object]:
    return {"format": CACHE_FORMAT, **asdict(job), "seed": scope.seed, "quick": scope.quick}


def _check_unique(paths: Sequence[Path]) -> None:
    path, times = Counter(paths).most_common(1)[0] if paths else (None, 0)
    if times > 1:
        raise RowError(f"{times} jobs would be kept in {path}: give each a `part` of its own")
