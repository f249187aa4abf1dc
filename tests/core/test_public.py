"""Public names: all there, typed, with an example, and every parameter documented."""

import inspect
import re
from typing import Any

import pytest

import edgemerge
from edgemerge import Detector, FormatError, Projection, Stats, decode, encode, load, save
from edgemerge.core import errors

SHARED = Projection(n_inputs=2, n_hidden=3)
ERRORS = [
    name
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, Exception | Warning) and kind.__name__ == name
]
OWN = ["Projection", "Stats", "decode", "elm", "encode", "explained_by", "group", "load", "save"]


def undocumented(thing: Any) -> list[str]:
    """List the parameters of a function, or of a class's constructor, that `Args:` leaves out."""
    text = "\n".join(filter(None, (thing.__doc__, getattr(thing.__init__, "__doc__", ""))))
    _, _, args = text.partition("Args:")
    names = set(re.findall(r"^\s+\*{0,2}(\w+)(?: \([^)]*\))?:", args, re.MULTILINE))
    return [name for name in inspect.signature(thing).parameters if name not in names]


def test_undocumented_parameters_are_found():
    def documented(x: int, *, y_s: float = 0.0, **more: int) -> None:
        """Do it.

        Args:
            x: How often.
            y_s (float): How long to wait, in seconds.
            **more: Anything else.
        """

    def half(x: int, y: int) -> None:
        """Do it `y` times.

        Args:
            x: How often.
        """

    assert undocumented(documented) == []
    assert undocumented(half) == ["y"]


@pytest.mark.parametrize("name", OWN)
def test_every_parameter_of_a_public_name_is_documented(name):
    missing = undocumented(getattr(edgemerge, name))
    assert not missing, f"edgemerge.{name} does not say what {missing} mean: add them to `Args:`"


@pytest.mark.parametrize("name", OWN)
def test_every_public_name_has_an_example(name):
    assert ">>> " in getattr(edgemerge, name).__doc__


def test_every_error_is_public():
    assert set(ERRORS) <= set(edgemerge.__all__)


def test_all_names_are_there_and_about_forty():
    assert all(hasattr(edgemerge, name) for name in edgemerge.__all__)
    assert 35 <= len(edgemerge.__all__) <= 45
    assert sorted(edgemerge.__all__) == sorted(edgemerge._MODULES)


def test_another_kind_than_was_asked_for_is_refused(tmp_path):
    save(SHARED, tmp_path / "shared")
    assert load(tmp_path / "shared", Projection) == decode(encode(SHARED), Projection) == SHARED
    with pytest.raises(FormatError, match=r"shared: found a Projection, expected a Detector"):
        load(tmp_path / "shared", Detector)
    with pytest.raises(FormatError, match="found a Projection, expected a Stats"):
        decode(encode(SHARED), Stats)
