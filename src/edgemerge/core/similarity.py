"""Similarity: whether two sets of sums describe the same kind of data, and grouping by it.

a explains b when the mean loss of b's data under a's readout is close to the usual loss of b. ⟨B,V⟩
and ⟨B,UB⟩ = ⟨BBᵀ,U⟩ are inner products, so all pairs are computed with a few large matrix products,
one flattened B, V, BBᵀ or U per row. R (D, D) holds loss ratios: one row per readout, one column
per set of data.

Grouping takes the largest contributions first, and equal ones in the order of their keys, so the
groups do not depend on the order of arrival. Each joins the group that explains it best, or starts
a new one. Finally groups that explain each other are joined, nearest first. This takes k·G
comparisons for k contributions in G groups, and G² at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import combinations
from math import ceil, inf, log
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgemerge.core.errors import SettingError, must_be
from edgemerge.core.ledger import Contribution, Key, Selection
from edgemerge.core.projection import Projection, as_number, random_uniform
from edgemerge.core.readout import Level, Readout, ridge_for
from edgemerge.core.stats import Stats

SIMILAR_FACTOR = 2.5  # HAR, 30 subjects: moving, still and lying never mix; see decision 0010
SAME_FACTOR = 1.2  # two patterns of a bank within it are joined; lower, since joining is final
SHIFTED_INPUTS = 0.05  # the part of the inputs that tells how far two means are apart
SMALL_VARIANCE = 0.01  # of the mean variance of all inputs, that each has at least
# samples per effective parameter from which the level is reliable
SAMPLES_PER_PARAMETER = 1.3

# Of honest and of hostile sums: decisions 0028 and 0033.
LEVEL_RATIOS = (0.6, 1.6)  # honest sums of unlike patterns lie within
LEVEL_FACTOR = 3.0  # patterns of one projection are within 2.5 of each other on HAR
SMALL_LEVEL_FACTOR = 6.0  # single people on HAR: 3.5; a few rows of noise: 27 and more
STRUCTURED_LEVEL_FACTOR = 8.0  # digits of MNIST: 6.9
STRUCTURED_SHARE = 0.5  # of what noise leaves unexplained
MIN_NOISE = 0.5  # what noise must leave unexplained at least, for structure to mean anything
MAX_NOISE_TIMES_N = 0.8  # share of noise in a contribution, times N: decision 0037
OWN_NOISE_FACTOR = 3.0  # or that in own patterns, times this
MIN_NOISE_HIDDEN = 32  # hidden values; honest samples may fill every direction of fewer
NOISE_SHARE = 0.9  # likewise; honest patterns of 561 and 784 inputs have 0.04 to 0.79
MAX_OWN_SHARE = 0.8  # own patterns above it cannot be told from noise
NOISE_ROWS_PER_HIDDEN = 16  # that tell what noise leaves unexplained
CHECK_SAMPLES_PER_HIDDEN = 4.0  # own samples from which that tells honest sums from others

Array = NDArray[np.float64]

K = TypeVar("K")


@dataclass(frozen=True, eq=False)
class Profile:
    """Sums with their readout and level, solved once for several comparisons.

    Use `Profile.of` rather than the constructor.

    Args:
        stats: The sums.
        readout: Their readout.
        level: The usual loss under it.
    """

    stats: Stats
    readout: Readout
    level: Level

    @classmethod
    def of(cls, stats: Stats | Profile) -> Profile:
        """Return the profile of sums, or the argument if it is a profile.

        Args:
            stats: Sums that determine a readout, or a profile.
        """
        if isinstance(stats, Profile):
            return stats
        readout = stats.solve()
        return cls(stats, readout, level_of(stats, readout))

    @cached_property
    def usual_loss(self) -> float:
        """The expected loss of new samples of this kind."""
        return float(self.level.usual_loss)

    @cached_property
    def unexplained(self) -> float:
        """The usual loss as a share of the variance: 0 if the readout explains all of it."""
        return self.usual_loss / float(_moments(self)[1].mean())  # M10

    @cached_property
    def squares(self) -> float:
        """The sum of S."""
        return float(self.stats.S.sum())

    @cached_property
    def squared_readout(self) -> Array:
        """BBᵀ, (N, N): with it a comparison takes N² + Nn multiplications instead of N²n."""
        B = self.readout.B
        return np.asarray(B @ B.T)

    @cached_property
    def size(self) -> float:
        """The number of outputs of all samples: a sum of squares over it is a mean loss."""
        return float(max(self.stats.count, self.stats.projection.quantum) * self.stats.S.size)

    @cached_property
    def known(self) -> bool:
        """Whether there are enough samples for a reliable level."""
        return bool(self.stats.count >= SAMPLES_PER_PARAMETER * self.level.freedom)


def level_of(stats: Stats, readout: Readout) -> Level:
    """Return the level of sums under their own readout."""
    freedom = len(stats.U) - readout.ridge * float(np.trace(readout.P))  # M11
    count = max(stats.count, stats.projection.quantum)
    losses = stats.mean_loss(readout) * count  # M10
    p = stats.projection
    return Level(losses, freedom, count, count, p.rounding_loss, p.rule.loss_share)


def loss_ratio(a: Stats | Profile, b: Stats | Profile) -> float:
    """Return the mean loss of b's data under a's readout, as a multiple of b's usual loss.

    Args:
        a: The sums whose readout explains, or their profile if it is used several times.
        b: The sums of the data. If they have too few samples for a reliable level, a's is used.

    >>> from edgemerge.core.projection import Projection
    >>> shared = Projection(n_inputs=2, n_hidden=2, activation="identity")
    >>> line = [[k / 50, k / 50] for k in range(-50, 50)]
    >>> cross = [[k / 50, -k / 50] for k in range(-50, 50)]
    >>> loss_ratio(Stats.of(shared, line), Stats.of(shared, line[::2])) < 3
    True
    >>> loss_ratio(Stats.of(shared, line), Stats.of(shared, cross)) > 3
    True
    """
    mine, theirs = Profile.of(a), Profile.of(b)
    level = theirs.usual_loss if theirs.known else mine.usual_loss
    data, B, G = theirs.stats, mine.readout.B, mine.squared_readout
    losses = theirs.squares - 2.0 * float(np.vdot(B, data.V)) + float(np.vdot(G, data.U))  # M10
    return max(losses, 0.0) / theirs.size / level


def explains(a: Stats | Profile, b: Stats | Profile, factor: float = SIMILAR_FACTOR) -> bool:
    """Return whether a's readout explains b's data within a factor of b's usual loss.

    Args:
        a: The sums whose readout explains, or their profile if it is used several times.
        b: The sums of the data, likewise.
        factor: The largest loss, as a multiple of the usual one; 2.5 by default.
    """
    return loss_ratio(a, b) <= factor


def alike(a: Stats | Profile, b: Stats | Profile, factor: float = SIMILAR_FACTOR) -> bool:
    """Return whether each explains the other's data within a factor of the usual loss.

    Args:
        a: Sums, or their profile if it is used several times.
        b: Sums, likewise.
        factor: The largest loss, as a multiple of the usual one; 2.5 by default.
    """
    return distance(a, b) <= factor


def distance(a: Stats | Profile, b: Stats | Profile) -> float:
    """Return the larger of the two loss ratios: the worse of the two directions.

    Args:
        a: Sums, or their profile if it is used several times.
        b: Sums, likewise.
    """
    mine, theirs = Profile.of(a), Profile.of(b)
    return max(loss_ratio(mine, theirs), loss_ratio(theirs, mine))


def centroid_shift(a: Stats | Profile, b: Stats | Profile) -> float:
    """Return how far apart two means are: squared, by the variance around them.

    It is the mean over the twentieth of the inputs that differ most, so that one that moved shows
    among hundreds. Inputs that hardly vary count as if they did a little.

    Args:
        a: Sums, or their profile.
        b: Sums, likewise.

    >>> from edgemerge.core.projection import Projection
    >>> shared = Projection(n_inputs=1, n_hidden=2, activation="identity")
    >>> low, high = (Stats.of(shared, [[x - 0.25], [x + 0.25]] * 9) for x in (0.0, 0.5))
    >>> round(centroid_shift(low, high), 1), centroid_shift(low, low)
    (4.0, 0.0)
    """
    (mean, variance), (other, around) = _moments(Profile.of(a)), _moments(Profile.of(b))
    within = (variance + around) / 2.0
    shifts = np.sort((mean - other) ** 2 / (within + SMALL_VARIANCE * within.mean()))  # M10
    return float(shifts[-ceil(SHIFTED_INPUTS * len(shifts)) :].mean())


def _moments(one: Profile) -> tuple[Array, Array]:
    """Return mean and variance of each output."""
    stats, count = one.stats, max(one.stats.count, one.stats.projection.quantum)
    mean = stats.C / count
    return mean, np.maximum(stats.S / count - mean**2, stats.projection.rounding_loss)


def best_match(profiles: Mapping[K, Profile], one: Profile, factor: float) -> K | None:
    """Return the key of the profile that explains one's data best, or None if none does.

    Args:
        profiles: The candidates; the first one wins a tie.
        one: The profile whose data are to be explained.
        factor: The largest loss ratio that counts as a match.
    """
    return smallest({key: loss_ratio(known, one) for key, known in profiles.items()}, factor)


def nearest_pair(
    profiles: Mapping[K, Profile], factor: float, pairs: Iterable[tuple[K, K]] | None = None
) -> tuple[K, K] | None:
    """Return the two profiles with the smallest distance, or None if it is above the factor.

    Args:
        profiles: The candidates.
        factor: The largest distance that counts.
        pairs: The pairs to compare, all by default; the first one wins a tie.
    """
    pairs = combinations(profiles, 2) if pairs is None else pairs
    return smallest({(a, b): distance(profiles[a], profiles[b]) for a, b in pairs}, factor)


def smallest(ratios: Mapping[K, float], factor: float) -> K | None:
    """Return the key of the smallest ratio, the first of equals; None if it is above the factor.

    Args:
        ratios: The ratios.
        factor: The largest that counts.
    """
    best = min(ratios, key=ratios.__getitem__, default=None)
    return best if best is not None and ratios[best] <= factor else None


class Compared(NamedTuple):
    """What some peers have seen, and how far each pattern of our own is from it."""

    profile: Profile
    distances: dict[str, float]

    @property
    def match(self) -> str | None:
        """Our own pattern that it belongs to; None if it is a pattern of its own."""
        return smallest(self.distances, SAME_FACTOR)


BLOCK_BYTES = 2**25  # bytes of flattened matrices in memory at once, for rows and for columns


def loss_ratios(
    readouts: Sequence[Profile],
    data: Sequence[Profile],
    checkpoint: Callable[[], object] = bool,
) -> Array:
    """Return `loss_ratio(a, b)` for each readout a (rows) and each set of data b (columns)."""
    R = np.empty((len(readouts), len(data)))
    if R.size:
        stats = data[0].stats
        many = max(1, BLOCK_BYTES // (8 * (stats.U.size + stats.V.size)))
        for i in range(0, len(readouts), many):
            rows = _Readouts(readouts[i : i + many])
            for j in range(0, len(data), many):
                checkpoint()
                R[i : i + many, j : j + many] = rows.explain(data[j : j + many])
    return R


class _Readouts:
    """Some readouts, flattened."""

    def __init__(self, profiles: Sequence[Profile]) -> None:
        self._B = _flattened(p.readout.B for p in profiles)
        self._G = _flattened(p.squared_readout for p in profiles)
        self._usual = np.array([p.usual_loss for p in profiles])

    def explain(self, data: Sequence[Profile]) -> Array:
        """Return the mean loss of each set of data, as a multiple of its usual loss."""
        V, U = _flattened(d.stats.V for d in data), _flattened(d.stats.U for d in data)
        S, size = np.array([d.squares for d in data]), np.array([d.size for d in data])
        losses = S - 2.0 * self._B @ V.T + self._G @ U.T  # M10
        usual = np.array([d.usual_loss for d in data])
        level = np.where([d.known for d in data], usual, self._usual[:, None])
        return np.asarray(np.maximum(losses, 0.0) / size / level)


def _flattened(arrays: Iterable[Array]) -> Array:
    return np.array([array.ravel() for array in arrays])


def loss_ratios_by_owner(R: Array, sizes: Sequence[int], samples: Sequence[float]) -> Array:
    """Return the loss ratios between owners, from those between their patterns.

    The patterns of an owner are adjacent. `sizes` is the number of patterns of each owner,
    `samples` the number of samples of each pattern. Each pattern counts with its best match among
    the other owner's patterns, weighted by its samples.
    """
    starts = np.cumsum([0, *sizes[:-1]])
    weights = np.asarray(samples, dtype=np.float64)
    best = np.minimum.reduceat(R, starts, axis=0)
    return np.asarray(np.add.reduceat(best * weights, starts, axis=1)) / np.add.reduceat(
        weights, starts
    )


def cluster_order(R: Array) -> tuple[list[int], list[int]]:
    """Return an order that puts similar ones next to each other, and the group of each place in it.

    All members of a group explain each other's data within `SIMILAR_FACTOR` (complete linkage).
    """
    # Only a few programs need these, and loading them takes a fifth of the start of an agent.
    from scipy.cluster.hierarchy import fcluster, leaves_list, linkage  # noqa: PLC0415 - see above
    from scipy.spatial.distance import squareform  # noqa: PLC0415 - see above

    if len(R) < 2:
        return list(range(len(R))), [0] * len(R)
    apart = np.log(np.maximum(np.maximum(R, R.T), 1.0))
    np.fill_diagonal(apart, 0.0)
    near = squareform(apart)
    tree = linkage(near, "complete", optimal_ordering=True)
    order = leaves_list(tree).tolist()
    found = fcluster(tree, log(SIMILAR_FACTOR), "distance")[order]
    return order, np.cumsum([0, *(found[1:] != found[:-1])]).tolist()


@dataclass(frozen=True, eq=False, repr=False)
class Group:
    """Similar contributions and their exact sum.

    Args:
        members: The contributions, in the order of their keys.
        stats: Their sum.
    """

    members: tuple[Contribution, ...]
    stats: Stats

    @property
    def keys(self) -> tuple[Key, ...]:
        """The keys of the members, sorted."""
        return tuple(member.key for member in self.members)

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices of the members, sorted."""
        return tuple(sorted({member.device for member in self.members}))

    def __repr__(self) -> str:
        """Show the number of contributions and samples."""
        return f"Group({len(self.members)} contributions, {self.stats.count:g} samples)"


