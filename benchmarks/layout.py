"""How the code is laid out: its size, what one sample, one PUT and one pull cross, and their cost.

`python -m benchmarks.layout [--src PATH]` measures the tree at PATH (the folder that holds
`edgemerge`; ours without it), prints a table, and puts its rows into docs/results/layout.csv in
place of those of the same commit. It knows the command line, the HTTP routes and the public names,
not the modules, so one version of it measures a tree before and after its modules have moved.

Size, by `ast` and `tokenize`. Every physical line is of one kind: of a docstring (blank lines in
it too), of an import statement, blank, a comment alone, or code. Functions include methods and
nested ones, not lambdas. An import chain counts modules that import each other in turn when they
run, inside one package; `layers` is what the import contract of core in pyproject.toml lists.

Crossings, by `sys.setprofile` in all threads of the real programs (`benchmarks.traced`). `calls`
are what Python 3.11 reports as calls into our files: functions, comprehensions, and coroutines and
generators each time they go on. `functions begun` leaves out comprehensions and going on, so other
versions of Python count alike. Modules that are imported and code without a file (a dataclass's
constructor) count in neither. A file is crossed if a call is in it. Fleet, agent and server have
run and exchanged before, so nothing is counted of starting up.

- `one sample, whole way`: the agent follows a CSV file (`tail`) and the server runs beside it. A
  line is appended, scored, delivered and learnt; `edgemerge sync` makes the agent save, share,
  push, pull and adopt; and a second line has its result, now merged. Counted from the first byte
  to the second result in agent and server, files of both in one set; calls without those of an
  equally long time in which nothing happens. Reports to the dashboard are off; `with reports` has
  them on.
- `one sample, agent`: two agents without exchange read 1 024 and 2 048 rows of a CSV file; the
  difference, in all threads, divided by the rows. Files that every sample crosses (1 024 calls or
  more), and files that any of them crosses.
- `one sample, judge + learn`: of the same runs, in the main thread, what the file with the loop
  calls and what lies below that, if a call into core is below it too. The loop's own file, source,
  queue, sink and upkeep are not in it. `projections` are the calls of Projection.project.
- `one PUT`: one connection that is open already puts revision after revision of a contribution;
  what is counted until shortly after the answer, the median of some. `one pull` is GET …/total
  after each of these, `one pull of patterns` is GET …/patterns; both without a tag, so that the
  server must answer with the sums.

Cost is CPU time. The agent reads rows from a CSV file, has a file for results and no exchange; the
time of a run with few rows is taken off, which leaves the samples. `main` is its main thread, where
samples are judged and learnt while another one reads. The library gets the same rows from memory
in the same minute, 50 rows at a time for each way in turns. Of each, the best of some runs. `score
twice` compares a score and then learn_and_score, which scores again, with learn_and_score alone.
Times mean little on a busy machine, so the load at the start is among the rows: compare two trees
by times of one quiet hour. Counts are the same everywhere.
"""

from __future__ import annotations

import argparse
import ast
import csv
import http.client
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import tokenize
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
TRACED = Path(__file__).with_name("traced.py")
PARTS = (
    *("core", "wire", "server", "agent", "exchange", "cli", "paper", "scale", "flower"),
    *("dask", "bulk", "demo", "privacy", "top"),
)
KINDS = ("code", "imports", "blank", "docstrings", "comments")
FEW = 1024  # rows of the shorter run; a multiple of every block
TIMES = 5  # requests of each kind
QUIET_S = 0.4  # in which a program ends what an answer has left to do
WAIT_S = 60.0
SIZES = {(561, 128): 3500, (16, 16): 20000}  # inputs and hidden values: rows
WARM = 500  # rows of the run that is taken off
RUNS = 3
FLEET = "layout"
PUT = "/fleets/{fleet}/contributions/b/0/normal"
PULLS = {"one pull": "/fleets/{fleet}/total", "one pull of patterns": "/fleets/{fleet}/patterns"}

COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
WAYS = {  # names of the whole way, with who learns and the seconds between two reports
    "whole way": ("detector", 0),
    "whole way, bank": ("bank", 0),
    "whole way, with reports": ("detector", 1),
}
FIRST, GROWN = 300, 390  # rows before the first exchange, and before the sample that is followed

Row = tuple[str, str, float]  # what, measure, value


# --- size ---------------------------------------------------------------------------------------


def sizes(src: Path) -> Iterator[Row]:
    """Count files, lines, functions and classes of every package, and of all together."""
    total: Counter[str] = Counter()
    lengths = []
    for part in PARTS:
        found: Counter[str] = Counter()
        for path in _modules(src, part):
            counted = _counted(path)
            lengths.append(sum(counted[kind] for kind in KINDS))
            found += counted
        total += found
        yield from ((part, measure, found[measure]) for measure in (*MEASURES, *KINDS))
    yield from (("all", measure, total[measure]) for measure in (*MEASURES, *KINDS))
    yield "all", "median lines of a file", median(lengths)


MEASURES = ("files", "files without __init__", "functions", "classes", "lines")


def _modules(src: Path, part: str) -> list[Path]:
    home = src / "edgemerge"
    if part != "top":
        return sorted((home / part).rglob("*.py"))
    others = [path for path in home.rglob("*.py") if path.relative_to(home).parts[0] not in PARTS]
    return sorted(others)


def _counted(path: Path) -> Counter[str]:
    text = path.read_text("utf-8")
    tree = ast.parse(text)
    found: Counter[str] = Counter(files=1)
    found["files without __init__"] = path.name != "__init__.py"
    kinds = ["code"] * len(text.splitlines())
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not token.line[: token.start[1]].strip():
            kinds[token.start[0] - 1] = "comments"
    for i, line in enumerate(text.splitlines()):
        if not line.strip():
            kinds[i] = "blank"
    for node in ast.walk(tree):
        found["functions"] += isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        found["classes"] += isinstance(node, ast.ClassDef)
        if isinstance(node, ast.Import | ast.ImportFrom):
            _mark(kinds, node, "imports")
        elif isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            _mark(kinds, node.body[0], "docstrings")
    found["lines"] = len(kinds)
    found.update(kinds)
    return found


DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _mark(kinds: list[str], node: ast.stmt, kind: str) -> None:
    for i in range(node.lineno - 1, node.end_lineno or node.lineno):
        kinds[i] = kind


def layers(src: Path) -> Iterator[Row]:
    """Count the layers of core: in its contract, and as the longest chain of its imports."""
    project = src.parent / "pyproject.toml"
    settings = tomllib.loads(project.read_text("utf-8")) if project.exists() else {}
    for contract in settings.get("tool", {}).get("importlinter", {}).get("contracts", []):
        if contract.get("containers") == ["edgemerge.core"]:
            yield "core", "layers", len(contract["layers"])
    for part in PARTS[:-1]:
        if (src / "edgemerge" / part).exists():
            yield part, "longest import chain", _longest(_imports(src, part))


def _imports(src: Path, part: str) -> dict[str, set[str]]:
    """Return the modules of a package, and which of them each one imports when it runs."""
    paths = {_dotted(src, path): path for path in _modules(src, part)}
    found: dict[str, set[str]] = {name: set() for name in paths}
    for name, path in paths.items():
        for node in _running(ast.parse(path.read_text("utf-8")).body):
            if isinstance(node, ast.Import):
                wanted = [alias.name for alias in node.names]
            else:
                base = node.module or ""
                wanted = [f"{base}.{alias.name}" for alias in node.names]
                wanted = [each if each in paths else base for each in wanted]
            found[name] |= {each for each in wanted if each in paths and each != name}
    return found


def _dotted(src: Path, path: Path) -> str:
    return ".".join(path.relative_to(src).with_suffix("").parts).removesuffix(".__init__")


