"""Internet scale by simulation: a million devices' contributions through a tree of exact sums.

>>> outcome = simulate(Plan(devices=60, fan_out=8, n_inputs=3, n_hidden=2), measure_s=None)
>>> outcome.exact, len(outcome.checks)
(True, 6)
"""

from edgemerge.scale.report import record
from edgemerge.scale.simulation import Outcome, simulate
from edgemerge.scale.simulation_plan import Plan

__all__ = ["Outcome", "Plan", "record", "simulate"]
