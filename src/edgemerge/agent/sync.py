"""Syncing with the exchange: what is released, trusted, adopted, refused and undone, and when.

Exchanging, and planning what to adopt, run in background threads; the rest in the loop's thread,
which takes a copy of the learner for the planner, and applies the plan by replacing sums.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from edgemerge.agent.background import (
    ExchangeJob,
    ExchangeOutcome,
    KnownExchange,
    OverBudgetError,
    SyncSchedule,
    TimeBudget,
    Worker,
    is_permanent,
)
from edgemerge.agent.config import SyncConfig
from edgemerge.agent.faults import FaultJob, FaultSharing
from edgemerge.agent.state import (
    REFUSED_PREFIX,
    AgentState,
    SavedCallback,
    can_check_adopted,
    census,
    encoded,
    level_check,
    level_shifts,
    merged_digest,
    own_stats,
    start_new_incarnation,
)
from edgemerge.core.detector import AdoptionPlan, Learner
from edgemerge.core.errors import (
    DeniedError,
    EdgemergeError,
    RejectedError,
    SettingError,
    StaleError,
    UnavailableError,
)
from edgemerge.core.ledger import MAX_PATTERNS, Contribution, Key, Merged, Selection
from edgemerge.core.projection import Projection
from edgemerge.core.similarity import SIMILAR_FACTOR, LevelCheck
from edgemerge.core.stats import Stats
from edgemerge.core.trust import Trust, TrustCheck
from edgemerge.exchange.client import MAX_COMMENT_CHARS
from edgemerge.failpoints import failpoint
from edgemerge.files import write_atomically
from edgemerge.privacy.gate import Decision, Gate, min_fresh_samples
from edgemerge.privacy.noise import CLIPPED, ClippedSums, NoiseSettings
from edgemerge.wire.codec import Tensors, decode, encode, pack, unpack

DECISIONS_FILE = "agent.trust"
MAX_DECISIONS = 256
MAX_FILE_BYTES = 2**30
MAX_DESCRIBED = 64  # contributions that wait, the largest

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PeerDecision:
    """One decision: "approve" with the contribution as it was, or "dismiss"."""

    key: Key
    decision: str
    at: float
    comment: str = ""
    approved: bytes = b""


class PeerDecisions:
    """The decisions of one agent, in the order in which they were made; the newest counts."""

    def __init__(
        self, folder: Path, trust: Trust, projection: Projection, *, clock: Callable[[], float]
    ) -> None:
        """Read the decisions that are stored.

        Args:
            folder: The agent's state folder.
            trust: The rule of `sync.trust`.
            projection: What all devices share.
            clock: The time of decisions, in Unix seconds.
        """
        self.trust = trust
        self._path, self._projection, self._clock = folder / DECISIONS_FILE, projection, clock
        self._decisions = self._read()
        self._seen: dict[Key, Contribution] = {}  # what waits since the last pull
        self._waiting: list[dict[str, Any]] = []

    def screening(self, own: list[Contribution], level: LevelCheck) -> Screening:
        """Return the rule of one pull: trust first, then levels.

        Args:
            own: What this device would contribute itself.
            level: The check of levels.
        """
        newest = {each.key: each for each in self._decisions}
        approved = {key: self._decode(each) for key, each in newest.items() if each.approved}
        dismissed = [key for key, each in newest.items() if each.decision == "dismiss"]
        trust = TrustCheck(
            self.trust, own, trusted=level.trusted, approved=approved, dismissed=dismissed
        )
        return Screening(trust, level)

    def keep(self, screening: Screening) -> None:
        """Take what waits from the last pull."""
        self._seen, self._waiting = screening.trust.seen, screening.waiting

    def command(self, command: dict[str, Any]) -> str:
        """Carry out a decision about one contribution; return what was done.

        What was seen at the last pull is approved: a later revision must stay similar to it.
        """
        key, decision = _key_of(command), command.get("decision")
        name, comment = "/".join(map(str, key)), command.get("comment", "")
        if not (
            isinstance(comment, str) and len(comment) <= MAX_COMMENT_CHARS and comment.isprintable()
        ):
            raise SettingError('expected "comment": one printable line of at most 500 characters')
        if decision == "undo":
            self._undo(key, name)
            return f"the last decision about {name} is undone"
        if decision not in ("approve", "dismiss"):
            raise SettingError(
                f'found "decision": {decision!r}, expected "approve", "dismiss" or "undo"'
            )
        seen = self._seen.get(key)
        if seen is None:
            waits = ", ".join("/".join(map(str, each)) for each in self._seen) or "nothing"
            raise SettingError(
                f"{name} does not wait; of the last exchange {waits} does: sync first"
            )
        if len(self._decisions) >= MAX_DECISIONS:
            raise SettingError(f"found {MAX_DECISIONS} decisions, expected fewer: undo some first")
        approved = encode(seen) if decision == "approve" else b""
        made = PeerDecision(key, str(decision), self._clock(), comment, approved)
        self._write([*self._decisions, made])
        return f"{name} is {'approved' if approved else 'dismissed'}, from the next exchange on"

    def plain(self) -> list[dict[str, Any]]:
        """Return what waits as plain JSON: why, and what it is like."""
        return self._waiting

    def _undo(self, key: Key, name: str) -> None:
        places = [i for i, each in enumerate(self._decisions) if each.key == key]
        if not places:
            raise SettingError(f"there is no decision about {name}: nothing was undone")
        self._write([each for i, each in enumerate(self._decisions) if i != places[-1]])

    def _decode(self, made: PeerDecision) -> Contribution:
        data = made.approved
        return decode(data, Contribution, limit=len(data), projection=self._projection)

    def _write(self, decisions: list[PeerDecision]) -> None:
        """Store them before they count."""
        plain = [[*each.key, each.decision, each.at, each.comment] for each in decisions]
        tensors: Tensors = {"plain": np.frombuffer(json.dumps(plain).encode(), np.int8)}
        for i, each in enumerate(decisions):
            tensors[f"approved.{i}"] = np.frombuffer(each.approved, np.int8)
        try:
            write_atomically(pack({"kind": "trust"}, tensors), self._path)
        except OSError as error:
            raise SettingError(
                f"the decision cannot be saved ({error.strerror}): nothing has changed; free some "
                f"space for {self._path}, and decide again"
            ) from error
        self._decisions = decisions

    def _read(self) -> list[PeerDecision]:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return []
        try:
            _, tensors = unpack(data, MAX_FILE_BYTES)
            found = [
                PeerDecision(
                    (device, incarnation, pattern),
                    decision,
                    at,
                    comment,
                    tensors[f"approved.{i}"].tobytes(),
                )
                for i, (device, incarnation, pattern, decision, at, comment) in enumerate(
                    json.loads(tensors["plain"].tobytes())
                )
            ]
            for each in found:
                if each.approved:
                    self._decode(each)
        except (EdgemergeError, KeyError, ValueError, TypeError) as error:
            values = {"file": self._path, "why": error}
            logger.error("decisions about peers cannot be read", extra={"values": values})
            return []
        return found


class Screening:
    """The rule of one pull: what waits for trust is left out, then what does not fit.

    It runs in the thread of the exchange, and so does describing what waits.
    """

    def __init__(self, trust: TrustCheck, level: LevelCheck) -> None:
        """Have checked nothing yet."""
        self.trust, self.level = trust, level
        self.waiting: list[dict[str, Any]] = []

    def __call__(self, contributions: list[Contribution]) -> list[Contribution]:
        """Return those that pass both.

        Args:
            contributions: What others claim to have seen.
        """
        trusted = self.trust(contributions)
        largest = sorted(self.trust.seen.values(), key=lambda each: (-each.samples, each.key))
        self.waiting = [self._plain(each) for each in largest[:MAX_DESCRIBED]]
        return self.level(trusted)

    def _plain(self, one: Contribution) -> dict[str, Any]:
        best = self.trust.nearest(one)
        found = dict(zip(("device", "incarnation", "pattern"), one.key, strict=True))
        found |= {"revision": one.revision, "samples": one.samples}
        found |= {"why": self.trust.waiting[one.key], "nearest": None, "ratio": None}
        if best is not None:
            found |= {"nearest": "/".join(map(str, best[0])), "ratio": float(f"{best[1]:.4g}")}
        return found | {"like_none": best is None or best[1] > SIMILAR_FACTOR}


def _key_of(command: dict[str, Any]) -> Key:
    device, incarnation, pattern = (
        command.get(name) for name in ("device", "incarnation", "pattern")
    )
    if not (isinstance(device, str) and type(incarnation) is int and isinstance(pattern, str)):
        raise SettingError('expected "device", "incarnation" (a number) and "pattern"')
    return device, incarnation, pattern


@dataclass(frozen=True)
class MergePreview:
    """The factor by which a merge raises the loss of our own samples: the largest, and by pattern.

    It is 1 while there are too few own samples to have a level.
    """

    shift: float
    patterns: dict[str, float] = field(default_factory=dict)
    samples: float = 0.0
    devices: int = 0

    @classmethod
    def of(cls, learner: Learner, merged: Merged, plan: AdoptionPlan) -> MergePreview:
        """Compute it from the sums alone, M10; nothing is adopted."""
        shifts = level_shifts(learner, plan)
        samples = sum(part.stats.count for part in merged.parts)
        devices = {origin.device for origin in merged.origins}
        return cls(max(shifts.values(), default=1.0), shifts, samples, len(devices))

    def refusal(self, max_shift: float) -> str:
        """Return the reason not to adopt; empty if there is none."""
        if self.shift <= max_shift:
            return ""
        worst = max(self.patterns, key=self.patterns.__getitem__)
        return (
            f"it would raise the level of {worst} {self.shift:.3g} times, "
            f"and sync.max_shift is {max_shift:g}"
        )

    def plain(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        patterns = {name: float(f"{shift:.6g}") for name, shift in self.patterns.items()}
        found = {"shift": float(f"{self.shift:.6g}"), "patterns": patterns}
        return found | {"samples": self.samples, "devices": self.devices}


MAX_PLANS = 3  # of one merged sum, if patterns change while it is planned


@dataclass(frozen=True, eq=False)
class AdoptionJob:
    """What others saw, and all that is needed to plan and check its adoption in another thread.

    Args:
        read: Returns what others saw.
        data: Its bytes.
        digest: What to reject: its digest, or that of the sum that is undone.
        learner: A copy of the learner.
        max_shift: The shift above which it is refused.
        timeout_s: The longest that planning may take.
        trusted: Devices whose contributions are not checked.
        device: This device: what it saw in earlier incarnations is not refused.
        undo: Whether it is the merged sum before the last.
        again: Whether it is held already, and checked now that there are enough own samples.
        attempt: Which plan of this sum it is.
    """

    read: Callable[[], Merged]
    data: bytes
    digest: str
    learner: Learner
    max_shift: float = inf
    timeout_s: float = inf
    trusted: frozenset[str] = frozenset()
    device: str = ""
    undo: bool = False
    again: bool = False
    attempt: int = 1


@dataclass(frozen=True, eq=False)
class Adoption:
    """A plan with its preview, or the reason not to adopt.

    `left_out` says which parts do not fit; `provisional` that there were too few own samples to
    check any.
    """

    plan: AdoptionPlan | None = None
    preview: MergePreview | None = None
    refusal: str = ""
    left_out: tuple[str, ...] = ()
    provisional: bool = False


def plan_adoption(job: AdoptionJob) -> Adoption:
    """Compare, group, solve and check what others saw; it runs in the planner's thread."""
    preview, budget = None, TimeBudget(job.timeout_s)
    try:
        merged = job.read()
        check = level_check(job.learner, job.trusted)
        left_out: tuple[str, ...] = ()
        if not job.undo:  # that was adopted once, and comes back as it was
            merged, left_out = leave_out(merged, check)
        if left_out and not merged.parts:
            return Adoption(refusal="; ".join(left_out), left_out=left_out)
        plan = job.learner.plan(merged, budget.check)
        preview = MergePreview.of(job.learner, merged, plan)
        budget.check()
    except OverBudgetError as error:
        return Adoption(preview=preview, refusal=f"{error} to compare: {_most_patterns(merged)}")
    except EdgemergeError as error:
        return Adoption(preview=preview, refusal=str(error))
    mine = all(origin.device == job.device for origin in merged.origins)
    refusal = "" if mine else preview.refusal(job.max_shift)
    return Adoption(plan, preview, refusal, left_out, check.provisional)


