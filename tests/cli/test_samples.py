"""Samples from CSV."""

from io import BytesIO

import numpy as np
import pytest

from edgemerge.cli.samples import MAX_LINE_BYTES, READ_BYTES, CsvReader
from edgemerge.core.errors import SampleError, SettingError


class Dribble(BytesIO):
    """Gives a few bytes at a time, as a pipe may."""

    def read1(self, _size: int | None = -1) -> bytes:
        return super().read1(3)


def numbers(text: str, **choice: object) -> list[list[float]]:
    return [row for X in CsvReader(BytesIO(text.encode()), **choice) for row in X.tolist()]


@pytest.mark.parametrize(
    "text",
    [
        "1,2\n3,4\n",
        "1,2\n3,4",
        "1,2\r\n3,4\r\n",
        "a,b\n1,2\n3,4\n",
        "\ufeffa,b\n1,2\n3,4\n",
        "\ufeff1,2\n3,4\n",
        "\n1, 2\n\n3 ,4\n\n",
        '"a","b"\n"1",2\n3,4\n',
        "1e0,2.0\n+3,4.\n",
    ],
)
def test_csv_is_read_with_or_without_header_and_whatever_its_line_ends(text):
    assert numbers(text) == [[1.0, 2.0], [3.0, 4.0]]


def test_however_the_bytes_arrive_the_rows_are_the_same():
    text = "a,b\n" + "".join(f"{i},{i / 8}\n" for i in range(50))
    rows = np.vstack(list(CsvReader(Dribble(text.encode()))))
    assert rows.tolist() == numbers(text)
    assert len(rows) == 50


def test_rows_are_given_as_soon_as_they_are_there():
    stream = Dribble(b"1,2\n3,4\n")
    batches = iter(CsvReader(stream))
    assert next(batches).tolist() == [[1.0, 2.0]]
    assert stream.tell() < 8


def test_many_rows_come_in_few_batches():
    text = "0.25,0.5\n" * 20_000
    batches = list(CsvReader(BytesIO(text.encode())))
    assert sum(map(len, batches)) == 20_000
    assert len(batches) == -(-len(text) // READ_BYTES)


def test_columns_are_chosen_by_name_or_number_in_the_order_asked_for():
    text = "time,a,b\nnoon,1,2\n"
    assert numbers(text, columns=["b", "a"]) == [[2.0, 1.0]]
    assert numbers(text, columns=["3"]) == [[2.0]]
    assert numbers("noon,1,2\n", columns=["2", "3"]) == [[1.0, 2.0]]


def test_columns_that_a_projection_names_are_found_by_name():
    rows = CsvReader(BytesIO(b"time,b,a\nnoon,1,2\n"), expected=["a", "b"])
    assert [X.tolist() for X in rows] == [[[2.0, 1.0]]]
    assert rows.names == ["a", "b"]


def test_without_a_header_columns_are_called_by_their_number():
    rows = CsvReader(BytesIO(b"1,2\n"))
    assert list(rows)
    assert rows.names == ["1", "2"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n1,x\n", "line 3: found 'x', expected a number"),
        ("1,nan\n", "line 1: found 'nan', expected a number"),
        ("1,\n", "line 1: found '', expected a number"),
        ("1,2\n1,2,3\n", "line 2: found 3 columns, expected 2 as before"),
        ("1;2\n3;4\n", "line 2: found '3;4', expected a number"),
        ("a;b\n1;2\n2,5;3\n", "line 2: .* the line has ';'; `edgemerge init` writes"),
        ("a;b\n2,5;3\n", "line 2: found ';' between the cells, .*: `edgemerge init` writes"),
        ("a\tb\n2,5\t3\n", r"line 2: found '\\t' between the cells, .*: `edgemerge init` writes"),
        ("time,a\n08:00,1\n", "run `edgemerge init FILE`, whose configuration also reads times"),
    ],
)
def test_what_is_not_a_sample_is_refused_with_its_line(text, words):
    with pytest.raises(SampleError, match=words):
        numbers(text)


def test_what_is_not_a_sample_can_be_skipped_and_is_counted_with_its_reason():
    text = "a,b\n1,2\n1,x\n,2\na,b\n3,nan\n1,2,3\n5\n7,8\n"
    rows = CsvReader(BytesIO(text.encode()), skip_bad_rows=True)
    assert [row for X in rows for row in X.tolist()] == [[1.0, 2.0], [7.0, 8.0]]
    assert (rows.skipped, rows.why) == (5, "line 8: found 1 columns, expected 2 as before")


def test_a_header_that_comes_again_is_no_sample():
    assert numbers("a,b\n1,2\na,b\n3,4\n") == [[1.0, 2.0], [3.0, 4.0]]


def test_an_unknown_column_is_told_with_those_that_are_there():
    with pytest.raises(SettingError, match="found no column 'c', expected one of: a, b"):
        numbers("a,b\n1,2\n", columns=["c"])
    with pytest.raises(SettingError, match="found no column '3', expected one of: 1 to 2"):
        numbers("1,2\n", columns=["3"])


def test_bytes_that_are_no_text_are_refused():
    with pytest.raises(SampleError, match="expected CSV in UTF-8"):
        list(CsvReader(BytesIO(b"\xff1,2\n")))
    for form in ("utf-16", "utf-16-le", "utf-16-be"):
        data = BytesIO("a,b\r\n1,2\r\n".encode(form))
        with pytest.raises(SampleError, match="found UTF-16, expected UTF-8: export it as CSV"):
            list(CsvReader(data))


def test_a_line_without_end_is_not_kept_for_ever():
    with pytest.raises(SampleError, match="more than"):
        list(CsvReader(BytesIO(b"1" * (MAX_LINE_BYTES + 2 * READ_BYTES))))
