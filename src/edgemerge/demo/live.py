"""The demo while it runs: what each device is doing, and how odd it finds what it sees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import log2
from statistics import fmean

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from edgemerge.demo.fleet import Fleet
from edgemerge.demo.outcome import THRESHOLD

BARS = "▁▂▃▄▅▆▇█"
CELLS = 28  # of the curve
EACH = 12  # scores that one cell stands for
TALLEST = 16.0  # the score of a full cell
CALM, ODD = "green", "bold yellow"


class View:
    """A picture of the fleet at this moment, for the terminal."""

    def __init__(self, fleet: Fleet, patterns: Mapping[str, str]) -> None:
        """Look at a fleet."""
        self._fleet, self._patterns = fleet, patterns
        self.doing, self.is_seen = "", False

    def __rich__(self) -> Group:
        """Draw it."""
        sheet = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0))
        sheet.add_column("device", no_wrap=True)
        sheet.add_column("learns", no_wrap=True)
        sheet.add_column("judged", justify="right", no_wrap=True)
        sheet.add_column("score now", justify="right", no_wrap=True)
        sheet.add_column(f"the last {CELLS * EACH} samples", no_wrap=True)
        for device, agent in self._fleet.agents.items():
            scores = agent.scores[-CELLS * EACH :]
            now = fmean(scores[-EACH:]) if scores else None
            sheet.add_row(
                device,
                self._patterns[device],
                f"{len(agent.scores):,}",
                Text("–" if now is None else f"{now:.1f}", style=_style(now or 0.0)),
                curve(scores),
            )
        return Group(Text(self.doing, style="bold"), Text(), sheet)


def curve(scores: list[float]) -> Text:
    """Draw scores as a row of bars, each the mean of some; above the alarm they change colour.

    >>> curve([1.0] * 12 + [9.0] * 12).plain
    '▃▇'
    """
    drawn = Text()
    for start in range(0, len(scores), EACH):
        mean = fmean(scores[start : start + EACH])
        drawn.append(BARS[_height(mean)], style=_style(mean))
    return drawn


def _height(score: float) -> int:
    """Give 2 for a score of 1, and the highest from 16 on; equal factors are equal steps."""
    steps = (len(BARS) - 3) / log2(TALLEST)
    return max(0, min(len(BARS) - 1, round(2 + steps * log2(max(score, 0.1)))))


def _style(score: float) -> str:
    return ODD if score > THRESHOLD else CALM


@contextmanager
def shown(fleet: Fleet, patterns: Mapping[str, str], *, quiet: bool) -> Iterator[View]:
    """Show the fleet on the terminal while the block runs; elsewhere only what is being done."""
    view, console = View(fleet, patterns), Console(stderr=True, highlight=False)
    if quiet or not console.is_terminal:
        yield view
        return
    with Live(view, console=console, refresh_per_second=8, transient=True):
        view.is_seen = True
        yield view
