"""Human Activity Recognition Using Smartphones: 561 features, six activities, 30 people.

Taken as the compact `har.npz`, as the makers' folder `UCI HAR Dataset`, or as their archive.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from edgemerge.paper.data.catalog import (
    IncompleteDataError,
    fetch_advice,
    missing_error,
)
from edgemerge.paper.data.verified_files import (
    FolderSource,
    Manifest,
    RemoteFile,
    Source,
    VerifiedFiles,
    ZipSource,
    read_limited,
    sha256_digests,
    verify_digest,
)
from edgemerge.paper.dataset import Dataset, Ints

PATTERNS = (
    *("walking", "walking_upstairs", "walking_downstairs"),
    *("sitting", "standing", "laying"),
)
N_INPUTS = 561
COMPACT = "har.npz"
HALVES = ("train", "test")
TEXTS = tuple(f"{half}/{part}_{half}.txt" for half, part in product(HALVES, ("X", "y", "subject")))
MAX_FILE_BYTES = 2**27  # bytes of any one file; the greatest has half of it
ARCHIVES = ("*HAR*.zip", "har.zip", "*[-_]har.zip", "*[Hh]uman*[Aa]ctivity*.zip")
DEPTHS = ("", "*/", "*/*/")
MANIFEST = Manifest(
    digests=sha256_digests("""
968e8228390f97a683d6441fa013b8fdaa87358e678c84b015f908c322d87cc9  har.npz
415b3357e2e2d5e70a45c781947c6bdd80e0410a579d862eedcd6bbce3c694ef  train/y_train.txt
2a94cb53ca46b956c1b2aebd4a09a72badd8a8e9ea9cdfe9f31b3306a08666bb  test/y_test.txt
66e1e2fbe9b396fa5155f531dc3348c803f503be663e2318772d49947db9153a  train/subject_train.txt
63b8c577f4a85431c06bd87f6384608c90a9f72f05c7956dd21255dc63515c07  test/subject_test.txt
""")
    | {
        "train/X_train.txt": "git:b06f3e4c7cddf435f2f2b102b4824f51ee8a6298",
        "test/X_test.txt": "git:f3c01cbd355e0000229bce4e38156ee338fa6b08",
    },
    addresses=(
        "https://archive.ics.uci.edu/static/public/240/"
        "human+activity+recognition+using+smartphones.zip",
        "https://archive.ics.uci.edu/ml/machine-learning-databases/00240/UCI%20HAR%20Dataset.zip",
    ),
)


def find(folder: Path, *, known: Manifest = MANIFEST) -> VerifiedFiles:
    """Return the verified files, in the first of their forms that the folder holds."""
    for path in (folder / "har" / COMPACT, folder / COMPACT):
        if path.is_file():
            data = read_limited(path, most=MAX_FILE_BYTES)
            verify_digest(data, known.digests[COMPACT], path=path, part="", name="har")
            return VerifiedFiles(path, {COMPACT: data})
    for source in _sources(folder):
        return VerifiedFiles(source.where, _texts(source, known.digests))
    raise missing_error("har", folder)


def remotes(known: Manifest = MANIFEST) -> tuple[RemoteFile, ...]:
    """Return what to download: the archive; its content is checked, not the archive itself."""

    def check(path: Path) -> None:
        _texts(_innermost(path), known.digests)

    return (RemoteFile(known.addresses, MAX_FILE_BYTES, check),)


def labels(found: VerifiedFiles) -> Ints:
    """Return the index in PATTERNS of each sample's activity."""
    y = _both(found, "y").astype(np.intp) - 1
    if not np.isin(y, np.arange(len(PATTERNS))).all():
        raise found.content_error(f"activities {np.unique(y + 1)}", "1 to 6", "har")
    return np.asarray(y)


def read_all(found: VerifiedFiles) -> Dataset:
    """Return the published training rows, then the test rows; the origin is the person."""
    X, y = _both(found, "X").astype(np.float64), labels(found)
    subject = _both(found, "subject").astype(np.intp)
    if X.shape != (len(y), N_INPUTS) or subject.shape != y.shape:
        shapes = f"X {X.shape}, y {y.shape}, subject {subject.shape}"
        raise found.content_error(shapes, f"(k, {N_INPUTS}), (k,) and (k,)", "har")
    if not (np.abs(X) <= 1.0).all():
        raise found.content_error("features that are not in [-1, 1]", "none", "har")
    return Dataset("har", X, y, PATTERNS, subject, -1.0, 1.0)


def _sources(folder: Path) -> Iterator[Source]:
    for depth, text in product(DEPTHS, TEXTS):
        for path in sorted(folder.glob(depth + text)):
            yield FolderSource(path.parent.parent)
    for depth, archive in product(DEPTHS, ARCHIVES):
        for path in sorted(folder.glob(depth + archive)):
            if _text_names(source := _innermost(path)):
                yield source


def _innermost(path: Path) -> ZipSource:
    """Open an archive, or the one archive inside it: UCI wraps the makers' in another."""
    outer = ZipSource(path)
    inner = [name for name in outer.names() if name.endswith(".zip")]
    if _text_names(outer) or len(inner) != 1:
        return outer
    return ZipSource(path, outer.read(inner[0], most=MAX_FILE_BYTES))


def _text_names(source: Source) -> dict[str, str]:
    """Return the name in a source of each of the six files, with the shortest path."""
    names = sorted(source.names(), key=len, reverse=True)
    return {text: name for text in TEXTS for name in names if f"/{name}".endswith(f"/{text}")}


def _texts(source: Source, digests: Mapping[str, str]) -> dict[str, bytes]:
    names = _text_names(source)
    if lost := [text for text in TEXTS if text not in names]:
        raise IncompleteDataError(
            f"har in {source.where} lacks {', '.join(lost)}",
            f"unpack the makers' archive again, or delete it and {fetch_advice('har')}",
            source.where,
        )
    texts = {text: source.read(names[text], most=MAX_FILE_BYTES) for text in TEXTS}
    for text, data in texts.items():
        verify_digest(data, digests[text], path=source.where, part=text, name="har")
    return texts


def _both(found: VerifiedFiles, part: str) -> Any:
    """Read one part of both halves, and concatenate them."""
    try:
        return np.concatenate([_half(found, part, half) for half in HALVES])
    except (ValueError, KeyError) as error:
        raise found.content_error(str(error), f"numbers in the {part} files", "har") from error


def _half(found: VerifiedFiles, part: str, half: str) -> Any:
    if COMPACT in found.files:
        with np.load(BytesIO(found.files[COMPACT]), allow_pickle=False) as arrays:
            return arrays[f"{part}_{half}"]
    text = BytesIO(found.files[f"{half}/{part}_{half}.txt"])
    return np.loadtxt(text, ndmin=2 if part == "X" else 1)
