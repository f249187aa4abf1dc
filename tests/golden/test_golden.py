"""What code of commit 80453b9 wrote is read as it was: bytes, sums, scores, states, databases.

`corpus` was written once, by `make.py` at that commit, and never changes. If a test fails, files
that are out there are read otherwise: change the code, not the corpus.
"""

import json
import pickle
import shutil
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load as foreign_load

from edgemerge import (
    Contribution,
    Detector,
    EdgemergeError,
    Ledger,
    Projection,
    Stats,
    decode,
    encode,
    load,
    save,
)

# what has no public name; all that moves with the tree stands here
from edgemerge.agent.config import read_config
from edgemerge.agent.supervisor import run
from edgemerge.cli import main
from edgemerge.core.detector import Model
from edgemerge.core.ledger import Selection
from edgemerge.exchange.folder import FolderExchange
from edgemerge.flower.config import NodeConfig
from edgemerge.flower.device import HistoryFile, contribute, decode_history, encode_history
from tests.cli.hubs import start
from tests.golden.replay import asked, learner, replay
from tests.golden.samples import machine, mixed
from tests.waiting import DEADLINE_S, until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("scale_of_all")]

CORPUS = Path(__file__).parent / "corpus"
SAME = 1e-9  # relative, of scores: the sums are equal, and solving them rounds
NEAR_0 = 1e-11  # of answers that are differences of numbers near 1
ROUNDED = 1e-5  # relative, of float32 after cancellation
LATER = 1_780_000_060.0  # a minute after the corpus was made, by its clock


@pytest.fixture
def scale_of_all(monkeypatch):
    """Score on the scale of all samples, others' too, as 80453b9 did.

    Since then own samples alone set the scale after a merge; `tests/laws/test_detector.py` says
    how. All else must be as it was.
    """
    monkeypatch.setattr(Model, "sets_scale", lambda _, count: 0.0 * count > 0.0)


def bytes_of(name: str) -> bytes:
    return (CORPUS / name).read_bytes()


def entries(name: str) -> Any:
    return json.loads(bytes_of(name))


def unpickled(name: str) -> Any:
    return pickle.loads(bytes_of(name))  # noqa: S301 - our own file, whose digest is checked


def recorded(name: str) -> Any:
    return np.load(CORPUS / name, allow_pickle=False)


def must_be_close(found, expected, within=SAME):
    assert np.shape(found) == np.shape(expected)
    np.testing.assert_allclose(found, expected, rtol=within, atol=0.0)


def by_file(entry):
    return entry["file"]


def edgemerge(*words: object) -> str:
    """Run a command; give what it printed."""
    done = CliRunner().invoke(main, list(map(str, words)))
    assert done.exit_code == 0, done.output
    return done.stdout


def secret(path: Path, words: str) -> Path:
    """Write a token that only its owner may read, or commands warn."""
    path.touch(mode=0o600)
    path.write_text(words, encoding="utf-8")
    return path


def facts(value) -> dict[str, Any]:
    """Say what was read: the digests of sums, and where they come from."""
    if not hasattr(value, "parts"):
        stats = getattr(value, "stats", value)
        words = ("device", "pattern", "incarnation", "revision")
        origin = {word: getattr(value, word) for word in words if hasattr(value, word)}
        return {"digest": stats.digest, "count": stats.count} | origin
    sums = [{"digest": p.stats.digest, "origins": list(map(list, p.origins))} for p in value.parts]
    return {"parts": sums, "digest": value.total.digest, "count": value.total.count}


def fate(thing) -> dict[str, Any]:
    """Say what a learner counts, and what became of the patterns of a bank."""
    if isinstance(thing, Detector):
        return {"rejected": thing.rejected, "count": thing.count}
    events = [[event.kind, event.pattern, event.at, event.other] for event in thing.events]
    counts = {name: [thing[name].own.count, thing[name].others.count] for name in thing}
    return {"rejected": thing.rejected, "events": events, "patterns": counts}


def test_the_corpus_is_as_it_was_written():
    sums = entries("sums.json")
    there = {path.relative_to(CORPUS).as_posix() for path in CORPUS.rglob("*") if path.is_file()}
    assert there == {*sums, "sums.json"}
    assert {name: sha256(bytes_of(name)).hexdigest() for name in sums} == sums


# --- bytes and sums -------------------------------------------------------------------------


