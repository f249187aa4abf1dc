"""Masked fleets with noise over a real server: noise is drawn once, and is in every total."""

import json
import logging
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chi2

from edgemerge import Contribution, Detector, Projection, Stats
from edgemerge.core.errors import RejectedError, SettingError
from edgemerge.core.ledger import Selection
from edgemerge.exchange import masked_fleet
from edgemerge.exchange.masked_fleet import MaskedState
from edgemerge.files import write_atomically
from edgemerge.privacy.masking import make_upload
from edgemerge.privacy.noise import CLIPPED, ClippedSums, NoiseSettings
from edgemerge.server import fleets
from edgemerge.wire.codec import pack, unpack
from tests.exchange.worlds import DEVICES, Killed, MaskedWorld

pytestmark = pytest.mark.slow

SHARED = Projection(n_inputs=6, n_hidden=8, seed=7, low=-1.0, high=1.0)
AGREED = NoiseSettings(4.0, 1e-5)
NOISE = {"epsilon": 4.0, "delta": 1e-5}
LATER_S = 4000.0  # more than an epoch waits
CHANCE = 1e-6  # of a statistical test to fail by itself, if its seed were drawn


class Drawing:
    """Noise from a seed, and how often it was drawn; a scale of 0 draws none."""

    def __init__(self, seed, strength=1.0):
        self.rng, self.strength, self.calls = np.random.default_rng(seed), strength, 0

    def __call__(self, values, scale):
        self.calls += len(values) > 1 and scale > 0.0 and len(values) == len(upper())
        drawn = self.rng.normal(0.0, 1.0, len(values)) * scale * self.strength
        return (np.array(values) + np.rint(drawn)).astype(np.int64)


def upper():
    return np.triu_indices(SHARED.n_hidden)[0]  # the block of U, which is drawn once for a delta


@pytest.fixture
def drawing():
    return Drawing(0)


@pytest.fixture
def world(hub, tmp_path, drawing):
    made = MaskedWorld(hub, tmp_path, shared=SHARED, noise=NOISE, draw=drawing)
    yield made
    made.close()
    hub.service.masked._clock = hub.service.clock


@pytest.fixture
def exact(hub, tmp_path):
    """A world whose noise is nothing, so that totals can be compared with what was learnt."""
    made = MaskedWorld(hub, tmp_path, shared=SHARED, noise=NOISE, draw=Drawing(0, 0.0))
    yield made
    made.close()
    hub.service.masked._clock = hub.service.clock


def rows(device, revision=1, count=40, shared=SHARED):
    rng = np.random.default_rng([DEVICES.index(device), revision])
    mixed = rng.normal(0.0, 0.1, (count, 2)) @ np.ones((2, shared.n_inputs))
    return mixed + rng.normal(0.0, 0.05, (count, shared.n_inputs))


def clipped(device, revision=1, agreed=AGREED, shared=SHARED, **more):
    sums = ClippedSums(agreed, shared)
    for row in shared.to_rows(rows(device, revision, shared=shared, **more)):
        sums.push(row)
    return Contribution(device, sums.take(), revision, CLIPPED)


def state_of(world, device):
    return MaskedState.from_bytes((world.folder / f"{device}.masked").read_bytes())


def total(world):
    return world.place.service.masked.total(world.fleet).words


def words_without_noise(*contributions):
    """Return the words that these clipped sums add, and zero for the noise."""
    noise, length = AGREED.noise(SHARED), AGREED.length(SHARED)
    parts = [
        AGREED.words_of(noise.add(each.stats * 2.0**-8, lambda values, _scale: values))
        for each in contributions
    ]
    return sum((part[:-1] for part in parts), np.zeros(length - 1, np.uint64))


def later(hub):
    hub.service.masked._clock = lambda: hub.service.clock() + LATER_S


def test_what_is_learnt_is_in_the_total_once(exact):
    exact.form()
    for revision in (1, 2):
        for device in DEVICES:
            assert exact.share(clipped(device, revision))
            assert not exact.share(clipped(device, revision))
        exact.turn()
    everything = [clipped(device, revision) for device in DEVICES for revision in (1, 2)]
    assert np.array_equal(total(exact)[:-1], words_without_noise(*everything))


def killing(monkeypatch, rng, share):
    def maybe(_name):
        if rng.random() < share:
            raise Killed

    monkeypatch.setattr("edgemerge.exchange.masked_fleet.failpoint", maybe)


