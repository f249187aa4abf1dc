"""A projection as text: its settings, from which it is built again, and its fingerprint."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from edgemerge.core.errors import EdgemergeError, FormatError
from edgemerge.core.projection import Projection


def settings_of(projection: Projection) -> str:
    """Write the settings of a projection as text that builds it again."""
    p = projection
    sizes = {"n_inputs": int(p.n_inputs), "n_hidden": int(p.n_hidden), "seed": int(p.seed)}
    ranges = {"low": p.low, "high": p.high, "width": float(p.width), "grid_bits": int(p.grid_bits)}
    every = {**sizes, "activation": p.activation, **ranges, "names": p.names}
    return json.dumps(every, separators=(",", ":"))


def agreed(text: str, fingerprint: str, limit: int, known: Projection | None) -> Projection:
    """Build the projection that a text describes, unless it is the one at hand."""
    try:
        same = known is not None and settings_of(known) == text
        projection = known if known and same else _projection(json.loads(text), limit)
        expected = projection.fingerprint
    except (EdgemergeError, ValueError, TypeError, RecursionError) as error:
        raise FormatError(f"the settings do not make a projection: {error}") from error
    if settings_of(projection) != text:
        raise FormatError("the settings of the projection are not in their canonical form")
    if fingerprint != expected:
        raise FormatError(
            f"found fingerprint {fingerprint[:64]!r}, expected {expected} by the settings: "
            "the sender draws other weights, so its sums cannot be used here"
        )
    return projection


def _projection(settings: Any, limit: int) -> Projection:
    _must_be_plain(settings, limit)
    with np.errstate(all="ignore"):  # what is not finite is refused by its name
        return Projection(**settings)


def _must_be_plain(settings: Any, limit: int) -> None:
    if not isinstance(settings, dict):
        raise FormatError("found no list of settings")
    for name in ("n_inputs", "n_hidden", "seed", "grid_bits"):
        if type(settings.get(name)) is not int:
            raise FormatError(f"found {name}={settings.get(name)!r}, expected a whole number")
    for name, kinds in {"low": float, "high": float, "width": float, "names": str}.items():
        value = settings.get(name)
        values = value if isinstance(value, list) else [value]
        if not (all(type(v) is kinds for v in values) or (name == "names" and value is None)):
            raise FormatError(f"found {name} of another type, expected {kinds.__name__}")
    if settings["n_inputs"] * settings["n_hidden"] * 8 > limit:
        raise FormatError(f"its weights alone take more than {limit} bytes: raise `limit`")
