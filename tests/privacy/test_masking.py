"""Masked sums: the total is exact, and nothing but the total can be opened."""

import json
import random as insecure
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgemerge import Stats
from edgemerge.core.errors import DeniedError, FormatError, RejectedError, SettingError
from edgemerge.privacy.masking import (
    PRIME,
    SEED_BYTES,
    SHARE_BYTES,
    Cohort,
    DeviceKeys,
    Keeper,
    Member,
    Survivors,
    chance_of_silence,
    counts,
    join_shares,
    make_request,
    make_upload,
    open_total,
    read_answer,
    read_upload,
    sparse_neighbours,
    split_secrets,
    stats_of,
    weights_at_zero,
    words_length,
    words_of,
)
from edgemerge.privacy.noise import NoiseSettings
from tests.cases import examples, parts

pytestmark = pytest.mark.slow

WORDS = 7
OLD_DIGEST = "72515bac1e816303638d62a6b373dccc6d378488603dd3459899d2e18b583c98"


class World:
    """A cohort whose random bytes repeat, with every device's keys and keeper."""

    def __init__(self, size, seed=0, words=WORDS, **numbers):
        rng = insecure.Random(seed)
        self.random = rng.randbytes
        self.keys = [DeviceKeys.draw(self.random) for _ in range(size)]
        members = [keys.member(f"pump-{i:04}") for i, keys in enumerate(self.keys)]
        self.cohort = Cohort.of("pumps", members, words)
        if numbers:
            self.cohort = replace(self.cohort, **numbers)
        self.keepers = [Keeper(self.cohort, keys) for keys in self.keys]
        self.deltas = np.random.default_rng(seed).integers(0, 2**64, (size, words), np.uint64)

    def upload(self, number, epoch=1):
        delta = self.deltas[number]
        return make_upload(self.cohort, self.keys[number], epoch, delta, self.random)

    def uploads(self, numbers, epoch=1):
        read = (read_upload(self.cohort, epoch, self.upload(i, epoch)) for i in numbers)
        return {each.number: each for each in read}

    def request(self, uploads, keeper, epoch=1):
        column = self.cohort.keepers_of(epoch).index(keeper)
        survivors = Survivors(epoch, {number: each.digest for number, each in uploads.items()})
        boxes = {number: each.boxes[column] for number, each in uploads.items()}
        return make_request(self.cohort, survivors, boxes)

    def answers(self, uploads, keepers, epoch=1):
        here = [k for k in self.cohort.keepers_of(epoch) if k in keepers]
        return [self.keepers[k].answer(epoch, self.request(uploads, k, epoch)) for k in here]


@examples(25)
@given(st.data(), st.integers(3, 12), st.integers(0, 2**32 - 1))
def test_the_total_of_survivors_is_exact(data, size, seed):
    world = World(size, seed)
    most = size // 3
    missing = data.draw(st.sets(st.integers(0, size - 1), max_size=max(0, min(most, size - 3))))
    here = [i for i in range(size) if i not in missing]
    uploads = world.uploads(data.draw(st.permutations(here)))
    opened = open_total(world.cohort, 1, uploads, world.answers(uploads, here))
    assert np.array_equal(opened.total, world.deltas[here].sum(0, dtype=np.uint64))
    assert opened.liars == frozenset()


@examples(15)
@given(parts(count=4, min_rows=1, max_rows=10))
def test_masked_stats_equal_open_ones(case):
    projection, rows = case
    stats = [Stats.of(projection, X) for X in rows]
    world = World(4, words=words_length(projection))
    world.deltas = np.array([words_of(each) for each in stats])
    uploads = world.uploads(range(4))
    opened = open_total(world.cohort, 1, uploads, world.answers(uploads, range(4)))
    assert stats_of(projection, opened.total) == sum(stats)


@examples(20)
@given(parts(count=2, min_rows=1, max_rows=10))
def test_a_negative_delta_takes_back(case):
    projection, (first, second) = case
    a, b = Stats.of(projection, first), Stats.of(projection, second)
    words = words_of(a) + words_of(b) - words_of(b)
    assert stats_of(projection, words) == a
    assert stats_of(projection, words_of(a - b) + words_of(b)) == a


def test_a_sparse_cohort_adds_up_too():
    world = World(130, words=3)
    assert world.cohort.neighbours == 60
    here = [i for i in range(130) if i % 3]
    uploads = world.uploads(here)
    opened = open_total(world.cohort, 1, uploads, world.answers(uploads, here))
    assert np.array_equal(opened.total, world.deltas[here].sum(0, dtype=np.uint64))


