"""Flower's deployment engine, for real: a node killed while it answers; TLS and keys."""

import json
import subprocess
import sys

import pytest

from edgemerge import Projection, Stats, load
from tests.flower.engines import EXAMPLE, RUN_S, Engine, app_with, kill, part, wait_for

SHARED = Projection(n_inputs=8, n_hidden=16, seed=7)
DYING = """
from pathlib import Path
from time import sleep

from edgemerge.flower import client_app
from pumps.readings import part

def slow(number, parts):
    if number == 1:
        Path(MARK).touch()
        sleep(300)
    return part(number, parts)

app = client_app(slow)
"""


@pytest.mark.slow
def test_a_node_that_is_killed_while_it_answers_is_named_and_the_other_is_summed_up(tmp_path):
    mark, out = tmp_path / "answering", tmp_path / "out"
    app = app_with(tmp_path, DYING.replace("MARK", repr(str(mark))))
    with Engine(tmp_path / "engine", secure=False) as engine:
        engine.supernode("a", partition_id=0, num_partitions=2)
        dying = engine.supernode("b", partition_id=1, num_partitions=2)
        run = engine.submit(app, min_nodes=2, rounds=1, timeout_s=40.0, out=str(out))
        wait_for(mark.exists, RUN_S, "the node is not asked")
        kill(dying)
        status, said = engine.finish(run, RUN_S)
    assert status == "finished:completed", said
    assert load(out / "total.safetensors") == Stats.of(SHARED, part(0, 2))
    result = json.loads((out / "result.json").read_text(encoding="utf-8"))
    assert [each["device"] for each in result["devices"]] == ["device-0"]
    [failed] = result["failed"]
    assert failed["words"].startswith(("no answer within 40 s", "went away"))
    assert str(failed["node"]) in said
    assert result["not_adopted"] == {}


@pytest.mark.slow
def test_the_example_runs_with_tls_and_keys_and_checks_itself():
    found = subprocess.run(
        [sys.executable, "-B", str(EXAMPLE / "deploy.py")],
        check=False,
        capture_output=True,
        text=True,
        timeout=2 * RUN_S,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert "6000 samples of 3 devices" in found.stdout
    assert "to the last bit" in found.stdout
