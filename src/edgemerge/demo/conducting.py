"""Conducting the demo: devices learn alone, judge, exchange once, and judge again."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgemerge.core.errors import SettingError
from edgemerge.demo.fleet import FLEET, Fleet
from edgemerge.demo.live import View, shown
from edgemerge.demo.material import Material
from edgemerge.demo.outcome import THRESHOLD, Outcome, Row, row_of

Array = NDArray[np.float64]
Say = Callable[[str], None]

PATIENCE_S = 90.0  # for all samples of one step
MARK = "demo.json"  # by which we know our folder again


def run(
    material: Material,
    seed: int,
    folder: Path,
    *,
    say: Say,
    done: Callable[[Outcome, Fleet], None] = lambda _outcome, _fleet: None,
    quiet: bool = False,
) -> Outcome:
    """Run it all; `done` is called at the end, while everything still runs."""
    began = time.monotonic()
    ours(folder)
    devices = list(material.learn)
    say(f"starting a server and {len(devices)} agents")
    inputs = material.inputs
    with Fleet(folder, material.projection, devices, limit=THRESHOLD, inputs=inputs) as fleet:
        with shown(fleet, material.patterns, quiet=quiet) as view:
            rows, sizes = _play(material, fleet, view, say)
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
        )
        done(outcome, fleet)
    return outcome


def ours(folder: Path) -> None:
    """Make the folder empty, if it is there and was made by the demo."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / MARK).exists():
            raise SettingError(f"{folder} holds something else: choose another folder with --out")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARK).write_text(json.dumps({"made by": "edgemerge demo"}), encoding="utf-8")


def _play(
    material: Material, fleet: Fleet, view: View, say: Say
) -> tuple[list[Row], dict[str, int]]:
    def doing(words: str) -> None:
        view.doing = words
        if not view.is_seen:
            say(words)

    doing("1 of 4  each device learns what is normal for it, alone")
    fleet.feed(material.learn)
    _scores(fleet, {name: len(rows) for name, rows in material.learn.items()})
    fleet.ask("learn", on=False)
    doing("2 of 4  each judges everybody's normal, and what nobody has learnt: before merging")
    before = _judge(material, fleet, merged=False)
    doing("3 of 4  all share their sums with the server, and merge once")
    fleet.ask("sync")  # whoever comes first finds nobody
    fleet.ask("sync")
    doing("4 of 4  each judges the same again: after merging")
    after = _judge(material, fleet, merged=True)
    sizes: dict[str, int] = {}
    for entry in fleet.operator.contributions(FLEET)["contributions"]:
        sizes[entry["device"]] = sizes.get(entry["device"], 0) + entry["bytes"]
    return before + after, sizes


def _judge(material: Material, fleet: Fleet, *, merged: bool) -> list[Row]:
    kinds = {**material.normal, **material.odd}
    every, ends = np.vstack([*kinds.values()]), np.cumsum([len(rows) for rows in kinds.values()])
    start = {name: len(agent.scores) for name, agent in fleet.agents.items()}
    fleet.feed(dict.fromkeys(fleet.agents, every))
    found = _scores(fleet, {name: count + len(every) for name, count in start.items()})
    rows = []
    for name, scores in found.items():
        parts = np.split(scores[start[name] :], ends[:-1])
        told = dict(zip(kinds, parts, strict=True))
        normal = {device: told[device] for device in material.normal}
        odd = {kind: told[kind] for kind in material.odd}
        rows.append(row_of(name, material.patterns[name], normal, odd, merged=merged))
    return rows


def _scores(fleet: Fleet, counts: dict[str, int]) -> dict[str, Array]:
    deadline = time.monotonic() + PATIENCE_S
    return {name: fleet.agents[name].wait_for(count, deadline) for name, count in counts.items()}
