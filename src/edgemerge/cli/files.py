"""Commands on files: `learn`, `bulk`, `score`, `replay`, `share`, `merge`, `show`, `export`."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from io import StringIO
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import quote

import click

from edgemerge.cli.group import CommandError, ExitCode, example, needs, one_line, option
from edgemerge.cli.options import FILE, build_projection, projection_of, projection_options
from edgemerge.cli.output import (
    format_time,
    format_value,
    headings,
    json_option,
    limit_words,
    print_fields,
    print_json,
    print_table,
    progress,
    remark,
)
from edgemerge.cli.samples import CSV_PATH, CsvReader, columns_option, open_csv, skip_option
from edgemerge.core.errors import SettingError


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


def sample_counts(learner: Any) -> dict[str, float]:
    """Count its own samples and those it received from others."""
    found = learner.detectors.values()
    buffered = len(getattr(learner, "waiting", ()))  # a bank learns in blocks
    own = sum(each.own.count for each in found) + buffered
    return {"own_samples": own, "others_samples": sum(each.others.count for each in found)}


@click.command(
    epilog=example(
        "edgemerge learn pump.bank monday.csv --new bank --range-from monday.csv",
        "edgemerge learn pump.bank tuesday.csv",
    )
)
@click.argument("learner_file", type=FILE)
@click.argument("samples", type=CSV_PATH)
@columns_option
@click.option("--new", type=click.Choice(["bank", "detector"]), help="Create an empty learner.")
@projection_options
@click.option(
    "--forgetting",
    type=float,
    help="With --new: factor per sample; 1 never forgets, 0.999 does so slowly.",
)
@click.option(
    "--reject-above", type=float, help="With --new: do not learn samples with a higher score."
)
@click.option("--max-patterns", type=int, help="With --new bank: maximum number of own patterns.")
@skip_option
@json_option
def learn(
    learner_file: Path,
    samples: str,
    columns: list[str],
    new: str | None,
    *,
    skip_bad_rows: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Learn samples with the bank or detector in a file.

    SAMPLES is a CSV file, or - for standard input. LEARNER_FILE is written after the last sample;
    if a sample is invalid, it is left as it was.

    To start, add --new bank and the projection that all devices must share to merge later:
    --projection FILE of another device, --range-from SAMPLES.csv, or --n-inputs, --low and --high.
    """
    from edgemerge.files import save

    learner = _load_or_create(learner_file, new, columns, settings)
    rejected, learnt = learner.rejected, 0
    names = learner.projection.names or ()
    chosen: dict[str, Any] = {"columns": columns, "expected": names, "skip_bad_rows": skip_bad_rows}
    with open_csv(samples, "learning", **chosen) as rows:
        for X in _of_width(rows, learner.projection):
            learner.learn(X)
            learnt += len(X)
    _check_read(samples, rows, learnt)
    save(learner, learner_file)
    result = {"learner": str(learner_file), "learnt": learnt - (learner.rejected - rejected)}
    result |= {"rejected": learner.rejected - rejected} | sample_counts(learner)
    result |= {"skipped": rows.skipped} if skip_bad_rows else {}
    print_json(result) if as_json else print_fields(result)
    known, hidden = result["own_samples"] + result["others_samples"], learner.projection.n_hidden
    if 0 < known < hidden:
        remark(
            f"Found {known:g} samples for {hidden} hidden values: scores are rough with fewer "
            "samples than hidden values. Learn more, or begin again with a smaller --n-hidden."
        )


def _of_width(rows: CsvReader, projection: Any) -> Iterator[Any]:
    """Yield the batches, which must have a column for each input of the projection."""
    for X in rows:
        if len(rows.names) != projection.n_inputs:
            names = f": {', '.join(projection.names)}" if projection.names else ""
            raise SettingError(
                f"found {len(rows.names)} columns, expected {projection.n_inputs}{names}; "
                "choose them with --columns"
            )
        yield X


