"""The demo's scenario: learn alone, score, exchange once, score again; then keep running."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import log2
from pathlib import Path
from statistics import fmean
from threading import Event
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console, Group, JustifyMethod
from rich.live import Live
from rich.text import Text

from edgemerge.core.errors import SettingError
from edgemerge.demo.data import DemoData
from edgemerge.demo.outcome import (
    THRESHOLD,
    DeviceRow,
    LastingFault,
    Outcome,
    plain_table,
    row_of,
)
from edgemerge.demo.processes import FLEET_NAME, WATCHING_POLICY, FleetProcesses, MessageReceiver

BARS = "▁▂▃▄▅▆▇█"
CURVE_CELLS = 28  # of the curve
SCORES_PER_CELL = 12  # scores that one cell stands for
FULL_CELL_SCORE = 16.0  # the score of a full cell
LOWERED = (
    "made for a minute: sync.gate = 2 and --min-devices 1 share sooner than the defaults of 16 and "
    "3, and reveal more; keep the defaults for confidential data"
)
NORMAL_STYLE, ALARM_STYLE = "green", "bold yellow"


class LiveView:
    """The current scores of the fleet, for the terminal."""

    def __init__(self, fleet: FleetProcesses, patterns: Mapping[str, str]) -> None:
        """Set the fleet to draw."""
        self._fleet, self._patterns = fleet, patterns
        self.current_step, self.is_displayed = "", False

    def __rich__(self) -> Group:
        """Draw it."""
        left: tuple[tuple[str, JustifyMethod], ...] = (("device", "left"), ("learns", "left"))
        shown = CURVE_CELLS * SCORES_PER_CELL
        curve = f"the last {shown} samples"
        table = plain_table(
            *left, ("judged", "right"), ("score now", "right"), (curve, "left"), gap=2
        )
        for device, agent in self._fleet.agents.items():
            scores = agent.scores[-shown:]
            now = fmean(scores[-SCORES_PER_CELL:]) if scores else 0.0
            score = Text(f"{now:.1f}" if scores else "–", style=_score_style(now))
            count, pattern = f"{len(agent.scores):,}", self._patterns[device]
            table.add_row(device, pattern, count, score, sparkline(scores))
        return Group(Text(self.current_step, style="bold"), Text(), table)


def sparkline(scores: list[float]) -> Text:
    """Draw scores as a row of bars, each the mean of some; above the alarm they change colour.

    >>> sparkline([1.0] * 12 + [9.0] * 12).plain
    '▃▇'
    """
    drawn = Text()
    for start in range(0, len(scores), SCORES_PER_CELL):
        mean = fmean(scores[start : start + SCORES_PER_CELL])
        drawn.append(BARS[_bar_height(mean)], style=_score_style(mean))
    return drawn


def _bar_height(score: float) -> int:
    """Return the bar of a score: 2 for 1, the highest from 16 on, on a log scale."""
    steps = (len(BARS) - 3) / log2(FULL_CELL_SCORE)
    return max(0, min(len(BARS) - 1, round(2 + steps * log2(max(score, 0.1)))))


def _score_style(score: float) -> str:
    return ALARM_STYLE if score > THRESHOLD else NORMAL_STYLE


@contextmanager
def live_view(
    fleet: FleetProcesses, patterns: Mapping[str, str], *, quiet: bool
) -> Iterator[LiveView]:
    """Show the fleet on a terminal while the block runs; otherwise print each step."""
    view, console = LiveView(fleet, patterns), Console(stderr=True, highlight=False)
    if quiet or not console.is_terminal:
        yield view
        return
    with Live(view, console=console, refresh_per_second=8, transient=True):
        view.is_displayed = True
        yield view


Array = NDArray[np.float64]
Log = Callable[[str], None]

REPEATED_SAMPLES = 20  # of a fault that comes back
STEP_TIMEOUT_S = 90.0  # for all samples of one step
EXPECTED_MESSAGES, MESSAGE_TIMEOUT_S = 4, 30.0  # alarm, all clear, alarm again, and its name
MARKER_FILE = "demo.json"  # only a folder with this file is emptied


def run_demo(
    material: DemoData,
    seed: int,
    folder: Path,
    *,
    say: Log,
    done: Callable[[Outcome, FleetProcesses], None] = lambda _outcome, _fleet: None,
    quiet: bool = False,
) -> Outcome:
    """Run the demo; `done` is called at the end, while all processes still run."""
    began = time.monotonic()
    prepare_folder(folder)
    devices = list(material.learn)
    options: dict[str, Any] = {"limit": THRESHOLD, "inputs": material.inputs}
    say(f"starting a server and {len(devices)} agents")
    say(LOWERED)
    with FleetProcesses(folder, material.projection, devices, **options) as fleet:
        with live_view(fleet, material.patterns, quiet=quiet) as view:
            rows, sizes, fault = _run_steps(material, fleet, view, say)
        outcome = Outcome(
            name=material.name,
            seed=seed,
            odd=tuple(material.odd),
            rows=rows,
            curves=material.curves,
            hidden=material.projection.n_hidden,
            inputs=material.projection.n_inputs,
            samples=round(np.mean([len(rows) for rows in material.learn.values()])),
            bytes_sums=round(np.mean(list(sizes.values()))),
            seconds=time.monotonic() - began,
            fault=fault,
        )
        done(outcome, fleet)
    return outcome


def prepare_folder(folder: Path) -> None:
    """Empty the folder, if the demo made it."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / MARKER_FILE).exists():
            raise SettingError(f"{folder} holds something else: choose another folder with --out")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER_FILE).write_text(json.dumps({"made by": "edgemerge demo"}), encoding="utf-8")


