"""Shell completion, with a real bash."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.calls import SOURCE, call, clean_environment

bash = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")


def completed(words: str, folder: Path) -> list[str]:
    """What bash offers after these words."""
    program = folder / "bin" / "edgemerge"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\nPYTHONPATH="{SOURCE}" exec "{sys.executable}" -m edgemerge "$@"\n',
        encoding="utf-8",
    )
    program.chmod(0o755)
    script = (
        'eval "$(edgemerge completion bash)"\n'
        f"COMP_WORDS=({words} '')\n"
        'unset "COMP_WORDS[${#COMP_WORDS[@]}-1]"\n'
        "COMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n"
        "handler=$(complete -p edgemerge | sed 's/.*-F //; s/ .*//')\n"
        '"$handler" edgemerge\n'
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    environment = clean_environment(PATH=f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.slow
@bash
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("edgemerge sc", ["score"]),
        ("edgemerge s", ["score", "share", "show", "serve", "sync", "simulate"]),
        ("edgemerge fleet cre", ["create"]),
        ("edgemerge share --form r", ["root16"]),
        ("edgemerge score --expl", ["--explain"]),
        ("edgemerge completion z", ["zsh"]),
        ("edgemerge fleet review pumps pump-3 odd-1 a", ["approve", "acknowledge", "accept-drift"]),
    ],
)
def test_bash_completes_commands_options_and_choices(tmp_path, words, offered):
    assert completed(words, tmp_path) == offered


@bash
def test_the_script_for_bash_is_sound_to_bash():
    script = call("completion", "bash").stdout
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_a_script_of_their_own(shell):
    result = call("completion", shell)
    assert result.exit_code == 0
    assert f"_EDGEMERGE_COMPLETE={shell}_complete" in result.stdout


def test_an_unknown_shell_is_told_with_those_that_are_known():
    result = call("completion", "tcsh")
    assert result.exit_code == 2
    assert "'bash', 'zsh', 'fish'" in result.stderr
