"""`edgemerge doctor`: check the installation, an agent's configuration and a server."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from ctypes import CDLL
from importlib import metadata
from itertools import islice
from pathlib import Path
from threading import Event
from time import time
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import click

from edgemerge import __version__
from edgemerge.cli.agent import effective_config, fleet_words
from edgemerge.cli.group import (
    BLAS_THREAD_VARIABLES,
    CommandError,
    ExitCode,
    example,
    needs,
    one_line,
)
from edgemerge.cli.options import (
    DEFAULT_PORT,
    FILE,
    allows_plain_http,
    ca_option,
    insecure_option,
    readable_by_others,
)
from edgemerge.cli.output import json_option, print_json, progress
from edgemerge.core.errors import (
    DeniedError,
    EdgemergeError,
    SettingError,
    UnavailableError,
    UnknownError,
    install_command,
)

if TYPE_CHECKING:
    from edgemerge.core.projection import Projection

MAX_CHECKED_SAMPLES = 10_000  # of a source's file
CHECKED_ROWS = 100
MIN_FREE_BYTES = 2**28  # below it a state folder or database may soon be full
EARLIEST_TIME = 1735689600  # 2025-01-01: an earlier clock was never set
DAY_S = 86400.0
REQUIREMENT = re.compile(
    r"([\w.-]+)(?:\[[\w,]+\])?(?:[^;]*?>=([\d.]+))?.*?(?:extra == ['\"]([\w-]+)['\"])?$"
)
EXTRAS = (
    *("plot", "sklearn", "river", "server", "postgres", "mqtt", "opcua", "modbus", "parquet"),
    *("dask", "flower"),
)

# Wheels rename the functions of OpenBLAS.
SYMBOL_PREFIXES, SYMBOL_SUFFIXES = ("", "scipy_"), ("", "64_", "_64")


class Finding(NamedTuple):
    """The result of one check: "ok", "warn" or "fail", and what to do."""

    level: str
    about: str
    words: str
    advice: str = ""


def check_versions() -> Iterator[Finding]:
    """Check Python and the packages that every installation has."""
    found = ".".join(map(str, sys.version_info[:3]))
    advice = "edgemerge needs Python 3.11 or newer"
    yield _ok_or_fail("python", found, sys.version_info >= (3, 11), advice)
    yield Finding("ok", "edgemerge", __version__)
    for name, least, extra in requirements():
        if not extra:
            yield from _check_version(name, least, f"pip install '{name}>={least}'")


def check_extras() -> Iterator[Finding]:
    """Check the packages of the extras."""
    wanted: dict[str, list[tuple[str, str]]] = {}
    for name, least, extra in requirements():
        if extra in EXTRAS and name != "edgemerge":
            wanted.setdefault(extra, []).append((name, least))
    for extra, packages in wanted.items():
        missing = [name for name, _ in packages if _installed_version(name) is None]
        if missing:
            words = f"not installed ({', '.join(missing)} missing)"
            yield Finding("ok", f"extra {extra}", words, install_command(extra))
            continue
        for name, least in packages:
            line = f"pip install '{name}>={least}'"
            yield from _check_version(name, least, line, f"extra {extra}")


def requirements() -> list[tuple[str, str, str]]:
    """Return name, minimum version and extra of every package that edgemerge may need."""
    with suppress(metadata.PackageNotFoundError):
        lines = metadata.requires("edgemerge") or []
        matches = [REQUIREMENT.match(line) for line in lines]
        return [tuple(part or "" for part in found.groups()) for found in matches if found]  # type: ignore[misc]  # three groups
    return []


def check_blas() -> Iterator[Finding]:
    """Check the BLAS library and its number of threads."""
    import numpy as np

    with suppress(TypeError, KeyError):  # NumPy 1.24 has no such list
        about = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
        yield Finding("ok", "blas", f"{about['name']} {about['version']}")
    threads = _blas_threads()
    advice = "one thread is faster for small matrices: export OPENBLAS_NUM_THREADS=1"
    yield Finding("warn" if threads > 1 else "ok", "blas threads", str(threads), advice)


def check_kernel() -> Iterator[Finding]:
    """Say whether the compiled kernel or NumPy scores and learns samples."""
    from edgemerge import kernel

    advice = "install a C compiler, then edgemerge again: single samples take a fifth of the time"
    yield Finding("ok", "kernel", kernel.PATH, "" if kernel.Run else advice)


def check_clock(folder: Path = Path()) -> Iterator[Finding]:
    """Check the wall clock: invitations and certificates depend on it."""
    now, advice = time(), "set the clock, or let a time service set it (timedatectl)"
    newest = max((path.stat().st_mtime for path in _some_files(folder)), default=0.0)
    if now < EARLIEST_TIME:
        yield Finding("fail", "clock", "it was never set", advice)
    elif newest > now + DAY_S:
        yield Finding("fail", "clock", "it is behind the times of files in this folder", advice)
    else:
        yield Finding("ok", "clock", "plausible")


def check_folder(path: Path, about: str = "folder") -> Iterator[Finding]:
    """Check that a folder can be written to and has free space."""
    from edgemerge.files import write_atomically

    there = next(each for each in [path, *path.absolute().parents] if each.exists())
    probe = there / f".edgemerge-doctor-{os.getpid()}"
    try:
        write_atomically(b"probe", probe)
        probe.unlink()
    except OSError as error:
        advice = "chown it to the user that runs edgemerge"
        yield Finding("fail", about, f"{there} cannot be written to: {error.strerror}", advice)
        return
    yield Finding("ok", about, f"{there} can be written to")
    free = shutil.disk_usage(there).free
    words = f"{free / 2**30:.1f} GiB free"
    yield Finding(
        "ok" if free > MIN_FREE_BYTES else "warn",
        f"{about} space",
        words,
        "free some space on that disk",
    )


def check_token_file(path: Path) -> Iterator[Finding]:
    """Check that a secret exists and only its owner can read it."""
    try:
        mode = path.stat().st_mode & 0o777
    except OSError as error:
        advice = "`edgemerge enrol` writes it"
        yield Finding("fail", "token file", f"{path}: {error.strerror}", advice)
        return
    level = "fail" if readable_by_others(path) else "ok"
    yield Finding(level, "token file", f"{path} has mode {mode:03o}", f"chmod 600 {path}")


def check_systemd() -> Iterator[Finding]:
    """Check whether systemd runs."""
    if os.environ.get("NOTIFY_SOCKET"):
        yield Finding("ok", "systemd", "started this program and gets its status")
    elif Path("/run/systemd/system").is_dir():
        yield Finding("ok", "systemd", "runs here; units are in deploy/")
    else:
        yield Finding("ok", "systemd", "does not run here; use another service manager")


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
    """Ask the loaded libraries; without one, read the environment."""
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


SERVER_TIMEOUT_S = 10.0  # a small server takes seconds to describe itself for the first time
COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command(epilog=example("edgemerge doctor pump-3.toml"))
@click.argument("file", type=FILE, required=False, metavar="[CONFIG.toml]")
@click.option("--server", metavar="URL", envvar="EDGEMERGE_SERVER", help="Check this server too.")
@click.option("--config", type=FILE, help="The same as CONFIG.toml.")
@ca_option
@insecure_option
@json_option
def doctor(
    file: Path | None,
    server: str | None,
    config: Path | None,
    ca_file: Path | None,
    *,
    as_json: bool,
) -> None:
    """Check the installation, a configuration and a server.

    Checks versions, threads, clock, disk, port, server and the configuration of an agent, whether
    the first 100 rows of the source's file can be read, whether its samples lie in the projection's
    range, and whether the fleet takes the device's token and has its projection. Every line says
    ok, warn or fail, and what to do. The exit code is 1 if a check fails.
    """
    with progress("checking"):
        found = list(_run_checks(server, file or config, ca_file))
    if as_json:
        print_json([finding._asdict() for finding in found])
    else:
        _print_findings(found)
    if any(finding.level == "fail" for finding in found):
        raise SystemExit(ExitCode.FAILED)


def _run_checks(server: str | None, config: Path | None, ca_file: Path | None) -> Iterator[Finding]:
    yield from check_versions()
    yield from check_extras()
    yield from check_blas()
    yield from check_kernel()
    yield from check_systemd()
    if config is None:
        yield from check_clock()
        yield from check_folder(Path(), "this folder")
    else:
        yield from check_config(config, asked=server)
    if server is not None:
        pin = _pin_of(Path(found)) if (found := os.environ.get("EDGEMERGE_TOKEN_FILE")) else None
        yield from check_server(server, ca_file, pin, insecure=allows_plain_http())
    elif config is None:
        yield check_port()
    given = os.environ.get("EDGEMERGE_TOKEN_FILE")
    if given:
        yield from check_token_file(Path(given))


def check_config(path: Path, *, asked: str | None = None) -> Iterator[Finding]:
    """Check everything that an agent configuration names."""
    from edgemerge.agent.config import GatewayConfig, read_configuration

    try:
        config = read_configuration(path, environment=os.environ)
    except (EdgemergeError, OSError) as error:
        yield Finding("fail", "configuration", one_line(error), "`edgemerge agent --check`")
        return
    yield from check_clock(config.state)
    if not isinstance(config, GatewayConfig):
        yield Finding("ok", "configuration", f"{path} is for {config.device}")
        yield from check_device(config, asked=asked)
        return
    yield Finding("ok", "configuration", f"{path} is for {len(config.devices)} devices")
    for device in config.devices:
        for finding in check_device(device, asked=asked):
            yield finding._replace(about=f"{device.device}: {finding.about}")
            if finding.about == "server":  # once is enough if all have the same
                asked = device.exchange.url


def check_device(config: Any, *, asked: str | None = None) -> Iterator[Finding]:
    """Check everything that the configuration of one device names."""
    yield from check_folder(config.state, "state folder")
    config, held, why = effective_config(config)
    if held.seen:
        level = "warn" if held.refused or why else "ok"
        advice = "`edgemerge agent --check` says what is set by whom"
        yield Finding(level, "fleet", fleet_words(held, why), advice)
    yield from check_source(config)
    yield from check_exchange(config.exchange, asked=asked)
    yield from check_fleet(config)
    if config.next is not None:
        for finding in check_device(config.next, asked=config.exchange.url):
            yield finding._replace(about=f"next: {finding.about}")


def check_source(config: Any) -> Iterator[Finding]:
    """Check that readings are there, and can be read."""
    source = config.source
    if source.kind in ("opcua", "modbus"):
        yield from check_polled_source(config)
    elif source.path is None:
        return
    elif not source.path.exists():
        yield Finding("warn", "source", f"{source.path} does not exist yet", "see [source] path")
    elif source.path.is_fifo():
        words = f"{source.path} is a pipe, which is not read here"
        yield Finding("ok", "source", words)
    else:
        yield Finding("ok", "source", f"{source.path} exists")
        yield from check_table(config)
        yield from check_rows(config)
        yield from check_range(config)


def check_exchange(exchange: Any, *, asked: str | None = None) -> Iterator[Finding]:
    """Check the other side of an exchange, unless it was asked before."""
    if exchange.token_file is not None:
        yield from check_token_file(exchange.token_file)
    if exchange.kind == "folder" and exchange.path is not None:
        yield from check_folder(exchange.path, "exchange folder")
    if exchange.kind == "http" and exchange.url is not None and exchange.url != asked:
        pin = _pin_of(exchange.token_file)
        yield from check_server(exchange.url, exchange.ca_file, pin, insecure=exchange.insecure)


def check_fleet(config: Any) -> Iterator[Finding]:
    """Check that the fleet is there, takes the device's token, and has the same projection."""
    from edgemerge.agent.factory import tls_options
    from edgemerge.exchange.client import ServerClient
    from edgemerge.files import read_token

    exchange = config.exchange
    if exchange.kind != "http" or not (exchange.url and exchange.fleet and exchange.token_file):
        return
    if not exchange.token_file.exists():
        return  # `check_token_file` says so
    advice = "see [exchange]"
    try:
        token = read_token(exchange.token_file)
        options = tls_options(config) | {"timeout_s": SERVER_TIMEOUT_S}
        with closing(ServerClient(exchange.url, token, **options)) as client:
            theirs = client.projection(exchange.fleet)
        yield _compare_projections(config, theirs)
        return
    except UnavailableError:
        return  # `check_server` says why
    except DeniedError as error:
        words = one_line(error)
        advice = "see exchange.fleet and token_file: `edgemerge enrol` gets a token of the fleet"
    except UnknownError as error:
        words = one_line(error)
        advice = "correct exchange.fleet, or make it with `edgemerge fleet create`"
    except (EdgemergeError, OSError) as error:
        words = one_line(error)
    yield Finding("fail", "fleet", words, advice)


