"""Hatchling's build hook: compile the kernel into the wheel where a C compiler is there.

Without one the wheel is pure Python, and NumPy does the kernel's work. EDGEMERGE_KERNEL=required
makes a missing kernel an error. `python hatch_build.py` builds it in place, beside its source.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SWITCH, OFF, REQUIRED = "EDGEMERGE_KERNEL", "off", "required"
SOURCE = Path("src/edgemerge/kernel/kernel.c")
ABI = (3, 11)  # the oldest CPython that the stable ABI of the kernel serves
# Rounding to the grid must not be fused, and a vector's maths may set neither errno nor a trap.
FLAGS = [
    *("-std=c99", "-O3", "-g0", "-fopenmp-simd"),
    *("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
]


def build_kernel(root: Path, into: Path) -> Path:
    """Compile the kernel into a folder; return the file. Raises what setuptools raises."""
    from setuptools import Distribution, Extension  # noqa: PLC0415  # needed by this hook alone
    from setuptools.command.build_ext import build_ext  # noqa: PLC0415

    kernel = Extension(
        "_kernel",
        [str(root / SOURCE)],
        extra_compile_args=FLAGS,
        libraries=["m"] if os.name == "posix" else [],
        py_limited_api=True,
    )
    command = build_ext(Distribution({"name": "edgemerge", "ext_modules": [kernel]}))
    with tempfile.TemporaryDirectory() as scratch:
        command.build_temp, command.build_lib, command.force = scratch, str(into), True
        command.ensure_finalized()
        command.run()
        return Path(command.get_ext_fullpath("_kernel"))


class KernelHook(BuildHookInterface):  # type: ignore[misc,type-arg]  # hatchling has no types here
    """Adds the compiled kernel to a wheel, and its platform to the wheel's tag."""

    _scratch = ""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the kernel, or say why the wheel goes without it.

        Args:
            version: "standard" or "editable".
            build_data: What hatchling is told about the wheel.
        """
        wish = os.environ.get(SWITCH, "")
        if wish == OFF:
            return
        root = Path(self.root)
        self._scratch = tempfile.mkdtemp()
        beside = root / SOURCE.parent
        try:
            built = build_kernel(root, beside if version == "editable" else Path(self._scratch))
        except Exception as error:  # whatever a missing compiler raises
            if wish == REQUIRED:
                raise
            self.app.display_warning(f"edgemerge goes without its kernel: {error}")
            return
        if version != "editable":
            build_data["force_include"][str(built)] = f"edgemerge/kernel/{built.name}"
        build_data["pure_python"] = False
        platform = self.build_config.builder.get_best_matching_tag().rsplit("-", 1)[-1]
        build_data["tag"] = f"cp{ABI[0]}{ABI[1]}-abi3-{platform}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was built on the way.

        Args:
            version: "standard" or "editable".
            build_data: What hatchling was told about the wheel.
            artifact_path: The wheel.
        """
        del version, build_data, artifact_path
        if self._scratch:
            shutil.rmtree(self._scratch, ignore_errors=True)


if __name__ == "__main__":
    here = Path(__file__).parent
    sys.stdout.write(f"{build_kernel(here, here / SOURCE.parent)}\n")
