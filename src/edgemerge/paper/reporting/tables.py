"""Tables for reading: numbers of a column with equally many digits, words without underscores."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import floor, log10

from edgemerge.paper.plan import Row, Rows

DIGITS = 3
Value = str | int | float | None


@dataclass(frozen=True)
class Table:
    """Cells as text, under headings; which columns are numbers, which cells stand out."""

    title: str
    head: list[str]
    lines: list[list[str]]
    numbers: list[bool]
    bold: Collection[tuple[int, int]] = field(default_factory=frozenset)  # line, column


def table(rows: Rows, title: str) -> Table:
    """Write rows as a table; columns are in the order in which they appear."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    columns = [column([row.get(key) for row in rows]) for key in keys]
    lines = [list(line) for line in zip(*columns, strict=True)]
    return Table(title, [key.replace("_", " ") for key in keys], lines, _numbers(rows, keys))


def _numbers(rows: Rows, keys: Sequence[str]) -> list[bool]:
    def numeric(row: Row, key: str) -> bool:
        return not isinstance(row.get(key, 0), str)

    return [all(numeric(row, key) for row in rows) for key in keys]


def column(values: Sequence[Value]) -> list[str]:
    """Write values that stand below each other.

    >>> column([0.5, 0.89731, 1.0])
    ['0.500', '0.897', '1.000']
    >>> column([1234567, 12, None])
    ['1,234,567', '12', '']
    >>> column([12.3456, 1500.0])
    ['12', '1,500']
    >>> column([0.00012, 3.0])
    ['0.00012', '3']
    """
    sizes = [abs(value) for value in values if isinstance(value, float) and value]
    digits = _digits(max(sizes)) if sizes else 0
    alike = not sizes or min(sizes) >= 10.0 ** (1 - digits)
    return [_cell(value, digits if alike else None) for value in values]


def _digits(size: float) -> int:
    """Give the digits after the point that numbers up to this size deserve."""
    order = floor(log10(size))
    return DIGITS - 1 - order if order < -1 else max(0, DIGITS - max(0, order))


def _cell(value: Value, digits: int | None) -> str:
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