def _compare_projections(config: Any, theirs: Projection) -> Finding:
    """Say whether the device has the fleet's projection: in its file, or else in its state."""
    from edgemerge.agent.state import PROJECTION_FILE
    from edgemerge.files import load

    fleet, saved = config.exchange.fleet, config.state / PROJECTION_FILE
    where, advice = "[projection]", "leave [projection] out to use the fleet's, or name its fleet"
    ours = config.projection
    if ours is None and saved.exists():
        where, ours = str(saved), load(saved, type(theirs))
        advice = "choose another state folder, or name its fleet"
    if ours is None or ours.fingerprint == theirs.fingerprint:
        has = "and gives it its projection" if ours is None else "and has the same projection"
        return Finding("ok", "fleet", f"{fleet} takes the token of {config.device}, {has}")
    shown = theirs.fingerprint[:12], ours.fingerprint[:12]
    words = f"{fleet} has the projection {shown[0]}, {where} {shown[1]}: the agent would stop"
    return Finding("fail", "fleet", words, advice)


def check_polled_source(config: Any) -> Iterator[Finding]:
    """Check that the server of a source answers, and has all values."""
    from threading import Timer

    from edgemerge.agent.factory import make_source

    try:
        needs(config.source.kind, {"opcua": "asyncua", "modbus": "pymodbus"}[config.source.kind])
        source = make_source(config)
    except (CommandError, EdgemergeError) as error:
        yield Finding("fail", "source", one_line(error), "see [source]")
        return
    stop = Event()
    timer = Timer(config.source.timeout_s + 1.0, stop.set)
    timer.start()
    try:
        row = next(source.read(stop), None)
    except EdgemergeError as error:
        yield Finding("fail", "source", one_line(error), "see [source]")
        return
    finally:
        stop.set()
        timer.cancel()
    if row is None:
        why = getattr(source, "why_skipped", "") or getattr(source, "waiting", "")
        yield Finding(
            "fail", "source", why, "see [source]: is the server on, and the address right?"
        )
        return
    values = dict(zip(row.names or (), row.values.tolist(), strict=True))
    shown = ", ".join(f"{name} {value:.4g}" for name, value in islice(values.items(), 4))
    yield Finding("ok", "source", f"gives {len(values)} values: {shown}")


