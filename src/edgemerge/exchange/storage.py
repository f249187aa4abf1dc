"""How folder, MQTT and peer exchanges store contributions: names and newest-wins.

A stored name keeps small letters, digits, - and _; all else is percent-encoded: capitals too, since
FAT does not tell them apart, and dots, since a name may be "..". A name that gets too long ends in
its SHA-256.
"""

from __future__ import annotations

from hashlib import sha256
from logging import Logger
from string import ascii_lowercase, digits

from edgemerge.core.errors import StaleError
from edgemerge.core.ledger import Contribution, Key

UNESCAPED = frozenset((ascii_lowercase + digits + "-_").encode())
MAX_NAME_CHARS = 48  # so that a file's name has room for two, on any file system
SUFFIX = ".safetensors"


def safe_name(name: str) -> str:
    """Write a name with letters that are safe everywhere.

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


def file_name(key: Key) -> str:
    """Name the file of a contribution.

    >>> file_name(("pump-3", 0, "idle"))
    'pump-3,0,idle.safetensors'
    """
    device, incarnation, pattern = key
    return f"{safe_name(device)},{incarnation},{safe_name(pattern)}{SUFFIX}"


def topic_suffix(key: Key) -> str:
    """Name the last parts of the MQTT topic of a contribution.

    >>> topic_suffix(("pump-3", 0, "#1"))
    'pump-3/0/%231'
    """
    device, incarnation, pattern = key
    return f"{safe_name(device)}/{incarnation}/{safe_name(pattern)}"


def check_newer(contribution: Contribution, known: Contribution) -> bool:
    """Say whether it is newer than what is known; False for the very same, else an error."""
    if contribution.revision > known.revision:
        return True
    if contribution.revision < known.revision:
        wrong = f"revision {contribution.revision} is late, {known.revision} is known"
    elif contribution.stats == known.stats:
        return False
    else:
        wrong = f"revision {known.revision} came twice with different numbers"
    raise StaleError(
        f"{contribution.device}, {contribution.pattern}: {wrong}: share under a higher revision, "
        "or start a new incarnation if this device runs on an old copy of its state",
        known.revision,
    )


MAX_REMEMBERED = 1000  # names remembered


class LogOnce:
    """Says what is wrong with a thing when it is first met, or when something else is wrong."""

    def __init__(self, logger: Logger, words: str) -> None:
        """Say it with these words, and with the name and the reason as values."""
        self._logger, self._words = logger, words
        self._said: dict[str, str] = {}

    def say(self, name: str, error: Exception) -> None:
        """Log it, unless that is what was said last time."""
        why = str(error)[:300]
        if self._said.get(name) == why:
            return
        if len(self._said) >= MAX_REMEMBERED:
            self._said.clear()
        self._said[name] = why
        self._logger.warning(self._words, extra={"values": {"name": name[:300], "why": why}})

    def well(self, name: str) -> None:
        """Take back what was said: a next time is news again."""
        self._said.pop(name, None)
