"""The ServerApp: request contributions, aggregate, and send each device the sum of the others.

The SuperLink reports a dead node under its own id, after two missed heartbeats. So a reply belongs
to the node whose message it answers, not to its sender.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple, cast

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from edgemerge.core.errors import (
    EdgemergeError,
    FormatError,
    RejectedError,
    UnavailableError,
    must_be,
)
from edgemerge.core.ledger import Ledger
from edgemerge.core.projection import Projection
from edgemerge.exchange.folder import folder_lock
from edgemerge.files import load, save
from edgemerge.flower.aggregate import (
    COMPLETED,
    AdmissionRules,
    DeviceReply,
    NodeReply,
    RoundResult,
    RunResult,
    accept_replies,
    sums_of_others,
)
from edgemerge.flower.config import STOP, ServerConfig, projection_from_settings
from edgemerge.flower.fields import ADOPT, CONTRIBUTE, MERGED, Fields, text_field, with_format
from edgemerge.flower.messages import fields_of, request
from edgemerge.wire.codec import encode

logger = logging.getLogger("flwr.edgemerge")  # below Flower's own, so that `flwr log` shows it

FIRST_POLL_S, MAX_POLL_S = 0.05, 1.0  # between two looks for answers
TIMEOUT_CODES = (3, 4)  # Flower's errors of a message whose time is over
ERROR_TEXTS = {1: "cannot load the app", 2: "raised an error", 5: "went away", 8: "crashed"}


class Timing(NamedTuple):
    """How long to wait, and by which clock."""

    timeout_s: float
    clock: Callable[[], float] = monotonic
    sleep: Callable[[float], None] = sleep


def request_all(
    grid: Grid, task: str, fields: Iterable[tuple[int, Fields]], timing: Timing
) -> list[NodeReply]:
    """Send each node its request; return the replies in the order of the nodes."""
    asked: dict[str, int] = {}
    heard: dict[int, NodeReply] = {}
    for node, each in fields:  # one at a time: then one is in memory, and no request is too large
        pushed = list(grid.push_messages([request(node, task, each, timing.timeout_s)]))
        if pushed and pushed[0]:
            asked[pushed[0]] = node
        else:
            heard[node] = NodeReply(node, problem="could not be asked: the SuperLink refused")
    for message in _replies(grid, set(asked), timing):
        node = asked[message.metadata.reply_to_message_id]
        if not (message.has_error() and message.error.code in TIMEOUT_CODES):
            heard[node] = _node_reply(node, message)
    silent = NodeReply(0, problem=f"no answer within {timing.timeout_s:g} s")
    missing = {node: silent._replace(node=node) for node in asked.values() if node not in heard}
    return [each for _, each in sorted((heard | missing).items())]


def wait_for_nodes(grid: Grid, least: int, timing: Timing) -> list[int]:
    """Wait until at least so many nodes are connected; return all of them."""
    for _ in _poll_times(timing):
        found = sorted(grid.get_node_ids())
        if len(found) >= least:
            return found
    raise UnavailableError(
        f"found {len(found)} nodes within {timing.timeout_s:g} s, expected {least} or more: "
        "start the others, or lower min-nodes"
    )


def _replies(grid: Grid, left: set[str], timing: Timing) -> Iterator[Message]:
    for _ in _poll_times(timing):
        for message in grid.pull_messages(sorted(left)) if left else ():
            if message.metadata.reply_to_message_id in left:
                left.discard(message.metadata.reply_to_message_id)
                yield message
        if not left:
            return


def _poll_times(timing: Timing) -> Iterator[None]:
    end, pause = timing.clock() + timing.timeout_s, FIRST_POLL_S
    yield
    while (left := end - timing.clock()) > 0:
        timing.sleep(min(pause, left))
        pause = min(2.0 * pause, MAX_POLL_S)
        yield


def _node_reply(node: int, message: Message) -> NodeReply:
    if message.has_error():
        error = message.error
        words = ERROR_TEXTS.get(error.code, "gave no answer")
        return NodeReply(node, problem=f"{words} (error {error.code} of Flower: {error.reason})")
    try:
        return NodeReply(node, fields_of(message))
    except FormatError as error:
        return NodeReply(node, problem=str(error))


def server_app() -> ServerApp:
    """Return the app of the server; its settings are those of the run."""

    def main(grid: Grid, context: Context) -> None:
        run(grid, context.run_config)

    app = ServerApp()
    app.main()(main)
    return app


def run(grid: Grid, settings: Any) -> RunResult:
    """Run all rounds and return the result; an error is raised after the result is written."""
    config = ServerConfig.of(settings)
    result = RunResult(_open_ledger(config, projection_from_settings(settings)))
    if config.out is not None:
        result.write(config.out)  # what an earlier run left there is not taken for this one's
    try:
        for _ in range(config.rounds):
            _round(grid, config, result)
        result.ended = COMPLETED
    except Exception as error:
        result.ended = str(error) or repr(error)
        raise
    finally:
        _log_result(result, config)
    return result


def _round(grid: Grid, config: ServerConfig, result: RunResult) -> None:
    timing, ledger = Timing(config.timeout_s), result.ledger
    shared = with_format(projection=encode(ledger.projection))
    nodes = wait_for_nodes(grid, config.min_nodes, timing)
    heard = request_all(grid, CONTRIBUTE, ((node, shared) for node in nodes), timing)
    taken = accept_replies(ledger, heard, AdmissionRules(config.devices, config.no_forgetting))
    result.took(taken.standings)
    _check_enough(taken, result, config)
    _save_ledger(ledger, config)
    replies = request_all(grid, ADOPT, _adopt_requests(ledger, taken.answers), timing)
    result.not_adopted = {each.node: words for each in replies if (words := _refusal(each))}


def _open_ledger(config: ServerConfig, projection: Projection) -> Ledger:
    if config.ledger is None or not config.ledger.exists():
        return Ledger(projection)
    ledger = _load_ledger(config.ledger)
    projection.must_equal(ledger.projection)
    allowed = ledger.devices if config.devices is None else config.devices
    for device in set(ledger.devices) - set(allowed):
        logger.warning("%s is in %s but not in `devices`: dropped", device, config.ledger)
        ledger.drop(device)
    return ledger


def _save_ledger(ledger: Ledger, config: ServerConfig) -> None:
    """Save the ledger, with what another run has saved meanwhile, if the sum is exact."""
    if config.ledger is None:
        return
    with folder_lock(config.ledger.parent, config.timeout_s):
        ledger.merge(_open_ledger(config, ledger.projection))
        ledger.total()
        save(ledger, config.ledger)


def _load_ledger(path: Path) -> Ledger:
    found = load(path)
    must_be(found, Ledger, f"{path} is not a ledger: name another file, which is then made")
    return cast(Ledger, found)


def _adopt_requests(ledger: Ledger, answers: list[DeviceReply]) -> Iterator[tuple[int, Fields]]:
    for answer, merged in sums_of_others(ledger, answers):
        yield answer.node, with_format(**{MERGED: encode(merged)})


def _refusal(heard: NodeReply) -> str:
    try:
        return heard.problem or text_field(heard.fields, "problem")
    except EdgemergeError as error:
        return str(error)


def _check_enough(taken: RoundResult, result: RunResult, config: ServerConfig) -> None:
    failed = "; ".join(f"node {s.node} ({s.device or '?'}): {s.words}" for s in result.failed)
    if len(taken.answers) < config.min_answers:
        raise UnavailableError(
            f"found {len(taken.answers)} answers that count, expected {config.min_answers} or "
            f"more by min-answers, so no device adopts anything. {failed}"
        )
    if failed and config.on_failure == STOP:
        raise RejectedError(f"stopped by on-failure, so no device adopts anything. {failed}")


def _log_result(result: RunResult, config: ServerConfig) -> None:
    for line in result.table().splitlines():
        logger.info(line)
    if config.out is not None:
        result.write(config.out)
        logger.info("written: %s", config.out.absolute())
