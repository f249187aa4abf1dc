"""Flower's engine on this machine: a SuperLink and SuperNodes on loopback, with TLS and keys.

Everything lies in one folder, and leaving the `with` ends whatever was started.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
HOST = "127.0.0.1"
READY_S, END_S, LOOK_S = 60.0, 10.0, 0.1
PEM, PLAIN = serialization.Encoding.PEM, serialization.NoEncryption()
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "OPENBLAS_NUM_THREADS": "1",
}


class Engine:
    """Starts and ends Flower's programs; one for `simulation` has its nodes within."""

    def __init__(self, folder: Path, *, secure: bool = True, simulation: bool = False) -> None:
        """Keep everything in a folder; without `secure` there is neither TLS nor a key."""
        self.folder, self.secure, self.simulation = folder, secure and not simulation, simulation
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        self.port = free_port()
        path = f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"
        self.environment = {**os.environ, **QUIET, "FLWR_HOME": str(self.home), "PATH": path}
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        """Start the SuperLink, and wait until it listens."""
        options = self._secured() if self.secure else ["--insecure"]
        options += ["--simulation"] if self.simulation else []
        trust = f'root-certificates = "{self._ca}"' if self.secure else "insecure = true"
        words = f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{HOST}:{self.port}"\n'
        (self.home / "config.toml").write_text(f"{words}{trust}\n", encoding="utf-8")
        self.start("flower-superlink", "--host", HOST, "--port", str(self.port), *options)
        wait_for(self._listens, READY_S, "the SuperLink does not listen")
        return self

    def __exit__(self, *_: object) -> None:
        """End all programs, the last first."""
        for program in reversed(self._started):
            end(program)

    def supernode(self, name: str, **config: Any) -> subprocess.Popen[bytes]:
        """Start a node; it gets a key, which is registered first."""
        options = ["--superlink", f"{HOST}:{self.port}", "--port", str(free_port())]
        options += self._keyed(name) if self.secure else ["--insecure"]
        return self.start("flower-supernode", *options, "--node-config", settings(config))

    def start(self, program: str, *options: str) -> subprocess.Popen[bytes]:
        """Start a program in a group of its own, with its words in a file."""
        log = self.folder / f"{program}-{len(self._started)}.log"
        with log.open("wb") as file:
            started = subprocess.Popen(
                [str(BIN / program), *options],
                env=self.environment,
                cwd=self.folder,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(started)
        return started

    def flwr(self, *options: str, timeout_s: float = READY_S) -> str:
        """Run a command of Flower's, and give what it says."""
        found = subprocess.run(
            [str(BIN / "flwr"), *options],
            env=self.environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        if found.returncode:
            raise SystemExit(f"flwr {' '.join(options)}: {found.stdout}{found.stderr}")
        return found.stdout

    def submit(self, app: Path = HERE, nodes: int | None = None, **config: Any) -> str:
        """Begin a run, and give its id; `nodes` is for simulation."""
        options = ["--format", "json"] + (["--run-config", settings(config)] if config else [])
        if nodes is not None:
            sizes = {"num-supernodes": nodes, "client-resources-num-cpus": 1}
            options += ["--federation-config", settings(sizes)]
        words = self.flwr("run", str(app), "here", *options)
        answer = json.loads(words[words.index("{") :])
        if not answer.get("success"):
            raise SystemExit(f"the run does not begin: {words}")
        return str(answer["run-id"])

    def finish(self, run: str, timeout_s: float) -> tuple[str, str]:
        """Wait until a run has ended; return its status and the log of the ServerApp.

        `flwr run --stream` alone would not do: it ends with 0 even if the run fails.
        """
        end_at = time.monotonic() + timeout_s
        log, status = self.flwr("log", run, "here", "--stream", timeout_s=timeout_s), ""
        while not status.startswith("finished"):
            if time.monotonic() > end_at:
                raise SystemExit(f"run {run} is {status} after {timeout_s:g} s: {log}")
            runs = json.loads(self.flwr("ls", "here", "--format", "json"))["runs"]
            status = next(each["status"] for each in runs if each["run-id"] == run)
        return status, log

    @property
    def _ca(self) -> Path:
        return self.folder / "ca.crt"

    def _listens(self) -> bool:
        if self._started[0].poll() is not None:
            raise SystemExit(f"the SuperLink ended: see {self.folder}")
        with socket.socket() as there:
            return there.connect_ex((HOST, self.port)) == 0

    def _keyed(self, name: str) -> list[str]:
        key = ec.generate_private_key(ec.SECP384R1())
        private, public = self.folder / f"{name}.key", self.folder / f"{name}.pub"
        openssh = serialization.PrivateFormat.OpenSSH
        write(private, key.private_bytes(PEM, openssh, PLAIN))
        form = (serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        write(public, key.public_key().public_bytes(*form))
        self.flwr("supernode", "register", str(public), "here")
        trust = ["--root-certificates", str(self._ca)]
        return [*trust, "--auth-supernode-private-key", str(private)]

    def _secured(self) -> list[str]:
        make_certificate(self.folder)
        names = {"--ssl-ca-certfile": "ca.crt", "--ssl-certfile": "server.crt"}
        names |= {"--ssl-keyfile": "server.key"}
        paths = [word for name in names for word in (name, str(self.folder / names[name]))]
        return [*paths, "--enable-supernode-auth"]


def make_certificate(folder: Path) -> None:
    """Make a certificate for this machine, and the authority that signs it."""
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "example authority")])
    server = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    names = [x509.DNSName("localhost"), x509.IPAddress(ip_address(HOST))]
    is_ca, is_not = (x509.BasicConstraints(ca=ca, path_length=None) for ca in (True, False))
    ca = _certificate(authority, authority, ca_key).add_extension(is_ca, critical=True)
    leaf = _certificate(server, authority, key).add_extension(is_not, critical=True)
    leaf = leaf.add_extension(x509.SubjectAlternativeName(names), critical=False)
    write(folder / "ca.crt", ca.sign(ca_key, hashes.SHA256()).public_bytes(PEM))
    write(folder / "server.crt", leaf.sign(ca_key, hashes.SHA256()).public_bytes(PEM))
    form = serialization.PrivateFormat.PKCS8
    write(folder / "server.key", key.private_bytes(PEM, form, PLAIN))


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(
        issuer, subject, key.public_key(), x509.random_serial_number()
    )
    day = timedelta(days=1)
    return builder.not_valid_before(now - day).not_valid_after(now + 30 * day)


def write(path: Path, data: bytes) -> None:
    """Write a file that only its owner may read."""
    path.touch(mode=0o600)
    path.write_bytes(data)


def say(words: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


def settings(values: dict[str, Any]) -> str:
    """Write settings as Flower reads them; `a_b` becomes `a-b`."""
    return " ".join(f"{name.replace('_', '-')}={json.dumps(v)}" for name, v in values.items())


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as here:
        here.bind((HOST, 0))
        return int(here.getsockname()[1])


def wait_for(holds: Any, timeout_s: float, words: str) -> None:
    """Wait until something holds."""
    end_at = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > end_at:
            raise SystemExit(f"{words} within {timeout_s:g} s")
        time.sleep(LOOK_S)


def end(program: subprocess.Popen[bytes]) -> None:
    """End a program and all that it started: kindly, then not."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(program.pid, sign)
            program.wait(END_S)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
