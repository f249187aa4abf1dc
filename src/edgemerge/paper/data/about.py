"""What a user should know of each data set: its terms, and how to get it."""

from __future__ import annotations

from pathlib import Path

from edgemerge.paper.data.errors import MissingDataError

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


def must_be_known(name: str) -> None:
    """Refuse a data set that the paper does not use.

    >>> must_be_known("iris")
    Traceback (most recent call last):
    edgemerge.paper.data.errors.MissingDataError: found the name iris, expected one of har, ...
    """
    if name not in NAMES:
        raise MissingDataError(f"found the name {name}, expected one of {', '.join(NAMES)}")


def terms(name: str) -> str:
    """Say in a sentence what the makers of a data set allow and ask for.

    >>> terms("mnist")[:41]
    'MNIST, of LeCun, Cortes and Burges: Creat'
    """
    must_be_known(name)
    return _TERMS[name]


def advice(name: str, folder: Path) -> str:
    """Say how to get a data set that is not in the folder."""
    if name == "driving":
        return (
            f"its licence asks every user to get it from the makers: {UAH_PAGE}; put "
            f"UAH-DRIVESET-v1.zip, or the folder UAH-DRIVESET-v1 that is in it, into {folder}"
        )
    if any((folder / name).glob("*.part")):
        return f"a half is there: `edgemerge paper data --fetch {name}` goes on where it stopped"
    return f"{again(name)}, or set EDGEMERGE_DATA to where it is"


def again(name: str) -> str:
    """Say how to fetch a data set."""
    if name == "driving":
        return f"unpack the makers' archive again, or get it again from {UAH_PAGE}"
    return f"run `edgemerge paper data --fetch {name}`"


def missing(name: str, folder: Path) -> MissingDataError:
    """Make the error that a data set is not in the folder."""
    there = "" if folder.is_dir() else ", which does not exist"
    return MissingDataError(
        f"{name} was not found in {folder}{there}", advice(name, folder), folder
    )
