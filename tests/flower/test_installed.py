"""If Flower is missing, that is said once."""

from importlib.util import find_spec

from tests.services.missing import left_out


def test_flower_and_its_simulation_are_installed():
    for module in ("flwr", "ray"):
        if find_spec(module) is None:
            left_out(module, "pip install 'edgemerge[flower-simulation]'")