def _pin_of(token_file: Path | None) -> str | None:
    """Return the fingerprint of the server's certificate that a token carries."""
    from edgemerge.certificates import split_token
    from edgemerge.files import read_token

    try:
        return None if token_file is None else split_token(read_token(token_file))[1]
    except SettingError:
        return None  # `check_token_file` says why


def check_table(config: Any) -> Iterator[Finding]:
    """Check whether the source's file is the table that [source] says, and what to set if not."""
    from edgemerge.agent.proposal import inspect_file
    from edgemerge.agent.rows import time_columns
    from edgemerge.core.errors import SampleError

    source = config.source
    if source.kind not in ("csv", "jsonl", "tail"):
        return
    try:
        report = inspect_file(source.path)
    except (SampleError, OSError) as error:
        yield Finding("fail", "table", one_line(error), "see [source]")
        return
    form = source.format if source.kind == "tail" else source.kind
    wanted: dict[str, Any] = {
        "kind": form,
        # A file that is also UTF-8 has plain letters only, which are the same in all of them.
        "encoding": "utf-8" if report.encoding == "utf-8" else source.encoding,
        "delimiter": source.delimiter,
        "decimal": source.decimal,
    }
    found: dict[str, Any] = {"kind": report.format, "encoding": report.encoding}
    found |= {"delimiter": report.delimiter, "decimal": report.decimal}
    times, found_times = time_columns(source.time), time_columns(report.time)
    if times and times == found_times:
        wanted["time_format"], found["time_format"] = source.time_format, report.time_format
    if report.format == "jsonl" or len(report.columns) == 1:
        wanted, found = {"kind": form}, {"kind": report.format}
    wrong = [name for name in wanted if wanted[name] != found[name]]
    for name in wrong:
        words = f"source.{name} is {wanted[name]!r}, and the file looks like {found[name]!r}"
        unneeded = f"leave source.{name} out: ISO 8601 and Unix seconds need none"
        advice = unneeded if found[name] is None else f'set source.{name} = "{found[name]}"'
        yield Finding("fail", "table", words, advice)
    names = [column.name for column in report.columns]
    chosen = [*source.columns, *times]
    chosen += [] if source.device_column is None else [source.device_column]
    missing = [c for c in chosen if isinstance(c, str) and not c.isdecimal() and c not in names]
    if missing and not wrong:
        words = f"there is no column {missing[0]!r} among {', '.join(names)[:200]}"
        yield Finding("fail", "table", words, "see [source] columns and time")
    if not wrong and not missing:
        rows = f"{report.rows:,} rows" if report.whole else f"the first {report.rows:,} rows"
        words = f"{rows} of {len(names)} columns, {report.skipped:,} do not fit"
        yield Finding("ok" if not report.skipped else "warn", "table", words, "see its log")
        yield from _check_two_times(times, found_times)


