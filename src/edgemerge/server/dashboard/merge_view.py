"""What the merge page shows of a fleet, gathered from the service; no word of HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgemerge.core.contribution import Key
from edgemerge.core.errors import UnknownError
from edgemerge.server.contributions import Entry
from edgemerge.server.dashboard.choice_view import ChoiceView, choices_of, words_of
from edgemerge.server.dashboard.matrix_view import Matrix, matrix_of
from edgemerge.server.dashboard.merge_asked import Wanted
from edgemerge.server.dashboard.preview_view import PreviewView, preview_of
from edgemerge.server.merges.merging import TARGETS, Choice
from edgemerge.server.service import Service
from edgemerge.server.tokens import Caller

MANY = 60  # devices in a matrix
ROWS = 50  # contributions on a page
CHOICES = 50  # newest choices on the page


@dataclass(frozen=True)
class ContributionView:
    """A contribution; `revoked` is the number of the choice by which nobody is told it, or 0."""

    entry: Entry
    revoked: int


@dataclass(frozen=True)
class MergeView:
    """All of the page but the matrix and the preview, which take longer."""

    devices: list[str]  # that can be told something
    contributing: list[str]
    contributions: list[ContributionView]  # of one page
    found: int
    pages: int
    choices: list[ChoiceView]
    older: int
    notice: str


def merge_view(service: Service, fleet: str, caller: Caller, wanted: Wanted) -> MergeView:
    """Gather what is shown."""
    devices = told_devices(service, fleet)
    _, entries = service.contributions(fleet, caller)
    choices = service.merging.choices(fleet)
    revoked = {choice.key: choice.number for choice in choices if _revokes(choice)}
    found = [entry for entry in entries if _fits(entry, wanted.find)]
    pages = max(1, -(-len(found) // ROWS))
    start = ROWS * (min(wanted.page, pages) - 1)
    shown = [ContributionView(e, revoked.get(e.key, 0)) for e in found[start : start + ROWS]]
    views = choices_of(choices, service.history.glimpses(fleet), devices, service.clock())
    return MergeView(
        devices=devices,
        contributing=by_samples(entries),
        contributions=shown,
        found=len(found),
        pages=pages,
        choices=views[:CHOICES],
        older=max(len(views) - CHOICES, 0),
        notice=notice_of(choices, wanted.done),
    )


def told_devices(service: Service, fleet: str) -> list[str]:
    """Name the devices that can be told something: those that are let in."""
    return [device.device for device in service.devices(fleet) if device.revoked is None]


def matrix_view(service: Service, fleet: str, caller: Caller, wanted: Wanted) -> Matrix:
    """Compute the matrix of the devices that are looked for, of many those with most samples."""
    _, entries = service.contributions(fleet, caller)
    known = by_samples(entries)
    fitting = [name for name in known if wanted.find.lower() in name.lower()]
    likeness = service.merging.likeness(fleet, fitting[:MANY])
    return matrix_of(likeness, left_out=len(fitting) - len(likeness.devices))


def preview_view(service: Service, fleet: str, wanted: Wanted) -> PreviewView:
    """Compute what adopting the selection would do."""
    sources = list(wanted.sources)
    targets = targets_of(service, fleet, sources, wanted.to)
    looked = _largest(service, fleet, targets)
    found = service.merging.preview(fleet, sources, looked)
    return preview_of(found, sources=sources, targets=targets, to=wanted.to, looked=len(looked))


def targets_of(service: Service, fleet: str, sources: list[str], to: str) -> list[str]:
    """Name those who would be told: the selected themselves, or all."""
    return told_devices(service, fleet) if to == "all" else sources


def contribution_view(service: Service, fleet: str, key: Key, caller: Caller) -> ContributionView:
    """Give one contribution that must be there."""
    _, entries = service.contributions(fleet, caller)
    found = next((entry for entry in entries if entry.key == key), None)
    if found is None:
        raise UnknownError(f"no contribution {'/'.join(map(str, key))} in {fleet}: it was dropped")
    made = (each for each in service.merging.choices(fleet) if _revokes(each) and each.key == key)
    return ContributionView(found, next((choice.number for choice in made), 0))


def _largest(service: Service, fleet: str, targets: list[str]) -> list[str]:
    """Give the targets that a preview can look at: of too many, those with most samples."""
    if len(targets) <= TARGETS:
        return targets
    samples = {device.device: device.samples for device in service.devices(fleet)}
    return sorted(targets, key=lambda name: (-samples.get(name, 0.0), name))[:TARGETS]


def by_samples(entries: Sequence[Entry]) -> list[str]:
    """Name the devices that have contributed samples, those with most first."""
    sums: dict[str, float] = {}
    for entry in entries:
        sums[entry.device] = sums.get(entry.device, 0.0) + entry.samples
    return sorted((name for name in sums if sums[name] > 0), key=lambda name: (-sums[name], name))


def notice_of(choices: Sequence[Choice], number: int) -> str:
    """Say what became of a choice; nothing if there is none of this number."""
    choice = next((choice for choice in choices if choice.number == number), None)
    if choice is None:
        return ""
    if choice.undone is not None:
        return f"Choice {number} is undone: it is as if it had never been."
    return f"Choice {number} is in force: {words_of(choice)}. Devices hear of it when they report."


def _revokes(choice: Choice) -> bool:
    return choice.kind == "revoke" and choice.undone is None


def _fits(entry: Entry, find: str) -> bool:
    return find.lower() in f"{entry.device} {entry.pattern}".lower()
