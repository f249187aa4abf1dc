"""The tables of docs/how-to/microcontroller.md are those of the committed rows."""

from pathlib import Path

from benchmarks.microcontroller import (
    instruction_table,
    memory_table,
    read_rows,
    with_table,
)

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "microcontroller.md").read_text(encoding="utf-8")
# What a prototype took, which let no odd sample wait, and what is more than that.
MAX_CODE = 10_150  # bytes on M4
MAX_STACK = 600  # bytes
MAX_RAM = {
    ("16", "16", "float"): 5_900,
    ("64", "32", "float"): 35_000,
    ("64", "64", "float"): 85_000,
    ("16", "16", "double"): 7_050 + 200,
    ("64", "32", "double"): 44_500,
    ("64", "64", "double"): 102_500,
}
MAX_SOLVE = {("16", "16"): 250_000, ("64", "32"): 2_600_000, ("64", "64"): 8_900_000}


def test_both_tables_are_made_of_the_rows():
    rows = read_rows()
    assert memory_table(rows) in PAGE
    assert instruction_table(rows) in PAGE


def test_a_new_table_takes_the_place_of_the_one_with_its_head():
    rows = read_rows()
    table = memory_table(rows)
    changed = with_table(PAGE, table.replace("kB", "MB"))
    assert table not in changed
    assert instruction_table(rows) in changed
    assert with_table(changed, table) == PAGE


def test_memory_code_and_solving_take_no_more_than_in_the_prototype():
    rows = read_rows()
    for size, most in MAX_RAM.items():
        assert rows["M4", *size, "ram"] <= most
    for sizes, instructions in MAX_SOLVE.items():
        assert rows["M4", *sizes, "float", "code"] <= MAX_CODE
        assert rows["M4", *sizes, "float", "solve"] <= instructions
    assert max(value for key, value in rows.items() if key[-1] == "stack") < MAX_STACK
