"""`edgemerge doctor`: check the installation, an agent's configuration and a server."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from ctypes import CDLL
from importlib import metadata
from pathlib import Path
from time import time
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import click

from edgemerge import __version__
from edgemerge.cli.group import BLAS_THREAD_VARIABLES, one_line
from edgemerge.cli.options import ca_option
from edgemerge.cli.output import json_option, print_json, progress
from edgemerge.core.errors import EdgemergeError

MIN_FREE_BYTES = 2**28  # bytes; below it a state folder or database may soon be full
EARLIEST_TIME = 1735689600  # 2025-01-01: a clock before it was never set
DAY_S = 86400.0
REQUIREMENT = re.compile(
    r"([\w.-]+)(?:\[[\w,]+\])?(?:[^;]*?>=([\d.]+))?.*?(?:extra == ['\"]([\w-]+)['\"])?$"
)
EXTRAS = ("plot", "sklearn", "river", "server", "postgres", "mqtt", "dask", "flower")

SYMBOL_PREFIXES, SYMBOL_SUFFIXES = (
    ("", "scipy_"),
    ("", "64_", "_64"),
)  # wheels give OpenBLAS names of their own


class Finding(NamedTuple):
    """One thing that was looked at: "ok", "warn" or "fail", with what to do about it."""

    level: str
    about: str
    words: str
    advice: str = ""


def check_versions() -> Iterator[Finding]:
    """Python and the packages that every installation has."""
    found = ".".join(map(str, sys.version_info[:3]))
    advice = "edgemerge needs Python 3.11 or newer"
    yield _ok_or_fail("python", found, sys.version_info >= (3, 11), advice)
    yield Finding("ok", "edgemerge", __version__)
    for name, least, extra in requirements():
        if not extra:
            yield from _check_version(name, least, f"pip install '{name}>={least}'")


def check_extras() -> Iterator[Finding]:
    """Optional parts, and what is missing of them."""
    wanted: dict[str, list[tuple[str, str]]] = {}
    for name, least, extra in requirements():
        if extra in EXTRAS and name != "edgemerge":
            wanted.setdefault(extra, []).append((name, least))
    for extra, packages in wanted.items():
        missing = [name for name, _ in packages if _installed_version(name) is None]
        if missing:
            words = f"not installed ({', '.join(missing)} missing)"
            yield Finding("ok", f"extra {extra}", words, f"pip install 'edgemerge[{extra}]'")
            continue
        for name, least in packages:
            line = f"pip install --upgrade 'edgemerge[{extra}]'"
            yield from _check_version(name, least, line, f"extra {extra}")


def requirements() -> list[tuple[str, str, str]]:
    """Give name, least version and extra of every package that edgemerge may need."""
    with suppress(metadata.PackageNotFoundError):
        lines = metadata.requires("edgemerge") or []
        matches = [REQUIREMENT.match(line) for line in lines]
        return [tuple(part or "" for part in found.groups()) for found in matches if found]  # type: ignore[misc]  # three groups
    return []


def check_blas() -> Iterator[Finding]:
    """Which library multiplies matrices, and with how many threads."""
    import numpy as np

    with suppress(TypeError, KeyError):  # NumPy 1.24 has no such list
        about = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
        yield Finding("ok", "blas", f"{about['name']} {about['version']}")
    threads = _blas_threads()
    advice = "for matrices of our size one is faster: export OPENBLAS_NUM_THREADS=1"
    yield Finding("warn" if threads > 1 else "ok", "blas threads", str(threads), advice)


def check_clock(folder: Path = Path()) -> Iterator[Finding]:
    """The wall clock: revoked tokens, invitations and certificates depend on it."""
    now, advice = time(), "set the clock, or let a time service set it (timedatectl)"
    newest = max((path.stat().st_mtime for path in _some_files(folder)), default=0.0)
    if now < EARLIEST_TIME:
        yield Finding("fail", "clock", "it was never set", advice)
    elif newest > now + DAY_S:
        yield Finding("fail", "clock", "it is behind the times of files here", advice)
    else:
        yield Finding("ok", "clock", "no sign that it is wrong")


def check_folder(path: Path, about: str = "folder") -> Iterator[Finding]:
    """A place for state: can be written to, reaches the disk, has room."""
    from edgemerge.files import write_atomically

    there = next(each for each in [path, *path.absolute().parents] if each.exists())
    probe = there / f".edgemerge-doctor-{os.getpid()}"
    try:
        write_atomically(b"probe", probe)
        probe.unlink()
    except OSError as error:
        advice = "give it to the user that runs edgemerge: chown"
        yield Finding("fail", about, f"{there} cannot be written to: {error.strerror}", advice)
        return
    yield Finding("ok", about, f"{there} can be written to")
    free = shutil.disk_usage(there).free
    words = f"{free / 2**30:.1f} GiB free"
    yield Finding(
        "ok" if free > MIN_FREE_BYTES else "warn", f"{about} room", words, "make room on that disk"
    )


def check_token_file(path: Path) -> Iterator[Finding]:
    """A secret: there, and for nobody else to read."""
    try:
        mode = path.stat().st_mode & 0o777
    except OSError as error:
        advice = "`edgemerge enrol` makes it"
        yield Finding("fail", "token file", f"{path}: {error.strerror}", advice)
        return
    closed = not mode & 0o077
    words = f"{path} has mode {mode:03o}"
    yield Finding("ok" if closed else "fail", "token file", words, f"chmod 600 {path}")


def check_systemd() -> Iterator[Finding]:
    """Whether somebody wants to know that a service is ready."""
    if os.environ.get("NOTIFY_SOCKET"):
        yield Finding("ok", "systemd", "started this program and is told when a service is ready")
    elif Path("/run/systemd/system").is_dir():
        yield Finding("ok", "systemd", "runs here; units for it are in deploy/")
    else:
        yield Finding("ok", "systemd", "does not run here; start the programs in another way")


def _check_version(name: str, least: str, line: str, about: str = "") -> Iterator[Finding]:
    found = _installed_version(name)
    enough = found is not None and _version_tuple(found) >= _version_tuple(least)
    shown = f"{name} {found}" if about else found or "missing"
    yield _ok_or_fail(about or name, shown, enough, f"{least} or newer is needed: {line}")


def _ok_or_fail(about: str, words: str, good: object, advice: str) -> Finding:
    return Finding("ok", about, words) if good else Finding("fail", about, words, advice)


def _installed_version(name: str) -> str | None:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(name)
    return None


def _version_tuple(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)[:3]]


def _blas_threads() -> int:
    """Ask the libraries that are loaded; where there is none of them, take the user's word."""
    found = [
        ask() for library in _loaded_libraries("openblas") for ask in _thread_counters(library)
    ]
    set_by = [
        int(os.environ[name])
        for name in BLAS_THREAD_VARIABLES
        if os.environ.get(name, "").isdigit()
    ]
    return max(found or set_by[:1] or [os.cpu_count() or 1])


