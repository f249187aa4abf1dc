"""Several devices in one process: a thread for each, one log, and one control socket for all.

Each device is run as by an agent of its own, with its own state folder, exchange and sinks, and so
its scores are those of such an agent. A device that fails is started again after a while; the
others do not notice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from random import Random
from threading import Event, Thread
from typing import Any

from edgemerge.agent.config import Config, GatewayConfig
from edgemerge.agent.control import ControlSocket
from edgemerge.agent.runner import READY, STOPPING, Ending, run_device
from edgemerge.agent.state import StateFolder
from edgemerge.core.errors import EdgemergeError
from edgemerge.daemon import Backoff, in_context, log_values, notify

POLL_S = 0.2
FIRST_RETRY_S, MAX_RETRY_S = 10.0, 600.0  # until a device that failed is started again
START_TIMEOUT_S = 10.0  # for devices to start, until the process counts as ready without them

logger = logging.getLogger(__name__)


class DeviceThread:
    """Runs one device, again and again if it fails; `state` says in words what it does now.

    Args:
        config: The device.
        stop: Set it to end the device.
        clock: The time of day in seconds.
        exit_code: Returns the exit code for an error.
    """

    def __init__(
        self,
        config: Config,
        stop: Event,
        clock: Callable[[], float],
        exit_code: Callable[[Exception], int],
    ) -> None:
        """Start the thread."""
        self.config = config
        self.state, self.ending = "starting", Ending(0)
        self._stop, self._clock, self._exit_code = stop, clock, exit_code
        self._backoff = Backoff(FIRST_RETRY_S, MAX_RETRY_S, Random(config.device))
        self._retry_at = 0.0
        self._start()

    @property
    def is_alive(self) -> bool:
        """Whether the device runs, or is being started."""
        return self._thread.is_alive()

    def tend(self) -> None:
        """Start the device again if it failed and the time has come."""
        if not self.is_alive and self.ending.code and time.monotonic() >= self._retry_at:
            self.state = "starting"
            self._start()

    def join(self) -> None:
        """Wait for its end."""
        self._thread.join()

    def plain(self) -> dict[str, Any]:
        """Return its status as plain JSON."""
        found = {"device": self.config.device, "state": self.state, "why": self.ending.why}
        return found | {"folder": str(self.config.state)}

    def _start(self) -> None:
        self._thread = Thread(target=in_context(self._run), name=self.config.device, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        log_values.set({"device": self.config.device})
        began = time.monotonic()
        try:
            self.ending = run_device(
                self.config, stop=self._stop, clock=self._clock, tell=self._follow
            )
        except (EdgemergeError, OSError) as error:
            self.ending = Ending(self._exit_code(error), str(error))
        except Exception as error:  # a bug that one device shows must not stop the others
            logger.exception("the device failed unexpectedly")
            self.ending = Ending(self._exit_code(error), repr(error))
        self.state = "ended"
        if self.ending.code:
            self.state = "failed"
            if time.monotonic() - began > MAX_RETRY_S:
                self._backoff.reset()  # this is another trouble than the one before
            wait_s = self._backoff.next()
            self._retry_at = time.monotonic() + wait_s
            values = {"why": self.ending.why, "retry_s": round(wait_s, 1)}
            logger.error("the device failed: the others go on", extra={"values": values})

    def _follow(self, told: str) -> None:
        if told == READY:
            self.state, self.ending = "running", Ending(0)
        elif told == STOPPING:
            self.state = "stopping"


def run_gateway(
    config: GatewayConfig,
    *,
    stop: Event,
    clock: Callable[[], float] = time.time,
    exit_code: Callable[[Exception], int] = lambda _error: 1,
) -> int:
    """Run all devices until their sources end or `stop` is set; return the exit code.

    It is 0 if all devices ended well, else that of the first one in the configuration that did not.
    A device that fails is started again as long as another one runs.

    Args:
        config: What to run.
        stop: Set it to end all devices.
        clock: The time of day in seconds; tests replace it.
        exit_code: Returns the exit code for an error that ended a device.
    """
    with closing(StateFolder(config.state)), closing(ControlSocket(config.state)) as control:
        devices = [DeviceThread(each, stop, clock, exit_code) for each in config.devices]
        logger.info("devices are started", extra={"values": {"devices": len(devices)}})
        is_ready, give_up_at = False, time.monotonic() + START_TIMEOUT_S
        while any(each.is_alive for each in devices) and not stop.wait(POLL_S):
            starting = any(each.state == "starting" for each in devices)
            if not is_ready and (not starting or time.monotonic() >= give_up_at):
                is_ready = True
                notify(READY)
            _answer(control, devices)
            for each in devices:
                each.tend()
        notify(STOPPING)
        for each in devices:
            each.join()
    return next((each.ending.code for each in devices if each.ending.code), 0)


def _answer(control: ControlSocket, devices: Sequence[DeviceThread]) -> None:
    for request in control.requests():
        if request.command.get("command") == "status":
            request.answer({"devices": [each.plain() for each in devices]})
        else:
            names = ", ".join(each.config.device for each in devices)
            request.answer({"error": f"several devices run here: choose one with --device {names}"})
