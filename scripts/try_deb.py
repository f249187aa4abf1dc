"""Try the Debian package on two clean machines, a server and a device, and write down the times.

`make deb` builds the package twice (equal bytes), then, as root: makes a clean Debian with
mmdebstrap, installs, checks, removes and purges the package in a copy of it, and boots two more
copies with their own systemd, in network namespaces that only see each other. There it runs the
five commands of docs/how-to/install.md, from installing to a device that watches, and writes
docs/results/install.csv.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
ROWS = ROOT / "docs" / "results" / "install.csv"
BASE = ROOT / "build" / "debian.tar"  # a clean Debian; delete it to make a new one
PACKAGES = "systemd,systemd-sysv,dbus,python3"  # a machine has them already
SERVER, DEVICE = "10.231.47.1", "10.231.47.2"
BOOT_S, WATCH_S = 120.0, 120.0
TOKEN = "/var/lib/edgemerge-server/edgemerge.sqlite.admin-token"


class TryError(Exception):
    """The package does not do what it must."""


def run(*words: object, check: bool = True) -> str:
    """Run a program; return what it printed, or raise TryError with it."""
    done = subprocess.run(
        [str(word) for word in words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"},
        text=True,
        check=False,
    )
    if done.returncode and check:
        raise TryError(f"{shlex.join(map(str, words))} failed:\n{done.stdout}")
    return done.stdout


def expect(about: str, *, holds: bool) -> None:
    """Print what holds, or raise TryError."""
    if not holds:
        raise TryError(f"does not hold: {about}")
    print(f"  ok  {about}", flush=True)


def build(folder: Path) -> Path:
    """Build the package twice; return the first."""
    places = [run(ROOT / "scripts" / "build_deb", each).split()[-1] for each in ("dist", folder)]
    first, second = Path(places[0]), Path(places[1])
    expect("a second build has the same bytes", holds=first.read_bytes() == second.read_bytes())
    print(f"      {first.stat().st_size:,} bytes")
    return first.resolve()


def base() -> Path:
    """Return an archive of a clean Debian, of the release that this machine has."""
    if not BASE.exists():
        BASE.parent.mkdir(exist_ok=True)
        release = Path("/etc/os-release").read_text(encoding="utf-8")
        suite = re.findall(r"^VERSION_CODENAME=(\w+)", release, re.MULTILINE)[0]
        beside = BASE.with_suffix(".new.tar")
        options = ("--mode=root", "--variant=minbase", f"--include={PACKAGES}")
        run("mmdebstrap", "--quiet", *options, suite, beside)
        beside.rename(BASE)
    return BASE


@contextmanager
def clean_machine(package: Path) -> Iterator[Path]:
    """Unpack a clean Debian with the package in /root."""
    with tempfile.TemporaryDirectory(prefix="edgemerge-deb-") as name:
        root = Path(name)
        run("tar", "-xf", base(), "-C", root)
        root.chmod(0o755)
        shutil.copy(package, root / "root")
        yield root


def try_package(package: Path) -> None:
    """Install, look at, remove and purge the package in a clean Debian that is not booted."""
    with clean_machine(package) as root:

        def inside(command: str) -> str:
            return run("chroot", root, "/bin/sh", "-c", f"cd /root && {command}")

        before = _files(root)
        said = inside("dpkg -i ./edgemerge_*.deb")
        expect("dpkg -i says nothing unusual", holds=not re.search("warning|error", said))
        expect("nothing is enabled", holds=not list(root.glob("etc/systemd/system/*/edgemerge*")))
        said = inside(
            "systemd-analyze verify --man=no edgemerge-server.service edgemerge-agent@a.service"
        )
        expect("systemd-analyze verify finds nothing", holds="edgemerge" not in said)
        expect("edgemerge runs", holds="edgemerge" in inside("edgemerge --version"))
        said = inside("edgemerge doctor --json || true")
        found = {each["about"]: each["words"] for each in json.loads(said)}
        expect(f"the kernel is in use: {found['kernel']}", holds="NumPy" not in found["kernel"])
        expect(
            "files keep their bytes after use (md5sums)",
            holds=inside("dpkg --verify edgemerge").strip() == "",
        )
        for place in ("var/lib/edgemerge-server", "var/lib/private/edgemerge/pump-3"):
            (root / place).mkdir(parents=True)
            (root / place / "kept").write_text("data")
        (root / "etc/edgemerge/pump-3.token").write_text("secret")
        inside("dpkg -r edgemerge")
        kept = ["etc/edgemerge/server.env", "etc/edgemerge/pump-3.token"]
        kept += ["var/lib/edgemerge-server/kept", "var/lib/private/edgemerge/pump-3/kept"]
        expect(
            "dpkg -r keeps settings and data", holds=all((root / each).exists() for each in kept)
        )
        expect("dpkg -r removes the program", holds=not (root / "opt/edgemerge").exists())
        inside("dpkg -P edgemerge")
        left = {each for each in _files(root) - before if "/dpkg/" not in each}
        expect(f"dpkg -P leaves nothing: {sorted(left)}", holds=not left)


def _files(root: Path) -> set[str]:
    ignored = [f"{root}/{each}/*" for each in ("run", "var/log")]
    command = ("find", root, "-xdev", *("-not", "-path", ignored[0], "-not", "-path", ignored[1]))
    return set(run(*command, "-printf", "%P\n").splitlines())


@contextmanager
def network() -> Iterator[dict[str, str]]:
    """Make two network namespaces, joined by a cable and by nothing else."""
    names = {"server": f"edgemerge-s{os.getpid()}", "device": f"edgemerge-d{os.getpid()}"}
    with ExitStack() as ends:
        for name in names.values():
            run("ip", "netns", "add", name)
            ends.callback(run, "ip", "netns", "delete", name, check=False)
        wire = ("ip", "-n", names["server"], "link", "add", "host0", "type", "veth")
        run(*wire, "peer", "name", "host0", "netns", names["device"])
        for name, address in zip(names.values(), (SERVER, DEVICE), strict=True):
            run("ip", "-n", name, "address", "add", f"{address}/24", "dev", "host0")
            for link in ("lo", "host0"):
                run("ip", "-n", name, "link", "set", link, "up")
        yield names


class Machine:
    """A booted Debian: its systemd, in a container of its own."""

    def __init__(self, root: Path, namespace: str, log: Path) -> None:
        """Boot, and wait until systemd has started everything."""
        program = shutil.which("systemd-nspawn")
        if program is None:
            raise TryError("systemd-nspawn is missing: `scripts/services deb` installs it")
        words = [program, "--quiet", "--directory", str(root), "--boot", "--register=no"]
        words += ["--keep-unit", f"--network-namespace-path=/run/netns/{namespace}"]
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        self._pid = ""
        deadline = time.monotonic() + BOOT_S
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        while time.monotonic() < deadline and self._process.poll() is None:
            self._pid = (children.read_text().split() or [""])[0]
            if self._pid and "running" in self.run("systemctl is-system-running", check=False):
                return
            time.sleep(0.2)
        state = self.run("systemctl is-system-running; systemctl --failed", check=False)
        self.stop()
        raise TryError(f"the machine did not start: {state}\n{log.read_text(errors='replace')}")

    def run(self, command: str, *, check: bool = True) -> str:
        """Run a command as root of the machine; return what it printed."""
        enter = ("nsenter", "--target", self._pid, "--mount", "--uts", "--ipc", "--net", "--pid")
        words = ("env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", "HOME=/root")
        shell = ("/bin/sh", "-c", f"cd /root && {command}")
        return run(
            *enter, "--cgroup", *words, "DEBIAN_FRONTEND=noninteractive", *shell, check=check
        )

    def stop(self) -> None:
        """Power off, and wait for the end."""
        if self._process.poll() is None and self._pid:
            self.run("systemctl poweroff", check=False)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            self._process.wait(30)


def try_five_commands(package: Path) -> list[tuple[str, str, float]]:
    """Run the five commands on two clean machines; return machine, command and seconds of each."""
    install = f"apt-get install -y ./{package.name}"
    create = (
        "edgemerge fleet create pumps --n-inputs 3 --low 0 --high 100 --n-hidden 16"
        f" --invite pump-3 --server https://127.0.0.1:8470 --token-file {TOKEN}"
    )
    rows: list[tuple[str, str, float]] = []
    with ExitStack() as ends:
        names = ends.enter_context(network())
        logs = Path(ends.enter_context(tempfile.TemporaryDirectory()))
        machines = {}
        for kind, name in names.items():
            root = ends.enter_context(clean_machine(package))
            if kind == "device":
                prepare_device(root)
            machines[kind] = Machine(root, name, logs / kind)
            ends.callback(machines[kind].stop)
        server, device = machines["server"], machines["device"]

        def timed(kind: str, command: str) -> None:
            began = time.monotonic()
            machines[kind].run(command)
            rows.append((kind, command, round(time.monotonic() - began, 1)))
            print(f"{rows[-1][2]:6.1f} s  {kind}# {command}", flush=True)

        timed("server", install)
        timed("server", "systemctl enable --now edgemerge-server")
        timed("server", create)
        device.run(f"umask 077; echo {server.run('cat pump-3.invitation').strip()} > "
                   "/etc/edgemerge/pump-3.invitation")  # fmt: skip  # copied by hand, as scp would
        timed("device", install)
        timed("device", "systemctl enable --now edgemerge-agent@pump-3")
        began = time.monotonic()
        wait_until_it_watches(device)
        rows.append(("device", "until it watches", round(time.monotonic() - began, 1)))
        print(f"{rows[-1][2]:6.1f} s  device: learnt 500 samples, and watches", flush=True)
        check_outcome(server, device)
    return rows


def prepare_device(root: Path) -> None:
    """Put the agent's configuration and readings on the device, which has them before edgemerge."""
    text = (ROOT / "deploy" / "agent.example.toml").read_text(encoding="utf-8")
    text = text.replace("hub.example", SERVER).replace('"1 day"', "500")
    (root / "etc/edgemerge").mkdir()
    (root / "etc/edgemerge/pump-3.toml").write_text(text, encoding="utf-8")
    folder = root / "var/log/pump-3"
    folder.mkdir()
    rows = 50.0 + np.random.default_rng(7).normal(0.0, 5.0, (1000, 3))
    header = "flow,pressure,temperature"
    np.savetxt(folder / "readings.csv", rows, "%.2f", ",", header=header, comments="")


