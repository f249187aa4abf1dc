"""What to do when a service is not installed: CI must not pass without it."""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import NoReturn

import pytest

SERVICES = "make services"  # installs all of them


def left_out(what: str, how: str) -> NoReturn:
    """Leave a test out, saying why and how to have it run; under CI that is a failure."""
    words = reason(what, how)
    if os.environ.get("CI"):
        pytest.fail(words)
    pytest.skip(words)


def reason(what: str, how: str) -> str:
    """Say why a test is left out, in a form that the summary understands."""
    return f"{what} is missing, so this was left out: {how}"


FORM = re.compile(reason("(.+)", "(.+)"))
NO_DATA = reason(
    "real data",
    "edgemerge paper data --data FOLDER --fetch har --fetch mnist; export EDGEMERGE_DATA=FOLDER",
)
NO_DRIVES = reason("UAH-DriveSet", "ask its makers for it, then EDGEMERGE_DATA=FOLDER")


def summary(reasons: Iterable[str]) -> str:
    """Count skipped tests in one line, by what they need and the command that installs it."""
    needs: defaultdict[str, Counter[str]] = defaultdict(Counter)
    others: Counter[str] = Counter()
    for words in (each.removeprefix("Skipped: ") for each in reasons):
        if found := FORM.fullmatch(words):
            needs[found[2]][found[1]] += 1
        else:
            others[words] += 1
    total = others.total() + sum(counts.total() for counts in needs.values())
    parts = [
        f"{', '.join(f'{n} without {what}' for what, n in counts.items())} (to run them: {how})"
        for how, counts in needs.items()
    ]
    parts += [f"{n} since {words}" for words, n in others.items()]
    return f"{total} tests skipped: {'; '.join(parts)}"
