"""Bulk training on a real Dask cluster: exact, in bounded memory, whatever workers do."""

import os
import signal
from contextlib import suppress
from functools import partial
from operator import add
from time import sleep

import numpy as np
import pytest

from edgemerge import Projection, Stats
from edgemerge.bulk import Part, chunks_of, part_of
from edgemerge.core.errors import (
    AwayError,
    CapacityError,
    MismatchError,
    SampleError,
    SettingError,
)
from edgemerge.scale.memory import peak_bytes
from tests.bulk import readers
from tests.bulk.histories import history, in_csv, in_npy, in_parquet

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("dask")]

SHARED = Projection(n_inputs=4, n_hidden=6, seed=3)


def made_up(chunks, but=()):
    rows = (next(readers.made_up(chunk, SHARED)) for chunk in chunks if chunk not in but)
    return Stats.of(SHARED, np.vstack(list(rows)))


def summed_up(client, chunks, **choice):
    from edgemerge.dask import summed_up as run

    return run(client, SHARED, chunks, **choice)


def until_others_are_there(client, ended):
    """Wait until a worker that was ended has gone, and there are two again."""
    for _ in range(1200):
        if ended not in (there := client.nthreads()) and len(there) == 2:
            return
        sleep(0.1)
    raise AssertionError(f"found {there}, expected two without {ended}")


@pytest.mark.parametrize("height", [1, 3])
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 70])
def test_the_sum_is_that_of_all_samples_however_many_chunks_there_are(
    client, count, height, monkeypatch
):
    if height == 3:  # as with hundreds of threads, though with fewer chunks
        monkeypatch.setattr("edgemerge.dask.tree.height_for", lambda _threads: 3)
        monkeypatch.setattr("edgemerge.dask.tree.FAN_IN", 3)
    part = summed_up(client, range(count), read=readers.made_up)
    assert part.chunks == count
    assert part == Part(made_up(range(count)) if count else Stats.empty(SHARED), count)


def test_files_of_all_kinds_make_one_sum(client, tmp_path):
    X = history(6000)
    in_csv(X[:2000], tmp_path / "a.csv")
    in_npy(X[2000:4000], tmp_path / "b.npy")
    in_parquet(X[4000:], tmp_path / "c.parquet")
    done = []
    chunks = chunks_of(tmp_path, chunk_bytes=5000)
    part = summed_up(client, chunks, advance=done.append)
    assert part.stats == Stats.of(SHARED, X)
    assert sorted(done, key=str) == sorted(chunks, key=str)
    assert len(done) == part.chunks > 20


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


def test_only_a_few_chunks_are_with_the_cluster_at_a_time(client):
    taken, done, most = [], [], 0

    def chunks():
        for chunk in range(300):
            taken.append(chunk)
            yield chunk

    def advance(chunk):
        nonlocal most
        done.append(chunk)
        most = max(most, len(taken) - len(done))

    summed_up(client, chunks(), read=readers.slow, advance=advance)
    assert most <= 2 * 3 * 2  # threads, chunks for each, and one that was taken meanwhile


def test_memory_of_workers_does_not_grow_with_the_history(client, tmp_path):
    def megabytes():
        return max(peak for _, peak in client.run(peak_bytes).values()) / 1e6

    size, inputs = 2**20, 64
    path = tmp_path / "zeros.npy"
    np.lib.format.open_memmap(path, mode="w+", dtype="f4", shape=(size, inputs))  # takes no room
    shared = Projection(n_inputs=inputs, n_hidden=4)
    from edgemerge.dask import summed_up as run

    chunks = chunks_of(path, chunk_bytes=2**23)
    few = run(client, shared, chunks[:2])
    before = megabytes()
    part = run(client, shared, chunks)
    assert part.stats.count == size
    assert few.stats.count == size / 16
    assert megabytes() - before < 64  # the file has 256


