"""The projection: the shared, untrained hidden layer H = g(XA + b), on an exact grid.

X (k, n), A (n, N), b (N,), H (k, N). Inputs are checked, mapped from [low, high] to [−1, 1] and
rounded to steps of 2⁻ᵍ. A and b lie on a grid coarse enough for XA + b to be exact. Weights come
from SplitMix64: equal seeds give equal numbers in every language. Pre-activations are rounded to
the grid first. Then identity and relu are exact, and the others are looked up in a table with one
entry per grid point, so that every machine computes the same bits. Cosine is periodic: its table
holds one period, a power of two of grid points, and its weights are Gaussian.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import sha256
from math import ceil, frexp, inf, ldexp, log2, pi, sqrt
from operator import index
from typing import Any, Literal, NamedTuple, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import blas

from edgemerge import kernel
from edgemerge.core.errors import KindError, MismatchError, SampleError, SettingError

Array = NDArray[np.float64]
Samples = ArrayLike | Mapping[Any, Any]  # (n,) or (k, n); tables, series, dicts bring names
Activation = Literal["identity", "sigmoid", "tanh", "relu", "cosine"]


class ActivationRule(NamedTuple):
    """What there is to know of an activation.

    Beside it, `wire.admission.RELATIONS` checks received sums of it, and `edgemerge.h` computes it
    on microcontrollers, under its place in `embedded.export.ACTIVATIONS`.
    """

    function: Callable[[Array], Array]  # in floating point, without rounding to the grid
    largest: float  # |g(z)|; a bounded function is looked up in a table
    width: float  # default width of the weights, times √(3/n)
    ridge: float  # default ridge, times the mean of diag(U)
    period: float = 0.0  # a power of two, if g has one; then the weights are Gaussian
    loss_share: float = 0.5  # of the score, M11; the rest is the leverage's


COSINE_PERIOD = 8.0  # the smallest power of two with a slope of 1 at most, so steps stay steps

ACTIVATIONS: dict[str, ActivationRule] = {
    "identity": ActivationRule(lambda z: z, inf, 1.0, 1e-4),
    "sigmoid": ActivationRule(lambda z: 1.0 / (1.0 + np.exp(-z)), 1.0, 3.0, 1e-2),
    "tanh": ActivationRule(np.tanh, 1.0, 3.0, 1e-2),
    "relu": ActivationRule(lambda z: np.maximum(z, 0.0), inf, 1.0, 1e-4),
    "cosine": ActivationRule(
        lambda z: np.cos(z * (2.0 * pi / COSINE_PERIOD)), 1.0, 1.0, 0.25, COSINE_PERIOD, 0.25
    ),
}


def activation_rule(name: object) -> ActivationRule:
    """Return the rule of an activation; raise SettingError if there is none of this name."""
    if not (isinstance(name, str) and name in ACTIVATIONS):
        raise SettingError(f"found activation={name!r}, expected one of {tuple(ACTIVATIONS)}")
    return ACTIVATIONS[name]


@lru_cache
def activation_table(name: str, bits: int) -> Array:
    """Return a bounded activation at every grid point where it is not flat, or of one period.

    The points of a function without a period go from −edge to edge, where it becomes flat; those
    of one period start at 0.
    """
    rule = activation_rule(name)
    edge = int((bits + 3) * 2**bits)  # beyond it sigmoid and tanh round to their limits
    ends = (0, int(rule.period * 2**bits)) if rule.period else (-edge, edge + 1)
    z = np.arange(*ends, dtype=np.float64) * 2.0**-bits
    return np.rint(rule.function(z) * 2.0**bits) * 2.0**-bits


Words64 = NDArray[np.uint64]
INDEX_BITS = np.iinfo(np.intp).bits  # of this machine's indices: 64, or 32

SPLITMIX_GAMMA = np.uint64(0x9E3779B97F4A7C15)
BIAS_KEY = (1 << 64) - 1  # the key of the bias; inputs without names have keys 0, 1, ...


def splitmix64(z: Words64) -> Words64:
    """Return the output function of SplitMix64 of 64-bit words."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def random_words(seed: int, keys: Words64, count: int) -> Words64:
    """Return `count` random words for each key, (k, count); each key has an independent stream."""
    with np.errstate(over="ignore"):  # SplitMix64 wraps at 2⁶⁴
        start = splitmix64(splitmix64(np.array([seed], dtype=np.uint64) + SPLITMIX_GAMMA) + keys)
        steps = np.arange(1, count + 1, dtype=np.uint64) * SPLITMIX_GAMMA
        return splitmix64(start[:, None] + steps)


def random_uniform(seed: int, keys: Words64, count: int) -> NDArray[np.float64]:
    """Return uniform numbers in [−1, 1) on a grid of 2⁻⁵², (k, count)."""
    high = (random_words(seed, keys, count) >> np.uint64(11)).astype(np.float64)
    return high * 2.0**-52 - 1.0


WORDS_PER_GAUSSIAN = 3  # of four uniform integers of 16 bits each
MAX_GAUSSIAN = 6.0  # what twelve uniform integers add up to at most, in standard deviations