def leave_out(merged: Merged, check: LevelCheck) -> tuple[Merged, tuple[str, ...]]:
    """Return the parts that fit what this device saw, and for each other one why it does not."""
    parts, reasons = [], []
    for part in merged.parts:
        why = "" if check.trusted.issuperset(part.devices) else check.reason(part.stats)
        if why:
            reasons.append(f"{', '.join(part.devices)}: {why}")
        else:
            parts.append(part)
    return (Merged(merged.projection, tuple(parts)) if reasons else merged), tuple(reasons)


def _most_patterns(merged: Merged) -> str:
    """Name the device that makes most of the work, and what to do."""
    devices = Counter(origin.device for origin in merged.origins)
    device, patterns = max(devices.items(), key=lambda item: item[1], default=("", 0))
    return (
        f"{patterns} of {len(merged.origins)} patterns are of {device}; "
        "leave that device out (sync.without), or raise sync.adopt_timeout_s"
    )


def release(memory: AgentState, least: float) -> Decision:
    """Queue what the gate lets through; return what is released and what is held back.

    Counters and `pending` change together: save both before the first push.
    """
    memory.gate.look(census(memory.learner))
    decision = memory.gate.decide(least, MAX_PATTERNS)
    if not decision.released:
        return decision
    first, then = release_order(memory.gate, decision)
    moved = bool(first) or any(memory.gate.tracks[name].moved for name in decision.released)
    _queue(memory, first, then)
    if moved:
        memory.moved_revision = memory.revision
    memory.gate.record_release(decision)
    return decision


