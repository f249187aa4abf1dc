"""Commands on files: `learn`, `bulk`, `score`, `share`, `merge` and `show`."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import quote

import click

from edgemerge.cli.group import CommandError, needs, one_line
from edgemerge.cli.options import build_projection, projection_options
from edgemerge.cli.output import (
    format_value,
    json_option,
    print_fields,
    print_json,
    print_table,
    progress,
    remark,
)
from edgemerge.cli.samples import CSV_PATH, columns_option, open_csv


def load_learner(path: Path) -> Any:
    """Load a detector or bank."""
    from edgemerge.core.bank import Bank
    from edgemerge.core.detector import Detector
    from edgemerge.files import load

    found = load(path)
    if not isinstance(found, Bank | Detector):
        kind = type(found).__name__.lower()
        raise CommandError(
            f"{path}: found a {kind}, expected a detector or bank: `edgemerge learn` makes one"
        )
    return found


def detectors_by_pattern(learner: Any) -> dict[str, Any]:
    """Give the detector of each pattern; a detector by itself has the pattern "normal"."""
    from edgemerge.core.bank import Bank

    return {n: learner[n] for n in learner} if isinstance(learner, Bank) else {"normal": learner}


def sample_counts(learner: Any) -> dict[str, float]:
    """Count the samples that it saw itself and those that it was told of."""
    found = detectors_by_pattern(learner).values()
    waiting = len(getattr(learner, "waiting", ()))  # a bank learns in blocks
    own = sum(detector.own.count for detector in found) + waiting
    return {"own_samples": own, "others_samples": sum(each.others.count for each in found)}


@click.command()
@click.argument("learner_file", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("samples", type=CSV_PATH)
@columns_option
@click.option(
    "--new", type=click.Choice(["bank", "detector"]), help="Start one that knows nothing yet."
)
@projection_options
@click.option("--forgetting", type=float, help="With --new: 1 never forgets, 0.999 does slowly.")
@click.option("--reject-above", type=float, help="With --new: samples above it are not learnt.")
@click.option("--max-patterns", type=int, help="With --new bank: its own patterns at most.")
@json_option
def learn(
    learner_file: Path,
    samples: str,
    columns: list[str],
    new: str | None,
    *,
    as_json: bool,
    **settings: Any,
) -> None:
    """Let a bank or detector in a file learn samples.

    SAMPLES are a CSV, or - for standard input. LEARNER_FILE is written when all are learnt, and
    not at all if one cannot be used.

    To begin: --new bank, and what devices must agree on to merge later: --projection FILE of
    another device, --like SAMPLES.csv, or --inputs, --low and --high.
    """
    from edgemerge.files import save

    learner = _load_or_create(learner_file, new, columns, settings)
    rejected, learnt = learner.rejected, 0
    names = learner.projection.names or ()
    with open_csv(samples, "learning", columns=columns, expected=names) as rows:
        for X in rows:
            learner.learn(X)
            learnt += len(X)
    save(learner, learner_file)
    told = {"learner": str(learner_file), "learnt": learnt - (learner.rejected - rejected)}
    told |= {"rejected": learner.rejected - rejected} | sample_counts(learner)
    print_json(told) if as_json else print_fields(told)
    if not learnt:
        remark("There was no sample to learn.")


def _load_or_create(
    path: Path, new: str | None, columns: list[str], settings: dict[str, Any]
) -> Any:
    given = {name: value for name, value in settings.items() if value is not None}
    if new is None:
        if given:
            raise CommandError("settings are for a new learner: add --new bank, or leave them out")
        if not path.exists():
            raise CommandError(f"{path}: No such file; --new bank starts one")
        return load_learner(path)
    if path.exists():
        raise CommandError(f"{path} is there already: leave --new out to go on with it")
    return _new_learner(new, columns, settings)


def _new_learner(new: str, columns: list[str], settings: dict[str, Any]) -> Any:
    from edgemerge.core.bank import Bank
    from edgemerge.core.detector import Detector

    words = ("forgetting", "reject_above", "max_patterns")
    own = {word: value for word in words if (value := settings.pop(word)) is not None}
    if new == "detector" and "max_patterns" in own:
        raise CommandError(
            "a detector has one pattern: leave --max-patterns out, or use --new bank"
        )
    projection = build_projection(columns=columns, **settings)
    return (Bank if new == "bank" else Detector)(projection, **own)


MEBIBYTE = 2**20
SCHEDULER_TIMEOUT_S = 10.0


def bad_data_option(name: str, words: str) -> Callable[[Any], Any]:
    """Make an option that says what becomes of what is bad."""
    return click.option(
        name,
        type=click.Choice(["refuse", "leave-out"]),
        default="refuse",
        show_default=True,
        callback=lambda _ctx, _option, value: value.replace("-", " "),
        help=f"What to do with {words}.",
    )


@click.command()
@click.argument("learner_file", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("samples", nargs=-1, required=True)
@columns_option
@projection_options
@click.option("--workers", type=click.IntRange(min=1), help="Processes.  [default: one to a core]")
@click.option("--scheduler", metavar="ADDRESS", help="Use the Dask cluster of this scheduler.")
@bad_data_option("--bad-rows", "rows that lack a number")
@bad_data_option("--bad-chunks", "chunks that cannot be read")
@click.option(
    "--chunk-mib",
    type=click.FloatRange(min=0.001),
    default=64.0,
    show_default=True,
    help="Size of a chunk.",
)
@click.option(
    "--patience",
    type=click.FloatRange(min=0.1),
    default=600.0,
    show_default=True,
    help="Seconds without a chunk done, after which workers are ended.",
)
@json_option
def bulk(learner_file: Path, samples: Sequence[str], *, as_json: bool, **given: Any) -> None:
    """Learn a history too large for memory.

    SAMPLES are .parquet, .csv or .npy files, patterns in quotes, or folders. Their chunks are
    summed up by processes of this machine, or by a Dask cluster, and LEARNER_FILE becomes a
    detector that has seen them all: the same, to the last bit, as one that learnt them in turn.

    What devices must agree on: --projection FILE of another device, --like SAMPLES, or --inputs,
    --low and --high.
    """
    from edgemerge.core.detector import Detector
    from edgemerge.files import save

    if learner_file.exists():
        raise CommandError(f"{learner_file} is there already: give a new name, or move it away")
    if not learner_file.absolute().parent.is_dir():
        raise CommandError(f"{learner_file.parent}: No such folder; make it first")
    needs("dask", "pyarrow")
    part, seconds, threads = _sum_chunks(samples, given)
    if not part.stats.count:
        raise CommandError(f"found no sample in {part.chunks} chunks, expected some to learn")
    save(Detector.resume(part.stats), learner_file)
    told = {"learner": str(learner_file), "samples": part.stats.count, "chunks": part.chunks}
    told |= {"rows_left_out": part.left_out, "chunks_left_out": len(part.refused)}
    told |= {"seconds": round(seconds, 2), "threads": threads, "digest": part.stats.digest}
    if as_json:
        print_json(told | {"left_out": dict(part.refused)})
    else:
        print_fields({name.replace("_", " "): value for name, value in told.items()})
    for _chunk, reason in part.refused:
        remark(f"Left out: {reason}")


def _sum_chunks(samples: Sequence[str], given: dict[str, Any]) -> tuple[Any, float, int]:
    from edgemerge.bulk import chunks_of

    engine = needs("dask", "edgemerge.dask")
    names = ("workers", "scheduler", "bad_rows", "bad_chunks", "chunk_mib", "patience")
    option = {name: given.pop(name) for name in names}
    chunks = chunks_of(
        samples, columns=given["columns"], chunk_bytes=int(option["chunk_mib"] * MEBIBYTE)
    )
    projection = build_projection(**given)
    with dask_client(option["scheduler"], option["workers"]) as client:
        start = monotonic()
        with progress("Summing up", sum(chunk.bytes for chunk in chunks)) as advance:
            part = engine.summed_up(
                client,
                projection,
                chunks,
                bad_rows=option["bad_rows"],
                bad_chunks=option["bad_chunks"],
                patience_s=option["patience"],
                advance=lambda chunk: advance(chunk.bytes),
            )
        seconds = monotonic() - start
        return part, seconds, sum(client.nthreads().values())


@contextmanager
def dask_client(scheduler: str | None, workers: int | None) -> Iterator[Any]:
    """Give a client of the scheduler, or of a cluster of this machine's own for the time."""
    from distributed import Client

    from edgemerge.dask import local_client
    from edgemerge.workers import available_cores

    if scheduler is None:
        with local_client(workers or available_cores()) as client:
            yield client
        return
    if workers is not None:
        raise CommandError("found --scheduler and --workers, expected one: a cluster has its own")
    try:
        there = Client(scheduler, timeout=SCHEDULER_TIMEOUT_S, set_as_default=False)
    except (OSError, TypeError, ValueError) as error:  # TypeError: no certificates for tls://
        raise CommandError(f"{scheduler}: {one_line(error)}: is a Dask scheduler there?") from error
    with there as client:
        if not client.nthreads():
            remark(f"{scheduler} has no workers yet: start some with `dask worker {scheduler}`")
        yield client


