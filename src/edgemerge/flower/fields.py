"""Fields of a message as a plain dict, with checked access; needs no Flower."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgemerge.core.errors import FormatError

Fields = dict[str, Any]

FORMAT = 1
CONTRIBUTE, ADOPT = "contribute", "adopt"  # what a node is asked to do
MERGED = "told"  # the field with what the others have seen; the name is part of format 1


def with_format(**values: Any) -> Fields:
    """Return the fields of a message, with the number of their format."""
    return {"format": FORMAT, **values}


def check_format(fields: Mapping[str, Any]) -> None:
    """Raise FormatError for fields of another program or version."""
    if fields.get("format") != FORMAT:
        raise FormatError(
            f"found format {fields.get('format')!r:.40}, expected {FORMAT}: "
            "run the same version of edgemerge.flower on every node"
        )


def text_field(fields: Mapping[str, Any], name: str) -> str:
    """Return a text field; "" if it is missing."""
    return str(_typed_field(fields, name, str, ""))


def int_field(fields: Mapping[str, Any], name: str) -> int:
    """Return a field with a whole number of 0 or more; 0 if it is missing."""
    value = _typed_field(fields, name, int, 0)
    if not 0 <= value < 2**63:
        raise FormatError(f"found {name} {value}, expected 0 to 2⁶³ − 1")
    return int(value)


def bytes_field(fields: Mapping[str, Any], name: str) -> bytes:
    """Return a field of bytes; empty if it is missing."""
    return bytes(_typed_field(fields, name, bytes, b""))


def bytes_list_field(fields: Mapping[str, Any], name: str) -> list[bytes]:
    """Return a field with a list of bytes; empty if it is missing."""
    value = _typed_field(fields, name, list, [])
    if not all(type(each) is bytes for each in value):
        raise FormatError(f"found a list of other things in {name}, expected one of bytes")
    return list(value)


def _typed_field(fields: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    value = fields.get(name, default)
    if type(value) is not kind:
        found = type(value).__name__
        raise FormatError(f"found {name} of the type {found}, expected {kind.__name__}")
    return value
