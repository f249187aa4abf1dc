"""What the settings of a projection and of a detector may be."""

from __future__ import annotations

from math import inf, log2, sqrt
from operator import index
from typing import Any

import numpy as np

from edgemerge.core.activation import ACTIVATIONS
from edgemerge.core.errors import KindError, SettingError
from edgemerge.core.grid import NARROW

WIDTHS = {"identity": 1.0, "relu": 1.0, "sigmoid": 3.0, "tanh": 3.0}  # times √(3/n)


def whole(name: str, value: Any) -> int:
    """Write a whole number as an int, whatever library it comes from."""
    try:
        return index(value)
    except TypeError as error:
        raise KindError(f"found {name}={value!r}, expected a whole number") from error


def plain_end(end: Any) -> float | tuple[float, ...]:
    """Write one end of the input range as a number or a tuple of numbers; −0 is 0."""
    return float(end) + 0.0 if np.ndim(end) == 0 else tuple(float(value) + 0.0 for value in end)


def usual_width(activation: str, n_inputs: int) -> float:
    """Give the half-width of weights that keeps hidden values of usual samples near [−1, 1]."""
    return float(2.0 ** round(log2(WIDTHS.get(activation, 1.0) * sqrt(3.0 / max(n_inputs, 1)))))


def refuse_bad(p: Any) -> None:
    """Refuse the first setting that cannot work, saying what it may be."""
    low, high = np.asarray(p.low), np.asarray(p.high)
    shapes = {(), (p.n_inputs,)}
    for ok, found, expected in (
        (p.n_inputs >= 1, f"n_inputs={p.n_inputs}", "at least 1"),
        (1 <= p.n_hidden <= 65536, f"n_hidden={p.n_hidden}", "1 to 65536"),
        (0 <= p.seed < 2**64, f"seed={p.seed}", "0 to 2⁶⁴ − 1"),
        (p.activation in ACTIVATIONS, f"activation={p.activation!r}", f"one of {ACTIVATIONS}"),
        (4 <= p.grid_bits <= 16, f"grid_bits={p.grid_bits}", "4 to 16"),
        (0.0 < p.width <= 1024.0, f"width={p.width}", "above 0, at most 1024"),
        (
            {low.shape, high.shape} <= shapes,
            f"low, high of shapes {low.shape}, {high.shape}",
            f"one number or {p.n_inputs}",
        ),
        (
            bool(np.all(np.isfinite(high - low) & (high - low > NARROW))),
            f"low={p.low}, high={p.high}",
            "finite, with low below high",
        ),
        (
            p.names is None or len(set(p.names)) == p.n_inputs,
            f"names={p.names}",
            f"{p.n_inputs} different names",
        ),
    ):
        if not ok:
            raise SettingError(f"found {found}, expected {expected}")


def refuse_bad_learning(ridge: float | None, forgetting: float, reject_above: float | None) -> None:
    """Refuse settings that a detector cannot learn with."""
    if ridge is not None and not 0.0 <= ridge < inf:
        raise SettingError(f"found ridge={ridge}, expected 0 or more, or None")
    if not 0.5 <= forgetting <= 1.0:
        raise SettingError(f"found forgetting={forgetting}, expected 0.5 to 1 (1: never)")
    if reject_above is not None and not reject_above > 1.0:
        raise SettingError(f"found reject_above={reject_above}, expected above 1, or None")
