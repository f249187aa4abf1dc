"""The paper's own claims, each as a row: where it stands, what is measured, found, and a verdict.

All of it is computed from the rows of other results; nothing is run. Claims are told in our words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import fmean

from scipy.stats import t as student

from edgemerge.paper import auc, small_experiments
from edgemerge.paper.data.catalog import MissingDataError
from edgemerge.paper.hyperparameters import BASELINES, FEDERATED
from edgemerge.paper.loss_figures import AFTER_MERGE, DEVICE_A, DEVICE_B, rows_of_cut
from edgemerge.paper.loss_har import with_cut
from edgemerge.paper.plan import NAMES, Row, Rows, load_result
from edgemerge.paper.running import result_files
from edgemerge.paper.small_experiments import (
    AVERAGING,
    DIFFERENCE,
    FORGETTING,
    MEMBERSHIP,
    REJECTION,
    SELECTION,
    SPLITS,
    by_pair,
    find,
    half_interval,
    over_all_pairs,
    pairs_as_text,
)
from edgemerge.paper.timing import MERGE, OURS, PREDICT, TRAIN, Step

FILE = "claims.csv"
HOLDS, IN_PART, FAILS, NOT_RUN = "holds", "holds in part", "does not hold", "not run here"
CLOSE = 0.01  # of ROC-AUC: within this two methods are as accurate as each other
ADOPTED = ("no peer", "all peers", "selected peers")  # in the experiment on client selection
SLIGHTLY = 0.05  # of ROC-AUC: what we call slightly higher
DRIVING_ELSEWHERE = (
    "run elsewhere on all 40 real trips: 9 of 9 claims hold, merging lowers the losses 1.2 to 1.5 "
    "times, and drowsy driving is not distinguished from normal driving (ROC-AUC 0.43 to 0.50); "
    "not part of the rows here"
)

Known = Mapping[str, Rows]  # the rows of each result that was run


@dataclass(frozen=True)
class Finding:
    """What was found about a claim, the interval if it is a mean, and the verdict."""

    found: str
    verdict: str
    interval: str = ""


@dataclass(frozen=True)
class PaperClaim:
    """A claim of the paper, and the function that judges it by the rows of some results."""

    text: str
    where: str
    measured: str
    results: tuple[str, ...]
    judge: Callable[[Known], Finding]

    def row(self, known: Known) -> Row:
        """Return the claim as a row; results that were not run leave it open."""
        finding = self.judge(known)
        return {
            "claim": self.text,
            "where": self.where,
            "measured": self.measured,
            "result": ", ".join(self.results),
            "found": finding.found,
            "interval": finding.interval,
            "verdict": finding.verdict,
        }


def read_claims(folder: Path) -> Rows:
    """Return all claims, judged by the results in a folder."""
    found = {name: result_files.read_result(folder, name) for name in NAMES}
    known = {name: kept.rows for name, kept in found.items() if kept}
    if not known:
        raise MissingDataError(
            f"{folder} holds no results: run `edgemerge paper all --out {folder}`"
        )
    return judge_claims(known)


def judge_claims(known: Known) -> Rows:
    """Return all claims as rows, in the order of the paper."""
    return [claim.row(known) for claim in CLAIMS]


def save_claims(folder: Path, rows: Rows) -> Path:
    """Write the claims beside the results that they are judged by; return the path."""
    table = result_files.to_csv(rows, result_files.column_types(rows, FILE))
    result_files.write_file(table.encode(), folder / FILE)
    return folder / FILE


def as_measured(result: str, *starts: str) -> Callable[[Known], Finding]:
    """Judge by a result's own claims that begin with these words, all of them together."""

    def judge(known: Known) -> Finding:
        claims = load_result(result).claims(known[result]) if result in known else []
        found = [claim for claim in claims if claim.text.startswith(starts)]
        named = [f"{claim.text.partition(':')[0]}: {claim.found}" for claim in found]
        words = named if len(found) > 1 else [claim.found for claim in found]
        return Finding("; ".join(words) or "not run", verdict(claim.holds for claim in found))

    return judge