def test_neighbours_are_mutual_and_change_with_the_epoch():
    cohort = World(130, words=1).cohort
    near = [cohort.neighbours_of(1, i) for i in range(130)]
    assert all(i in near[j] for i in range(130) for j in near[i])
    assert {len(each) for each in near} == {60}
    assert cohort.neighbours_of(2, 0) != near[0]
    assert cohort.keepers_of(1) != cohort.keepers_of(2)


def test_a_keeper_answers_one_list_of_survivors():
    world = World(6)
    uploads = world.uploads(range(6))
    keeper = world.cohort.keepers_of(1)[0]
    request = world.request(uploads, keeper, 1)
    first = world.keepers[keeper].answer(1, request)
    assert world.keepers[keeper].answer(1, request) == first  # lost on its way, sent again
    del uploads[5]
    with pytest.raises(DeniedError, match="answers once"):
        world.keepers[keeper].answer(1, world.request(uploads, keeper, 1))


def test_a_keeper_keeps_its_word_over_a_restart():
    world = World(6)
    uploads = world.uploads(range(6))
    keeper = world.cohort.keepers_of(1)[0]
    request = world.request(uploads, keeper, 1)
    first = world.keepers[keeper].answer(1, request)
    again = Keeper(world.cohort, world.keys[keeper], world.keepers[keeper].state)
    assert again.answer(1, request) == first
    del uploads[5]
    with pytest.raises(DeniedError, match="answers once"):
        again.answer(1, world.request(uploads, keeper, 1))


def test_an_epoch_that_is_over_is_not_answered():
    world = World(6)
    later = world.uploads(range(6), epoch=2)
    keeper = next(k for k in world.cohort.keepers_of(2) if k in world.cohort.keepers_of(1))
    world.keepers[keeper].answer(2, world.request(later, keeper, 2))
    uploads = world.uploads(range(6))
    with pytest.raises(DeniedError, match="is over"):
        world.keepers[keeper].answer(1, world.request(uploads, keeper, 1))


def test_two_lists_cannot_both_be_opened():
    """A server with split views: half of the keepers see one list, half another."""
    world = World(7)
    uploads = world.uploads(range(7))
    fewer = {number: each for number, each in uploads.items() if number != 4}
    keepers = world.cohort.keepers_of(1)
    for cut in range(len(keepers) + 1):
        fresh = World(7)
        ends = keepers[:cut], keepers[cut:]
        opened = 0
        for view, asked in zip((uploads, fewer), ends, strict=True):
            answers = fresh.answers(view, asked)
            try:
                open_total(fresh.cohort, 1, view, answers)
            except DeniedError:
                continue
            opened += 1
        assert opened <= 1


def test_a_total_of_too_few_is_not_opened():
    world = World(9, least=5)
    uploads = world.uploads(range(4))
    keeper = world.cohort.keepers_of(1)[0]
    with pytest.raises(DeniedError, match="4 survivors, expected at least 5"):
        world.keepers[keeper].answer(1, world.request(uploads, keeper, 1))


def test_too_few_answers_open_nothing():
    world = World(9)
    uploads = world.uploads(range(9))
    keepers = world.cohort.keepers_of(1)[: world.cohort.threshold - 1]
    with pytest.raises(DeniedError, match="valid answers"):
        open_total(world.cohort, 1, uploads, world.answers(uploads, keepers))


def test_answers_never_hold_both_kinds_of_seed_of_one_device():
    """What keepers reveal for a survivor is its own seed; for the missing, edges of others."""
    world = World(6)
    uploads = world.uploads([0, 1, 2, 4])
    keeper = world.cohort.keepers_of(1)[0]
    answer = world.keepers[keeper].answer(1, world.request(uploads, keeper, 1))
    n_shares = (len(answer) - 4 - 64 - 64) // SHARE_BYTES
    assert n_shares == 4 + 4 * 2  # own seeds of four, and their edges to the two missing


