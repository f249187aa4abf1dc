"""Which columns of a table are the inputs, and in which order."""

from __future__ import annotations

from collections.abc import Sequence

from edgemerge.core.errors import SampleError


def chosen(
    header: Sequence[str], width: int, columns: Sequence[str], expected: Sequence[str]
) -> list[int]:
    """Give the places of `columns`, by name or by number from 1, in a table of `width` columns.

    Without `columns`, those `expected` by name if the header has any of them, else every one. The
    header is empty where columns have no names.
    """
    names = [name.strip() for name in header]
    if not columns and not set(expected) & set(names):
        return list(range(width))
    places = {name: i for i, name in enumerate(names)}
    if columns:
        places = {str(i + 1): i for i in range(width)} | places
    for name in columns or expected:
        if name not in places:
            known = ", ".join(header) or f"1 to {width}"
            raise SampleError(f"found no column {name!r}, expected one of: {known}")
        if names.count(name) > 1:
            raise SampleError(f"found several columns {name!r}, expected one")
    return [places[name] for name in columns or expected]


def is_header(cells: Sequence[str]) -> bool:
    """Say whether a first line holds names: a line without a single number does."""
    return not any(is_number(cell) for cell in cells)


def is_number(cell: str) -> bool:
    """Say whether a cell can be read as a number."""
    try:
        float(cell)
    except ValueError:
        return False
    return True