def on_both_splits(result: str, start: str) -> Callable[[Known], Finding]:
    """Judge by a result's own claim that begins so, split by sample and by person."""
    return as_measured(result, f"by sample: {start}", f"by person: {start}")


def verdict(held: Iterable[bool | None]) -> str:
    """Return the verdict on several measurements of one claim.

    >>> verdict([True, True]), verdict([True, False]), verdict([False]), verdict([None])
    ('holds', 'holds in part', 'does not hold', 'not run here')
    """
    known = [each for each in held if each is not None]
    if not known:
        return NOT_RUN
    return HOLDS if all(known) else IN_PART if any(known) else FAILS


HAR_BY_PERSON = "har by person"
DATASETS = {
    "har": ("auc", "har"),
    HAR_BY_PERSON: ("auc-by-person", "har"),
    "mnist": ("auc", "mnist"),
}


def _means(known: Known, dataset: str) -> dict[str, Row]:
    """Return the rows of the mean ROC-AUC off the diagonal, by method."""
    result, name = DATASETS[dataset]
    rows = (row for row in known.get(result, []) if row["device_b"] == auc.OTHERS)
    return {str(row["method"]): row for row in rows if row["dataset"] == name}


def _cells(known: Known, dataset: str) -> dict[str, auc.Cells]:
    """Return the mean ROC-AUC of each pair, by method; empty unless merging was run."""
    result, name = DATASETS[dataset]
    found = auc.pair_means(known.get(result, []), name)
    return found if {auc.BEFORE, auc.AFTER} <= found.keys() else {}


def _interval(row: Row) -> tuple[float, float]:
    mean, k = float(row["auc"]), int(row["trials"])
    half = float(student.ppf(0.975, k - 1)) * float(row["spread"]) / sqrt(k) if k > 1 else 0.0
    return mean - half, mean + half


def _as_text(row: Row) -> str:
    low, high = _interval(row)
    return f"{row['method']} {low:.3f} to {high:.3f} ({row['trials']} trials)"


def losses(start: str, pattern: str, device: str) -> Callable[[Known], Finding]:
    """Judge a claim on losses before and after merging, with the intervals of both means."""

    def judge(known: Known) -> Finding:
        finding = on_both_splits("loss-har", start)(known)
        rows, intervals = with_cut(known.get("loss-har", [])), []
        for split in SPLITS:
            here = [row for row in rows_of_cut(rows, split) if row["pattern"] == pattern]
            ends = [_ends(here, method) for method in (device, AFTER_MERGE[device])]
            if all(ends):
                intervals.append(f"by {split}: {' → '.join(ends)}")
        return Finding(finding.found, finding.verdict, "; ".join(intervals))

    return judge


def _ends(rows: Rows, method: str, key: str = "loss") -> str:
    values = [float(row[key]) for row in rows if row["method"] == method]
    if not values:
        return ""
    mean, half = fmean(values), half_interval(values)
    return f"{mean - half:.3g} to {mean + half:.3g} ({len(values)} trials)"


def gains_from_others(known: Known) -> Finding:
    """Judge by ROC-AUC against the number of devices, the paper's way of merging."""
    start = "AUC rises with the number of devices (the paper's way"
    finding, rows = as_measured("devices", start)(known), known.get("devices", [])
    counts = [count for count in (1, 30) if any(row["devices"] == count for row in rows)]
    ends = [
        f"{count}: {_ends([r for r in rows if r['devices'] == count], auc.AFTER, 'auc')}"
        for count in counts
    ]
    return Finding(finding.found, finding.verdict, ", ".join(ends).replace("trials", "fleets"))


def raises_the_mean(known: Known) -> Finding:
    """Judge whether merging raises the mean ROC-AUC, beyond both intervals."""
    found, intervals, held = [], [], []
    for name in DATASETS:
        rows = _means(known, name)
        if {auc.BEFORE, auc.AFTER} <= rows.keys():
            a, b = rows[auc.BEFORE], rows[auc.AFTER]
            found.append(f"{name} {a['auc']:.3f} → {b['auc']:.3f}")
            intervals.append(f"{name}: {_as_text(a)}, {_as_text(b)}")
            held.append(_interval(b)[0] > _interval(a)[1])
    return Finding("; ".join(found) or "not run", verdict(held), "; ".join(intervals))