def test_a_device_looks_for_its_upload_in_a_signed_list():
    world = World(6)
    mine = world.upload(3)
    uploads = {**world.uploads([0, 1, 2, 4, 5]), 3: read_upload(world.cohort, 1, mine)}
    opened = open_total(world.cohort, 1, uploads, world.answers(uploads, range(6)))
    assert counts(world.cohort, opened.survivors, opened.signatures, mine)
    assert not counts(world.cohort, opened.survivors, opened.signatures, mine[:-1])
    shown = Survivors(1, {n: d for n, d in opened.survivors.digests.items() if n != 3})
    with pytest.raises(DeniedError, match="may differ"):
        counts(world.cohort, shown, opened.signatures, mine)
    few = dict(list(opened.signatures.items())[: world.cohort.threshold - 1])
    with pytest.raises(DeniedError, match="may differ"):
        counts(world.cohort, opened.survivors, few, mine)


def test_masked_bytes_look_uniform():
    """Of a delta that is all zeros, every bit of the masked words is 1 about half of the time."""
    world = World(3, words=4096)
    world.deltas[:] = 0
    masked = world.uploads([0])[0].masked
    ones = np.unpackbits(masked.view(np.uint8)).mean()
    n_bits = 64 * 4096
    assert abs(ones - 0.5) < 4.5 * 0.5 / np.sqrt(n_bits)


@pytest.mark.parametrize("change", ["masked", "commitment", "box", "number", "signature"])
def test_a_changed_upload_is_refused(change):
    world = World(5)
    data = bytearray(world.upload(2))
    start = len(world.cohort.context(1, b"upload"))
    place = {
        "number": start,
        "masked": start + 4,
        "commitment": start + 4 + 8 * WORDS,
        "box": -100,
        "signature": -1,
    }[change]
    data[place] ^= 1
    with pytest.raises(RejectedError, match="signature"):
        read_upload(world.cohort, 1, bytes(data))


def test_no_mask_is_used_in_two_epochs_or_cohorts():
    """Seeds between neighbours are derived, so what they are derived from must differ."""
    world = World(4)
    again = World(4, threshold=world.cohort.threshold + 1)  # the same keys
    assert [keys.seed for keys in again.keys] == [keys.seed for keys in world.keys]
    uploads = [world.uploads([0], 1)[0], world.uploads([0], 2)[0], again.uploads([0], 1)[0]]
    edges = [commitment for upload in uploads for commitment in upload.commitments[1:]]
    assert len(set(edges)) == len(edges) == 3 * 3


def test_bytes_behind_an_upload_are_refused():
    world = World(5)
    with pytest.raises(FormatError, match="expected"):
        read_upload(world.cohort, 1, world.upload(2) + b"more")


def test_a_keeper_refuses_survivors_out_of_order_or_twice():
    world = World(5)
    uploads = world.uploads(range(5))
    keeper = world.cohort.keepers_of(1)[0]
    request = world.request(uploads, keeper)
    start = len(world.cohort.context(1, b"request")) + 4
    width = (len(request) - start) // 5
    rows = [request[start + i * width : start + (i + 1) * width] for i in range(5)]
    for changed in ([rows[1], rows[0], *rows[2:]], [rows[0], *rows[:1], *rows[2:]]):
        with pytest.raises(FormatError, match="out of order"):
            world.keepers[keeper].answer(1, request[:start] + b"".join(changed))


def test_an_answer_signs_the_list_that_it_was_asked_about():
    """Its signature is what devices check later, so one of another list must not get in."""
    world = World(5)
    uploads = world.uploads(range(5))
    survivors = Survivors(1, {number: each.digest for number, each in uploads.items()})
    keeper = world.cohort.keepers_of(1)[0]
    answer = world.answers(uploads, [keeper])[0]
    fewer = Survivors(1, {n: d for n, d in survivors.digests.items() if n != 4})
    body = answer[:4] + world.keys[keeper].sign(fewer.message(world.cohort)) + answer[68:-64]
    changed = body + world.keys[keeper].sign(survivors.message(world.cohort) + body)
    with pytest.raises(RejectedError, match="signed another list"):
        read_answer(world.cohort, survivors, changed)


@pytest.mark.parametrize("cut", [0, 10, 100, -1])
def test_a_truncated_upload_is_refused(cut):
    world = World(5)
    with pytest.raises(FormatError):
        read_upload(world.cohort, 1, world.upload(2)[:cut])


def test_an_upload_of_another_epoch_is_not_replayed():
    world = World(5)
    with pytest.raises(FormatError, match="another cohort or epoch"):
        read_upload(world.cohort, 2, world.upload(2))


def test_a_stranger_cannot_upload():
    world = World(5)
    with pytest.raises(DeniedError, match="not in the cohort"):
        make_upload(world.cohort, DeviceKeys.draw(world.random), 1, world.deltas[0])


