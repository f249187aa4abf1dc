"""Streams with known truth: false episodes, time to detect, and exact undo, beside others.

Every method takes the streams of `pump.py` one sample at a time under the rules of `alarms.py`. An
episode is false if it begins at a normal sample; a fault is detected if an episode begins inside
it, so an alarm that never ends detects nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import process_time

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from edgemerge import Detector
from edgemerge.comparison import pump
from edgemerge.comparison.alarms import (
    N_HIDDEN,
    OURS,
    RATE,
    RIVALS,
    Watched,
    Watcher,
    adopt_from,
    make_late_watcher,
    make_projection,
    make_watcher,
    taught,
)
from edgemerge.comparison.pump import STREAMS, Shape, Stream
from edgemerge.core.limit import MAX_RISE
from edgemerge.paper.dataset import rng_for
from edgemerge.paper.plan import Claim, Job, Plan, Row, Rows, Scope
from edgemerge.paper.plotting import (
    BLACK,
    BLUE,
    FAINT,
    GREEN,
    GREY,
    INK,
    ORANGE,
    RED,
    SKY,
    hide_frame,
    new_figure,
    set_titles,
)

Array = NDArray[np.float64]
Marks = NDArray[np.bool_]
Interval = tuple[float, float, float]  # mean, and the ends of its 95 % interval

NAME = "streams"
TITLE = "Streams with known truth"
DATA: tuple[str, ...] = ()
NOTE = (
    "A generated pump of eight readings; every method takes one sample after the other. "
    f"Ours are monitors with N = {N_HIDDEN} and default settings, most of them with a limit that "
    f"promises {1000 * RATE:g} false episode in 1 000 samples. Claims compare others with bank, "
    "tanh, since that is an agent's default. Detectors of River and PySAD have "
    "their authors' settings, and get the rule of alarm that ours have, since their libraries have "
    "none: three of five scores, nothing learnt in an alarm, the same promise. "
    "With its peers, a late device of ours adopts their sums, and another detector is given all "
    "their rows. No setting of a detector was tuned on these streams; how long they are, that a "
    "person approves every pattern, and which other detectors are shown was decided after a first "
    "look.\n\n"
    "An episode is false if it begins at a normal sample, and a fault is detected if an episode "
    "begins inside it. A fault that is missed counts with its whole length, 80 samples, and the "
    "rule of alarm needs 2 at least. Intervals are 95 % bootstrap intervals of the mean over "
    "seeds; a claim compares means, and says where intervals overlap or pass the promise.\n\n"
    "An episode of up to 30 samples counts as false when a promised limit is renewed, so that a "
    "fault whose alarm is interrupted raises the limit, by half at most of what commissioning "
    "asked for. Where normal raises more episodes than promised even then, the status of a monitor "
    "says that the limit is bounded.\n\n"
    "The pump, its faults and the drift are made up, and real machines differ. "
    "Left out of River are OneClassSVM, whose score is highest for what it learnt, "
    "LocalOutlierFactor, which keeps every row, and detectors of one reading; of PySAD those that "
    "take more than a millisecond a sample: xStream, IForestASD and RobustRandomCutForest."
)

SEEDS, QUICK_SEEDS = 10, 2
SLOW = "RSHash (PySAD)"  # left out of a quick run
SETTLING = 5  # samples after a fault in which an episode may still be the fault's
UNDO = "undo"
DEVICES, UNDO_ROWS, QUICK_UNDO_ROWS = 10, 512, 256
SAME = 1e-9  # a difference of means below this share is rounding
FRESH = 1000  # samples of each kind on which an undo is judged
TURNS = 5  # of timing; the best counts
MERGED, POOLED = "merged", "given all rows of peers"


def run(plan: Plan) -> Rows:
    """Return the rows of all streams, methods and seeds."""
    quick = plan.scope.quick
    seeds = range(min(plan.trials, QUICK_SEEDS if quick else SEEDS))
    settings = (
        f"N {N_HIDDEN}, rate {RATE:g}, rise {MAX_RISE:g}, {shape_for(quick=quick)}, "
        f"{UNDO_ROWS} rows"
    )
    jobs = [
        Job(NAME, stream, method, seed, part, settings)
        for seed in seeds
        for method in (*OURS, *RIVALS)
        if not (quick and method == SLOW)
        for stream, part in _parts(method)
    ]
    return plan.rows(work, jobs)


def _parts(method: str) -> list[tuple[str, str]]:
    """Return the streams of a method, and whether it has its peers' knowledge."""
    found = [(stream, "") for stream in STREAMS]
    if "always" in method:
        return found
    peers = POOLED if method in RIVALS else MERGED
    if "no promise" in method:
        return [*found, ("late device", peers)]
    return [*found, ("late device", peers), (UNDO, "")]


