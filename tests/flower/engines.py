"""Flower's engines for the tests, by way of the example's own engine.py; and apps that fail."""

import os
import shutil
import signal
import sys
from importlib import import_module
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower"
sys.path.insert(0, str(EXAMPLE))  # examples are no package

Engine, wait_for = (getattr(import_module("engine"), name) for name in ("Engine", "wait_for"))
part, readings = (getattr(import_module("pumps.readings"), n) for n in ("part", "readings"))

RUN_S = 150.0  # a run takes 20 s, and several times that on a machine that is busy


def app_with(folder, source):
    """Copy the example into a folder, with another client app."""
    app = folder / "flower"
    shutil.copytree(EXAMPLE, app, ignore=shutil.ignore_patterns("__pycache__"))
    (app / "pumps" / "client_app.py").write_text(source, encoding="utf-8")
    return app


def kill(program):
    """End a program that a test started, and all that it started, without a word."""
    os.killpg(program.pid, signal.SIGKILL)
    program.wait()
