"""If Flower is missing, that is said once, for all tests on its engines."""

from importlib.util import find_spec

from tests.services.missing import left_out


def test_flower_and_its_simulation_are_installed():
    missing = [module for module in ("flwr", "ray") if find_spec(module) is None]
    for module in missing:
        left_out(f"Flower ({module})", "make flower")
    assert not missing