def group(contributions: Iterable[Contribution], *, factor: float = SIMILAR_FACTOR) -> list[Group]:
    """Group contributions that explain each other's data; the largest group comes first.

    Args:
        contributions: The contributions; those without samples are left out.
        factor: The largest loss of a contribution under the readout of its group, as a multiple of
            its usual loss; 2.5 by default. Lower it for finer groups.

    >>> from edgemerge.core.projection import Projection
    >>> shared = Projection(n_inputs=2, n_hidden=2, activation="identity")
    >>> line = [[k / 50, k / 50] for k in range(-50, 50)]
    >>> cross = [[k / 50, -k / 50] for k in range(-50, 50)]
    >>> rows = {"a": line, "b": cross[::2], "c": line[::2]}
    >>> given = [Contribution(name, Stats.of(shared, rows[name]), 1) for name in rows]
    >>> [found.devices for found in group(given)]
    [('a', 'c'), ('b',)]
    """
    return _Grouping(contributions, factor).groups()


FACTOR_GROWTH = 1.5  # by which the factor grows while there are too many groups


def group_to_limit(
    contributions: Iterable[Contribution],
    most: int,
    *,
    checkpoint: Callable[[], object] = bool,
) -> list[Group]:
    """Group contributions with a factor that grows from 1.2 until there are few enough groups.

    Args:
        contributions: The contributions; those without samples are left out.
        most: The largest number of groups, 1 or more.
        checkpoint: Called between comparisons; it may pause the work, or raise to end it.
    """
    given, factor = list(contributions), SAME_FACTOR
    found = _Grouping(given, factor, checkpoint)
    while len(found.clusters) > most:
        # Factors below the next that matters would give the same groups again.
        while factor < found.next_factor:
            factor *= FACTOR_GROWTH
        found = _Grouping(given, factor, checkpoint)
    return found.groups()


