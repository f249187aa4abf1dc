"""What masked sums cost: `make masked`.

A cohort of 100 devices with the sums of 561 inputs and 64 hidden values: the time of the processor
for one device and for the server, and the bytes of an upload against those of the bare sums. First
the protocol alone, in one process; then a real server in a process of its own, with devices that
enrol, exchange over loopback and keep their files. Every total is compared with the sum of the
deltas.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import process_time, sleep

import numpy as np

from benchmarks.load import SERVE, Child, child
from benchmarks.results import Row, save
from edgemerge import Contribution, Projection, Stats
from edgemerge.core.ledger import Selection
from edgemerge.exchange.client import ServerClient
from edgemerge.exchange.masked_fleet import MaskedExchange
from edgemerge.privacy.masking import (
    Cohort,
    DeviceKeys,
    Keeper,
    Survivors,
    make_request,
    make_upload,
    open_total,
    read_upload,
    words_length,
)

WORDS = 64 * 65 // 2 + 64 * 561 + 2 * 561 + 1
MISSING = (0.0, 0.1, 1 / 3)
COLLECT_S = 60.0  # more than all uploads of one round take


def run(size: int = 100, words: int = WORDS) -> list[Row]:
    """Run one epoch for each share of missing devices, with the same cohort."""
    keys = [DeviceKeys.draw() for _ in range(size)]
    members = [each.member(f"device-{i:04}") for i, each in enumerate(keys)]
    cohort = Cohort.of("fleet", members, words)
    deltas = np.random.default_rng(0).integers(0, 2**40, (size, words), np.uint64)
    keepers = [Keeper(cohort, each) for each in keys]
    return [_epoch(cohort, keys, keepers, deltas, k, share) for k, share in enumerate(MISSING, 1)]


def _epoch(
    cohort: Cohort,
    keys: list[DeviceKeys],
    keepers: list[Keeper],
    deltas: np.ndarray,
    epoch: int,
    missing: float,
) -> Row:
    size = len(keys)
    here = np.sort(np.random.default_rng(epoch).permutation(size)[int(size * missing) :]).tolist()
    device_s, sent = [], []
    for i in here:
        start = process_time()
        sent.append(make_upload(cohort, keys[i], epoch, deltas[i]))
        device_s.append(process_time() - start)
    start = process_time()
    uploads = {i: read_upload(cohort, epoch, data) for i, data in zip(here, sent, strict=True)}
    survivors = Survivors(epoch, {i: each.digest for i, each in uploads.items()})
    requests = {
        k: make_request(cohort, survivors, {i: each.boxes[c] for i, each in uploads.items()})
        for c, k in enumerate(cohort.keepers_of(epoch))
        if k in uploads
    }
    server_s = process_time() - start
    keeper_s, answers = [], []
    for k, request in requests.items():
        start = process_time()
        answers.append(keepers[k].answer(epoch, request))
        keeper_s.append(process_time() - start)
    start = process_time()
    opened = open_total(cohort, epoch, uploads, answers)
    server_s += process_time() - start
    exact = np.array_equal(opened.total, deltas[here].sum(0, dtype=np.uint64))
    return {
        "devices": size,
        "words": cohort.words,
        "neighbours": cohort.neighbours,
        "keepers": cohort.keepers,
        "threshold": cohort.threshold,
        "missing": round(missing, 3),
        "device_ms": round(1e3 * median(device_s), 1),
        "keeper_ms": round(1e3 * median(keeper_s), 1),
        "server_s": round(server_s, 3),
        "upload_ratio": round(len(sent[0]) / (8 * cohort.words), 3),
        "exact": exact,
    }


def run_with_server(size: int = 100, inputs: int = 561, hidden: int = 64) -> list[Row]:
    """Let a fleet exchange with a real server, once with all devices and once without a third."""
    shared = Projection(n_inputs=inputs, n_hidden=hidden, seed=7)
    with TemporaryDirectory() as name, child(SERVE, Path(name) / "server") as server:
        url = f"http://127.0.0.1:{server.port}"
        token = (server.folder / "db.operator-token").read_text(encoding="ascii").strip()
        with closing(ServerClient(url, token)) as operator:
            return _exchange(operator, server, url, Path(name), shared, size)


def _exchange(
    operator: ServerClient, server: Child, url: str, folder: Path, shared: Projection, size: int
) -> list[Row]:
    operator.create_fleet("masked", shared, reads="masked")
    devices = {}
    for i in range(size):
        name = f"device-{i:04}"
        invitation = operator.invite("masked", name)["token"]
        with closing(ServerClient(url, invitation)) as newcomer:
            token = newcomer.enrol("masked", name)["token"]
        devices[name] = MaskedExchange(
            url,
            "masked",
            token,
            device=name,
            path=folder / name,
            projection=shared,
            timeout_s=60.0,
        )
        devices[name].pull(Selection(receiver=name))
    rng = np.random.default_rng(0)
    sums = {name: Stats.of(shared, rng.normal(0.0, 0.3, (64, shared.n_inputs))) for name in devices}
    rows = []
    counted: dict[str, Stats] = {}
    for revision, missing in ((1, 0.0), (2, 1 / 3)):
        cohort = operator.form_cohorts("masked", least=size // 2, collect_s=COLLECT_S)[0]
        here = list(devices)[int(size * missing) :]
        spent, before = dict.fromkeys(here, 0.0), server.cpu_s()
        for name in here:
            note = Contribution(name, sums[name] * revision, revision)
            spent[name] += _timed(partial(devices[name].push, note))
            counted[name] = note.stats
        if missing:
            sleep(COLLECT_S)
        for name in here * 2:
            spent[name] += _timed(partial(devices[name].pull, Selection(receiver=name)))
        one = here[-1]
        others = devices[one].pull(Selection(receiver=one)).total
        expected = Stats.total(shared, (counted[name] for name in counted if name != one))
        rows.append(
            {
                "devices": size,
                "words": words_length(shared),
                "neighbours": size - 1,
                "keepers": cohort["keepers"],
                "threshold": cohort["threshold"],
                "missing": round(missing, 3),
                "device_ms": round(1e3 * median(spent.values()), 1),
                "keeper_ms": round(1e3 * max(spent.values()), 1),
                "server_s": round(server.cpu_s() - before, 3),
                "upload_ratio": "",
                "exact": others == expected,
            }
        )
    for device in devices.values():
        device.close()
    return rows


def _timed(act: Callable[[], object]) -> float:
    start = process_time()
    act()
    return process_time() - start


if __name__ == "__main__":
    rows = [{"where": "protocol alone", **row} for row in run()]
    rows += [{"where": "with a server", **row} for row in run_with_server()]
    for row in rows:
        print(row)
    save(rows, "masked.csv")
