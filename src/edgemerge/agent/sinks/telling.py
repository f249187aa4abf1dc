"""What sinks say: a verdict as one JSON object."""

from __future__ import annotations

import json
from math import isfinite
from typing import Any

from edgemerge.agent.parts import Verdict

DIGITS = 6


def as_object(verdict: Verdict) -> dict[str, Any]:
    """Give a verdict as plain JSON; numbers that JSON does not have become null.

    >>> as_object(Verdict("pump-3", 7, 60.0, 1.23456789, float("inf"), False))["score"]
    1.23457
    """
    return {
        "device": verdict.device,
        "index": verdict.index,
        "at": round(verdict.at, DIGITS) if isfinite(verdict.at) else None,
        "score": _short(verdict.score),
        "limit": _short(verdict.limit),
        "alarm": verdict.alarm,
        "pattern": verdict.pattern,
        "why": list(verdict.why),
    }


def as_line(thing: dict[str, Any]) -> str:
    """Write an object on one line, without its end."""
    return json.dumps(thing, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def plain(thing: Any) -> Any:
    """Give anything as plain JSON: numbers that it does not have as null, the rest as text.

    >>> plain({"limit": float("inf"), "kind": int, "devices": ("b",)})
    {'limit': None, 'kind': "<class 'int'>", 'devices': ['b']}
    """
    if isinstance(thing, dict):
        return {str(key): plain(value) for key, value in thing.items()}
    if isinstance(thing, list | tuple):
        return [plain(each) for each in thing]
    if isinstance(thing, float):
        return float(thing) if isfinite(thing) else None
    return thing if thing is None or isinstance(thing, str | int) else str(thing)


def _short(number: float) -> float | None:
    return float(f"{number:.{DIGITS}g}") if isfinite(number) else None