@pytest.mark.parametrize("seed", range(4))
def test_the_total_is_the_sum_of_the_stored_deltas_of_survivors(world, hub, monkeypatch, seed):
    rng = np.random.default_rng(seed)
    world.form(collect_s=50.0)
    killing(monkeypatch, rng, 0.1)
    stored, late_s = {}, 0.0
    for revision in range(1, 6):
        here = [device for device in DEVICES if rng.random() < 0.8]
        for device in here:
            world.survive(device, lambda it, r=revision: world.share(clipped(it.device, r)))
            keep_delta(stored, world, device)
        if rng.random() < 0.3:
            world.place.operator.form_cohorts(world.fleet, **world.options)  # ends the epoch
        late_s += LATER_S
        hub.service.masked._clock = lambda s=late_s: hub.service.clock() + s
        for device in rng.permutation(DEVICES * 3).tolist():
            world.survive(device, lambda it: it.pull(Selection(receiver=it.device)))
            keep_delta(stored, world, device)
    expected = np.zeros(AGREED.length(SHARED), np.uint64)
    for (device, epoch), delta in stored.items():
        found = hub.service.masked.result(world.fleet, epoch)
        names = [name for name, *_ in found["cohort"]["members"]]
        if found["state"] == "done" and str(names.index(device)) in found["survivors"]:
            expected += delta
    assert expected.any()
    assert np.array_equal(total(world), expected)
    assert world.draw.calls == len(stored)  # one for each upload, whatever became of it


def keep_delta(stored, world, device):
    """Remember the delta that a device has stored; it must never be another for an epoch."""
    state = state_of(world, device)
    if state.epoch:
        known = stored.setdefault((device, state.epoch), state.delta)
        assert np.array_equal(known, state.delta)


def test_killed_between_drawing_and_sending_it_sends_the_same_noise(world, monkeypatch, drawing):
    world.form()
    device = DEVICES[0]
    for other in DEVICES[1:]:
        world.share(clipped(other))
    killing(monkeypatch, np.random.default_rng(0), 1.0)
    calls = drawing.calls
    with pytest.raises(Killed):
        world.share(clipped(device))
    drawn = state_of(world, device)
    assert drawing.calls == calls + 1
    for _ in range(3):  # killed before each attempt to send it
        world.survive(device, lambda it: world.share(clipped(it.device)))
        assert state_of(world, device).upload == drawn.upload
    monkeypatch.undo()
    world.restarted(device)
    world.share(clipped(device))
    world.turn()
    assert drawing.calls == calls + 1
    (counted,) = state_of(world, device).counted.values()
    assert np.array_equal(counted, drawn.delta)


def test_what_could_not_be_stored_is_not_sent(world, monkeypatch):
    """A full disk: the noise that was drawn is forgotten, and only what is stored is ever sent."""
    world.form()
    one, device = world.exchange(DEVICES[0]), DEVICES[0]
    sent = []
    ask, write = one._ask, write_atomically

    def watched(method, *words, **rest):
        sent.extend([rest["body"]] if words[-1] == "upload" else [])
        return ask(method, *words, **rest)

    def full(data, path, **rest):
        if MaskedState.from_bytes(data).epoch:
            raise OSError(28, "No space left on device")
        write(data, path, **rest)

    monkeypatch.setattr(one, "_ask", watched)
    monkeypatch.setattr(masked_fleet, "write_atomically", full)
    one.push(clipped(device))
    for _ in range(3):
        with pytest.raises(OSError, match="No space left"):
            one.take_part()
    assert sent == []
    monkeypatch.setattr(masked_fleet, "write_atomically", write)
    one.take_part()
    assert sent == [state_of(world, device).upload]
    for other in DEVICES[1:]:
        world.share(clipped(other))
    world.turn()
    (counted,) = state_of(world, device).counted.values()
    assert counted[-1] == 2**19  # one share of the noise


def test_the_noise_that_others_put_into_a_total_is_the_promised_one(hub, tmp_path):
    """Three of five survive: without what one of them knows, the total has σ exactly."""
    shared = Projection(n_inputs=12, n_hidden=24, seed=7, low=-1.0, high=1.0)
    world = MaskedWorld(hub, tmp_path, shared=shared, noise=NOISE)  # drawn by opendp
    world.form()
    here = DEVICES[:3]
    for device in here:
        world.share(clipped(device, shared=shared))
    later(hub)
    world.turn(here)
    hub.service.masked._clock = hub.service.clock
    words = total(world)
    assert words.size
    known = state_of(world, here[0]).counted
    found = AGREED.read(shared, words - sum(known.values(), np.zeros_like(words)))
    noise = AGREED.noise(shared)
    parts = [clipped(device, shared=shared).stats * 2.0**-8 for device in here[1:]]
    away = found.sums - (parts[0] + parts[1])
    scores = np.concatenate(
        [
            away.U[np.triu_indices(24)] / noise.sigma.U,
            away.V.ravel() / noise.sigma.V,
            [away.S[0] / noise.sigma.S, away.count / noise.sigma.count],
        ]
    )
    squares = float((scores**2).sum())
    assert chi2.ppf(CHANCE, len(scores)) < squares < chi2.isf(CHANCE, len(scores))
    assert pytest.approx(noise.sigma.U**2, rel=1e-5) == found.variances.U
    world.close()


