"""AUC against the number of devices: rows, claims and figure, and the claims on real people."""

from pathlib import Path

import numpy as np
import pytest

from edgemerge import Bank, Detector
from edgemerge.paper import devices, har_fleet
from edgemerge.paper.dataset import rng_for
from edgemerge.paper.devices import APART, CENTRAL, IN_ONE_PLACE, claims, plot, table
from edgemerge.paper.har_fleet import AVERAGED, MERGED, OURS, Fleet
from edgemerge.paper.hyperparameters import LAYERS, ROUNDS, Network
from edgemerge.paper.plan import Job, Plan, Scope
from edgemerge.paper.running.result_files import checked_rows, column_types, from_csv, to_csv
from tests.paper.real import FOLDER, needs_data
from tests.paper.toys import toy

DATA = toy(patterns=6, samples=200, inputs=8, origins=5)


@pytest.fixture(scope="module")
def people():
    return Fleet.of(DATA, (0, 3), rng_for(7, "fleet"))


@pytest.fixture(scope="module")
def found(people):
    return devices.exchanged(people)


def one(rows, method, count):
    (row,) = (row for row in rows if (row["method"], row["devices"]) == (method, count))
    return row


def made_up(last=0.9, averaged=0.8, same=1):
    """Rows of two fleets in which AUC rises to `last`."""
    ends = {OURS: last, MERGED: 0.85, APART: 0.87, CENTRAL: 0.91}
    rows = []
    for trial in (0, 1):
        key = {"trial": trial, "pair": "sitting, laying"}
        for method, end in ends.items():
            for count, auc in ((1, 0.6), (2, 0.7), (8, 0.8), (30, end)):
                rows.append({**key, "method": method, "devices": count, "auc": auc})
                if method == MERGED:
                    rows[-1]["same"] = same
        rows.append({**key, "method": AVERAGED, "devices": 30, "auc": averaged})
        rows.append({**key, "method": IN_ONE_PLACE, "devices": 30, "auc": 0.88})
    return rows


def test_each_way_has_a_row_for_each_number_of_devices_that_there_are(found):
    for method in (OURS, APART, MERGED, CENTRAL):
        assert [r["devices"] for r in found if r["method"] == method] == [1, 2, 3, 5]
    kept = checked_rows(found, "devices")
    columns = column_types(kept, "devices")
    assert len(from_csv(to_csv(kept, columns), columns, "devices")) == len(kept)


def test_the_papers_way_adds_the_first_devices_up(people, found):
    shared = people.layer(LAYERS["har"])
    together = Detector(shared)
    together.learn(DATA.X[np.concatenate(people.parts[:3])])
    auc = people.auc(together.loss(people.readings))
    assert one(found, MERGED, 3)["auc"] == pytest.approx(auc)
    assert [row["same"] for row in found if "same" in row] == [1, 1, 1, 1]


def test_a_merge_that_loses_a_sample_is_not_called_the_same(people, monkeypatch):
    lost = people.sums()
    monkeypatch.setattr(Fleet, "sums", lambda _: [lost[1], *lost[1:]])
    assert [row["same"] for row in devices._sums(people, [1, 5])] == [0, 0]


def test_ours_hears_the_first_devices_and_no_others(people, found):
    notes = [note for sent in people.banks()[:3] for note in sent]
    ledger = har_fleet.ledger_of(notes, people.layer(har_fleet.LAYER))
    newcomer = har_fleet.merged_bank(ledger)
    assert one(found, OURS, 3)["auc"] == pytest.approx(people.auc(newcomer.score(people.readings)))
    assert one(found, OURS, 3)["patterns"] == len(newcomer)
    assert one(found, OURS, 1)["patterns"] == one(found, APART, 1)["patterns"] == 1
    apart = Bank(ledger.projection)
    apart.adopt(notes)
    assert one(found, APART, 3)["auc"] == pytest.approx(people.auc(apart.score(people.readings)))
    assert one(found, APART, 5)["patterns"] >= one(found, OURS, 5)["patterns"]


