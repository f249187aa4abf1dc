"""Options that say which projection devices agree on, for `learn --new` and `fleet create`."""

from __future__ import annotations

from collections.abc import Callable
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
    click.option("--like", type=FILE, help="Take the range of inputs from this CSV of samples."),
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
            "--like SAMPLES.csv, or --inputs, --low and --high"
        )
    return Projection(**given)


def _of_samples(like: Path, columns: list[str], given: dict[str, Any]) -> Any:
    from numpy import vstack

    from edgemerge.cli.samples import rows_of
    from edgemerge.core.errors import SampleError
    from edgemerge.core.projection import Projection

    expected = given.get("names", ())
    with rows_of(str(like), "range", columns=columns, expected=expected) as rows:
        batches = list(rows)
    if not batches:
        raise SampleError(f"{like}: found no samples, expected some to take the range from")
    X = vstack(batches)
    if given.pop("n_inputs", X.shape[1]) != X.shape[1]:
        raise SampleError(f"{like}: found {X.shape[1]} columns, expected as many as --inputs says")
    ends = {end: given.pop(end, None) for end in ("low", "high")}
    found = Projection.of_data(X, **given)
    if ends == {"low": None, "high": None}:
        return found
    raise Failure("found --like together with --low or --high, expected one of both")