def in_all_combinations(known: Known) -> Finding:
    """Count the pairs of patterns in which merging raises the mean ROC-AUC."""
    parts, held = [], []
    for name in DATASETS:
        if cells := _cells(known, name):
            before, after = cells[auc.BEFORE], cells[auc.AFTER]
            gains = {pair: after[pair] - before[pair] for pair in after if pair[0] != pair[1]}
            worse = [f"{a}–{b} {gain:+.3f}" for (a, b), gain in gains.items() if gain <= 0.0]
            better = f"{name}: {len(gains) - len(worse)} of {len(gains)}"
            parts.append(f"{better} ({', '.join(worse)})" if worse else better)
            held += [not worse, len(worse) < len(gains)]
    return Finding("; ".join(parts) or "not run", verdict(held))


def low_when_distant(known: Known) -> Finding:
    """Compare the diagonal with the rest, before merging."""
    parts, held = [], []
    for name in DATASETS:
        cells = _cells(known, name).get(auc.BEFORE, {})
        same = [value for (a, b), value in cells.items() if a == b]
        other = [value for (a, b), value in cells.items() if a != b]
        if same and other:
            parts.append(
                f"{name}: {fmean(same):.3f} on the diagonal, {fmean(other):.3f} elsewhere, "
                f"lowest {min(other):.3f}"
            )
            held.append(min(same) > fmean(other))
    return Finding("; ".join(parts) or "not run", verdict(held))


def _networks(known: Known, dataset: str, methods: Iterable[str]) -> dict[str, float]:
    """Return how far networks are above merging in mean ROC-AUC, over the trials of all."""
    same = auc.means(known.get("auc", []), dataset, auc.SHARED)
    both = [method for method in methods if {method, auc.AFTER} <= same.keys()]
    return {method: same[method] - same[auc.AFTER] for method in both}


def as_accurate(dataset: str, methods: Iterable[str]) -> Callable[[Known], Finding]:
    """Judge whether merging is at most 0.01 of ROC-AUC below networks, over shared trials."""

    def judge(known: Known) -> Finding:
        above, rows = _networks(known, dataset, methods), _means(known, dataset)
        if not above:
            return Finding("not run", NOT_RUN)
        same = auc.means(known["auc"], dataset, auc.SHARED)
        words = [f"{method} {same[method]:.3f} ({far:+.3f})" for method, far in above.items()]
        text = f"merging {same[auc.AFTER]:.3f}, {', '.join(words)}"
        intervals = ", ".join(_as_text(rows[method]) for method in (auc.AFTER, *above))
        return Finding(text, verdict(far <= CLOSE for far in above.values()), intervals)

    return judge


def slightly_higher(known: Known) -> Finding:
    """Judge whether networks are above merging on MNIST, and by how much."""
    above, rows = _networks(known, "mnist", BASELINES), _means(known, "mnist")
    found = ", ".join(f"{method} {far:+.3f}" for method, far in above.items())
    intervals = ", ".join(_as_text(rows[method]) for method in (auc.AFTER, *above) if above)
    held = [0.0 < far <= SLIGHTLY for far in above.values()]
    return Finding(found or "not run", verdict(held), intervals)


def as_accurate_everywhere(known: Known) -> Finding:
    """Put the two data sets and all networks together."""
    each = [as_accurate(dataset, BASELINES)(known) for dataset in ("har", "mnist")]
    parts = [f"{name}: {one.found}" for name, one in zip(("HAR", "MNIST"), each, strict=True)]
    verdicts = {one.verdict for one in each} - {NOT_RUN} or {NOT_RUN}
    both = verdicts.pop() if len(verdicts) == 1 else IN_PART
    return Finding("; ".join(parts), both, "; ".join(filter(None, (o.interval for o in each))))