class _Cluster:
    """A group that is being built, with its profile."""

    def __init__(self, profile: Profile, members: list[Contribution]) -> None:
        self.profile, self.members = profile, members

    def joined_with(self, other: _Cluster) -> _Cluster:
        stats = self.profile.stats + other.profile.stats
        return _Cluster(Profile.of(stats), self.members + other.members)


class _Grouping:
    """One grouping with one factor, and the smallest larger factor that gives another."""

    def __init__(
        self,
        contributions: Iterable[Contribution],
        factor: float,
        checkpoint: Callable[[], object] = bool,
    ) -> None:
        self.clusters: list[_Cluster] = []
        self.next_factor = inf
        self._factor, self._checkpoint = factor, checkpoint
        some = (each for each in contributions if each.stats.count)
        for each in sorted(some, key=lambda each: (-each.stats.count, each.key, each.revision)):
            self._assign(each)
        self._join()

    def groups(self) -> list[Group]:
        ordered = (tuple(sorted(c.members, key=lambda each: each.key)) for c in self.clusters)
        made = [Group(members, _sum_of(members)) for members in ordered]
        return sorted(made, key=lambda found: (-found.stats.count, found.keys))

    def _assign(self, contribution: Contribution) -> None:
        self._checkpoint()
        one = _Cluster(Profile.of(contribution.stats), [contribution])
        ratios = np.array([loss_ratio(each.profile, one.profile) for each in self.clusters])
        if self._is_close(ratios):
            best = int(ratios.argmin())
            self.clusters[best] = self.clusters[best].joined_with(one)
        else:
            self.clusters.append(one)

    def _join(self) -> None:
        """Join the two nearest until none are near; each pair has its place below the diagonal."""
        apart = self._distances()
        while self._is_close(apart):
            i, j = divmod(int(apart.argmin()), len(apart))
            both = self.clusters[i].joined_with(self.clusters[j])
            rest = [k for k in range(len(apart)) if k not in (i, j)]
            self.clusters = [self.clusters[k] for k in rest]
            apart = self._add(both, apart[np.ix_(rest, rest)])

    def _add(self, one: _Cluster, apart: Array) -> Array:
        self._checkpoint()
        wider = np.pad(apart, ((0, 1), (0, 1)), constant_values=inf)
        wider[-1, :-1] = [distance(one.profile, each.profile) for each in self.clusters]
        self.clusters.append(one)
        return wider

    def _distances(self) -> Array:
        profiles = [each.profile for each in self.clusters]
        R = loss_ratios(profiles, profiles, self._checkpoint)
        return np.where(np.tri(len(R), k=-1, dtype=np.bool_), np.maximum(R, R.T), inf)

    def _is_close(self, ratios: Array) -> bool:
        nearest = float(ratios.min(initial=inf))
        if nearest > self._factor:
            self.next_factor = min(self.next_factor, nearest)
        return nearest <= self._factor


