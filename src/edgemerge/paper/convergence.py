"""The paper's last figure: merging at once against learning the same samples one by one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from edgemerge import Detector, Stats
from edgemerge.paper.dataset import Array, Splitter, Trial, split_by_person, split_by_sample
from edgemerge.paper.hyperparameters import LAYERS, Layer
from edgemerge.paper.loss_figures import (
    BAND_QUANTILES,
    DEVICE_A,
    DEVICE_B,
    TwoDevices,
    all_stats,
    log_axis,
    reproducible,
    two_digits,
)
from edgemerge.paper.plan import Claim, Job, Plan, Row, Rows, Scope
from edgemerge.paper.plotting import BLUE, FAINT, INK, RED, hide_frame, new_figure
from edgemerge.paper.timing import TimedCall, best_times, call_each

UPDATE_TIME = "seconds, one update"
SCORED_UPDATE_TIME = "seconds, one update scored"
MERGE_TIME = "seconds, one merge"
UPDATES_PER_TURN = 200  # updates timed together, and merges, as one is short for a clock
MERGES_PER_TURN = 20
TIMING_S = 1.0


def time_updates(own: Stats, others: Stats, X: Array) -> dict[str, float]:
    """Time a device with stats `own` that learns rows X one by one, or adopts `others` at once.

    One update is timed in two ways: without scores in between, so that only sums are updated; and
    with a score of each sample before it is learnt, which keeps the output layer up to date.
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
            merger.adopt(others)
            merger.loss(rows[0])

    calls = [
        TimedCall("update", UPDATE_TIME, learn, len(rows)),
        TimedCall("update", SCORED_UPDATE_TIME, score, len(rows)),
        TimedCall("update", MERGE_TIME, merge, MERGES_PER_TURN),
    ]
    times = best_times(calls, TIMING_S)
    return {call.way: time for call, time in zip(calls, times, strict=True)}


NAME = "convergence"
TITLE = "Merging at once against learning one by one"
DATA = ("har",)
NOTE = (
    "Device-B, which learnt walking, merges Device-A, which learnt laying; or it learns the same "
    "samples of laying one by one. Lines are medians over the trials, bands hold four of five. "
    "Why the lines do not meet after 650 updates, as in the paper: learning one by one reaches the "
    "merged loss exactly when Device-A's last sample is learnt, and comes near it slowly and "
    "smoothly before, so the lines have no crossing of their own. "
    "Where they seem to meet depends on two things that the paper does not say: how many samples "
    "Device-A had, and how near is near enough on a log axis. "
    "We varied one thing at a time: without a ridge, with the loss of learnt samples, with people "
    "held out, or with fewer samples of walking, the lines meet at nearly the same place; with "
    "fewer samples of laying, or a wider tolerance, they meet where the paper's do. "
    "The 700 samples and the 40 % were looked for: they show what would explain the paper's 650, "
    "not what its authors did."
)

LAYING, WALKING = "laying", "walking"
MERGED, ONE_BY_ONE, SAME_SUMS = "loss, merged", "loss, one by one", "same sums"
UPDATES_PER_POINT = 50  # updates between two measurements of the loss
TOLERANCE = 0.05  # the lines have met when the loss is within this of the merged one
TRIALS = 10  # are enough: the lines hardly differ
PAPER_UPDATES, PAPER_RANGE = 650, (550, 750)  # where the paper's lines meet, and what is near
MEETING = "updates until the lines meet: "  # before the name of a variation
MEETING_TRIALS = 3
TOLERANCES = (TOLERANCE, 0.1, 0.2, 0.4)
MIN_UPDATES = 200


@dataclass(frozen=True)
class Variation:
    """What differs from the run that the figure shows; it varies one thing at a time."""

    name: str
    layer: Layer = LAYERS["har"]
    ridge: float | None = None
    cut: Splitter = split_by_sample
    samples_a: int | None = None  # that Device-A learnt; None: all of its training samples
    samples_b: int | None = None
    on_learnt: bool = False  # the loss is that of Device-A's own samples


AS_SHOWN = Variation("as shown")
VARIATIONS = (
    AS_SHOWN,
    Variation("no ridge", ridge=0.0),
    Variation("loss of learnt samples", on_learnt=True),
    Variation("people held out", cut=split_by_person),
    Variation(f"{DEVICE_B} learnt 200 samples", samples_b=200),
    Variation("N = 64", layer=Layer("identity", 64)),
    Variation("N = 256", layer=Layer("identity", 256)),
    Variation(f"{DEVICE_A} learnt 1000 samples", samples_a=1000),
    Variation(f"{DEVICE_A} learnt 700 samples", samples_a=700),
)


