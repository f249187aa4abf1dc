"""`edgemerge doctor`: what is wrong is found, and what is not is not."""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from time import time

import pytest

from edgemerge import Projection, __version__, encode, kernel
from edgemerge.cli import doctor
from tests.cli.calls import call, program
from tests.services.ports import free_port

CONFIG = """
device = "pump-1"
state = "state"
[projection]
n_inputs = 2
[exchange]
kind = "http"
url = "{url}"
fleet = "pumps"
token_file = "token"
"""


def levels(findings: Iterator[doctor.Finding]) -> dict[str, str]:
    return {finding.about: finding.level for finding in findings}


def found(result: str) -> dict[str, dict[str, str]]:
    return {each["about"]: each for each in json.loads(result)}


@contextmanager
def answering(pages: dict[str, bytes]) -> Iterator[str]:
    """A server that gives these pages."""

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = pages.get(self.path)
            self.send_response(200 if body is not None else 404)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *_args: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Pages) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def pages(version: str, title: str = "edgemerge") -> dict[str, bytes]:
    about = {"info": {"title": title, "version": version}}
    return {"/healthz": b"{}", "/readyz": b"{}", "/openapi.json": json.dumps(about).encode()}


def range_of(config, text):
    """Write a configuration; return what is found about the range."""
    config.write_text(text, encoding="utf-8")
    (found,) = [each for each in doctor.check_config(config) if each.about == "range"]
    return found


@pytest.mark.parametrize(
    ("values", "kind", "level", "words"),
    [
        ("1,2\n", "csv", "ok", "0 of the first 100 samples"),
        ("1,2\n" * 9 + "1,30\n", "tail", "warn", "10 of the first 100 samples"),
        ("1,2\n40,3\n50,3\n60,3\n", "csv", "fail", "75 of the first 100 samples"),
    ],
)
def test_samples_far_outside_the_range_are_counted(tmp_path, values, kind, level, words):
    (tmp_path / "in.csv").write_text(values * (100 // values.count("\n")), encoding="utf-8")
    text = f"""
device = "pump-1"
state = "state"
[projection]
n_inputs = 2
low = 0.0
high = 10.0
[source]
kind = "{kind}"
path = "in.csv"
"""
    told = range_of(tmp_path / "pump.toml", text)
    assert told.level == level
    assert words in told.words
    if level != "ok":
        assert f"input {1 if level == 'fail' else 2}" in told.words
        assert "set low and high in [projection]" in told.advice


@pytest.mark.slow
def test_an_input_outside_the_range_has_its_name_and_a_slow_start_is_no_failure(tmp_path):
    (tmp_path / "in.csv").write_text(
        "flow,heat\n" + "90,2\n" * 300 + "1,2\n" * 600, encoding="utf-8"
    )
    text = """
device = "pump-1"
state = "state"
[projection]
n_inputs = 2
names = ["flow", "heat"]
low = 0.0
high = 10.0
[source]
kind = "csv"
path = "in.csv"
"""
    told = range_of(tmp_path / "pump.toml", text)
    assert told.level == "warn"
    assert told.words.endswith("most often input flow")


ROWS = "flow,heat\n" + "1.5,2.5\n" * 150


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "more", "level", "words"),
    [
        (ROWS, "", "ok", "100 of the first 100 rows can be read"),
        (ROWS.replace(",", ";"), "", "fail", 'set source.delimiter = ";"'),
        (ROWS.replace(",", ";").replace(".", ","), 'delimiter = ";"', "fail", "the last: '1,5' is"),
        (
            "flow,heat\n" + "1,x\n1,2\n" * 60,
            "",
            "warn",
            "50 of the first 100 rows can be read, the",
        ),
        ("flow,heat\n", "", "warn", "there is no row yet"),
        ("flows,heat\n1,2\n", "", "fail", 'did you mean "flows"?'),
    ],
)
def test_the_first_hundred_rows_are_read_as_by_the_agent(tmp_path, text, more, level, words):
    (tmp_path / "in.csv").write_text(text, encoding="utf-8")
    (tmp_path / "pump.toml").write_text(
        f"""
device = "pump-1"
state = "state"
[projection]
names = ["flow", "heat"]
low = 0.0
high = 10.0
[source]
kind = "csv"
path = "in.csv"
{more}
""",
        encoding="utf-8",
    )
    result = call("doctor", tmp_path / "pump.toml", "--json")
    told = found(result.stdout)["rows"]
    assert told["level"] == level
    assert words in told["words"]
    assert result.exit_code == (1 if level == "fail" or "no row" in words else 0)


