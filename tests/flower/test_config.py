"""Settings are checked with words that say what was found and what to write instead."""

from pathlib import Path

import pytest

from edgemerge import Contribution, Detector, EdgemergeError, Ledger, Projection, Stats, save
from edgemerge.flower.config import NodeConfig, ServerConfig, projection_from_settings


def test_a_run_has_defaults():
    assert ServerConfig.of({}) == ServerConfig()
    assert ServerConfig.of({"devices": "", "ledger": "", "out": "", "on-failure": ""}) == (
        ServerConfig()
    )


def test_a_run_says_how_it_goes():
    said = {"rounds": 3, "min-nodes": 4, "min-answers": 2, "timeout-s": 5, "on-failure": "stop"}
    said |= {"devices": "a, b,", "no-forgetting": True, "ledger": "l.safetensors", "out": "out"}
    assert ServerConfig.of(said) == ServerConfig(
        3,
        4,
        2,
        5.0,
        "stop",
        ("a", "b"),
        no_forgetting=True,
        ledger=Path("l.safetensors"),
        out=Path("out"),
    )


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"rounds": 0}, "found rounds = 0, expected a whole number of 1 or more"),
        ({"min-nodes": 1.5}, "found min-nodes = 1.5, expected a whole number of 1"),
        ({"min-answers": True}, "found min-answers = True, expected a whole number"),
        ({"timeout-s": 0}, "found timeout-s = 0, expected a time in seconds"),
        ({"timeout-s": "5"}, "found timeout-s = '5', expected a number"),
        ({"timeout-s": float("inf")}, "found timeout-s = inf, expected a number"),
        ({"on-failure": "halt"}, "found on-failure = 'halt', expected one of go-on, stop"),
        ({"devices": 3}, "found devices = 3, expected text in quotes"),
        ({"devices": "a\n,b\x00"}, "found device 'b"),
        ({"no-forgetting": "no"}, "found no-forgetting = 'no', expected true or false"),
        ({"growing": "no"}, "found growing = 'no', expected true or false"),
    ],
)
def test_a_wrong_setting_of_a_run_is_told(said, words):
    with pytest.raises(EdgemergeError) as error:
        ServerConfig.of(said)
    assert words in str(error.value)


def test_former_names_of_settings_still_work():
    assert ServerConfig.of({"growing": True}) == ServerConfig(no_forgetting=True)
    node, run = {"device": "a", "told": "others"}, {"merged-file": ""}
    assert NodeConfig.of(node, run) == NodeConfig("a", merged_file=Path("others"))


def test_a_node_comes_first_and_the_run_second():
    node = {"device": "pump 3", "state": "/var/{device}.safetensors", "incarnation": 2}
    run = {"device": "x", "data": "", "gate": 4, "merged-file": "others/{device}.safetensors"}
    assert NodeConfig.of(node, run) == NodeConfig(
        "pump 3",
        state=Path("/var/pump%203.safetensors"),
        merged_file=Path("others/pump%203.safetensors"),
        incarnation=2,
        gate=4.0,
    )


def test_a_node_of_a_simulation_is_named_by_its_partition():
    found = NodeConfig.of({"partition-id": 3, "num-partitions": "10"}, {"data": "{partition}.npy"})
    assert (found.device, found.partition, found.partitions) == ("device-3", 3, 10)
    assert found.data == Path("3.npy")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({}, "start it with --node-config 'device=\"pump-3\"'"),
        ({"device": "a", "state": "s", "data": "d"}, "found both `state` and `data`"),
        ({"device": "a", "incarnation": -1}, "found incarnation = -1, expected"),
        ({"device": "a", "gate": -1}, "found gate = -1, expected a number of 0 or more"),
        ({"device": "a", "data": "{partition}.npy"}, "in which only {device} can be named"),
        ({"partition-id": 1, "data": "{x}"}, "only {device} and {partition} can be named"),
        ({"partition-id": 1, "data": "{"}, "only {device} and {partition} can be named"),
        ({"partition-id": 1, "data": "{}"}, "only {device} and {partition} can be named"),
        ({"partition-id": "x"}, "found partition-id = 'x', expected a whole number"),
    ],
)
def test_a_wrong_setting_of_a_node_is_told(said, words):
    with pytest.raises(EdgemergeError) as error:
        NodeConfig.of(said, {})
    assert words in str(error.value)


def test_a_projection_is_built_from_settings():
    said = {"projection": "", "n-inputs": 3, "n-hidden": 4, "seed": 1, "low": "-1,-2,-3"}
    said |= {"high": 3.0, "activation": "sigmoid"}
    expected = Projection(
        n_inputs=3, n_hidden=4, seed=1, low=[-1, -2, -3], high=3.0, activation="sigmoid"
    )
    assert projection_from_settings(said) == expected


def test_a_projection_is_taken_from_a_file_of_any_kind(tmp_path):
    shared = Projection(n_inputs=3, n_hidden=4, seed=9)
    stats = Stats.of(shared, [[0.1, 0.2, 0.3]])
    for thing in (shared, Detector(shared), Ledger(shared), stats, Contribution("a", stats, 1)):
        save(thing, tmp_path / "thing")
        assert projection_from_settings({"projection": str(tmp_path / "thing")}) == shared


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({}, "set `projection` to a file of any device, or `n-inputs`"),
        ({"n-inputs": 2, "low": "a,b"}, "found low = 'a,b', expected numbers with commas"),
        ({"n-inputs": -2}, "n_inputs"),
    ],
)
def test_a_wrong_projection_is_told(said, words):
    with pytest.raises(EdgemergeError) as error:
        projection_from_settings(said)
    assert words in str(error.value)
