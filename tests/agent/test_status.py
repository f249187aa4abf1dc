"""What an agent says about itself."""

import errno
import json
from threading import Event

import pytest

from edgemerge.agent.supervisor import run
from tests.agent.agents import INPUTS, Listener, configured, ran, stream, write_rows


def test_what_a_bank_has_put_aside_is_in_the_status(tmp_path):
    write_rows(tmp_path / "pump-1.csv", stream(70))
    told = ran(configured(tmp_path, "learner.kind=bank", "sync.every_s=0"))
    assert told.statuses[-1]["waiting"] == 70 % 32


def test_an_agent_that_tells_nobody_says_so(tmp_path, caplog):
    write_rows(tmp_path / "pump-1.csv", stream(3))
    run(configured(tmp_path, "sync.every_s=0"), stop=Event())
    assert "[[sinks]]" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_an_alarm_names_inputs_as_the_source_does(tmp_path, form):
    rows, names = stream(200), [f"sensor {i}" for i in range(INPUTS)]
    rows[-1, 3] = 9.0
    lines = {
        "csv": [",".join(names), *(",".join(map(repr, row.tolist())) for row in rows)],
        "jsonl": [json.dumps(dict(zip(names, row.tolist(), strict=True))) for row in rows],
    }[form]
    (tmp_path / "named").write_text("\n".join(lines) + "\n", encoding="utf-8")
    source = (f"source.kind={form}", "source.path=named", "source.header=true")
    told = ran(configured(tmp_path, *source, "sync.every_s=0"))
    assert told.verdicts[-1].alarm
    assert told.verdicts[-1].why[0] == "sensor 3"


def test_a_disk_that_is_full_from_the_start_stops_no_detection(tmp_path, monkeypatch):
    def full(*_given):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("edgemerge.agent.state.write_atomically", full)
    write_rows(tmp_path / "pump-1.csv", stream(40))
    listener = Listener()
    code = run(configured(tmp_path, "sync.every_s=0"), stop=Event(), sinks=[listener])
    assert len(listener.verdicts) == 40
    assert "No space left" in listener.statuses[-1]["saved"]
    assert code == 1  # what was learnt is lost, and whoever started it should know
