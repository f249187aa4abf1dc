"""What can be wrong with a data set: it is not there, not all there, damaged, or out of reach."""

from __future__ import annotations

from pathlib import Path

from edgemerge import EdgemergeError


class DataError(EdgemergeError):
    """The root of all errors about data sets: what was found and expected, then what to do."""

    def __init__(self, fault: str, remedy: str = "", path: Path | None = None) -> None:
        """Make one line of both; remember the fault, and the file or folder it is about."""
        super().__init__(f"{fault}: {remedy}" if remedy else fault)
        self.fault, self.path = fault, path


class MissingDataError(DataError, FileNotFoundError):
    """A data set that is not in the folder; the message says how to get it."""


class IncompleteDataError(MissingDataError):
    """A data set of which a part is not in the folder; the message says which."""


class DamagedDataError(DataError, ValueError):
    """A file that is not what its makers published, or cannot be read as it should."""


class FetchError(DataError, ConnectionError):
    """A data set that could not be fetched; what came so far is kept and gone on with."""
