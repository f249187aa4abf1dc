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


def rows():
    with (ROOT / "docs/results/masked.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def page():
    return (ROOT / "docs/how-to/masked-fleets.md").read_text(encoding="utf-8")


def test_the_costs_of_masked_fleets_are_those_of_the_rows():
    table = page().split("## What it costs")[1].split("|---|---:|")[1].split("\n\n")[0]
    shown = [line.split(" | ", 2)[2].rstrip("| ") for line in table.splitlines()[1:]]
    assert shown == [cells(row).rstrip("| ") for row in rows()]


def test_the_page_says_what_keepers_take():
    times = [float(row["keeper_ms"]) for row in rows() if row["where"] == "server"]
    assert f"a keeper takes {min(times):.0f} to {max(times):.0f} ms with a server" in page()
    (sparse,) = (row for row in rows() if "sparse" in row["where"])
    cost = f"{float(sparse['keeper_bytes']) / 1e6:.1f} MB and {float(sparse['keeper_ms']):.0f} ms"
    assert f"in a sparse cohort of 1 000 devices {cost}." in page()


def test_the_page_says_which_aim_holds_and_by_how_much_the_other_is_missed():
    with_server = {row["missing"]: row for row in rows() if row["where"] == "server"}
    assert all(float(row["device_ms"]) <= 50.0 for row in with_server.values())
    third, none = (with_server[missing]["server_s"] for missing in ("0.333", "0.0"))
    over = f"{float(third) - 1.0:.0%}".replace("%", " %")
    missed = f"takes {third} s with a third missing, {over} too much, and {none} s with none"
    assert missed in page()