def _check_read(samples: str, rows: CsvReader, read: int) -> None:
    """Say how many rows were no samples; if there was no sample, that is an error."""
    if rows.skipped and not read:
        raise CommandError(
            f"none of {rows.skipped:,} rows could be read, the last: {rows.why}", ExitCode.NO_DATA
        )
    if not read:
        place = "standard input" if samples == "-" else samples
        raise CommandError(
            f"{place}: found no sample, expected rows of numbers: check that it is the right file",
            ExitCode.NO_DATA,
        )
    if rows.skipped:
        remark(f"{rows.skipped:,} rows were skipped, the last: {rows.why}")


def _load_or_create(
    path: Path, new: str | None, columns: list[str], settings: dict[str, Any]
) -> Any:
    given = {name: value for name, value in settings.items() if value is not None}
    if new is None:
        if given:
            raise CommandError(
                "found settings of a new learner without --new: add --new bank, or leave them out"
            )
        if not path.exists():
            raise CommandError(f"{path}: No such file; --new bank creates it", ExitCode.NO_DATA)
        return load_learner(path)
    if path.exists():
        raise CommandError(f"{path} already exists: leave --new out to continue with it")
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
BAD_DATA = {"error": "refuse", "skip": "leave out"}  # the words of `edgemerge.dask`


def bad_data_option(name: str, what: str) -> Callable[[Any], Any]:
    """Return an option for how to treat bad data."""
    return option(
        name,
        type=click.Choice(["error", "skip"]),
        old={"refuse": "error", "leave-out": "skip"},
        default="error",
        show_default=True,
        callback=lambda _ctx, _option, value: BAD_DATA[value],
        help=f"What to do with {what}.",
    )


@click.command(
    epilog=example("edgemerge bulk pump.detector history/ --projection pump.bank --bad-rows skip")
)
@click.argument("learner_file", type=FILE)
@click.argument("samples", nargs=-1, required=True)
@columns_option
@projection_options
@click.option("--workers", type=click.IntRange(min=1), help="Processes.  [default: one per core]")
@click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="Address of a Dask scheduler whose cluster does the work.",
)
@bad_data_option("--bad-rows", "rows with a missing number")
@bad_data_option("--bad-chunks", "chunks that cannot be read")
@click.option(
    "--chunk-mib",
    type=click.FloatRange(min=0.001),
    default=64.0,
    show_default=True,
    help="Size of a chunk.",
)
@option(
    "--stall-timeout-s",
    old={"--patience": "--stall-timeout-s"},
    type=click.FloatRange(min=0.1),
    default=600.0,
    show_default=True,
    help="Seconds without a finished chunk after which workers are restarted.",
)
@json_option
def bulk(learner_file: Path, samples: Sequence[str], *, as_json: bool, **given: Any) -> None:
    """Learn a history that is too large for memory.

    SAMPLES are .parquet, .csv or .npy files, glob patterns in quotes, or folders. Processes of this
    machine, or a Dask cluster, sum up their chunks. The detector in LEARNER_FILE equals, to the
    last bit, one that learnt all samples in turn.

    Add the projection that all devices share: --projection FILE of another device, --range-from
    SAMPLES, or --n-inputs, --low and --high.
    """
    from edgemerge.core.detector import Detector
    from edgemerge.files import check_folder, save

    if learner_file.exists():
        raise CommandError(f"{learner_file} already exists: choose another name, or move it away")
    check_folder(learner_file)
    needs("dask", "pyarrow")
    part, seconds, threads = _sum_chunks(samples, given)
    if not part.stats.count:
        raise CommandError(
            f"found no sample in {part.chunks} chunks, expected some to learn", ExitCode.NO_DATA
        )
    save(Detector.resume(part.stats), learner_file)
    result = {"learner": str(learner_file), "samples": part.stats.count, "chunks": part.chunks}
    result |= {"rows_left_out": part.left_out, "chunks_left_out": len(part.refused)}
    result |= {"seconds": round(seconds, 2), "threads": threads, "digest": part.stats.digest}
    if as_json:
        print_json(result | {"left_out": dict(part.refused)})
    else:
        print_fields({name.replace("_", " "): value for name, value in result.items()})
    for _chunk, reason in part.refused:
        remark(f"Skipped: {reason}")


