"""The table of several-machines.md has the committed rows."""

import csv
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
NAMES = ("devices", "files", "live_cpu", "memory_mb", "delay_median_ms", "delay_99_ms")


def test_the_table_of_the_page_has_the_measured_rows():
    with (DOCS / "results" / "gateway.csv").open(encoding="utf-8", newline="") as file:
        measured = [[float(row[name]) for name in NAMES] for row in csv.DictReader(file)]
    lines = (DOCS / "how-to" / "several-machines.md").read_text(encoding="utf-8").splitlines()
    cells = [line.strip("|").split("|") for line in lines if line[:3] in ("| 1", "| 5")]
    assert len(cells) == len(measured)
    for shown, row in zip(cells, measured, strict=True):
        assert [float(cell) for cell in shown] == [*row[:2], round(row[2], 2), *row[3:]]
