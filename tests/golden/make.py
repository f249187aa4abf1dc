# mypy: ignore-errors
"""Makes the golden corpus. It ran at commit 80453b9 and runs at no other: it is kept as a record.

    PYTHONPATH=src:. python -m tests.golden.make             # all but Flower's files
    PYTHONPATH=src:. python -m tests.golden.make flower      # then this, with Flower installed

The corpus says what code of that commit wrote, so it is never made again with later code: a test
that fails means that old files are read otherwise, and the code is what has to change.
"""

import asyncio
import json
import os
import pickle
import shutil
import sys
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread

import numpy as np

from edgemerge import (
    Bank,
    Contribution,
    Detector,
    Ledger,
    Projection,
    Stats,
    Threshold,
    decode,
    encode,
    load,
    save,
)
from edgemerge.core.told import Part, Told
from edgemerge.exchange.folder import FolderExchange
from edgemerge.exchange.protocol import Wish
from tests.golden.replay import asked, learner, replay
from tests.golden.samples import machine, mixed, uniform

CORPUS = Path(__file__).parent / "corpus"
FORMS = ("exact", "float32", "root16")
NOW = 1_780_000_000.0  # of most that happens
LATE = 4_102_444_800.0  # of sessions and invitations that have not expired when they are read

PLAIN = {"n_inputs": 6, "n_hidden": 16, "seed": 7}
RANGED = {"n_inputs": 4, "n_hidden": 12, "seed": 2**64 - 1, "activation": "sigmoid"}
RANGED |= {"low": [-1.0, -2.0, -0.5, 0.0], "high": [1.0, 2.0, 1.5, 1.25]}
NAMED = {"n_inputs": 3, "n_hidden": 4, "seed": 3, "activation": "identity", "grid_bits": 10}
NAMED |= {"names": ["heat", "Lärm in dB", "flow/3"]}
BENT = {"n_inputs": 5, "n_hidden": 9, "activation": "relu", "width": 0.75, "grid_bits": 8}
FINE = {"n_inputs": 2, "n_hidden": 7, "seed": 11, "low": -3.0, "high": 3.0, "grid_bits": 16}


def written(name, data):
    """Write one file of the corpus."""
    path = CORPUS / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def told(name, thing):
    """Write plain JSON."""
    written(name, (json.dumps(thing, indent=1, ensure_ascii=False) + "\n").encode())


def kept(name, numbers):
    """Write numbers with all their bits."""
    (CORPUS / name).parent.mkdir(parents=True, exist_ok=True)
    np.save(CORPUS / name, np.asarray(numbers, dtype="<f8"), allow_pickle=False)


# --- values on the wire ---------------------------------------------------------------------


def projections():
    """Write settings, fingerprints, what samples become, and the bytes."""
    found = []
    widths = [{}, {"width": 0.1}, {"width": 1.0}, {"width": 3.7}]
    bits = [{"grid_bits": 4}, {"grid_bits": 9}, {"grid_bits": 12}, {"grid_bits": 16}]
    ranges = [{}, {"low": 0.0, "high": 150.0}, {"low": [-1.0, 0.0, 2.5], "high": [1.0, 1.0, 9.0]}]
    names = [{}, {"names": ["a", "b", "c"]}, {"names": ["c", "b", "Temperatur °C"]}]
    settings = [
        {"n_inputs": 3, "n_hidden": 5, "seed": 100 * i + j, "activation": activation}
        | widths[(i + j) % 4]
        | bits[j]
        | ranges[(i + j) % 3]
        | names[j % 3]
        for i, activation in enumerate(("identity", "sigmoid", "tanh", "relu"))
        for j in range(4)
    ]
    settings += [PLAIN, RANGED, NAMED, BENT, FINE, {"n_inputs": 1, "n_hidden": 1}]
    settings += [{"n_inputs": 200, "n_hidden": 64, "seed": 5, "activation": "tanh"}]
    for i, each in enumerate(settings):
        projection, file = Projection(**each), f"projections/{i:02}.safetensors"
        H = projection.hidden(machine(0.3, 20, i, inputs=projection.n_inputs))
        written(file, encode(projection))
        entry = {"file": file, "settings": each, "fingerprint": projection.fingerprint}
        found.append(entry | {"hidden": sha256(np.asarray(H, "<f8").tobytes()).hexdigest()})
    told("projections.json", found)


