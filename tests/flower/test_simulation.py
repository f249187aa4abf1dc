"""Flower's simulation, for real: ten nodes, and some that fail."""

import json
import subprocess
import sys

import pytest

from edgemerge import Projection, Stats, load
from tests.flower.engines import EXAMPLE, RUN_S, Engine, app_with, part, readings

SHARED = Projection(n_inputs=8, n_hidden=16, seed=7)
NODES = 10
FAILING = """
from edgemerge import Detector, Projection, save
from edgemerge.flower import client_app
from edgemerge.flower.messages import reply
from flwr.clientapp import ClientApp
from pumps.readings import part

good = client_app(part)
app = ClientApp()

def strange(message, context):
    state = FOLDER + "/stranger"
    pump = Detector(Projection(n_inputs=8, n_hidden=16, seed=99))
    pump.learn(part(0, 1))
    save(pump, state)
    context.node_config = {**context.node_config, "state": state, "device": "stranger"}
    return good(message, context)

def answer(message, context):
    number = context.node_config["partition-id"]
    if number == 7:
        raise RuntimeError("no sensor")
    if number == 8:
        return reply(message, {"format": 1, "device": "mad", "contributions": [bytes(100)]})
    if number == 9:
        return strange(message, context)
    return good(message, context)

app.query("contribute")(answer)
app.query("adopt")(good)
"""


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    with Engine(tmp_path_factory.mktemp("simulation") / "engine", simulation=True) as running:
        yield running


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_nodes_sum_up_what_one_process_sees_and_each_is_told_the_rest(engine, tmp_path):
    told = str(tmp_path / "{device}.safetensors")
    run = engine.submit(nodes=NODES, min_nodes=NODES, out=str(tmp_path), merged_file=told, rounds=2)
    status, said = engine.finish(run, RUN_S)
    assert status == "finished:completed", said
    everything = Stats.of(SHARED, readings())
    assert load(tmp_path / "total.safetensors") == everything
    for i in range(NODES):
        mine = Stats.of(SHARED, part(i, NODES))
        assert load(tmp_path / f"device-{i}.safetensors").total == everything - mine
    assert "6000 samples of 10 devices" in said


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_example_checks_a_hundred_nodes_itself():
    found = subprocess.run(
        [sys.executable, "-B", str(EXAMPLE / "simulate.py"), "100"],
        check=False,
        capture_output=True,
        text=True,
        timeout=2 * RUN_S,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    digest = Stats.of(SHARED, readings()).digest[:16]
    assert f"6000 samples of 100 devices, digest {digest}" in found.stdout
    assert "to the last bit" in found.stdout


@pytest.mark.long
@pytest.mark.timeout(900)
def test_nodes_that_fail_are_named_and_the_rest_is_summed_up(engine, tmp_path):
    app = app_with(tmp_path, FAILING.replace("FOLDER", repr(str(tmp_path))))
    out = tmp_path / "out"
    run = engine.submit(app, nodes=NODES, min_nodes=NODES, out=str(out), rounds=1)
    status, said = engine.finish(run, RUN_S)
    assert status == "finished:completed", said
    good = Stats.total(SHARED, (Stats.of(SHARED, part(i, NODES)) for i in range(7)))
    assert load(out / "total.safetensors") == good
    result = json.loads((out / "result.json").read_text(encoding="utf-8"))
    assert [each["device"] for each in result["devices"]] == [f"device-{i}" for i in range(7)]
    failed = {each["device"]: each["words"] for each in result["failed"]}
    assert "not understood" in failed["mad"]
    assert "build the same Projection" in failed["stranger"]
    assert failed[""].startswith("raised an error (error 2 of Flower: ")
    assert "no sensor" in failed[""]
    assert all(str(each["node"]) in said for each in result["failed"])
