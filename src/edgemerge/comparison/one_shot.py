"""One-shot federated anomaly detection: ours against other ways to learn from many devices.

Rows of kind "choice" are the settings that were tried on one half of the data, those of kind
"pairs" the paper's exam, "matrix" each pair of it, and "fleet" fleets of 2 to 30 devices; a row is
the mean of one seed, but for "choice" and "matrix", which are means over seeds.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import combinations
from zlib import crc32

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from threadpoolctl import threadpool_limits

from edgemerge.comparison import datasets, methods
from edgemerge.comparison.datasets import (
    CHOOSE,
    DIGITS,
    FULL,
    HAR,
    MACHINES,
    MNIST,
    REPORT,
    TABULAR,
    Cell,
    Fleet,
    draw_fleet,
    draw_pairs,
    halves_of,
    load_half,
)
from edgemerge.comparison.methods import (
    ALONE,
    BEST,
    KNN,
    LOF,
    METHODS,
    POOLED,
    RIVALS,
    Method,
    Params,
    measure,
)
from edgemerge.comparison.statistics import (
    Interval,
    NonInferiority,
    holm,
    interval,
    non_inferior,
    paired_p_value,
)
from edgemerge.paper.auc import SHORT_NAMES
from edgemerge.paper.dataset import rng_for, split_by_person, split_by_sample
from edgemerge.paper.plan import Claim, Job, Plan, Row, Rows, Scope
from edgemerge.paper.plotting import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PINK,
    RED,
    SKY,
    hide_frame,
    new_figure,
    set_titles,
)
from edgemerge.paper.reporting.content import MARKS, VERDICTS, Table, rerun_command
from edgemerge.paper.reporting.markdown import markdown_table
from edgemerge.paper.running.result_files import SavedResult

NAME = "one-shot"
TITLE = "One-shot federated anomaly detection"
DATA = ()  # each data set is left out where it is missing
NOTE = (
    "Settings of every method are chosen on one half of the data and reported on the other. "
    "Tables are on the page of this result."
)

BY_SAMPLE, BY_PERSON, FLEET = "pairs by sample", "pairs by person", "fleet"
PAIR_EXAMS = ((HAR, BY_SAMPLE), (HAR, BY_PERSON), (MNIST, BY_SAMPLE))
CELLS = (
    *(Cell(devices) for devices in (2, 5, 10, 30)),
    *(Cell(10, mix) for mix in (0.5, 1.0)),
    *(Cell(10, mix, 0.1) for mix in (0.0, 1.0)),
)
FEW_CELLS = (Cell(2), Cell(5, 1.0), Cell(5, 0.0, 0.1))  # of a quick run
CHOICE_CELLS = (Cell(10), Cell(10, 1.0), Cell(10, 0.0, 0.1))
SMALL_CHOICE_CELLS = (Cell(2), Cell(2, 1.0), Cell(2, 0.0, 0.1))  # of tabular sets, which are small
NETWORK_CELLS = (Cell(10),)
NETWORK_SETS = (HAR, MNIST, DIGITS)
FULL_TRIALS = 1  # of the full matrices
CHOICE_TRIALS = {BY_SAMPLE: 2, BY_PERSON: 2, FLEET: 1}
FLEET_TRIALS = 30  # at most, of fleets
MARKED_TRIALS = 2  # of tabular sets on which settings were chosen
CHOICE_PAIRS = 4  # of one half, on which settings are tried
SEED_PAIRS = 3  # of the half that is reported, in each seed; all have their turn
QUICK_PAIRS, QUICK_CANDIDATES = 2, 3
WITHIN = 0.002  # of the best AUC, the setting with the fewest bytes is chosen
NETWORKS = "networks"
CHOICE, PAIRS, MATRIX = "choice", "pairs", "matrix"

Chosen = dict[str, Params]  # by method


def run(plan: Plan) -> Rows:
    """Choose settings on one half, then run all methods on the other."""
    scope = plan.scope
    names = datasets.set_names(scope)
    tried = plan.rows(choice_work, choice_jobs(plan, names))
    chosen = choose(tried)
    pairs = plan.rows(work, pair_jobs(plan, names, chosen))
    jobs = fleet_jobs(plan, names, chosen) + (
        network_jobs(plan, names) if find_spec("torch") else []
    )
    return [*choice_rows(tried, chosen), *summarise([*pairs, *plan.rows(work, jobs)])]


def group_of(name: str) -> str:
    """Return the group of a data set: the settings of tabular sets are chosen together."""
    return "tabular" if name in TABULAR else name


def candidates(exam: str, *, quick: bool) -> dict[str, list[Params]]:
    """Return the settings that are tried, by method."""
    banks = methods.FLEET_BANKS if exam == FLEET else methods.PAIR_BANKS
    if quick:
        return {BEST: banks[:: len(banks) // QUICK_CANDIDATES], LOF: RIVALS[LOF]} | {
            method: tried[1:2] for method, tried in RIVALS.items() if method != LOF
        }
    return {BEST: banks, **RIVALS}


def choice_jobs(plan: Plan, names: Sequence[str]) -> list[Job]:
    """One job for each seed of a half on which settings are chosen."""
    exams = [(name, exam) for name, exam in PAIR_EXAMS if name in names]
    exams += [(name, FLEET) for name in names if CHOOSE in halves_of(name)]
    found = []
    for name, exam in exams:
        tried = candidates(exam, quick=plan.scope.quick)
        digest = crc32(json.dumps(tried).encode())
        text = f"{len(tried[BEST])} settings of ours, {digest:08x}, {datasets.SIZES}"
        trials = range(1 if plan.scope.quick else CHOICE_TRIALS[exam])
        found += [Job(NAME, name, f"choose {exam}", trial, settings=text) for trial in trials]
    return found


def choice_work(job: Job, scope: Scope) -> Rows:
    """Try all settings on some fleets of the half on which they are chosen."""
    exam = job.method.removeprefix("choose ")
    rows: Rows = []
    with threadpool_limits(1):
        for label, fleet in _choice_fleets(job.dataset, exam, job.trial, scope):
            for method, tried in candidates(exam, quick=scope.quick).items():
                for params in tried:
                    row = measure(METHODS[method], fleet, job.trial, params)
                    head: Row = {"set": job.dataset, "exam": exam, "part": label}
                    head |= {"method": method, "setting": json.dumps(params)}
                    rows.append({**head, "auc": row["auc"], "bytes": row["bytes"]})
    return rows


def _choice_fleets(name: str, exam: str, trial: int, scope: Scope) -> Iterator[tuple[str, Fleet]]:
    if exam == FLEET:
        cells = SMALL_CHOICE_CELLS if name in TABULAR or scope.quick else CHOICE_CELLS
        data = load_half(name, CHOOSE, scope)
        for cell in cells[:: 2 if scope.quick else 1]:
            fleet = draw_fleet(data, cell, rng_for(scope.seed, name, CHOOSE, cell, trial))
            if fleet is not None:
                yield str(cell), fleet
        return
    fleets = list(pair_fleets(name, exam, CHOOSE, trial, scope))
    most = QUICK_PAIRS if scope.quick else CHOICE_PAIRS
    yield from fleets[trial :: -(-len(fleets) // most)]


def pair_fleets(
    name: str, exam: str, half: str, trial: int, scope: Scope
) -> Iterator[tuple[str, Fleet]]:
    """Yield the fleets of the paper's exam, by the names of the two patterns."""
    rng = rng_for(scope.seed, name, exam, half, trial)
    data = load_half(name, half, scope)
    data = data.subsample(datasets.MOST_PAIR_ROWS, int(rng.integers(2**31)))
    split = (split_by_person if exam == BY_PERSON else split_by_sample)(data, rng)
    pairs = list(combinations(range(len(data.patterns)), 2))
    if half == REPORT:
        most = QUICK_PAIRS if scope.quick else SEED_PAIRS
        pairs = pairs[trial % (len(pairs) // most) :: len(pairs) // most]
    for (a, b), fleet in zip(pairs, draw_pairs(data, split, pairs, rng), strict=True):
        yield f"{data.patterns[a]} / {data.patterns[b]}", fleet


def choose(tried: Iterable[Row]) -> dict[tuple[str, str], Chosen]:
    """Return the settings of each group and exam: of those within .002 of the best, the smallest.

    The mean AUC counts; smallest are those that send the fewest bytes.
    """
    means = _choice_means(tried)
    found: dict[tuple[str, str], Chosen] = defaultdict(dict)
    for group, exam, method in dict.fromkeys(key[:3] for key in means):
        here = {k[3]: v for k, v in means.items() if k[:3] == (group, exam, method)}
        best = max(auc for auc, _, _ in here.values())
        near = {text: sent for text, (auc, sent, _) in here.items() if auc >= best - WITHIN}
        found[group, exam][method] = json.loads(min(near, key=lambda text: near[text]))
    return dict(found)


def _choice_means(
    tried: Iterable[Row],
) -> dict[tuple[str, str, str, str], tuple[float, float, int]]:
    values: dict[tuple[str, str, str, str], list[tuple[float, float]]] = defaultdict(list)
    for row in tried:
        key = group_of(str(row["set"])), str(row["exam"]), str(row["method"]), str(row["setting"])
        values[key].append((float(row["auc"]), float(row["bytes"])))
    return {
        key: (float(np.mean([a for a, _ in v])), float(np.mean([b for _, b in v])), len(v))
        for key, v in values.items()
    }


def choice_rows(tried: Iterable[Row], chosen: dict[tuple[str, str], Chosen]) -> Rows:
    """Return a row for each setting that was tried: its mean, and whether it was chosen."""
    return [
        {
            "kind": CHOICE,
            "set": group,
            "exam": exam,
            "half": CHOOSE,
            "method": method,
            "setting": text,
            "auc": round(auc, 4),
            "bytes": round(sent),
            "fleets": count,
            "chosen": int(json.loads(text) == chosen[group, exam][method]),
        }
        for (group, exam, method, text), (auc, sent, count) in _choice_means(tried).items()
    ]


def pair_jobs(plan: Plan, names: Sequence[str], chosen: dict[tuple[str, str], Chosen]) -> list[Job]:
    """One job for each seed of an exam, on the half that is reported and on the full data."""
    return [
        Job(NAME, name, exam, trial, half, job_settings(chosen[name, exam]))
        for name, exam in PAIR_EXAMS
        if name in names
        for half, trials in ((REPORT, plan.merging), (FULL, plan.merging[:FULL_TRIALS]))
        for trial in trials
        if half == REPORT or not plan.scope.quick
    ]


def fleet_jobs(
    plan: Plan, names: Sequence[str], chosen: dict[tuple[str, str], Chosen]
) -> list[Job]:
    """One job for each seed of a cell; tabular sets of the other half are run as well, marked."""
    cells = FEW_CELLS if plan.scope.quick else CELLS
    return [
        Job(
            NAME, name, FLEET, trial, f"{half}, {cell}", job_settings(chosen[group_of(name), FLEET])
        )
        for name in names
        for half in (halves_of(name) if name in TABULAR else (REPORT,))
        for trial in plan.merging[: FLEET_TRIALS if half == REPORT else MARKED_TRIALS]
        for cell in cells
    ]


def job_settings(chosen: Chosen) -> str:
    """Return the settings of a job as text, which the job reads."""
    return json.dumps({"sizes": datasets.SIZES, "chosen": chosen})


def network_jobs(plan: Plan, names: Sequence[str]) -> list[Job]:
    """One job for each seed of the networks: MNIST's pairs, and some cells of three sets."""
    from edgemerge.comparison import networks  # noqa: PLC0415 (the rest runs without torch)

    cells = NETWORK_CELLS if not plan.scope.quick else FEW_CELLS[:1]
    jobs = [
        Job(NAME, name, f"{NETWORKS} {FLEET}", t, f"{REPORT}, {cell}", networks.settings(name))
        for name in NETWORK_SETS
        if name in names
        for cell in cells
        for t in plan.training
    ]
    if MNIST in names:
        exam, text = f"{NETWORKS} {BY_SAMPLE}", networks.settings(MNIST)
        jobs += [Job(NAME, MNIST, exam, trial, REPORT, text) for trial in plan.training]
    return jobs


def work(job: Job, scope: Scope) -> Rows:
    """Run all methods on the fleets of one seed."""
    exam = job.method.removeprefix(f"{NETWORKS} ")
    half, _, label = job.part.partition(", ")
    if exam == FLEET:
        cell = next(each for each in (*CELLS, *FEW_CELLS) if str(each) == label)
        rng = rng_for(scope.seed, job.dataset, half, job.trial)  # the same patterns in all cells
        fleet = draw_fleet(load_half(job.dataset, half, scope), cell, rng)
        fleets = [] if fleet is None else [("", fleet)]
    else:
        fleets, cell = list(pair_fleets(job.dataset, exam, half, job.trial, scope)), Cell(2)
    place: Row = {"set": job.dataset, "exam": exam, "half": half, "devices": cell.devices}
    place |= {"mix": cell.mix, "dirt": cell.dirt, "seed": job.trial}
    with threadpool_limits(1):
        return [
            {**place, "pair": pair, "method": method, **measure(run_it, fleet, job.trial, params)}
            for pair, fleet in fleets
            for method, run_it, params in _contestants(job)
        ]


def _contestants(job: Job) -> Iterator[tuple[str, Method, Params]]:
    if job.method.startswith(NETWORKS):
        from edgemerge.comparison import networks  # noqa: PLC0415 (as in `network_jobs`)
        from edgemerge.paper.backprop import use_one_thread  # noqa: PLC0415 (likewise)

        use_one_thread()
        yield from ((name, method, {}) for name, method in networks.NETWORK_METHODS.items())
        return
    chosen: Chosen = json.loads(job.settings)["chosen"]
    for name, method in METHODS.items():
        yield name, method, chosen.get(BEST if name == ALONE else name, {})


FIGURES = ("auc", "precision", "false_alarms", "detected", "bytes", "seconds")
PLACE = ("set", "exam", "half", "devices", "mix", "dirt")


def summarise(rows: Rows) -> Rows:
    """Return one row for each fleet, seed and method; pairs as means, and as a matrix if full."""
    fleets: Rows = [
        {"kind": FLEET, **{k: v for k, v in row.items() if k != "pair"}}
        for row in rows
        if row["exam"] == FLEET
    ]
    pairs = [row for row in rows if row["exam"] != FLEET]
    full = [row for row in pairs if row["half"] == FULL]
    return [
        *fleets,
        *_means(PAIRS, pairs, (*PLACE, "seed", "method")),
        *_means(MATRIX, full, (*PLACE, "pair", "method")),
    ]


def _means(kind: str, rows: Rows, keys: Sequence[str]) -> Rows:
    groups: dict[tuple[object, ...], Rows] = defaultdict(list)
    for row in rows:
        groups[tuple(row[key] for key in keys)].append(row)
    return [
        {"kind": kind, **{key: same[0][key] for key in keys}, "fleets": len(same)}
        | {name: round(float(np.mean([float(r[name]) for r in same])), 4) for name in FIGURES}
        for same in groups.values()
    ]


TARGETS = {(HAR, BY_SAMPLE): 0.965, (HAR, BY_PERSON): 0.92}
MARGIN = 0.005  # of AUC, that ours may be behind LOF on MNIST
SIGNIFICANT = 0.05
PLACES = {
    (HAR, BY_SAMPLE): "HAR, pairs by sample",
    (HAR, BY_PERSON): "HAR, pairs by person",
    (MNIST, BY_SAMPLE): "MNIST, pairs",
}
TITLES = {HAR: "HAR by person", MNIST: "MNIST"}
LARGE_SETS = (HAR, MNIST, DIGITS, MACHINES)  # which have enough rows for every kind of fleet


def select(rows: Rows, **wanted: object) -> Rows:
    """Return the rows that have all these values."""
    return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]


def by_seed(rows: Rows, method: str, figure: str = "auc") -> dict[int, float]:
    """Return the mean of a method's figure in each seed."""
    found: dict[int, list[float]] = defaultdict(list)
    for row in rows:
        if row["method"] == method:
            found[int(row["seed"])].append(float(row[figure]))
    return {seed: float(np.mean(values)) for seed, values in found.items()}


@dataclass(frozen=True)
class Comparison:
    """A method against ours, best, over the seeds that both have; `ahead` is ours minus it."""

    method: str
    found: Interval
    ahead: Interval
    p_value: float  # corrected for the number of methods


def compare(rows: Rows) -> list[Comparison]:
    """Compare ours, best, with every other method on the same fleets."""
    ours, found = by_seed(rows, BEST), []
    for method in dict.fromkeys(str(row["method"]) for row in rows):
        theirs = by_seed(rows, method)
        seeds = sorted(ours.keys() & theirs.keys())
        if method != BEST and seeds:
            pair = [ours[seed] for seed in seeds], [theirs[seed] for seed in seeds]
            apart = [a - b for a, b in zip(*pair, strict=True)]
            p_value = paired_p_value(*pair)
            found.append(Comparison(method, interval(pair[1]), interval(apart), p_value))
    corrected = holm([each.p_value for each in found])
    return [replace(each, p_value=p) for each, p in zip(found, corrected, strict=True)]


def against_lof(rows: Rows) -> NonInferiority | None:
    """Test whether ours, best, is not behind LOF on the reported pairs of MNIST."""
    here = select(rows, kind=PAIRS, set=MNIST, exam=BY_SAMPLE, half=REPORT)
    ours, theirs = by_seed(here, BEST), by_seed(here, LOF)
    seeds = sorted(ours.keys() & theirs.keys())
    return non_inferior([ours[s] for s in seeds], [theirs[s] for s in seeds], MARGIN)


def claims(rows: Rows) -> list[Claim]:
    """Claim AUC on people's motion, and that ours is not behind LOF on digits."""
    found = []
    for (name, exam), target in TARGETS.items():
        text = f"{PLACES[name, exam]}: ours, best, reaches {target}"
        here = select(rows, kind=PAIRS, set=name, exam=exam, half=REPORT, method=BEST)
        found.append(_reaches(text, here, target) if here else Claim.not_measured(text))
    text = f"MNIST, pairs: ours, best, is not behind LOF (margin {MARGIN})"
    tested = against_lof(rows)
    if tested is None:
        return [*found, Claim.not_measured(text)]
    sent = np.mean(list(by_seed(select(rows, kind=PAIRS, set=MNIST), BEST, "bytes").values()))
    numbers = (
        f"{tested.difference:+.4f}, 95 % bound {tested.lower:+.4f}, p = {tested.p_value:.2g}, "
        f"{tested.count} seeds; {_size(float(sent))} a device"
    )
    return [*found, Claim(text, tested.holds, numbers)]


def _reaches(text: str, here: Rows, target: float) -> Claim:
    found = interval(list(by_seed(here, BEST).values()))
    sent = float(np.mean([float(row["bytes"]) for row in here]))
    missed = "" if found.mean >= target else f"; missed by {target - found.mean:.3f}"
    numbers = f"{found.mean:.3f} ± {found.half:.3f}, {found.count} seeds; {_size(sent)} a device"
    return Claim(text, found.mean >= target, numbers + missed)


def _size(sent: float) -> str:
    """Return bytes as text.

    >>> _size(450.0), _size(51_104.0), _size(1_725_120.0)
    ('0.5 kB', '51 kB', '1,725 kB')
    """
    return f"{sent / 1000:,.0f} kB" if sent >= 1000.0 else f"{sent / 1000:.1f} kB"


def _auc(found: Interval) -> str:
    return f"{found.mean:.3f} ± {found.half:.3f}"


def _mean(rows: Rows, figure: str) -> float:
    return float(np.mean([float(row[figure]) for row in rows]))


def _p_value(p_value: float) -> str:
    return "< .001" if p_value < 0.001 else f"{p_value:.3f}".removeprefix("0")


COST_HEAD = ["average precision", "false alarms %", "found %", "sent by a device", "processor s"]


def _costs(rows: Rows) -> list[str]:
    shares = [f"{100.0 * _mean(rows, name):.1f}" for name in ("false_alarms", "detected")]
    sent = _size(_mean(rows, "bytes"))
    return [f"{_mean(rows, 'precision'):.3f}", *shares, sent, f"{_mean(rows, 'seconds'):.2f}"]


def exam_table(rows: Rows, name: str, exam: str) -> Table | None:
    """Return the methods on the reported pairs of an exam, the best in bold."""
    here = select(rows, kind=PAIRS, set=name, exam=exam, half=REPORT)
    full = select(rows, kind=PAIRS, set=name, exam=exam, half=FULL)
    if not here:
        return None
    against = {each.method: each for each in compare(here)}
    lines = []
    for method in _ordered(here):
        mine, seeds = select(here, method=method), by_seed(here, method)
        whole = select(full, method=method)
        apart = against.get(method)
        lines.append(
            [method, _auc(interval(list(seeds.values()))), str(len(seeds))]
            + [f"{_mean(whole, 'auc'):.3f}" if whole else ""]
            + ([f"{apart.ahead.mean:+.3f}", _p_value(apart.p_value)] if apart else ["", ""])
            + _costs(mine)
        )
    head = ["method", "AUC", "seeds", "AUC, full data", "ours, best, ahead", "p"]
    return _table(PLACES[name, exam], [*head, *COST_HEAD], lines)


def _ordered(rows: Rows) -> list[str]:
    known = {str(row["method"]) for row in rows}
    return [*(m for m in METHODS if m in known), *sorted(known - METHODS.keys())]


def _table(title: str, head: list[str], lines: list[list[str]]) -> Table:
    bold = {(i, 0) for i, line in enumerate(lines) if line[0] == BEST}
    return Table(title, head, lines, [False, *(True for _ in head[1:])], bold)


def fleet_rows(rows: Rows, **wanted: object) -> Rows:
    """Return the rows of fleets of the reported half, without networks, which have few cells."""
    found = select(rows, kind=FLEET, half=REPORT, **wanted)
    return [row for row in found if row["method"] in METHODS]


def sets_table(rows: Rows) -> Table | None:
    """Return the mean AUC of each method on each data set, over all kinds of fleets."""
    here = fleet_rows(rows)
    names = list(dict.fromkeys(str(row["set"]) for row in here))
    lines = []
    for method in _ordered(here):
        cells = [
            _auc(interval(list(by_seed(select(here, set=name), method).values()))) for name in names
        ]
        lines.append([method, *cells])
    head = ["method", *(TITLES.get(name, name) for name in names)]
    return _table("AUC by data set", head, lines) if lines else None


def cells_table(rows: Rows) -> Table | None:
    """Return the mean AUC of each method for each kind of fleet, over the large sets."""
    here = [row for row in fleet_rows(rows) if row["set"] in LARGE_SETS]
    cells = sorted({(float(r["dirt"]), float(r["mix"]), int(r["devices"])) for r in here})
    lines = []
    for method in _ordered(here):
        line = [method]
        for dirt, mix, devices in cells:
            found = by_seed(select(here, dirt=dirt, mix=mix, devices=devices), method)
            line.append(_auc(interval(list(found.values()))))
        lines.append([*line, *_costs(select(here, method=method))])
    head = ["method", *(_cell_name(*cell) for cell in cells), *COST_HEAD]
    return _table("AUC by kind of fleet", head, lines) if lines else None


MIXES = {0.0: "one pattern each", 0.5: "half mixed", 1.0: "IID"}


def _cell_name(dirt: float, mix: float, devices: int) -> str:
    return f"{devices} devices, {MIXES[mix]}{', dirty' if dirt else ''}"


def places(rows: Rows) -> Iterator[tuple[str, Rows]]:
    """Yield where methods are compared: exams, and fleets of each set, clean and dirty."""
    for (name, exam), title in PLACES.items():
        yield title, select(rows, kind=PAIRS, set=name, exam=exam, half=REPORT)
    here = select(rows, kind=FLEET, half=REPORT)
    for name in dict.fromkeys(str(row["set"]) for row in here):
        mine = select(here, set=name)
        title = f"{TITLES.get(name, name)}, fleets"
        yield title, [row for row in mine if not row["dirt"] and row["method"] in METHODS]
        yield f"{title}, dirty", [row for row in mine if row["dirt"]]


def losses_table(rows: Rows) -> Table:
    """Return where another method is ahead of ours, best; those that are sure first."""
    found = [
        (title, each)
        for title, here in places(rows)
        for each in compare(here)
        if each.ahead.mean < 0.0
    ]
    found.sort(key=lambda item: (item[1].p_value >= SIGNIFICANT, item[1].ahead.mean))
    lines = [
        [
            *(title, each.method, f"{each.found.mean + each.ahead.mean:.3f}"),
            *(f"{each.found.mean:.3f}", f"{-each.ahead.mean:.3f}", _p_value(each.p_value)),
        ]
        for title, each in found
    ]
    head = ["where", "method", "ours, best", "its AUC", "ahead of ours by", "p"]
    return Table("Where we lose", head, lines, [False, False, True, True, True, True])


def wins(rows: Rows, methods: Sequence[str] = ()) -> tuple[int, int, int]:
    """Count comparisons: ours, best, surely ahead, surely behind, and all of them.

    Args:
        rows: The rows of a run.
        methods: Compare with these alone; with all if there are none.
    """
    found = [each for _, here in places(rows) for each in compare(here)]
    found = [each for each in found if not methods or each.method in methods]
    sure = [each for each in found if each.p_value < SIGNIFICANT]
    ahead = sum(each.ahead.mean > 0.0 for each in sure)
    return ahead, len(sure) - ahead, len(found)


def network_table(rows: Rows) -> Table | None:
    """Return networks against ours, best, over the seeds that both have."""
    lines = []
    for title, here in _network_places(rows):
        for each in compare(here):
            if each.method in METHODS:
                continue
            mine = select(here, method=each.method)
            lines.append(
                [
                    *(title, each.method, _auc(each.found)),
                    *(f"{each.found.mean + each.ahead.mean:.3f}", f"{each.ahead.mean:+.3f}"),
                    *(_p_value(each.p_value), _size(_mean(mine, "bytes"))),
                    f"{_mean(mine, 'seconds'):.2f}",
                ]
            )
    head = ["where", "method", "AUC", "ours, best", "ours ahead", "p", "sent by a device"]
    numbers = [False, False, *(True for _ in range(6))]
    return Table("Networks", [*head, "processor s"], lines, numbers) if lines else None


def _network_places(rows: Rows) -> Iterator[tuple[str, Rows]]:
    yield PLACES[MNIST, BY_SAMPLE], select(rows, kind=PAIRS, set=MNIST, half=REPORT)
    for name in NETWORK_SETS:
        for cell in NETWORK_CELLS:
            here = select(rows, kind=FLEET, set=name, half=REPORT, devices=cell.devices)
            here = select(here, mix=cell.mix, dirt=cell.dirt)
            yield f"{TITLES.get(name, name)}, {_cell_name(0.0, cell.mix, cell.devices)}", here


def choice_table(rows: Rows) -> Table:
    """Return the settings that were chosen, and on how many fleets of the other half."""
    chosen = select(rows, kind=CHOICE, chosen=1)
    lines = [
        [
            PLACES.get((str(r["set"]), str(r["exam"])), f"{r['set']}, {r['exam']}"),
            str(r["method"]),
            ", ".join(f"{k} {v}" for k, v in json.loads(str(r["setting"])).items()),
            *(f"{float(r['auc']):.3f}", str(r["fleets"])),
        ]
        for r in chosen
    ]
    head = ["where", "method", "setting", "AUC there", "fleets"]
    return Table("Settings", head, lines, [False, False, False, True, True])


def plot(rows: Rows) -> dict[str, Figure]:
    """Draw AUC against the number of devices, and the full matrices of pairs."""
    found = {"devices": _devices_figure(rows), "pairs": _matrix_figure(rows)}
    return {name: figure for name, figure in found.items() if figure is not None}


def _devices_figure(rows: Rows) -> Figure | None:
    here = select(fleet_rows(rows), mix=0.0, dirt=0.0)
    names = [name for name in LARGE_SETS if select(here, set=name)]
    if not names:
        return None
    figure = new_figure(3.0 * max(len(names), 2), 3.8)
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False).flat, names, strict=True):
        _draw_devices(axes, select(here, set=name))
        set_titles(axes, TITLES.get(name, name), x="devices, one pattern each", y="AUC")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return figure


