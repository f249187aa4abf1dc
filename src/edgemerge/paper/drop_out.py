"""ROC-AUC when some of 30 devices drop out before sharing, and the time to remove them."""

from __future__ import annotations

from collections.abc import Sequence
from time import process_time
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from edgemerge import Contribution, Ledger, Stats
from edgemerge.paper import har_fleet
from edgemerge.paper.dataset import Array, rng_for
from edgemerge.paper.har_fleet import AVERAGED, MERGED, OURS, Fleet
from edgemerge.paper.plan import Claim, Job, Plan, Row, Rows, Scope
from edgemerge.paper.plotting import COLOURS, new_figure, set_titles
from edgemerge.paper.settings import ROUNDS

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
    """Let devices drop out of fleets; and see how long it takes to do without them."""
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
    rows = {OURS: exchanged, AVERAGED: averaged, TIMED: time_removal}[job.method](people)
    a, b = (people.data.patterns[int(i)] for i in job.part.split("-"))
    return [{"trial": job.trial, "pair": f"{a}, {b}", **row} for row in rows]


def remaining(people: Fleet, share: float) -> int:
    """Count the devices that are left; the last ones of a fleet drop out, as chance put them."""
    return max(1, len(people.names) - round(share * len(people.names)))


def exchanged(people: Fleet) -> Rows:
    """Let a fleet's last devices leave, and merge what the others sent."""
    banks = [note for sent in people.banks() for note in sent]
    sums, readings = people.sums(), people.readings
    rows: Rows = []
    for share in DROP_SHARES:
        gone = people.names[remaining(people, share) :]
        few = ledger_without(banks, gone)
        score = np.asarray(har_fleet.merged_bank(few).score(readings))
        rows.append(_row(OURS, share, people.auc(score), same=int(is_exact(banks, gone, few))))
        few = ledger_without(sums, gone)
        loss = np.asarray(har_fleet.merged_detector(few.total()).loss(readings))
        rows.append(_row(MERGED, share, people.auc(loss), same=int(is_exact(sums, gone, few))))
    return rows


def ledger_without(notes: Sequence[Contribution], gone: Sequence[str]) -> Ledger:
    """Hear all, then drop those that are gone."""
    ledger = har_fleet.ledger_of(notes, notes[0].stats.projection)
    for device in gone:
        ledger.drop(device)
    return ledger


def is_exact(notes: Sequence[Contribution], gone: Sequence[str], dropped: Ledger) -> bool:
    """Say whether dropped is never heard and the same as subtracted, and back is never left."""
    shared = dropped.projection
    whole = har_fleet.ledger_of(notes, shared)
    never = har_fleet.ledger_of([note for note in notes if note.device not in gone], shared)
    back = har_fleet.ledger_of([*dropped, *notes], shared)
    lost = Stats.total(shared, (note.stats for note in notes if note.device in gone))
    few = {dropped.total().digest, never.total().digest, (whole.total() - lost).digest}
    return len(few) == 1 and back.total().digest == whole.total().digest


def averaged(people: Fleet) -> Rows:
    """Train a fleet by federated averaging; some leave at a round by chance."""
    from edgemerge.paper import backprop  # noqa: PLC0415 (only this needs torch)

    parts, readings = people.network_inputs()
    rows: Rows = []
    for share in FEW_SHARES:
        stay = last_rounds(people, share)
        losses = backprop.losses(train_federated(parts, stay, people.seed), readings)
        rows.append(_row(AVERAGED, share, people.auc(losses)))
    return rows


def last_rounds(people: Fleet, share: float) -> list[int]:
    """Say how many rounds each device takes part in: all, or for those that leave, some."""
    stay, leave = remaining(people, share), len(people.names) - remaining(people, share)
    rng = rng_for(people.seed, "leave", share)
    return [ROUNDS] * stay + [int(turn) for turn in rng.integers(0, ROUNDS, leave)]


def train_federated(parts: Sequence[Array], stay: Sequence[int], seed: int) -> nn.Module:
    """Train by federated averaging where each client takes part in so many rounds."""
    from edgemerge.paper import backprop  # noqa: PLC0415 (only this needs torch)

    backprop.use_one_thread()
    return backprop.train_federated(har_fleet.NETWORK, parts, rounds=ROUNDS, seed=seed, stay=stay)


def time_removal(people: Fleet) -> Rows:
    """Take devices out of what was merged, and train a network again without them."""
    notes = [note for sent in people.banks() for note in sent]
    count = remaining(people, TIMED_SHARE)
    ledger = har_fleet.ledger_of(notes, notes[0].stats.projection)
    parts = people.network_inputs()[0][:count]
    train_federated(parts[:1], [ROUNDS], people.seed)  # torch starts here, not in what is timed
    start = process_time()
    for device in people.names[count:]:
        ledger.drop(device)
    har_fleet.merged_bank(ledger).score(people.readings[:1])
    between = process_time()
    train_federated(parts, [ROUNDS] * count, people.seed)
    end = process_time()
    return [_time(OURS, between - start), _time(AVERAGED, end - between)]


def _time(method: str, seconds: float) -> Row:
    return {"method": TIMED, "share": TIMED_SHARE, "way": method, "seconds": seconds}


def _row(method: str, share: float, auc: float, **more: int) -> Row:
    return {"method": method, "share": share, "auc": auc, **more}


def table(rows: Rows) -> Rows:
    """Give the mean AUC of each way at each share."""
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
    """Say what is lost with devices, and that nothing is trained again."""
    return [
        *(_costs(rows, method) for method in (OURS, MERGED)),
        _above(rows),
        _same(rows),
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


def _same(rows: Rows) -> Claim:
    found = [int(row["same"]) for row in rows if "same" in row]
    text = "Dropped is never heard, and back is never left: equal digests of the total"
    return Claim(text, all(found) if found else None, f"{sum(found)} of {len(found)} merges")


def _faster(rows: Rows) -> Claim:
    times = {str(row["way"]): float(row["seconds"]) for row in rows if "seconds" in row}
    text = "Doing without 30 % of the devices is faster than training BP-NN3-FL again"
    if not times:
        return Claim(text, None, "not measured")
    ours, theirs = times[OURS], times[AVERAGED]
    found = f"{ours:.2g} s against {theirs:.2g} s: {theirs / ours:.0f} times"
    return Claim(text, ours < theirs, found)
