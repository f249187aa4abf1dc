"""Admission: what a contribution must be before it is merged, each check with its own words.

True sums of bad samples pass: against those help the list of devices, and dropping one. So may a
count (of tanh or relu) or an S that is too large, but in range: it makes its sender's score small.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from edgemerge.core import checks, soundness
from edgemerge.core.checks import Case, Words
from edgemerge.core.contribution import Contribution
from edgemerge.core.errors import MismatchError, RejectedError, must_be
from edgemerge.core.projection import Projection

CHECKS: tuple[Callable[[Case], Words], ...] = (
    checks.origin,
    checks.agreement,
    checks.shapes,
    checks.numbers,
    checks.newer,
    soundness.symmetric,
    soundness.definite,
    checks.growing,
    soundness.hidden_range,
    soundness.input_range,
    soundness.target_bounds,
    soundness.in_range,
    soundness.related,
)


def admit(
    contribution: Contribution,
    *,
    projection: Projection,
    last: Contribution | None = None,
    devices: Collection[str] | None = None,
    forgetting: float = 1.0,
    form: str = "exact",
    n_outputs: int | None = None,
) -> None:
    """Refuse a contribution that no device can have come by honestly, saying why.

    `last` is the one before it, of the same key; `devices` those allowed (None: all); `forgetting`
    below 1 if the sender forgets, since its sums then need not grow; `form` the one it came in;
    `n_outputs` for another target than the sample itself.

    >>> from edgemerge.core.stats import Stats
    >>> shared = Projection(n_inputs=2, n_hidden=3)
    >>> admit(Contribution("pump-3", Stats.of(shared, [[0.1, 0.2]]), 1), projection=shared)
    """
    must_be(contribution, Contribution, "decode() gives one from what a peer sent")
    if last is not None and last.key != contribution.key:
        raise MismatchError(f"found last={last}, expected one with the key {contribution.key}")
    case = Case(contribution, projection, last, devices, forgetting, form, n_outputs)
    for check in CHECKS:
        wrong = check(case)
        if wrong:
            raise RejectedError(f"{contribution.device}, {contribution.pattern}: {wrong}")
