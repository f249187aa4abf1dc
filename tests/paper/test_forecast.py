"""The time left is what the jobs to come took others of their kind, spread over the workers."""

import io
from functools import partial

import pytest
from rich.console import Console
from rich.progress import Progress, TextColumn

from edgemerge.paper.plan import FinishedJob, Job
from edgemerge.paper.running.progress import (
    Display,
    Forecast,
    TimeLeftColumn,
    progress_display,
)

SLOW = [Job("auc", "har", "slow", trial) for trial in range(4)]
FAST = [Job("auc", "har", "fast", trial) for trial in range(8)]


def test_nothing_is_known_before_a_job_was_timed():
    forecast = Forecast()
    forecast.expect(SLOW)
    forecast.done(SLOW[0], None)
    assert forecast.left_s is None
    assert forecast.jobs == (1, 4)


def test_each_kind_counts_by_its_own_time():
    forecast = Forecast(workers=2)
    forecast.expect([*SLOW, *FAST])
    forecast.done(SLOW[0], 90.0)
    forecast.done(SLOW[1], 110.0)
    forecast.done(FAST[0], 1.0)
    assert forecast.left_s == pytest.approx((2 * 100.0 + 7 * 1.0) / 2)
    assert forecast.share == pytest.approx(201.0 / 408.0)


def test_a_kind_that_was_not_timed_yet_counts_as_the_mean_of_those_that_were():
    forecast = Forecast()
    forecast.expect([*SLOW[:2], *FAST[:2], Job("cost", "", "any", 0)])
    forecast.done(SLOW[0], 9.0)
    forecast.done(FAST[0], 1.0)
    assert forecast.left_s == pytest.approx(9.0 + 1.0 + 5.0)


def test_one_job_is_not_done_faster_by_two_workers():
    forecast = Forecast(workers=2)
    forecast.expect(SLOW[:2])
    forecast.done(SLOW[0], 10.0)
    assert forecast.left_s == pytest.approx(10.0)
    forecast.done(SLOW[1], 10.0)
    assert (forecast.left_s, forecast.share) == (0.0, 1.0)


def test_jobs_that_are_told_again_count_once():
    forecast = Forecast()
    forecast.expect(SLOW)
    forecast.done(SLOW[0], 1.0)
    forecast.expect(SLOW)
    assert forecast.jobs == (1, 4)


def test_the_bar_shows_result_jobs_and_time_left():
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80)
    words = TextColumn("{task.description}"), TextColumn("{task.fields[jobs]}")
    with Progress(*words, TimeLeftColumn(), console=console, auto_refresh=False) as progress:
        bar = Display(partial(console.print, markup=False, highlight=False), progress, workers=2)
        bar.jobs_added(SLOW)
        bar.begin("auc")
        bar.jobs_added(SLOW)
        bar.done(FinishedJob(SLOW[0], [], 100.0), before=False)
        progress.refresh()
        bar.end("auc: [1] done")
    assert "auc 1/4 jobs 2 min 30 s left" in screen.getvalue()
    assert "auc: [1] done" in screen.getvalue()


def test_where_nobody_watches_only_results_are_told(capsys):
    said = []
    with progress_display(2, said.append) as display:
        assert isinstance(display, Display)
        display.begin("auc")
        display.jobs_added(SLOW)
        display.done(FinishedJob(SLOW[0], [], 1.0), before=False)
        display.end("auc: 4 jobs")
    assert said == ["auc: 4 jobs"]
    assert capsys.readouterr() == ("", "")
