"""Tests that need Flower are left out where it is missing; test_installed.py says so."""

import warnings
from importlib import import_module
from importlib.util import find_spec

NEEDS_FLOWER = ["engines.py", "near.py"]
NEEDS_FLOWER += [
    f"test_{what}.py" for what in ("apps", "asking", "deployment", "ending", "simulation")
]

collect_ignore = [] if find_spec("flwr") and find_spec("ray") else NEEDS_FLOWER

if not collect_ignore:
    with warnings.catch_warnings():  # typer, which Flower imports, uses what click 8.5 deprecates
        warnings.filterwarnings("ignore", "'click.utils", DeprecationWarning)
        import_module("flwr.app")
