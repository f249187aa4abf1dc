"""What a reader of shared sums can find out: a part of `make attack`.

Five attacks. "rows": solve the sums of one release for its rows. "membership": tell the samples of
a release from others of the same people (HAR), plain by their loss, or calibrated: whitened
residuals under the release against those under a readout of the attacker's own. "total": the same
for the total of several people. "cohort": the same for totals of many devices, by the samples for
each number of the total, and by a second attack that whitens all numbers instead of residuals; on
independent normal inputs, where each number tells the most, and on inputs of HAR. "difference": an
enrolled device of a server subtracts all pairs of totals that it got while other devices came,
changed and went, and looks for the release of one.

`python -m benchmarks.sharing` writes docs/results/sharing.csv and prints the tables of the page on
what sharing reveals. HAR is read from the folder that EDGEMERGE_DATA names.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares, minimize

from benchmarks.cosine import ATTACK_RIDGE
from benchmarks.machines import Motion, motion
from benchmarks.results import RESULTS, Row, save
from edgemerge import Contribution, Merged, Projection, Stats, decode, encode
from edgemerge.comparison.streams import auc, bootstrap_interval
from edgemerge.core.errors import DeniedError
from edgemerge.core.ledger import Selection
from edgemerge.privacy.gate import count_numbers, min_cohort, min_unsolvable
from edgemerge.server.auth import Caller
from edgemerge.server.contributions import decode_and_check, put
from edgemerge.server.db.migrations import connect
from edgemerge.server.fleets import Fleet
from edgemerge.server.service import Service

Array = NDArray[np.float64]
FILE = "sharing.csv"

RECOVERED = 0.01  # of half the range: a row is recovered when every input is as near as that
SOLVED = ((16, 3), (16, 4), (16, 8), (16, 16), (16, 32), (16, 64), (16, 561), (32, 3))  # N, n
SOLVED_GATES = (2, 4, 16)
SOLVED_SEEDS = 3
STARTS, MAX_EVALUATIONS, MAX_ITERATIONS = 3, 80, 300
MAX_DENSE = 400  # unknowns, up to which equations are solved with all derivatives

ATTACKED = (16, 64)  # hidden values
GATES = (2, 4, 8, 16, 32)
SEEDS = 5
OTHERS = 1000  # samples that are no members
PLAIN, CALIBRATED = "plain", "calibrated"
WHITENING_RIDGE = 1e-2  # of the mean variance of residuals

PEOPLE = (2, 3, 5, 10, 30)
TOTAL_HIDDEN, TOTAL_ROWS = 64, 128  # a release of 2N samples of each person

ALL_SUMS = "all sums"
RATIOS = (4, 16, 32, 48)  # samples of a total for each number in it
COHORT_SIZES = ((16, 4), (16, 16), (16, 32), (8, 8))  # hidden values and inputs
MOTION_SIZES = ((8, 4), (8, 8))  # of which HAR has enough rows
COHORT_OTHERS = 2000  # samples that are members, and as many that are not
MIN_OWN = 20_000  # samples of an attacker who knows the distribution
TELLING_VARIANCE = 1e-9  # of the largest: directions with less are not used

TRIES = 10
DEVICES = 6


def run() -> list[Row]:
    """Return all rows."""
    rows = [
        row(
            *("rows", f"{gate}N" + ", unknowns" * rule, n, N, count, seed),
            solve_rows(N, n, count, seed),
        )
        for N, n in SOLVED
        for gate, rule, count in solved_gates(N, n)
        for seed in range(SOLVED_SEEDS)
    ]
    rows += differences()
    data = motion()
    if data is not None:
        rows += [*memberships(data), *totals(data)]
    rows += cohorts("independent", COHORT_SIZES, normal_rows)
    if data is not None:
        rows += cohorts("HAR", MOTION_SIZES, partial(motion_rows, data))
    return rows


def row(
    attack: str, setting: str, inputs: int, hidden: int, samples: int, seed: int, value: float
) -> Row:
    """Return one row: a share of rows, a ROC-AUC, or a count."""
    return {
        "attack": attack,
        "setting": setting,
        "inputs": inputs,
        "hidden": hidden,
        "samples": samples,
        "seed": seed,
        "value": round(value, 4),
    }


def solved_gates(N: int, n: int) -> list[tuple[int, bool, int]]:
    """Return gates, whether there must be more unknowns than equations, and their samples."""
    least = min_unsolvable(Projection(n_inputs=n, n_hidden=N))
    return [
        (gate, rule, max(gate * N, least) if rule else gate * N)
        for gate in SOLVED_GATES
        for rule in (False, True)
    ]


@cache  # both rules of a gate often ask for the same
def solve_rows(N: int, n: int, count: int, seed: int) -> float:
    """Return the share of the rows of a release that its sums give back."""
    shared = Projection(n_inputs=n, n_hidden=N, seed=seed, low=-1.0, high=1.0)
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.0, 1.0, (count, n))
    return recovered(shared, Stats.of(shared, X), X, rng)


def recovered(shared: Projection, sums: Stats, X: Array, rng: np.random.Generator) -> float:
    """Return the share of rows that sums give back, the best of several random starts."""
    solve = _solve_dense if X.size <= MAX_DENSE else _solve_large
    best = min(
        (solve(shared, sums, rng.uniform(-1.0, 1.0, X.shape)) for _ in range(STARTS)),
        key=lambda found: found[0],
    )
    apart = np.abs(X[:, None] - best[1][None]).max(2).min(1)
    return float((apart <= RECOVERED).mean())


def _solve_dense(shared: Projection, sums: Stats, start: Array) -> tuple[float, Array]:
    """Solve by least squares with all derivatives; return what is left, and the rows."""
    k, n = start.shape
    A, b, upper, one = shared.A, shared.b, np.triu_indices(shared.n_hidden), np.eye(n)
    told = np.concatenate([sums.U[upper], sums.V.ravel(), sums.C, sums.S])

    def left(flat: Array) -> Array:
        X = flat.reshape(k, n)
        H = np.tanh(X @ A + b)
        found = [(H.T @ H)[upper], (H.T @ X).ravel(), X.sum(0), (X * X).sum(0)]
        return np.asarray(np.concatenate(found) - told)

    def derivatives(flat: Array) -> Array:
        X = flat.reshape(k, n)
        H = np.tanh(X @ A + b)
        D = (1.0 - H * H)[:, None, :] * A[None]
        U = D[..., :, None] * H[:, None, None, :]
        U = (U + U.swapaxes(2, 3))[:, :, upper[0], upper[1]]
        V = D[..., None] * X[:, None, None, :] + H[:, None, :, None] * one[None, :, None, :]
        C, S = np.broadcast_to(one, (k, n, n)), 2.0 * X[:, :, None] * one[None]
        return np.concatenate([U, V.reshape(k, n, -1), C, S], 2).reshape(k * n, -1).T

    method = "lm" if k * n <= len(told) else "trf"
    found = least_squares(left, start.ravel(), derivatives, method=method, max_nfev=MAX_EVALUATIONS)
    return float(found.cost), np.asarray(found.x).reshape(k, n)


def _solve_large(shared: Projection, sums: Stats, start: Array) -> tuple[float, Array]:
    """Go down the gradient; return what is left, and the rows."""
    A, b = shared.A, shared.b

    def cost(flat: Array) -> tuple[float, Array]:
        X = flat.reshape(start.shape)
        H = np.tanh(X @ A + b)
        U, V = H.T @ H - sums.U, H.T @ X - sums.V
        C, S = X.sum(0) - sums.C, (X * X).sum(0) - sums.S
        dH = 2.0 * H @ U + X @ V.T
        dX = H @ V + C + 2.0 * X * S + (dH * (1.0 - H * H)) @ A.T
        return 0.5 * float((U * U).sum() + (V * V).sum() + C @ C + S @ S), dX.ravel()

    options = {"maxiter": MAX_ITERATIONS}
    found = minimize(cost, start.ravel(), jac=True, method="L-BFGS-B", options=options)
    return float(found.fun), np.asarray(found.x).reshape(start.shape)


class Reader:
    """An attacker with samples of their own, to compare a release with."""

    def __init__(self, shared: Projection, own: Array) -> None:
        """Solve a readout from one half, and whiten the residuals of the other."""
        self._shared, self._own = shared, own
        half = len(own) // 2
        self._B = solved(Stats.of(shared, own[:half]))
        E = self._residuals(own[half:], self._B)
        C = E.T @ E / len(E)
        values, vectors = np.linalg.eigh(
            C + WHITENING_RIDGE * np.trace(C) / len(C) * np.eye(len(C))
        )
        self._W = vectors / np.sqrt(values)

    def plain(self, released: Stats, members: Array, others: Array) -> float:
        """Return the ROC-AUC by the loss under the release."""
        B = solved(released)
        loss = [(self._residuals(X, B) ** 2).mean(1) for X in (members, others)]
        return auc(*loss)

    def calibrated(self, released: Stats, members: Array, others: Array) -> float:
        """Return the ROC-AUC by whitened residuals, against those under the own readout."""
        B = solved(released)

        def ratio(X: Array) -> Array:
            mine, theirs = (
                ((self._residuals(X, readout) @ self._W) ** 2).mean(1) for readout in (self._B, B)
            )
            return np.asarray(theirs / mine)

        return auc(ratio(members), ratio(others))

    def all_sums(self, released: Stats, members: Array, others: Array) -> float:
        """Return the ROC-AUC by how far each sample's numbers go the way the release's went.

        This is the test of Homer and others (2008), on whitened numbers: the best linear one.
        """
        own = self._numbers(self._own)
        mean = own.mean(0)
        values, vectors = np.linalg.eigh(np.cov(own.T))
        kept = values > TELLING_VARIANCE * values[-1]
        W = vectors[:, kept] / np.sqrt(values[kept])
        upper = np.triu_indices(len(released.U))
        sums = [released.U[upper], released.V.ravel(), released.C, released.S]
        way = W @ (W.T @ (np.concatenate(sums) / released.count - mean))
        return auc(*(-((self._numbers(X) - mean) @ way) for X in (members, others)))

    def _numbers(self, X: Array) -> Array:
        """Return what each sample adds to the numbers of U, V, C and S."""
        H, T = self._shared.hidden(X), self._shared.to_rows(X)
        upper = np.triu_indices(H.shape[1])
        V = (H[:, :, None] * T[:, None, :]).reshape(len(X), -1)
        return np.concatenate([H[:, upper[0]] * H[:, upper[1]], V, T, T * T], 1)

    def _residuals(self, X: Array, B: Array) -> Array:
        return np.asarray(self._shared.to_rows(X) - self._shared.hidden(X) @ B)


def solved(stats: Stats) -> Array:
    """Return the readout of sums, with hardly any ridge."""
    N = stats.projection.n_hidden
    ridge = ATTACK_RIDGE * float(np.trace(stats.U)) / N
    return np.asarray(np.linalg.solve(stats.U + ridge * np.eye(N), stats.V))


def memberships(data: Motion) -> list[Row]:
    """Attack releases of one device."""
    rows = []
    for hidden in ATTACKED:
        for seed in range(SEEDS):
            X = np.random.default_rng(seed).permutation(data.rows)
            shared = Projection.of_data(X, n_hidden=hidden, seed=seed)
            largest = max(GATES) * hidden
            others, reader = X[largest : largest + OTHERS], Reader(shared, X[largest + OTHERS :])
            for gate in GATES:
                members = X[: gate * hidden]
                release = Stats.of(shared, members)
                for name, attack in ((PLAIN, reader.plain), (CALIBRATED, reader.calibrated)):
                    found = attack(release, members[:OTHERS], others)
                    about = X.shape[1], hidden, gate * hidden, seed
                    rows.append(row("membership", f"{gate}N, {name}", *about, found))
    return rows


def totals(data: Motion) -> list[Row]:
    """Attack totals of several people, each with a release of 2N samples."""
    rows = []
    for seed in range(SEEDS):
        rng = np.random.default_rng(seed)
        shared = Projection.of_data(data.rows, n_hidden=TOTAL_HIDDEN, seed=seed)
        people = rng.permutation(np.unique(data.person))
        cut = [rng.permutation(data.rows[data.person == person]) for person in people]
        reader = Reader(shared, np.concatenate([X[2 * TOTAL_ROWS :] for X in cut]))
        for count in PEOPLE:
            members = np.concatenate([X[:TOTAL_ROWS] for X in cut[:count]])
            others = np.concatenate([X[TOTAL_ROWS : 2 * TOTAL_ROWS] for X in cut[:count]])
            total = Stats.of(shared, members)
            for name, attack in ((PLAIN, reader.plain), (CALIBRATED, reader.calibrated)):
                found = attack(total, members, others)
                about = data.rows.shape[1], TOTAL_HIDDEN, len(members), seed
                rows.append(row("total", f"{count} people, {name}", *about, found))
    return rows


def normal_rows(count: int, inputs: int, rng: np.random.Generator) -> Array:
    """Return independent normal samples."""
    return rng.normal(0.0, 0.3, (count, inputs))


def motion_rows(data: Motion, count: int, inputs: int, rng: np.random.Generator) -> Array:
    """Return the first inputs of so many samples of HAR, or of all that there are."""
    return rng.permutation(data.rows)[:count, :inputs]


def cohorts(
    name: str,
    sizes: Sequence[tuple[int, int]],
    draw: Callable[[int, int, np.random.Generator], Array],
) -> list[Row]:
    """Attack totals by the samples that they have for each number."""
    rows = []
    for hidden, inputs in sizes:
        for seed in range(SEEDS):
            shared = Projection(n_inputs=inputs, n_hidden=hidden, seed=seed, low=-1.0, high=1.0)
            most = max(RATIOS) * count_numbers(shared)
            known = most + COHORT_OTHERS
            X = draw(known + max(most, MIN_OWN), inputs, np.random.default_rng(seed))
            others, reader = X[most:known], Reader(shared, X[known:])
            for ratio in RATIOS:
                members = X[: ratio * count_numbers(shared)]
                total = Stats.of(shared, members)
                for attack, act in ((CALIBRATED, reader.calibrated), (ALL_SUMS, reader.all_sums)):
                    found = act(total, members[:COHORT_OTHERS], others)
                    about = inputs, hidden, len(members), seed
                    rows.append(row("cohort", f"{name}, {ratio}, {attack}", *about, found))
    return rows


OPERATOR = Caller("operator")
FLEET = "pumps"


class Server:
    """A service on a database of its own, with a fleet of totals."""

    def __init__(self, folder: str, min_devices: int, seed: int) -> None:
        """Create the fleet."""
        self.shared = Projection(n_inputs=6, n_hidden=4, seed=seed)
        self._rng = np.random.default_rng(seed)
        self.service = Service(connect(f"sqlite:///{Path(folder) / 'fleet.db'}"))
        agreed = {"read_mode": "totals", "min_devices": min_devices, "growing_only": False}
        self.fleet = Fleet(FLEET, encode(self.shared), epoch=0, created=0.0, **agreed)  # type: ignore[arg-type]  # as they are
        self.service.create(self.fleet, OPERATOR)
        self._callers: dict[str, Caller] = {}
        self.sent: dict[str, list[Stats]] = {}

    def caller(self, device: str) -> Caller:
        """Return an enrolled device."""
        if device not in self._callers:
            token, _ = self.service.invite(FLEET, device, 60.0, OPERATOR)
            self._callers[device] = self.service.caller(self.service.enrol(token, FLEET, device)[0])
        return self._callers[device]

    def push(self, device: str) -> None:
        """Push a release with more samples than the last."""
        sent = self.sent.setdefault(device, [])
        new = Stats.of(self.shared, self._rng.normal(0.0, 0.1, (64, 6)))
        sent.append(sent[-1] + new if sent else new)
        note = Contribution(device, sent[-1], len(sent))
        received = decode_and_check(encode(note), self.fleet, note.key)
        caller = self.caller(device)
        self.service.writer.write(lambda tx: put(tx, self.fleet, received, caller, 0.0))

    def pull(
        self, device: str, *, grouped: bool = False, pattern: str | None = None
    ) -> list[Stats]:
        """Return the sums of an answer."""
        asked, caller = Selection(receiver=device, pattern=pattern), self.caller(device)
        answer = self.service.pull(FLEET, asked, caller, None, grouped=grouped)
        found = decode(answer.data or b"", Merged, projection=self.shared)
        return [part.stats for part in found.parts]


def poll(server: Server) -> list[Stats]:
    """Poll while another device changes."""
    for i in range(1, DEVICES):
        server.push(f"pump-{i}")
    before = server.pull("pump-0")
    server.push("pump-3")
    return before + server.pull("pump-0")


def poll_patterns(server: Server) -> list[Stats]:
    """Poll sums by pattern while another device changes."""
    for i in range(1, DEVICES):
        server.push(f"pump-{i}")
    before = server.pull("pump-0", grouped=True)
    server.push("pump-3")
    return before + server.pull("pump-0", grouped=True)


def poll_drop(server: Server) -> list[Stats]:
    """Poll while another device is dropped."""
    for i in range(1, DEVICES):
        server.push(f"pump-{i}")
    before = server.pull("pump-0")
    server.service.drop(FLEET, "pump-3", OPERATOR)
    return before + server.pull("pump-0")


def ask_pattern(server: Server) -> list[Stats]:
    """Ask for one pattern by its name, which one device has."""
    server.push("pump-3")
    try:
        return server.pull("pump-0", pattern="normal")
    except DeniedError:
        return []


def poll_joining(server: Server) -> list[Stats]:
    """Poll while devices join one by one."""
    found = []
    for i in range(1, DEVICES):
        server.push(f"pump-{i}")
        found += server.pull("pump-0")
    return found


DIFFERENCES: dict[str, Callable[[Server], list[Stats]]] = {
    "one device changes": poll,
    "one device changes, sums by pattern": poll_patterns,
    "one device is dropped": poll_drop,
    "one pattern is asked for by name": ask_pattern,
    "devices join one by one": poll_joining,
}
BEFORE, AFTER = 1, 3  # --min-devices


def differences() -> list[Row]:
    """Count the tries in which a difference of what a device got is of one other device."""
    rows = []
    for name, attack in DIFFERENCES.items():
        for least in (BEFORE, AFTER):
            for seed in range(TRIES):
                with TemporaryDirectory() as folder:
                    server = Server(folder, least, seed)
                    try:
                        found = isolates(attack(server), server)
                    finally:
                        server.service.close()
                about = f"{name}, --min-devices {least}", 6, 4, 64, seed
                rows.append(row("difference", *about, float(found)))
    return rows


def isolates(got: Sequence[Stats], server: Server) -> bool:
    """Return whether a sum, or a difference of two, is what one device sent, or what it added."""
    single = [stats for sent in server.sent.values() for stats in sent]
    single += [b - a for sent in server.sent.values() for a, b in combinations(sent, 2)]
    sums = [*got, *(a - b for a in got for b in got if a is not b)]
    return any(stats == one for stats in sums for one in single)


def values(rows: Sequence[Row], attack: str, setting: str, **about: int) -> list[float]:
    """Return the values of one cell, over its seeds."""
    return [
        each["value"]
        for each in rows
        if (each["attack"], each["setting"]) == (attack, setting)
        and all(each[name] == value for name, value in about.items())
    ]


def _mean(found: Sequence[float]) -> str:
    mean, low, high = bootstrap_interval(found)
    return f"{mean:.2f} ({low:.2f}–{high:.2f})"


def rows_table(rows: Sequence[Row]) -> str:
    """Return the share of recovered rows, in Markdown."""
    lines = [
        "| inputs | N | rule of the gate | samples | rows recovered |",
        "|---:|---:|---|---:|---:|",
    ]
    for N, n in SOLVED:
        for gate, rule, count in solved_gates(N, n):
            if rule and count == gate * N:
                continue  # the same as without it
            found = values(rows, "rows", f"{gate}N" + ", unknowns" * rule, hidden=N, inputs=n)
            words = f"{gate}N" + ", more unknowns than equations" * rule
            lines.append(f"| {n} | {N} | {words} | {count} | {100 * np.mean(found):.0f} % |")
    return "\n".join(lines) + "\n"


def membership_table(rows: Sequence[Row]) -> str:
    """Return the ROC-AUC of the membership attacks on one release, in Markdown."""
    columns = [(hidden, name) for hidden in ATTACKED for name in (PLAIN, CALIBRATED)]
    lines = [
        "| release of | " + " | ".join(f"N = {N}, {name}" for N, name in columns) + " |",
        "|---|" + "---:|" * len(columns),
    ]
    for gate in GATES:
        cells = (
            _mean(values(rows, "membership", f"{gate}N, {name}", hidden=N)) for N, name in columns
        )
        lines.append(f"| {gate}N samples | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def total_table(rows: Sequence[Row]) -> str:
    """Return the ROC-AUC of the membership attacks on totals, in Markdown."""
    lines = ["| total of | plain | calibrated |", "|---|---:|---:|"]
    for count in PEOPLE:
        cells = (
            _mean(values(rows, "total", f"{count} people, {name}")) for name in (PLAIN, CALIBRATED)
        )
        lines.append(f"| {count} people | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def difference_table(rows: Sequence[Row]) -> str:
    """Return in how many tries one device was isolated, in Markdown."""
    lines = [
        f"| while | `--min-devices {BEFORE}` | `--min-devices {AFTER}` |",
        "|---|---:|---:|",
    ]
    for name in DIFFERENCES:
        found = [
            values(rows, "difference", f"{name}, --min-devices {least}")
            for least in (BEFORE, AFTER)
        ]
        cells = (f"{sum(each):.0f} of {len(each)}" for each in found)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def cohort_table(rows: Sequence[Row]) -> str:
    """Return the ROC-AUC of the membership attacks by samples for each number, in Markdown."""
    columns = [f"{ratio} samples" for ratio in RATIOS]
    lines = [
        "| inputs | N | samples | attack | " + " | ".join(columns) + " | devices |",
        "|---:|---:|---|---|" + "---:|" * (len(columns) + 1),
    ]
    cells = [("independent", N, n) for N, n in COHORT_SIZES]
    cells += [("HAR", N, n) for N, n in MOTION_SIZES]
    for name, N, n in cells:
        devices = min_cohort(Projection(n_inputs=n, n_hidden=N))
        for attack in (CALIBRATED, ALL_SUMS):
            found = (
                _mean(values(rows, "cohort", f"{name}, {ratio}, {attack}", hidden=N, inputs=n))
                for ratio in RATIOS
            )
            lines.append(
                f"| {n} | {N} | {name} | {attack} | " + " | ".join(found) + f" | {devices} |"
            )
    return "\n".join(lines) + "\n"


TABLES = (rows_table, membership_table, total_table, difference_table, cohort_table)


def read() -> list[Row]:
    """Return the committed rows."""
    with (RESULTS / FILE).open(encoding="utf-8", newline="") as file:
        found: list[Row] = list(csv.DictReader(file))
    for each in found:
        each |= {name: int(each[name]) for name in ("inputs", "hidden", "samples", "seed")}
        each["value"] = float(each["value"])
    return found


def main() -> None:
    """Run, write and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sharing", description=__doc__)
    parser.parse_args()
    rows = run()
    if motion() is None:
        print("HAR is not there, so nothing is written: set EDGEMERGE_DATA to its folder")
    else:
        print(save(rows, FILE))
    for table in TABLES if motion() is not None else (rows_table, difference_table):
        print(table(rows))


if __name__ == "__main__":
    main()
