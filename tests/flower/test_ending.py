"""However a run ends, its result says so, and nobody is told a sum that is not exact."""

import json

import pytest

from edgemerge import Contribution, EdgemergeError, Ledger, Stats, encode, load, save
from edgemerge.core.errors import CapacityError, UnavailableError
from edgemerge.exchange.folder import folder_lock
from edgemerge.flower.messages import reply
from edgemerge.flower.server import run
from tests.flower.fleet import SHARED, note, rows
from tests.flower.near import RUN, NearGrid, everything, partitions

HUGE = float(2**52) * SHARED.quantum  # half of what a sum may be


def huge(message, context):
    """Answer with so much that two such answers have no exact sum."""
    number = context.node_config["partition-id"]
    stats = Stats.of(SHARED, rows(number, 1)) * int(0.9 * HUGE)
    data = encode(Contribution(f"device-{number}", stats, 1))
    fields = {"format": 1, "device": f"device-{number}", "revision": 1, "contributions": [data]}
    return reply(message, fields)


def result_in(folder):
    return json.loads((folder / "result.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("ledger", ["", "ledger"])
def test_a_sum_that_would_not_be_exact_ends_the_run_and_is_told(tmp_path, caplog, ledger):
    grid = NearGrid(dict.fromkeys((1, 2, 3), huge), {i: {"partition-id": i} for i in (1, 2, 3)})
    kept = str(tmp_path / ledger) if ledger else ""
    settings = RUN | {"out": str(tmp_path / "out"), "ledger": kept}
    with caplog.at_level("INFO", logger="flwr.edgemerge"), pytest.raises(CapacityError) as error:
        run(grid, settings)
    assert "up to which sums are exact" in str(error.value)
    told = result_in(tmp_path / "out")
    assert told["ended"] == str(error.value)
    assert told["digest"] is None
    assert [each["device"] for each in told["devices"]] == ["device-1", "device-2", "device-3"]
    assert [len(each) for each in told["rounds"]] == [3]
    assert not (tmp_path / "out" / "total.safetensors").exists()
    assert not (tmp_path / "ledger").exists(), "or no later run could begin"
    assert {m.metadata.message_type for m in grid.pushed} == {"query.contribute"}
    assert "3 devices, no exact sum: device-1" in caplog.text


def test_a_run_that_is_killed_leaves_no_result_of_an_earlier_one(tmp_path):
    settings = RUN | {"out": str(tmp_path)}
    run(partitions(2), settings)
    assert result_in(tmp_path)["ended"] == "well"

    class Killed(BaseException):
        """Not an error that anybody catches."""

    def kill(_message, _context):
        assert result_in(tmp_path)["ended"].startswith("not yet")
        raise Killed

    with pytest.raises(Killed):
        run(NearGrid({1: kill}), settings)
    assert result_in(tmp_path)["ended"].startswith("not yet")
    assert not (tmp_path / "total.safetensors").exists()


def test_a_folder_that_cannot_be_written_ends_the_run_before_anybody_is_asked(tmp_path):
    (tmp_path / "out").write_text("a file", encoding="utf-8")
    grid = partitions(2)
    with pytest.raises(FileExistsError):
        run(grid, RUN | {"out": str(tmp_path / "out")})
    assert grid.pushed == []


def test_what_another_run_puts_into_the_ledger_meanwhile_is_not_lost(tmp_path):
    settings = RUN | {"ledger": str(tmp_path / "ledger")}
    grid = partitions(2)
    app = grid.apps[10]

    def meanwhile(message, context):
        if "contribute" in message.metadata.message_type:
            other = Ledger(SHARED)
            other.put(note("elsewhere", 7))
            save(other, tmp_path / "ledger")
        return app(message, context)

    grid.apps[10] = meanwhile
    result = run(grid, settings)
    assert result.total == everything(2) + Stats.of(SHARED, rows(7))
    assert load(tmp_path / "ledger").devices == ["device-0", "device-1", "elsewhere"]


def test_a_ledger_that_another_process_writes_is_waited_for(tmp_path):
    with (
        folder_lock(tmp_path, 1.0),
        pytest.raises(UnavailableError, match="by another process: try again"),
    ):
        run(partitions(1), RUN | {"ledger": str(tmp_path / "ledger")})


def test_a_wrong_setting_ends_the_run_with_words():
    with pytest.raises(EdgemergeError, match="found rounds = 0"):
        run(partitions(1), RUN | {"rounds": 0})