def random_gaussian(seed: int, keys: Words64, count: int) -> NDArray[np.float64]:
    """Return nearly Gaussian numbers on a grid of 2⁻¹⁶, (k, count); the spread is 1.

    Each is the sum of twelve uniform integers, so that no machine's logarithm is needed.
    """
    words = random_words(seed, keys, WORDS_PER_GAUSSIAN * count)
    pieces = sum((words >> np.uint64(shift)) & np.uint64(0xFFFF) for shift in (0, 16, 32, 48))
    total = np.asarray(pieces).reshape(len(keys), count, WORDS_PER_GAUSSIAN).sum(2)
    return np.asarray((total.astype(np.float64) - 6.0 * 65535.0) * 2.0**-16)


Generator = Callable[[int, Words64, int], NDArray[np.float64]]


def random_weights(
    generator: Generator, seed: int, keys: Iterable[int], count: int, width: float, bits: int
) -> NDArray[np.float64]:
    """Return random numbers times a width, on a grid of 2⁻ᵇⁱᵗˢ, (k, count)."""
    drawn = generator(seed, np.array(list(keys), dtype=np.uint64), count)
    found = np.asarray(np.rint(drawn * (width * 2.0**bits)) * 2.0**-bits)
    found.setflags(write=False)
    return found


def name_key(name: str) -> int:
    """Return the key of the random stream of an input with this name."""
    return int.from_bytes(sha256(name.encode()).digest()[:8], "little")


ROUNDING_CHUNK = 2**14  # values rounded at a time: few enough to stay in the cache
MIN_INPUT_RANGE = 1e-290  # a smaller range counts as a constant
MAX_ABS_INPUT = 256.0  # in half-ranges: values further out are clipped to it


FLOAT64 = np.dtype(np.float64)


