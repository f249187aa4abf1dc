"""Naming: any printable name as part of a file's name or of an MQTT topic, and never two alike.

Small letters, digits, - and _ stay. All else is percent-encoded: capitals too, since FAT does not
tell them apart, and dots, since a name may be "..". What gets too long ends in its SHA-256.
"""

from __future__ import annotations

from hashlib import sha256
from string import ascii_lowercase, digits

from edgemerge.core.contribution import Key

PLAIN = frozenset((ascii_lowercase + digits + "-_").encode())
LONGEST = 48  # so that a file's name has room for two, on any file system
SUFFIX = ".safetensors"


def encoded(name: str) -> str:
    """Write a name with letters that are safe everywhere.

    >>> encoded("pump-3"), encoded("Pump 3"), encoded("..")
    ('pump-3', '%50ump%203', '%2e%2e')
    >>> encoded("pump-3 " * 20)
    'pump-3%20pump-3~1c7db0ecd6485a47b63265f9b133063c'
    """
    data = name.encode()
    text = "".join(chr(byte) if byte in PLAIN else f"%{byte:02x}" for byte in data)
    if len(text) <= LONGEST:
        return text
    return f"{text[: LONGEST - 33]}~{sha256(data).hexdigest()[:32]}"


def file_name(key: Key) -> str:
    """Name the file of a contribution.

    >>> file_name(("pump-3", 0, "idle"))
    'pump-3,0,idle.safetensors'
    """
    device, incarnation, pattern = key
    return f"{encoded(device)},{incarnation},{encoded(pattern)}{SUFFIX}"


def topic(key: Key) -> str:
    """Name the last parts of the MQTT topic of a contribution.

    >>> topic(("pump-3", 0, "#1"))
    'pump-3/0/%231'
    """
    device, incarnation, pattern = key
    return f"{encoded(device)}/{incarnation}/{encoded(pattern)}"