def _sum_of(members: tuple[Contribution, ...]) -> Stats:
    stats = [member.stats for member in members]
    return sum(stats[1:], start=stats[0])


def explained_by(mine: Stats | Profile, *, factor: float = SIMILAR_FACTOR) -> Selection:
    """Select contributions whose data my readout explains; `~explained_by(mine)` selects the rest.

    Args:
        mine: My own sums, or their profile if it is used several times.
        factor: The largest loss, as a multiple of the usual one, that counts as explained; 2.5 by
            default.

    >>> from edgemerge.core.projection import Projection
    >>> shared = Projection(n_inputs=2, n_hidden=2, activation="identity")
    >>> line = Stats.of(shared, [[k / 50, k / 50] for k in range(-50, 50)])
    >>> cross = Stats.of(shared, [[k / 50, -k / 50] for k in range(-50, 50)])
    >>> [each.device for each in (~explained_by(line))([Contribution("b", cross, 1)])]
    ['b']
    """
    must_be(mine, (Stats, Profile), "give `own` of a detector, or the stats of a contribution")
    if not as_number("factor", factor) > 0.0:
        raise SettingError(f"found factor={factor}, expected above 0")
    return Selection(rule=partial(_explained_by, Profile.of(mine), factor))


def _explained_by(mine: Profile, factor: float, found: list[Contribution]) -> list[Contribution]:
    for each in found:
        each.stats.must_be_compatible(mine.stats.projection, len(mine.stats.C))
    return [each for each in found if explains(mine, each.stats, factor)]


