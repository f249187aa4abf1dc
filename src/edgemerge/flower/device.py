"""The device's logic without Flower: read stats, decide what is released, adopt.

The release gate is the agent's: a pattern is released again only after enough new samples. What is
held back is replaced by the last release. Equal sums keep their revision; new sums get a higher
one, the time in milliseconds, so that it rises even if the release history is lost.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edgemerge.agent.rows import BadRow, CsvRows
from edgemerge.agent.state import MAGIC, census, own_stats
from edgemerge.core.bank import Bank
from edgemerge.core.detector import Detector
from edgemerge.core.errors import (
    EdgemergeError,
    FormatError,
    RejectedError,
    SampleError,
    SettingError,
    UnavailableError,
)
from edgemerge.core.ledger import Contribution, Merged
from edgemerge.core.projection import Projection
from edgemerge.core.stats import Stats
from edgemerge.exchange.folder import folder_lock
from edgemerge.files import MAX_FILE_BYTES, file_stamp, load, save, write_atomically
from edgemerge.flower.config import NodeConfig
from edgemerge.flower.fields import Fields
from edgemerge.privacy.gate import Decision, Gate, PatternSamples, min_fresh_samples
from edgemerge.wire.codec import decode, encode, pack, unpack
from edgemerge.wire.state import to_bytes

Array = NDArray[np.float64]
Samples = Callable[[int, int], ArrayLike]  # of a partition, and of how many

CHUNK_VALUES = 2**22  # numbers that are in memory at a time


def stats_of_file(path: Path, projection: Projection) -> Stats:
    """Sum up the samples in an .npy or .csv file; the same bits, whatever its size."""
    if path.suffix not in (".npy", ".csv"):
        raise SampleError(f"found {path}, expected samples in an .npy or .csv file")
    chunks = _npy_chunks(path) if path.suffix == ".npy" else _csv_chunks(path, projection)
    try:
        return Stats.total(projection, (Stats.of(projection, chunk) for chunk in chunks))
    except SampleError as error:
        raise SampleError(f"{path}: {error}") from error
    except UnicodeDecodeError as error:
        raise SampleError(f"{path}: found no text in UTF-8 ({error.reason})") from error


def _npy_chunks(path: Path) -> Iterator[ArrayLike]:
    try:
        rows = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise SampleError(f"found no array: {error}") from error
    if rows.ndim != 2:
        raise SampleError(f"found an array of shape {rows.shape}, expected samples (k, n)")
    step = max(1, CHUNK_VALUES // max(1, rows.shape[1]))
    return (rows[i : i + step] for i in range(0, len(rows), step))


def _csv_chunks(path: Path, projection: Projection) -> Iterator[ArrayLike]:
    reader = CsvRows(projection.names or (), width=projection.n_inputs)
    with path.open(encoding="utf-8") as lines:
        rows = _csv_rows(reader, lines)
        while chunk := list(islice(rows, max(1, CHUNK_VALUES // projection.n_inputs))):
            yield np.array(chunk)


def _csv_rows(reader: CsvRows, lines: Iterable[str]) -> Iterator[Array]:
    for number, line in enumerate(lines, 1):
        try:
            row = reader.row(line)
        except BadRow as error:
            raise SampleError(f"line {number}: {error}: drop such lines first") from error
        if row is not None:
            yield row.values


MS_PER_S = 1000


class PatternProgress(NamedTuple):
    """How far a pattern has come, according to its file."""

    life: str  # the same while samples only enter
    entered: int  # samples, as far as the file shows; rises only if samples entered


class PatternState(NamedTuple):
    """A pattern as it is now."""

    stats: Stats
    progress: PatternProgress


@dataclass(frozen=True)
class ReleaseHistory:
    """What a device remembers of its releases, as it was when it looked last."""

    incarnation: int = 0
    revision: int = 0
    left: Mapping[str, Stats] = field(default_factory=dict)  # by pattern
    marks: Mapping[str, PatternProgress] = field(default_factory=dict)
    gate: Mapping[str, Any] = field(default_factory=lambda: Gate().state())


class Release(NamedTuple):
    """What is remembered from now on, with all that leaves in it, and what is held back and why."""

    past: ReleaseHistory
    held: tuple[str, ...] = ()


def release(
    past: ReleaseHistory, patterns: Mapping[str, PatternState], least: float, revision: int
) -> Release:
    """Return what the gate releases; anything new is released under `revision`.

    With `least` 0 there is no gate.
    """
    own = {name: pattern.stats for name, pattern in patterns.items()}
    if own == past.left:
        return Release(past)
    gate = _updated_gate(past, patterns)
    decision = gate.decide(least) if least else Decision(tuple(own), tuple(sorted(gate.gone)))
    left = {n: stats for n, stats in past.left.items() if n not in decision.withdrawn}
    left |= {name: own[name] for name in decision.released}
    gate.record_release(decision)
    marks = {name: pattern.progress for name, pattern in patterns.items()}
    number = past.revision if left == past.left else revision
    same = {name for name, stats in own.items() if left.get(name) == stats}
    held = tuple(words for words in decision.held if words.rpartition(": ")[0] not in same)
    return Release(ReleaseHistory(past.incarnation, number, left, marks, gate.state()), held)


def next_revision(past: ReleaseHistory, now: float) -> int:
    """Return the next revision at a time in seconds."""
    return max(past.revision + 1, int(now * MS_PER_S))


def _updated_gate(past: ReleaseHistory, patterns: Mapping[str, PatternState]) -> Gate:
    """Return the gate as of the last look, updated; it compares lives by identity (`is`)."""
    then = {
        name: PatternSamples(object(), progress.entered, 0.0)
        for name, progress in past.marks.items()
    }
    gate = Gate.of(past.gate, then)
    gate.look({name: _gate_entry(name, each, past, then) for name, each in patterns.items()})
    return gate


def _gate_entry(
    name: str, pattern: PatternState, past: ReleaseHistory, then: Mapping[str, PatternSamples]
) -> PatternSamples:
    progress, last, count = pattern.progress, past.marks.get(name), pattern.stats.count
    if last is not None and last.life == progress.life and last.entered <= progress.entered:
        return PatternSamples(then[name].life, progress.entered, count)
    return PatternSamples(object(), 0, count)  # a new life: what entered it is unknown


LOCK_TIMEOUT_S = 10.0  # to wait for others that read or write the same folder
JSON_FIELDS = ("incarnation", "revision", "marks", "gate")


class HistoryStore(Protocol):
    """Where a device keeps its release history."""

    def recall(self) -> ReleaseHistory:
        """Return the history; an empty one if there is none."""
        ...

    def remember(self, past: ReleaseHistory) -> None:
        """Store it, before anything leaves."""
        ...


class HistoryFile:
    """Keeps the release history in a file beside the state, so that it survives restarts."""

    def __init__(self, state: Path) -> None:
        """Use the name of the state with `.release` appended."""
        self._path = state.with_name(f"{state.name}.release")

    def recall(self) -> ReleaseHistory:
        """Read the file, if it is there."""
        try:
            return decode_history(self._path.read_bytes())
        except FileNotFoundError:
            return ReleaseHistory()
        except FormatError as error:
            raise FormatError(
                f"{self._path}: {error}: remove it, and what leaves next counts as the first"
            ) from error

    def remember(self, past: ReleaseHistory) -> None:
        """Write the file, atomically."""
        write_atomically(encode_history(past), self._path)


@contextmanager
def lock_folder_of(path: Path | None) -> Iterator[None]:
    """Lock the folder of a file against other runs; without a file do nothing."""
    if path is None:
        yield
        return
    with folder_lock(path.parent, LOCK_TIMEOUT_S):
        yield


def encode_history(past: ReleaseHistory) -> bytes:
    """Return the history as bytes."""
    plain = {name: getattr(past, name) for name in JSON_FIELDS} | {"left": list(past.left)}
    sums = {str(i): encode(stats) for i, stats in enumerate(past.left.values())}
    tensors = {name: np.frombuffer(data, np.int8) for name, data in sums.items()}
    return pack({"kind": "release", "past": json.dumps(plain)}, tensors)


def decode_history(data: bytes) -> ReleaseHistory:
    """Return the history that `encode_history` wrote, or raise FormatError."""
    words, tensors = unpack(data, MAX_FILE_BYTES)
    try:
        plain = json.loads(words["past"])
        left = [decode(array.tobytes(), limit=MAX_FILE_BYTES) for array in tensors.values()]
        marks = {name: PatternProgress(*progress) for name, progress in plain["marks"].items()}
        named = dict(zip(plain["left"], left, strict=True))
        return ReleaseHistory(plain["incarnation"], plain["revision"], named, marks, plain["gate"])
    except (EdgemergeError, ValueError, TypeError, KeyError) as error:
        raise FormatError(f"found no memory of releases ({error!r})") from error


DEFAULT_PATTERN = "normal"
MAX_TRIES = 5  # to adopt between two writes of another program
MOVING_EVENTS = ("new", "split", "joined", "retired")  # events that say where samples are now
FORGETTING_ADVICE = (
    "a detector that forgets does not say how many samples are new: use a bank, which does, or "
    "gate = 0 if they are not confidential"
)


class DeviceStats(NamedTuple):
    """What a device has seen, by pattern."""

    patterns: dict[str, PatternState]
    grouped: bool = False  # whether it wants patterns kept apart, as a bank does
    revision: int | None = None  # of a contribution in a file, which has its own
    advice: str = ""  # for when something is held back


def from_stats(stats: Stats, pattern: str = DEFAULT_PATTERN) -> DeviceStats:
    """Return sums alone as a device's stats; a rising count means that samples entered."""
    progress = PatternProgress("", int(stats.count))
    return DeviceStats({pattern: PatternState(stats, progress)} if stats.count else {})


