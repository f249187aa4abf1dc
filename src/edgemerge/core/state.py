"""State: things that change, as bytes and back: Detector, Ledger, Bank; values go to the codec.

A new kind of thing has one line in each of the two tables at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edgemerge.core import codec
from edgemerge.core.bank import Bank
from edgemerge.core.bank_state import bank_from_bytes, bank_to_bytes
from edgemerge.core.contribution import Contribution
from edgemerge.core.detector import Detector
from edgemerge.core.errors import EdgemergeError, FormatError
from edgemerge.core.ledger import Ledger
from edgemerge.core.packing import Words, unpack
from edgemerge.core.parcel import LIMIT, Parcel, seal, unseal
from edgemerge.core.projection import Projection
from edgemerge.core.stats import Stats
from edgemerge.core.told import Told

Thing = Projection | Stats | Contribution | Told | Detector | Ledger | Bank


def to_bytes(thing: Thing) -> bytes:
    """Write a thing with everything that it needs to go on."""
    return bank_to_bytes(thing) if isinstance(thing, Bank) else seal(_parcel(thing))


def from_bytes(data: bytes, *, limit: int = LIMIT) -> Thing:
    """Make the thing again; saving that one gives the same bytes."""
    if unpack(data, limit)[0].get("kind") == "bank":
        return bank_from_bytes(data, limit=limit)
    parcel = unseal(data, limit=limit)
    thing = READERS.get(parcel.kind, codec.from_parcel)(parcel)
    if list(_parcel(thing).words.items()) != list(parcel.words.items()):
        raise FormatError(f"the words of this {parcel.kind} are not those that edgemerge writes")
    return thing


def _parcel(thing: Thing) -> Parcel:
    return WRITERS.get(type(thing), codec.to_parcel)(thing)


def _write_detector(detector: Detector) -> Parcel:
    options = {"ridge": detector.ridge, "reject_above": detector.reject_above}
    words = {name: float(value).hex() for name, value in options.items() if value is not None}
    words |= {"forgetting": float(detector.forgetting).hex(), "rejected": str(detector.rejected)}
    parts = {"own.": detector.own, "others.": detector.others}
    return Parcel("detector", detector.projection, words, parts)


def _read_detector(parcel: Parcel) -> Detector:
    words = parcel.words
    _must_hold(parcel, ["own.", "others."])
    if any(len(stats.C) != parcel.projection.n_inputs for stats in parcel.parts.values()):
        raise FormatError("found sums of another task, expected those of a detector")
    try:
        return Detector.resume(
            parcel.parts["own."],
            parcel.parts["others."],
            ridge=_number(words, "ridge"),
            forgetting=float.fromhex(words["forgetting"]),
            reject_above=_number(words, "reject_above"),
            rejected=int(words["rejected"]),
        )
    except (EdgemergeError, KeyError, ValueError, OverflowError) as error:
        raise FormatError(f"the settings do not make a detector: {error}") from error


def _number(words: Words, name: str) -> float | None:
    return float.fromhex(words[name]) if name in words else None


def _write_ledger(ledger: Ledger) -> Parcel:
    words: Words = {}
    parts: dict[str, Stats] = {}
    for i, contribution in enumerate(ledger):
        words |= {f"{i}.{key}": word for key, word in codec.origin(contribution).items()}
        parts[f"{i}."] = contribution.stats
    return Parcel("ledger", ledger.projection, words, parts)


def _read_ledger(parcel: Parcel) -> Ledger:
    _must_hold(parcel, [f"{i}." for i in range(len(parcel.parts))])
    outputs = {len(stats.C) for stats in parcel.parts.values()} or {parcel.projection.n_inputs}
    ledger = Ledger(parcel.projection, n_outputs=min(outputs))
    for name, stats in parcel.parts.items():
        n = len(name)
        words = {key[n:]: word for key, word in parcel.words.items() if key.startswith(name)}
        if not ledger.put(codec.contribution_of(words, stats)):
            raise FormatError("found a contribution twice, expected each once")
    return ledger


def _must_hold(parcel: Parcel, names: list[str]) -> None:
    if list(parcel.parts) != names or parcel.form != "exact":
        raise FormatError(f"found sums {list(parcel.parts)[:9]}, expected {names[:9]}, all exact")


WRITERS: dict[type, Callable[[Any], Parcel]] = {Detector: _write_detector, Ledger: _write_ledger}
READERS: dict[str, Callable[[Parcel], Thing]] = {"detector": _read_detector, "ledger": _read_ledger}
