"""What masked sums cost: `make masked`.

Cohorts of devices with the sums of 561 inputs and 64 hidden values: the time of the processor for
one device and for the server, the bytes that a device sends against those of its plain sums, and
how far the total is from the true one.

- "protocol": functions of `edgemerge.privacy.masking` in one process; for 1 000 devices in ten
  cohorts and in one sparse cohort, too.
- "server": a server in a process of its own, and devices that enrol, exchange over TLS on loopback
  and keep their files. The time of a device is all that its exchange does from its sums to the
  total: a push that is sent, and two pulls, or three if the second one came before the last answer
  of a keeper; that of the server is all that its process does meanwhile.
- "server, open fleet": the same devices push and pull twice in a fleet without masks.
- "SecAgg+": Flower's, on the same sums (`masked_flower.py`), if Flower is installed in
  `.venv-flower` (`make .venv-flower/ready`) or its Python is named by EDGEMERGE_FLOWER_PYTHON.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import monotonic, process_time, sleep
from typing import Any, TypeVar

import numpy as np

from benchmarks.load import SCHEME, SERVE, Child, child, operator
from benchmarks.results import Row, save
from edgemerge import Contribution, Projection, Stats, encode
from edgemerge.core.ledger import Selection
from edgemerge.exchange.client import ServerClient
from edgemerge.exchange.connection import Reply
from edgemerge.exchange.http import HttpExchange
from edgemerge.exchange.masked_fleet import MaskedExchange
from edgemerge.privacy.masking import (
    Cohort,
    DeviceKeys,
    Keeper,
    Survivors,
    Words,
    make_request,
    make_upload,
    open_total,
    read_upload,
    signed_by,
    words_length,
    words_of,
)

T = TypeVar("T")

SHARED = Projection(n_inputs=561, n_hidden=64, seed=7)
WORDS = words_length(SHARED)
SAMPLES = 1000  # of each device; the default for the largest weight in Flower
DEVICES, MANY, SIZE = 100, 1000, 100
MISSING = (0.0, 0.1, 1 / 3)
COLLECT_S = 75.0  # more than all uploads of one epoch take, also on a busy machine
# What is wanted of 100 devices on a quiet machine.
BARS = {
    "protocol": {"device_ms": 50.0, "server_s": 1.0, "upload_ratio": 1.35},
    "server": {"device_ms": 50.0, "server_s": 1.0, "upload_ratio": 1.35},
}
FLOWER = Path(__file__).parents[1] / ".venv-flower" / "bin" / "python"


def stats_of_device(number: int, n_samples: int = SAMPLES) -> Stats:
    """Return the sums of a device, the same in every part of the benchmark."""
    rng = np.random.default_rng([0, number])
    return Stats.of(SHARED, rng.normal(0.0, 0.3, (n_samples, SHARED.n_inputs)))


@cache
def plain_bytes() -> int:
    """Return the bytes of an upload to an open fleet."""
    return len(encode(Contribution("device-0000", stats_of_device(0), 1)))


@dataclass
class Times:
    """What one epoch took: seconds of devices, keepers and the server, and bytes of devices."""

    device_s: list[float] = field(default_factory=list)
    keeper_s: list[float] = field(default_factory=list)
    server_s: float = 0.0
    upload_bytes: int = 0
    keeper_bytes: int = 0
    error: float = 0.0

    def row(self, where: str, devices: int, cohort: Cohort, missing: float) -> Row:
        """Return it as a row of the results."""
        return {
            "where": where,
            "devices": devices,
            "neighbours": cohort.neighbours,
            "keepers": cohort.keepers,
            "threshold": cohort.threshold,
            "missing": round(missing, 3),
            "device_ms": round(1e3 * median(self.device_s), 1),
            "keeper_ms": round(1e3 * median(self.keeper_s), 1),
            "server_s": round(self.server_s, 3),
            "upload_bytes": self.upload_bytes,
            "upload_ratio": round(self.upload_bytes / plain_bytes(), 3),
            "keeper_bytes": self.keeper_bytes,
            "max_error": self.error,
        }


def run_protocol(where: str, devices: int, size: int, shares: tuple[float, ...]) -> list[Row]:
    """Run one epoch for each share of missing devices, cohort after cohort in this process."""
    rows = []
    for epoch, missing in enumerate(shares, 1):
        start, times = monotonic(), Times()
        for first in range(0, devices, size):
            keys = [DeviceKeys.draw() for _ in range(size)]
            members = [key.member(f"device-{first + i:04}") for i, key in enumerate(keys)]
            cohort = Cohort.of("fleet", members, WORDS)
            _run_epoch(cohort, keys, epoch, missing, times)
        more = {"seconds": round(monotonic() - start, 1), "memory_mb": _peak_memory_mb()}
        rows.append(times.row(where, devices, cohort, missing) | more)
    return rows


def _enough_keepers(cohort: Cohort, epoch: int, missing: float) -> tuple[int, list[int]]:
    """Return an epoch and who is there: with too few keepers, deltas would go with a later one."""
    size = len(cohort.members)
    for number in count(epoch):
        order = np.random.default_rng(number).permutation(size)
        here = np.sort(order[int(size * missing) :]).tolist()
        if len({*here} & {*cohort.keepers_of(number)}) >= cohort.threshold:
            return number, here
    raise AssertionError("never")


def _run_epoch(
    cohort: Cohort, keys: list[DeviceKeys], epoch: int, missing: float, times: Times
) -> None:
    epoch, here = _enough_keepers(cohort, epoch, missing)
    delta = words_of(stats_of_device(0))  # times a number, so that they differ
    true, sent = np.zeros(cohort.words, np.uint64), {}
    for i in here:
        words: Words = delta * np.uint64(i + 1)
        true += words
        start = process_time()
        sent[i] = make_upload(cohort, keys[i], epoch, words)
        times.device_s.append(process_time() - start)
    start = process_time()
    uploads = {i: read_upload(cohort, epoch, data) for i, data in sent.items()}
    survivors = Survivors(epoch, {i: each.digest for i, each in uploads.items()})
    times.server_s += process_time() - start
    keepers = [keeper for keeper in cohort.keepers_of(epoch) if keeper in uploads]
    signatures, signing_s = {}, []
    for keeper in keepers[: cohort.threshold]:
        start = process_time()
        signatures[keeper] = Keeper(cohort, keys[keeper]).sign(survivors)
        signing_s.append(process_time() - start)
    start = process_time()
    if signed_by(cohort, survivors, signatures) != {*signatures}:
        raise AssertionError("a signature does not fit its list")
    times.server_s += process_time() - start
    answers = []
    for keeper in keepers:
        start = process_time()
        column = cohort.keepers_of(epoch).index(keeper)
        boxes = {i: each.boxes[column] for i, each in uploads.items()}
        request = make_request(cohort, survivors, signatures, boxes)
        times.server_s += process_time() - start
        start = process_time()
        answers.append(Keeper(cohort, keys[keeper]).answer(epoch, request))
        times.keeper_s.append(process_time() - start + median(signing_s))
    start = process_time()
    opened = open_total(cohort, epoch, uploads, answers[: cohort.threshold])
    times.server_s += process_time() - start
    times.upload_bytes = len(sent[here[0]])
    times.keeper_bytes = len(request) + len(answers[0])
    off = (opened.total - true).view(np.int64)
    times.error = max(times.error, float(np.abs(off).max()) * SHARED.quantum)


def _peak_memory_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


class Device:
    """A device with its own connection and file, whose time and bytes are counted."""

    def __init__(self, server: Child, hub: ServerClient, folder: Path, number: int) -> None:
        """Enrol, and register its keys."""
        self.name, self.stats = f"device-{number:04}", stats_of_device(number)
        url = f"{SCHEME}://127.0.0.1:{server.port}"
        token = _enrolled(hub, url, "masked", self.name)
        whose = {"device": self.name, "path": folder / self.name, "projection": SHARED}
        self.exchange = MaskedExchange(url, "masked", token, **whose, timeout_s=60.0)
        self._ask, self.exchange._ask = self.exchange._ask, self._counted
        self.spent, self.bytes = 0.0, Counter[str]()
        self.pull()

    def _counted(self, method: str, *words: str | int, **rest: Any) -> Reply:
        reply = self._ask(method, *words, **rest)
        self.bytes[str(words[-1])] += len(rest.get("body") or b"") + len(reply.body)
        return reply

    def begin(self) -> None:
        """Count from now on."""
        self.spent = 0.0
        self.bytes.clear()

    def push(self, revision: int) -> None:
        """Share so many times its sums, and send them."""
        note = Contribution(self.name, self.stats * revision, revision)
        self._timed(partial(self.exchange.push, note))
        self._timed(self.exchange.take_part)

    def pull(self) -> Stats:
        """Do what the epoch waits for, and return the total of the others."""
        return self._timed(partial(self.exchange.pull, Selection(receiver=self.name))).total

    @property
    def waits(self) -> bool:
        """Whether it does not know yet whether its upload is in a total."""
        return bool(self.exchange._state.epoch)

    def _timed(self, act: Callable[[], T]) -> T:
        start = process_time()
        try:
            return act()
        finally:
            self.spent += process_time() - start


def _enrolled(hub: ServerClient, url: str, fleet: str, name: str) -> str:
    invitation = hub.invite(fleet, name)["token"]
    with closing(ServerClient(url, invitation)) as newcomer:
        return str(newcomer.enrol(fleet, name)["token"])


def run_server(devices: int = DEVICES) -> list[Row]:
    """Let a fleet exchange with a real server, with all devices and with some missing."""
    rows = []
    with (
        TemporaryDirectory() as name,
        child(SERVE, Path(name) / "server") as server,
        closing(operator(server)) as hub,
    ):
        hub.create_fleet("masked", SHARED, reads="masked")
        made = [Device(server, hub, Path(name), i) for i in range(devices)]
        counted = dict.fromkeys((each.name for each in made), 0)
        for revision, missing in enumerate(MISSING, 1):
            formed = hub.form_cohorts("masked", least=devices // 2, collect_s=COLLECT_S)[0]
            here = _with_enough_keepers(made, missing)
            about = {"where": "server", "devices": devices, "neighbours": devices - 1}
            about |= {name: formed[name] for name in ("keepers", "threshold")}
            row = about | _exchange(server, here, revision, missing)
            counted |= {each.name: revision for each in here}
            parts = [each.stats * counted[each.name] for each in made[:-1]]
            rows.append(row | {"max_error": _distance(made[-1].pull(), parts)})
        for each in made:
            each.exchange.close()
    return rows


def _with_enough_keepers(made: list[Device], missing: float) -> list[Device]:
    """Return who is there in the epoch that begins: with too few keepers, it would only wait."""
    made[0].pull()
    there = made[0].exchange
    cohort, epoch = there._join(there._status["cohort"]), there._status["epoch"]
    keepers = {cohort.members[number].name for number in cohort.keepers_of(epoch)}
    for first in range(len(made)):
        here = (made[first:] + made[:first])[int(len(made) * missing) :]
        if len(keepers & {device.name for device in here}) >= cohort.threshold:
            return here
    raise AssertionError("never")


def _exchange(server: Child, here: list[Device], revision: int, missing: float) -> Row:
    """See one epoch through; what an idle server does while it waits for others is left out."""
    start, before = monotonic(), server.cpu_s()
    for device in here:
        device.begin()
        device.push(revision)
    if missing:
        waits = server.cpu_s()
        sleep(max(0.0, COLLECT_S + 1.0 - (monotonic() - start)))  # from the first upload on
        before += server.cpu_s() - waits
    for device in here * 2:
        device.pull()
    for device in here:
        if device.waits:
            device.pull()
    asked = [device for device in here if device.bytes["answer"]]
    upload = int(median(device.bytes["upload"] for device in here))
    return {
        "missing": round(missing, 3),
        "device_ms": round(1e3 * median(each.spent for each in here), 1),
        "keeper_ms": round(1e3 * median(each.spent for each in asked), 1),
        "server_s": round(server.cpu_s() - before, 2),
        "upload_bytes": upload,
        "upload_ratio": round(upload / plain_bytes(), 3),
        "keeper_bytes": int(median(map(_keeper_bytes, asked))),
        "seconds": round(monotonic() - start, 1),
        "memory_mb": round(server.memory_mb()),
    }


def _keeper_bytes(device: Device) -> int:
    return sum(device.bytes[what] for what in ("signature", "request", "answer"))


def _distance(found: Stats, parts: list[Stats]) -> float:
    true = Stats.total(SHARED, parts)
    pairs = ((found.U, true.U), (found.V, true.V), (found.C, true.C), (found.S, true.S))
    return max(float(np.abs(a - b).max()) for a, b in pairs)


def run_open(devices: int = DEVICES) -> list[Row]:
    """Let the same devices exchange in a fleet without masks: what all but the masks costs."""
    with (
        TemporaryDirectory() as folder,
        child(SERVE, Path(folder) / "server") as server,
        closing(operator(server)) as hub,
    ):
        url = f"{SCHEME}://127.0.0.1:{server.port}"
        hub.create_fleet("open", SHARED)
        names = [f"device-{i:04}" for i in range(devices)]
        tokens = [_enrolled(hub, url, "open", name) for name in names]
        made = [
            HttpExchange(url, "open", token, projection=SHARED, timeout_s=60.0) for token in tokens
        ]
        notes = [Contribution(name, stats_of_device(i), 1) for i, name in enumerate(names)]
        before, spent = server.cpu_s(), dict.fromkeys(names, 0.0)
        for exchange, note in zip(made, notes, strict=True):
            start = process_time()
            exchange.push(note)
            spent[note.device] += process_time() - start
        for _ in range(2):
            for exchange, name in zip(made, names, strict=True):
                start = process_time()
                exchange.pull(Selection(receiver=name))
                spent[name] += process_time() - start
        row = {"where": "server, open fleet", "devices": devices, "missing": 0.0}
        row |= {"device_ms": round(1e3 * median(spent.values()), 1)}
        row |= {"server_s": round(server.cpu_s() - before, 2), "upload_bytes": plain_bytes()}
        for exchange in made:
            exchange.close()
    return [row | {"upload_ratio": 1.0}]


def run_flower(devices: int = DEVICES) -> list[Row]:
    """Let Flower's SecAgg+ add up the same sums, with the Python of its environment."""
    python = Path(os.environ.get("EDGEMERGE_FLOWER_PYTHON", FLOWER))
    if not python.exists():
        sys.stderr.write(f"SecAgg+ is left out: no {python}; `make .venv-flower/ready` makes it\n")
        return []
    upper = np.triu_indices(SHARED.n_hidden)
    with TemporaryDirectory() as folder:
        sums = [
            np.concatenate([each.U[upper], each.V.ravel(), each.C, each.S, [each.count]])
            for each in map(stats_of_device, range(devices))
        ]
        path = Path(folder) / "sums.npy"
        np.save(path, np.array(sums))
        script = Path(__file__).with_name("masked_flower.py")
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
        command = [str(python), str(script), str(path), str(SAMPLES)]
        env = os.environ | quiet | {"FLWR_HOME": folder}
        found = subprocess.run(command, stdout=subprocess.PIPE, env=env, check=True, timeout=3600)
    rows = map(json.loads, found.stdout.decode().splitlines())
    ratio = 1 / plain_bytes()
    return [row | {"upload_ratio": round(row["upload_bytes"] * ratio, 3)} for row in rows]