def _matrix_figure(rows: Rows) -> Figure | None:
    """Draw ours, best, above the diagonal and LOF below it, for every pair of the full data."""
    full = select(rows, kind=MATRIX)
    exams = [place for place in PLACES if select(full, set=place[0], exam=place[1])]
    if not exams:
        return None
    figure = new_figure(4.2 * max(len(exams), 2), 4.4)
    every = list(figure.subplots(1, len(exams), squeeze=False).flat)
    for axes, place in zip(every, exams, strict=True):
        here = select(full, set=place[0], exam=place[1])
        pairs = [str(row["pair"]).split(" / ") for row in here]
        names = list(dict.fromkeys(name for pair in pairs for name in pair))
        values = np.full((len(names), len(names)), np.nan)
        for row, pair in zip(here, pairs, strict=True):
            a, b = sorted(names.index(name) for name in pair)
            if row["method"] in (BEST, LOF):
                values[(a, b) if row["method"] == BEST else (b, a)] = float(row["auc"])
        axes.imshow(values, cmap="YlGnBu_r", vmin=0.7, vmax=1.0)
        for (a, b), value in np.ndenumerate(values):
            if np.isfinite(value):
                text, colour = f"{value:.2f}".removeprefix("0"), "white" if value < DARK else INK
                axes.text(b, a, text, ha="center", va="center", fontsize=6, color=colour)
        short = [SHORT_NAMES.get(name, name) for name in names]
        axes.set_xticks(range(len(short)), short, fontsize=7)
        axes.set_yticks(range(len(short)), short, fontsize=7)
        hide_frame(axes)
        set_titles(axes, f"{PLACES[place]}, full data", x="above: ours, best; below: LOF")
    figure.colorbar(every[0].images[0], ax=every, shrink=0.6, pad=0.01, extend="min", label="AUC")
    return figure


