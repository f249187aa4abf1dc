"""Fresh: what was learnt of a device and is not in the database yet; bounded, whatever comes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

from edgemerge.server.reports import minutes
from edgemerge.server.reports.arriving import Arrived
from edgemerge.server.reports.glimpses import Minute, Traffic
from edgemerge.server.reports.points import NONE, Table, unite
from edgemerge.server.reports.report_forms import AlarmAsked, MergeAsked

ALARMS = 100
MERGES = 50
MINUTES = 120  # that wait; in the database there is a day of them


@dataclass(frozen=True)
class Fresh:
    """What is new of a device since `since`; two of them add up."""

    since: float
    reported: bool = False
    points: Table = field(default_factory=lambda: NONE)
    minutes: dict[int, Minute] = field(default_factory=dict)
    alarms: list[AlarmAsked] = field(default_factory=list)
    merges: list[MergeAsked] = field(default_factory=list)
    merged: int = 0  # there may have been more than are kept
    traffic: Traffic = field(default_factory=Traffic)

    @classmethod
    def of(cls, told: Arrived, unknown: Table, merge: MergeAsked | None) -> Self:
        """Give what a report brings; `unknown` are those of its points that nobody knew."""
        return cls(
            since=told.heard,
            reported=True,
            points=unknown,
            minutes=minutes.of(unknown),
            alarms=told.alarms,
            merges=[] if merge is None else [merge],
            merged=int(merge is not None),
        )

    def __add__(self, other: Fresh) -> Fresh:
        gathered = minutes.joined(self.minutes, other.minutes.items())
        return Fresh(
            since=min(self.since, other.since),
            reported=self.reported or other.reported,
            points=unite(self.points, other.points),
            minutes=dict(sorted(gathered.items())[-MINUTES:]),
            alarms=sorted(self.alarms + other.alarms, key=_order)[-ALARMS:],
            merges=sorted(self.merges + other.merges, key=lambda merge: merge.at)[-MERGES:],
            merged=self.merged + other.merged,
            traffic=self.traffic + other.traffic,
        )

    def is_due(self, minute: int) -> bool:
        """Say whether there is more than the minute that has only begun."""
        beside = self.reported or self.traffic != Traffic()
        return beside or next(iter(self.minutes), minute) < minute  # they are in order

    def parted(self, minute: int, now: float) -> tuple[Fresh, Fresh | None]:
        """Give what can be written now, and what is left: minutes that are not over."""
        over = {begun: one for begun, one in self.minutes.items() if begun < minute}
        left = {begun: one for begun, one in self.minutes.items() if begun >= minute}
        return replace(self, minutes=over), Fresh(since=now, minutes=left) if left else None


def _order(alarm: AlarmAsked) -> tuple[float, int]:
    return alarm.at, alarm.sample
