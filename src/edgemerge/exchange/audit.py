"""The hash chain of the audit log, which the server writes and its operator verifies."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any

from edgemerge.core.errors import RejectedError

FIRST_HASH = "0" * 64  # `previous` of the first entry
HASHED_FIELDS = ("seq", "at", "actor", "action", "fleet", "subject", "detail")


def entry_hash(entry: Mapping[str, Any]) -> str:
    """Return the hash that an entry must have."""
    fields = {name: entry.get(name) for name in HASHED_FIELDS}
    text = json.dumps(fields, separators=(",", ":"), sort_keys=True)
    return sha256((str(entry.get("previous")) + text).encode()).hexdigest()


def verify_chain(entries: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield entries, starting with the first of the log; raise where the chain is broken.

    >>> entry = dict.fromkeys(HASHED_FIELDS, "") | {"seq": 1, "previous": FIRST_HASH}
    >>> [found["seq"] for found in verify_chain([entry | {"hash": entry_hash(entry)}])]
    [1]
    >>> list(verify_chain([entry | {"hash": FIRST_HASH}]))
    Traceback (most recent call last):
    edgemerge.core.errors.RejectedError: the audit log was changed at entry 1: ...
    """
    previous, seq = FIRST_HASH, 0
    for entry in entries:
        if entry.get("seq") != seq + 1:
            raise _chain_error(seq + 1, f"the next one is {entry.get('seq')}")
        if entry.get("previous") != previous:
            raise _chain_error(seq + 1, "it does not follow from the one before")
        if entry.get("hash") != entry_hash(entry):
            raise _chain_error(seq + 1, "its hash does not match its fields")
        previous, seq = entry["hash"], entry["seq"]
        yield entry


def _chain_error(seq: int, why: str) -> RejectedError:
    return RejectedError(
        f"the audit log was changed at entry {seq}: {why}; compare with a copy of the database"
    )
