"""Jobs spread over processes: all come back, nobody is left behind, and a death is explained."""

from time import monotonic

import pytest

from edgemerge.paper.plan import Scope
from edgemerge.paper.running.job_cache import JobCache
from edgemerge.paper.running.results_runner import BrokenJobError, JobError, run_in
from edgemerge.workers import STOP_TIMEOUT_S, WorkerPool, available_cores
from tests.paper.made_up import jobs, logged, work
from tests.paper.processes import gone
from tests.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture
def execute():
    with WorkerPool(2) as pool:
        yield run_in(pool)


def test_all_jobs_are_done_by_as_many_processes_as_there_may_be(tmp_path, execute):
    scope = Scope(tmp_path)
    (tmp_path / "hold-0").touch()
    found = []
    for done in execute(work, jobs(5), scope):
        found.append(done.job.trial)
        if len(found) == 4:
            (tmp_path / "hold-0").unlink()
    assert found == [1, 2, 3, 4, 0]
    assert len({process for _, process in logged(tmp_path)}) == 2
    list(execute(work, jobs(1), scope))
    assert len({process for _, process in logged(tmp_path)}) == 2


def test_rows_are_in_the_order_of_jobs_whichever_worker_ends_first(tmp_path, execute):
    (tmp_path / "hold-0").touch()

    def do(*given):
        for done in execute(*given):
            (tmp_path / "hold-0").unlink(missing_ok=True)
            yield done

    keeper = JobCache(tmp_path / "cache", do)
    rows = [row for one in keeper.spread(work, jobs(3), Scope(tmp_path)) for row in one]
    assert [row["trial"] for row in rows] == [0, 1, 2]
    assert logged(tmp_path)[0][0] == 1


def test_a_process_that_is_killed_is_told_with_its_job_and_what_to_do(tmp_path, execute):
    (tmp_path / "die-1").touch()
    with pytest.raises(
        JobError, match=r"did made-up any trial 1 was ended by signal 9.*memory.*fewer --workers"
    ):
        list(execute(work, jobs(3), Scope(tmp_path)))
    (tmp_path / "die-1").unlink()
    assert len(list(execute(work, jobs(3), Scope(tmp_path)))) == 3  # by new processes


def test_an_error_for_the_user_arrives_as_one_and_a_bug_with_its_trace(tmp_path, execute):
    (tmp_path / "fail-0").touch()
    with pytest.raises(JobError, match="made-up any trial 0: as it was told"):
        list(execute(work, jobs(1), Scope(tmp_path)))
    (tmp_path / "fail-0").rename(tmp_path / "break-0")
    with pytest.raises(
        BrokenJobError, match=r"trial 0 failed:\n.*Traceback[\s\S]*in work\n[\s\S]*a bug"
    ):
        list(execute(work, jobs(1), Scope(tmp_path)))


def test_processes_end_at_once_when_they_are_no_longer_wanted(tmp_path):
    (tmp_path / "hold-1").touch()
    with WorkerPool(2) as pool:
        next(run_in(pool)(work, jobs(2), Scope(tmp_path)))
        until((tmp_path / "begun-1").exists, "trial 1")
        processes = [one.pid for one in pool.processes]
        assert len(processes) == 2
        start = monotonic()
    assert all(map(gone, processes))
    assert monotonic() - start < STOP_TIMEOUT_S  # none had to be killed


def test_cores_that_may_not_be_used_are_not_counted():
    assert available_cores() >= 1
