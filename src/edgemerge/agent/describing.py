"""What a report says, as plain JSON within the bounds that the server sets.

Names and words are cut to what can be shown, and numbers that JSON does not have are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any

from edgemerge.agent.learning import NORMAL
from edgemerge.agent.memory import Memory, digest_of
from edgemerge.agent.points import Judged, Points
from edgemerge.core.detector import Detector

NAME, WORDS = 200, 500  # characters
PATTERNS = 64
REASONS = 8
ORIGINS = 2000
HIGHEST = 1e300
LATEST = 1e11  # seconds since 1970
COUNTS = ("samples", "alarms", "skipped", "learning", "incarnation", "revision")

Plain = dict[str, Any]


def describe_status(
    memory: Memory, points: Points, status: Mapping[str, Any], synced: float | None
) -> Plain:
    """Say how the device is doing, from what its status says and what it remembers."""
    patterns = _patterns(memory, points)
    found = {name: status[name] for name in COUNTS}
    found["learnt"] = sum(each["own"] for each in patterns)
    found["pattern"] = (
        None if points.newest is None else pattern_name(memory, points.newest.pattern)
    )
    patterns.sort(key=lambda each: each["own"] + each["told"], reverse=True)
    found["patterns"] = [each for each in patterns if each["pattern"]][:PATTERNS]
    found |= {name: shown(str(status.get(name, "")), WORDS) for name in ("exchange", "told")}
    found["synced"] = None if synced is None else moment(synced)
    return found | {"saved": shown(str(status["saved"]), WORDS)}


def describe_merge(memory: Memory, shift: float | None) -> Plain:
    """Say what is held of others; this reads all that was told, so ask when it has changed."""
    told = memory.read_told(memory.told)
    origins = told.origins
    return {
        "digest": digest_of(memory.told),
        "samples": amount(sum(part.stats.count for part in told.parts)),
        "devices": len({origin.device for origin in origins}),
        "shift": None if shift is None else amount(shift),
        "origins": _origins(origin._asdict() for origin in origins[:ORIGINS]),
    }


def describe_point(judged: Judged, at: float) -> Plain:
    """Give a score; what is not said is no threshold, and no alarm."""
    verdict = judged.verdict
    found: Plain = {"at": moment(at), "score": amount(verdict.score)}
    if isfinite(verdict.limit):
        found["threshold"] = amount(verdict.limit)
    return found | ({"alarm": True} if verdict.alarm else {})


def describe_alarm(judged: Judged, at: float, memory: Memory) -> Plain:
    """Give an alarm, and what carries it."""
    verdict = judged.verdict
    why = [(shown(name, NAME), amount(factor)) for name, factor in verdict.carried[:REASONS]]
    return {
        **describe_point(judged, at),
        "sample": verdict.index,
        "pattern": pattern_name(memory, verdict.pattern),
        "why": [{"input": name, "factor": factor} for name, factor in why if name],
    }


def pattern_name(memory: Memory, pattern: str | None) -> str | None:
    """Name a pattern as it is shown: that of a detector has a name, too."""
    if pattern is None and isinstance(memory.learner.thing, Detector):
        return NORMAL
    return shown(pattern or "", NAME) or None


def shown(text: str, most: int) -> str:
    r"""Cut text to what can be printed, and to so many characters.

    >>> shown("pump\x1b[2J\ud800 3", 8)
    'pump[2J '
    """
    return "".join(filter(str.isprintable, text[: 10 * most]))[:most]


def amount(number: float) -> float:
    """Give a number with six digits, from 0 to the highest that is taken.

    >>> amount(1.23456789), amount(-1.0), amount(float("inf")), amount(float("nan"))
    (1.23457, 0.0, 1e+300, 0.0)
    """
    return float(f"{min(max(0.0, number), HIGHEST):.6g}")


def moment(at: float) -> float:
    """Give a time of day to the millisecond, as far as the clock makes sense.

    >>> moment(1000.12345), moment(-5.0), moment(1e30) < 1e11
    (1000.123, 0.0, True)
    """
    return round(min(max(0.0, at), LATEST - 1.0), 3)


def _patterns(memory: Memory, points: Points) -> list[Plain]:
    thing = memory.learner.thing
    if isinstance(thing, Detector):
        return [_pattern(NORMAL, thing, points.used(None))]
    return [_pattern(name, thing[name], points.used(name)) for name in thing]


def _pattern(name: str, detector: Detector, used: int) -> Plain:
    told = detector.known.told
    own = detector.count - told * detector.known.frame
    return {"pattern": shown(name, NAME), "own": amount(own), "told": amount(told), "used": used}


def _origins(origins: Iterable[Plain]) -> list[Plain]:
    """Cut names; an origin without one that can be shown is left out."""
    cut = [
        {**each, "device": shown(each["device"], NAME), "pattern": shown(each["pattern"], NAME)}
        for each in origins
    ]
    return [each for each in cut if each["device"] and each["pattern"]]