def wire():
    """Write every kind of value in every form."""
    found = []
    for name, settings in {
        "plain": PLAIN,
        "ranged": RANGED,
        "named": NAMED,
        "bent": BENT,
        "fine": FINE,
    }.items():
        shared, n = Projection(**settings), settings["n_inputs"]
        X, weights = machine(0.3, 40, 1, inputs=n), 0.5 + uniform(9, 40)
        T = machine(-0.2, 40, 2, inputs=3)[:, :2]
        some = Stats.of(shared, X)
        values = {
            "stats": some,
            "stats-empty": Stats.empty(shared),
            "stats-weighed": Stats.of(shared, X, weights=weights),
            "stats-task": Stats.of(shared, X, T),
            "contribution": Contribution("pump-3", some, 5, "idle", 1_780_000_000_000),
            "contribution-odd": Contribution("Pumpe 3 / Süd", some, 0, "#1"),
            "told": _told(shared, n),
            "told-nothing": Told(shared),
        }
        for kind, value in values.items():
            for form in FORMS:
                file = f"wire/{name}-{kind}-{form}.safetensors"
                data = encode(value, form)
                written(file, data)
                entry = {"file": file, "projection": settings, "kind": kind, "form": form}
                found.append(entry | _facts(decode(data)))
    told("wire.json", found)


def _told(shared, n):
    notes = [
        Contribution(f"pump-{i}", Stats.of(shared, machine(0.2, 25, 10 + i, inputs=n)), 3 + i)
        for i in range(3)
    ]
    other = Contribution("pump-0", Stats.of(shared, machine(-0.4, 30, 20, inputs=n)), 9, "fast", 2)
    return Told(shared, (Part.of(notes, shared), Part.of([other], shared)))


def _facts(value):
    """Say what was read: the digests of sums, and where they come from."""
    parts = getattr(value, "parts", None)
    if parts is None:
        stats = getattr(value, "stats", value)
        words = ("device", "pattern", "incarnation", "revision")
        origin = {word: getattr(value, word) for word in words if hasattr(value, word)}
        return {"digest": stats.digest, "count": stats.count} | origin
    sums = [{"digest": p.stats.digest, "origins": [list(o) for o in p.origins]} for p in parts]
    return {"parts": sums, "digest": value.total.digest, "count": value.total.count}


# --- scores, saved states, pickles ----------------------------------------------------------

HOME, AWAY, FAST = 0.2, -0.4, 0.7
SAME = 1e-9  # relative
COLD = 1e-5  # while samples are fewer than hidden values, other BLAS kernels give other digits


def within(kind, steps):
    """Say how well scores can be compared: well, unless they begin before there is enough."""
    return SAME if kind == "bank" or steps[0][0] in ("learn", "adopt") else COLD


WIDE = {"n_inputs": 6, "n_hidden": 32, "seed": 1}
MIX = [[HOME, 2000, 31], [AWAY, 1000, 32], [FAST, 1000, 33]]


def recipes():
    """Give learners of several settings, and what they learn and score."""
    some, many = [[HOME, 800, 1]], [[HOME, 3500, 2], [FAST, 800, 3]]
    batch = [["learn", some], ["score", many], ["explain", [[FAST, 20, 4]]]]
    for activation, hidden in {"identity": 5, "sigmoid": 32, "tanh": 32, "relu": 10}.items():
        shared = {**WIDE, "activation": activation, "n_hidden": hidden}
        yield f"detector-{activation}", "detector", shared, {}, batch
    yield "detector-ranged", "detector", RANGED, {}, batch
    yield "detector-named", "detector", {**NAMED, "activation": "tanh"}, {}, batch
    yield "detector-coarse", "detector", BENT, {}, batch
    yield "detector-fine", "detector", FINE, {}, batch
    yield "detector-ridge", "detector", WIDE, {"ridge": 2.0}, batch
    stream = [["learn", some], ["stream", [[HOME, 4500, 5], [AWAY, 500, 6]]]]
    yield "detector-stream", "detector", WIDE, {}, stream
    yield "detector-forgets", "detector", WIDE, {"forgetting": 0.998}, stream
    yield "detector-rejects", "detector", WIDE, {"reject_above": 10.0}, stream
    cold = [["stream", [[HOME, 400, 14]]], ["stream each", [[FAST, 100, 15]]]]
    yield "detector-cold", "detector", PLAIN, {}, cold
    single = [["learn", some], ["stream each", [[HOME, 1200, 7]]], ["learn each", [[HOME, 70, 8]]]]
    single += [["score each", [[HOME, 300, 9]]], ["stream each", [[AWAY, 500, 10]]]]
    yield "detector-singly", "detector", PLAIN, {"forgetting": 0.999, "reject_above": 20.0}, single
    merged = [["learn", some], ["score", many], ["adopt", [[AWAY, 600, 11]]], ["score", many]]
    merged += [["stream", [[AWAY, 500, 12]]], ["adopt", [[FAST, 600, 13]]], ["score", many]]
    yield "detector-told", "detector", WIDE, {}, merged
    modes = [["learn", MIX], ["score", [[HOME, 2000, 34], [AWAY, 2000, 35], [FAST, 1000, 36]]]]
    yield "bank", "bank", PLAIN, {}, modes
    yield "bank-few", "bank", PLAIN, {"max_patterns": 2}, modes
    yield "bank-all", "bank", PLAIN, {"reject_above": None}, modes
    yield "bank-forgets", "bank", PLAIN, {"forgetting": 0.999, "reject_above": 6.0}, modes
    yield "bank-ridge", "bank", {**RANGED, "n_hidden": 8}, {"ridge": 1.0}, modes
    yield "bank-stream", "bank", PLAIN, {}, [["stream", [*MIX, [HOME, 1000, 37]]]]
    taught = [["learn", [[HOME, 1000, 38]]], ["adopt", [[AWAY, 800, 39]]]]
    taught += [["score", many], ["learn", MIX], ["score", many]]
    yield "bank-told", "bank", PLAIN, {}, taught