def _sum_chunks(samples: Sequence[str], given: dict[str, Any]) -> tuple[Any, float, int]:
    from edgemerge.bulk import chunks_of

    engine = needs("dask", "edgemerge.dask")
    names = ("workers", "scheduler", "bad_rows", "bad_chunks", "chunk_mib", "stall_timeout_s")
    options = {name: given.pop(name) for name in names}
    chunks = chunks_of(
        samples, columns=given["columns"], chunk_bytes=int(options["chunk_mib"] * MEBIBYTE)
    )
    projection = build_projection(**given)
    with dask_client(options["scheduler"], options["workers"]) as client:
        start = monotonic()
        with progress("Summing up", sum(chunk.bytes for chunk in chunks)) as advance:
            part = engine.summed_up(
                client,
                projection,
                chunks,
                bad_rows=options["bad_rows"],
                bad_chunks=options["bad_chunks"],
                stall_timeout_s=options["stall_timeout_s"],
                advance=lambda chunk: advance(chunk.bytes),
            )
        seconds = monotonic() - start
        return part, seconds, sum(client.nthreads().values())


@contextmanager
def dask_client(scheduler: str | None, workers: int | None) -> Iterator[Any]:
    """Connect to the scheduler, or run a cluster on this machine while it is used."""
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
        raise CommandError(
            f"{scheduler}: {one_line(error)}: check that a Dask scheduler runs there",
            ExitCode.UNREACHABLE,
        ) from error
    with there as client:
        if not client.nthreads():
            remark(f"{scheduler} has no workers yet: start some with `dask worker {scheduler}`")
        yield client


MAX_EXPLAINED = 3  # inputs named for an alarm


@click.command(epilog=example("edgemerge score pump.bank today.csv --limit 4 --explain"))
@click.argument("learner_file", type=FILE)
@click.argument("samples", type=CSV_PATH)
@columns_option
@option(
    "--limit",
    old={"--threshold": "--limit", "--alarm-above": "--limit"},
    type=float,
    default=4.0,
    show_default=True,
    help="Scores above it are alarms.",
)
@click.option("--explain", is_flag=True, help="Name the inputs that cause an alarm.")
@skip_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def score(
    learner_file: Path,
    samples: str,
    columns: list[str],
    limit: float,
    *,
    explain: bool,
    skip_bad_rows: bool,
    as_json: bool,
) -> None:
    """Score samples with the learner in a file.

    SAMPLES is a CSV file, or - for standard input. A score of 1 is usual; 4 means four times the
    usual squared error. --explain gives how far single inputs are from what the others say, as a
    squared distance; 1 or less is usual. Nothing is learnt.
    Results are printed as CSV while samples arrive.
    """
    learner = load_learner(learner_file)
    total = alarms = 0
    write = partial(json.dumps, ensure_ascii=False) if as_json else _csv_writer(explain=explain)
    names = learner.projection.names or ()
    words = None if sys.stdout.isatty() else "scoring"  # a bar would mix with the results
    chosen: dict[str, Any] = {"columns": columns, "expected": names, "skip_bad_rows": skip_bad_rows}
    with open_csv(samples, words, **chosen) as rows:
        for X in _of_width(rows, learner.projection):
            results = list(_results(learner, X, total, limit))
            for result, x in zip(results, X, strict=True) if explain else ():
                result["why"] = _explanation(learner, x, rows.names) if result["alarm"] else []
            click.echo("\n".join(map(write, results)))
            total, alarms = total + len(X), alarms + sum(v["alarm"] for v in results)
    _check_read(samples, rows, total)
    remark(f"{total:,} samples, {alarms:,} above {limit:g}")


def _results(learner: Any, X: Any, before: int, limit: float) -> Iterator[dict[str, Any]]:
    several = hasattr(learner, "closest") and len(learner) > 0
    for i, found in enumerate(learner.score(X)):
        result = {"sample": before + i + 1, "score": round(float(found), 4)}
        result["alarm"] = bool(found > limit)
        if several:
            result["pattern"] = learner.closest(X[i])
        yield result


