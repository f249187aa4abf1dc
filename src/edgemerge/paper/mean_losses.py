"""Mean losses over the trials as numbers, as a table, and as claims about two devices.

A row is one trial's mean loss of one pattern: `trial, method, pattern, loss, sums`.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import nan
from typing import Any, NamedTuple

import numpy as np

from edgemerge.paper.plan import Claim, Rows
from edgemerge.paper.two_devices import MERGED

MOST = (0.1, 0.9)  # of the trials lie between `low` and `high`


class Spread(NamedTuple):
    """The mean over the trials, and the range in which most of them lie."""

    mean: float
    low: float
    high: float


def spread(rows: Rows, method: str, pattern: str) -> Spread | None:
    """Sum up the trials of one method and pattern; None if there are none."""
    wanted = [row for row in rows if (row["method"], row["pattern"]) == (method, pattern)]
    if not wanted:
        return None
    losses = [float(row["loss"]) for row in wanted]
    mean, (low, high) = float(np.mean(losses)), np.quantile(losses, MOST)
    return Spread(mean, min(mean, float(low)), max(mean, float(high)))


def column(rows: Rows, name: str) -> list[str]:
    """Give what stands in a column, each once, in the order of the rows."""
    return list(dict.fromkeys(str(row[name]) for row in rows))


def table(rows: Rows, methods: Iterable[str]) -> Rows:
    """Put the means of each pattern beside each other."""
    return [
        {"pattern": pattern}
        | {m: float(f"{one.mean:.4g}") for m in methods if (one := spread(rows, m, pattern))}
        for pattern in column(rows, "pattern")
    ]


def number(value: float) -> str:
    """Write the two digits that matter, and no exponent.

    >>> number(0.00138), number(0.1), number(12.3)
    ('0.0014', '0.10', '12')
    """
    digits = max(0, 1 - int(f"{value:.1e}".split("e")[1]))
    return f"{value:.{digits}f}"


def falls(rows: Rows, pattern: str, device: str) -> Claim:
    """Claim that a pattern new to a device is rebuilt better after merging."""
    text = f"the loss of {pattern} at {device} falls when the other device is merged"
    before, after = spread(rows, device, pattern), spread(rows, MERGED[device], pattern)
    if not before or not after:
        return Claim(text, None, "not measured")
    found = (
        f"{number(before.mean)} → {number(after.mean)}, {before.mean / after.mean:.1f} times lower"
    )
    return Claim(text, after.mean < before.mean, found)


def stays_low(rows: Rows, pattern: str, device: str) -> Claim:
    """Claim that a device's own pattern is rebuilt nearly as well as before merging.

    The paper gives no number for "nearly": here, the bar after merging must be nearer to that of
    the device which learnt the pattern than to that of the other one, as seen on a log axis.
    """
    text = f"the loss of {pattern} at {device}, which learnt it, stays low"
    other = next(name for name in MERGED if name != device)
    found = [spread(rows, name, pattern) for name in (device, MERGED[device], other)]
    before, after, new = (one.mean if one else nan for one in found)
    if None in found:
        return Claim(text, None, "not measured")
    change = f"{number(before)} → {number(after)}, {after / before - 1:+.0%}"
    return Claim(text, after**2 < before * new, f"{change}; at {other} before: {number(new)}")


def identical(rows: Rows) -> Claim:
    """Claim that the two devices know the same after merging, bit for bit."""
    text = "after merging, Device-A and Device-B are identical: equal sums, to the last bit"
    trials: dict[Any, set[Any]] = {}
    for row in rows:
        if row["method"] in MERGED.values():
            trials.setdefault((row.get("cut"), row["trial"]), set()).add(row["sums"])
    equal = sum(len(sums) == 1 for sums in trials.values())
    found = f"equal in {equal} of {len(trials)} trials"
    return Claim(text, equal == len(trials) if trials else None, found)