def read_device_stats(path: Path, device: str, incarnation: int) -> DeviceStats:
    """Return what the file of a detector, bank, stats or contribution holds; do not change it."""
    _refuse_agent_state(path)
    found = load(path)
    if isinstance(found, Stats):
        return from_stats(found)
    if isinstance(found, Contribution):
        _check_origin(found, device, incarnation)
        return from_stats(found.stats, found.pattern)._replace(revision=found.revision)
    if isinstance(found, Detector):
        return _from_detector(found)
    if isinstance(found, Bank):
        return _from_bank(found)
    raise SettingError(
        f"{path}: found a {type(found).__name__.lower()}, expected a detector, bank, stats or "
        "contribution: `edgemerge learn` makes the first two"
    )


def adopt_into_file(path: Path, merged: Merged) -> bool:
    """Let the detector or bank in a file adopt; return False if the file holds something else.

    If another program writes the file meanwhile, start again from what it wrote.
    """
    for _ in range(MAX_TRIES):
        before = file_stamp(path)
        found = load(path)
        if not isinstance(found, Detector | Bank):
            return False
        found.adopt(merged)
        data = to_bytes(found)
        if file_stamp(path) == before:
            write_atomically(data, path)
            return True
    raise UnavailableError(
        f"{path} is being written by another program, again and again: stop that one"
    )