def shape_for(*, quick: bool) -> Shape:
    """Return how long the streams are."""
    return pump.QUICK if quick else pump.FULL


def work(job: Job, scope: Scope) -> Rows:
    """Give one stream to one method, or take a bad device back from its fleet."""
    seed = int(rng_for(scope.seed, NAME, job.trial).integers(2**31))
    names: Row = {"stream": job.dataset, "method": job.method, "with": job.part, "seed": job.trial}
    if job.dataset == UNDO:
        rows = QUICK_UNDO_ROWS if scope.quick else UNDO_ROWS
        return [{**names, "kind": UNDO, **undo(job.method, seed, rows)}]
    stream = pump.make_stream(job.dataset, seed, shape=shape_for(quick=scope.quick))
    if job.part:
        watcher = make_late_watcher(job.method, stream.first, stream.peers, seed)
    else:
        watcher = make_watcher(job.method, stream.first, stream.rows[: stream.first], seed)
    begin = process_time()
    scores, alarms = watch(watcher, stream)
    us = 1e6 * (process_time() - begin) / len(stream.rows)
    found = judge(stream, scores, alarms)
    found[0]["us"] = us
    if isinstance(watcher, Watched):
        found[0]["limit"] = watcher.monitor.limit.value
    return [{**names, **row} for row in found]


def watch(watcher: Watcher, stream: Stream) -> tuple[Array, Marks]:
    """Give a stream to a watcher; return scores, NaN where there is none, and alarms, (k,)."""
    scores, alarms = np.full(len(stream.rows), np.nan), np.zeros(len(stream.rows), np.bool_)
    for i, x in enumerate(stream.rows):
        if i == stream.review:
            watcher.approve()
        score, alarms[i] = watcher.take(x)
        scores[i] = np.nan if score is None else score
    return scores, alarms


def judge(stream: Stream, scores: Array, alarms: Marks) -> Rows:
    """Return a row on the normal samples, and one for each kind of fault.

    Args:
        stream: The stream with its truth.
        scores: Of each sample, (k,), NaN where there is none.
        alarms: Whether there was an alarm at each sample, (k,).
    """
    watched = np.arange(len(alarms)) >= stream.first
    alarms = alarms & watched
    begins = alarms & ~np.concatenate([[False], alarms[:-1]])
    fault = stream.fault
    near = np.convolve(fault, np.ones(SETTLING + 1))[: len(fault)] > 0
    normal = watched & ~near
    late = np.arange(len(alarms)) >= (stream.first + len(alarms)) // 2
    rows: Rows = [
        {
            "kind": "normal",
            "samples": int(normal.sum()),
            "episodes": int((begins & normal).sum()),
            "late_samples": int((normal & late).sum()),
            "late_episodes": int((begins & normal & late).sum()),
            "in_alarm": float(alarms[normal].mean()),
        }
    ]
    calm = scores[normal & ~stream.wild & np.isfinite(scores)]
    for kind in dict.fromkeys(each.kind for each in stream.faults):
        mine = [each for each in stream.faults if each.kind == kind]
        delays = [_delay(begins[each.begin : each.end]) for each in mine]
        inside = np.concatenate([np.arange(each.begin, each.end) for each in mine])
        rows.append(
            {
                "kind": kind,
                "samples": len(inside),
                "in_alarm": float(alarms[inside].mean()),
                "faults": len(mine),
                "detected": sum(d is not None for d in delays),
                "delay": float(
                    np.mean(
                        [
                            each.end - each.begin if d is None else d
                            for each, d in zip(mine, delays, strict=True)
                        ]
                    )
                ),
                "auc": auc(calm, scores[inside]),
            }
        )
    return rows


