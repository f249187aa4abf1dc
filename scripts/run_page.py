"""Run the examples of a Markdown page and compare what they print with what the page says.

A ```python block is executed, all blocks of a page in one namespace and in one empty folder. If a
```text block follows it directly, the output must be equal. Of a ```console block the lines that
start with `$ edgemerge` are run and must succeed.
"""

import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Any

FENCE = re.compile(r"^```(?P<kind>\S*)[^\n]*\n(?P<body>.*?)^```[ ]*$", re.MULTILINE | re.DOTALL)


class PageError(Exception):
    """An example that does not do what its page says; the message starts with page and line."""


@dataclass(frozen=True)
class Example:
    """One fenced block: its kind, the line its body starts on, and the text it must print."""

    kind: str
    line: int
    body: str
    expected: str | None


def examples(text: str) -> Iterator[Example]:
    """The blocks of a page that can be run, from top to bottom."""
    blocks = list(FENCE.finditer(text))
    for block, after in zip(blocks, [*blocks[1:], None], strict=False):
        follows = after is not None and not text[block.end() : after.start()].strip()
        expected = after["body"] if after and follows and after["kind"] == "text" else None
        if block["kind"] in {"python", "console"}:
            line = text.count("\n", 0, block.start("body")) + 1
            yield Example(block["kind"], line, block["body"], expected)


def run_page(page: Path) -> int:
    """Run all examples of the page in an empty folder; return how many there were."""
    found = list(examples(page.read_text(encoding="utf-8")))
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for example in found:
            if example.kind == "python":
                _run_python(example, page, namespace)
            else:
                _run_console(example, page)
    return len(found)


def _run_python(example: Example, page: Path, namespace: dict[str, Any]) -> None:
    source = "\n" * (example.line - 1) + example.body  # so that tracebacks show the page's lines
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(source, str(page), "exec"), namespace)  # noqa: S102 - our own pages
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(page)]
        line = lines[-1] if lines else getattr(error, "lineno", example.line)
        raise PageError(f"{page}:{line}: {type(error).__name__}: {error}") from error
    if example.expected is None:
        return
    said, got = _lines(example.expected), _lines(printed.getvalue())
    if said != got:
        difference = "\n".join(unified_diff(said, got, "the page says", "it prints", lineterm=""))
        raise PageError(f"{page}:{example.line}: other output than the page says\n{difference}")


def _run_console(example: Example, page: Path) -> None:
    scripts = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": scripts + os.pathsep + os.environ.get("PATH", "")}
    for number, line in enumerate(example.body.splitlines(), start=example.line):
        if not line.startswith("$ edgemerge"):
            continue
        done = subprocess.run(
            line.removeprefix("$ "),
            shell=True,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if done.returncode:
            raise PageError(f"{page}:{number}: exit {done.returncode}: {line}\n{done.stderr}")


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def main() -> None:
    """Run the pages named on the command line; stop at the first example that fails."""
    for name in sys.argv[1:]:
        try:
            count = run_page(Path(name).resolve())
        except PageError as error:
            raise SystemExit(str(error)) from error
        print(f"{name}: {count} examples do what the page says")


if __name__ == "__main__":
    main()
