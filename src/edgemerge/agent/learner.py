"""What the agent adds to a learner: census, wire names, snapshots and plans, new incarnations.

A learner is a `Detector` or a `Bank`. The agent learns only what `look` returned, so neither
saving nor sharing nor looking changes a later score, not even in its last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from edgemerge.core.bank import Bank
from edgemerge.core.detector import NORMAL, READY_SAMPLES_PER_HIDDEN, Detector
from edgemerge.core.ledger import Contribution, Merged
from edgemerge.core.monitor import Monitor, is_provisional
from edgemerge.core.patterns import AdoptionPlan, max_adopted
from edgemerge.core.similarity import LevelCheck
from edgemerge.core.stats import Stats
from edgemerge.core.threshold import loss_shift
from edgemerge.privacy.gate import PatternSamples


def census(learner: Detector | Bank) -> dict[str, PatternSamples]:
    """Return the patterns that have samples of this device, for the release gate."""
    return {
        wire_name(name): PatternSamples(each, each.learnt, each.own_count)
        for name, each in learner.detectors.items()
        if each.own_count
    }


def own_stats(learner: Detector | Bank) -> dict[str, Stats]:
    """Return what this device saw, by wire name; samples that a bank has buffered are not in it."""
    return {wire_name(name): each.own for name, each in learner.detectors.items() if each.own_count}


def snapshot(learner: Detector | Bank) -> Detector | Bank:
    """Return a copy of what this device saw and adopted, to plan and check with elsewhere."""
    if isinstance(learner, Detector):
        return Detector.resume(learner.own, learner.others, **learner.options)
    return learner.copy_own()


def max_compared(learner: Detector | Bank) -> int | None:
    """Return how many patterns of others are compared: twice those that can be kept.

    None means that their sum is adopted, and nothing is compared.
    """
    if isinstance(learner, Detector):
        return None
    return 2 * max_adopted(learner.max_patterns)


def plan_for(
    learner: Detector | Bank, merged: Merged, checkpoint: Callable[[], object] = bool
) -> AdoptionPlan:
    """Do everything of adopting that takes long; the learner is not changed."""
    if isinstance(learner, Detector):
        total = merged.total
        total.must_be_compatible(learner.projection, learner.projection.n_inputs)
        return AdoptionPlan({NORMAL: total})
    plan = learner.plan(merged, checkpoint)
    for each in plan.foreign.values():
        checkpoint()
        each.detector.known.level()  # solves it, so that the next sample does not wait for it
    return plan


def plan_holds(learner: Detector | Bank, plan: AdoptionPlan) -> bool:
    """Return whether planning anew would give the same."""
    return isinstance(learner, Detector) or learner.holds(plan)


def apply_plan(learner: Detector | Bank, plan: AdoptionPlan) -> None:
    """Replace what others saw by what was planned."""
    if isinstance(learner, Detector):
        learner.adopt(plan.others[NORMAL])
    else:
        learner.apply(plan)


def level_shifts(learner: Detector | Bank, plan: AdoptionPlan) -> dict[str, float]:
    """Return the factor by which a plan would raise the usual loss of each ready pattern.

    It is compared with own samples alone, so that many small steps do not add up unseen.
    """
    nothing = Stats.empty(learner.projection)
    shifts = {}
    for name, each in learner.detectors.items():
        if each.own_count >= READY_SAMPLES_PER_HIDDEN * learner.projection.n_hidden:
            own = each.own
            alone = own.solve(each.ridge)
            after = (own + plan.others.get(name, nothing)).solve(alone.ridge)
            shifts[name] = loss_shift(own, alone, after)
    return shifts


def level_check(learner: Detector | Bank, trusted: Iterable[str]) -> LevelCheck:
    """Return the check of what others claim, unless they are trusted, against what was seen here.

    The copy of a learner does as well.
    """
    return LevelCheck(own_stats(learner), apart=isinstance(learner, Bank), trusted=trusted)


def can_check_adopted(learner: Detector | Bank) -> bool:
    """Return whether the learner holds what others saw, and has enough own samples to check it."""
    adopted = any(each.known.others for each in learner.detectors.values())
    return adopted and not is_provisional(learner)


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


def wire_name(name: str) -> str:
    """Replace slashes, which the names of adopted patterns have: pump-9/normal, pump-9~normal."""
    return name.replace("/", "~").replace("\\", "~")
