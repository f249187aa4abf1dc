"""Chunks of files: cut anywhere, every sample is in exactly one of them."""

import operator
from functools import reduce

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgemerge import Projection, Stats
from edgemerge.bulk import Chunk, Part, chunks_of, part_of
from edgemerge.bulk.reading import read
from edgemerge.core.errors import SampleError, SettingError
from tests.bulk.histories import NAMES, history, in_csv, in_npy, in_parquet

SHARED = Projection(n_inputs=4, n_hidden=6, seed=3)
FOUR = history(rows=40)


def whole(chunks, shared=SHARED, **choice):
    return reduce(
        operator.add, (part_of(shared, c, **choice) for c in chunks), Part.nothing(shared)
    )


def rows_in(path, *, columns=(), chunk_bytes=100):
    chunks = chunks_of(path, columns=columns, chunk_bytes=chunk_bytes)
    found = [X for chunk in chunks for X in read(chunk, SHARED)]
    return np.vstack(found) if found else np.empty((0, len(columns) or 4))


@given(
    rows=st.integers(0, 60),
    chunk_bytes=st.integers(1, 4000),
    header=st.sampled_from((NAMES, ())),
    end=st.sampled_from(("\n", "\r\n", "\n\n")),
    mark=st.sampled_from(("", "\ufeff", "\n")),
    last=st.booleans(),
)
@settings(max_examples=60)
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
@settings(max_examples=40)
def test_npy_gives_each_row_once_wherever_it_is_cut(
    tmp_path_factory, rows, chunk_bytes, kind, fortran
):
    X = (100.0 * history(rows)).astype(kind, order="F" if fortran else "C")
    path = in_npy(X, tmp_path_factory.mktemp("npy") / "a.npy")
    assert np.array_equal(rows_in(path, chunk_bytes=chunk_bytes), X.astype(float))


@given(rows=st.integers(0, 60), chunk_bytes=st.integers(1, 8000), group=st.integers(1, 70))
@settings(max_examples=30)
def test_parquet_gives_each_row_once_wherever_it_is_cut(tmp_path_factory, rows, chunk_bytes, group):
    X = history(rows)
    path = in_parquet(X, tmp_path_factory.mktemp("parquet") / "a.parquet", group=group)
    assert np.array_equal(rows_in(path, chunk_bytes=chunk_bytes), X)


@pytest.mark.parametrize("write", [in_csv, in_npy, in_parquet])
def test_a_file_read_in_many_steps_is_the_same(write, tmp_path, monkeypatch):
    X = history(600)
    path = write(X, tmp_path / {in_csv: "a.csv", in_npy: "a.npy", in_parquet: "a.parquet"}[write])
    for module, step in (
        ("csv_file.BLOCK", 700),
        ("npy_file.NUMBERS", 9),
        ("parquet_file.NUMBERS", 9),
    ):
        monkeypatch.setattr(f"edgemerge.bulk.{module}", step)
    steps = list(read(chunks_of(path)[0], SHARED))
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


def test_several_arrays_in_one_file_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", a=FOUR)
    (tmp_path / "a.npz").rename(tmp_path / "a.npy")
    with pytest.raises(SampleError, match=r"several arrays in it, expected one: write .npy"):
        chunks_of(tmp_path / "a.npy")


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


def test_a_bad_row_is_refused_with_chunk_row_and_column(tmp_path):
    X = history(100)
    X[70, 2] = np.nan
    for path in (in_csv(X, tmp_path / "a.csv"), in_npy(X, tmp_path / "a.npy")):
        with pytest.raises(
            SampleError,
            match=rf"{path.name}, \w+ 0 to [\d,]+: row 71, column 3 .*: found no number",
        ):
            whole(chunks_of(path))


def test_bad_rows_are_left_out_and_counted(tmp_path):
    X = history(100)
    X[7, 0], X[70, 2], X[71] = np.inf, np.nan, np.nan
    good = np.delete(X, [7, 70, 71], axis=0)
    for path in (
        in_csv(X, tmp_path / "a.csv"),
        in_npy(X, tmp_path / "a.npy"),
        in_parquet(X, tmp_path / "a.parquet"),
    ):
        part = whole(chunks_of(path, chunk_bytes=999), bad_rows="leave out")
        assert part.left_out == 3
        assert part.stats == Stats.of(SHARED, good)


EMPTY = ("", ",,,", '"","","",""', '"",,,')
LINES = ("1,2,3,4", "5,6,7,8", *EMPTY, "  ", "x", "1,2", "nan,1,2,3", "1,inf,2,3", '"1,2",3,4')


