"""Provenance: by whom a device is told what it knows of others, and whether that still holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import groupby
from typing import NamedTuple

from edgemerge.core.contribution import Key
from edgemerge.server.dashboard.saying import counted
from edgemerge.server.reports.report_forms import MergeAsked, OriginAsked

NEWEST, OLDER, REVOKED, DROPPED = "newest", "older", "revoked", "dropped"


class Source(NamedTuple):
    """A contribution that a device holds, and what the server has of it now."""

    pattern: str
    incarnation: int
    revision: int
    newest: int | None
    standing: str


class Teller(NamedTuple):
    """A device by which another is told, and what of it; the server may not know it."""

    device: str
    sources: list[Source]
    known: bool


def tellers(
    merge: MergeAsked | None,
    revisions: Mapping[Key, int],
    revoked: Collection[Key],
    devices: Collection[str],
) -> list[Teller]:
    """Group what a merge is made of by devices, in order of their names."""
    origins = sorted(merge.origins if merge else (), key=_key)
    groups = groupby(origins, key=lambda origin: origin.device)
    return [
        Teller(name, [_source(o, revisions, revoked) for o in some], name in devices)
        for name, some in groups
    ]


def standing_words(told: Iterable[Teller]) -> str:
    """Say what has changed since a merge, in a few words."""
    found = Counter(source.standing for teller in told for source in teller.sources)
    older, taken = found[OLDER], found[REVOKED] + found[DROPPED]
    words = [f"the server has newer revisions of {counted(older, 'contribution')}"] * bool(older)
    if taken:
        verb = "was" if taken == 1 else "were"
        words.append(f"{counted(taken, 'contribution')} {verb} revoked or dropped since")
    return "; ".join(words) or "all are the newest that the server has"


def _key(origin: OriginAsked) -> Key:
    return origin.device, origin.incarnation, origin.pattern


def _source(origin: OriginAsked, revisions: Mapping[Key, int], revoked: Collection[Key]) -> Source:
    key = _key(origin)
    newest = revisions.get(key)
    if newest is None:
        standing = DROPPED
    elif key in revoked:
        standing = REVOKED
    else:
        standing = OLDER if newest > origin.revision else NEWEST
    return Source(origin.pattern, origin.incarnation, origin.revision, newest, standing)
