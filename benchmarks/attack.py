"""What one bad device can do to a fleet: `make attack`.

`edgemerge serve` and `edgemerge agent` as programs, devices that watch walking people (HAR), and
one enrolled device that pushes bad sums. Each row is one attack on a detector or a bank: how many
samples of fresh walking raise an alarm (false), how many of sitting and lying do (detected), and
why the bad device was refused. `python -m benchmarks.attack --unchecked` shows the same with own
samples setting the scale, but without any check, and all members trusted; there server and agent
run in one process, where checks can be left out.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import ExitStack
from dataclasses import replace
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from benchmarks.machines import Motion, motion
from benchmarks.results import Row, save
from edgemerge import Bank, Contribution, Detector, Monitor, Projection, Stats
from edgemerge.agent.state import AgentState, merged_digest
from edgemerge.agent.sync import AdoptionJob, SharingPolicy, plan_adoption
from edgemerge.core import similarity, trust
from edgemerge.core.errors import EdgemergeError
from edgemerge.core.ledger import Merged, Selection
from edgemerge.demo.processes import START_TIMEOUT_S, AgentProcess, start_process, stop_process
from edgemerge.exchange.client import ServerClient
from edgemerge.exchange.http import HttpExchange
from edgemerge.server import fleets
from edgemerge.server.auth import Caller
from edgemerge.server.contributions import decode_and_check, put
from edgemerge.server.db.migrations import connect
from edgemerge.server.fleets import Fleet
from edgemerge.server.service import Service
from edgemerge.wire.codec import decode, encode

Array = NDArray[np.float64]
HIDDEN, LIMIT, SEED = 64, 4.0, 1
WALKING, SITTING, LYING = (1, 2, 3), (4,), (6,)
FLEET, BAD, OPERATOR = "people", "bad", Caller("operator")
ME = "pump-0"
STEPS = 40  # pushes of the ratchet
DILUTED = 105  # rows of noise or faults beside 953 honest ones
ROWS_ASKED = 100  # scored with one command
WAITS = "it waits"
AGENT_TEMPLATE = """\
device = "{me}"
state = "{me}"

[source]
kind = "stdin"
header = false

[learner]
kind = "{kind}"

[monitor]
commissioning = 128

[exchange]
kind = "http"
url = "{url}"
fleet = "{fleet}"
token_file = "{me}.token"

[sync]
every_s = 0
gate = 0

