"""Settings for all tests."""

import os

from hypothesis import settings

os.environ.setdefault("SCIPY_ARRAY_API", "1")  # before SciPy: scikit-learn's own checks need it
settings.register_profile("edgemerge", deadline=None, print_blob=True)  # a busy machine is no bug
settings.register_profile("ci", settings.get_profile("edgemerge"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "edgemerge")  # CI judges the change alone


def pytest_make_parametrize_id(val, argname):
    """Name bytes by the argument: an archive holds the time, so two processes would differ."""
    return argname if isinstance(val, bytes) else None
