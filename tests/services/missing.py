"""What to do when a service is not installed: CI must not pass without it."""

import os
from typing import NoReturn

import pytest


def left_out(what: str, how: str) -> NoReturn:
    """Leave a test out, saying why and how to have it run; under CI that is a failure."""
    words = f"{what} is missing, so this was left out: {how}"
    if os.environ.get("CI"):
        pytest.fail(words)
    pytest.skip(words)