def test_times_at_another_rate_are_a_warning_and_a_pipe_is_not_read(tmp_path):
    lines = "".join(f"{i * 0.02:.2f},1.5\n" for i in range(100))
    (tmp_path / "in.csv").write_text("t,flow\n" + lines, encoding="utf-8")
    text = """
device = "pump-1"
state = "state"
[projection]
names = ["flow"]
[source]
kind = "tail"
path = "in.csv"
time = "t"
[quality]
rate_hz = 100.0
"""
    (tmp_path / "pump.toml").write_text(text, encoding="utf-8")
    told = {each.about: each for each in doctor.check_config(tmp_path / "pump.toml")}
    assert told["wrong rate"].level == "warn"
    assert "50 rows a second, expected 100" in told["wrong rate"].words
    (tmp_path / "in.csv").unlink()
    os.mkfifo(tmp_path / "in.csv")
    told = {each.about: each for each in doctor.check_config(tmp_path / "pump.toml")}
    assert "is a pipe" in told["source"].words
    assert "rows" not in told


@pytest.mark.slow
def test_this_installation_is_sound():
    done = program("doctor", "--json")
    assert done.returncode == 0, done.stdout
    told = found(done.stdout)
    assert {each["level"] for each in told.values()} <= {"ok", "warn"}
    assert {"python", "numpy", "scipy", "click", "rich", "clock", "this folder"} <= set(told)
    assert told["blas threads"]["words"] == "1"
    assert told["kernel"]["words"] == kernel.PATH


@pytest.mark.slow
def test_an_installation_without_the_kernel_is_sound_and_says_so():
    done = program("doctor", "--json", EDGEMERGE_KERNEL="off")
    assert done.returncode == 0, done.stdout
    told = found(done.stdout)["kernel"]
    assert (told["level"], told["words"]) == ("ok", "NumPy, since EDGEMERGE_KERNEL=off")
    assert "install a C compiler" in told["advice"]


@pytest.mark.slow
def test_threads_are_those_that_the_library_uses():
    done = program("doctor", "--json", OPENBLAS_NUM_THREADS="2")
    threads = found(done.stdout)["blas threads"]
    expected = str(min(2, os.cpu_count() or 1))
    assert threads["words"] == expected
    assert (threads["level"] == "warn") == (expected == "2")
    assert "OPENBLAS_NUM_THREADS=1" in threads["advice"]


def test_an_old_package_is_told_with_the_line_that_renews_it(monkeypatch):
    monkeypatch.setattr(doctor, "requirements", lambda: [("numpy", "999.1", "")])
    (last,) = [each for each in doctor.check_versions() if each.about == "numpy"]
    assert last.level == "fail"
    assert last.advice == "999.1 or newer is needed: pip install 'numpy>=999.1'"


def test_extras_that_are_missing_are_no_failure_but_are_told(monkeypatch):
    wanted = [("no-such-thing", "1", "mqtt"), ("click", "999", "plot"), ("click", "1", "server")]
    monkeypatch.setattr(doctor, "requirements", lambda: wanted)
    told = {each.about: each for each in doctor.check_extras()}
    assert told["extra mqtt"].level == "ok"
    assert told["extra mqtt"].advice == "pip install '.[mqtt]' in a checkout of edgemerge"
    assert told["extra plot"].level == "fail"
    assert told["extra server"].level == "ok"


