"""ROC-AUC when some of 30 devices drop out before sharing, and the time to remove them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, product
from time import process_time
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from edgemerge import Contribution, Ledger, Stats
from edgemerge.paper import har_fleet
from edgemerge.paper.dataset import Array, rng_for
from edgemerge.paper.har_fleet import AVERAGED, MERGED, OURS, Fleet
from edgemerge.paper.hyperparameters import ROUNDS
from edgemerge.paper.plan import Claim, Job, Plan, Row, Rows, Scope
from edgemerge.paper.plotting import COLOURS, new_figure, set_titles

if TYPE_CHECKING:
    from torch import nn


NAME = "drop-out"
TITLE = "AUC when devices drop out"
DATA = ("har",)
NOTE = (
    "The fleets are those of AUC against the number of devices. A device that drops out has sent "
    "nothing; under BP-NN3-FL it takes part up to a round by chance. Bands: the middle half of the "
    "fleets. Times are CPU time of one thread, in one job: to take three of ten devices out of "
    "what was merged, and to train again without them."
)

DROP_SHARES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
FEW_SHARES = (0.0, 0.5, 0.9)  # of federated averaging, which takes long
TIMED, TIMED_SHARE = "time", 0.3
MAX_AUC_LOSS = 0.02  # AUC that may be lost with 30 % of the devices
AVERAGED_SETTINGS = f"{har_fleet.NETWORK}, {ROUNDS} rounds, shares {FEW_SHARES}"

STYLES = {
    OURS: ("ours: like patterns added", COLOURS[OURS], "-"),
    MERGED: ("the paper's way: one sum", COLOURS[MERGED], "-"),
    AVERAGED: ("BP-NN3-FL, left at some round", COLOURS[AVERAGED], "-"),
}


def run(plan: Plan) -> Rows:
    """Measure fleets from which devices drop out, and the time to remove their contributions."""
    jobs = har_fleet.jobs(NAME, plan, AVERAGED_SETTINGS)
    if plan.scope.quick:
        jobs = [job for job in jobs if job.method == OURS]
    if plan.baseline_trials:
        a, b = har_fleet.FEW_PAIRS[0]
        jobs.append(Job(NAME, "har", TIMED, 0, f"{a}-{b}", AVERAGED_SETTINGS))
    return plan.rows(work, jobs)


def work(job: Job, scope: Scope) -> Rows:
    """Measure one fleet."""
    people = Fleet.for_job(job, scope)
    measure = {OURS: exchanged, AVERAGED: averaged, TIMED: time_removal}[job.method]
    return people.label_rows(job, measure(people))


def remaining(people: Fleet, share: float) -> int:
    """Return how many devices are left; the last ones of a fleet's random order drop out."""
    return max(1, len(people.names) - round(share * len(people.names)))


def exchanged(people: Fleet) -> Rows:
    """Drop a fleet's last devices, and merge the contributions of the others."""
    rows: Rows = []
    shared = {OURS: list(chain(*people.banks())), MERGED: people.sums()}
    for share, method in product(DROP_SHARES, shared):
        gone = people.names[remaining(people, share) :]
        ledger = ledger_without(shared[method], gone)
        if method == OURS:
            found = har_fleet.merged_bank(ledger).score(people.readings)
        else:
            found = har_fleet.merged_detector(ledger.total()).loss(people.readings)
        row: Row = {"method": method, "share": share, "auc": people.auc(np.asarray(found))}
        rows.append(row | {"same": int(is_exact(shared[method], gone, ledger))})
    return rows


def ledger_without(contributions: Sequence[Contribution], gone: Sequence[str]) -> Ledger:
    """Return a ledger of all contributions from which those of some devices were dropped."""
    ledger = har_fleet.ledger_of(contributions, contributions[0].stats.projection)
    for device in gone:
        ledger.drop(device)
    return ledger


def is_exact(every: Sequence[Contribution], gone: Sequence[str], dropped: Ledger) -> bool:
    """Check that dropping equals never having added, and subtracting; and that adding again works.

    `every` are the contributions of all devices, `dropped` is the ledger without those of `gone`.
    """
    projection = dropped.projection
    whole = har_fleet.ledger_of(every, projection)
    never = har_fleet.ledger_of([one for one in every if one.device not in gone], projection)
    back = har_fleet.ledger_of([*dropped, *every], projection)
    lost = Stats.total(projection, (one.stats for one in every if one.device in gone))
    few = {dropped.total().digest, never.total().digest, (whole.total() - lost).digest}
    return len(few) == 1 and back.total().digest == whole.total().digest


