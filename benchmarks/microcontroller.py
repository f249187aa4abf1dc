"""What edgemerge.h needs on small processors: memory, stack and instructions.

`python -m benchmarks.microcontroller` compiles examples/microcontroller/measure.c for each
processor and size with -O2, runs it in QEMU, writes docs/results/microcontroller.csv, and puts
the tables into docs/how-to/microcontroller.md.
Instructions are counted by SysTick under `-icount shift=0` (an instruction takes a nanosecond, a
tick is 40): they are instructions, not cycles, of the compiler that is installed. The M0 is
measured with code for the M0 on QEMU's M3 board, as the micro:bit has 16 kB of RAM. Code is the
.text section of all functions of the header with -Os, without the compiler's floating point;
firmware is the flash of examples/microcontroller/main.c with a table of weights, link and
constants included.
"""

from __future__ import annotations

import csv
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.results import RESULTS
from edgemerge import Projection
from edgemerge.embedded.export import to_files
from examples.microcontroller.firmware import (
    BOARDS,
    COMPILER,
    HERE,
    INSTALL,
    Board,
    build,
    missing_tools,
    run,
)

SIZES = ((16, 16), (64, 32), (64, 64))
COLUMNS = ("processor", "inputs", "hidden", "numbers", "what", "value", "unit")
FILE = RESULTS / "microcontroller.csv"
PAGE = RESULTS.parent / "how-to" / "microcontroller.md"
ALL_FUNCTIONS = """
#include "pump.h"
uint64_t memory[EM_WORDS(PUMP_N, PUMP_HIDDEN)];
em_device device;
int one(void) { return em_init(&device, &pump_projection, memory, sizeof memory); }
int two(const double *x, em_result *to) { return em_take(&device, x, to); }
int three(em_write write) { return em_share(&device, "pump-3", "normal", write, 0); }
int four(const uint8_t *bytes, size_t size) { return em_adopt(&device, bytes, size); }
int five(em_storage *storage) { return em_save(&device, storage); }
int six(em_storage *storage) { return em_resume(&device, storage); }
int seven(void) { return em_check_table(&pump_projection); }
"""
PATTERN_FUNCTIONS = """
em_pattern pattern;
int eight(void) { return em_keep_pattern(&device, &pattern, memory, sizeof memory); }
int nine(void) { return em_approve(&device); }
int ten(em_write write) { return em_share_fault(&device, "pump-3", "bearing", write, 0); }
"""


def text_bytes(board: Board, source: str, folder: Path) -> int:
    """Return the size of the code of a C source."""
    (folder / "code.c").write_text(source, encoding="utf-8")
    words = [COMPILER, *board.flags, "-std=c99", "-Os", "-I", str(folder), "-c"]
    target = folder / "code.o"
    subprocess.run([*words, str(folder / "code.c"), "-o", str(target)], check=True)
    listed = subprocess.run(
        ["arm-none-eabi-size", "-A", str(target)], check=True, capture_output=True, text=True
    ).stdout
    return sum(map(int, re.findall(r"^\.text\S*\s+(\d+)", listed, re.MULTILINE)))


def flash_bytes(board: Board, folder: Path) -> int:
    """Return the flash that the whole firmware of the example takes."""
    program = build(board, [HERE / "main.c"], folder / "main.elf", "-Os", include=[folder])
    words = ["arm-none-eabi-size", str(program)]
    listed = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    text, data = listed.splitlines()[1].split()[:2]
    return int(text) + int(data)


def measured(board: Board, folder: Path, *options: str) -> Iterator[tuple[str, int, str]]:
    """Yield what the program on the board says: name, value and unit."""
    program = build(
        board,
        [HERE / "measure.c"],
        folder / "measure.elf",
        *("-O2", *options),
        include=[folder],
        semihosted=True,
    )
    deepest = 0
    said = run(board, program, b"", "-icount", "shift=0", timeout_s=600).decode()
    for line in said.splitlines():
        name, value, stack = line.split(",")
        if name in ("ram", "pattern"):
            yield name, int(value), "bytes"
        elif name != "nothing":
            deepest = max(deepest, int(stack))
            yield name, int(value), "instructions"
    if deepest:
        yield "stack", deepest, "bytes"


