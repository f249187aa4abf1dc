"""Public names: all there, typed, with an example, and every parameter documented."""

import inspect
import re
import subprocess
import sys
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

import edgemerge
from edgemerge import Detector, FormatError, Projection, Stats, decode, encode, load, save
from edgemerge.core import errors
from edgemerge.exchange.protocol import Exchange
from tests.cli.calls import SOURCE, clean_environment, started

SHARED = Projection(n_inputs=2, n_hidden=3)
ERRORS = [
    name
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, Exception | Warning) and kind.__name__ == name
]
FUNCTIONS = [name for name in edgemerge.__all__ if inspect.isfunction(getattr(edgemerge, name))]
CLASSES = [name for name in edgemerge.__all__ if name not in {*FUNCTIONS, *ERRORS}]
PROTOCOLS = [name for name in CLASSES if getattr(getattr(edgemerge, name), "_is_protocol", False)]
REMOTE = ["HttpExchange"]  # needs a server: its examples are in the how-tos
METHODS = [
    f"{name}.{method}"
    for name in CLASSES
    for method, found in vars(getattr(edgemerge, name)).items()
    if not method.startswith("_") and callable(getattr(found, "__func__", found))
]


PAGES = Path(edgemerge.__file__).parents[2] / "docs" / "reference"
LISTED = [
    f"{module}:{name}"
    for page in sorted(PAGES.glob("*.md"))
    for module, names in re.findall(
        r"automodule:: (\S+)\n +:members: (.+)", page.read_text(encoding="utf-8")
    )
    for name in names.split(", ")
]


def undocumented(thing: Any) -> list[str]:
    """List the parameters of a function, or of a class's constructor, that `Args:` leaves out.

    The protocol `Exchange` documents `push` and `pull` for every exchange.
    """
    protocol = vars(Exchange).get(thing.__name__) if "Exchange." in thing.__qualname__ else None
    docs = (thing.__doc__, getattr(thing.__init__, "__doc__", ""), getattr(protocol, "__doc__", ""))
    text = "\n".join(filter(None, docs))
    _, _, args = text.partition("Args:")
    names = set(re.findall(r"^\s+\*{0,2}(\w+)(?: \([^)]*\))?:", args, re.MULTILINE))
    return [name for name in inspect.signature(thing).parameters if name not in {"self", *names}]


def untyped(function: Any) -> list[str]:
    """List the parameters of a function, and "return", that have no annotation."""
    expected = [*inspect.signature(function).parameters, "return"]
    return [n for n in expected if n != "self" and n not in inspect.get_annotations(function)]


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


@pytest.mark.parametrize("name", [*sorted({*CLASSES} - {*PROTOCOLS}), *FUNCTIONS, *METHODS])
def test_every_parameter_of_a_public_name_is_documented(name):
    missing = undocumented(attrgetter(name)(edgemerge))
    assert not missing, f"edgemerge.{name} does not say what {missing} mean: add them to `Args:`"


@pytest.mark.slow
@pytest.mark.parametrize("where", LISTED)
def test_every_parameter_on_the_reference_pages_is_documented(where):
    module, _, name = where.partition(":")
    missing = undocumented(getattr(pytest.importorskip(module), name))
    assert not missing, f"{where} does not say what {missing} mean: add them to `Args:`"


@pytest.mark.parametrize("name", [*FUNCTIONS, *METHODS])
def test_every_public_function_is_typed(name):
    missing = untyped(attrgetter(name)(edgemerge))
    assert not missing, f"edgemerge.{name} has no type for {missing}: annotate them"


@pytest.mark.parametrize("name", sorted({*CLASSES, *FUNCTIONS} - {*REMOTE}))
def test_every_public_name_has_an_example(name):
    assert ">>> " in getattr(edgemerge, name).__doc__


def test_every_error_is_public():
    assert set(ERRORS) <= set(edgemerge.__all__)


def test_all_names_are_there():
    assert all(hasattr(edgemerge, name) for name in edgemerge._MODULES)
    assert sorted([*edgemerge.__all__, "MqttExchange"]) == sorted(edgemerge._MODULES)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("from edgemerge import *; print(Detector.__name__)", "Detector"),
        ("import inspect; print('Bank' in dict(inspect.getmembers(edgemerge)))", "True"),
        ("import pydoc; print('class Monitor' in pydoc.plaintext.document(edgemerge))", "True"),
    ],
)
def test_all_names_can_be_imported_and_read_about_without_an_extra(line, found):
    without = "import sys; sys.modules |= dict.fromkeys(('paho', 'cryptography', 'river'))"
    assert started(f"{without}; import edgemerge; {line}").strip() == found


TYPED = {  # a line of a user's program: what a strict type checker says of it
    "reveal_type(learner.score([0.1, 0.2]))": 'note: Revealed type is "float"',
    "reveal_type(learner.score([[0.1, 0.2]]))": 'note: Revealed type is "numpy.ndarray[',
    "reveal_type(decode(b'', Stats))": 'note: Revealed type is "edgemerge.core.stats.Stats"',
    "reveal_type(decode(b''))": 'note: Revealed type is "edgemerge.core.projection.Projection |',
    "reveal_type(load('x', Bank))": 'note: Revealed type is "edgemerge.core.bank.Bank"',
    "reveal_type(load('x'))": 'note: Revealed type is "edgemerge.core.projection.Projection |',
    "from edgemerge import Detektor": 'error: Module "edgemerge" has no attribute "Detektor"',
    "edgemerge.nonsense": 'error: Module has no attribute "nonsense"',
}


@pytest.mark.slow
def test_a_type_checker_knows_every_name_and_refuses_a_misspelled_one(tmp_path):
    before = (
        "import edgemerge",
        "from edgemerge import Bank, Detector, Projection, Stats, decode, load",
        "learner = Detector(Projection(n_inputs=2, n_hidden=3))",
    )
    (tmp_path / "program.py").write_text("\n".join([*before, *TYPED]), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir=.mypy_cache", "program.py"],
        env=clean_environment(MYPYPATH=str(SOURCE)),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    said = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ":" in line)
    for number, (line, expected) in enumerate(TYPED.items(), start=len(before) + 1):
        found = said.get(f"program.py:{number}", "nothing")
        assert found.startswith(expected), f"{line}\n{found}\n{done.stderr}"


def test_another_kind_than_was_asked_for_is_refused(tmp_path):
    save(SHARED, tmp_path / "shared")
    assert load(tmp_path / "shared", Projection) == decode(encode(SHARED), Projection) == SHARED
    with pytest.raises(FormatError, match=r"shared: found a Projection, expected a Detector"):
        load(tmp_path / "shared", Detector)
    with pytest.raises(FormatError, match="found a Projection, expected a Stats"):
        decode(encode(SHARED), Stats)
