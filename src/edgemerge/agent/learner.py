"""What the agent adds to a learner: the census of the gate, wire names, preview, new incarnation.

A learner is a `Detector` or a `Bank`. The agent learns only what `look` returned, so neither
saving nor sharing nor looking changes a later score, not even in its last bit.
"""

from __future__ import annotations

from edgemerge.core.bank import Bank
from edgemerge.core.detector import READY_SAMPLES_PER_HIDDEN, Detector
from edgemerge.core.ledger import Contribution, Merged
from edgemerge.core.monitor import Monitor
from edgemerge.core.stats import Stats
from edgemerge.core.threshold import loss_shift
from edgemerge.privacy.gate import PatternSamples
from edgemerge.wire.state import from_bytes, to_bytes


def census(learner: Detector | Bank) -> dict[str, PatternSamples]:
    """Return the patterns that have samples of this device, for the release gate."""
    return {
        _wire_name(name): PatternSamples(each, each.learnt, each.own_count)
        for name, each in learner.detectors.items()
        if each.own_count
    }


def own_stats(learner: Detector | Bank) -> dict[str, Stats]:
    """Return what this device saw, by wire name; samples that a bank has buffered are not in it."""
    return {
        _wire_name(name): each.own for name, each in learner.detectors.items() if each.own_count
    }


def level_shifts(learner: Detector | Bank, merged: Merged) -> dict[str, float]:
    """Return the factor by which adopting would raise the usual loss of each ready pattern."""
    ready = {
        name: each
        for name, each in learner.detectors.items()
        if each.own_count >= READY_SAMPLES_PER_HIDDEN * learner.projection.n_hidden
    }
    copy = _copy(learner)
    copy.adopt(merged)
    after = copy.detectors
    return {
        name: loss_shift(each.own, each.readout, after[name].readout)
        for name, each in ready.items()
    }


def _copy(learner: Detector | Bank) -> Detector | Bank:
    if isinstance(learner, Detector):
        return Detector.resume(learner.own, learner.others, **learner.options)
    data = to_bytes(learner)
    copy = from_bytes(data, limit=len(data))
    if not isinstance(copy, Bank):
        raise TypeError(f"found {type(copy).__name__} in the bytes of a bank")
    return copy


def start_new_incarnation(monitor: Monitor, merged: Merged) -> None:
    """Let the learner own nothing: what it saw counts as adopted, beside `merged`.

    Approved patterns are part of that, so their reviews cannot be undone any more.
    """
    supervised = monitor.learner.supervised
    monitor.learner = _owning_nothing(monitor.learner, merged)
    monitor.learner.supervised = supervised
    odd = monitor.odd_patterns
    monitor.odd_patterns = {n: each for n, each in odd.items() if each.status != "normal"}


def _owning_nothing(learner: Detector | Bank, merged: Merged) -> Detector | Bank:
    if isinstance(learner, Detector):
        known, nothing = learner.own + learner.others, Stats.empty(learner.projection)
        return Detector.resume(nothing, known, rejected=learner.rejected, **learner.options)
    kept = [
        Contribution("here", stats, revision=0, pattern=name)
        for name, stats in own_stats(learner).items()
    ]
    bank = Bank(learner.projection, **learner.options)
    bank.adopt(kept + merged.contributions)
    bank.waiting = learner.waiting
    return bank


def _wire_name(name: str) -> str:
    """Replace slashes, which the names of adopted patterns have: pump-9/normal, pump-9~normal."""
    return name.replace("/", "~").replace("\\", "~")
