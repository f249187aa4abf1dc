"""The paper's second figure: loss of each activity before and after merging, beside BP-NN3's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from matplotlib.figure import Figure

from edgemerge.paper import loss_figures
from edgemerge.paper.dataset import Array, split_by_person, split_by_sample
from edgemerge.paper.hyperparameters import LAYERS, NETWORKS
from edgemerge.paper.loss_figures import (
    AFTER_MERGE,
    DEVICE_A,
    DEVICE_B,
    TwoDevices,
    mean_losses,
    rows_of_cut,
)
from edgemerge.paper.plan import Claim, Job, Plan, Rows, Scope
from edgemerge.paper.plotting import FAINT, GREY, INK, new_figure, set_titles

NAME = "loss-har"
TITLE = "Loss before and after merging, human activities"
DATA = ("har",)
NOTE = (
    "Device-A learnt sitting, Device-B laying; BP-NN3 was trained on both, with inputs brought to "
    "[0, 1], so its losses have an axis of their own with as many decades. "
    "The paper splits by sample; as HAR's windows overlap, the second panel holds people out. "
    "Points are means over the trials; thin lines hold four of five trials."
)

SITTING, LAYING, STANDING = "sitting", "laying", "standing"
WALKING = ("walking", "walking_upstairs", "walking_downstairs")
BP_NN3 = "BP-NN3"
CLOSE_FACTOR = 2.0  # a loss within this factor of another is relatively close to it
ANOMALY_FACTOR = 10.0  # a loss so many times that of what was learnt is anomalous
MIN_RANK_CORRELATION = 0.8  # rank correlation, of at most 1
STYLES = loss_figures.device_styles(SITTING, LAYING)
CUTS = {"sample": split_by_sample, "person": split_by_person}
PANELS = {"sample": "split by sample, as in the paper", "person": "split by person"}


def run(plan: Plan) -> Rows:
    """Let two devices learn and merge in every trial, and train BP-NN3 in the first few."""
    methods = {
        "merging": (LAYERS["har"], plan.merging),
        BP_NN3: (NETWORKS["har"][BP_NN3], plan.training),
    }
    jobs = [
        Job(NAME, "har", method, trial, cut, f"{model}, {SITTING} and {LAYING}")
        for cut in CUTS
        for method, (model, trials) in methods.items()
        for trial in trials
    ]
    return plan.rows(work, jobs)


def work(job: Job, scope: Scope) -> Rows:
    """Run one trial of merging, or of BP-NN3 on the same samples."""
    devices = TwoDevices(job, scope, (SITTING, LAYING), cut=CUTS[job.part])
    rows = _trained(devices) if job.method == BP_NN3 else devices.rows()
    return [{"cut": job.part, **row} for row in rows]


def _trained(devices: TwoDevices) -> Rows:
    from edgemerge.paper import backprop  # noqa: PLC0415 (only this needs torch)

    data, split = devices.data, devices.split
    pair = [data.patterns.index(pattern) for pattern in (SITTING, LAYING)]
    learnt = [data.between_0_and_1(split.learn[i]) for i in pair]
    backprop.use_one_thread()
    net = backprop.train(NETWORKS["har"][BP_NN3], learnt, devices.trial.number(BP_NN3, *pair))
    return [
        devices.row(BP_NN3, pattern, backprop.losses(net, data.between_0_and_1(rows)))
        for pattern, rows in zip(data.patterns, split.keep, strict=True)
    ]


def with_cut(rows: Rows) -> Rows:
    """Return rows with their split; files from before people were held out do not name it."""
    return [{"cut": "sample", **row} for row in rows]


def table(rows: Rows) -> Rows:
    """Return the mean loss of each split, pattern and method."""
    rows = with_cut(rows)
    return [
        {"cut": f"by {cut}", **row}
        for cut in loss_figures.distinct_values(rows, "cut")
        for row in loss_figures.mean_loss_table(rows_of_cut(rows, cut), [*STYLES, BP_NN3])
    ]


def plot(rows: Rows) -> dict[str, Figure]:
    """Draw a panel for each split: devices on the left axis, BP-NN3 on the right one."""
    rows = with_cut(rows)
    cuts = loss_figures.distinct_values(rows, "cut")
    figure = new_figure(10.0, 4.4 * len(cuts) + 0.4)
    panels = figure.subplots(len(cuts), 1, squeeze=False)[:, 0]
    low, high = loss_figures.axis_limits([row for row in rows if row["method"] != BP_NN3])
    # the right axis is shifted so that points of both axes stand at about the same height
    shift = np.exp(np.mean(np.log([bp / ours for bp, ours in _both(rows, DEVICE_A)] or [1.0])))
    for left, cut in zip(panels, cuts, strict=True):
        here, right = rows_of_cut(rows, cut), left.twinx()
        loss_figures.draw_points(left, here, STYLES, of=4)
        loss_figures.log_axis(left, low, high)
        style = {BP_NN3: ("BP-NN3 (right axis)", GREY)}
        loss_figures.draw_points(right, here, style, first=3, of=4)
        loss_figures.log_axis(right, low * float(shift), high * float(shift))
        right.spines["right"].set_visible(True)
        right.spines["right"].set_color(FAINT)
        set_titles(left, PANELS[cut], y="mean loss of kept samples (log axis)")
        right.set_ylabel("mean loss of BP-NN3 (log axis)", color=INK)
    loss_figures.draw_legend(figure, left, right)
    return {"": figure}


def _both(rows: Rows, device: str) -> list[list[float]]:
    """Return the mean losses of BP-NN3 and of a merged device, for each pattern with both."""
    patterns = loss_figures.distinct_values(rows, "pattern")
    found = [mean_losses(rows, (BP_NN3, AFTER_MERGE[device]), [pattern]) for pattern in patterns]
    return [each for each in found if each]


def claims(rows: Rows) -> list[Claim]:
    """Claim for each split that devices detect what both learnt, and nothing else changes."""
    found, rows = [], with_cut(rows)
    for cut in CUTS:
        here = rows_of_cut(rows, cut)
        found += [replace(claim, text=f"by {cut}: {claim.text}") for claim in _claims_of_cut(here)]
    return [*found, loss_figures.claim_identical(rows)]


def _claims_of_cut(rows: Rows) -> list[Claim]:
    return [
        loss_figures.claim_falls(rows, SITTING, DEVICE_B),
        loss_figures.claim_falls(rows, LAYING, DEVICE_A),
        loss_figures.claim_stays_low(rows, SITTING, DEVICE_A),
        loss_figures.claim_stays_low(rows, LAYING, DEVICE_B),
        _walking_unchanged(rows),
        _still_anomalous(rows),
        _standing_follows_sitting(rows),
        _same_order(rows),
    ]


def _walking_unchanged(rows: Rows) -> Claim:
    text = (
        f"the losses of the three ways of walking, which no device learnt, change little: by less "
        f"than a factor of {CLOSE_FACTOR:g} at both devices"
    )
    before, after = (mean_losses(rows, m, WALKING) for m in (AFTER_MERGE, AFTER_MERGE.values()))
    if not before or not after:
        return Claim.not_measured(text)
    ratios = [old / new for old, new in zip(before, after, strict=True)]
    holds = min(ratios) > 1.0 / CLOSE_FACTOR and max(ratios) < CLOSE_FACTOR
    return Claim(text, holds, f"before / after is {min(ratios):.2f} to {max(ratios):.2f}")


def _still_anomalous(rows: Rows) -> Claim:
    text = (
        f"after merging they are still anomalous: {ANOMALY_FACTOR:g} times the loss "
        "of sitting and laying"
    )
    patterns = (WALKING, (SITTING, LAYING))
    walking, learnt = (mean_losses(rows, [AFTER_MERGE[DEVICE_B]], each) for each in patterns)
    if not walking or not learnt:
        return Claim.not_measured(text)
    least = min(walking) / max(learnt)
    return Claim(text, least > ANOMALY_FACTOR, f"at least {least:.0f} times")


def _standing_follows_sitting(rows: Rows) -> Claim:
    sitting, standing = (loss_figures.claim_falls(rows, p, DEVICE_B) for p in (SITTING, STANDING))
    text = (
        f"{STANDING}, which no device learnt, is like {SITTING}: "
        f"its loss at {DEVICE_B} falls with it"
    )
    if sitting.holds is None or standing.holds is None:
        return Claim.not_measured(text)
    found = f"{STANDING} {standing.found}; {SITTING} {sitting.found}"
    return Claim(text, sitting.holds and standing.holds, found)


def _same_order(rows: Rows) -> Claim:
    text = (
        "BP-NN3 orders the activities as merging does (rank correlation above "
        f"{MIN_RANK_CORRELATION:g})"
    )
    pairs = _both(rows, DEVICE_B)
    if len(pairs) < 3:
        return Claim.not_measured(text)
    value = rank_correlation(*map(np.array, zip(*pairs, strict=True)))
    return Claim(text, value > MIN_RANK_CORRELATION, f"{value:.2f} over {len(pairs)} activities")


def rank_correlation(x: Array, y: Array) -> float:
    """Return Spearman's rank correlation: 1 for the same order, -1 for the reversed one.

    >>> rank_correlation(np.array([1.0, 5.0, 3.0]), np.array([10.0, 90.0, 20.0]))
    1.0
    """
    a, b = (np.argsort(np.argsort(values)) for values in (x, y))
    return round(float(np.corrcoef(a, b)[0, 1]), 12)
