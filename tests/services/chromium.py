"""A real browser for tests: Debian's Chromium, driven by Playwright, which asks only the page."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.services.missing import SERVICES, left_out

ARGUMENTS = [
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextmanager
def chromium() -> Iterator[Any]:
    """Start the browser; it ends with the block."""
    program = shutil.which("chromium")
    if program is None:
        left_out("Chromium", SERVICES)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=program, args=ARGUMENTS)
        try:
            yield started
        finally:
            started.close()
