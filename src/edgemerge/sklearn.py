"""Estimators for scikit-learn: they learn Stats, so `merge` equals one `fit` of all the data.

Estimators add up when they agree on the projection, so give each the same `low` and `high`: where
inputs usually lie. For regression give `y_low` and `y_high`, too; for classification, `classes`.

>>> from sklearn.base import clone
>>> X = np.random.default_rng(0).uniform(0.0, 1.0, (600, 3))
>>> agreed = OSELMDetector(low=0.0, high=1.0, robust=False)
>>> here, there, both = (clone(agreed).fit(rows) for rows in (X[:200], X[200:], X))
>>> here.merge(there).stats_ == both.stats_
True
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil, isfinite, log2
from numbers import Real
from typing import Any, Literal, Self, cast
from warnings import warn

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    OutlierMixin,
    RegressorMixin,
    TransformerMixin,
)
from sklearn.utils._set_output import _get_output_config
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_feature_names_in,
    _check_sample_weight,
    check_is_fitted,
    validate_data,
)

from edgemerge.agent.features import SlidingWindow, Spectrum, Statistics
from edgemerge.core.detector import Detector
from edgemerge.core.errors import MismatchError, SampleError, SettingError, must_be
from edgemerge.core.limit import Calibration, must_be_rate, scores_without_each
from edgemerge.core.patterns import inliers, upper_quantile
from edgemerge.core.projection import MIN_ROWS, Activation, Projection, as_int
from edgemerge.core.stats import Stats

__all__ = [
    "OSELMClassifier",
    "OSELMDetector",
    "OSELMRegressor",
    "SpectrumFeatures",
    "WindowFeatures",
]

Array = NDArray[np.float64]
RangeEnd = float | ArrayLike | None  # of a range; None leaves it to the first rows
Weights = ArrayLike | None

OUTLIER_SCORE = 8.0  # score above which a row is not learnt by `partial_fit`, as in a bank
DEFAULT_HIDDEN = 128  # hidden values, where the rows must not or need not tell how many
TAIL_SHARE = 0.25  # of the rows, whose scores tell by how much scores fall when more is known
AGREE_ADVICE = "give every estimator the same y_low, y_high, or classes in its first partial_fit"


@dataclass(kw_only=True, eq=False, repr=False)
class OSELMDetector(OutlierMixin, BaseEstimator):
    """Learns what rows usually look like; `score_samples` is −1 for a typical row.

    `predict` calls a row an outlier if it scores above a limit, −`offset_`, that keeps a promise:
    of fresh normal rows, a share of `false_alarms` scores above it. The limit comes from scores of
    rows that the model does not know: each row is taken out of the sums to score it. `partial_fit`
    lets the counts of earlier rows fall with those of new ones, and `merge` adds the counts of
    both. With fewer rows than 1/`false_alarms` there is no promise, and the limit is 4 to 6.
    `detector_.score` is M11 without the checks of sklearn: for one row, many times as fast. It
    goes by position, also for a data frame: give the columns in the order of `feature_names_in_`.

    Args:
        n_hidden: Hidden values; None (the default) is 128, or 256 from 512 rows on if the range
            is not given. If it is not, a `fit` of fewer rows than hidden values raises a warning.
        activation: Of the hidden layer: "cosine" (the default), "tanh" (that of earlier versions,
            with 128 hidden values), "sigmoid", "relu" or "identity".
        random_state: Seed of the random weights, 0 unless given; None is 0, not another seed each
            time. Estimators that merge need the same.
        width: Width of the random weights; None (the default) chooses it from the first rows, or
            from the number of inputs if `low` and `high` are given or for other activations.
        low: Lower end of the inputs' range; None (the default) takes it from the first rows.
        high: Upper end likewise. Give both if estimators are to be merged: the projection then
            follows from the settings alone.
        ridge: Added to the diagonal where the readout is solved; None (the default) chooses it
            from the data.
        contamination: Share of the rows of a `fit` that `predict` calls outliers, if the rows are
            known to have outliers among them; "auto" (the default) leaves it to `false_alarms`.
        robust: Whether to skip outliers, True by default: `fit`, and the first `partial_fit`, skip
            the 8 % of the rows that are furthest from most others; a later `partial_fit` skips
            those that score above 8. Set False if all rows are known to be normal.
        false_alarms: The rate at which `predict` may call fresh normal rows outliers, 0.02 unless
            given. Raise it to find more outliers; a lower one needs 1/`false_alarms` rows.

    >>> X = np.random.default_rng(0).normal(0.0, 1.0, (500, 3))
    >>> OSELMDetector().fit(X).predict([[0.0, 0.0, 0.0], [9.0, -9.0, 9.0]])
    array([ 1, -1])
    """

    n_hidden: int | None = None
    activation: Activation = "cosine"
    random_state: int | None = 0
    width: float | None = None
    low: RangeEnd = None
    high: RangeEnd = None
    ridge: float | None = None
    contamination: float | Literal["auto"] = "auto"
    robust: bool = True
    false_alarms: float = 0.02

    def fit(self, X: ArrayLike, y: Any = None, sample_weight: Weights = None) -> Self:  # noqa: ARG002  # sklearn may give y
        """Learn rows (k, n), and nothing but them.

        Args:
            X: Rows (k, n): an array, or a data frame.
            y: Ignored.
            sample_weight: How often each row counts, (k,), 0 or more; None (the default) is once.
        """
        rows = self._fit(X, sample_weight)
        alone = self.low is None or self.high is None  # else others may have more rows to merge
        n_hidden = self.detector_.projection.n_hidden
        if alone and rows < n_hidden:
            warn(
                f"found {rows:g} rows for n_hidden={n_hidden}: scores are rough with fewer rows "
                "than hidden values; learn more rows, or give a smaller n_hidden",
                stacklevel=2,
            )
        return self

    def _fit(self, X: ArrayLike, sample_weight: Weights) -> float:
        """Learn rows, and return how many there were."""
        rows = validate_data(self, X, dtype=np.float64)
        weights = _weights(sample_weight, rows)
        share = self._outlier_share()
        must_be_rate(self.false_alarms)
        if self.robust not in (True, False):
            raise SettingError(f"found robust={self.robust!r}, expected True or False")
        kept = np.where(inliers(rows, weights), weights, 0.0) if self.robust else weights
        ranged = (_near(rows, kept), weights) if self.activation == "cosine" else (rows, kept)
        self._know(Stats.of(_projection(self, *ranged), rows, weights=kept))
        self.calibration_ = Calibration()
        self._calibrate(scores_without_each(self.detector_, rows, kept), weights)
        if share is not None:
            self.offset_ = -upper_quantile(self.detector_.score(rows), weights, share)
        return float(weights.sum())

    def partial_fit(self, X: ArrayLike, y: Any = None, sample_weight: Weights = None) -> Self:  # noqa: ARG002  # sklearn may give y
        """Learn more rows; the first call fixes the range of the inputs, unless it is given.

        Args:
            X: Rows (k, n); later calls need the columns of the first, in the same order.
            y: Ignored.
            sample_weight: How often each row counts, (k,), 0 or more; None (the default) is once.
        """
        if not hasattr(self, "detector_"):
            self._fit(X, sample_weight)
            return self
        rows = _validated_rows(self, X)
        weights = _weights(sample_weight, rows)
        before = np.asarray(self.detector_.score(rows)) if self.detector_.ready else None
        odd = self.robust and before is not None and before > OUTLIER_SCORE
        kept = np.where(odd, 0.0, weights)
        self._know(self.stats_ + Stats.of(self.detector_.projection, rows, weights=kept))
        if self.detector_.ready:
            scores = scores_without_each(self.detector_, rows, kept)
            if before is not None:
                self._follow(before, scores, weights)
            self._calibrate(scores, weights)
        return self

    def _outlier_share(self) -> float | None:
        given = self.contamination
        if isinstance(given, str) and given == "auto":
            return None
        if not (isinstance(given, Real) and 0.0 < float(given) <= 0.5):
            raise SettingError(f"found contamination={given!r}, expected 'auto' or up to 0.5")
        return float(given)

    def _follow(self, before: Array, after: Array, weights: Array) -> None:
        """Let earlier counts fall as the highest scores of new rows did, now that more is known."""
        high = before >= upper_quantile(before, weights, TAIL_SHARE)
        were, are = (float(np.vdot(weights * high, scores)) for scores in (before, after))
        if were > 0.0 and are > 0.0 and hasattr(self, "calibration_"):
            self.calibration_.rescale(are / were)

    def merge(self, other: Self) -> Self:
        """Add everything that another detector has learnt, and return this one.

        Args:
            other: A fitted one with the same settings, and the same columns in the same order; it
                stays as it is.

        Raises:
            MismatchError: Its projection or columns are others; nothing is added then.
            KindError: It is an estimator of another class.
        """
        self._know(_merged_stats(OSELMDetector, self, other))
        if hasattr(other, "calibration_"):  # pickles of version 0.1 have none
            self.calibration_ = getattr(self, "calibration_", Calibration()) + other.calibration_
            self._calibrate(np.empty(0), np.empty(0))
        return self

    def score_samples(self, X: ArrayLike) -> Array:
        """Return −M11 of rows: −1 is typical, −4 means four times the usual squared error.

        Args:
            X: Rows (k, n), with the columns of those that were fitted, in the same order.
        """
        rows = _validated_rows(self, X)
        return np.asarray(-self.detector_.score(rows))

    def decision_function(self, X: ArrayLike) -> Array:
        """Return `score_samples` less `offset_`: below 0 is an outlier.

        Args:
            X: Rows (k, n), with the columns of those that were fitted, in the same order.
        """
        return self.score_samples(X) - self.offset_

    def predict(self, X: ArrayLike) -> NDArray[np.int_]:
        """Return 1 for normal rows and −1 for outliers.

        Args:
            X: Rows (k, n), with the columns of those that were fitted, in the same order.
        """
        return np.where(self.decision_function(X) < 0.0, -1, 1)

    def explain(self, X: Any) -> Any:
        """Return how far each input is from what the other inputs of its row say.

        1 or less is usual for that input. An input that has moved is left out of what the others
        say, so that they do not look odd because of it.

        Args:
            X: Rows (k, n), each explained by itself.

        Returns:
            (k, n). For a data frame of pandas, a data frame with its index and columns; the
            columns of an array are in the order of `feature_names_in_`.

        >>> load = np.random.default_rng(0).normal(0.0, 1.0, (500, 1))
        >>> X = load * [1.0, 2.0, -1.0] + np.random.default_rng(1).normal(0.0, 0.1, (500, 3))
        >>> OSELMDetector().fit(X).explain([[1.0, 2.0, 1.0]]).argmax(1)  # the third should be -1
        array([2])
        """
        rows = _validated_rows(self, X)
        shares = self.detector_.explain(rows)
        return _frame_like(X, shares, X.index, X.columns) if _is_frame(X) else shares

    @property
    def stats_(self) -> Stats:
        """Everything that was learnt, as sums."""
        return self.detector_.own

    def _calibrate(self, scores: Array, weights: Array) -> None:
        """Count scores of rows that were not known; without a contamination they set the limit."""
        counts = getattr(self, "calibration_", None) or Calibration()
        counts.count(scores, self.false_alarms, weights)
        self.calibration_ = counts
        if self.contamination == "auto":
            self.offset_ = -counts.limit(self.false_alarms)

    def _know(self, stats: Stats) -> None:
        self.detector_ = Detector.resume(stats, ridge=self.ridge)


@dataclass(kw_only=True, eq=False, repr=False)
class OSELMRegressor(RegressorMixin, BaseEstimator):
    """Learns a target as a linear function of random hidden features.

    Targets are rounded to about 1/4000 of their range, which is `y_low` to `y_high`.

    Args:
        n_hidden: Hidden values, 128 unless given; more for many inputs, at quadratic cost.
        activation: Of the hidden layer: "tanh" (the default), "sigmoid", "relu", "identity" or
            "cosine", whose width is then chosen from the first rows.
        random_state: Seed of the random weights, 0 unless given; None is 0, not another seed each
            time. Estimators that merge need the same.
        width: Width of the random weights; None (the default) chooses it from the activation and
            the number of inputs.
        low: Lower end of the inputs' range; None (the default) takes it from the first rows.
        high: Upper end likewise. Give both if estimators are to be merged.
        y_low: Lower end of the targets' range; None (the default) takes it from the first rows.
        y_high: Upper end likewise. Give both if estimators are to be merged.
        ridge: Added to the diagonal where the readout is solved; None (the default) chooses it
            from the data.

    >>> X = np.linspace(-1.0, 1.0, 200)[:, None]
    >>> OSELMRegressor().fit(X, np.sin(3.0 * X[:, 0])).predict([[0.5]]).round(1)
    array([1.])
    """

    n_hidden: int = 128
    activation: Activation = "tanh"
    random_state: int | None = 0
    width: float | None = None
    low: RangeEnd = None
    high: RangeEnd = None
    y_low: float | None = None
    y_high: float | None = None
    ridge: float | None = None

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: Weights = None) -> Self:
        """Learn rows (k, n), and nothing but them.

        Args:
            X: Rows (k, n): an array, or a data frame.
            y: The target of each row, (k,).
            sample_weight: How often each row counts, (k,), 0 or more; None (the default) is once.
        """
        return self._learn(X, y, sample_weight, known=None)

    def partial_fit(self, X: ArrayLike, y: ArrayLike, sample_weight: Weights = None) -> Self:
        """Learn more rows; the first call fixes the ranges, unless they are given.

        Args:
            X: Rows (k, n); later calls need the columns of the first, in the same order.
            y: The target of each row, (k,).
            sample_weight: How often each row counts, (k,), 0 or more; None (the default) is once.
        """
        return self._learn(X, y, sample_weight, known=getattr(self, "stats_", None))

    def merge(self, other: Self) -> Self:
        """Add everything that another regressor has learnt, and return this one.

        Args:
            other: A fitted one with the same settings, and the same columns in the same order; it
                stays as it is. Give both the same `y_low` and `y_high`.

        Raises:
            MismatchError: Its projection, range of targets, or columns are others; nothing is added
                then.
            KindError: It is an estimator of another class.
        """
        _set_stats(self, _merged_stats(OSELMRegressor, self, other, "centre_", "scale_"))
        return self

    def predict(self, X: ArrayLike) -> Array:
        """Predict the targets of rows.

        Args:
            X: Rows (k, n), with the columns of those that were fitted, in the same order.
        """
        return np.asarray(_predicted_outputs(self, X)[:, 0] * self.scale_ + self.centre_)

    def _learn(self, X: ArrayLike, y: ArrayLike, sample_weight: Weights, known: Any) -> Self:
        checks = {"y_numeric": True, "dtype": np.float64}
        rows, targets = validate_data(self, X, y, reset=known is None, **checks)
        weights = _weights(sample_weight, rows)
        if known is None:
            self.centre_, self.scale_ = self._target_range(targets[weights > 0.0])
        _learn_targets(self, rows, (targets - self.centre_) / self.scale_, weights, known)
        return self

    def _target_range(self, targets: Array) -> tuple[float, float]:
        low = float(targets.min() if self.y_low is None else self.y_low)
        high = float(targets.max() if self.y_high is None else self.y_high)
        if not (low <= high and isfinite(high - low)):
            raise SettingError(
                f"found y_low={low}, y_high={high}, expected low below high, at a finite distance"
            )
        half = (high - low) / 2.0
        return low + half, 2.0 ** ceil(log2(half or 1.0))


@dataclass(kw_only=True, eq=False, repr=False)
class OSELMClassifier(ClassifierMixin, BaseEstimator):
    """Learns which class a row belongs to, as targets of 1 for its class and 0 for the others.

    Args:
        n_hidden: Hidden values, 128 unless given; more for many inputs, at quadratic cost.
        activation: Of the hidden layer: "tanh" (the default), "sigmoid", "relu", "identity" or
            "cosine", whose width is then chosen from the first rows.
        random_state: Seed of the random weights, 0 unless given; None is 0, not another seed each
            time. Estimators that merge need the same.
        width: Width of the random weights; None (the default) chooses it from the activation and
            the number of inputs.
        low: Lower end of the inputs' range; None (the default) takes it from the first rows.
        high: Upper end likewise. Give both if estimators are to be merged.
        ridge: Added to the diagonal where the readout is solved; None (the default) chooses it
            from the data.

    >>> X = np.linspace(-1.0, 1.0, 200)[:, None]
    >>> OSELMClassifier().fit(X, np.abs(X[:, 0]) > 0.5).predict([[-0.9], [0.0], [0.9]])
    array([ True, False,  True])
    """

    n_hidden: int = 128
    activation: Activation = "tanh"
    random_state: int | None = 0
    width: float | None = None
    low: RangeEnd = None
    high: RangeEnd = None
    ridge: float | None = None

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: Weights = None) -> Self:
        """Learn rows (k, n), and nothing but them.

        Args:
            X: Rows (k, n): an array, or a data frame.
            y: The class of each row, (k,): numbers or text.
            sample_weight: How often each row counts, (k,), 0 or more; None (the default) is once.
        """
        return self._learn(X, y, sample_weight, known=None, classes=None)

    def partial_fit(
        self, X: ArrayLike, y: ArrayLike, classes: Any = None, sample_weight: Weights = None
    ) -> Self:
        """Learn more rows; the first call names all `classes` that there will ever be.

        Args:
            X: Rows (k, n); later calls need the columns of the first, in the same order.
            y: The class of each row, (k,), one of `classes`.
            classes: All classes, also those that come later; None (the default) in later calls,
                which ignore it.
            sample_weight: How often each row counts, (k,), 0 or more; None (the default) is once.
        """
        known = getattr(self, "stats_", None)
        if known is None and classes is None:
            raise SettingError("found no classes, expected all of them in the first partial_fit")
        classes = self.classes_ if known else np.unique(classes)
        return self._learn(X, y, sample_weight, known=known, classes=classes)

    def merge(self, other: Self) -> Self:
        """Add everything that another classifier has learnt, and return this one.

        Args:
            other: A fitted one with the same settings, and the same columns in the same order; it
                stays as it is.

        Raises:
            MismatchError: Its projection, classes, or columns are others; nothing is added then.
            KindError: It is an estimator of another class.
        """
        _set_stats(self, _merged_stats(OSELMClassifier, self, other, "classes_"))
        return self

    def decision_function(self, X: ArrayLike) -> Array:
        """Return how much speaks for each class, (k, m); of two classes for the second, (k,).

        Args:
            X: Rows (k, n), with the columns of those that were fitted, in the same order.
        """
        outputs = _predicted_outputs(self, X)
        return outputs[:, 1] - outputs[:, 0] if len(self.classes_) == 2 else outputs

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Name the class of each row.

        Args:
            X: Rows (k, n), with the columns of those that were fitted, in the same order.
        """
        speaks = self.decision_function(X)
        best = np.int_(speaks > 0.0) if speaks.ndim == 1 else speaks.argmax(1)
        return np.asarray(self.classes_[best])

    def _learn(self, X: Any, y: Any, sample_weight: Weights, known: Any, classes: Any) -> Self:
        rows, labels = validate_data(self, X, y, reset=known is None, dtype=np.float64)
        weights = _weights(sample_weight, rows)
        check_classification_targets(labels)
        classes = np.unique(labels) if classes is None else classes
        strange = np.setdiff1d(labels, classes)
        if len(strange):
            raise SampleError(f"found classes {strange}, expected {classes}: name them all first")
        self.classes_ = classes
        _learn_targets(self, rows, np.equal.outer(labels, classes), weights, known)
        return self


