"""The paper's last figure: merging at once against learning the same samples one by one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from edgemerge import Detector, Stats
from edgemerge.paper.dataset import Array
from edgemerge.paper.loss_figures import (
    BAND_QUANTILES,
    DEVICE_A,
    DEVICE_B,
    TwoDevices,
    all_stats,
    log_axis,
    two_digits,
)
from edgemerge.paper.plan import Claim, Job, Plan, Row, Rows, Scope
from edgemerge.paper.plotting import BLUE, FAINT, INK, RED, hide_frame, new_figure
from edgemerge.paper.settings import LAYERS
from edgemerge.paper.timing import TimedCall, best_times, call_each

UPDATE_TIME, SCORED_UPDATE_TIME, MERGE_TIME = (
    "seconds, one update",
    "seconds, one update scored",
    "seconds, one merge",
)
UPDATES_PER_TURN = 200  # updates timed together, and merges, as one is short for a clock
MERGES_PER_TURN = 20
TIMING_S = 1.0


def time_updates(own: Stats, told: Stats, X: Array) -> dict[str, float]:
    """Time a device that knows `own`, as it learns rows X one by one, or is `told` at once.

    One update is timed in two ways: the sums alone, as a device learns when nobody asks in between;
    and with a score of each sample before it is learnt, which keeps the output layer fresh.
    """
    rows = X[:UPDATES_PER_TURN]
    learner, scorer, merger = (Detector.resume(own) for _ in range(3))

    def learn() -> None:
        call_each(learner.learn, rows)
        learner.loss(rows[0])  # a loss needs the output layer, so it is solved

    def score() -> None:
        call_each(scorer.learn_and_score, rows)

    def merge() -> None:
        for _ in range(MERGES_PER_TURN):
            merger.adopt(told)
            merger.loss(rows[0])

    ways = {
        UPDATE_TIME: (learn, len(rows)),
        SCORED_UPDATE_TIME: (score, len(rows)),
        MERGE_TIME: (merge, MERGES_PER_TURN),
    }
    contestants = [TimedCall("update", way, run, units) for way, (run, units) in ways.items()]
    return dict(zip(ways, best_times(contestants, TIMING_S), strict=True))


NAME = "convergence"
TITLE = "Merging at once against learning one by one"
DATA = ("har",)
NOTE = (
    "Device-B, which learnt walking, merges Device-A, which learnt laying; or it learns the same "
    "samples of laying one by one. Lines are medians over the trials, bands hold four of five. "
    "Learning all of Device-A's samples ends exactly where merging is at once, so the place where "
    "the lines meet depends on how many samples Device-A had, which the paper does not say."
)

LAYING, WALKING = "laying", "walking"
MERGED, ONE_BY_ONE, SAME_SUMS = "loss, merged", "loss, one by one", "same sums"
UPDATES_PER_POINT = 50  # updates from one look at the loss to the next
TOLERANCE = 0.05  # the lines have met when the loss is within this of the merged one
TRIALS = 10  # are enough: the lines hardly differ
PAPER_UPDATES, PAPER_RANGE = (
    650,
    (550, 750),
)  # where the paper's lines meet, and what counts as about that
MIN_UPDATES = 200


def run(plan: Plan) -> Rows:
    """Learn and merge in each trial; measure the times once, all in one job."""
    settings = f"{LAYERS['har']}, {LAYING} and {WALKING}, every {UPDATES_PER_POINT}"
    trials = plan.merging[:TRIALS]
    jobs = [Job(NAME, "har", "lines", trial, "", settings) for trial in trials]
    return plan.rows(work, [*jobs, Job(NAME, "har", "times", 0, "", settings)])


def work(job: Job, scope: Scope) -> Rows:
    """Do one trial, or measure the times."""
    devices = TwoDevices(job, scope, (LAYING, WALKING))
    if job.method == "times":
        a, b = (devices.devices[name].own for name in (DEVICE_A, DEVICE_B))
        times = time_updates(b, a, devices.learnt(LAYING))
        return [_row(job, what, 1, value) for what, value in times.items()]
    return _lines(job, devices)


def _lines(job: Job, devices: TwoDevices) -> Rows:
    device, X = devices.devices[DEVICE_B], devices.learnt(LAYING)
    kept = Stats.of(devices.layer, devices.kept(LAYING))
    alone = Detector.resume(device.own)
    devices.exchange()
    rows = [_row(job, MERGED, len(X), kept.mean_loss(device.readout))]
    for start in range(0, len(X), UPDATES_PER_POINT):
        rows.append(_row(job, ONE_BY_ONE, start, kept.mean_loss(alone.readout)))
        for x in X[start : start + UPDATES_PER_POINT]:
            alone.learn(x)
    rows.append(_row(job, ONE_BY_ONE, len(X), kept.mean_loss(alone.readout)))
    return [*rows, _row(job, SAME_SUMS, len(X), int(all_stats(alone) == all_stats(device)))]


def _row(job: Job, what: str, updates: int, value: float) -> Row:
    return {"trial": job.trial, "what": what, "updates": updates, "value": value}


@dataclass(frozen=True, eq=False)
class LossCurves:
    """The lines of all trials: losses one by one (trials, k) after `updates` (k,), and merged."""

    updates: Array
    losses: Array
    merged: Array

    @classmethod
    def of(cls, rows: Rows) -> LossCurves:
        """Gather them from the rows."""
        found: dict[object, list[Row]] = {}
        for row in _of(rows, ONE_BY_ONE):
            found.setdefault(row["trial"], []).append(row)
        updates = [float(row["updates"]) for row in next(iter(found.values()), [])]
        losses = [[float(row["value"]) for row in line] for line in found.values()]
        merged = [float(row["value"]) for row in _of(rows, MERGED)]
        return cls(np.array(updates), np.array(losses), np.array(merged))

    @property
    def measured(self) -> bool:
        """Whether there is any trial."""
        return bool(self.losses.size and self.merged.size)

    @property
    def crossings(self) -> Array:
        """The updates after which each trial's line is first near the merged loss."""
        near = self.losses <= (1.0 + TOLERANCE) * self.merged[:, None]
        near[:, -1] = True  # at the latest where all is learnt
        return np.asarray(self.updates[near.argmax(axis=1)])

    @property
    def median_crossing(self) -> float:
        """The median of the meetings."""
        return float(np.median(self.crossings))

    def above(self, updates: float) -> float:
        """Give how many times the merged loss a trial still has after so many updates, median."""
        losses = self.losses[:, np.searchsorted(self.updates, updates)]
        return float(np.median(losses / self.merged))

    def samples_to_cross_at(self, updates: float) -> float:
        """Give the samples that Device-A would have if the lines met after so many updates.

        Merging a device with fewer samples is where the line stands after that many updates.
        """
        line = np.median(self.losses, axis=0)
        reached = line[np.searchsorted(self.updates, updates)]
        return float(self.updates[np.flatnonzero(reached <= (1.0 + TOLERANCE) * line)[-1]])