MIN_BAR_SEEDS = 5  # below, an interval would be wider than the figure
DARK = 0.82  # AUC below which text on its cell is white


def _draw_devices(axes: Axes, rows: Rows) -> None:
    points = sorted({int(row["devices"]) for row in rows})
    for method in _ordered(rows):
        if method not in LINES:
            continue
        found = [interval(list(by_seed(select(rows, devices=k), method).values())) for k in points]
        axes.errorbar(
            points,
            [each.mean for each in found],
            [each.half if each.count >= MIN_BAR_SEEDS else 0.0 for each in found],
            color=LINES[method],
            linestyle="--" if method in POOLED else "-",
            linewidth=2.2 if method == BEST else 1.2,
            label=method,
        )
    axes.set_ylim(top=1.01)
    axes.set_xscale("log")
    axes.set_xticks(points, [str(k) for k in points])
    axes.set_xticks([], minor=True)
    hide_frame(axes)


LINES = {
    ALONE: GREEN,
    methods.PAPER: RED,
    methods.SAME_SIZE: SKY,
    BEST: BLUE,
    methods.GAUSSIAN: ORANGE,
    methods.PCA: PINK,
    methods.KNN: BLACK,
    LOF: GREY,
}


def table(rows: Rows) -> Rows:
    """Return the means of the exams, which the report shows as a table."""
    return [
        {"where": title, "method": method, "auc": round(found.mean, 4), "ahead": round(ahead, 4)}
        for title, here in places(rows)
        for method, found, ahead in (
            (each.method, each.found, each.ahead.mean) for each in compare(here)
        )
    ]