@dataclass(kw_only=True, eq=False, repr=False)
class WindowFeatures(TransformerMixin, BaseEstimator):
    """Turns readings into statistics of windows, with the same bits as the agent's features.

    Put it before a detector in a pipeline. One row goes out for each window, not for each reading,
    so a target `y` for each reading does not fit it.

    Args:
        length: Readings in a window, 64 unless given.
        step: Readings from one window to the next; None (the default) puts windows side by side.
        statistics: Of each channel: some of mean, std, min, max, median, range, rms, slope,
            crossings and last. mean, std, min and max unless given.

    >>> readings = np.arange(12.0).reshape(6, 2)
    >>> features = WindowFeatures(length=3, statistics=("mean", "last")).fit(readings)
    >>> features.transform(readings)
    array([[ 2.,  4.,  3.,  5.],
           [ 8., 10.,  9., 11.]])
    >>> features.get_feature_names_out()
    array(['x0 mean', 'x0 last', 'x1 mean', 'x1 last'], dtype=object)
    """

    length: int = 64
    step: int | None = None
    statistics: Sequence[str] = ("mean", "std", "min", "max")

    def fit(self, X: ArrayLike, y: Any = None) -> Self:  # noqa: ARG002  # sklearn may give y
        """Check the settings, and remember the channels; nothing else is learnt.

        Args:
            X: Readings (k, channels), the oldest first.
            y: Ignored.
        """
        validate_data(self, X, dtype=np.float64)
        self._window()  # refuses settings that are out of range
        return self

    def transform(self, X: ArrayLike) -> Any:
        """Return a row for each full window.

        Args:
            X: Readings (k, channels), the oldest first, at least as many as a window is long.

        Returns:
            (windows, channels × statistics). With `set_output(transform="pandas")` and a data
            frame, a data frame whose index is that of the last reading of each window.
        """
        return _window_rows(self, X)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """Return the name of each column: the channel, then the statistic, such as "x0 mean".

        Args:
            input_features: The names of the channels; None (the default) takes those that were
                fitted, or x0, x1 and so on.
        """
        return _window_names(self, input_features)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "n_features_in_")

    def _window(self) -> SlidingWindow:
        names = self.statistics
        if isinstance(names, str) or not isinstance(names, Iterable):
            raise SettingError(
                f"found statistics={names!r}, expected names in a tuple, such as ('mean',)"
            )
        return SlidingWindow(Statistics(tuple(names)), self.length, self.step)


