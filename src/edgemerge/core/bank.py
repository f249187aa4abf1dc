"""The bank: one detector for each pattern of normal, their number tuned at run time.

x (n,), X (k, n) are readings. Samples are learnt in blocks, counted from the first one, so that
it does not matter how they were grouped when they were handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import inf
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from edgemerge.core.detector import NORMAL, AdoptionPlan, Detector, Seen, one_or_rows
from edgemerge.core.errors import SettingError, UnknownError, must_be
from edgemerge.core.ledger import (
    Contribution,
    Merged,
    contributions_in,
    must_be_name,
    must_be_of_kind,
    must_count,
)
from edgemerge.core.patterns import (
    Event,
    Patterns,
    apply_plan,
    maintain,
    max_adopted,
    plan_adoption,
    plan_holds,
)
from edgemerge.core.projection import Projection, Samples, as_int, learning_settings
from edgemerge.core.stats import Stats, largest_by_name

Array = NDArray[np.float64]

OTHERS = "others"  # the device of stats that are adopted without saying whose they are
BANK_BLOCK_ROWS = 32  # samples that are judged, assigned and learnt together


class Bank:
    """Detects with several patterns of normal; a sample's score is the lowest of all patterns.

    A bank starts with one pattern, "normal". It splits a pattern that two explain better, adds
    one when samples that none explains (they score above `reject_above` and are not learnt) turn
    out to belong together, and joins patterns that have become alike; `events` lists all this.
    It leaves out the outliers among its first samples, unless `reject_above` is None. A bank
    satisfies `Learner`, as `Detector` does.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> idle, fast = rng.normal(-0.5, 0.05, (400, 4)), rng.normal(0.5, 0.05, (400, 4))
    >>> pump = Bank(Projection(n_inputs=4, n_hidden=16, seed=7))
    >>> pump.learn(idle)
    >>> pump.learn(fast)
    >>> [(event.kind, event.pattern) for event in pump.events]
    [('split', 'normal'), ('new', 'normal-3')]
    >>> pump.closest(idle[0]) in ("normal", "normal-2"), pump.closest(fast[0])
    (True, 'normal-3')
    """

    grouped = True  # patterns of others are compared, and kept apart if they are unlike own ones
    _supervised = False
    _hidden: Array | None = None  # of the buffered samples, if they were looked at

    def __init__(
        self,
        projection: Projection,
        *,
        max_patterns: int = 8,
        reject_above: float | None = 8.0,
        ridge: float | None = None,
        forgetting: float = 1.0,
    ) -> None:
        """Start with nothing learnt and nothing adopted.

        Args:
            projection: The hidden layer. Devices that merge must build the same one.
            max_patterns: How many patterns the bank may find itself, 8 unless given; up to four
                times as many are adopted. Each costs memory and time.
            reject_above: Do not learn samples that every pattern scores above this; 8 unless
                given. None or math.inf learns every sample, and then no new pattern is found.
            ridge: ρ, added to the diagonal of U where P is solved; None (the default) chooses it
                from the data.
            forgetting: After each new sample the older ones of its pattern weigh `forgetting`²
                times what they did. 1 (the default) keeps all; 0.999 follows slow drift.

        Raises:
            SettingError: A setting is out of range.
        """
        must_be(projection, Projection, "build one that all devices share")
        max_patterns = as_int("max_patterns", max_patterns)
        if max_patterns < 1:
            raise SettingError(f"found max_patterns={max_patterns}, expected 1 or more")
        ridge, forgetting, reject_above = learning_settings(ridge, forgetting, reject_above)
        self.projection = projection
        settings = {"ridge": ridge, "forgetting": forgetting}
        self.__dict__ |= {"max_patterns": max_patterns, **settings}
        self.patterns = Patterns(projection, max_patterns, inf, settings)
        self.reject_above = reject_above
        self.waiting = np.empty((0, projection.n_inputs))

    @property
    def max_patterns(self) -> int:
        """How many patterns the bank may find itself, as given."""
        return cast(int, self.__dict__["max_patterns"])

    @property
    def ridge(self) -> float | None:
        """The ridge that was given."""
        return cast("float | None", self.__dict__["ridge"])

    @property
    def forgetting(self) -> float:
        """How much old samples of a pattern weigh after a new one, as given."""
        return cast(float, self.__dict__["forgetting"])

    @property
    def reject_above(self) -> float | None:
        """The score above which no sample is learnt; it may be set at any time."""
        return cast("float | None", self.__dict__["reject_above"])

    @reject_above.setter
    def reject_above(self, limit: float | None) -> None:
        limit = learning_settings(None, 1.0, limit)[2]
        self.__dict__["reject_above"] = None if limit is None else float(limit)
        self.patterns.reject_above = inf if limit is None or self._supervised else limit

    def look(self, x: Samples) -> Seen:
        """Project and score one sample (n,) without learning it.

        Args:
            x: The sample, (n,).

        Returns:
            What `learn` and `explain` need, with the score and the pattern that it belongs to.

        Raises:
            SampleError: The sample has another size, or is not finite.
        """
        return self._look(self.projection.to_one(x))

    def _look(self, row: Array) -> Seen:
        h = self.projection.project(row)
        if not self.patterns.instances:
            return Seen(self.projection, row, h, 1.0)
        score = self.patterns.scores(row[None], h[None]).min()
        return Seen(self.projection, row, h, float(score), self.closest_row(row))

    def learn(self, X: Samples | Seen) -> None:
        """Learn samples; up to 31 of them are buffered until their block is full.

        Args:
            X: What `look` returned, one sample (n,) or rows (k, n).

        Raises:
            SampleError: A sample has another size, or is not finite; nothing is learnt.
            CapacityError: The sums could not hold the samples exactly; nothing is learnt.
        """
        if isinstance(X, Seen):
            self.projection.must_equal(X.projection)
            self.learn_rows(X.row[None], X.hidden[None])
        else:
            self.learn_rows(self.projection.to_rows(X))

    def catch_up(self) -> None:
        """Learn the buffered samples now, before their block is full."""
        if len(self.waiting):
            self.patterns.learn(self.waiting, self._buffered_hidden())
            maintain(self.patterns)
            self.waiting, self._hidden = self.waiting[:0], None

    @one_or_rows
    def score(self, X: Samples) -> float | Array:
        """Return how unusual samples are; 1 is typical.

        Args:
            X: One sample (n,) or rows (k, n).

        Returns:
            A float for one sample, (k,) for rows.
        """
        rows = self.projection.to_grid(X)
        if rows.ndim == 1:
            return self._look(rows).score
        return self.score_rows(rows, self.projection.project(rows))

    @one_or_rows
    def learn_and_score(self, X: Samples) -> float | Array:
        """Score each block of samples, then learn it.

        Args:
            X: One sample (n,) or rows (k, n).

        Returns:
            A float for one sample, (k,) for rows.
        """
        given = self.projection.to_grid(X)  # refuses all before any is learnt
        rows = np.atleast_2d(given)
        scores, done = [np.empty(0)], 0
        while done < len(rows):
            part = rows[done : done + BANK_BLOCK_ROWS - len(self.waiting)]
            H = self.projection.project(part)
            scores.append(self.score_rows(part, H))
            self.learn_rows(part, H)
            done += len(part)
        found = np.concatenate(scores)
        return float(found[0]) if given.ndim == 1 else found

    def closest(self, x: Samples) -> str:
        """Return the name of the pattern that a sample belongs to.

        Args:
            x: The sample, (n,).

        Raises:
            UnknownError: There is no pattern yet.
        """
        row = self.projection.to_one(x)
        if not self.patterns.instances:
            raise UnknownError("this bank knows no pattern yet: let it learn first")
        return self.closest_row(row)

    def explain(self, X: Samples | Seen) -> Array:
        """Return how far each input is from what the others say, for the pattern of each sample.

        Args:
            X: What `look` returned, one sample (n,) or rows (k, n), each explained by itself.

        Returns:
            (n,) for one sample, (k, n) for rows, in the order of the projection's inputs, as for a
            detector: 1 or less is usual. Ones while there is no pattern yet.
        """
        given = X.row_of(self.projection) if isinstance(X, Seen) else self.projection.to_grid(X)
        rows = np.atleast_2d(given)
        found = np.ones_like(rows)
        for detector, mine in self._by_pattern(rows):
            found[mine] = detector.explain_each(rows[mine])
        return found.reshape(given.shape)

    def explain_by_name(self, x: Samples | Seen, *, most: int = 3) -> dict[str, float]:
        """Return the inputs that explain a sample best, by name, the largest first.

        Args:
            x: What `look` returned, or one sample (n,).
            most: The number of inputs, 3 unless given.

        Returns:
            What `explain` returns for them. An input without a name has its number, "0" first.
        """
        row = x.row_of(self.projection) if isinstance(x, Seen) else self.projection.to_one(x)
        return largest_by_name(self.explain_together(row[None]), self.projection.names, most)

    def explain_together(self, rows: Array) -> Array:
        """Return one explanation of samples that belong together, as in an alarm, (n,).

        Args:
            rows: The samples on the grid, (k, n); each counts for the pattern that it belongs to.
        """
        if not len(self):
            return np.ones(rows.shape[1])
        found = np.zeros(rows.shape[1])
        for detector, mine in self._by_pattern(rows):
            found += mine.mean() * detector.explain_together(rows[mine])
        return found

    def _by_pattern(self, rows: Array) -> Iterator[tuple[Detector, NDArray[np.bool_]]]:
        """Yield each detector that rows (k, n) on the grid belong to, and which these are."""
        home = self.patterns.nearest(rows) if len(self) else np.full(len(rows), -1)
        for i, detector in enumerate(self.detectors.values()):
            if (home == i).any():
                yield detector, home == i

    def residuals(self, rows: Array, H: Array) -> Array:
        """Return x − hB for the pattern of each sample, in units of what is usual, (k, n).

        Args:
            rows: The samples on the grid, (k, n).
            H: Their hidden values, (k, N).
        """
        found = np.ones_like(rows)
        for detector, mine in self._by_pattern(rows):
            found[mine] = detector.residuals(rows[mine], H[mine])
        return found

    def drift(self, pattern: str) -> float:
        """Return how far a pattern's recent samples lie from what was learnt, in its spreads.

        Args:
            pattern: The name of the pattern.

        Raises:
            UnknownError: There is no such pattern.
        """
        self[pattern]
        return self.patterns.instances[pattern].drift

    def share(self, device: str, *, revision: int, incarnation: int = 0) -> list[Contribution]:
        """Return what this device saw itself, one contribution per pattern.

        Buffered samples are learnt first. Nothing that was adopted is in it.

        Args:
            device: The name of this device, the same each time.
            revision: A number that grows from one contribution to the next; the newest wins.
            incarnation: Which life of the device this is, 0 unless given. Use a new one when the
                device starts from nothing and what it shared earlier should stay.
        """
        self.catch_up()
        origin: dict[str, Any] = {"revision": revision, "incarnation": incarnation}
        shares = [
            detector.share(device, pattern=name, **origin)
            for name, detector in self.detectors.items()
            if detector.own_count
        ]
        return [contribution for share in shares for contribution in share]

    def adopt(self, merged: Merged | Stats | Contribution | Iterable[Contribution]) -> None:
        """Replace what the others have seen; adopting twice is the same as once.

        Each sum is added to the pattern that it is alike, or kept as a pattern of its own.

        Args:
            merged: What an exchange returned; buffered samples stay buffered then. Or the stats
                of one pattern, or contributions; buffered samples are learnt before these.

        Raises:
            MismatchError: They were made with another projection.
            RejectedError: A contribution is of a fault.
            SettingError: A count is below 0.
        """
        if isinstance(merged, Stats):
            merged.must_be_compatible(self.projection, self.projection.n_inputs)
            adopted = [Contribution(OTHERS, merged, revision=0)] if merged.count else []
        elif isinstance(merged, Merged):
            self.projection.must_equal(merged.projection)
            adopted = merged.contributions
        else:
            adopted = contributions_in(merged)
        self._must_fit(adopted)
        if not isinstance(merged, Merged):
            self.catch_up()
        apply_plan(self.patterns, plan_adoption(self.patterns, adopted))

    def plan(self, merged: Merged, checkpoint: Callable[[], object] = bool) -> AdoptionPlan:
        """Do what takes long of `adopt`, and change nothing: for another thread, with a copy.

        Args:
            merged: What an exchange returned.
            checkpoint: Called between comparisons; it may pause the work, or raise to end it. By
                default nothing is called.
                By default it does nothing.

        Returns:
            What `apply` needs.

        Raises:
            MismatchError: It was made with another projection.
        """
        must_be(merged, Merged, "give what an exchange returned")
        self.projection.must_equal(merged.projection)
        self._must_fit(merged.contributions)
        plan = plan_adoption(self.patterns, merged.contributions, checkpoint)
        for detector in plan.foreign.values():
            checkpoint()
            detector.known.level()  # solves it, so that the next sample does not wait for it
        return plan

    def holds(self, plan: AdoptionPlan) -> bool:
        """Return whether planning anew would change the same; else plan again.

        Args:
            plan: What `plan` returned, of this bank or of a copy; this one may have learnt since.
        """
        return plan_holds(self.patterns, plan)

    def apply(self, plan: AdoptionPlan) -> None:
        """Replace what the others have seen by what was planned; a plan can be applied once.

        Args:
            plan: What `plan` returned, of this bank or of a copy. It must hold.

        Raises:
            CapacityError: The sums do not fit together any more; nothing has changed.
        """
        apply_plan(self.patterns, plan)

    def copy_own(self) -> Bank:
        """Return a bank with copies of the patterns that have samples of this device.

        Rows and buffered samples are left out: it serves to plan and to check, not to go on.
        """
        bank, no_rows = Bank(self.projection, **self.options), self.waiting[:0]
        for name, each in self.detectors.items():
            if each.own_count:
                bank.patterns.add(name, each.own, no_rows).detector.adopt(each.others)
        return bank

    @property
    def max_compared(self) -> int:
        """How many patterns of others are compared: twice those that can be kept."""
        return 2 * max_adopted(self.max_patterns)

    def _must_fit(self, contributions: Iterable[Contribution]) -> None:
        for contribution in contributions:
            must_be_of_kind(contribution)
            contribution.stats.must_be_compatible(self.projection, self.projection.n_inputs)
            must_count(contribution.stats)

    @property
    def supervised(self) -> bool:
        """Whether a monitor decides what is learnt: then no sample is rejected, none found new."""
        return self._supervised

    @supervised.setter
    def supervised(self, on: bool) -> None:
        self._supervised = on
        limit = None if on else self.reject_above
        self.patterns.reject_above = inf if limit is None else limit

    def include(self, stats: Stats, rows: Array, name: str | None) -> str:
        """Add samples that this device saw, and return the pattern that has them now.

        Args:
            stats: Their sums.
            rows: Some of them on the grid, (k, n).
            name: Keep them as a pattern of their own under this name, which is neither split nor
                joined; None adds them to the pattern with the nearest centroid, if there is one
                besides such patterns.
        """
        self.catch_up()
        mean = stats.C / stats.count
        free = {n: each for n, each in self.patterns.instances.items() if not each.pinned}
        if name is None and free:
            name = min(free, key=lambda n: float(((free[n].centroid - mean) ** 2).sum()))
            each = free[name]
            each.detector = each.detector.with_own(each.detector.own + stats)
            each.held += 1
        else:
            name = self.patterns.free_name(name or NORMAL)
            self.patterns.add(name, stats, rows).pinned = True
        return name

    def exclude(self, name: str, stats: Stats) -> Stats:
        """Take back what `include` added to a pattern; return the sums that were taken out.

        Args:
            name: The pattern that `include` returned.
            stats: The sums that it was given.
        """
        self.catch_up()
        detector, each = self[name], self.patterns.instances[name]
        if each.pinned:
            return self.take_out(name)
        each.detector = detector.without(stats)
        each.held -= 1
        return stats

    def take_out(self, name: str) -> Stats:
        """Forget what this device saw of a pattern, and return it; what was adopted stays.

        Args:
            name: The pattern.
        """
        self.catch_up()
        own = self[name].own
        if self[name].others.count:
            nothing = Stats.empty(self.projection)
            self.patterns.instances[name].detector = self[name].with_own(nothing)
        else:
            del self.patterns.instances[name]
        return own

    def restarted(self) -> Bank:
        """Return a bank that has seen nothing itself; what it adopted stays."""
        bank = Bank(self.projection, **self.options)
        adopted = [
            Contribution(OTHERS, each.others, revision=0, pattern=f"{i}")
            for i, each in enumerate(self.detectors.values())
            if each.others.count
        ]
        bank.adopt(adopted)
        bank.supervised = self.supervised
        return bank

    def rename(self, pattern: str, name: str) -> None:
        """Rename a pattern; it is shared under the new name from now on.

        Args:
            pattern: Its name until now.
            name: Its new name, 1 to 200 printable characters, which no other pattern has.

        Raises:
            UnknownError: There is no such pattern.
            SettingError: The new name is not valid, or taken.
        """
        self[pattern]
        must_be_name("pattern", name)
        if name in self.patterns.instances:
            raise SettingError(f"found {name!r}, expected a name that no pattern has: {list(self)}")
        names = (name if old == pattern else old for old in self)
        self.patterns.instances = dict(zip(names, self.patterns.instances.values(), strict=True))

    @property
    def options(self) -> dict[str, Any]:
        """The settings of the constructor."""
        names = ("max_patterns", "reject_above", "ridge", "forgetting")
        return {name: getattr(self, name) for name in names}

    @property
    def detectors(self) -> dict[str, Detector]:
        """The detector of each pattern, by name."""
        return {name: each.detector for name, each in self.patterns.instances.items()}

    @property
    def buffered(self) -> int:
        """The samples that were given to `learn` and are not in any sum yet."""
        return len(self.waiting)

    @property
    def events(self) -> list[Event]:
        """What happened to the patterns, oldest first; the last thousand are kept."""
        return list(self.patterns.events)

    @property
    def rejected(self) -> int:
        """The number of samples that no pattern explained, and that were not learnt."""
        return self.patterns.rejected

    def __getitem__(self, pattern: str) -> Detector:
        """Return the detector of a pattern."""
        if pattern not in self.patterns.instances:
            raise UnknownError(f"no pattern {pattern!r}; known: {list(self)}")
        return self.patterns.instances[pattern].detector

    def __iter__(self) -> Iterator[str]:
        """Go through the names of the patterns."""
        return iter(self.patterns.instances)

    def __len__(self) -> int:
        """Count the patterns."""
        return len(self.patterns.instances)

    def __repr__(self) -> str:
        """Show how many patterns and samples there are."""
        samples = sum(self[name].count for name in self)
        return f"Bank({len(self)} patterns, {samples:g} samples)"

    def learn_rows(self, fresh: Array, H: Array | None = None) -> None:
        """Learn samples that are on the grid already.

        Args:
            fresh: The samples on the grid, (k, n).
            H: Their hidden values, (k, N), if they are known; None by default.
        """
        rows = np.vstack([self.waiting, fresh]) if len(self.waiting) else fresh
        self.patterns.must_fit(rows)
        hidden = None if H is None else np.vstack([self._buffered_hidden(), H])
        done = len(rows) - len(rows) % BANK_BLOCK_ROWS
        for i in range(0, done, BANK_BLOCK_ROWS):
            block = slice(i, i + BANK_BLOCK_ROWS)
            X = rows[block]
            self.patterns.learn(X, self.projection.project(X) if hidden is None else hidden[block])
            maintain(self.patterns)
        self.waiting = rows[done:].copy()  # a view would keep all rows alive
        self._hidden = None if hidden is None else hidden[done:].copy()

    def _buffered_hidden(self) -> Array:
        if self._hidden is None or len(self._hidden) != len(self.waiting):
            return self.projection.project(self.waiting)
        return self._hidden

    def score_rows(self, rows: Array, H: Array) -> Array:
        """Score samples that are on the grid already, (k,).

        Args:
            rows: The samples on the grid, (k, n).
            H: Their hidden values, (k, N).
        """
        if not self.patterns.instances:
            return np.ones(len(rows))
        return np.asarray(self.patterns.scores(rows, H).min(0))

    def closest_row(self, row: Array) -> str:
        """Return the name of the pattern that a sample on the grid belongs to.

        Args:
            row: The sample on the grid, (n,).
        """
        return list(self.patterns.instances)[int(self.patterns.nearest(row[None])[0])]
