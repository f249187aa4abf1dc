"""The stopwatch is the one of the paper's evaluation."""

from edgemerge.paper.stopwatch import Contestant, each, race

__all__ = ["Contestant", "each", "race"]