def fresh_loss(stats: Stats, readout: Readout) -> float:
    """Return the loss that fresh samples like these have under a readout they had a part in.

    Args:
        stats: The sums of these samples.
        readout: The readout, solved from sums that contain them.
    """
    freedom = float(np.vdot(stats.U, readout.P))  # the part that these samples have in f
    spare = max(1.0 - freedom / max(stats.count, 1.0), 1e-3)
    return max(stats.mean_loss(readout) / spare**2, stats.projection.rounding_loss)  # M10, M11


def level_ratio(own: Stats, theirs: Stats) -> float:
    """Return the level that all sums have together, as a multiple of the one own samples show.

    Both are the usual loss of fresh samples under the readout of all sums: of samples such as those
    in all sums, and such as own ones. A false count, noise and copies of one row all take it far
    from 1; sums of another honest pattern hardly do.

    Args:
        own: What this device saw itself.
        theirs: What another one claims to have seen.

    >>> from dataclasses import replace
    >>> from edgemerge.core.projection import Projection
    >>> shared = Projection(n_inputs=2, n_hidden=2, activation="identity")
    >>> line = Stats.of(shared, [[k / 50, k / 50 + (-1) ** k / 9] for k in range(-50, 50)])
    >>> round(level_ratio(line, line), 1), level_ratio(line, replace(line, count=1e5)) < 0.1
    (1.0, True)
    """
    together = own + theirs
    readout = together.solve(ridge_for(own.projection, float(np.trace(own.U))))
    return float(level_of(together, readout).usual_loss) / fresh_loss(own, readout)  # M11


