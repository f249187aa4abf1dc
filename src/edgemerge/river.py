"""A detector for River: samples are dicts whose features may appear and vanish at any time.

Each feature's weights follow from its name, and an absent one counts as the middle of the range,
which is 0 on the grid. So sums from before a feature appeared only gain columns of zeros, and
detectors that met different features in a different order still add up exactly.
"""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Real
from operator import itemgetter
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from river import base

from edgemerge.core import detector as core
from edgemerge.core.errors import SettingError, must_be
from edgemerge.core.limit import Calibration, must_be_rate
from edgemerge.core.projection import Activation, Projection
from edgemerge.core.stats import Stats

__all__ = ["OSELMDetector", "PromisedFilter"]

Array = NDArray[np.float64]
Features = dict[Any, Any]

GRID_BITS = 10  # leaves room for 10⁵ samples of unscaled inputs
MAX_FEATURES = 4096  # features up to which a name's weights do not depend on how many there are


class OSELMDetector(base.AnomalyDetector):
    """Learns what is normal; a score of 1 is typical, 4 means four times the usual squared error.

    Scale features to about [low, high] first, with any scaler of River.

    Args:
        n_hidden: Hidden values, 64 unless given; more for many features, at quadratic cost.
        activation: Of the hidden layer: "tanh" (the default), "sigmoid", "relu",
            "identity" or "cosine".
        width: Spread of the random weights, 1 unless given; about 5/√n suits n features. It stays
            the same when features appear, so there is no default that follows their number.
        low: Lower end of the range of scaled features, −1 unless given.
        high: Upper end of that range, 1 unless given.
        ridge: Added to the diagonal where the readout is solved; None chooses it from the data.
        forgetting: After each new sample the older ones weigh `forgetting`² times what they did;
            1 (the default) keeps all.
        reject_above: Do not learn samples that score above this; None (the default) learns all.
        seed: Of the random weights, 0 unless given. Detectors that merge need the same seed.

    >>> import random
    >>> from river import compose, preprocessing
    >>> alarm = PromisedFilter(OSELMDetector(seed=7), false_alarms=0.01)
    >>> model = compose.Pipeline(preprocessing.StandardScaler(), alarm)
    >>> draw = random.Random(0).gauss
    >>> for _ in range(500):
    ...     model.learn_one({"heat": draw(70, 3), "noise": draw(40, 5)})
    >>> usual, odd = {"heat": 71.0, "noise": 38.0}, {"heat": 99.0, "noise": 38.0}
    >>> model.score_one(usual) < 2.0, model.score_one(odd) > 4.0
    (True, True)
    >>> alarm.classify(model.score_one(usual)), alarm.classify(model.score_one(odd))
    (False, True)
    """

    def __init__(
        self,
        *,
        n_hidden: int = 64,
        activation: Activation = "tanh",
        width: float = 1.0,
        low: float = -1.0,
        high: float = 1.0,
        ridge: float | None = None,
        forgetting: float = 1.0,
        reject_above: float | None = None,
        seed: int = 0,
    ) -> None:
        _must_be_width(width)
        self.n_hidden = n_hidden
        self.activation: Activation = activation
        self.width = width
        self.low = low
        self.high = high
        self.ridge = ridge
        self.forgetting = forgetting
        self.reject_above = reject_above
        self.seed = seed
        self._features: tuple[Any, ...] = ()
        self._known: frozenset[Any] = frozenset()
        self._detector: core.Detector | None = None

    def learn_one(self, x: Features) -> None:
        """Learn one sample, with every feature that it brings.

        Args:
            x: A number for each feature, in any order, scaled to about [low, high]. Features are
                told apart by their names; one that is absent counts as the middle of the range.

        Raises:
            SampleError: A value is no finite number; nothing is learnt then.
        """
        row = self._row(x)
        new = row is None and not self._known.issuperset(x)
        if self._detector is not None and not new:
            self._detector.learn(self._padded(x, self._features) if row is None else row)
        elif x:
            features = _feature_union(self._features, x)
            grown = self._grown(features)
            grown.learn(self._padded(x, features))
            self._take(features, grown)

    def score_one(self, x: Features) -> float:
        """Return how unusual a sample is; unknown features are ignored.

        The score is 0 up to 1.3 samples per hidden value: earlier scores can be huge, and the
        quantiles of River's filters would never recover from them.

        Args:
            x: The sample, scaled as for `learn_one`; an absent feature counts as the middle of the
                range.
        """
        if self._detector is None or not self._detector.ready:
            return 0.0
        row = self._row(x)
        return float(self._detector.score(self._padded(x, self._features) if row is None else row))

    def explain_one(self, x: Features) -> dict[Any, float]:
        """Return how far each feature is from what the other features say, the largest first.

        1 or less is usual for that feature. A feature that has moved is left out of what the
        others say, so that they do not look odd because of it.

        Args:
            x: The sample, scaled as for `score_one`. Unknown features are ignored; an absent one
                counts as the middle of the range.

        Returns:
            A number for each feature that was ever learnt; nothing up to 1.3 samples per hidden
            value, where the score is 0.

        >>> import random
        >>> detector, draw = OSELMDetector(n_hidden=16), random.Random(0).gauss
        >>> for load in [draw(0.0, 0.4) for _ in range(300)]:
        ...     detector.learn_one({"heat": load, "noise": draw(load / 2, 0.1), "flow": -load})
        >>> list(detector.explain_one({"heat": 0.4, "noise": 0.9, "flow": -0.4}))[0]
        'noise'
        """
        if self._detector is None or not self._detector.ready:
            return {}
        shares = self._detector.explain(self._padded(x, self._features))
        return {self._features[i]: float(shares[i]) for i in np.argsort(-shares, kind="stable")}

    def merge(self, other: Self) -> None:
        """Add everything that another detector has learnt, whatever features it met.

        Args:
            other: A detector with the same settings, also the same seed; it stays as it is.

        Raises:
            MismatchError: Its settings are others; nothing is added then.
            KindError: It is not a detector of this module.
        """
        must_be(other, OSELMDetector, "merge detectors of River only")
        if other._detector is None:
            return
        features = _feature_union(self._features, other._features)
        merged = self._grown(features)
        self._projection(other._features).must_equal(other._detector.projection)
        own = merged.own + _embed_stats(other._detector.own, merged.projection)  # M7
        self._take(features, self._resumed(own, merged.rejected + other._detector.rejected))

    @property
    def stats(self) -> Stats | None:
        """Everything that was learnt, as sums with one output a feature; None before the first."""
        return None if self._detector is None else self._detector.own

    def _row(self, x: Features) -> Array | None:
        """Return the values of a sample with exactly the known features, or None."""
        if len(x) == len(self._features) > 0:
            try:
                return np.fromiter(self._pick(x), np.float64, len(x))
            except (KeyError, TypeError, ValueError):
                return None
        return None

    def _padded(self, x: Features, features: tuple[Any, ...]) -> list[Any]:
        absent = (self.low + self.high) / 2.0
        return [x.get(feature, absent) for feature in features]

    def _take(self, features: tuple[Any, ...], detector: core.Detector) -> None:
        self._features, self._known, self._detector = features, frozenset(features), detector
        self._pick = itemgetter(*features, features[0])  # one more, or one feature gives no tuple

    def _projection(self, features: tuple[Any, ...]) -> Projection:
        if len(features) > MAX_FEATURES:
            raise SettingError(f"found {len(features)} features, expected at most {MAX_FEATURES}")
        _must_be_width(self.width)  # an old pickle may have None
        return Projection(
            n_inputs=len(features),
            n_hidden=self.n_hidden,
            seed=self.seed,
            activation=self.activation,
            low=self.low,
            high=self.high,
            width=self.width,
            grid_bits=GRID_BITS,
            names=tuple(map(str, features)),
        )

    def _grown(self, features: tuple[Any, ...]) -> core.Detector:
        """Return a detector with the same sums and room for more features."""
        projection = self._projection(features)
        if self._detector is None:
            return self._resumed(Stats.empty(projection), 0)
        return self._resumed(_embed_stats(self._detector.own, projection), self._detector.rejected)

    def _resumed(self, own: Stats, rejected: int) -> core.Detector:
        return core.Detector.resume(
            own,
            ridge=self.ridge,
            forgetting=self.forgetting,
            reject_above=self.reject_above,
            rejected=rejected,
        )


