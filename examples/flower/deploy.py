"""Three pumps on Flower's deployment engine, on this machine: `python deploy.py`.

Starts a SuperLink with TLS and three SuperNodes with keys of their own, runs the app once, checks
the result bit for bit against one process that saw everything, and ends whatever it started.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from engine import Engine, say
from pumps.readings import part, readings

from edgemerge import Detector, Projection, Stats, load, save

PUMPS = 3
SHARED = Projection(n_inputs=8, n_hidden=16, seed=7)  # as in pyproject.toml
RUN_S = 200.0


def main() -> None:
    """Run it all in a folder that goes away."""
    with tempfile.TemporaryDirectory() as name:
        deploy(Path(name))


def deploy(folder: Path) -> None:
    """Run it all in a folder."""
    states = {f"pump-{i}": folder / f"pump-{i}.safetensors" for i in range(PUMPS)}
    for i, state in enumerate(states.values()):
        pump = Detector(SHARED)
        pump.learn(part(i, PUMPS))
        save(pump, state)
    say("starting a SuperLink with TLS, and SuperNodes with keys: half a minute")
    with Engine(folder / "engine") as engine:
        for device, state in states.items():
            engine.supernode(device, device=device, state=str(state))
        must = {"min_nodes": PUMPS, "min_answers": PUMPS, "on_failure": "stop"}
        say("beginning a run")
        run = engine.submit(**must, rounds=1, out=str(folder / "out"))
        status, log = engine.finish(run, RUN_S)
    say(log)
    check(folder, states, status)
    say("the sum is what one process sees, to the last bit; so is what each adopted")


def check(folder: Path, states: dict[str, Path], status: str) -> None:
    """Compare with one process that saw everything."""
    result = json.loads((folder / "out" / "result.json").read_text(encoding="utf-8"))
    total, everything = load(folder / "out" / "total.safetensors"), Stats.of(SHARED, readings())
    pumps = [load(state) for state in states.values()]
    good = status == "finished:completed" and result["ended"] == "well" and total == everything
    if not (good and all(pump.own + pump.others == everything for pump in pumps)):
        raise SystemExit(f"the run {status}, and its sum is {total}, expected {everything}")


if __name__ == "__main__":
    main()
