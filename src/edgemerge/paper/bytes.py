"""Bytes on the wire: one exchange of a pair in each form, against federated averaging."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from edgemerge import Contribution, decode, encode
from edgemerge.paper.dataset import Trial
from edgemerge.paper.hyperparameters import (
    FEDERATED,
    FORMS,
    NETWORKS,
    ROUNDS,
    Device,
    adopt_all,
    anomaly_scores,
    device_factories,
    device_settings,
)
from edgemerge.paper.plan import Claim, Job, Plan, Row, Rows, Scope
from edgemerge.paper.plotting import (
    COLOURS,
    INK,
    LABELS,
    ON_WHITE,
    draw_points,
    new_figure,
    set_titles,
)

NAME = "bytes"
TITLE = "Bytes on the wire for one pair"
DATA = ("har",)
NOTE = (
    "Lengths of messages that were really encoded, headers included, by devices that learnt 80 % "
    "of one pattern each; a bank sends a contribution for each pattern that it found, so bytes are "
    "means over devices. BP-NN3-FL sends its parameters as float32, up and down, in each of "
    f"{ROUNDS} rounds. AUC is the off-diagonal mean of one trial, after decoding that form "
    "(in a quick run, of each pattern with its next). Were BP-NN3-FL to send float16, its bytes "
    "would be half of what is shown."
)

DATASETS = ("har", "mnist", "driving")
METHODS = ("after", "bank", "ours")
MESSAGES_PER_PAIR = 4  # two devices, up and down
TARGET_FACTOR = 100  # times, that ours is to stay below BP-NN3-FL's bytes
MAX_AUC_LOSS = 0.005  # of AUC, that a narrower form may cost


def run(plan: Plan) -> Rows:
    """Measure the exchange of each data set that is there."""
    names = [name for name in DATASETS if name in DATA or plan.scope.has(name)]
    words = [f"{device_settings(name)}, {NETWORKS.get(name)}, {FORMS}" for name in names]
    settings = zip(names, words, strict=True)
    return plan.rows(work, [Job(NAME, name, "all", 0, settings=used) for name, used in settings])


def work(job: Job, scope: Scope) -> Rows:
    """Let a device learn each pattern, encode what it would send, and let the others decode it."""
    trial = Trial(job, scope)
    federated, found = _federated(trial.data.name, trial.data.n_inputs), []
    for method, make in device_factories(trial).items():
        devices = [make() for _ in trial.data.patterns]
        for pattern, device in enumerate(devices):
            device.learn(trial.learnt(pattern))
        sent = [device.share(f"device-{i}", revision=1) for i, device in enumerate(devices)]
        for form in FORMS:
            encoded = [[encode(one, form) for one in each] for each in sent]
            up = float(np.mean([sum(map(len, each)) for each in encoded]))
            received = [[decode(data, Contribution) for data in each] for each in encoded]
            row = _row(trial.data.name, method, form, up, federated)
            auc = _auc(trial, devices, received, quick=scope.quick)
            found.append({**row, "contributions": float(np.mean([*map(len, sent)])), "auc": auc})
    if federated:
        found.append(_row(trial.data.name, FEDERATED, "float32", float(federated), federated))
    return found


def _federated(dataset: str, n_inputs: int) -> int:
    network = NETWORKS.get(dataset, {}).get("BP-NN3")  # driving has none in the paper
    return 4 * network.parameters(n_inputs) * ROUNDS if network else 0


def _row(dataset: str, method: str, form: str, up: float, federated: int) -> Row:
    names: Row = {"dataset": dataset, "method": method, "form": form}
    of_fl = {"of_fl": up / federated} if federated else {}
    return {**names, "up": up, "down": up, "pair": MESSAGES_PER_PAIR * up, **of_fl}


def _auc(
    trial: Trial,
    devices: Sequence[Device],
    received: Sequence[Sequence[Contribution]],
    *,
    quick: bool,
) -> float:
    found = []
    for a, b in trial.pairs():
        near = b == (a + 1) % len(devices)
        if a != b and (near or not quick):  # a quick run takes each pattern and its next
            adopt_all(devices[a], received[b])
            scores = anomaly_scores(devices[a], trial.data.X[trial.eval_set(a, b).rows])
            found.append(float(trial.row("", (a, b), scores)["auc"]))
    return float(np.mean(found))


def plot(rows: Rows) -> dict[str, Figure]:
    """Draw a panel for each data set."""
    names = list(dict.fromkeys(str(row["dataset"]) for row in rows))
    figure = new_figure(5.8 * len(names), 0.27 * len(rows) / len(names) + 1.3)
    panels = figure.subplots(1, len(names), squeeze=False, sharex=True)[0]
    for name, axes in zip(names, panels, strict=True):
        shown = [row for row in rows if row["dataset"] == name]
        sizes = draw_points(axes, shown, "pair", label=_label, colours=COLOURS)
        axes.set_xlim(1e5, max(sizes) * 30.0)
        for place, (row, size) in enumerate(zip(shown, sizes, strict=True)):
            style: dict[str, Any] = {"va": "center", "fontsize": 8, "color": INK, "bbox": ON_WHITE}
            axes.text(size * 1.3, place, _number(row), **style)
        title = f"One exchange of a pair, {name.upper()}"
        set_titles(axes, title, x="bytes, both devices, both ways")
    return {"": figure}


def _label(row: Row) -> str:
    method = str(row["method"])
    words = f"{ROUNDS} rounds" if method == FEDERATED else str(row["form"])
    return f"{LABELS.get(method, method)}, {words}"


def _number(row: Row) -> str:
    size = f"{float(row['pair']) / 1e6:.3g} MB"
    if row["method"] == FEDERATED:
        return size
    share_of = f"  1/{1.0 / float(row['of_fl']):.0f}" if "of_fl" in row else ""
    return f"{size}{share_of}  AUC {float(row['auc']):.3f}"


def claims(rows: Rows) -> list[Claim]:
    """Compare ours with BP-NN3-FL's bytes, and narrow forms with exact ones."""
    compared = [row for row in rows if "of_fl" in row and row["method"] != FEDERATED]
    if not compared:
        text = f"Ours sends at most 1/{TARGET_FACTOR} of BP-NN3-FL's bytes"
        return [Claim.not_measured(text)]
    names = list(dict.fromkeys(str(row["dataset"]) for row in compared))
    return [
        *(_few(compared, name, method, FORMS[-1]) for name in names for method in METHODS),
        *(_harmless(compared, name, form) for name in names for form in FORMS[1:]),
    ]