MAX_EXPLAINED = 3  # inputs named for an alarm


@click.command()
@click.argument("learner_file", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("samples", type=CSV_PATH)
@columns_option
@click.option(
    "--alarm-above", type=float, default=4.0, show_default=True, help="A higher score is an alarm."
)
@click.option("--explain", is_flag=True, help="Name the inputs that carry an alarm.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object to a line.")
def score(
    learner_file: Path,
    samples: str,
    columns: list[str],
    alarm_above: float,
    *,
    explain: bool,
    as_json: bool,
) -> None:
    """Say how unusual samples are for a learner in a file.

    SAMPLES are a CSV, or - for standard input. A score of 1 is as usual, 4 is four times as odd;
    so are the numbers of the inputs that --explain names. Nothing is learnt. Results are CSV,
    printed as samples come in.
    """
    learner = load_learner(learner_file)
    total = alarms = 0
    write = _json_line if as_json else _csv_writer(explain=explain)
    names = learner.projection.names or ()
    words = None if sys.stdout.isatty() else "scoring"  # else a bar and results share lines
    with open_csv(samples, words, columns=columns, expected=names) as rows:
        for X in rows:
            judged = list(_results(learner, X, total, alarm_above))
            for verdict, x in zip(judged, X, strict=True):
                if explain:
                    verdict["why"] = (
                        _explanation(learner, x, rows.names) if verdict["alarm"] else []
                    )
            click.echo("\n".join(map(write, judged)))
            total, alarms = total + len(X), alarms + sum(v["alarm"] for v in judged)
    remark(f"{total:,} samples, {alarms:,} above {alarm_above:g}")


def _results(learner: Any, X: Any, before: int, limit: float) -> Iterator[dict[str, Any]]:
    several = hasattr(learner, "closest") and len(learner) > 0
    for i, found in enumerate(learner.score(X)):
        verdict = {"sample": before + i + 1, "score": round(float(found), 4)}
        verdict["alarm"] = bool(found > limit)
        if several:
            verdict["pattern"] = learner.closest(X[i])
        yield verdict


def _explanation(learner: Any, x: Any, names: list[str]) -> list[dict[str, Any]]:
    shares = learner.explain(x)
    most = sorted(range(len(shares)), key=lambda i: -shares[i])[:MAX_EXPLAINED]
    return [{"input": names[i], "times": round(float(shares[i]), 2)} for i in most]


def _json_line(verdict: dict[str, Any]) -> str:
    return json.dumps(verdict, ensure_ascii=False)


def _csv_writer(*, explain: bool) -> Callable[[dict[str, Any]], str]:
    def write(verdict: dict[str, Any]) -> str:
        line = StringIO()
        writer = csv.writer(line, lineterminator="\n")
        if verdict["sample"] == 1:
            writer.writerow(verdict)
        cells = verdict | {"alarm": int(verdict["alarm"])}
        if explain:
            cells["why"] = " ".join(f"{w['input']}={w['times']:g}" for w in verdict["why"])
        writer.writerow(cells.values())
        return line.getvalue().removesuffix("\n")

    return write


MIN_SAMPLES_PER_HIDDEN = (
    2  # samples for each hidden value; below it, single samples can be told from the sums
)
SHARE_COLUMNS = {"file": "FILE", "pattern": "PATTERN", "samples": "SAMPLES", "bytes": "BYTES"}


@click.command()
@click.argument("learner_file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--device", required=True, help="Name of this device.")
@click.option("--revision", type=int, required=True, help="Higher with every share.")
@click.option(
    "--incarnation", type=int, default=0, help="Higher when a device starts again from nothing."
)
@click.option("--pattern", help="Name of what a detector knows. Default: normal.")
@click.option(
    "--form",
    type=click.Choice(["exact", "float32", "root16"]),
    default="exact",
    show_default=True,
    help="The last two round the sums, for links that cannot carry more.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    help="File; for a bank a folder, with a file for each pattern.",
)
@json_option
def share(
    learner_file: Path,
    device: str,
    revision: int,
    incarnation: int,
    pattern: str | None,
    form: str,
    out: Path,
    *,
    as_json: bool,
) -> None:
    """Write what a learner saw itself, for others to merge.

    LEARNER_FILE does not change. Raise the revision with every share.
    """
    from edgemerge.files import write_atomically
    from edgemerge.wire.codec import encode

    notes = _contributions(load_learner(learner_file), pattern, device, revision, incarnation)
    told = []
    for path, note in _paths(notes, out).items():
        data = encode(note, form)
        write_atomically(data, path)
        told.append({"file": str(path), "device": device, "pattern": note.pattern})
        told[-1] |= {"samples": note.stats.count, "bytes": len(data)}
        if note.stats.count < MIN_SAMPLES_PER_HIDDEN * note.stats.projection.n_hidden:
            remark(
                f"{path}: {note.stats.count:g} samples are few enough to be told from the sums; "
                f"share after {MIN_SAMPLES_PER_HIDDEN * note.stats.projection.n_hidden} or more"
            )
    print_json(told) if as_json else print_table(told, SHARE_COLUMNS)


def _contributions(
    learner: Any, pattern: str | None, device: str, revision: int, incarnation: int
) -> list[Any] | Any:
    from edgemerge.core.bank import Bank

    if not isinstance(learner, Bank):
        origin = {"revision": revision, "incarnation": incarnation}
        return learner.share(device, pattern=pattern or "normal", **origin)[0]
    if pattern:
        raise CommandError("a bank names its patterns itself: leave --pattern out")
    notes = learner.share(device, revision=revision, incarnation=incarnation)
    if not notes:
        raise CommandError("this bank has seen nothing itself: let it learn first")
    return notes


def _paths(notes: list[Any] | Any, out: Path) -> dict[Path, Any]:
    if not isinstance(notes, list) and not out.is_dir():
        return {out: notes}
    found = notes if isinstance(notes, list) else [notes]
    out.mkdir(parents=True, exist_ok=True)
    return {out / f"{quote(n.device, '')}.{quote(n.pattern, '')}.safetensors": n for n in found}


WARN_LEVEL_SHIFT = 2.0  # times its level before, from which on a merge deserves a word

ROUNDING = 2.0**-11


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="File to write."
)
@click.option(
    "--without", multiple=True, metavar="DEVICE", help="Leave this device out, such as one's own."
)
@click.option("--total", is_flag=True, help="Sum contributions up; no learner comes first.")
@click.option(
    "--as",
    "kind",
    type=click.Choice(["ledger", "stats"]),
    default="ledger",
    show_default=True,
    help="With --total: keep every origin, or the bare sum.",
)
@json_option
def merge(
    files: tuple[Path, ...],
    out: Path,
    without: tuple[str, ...],
    *,
    total: bool,
    kind: str,
    as_json: bool,
) -> None:
    """Let a learner in a file adopt what others saw.

    FILES are the learner's, then contributions: of `share`, ledgers, or what an exchange told.
    What it was told before is replaced, so give all that it is to know; the same twice counts
    once. --out may be the learner's own file.

    With --total, FILES are contributions only, and their sum is written.
    """
    with progress("merging"):
        told = (
            _merge_total(files, without, kind, out)
            if total
            else _merge_into_learner(files, without, out)
        )
    print_json(told) if as_json else print_fields(told)
    if max(told.get("level_shift", {}).values(), default=0.0) > WARN_LEVEL_SHIFT:
        remark("Its own samples are rebuilt worse than before: look at what was merged.")


