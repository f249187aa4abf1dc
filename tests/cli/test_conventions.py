"""What all commands have in common: an example, exit codes, old names that still work."""

import re
import shlex
import socket
from typing import Any

import click
import pytest

from edgemerge import Bank, Detector, Projection, Stats, save
from edgemerge.cli import main
from edgemerge.cli.group import EXIT_CODES, CommandError, ExitCode, exit_code
from edgemerge.core import errors
from tests.cli.calls import call, failure
from tests.cli.test_main import COMMANDS

WHERE = {"EDGEMERGE_SERVER": "http://127.0.0.1:1", "EDGEMERGE_TOKEN_FILE": "admin.token"}


def found(words):
    command: Any = main
    for name in words:
        command = command.get_command(click.Context(command), name)
    return command


def example_lines(command):
    text = (command.epilog or "").partition("Example:\n")[2].partition("\n\n")[0]
    joined = text.replace("\\\n", " ")
    lines = [shlex.split(line) for line in joined.splitlines()]
    return [line for line in lines if line[0] == "edgemerge"]


def parsed(words):
    """Parse as click does, types and required options included, but run nothing."""
    command: Any = main
    context = main.make_context("edgemerge", list(words))
    while isinstance(command, click.Group):
        with context.scope(cleanup=False):
            rest = [*context._protected_args, *context.args]
            if not rest:
                return context
            name, command, rest = command.resolve_command(context, rest)
            context = command.make_context(name, rest, parent=context)
    return context


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_an_example_that_can_be_parsed(words, monkeypatch, capsys):
    for name, value in WHERE.items():
        monkeypatch.setenv(name, value)
    lines = example_lines(found(words))
    assert lines, f"edgemerge {' '.join(words)}: add epilog=example(...)"
    for line in lines:
        assert tuple(line[1 : 1 + len(words)]) == words
        parsed(line[1:])
    assert capsys.readouterr().err == ""  # and uses no old name


def test_an_example_with_an_unknown_or_old_name_would_be_noticed(capsys):
    with pytest.raises(click.NoSuchOption):
        parsed(["score", "a", "b", "--treshold", "4"])
    parsed(["score", "a", "b", "--alarm-above", "4"])
    assert capsys.readouterr().err != ""


def every_option():
    for words in COMMANDS:
        for option in found(words).params:
            for old, new in getattr(option, "old", {}).items():
                yield words, option, old, new


RENAMED = list(every_option())


def test_the_old_names_are_known():
    olds = {old for _, _, old, _ in RENAMED}
    assert olds >= {
        "--inputs",
        "--hidden",
        "--like",
        "--alarm-above",
        "--threshold",
        "--patience",
        "--jobs",
    }
    assert olds >= {"--from", "--from-nobody", "--to", "--all", "--known", "--timeout", "leave-out"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "option", "old", "new"),
    RENAMED,
    ids=[f"{' '.join(words)} {old}" for words, _, old, _ in RENAMED],
)
def test_an_old_option_works_and_says_what_to_use(words, option, old, new, capsys):
    command = found(words)
    root = click.Context(main, token_normalize_func=main.context_settings["token_normalize_func"])
    value = [] if option.is_flag else ["1"]
    given = [old, *value] if old.startswith("--") else [option.opts[0], old]
    context = click.Context(command, parent=root)
    with context.scope(cleanup=False):
        result, _, _ = command.make_parser(context).parse_args(given)
        assert option.name in result
        if not old.startswith("--"):
            assert option.type.convert(old, option, context) == new
    assert f"{old} is now {new}" in capsys.readouterr().err
    assert old not in call(*words, "--help").stdout.split()


def test_an_old_option_gives_the_value_of_the_new_one(tmp_path):
    save(Detector(Projection(n_inputs=2, n_hidden=3)), tmp_path / "l")
    (tmp_path / "s.csv").write_text("0.1,0.2\n", encoding="utf-8")
    new = call("score", tmp_path / "l", tmp_path / "s.csv", "--limit", 7)
    old = call("score", tmp_path / "l", tmp_path / "s.csv", "--alarm-above=7")
    assert new.stdout == old.stdout
    note = "Note: --alarm-above is now --limit; use --limit instead."
    assert old.stderr == f"{note}\n{new.stderr}"


