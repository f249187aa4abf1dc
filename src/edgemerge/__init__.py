"""edgemerge: devices learn what is normal, and their knowledge adds up exactly.

Names are imported when they are first used, so that `edgemerge --help` does not wait for numpy and
the command line can set the number of BLAS threads before numpy reads it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from edgemerge.moved import register

if TYPE_CHECKING:
    from edgemerge.core.bank import Bank
    from edgemerge.core.detector import Detector
    from edgemerge.core.errors import EdgemergeError
    from edgemerge.core.ledger import Contribution, Ledger
    from edgemerge.core.projection import Projection
    from edgemerge.core.readout import Readout
    from edgemerge.core.similarity import group
    from edgemerge.core.stats import Stats, elm
    from edgemerge.core.threshold import Threshold
    from edgemerge.files import load, save
    from edgemerge.wire.admission import admit
    from edgemerge.wire.codec import decode, encode

__version__ = "0.1.0"
register()

__all__ = [
    "Bank",
    "Contribution",
    "Detector",
    "EdgemergeError",
    "Ledger",
    "Projection",
    "Readout",
    "Stats",
    "Threshold",
    "admit",
    "decode",
    "elm",
    "encode",
    "group",
    "load",
    "save",
]

_MODULES = {
    "Bank": "core.bank",
    "Contribution": "core.ledger",
    "Detector": "core.detector",
    "EdgemergeError": "core.errors",
    "Ledger": "core.ledger",
    "Projection": "core.projection",
    "Readout": "core.readout",
    "Stats": "core.stats",
    "Threshold": "core.threshold",
    "admit": "wire.admission",
    "decode": "wire.codec",
    "elm": "core.stats",
    "encode": "wire.codec",
    "group": "core.similarity",
    "load": "files",
    "save": "files",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_MODULES[name]}")
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
