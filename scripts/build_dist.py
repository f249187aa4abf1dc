"""Build the sdist and the wheels into dist/, try them, and write their bill of materials.

Two wheels: one with the compiled kernel for this machine's platform, one in pure Python for all
others; pip chooses. Both are built from the sdist, twice, and must have equal bytes. They are
installed into clean environments, for each CPython from 3.11 on that this machine has, and with
the oldest and the newest packages that pyproject.toml allows; the README runs in each.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
VERSION: str = PROJECT["version"]
EXTRAS = "server,postgres,mqtt,opcua,modbus"  # what requirements.txt and the Debian package have
NEEDED = {
    "edgemerge/py.typed",
    "edgemerge/embedded/edgemerge.h",
    "edgemerge/server/dashboard/templates/fleet.html",
    "edgemerge/server/dashboard/static/fleet.css",
}
TOP = {  # what the sdist has beside src and deploy
    *("CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "constraints.txt", "hatch_build.py"),
    *("pyproject.toml", "requirements.txt", ".gitignore"),
}
OLDEST_PYTHON = (3, 11)
LOWEST = ("--resolution", "lowest-direct")


class DistError(Exception):
    """What was built is not as it must be."""


def run(
    *words: object, cwd: Path = ROOT, environment: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Run a program; return its output, or raise DistError with all that it said."""
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise DistError(f"{' '.join(map(str, words))} failed:\n{done.stdout}")
    return done.stdout


def step(about: str, action: Callable[[], object]) -> None:
    """Do one step, and print what it is and how long it took."""
    began = time.monotonic()
    action()
    print(f"{time.monotonic() - began:6.1f} s  {about}", flush=True)


