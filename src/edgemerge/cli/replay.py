"""`edgemerge replay`: what a limit would have done on recorded samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from edgemerge.cli.group import CommandError, ExitCode, example
from edgemerge.cli.options import build_projection, projection_options
from edgemerge.cli.output import headings, json_option, print_json, print_table, remark
from edgemerge.cli.samples import CSV_PATH, columns_option, open_csv

SHOWN_LIMITS = (2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0, 32.0)
MAX_SHOWN_INPUTS = 3
COLUMNS = headings("episode", "began", "ended", "samples", "peak", "pattern", "inputs")
OTHER = ("limit", "false_alarms", "votes", "learn", "commissioning")


def parse_votes(_ctx: click.Context, _option: click.Parameter, value: str) -> tuple[int, int]:
    """Parse "k,n"."""
    parts = value.split(",")
    if len(parts) != 2 or not all(part.strip().isdecimal() for part in parts):
        raise click.BadParameter(f"found {value!r}, expected two whole numbers such as 3,5")
    return int(parts[0]), int(parts[1])


def parse_number_or_words(
    _ctx: click.Context, _option: click.Parameter, value: str | None
) -> int | float | str | None:
    """Parse a number; everything else stays text."""
    for kind in (int, float):
        try:
            return None if value is None else kind(value)
        except ValueError:
            continue
    return value


@click.command(
    epilog=example(
        "edgemerge replay pump.csv --limit 4",
        'edgemerge replay pump.csv --false-alarms "1 per week" --interval-s 60',
    )
)
@click.argument("samples", type=CSV_PATH)
@columns_option
@click.option("--limit", type=float, help="A fixed limit for the alarm level. Default: 4.")
@click.option(
    "--false-alarms",
    metavar="PROMISE",
    callback=parse_number_or_words,
    help='A promise instead: "1 per week", "2 per 10000 samples" or episodes per sample.',
)
@click.option(
    "--votes",
    default="3,5",
    show_default=True,
    metavar="K,N",
    callback=parse_votes,
    help="An episode begins when K of the last N scores are above the limit.",
)
@click.option(
    "--learner",
    type=click.Choice(["bank", "detector"]),
    default="bank",
    show_default=True,
    help="Several patterns of normal, or one.",
)
@click.option(
    "--learn",
    type=click.Choice(["normal", "always", "off"]),
    default="normal",
    show_default=True,
    help="What is learnt after commissioning.",
)
@click.option(
    "--commissioning",
    metavar="SAMPLES|TIME",
    callback=parse_number_or_words,
    help='When watching begins, such as 2000 or "2 hours". Default: 16 samples per hidden value.',
)
@click.option(
    "--interval-s",
    type=click.FloatRange(min=0.0, min_open=True),
    default=1.0,
    show_default=True,
    help="Seconds between two samples, for promises and times.",
)
@projection_options
@json_option
def replay(samples: str, *, as_json: bool, **settings: Any) -> None:
    """Show what a limit would have done on recorded samples.

    SAMPLES is a CSV file, or - for standard input. A monitor takes its rows one after the other, as
    in an agent: it learns the first ones, then watches. Printed are the episodes, by number of
    sample, and how many episodes other limits would have raised on the same scores. Nothing is
    saved.

    Without a projection the range of the inputs is taken from the samples themselves.
    """
    result = _replay(samples, settings)
    if as_json:
        print_json(result)
        return
    rows = [
        each | {"inputs": " ".join(f"{name}={times:g}" for name, times in each["inputs"])}
        for each in result["episodes"]
    ]
    print_table(rows, COLUMNS) if rows else click.echo("No episode.")
    click.echo()
    print_table(result["limits"], headings("limit", "episodes"))
    remark(_summary(result))


def _replay(samples: str, settings: dict[str, Any]) -> dict[str, Any]:
    from edgemerge.core.bank import Bank
    from edgemerge.core.detector import Detector
    from edgemerge.core.limit import Counts
    from edgemerge.core.monitor import Monitor

    interval_s, kind = settings.pop("interval_s"), settings.pop("learner")
    options = {name: settings.pop(name) for name in OTHER}
    projection = _projection(samples, settings)
    monitor = Monitor((Bank if kind == "bank" else Detector)(projection), **options)
    counts, taken, ready, before = Counts(), 0, 0, 0.0
    names = projection.names or ()
    with open_csv(samples, "replaying", columns=settings["columns"], expected=names) as rows:
        for X in rows:
            for x in X:
                taken += 1
                result = monitor.take(x, taken * interval_s)
                if result.ready:
                    ready += 1
                    counts.add(before, result.level)
                    before = result.level
        names = rows.names
    _must_be_watching(samples, monitor, taken)
    status = monitor.status()
    return {
        "samples": taken,
        "watched": ready,
        "outside": status["outside"],
        "drift": status["drift"],
        "limit": status["limit"],
        "episodes": [_episode(each, names, interval_s) for each in monitor.episodes],
        "limits": [
            {"limit": each, "episodes": counts.episodes(each)}
            for each in sorted({*SHOWN_LIMITS, status["limit"]["value"]})
        ],
    }


def _projection(samples: str, settings: dict[str, Any]) -> Any:
    ends = ("projection", "like", "low", "high")
    if all(settings[name] is None for name in ends):
        if samples == "-":
            raise CommandError(
                "found samples on standard input and no projection: add --projection FILE, "
                "--range-from SAMPLES, or --n-inputs, --low and --high"
            )
        settings["like"] = Path(samples)
        # As in the configuration of an agent. What is recorded may have a fault in it, which widens
        # the range, and cosine features then tell less.
        settings["activation"] = settings["activation"] or "tanh"
        settings["n_hidden"] = settings["n_hidden"] or 64
    return build_projection(**settings)


def _must_be_watching(samples: str, monitor: Any, taken: int) -> None:
    if monitor.phase == "commissioning":
        raise CommandError(
            f"{samples}: found {taken} samples, expected more: commissioning did not end; "
            "give more samples, or fewer with --commissioning or --n-hidden",
            ExitCode.NO_DATA,
        )


def _episode(each: Any, names: list[str], interval_s: float) -> dict[str, Any]:
    return {
        "episode": each.number,
        "began": round(each.began / interval_s),
        "ended": None if each.ended is None else round(each.ended / interval_s),
        "samples": each.samples,
        "peak": float(f"{each.peak:.4g}"),
        "pattern": each.pattern,
        "inputs": [
            [names[i], float(f"{times:.3g}")] for i, times in each.inputs[:MAX_SHOWN_INPUTS]
        ],
    }


def _summary(result: dict[str, Any]) -> str:
    limit = result["limit"]
    words = f"{result['samples']:,} samples, {result['watched']:,} of them watched; "
    words += f"limit {limit['value']:g} ({limit['kind']}"
    words += f", {limit['missing']:,} samples missing)" if limit["missing"] else ")"
    if result["outside"]:
        words += f"; {result['outside']:,} samples far outside the projection's range"
    return words
