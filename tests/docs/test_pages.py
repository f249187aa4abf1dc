"""What README.md and the pages under docs/ show is what happens."""

import os
import socket
from pathlib import Path

import pytest

from run_page import PageError, examples, run_page
from tests.cli.calls import call

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGES = [
    page
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if "_build" not in page.parts and any(examples(page.read_text(encoding="utf-8")))
]


def called(words):
    """Run a command in this process: starting a program for each takes minutes in all."""
    result = call(*words)
    return result.exit_code, result.stderr


def starts_programs(page):
    """Whether a page takes long because it starts a server, agents or the demo."""
    return "\n$ edgemerge" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.long if starts_programs(page) else ()) for page in PAGES],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_examples_do_what_the_page_says(page):
    run_page(page, command=called)


def written(folder: Path, *blocks: str) -> Path:
    page = folder / "page.md"
    page.write_text("# Title\n\n" + "\n\n".join(blocks) + "\n", encoding="utf-8")
    return page


def test_blocks_of_a_page_share_one_namespace(tmp_path):
    page = written(tmp_path, "```python\na = 1\n```", "```python\nprint(a)\n```\n\n```text\n1\n```")
    assert run_page(page) == 2


def test_other_output_is_told_with_page_and_line(tmp_path):
    page = written(tmp_path, "```python\nprint(1)\n```", "```text\n2\n```")
    with pytest.raises(PageError, match=r"page\.md:4: other output[\s\S]*-2\n\+1"):
        run_page(page)


def test_text_after_prose_is_not_compared(tmp_path):
    page = written(tmp_path, "```python\nprint(1)\n```", "Prose.", "```text\n2\n```")
    assert run_page(page) == 1


def test_an_exception_is_told_with_its_line(tmp_path):
    page = written(tmp_path, "```python\na = 1\na / 0\n```")
    with pytest.raises(PageError, match=r"page\.md:5: ZeroDivisionError"):
        run_page(page)


def test_a_failing_command_is_told_with_its_line(tmp_path):
    page = written(tmp_path, "```console\n$ make demo\n$ edgemerge no-such-command\n```")
    with pytest.raises(PageError, match=r"page\.md:5: exit \d+: \$ edgemerge no-such-command"):
        run_page(page)


def test_a_failing_command_without_a_program_is_told_with_its_line(tmp_path):
    page = written(tmp_path, "```console\n$ make demo\n$ edgemerge show 'no such' $HOME\n```")
    given = []

    def command(words):
        given.append(words)
        return 3, "no"

    with pytest.raises(PageError, match=r"page\.md:5: exit 3: \$ edgemerge show .*\nno"):
        run_page(page, command=command)
    assert given == [["show", "no such", os.environ["HOME"]]]


@pytest.mark.slow
def test_a_program_in_the_background_is_ready_before_the_page_goes_on_and_ends_with_it(tmp_path):
    page = written(
        tmp_path,
        "```console\n$ edgemerge serve --port 0 --port-file port &\n"
        "$ export EDGEMERGE_SERVER=http://127.0.0.1:$(cat port)\n"
        "$ edgemerge fleet list \\\n    --token-file edgemerge.sqlite.admin-token\n```",
        "```python\nimport os\nfrom pathlib import Path\n"
        f"Path({str(tmp_path / 'url')!r}).write_text(os.environ['EDGEMERGE_SERVER'])\n```",
    )
    assert run_page(page) == 2
    host, port = (tmp_path / "url").read_text().removeprefix("http://").split(":")
    with socket.socket() as there:
        assert there.connect_ex((host, int(port))) != 0
    assert "EDGEMERGE_SERVER" not in os.environ


@pytest.mark.slow
def test_a_program_that_never_gets_ready_is_told_with_its_words(tmp_path):
    page = written(tmp_path, "```console\n$ edgemerge serve --database nosuch/x --port 0 &\n```")
    with pytest.raises(PageError, match=r"page\.md:4: not ready \(exit 1\)[\s\S]*nosuch"):
        run_page(page)


@pytest.mark.slow
def test_a_program_that_does_not_end_well_is_told(tmp_path):
    killed = (
        "```python\nimport os\nfrom pathlib import Path\n"
        "os.kill(int(Path('state/lock').read_text()), 9)\n```"
    )
    agent = (
        '# a.toml\ndevice = "a"\nstate = "state"\n[projection]\nn_inputs = 1\n'
        '[source]\nkind = "tail"\npath = "nothing.csv"\n'
    )
    run = "```console\n$ edgemerge agent a.toml &\n```"
    assert run_page(written(tmp_path, f"```toml\n{agent}```", run)) == 2
    with pytest.raises(PageError, match=r"did not end well: edgemerge agent a\.toml &"):
        run_page(written(tmp_path, f"```toml\n{agent}```", run, killed))


def test_a_toml_block_without_a_name_is_only_shown(tmp_path):
    assert run_page(written(tmp_path, '```toml\ndevice = "a"\n```')) == 0