def _of(rows: Rows, what: str) -> Rows:
    return [row for row in rows if row["what"] == what]


def table(rows: Rows) -> Rows:
    """Show where each trial starts, meets and ends; the two ends are equal in every digit."""
    lines, same = LossCurves.of(rows), _of(rows, SAME_SUMS)
    if not lines.measured:
        return []
    return [
        {
            "trial": row["trial"],
            "before": float(f"{losses[0]:.4g}"),
            "merged": repr(float(merged)),
            "all one by one": repr(float(losses[-1])),
            "same sums": "yes" if row["value"] == 1 else "no",
            "updates until within 5 %": int(meeting),
        }
        for row, losses, merged, meeting in zip(
            same, lines.losses, lines.merged, lines.crossings, strict=True
        )
    ]


def plot(rows: Rows) -> dict[str, Figure]:
    """Draw the line that falls, the line that is low at once, and where they meet."""
    lines = LossCurves.of(rows)
    figure = new_figure(8.0, 4.6)
    axes = figure.subplots()
    _band(axes, lines.updates, lines.losses, colour=BLUE, label="learning one by one", marker="o")
    flat = np.repeat(lines.merged[:, None], len(lines.updates), axis=1)
    _band(axes, lines.updates, flat, colour=RED, label="merging, once")
    low, high = float(lines.merged.min()), float(lines.losses.max())
    log_axis(axes, low / 2.0, high * 1.5)
    hide_frame(axes)
    _mark(axes, lines.median_crossing, f"within 5 % after {lines.median_crossing:.0f} updates")
    if lines.updates[-1] >= PAPER_UPDATES:
        here = f"(here {lines.above(PAPER_UPDATES):.2f} times the red line)"
        _mark(axes, PAPER_UPDATES, f"the paper: about {PAPER_UPDATES}\n{here}")
    axes.set_xlabel(f"updates of {DEVICE_B} with samples of {LAYING}", color=INK)
    axes.set_ylabel(f"mean loss of kept samples of {LAYING} (log axis)", color=INK)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return {"": figure}