def _check_two_times(
    times: tuple[int | str, ...], found: tuple[int | str, ...]
) -> Iterator[Finding]:
    """Check whether date and time are read from two columns, if the file has them in two."""
    if len(found) == 2 and times == found:
        yield Finding("ok", "time", f"date and time are in {found[0]} and {found[1]}")
    elif len(found) == 2 and len(times) == 1 and times[0] in found:
        words = f"source.time is {times[0]!r}, and date and time are in {found[0]} and {found[1]}"
        columns = json.dumps(found, ensure_ascii=False)
        yield Finding("warn", "time", words, f"set source.time = {columns}")


def check_rows(config: Any) -> Iterator[Finding]:
    """Check whether the first rows of the source's file can be read as the agent does."""
    from edgemerge.agent.factory import make_file_source, make_quality
    from edgemerge.agent.sync import Clocks

    if config.source.kind not in ("csv", "jsonl", "tail"):
        return
    # Of the rows themselves; time stands still here.
    quality = make_quality(config, Clocks(wall=lambda: 0.0, steady=lambda: 0.0))
    source: Any = make_file_source(config)
    read = 0
    enough = _Enough(lambda: read + source.skipped)
    try:
        for reading in source.read(enough):
            read += 1
            quality.row(reading)
    except (EdgemergeError, OSError) as error:
        yield Finding("fail", "rows", one_line(error), "see [source]")
        return
    yield _rows_finding(read, source.skipped, source.why_skipped)
    quality.tend(skipped=0, why="", waiting=str)
    yield from (Finding("warn", each.name, each.words) for each in quality.problems)