def scores():
    """Write a hundred thousand scores."""
    found, total = [], 0
    for name, kind, projection, options, steps in recipes():
        recipe = {"kind": kind, "projection": projection, "options": options, "steps": steps}
        numbers = replay(learner(recipe), steps)
        kept(f"scores/{name}.npy", numbers)
        found.append({"file": f"scores/{name}.npy", "within": within(kind, steps), **recipe})
        total += len(numbers)
    told("scores.json", found)
    return total


def lives():
    """Give learners that are saved or pickled in the middle of their life, and how they go on."""
    after = [["score", [[HOME, 40, 51], [FAST, 10, 52]]], ["stream", [[HOME, 150, 53]]]]
    after += [["learn each", [[HOME, 9, 54]]], ["score each", [[AWAY, 10, 55]]]]
    after += [["adopt", [[AWAY, 200, 56]]], ["score", [[AWAY, 40, 57], [HOME, 40, 58]]]]
    some = ["learn", [[HOME, 300, 61]]]
    peers = ["adopt", [[HOME, 150, 62], [FAST, 150, 63]]]
    odd = ["stream", [[HOME, 200, 64], [FAST, 5, 65], [HOME, 33, 66]]]
    waits = ["learn each", [[HOME, 5, 67]]]
    forgets = {"forgetting": 0.995}
    for name, kind, projection, options, before in (
        ("detector-new", "detector", PLAIN, {}, []),
        ("detector", "detector", PLAIN, {}, [some]),
        ("detector-waits", "detector", PLAIN, {}, [some, ["score", [[HOME, 3, 68]]], waits]),
        ("detector-told", "detector", PLAIN, {"ridge": 1.0}, [some, peers, odd]),
        ("detector-only-told", "detector", PLAIN, {}, [peers]),
        ("detector-forgets", "detector", PLAIN, forgets, [some, odd, waits]),
        ("detector-rejects", "detector", PLAIN, {"reject_above": 10.0}, [some, odd]),
        ("detector-ranged", "detector", RANGED, {}, [some, peers]),
        ("detector-named", "detector", NAMED, {}, [some]),
        ("detector-coarse", "detector", BENT, {}, [some, odd]),
        ("bank-new", "bank", PLAIN, {}, []),
        ("bank-waits", "bank", PLAIN, {}, [waits]),
        ("bank", "bank", PLAIN, {}, [["learn", [[HOME, 400, 71], [FAST, 400, 72]]], waits]),
        ("bank-told", "bank", PLAIN, {}, [["learn", [[HOME, 400, 71], [FAST, 400, 72]]], peers]),
        ("bank-only-told", "bank", PLAIN, {}, [peers]),
        (
            *("bank-forgets", "bank", PLAIN, forgets | {"reject_above": 6.0}),
            [["learn", [[HOME, 500, 73], [AWAY, 500, 74], [FAST, 100, 75]]], waits],
        ),
        ("bank-few", "bank", BENT, {"max_patterns": 2, "ridge": 0.01}, [["learn", MIX]]),
        ("bank-all", "bank", RANGED, {"reject_above": None}, [["learn", MIX], waits]),
    ):
        recipe = {"kind": kind, "projection": projection, "options": options, "before": before}
        yield name, {**recipe, "after": after, "within": within(kind, [*before, *after])}


def states():
    """Write saved states, and what they score and learn later."""
    found = []
    for name, recipe in lives():
        file = f"states/{name}.safetensors"
        thing = learner(recipe)
        replay(thing, recipe["before"])
        (CORPUS / "states").mkdir(parents=True, exist_ok=True)
        save(thing, CORPUS / file)
        facts = _events(load(CORPUS / file))
        kept(f"states/{name}.npy", replay(load(CORPUS / file), recipe["after"]))
        found.append({"file": file, "scores": f"states/{name}.npy", **recipe} | facts)
    told("states.json", found)
    shared = Projection(**PLAIN)
    ledger = _ledger(shared)
    save(ledger, CORPUS / "states/ledger.safetensors")
    save(Ledger(shared), CORPUS / "states/ledger-new.safetensors")
    save(ledger.total(), CORPUS / "states/ledger-total.safetensors")