@pytest.mark.parametrize("entry", entries("projections.json"), ids=by_file)
def test_a_projection_is_the_same_agreement(entry):
    projection, data = Projection(**entry["settings"]), bytes_of(entry["file"])
    number = int(Path(entry["file"]).stem)
    H = projection.hidden(machine(0.3, 20, number, inputs=projection.n_inputs))
    assert projection.fingerprint == entry["fingerprint"]
    assert sha256(np.asarray(H, "<f8").tobytes()).hexdigest() == entry["hidden"]
    assert decode(data) == projection
    assert encode(projection) == encode(decode(data)) == data


@pytest.mark.parametrize("entry", entries("wire.json"), ids=by_file)
def test_bytes_are_read_and_written_as_before(entry):
    data = bytes_of(entry["file"])
    value, exact = decode(data), decode(bytes_of(entry["file"].replace(entry["form"], "exact")))
    assert facts(value) == {key: entry[key] for key in facts(value)}
    if entry["form"] == "root16":
        must_be_same_root(encode(exact, "root16"), data)
    else:  # what was rounded once is not rounded again
        assert encode(exact, entry["form"]) == encode(value, entry["form"]) == data


def must_be_same_root(found, expected):
    """Compare bits, but for E: what a difference leaves depends on the kernels of BLAS."""
    size = 8 + int.from_bytes(expected[:8], "little")
    assert found[:size] == expected[:size]
    arrays = foreign_load(found)
    for name, array in foreign_load(expected).items():
        if name.endswith("E"):
            np.testing.assert_allclose(arrays[name], array, rtol=ROUNDED)
        else:
            assert np.array_equal(arrays[name], array), name


@pytest.mark.parametrize(
    "entry", [each for each in entries("wire.json") if each["form"] != "root16"], ids=by_file
)
def test_sums_are_those_that_a_foreign_reader_finds(entry):
    value, arrays = decode(bytes_of(entry["file"])), foreign_load(bytes_of(entry["file"]))
    sums = [part.stats for part in value.parts] if "parts" in entry else [value]
    for i, each in enumerate(sums):
        stats, start_ = getattr(each, "stats", each), f"{i}." if "parts" in entry else ""
        upper = stats.U[np.tri(len(stats.U), dtype=np.bool_).T]
        for name, found in zip("UVCS", (upper, stats.V, stats.C, stats.S), strict=True):
            assert np.array_equal(found, arrays[start_ + name])


@pytest.mark.parametrize("name", ["plain", "ranged", "named", "bent", "fine"])
def test_samples_give_the_recorded_sums(name):
    whole = decode(bytes_of(f"wire/{name}-stats-exact.safetensors"))
    task = decode(bytes_of(f"wire/{name}-stats-task-exact.safetensors"))
    X = machine(0.3, 40, 1, inputs=whole.projection.n_inputs)
    assert Stats.of(whole.projection, X) == whole
    assert Stats.of(whole.projection, X, machine(-0.2, 40, 2, inputs=3)[:, :2]) == task


# --- scores and states ----------------------------------------------------------------------


@pytest.mark.parametrize("entry", entries("scores.json"), ids=by_file)
def test_learners_give_the_recorded_scores(entry):
    must_be_close(replay(learner(entry), entry["steps"]), recorded(entry["file"]), entry["within"])


def test_there_are_a_hundred_thousand_scores():
    assert sum(len(recorded(entry["file"])) for entry in entries("scores.json")) >= 100_000


