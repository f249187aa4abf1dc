"""What the how-to shows for Ray is what happens: the sum is exact, whoever dies."""

import csv
import os
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from edgemerge import Projection, Stats
from edgemerge.bulk import chunks_of, part_of
from edgemerge.core.errors import SampleError
from run_page import FENCE
from tests.services.missing import left_out

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "train-on-a-cluster.md"
SHARED = Projection(n_inputs=16, n_hidden=8, seed=7)
WIDE = Projection(n_inputs=561, n_hidden=128, seed=7)  # whose parts are 0.7 MB

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),  # Ray takes long to start
    # Ray leaves what it starts, and what it opens for that, to be cleared away by Python.
    pytest.mark.filterwarnings("ignore:subprocess [0-9]+ is still running:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:unclosed file .*'/dev/null':ResourceWarning"),
]


def history(rows, inputs=16):
    return np.random.default_rng(rows).normal(0.0, 0.3, (rows, inputs))


def written(folder, kind, X):
    path = folder / f"history.{kind}"
    if kind == "npy":
        np.save(path, X)
        return path
    if find_spec("pyarrow") is None:
        left_out("pyarrow", "pip install '.[flower-tests]'")
    if kind == "csv":
        with path.open("w", newline="") as file:
            csv.writer(file).writerows(X.tolist())
        return path
    import pyarrow as pa
    from pyarrow import parquet

    names = [f"input {i}" for i in range(X.shape[1])]
    parquet.write_table(pa.table(list(X.T), names), path, row_group_size=50)
    return path


def lines_of_the_page():
    blocks = [found["body"] for found in FENCE.finditer(PAGE.read_text(encoding="utf-8"))]
    (lines,) = (block for block in blocks if "import ray" in block)
    return lines


def total(shared, chunks, part_of=part_of):
    """Run the lines of the page, with another way to sum up a chunk if a test needs one."""
    lines, imported = lines_of_the_page(), "from edgemerge.bulk import part_of\n"
    assert imported in lines
    names = {"shared": shared, "chunks": chunks, "part_of": part_of, "__name__": "__main__"}
    exec(lines.replace(imported, ""), names)  # noqa: S102 - our own page
    return names["total"]


@pytest.mark.parametrize(
    ("chunk_bytes", "kind"),
    [
        (3_000, "csv"),
        (40_000, "parquet"),
        *(
            pytest.param(chunk_bytes, kind, marks=pytest.mark.long)
            for chunk_bytes in (2**30, 40_000, 3_000)
            for kind in ("npy", "parquet", "csv")
            if (chunk_bytes, kind) not in {(3_000, "csv"), (40_000, "parquet")}
        ),
    ],
)
@pytest.mark.usefixtures("ray")
def test_the_sum_is_that_of_all_samples_however_they_are_cut(tmp_path, kind, chunk_bytes):
    X = history(600)
    chunks = chunks_of(written(tmp_path, kind, X), chunk_bytes=chunk_bytes)
    part = total(SHARED, chunks)
    assert part.stats == Stats.of(SHARED, X)
    assert part.chunks == len(chunks)


@pytest.mark.long
def test_more_parts_than_there_is_room_for_make_one_sum(ray, tmp_path):
    X = history(400, WIDE.n_inputs)
    chunks = chunks_of(written(tmp_path, "npy", X), chunk_bytes=2 * WIDE.n_inputs * X.itemsize)
    part = total(WIDE, chunks)
    assert part.stats == Stats.of(WIDE, X)
    parts = len(chunks) * part.stats.V.nbytes
    assert parts > ray.cluster_resources()["object_store_memory"]


@pytest.mark.long
@pytest.mark.usefixtures("ray")
def test_a_worker_that_dies_changes_no_bit(tmp_path):
    X, mark = history(600), tmp_path / "died"
    chunks = chunks_of(written(tmp_path, "npy", X), chunk_bytes=3_000)

    def deadly_once(shared, chunk):
        if chunk.start > 300 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), 9)
        return part_of(shared, chunk)

    assert total(SHARED, chunks, deadly_once).stats == Stats.of(SHARED, X)
    assert mark.exists()


@pytest.mark.usefixtures("ray")
def test_a_bad_row_ends_the_work_and_names_the_chunk(tmp_path):
    X = history(600)
    X[444, 3] = np.nan
    chunks = chunks_of(written(tmp_path, "npy", X), chunk_bytes=3_000)
    with pytest.raises(SampleError, match=r"history\.npy, rows 437 to 460: row 8, column 4 "):
        total(SHARED, chunks)


def test_a_worker_has_one_blas_thread(ray):
    asked = ray.remote(lambda: os.environ.get("OMP_NUM_THREADS"))
    assert ray.get(asked.remote()) == "1"