class _Enough(Event):
    """Stops a source after some rows, whether they can be read or not."""

    def __init__(self, count: Callable[[], int]) -> None:
        super().__init__()
        self._count = count

    def is_set(self) -> bool:
        return self._count() >= CHECKED_ROWS


def _rows_finding(read: int, skipped: int, why: str) -> Finding:
    if not read and not skipped:
        return Finding("warn", "rows", "there is no row yet", "see [source] path")
    words, level = f"{read:,} of the first {read + skipped:,} rows can be read", "ok"
    if not read:
        words, level = f"none of the first {skipped:,} rows can be read, the last: {why}", "fail"
    elif skipped:
        words, level = f"{words}, the last that cannot: {why}", "warn"
    return Finding(level, "rows", words, "see [source]")


def check_range(config: Any) -> Iterator[Finding]:
    """Check whether the samples of the source's file lie in the projection's range."""
    import numpy as np

    from edgemerge.agent.judge import RANGE_CHECK_SAMPLES, is_mostly_outside
    from edgemerge.core.monitor import FAR_OUTSIDE

    if config.projection is None or config.source.kind not in ("csv", "jsonl", "tail"):
        return
    about, total, outside = "range", 0, np.zeros(config.projection.n_inputs, np.int64)
    rows, first = 0, 0
    try:
        for x in islice(_samples_of(config), MAX_CHECKED_SAMPLES):
            far = np.abs(config.projection.to_grid(x)) > FAR_OUTSIDE
            total, rows, outside = total + 1, rows + bool(far.any()), outside + far
            first = rows if total <= RANGE_CHECK_SAMPLES else first
    except (EdgemergeError, OSError) as error:
        yield Finding("warn", about, one_line(error), "see [source], [features] and [projection]")
        return
    if not total:
        yield Finding("fail", about, "no sample could be read", "see [source] and [features]")
        return
    words = f"{rows:,} of the first {total:,} samples are far outside the projection's range"
    if rows:
        names = config.projection.names or [str(i + 1) for i in range(len(outside))]
        words += f", most often input {names[outside.argmax()]}"
    stops = is_mostly_outside(first, min(total, RANGE_CHECK_SAMPLES))  # the agent would
    level = "ok" if not rows else "fail" if stops else "warn"
    advice = "set low and high in [projection] on all devices: where each input usually lies"
    yield Finding(level, about, words, advice)