def _events(thing):
    """Say what became of the patterns of a bank."""
    if isinstance(thing, Detector):
        return {"rejected": thing.rejected, "count": thing.count}
    events = [[event.kind, event.pattern, event.at, event.other] for event in thing.events]
    counts = {name: [thing[name].own.count, thing[name].others.count] for name in thing}
    return {"rejected": thing.rejected, "events": events, "patterns": counts}


def _ledger(shared):
    ledger = Ledger(shared)
    for device, revision, pattern, seed in (
        *(("pump-1", 4, "normal", 81), ("pump-1", 2, "fast", 82), ("pump-2", 1, "normal", 83)),
        *(("Pumpe Süd", 7, "normal", 84), ("pump-1", 5, "normal", 85)),
    ):
        stats = Stats.of(shared, machine(HOME, 60, seed))
        ledger.put(Contribution(device, stats, revision, pattern))
    return ledger


def pickles():
    """Write pickles of everything that people pickle."""
    found = []
    for name, recipe in lives():
        thing = learner(recipe)
        replay(thing, recipe["before"])
        data = pickle.dumps(thing, protocol=4)
        written(f"pickles/{name}.pickle", data)
        kept(f"pickles/{name}.npy", replay(pickle.loads(data), recipe["after"]))  # noqa: S301 - made here
        entry = {"file": f"pickles/{name}.pickle", "scores": f"pickles/{name}.npy"}
        found.append({**entry, **recipe} | _events(pickle.loads(data)))  # noqa: S301 - made here
    told("pickles.json", found)
    shared = Projection(**PLAIN)
    some = Stats.of(shared, machine(HOME, 60, 83))
    values = {
        "projection": shared,
        "projection-named": Projection(**NAMED),
        "stats": some,
        "contribution": Contribution("pump-2", some, 1),
        "ledger": _ledger(shared),
        "readout": some.solve(),
        "told": _told(shared, 6),
    }
    for name, value in values.items():
        written(f"pickles/{name}.pickle", pickle.dumps(value, protocol=4))
    thresholds()
    estimators()
    river()
    dask()


def thresholds():
    """Pickle thresholds in the middle of their life, and say how they go on."""
    found = []
    values = (np.abs(machine(HOME, 400, 91)[:, 0]) * 5.0).tolist()
    for options in (
        {},
        {"limit": 2.0, "votes": [2, 3]},
        {"quantile": 0.95, "window": 50},
        {"sigmas": 2.0, "window": 40, "votes": [1, 2]},
    ):
        votes = {"votes": tuple(options["votes"])} if "votes" in options else {}
        threshold, file = Threshold(**options | votes), f"pickles/threshold-{len(found)}.pickle"
        for value in values[:120]:
            threshold.update(value)
        written(file, pickle.dumps(threshold, protocol=4))
        alarms = [threshold.update(value) for value in values[120:]]
        entry = {"file": file, "values": values[120:], "alarms": alarms}
        found.append(entry | {"limit": threshold.limit, "ready": threshold.ready})
    told("thresholds.json", found)


def estimators():
    """Pickle scikit-learn's estimators, fitted."""
    from edgemerge.sklearn import OSELMClassifier, OSELMDetector, OSELMRegressor

    X = machine(HOME, 300, 95, inputs=4)
    y, labels = X[:, 0] * 2.0 - X[:, 1], np.where(X[:, 2] > HOME, "wet", "dry")
    found = {
        "detector": (OSELMDetector(n_hidden=16, contamination=0.05).fit(X), "decision_function"),
        "regressor": (OSELMRegressor(n_hidden=16, ridge=0.01).fit(X, y), "predict"),
        "classifier": (OSELMClassifier(n_hidden=16).fit(X, labels), "decision_function"),
    }
    for name, (estimator, ask) in found.items():
        written(f"pickles/sklearn-{name}.pickle", pickle.dumps(estimator, protocol=4))
        probe = machine(HOME, 50, 96, inputs=4)
        before = getattr(estimator, ask)(probe)
        more = {"classifier": (X[:100], labels[:100]), "regressor": (X[:100], y[:100])}
        estimator.partial_fit(*more.get(name, (X[:100],)))
        kept(f"pickles/sklearn-{name}.npy", np.stack([before, getattr(estimator, ask)(probe)]))


def river():
    """Pickle River's detector in the middle of its stream."""
    from edgemerge.river import Detector as RiverDetector

    detector, rows = RiverDetector(n_hidden=8, seed=7, forgetting=0.999), machine(HOME, 200, 97)
    for i, row in enumerate(rows):
        features = {"heat": row[0], "noise": row[1], 3: row[2]}
        detector.learn_one(features | ({"late": row[3]} if i > 50 else {}))
    written("pickles/river.pickle", pickle.dumps(detector, protocol=4))
    scores = []
    for row in machine(HOME, 60, 98):
        features = {"heat": row[0], "noise": row[1], "new": row[4]}
        scores.append(detector.score_one(features))
        detector.learn_one(features)
    kept("pickles/river.npy", scores)


