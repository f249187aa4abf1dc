"""A result in a folder comes back as it went in, and what is damaged is refused with advice."""

import json
from dataclasses import replace

import pytest
from matplotlib.figure import Figure

from edgemerge.paper.running.result_files import (
    Record,
    RowError,
    checked_rows,
    column_types,
    figure_name,
    figure_png,
    from_csv,
    read_result,
    save_figures,
    save_result,
    to_csv,
)

RECORD = Record("toy", "2026-01-02T03:04:05Z", "0.1.0", 7, False, 50, 3, data={"har": "ab" * 32})
ROWS = [
    {"digit": "0", "trial": 1, "auc": 0.1, "word": "a,b"},
    {"digit": "1", "trial": 2, "auc": 1, "word": 'a "quoted"\nline'},
]


def test_rows_and_record_come_back_with_their_types(tmp_path):
    saved = save_result(tmp_path, RECORD, ROWS)
    kept = read_result(tmp_path, "toy")
    assert kept == saved
    assert kept.rows == ROWS
    assert [type(value) for value in kept.rows[1].values()] == [str, int, float, str]
    assert replace(kept.record, columns={}) == RECORD


def test_every_bit_of_a_number_survives(tmp_path):
    rows = [{"value": value} for value in (1 / 3, 1e-300, -1.7976931348623157e308, 5e-324)]
    assert save_result(tmp_path, RECORD, rows).rows == rows


def test_a_row_may_lack_a_column(tmp_path):
    rows = [{"a": 1, "b": 0.5}, {"a": 2}, {"a": 3, "c": "x"}]
    save_result(tmp_path, RECORD, rows)
    found = read_result(tmp_path, "toy").rows
    assert found == [{"a": 1, "b": 0.5, "c": ""}, {"a": 2, "c": ""}, {"a": 3, "c": "x"}]


def test_nothing_is_there_until_it_is_saved(tmp_path):
    assert read_result(tmp_path, "toy") is None


def test_no_rows_are_rows_too(tmp_path):
    assert save_result(tmp_path, RECORD, []).rows == read_result(tmp_path, "toy").rows == []


def test_a_second_save_replaces_the_first(tmp_path):
    save_result(tmp_path, RECORD, ROWS)
    save_result(tmp_path, replace(RECORD, seed=8), ROWS[:1])
    assert read_result(tmp_path, "toy").rows == ROWS[:1]
    assert read_result(tmp_path, "toy").record.seed == 8
    assert {path.name for path in tmp_path.iterdir()} == {"toy.csv", "toy.json"}


def test_a_column_of_text_and_numbers_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(RowError, match="toy: column a holds text and numbers"):
        save_result(tmp_path, RECORD, [{"a": "all"}, {"a": 1}])
    with pytest.raises(RowError, match="toy: found a = nan"):
        save_result(tmp_path, RECORD, [{"a": float("nan")}])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        ("toy.json", lambda text: text[:40], r"toy\.json is damaged .*paper toy` again"),
        ("toy.json", lambda _: "{}", r"toy\.json is damaged .*paper toy` again"),
        ("toy.json", lambda _: "[]", r"toy\.json is damaged .*paper toy` again"),
        ("toy.json", None, r"toy\.json is missing: run `edgemerge paper toy` again"),
        ("toy.csv", None, r"toy\.csv is missing: run `edgemerge paper toy` again"),
        ("toy.csv", lambda text: text.replace("auc", "auk"), "found the columns digit, trial, auk"),
        ("toy.csv", lambda _: "", "found the columns nothing, expected digit"),
        ("toy.csv", lambda text: text.replace("0.1", "o.1"), r"toy\.csv, line 2: .*o\.1.*again"),
        ("toy.csv", lambda text: text.replace("1,0.1", "1"), "line 2: expected 4 cells"),
        ("toy.csv", lambda text: text.replace("1,0.1", "1,2,0.1"), "line 2: expected 4 cells"),
    ],
)
def test_damage_is_told_with_what_to_do(tmp_path, name, damage, words):
    save_result(tmp_path, RECORD, ROWS)
    path = tmp_path / name
    if damage is None:
        path.unlink()
    else:
        path.write_text(damage(path.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(RowError, match=words):
        read_result(tmp_path, "toy")


def test_the_record_is_readable_by_people(tmp_path):
    save_result(tmp_path, RECORD, ROWS)
    text = (tmp_path / "toy.json").read_text(encoding="utf-8")
    assert json.loads(text)["seed"] == 7
    assert text.count("\n") > 10


def test_text_and_back_is_the_identity():
    columns = column_types(checked_rows(ROWS, "toy"), "toy")
    text = to_csv(ROWS, columns)
    assert ",1.0," in text
    assert to_csv(from_csv(text, columns, "toy"), columns) == text


def test_figures_are_drawn_on_white_and_the_same_each_time(tmp_path):
    def figure() -> Figure:
        made = Figure((2.0, 1.0))
        made.subplots().plot([1, 2])
        return made

    assert figure_png(figure()) == figure_png(figure())
    [one, other] = save_figures(tmp_path, "toy", {"": figure(), "har": figure()})
    assert (
        (one.name, other.name)
        == ("toy.png", figure_name("toy", "har"))
        == ("toy.png", "toy-har.png")
    )
    assert one.read_bytes().startswith(b"\x89PNG")
    assert b"Software" not in one.read_bytes()
