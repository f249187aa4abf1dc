"""A grid within this process: real messages and real apps, and nothing between them.

It is for what would take an engine minutes: who answers what, and when. The engines themselves run
in test_simulation.py and test_deployment.py.
"""

from itertools import count

import numpy as np
from flwr.app import Context, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from edgemerge import Stats
from edgemerge.flower import client_app
from tests.flower.fleet import SHARED, rows

RUN = {"n-inputs": 3, "n-hidden": 4, "seed": 1, "timeout-s": 0.2}

# what an engine says when it starts an app, and without which no message can be made
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class NearGrid:
    """Hands each message to the app of its node; an app is any function of message and context."""

    def __init__(self, apps, configs=None, late_by=0):
        self.apps, self.looks, self.late_by = apps, 0, late_by
        self.contexts = {
            node: Context(1, node, (configs or {}).get(node, {}), RecordDict(), {}) for node in apps
        }
        self.waiting, self.pushed, self._ids = {}, [], count(1)

    def get_node_ids(self):
        return list(self.apps)

    def push_messages(self, messages):
        ids = []
        for message in messages:
            name = f"message-{next(self._ids)}"
            message.metadata.__dict__["_message_id"] = name
            node = message.metadata.dst_node_id
            reply = self.apps[node](message, self.contexts[node])
            self.pushed.append(message)
            if reply == "refused":
                continue
            ids.append(name)
            if reply is not None:
                self.waiting[name] = reply
        return ids

    def pull_messages(self, message_ids):
        self.looks += 1
        if self.looks <= self.late_by:
            return []
        return [self.waiting.pop(name) for name in message_ids if name in self.waiting]


def part(number, _parts):
    """Give the samples of a partition."""
    return rows(number)


def partitions(parts):
    """Give a grid of nodes with a partition each."""
    few = {"num-partitions": parts, "gate": 2}  # a gate that the rows of a test pass
    configs = {10 + i: {"partition-id": i, **few} for i in range(parts)}
    return NearGrid({node: client_app(part) for node in configs}, configs)


def everything(parts):
    """Give what one process sees of so many partitions."""
    return Stats.of(SHARED, np.vstack([rows(i) for i in range(parts)]))
