"""Chunks of files: cut anywhere, every sample is in exactly one of them."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgemerge import Projection, Stats
from edgemerge.bulk import Chunk, chunks_of
from edgemerge.bulk.chunk import read_chunk
from tests.bulk.histories import (
    FOUR,
    NAMES,
    SHARED,
    history,
    in_csv,
    in_npy,
    in_parquet,
    rows_in,
    whole,
)
from tests.cases import examples


@pytest.mark.slow
@given(
    rows=st.integers(0, 60),
    chunk_bytes=st.integers(1, 4000),
    header=st.sampled_from((NAMES, ())),
    end=st.sampled_from(("\n", "\r\n", "\n\n")),
    mark=st.sampled_from(("", "\ufeff", "\n")),
    last=st.booleans(),
)
@examples(60)
def test_csv_gives_each_line_once_wherever_it_is_cut(
    tmp_path_factory, rows, chunk_bytes, header, end, mark, last
):
    X = history(rows)
    path = in_csv(X, tmp_path_factory.mktemp("csv") / "a.csv", header=header, end=end, mark=mark)
    if not last:
        path.write_bytes(path.read_bytes().rstrip())  # the last line without its end
    assert np.array_equal(rows_in(path, chunk_bytes=chunk_bytes), X)


@given(
    rows=st.integers(0, 60),
    chunk_bytes=st.integers(1, 4000),
    kind=st.sampled_from(("f8", "f4", "i2", "?", ">f8", "f2")),
    fortran=st.booleans(),
)
@examples(40)
def test_npy_gives_each_row_once_wherever_it_is_cut(
    tmp_path_factory, rows, chunk_bytes, kind, fortran
):
    X = (100.0 * history(rows)).astype(kind, order="F" if fortran else "C")
    path = in_npy(X, tmp_path_factory.mktemp("npy") / "a.npy")
    assert np.array_equal(rows_in(path, chunk_bytes=chunk_bytes), X.astype(float))


@pytest.mark.slow
@given(rows=st.integers(0, 60), chunk_bytes=st.integers(1, 8000), group=st.integers(1, 70))
@examples(30)
def test_parquet_gives_each_row_once_wherever_it_is_cut(tmp_path_factory, rows, chunk_bytes, group):
    X = history(rows)
    path = in_parquet(X, tmp_path_factory.mktemp("parquet") / "a.parquet", group=group)
    assert np.array_equal(rows_in(path, chunk_bytes=chunk_bytes), X)


@pytest.mark.parametrize("write", [in_csv, in_npy, in_parquet])
def test_a_file_read_in_many_steps_is_the_same(write, tmp_path, monkeypatch):
    X = history(600)
    path = write(X, tmp_path / {in_csv: "a.csv", in_npy: "a.npy", in_parquet: "a.parquet"}[write])
    for module, step in (
        ("csv_file.BLOCK_BYTES", 700),
        ("npy_file.BATCH_VALUES", 9),
        ("parquet_file.BATCH_VALUES", 9),
    ):
        monkeypatch.setattr(f"edgemerge.bulk.{module}", step)
    steps = list(read_chunk(chunks_of(path)[0], SHARED))
    assert len(steps) > 10
    assert np.array_equal(np.vstack(steps), X)


def test_chunks_are_as_large_as_asked_for(tmp_path):
    X = history(1000)
    a = chunks_of(in_npy(X, tmp_path / "a.npy"), chunk_bytes=8000)
    assert [(c.start, c.stop, c.bytes) for c in a] == [
        (i, i + 250, 8000) for i in range(0, 1000, 250)
    ]
    path = in_csv(X, tmp_path / "b.csv")
    b = chunks_of(path, chunk_bytes=10_000)
    assert {c.bytes for c in b[:-1]} == {10_000}
    assert sum(c.bytes for c in b) == path.stat().st_size == b[-1].stop
    c = chunks_of(in_parquet(X, tmp_path / "c.parquet", group=50), chunk_bytes=10_000)
    assert 2 < len(c) < 20
    assert all(chunk.bytes <= 10_000 for chunk in c)
    assert [c[0].start, *(chunk.stop for chunk in c)] == [*(chunk.start for chunk in c), 20]
    assert len(chunks_of(tmp_path / "c.parquet", chunk_bytes=1)) == 20  # a row group is not cut


def test_folders_and_patterns_stand_for_their_files_and_each_counts_once(tmp_path, monkeypatch):
    paths = [in_csv(FOUR, tmp_path / "b.csv"), in_npy(FOUR, tmp_path / "a.NPY")]
    paths[1] = (tmp_path / "a.NPY.npy").rename(tmp_path / "a.NPY")
    (tmp_path / "notes.txt").write_text("not samples")
    assert [c.path for c in chunks_of(tmp_path)] == [str(path) for path in sorted(paths)]
    assert [c.path for c in chunks_of(f"{tmp_path}/*.csv")] == [str(paths[0])]
    monkeypatch.chdir(tmp_path)
    assert [c.path for c in chunks_of(["b.csv", "./b.csv", paths[0], "*.csv"])] == [str(paths[0])]


def test_folders_that_other_programs_write_are_read_to_the_bottom(tmp_path):
    spark = tmp_path / "year=2026.parquet" / "month=1"
    spark.mkdir(parents=True)
    in_parquet(FOUR, spark / "part-0.snappy.parquet")
    in_parquet(FOUR, spark / "_temporary.parquet")
    in_parquet(FOUR, spark / ".hidden.parquet")
    expected = [str(spark / "part-0.snappy.parquet")]
    assert [c.path for c in chunks_of(tmp_path)] == expected
    assert [c.path for c in chunks_of(f"{tmp_path}/*.parquet")] == expected


def test_a_name_with_brackets_is_a_file_before_it_is_a_pattern(tmp_path):
    path = in_csv(FOUR, tmp_path / "a[1].csv")
    assert [c.path for c in chunks_of(path)] == [str(path)]


def test_columns_are_chosen_by_name_by_number_or_by_the_projection(tmp_path):
    named = Projection(n_inputs=2, names=["hum", "flow"])
    for path in (in_csv(FOUR, tmp_path / "a.csv"), in_parquet(FOUR, tmp_path / "a.parquet")):
        assert np.array_equal(rows_in(path, columns=["heat", "1"]), FOUR[:, [2, 0]])
        assert whole(chunks_of(path), named).stats == Stats.of(named, FOUR[:, [3, 0]])
    assert np.array_equal(
        rows_in(in_npy(FOUR, tmp_path / "a.npy"), columns=["4", "2"]), FOUR[:, [3, 1]]
    )


def test_parquet_of_any_numbers_is_read(tmp_path):
    columns = {
        "a": pa.array([1, 2, None], pa.int32()),
        "b": pa.array([True, False, True]),
        "c": pa.array([1.5, 2.5, 3.5], pa.float32()),
        "d": pa.array([1, 2, 3], pa.uint8()).cast(pa.decimal128(9, 2)),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    expected = [[1, 1, 1.5, 1], [2, 0, 2.5, 2], [np.nan, 1, 3.5, 3]]
    assert np.array_equal(rows_in(tmp_path / "a.parquet"), expected, equal_nan=True)


@pytest.mark.parametrize("kind", ["int8", "uint64", "int64", "float16", "float32", "float64"])
def test_parquet_with_nulls_is_read_whatever_its_numbers_are(tmp_path, kind):
    column = pa.array([1, None, 100], pa.type_for_alias(kind))
    pq.write_table(pa.table({"a": column, "b": column}), tmp_path / "a.parquet")
    expected = [[1, 1], [np.nan, np.nan], [100, 100]]
    assert np.array_equal(rows_in(tmp_path / "a.parquet"), expected, equal_nan=True)


def test_the_index_that_pandas_adds_is_no_column(tmp_path):
    frame = pd.DataFrame(FOUR, columns=NAMES, index=np.arange(40) * 7)
    frame.to_parquet(tmp_path / "a.parquet")
    assert np.array_equal(rows_in(tmp_path / "a.parquet"), FOUR)


@pytest.mark.parametrize("text", ["1e3,2,3,4", " 1 ,2,3,4", '"1",2,3,4', "+1,2.,.3,4E-2"])
def test_numbers_may_be_written_in_any_way(tmp_path, text):
    (tmp_path / "a.csv").write_text(text)
    assert np.array_equal(
        rows_in(tmp_path / "a.csv"), [[float(cell.strip('"')) for cell in text.split(",")]]
    )


def test_samples_may_come_from_a_function_of_ones_own():
    def mine(chunk, projection):
        assert projection is SHARED
        yield FOUR[chunk : chunk + 7].tolist()
        yield FOUR[chunk + 7 : chunk + 20]

    assert whole([0, 20], read=mine).stats == Stats.of(SHARED, FOUR)


def test_a_chunk_is_told_in_words():
    chunk = Chunk(path="a.csv", unit="bytes", start=0, stop=10**6, bytes=10**6)
    assert str(chunk) == "a.csv, bytes 0 to 1,000,000"


@pytest.mark.parametrize("first", [",,,", '"",,,', "  ", ""])
def test_empty_lines_before_the_header_are_passed_over(tmp_path, first):
    (tmp_path / "a.csv").write_text(f"{first}\n{','.join(NAMES)}\n1,2,3,4\n")
    assert np.array_equal(rows_in(tmp_path / "a.csv"), [[1, 2, 3, 4]])


def test_parquet_mixes_half_and_whole_numbers(tmp_path):
    columns = {"a": pa.array(np.array([0.5, 2.0], "f2")), "b": pa.array([1, 2])}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    assert np.array_equal(rows_in(tmp_path / "a.parquet"), [[0.5, 1], [2, 2]])
