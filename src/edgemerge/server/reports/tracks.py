"""Tracks: what is remembered of each device between reports, in memory and within bounds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import islice
from math import inf
from threading import Lock
from typing import NamedTuple

from edgemerge.server.reports.arriving import arrived, without_origins
from edgemerge.server.reports.fresh import Fresh
from edgemerge.server.reports.glimpses import ONLINE_S, Glimpse, Traffic
from edgemerge.server.reports.history_rows import Row, Sheet, Written
from edgemerge.server.reports.minutes import number
from edgemerge.server.reports.points import NONE, Points, Table, past, unite, unknown
from edgemerge.server.reports.report_forms import AlarmAsked, MergeAsked, ReportAsked

MOST = 10_000  # devices
PER_SECOND = 50.0  # reports of all devices together
COUNTED_S = 1.0  # for which a count of those that report holds


class Who(NamedTuple):
    """A device and its fleet."""

    fleet: str
    device: str


@dataclass
class Track:
    """What is remembered of a device; of that, `fresh` waits and `flying` is being written."""

    points: Table = field(default_factory=lambda: NONE)
    glimpse: Glimpse | None = None
    traffic: Traffic = field(default_factory=Traffic)
    merged: int = 0
    version: int = 0  # of its row, if all that is in there is known here
    fresh: Fresh | None = None
    flying: Fresh | None = None

    @property
    def lately(self) -> tuple[AlarmAsked | None, MergeAsked | None]:
        """The newest alarm and the newest merge, as far as there are any."""
        return (self.glimpse.alarm, self.glimpse.merge) if self.glimpse else (None, None)

    @property
    def unwritten(self) -> list[Fresh]:
        """What the database may not have yet, oldest first."""
        return [fresh for fresh in (self.flying, self.fresh) if fresh is not None]

    def is_due(self, minute: int) -> bool:
        """Say whether something can be written before this minute is over."""
        return self.flying is None and self.fresh is not None and self.fresh.is_due(minute)


class Tracks:
    """The tracks of all devices; any thread may call, and none is held up for long."""

    def __init__(self, most: int = MOST) -> None:
        """Start with none."""
        self._tracks: OrderedDict[Who, Track] = OrderedDict()  # the longest unheard first
        self._waiting: dict[Who, None] = {}
        self._lock, self._most = Lock(), most
        self._every, self._counted = 1.0, -inf
        self.seq = 0

    def __len__(self) -> int:
        return len(self._tracks)

    def take(self, name: Who, report: ReportAsked, now: float) -> None:
        """Remember what a device reports."""
        told = arrived(report, now)
        with self._lock:
            track = self._track(name)
            track.points = past(track.points, now)
            last_alarm, last_merge = track.lately
            merge = told.merge if _is_news(told.merge, last_merge) else None
            self._wait(name, track, Fresh.of(told, unknown(track.points, told.points), merge))
            track.points = unite(track.points, told.points)
            track.merged += merge is not None
            seen = Glimpse(
                device=name.device,
                heard=now,
                every_s=self._every_s(now),
                left=told.left,
                status=told.status,
                points=(),
                alarm=max(told.alarms, key=lambda alarm: alarm.at, default=last_alarm),
                merge=without_origins(merge) if merge else last_merge,
                seq=0,
            )
            self._show(track, seen)

    def count(self, name: Who, traffic: Traffic) -> None:
        """Count what a device pushed or pulled."""
        with self._lock:
            track = self._track(name)
            track.traffic += traffic
            self._wait(name, track, Fresh(since=traffic.last, traffic=traffic))

    def every_s(self, now: float) -> float:
        """Say how often each device may report, so that all together are not too many."""
        with self._lock:
            return self._every_s(now)

    def find(self, name: Who) -> Track:
        """Give a copy of what is remembered of a device: nothing, if it is not known."""
        with self._lock:
            return replace(self._tracks.get(name) or Track())

    def every(self) -> dict[Who, Track]:
        """Give all tracks, to be read only."""
        with self._lock:
            return dict(self._tracks)

    def of(self, fleet: str) -> dict[str, Track]:
        """Give the tracks of a fleet, to be read only."""
        with self._lock:
            return {name.device: one for name, one in self._tracks.items() if name.fleet == fleet}

    def collect(self, limit: int, now: float, *, over: bool = False) -> list[Sheet]:
        """Give what some devices have to be written; with `over`, as if this minute were."""
        minute = number(now) + over
        with self._lock:
            due = (name for name in self._waiting if self._tracks[name].is_due(minute))
            return [self._part(name, minute, now) for name in sorted(islice(due, limit))]

    def written(self, results: Iterable[Written]) -> None:
        """Remember what is in the database, and forget devices that are unknown there."""
        with self._lock:
            for done in results:
                name = Who(done.fleet, done.device)
                track = self._tracks.get(name)
                if track is None:
                    continue
                if done.version is None:
                    self._drop(name)
                track.flying = None
                if done.version == track.version + 1:  # else another server wrote meanwhile
                    track.version = done.version

    def put_back(self, sheets: Iterable[Sheet]) -> None:
        """Keep what could not be written for later, as far as the bounds allow."""
        with self._lock:
            for sheet in sheets:
                name = Who(sheet.fleet, sheet.device)
                track = self._tracks.get(name)
                if track is not None and track.flying is sheet.fresh:
                    track.flying = None
                    track.fresh = sheet.fresh + track.fresh if track.fresh else sheet.fresh
                    self._waiting[name] = None

    def learn(self, name: Who, row: Row) -> None:
        """Take in what is in the database; there may be more in it than fits here."""
        with self._lock:
            if name not in self._tracks and len(self._tracks) >= self._most:
                return
            track = self._track(name)
            track.traffic = sum((fresh.traffic for fresh in track.unwritten), row.traffic)
            track.merged = row.merged + sum(fresh.merged for fresh in track.unwritten)
            track.points, track.version = unite(track.points, row.points), row.version
            found = [one for one in (row.glimpse, track.glimpse) if one is not None]
            if found:
                self._show(track, max(found, key=lambda one: one.heard))

    def versions(self) -> dict[Who, int]:
        """Give the version of each row as far as it is known here."""
        with self._lock:
            return {name: track.version for name, track in self._tracks.items()}

    def forget(self, fleet: str) -> None:
        """Forget all devices of a fleet."""
        with self._lock:
            for name in [name for name in self._tracks if name.fleet == fleet]:
                self._drop(name)

    def oldest(self) -> float | None:
        """Say since when something waits to be written."""
        with self._lock:
            waiting = (fresh for one in self._tracks.values() for fresh in one.unwritten)
            return min((fresh.since for fresh in waiting), default=None)

    def _track(self, name: Who) -> Track:
        track = self._tracks.get(name)
        if track is None:
            if len(self._tracks) >= self._most:
                self._drop(next(iter(self._tracks)))
            track = self._tracks[name] = Track()
        self._tracks.move_to_end(name)
        return track

    def _drop(self, name: Who) -> None:
        del self._tracks[name]
        self._waiting.pop(name, None)

    def _wait(self, name: Who, track: Track, fresh: Fresh) -> None:
        track.fresh = track.fresh + fresh if track.fresh else fresh
        self._waiting[name] = None

    def _part(self, name: Who, minute: int, now: float) -> Sheet:
        track = self._tracks[name]
        assert track.fresh is not None  # noqa: S101 - it is due
        track.flying, track.fresh = track.fresh.parted(minute, now)
        if track.fresh is None:
            del self._waiting[name]
        return Sheet(name.fleet, name.device, track.glimpse, track.flying)

    def _show(self, track: Track, glimpse: Glimpse) -> None:
        self.seq += 1
        track.glimpse = replace(glimpse, points=Points(track.points), seq=self.seq)

    def _every_s(self, now: float) -> float:
        if not 0.0 <= now - self._counted < COUNTED_S:
            some = sum(_reports(track.glimpse, now) for track in self._tracks.values())
            self._every, self._counted = max(1.0, some / PER_SECOND), now
        return self._every


def _is_news(merge: MergeAsked | None, last: MergeAsked | None) -> bool:
    """Say whether a merge is another than the last one: devices repeat it when they start."""
    return merge is not None and (last is None or last.digest != merge.digest)


def _reports(glimpse: Glimpse | None, now: float) -> bool:
    """Say whether a device is one of those that report now."""
    if glimpse is None or glimpse.left:
        return False
    return now - glimpse.heard <= max(ONLINE_S, 3.0 * glimpse.every_s)
