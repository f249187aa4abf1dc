"""Both apps together: rounds, restarts, failures, and what is said at the end."""

import json
import logging

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from edgemerge import Detector, EdgemergeError, Ledger, Projection, Stats, load, save
from edgemerge.flower import client_app, server_app
from edgemerge.flower.messages import fields_of, reply, request
from edgemerge.flower.server import run
from tests.flower.fleet import OTHER, SHARED, rows
from tests.flower.near import RUN, NearGrid, everything, partitions


def pumps(folder, count):
    """Give a grid of nodes with a detector in a file each, and the files."""
    states = [folder / f"pump-{i}.safetensors" for i in range(count)]
    for i, state in enumerate(states):
        pump = Detector(SHARED)
        pump.learn(rows(i))
        save(pump, state)
    configs = {
        10 + i: {"device": f"pump-{i}", "state": str(s), "gate": 2} for i, s in enumerate(states)
    }
    return NearGrid({node: client_app() for node in configs}, configs), states


@pytest.mark.parametrize("rounds", [1, 3])
def test_the_sum_is_that_of_one_process_after_any_number_of_rounds(rounds):
    result = run(partitions(5), RUN | {"rounds": rounds})
    assert result.total == everything(5)
    assert len(result.rounds) == rounds
    assert [s.words for s in result.last] == ([""] if rounds == 1 else ["as before"]) * 5


def test_every_detector_knows_what_all_have_seen_afterwards(tmp_path):
    grid, states = pumps(tmp_path, 4)
    result = run(grid, RUN | {"rounds": 2})
    assert result.not_adopted == {}
    for i, state in enumerate(states):
        after = load(state)
        assert after.own == Stats.of(SHARED, rows(i))
        assert after.own + after.others == everything(4)


def test_what_is_learnt_between_runs_is_in_the_next_sum(tmp_path):
    grid, states = pumps(tmp_path, 3)
    settings = RUN | {"ledger": str(tmp_path / "ledger")}
    first = run(grid, settings)
    pump = load(states[0])
    pump.learn(rows(9))
    save(pump, states[0])
    again = NearGrid({k + 70: v for k, v in grid.apps.items()})  # other ids, as after a restart
    again.contexts = {node + 70: context for node, context in grid.contexts.items()}
    second = run(again, settings)
    assert second.total == first.total + Stats.of(SHARED, rows(9))
    assert [s.words for s in second.last] == ["", "as before", "as before"]
    assert load(states[1]).others == second.total - Stats.of(SHARED, rows(1))


def test_few_new_samples_are_held_back_in_the_next_run_and_the_device_stays_in_the_sum(tmp_path):
    first = run(pumps(tmp_path, 2)[0], RUN)
    grid, states = pumps(tmp_path, 2)  # as they were, and nothing of the run before is known
    pump = load(states[0])
    pump.learn(rows(9, 1))
    save(pump, states[0])
    second = run(grid, RUN | {"on-failure": "stop", "min-answers": 2})
    assert second.total == first.total
    assert second.last[0].words == "held back: normal: 1 of 8 samples"


def test_a_device_that_is_away_stays_in_a_ledger_that_is_kept(tmp_path):
    settings = RUN | {"ledger": str(tmp_path / "ledger")}
    run(partitions(3), settings)
    assert run(partitions(2), settings).total == everything(3)
    assert run(partitions(2), RUN).total == everything(2)
    only = run(partitions(2), settings | {"devices": "device-0,device-1"})
    assert only.total == everything(2)
    assert load(tmp_path / "ledger").devices == ["device-0", "device-1"]


def test_a_ledger_of_another_kind_or_projection_is_refused(tmp_path):
    save(SHARED, tmp_path / "shared")
    with pytest.raises(EdgemergeError, match="shared is not a ledger: name another file"):
        run(partitions(1), RUN | {"ledger": str(tmp_path / "shared")})
    save(Ledger(OTHER), tmp_path / "other")
    with pytest.raises(EdgemergeError, match="every device must build the same Projection"):
        run(partitions(1), RUN | {"ledger": str(tmp_path / "other")})


def test_sums_that_fall_are_refused_only_if_asked(tmp_path):
    settings = RUN | {"ledger": str(tmp_path / "ledger")}
    run(partitions(1), settings)
    few = {10: {"partition-id": 0, "gate": 1}}
    other = NearGrid({10: client_app(lambda _number, _parts: rows(5))}, few)
    with pytest.raises(EdgemergeError, match="since its last revision: without forgetting"):
        run(other, settings | {"no-forgetting": True})
    assert run(other, settings).total == Stats.of(SHARED, rows(5))


def garbage(message, _context):
    return reply(message, {"format": 1, "device": "mad", "contributions": [b"\x00" * 50]})


def silent(_message, _context):
    return None


def stranger(folder):
    pump = Detector(Projection(n_inputs=3, n_hidden=4, seed=99))
    pump.learn(rows(1))
    save(pump, folder / "stranger")
    app = client_app()
    context = Context(1, 0, {"device": "odd", "state": str(folder / "stranger")}, RecordDict(), {})
    return lambda message, _context: app(message, context)


def troubled(folder):
    """Give a grid of three good nodes and four that fail in different ways."""
    grid = partitions(3)
    lost = client_app()
    away = Context(1, 0, {"device": "lost", "state": str(folder / "nothing")}, RecordDict(), {})
    apps = {90: garbage, 91: silent, 92: stranger(folder)}
    apps[93] = lambda message, _context: lost(message, away)
    grid.apps |= apps
    grid.contexts |= dict.fromkeys(apps, away)
    return grid


