"""`edgemerge show`: what is in a saved file, or in the state folder of an agent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from edgemerge.cli.output import json_option, plain, say_json


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@json_option
def show(file: Path, *, as_json: bool) -> None:
    """Say what is in a file, or in an agent's state folder.

    Whose FILE is, how many samples are in it, and of which projection.
    """
    found = described(file)
    if as_json:
        say_json(found)
    else:
        for line in lines(found):
            click.echo(line)


def described(path: Path) -> dict[str, Any]:
    """Describe what was saved in a file, or what an agent keeps in a folder."""
    if path.is_dir():
        from edgemerge.cli.state_folder import kept  # which needs this module, too

        return kept(path)
    from edgemerge.files import load

    return description(load(path))


def description(thing: Any) -> dict[str, Any]:
    """Give what can be told about a saved value without its numbers."""
    from edgemerge.core.bank import Bank
    from edgemerge.core.contribution import Contribution
    from edgemerge.core.detector import Detector
    from edgemerge.core.ledger import Ledger
    from edgemerge.core.projection import Projection
    from edgemerge.core.stats import Stats
    from edgemerge.core.told import Told

    facts: dict[type, Callable[[Any], dict[str, Any]]] = {
        Projection: lambda _: {},
        Stats: _sums,
        Contribution: _origin,
        Ledger: lambda ledger: {"contributions": list(map(_origin, ledger))},
        Detector: _learner,
        Bank: _several,
        Told: lambda told: {"parts": list(map(_part, told.parts))},
    }
    if isinstance(thing, Projection):
        projection = thing
    else:
        projection = getattr(thing, "stats", thing).projection
    kind = {"kind": type(thing).__name__.lower()}
    return kind | facts[type(thing)](thing) | agreement(projection)


def agreement(projection: Any) -> dict[str, Any]:
    """Give the settings that all devices of a fleet share."""
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


def _part(part: Any) -> dict[str, Any]:
    return {"origins": [origin._asdict() for origin in part.origins]} | _sums(part.stats)


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
        case {"origins": origins}:
            named = sorted({origin["device"] for origin in origins})
            return f"{value['samples']:g} samples of {', '.join(named)}"
        case dict():
            return "{device}/{pattern}, revision {revision}, {samples:g} samples".format(**value)
        case None:
            return "not set"
    return plain(value)