def _band(
    axes: Axes, x: Array, losses: Array, *, colour: str, label: str, marker: str = ""
) -> None:
    low, high = np.quantile(losses, BAND_QUANTILES, axis=0)
    axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
    middle = np.median(losses, axis=0)
    axes.plot(x, middle, color=colour, label=label, linewidth=1.6, marker=marker, markersize=3)


def _mark(axes: Axes, updates: float, text: str) -> None:
    axes.axvline(updates, color=FAINT, linestyle=":", linewidth=1.2, zorder=0)
    axes.annotate(
        text, (updates, 0.97), (-5, 0), xycoords=("data", "axes fraction"),
        textcoords="offset points", ha="right", va="top", fontsize=8, color=INK,
    )  # fmt: skip


def claims(rows: Rows) -> list[Claim]:
    """Say what merging saves, and that nothing is lost by it."""
    lines = LossCurves.of(rows)
    return [_at_once(lines), _hundreds(lines), _as_in_the_paper(lines), _same(rows), _faster(rows)]


def _at_once(lines: LossCurves) -> Claim:
    text = f"merging lowers the loss of {LAYING} at {DEVICE_B} at once"
    if not lines.measured:
        return Claim(text, None, "not measured")
    before, after = float(np.median(lines.losses[:, 0])), float(np.median(lines.merged))
    found = f"{two_digits(before)} → {two_digits(after)}, {before / after:.0f} times lower"
    return Claim(text, after < before, found)


def _hundreds(lines: LossCurves) -> Claim:
    text = "one by one it takes hundreds of updates to come within 5 % of that"
    if not lines.measured:
        return Claim(text, None, "not measured")
    low, high = lines.crossings.min(), lines.crossings.max()
    found = (
        f"{lines.median_crossing:.0f} updates ({low:.0f} to {high:.0f} in "
        f"{len(lines.merged)} trials), "
        f"of {lines.updates[-1]:.0f} samples that {DEVICE_A} learnt"
    )
    return Claim(text, lines.median_crossing >= MIN_UPDATES, found)


def _as_in_the_paper(lines: LossCurves) -> Claim:
    text = f"the lines meet after about {PAPER_UPDATES} updates, as in the paper"
    if not lines.measured or lines.updates[-1] < PAPER_UPDATES:
        return Claim(text, None, f"not measured: {DEVICE_A} has too few samples")
    low, high = PAPER_RANGE
    found = (
        f"they meet after {lines.median_crossing:.0f}; after {PAPER_UPDATES} the loss is still "
        f"{lines.above(PAPER_UPDATES):.2f} times the merged one; {PAPER_UPDATES} "
        f"would fit if {DEVICE_A} had learnt "
        f"about {lines.samples_to_cross_at(PAPER_UPDATES):.0f} samples"
    )
    return Claim(text, low <= lines.median_crossing <= high, found)


def _same(rows: Rows) -> Claim:
    text = (
        f"having learnt all of {DEVICE_A}'s samples is the same as having merged it, "
        "to the last bit"
    )
    found = table(rows)
    same = sum(
        row["same sums"] == "yes" and row["merged"] == row["all one by one"] for row in found
    )
    holds = same == len(found) if found else None
    return Claim(text, holds, f"equal sums and equal losses in {same} of {len(found)} trials")


def _faster(rows: Rows) -> Claim:
    text = "one merge takes less time than learning one by one until the lines meet"
    lines, times = LossCurves.of(rows), {row["what"]: float(row["value"]) for row in rows}
    if not lines.measured or MERGE_TIME not in times:
        return Claim(text, None, "not measured")
    merge, learn, scored = (
        1e3 * times[what] for what in (MERGE_TIME, UPDATE_TIME, SCORED_UPDATE_TIME)
    )
    updates = lines.median_crossing
    found = (
        f"one merge {two_digits(merge)} ms; {updates:.0f} updates {updates * learn:.0f} ms, "
        f"{updates * learn / merge:.0f} times as long ({updates * scored:.0f} ms with a score of "
        "each sample); the paper: 21.8 ms and 516 ms, 24 times"
    )
    return Claim(text, merge < updates * learn, found)