def test_an_old_command_works_and_says_what_to_use():
    shown = call("fleet", "withhold", "--help")
    assert shown.stdout == call("fleet", "exclude", "--help").stdout
    assert "withhold is now exclude" in shown.stderr
    assert "withhold" not in call("fleet", "--help").stdout


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.UnavailableError("away"), ExitCode.UNREACHABLE),
        (ConnectionRefusedError(), ExitCode.UNREACHABLE),
        (TimeoutError(), ExitCode.UNREACHABLE),
        (socket.gaierror(), ExitCode.UNREACHABLE),
        (errors.DeniedError("token"), ExitCode.REFUSED),
        (errors.StaleError("old", 3), ExitCode.REFUSED),
        (errors.MismatchError("other"), ExitCode.REFUSED),
        (errors.FormatError("bytes"), ExitCode.REFUSED),
        (errors.SampleError("nan"), ExitCode.REFUSED),
        (errors.CapacityError("full"), ExitCode.REFUSED),
        (errors.SettingError("-1"), ExitCode.USAGE),
        (errors.KindError("int"), ExitCode.USAGE),
        (errors.UnknownError("fleet"), ExitCode.NO_DATA),
        (FileNotFoundError(), ExitCode.NO_DATA),
        (PermissionError(), ExitCode.FAILED),
        (errors.SolveError("singular"), ExitCode.FAILED),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_error_has_its_exit_code(error, code):
    assert exit_code(error) is code


def test_exit_codes_are_distinct_and_documented_in_help():
    assert [int(code) for code in ExitCode] == [1, 2, 3, 4, 5]
    text = " ".join(call("--help").stdout.split())
    for code in ("0 done", "1 failed", "2 wrong usage", "3 refused", "4 unreachable", "5 no data"):
        assert code in text
    assert {code for code, _ in EXIT_CODES} < set(ExitCode)
    assert CommandError("words").exit_code == ExitCode.USAGE


def test_commands_exit_with_these_codes(tmp_path):
    (tmp_path / "bad").write_bytes(b"no file of ours")
    (tmp_path / "token").write_text("emo_x\n", encoding="utf-8")
    (tmp_path / "token").chmod(0o600)
    failure(call("show", tmp_path / "none"), 5)
    failure(call("show", tmp_path / "bad"), 3)
    failure(call("learn", tmp_path / "new", "-", "--new", "bank"), 2)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        failure(call("fleet", "list", "--server", url, "--token-file", tmp_path / "token"), 4)


