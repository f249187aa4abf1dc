"""What went wrong on a cluster, in words that name the worker."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from typing import Any

from distributed import Client, Future, KilledWorker

from edgemerge.core.errors import AwayError, EdgemergeError, SampleError

SAME = "install the same edgemerge, with all that it needs, on every worker"


def why_not(future: Future[Any], about: object) -> EdgemergeError:
    """Say why something has no result."""
    error = future.exception() if future.status == "error" else None
    match error:
        case EdgemergeError():
            return copy(error)  # with the future's own, whoever raises it would keep the future
        case KilledWorker():
            return SampleError(
                f"worker {error.last_worker.address}: {about}: it died while reading it, as "
                f"{error.allowed_failures} did before: cut smaller chunks, or give them more memory"
            )
        case None:
            return AwayError(f"{about}: the cluster has let go of it: does its scheduler run?")
    advice = SAME if isinstance(error, ImportError | AttributeError) else "see `read`, and its file"
    return AwayError(f"{about}: found {error!r} on a worker: {advice}")


def holders(client: Client, futures: Iterable[Future[Any]]) -> dict[Future[Any], str]:
    """Give the worker that each of these is with, where one has it."""
    at = {key: worker for worker, keys in client.processing().items() for key in keys}
    return {future: at[future.key] for future in futures if future.key in at}


def nothing_done(patience_s: float, client: Client) -> str:
    """Say that the cluster stands still."""
    workers = ", ".join(client.nthreads(callback_timeout=patience_s))
    if not workers:
        there = client.scheduler_info()["address"]
        return f"found no worker for {patience_s:g} s: start some with `dask worker {there}`"
    return f"found nothing done within {patience_s:g} s by workers {workers}: see their logs"
