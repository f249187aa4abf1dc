"""The agent's state: its value, bytes and folder, when it is saved, and what its learner holds.

A checksum comes before everything else, so truncated or changed bytes are never read as a state.
One agent at a time holds the folder; the state file is replaced atomically. The agent learns only
what `look` returned, so neither saving nor sharing nor looking changes a later score.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgemerge.agent.config import SaveConfig
from edgemerge.agent.features import Features
from edgemerge.core.bank import Bank
from edgemerge.core.detector import READY_SAMPLES_PER_HIDDEN, AdoptionPlan, Detector, Learner
from edgemerge.core.errors import EdgemergeError, FormatError, SettingError
from edgemerge.core.ledger import Contribution, Merged
from edgemerge.core.limit import loss_shift
from edgemerge.core.monitor import Monitor, is_provisional
from edgemerge.core.projection import Projection
from edgemerge.core.similarity import LevelCheck
from edgemerge.core.stats import Stats
from edgemerge.failpoints import failpoint
from edgemerge.files import load, lock_file, save, write_atomically
from edgemerge.privacy.gate import Gate, PatternSamples
from edgemerge.privacy.noise import CLIPPED, ClippedSums, NoiseSettings
from edgemerge.wire.codec import Tensors, decode, encode, pack, unpack
from edgemerge.wire.state import bytes_tensor, from_bytes, to_bytes

if TYPE_CHECKING:
    from edgemerge.agent.background import Worker  # which imports this file

FORMAT = 1
MAGIC = b"edgemerge agent\n"
MAX_STATE_BYTES = 2**30  # bytes
REFUSED_PREFIX = "it was refused"
MAX_REJECTED = 8  # refused or undone sums whose digests are kept
MAX_REFUSED_REVIEWS = 16  # whose reasons are kept
PLAIN_FIELDS = ("device", "incarnation", "revision", "index", "alarms", "skipped", "learning")
PART_FIELDS = ("position", "features")


# Missing in states of older versions.
OPTIONAL_FIELDS = (
    *("desired", "followed", "reviewed", "refused_reviews", "provisional", "fault_revision"),
    "settings",
    "skipped_ahead",
    "timeline",
    "moved_revision",
)


@dataclass(frozen=True)
class SharedFault:
    """A fault that was released: its contribution, and under which name the exchange has it.

    The contribution is kept so that another name can be given to the same sums: the difference of
    two releases must not cover a few samples. The name is empty while the fault is withdrawn.
    """

    data: bytes
    name: str


@dataclass(frozen=True)
class AppliedSettings:
    """The settings of the server: the version seen last, why it was refused, and what holds.

    Args:
        version: The version of the last settings that were looked at.
        refused: Why they were refused; empty if they were applied.
        label: What people call the device.
        limit: The limit that an operator set, or None.
        false_alarms: The rate that an operator set, or None; without both the file's holds.
    """

    version: int = 0
    refused: str = ""
    label: str = ""
    limit: float | None = None
    false_alarms: float | str | None = None


@dataclass
class AgentState:
    """The device, its monitor, what it shares and adopted, and where it stopped."""

    device: str
    incarnation: int
    monitor: Monitor
    revision: int = 0  # of the last release
    index: int = 0  # samples judged
    alarms: int = 0
    skipped: int = 0  # rows and samples up to `position`
    skipped_ahead: int = 0  # rows behind it, which are read again after a restart
    position: Any = None  # of the source, behind the last reading
    features: Any = None
    gate: Gate = field(default_factory=Gate)
    pending: list[Contribution] = field(default_factory=list)  # on their way, in order
    merged: bytes = b""  # the Merged that was adopted last; empty if there was none
    before: bytes | None = None  # the one before that, for undo
    timeline: str = ""  # of the exchange, see `release_again`
    moved_revision: int = 0  # of the last release before which samples moved between patterns
    provisional: bool = True  # `merged` was not checked, for lack of own samples
    rejected: dict[str, str] = field(default_factory=dict)  # reason, by the digest of a Merged
    desired: Any = None  # the newest desired-state document of the server, as plain JSON
    followed: int = 0  # the revision of it that was last acted upon
    reviewed: int = 0  # the number of the server's last review that was acted upon
    refused_reviews: list[tuple[int, str]] = field(default_factory=list)  # number and reason
    settings: AppliedSettings = field(default_factory=AppliedSettings)  # of the server
    fault_gate: Gate = field(default_factory=Gate)  # its patterns are numbers of odd patterns
    fault_revision: int = 0  # of the last fault that was shared or withdrawn
    shared_faults: dict[int, SharedFault] = field(default_factory=dict)  # by number
    pending_faults: list[Contribution] = field(default_factory=list)  # likewise
    clipped: ClippedSums | None = None  # what was learnt, for a fleet with noise

    @property
    def learner(self) -> Detector | Bank:
        """The learner that the monitor watches over."""
        return self.monitor.learner

    @property
    def learning(self) -> bool:
        """Whether learning goes on; false after the command, or when the sums are full."""
        return not self.monitor.paused

    @property
    def projection(self) -> Projection:
        """The projection that all devices share."""
        return self.learner.projection

    def clip(self, noise: NoiseSettings | None) -> None:
        """From now on also sum up what is learnt, clipped, for a fleet with this noise.

        Args:
            noise: What the fleet has agreed on; None: it has no noise.
        """
        if noise is not None and (self.clipped is None or self.clipped.settings != noise):
            self.clipped = ClippedSums(noise, self.projection)
            self.pending = []  # what is not clipped must not be sent
        elif noise is None and self.clipped is not None:
            self.clipped, self.pending = None, []
        self.monitor.on_learnt = None if self.clipped is None else self.clipped.push

    def decode_merged(self, data: bytes | None) -> Merged:
        """Decode a Merged; no bytes mean an empty one."""
        if not data:
            return Merged(self.projection)
        merged = decode(data, Merged, limit=MAX_STATE_BYTES, projection=self.projection)
        return merged.keep_encoded(data)

    def decode_contribution(self, data: bytes) -> Contribution:
        """Decode a contribution of this device, which keeps its bytes."""
        limit, shared = MAX_STATE_BYTES, self.projection
        return decode(data, Contribution, limit=limit, projection=shared).keep_encoded(data)

    def reject(self, digest: str, why: str) -> None:
        """Remember not to adopt the sum with this digest again, and why."""
        self.rejected[digest] = why
        self.rejected = dict(list(self.rejected.items())[-MAX_REJECTED:])

    def clear_refusals(self) -> None:
        """Forget refusals, so that these sums are checked again; undone ones stay rejected."""
        kept = {k: why for k, why in self.rejected.items() if not why.startswith(REFUSED_PREFIX)}
        self.rejected = kept


def fault_census(monitor: Monitor, shared: Collection[int]) -> dict[str, PatternSamples]:
    """Return the faults of this device by number, and what was one, for the release gate.

    Args:
        monitor: The monitor that has them.
        shared: The numbers of patterns that were released, whatever they are now.
    """
    return {
        str(each.number): PatternSamples(each, int(each.stats.count), each.stats.count)
        for each in monitor.odd_patterns.values()
        if each.status == "fault" or each.number in shared
    }


def encoded(contribution: Contribution) -> Contribution:
    """Encode a contribution, and let it keep the bytes, which are saved and sent again and again.

    Args:
        contribution: What waits to be pushed.
    """
    return contribution.keep_encoded(encode(contribution))


def merged_digest(data: bytes) -> str:
    """Return the digest that identifies an encoded Merged."""
    return sha256(data).hexdigest()


def state_to_bytes(memory: AgentState) -> bytes:
    """Encode the state, with a checksum."""
    return seal_state(state_tensors(memory))


def state_tensors(memory: AgentState) -> Tensors:
    """Copy the state at this moment: later changes of the memory do not show in it."""
    memory.gate.look(census(memory.learner))
    plain = {
        name: getattr(memory, name) for name in (*PLAIN_FIELDS, *PART_FIELDS, *OPTIONAL_FIELDS)
    }
    plain["settings"] = asdict(memory.settings)
    plain |= {"format": FORMAT, "gate": memory.gate.state(), "undo": memory.before is not None}
    plain["shunned"] = memory.rejected
    memory.fault_gate.look(fault_census(memory.monitor, memory.shared_faults))
    plain["fault_gate"] = memory.fault_gate.state()
    plain["shared_faults"] = {number: each.name for number, each in memory.shared_faults.items()}
    tensors: Tensors = {
        "plain": bytes_tensor(json.dumps(plain).encode()),
        "monitor": bytes_tensor(to_bytes(memory.monitor)),
        "told": bytes_tensor(memory.merged),
        "before": bytes_tensor(memory.before or b""),
    }
    if memory.clipped is not None:
        clipped = Contribution(memory.device, memory.clipped.sums, memory.revision, CLIPPED)
        plain = {"noise": memory.clipped.settings.plain(), "rows": memory.clipped.rows}
        tensors["clipping"] = bytes_tensor(json.dumps(plain).encode())
        tensors["clipped"] = bytes_tensor(encode(clipped))
    tensors |= {f"pending.{i}": bytes_tensor(encode(each)) for i, each in enumerate(memory.pending)}
    faults = memory.shared_faults
    tensors |= {f"fault.{number}": bytes_tensor(each.data) for number, each in faults.items()}
    late = memory.pending_faults
    tensors |= {f"late.{i}": bytes_tensor(encode(each)) for i, each in enumerate(late)}
    return tensors


def seal_state(tensors: Tensors) -> bytes:
    """Encode what `state_tensors` returned, with a checksum."""
    payload = pack({"kind": "agent"}, tensors)
    return MAGIC + sha256(payload).digest() + payload


def state_from_bytes(data: bytes) -> AgentState:
    """Decode a state; raise FormatError for anything but the bytes that were written."""
    start = len(MAGIC) + 32
    payload = data[start:]
    if data[:start] != MAGIC + sha256(payload).digest():
        raise FormatError(
            f"found {len(data)} bytes that are not what an agent wrote: cut short or changed"
        )
    try:
        return _state_of(*unpack(payload, MAX_STATE_BYTES))
    except (EdgemergeError, KeyError, ValueError, TypeError) as error:
        raise FormatError(f"found no valid state of an agent: {error!r}") from error


def _state_of(words: dict[str, str], tensors: Tensors) -> AgentState:
    plain = json.loads(tensors["plain"].tobytes())
    if words.get("kind") != "agent" or plain["format"] != FORMAT:
        raise FormatError(f"found format {plain['format']}, expected {FORMAT}")
    monitor = _monitor_of(tensors)
    monitor.paused = not plain.pop("learning")
    fields = {name: plain[name] for name in (*PLAIN_FIELDS, *PART_FIELDS) if name != "learning"}
    fields |= {name: plain[name] for name in OPTIONAL_FIELDS if name in plain}
    memory = AgentState(monitor=monitor, rejected=plain["shunned"], **fields)
    memory.refused_reviews = [(number, why) for number, why in memory.refused_reviews]
    memory.settings = AppliedSettings(**plain.get("settings", {}))
    memory.gate = Gate.of(plain["gate"], census(memory.learner))
    memory.merged = tensors["told"].tobytes()
    memory.before = tensors["before"].tobytes() if plain["undo"] else None
    if "clipping" in tensors:
        clipping, data = json.loads(tensors["clipping"].tobytes()), tensors["clipped"].tobytes()
        shared, noise = memory.projection, NoiseSettings.parse(clipping["noise"])
        kept = decode(data, Contribution, limit=len(data), projection=shared)
        memory.clipped = ClippedSums(noise, shared, kept.stats, clipping["rows"])
        memory.clip(noise)
    memory.pending = _decoded(memory, tensors, "pending.")
    if "fault_gate" in plain:  # missing in states of older versions
        memory.shared_faults = {
            int(number): SharedFault(tensors[f"fault.{number}"].tobytes(), name)
            for number, name in plain["shared_faults"].items()
        }
        memory.pending_faults = _decoded(memory, tensors, "late.")
        patterns = fault_census(memory.monitor, memory.shared_faults)
        memory.fault_gate = Gate.of(plain["fault_gate"], patterns)
    return memory


def _decoded(memory: AgentState, tensors: Tensors, stem: str) -> list[Contribution]:
    found = [each.tobytes() for name, each in tensors.items() if name.startswith(stem)]
    return [memory.decode_contribution(data) for data in found]


def _monitor_of(tensors: Tensors) -> Monitor:
    """Return the saved monitor; a learner of an older version is watched over from now on."""
    name = "monitor" if "monitor" in tensors else "learner"
    found = from_bytes(tensors[name].tobytes(), limit=MAX_STATE_BYTES)
    if isinstance(found, Monitor):
        return found
    if not isinstance(found, Detector | Bank):
        raise FormatError(f"found {type(found).__name__}, expected a monitor or a learner")
    if isinstance(found, Detector) and "progress" in tensors:
        found.restore(tensors["progress"].astype(np.float64))
    for row in tensors.get("rows", np.empty(0)):  # some hold rows to be learnt again
        found.learn(found.look(row))
    return Monitor(found)


STATE_FILE, PROJECTION_FILE, LOCK_FILE = "agent.state", "projection.safetensors", "lock"
MAX_BROKEN_FILES = 3  # broken files that are kept
logger = logging.getLogger(__name__)


class InUseError(EdgemergeError, BlockingIOError):
    """Another agent runs on the same state folder."""


class StateFolder:
    """A state folder, locked by one agent at a time; `close` releases it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Lock the folder, creating it if needed; InUseError names the process that has it."""
        self.path = Path(path)
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(
                self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
        except OSError as error:
            raise SettingError(
                f"the state folder {self.path} cannot be used ({error.strerror}): "
                "name a folder that this user may write to"
            ) from error
        self._take()
        for left in self.path.glob(f".{STATE_FILE}.*"):  # left by a crash while writing
            left.unlink(missing_ok=True)

    def read(self) -> AgentState | None:
        """Return the saved state; None if there is none, or if it is broken."""
        try:
            with (self.path / STATE_FILE).open("rb") as file:
                data = file.read(MAX_STATE_BYTES + 1)
        except FileNotFoundError:
            return None
        try:
            return state_from_bytes(data)
        except FormatError as error:
            aside = self._set_aside()
            values = {"folder": self.path, "kept_as": aside.name, "why": error}
            logger.error(
                "the saved state is broken: starting with an empty one", extra={"values": values}
            )
            return None

    def write(self, tensors: Tensors) -> None:
        """Save what `state_tensors` copied: after a crash there is the new state or the old one."""
        failpoint("agent-before-save")
        write_atomically(seal_state(tensors), self.path / STATE_FILE)
        failpoint("agent-after-save")

    def discard(self) -> None:
        """Delete the saved state."""
        (self.path / STATE_FILE).unlink(missing_ok=True)

    def projection(self) -> Projection | None:
        """Return the projection saved here, if any."""
        try:
            found = load(self.path / PROJECTION_FILE)
        except (FileNotFoundError, FormatError):
            return None
        return found if isinstance(found, Projection) else None

    def save_projection(self, projection: Projection) -> None:
        """Save the fleet's projection, for starts while the server is unavailable."""
        if self.projection() != projection:
            save(projection, self.path / PROJECTION_FILE)

    def close(self) -> None:
        """Release the folder."""
        os.close(self._lock)

    def _take(self) -> None:
        if not lock_file(self._lock):
            holder = os.pread(self._lock, 20, 0).decode("ascii", "replace").strip()
            os.close(self._lock)
            raise InUseError(
                f"the state folder {self.path} is in use by another agent (process {holder}): "
                "stop that one, or give this one a folder of its own"
            )
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def _set_aside(self) -> Path:
        """Rename the broken file; keep the newest few."""
        numbers = []
        for path in self.path.glob(f"{STATE_FILE}.broken-*"):
            with suppress(ValueError):
                numbers.append(int(path.name.rpartition("-")[2]))
        numbers.sort()
        for number in numbers[: max(0, len(numbers) - MAX_BROKEN_FILES + 1)]:
            (self.path / f"{STATE_FILE}.broken-{number}").unlink(missing_ok=True)
        aside = self.path / f"{STATE_FILE}.broken-{max(numbers, default=0) + 1}"
        (self.path / STATE_FILE).rename(aside)
        return aside