def page_tables(saved: SavedResult) -> dict[str, str]:
    """Return what the page shows of the rows, in Markdown, by the names of its places there."""
    rows, record = saved.rows, saved.record
    made: dict[str, Table | None] = {
        **{title: exam_table(rows, name, exam) for (name, exam), title in PLACES.items()},
        "fleets by data set": sets_table(rows),
        "fleets by kind": cells_table(rows),
        "networks": network_table(rows),
        "where we lose": losses_table(rows),
        "settings": choice_table(rows),
    }
    found = {name: markdown_table(each) for name, each in made.items() if each and each.lines}
    how = (
        f"{len(rows):,} rows in [{NAME}.csv](results/one-shot/{NAME}.csv), made on "
        f"{record.date[:10]} with edgemerge {record.version}, `{rerun_command(record)}`."
    )
    summary = "\n\n".join(filter(None, [_claims_text(rows), _verdict(rows), _unfinished(saved)]))
    return {"claims": summary, **found, "rows": how}


def _unfinished(saved: SavedResult) -> str:
    """Return how many seeds there are, if the run was stopped before it had all of them."""
    rows, record = saved.rows, saved.record
    networks = [row for row in rows if row["kind"] != CHOICE and row["method"] not in METHODS]
    kinds = {
        "pairs": (select(rows, kind=PAIRS, half=REPORT), record.trials),
        "fleets": (fleet_rows(rows), record.trials),
        "networks": (networks, record.baseline_trials),
    }
    found = {
        name: (len({row["seed"] for row in here}), all_) for name, (here, all_) in kinds.items()
    }
    if all(count >= planned for count, planned in found.values()):
        return ""
    counts = ", ".join(f"{name} {count} of {planned}" for name, (count, planned) in found.items())
    return (
        f"**This run is not finished.** Seeds so far: {counts}.\n"
        "With fewer than six seeds no paired test can reach p below .05."
    )


