"""Arriving: a report as the server takes it, with its times moved to the server's clock."""

from __future__ import annotations

from dataclasses import dataclass

from edgemerge.server.reports import points
from edgemerge.server.reports.report_forms import AlarmAsked, MergeAsked, ReportAsked, StatusAsked


@dataclass(frozen=True)
class Arrived:
    """A report by the server's clock: nothing in it is of the future."""

    heard: float
    left: bool
    status: StatusAsked
    points: points.Table
    alarms: list[AlarmAsked]
    merge: MergeAsked | None


def arrived(report: ReportAsked, now: float) -> Arrived:
    """Move the times of a report by as much as the device's clock is off."""
    shift = now - report.sent

    def at(moment: float) -> float:
        return max(0.0, min(moment + shift, now))

    status, merge = report.status, report.merge
    if status.synced is not None:
        status = status.model_copy(update={"synced": at(status.synced)})
    return Arrived(
        heard=now,
        left=report.leaving,
        status=status,
        points=points.arrived(report.points, shift=shift, now=now),
        alarms=[alarm.model_copy(update={"at": at(alarm.at)}) for alarm in report.alarms],
        merge=merge and merge.model_copy(update={"at": at(merge.at)}),
    )


def without_origins(merge: MergeAsked) -> MergeAsked:
    """Give a merge without the list of what is in it, which may be long."""
    return merge.model_copy(update={"origins": []})