def very_similar(known: Known) -> Finding:
    """Judge federated averaging on HAR: by the paired differences, and by the matrix of all."""
    rows, words, intervals = known.get("small-experiments", []), [], []
    for split in SPLITS:
        pairs = by_pair(rows, split)
        if pairs:
            over_all = find(over_all_pairs(rows), AVERAGING, split, DIFFERENCE)
            words.append(f"by {split}: {over_all['value']:+.3f}, {pairs_as_text(pairs)}")
            ends = f"{over_all['low']:+.3f} to {over_all['high']:+.3f}"
            intervals.append(f"by {split}: {ends} ({over_all['trials']} seeds)")
    far = _networks(known, "har", [FEDERATED]).get(FEDERATED)
    if far is not None:
        words.append(f"by sample, all pairs of auc: {far:+.3f}")
        means = _means(known, "har")
        intervals.append(", ".join(_as_text(means[name]) for name in (auc.AFTER, FEDERATED)))
    claims = small_experiments.claims(rows)
    held = [claim.holds for claim in claims if f": {FEDERATED} is very similar" in claim.text]
    held.append(None if far is None else abs(far) <= CLOSE)
    return Finding("; ".join(words) or "not run", verdict(held), "; ".join(intervals))


def experiment(name: str, start: str, *settings: str) -> Callable[[Known], Finding]:
    """Judge by a small experiment on both splits, with the means of some settings."""

    def judge(known: Known) -> Finding:
        rows, words, intervals = known.get("small-experiments", []), [], []
        for split in SPLITS:
            found = {setting: find(rows, name, split, setting) for setting in settings}
            if all(found.values()):
                means = [f"{setting} {row['value']:.3f}" for setting, row in found.items()]
                ends = [f"{row['low']:.3f} to {row['high']:.3f}" for row in found.values()]
                trials = found[settings[0]]["trials"]
                words.append(f"by {split}: {', '.join(means)}")
                intervals.append(f"by {split}: {', '.join(ends)} ({trials} trials each)")
        judged = on_both_splits("small-experiments", start)(known).verdict
        return Finding("; ".join(words) or "not run", judged, "; ".join(intervals))

    return judge


def mitigates(known: Known) -> Finding:
    """Judge how much of the raw data sums hide: few samples nothing, many nearly all."""
    rows = known.get("small-experiments", [])
    single = find(rows, MEMBERSHIP, "", "1 sample", "largest error")
    attack = {n: find(rows, MEMBERSHIP, "", f"{n}N samples") for n in (1, 2, 4, 8, 16, 32)}
    if not single or not all(attack.values()):
        return Finding("not run", NOT_RUN)
    by_size = ", ".join(f"{row['value']:.3f} at {n}N" for n, row in attack.items())
    found = (
        f"the sum of one sample is that sample, to {single['value']:.1g}; a member of a release is "
        f"recognised with ROC-AUC {by_size}"
    )
    interval = ", ".join(f"{n}N {r['low']:.3f} to {r['high']:.3f}" for n, r in attack.items())
    few, many = float(attack[1]["value"]), float(attack[32]["high"])
    return Finding(found, verdict([few < 0.6, many < 0.6]), interval)


def merging_is_modest(known: Known) -> Finding:
    """Compare a merge with one training step and one prediction, at both N."""
    from edgemerge.paper.latency import SIZES, time_of  # noqa: PLC0415 (imports matplotlib's parts)

    parts, held, merges = [], [], []
    for N in SIZES:
        steps = [Step(job, OURS) for job in (MERGE, TRAIN, PREDICT)]
        times = [time_of(known.get("latency", []), step, hidden=N) for step in steps]
        merge, train, predict = (time or 0.0 for time in times)
        if not all(times):
            return Finding("not run", NOT_RUN)
        parts.append(
            f"N = {N}: {merge:.3f} ms, {merge / train:.1f} times a training step and "
            f"{merge / predict:.1f} times a prediction"
        )
        held.append(merge > max(train, predict))
        merges.append(merge)
    found = (
        f"{'; '.join(parts)}; N = {SIZES[1]} takes {merges[1] / merges[0]:.1f} times N = {SIZES[0]}"
    )
    return Finding(found, verdict([*held, merges[1] > merges[0]]))


