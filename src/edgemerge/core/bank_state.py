"""The state of a bank as bytes and back: all it needs to go on where it stopped.

It holds the last samples of each pattern, so it is for the device itself and is never shared.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgemerge.core.bank import Bank
from edgemerge.core.errors import EdgemergeError, FormatError
from edgemerge.core.events import Event
from edgemerge.core.packing import Tensors, pack, unpack
from edgemerge.core.parcel import Parcel, seal, unseal
from edgemerge.core.ring import Ring

Array = NDArray[np.float64]

FLAGS = ("settled", "sifted")
NUMBERS = ("clock", "compared", "rejected")
OF_EACH = ("considered", "used_at", "moved", "gone")
OPTIONS = ("max_patterns", "reject_above", "ridge", "forgetting")


def bank_to_bytes(bank: Bank) -> bytes:
    """Write a bank; equal banks are equal bytes."""
    state, instances = bank.patterns, bank.patterns.instances.values()
    sums = {f"{i}.own.": each.detector.own for i, each in enumerate(instances)}
    sums |= {f"{i}.others.": each.detector.others for i, each in enumerate(instances)}
    parcel = seal(Parcel("patterns", bank.projection, {}, sums))
    tensors: Tensors = {"sums": np.frombuffer(parcel, np.int8), "waiting": bank.waiting}
    tensors["outsiders"] = _kept(state.outsiders)
    for i, each in enumerate(instances):
        tensors[f"{i}.rows"] = _kept(each.ring)
        tensors[f"{i}.recent"] = np.empty(0) if each.recent is None else each.recent
    return pack({"kind": "bank", "state": json.dumps(_plain(bank), separators=(",", ":"))}, tensors)


def bank_from_bytes(data: bytes, *, limit: int) -> Bank:
    """Make the bank again; bytes that we would not have written are refused."""
    words, tensors = unpack(data, limit)
    try:
        bank = _bank(json.loads(words["state"]), tensors, limit)
    except FormatError:
        raise
    except (EdgemergeError, ValueError, TypeError, KeyError, IndexError) as error:
        raise FormatError(f"the state does not make a bank: {error!r}") from error
    if bank_to_bytes(bank) != data:
        raise FormatError("the state of the bank is not in its canonical form")
    return bank


def _kept(ring: Ring) -> NDArray[np.float32]:
    return ring.rows().astype(np.float32)


def _plain(bank: Bank) -> dict[str, Any]:
    state = bank.patterns
    return {
        "options": {name: getattr(bank, name) for name in OPTIONS},
        **{name: getattr(state, name) for name in (*NUMBERS, *FLAGS)},
        "odd": "".join("1" if odd else "0" for odd in state.odd),
        "outsiders": state.outsiders.seen,
        "events": [asdict(event) for event in state.events],
        "patterns": [
            {"name": name, "seen": each.ring.seen} | {key: getattr(each, key) for key in OF_EACH}
            for name, each in state.instances.items()
        ],
    }


def _bank(plain: dict[str, Any], tensors: Tensors, limit: int) -> Bank:
    parcel = unseal(tensors["sums"].tobytes(), limit=limit)
    bank = Bank(parcel.projection, **plain["options"])
    state, n = bank.patterns, parcel.projection.n_inputs
    for name in (*NUMBERS, *FLAGS):
        setattr(state, name, plain[name])
    state.odd.extend(mark == "1" for mark in plain["odd"])
    state.events.extend(Event(**event) for event in plain["events"])
    state.outsiders.restore(_rows(tensors["outsiders"], n), plain["outsiders"])
    for i, entry in enumerate(plain["patterns"]):
        each = state.add(entry["name"], parcel.parts[f"{i}.own."], np.empty((0, n)))
        each.detector.adopt(parcel.parts[f"{i}.others."])
        each.ring.restore(_rows(tensors[f"{i}.rows"], n), entry["seen"])
        recent = tensors[f"{i}.recent"]
        each.recent = recent.astype(np.float64) if len(recent) else None
        for key in OF_EACH:
            setattr(each, key, entry[key])
    bank.waiting = _rows(tensors["waiting"], n)
    return bank


def _rows(tensor: NDArray[Any], n_inputs: int) -> Array:
    if tensor.ndim != 2 or tensor.shape[1] != n_inputs or not np.isfinite(tensor).all():
        raise FormatError(f"found rows of shape {tensor.shape}, expected (k, {n_inputs}), finite")
    return tensor.astype(np.float64)