SavedCallback = Callable[[str], object]  # is told why the state was not saved; empty if it was
WAIT_S = 0.1  # for a state that is being written, before looking again


class StateSaver:
    """Saves the state on a schedule and when asked; a full disk shows in the status.

    The loop's thread copies the state at one moment. A worker encodes and writes the copy, which
    takes longer, and detection goes on meanwhile.

    Args:
        folder: Where the state is.
        memory: The state.
        features: Their state is saved with it.
        often: How often to save.
        worker: Writes a copy into the folder; its result is why it could not, or empty.
        steady: A clock that does not jump, in seconds.

    Attributes:
        trouble: Why the last state could not be saved; empty if it could.
    """

    def __init__(
        self,
        folder: StateFolder,
        memory: AgentState,
        features: Features,
        often: SaveConfig,
        *,
        worker: Worker[Tensors, str],
        steady: Callable[[], float],
    ) -> None:
        """Begin to count now."""
        self._folder, self._memory, self._features = folder, memory, features
        self._save_config, self._worker, self._steady = often, worker, steady
        self._readings, self._at = 0, steady()
        self._requests: list[SavedCallback] = []  # for the next copy
        self._written: list[SavedCallback] = []  # for the copy that is being written
        self.trouble = ""

    def change(self, often: SaveConfig) -> None:
        """Save as often as another configuration says."""
        self._save_config = often

    @property
    def busy(self) -> bool:
        """Whether a state is being written."""
        return self._worker.busy

    def count(self) -> None:
        """Count a reading."""
        self._readings += 1

    def tend(self) -> None:
        """Take the outcome of the last save, and start one if it is due; never wait."""
        self._finish()
        if self.busy or not self._readings:
            return
        late = self._steady() - self._at >= self._save_config.every_s
        if late or self._readings >= self._save_config.every:
            self.begin()

    def begin(self, done: SavedCallback = str) -> None:
        """Save the state, as it is now or a little later, without waiting for it.

        Args:
            done: Called in this thread, in a later `tend`, with why it failed; empty if it worked.
        """
        self._requests.append(done)
        self._start()

    def save(self) -> bool:
        """Save now and wait for it; return whether it worked."""
        found: list[str] = []
        self.begin(found.append)
        while not found:
            self._finish(WAIT_S)
        return not found[0]

    def discard(self) -> None:
        """Delete the state: nothing in it is of use, and another projection may take its place."""
        while self.busy:  # else it would come back
            self._finish(WAIT_S)
        self._folder.discard()

    def _start(self) -> None:
        if self._requests and not self.busy:
            self._memory.features = self._features.state()
            self._readings, self._at = 0, self._steady()
            self._written, self._requests = self._requests, []
            self._worker.send(state_tensors(self._memory))

    def _finish(self, timeout_s: float = 0.0) -> None:
        why = self._worker.outcome(timeout_s)
        if why is None:
            return
        if why and not self.trouble:
            logger.error("the state cannot be saved", extra={"values": {"why": why}})
        self.trouble = f"the state cannot be saved: {why}" if why else ""
        done, self._written = self._written, []
        self._start()
        for each in done:
            each(why)


def census(learner: Learner) -> dict[str, PatternSamples]:
    """Return the patterns that have samples of this device, for the release gate."""
    return {
        wire_name(name): PatternSamples(each, each.learnt, each.own_count)
        for name, each in learner.detectors.items()
        if each.own_count
    }


def own_stats(learner: Learner) -> dict[str, Stats]:
    """Return what this device saw, by wire name; samples that a bank has buffered are not in it."""
    return {wire_name(name): each.own for name, each in learner.detectors.items() if each.own_count}


def level_shifts(learner: Learner, plan: AdoptionPlan) -> dict[str, float]:
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


def level_check(learner: Learner, trusted: Iterable[str]) -> LevelCheck:
    """Return the check of what others claim, unless they are trusted, against what was seen here.

    The copy of a learner does as well.
    """
    return LevelCheck(own_stats(learner), apart=learner.grouped, trusted=trusted)


def can_check_adopted(learner: Learner) -> bool:
    """Return whether the learner holds what others saw, and has enough own samples to check it."""
    adopted = any(each.has_adopted for each in learner.detectors.values())
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
        found = learner.with_own(Stats.empty(learner.projection))
        found.adopt(learner.own + learner.others)
        return found
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