def _delay(begins: Marks) -> int | None:
    return int(np.argmax(begins)) if begins.any() else None


def auc(normal: ArrayLike, odd: ArrayLike) -> float:
    """Return the share of pairs in which the odd sample scores higher; ties count half.

    >>> auc(np.array([1.0, 2.0]), np.array([2.0, 3.0]))
    0.875
    """
    ordered, found = np.sort(normal), np.asarray(odd)
    odd = found[np.isfinite(found)]
    below = np.searchsorted(ordered, odd, "left") + np.searchsorted(ordered, odd, "right")
    return float(below.mean() / 2.0 / len(ordered))


def bootstrap_interval(values: Sequence[float]) -> Interval:
    """Return the mean, and its 95 % interval by bootstrap: 2 000 draws with a fixed seed.

    >>> bootstrap_interval([1.0, 1.0, 1.0])
    (1.0, 1.0, 1.0)
    """
    given = np.asarray(values, np.float64)
    draws = np.random.default_rng(0).integers(len(given), size=(2000, len(given)))
    low, high = np.quantile(given[draws].mean(1), (0.025, 0.975))
    return float(given.mean()), float(low), float(high)


def undo(method: str, seed: int, k: int) -> Row:
    """Take a bad device, whose normal is a fault, back from its fleet, and retrain without it.

    Args:
        method: One of `OURS` or `RIVALS`; ours merge sums, others learn all rows of the fleet.
        seed: Of the pumps and of all random weights.
        k: The samples of each device.
    """
    rng = rng_for(seed, UNDO)
    fleet = [pump.normal_rows(k, rng) for _ in range(DEVICES)]
    bad = pump.faulty(fleet.pop(), pump.KINDS[0], rng)
    fresh = pump.normal_rows(FRESH, rng)
    odd = pump.faulty(pump.normal_rows(FRESH, rng), pump.KINDS[0], rng)
    if method in RIVALS:
        return _undo_by_retraining(method, fleet, bad, fresh, odd, seed)
    activation = "cosine" if "cosine" in method else "tanh"
    shared = make_projection(fleet[0], activation, seed)
    own, *others = fleet
    peers = [taught(method, shared, rows) for rows in others]
    device = taught(method, shared, own)
    adopt_from(device, [*peers, taught(method, shared, bad)])
    before = auc(device.score(fresh), device.score(odd))
    undo_s = []
    for _ in range(TURNS):
        adopt_from(device, [*peers, taught(method, shared, bad)])
        begin = process_time()
        adopt_from(device, peers)
        undone = device.score(fresh)
        undo_s.append(process_time() - begin)
    retrain_s = []
    for _ in range(TURNS):
        begin = process_time()
        again = taught(method, shared, own)
        adopt_from(again, [taught(method, shared, rows) for rows in others])
        retrained = again.score(fresh)
        retrain_s.append(process_time() - begin)
    return {
        "auc_with_bad": before,
        "auc": auc(undone, device.score(odd)),
        "auc_retrained": auc(retrained, again.score(odd)),
        "undo_s": min(undo_s),
        "retrain_s": min(retrain_s),
        "difference": float(np.abs(undone - retrained).max()),
        "same_sums": int(_same_sums(device.detectors, again.detectors)),
    }


def _same_sums(one: Mapping[str, Detector], two: Mapping[str, Detector]) -> bool:
    return list(one) == list(two) and all(
        (one[name].own, one[name].others) == (two[name].own, two[name].others) for name in one
    )