def _running(body: list[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """Return the imports at the top of a module that happen when it is imported."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.unparse(node.test):
            yield from _running(node.body + node.orelse)
        elif isinstance(node, ast.Try):
            yield from _running(node.body)


def _longest(imports: Mapping[str, set[str]]) -> int:
    known: dict[str, int] = {}

    def depth(name: str) -> int:
        if name not in known:
            known[name] = 1  # a cycle, as between a package and its modules, ends here
            known[name] = 1 + max((depth(each) for each in imports[name]), default=0)
        return known[name]

    return max(map(depth, imports))


# --- crossings ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Window:
    """A stretch of time, by the clock that all processes share."""

    start: int
    end: int

    @property
    def length(self) -> int:
        """How long it is, in nanoseconds."""
        return self.end - self.start


@dataclass(frozen=True)
class Trace:
    """What a program called: its functions, and the calls of every thread in turn."""

    names: list[tuple[str, str]]
    threads: dict[str, list[list[int]]]

    @classmethod
    def read(cls, path: Path) -> Trace:
        """Read what `benchmarks.traced` has written."""
        found = json.loads(path.read_text("ascii"))
        return cls([(name[0], name[1]) for name in found["names"]], found["threads"])

    def within(self, window: Window) -> Counter[tuple[str, str]]:
        """Count the calls of each function that began in a stretch of time."""
        found: Counter[tuple[str, str]] = Counter()
        for thread in self.threads.values():
            for start, _end, name, _begun, _parent in thread:
                if window.start <= start <= window.end:
                    found[self.names[name]] += 1
        return found

    def begun(self, window: Window) -> int:
        """Count the functions that began in a stretch of time, comprehensions left out."""
        return sum(
            bool(begun) and not self.names[name][1].endswith(COMPREHENSIONS)
            for thread in self.threads.values()
            for start, _end, name, begun, _parent in thread
            if window.start <= start <= window.end
        )

    def all(self) -> Counter[tuple[str, str]]:
        """Count all calls of each function."""
        return self.within(Window(0, 2**63))

    def judged(self) -> Counter[tuple[str, str]]:
        """Count the calls that the loop's file makes, and those below, where core is reached."""
        calls = self.threads["main"]
        loop = self._loop
        below: list[int] = []  # the call from the loop's file that a call is below; -1 for none
        for i, (_start, _end, name, _begun, parent) in enumerate(calls):
            if i == loop or parent < 0:
                below.append(-1 if i != loop else -2)
            elif below[parent] == -2:  # called from the loop's file
                below.append(-2 if self._file(name) == self._file(calls[loop][2]) else i)
            else:
                below.append(below[parent])
        roots = {below[i] for i, call in enumerate(calls) if self._core(call[2])} - {-1, -2}
        counted = (call[2] for i, call in enumerate(calls) if below[i] in roots)
        return Counter(self.names[name] for name in counted)

    @cached_property
    def _loop(self) -> int:
        """The innermost call that lasts from the first tenth of the calls of core to the last."""
        calls = self.threads["main"]
        core = [i for i, call in enumerate(calls) if self._core(call[2])]
        first, last = calls[core[len(core) // 10]], calls[core[len(core) * 9 // 10]]
        lasting = (i for i, c in enumerate(calls) if c[0] < first[0] and (c[1] or 2**63) > last[0])
        return max(lasting)

    def _file(self, name: int) -> str:
        return self.names[name][0]

    def _core(self, name: int) -> bool:
        return self._file(name).startswith("edgemerge/core/")


def _files(counted: Mapping[tuple[str, str], int], at_least: int = 1) -> set[str]:
    """Return the files in which there were at least so many calls."""
    found: Counter[str] = Counter()
    for (file, _name), count in counted.items():
        found[file] += count
    return {file for file, count in found.items() if count >= at_least}


@dataclass
class Programs:
    """Runs `edgemerge` of a source tree in processes of its own, in a folder."""

    src: Path
    folder: Path

    def run(self, *arguments: object) -> str:
        """Run a program to its end; give what it printed."""
        done = subprocess.run(
            self._line(*arguments),
            env=self._environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{arguments} failed: {done.stderr[-2000:]}")
        return done.stdout

    def command(self, *arguments: object) -> str:
        """Run a command of `edgemerge`."""
        return self.run("-m", "edgemerge", *arguments)

    @contextmanager
    def traced(self, out: Path, *arguments: object) -> Iterator[None]:
        """Run a command meanwhile, and let it write what it called when it is stopped."""
        line = self._line(TRACED, "calls", self.src, out, *arguments)
        with (self.folder / f"{out.name}.log").open("wb") as log:
            process = subprocess.Popen(
                line, env=self._environment, cwd=self.folder, stdout=log, stderr=log
            )
            try:
                yield
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(WAIT_S)

    def _line(self, *arguments: object) -> list[str]:
        return [sys.executable, "-P", *map(str, arguments)]

    @property
    def _environment(self) -> dict[str, str]:
        kept = {key: text for key, text in os.environ.items() if not key.startswith("EDGEMERGE_")}
        return kept | {"PYTHONPATH": str(self.src), "OPENBLAS_NUM_THREADS": "1"}


def sample_in_agent(programs: Programs, kind: str) -> Iterator[Row]:
    """Count what one sample crosses in an agent without exchange."""
    every, judged = (
        _less(*pair) for pair in zip(*(_agent_run(programs, kind, n) for n in (2, 1)), strict=True)
    )
    for what, counted in (("agent", every), ("judge + learn", judged)):
        name = f"one sample, {what}, {kind}"
        yield name, "calls", round(counted.total() / FEW, 1)
        yield name, "files, every sample", len(_files(counted, FEW))
        yield name, f"files, {FEW} samples", len(_files(counted))
    projected = sum(n for (_file, name), n in every.items() if name == "Projection.project")
    yield f"one sample, judge + learn, {kind}", "projections", round(projected / FEW, 2)


def _agent_run(programs: Programs, kind: str, times: int) -> tuple[Counter[Any], Counter[Any]]:
    folder, name = programs.folder, f"{kind}-{times}"
    lines = (folder / "rows.csv").read_text("ascii").splitlines()
    rows = [lines[i % len(lines)] for i in range(times * FEW)]
    (folder / f"{name}.csv").write_text("\n".join(rows) + "\n", "ascii")
    config = _configured(folder, name, kind, f'kind = "csv"\npath = "{name}.csv"\nheader = false')
    out = folder / f"{name}.json"
    programs.run(TRACED, "calls", programs.src, out, "agent", config)
    trace = Trace.read(out)
    return trace.all(), trace.judged()


def _less(more: Counter[Any], less: Counter[Any]) -> Counter[Any]:
    return more - less


def _configured(folder: Path, name: str, kind: str, source: str, more: str = "") -> Path:
    """Write a configuration that saves and reports so rarely that it happens at the end only."""
    path = folder / f"{name}.toml"
    path.write_text(
        f"""
device = "a"
state = "state-{name}"
[projection]
file = "projection"
[source]
{source}
[learner]
kind = "{kind}"
[save]
every = 100000000
every_s = 1e6
[[sinks]]
kind = "jsonl"
path = "{name}.jsonl"
{more}
""",
        "ascii",
    )
    return path


def requests_and_whole_way(programs: Programs) -> Iterator[Row]:
    """Run a server and an agent, and count what requests and one sample cross in them."""
    folder = programs.folder
    port_file, traces = folder / "port", [folder / "server.json"]
    windows: dict[str, list[Window]] = {}
    serve = ("serve", "--database", "db", "--port", "0", "--port-file", port_file)
    with programs.traced(traces[0], *serve):
        _wait(port_file.exists)
        port = int(port_file.read_text("ascii"))
        _enrolled(programs, port)
        server = Requests(folder, port)
        for _ in range(3):  # the first ones fill caches
            server.put()
            server.get("one pull", "a")
            server.get("one pull of patterns", "a")
        windows["quiet"] = [_quiet()]
        for _ in range(TIMES):
            windows.setdefault("one PUT", []).append(server.put())
            for what in PULLS:
                windows.setdefault(what, []).append(server.get(what, "a"))
        for i, name in enumerate(WAYS):
            traces.append(folder / f"agent-{i}.json")
            windows[name] = _whole_way(programs, server, name, traces[-1])
        server.close()
    hub, *agents = map(Trace.read, traces)
    for what in ("one PUT", *PULLS):
        yield from _requests(what, hub, windows[what], windows["quiet"][0])
    for name, agent in zip(WAYS, agents, strict=True):
        yield from _way(f"one sample, {name}", (agent, hub), *windows[name])


def _way(what: str, traces: tuple[Trace, Trace], way: Window, idle: Window) -> Iterator[Row]:
    counted = [trace.within(way) for trace in traces]
    quiet = [trace.within(idle) for trace in traces]
    agent, server = map(_files, counted)
    yield what, "calls", sum(map(Counter.total, map(_less, counted, quiet)))
    yield what, "functions begun", sum(t.begun(way) - t.begun(idle) for t in traces)
    yield what, "files", len(agent | server)
    yield what, "files, agent", len(agent)
    yield what, "files, server", len(server)


def _requests(what: str, server: Trace, windows: list[Window], idle: Window) -> Iterator[Row]:
    quiet = server.within(idle)
    counted = [server.within(window) - quiet for window in windows]
    yield what, "calls", median(each.total() for each in counted)
    yield what, "functions begun", median(map(server.begun, windows)) - server.begun(idle)
    yield what, "files", median(len(_files(each)) for each in counted)


def _operator(port: int) -> tuple[str, ...]:
    return "--server", f"http://127.0.0.1:{port}", "--token-file", "db.admin-token"


def _contributions(programs: Programs, port: int) -> str:
    return programs.command("fleet", "contributions", FLEET, "--json", *_operator(port))


def _enrolled(programs: Programs, port: int) -> None:
    """Make a fleet of a and b."""
    url, operator = f"http://127.0.0.1:{port}", _operator(port)
    few = ("--min-devices", "1")  # one device, whose change is given at once
    programs.command("fleet", "create", FLEET, "--projection", "projection", *few, *operator)
    for device in "ab":
        programs.command("fleet", "invite", FLEET, device, "--out", f"{device}.invited", *operator)
        invited = ("--invitation-file", f"{device}.invited", "--token-file", f"{device}.token")
        programs.command("enrol", url, FLEET, device, *invited)


@dataclass
class Requests:
    """One open connection to the server, by which device b pushes and a or b pull."""

    folder: Path
    port: int
    _revision: int = 0
    _connection: http.client.HTTPConnection | None = None

    def put(self) -> Window:
        """Push the next revision."""
        self._revision += 1
        data = (self.folder / f"b-{self._revision}").read_bytes()
        return self._ask("PUT", PUT, "b", data, 201)

    def get(self, what: str, device: str) -> Window:
        """Pull."""
        return self._ask("GET", PULLS[what], device, None, 200)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()

    def _ask(self, method: str, where: str, device: str, data: bytes | None, good: int) -> Window:
        if self._connection is None:
            self._connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        token = (self.folder / f"{device}.token").read_text("ascii").strip()
        headers = {"Authorization": f"Bearer {token}"}
        start = time.monotonic_ns()
        self._connection.request(method, where.format(fleet=FLEET), data, headers)
        reply = self._connection.getresponse()
        reply.read()
        if reply.status != good:
            raise SystemExit(f"{method} {where} was answered {reply.status}, expected {good}")
        time.sleep(QUIET_S)
        return Window(start, time.monotonic_ns())


def _whole_way(programs: Programs, server: Requests, name: str, out: Path) -> list[Window]:
    """Take one sample through agent, server and agent; give when that was, and when it was idle."""
    folder, (kind, every_s) = programs.folder, WAYS[name]
    source, results = folder / f"{out.stem}.csv", folder / f"{out.stem}.jsonl"
    lines = (folder / "rows.csv").read_text("ascii").splitlines(keepends=True)
    source.write_text("", "ascii")
    more = f"""
[exchange]
kind = "http"
url = "http://127.0.0.1:{server.port}"
fleet = "{FLEET}"
token_file = "a.token"
[sync]
every_s = 0
gate = 2
[report]
every_s = {every_s}
"""
    source_lines = f'kind = "tail"\npath = "{source.name}"\nheader = false'
    config = _configured(folder, out.stem, kind, source_lines, more)

    def feed(first: int, last: int) -> None:
        with source.open("a", encoding="ascii") as file:
            file.writelines(lines[first:last])
        _wait(lambda: _lines(results) == last)

    with programs.traced(out, "agent", config):
        feed(0, FIRST)
        programs.command("sync", config)
        feed(FIRST, GROWN)  # the release gate asks for some samples between two contributions
        server.put()  # so that there is something new to adopt
        before = _contributions(programs, server.port)
        start = time.monotonic_ns()
        feed(GROWN, GROWN + 1)
        programs.command("sync", config)
        feed(GROWN + 1, GROWN + 2)
        way = Window(start, time.monotonic_ns())
        time.sleep(QUIET_S)
        idle = _quiet(way.length / 1e9)
        if _contributions(programs, server.port) == before:
            raise SystemExit(f"{name}: nothing was pushed, so it was not the whole way")
        return [way, idle]


def _quiet(seconds: float = QUIET_S) -> Window:
    start = time.monotonic_ns()
    time.sleep(seconds)
    return Window(start, time.monotonic_ns())


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _wait(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not happened():
        if time.monotonic() > end:
            raise SystemExit(f"it did not happen within {WAIT_S:g} s")
        time.sleep(0.01)


# --- cost ---------------------------------------------------------------------------------------


def costs(programs: Programs, *, quick: bool) -> Iterator[Row]:
    """Measure what a sample costs in an agent, and in the library alone."""
    import numpy as np  # noqa: PLC0415 - after the number of threads is set

    yield "cost", "load of the machine at the start", round(os.getloadavg()[0], 1)
    for (n, hidden), rows in SIZES.items():
        rng = np.random.default_rng(n)
        count = 2 * WARM if quick else rows
        X = 0.2 * rng.normal(size=(count, 4)) @ rng.normal(0.0, 0.5, (4, n))
        X = np.round(X + rng.normal(0.0, 0.02, X.shape), 5)
        stem = programs.folder / f"cost-{n}"
        np.save(f"{stem}.npy", X)
        np.savetxt(f"{stem}-many.csv", X, "%.5f", ",")
        np.savetxt(f"{stem}-few.csv", X[:WARM], "%.5f", ",")
        for kind in ("detector", "bank"):
            runs = [_cost(programs, kind, (n, hidden), count, i) for i in range(RUNS)]
            best = {way: 1e6 * min(run[way] for run in runs) for way in runs[0]}
            yield from _cost_rows(f"cost, {kind}, n={n} N={hidden}", best)


def _cost(
    programs: Programs, kind: str, size: tuple[int, int], rows: int, run: int
) -> dict[str, float]:
    n, hidden = size
    out, spent = programs.folder / "cost.json", []
    for length in ("few", "many"):
        name = f"cost-{n}-{length}"
        config = programs.folder / f"{name}-{kind}-{run}.toml"
        config.write_text(
            f"""
device = "a"
state = "state-{config.stem}"
[projection]
n_inputs = {n}
n_hidden = {hidden}
[source]
kind = "csv"
path = "{name}.csv"
header = false
[learner]
kind = "{kind}"
[[sinks]]
kind = "jsonl"
path = "{config.stem}.jsonl"
""",
            "ascii",
        )
        programs.run(TRACED, "cost", out, "agent", config)
        spent.append(json.loads(out.read_text("ascii")))
    few, many = spent
    found = {f"agent, {way}": (many[way] - few[way]) / (rows - WARM) for way in many}
    programs.run(TRACED, "library", out, kind, hidden, programs.folder / f"cost-{n}.npy")
    library = json.loads(out.read_text("ascii"))
    return found | {f"library, {way}": seconds for way, seconds in library.items()}


def _cost_rows(what: str, best: Mapping[str, float]) -> Iterator[Row]:
    yield from ((what, f"{way}, µs", round(value, 1)) for way, value in best.items())
    once = best.get("library, learn_and_score") or best["library, score, then learn"]
    yield what, "agent, process / library", round(best["agent, process"] / once, 2)
    yield what, "agent, main / library", round(best["agent, main"] / once, 2)
    twice = best.get("library, score, then learn_and_score")
    if twice is not None:
        yield what, "score twice, %", round(100.0 * (twice / once - 1.0), 1)


# --- all ----------------------------------------------------------------------------------------


def counts(src: Path) -> list[Row]:
    """Count what a source tree holds, and what samples and requests cross in it."""
    found = [*sizes(src), *layers(src)]
    with tempfile.TemporaryDirectory(prefix="em-") as scratch:
        programs = Programs(src, Path(scratch))
        programs.run(TRACED, "material", scratch)
        for kind in ("detector", "bank"):
            found += sample_in_agent(programs, kind)
        return [*found, *requests_and_whole_way(programs)]


def times(src: Path, *, quick: bool) -> list[Row]:
    """Measure what a sample costs in a source tree."""
    with tempfile.TemporaryDirectory(prefix="em-") as scratch:
        return list(costs(Programs(src, Path(scratch)), quick=quick))


def commit_of(src: Path) -> str:
    """Return the commit of a source tree, with a + if it has changed since."""
    git = ["git", "-C", str(src)]
    head = subprocess.run(
        [*git, "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True, check=True
    )
    changed = subprocess.run(
        [*git, "status", "--porcelain", "."], capture_output=True, text=True, check=True
    )
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")


def save(commit: str, rows: list[Row], path: Path) -> list[Row]:
    """Put the rows of a commit into a file, in place of those that it has; give all of it."""
    known: list[tuple[str, Row]] = []
    if path.exists():
        with path.open(encoding="utf-8", newline="") as file:
            read = list(csv.reader(file))[1:]
        known = [(of, (what, measure, float(value))) for of, what, measure, value in read]
    redone = {_is_cost(row) for row in rows}
    own = [row for of, row in known if of == commit and _is_cost(row) not in redone]
    rows = sorted(own + rows, key=_is_cost)  # a sort that keeps the order, costs last
    kept = [(of, row) for of, row in known if of != commit] + [(commit, row) for row in rows]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["commit", "what", "measure", "value"])
        writer.writerows([of, what, measure, f"{x:.10g}"] for of, (what, measure, x) in kept)
    return rows


def _is_cost(row: Row) -> bool:
    return row[0].startswith("cost")


def shown(commit: str, rows: list[Row]) -> list[Table]:
    """Show sizes with one row to a package, and the rest with one row to a measure."""
    parts = Table("part", *MEASURES, *KINDS, title=f"Sizes at {commit}")
    counted = {(what, measure): value for what, measure, value in rows}
    listed = {(part, measure) for part in (*PARTS, "all") for measure in (*MEASURES, *KINDS)}
    for part in (*PARTS, "all"):
        cells = (f"{counted.get((part, measure), 0):,.0f}" for measure in (*MEASURES, *KINDS))
        parts.add_row(part, *cells)
    rest = Table("what", "measure", "value", title=f"Crossings and cost at {commit}")
    for what, measure, value in rows:
        if (what, measure) not in listed:
            rest.add_row(what, measure, f"{value:,g}")
    return [parts, rest]


def main() -> None:
    """Measure, write and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.layout")
    parser.add_argument("--src", type=Path, default=ROOT / "src", help="the folder of edgemerge")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "layout.csv")
    parser.add_argument("--quick", action="store_true", help="few rows; times mean nothing")
    parser.add_argument("--only", choices=("counts", "cost"), help="leave the other rows alone")
    given = parser.parse_args()
    src = given.src.resolve()
    commit, rows = commit_of(src), [] if given.only == "cost" else counts(src)
    if given.only != "counts":
        rows += times(src, quick=given.quick)
    rows = save(commit, rows, given.out)
    console = Console(width=None if os.isatty(1) else 160)
    for table in shown(commit, rows):
        console.print(table)
    console.print(f"wrote {given.out}", highlight=False)


if __name__ == "__main__":
    main()
