"""Run the examples of a Markdown page and compare what they print with what the page says.

A ```python block is executed, all blocks of a page in one namespace and in one empty folder. If a
```text block follows it directly, the output must be equal. Of a ```console block the lines that
start with `$ edgemerge` are run and must succeed; a line may go on after a backslash. One that ends
with `&` runs in the background until the page ends, and the page goes on once that program says
that it is ready, in the way that systemd asks for. `$ export NAME=VALUE` holds for the rest of the
page. A ```toml block whose first line is `# NAME.toml` is written to that file.
"""

import contextlib
import io
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Any

FENCE = re.compile(r"^```(?P<kind>\S*)[^\n]*\n(?P<body>.*?)^```[ ]*$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ ((?:edgemerge|export)\b(?:.*\\\n)*.*)$", re.MULTILINE)
EXPORT = re.compile(r"export (\w+)=")
FILE = re.compile(r"# ([\w.-]+\.toml)$", re.MULTILINE)
# Exports, pipes and files are for a shell; these commands handle signals or start processes.
NEEDS_A_PROGRAM = re.compile(r"^export|[|<>;]|^edgemerge (agent|bulk|demo|serve|simulate)\b")
START_S, STOP_S, RUN_S = 60.0, 30.0, 300.0


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
        if block["kind"] in {"python", "console"} or _names_a_file(block):
            line = text.count("\n", 0, block.start("body")) + 1
            yield Example(block["kind"], line, block["body"], expected)


def _names_a_file(block: re.Match[str]) -> bool:
    return block["kind"] == "toml" and FILE.match(block["body"]) is not None


Command = Callable[[list[str]], tuple[int, str]]


def run_page(page: Path, *kinds: str, command: Command | None = None) -> int:
    """Run the examples of the page, all or of some kinds, in an empty folder; say how many.

    `command` runs a command line without starting a program: it takes the words after `edgemerge`
    and returns the exit code and what went wrong.
    """
    every = examples(page.read_text(encoding="utf-8"))
    found = [example for example in every if not kinds or example.kind in kinds]
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        _own_environment(),
        Programs(command) as programs,
    ):
        for example in found:
            if example.kind == "python":
                _run_python(example, page, namespace)
            elif example.kind == "toml":
                Path(FILE.match(example.body)[1]).write_text(example.body, encoding="utf-8")  # type: ignore[index]  # `examples` gave only such
            else:
                _run_console(example, page, programs)
    return len(found)


@contextlib.contextmanager
def _own_environment() -> Iterator[None]:
    before = dict(os.environ)
    os.environ["PATH"] = str(Path(sys.executable).parent) + os.pathsep + before.get("PATH", "")
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


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


class Programs:
    """What a page has left running; all of it is ended with the page, and must end well."""

    def __init__(self, command: Command | None) -> None:
        """Have nothing running."""
        self.command = command
        self._running: list[tuple[str, subprocess.Popen[bytes]]] = []

    def __enter__(self) -> "Programs":
        """Listen for programs that say they are ready."""
        self._folder = tempfile.TemporaryDirectory()
        self._ready = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._ready.bind(str(Path(self._folder.name) / "notify"))
        self._ready.settimeout(0.1)
        return self

    def start(self, line: str) -> None:
        """Start a program, and wait until it is ready."""
        environment = {**os.environ, "NOTIFY_SOCKET": str(Path(self._folder.name) / "notify")}
        log = Path(self._folder.name) / f"{len(self._running)}.log"
        with log.open("wb") as out:
            command = f"exec {line.removesuffix('&')}"
            process = subprocess.Popen(command, shell=True, env=environment, stdout=out, stderr=out)
        self._running.append((line, process))
        end = time.monotonic() + START_S
        while not self._said_ready():
            if process.poll() is not None or time.monotonic() > end:
                words = log.read_text(encoding="utf-8", errors="replace")
                raise PageError(f"not ready (exit {process.returncode}): {line}\n{words}")

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """End them, the last one first; one that does not end well is an error of the page."""
        bad = [line for line, process in reversed(self._running) if _end(process) != 0]
        self._ready.close()
        self._folder.cleanup()
        if bad and kind is None:
            raise PageError(f"did not end well: {', '.join(bad)}")

    def _said_ready(self) -> bool:
        try:
            return b"READY=1" in self._ready.recv(4096)
        except TimeoutError:
            return False


def _end(process: subprocess.Popen[bytes]) -> int:
    process.terminate()
    try:
        return process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return -1


def _run_console(example: Example, page: Path, programs: Programs) -> None:
    for found in COMMAND.finditer(example.body):
        line = found[1].rstrip()
        try:
            _run_line(line, programs)
        except PageError as error:
            number = example.line + example.body.count("\n", 0, found.start())
            raise PageError(f"{page}:{number}: {error}") from error


def _run_line(line: str, programs: Programs) -> None:
    if line.endswith("&"):
        programs.start(line)
        return
    if programs.command and not NEEDS_A_PROGRAM.search(line):
        code, words = programs.command(_words(line))
        if code:
            raise PageError(f"exit {code}: $ {line}\n{words}")
        return
    export = EXPORT.match(line)
    command = f'{line}; printf %s "${export[1]}"' if export else line
    done = subprocess.run(
        command, shell=True, capture_output=True, text=True, timeout=RUN_S, check=False
    )
    if done.returncode:
        raise PageError(f"exit {done.returncode}: $ {line}\n{done.stderr}")
    if export:
        os.environ[export[1]] = done.stdout


def _words(line: str) -> list[str]:
    """The words after `edgemerge`, as the shell makes them of quotes, variables and patterns."""
    command = "printf '%s\\0' " + line.removeprefix("edgemerge")
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    return done.stdout.split("\0")[:-1]


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def main() -> None:
    """Run the pages named on the command line; stop at the first example that fails.

    With --python first, only their Python is run, which needs no extra.
    """
    kinds = ["python"] if "--python" in sys.argv else []
    for name in sys.argv[1 + len(kinds) :]:
        try:
            count = run_page(Path(name).resolve(), *kinds)
        except PageError as error:
            raise SystemExit(str(error)) from error
        print(f"{name}: {count} examples do what the page says")


if __name__ == "__main__":
    main()
