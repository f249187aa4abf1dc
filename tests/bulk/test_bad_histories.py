"""What is no history, or has rows that are no samples, is refused by its name or counted."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgemerge import Projection, Stats
from edgemerge.bulk import chunks_of, part_of
from edgemerge.core.errors import SampleError, SettingError
from tests.bulk.histories import FOUR, NAMES, SHARED, history, in_csv, in_npy, in_parquet, whole


def test_several_arrays_in_one_file_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", a=FOUR)
    (tmp_path / "a.npz").rename(tmp_path / "a.npy")
    with pytest.raises(SampleError, match=r"several arrays in it, expected one: write .npy"):
        chunks_of(tmp_path / "a.npy")


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
        part = whole(chunks_of(path, chunk_bytes=999), bad_rows="skip")
        assert part.left_out == 3
        assert part.stats == Stats.of(SHARED, good)


EMPTY = ("", ",,,", '"","","",""', '"",,,')
LINES = ("1,2,3,4", "5,6,7,8", *EMPTY, "  ", "x", "1,2", "nan,1,2,3", "1,inf,2,3", '"1,2",3,4')


@given(st.lists(st.sampled_from(LINES), max_size=20), st.integers(1, 99))
def test_which_rows_are_bad_does_not_depend_on_where_a_csv_is_cut(tmp_path_factory, lines, size):
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    path.write_text("\n".join([",".join(NAMES), *lines]))
    part = whole(chunks_of(path, chunk_bytes=size), bad_rows="skip")
    good = [line.split(",") for line in lines if line in LINES[:2]]
    assert part.left_out == len([line for line in lines if line not in EMPTY]) - len(good)
    assert part.stats == Stats.of(SHARED, np.array(good, float).reshape(-1, 4))


@pytest.mark.parametrize("line", ["1,2,3", "1,2,3,4,5", "1,2,3,?", "1,2,3,0x1", "1,2,3,\xe9"])
def test_lines_of_csv_that_are_no_samples_are_bad_rows(tmp_path, line):
    path = tmp_path / "a.csv"
    lines = ",".join(NAMES), "1,2,3,4", line, "5,6,7,8"
    path.write_text("\n".join(lines), encoding="latin-1")
    part = whole(chunks_of(path), bad_rows="skip")
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
        (
            "a.csv",
            "1,2,3,4\r\n".encode("utf-16"),
            r"a\.csv, bytes .*: found UTF-16, expected UTF-8",
        ),
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
    with pytest.raises(SettingError, match=r"bad_rows='leave_out', expected one of \['error', "):
        part_of(SHARED, 0, bad_rows="leave_out", read=lambda _c, _p: [FOUR])