def test_in_one_place_one_bank_sees_device_after_device(people, found):
    bank = Bank(people.layer(har_fleet.LAYER))
    for i in range(3):
        bank.learn(people.learnt(i))
        bank.catch_up()
    assert one(found, CENTRAL, 3)["auc"] == pytest.approx(people.auc(bank.score(people.readings)))


@pytest.mark.slow
def test_networks_are_averaged_over_the_first_devices_and_trained_once_in_one_place(
    people, monkeypatch
):
    from edgemerge.paper import backprop  # PyTorch takes seconds to import

    small = Network((3,), 8, 2)
    monkeypatch.setattr(har_fleet, "NETWORK", small)
    monkeypatch.setattr(devices, "CENTRAL_NETWORK", small)
    rows = devices.averaged(people, (2, 5, 30))
    assert [(r["method"], r["devices"]) for r in rows] == [
        (AVERAGED, 2),
        (AVERAGED, 5),
        (IN_ONE_PLACE, 5),
    ]
    parts, readings = people.network_inputs()
    net = backprop.train_federated(small, parts[:2], rounds=ROUNDS, seed=people.seed)
    assert rows[0]["auc"] == pytest.approx(people.auc(backprop.losses(net, readings)))
    together = backprop.train(small, parts, people.seed)
    assert rows[2]["auc"] == pytest.approx(people.auc(backprop.losses(together, readings)))
    assert len(devices.averaged(people, (2,))) == 1


def test_rows_name_their_pair(monkeypatch):
    monkeypatch.setattr("edgemerge.paper.plan._dataset", lambda *_: DATA)
    rows = devices.work(Job("devices", "har", OURS, 4, "0-3"), Scope(Path()))
    assert {(row["trial"], row["pair"]) for row in rows} == {(4, "pattern-0, pattern-3")}


def test_claims_hold_when_auc_rises_and_ours_is_above():
    assert [claim.holds for claim in claims(made_up())] == [True] * 8
    assert "+0.300" in claims(made_up())[2].found


def test_claims_fail_one_by_one():
    flat = claims(made_up(last=0.69))
    assert [claim.holds for claim in flat] == [False, True, False, False, False, False, False, True]
    assert claims(made_up(averaged=0.95))[4].holds is False
    assert claims(made_up(same=0))[-1].holds is False


def test_claims_of_no_rows_were_not_measured():
    assert {claim.holds for claim in claims([])} == {None}
    few = [row for row in made_up() if row["method"] not in (AVERAGED, IN_ONE_PLACE)]
    assert [claim.holds for claim in claims(few)] == [*[True] * 4, None, None, True, True]


def test_the_table_has_a_line_for_each_number_of_devices():
    rows = table(made_up())
    assert [row["devices"] for row in rows] == [1, 2, 8, 30]
    assert rows[-1][OURS] == 0.9
    assert rows[-1][AVERAGED] == 0.8
    assert AVERAGED not in rows[0]


def test_a_figure_has_a_line_for_each_way():
    (figure,) = plot(made_up()).values()
    (axes,) = figure.axes
    assert len(axes.lines) == 6
    assert len(axes.collections) == 2
    assert axes.get_xscale() == "log"
    assert next(tick.get_text() for tick in axes.get_xticklabels()) == "1"
    assert plot([])[""].axes


@needs_data
@pytest.mark.slow
@pytest.mark.long
def test_on_real_people_merging_helps_and_equals_learning_in_one_place():
    rows = devices.run(Plan(Scope(FOLDER, quick=True), trials=1, baseline_trials=0))
    held = claims(rows)
    assert all(held[i].holds for i in (0, 1, 2, 3, 6, 7))
    assert one(rows[: len(rows) // 3], OURS, 30)["patterns"] < 30
