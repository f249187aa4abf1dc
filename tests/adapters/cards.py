"""Samples for tests with River: payments by card, some of them odd."""

import itertools
import random
from functools import cache


class CreditCard:
    """Stands in for River's data set of that name, which would have to be fetched from a host."""

    def take(self, k):
        return [(dict(inputs), label) for inputs, label in self.made(k)]

    @classmethod
    @cache  # River's checks take the same ones a dozen times
    def made(cls, k):
        return list(itertools.islice(cls(), k))

    def __iter__(self):
        draw = random.Random(0).gauss
        for i in itertools.count():
            odd, level = i % 50 == 49, draw(0.0, 1.0)
            inputs = {f"V{j}": draw(level * (j % 2), 1.0) + 3.0 * odd for j in range(1, 29)}
            yield {"Time": float(i), **inputs, "Amount": abs(draw(0.0, 80.0))}, int(odd)