def test_a_box_that_a_device_spoilt_is_named():
    world = World(5)
    uploads = world.uploads(range(5))
    bad = replace(uploads[2], boxes=tuple(bytes(len(box)) for box in uploads[2].boxes))
    keeper = world.cohort.keepers_of(1)[0]
    request = world.request({**uploads, 2: bad}, keeper, 1)
    with pytest.raises(RejectedError, match="pump-0002"):
        world.keepers[keeper].answer(1, request)
    request = world.request({n: u for n, u in uploads.items() if n != 2}, keeper, 1)
    assert world.keepers[keeper].answer(1, request)  # it has not answered yet


def test_shares_that_do_not_fit_their_commitment_name_the_device():
    world = World(5)
    uploads = world.uploads(range(5))
    bad = replace(uploads[2], commitments=(bytes(32), *uploads[2].commitments[1:]))
    answers = world.answers(uploads, range(5))
    with pytest.raises(RejectedError, match="pump-0002"):
        open_total(world.cohort, 1, {**uploads, 2: bad}, answers)


@pytest.mark.parametrize("places", [(0,), (0, 3), (8,)])
def test_keepers_that_lie_are_found_and_do_no_harm(places):
    world = World(9, keepers=9, threshold=5)
    uploads = {n: read_upload(world.cohort, 1, world.upload(n)) for n in range(9)}
    answers = world.answers(uploads, range(9))
    message = Survivors(1, {n: u.digest for n, u in uploads.items()}).message(world.cohort)
    for place in places:
        changed = [
            (int.from_bytes(answers[place][i : i + SHARE_BYTES], "little") + 1 + place) % PRIME
            for i in range(68, len(answers[place]) - 64, SHARE_BYTES)
        ]
        body = answers[place][:68] + b"".join(c.to_bytes(SHARE_BYTES, "little") for c in changed)
        answers[place] = body + world.keys[place].sign(message + body)
    opened = open_total(world.cohort, 1, uploads, answers)
    assert np.array_equal(opened.total, world.deltas.sum(0, dtype=np.uint64))
    assert opened.liars == (frozenset(places) if min(places) < 5 else frozenset())


SEEDS = st.binary(min_size=SEED_BYTES, max_size=SEED_BYTES)


@given(st.lists(SEEDS, min_size=1, max_size=4), st.integers(1, 40), st.integers(0, 5))
def test_any_threshold_of_shares_gives_the_secrets(secrets, threshold, spare):
    rng = insecure.Random(secrets[0])
    places = rng.sample(range(1, 2000), threshold + spare)
    split = split_secrets(secrets, places, threshold, rng.randbytes)
    shares = dict(zip(places, split, strict=True))
    chosen = rng.sample(places, threshold)
    weights = weights_at_zero(chosen)
    for number, secret in enumerate(secrets):
        assert join_shares([shares[place][number] for place in chosen], weights) == secret