def missed(rows: list[Row]) -> list[str]:
    """Return what is above its bar."""
    return [
        f"{row['where']}, {row['missing']} missing: {name} is {row[name]}, wanted {bar} at most"
        for row in rows
        for name, bar in BARS.get(row["where"], {}).items()
        if row[name] > bar
    ]


def write(rows: list[Row]) -> None:
    """Save and print rows; what a part does not measure is empty."""
    columns = dict.fromkeys(name for row in rows for name in row)
    save([{name: row.get(name, "") for name in columns} for row in rows], "masked.csv")
    for row in rows:
        print(row)


def main() -> None:
    """Measure everything, say which bars are missed, and fail if a total is wrong."""
    rows = run_protocol("protocol", DEVICES, SIZE, MISSING)
    rows += run_protocol("protocol, cohorts of 100", MANY, SIZE, (1 / 3,))
    rows += run_protocol("protocol, one sparse cohort", MANY, MANY, (1 / 3,))
    rows += run_server()
    rows += run_open()
    rows += run_flower()
    write(rows)
    for line in missed(rows):
        sys.stderr.write(f"{line}\n")
    if any(row.get("max_error", 0.0) for row in rows if "SecAgg+" not in row["where"]):
        raise SystemExit("a masked total is not the sum of what was sent")


if __name__ == "__main__":
    main()
