"""A Dask cluster of this machine's own, for as long as it is needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import dask.config
from distributed import Client, LocalCluster

HERE = "127.0.0.1:0"  # Dask shows pages of its own: nobody else shall see them, at any free port
RETURN = "300s"  # how long a worker that died may take to come back, before it is given up
SPARE = 2**26  # bytes that a worker keeps when it frees memory: Dask's few cost half of the speed


@contextmanager
def local_client(workers: int) -> Iterator[Client]:
    """Start so many workers, each a process with one thread, and give a client of theirs."""
    settings = {
        "distributed.deploy.lost-worker-timeout": RETURN,
        "distributed.nanny.pre-spawn-environ.MALLOC_TOP_PAD_": SPARE,
    }
    with (
        dask.config.set(settings),
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address=HERE,
            silence_logs="CRITICAL",
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client
