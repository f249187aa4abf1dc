"""A process that another one started, held by what stays its own however numbers are used again."""

import os
import selectors
import signal

from tests.waiting import DEADLINE_S


class Handle:
    """Ends the process, and tells when it has gone."""

    def __init__(self, number: int):
        self._descriptor = os.pidfd_open(number)

    def is_gone(self, within_s: float = 0.0) -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(self._descriptor, selectors.EVENT_READ)
            return bool(selector.select(within_s))

    def send(self, what: signal.Signals) -> None:
        if not self.is_gone():
            signal.pidfd_send_signal(self._descriptor, what)

    def end(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End it, as by kill -9, or as when it is asked to."""
        self.send(how)
        assert self.is_gone(DEADLINE_S), "the process ends"

    def close(self) -> None:
        self.end()
        os.close(self._descriptor)