def _explanation(learner: Any, x: Any, names: list[str]) -> list[dict[str, Any]]:
    shares = learner.explain(x)
    most = sorted(range(len(shares)), key=lambda i: -shares[i])[:MAX_EXPLAINED]
    return [{"input": names[i], "times": round(float(shares[i]), 2)} for i in most]


def _csv_writer(*, explain: bool) -> Callable[[dict[str, Any]], str]:
    def write(result: dict[str, Any]) -> str:
        line = StringIO()
        writer = csv.writer(line, lineterminator="\n")
        if result["sample"] == 1:
            writer.writerow(result)
        cells = result | {"alarm": int(result["alarm"])}
        if explain:
            cells["why"] = " ".join(f"{w['input']}={w['times']:g}" for w in result["why"])
        writer.writerow(cells.values())
        return line.getvalue().removesuffix("\n")

    return write


# With fewer samples per hidden value, single samples can be reconstructed from the sums.
MIN_SAMPLES_PER_HIDDEN = 2
SHARE_COLUMNS = headings("file", "pattern", "samples", "bytes")


@click.command(
    epilog=example("edgemerge share pump.bank --device pump-3 --revision 1 --out shared/")
)
@click.argument("learner_file", type=FILE)
@click.option("--device", required=True, help="Name of this device.")
@click.option(
    "--revision", type=int, required=True, help="Number of this share; raise it every time."
)
@click.option(
    "--incarnation", type=int, default=0, help="Raise it when a device starts again from nothing."
)
@click.option("--pattern", help="Pattern name of a detector. Default: normal.")
@click.option(
    "--form",
    type=click.Choice(["exact", "float32", "root16"]),
    default="exact",
    show_default=True,
    help="The last two round the sums, for slow links.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    help="File to write; for a bank a folder, one file per pattern.",
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
    """Write a learner's own sums, for others to merge.

    LEARNER_FILE does not change.
    """
    from edgemerge.files import write_atomically
    from edgemerge.wire.codec import encode

    learner = load_learner(learner_file)
    enough = MIN_SAMPLES_PER_HIDDEN * learner.projection.n_hidden
    origin = {"revision": revision, "incarnation": incarnation}
    written = []
    for path, contribution in _shared_files(learner, device, pattern, origin, out).items():
        data = encode(contribution, form)
        write_atomically(data, path)
        count = contribution.stats.count
        written.append({"file": str(path), "device": device, "pattern": contribution.pattern})
        written[-1] |= {"samples": count, "bytes": len(data)}
        if count < enough:
            remark(
                f"Warning: {path}: single samples can be reconstructed from sums of only "
                f"{count:g}; share after {enough} or more"
            )
    print_json(written) if as_json else print_table(written, SHARE_COLUMNS)


def _shared_files(
    learner: Any, device: str, pattern: str | None, origin: dict[str, int], out: Path
) -> dict[Path, Any]:
    """Return the contributions, each with the file to write it to."""
    if learner.grouped:
        if pattern:
            raise CommandError(
                "found --pattern for a bank, which names its patterns itself: leave it out"
            )
        found = learner.share(device, **origin)
        if not found:
            raise CommandError(
                "found no samples of its own in this bank: let it learn first", ExitCode.NO_DATA
            )
    else:
        found = learner.share(device, pattern=pattern or "normal", **origin)
        if not out.is_dir():
            return {out: found[0]}
    out.mkdir(parents=True, exist_ok=True)
    return {out / f"{quote(c.device, '')}.{quote(c.pattern, '')}.safetensors": c for c in found}


WARN_LEVEL_SHIFT = 2.0  # warn if a merge multiplies the loss of own samples by more
ROUNDING = 2.0**-11  # relative, of the narrowest wire form


@click.command(
    epilog=example("edgemerge merge pump.bank shared/* --without pump-3 --out pump.bank")
)
@click.argument("files", nargs=-1, required=True, type=FILE)
@click.option("--out", type=FILE, required=True, help="File to write.")
@click.option(
    "--without",
    multiple=True,
    metavar="DEVICE",
    help="Leave this device out, such as the learner's own; can be repeated.",
)
@click.option(
    "--total", is_flag=True, help="Write the sum of contributions; FILES has no learner then."
)
@click.option(
    "--as",
    "kind",
    type=click.Choice(["ledger", "stats"]),
    default="ledger",
    show_default=True,
    help="With --total: keep each contribution, or only their sum.",
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
    """Merge what others learnt into the learner in a file.

    FILES are the learner's file, then contributions: files of `share`, ledgers, or merged sums of
    an exchange. They replace what the learner adopted before, so give all of them every time; the
    same contribution twice counts once. --out may be the learner's own file.

    With --total, FILES are contributions only, and their sum is written.
    """
    with progress("merging"):
        if total:
            result = _merge_total(files, without, kind, out)
        else:
            result = _merge_into_learner(files, without, out)
    print_json(result) if as_json else print_fields(result)
    if max(result.get("level_shift", {}).values(), default=0.0) > WARN_LEVEL_SHIFT:
        remark("Warning: the loss of its own samples has grown; check what was merged.")


def _merge_into_learner(
    files: tuple[Path, ...], without: tuple[str, ...], out: Path
) -> dict[str, Any]:
    from edgemerge.files import save

    if len(files) < 2:
        raise CommandError(
            "found one file, expected a learner and contributions: LEARNER_FILE FILE..."
        )
    learner = load_learner(files[0])
    if learner.grouped:
        learner.catch_up()  # so that before and after are of the same samples
    received = _read_contributions(files[1:], learner.projection, without)
    _reject_own(learner, received)
    before = sample_counts(learner)
    readouts = {name: each.readout for name, each in learner.detectors.items() if each.own.count}
    if learner.grouped:
        if received.bare_stats:
            raise CommandError("found sums without their origin, expected contributions for a bank")
        learner.adopt(received.contributions)
    else:
        learner.adopt(received.total)
    save(learner, out)
    after = {"others_before": before["others_samples"]} | sample_counts(learner)
    return {
        "out": str(out),
        "devices": received.devices,
        **after,
        "level_shift": _level_shift(learner, readouts),
    }


def _merge_total(
    files: tuple[Path, ...], without: tuple[str, ...], kind: str, out: Path
) -> dict[str, Any]:
    from edgemerge.files import load, save

    received = _read_contributions(files, projection_of(load(files[0])), without)
    if kind == "ledger" and (received.parts or received.bare_stats):
        raise CommandError("found sums that cannot be taken apart into a ledger: add --as stats")
    save(received.ledger if kind == "ledger" else received.total, out)
    result = {"out": str(out), "kind": kind, "devices": received.devices}
    return result | {"contributions": len(received.ledger), "samples": received.total.count}


def _read_contributions(files: tuple[Path, ...], projection: Any, without: tuple[str, ...]) -> Any:
    from edgemerge.cli.stored import ContributionFiles

    received = ContributionFiles(projection, without)
    for path in files:
        received.take(path)
    received.check_disjoint()
    return received


def _reject_own(learner: Any, received: Any) -> None:
    own = [each.own for each in learner.detectors.values() if each.own.count]
    mine = [
        each.device
        for each in received.ledger
        if any(_same_samples(each.stats, stats) for stats in own)
    ]
    if mine:
        raise CommandError(
            f"found the learner's own samples in the contribution of {mine[0]}; they would count "
            f"twice: add --without {mine[0]}",
            ExitCode.REFUSED,
        )


def _same_samples(some: Any, own: Any) -> bool:
    from numpy import allclose

    near = ROUNDING * own.count
    return bool(some.count == own.count and allclose(some.C, own.C, rtol=ROUNDING, atol=near))


def _level_shift(learner: Any, before: dict[str, Any]) -> dict[str, float]:
    """Return for each pattern by what the merge multiplies the loss of its own samples."""
    from edgemerge.core.limit import loss_shift

    after = learner.detectors
    return {
        name: round(loss_shift(after[name].own, readout, after[name].readout), 4)
        for name, readout in before.items()
    }


@click.command(epilog=example("edgemerge export pump.projection --c --name pump --out firmware"))
@click.argument("projection", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--c", is_flag=True, expose_value=False, help="Write C99: the only language yet.")
@click.option("--name", default="projection", show_default=True, help="Name of the constants in C.")
@click.option(
    "--draw",
    is_flag=True,
    help="Let the device draw the weights into its RAM, instead of a table in flash.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    show_default=True,
    help="Folder for the files.",
)
@json_option
def export(projection: Path, name: str, out: Path, *, draw: bool, as_json: bool) -> None:
    """Write a projection as C, for a microcontroller.

    Writes edgemerge.h, a C99 header that learns, scores, shares and adopts, edgemerge_link.h, which
    talks to `edgemerge bridge`, NAME.h with the constants of the projection, and NAME_example.c.
    What such a device shares has the bytes that this program writes.
    """
    from edgemerge.embedded.export import to_files
    from edgemerge.files import load, write_atomically

    texts = to_files(projection_of(load(projection)), name, draw=draw)
    out.mkdir(parents=True, exist_ok=True)
    for file, text in texts.items():
        write_atomically(text.encode(), out / file)
    written = [str(out / file) for file in texts]
    print_json({"written": written}) if as_json else remark(f"Written: {', '.join(written)}")


# Keys of `show`, `sync` and `agent --check` with --json that still have their old name as well.
OLD_KEYS = {
    "n_inputs": "inputs",
    "n_hidden": "hidden",
    "received_from": "told_by",
    "merge": "told",
    "pending": "waiting_to_be_pushed",
    "scored": "judged",
    "in_alarm": "alarms",
}


@click.command(epilog=example("edgemerge show pump.bank"))
@click.argument("file", type=click.Path(path_type=Path))
@json_option
def show(file: Path, *, as_json: bool) -> None:
    """Describe a file, or an agent's state folder.

    Shows the kind of FILE, its devices, patterns and samples, and the projection.
    """
    if file.is_dir():
        from edgemerge.cli.stored import describe_agent_state  # imports this module

        found = describe_agent_state(file)
    else:
        from edgemerge.files import load

        found = describe(load(file))
    if as_json:
        print_json(with_old_keys(found))
    else:
        for line in format_description(found):
            click.echo(line)


def with_old_keys(found: dict[str, Any]) -> dict[str, Any]:
    """Add the old names of renamed keys, for programs that still read them."""
    return found | {old: found[new] for new, old in OLD_KEYS.items() if new in found}


def describe(value: Any) -> dict[str, Any]:
    """Describe a saved value: kind, counts and settings."""
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
        Merged: lambda merged: {"parts": list(map(_describe_part, merged.parts))},
    }
    kind = {"kind": type(value).__name__.lower()}
    return kind | facts[type(value)](value) | describe_projection(projection_of(value))


def describe_projection(projection: Any) -> dict[str, Any]:
    """Return the settings that all devices of a fleet share."""
    names = ("n_inputs", "n_hidden", "activation", "seed", "grid_bits", "fingerprint")
    return {name: getattr(projection, name) for name in names}


def _describe_stats(stats: Any) -> dict[str, Any]:
    return {"samples": stats.count, "outputs": len(stats.C), "digest": stats.digest}


def _describe_contribution(contribution: Any) -> dict[str, Any]:
    names = ("device", "pattern", "incarnation", "revision")
    found = {name: getattr(contribution, name) for name in names}
    return found | _describe_stats(contribution.stats)


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
    """Return the lines of a description: one per fact and one per contribution."""
    width = max(map(len, found))
    return [
        f"{word:<{width}}  {_format_entry(part)}"
        for word, value in found.items()
        for part in (value or ["none"] if isinstance(value, list) else [value])
    ]


def _format_entry(value: Any) -> str:
    match value:
        case {"drift": drift}:
            counts = "{pattern}: {own_samples:g} own samples, {others_samples:g} of others"
            return f"{counts.format(**value)}, drift {drift}"
        case {"origins": origins}:
            named = sorted({origin["device"] for origin in origins})
            return f"{value['samples']:g} samples of {', '.join(named)}"
        case {"status": status}:
            return f"{value['pattern']}: {status}, {value['samples']:g} samples"
        case dict():
            return "{device}/{pattern}, revision {revision}, {samples:g} samples".format(**value)
        case None:
            return "not set"
    return format_value(value)


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
        "edgemerge replay pump.csv --columns speed,flow,bearing --limit 4",
        "edgemerge replay pump.toml --limit 5",
        'edgemerge replay pump.toml --false-alarms "1 per week"',
    )
)
@click.argument("samples", type=CSV_PATH, metavar="SAMPLES|CONFIG.toml")
@click.option("--device", metavar="NAME", help="The device, if CONFIG.toml has several.")
@columns_option
@click.option(
    "--limit",
    type=float,
    help="A fixed limit for the alarm level. Default: often 4 to 6, as commissioning asks for.",
)
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
    help="Seconds between two samples that have no time, for promises and times.",
)
@projection_options
@json_option
def replay(samples: str, *, as_json: bool, **settings: Any) -> None:
    """Show what a limit would have done on recorded samples.

    SAMPLES is a CSV file of numbers, or - for standard input. A monitor takes its rows one after
    the other, as in an agent: it learns the first ones, then watches. Printed are the episodes, by
    number of sample, and how many episodes other limits would have raised on the same scores.
    Nothing is saved. Without a projection the range of the inputs is taken from the samples.

    With an agent's CONFIG.toml, such as `edgemerge init` writes, the rows of its file are read as
    the agent reads them, with its features, projection and settings, and episodes have times.
    --limit, --false-alarms, --votes, --learner, --learn and --commissioning go over its settings.
    """
    device = settings.pop("device")
    if Path(samples).suffix == ".toml":
        result = _replay_agent(Path(samples), device, settings)
    elif device is not None:
        raise CommandError(f"found --device, and {Path(samples).name} is no CONFIG.toml")
    else:
        result = _replay(samples, settings)
    if as_json:
        print_json(result)
        return
    from edgemerge.delivery import factor_words

    rows = [each | {"inputs": factor_words(each["inputs"])} for each in result["episodes"]]
    print_table(rows, COLUMNS) if rows else click.echo("No episode.")
    click.echo()
    print_table(result["limits"], headings("limit", "episodes"))
    remark(_summary(result))