def test_what_keepers_left_out_goes_again_with_the_same_noise(world, hub, drawing):
    world.form()
    *here, away = DEVICES
    for device in here:
        world.share(clipped(device))
    later(hub)
    world.turn(here)  # the epoch is done without the last one
    hub.service.masked._clock = hub.service.clock
    stale = world.exchange(away)
    epoch = state_of(world, here[0]).through
    stale._add(clipped(away))
    stale._state.fresh = {CLIPPED}
    cohort = stale._join(stale._ask("GET", "status").json_object()["cohort"])
    stale._state.last = epoch - 1
    stale._upload(cohort, 1, epoch)  # too late
    left_out = state_of(world, away).delta
    calls = drawing.calls
    world.turn([away])
    assert np.array_equal(state_of(world, away).carried, left_out)
    assert (state_of(world, away).epoch, drawing.calls) == (0, calls)
    for device in DEVICES:
        world.share(clipped(device, 2))
    world.turn()
    counted = sum(state_of(world, away).counted.values())
    fresh = counted - left_out
    assert not state_of(world, away).carried.size
    assert drawing.calls == calls + len(DEVICES)
    assert fresh[-1] == left_out[-1]  # as much noise as any delta has


def test_what_was_in_an_epoch_that_failed_is_not_sent_again_and_it_says_so(exact, caplog):
    exact.form()
    one = DEVICES[0]
    with caplog.at_level(logging.WARNING):
        exact.share(clipped(one))
        exact.place.operator.form_cohorts(exact.fleet, **exact.options)
        exact.turn()
    assert "their budget is spent" in caplog.text
    assert exact.exchange(one).lost == 1
    for device in DEVICES:
        exact.share(clipped(device, 2))
    exact.turn()
    expected = words_without_noise(*(clipped(device, 2) for device in DEVICES))
    assert np.array_equal(total(exact)[:-1], expected)


def test_a_dropped_cohort_is_not_sent_again(exact):
    number = exact.form()[0]["cohort"]
    for device in DEVICES:
        exact.share(clipped(device))
    exact.turn()
    exact.place.operator.drop_cohort(exact.fleet, number)
    exact.form()
    for device in DEVICES:
        exact.share(clipped(device, 2))
    exact.turn()
    expected = words_without_noise(*(clipped(device, 2) for device in DEVICES))
    assert np.array_equal(total(exact)[:-1], expected)


def test_a_device_adopts_an_estimate_of_what_others_saw(world):
    world.form()
    for device in DEVICES:
        world.share(clipped(device, count=2000))
    world.turn()
    found = world.exchange(DEVICES[0]).pull(Selection(receiver=DEVICES[0]))
    (part,) = found.parts
    assert set(part.devices) == set(DEVICES[1:])
    assert part.stats.count == pytest.approx(8000, rel=0.1)
    pump = Detector(SHARED)
    pump.learn(rows(DEVICES[0], count=40))
    pump.adopt(found)
    usual, odd = rows(DEVICES[1], 9), np.random.default_rng(0).uniform(-0.5, 0.5, (40, 6))
    assert np.median(pump.score(odd)) > 4.0 * np.median(pump.score(usual))


def test_a_sum_without_clipping_is_refused_where_there_is_noise_and_the_other_way_round(
    world, hub, tmp_path
):
    with pytest.raises(SettingError, match=r"push what ClippedSums\.take returned"):
        world.share(Contribution("pump-0", Stats.of(SHARED, rows("pump-0")), 1))
    assert state_of(world, "pump-0").newest == {}
    plain = MaskedWorld(hub, tmp_path / "plain", shared=SHARED)
    (tmp_path / "plain").mkdir()
    with pytest.raises(SettingError, match="has no noise"):
        plain.share(clipped("pump-0"))
    plain.close()


