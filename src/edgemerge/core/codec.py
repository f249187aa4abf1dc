"""The codec: values as bytes and back; bytes that we would not have written are refused.

>>> shared = Projection(n_inputs=2, n_hidden=3)
>>> note = Contribution("pump-3", Stats.of(shared, [[0.1, 0.2]]), revision=1)
>>> decode(encode(note)) == note
True
"""

from __future__ import annotations

from typing import Any

from edgemerge.core.contribution import Contribution
from edgemerge.core.errors import EdgemergeError, FormatError, SettingError, must_be
from edgemerge.core.packing import Words
from edgemerge.core.parcel import LIMIT, Parcel, seal, unseal
from edgemerge.core.projection import Projection
from edgemerge.core.stats import Stats
from edgemerge.core.told import Told, told_of, told_words

Value = Projection | Stats | Contribution | Told


def encode(value: Value, form: str = "exact") -> bytes:
    """Write a value: "exact", "float32" (half the bytes), or "root16" (a quarter).

    The last two round the sums, so they are for links that cannot carry more. float16 of U itself
    is not offered: it would make U indefinite.
    """
    return seal(to_parcel(value, form))


def decode(data: bytes, *, limit: int = LIMIT, projection: Projection | None = None) -> Any:
    """Read a value; anything but the bytes of `encode` is a FormatError that says what it is.

    With the `projection` at hand, one that is the same is not built again.
    """
    return read(data, limit=limit, projection=projection)[0]


def read(
    data: bytes, *, limit: int = LIMIT, projection: Projection | None = None
) -> tuple[Any, str]:
    """Read a value and the form that it was written in, which `admit` wants to know."""
    must_be(data, bytes, "read the file or message as bytes")
    parcel = unseal(data, limit=limit, projection=projection)
    return from_parcel(parcel), parcel.form


def form_of(data: bytes, *, limit: int = LIMIT, projection: Projection | None = None) -> str:
    """Say in which form a value was written; `admit` wants to know."""
    return unseal(data, limit=limit, projection=projection).form


def to_parcel(value: Value, form: str = "exact") -> Parcel:
    """Say what there is to write about a value."""
    if isinstance(value, Projection):
        return Parcel("projection", value)
    if isinstance(value, Stats):
        return Parcel("stats", value.projection, {}, {"": value}, form)
    if isinstance(value, Contribution):
        words = origin(value)
        return Parcel("contribution", value.stats.projection, words, {"": value.stats}, form)
    if isinstance(value, Told):
        parts = {f"{i}.": part.stats for i, part in enumerate(value.parts)}
        return Parcel("told", value.projection, told_words(value), parts, form)
    raise SettingError(
        f"found {type(value).__name__}, expected Projection, Stats, Contribution or Told "
        "(save() also takes Detector, Bank and Ledger)"
    )


def from_parcel(parcel: Parcel) -> Value:
    """Make the value that a parcel describes."""
    value: Value
    if parcel.kind == "projection" and not parcel.parts:
        value = parcel.projection
    elif parcel.kind == "stats" and list(parcel.parts) == [""]:
        value = parcel.parts[""]
    elif parcel.kind == "contribution" and list(parcel.parts) == [""]:
        value = contribution_of(parcel.words, parcel.parts[""])
    elif parcel.kind == "told" and list(parcel.parts) == [
        f"{i}." for i in range(len(parcel.parts))
    ]:
        value = told_of(parcel.projection, parcel.words, list(parcel.parts.values()))
    else:
        raise FormatError(
            f"found {parcel.kind!r} with {len(parcel.parts)} sums, "
            "expected a projection, stats, a contribution, or what an exchange told"
        )
    again = to_parcel(value, parcel.form)
    if list(again.words.items()) != list(parcel.words.items()) or again.form != parcel.form:
        raise FormatError(f"the words of this {parcel.kind} are not those that edgemerge writes")
    return value


def origin(contribution: Contribution) -> Words:
    """Write down where a contribution comes from."""
    c = contribution
    numbers = {"incarnation": str(c.incarnation), "revision": str(c.revision)}
    return {"device": c.device, "pattern": c.pattern, **numbers}


def contribution_of(words: Words, stats: Stats) -> Contribution:
    """Give sums the origin that was written down."""
    try:
        device, pattern = words["device"], words["pattern"]
        revision, incarnation = int(words["revision"]), int(words["incarnation"])
        found = Contribution(device, stats, revision, pattern, incarnation)
    except KeyError as error:
        raise FormatError(f"the header does not say {error}") from error
    except (EdgemergeError, ValueError) as error:
        raise FormatError(f"the origin is not that of a contribution: {error}") from error
    if origin(found) != words:
        raise FormatError(f"found the origin {words}, expected it as {origin(found)}")
    return found