def _replay(samples: str, settings: dict[str, Any]) -> dict[str, Any]:
    from edgemerge.core.bank import Bank
    from edgemerge.core.detector import Detector
    from edgemerge.core.monitor import Monitor

    interval_s, kind = settings.pop("interval_s"), settings.pop("learner")
    options = {name: settings.pop(name) for name in OTHER}
    projection = _projection(samples, settings)
    monitor = Monitor((Bank if kind == "bank" else Detector)(projection), **options)
    names = projection.names or ()
    with open_csv(samples, "replaying", columns=settings["columns"], expected=names) as rows:
        numbered = enumerate(chain.from_iterable(_of_width(rows, projection)), 1)
        watched = _watch(monitor, ((x, number * interval_s) for number, x in numbered))
    _must_be_watching(samples, monitor, watched["samples"])
    return _replayed(monitor, watched, rows.names, lambda at: round(at / interval_s))


def _replay_agent(path: Path, device: str | None, settings: dict[str, Any]) -> dict[str, Any]:
    """Replay the file of an agent's source; `settings` that were given go over its own."""
    from threading import Event

    from edgemerge.agent import factory
    from edgemerge.agent.config import read_config
    from edgemerge.cli.agent import effective_config

    config, _, _ = effective_config(read_config(path, environment=os.environ, device=device))
    config = _with_options(config, settings)
    if config.projection is None:
        raise CommandError(
            f"{path} has no [projection]: add file = ..., with what `edgemerge init` wrote"
        )
    if config.source.path is None:
        kind = {"stdin": "standard input"}.get(config.source.kind, config.source.kind)
        raise CommandError(f"{path} reads {kind}, expected a file: give a CSV file of its readings")
    monitor = factory.make_monitor(config, config.projection)
    features, source = factory.make_features(config), factory.make_file_source(config)
    interval_s, timed = settings["interval_s"], False
    read: Sequence[str] = ()

    def samples() -> Iterator[tuple[Any, float]]:
        nonlocal read, timed
        number = 0
        for reading in source.read(Event()):
            sample = features.push(reading.values)
            if sample is not None:
                number, read, timed = number + 1, reading.names or (), reading.at is not None
                yield sample, number * interval_s if reading.at is None else reading.at

    watched = _watch(monitor, samples())
    _must_be_watching(str(path), monitor, watched["samples"])
    names = factory.input_names(config, config.projection, read)
    skipped = {name: getattr(source, name) for name in ("skipped", "why_skipped")}
    moment = format_time if timed else lambda at: round(at / interval_s)
    return _replayed(monitor, watched, names, moment) | skipped


