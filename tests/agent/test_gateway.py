"""Several devices in one process: configuration, equality with single agents, and failures."""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from threading import Event, Thread

import pytest

from edgemerge.agent import supervisor
from edgemerge.agent.config import Config, GatewayConfig, read_config, read_configuration
from edgemerge.agent.control import send_command
from edgemerge.agent.state import STATE_FILE
from edgemerge.agent.supervisor import run, run_device, run_gateway
from edgemerge.cli.group import exit_code
from edgemerge.core.errors import SettingError, UnavailableError
from edgemerge.daemon import JsonFormatter, TextFormatter
from tests.agent.agents import INPUTS, stream, write_rows
from tests.cli.calls import call
from tests.waiting import DEADLINE_S, until

SHARED = f"""
state = "state"
[projection]
n_inputs = {INPUTS}
n_hidden = 8
seed = 7
[source]
kind = "csv"
path = "{{device}}.csv"
header = false
[learner]
kind = "detector"
[monitor]
commissioning = 100
[save]
every = 50
[[sinks]]
kind = "file"
path = "{{device}}.jsonl"
"""
PUMPS = ("pump-1", "pump-2", "pump-3")


def entries(*names):
    return "".join(f'\n[[devices]]\ndevice = "{name}"\n' for name in names)


def written(folder: Path, text: str) -> Path:
    path = folder / "hall.toml"
    path.write_text(text, encoding="utf-8")
    return path


def configured(folder: Path, text: str, *overrides: str) -> GatewayConfig:
    found = read_configuration(written(folder, text), environment={}, overrides=overrides)
    assert isinstance(found, GatewayConfig)
    return found


def feed(folder: Path, rows: int = 300) -> None:
    for number, name in enumerate(PUMPS):
        samples = stream(rows, seed=number, place=0.1 * number)
        samples[-30:] += 0.5  # an episode
        write_rows(folder / f"{name}.csv", samples)


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(SettingError) as told:
        read_configuration(written(folder, text), environment={})
    return str(told.value)


# ---------------------------------------------------------------- the configuration


def test_each_device_has_what_is_shared_and_what_is_its_own(tmp_path):
    own = '\n[[devices]]\ndevice = "fan"\n[devices.source]\ncolumns = ["3"]\nkind = "tail"\n'
    found = configured(tmp_path, SHARED + entries("pump-1") + own)
    pump, fan = found.devices
    assert found.state == tmp_path / "state"
    assert (pump.device, pump.state) == ("pump-1", tmp_path / "state/pump-1")
    assert (fan.device, fan.state) == ("fan", tmp_path / "state/fan")
    assert (pump.source.kind, pump.source.columns) == ("csv", ())
    assert (fan.source.kind, fan.source.columns, fan.source.header) == ("tail", ("3",), False)
    assert pump.projection == fan.projection
    assert pump.source.path == tmp_path / "pump-1.csv"
    assert fan.sinks[0].path == tmp_path / "fan.jsonl"


def test_the_name_of_the_device_is_put_in_wherever_a_text_has_it(tmp_path):
    text = SHARED.replace("[learner]", 'topic = "plant/{device}/raw"\n[learner]')
    text += (
        '\n[[sinks]]\nkind = "webhook"\nurl = "http://x/{device}"\ntemplate = "${device}: $text"'
    )
    (found,) = configured(tmp_path, text + entries("pump-1")).devices
    assert found.source.topic == "plant/pump-1/raw"
    assert found.sinks[1].url == "http://x/pump-1"
    assert found.sinks[1].template == "${device}: $text"