def _run_steps(
    material: DemoData, fleet: FleetProcesses, view: LiveView, say: Log
) -> tuple[list[DeviceRow], dict[str, int], LastingFault]:
    def doing(words: str) -> None:
        view.current_step = words
        if not view.is_displayed:
            say(words)

    doing("1 of 5  each device learns what is normal for it, alone")
    fleet.feed(material.learn)
    _wait_for_scores(fleet, {name: len(rows) for name, rows in material.learn.items()})
    fleet.ask("learn", on=False)
    doing("2 of 5  each scores all normal patterns, and one that none has learnt: before merging")
    before = _score_all(material, fleet, merged=False)
    doing("3 of 5  all share their sums with the server, and merge once")
    fleet.ask("sync")  # the first agent finds no contributions yet
    fleet.ask("sync")
    doing("4 of 5  each scores the same again: after merging")
    after = _score_all(material, fleet, merged=True)
    sizes: Counter[str] = Counter()
    for entry in fleet.operator.contributions(FLEET_NAME)["contributions"]:
        sizes[entry["device"]] += entry["bytes"]
    device, kind = next(iter(material.normal)), next(iter(material.odd))
    doing(f"5 of 5  {device} watches, {kind} comes to stay, sends a message, and is reviewed")
    with MessageReceiver() as phone:
        fault = _lasting_fault(material, fleet, phone, device, kind)
    return before + after, sizes, fault


