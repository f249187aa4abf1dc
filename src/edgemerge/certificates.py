"""Certificates without an authority: made here, and recognised by their fingerprint.

A certificate and its key are one PEM file, so that one rename replaces both. Who connects knows the
certificate by the SHA-256 of its bytes (64 hexadecimal digits), which a token carries after a dot.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import re
import ssl
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from socket import gethostname
from tempfile import TemporaryDirectory

from edgemerge.core.errors import SettingError, install_command
from edgemerge.files import file_stamp, write_atomically

VALID_DAYS = 3650
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
FINGERPRINT = re.compile(r"[0-9a-f]{64}")
PEM_CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)

logger = logging.getLogger(__name__)


def fingerprint(der: bytes) -> str:
    """Return the fingerprint of a certificate, which is given as the bytes of its DER form."""
    return sha256(der).hexdigest()


def split_token(token: str) -> tuple[str, str | None]:
    """Return the secret of a token, and the fingerprint that it carries; None if it has none.

    >>> split_token("emd_abc")
    ('emd_abc', None)
    >>> split_token("emd_abc." + 64 * "0") == ("emd_abc", 64 * "0")
    True
    """
    secret, _, pin = token.rpartition(".")
    return (secret, pin) if secret and FINGERPRINT.fullmatch(pin) else (token, None)


def make_certificate(names: Iterable[str] = ()) -> bytes:
    """Make a key and a certificate for it, signed by itself, as one PEM file.

    Args:
        names: More host names and addresses of this machine; its own name is always in it.

    Raises:
        SettingError: The package `cryptography` is not installed.
    """
    try:
        from cryptography import x509  # noqa: PLC0415 - an extra
        from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415
    except ImportError as error:
        raise SettingError(
            "the package cryptography is not installed, which makes certificates: "
            f"{install_command('tls')}; or give a certificate of your own"
        ) from error

    def alternative(name: str) -> x509.GeneralName:
        try:
            return x509.IPAddress(ipaddress.ip_address(name))
        except ValueError:
            return x509.DNSName(name)

    own = gethostname().encode("ascii", "ignore").decode()[:64] or "edgemerge"
    known = dict.fromkeys([own, *LOCAL_NAMES, *names])
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, own)])
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=2))  # clocks of devices may be behind
        .not_valid_after(now + timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName([*map(alternative, known)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, plain) + made.public_bytes(
        serialization.Encoding.PEM
    )


def passing_context() -> tuple[ssl.SSLContext, str]:
    """Return a server's context with a certificate that is never stored, and its fingerprint."""
    context, pem = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), make_certificate()
    with TemporaryDirectory() as folder:  # the ssl module reads certificates from files only
        file = Path(folder) / "certificate.pem"
        write_atomically(pem, file, sync=False)
        context.load_cert_chain(file)
        return context, read_fingerprint(file)


def prove(secret: str, nonce: str, pin: str) -> str:
    """Return what only who knows the secret can say about a certificate, for this nonce.

    Both sides of a connection compute it, each for the certificate that it sees. Someone between
    them shows another certificate, for which there is no proof without the secret.
    """
    return hmac.new(secret.encode(), f"edgemerge peer {nonce} {pin}".encode(), sha256).hexdigest()


def read_fingerprint(path: Path) -> str:
    """Return the fingerprint of the first certificate in a PEM file.

    Raises:
        SettingError: The file cannot be read, or holds no certificate.
    """
    try:
        found = PEM_CERTIFICATE.search(path.read_text(encoding="ascii", errors="replace"))
    except OSError as error:
        raise SettingError(f"cannot read the certificate in {path}: {error.strerror}") from error
    if found is None:
        raise SettingError(f"found no certificate in {path}, expected a PEM file with one")
    return fingerprint(ssl.PEM_cert_to_DER_cert(found.group()))


class ServerCertificate:
    """The certificate that a server shows, read again when its files change.

    Args:
        cert: PEM file of the certificate, or of certificate and key.
        key: PEM file of the key; None if it stands in the file of the certificate.
        is_own: Whether the server made it, so that those who connect must know its fingerprint.

    Raises:
        SettingError: The files do not hold a certificate and its key.
    """

    def __init__(self, cert: Path, key: Path | None = None, *, is_own: bool = False) -> None:
        """Read it."""
        self.cert, self.key, self.is_own = cert, key, is_own
        self._context: ssl.SSLContext | None = None
        self._seen = self._stamps()
        must_load(cert, key)
        self.pin = read_fingerprint(cert) if is_own else None
        self.next_pin = self._read_next()

    @classmethod
    def own(cls, path: Path, names: Iterable[str] = ()) -> ServerCertificate:
        """Return the certificate in a file that this server makes at its first start."""
        if not path.exists():
            write_atomically(make_certificate(names), path)
            logger.info("made a certificate", extra={"values": {"file": path}})
        return cls(path, is_own=True)

    def follow(self, context: ssl.SSLContext) -> None:
        """Keep the certificate of a context as it is in the files; see `refresh`."""
        self._context = context

    def refresh(self) -> bool:
        """Read the files again if they have changed; return whether the certificate did.

        A pair that does not fit is left alone: it would spoil the context for good.
        """
        stamps = self._stamps()
        if stamps == self._seen:
            return False
        self._seen = stamps
        self.next_pin = self._read_next()
        try:
            must_load(self.cert, self.key)
        except SettingError as error:
            logger.warning("kept the old certificate", extra={"values": {"why": error}})
            return False
        if self._context is not None:
            self._context.load_cert_chain(self.cert, self.key)
        before, self.pin = self.pin, read_fingerprint(self.cert) if self.is_own else None
        if before == self.pin and self.is_own:
            return False
        logger.info("loaded another certificate", extra={"values": {"file": self.cert}})
        return True

    def _stamps(self) -> list[tuple[int, int, int] | None]:
        paths = [self.cert, *([self.key] if self.key else []), next_file(self.cert)]
        return [*map(file_stamp, paths)]

    def _read_next(self) -> str | None:
        path = next_file(self.cert)
        return read_fingerprint(path) if self.is_own and path.exists() else None


def next_file(path: Path) -> Path:
    """Return the file of the certificate that will replace the one in this file."""
    return path.with_name(f"{path.name}.next")


def prepare_next(path: Path) -> str:
    """Make the next certificate, unless there is one, and return its fingerprint."""
    must_load(path, None)  # or it would be made beside a file of another kind
    coming = next_file(path)
    if not coming.exists():
        write_atomically(make_certificate(), coming)
    return read_fingerprint(coming)


def switch_to_next(path: Path) -> str:
    """Replace a certificate by the next one, and return its fingerprint.

    Raises:
        SettingError: There is no next one, or it is damaged.
    """
    coming = next_file(path)
    if not coming.exists():
        raise SettingError(f"found no {coming.name}: make the next certificate first")
    must_load(coming, None)
    coming.replace(path)
    return read_fingerprint(path)


def must_load(cert: Path, key: Path | None) -> None:
    """Refuse files that do not hold a certificate and its key."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
    except OSError as error:  # also ssl.SSLError
        where = cert if key is None else f"{cert} and {key}"
        why = getattr(error, "reason", None) or error.strerror
        raise SettingError(f"found no certificate with its key in {where} ({why})") from error
