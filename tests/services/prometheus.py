"""promtool, which comes with Debian's Prometheus and knows what that would read."""

from __future__ import annotations

import shutil
import subprocess

from tests.services.missing import SERVICES, left_out


def checked(what: str, *files: str, text: str | None = None, how: str = "check") -> str:
    """Let promtool check something, or test it; give its words, or fail with them."""
    tool = shutil.which("promtool")
    if tool is None:
        left_out("promtool", SERVICES)
    done = subprocess.run(
        [tool, how, what, *files],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
