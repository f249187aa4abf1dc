"""Where data sets are looked for, what is said of them, and that saying it costs little."""

import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

from edgemerge import EdgemergeError
from edgemerge.paper.data import (
    NAMES,
    DamagedDataError,
    FetchError,
    IncompleteDataError,
    MissingDataError,
    fetch,
    folder_of,
    load,
    terms,
)


def test_the_option_goes_before_the_variable_before_the_cache(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    monkeypatch.setenv("EDGEMERGE_DATA", "/named")
    assert folder_of(Path("/option")) == Path("/option")
    assert folder_of(None) == Path("/named")
    monkeypatch.setenv("EDGEMERGE_DATA", "")
    assert folder_of(None) == Path("/cache/edgemerge-data")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert folder_of(None) == Path.home() / ".cache" / "edgemerge-data"


def test_a_tilde_means_home(monkeypatch):
    monkeypatch.setenv("EDGEMERGE_DATA", "~/data")
    assert folder_of(None) == folder_of(Path("~/data")) == Path.home() / "data"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("har", "forbids commercial use.*cite"),
        ("mnist", "ShareAlike 3.0"),
        ("driving", "non-commercial.*not be passed on"),
    ],
)
def test_the_terms_say_what_the_makers_ask(name, words):
    assert re.search(words, terms(name))


@pytest.mark.parametrize("ask", [terms, lambda n: load(n, Path()), lambda n: fetch(n, Path())])
def test_an_unknown_name_is_answered_with_the_known_ones(ask):
    with pytest.raises(MissingDataError, match="found the name iris, expected one of har, mnist"):
        ask("iris")


@pytest.mark.parametrize(
    "kind", [MissingDataError, IncompleteDataError, DamagedDataError, FetchError]
)
def test_errors_pass_from_one_process_to_another(kind):
    error = kind("found this", "do that", Path("here"))
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 our own bytes
    assert isinstance(again, (EdgemergeError, OSError))
    assert (str(again), again.fault, again.path) == (
        "found this: do that",
        "found this",
        Path("here"),
    )


def test_importing_brings_neither_numpy_nor_the_network():
    code = "import sys, edgemerge.paper.data as d; d.terms('har'); print(*sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "edgemerge.paper.data" in told.stdout.split()
    assert not {"numpy", "urllib.request", "zipfile"} & set(told.stdout.split())


def test_there_are_three():
    assert NAMES == ("har", "mnist", "driving")