def rows() -> Iterator[tuple[object, ...]]:
    """Yield a row for each processor, size and number."""
    for inputs, hidden in SIZES:
        p = Projection(n_inputs=inputs, n_hidden=hidden, seed=7, low=-1000.0, high=1000.0)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for file, text in to_files(p, "pump").items():
                (folder / file).write_text(text, encoding="utf-8")
            for processor, board in BOARDS.items():
                # the M0's code on a board with more memory
                on = (
                    board
                    if processor != "M0"
                    else replace(board, machine="mps2-an385", script="mps2.ld")
                )
                for found in measured(on, folder):
                    yield processor, inputs, hidden, "float", *found
                for found in measured(on, folder, "-DEM_DOUBLE", "-DSIZES_ONLY"):
                    yield processor, inputs, hidden, "double", *found
                code = text_bytes(board, ALL_FUNCTIONS, folder)
                more = text_bytes(board, ALL_FUNCTIONS + PATTERN_FUNCTIONS, folder)
                yield processor, inputs, hidden, "float", "code", code, "bytes"
                yield processor, inputs, hidden, "float", "code with a pattern", more, "bytes"
                if processor != "M0":
                    flash = flash_bytes(board, folder)
                    yield processor, inputs, hidden, "float", "firmware", flash, "bytes"


def read_rows() -> dict[tuple[str, ...], int]:
    """Return the value of each processor, inputs, hidden, numbers and what, as it was written."""
    with FILE.open(encoding="utf-8", newline="") as file:
        return {tuple(row[:5]): int(row[5]) for row in list(csv.reader(file))[1:]}


def memory_table(found: dict[tuple[str, ...], int]) -> str:
    """Return what each size takes, as a table for the documentation."""
    lines = [
        "| inputs / hidden | RAM, `float` | RAM, `double` | one pattern | stack | firmware on M4 |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for n, N in SIZES:
        size = str(n), str(N)
        stack = max(found[p, *size, "float", "stack"] for p in BOARDS)
        cells = [
            f"{n} / {N}",
            *(_kB(found["M4", *size, kind, "ram"]) for kind in ("float", "double")),
            _kB(found["M4", *size, "float", "pattern"]),
            f"{stack} B",
            _kB(found["M4", *size, "float", "firmware"]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


COUNTED = ("take integers", "take", "take integers with others", "solve", "solve with others")


def instruction_table(found: dict[tuple[str, ...], int]) -> str:
    """Return how many instructions each processor takes, as a table for the documentation."""
    lines = [
        f"| processor | inputs / hidden | {' | '.join(COUNTED)} |",
        f"|---|---|{'---:|' * len(COUNTED)}",
    ]
    for n, N in SIZES:
        for processor in BOARDS:
            row = processor, str(n), str(N), "float"
            cells = [_thousands(found[(*row, what)]) for what in COUNTED]
            lines.append(f"| {processor} | {n} / {N} | {' | '.join(cells)} |")
    return "\n".join(lines)


def with_table(page: str, table: str) -> str:
    """Return a page whose table with the same head is this one."""
    start = page.index(table.splitlines()[0])
    return page[:start] + re.sub(r"\A(?:\|.*\n)+", f"{table}\n", page[start:])


def _kB(size: int) -> str:
    return f"{size / 1000:.1f} kB"


def _thousands(count: int) -> str:
    millions = count / 1e6
    return (
        f"{millions:.{0 if millions >= 10 else 1}f} M" if millions >= 1 else f"{count / 1e3:.0f} k"
    )


def main() -> None:
    """Measure, print and write all rows."""
    if missing := missing_tools():
        raise SystemExit(f"{', '.join(missing)} is missing: run {INSTALL}")
    with FILE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in rows():
            writer.writerow(row)
            file.flush()
            print(*row)
    page, found = PAGE.read_text(encoding="utf-8"), read_rows()
    for table in (memory_table(found), instruction_table(found)):
        page = with_table(page, table)
        print(table, end="\n\n")
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
