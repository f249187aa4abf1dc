"""Workers that die, hang or give nonsense: named, left out or done again; never a wrong sum."""

import os
import signal

import numpy as np
import pytest

from edgemerge import Stats
from edgemerge.bulk import Part, chunks_of
from edgemerge.core.errors import MismatchError, SampleError, UnavailableError
from tests.bulk import readers
from tests.bulk.clusters import made_up, summed_up, until_others_are_there
from tests.bulk.histories import SHARED, history, in_npy

HERE = "127.0.0.1:0"  # Dask's own port may be in use
pytestmark = [pytest.mark.long, pytest.mark.timeout(900), pytest.mark.xdist_group("dask")]


def test_a_worker_that_dies_changes_no_bit(client, tmp_path):
    pids = client.run(os.getpid)
    done = []

    def advance(chunk):
        done.append(chunk)
        if len(done) == 100:  # it holds sums that nobody else has
            os.kill(min(pids.values()), signal.SIGKILL)

    once = readers.DeadlyOnce(150, tmp_path / "mark")  # and one dies while it reads
    part = summed_up(client, range(200), read=once, advance=advance)
    assert part == Part(made_up(range(200)), 200)
    assert sorted(done) == list(range(200))
    assert once.mark.exists()


def test_parts_that_are_lost_and_cannot_be_made_again_at_once_are_made_alone(client, tmp_path):
    done = []

    def advance(chunk):
        done.append(chunk)
        if len(done) == 6:  # all parts are on workers, and now on none
            for pid in client.run(os.getpid).values():
                os.kill(pid, signal.SIGKILL)

    again = readers.DeadlyAgain(3, tmp_path / "marks")
    part = summed_up(client, range(6), read=again, advance=advance)
    assert part == Part(made_up(range(6)), 6)
    assert sorted(done) == list(range(6))
    assert len(again.marks.read_text()) > 4  # it was lost, and ended workers since


def test_a_bad_chunk_ends_the_work_and_names_chunk_and_worker(client, tmp_path):
    X = history(500)
    X[321, 1] = np.nan
    path = in_npy(X, tmp_path / "a.npy")
    chunks = chunks_of(path, chunk_bytes=3200)
    words = r"^worker tcp://127\.0\.0\.1:\d+: .*a\.npy, rows 300 to 400: row 22, column 2"
    with pytest.raises(SampleError, match=words):
        summed_up(client, chunks)
    part = summed_up(client, chunks, bad_chunks="skip")
    assert part.stats == Stats.of(SHARED, np.delete(X, range(300, 400), axis=0))
    ((name, reason),) = part.refused
    assert name == str(chunks[3])
    assert "row 22, column 2" in reason
    assert (part.chunks, part.left_out) == (4, 0)
    rows = summed_up(client, chunks, bad_rows="skip")
    assert rows.stats == Stats.of(SHARED, np.delete(X, 321, axis=0))
    assert (rows.chunks, rows.left_out, rows.refused) == (5, 1, ())


def test_a_chunk_that_never_ends_is_named_or_left_out(client):
    choice = {
        "read": readers.stuck_at_5,
        "stall_timeout_s": 10.0,
    }  # a busy machine takes 5 to start one anew
    from edgemerge.dask import tasks

    words = r"worker tcp://127\.0\.0\.1:\d+: 5: twice not done within 10 s: raise stall_timeout_s"
    done = []
    part = summed_up(client, range(40), bad_chunks="skip", advance=done.append, **choice)
    assert part.stats == made_up(range(40), but=[5])
    ((name, reason),) = part.refused
    assert name == "5"
    assert sorted(done) == list(range(40))
    until_others_are_there(client, ended=reason.split(": ")[0].removeprefix("worker "))
    with pytest.raises(UnavailableError, match=words):
        summed_up(client, range(40), **choice)
    client.run(tasks.exit_worker, wait=False, on_error="ignore")


