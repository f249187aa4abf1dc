"""The table of costs on the page about masked fleets is that of the committed rows."""

import csv
from pathlib import Path

ROOT = Path(__file__).parents[2]


def rounded(text):
    """Round to two digits, and from ten on to a whole number, as people read them."""
    value = float(text)
    shown = f"{float(f'{value:.2g}'):.7f}".rstrip("0").rstrip(".")
    return shown if value < 10.0 else f"{value:.0f}"


def cells(row):
    error = row["max_error"] and rounded(row["max_error"])
    found = [f"{rounded(row['device_ms'])} ms", f"{rounded(row['server_s'])} s"]
    return " | ".join([*found, f"{float(row['upload_ratio']):.3g} ×", error])


def test_the_costs_of_masked_fleets_are_those_of_the_rows():
    page = (ROOT / "docs/how-to/masked-fleets.md").read_text(encoding="utf-8")
    with (ROOT / "docs/results/masked.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    table = page.split("## What it costs")[1].split("|---|---:|")[1].split("\n\n")[0]
    shown = [line.split(" | ", 2)[2].rstrip("| ") for line in table.splitlines()[1:]]
    assert shown == [cells(row).rstrip("| ") for row in rows]


def test_the_page_says_what_a_keeper_takes_with_a_server():
    with (ROOT / "docs/results/masked.csv").open(encoding="utf-8", newline="") as file:
        times = [float(r["keeper_ms"]) for r in csv.DictReader(file) if r["where"] == "server"]
    page = (ROOT / "docs/how-to/masked-fleets.md").read_text(encoding="utf-8")
    assert f"a keeper takes {min(times):.0f} to {max(times):.0f} ms with a server" in page
