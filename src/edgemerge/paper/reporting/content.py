"""What the report says, whatever its format: sections, tables, claims, and how results were made.

All of it is read from the CSV and JSON files of a folder of results.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from math import floor, log10
from pathlib import Path

from matplotlib.figure import Figure

from edgemerge.paper.data import terms
from edgemerge.paper.plan import Claim, Row, Rows
from edgemerge.paper.plotting import LABELS
from edgemerge.paper.results import Result
from edgemerge.paper.running import result_files
from edgemerge.paper.running.progress import format_duration
from edgemerge.paper.running.result_files import Record, RowError

DIGITS = 3
CellValue = str | int | float | None


@dataclass(frozen=True)
class Table:
    """Cells as text, under headings; which columns are numbers, which cells stand out."""

    title: str
    head: list[str]
    lines: list[list[str]]
    numbers: list[bool]
    bold: Collection[tuple[int, int]] = field(default_factory=frozenset)  # line, column


def make_table(rows: Rows, title: str) -> Table:
    """Write rows as a table; columns are in the order in which they appear."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    columns = [format_column([row.get(key) for row in rows]) for key in keys]
    lines = [list(line) for line in zip(*columns, strict=True)]
    return Table(title, [key.replace("_", " ") for key in keys], lines, _numbers(rows, keys))


def _numbers(rows: Rows, keys: Sequence[str]) -> list[bool]:
    def numeric(row: Row, key: str) -> bool:
        return not isinstance(row.get(key, 0), str)

    return [all(numeric(row, key) for row in rows) for key in keys]


def format_column(values: Sequence[CellValue]) -> list[str]:
    """Write values that stand below each other.

    >>> format_column([0.5, 0.89731, 1.0])
    ['0.500', '0.897', '1.000']
    >>> format_column([1234567, 12, None])
    ['1,234,567', '12', '']
    >>> format_column([12.3456, 1500.0])
    ['12', '1,500']
    >>> format_column([0.00012, 3.0])
    ['0.00012', '3']
    """
    sizes = [abs(value) for value in values if isinstance(value, float) and value]
    digits = _digits(max(sizes)) if sizes else 0
    alike = not sizes or min(sizes) >= 10.0 ** (1 - digits)
    return [_format_cell(value, digits if alike else None) for value in values]


def _digits(size: float) -> int:
    """Give the digits after the point that numbers up to this size deserve."""
    order = floor(log10(size))
    return DIGITS - 1 - order if order < -1 else max(0, DIGITS - max(0, order))


def _format_cell(value: CellValue, digits: int | None) -> str:
    match value:
        case None:
            return ""
        case int():
            return f"{value:,}"
        case float() if digits is not None:
            return f"{value:,.{digits}f}"
        case float():
            return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{DIGITS}g}"
    return str(value)


MAX_ROWS_SHOWN = 40  # rows that are shown without asking for a smaller table
REPORT_TITLE = "The paper's evaluation, reproduced"
ABOUT = (
    "Ito, Tsukada and Matsutani, *An On-Device Federated Learning Approach for Cooperative Model "
    "Update between Edge Devices* (IEEE Access 2021), evaluates merging OS-ELM detectors. "
    "Here each figure and table of its section 5 is made again, with its baselines and with ours, "
    "and some that go past it."
)
MARKS = {True: "✓", False: "✗", None: "–"}
VERDICTS = {True: "Holds", False: "Does not hold", None: "Not measured"}


@dataclass(frozen=True)
class Section:
    """One result: its figures, its table, what it was to show, and how it was made."""

    name: str
    title: str
    note: str
    record: Record
    rows: Rows
    table: Table | None
    figures: dict[str, Figure]
    claims: list[Claim]

    def named(self, end: str) -> str:
        """Say what a picture shows, for those who do not see it."""
        return f"{self.title} ({end})" if end else self.title


@dataclass(frozen=True)
class AbsentResult:
    """A result that is not in the folder."""

    name: str
    title: str
    why: str