def build(out: Path, scratch: Path) -> None:
    """Build the sdist, and both wheels from what is in it."""
    epoch = {"SOURCE_DATE_EPOCH": run("git", "log", "-1", "--format=%ct").strip()}
    builder = (sys.executable, "-m", "build", "--no-isolation", "--outdir", out)
    run(*builder, "--sdist", ROOT, environment=epoch)
    (packed,) = out.glob("*.tar.gz")
    with tarfile.open(packed) as archive:
        archive.extractall(scratch, filter="data")
    sources = scratch / f"edgemerge-{VERSION}"
    for kernel in ("required", "off"):
        run(*builder, "--wheel", sources, environment={"EDGEMERGE_KERNEL": kernel, **epoch})


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file."""
    return {each.name: sha256(each.read_bytes()).hexdigest() for each in folder.iterdir()}


def check_same(dist: Path, scratch: Path) -> None:
    """Build everything again, and compare the bytes."""
    build(scratch / "again", scratch / "sources-again")
    found = digests(scratch / "again")
    if found != digests(dist):
        raise DistError(f"a second build differs: {digests(dist)} and {found}")


def check_contents(dist: Path) -> None:
    """Check that sdist and wheels have all that git has in src, and nothing else."""
    listed = run("git", "ls-files", "src/edgemerge").split()
    sources = {each.removeprefix("src/") for each in listed}
    missing = NEEDED - sources
    if missing:
        raise DistError(f"src has no {sorted(missing)}: correct NEEDED")
    for wheel in dist.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            names = set(archive.namelist())
        about = f"edgemerge-{VERSION}.dist-info/"
        own = {each for each in names if not each.startswith(about)}
        kernel = {each for each in own if each.endswith(".so")}
        if bool(kernel) != ("abi3" in wheel.name):
            raise DistError(f"{wheel.name} has the compiled files {sorted(kernel)}")
        _compare(wheel.name, own - kernel, sources)
        _compare(
            f"{wheel.name}: {about}",
            names - own,
            {f"{about}{each}" for each in ("METADATA", "WHEEL", "RECORD", "entry_points.txt")}
            | {f"{about}licenses/LICENSE"},
        )
    (packed,) = dist.glob("*.tar.gz")
    with tarfile.open(packed) as archive:
        found = {each.name.partition("/")[2] for each in archive if each.isfile()}
    deploy = set(run("git", "ls-files", "deploy").split())
    _compare(packed.name, found, {f"src/{each}" for each in sources} | deploy | TOP)


def _compare(about: str, found: set[str], expected: set[str]) -> None:
    if found != expected:
        raise DistError(
            f"{about} has too much: {sorted(found - expected)}; lacks {sorted(expected - found)}"
        )


def pythons() -> dict[tuple[int, int], str]:
    """Return a CPython of each minor version from 3.11 on that this machine has."""
    folder = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    places = [sys.executable, *(shutil.which(f"python3.{minor}") or "" for minor in range(11, 20))]
    places += [str(each) for each in sorted(folder.glob("3.*/bin/python3"))]
    ask = "import sys; print(sys.implementation.name, *sys.version_info[:2], sys._base_executable)"
    found: dict[tuple[int, int], str] = {}
    for place in filter(None, places):
        done = subprocess.run([place, "-c", ask], capture_output=True, text=True, check=False)
        name, *rest = done.stdout.split() or [""]
        if name == "cpython" and (version := (int(rest[0]), int(rest[1]))) >= OLDEST_PYTHON:
            found.setdefault(version, rest[2])
    return dict(sorted(found.items()))


def requirements(*extras: str) -> list[str]:
    """Return what pyproject.toml asks for, with these extras and those that they name."""
    found: list[str] = list(PROJECT["dependencies"])
    for extra in extras:
        for each in PROJECT["optional-dependencies"][extra]:
            inner = re.fullmatch(r"edgemerge\[(.+)\]", each)
            found += requirements(*inner[1].split(",")) if inner else [each]
    return found


def try_wheel(wheel: Path, python: str, scratch: Path, *options: object, kernel: str) -> Path:
    """Install a wheel into a clean environment, and run the README in it; return its Python.

    First without extras, the Python examples alone; then with those of the server, the whole page.
    The requirements are named beside the wheel, because LOWEST holds for what is named.
    """
    folder = Path(tempfile.mkdtemp(dir=scratch))
    run(BIN / "uv", "venv", "--quiet", "--no-project", "--python", python, folder / "clean")
    clean = folder / "clean" / "bin"
    install = (BIN / "uv", "pip", "install", "--quiet", "--python", clean / "python", *options)
    runner, page = ROOT / "scripts" / "run_page.py", ROOT / "README.md"
    environment = {"EDGEMERGE_KERNEL": kernel, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": ""}
    run(*install, *requirements(), wheel, cwd=folder)
    run(clean / "edgemerge", "--help", cwd=folder, environment=environment)
    run(clean / "python", runner, "--python", page, cwd=folder, environment=environment)
    run(*install, *requirements(*EXTRAS.split(",")), f"{wheel}[{EXTRAS}]", cwd=folder)
    run(clean / "python", runner, page, cwd=folder, environment=environment)
    return clean / "python"


def versions(python: Path, *names: str) -> str:
    """Return the versions of packages in an environment, for people to read."""
    ask = "import sys; from importlib.metadata import version as v; print(*map(v, sys.argv[1:]))"
    found = run(python, "-c", ask, *names).split()
    return ", ".join(f"{name} {each}" for name, each in zip(names, found, strict=True))


def write_bill(python: Path, file: Path) -> None:
    """Write the software bill of materials (CycloneDX) of an environment, without addresses."""
    text = run(
        *(BIN / "cyclonedx-py", "environment", python, "--pyproject", ROOT / "pyproject.toml"),
        *("--output-format", "JSON", "--output-reproducible"),
    )
    bill = without_addresses(json.loads(text[text.index("{") :]))
    packed = json.dumps(bill, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    found = set(re.findall(r"\w+://[^/\"\s]+", packed)) - {"http://cyclonedx.org"}
    if found:
        raise DistError(f"the bill of materials names {sorted(found)}")
    file.write_text(packed, encoding="utf-8")


def without_addresses(value: Any) -> Any:
    """Leave out all references to other places: an address says where this machine got a file."""
    if isinstance(value, dict):
        kept = {key: each for key, each in value.items() if key != "externalReferences"}
        return {key: without_addresses(each) for key, each in kept.items()}
    return [without_addresses(each) for each in value] if isinstance(value, list) else value


def main() -> None:
    """Build into dist/, which is emptied first, and check."""
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    constraints = ("--constraints", ROOT / "constraints.txt")
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        step("built sdist and wheels", lambda: build(dist, scratch / "sources"))
        step("a second build has the same bytes", lambda: check_same(dist, scratch))
        step("contents", lambda: check_contents(dist))
        step("twine check", lambda: run(BIN / "twine", "check", "--strict", *dist.iterdir()))
        (wheel,), (pure,) = dist.glob("*abi3*.whl"), dist.glob("*none-any.whl")
        found = pythons()
        tries: list[tuple[Path, tuple[int, int], str, tuple[object, ...], str]] = [
            (wheel, each, "the versions of constraints.txt", constraints, "required")
            for each in found
        ]
        oldest, newest = min(found), max(found)
        tries += [
            (wheel, oldest, "the oldest packages", LOWEST, "required"),
            (wheel, newest, "the newest packages", (), "required"),
            (pure, oldest, "the pure wheel", constraints, "off"),
        ]
        used = {}
        for what, version, about, options, kernel in tries:
            label = f"Python {version[0]}.{version[1]} with {about}"
            began = time.monotonic()
            used[about] = try_wheel(what, found[version], scratch, *options, kernel=kernel)
            shown = versions(used[about], "numpy", "scipy", "click", "rich", "fastapi", "uvicorn")
            print(f"{time.monotonic() - began:6.1f} s  {label}: {shown}", flush=True)
        bill = dist / f"edgemerge-{VERSION}.cdx.json"
        step("bill of materials", lambda: write_bill(used["the pure wheel"], bill))
        write_bill(used["the pure wheel"], scratch / "again.json")
        if bill.read_bytes() != (scratch / "again.json").read_bytes():
            raise DistError("a second bill of materials differs")
    for each in sorted(dist.iterdir()):
        print(f"{each.stat().st_size:>10,}  dist/{each.name}")


if __name__ == "__main__":
    try:
        main()
    except DistError as error:
        sys.exit(f"FAILED: {error}")
