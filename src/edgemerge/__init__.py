"""edgemerge: devices learn what is normal, and their knowledge adds up exactly.

Names are imported when they are first used, so that `edgemerge --help` does not wait for numpy and
the command line can set the number of BLAS threads before numpy reads it. `MqttExchange` needs the
extra `mqtt`, so `from edgemerge import *` leaves it out.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from edgemerge.moved import register

if TYPE_CHECKING:
    from edgemerge.core.bank import Bank
    from edgemerge.core.detector import Detector, Learner, Seen
    from edgemerge.core.errors import (
        BudgetError,
        CapacityError,
        DeniedError,
        EdgemergeError,
        FormatError,
        KindError,
        MismatchError,
        RejectedError,
        RidgeWarning,
        SampleError,
        SettingError,
        SolveError,
        StaleError,
        UnavailableError,
        UnknownError,
    )
    from edgemerge.core.faults import Faults
    from edgemerge.core.ledger import (
        Contribution,
        Ledger,
        Merged,
        MergedPart,
        Selection,
        everyone,
        fitting,
        freshest,
        largest,
        named,
    )
    from edgemerge.core.limit import Threshold
    from edgemerge.core.monitor import Monitor
    from edgemerge.core.projection import Projection
    from edgemerge.core.readout import Readout
    from edgemerge.core.similarity import explained_by, group
    from edgemerge.core.stats import Stats, elm
    from edgemerge.exchange.folder import FolderExchange
    from edgemerge.exchange.http import HttpExchange
    from edgemerge.exchange.mqtt import MqttExchange as MqttExchange
    from edgemerge.exchange.peer import PeerExchange
    from edgemerge.exchange.protocol import Exchange, MemoryExchange
    from edgemerge.files import load, save
    from edgemerge.wire.admission import admit
    from edgemerge.wire.codec import decode, encode

__version__ = "0.1.0"
register()

__all__ = [
    "Bank",
    "BudgetError",
    "CapacityError",
    "Contribution",
    "DeniedError",
    "Detector",
    "EdgemergeError",
    "Exchange",
    "Faults",
    "FolderExchange",
    "FormatError",
    "HttpExchange",
    "KindError",
    "Learner",
    "Ledger",
    "MemoryExchange",
    "Merged",
    "MergedPart",
    "MismatchError",
    "Monitor",
    "PeerExchange",
    "Projection",
    "Readout",
    "RejectedError",
    "RidgeWarning",
    "SampleError",
    "Seen",
    "Selection",
    "SettingError",
    "SolveError",
    "StaleError",
    "Stats",
    "Threshold",
    "UnavailableError",
    "UnknownError",
    "admit",
    "decode",
    "elm",
    "encode",
    "everyone",
    "explained_by",
    "fitting",
    "freshest",
    "group",
    "largest",
    "load",
    "named",
    "save",
]

_NAMES = {
    "core.bank": ("Bank",),
    "core.detector": ("Detector", "Learner", "Seen"),
    "core.errors": (
        "BudgetError",
        "CapacityError",
        "DeniedError",
        "EdgemergeError",
        "FormatError",
        "KindError",
        "MismatchError",
        "RejectedError",
        "RidgeWarning",
        "SampleError",
        "SettingError",
        "SolveError",
        "StaleError",
        "UnavailableError",
        "UnknownError",
    ),
    "core.faults": ("Faults",),
    "core.ledger": (
        "Contribution",
        "Ledger",
        "Merged",
        "MergedPart",
        "Selection",
        "everyone",
        "fitting",
        "freshest",
        "largest",
        "named",
    ),
    "core.monitor": ("Monitor",),
    "core.projection": ("Projection",),
    "core.readout": ("Readout",),
    "core.similarity": ("explained_by", "group"),
    "core.stats": ("Stats", "elm"),
    "core.limit": ("Threshold",),
    "exchange.folder": ("FolderExchange",),
    "exchange.http": ("HttpExchange",),
    "exchange.protocol": ("Exchange", "MemoryExchange"),
    "exchange.mqtt": ("MqttExchange",),
    "exchange.peer": ("PeerExchange",),
    "files": ("load", "save"),
    "wire.admission": ("admit",),
    "wire.codec": ("decode", "encode"),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}


if not TYPE_CHECKING:  # a type checker that sees it takes every misspelled name

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = import_module(f"{__name__}.{_MODULES[name]}")
        value = globals()[name] = getattr(module, name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
