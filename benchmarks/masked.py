"""What masked sums cost: `python -m benchmarks.masked`.

A cohort of 100 devices with the sums of 561 inputs and 64 hidden values, in one process: the time
of the processor for one device and for the server, and the bytes of an upload against those of the
bare sums. Every total is compared with the sum of the deltas. Nothing travels over a network here.
"""

from __future__ import annotations

from statistics import median
from time import process_time

import numpy as np

from benchmarks.results import Row, save
from edgemerge.privacy.masking import (
    Cohort,
    DeviceKeys,
    Keeper,
    Survivors,
    make_request,
    make_upload,
    open_total,
    read_upload,
)

WORDS = 64 * 65 // 2 + 64 * 561 + 2 * 561 + 1
MISSING = (0.0, 0.1, 1 / 3)


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


if __name__ == "__main__":
    rows = run()
    for row in rows:
        print(row)
    save(rows, "masked.csv")