def as_floats(X: Any, what: int | str, names: Sequence[str] | None = None) -> Array:
    """Return numbers as an array of floats, or raise SampleError with what to do instead.

    `what` says what they are, such as "targets"; a number means a sample of so many inputs.
    """
    if type(X) is np.ndarray and X.dtype is FLOAT64:
        return X
    try:
        values: NDArray[Any] = np.asarray(X)
        if type(X) is list and values.dtype is FLOAT64:
            return values
        kind: str = values.dtype.kind
        if kind not in NOT_NUMBERS and not _is_masked(X) and not (kind == "O" and not values.ndim):
            return np.asarray(X if kind == "O" else values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        pass
    found, advice = _wrong_values(X, names)
    must = (
        f"a sample must be {what} numbers" if isinstance(what, int) else f"{what} must be numbers"
    )
    raise SampleError(f"found {found}, but {must}: {advice}")


# kinds of NumPy's types that would lose something, and what to do instead
NOT_NUMBERS = {
    "c": ("complex numbers", "give real and imaginary part, or the absolute value"),
    "m": ("durations", "divide by a unit, such as np.timedelta64(1, 's')"),
    "M": ("dates", "give a number, such as the seconds since a start"),
    "V": ("a structured array", "give a data frame of it, which has its names"),
}


ROWS_DIFFER = "rows of different lengths", "give every input in every row"


def _is_masked(X: Any) -> bool:
    return type(X) is not np.ndarray and isinstance(X, np.ndarray) and np.ma.is_masked(X)


def _wrong_values(X: Any, names: Sequence[str] | None) -> tuple[str, str]:
    """Return what is wrong with values that are not numbers, and what to do."""
    if _is_masked(X):
        return "masked values", "drop or repair such samples first"
    try:
        kind: str = np.asarray(X).dtype.kind
        values: NDArray[Any] = np.asarray(X, dtype=object)
    except (TypeError, ValueError):
        return ROWS_DIFFER
    if kind in NOT_NUMBERS:
        return NOT_NUMBERS[kind]
    if not values.ndim:
        return f"{type(X).__name__}", "give an array, a list, a data frame, or a dict of names"
    return _first_wrong(values, names)


def _first_wrong(values: NDArray[Any], names: Sequence[str] | None) -> tuple[str, str]:
    """Return the first value that is no number, with its place, and what to do."""
    for place, value in np.ndenumerate(values):
        if isinstance(value, Sequence) and not isinstance(value, str | bytes):
            break
        try:
            float(value)
        except (TypeError, ValueError, OverflowError) as error:
            i = place[-1]
            name = repr(names[i]) if names and len(names) == values.shape[-1] else str(i)
            row = f" of row {place[0]}" if len(place) > 1 else ""
            large = isinstance(error, OverflowError)
            advice = "it is too large" if large else "convert such values, or leave them out"
            return f"{value!r:.60} at input {name}{row}", advice
    return ROWS_DIFFER


CACHE_LINE = 64  # bytes: loops over rows that start at one are up to twice as fast


def aligned_empty(
    rows: int, columns: int, *, pad: bool = False, dtype: type[np.floating[Any]] = np.float64
) -> NDArray[Any]:
    """Return (rows, columns), of any values, from a cache line on; with `pad`, each row is."""
    size = np.dtype(dtype).itemsize
    per_line = CACHE_LINE // size
    width = -(-columns // per_line) * per_line if pad else columns
    memory = np.empty(rows * width + per_line, dtype)
    address = memory.__array_interface__["data"][0]  # .ctypes takes longer than the rest
    start = -address % CACHE_LINE // size
    return memory[start : start + rows * width].reshape(rows, width)[:, :columns]


def is_plain(M: Array) -> bool:
    """Return whether it is float64, row by row and without gaps, which the kernel can read."""
    return M.flags.c_contiguous and M.flags.aligned and M.dtype == np.float64


def aligned_zeros(rows: int, columns: int, *, pad: bool = False) -> Array:
    """Return zeros (rows, columns) from a cache line on; with `pad`, each row is."""
    found = aligned_empty(rows, columns, pad=pad)
    found[:] = 0.0
    return found


class Grid:
    """Maps readings from [low, high] to grid values in about [−1, 1]."""

    def __init__(
        self,
        n: int,
        low: ArrayLike,
        high: ArrayLike,
        bits: int,
        *,
        names: Sequence[str] | None = None,
    ) -> None:
        """Set up the map for n inputs; low and high are one number or one for each input."""
        self.n, self.step, self.names = n, 2.0**-bits, names
        self.far = MAX_ABS_INPUT / self.step
        bottom, top = np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64)
        self.gain = 2.0 / (top - bottom) / self.step
        self.shift = -bottom * self.gain - 1.0 / self.step
        spare = max(self.far - float(np.abs(self.shift).max()), 0.0)
        near = spare / float(np.abs(self.gain).max())
        self._near = near * near  # if |x|² is below it, no value needs clipping

    @cached_property
    def for_each(self) -> tuple[Array, Array]:
        """Gain and shift for each input, (n,)."""
        ends = (np.broadcast_to(a, self.n) for a in (self.gain, self.shift))
        return np.ascontiguousarray(next(ends)), np.ascontiguousarray(next(ends))

    def one(self, x: ArrayLike) -> Array:
        """Return one sample (n,) on the grid."""
        values = self._shaped(x, 1)
        if not blas.ddot(values, values) < self._near:  # overflows without a warning
            return self._round(values)
        steps = values * self.gain
        steps += self.shift
        np.rint(steps, out=steps)
        steps *= self.step
        return steps

    def rows(self, X: ArrayLike) -> Array:
        """Return samples (k, n) on the grid, or one sample (n,) as a single row."""
        values = np.asarray(X)
        return self._round(self._shaped(X, 2 if values.ndim == 2 else 1)).reshape(-1, self.n)

    def to_readings(self, X: Array) -> Array:
        """Return the readings of grid values."""
        return np.asarray((X / self.step - self.shift) / self.gain)

    def _shaped(self, X: ArrayLike, ndim: int) -> Array:
        values = as_floats(X, self.n, self.names)
        if values.ndim != ndim or values.shape[-1] != self.n:
            raise SampleError(
                f"found samples of shape {values.shape}, expected ({self.n},) or (k, {self.n}): "
                "give every input of the projection, in its order"
            )
        return values

    def _round(self, values: Array) -> Array:
        rows, some = values.reshape(-1, self.n), max(1, ROUNDING_CHUNK // self.n)
        steps = np.empty(rows.shape)
        fast = kernel.Run is not None and is_plain(rows)
        if fast and kernel.MODULE.grid_rows(self.far, self.step, *self.for_each, rows, steps):
            return steps.reshape(values.shape)
        with np.errstate(over="ignore", invalid="ignore"):
            for i in range(0, len(rows), some):
                part = steps[i : i + some]
                np.multiply(rows[i : i + some], self.gain, out=part)
                part += self.shift
                np.rint(part, out=part)
                # one test for NaN, infinity and far values
                if not np.vdot(part, part) < self.far**2:
                    must_be_finite(values, self.names)
                    np.clip(part, -self.far, self.far, out=part)
                part *= self.step
        return steps.reshape(values.shape)


LISTS: frozenset[type] = frozenset((list, tuple))
NUMBERS: frozenset[type] = frozenset((float, int, bool, np.float64, np.float32))
WITHOUT_NAMES = NUMBERS | LISTS | {np.ndarray}  # numbers, and rows of them


def _has_named_rows(X: list[Any] | tuple[Any, ...]) -> bool:
    """Return whether an entry of a list has names, as dicts do."""
    if not X or type(X[0]) in NUMBERS:  # one sample
        return False
    return not WITHOUT_NAMES.issuperset(map(type, X)) and any(
        _labels_of(row) is not None for row in X
    )


def _labels_of(X: Any) -> tuple[Any, ...] | None:
    """Return the labels that one sample or a table has; None if they are no names."""
    if isinstance(X, Mapping):
        return tuple(X)
    labels = getattr(X, "_fields", None) if isinstance(X, tuple) else None  # of a named tuple
    for attribute in ("column_names", "columns", "index"):  # Arrow's columns are their values
        labels = getattr(X, attribute, None) if labels is None else labels
    if labels is None or callable(labels):  # lists and tuples have a method `index`
        return None
    labels = tuple(labels)
    words = (word for name in labels for word in (name if isinstance(name, tuple) else (name,)))
    return labels if any(isinstance(word, str) for word in words) else None


def names_of(X: Samples) -> tuple[str, ...] | None:
    """Return the names that samples carry, in their order, or None if they carry none.

    Names are the keys of a mapping, the fields of a named tuple, the columns of a data frame or of
    an Arrow table, and the index of a series; of a list of such samples those of the first one that
    has some. Labels count as names if at least one of them is text, or a tuple with some in it, so
    a frame with columns 0, 1, ... has none.
    """
    rows: Any = X if type(X) in LISTS else (X,)
    labels = next(filter(None, map(_labels_of, rows)), None)
    return None if labels is None else tuple(map(str, labels))


def match_names(X: Samples, names: Sequence[str] | None) -> Any:
    """Return samples with their values in the order of `names`; without names, as they come.

    Raises:
        SampleError: If the samples carry names and one is missing, unknown or there twice.
    """
    if type(X) is np.ndarray:
        return X
    given = cast(Any, X)
    if type(X) in LISTS:
        return [match_names(row, names) for row in given] if _has_named_rows(given) else given
    labels = _labels_of(X)
    if labels is None or (names is None and not isinstance(X, Mapping)):
        return given
    found = tuple(map(str, labels))
    if names is None:
        raise SampleError(
            f"found a sample with the names {_quoted(found)}, but this projection has none: "
            "give numbers in its order, or build the projection with `names`"
        )
    if len(found) != len(names) or set(found) != set(names):
        _refuse_names(found, names)
    if isinstance(X, Mapping | tuple):
        values = dict(zip(found, X.values() if isinstance(X, Mapping) else given, strict=True))
        return _from_columns([values[name] for name in names], names)
    if found == tuple(names):
        return given
    by_name = dict(zip(found, labels, strict=True))
    chosen = [by_name[name] for name in names]
    return given.select(chosen) if hasattr(given, "column_names") else given[chosen]


def _from_columns(columns: list[Any], names: Sequence[str]) -> Array:
    """Return one sample (n,) of a number for each input, or rows (k, n) of a column for each."""
    try:
        table = np.asarray(columns).T
    except (TypeError, ValueError) as error:
        raise SampleError(
            f"found columns of different lengths or kinds, but a sample must be {len(names)} "
            "numbers: give every input in every row"
        ) from error
    return as_floats(table, len(names), names)


def _refuse_names(found: Sequence[str], names: Sequence[str]) -> None:
    wrong = {
        "missing": [name for name in names if name not in found],
        "unknown": [name for name in found if name not in names],
        "there twice": [name for name in dict.fromkeys(found) if found.count(name) > 1],
    }
    said = " and ".join(
        f"{_quoted(which)} {'is' if len(which) == 1 else 'are'} {what}"
        for what, which in wrong.items()
        if which
    )
    raise SampleError(
        f"found samples in which {said}, expected the columns {_quoted(names)}: "
        "give every input of the projection once, in any order"
    )


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:9])) + (", …" if len(names) > 9 else "")