def test_nodes_that_fail_are_named_and_the_rest_goes_on(tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="flwr.edgemerge"):
        result = run(troubled(tmp_path), RUN | {"out": str(tmp_path / "out"), "rounds": 2})
    assert result.total == everything(3)
    failed = {s.node: (s.device, s.words) for s in result.failed}
    assert failed[90][0] == "mad"
    assert "not understood" in failed[90][1]
    assert failed[91] == ("", "no answer within 0.2 s")
    assert failed[92][0] == "odd"
    assert "seed 99" in failed[92][1]
    assert failed[93][0] == "lost"
    assert "No such file" in failed[93][1]
    assert str(tmp_path / "nothing") in failed[93][1]
    said = " ".join(record.getMessage() for record in caplog.records)
    assert all(str(node) in said for node in (90, 91, 92, 93))
    assert "120 samples of 3 devices" in said
    told = json.loads((tmp_path / "out" / "result.json").read_text(encoding="utf-8"))
    assert [each["device"] for each in told["devices"]] == [f"device-{i}" for i in range(3)]
    assert load(tmp_path / "out" / "total.safetensors") == everything(3)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"min-answers": 4}, "found 3 answers that count, expected 4 or more by min-answers"),
        ({"on-failure": "stop"}, "stopped by on-failure"),
    ],
)
def test_a_run_ends_as_configured_and_nobody_is_told_anything(tmp_path, setting, words):
    grid = troubled(tmp_path)
    settings = RUN | setting | {"out": str(tmp_path / "out"), "ledger": str(tmp_path / "ledger")}
    with pytest.raises(EdgemergeError) as error:
        run(grid, settings)
    assert words in str(error.value)
    assert "node 91 (?): no answer within 0.2 s" in str(error.value)
    assert "node 90 (mad): not understood" in str(error.value)
    assert {m.metadata.message_type for m in grid.pushed} == {"query.contribute"}
    assert not (tmp_path / "ledger").exists()
    told = json.loads((tmp_path / "out" / "result.json").read_text(encoding="utf-8"))
    assert told["ended"] == str(error.value)
    assert not (tmp_path / "out" / "total.safetensors").exists()


def test_an_error_that_is_not_ours_ends_the_run_too(tmp_path):
    grid = partitions(1)
    grid.pull_messages = lambda _ids: 1 / 0
    with pytest.raises(ZeroDivisionError):
        run(grid, RUN | {"out": str(tmp_path)})
    told = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert told["ended"] == "division by zero"


def test_too_few_nodes_end_the_run():
    with pytest.raises(EdgemergeError, match=r"found 1 nodes within 0\.2 s, expected 2"):
        run(partitions(1), RUN | {"min-nodes": 2})


def test_a_device_that_dies_between_the_two_messages_is_in_the_sum_and_named():
    grid = partitions(2)
    app = grid.apps[10]
    grid.apps[10] = lambda m, c: app(m, c) if "contribute" in m.metadata.message_type else None
    result = run(grid, RUN)
    assert result.total == everything(2)
    assert result.not_adopted == {10: "no answer within 0.2 s"}


def test_a_device_that_cannot_adopt_says_why(tmp_path):
    grid, states = pumps(tmp_path, 2)
    app = grid.apps[10]

    def forgetful(message, context):
        if "adopt" in message.metadata.message_type:
            states[0].unlink()
        return app(message, context)

    grid.apps[10] = forgetful
    result = run(grid, RUN)
    assert "No such file" in result.not_adopted[10]
    assert 11 not in result.not_adopted


def test_who_is_held_back_is_neither_in_the_sum_nor_a_failure(tmp_path):
    grid, _ = pumps(tmp_path, 2)
    grid.contexts[10].node_config["gate"] = 100
    result = run(grid, RUN | {"on-failure": "stop"})
    assert result.total == Stats.of(SHARED, rows(1))
    assert result.last[0].state == "held back"
    assert "40 of 400 samples" in result.last[0].words


def test_a_node_without_a_name_is_told_what_to_write():
    grid = partitions(1)
    grid.apps[99] = client_app()
    grid.contexts[99] = Context(1, 99, {}, RecordDict(), {})
    result = run(grid, RUN)
    assert "--node-config" in result.failed[0].words


def test_a_server_of_another_version_is_answered_with_words():
    grid = partitions(1)
    message = request(10, "contribute", {"format": 2}, 5.0)
    grid.push_messages([message])
    [found] = grid.waiting.values()
    assert "found format 2, expected 1" in fields_of(found)["problem"]


def test_the_server_app_runs_with_the_settings_of_the_run(tmp_path):
    settings = RUN | {"out": str(tmp_path)}
    server_app()(partitions(2), Context(1, 1, {}, RecordDict(), settings))
    assert load(tmp_path / "total.safetensors") == everything(2)


def test_settings_of_the_run_reach_nodes_that_have_none(tmp_path):
    np.save(tmp_path / "0.npy", rows(0))
    grid = NearGrid({10: client_app()}, {10: {"partition-id": 0}})
    grid.contexts[10].run_config = {
        "data": str(tmp_path / "{partition}.npy"),
        "state": "",
        "gate": 2,
    }
    assert run(grid, RUN).total == everything(1)