def wait_until_it_watches(device: Machine) -> None:
    """Wait until the agent has learnt what is normal, and watches."""
    deadline, found = time.monotonic() + WATCH_S, ""
    while time.monotonic() < deadline:
        found = device.run("edgemerge monitor show /var/lib/edgemerge/pump-3 --json", check=False)
        if found.startswith("{") and json.loads(found)["phase"] == "watching":
            return
        time.sleep(0.2)
    log = device.run("journalctl --no-pager -u 'edgemerge-*'", check=False)
    raise TryError(f"the agent does not watch: {found}\n{log}")


def check_outcome(server: Machine, device: Machine) -> None:
    """Check that the device is pinned and enrolled, that nothing runs as root, and the rest."""
    token = device.run("cat /etc/edgemerge/pump-3.token").strip()
    log = server.run("journalctl --no-pager -u edgemerge-server")
    pin = token.partition(".")[2]
    expect("the device has pinned the server's certificate", holds=len(pin) > 30 and pin in log)
    where = f"--server https://127.0.0.1:8470 --token-file {TOKEN} --json"
    devices = json.loads(server.run(f"edgemerge fleet devices pumps {where}"))
    expect("pump-3 is enrolled", holds=[each["device"] for each in devices] == ["pump-3"])
    for machine, unit in ((server, "edgemerge-server"), (device, "edgemerge-agent@pump-3")):
        shown = machine.run(f"systemctl show -p ActiveState -p NRestarts -p MainPID {unit}")
        values = dict(line.split("=") for line in shown.split())
        uid = machine.run(f"stat -c %u /proc/{values['MainPID']}").strip()
        active = (values["ActiveState"], values["NRestarts"]) == ("active", "0")
        expect(
            f"{unit} is active, never restarted, not root (user {uid})", holds=active and uid != "0"
        )
    device.run("dpkg -P edgemerge")
    gone = device.run("ls -d /opt/edgemerge /var/lib/private/edgemerge /etc/edgemerge", check=False)
    expect("dpkg -P on the running device leaves nothing", holds=gone.count("No such file") == 3)


def main() -> None:
    """Do all of it."""
    if os.geteuid() != 0:
        raise TryError("clean machines need root: run `sudo make deb`")
    if len(sys.argv) > 1:  # a package that was built before
        package = Path(sys.argv[1]).resolve()
    else:
        with tempfile.TemporaryDirectory() as folder:
            package = build(Path(folder))
    began = time.monotonic()
    base()
    print(f"{time.monotonic() - began:6.1f} s  a clean Debian", flush=True)
    try_package(package)
    rows = try_five_commands(package)
    with ROWS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("machine", "command", "seconds"))
        writer.writerows(rows)
    print(f"{sum(seconds for *_, seconds in rows):6.1f} s  in all: {ROWS.relative_to(ROOT)}")


if __name__ == "__main__":
    try:
        main()
    except TryError as error:
        sys.exit(f"FAILED: {error}")