@pytest.mark.parametrize("entry", entries("states.json"), ids=by_file)
def test_a_saved_learner_goes_on_as_before(entry, tmp_path):
    thing = load(CORPUS / entry["file"])
    save(thing, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == bytes_of(entry["file"])
    assert fate(thing) == {key: entry[key] for key in fate(thing)}
    must_be_close(replay(thing, entry["after"]), recorded(entry["scores"]), entry["within"])


@pytest.mark.parametrize("name", ["ledger", "ledger-new", "ledger-total"])
def test_a_saved_ledger_is_the_same_ledger(name, tmp_path):
    thing = load(CORPUS / f"states/{name}.safetensors")
    save(thing, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == bytes_of(f"states/{name}.safetensors")
    if name == "ledger":
        assert thing.total() == load(CORPUS / "states/ledger-total.safetensors")
        assert thing.devices == ["Pumpe Süd", "pump-1", "pump-2"]
        assert [note.revision for note in thing] == [7, 2, 5, 1]


def test_the_command_line_shows_every_file():
    for folder in ("states", "wire", "projections", "exchange-told"):
        for path in sorted((CORPUS / folder).glob("*.safetensors")):
            assert "fingerprint" in json.loads(edgemerge("show", path, "--json"))


# --- pickles --------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", entries("pickles.json"), ids=by_file)
def test_a_pickled_learner_goes_on_as_before(entry):
    assert fate(unpickled(entry["file"])) == {key: entry[key] for key in fate(learner(entry))}
    found = replay(unpickled(entry["file"]), entry["after"])
    must_be_close(found, recorded(entry["scores"]), entry["within"])


def test_pickled_values_are_equal_to_saved_ones():
    ledger = load(CORPUS / "states/ledger.safetensors", Ledger)
    (note,) = (note for note in ledger if note.device == "pump-2")
    found = unpickled("pickles/ledger.pickle")
    assert unpickled("pickles/contribution.pickle") == note
    assert unpickled("pickles/stats.pickle") == note.stats
    assert [*found] == [*ledger]
    assert found.total() == ledger.total()
    assert unpickled("pickles/projection.pickle") == ledger.projection
    named = decode(bytes_of("wire/named-stats-exact.safetensors")).projection
    assert unpickled("pickles/projection-named.pickle") == named
    assert unpickled("pickles/told.pickle") == decode(bytes_of("wire/plain-told-exact.safetensors"))
    must_be_close(unpickled("pickles/readout.pickle").B, note.stats.solve().B)


@pytest.mark.parametrize("entry", entries("thresholds.json"), ids=by_file)
def test_a_pickled_threshold_goes_on_as_before(entry):
    threshold = unpickled(entry["file"])
    assert [threshold.update(value) for value in entry["values"]] == entry["alarms"]
    assert threshold.ready == entry["ready"]
    must_be_close(threshold.limit, entry["limit"])


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.InconsistentVersionWarning")
@pytest.mark.parametrize("name", ["detector", "regressor", "classifier"])
def test_a_pickled_estimator_of_scikit_learn_goes_on_as_before(name, monkeypatch):
    # Which rows are too odd to be learnt was decided anew: decision 0029.
    monkeypatch.setattr("edgemerge.sklearn.OUTLIER_SCORE", 4.0)
    estimator = unpickled(f"pickles/sklearn-{name}.pickle")
    X, probe = machine(0.2, 300, 95, inputs=4)[:100], machine(0.2, 50, 96, inputs=4)
    targets = {"regressor": X[:, 0] * 2.0 - X[:, 1]}
    targets["classifier"] = np.where(X[:, 2] > 0.2, "wet", "dry")
    ask = estimator.predict if name == "regressor" else estimator.decision_function
    before, after = recorded(f"pickles/sklearn-{name}.npy")
    np.testing.assert_allclose(ask(probe), before, rtol=SAME, atol=NEAR_0)
    estimator.partial_fit(X, targets.get(name))
    np.testing.assert_allclose(ask(probe), after, rtol=SAME, atol=NEAR_0)


def test_a_pickled_detector_of_river_goes_on_as_before():
    detector, scores = unpickled("pickles/river.pickle"), []
    for row in machine(0.2, 60, 98):
        features = {"heat": row[0], "noise": row[1], "new": row[4]}
        scores.append(detector.score_one(features))
        detector.learn_one(features)
    must_be_close(scores, recorded("pickles/river.npy"))


@pytest.mark.parametrize("name", ["leaf", "alone", "added", "stats", "total"])
def test_a_task_that_dask_carries_gives_the_recorded_sums(name, monkeypatch):
    monkeypatch.chdir(CORPUS / "bulk")
    task, given, result = unpickled(f"pickles/dask-{name}.pickle")
    assert task(*given) == result


# --- what programs left behind --------------------------------------------------------------


def test_a_folder_of_contributions_tells_the_recorded_sums(tmp_path):
    folder = shutil.copytree(CORPUS / "exchange", tmp_path / "exchange")
    shared = load(CORPUS / "exchange-told/0.safetensors").projection
    there = FolderExchange(folder, shared)
    for i, words in enumerate(entries("exchange.json")):
        lists = {k: tuple(v) if isinstance(v, list) else v for k, v in words.items()}
        grouped, me = lists.pop("grouped", False), lists.pop("device", None)
        told = there.pull(Selection(receiver=me, **lists), grouped=grouped)
        assert encode(told) == bytes_of(f"exchange-told/{i}.safetensors")
    newest = load(folder / "pump-2,1,normal.safetensors", Contribution)
    assert not there.push(newest)
    with pytest.raises(EdgemergeError):
        there.push(replace(newest, revision=1))
    assert there.push(Contribution("pump-2", newest.stats, 3, "normal", 1))
    assert len(list(folder.iterdir())) == 4  # under the same name


class Listener:
    """Remembers the scores of an agent."""

    def __init__(self):
        self.scores = []

    def verdict(self, verdict):
        self.scores.append(verdict.score)

    def status(self, _status):
        pass

    def close(self):
        pass


@pytest.fixture
def workshop(tmp_path):
    """A copy of what agents left, with the samples that they had and those that came later."""
    folder = shutil.copytree(CORPUS / "agent", tmp_path / "agent")
    (folder / "away").mkdir()
    for device, entry in entries("agent.json").items():
        rows = mixed(*entry["first"], *entry["later"]).tolist()
        lines = "".join(",".join(map(repr, row)) + "\n" for row in rows)
        (folder / f"{device}.csv").write_text(lines, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    "device", ["pump-1", pytest.param("pump-2", marks=pytest.mark.slow), "pump-3", "pump-4"]
)
def test_an_agent_resumes_where_it_stopped(device, workshop):
    entry, heard = entries("agent.json")[device], Listener()
    spool = workshop / f"state-{device}" / "alarms-0.jsonl"
    waited = spool.read_text(encoding="utf-8") if spool.exists() else ""
    config = read_config(workshop / f"{device}.toml", environment={})
    assert run(config, stop=Event(), sinks=[heard], clock=lambda: LATER) == 0
    must_be_close(heard.scores, recorded(f"agent/{device}.npy"))
    for file, (digest, revision) in entry["pushed"].items():
        note = load(workshop / file)
        assert (note.stats.digest, note.revision) == (digest, revision)
    if waited:  # alarms that no broker has heard yet come first
        assert spool.read_text(encoding="utf-8").startswith(waited)


@pytest.mark.slow
def test_the_agent_s_own_command_resumes_and_is_shown(workshop):
    judged = {"pump-1": 400, "pump-2": 600, "pump-3": 197, "pump-4": 350}
    told_by = {"pump-1": [], "pump-2": ["pump-1"], "pump-3": [], "pump-4": ["pump-1", "pump-2"]}
    for device, count in judged.items():
        shown = json.loads(edgemerge("show", workshop / f"state-{device}", "--json"))
        assert (shown["judged"], shown["told_by"]) == (count, told_by[device])
    agent = start(workshop / "log", "agent", workshop / "pump-1.toml")
    assert agent.running.wait(DEADLINE_S) == 0, agent.log.read_text(encoding="utf-8")
    shown = json.loads(edgemerge("show", workshop / "state-pump-1", "--json"))
    assert shown["judged"] == 605


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """A server on a copy of the database, that is only asked."""
    yield from serving(tmp_path_factory.mktemp("hub"))


@pytest.fixture
def changing_hub(tmp_path):
    """A server on a copy of its own."""
    yield from serving(tmp_path)


def serving(folder: Path):
    shutil.copy(CORPUS / "server/hub.sqlite", folder)
    secret(folder / "admin", entries("server.json")["tokens"]["operator"])
    words = ("--database", folder / "hub.sqlite", "--port", 0, "--port-file", folder / "port")
    server = start(folder / "log", "serve", *words, "--operator-token-file", folder / "admin")
    try:
        until(lambda: (folder / "port").exists() or server.running.poll() is not None, "a port")
        assert server.running.poll() is None, server.log.read_text(encoding="utf-8")
        yield f"http://127.0.0.1:{(folder / 'port').read_text(encoding='utf-8').strip()}"
        assert server.stop() == 0
    finally:
        server.running.kill()
        server.running.wait()


def holds(found, expected) -> bool:
    """Say whether JSON still says what it said; it may say more, and errors in other words."""
    if isinstance(expected, dict):
        known = (key in found and holds(found[key], expected[key]) for key in expected)
        return all(known) or set(expected) == {"error"} <= set(found)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(holds, found, expected))
    if isinstance(expected, float):
        return bool(found == pytest.approx(expected, rel=SAME))
    return bool(found == expected)


@pytest.mark.slow
def test_a_server_answers_from_the_recorded_database(hub):
    told = entries("server.json")
    for entry in told["answers"]:
        about, token = f"{entry['who']} {entry['path']}", told["tokens"].get(entry["who"])
        found = asked(hub, entry["path"], token)
        assert found.status == entry["status"], about
        if "file" in entry:
            assert found.body == bytes_of(entry["file"]), about
        else:
            assert holds(json.loads(found.body), entry["json"]), about
        if found.tag:
            assert asked(hub, entry["path"], token, If_None_Match=found.tag).status == 304, about


@pytest.mark.slow
def test_a_server_still_has_all_that_it_offered(hub):
    now = json.loads(asked(hub, "/openapi.json").body)["paths"]
    for path, methods in entries("openapi.json")["paths"].items():
        for method, before in methods.items():
            after = now[path][method]
            assert set(before["responses"]) <= set(after["responses"]), f"{method} {path}"
            assert parameters(before) <= parameters(after), f"{method} {path}"
            assert required(after) <= required(before), f"{method} {path}"


def parameters(operation) -> set[tuple[str, str]]:
    return {(each["in"], each["name"]) for each in operation.get("parameters", [])}


def required(operation) -> set[str]:
    return {each["name"] for each in operation.get("parameters", []) if each["required"]}


@pytest.mark.slow
def test_the_recorded_audit_log_is_unbroken(hub, tmp_path):
    told = entries("server.json")
    token = secret(tmp_path / "token", told["tokens"]["operator"])
    where = ("--server", hub, "--token-file", token)
    (audit,) = (each["json"] for each in told["answers"] if "/audit?limit" in each["path"])
    last = audit["entries"][-1]
    found = json.loads(edgemerge("fleet", "audit", *where, "--known", last["hash"], "--json"))
    assert found["verified"] >= last["seq"]


@pytest.mark.slow
def test_a_recorded_session_still_opens_the_dashboard(hub):
    cookie = f"edgemerge-{hub.rpartition(':')[2]}={entries('server.json')['cookie']}"
    assert asked(hub, "/ui/fleets/pumps").status == 303
    for page, words in {"": "pump-1", "/devices/pump-1": "x3", "/merge": "pump-3"}.items():
        found = asked(hub, f"/ui/fleets/pumps{page}", Cookie=cookie)
        assert found.status == 200
        assert words in found.body.decode()


@pytest.mark.slow
def test_recorded_invitations_and_links_still_let_in(changing_hub, tmp_path):
    told = entries("server.json")
    invitation = secret(tmp_path / "invitation", told["invitation"])
    words = ("--invitation-file", invitation, "--token-file", tmp_path / "token")
    edgemerge("enrol", changing_hub, "pumps", "pump-6", *words)
    token = (tmp_path / "token").read_text(encoding="utf-8").strip()
    total = asked(changing_hub, "/fleets/pumps/total", told["tokens"]["operator"])
    assert asked(changing_hub, "/fleets/pumps/total", token).body == total.body
    form = urlencode({"link": told["link"].partition("=")[2]}).encode()
    kind = "application/x-www-form-urlencoded"
    sent = {"Origin": changing_hub, "Content_Type": kind, "Sec_Fetch_Site": "same-origin"}
    assert [asked(changing_hub, "/ui/sign-in", body=form, **sent).status for _ in "ab"] == [
        303,
        403,
    ]


# --- Flower ---------------------------------------------------------------------------------


@pytest.fixture
def nodes(tmp_path, monkeypatch):
    """A copy of what a run of Flower left, as the folder that it runs in."""
    monkeypatch.chdir(shutil.copytree(CORPUS / "flower", tmp_path / "flower"))
    return entries("flower.json")


@pytest.mark.parametrize("device", ["pump", "press", "crane", "fan"])
def test_a_node_of_flower_repeats_what_left_it(device, nodes):
    entry, shared = nodes["nodes"][device], Projection(**nodes["projection"])
    config = NodeConfig.of(entry["config"], {})
    fields = contribute(config, shared, None, HistoryFile(config.file), lambda: LATER + 60.0)
    left = fields.pop("contributions")
    assert fields == entry["fields"]
    before = sorted((CORPUS / "flower/left").glob(f"{device}-*.safetensors"))
    assert left == [path.read_bytes() for path in before]


def test_what_a_run_of_flower_left_is_the_same(nodes):
    ledger, total = load("ledger.safetensors"), load("out/total.safetensors")
    result = json.loads(Path("out/result.json").read_bytes())
    assert ledger.total() == total
    assert (total.digest, ledger.projection.fingerprint) == (result["digest"], result["projection"])
    probe = mixed((0.2, 40, 407), (0.7, 10, 408))
    for name in ("pump", "press"):
        must_be_close(load(f"{name}.safetensors").score(probe), recorded(f"flower/{name}.npy"))
    pump = load("pump.safetensors")
    assert pump.own + pump.others == total
    assert load("pump-told.safetensors").total == pump.others
    release = bytes_of("flower/in-run.release")
    assert encode_history(decode_history(release)) == release
    assert len(nodes["nodes"]) == 4
