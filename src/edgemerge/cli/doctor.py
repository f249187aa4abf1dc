"""`edgemerge doctor`: looks at the set-up and says what to do about what is wrong."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from edgemerge.cli import checkup
from edgemerge.cli.checkup import Finding
from edgemerge.cli.group import in_one_line
from edgemerge.cli.hub import ca_option
from edgemerge.cli.output import json_option, progress, say_json
from edgemerge.core.errors import EdgemergeError

PORT = 8470
TIMEOUT_S = 3.0
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
        found = list(_all(server, config, ca_file))
    if as_json:
        say_json([finding._asdict() for finding in found])
    else:
        _print(found)
    if any(finding.level == "fail" for finding in found):
        raise SystemExit(1)


def _all(server: str | None, config: Path | None, ca_file: Path | None) -> Iterator[Finding]:
    yield from checkup.versions()
    yield from checkup.extras()
    yield from checkup.blas()
    yield from checkup.systemd()
    if config is None:
        yield from checkup.clock()
        yield from checkup.folder(Path(), "this folder")
    else:
        yield from configured(config, asked=server)
    if server is not None:
        yield from served(server, ca_file)
    elif config is None:
        yield port_of_server()
    given = os.environ.get("EDGEMERGE_TOKEN_FILE")
    if given:
        yield from checkup.token_file(Path(given))


def configured(path: Path, *, asked: str | None = None) -> Iterator[Finding]:
    """Look at everything that the configuration of an agent names."""
    from edgemerge.agent.config import read_config

    try:
        config = read_config(path, environment=os.environ)
    except (EdgemergeError, OSError) as error:
        yield Finding("fail", "configuration", in_one_line(error), "`edgemerge agent --check`")
        return
    yield Finding("ok", "configuration", f"{path} is that of {config.device}")
    yield from checkup.clock(config.state)
    yield from checkup.folder(config.state, "state folder")
    source = config.source
    if source.path is not None and not source.path.exists():
        yield Finding("warn", "source", f"{source.path} is not there yet", "see [source] path")
    elif source.path is not None:
        yield Finding("ok", "source", f"{source.path} is there")
    exchange = config.exchange
    if exchange.token_file is not None:
        yield from checkup.token_file(exchange.token_file)
    if exchange.kind == "folder" and exchange.path is not None:
        yield from checkup.folder(exchange.path, "exchange folder")
    if exchange.kind == "http" and exchange.url is not None and exchange.url != asked:
        yield from served(exchange.url, exchange.ca_file)


def served(url: str, ca_file: Path | None) -> Iterator[Finding]:
    """Ask a server how it is."""
    from edgemerge.exchange.connection import Connection

    advice = "start it with `edgemerge serve`, or give its address as http://host:port"
    try:
        there = Connection(url, ca_file=str(ca_file) if ca_file else None, timeout_s=TIMEOUT_S)
        try:
            there.ask("GET", "/healthz").must_be(200)
            yield _version(url, there.ask("GET", "/openapi.json").must_be(200).json())
            there.ask("GET", "/readyz").must_be(200)
            yield Finding("ok", "server ready", "it takes contributions")
        finally:
            there.close()
    except EdgemergeError as error:
        yield Finding("fail", "server", in_one_line(error), advice)
    if urlsplit(url).scheme == "http" and urlsplit(url).hostname not in ("127.0.0.1", "localhost"):
        words = "tokens go over plain http, for all on the way to read"
        yield Finding("warn", "server", words, "use https: `edgemerge serve --tls-cert --tls-key`")


def _version(url: str, about: Any) -> Finding:
    from edgemerge import __version__

    told = about.get("info", {}) if isinstance(about, dict) else {}
    if told.get("title") != "edgemerge":
        return Finding("fail", "server", f"{url} is some other server", "give the right address")
    advice = f"this is {__version__}: bring both to the same version"
    same = told.get("version") == __version__
    words = f"{url} answers, version {str(told.get('version'))[:20]}"
    return Finding("ok" if same else "warn", "server", words, advice)


def port_of_server(port: int = PORT) -> Finding:
    """Say whether `edgemerge serve` would find its port free."""
    about = f"port {port}"
    with socket.socket() as here:
        here.settimeout(TIMEOUT_S)
        if here.connect_ex(("127.0.0.1", port)) != 0:
            return Finding("ok", about, "free: `edgemerge serve` can use it")
    try:
        found = next(iter(served(f"http://127.0.0.1:{port}", None)))
    except StopIteration:
        found = Finding("fail", about, "")
    if found.level == "ok":
        return Finding("ok", about, found.words)
    return Finding("warn", about, "taken by another program", "use --port, with another or 0")


def _print(found: Iterable[Finding]) -> None:
    found = list(found)
    width = max(len(finding.about) for finding in found)
    for level, about, words, advice in found:
        shown = click.style(f"{level:<4}", fg=COLOURS[level])
        click.echo(f"{shown}  {about:<{width}}  {words}")
        if advice and (level != "ok" or "pip install" in advice):
            click.echo(f"{'':<{width + 8}}{advice}")
