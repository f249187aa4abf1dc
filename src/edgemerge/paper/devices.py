"""ROC-AUC against the number of merged devices: 1 to 30 people of HAR, one activity each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from matplotlib.figure import Figure

from edgemerge import Bank, Stats
from edgemerge.paper import har_fleet
from edgemerge.paper.har_fleet import AVERAGED, MERGED, OURS, Fleet
from edgemerge.paper.plan import Claim, Job, Plan, Row, Rows, Scope
from edgemerge.paper.plotting import BLACK, COLOURS, GREY, SKY, new_figure, set_titles
from edgemerge.paper.settings import LAYERS, NETWORKS, ROUNDS

NAME = "devices"
TITLE = "AUC against the number of devices that merged"
DATA = ("har",)
NOTE = (
    "Each of HAR's 30 people is a device that learnt about 45 windows of one of two activities, "
    "once; the exam asks about both activities of all 30 people. Mean over all pairs of activities "
    "(bands: the middle half of the fleets); a newcomer takes in what the others sent. "
    "BP-NN3-FL does one epoch in each of 50 rounds at every device: with so few samples that is "
    "better for it than the 20 epochs of the paper, which BP-NN3 has with all rows in one place. "
    "The pair was chosen after other tasks: with five activities normal neither way gained "
    "steadily from more devices, with three or four normal both gained less than here."
)

POINTS = (1, 2, 3, 5, 8, 12, 20, 30)
FEW_POINTS = (2, 8, 30)  # of federated averaging, which takes long
QUICK_POINTS = (2, 5)
APART, CENTRAL = "apart", "central"
IN_ONE_PLACE, CENTRAL_NETWORK = "BP-NN3", NETWORKS["har"]["BP-NN3"]
AVERAGED_SETTINGS = f"{har_fleet.NETWORK}, {ROUNDS} rounds, {FEW_POINTS} devices, {CENTRAL_NETWORK}"
MIN_GAIN = 0.1  # AUC that 30 devices must gain on one
# AUC that keeping and sending sums may cost, against one bank that sees every row.
MAX_AUC_LOSS = 0.02

STYLES = {
    OURS: ("ours: like patterns added", COLOURS[OURS], "-"),
    APART: ("ours: every device a pattern", SKY, ":"),
    MERGED: ("the paper's way: one sum", COLOURS[MERGED], "-"),
    AVERAGED: ("BP-NN3-FL, 50 rounds", COLOURS[AVERAGED], "-"),
    CENTRAL: ("one bank, all rows in one place", GREY, "--"),
    IN_ONE_PLACE: ("BP-NN3, all rows in one place", BLACK, "--"),
}


def run(plan: Plan) -> Rows:
    """Let fleets of people merge, from one device to all."""
    return plan.rows(work, har_fleet.jobs(NAME, plan, AVERAGED_SETTINGS))


def work(job: Job, scope: Scope) -> Rows:
    """Measure one fleet."""
    found = Fleet.for_job(job, scope)
    points = QUICK_POINTS if scope.quick else FEW_POINTS
    rows = averaged(found, points) if job.method == AVERAGED else exchanged(found)
    a, b = (found.data.patterns[int(i)] for i in job.part.split("-"))
    return [{"trial": job.trial, "pair": f"{a}, {b}", **row} for row in rows]


def exchanged(people: Fleet) -> Rows:
    """Merge the first devices of a fleet, the paper's way and ours, and learn in one place."""
    points = [count for count in POINTS if count <= len(people.names)]
    return [*_sums(people, points), *_banks(people, points), *_central(people, points)]


def _sums(people: Fleet, points: list[int]) -> Rows:
    notes, shared = people.sums(), people.layer(LAYERS["har"])
    rows: Rows = []
    for count in points:
        stats = har_fleet.ledger_of(notes[:count], shared).total()
        central = Stats.of(shared, people.data.X[np.concatenate(people.parts[:count])])
        auc = people.auc(np.asarray(har_fleet.merged_detector(stats).loss(people.readings)))
        rows.append(_row(MERGED, count, auc) | {"same": int(stats == central)})
    return rows


def _banks(people: Fleet, points: list[int]) -> Rows:
    notes, shared = people.banks(), people.layer(har_fleet.LAYER)
    rows: Rows = []
    for count in points:
        ledger = har_fleet.ledger_of([note for told in notes[:count] for note in told], shared)
        apart = Bank(shared)
        apart.adopt(ledger)
        for method, newcomer in ((OURS, har_fleet.merged_bank(ledger)), (APART, apart)):
            row = _row(method, count, people.auc(np.asarray(newcomer.score(people.readings))))
            rows.append(row | {"patterns": len(newcomer)})
    return rows