def release_clipped(memory: AgentState, clipped: ClippedSums, least: float) -> Decision:
    """Queue the clipped sums of what was learnt since the last release, if it is enough.

    Samples and `pending` change together: save both before the first push.
    """
    if not clipped.rows:
        return Decision()
    if clipped.rows < least:
        return Decision(held=(f"{CLIPPED}: {clipped.rows} of {least:.0f} samples",))
    memory.revision += 1
    about = memory.revision, CLIPPED, memory.incarnation
    memory.pending.append(encoded(Contribution(memory.device, clipped.take(), *about)))
    return Decision(released=(CLIPPED,))


def release_again(memory: AgentState, held: Mapping[str, int]) -> int:
    """Queue what an exchange lost that was restored from a backup; return how many.

    A pattern that has learnt nothing since its last release is released again: the same sums reveal
    nothing new. One that has learnt something waits for the gate, and the exchange keeps what it
    has of it, unless samples have moved since: then they could be counted twice. What the exchange
    has and this device no longer shares is withdrawn again.

    Args:
        memory: The state.
        held: The revisions that the exchange has of this incarnation, by pattern.
    """
    memory.gate.look(census(memory.learner))
    tracks = memory.gate.tracks
    shared = {name for name, track in tracks.items() if track.released}
    same = [n for n in sorted(shared) if not tracks[n].moved and tracks[n].fresh == 0]
    unknown = {name for name in held if name not in shared and name not in memory.gate.gone}
    mixed = {n for n, revision in held.items() if revision < memory.moved_revision} - {*same}
    _queue(memory, sorted(unknown | mixed), same)
    return len(memory.pending)


