"""The command line as a whole: quick help, one BLAS thread, extras by name, one line for errors."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from edgemerge import __version__, files
from edgemerge.cli import main
from edgemerge.core.errors import FormatError, UnavailableError
from tests.cli.calls import call, clean_environment, failure, program, started
from tests.waiting import DEADLINE_S

HEAVY = "{'numpy', 'scipy', 'rich', 'matplotlib', 'fastapi', 'uvicorn', 'ssl'}"


def every_command(command: click.Command, words: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not isinstance(command, click.Group):
        return [words]
    with click.Context(command) as context:
        below = {
            name: command.get_command(context, name) for name in command.list_commands(context)
        }
    return [words, *(each for n, c in below.items() if c for each in every_command(c, (*words, n)))]


COMMANDS = every_command(main)


def test_the_version_is_told():
    assert call("--version").stdout == f"edgemerge {__version__}\n"


def test_all_commands_are_there():
    top = {words[0] for words in COMMANDS if len(words) == 1}
    files_and_network = {
        "init",
        "learn",
        "bulk",
        "score",
        "replay",
        "share",
        "merge",
        "show",
        "export",
        "serve",
        "certificate",
        "backup",
        "restore",
        "fleet",
        "accounts",
        "enrol",
    }
    assert top == files_and_network | {
        *(
            "agent",
            "sync",
            "keys",
            "monitor",
            "bridge",
            "dashboard",
            "paper",
            "simulate",
            "demo",
            "doctor",
            "completion",
        ),
    }
    assert len([words for words in COMMANDS if words[:1] == ("fleet",)]) == 37
    assert len([words for words in COMMANDS if words[:1] == ("monitor",)]) == 8


@pytest.mark.slow
def test_help_of_no_command_waits_for_anything_heavy():
    code = (
        "import sys, io, contextlib; from edgemerge.cli import main\n"
        f"for words in {COMMANDS}:\n"
        "    with contextlib.redirect_stdout(io.StringIO()):\n"
        "        main([*words, '--help'], standalone_mode=False)\n"
        f"print({HEAVY} & set(sys.modules))"
    )
    assert started(code) == "set()\n"


def test_what_is_heavy_would_be_noticed():
    assert started(f"import sys, rich, numpy; print({HEAVY} & set(sys.modules))") != "set()\n"


@pytest.mark.slow
def test_an_agent_starts_without_loading_what_only_groups_need():
    code = "import sys, edgemerge.agent.supervisor; print('scipy.cluster' in sys.modules)"
    assert started(code) == "False\n"


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_names_every_argument_and_explains_every_option(words):
    text = call(*words, "--help").stdout
    command: Any = main
    for name in words:
        command = command.get_command(click.Context(command), name)
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            shown = parameter.make_metavar(click.Context(command)).strip("[].")
            assert shown.split("|")[0].strip("{}") in text
        else:
            assert getattr(parameter, "help", None), f"{parameter.name} has no help"
    assert max(map(len, text.splitlines())) <= 80


def test_the_list_of_commands_is_not_cut_short():
    for words in ((), ("fleet",), ("paper",)):
        for width in (40, 80):
            text = CliRunner().invoke(main, [*words, "--help"], terminal_width=width).stdout
            assert "..." not in text.split("Options:")[1]


ASK = (
    "import click, os; from edgemerge.cli import main;"
    "from edgemerge.cli.group import BLAS_THREAD_VARIABLES;"
    "main.add_command(click.command('ask')("
    "lambda: print(*(os.environ.get(name) for name in BLAS_THREAD_VARIABLES))));"
)


def test_commands_run_with_one_blas_thread_set_before_numpy_is_imported():
    imported = "import sys; assert 'numpy' not in sys.modules;"
    assert started(ASK + imported + "main(['ask'])") == "1 1 1\n"


def test_a_number_of_threads_that_the_user_set_is_left_alone():
    assert started(ASK + "main(['ask'])", OMP_NUM_THREADS="4") == "None 4 None\n"


BLOCKED = """
import sys
for name in {missing}:
    sys.modules[name] = None
from edgemerge.cli import main
try:
    main({words}, standalone_mode=False)
except Exception as error:
    print(error.exit_code, error.message)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("missing", "words", "line"),
    [
        (
            "uvicorn",
            ["serve"],
            "uvicorn is not installed: pip install '.[server]' in a checkout of edgemerge",
        ),
        (
            "fastapi",
            ["serve"],
            "fastapi is not installed: pip install '.[server]' in a checkout of edgemerge",
        ),
        (
            "psycopg",
            ["serve", "--database", "postgresql://h/d"],
            "psycopg is not installed: pip install '.[postgres]' in a checkout of edgemerge",
        ),
    ],
)
def test_a_missing_extra_is_named_with_the_line_that_adds_it(missing, words, line):
    assert started(BLOCKED.format(missing=[missing], words=words)) == f"1 {line}\n"


def test_a_missing_part_of_ours_is_not_blamed_on_an_extra():
    code = (
        "import sys; sys.modules['edgemerge.server.main'] = None\n"
        "from edgemerge.cli import main\n"
        "try:\n    main(['serve'])\nexcept ModuleNotFoundError as error:\n    print(error.name)"
    )
    assert started(code) == "edgemerge.server.main\n"


def test_a_message_of_several_lines_is_told_in_one(monkeypatch):
    def refuse(_: Path) -> None:
        raise FormatError("found this,\n  expected that")

    monkeypatch.setattr(files, "load", refuse)
    assert call("show", "any").stderr == "Error: found this, expected that\n"


def test_an_error_of_the_network_is_told_by_its_words(monkeypatch):
    def away(_: Path) -> None:
        raise UnavailableError("the hub cannot be reached")

    monkeypatch.setattr(files, "load", away)
    assert failure(call("show", "any")) == "the hub cannot be reached"


def test_a_missing_file_is_told_in_one_line():
    assert failure(call("show", "nowhere")) == "nowhere: No such file or directory"


def test_a_bug_of_ours_is_not_hidden(monkeypatch):
    monkeypatch.setattr(files, "load", lambda _: 1 / 0)
    assert isinstance(call("show", "any").exception, ZeroDivisionError)


def test_an_unknown_command_is_an_error():
    result = call("lern")
    assert result.exit_code == 2
    assert "No such command 'lern'. Did you mean 'learn'?" in result.stderr


@pytest.mark.slow
def test_the_program_fails_as_the_function_does():
    done = program("show", "nowhere")
    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr == "Error: nowhere: No such file or directory\n"


@pytest.mark.slow
def test_whoever_stops_reading_is_not_told_about_it(tmp_path):
    agree = ("--n-inputs", 2, "--low", -1, "--high", 1, "--json")
    made = program("learn", tmp_path / "l", "-", "--new", "detector", *agree, given="0.1,0.2\n")
    assert json.loads(made.stdout)["learnt"] == 1
    (tmp_path / "s.csv").write_text("0.1,0.2\n" * 50_000, encoding="utf-8")
    words = [sys.executable, "-m", "edgemerge", "score", tmp_path / "l", tmp_path / "s.csv"]
    pipe, environment = subprocess.PIPE, clean_environment()
    with subprocess.Popen(words, stdout=pipe, stderr=pipe, env=environment) as scoring:
        assert scoring.stdout.readline() == b"sample,score,alarm\n"
        scoring.stdout.close()
        assert scoring.stderr.read() == b""
        assert scoring.wait(DEADLINE_S) == 1