def _claims_text(rows: Rows) -> str:
    return "\n".join(
        f"- {MARKS[claim.holds]} {VERDICTS[claim.holds]}: {claim.text} ({claim.found})"
        for claim in claims(rows)
    )


def _verdict(rows: Rows) -> str:
    ahead, behind, count = wins(rows)
    return (
        f"Of {count} comparisons with another method, *ours, best* is ahead in {ahead} and behind "
        f"in {behind} with p below {SIGNIFICANT}; in the others the seeds do not decide.\n"
        + "\n".join(
            f"Of the {count} with {method}, which has all rows in one place, it is ahead in "
            f"{ahead} and behind in {behind}."
            for method in (KNN, LOF)
            for ahead, behind, count in [wins(rows, [method])]
        )
    )


PLACE_ON_PAGE = "<!-- {name} -->\n\n{text}\n\n<!-- end -->"


def page(saved: SavedResult, text: str = "") -> str:
    """Fill the tables into the text of a page; without a text, return the tables alone.

    A place on the page is between `<!-- name -->` and `<!-- end -->`; one without rows is emptied.
    """
    made = page_tables(saved)
    if not text:
        places = (PLACE_ON_PAGE.format(name=name, text=each) for name, each in made.items())
        return "\n\n".join([f"# {TITLE}", *places]) + "\n"

    def fill(place: re.Match[str]) -> str:
        return PLACE_ON_PAGE.format(name=place[1], text=made.get(place[1], "Not measured."))

    return re.sub(r"<!-- (.+?) -->\n.*?<!-- end -->", fill, text, flags=re.DOTALL)