def test_requirements_are_read_from_the_installed_package():
    told = doctor.requirements()
    assert ("numpy", "1.24", "") in told
    assert ("scikit-learn", "1.6", "sklearn") in told


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("numpy>=1.24", ("numpy", "1.24", None)),
        ("matplotlib; extra == 'plot'", ("matplotlib", None, "plot")),
        ('paho-mqtt>=2.0; extra == "mqtt"', ("paho-mqtt", "2.0", "mqtt")),
        ("psycopg[binary]>=3.1; extra == 'postgres'", ("psycopg", "3.1", "postgres")),
        ("torch==2.13.0; extra == 'bench'", ("torch", None, "bench")),
    ],
)
def test_a_requirement_is_taken_apart(line, parts):
    match = doctor.REQUIREMENT.match(line)
    assert match
    assert match.groups() == parts


def test_a_clock_that_was_never_set_or_is_behind_is_found(monkeypatch, tmp_path):
    assert levels(doctor.check_clock(tmp_path)) == {"clock": "ok"}
    monkeypatch.setattr(doctor, "time", lambda: 1000.0)
    assert [each.words for each in doctor.check_clock(tmp_path)] == ["it was never set"]
    monkeypatch.undo()
    (tmp_path / "state").touch()
    later = time() + 3 * doctor.DAY_S
    os.utime(tmp_path / "state", (later, later))
    assert levels(doctor.check_clock(tmp_path)) == {"clock": "fail"}


def test_a_folder_that_is_not_there_yet_is_judged_by_the_one_above(tmp_path):
    told = list(doctor.check_folder(tmp_path / "a" / "b", "state folder"))
    assert [each.level for each in told] == ["ok", "ok"]
    assert str(tmp_path) in told[0].words
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_to_fails():
    told = list(doctor.check_folder(Path("/proc")))
    assert [each.level for each in told] == ["fail"]


def test_little_room_is_a_warning(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "MIN_FREE_BYTES", 2**62)
    assert levels(doctor.check_folder(tmp_path))["folder space"] == "warn"


def test_a_token_that_others_can_read_fails(tmp_path):
    token = tmp_path / "token"
    token.touch(mode=0o600)
    assert levels(doctor.check_token_file(token)) == {"token file": "ok"}
    token.chmod(0o640)
    (told,) = doctor.check_token_file(token)
    assert (told.level, told.advice) == ("fail", f"chmod 600 {token}")
    assert levels(doctor.check_token_file(tmp_path / "none")) == {"token file": "fail"}


def test_a_server_of_the_same_version_is_well():
    with answering(pages(__version__)) as url:
        assert levels(doctor.check_server(url, None)) == {"server": "ok", "server ready": "ok"}


@pytest.mark.parametrize(
    ("told", "level"),
    [
        (pages("0.0.0"), "warn"),
        (pages(__version__, "other"), "fail"),
        ({}, "fail"),
        ({"/healthz": b"{}", "/openapi.json": b"[]", "/readyz": b"{}"}, "fail"),
    ],
)
def test_another_server_is_told_apart(told, level):
    with answering(told) as url:
        assert next(iter(doctor.check_server(url, None))).level == level


def test_no_server_is_a_failure_with_advice():
    result = call("doctor", "--server", f"http://127.0.0.1:{free_port()}")
    assert result.exit_code == 1
    assert "fail  server" in result.stdout
    assert "`edgemerge serve`" in result.stdout
    assert result.stderr == ""


def test_plain_http_to_another_machine_fails_or_is_a_warning_if_it_is_asked_for():
    (told,) = doctor.check_server("http://192.0.2.1.invalid:1", None)
    assert told.level == "fail"
    assert "expected https:// to another machine" in told.words
    *_, told = doctor.check_server("http://192.0.2.1.invalid:1", None, insecure=True)
    assert told.level == "warn"
    assert "use https" in told.advice