MIN_ROWS = 64  # samples from which on a range ends before wild values
TAIL_SHARE = 0.01  # of each input's values, at either end, that do not tell how far is far
WILD = 10.0  # times the width between these tails, and more, beyond them is wild
MIN_DIFFERENT = 3.0  # values that differ: fewer are glitches of an input that is constant


def must_be_finite(values: Array, names: Sequence[str] | None) -> None:
    """Raise SampleError, which names the input, unless samples (n,) or (k, n) are finite."""
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        where = tuple(int(i) for i in bad[0])
        name = where[-1] if names is None else repr(names[where[-1]])
        raise SampleError(
            f"found {values[where]} at input {name}"
            + (f" of row {where[0]}" if values.ndim == 2 else "")
            + ", expected a finite number: drop or repair such samples first"
        )


def weights_of_rows(weights: ArrayLike, rows: int) -> Array:
    """Return the weights as an array, one per row."""
    w = as_floats(weights, "weights")
    if w.shape != (rows,):
        raise SampleError(
            f"found weights of shape {w.shape}, expected {rows} finite numbers of 0 or more"
        )
    bad = np.flatnonzero(~((w >= 0.0) & (w < inf)))
    if len(bad):
        raise SampleError(
            f"found the weight {w[bad[0]]} of row {bad[0]}, expected {rows} finite numbers of 0 or "
            "more"
        )
    return w


def kept_rows(
    X: ArrayLike, weights: ArrayLike | None = None, names: Sequence[str] | None = None
) -> tuple[Array, Array]:
    """Return the samples that count, (k, n), and how often each does, (k,)."""
    rows = np.atleast_2d(as_floats(X, "samples", names))
    if rows.ndim != 2 or rows.size == 0:
        raise SampleError(f"found samples of shape {rows.shape}, expected (k, n), one at least")
    must_be_finite(rows, names)
    counted = np.ones(len(rows)) if weights is None else weights_of_rows(weights, len(rows))
    if not counted.any():
        raise SampleError("found weights that are all 0, expected one above 0: leave them out")
    return rows[counted > 0.0], counted[counted > 0.0]


