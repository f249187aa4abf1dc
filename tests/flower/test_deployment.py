"""Flower's deployment engine, for real: nodes killed or silent; too few; TLS and keys."""

import json
import subprocess
import sys

import pytest

from edgemerge import Projection, Stats, load
from tests.flower.engines import EXAMPLE, RUN_S, Engine, app_with, kill, part, wait_for

SHARED = Projection(n_inputs=8, n_hidden=16, seed=7)
NODES = list(enumerate(["good", "killed", "silent"]))
DYING = """
from pathlib import Path
from time import sleep

from edgemerge.flower import client_app
from pumps.readings import part

def slow(number, parts):
    if number == 1:
        Path(MARK).touch()
    if number > 0:
        sleep(300)
    return part(number, parts)

app = client_app(slow)
"""


def result_in(folder):
    return json.loads((folder / "result.json").read_text(encoding="utf-8"))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_nodes_that_are_killed_or_never_answer_are_named_and_the_rest_goes_on(tmp_path):
    mark, out, few = tmp_path / "answering", tmp_path / "out", tmp_path / "few"
    app = app_with(tmp_path, DYING.replace("MARK", repr(str(mark))))
    with Engine(tmp_path / "engine", secure=False) as engine:
        nodes = [engine.supernode(name, partition_id=i, num_partitions=3) for i, name in NODES]
        run = engine.submit(app, min_nodes=3, rounds=1, timeout_s=40.0, out=str(out))
        wait_for(mark.exists, RUN_S, "the node is not asked")
        kill(nodes[1])
        status, said = engine.finish(run, RUN_S)
        again = engine.submit(app, min_answers=2, rounds=1, timeout_s=10.0, out=str(few))
        ended, why = engine.finish(again, RUN_S)
    assert status == "finished:completed", said
    assert load(out / "total.safetensors") == Stats.of(SHARED, part(0, 3))
    result = result_in(out)
    assert [each["device"] for each in result["devices"]] == ["device-0"]
    assert len(result["failed"]) == 2
    for failed in result["failed"]:
        assert failed["words"].startswith(("no answer within 40 s", "went away"))
        assert failed["node"] in said
    assert result["not_adopted"] == {}
    assert ended == "finished:failed", why
    assert "answers that count, expected 2 or more by min-answers" in result_in(few)["ended"]
    assert "no answer within 10 s" in result_in(few)["ended"]
    assert not (few / "total.safetensors").exists()


@pytest.mark.long
@pytest.mark.timeout(900)
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
