"""Saved states: write detectors, ledgers, banks and monitors; the codec writes all other values.

The state of a bank or a monitor holds samples: keep it on the device, never share it.
To add a kind of object, add it to the two tables at the end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from hashlib import sha256
from math import inf
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from edgemerge.core.bank import Bank
from edgemerge.core.detector import Detector
from edgemerge.core.errors import EdgemergeError, FormatError
from edgemerge.core.faults import FaultName, Faults
from edgemerge.core.ledger import Contribution, Ledger, Merged
from edgemerge.core.monitor import (
    RESERVOIR_ROWS,
    Episode,
    Monitor,
    MonitorEvent,
    OddPattern,
    Thinned,
    has_small_ridge,
)
from edgemerge.core.patterns import Event, Pattern, RingBuffer
from edgemerge.core.projection import Projection
from edgemerge.core.readout import Ceiling
from edgemerge.core.stats import Stats
from edgemerge.wire import codec
from edgemerge.wire.admission import wrong_sums
from edgemerge.wire.codec import (
    MAX_BYTES,
    Metadata,
    Payload,
    Tensors,
    decode,
    encode,
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
    """Return a bank as bytes; equal banks give equal bytes."""
    state, instances = bank.patterns, bank.patterns.instances.values()
    sums = {f"{i}.own.": each.detector.own for i, each in enumerate(instances)}
    sums |= {f"{i}.others.": each.detector.others for i, each in enumerate(instances)}
    packed = pack_payload(Payload("patterns", bank.projection, {}, sums))
    tensors: Tensors = {"sums": np.frombuffer(packed, np.int8), "waiting": bank.waiting}
    tensors["outsiders"] = _ring_rows(state.outsiders)
    for i, each in enumerate(instances):
        tensors[f"{i}.rows"] = _ring_rows(each.ring)
        tensors[f"{i}.recent"] = np.empty(0) if each.recent is None else each.recent
    return pack(
        {"kind": "bank", "state": json.dumps(_bank_fields(bank), separators=(",", ":"))}, tensors
    )


def _read_bank(data: bytes, metadata: Metadata, tensors: Tensors, limit: int) -> Bank:
    try:
        bank = _build_bank(json.loads(metadata["state"]), tensors, limit)
    except FormatError:
        raise
    except (EdgemergeError, ValueError, TypeError, KeyError, IndexError) as error:
        raise FormatError(f"found an invalid state of a bank: {error!r}") from error
    if bank_to_bytes(bank) != data:
        unknown = [name for name in metadata if name not in ("kind", "state")]
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
            | _ceiling(each)
            for name, each in state.instances.items()
        ],
    }


def _ceiling(pattern: Pattern) -> dict[str, float]:
    """Return what others may claim to be usual, at most; nothing if there is no bound."""
    ceiling = pattern.detector.known.ceiling
    named = {"ceiling": ceiling.loss, "leverage_ceiling": ceiling.leverage}
    return {name: found for name, found in named.items() if found < inf}


def _build_bank(plain: dict[str, Any], tensors: Tensors, limit: int) -> Bank:
    payload = unpack_payload(tensors["sums"].tobytes(), limit=limit)
    bank = Bank(payload.projection, **plain["options"])
    state, n = bank.patterns, payload.projection.n_inputs
    for name in (*INT_FIELDS, *BOOL_FIELDS):
        setattr(state, name, plain[name])
    state.odd.extend(mark == "1" for mark in plain["odd"])
    state.events.extend(Event(**event) for event in plain["events"])
    state.outsiders.restore(_checked_rows(tensors["outsiders"], n), plain["outsiders"])
    for i, entry in enumerate(plain["patterns"]):
        _must_be_whole(payload.parts[f"{i}.own."], f"the pattern {entry['name']!r}")
        each = state.add(entry["name"], payload.parts[f"{i}.own."], np.empty((0, n)))
        each.detector.adopt(payload.parts[f"{i}.others."])
        ceilings = (entry.get(name, inf) for name in ("ceiling", "leverage_ceiling"))
        each.detector.known.ceiling = Ceiling(*ceilings)
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


MONITOR_FIELDS = (
    "phase", "taken", "began", "last_at", "outside", "snoozed_until", "drift", "drifted",
    "numbers", "paused",
)  # fmt: skip
ODD_FIELDS = (
    "name", "first", "last", "cosines", "peak", "inputs", "nearest", "status", "into", "number",
    "compared",
)  # fmt: skip


def monitor_to_bytes(monitor: Monitor) -> bytes:
    """Return a monitor as bytes: its learner, its snapshot, and everything it keeps."""
    n, learner = monitor.learner.projection.n_inputs, monitor.learner
    odd = list(monitor.odd_patterns.values())
    sums = {f"{i}.": each.stats for i, each in enumerate(odd)}
    tensors: Tensors = {
        "learner": bytes_tensor(to_bytes(learner)),
        "snapshot": bytes_tensor(b"" if monitor.snapshot is None else to_bytes(monitor.snapshot)),
        "progress": learner.progress() if isinstance(learner, Detector) else np.empty(0),
        "odd": bytes_tensor(pack_payload(Payload("patterns", learner.projection, {}, sums))),
        "first": _rows_tensor(monitor.first_rows, n),
        "sketch": _rows_tensor(monitor.sketch.rows, n),
        "pending": _rows_tensor([row for _, _, row, _ in monitor.pending], n),
        "block": _rows_tensor([row for _, row, _ in monitor.block], n),
        "recent": _rows_tensor(monitor.recent, n),
    }
    if len(monitor.faults):
        tensors["faults"] = bytes_tensor(encode(monitor.faults))
    for i, each in enumerate(odd):
        tensors[f"{i}.rows"] = _rows_tensor(each.rows.rows, n)
        tensors[f"{i}.direction"] = each.direction
    state = json.dumps(_monitor_fields(monitor), separators=(",", ":"))
    words = {"kind": "monitor", "state": state, "sha256": _digest(state, tensors)}
    return pack(words, tensors)


def _digest(state: str, tensors: Tensors) -> str:
    """Return the checksum of a monitor's state; its bytes are not pinned, as others' are."""
    found = sha256(json.dumps([state, codec.layout_of(tensors)]).encode())
    for tensor in tensors.values():
        found.update(tensor.tobytes())
    return found.hexdigest()


def _monitor_fields(monitor: Monitor) -> dict[str, Any]:
    return {
        "options": monitor.options,
        **{name: getattr(monitor, name) for name in MONITOR_FIELDS},
        **({"small_ridge": True} if has_small_ridge(monitor.learner) else {}),
        "limit": monitor.limit.state(),
        "level": monitor.level.state(),
        "episodes": [asdict(episode) for episode in monitor.episodes],
        "open": None if monitor.episode is None else {"assigned": list(monitor.assigned.items())},
        "events": [asdict(event) for event in monitor.events],
        "drifts": list(monitor.drifts),
        "sketch": [monitor.sketch.stride, monitor.sketch.seen],
        "pending": [[number, at, score] for number, at, _, score in monitor.pending],
        "block": [[at, score] for at, _, score in monitor.block],
        "odd": [
            {name: getattr(each, name) for name in ODD_FIELDS}
            | {"stride": each.rows.stride, "seen": each.rows.seen}
            | {"like": None if each.like is None else each.like.plain()}
            for each in monitor.odd_patterns.values()
        ],
        "pinned": _pinned(monitor.learner),
        "pinned_then": [] if monitor.snapshot is None else _pinned(monitor.snapshot),
    }


def _read_monitor(metadata: Metadata, tensors: Tensors, limit: int) -> Monitor:
    unknown = [name for name in metadata if name not in ("kind", "state", "sha256")]
    if unknown:
        raise FormatError(
            f"found the unknown metadata word {unknown[0][:80]!r}, expected kind, state, sha256: "
            "read it with the version of edgemerge that wrote it"
        )
    try:
        if "sha256" in metadata and metadata["sha256"] != _digest(metadata["state"], tensors):
            raise FormatError("the checksum of the monitor does not fit: load another copy")
        return _build_monitor(json.loads(metadata["state"]), tensors, limit)
    except FormatError:
        raise
    except (EdgemergeError, ValueError, TypeError, KeyError, IndexError) as error:
        raise FormatError(f"found an invalid state of a monitor: {error!r}") from error


def _build_monitor(plain: dict[str, Any], tensors: Tensors, limit: int) -> Monitor:
    learner = _learner_of(tensors["learner"], plain["pinned"], limit)
    options = plain["options"] | {"votes": tuple(plain["options"]["votes"])}
    monitor = Monitor(learner, **options)
    if isinstance(learner, Detector):
        learner.small_ridge = plain.get("small_ridge", False)
        learner.restore(tensors["progress"].astype(np.float64))  # now: a new ridge would drop it
    n = learner.projection.n_inputs
    for name in MONITOR_FIELDS:
        setattr(monitor, name, plain[name])
    monitor.snapshot = None
    if len(tensors["snapshot"]):
        monitor.snapshot = _learner_of(tensors["snapshot"], plain["pinned_then"], limit)
        if isinstance(monitor.snapshot, Detector):
            monitor.snapshot.small_ridge = has_small_ridge(learner)
    monitor.limit.resume(plain["limit"])
    monitor.level.resume(plain["level"])
    monitor.episodes = [_episode(each) for each in plain["episodes"]]
    monitor.episode = monitor.episodes[-1] if plain["open"] else None
    if isinstance(plain["open"], dict):  # older versions saved whether there is one
        monitor.assigned = dict(plain["open"]["assigned"])
    monitor.events.extend(MonitorEvent(**each) for each in plain["events"])
    monitor.drifts.extend(plain["drifts"])
    monitor.first_rows = list(_checked_rows(tensors["first"], n))
    monitor.recent = list(_checked_rows(tensors["recent"], n))
    _fill(monitor.sketch, _checked_rows(tensors["sketch"], n), *plain["sketch"])
    rows = zip(plain["pending"], _checked_rows(tensors["pending"], n), strict=True)
    monitor.pending = [(number, at, row, score) for (number, at, score), row in rows]
    rows = zip(map(_scored, plain["block"]), _checked_rows(tensors["block"], n), strict=True)
    monitor.block = [(at, row, score) for (at, score), row in rows]
    monitor.faults = _known_faults(tensors.get("faults"), learner.projection, limit)
    sums = unpack_payload(tensors["odd"].tobytes(), limit=limit).parts
    for i, each in enumerate(plain["odd"]):
        kept = Thinned(RESERVOIR_ROWS)
        _fill(kept, _checked_rows(tensors[f"{i}.rows"], n), each.pop("stride"), each.pop("seen"))
        each |= {"cosines": tuple(each["cosines"]), "inputs": [tuple(x) for x in each["inputs"]]}
        direction = tensors[f"{i}.direction"].astype(np.float64)
        _complete(each, monitor)
        monitor.odd_patterns[each["name"]] = OddPattern(
            stats=sums[f"{i}."], rows=kept, direction=direction, **each
        )
        if isinstance(learner, Bank) and each["into"] in learner.detectors:
            learner.patterns.instances[each["into"]].held += 1
    return monitor


def _known_faults(tensor: NDArray[Any] | None, shared: Projection, limit: int) -> Faults:
    if tensor is None:
        return Faults(shared)
    data = tensor.tobytes()
    return decode(data, Faults, limit=limit, projection=shared).keep_encoded(data)


def _complete(plain: dict[str, Any], monitor: Monitor) -> None:
    """Restore the name of a pattern; older versions saved none, and no number."""
    if plain.setdefault("like", None) is not None:
        plain["like"] = FaultName.from_plain(plain["like"])
    if "number" not in plain:
        monitor.numbers["odd"] += 1
        plain["number"] = monitor.numbers["odd"]


def _scored(entry: Any) -> tuple[float, float]:
    """Return time and score of an odd sample; older versions saved the time alone."""
    return tuple(entry) if isinstance(entry, list) else (entry, 0.0)


def _episode(plain: dict[str, Any]) -> Episode:
    return Episode(**plain | {"inputs": [tuple(each) for each in plain["inputs"]]})


def _fill(kept: Thinned, rows: Array, stride: int, seen: int) -> None:
    kept.rows, kept.stride, kept.seen = [row.astype(np.float32) for row in rows], stride, seen


def _learner_of(tensor: NDArray[Any], pinned: list[str], limit: int) -> Detector | Bank:
    learner = from_bytes(tensor.tobytes(), limit=limit)
    if not isinstance(learner, Detector | Bank):
        raise FormatError(f"found {type(learner).__name__}, expected a detector or a bank")
    if isinstance(learner, Bank):
        for name in pinned:
            learner.patterns.instances[name].pinned = True
    return learner


def _pinned(learner: Detector | Bank) -> list[str]:
    """Return the patterns that a person approved; the state of a bank has no word for them."""
    if isinstance(learner, Detector):
        return []
    return [name for name, each in learner.patterns.instances.items() if each.pinned]


def bytes_tensor(data: bytes) -> NDArray[np.int8]:
    """Return bytes as a tensor, to be packed with others."""
    return np.frombuffer(data, np.int8)


def _rows_tensor(rows: Sequence[NDArray[Any]], n: int) -> NDArray[np.float32]:
    return np.array(rows, np.float32).reshape(-1, n)  # holds every grid value exactly


Saveable = Projection | Stats | Contribution | Merged | Faults | Detector | Ledger | Bank | Monitor


def to_bytes(value: Saveable) -> bytes:
    """Return a value as bytes, with everything needed to continue from it."""
    if isinstance(value, Monitor):
        return monitor_to_bytes(value)
    return bank_to_bytes(value) if isinstance(value, Bank) else pack_payload(_to_payload(value))


def from_bytes(data: bytes, *, limit: int = MAX_BYTES) -> Saveable:
    """Return the value that `to_bytes` wrote; other bytes raise FormatError."""
    metadata, tensors = codec.read_container(data, limit)
    if metadata.get("kind") == "bank":
        return _read_bank(data, metadata, tensors, limit)
    if metadata.get("kind") == "monitor":
        if "sha256" in metadata:  # older versions wrote none
            codec.unpack(data, limit)  # checks the header
        return _read_monitor(metadata, tensors, limit)
    payload = codec.payload_of(metadata, tensors, limit)
    value = FROM_PAYLOAD.get(payload.kind, codec.from_payload)(payload)
    codec.must_be_canonical(_to_payload(value, payload.form), data)
    return value


def _to_payload(value: Saveable, form: str = "exact") -> Payload:
    if type(value) in TO_PAYLOAD:
        return TO_PAYLOAD[type(value)](value)
    return codec.to_payload(cast(codec.Value, value), form)


def _write_detector(detector: Detector) -> Payload:
    options = {"ridge": detector.ridge, "reject_above": detector.reject_above}
    metadata = {name: float(value).hex() for name, value in options.items() if value is not None}
    metadata |= {"forgetting": float(detector.forgetting).hex(), "rejected": str(detector.rejected)}
    parts = {"own.": detector.own, "others.": detector.others}
    return Payload("detector", detector.projection, metadata, parts)


def _read_detector(payload: Payload) -> Detector:
    metadata = payload.metadata
    _must_have_parts(payload, ["own.", "others."])
    if any(len(stats.C) != payload.projection.n_inputs for stats in payload.parts.values()):
        raise FormatError("found sums of another task, expected those of a detector")
    _must_be_whole(payload.parts["own."], "a detector")  # adopted ones may be estimates
    try:
        return Detector.resume(
            payload.parts["own."],
            payload.parts["others."],
            ridge=_optional_float(metadata, "ridge"),
            forgetting=float.fromhex(metadata["forgetting"]),
            reject_above=_optional_float(metadata, "reject_above"),
            rejected=int(metadata["rejected"]),
        )
    except (EdgemergeError, KeyError, ValueError, OverflowError) as error:
        raise FormatError(f"found invalid settings of a detector: {error}") from error


def _must_be_whole(stats: Stats, what: str) -> None:
    """Refuse sums that no samples have: bits have turned in the file, which has no checksum."""
    if wrong := wrong_sums(stats):
        raise FormatError(f"{wrong} in {what}: the file is damaged, load another copy")


def _optional_float(metadata: Metadata, name: str) -> float | None:
    return float.fromhex(metadata[name]) if name in metadata else None


def _write_ledger(ledger: Ledger) -> Payload:
    metadata: Metadata = {}
    parts: dict[str, Stats] = {}
    for i, contribution in enumerate(ledger):
        metadata |= {
            f"{i}.{key}": word for key, word in codec.origin_metadata(contribution).items()
        }
        parts[f"{i}."] = contribution.stats
    return Payload("ledger", ledger.projection, metadata, parts)


def _read_ledger(payload: Payload) -> Ledger:
    _must_have_parts(payload, [f"{i}." for i in range(len(payload.parts))])
    outputs = {len(stats.C) for stats in payload.parts.values()} or {payload.projection.n_inputs}
    ledger = Ledger(payload.projection, n_outputs=min(outputs))
    for name, stats in payload.parts.items():
        n = len(name)
        _must_be_whole(stats, f"a contribution to a ledger ({name[:-1]})")
        metadata = {key[n:]: word for key, word in payload.metadata.items() if key.startswith(name)}
        if not ledger.put(codec.contribution_from_metadata(metadata, stats)):
            raise FormatError("found a contribution twice, expected each once")
    return ledger


def _must_have_parts(payload: Payload, names: list[str]) -> None:
    if list(payload.parts) != names or payload.form != "exact":
        raise FormatError(f"found sums {list(payload.parts)[:9]}, expected {names[:9]}, all exact")


TO_PAYLOAD: dict[type, Callable[[Any], Payload]] = {
    Detector: _write_detector,
    Ledger: _write_ledger,
}
FROM_PAYLOAD: dict[str, Callable[[Payload], Saveable]] = {
    "detector": _read_detector,
    "ledger": _read_ledger,
}