def _lasting_fault(
    material: DemoData, fleet: FleetProcesses, phone: MessageReceiver, device: str, kind: str
) -> LastingFault:
    """Let a fault last on one device, call it by its name, and let it come back."""
    calm, odd = material.normal[device], material.odd[kind]
    odd = odd[: len(odd) // 2]
    scored = len(fleet.agents[device].scores)
    fleet.agents[device].feed(calm[:1])  # it ends the alarm of the step before
    _wait_for_scores(fleet, {device: scored + 1})
    agent = fleet.restart(device, WATCHING_POLICY, phone.url)
    agent.ask("learn", on=True)
    every = np.vstack([calm, odd, calm, odd[:REPEATED_SAMPLES]])
    agent.feed(every[:-REPEATED_SAMPLES])
    _wait_for_scores(fleet, {device: len(every) - REPEATED_SAMPLES})
    alarms = sum(each["alarm"] for each in agent.verdicts[len(calm) : len(calm) + len(odd)])
    patterns = agent.ask("status")["monitor"]["patterns"]
    found = max(patterns, key=lambda each: each["samples"])
    agent.ask("review", pattern=found["name"], decision="fault", name=kind)
    agent.feed(every[-REPEATED_SAMPLES:])
    _wait_for_scores(fleet, {device: len(every)})
    messages = phone.wait_for(EXPECTED_MESSAGES, time.monotonic() + MESSAGE_TIMEOUT_S)
    return LastingFault(
        device=device,
        kind=kind,
        samples=len(odd),
        alarms=alarms,
        inputs=tuple(str(name) for name, _share in found["inputs"][:3]),
        found_as=found["name"],
        again=str(agent.verdicts[-1]["pattern"]),
        messages=tuple(str(each["title"]) for each in messages),
    )


def _score_all(material: DemoData, fleet: FleetProcesses, *, merged: bool) -> list[DeviceRow]:
    kinds = {**material.normal, **material.odd}
    every, ends = np.vstack([*kinds.values()]), np.cumsum([len(rows) for rows in kinds.values()])
    start = {name: len(agent.scores) for name, agent in fleet.agents.items()}
    fleet.feed(dict.fromkeys(fleet.agents, every))
    found = _wait_for_scores(fleet, {name: count + len(every) for name, count in start.items()})
    rows = []
    for name, scores in found.items():
        parts = np.split(scores[start[name] :], ends[:-1])
        by_kind = dict(zip(kinds, parts, strict=True))
        normal = {device: by_kind[device] for device in material.normal}
        odd = {kind: by_kind[kind] for kind in material.odd}
        rows.append(row_of(name, material.patterns[name], normal, odd, merged=merged))
    return rows


def _wait_for_scores(fleet: FleetProcesses, counts: dict[str, int]) -> dict[str, Array]:
    deadline = time.monotonic() + STEP_TIMEOUT_S
    return {name: fleet.agents[name].wait_for(count, deadline) for name, count in counts.items()}


# After the demo the devices keep running, with a fault now and then, so that the page has news.
#
# Learning is off: otherwise faults would become normal in the course of an afternoon.

SAMPLE_INTERVAL_S = 0.5  # as long as the windows of the pumps
SAMPLES_BETWEEN_FAULTS = (30, 90)  # samples between two faults
SAMPLES_PER_FAULT = (10, 24)  # samples of a fault
MAX_KEPT_SCORES = 1000  # per agent


def feed_forever(fleet: FleetProcesses, material: DemoData, *, seed: int, stop: Event) -> None:
    """Feed every agent about two samples per second until `stop` is set."""
    for rows in readings(material, np.random.default_rng(seed)):
        for device, agent in fleet.agents.items():
            agent.feed(rows[device])
            del agent.scores[:-MAX_KEPT_SCORES]
        if stop.wait(SAMPLE_INTERVAL_S):
            return


def readings(material: DemoData, rng: np.random.Generator) -> Iterator[dict[str, Array]]:
    """Yield one row (1, n) per device, without end: normal, with a fault of one device at times."""
    parts = {
        kind: np.array_split(rows, len(material.normal)) for kind, rows in material.odd.items()
    }
    while True:
        for _ in range(rng.integers(*SAMPLES_BETWEEN_FAULTS)):
            yield _normal_rows(material, rng)
        sick, kind = rng.integers(len(material.normal)), str(rng.choice(list(parts)))
        for _ in range(rng.integers(*SAMPLES_PER_FAULT)):
            yield _normal_rows(material, rng) | {
                list(material.normal)[sick]: _random_row(parts[kind][sick], rng)
            }


def _normal_rows(material: DemoData, rng: np.random.Generator) -> dict[str, Array]:
    return {device: _random_row(rows, rng) for device, rows in material.normal.items()}


def _random_row(rows: Array, rng: np.random.Generator) -> Array:
    return rows[[rng.integers(len(rows))]]