def test_flags_go_over_what_is_shared_and_over_what_is_a_devices_own(tmp_path):
    own = '\n[[devices]]\ndevice = "fan"\nsource.kind = "tail"\n'
    text = SHARED + entries("pump-1") + own
    flags = "source.kind=jsonl", "devices.0.source.path=other.csv"
    pump, fan = configured(tmp_path, text, *flags).devices
    assert (pump.source.kind, fan.source.kind) == ("jsonl", "jsonl")
    assert (pump.source.path, fan.source.path) == (tmp_path / "other.csv", tmp_path / "fan.csv")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SHARED + entries("a", "b", "a"), "two devices named a"),
        (SHARED + entries("pump 1"), r"devices.0.device = 'pump 1'"),
        (SHARED + "[[devices]]\n", "devices.0.device = None"),
        ('device = "a"' + SHARED + entries("b"), "`device` above [[devices]]"),
        (SHARED.replace('state = "state"', "") + entries("a"), "does not set `state`"),
        (SHARED + entries("a") + '[devices.log]\nlevel = "debug"', "all devices share one [log]"),
        (SHARED + entries("a") + "sourc.path = 'x'", "device a: Unknown key 'sourc'"),
        (SHARED + entries("a") + "source.pth = 'x'", "Did you mean 'source.path'?"),
        ("devices = 3\n" + SHARED, "expected [[devices]] tables"),
        ("devices = []\n" + SHARED, "expected [[devices]] tables"),
        (SHARED + entries("a", "b") + "state = 'state/a'", "a and b in"),
        (SHARED.replace("{device}.jsonl", "all.jsonl") + entries("a", "b"), "the same sinks.path"),
        (SHARED.replace('"csv"', '"stdin"') + entries("a", "b"), "the same source, standard input"),
    ],
)
def test_what_does_not_fit_together_is_refused_with_words(tmp_path, text, words):
    assert words in refusal(tmp_path, text)


def test_a_file_of_one_device_is_still_one(tmp_path):
    path = written(tmp_path, 'device = "a"' + SHARED)
    assert isinstance(read_configuration(path, environment={}), Config)
    assert read_config(path, environment={}, device="a").device == "a"


def test_one_of_several_devices_is_chosen_by_name(tmp_path):
    path = written(tmp_path, SHARED + entries(*PUMPS))
    assert read_config(path, environment={}, device="pump-2").state == tmp_path / "state/pump-2"
    with pytest.raises(SettingError, match=r"has 3 devices: choose one with --device .*pump-3"):
        read_config(path, environment={})
    with pytest.raises(SettingError, match=r"no device 'fan', but pump-1, pump-2, pump-3"):
        read_config(path, environment={}, device="fan")


# ---------------------------------------------------------------- running them


@pytest.mark.slow
def test_devices_of_one_process_equal_agents_of_their_own_to_the_last_bit(tmp_path):
    together, apart = tmp_path / "together", tmp_path / "apart"
    for folder in (together, apart):
        folder.mkdir()
        feed(folder)
    clock = lambda: 1.0e9  # noqa: E731 - the time of day is in the state
    config = configured(together, SHARED + entries(*PUMPS))
    assert run_gateway(config, stop=Event(), clock=clock) == 0
    for name in PUMPS:
        alone = written(apart, SHARED + entries(name))
        assert run(read_config(alone, environment={}), stop=Event(), clock=clock) == 0
        results = [(folder / f"{name}.jsonl").read_bytes() for folder in (together, apart)]
        assert results[0] == results[1]
        assert results[0].count(b"\n") == 300
        assert results[0].count(b'"alarm":true') > 20
        states = [read_state(folder, name) for folder in (together, apart)]
        assert states[0] == states[1]


def read_state(folder, name):
    """The bytes of a state, but for the inode of the file that was read."""
    from edgemerge.agent.state import state_from_bytes, state_to_bytes

    memory = state_from_bytes((folder / "state" / name / STATE_FILE).read_bytes())
    assert memory.index == 300
    memory.position["inode"] = 0
    return state_to_bytes(memory)