def run(plan: Plan) -> Rows:
    """Learn and merge in each trial; measure the times once, all in one job."""
    settings = f"{LAYERS['har']}, {LAYING} and {WALKING}, every {UPDATES_PER_POINT}"
    jobs = [Job(NAME, "har", "lines", trial, "", settings) for trial in plan.merging[:TRIALS]]
    varied = f"{settings}, {[each.name for each in VARIATIONS]}, {TOLERANCES}"
    trials = plan.merging[:MEETING_TRIALS]
    jobs += [Job(NAME, "har", "meeting", trial, "", varied) for trial in trials]
    return plan.rows(work, [*jobs, Job(NAME, "har", "times", 0, "", settings)])


def work(job: Job, scope: Scope) -> Rows:
    """Run one trial, find where the lines of all variations meet, or measure the times."""
    if job.method == "meeting":
        return [row for each in VARIATIONS for row in _meetings(job, scope, each)]
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
    merged = all_stats(device).solve()  # with the ridge of one that has learnt all
    rows = [_row(job, MERGED, len(X), kept.mean_loss(merged))]
    for start in range(0, len(X), UPDATES_PER_POINT):
        rows.append(_row(job, ONE_BY_ONE, start, kept.mean_loss(alone.readout)))
        for x in X[start : start + UPDATES_PER_POINT]:
            alone.learn(x)
    rows.append(_row(job, ONE_BY_ONE, len(X), kept.mean_loss(alone.readout)))
    return [*rows, _row(job, SAME_SUMS, len(X), int(all_stats(alone) == all_stats(device)))]


def _meetings(job: Job, scope: Scope, varied: Variation) -> Rows:
    """Return after how many updates a variation is within each tolerance of the merged loss."""
    trial = Trial(job, scope, varied.cut)
    a, b = (trial.data.patterns.index(pattern) for pattern in (LAYING, WALKING))
    layer = varied.layer.projection(trial.data, trial.number("layer"))
    X = trial.learnt(a)[: varied.samples_a]
    kept = Stats.of(layer, X if varied.on_learnt else trial.data.X[trial.split.keep[a]])
    known, losses = Stats.of(layer, trial.learnt(b)[: varied.samples_b]), []
    for start in range(0, len(X), UPDATES_PER_POINT):
        losses.append(kept.mean_loss(known.solve(varied.ridge)))
        known += Stats.of(layer, X[start : start + UPDATES_PER_POINT])
    merged = kept.mean_loss(known.solve(varied.ridge))
    near = [
        np.flatnonzero(np.array([*losses, merged]) <= (1.0 + t) * merged)[0] for t in TOLERANCES
    ]
    updates = [min(int(place) * UPDATES_PER_POINT, len(X)) for place in near]
    found = zip(updates, TOLERANCES, strict=True)
    return [_row(job, f"{MEETING}{varied.name}", *each) for each in found]


def meeting(rows: Rows, varied: str, tolerance: float = TOLERANCE) -> int | None:
    """Return the median number of updates after which a variation's lines meet; None if not run."""
    wanted = {"what": f"{MEETING}{varied}", "value": tolerance}
    found = [float(row["updates"]) for row in rows if wanted.items() <= row.items()]
    return int(np.median(found)) if found else None


def _row(job: Job, what: str, updates: int, value: float) -> Row:
    return {"trial": job.trial, "what": what, "updates": updates, "value": reproducible(value)}


@dataclass(frozen=True, eq=False)
class LossCurves:
    """The lines of all trials: losses one by one (trials, k) after `updates` (k,), and merged."""

    updates: Array
    losses: Array
    merged: Array

    @classmethod
    def of(cls, rows: Rows) -> LossCurves:
        """Collect the lines from the rows."""
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
        """The number of updates after which each trial's loss is first near the merged one."""
        near = self.losses <= (1.0 + TOLERANCE) * self.merged[:, None]
        near[:, -1] = True  # at the latest when all samples are learnt
        return np.asarray(self.updates[near.argmax(axis=1)])

    @property
    def median_crossing(self) -> float:
        """The median of the crossings."""
        return float(np.median(self.crossings))

    def above(self, updates: float) -> float:
        """Return the median over trials of loss / merged loss after a number of updates."""
        losses = self.losses[:, np.searchsorted(self.updates, updates)]
        return float(np.median(losses / self.merged))

    def samples_to_cross_at(self, updates: float) -> float:
        """Return how many samples Device-A would have if the lines met after `updates` updates.

        Merging a device with k samples gives the loss that the line reaches after k updates.
        """
        line = np.median(self.losses, axis=0)
        reached = line[np.searchsorted(self.updates, updates)]
        return float(self.updates[np.flatnonzero(reached <= (1.0 + TOLERANCE) * line)[-1]])


def _of(rows: Rows, what: str) -> Rows:
    return [row for row in rows if row["what"] == what]