def _samples_of(config: Any) -> Iterator[Any]:
    from edgemerge.agent.factory import make_features, make_file_source

    features = make_features(config)
    for reading in make_file_source(config).read(Event()):
        sample = features.push(reading.values)
        if sample is not None:
            yield sample


def check_server(
    url: str, ca_file: Path | None, pin: str | None = None, *, insecure: bool = False
) -> Iterator[Finding]:
    """Check that a server answers and is ready."""
    from edgemerge.exchange.connection import Connection, is_loopback

    advice = "start it with `edgemerge serve`, or correct its address"
    try:
        asked = Connection(
            url, ca_file=ca_file, pin=pin, insecure=insecure, timeout_s=SERVER_TIMEOUT_S
        )
        with closing(asked) as server:
            server.ask("GET", "/healthz").must_be(200)
            yield _check_server_version(url, server.ask("GET", "/openapi.json").must_be(200).json())
            server.ask("GET", "/readyz").must_be(200)
            yield Finding("ok", "server ready", "accepts contributions")
    except EdgemergeError as error:
        yield Finding("fail", "server", one_line(error), advice)
    if (
        urlsplit(url).scheme == "http"
        and insecure
        and not is_loopback(urlsplit(url).hostname or "")
    ):
        words = "tokens travel over plain http, readable on the way"
        yield Finding(
            "warn", "server", words, "use https: `edgemerge serve` has it beyond this machine"
        )


def _check_server_version(url: str, about: Any) -> Finding:
    info = about.get("info", {}) if isinstance(about, dict) else {}
    if info.get("title") != "edgemerge":
        return Finding("fail", "server", f"{url} is not an edgemerge server", "correct the address")
    advice = f"this is {__version__}: install the same version on both"
    same = info.get("version") == __version__
    words = f"{url} answers, version {str(info.get('version'))[:20]}"
    return Finding("ok" if same else "warn", "server", words, advice)


def check_port(port: int = DEFAULT_PORT) -> Finding:
    """Check whether the port of `edgemerge serve` is free."""
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
    return Finding("warn", about, "used by another program", "use another --port, or 0")


def _print_findings(found: Iterable[Finding]) -> None:
    found = list(found)
    width = max(len(finding.about) for finding in found)
    for level, about, words, advice in found:
        shown = click.style(f"{level:<4}", fg=COLOURS[level])
        click.echo(f"{shown}  {about:<{width}}  {words}")
        if advice and (level != "ok" or "pip install" in advice):
            click.echo(f"{'':<{width + 8}}{advice}")
