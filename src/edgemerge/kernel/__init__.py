"""The compiled kernel: scores and learns one sample in one call, where it could be built.

`Run` is its class, or None; then NumPy does the same work. `PATH` says which of them does, and why.
The variable EDGEMERGE_KERNEL is read at installation and at import: "off" leaves the kernel out,
"required" makes it an error if it is not there.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

SWITCH, OFF, REQUIRED = "EDGEMERGE_KERNEL", "off", "required"
VECTORS = {512: "with AVX-512", 256: "with AVX2", 0: "for any CPU"}  # by bits of a register


def load() -> tuple[Any, str]:
    """Return the compiled module, or None, and which path is in use in words.

    Raises:
        ImportError: The kernel is required and cannot be loaded.
    """
    wish = os.environ.get(SWITCH, "")
    if wish == OFF:
        return None, f"NumPy, since {SWITCH}=off"
    try:
        found = import_module("edgemerge.kernel._kernel")
    except ImportError as error:
        if wish == REQUIRED:
            raise ImportError(
                f"found no compiled kernel, but {SWITCH}=required: install a C compiler and "
                f"edgemerge again ({error})"
            ) from error
        missing = isinstance(error, ModuleNotFoundError)
        why = "the kernel was not compiled at installation" if missing else str(error)
        return None, f"NumPy, since {why}"
    return found, f"compiled, {VECTORS[found.use_loops(max(VECTORS))]}"


MODULE, PATH = load()
Run: Any = MODULE and MODULE.Run
