"""Statistics of paired trials: confidence intervals, paired tests, Holm's correction, a margin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
from scipy import stats

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean, and the half width of its confidence interval; 0 for a single value."""

    mean: float
    half: float
    count: int


def interval(values: Sequence[float]) -> Interval:
    """Return the mean of values, and Student's 95 % confidence interval around it.

    >>> f"{interval([0.5, 0.7]).half:.4f}"
    '1.2706'
    """
    count, mean = len(values), float(np.mean(values))
    if count < 2:
        return Interval(mean, 0.0, count)
    error = float(np.std(values, ddof=1)) / sqrt(count)
    return Interval(mean, float(stats.t.ppf((1.0 + CONFIDENCE) / 2.0, count - 1)) * error, count)


def paired_p_value(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the two-sided p-value of Wilcoxon's signed-rank test; 1 if all pairs are equal."""
    apart = np.asarray(ours) - np.asarray(theirs)
    if not apart.any():
        return 1.0
    return float(stats.wilcoxon(apart, zero_method="zsplit").pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number, by Holm's method, in the order given.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    found, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(np.argsort(p_values, kind="stable")):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        found[i] = largest
    return found


@dataclass(frozen=True)
class NonInferiority:
    """Whether a mean difference is above −margin, with its lower bound and p-value."""

    difference: float
    lower: float
    p_value: float
    margin: float
    count: int

    @property
    def holds(self) -> bool:
        """Whether ours is worse by less than the margin, at a one-sided level of 2.5 %."""
        return self.lower > -self.margin


def non_inferior(
    ours: Sequence[float], theirs: Sequence[float], margin: float
) -> NonInferiority | None:
    """Test by paired differences whether ours is worse by less than a margin.

    Returns None for fewer than two pairs.
    """
    apart = np.asarray(ours) - np.asarray(theirs)
    if len(apart) < 2:
        return None
    found = interval(apart.tolist())
    error = float(np.std(apart, ddof=1)) / sqrt(len(apart))
    far = (found.mean + margin) / error if error else np.inf * np.sign(found.mean + margin)
    p_value = float(stats.t.sf(far, len(apart) - 1))
    return NonInferiority(found.mean, found.mean - found.half, p_value, margin, len(apart))
