"""The command line: each command parses, calls one library function and prints."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from edgemerge import __version__
from edgemerge.core.errors import EdgemergeError

THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


class Commands(click.Group):
    """A group whose commands fail with one line for the user instead of a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; our own errors and those of the file system end it with code 2."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # the reader has seen enough: click ends quietly
            raise
        except (EdgemergeError, OSError) as error:
            raise Failure(in_one_line(error)) from error


class Failure(click.ClickException):
    """A command that could not do what it was asked."""

    exit_code = 2


def in_one_line(error: Exception) -> str:
    """Say what went wrong, without line breaks and error numbers."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="edgemerge", message="%(prog)s %(version)s")
def main() -> None:
    """Detectors that learn on each device what is normal, and add up exactly."""
    one_blas_thread()


def one_blas_thread() -> None:
    """For matrices of our size one thread beats many; a setting of the user's is left alone.

    It counts only before numpy is imported, which is why commands import what they need inside.
    """
    if not any(name in os.environ for name in THREADS):
        os.environ.update(dict.fromkeys(THREADS, "1"))


def needs(extra: str, module: str) -> ModuleType:
    """Import an optional part of edgemerge, or say how to install it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        missing = (error.name or module).partition(".")[0]
        raise SystemExit(f"{missing} is missing: pip install 'edgemerge[{extra}]'") from error


@main.command()
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("edgemerge-demo"),
    show_default=True,
    help="Folder for the figure.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=7,
    show_default=True,
    help="Seed of simulation and projection.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON.")
def demo(out: Path, seed: int, *, as_json: bool) -> None:
    """Show five simulated pumps before and after merging.

    Each pump learns one pattern of normal, alone and sample by sample. Then all exchange what they
    learnt, once. A table goes to the terminal, a figure to the folder.
    """
    from edgemerge.demo.fleet import run
    from edgemerge.demo.table import record, summary, table

    outcome = run(seed)
    if as_json:
        click.echo(json.dumps(record(outcome), indent=2))
    else:
        say(table(outcome), "", summary(outcome), "")
    try:
        figure = needs("plot", "edgemerge.demo.figure")
    except SystemExit as advice:
        click.echo(f"No figure: {advice}", err=True)
        return
    out.mkdir(parents=True, exist_ok=True)
    figure.plot(outcome, out / "demo.png")
    click.echo(f"Figure: {out / 'demo.png'}", err=True)


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def show(file: Path, *, as_json: bool) -> None:
    """Say what is in a saved FILE.

    Whose it is, how many samples, and of which projection.
    """
    from edgemerge.files import load

    found = description(load(file))
    if as_json:
        click.echo(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        for line in lines(found):
            click.echo(line)


def description(thing: Any) -> dict[str, Any]:
    """Give what can be told about a saved value without its numbers."""
    from edgemerge.core.bank import Bank
    from edgemerge.core.contribution import Contribution
    from edgemerge.core.detector import Detector
    from edgemerge.core.ledger import Ledger
    from edgemerge.core.projection import Projection
    from edgemerge.core.stats import Stats

    facts: dict[type, Callable[[Any], dict[str, Any]]] = {
        Projection: lambda _: {},
        Stats: _sums,
        Contribution: _origin,
        Ledger: lambda ledger: {"contributions": list(map(_origin, ledger))},
        Detector: _learner,
        Bank: _several,
    }
    if isinstance(thing, Projection):
        projection = thing
    else:
        projection = getattr(thing, "stats", thing).projection
    kind = {"kind": type(thing).__name__.lower()}
    return kind | facts[type(thing)](thing) | _agreement(projection)


def _agreement(projection: Any) -> dict[str, Any]:
    return {
        "inputs": projection.n_inputs,
        "hidden": projection.n_hidden,
        "activation": projection.activation,
        "seed": projection.seed,
        "grid_bits": projection.grid_bits,
        "fingerprint": projection.fingerprint,
    }


def _sums(stats: Any) -> dict[str, Any]:
    return {"samples": stats.count, "outputs": len(stats.C), "digest": stats.digest}


def _origin(contribution: Any) -> dict[str, Any]:
    words = ("device", "pattern", "incarnation", "revision")
    return {word: getattr(contribution, word) for word in words} | _sums(contribution.stats)


def _learner(detector: Any) -> dict[str, Any]:
    counts = {"own_samples": detector.own.count, "others_samples": detector.others.count}
    words = ("ready", "rejected", "ridge", "forgetting", "reject_above")
    return counts | {word: getattr(detector, word) for word in words}


def _several(bank: Any) -> dict[str, Any]:
    patterns = [
        {"pattern": name, "own_samples": bank[name].own.count}
        | {"others_samples": bank[name].others.count, "drift": round(bank.drift(name), 3)}
        for name in bank
    ]
    events = [f"{event.kind} {event.pattern} at {event.at:,}" for event in bank.events[-5:]]
    return {"patterns": patterns, "rejected": bank.rejected, "last_events": events}


def lines(found: dict[str, Any]) -> list[str]:
    """Write a description out, one fact to a line and one line to each contribution."""
    width = max(map(len, found))
    return [
        f"{word:<{width}}  {_written(part)}"
        for word, value in found.items()
        for part in (value or ["none"] if isinstance(value, list) else [value])
    ]


def _written(value: Any) -> str:
    match value:
        case {"drift": drift}:
            told = "{pattern}: {own_samples:g} samples of its own, {others_samples:g} of others"
            return f"{told.format(**value)}, drift {drift}"
        case dict():
            return "{device}/{pattern}, revision {revision}, {samples:g} samples".format(**value)
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:,.10g}"
        case None:
            return "not set"
    return str(value)


def say(*parts: Any) -> None:
    """Print tables and text to stdout, in colour where that is a terminal."""
    from rich.console import Console

    console = Console(highlight=False)
    for part in parts:
        console.print(part)