def can_check(samples: float, projection: Projection) -> bool:
    """Return whether so many own samples, of all patterns together, determine what fits them.

    Args:
        samples: The number of own samples.
        projection: What all devices share.
    """
    return samples >= CHECK_SAMPLES_PER_HIDDEN * projection.n_hidden


@lru_cache(maxsize=16)
def noise_profile(projection: Projection) -> Profile:
    """Return the profile of noise over the whole range.

    Args:
        projection: What all devices share.
    """
    rows = np.arange(min(NOISE_ROWS_PER_HIDDEN * projection.n_hidden, 8192), dtype=np.uint64)
    noise = random_uniform(0, rows, projection.n_inputs)
    on_grid = np.rint(noise / projection.step) * projection.step
    return Profile.of(Stats.of_rows(projection, on_grid))


def unexplained_noise(projection: Projection) -> float:
    """Return the share of its variance that a readout leaves of noise over the whole range.

    Args:
        projection: What all devices share.
    """
    return noise_profile(projection).unexplained


def noise_share(stats: Stats) -> float:
    """Return the largest share of noise over the whole range that these sums can contain.

    It is the largest e for which U/count − e·(U/count of noise) is positive semidefinite. Samples
    with structure leave some directions empty, so honest sums have next to none.

    Args:
        stats: The sums.
    """
    noise = noise_profile(stats.projection)
    L = np.linalg.cholesky(noise.stats.U + noise.readout.ridge * np.eye(len(stats.U)))
    whitened = np.linalg.solve(L, np.linalg.solve(L, stats.U).T)  # L⁻¹UL⁻ᵀ
    return float(np.linalg.eigvalsh(whitened)[0]) * noise.stats.count / stats.count


