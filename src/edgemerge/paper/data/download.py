"""One file from one address, into a `.part` beside, going on with what came before."""

from __future__ import annotations

from collections.abc import Callable
from http.client import HTTPResponse
from pathlib import Path
from time import monotonic
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from edgemerge import __version__

Progress = Callable[[str, int, int | None], None]  # file, bytes so far, bytes in all if known
CHUNK = 2**16
NOTHING_LEFT = 416  # "range not satisfiable": the part is as long as the file, or longer


def silent(_name: str, _sofar: int, _whole: int | None) -> None:
    """Show no progress."""


class UselessError(ConnectionError):
    """What came, or is announced, cannot become the file: there is nothing to go on with."""


def bring(
    address: str, part: Path, *, most: int, timeout_s: float, whole_s: float, progress: Progress
) -> None:
    """Let the part grow to the whole file, by what is missing if the server allows that.

    Whoever calls has to check what came: a server need not say how long a file is.
    """
    had = part.stat().st_size if part.exists() else 0
    request = Request(address, headers=_headers(had))
    try:
        with urlopen(request, timeout=timeout_s) as response:
            start = _start(response, had)
            whole = _whole(response, start)
            _must_be_small(whole or 0, most)
            take = _watched(progress, part, whole, most, monotonic() + whole_s)
            _append(response, part, start, take)
            _must_be_whole(part, whole)
    except HTTPError as error:
        error.close()
        if error.code != NOTHING_LEFT or not had:
            raise


def _headers(had: int) -> dict[str, str]:
    who = {"User-Agent": f"edgemerge/{__version__}"}
    return who | {"Range": f"bytes={had}-"} if had else who


def _start(response: HTTPResponse, had: int) -> int:
    """Tell where the body starts: after what we had, or, if that was ignored, at 0."""
    if response.status != 206:
        return 0
    said = response.headers.get("Content-Range", "")
    if not said.startswith(f"bytes {had}-"):
        raise UselessError(f"was asked for bytes from {had} on, sends {said or 'others'}")
    return had


def _whole(response: HTTPResponse, start: int) -> int | None:
    length = response.headers.get("Content-Length", "")
    return start + int(length) if length.isdecimal() else None


def _watched(
    progress: Progress, part: Path, whole: int | None, most: int, until: float
) -> Callable[[int], None]:
    """Give what is told the size after each chunk, and ends what is too long or too slow."""

    def took(size: int) -> None:
        _must_be_small(size, most)
        if monotonic() > until:
            raise TimeoutError(f"still not whole after {size} bytes")
        progress(part.name.removesuffix(".part"), size, whole)

    return took


def _append(response: HTTPResponse, part: Path, start: int, took: Callable[[int], None]) -> None:
    with part.open("ab" if start else "wb") as file:
        while chunk := response.read1(CHUNK):
            took(file.tell() + len(chunk))
            file.write(chunk)


def _must_be_small(size: int, most: int) -> None:
    if size > most:
        raise UselessError(f"sends {size} bytes or more, expected at most {most}")


def _must_be_whole(part: Path, whole: int | None) -> None:
    size = part.stat().st_size
    if whole is not None and size < whole:
        raise ConnectionError(f"was cut off after {size} of {whole} bytes")
