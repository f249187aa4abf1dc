"""Files of the dashboard that are the same for everybody: styles, scripts, pictures.

All are read once. An address carries a digest of their content, so that browsers may keep them.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from fastapi import APIRouter, Response

from edgemerge.core.errors import UnknownError

STATIC = "/ui/static"
FOLDER = Path(__file__).parent / "static"
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
OTHER = "text/plain; charset=utf-8"
FOR_EVER = "public, max-age=31536000, immutable"

router = APIRouter(include_in_schema=False)


class Files(NamedTuple):
    """The content of every file, and a digest of all of them."""

    version: str
    content: dict[str, bytes]


@cache
def files() -> Files:
    """Read the files of the package."""
    paths = sorted(path for path in FOLDER.rglob("*") if path.is_file())
    content = {path.relative_to(FOLDER).as_posix(): path.read_bytes() for path in paths}
    marks = ((name.encode(), sha256(data).digest()) for name, data in content.items())
    return Files(sha256(repr(list(marks)).encode()).hexdigest()[:16], content)


def static(name: str) -> str:
    """Give the address of a file, which must be there."""
    if name not in files().content:
        raise UnknownError(f"no file {name} in {FOLDER.name}")
    return f"{STATIC}/{files().version}/{name}"


@router.api_route(STATIC + "/{version}/{name:path}", methods=["GET", "HEAD"])
async def get_file(version: str, name: str) -> Response:
    """Give a file; one that is asked for under an older digest is not to be kept."""
    found = files().content.get(name)
    if found is None:
        raise UnknownError("there is no such file: load the page again")
    kept = FOR_EVER if version == files().version else "no-cache"
    kind = TYPES.get(Path(name).suffix, OTHER)
    return Response(found, headers={"Content-Type": kind, "Cache-Control": kept})
