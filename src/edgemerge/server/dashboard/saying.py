"""Words for names, levels and factors in the sentences and tables of a merge."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

NAMED = 6  # devices that a sentence names before it only counts


def named(names: Sequence[str]) -> str:
    """Name devices in a sentence; of many, the first.

    >>> named(["a"]), named(["a", "b", "c"]), named([str(k) for k in range(9)])
    ('a', 'a, b and c', '0, 1, 2, 3, 4, 5 and 3 more')
    """
    first, more = list(names[:NAMED]), len(names) - NAMED
    last = [f"{more} more"] if more > 0 else first[-1:]
    before = first if more > 0 else first[:-1]
    return " and ".join(filter(None, (", ".join(before), *last)))


def counted(count: int, word: str) -> str:
    """Say how many there are.

    >>> counted(1, "device"), counted(1200, "device")
    ('1 device', '1,200 devices')
    """
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def level(value: float) -> str:
    """Write a level.

    >>> level(0.0012345), level(12.0), level(float("nan"))
    ('0.00123', '12', '–')
    """
    return f"{value:.3g}" if isfinite(value) else "–"


def factor(value: float) -> str:
    """Write a factor.

    >>> factor(1.041), factor(23.4), factor(float("nan"))
    ('×1.04', '×23', '–')
    """
    if not isfinite(value):
        return "–"
    return f"×{value:.2f}" if value < 9.995 else f"×{value:,.0f}"


def amount(value: float) -> str:
    """Write a number of samples, which forgetting may have made a fraction.

    >>> amount(1234567.0), amount(12.5)
    ('1,234,567', '12.5')
    """
    return f"{value:,.0f}" if value >= 100 or value == round(value) else f"{value:.3g}"
