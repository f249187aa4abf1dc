"""The kernel is built if a compiler is there, loaded if it was built, and can be switched off."""

import os
import subprocess
import sys
from copy import deepcopy
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from shutil import which
from types import SimpleNamespace

import numpy as np
import pytest

from edgemerge import kernel
from edgemerge.core.stats import Sums

hatch_build = pytest.importorskip("hatch_build")  # at the root of the repository
ROOT = Path(hatch_build.__file__).parent


def not_there(name):
    raise ModuleNotFoundError(f"No module named {name!r}")


def test_a_variable_switches_the_kernel_off(monkeypatch):
    monkeypatch.setenv(kernel.SWITCH, kernel.OFF)
    assert kernel.load() == (None, "NumPy, since EDGEMERGE_KERNEL=off")


def test_without_a_kernel_numpy_does_the_work(monkeypatch):
    monkeypatch.delenv(kernel.SWITCH, raising=False)
    monkeypatch.setattr(kernel, "import_module", not_there)
    assert kernel.load() == (None, "NumPy, since the kernel was not compiled at installation")


def test_a_required_kernel_that_is_missing_is_an_error(monkeypatch):
    monkeypatch.setenv(kernel.SWITCH, kernel.REQUIRED)
    monkeypatch.setattr(kernel, "import_module", not_there)
    with pytest.raises(ImportError, match="install a C compiler and edgemerge again"):
        kernel.load()


@pytest.mark.slow
def test_a_detector_works_without_the_kernel():
    lines = (
        "import numpy as np; from edgemerge import Detector, Projection, kernel",
        "assert kernel.Run is None",
        "d = Detector(Projection(n_inputs=2, n_hidden=3)); d.learn(np.eye(2)); print(d.count)",
    )
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        env=os.environ | {kernel.SWITCH: kernel.OFF},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "2.0\n"


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(which("cc") is None, reason="needs a C compiler")
def test_the_hook_compiles_the_kernel_for_the_stable_abi(tmp_path):
    built = hatch_build.build_kernel(ROOT, tmp_path)
    assert built.parent == tmp_path
    assert ".abi3." in built.name
    spec = spec_from_file_location("_kernel", built)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.tally() == (0, 0)


def run_hook(tmp_path):
    """Return what hatchling is told, and what the user is."""
    told, data = [], {"force_include": {}}
    app = SimpleNamespace(display_warning=told.append)
    hook = hatch_build.KernelHook(str(ROOT), {}, None, None, str(tmp_path), "wheel", app)
    hook.initialize("standard", data)
    hook.finalize("standard", data, "")
    return data, told


def test_without_a_compiler_the_wheel_is_pure_python(tmp_path, monkeypatch):
    monkeypatch.delenv(kernel.SWITCH, raising=False)
    monkeypatch.setenv("CC", "no-such-compiler")
    data, told = run_hook(tmp_path)
    assert data == {"force_include": {}}
    assert "goes without its kernel" in told[0]


def test_without_a_compiler_a_required_kernel_ends_the_installation(tmp_path, monkeypatch):
    monkeypatch.setenv(kernel.SWITCH, kernel.REQUIRED)
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(Exception, match="no-such-compiler"):
        run_hook(tmp_path)


def test_a_copy_of_sums_is_laid_out_as_they_were():
    sums = Sums(5, 3, 2.0**-24, for_kernel=True)
    sums.add(np.arange(5.0), np.arange(3.0), 1.0, 30.0)
    copied = deepcopy(sums)
    for one, other in ((sums.U, copied.U), (sums.V, copied.V)):
        assert np.array_equal(one, other)
        assert one.strides == other.strides
        assert other.ctypes.data % 64 == 0
