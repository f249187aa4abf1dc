"""Asking: messages to nodes, and what came of each within the time; nobody is waited for longer.

A node that dies is told of by the SuperLink, under the SuperLink's own id and after its heartbeat
was missed twice. So a reply belongs to the node whose message it answers, not to its sender.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from time import monotonic, sleep
from typing import NamedTuple

from flwr.app import Message
from flwr.serverapp import Grid

from edgemerge.core.errors import AwayError, FormatError
from edgemerge.flower.collecting import Heard
from edgemerge.flower.fields import Fields
from edgemerge.flower.messages import fields_of, request

logger = logging.getLogger("flwr.edgemerge")  # below Flower's own, so that `flwr log` shows it

FIRST_S, LONGEST_S = 0.05, 1.0  # between two looks for answers
LATE = (3, 4)  # Flower's errors of a message whose time is over
WORDS = {1: "cannot load the app", 2: "raised an error", 5: "went away", 8: "crashed"}


class Timing(NamedTuple):
    """How long to wait, and by which clock."""

    timeout_s: float
    clock: Callable[[], float] = monotonic
    sleep: Callable[[float], None] = sleep


def ask(grid: Grid, task: str, fields: Iterable[tuple[int, Fields]], timing: Timing) -> list[Heard]:
    """Ask each node, and give what came of it, in the order of the nodes."""
    asked: dict[str, int] = {}
    heard: dict[int, Heard] = {}
    for node, each in fields:  # one at a time: then one is in memory, and no request is too large
        pushed = list(grid.push_messages([request(node, task, each, timing.timeout_s)]))
        if pushed and pushed[0]:
            asked[pushed[0]] = node
        else:
            heard[node] = Heard(node, problem="could not be asked: the SuperLink refused")
    for message in _replies(grid, set(asked), timing):
        node = asked[message.metadata.reply_to_message_id]
        if not (message.has_error() and message.error.code in LATE):
            heard[node] = _heard(node, message)
    silent = Heard(0, problem=f"no answer within {timing.timeout_s:g} s")
    missing = {node: silent._replace(node=node) for node in asked.values() if node not in heard}
    return [each for _, each in sorted((heard | missing).items())]


def nodes_of(grid: Grid, least: int, timing: Timing) -> list[int]:
    """Wait until so many nodes are there, and give all that are."""
    for _ in _looks(timing):
        found = sorted(grid.get_node_ids())
        if len(found) >= least:
            return found
    raise AwayError(
        f"found {len(found)} nodes within {timing.timeout_s:g} s, expected {least} or more: "
        "start the others, or lower min-nodes"
    )


def _replies(grid: Grid, left: set[str], timing: Timing) -> Iterator[Message]:
    for _ in _looks(timing):
        for message in grid.pull_messages(sorted(left)) if left else ():
            if message.metadata.reply_to_message_id in left:
                left.discard(message.metadata.reply_to_message_id)
                yield message
        if not left:
            return


def _looks(timing: Timing) -> Iterator[None]:
    end, pause = timing.clock() + timing.timeout_s, FIRST_S
    yield
    while (left := end - timing.clock()) > 0:
        timing.sleep(min(pause, left))
        pause = min(2.0 * pause, LONGEST_S)
        yield


def _heard(node: int, message: Message) -> Heard:
    if message.has_error():
        error = message.error
        words = WORDS.get(error.code, "gave no answer")
        return Heard(node, problem=f"{words} (error {error.code} of Flower: {error.reason})")
    try:
        return Heard(node, fields_of(message))
    except FormatError as error:
        return Heard(node, problem=str(error))
