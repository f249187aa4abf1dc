"""Rows that a benchmark measured, saved among the results of the docs."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]

RESULTS = Path(__file__).parents[1] / "docs" / "results"


def save(rows: Sequence[Row], name: str) -> Path:
    """Write rows as CSV among the results of the docs."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / name
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return path
