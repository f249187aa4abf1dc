"""The report tells what a folder shows: from its files alone, with what is missing and why."""

import re
from dataclasses import replace
from itertools import pairwise

import pytest

from edgemerge.paper.data.catalog import MissingDataError
from edgemerge.paper.reporting import content, markdown
from edgemerge.paper.reporting.content import MAX_ROWS_SHOWN, count_verdicts, read_report
from edgemerge.paper.running import result_files
from tests.paper import made_up
from tests.paper.folders import AUC, RECORD, RESULTS, ROWS, fill, result


@pytest.fixture
def folder(tmp_path):
    return fill(tmp_path / "results")


@pytest.fixture
def report(folder):
    return read_report(folder, RESULTS)


@pytest.fixture
def page(report) -> str:
    return markdown.render_markdown(report, pictures="images/paper", rows="results/paper")


def test_results_are_in_the_order_of_the_paper_and_the_missing_ones_are_named(report):
    assert [section.name for section in report.sections] == ["made-up", "auc"]
    assert [absent.name for absent in report.absent] == ["loss-driving", "cost"]


def test_what_needs_data_that_may_not_be_passed_on_says_so(report):
    driving, cost = report.absent
    assert "get from the makers" in driving.why
    assert "may not be passed on" in driving.why
    assert cost.why == "It was not run."


def test_an_empty_folder_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(MissingDataError, match=r"holds no results: run `edgemerge paper all --out"):
        read_report(tmp_path, RESULTS)


def test_the_claims_are_counted(report):
    assert count_verdicts(report) == "Of 4 claims 2 hold and 1 do not; not measured: 1."


def test_the_summary_has_the_means_with_the_best_in_bold(report):
    table = content.mean_auc_table(report)
    assert table.head == ["method", "HAR", "MNIST"]
    assert table.lines == [
        ["before merging", "0.735 ± 0.004 (50)", "0.720 ± 0.004 (50)"],
        ["after merging", "0.892 ± 0.004 (50)", "0.868 ± 0.004 (50)"],
        ["ours, best", "0.957 ± 0.004 (50)", "–"],
    ]
    assert table.bold == {(2, 1), (1, 2)}


def test_people_held_out_have_a_column_beside_har(folder):
    people = [row | {"auc": row["auc"] - 0.03} for row in AUC if row["dataset"] == "har"]
    result_files.save_result(folder, replace(RECORD, result="auc-by-person"), people)
    table = content.mean_auc_table(read_report(folder, [*RESULTS, result("auc-by-person")]))
    assert table.head == ["method", "HAR", "HAR by person", "MNIST"]
    assert table.lines[1][:3] == ["after merging", "0.892 ± 0.004 (50)", "0.862 ± 0.004 (50)"]
    assert table.bold == {(2, 1), (2, 2), (1, 3)}


def test_the_paper_s_claims_are_a_table_with_what_was_not_run_at_its_end(report, page):
    table = content.paper_claims_table(report)
    verdicts = [line[4] for line in table.lines]
    assert verdicts == sorted(verdicts)
    assert set(verdicts) == {"holds", "not run here"}
    assert "## The paper's claims, each as a row" in page
    hold, none = verdicts.count("holds"), verdicts.count("not run here")
    counts = f"claims {hold} hold, 0 hold in part and 0 do not; not run here: {none}."
    assert counts in content.paper_claims_note(report)
    assert "run elsewhere on all 40 real trips" in report.absent[0].why


def test_without_roc_auc_there_are_no_means(folder):
    assert content.mean_auc_table(read_report(folder, [made_up])) is None


def test_claims_that_do_not_hold_come_first(report):
    assert [line[0] for line in content.claims_table(report).lines] == ["✗", "✓", "–", "✓"]


def test_rows_are_shown_if_they_are_few_or_the_result_says_which(tmp_path):
    many = [{"a": i} for i in range(MAX_ROWS_SHOWN + 1)]
    smaller = result("made-up", table=lambda rows: rows[:2])
    for rows, each, shown in [(many[1:], result("made-up"), MAX_ROWS_SHOWN), (many, smaller, 2)]:
        result_files.save_result(tmp_path, RECORD, rows)
        assert len(read_report(tmp_path, [each]).sections[0].table.lines) == shown
    assert read_report(tmp_path, [result("made-up")]).sections[0].table is None


