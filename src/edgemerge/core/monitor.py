"""The monitor: decides which samples a learner learns, raises alarms, and takes reviews.

A learner alone would learn a fault that lasts. A monitor lets it learn only what is normal:

    monitor  commissioning ──enough samples, a set time or `watch`──> watching
             watching ──relearn──> commissioning
    sample   outside an episode: learnt; odd ones only when no episode followed, up to 4 × limit
             inside an episode: never learnt; odd ones join an unreviewed pattern
    episode  begins when the alarm level passes the limit, ends when it is below again
    pattern  unreviewed ──approve──> normal, ──fault──> fault, ──dismiss──> dismissed
             each of these ──undo──> unreviewed, to the last bit: sums subtract

It has no clock: the time of each sample is an argument, in seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from functools import reduce
from math import ceil, inf, isfinite, sqrt
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgemerge.core.bank import Bank
from edgemerge.core.detector import READY_SAMPLES_PER_HIDDEN, Detector, Learner, Seen
from edgemerge.core.errors import CapacityError, SettingError, UnknownError, must_be
from edgemerge.core.faults import FaultName, Faults, can_compare, fault_name
from edgemerge.core.ledger import must_be_name
from edgemerge.core.limit import FIXED_LIMIT, AlarmLevel, Limit, scores_without_blocks, seconds_of
from edgemerge.core.patterns import outlyingness
from edgemerge.core.projection import Samples, plain_number
from edgemerge.core.similarity import can_check
from edgemerge.core.stats import Stats

Array = NDArray[np.float64]
Marks = NDArray[np.bool_]
Places = NDArray[np.intp]
Learn = Literal["normal", "always", "off"]
Phase = Literal["commissioning", "watching"]
Status = Literal["unreviewed", "normal", "fault", "dismissed"]
Decision = Literal["approve", "fault", "dismiss", "undo"]
DECISIONS: tuple[Decision, ...] = ("approve", "fault", "dismiss", "undo")

COMMISSIONING_PER_HIDDEN = 16  # samples for each hidden value, unless said otherwise
MIN_COMMISSIONING_PER_HIDDEN = 4.0  # the least, when a set time has passed
MAX_ODD = 4.0  # times the limit up to which an isolated odd sample is learnt
BLOCK_ROWS = 8  # odd samples that are assigned to a pattern together
COHERENCE = (0.5, 0.6, 0.9)  # least, first and largest cosine between a block and its pattern
RESERVOIR_ROWS = 64  # rows kept of an unreviewed pattern
MAX_PATTERNS = 16  # unreviewed and dismissed patterns that are kept
MAX_EPISODES = 256  # episodes that are kept, acknowledged ones go first
MAX_EVENTS = 1000
SMALL_SHARE = 0.02  # of the commissioning samples: smaller patterns wait for a review
BLOCK_SHARE = 0.25  # of commissioning: a pattern met only within such a block waits, too
MAX_LOOKS = 4  # for blocks of commissioning that are unlike the rest
MAX_TAIL = 4.0  # outlyingness up to which samples of commissioning may be the tail of normal
RUN_SHARE = 0.03  # of the rows of commissioning: shorter runs of outliers are no block
MAX_RIDGE_COST = 2.0  # times the usual loss of a small ridge that the default one may have
DRIFT_ROWS, DRIFT_BLOCKS = 32, 16  # calm samples scored at once, and such blocks in the mean
MIN_DRIFT_BLOCKS = 8  # before which nothing is concluded
DRIFT_CALM = 2  # blocks below the first limit, after which learning goes on
DRIFT_EVENT, DRIFT_STOP = 1.5, 2.0  # mean score under the snapshot
FAR_OUTSIDE = 2.0  # half-ranges from the middle: half the range outside


@dataclass(frozen=True)
class Result:
    """What a monitor makes of one sample.

    Attributes:
        at: The time of the sample, as given.
        score: How unusual the sample is, before it was learnt; None while too little is known.
        level: The alarm level, the recent score that is held against the limit.
        limit: The limit now.
        alarm: Whether an episode is open.
        ready: Whether commissioning has ended; before that there is no alarm.
        pattern: In an alarm the pattern that the odd samples form, once it is known; else the
            normal pattern that the sample belongs to.
        episode: The number of the open episode, or None.
        fault: In an alarm the name of the known fault that its pattern is most like, or else the
            one that a person here gave to it, or None.
    """

    at: float
    score: float | None
    level: float
    limit: float
    alarm: bool
    ready: bool
    pattern: str | None = None
    episode: int | None = None
    fault: str | None = None


@dataclass
class Episode:
    """A run of samples in alarm.

    Attributes:
        number: Counts from 1.
        began: When the first odd sample came.
        ended: When it ended, or None while it is open.
        peak: The highest score.
        samples: The samples in alarm.
        inputs: The inputs that carried the highest score, each with its share (1 is usual).
        pattern: The pattern that its odd samples form: while it is open the last of them, then
            most of them; None if they were too few.
        acknowledged: Whether a person has seen it.
    """

    number: int
    began: float
    ended: float | None = None
    peak: float = 0.0
    samples: int = 0
    inputs: list[tuple[int, float]] = field(default_factory=list)
    pattern: str | None = None
    acknowledged: bool = False


def first_name(number: int) -> str:
    """Return what a pattern is called until a person names its fault."""
    return f"odd-{number}"


@dataclass
class OddPattern:
    """Samples that belong together and were not learnt, with what a person decided about them.

    Attributes:
        name: Its name; a fault is renamed to what the person called it.
        stats: The exact sums of its samples.
        rows: At most 64 of its samples on the grid, evenly thinned. They never leave the device.
        first: When the first sample came.
        last: When the last one came.
        peak: The highest score.
        inputs: The inputs that carried the highest score, each with its share (1 is usual).
        nearest: The normal pattern that was nearest to it.
        status: unreviewed, normal, fault or dismissed.
        into: The normal pattern that its sums were added to when it was approved.
        direction: The sum of its samples' residuals in units of what is usual, (n,).
        cosines: Of its blocks of samples: how many, and the sum and the sum of squares of the
            cosines between a block's residual and the direction before it.
        number: Counts from 1, and stays when the pattern is renamed.
        like: Which known fault it is most like, or that it is like none; None until it has been
            compared, which takes 2N samples and a known fault.
        compared: How many samples it had then.
    """

    name: str
    stats: Stats
    rows: Thinned
    first: float
    last: float
    direction: Array
    cosines: tuple[int, float, float] = (0, 0.0, 0.0)
    peak: float = 0.0
    inputs: list[tuple[int, float]] = field(default_factory=list)
    nearest: str | None = None
    status: Status = "unreviewed"
    into: str = ""
    number: int = 0
    like: FaultName | None = None
    compared: float = 0.0

    @property
    def least_cosine(self) -> float:
        """The least cosine with which a block belongs here: three deviations below its mean."""
        lowest, first, highest = COHERENCE
        blocks, total, squares = self.cosines
        if blocks < 4:
            return first
        mean = total / blocks
        return min(max(mean - 3.0 * sqrt(max(squares / blocks - mean**2, 0.0)), lowest), highest)

    def plain(self) -> dict[str, Any]:
        """Return what a person may see of it, as plain JSON: no rows, no sums."""
        names = ("name", "status", "first", "last", "inputs", "nearest")
        found = {name: getattr(self, name) for name in names}
        found["like"] = None if self.like is None else self.like.plain()
        return found | {"samples": self.stats.count, "peak": float(f"{self.peak:.6g}")}

    def cosine(self, residual: Array) -> float:
        """Return how well a block's mean residual points in the direction of this pattern."""
        norms = float(np.linalg.norm(self.direction) * np.linalg.norm(residual))
        return float(self.direction @ residual) / norms if norms else 0.0

    def add(self, rows: Array, residual: Array, stats: Stats, last: float) -> None:
        """Add a block of samples."""
        if self.direction.any():
            blocks, total, squares = self.cosines
            c = self.cosine(residual)
            self.cosines = blocks + 1, total + c, squares + c * c
        self.direction = self.direction + len(rows) * residual
        self.stats, self.last = _added(self.stats, stats), last
        for row in rows:
            self.rows.push(row)


