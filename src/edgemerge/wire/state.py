"""Saved states: detectors, ledgers and banks as bytes and back; values go to the codec.

The state of a bank holds the last samples of each pattern, so it is for the device itself and is
never shared. A new kind of object has one line in each of the two tables at the end.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from edgemerge.core.bank import Bank
from edgemerge.core.detector import Detector
from edgemerge.core.errors import EdgemergeError, FormatError
from edgemerge.core.ledger import Contribution, Ledger, Merged
from edgemerge.core.patterns import Event, RingBuffer
from edgemerge.core.projection import Projection
from edgemerge.core.stats import Stats
from edgemerge.wire import codec
from edgemerge.wire.codec import (
    MAX_BYTES,
    Metadata,
    Payload,
    Tensors,
    pack,
    pack_payload,
    unpack_payload,
)

Array = NDArray[np.float64]

BOOL_FIELDS = ("settled", "sifted")
INT_FIELDS = ("clock", "compared", "rejected")
PATTERN_FIELDS = ("considered", "used_at", "moved", "gone")
BANK_OPTIONS = ("max_patterns", "reject_above", "ridge", "forgetting")


def bank_to_bytes(bank: Bank) -> bytes:
    """Write a bank; equal banks are equal bytes."""
    state, instances = bank.patterns, bank.patterns.instances.values()
    sums = {f"{i}.own.": each.detector.own for i, each in enumerate(instances)}
    sums |= {f"{i}.others.": each.detector.others for i, each in enumerate(instances)}
    parcel = pack_payload(Payload("patterns", bank.projection, {}, sums))
    tensors: Tensors = {"sums": np.frombuffer(parcel, np.int8), "waiting": bank.waiting}
    tensors["outsiders"] = _ring_rows(state.outsiders)
    for i, each in enumerate(instances):
        tensors[f"{i}.rows"] = _ring_rows(each.ring)
        tensors[f"{i}.recent"] = np.empty(0) if each.recent is None else each.recent
    return pack(
        {"kind": "bank", "state": json.dumps(_bank_fields(bank), separators=(",", ":"))}, tensors
    )


def _read_bank(data: bytes, words: Metadata, tensors: Tensors, limit: int) -> Bank:
    try:
        bank = _build_bank(json.loads(words["state"]), tensors, limit)
    except FormatError:
        raise
    except (EdgemergeError, ValueError, TypeError, KeyError, IndexError) as error:
        raise FormatError(f"the state does not make a bank: {error!r}") from error
    if bank_to_bytes(bank) != data:
        unknown = [name for name in words if name not in ("kind", "state")]
        raise FormatError(
            f"found the unknown metadata word {unknown[0][:80]!r}, expected kind and state: "
            "read it with the version of edgemerge that wrote it"
            if unknown
            else "the state of the bank is not in its canonical form"
        )
    return bank


def _ring_rows(ring: RingBuffer) -> NDArray[np.float32]:
    return ring.rows().astype(np.float32)


def _bank_fields(bank: Bank) -> dict[str, Any]:
    state = bank.patterns
    return {
        "options": {name: getattr(bank, name) for name in BANK_OPTIONS},
        **{name: getattr(state, name) for name in (*INT_FIELDS, *BOOL_FIELDS)},
        "odd": "".join("1" if odd else "0" for odd in state.odd),
        "outsiders": state.outsiders.seen,
        "events": [asdict(event) for event in state.events],
        "patterns": [
            {"name": name, "seen": each.ring.seen}
            | {key: getattr(each, key) for key in PATTERN_FIELDS}
            for name, each in state.instances.items()
        ],
    }


def _build_bank(plain: dict[str, Any], tensors: Tensors, limit: int) -> Bank:
    parcel = unpack_payload(tensors["sums"].tobytes(), limit=limit)
    bank = Bank(parcel.projection, **plain["options"])
    state, n = bank.patterns, parcel.projection.n_inputs
    for name in (*INT_FIELDS, *BOOL_FIELDS):
        setattr(state, name, plain[name])
    state.odd.extend(mark == "1" for mark in plain["odd"])
    state.events.extend(Event(**event) for event in plain["events"])
    state.outsiders.restore(_checked_rows(tensors["outsiders"], n), plain["outsiders"])
    for i, entry in enumerate(plain["patterns"]):
        each = state.add(entry["name"], parcel.parts[f"{i}.own."], np.empty((0, n)))
        each.detector.adopt(parcel.parts[f"{i}.others."])
        each.ring.restore(_checked_rows(tensors[f"{i}.rows"], n), entry["seen"])
        recent = tensors[f"{i}.recent"]
        each.recent = recent.astype(np.float64) if len(recent) else None
        for key in PATTERN_FIELDS:
            setattr(each, key, entry[key])
    bank.waiting = _checked_rows(tensors["waiting"], n)
    return bank


def _checked_rows(tensor: NDArray[Any], n_inputs: int) -> Array:
    if tensor.ndim != 2 or tensor.shape[1] != n_inputs or not np.isfinite(tensor).all():
        raise FormatError(f"found rows of shape {tensor.shape}, expected (k, {n_inputs}), finite")
    return tensor.astype(np.float64)


Saveable = Projection | Stats | Contribution | Merged | Detector | Ledger | Bank


def to_bytes(thing: Saveable) -> bytes:
    """Write a thing with everything that it needs to go on."""
    return bank_to_bytes(thing) if isinstance(thing, Bank) else pack_payload(_to_payload(thing))


def from_bytes(data: bytes, *, limit: int = MAX_BYTES) -> Saveable:
    """Make the thing again; saving that one gives the same bytes."""
    words, tensors = codec.read_container(data, limit)
    if words.get("kind") == "bank":
        return _read_bank(data, words, tensors, limit)
    payload = codec.payload_of(words, tensors, limit)
    thing = FROM_PAYLOAD.get(payload.kind, codec.from_payload)(payload)
    codec.must_be_canonical(_to_payload(thing, payload.form), data)
    return thing


def _to_payload(thing: Saveable, form: str = "exact") -> Payload:
    if type(thing) in TO_PAYLOAD:
        return TO_PAYLOAD[type(thing)](thing)
    return codec.to_payload(cast(codec.Value, thing), form)


def _write_detector(detector: Detector) -> Payload:
    options = {"ridge": detector.ridge, "reject_above": detector.reject_above}
    words = {name: float(value).hex() for name, value in options.items() if value is not None}
    words |= {"forgetting": float(detector.forgetting).hex(), "rejected": str(detector.rejected)}
    parts = {"own.": detector.own, "others.": detector.others}
    return Payload("detector", detector.projection, words, parts)


def _read_detector(parcel: Payload) -> Detector:
    words = parcel.words
    _must_have_parts(parcel, ["own.", "others."])
    if any(len(stats.C) != parcel.projection.n_inputs for stats in parcel.parts.values()):
        raise FormatError("found sums of another task, expected those of a detector")
    try:
        return Detector.resume(
            parcel.parts["own."],
            parcel.parts["others."],
            ridge=_optional_float(words, "ridge"),
            forgetting=float.fromhex(words["forgetting"]),
            reject_above=_optional_float(words, "reject_above"),
            rejected=int(words["rejected"]),
        )
    except (EdgemergeError, KeyError, ValueError, OverflowError) as error:
        raise FormatError(f"the settings do not make a detector: {error}") from error


def _optional_float(words: Metadata, name: str) -> float | None:
    return float.fromhex(words[name]) if name in words else None


def _write_ledger(ledger: Ledger) -> Payload:
    words: Metadata = {}
    parts: dict[str, Stats] = {}
    for i, contribution in enumerate(ledger):
        words |= {f"{i}.{key}": word for key, word in codec.origin_metadata(contribution).items()}
        parts[f"{i}."] = contribution.stats
    return Payload("ledger", ledger.projection, words, parts)


def _read_ledger(parcel: Payload) -> Ledger:
    _must_have_parts(parcel, [f"{i}." for i in range(len(parcel.parts))])
    outputs = {len(stats.C) for stats in parcel.parts.values()} or {parcel.projection.n_inputs}
    ledger = Ledger(parcel.projection, n_outputs=min(outputs))
    for name, stats in parcel.parts.items():
        n = len(name)
        words = {key[n:]: word for key, word in parcel.words.items() if key.startswith(name)}
        if not ledger.put(codec.contribution_from_metadata(words, stats)):
            raise FormatError("found a contribution twice, expected each once")
    return ledger


def _must_have_parts(parcel: Payload, names: list[str]) -> None:
    if list(parcel.parts) != names or parcel.form != "exact":
        raise FormatError(f"found sums {list(parcel.parts)[:9]}, expected {names[:9]}, all exact")


TO_PAYLOAD: dict[type, Callable[[Any], Payload]] = {
    Detector: _write_detector,
    Ledger: _write_ledger,
}
FROM_PAYLOAD: dict[str, Callable[[Payload], Saveable]] = {
    "detector": _read_detector,
    "ledger": _read_ledger,
}
