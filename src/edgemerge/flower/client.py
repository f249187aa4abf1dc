"""The ClientApp: contributes what the device saw and adopts what others saw.

Errors become replies with a message, so that the server can name the device.
"""

from __future__ import annotations

from collections.abc import Callable
from time import time
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from edgemerge.core.errors import EdgemergeError, FormatError
from edgemerge.core.projection import Projection
from edgemerge.flower import device
from edgemerge.flower.config import NodeConfig
from edgemerge.flower.device import (
    HistoryFile,
    HistoryStore,
    ReleaseHistory,
    Samples,
    decode_history,
    encode_history,
)
from edgemerge.flower.fields import (
    ADOPT,
    CONTRIBUTE,
    MERGED,
    Fields,
    bytes_field,
    check_format,
    with_format,
)
from edgemerge.flower.messages import RECORD, fields_of, reply
from edgemerge.wire.codec import decode

Task = Callable[[NodeConfig, Fields], Fields]


def client_app(samples: Samples | None = None, *, clock: Callable[[], float] = time) -> ClientApp:
    """Return the app of a node, which contributes what it has seen and adopts what others saw.

    Settings of the node, or of the run where it has none: `device`, `state`, `data`,
    `merged-file`, `incarnation`, `gate`.

    Args:
        samples: `samples(partition, partitions)` returns the rows (k, n) of a partition, for nodes
            with neither `state` nor `data`; None (the default) if there are no such nodes.
        clock: Returns the time in seconds, from which revisions are made; `time.time` by default.
    """

    def contribute(message: Message, context: Context) -> Message:
        def task(config: NodeConfig, fields: Fields) -> Fields:
            memory = _history_store(config, context.state)
            return device.contribute(config, _read_projection(fields), samples, memory, clock)

        return _reply_to(message, context, task)

    def adopt(message: Message, context: Context) -> Message:
        return _reply_to(
            message, context, lambda config, it: device.adopt(config, bytes_field(it, MERGED))
        )

    app = ClientApp()
    app.query(CONTRIBUTE)(contribute)
    app.query(ADOPT)(adopt)
    return app


class RunHistory:
    """Keeps the release history in Flower's state of a node, until the run ends."""

    def __init__(self, state: RecordDict) -> None:
        """Use our record in the state of a node."""
        self._state = state

    def recall(self) -> ReleaseHistory:
        """Return the release history of this run."""
        record: Any = self._state.get(RECORD)
        return ReleaseHistory() if record is None else decode_history(record["past"])

    def remember(self, past: ReleaseHistory) -> None:
        """Store it."""
        self._state[RECORD] = ConfigRecord({"past": encode_history(past)})


def _history_store(config: NodeConfig, state: RecordDict) -> HistoryStore:
    return RunHistory(state) if config.file is None else HistoryFile(config.file)


def _read_projection(fields: Fields) -> Projection:
    found = decode(bytes_field(fields, "projection"))
    if not isinstance(found, Projection):
        raise FormatError(f"found {type(found).__name__}, expected the projection of the run")
    return found


def _reply_to(message: Message, context: Context, task: Task) -> Message:
    name = ""
    try:
        fields = fields_of(message)
        check_format(fields)
        config = NodeConfig.of(context.node_config, context.run_config)
        name = config.device
        return reply(message, with_format(device=name, **task(config, fields)))
    except EdgemergeError as error:
        return reply(message, with_format(device=name, problem=str(error)))
    except OSError as error:
        words = f"{error.strerror or error}: {error.filename or 'no file named'}"
        return reply(message, with_format(device=name, problem=words))