def _from_detector(found: Detector) -> DeviceStats:
    given = from_stats(found.own)
    if found.forgetting == 1.0:
        return given
    patterns = {
        name: each._replace(progress=PatternProgress("", 0))
        for name, each in given.patterns.items()
    }
    return DeviceStats(patterns, advice=FORGETTING_ADVICE)


def _from_bank(found: Bank) -> DeviceStats:
    """Return the bank's patterns; buffered samples are not in them yet."""
    own = own_stats(found)
    marks = {id(found[name]): _bank_progress(found, name) for name in found}
    patterns = {
        name: PatternState(own[name], marks[id(seen.life)]) for name, seen in census(found).items()
    }
    return DeviceStats(patterns, grouped=True)


def _bank_progress(bank: Bank, name: str) -> PatternProgress:
    """Return a life named after the last event that moved samples, or the stage of warming up."""
    state = bank.patterns
    moves = (e for e in state.events if e.kind in MOVING_EVENTS and name in (e.pattern, e.other))
    life = f"{state.settled:d}{state.sifted:d}"
    for event in moves:
        life = f"{event.kind} {event.at}"
    return PatternProgress(life, state.instances[name].ring.seen)


def _check_origin(found: Contribution, device: str, incarnation: int) -> None:
    if found.key[:2] != (device, incarnation):
        raise SettingError(
            f"found the state {found}, expected device {device}, incarnation {incarnation}: "
            "set `device` and `incarnation` of this node as in the file"
        )


