"""The paper's first figure: loss of each way of driving before and after merging."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from matplotlib.figure import Figure

from edgemerge.paper import loss_figures
from edgemerge.paper.dataset import split_by_origin, split_by_sample
from edgemerge.paper.hyperparameters import LAYERS
from edgemerge.paper.loss_figures import DEVICE_A, DEVICE_B, TwoDevices
from edgemerge.paper.plan import Claim, Job, Plan, Rows, Scope
from edgemerge.paper.plotting import INK, new_figure, set_titles

NAME = "loss-driving"
TITLE = "Loss before and after merging, driving"
DATA = ("driving",)
NOTE = (
    "Device-A learnt normal driving, Device-B aggressive driving, no device learnt drowsy driving. "
    "The paper cuts the windows at random; as windows overlap, nearly the same seconds of a drive "
    "are then learnt and examined, so the second panel keeps whole trips apart. "
    "Points are means over the trials; thin lines hold four of five trials."
)

NORMAL, AGGRESSIVE = "normal", "aggressive"
CUTS = {"window": split_by_sample, "trip": split_by_origin}
PANELS = {"window": "cut by window, as in the paper", "trip": "cut by trip: nothing leaks"}
STYLES = loss_figures.device_styles(NORMAL, AGGRESSIVE)


def run(plan: Plan) -> Rows:
    """Let two devices learn and merge, in every trial, for both splits."""
    settings = f"{LAYERS['driving']}, {NORMAL} and {AGGRESSIVE}"
    jobs = [
        Job(NAME, "driving", "merging", trial, cut, settings)
        for cut in CUTS
        for trial in plan.merging
    ]
    return plan.rows(work, jobs)


def work(job: Job, scope: Scope) -> Rows:
    """Run one trial with one split."""
    devices = TwoDevices(job, scope, (NORMAL, AGGRESSIVE), cut=CUTS[job.part])
    return [{"cut": job.part, **row} for row in devices.rows()]


def table(rows: Rows) -> Rows:
    """Return the mean loss of each split, pattern and method."""
    return [
        {"cut": f"by {cut}", **row}
        for cut in loss_figures.distinct_values(rows, "cut")
        for row in loss_figures.mean_loss_table(loss_figures.rows_of_cut(rows, cut), STYLES)
    ]


def plot(rows: Rows) -> dict[str, Figure]:
    """Draw a panel for each split, with the same axis."""
    cuts = loss_figures.distinct_values(rows, "cut")
    figure = new_figure(1.0 + 4.5 * len(cuts), 4.6)
    axes = figure.subplots(1, len(cuts), sharey=True, squeeze=False)[0]
    for one, cut in zip(axes, cuts, strict=True):
        loss_figures.draw_points(one, loss_figures.rows_of_cut(rows, cut), STYLES)
        loss_figures.log_axis(one, *loss_figures.axis_limits(rows))
        set_titles(one, PANELS[cut])
    axes[0].set_ylabel("mean loss of kept windows (log axis)", color=INK)
    loss_figures.draw_legend(figure, axes[0])
    return {"": figure}


def claims(rows: Rows) -> list[Claim]:
    """Claim for each split that each device detects as the other does, and as it did before."""
    claimed = (
        (loss_figures.claim_falls, AGGRESSIVE, DEVICE_A),
        (loss_figures.claim_stays_low, NORMAL, DEVICE_A),
        (loss_figures.claim_falls, NORMAL, DEVICE_B),
        (loss_figures.claim_stays_low, AGGRESSIVE, DEVICE_B),
    )
    found = []
    for cut, (claim, pattern, device) in product(CUTS, claimed):
        one = claim(loss_figures.rows_of_cut(rows, cut), pattern, device)
        found.append(replace(one, text=f"by {cut}: {one.text}"))
    return [*found, loss_figures.claim_identical(rows)]
