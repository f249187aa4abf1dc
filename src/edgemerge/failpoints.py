"""Failpoints: places where a fault test kills this process, to check what survives.

`EDGEMERGE_FAILPOINT=name:3` kills it when it passes that place for the third time.
"""

from __future__ import annotations

import os
import signal

_NAME, _, _NUMBER = os.environ.get("EDGEMERGE_FAILPOINT", "").partition(":")
_passed = 0


def failpoint(name: str) -> None:
    """Kill this process here if a fault test asks for it, as kill -9 does."""
    global _passed  # noqa: PLW0603 - a process dies once
    if name == _NAME:
        _passed += 1
        if _passed >= int(_NUMBER or 1):
            os.kill(os.getpid(), signal.SIGKILL)