def set_noise(hub, fleet, noise):
    """Let the server change what the fleet agreed on, as only a bad one does."""
    plain = None if noise is None else json.dumps(noise.plain())

    def change(tx):
        tx.run("update fleets set noise = ? where fleet = ?", plain, fleet)

    hub.service.writer.write(change, fleet=fleet)
    with hub.service.database.reading() as tx:
        assert fleets.get(tx, fleet).noise == noise


@pytest.mark.parametrize("less", [NoiseSettings(8.0, 1e-5), NoiseSettings(4.0, 1e-4), None])
def test_a_server_that_lowers_the_noise_gets_nothing(world, hub, less):
    world.form()
    world.share(clipped("pump-0"))
    set_noise(hub, world.fleet, less)
    before = state_of(world, "pump-0").upload
    for there in (world.exchange("pump-0"), world.restarted("pump-0")):
        there.push(clipped("pump-0", 2))
        with pytest.raises(RejectedError, match="the server has changed it"):
            there.take_part()
    assert state_of(world, "pump-0").upload == before


def test_a_cohort_with_less_noise_is_refused(world, hub):
    world.form()
    one = world.exchange("pump-0")
    set_noise(hub, world.fleet, NoiseSettings(50.0, 1e-5))
    world.place.operator.form_cohorts(world.fleet, **world.options)
    set_noise(hub, world.fleet, AGREED)
    one.push(clipped("pump-0"))
    with pytest.raises(RejectedError, match="the server has changed it"):
        one.take_part()
    assert state_of(world, "pump-0").epoch == 0


@pytest.mark.parametrize(
    ("limits", "words"),
    [({"epsilon": 1.0}, "epsilon = 4"), ({"delta": 1e-6}, "delta = 1e-05")],
)
def test_a_device_refuses_a_fleet_with_less_noise_than_it_asks_for(world, limits, words):
    one = world.exchange("pump-0")
    one._limits = {"epsilon": None, "delta": None} | limits
    with pytest.raises(RejectedError, match=f"found {words}"):
        one.push(clipped("pump-0"))
    assert not one.noise_known


def test_a_device_that_asks_for_noise_refuses_a_fleet_without(hub, tmp_path):
    plain = MaskedWorld(hub, tmp_path, shared=SHARED)
    one = plain.exchange("pump-0")
    one._limits = {"epsilon": 4.0, "delta": None}
    with pytest.raises(RejectedError, match=r"found no noise, expected epsilon of at most 4"):
        one.pull(Selection(receiver="pump-0"))
    plain.close()


def test_a_fleet_is_centred_on_the_mean_of_another_with_the_rest_of_the_budget(hub, tmp_path):
    wide = Projection(n_inputs=6, n_hidden=8, seed=7, low=-20.0, high=40.0)
    world = MaskedWorld(
        hub, tmp_path, shared=wide, noise=NOISE | {"release": "mean"}, draw=Drawing(0)
    )
    operator = hub.operator
    centred = f"{world.fleet}-centred"
    with pytest.raises(RejectedError, match="has no mean yet"):
        operator.create_fleet(centred, wide, reads="masked", centred_on=world.fleet)
    agreed = NoiseSettings(4.0, 1e-5, release="mean", share=0.05)
    world.form()
    for i, device in enumerate(DEVICES):
        sums = ClippedSums(agreed, wide)
        for row in wide.to_rows(15.0 + np.random.default_rng(i).normal(0.0, 1.0, (2000, 6))):
            sums.push(row)
        world.share(Contribution(device, sums.take(), 1, CLIPPED))
    world.turn()
    assert not world.exchange(DEVICES[0]).pull(Selection(receiver=DEVICES[0])).parts
    assert total(world).size == 6 + 2
    assert operator.create_fleet(centred, wide, reads="masked", centred_on=world.fleet)
    middle = (np.asarray(operator.projection(centred).low) + operator.projection(centred).high) / 2
    assert np.abs(middle - 15.0).max() < 1.0
    shown = operator.fleet(centred)["noise"]
    assert (shown["epsilon"], shown["release"], shown["share"]) == (4.0, "sums", 0.95)
    for fleet, why in ((centred, "releases no mean"), (world.fleet, "expected none")):
        more = {"epsilon": 4.0} if fleet == world.fleet else {}
        with pytest.raises(RejectedError, match=why):
            operator.create_fleet("other", wide, reads="masked", centred_on=fleet, **more)
    world.close()


