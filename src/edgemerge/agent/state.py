"""The state folder of an agent: one file that is always whole, and nobody else's."""

from __future__ import annotations

import fcntl
import logging
import os
from contextlib import suppress
from pathlib import Path

from edgemerge.agent.memory import LIMIT, Memory, memory_from_bytes, memory_to_bytes
from edgemerge.core.errors import EdgemergeError, FormatError, SettingError
from edgemerge.core.projection import Projection
from edgemerge.failpoints import passing
from edgemerge.files import load, save, write

STATE, PROJECTION, LOCK = "agent.state", "projection.safetensors", "lock"
BROKEN = 3  # broken files that are kept

logger = logging.getLogger(__name__)


class InUseError(EdgemergeError, BlockingIOError):
    """Another agent runs on the same state folder."""


class StateFolder:
    """A folder that one agent at a time has for itself; `close` lets it go."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Take the folder, making it if need be; an error says who has it already."""
        self.path = Path(path)
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SettingError(
                f"the state folder {self.path} cannot be used ({error.strerror}): "
                "name a folder that this user may write to"
            ) from error
        self._take()
        for left in self.path.glob(f".{STATE}.*"):  # by one that died while writing
            left.unlink(missing_ok=True)

    def read(self) -> Memory | None:
        """Give what was saved last; None if there is nothing, or nothing that can be read."""
        try:
            with (self.path / STATE).open("rb") as file:
                data = file.read(LIMIT + 1)
        except FileNotFoundError:
            return None
        try:
            return memory_from_bytes(data)
        except FormatError as error:
            aside = self._set_aside()
            values = {"folder": self.path, "kept_as": aside.name, "why": error}
            logger.error("the saved state is broken: starting anew", extra={"values": values})
            return None

    def write(self, memory: Memory) -> None:
        """Save; after a crash at any moment there is this or what was there before."""
        passing("agent-before-save")
        write(memory_to_bytes(memory), self.path / STATE)
        passing("agent-after-save")

    def projection(self) -> Projection | None:
        """Give the projection that was kept here, if any."""
        try:
            found = load(self.path / PROJECTION)
        except (FileNotFoundError, FormatError):
            return None
        return found if isinstance(found, Projection) else None

    def keep_projection(self, projection: Projection) -> None:
        """Keep a projection that was asked of others, for when they are away."""
        if self.projection() != projection:
            save(projection, self.path / PROJECTION)

    def close(self) -> None:
        """Let others have the folder."""
        os.close(self._lock)

    def _take(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(self._lock, 20, 0).decode("ascii", "replace").strip()
            os.close(self._lock)
            raise InUseError(
                f"the state folder {self.path} is in use by another agent (process {holder}): "
                "stop that one, or give this one a folder of its own"
            ) from error
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def _set_aside(self) -> Path:
        """Move the broken file out of the way; the oldest such makes room."""
        numbers = []
        for path in self.path.glob(f"{STATE}.broken-*"):
            with suppress(ValueError):
                numbers.append(int(path.name.rpartition("-")[2]))
        numbers.sort()
        for number in numbers[: max(0, len(numbers) - BROKEN + 1)]:
            (self.path / f"{STATE}.broken-{number}").unlink(missing_ok=True)
        aside = self.path / f"{STATE}.broken-{max(numbers, default=0) + 1}"
        (self.path / STATE).rename(aside)
        return aside
