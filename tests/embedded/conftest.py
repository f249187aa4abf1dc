"""Compiles C programs of this folder with the header, for this machine."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from edgemerge import Projection
from edgemerge.embedded.export import HEADER_FILE, LINK_FILE, header_text, to_c
from tests.services.missing import SERVICES, left_out

FLAGS = ("-std=c99", "-Wall", "-Wextra", "-Wconversion", "-Werror")
SANITIZED = (
    "-O0",
    "-fsanitize=address,undefined,float-cast-overflow",
    "-fno-sanitize-recover=all",
)


def write_headers(p: Projection, folder: Path, *, draw: bool = False) -> None:
    """Write both headers, and pump.h with the constants of a projection."""
    for file in (HEADER_FILE, LINK_FILE):
        (folder / file).write_text(header_text(file), encoding="utf-8")
    (folder / "pump.h").write_text(to_c(p, "pump", draw=draw), encoding="utf-8")


@pytest.fixture(scope="session")
def build(tmp_path_factory) -> Callable[..., Path]:
    """Return a function that compiles a program for a projection, once for each."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        left_out("a C compiler", SERVICES)
    known: dict[tuple[str, ...], Path] = {}

    def compile_program(p: Projection, file: str, *options: str, draw: bool = False) -> Path:
        options += ("-DDRAWN",) if draw else ()
        key = (p.fingerprint, file, *options)
        if key not in known:
            folder = tmp_path_factory.mktemp("embedded")
            write_headers(p, folder, draw=draw)
            source = Path(__file__).with_name(file)
            words = [*FLAGS, *SANITIZED, *options, "-I", folder, source, "-o", folder / "run"]
            subprocess.run([compiler, *words], check=True, timeout=120)
            known[key] = folder / "run"
        return known[key]

    return compile_program
