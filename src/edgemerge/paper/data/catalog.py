"""The data sets by name: terms, where to look for them, how to get them, and their errors."""

from __future__ import annotations

import os
from pathlib import Path

from edgemerge import EdgemergeError


class DataError(EdgemergeError):
    """The root of all errors about data sets: what was found and expected, then what to do."""

    def __init__(self, fault: str, remedy: str = "", path: Path | None = None) -> None:
        """Keep the fault, and the file or folder it is about; the message is both in one line."""
        super().__init__(f"{fault}: {remedy}" if remedy else fault)
        self.fault, self.path = fault, path


class MissingDataError(DataError, FileNotFoundError):
    """A data set that is not in the folder; the message says how to get it."""


class IncompleteDataError(MissingDataError):
    """A data set of which a part is not in the folder; the message says which."""


class DamagedDataError(DataError, ValueError):
    """A file that is not what its makers published, or cannot be read as it should."""


class FetchError(DataError, ConnectionError):
    """A data set that could not be downloaded; the next try resumes."""


ENV_VARIABLE = "EDGEMERGE_DATA"
DEFAULT_FOLDER = "edgemerge-data"  # below the user's cache folder


def folder_of(option: Path | None) -> Path:
    """Return the folder of the data sets: the option, else EDGEMERGE_DATA, else one in the cache.

    >>> folder_of(Path("here")).name
    'here'
    """
    if option is not None:
        return option.expanduser()
    if named := os.environ.get(ENV_VARIABLE):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / DEFAULT_FOLDER


NAMES = ("har", "mnist", "driving")
UAH_PAGE = "http://www.robesafe.uah.es/personal/eduardo.romera/uah-driveset/"
_TERMS = {
    "har": (
        "Human Activity Recognition Using Smartphones (UCI 240): its README forbids commercial "
        "use and asks publications to cite Anguita et al., IWAAL 2012."
    ),
    "mnist": (
        "MNIST, of LeCun, Cortes and Burges: Creative Commons Attribution-ShareAlike 3.0, as "
        "the documentation of Keras states; the files themselves carry no licence."
    ),
    "driving": (
        "UAH-DriveSet, of Romera, Bergasa and Arroyo: non-commercial use only, may not be "
        "passed on, changed or not; work with it must cite their ITSC 2016 paper."
    ),
}


def check_name(name: str) -> None:
    """Refuse a data set that the paper does not use.

    >>> check_name("iris")
    Traceback (most recent call last):
    edgemerge.paper.data.catalog.MissingDataError: found the name iris, expected one of har, ...
    """
    if name not in NAMES:
        raise MissingDataError(f"found the name {name}, expected one of {', '.join(NAMES)}")


def terms(name: str) -> str:
    """Return the terms of use of a data set, in a sentence.

    >>> terms("mnist")[:41]
    'MNIST, of LeCun, Cortes and Burges: Creat'
    """
    check_name(name)
    return _TERMS[name]


def missing_advice(name: str, folder: Path) -> str:
    """Return advice on how to get a data set that is not in the folder."""
    if name == "driving":
        return (
            f"its licence asks every user to get it from the makers: {UAH_PAGE}; put "
            f"UAH-DRIVESET-v1.zip, or the folder UAH-DRIVESET-v1 that is in it, into {folder}"
        )
    if any((folder / name).glob("*.part")):
        return f"a half is there: `edgemerge paper data --fetch {name}` goes on where it stopped"
    return f"{fetch_advice(name)}, or set EDGEMERGE_DATA to where it is"


def fetch_advice(name: str) -> str:
    """Return advice on how to download a data set."""
    if name == "driving":
        return f"unpack the makers' archive again, or get it again from {UAH_PAGE}"
    return f"run `edgemerge paper data --fetch {name}`"


def missing_error(name: str, folder: Path) -> MissingDataError:
    """Return the error that a data set is not in the folder."""
    there = "" if folder.is_dir() else ", which does not exist"
    return MissingDataError(
        f"{name} was not found in {folder}{there}", missing_advice(name, folder), folder
    )