@dataclass(kw_only=True, eq=False, repr=False)
class SpectrumFeatures(TransformerMixin, BaseEstimator):
    """Turns readings into levels of frequency bands, with the same bits as the agent's features.

    A level is the mean power of a band in dB, relative to a sine of amplitude 1. One row goes out
    for each window, not for each reading.

    Args:
        rate_hz: Readings a second, 1 unless given.
        length: Readings in a window, 256 unless given.
        step: Readings from one window to the next; None (the default) puts windows side by side.
        bands: Bands of equal width, 32 unless given.
        low_hz: Lower end of the lowest band, 0 unless given.
        high_hz: Upper end of the highest band; None (the default) is half of `rate_hz`.

    >>> wave = np.sin(2.0 * np.pi * 125.0 * np.arange(64) / 1000.0)[:, None]
    >>> features = SpectrumFeatures(rate_hz=1000.0, length=64, bands=4).fit(wave)
    >>> features.get_feature_names_out()[features.transform(wave).argmax()]
    'x0 0-125 Hz'
    """

    rate_hz: float = 1.0
    length: int = 256
    step: int | None = None
    bands: int = 32
    low_hz: float = 0.0
    high_hz: float | None = None

    def fit(self, X: ArrayLike, y: Any = None) -> Self:  # noqa: ARG002  # sklearn may give y
        """Check the settings, and remember the channels; nothing else is learnt.

        Args:
            X: Readings (k, channels), the oldest first.
            y: Ignored.
        """
        validate_data(self, X, dtype=np.float64)
        self._window()  # refuses settings that are out of range
        return self

    def transform(self, X: ArrayLike) -> Any:
        """Return a row for each full window.

        Args:
            X: Readings (k, channels), the oldest first, at least as many as a window is long.

        Returns:
            (windows, channels × bands). With `set_output(transform="pandas")` and a data frame, a
            data frame whose index is that of the last reading of each window.
        """
        return _window_rows(self, X)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """Return the name of each column: the channel, then the band, such as "x0 0-125 Hz".

        Args:
            input_features: The names of the channels; None (the default) takes those that were
                fitted, or x0, x1 and so on.
        """
        return _window_names(self, input_features)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "n_features_in_")

    def _window(self) -> SlidingWindow:
        spectrum = Spectrum(
            length=self.length,
            rate_hz=self.rate_hz,
            bands=self.bands,
            low_hz=self.low_hz,
            high_hz=self.high_hz,
        )
        return SlidingWindow(spectrum, self.length, self.step)


