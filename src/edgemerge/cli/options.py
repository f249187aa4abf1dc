"""Options that several commands share: the projection, and the server with its token."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from edgemerge.cli.group import CommandError
from edgemerge.cli.output import progress, remark

Command = TypeVar("Command", bound=Callable[..., Any])

FILE = click.Path(dir_okay=False, path_type=Path)


def parse_numbers(_ctx: click.Context, _option: click.Parameter, value: str | None) -> Any:
    """Read one number, or one for each input with commas between."""
    if value is None:
        return None
    try:
        ends = [float(part) for part in value.split(",")]
    except ValueError as error:
        raise click.BadParameter(f"found {value!r}, expected numbers with commas") from error
    return ends if len(ends) > 1 else ends[0]


PROJECTION_OPTIONS = (
    click.option(
        "--projection",
        type=FILE,
        help="Take the projection in this file, of any kind.",
    ),
    click.option("--like", type=FILE, help="Take the range of inputs from these samples."),
    click.option(
        "--low",
        callback=parse_numbers,
        metavar="X[,...]",
        help="Least usual value, for all or each.",
    ),
    click.option(
        "--high",
        callback=parse_numbers,
        metavar="X[,...]",
        help="Largest usual value, for all or each.",
    ),
    click.option("--inputs", "n_inputs", type=int, help="Number of inputs."),
    click.option("--hidden", "n_hidden", type=int, help="Number of hidden values. Default: 64."),
    click.option("--seed", type=int, help="Seed of the random layer. Default: 0."),
    click.option(
        "--activation",
        type=click.Choice(["tanh", "sigmoid", "relu", "identity"]),
        help="Default: tanh.",
    ),
    click.option(
        "--grid-bits",
        type=int,
        metavar="BITS",
        help="Samples are rounded to steps of 2^-BITS. Default: 12.",
    ),
    click.option("--names", type=FILE, help="Names of the inputs, one to a line."),
)
BULK_SUFFIXES = (".npy", ".parquet", ".pq")  # read as `edgemerge bulk` does
PROJECTION_SETTINGS = (
    "low",
    "high",
    "n_inputs",
    "n_hidden",
    "seed",
    "activation",
    "grid_bits",
    "names",
)


def projection_options(command: Command) -> Command:
    """Add the options; `build_projection` makes a projection of them."""
    for option in reversed(PROJECTION_OPTIONS):
        command = option(command)
    return command


def build_projection(
    *, projection: Path | None, like: Path | None, columns: list[str], **settings: Any
) -> Any:
    """Make or load the projection that the options describe."""
    given = {name: settings[name] for name in PROJECTION_SETTINGS if settings.get(name) is not None}
    if projection is not None:
        if given or like:
            raise CommandError(
                "found --projection and settings of another one, expected one of both"
            )
        return load_projection(projection)
    if "names" in given:
        given["names"] = given["names"].read_text(encoding="utf-8").split("\n")
        given["names"] = [name.strip() for name in given["names"] if name.strip()]
        given.setdefault("n_inputs", len(given["names"]))
    return (
        _projection_from_samples(like, columns, given) if like else _projection_from_settings(given)
    )


def load_projection(path: Path) -> Any:
    """Give the projection of a saved file, whatever else is in it."""
    from edgemerge.core.projection import Projection
    from edgemerge.files import load

    thing: Any = load(path)
    return thing if isinstance(thing, Projection) else getattr(thing, "stats", thing).projection


def _projection_from_settings(given: dict[str, Any]) -> Any:
    from edgemerge.core.projection import Projection

    if not {"low", "high", "n_inputs"} <= set(given):
        raise CommandError(
            "say what devices agree on: --projection FILE (that of another device), "
            "--like SAMPLES, or --inputs, --low and --high"
        )
    return Projection(**given)


def _projection_from_samples(like: Path, columns: list[str], given: dict[str, Any]) -> Any:
    from numpy import vstack

    from edgemerge.core.errors import SampleError
    from edgemerge.core.projection import Projection

    read = _range_of_csv if like.suffix.lower() not in BULK_SUFFIXES else _range_of_chunks
    ends = read(like, columns, given.get("names", ()))
    if not ends:
        raise SampleError(f"{like}: found no samples, expected some to take the range from")
    X = vstack(ends)
    if given.pop("n_inputs", X.shape[1]) != X.shape[1]:
        raise SampleError(f"{like}: found {X.shape[1]} columns, expected as many as --inputs says")
    if "low" in given or "high" in given:
        raise CommandError("found --like together with --low or --high, expected one of both")
    return Projection.of_data(X, **given)


def _range_of_csv(like: Path, columns: list[str], expected: Sequence[str]) -> list[Any]:
    from edgemerge.cli.samples import open_csv

    with open_csv(str(like), "range", columns=columns, expected=expected) as rows:
        return [end for X in rows for end in (X.min(0), X.max(0))]


def _range_of_chunks(like: Path, columns: list[str], expected: Sequence[str]) -> list[Any]:
    from edgemerge.bulk import chunks_of
    from edgemerge.bulk.chunk import finite_rows, format_of
    from edgemerge.core.errors import SampleError

    chunks = chunks_of(like, columns=columns)
    samples = (X for chunk in chunks for X in format_of(str(like)).read(chunk, expected))
    try:
        return [end for X in map(finite_rows, samples) if len(X) for end in (X.min(0), X.max(0))]
    except SampleError as error:
        raise SampleError(f"{like}: {error}") from error


ca_option = click.option(
    "--ca-file",
    type=FILE,
    envvar="EDGEMERGE_CA_FILE",
    help="Certificates to trust; needed if the server made its own.",
)
SERVER_OPTIONS = (
    click.option(
        "--server",
        metavar="URL",
        required=True,
        envvar="EDGEMERGE_SERVER",
        show_envvar=True,
        help="Such as https://hub:8470.",
    ),
    click.option(
        "--token-file",
        type=FILE,
        required=True,
        envvar="EDGEMERGE_TOKEN_FILE",
        show_envvar=True,
        help="The operator's token.",
    ),
    ca_option,
)


def server_options(command: Command) -> Command:
    """Add the options; `operator_connection` takes them."""
    for option in reversed(SERVER_OPTIONS):
        command = option(command)
    return command


@contextmanager
def operator_connection(*, server: str, token_file: Path, ca_file: Path | None) -> Iterator[Any]:
    """Ask a server with the token in a file, showing that something happens while it lasts."""
    with server_connection(server, read_token(token_file), ca_file) as hub:
        yield hub


@contextmanager
def server_connection(server: str, token: str | None, ca_file: Path | None) -> Iterator[Any]:
    """Ask a server with a token."""
    from edgemerge.exchange.client import ServerClient

    hub = ServerClient(server, token, ca_file=str(ca_file) if ca_file else None)
    try:
        with progress(f"asking {server}"):
            yield hub
    finally:
        hub.close()


def read_token(path: Path) -> str:
    """Read the token in a file, with a word if others could read it too."""
    token = path.read_text(encoding="utf-8", errors="replace").strip()
    if not token:
        raise CommandError(f"{path} is empty, expected a token")
    if readable_by_others(path):
        remark(f"{path} can be read by others: chmod 600 {path}")
    return token


def readable_by_others(path: Path) -> bool:
    """Say whether anybody but its owner may read a file."""
    return bool(path.stat().st_mode & 0o077)
