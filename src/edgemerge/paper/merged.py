"""A pair of patterns as OS-ELM learns it: alone, after merging, and exchanged as banks (ours).

Samples are learnt once and in one order. That many are handed in together changes nothing: learning
them one by one gives the same bits.
"""

from __future__ import annotations

import numpy as np

from edgemerge import Bank, Contribution, Detector, Projection, Stats, decode, encode
from edgemerge.paper.dataset import Array
from edgemerge.paper.plan import Rows
from edgemerge.paper.settings import BANKS, LAYERS, STRIP, Exchange
from edgemerge.paper.splits import SHARES
from edgemerge.paper.trial import Trial

BEFORE, AFTER = "before", "after"


def settings(dataset: str, method: str) -> str:
    """Say what the rows of a method depend on."""
    return f"{BANKS[method][dataset] if method in BANKS else LAYERS[dataset]}, {SHARES}"


def merged(trial: Trial) -> Rows:
    """Device-A before and after it took in what Device-B knows, for all pairs."""
    layer = LAYERS[trial.data.name].projection(trial.data, trial.number("layer"))
    known = [Stats.of(layer, trial.learnt(i)) for i in range(len(trial.data.patterns))]
    return [
        row
        for a, stats in enumerate(known)
        for row in (*_before(trial, a, stats), *_after(trial, a, known))
    ]


def _before(trial: Trial, a: int, known: Stats) -> Rows:
    kept = np.concatenate(trial.split.keep)
    losses = np.zeros(len(trial.data.X))
    losses[kept] = Detector.resume(known).loss(trial.data.X[kept])
    exams = ((b, trial.exam(a, b).rows) for b in range(len(trial.data.patterns)))
    return [trial.row(BEFORE, (a, b), losses[rows]) for b, rows in exams]


def _after(trial: Trial, a: int, known: list[Stats]) -> Rows:
    """Give the pairs of a pattern and those behind it, both ways: a + b is b + a to the bit."""
    found: Rows = []
    for b in range(a, len(known)):
        losses = Detector.resume(known[a], known[b]).loss(trial.data.X[trial.exam(a, b).rows])
        found += [trial.row(AFTER, pair, losses) for pair in sorted({(a, b), (b, a)})]
    return found


def exchanged(trial: Trial, method: str) -> Rows:
    """Device-A with the patterns of Device-B beside its own, for all pairs."""
    exchange = BANKS[method][trial.data.name]
    layer = exchange.layer.projection(trial.data, trial.number("layer"))
    banks = [taught(exchange, layer, trial.learnt(i)) for i in range(len(trial.data.patterns))]
    notes = [sent(bank, exchange, f"device-{i}") for i, bank in enumerate(banks)]
    found: Rows = []
    for a, b in trial.pairs():
        banks[a].adopt([] if a == b else received(notes[b], layer))
        readings = trial.data.X[trial.exam(a, b).rows]
        found.append(trial.row(method, (a, b), banks[a].score(readings)))
    return found


def taught(exchange: Exchange, layer: Projection, readings: Array) -> Bank:
    """Let a bank learn readings, each once, in their order."""
    bank = exchange.bank(layer)
    for start in range(0, len(readings), STRIP):
        bank.learn(readings[start : start + STRIP])
    return bank


def sent(bank: Bank, exchange: Exchange, device: str) -> list[bytes]:
    """Give what a device puts on the wire."""
    return [encode(note, exchange.form) for note in bank.share(device, revision=1)]


def received(notes: list[bytes], layer: Projection) -> list[Contribution]:
    """Read what came over the wire."""
    return [decode(note, projection=layer) for note in notes]
