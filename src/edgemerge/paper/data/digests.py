"""Fingerprints of files, by which a file is known to be what its makers published.

A fingerprint is written as its kind, a colon and hexadecimal digits. The kind `git` is the name
that git gives to a file's content: for some files no other was published.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from edgemerge.paper.data.about import again
from edgemerge.paper.data.errors import DamagedDataError

SHOWN = 12  # digits are enough to tell two fingerprints apart


def digest(data: bytes, kind: str) -> str:
    """Give the fingerprint of some bytes.

    >>> digest(b"", "sha256")[:19]
    'sha256:e3b0c44298fc'
    >>> digest(b"", "git")
    'git:e69de29bb2d1d6434b8b29ae775ad8c2e48c5391'
    """
    if kind == "git":
        header = f"blob {len(data)}\0".encode()
        return f"git:{hashlib.sha1(header + data, usedforsecurity=False).hexdigest()}"
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def must_match(data: bytes, expected: str, *, path: Path, part: str, name: str) -> None:
    """Refuse bytes with another fingerprint; `part` is the name inside an archive, or empty."""
    kind = expected.partition(":")[0]
    found = digest(data, kind)
    if found == expected:
        return
    width = len(kind) + 1 + SHOWN
    what = f"{part} in {path}" if part else f"{path}"
    raise DamagedDataError(
        f"{what} is damaged or not the published file: found {len(data)} bytes with "
        f"{found[:width]}…, expected {expected[:width]}…",
        f"delete {path} and {again(name)}",
        path,
    )
