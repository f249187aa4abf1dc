"""What one bad device can do to a fleet: `make attack`.

The server's own code on a database, the agent's own code to adopt, devices that watch walking
people (HAR), and one enrolled device that pushes bad sums. Each row is one attack on a detector or
a bank: how many samples of fresh walking raise an alarm (false), how many of sitting and lying do
(detected), and why the bad device was refused. `python -m benchmarks.attack --unchecked` shows the
same with own samples setting the scale, but without any check, and all members trusted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.machines import Motion, motion
from benchmarks.results import Row, save
from edgemerge import Bank, Contribution, Detector, Monitor, Projection, Stats
from edgemerge.agent.state import AgentState, merged_digest
from edgemerge.agent.sync import SharingPolicy, plan_adoption
from edgemerge.core import similarity, trust
from edgemerge.core.errors import EdgemergeError
from edgemerge.core.ledger import Merged, Selection
from edgemerge.server import fleets
from edgemerge.server.auth import Caller
from edgemerge.server.contributions import decode_and_check, put
from edgemerge.server.db.connect import connect
from edgemerge.server.fleets import Fleet
from edgemerge.server.service import Service
from edgemerge.wire.codec import decode, encode

Array = NDArray[np.float64]
HIDDEN, LIMIT, SEED = 64, 4.0, 1
WALKING, SITTING, LYING = (1, 2, 3), (4,), (6,)
FLEET, BAD, OPERATOR = "people", "bad", Caller("operator")
STEPS = 40  # pushes of the ratchet
DILUTED = 105  # rows of faults beside 953 honest ones
WAITS = "it waits"


class People:
    """HAR, cut into five devices by person; the fifth is bad."""

    def __init__(self, data: Motion) -> None:
        """Share people out at random, always in the same way."""
        self._data = data
        people = np.unique(data.person)
        np.random.default_rng(0).shuffle(people)
        self._groups = np.array_split(people, 5)
        self.projection = Projection(n_inputs=data.rows.shape[1], n_hidden=HIDDEN, seed=SEED)

    def rows(self, device: int, activities: tuple[int, ...]) -> Array:
        """Return the rows of a device, shuffled."""
        mine = np.isin(self._data.person, self._groups[device])
        found = self._data.rows[mine & np.isin(self._data.activity, activities)]
        return found[np.random.default_rng(device).permutation(len(found))]


class Attack(NamedTuple):
    """What the bad device pushes, one after the other, and the fleet's trust.

    Under "person" an operator approves what the first push of each device has; with `approved` also
    that of the bad one.
    """

    sums: list[Stats]
    trust: str = "members"
    approved: bool = False


def attacks(people: People) -> dict[str, Attack]:
    """Return the attacks by their names."""
    shared, rng = people.projection, np.random.default_rng(SEED)
    honest = Stats.of(shared, people.rows(4, WALKING))

    def noise(rows: int) -> Stats:
        return Stats.of(shared, rng.uniform(-1.0, 1.0, (rows, shared.n_inputs)))

    faults = Stats.of(shared, people.rows(4, SITTING + LYING)[:342])
    diluted = Stats.of(shared, people.rows(4, SITTING + LYING)[:DILUTED])
    sums = {
        "none": [],
        "honest": [honest],
        "1 000 rows of noise": [noise(1000)],
        "64 rows of noise": [noise(64)],
        "count × 100 000": [replace(honest, count=1e5 * honest.count)],
        "S × 10": [replace(honest, S=10.0 * honest.S)],
        "mean row × 100 000": [Stats.of(shared, people.rows(4, WALKING).mean(0)) * 1e5],
        "ratchet of noise": [honest + noise(25 * k) for k in range(1, STEPS + 1)],
        "342 rows of faults": [faults],
    }
    return {name: Attack(each) for name, each in sums.items()} | {
        "honest, quorum:2": Attack([honest], "quorum:2"),
        "342 rows of faults, quorum:2": Attack([faults], "quorum:2"),
        "honest rows with 10 % of faults, quorum:2": Attack([honest + diluted], "quorum:2"),
        "342 rows of faults, person": Attack([faults], "person"),
        "honest, approved, then faults, person": Attack([honest, faults], "person", approved=True),
    }


@contextmanager
def server(projection: Projection, trust: str) -> Iterator[Service]:
    """Run the service of a server on a database in a folder that goes."""
    with TemporaryDirectory() as folder:
        service = Service(connect(f"sqlite:///{Path(folder) / 'fleets.db'}"))
        fleet = Fleet(
            FLEET, encode(projection), epoch=0, created=0.0,
            read_mode="totals", min_devices=1, growing_only=False, trust=trust,
        )  # fmt: skip
        service.create(fleet, OPERATOR)
        try:
            yield service
        finally:
            service.close()


def push(service: Service, contribution: Contribution) -> str:
    """Enrol and push as a device does; return why it was refused, if it was."""
    token, _ = service.invite(FLEET, contribution.device, 60.0, OPERATOR)
    caller = service.caller(service.enrol(token, FLEET, contribution.device)[0])
    with service.database.reading() as tx:
        fleet = fleets.get(tx, FLEET)
    try:
        received = decode_and_check(encode(contribution), fleet, contribution.key)
        service.writer.write(lambda tx: put(tx, fleet, received, caller, 0.0))
    except EdgemergeError as error:
        return str(error)[:200]
    return ""


def approve(service: Service, device: str) -> None:
    """Let an operator approve all that a device has pushed."""
    _, found = service.contributions(FLEET, OPERATOR)
    for stored in found:
        if stored.device == device:
            service.choices.decide(FLEET, stored.key, "approve", OPERATOR)


def run(people: People, kind: Callable[..., Any], name: str, attack: Attack) -> Row:
    """Let four honest devices share, the bad one attack, and the first adopt."""
    own = people.rows(0, WALKING)
    learnt, fresh = np.array_split(own, 2)
    learner = kind(people.projection)
    learner.learn(learnt)
    if isinstance(learner, Bank):
        learner.catch_up()
    nothing = encode(Merged(people.projection))
    memory = AgentState("pump-0", 1, Monitor(learner, learn="off"), merged=nothing)
    sharing = SharingPolicy(memory, gate=0.0, max_shift=2.0)
    refused: list[str] = []
    with server(people.projection, attack.trust) as service:
        for note in learner.share("pump-0", revision=1):
            push(service, note)
        for device in (1, 2, 3):
            stats = Stats.of(people.projection, people.rows(device, WALKING))
            push(service, Contribution(f"pump-{device}", stats, 1))
            if attack.trust == "person":
                approve(service, f"pump-{device}")
        for revision, bad in enumerate(attack.sums, 1):
            refused += [push(service, Contribution(BAD, bad, revision))]
            if attack.approved and revision == 1:
                approve(service, BAD)
            adopt(service, sharing, grouped=kind is Bank)
        adopt(service, sharing, grouped=kind is Bank)
        left_out = service.pull_service.checks.refusals_for(FLEET, "pump-0")
        waits = service.choices.waiting(FLEET).get((BAD, 0, "normal"))
    refused += [f"{WAITS}: {waits}"] if waits else []
    probes = fresh, people.rows(0, SITTING), people.rows(0, LYING)
    rates = [float((learner.score(rows) > LIMIT).mean()) for rows in probes]
    return {
        "learner": kind.__name__.lower(), "attack": name,
        "false": round(rates[0], 4), "sitting": round(rates[1], 4), "lying": round(rates[2], 4),
        "adopted": sum(each.others.count for each in learner.detectors.values()),
        "refused": next(filter(None, [*refused, *left_out.values(), *sharing.refused]), ""),
        "told": sharing.message,
    }  # fmt: skip


def adopt(service: Service, sharing: SharingPolicy, *, grouped: bool) -> None:
    """Pull as a device does, and adopt what passes."""
    answer = service.pull(FLEET, Selection(receiver="pump-0"), OPERATOR, None, grouped=grouped)
    if answer.data is None:
        return
    merged = decode(answer.data, Merged, projection=sharing.memory.projection)
    job = sharing.consider(merged, merged_digest(encode(merged)))
    while job is not None:
        job = sharing.finish(job, plan_adoption(job))


def markdown(checked: list[Row], unchecked: list[Row]) -> str:
    """Return the table of the page: false alarms, and sitting and lying in alarm, in percent."""
    lines = [
        "| push | learner | own scale alone | with checks and trust | refused |",
        "|---|---|---|---|---|",
    ]
    for row, without in zip(checked, unchecked, strict=True):
        cells = [row["attack"], row["learner"], _rates(without), _rates(row)]
        why = row["refused"]
        answer = WAITS if why.startswith(WAITS) else "yes" if why else "no"
        lines.append(f"| {' | '.join(cells)} | {answer} |")
    return "\n".join(lines) + "\n"


def _rates(row: Row) -> str:
    return " / ".join(f"{100.0 * float(row[name]):.1f}" for name in ("false", "sitting", "lying"))


def main() -> None:
    """Run all attacks; print and write the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attack", description=__doc__)
    parser.add_argument("--unchecked", action="store_true", help="without any check of numbers")
    given = parser.parse_args()
    data = motion()
    if data is None:
        sys.exit("this needs HAR: edgemerge paper data --data FOLDER --fetch har; EDGEMERGE_DATA")
    if given.unchecked:
        similarity.CHECK_SAMPLES_PER_HIDDEN = trust.FAR_ABOVE = inf
    people = People(data)
    rows: list[Row] = []
    for kind in (Detector, Bank):
        for name, attack in attacks(people).items():
            tried = attack._replace(trust="members") if given.unchecked else attack
            rows.append(run(people, kind, name, tried))
            print(rows[-1], flush=True)
    print(save(rows, "attack-unchecked.csv" if given.unchecked else "attack.csv"))


if __name__ == "__main__":
    main()