def _window_rows(estimator: Any, X: Any) -> Any:
    readings, length = _validated_rows(estimator, X), estimator.length
    if len(readings) < length:
        raise SampleError(
            f"found {len(readings)} readings (n_samples={len(readings)}), expected at least "
            f"{length}, the length of a window: give more, or shorten the window"
        )
    rows = estimator._window().samples(np.ascontiguousarray(readings))
    if not _is_frame(X) or _get_output_config("transform", estimator)["dense"] != "pandas":
        return rows
    last = np.arange(len(rows)) * (estimator.step or length) + length - 1
    return _frame_like(X, rows, X.index[last], _window_names(estimator))


def _window_names(estimator: Any, channels: Any = None) -> NDArray[np.object_]:
    check_is_fitted(estimator)
    names = estimator._window().names(_check_feature_names_in(estimator, channels))
    return np.asarray(names, dtype=object)


def _is_frame(X: Any) -> bool:
    return hasattr(X, "iloc") and hasattr(X, "columns")


def _frame_like(X: Any, values: Array, index: Any, columns: Any) -> Any:
    return type(X)(values, index=index, columns=columns)


def _learn_targets(estimator: Any, rows: Array, targets: Array, weights: Array, known: Any) -> None:
    projection = known.projection if known else _projection(estimator, rows, weights)
    seen = Stats.of(projection, rows, targets, weights=weights)
    _set_stats(estimator, known + seen if known else seen)


