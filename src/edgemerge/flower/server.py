"""The ServerApp: asks, admits, sums up, and answers each device with the sum of the others."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from edgemerge.core.codec import encode
from edgemerge.core.errors import AwayError, EdgemergeError, RejectedError, must_be
from edgemerge.core.ledger import Ledger
from edgemerge.core.projection import Projection
from edgemerge.exchange.locking import locked
from edgemerge.files import load, save
from edgemerge.flower.agreeing import projection_of
from edgemerge.flower.asking import Timing, ask, nodes_of
from edgemerge.flower.collecting import Answer, Heard, Rules, Taken, take
from edgemerge.flower.config import STOP, ServerConfig
from edgemerge.flower.fields import ADOPT, CONTRIBUTE, Fields, filled, text
from edgemerge.flower.result import WELL, Result
from edgemerge.flower.telling import tellings

logger = logging.getLogger("flwr.edgemerge")  # below Flower's own, so that `flwr log` shows it


def server_app() -> ServerApp:
    """Make the app of the server; its settings are those of the run."""

    def main(grid: Grid, context: Context) -> None:
        run(grid, context.run_config)

    app = ServerApp()
    app.main()(main)
    return app


def run(grid: Grid, settings: Any) -> Result:
    """Go through all rounds and say what came of it; what ends it early is raised at the end."""
    config = ServerConfig.of(settings)
    result = Result(_ledger(config, projection_of(settings)))
    if config.out is not None:
        result.write(config.out)  # what an earlier run left there is not taken for this one's
    try:
        for _ in range(config.rounds):
            _round(grid, config, result)
        result.ended = WELL
    except Exception as error:
        result.ended = str(error) or repr(error)
        raise
    finally:
        _say(result, config)
    return result


def _round(grid: Grid, config: ServerConfig, result: Result) -> None:
    timing, ledger = Timing(config.timeout_s), result.ledger
    shared = filled(projection=encode(ledger.projection))
    nodes = nodes_of(grid, config.min_nodes, timing)
    heard = ask(grid, CONTRIBUTE, ((node, shared) for node in nodes), timing)
    taken = take(ledger, heard, Rules(config.devices, config.growing))
    result.took(taken.standings)
    _must_suffice(taken, result, config)
    _keep(ledger, config)
    told = ask(grid, ADOPT, _told(ledger, taken.answers), timing)
    result.not_adopted = {each.node: words for each in told if (words := _refusal(each))}


def _ledger(config: ServerConfig, projection: Projection) -> Ledger:
    if config.ledger is None or not config.ledger.exists():
        return Ledger(projection)
    ledger = _kept(config.ledger)
    projection.must_equal(ledger.projection)
    allowed = ledger.devices if config.devices is None else config.devices
    for device in set(ledger.devices) - set(allowed):
        logger.warning("%s is in %s but not in `devices`: dropped", device, config.ledger)
        ledger.drop(device)
    return ledger


def _keep(ledger: Ledger, config: ServerConfig) -> None:
    """Keep the ledger, with what another run has put there meanwhile, if its sum is exact."""
    if config.ledger is None:
        return
    with locked(config.ledger.parent, config.timeout_s):
        ledger.merge(_ledger(config, ledger.projection))
        ledger.total()
        save(ledger, config.ledger)


def _kept(path: Path) -> Ledger:
    found = load(path)
    must_be(found, Ledger, f"{path} is not a ledger: name another file, which is then made")
    ledger: Ledger = found
    return ledger


def _told(ledger: Ledger, answers: list[Answer]) -> Iterator[tuple[int, Fields]]:
    for answer, told in tellings(ledger, answers):
        yield answer.node, filled(told=encode(told))


def _refusal(heard: Heard) -> str:
    try:
        return heard.problem or text(heard.fields, "problem")
    except EdgemergeError as error:
        return str(error)


def _must_suffice(taken: Taken, result: Result, config: ServerConfig) -> None:
    failed = "; ".join(f"node {s.node} ({s.device or '?'}): {s.words}" for s in result.failed)
    if len(taken.answers) < config.min_answers:
        raise AwayError(
            f"found {len(taken.answers)} answers that count, expected {config.min_answers} or "
            f"more by min-answers, so nobody was told anything. {failed}"
        )
    if failed and config.on_failure == STOP:
        raise RejectedError(f"stopped by on-failure, so nobody was told anything. {failed}")


def _say(result: Result, config: ServerConfig) -> None:
    for line in result.table().splitlines():
        logger.info(line)
    if config.out is not None:
        result.write(config.out)
        logger.info("written: %s", config.out.absolute())
