"""`edgemerge bulk`: a history that does not fit in memory, learnt by many processes at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import click

from edgemerge.cli.agreement import agreed, projection_options
from edgemerge.cli.group import Failure, in_one_line, needs
from edgemerge.cli.output import json_option, progress, remark, say_facts, say_json
from edgemerge.cli.samples import columns_option

MEBIBYTE = 2**20
TIMEOUT_S = 10.0


def left_out(name: str, words: str) -> Callable[[Any], Any]:
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
@left_out("--bad-rows", "rows that lack a number")
@left_out("--bad-chunks", "chunks that cannot be read")
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
        raise Failure(f"{learner_file} is there already: give a new name, or move it away")
    if not learner_file.absolute().parent.is_dir():
        raise Failure(f"{learner_file.parent}: No such folder; make it first")
    needs("dask", "pyarrow")
    part, seconds, threads = _summed_up(samples, given)
    if not part.stats.count:
        raise Failure(f"found no sample in {part.chunks} chunks, expected some to learn")
    save(Detector.resume(part.stats), learner_file)
    told = {"learner": str(learner_file), "samples": part.stats.count, "chunks": part.chunks}
    told |= {"rows_left_out": part.left_out, "chunks_left_out": len(part.refused)}
    told |= {"seconds": round(seconds, 2), "threads": threads, "digest": part.stats.digest}
    if as_json:
        say_json(told | {"left_out": dict(part.refused)})
    else:
        say_facts({name.replace("_", " "): value for name, value in told.items()})
    for _chunk, reason in part.refused:
        remark(f"Left out: {reason}")


def _summed_up(samples: Sequence[str], given: dict[str, Any]) -> tuple[Any, float, int]:
    from edgemerge.bulk import chunks_of

    engine = needs("dask", "edgemerge.dask")
    names = ("workers", "scheduler", "bad_rows", "bad_chunks", "chunk_mib", "patience")
    option = {name: given.pop(name) for name in names}
    chunks = chunks_of(
        samples, columns=given["columns"], chunk_bytes=int(option["chunk_mib"] * MEBIBYTE)
    )
    projection = agreed(**given)
    with cluster(option["scheduler"], option["workers"]) as client:
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
def cluster(scheduler: str | None, workers: int | None) -> Iterator[Any]:
    """Give a client of the scheduler, or of a cluster of this machine's own for the time."""
    from distributed import Client

    from edgemerge.dask import local_client
    from edgemerge.scale.workers import cores

    if scheduler is None:
        with local_client(workers or cores()) as client:
            yield client
        return
    if workers is not None:
        raise Failure("found --scheduler and --workers, expected one: a cluster has its own")
    try:
        there = Client(scheduler, timeout=TIMEOUT_S, set_as_default=False)
    except (OSError, TypeError, ValueError) as error:  # TypeError: no certificates for tls://
        raise Failure(f"{scheduler}: {in_one_line(error)}: is a Dask scheduler there?") from error
    with there as client:
        if not client.nthreads():
            remark(f"{scheduler} has no workers yet: start some with `dask worker {scheduler}`")
        yield client