@dataclass(frozen=True)
class MonitorEvent:
    """Something that a person may want to know: kind, time, and the pattern or number."""

    kind: str
    at: float
    what: str = ""


class Thinned:
    """At most `capacity` rows of a stream, evenly spaced: when it is full, every second goes."""

    def __init__(self, capacity: int) -> None:
        """Start empty."""
        self.capacity, self.stride, self.seen = capacity, 1, 0
        self.rows: list[NDArray[np.float32]] = []

    def push(self, row: Array) -> None:
        """Take in the next row."""
        if self.seen % self.stride == 0:
            if len(self.rows) == self.capacity:
                self.rows, self.stride = self.rows[::2], 2 * self.stride
            if self.seen % self.stride == 0:
                self.rows.append(row.astype(np.float32))  # holds every grid value exactly
        self.seen += 1

    def array(self, n_inputs: int) -> Array:
        """Return the rows, oldest first."""
        return np.array(self.rows, np.float64).reshape(-1, n_inputs)


class Monitor:
    """Watches a stream of samples: learns what is normal, keeps everything else for a review.

    >>> import numpy as np
    >>> from edgemerge import Detector, Projection
    >>> rng = np.random.default_rng(0)
    >>> monitor = Monitor(Detector(Projection(n_inputs=4, n_hidden=8, seed=7)))
    >>> for at, x in enumerate(rng.normal(0.0, 0.1, (500, 4))):
    ...     result = monitor.take(x, at)
    >>> result.ready, result.alarm
    (True, False)
    >>> for at, x in enumerate(rng.normal(0.6, 0.1, (400, 4)), start=500):
    ...     result = monitor.take(x, at)
    >>> result.alarm, result.pattern, monitor.episodes[0].samples
    (True, 'odd-1', 398)
    >>> monitor.review("odd-1", "approve")
    >>> monitor.take(x, 900.0).score < 4
    True
    """

    def __init__(
        self,
        learner: Detector | Bank,
        *,
        learn: Learn = "normal",
        limit: float | None = None,
        false_alarms: str | float | None = None,
        votes: tuple[int, int] = (3, 5),
        commissioning: int | str | None = None,
    ) -> None:
        """Begin with commissioning, or watch at once if the learner has learnt enough before.

        Args:
            learner: A `Detector` or a `Bank`; from now on only the monitor gives it samples.
            learn: "normal" (the default) learns nothing in an episode. "always" learns every
                sample at once, so a fault that lasts becomes normal. "off" learns nothing.
            limit: A fixed limit for the alarm level. By default, and without `false_alarms`, it is
                4, or up to 6 where samples of commissioning that were held out ask for it.
            false_alarms: A promise instead of a limit: "1 per week", "2 per 10000 samples", or
                episodes per sample; none by default.
            votes: (k, n): an episode begins when k of the last n scores are above the limit, and
                ends after n in a row that are not; (3, 5) unless given.
            commissioning: When watching begins: after this many samples, after a time such as
                "2 hours", or by `watch` ("manual"). 16 samples for each hidden value unless given.

        Raises:
            SettingError: A setting is out of range.
        """
        must_be(learner, (Detector, Bank), "give the learner to be watched over")
        _must_be_policy(learn)
        self.learner, self.learn = learner, learn
        self._alarm_options = {"limit": limit, "false_alarms": false_alarms, "votes": votes}
        self.limit = Limit(limit, false_alarms)
        self.level = AlarmLevel(votes)
        self.n_hidden = learner.projection.n_hidden
        self.commissioning = commissioning
        self._enough, self._enough_s = _commissioning(commissioning, self.n_hidden)
        self.phase: Phase = "commissioning"
        self.taken = 0  # samples since commissioning began
        self.began: float | None = None  # the time of its first sample
        self.last_at: float | None = None
        self.outside = 0  # samples far outside the projection's range
        self.snoozed_until: float | None = None
        self.episode: Episode | None = None
        self.episodes: list[Episode] = []
        self.odd_patterns: dict[str, OddPattern] = {}
        self.faults = Faults(learner.projection)  # that other devices named
        self.events: deque[MonitorEvent] = deque(maxlen=MAX_EVENTS)
        self.drift = 1.0
        self.drifted = False  # recent samples as a whole are odd: nothing is learnt
        self.paused = False  # by command, or since the sums are full: nothing is learnt
        self.snapshot: Detector | Bank | None = None
        self.numbers = {"episode": 0, "odd": 0}
        self.first_rows: list[Array] = []  # rows of commissioning that are not learnt yet
        self.sketch = Thinned(COMMISSIONING_PER_HIDDEN * self.n_hidden)
        self.pending: list[tuple[int, float, Array, float]] = []  # odd: number, time, row, score
        self.block: list[tuple[float, Array, float]] = []  # odd of the episode: time, row, score
        self.assigned: dict[int, int] = {}  # odd samples of the episode by number of pattern
        self.recent: list[Array] = []  # learnt samples to be scored under the snapshot
        self.drifts: deque[float] = deque(maxlen=DRIFT_BLOCKS)
        # is called with each row that is learnt one by one; not saved
        self.on_learnt: Callable[[Array], object] | None = None
        learner.supervised = learn != "always"
        if learner_ready(learner) or learn != "normal":
            self._choose_ridge(_joined(learner))
            self._begin_watching()

    @property
    def options(self) -> dict[str, Any]:
        """The settings of the constructor."""
        return {"learn": self.learn, "commissioning": self.commissioning, **self._alarm_options}

    def change(
        self,
        *,
        learn: Learn,
        limit: float | None,
        false_alarms: str | float | None,
        votes: tuple[int, int],
        commissioning: int | str | None,
    ) -> None:
        """Go on with other settings; what was learnt and counted stays.

        Args:
            learn: "normal", "always" or "off", as for a new monitor, like all others here.
            limit: A fixed limit, or None.
            false_alarms: A promise instead of a limit, or None.
            votes: (k, n) of the alarm level.
            commissioning: When watching begins, if it has not begun yet.

        Raises:
            SettingError: A setting is out of range; nothing changes.
        """
        _must_be_policy(learn)
        options = {"limit": limit, "false_alarms": false_alarms, "votes": votes}
        new_limit, new_level = Limit(limit, false_alarms), AlarmLevel(votes)
        enough = _commissioning(commissioning, self.n_hidden)
        if (limit, false_alarms) != (self.options["limit"], self.options["false_alarms"]):
            state = self.limit.state() | {"settled": None, "aside": None}
            new_limit.resume(state | {"value": None})
            self.limit = new_limit
        if votes != self.level.votes:
            new_level.resume(self.level.state())
            self.level = new_level
        self._alarm_options, self.commissioning = options, commissioning
        self._enough, self._enough_s = enough
        if learn != self.learn:
            self._change_learn(learn)

    def _change_learn(self, learn: Learn) -> None:
        self.learn = learn
        self.learner.supervised = learn != "always"
        self._choose_ridge(_joined(self.learner))
        self.pending = []
        if learn != "normal" and self.phase == "commissioning":
            self._learn_first(self.last_at or 0.0)
            self._begin_watching()
        elif learn == "normal" and self.phase == "watching":
            self._rebase()

    def status(self) -> dict[str, Any]:
        """Return what a person wants to know, as plain JSON; no sample is in it."""
        enough = self._enough if self._enough < inf else None
        return {
            "phase": self.phase,
            "ready": self.ready,
            "learn": "stopped by drift" if self.drifted else self.learn,
            "commissioning": {"samples": self.taken, "of": enough},
            "limit": {
                "value": float(f"{self.limit.value:.6g}"),
                "kind": self.limit.kind,
                "missing": self.limit.missing,
            },
            "drift": float(f"{self.drift:.6g}"),
            "outside": self.outside,
            "snoozed_until": self.snoozed_until,
            "episodes": [
                asdict(e) | {"like": self._plain_like(e)}
                for e in self.episodes
                if not e.acknowledged or e.ended is None
            ],
            "known_faults": len(self.faults),
            "patterns": [p.plain() for p in self.odd_patterns.values()],
        }

    @property
    def ready(self) -> bool:
        """Whether results can be trusted: watching, with a learner that knows enough.

        After adopting that means 4N own samples, which can tell whether what others sent fits.
        """
        return (
            self.phase == "watching"
            and learner_ready(self.learner)
            and not is_provisional(self.learner)
        )

    def take(self, x: Samples, at: float) -> Result:
        """Score a sample, decide on an alarm, and learn the sample if it may be learnt.

        Args:
            x: The sample, (n,).
            at: Its time in seconds; later samples have later times.

        Sums that cannot hold more samples exactly end learning (`paused`), never scoring.

        Raises:
            SampleError: The sample has another size, or is not finite; nothing changes.
            KindError: The time is no number.
            SettingError: The time is not finite.
        """
        at = at if type(at) is float and -inf < at < inf else seconds("at", at)
        seen = self.learner.look(x)
        enough = learner_ready(self.learner)
        if self.last_at is not None:
            self.limit.tell_interval(at - self.last_at)
        self.last_at = at
        self.outside += bool(np.abs(seen.row).max() > FAR_OUTSIDE)
        if self.snoozed_until is not None and at < self.snoozed_until:
            return self._result(seen, at, enough=enough)
        self.snoozed_until = None  # for good: the clock may be set back
        if self.learn == "normal" and self.phase == "watching" and not enough:
            self._begin_commissioning("commissioning", at)  # what it had adopted is gone
        if self.phase == "commissioning" and self.paused:
            return self._result(seen, at, enough=enough)
        self.began = at if self.began is None else self.began
        self.taken += 1
        if self.phase == "commissioning":
            result = self._result(seen, at, enough=enough)  # of what was known before
            self._guard(at, self._commission, seen.row, at)
            return result
        return self._watch(seen, at, enough=enough)

    def _guard(self, at: float, learn: Callable[..., None], *what: Any) -> None:
        """Learn unless it is paused; full sums pause it, and results come all the same."""
        if self.paused:
            return
        try:
            learn(*what)
        except CapacityError as error:
            self.paused = True
            self._note("learning ended", at, str(error))

    def _watch(self, seen: Seen, at: float, *, enough: bool) -> Result:
        if not enough:  # learn="always" or "off", and too little is known
            result = self._result(seen, at, enough=False)
            if self.learn == "always":
                self._guard(at, self._learn_seen, seen)
            return result
        before = self.level.value
        alarm = self.level.update(seen.score) > self.limit.value
        odd = seen.score > self.limit.value
        if alarm:
            self._alarm(seen, at, odd=odd)
        elif self.episode is not None:
            self._end_episode(at)
        result = self._result(seen, at, enough=True)
        self.limit.count(before, self.level.value, inside=alarm, doubtful=self.drifted)
        self._learn(seen, at, alarm=alarm, odd=odd)
        return result

    def _result(self, seen: Seen, at: float, *, enough: bool) -> Result:
        """Return the result; `enough` says whether the learner knows enough to score samples."""
        episode = self.episode
        pattern = seen.pattern if episode is None else episode.pattern
        return Result(
            at=at,
            score=seen.score if enough else None,
            level=self.level.value,
            limit=self.limit.value,
            alarm=episode is not None,
            ready=enough and self.phase == "watching" and not is_provisional(self.learner),
            pattern=pattern,
            episode=None if episode is None else episode.number,
            fault=None if episode is None else self.fault_of(episode),
        )

    def _learn(self, seen: Seen, at: float, *, alarm: bool, odd: bool) -> None:
        if self.learn == "always":
            self._guard(at, self._learn_seen, seen)
        if self.learn != "normal" or alarm:
            return
        if odd:
            self.pending.append((self.taken, at, seen.row, seen.score))
        else:
            self._learn_one(seen, at)
        wait = self.level.votes[1]
        while self.pending and self.pending[0][0] <= self.taken - wait:
            _, _, row, score = self.pending.pop(0)
            if score <= MAX_ODD * self.limit.value:
                h = self.learner.projection.project(row)
                self._learn_one(Seen(self.learner.projection, row, h, score), at)

    def _learn_seen(self, seen: Seen) -> None:
        self.learner.learn(seen)
        if self.on_learnt is not None:
            self.on_learnt(seen.row)

    def _learn_one(self, seen: Seen, at: float) -> None:
        if not self.drifted:
            self._guard(at, self._learn_seen, seen)
        self.recent.append(seen.row)
        if len(self.recent) == DRIFT_ROWS:
            self._look_at_drift(at)

    def _commission(self, row: Array, at: float) -> None:
        self.first_rows.append(row)
        self.sketch.push(row)
        seconds = at - (at if self.began is None else self.began)
        least = MIN_COMMISSIONING_PER_HIDDEN * self.n_hidden
        if self.taken >= self._enough or (seconds >= self._enough_s and self.taken >= least):
            self._end_commissioning(at)
        elif len(self.first_rows) >= COMMISSIONING_PER_HIDDEN * self.n_hidden:
            self._learn_first(at)

    def watch(self) -> None:
        """End commissioning now.

        Raises:
            SettingError: There are too few samples yet.
        """
        least = ceil(READY_SAMPLES_PER_HIDDEN * self.n_hidden)
        if self.phase == "commissioning" and self.taken >= least:
            self._end_commissioning(self.last_at or 0.0)
        if self.phase != "watching":
            raise SettingError(
                f"found {self.taken} samples since commissioning began, expected {least} at least "
                "besides outliers: wait for more"
            )

    def relearn(self) -> None:
        """Begin commissioning again, after maintenance: own samples are forgotten.

        What was adopted stays, and so do faults; approved patterns have to be met again.
        """
        self._begin_commissioning("relearn", self.last_at or 0.0)
        self.learner = self.learner.restarted()
        self.learner.supervised = self.learn != "always"
        self.odd_patterns = {n: p for n, p in self.odd_patterns.items() if p.status == "fault"}

    def _begin_commissioning(self, why: str, at: float) -> None:
        self._end_episode(at)
        self.limit.discard()
        self.phase, self.taken, self.began = "commissioning", 0, None
        self.first_rows, self.pending = [], []
        self.sketch = Thinned(self.sketch.capacity)
        self.level = AlarmLevel(self.level.votes)
        self.snapshot = None
        self.drift, self.drifted = 1.0, False
        self._note(why, at)

    def _learn_first(self, at: float) -> None:
        """Learn the rows kept so far: those in the middle, then the tail that is not odd."""
        rows = np.array(self.first_rows)
        self.first_rows = []
        if not len(rows):
            return
        far, aside = self._sift(rows)
        kept = far <= 1.0
        if len(rows) >= MIN_COMMISSIONING_PER_HIDDEN * self.n_hidden:
            held = scores_without_blocks(_joined(self.learner), rows, kept)
            self.limit.start(self._levels(held[far < inf]), n_inputs=rows.shape[1])
        self.learner.learn_rows(rows[kept])
        scores = self.learner.score_rows(rows, self.learner.projection.project(rows))
        calm = (self._levels(scores) <= self.limit.value) & (scores <= self.limit.value)
        self.learner.learn_rows(rows[~kept & (far <= MAX_TAIL) & calm])
        self._set_runs_aside(rows, aside, at)

    def _choose_ridge(self, whole: Detector) -> Detector:
        """Take a small ridge where the default one has more than twice its usual loss.

        A large ridge, as that of cosine, guards against anomalies among the samples, and lets
        unseen variants of normal score less. But where inputs depend closely on each other it
        fits their coarse shape only, and a fault that breaks these relations scores too little.
        A bank splits such samples instead, and keeps the default for its patterns.

        Args:
            whole: What is known, as one detector.

        Returns:
            The same with the ridge that was chosen.
        """
        found = whole.with_own(whole.own)
        found.small_ridge = False
        if self.learn != "always" and whole.ready:
            default = found.known.level().usual_loss
            found.small_ridge = True
            small = found.known.level().usual_loss
            found.small_ridge = default > MAX_RIDGE_COST * small
        if isinstance(self.learner, Detector):
            self.learner.small_ridge = found.small_ridge
        return found

    def _sift(self, rows: Array) -> tuple[Array, list[Places]]:
        """Return how far out each row is, and the blocks for a review, whose rows are at inf."""
        far = np.zeros(len(rows))
        aside: list[Places] = []
        for _ in range(MAX_LOOKS):  # without one block, others may show
            where = np.flatnonzero(far < inf)
            far[where], unlike = self._unlike_runs(rows[where])
            aside += [where[run] for run in unlike]
            if not unlike:
                break
        return far, aside

    def _unlike_runs(self, rows: Array) -> tuple[Array, list[Places]]:
        """Return how far out each row is, and the runs that wait for a review, which are at inf.

        A run is a block of time most of whose rows are outliers. It waits if the rest does not
        explain it. The rows that are no outliers tell which ridge to take, here and later.
        """
        whole, projection = _joined(self.learner), self.learner.projection
        far = outlyingness(rows)
        kept = far <= 1.0
        total = whole.own + Stats.of_rows(projection, rows[kept])
        whole = self._choose_ridge(whole.with_own(total))
        unlike: list[Places] = []
        for run in _long_runs(~kept):
            rest = whole.with_own(total - Stats.of_rows(projection, rows[run[kept[run]]]))  # M7
            scores = rest.score_rows(rows[run], projection.project(rows[run]))
            if rest.ready and np.median(scores) > FIXED_LIMIT:
                unlike.append(run)
                far[run], total = inf, rest.own
        return far, unlike

    def _set_runs_aside(self, rows: Array, runs: list[Places], at: float) -> None:
        """Let runs wait for a review, except those whose like was met in another block of time.

        Which runs are alike is told by the direction of their residuals, as in an episode. Within
        a quarter of the rows they are one block; so is a run at the beginning of the rows with
        what was set aside earlier, as the rows before may have ended with it.
        """
        projection, begins = self.learner.projection, dict[str, int]()
        for run in sorted(runs, key=lambda places: int(places[0])):
            mine = rows[run]
            stats, mean = Stats.of_rows(projection, mine), self._residuals(mine).mean(0)
            found = self._alike(mean, self._waiting_since(self.began or 0.0))
            if found is None:
                begins[self._set_aside(mine, stats, at).name] = int(run[0])
                continue
            found.add(mine, mean, stats, at)
            first = begins.get(found.name)
            if first is None and run[0] < self.level.votes[1]:
                continue
            if first is not None and run[-1] - first < BLOCK_SHARE * len(rows):
                continue
            into = self._include(found, found.rows.array(projection.n_inputs), None)
            if isinstance(self.learner, Bank):
                self.learner.patterns.instances[into].held = 0  # there is nothing to undo
            del self.odd_patterns[found.name]
            self._note("pattern met again", at, found.name)

    def _waiting_since(self, began: float) -> list[OddPattern]:
        waiting = self.odd_patterns.values()
        return [p for p in waiting if p.status == "unreviewed" and p.first >= began]

    def _residuals(self, rows: Array) -> Array:
        return self.learner.residuals(rows, self.learner.projection.project(rows))

    def _levels(self, scores: Array) -> Array:
        level = AlarmLevel(self.level.votes)
        return np.array([level.update(score) for score in scores])

    def _end_commissioning(self, at: float) -> None:
        self._learn_first(at)
        if isinstance(self.learner, Bank):
            self.learner.catch_up()
            self._set_doubtful_aside(self.learner, at)
        if not learner_ready(self.learner):
            return  # too many were outliers: go on
        self.sketch = Thinned(self.sketch.capacity)
        self._begin_watching()
        self._note("watching", at)

    def _begin_watching(self) -> None:
        self.phase = "watching"
        self._rebase()

    def _set_doubtful_aside(self, bank: Bank, at: float) -> None:
        """Let patterns that are small, or were met in one block only, wait for a review."""
        sketch = self.sketch.array(bank.projection.n_inputs)
        names = [bank.closest_row(row) for row in sketch]
        for name in list(bank):
            places = [i for i, found in enumerate(names) if found == name]
            own = bank[name].own
            enough_is_left = known(bank) - own.count >= READY_SAMPLES_PER_HIDDEN * self.n_hidden
            if own.count and enough_is_left and _is_doubtful(places, len(names)):
                mine = bank.patterns.instances[name].ring.rows()
                bank.take_out(name)
                self._set_aside(mine, own, at)

    def _set_aside(self, rows: Array, stats: Stats, at: float) -> OddPattern:
        """Let samples of commissioning wait for a review, as one pattern."""
        odd = self._new_pattern(at)
        odd.add(rows, self._residuals(rows).mean(0), stats, at)
        odd.inputs = _largest(self.learner.explain_together(rows))
        return odd

    def _alarm(self, seen: Seen, at: float, *, odd: bool) -> None:
        episode = self.episode or self._begin_episode(at)
        episode.samples += 1
        if not odd:
            return
        if not episode.inputs:  # later each block explains itself
            episode.inputs = _largest(self.learner.explain(seen))
        episode.peak = max(episode.peak, seen.score)
        self.block.append((at, seen.row, seen.score))
        if len(self.block) >= BLOCK_ROWS:
            self._assign_block(seen.pattern)

    def _begin_episode(self, at: float) -> Episode:
        self.numbers["episode"] += 1
        began = self.pending[0][1] if self.pending else at
        peak = max((score for *_, score in self.pending), default=0.0)
        self.episode = episode = Episode(self.numbers["episode"], began, peak=peak)
        self._keep_episode(episode)
        self.block += [(time, row, score) for _, time, row, score in self.pending]
        self.pending, self.assigned = [], {}
        self._note("episode began", at, str(episode.number))
        return episode

    def _end_episode(self, at: float) -> None:
        episode, self.episode = self.episode, None
        if episode is None:
            return
        if len(self.block) >= self.level.votes[0]:
            self._assign_block(None, episode)
        self.block = []
        most = max(self.assigned, key=self.assigned.__getitem__, default=0)
        for pattern in self.odd_patterns.values():
            if pattern.number == most:
                episode.pattern = pattern.name
        episode.ended = at
        self.limit.close(doubtful=self.drifted)
        self._note("episode ended", at, str(episode.number))

    def _assign_block(self, nearest: str | None, episode: Episode | None = None) -> None:
        """Add the block to the pattern that it belongs to, or begin a new one."""
        episode = self.episode if episode is None else episode
        block, self.block = self.block, []
        if episode is None or self.learn == "always":
            return
        rows = np.array([row for _, row, _ in block])
        projection = self.learner.projection
        peak, inputs = max(score for *_, score in block), self.learner.explain_together(rows)
        mean = self._residuals(rows).mean(0)
        found = self._alike(mean, [p for p in self.odd_patterns.values() if p.status != "normal"])
        if found is None:
            found = self._new_pattern(block[0][0])
            found.nearest = nearest
        found.add(rows, mean, Stats.of_rows(projection, rows), block[-1][0])
        if peak >= found.peak:
            found.peak, found.inputs = peak, _largest(inputs)
        if peak >= episode.peak:
            episode.inputs = _largest(inputs)
        episode.pattern = found.name
        self.assigned[found.number] = self.assigned.get(found.number, 0) + len(rows)
        if found.stats.count >= 2.0 * found.compared:  # so it is compared a few times at most
            self._compare(found)

    def know_faults(self, faults: Faults, names: Mapping[int, FaultName] | None = None) -> None:
        """Replace the known faults that patterns are compared with; none withdraws all names.

        Args:
            faults: What other devices named, as an exchange returned it.
            names: What comparing gave, by the number of the pattern, if that was done elsewhere:
                patterns that are not in it are compared when they grow. None (the default)
                compares all patterns now.

        Raises:
            MismatchError: They were made with another projection.
        """
        faults.projection.must_equal(self.learner.projection)
        self.faults = faults
        for pattern in self.odd_patterns.values():
            pattern.like, pattern.compared = None, 0.0
            if names is None:
                self._compare(pattern)
            elif len(faults) and pattern.number in names:
                pattern.like = names[pattern.number]
                pattern.compared = pattern.stats.count

    def fault_of(self, episode: Episode) -> str | None:
        """Return the name of the fault that an episode is most like, or None.

        If what other devices named is not like it, that is the name that its pattern was given.

        Args:
            episode: One of this monitor.
        """
        like = self._like(episode)
        return like.name if like else None

    def fault_words(self, episode: Episode) -> str | None:
        """Return which fault an episode is most like, in words; None if not compared yet.

        Args:
            episode: One of this monitor.
        """
        like = self._like(episode)
        return like.words if like else None

    def _like(self, episode: Episode) -> FaultName | None:
        pattern = self.odd_patterns.get(episode.pattern or "")
        if pattern is None or pattern.status in ("normal", "dismissed"):
            return None  # a person has decided that it is no fault
        if pattern.status == "fault" and (pattern.like is None or pattern.like.name is None):
            return FaultName(fault_name(pattern.name), (), len(self.faults))
        return pattern.like

    def _plain_like(self, episode: Episode) -> dict[str, Any] | None:
        like = self._like(episode)
        return like.plain() if like else None

    def _compare(self, pattern: OddPattern) -> None:
        """Compare a pattern with the known faults, if it is large enough."""
        if len(self.faults) and can_compare(pattern.stats.count, self.learner.projection):
            pattern.like = self.faults.compare(pattern.stats)
            pattern.compared = pattern.stats.count

    def _alike(self, residual: Array, patterns: Sequence[OddPattern]) -> OddPattern | None:
        """Return the pattern that samples with this mean residual belong to, if there is one."""
        alike = [p for p in patterns if p.cosine(residual) >= p.least_cosine]
        return max(alike, key=lambda p: p.cosine(residual), default=None)

    def _new_pattern(self, at: float) -> OddPattern:
        self._make_room(at)
        name = ""
        while not name or name in self.odd_patterns:  # a fault may have been called so
            self.numbers["odd"] += 1
            name = first_name(self.numbers["odd"])
        projection = self.learner.projection
        nothing, zero = Stats.empty(projection), np.zeros(projection.n_inputs)
        found = OddPattern(name, nothing, Thinned(RESERVOIR_ROWS), at, at, zero)
        found.number = self.numbers["odd"]
        self.odd_patterns[name] = found
        self._note("new pattern", at, name)
        return found

    def _make_room(self, at: float) -> None:
        """Let the oldest small pattern go, or the oldest, when there are too many."""
        waiting = [p for p in self.odd_patterns.values() if p.status in ("unreviewed", "dismissed")]
        if len(waiting) < MAX_PATTERNS:
            return
        enough = READY_SAMPLES_PER_HIDDEN * self.n_hidden
        oldest = min(waiting, key=lambda p: (p.stats.count >= enough, p.last))
        del self.odd_patterns[oldest.name]
        self._note("pattern dropped", at, oldest.name)

    def _keep_episode(self, episode: Episode) -> None:
        self.episodes.append(episode)
        while len(self.episodes) > MAX_EPISODES:
            seen = [e for e in self.episodes if e.acknowledged]
            self.episodes.remove(seen[0] if seen else self.episodes[0])

    def acknowledge(self, number: int | None = None) -> None:
        """Mark an episode as seen; it stays in the history.

        Args:
            number: Which one; None (the default) means all.

        Raises:
            UnknownError: There is no such episode.
        """
        found = [e for e in self.episodes if number is None or e.number == number]
        if number is not None and not found:
            known = ", ".join(str(e.number) for e in self.episodes) or "none yet"
            raise UnknownError(f"found no episode {number}, expected one of these: {known}")
        for episode in found:
            episode.acknowledged = True

    def snooze(self, until: float | None) -> None:
        """Raise no alarm and learn nothing for a time, as for a planned stop.

        Args:
            until: When it ends, in seconds like the times of samples; None ends it now.

        Raises:
            KindError: It is no number.
            SettingError: It is not finite.
        """
        until = None if until is None else seconds("until", until)
        self._end_episode(self.last_at or 0.0)
        self.level = AlarmLevel(self.level.votes)
        self.pending = []
        self.snoozed_until = until

    def review(self, pattern: str, decision: Decision, *, name: str = "") -> None:
        """Say what a pattern is.

        Args:
            pattern: The name of the pattern; of a fault also the one that it had before.
            decision: "approve" makes it normal, "fault" gives it a name that later alarms carry,
                "dismiss" hides it; "undo" makes it unreviewed again, to the last bit, under the
                name that it had.
            name: What to call the fault. If another pattern is the same fault, this one gets a
                number besides, such as "bearing (2)", and its alarms say "bearing" too. Only a
                fault has one; "" by default.

        Raises:
            UnknownError: There is no such pattern.
            SettingError: The decision does not fit the pattern's status.
        """
        if decision not in DECISIONS:
            raise SettingError(f"found decision {decision!r}, expected one of {DECISIONS}")
        found = self.find_pattern(pattern)
        if (found.status == "unreviewed") == (decision == "undo"):
            raise SettingError(
                f"{pattern!r} is {found.status}, so {decision!r} does not fit: "
                + ("there is nothing to undo" if decision == "undo" else "undo that first")
            )
        if decision == "approve":
            self._approve(found)
        elif decision == "fault":
            self._rename(found, self._numbered(name or pattern, found))
            found.status = "fault"
        elif decision == "dismiss":
            found.status = "dismissed"
        else:
            self._undo(found)
        self._note(decision, self.last_at or 0.0, found.name)

    def find_pattern(self, pattern: str) -> OddPattern:
        """Return the pattern of that name; a fault is also found by its former one.

        Args:
            pattern: Its name, such as "odd-1".

        Raises:
            UnknownError: There is no such pattern.
        """
        if pattern in self.odd_patterns:
            return self.odd_patterns[pattern]
        for found in self.odd_patterns.values():
            if found.number and pattern == first_name(found.number):
                return found
        known = ", ".join(self.odd_patterns) or "none"
        raise UnknownError(f"found no pattern {pattern!r}, expected one of these: {known}")

    def _approve(self, found: OddPattern) -> None:
        rows = found.rows.array(self.learner.projection.n_inputs)
        whole = found.stats.count >= READY_SAMPLES_PER_HIDDEN * self.n_hidden
        found.into = self._include(found, rows, found.name if whole else None)
        found.status = "normal"
        self._rebase()

    def _include(self, found: OddPattern, rows: Array, name: str | None) -> str:
        """Learn a pattern's sums; return the pattern of a bank that has them now."""
        if isinstance(self.learner, Bank):
            return self.learner.include(found.stats, rows, name)
        self.learner = self.learner.with_own(self.learner.own + found.stats)
        return ""

    def _undo(self, found: OddPattern) -> None:
        if found.status == "normal":
            if isinstance(self.learner, Bank):
                found.stats = self.learner.exclude(found.into, found.stats)
            else:
                self.learner = self.learner.without(found.stats)
            self._rebase()
        name = first_name(found.number)
        if found.status == "fault" and found.number and name not in self.odd_patterns:
            self._rename(found, name)
        found.status, found.into = "unreviewed", ""

    def _numbered(self, name: str, found: OddPattern) -> str:
        """Return the name, with a number if other patterns are the same fault."""
        faults = [p.name for p in self.odd_patterns.values() if p.status == "fault"]
        free, number = name, 2
        while free in faults and free != found.name:
            free, number = f"{fault_name(name)} ({number})", number + 1
        return free

    def _rename(self, found: OddPattern, name: str) -> None:
        must_be_name("pattern", name)
        if name != found.name and name in self.odd_patterns:
            raise SettingError(
                f"found the name {name!r} of another pattern, expected a new one: "
                f"{', '.join(self.odd_patterns)} are taken"
            )
        patterns = {name if n == found.name else n: p for n, p in self.odd_patterns.items()}
        for episode in self.episodes:
            if episode.pattern == found.name:
                episode.pattern = name
        found.name, self.odd_patterns = name, patterns

    def _rebase(self) -> None:
        """Compare later samples with what is known now."""
        memo = {id(self.learner.projection): self.learner.projection}
        self.snapshot = deepcopy(self.learner, memo)
        for each in self.snapshot.detectors.values():
            each.known.invalidate()  # so that a restored one gives the same bits
        self.recent = []
        self.drifts.clear()
        self.drift, self.drifted = 1.0, False

    def _look_at_drift(self, at: float) -> None:
        """Score recent calm samples under the snapshot, and act on their mean."""
        rows, self.recent = np.array(self.recent), []
        if self.snapshot is None:
            return
        H = self.learner.projection.project(rows)
        scores = np.minimum(self.snapshot.score_rows(rows, H), self.limit.value)
        self.drifts.append(float(scores.mean()))
        if len(self.drifts) < MIN_DRIFT_BLOCKS:
            return
        before, self.drift = self.drift, float(np.mean(self.drifts))
        if before <= DRIFT_EVENT < self.drift:
            self._note("drift", at, f"{self.drift:.3g}")
        if self.drift > DRIFT_STOP and not self.drifted:
            self.drifted = True
            self._note("learning stopped", at, f"{self.drift:.3g}")
        elif self.drifted and max(calm := list(self.drifts)[-DRIFT_CALM:]) < DRIFT_EVENT:
            self.drifted, self.drift = False, float(np.mean(calm))
            self.drifts.clear()
            self.limit.accept()
            self._note("learning resumed", at, f"{self.drift:.3g}")

    def accept_drift(self) -> None:
        """Take what was learnt up to now as normal: later drift is measured from here."""
        self._rebase()
        self.limit.accept()
        self._note("drift accepted", self.last_at or 0.0)

    def __repr__(self) -> str:
        """Show the phase, what is to be reviewed, and the learner."""
        counts = f"{len(self.episodes)} episodes, {len(self.odd_patterns)} odd patterns"
        return f"Monitor({self.phase}, {counts}, {self.learner!r})"

    def _note(self, kind: str, at: float, what: str = "") -> None:
        self.events.append(MonitorEvent(kind, at, what))