def _with_options(config: Any, settings: dict[str, Any]) -> Any:
    """Return an agent's configuration with the options that were given in place of its settings."""
    context, own = click.get_current_context(), (*OTHER, "learner", "interval_s")
    given = {
        name: value
        for name, value in settings.items()
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    }
    for each in context.command.params:
        if each.name in given and each.name not in own:
            raise CommandError(
                f"found {each.opts[0]} with a configuration, which says that itself: leave it out"
            )
    if "limit" in given or "false_alarms" in given:
        given = {"limit": None, "false_alarms": None} | given
    learner = replace(config.learner, kind=given.get("learner", config.learner.kind))
    changed = {name: given[name] for name in OTHER if name in given}
    return replace(config, learner=learner, monitor=replace(config.monitor, **changed))


def _watch(monitor: Any, samples: Iterable[tuple[Any, float]]) -> dict[str, Any]:
    """Give samples with their times to a monitor; return how many, and the counts of levels."""
    from edgemerge.core.limit import Counts

    counts, taken, ready, before = Counts(), 0, 0, 0.0
    for x, at in samples:
        result = monitor.take(x, at)
        taken += 1
        if result.ready:
            ready += 1
            counts.add(before, result.level)
            before = result.level
    return {"samples": taken, "watched": ready, "counts": counts}


