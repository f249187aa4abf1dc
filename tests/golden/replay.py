"""What is done with learners and servers, when the corpus is made and when it is read.

A recipe is plain JSON: which learner, and steps such as ["learn", [[0.2, 300, 1]]], where each
mode is (place, rows, seed). It uses public names alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

import numpy as np

from edgemerge import Bank, Contribution, Detector, Projection, Stats
from tests.golden.samples import Array, mixed
from tests.waiting import DEADLINE_S

Recipe = dict[str, Any]


def learner(recipe: Recipe) -> Any:
    """Make the learner of a recipe, that has learnt nothing yet."""
    kind = {"detector": Detector, "bank": Bank}[recipe["kind"]]
    return kind(Projection(**recipe["projection"]), **recipe.get("options", {}))


def replay(thing: Any, steps: Sequence[Any]) -> Array:
    """Take the steps one after the other; give all scores."""
    scores = [np.empty(0)]
    for verb, modes in steps:
        rows = mixed(*modes, inputs=thing.projection.n_inputs)
        found = VERBS[verb](thing, rows)
        if found is not None:
            scores.append(np.asarray(found))
    return np.concatenate(scores)


def adopt(thing: Any, rows: Array) -> None:
    """Let a learner adopt what two others saw, each of one half of the rows."""
    halves = [Stats.of(thing.projection, half) for half in np.array_split(rows, 2)]
    if isinstance(thing, Detector):
        thing.adopt(Stats.total(thing.projection, halves))
    else:
        devices = ("peer-1", "peer-2")
        thing.adopt([Contribution(d, s, revision=1) for d, s in zip(devices, halves, strict=True)])


def each(call: Callable[[Any], Any], rows: Array) -> list[Any]:
    """Give samples one at a time."""
    return [call(row) for row in rows]


def uneven(call: Callable[[Any], Any], rows: Array) -> Array:
    """Give samples in groups of 1, 7, 100, 1, 7, 100, ..."""
    found, done = [], 0
    while done < len(rows):
        size = (1, 7, 100)[len(found) % 3]
        found.append(np.atleast_1d(call(rows[done : done + size])))
        done += size
    return np.concatenate(found)


def squared_residuals(thing: Any, rows: Array) -> Array:
    """Return what `explain` returned then: squared residuals in units of what is usual."""
    on_grid = thing.projection.to_rows(rows)
    return np.asarray(thing.residuals(on_grid, thing.projection.project(on_grid)) ** 2).ravel()


VERBS: dict[str, Callable[[Any, Array], Any]] = {
    "learn": lambda thing, rows: thing.learn(rows),
    "learn each": lambda thing, rows: each(thing.learn, rows) and None,
    "score": lambda thing, rows: thing.score(rows),
    "score each": lambda thing, rows: each(thing.score, rows),
    "stream": lambda thing, rows: uneven(thing.learn_and_score, rows),
    "stream each": lambda thing, rows: each(thing.learn_and_score, rows),
    "adopt": adopt,
    "explain": squared_residuals,
}


@dataclass(frozen=True)
class Answer:
    """What a server answered."""

    status: int
    body: bytes
    tag: str | None
    kind: str


class Staying(HTTPRedirectHandler):
    """Follows no redirection: that it is one is the answer."""

    def redirect_request(self, *_given: Any) -> None:
        """Do not follow."""


def asked(
    url: str, path: str, token: str | None = None, *, body: bytes | None = None, **headers: str
) -> Answer:
    """Ask a server on this machine; with a body it is a POST."""
    sent = {name.replace("_", "-"): words for name, words in headers.items()}
    if token:
        sent["Authorization"] = f"Bearer {token}"
    request = Request(url + path, data=body, headers=sent)
    try:
        with build_opener(Staying).open(request, timeout=DEADLINE_S) as reply:
            return _answer(reply)
    except HTTPError as error:
        with error:
            return _answer(error)


def _answer(reply: Any) -> Answer:
    told = reply.headers
    return Answer(reply.status, reply.read(), told.get("ETag"), told.get_content_type())