def _loaded_libraries(word: str) -> Iterator[CDLL]:
    with suppress(OSError):
        lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
        for path in {line.split()[-1] for line in lines if word in line}:
            yield CDLL(path)


def _thread_counters(library: CDLL) -> list[Callable[[], int]]:
    names = [
        f"{front}openblas_get_num_threads{back}"
        for front in SYMBOL_PREFIXES
        for back in SYMBOL_SUFFIXES
    ]
    return [getattr(library, name) for name in names if hasattr(library, name)]


def _some_files(folder: Path) -> list[Path]:
    ours = list(Path(__file__).parent.glob("*.py"))
    with suppress(OSError):
        return [*ours, *(path for path in folder.iterdir() if path.is_file())]
    return ours


DEFAULT_PORT = 8470
SERVER_TIMEOUT_S = 3.0
FILE = click.Path(dir_okay=False, path_type=Path)
COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command()
@click.option("--server", metavar="URL", envvar="EDGEMERGE_SERVER", help="Ask this server too.")
@click.option("--config", type=FILE, help="Look at this configuration of an agent too.")
@ca_option
@json_option
def doctor(server: str | None, config: Path | None, ca_file: Path | None, *, as_json: bool) -> None:
    """Look for what is wrong with the set-up.

    Versions, threads, clock, disk, port, server, configuration. Every line says ok, warn or fail,
    and what to do. The exit code is 1 if anything fails.
    """
    with progress("looking"):
        found = list(_run_checks(server, config, ca_file))
    if as_json:
        print_json([finding._asdict() for finding in found])
    else:
        _print_findings(found)
    if any(finding.level == "fail" for finding in found):
        raise SystemExit(1)