def _undo_by_retraining(
    method: str, fleet: Sequence[Array], bad: Array, fresh: Array, odd: Array, seed: int
) -> Row:
    found: Row = {}
    every = np.vstack(fleet)
    for name, rows in (("auc_with_bad", np.vstack([every, bad])), ("auc", every)):
        scorer = RIVALS[method](rows.shape[1], len(rows), seed)
        low, high = every.min(0), every.max(0)
        scaled = [2.0 * (X - low) / (high - low) - 1.0 for X in (rows, fresh, odd)]
        begin = process_time()
        for x in np.random.default_rng(seed).permutation(scaled[0]):
            scorer.learn(x)
        seconds = process_time() - begin
        normal, faulty = (np.array([scorer.score(x) for x in X]) for X in scaled[1:])
        found |= {name: auc(normal, faulty), "retrain_s": seconds}
    return found | {"auc_retrained": found["auc"]}


Columns = dict[tuple[str, str], str]  # stream, with what of the peers: heading
COLUMNS: Columns = {(name, ""): name for name in STREAMS} | {("late device", "peers"): "with peers"}
MEASURES = {
    "false": f"False episodes in 1 000 normal samples; {1000 * RATE:g} was promised",
    "delay": "Samples from the beginning of a fault to its alarm; 80 if it is missed",
    "detected": "Share of the faults that were detected",
    "in_alarm": "Share of normal samples in alarm",
    "auc": "ROC-AUC of the scores, mean over kinds of faults",
}
SHORT = {"false": "false episodes in 1 000", "delay": "samples to the alarm", "auc": "ROC-AUC"}
DEFAULT = "bank, tanh"  # that of an agent
UNPROMISED = "bank, tanh, no promise"  # its limit is that of commissioning
STYLES = {
    "detector, tanh": (BLUE, "o"),
    "detector, cosine": (SKY, "o"),
    "bank, tanh": (BLUE, "s"),
    "bank, cosine": (SKY, "s"),
    "bank, tanh, no promise": (BLUE, "P"),
    "detector, tanh, learns always": (GREEN, "v"),
    "HalfSpaceTrees (River)": (GREY, "^"),
    "LODA (River)": (ORANGE, "^"),
    "KitNet (PySAD)": (RED, "D"),
    "ExactStorm (PySAD)": (BLACK, "D"),
    "RSHash (PySAD)": (FAINT, "D"),
}


def per_seed(rows: Rows, measure: str) -> dict[tuple[str, str, str], list[float]]:
    """Return a measure of each stream, with or without peers, and method: one number a seed.

    Args:
        rows: All rows.
        measure: One of `MEASURES`. A change that a person approves is no fault here.
    """
    groups: dict[tuple[str, str, str], dict[int, Rows]] = {}
    for row in rows:
        if row["stream"] != UNDO and row["kind"] != pump.NEW_SPEED:
            key = str(row["stream"]), "peers" if row["with"] else "", str(row["method"])
            groups.setdefault(key, {}).setdefault(int(row["seed"]), []).append(row)
    return {
        key: [_measured(mine, measure) for mine in seeds.values()] for key, seeds in groups.items()
    }


def _measured(rows: Rows, measure: str) -> float:
    """Return a measure of one stream and one seed."""
    (normal,) = (row for row in rows if row["kind"] == "normal")
    if measure == "false":
        return 1000.0 * float(normal["episodes"]) / float(normal["samples"])
    if measure == "in_alarm":
        return float(normal["in_alarm"])
    faults = [row for row in rows if row["kind"] != "normal"]
    if measure == "detected":
        return sum(float(row["detected"]) for row in faults) / sum(
            float(row["faults"]) for row in faults
        )
    return float(np.mean([float(row[measure]) for row in faults]))


def tables(rows: Rows) -> dict[str, Rows]:
    """Return the tables of the report, by title."""
    known = {str(row["stream"]) for row in rows}
    happens: Rows = [{"stream": k, "what happens": v} for k, v in STREAMS.items() if k in known]
    found = {"The streams": happens}
    found |= {title: _table(rows, measure) for measure, title in MEASURES.items()}
    found[f"Where another detector is ahead of {DEFAULT}, mean over seeds"] = _ahead(rows)
    found["Samples to the alarm by kind of fault, steady stream"] = _by_kind(rows)
    found["A bad device taken back, against retraining"] = _undo_table(rows)
    return {title: table for title, table in found.items() if table}