@given(st.lists(st.sampled_from(LINES), max_size=20), st.integers(1, 99))
def test_which_rows_are_bad_does_not_depend_on_where_a_csv_is_cut(tmp_path_factory, lines, size):
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    path.write_text("\n".join([",".join(NAMES), *lines]))
    part = whole(chunks_of(path, chunk_bytes=size), bad_rows="leave out")
    good = [line.split(",") for line in lines if line in LINES[:2]]
    assert part.left_out == len([line for line in lines if line not in EMPTY]) - len(good)
    assert part.stats == Stats.of(SHARED, np.array(good, float).reshape(-1, 4))


@pytest.mark.parametrize("line", ["1,2,3", "1,2,3,4,5", "1,2,3,?", "1,2,3,0x1", "1,2,3,\xe9"])
def test_lines_of_csv_that_are_no_samples_are_bad_rows(tmp_path, line):
    path = tmp_path / "a.csv"
    lines = ",".join(NAMES), "1,2,3,4", line, "5,6,7,8"
    path.write_text("\n".join(lines), encoding="latin-1")
    part = whole(chunks_of(path), bad_rows="leave out")
    assert part.left_out == 1
    assert part.stats == Stats.of(SHARED, [[1, 2, 3, 4], [5, 6, 7, 8]])
    with pytest.raises(SampleError, match=r"a\.csv, bytes 0 to \d+: row 2, column \d"):
        whole(chunks_of(path))


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.txt", b"1,2", r"a\.txt, expected a file of samples: \.csv"),
        ("a.npy", b"1,2", r"a\.npy: found no array in it"),
        ("a.npy", b"", r"a\.npy: found no array in it"),
        ("a.csv", b"1;2;3;4\n", r"a\.csv, bytes .*: found '1;2;3;4', expected commas"),
        ("a.csv", b"1,2,3,4\r5,6,7,8\r", r"a\.csv, bytes .*: found lines that end with .r alone"),
        ("a.parquet", b"PAR1 or not", r"a\.parquet: found no Parquet that can be read"),
        ("a.csv", b"a,b,c,d\n" + b"1" * 2**21, r"a\.csv, bytes .*: found no CSV in it"),
        ("a.csv", b"1" * 2**21, r"a\.csv, bytes .*: found a line of 1048576 bytes"),
        ("a.csv", b"1,2,3\n4,5,6\n", r"found samples of shape \(2, 3\), expected"),
    ],
)
def test_what_is_no_history_is_refused_by_its_name(tmp_path, name, data, words):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(SampleError, match=words):
        whole(chunks_of(tmp_path / name))


def test_a_broken_parquet_names_its_chunk(tmp_path):
    path = in_parquet(history(5000), tmp_path / "a.parquet", group=5000, write_page_checksum=True)
    data = bytearray(path.read_bytes())
    data[1000:40_000] = bytes(39_000)
    path.write_bytes(data)
    with pytest.raises(SampleError, match=r"a\.parquet, row groups 0 to 1: found no Parquet"):
        whole(chunks_of(path))


def test_columns_that_are_no_numbers_are_refused_by_name(tmp_path):
    frame = pd.DataFrame({"when": pd.to_datetime(["2026-01-01"]), "flow": [1.0]})
    frame.to_parquet(tmp_path / "a.parquet")
    with pytest.raises(SampleError, match=r"column 'when': found timestamp.*choose columns"):
        whole(chunks_of(tmp_path / "a.parquet"))
    with pytest.raises(SampleError, match="found no column 'heat', expected one of: when, flow"):
        whole(chunks_of(tmp_path / "a.parquet", columns=["heat"]))


def test_arrays_of_objects_or_of_other_shapes_are_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(4.0))
    np.save(tmp_path / "b.npy", np.array([["a", "b"]]))
    np.save(tmp_path / "c.npy", np.array([[object()]]), allow_pickle=True)
    for name, words in (("a", r"shape \(4,\)"), ("b", "array of <U1"), ("c", "found no array")):
        with pytest.raises(SampleError, match=words):
            chunks_of(tmp_path / f"{name}.npy")


def test_nothing_to_read_is_said_at_once(tmp_path):
    with pytest.raises(SampleError, match=r"found no file .*\*\.csv, expected samples"):
        chunks_of(f"{tmp_path}/*.csv")
    with pytest.raises(SampleError, match="found no file"):
        chunks_of(tmp_path)
    with pytest.raises(SettingError, match="chunk_bytes=0, expected at least 1"):
        chunks_of(in_csv(FOUR, tmp_path / "a.csv"), chunk_bytes=0)


def test_a_file_that_has_gone_names_its_chunk(tmp_path):
    for path in (in_csv(FOUR, tmp_path / "a.csv"), in_parquet(FOUR, tmp_path / "a.parquet")):
        (chunk,) = chunks_of(path)
        path.unlink()
        with pytest.raises(
            SampleError, match=r"a\.\w+, .* 0 to .*: found no way to read it.*No such"
        ):
            part_of(SHARED, chunk)


