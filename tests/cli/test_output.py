"""What commands print on a terminal, and what in a pipe."""

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

import click
import pytest

from edgemerge.cli import output
from tests.cli.calls import clean_environment

SHOW = "from edgemerge.cli import output\n"
PROGRESS = SHOW + "with output.progress('learning', 2) as step:\n    step(1)\nprint('done')"


def on_a_terminal(code: str, **environment: str) -> tuple[bytes, bytes]:
    """What a program prints to stdout, and what to a terminal that its stderr is."""
    here, there = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=clean_environment(TERM="xterm", **environment),
            stdout=subprocess.PIPE,
            stderr=there,
            timeout=60,
            check=True,
        )
        os.close(there)
        return done.stdout, b"".join(_read(here))
    finally:
        os.close(here)


def _read(handle: int) -> Iterator[bytes]:
    with suppress(OSError):  # EIO: nobody holds the other end
        while data := os.read(handle, 65_536):
            yield data


def test_progress_is_shown_on_a_terminal_and_only_on_stderr():
    told, shown = on_a_terminal(PROGRESS)
    assert told == b"done\n"
    assert b"learning" in shown


def test_nothing_moves_where_nobody_watches():
    done = subprocess.run(
        [sys.executable, "-c", PROGRESS],
        env=clean_environment(),
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert (done.stdout, done.stderr) == (b"done\n", b"")


def test_a_table_for_a_pipe_is_not_wrapped_and_has_no_blanks_at_its_ends(capsys):
    rows = [{"name": "x" * 90, "count": 1}, {"name": "y", "count": 20}]
    output.print_table(rows, {"name": "NAME", "count": "COUNT"})
    first, long, short = capsys.readouterr().out.splitlines()
    assert first == f"{'NAME':<90}  COUNT"
    assert long == f"{'x' * 90}      1"
    assert short == f"{'y':<90}     20"


def test_a_table_without_rows_has_its_headings(capsys):
    output.print_table([], {"name": "NAME", "count": "COUNT"})
    assert capsys.readouterr().out == "NAME  COUNT\n"


def test_names_that_look_like_markup_are_printed_as_they_are(capsys):
    output.print_table([{"name": "[red]pump[/red]"}], {"name": "NAME"})
    assert "[red]pump[/red]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "yes"),
        (False, "no"),
        (None, "-"),
        (1234567.5, "1,234,567.5"),
        (12, "12"),
        ([], "none"),
        (["a", 2.0], "a, 2"),
        ({"normal": 1.5, "idle": None}, "normal 1.5, idle -"),
    ],
)
def test_values_are_written_for_people(value, text):
    assert output.format_value(value) == text


def test_moments_are_written_in_utc():
    assert output.format_time(0.0) == "1970-01-01T00:00:00Z"
    assert output.format_time(1763157600) == "2025-11-14T22:00:00Z"
    assert output.format_time(None) is None
    assert output.format_time("2026-01-01") == "2026-01-01"


def test_on_a_narrow_terminal_long_names_are_wrapped_and_moments_are_not(capsys, monkeypatch):
    monkeypatch.setattr(output, "PIPE_WIDTH", 40)
    rows = [{"name": "x" * 50, "at": "2026-11-15T23:37:05Z", "what": "y" * 50}]
    output.print_table(rows, {"name": "NAME", "at": "AT", "what": "WHAT"})
    told = capsys.readouterr().out
    assert "2026-11-15T23:37:05Z" in told
    assert told.count("x") == 50
    assert max(map(len, told.splitlines())) <= 40


def test_words_are_broken_at_spaces_only_and_the_longest_text_shrinks_first(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    state = "ended, acknowledged by operator anna"
    row = {"device": "pump-1", "number": "12", "began": "2026-11-15T23:37:05Z", "lasted": "1,204 s"}
    row |= {"peak": "5.4 times the usual", "state": state, "what": "vibration ×12.5, flow ×8.1"}
    output.print_table([row] * 2, output.headings(*row))
    out = click.unstyle(capsys.readouterr().out)
    for word in " ".join(row.values()).split():
        assert out.count(word) >= 2, out
    assert max(map(len, out.splitlines())) <= 80


def test_no_digit_is_lost_on_a_narrow_terminal(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    rows = [dict.fromkeys("abcdef", 1234567) | {"words": "some words that may be folded " * 3}]
    output.print_table(rows, dict.fromkeys("abcdef", "HEADING") | {"words": "WORDS"})
    out = click.unstyle(capsys.readouterr().out)
    assert out.count("1234567") == 6
    assert out.count("HEADING") == 6
    assert max(map(len, out.splitlines())) < 70