def test_a_chunk_that_ends_its_workers_is_left_out_and_named(client):
    part = summed_up(client, range(40), bad_chunks="skip", read=readers.deadly_at_5)
    assert part.stats == made_up(range(40), but=[5])
    ((name, reason),) = part.refused
    assert name == "5"
    assert reason.startswith("worker tcp://127.0.0.1:")
    assert "5: it died while reading it, as 3 did before: cut smaller chunks" in reason


def test_a_small_chunk_that_ends_its_workers_takes_no_other_with_it(client, monkeypatch):
    monkeypatch.setattr("edgemerge.dask.tasks.CHUNK_BYTES", 10)
    small = [readers.Small(number) for number in range(12)]
    done = []
    part = summed_up(
        client, small, read=readers.deadly_small, bad_chunks="skip", advance=done.append
    )
    assert part.stats == made_up(range(12), but=[5])
    assert [name for name, _ in part.refused] == ["small chunk 5"]
    assert sorted(each.number for each in done) == list(range(12))


def test_a_worker_with_another_projection_is_named(client):
    def other(number):
        from edgemerge.core import projection
        from edgemerge.dask import tasks

        projection.FORMAT = number
        projection._agreed.cache_clear()
        tasks.build_projection.cache_clear()

    address = sorted(client.nthreads())[1]
    client.run(other, 2, workers=[address])
    try:
        with pytest.raises(MismatchError, match=rf"^worker {address}: found Projection.*install"):
            summed_up(client, range(40), read=readers.made_up, bad_chunks="skip")
    finally:
        client.run(other, 1, workers=[address])
    assert summed_up(client, range(40), read=readers.made_up).stats == made_up(range(40))


def test_an_error_that_is_not_ours_ends_the_work_with_advice(client):
    with pytest.raises(
        UnavailableError, match=r"^0: found ZeroDivisionError.*see `read`, and its file"
    ):
        summed_up(client, [0], read=readers.broken, bad_chunks="skip")


def test_a_cluster_that_has_gone_is_told():
    from edgemerge.dask import local_client

    with local_client(workers=1) as own:

        def advance(chunk):
            if chunk == 3:
                own.restart()  # which cancels everything

        with pytest.raises(UnavailableError, match="the cluster has let go of it"):
            summed_up(own, range(50), read=readers.slow, advance=advance)


def test_a_scheduler_that_answers_nothing_is_told():
    from distributed import Client, SubprocessCluster

    with (
        SubprocessCluster(
            n_workers=1, worker_kwargs={"nthreads": 1}, scheduler_kwargs={"dashboard_address": HERE}
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        client.wait_for_workers(1, timeout=120)
        pid = client.run_on_scheduler(os.getpid)
        assert pid != os.getpid()

        def advance(_chunk):
            os.kill(pid, signal.SIGSTOP)

        try:
            with pytest.raises(UnavailableError, match=r"^the scheduler cannot be reached: \w"):
                summed_up(
                    client, range(50), read=readers.slow, stall_timeout_s=8.0, advance=advance
                )
        finally:
            os.kill(pid, signal.SIGCONT)


def test_a_cluster_without_workers_says_how_to_start_some():
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=0, dashboard_address=HERE) as nobody,
        Client(nobody, set_as_default=False) as client,
        pytest.raises(
            UnavailableError, match=r"no worker for 1 s: start some with `dask worker tcp://"
        ),
    ):
        summed_up(client, range(3), read=readers.made_up, stall_timeout_s=1.0)


def test_work_that_hangs_everywhere_comes_to_an_end():
    from edgemerge.dask import local_client

    with (
        local_client(workers=1) as own,
        pytest.raises(UnavailableError, match=r"found (nothing done|no worker)"),
    ):
        summed_up(own, range(50), read=readers.stuck, bad_chunks="skip", stall_timeout_s=3.0)


def test_a_worker_in_the_process_of_the_asker_is_not_ended():
    from distributed import Client

    with (
        Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=HERE) as here,
        pytest.raises(UnavailableError),
    ):
        summed_up(here, [5], read=readers.napping_at_5, stall_timeout_s=0.2)