def _queue(memory: AgentState, emptied: Iterable[str], pushed: Iterable[str]) -> None:
    """Let contributions wait to be pushed: patterns to empty, then those with their sums."""
    own, nothing = own_stats(memory.learner), Stats.empty(memory.projection)
    for step in (dict.fromkeys(emptied, nothing), {name: own[name] for name in pushed}):
        memory.revision += bool(step)
        memory.pending += [
            encoded(Contribution(memory.device, each, memory.revision, name, memory.incarnation))
            for name, each in step.items()
        ]


def release_order(gate: Gate, decision: Decision) -> tuple[list[str], list[str]]:
    """Return the patterns to empty first, and those to push then.

    Patterns that are gone are emptied. Samples may have moved either way between two patterns that
    the exchange knows, so these are emptied too; a single one can only have lost some to new ones,
    and goes before them.
    """
    known = [name for name in decision.released if gate.tracks[name].released]
    mixed = [name for name in known if gate.tracks[name].moved]
    new = [name for name in decision.released if name not in known]
    return [*decision.withdrawn, *(mixed if len(mixed) > 1 else [])], [*known, *new]


NOTHING_SHARED = "nothing from others: none, or too few of them, have shared something"
WITHDRAWN = "what others had shared was withdrawn; the next total replaces it"
MS_PER_S = 1000  # in a second: an incarnation is the time at which it began