@dataclass(frozen=True)
class Report:
    """All results, in the order of the paper."""

    sections: list[Section]
    absent: list[AbsentResult]

    def claims(self) -> Iterator[tuple[Section, Claim]]:
        """Go through all claims."""
        return ((section, claim) for section in self.sections for claim in section.claims)


def read_report(folder: Path, results: Sequence[Result]) -> Report:
    """Read a folder."""
    parts = [_read_section(folder, each) for each in results]
    sections = [part for part in parts if isinstance(part, Section)]
    if not sections:
        raise RowError(f"{folder} holds no results: run `edgemerge paper all --out {folder}`")
    return Report(sections, [part for part in parts if isinstance(part, AbsentResult)])


def _read_section(folder: Path, result: Result) -> Section | AbsentResult:
    kept = result_files.read_result(folder, result.NAME)
    if kept is None:
        return AbsentResult(result.NAME, result.TITLE, _why_absent(result))
    return Section(
        name=result.NAME,
        title=result.TITLE,
        note=getattr(result, "NOTE", ""),
        record=kept.record,
        rows=kept.rows,
        table=_section_table(result, kept.rows),
        figures=result.plot(kept.rows),
        claims=result.claims(kept.rows),
    )


def _section_table(result: Result, rows: Rows) -> Table | None:
    smaller = getattr(result, "table", None)
    shown: Rows = smaller(rows) if smaller else rows if len(rows) <= MAX_ROWS_SHOWN else []
    return make_table([_labelled(row) for row in shown], result.TITLE) if shown else None


def _labelled(row: Row) -> Row:
    """Call methods as the figures do."""
    method = str(row.get("method", ""))
    return {**row, "method": LABELS[method]} if method in LABELS else row


def _why_absent(result: Result) -> str:
    if "driving" in result.DATA:
        get = "everyone has to get from the makers; `edgemerge paper data` says how"
        return f"It needs data that {get}. {terms('driving')}"
    return "It was not run."


def how_to_run(name: str) -> str:
    """Say how to get a result that is not there."""
    return f"`edgemerge paper {name}` makes it."


def count_verdicts(report: Report) -> str:
    """Say how many claims hold.

    >>> count_verdicts(Report([], []))
    'Of 0 claims 0 hold, 0 do not, and 0 were not measured.'
    """
    found = [claim.holds for _, claim in report.claims()]
    hold, fail, none = (found.count(each) for each in (True, False, None))
    return f"Of {len(found)} claims {hold} hold, {fail} do not, and {none} were not measured."


MAX_SETTINGS_SHOWN = 3  # settings of one method that are told


def rerun_command(record: Record) -> str:
    """Give the command that makes a result again."""
    words = [f"edgemerge paper {record.result} --seed {record.seed} --trials {record.trials}"]
    words += [f"--baseline-trials {record.baseline_trials}"]
    return " ".join([*words, *(["--quick"] if record.quick else [])])


def record_facts(record: Record) -> dict[str, str]:
    """Tell how a result was made; words between backticks are code."""
    found = {"Command": f"`{rerun_command(record)}`"}
    if record.quick:
        found["Quick"] = "yes: a part of the data, so the numbers differ from those of a full run"
    if record.baselines:
        found["Baselines"] = f"not run: {record.baselines}"
    found["Rows"] = f"`{record.result}.csv`"
    found["Made"] = f"{record.date}, edgemerge {record.version}"
    found["Time"] = _time(record)
    found["Data"] = "; ".join(f"{name}, SHA-256 {key[:16]}…" for name, key in record.data.items())
    found |= {
        f"Settings of {name}": _first_settings(all_) for name, all_ in record.settings.items()
    }
    return {word: text for word, text in found.items() if text}


def _first_settings(settings: list[str]) -> str:
    more = (
        f" and {len(settings) - MAX_SETTINGS_SHOWN} more"
        if len(settings) > MAX_SETTINGS_SHOWN
        else ""
    )
    return ", ".join(f"`{each}`" for each in settings[:MAX_SETTINGS_SHOWN]) + more