def test_the_largest_polynomials_do_not_run_into_each_other():
    largest = (PRIME - 1).to_bytes(48, "little")
    secrets = [bytes([255] * SEED_BYTES)] * 3
    (found,) = split_secrets(secrets, [4095], 50, lambda n: largest * (n // 48))
    powers = [(PRIME - 1) * 4095**power for power in range(1, 50)]
    assert found == [(sum(powers) + 256**SEED_BYTES - 1) % PRIME] * 3


def test_fewer_shares_tell_nothing():
    """One share of two is uniform whatever the secret is: a chi-squared test over 16 cells."""
    rng = insecure.Random(1)
    draws = 4000
    for secret in (bytes(SEED_BYTES), bytes([255] * SEED_BYTES)):
        cells = np.zeros(16)
        for _ in range(draws):
            ((share,),) = split_secrets([secret], [5], 2, rng.randbytes)
            cells[share * 16 // PRIME] += 1
        chi2 = ((cells - draws / 16) ** 2 / (draws / 16)).sum()
        assert chi2 < 37.7  # 99.9 % of 15 degrees of freedom


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({"least": 2}, "least=2"),
        ({"least": 10}, "least=10"),
        ({"threshold": 4}, "more than half"),
        ({"keepers": 10}, "no more keepers"),
        ({"neighbours": 7}, "7 neighbours"),
    ],
)
def test_numbers_that_cannot_work_are_refused(numbers, words):
    cohort = World(9).cohort
    with pytest.raises(SettingError, match=words):
        replace(cohort, **numbers)


def test_members_are_in_order_and_once():
    cohort = World(9).cohort
    with pytest.raises(SettingError, match="out of order or twice"):
        replace(cohort, members=cohort.members[::-1])
    with pytest.raises(SettingError, match="out of order or twice"):
        replace(cohort, members=(*cohort.members[:1], *cohort.members))


def test_the_digest_depends_on_every_field():
    cohort = World(9).cohort
    other = [
        replace(cohort, fleet="fans"),
        replace(cohort, words=8),
        replace(cohort, least=4),
        replace(cohort, threshold=6),
        replace(cohort, keepers=8),
        replace(cohort, members=cohort.members[:-1], neighbours=7, keepers=8),
    ]
    agreed = NoiseSettings(4.0, 1e-5)
    noised = [
        replace(cohort, noise=noise, noisy=noisy)
        for noise, noisy in (
            (agreed, 2),
            (agreed, 1),
            (NoiseSettings(4.1, 1e-5), 2),
            (NoiseSettings(4.0, 1e-6), 2),
            (NoiseSettings(4.0, 1e-5, radius=0.1), 2),
            (NoiseSettings(4.0, 1e-5, release="mean"), 2),
            (NoiseSettings(4.0, 1e-5, share=0.95), 2),
        )
    ]
    other += noised
    assert len({cohort.digest, *(each.digest for each in other)}) == 1 + len(other)
    for each in noised:
        assert Cohort.parse(json.loads(json.dumps(each.plain()))) == each


def test_a_cohort_without_noise_has_the_digest_and_the_description_that_it_always_had():
    """Computed before there was noise: devices have pinned such digests."""
    members = [Member(f"pump-{i}", bytes([i] * 32), bytes([100 + i] * 32)) for i in range(4)]
    cohort = Cohort.of("pumps", members, 12, least=3)
    assert cohort.digest.hex() == OLD_DIGEST
    assert sorted(cohort.plain()) == sorted(
        ["fleet", "words", "least", "keepers", "threshold", "neighbours", "slots", "members"]
    )


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({"noisy": 0}, "0 devices whose noise counts"),
        ({"noisy": 3}, "3 devices whose noise counts, of least=3"),
        ({"slots": ("idle", "fast"), "words": 8}, "noised sums have no slots"),
    ],
)
def test_noise_that_cannot_work_is_refused(numbers, words):
    cohort = World(9).cohort
    with pytest.raises(SettingError, match=words):
        replace(cohort, **{"noise": NoiseSettings(4.0, 1e-5), "noisy": 2, "least": 3} | numbers)


@pytest.mark.parametrize(("colluding", "noisy"), [(0.0, 5), (0.12, 5), (0.25, 4), (0.4, 3)])
def test_noise_of_colluding_members_does_not_count(colluding, noisy):
    members = World(9).cohort.members
    made = Cohort.of(
        "pumps",
        members,
        12,
        least=6,
        missing=0.0,
        colluding=colluding,
        noise=NoiseSettings(4.0, 1e-5),
    )
    assert made.noisy == noisy


@pytest.mark.parametrize(
    "change",
    [{"epsilon": "4"}, {"delta": None}, {"release": "all"}, {"share": 2.0}, {"radius": -1}],
)
def test_a_description_of_other_noise_is_refused(change):
    plain = NoiseSettings(4.0, 1e-5).plain() | change
    with pytest.raises(FormatError, match="this describes no noise"):
        NoiseSettings.parse(plain)


def test_the_chance_of_too_few_keepers_agrees_with_counting():
    rng = np.random.default_rng(0)
    gone = np.array([rng.permutation(100)[:33] for _ in range(20_000)])
    few = ((gone < 31).sum(1) > 31 - 16).mean()  # the first 31 are keepers
    assert chance_of_silence(100, 31, 16, 1 / 3) == pytest.approx(few, abs=0.004)


def test_a_ring_with_these_neighbours_stays_connected():
    """Count in random losses: with far fewer neighbours the graph does fall apart."""

    def falls_apart(k, lost):
        rng = np.random.default_rng(0)
        apart = 0
        for _ in range(300):
            here = np.flatnonzero(rng.random(200) > lost)
            gaps = np.diff([*here, here[0] + 200])
            apart += (gaps > k // 2).sum() >= 2
        return apart

    assert falls_apart(4, 0.5) > 100
    assert falls_apart(sparse_neighbours(200, 0.5), 0.5) == 0
