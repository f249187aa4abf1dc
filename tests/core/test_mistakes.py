"""The mistakes that newcomers make, and the words that they get."""

import pickle
from functools import partial

import numpy as np
import pytest
from scipy.sparse import coo_array

from edgemerge import (
    Bank,
    Contribution,
    Detector,
    EdgemergeError,
    FolderExchange,
    HttpExchange,
    KindError,
    Learner,
    Ledger,
    MemoryExchange,
    Merged,
    Monitor,
    Projection,
    RejectedError,
    SampleError,
    Selection,
    SettingError,
    Stats,
    Threshold,
    admit,
    decode,
    elm,
    encode,
    explained_by,
    fitting,
    freshest,
    load,
    save,
)
from edgemerge.exchange.mqtt import MqttExchange
from edgemerge.exchange.peer import PeerExchange
from edgemerge.wire.state import to_bytes

SHARED = Projection(n_inputs=2, n_hidden=3)
NOTE = Contribution("A", Stats.of(SHARED, [[0.1, 0.2]]), 1)
FAULT = Contribution("A", NOTE.stats, 1, "bearing", kind="fault")
OTHER = Contribution("A", Stats.of(Projection(n_inputs=2, n_hidden=3, seed=1), [[0.1, 0.2]]), 1)
SEEN = Detector(OTHER.stats.projection).look([0.1, 0.2])
WIDE = Stats.of(Projection(n_inputs=2, n_hidden=5), np.eye(2))
BELOW = NOTE.stats - Stats.of(SHARED, [[0.1, 0.2], [0.3, 0.4]])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Detector(4), "found int, expected Projection"),
        (lambda: Bank(4), "found int, expected Projection"),
        (lambda: Detector(SHARED).adopt(None), "found NoneType, expected Merged, Stats or Contr"),
        (lambda: Detector(SHARED).adopt(Ledger(SHARED)), "give the total of a ledger"),
        (lambda: Detector(SHARED).adopt([FAULT]), "found fault, expected normal"),
        (lambda: Detector(SHARED).adopt([OTHER]), "does not fit"),
        (lambda: Detector(SHARED).adopt(BELOW), "-1 samples, expected 0 or more: subtract only"),
        (lambda: Detector.resume(BELOW), "-1 samples, expected 0 or more"),
        (lambda: Detector.resume(5), "found int, expected Stats"),
        (lambda: Bank(SHARED).adopt(5), "found int, expected Merged, Stats or Contribution"),
        (lambda: Bank(SHARED).adopt(None), "found NoneType, expected Merged, Stats or"),
        (lambda: Bank(SHARED).adopt(BELOW), "-1 samples, expected 0 or more"),
        (lambda: Bank(SHARED).adopt(Merged(OTHER.stats.projection)), "does not fit"),
        (lambda: Bank(SHARED).plan(Merged(OTHER.stats.projection)), "does not fit"),
        (lambda: Bank(SHARED).adopt(Stats.empty(OTHER.stats.projection)), "does not fit"),
        (lambda: Ledger(SHARED).put(Contribution("A", BELOW, 1)), "-1 samples, expected 0 or more"),
        (lambda: Contribution("A", 5, 1), "found int, expected Stats"),
        (lambda: Contribution("A", NOTE.stats, 1, kind="fault", first="x"), "first='x', expected"),
        (lambda: Ledger(SHARED, kind="nrmal"), "kind 'nrmal', expected one of"),
        (lambda: Ledger(SHARED, n_outputs=-1), "n_outputs=-1, expected 0 or more"),
        (lambda: Ledger(SHARED).total("A"), r"found str, expected Selection: name devices as in"),
        (lambda: Selection(largest="x"), "largest='x', expected a whole number"),
        (lambda: Selection(largest=0), "largest=0, expected at least 1, or None"),
        (lambda: Selection(devices=5), "give the names of devices in a list"),
        (lambda: Selection(without=[5]), "give the names of without in a list"),
        (lambda: Selection(rule=5), "rule=5, expected a function"),
        (lambda: freshest("x"), "k='x', expected a whole number"),
        (lambda: fitting("1", bytes_per_s=1.0, bytes_each=1), "deadline_s='1', expected a number"),
        (lambda: admit(NOTE, projection=SHARED, form="x"), "form 'x', expected one of"),
        (lambda: admit(NOTE, projection=SHARED, forgetting="x"), "forgetting='x', expected a num"),
        (
            lambda: admit(NOTE, projection=SHARED, forgetting=2.0),
            "forgetting=2.0, expected above",
        ),
        (lambda: admit(NOTE, projection=5), "found int, expected Projection"),
        (lambda: Stats.of(None, [[0.0, 0.0]]), "found NoneType, expected Projection"),
        (lambda: Stats.empty(SHARED, -1), "n_outputs=-1, expected 0 or more"),
        (lambda: NOTE.stats * "x", "weight='x', expected a number"),
        (lambda: NOTE.stats * 1e300, "expected below .*, up to which sums are exact"),
        (lambda: Stats.total(SHARED, [1]), "found int, expected Stats: give the stats"),
        (lambda: Detector(SHARED).without(5), "found int, expected Stats: give the sums"),
        (lambda: decode(encode(SHARED), projection=5), "found int, expected Projection: give one"),  # type: ignore[call-overload] # on purpose
        (lambda: PeerExchange(SHARED, token="t", listen="a:1"), "found str, expected tuple: give"),
        (lambda: PeerExchange(SHARED, token="t", listen=("a", 99999)), "port up to 65535"),
        (lambda: NOTE.stats.solve("x"), "ridge='x', expected 0 or more"),
        (lambda: NOTE.stats.solve(np.inf), "ridge=inf, expected 0 or more"),
        (lambda: NOTE.stats.mean_loss(5), "found int, expected Readout"),
        (lambda: NOTE.stats.mean_loss(WIDE.solve()), r"of shape \(5, 2\), expected \(3, 2\)"),
        (lambda: elm(SHARED, [[0.0, 0.0]], [1.0, 2.0]), "expected 1 rows of finite numbers"),
        (lambda: elm(SHARED, [[0.0, 0.0]], [np.nan]), "the target nan in column 0 of row 0"),
        (lambda: elm(None, [[0.0, 0.0]]), "found NoneType, expected Projection"),
        (lambda: explained_by(5), "found int, expected Stats or Profile"),
        (lambda: explained_by(NOTE.stats, factor="x"), "factor='x', expected a number"),
        (lambda: explained_by(NOTE.stats, factor=-1), "factor=-1, expected above 0"),
        (lambda: explained_by(NOTE.stats)([OTHER]), "does not fit"),
        (lambda: decode(to_bytes(Detector(SHARED))), r"found a saved detector.*load\(\) reads"),
        (lambda: decode(to_bytes(Bank(SHARED))), r"found a saved bank.*load\(\) reads saved files"),
        (lambda: decode(encode(SHARED), "Stats"), "kind='Stats', expected a class such as"),  # type: ignore[call-overload] # on purpose
        (lambda: decode(encode(SHARED), Learner), "expected a class such as Detector or Bank"),  # type: ignore[type-var,type-abstract] # on purpose
        (lambda: MemoryExchange(5), "found int, expected Projection"),
        (lambda: FolderExchange("x", None), "found NoneType, expected Projection"),
        (
            lambda: HttpExchange("http://h", "f", "t", projection=5),
            "found int, expected Projection",
        ),
        (lambda: HttpExchange("http://h", "f", "t"), "insecure=True in Python"),
        (lambda: MqttExchange("h", fleet="f", projection=5), "found int, expected Projection"),
        (
            lambda: MqttExchange("h", "x", fleet="f", projection=SHARED),
            "port='x', expected",
        ),
        (lambda: MqttExchange("h", 0, fleet="f", projection=SHARED), "port=0, expected 1 to 65535"),
        (lambda: PeerExchange(5, token="t"), "found int, expected Projection"),
        (lambda: PeerExchange(SHARED, token="t", listen=("a", "b")), "port='b', expected a whole"),
        (lambda: PeerExchange(SHARED, token="t", peers="x:1"), "found url 'x:1', expected http"),
        (lambda: Monitor(Detector(SHARED), votes=(1.5, 5)), "1 ≤ k ≤ n, two whole numbers"),
        (lambda: Monitor(Detector(SHARED), votes=("a", "b")), "1 ≤ k ≤ n, two whole numbers"),
        (lambda: Monitor(Detector(SHARED), false_alarms=[1]), "found list, expected str"),
        (
            lambda: Monitor(Detector(SHARED)).review("odd-1", "aprove"),
            "decision 'aprove', exp",
        ),
        (lambda: Threshold(limit="4"), "limit='4', expected a number"),
        (lambda: Ledger(SHARED).put(NOTE.stats), r"share\(\) makes one"),
        (lambda: Bank(SHARED).adopt([NOTE.stats]), "what peers share"),
        (lambda: admit(NOTE.stats, projection=SHARED), r"decode\(\) gives one"),
        (lambda: decode("text"), "found str, expected bytes"),  # type: ignore[call-overload] # on purpose
        (lambda: save("x", "y"), "also takes Detector, Bank, Ledger and Monitor"),
        (lambda: Monitor(Detector(SHARED), limit="4"), "found str, .* give the limit"),
        (lambda: Detector(SHARED).share(3, revision=1), "name the device"),
        (lambda: Detector(SHARED).share("A", revision=1.5), "revision=1.5, expected a whole"),
        (lambda: Projection(n_inputs="4"), "n_inputs='4', expected a whole number"),
        (lambda: Projection(n_inputs=4, n_hidden=8.5), "n_hidden=8.5, expected a whole number"),
        (lambda: Projection(n_inputs=2, low="x"), "low='x', expected a number, or one for each"),
        (lambda: Projection(n_inputs=2, low=None), "low=None, expected a number"),
        (lambda: Projection(n_inputs=2, high=[0, None]), "high=None, expected a number"),
        (lambda: Projection(n_inputs=2, width="x"), "width='x', expected a number"),
        (lambda: Projection(n_inputs=2, names=5), "names=5, expected a list of names"),
        (lambda: Projection(n_inputs=2, names="ab"), "names='ab', expected a list of names"),
        (lambda: Projection(n_inputs=1, names=["\ud800"]), "expected names that UTF-8 can hold"),
        (lambda: Projection.of_data([["a"]]), "found 'a' .* samples must be numbers: convert"),
        (lambda: Projection.of_data([[1.0]], margin=-0.6), "margin=-0.6, expected 0 or more"),
        (lambda: Projection.of_data([[1.0]], margin="x"), "margin='x', expected a number"),
        (lambda: Projection.of_data([]), "found samples of shape .* one at least"),
        (lambda: Projection.of_data(np.zeros((2, 2, 2))), r"found samples of shape \(2, 2, 2\)"),
        (lambda: Projection.of_data({"a": [1.0], "b": [np.nan]}), "nan at input 'b' of row 0"),
        (lambda: Projection.of_data([[1e308], [-1e308]]), "a range that floats can hold"),
        (lambda: Projection.of_data([[1.0]], low=0.0), "low=0.0, which the samples tell: leave"),
        (lambda: Projection.of_data([[1.0]], weights=[1, 1]), r"weights of shape \(2,\)"),
        (lambda: Projection.of_data([[1.0]], weights=[0]), "weights that are all 0"),
        (lambda: Projection.of_data([[1.0]], weights=[np.nan]), "the weight nan of row 0"),
        (lambda: Projection.of_data([[1.0]], weights=["x"]), "weights must be numbers"),
        (lambda: Detector(SHARED, ridge="x"), "ridge='x', expected 0 or more"),
        (lambda: Detector(SHARED, forgetting=None), "forgetting=None, expected 0.5 to 1"),
        (lambda: Bank(SHARED, forgetting="x"), "forgetting='x', expected 0.5 to 1"),
        (lambda: Bank(SHARED, reject_above="x"), "reject_above='x', expected above 1"),
        (lambda: Stats.of(SHARED, [[0.0, 0.0]], weights=["x"]), "weights must be numbers"),
        (lambda: Stats.of(SHARED, [[0.0, 0.0]], T=[np.nan]), "the target nan in column 0 of row 0"),
        (lambda: Stats.of(SHARED, [[0.0, 0.0]], T=["a"]), "targets must be numbers"),
        (lambda: Stats.of(SHARED, [[0.0, 1j]]), "must be 2 numbers"),
        (lambda: Threshold(votes=3), "votes=3, expected"),
        (lambda: Ledger(SHARED).total(devices=["B"]), r"no contribution of \['B'\]; known: \[\]"),
        (lambda: Bank(SHARED).rename("idle", "fast"), "no pattern 'idle'"),
        (lambda: Bank(SHARED).explain(SEEN), "does not fit"),
        (lambda: Bank(SHARED).explain_by_name(SEEN), "does not fit"),
        (lambda: Detector(SHARED).explain(SEEN), "does not fit"),
        (lambda: Detector(SHARED).explain_by_name(SEEN), "does not fit"),
        (lambda: Detector(SHARED).score(SEEN), "found Seen, but a sample must be 2 numbers"),  # type: ignore[call-overload] # on purpose
        (lambda: Detector(SHARED).explain_by_name([0.0, 0.0], most="x"), "most='x', expected a wh"),
        (lambda: Bank(SHARED).explain_by_name([0.0, 0.0], most=-1), "most=-1, expected 0 or more"),
    ],
)
def test_a_mistake_is_named_with_what_to_do(call, words):
    with pytest.raises(EdgemergeError, match=words):
        call()


