"""Options that several commands share: the projection, and the server with its token."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from shlex import quote
from typing import Any

import click

from edgemerge.cli.group import CommandError, ExitCode, option, options
from edgemerge.cli.output import json_option, progress, remark

FILE = click.Path(dir_okay=False, path_type=Path)
DEFAULT_PORT = 8470  # of the server
INSECURE = "edgemerge.insecure"  # the key of --insecure in a context of click


force_option = click.option("--force", is_flag=True, help="Overwrite the file if it exists.")


def check_writable(path: Path | None, *, force: bool) -> None:
    """Check a file to write before anything is asked for: it must be new, unless with --force."""
    if path is None:
        return
    if path.exists() and not force:
        raise CommandError(f"{path} already exists: --force overwrites it")
    if not os.access(path.absolute().parent, os.W_OK | os.X_OK):
        raise CommandError(f"{path.parent} is not a writable folder: make it first")


def parse_numbers(_ctx: click.Context, _option: click.Parameter, value: str | None) -> Any:
    """Parse one number, or one per input separated by commas."""
    if value is None:
        return None
    try:
        ends = [float(part) for part in value.split(",")]
    except ValueError as error:
        raise click.BadParameter(f"found {value!r}, expected numbers with commas") from error
    return ends if len(ends) > 1 else ends[0]


projection_options = options(
    click.option(
        "--projection",
        type=FILE,
        help="Use the projection in this file of any kind, such as another device's.",
    ),
    option(
        "--range-from",
        "like",
        old={"--like": "--range-from"},
        type=FILE,
        help="Take the range of each input from these samples.",
    ),
    click.option(
        "--low",
        callback=parse_numbers,
        metavar="X[,...]",
        help="Lowest usual value: one for all inputs, or one each.",
    ),
    click.option(
        "--high",
        callback=parse_numbers,
        metavar="X[,...]",
        help="Highest usual value: one for all inputs, or one each.",
    ),
    option("--n-inputs", old={"--inputs": "--n-inputs"}, type=int, help="Number of inputs."),
    option(
        "--n-hidden",
        old={"--hidden": "--n-hidden"},
        type=int,
        help="Number of hidden values. Default: 64; with --range-from 128, from 512 rows on 256.",
    ),
    click.option("--seed", type=int, help="Seed of the random layer. Default: 0."),
    click.option(
        "--activation",
        type=click.Choice(["tanh", "sigmoid", "relu", "identity", "cosine"]),
        help="Default: tanh; with --range-from, cosine.",
    ),
    click.option(
        "--width", type=float, help="Width of the random weights. Default: by activation."
    ),
    click.option(
        "--grid-bits",
        type=int,
        metavar="BITS",
        help="Samples are rounded to steps of 2^-BITS. Default: 12.",
    ),
    option(
        "--names-file",
        "names",
        old={"--names": "--names-file"},
        type=FILE,
        help="Names of the inputs, one per line.",
    ),
)
MAX_RANGE_ROWS = 8192  # that a range is taken from
BULK_SUFFIXES = (".npy", ".parquet", ".pq")  # read as `edgemerge bulk` does


def build_projection(
    *, projection: Path | None, like: Path | None, columns: list[str], **settings: Any
) -> Any:
    """Return the projection that `projection_options` describe."""
    given = {name: value for name, value in settings.items() if value is not None}
    if projection is not None:
        if given or like:
            raise CommandError(
                "found --projection together with settings of a projection, expected one of them"
            )
        from edgemerge.files import load

        return projection_of(load(projection))
    if "names" in given:
        given["names"] = given["names"].read_text(encoding="utf-8").split("\n")
        given["names"] = [name.strip() for name in given["names"] if name.strip()]
        given.setdefault("n_inputs", len(given["names"]))
    if like:
        return _projection_from_samples(like, columns, given)
    from edgemerge.core.projection import Projection

    if not {"low", "high", "n_inputs"} <= set(given):
        raise CommandError(
            "found no projection, which all devices must share: add --projection FILE (of another "
            "device), --range-from SAMPLES, or --n-inputs, --low and --high"
        )
    return Projection(**given)


def projection_of(value: Any) -> Any:
    """Return the projection of a saved value of any kind."""
    from edgemerge.core.projection import Projection

    return value if isinstance(value, Projection) else getattr(value, "stats", value).projection


def _projection_from_samples(like: Path, columns: list[str], given: dict[str, Any]) -> Any:
    from edgemerge.core.errors import SampleError
    from edgemerge.core.projection import Projection

    read = _rows_of_csv if like.suffix.lower() not in BULK_SUFFIXES else _rows_of_chunks
    X = read(like, columns, given.get("names", ()))
    if not len(X):
        raise CommandError(
            f"{like}: found no samples, expected some to take the range from", ExitCode.NO_DATA
        )
    if given.pop("n_inputs", X.shape[1]) != X.shape[1]:
        raise SampleError(f"{like}: found {X.shape[1]} columns, expected --n-inputs of them")
    if "low" in given or "high" in given:
        raise CommandError("found --range-from together with --low or --high, expected one of them")
    return Projection.of_data(X, **given)


RISING_ROWS = 100  # that must rise, all of them


def evenly_spaced_rows(batches: Iterable[Any]) -> Any:
    """Return at most 8192 rows of all batches, evenly spaced; all rows if there are fewer."""
    from numpy import empty, vstack

    rows, stride, seen = empty((0, 0)), 1, 0
    for X in batches:
        more = X[-seen % stride :: stride]
        rows, seen = vstack([rows, more]) if rows.size else more, seen + len(X)
        while len(rows) > MAX_RANGE_ROWS:
            rows, stride = rows[::2], 2 * stride
    return rows


def _rows_of_csv(like: Path, columns: list[str], expected: Sequence[str]) -> Any:
    from edgemerge.cli.samples import open_csv

    with open_csv(str(like), "range", columns=columns, expected=expected) as rows:
        X = evenly_spaced_rows(rows)
    if not columns:
        _remark_times(X, rows.names)
    return X


def _remark_times(X: Any, names: Sequence[str]) -> None:
    """Say which inputs only rise: an input of times makes every later sample an odd one."""
    rises = (X[1:] > X[:-1]).all(axis=0) if len(X) >= RISING_ROWS else [False] * len(names)
    rest = [name for name, only_rises in zip(names, rises, strict=True) if not only_rises]
    if 0 < len(rest) < len(names):
        words = " and ".join(name for name in names if name not in rest)
        remark(
            f"note: as a time or a counter does, {words} only rises; if it is no reading, leave "
            f"it out: --columns {quote(','.join(rest))}"
        )


def _rows_of_chunks(like: Path, columns: list[str], expected: Sequence[str]) -> Any:
    from edgemerge.bulk import chunks_of
    from edgemerge.bulk.chunk import finite_rows, format_of
    from edgemerge.core.errors import SampleError

    chunks = chunks_of(like, columns=columns)
    samples = (X for chunk in chunks for X in format_of(str(like)).read(chunk, expected))
    try:
        return evenly_spaced_rows(X for X in map(finite_rows, samples) if len(X))
    except SampleError as error:
        raise SampleError(f"{like}: {error}") from error


def check_device_name(name: str) -> None:
    """Refuse a name that no device can have, with one that it can."""
    from edgemerge.agent.proposal import device_names
    from edgemerge.exchange.configuration import PLAIN_NAME

    if not re.fullmatch(PLAIN_NAME, name):
        raise CommandError(
            f"found the device name {name!r}, expected letters, digits, '.', '_' and '-', at most "
            f"100: such as {device_names([name])[0]}"
        )


ca_option = click.option(
    "--ca-file",
    type=FILE,
    envvar="EDGEMERGE_CA_FILE",
    help="CA certificates to trust, for a server with a certificate of its own.",
)
insecure_option = click.option(
    "--insecure",
    is_flag=True,
    envvar="EDGEMERGE_INSECURE",
    expose_value=False,
    callback=lambda context, _, value: context.meta.update({INSECURE: value}),
    help="Allow plain http to another machine; the token can be read on the network.",
)
server_options = options(
    click.option(
        "--server",
        metavar="URL",
        required=True,
        envvar="EDGEMERGE_SERVER",
        show_envvar=True,
        help="Address of the server, such as https://hub:8470.",
    ),
    click.option(
        "--token-file",
        type=FILE,
        required=True,
        envvar="EDGEMERGE_TOKEN_FILE",
        show_envvar=True,
        help="File with the token of your account.",
    ),
    ca_option,
    insecure_option,
)
operator_options = options(server_options, json_option)


def allows_plain_http() -> bool:
    """Return whether the running command was called with `--insecure`."""
    return bool(click.get_current_context().meta.get(INSECURE, False))


def operator_connection(
    *, server: str, token_file: Path, ca_file: Path | None
) -> AbstractContextManager[Any]:
    """Connect as `server_options` say, with the token in a file."""
    return server_connection(server, read_own_token(token_file), ca_file)


@contextmanager
def server_connection(server: str, token: str | None, ca_file: Path | None) -> Iterator[Any]:
    """Connect to a server, and show progress until it is closed."""
    from edgemerge.exchange.client import ServerClient

    if server.rstrip("/").endswith(":"):  # of a port file that was read too early
        raise CommandError(
            f"found the address {server}, expected one with a port: start the server, wait until "
            "it logs `listening`, and set the address again"
        )
    client = ServerClient(server, token, ca_file=ca_file, insecure=allows_plain_http())
    with closing(client), progress(f"asking {server}"):
        yield client


def read_own_token(path: Path) -> str:
    """Read the token in a file; print a warning if other users can read it."""
    from edgemerge.files import read_token

    token = read_token(path)
    if readable_by_others(path):
        remark(f"Warning: {path} can be read by other users: chmod 600 {path}")
    return token


def readable_by_others(path: Path) -> bool:
    """Return whether users other than the owner may read a file."""
    return bool(path.stat().st_mode & 0o077)