def dask():
    """Pickle what Dask carries between processes: a task with what it is given, and its result."""
    from edgemerge.bulk import chunks_of, part_of
    from edgemerge.bulk.reading import read
    from edgemerge.core.projection_text import settings_of
    from edgemerge.dask.bundling import bundled
    from edgemerge.dask.lazily import stats_of, total_of
    from edgemerge.dask.leaf import Leaf, added

    shared, rows = Projection(**PLAIN), machine(HOME, 120, 99)
    lines = [",".join(map(repr, row)) for row in rows.tolist()]
    lines[50] = "1.0,,2.0,3.0,4.0,5.0"
    written("bulk/history.csv", "\n".join([",".join("abcdef"), *lines, ""]).encode())
    np.save(CORPUS / "bulk/history.npy", rows)
    folder = CORPUS / "bulk"
    chunks = [
        replace(chunk, path=Path(chunk.path).name)
        for file in ("history.csv", "history.npy")
        for chunk in chunks_of(folder / file, chunk_bytes=4000)
    ]
    os.chdir(folder)
    leaf = Leaf(settings_of(shared), shared.fingerprint, "leave out", "leave out", read)
    (bundle,) = bundled(chunks)
    parts = [part_of(shared, chunk, bad_rows="leave out") for chunk in chunks]
    refused = type(parts[0]).without(shared, "history.csv, bytes 0 to 9", "found no number")
    tasks = {
        "leaf": (leaf, (bundle,), leaf(bundle)),
        "alone": (leaf, (next(bundle.apart(told=True)),), leaf(next(bundle.apart(told=True)))),
        "added": (added, (*parts, refused), added(*parts, refused)),
        "stats": (stats_of, (shared, rows[:30]), stats_of(shared, rows[:30])),
        "total": (total_of, (shared, [p.stats for p in parts]), added(*parts).stats),
    }
    for name, task in tasks.items():
        written(f"pickles/dask-{name}.pickle", pickle.dumps(task, protocol=5))


# --- what programs leave behind -------------------------------------------------------------


def exchange():
    """Write a folder that devices exchange through, and what is told of it."""
    shared, folder = Projection(**PLAIN), CORPUS / "exchange"
    folder.mkdir(parents=True)
    there = FolderExchange(folder, shared)
    for device, pattern, incarnation, place, seed in (
        ("pump-1", "normal", 0, HOME, 101),
        ("pump-1", "normal-2", 0, AWAY, 102),
        ("pump-2", "normal", 1, HOME, 103),
        ("Pumpe 3/Süd " * 5, "..", 0, AWAY, 104),
    ):
        stats = Stats.of(shared, machine(place, 80, seed))
        for revision in (1, 2):
            there.push(Contribution(device, stats * revision, revision, pattern, incarnation))
    wishes = [
        *({}, {"device": "pump-1"}, {"device": "pump-1", "incarnation": 3}, {"largest": 2}),
        *({"grouped": True}, {"devices": ["pump-2"]}, {"without": ["pump-2"], "grouped": True}),
        {"pattern": "normal"},
    ]
    for i, wish in enumerate(wishes):
        lists = {
            key: tuple(value) if isinstance(value, list) else value for key, value in wish.items()
        }
        written(f"exchange-told/{i}.safetensors", encode(there.pull(Wish(**lists))))
    told("exchange.json", wishes)


AGENT = """device = "{device}"
state = "state-{device}"

[projection]
n_inputs = {inputs}
n_hidden = 8
seed = 7

[source]
kind = "csv"
path = "{device}.csv"
header = false

[exchange]
kind = "folder"
path = "{exchange}"

[sync]
every_s = 0
at_end = true
max_shift = {shift}

[save]
every = 50
{more}"""


class Listener:
    """Remembers scores."""

    def __init__(self):
        self.scores = []

    def verdict(self, verdict):
        self.scores.append(verdict.score)

    def status(self, _status):
        pass

    def close(self):
        pass


def ran(folder, device):
    """Run an agent to the end of its file; give its scores."""
    from edgemerge.agent.config import read_config
    from edgemerge.agent.running import run

    heard = Listener()
    config = read_config(folder / f"{device}.toml", environment={})
    assert run(config, stop=Event(), sinks=[heard], clock=lambda: NOW) == 0
    return heard.scores


