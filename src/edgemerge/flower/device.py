"""The device at a node: what it gives, and how it takes what it is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from edgemerge.core.bank import Bank
from edgemerge.core.codec import decode, encode
from edgemerge.core.contribution import Contribution
from edgemerge.core.detector import Detector
from edgemerge.core.errors import FormatError, RejectedError, SettingError
from edgemerge.core.projection import Projection
from edgemerge.core.stats import Stats
from edgemerge.core.told import Told
from edgemerge.files import load, save
from edgemerge.flower.config import NodeConfig
from edgemerge.flower.fields import Fields
from edgemerge.flower.releasing import Memory, Release
from edgemerge.flower.samples import Samples, stats_in


class Given(NamedTuple):
    """What a device has seen, before it has a revision."""

    notes: list[Contribution]
    grouped: bool = False  # whether it wants patterns kept apart, as a bank does
    forgets: bool = False
    revision: int | None = None  # of a contribution in a file, which has its own


def contribute(
    config: NodeConfig,
    projection: Projection,
    samples: Samples | None,
    memory: Memory,
    clock: Callable[[], float],
) -> Fields:
    """Give the fields of what this device has seen, or why it is held back.

    A release is remembered before it leaves: if the answer is lost, the next one repeats it.
    """
    given, last = _given(config, projection, samples), memory.recall()
    new = last.next(given.notes, clock())
    if given.revision is not None:
        new = replace(new, revision=given.revision)
    least = config.gate * projection.n_hidden
    if held := new.held_back(Release() if given.forgets and new != last else last, least):
        return {"held": held}
    memory.remember(new)
    notes = [replace(note, revision=new.revision) for note in given.notes]
    return {
        "incarnation": config.incarnation,
        "revision": new.revision,
        "grouped": int(given.grouped),
        "contributions": [encode(note) for note in notes],
    }


def adopt(config: NodeConfig, data: bytes) -> Fields:
    """Take what was told: into the state, if there is one that learns, and into a file if asked."""
    told = decode(data)
    if not isinstance(told, Told):
        raise FormatError(f"found {type(told).__name__}, expected what the others have seen")
    if any(origin[:2] == (config.device, config.incarnation) for origin in told.origins):
        raise RejectedError(f"found what {config.device} saw itself among what others saw")
    kept = config.state is not None and _adopted(config.state, told)
    if config.told is not None:
        save(told, config.told)
    samples = sum(part.stats.count for part in told.parts)
    return {"kept": int(kept or config.told is not None), "others": samples}


def _given(config: NodeConfig, projection: Projection, samples: Samples | None) -> Given:
    if config.state is not None:
        return _of_state(config.state, config)
    if config.data is not None:
        stats = stats_in(config.data, projection)
    elif samples is not None and config.partition is not None:
        partitions = config.partition + 1 if config.partitions is None else config.partitions
        stats = Stats.of(projection, samples(config.partition, partitions))
    else:
        raise SettingError(
            "this node does not say what it has seen: set `state` to a file of a detector or "
            "bank, or `data` to samples, in --node-config"
        )
    return Given([Contribution(config.device, stats, 0, incarnation=config.incarnation)])


def _of_state(path: Path, config: NodeConfig) -> Given:
    found = load(path)
    origin: dict[str, Any] = {"revision": 0, "incarnation": config.incarnation}
    if isinstance(found, Detector):
        return Given([found.share(config.device, **origin)], forgets=found.forgetting < 1.0)
    if isinstance(found, Bank):
        if len(found.waiting):
            found.catch_up()  # and go on from what is shared
            save(found, path)
        notes = found.share(config.device, **origin)
        return Given(notes, grouped=True, forgets=found.forgetting < 1.0)
    if isinstance(found, Contribution):
        return _of_contribution(found, config)
    if isinstance(found, Stats):
        return Given([Contribution(config.device, found, **origin)])
    raise SettingError(
        f"{path}: found a {type(found).__name__.lower()}, expected a detector, bank, stats or "
        "contribution: `edgemerge learn` makes the first two"
    )


def _of_contribution(found: Contribution, config: NodeConfig) -> Given:
    if found.key[:2] != (config.device, config.incarnation):
        raise SettingError(
            f"found the state {found}, expected device {config.device}, incarnation "
            f"{config.incarnation}: set `device` and `incarnation` of this node as in the file"
        )
    return Given([found], revision=found.revision)


def _adopted(path: Path, told: Told) -> bool:
    found = load(path)
    if isinstance(found, Bank):
        found.adopt(told.contributions)
    elif isinstance(found, Detector):
        found.adopt(told.total)
    else:
        return False
    save(found, path)
    return True
