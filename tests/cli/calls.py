"""How the tests of the command line call it: in this process, or as a program of its own."""

import os
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner, Result

from edgemerge.cli import main
from edgemerge.cli.group import BLAS_THREAD_VARIABLES, ExitCode

SOURCE = Path(__file__).parents[2] / "src"


def call(*arguments: object, given: str | bytes | None = None, **environment: str) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)), input=given, env=environment)


def clean_environment(**more: str) -> dict[str, str]:
    """That of this process without its settings for BLAS threads and for edgemerge."""
    kept = {name: value for name, value in os.environ.items() if name not in BLAS_THREAD_VARIABLES}
    kept = {name: value for name, value in kept.items() if not name.startswith("EDGEMERGE_")}
    return {**kept, "PYTHONPATH": str(SOURCE), **more}


def started(code: str, **environment: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=clean_environment(**environment),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


def program(
    *arguments: object, given: str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run edgemerge as a program."""
    return subprocess.run(
        [sys.executable, "-m", "edgemerge", *map(str, arguments)],
        env=clean_environment(**environment),
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def failure(result: Result, code: int | None = None) -> str:
    """The one line with which a command must have failed."""
    assert result.exit_code in ([code] if code else list(ExitCode)), result.output
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr.removeprefix("Error: ").strip()