EARLIER = "done in an earlier run"


def test_the_record_becomes_words():
    found = content.record_facts(replace(RECORD, quick=True, baselines="torch is not installed"))
    assert found == {
        "Command": "`edgemerge paper made-up --seed 7 --trials 50 --baseline-trials 3 --quick`",
        "Quick": "yes: a part of the data, so the numbers differ from those of a full run",
        "Baselines": "not run: torch is not installed",
        "Rows": "`made-up.csv`",
        "Made": "2026-01-02T03:04:05Z, edgemerge 0.1.0",
        "Time": f"1 min 01 s, 6 jobs, 2 of them {EARLIER}; the jobs alone took 1 min 40 s",
        "Data": "har, SHA-256 abababababababab…",
        "Settings of har BP-NN3": "`Network(8)`",
        "Settings of har many": "`a`, `b`, `c` and 2 more",
    }


FORMER_SCALE = "Made before own samples set the scale of scores after a merge (decision 0028)"


def test_a_reader_is_told_first_what_is_rough_and_what_is_missing(report):
    assert content.remarks(report) == [
        "Made quickly, from a part of the data, so that the numbers are rough: auc.",
        "Made without networks as baselines, where there are any: auc.",
        f"{FORMER_SCALE}: made-up, auc.",
        "Not run, and listed at the end: loss-driving, cost.",
    ]


def test_each_machine_is_told_with_what_it_made(report):
    first, second = content.machines(report).items()
    words = "Abacus 3, Linux x, 2 cores, 8 GB of memory, Python 3.11, edgemerge 0.1.0, numpy 2.0"
    assert first == ("made-up", words)
    assert second[0] == "auc"


def test_the_page_has_every_figure_claim_and_table(page):
    assert "![Something \\<made> up (one)](images/paper/made-up-one.png)" in page
    assert "![Something \\<made> up (two)](images/paper/made-up-two.png)" in page
    assert "- ✗ Does not hold: There are \\<none> (6 rows \\| lines)\n" in page
    assert "- – Not measured: It is understood (nobody asked)\n" in page
    assert "| method | digit | trial | value | note |\n| --- | --- | ---: | ---: | --- |" in page
    assert "| after merging | 5 | 5 | 0.714 | a\\|b |" in page
    assert "[made-up.csv](results/paper/made-up.csv), 6 of them" in page
    assert "**0.957 ± 0.004 (50)**" in page
    assert "### Title of cost\n\nIt was not run.\n`edgemerge paper cost` makes it." in page


def test_the_page_has_one_sentence_to_a_line_and_no_stray_blanks(page):
    assert "It is made up.\nNothing was measured, but `code` was.\n" in page
    assert "\n\n\n" not in page
    assert not re.search(r"[ \t]\n", page)
    assert page.endswith("numpy 2.0\n- auc: unknown\n")


def test_headings_go_down_one_level_at_a_time(page):
    levels = [len(line.split()[0]) for line in page.splitlines() if re.match("#+ ", line)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(later - earlier <= 1 for earlier, later in pairwise(levels))


def test_no_line_of_the_page_would_be_run_as_an_example(page):
    assert "```" not in page


def test_the_page_and_its_pictures_are_the_same_each_time(folder, tmp_path):
    def saved(name: str) -> dict[str, bytes]:
        (tmp_path / name).mkdir()
        markdown.save_markdown(read_report(folder, RESULTS), tmp_path / name / "paper.md", folder)
        files = [path for path in (tmp_path / name).rglob("*") if path.is_file()]
        return {str(path.relative_to(tmp_path / name)): path.read_bytes() for path in files}

    one = saved("one")
    assert one == saved("two")
    assert set(one) == {"paper.md", *(f"images/paper/made-up-{end}.png" for end in ("one", "two"))}
    assert b"](../results/made-up.csv)" in one["paper.md"]


def test_a_report_without_claims_or_figures_is_a_report(tmp_path):
    result_files.save_result(tmp_path, replace(RECORD, result="auc"), ROWS[:0])
    page = markdown.render_markdown(read_report(tmp_path, [result("auc")]), pictures="i", rows="r")
    assert "Of 0 claims" in page
    assert "\n\n\n" not in page