def _time(record: Record) -> str:
    before = f", {record.jobs_before} of them done in an earlier run" if record.jobs_before else ""
    jobs = "1 job" if record.jobs == 1 else f"{record.jobs} jobs"
    work = (
        f"; the jobs alone took {format_duration(record.job_seconds)}" if record.job_seconds else ""
    )
    return f"{format_duration(record.seconds)}, {jobs}{before}{work}"


def remarks(report: Report) -> list[str]:
    """Say what a reader must know before the numbers."""
    quick = [section.name for section in report.sections if section.record.quick]
    alone = [section.name for section in report.sections if section.record.baselines]
    absent = [each.name for each in report.absent]
    said = {
        "Made quickly, from a part of the data, so that the numbers are rough": quick,
        "Made without networks as baselines, where there are any": alone,
        "Not run, and listed at the end": absent,
    }
    return [f"{words}: {', '.join(names)}." for words, names in said.items() if names]


def machines(report: Report) -> dict[str, str]:
    """Tell which machine and packages made which results."""
    found: dict[str, list[str]] = {}
    for section in report.sections:
        found.setdefault(_machine(section.record), []).append(section.name)
    return {", ".join(names): words for words, names in found.items()}


def _machine(record: Record) -> str:
    it = record.machine
    parts = [f"{it[key]}" for key in ("processor", "system") if it.get(key)]
    parts += [f"{it['cores']} cores"] if "cores" in it else []
    parts += [f"{it['memory_gb']} GB of memory"] if it.get("memory_gb") else []
    parts += [f"Python {it['python']}"] if "python" in it else []
    parts += [f"{name} {each}" for name, each in record.packages.items()]
    return ", ".join(parts) or "not told"


MEANS_TITLE = (
    "Mean ROC-AUC over all pairs of two different patterns, ± its spread over trials (number)"
)
CLAIMS_TITLE = "All claims, those that do not hold first"


def mean_auc_table(report: Report) -> Table | None:
    """Give the mean ROC-AUC of each method on each data set, the best in bold."""
    rows = [row for each in report.sections if each.name == "auc" for row in each.rows]
    rows = [row for row in rows if (row["device_a"], row["device_b"]) == ("all", "others")]
    if not rows:
        return None
    datasets, methods = (list(dict.fromkeys(row[key] for row in rows)) for key in _KEYS)
    found = {(row["dataset"], row["method"]): row for row in rows}
    lines = [
        [LABELS.get(str(one), str(one)), *(_auc_cell(found.get((each, one))) for each in datasets)]
        for one in methods
    ]
    best = {(methods.index(_best_method(rows, each)), 1 + i) for i, each in enumerate(datasets)}
    numbers = [False, *(True for _ in datasets)]
    return Table(
        MEANS_TITLE, ["method", *(str(each).upper() for each in datasets)], lines, numbers, best
    )


_KEYS = ("dataset", "method")


def _auc_cell(row: Row | None) -> str:
    if row is None:
        return "–"
    spread = f" ± {row['spread']:.3f}" if row["trials"] != 1 else ""
    return f"{row['auc']:.3f}{spread} ({row['trials']})"


def _best_method(rows: Rows, dataset: str | int | float) -> str | int | float:
    here = [row for row in rows if row["dataset"] == dataset]
    return max(here, key=lambda row: row["auc"])["method"]


def failed_claims_first(report: Report) -> list[tuple[Section, Claim]]:
    """Give all claims, those that do not hold first."""
    return sorted(report.claims(), key=lambda each: each[1].holds is not False)


def claims_table(report: Report) -> Table:
    """Give all claims of all results."""
    lines = [
        [MARKS[claim.holds], claim.text, claim.found, section.name]
        for section, claim in failed_claims_first(report)
    ]
    return Table(CLAIMS_TITLE, ["", "claim", "found", "result"], lines, [False] * 4)