def _merge_into_learner(
    files: tuple[Path, ...], without: tuple[str, ...], out: Path
) -> dict[str, Any]:
    from edgemerge.core.bank import Bank
    from edgemerge.files import save

    if len(files) < 2:
        raise CommandError(
            "found one file, expected a learner and contributions: LEARNER_FILE FILE..."
        )
    learner = load_learner(files[0])
    if isinstance(learner, Bank):
        learner.catch_up()  # so that before and after are of the same samples
    heard = _read_contributions(files[1:], learner.projection, without)
    _reject_own(learner, heard)
    before, readouts = sample_counts(learner), _readouts(learner)
    if isinstance(learner, Bank):
        if heard.bare_stats:
            raise CommandError("found sums without their origin, expected contributions for a bank")
        learner.adopt(heard.contributions)
    else:
        learner.adopt(heard.total)
    save(learner, out)
    after = {"others_before": before["others_samples"]} | sample_counts(learner)
    return {
        "out": str(out),
        "devices": heard.devices,
        **after,
        "level_shift": _level_shift(learner, readouts),
    }


def _merge_total(
    files: tuple[Path, ...], without: tuple[str, ...], kind: str, out: Path
) -> dict[str, Any]:
    from edgemerge.cli.options import load_projection
    from edgemerge.files import save

    heard = _read_contributions(files, load_projection(files[0]), without)
    if kind == "ledger" and (heard.parts or heard.bare_stats):
        raise CommandError("found sums that cannot be taken apart into a ledger: add --as stats")
    save(heard.ledger if kind == "ledger" else heard.total, out)
    told = {"out": str(out), "kind": kind, "devices": heard.devices}
    return told | {"contributions": len(heard.ledger), "samples": heard.total.count}


