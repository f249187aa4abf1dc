"""MNIST: 70 000 handwritten digits of 28 × 28 pixels, as the four idx files, packed or not.

An idx file is a magic number, the sizes, then one byte for each entry.
"""

from __future__ import annotations

import gzip
import zlib
from io import BytesIO
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgemerge.paper.data.catalog import (
    DamagedDataError,
    IncompleteDataError,
    fetch_advice,
    missing_error,
)
from edgemerge.paper.data.verified_files import (
    Manifest,
    RemoteFile,
    VerifiedFiles,
    read_limited,
    sha256_digests,
    verify_digest,
)
from edgemerge.paper.dataset import Dataset, Ints

UINT8_CODE = 8  # the format's code for entries of one byte without sign


def parse_idx(data: bytes, *, n_dims: int, path: Path) -> NDArray[np.uint8]:
    """Read an array of `n_dims` dimensions; anything that is not exactly that is refused.

    >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]), n_dims=1, path=Path("labels"))
    array([7, 9], dtype=uint8)
    """
    magic = bytes([0, 0, UINT8_CODE, n_dims])
    if data[:4] != magic:
        raise _idx_error(path, f"the first bytes {data[:4].hex(' ') or 'missing'}", magic.hex(" "))
    start = 4 + 4 * n_dims
    if len(data) < start:
        raise _idx_error(path, f"{len(data)} bytes", f"a header of {start}")
    sizes = [int.from_bytes(data[at : at + 4], "big") for at in range(4, start, 4)]
    if len(data) != start + prod(sizes):
        shape = " × ".join(map(str, sizes))
        raise _idx_error(path, f"{len(data)} bytes", f"{start + prod(sizes)} for {shape} entries")
    return np.frombuffer(data, np.uint8, offset=start).reshape(sizes)


def _idx_error(path: Path, found: str, expected: str) -> DamagedDataError:
    return DamagedDataError(
        f"{path} is no whole idx file: found {found}, expected {expected}",
        f"delete it and {fetch_advice('mnist')}",
        path,
    )


PATTERNS = tuple("0123456789")
SIDE = 28  # pixels
HALVES = ("train", "t10k")
FILES = tuple(
    f"{half}-{kind}" for half in HALVES for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")
)
PLACES = ("mnist", "", "MNIST/raw", "mnist/MNIST/raw", "mnist/raw")
MAX_FILE_BYTES = 2**26  # bytes of any one file, unpacked; the greatest has two thirds of it
MAX_PACKED_BYTES = 2**24
MANIFEST = Manifest(
    digests=sha256_digests("""
440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609  train-images-idx3-ubyte.gz
3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c  train-labels-idx1-ubyte.gz
8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6  t10k-images-idx3-ubyte.gz
f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6  t10k-labels-idx1-ubyte.gz
ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db  train-images-idx3-ubyte
65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5  train-labels-idx1-ubyte
0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7  t10k-images-idx3-ubyte
ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2  t10k-labels-idx1-ubyte
"""),
    addresses=(  # the makers' own site no longer gives the files
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
)


def find(folder: Path, *, known: Manifest = MANIFEST) -> VerifiedFiles:
    """Return the four verified files, unpacked, from the first place that holds them all."""
    there = {folder / place: _paths(folder / place) for place in PLACES}
    for place, paths in there.items():
        if len(paths) == len(FILES):
            return VerifiedFiles(place, {name: _content(paths[name], known) for name in FILES})
    for place, paths in there.items():
        if paths:
            lost = [name for name in FILES if name not in paths]
            raise IncompleteDataError(
                f"mnist in {place} lacks {', '.join(lost)} (.gz or unpacked)",
                fetch_advice("mnist"),
                folder / "mnist" / f"{lost[0]}.gz",  # where it will be
            )
    raise missing_error("mnist", folder)


def remotes(known: Manifest = MANIFEST) -> tuple[RemoteFile, ...]:
    """Return what to download: the four packed files."""

    def check(path: Path) -> None:
        name = path.name.removesuffix(".part")
        verify_digest(path.read_bytes(), known.digests[name], path=path, part="", name="mnist")

    addresses = [tuple(f"{start}{name}.gz" for start in known.addresses) for name in FILES]
    return tuple(RemoteFile(each, MAX_PACKED_BYTES, check) for each in addresses)


def labels(found: VerifiedFiles) -> Ints:
    """Return each sample's digit."""
    return np.asarray(np.concatenate([_labels(found, half) for half in HALVES]), dtype=np.intp)


def read_all(found: VerifiedFiles) -> Dataset:
    """Return the training digits (origin 0), then the test digits (origin 1), pixels in [0, 1]."""
    halves = [_images(found, half) for half in HALVES]
    origin = np.repeat(np.arange(len(halves)), [len(half) for half in halves])
    X = np.concatenate(halves) / 255.0
    return Dataset("mnist", X, labels(found), PATTERNS, origin.astype(np.intp), 0.0, 1.0)


def _paths(place: Path) -> dict[str, Path]:
    """Return the paths of the files that are there, packed ones before others."""
    either = [(name, place / f"{name}{end}") for end in ("", ".gz") for name in FILES]
    return {name: path for name, path in either if path.is_file()}


def _content(path: Path, known: Manifest) -> bytes:
    """Read a file, verify it, and unpack it if it is packed."""
    data = read_limited(path, most=MAX_FILE_BYTES)
    verify_digest(data, known.digests[path.name], path=path, part="", name="mnist")
    return _unpacked(data, path) if path.suffix == ".gz" else data


def _unpacked(data: bytes, path: Path) -> bytes:
    try:
        with gzip.GzipFile(fileobj=BytesIO(data)) as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DamagedDataError(
            f"{path} is no gzip file ({error})", fetch_advice("mnist"), path
        ) from error
    if len(content) > MAX_FILE_BYTES:
        raise DamagedDataError(
            f"{path} unpacks to more than {MAX_FILE_BYTES} bytes", fetch_advice("mnist"), path
        )
    return content


def _images(found: VerifiedFiles, half: str) -> NDArray[np.uint8]:
    name = f"{half}-images-idx3-ubyte"
    images = parse_idx(found.files[name], n_dims=3, path=found.where / name)
    expected = len(_labels(found, half)), SIDE, SIDE
    if images.shape != expected:
        what = f"{half} images {images.shape}"
        raise found.content_error(what, f"{expected}: one image for each label", "mnist")
    return images.reshape(len(images), SIDE**2)


def _labels(found: VerifiedFiles, half: str) -> NDArray[np.uint8]:
    name = f"{half}-labels-idx1-ubyte"
    digits = parse_idx(found.files[name], n_dims=1, path=found.where / name)
    if (digits >= len(PATTERNS)).any():
        raise found.content_error(f"the label {digits.max()}", "0 to 9", "mnist")
    return digits
