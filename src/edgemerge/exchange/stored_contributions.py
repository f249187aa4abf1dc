"""What folder, MQTT and peer exchanges share: stored names, reading, and refusing stale pushes.

A stored name keeps lower-case letters, digits, - and _; all else is percent-encoded: capitals
too, since FAT ignores case, and dots, since a name may be "..". A name that gets too long ends in
its SHA-256.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from logging import Logger
from string import ascii_lowercase, digits

from edgemerge.core.errors import RejectedError, StaleError
from edgemerge.core.ledger import Contribution, Key, Kind, Ledger
from edgemerge.core.projection import Projection
from edgemerge.wire.admission import admit
from edgemerge.wire.codec import decode_with_form

UNESCAPED = frozenset((ascii_lowercase + digits + "-_").encode())
MAX_NAME_CHARS = 48  # so that two fit into a file name on any file system
SUFFIXES: dict[Kind, str] = {"normal": ".safetensors", "fault": ".fault"}


def safe_name(name: str) -> str:
    """Return a name in characters that are safe in file names and topics.

    >>> safe_name("pump-3"), safe_name("Pump 3"), safe_name("..")
    ('pump-3', '%50ump%203', '%2e%2e')
    >>> safe_name("pump-3 " * 20)
    'pump-3%20pump-3~1c7db0ecd6485a47b63265f9b133063c'
    """
    data = name.encode()
    text = "".join(chr(byte) if byte in UNESCAPED else f"%{byte:02x}" for byte in data)
    if len(text) <= MAX_NAME_CHARS:
        return text
    return f"{text[: MAX_NAME_CHARS - 33]}~{sha256(data).hexdigest()[:32]}"


def file_name(key: Key, kind: Kind = "normal") -> str:
    """Return the file name of a contribution.

    >>> file_name(("pump-3", 0, "idle")), file_name(("pump-3", 0, "bearing"), "fault")
    ('pump-3,0,idle.safetensors', 'pump-3,0,bearing.fault')
    """
    device, incarnation, pattern = key
    return f"{safe_name(device)},{incarnation},{safe_name(pattern)}{SUFFIXES[kind]}"


def topic_suffix(key: Key) -> str:
    """Return the last levels of the MQTT topic of a contribution.

    >>> topic_suffix(("pump-3", 0, "#1"))
    'pump-3/0/%231'
    """
    device, incarnation, pattern = key
    return f"{safe_name(device)}/{incarnation}/{safe_name(pattern)}"


def read_contribution(
    data: bytes,
    projection: Projection,
    expected: Callable[[Contribution], str],
    kind: Kind = "normal",
) -> Contribution:
    """Decode and validate the bytes of a stored contribution.

    Args:
        data: The bytes, of any form.
        projection: What all devices share.
        expected: Returns where a contribution should have been stored, if not here; else "".
        kind: The kind that is stored there; "normal" by default.

    Raises:
        EdgemergeError: The bytes are no valid contribution, or stored in the wrong place.
    """
    found, form = decode_with_form(data, projection=projection)
    if not isinstance(found, Contribution):
        raise RejectedError(f"found {type(found).__name__}, expected Contribution")
    if place := expected(found):
        raise RejectedError(f"found {found}, expected {place}")
    admit(found, projection=projection, form=form, kind=kind)
    return found


def must_be_current(contribution: Contribution, known: Contribution | None) -> bool:
    """Return whether a pushed contribution is newer than the stored one, False if it is the same.

    Raises:
        StaleError: It is stale or contradicts the stored one.
    """
    freshness = Ledger.check(contribution, known)
    if known is None or freshness in ("newer", "same"):
        return freshness == "newer"
    if freshness == "stale":
        wrong = f"revision {contribution.revision} is late, {known.revision} is known"
    else:
        wrong = f"revision {known.revision} came twice with different numbers"
    raise StaleError(
        f"{contribution.device}, {contribution.pattern}: {wrong}: share under a higher revision, "
        "or start a new incarnation if this device runs on an old copy of its state",
        known.revision,
    )


MAX_REMEMBERED = 1000  # names


class LogOnce:
    """Logs a problem with something once, and again only when the problem changes."""

    def __init__(self, logger: Logger, message: str) -> None:
        """Log this message as a warning, with name and reason as values."""
        self._logger, self._message = logger, message
        self._logged: dict[str, str] = {}

    def warn(self, name: str, error: Exception) -> None:
        """Log it, unless it was the last thing logged about this name."""
        why = str(error)[:300]
        if self._logged.get(name) == why:
            return
        if len(self._logged) >= MAX_REMEMBERED:
            self._logged.clear()
        self._logged[name] = why
        self._logger.warning(self._message, extra={"values": {"name": name[:300], "why": why}})

    def clear(self, name: str) -> None:
        """Forget what was logged about this name: log the next problem again."""
        self._logged.pop(name, None)