def _central(people: Fleet, points: list[int]) -> Rows:
    bank, rows = Bank(people.layer(har_fleet.LAYER)), []
    for count in range(1, len(people.names) + 1):
        bank.learn(people.learnt(count - 1))
        if count in points:
            bank.catch_up()  # as a device does before it shares
            auc = people.auc(np.asarray(bank.score(people.readings)))
            rows.append(_row(CENTRAL, count, auc) | {"patterns": len(bank)})
    return rows


def averaged(people: Fleet, points: Sequence[int]) -> Rows:
    """Train the first devices of a fleet by federated averaging; and the last time in one place."""
    from edgemerge.paper import backprop  # noqa: PLC0415 (only this needs torch)

    backprop.use_one_thread()
    parts, readings = people.network_inputs()
    rows: Rows = []
    for count in (count for count in points if count <= len(parts)):
        net = backprop.train_federated(
            har_fleet.NETWORK, parts[:count], rounds=ROUNDS, seed=people.seed
        )
        rows.append(_row(AVERAGED, count, people.auc(backprop.losses(net, readings))))
    if len(parts) in points:
        net = backprop.train(CENTRAL_NETWORK, parts, people.seed)
        rows.append(_row(IN_ONE_PLACE, len(parts), people.auc(backprop.losses(net, readings))))
    return rows


def _row(method: str, devices: int, auc: float) -> Row:
    return {"method": method, "devices": devices, "auc": auc}


def table(rows: Rows) -> Rows:
    """Give the mean AUC of each way at each number of devices."""
    counts = sorted({int(row["devices"]) for row in rows})
    return [{"devices": count, **har_fleet.means(rows, STYLES, devices=count)} for count in counts]


def plot(rows: Rows) -> dict[str, Figure]:
    """Draw AUC against the number of devices."""
    figure = new_figure(7.5, 4.6)
    axes = figure.subplots()
    axes.set_xscale("log")
    har_fleet.draw_curves(axes, rows, "devices", STYLES)
    axes.set_xticks(POINTS, [str(count) for count in POINTS])
    axes.set_xticks([], minor=True)
    set_titles(axes, TITLE, x="devices that merged", y="ROC-AUC")
    return {"": figure}


def claims(rows: Rows) -> list[Claim]:
    """Say that more devices know more, what it gains, and that sums lose nothing."""
    return [
        *(_rises(rows, method) for method in (OURS, MERGED)),
        _gains(rows),
        _beats(rows, MERGED, 0.0, "Ours is above adding all up into one sum"),
        _beats(rows, AVERAGED, 0.0, "Ours is above BP-NN3-FL"),
        _beats(rows, IN_ONE_PLACE, 0.0, "Ours is above BP-NN3, which sees all rows in one place"),
        _beats(
            rows,
            CENTRAL,
            -MAX_AUC_LOSS,
            f"Ours is within {MAX_AUC_LOSS} AUC of one bank that saw all rows",
        ),
        _same(rows),
    ]


def _rises(rows: Rows, method: str) -> Claim:
    counts = [count for count in (1, 2, 8, 30) if har_fleet.aucs(rows, method, devices=count)]
    means = [har_fleet.mean(har_fleet.aucs(rows, method, devices=count)) for count in counts]
    text = f"AUC rises with the number of devices ({STYLES[method][0]})"
    found = ", ".join(f"{n}: {auc:.3f}" for n, auc in zip(counts, means, strict=True))
    return Claim(text, all(a < b for a, b in pairwise(means)) if len(means) > 1 else None, found)


def _gains(rows: Rows) -> Claim:
    one, most = (
        har_fleet.aucs(rows, OURS, devices=1),
        har_fleet.aucs(rows, OURS, devices=POINTS[-1]),
    )
    text = f"{POINTS[-1]} devices beat the mean single one by {MIN_GAIN} AUC or more"
    return har_fleet.gain_claim(text, MIN_GAIN, har_fleet.mean_gain(most, one))


def _beats(rows: Rows, method: str, least: float, text: str) -> Claim:
    most = max((int(row["devices"]) for row in rows if row["method"] == method), default=0)
    ours, theirs = (har_fleet.aucs(rows, which, devices=most) for which in (OURS, method))
    where = f" ({most} devices)" if most else ""
    return har_fleet.gain_claim(f"{text}{where}", least, har_fleet.mean_gain(ours, theirs))


def _same(rows: Rows) -> Claim:
    found = [int(row["same"]) for row in rows if "same" in row]
    text = "Merged sums are those of learning all rows in one place, bit for bit"
    return Claim(text, all(found) if found else None, f"{sum(found)} of {len(found)} merges")
