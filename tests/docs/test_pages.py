"""What README.md and the pages under docs/ show is what happens."""

from pathlib import Path

import pytest

from run_page import PageError, examples, run_page

ROOT = Path(__file__).parents[2]
PAGES = [
    page
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if "_build" not in page.parts and any(examples(page.read_text(encoding="utf-8")))
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_do_what_the_page_says(page):
    run_page(page)


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