def test_a_bad_chunk_ends_the_work_and_names_chunk_and_worker(client, tmp_path):
    X = history(500)
    X[321, 1] = np.nan
    path = in_npy(X, tmp_path / "a.npy")
    chunks = chunks_of(path, chunk_bytes=3200)
    words = r"^worker tcp://127\.0\.0\.1:\d+: .*a\.npy, rows 300 to 400: row 22, column 2"
    with pytest.raises(SampleError, match=words):
        summed_up(client, chunks)
    part = summed_up(client, chunks, bad_chunks="leave out")
    assert part.stats == Stats.of(SHARED, np.delete(X, range(300, 400), axis=0))
    ((name, reason),) = part.refused
    assert name == str(chunks[3])
    assert "row 22, column 2" in reason
    assert (part.chunks, part.left_out) == (4, 0)
    rows = summed_up(client, chunks, bad_rows="leave out")
    assert rows.stats == Stats.of(SHARED, np.delete(X, 321, axis=0))
    assert (rows.chunks, rows.left_out, rows.refused) == (5, 1, ())


def test_a_chunk_that_never_ends_is_named_or_left_out(client):
    choice = {"read": readers.stuck_at_5, "patience_s": 4.0}
    from edgemerge.dask import leaf

    words = r"worker tcp://127\.0\.0\.1:\d+: 5: twice not done within 4 s: raise patience_s"
    done = []
    part = summed_up(client, range(40), bad_chunks="leave out", advance=done.append, **choice)
    assert part.stats == made_up(range(40), but=[5])
    ((name, reason),) = part.refused
    assert name == "5"
    assert sorted(done) == list(range(40))
    until_others_are_there(client, ended=reason.split(": ")[0].removeprefix("worker "))
    with pytest.raises(AwayError, match=words):
        summed_up(client, range(40), **choice)
    client.run(leaf.end, wait=False, on_error="ignore")


def test_a_chunk_that_ends_its_workers_is_left_out_and_named(client):
    part = summed_up(client, range(40), bad_chunks="leave out", read=readers.deadly_at_5)
    assert part.stats == made_up(range(40), but=[5])
    ((name, reason),) = part.refused
    assert name == "5"
    assert reason.startswith("worker tcp://127.0.0.1:")
    assert "5: it died while reading it, as 3 did before: cut smaller chunks" in reason


def test_a_small_chunk_that_ends_its_workers_takes_no_other_with_it(client, monkeypatch):
    monkeypatch.setattr("edgemerge.dask.bundling.CHUNK_BYTES", 10)
    small = [readers.Small(number) for number in range(12)]
    done = []
    part = summed_up(
        client, small, read=readers.deadly_small, bad_chunks="leave out", advance=done.append
    )
    assert part.stats == made_up(range(12), but=[5])
    assert [name for name, _ in part.refused] == ["small chunk 5"]
    assert sorted(each.number for each in done) == list(range(12))


def test_a_worker_with_another_projection_is_named(client):
    def other(number):
        from edgemerge.core import projection
        from edgemerge.dask import leaf

        projection.FORMAT = number
        projection._agreed.cache_clear()
        leaf.built.cache_clear()

    address = sorted(client.nthreads())[1]
    client.run(other, 2, workers=[address])
    try:
        with pytest.raises(MismatchError, match=rf"^worker {address}: found Projection.*install"):
            summed_up(client, range(40), read=readers.made_up, bad_chunks="leave out")
    finally:
        client.run(other, 1, workers=[address])
    assert summed_up(client, range(40), read=readers.made_up).stats == made_up(range(40))


def test_an_error_that_is_not_ours_ends_the_work_with_advice(client):
    with pytest.raises(AwayError, match=r"^0: found ZeroDivisionError.*see `read`, and its file"):
        summed_up(client, [0], read=readers.broken, bad_chunks="leave out")


