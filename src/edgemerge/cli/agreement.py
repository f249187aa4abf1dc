"""Options that say which projection devices agree on, for `learn --new` and `fleet create`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from edgemerge.cli.group import Failure

Command = TypeVar("Command", bound=Callable[..., Any])

FILE = click.Path(dir_okay=False, path_type=Path)


def numbers(_ctx: click.Context, _option: click.Parameter, value: str | None) -> Any:
    """Read one number, or one for each input with commas between."""
    if value is None:
        return None
    try:
        ends = [float(part) for part in value.split(",")]
    except ValueError as error:
        raise click.BadParameter(f"found {value!r}, expected numbers with commas") from error
    return ends if len(ends) > 1 else ends[0]


OPTIONS = (
    click.option(
        "--projection",
        type=FILE,
        help="Take the projection in this file, of any kind.",
    ),
    click.option("--like", type=FILE, help="Take the range of inputs from these samples."),
    click.option(
        "--low", callback=numbers, metavar="X[,...]", help="Least usual value, for all or each."
    ),
    click.option(
        "--high", callback=numbers, metavar="X[,...]", help="Largest usual value, for all or each."
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
BULK = (".npy", ".parquet", ".pq")  # read as `edgemerge bulk` does
SETTINGS = ("low", "high", "n_inputs", "n_hidden", "seed", "activation", "grid_bits", "names")


def projection_options(command: Command) -> Command:
    """Add the options; `agreed` makes a projection of them."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def agreed(
    *, projection: Path | None, like: Path | None, columns: list[str], **settings: Any
) -> Any:
    """Make or load the projection that the options describe."""
    given = {name: settings[name] for name in SETTINGS if settings.get(name) is not None}
    if projection is not None:
        if given or like:
            raise Failure("found --projection and settings of another one, expected one of both")
        return projection_in(projection)
    if "names" in given:
        given["names"] = given["names"].read_text(encoding="utf-8").split("\n")
        given["names"] = [name.strip() for name in given["names"] if name.strip()]
        given.setdefault("n_inputs", len(given["names"]))
    return _of_samples(like, columns, given) if like else _of_settings(given)


def projection_in(path: Path) -> Any:
    """Give the projection of a saved file, whatever else is in it."""
    from edgemerge.core.projection import Projection
    from edgemerge.files import load

    thing = load(path)
    return thing if isinstance(thing, Projection) else getattr(thing, "stats", thing).projection


def _of_settings(given: dict[str, Any]) -> Any:
    from edgemerge.core.projection import Projection

    if not {"low", "high", "n_inputs"} <= set(given):
        raise Failure(
            "say what devices agree on: --projection FILE (that of another device), "
            "--like SAMPLES, or --inputs, --low and --high"
        )
    return Projection(**given)


def _of_samples(like: Path, columns: list[str], given: dict[str, Any]) -> Any:
    from numpy import vstack

    from edgemerge.core.errors import SampleError
    from edgemerge.core.projection import Projection

    read = _ends_in_csv if like.suffix.lower() not in BULK else _ends_in_chunks
    ends = read(like, columns, given.get("names", ()))
    if not ends:
        raise SampleError(f"{like}: found no samples, expected some to take the range from")
    X = vstack(ends)
    if given.pop("n_inputs", X.shape[1]) != X.shape[1]:
        raise SampleError(f"{like}: found {X.shape[1]} columns, expected as many as --inputs says")
    if "low" in given or "high" in given:
        raise Failure("found --like together with --low or --high, expected one of both")
    return Projection.of_data(X, **given)


def _ends_in_csv(like: Path, columns: list[str], expected: Sequence[str]) -> list[Any]:
    from edgemerge.cli.samples import rows_of

    with rows_of(str(like), "range", columns=columns, expected=expected) as rows:
        return [end for X in rows for end in (X.min(0), X.max(0))]


def _ends_in_chunks(like: Path, columns: list[str], expected: Sequence[str]) -> list[Any]:
    from edgemerge.bulk import chunks_of
    from edgemerge.bulk.reading import finite, kind_of
    from edgemerge.core.errors import SampleError

    chunks = chunks_of(like, columns=columns)
    samples = (X for chunk in chunks for X in kind_of(str(like)).read(chunk, expected))
    try:
        return [end for X in map(finite, samples) if len(X) for end in (X.min(0), X.max(0))]
    except SampleError as error:
        raise SampleError(f"{like}: {error}") from error
