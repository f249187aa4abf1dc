"""Jobs are done once: kept, found again, and done anew when anything they depend on has changed."""

import json
from dataclasses import replace

import pytest

from edgemerge.paper.plan import FinishedJob, Job, Scope, run_here
from edgemerge.paper.running import job_cache
from edgemerge.paper.running.job_cache import JobCache, interleave
from edgemerge.paper.running.result_files import RowError
from tests.paper.made_up import jobs, logged, work

JOB = Job("made-up", "", "any", 0)


@pytest.fixture
def scope(tmp_path) -> Scope:
    return Scope(tmp_path)


@pytest.fixture
def keeper(tmp_path) -> JobCache:
    return JobCache(tmp_path / "cache")


class Heard:
    def __init__(self) -> None:
        self.words: list[str] = []

    def jobs_added(self, jobs) -> None:
        self.words.append(f"{len(jobs)} coming")

    def done(self, done: FinishedJob, *, before: bool) -> None:
        self.words.append(f"{done.job.trial} {'before' if before else 'now'}")


def test_what_was_done_is_not_done_again(keeper, scope):
    first = list(keeper.spread(work, jobs(3), scope))
    assert list(keeper.spread(work, jobs(4), scope))[:3] == first
    assert [trial for trial, _ in logged(scope.folder)] == [0, 1, 2, 3]


def test_rows_are_in_the_order_of_jobs_whichever_is_done_first(tmp_path, scope):
    def backwards(work, jobs, scope):
        return run_here(work, jobs[::-1], scope)

    rows = list(JobCache(tmp_path / "cache", backwards).spread(work, jobs(3), scope))
    assert [row["trial"] for one in rows for row in one] == [0, 1, 2]
    assert [trial for trial, _ in logged(tmp_path)] == [2, 1, 0]


@pytest.mark.parametrize(
    "change",
    [{"seed": 8}, {"quick": True}],
    ids=str,
)
def test_another_scope_is_done_again_and_kept_beside(keeper, scope, change):
    for one in (scope, replace(scope, **change), scope):
        list(keeper.spread(work, [JOB], one))
    assert len(logged(scope.folder)) == 2


def test_other_settings_are_done_again(keeper, scope):
    list(keeper.spread(work, jobs(1), scope))
    list(keeper.spread(work, jobs(1, "N = 64"), scope))
    assert len(logged(scope.folder)) == 2


def test_another_format_is_done_again(keeper, scope, monkeypatch):
    list(keeper.spread(work, [JOB], scope))
    monkeypatch.setattr(job_cache, "CACHE_FORMAT", job_cache.CACHE_FORMAT + 1)
    assert keeper.kept(JOB, scope) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda _: "",
        lambda _: "\0" * 100,
        lambda _: "[]",
        lambda _: "{}",
        lambda text: json.dumps({**json.loads(text), "rows": None}),
        lambda text: json.dumps({**json.loads(text), "rows": [1, 2]}),
        lambda text: text.replace("0.0}", "NaN}"),
    ],
)
def test_a_damaged_file_is_done_again(keeper, scope, damage):
    [rows] = keeper.spread(work, [JOB], scope)
    path = keeper.path(JOB, scope)
    before = path.read_text(encoding="utf-8")
    path.write_text(damage(before), encoding="utf-8")
    assert path.read_text(encoding="utf-8") != before
    assert list(keeper.spread(work, [JOB], scope)) == [rows]
    assert len(logged(scope.folder)) == 2
    assert keeper.kept(JOB, scope).rows == rows


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, True, [1.0]], ids=repr)
def test_what_no_file_can_hold_is_refused_with_the_job_that_gave_it(keeper, scope, value):
    with pytest.raises(
        RowError, match=r"made-up any trial 0: found auc = .* expected text or a fin"
    ):
        keeper.spread(lambda *_: [{"auc": value}], [JOB], scope)
    assert keeper.kept(JOB, scope) is None


def test_jobs_that_would_be_kept_in_one_file_are_refused(keeper, scope):
    with pytest.raises(RowError, match=r"2 jobs would be kept in .*: give each a `part`"):
        keeper.spread(work, [JOB, replace(JOB, settings="other")], scope)
    parts = [replace(JOB, part=part) for part in ("a", "a/b", "a-b", "../a")]
    assert len(list(keeper.spread(work, parts, scope))) == 4
    assert all(keeper.path(job, scope).parent == keeper.path(JOB, scope).parent for job in parts)


def test_rows_are_the_same_fresh_and_kept(keeper, scope):
    import numpy as np

    def odd(*_):
        return [{"auc": np.float64(0.1), "name": np.str_("a")}]

    [fresh] = keeper.spread(odd, [JOB], scope)
    [kept] = keeper.spread(odd, [JOB], scope)
    assert [type(value) for value in fresh[0].values()] == [float, str]
    assert fresh == kept


def test_a_failing_job_leaves_those_before_it_kept(keeper, scope):
    (scope.folder / "break-2").touch()
    with pytest.raises(ZeroDivisionError):
        keeper.spread(work, jobs(4), scope)
    assert [keeper.kept(job, scope) is not None for job in jobs(4)] == [True, True, False, False]
    assert not list(scope.folder.rglob("*.part"))


def test_who_watches_hears_of_each_job(tmp_path, scope):
    list(JobCache(tmp_path / "cache").spread(work, jobs(1), scope))
    heard = Heard()
    list(JobCache(tmp_path / "cache", run_here, heard).spread(work, jobs(2), scope))
    assert heard.words == ["2 coming", "0 before", "1 now"]


def test_how_long_a_job_took_is_kept(keeper, scope):
    list(keeper.spread(work, [JOB], scope))
    assert 0.0 < keeper.kept(JOB, scope).seconds < 60.0


def test_one_job_of_each_kind_is_done_first():
    given = [replace(JOB, method=method, trial=trial) for method in "ab" for trial in (0, 1)]
    assert [f"{job.method}{job.trial}" for job in interleave(given)] == ["a0", "b0", "a1", "b1"]


def test_nothing_to_do_is_nothing(keeper, scope):
    assert list(keeper.spread(work, [], scope)) == []
