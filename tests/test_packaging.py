"""What is installed, and how people are told to install it."""

import csv
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from build_dist import EXTRAS, requirements, without_addresses

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REQUIREMENTS = (ROOT / "requirements.txt").read_text(encoding="utf-8")
# edgemerge is in no package index: a line that installs it by its name fails, or gets another one.
BY_NAME = re.compile(
    r"""\b(?:pip3?|pipx|uv\ tool|apt|apt-get)\ install(?!.*--no-index)(?:\s+-\S+|\s+\S+\.txt)*
    \s+['"]?edgemerge(?=[\[\s'"`=<>~]|$)
    |\b(?:uv\ add|install)\ ['"]?edgemerge\[""",
    re.VERBOSE,
)
TEXTS = {".md", ".py", ".html", ".toml", ".c", ".h", ".service", ".yml", ".example", ""}


def texts():
    for top in ("src", "docs", "deploy", "examples", "scripts", "tests", "benchmarks"):
        yield from (ROOT / top).rglob("*")
    yield from ROOT.glob("*")


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(text: str) -> dict[str, str]:
    found = re.findall(r"^([\w.-]+)(?:\[[\w,-]+\])?==([\w.+!-]+)", text, re.MULTILINE)
    return {normal(name): version for name, version in found}


@pytest.mark.slow
def test_no_page_and_no_message_installs_edgemerge_by_a_name_that_is_not_published():
    found = []
    for path in texts():
        hidden = {"_build", "__pycache__", ".venv"} & set(path.parts)
        if path.is_file() and path.suffix in TEXTS and not hidden and path != Path(__file__):
            text = path.read_bytes().decode(errors="replace")
            found += [f"{path.relative_to(ROOT)}: {each[0]}" for each in BY_NAME.finditer(text)]
    assert not found, "write `pip install '.[extra]'`, in a checkout, or name a built wheel"


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("pip install edgemerge", True),
        ("/opt/edgemerge/bin/pip install 'edgemerge[server]'", True),
        ('pip install -U "edgemerge>=1"', True),
        ("install edgemerge[tls], or", True),
        ("pip install '.[server]' in a checkout of edgemerge", False),
        ("pip install dist/edgemerge-0.1.0-py3-none-any.whl", False),
        ("pip install --no-index --find-links /dist edgemerge", False),
        ("pip install -c constraints.txt 'edgemerge[dask]'", True),
        ("apt install edgemerge", True),
        ("apt install ./edgemerge_0.1.0_amd64.deb", False),
    ],
)
def test_a_line_that_installs_by_name_is_recognised(line, wrong):
    assert bool(BY_NAME.search(line)) is wrong


def test_hashed_requirements_have_the_tested_versions():
    tested = pinned((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    hashed = pinned(REQUIREMENTS)
    assert len(hashed) > 15
    assert {name: tested.get(name) for name in hashed} == hashed, "run `make lock`"


def test_hashed_requirements_have_all_that_the_extras_need():
    found = requirements(*EXTRAS.split(","))
    names = {normal(re.split(r"[^\w.-]", each)[0]) for each in found}
    assert names >= {"numpy", "fastapi", "cryptography", "psycopg", "paho-mqtt"}
    assert names <= set(pinned(REQUIREMENTS)), "run `make lock`"


def test_every_hashed_requirement_has_a_hash_and_none_an_address():
    blocks = re.split(r"\n(?=\w)", REQUIREMENTS)[1:]
    assert len(blocks) == len(pinned(REQUIREMENTS))
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}\b", block) for block in blocks)
    assert "://" not in REQUIREMENTS
    assert "index" not in REQUIREMENTS


def test_only_systems_that_were_tried_are_promised():
    systems = [each for each in PROJECT["classifiers"] if each.startswith("Operating System")]
    assert systems == ["Operating System :: POSIX :: Linux"]


def test_the_page_shows_the_five_commands_that_were_timed():
    page = (ROOT / "docs/how-to/install.md").read_text(encoding="utf-8").replace(" \\\n   ", "")
    rows = csv.DictReader((ROOT / "docs/results/install.csv").read_text().splitlines())
    *commands, last = [row["command"] for row in rows]
    shown = re.findall(r"```bash\n(.*?)```", page.split("## 32-bit")[0], re.DOTALL)
    assert [line for block in shown for line in block.splitlines()] == commands
    assert (len(commands), last) == (5, "until it watches")


def test_addresses_are_left_out_of_the_bill_of_materials():
    reference = {"externalReferences": [{"url": "https://a.example/x"}]}
    bill = {"components": [{"name": "numpy", **reference}], "metadata": reference}
    assert without_addresses(bill) == {"components": [{"name": "numpy"}], "metadata": {}}


def test_requirements_are_found_through_extras_that_name_extras():
    found = {re.split(r"[^\w-]", each)[0] for each in requirements("postgres")}
    assert found == {
        *("click", "cryptography", "fastapi", "jinja2", "numpy", "prometheus-client", "psycopg"),
        *("rich", "scipy", "uvicorn"),
    }


@pytest.mark.parametrize("name", ["postinst", "prerm", "postrm"])
def test_a_script_of_the_package_is_sound_and_starts_nothing_new(name):
    path = ROOT / "deploy" / "deb" / name
    subprocess.run(["sh", "-n", path], check=True)
    text = path.read_text(encoding="utf-8")
    assert text.startswith("#!/bin/sh\n")
    assert "\nset -e\n" in text
    assert not re.search(r"systemctl (start|enable|restart)", text)


def test_every_unit_is_in_the_package_and_stopped_when_it_is_removed():
    daemons = {path.stem for path in (ROOT / "deploy").glob("*.service")} - {"edgemerge-enrol@"}
    stopped = (ROOT / "deploy/deb/prerm").read_text(encoding="utf-8")
    assert daemons == {"edgemerge-server", "edgemerge-server@", "edgemerge-agent@"}
    assert all(f"'{each.replace('@', '@*')}.service'" in stopped for each in daemons)
