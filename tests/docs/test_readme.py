"""Every number in README.md is that of a committed row, or of a test that is named here."""

import csv
import json
import re
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from edgemerge.core.patterns import ROWS_PER_HIDDEN

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
README = (ROOT / "README.md").read_text(encoding="utf-8")
TESTED_ELSEWHERE = (  # by tests/oracle/test_real_data.py, on the real data
    "10 299 real samples learnt in 37 parts",
    "scores that average 0.9 to 1.3",
)
NO_RESULT = (  # numbers that measure nothing
    "Python 3.11",
    "for 561 inputs and 128 hidden values",
    "1 is perfect, 0.5 is a guess",
    "A score of 1 is usual; 4 means four times the usual squared error.",
    "Apache-2.0",
    "measured on x86-64 only",
    "measured on x86-64.",
    "(IEEE Access 2021)",
)


def rows(name):
    with (RESULTS / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def mean_auc(dataset, method, file="paper/auc.csv"):
    """The mean over all pairs of two different patterns, and over all trials there are."""
    asked = (dataset, method, "all", "others")
    columns = ("dataset", "method", "device_a", "device_b")
    (found,) = (r for r in rows(file) if tuple(r[c] for c in columns) == asked)
    return float(found["auc"]), int(found["trials"])


def tasks_ahead(one, other):
    """The tasks in which the mean over seeds of one detector is above that of another."""
    seeds = defaultdict(lambda: defaultdict(list))
    for row in rows("defaults.csv"):
        seeds[row["method"]][row["task"]].append(float(row["auc"]))
    return [t for t, mine in seeds[one].items() if fmean(mine) > fmean(seeds[other][t])]


CHOSEN_ON = {"wine", "digits", "Bananas", "HAR", "MNIST"}  # those of decision 0032


def default_auc(without=frozenset()):
    """Return the mean of each method over tasks, and how many tasks and data sets there are."""
    by_task = defaultdict(lambda: defaultdict(list))
    found = [row for row in rows("defaults.csv") if row["source"] not in without]
    for row in found:
        by_task[row["method"]][row["task"]].append(float(row["auc"]))
    means = {method: fmean(map(fmean, tasks.values())) for method, tasks in by_task.items()}
    return means, len(by_task["Bank"]), len({row["source"] for row in found})


def of_defaults():
    """Say how accurate the detectors are without settings."""
    auc, tasks, sources = default_auc()
    yield f"`OSELMDetector` {auc['OSELMDetector']:.3f}, `Bank` {auc['Bank']:.3f}"
    yield f"5-NN {auc['5-NN']:.3f}, LocalOutlierFactor {auc['LocalOutlierFactor']:.3f}"
    yield f"IsolationForest {auc['IsolationForest']:.3f}"
    yield f"OneClassSVM {auc['OneClassSVM']:.3f}"
    yield f"HalfSpaceTrees {auc['HalfSpaceTrees (River)']:.3f}"
    yield f"{tasks} tasks from {sources} public data sets"
    lost = [len(tasks_ahead(other, "Bank")) for other in ("5-NN", "LocalOutlierFactor")]
    keep = "5-NN and LocalOutlierFactor, which keep every row"
    yield f"{keep}, are ahead of `Bank` in {lost[0]} and {lost[1]} tasks"
    fresh, others, _ = default_auc(without=CHOSEN_ON)
    yield f"{tasks - others} tasks are from the sets on which our defaults were chosen"
    yield f"the other {others} tasks"
    yield f"`OSELMDetector` {fresh['OSELMDetector']:.3f}, `Bank` {fresh['Bank']:.3f}"
    yield f"IsolationForest {fresh['IsolationForest']:.3f}, 5-NN {fresh['5-NN']:.3f}"
    yield f"OneClassSVM {fresh['OneClassSVM']:.3f}"
    yield f"LocalOutlierFactor {fresh['LocalOutlierFactor']:.3f}"


def of_the_paper():
    """Say what the paper's evaluation found, in accuracy and in bytes."""
    ours = ("before", "after", "ours")
    har, mnist = ([mean_auc(d, method)[0] for method in ours] for d in ("har", "mnist"))
    yield f"HAR: {har[0]:.3f} before merging, {har[1]:.3f} after, {har[2]:.3f} with our best"
    yield f"MNIST: {mnist[0]:.3f}, {mnist[1]:.3f}, {mnist[2]:.3f}"
    people = [mean_auc("har", method, "paper/auc-by-person.csv") for method in ours]
    means = [mean for mean, _trials in people]
    yield f"{means[0]:.3f} before merging, {means[1]:.3f} after, {means[2]:.3f} with our best"
    yield f"{people[0][1]} trials; the row above splits HAR by sample"
    networks = ("BP-NN3", "BP-NN5", "BP-NN3-FL")
    best = [max(mean_auc(d, method) for method in networks) for d in ("har", "mnist")]
    yield f"trained by back-propagation {best[0][0]:.3f} and {best[1][0]:.3f}"
    yield f"{mean_auc('har', 'ours')[1]} trials, the networks {best[0][1]}"
    share = {
        row["dataset"]: float(row["of_fl"])
        for row in rows("paper/bytes.csv")
        if (row["method"], row["form"]) == ("ours", "exact")
    }
    rounds = 50
    yield (
        f"1/{1 / share['har']:.0f} (HAR) and 1/{1 / share['mnist']:.0f} (MNIST) "
        f"of federated averaging over {rounds} rounds"
    )
    yield f"{rounds * share['har']:.1f} and {rounds * share['mnist']:.1f} times the bytes"
    yield "float32 networks"
    (driving,) = (r["found"] for r in rows("paper/claims.csv") if r["result"] == "loss-driving")
    yield driving.partition(";")[0]


def of_memory():
    """Say how much memory a process, a detector and a bank take."""
    (memory,) = (r for r in rows("speed-bars.csv") if r["what"].startswith("MB of a detector"))
    yield f"a detector alone takes {float(memory['measured']):.1f} MB"
    assert (memory["inputs"], memory["hidden"]) == ("561", "128")
    (process,) = (r for r in rows("gateway.csv") if r["devices"] == "1")
    yield f"took {process['memory_mb']} MB of memory as a process"
    yield f"its last {ROWS_PER_HIDDEN} rows for each hidden value"


def of_other_halves():
    """Say what settings reach that were chosen on other halves; the page's numbers are tested."""
    page = (ROOT / "docs" / "one-shot.md").read_text(encoding="utf-8")
    (sample,) = re.findall(r"pairs by sample.*?\(([\d.]+) ±", page)
    (person,) = re.findall(r"pairs by person.*?\(([\d.]+) ±", page)
    yield f"HAR: {sample}, on people that were not seen {person}"
    (behind,) = re.findall(r"not behind LOF.*?\(-([\d.]+), 95", page)
    _, _, mnist = page.partition("<!-- MNIST, pairs -->")
    ((best, sent),) = re.findall(r"\| \*\*ours, best\*\* \| ([\d.]+) ± .* \| ([\d,]+) kB", mnist)[
        :1
    ]
    ((lof, all_rows),) = re.findall(r"\| LOF \| ([\d.]+) ± .* \| ([\d,]+) kB", mnist)[:1]
    yield f"MNIST: {best}, which is {float(behind):.3f} behind LocalOutlierFactor"
    assert float(lof) > float(best)
    sent, all_rows = (float(kb.replace(",", "")) / 1e3 for kb in (sent, all_rows))
    yield f"a device sends {sent:.1f} MB of sums, more than its rows ({all_rows:.1f} MB)"
    yield "our aims were 0.92 on such people and 0.005 behind"
    yield "30 seeds"


def of_the_demo():
    """Say how many alarms the demo's pumps raise, and what they send."""
    demo = json.loads((RESULTS / "demo.json").read_text(encoding="utf-8"))
    alone = fmean(r["scores"]["peers"]["alarms"] for r in demo["rows"] if not r["merged"])
    yield f"Before merging, {alone:.0%}".replace("%", " %")
    for row in demo["rows"]:
        if row["merged"]:
            found = {kind: scores["alarms"] for kind, scores in row["scores"].items()}
            assert found.pop("own") == found.pop("peers") == 0.0, "none does"
            assert set(found.values()) == {1.0}, "every faulty sample still raises one"
    sums, samples = demo["bytes_sums"], demo["bytes_samples"]
    yield f"{sums / 1e3:.0f} kB of sums instead of {samples / 1e3:.0f} kB of samples"


def test_the_page_of_results_has_the_means_without_the_sets_that_were_chosen_on():
    auc, tasks, _ = default_auc(without=CHOSEN_ON)
    named = ("OSELMDetector", "Bank", "IsolationForest", "5-NN", "OneClassSVM")
    means = [f"{auc[name]:.3f}" for name in (*named, "LocalOutlierFactor")]
    page = (RESULTS.parent / "results.md").read_text(encoding="utf-8")
    assert (
        f"the other {tasks} tasks, the means are `OSELMDetector` {means[0]}, `Bank` {means[1]}, "
        f"IsolationForest {means[2]}, 5-NN {means[3]}, OneClassSVM {means[4]} and "
        f"LocalOutlierFactor {means[5]}."
    ) in page


SENTENCES = (of_defaults, of_the_paper, of_memory, of_other_halves, of_the_demo)


def test_every_number_is_that_of_a_row():
    text = re.sub(r"```.*?```|\]\([^)]*\)", " ", README, flags=re.DOTALL)
    for words in (*(words for say in SENTENCES for words in say()), *TESTED_ELSEWHERE, *NO_RESULT):
        assert words in text, f"README.md does not say {words!r}"
        text = text.replace(words, " ")
    assert re.findall(r"\d[\d.,/ ]*", text) == [], "a number that no row stands behind"
