"""The stopwatch is the one of the paper's evaluation."""

from edgemerge.paper.timing import Contestant, each, race

__all__ = ["Contestant", "each", "race"]