def _refuse_agent_state(path: Path) -> None:
    with path.open("rb") as file:
        if file.read(len(MAGIC)) == MAGIC:
            raise SettingError(
                f"{path} is the state of an agent, which no other program may change: let the "
                "agent share, or name a file that `edgemerge learn` made"
            )


def contribute(
    config: NodeConfig,
    projection: Projection,
    samples: Samples | None,
    memory: HistoryStore,
    clock: Callable[[], float],
) -> Fields:
    """Return the fields of what may leave this device, and why the rest is held back.

    A release is recorded before it leaves: if the answer is lost, the next one repeats it.
    """
    given = _device_stats(config, projection, samples)
    for pattern in given.patterns.values():
        projection.must_equal(pattern.stats.projection)  # or nothing leaves
    with lock_folder_of(config.file):
        past = _release_history(memory, config, projection)
        revision = next_revision(past, clock()) if given.revision is None else given.revision
        least = min_fresh_samples(projection, config.gate)
        new, held = release(past, given.patterns, least, revision)
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
    """Adopt what the others have seen into the state, if it is a learner, and save it if asked."""
    merged = decode(data)
    if not isinstance(merged, Merged):
        raise FormatError(f"found {type(merged).__name__}, expected what the others have seen")
    if any(origin[:2] == (config.device, config.incarnation) for origin in merged.origins):
        raise RejectedError(f"found what {config.device} saw itself among what others saw")
    with lock_folder_of(config.state):
        kept = config.state is not None and adopt_into_file(config.state, merged)
    if config.merged_file is not None:
        save(merged, config.merged_file)
    samples = sum(part.stats.count for part in merged.parts)
    return {"kept": int(kept or config.merged_file is not None), "others": samples}


def _device_stats(
    config: NodeConfig, projection: Projection, samples: Samples | None
) -> DeviceStats:
    if config.state is not None:
        return read_device_stats(config.state, config.device, config.incarnation)
    if config.data is not None:
        return from_stats(stats_of_file(config.data, projection))
    if samples is not None and config.partition is not None:
        partitions = config.partition + 1 if config.partitions is None else config.partitions
        return from_stats(_sum_partition(samples, config.partition, partitions, projection))
    raise SettingError(
        "this node does not say what it has seen: set `state` to a file of a detector or "
        "bank, or `data` to samples, in --node-config"
    )


def _sum_partition(samples: Samples, partition: int, parts: int, projection: Projection) -> Stats:
    try:
        rows = samples(partition, parts)
    except Exception as error:
        raise SampleError(f"samples({partition}, {parts}) raised {error!r}") from error
    return Stats.of(projection, rows)


def _release_history(
    memory: HistoryStore, config: NodeConfig, projection: Projection
) -> ReleaseHistory:
    past = memory.recall()
    if past.incarnation != config.incarnation:
        return ReleaseHistory(config.incarnation)
    if any(stats.projection != projection for stats in past.left.values()):
        raise SettingError(
            f"{config.device} gave what it has seen under another projection before: raise its "
            "`incarnation`, or set gate = 0 for samples in a file that are not confidential"
        )
    return past