def test_sums_that_would_not_be_exact_are_refused(client):
    fine = Projection(n_inputs=4, n_hidden=6, grid_bits=16, low=-1e-3, high=1e-3)
    from edgemerge.dask import summed_up as run

    with pytest.raises(CapacityError, match="up to which sums are exact"):
        run(client, fine, range(20), read=readers.made_up)


def test_nothing_stays_with_the_cluster(client):
    summed_up(client, range(100), read=readers.made_up)
    with suppress(AwayError):  # whoever keeps an error keeps what was wrong
        summed_up(client, range(100), read=readers.broken)
    for _ in range(200):  # it is told to forget, and does so soon after
        left = client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.tasks))
        if not left:
            break
        sleep(0.1)
    assert left == []


def test_a_cluster_that_has_gone_is_told():
    from edgemerge.dask import local_client
    from edgemerge.dask import summed_up as run

    with local_client(workers=1) as own:

        def advance(chunk):
            if chunk == 3:
                own.restart()  # which cancels everything

        with pytest.raises(AwayError, match="the cluster has let go of it"):
            run(own, SHARED, range(50), read=readers.slow, advance=advance)


def test_collections_of_dask_give_the_same_stats_lazily(client, tmp_path):
    import dask.array as da
    import dask.dataframe as dd

    from edgemerge.dask import delayed_stats

    X = history(500)
    for cuts in ((500, 4), (17, 4), (60, 3)):
        lazy = delayed_stats(SHARED, da.from_array(X, chunks=cuts))
        assert lazy.compute(scheduler="sync") == Stats.of(SHARED, X)
        assert client.compute(lazy).result(timeout=60) == Stats.of(SHARED, X)
    named = Projection(n_inputs=2, names=["hum", "flow"])
    frame = dd.read_parquet(in_parquet(X, tmp_path / "a.parquet"))
    assert delayed_stats(named, frame).compute(scheduler="sync") == Stats.of(named, X[:, [3, 0]])
    assert delayed_stats(SHARED, frame).compute(scheduler="sync") == Stats.of(SHARED, X)


def test_a_bag_needs_nothing_but_parts_that_add(client):
    import dask.bag as db

    parts = db.from_sequence(range(40), partition_size=3).map(
        partial(part_of, SHARED, read=readers.made_up)
    )
    lazy = parts.fold(add, split_every=4)
    assert client.compute(lazy).result(timeout=60) == Part(made_up(range(40)), 40)


def test_a_cluster_without_workers_says_how_to_start_some():
    from distributed import Client, LocalCluster

    from edgemerge.dask import summed_up as run

    with (
        LocalCluster(n_workers=0, dashboard_address="127.0.0.1:0") as nobody,
        Client(nobody, set_as_default=False) as client,
        pytest.raises(AwayError, match=r"no worker for 1 s: start some with `dask worker tcp://"),
    ):
        run(client, SHARED, range(3), read=readers.made_up, patience_s=1.0)


def test_work_that_hangs_everywhere_comes_to_an_end():
    from edgemerge.dask import local_client
    from edgemerge.dask import summed_up as run

    with (
        local_client(workers=1) as own,
        pytest.raises(AwayError, match=r"found (nothing done|no worker)"),
    ):
        run(own, SHARED, range(50), read=readers.stuck, bad_chunks="leave out", patience_s=3.0)


def test_a_worker_in_the_process_of_the_asker_is_not_ended():
    from distributed import Client

    from edgemerge.dask import summed_up as run

    with (
        Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=None) as here,
        pytest.raises(AwayError),
    ):
        run(here, SHARED, [5], read=readers.napping_at_5, patience_s=0.2)


def test_choices_that_are_none_are_refused(client):
    for choice in ({"bad_rows": "Refuse"}, {"bad_chunks": "leave_out"}, {"patience_s": 0.0}):
        with pytest.raises(SettingError, match="expected"):
            summed_up(client, [0], read=readers.made_up, **choice)
