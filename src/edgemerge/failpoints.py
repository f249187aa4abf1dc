"""Failpoints: places where a fault test kills this very process, to see what survives.

`EDGEMERGE_FAILPOINT=name:3` kills it at the third time it passes that place; else nothing happens.
"""

from __future__ import annotations

import os
import signal

_NAME, _, _NUMBER = os.environ.get("EDGEMERGE_FAILPOINT", "").partition(":")
_passed = 0


def failpoint(name: str) -> None:
    """Die here if a test asked for it, as by kill -9: nothing is flushed, closed or said."""
    global _passed  # noqa: PLW0603 - a process dies once
    if name == _NAME:
        _passed += 1
        if _passed >= int(_NUMBER or 1):
            os.kill(os.getpid(), signal.SIGKILL)