def _ahead(rows: Rows) -> Rows:
    """List where others are better than the default: the best of them on each stream.

    In time to detect only those count that raise no more false episodes than promised or ours.
    """
    found: Rows = []
    for key, heading in COLUMNS.items():
        false = _means(rows, "false", key)
        if DEFAULT not in false:
            continue
        most = max(1000.0 * RATE, false[DEFAULT])
        for measure, sign in (("false", -1.0), ("delay", -1.0), ("auc", 1.0)):
            means = _means(rows, measure, key)
            others = [
                name
                for name in means
                if name in RIVALS and (measure != "delay" or false[name] <= most)
            ]
            best = max(others, key=lambda name: sign * means[name], default=None)
            if best and sign * (means[best] - means[DEFAULT]) > SAME * abs(means[DEFAULT]):
                line: Row = {"stream": _named(key, heading), "measure": SHORT[measure]}
                line |= {
                    DEFAULT: f"{means[DEFAULT]:.3g}",
                    "ahead": best,
                    "it": f"{means[best]:.3g}",
                }
                found.append(line)
    return found


def _methods(rows: Rows) -> list[str]:
    return [name for name in (*OURS, *RIVALS) if any(row["method"] == name for row in rows)]


def _table(rows: Rows, measure: str) -> Rows:
    values, found = per_seed(rows, measure), Rows()
    for method in _methods(rows):
        line: Row = {"method": method}
        for key, heading in COLUMNS.items():
            mine = values.get((*key, method))
            line[heading] = _shown(mine, measure) if mine else "–"
        found.append(line)
    return found


def _shown(values: Sequence[float], measure: str) -> str:
    digits = {"false": 1, "delay": 0, "detected": 2, "in_alarm": 3, "auc": 3}[measure]
    mean, low, high = (f"{value:.{digits}f}" for value in bootstrap_interval(values))
    return f"{mean} ({low}–{high})"


def _by_kind(rows: Rows) -> Rows:
    mine = [row for row in rows if row["stream"] == "steady" and row["kind"] in pump.KINDS]
    found: Rows = []
    for method in _methods(mine):
        line: Row = {"method": method}
        for kind in pump.KINDS:
            delays = [
                float(row["delay"])
                for row in mine
                if (row["method"], row["kind"]) == (method, kind)
            ]
            line[kind] = _shown(delays, "delay") if delays else "–"
        found.append(line)
    return found


def _undo_table(rows: Rows) -> Rows:
    found: Rows = []
    for method in _methods(rows):
        mine = [row for row in rows if (row["stream"], row["method"]) == (UNDO, method)]
        if not mine:
            continue
        line: Row = {"method": method}
        for key, heading in (
            ("auc_with_bad", "AUC with the bad device"),
            ("auc", "AUC without"),
            ("undo_s", "undo, ms"),
            ("retrain_s", "retrain, ms"),
        ):
            values = [float(row[key]) for row in mine if key in row]
            scale, digits = (1000.0, 1) if key.endswith("_s") else (1.0, 3)
            line[heading] = f"{scale * np.mean(values):.{digits}f}" if values else "–"
        same = [row for row in mine if row.get("same_sums") == 1 and row["difference"] == 0.0]
        line["equal to retraining, to the bit"] = (
            f"{len(same)} of {len(mine)}" if "same_sums" in mine[0] else "no undo"
        )
        found.append(line)
    return found