def test_the_port_of_the_server_is_free_or_answers_or_is_taken():
    assert doctor.check_port(free_port()).words.startswith("free")
    with answering(pages(__version__)) as url:
        assert "answers" in doctor.check_port(int(url.rpartition(":")[2])).words
    with answering({}) as url:
        told = doctor.check_port(int(url.rpartition(":")[2]))
        assert (told.level, told.words) == ("warn", "used by another program")


def test_a_configuration_is_followed_to_everything_it_names(tmp_path):
    (tmp_path / "token").touch(mode=0o600)
    (tmp_path / "token").write_text("emd_" + "x" * 40)
    shared = {"/fleets/pumps/projection": encode(Projection(n_inputs=2, n_hidden=64))}
    with answering(pages(__version__) | shared) as url:
        (tmp_path / "agent.toml").write_text(CONFIG.format(url=url), encoding="utf-8")
        result = call("doctor", "--config", tmp_path / "agent.toml", "--json")
    told = found(result.stdout)
    assert result.exit_code == 0
    wanted = {"configuration", "state folder", "token file", "server", "server ready", "fleet"}
    assert {told[about]["level"] for about in wanted} == {"ok"}


@pytest.mark.slow
def test_a_fleet_is_asked_whether_it_takes_the_device_and_has_its_projection(hub, fleet, tmp_path):
    hub.enrolled(fleet, "pump-1", tmp_path / "token")
    file = tmp_path / "agent.toml"
    own = CONFIG.format(url=hub.url).replace('"pumps"', f'"{fleet}"')
    without = own.replace("[projection]\nn_inputs = 2\n", "")

    def told(text, token=None):
        file.write_text(text, encoding="utf-8")
        if token is not None:
            (tmp_path / "token").write_text(token)
        result = call("doctor", file, "--json")
        about = found(result.stdout)["fleet"]
        assert result.exit_code == (about["level"] == "fail")
        return about["level"], about["words"], about["advice"]

    level, words, _ = told(without)
    assert (level, words.partition(",")[0]) == ("ok", f"{fleet} takes the token of pump-1")
    level, words, advice = told(own)
    assert (level, "the agent would stop" in words) == ("fail", True)
    assert "leave [projection] out" in advice
    level, words, advice = told(without.replace(f'"{fleet}"', '"nowhere"'))
    assert level == "fail"
    assert "another fleet" in words
    assert "exchange.fleet" in advice
    level, words, _ = told(without, hub.token.read_text())  # an operator may see all there are
    assert level == "ok"
    level, words, advice = told(without.replace(f'"{fleet}"', '"nowhere"'))
    assert (level, "nowhere" in words) == ("fail", True)
    assert "fleet create" in advice
    level, words, advice = told(without, "emd_" + "x" * 40)
    assert (level, "401" in words) == ("fail", True)
    assert "edgemerge enrol" in advice
    level, words, _ = told(without, "")
    assert level == "fail"


@pytest.mark.parametrize("there", [True, False])
def test_a_source_that_is_not_there_yet_is_a_warning(tmp_path, there):
    words = CONFIG.format(url="http://127.0.0.1:9")
    more = '\n[source]\nkind = "tail"\npath = "data.csv"\n'
    (tmp_path / "agent.toml").write_text(words + more, encoding="utf-8")
    if there:
        (tmp_path / "data.csv").touch()
    told = found(call("doctor", "--config", tmp_path / "agent.toml", "--json").stdout)
    assert told["source"]["level"] == ("ok" if there else "warn")


def test_a_wrong_configuration_fails(tmp_path):
    (tmp_path / "agent.toml").write_text("device = 3", encoding="utf-8")
    result = call("doctor", "--config", tmp_path / "agent.toml", "--json")
    assert result.exit_code == 1
    assert found(result.stdout)["configuration"]["level"] == "fail"


def test_a_token_file_in_the_environment_is_looked_at(tmp_path):
    (tmp_path / "token").touch(mode=0o644)
    result = call("doctor", EDGEMERGE_TOKEN_FILE=str(tmp_path / "token"))
    assert result.exit_code == 1
    assert f"chmod 600 {tmp_path / 'token'}" in result.stdout
