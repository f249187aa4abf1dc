"""The audit log as a chain: every entry is sealed by a hash that covers the one before it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any

from edgemerge.core.errors import RejectedError

START = "0" * 64
SEALED = ("seq", "at", "actor", "action", "fleet", "subject", "detail")


def seal(entry: Mapping[str, Any]) -> str:
    """Give the hash that an entry must have."""
    told = {word: entry.get(word) for word in SEALED}
    text = json.dumps(told, separators=(",", ":"), sort_keys=True)
    return sha256((str(entry.get("previous")) + text).encode()).hexdigest()


def verified(entries: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Pass on entries from the first one on; stop with an error where the chain does not hold.

    >>> entry = dict.fromkeys(SEALED, "") | {"seq": 1, "previous": START}
    >>> [found["seq"] for found in verified([entry | {"hash": seal(entry)}])]
    [1]
    >>> list(verified([entry | {"hash": START}]))
    Traceback (most recent call last):
    edgemerge.core.errors.RejectedError: the audit log was changed at entry 1: ...
    """
    previous, seq = START, 0
    for entry in entries:
        if entry.get("seq") != seq + 1:
            raise _changed(seq + 1, f"the next one is {entry.get('seq')}")
        if entry.get("previous") != previous:
            raise _changed(seq + 1, "it does not follow from the one before")
        if entry.get("hash") != seal(entry):
            raise _changed(seq + 1, "its hash is not that of its words")
        previous, seq = entry["hash"], entry["seq"]
        yield entry


def _changed(seq: int, why: str) -> RejectedError:
    return RejectedError(
        f"the audit log was changed at entry {seq}: {why}; compare with a copy of the database"
    )
