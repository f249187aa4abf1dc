"""What an agent keeps in its state folder; it may be running meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgemerge.agent.memory import LIMIT, memory_from_bytes
from edgemerge.agent.state import STATE
from edgemerge.cli.group import Failure
from edgemerge.cli.showing import description
from edgemerge.core.errors import FormatError


def kept(folder: Path) -> dict[str, Any]:
    """Describe the agent that was saved last."""
    path = folder / STATE
    if not path.is_file():
        raise Failure(f"{folder}: found no {STATE} in it, expected the state folder of an agent")
    with path.open("rb") as file:
        data = file.read(LIMIT + 1)
    try:
        memory = memory_from_bytes(data)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from error
    words = ("device", "incarnation", "revision", "alarms", "skipped")
    told = memory.read_told(memory.told)
    found = {"kind": "agent"} | {word: getattr(memory, word) for word in words}
    found |= {"judged": memory.index, "waiting_to_be_pushed": len(memory.pending)}
    found["told_by"] = sorted({origin.device for origin in told.origins})
    learner = description(memory.learner.thing)
    return found | {"learner": learner.pop("kind")} | learner