@pytest.fixture
def readings(tmp_path, monkeypatch):
    """A folder with files of samples, a projection and a bank that fit, and an agent's file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.csv").touch()
    (tmp_path / "header.csv").write_text("a,b\n", encoding="utf-8")
    rows = "".join(f"{i / 50},{i % 7 / 7}\n" for i in range(50))
    (tmp_path / "s.csv").write_text("a,b\n" + rows, encoding="utf-8")
    shared = Projection(n_inputs=2, n_hidden=3)
    save(shared, tmp_path / "shared")
    save(Bank(shared), tmp_path / "bank")
    save(Stats.empty(shared), tmp_path / "sums")
    source = '[source]\nkind = "csv"\npath = "gone.csv"\ncolumns = ["1", "2"]\n'
    text = 'device = "a"\nstate = "state"\n[projection]\nfile = "shared"\n' + source
    (tmp_path / "agent.toml").write_text(text, encoding="utf-8")
    return tmp_path


NEW = ("--new", "bank", "--projection", "shared")


@pytest.mark.parametrize("file", ["empty.csv", "header.csv"])
@pytest.mark.parametrize(
    "words",
    [("init",), ("replay",), ("learn", "new"), ("learn", "bank"), ("score", "bank")],
    ids=" ".join,
)
def test_a_file_without_samples_is_no_data_for_every_command(readings, words, file):
    new = NEW if words[-1] == "new" else ()
    before = (readings / "bank").read_bytes()
    result = call(*words, file, *new)
    assert result.exit_code == ExitCode.NO_DATA, result.output
    words = result.stderr.splitlines()[-1]
    assert words.startswith(f"Error: {file}: found no ")
    assert ", expected " in words
    assert (readings / "bank").read_bytes() == before
    assert not (readings / "new").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("init", "gone"),
        ("score", "bank", "gone"),
        ("agent", "gone.toml"),
        ("agent", "agent.toml"),
        ("replay", "gone.toml"),
        ("replay", "agent.toml"),
        ("restore", "gone", "--database", "hub.sqlite"),
        ("certificate", "gone"),
        ("fleet", "list", "--server", "http://127.0.0.1:1", "--token-file", "gone"),
        ("fleet", "invite", "pumps", "--from", "gone", "--out", "x", "--server", "http://a"),
        ("bulk", "new", "gone.csv", "--projection", "shared"),
        ("paper", "report", "--out", "."),
        ("paper", "claims", "--out", "."),
    ],
    ids=" ".join,
)
def test_a_file_that_is_not_there_is_no_data_for_every_command(readings, words):
    if words[0] == "fleet" and "--token-file" not in words:
        (readings / "token").write_text("emo_x\n", encoding="utf-8")
        words = (*words, "--token-file", "token")
    result = call(*words)
    assert result.exit_code == ExitCode.NO_DATA, result.output


@pytest.mark.usefixtures("readings")
def test_a_column_that_the_data_do_not_have_is_wrong_usage():
    for words in [("init",), ("learn", "bank"), ("score", "bank"), ("replay",)]:
        result = call(*words, "s.csv", "--columns", "nope")
        assert result.exit_code == ExitCode.USAGE, result.output
        assert "found no column 'nope', expected" in result.stderr


@pytest.mark.usefixtures("readings")
def test_columns_that_are_too_few_are_counted_with_the_names_of_the_inputs():
    save(Bank(Projection(n_inputs=2, n_hidden=3, names=("a", "b"))), "named")
    for words in [("learn", "named"), ("score", "named")]:
        result = call(*words, "s.csv", "--columns", "a")
        assert result.stderr == (
            "Error: s.csv: found 1 columns, expected 2: a, b; choose them with --columns\n"
        )
        assert result.exit_code == ExitCode.USAGE
    result = call("replay", "s.csv", "--columns", "a", "--projection", "shared")
    assert "s.csv: found 1 columns, expected 2; choose them with --columns" in result.stderr


def test_an_output_that_cannot_be_written_is_a_failure_that_names_the_file(readings):
    (readings / "file").touch()
    for place in ("gone/new", "file/new"):
        for words in [
            ("learn", place, "s.csv", *NEW),
            ("merge", "--total", "--as", "stats", "sums", "--out", place),
            ("init", "s.csv", "--yes", "-o", f"{place}.toml"),
            ("serve", "--database", place),
            ("serve", "--port", 0, "--port-file", place),
            ("agent", "agent.toml", "--set", f"state={place}", "--set", "source.path=s.csv"),
        ]:
            if words[0] == "agent" and place.startswith("gone"):
                continue  # it makes the folder
            result = call(*words)
            assert result.exit_code == ExitCode.FAILED, (words, result.output)
            assert re.search(r"(?<![\w.])(file|gone)/", result.stderr), (words, result.stderr)
            assert "/." not in result.stderr, (words, result.stderr)
    assert not list(readings.glob("edgemerge.sqlite*"))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("trust", "pumps", "foo"), "found the rule 'foo', expected members, quorum:K with K"),
        (("trust", "pumps", "quorum:1"), "found the rule 'quorum:1', expected members, quorum:K"),
        (("create", "pumps", "--trust", "foo"), "found the rule 'foo', expected members"),
        (("create", "pumps", "--min-devices", 0), "0 is not in the range 1<=x<=10000"),
        (("settings", "pumps", "pump-1", "--limit", -1), "limit=-1.0, expected a finite number"),
        (
            ("settings", "pumps", "pump-1", "--false-alarms", "often"),
            'false_alarms="often", expected such as',
        ),
    ],
)
def test_a_value_that_cannot_be_is_wrong_usage_before_a_server_is_asked(tmp_path, words, expected):
    (tmp_path / "token").write_text("emo_x\n", encoding="utf-8")
    where = ("--server", "http://127.0.0.1:1", "--token-file", tmp_path / "token")
    result = call("fleet", *words, *where)
    assert result.exit_code == ExitCode.USAGE, result.output
    assert expected in result.stderr


def test_ctrl_c_is_130(monkeypatch):
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("edgemerge.files.load", interrupt)
    stopped = call("show", "any")
    assert (stopped.exit_code, stopped.stderr) == (130, "Stopped.\n")


def test_serve_reads_its_variables_and_options_win(monkeypatch, tmp_path):
    given = {}
    monkeypatch.setattr("edgemerge.server.main.serve", given.update)
    variables = {
        "EDGEMERGE_DATABASE": str(tmp_path / "hub.sqlite"),
        "EDGEMERGE_HOST": "0.0.0.0",
        "EDGEMERGE_PORT": "9000",
        "EDGEMERGE_ADMIN_TOKEN_FILE": str(tmp_path / "token"),
        "EDGEMERGE_PORT_FILE": str(tmp_path / "port"),
        "EDGEMERGE_LOG_LEVEL": "error",
        "EDGEMERGE_LOG_JSON": "1",
    }
    result = call("serve", "--port", 9001, **variables)
    assert result.exit_code == 0, result.output
    assert (given["database"], given["host"]) == (variables["EDGEMERGE_DATABASE"], "0.0.0.0")
    assert given["port"] == 9001
    assert given["admin_token_file"] == tmp_path / "token"
    assert given["port_file"] == tmp_path / "port"


def test_every_option_of_serve_has_a_variable_that_help_shows():
    text = call("serve", "--help").stdout
    for option in found(["serve"]).params:
        name, *former = option.envvar
        assert name == f"EDGEMERGE_{option.name.upper()}"
        assert all(each in text for each in (name, *former))


@pytest.mark.parametrize("by", ["option", "variable"])
def test_the_file_of_the_first_token_is_still_taken_under_its_former_name(monkeypatch, by):
    given = {}
    monkeypatch.setattr("edgemerge.server.main.serve", given.update)
    if by == "option":
        result = call("serve", "--operator-token-file", "token")
        assert "use --admin-token-file instead" in result.stderr
    else:
        result = call("serve", EDGEMERGE_OPERATOR_TOKEN_FILE="token")
    assert result.exit_code == 0, result.output
    assert str(given["admin_token_file"]) == "token"