def agents():
    """Write the state folders of agents that exchanged through a folder, and how they go on."""
    folder, found = CORPUS / "agent", {}
    (folder / "exchange").mkdir(parents=True)
    detector = '[learner]\nkind = "detector"\nreject_above = 20.0\n\n[threshold]\nlimit = 5.0\n'
    bank = '[learner]\nkind = "bank"\n\n[threshold]\nquantile = 0.95\nwindow = 100\n\n'
    bank += '[[sinks]]\nkind = "mqtt"\nhost = "127.0.0.1"\nport = 1\n'  # where nobody is
    told_all = '[learner]\nkind = "detector"\n\n[threshold]\nsigmas = 4.0\nwindow = 60\n'
    window = '[features]\nkind = "window"\nlength = 8\nstep = 2\nstatistics = ["mean", "std"]\n\n'
    window += '[learner]\nkind = "detector"\nforgetting = 0.999\n'
    home, away = [[HOME, 400, 111]], [[HOME, 250, 112], [AWAY, 250, 113]]
    for device, exchange_, more, first, later in (
        ("pump-2", "exchange", bank, away, [[AWAY, 100, 114]]),
        ("pump-1", "exchange", detector, home, [[HOME, 200, 115], [FAST, 5, 116]]),
        ("pump-2", "exchange", bank, [*away, [AWAY, 100, 114]], [[HOME, 180, 117], [FAST, 5, 118]]),
        ("pump-3", "away", window, [[HOME, 400, 119]], [[HOME, 60, 120]]),
        ("pump-4", "exchange", told_all, [[AWAY, 200, 121]], [[AWAY, 150, 122]]),
        ("pump-4", "exchange", told_all, [[AWAY, 200, 121], [AWAY, 150, 122]], [[HOME, 150, 124]]),
    ):
        inputs = 12 if device == "pump-3" else 6
        shift = 1000.0 if device == "pump-4" else 2.0
        settings = {"inputs": inputs, "exchange": exchange_, "shift": shift, "more": "\n" + more}
        text = AGENT.format(device=device, **settings)
        written(f"agent/{device}.toml", text.encode())
        write_rows(folder / f"{device}.csv", mixed(*first))
        ran(folder, device)
        found[device] = {"first": first, "later": later}
    with TemporaryDirectory() as scratch:
        copy = Path(shutil.copytree(folder, Path(scratch) / "agent"))
        (copy / "away").mkdir()
        for device, entry in found.items():
            write_rows(copy / f"{device}.csv", mixed(*entry["first"], *entry["later"]))
            kept(f"agent/{device}.npy", ran(copy, device))
        for place in ("exchange", "away"):
            for file in sorted((copy / place).iterdir()):
                note = load(file)
                entry = found[note.device].setdefault("pushed", {})
                entry[f"{place}/{file.name}"] = [note.stats.digest, note.revision]
    for csv in folder.glob("pump-*.csv"):
        csv.unlink()
    told("agent.json", found)


def write_rows(path, rows):
    """Write samples as CSV, each number with all its digits."""
    path.write_text("".join(",".join(map(repr, row)) + "\n" for row in rows.tolist()))


def server():
    """Write the database of a server that had a busy day, and what it answers."""
    folder = CORPUS / "server"
    folder.mkdir(parents=True)
    secrets = _busy_day(folder / "hub.sqlite")
    for beside in ("lock", "reserve"):  # one is empty, the other holds 8 MB of room
        (folder / f"hub.sqlite.{beside}").unlink()
    assert [path.name for path in folder.iterdir()] == ["hub.sqlite"]
    with TemporaryDirectory() as scratch:
        copy = shutil.copy(folder / "hub.sqlite", Path(scratch) / "hub.sqlite")
        with Serving(copy) as there:
            answers = [_recorded(i, there.url, secrets, *each) for i, each in enumerate(QUESTIONS)]
            written("openapi.json", asked(there.url, "/openapi.json").body)
    told("server.json", {**secrets, "answers": answers})


QUESTIONS = [
    *(("operator", path) for path in ("/fleets", "/fleets/pumps", "/fleets/mixers")),
    *(
        ("operator", f"/fleets/{f}/{w}")
        for f in ("pumps", "mixers")
        for w in ("devices", "choices")
    ),
    *(("operator", f"/fleets/{f}/contributions") for f in ("pumps", "mixers")),
    *(("operator", f"/fleets/{f}/projection") for f in ("pumps", "mixers")),
    *(("operator", f"/fleets/{f}/{w}") for f in ("pumps", "mixers") for w in ("total", "patterns")),
    *(("operator", "/audit?limit=1000"), ("operator", "/audit?fleet=mixers&after=3&limit=5")),
    *(("operator", "/fleets/pumps/total?device=pump-1"), ("operator", "/fleets/pumps/likeness")),
    *(("operator", "/fleets/pumps/total?without=pump-1&pattern=normal"),),
    *(("operator", "/fleets/pumps/patterns?largest=2"), ("nobody", "/fleets/pumps/total")),
    *((d, f"/fleets/pumps/{w}") for d in ("pump-1", "pump-2") for w in ("total", "patterns")),
    *((d, f"/fleets/mixers/{w}") for d in ("mixer-1", "mixer-3") for w in ("total", "patterns")),
    *(("pump-1", "/fleets"), ("pump-1", "/fleets/pumps/contributions")),
    *(("pump-1", "/fleets/pumps/total?incarnation=1"), ("pump-1", "/fleets/mixers/total")),
    *(("pump-1", "/fleets/pumps/contributions/pump-1/0/normal"), ("pump-4", "/fleets/pumps")),
    *(("mixer-1", "/fleets/mixers/contributions/mixer-2/0/normal"),),
    *(("mixer-1", "/fleets/mixers/total?largest=2"), ("mixer-1", "/fleets/mixers/contributions")),
]


