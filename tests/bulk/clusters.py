"""How the tests ask a cluster, and what must come out."""

from time import sleep

import numpy as np

from edgemerge import Stats
from tests.bulk import readers
from tests.bulk.histories import SHARED


def made_up(chunks, but=()):
    rows = (next(readers.made_up(chunk, SHARED)) for chunk in chunks if chunk not in but)
    return Stats.of(SHARED, np.vstack(list(rows)))


def summed_up(client, chunks, **choice):
    from edgemerge.dask import summed_up as run

    return run(client, SHARED, chunks, **choice)


def until_others_are_there(client, ended):
    """Wait until a worker that was ended has gone, and there are two again."""
    for _ in range(1200):
        if ended not in (there := client.nthreads()) and len(there) == 2:
            return
        sleep(0.1)
    raise AssertionError(f"found {there}, expected two without {ended}")
