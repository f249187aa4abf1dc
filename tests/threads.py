"""A check of all tests: what they start ends with them, or it would log and write in later ones."""

import threading
from time import monotonic, sleep

import pytest

POOLS = ("AnyIO worker", "Dask-", "ThreadPoolExecutor", "asyncio_")  # end when nobody uses them
TO_END_S = 30.0  # for those that have been told to end


class ThreadsLeft(Exception):
    """Tests of a file have ended, and threads that they started go on."""


class ThreadCheck:
    """Fails the last test of a file if threads go on that no fixture of many files started."""

    def __init__(self):
        self._started_by = {}
        self._left("")  # as are those of pytest

    def _left(self, test):
        """Name the threads that go on, each with the test that started it: new ones `test`."""
        known = self._started_by
        for thread in [each for each in known if not each.is_alive()]:
            del known[thread]
        for thread in threading.enumerate():
            known.setdefault(thread, test)
        return [
            f"{thread.name} ({started_by})"
            for thread, started_by in known.items()
            if started_by and not thread.name.startswith(POOLS)
        ]

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef):
        """Let what serves many files go on after this one."""
        made = yield
        if fixturedef.scope in ("package", "session"):
            self._left("")
        return made

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item, nextitem):
        """Look when fixtures of the file have ended too."""
        done = yield
        left = self._left(item.nodeid)
        if nextitem is None or nextitem.path != item.path:
            end = monotonic() + TO_END_S
            while left and monotonic() < end:
                sleep(0.01)
                left = self._left(item.nodeid)
            if left:
                raise ThreadsLeft(", ".join(left))
        return done