class PromisedFilter(base.AnomalyFilter):
    """Calls a sample an anomaly if it scores above a limit that keeps a promise.

    Of normal samples a share of `false_alarms` scores above the limit. It comes from the scores of
    samples before they are learnt; at least the newest half counts, since earlier scores come from
    a detector that knew less. With fewer scores than 1/`false_alarms` it is 4 to 6.

    Args:
        anomaly_detector: An `OSELMDetector`, or another detector of River whose usual score is
            about 1.
        false_alarms: The rate of false alarms among normal samples, 0.02 unless given.
        protect_anomaly_detector: Whether to keep anomalies from being learnt, True by default. They
            are counted all the same, or the limit would feed on its own rejections.

    >>> alarm = PromisedFilter(OSELMDetector(n_hidden=4), false_alarms=0.05)
    >>> for i in range(500):
    ...     alarm.learn_one({"a": (i * 7 % 11) / 11.0, "b": (i * 5 % 13) / 13.0})
    >>> 1.0 < alarm.limit < 4.0
    True
    """

    def __init__(
        self,
        anomaly_detector: base.AnomalyDetector,
        false_alarms: float = 0.02,
        *,
        protect_anomaly_detector: bool = True,
    ) -> None:
        super().__init__(
            anomaly_detector=anomaly_detector, protect_anomaly_detector=protect_anomaly_detector
        )
        self.false_alarms = must_be_rate(false_alarms)
        self.calibration = Calibration()

    @property
    def limit(self) -> float:
        """The score above which a sample is an anomaly."""
        return self.calibration.limit(self.false_alarms)

    def classify(self, score: float) -> bool:
        """Return whether a score is that of an anomaly.

        Args:
            score: What `score_one` returned.
        """
        return bool(score > self.limit)

    def learn_one(self, x: Features, *args: Any) -> None:
        """Count the score of a sample; learn the sample unless it is an anomaly.

        Args:
            x: The sample, as the detector takes it.
            *args: Whatever else the detector takes.
        """
        score = self.score_one(x, *args)
        if score > 0.0:  # 0 means that the detector is warming up
            self.calibration.count(score, self.false_alarms)
        if not (self.protect_anomaly_detector and self.classify(score)):
            self.anomaly_detector.learn_one(x, *args)


Detector = OSELMDetector  # its name up to version 0.1; pickles and old imports use it


def _must_be_width(width: object) -> None:
    if not (isinstance(width, Real) and 0.0 < float(width) <= 1024.0):
        raise SettingError(
            f"found width={width}, expected above 0, at most 1024: the weights of a feature must "
            "not change when others appear, so give a number, such as 1"
        )


def _feature_union(some: Iterable[Any], more: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(sorted({*some, *more}, key=str))


def _embed_stats(stats: Stats, projection: Projection) -> Stats:
    """Return the sums that the same samples have with the features of a larger projection."""
    names = {name: i for i, name in enumerate(projection.names or ())}
    places = [names[name] for name in stats.projection.names or ()]
    n, N = projection.n_inputs, projection.n_hidden
    V, C, S = np.zeros((N, n)), np.zeros(n), np.zeros(n)
    V[:, places], C[places], S[places] = stats.V, stats.C, stats.S
    return Stats(projection, stats.U, V, C, S, stats.count)
