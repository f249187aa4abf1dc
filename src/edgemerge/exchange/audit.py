"""The hash chain of the audit log, which the server writes and its operator verifies."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any

from edgemerge.core.errors import RejectedError

FIRST_HASH = "0" * 64  # `previous` of the first entry
CHECKPOINT = "checkpoint"  # action of an entry that seals the entries that were deleted
HASHED_FIELDS = ("seq", "at", "actor", "action", "fleet", "subject", "detail")


def entry_hash(entry: Mapping[str, Any]) -> str:
    """Return the hash that an entry must have."""
    fields = {name: entry.get(name) for name in HASHED_FIELDS}
    text = json.dumps(fields, separators=(",", ":"), sort_keys=True)
    return sha256((str(entry.get("previous")) + text).encode()).hexdigest()


def checkpoint_detail(seq: int, sealed: str) -> dict[str, Any]:
    """Return what a checkpoint says of the last entry that was deleted: its number and hash."""
    return {"through": seq, "hash": sealed}


def verify_chain(entries: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield entries, starting with the first of the log; raise where the chain is broken.

    A log whose oldest entries were deleted starts later. Then an entry of the chain must be the
    checkpoint that seals the last deleted one, which the first one follows.

    >>> entry = dict.fromkeys(HASHED_FIELDS, "") | {"seq": 1, "previous": FIRST_HASH}
    >>> [found["seq"] for found in verify_chain([entry | {"hash": entry_hash(entry)}])]
    [1]
    >>> list(verify_chain([entry | {"hash": FIRST_HASH}]))
    Traceback (most recent call last):
    edgemerge.core.errors.RejectedError: the audit log was changed at entry 1: ...
    """
    previous, seq = FIRST_HASH, 0
    missing: dict[str, Any] | None = None
    for entry in entries:
        if seq == 0 and type(entry.get("seq")) is int and entry["seq"] > 1:
            previous, seq = str(entry.get("previous")), entry["seq"] - 1
            missing = checkpoint_detail(seq, previous)
        if entry.get("seq") != seq + 1:
            raise _chain_error(seq + 1, f"the next one is {entry.get('seq')}")
        if entry.get("previous") != previous:
            raise _chain_error(seq + 1, "it does not follow from the one before")
        if entry.get("hash") != entry_hash(entry):
            raise _chain_error(seq + 1, "its hash does not match its fields")
        previous, seq = entry["hash"], entry["seq"]
        if missing is not None and entry.get("action") == CHECKPOINT:
            missing = None if _detail(entry) == missing else missing
        yield entry
    if missing is not None:
        raise _chain_error(missing["through"], "it is missing, and no checkpoint seals it")


def _detail(entry: Mapping[str, Any]) -> Any:
    try:
        return json.loads(str(entry.get("detail")))
    except ValueError:
        return None


def _chain_error(seq: int, why: str) -> RejectedError:
    return RejectedError(
        f"the audit log was changed at entry {seq}: {why}; compare with a copy of the database"
    )
