"""ROC-AUC against the number of merged devices: 1 to 30 people of HAR, one activity each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise

import numpy as np
from matplotlib.figure import Figure

from edgemerge import Bank, Stats
from edgemerge.paper import har_fleet
from edgemerge.paper.har_fleet import AVERAGED, MERGED, OURS, Fleet
from edgemerge.paper.hyperparameters import LAYERS, NETWORKS, ROUNDS
from edgemerge.paper.plan import Claim, Job, Plan, Row, Rows, Scope
from edgemerge.paper.plotting import BLACK, COLOURS, GREY, SKY, new_figure, set_titles

NAME = "devices"
TITLE = "AUC against the number of devices that merged"
DATA = ("har",)
NOTE = (
    "Each of HAR's 30 people is a device that learnt about 45 windows of one of two activities, "
    "once; the evaluation set has both activities of all 30 people. Mean over all pairs of "
    "activities (bands: the middle half of the fleets); a new device adopts what the others sent. "
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
    """Measure fleets in which from one device to all are merged."""
    return plan.rows(work, har_fleet.jobs(NAME, plan, AVERAGED_SETTINGS))


def work(job: Job, scope: Scope) -> Rows:
    """Measure one fleet."""
    people, points = Fleet.for_job(job, scope), QUICK_POINTS if scope.quick else FEW_POINTS
    rows = averaged(people, points) if job.method == AVERAGED else exchanged(people)
    return people.label_rows(job, rows)


def exchanged(people: Fleet) -> Rows:
    """Merge the first devices of a fleet, the paper's way and ours, and learn in one place."""
    points = [count for count in POINTS if count <= len(people.names)]
    return [*_sums(people, points), *_banks(people, points), *_central(people, points)]


def _sums(people: Fleet, points: list[int]) -> Rows:
    shared, projection = people.sums(), people.layer(LAYERS["har"])
    rows: Rows = []
    for count in points:
        stats = har_fleet.ledger_of(shared[:count], projection).total()
        central = Stats.of(projection, people.data.X[np.concatenate(people.parts[:count])])
        auc = people.auc(np.asarray(har_fleet.merged_detector(stats).loss(people.readings)))
        rows.append(_row(MERGED, count, auc) | {"same": int(stats == central)})
    return rows


def _banks(people: Fleet, points: list[int]) -> Rows:
    shared, projection = people.banks(), people.layer(har_fleet.LAYER)
    rows: Rows = []
    for count in points:
        ledger = har_fleet.ledger_of(chain(*shared[:count]), projection)
        apart = Bank(projection)
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
    """Train the first devices by federated averaging; and once all samples in one place."""
    from edgemerge.paper import backprop  # noqa: PLC0415 (only this needs torch)

    backprop.use_one_thread()
    parts, readings = people.network_inputs()
    rows: Rows = []
    network, seed = har_fleet.NETWORK, people.seed
    for count in (count for count in points if count <= len(parts)):
        net = backprop.train_federated(network, parts[:count], rounds=ROUNDS, seed=seed)
        rows.append(_row(AVERAGED, count, people.auc(backprop.losses(net, readings))))
    if len(parts) in points:
        net = backprop.train(CENTRAL_NETWORK, parts, people.seed)
        rows.append(_row(IN_ONE_PLACE, len(parts), people.auc(backprop.losses(net, readings))))
    return rows


def _row(method: str, devices: int, auc: float) -> Row:
    return {"method": method, "devices": devices, "auc": auc}


def table(rows: Rows) -> Rows:
    """Return the mean AUC of each method at each number of devices."""
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
    """Claim that AUC rises with the devices, what that gains, and that merging is exact."""
    one, most = (har_fleet.aucs(rows, OURS, devices=count) for count in (1, POINTS[-1]))
    gains = f"{POINTS[-1]} devices beat the mean single one by {MIN_GAIN} AUC or more"
    near = f"Ours is within {MAX_AUC_LOSS} AUC of one bank that saw all rows"
    exact = "Merged sums are those of learning all rows in one place, bit for bit"
    return [
        *(_rises(rows, method) for method in (OURS, MERGED)),
        har_fleet.gain_claim(gains, MIN_GAIN, har_fleet.mean_gain(most, one)),
        _beats(rows, MERGED, 0.0, "Ours is above adding all up into one sum"),
        _beats(rows, AVERAGED, 0.0, "Ours is above BP-NN3-FL"),
        _beats(rows, IN_ONE_PLACE, 0.0, "Ours is above BP-NN3, which sees all rows in one place"),
        _beats(rows, CENTRAL, -MAX_AUC_LOSS, near),
        har_fleet.exact_claim(exact, rows),
    ]


def _rises(rows: Rows, method: str) -> Claim:
    counts = [count for count in (1, 2, 8, 30) if har_fleet.aucs(rows, method, devices=count)]
    means = [har_fleet.mean(har_fleet.aucs(rows, method, devices=count)) for count in counts]
    text = f"AUC rises with the number of devices ({STYLES[method][0]})"
    found = ", ".join(f"{n}: {auc:.3f}" for n, auc in zip(counts, means, strict=True))
    return Claim(text, all(a < b for a, b in pairwise(means)) if len(means) > 1 else None, found)


def _beats(rows: Rows, method: str, least: float, text: str) -> Claim:
    most = max((int(row["devices"]) for row in rows if row["method"] == method), default=0)
    ours, theirs = (har_fleet.aucs(rows, which, devices=most) for which in (OURS, method))
    where = f" ({most} devices)" if most else ""
    return har_fleet.gain_claim(f"{text}{where}", least, har_fleet.mean_gain(ours, theirs))
