"""Measured tables on the pages: mean ROC-AUC from the rows in docs/results, or a CSV as it is.

`{results} dirty.csv` with `:by: method` and `:across: share` averages over the seeds of each task,
then over tasks. A file that does not exist makes one sentence instead of a table.
"""

import csv
import re
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import Directive, directives
from sphinx.application import Sphinx

FOLDER = Path(__file__).parents[1] / "results"
Row = dict[str, str]


def mean(rows: list[Row], **wanted: str) -> float:
    """The mean ROC-AUC over the tasks of those rows that have all that is wanted."""
    tasks: dict[str, list[float]] = {}
    for row in rows:
        if all(row[key] == value for key, value in wanted.items()):
            tasks.setdefault(row["task"], []).append(float(row["auc"]))
    return fmean(map(fmean, tasks.values()))


def averaged(rows: list[Row], by: str, across: str) -> list[list[str]]:
    """One line for each value of `by`, one column for each of `across`, and a last for all."""
    lines, columns = (list(dict.fromkeys(row[key] for row in rows)) for key in (by, across))
    table = [[by, *columns]]
    for line in lines:
        means = (mean(rows, **{by: line, across: column}) for column in columns)
        table.append([line, *(f"{value:.3f}" for value in means)])
    if by != "method":
        means = (mean(rows, **{across: column}) for column in columns)
        table.append(["mean of tasks", *(f"{value:.3f}" for value in means)])
    return table


class Results(Directive):
    """A table from one file of docs/results."""

    required_arguments = 1
    option_spec: ClassVar[Any] = {"by": directives.unchanged, "across": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        """Make the table, or say that there is none."""
        path = FOLDER / self.arguments[0]
        self.state.document.settings.record_dependencies.add(str(path))
        if not path.exists():
            text = f"{path.name} has not been measured yet."
            return [nodes.paragraph(text, text)]
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        if "by" in self.options:
            return [drawn(averaged(rows, self.options["by"], self.options["across"]))]
        return [drawn([list(rows[0]), *(list(row.values()) for row in rows)])]


def drawn(lines: list[list[str]]) -> nodes.Node:
    """A table node; the first line is its head."""
    group = nodes.tgroup("", *(nodes.colspec(colwidth=1) for _ in lines[0]), cols=len(lines[0]))
    group += nodes.thead("", _line(lines[0]))
    group += nodes.tbody("", *map(_line, lines[1:]))
    return nodes.table("", group)


def _line(cells: list[str]) -> nodes.Node:
    # long names may break where a new word begins
    texts = (re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=_)", "\u200b", cell) for cell in cells)
    return nodes.row("", *(nodes.entry("", nodes.paragraph(text, text)) for text in texts))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("results", Results)
    return {"parallel_read_safe": True}
