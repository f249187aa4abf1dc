"""The paper's first figure: loss of each way of driving before and after merging."""

from __future__ import annotations

from matplotlib.figure import Figure

from edgemerge.paper import loss_bars, mean_losses
from edgemerge.paper.drawing import INK, canvas, titled
from edgemerge.paper.plan import Claim, Job, Plan, Row, Rows, Scope
from edgemerge.paper.settings import LAYERS
from edgemerge.paper.splits import by_origin, by_sample
from edgemerge.paper.two_devices import A, B, TwoDevices

NAME = "loss-driving"
TITLE = "Loss before and after merging, driving"
DATA = ("driving",)
NOTE = (
    "Device-A learnt normal driving, Device-B aggressive driving, nobody learnt drowsy driving. "
    "The paper cuts the windows at random; as windows overlap, nearly the same seconds of a drive "
    "are then learnt and examined, so the second panel keeps whole trips apart. "
    "Bars are means over the trials; thin lines hold four of five trials."
)

NORMAL, AGGRESSIVE = "normal", "aggressive"
CUTS = {"window": by_sample, "trip": by_origin}
PANELS = {"window": "cut by window, as in the paper", "trip": "cut by trip: nothing leaks"}
LOOKS = loss_bars.devices(NORMAL, AGGRESSIVE)


def run(plan: Plan) -> Rows:
    """Let two devices learn and merge, in every trial, for both cuts."""
    settings = f"{LAYERS['driving']}, {NORMAL} and {AGGRESSIVE}"
    jobs = [
        Job(NAME, "driving", "merging", trial, cut, settings)
        for cut in CUTS
        for trial in plan.merging
    ]
    return plan.rows(work, jobs)


def work(job: Job, scope: Scope) -> Rows:
    """Do one trial with one cut."""
    devices = TwoDevices(job, scope, (NORMAL, AGGRESSIVE), cut=CUTS[job.part])
    head: Row = {"cut": job.part}
    return [head | row for row in devices.rows()]


def of_cut(rows: Rows, cut: str) -> Rows:
    """Choose the rows of one cut."""
    return [row for row in rows if row["cut"] == cut]


def table(rows: Rows) -> Rows:
    """Put the means beside each other."""
    return [
        {"cut": f"by {cut}", **row}
        for cut in mean_losses.column(rows, "cut")
        for row in mean_losses.table(of_cut(rows, cut), LOOKS)
    ]


def plot(rows: Rows) -> dict[str, Figure]:
    """Draw a panel for each cut, with the same axis."""
    cuts = mean_losses.column(rows, "cut")
    figure = canvas(1.0 + 4.5 * len(cuts), 4.6)
    axes = figure.subplots(1, len(cuts), sharey=True, squeeze=False)[0]
    for one, cut in zip(axes, cuts, strict=True):
        loss_bars.draw(one, of_cut(rows, cut), LOOKS)
        loss_bars.log_axis(one, *loss_bars.limits(rows))
        titled(one, PANELS[cut])
    axes[0].set_ylabel("mean loss of kept windows (log axis)", color=INK)
    loss_bars.legend(figure, axes[0])
    return {"": figure}


def claims(rows: Rows) -> list[Claim]:
    """Say for each cut whether each device took in the other's way of driving and kept its own."""
    found = [claim for cut in CUTS for claim in _claims_of(of_cut(rows, cut), cut)]
    return [*found, mean_losses.identical(rows)]


def _claims_of(rows: Rows, cut: str) -> list[Claim]:
    both = [
        *(mean_losses.falls(rows, AGGRESSIVE, A), mean_losses.stays_low(rows, NORMAL, A)),
        *(mean_losses.falls(rows, NORMAL, B), mean_losses.stays_low(rows, AGGRESSIVE, B)),
    ]
    return [Claim(f"by {cut}: {one.text}", one.holds, one.found) for one in both]