def plot(rows: Rows) -> dict[str, Figure]:
    """Draw for each stream false episodes against the time to detect."""
    false, delay = per_seed(rows, "false"), per_seed(rows, "delay")
    figure = new_figure(13.0, 6.6)
    panels = figure.subplots(2, 4, sharey=True).ravel()
    for axes, (key, heading) in zip(panels, COLUMNS.items(), strict=False):
        for method, (colour, marker) in STYLES.items():
            if (*key, method) in false:
                _point(axes, false[*key, method], delay[*key, method], colour, marker)
        axes.axvline(1000.0 * RATE, color=INK, linewidth=0.8, linestyle=":")
        axes.set_xscale("symlog", linthresh=1.0)
        axes.set_xlim(-0.1, 30.0)
        axes.set_xticks([0, 1, 3, 10, 30], ["0", "1", "3", "10", "30"])
        axes.set_ylim(0.0, 84.0)
        hide_frame(axes)
        name = f"late device, {heading}" if heading == "with peers" else heading
        set_titles(axes, name, x="false episodes in 1 000 samples")
    for axes in panels[::4]:
        axes.set_ylabel("samples to the alarm", color=INK)
    legend = panels[len(COLUMNS)]
    for method, (colour, marker) in STYLES.items():
        legend.plot([], [], color=colour, marker=marker, linestyle="", label=method)
    legend.plot([], [], color=INK, linestyle=":", linewidth=0.8, label="promised")
    legend.legend(loc="center", frameon=False, fontsize=9)
    legend.set_axis_off()
    return {"": figure}


def _point(axes: Axes, x: Sequence[float], y: Sequence[float], colour: str, marker: str) -> None:
    (mx, lx, hx), (my, ly, hy) = bootstrap_interval(x), bootstrap_interval(y)
    axes.errorbar(
        mx,
        my,
        xerr=[[mx - lx], [hx - mx]],
        yerr=[[my - ly], [hy - my]],
        color=colour,
        marker=marker,
        markersize=6,
        linewidth=0.8,
        alpha=0.9,
    )


def claims(rows: Rows) -> list[Claim]:
    """Compare false episodes with the promise, delays with others, and undo with retraining."""
    return [
        *(_promise(rows, key, heading) for key, heading in COLUMNS.items()),
        *(_sooner(rows, key, heading) for key, heading in COLUMNS.items()),
        _promise_is_free(rows),
        _peers_help(rows),
        _undo_is_exact(rows),
        _undo_is_fast(rows),
    ]


def _monitors(method: str) -> bool:
    return method in OURS and "always" not in method and "no promise" not in method


def _named(key: tuple[str, str], heading: str) -> str:
    return f"{key[0]}, {heading}" if key[1] else heading


def _promise(rows: Rows, key: tuple[str, str], heading: str) -> Claim:
    text = f"{_named(key, heading)}: no monitor raises more false episodes than promised"
    means = _means(rows, "false", key)
    found = {method: mean for method, mean in means.items() if _monitors(method)}
    if not found:
        return Claim.not_measured(text)
    words = ", ".join(f"{method} {mean:.2g}" for method, mean in found.items())
    holds = max(found.values()) <= 1000.0 * RATE
    doubt = _doubt(rows, key, list(found)) if holds else ""
    return Claim(text, holds, f"{words} in 1 000{doubt}")


def _doubt(rows: Rows, key: tuple[str, str], methods: Sequence[str]) -> str:
    """Name the methods whose interval of false episodes ends above the promise."""
    values = per_seed(rows, "false")
    ends = {one: bootstrap_interval(values[*key, one])[2] for one in methods}
    above = [f"{one} to {end:.2g}" for one, end in ends.items() if end > 1000.0 * RATE]
    return f"; intervals that end above the promise: {', '.join(above)}" if above else ""


