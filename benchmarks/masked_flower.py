"""Flower's SecAgg+ on the sums of a masked fleet, with Flower's own workflow and client mod.

`benchmarks.masked` runs it with the Python of `.venv-flower`; it needs flwr and NumPy only. All
nodes are in this process, and each message is turned into the bytes of Flower's protocol and back.

    .venv-flower/bin/python benchmarks/masked_flower.py sums.npy SAMPLES
"""

from __future__ import annotations

import json
import logging
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from statistics import median
from time import process_time
from typing import Any

import numpy as np
from flwr.client.mod import secaggplus_mod
from flwr.common import (
    Code,
    ConfigRecord,
    Context,
    Error,
    FitIns,
    FitRes,
    Message,
    RecordDict,
    Status,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.compat.common.recorddict_compat import fitres_to_recorddict, parameters_to_arrayrecord
from flwr.proto.message_pb2 import Message as MessageBytes
from flwr.server import LegacyContext
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.supercore.task_identity import TaskIdentity

# A complete graph takes its server minutes, so each node shares with 30 neighbours. With a
# threshold of 11 a round fails once in 7 000 if a third of 100 nodes is missing, with 16 mostly.
SHARES, THRESHOLD = 31, 11
# Each with the shares of missing nodes: its defaults; the most levels that 100 devices can have
# without an overflow in its documented modulus, with the least range that clips nothing; and a
# modulus beyond the documented one.
SETTINGS: dict[str, tuple[dict[str, int], tuple[float, ...]]] = {
    "SecAgg+, defaults": ({}, (0.0, 1 / 3)),
    "SecAgg+, best documented": ({"quantization_range": 2**25, "modulus_range": 2**32}, (0.0,)),
    "SecAgg+, larger modulus": ({"quantization_range": 2**30, "modulus_range": 2**40}, (0.0,)),
}


class Nodes:
    """A grid of Flower whose nodes are in this process; counts bytes and time of each."""

    def __init__(self, sums: np.ndarray, samples: int, missing: set[int]) -> None:
        """Take the sums of each node, by its number less one."""
        self.sums, self.samples, self.missing = sums, samples, missing
        self.contexts = {
            node: Context(1, node, {}, RecordDict(), {}) for node in range(1, len(sums) + 1)
        }
        self.sent, self.received = Counter[int](), Counter[int]()
        self.device_s = defaultdict[int, float](float)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Let each node answer; those that are missing fail when masked sums are asked for."""
        del timeout
        return [self._answer(message) for message in messages]

    def _answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        data = message_to_proto(message).SerializeToString()
        self.received[node] += len(data)
        start = process_time()
        there = message_from_proto(MessageBytes.FromString(data))
        stage = there.content.config_records[RECORD_KEY_CONFIGS][Key.STAGE]
        if node in self.missing and stage in (Stage.COLLECT_MASKED_VECTORS, Stage.UNMASK):
            return Message(Error(code=1, reason="missing"), reply_to=message)
        answer = secaggplus_mod(there, self.contexts[node], self._fit)
        sent = message_to_proto(answer).SerializeToString()
        self.device_s[node] += process_time() - start
        self.sent[node] += len(sent)
        return message_from_proto(MessageBytes.FromString(sent))

    def _fit(self, message: Message, context: Context) -> Message:
        """Return the mean of a node's samples, with their number as its weight."""
        mean = self.sums[context.node_id - 1] / self.samples
        parameters = ndarrays_to_parameters([mean])
        fitted = FitRes(Status(Code.OK, ""), parameters, self.samples, {})
        return Message(fitres_to_recorddict(fitted, keep_input=False), reply_to=message)


class Proxy:
    """All that the workflow needs to know of a node."""

    def __init__(self, node: int) -> None:
        """Have a number."""
        self.node_id = node


class Strategy:
    """Asks all nodes, and keeps what they add up to."""

    total: np.ndarray

    def __init__(self, nodes: Nodes) -> None:
        """Ask these nodes."""
        self._nodes = nodes

    def configure_fit(self, _round: int, parameters: Any, _manager: Any) -> list[Any]:
        """Choose all nodes."""
        return [(Proxy(node), FitIns(parameters, {})) for node in self._nodes.contexts]

    def aggregate_fit(self, _round: int, results: list[Any], _failures: Any) -> tuple[Any, Any]:
        """Turn the weighted mean back into a sum."""
        parameters = results[0][1].parameters
        self.total = parameters_to_ndarrays(parameters)[0] * self._nodes.samples * len(results)
        return parameters, {}


class Manager:
    """Counts nodes."""

    def num_available(self) -> int:
        """Return a number for the log."""
        return 0


def run(sums: np.ndarray, samples: int, missing: float, **settings: Any) -> dict[str, Any]:
    """Let Flower add up the sums of all nodes but some."""
    gone = {1 + int(i) for i in np.random.default_rng(1).permutation(len(sums))}
    gone = set(list(gone)[: int(len(sums) * missing)])
    nodes = Nodes(sums, samples, gone)
    strategy = Strategy(nodes)
    state = RecordDict()
    state.config_records["config"] = ConfigRecord({"current_round": 1})
    state.array_records["parameters"] = parameters_to_arrayrecord(
        ndarrays_to_parameters([np.zeros(0)]), keep_input=False
    )
    context = LegacyContext(
        Context(1, 0, {}, state, {}), strategy=strategy, client_manager=Manager()
    )
    start = process_time()
    SecAggPlusWorkflow(SHARES, THRESHOLD, **settings)(nodes, context)
    spent = process_time() - start
    here = [node for node in nodes.contexts if node not in gone]
    true = sums[[node - 1 for node in here]].sum(0)
    return {
        "devices": len(sums),
        "neighbours": SHARES - 1,
        "threshold": THRESHOLD,
        "missing": round(missing, 3),
        "device_ms": round(1e3 * median(nodes.device_s[node] for node in here), 1),
        "server_s": round(spent - sum(nodes.device_s.values()), 3),
        "upload_bytes": int(median(nodes.sent[node] for node in here)),
        "download_bytes": int(median(nodes.received[node] for node in here)),
        "max_error": float(f"{np.abs(strategy.total - true).max():.3g}"),
    }


def main() -> None:
    """Print a row for each setting and share of missing nodes, as JSON."""
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1  # as a server has
    logging.getLogger("flwr").setLevel(logging.ERROR)
    sums, samples = np.load(sys.argv[1]), int(sys.argv[2])
    bound = float(np.abs(sums / samples).max())
    for name, (settings, shares) in SETTINGS.items():
        fitting = {"clipping_range": bound, "max_weight": float(samples)} if settings else {}
        for missing in shares:
            row = {"where": name, **run(sums, samples, missing, **settings, **fitting)}
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