[[sinks]]
kind = "jsonl"
path = "-"
"""


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
    that of the bad one. With `young` the receiver has seen 2N samples when it adopts, and the rest
    later.
    """

    sums: list[Stats]
    trust: str = "members"
    approved: bool = False
    young: bool = False


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
        "honest rows with 10 % of noise": [honest + noise(DILUTED)],
        "honest rows with 5 % of noise": [honest + noise(DILUTED // 2)],
        "342 rows of faults": [faults],
    }
    return {name: Attack(each) for name, each in sums.items()} | {
        "1 000 rows of noise to a young device": Attack([noise(1000)], young=True),
        "honest, quorum:2": Attack([honest], "quorum:2"),
        "342 rows of faults, quorum:2": Attack([faults], "quorum:2"),
        "honest rows with 10 % of faults, quorum:2": Attack([honest + diluted], "quorum:2"),
        "342 rows of faults, person": Attack([faults], "person"),
        "honest, approved, then faults, person": Attack([honest, faults], "person", approved=True),
    }


class World(Protocol):
    """A server with one fleet, and the device pump-0, which has seen some rows."""

    def push(self, contribution: Contribution) -> str:
        """Enrol and push as a device does; return why it was refused, if it was."""
        ...

    def approve(self, device: str) -> None:
        """Let an operator approve all that a device has pushed."""
        ...

    def learn(self, rows: Array) -> None:
        """Let pump-0 see more rows."""
        ...

    def adopt(self) -> None:
        """Let pump-0 exchange."""
        ...

    def score(self, rows: Array) -> Array:
        """Return what pump-0 makes of rows."""
        ...

    def outcome(self) -> tuple[float, str, str]:
        """Return the samples adopted, why the bad device was refused, and what the agent says."""
        ...


class InProcess:
    """The code of server and agent on a database in a folder that goes, in this process."""

    def __init__(self, people: People, kind: type[Detector | Bank], trust: str) -> None:
        """Create the fleet and the device."""
        self._ends = ExitStack()
        folder = self._ends.enter_context(TemporaryDirectory())
        self._service = Service(connect(f"sqlite:///{Path(folder) / 'fleets.db'}"))
        self._ends.callback(self._service.close)
        fleet = Fleet(
            FLEET, encode(people.projection), epoch=0, created=0.0,
            read_mode="totals", min_devices=1, growing_only=False, trust=trust,
        )  # fmt: skip
        self._service.create(fleet, OPERATOR)
        self._learner = kind(people.projection)
        nothing = encode(Merged(people.projection))
        memory = AgentState(ME, 1, Monitor(self._learner, learn="off"), merged=nothing)
        self._sharing = SharingPolicy(memory, gate=0.0, max_shift=2.0)
        self._shared = 0

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Close the database."""
        self._ends.close()

    def push(self, contribution: Contribution) -> str:
        """Enrol and push as a device does; return why it was refused, if it was."""
        service = self._service
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

    def approve(self, device: str) -> None:
        """Let an operator approve all that a device has pushed."""
        _, found = self._service.contributions(FLEET, OPERATOR)
        for stored in found:
            if stored.device == device:
                self._service.choices.decide(FLEET, stored.key, "approve", OPERATOR)

    def learn(self, rows: Array) -> None:
        """Let pump-0 see more rows, and share them."""
        self._learner.learn(rows)
        if isinstance(self._learner, Bank):
            self._learner.catch_up()
        self._shared += 1
        for note in self._learner.share(ME, revision=self._shared):
            self.push(note)

    def adopt(self) -> None:
        """Pull as a device does, and adopt what passes."""
        sharing, grouped = self._sharing, isinstance(self._learner, Bank)
        answer = self._service.pull(FLEET, Selection(receiver=ME), OPERATOR, None, grouped=grouped)
        self._carry_out(sharing.recheck())
        if answer.data is not None:
            merged = decode(answer.data, Merged, projection=sharing.memory.projection)
            self._carry_out(sharing.consider(merged, merged_digest(encode(merged))))

    def _carry_out(self, job: AdoptionJob | None) -> None:
        while job is not None:
            job = self._sharing.finish(job, plan_adoption(job))

    def score(self, rows: Array) -> Array:
        """Return what pump-0 makes of rows."""
        return np.asarray(self._learner.score(rows))

    def outcome(self) -> tuple[float, str, str]:
        """Return the samples adopted, why the bad device was refused, and what the agent says."""
        adopted = sum(each.others.count for each in self._learner.detectors.values())
        left_out = self._service.pull_service.checks.refusals_for(FLEET, ME)
        waits = self._service.choices.waiting(FLEET).get((BAD, 0, "normal"))
        reasons = [f"{WAITS}: {waits}"] if waits else []
        reasons += [*left_out.values(), *self._sharing.refused]
        return adopted, next(iter(reasons), ""), self._sharing.message


class Programs:
    """A server and an agent as programs of their own, over loopback."""

    def __init__(self, people: People, kind: type[Detector | Bank], trust: str) -> None:
        """Say what is to be started."""
        self._projection, self._trust = people.projection, trust
        self._kind = kind.__name__.lower()
        self._ends = ExitStack()
        self._taken = 0
        self._told: dict[str, Any] = {}

    def __enter__(self) -> Self:
        """Start the server, create the fleet, enrol the device and start its agent."""
        try:
            self._start()
        except BaseException:
            self._ends.close()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        """Stop both."""
        self._ends.close()

    def _start(self) -> None:
        folder = Path(self._ends.enter_context(TemporaryDirectory()))
        log = self._ends.enter_context((folder / "server.log").open("wb"))
        options = ("--database", "fleet.sqlite", "--port", "0", "--port-file", "port")
        program = start_process("serve", *options, folder=folder, log=log)
        self._ends.callback(stop_process, program)
        deadline = monotonic() + START_TIMEOUT_S
        while not (folder / "port").exists():
            if program.poll() is not None or monotonic() > deadline:
                raise EdgemergeError("the server did not start")
            sleep(0.02)
        self._url = f"http://127.0.0.1:{(folder / 'port').read_text().strip()}"
        token = (folder / "fleet.sqlite.admin-token").read_text().strip()
        self._operator = ServerClient(self._url, token)
        self._operator.create_fleet(FLEET, self._projection, least=1)
        self._operator.set_trust(FLEET, self._trust)
        (folder / f"{ME}.token").touch(mode=0o600)
        (folder / f"{ME}.token").write_text(self._enrol(ME))
        text = AGENT_TEMPLATE.format(me=ME, url=self._url, fleet=FLEET, kind=self._kind)
        (folder / f"{ME}.toml").write_text(text)
        self._agent = AgentProcess(ME, folder)
        self._ends.callback(self._agent.close)
        self._agent.wait_until_up(deadline)

    def _enrol(self, device: str) -> str:
        invitation = self._operator.invite(FLEET, device)["token"]
        token: str = ServerClient(self._url, invitation).enrol(FLEET, device)["token"]
        return token

    def push(self, contribution: Contribution) -> str:
        """Enrol and push as a device does; return why it was refused, if it was."""
        token = self._enrol(contribution.device)
        exchange = HttpExchange(self._url, FLEET, token, projection=self._projection)
        try:
            exchange.push(contribution)
        except EdgemergeError as error:
            return str(error)[:200]
        finally:
            exchange.close()
        return ""

    def approve(self, device: str) -> None:
        """Let an operator approve all that a device has pushed."""
        for found in self._operator.waiting(FLEET):
            if found["device"] == device:
                key = device, found["incarnation"], found["pattern"]
                self._operator.decide(FLEET, key, "approve")

    def learn(self, rows: Array) -> None:
        """Let pump-0 see more rows."""
        self._taken += len(rows)
        self._agent.feed(rows)
        self._agent.wait_for(self._taken, monotonic() + START_TIMEOUT_S)

    def adopt(self) -> None:
        """Let pump-0 exchange."""
        self._told = self._agent.ask("sync")

    def score(self, rows: Array) -> Array:
        """Return what pump-0 makes of rows."""
        found: list[float] = []
        for i in range(0, len(rows), ROWS_ASKED):
            part = rows[i : i + ROWS_ASKED].tolist()
            found += self._agent.ask("score", rows=part)["scores"]
        return np.array(found, np.float64)

    def outcome(self) -> tuple[float, str, str]:
        """Return the samples adopted, why the bad device was refused, and what the agent says."""
        status = self._agent.ask("status")
        adopted = float((status.get("preview") or {}).get("samples", 0.0))
        reasons = [
            f"{WAITS}: {found['why']}"
            for found in self._operator.waiting(FLEET)
            if found["device"] == BAD
        ]
        entries = self._operator.audit(FLEET)["entries"]
        left_out = [each for each in entries if each["action"] == "leave out"]
        reasons += [json.loads(each["detail"])["why"] for each in left_out]
        return adopted, next(iter(reasons), ""), str(self._told.get("told", ""))


def run(world: World, people: People, attack: Attack) -> Row:
    """Let four honest devices share, the bad one attack, and the first adopt."""
    learnt, fresh = np.array_split(people.rows(0, WALKING), 2)
    first = 2 * HIDDEN if attack.young else len(learnt)
    world.learn(learnt[:first])
    for device in (1, 2, 3):
        stats = Stats.of(people.projection, people.rows(device, WALKING))
        world.push(Contribution(f"pump-{device}", stats, 1))
        if attack.trust == "person":
            world.approve(f"pump-{device}")
    world.adopt()
    refused = ""
    for revision, bad in enumerate(attack.sums, 1):
        refused = world.push(Contribution(BAD, bad, revision)) or refused
        if attack.approved and revision == 1:
            world.approve(BAD)
        world.adopt()
    if attack.young:
        world.learn(learnt[first:])
        world.adopt()
    rates = [
        float((world.score(rows) > LIMIT).mean())
        for rows in (fresh, people.rows(0, SITTING), people.rows(0, LYING))
    ]
    adopted, reason, told = world.outcome()
    return {
        "false": round(rates[0], 4), "sitting": round(rates[1], 4), "lying": round(rates[2], 4),
        "adopted": adopted, "refused": refused or reason, "told": told,
    }  # fmt: skip


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
            made = InProcess if given.unchecked else Programs
            with made(people, kind, tried.trust) as world:
                about = {"learner": kind.__name__.lower(), "attack": name}
                rows.append(about | run(world, people, tried))
            print(rows[-1], flush=True)
    print(save(rows, "attack-unchecked.csv" if given.unchecked else "attack.csv"))


if __name__ == "__main__":
    main()
