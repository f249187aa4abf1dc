"""A private nginx on a free loopback port, with the configuration that deploy/ offers."""

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from tests.services.missing import SERVICES, left_out
from tests.services.ports import free_port
from tests.waiting import DEADLINE_S

EXAMPLE = Path(__file__).parents[2] / "deploy" / "nginx.example.conf"
MAIN = """
{user}
worker_processes 1;
pid nginx.pid;
daemon off;
events {{ worker_connections 2048; }}
http {{
    access_log off;
    {folders}
    include edgemerge.conf;
}}
"""
FOLDERS = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
SERVER = re.compile(r"^    server 127\.0\.0\.1:\d+ (.*;)$\n", re.MULTILINE)
TLS = re.compile(r"^    ssl_\w+ .*;$\n", re.MULTILINE)


def binary() -> str:
    """Where nginx is."""
    path = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin"
    return shutil.which("nginx", path=path) or left_out("nginx", SERVICES)


def adapted(text: str, ports: list[int], listen: int, tls: Path | None) -> str:
    """The example with other ports, and with the certificate of a folder, or without any."""
    options = SERVER.findall(text)
    assert len(options) == 4, "the example names four servers"
    lines = "".join(f"    server 127.0.0.1:{port} {options[0]}\n" for port in ports)
    text = SERVER.sub("", text).replace("    keepalive 32;\n", lines + "    keepalive 32;\n")
    text = once(text, "listen 443 ssl;", f"listen 127.0.0.1:{listen}{' ssl' if tls else ''};")
    text = once(text, "server_name hub.example;", "server_name _;")
    if tls is None:
        assert len(TLS.findall(text)) == 3, "the example has three lines about TLS"
        return TLS.sub("", text)
    return text.replace("/etc/edgemerge/", f"{tls}/")


def once(text: str, old: str, new: str) -> str:
    """Replace what must be there once."""
    assert text.count(old) == 1, f"the example has {old!r} once"
    return text.replace(old, new)


class Nginx:
    """An ordinary process in a folder of its own; `ports` are those of the servers behind it."""

    def __init__(self, folder: Path, ports: list[int], *, tls: Path | None = None):
        self.program, self.folder = binary(), folder
        self.port = free_port()
        folder.mkdir(parents=True, exist_ok=True)
        example = EXAMPLE.read_text(encoding="utf-8")
        text = adapted(example, ports, self.port, tls)
        (folder / "edgemerge.conf").write_text(text, encoding="utf-8")
        folders = " ".join(f"{name}_temp_path {name};" for name in FOLDERS)
        user = "user root;" if os.geteuid() == 0 else ""
        main = MAIN.format(user=user, folders=folders)
        (folder / "nginx.conf").write_text(main, encoding="utf-8")
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        self.process: subprocess.Popen | None = None

    @property
    def command(self) -> list[str]:
        where = ["-p", str(self.folder), "-c", "nginx.conf", "-e", "error.log"]
        return [self.program, *where]

    @property
    def log(self) -> str:
        return (self.folder / "error.log").read_text(encoding="utf-8", errors="replace")

    def check(self) -> str:
        """Let nginx judge its configuration; give its words."""
        done = subprocess.run(
            [*self.command, "-t"], capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stderr

    def start(self) -> None:
        self.process = subprocess.Popen(self.command)
        end = time.monotonic() + DEADLINE_S
        with socket.socket() as probe:
            while probe.connect_ex(("127.0.0.1", self.port)):
                assert self.process.poll() is None, self.log
                assert time.monotonic() < end, self.log
                time.sleep(0.01)

    def close(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(DEADLINE_S)
            self.process = None