class LevelCheck:
    """Refuses contributions whose numbers do not fit what this device sees itself.

    A contribution fits if its usual loss is at most 3 times that of own patterns: 6 times if it
    has too few samples to tell, 8 times if it leaves at most half as much unexplained as noise
    does. For a detector it is also enough that the level of all sums together is about that of own
    samples. What a readout explains no better than noise is refused if its usual loss is above own
    ones, unless own patterns are like noise, too; likewise what has as much in every direction as
    samples that are mixed with noise. Where a readout leaves less than half of noise unexplained,
    as with few inputs, honest parts of what a machine does can leave more, so only what is 3 times
    above own ones is called noise there. A usual loss that is too low does no harm.

    It is a `rule` of a `Selection`. Nothing is reweighted: a contribution is in a sum as it is, or
    not at all. True sums of bad samples pass; no number tells them from those of another pattern.

    Args:
        own: What this device saw itself, by pattern. With fewer than 4N samples in all,
            everything passes.
        apart: Whether contributions may become patterns of their own, as in a bank.
        trusted: Devices whose contributions are not checked; none unless given.

    Attributes:
        refused: Why, by key, in the last list that was checked.
    """

    def __init__(
        self, own: Mapping[str, Stats], *, apart: bool, trusted: Iterable[str] = ()
    ) -> None:
        """Take the patterns, if they are large enough."""
        found = list(own.values())
        samples = sum(stats.count for stats in found)
        self._own = found if found and can_check(samples, found[0].projection) else []
        self._apart, self.trusted = apart, frozenset(trusted)
        self.refused: dict[Key, str] = {}

    @cached_property
    def _profiles(self) -> list[Profile]:
        profiles = [Profile.of(stats) for stats in self._own]
        return [each for each in profiles if each.known] or profiles  # a small one has no level

    @property
    def provisional(self) -> bool:
        """Whether there are too few own samples to check anything."""
        return not self._own

    def __call__(self, contributions: list[Contribution]) -> list[Contribution]:
        """Return those that fit; `refused` says why the others do not.

        Args:
            contributions: What others claim to have seen.
        """
        checked = [each for each in contributions if each.device not in self.trusted]
        reasons = {each.key: self.reason(each.stats) for each in checked}
        self.refused = {key: reason for key, reason in reasons.items() if reason}
        return [each for each in contributions if each.key not in self.refused]

    def reason(self, theirs: Stats | Profile) -> str:
        """Return why these sums do not fit; empty if they do.

        Args:
            theirs: The sums of one contribution, or of several, or their profile if it is used
                several times.
        """
        stats = theirs.stats if isinstance(theirs, Profile) else theirs
        if self.provisional or not stats.count:
            return ""
        profile, noise = Profile.of(theirs), unexplained_noise(stats.projection)
        loss, own_loss = profile.usual_loss, max(each.usual_loss for each in self._profiles)
        own = max(each.unexplained for each in self._profiles)
        found, limit = min(profile.unexplained, 1.0), NOISE_SHARE * noise
        can_tell = profile.known and own <= MAX_OWN_SHARE * noise
        least = own_loss if noise >= MIN_NOISE else LEVEL_FACTOR * own_loss
        if loss > least and can_tell and found > limit:
            return (
                f"found that {found:.0%} of the variance is unexplained, expected {limit:.0%} at "
                "most: these sums look like noise"
            )
        most = self._factor(profile, noise) * own_loss
        if loss <= most or (not self._apart and self._fits_together(stats)):
            wide = noise >= MIN_NOISE and stats.projection.n_hidden >= MIN_NOISE_HIDDEN
            return self._mixed(stats) if wide and can_tell and loss > own_loss else ""
        return (
            f"found a usual loss of {loss:.3g}, expected {most:.3g} at most by what this device "
            "sees: such samples were not seen, or not so many of them"
        )

    def _mixed(self, theirs: Stats) -> str:
        """Return why these sums look mixed with noise; empty if they do not."""
        most = max(MAX_NOISE_TIMES_N / theirs.projection.n_hidden, OWN_NOISE_FACTOR * self._noise)
        found = noise_share(theirs)
        if found <= most:
            return ""
        return (
            f"found in every direction what {found:.1%} of noise leave there, expected {most:.1%} "
            "at most: these sums look mixed with noise"
        )

    @cached_property
    def _noise(self) -> float:
        """The share of noise that own patterns can contain."""
        return max(noise_share(each.stats) for each in self._profiles)

    @staticmethod
    def _factor(profile: Profile, noise: float) -> float:
        if not profile.known:
            return SMALL_LEVEL_FACTOR
        # A projection with more hidden values than inputs explains noise as well as anything.
        structured = noise >= MIN_NOISE and profile.unexplained <= STRUCTURED_SHARE * noise
        return STRUCTURED_LEVEL_FACTOR if structured else LEVEL_FACTOR

    def _fits_together(self, theirs: Stats) -> bool:
        low, high = LEVEL_RATIOS
        return any(low <= level_ratio(own, theirs) <= high for own in self._own)
