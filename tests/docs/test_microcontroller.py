"""The tables of docs/how-to/microcontroller.md are those of the committed rows."""

from pathlib import Path

from benchmarks.microcontroller import instruction_table, memory_table, read_rows

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "microcontroller.md").read_text(encoding="utf-8")
MAX_CODE = 10_600  # bytes on M4, 4 % more than the prototype
MAX_STACK = 600  # bytes
MAX_RAM = {(16, 16): 5_900, (64, 32): 35_000, (64, 64): 85_000}  # bytes, of the prototype


def test_both_tables_are_made_of_the_rows():
    rows = read_rows()
    assert memory_table(rows) in PAGE
    assert instruction_table(rows) in PAGE


def test_memory_is_no_more_than_that_of_the_prototype():
    rows = read_rows()
    for (n, N), most in MAX_RAM.items():
        assert rows["M4", str(n), str(N), "float", "ram"] <= most
    assert rows["M4", "16", "16", "float", "code"] <= MAX_CODE
    assert max(value for key, value in rows.items() if key[-1] == "stack") < MAX_STACK
