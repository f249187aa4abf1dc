"""The preview of adopting a selection as it is shown: a row for each device and pattern."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, log

from edgemerge.server.dashboard.saying import counted, factor, named
from edgemerge.server.merges.merging import Previewed

CALM, STEEP = 1.2, 2.0  # shifts up to which nothing is said, and above which devices refuse
WIDEST = 8.0  # the shift at which a bar is full
SHOWN = 200  # rows of a preview; those that rise most come first
WORDS = {
    "good": "hardly changes",
    "warn": "rises",
    "bad": "the device will refuse it unless sync.max_shift allows it",
    "none": "has no level of its own yet",
}


@dataclass(frozen=True)
class PreviewRow:
    """What adopting does to one pattern of one device."""

    device: str
    pattern: str
    samples: float
    joined: float
    alone: float
    before: float
    after: float
    shift: float
    kind: str

    @property
    def words(self) -> str:
        """Say what the shift means."""
        falls = self.kind == "good" and self.shift < 1.0 / CALM
        return "falls: it is explained better" if falls else WORDS[self.kind]

    @property
    def bar(self) -> int:
        """Give the length of its bar, in percent: 0 at no change."""
        part = log(self.shift) / log(WIDEST) if self.shift > 1.0 else 0.0
        return round(100 * min(part, 1.0))


@dataclass(frozen=True)
class PreviewView:
    """A preview: what would happen, in words and in rows."""

    sources: list[str]
    to: str
    happens: str
    summary: str
    worst: str
    rows: list[PreviewRow]
    more: int  # rows that are not shown
    unseen: int  # devices that were not looked at


def preview_of(
    found: Sequence[Previewed], *, sources: list[str], targets: list[str], to: str, looked: int
) -> PreviewView:
    """Prepare what is shown, what rises most first; `looked` is how many targets it is about."""
    rows = sorted((_row(each) for each in found), key=lambda row: (-_height(row), row.device))
    return PreviewView(
        sources=sources,
        to=to,
        happens=what_happens(sources, targets, to),
        summary=_summary(rows),
        worst=rows[0].kind if rows else "none",
        rows=rows[:SHOWN],
        more=max(len(rows) - SHOWN, 0),
        unseen=len(targets) - looked,
    )


def kind_of(shift: float, *, ready: bool = True) -> str:
    """Sort a shift: "good", "warn", "bad", or "none" if there is no level that could rise.

    >>> kind_of(1.2), kind_of(2.0), kind_of(2.1), kind_of(1.0, ready=False)
    ('good', 'warn', 'bad', 'none')
    """
    if not ready or not isfinite(shift):
        return "none"
    return "good" if shift <= CALM else "warn" if shift <= STEEP else "bad"


def what_happens(sources: Sequence[str], targets: Sequence[str], to: str) -> str:
    """Say what adopting means, before and after it is done.

    >>> what_happens(["a", "b"], ["a", "b"], "selected")
    "a and b will be told only each other's sums"
    """
    if to == "all":
        whom = f"{'all ' if len(targets) > 1 else ''}{counted(len(targets), 'device')}"
        return f"{whom} will be told only the sums of {named(sources)}"
    if len(sources) == 1:
        return f"{sources[0]} will be told nothing of others"
    return f"{named(sources)} will be told only each other's sums"


def _row(each: Previewed) -> PreviewRow:
    return PreviewRow(
        each.device,
        each.pattern,
        each.samples,
        each.joined,
        each.alone,
        each.before,
        each.after,
        each.shift,
        kind_of(each.shift, ready=each.ready),
    )


def _height(row: PreviewRow) -> float:
    return row.shift if row.kind != "none" else 0.0


def _summary(rows: Sequence[PreviewRow]) -> str:
    levels = [row for row in rows if row.kind != "none"]
    if not levels:
        return "None of them has a level of its own yet that could change."
    top, refused = levels[0], sorted({row.device for row in levels if row.kind == "bad"})
    if refused:
        share = f"{len(refused):,} of {counted(len({row.device for row in rows}), 'device')}"
        return (
            f"{share} would refuse it: {named(refused)}. "
            f"The most: {top.device}, {top.pattern}, {factor(top.shift)}."
        )
    if top.shift < 1.0 / CALM:
        least = f"{top.device}, {top.pattern}, {factor(top.shift)}"
        return f"Every level falls: all are explained better than now. The least: {least}."
    calm = "No level rises above ×1.2" if top.kind == "good" else "Some levels rise, none above ×2"
    return f"{calm}. The most: {top.device}, {top.pattern}, {factor(top.shift)}."