class Gateway:
    """A gateway in a thread."""

    def __init__(self, config):
        self.stop, self.code, self.config = Event(), None, config
        self._thread = Thread(target=self._run)

    def _run(self):
        self.code = run_gateway(self.config, stop=self.stop, exit_code=exit_code)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_error):
        self.stop.set()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()

    def devices(self):
        """What the process says of each device."""
        try:
            found = send_command(self.config.state, "status", DEADLINE_S)
        except UnavailableError:
            return {}
        return {each["device"]: each for each in found["devices"]}

    def until(self, **states):
        """Wait until the devices are in these states; return what is said of each."""
        names = {name.replace("_", "-"): state for name, state in states.items()}
        until(lambda: names == {n: e["state"] for n, e in self.devices().items()})
        return self.devices()


TAIL = SHARED.replace('"csv"', '"tail"')


@pytest.mark.slow
def test_a_device_that_fails_does_not_stop_the_others_and_says_why(tmp_path, caplog):
    feed(tmp_path)
    bad = '\n[[devices]]\ndevice = "fan"\nsource.columns = ["1", "2", "3", "4", "5", "heat"]\n'
    bad += 'source.path = "pump-1.csv"\nsource.header = true\nsource.kind = "csv"\n'
    with Gateway(configured(tmp_path, TAIL + entries("pump-1", "pump-2") + bad)) as running:
        found = running.until(pump_1="running", pump_2="running", fan="failed")
        assert 'found no column "heat"' in found["fan"]["why"]
        folder = tmp_path / "state/pump-2"
        until(lambda: send_command(folder, "status", DEADLINE_S)["samples"] == 300)
        assert found["pump-2"]["why"] == ""
    assert running.code == 2
    told = [each for each in caplog.records if "the others go on" in each.message]
    assert told
    assert "heat" in str(told[0].values["why"])


@pytest.mark.slow
def test_a_device_whose_state_cannot_be_used_is_started_again_later(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "FIRST_RESTART_S", 0.01)
    feed(tmp_path)
    (tmp_path / "state").mkdir()
    blocked = tmp_path / "state/pump-2"
    blocked.write_text("a file where a folder should be")
    with Gateway(configured(tmp_path, TAIL + entries("pump-1", "pump-2"))) as running:
        until(lambda: "cannot be used" in running.devices().get("pump-2", {}).get("why", ""))
        blocked.unlink()
        found = running.until(pump_1="running", pump_2="running")
        assert found["pump-2"]["why"] == ""
    assert running.code == 0


@pytest.mark.slow
def test_when_no_device_runs_any_more_the_process_ends_with_the_first_failure(tmp_path):
    feed(tmp_path)
    (tmp_path / "pump-2.csv").write_text("")
    (tmp_path / "pump-3.csv").write_bytes("a,b\n1,2\n".encode("utf-16"))
    config = configured(tmp_path, SHARED + entries(*PUMPS))
    assert run_gateway(config, stop=Event(), exit_code=exit_code) == 5
    config = configured(tmp_path, SHARED + entries("pump-1", "pump-3"))
    assert run_gateway(config, stop=Event(), exit_code=exit_code) == 2


@pytest.mark.slow
def test_a_bug_that_one_device_shows_is_logged_and_ends_only_that_device(tmp_path, monkeypatch):
    feed(tmp_path)
    right = run_device

    def sometimes(config, **options):
        if config.device == "pump-2":
            raise ZeroDivisionError("a bug")
        return right(config, **options)

    monkeypatch.setattr(supervisor, "run_device", sometimes)
    config = configured(tmp_path, SHARED + entries(*PUMPS))
    assert run_gateway(config, stop=Event(), exit_code=exit_code) == 1
    for name in ("pump-1", "pump-3"):
        assert (tmp_path / f"{name}.jsonl").read_bytes().count(b"\n") == 300


@pytest.mark.slow
def test_a_second_process_on_the_same_folder_is_refused(tmp_path):
    feed(tmp_path)
    config = configured(tmp_path, TAIL + entries("pump-1"))
    with Gateway(config) as running:
        running.until(pump_1="running")
        from edgemerge.agent.state import InUseError

        with pytest.raises(InUseError, match="is in use by another agent"):
            run_gateway(config, stop=Event())


