"""For all tests: services, the examples drawn, signals, the limit in time, what was skipped."""

import faulthandler
import gc
import logging
import os
import shutil
import signal
from math import inf
from pathlib import Path

import pytest
from hypothesis import settings

from edgemerge.core import similarity
from tests.services.missing import summary
from tests.services.mosquitto import mosquitto
from tests.services.postgres import (
    _with_tables,
    empty_postgres_url,
    fresh_postgres_url,
    postgres_server,
    postgres_url,
)
from tests.threads import ThreadCheck

__all__ = [  # for all tests
    "_with_tables",
    "empty_postgres_url",
    "fresh_postgres_url",
    "mosquitto",
    "postgres_server",
    "postgres_url",
]

AGAIN_S = 30.0  # a test that goes on waiting after its limit is interrupted again
LIMIT = pytest.StashKey()
STARTED = {"mosquitto", "postgres_server"}  # fixtures

gc.disable()  # until all tests are collected: there is nothing to find, and much to look at

# Thousands of databases and states are synchronised to a disk: in memory that takes half the time.
MEMORY, ROOM_BYTES = "/dev/shm", 6e9
if Path(MEMORY).is_dir() and shutil.disk_usage(MEMORY).free > ROOM_BYTES:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)

os.environ.setdefault("SCIPY_ARRAY_API", "1")  # before SciPy: scikit-learn's own checks need it

# A busy machine is no bug, so there is no deadline. The check draws the same examples everywhere,
# whatever Hypothesis finds in the environment or beside the code; `make fuzz` draws new ones.
plain = settings.get_profile("default")
settings.register_profile(
    "check", plain, derandomize=True, database=None, deadline=None, print_blob=True
)
settings.register_profile("part", settings.get_profile("check"), max_examples=25)  # `make test`
settings.register_profile("quick", settings.get_profile("check"), max_examples=10)
settings.register_profile("fuzz", plain, max_examples=500, deadline=None, print_blob=True)
settings.load_profile("check")

# Under nohup, or in the background of a shell, these are ignored, and programs under test would
# inherit that: Ctrl-C could not end them.
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, handler)


def pytest_configure(config):
    config.pluginmanager.register(ThreadCheck())


class TimeLimitExceeded(BaseException):
    """A test took too long. Neither the code under test nor Hypothesis catches this."""


def pytest_timeout_set_timer(item, settings):
    """Interrupt a test at its limit, and what it then still waits for again and again."""

    def interrupt(*_):
        faulthandler.dump_traceback(2)  # where each thread is
        raise TimeLimitExceeded(f"{item.nodeid} took more than {settings.timeout:g} s")

    item.stash[LIMIT] = settings
    item.cancel_timeout = stop_timer
    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, settings.timeout, AGAIN_S)
    return True


def stop_timer():
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item):
    """Limit the end of a test too: a failure has stopped its timer."""
    if limit := item.stash.get(LIMIT, None):
        pytest_timeout_set_timer(item, limit)


@pytest.fixture(autouse=True)
def _own_logging():
    """Undo what a program that ran in this process set for its log."""
    loggers = [logging.getLogger(name) for name in ("edgemerge", "uvicorn", "uvicorn.error")]
    before = [(one.handlers[:], one.level, one.propagate) for one in loggers]
    yield
    for one, was in zip(loggers, before, strict=True):
        one.handlers[:], one.level, one.propagate = was


@pytest.hookimpl(tryfirst=True)  # before some are deselected
def pytest_collection_modifyitems(items):
    """Count as slow what starts a service, or takes long; keep together what shares a fixture."""
    for item in items:
        needs = STARTED.intersection(getattr(item, "fixturenames", ()))
        if needs or any(map(item.get_closest_marker, ("long", "mcu_long"))):
            item.add_marker("slow")
        if not item.get_closest_marker("xdist_group") and has_module_fixture(item):
            item.add_marker(pytest.mark.xdist_group(item.module.__name__))


def has_module_fixture(item):
    """Tell whether a test shares a fixture with its module: each worker would make its own."""
    found = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    return any(each.scope == "module" for made in found.values() for each in made)


def pytest_collection_finish():
    """Let the garbage collector pass over modules and tests: they stay to the end."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter):
    """Say in one line what was skipped, and how to have it run."""
    reasons = [str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", ())]
    if reasons:
        terminalreporter.write_line(summary(reasons), yellow=True)


def pytest_make_parametrize_id(val, argname):
    """Name bytes by the argument: an archive holds the time, so two processes would differ."""
    return argname if isinstance(val, bytes) else None


@pytest.fixture
def unchecked(monkeypatch):
    """Let devices adopt patterns of toys, whose levels are further apart than those of machines."""
    monkeypatch.setattr(similarity, "CHECK_SAMPLES_PER_HIDDEN", inf)
