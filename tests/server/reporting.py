"""Reports as devices make them."""

from edgemerge.server.schemas import ReportRequest

STATUS = {"samples": 9, "learnt": 9.5, "alarms": 1}
DIGEST = "ab" * 32


def point(at, score=1.0, threshold=None, alarm=False):
    return {"at": at, "score": score, "threshold": threshold, "alarm": alarm}


def alarm_of(at, sample=1, score=5.0, why=()):
    reasons = [{"input": name, "factor": factor} for name, factor in why]
    return {**point(at, score, 2.0, True), "sample": sample, "pattern": "normal", "why": reasons}


def merge_of(at, number=0, origins=0):
    """The merge of a number, with so many origins."""
    one = {"incarnation": 0, "pattern": "normal", "revision": 1}
    named = [{"device": f"d{i}", **one} for i in range(origins)]
    digest = f"{number:064x}"
    return {
        "at": at,
        "digest": digest,
        "samples": 7.0,
        "devices": max(1, origins),
        "shift": 1.5,
    } | {"origins": named}


def said(sent, *, points=(), alarms=(), merge=None, leaving=False, **status):
    """A report as it is sent."""
    return {
        "sent": sent,
        "status": STATUS | status,
        "points": list(points),
        "alarms": list(alarms),
        "merge": merge,
        "leaving": leaving,
    }


def report(sent, **words):
    """A report as it is read."""
    return ReportRequest.model_validate(said(sent, **words))


NAMED = {
    "fault": "bearing",
    "like": "most like bearing, first seen on pump-3, ratio 1.04; then leak of pump-1, 8.2",
}
HELD = {"sharing": "stays on this device: 61 of 128 samples"}


def monitor(**changed):
    """The status of a monitor: an open episode and one that ended, a pattern to review and one not.

    Times are those of samples, in seconds.
    """
    inputs = [["bearing_rms", 12.5], ["speed", 2.0]]
    odd = {"first": 900.0, "last": 960.0, "samples": 61.0, "peak": 33.0, "inputs": inputs}
    episode = {"peak": 33.0, "samples": 60, "inputs": inputs, "acknowledged": False}
    return {
        "phase": "watching",
        "ready": True,
        "learn": "normal",
        "commissioning": {"samples": 5000, "of": 256.0},
        "limit": {"value": 4.0, "kind": "provisional", "missing": 604_000},
        "drift": 1.25,
        "outside": 3,
        "snoozed_until": None,
        "episodes": [
            {"number": 1, "began": 900.0, "ended": 930.0, "pattern": "odd-1", **episode},
            {"number": 2, "began": 950.0, "ended": None, "pattern": "odd-1", **episode, **NAMED},
        ],
        "patterns": [
            {"name": "odd-1", "status": "unreviewed", "nearest": "normal", **odd, **NAMED},
            {"name": "worn bearing", "status": "fault", "nearest": None, **odd, **HELD},
        ],
    } | changed
