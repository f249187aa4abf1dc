"""Flower: the same merge on an engine that fleets already run; needs the extra `flower`.

`client_app()` gives what a device saw and adopts what others saw; `server_app()` admits, sums up
and answers each with the sum of the others. "Node" and "round" are Flower's words, and stay here.
Names are imported when they are first used: what decides is plain Python and needs no Flower.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgemerge.flower.client import client_app
    from edgemerge.flower.server import server_app

__all__ = ["client_app", "server_app"]

_HOMES = {"client_app": "client", "server_app": "server"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
