"""A real Dask cluster on this machine: two workers, each a process of its own."""

from importlib.util import find_spec

import pytest

from tests.services.missing import left_out


@pytest.fixture(scope="module")
def cluster():
    if find_spec("distributed") is None:
        left_out("Dask", "pip install '.[dask]'")
    from edgemerge.dask import local_client

    with local_client(workers=2) as client:
        yield client


@pytest.fixture
def client(cluster):
    cluster.wait_for_workers(2, timeout=120)  # one that a test before has ended is back
    return cluster
