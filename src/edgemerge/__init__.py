"""edgemerge: devices learn what is normal, and their knowledge adds up exactly.

Names are imported when they are first used, so that `edgemerge --help` does not wait for numpy and
the command line can set the number of BLAS threads before numpy reads it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgemerge.core.admission import admit
    from edgemerge.core.bank import Bank
    from edgemerge.core.codec import decode, encode
    from edgemerge.core.contribution import Contribution
    from edgemerge.core.detector import Detector
    from edgemerge.core.elm import elm
    from edgemerge.core.errors import EdgemergeError
    from edgemerge.core.grouping import group
    from edgemerge.core.ledger import Ledger
    from edgemerge.core.projection import Projection
    from edgemerge.core.readout import Readout
    from edgemerge.core.stats import Stats
    from edgemerge.core.threshold import Threshold
    from edgemerge.files import load, save

__version__ = "0.1.0"

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

_HOMES = {  # else core.<name in lower case>
    "EdgemergeError": "core.errors",
    "admit": "core.admission",
    "decode": "core.codec",
    "encode": "core.codec",
    "group": "core.grouping",
    "load": "files",
    "save": "files",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES.get(name, f"core.{name.lower()}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