def input_range_of(rows: Array, margin: float, weights: Array) -> tuple[Array, Array]:
    """Return the lowest and highest value of each input, widened by a share of the range.

    From 64 samples on, it ends where wild values begin. A constant input gets its value ± 1.
    """
    if not 0.0 <= as_number("margin", margin) < inf:
        raise SettingError(f"found margin={margin}, expected 0 or more")
    low, high = rows.min(0), rows.max(0)
    with np.errstate(over="ignore"):
        too_far = np.flatnonzero(~np.isfinite(high - low))
    if len(too_far):
        i = int(too_far[0])
        raise SampleError(
            f"found {low[i]:g} and {high[i]:g} at input {i}, expected a range that floats can "
            "hold: drop or repair such samples first"
        )
    if weights.sum() >= MIN_ROWS:
        for i, column in enumerate(rows.T):
            low[i], high[i] = _range_without_wild(column, weights)
    spare = margin * (high - low)
    # a constant input: one unit, or what a float of its size can tell apart
    one = np.maximum(1.0, np.abs(low) * 2.0**-20)
    spare += np.where(high - low > MIN_INPUT_RANGE, 0.0, one)
    return low - spare, high + spare


def _range_without_wild(column: Array, weights: Array) -> tuple[float, float]:
    """Return the lowest and the highest value, or where wild values begin.

    Equal values are counted together: a weight of two is the same as two samples, to the last bit.
    """
    levels, place = np.unique(column, return_inverse=True)
    upto = np.cumsum(np.bincount(place, weights))
    ends = np.searchsorted(upto, np.array([TAIL_SHARE, 1.0 - TAIL_SHARE]) * upto[-1])
    low, high = levels[ends]
    reach = WILD * (high - low)
    if low == high:  # nearly constant: how far are the others from it?
        away, mass = np.abs(levels - low), np.diff(upto, prepend=0.0)
        mass[ends[0]] = 0.0
        if mass.sum() < MIN_DIFFERENT:
            return float(low), float(low)
        order = np.argsort(away, kind="stable")
        middle = np.searchsorted(np.cumsum(mass[order]), mass.sum() / 2.0)
        reach = (1.0 + 2.0 * WILD) * away[order][middle]
    return float(max(levels[0], low - reach)), float(min(levels[-1], high + reach))


def as_int(name: str, value: Any) -> int:
    """Return a whole number of any library as an int."""
    try:
        return index(value)
    except TypeError as error:
        raise KindError(f"found {name}={value!r}, expected a whole number") from error


def as_number(name: str, value: Any, expected: str = "a number") -> float:
    """Return a number of any library as a float; text is none."""
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise KindError(f"found {name}={value!r:.60}, expected {expected}") from error


def plain_number(name: str, value: Any, expected: str = "a number") -> float:
    """Return a number of any library as an int or a float of Python, which JSON can hold."""
    number = as_number(name, value, expected)
    return value if type(value) in (int, float) else number


