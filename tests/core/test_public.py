"""Public names: all there, typed, with an example, and every parameter documented."""

import inspect
import re
import subprocess
import sys
from itertools import takewhile
from operator import attrgetter
from pathlib import Path
from types import FunctionType
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


def listed(page: str) -> list[str]:
    """List the functions and classes, with their modules, that a page of the reference shows."""
    found = []
    for module, text in re.findall(r"automodule:: (\S+)\n((?:(?!.. automodule).*\n)*)", page):
        members = re.match(r" +:members: (.+)", text)
        names = members[1].split(", ") if members else re.findall(r"autoclass:: (\w+)", text)
        found += [f"{module}:{name}" for name in names]
    return found


LISTED = [where for page in sorted(PAGES.glob("*.md")) for where in listed(page.read_text("utf-8"))]
NAMES_DEFAULT = re.compile(r"\b(default|unless|none|otherwise|likewise|ignored)\b", re.IGNORECASE)


def documented(thing: Any) -> dict[str, str]:
    """Return what `Args:` says of each parameter of a function, or of a class's constructor.

    The protocol `Exchange` documents `push` and `pull` for every exchange.
    """
    protocol = vars(Exchange).get(thing.__name__) if "Exchange." in thing.__qualname__ else None
    found: dict[str, str] = {}
    for each in (thing, thing.__init__, protocol):
        text = inspect.cleandoc(getattr(each, "__doc__", None) or "")
        _, _, rest = text.partition("\nArgs:\n")
        args = "\n".join(takewhile(lambda line: line[:1] in ("", " "), rest.splitlines()))
        parts = re.split(r"^ {4}\*{0,2}(\w+)(?: \([^)]*\))?:", args, flags=re.MULTILINE)
        found |= zip(parts[1::2], parts[2::2], strict=True)
    return found


def parameters(thing: Any) -> list[inspect.Parameter]:
    """List the parameters of a function, or of a class's constructor, that a user gives."""
    if getattr(thing, "_is_protocol", False):
        return []
    if isinstance(thing, type) and issubclass(thing, Exception) and "__init__" not in vars(thing):
        return []
    found = inspect.signature(thing).parameters.values()
    return [each for each in found if each.name != "self"]


def undocumented(thing: Any) -> list[str]:
    """List the parameters that `Args:` leaves out, or whose default it does not say."""
    args = documented(thing)
    return [
        each.name
        for each in parameters(thing)
        if each.name not in args
        or (each.default is not each.empty and not NAMES_DEFAULT.search(args[each.name]))
    ]


def with_methods(thing: Any) -> list[Any]:
    """Return a function, or a class with its public methods."""
    found = vars(thing).items() if isinstance(thing, type) else ()
    kinds = (FunctionType, classmethod, staticmethod)
    public = [name for name, each in found if isinstance(each, kinds) and name[0] != "_"]
    return [thing, *(getattr(thing, name) for name in public)]


def untyped(function: Any) -> list[str]:
    """List the parameters of a function, and "return", that have no annotation."""
    expected = [*inspect.signature(function).parameters, "return"]
    return [n for n in expected if n != "self" and n not in inspect.get_annotations(function)]


def test_undocumented_parameters_are_found():
    def whole(x: int, *, y_s: float = 0.0, **more: int) -> None:
        """Do it.

        Args:
            x: How often.

            y_s (float): How long to wait, in seconds. By default not at all,
                so x: no parameter.
            **more: Anything else.
        """

    def half(x: int, y: int, z: int = 3, message: str = "") -> None:
        """Do it `y` times.

        Args:
            x: How often.
            z: How far.

        Raises:
            message: None by default.
            y: Not here.
        """

    assert undocumented(whole) == []
    assert undocumented(half) == ["y", "z", "message"]


@pytest.mark.parametrize("name", [*CLASSES, *ERRORS, *FUNCTIONS, *METHODS])
def test_every_parameter_of_a_public_name_is_documented(name):
    missing = undocumented(attrgetter(name)(edgemerge))
    assert not missing, f"edgemerge.{name} does not say what {missing} mean, or their defaults"


def test_classes_are_found_however_a_page_of_the_reference_lists_them():
    assert {"edgemerge.sklearn:OSELMDetector", "edgemerge.river:PromisedFilter"} < set(LISTED)
    assert {"edgemerge.bulk:part_of", "edgemerge.exchange.mqtt:MqttExchange"} < set(LISTED)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sklearn", "river", "plot", "bulk", "dask"])
def test_a_module_of_the_reference_exports_what_its_page_lists(name):
    module = f"edgemerge.{name}"
    names = {where.partition(":")[2] for where in LISTED if where.startswith(f"{module}:")}
    assert set(pytest.importorskip(module).__all__) == names


@pytest.mark.slow
@pytest.mark.parametrize("where", LISTED)
def test_every_parameter_on_the_reference_pages_is_documented(where):
    module, _, name = where.partition(":")
    things = with_methods(getattr(pytest.importorskip(module), name))
    missing = {thing.__qualname__: undocumented(thing) for thing in things}
    missing = {thing: names for thing, names in missing.items() if names}
    assert not missing, f"{module} does not say what these mean, or their defaults: {missing}"


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
