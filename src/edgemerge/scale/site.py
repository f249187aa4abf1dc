"""One site: hears its devices in two waves and tells its sum; then all of it is let go."""

from __future__ import annotations

from dataclasses import dataclass
from time import process_time

import numpy as np

from edgemerge.core.codec import encode
from edgemerge.core.errors import FormatError
from edgemerge.core.stats import Stats
from edgemerge.scale.fates import CUT, WAVES, arrivals, newest
from edgemerge.scale.junction import Junction
from edgemerge.scale.made_up import Fleet, fleet_of
from edgemerge.scale.memory import peak_bytes
from edgemerge.scale.plan import Plan
from edgemerge.scale.tally import Tally


@dataclass(frozen=True)
class Heard:
    """What a site tells above, one message or two; its devices' messages; what it took."""

    messages: tuple[bytes, ...]
    tally: Tally
    cpu_s: float
    process: int
    peak_bytes: int


def hear(plan: Plan, site: int) -> Heard:
    """Let a site hear its devices, and give what it tells."""
    start = process_time()
    told, tally = gather(plan, site)[1:]
    return Heard(told, tally, process_time() - start, *peak_bytes())


def gather(plan: Plan, site: int) -> tuple[Junction, tuple[bytes, ...], Tally]:
    """Let a site hear its devices; give it too, with the newest of each of them in its ledger."""
    fleet, tally, told = fleet_of(plan), Tally(), []
    junction = Junction(site_name(site), plan.projection, check_every=plan.check_every)
    devices = np.array(plan.devices_of(site))
    for wave in WAVES:
        for device, revision in arrivals(plan, devices, wave):
            _hear(junction, message(fleet, device, revision), tally)
        if junction.changed:
            told.append(junction.share())
    return junction, tuple(told), tally


def message(fleet: Fleet, device: int, revision: int) -> bytes:
    """Give what arrives of a device's message."""
    if revision != CUT:
        return encode(fleet.contribution(device, revision))
    whole = encode(fleet.contribution(device, 1))
    return whole[: len(whole) // 2]


def flat(plan: Plan, hand: int, hands: int, devices: int) -> Stats:
    """Add up every so many-th of the first devices, from the last one on: no site has those."""
    numbers = np.arange(hand, devices, hands)[::-1]
    return fleet_of(plan).flat(numbers, newest(plan, numbers))


def site_name(site: int) -> str:
    """Name a site by its number."""
    return f"site-{site:06}"


def _hear(junction: Junction, data: bytes, tally: Tally) -> None:
    try:
        tally.heard(len(data), kept=junction.hear(data))
    except FormatError:
        tally.refuse(len(data))
