"""The paper's three data sets: finding, verifying, fetching and reading them.

`load("har", None)` returns a Dataset, `status` lists what is there, `fetch` downloads what may be
downloaded, `terms` returns the terms of use. What needs numpy or the network is imported when used.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from edgemerge.paper.data.catalog import (
    NAMES,
    DamagedDataError,
    DataError,
    FetchError,
    IncompleteDataError,
    MissingDataError,
    check_name,
    folder_of,
    terms,
)

if TYPE_CHECKING:
    from edgemerge.paper.data.download import DatasetStatus, Progress
    from edgemerge.paper.dataset import Dataset

__all__ = [
    "NAMES",
    "DamagedDataError",
    "DataError",
    "FetchError",
    "IncompleteDataError",
    "MissingDataError",
    "fetch",
    "folder_of",
    "load",
    "status",
    "terms",
]


def load(name: str, folder: Path | None, *, partial: bool = False) -> Dataset:
    """Read a data set from the folder, else from where `folder_of` looks; verified before use.

    With `partial`, driving uses the trips that are there; the other data sets must be complete.
    """
    check_name(name)
    home = import_module(f"{__name__}.{name}")
    find = home.find_some if partial and name == "driving" else home.find
    data: Dataset = home.read_all(find(folder_of(folder)))
    return data


def fetch(name: str, folder: Path | None, *, progress: Progress | None = None) -> list[Path]:
    """Download a data set into the folder, unless it is there; return the paths of its files.

    `progress` is called with the file's name, the bytes so far, and the bytes in all or None.
    Driving is not downloaded: its makers want to be asked, and the error says where.
    """
    download = import_module(f"{__name__}.download")
    options = {} if progress is None else {"progress": progress}
    paths: list[Path] = download.fetch(name, folder_of(folder), **options)
    return paths


def status(folder: Path | None) -> list[DatasetStatus]:
    """Check every data set; nothing is raised, errors are texts in `advice`."""
    rows: list[DatasetStatus] = import_module(f"{__name__}.download").status(folder_of(folder))
    return rows
