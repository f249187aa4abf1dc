"""The device at a node: what it gives, and how it takes what it is told."""

from __future__ import annotations

from collections.abc import Callable

from edgemerge.core.codec import decode, encode
from edgemerge.core.contribution import Contribution
from edgemerge.core.errors import FormatError, RejectedError, SampleError, SettingError
from edgemerge.core.projection import Projection
from edgemerge.core.stats import Stats
from edgemerge.core.told import Told
from edgemerge.files import save
from edgemerge.flower.config import NodeConfig
from edgemerge.flower.fields import Fields
from edgemerge.flower.releasing import Past, release, revision_after
from edgemerge.flower.remembering import Memory, alone
from edgemerge.flower.samples import Samples, stats_in
from edgemerge.flower.states import Given, adopt_in, given_in, given_stats


def contribute(
    config: NodeConfig,
    projection: Projection,
    samples: Samples | None,
    memory: Memory,
    clock: Callable[[], float],
) -> Fields:
    """Give the fields of what may leave this device, and why the rest is held back.

    A release is remembered before it leaves: if the answer is lost, the next one repeats it.
    """
    given = _given(config, projection, samples)
    for pattern in given.patterns.values():
        projection.must_equal(pattern.stats.projection)  # or nothing leaves
    with alone(config.file):
        past = _past(memory, config, projection)
        revision = revision_after(past, clock()) if given.revision is None else given.revision
        new, held = release(past, given.patterns, config.gate * projection.n_hidden, revision)
        if new is not past:
            memory.remember(new)
    return {
        "incarnation": config.incarnation,
        "revision": new.revision,
        "grouped": int(given.grouped),
        "held": "; ".join(filter(None, (*held, given.advice if held else ""))),
        "contributions": [
            encode(Contribution(config.device, stats, new.revision, name, config.incarnation))
            for name, stats in new.left.items()
        ],
    }


def adopt(config: NodeConfig, data: bytes) -> Fields:
    """Take what was told: into the state, if there is one that learns, and into a file if asked."""
    told = decode(data)
    if not isinstance(told, Told):
        raise FormatError(f"found {type(told).__name__}, expected what the others have seen")
    if any(origin[:2] == (config.device, config.incarnation) for origin in told.origins):
        raise RejectedError(f"found what {config.device} saw itself among what others saw")
    with alone(config.state):
        kept = config.state is not None and adopt_in(config.state, told)
    if config.told is not None:
        save(told, config.told)
    samples = sum(part.stats.count for part in told.parts)
    return {"kept": int(kept or config.told is not None), "others": samples}


def _given(config: NodeConfig, projection: Projection, samples: Samples | None) -> Given:
    if config.state is not None:
        return given_in(config.state, config.device, config.incarnation)
    if config.data is not None:
        return given_stats(stats_in(config.data, projection))
    if samples is not None and config.partition is not None:
        partitions = config.partition + 1 if config.partitions is None else config.partitions
        return given_stats(_summed_up(samples, config.partition, partitions, projection))
    raise SettingError(
        "this node does not say what it has seen: set `state` to a file of a detector or "
        "bank, or `data` to samples, in --node-config"
    )


def _summed_up(samples: Samples, partition: int, parts: int, projection: Projection) -> Stats:
    try:
        rows = samples(partition, parts)
    except Exception as error:
        raise SampleError(f"samples({partition}, {parts}) raised {error!r}") from error
    return Stats.of(projection, rows)


def _past(memory: Memory, config: NodeConfig, projection: Projection) -> Past:
    past = memory.recall()
    if past.incarnation != config.incarnation:
        return Past(config.incarnation)
    if any(stats.projection != projection for stats in past.left.values()):
        raise SettingError(
            f"{config.device} gave what it has seen under another projection before: raise its "
            "`incarnation`, or set gate = 0 for samples in a file that are nobody's secret"
        )
    return past
