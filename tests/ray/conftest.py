"""Ray on this machine alone, for real; left out where it is missing."""

import os
import shutil
import tempfile
from importlib import import_module
from importlib.util import find_spec

import pytest

from tests.services.missing import left_out

QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


@pytest.fixture(scope="session")
def ray():
    """Ray with two workers and little room for objects, so that it has to let go of parts."""
    if find_spec("ray") is None:
        left_out("Ray", "make flower")
    os.environ.update(QUIET)
    ray = import_module("ray")
    folder = tempfile.mkdtemp(prefix="ray-")  # Ray's sockets need a short path
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=80 * 2**20,
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
        _temp_dir=folder,
    )
    yield ray
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)