def test_what_is_meant_well_works():
    ledger = Ledger(SHARED)
    ledger.put(NOTE)
    ledger.put(Contribution("AB", NOTE.stats, np.int64(2)))
    assert ledger.total(devices="A").count == 1
    assert sum([NOTE.stats, NOTE.stats]) == NOTE.stats + NOTE.stats
    assert Projection(n_inputs=np.int64(2), n_hidden=3) == SHARED
    assert Detector(SHARED).explain([0.0, 0.0]).tolist() == [1.0, 1.0]
    assert Threshold(limit=4.0).update(np.float64(5.0)) is True
    bank = Bank(SHARED)
    bank.learn(np.zeros((32, 2)))
    bank.rename("normal", "idle")
    assert list(bank) == ["idle"]
    bank.adopt(NOTE)
    with pytest.raises(EdgemergeError, match="expected a name that no pattern has"):
        bank.rename("idle", "idle")


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        (None, "found NoneType, but a sample must be 2 numbers: give an array"),
        ({1.0, 2.0}, "found set, but"),
        ("ab", "found str, but"),
        (coo_array(np.eye(2)), "found coo_array, but"),
        (["1", "x"], "found 'x' at input 1, but a sample must be 2 numbers: convert"),
        ([[1.0, 2.0], [1.0, None]], "found nan at input 1 of row 1"),
        ([[1.0, 2.0], [1.0]], "found rows of different lengths, but"),
        (np.zeros(2, complex), "found complex numbers, but"),
        (np.zeros(2, "M8[s]"), "found dates, but"),
        (np.zeros(2, "m8[s]"), "found durations, but"),
        (np.zeros(1, [("a", "f8"), ("b", "f8")]), "found a structured array, but"),
        (np.ma.array([1.0, 2.0], mask=[False, True]), "found masked values, but"),
        ([1.0, 10**400], "found 1000.* at input 1, but"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("make", [Detector, Bank])
def test_what_is_no_sample_is_named_with_what_to_do(make, sample, words):
    learner = make(SHARED)
    for learnt in (False, True):  # at first NumPy reads samples, then the kernel
        for use in (learner.score, learner.learn, learner.learn_and_score, learner.explain):
            with pytest.raises(SampleError, match=words):
                use(sample)
        if not learnt:
            learner.learn(np.zeros((40, 2)))
            learner.learn_and_score([0.1, 0.2])
            learner.score([0.1, 0.2])


def test_what_takes_one_sample_says_so_when_it_gets_rows():
    for learner in (Detector(SHARED), Bank(SHARED)):
        for use in (learner.look, learner.explain_by_name, partial(Monitor(learner).take, at=0.0)):
            for rows in (np.zeros((2, 2)), np.zeros((1, 2)), [0.0, 0.0, 0.0]):
                with pytest.raises(SampleError, match=r"expected one of shape \(2,\): give one"):
                    use(rows)


def test_a_detector_adopts_what_peers_share_as_a_bank_does():
    rows = np.random.default_rng(0).normal(0.0, 0.3, (60, 2))
    peers = [Detector(SHARED), Detector(SHARED)]
    peers[0].learn(rows[:40])
    peers[1].learn(rows[40:])
    shares = [peer.share(f"pump-{i}", revision=1)[0] for i, peer in enumerate(peers)]
    pump = Detector(SHARED)
    for given in (shares, iter(shares), [*shares, *shares]):
        pump.adopt(given)
        assert pump.others == Stats.of(SHARED, rows)
    pump.adopt(shares[0])
    assert pump.others == Stats.of(SHARED, rows[:40])
    pump.adopt([])
    assert not pump.has_adopted


def test_a_list_of_one_device_admits_no_part_of_its_name():
    note = Contribution("pump-3", NOTE.stats, 1)
    admit(note, projection=SHARED, devices="pump-3")
    with pytest.raises(RejectedError, match="not on the list of 1"):
        admit(note, projection=SHARED, devices="pump-33")


@pytest.mark.parametrize("make", [Detector, Bank])
def test_settings_that_have_taken_effect_cannot_be_set(make, tmp_path):
    learner = make(SHARED, ridge=0.5)
    for name in {"ridge", "forgetting", "max_patterns"} & set(learner.options):
        with pytest.raises(AttributeError):
            setattr(learner, name, 7)
    with pytest.raises(SettingError, match=r"reject_above=0\.5, expected above 1"):
        learner.reject_above = 0.5
    learner.reject_above = 2
    learner.learn(np.zeros((64, 2)))
    learner.learn(np.ones((32, 2)))
    assert learner.rejected > 0
    save(learner, tmp_path / "learner")
    assert load(tmp_path / "learner", make).options == learner.options
    assert pickle.loads(pickle.dumps(learner)).options == learner.options  # noqa: S301 - ours


@pytest.mark.parametrize(
    "make",
    [
        lambda _: MemoryExchange(SHARED),
        lambda folder: FolderExchange(folder, SHARED),
        lambda _: HttpExchange("http://127.0.0.1:9", "f", "t", projection=SHARED),
        lambda _: MqttExchange("127.0.0.1", 9, fleet="f", projection=SHARED),
        lambda _: PeerExchange(SHARED, token="t"),
    ],
    ids=["memory", "folder", "http", "mqtt", "peer"],
)
def test_only_contributions_are_pushed_and_only_selections_pulled(make, tmp_path):
    exchange = make(tmp_path)
    for given in (NOTE.stats, [NOTE], None):
        with pytest.raises(KindError, match=r"expected Contribution: share\(\) of a learner"):
            exchange.push(given)
    with pytest.raises(KindError, match="found str, expected Selection: give such as Selection"):
        exchange.pull("pump-3")
    getattr(exchange, "close", bool)()
