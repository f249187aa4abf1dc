"""The threshold: decides for a stream of scores or losses when to raise an alarm."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from math import inf, isnan
from typing import Any

import numpy as np

from edgemerge.core.errors import SampleError, SettingError
from edgemerge.core.readout import Readout
from edgemerge.core.similarity import fresh_loss
from edgemerge.core.stats import Stats

DEFAULT_LIMIT = 4.0  # four times the usual squared error
DEFAULT_WINDOW = 500


class Threshold:
    """Raises an alarm above a fixed limit, a quantile of recent values, or mean plus sigmas.

    For the paper's loss. For scores use a `Monitor`: its limit can keep a promised rate of false
    alarms, and a fault that lasts stays an alarm.

    A value above the limit (for a quantile: as far above the limit as that lies above the median)
    does not enter the window, so an anomaly does not raise the limit. A lasting change does not
    raise it either: after maintenance, call `relearn`. Until the window is full there is no alarm.

    >>> threshold = Threshold(limit=4.0, votes=(2, 3))
    >>> [threshold.update(score) for score in (1.0, 9.0, 1.0, 9.0, 1.0, 1.0)]
    [False, False, False, True, False, False]
    """

    def __init__(
        self,
        *,
        limit: float | None = None,
        quantile: float | None = None,
        sigmas: float | None = None,
        window: int = DEFAULT_WINDOW,
        votes: tuple[int, int] = (1, 1),
    ) -> None:
        """Give one of limit, quantile and sigmas; without any, the limit is 4.

        Args:
            limit: A fixed limit, above 0. The default is 4, four times the usual squared error.
            quantile: The limit is this quantile of the window, from 0.5 to below 1; use it where
                normal values have a long tail.
            sigmas: The limit is the mean of the window plus so many standard deviations.
            window: How many recent values are kept for `quantile` or `sigmas`, 500 unless given.
            votes: (k, n): raise the alarm when at least k of the last n values are above the
                limit. (1, 1) unless given; more suppresses single outliers.

        Raises:
            SettingError: A setting is out of range, or there is more than one way.
        """
        _check_settings(limit, quantile, sigmas, window, votes)
        fixed = quantile is None and sigmas is None
        self._fixed = (DEFAULT_LIMIT if limit is None else float(limit)) if fixed else None
        self._quantile, self._sigmas = quantile, sigmas
        self._recent = np.empty(0 if fixed else window)
        self._needed, self._votes = votes[0], deque[bool](maxlen=votes[1])
        self.relearn()

    @property
    def ready(self) -> bool:
        """Whether the window is full; before that there is no alarm."""
        return self._seen >= len(self._recent)

    @property
    def limit(self) -> float:
        """The value above which a value counts as unusual; infinite while not ready."""
        return self._limit

    def update(self, value: float) -> bool:
        """Take in the next value and return whether to raise the alarm.

        Args:
            value: The score or loss of the next sample.

        Raises:
            SampleError: The value is NaN.
        """
        if isnan(value):
            raise SampleError("found NaN, expected a score or loss: drop or repair such samples")
        self._votes.append(bool(value > self._limit))
        if self._fixed is None and value <= self._gate and value < inf:
            self._recent[self._seen % len(self._recent)] = value
            self._seen += 1
            self._learn()
        return sum(self._votes) >= self._needed

    def rescale(self, factor: float) -> None:
        """Multiply the limit and the window, for losses after a merge.

        Args:
            factor: What `loss_shift` returned, above 0.

        Raises:
            SettingError: The factor is not a finite number above 0.
        """
        if not 0.0 < factor < inf:
            raise SettingError(f"found factor {factor}, expected a finite number above 0")
        self._recent *= factor
        self._limit *= factor
        self._gate *= factor
        self._fixed = None if self._fixed is None else self._fixed * factor

    def relearn(self) -> None:
        """Forget the window and the votes; there is no alarm until the window is full again."""
        self._seen = 0
        self._votes.clear()
        self._recent.fill(0.0)
        self._limit = self._gate = inf if self._fixed is None else self._fixed

    def state(self) -> dict[str, Any]:
        """Return the window, how many values entered it, and the last votes, as plain JSON."""
        return {"recent": self._recent.tolist(), "seen": self._seen, "votes": list(self._votes)}

    def resume(self, state: Mapping[str, Any] | None) -> bool:
        """Continue from what `state` returned.

        Args:
            state: The state of a threshold with the same settings; None if there is none.

        Returns:
            False, and nothing changes, if that was another kind of threshold, or none.
        """
        if state is None or len(state["recent"]) != len(self._recent):
            return False
        self.relearn()
        self._recent[:] = state["recent"]
        self._seen = state["seen"]
        self._votes.extend(state["votes"])
        if len(self._recent):
            self._learn()
        return True

    def __repr__(self) -> str:
        """Show the limit as it is now."""
        return f"Threshold(limit {self._limit:.4g}, {self._needed} of {self._votes.maxlen})"

    def _learn(self) -> None:
        if not self.ready:
            return
        if self._quantile is None:
            spread = self._sigmas or 0.0
            self._limit = self._gate = float(self._recent.mean() + spread * self._recent.std())
            return
        n = len(self._recent)
        above = int(round(n - self._quantile * n, 6))
        ordered = np.partition(self._recent, (n // 2, n - 1 - above))
        self._limit = float(ordered[n - 1 - above])
        # a gate at the limit itself would cut off the tail, again and again, until all was above
        self._gate = 2.0 * self._limit - float(ordered[n // 2])


def loss_shift(stats: Stats, before: Readout, after: Readout) -> float:
    """Return the factor by which a merge multiplies the loss of fresh samples like these.

    Args:
        stats: The device's own, which both readouts were solved from; no sample is needed.
        before: The readout before the merge.
        after: The readout after it.
    """
    return fresh_loss(stats, after) / fresh_loss(stats, before)


def _check_settings(
    limit: float | None,
    quantile: float | None,
    sigmas: float | None,
    window: int,
    votes: tuple[int, int],
) -> None:
    ways = {"limit": limit, "quantile": quantile, "sigmas": sigmas}
    given = [f"{name}={value}" for name, value in ways.items() if value is not None]
    least = 10.0 if quantile is None or quantile >= 1.0 else max(10.0, 1.0 / (1.0 - quantile))
    for ok, found, expected in (
        (len(given) <= 1, ", ".join(given), "one way: limit, quantile or sigmas"),
        (limit is None or 0.0 < limit < inf, f"limit={limit}", "a finite number above 0"),
        (quantile is None or 0.5 <= quantile < 1.0, f"quantile={quantile}", "0.5 to below 1"),
        (sigmas is None or 0.0 < sigmas < inf, f"sigmas={sigmas}", "a finite number above 0"),
        (window > least - 0.5, f"window={window}", f"{least:.0f} at least, to learn that limit"),
        (_is_pair(votes) and 1 <= votes[0] <= votes[1], f"votes={votes}", "(k, n), 1 ≤ k ≤ n"),
    ):
        if not ok:
            raise SettingError(f"found {found}, expected {expected}")


def _is_pair(votes: object) -> bool:
    return isinstance(votes, tuple) and len(votes) == 2