def _run_checks(server: str | None, config: Path | None, ca_file: Path | None) -> Iterator[Finding]:
    yield from check_versions()
    yield from check_extras()
    yield from check_blas()
    yield from check_systemd()
    if config is None:
        yield from check_clock()
        yield from check_folder(Path(), "this folder")
    else:
        yield from check_config(config, asked=server)
    if server is not None:
        yield from check_server(server, ca_file)
    elif config is None:
        yield check_port()
    given = os.environ.get("EDGEMERGE_TOKEN_FILE")
    if given:
        yield from check_token_file(Path(given))


def check_config(path: Path, *, asked: str | None = None) -> Iterator[Finding]:
    """Look at everything that the configuration of an agent names."""
    from edgemerge.agent.config import read_config

    try:
        config = read_config(path, environment=os.environ)
    except (EdgemergeError, OSError) as error:
        yield Finding("fail", "configuration", one_line(error), "`edgemerge agent --check`")
        return
    yield Finding("ok", "configuration", f"{path} is that of {config.device}")
    yield from check_clock(config.state)
    yield from check_folder(config.state, "state folder")
    source = config.source
    if source.path is not None and not source.path.exists():
        yield Finding("warn", "source", f"{source.path} is not there yet", "see [source] path")
    elif source.path is not None:
        yield Finding("ok", "source", f"{source.path} is there")
    exchange = config.exchange
    if exchange.token_file is not None:
        yield from check_token_file(exchange.token_file)
    if exchange.kind == "folder" and exchange.path is not None:
        yield from check_folder(exchange.path, "exchange folder")
    if exchange.kind == "http" and exchange.url is not None and exchange.url != asked:
        yield from check_server(exchange.url, exchange.ca_file)


def check_server(url: str, ca_file: Path | None) -> Iterator[Finding]:
    """Ask a server how it is."""
    from edgemerge.exchange.connection import Connection

    advice = "start it with `edgemerge serve`, or give its address as http://host:port"
    try:
        there = Connection(
            url, ca_file=str(ca_file) if ca_file else None, timeout_s=SERVER_TIMEOUT_S
        )
        try:
            there.ask("GET", "/healthz").must_be(200)
            yield _check_server_version(url, there.ask("GET", "/openapi.json").must_be(200).json())
            there.ask("GET", "/readyz").must_be(200)
            yield Finding("ok", "server ready", "it takes contributions")
        finally:
            there.close()
    except EdgemergeError as error:
        yield Finding("fail", "server", one_line(error), advice)
    if urlsplit(url).scheme == "http" and urlsplit(url).hostname not in ("127.0.0.1", "localhost"):
        words = "tokens go over plain http, for all on the way to read"
        yield Finding("warn", "server", words, "use https: `edgemerge serve --tls-cert --tls-key`")


def _check_server_version(url: str, about: Any) -> Finding:
    from edgemerge import __version__

    told = about.get("info", {}) if isinstance(about, dict) else {}
    if told.get("title") != "edgemerge":
        return Finding("fail", "server", f"{url} is some other server", "give the right address")
    advice = f"this is {__version__}: bring both to the same version"
    same = told.get("version") == __version__
    words = f"{url} answers, version {str(told.get('version'))[:20]}"
    return Finding("ok" if same else "warn", "server", words, advice)


def check_port(port: int = DEFAULT_PORT) -> Finding:
    """Say whether `edgemerge serve` would find its port free."""
    about = f"port {port}"
    with socket.socket() as here:
        here.settimeout(SERVER_TIMEOUT_S)
        if here.connect_ex(("127.0.0.1", port)) != 0:
            return Finding("ok", about, "free: `edgemerge serve` can use it")
    try:
        found = next(iter(check_server(f"http://127.0.0.1:{port}", None)))
    except StopIteration:
        found = Finding("fail", about, "")
    if found.level == "ok":
        return Finding("ok", about, found.words)
    return Finding("warn", about, "taken by another program", "use --port, with another or 0")


def _print_findings(found: Iterable[Finding]) -> None:
    found = list(found)
    width = max(len(finding.about) for finding in found)
    for level, about, words, advice in found:
        shown = click.style(f"{level:<4}", fg=COLOURS[level])
        click.echo(f"{shown}  {about:<{width}}  {words}")
        if advice and (level != "ok" or "pip install" in advice):
            click.echo(f"{'':<{width + 8}}{advice}")
