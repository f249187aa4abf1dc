"""Bytes on the wire: lengths of real messages, and what is claimed about them."""

import os
from pathlib import Path

import pytest

from edgemerge import encode
from edgemerge.paper import bytes as wire
from edgemerge.paper.bytes import claims, plot, run
from edgemerge.paper.dataset import Dataset, Trial
from edgemerge.paper.hyperparameters import FORMS, device_factories
from edgemerge.paper.plan import Job, Plan, Scope
from edgemerge.paper.running.result_files import checked_rows, column_types, from_csv, to_csv
from tests.paper.toys import toy
from tests.services.missing import NO_DATA

pytestmark = pytest.mark.slow

FOLDER = os.environ.get("EDGEMERGE_DATA")


def made_up(of_fl=0.001, lost=0.0):
    """Rows of one data set; the narrower the form, the fewer the bytes."""
    rows = [{"dataset": "har", "method": "BP-NN3-FL", "form": "float32", "pair": 4e8, "of_fl": 1.0}]
    for method in wire.METHODS:
        for i, form in enumerate(FORMS):
            share_of = of_fl * 4.0 / 2.0**i
            sizes = {"pair": 4e8 * share_of, "of_fl": share_of, "auc": 0.9 - lost * i}
            rows.append({"dataset": "har", "method": method, "form": form, **sizes})
    return rows


@pytest.fixture(scope="module")
def rows():
    """Rows of a small data set under the name of HAR."""
    found = toy(samples=200, inputs=20)
    data = Dataset("har", found.X, found.y, found.patterns, found.origin)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("edgemerge.paper.plan._dataset", lambda *_: data)
        return wire.work(Job("bytes", "har", "all", 0), Scope(Path(), quick=True))


def test_averaging_sends_all_parameters_in_every_round():
    assert wire._federated("har", 561) == 288_049 * 4 * 50
    assert wire._federated("driving", 225) == 0


@pytest.mark.slow
def test_there_is_a_row_for_each_method_and_form(rows):
    ours = {(row["method"], row["form"]) for row in rows if row["method"] != "BP-NN3-FL"}
    assert ours == {(method, form) for method in wire.METHODS for form in FORMS}
    assert [row["form"] for row in rows if row["method"] == "BP-NN3-FL"] == ["float32"]


def test_ratios_and_sums_fit_together(rows):
    whole = next(row for row in rows if row["method"] == "BP-NN3-FL")
    for row in rows:
        assert row["pair"] == 2 * (row["up"] + row["down"])
        assert row["of_fl"] == pytest.approx(row["pair"] / whole["pair"])


@pytest.mark.slow
def test_narrower_forms_are_shorter_and_still_detect(rows):
    for method in wire.METHODS:
        exact, single, half = (
            next(r for r in rows if (r["method"], r["form"]) == (method, form)) for form in FORMS
        )
        assert exact["up"] > single["up"] > half["up"]
        assert half["auc"] == pytest.approx(exact["auc"], abs=0.02)
        assert exact["auc"] > 0.9


def test_bytes_are_the_lengths_of_what_is_sent(monkeypatch):
    found = toy(samples=200, inputs=20)
    data = Dataset("har", found.X, found.y, found.patterns, found.origin)
    monkeypatch.setattr("edgemerge.paper.plan._dataset", lambda *_: data)
    job, scope = Job("bytes", "har", "all", 0), Scope(Path(), quick=True)
    trial, lengths = Trial(job, scope), []
    for pattern in range(len(data.patterns)):
        device = device_factories(trial)["ours"]()
        device.learn(trial.learnt(pattern))
        shared = device.share(f"device-{pattern}", revision=1)
        lengths.append(sum(len(encode(each, "float32")) for each in shared))
    (row,) = (r for r in wire.work(job, scope) if (r["method"], r["form"]) == ("ours", "float32"))
    assert row["up"] == pytest.approx(sum(lengths) / len(lengths))


def test_rows_survive_being_written(rows):
    kept = checked_rows(rows, "bytes")
    columns = column_types(kept, "bytes")
    assert from_csv(to_csv(kept, columns), columns, "bytes") == kept


def test_claims_hold_for_few_bytes_and_say_by_how_much_they_are_missed():
    assert all(claim.holds for claim in claims(made_up()))
    many = [claim for claim in claims(made_up(of_fl=0.04)) if "bytes" in claim.text]
    assert len(many) == 3
    assert not any(claim.holds for claim in many)
    assert "exact 1/6, float32 1/12, root16 1/25; missed by a factor of 4" in many[0].found


def test_a_form_that_costs_accuracy_breaks_its_claim():
    found = [claim.holds for claim in claims(made_up(lost=0.004)) if "AUC" in claim.text]
    assert found == [True, False]
    rows = made_up()
    rows[-1]["auc"] = 0.8
    found = [claim.holds for claim in claims(rows) if "AUC" in claim.text]
    assert found == [True, False]


def test_claims_without_a_baseline_are_left_open():
    driving = [{k: v for k, v in row.items() if k != "of_fl"} for row in made_up()[1:]]
    assert [claim.holds for claim in claims(driving)] == [None]
    assert [claim.holds for claim in claims([])] == [None]
    half = [row for row in made_up() if row["form"] != "root16"]
    assert None in {claim.holds for claim in claims(half)}


def test_a_figure_shows_the_ratio_at_each_point():
    (figure,) = plot(made_up()).values()
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert "1/250" in texts[1]
    assert "1/" not in texts[0]
    assert figure.axes[0].get_xscale() == "log"
    points = figure.axes[0].collections[0].get_offsets()
    assert [tuple(point) for point in points] == [
        (row["pair"], place) for place, row in enumerate(made_up())
    ]
    assert not figure.axes[0].patches, "a bar on a log axis has no length"


@pytest.mark.slow
@pytest.mark.skipif(not FOLDER, reason=NO_DATA)
@pytest.mark.long
def test_on_real_data_ours_sends_less_than_a_hundredth():
    found = claims(run(Plan(Scope(Path(FOLDER or ""), quick=True))))
    assert all(claim.holds for claim in found), found