def table(rows: Rows) -> Rows:
    """Return for each trial its first loss, the merged and the last one, and the crossing."""
    lines, same = LossCurves.of(rows), _of(rows, SAME_SUMS)
    if not lines.measured:
        return []
    return [
        {
            "trial": row["trial"],
            "before": float(f"{losses[0]:.4g}"),
            "merged": f"{merged:.6g}",
            "all one by one": f"{losses[-1]:.6g}",
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
    _mark_crossing(
        axes, lines.median_crossing, f"within 5 % after {lines.median_crossing:.0f} updates"
    )
    if lines.updates[-1] >= PAPER_UPDATES:
        here = f"(here {lines.above(PAPER_UPDATES):.2f} times the merged loss)"
        _mark_crossing(axes, PAPER_UPDATES, f"the paper: about {PAPER_UPDATES}\n{here}")
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


def _mark_crossing(axes: Axes, updates: float, text: str) -> None:
    axes.axvline(updates, color=FAINT, linestyle=":", linewidth=1.2, zorder=0)
    axes.annotate(
        text, (updates, 0.97), (-5, 0), xycoords=("data", "axes fraction"),
        textcoords="offset points", ha="right", va="top", fontsize=8, color=INK,
    )  # fmt: skip


def claims(rows: Rows) -> list[Claim]:
    """Claim what merging saves, and that it is exact."""
    lines = LossCurves.of(rows)
    found = [_at_once(lines), _hundreds(lines), _as_in_the_paper(lines), _why(rows, lines)]
    return [*found, _same(rows), _faster(rows)]


def _at_once(lines: LossCurves) -> Claim:
    text = f"merging lowers the loss of {LAYING} at {DEVICE_B} at once"
    if not lines.measured:
        return Claim.not_measured(text)
    before, after = float(np.median(lines.losses[:, 0])), float(np.median(lines.merged))
    found = f"{two_digits(before)} → {two_digits(after)}, {before / after:.0f} times lower"
    return Claim(text, after < before, found)


def _hundreds(lines: LossCurves) -> Claim:
    text = "one by one it takes hundreds of updates to come within 5 % of that"
    if not lines.measured:
        return Claim.not_measured(text)
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


def _why(rows: Rows, lines: LossCurves) -> Claim:
    low, high = PAPER_RANGE
    text = (
        f"where they meet is set by the number of {DEVICE_A}'s samples and by the tolerance: with "
        f"fewer samples or a wider tolerance they meet after {low} to {high} updates, with any "
        "other change after more"
    )
    found = {each.name: meeting(rows, each.name) for each in VARIATIONS}
    wide = {t: meeting(rows, AS_SHOWN.name, t) for t in TOLERANCES}
    enough = lines.measured and lines.updates[-1] >= max(each.samples_a or 0 for each in VARIATIONS)
    if None in found.values() or None in wide.values() or not enough:
        return Claim.not_measured(text)
    least = f"{DEVICE_A} learnt 700 samples"
    changed = [updates for name, updates in found.items() if not name.startswith(DEVICE_A)]
    near = [low <= (updates or 0) <= high for updates in (found[least], wide[TOLERANCES[-1]])]
    holds = all(near) and min(updates or 0 for updates in changed) > high
    by_change = ", ".join(f"{name} {updates}" for name, updates in found.items())
    by_tolerance = ", ".join(f"{t:.0%} {updates}" for t, updates in wide.items())
    return Claim(text, holds, f"within 5 %: {by_change}; as shown, within {by_tolerance}")


def _same(rows: Rows) -> Claim:
    text = (
        f"having learnt all of {DEVICE_A}'s samples is the same as having merged it, "
        "to the last bit"
    )
    lines, sums = LossCurves.of(rows), _of(rows, SAME_SUMS)
    if not lines.measured:
        return Claim.not_measured(text)
    equal = [row["value"] == 1 for row in sums] & (lines.losses[:, -1] == lines.merged)
    found = f"equal sums and equal losses in {equal.sum()} of {len(equal)} trials"
    return Claim(text, bool(equal.all()), found)


def _faster(rows: Rows) -> Claim:
    text = "one merge takes less time than learning one by one until the lines meet"
    lines, times = LossCurves.of(rows), {row["what"]: float(row["value"]) for row in rows}
    if not lines.measured or MERGE_TIME not in times:
        return Claim.not_measured(text)
    in_ms = (1e3 * times[what] for what in (MERGE_TIME, UPDATE_TIME, SCORED_UPDATE_TIME))
    (merge, learn, scored), updates = in_ms, lines.median_crossing
    found = (
        f"one merge {two_digits(merge)} ms; {updates:.0f} updates {updates * learn:.0f} ms, "
        f"{updates * learn / merge:.0f} times as long ({updates * scored:.0f} ms with a score of "
        "each sample); the paper: 21.8 ms and 516 ms, 24 times"
    )
    return Claim(text, merge < updates * learn, found)
