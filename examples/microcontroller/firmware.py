"""Cross-compiles C for small boards, and runs it in QEMU."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
COMPILER, EMULATOR = "arm-none-eabi-gcc", "qemu-system-arm"
LINUX_COMPILER, LINUX_EMULATOR = "arm-linux-gnueabihf-gcc", "qemu-arm"
TOOLS = (COMPILER, EMULATOR, LINUX_COMPILER, LINUX_EMULATOR)
INSTALL = "scripts/services mcu"
WARNINGS = ("-std=c99", "-Wall", "-Wextra", "-Wconversion", "-Werror")


@dataclass(frozen=True)
class Board:
    """A board that QEMU emulates, and how to compile for its processor."""

    processor: str
    machine: str
    float_unit: tuple[str, ...] = ("-mfloat-abi=soft",)
    script: str = "mps2.ld"

    @property
    def flags(self) -> tuple[str, ...]:
        """Options of the compiler."""
        return (f"-mcpu={self.processor}", "-mthumb", *self.float_unit)


BOARDS = {
    "M4": Board("cortex-m4", "mps2-an386", ("-mfloat-abi=hard", "-mfpu=fpv4-sp-d16")),
    "M7": Board("cortex-m7", "mps2-an500", ("-mfloat-abi=hard", "-mfpu=fpv5-d16")),
    "M3": Board("cortex-m3", "mps2-an385"),
    "M0": Board("cortex-m0", "microbit", script="microbit.ld"),
}


def missing_tools() -> list[str]:
    """Return the programs that are not installed."""
    return [tool for tool in TOOLS if shutil.which(tool) is None]


def build(
    board: Board,
    sources: Sequence[Path],
    target: Path,
    *options: str,
    include: Sequence[Path] = (),
    semihosted: bool = False,
) -> Path:
    """Compile a program for a board; return its ELF file.

    With `semihosted` it can use stdio, which QEMU connects with its own standard input and output.
    """
    system = ("--specs=nano.specs", "--specs=rdimon.specs", "-DSEMIHOSTED")
    words = [
        *(COMPILER, *board.flags, *WARNINGS, "-ffunction-sections", "-fdata-sections"),
        *(options or ("-Os",)),
        *(word for folder in (*include, HERE) for word in ("-I", str(folder))),
        *map(str, sources),
        *(str(HERE / "startup.c"), "-T", str(HERE / board.script), "-Wl,--gc-sections"),
        *(system if semihosted else ("-nostartfiles", "--specs=nosys.specs")),
        *("-o", str(target)),
    ]
    subprocess.run(words, check=True, timeout=120)
    return target


def run(
    board: Board, program: Path, data: bytes = b"", *options: str, timeout_s: float = 30
) -> bytes:
    """Run a semihosted program in QEMU with this standard input; return what it wrote."""
    words = [
        *(EMULATOR, "-M", board.machine, "-display", "none", "-monitor", "none", "-serial", "none"),
        *("-semihosting-config", "enable=on,target=native", *options, "-kernel", str(program)),
    ]
    done = subprocess.run(words, input=data, capture_output=True, check=False, timeout=timeout_s)
    if done.returncode:
        said = done.stderr.decode(errors="replace")[-2000:]
        raise RuntimeError(
            f"{program.name} ended with {done.returncode} on {board.machine}: {said}"
        )
    return done.stdout