@pytest.mark.slow
def test_log_lines_of_a_device_name_it_also_those_of_its_threads(tmp_path, caplog):
    write_rows(tmp_path / "pump-1.csv", stream(20))
    with (tmp_path / "pump-1.csv").open("a") as file:
        file.write("no number\n")  # told by the thread that reads
    shown = []

    class Keep(logging.Handler):
        def emit(self, record):
            shown.append(TextFormatter().format(record))

    logger, keep = logging.getLogger("edgemerge"), Keep()
    logger.addHandler(keep)
    try:
        with caplog.at_level(logging.INFO, "edgemerge"):
            run_gateway(configured(tmp_path, SHARED + entries("pump-1")), stop=Event())
    finally:
        logger.removeHandler(keep)
    assert any("a row was skipped device=pump-1 why=" in line for line in shown)
    assert any("a new incarnation begins device=pump-1" in line for line in shown)


# ---------------------------------------------------------------- one file for several devices


def feed_one_file(folder, form):
    """Write the rows of two pumps, and of one that is not watched, into one file by turns."""
    rows = {name: stream(250, seed=i) for i, name in enumerate(("pump-1", "pump-10", "pump-2"))}
    names = ["a", "b", "c", "d", "e", "f"]
    with (folder / "hall.csv").open("w") as file:
        if form == "header":
            print("machine," + ",".join(names), file=file)
        for i in range(250):
            for name, values in rows.items():
                numbers = list(map(float, values[i]))
                if form == "jsonl":
                    print(
                        json.dumps({"machine": name, **dict(zip(names, numbers, strict=True))}),
                        file=file,
                    )
                else:
                    print(name, *map(repr, numbers), sep=",", file=file)
            print("pump-9,this,is,no,row,of,ours", file=file)
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("form", ["header", "numbers", "jsonl"])
def test_rows_of_several_devices_in_one_file_are_told_apart_by_a_column(tmp_path, form):
    rows = feed_one_file(tmp_path, form)
    columns = [str(i) for i in range(2, 8)] if form == "numbers" else ["a", "b", "c", "d", "e", "f"]
    column = '"1"' if form == "numbers" else '"machine"'
    source = f'kind = "{"jsonl" if form == "jsonl" else "csv"}"\npath = "hall.csv"\n'
    source += f"columns = {json.dumps(columns)}\ndevice_column = {column}\n"
    old = SHARED[SHARED.index('kind = "csv"') : SHARED.index("[learner]")]
    text = SHARED.replace(old, source) + entries("pump-1", "pump-10")
    text += '\n[[devices]]\ndevice = "third"\nsource.device_value = "pump-2"\n'
    assert run_gateway(configured(tmp_path, text), stop=Event()) == 0
    alone = tmp_path / "alone"
    alone.mkdir()
    for name, data in zip(("pump-1", "pump-10", "third"), rows.values(), strict=True):
        write_rows(alone / f"{name}.csv", data)
    assert (
        run_gateway(configured(alone, SHARED + entries("pump-1", "pump-10", "third")), stop=Event())
        == 0
    )
    for name in ("pump-1", "pump-10", "third"):
        scores = [
            [json.loads(line)["score"] for line in text.splitlines()]
            for text in ((folder / f"{name}.jsonl").read_text() for folder in (tmp_path, alone))
        ]
        assert len(scores[0]) == 250
        assert scores[0] == scores[1]


