"""A local Dask cluster, and error messages that name the worker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any

import dask.config
from distributed import Client, Future, KilledWorker, LocalCluster

from edgemerge.core.errors import EdgemergeError, SampleError, UnavailableError

# Dask serves pages of its own: on loopback only, at any free port.
DASHBOARD_ADDRESS = "127.0.0.1:0"
# Dask looks once, this long after a death, whether the worker is back. A worker that is just then
# being started again, because it died again, would be given up for good.
LOST_WORKER_TIMEOUT = "1000d"
# Bytes that a worker keeps when it frees memory: Dask's few cost half of the speed.
MALLOC_TOP_PAD = 2**26


@contextmanager
def local_client(workers: int) -> Iterator[Client]:
    """Start workers on this machine, and yield a client; stop them at the end.

    Args:
        workers: How many, each a process with one thread.
    """
    settings = {
        "distributed.deploy.lost-worker-timeout": LOST_WORKER_TIMEOUT,
        "distributed.nanny.pre-spawn-environ.MALLOC_TOP_PAD_": MALLOC_TOP_PAD,
    }
    with (
        dask.config.set(settings),
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address=DASHBOARD_ADDRESS,
            silence_logs="CRITICAL",
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


INSTALL_ADVICE = "install the same edgemerge, with all that it needs, on every worker"


def future_error(future: Future[Any], about: object) -> EdgemergeError:
    """Return the error for a task without a result."""
    error = future.exception() if future.status == "error" else None
    match error:
        case EdgemergeError():
            return copy(error)  # the original keeps the future alive
        case KilledWorker():
            return SampleError(
                f"worker {error.last_worker.address}: {about}: it died while reading it, as "
                f"{error.allowed_failures} did before: cut smaller chunks, or give them more memory"
            )
        case None:
            return UnavailableError(
                f"{about}: the cluster has let go of it: does its scheduler run?"
            )
    advice = (
        INSTALL_ADVICE
        if isinstance(error, ImportError | AttributeError)
        else "see `read`, and its file"
    )
    return UnavailableError(f"{about}: found {error!r} on a worker: {advice}")


def workers_of(client: Client, futures: Iterable[Future[Any]]) -> dict[Future[Any], str]:
    """Return the worker of each task that has one."""
    at = {key: worker for worker, keys in client.processing().items() for key in keys}
    return {future: at[future.key] for future in futures if future.key in at}


def stall_message(timeout_s: float, client: Client) -> str:
    """Return the message for a cluster that makes no progress."""
    workers = ", ".join(client.nthreads(callback_timeout=timeout_s))
    if not workers:
        there = client.scheduler_info()["address"]
        return f"found no worker for {timeout_s:g} s: start some with `dask worker {there}`"
    return f"found nothing done within {timeout_s:g} s by workers {workers}: see their logs"
