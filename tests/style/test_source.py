"""Rules about the source text that no linter knows: names, labels, what core may call."""

import ast
import re
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PURE = [ROOT / "src" / "edgemerge" / part for part in ("core", "wire")]
VAGUE = {"utils", "util", "helpers", "helper", "common", "misc"}
IMPURE = {
    *("asyncio", "builtins", "datetime", "io", "logging", "multiprocessing", "os", "pathlib"),
    *("pickle", "random", "secrets", "shutil", "socket", "subprocess", "sys", "tempfile"),
    *("threading", "time"),
}
IMPURE_CALLS = {"open", "print", "input", "__import__"}


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def impurities(tree: ast.AST) -> set[str]:
    """What the code imports or calls that reaches files, network, clock, environment or chance."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] in IMPURE}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found |= {node.module} if node.module.split(".")[0] in IMPURE else set()
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found |= {node.func.id} & IMPURE_CALLS
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in {"np.random", "numpy.random"}:
            found.add("numpy.random")
    return found


def labels(text: str) -> set[str]:
    return set(re.findall(r"\bM[1-9]\d?\b", text))


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", [p for part in PURE for p in sorted(part.rglob("*.py"))], ids=named
)
def test_core_and_wire_do_not_touch_the_world(path):
    found = impurities(ast.parse(path.read_text(encoding="utf-8")))
    assert not found, f"{named(path)} uses {sorted(found)}: let it arrive as an argument"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import os.path", {"os.path"}),
        ("from time import time", {"time"}),
        ("from .random import draw", set()),
        ("open('a')", {"open"}),
        ("np.random.default_rng()", {"numpy.random"}),
        ("import numpy as np\nnp.sum([1])", set()),
    ],
)
def test_impure_code_is_recognised(code, expected):
    assert impurities(ast.parse(code)) == expected


def test_no_file_has_a_vague_name():
    assert not [named(path) for path in (ROOT / "src").rglob("*") if path.stem in VAGUE]


def test_every_equation_stands_in_the_code_and_on_the_page():
    in_code = set().union(*(labels(path.read_text(encoding="utf-8")) for path in SOURCES))
    on_page = labels((ROOT / "docs" / "maths.md").read_text(encoding="utf-8"))
    assert not in_code - on_page, f"in src but not in docs/maths.md: {sorted(in_code - on_page)}"
    assert not on_page - in_code, f"in docs/maths.md but not in src: {sorted(on_page - in_code)}"


def test_names_in_the_table_of_equations_exist():
    page = (ROOT / "docs" / "maths.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if re.match(r"\| M\d", line)]
    assert len(rows) == len(labels(page))
    for row in rows:
        for part in row.rstrip("| ").rpartition(" | ")[2].split("; "):
            module, *names = re.findall(r"`([\w.]+)`", part)
            if not module.startswith("edgemerge."):
                for name in names:
                    attrgetter(name)(import_module(f"edgemerge.core.{module}"))
