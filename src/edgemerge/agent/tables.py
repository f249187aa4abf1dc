"""Turns tables of a configuration file into dataclasses, refusing what does not fit."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import Field, field, fields
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from edgemerge.core.errors import SettingError

T = TypeVar("T")

WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
    tuple: "a list",
}


class Text(str):
    """A value from the environment or the command line, where all is text."""

    __slots__ = ()


class Place(NamedTuple):
    """Where a table was found: the file, and the table's name in it ("" for the top)."""

    file: Path
    table: str = ""

    def key(self, name: str) -> str:
        """Name one key of the table, as `--set` does."""
        return f"{self.table}.{name}" if self.table else name

    def said(self, value: object) -> str:
        """Say who set a value: this file, or what goes over it."""
        return "the environment or a flag" if isinstance(value, Text) else str(self.file)


def setting(default: Any, words: str, ok: Callable[[Any], bool]) -> Any:
    """Declare a field with what it may be, in words and as a test; None is always left alone."""
    return field(default=default, metadata={"words": words, "ok": ok})


def positive(default: Any) -> Any:
    """Declare a number that must be above 0."""
    return setting(default, "above 0", lambda value: value > 0)


def not_negative(default: Any) -> Any:
    """Declare a number that must be 0 or more."""
    return setting(default, "0 or more", lambda value: value >= 0)


def fill(kind: type[T], table: object, place: Place) -> T:
    """Make the dataclass from a table; what is missing has its default."""
    if not isinstance(table, Mapping):
        raise SettingError(
            f"found {place.table} = {table!r} in {place.file}, expected a table: "
            f"write [{place.table}] on a line of its own, and its keys below"
        )
    hints = get_type_hints(kind)
    known: dict[str, Field[Any]] = {each.name: each for each in fields(kind)}  # type: ignore[arg-type] # a dataclass
    values = {}
    for name, value in table.items():
        if name not in known:
            raise unknown(place.key(name), [place.key(each) for each in known], place.said(value))
        values[name] = _fitting(value, hints[name], known[name], place)
    return kind(**values)


def unknown(name: str, known: list[str], where: str) -> SettingError:
    """Give the error for a name that means nothing here, with the nearest one that does."""
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    advice = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
    return SettingError(f"found {name} in {where}, which means nothing: {advice}")


def _fitting(value: Any, hint: Any, declared: Field[Any], place: Place) -> Any:
    """Give the value as the type that the field has, within the range that it has."""
    found_it = f"found {place.key(declared.name)} = {value!r} in {place.said(value)}"
    for arm in arms(hint):
        with suppress(TypeError, ValueError):
            found = _as(arm, value, place.file.parent)
            break
    else:
        raise SettingError(f"{found_it}, expected {_words(hint)}")
    ok = declared.metadata.get("ok")
    if ok is not None and not ok(found):
        raise SettingError(f"{found_it}, expected {declared.metadata['words']}")
    return found


def arms(hint: Any) -> list[Any]:
    """Give the types of a union, without None; a single type is a union of one."""
    found = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return [arm for arm in found if arm is not NoneType]


def _as(kind: Any, value: Any, folder: Path) -> Any:
    """Give the value as that type, or raise TypeError or ValueError."""
    if get_origin(kind) is tuple:
        return tuple(_as_any(arms(get_args(kind)[0]), each, folder) for each in _items(value))
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise ValueError
        return str(value)
    if isinstance(value, Text) and kind not in (str, Path):
        value = tomllib.loads(f"x = {value}")["x"]
    return _plain(kind, value, folder)


def _as_any(kinds: list[Any], value: Any, folder: Path) -> Any:
    for kind in kinds:
        with suppress(TypeError, ValueError):
            return _as(kind, value, folder)
    raise TypeError


def _items(value: Any) -> list[Any]:
    """Give the items of a list; as text it is written like in TOML, or with commas between."""
    if isinstance(value, Text):
        if value.startswith("["):
            value = tomllib.loads(f"x = {value}")["x"]
        else:
            value = [Text(each.strip()) for each in value.split(",") if each.strip()]
    if not isinstance(value, list | tuple):
        raise TypeError
    return list(value)


def _plain(kind: Any, value: Any, folder: Path) -> Any:
    if kind is Path and isinstance(value, str) and value:
        return Path("-") if value == "-" else folder / Path(value).expanduser()
    if kind is float and type(value) in (int, float) and isfinite(value):
        return float(value)
    if kind is str and isinstance(value, str):
        return str(value)
    if kind in (bool, int) and type(value) is kind:
        return value
    raise TypeError


def _words(hint: Any) -> str:
    """Say in words what a type takes."""
    found = []
    for arm in arms(hint):
        if get_origin(arm) is Literal:
            found += [f'"{each}"' for each in get_args(arm)]
        elif get_origin(arm) is tuple:
            found.append(f"a list, each {_words(get_args(arm)[0])}")
        else:
            found.append(WORDS[arm])
    return " or ".join(found)
