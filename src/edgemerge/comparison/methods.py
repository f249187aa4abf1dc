"""The methods of the comparison: what devices send, and the scores that come of it.

A method takes a fleet and a seed, and returns what one or several devices see afterwards. Rows (k,
n) are between about 0 and 1. What is sent is made into bytes and read again, so that the scores are
those of what was sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from time import process_time
from typing import Any

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from sklearn.cluster import KMeans
from sklearn.ensemble import IsolationForest
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.neighbors import LocalOutlierFactor, NearestNeighbors
from sklearn.svm import OneClassSVM

from edgemerge import Bank, Contribution, Detector, Projection, Stats, decode, encode
from edgemerge.comparison.datasets import HAR, MNIST, Fleet
from edgemerge.core.patterns import inliers
from edgemerge.paper.dataset import Array
from edgemerge.paper.hyperparameters import LAYERS
from edgemerge.paper.plan import Row

ALONE, PAPER, SAME_SIZE, BEST = "alone", "paper's merge", "ours, paper's N", "ours, best"
GAUSSIAN, PCA = "Gaussian sums", "federated PCA"
KNN, LOF, FOREST, SVM = "kNN", "LOF", "IsolationForest", "OneClassSVM"
POOLED = (KNN, LOF, FOREST, SVM)  # ceilings: all rows in one place

FALSE_ALARMS = 0.01  # promised
ALONE_DEVICES = 1  # of a fleet, the first; over all seeds every pattern has its turn
VALUE_BYTES = 4  # of one reading or weight that is sent
SUM_BYTES = 8  # of one number in a sum
AGREED_ROWS = 512  # that range and width of a projection come from
MIN_PART_ROWS = 32  # of a part that a device makes of its rows
MAX_PATTERNS = 16  # of a device; four times as many of others are kept apart


@dataclass(frozen=True, eq=False)
class View:
    """What a device makes of the evaluation set, and of normal rows that were held back."""

    scores: Array
    held_back: Array


Params = dict[str, Any]
Method = Callable[..., tuple[list[View], float]]  # and the bytes that each device sent, on average


def measure(method: Method, fleet: Fleet, seed: int, params: Params) -> Row:
    """Run a method, and return what came of it: the mean over its views."""
    start = process_time()
    views, sent = method(fleet, seed, **params)
    seconds = process_time() - start
    figures = np.mean([_figures(view, fleet) for view in views], axis=0)
    names = ("auc", "precision", "false_alarms", "detected")
    found: Row = {name: round(float(x), 4) for name, x in zip(names, figures, strict=True)}
    return {**found, "bytes": round(sent), "seconds": round(seconds, 3)}


def _figures(view: View, fleet: Fleet) -> list[float]:
    alarms = view.scores > limit_for(view.held_back)
    return [
        float(roc_auc_score(fleet.odd, view.scores)),
        float(average_precision_score(fleet.odd, view.scores)),
        float(alarms[~fleet.odd].mean()),
        float(alarms[fleet.odd].mean()),
    ]


def limit_for(held_back: Array) -> float:
    """Return the limit that fresh normal scores exceed at the rate of `FALSE_ALARMS`.

    With fewer than 1/rate − 1 scores no limit can promise it: the largest is returned.

    >>> limit_for(np.arange(199.0))
    197.0
    """
    place = ceil((len(held_back) + 1) * (1.0 - FALSE_ALARMS))
    return float(np.sort(held_back)[min(place, len(held_back)) - 1])


def alone(fleet: Fleet, seed: int, **params: Any) -> tuple[list[View], float]:
    """Let each device use its own rows only, with the settings of ours, best."""
    layer = agreed_layer(fleet, seed, params)
    views = []
    for i in range(min(ALONE_DEVICES, len(fleet.learnt))):
        bank = Bank(layer, max_patterns=MAX_PATTERNS)
        bank.adopt(share_parts(layer, fleet.learnt[i], f"device-{i}", seed, params))
        views.append(View(bank_scores(bank, fleet.test), bank_scores(bank, fleet.held_back[i])))
    return views, 0.0


def paper_merge(fleet: Fleet, seed: int) -> tuple[list[View], float]:
    """Merge as in the paper: U and V are added up, the loss is the score."""
    layer, sent = paper_layer(fleet, seed), []
    for i, rows in enumerate(fleet.learnt):
        device = Detector(layer)
        device.learn(rows)
        sent += encoded(device.share(f"device-{i}", revision=1), "exact")
    total = Stats.total(layer, [each.stats for each in decoded(sent, layer)])
    merged = Detector.resume(total)
    return view_of(fleet, lambda X: np.asarray(merged.loss(X))), mean_bytes(sent, fleet)


def same_size(fleet: Fleet, seed: int) -> tuple[list[View], float]:
    """Keep patterns apart at the paper's size: each device a bank with its defaults."""
    layer, sent = paper_layer(fleet, seed), []
    for i, rows in enumerate(fleet.learnt):
        bank = Bank(layer)
        bank.learn(rows)
        sent += encoded(bank.share(f"device-{i}", revision=1), "exact")
    merged = adopted(layer, sent)
    return view_of(fleet, lambda X: bank_scores(merged, X)), mean_bytes(sent, fleet)