class SharingPolicy:
    """Decides what one agent releases, adopts, refuses and undoes; it does no input or output."""

    def __init__(
        self,
        memory: AgentState,
        *,
        gate: float | None,
        max_shift: float,
        timeout_s: float = SyncConfig.adopt_timeout_s,
    ) -> None:
        """Hold back what covers fewer than `gate`·N samples; refuse shifts above `max_shift`.

        With `gate=None` the default of `min_fresh_samples` holds. What takes longer than
        `timeout_s` to compare is refused.
        """
        self.memory, self.min_fresh = memory, min_fresh_samples(memory.projection, gate)
        self.agreed = True  # whether the fleet's noise is known: before, nothing is released
        self.lost = 0  # uploads whose samples are in no total
        memory.clear_refusals()  # what may be adopted can have been changed since
        self._max_shift, self._timeout_s = max_shift, timeout_s
        self.decision = Decision()
        self.faults = FaultSharing(memory)
        self.preview: MergePreview | None = None
        self.shift: float | None = None  # by what is held, if it was adopted since the start
        self.left_out = ""  # how many patterns of the last pull, if any
        self.refused: tuple[str, ...] = ()  # which parts of the last merge, and why
        self.singly: tuple[str, ...] = ()  # which contributions of the last pull, and why
        self.message = "nothing received yet"  # about the last merge

    def release(self) -> int:
        """Queue what may be released; return the number of contributions that wait."""
        if not self.agreed:
            return 0
        clipped, memory, least = self.memory.clipped, self.memory, self.min_fresh
        self.decision = (
            release(memory, least) if clipped is None else release_clipped(memory, clipped, least)
        )
        if self.decision.held:
            logger.info("held back", extra={"values": {"patterns": self.decision.held}})
        if self.decision.released:
            values = {"patterns": self.decision.released, "revision": self.memory.revision}
            logger.info("shares a release", extra={"values": values})
        return len(self.memory.pending)

    def agree(self, noise: NoiseSettings | None, lost: int = 0) -> None:
        """Follow the noise of the fleet.

        Args:
            noise: What it has agreed on; None: no noise.
            lost: The uploads whose samples are in no total.
        """
        if not self.agreed and noise is not None:
            logger.info("the fleet has noise", extra={"values": noise.plain()})
        self.agreed, self.lost = True, lost
        self.memory.clip(noise)

    def _plain_noise(self) -> dict[str, Any]:
        """Return what a person wants to know of noise; nothing in a fleet without."""
        clipped = self.memory.clipped
        if clipped is None:
            return {}
        waiting = {"waiting": clipped.rows, "left_out": clipped.left_out}
        return {"noise": clipped.settings.plain() | waiting | {"lost_uploads": self.lost}}

    def follow_timeline(self, timeline: str, held: Mapping[str, int]) -> int:
        """Share again what an exchange lost when it was restored; return how much waits.

        Args:
            timeline: The timeline of the exchange, another one than before.
            held: The revisions that the exchange has of this incarnation, by pattern.
        """
        memory = self.memory
        before, memory.timeline = memory.timeline, timeline
        if not before:  # this is the first one
            return 0
        waiting = release_again(memory, held)
        self.faults.share_again()
        values = {"timeline": timeline, "contributions": waiting}
        logger.warning("the exchange was restored from a backup", extra={"values": values})
        return waiting

    def consider(self, merged: Merged, digest: str) -> AdoptionJob | None:
        """Return what to plan, unless the merged sum is known, refused or undone."""
        memory, data = self.memory, encode(merged)
        known = memory.rejected.get(digest)
        if data == memory.merged or known:
            same = "nothing new" if merged.parts else NOTHING_SHARED
            self.message = f"not adopted: {known}" if known else same
            return None
        self.message = "what others saw is being compared"
        return self._job(lambda: merged, data, digest)

    def recheck(self) -> AdoptionJob | None:
        """Return what to plan if what is held could not be checked before, and can be now."""
        memory = self.memory
        if not (memory.provisional and can_check_adopted(memory.learner)):
            return None
        read = partial(memory.decode_merged, memory.merged)
        return replace(self._job(read, memory.merged, merged_digest(memory.merged)), again=True)

    def _job(self, read: Callable[[], Merged], data: bytes, digest: str) -> AdoptionJob:
        limits = self._max_shift, self._timeout_s
        who = self.trusted, self.memory.device
        return AdoptionJob(read, data, digest, self.memory.learner.copy_own(), *limits, *who)

    @property
    def trusted(self) -> frozenset[str]:
        """Devices whose contributions are not checked: this one's past, and what was chosen."""
        chosen = (self.memory.desired or {}).get("adopt", {}).get("devices")
        return frozenset([self.memory.device, *(chosen or ())])

    def consider_undo(self) -> AdoptionJob | None:
        """Return what to plan to go back to the merged sum before the last, if there is one."""
        memory, before = self.memory, self.memory.before
        if before is None:
            return None
        digest = merged_digest(memory.merged)
        read = partial(memory.decode_merged, before)
        return AdoptionJob(read, before, digest, memory.learner.copy_own(), undo=True)

    def finish(self, job: AdoptionJob, found: Adoption) -> AdoptionJob | None:
        """Adopt what was planned, or refuse it; return a job if it has to be planned again."""
        if found.preview is not None and not job.undo:
            self.preview = found.preview
        self.refused = found.left_out
        if found.plan is None or found.refusal:
            misfit = found.plan is not None or bool(found.left_out)  # else it was not compared
            self._refuse(job, found.refusal, take_back=job.again and misfit)
            return None
        if job.again and not found.left_out:
            self.memory.provisional = False
            return None
        if not self.memory.learner.holds(found.plan):
            return self._plan_again(job)
        failpoint("agent-before-adopt")
        try:
            self.memory.learner.apply(found.plan)
        except EdgemergeError as error:
            self._refuse(job, str(error), take_back=False)
            return None
        self._record(job, found)
        failpoint("agent-after-adopt")
        return None

    def _record(self, job: AdoptionJob, found: Adoption) -> None:
        self.memory.provisional = found.provisional
        if job.undo:
            self._record_undo(job)
        elif not job.again:
            self._record_merge(job, found)
        for why in found.left_out:
            logger.warning("left out contributions that do not fit", extra={"values": {"why": why}})

    def _plan_again(self, job: AdoptionJob) -> AdoptionJob | None:
        if job.attempt < MAX_PLANS:
            copy = self.memory.learner.copy_own()
            return replace(job, learner=copy, attempt=job.attempt + 1)
        done = "undone" if job.undo else "adopted"
        self.message = f"not {done}: the patterns changed {MAX_PLANS} times meanwhile; sync again"
        logger.warning(self.message)
        return None

    def _refuse(self, job: AdoptionJob, why: str, *, take_back: bool) -> None:
        if take_back:  # it was adopted before it could be checked
            self.memory.learner.adopt(Merged(self.memory.projection))
            self.memory.merged, self.memory.before, self.shift = b"", None, None
        if job.undo:
            self.message = f"not undone: {why}"
        elif job.again and not take_back:
            self.memory.provisional = False  # until the next merge
            self.message = f"not checked: {why}"
        else:
            self.memory.reject(job.digest, f"{REFUSED_PREFIX}: {why}")
            self.message = f"not adopted: {REFUSED_PREFIX}: {why}"
        logger.warning("refused a merge", extra={"values": {"why": why}})

    def _record_merge(self, job: AdoptionJob, found: Adoption) -> None:
        memory, preview = self.memory, found.preview or MergePreview(1.0)
        memory.before, memory.merged = memory.merged or None, job.data
        self.shift = preview.shift
        adopted = f"adopted {preview.samples:g} samples of {preview.devices} devices"
        self.message = adopted if preview.devices else WITHDRAWN
        logger.info("merged contributions of others", extra={"values": preview.plain()})
        if self.left_out:
            self.message += f"; {self.left_out}"
            logger.warning(self.left_out)

    def _record_undo(self, job: AdoptionJob) -> None:
        memory = self.memory
        memory.reject(job.digest, "it was undone")
        memory.merged, memory.before = job.data, None
        self.shift = None
        self.message = "the last merge was undone"
        logger.info(self.message)

    def start_new_incarnation(self, clock: Callable[[], float]) -> None:
        """Begin a new incarnation: this is an old copy of a state that has gone on elsewhere."""
        memory = self.memory
        old = memory.incarnation
        merged = memory.decode_merged(memory.merged)
        # It has no own samples to check with, so what does not fit is left out now.
        merged, _ = leave_out(merged, level_check(memory.learner, self.trusted))
        start_new_incarnation(memory.monitor, merged)
        memory.incarnation = max(int(clock() * MS_PER_S), old + 1)
        memory.revision, memory.moved_revision = 0, 0
        memory.pending, memory.gate = [], Gate()
        memory.merged, memory.before = b"", None
        if memory.clipped is not None:
            memory.clipped.take()  # it may have been released elsewhere
        self.shift = None
        values = {"incarnation": memory.incarnation, "before": old}
        logger.warning(
            "the exchange knows a later state of this device: it runs on an old copy of its disk, "
            "and starts a new incarnation",
            extra={"values": values},
        )

    def plain(self) -> dict[str, Any]:
        """Return what was shared and received last, as plain JSON."""
        return {
            "pending": len(self.memory.pending),
            "held_back": list(self.decision.held),
            "told": self.message,
            "preview": None if self.preview is None else self.preview.plain(),
            "left_out": [*self.singly, *self.refused],
            "faults": self.faults.plain(),
        } | self._plain_noise()