def seconds(name: str, value: Any) -> float:
    """Return a time in seconds as a number of Python."""
    found = plain_number(name, value, "a time in seconds, such as time.time() returns")
    if not isfinite(found):
        raise SettingError(f"found {name}={found}, expected a time in seconds that is finite")
    return found


def learner_ready(learner: Learner) -> bool:
    """Return whether a learner knows enough to score samples."""
    return known(learner) >= READY_SAMPLES_PER_HIDDEN * learner.projection.n_hidden


def is_provisional(learner: Learner) -> bool:
    """Return whether own samples are too few to check what was adopted, if anything was."""
    detectors = learner.detectors.values()
    own = sum(each.own_count for each in detectors)
    adopted = any(each.has_adopted for each in detectors)
    return adopted and not can_check(own, learner.projection)


def has_small_ridge(learner: Detector | Bank) -> bool:
    """Return whether commissioning chose a small ridge; a bank has the default one."""
    return isinstance(learner, Detector) and learner.small_ridge


def known(learner: Learner) -> float:
    """Return the samples that a learner knows, own and others'."""
    return sum(each.count for each in learner.detectors.values())


def _must_be_policy(learn: str) -> None:
    if learn not in ("normal", "always", "off"):
        raise SettingError(f'found learn={learn!r}, expected "normal", "always" or "off"')