def _recorded(number, url, secrets, who, path):
    found = asked(url, path, secrets["tokens"].get(who))
    entry = {"who": who, "path": path, "status": found.status, "tag": found.tag}
    if found.kind == "application/json":
        return entry | {"json": json.loads(found.body)}
    written(f"server/answer-{number:02}.safetensors", found.body)
    return entry | {"file": f"server/answer-{number:02}.safetensors"}


class Serving:
    """A server on a database, in a thread, whose clock stands where it is told to."""

    def __init__(self, path):
        from edgemerge.server.service import Service
        from edgemerge.server.store.connecting import connect

        self.now = NOW
        self.service = Service(connect(f"sqlite:///{path}"), clock=lambda: self.now)

    def __enter__(self):
        import uvicorn

        from edgemerge.server.app import create
        from edgemerge.server.running import listen

        self._listening = listen("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        app = create(self.service)
        self._server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False))
        app.state.leaving = lambda: self._server.should_exit
        self._thread = Thread(target=lambda: asyncio.run(self._server.serve([self._listening])))
        self._thread.start()
        return self

    def __exit__(self, *_error):
        self._server.should_exit = True
        self._thread.join(30)
        self._listening.close()

    def enrol(self, fleet, device, operator):
        """Let a device in; give its token."""
        from edgemerge.exchange.hub import Hub

        invitation = operator.invite(fleet, device)["token"]
        return Hub(self.url, invitation).enrol(fleet, device)["token"]


def _busy_day(path):
    from edgemerge.exchange.http import HttpExchange
    from edgemerge.exchange.hub import Hub
    from edgemerge.server.tokens import new_token

    tokens = {"operator": new_token("operator")}
    shared = {"pumps": Projection(**{**PLAIN, "n_hidden": 8}), "mixers": Projection(**NAMED)}
    with Serving(path) as there:
        there.service.let_in(tokens["operator"], "admin")
        operator = Hub(there.url, tokens["operator"])
        operator.create_fleet("pumps", shared["pumps"], least=1)
        operator.create_fleet(
            "mixers", shared["mixers"], reads="contributions", least=2, growing=True
        )
        exchanges = {}
        for fleet, device in [("pumps", f"pump-{i}") for i in range(1, 6)] + [
            ("mixers", f"mixer-{i}") for i in range(1, 5)
        ]:
            there.now += 60.0
            tokens[device] = there.enrol(fleet, device, operator)
            exchanges[device] = HttpExchange(
                there.url, fleet, tokens[device], projection=shared[fleet]
            )
        _share(there, exchanges, shared)
        exchanges["pump-1"].push(
            Contribution(
                "pump-1", Stats.of(shared["pumps"], machine(HOME, 30, 300)), 1, "normal", 1
            )
        )
        _tell(there, tokens)
        operator.adopt("pumps", ["pump-1", "pump-3"], ["pump-2"])
        operator.exclude("pumps", "pump-3", 0, "normal")
        undone = operator.adopt("pumps", [], ["pump-1"])["number"]
        operator.undo("pumps", undone)
        operator.exclude("mixers", "mixer-4", 0, "normal")
        operator.revoke("pumps", "pump-4")
        operator.drop("pumps", "pump-5")
        exchanges["pump-1"].pull(Wish(device="pump-1", incarnation=1))
        there.now = LATE
        unused = operator.invite("pumps", "pump-6")["token"]
        cookie, _ = there.service.sessions.sign_in(tokens["operator"])
        link = operator.sign_in_link()["path"]
        for exchange_ in exchanges.values():
            exchange_.close()
        operator.close()
    return {"tokens": tokens, "invitation": unused, "cookie": cookie, "link": link}


def _share(there, exchanges, shared):
    for i, (device, exchange_) in enumerate(exchanges.items()):
        for revision in (1, 2, 3):
            there.now += 10.0
            own = shared[device.split("-")[0] + "s"]
            for j, (pattern, place) in enumerate((("normal", HOME), ("fast", FAST))):
                if pattern == "normal" or i % 3 == 0:
                    rows = machine(place, 40 * revision, 200 + 10 * i + j, own.n_inputs)
                    note = Contribution(device, Stats.of(own, rows), revision, pattern)
                    exchange_.push(note)


