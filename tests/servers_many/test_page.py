"""The commands of the how-to page do what it says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.services.nginx import EXAMPLE
from tests.services.ports import free_port

PAGE = (Path(__file__).parents[2] / "docs/how-to/several-servers.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```bash\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
PORTS = "8471 8472 8473 8474"
ADDRESS = "postgresql://edgemerge@db.example/edgemerge"


@pytest.mark.long
@pytest.mark.slow
def test_the_servers_of_the_page_start_and_get_ready(tmp_path, fresh_postgres_url):
    start, ready = (
        next(block for block in BLOCKS if words in block) for words in ("export DATABASE", "readyz")
    )
    assert ADDRESS in start
    assert PORTS in start
    assert PORTS in ready
    script = f"{start}{ready}kill $(jobs -p); wait\n"
    script = script.replace(PORTS, f"{free_port()} {free_port()}")
    script = script.replace(ADDRESS, fresh_postgres_url)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.split() == ['{"status":"ready","detail":null}'] * 2, done.stderr
    assert (tmp_path / "admin.token").exists()


def test_the_page_and_the_example_for_nginx_name_the_same_ports():
    found = re.findall(r"^    server 127\.0\.0\.1:(\d+) ", EXAMPLE.read_text(), re.MULTILINE)
    assert found == PORTS.split()


@pytest.mark.parametrize("words", re.findall(r"^\| `([^`]+)`", PAGE, re.MULTILINE))
def test_what_the_page_explains_stands_in_the_example(words):
    for part in words.split(" … "):
        assert part in EXAMPLE.read_text(), part