def _added(a: Stats, b: Stats) -> Stats:
    """Return a + b, or a alone where the sum would not be exact any more."""
    try:
        return a + b
    except CapacityError:
        return a


def _is_doubtful(places: Sequence[int], total: int) -> bool:
    """Return whether a pattern with samples at these places of commissioning needs a review.

    Nine tenths of the samples tell where a block lies: a stray one far away does not stretch it.
    """
    if len(places) < SMALL_SHARE * total:
        return True
    first, last = np.quantile(places, [0.05, 0.95])
    return bool((last - first) / 0.9 < BLOCK_SHARE * total)


def _joined(learner: Detector | Bank) -> Detector:
    """Return one detector that knows what all patterns together know."""
    parts, nothing = learner.detectors.values(), Stats.empty(learner.projection)
    own = reduce(_added, (each.own for each in parts), nothing)
    others = reduce(_added, (each.others for each in parts), nothing)
    found = Detector.resume(own, others, ridge=learner.ridge)
    found.small_ridge = has_small_ridge(learner)
    return found


def _long_runs(outlier: Marks) -> list[Places]:
    """Return the places of each run of outliers that lasts, with the few others among them."""
    level = AlarmLevel()
    inside = np.array([level.update(float(each)) > 0.0 for each in outlier])
    found = []
    for run in np.split(np.arange(len(outlier)), np.flatnonzero(np.diff(inside)) + 1):
        odd = np.flatnonzero(outlier[: run[-1] + 1])
        odd = odd[odd >= run[0] - level.votes[1]]  # it begins some samples late, and ends late
        if inside[run[0]] and len(odd) >= max(RUN_SHARE * len(outlier), BLOCK_ROWS):
            found.append(np.arange(odd[0], odd[-1] + 1))
    return found


def _largest(shares: Array) -> list[tuple[int, float]]:
    first = np.argsort(-shares, kind="stable")[:8]
    return [(int(i), float(shares[i])) for i in first]


def _commissioning(asked: int | str | None, n_hidden: int) -> tuple[float, float]:
    """Return the samples and the seconds after which watching begins; infinite if by command."""
    if asked is None:
        return float(COMMISSIONING_PER_HIDDEN * n_hidden), inf
    if isinstance(asked, int):
        least = ceil(READY_SAMPLES_PER_HIDDEN * n_hidden)
        if asked < least:
            raise SettingError(f"found commissioning={asked}, expected {least} samples at least")
        return float(asked), inf
    seconds = inf if asked == "manual" else seconds_of(str(asked))
    if seconds is None:
        raise SettingError(
            f'found commissioning="{asked}", expected a number of samples, a time such as '
            '"2 hours", or "manual"'
        )
    return inf, seconds