def _tell(there, tokens):
    from edgemerge.exchange.reports import Reports

    for i, device in enumerate(("pump-1", "pump-2", "mixer-1")):
        fleet = device.split("-")[0] + "s"
        reports = Reports(there.url, fleet, device, tokens[device])
        for _ in range(3):  # some minutes' worth, so that points move into a ring
            reports.send(_report(there.now, i))
            there.now += 240.0
        reports.close()


def _report(now, i):
    points = [
        {"at": now - 240 + k, "score": 1.0 + 0.01 * k, "threshold": 3.0, "alarm": k > 200}
        for k in range(240)
    ]
    alarm = {"at": now - 20, "score": 9.5, "threshold": 4.0, "alarm": True, "sample": 77 + i}
    why = [{"input": "x3", "factor": 12.0}]
    origin = {"device": "pump-3", "incarnation": 0, "pattern": "normal", "revision": 2}
    merge = {"at": now - 30, "digest": "ab" * 32, "samples": 80.0, "devices": 1, "shift": 1.02}
    patterns = [{"pattern": "normal", "own": 200.0, "told": 80.0, "used": 30}]
    counts = {"samples": 240 + i, "learnt": 200.0, "alarms": 1, "skipped": 2, "revision": 3}
    return {
        "sent": now,
        "status": counts | {"pattern": "normal", "patterns": patterns, "exchange": "ok"},
        "points": points,
        "alarms": [{**alarm, "pattern": "normal", "why": why}],
        "merge": {**merge, "origins": [origin]},
    }


def flower():
    """Write what a run of Flower leaves beside the states of its nodes; needs Flower."""
    from edgemerge.flower import client_app, device
    from edgemerge.flower.config import NodeConfig
    from edgemerge.flower.messages import RECORD
    from edgemerge.flower.remembering import Beside
    from edgemerge.flower.server import run
    from tests.flower.near import NearGrid

    folder, settings = CORPUS / "flower", {**PLAIN, "n_hidden": 8}
    folder.mkdir(parents=True)
    os.chdir(folder)
    shared = Projection(**settings)
    pump, press, rows = Detector(shared), Bank(shared), machine(HOME, 90, 403)
    pump.learn(machine(HOME, 100, 401))
    press.learn(mixed((HOME, 300, 402), (FAST, 300, 404)))
    save(pump, "pump.safetensors")
    save(press, "press.safetensors")
    save(Contribution("crane", Stats.of(shared, rows), 4), "crane.safetensors")
    np.save("fan.npy", machine(AWAY, 70, 405))
    configs = {
        11: {"device": "pump", "state": "pump.safetensors", "told": "pump-told.safetensors"},
        12: {"device": "press", "state": "press.safetensors"},
        13: {"device": "crane", "state": "crane.safetensors"},
        14: {"device": "fan", "data": "fan.npy"},
        15: {"partition-id": 0, "num-partitions": 1},
    }
    app = client_app(lambda _part, _parts: machine(HOME, 50, 406), clock=lambda: NOW)
    grid = NearGrid(dict.fromkeys(configs, app), configs)
    run_config = {"n-inputs": 6, "n-hidden": 8, "seed": 7, "rounds": 2, "timeout-s": 5.0}
    result = run(grid, run_config | {"ledger": "ledger.safetensors", "out": "out"})
    assert result.ended == "well", result.ended
    assert not result.failed, result.failed
    assert not result.not_adopted, result.not_adopted
    written("flower/in-run.release", bytes(grid.contexts[15].state[RECORD]["past"]))
    nodes = {}
    for config in (configs[node] for node in (11, 12, 13, 14)):
        at = NodeConfig.of(config, {})
        fields = device.contribute(at, shared, None, Beside(at.file), lambda: NOW + 60.0)
        for i, data in enumerate(fields.pop("contributions")):
            written(f"flower/left/{at.device}-{i}.safetensors", data)
        nodes[at.device] = {"config": config, "fields": fields}
    for name in ("pump", "press"):
        probe = mixed((HOME, 40, 407), (FAST, 10, 408))
        kept(f"flower/{name}.npy", load(f"{name}.safetensors").score(probe))
    told("flower.json", {"projection": settings, "nodes": nodes})


def sums():
    """Write the digest of each file: nothing in the corpus ever changes."""
    files = sorted(path for path in CORPUS.rglob("*") if path.is_file())
    names = {path.relative_to(CORPUS).as_posix(): path for path in files}
    told("sums.json", {name: sha256(path.read_bytes()).hexdigest() for name, path in names.items()})


def main():
    """Make all of it, or Flower's part, which is the last."""
    here = Path.cwd()
    if sys.argv[1:] == ["flower"]:
        flower()
        sums()
        return
    if CORPUS.exists():
        shutil.rmtree(CORPUS)
    for step in (projections, wire, scores, states, pickles, exchange, agents, server):
        print(step.__name__, step() or "", flush=True)  # noqa: T201 - a program
        os.chdir(here)


if __name__ == "__main__":
    main()
