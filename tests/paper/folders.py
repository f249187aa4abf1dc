"""A folder of results to report on: a made-up one, and ROC-AUC that nobody measured."""

from pathlib import Path
from types import SimpleNamespace

from edgemerge.paper.plan import Claim
from edgemerge.paper.running import result_files
from edgemerge.paper.running.result_files import Record
from tests.paper import made_up

MACHINE = {
    "processor": "Abacus 3",
    "cores": 2,
    "memory_gb": 8,
    "system": "Linux x",
    "python": "3.11",
}
RECORD = Record(
    result="made-up",
    date="2026-01-02T03:04:05Z",
    version="0.1.0",
    seed=7,
    quick=False,
    trials=50,
    baseline_trials=3,
    settings={"har BP-NN3": ["Network(8)"], "har many": list("abcde"), "none": []},
    jobs=6,
    jobs_before=2,
    seconds=61.0,
    job_seconds=100.0,
    machine=MACHINE,
    packages={"edgemerge": "0.1.0", "numpy": "2.0"},
    data={"har": "ab" * 32},
)
ROWS = [
    {"method": "after", "digit": str(i), "trial": i, "value": i / 7, "note": "a|b"}
    for i in range(6)
]
MEANS = {("har", "before"): 0.735, ("har", "after"): 0.892, ("har", "ours"): 0.957}
MEANS |= {("mnist", "before"): 0.72, ("mnist", "after"): 0.868}
AUC = [
    {
        "dataset": d,
        "method": m,
        "device_a": a,
        "device_b": b,
        "trials": 50,
        "auc": auc,
        "spread": 0.004,
    }
    for (d, m), auc in MEANS.items()
    for a, b in [("0", "1"), ("all", "others")]
]


def result(name: str, **parts: object) -> SimpleNamespace:
    """Make up a result without figures."""
    usual = {"NAME": name, "TITLE": f"Title of {name}", "DATA": ()}
    nothing = {"run": lambda _: [], "plot": lambda _: {}, "claims": lambda _: []}
    return SimpleNamespace(**{**usual, **nothing, **parts})


AUC_RESULT = result("auc", claims=lambda _: [Claim("ours is best", True, "0.957")])
ABSENT = result("cost")
DRIVING = result("loss-driving", DATA=("driving",))
RESULTS = [DRIVING, made_up, AUC_RESULT, ABSENT]


def fill(folder: Path) -> Path:
    """Save two of the four results."""
    result_files.save_result(folder, RECORD, ROWS)
    result_files.save_result(
        folder, Record("auc", "2026-01-02", "0.1.0", 8, True, 3, 0, "no torch"), AUC
    )
    return folder