def _read_contributions(files: tuple[Path, ...], projection: Any, without: tuple[str, ...]) -> Any:
    from edgemerge.cli.stored import ContributionFiles

    heard = ContributionFiles(projection, without)
    for path in files:
        heard.take(path)
    heard.check_disjoint()
    return heard


def _reject_own(learner: Any, heard: Any) -> None:
    own = [each.own for each in detectors_by_pattern(learner).values() if each.own.count]
    mine = [
        note.device for note in heard.ledger if any(_same_samples(note.stats, each) for each in own)
    ]
    if mine:
        raise CommandError(
            f"found in a contribution of {mine[0]} what this learner saw itself, which would then "
            f"count twice: add --without {mine[0]}"
        )


def _same_samples(some: Any, own: Any) -> bool:
    from numpy import allclose

    near = ROUNDING * own.count  # a contribution may come in a form that rounds
    return bool(some.count == own.count and allclose(some.C, own.C, rtol=ROUNDING, atol=near))


def _readouts(learner: Any) -> dict[str, Any]:
    return {
        name: each.readout for name, each in detectors_by_pattern(learner).items() if each.own.count
    }


def _level_shift(learner: Any, before: dict[str, Any]) -> dict[str, float]:
    """Say for each pattern by what the merge multiplies the loss of its own samples."""
    from edgemerge.core.threshold import loss_shift

    after = detectors_by_pattern(learner)
    return {
        name: round(loss_shift(after[name].own, readout, after[name].readout), 4)
        for name, readout in before.items()
    }


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@json_option
def show(file: Path, *, as_json: bool) -> None:
    """Say what is in a file, or in an agent's state folder.

    Whose FILE is, how many samples are in it, and of which projection.
    """
    found = describe_path(file)
    if as_json:
        print_json(found)
    else:
        for line in format_description(found):
            click.echo(line)


