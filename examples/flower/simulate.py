"""Pumps on Flower's simulation, on this machine: `python simulate.py`, or with other numbers.

Runs the app with 10 nodes and with 100, checks that both sums are that of one process that saw
everything, bit for bit, and ends whatever it started.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from engine import Engine, say
from pumps.readings import readings

from edgemerge import Projection, Stats, load

SHARED = Projection(n_inputs=8, n_hidden=16, seed=7)  # as in pyproject.toml
NODES = (10, 100)
RUN_S = 300.0


def main() -> None:
    """Run it in a folder that goes away."""
    everything = Stats.of(SHARED, readings())
    with tempfile.TemporaryDirectory() as name, Engine(Path(name) / "it", simulation=True) as it:
        for nodes in [int(word) for word in sys.argv[1:]] or NODES:
            say(f"{nodes} nodes: starting Flower and Ray, some seconds")
            total = simulate(it, nodes, Path(name) / f"{nodes}")
            if total != everything:
                raise SystemExit(f"the sum of {nodes} nodes is {total}, expected {everything}")
    say("each sum is what one process sees, to the last bit")


def simulate(engine: Engine, nodes: int, out: Path) -> Stats:
    """Run the app once, say what came of it, and give the sum."""
    run = engine.submit(nodes=nodes, min_nodes=nodes, min_answers=nodes, out=str(out))
    status, log = engine.finish(run, RUN_S)
    if status != "finished:completed":
        raise SystemExit(f"the run {status}: {log}")
    result = json.loads((out / "result.json").read_text(encoding="utf-8"))
    samples, devices, digest = result["samples"], len(result["devices"]), result["digest"]
    say(f"{samples:g} samples of {devices} devices, digest {digest[:16]}")
    total: Stats = load(out / "total.safetensors")
    return total


if __name__ == "__main__":
    main()