def test_noise_is_refused_where_it_cannot_be_added(hub, world):
    operator = hub.operator
    for reads, noise, why in (
        ("totals", NOISE, "expected masked"),
        ("masked", {"epsilon": 4.0}, "needs both epsilon and delta"),
        ("masked", {"radius": 0.1}, "needs both epsilon and delta"),
        ("masked", NOISE | {"epsilon": 1000.0}, "epsilon"),
    ):
        with pytest.raises(RejectedError, match=why):
            operator.create_fleet("refused", SHARED, reads=reads, **noise)
    world.form()
    with pytest.raises(RejectedError, match="noised sums have no slots"):
        operator.form_cohorts(world.fleet, least=3, slots=["idle", "fast"])


def test_the_default_least_is_all_but_those_that_may_be_missing(world):
    (cohort,) = world.form(least=None)
    assert (cohort["least"], cohort["noisy"]) == (3, 2)
    (cohort,) = world.place.operator.form_cohorts(world.fleet, missing=0.0)
    assert (cohort["least"], cohort["noisy"]) == (5, 4)


@pytest.mark.parametrize("word", [2**52, 0, -(2**40)])
def test_a_device_that_lies_about_its_noise_spoils_one_epoch(world, word, monkeypatch):
    """With much noise anything would pass as a total, with little nothing would."""
    world.form()
    liar = DEVICES[0]

    def lying(cohort, keys, epoch, delta, random, *, adds):
        if cohort.members[cohort.number_of(keys)].name == liar:
            delta = np.append(delta[:-1], np.array([word], np.int64).view(np.uint64))
        return make_upload(cohort, keys, epoch, delta, random, adds=adds)

    monkeypatch.setattr(masked_fleet, "make_upload", lying)
    for device in DEVICES:
        world.share(clipped(device))
    world.turn()
    found = world.place.service.masked.result(world.fleet, 1)
    assert found["state"] == "failed"
    assert "a device lied about its noise" in found["why"]


def test_a_total_that_no_noise_explains_is_left_out(world, hub):
    world.form()
    for device in DEVICES[1:]:
        world.share(clipped(device))
    good = clipped(DEVICES[0])
    V = np.full_like(good.stats.V, 1e5)
    bad = Stats(SHARED, good.stats.U, V, good.stats.C, good.stats.S, good.stats.count)
    world.share(Contribution(DEVICES[0], bad, 1, CLIPPED))
    world.turn()
    assert not total(world).size
    assert hub.service.masked.result(world.fleet, 1)["why"].startswith("found a V too large")


def test_a_device_does_not_adopt_a_total_that_no_noise_explains(world, monkeypatch):
    world.form()
    for device in DEVICES:
        world.share(clipped(device))
    world.turn()
    there = world.exchange(DEVICES[0])
    ask, n_upper = there._ask, SHARED.n_hidden * (SHARED.n_hidden + 1) // 2

    def lied_to(method, *words, **rest):
        reply = ask(method, *words, **rest)
        if words != ("total",):
            return reply
        metadata, tensors = unpack(reply.body, len(reply.body))
        values = tensors["words"].view(np.int64).copy()
        values[n_upper:-3] = round(1e5 / SHARED.quantum)
        return replace(reply, body=pack(metadata, {"words": values.view(np.float64)}))

    monkeypatch.setattr(there, "_ask", lied_to)
    with pytest.raises(RejectedError, match="found a V too large"):
        there.pull(Selection(receiver=DEVICES[0]))


def bulk(device, kind, count):
    """Return the clipped sums of many samples of a kind."""
    rng = np.random.default_rng([int(device[-1]), kind])
    mixing = np.random.default_rng(kind).normal(0.0, 0.08, (2, 6))
    X = rng.normal(size=(count, 2)) @ mixing + 0.03 * rng.normal(size=(count, 6))
    return Contribution(device, AGREED.noise(SHARED).whole_sums_of(SHARED.to_rows(X)), 1, CLIPPED)


@pytest.mark.parametrize(("count", "told"), [(3000, True), (100, False)])
def test_cohorts_are_compared_where_samples_outweigh_the_noise(hub, tmp_path, count, told):
    devices = [f"pump-{i}" for i in range(9)]
    world = MaskedWorld(hub, tmp_path, shared=SHARED, noise=NOISE, draw=Drawing(0))
    cohorts = world.form(devices, size=3)
    bad = cohorts[1]["devices"]
    for device in devices:
        world.share(bulk(device, 6 if device in bad else 5, count))
    world.turn(devices)
    found = world.place.operator.cohorts(world.fleet)
    assert [each["samples"] > 2 * count for each in found] == [True] * 3
    far = [each["distance"] for each in found]
    if told:
        assert far[1] > 2.5 > max(far[0], far[2])
    else:
        assert far == [None] * 3
    world.close()