def _replayed(
    monitor: Any, watched: dict[str, Any], names: Sequence[str], moment: Callable[[float], Any]
) -> dict[str, Any]:
    status, counts = monitor.status(), watched["counts"]
    return {
        "samples": watched["samples"],
        "watched": watched["watched"],
        "outside": status["outside"],
        "drift": status["drift"],
        "limit": status["limit"],
        "episodes": [_episode(each, names, moment) for each in monitor.episodes],
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


def _episode(each: Any, names: Sequence[str], moment: Callable[[float], Any]) -> dict[str, Any]:
    return {
        "episode": each.number,
        "began": moment(each.began),
        "ended": None if each.ended is None else moment(each.ended),
        "samples": each.samples,
        "peak": float(f"{each.peak:.4g}"),
        "pattern": each.pattern,
        "inputs": [
            [names[i], float(f"{times:.3g}")] for i, times in each.inputs[:MAX_SHOWN_INPUTS]
        ],
    }


def _summary(result: dict[str, Any]) -> str:
    words = f"{result['samples']:,} samples, {result['watched']:,} of them watched; "
    words += f"limit {limit_words(result['limit'])}"
    if result["outside"]:
        words += f"; {result['outside']:,} samples far outside the projection's range"
    if result.get("skipped"):
        words += f"; {result['skipped']:,} rows were skipped, the last: {result['why_skipped']}"
    return words