def as_names(name: str, value: Any) -> tuple[str, ...]:
    """Return some names as a tuple of text; one text alone is no list of names."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise KindError(f"found {name}={value!r:.60}, expected a list of names")
    names = tuple(map(str, value))
    try:
        "".join(names).encode()
    except UnicodeEncodeError as error:
        raise SettingError(
            f"found {name}={names!r:.60}, expected names that UTF-8 can hold"
        ) from error
    return names


def plain_range_end(name: str, end: Any) -> float | tuple[float, ...]:
    """Return one end of the input range as a float or a tuple of floats, with 0 for −0."""
    expected = "a number, or one for each input"
    if (
        isinstance(end, str | bytes)
        or not isinstance(end, Iterable)
        or getattr(end, "ndim", 1) == 0
    ):
        return as_number(name, end, expected) + 0.0
    return tuple(as_number(name, value, expected) + 0.0 for value in end)


def default_width(activation: str, n_inputs: int) -> float:
    """Return the half-width of weights that keeps hidden values of usual samples near [−1, 1]."""
    spread = activation_rule(activation).width * sqrt(3.0 / max(n_inputs, 1))
    return float(2.0 ** round(log2(spread)))


KERNEL_WIDTH = 1.0  # of cosine features, in distances of two samples, times a factor below 1
MANY_ROWS = 512  # samples from which on twice as many hidden values find finer structure


def width_for(rows: Array, weights: Array, low: Array, high: Array) -> float:
    """Return the spread of the weights with which cosine features tell samples well apart.

    Two samples Δ apart have features as alike as a Gaussian kernel says, exp(−Δ²/2σ²). σ follows
    Scott's rule: the root mean squared distance of two samples, less for many samples of few
    inputs, k^(−1/(n + 4)) of it for k samples. The result is rounded, so that the order of
    summation does not matter. Values outside the range count as its ends.
    """
    k, n = float(weights.sum()), rows.shape[1]
    scaled = (np.clip(rows, low, high) - low) * (2.0 / (high - low))
    centred = scaled - weights @ scaled / k
    distance = sqrt(2.0 * float((weights @ centred**2).sum()) / k)
    if distance < 2.0**-10:  # as good as constant
        return default_width("cosine", n)
    sigma = KERNEL_WIDTH * distance * k ** (-1.0 / (n + 4.0))
    mantissa, exponent = frexp(min(COSINE_PERIOD / (2.0 * pi) / sigma, 1024.0))
    return ldexp(round(8.0 * mantissa) / 8.0, exponent)


def hidden_for(rows: float) -> int:
    """Return the default number of hidden values of cosine for so many samples."""
    return 256 if rows >= MANY_ROWS else 128


def check_projection_settings(p: Any) -> None:
    """Raise SettingError for the first invalid setting."""
    activation_rule(p.activation)
    low, high = np.asarray(p.low), np.asarray(p.high)
    shapes = {(), (p.n_inputs,)}
    for ok, found, expected in (
        (p.n_inputs >= 1, f"n_inputs={p.n_inputs}", "at least 1"),
        (1 <= p.n_hidden <= 65536, f"n_hidden={p.n_hidden}", "1 to 65536"),
        (0 <= p.seed < 2**64, f"seed={p.seed}", "0 to 2⁶⁴ − 1"),
        (4 <= p.grid_bits <= 16, f"grid_bits={p.grid_bits}", "4 to 16"),
        (0.0 < p.width <= 1024.0, f"width={p.width}", "above 0, at most 1024"),
        (
            {low.shape, high.shape} <= shapes,
            f"low, high of shapes {low.shape}, {high.shape}",
            f"one number or {p.n_inputs}",
        ),
        (
            bool(np.all(np.isfinite(high - low) & (high - low > MIN_INPUT_RANGE))),
            f"low={p.low}, high={p.high}",
            "finite, with low below high",
        ),
        (
            p.names is None or len(set(p.names)) == p.n_inputs,
            f"names={p.names}",
            f"{p.n_inputs} different names",
        ),
    ):
        if not ok:
            raise SettingError(f"found {found}, expected {expected}")


LearningSettings = tuple[float | None, float, float | None]


def learning_settings(ridge: Any, forgetting: Any, reject_above: Any) -> LearningSettings:
    """Return the settings of a detector as plain numbers, or raise SettingError or KindError."""
    if ridge is not None:
        ridge = plain_number("ridge", ridge, "0 or more, or None")
        if not 0.0 <= ridge < inf:
            raise SettingError(f"found ridge={ridge}, expected 0 or more, or None")
    forgetting = plain_number("forgetting", forgetting, "0.5 to 1 (1: never)")
    if not 0.5 <= forgetting <= 1.0:
        raise SettingError(f"found forgetting={forgetting}, expected 0.5 to 1 (1: never)")
    if reject_above is not None:
        expected = "above 1, or None or math.inf (never)"
        reject_above = plain_number("reject_above", reject_above, expected)
        if not reject_above > 1.0:
            raise SettingError(f"found reject_above={reject_above}, expected {expected}")
    return ridge, forgetting, reject_above


FORMAT = 1
KERNEL_KINDS = {"identity": 0, "relu": 1}  # others are looked up: 2, or 3 if they have a period
INTEGER_SETTINGS = ("n_inputs", "n_hidden", "seed", "grid_bits")


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Projection:
    """The hidden layer that all devices share; equal settings give equal weights everywhere.

    Args:
        n_inputs: The number of values in a sample.
        n_hidden: The number of hidden values, N, 64 by default. More hidden values
            capture finer structure; sums have about N²/2 + N·n_inputs numbers, and learning a
            sample takes about as many operations.
        seed: The seed of the weights, 0 by default. Devices that merge need the same one.
        activation: "tanh" (default), "sigmoid", "relu", "identity" or "cosine". The last one is
            best where the samples are at hand to choose its width: see `of_data`.
        low: The usual lowest value of each input: one number, or one for each input; −1 by default.
        high: The usual highest value of each input, likewise; 1 by default. Values outside are
            used too, up to 128 times the range.
        width: The half-width of the uniform weights; 1.0 is the paper's uniform(−1, 1). For
            cosine, the standard deviation of the Gaussian weights: larger tells finer structure
            apart and needs more samples. None (the default) chooses one that suits the activation
            and the number of inputs; so does 0.0.
        grid_bits: The grid of inputs and hidden values is 2**-grid_bits, 12 by default. With fewer
            bits more samples fit into exact sums (5·10⁸ with 12).
        names: A name for each input; None (the default) goes by position. The weights of an input
            then depend on its name, and samples with names are matched by them: data frames,
            Arrow tables, series, dicts, named tuples, and lists of these.

    >>> Projection(n_inputs=3, n_hidden=4, seed=7)
    Projection(3 inputs, 4 hidden, tanh, seed 7, 12 bits, 6e3a2749)
    """

    n_inputs: int
    n_hidden: int = 64
    seed: int = 0
    activation: Activation = "tanh"
    low: float | Sequence[float] | Array = -1.0
    high: float | Sequence[float] | Array = 1.0
    width: float | None = None
    grid_bits: int = 12
    names: Sequence[str] | None = None

    def __post_init__(self) -> None:
        """Convert the settings to plain values and check them."""
        plain: dict[str, Any] = {n: as_int(n, getattr(self, n)) for n in INTEGER_SETTINGS}
        plain |= {end: plain_range_end(end, getattr(self, end)) for end in ("low", "high")}
        if self.names is not None:
            plain["names"] = as_names("names", self.names)
        width = 0.0 if self.width is None else as_number("width", self.width)
        plain["width"] = width or default_width(self.activation, plain["n_inputs"])
        for name, value in plain.items():
            object.__setattr__(self, name, value)
        check_projection_settings(self)

    @classmethod
    def of_data(
        cls,
        X: Samples,
        *,
        margin: float = 0.0,
        weights: ArrayLike | None = None,
        **settings: Any,
    ) -> Self:
        """Build a projection with the usual input range of some first samples.

        From 64 samples on, a range ends where wild values begin: ten times the width between the
        outermost hundredths of an input beyond them. So a few glitches do not blind it. A
        constant input gets its value ± 1. Unless they are given, the activation is "cosine", with
        128 hidden values, or 256 from 512 samples on, and a width that suits the samples.

        Args:
            X: Samples (k, n). The columns of a data frame, and other names that samples carry,
                become the projection's `names`.
            margin: Added to the range on either side, as a share of it; 0 by default. Raise it if
                the samples do not cover everything normal. Values outside the range are used too,
                up to 128 times its width.
            weights: How often each sample counts, (k,); once unless given.
            **settings: Any other setting of the projection, such as `n_hidden` and `seed`;
                `names=None` takes a data frame's columns by position. Another activation has 64
                hidden values by default. The default of earlier versions was "tanh".

        >>> Projection.of_data([[0.0, 20.0], [1.0, 90.0]], n_hidden=4).high
        (1.0, 90.0)
        """
        for name in ("n_inputs", "low", "high"):
            if name in settings:
                raise SettingError(
                    f"found {name}={settings[name]!r}, which the samples tell: leave it out, or "
                    "build Projection(...) without them"
                )
        names = names_of(X)
        settings = {"names": names, "activation": "cosine", **settings}
        rows, counted = kept_rows(match_names(X, names), weights, names)
        low, high = input_range_of(rows, margin, counted)
        if settings["activation"] == "cosine":
            settings.setdefault("n_hidden", hidden_for(float(counted.sum())))
            settings["width"] = settings.get("width") or width_for(rows, counted, low, high)
        return cls(n_inputs=len(low), low=low, high=high, **settings)

    @cached_property
    def A(self) -> Array:
        """The input weights, (n, N)."""
        keys = range(self.n_inputs) if self.names is None else map(name_key, self.names)
        generator = random_gaussian if self.rule.period else random_uniform
        drawn = self._draw(generator, keys, cast(float, self.width))
        A = aligned_empty(*drawn.shape)
        A[:] = drawn
        A.setflags(write=False)
        return A

    @cached_property
    def b(self) -> Array:
        """The bias, (N,), uniform in [−1, 1), or over one period of the activation."""
        return np.asarray(self._draw(random_uniform, [BIAS_KEY], self.rule.period / 2.0 or 1.0)[0])

    @property
    def weight_bits(self) -> int:
        """The grid of A and b is 2**-weight_bits: coarse enough for XA + b to be exact."""
        # |Σ xA| < 2⁵³ steps of the product grid, for n (or up to 4096) inputs at MAX_ABS_INPUT
        room = 52 - self.grid_bits - log2(MAX_ABS_INPUT) - ceil(log2(max(self.n_inputs, 4096)))
        largest = cast(float, self.width) * (MAX_GAUSSIAN if self.rule.period else 1.0)
        return int(room - max(0, ceil(log2(largest))))

    def _draw(self, generator: Generator, keys: Iterable[int], width: float) -> Array:
        return random_weights(generator, self.seed, keys, self.n_hidden, width, self.weight_bits)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of everything that determines the hidden values of a sample."""
        names = "\0".join(self.names or ())
        head = f"edgemerge {FORMAT} {self.activation} {self.grid_bits} {names}"
        ends = (np.broadcast_to(np.asarray(end), self.n_inputs) for end in (self.low, self.high))
        numbers = b"".join(np.asarray(a, "<f8").tobytes() for a in (self.A, self.b, *ends))
        return sha256(head.encode() + b"\0" + numbers).hexdigest()

    @property
    def step(self) -> float:
        """The grid of samples and hidden values."""
        return float(2.0**-self.grid_bits)

    @property
    def quantum(self) -> float:
        """The grid of sums: every product of two grid values is a multiple of it."""
        return self.step**2

    @property
    def rounding_loss(self) -> float:
        """The mean squared error of rounding to the grid, the lowest possible usual loss."""
        return self.quantum / 12.0

    @cached_property
    def rule(self) -> ActivationRule:
        """The rule of its activation."""
        return activation_rule(self.activation)

    @cached_property
    def grid(self) -> Grid:
        """The map from readings to grid values."""
        return Grid(self.n_inputs, self.low, self.high, self.grid_bits, names=self.names)

    def to_array(self, X: Samples) -> Array:
        """Return samples as an array, matched by their names if both have some.

        Args:
            X: One sample (n,) or rows (k, n), as for `to_grid`; float64 is returned as it is.
        """
        if type(X) is np.ndarray and X.dtype is FLOAT64:
            return X
        return as_floats(match_names(X, self.names), self.n_inputs, self.names)

    def to_grid(self, X: Samples) -> Array:
        """Return samples on the grid: (n,) for one sample, (k, n) for rows.

        Args:
            X: One sample (n,) or rows (k, n). Samples that carry names (a data frame, a series, a
                dict) are matched by them if the projection has names.

        Raises:
            SampleError: If a value is not a finite number, the shape is wrong, or a name is
                missing or unknown.
        """
        values = as_floats(match_names(X, self.names), self.n_inputs, self.names)
        return self.grid.one(values) if values.ndim == 1 else self.grid.rows(values)

    def to_one(self, x: Samples) -> Array:
        """Return one sample on the grid, (n,).

        Args:
            x: One sample (n,), as for `to_grid`; rows raise SampleError.
        """
        values = as_floats(match_names(x, self.names), self.n_inputs, self.names)
        if values.shape != (self.n_inputs,):
            raise SampleError(
                f"found samples of shape {values.shape}, expected one of shape ({self.n_inputs},): "
                "give one sample with every input of the projection, in its order"
            )
        return self.grid.one(values)

    def to_rows(self, X: Samples) -> Array:
        """Return samples on the grid as rows, (k, n).

        Args:
            X: Rows (k, n), or one sample (n,), which becomes one row; as for `to_grid`.
        """
        return self.to_grid(X).reshape(-1, self.n_inputs)

    def hidden(self, X: Samples) -> Array:
        """Return the hidden values of samples: (k, N), or (N,) for one sample.

        Args:
            X: One sample (n,) or rows (k, n), as for `to_grid`.
        """
        return self.project(self.to_grid(X))

    def project(self, X: Array) -> Array:
        """Return the hidden values of samples that are already on the grid.

        Args:
            X: What `to_grid` returned, (n,) or (k, n); it is not checked.
        """
        steps: Array = X.dot(self.A)
        steps += self._b
        steps *= 2.0**self.grid_bits
        np.rint(steps, out=steps)
        if self._table is not None:
            places = steps.astype(np.int64)
            if self.rule.period:
                places &= len(self._table) - 1  # modulo one period, a power of two
            if INDEX_BITS < 64:  # take() wants its own kind of integer, and places may exceed it
                places = places.clip(0, len(self._table) - 1).astype(np.intp)
            return self._table.take(places, mode="clip")  # M1
        steps *= self.step
        return self.rule.function(steps)  # M1

    @cached_property
    def _b(self) -> Array:  # with a table, steps count from its start
        if self._table is None or self.rule.period:
            return self.b
        return self.b + len(self._table) // 2 * self.step

    @cached_property
    def _table(self) -> Array | None:
        bounded = self.rule.largest < inf
        return activation_table(self.activation, self.grid_bits) if bounded else None

    @cached_property
    def compiled(self) -> tuple[Any, ...]:
        """What the kernel needs: A, b, table, gain, shift, and (kind, 1 / step, far)."""
        kind = KERNEL_KINDS.get(self.activation, 3 if self.rule.period else 2)
        short = aligned_empty(*self.A.shape, dtype=np.float32)
        short[:] = self.A  # exact from 8 grid_bits on, and half as much to read
        return (
            short if np.array_equal(short, self.A) else self.A,
            self._b,
            self._table,
            *self.grid.for_each,
            (float(kind), 2.0**self.grid_bits, self.grid.far),
        )

    def must_equal(self, other: Projection) -> None:
        """Raise MismatchError, naming both and what differs, unless another one is the same.

        Args:
            other: The projection to compare with, by fingerprint.
        """
        if self is not other and self.fingerprint != other.fingerprint:
            names = (n for n in self.__dataclass_fields__ if getattr(self, n) != getattr(other, n))
            raise MismatchError(
                f"{other} does not fit {self}, which differs in {', '.join(names)}: every device "
                f"must build the same Projection{self.advice_for(other)}"
            )

    def advice_for(self, other: Projection) -> str:
        """Return how to agree if versions with different defaults made the two; else "".

        Args:
            other: The projection that does not fit.
        """
        if (
            "cosine" not in (self.activation, other.activation)
            or other.activation == self.activation
        ):
            return ""
        old = other if self.activation == "cosine" else self
        return (
            f"; set activation={old.activation!r}, n_hidden={old.n_hidden} where cosine, the newer "
            "default, was taken"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the settings, from which the weights are drawn again, once per process."""
        settings = ((name, self.__dict__[name]) for name in self.__dataclass_fields__)
        return _agreed, (self.fingerprint, *settings)

    def __eq__(self, other: object) -> bool:
        """Compare by fingerprint."""
        return isinstance(other, Projection) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        """Hash by fingerprint."""
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        """Show the settings and the first digits of the fingerprint."""
        return (
            f"Projection({self.n_inputs} inputs, {self.n_hidden} hidden, {self.activation}, "
            f"seed {self.seed}, {self.grid_bits} bits, {self.fingerprint[:8]})"
        )


@lru_cache(maxsize=16)
def _agreed(fingerprint: str, *settings: tuple[str, Any]) -> Projection:
    projection = Projection(**dict(settings))
    if projection.fingerprint == fingerprint:
        return projection
    raise MismatchError(f"found {projection}, expected {fingerprint[:8]}: use one version for all")