AnswerCallback = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Clocks:
    """The time of day, which may jump, and one that does not."""

    wall: Callable[[], float]
    steady: Callable[[], float]


class Synchronizer:
    """Exchanges when due or asked for, in the background."""

    def __init__(
        self,
        sharing: SharingPolicy,
        worker: Worker[ExchangeJob, ExchangeOutcome],
        schedule: SyncSchedule,
        config: SyncConfig,
        *,
        save: Callable[[SavedCallback], object],
        clocks: Clocks,
        decisions: PeerDecisions | None = None,
    ) -> None:
        """Start the schedule; `save` begins to save, and calls back in this thread when it has.

        With `decisions` the exchange has single contributions at hand, and each is checked before
        they are summed up; a server does that itself.
        """
        self._decisions = decisions
        self._sharing, self._worker, self._schedule = sharing, worker, schedule
        self._config, self._save, self._clocks = config, save, clocks
        self._planner: Worker[AdoptionJob, Adoption] = Worker(
            "planner", plan_adoption, lambda error: Adoption(refusal=f"a bug: {error!r}"), bool
        )
        self._job: AdoptionJob | None = None  # that is being planned
        self._saving = False  # the next step comes when the state is saved
        self._screening: Screening | None = None  # of the last pull
        self._callbacks: list[AnswerCallback] = []
        self._undo_callbacks: list[AnswerCallback] = []
        self._rerun = False  # exchange again: the running one has older data
        self._ok = True  # whether the last exchange went well
        self._pushed = 0
        self.last: float | None = None  # when it went well, by the time of day
        self.state = "not asked yet"
        schedule.start(clocks.steady())

    @property
    def busy(self) -> bool:
        """Whether an exchange is under way, or what it brought is being compared or saved."""
        return self._worker.busy or self._planner.busy or self._saving

    @property
    def shift(self) -> float | None:
        """What adopting did to our own level, if what is held now was adopted since the start."""
        return self._sharing.shift

    def change(self, config: SyncConfig) -> None:
        """Exchange as often as another configuration says; the rest stays as it is."""
        self._schedule.change(config.every_s, config.jitter, self._clocks.steady())

    def sharing_of(self, fault: str) -> str:
        """Return in words whether a fault of this device is shared, and if not, why."""
        return self._sharing.faults.sharing_of(fault)

    def tend(self) -> None:
        """Take the outcome of an exchange or a plan, and start one if due; never wait."""
        if self._saving:
            return
        adoption = self._planner.outcome()
        if adoption is not None:
            self._handle_adoption(adoption)
        outcome = None if self._planner.busy or self._saving else self._worker.outcome()
        if outcome is not None:
            self._handle_outcome(outcome)
        if not self.busy and (job := self._sharing.recheck()):
            self._rerun, self._ok = False, True
            self._plan(job)
        if not self.busy and self._schedule.due(self._clocks.steady()):
            self.begin()

    def begin(self, answer: AnswerCallback | None = None) -> None:
        """Exchange now; `answer` is called at the end, after what was pulled is adopted."""
        if answer is not None:
            self._callbacks.append(answer)
        if self.busy:
            self._rerun = True  # the running exchange has older data
            return
        self._pushed = 0
        self._start()

    def undo(self, answer: AnswerCallback) -> None:
        """Undo the last merge; `answer` is called when that is done.

        A merge that is still being planned is dropped: the next exchange brings it again.
        """
        if self._sharing.memory.before is None:
            why = "there is nothing to undo: only the last merge can be undone, and once"
            answer({"told": why})
            return
        self._undo_callbacks.append(answer)
        if not self.busy:
            self._rerun, self._ok = False, True
        if not (self._planner.busy or self._saving):
            self._plan(self._sharing.consider_undo())

    def close(self, timeout_s: float) -> None:
        """Wait no longer than that for the exchange; a plan under way is left behind."""
        self._planner.close()
        self._worker.close(timeout_s)

    def plain(self) -> dict[str, Any]:
        """Return the state of the exchange as plain JSON."""
        last = None if self.last is None else iso_time(self.last)
        found = {"exchange": self.state, "last_sync": last, **self._sharing.plain()}
        if self._decisions is not None:
            found |= {"trust": str(self._decisions.trust), "untrusted": self._decisions.plain()}
        return found

    def decide(self, command: dict[str, Any]) -> str:
        """Approve or dismiss a peer's contribution that waits, or undo that; return what was done.

        Args:
            command: "decision", "device", "incarnation", "pattern" and, if any, "comment".

        Raises:
            SettingError: It cannot be done, with the reason.
        """
        if self._decisions is None:
            raise SettingError(
                "this agent exchanges through a server, which decides: edgemerge fleet approve"
            )
        return self._decisions.command(command)

    def _start(self) -> None:
        memory = self._sharing.memory
        self._rerun = self._config.push and bool(memory.pending)
        if self._config.push and not memory.pending:
            self._sharing.release()
        faults = self._fault_job()
        push = tuple(memory.pending) if self._config.push else ()
        pull = self._selection() if self._config.pull and not self._rerun else None
        knows = KnownExchange(memory.timeline, memory.device, memory.incarnation)
        job = ExchangeJob(push, pull, memory.learner.max_compared, faults, knows)
        self._save_then(partial(self._send, job))

    def _save_then(self, step: SavedCallback) -> None:
        """Save the state; then take the next step, and undo if that was asked for meanwhile."""
        self._saving = True

        def saved(trouble: str) -> None:
            self._saving = False
            step(trouble)
            if self._undo_callbacks and not (self._planner.busy or self._saving):
                self._plan(self._sharing.consider_undo())

        self._save(saved)

    def _send(self, job: ExchangeJob, trouble: str) -> None:
        """Exchange, unless the state is not saved: after a crash this must be known to be sent."""
        if trouble:
            self._failed(UnavailableError("the state cannot be saved, so nothing is shared"))
            self._answer()
        else:
            self._worker.send(job)

    def _fault_job(self) -> FaultJob | None:
        """Queue what may be released of faults; return None if this exchange is done again."""
        if self._rerun:
            return None
        memory, config = self._sharing.memory, self._config
        whose = Selection(
            receiver=memory.device, devices=config.devices or None, without=config.without
        )
        return self._sharing.faults.job(
            self._sharing.min_fresh if config.push else None, whose if config.pull else None
        )

    def _selection(self) -> Selection:
        memory, config = self._sharing.memory, self._config
        if self._decisions is not None:
            level = level_check(memory.learner, self._sharing.trusted)
            own = [
                Contribution(memory.device, stats, memory.revision, name, memory.incarnation)
                for name, stats in own_stats(memory.learner).items()
            ]
            self._screening = self._decisions.screening(own, level)
        return Selection(
            receiver=memory.device,
            incarnation=memory.incarnation,
            devices=config.devices or None,
            without=config.without,
            pattern=config.pattern,
            largest=config.max_contributions,
            rule=self._screening,
        )

    def _handle_outcome(self, outcome: ExchangeOutcome) -> None:
        memory = self._sharing.memory
        del memory.pending[: outcome.pushed]
        self._pushed += outcome.pushed
        if outcome.faults is not None:
            self._sharing.faults.finish(outcome.faults)
        if outcome.agreed:
            # before that nothing was released
            self._rerun = self._rerun or (self._config.push and not self._sharing.agreed)
            self._sharing.agree(outcome.noise, outcome.lost)
        # A new incarnation also receives what the earlier one shared.
        if isinstance(outcome.error, StaleError):
            self._sharing.start_new_incarnation(self._clocks.wall)
            self._start()
            return
        self._ok = outcome.error is None
        if outcome.error is None:
            self.last, self.state = self._clocks.wall(), "ok"
            self._schedule.succeeded(self._clocks.steady())
        else:
            self._failed(outcome.error)
        if outcome.timeline:
            waiting = self._sharing.follow_timeline(outcome.timeline, outcome.held)
            self._rerun = self._rerun or (bool(waiting) and self._config.push)
        if outcome.merged is None:
            self._finish()
        else:
            self._consider(outcome.merged, outcome)

    def _consider(self, merged: Merged, outcome: ExchangeOutcome) -> None:
        """Plan the adoption of what was pulled; note what is left out of it."""
        self._sharing.left_out = outcome.left_out
        refused = self._screening.level.refused if self._screening else {}
        if self._decisions is not None and self._screening is not None:
            self._decisions.keep(self._screening)
        self._sharing.singly = tuple(f"{key[0]}, {key[2]}: {why}" for key, why in refused.items())
        for why in self._sharing.singly:
            logger.warning("left out contributions that do not fit", extra={"values": {"why": why}})
        self._plan(self._sharing.consider(merged, outcome.digest))

    def _plan(self, job: AdoptionJob | None) -> None:
        self._job = job
        if job is None:
            self._finish()
        else:
            self._planner.send(job)

    def _handle_adoption(self, found: Adoption) -> None:
        job = self._job
        if job is None:
            raise RuntimeError("found an adoption, expected one only after a job was planned")
        if self._undo_callbacks and not job.undo:
            self._plan(self._sharing.consider_undo())
        else:
            self._plan(self._sharing.finish(job, found))

    def _finish(self) -> None:
        """Save what the exchange, the adoption or the undoing changed; then answer."""
        undone, self._undo_callbacks = self._undo_callbacks, []
        self._save_then(lambda _trouble: self._finished(undone))

    def _finished(self, undone: list[AnswerCallback]) -> None:
        for answer in undone:
            answer({"told": self._sharing.message})
        if self._worker.busy:  # it was undone meanwhile
            return
        if self._rerun and self._ok:
            self._start()
        else:
            self._answer()

    def _failed(self, error: EdgemergeError) -> None:
        if isinstance(error, RejectedError):
            self._sharing.memory.pending.clear()
        if not isinstance(error, UnavailableError):
            self.state = f"{'denied' if isinstance(error, DeniedError) else 'refused'}: {error}"
        elif not self.state.startswith("away"):
            self.state = f"away since {iso_time(self._clocks.wall())}: {error}"
        retry_s = error.retry_s if isinstance(error, UnavailableError) else None
        self._schedule.failed(self._clocks.steady(), retry_s, hopeless=is_permanent(error))
        logger.warning("the exchange failed", extra={"values": {"why": error}})

    def _answer(self) -> None:
        callbacks, self._callbacks = self._callbacks, []
        for answer in callbacks:
            answer({"pushed": self._pushed, **self.plain()})


def iso_time(at: float) -> str:
    """Return a time of day as ISO 8601 in UTC, or in seconds if it is out of range."""
    try:
        return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}"
    except (OverflowError, ValueError, OSError):
        return f"{at:.0f}"
