"""The relation: what H = g(XA + b) says about sums whose target is the sample itself.

z = xA + b is rounded to the grid, by e with |e| ≤ step/2, before the activation. Hence, for each
hidden value i, Σ h_i z_i = (VA)_ii + g_i b_i + Σ h_i e_i with g = Σ h, |g_i| ≤ √(count·U_ii), and
- identity: h = z, so that U = VA + g bᵀ in every entry, and g = AᵀC + count·b;
- relu: h² = h z, with g_i ≥ 0;
- tanh: h² ≤ h z;
- sigmoid: 4(h − ½)² ≤ (h − ½) z + step, with g_i ≥ 0.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgemerge.core.rounding import UNIT, Rounding
from edgemerge.core.stats import Stats

Array = NDArray[np.float64]


def excess(stats: Stats, rounding: Rounding) -> Array:
    """Say by how much each sum is further from the relation than rounding explains; ≤ 0 is well."""
    case = _Case(stats, rounding)
    if stats.projection.activation == "identity":
        return case.identity()
    return {"relu": case.relu, "tanh": case.tanh, "sigmoid": case.sigmoid}[
        stats.projection.activation
    ]()


class _Case:
    """The numbers that the four relations share; all (N,) unless said otherwise."""

    def __init__(self, stats: Stats, rounding: Rounding) -> None:
        p, slack = stats.projection, rounding.slack
        self.stats, self.A, self.b, self.slack = stats, p.A, p.b, slack
        self.diagonal = stats.U.diagonal()
        self.count = stats.count + slack
        self.root = np.sqrt(np.maximum(self.diagonal, 0.0) + slack)  # at least √Σh²
        self.step = p.step
        weights = np.abs(p.A)
        self.total = weights.sum(0)
        self.reach = np.sqrt(np.maximum(stats.S, 0.0) + slack) @ weights  # at least √Σx² per input
        self.value = rounding.value + 4.0 * (p.n_inputs + 2) * UNIT
        # what rounding does to U_ii and (VA)_ii, and e to Σ h_i z_i
        self.blur = self.value * self.root * (self.root + self.reach)
        self.blur += slack * (1.0 + self.total) + 0.5 * self.step * self.sums

    @property
    def sums(self) -> Array:
        """The most that |g_i| can be."""
        return np.asarray(np.sqrt(self.count) * self.root)

    def mean(self) -> tuple[Array, Array]:
        """Give Σz = AᵀC + count·b, and how far rounding may have moved it."""
        z = self.stats.C @ self.A + self.stats.count * self.b
        blur = self.slack * (self.total + 1.0) + 0.5 * self.step * self.count
        return z, blur + self.value * np.sqrt(self.count) * self.reach

    def products(self) -> Array:
        """Give (VA)_ii."""
        return np.asarray(np.einsum("ij,ji->i", self.stats.V, self.A))

    def identity(self) -> Array:
        g, blur = self.mean()
        gap = np.abs(self.stats.U - self.stats.V @ self.A - np.outer(g, self.b))  # (N, N)
        gap -= self.value * np.outer(self.root, self.root + self.reach)
        gap -= 0.5 * self.step * self.sums[:, None]
        gap -= np.outer(blur, np.abs(self.b))
        return np.asarray((gap - self.slack * (1.0 + self.total)).max(1))

    def relu(self) -> Array:
        gap, most = self.diagonal - self.products(), self.sums * self.b
        outside = np.maximum(gap - np.maximum(most, 0.0), np.minimum(most, 0.0) - gap)
        return np.asarray(outside - self.blur)

    def tanh(self) -> Array:
        gap = self.diagonal - self.products() - self.sums * np.abs(self.b)
        return np.asarray(gap - self.blur)

    def sigmoid(self) -> Array:
        z, blur = self.mean()
        left = 4.0 * self.diagonal + self.stats.count - self.sums * (4.0 + self.b)
        right = self.products() - 0.5 * z + self.step * self.count
        return np.asarray(left - right - 4.0 * self.blur - blur)
