"""Bulk training on a real Dask cluster: exact, in bounded memory, however it is cut."""

from contextlib import suppress
from functools import partial
from operator import add
from time import sleep

import numpy as np
import pytest

from edgemerge import Projection, Stats
from edgemerge.bulk import Part, chunks_of, part_of
from edgemerge.core.errors import CapacityError, SettingError, UnavailableError
from edgemerge.scale.machine import peak_bytes
from tests.bulk import readers
from tests.bulk.clusters import made_up, summed_up
from tests.bulk.histories import SHARED, history, in_csv, in_npy, in_parquet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("dask")]


@pytest.mark.parametrize("height", [1, 3])
@pytest.mark.parametrize(
    "count", [0, 1, 9, *(pytest.param(each, marks=pytest.mark.long) for each in (7, 8, 70))]
)
def test_the_sum_is_that_of_all_samples_however_many_chunks_there_are(
    client, count, height, monkeypatch
):
    if height == 3:  # as with hundreds of threads, though with fewer chunks
        monkeypatch.setattr("edgemerge.dask.tree.tree_height", lambda _threads: 3)
        monkeypatch.setattr("edgemerge.dask.tree.FAN_IN", 3)
    part = summed_up(client, range(count), read=readers.made_up)
    assert part.chunks == count
    assert part == Part(made_up(range(count)) if count else Stats.empty(SHARED), count)


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
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


def test_workers_do_not_take_memory_anew_for_every_block(client):
    def faults():
        import resource

        shared, X = Projection(n_inputs=64, n_hidden=64), np.zeros((2**13, 64))
        counts = []
        for _ in range(4):
            Stats.of(shared, X)
            counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
        return counts[-1] - counts[0]

    pages = 3 * 2**13 * 64 * 8 / 4096  # that their samples take, once
    assert client.submit(faults, pure=False).result(timeout=60) < pages / 4


def test_sums_that_would_not_be_exact_are_refused(client):
    fine = Projection(n_inputs=4, n_hidden=6, grid_bits=16, low=-1e-3, high=1e-3)
    from edgemerge.dask import summed_up as run

    with pytest.raises(CapacityError, match="up to which sums are exact"):
        run(client, fine, range(20), read=readers.made_up)


@pytest.mark.long
def test_nothing_stays_with_the_cluster(client):
    summed_up(client, range(100), read=readers.made_up)
    with suppress(UnavailableError):  # whoever keeps an error keeps what was wrong
        summed_up(client, range(100), read=readers.broken)
    for _ in range(200):  # it is told to forget, and does so soon after
        left = client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.tasks))
        if not left:
            break
        sleep(0.1)
    assert left == []


@pytest.mark.long
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


def test_choices_that_are_none_are_refused(client):
    for choice in ({"bad_rows": "Skip"}, {"bad_chunks": "leave_out"}, {"stall_timeout_s": 0.0}):
        with pytest.raises(SettingError, match="expected"):
            summed_up(client, [0], read=readers.made_up, **choice)


def test_former_words_and_names_still_work(client):
    whole = summed_up(client, [0], read=readers.made_up)
    former = {"bad_rows": "leave out", "bad_chunks": "refuse", "patience_s": 60.0}
    assert summed_up(client, [0], read=readers.made_up, **former) == whole
    with pytest.raises(SettingError, match="stall_timeout_s above 0"):
        summed_up(client, [0], read=readers.made_up, patience_s=0.0)
