"""The ClientApp: a device that gives what it saw and adopts what others saw.

What it raises itself becomes an answer with words, so that the server can name the device.
"""

from __future__ import annotations

from collections.abc import Callable
from time import time
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from edgemerge.core.codec import decode
from edgemerge.core.errors import EdgemergeError, FormatError
from edgemerge.core.projection import Projection
from edgemerge.flower import device
from edgemerge.flower.config import NodeConfig
from edgemerge.flower.fields import ADOPT, CONTRIBUTE, Fields, data, filled, must_be_ours
from edgemerge.flower.messages import RECORD, fields_of, reply
from edgemerge.flower.releasing import Past
from edgemerge.flower.remembering import Beside, Memory, past_of, to_bytes
from edgemerge.flower.samples import Samples

Task = Callable[[NodeConfig, Fields], Fields]


def client_app(samples: Samples | None = None, *, clock: Callable[[], float] = time) -> ClientApp:
    """Make the app of a node: what it has seen is in its `state`, in its `data`, or in `samples`.

    `samples(partition, partitions)` gives the rows of a part of what there is. Settings of the
    node, or of the run where it has none: `device`, `state`, `data`, `told`, `incarnation`, `gate`.
    """

    def contribute(message: Message, context: Context) -> Message:
        def task(config: NodeConfig, fields: Fields) -> Fields:
            memory = _memory(config, context.state)
            return device.contribute(config, _projection(fields), samples, memory, clock)

        return _answered(message, context, task)

    def adopt(message: Message, context: Context) -> Message:
        return _answered(
            message, context, lambda config, it: device.adopt(config, data(it, "told"))
        )

    app = ClientApp()
    app.query(CONTRIBUTE)(contribute)
    app.query(ADOPT)(adopt)
    return app


class InRun:
    """Keeps what left in Flower's own state of a node, for as long as the run goes on."""

    def __init__(self, state: RecordDict) -> None:
        """Keep it under our name."""
        self._state = state

    def recall(self) -> Past:
        """Give what is remembered of this run."""
        record: Any = self._state.get(RECORD)
        return Past() if record is None else past_of(record["past"])

    def remember(self, past: Past) -> None:
        """Keep it."""
        self._state[RECORD] = ConfigRecord({"past": to_bytes(past)})


def _memory(config: NodeConfig, state: RecordDict) -> Memory:
    return InRun(state) if config.file is None else Beside(config.file)


def _projection(fields: Fields) -> Projection:
    found = decode(data(fields, "projection"))
    if not isinstance(found, Projection):
        raise FormatError(f"found {type(found).__name__}, expected the projection of the run")
    return found


def _answered(message: Message, context: Context, task: Task) -> Message:
    name = ""
    try:
        fields = fields_of(message)
        must_be_ours(fields)
        config = NodeConfig.of(context.node_config, context.run_config)
        name = config.device
        return reply(message, filled(device=name, **task(config, fields)))
    except EdgemergeError as error:
        return reply(message, filled(device=name, problem=str(error)))
    except OSError as error:
        words = f"{error.strerror or error}: {error.filename or 'no file named'}"
        return reply(message, filled(device=name, problem=words))
