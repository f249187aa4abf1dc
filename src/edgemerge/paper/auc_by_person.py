"""ROC-AUC of every pair on HAR, with the people of the evaluation sets left out of the training.

The protocol is that of `auc` but for the split, so the difference between the two is what
overlapping windows of the same person add.
"""

from __future__ import annotations

from matplotlib.figure import Figure

from edgemerge.paper import auc
from edgemerge.paper.dataset import Trial, split_by_person
from edgemerge.paper.hyperparameters import BANKS
from edgemerge.paper.plan import Claim, Job, Plan, Rows, Scope

NAME = "auc-by-person"
TITLE = "ROC-AUC of every pair of patterns, on people not seen in training"
DATASET = "har"
DATA = (DATASET,)
NOTE = (
    "As in auc, but split by person: a fifth of the 30 people are left out of the training of "
    "every pattern, and all evaluation samples are theirs, normal ones and anomalies. "
    "HAR's windows overlap by half, so the split by sample, which the paper uses, puts halves of "
    "test windows into the training set; this one does not. "
    "Settings are those of auc, chosen on the split by sample. Back-propagation was not run."
)
CAPTION = "split by person, ROC-AUC of each pair, and the mean off the diagonal"

summarise, table = auc.summarise, auc.table


def run(plan: Plan) -> Rows:
    """Run all trials of the methods that learn by adding up."""
    jobs = [
        Job(NAME, DATASET, method, trial, settings=settings(method))
        for method in (auc.OS_ELM, *BANKS)
        for trial in plan.merging
    ]
    return summarise(plan.rows(work, jobs))


def settings(method: str) -> str:
    """Return what the rows of a method depend on."""
    return f"{auc.merge_settings(DATASET, method)}, by person"


def work(job: Job, scope: Scope) -> Rows:
    """Run one trial of a method."""
    return auc.merging_rows(Trial(job, scope, split_by_person))


def plot(rows: Rows) -> dict[str, Figure]:
    """Draw one map for each method."""
    return auc.plot_heatmaps(rows, CAPTION)


def claims(rows: Rows) -> list[Claim]:
    """Return the claims of `auc` that must also hold for people not seen in training."""
    means = auc.means(rows, DATASET)
    steps = {
        ("before", "after"): "merging raises the mean off the diagonal",
        ("after", "bank"): "patterns kept apart at the paper's N beat one sum",
        ("after", "ours"): "ours beats one sum",
    }
    return [
        Claim(
            f"har by person: {text}",
            means[better] > means[worse],
            f"{means[worse]:.3f} → {means[better]:.3f}",
        )
        for (worse, better), text in steps.items()
        if {worse, better} <= means.keys()
    ]