def _set_stats(estimator: Any, stats: Stats) -> None:
    estimator.stats_, estimator.readout_ = stats, stats.solve(estimator.ridge)


def _merged_stats(kind: type, one: Any, other: Any, *agreed: str) -> Stats:
    must_be(other, kind, "merge fitted estimators of the same class")
    check_is_fitted(one)
    check_is_fitted(other)
    columns = (getattr(each, "feature_names_in_", ()) for each in (one, other))
    for i, (mine, its) in enumerate(zip(*columns, strict=False)):  # arrays have no names
        if mine != its:
            raise MismatchError(
                f"found {its!r} as column {i} of the other, expected {mine!r}: columns add up by "
                "position, so fit every estimator on the same columns in the same order"
            )
    for name in agreed:
        mine, its = getattr(one, name), getattr(other, name)
        if not np.array_equal(mine, its):
            raise MismatchError(f"found {name} {its}, expected {mine}: {AGREE_ADVICE}")
    return cast(Stats, one.stats_ + other.stats_)  # M7


def _validated_rows(estimator: Any, X: ArrayLike) -> Array:
    check_is_fitted(estimator)
    return np.asarray(validate_data(estimator, X, reset=False, dtype=np.float64))


def _predicted_outputs(estimator: Any, X: ArrayLike) -> Array:
    rows = _validated_rows(estimator, X)
    return np.asarray(estimator.stats_.projection.hidden(rows) @ estimator.readout_.B)