def _few(rows: Rows, dataset: str, method: str, form: str) -> Claim:
    text = (
        f"{dataset}, {LABELS[method]}, {form}: at most 1/{TARGET_FACTOR} of "
        "BP-NN3-FL's bytes in float32"
    )
    shares = {
        str(row["form"]): float(row["of_fl"])
        for row in rows
        if (row["dataset"], row["method"]) == (dataset, method)
    }
    found = ", ".join(f"{which} 1/{1.0 / share:.0f}" for which, share in shares.items())
    return Claim.at_most(text, TARGET_FACTOR, shares.get(form), found)


def _harmless(rows: Rows, dataset: str, form: str) -> Claim:
    text = f"{dataset}: {form} costs at most {MAX_AUC_LOSS} of AUC against exact"
    aucs = {(row["method"], row["form"]): row["auc"] for row in rows if row["dataset"] == dataset}
    lost = {
        str(method): float(auc) - float(aucs[method, form])
        for (method, which), auc in aucs.items()
        if which == FORMS[0] and (method, form) in aucs
    }
    if not lost:
        return Claim.not_measured(text)
    found = ", ".join(f"{LABELS[method]} {-far:+.4f}" for method, far in lost.items())
    return Claim(text, max(lost.values()) <= MAX_AUC_LOSS, found)
