"""The results of the evaluation by name, in the order of the report."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from edgemerge.paper.plan import Claim, Plan, Rows


NAMES = (
    *("loss-driving", "loss-har", "auc", "latency", "convergence"),  # the paper's section 5
    *("auc-by-person", "devices", "bytes", "cost", "drop-out"),  # and past it
)


class Result(Protocol):
    """A figure or table of the evaluation: a module with these names.

    It may have `NOTE`, a few sentences on how it was measured, and `table(rows)`, which returns the
    rows that the report shows; without it the report shows all, if they are few.
    """

    NAME: str
    TITLE: str
    DATA: tuple[str, ...]  # the data sets without which there is nothing to run

    def run(self, plan: Plan) -> Rows:
        """Return the rows; write nothing."""

    def plot(self, rows: Rows) -> dict[str, Figure]:
        """Return the figures, by the ends of their file names."""

    def claims(self, rows: Rows) -> list[Claim]:
        """Return what the rows should show, and whether they do."""


def load_result(name: str) -> Result:
    """Import a result; `loss-har` is in loss_har.py."""
    module: Result = import_module(f"edgemerge.paper.{name.replace('-', '_')}")
    return module