def ours(fleet: Fleet, seed: int, **params: Any) -> tuple[list[View], float]:
    """Keep patterns apart, each device's rows in several parts: a bank adopts all of them."""
    layer, sent = agreed_layer(fleet, seed, params), []
    for i, rows in enumerate(fleet.learnt):
        sent += encoded(share_parts(layer, rows, f"device-{i}", seed, params), params["form"])
    merged = adopted(layer, sent)
    return view_of(fleet, lambda X: bank_scores(merged, X)), mean_bytes(sent, fleet)


def paper_layer(fleet: Fleet, seed: int) -> Projection:
    """Return the paper's layer; sets that the paper does not have get sigmoid and N = 64."""
    n_inputs = fleet.test.shape[1]
    if fleet.name not in (HAR, MNIST):
        return Projection(
            n_inputs=n_inputs, n_hidden=64, seed=seed, activation="sigmoid", low=0.0, high=1.0
        )
    layer = LAYERS[fleet.name]
    return Projection(
        n_inputs=n_inputs,
        n_hidden=layer.n_hidden,
        seed=seed,
        activation=layer.activation,
        low=0.0,
        high=1.0,
    )


def agreed_layer(fleet: Fleet, seed: int, params: Params) -> Projection:
    """Return the layer that a fleet agrees on; cosine takes range and width from some rows.

    `width` is a multiple of the width that `Projection.of_data` chooses.
    """
    settings = {"n_hidden": params["n_hidden"], "seed": seed, "activation": params["activation"]}
    if params["activation"] != "cosine":
        return Projection(n_inputs=fleet.test.shape[1], low=0.0, high=1.0, **settings)
    rows = np.random.default_rng(seed).permutation(fleet.rows)[:AGREED_ROWS]
    usual = Projection.of_data(rows, **settings)
    if params["width"] == 1.0 or usual.width is None:
        return usual
    return Projection.of_data(rows, **settings, width=params["width"] * usual.width)


