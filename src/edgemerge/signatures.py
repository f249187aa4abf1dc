"""Signatures of contributions: a key for each device, and others' keys, bound at their first use.

Over MQTT and between peers no server vouches for a name. So a device signs what it sends (Ed25519),
and receivers remember the first key under a name and refuse every other. A signature
travels beside the bytes of a contribution, which stay as they are: "ed25519 KEY SIGNATURE", both in
hexadecimal digits. It needs the package `cryptography`, the extra `tls`; without it contributions
travel unsigned, and those of others are not verified.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from threading import Lock

from edgemerge.core.errors import FormatError, RejectedError, SettingError
from edgemerge.files import file_stamp, read_secret, write_atomically

KEY_FILE, KNOWN_KEYS_FILE = "device.key", "known-keys.json"  # in the state folder of an agent
MAX_KNOWN = 10_000  # names whose key is remembered
SIGNED = b"edgemerge contribution\n"  # before the bytes that are signed: no other use of a key fits
PUBLIC_KEY = re.compile("[0-9a-f]{64}")
SIGNATURE = re.compile("ed25519 ([0-9a-f]{64}) ([0-9a-f]{128})")

logger = logging.getLogger(__name__)


try:  # an extra
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
except ImportError:
    CAN_SIGN = False
else:
    CAN_SIGN = True


class OtherSenderError(RejectedError):
    """A contribution under a name that another key signed before."""


class SigningKey:
    """The key of this device.

    Args:
        secret: Its 32 bytes.

    >>> key = SigningKey(bytes(32))
    >>> verify(b"sums", key.sign(b"sums")) == key.public
    True
    """

    def __init__(self, secret: bytes) -> None:
        """Derive the public key."""
        self._key = Ed25519PrivateKey.from_private_bytes(secret)
        raw = Encoding.Raw, PublicFormat.Raw
        self.public: str = self._key.public_key().public_bytes(*raw).hex()

    @classmethod
    def own(cls, path: Path) -> SigningKey | None:
        """Return the key in a file, which is made at first use; None if this cannot sign.

        Args:
            path: The file, which only its owner may read.

        Raises:
            SettingError: The file holds no key, or cannot be read.
        """
        if not CAN_SIGN:
            logger.warning(
                "contributions are not signed, so that others could send under this name: "
                "install the extra tls of edgemerge"
            )
            return None
        if not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(f"{os.urandom(32).hex()}\n".encode(), path)
        text = read_secret(path, "signing key")
        if not PUBLIC_KEY.fullmatch(text):
            raise SettingError(
                f"found no key of 64 hexadecimal digits in {path}: restore it, or remove it to "
                "have another made, which each other device must then accept"
            )
        return cls(bytes.fromhex(text))

    def sign(self, data: bytes) -> str:
        """Return the signature of a contribution's bytes."""
        return f"ed25519 {self.public} {self._key.sign(SIGNED + data).hex()}"


def verify(data: bytes, signature: str) -> str:
    """Return the public key that signed a contribution's bytes.

    Raises:
        RejectedError: It is no signature, or not of these bytes.
    """
    found = SIGNATURE.fullmatch(signature)
    if found is None:
        raise RejectedError('found no signature, expected "ed25519 KEY SIGNATURE"')
    public, signed = found.groups()
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public))
        key.verify(bytes.fromhex(signed), SIGNED + data)
    except Exception as error:  # its own, ValueError, or what its Rust part raises
        raise RejectedError("found a signature that does not fit the contribution") from error
    return public


class KnownKeys:
    """The key of each device's name, since its first signed contribution; any thread may call.

    Args:
        path: File to remember them in, read again when another program changes it; None: only in
            memory.
        most: Names that are remembered; contributions under further names are refused.
    """

    def __init__(self, path: Path | None = None, most: int = MAX_KNOWN) -> None:
        """Read nothing yet."""
        self._path, self._most, self._lock = path, most, Lock()
        self._stamp: tuple[int, int, int] | None = None
        self._keys: dict[str, str] = {}

    def all(self) -> dict[str, str]:
        """Return the key of each name."""
        with self._lock:
            self._refresh()
            return dict(self._keys)

    def check(self, device: str, data: bytes, signature: str | None) -> None:
        """Refuse a contribution of another sender than the first under this name.

        Args:
            device: The name in the contribution, which passed all other checks.
            data: Its bytes.
            signature: What came with it; None: nothing.

        Raises:
            OtherSenderError: It is missing, or of another key than the first.
            RejectedError: The signature is wrong.
        """
        if not CAN_SIGN:
            return
        found = None if signature is None else verify(data, signature)
        with self._lock:
            self._refresh()
            known = self._keys.get(device)
            if known == found:
                return
            if known is None and found is not None:
                self._bind(device, found)
                return
        here = self._path.parent if self._path else "STATE"
        if found is None:
            raise OtherSenderError(
                f"{device}: found no signature, expected that of its key {known}: "
                f"install the extra tls of edgemerge on {device}"
            )
        raise OtherSenderError(
            f"{device}: found another key, expected {(known or '')[:16]}…: if it was replaced and "
            f"shows this key as its own, run: edgemerge keys {here} --accept {device}={found}"
        )

    def accept(self, device: str, key: str) -> None:
        """Bind a name to a key, in place of an earlier one.

        Args:
            device: The name.
            key: The public key, 64 hexadecimal digits.
        """
        if not PUBLIC_KEY.fullmatch(key):
            raise SettingError(f'found the key "{key}", expected 64 hexadecimal digits')
        with self._lock:
            self._refresh()
            if self._keys.get(device) != key:
                self._bind(device, key)

    def _bind(self, device: str, key: str) -> None:
        if device not in self._keys and len(self._keys) >= self._most:
            raise RejectedError(
                f"found a key for {device}, but those of {self._most} names are known already, "
                "expected at most that: remove names that are gone from "
                f"{self._path or 'memory, by a restart'}"
            )
        keys = self._keys | {device: key}
        if self._path is not None:
            text = json.dumps(keys, indent=1, sort_keys=True, ensure_ascii=False)
            try:
                write_atomically(f"{text}\n".encode(), self._path)
                self._stamp = file_stamp(self._path)
            except OSError as error:  # such as a full disk: it holds until a restart
                values = {"device": device, "why": error.strerror}
                logger.warning("a device's key was not written", extra={"values": values})
        self._keys = keys

    def _refresh(self) -> None:
        """Read the file again if it has changed."""
        if self._path is None or (stamp := file_stamp(self._path)) == self._stamp:
            return
        found = {} if stamp is None else _read_keys(self._path)
        self._keys, self._stamp = found, stamp


def _read_keys(path: Path) -> dict[str, str]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        sound = isinstance(found, Mapping) and all(
            isinstance(key, str) and PUBLIC_KEY.fullmatch(key) for key in found.values()
        )
    except (OSError, ValueError, RecursionError) as error:
        raise FormatError(f"found no known keys in {path}: restore it from a backup") from error
    if not sound:
        raise FormatError(f"found no known keys in {path}: restore it from a backup")
    return dict(found)