@pytest.mark.slow
def test_a_file_of_several_devices_is_gone_on_with_after_a_restart(tmp_path):
    feed_one_file(tmp_path, "header")
    source = 'kind = "csv"\npath = "hall.csv"\ncolumns = ["a","b","c","d","e","f"]\n'
    source += 'device_column = "machine"\n'
    old = SHARED[SHARED.index('kind = "csv"') : SHARED.index("[learner]")]
    config = configured(tmp_path, SHARED.replace(old, source) + entries("pump-1", "pump-2"))
    assert run_gateway(config, stop=Event()) == 0
    with (tmp_path / "hall.csv").open("a") as file:
        file.write("pump-2,0.1,0.1,0.1,0.1,0.1,0.1\n")
    assert run_gateway(config, stop=Event()) == 0
    counts = [len((tmp_path / f"{n}.jsonl").read_text().splitlines()) for n in ("pump-1", "pump-2")]
    assert counts == [250, 251]


@pytest.mark.slow
def test_a_column_of_devices_that_is_not_there_is_told(tmp_path, caplog):
    feed_one_file(tmp_path, "header")
    source = 'kind = "csv"\npath = "hall.csv"\ncolumns = ["a","b","c","d","e","f"]\n'
    source += 'device_column = "machin"\n'
    old = SHARED[SHARED.index('kind = "csv"') : SHARED.index("[learner]")]
    text = SHARED.replace(old, source) + entries("pump-1")
    assert run_gateway(configured(tmp_path, text), stop=Event()) == 2
    assert 'did you mean "machine"' in str(
        [each.values for each in caplog.records if hasattr(each, "values")]
    )
    text = text.replace('columns = ["a","b","c","d","e","f"]', "")
    assert run_gateway(configured(tmp_path, text), stop=Event(), exit_code=exit_code) == 2


# ---------------------------------------------------------------- commands


@pytest.mark.slow
def test_commands_reach_each_device_by_its_name(tmp_path):
    feed(tmp_path)
    config = TAIL + '[exchange]\nkind = "folder"\npath = "exchange"\n[sync]\nevery_s = 0\n'
    (tmp_path / "exchange").mkdir()
    own = entries(*PUMPS).replace('"pump-2"\n', '"pump-2"\nquality.no_data_s = 1.0\n')
    path = written(tmp_path, config + own)
    with Gateway(read_configuration(path, environment={})) as running:
        running.until(pump_1="running", pump_2="running", pump_3="running")
        for name in PUMPS:
            folder = tmp_path / "state" / name
            until(lambda: send_command(folder, "status", DEADLINE_S)["samples"] == 300)  # noqa: B023 - now
        rows = json.loads(call("monitor", "show", path, "--json").stdout)
        assert [row["device"] for row in rows] == list(PUMPS)
        assert [row["samples"] for row in rows] == [300, 300, 300]
        assert [row["episodes"] for row in rows] == [1, 1, 1]
        with (tmp_path / "pump-2.csv").open("a") as file:
            file.writelines("text,instead,of,numbers,here,again\n" for _ in range(200))
        until(lambda: send_command(tmp_path / "state/pump-2", "status", DEADLINE_S)["problems"])
        rows = json.loads(call("monitor", "show", path, "--json").stdout)
        assert [row["state"] for row in rows] == ["running", "running", "running"]
        assert [row["data"] == "ok" for row in rows] == [True, False, True]
        table = call("monitor", "show", path).stdout
        assert "OPEN EPISODES" in table
        assert [line[:6] for line in table.splitlines() if line[:4] == "pump"] == list(PUMPS)
        assert json.loads(call("monitor", "show", path, "--device", "pump-2", "--json").stdout)[
            "episodes"
        ]
        assert "adopted" not in call("sync", path, "--device", "pump-3").stdout
        done = call("monitor", "acknowledge", path, "--device", "pump-1")
        assert done.exit_code == 0
        one = json.loads(
            call("monitor", "show", tmp_path / "state", "--device", "pump-1", "--json").stdout
        )
        assert not one["episodes"] or one["episodes"][0]["ended"] is None
        refused = call("sync", path)
        assert refused.exit_code == 2
        assert "choose one with --device" in refused.stderr
        refused = call("sync", tmp_path / "state")
        assert "choose one with --device" in refused.stderr
    gone = call("monitor", "show", path)
    assert gone.exit_code == 4
    assert "no agent runs" in gone.stderr