def test_samples_may_come_from_a_function_of_ones_own():
    def mine(chunk, projection):
        assert projection is SHARED
        yield FOUR[chunk : chunk + 7].tolist()
        yield FOUR[chunk + 7 : chunk + 20]

    assert whole([0, 20], read=mine).stats == Stats.of(SHARED, FOUR)


def test_a_chunk_is_told_in_words():
    chunk = Chunk(path="a.csv", unit="bytes", start=0, stop=10**6, bytes=10**6)
    assert str(chunk) == "a.csv, bytes 0 to 1,000,000"


@pytest.mark.parametrize("chunk_bytes", [10, 100])
@pytest.mark.parametrize("lines", ['1,2,"x\n3,4,y"\n', '1,2,"x\n' + "3,4,5\n" * 50])
def test_a_quote_that_goes_over_lines_is_refused_wherever_it_is_cut(tmp_path, lines, chunk_bytes):
    (tmp_path / "a.csv").write_text("a,b,c\n" + lines)
    two = Projection(n_inputs=2)
    with pytest.raises(SampleError, match="found a quote that its line does not close"):
        whole(chunks_of(tmp_path / "a.csv", columns=["a", "b"], chunk_bytes=chunk_bytes), two)


@pytest.mark.parametrize("write", [in_csv, in_npy])
def test_a_file_that_became_shorter_is_refused(tmp_path, write):
    path = tmp_path / {in_csv: "a.csv", in_npy: "a.npy"}[write]
    write(history(40), path)
    chunks = chunks_of(path, chunk_bytes=500)
    write(history(10), path)
    with pytest.raises(SampleError, match="do not change files while they are read"):
        whole(chunks)


@pytest.mark.parametrize("first", [",,,", '"",,,', "  ", ""])
def test_empty_lines_before_the_header_are_passed_over(tmp_path, first):
    (tmp_path / "a.csv").write_text(f"{first}\n{','.join(NAMES)}\n1,2,3,4\n")
    assert np.array_equal(rows_in(tmp_path / "a.csv"), [[1, 2, 3, 4]])


def test_names_that_are_only_partly_there_are_not_guessed_by_position(tmp_path):
    path = in_csv(FOUR, tmp_path / "a.csv", header=("flow", "heat", "pressure", "noise"))
    named = Projection(n_inputs=4, names=list(NAMES))
    with pytest.raises(SampleError, match="found no column 'hum', expected one of: flow, heat"):
        whole(chunks_of(path), named)
    other = Projection(n_inputs=4, names=list("abcd"))
    assert whole(chunks_of(path), other).stats == Stats.of(other, FOUR)  # names of another kind
    twice = in_csv(FOUR, tmp_path / "b.csv", header=("flow", "flow", "heat", "hum"))
    with pytest.raises(SampleError, match="found several columns 'flow', expected one"):
        whole(chunks_of(twice, columns=["flow", "flow", "heat", "hum"]))


def test_two_columns_of_one_name_are_refused(tmp_path):
    column = pa.array([1.0, 2.0])
    pq.write_table(pa.table([column, column], names=["a", "a"]), tmp_path / "a.parquet")
    with pytest.raises(SampleError, match="several columns with one name"):
        whole(chunks_of(tmp_path / "a.parquet"))


def test_parquet_mixes_half_and_whole_numbers(tmp_path):
    columns = {"a": pa.array(np.array([0.5, 2.0], "f2")), "b": pa.array([1, 2])}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    assert np.array_equal(rows_in(tmp_path / "a.parquet"), [[0.5, 1], [2, 2]])


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (np.ma.masked_array([[1.0, 2.0, 3.0, 9999.0]], [[0, 0, 0, 1]]), "found masked values"),
        ([1.0, 2.0, 3.0, 4.0], r"found float64 of shape \(4,\), expected numbers of \(k, n\)"),
        ([["a", "b", "c", "d"]], "found <U1 of shape"),
        (np.array([[1j, 2, 3, 4]]), "found complex128 of shape"),
        (np.array([["2026-01-01"] * 4], "M8[D]"), "found datetime64"),
    ],
)
def test_what_a_reader_gives_must_be_numbers(rows, words):
    with pytest.raises(SampleError, match=f"^7: {words}"):
        whole([7], read=lambda _chunk, _projection: [rows])


def test_a_choice_that_is_none_is_refused():
    with pytest.raises(SettingError, match=r"bad_rows='leave_out', expected one of \['refuse', "):
        part_of(SHARED, 0, bad_rows="leave_out", read=lambda _c, _p: [FOUR])