def share_parts(
    layer: Projection, rows: Array, device: str, seed: int, params: Params
) -> list[Contribution]:
    """Return what a device shares: the sums of each part of its rows, found by k-means."""
    rows = rows[inliers(rows)] if params["sift"] else rows
    count = max(1, min(params["parts"], len(rows) // MIN_PART_ROWS))
    part = KMeans(count, n_init=1, max_iter=20, random_state=seed).fit_predict(rows)
    shared = []
    for i in np.unique(part):
        detector = Detector(layer)
        detector.learn(rows[part == i])
        shared += detector.share(device, pattern=f"part-{i}", revision=1)
    return shared


def adopted(layer: Projection, sent: Sequence[bytes]) -> Bank:
    """Return the bank of a device that joins, and adopts what the others sent."""
    bank = Bank(layer, max_patterns=MAX_PATTERNS)
    bank.adopt(decoded(sent, layer))
    return bank


def encoded(contributions: Sequence[Contribution], form: str) -> list[bytes]:
    """Return contributions as bytes."""
    return [encode(each, form) for each in contributions]


def decoded(sent: Sequence[bytes], layer: Projection) -> list[Contribution]:
    """Return contributions from their bytes."""
    return [decode(data, Contribution, projection=layer) for data in sent]


def bank_scores(bank: Bank, X: Array) -> Array:
    """Return a bank's scores of rows."""
    return np.asarray(bank.score(X))


def view_of(fleet: Fleet, score: Callable[[Array], Array]) -> list[View]:
    """Return the view that all devices share, from a function that scores rows."""
    return [View(score(fleet.test), score(np.vstack(fleet.held_back)))]


def mean_bytes(sent: Sequence[bytes], fleet: Fleet) -> float:
    """Return how many bytes a device sent, on average."""
    return sum(map(len, sent)) / len(fleet.learnt)


def gaussian(fleet: Fleet, seed: int, *, ridge: float) -> tuple[list[View], float]:
    """Add up count, sum and sum of products; score by Mahalanobis' distance, squared."""
    del seed  # nothing is drawn
    mean, covariance, sent = summed_covariance(fleet)
    n = len(mean)
    solved = cho_factor(covariance + ridge * np.trace(covariance) / n * np.eye(n))

    def score(X: Array) -> Array:
        far = X - mean
        return np.asarray((far * cho_solve(solved, far.T).T).sum(1))

    return view_of(fleet, score), sent


def federated_pca(fleet: Fleet, seed: int, *, share: float) -> tuple[list[View], float]:
    """Take principal components from the summed covariance; score by the squared residual."""
    del seed  # nothing is drawn
    mean, covariance, sent = summed_covariance(fleet)
    variances, axes = np.linalg.eigh(covariance)
    kept = np.cumsum(variances[::-1]) <= share * variances.sum()
    basis = axes[:, ::-1][:, : max(1, int(kept.sum()))]

    def score(X: Array) -> Array:
        far = X - mean
        return np.asarray(((far - far @ basis @ basis.T) ** 2).sum(1))

    return view_of(fleet, score), sent


def summed_covariance(fleet: Fleet) -> tuple[Array, Array, float]:
    """Return mean and covariance from the sums of all devices, and the bytes of one of them."""
    n = fleet.test.shape[1]
    count, first, second = 0, np.zeros(n), np.zeros((n, n))
    for rows in fleet.learnt:
        count += len(rows)
        first += rows.sum(0)
        second += rows.T @ rows
    mean = first / count
    return mean, second / count - np.outer(mean, mean), SUM_BYTES * (1 + n + n * (n + 1) / 2)


def neighbours(fleet: Fleet, seed: int, *, k: int) -> tuple[list[View], float]:
    """Score by the distance to the k-th nearest of all rows."""
    del seed  # nothing is drawn
    found = NearestNeighbors(n_neighbors=min(k, len(fleet.rows))).fit(fleet.rows)
    return view_of(fleet, lambda X: np.asarray(found.kneighbors(X)[0][:, -1])), row_bytes(fleet)


def local_outlier_factor(fleet: Fleet, seed: int, *, k: int) -> tuple[list[View], float]:
    """Score by the local outlier factor among all rows."""
    del seed  # nothing is drawn
    return fitted(LocalOutlierFactor(n_neighbors=min(k, len(fleet.rows) - 1), novelty=True), fleet)


def forest(fleet: Fleet, seed: int) -> tuple[list[View], float]:
    """Score by an isolation forest of all rows."""
    return fitted(IsolationForest(random_state=seed), fleet)


def one_class_svm(fleet: Fleet, seed: int, *, nu: float) -> tuple[list[View], float]:
    """Score by a one-class support vector machine of all rows."""
    del seed  # nothing is drawn
    return fitted(OneClassSVM(nu=nu), fleet)


def fitted(estimator: Any, fleet: Fleet) -> tuple[list[View], float]:
    """Fit an estimator of scikit-learn to all rows."""
    estimator.fit(fleet.rows)
    return view_of(fleet, lambda X: np.asarray(-estimator.score_samples(X))), row_bytes(fleet)


def row_bytes(fleet: Fleet) -> float:
    """Return the bytes of a device's rows, on average."""
    return VALUE_BYTES * fleet.rows.size / len(fleet.learnt)


METHODS: dict[str, Method] = {
    ALONE: alone,
    PAPER: paper_merge,
    SAME_SIZE: same_size,
    BEST: ours,
    GAUSSIAN: gaussian,
    PCA: federated_pca,
    KNN: neighbours,
    LOF: local_outlier_factor,
    FOREST: forest,
    SVM: one_class_svm,
}


def _banks(sifts: Sequence[bool], *layers: tuple[str, int, float, Sequence[int]]) -> list[Params]:
    return [
        {"activation": activation, "n_hidden": N, "width": width, "parts": count}
        | {"sift": sift, "form": "root16"}
        for activation, N, width, parts in layers
        for count in parts
        for sift in sifts
    ]


# One setting of each is chosen on one half of the data. Sifting is for dirty fleets.
PAIR_BANKS = _banks(
    [False],
    ("identity", 64, 1.0, (4, 8)),
    ("identity", 128, 1.0, (1, 2, 4, 8)),
    ("identity", 256, 1.0, (1, 8)),
    ("cosine", 128, 0.5, (4, 8)),
    ("cosine", 256, 0.25, (4,)),
    ("cosine", 256, 0.5, (8,)),
    ("cosine", 256, 1.0, (8,)),
)
FLEET_BANKS = _banks(
    [False, True],
    ("identity", 64, 1.0, (1, 4)),
    ("cosine", 128, 0.5, (1, 4)),
)
RIVALS: dict[str, list[Params]] = {
    GAUSSIAN: [{"ridge": ridge} for ridge in (1e-4, 1e-3, 1e-2, 1e-1)],
    PCA: [{"share": share} for share in (0.8, 0.9, 0.95, 0.99)],
    KNN: [{"k": k} for k in (1, 5, 20)],
    LOF: [{"k": k} for k in (10, 20, 40)],
    SVM: [{"nu": nu} for nu in (0.01, 0.1, 0.5)],
}