def averaged(people: Fleet) -> Rows:
    """Train a fleet by federated averaging; some clients leave at a random round."""
    from edgemerge.paper import backprop  # noqa: PLC0415 (only this needs torch)

    parts, readings = people.network_inputs()
    rows: Rows = []
    for share in FEW_SHARES:
        net = train_federated(parts, last_rounds(people, share), people.seed)
        auc = people.auc(backprop.losses(net, readings))
        rows.append({"method": AVERAGED, "share": share, "auc": auc})
    return rows


def last_rounds(people: Fleet, share: float) -> list[int]:
    """Return how many rounds each device takes part in: all, or a random number if it leaves."""
    stay = remaining(people, share)
    rng = rng_for(people.seed, "leave", share)
    left = rng.integers(0, ROUNDS, len(people.names) - stay)
    return [ROUNDS] * stay + [int(turn) for turn in left]


def train_federated(parts: Sequence[Array], stay: Sequence[int], seed: int) -> nn.Module:
    """Train by federated averaging; `stay` is the number of rounds of each client."""
    from edgemerge.paper import backprop  # noqa: PLC0415 (only this needs torch)

    backprop.use_one_thread()
    return backprop.train_federated(har_fleet.NETWORK, parts, rounds=ROUNDS, seed=seed, stay=stay)


def time_removal(people: Fleet) -> Rows:
    """Time the removal of devices from a merge, and training a network again without them."""
    count = remaining(people, TIMED_SHARE)
    ledger = har_fleet.ledger_of(chain(*people.banks()), people.layer(har_fleet.LAYER))
    parts = people.network_inputs()[0][:count]
    train_federated(parts[:1], [ROUNDS], people.seed)  # warms torch up
    start = process_time()
    for device in people.names[count:]:
        ledger.drop(device)
    har_fleet.merged_bank(ledger).score(people.readings[:1])
    between = process_time()
    train_federated(parts, [ROUNDS] * count, people.seed)
    times = {OURS: between - start, AVERAGED: process_time() - between}
    head: Row = {"method": TIMED, "share": TIMED_SHARE}
    return [{**head, "way": method, "seconds": seconds} for method, seconds in times.items()]


def table(rows: Rows) -> Rows:
    """Return the mean AUC of each method at each share of devices that dropped out."""
    shares = sorted({float(row["share"]) for row in rows if "auc" in row})
    return [
        {"dropped out": f"{share:.0%}", **har_fleet.means(rows, STYLES, share=share)}
        for share in shares
    ]


def plot(rows: Rows) -> dict[str, Figure]:
    """Draw AUC against the share of devices that dropped out."""
    figure = new_figure(7.5, 4.6)
    axes = figure.subplots()
    har_fleet.draw_curves(axes, rows, "share", STYLES)
    axes.set_xticks(DROP_SHARES, [f"{share:.0%}" for share in DROP_SHARES])
    set_titles(axes, TITLE, x="devices that dropped out", y="ROC-AUC")
    return {"": figure}


def claims(rows: Rows) -> list[Claim]:
    """Claim that losing devices costs little, that it is exact, and faster than training again."""
    exact = "Dropped is never heard, and back is never left: equal digests of the total"
    return [
        *(_costs(rows, method) for method in (OURS, MERGED)),
        _above(rows),
        har_fleet.exact_claim(exact, rows),
        _faster(rows),
    ]


def _costs(rows: Rows, method: str) -> Claim:
    few, whole = (har_fleet.aucs(rows, method, share=share) for share in (0.3, 0.0))
    text = f"Losing 30 % of the devices costs at most {MAX_AUC_LOSS} AUC ({STYLES[method][0]})"
    return har_fleet.gain_claim(text, -MAX_AUC_LOSS, har_fleet.mean_gain(few, whole))


def _above(rows: Rows) -> Claim:
    shares = [share for share in FEW_SHARES if har_fleet.aucs(rows, AVERAGED, share=share)]
    text = "Ours stays above BP-NN3-FL, though that has heard those that left for some rounds"
    pairs = [[har_fleet.aucs(rows, way, share=s) for way in (OURS, AVERAGED)] for s in shares]
    gains = [
        gain for ours, theirs in pairs if (gain := har_fleet.mean_gain(ours, theirs)) is not None
    ]
    return har_fleet.gain_claim(text, 0.0, float(np.min(gains)) if gains else None)


def _faster(rows: Rows) -> Claim:
    times = {str(row["way"]): float(row["seconds"]) for row in rows if "seconds" in row}
    text = "Doing without 30 % of the devices is faster than training BP-NN3-FL again"
    if not times:
        return Claim.not_measured(text)
    ours, theirs = times[OURS], times[AVERAGED]
    found = f"{ours:.2g} s against {theirs:.2g} s: {theirs / ours:.0f} times"
    return Claim(text, ours < theirs, found)