def test_check_prints_all_devices(tmp_path):
    path = written(tmp_path, SHARED + entries(*PUMPS))
    shown = call("agent", path, "--check").stdout
    assert [line.split()[1] for line in shown.splitlines() if line.startswith("device ")] == [
        *PUMPS
    ]
    found = json.loads(call("agent", path, "--check", "--json").stdout)
    assert [each["device"] for each in found["devices"]] == list(PUMPS)


@pytest.mark.slow
def test_doctor_checks_every_device(tmp_path):
    feed(tmp_path)
    (tmp_path / "pump-2.csv").write_text("1;2;3\n4;5;6\n")
    path = written(tmp_path, SHARED + entries(*PUMPS))
    result = call("doctor", "--config", path, "--json")
    assert result.exit_code == 1
    levels = {each["about"]: each["level"] for each in json.loads(result.stdout)}
    assert levels["pump-1: table"] == "ok"
    assert levels["pump-2: table"] == "fail"
    assert levels["pump-3: state folder"] == "ok"


@pytest.mark.slow
def test_one_signal_ends_all_devices_and_systemd_is_told_once(tmp_path):
    feed(tmp_path)
    path = written(tmp_path, TAIL + entries(*PUMPS))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as there:
        there.bind(str(tmp_path / "notify"))
        there.settimeout(DEADLINE_S)
        program = subprocess.Popen(
            [sys.executable, "-m", "edgemerge", "agent", str(path)],
            env={**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")},
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert there.recv(100) == b"READY=1"
            program.send_signal(signal.SIGTERM)
            assert there.recv(100) == b"STOPPING=1"
            assert program.wait(DEADLINE_S) == 0
            there.settimeout(0.0)
            with pytest.raises(BlockingIOError):
                there.recv(100)
        finally:
            program.kill()
            program.communicate()
    for name in PUMPS:
        assert (tmp_path / "state" / name / STATE_FILE).exists()


@pytest.mark.slow
def test_results_of_all_devices_come_as_whole_lines_on_one_standard_output(tmp_path):
    feed(tmp_path)
    text = SHARED.replace('kind = "file"\npath = "{device}.jsonl"', 'kind = "jsonl"\npath = "-"')
    path = written(tmp_path, text + entries(*PUMPS))
    done = subprocess.run(
        [sys.executable, "-m", "edgemerge", "agent", str(path)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0
    found = [json.loads(line)["device"] for line in done.stdout.splitlines()]
    assert {name: found.count(name) for name in PUMPS} == dict.fromkeys(PUMPS, 300)


def test_a_log_line_for_people_leaves_out_values_that_are_none():
    record = logging.LogRecord("edgemerge", logging.WARNING, "", 0, "an alarm began", None, None)
    record.values = {"episode": 1, "pattern": None}
    assert TextFormatter().format(record).endswith(" warning an alarm began episode=1")


def test_a_log_line_for_people_shows_lists_and_tables_in_words():
    record = logging.LogRecord("edgemerge", logging.INFO, "", 0, "merged", None, None)
    record.values = {"inputs": ("a", "b"), "one": ("normal: 3",), "adopt": {"x": None, "y": [1]}}
    shown = TextFormatter().format(record)
    assert shown.endswith(" info merged inputs=a, b one=normal: 3 adopt=y: 1")


def test_no_value_replaces_the_head_of_a_log_line_in_json():
    record = logging.LogRecord("edgemerge", logging.INFO, "", 0, "listening", None, None)
    record.values = {"at": "http://hub", "level": 7, "from": "x", "message": "y", "port": 1}
    shown = json.loads(JsonFormatter().format(record))
    assert shown.pop("at") == record.created
    expected = {"level": "info", "from": "edgemerge", "message": "listening", "port": 1}
    assert shown == expected
