"""OS-ELM in plain NumPy, as published code and as textbooks write it: baselines for time.

x is (1, n) for the published style, (n,) for the textbook's; P (N, N), B (N, n).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgemerge import Projection
from edgemerge.paper.dataset import Array

Hidden = Callable[[Array], Array]


def hidden_layer(projection: Projection) -> Hidden:
    """Return the function g(xA + b) of readings in [−1, 1], without a grid."""
    A, b, g = projection.A, projection.b, projection.rule.function
    return lambda x: g(x.dot(A) + b)  # M1


class PublishedElm:
    """OS-ELM as public code writes it: any batch size, a pseudo-inverse, products left to right."""

    def __init__(self, hidden: Hidden, P: Array, B: Array) -> None:
        """Start from a first solution."""
        self.hidden, self.P, self.B = hidden, P, B

    def learn(self, x: Array) -> None:
        """Learn rows (k, n); here k is 1."""
        H = self.hidden(x)
        inner = np.linalg.pinv(np.eye(len(x)) + H.dot(self.P).dot(H.T))
        self.P = self.P - self.P.dot(H.T).dot(inner).dot(H).dot(self.P)  # M4
        self.B = self.B + self.P.dot(H.T).dot(x - H.dot(self.B))  # M5

    def loss(self, x: Array) -> float:
        """Return the mean squared error of rows (k, n)."""
        return float(np.mean((x - self.hidden(x).dot(self.B)) ** 2))  # M9

    def sums(self) -> tuple[Array, Array]:
        """Compute the sums U and V from P and B."""
        U: Array = np.linalg.inv(self.P).astype(float, copy=False)
        return U, U.dot(self.B)  # M6

    def merged(self, U: Array, V: Array) -> tuple[Array, Array]:
        """Return P and B after adding a peer's sums to our own, which are computed from P."""
        own_U, own_V = self.sums()
        return solve(own_U + U, own_V + V)  # M7


def solve(U: Array, V: Array) -> tuple[Array, Array]:
    """Return P and B of sums by an inverse, without a ridge."""
    P: Array = np.linalg.inv(U).astype(float, copy=False)
    return P, P.dot(V)  # M3


class TextbookElm:
    """OS-ELM for one sample at a time: a reciprocal and two outer products."""

    def __init__(self, hidden: Hidden, P: Array, B: Array) -> None:
        """Start from a first solution."""
        self.hidden, self.P, self.B = hidden, P.copy(), B.copy()

    def learn(self, x: Array) -> None:
        """Learn one sample (n,)."""
        h = self.hidden(x)
        Ph = self.P @ h
        gain = Ph / (1.0 + h @ Ph)
        self.P -= np.outer(gain, Ph)  # M4
        self.B += np.outer(gain, x - h @ self.B)  # M5

    def loss(self, x: Array) -> float:
        """Return the mean squared error of one sample (n,)."""
        e = x - self.hidden(x) @ self.B
        return float(e @ e) / len(x)  # M9