def _sooner(rows: Rows, key: tuple[str, str], heading: str) -> Claim:
    """Compare the default with every other detector that keeps the promise."""
    text = (
        f"{_named(key, heading)}: {DEFAULT} keeps the promise, and raises the alarm sooner than "
        "every other that keeps it"
    )
    false, delay = (_means(rows, measure, key) for measure in ("false", "delay"))
    kept = [method for method, mean in false.items() if mean <= 1000.0 * RATE]
    if DEFAULT not in delay:
        return Claim.not_measured(text)
    found = f"{delay[DEFAULT]:.0f} samples, {false[DEFAULT]:.2g} false episodes in 1 000"
    doubt = _doubt(rows, key, [DEFAULT]) if DEFAULT in kept else ""
    others = [method for method in kept if method in RIVALS]
    if not others:
        return Claim(text, DEFAULT in kept, f"{found}; no other keeps it{doubt}")
    best = min(others, key=lambda method: delay[method])
    found += f"; {best} {delay[best]:.0f}, {false[best]:.2g}"
    values = per_seed(rows, "delay")
    (_, _, mine), (_, its, _) = (bootstrap_interval(values[*key, one]) for one in (DEFAULT, best))
    found += "; the intervals overlap" if mine >= its else ""
    found += doubt
    return Claim(text, DEFAULT in kept and delay[DEFAULT] < delay[best], found)


def _means(rows: Rows, measure: str, key: tuple[str, str]) -> dict[str, float]:
    """Return the mean over seeds of each method on one stream."""
    return {
        method: float(np.mean(values))
        for (*where, method), values in per_seed(rows, measure).items()
        if tuple(where) == key
    }


def _promise_is_free(rows: Rows) -> Claim:
    text = f"{DEFAULT} raises the alarm as soon with a promise as with the limit of commissioning"
    words, holds = [], []
    for key, heading in COLUMNS.items():
        delay, false = (_means(rows, measure, key) for measure in ("delay", "false"))
        if DEFAULT in delay and UNPROMISED in delay:
            limits = [_mean_limit(rows, key, method) for method in (DEFAULT, UNPROMISED)]
            holds.append(delay[DEFAULT] <= delay[UNPROMISED])
            words.append(
                f"{_named(key, heading)} {delay[DEFAULT]:.0f} against {delay[UNPROMISED]:.0f} "
                f"samples, {false[DEFAULT]:.2g} against {false[UNPROMISED]:.2g} false episodes, "
                f"limits at the end {limits[0]:.0f} and {limits[1]:.0f}"
            )
    return Claim(text, all(holds), "; ".join(words)) if words else Claim.not_measured(text)


def _mean_limit(rows: Rows, key: tuple[str, str], method: str) -> float:
    """Return the mean limit at the end of a stream."""
    mine = [
        float(row["limit"])
        for row in rows
        if "limit" in row and (row["stream"], row["method"]) == (key[0], method)
        if bool(row["with"]) == bool(key[1])
    ]
    return float(np.mean(mine))


def _peers_help(rows: Rows) -> Claim:
    text = "late device: with the sums of its peers each monitor raises fewer false episodes"
    alone, merged = (_means(rows, "false", ("late device", peers)) for peers in ("", "peers"))
    pairs = {m: (alone[m], merged[m]) for m in alone if m in merged and _monitors(m)}
    if not pairs:
        return Claim.not_measured(text)
    words = ", ".join(f"{m} {a:.2g} → {b:.2g}" for m, (a, b) in pairs.items())
    return Claim(text, all(b < a for a, b in pairs.values()), f"{words} in 1 000")


def _undo_is_exact(rows: Rows) -> Claim:
    text = "taking a bad device back equals retraining without it, to the bit"
    mine = [row for row in rows if "same_sums" in row]
    if not mine:
        return Claim.not_measured(text)
    same = [row for row in mine if row["same_sums"] == 1 and row["difference"] == 0.0]
    return Claim(text, len(same) == len(mine), f"in {len(same)} of {len(mine)} fleets")


def _undo_is_fast(rows: Rows) -> Claim:
    text = "taking a bad device back is faster than retraining"
    mine = [row for row in rows if "undo_s" in row]
    if not mine:
        return Claim.not_measured(text)
    factors = [float(row["retrain_s"]) / float(row["undo_s"]) for row in mine]
    words = f"{np.median(factors):.1f} times, {min(factors):.1f} at least"
    return Claim(text, min(factors) > 1.0, f"{words}; fleets of {DEVICES} devices")