def describe_path(path: Path) -> dict[str, Any]:
    """Describe what was saved in a file, or what an agent keeps in a folder."""
    if path.is_dir():
        from edgemerge.cli.stored import describe_agent_state  # which needs this module, too

        return describe_agent_state(path)
    from edgemerge.files import load

    return describe(load(path))


def describe(thing: Any) -> dict[str, Any]:
    """Give what can be told about a saved value without its numbers."""
    from edgemerge.core.bank import Bank
    from edgemerge.core.detector import Detector
    from edgemerge.core.ledger import Contribution, Ledger, Merged
    from edgemerge.core.projection import Projection
    from edgemerge.core.stats import Stats

    facts: dict[type, Callable[[Any], dict[str, Any]]] = {
        Projection: lambda _: {},
        Stats: _describe_stats,
        Contribution: _describe_contribution,
        Ledger: lambda ledger: {"contributions": list(map(_describe_contribution, ledger))},
        Detector: _describe_detector,
        Bank: _describe_bank,
        Merged: lambda told: {"parts": list(map(_describe_part, told.parts))},
    }
    if isinstance(thing, Projection):
        projection = thing
    else:
        projection = getattr(thing, "stats", thing).projection
    kind = {"kind": type(thing).__name__.lower()}
    return kind | facts[type(thing)](thing) | describe_projection(projection)