def _weights(sample_weight: Weights, rows: Array) -> Array:
    checks = {"dtype": np.float64, "ensure_non_negative": True}
    return np.asarray(_check_sample_weight(sample_weight, rows, **checks))


def _near(rows: Array, kept: Array) -> Array:
    """Return rows whose inputs are at most one width beyond those of the rows kept.

    Most rows that are left out are the tails of normal, and tell the range of cosine features
    better than the rest alone; wild values do not. Where an input of the rest is constant, a
    projection of enough rows tells glitches by itself.
    """
    low, high = rows[kept > 0.0].min(0), rows[kept > 0.0].max(0)
    tells = (high == low) & (kept.sum() >= MIN_ROWS)
    reach = np.where(tells, np.inf, high - low)
    return np.clip(rows, low - reach, high + reach)


def _seed(estimator: Any) -> int:
    given = estimator.random_state
    seed = 0 if given is None else as_int("random_state", given)
    if not 0 <= seed < 2**64:
        raise SettingError(f"found random_state={seed}, expected 0 to 2⁶⁴ − 1, or None")
    return seed


def _projection(estimator: Any, rows: Array, weights: Array) -> Projection:
    settings: dict[str, Any] = {"seed": _seed(estimator), "activation": estimator.activation}
    wanted = {name: getattr(estimator, name) for name in ("n_hidden", "width", "low", "high")}
    settings |= {name: value for name, value in wanted.items() if value is not None}
    agreed = {"low", "high"} <= set(settings)  # then nothing must depend on the rows
    if agreed or estimator.activation != "cosine":
        settings = {"n_hidden": DEFAULT_HIDDEN} | settings
    if agreed:
        return Projection(n_inputs=rows.shape[1], **settings)
    ends = {name: settings.pop(name) for name in ("low", "high") if name in settings}
    return replace(Projection.of_data(rows, weights=weights, **settings), **ends)