def driving(known: Known) -> Finding:
    """Judge by the rows if the data set is there, or say what was found elsewhere."""
    if "loss-driving" not in known:
        return Finding(DRIVING_ELSEWHERE, NOT_RUN)
    claims = load_result("loss-driving").claims(known["loss-driving"])
    held = [claim.holds for claim in claims]
    return Finding(f"{held.count(True)} of {len(held)} claims hold", verdict(held))


LOSS_HAR = ("loss-har",)
AUCS = ("auc", "auc-by-person")
SMALL = ("small-experiments",)
BY_PAIR = "mean ROC-AUC off the diagonal, by sample and by person"

CLAIMS = (
    PaperClaim(
        "sums of parts, computed separately, add up to those of all samples",
        "3.2", "merged sums against learning all rows in one place, compared by bits", ("devices",),
        as_measured("devices", "Merged sums are"),
    ),
    PaperClaim(
        "sums can be subtracted and replaced as they can be added",
        "3.2", "totals after devices left and came back, compared by digests", ("drop-out",),
        as_measured("drop-out", "Dropped is never heard"),
    ),
    PaperClaim(
        "samples with a high loss should be rejected before training",
        "3.4", "ROC-AUC with one anomaly for ten training samples, learnt or rejected", SMALL,
        experiment(REJECTION, "rejecting", "learns everything", "rejects high scores"),
    ),
    PaperClaim(
        "a forgetting mechanism follows the change of what is normal",
        "4", "ROC-AUC after one pattern replaced another, without and with forgetting", SMALL,
        experiment(FORGETTING, "forgetting", "forgetting 1", "forgetting 0.99"),
    ),
    PaperClaim(
        "a device with few samples gains from those of others",
        "1", "ROC-AUC against the number of devices, 30 people of HAR", ("devices",),
        gains_from_others,
    ),
    PaperClaim(
        "sharing sums instead of raw data mitigates privacy issues",
        "4.2", "recovery of one sample, and ROC-AUC of a membership attack by samples a release",
        SMALL, mitigates,
    ),
    PaperClaim(
        "client selection can improve the accuracy (named as future work)",
        "4.2, 6", "ROC-AUC of a device that adopts no peer, all or selected peers, 3 of 10 wrong",
        SMALL,
        experiment(SELECTION, "selecting", *(f"adopts {who}" for who in ADOPTED)),
    ),
    PaperClaim(
        "driving: merging makes the other device's pattern normal, and keeps the own one",
        "5.2", "mean losses before and after merging, by window and by trip", ("loss-driving",),
        driving,
    ),
    PaperClaim(
        "HAR: the loss of sitting at Device-B falls by merging", "5.2",
        "mean loss before and after", LOSS_HAR,
        losses("the loss of sitting at Device-B falls", "sitting", DEVICE_B),
    ),
    PaperClaim(
        "HAR: the loss of laying at Device-A falls by merging", "5.2",
        "mean loss before and after", LOSS_HAR,
        losses("the loss of laying at Device-A falls", "laying", DEVICE_A),
    ),
    PaperClaim(
        "the loss of the own pattern rises slightly by merging and stays low", "5.2",
        "mean loss before and after, of sitting at Device-A", LOSS_HAR,
        losses("the loss of sitting at Device-A, which", "sitting", DEVICE_A),
    ),
    PaperClaim(
        "HAR: the losses of walking, which no device learnt, stay close", "5.2",
        "ratio of mean losses before and after merging", LOSS_HAR,
        on_both_splits("loss-har", "the losses of the three ways"),
    ),
    PaperClaim(
        "HAR: walking is still anomalous after merging", "5.2",
        "its mean loss against those of sitting and laying", LOSS_HAR,
        on_both_splits("loss-har", "after merging they are still"),
    ),
    PaperClaim(
        "HAR: standing is like sitting, its loss falls with it", "5.2",
        "mean losses at Device-B", LOSS_HAR,
        on_both_splits("loss-har", "standing, which no device"),
    ),
    PaperClaim(
        "HAR: BP-NN3 has the same tendency as merging", "5.2",
        "rank correlation of mean losses over the six activities", LOSS_HAR,
        on_both_splits("loss-har", "BP-NN3 orders"),
    ),
    PaperClaim(
        "after merging both ways, Device-A and Device-B are identical", "5.2",
        "digests of the sums in every trial", LOSS_HAR,
        as_measured("loss-har", "after merging, Device-A and Device-B"),
    ),
    PaperClaim(
        "before merging ROC-AUC is low, except on the diagonal", "5.3",
        "mean ROC-AUC on and off the diagonal", AUCS, low_when_distant,
    ),
    PaperClaim(
        "merging significantly raises ROC-AUC overall", "5.3", BY_PAIR, AUCS,
        raises_the_mean,
    ),
    PaperClaim(
        "merging extends what is normal in all combinations of patterns", "5.3",
        "ordered pairs of two patterns whose mean ROC-AUC rises", AUCS, in_all_combinations,
    ),
    PaperClaim(
        "HAR: merging is as accurate as BP-NN3 and BP-NN5", "5.3",
        f"mean ROC-AUC over shared trials, at most {CLOSE} below", ("auc",),
        as_accurate("har", ("BP-NN3", "BP-NN5")),
    ),
    PaperClaim(
        "HAR: BP-NN3-FL's ROC-AUC is very similar to that of merging", "5.3",
        f"paired difference of ROC-AUC, within {CLOSE}", (*SMALL, "auc"), very_similar,
    ),
    PaperClaim(
        "MNIST: the networks are slightly higher than merging", "5.3",
        f"mean ROC-AUC over shared trials, higher by at most {SLIGHTLY}", ("auc",), slightly_higher,
    ),
    PaperClaim(
        "merging is as accurate as back-propagation and federated averaging", "abstract, 6",
        f"mean ROC-AUC over shared trials, at most {CLOSE} below", ("auc",), as_accurate_everywhere,
    ),
    PaperClaim(
        "training one sample takes less time than in BP-NN3-FL", "5.4",
        "CPU time of one step, in turn", ("latency",),
        as_measured("latency", "Training takes less than BP-NN3-FL"),
    ),
    PaperClaim(
        "predicting one sample takes less time than in BP-NN3-FL", "5.4",
        "CPU time of one loss, in turn", ("latency",),
        as_measured("latency", "Prediction takes less than BP-NN3-FL"),
    ),
    PaperClaim(
        "a merge takes more than a training step and grows with N, but is modest", "5.4",
        "CPU time of a merge that is ready for a loss", ("latency",), merging_is_modest,
    ),
    PaperClaim(
        "one merge takes less time than the rounds of federated averaging", "5.4",
        "CPU time of one merge against 50 rounds of averaging", ("latency",),
        as_measured("latency", "One merge takes less"),
    ),
    PaperClaim(
        "merging once costs less communication than rounds of averaging", "abstract, 5.4, 6",
        "bytes of one exchange of a pair against 50 rounds", ("bytes",),
        as_measured("bytes", "har, after merging, root16", "mnist, after merging, root16"),
    ),
    PaperClaim(
        "merging lowers the loss at once", "5.5", "loss of laying at Device-B", ("convergence",),
        as_measured("convergence", "merging lowers the loss of laying"),
    ),
    PaperClaim(
        "learning one by one comes as low as merging after about 650 updates", "5.5",
        "updates until the loss is within 5 % of the merged one", ("convergence",),
        as_measured("convergence", "the lines meet after about 650"),
    ),
    PaperClaim(
        "one merge takes less time than learning until then", "5.5",
        "CPU time of a merge and of so many updates", ("convergence",),
        as_measured("convergence", "one merge takes less time"),
    ),
)  # fmt: skip