def describe_projection(projection: Any) -> dict[str, Any]:
    """Give the settings that all devices of a fleet share."""
    return {
        "inputs": projection.n_inputs,
        "hidden": projection.n_hidden,
        "activation": projection.activation,
        "seed": projection.seed,
        "grid_bits": projection.grid_bits,
        "fingerprint": projection.fingerprint,
    }


def _describe_stats(stats: Any) -> dict[str, Any]:
    return {"samples": stats.count, "outputs": len(stats.C), "digest": stats.digest}


def _describe_contribution(contribution: Any) -> dict[str, Any]:
    words = ("device", "pattern", "incarnation", "revision")
    return {word: getattr(contribution, word) for word in words} | _describe_stats(
        contribution.stats
    )


def _describe_part(part: Any) -> dict[str, Any]:
    return {"origins": [origin._asdict() for origin in part.origins]} | _describe_stats(part.stats)


def _describe_detector(detector: Any) -> dict[str, Any]:
    counts = {"own_samples": detector.own.count, "others_samples": detector.others.count}
    words = ("ready", "rejected", "ridge", "forgetting", "reject_above")
    return counts | {word: getattr(detector, word) for word in words}


def _describe_bank(bank: Any) -> dict[str, Any]:
    patterns = [
        {"pattern": name, "own_samples": bank[name].own.count}
        | {"others_samples": bank[name].others.count, "drift": round(bank.drift(name), 3)}
        for name in bank
    ]
    events = [f"{event.kind} {event.pattern} at {event.at:,}" for event in bank.events[-5:]]
    return {"patterns": patterns, "rejected": bank.rejected, "last_events": events}


def format_description(found: dict[str, Any]) -> list[str]:
    """Write a description out, one fact to a line and one line to each contribution."""
    width = max(map(len, found))
    return [
        f"{word:<{width}}  {_format_entry(part)}"
        for word, value in found.items()
        for part in (value or ["none"] if isinstance(value, list) else [value])
    ]


def _format_entry(value: Any) -> str:
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
    return format_value(value)
