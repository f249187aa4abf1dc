"""Masked sums: the total is exact, and nothing but the total can be opened."""

import json
import random as insecure
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from itertools import combinations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from hypothesis import given
from hypothesis import strategies as st

from edgemerge import Stats
from edgemerge.core.errors import DeniedError, FormatError, RejectedError, SettingError
from edgemerge.privacy import masking
from edgemerge.privacy.masking import (
    MAX_SPLIT,
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
    fewest_of_two,
    join_shares,
    make_request,
    make_upload,
    must_be_agreed,
    open_total,
    read_answer,
    read_upload,
    signed_by,
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

    def upload(self, number, epoch=1, *, adds=True):
        about = (self.cohort, self.keys[number], epoch, self.deltas[number], self.random)
        return make_upload(*about, adds=adds)

    def uploads(self, numbers, epoch=1, taking_back=()):
        data = (self.upload(i, epoch, adds=i not in taking_back) for i in numbers)
        read = (read_upload(self.cohort, epoch, each) for each in data)
        return {each.number: each for each in read}

    def signatures(self, survivors):
        """Those of all members, as if all had agreed on this list."""
        message = survivors.message(self.cohort)
        return {number: keys.sign(message) for number, keys in enumerate(self.keys)}

    def request(self, uploads, keeper, epoch=1, signatures=None):
        column = self.cohort.keepers_of(epoch).index(keeper)
        survivors = listed(uploads, epoch)
        boxes = {number: each.boxes[column] for number, each in uploads.items()}
        signatures = self.signatures(survivors) if signatures is None else signatures
        return make_request(self.cohort, survivors, signatures, boxes)

    def answers(self, uploads, keepers, epoch=1):
        here = [k for k in self.cohort.keepers_of(epoch) if k in keepers]
        return [self.keepers[k].answer(epoch, self.request(uploads, k, epoch)) for k in here]


def listed(uploads, epoch=1):
    return Survivors(epoch, {number: each.digest for number, each in uploads.items()})


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
    assert opened.disputes == frozenset()


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


@pytest.mark.parametrize("restarts", [False, True])
def test_a_keeper_signs_and_answers_one_list_of_survivors(restarts):
    world = World(6)
    uploads = world.uploads(range(6))
    number = world.cohort.keepers_of(1)[0]
    request = world.request(uploads, number)
    keeper = world.keepers[number]
    signature, answer = keeper.sign(listed(uploads)), keeper.answer(1, request)
    if restarts:
        keeper = Keeper(world.cohort, world.keys[number], keeper.state)
    assert signed_by(world.cohort, listed(uploads), {number: signature}) == {number}
    assert keeper.sign(listed(uploads)) == signature  # lost on its way, sent again
    assert keeper.answer(1, request) == answer
    del uploads[5]
    with pytest.raises(DeniedError, match="a keeper signs one"):
        keeper.sign(listed(uploads))
    with pytest.raises(DeniedError, match="a keeper signs one"):
        keeper.answer(1, world.request(uploads, number))


def test_who_has_answered_for_a_list_signs_no_other():
    """It was not asked to sign one before: enough others had."""
    world = World(6)
    uploads = world.uploads(range(6))
    number = world.cohort.keepers_of(1)[0]
    world.keepers[number].answer(1, world.request(uploads, number))
    del uploads[5]
    with pytest.raises(DeniedError, match="a keeper signs one"):
        world.keepers[number].sign(listed(uploads))


def test_who_is_no_keeper_opens_nothing():
    world = World(30)
    uploads = world.uploads(range(30))
    keepers = world.cohort.keepers_of(1)
    other = next(i for i in range(30) if i not in keepers)
    with pytest.raises(DeniedError, match="not a keeper in epoch 1"):
        world.keepers[other].answer(1, world.request(uploads, keepers[0]))
    with pytest.raises(DeniedError, match="not a keeper in epoch 1"):
        world.keepers[other].sign(listed(uploads))
    assert world.keepers[other].state == b""


def test_bytes_behind_a_request_are_refused():
    world = World(5)
    uploads = world.uploads(range(5))
    keeper = world.cohort.keepers_of(1)[0]
    with pytest.raises(FormatError, match="expected"):
        world.keepers[keeper].answer(1, world.request(uploads, keeper) + b"more")


def test_an_epoch_that_is_over_is_not_answered():
    world = World(6)
    later = world.uploads(range(6), epoch=2)
    keeper = next(k for k in world.cohort.keepers_of(2) if k in world.cohort.keepers_of(1))
    world.keepers[keeper].answer(2, world.request(later, keeper, 2))
    uploads = world.uploads(range(6))
    with pytest.raises(DeniedError, match="is over"):
        world.keepers[keeper].answer(1, world.request(uploads, keeper, 1))


def test_keepers_do_not_agree_on_two_lists():
    """A server with split views: half of the keepers see one list, half another."""
    world = World(7)
    uploads = world.uploads(range(7))
    views = uploads, {number: each for number, each in uploads.items() if number != 4}
    keepers = world.cohort.keepers_of(1)
    for cut in range(len(keepers) + 1):
        fresh, agreed = World(7), 0
        for view, asked in zip(views, (keepers[:cut], keepers[cut:]), strict=True):
            signatures = {k: fresh.keepers[k].sign(listed(view)) for k in asked}
            try:
                must_be_agreed(fresh.cohort, listed(view), signatures)
            except DeniedError:
                continue
            agreed += 1
        assert agreed <= 1


@examples(25)
@given(st.data(), st.integers(0, 2**32 - 1), st.integers(5, 8))
def test_honest_keepers_answer_for_one_list_at_most(data, seed, threshold):
    """Whatever they are shown in whatever order, and whatever those who collude sign."""
    world = World(9, seed, keepers=9, threshold=threshold)
    colluding = world.cohort.colluding
    uploads, honest = world.uploads(range(9)), range(colluding, 9)
    views = [{n: each for n, each in uploads.items() if n != left_out} for left_out in (8, None)]
    signatures = [
        {k: each for k, each in world.signatures(listed(view)).items() if k < colluding}
        for view in views
    ]
    asked, answered = st.tuples(st.sampled_from(honest), st.integers(0, 1)), set()
    for keeper, view in data.draw(st.lists(asked, min_size=20, max_size=60)):
        with suppress(DeniedError):
            signatures[view][keeper] = world.keepers[keeper].sign(listed(views[view]))
        with suppress(DeniedError):
            request = world.request(views[view], keeper, signatures=signatures[view])
            world.keepers[keeper].answer(1, request)
            answered.add(view)
    assert len(answered) <= 1


@pytest.mark.parametrize(("size", "least"), [(10, 3), (100, 39), (130, 60)])
def test_keepers_that_see_different_lists_reveal_nothing(size, least):
    """Each list lacks other neighbours of one device: together they would give all its masks."""
    world = World(size, words=3, least=least)
    cohort, uploads = world.cohort, world.uploads(range(size))
    keepers, victim = cohort.keepers_of(1), cohort._shuffled(1, b"neighbours")[0]
    near, times, views, signatures = cohort.neighbours_of(1, victim), Counter(), {}, {}
    for place, keeper in enumerate(keepers):
        rarest = sorted(near, key=lambda number: (times[number], number))
        if cohort.neighbours < size - 1:  # a ring must hold together
            rarest.remove(near[7 * place % len(near)])
        missing = rarest[: size - least]
        times.update(missing)
        views[keeper] = {n: each for n, each in uploads.items() if n not in missing}
        signatures[keeper] = world.keepers[keeper].sign(listed(views[keeper]))
    # so many keepers have a share of the mask with each of them, and all have one of its own
    assert min(times[number] for number in near) >= cohort.threshold
    for keeper in keepers:
        request = world.request(views[keeper], keeper, signatures=signatures)
        with pytest.raises(DeniedError, match=r"found [12] valid signatures of keepers"):
            world.keepers[keeper].answer(1, request)


@pytest.mark.parametrize("kind", ["few", "of another epoch", "of others", "invented"])
def test_shares_are_revealed_for_a_list_that_enough_keepers_signed(kind):
    world = World(30)
    cohort, uploads = world.cohort, world.uploads(range(30))
    keepers, signatures = cohort.keepers_of(1), world.signatures(listed(uploads))
    keeper, enough = keepers[0], {k: signatures[k] for k in keepers[: cohort.threshold]}
    wrong = {
        "few": dict(list(enough.items())[1:]),
        "of another epoch": world.signatures(listed(uploads, 2)),
        "of others": {k: each for k, each in signatures.items() if k not in keepers},
        "invented": dict.fromkeys(keepers, bytes(64)),
    }
    with pytest.raises(DeniedError, match="valid signatures of keepers"):
        world.keepers[keeper].answer(1, world.request(uploads, keeper, signatures=wrong[kind]))
    assert world.keepers[keeper].state == b""
    assert world.keepers[keeper].answer(1, world.request(uploads, keeper, signatures=enough))


def test_a_total_of_too_few_is_not_opened():
    world = World(9, least=5)
    uploads = world.uploads(range(4))
    keeper = world.cohort.keepers_of(1)[0]
    with pytest.raises(DeniedError, match="4 survivors, expected at least 5"):
        world.keepers[keeper].answer(1, world.request(uploads, keeper, 1))
    with pytest.raises(DeniedError, match="4 survivors, expected at least 5"):
        world.keepers[keeper].sign(listed(uploads))


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
    n_shares = (len(answer) - 4 - 64) // SHARE_BYTES
    assert n_shares == 4 + 4 * 2  # own seeds of four, and their edges to the two missing


def test_a_device_looks_for_its_upload_in_a_signed_list():
    world = World(6)
    mine = world.upload(3)
    uploads = {**world.uploads([0, 1, 2, 4, 5]), 3: read_upload(world.cohort, 1, mine)}
    signatures = world.signatures(listed(uploads))
    assert counts(world.cohort, listed(uploads), signatures, mine)
    others = listed({n: each for n, each in uploads.items() if n != 3})
    assert not counts(world.cohort, others, world.signatures(others), mine)
    with pytest.raises(DeniedError, match="may differ"):
        counts(world.cohort, others, signatures, mine)
    few = dict(list(signatures.items())[: world.cohort.threshold - 1])
    with pytest.raises(DeniedError, match="may differ"):
        counts(world.cohort, listed(uploads), few, mine)


def test_a_signed_list_cannot_be_cut_into_other_rows():
    """The same bytes with other digests and members: the victim would think it was left out."""
    world, victim = World(6), 4
    whole = listed(world.uploads(range(6)))
    rows = whole.message(world.cohort)[-6 * 36 :]

    def number(place):
        return int.from_bytes(rows[place : place + 4], "little")

    # the digests of 3 and 5 take the row of the victim, and the last row is cut in two
    first, last = 3 * 36, 5 * 36
    cut = next(at for at in range(last + 4, 6 * 36 - 4) if number(at) > 5)
    ends = {0: 36, 36: 72, 72: first, first: last, last: cut, cut: 6 * 36}
    digests = {number(start): rows[start + 4 : end] for start, end in ends.items()}
    assert sorted(digests) == list(digests)
    assert victim not in digests
    framed = b"".join(n.to_bytes(4, "little") + digest for n, digest in digests.items())
    assert framed == rows
    with pytest.raises(FormatError, match="other than 32 bytes for each survivor"):
        Survivors(1, digests)


@pytest.mark.parametrize("number", [-1, 6, 2**32])
def test_a_list_has_members_only(number):
    world = World(6)
    keeper = world.cohort.keepers_of(1)[0]
    with pytest.raises(FormatError):
        world.keepers[keeper].sign(Survivors(1, dict.fromkeys((0, 1, 2, number), bytes(32))))


def test_only_keepers_of_the_epoch_sign_a_list():
    """A server has any number of members of its own; who is a keeper is drawn."""
    world = World(30)
    mine = world.upload(3)
    survivors = Survivors(1, {3: read_upload(world.cohort, 1, mine).digest})
    keepers, message = world.cohort.keepers_of(1), survivors.message(world.cohort)
    signatures = {k: keys.sign(message) for k, keys in enumerate(world.keys)}
    others = {k: each for k, each in signatures.items() if k not in keepers}
    assert len(others) >= world.cohort.threshold
    with pytest.raises(DeniedError, match="found 0 valid signatures of keepers"):
        counts(world.cohort, survivors, others, mine)
    assert counts(world.cohort, survivors, signatures, mine)


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


def test_what_is_for_one_purpose_is_for_no_other():
    """Else the seed of an edge, which keepers reveal, would be the key of a box but for a byte."""
    cohort = World(5).cohort
    purposes = (b"upload", b"request", b"answer", b"survivors", b"edge", b"box")
    for one, other in combinations([cohort.context(1, purpose) for purpose in purposes], 2):
        assert not one.startswith(other)
        assert not other.startswith(one)


def test_no_mask_is_used_in_two_epochs_or_cohorts():
    """Seeds between neighbours are derived, so what they are derived from must differ."""
    world = World(4)
    again = World(4, threshold=world.cohort.threshold + 1)  # the same keys
    assert [keys.seed for keys in again.keys] == [keys.seed for keys in world.keys]
    uploads = [world.uploads([0], 1)[0], world.uploads([0], 2)[0], again.uploads([0], 1)[0]]
    edges = [commitment for upload in uploads for commitment in upload.commitments[1:]]
    assert len(set(edges)) == len(edges) == 3 * 3
    assert uploads[0].commitments[0] != uploads[1].commitments[0]  # of own seeds, which are drawn


def test_no_key_of_a_box_is_used_twice(monkeypatch):
    """Their nonce is 0: two boxes under one key would give the difference of their shares.

    A device that is started from a copy of its file may send two uploads of one epoch: keepers
    open one, and with their shares of its own seed the server would have those of the other.
    """
    used = []

    def recorded(key):
        used.append(key)
        return ChaCha20Poly1305(key)

    monkeypatch.setattr(masking, "ChaCha20Poly1305", recorded)
    world = World(5)  # all are keepers, so boxes go both ways between two members
    for epoch in (1, 2, 2):
        world.uploads(range(5), epoch)
    World(5, least=4).uploads(range(5))  # the same keys in another cohort
    assert len(set(used)) == len(used) == 4 * 5 * 5


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


def signed_answer(world, keeper, survivors, body):
    """Return an answer with a keeper's valid signature over whatever it says."""
    listed = sha256(survivors.message(world.cohort)).digest()
    before = world.cohort.context(survivors.epoch, b"answer") + listed
    return body + world.keys[keeper].sign(before + body)


def test_an_answer_is_about_the_list_that_it_was_asked_about():
    """Its shares are of other columns than those of another list."""
    world = World(5)
    uploads = world.uploads(range(5))
    keeper = world.cohort.keepers_of(1)[0]
    answer = world.answers(uploads, [keeper])[0]
    other = listed({**uploads, 4: replace(uploads[4], digest=bytes(32))})
    with pytest.raises(RejectedError, match="the signature is not that of"):
        read_answer(world.cohort, other, answer)


def test_an_answer_of_a_member_that_is_no_keeper_is_refused():
    world = World(30)
    uploads = world.uploads(range(30))
    survivors = Survivors(1, {number: each.digest for number, each in uploads.items()})
    keepers = world.cohort.keepers_of(1)
    answer = world.answers(uploads, keepers[:1])[0]
    other = next(i for i in range(30) if i not in keepers)
    body = other.to_bytes(4, "little") + answer[4:-64]
    with pytest.raises(FormatError, match=f"member {other}, who is not a keeper"):
        read_answer(world.cohort, survivors, signed_answer(world, other, survivors, body))


def test_a_changed_answer_is_refused():
    world = World(5)
    uploads = world.uploads(range(5))
    survivors = Survivors(1, {number: each.digest for number, each in uploads.items()})
    answer = world.answers(uploads, [world.cohort.keepers_of(1)[0]])[0]
    share = 4  # where the first one begins
    changed = answer[:share] + bytes([answer[share] ^ 1]) + answer[share + 1 :]
    with pytest.raises(RejectedError, match="the signature is not that of"):
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


def test_an_upload_of_a_member_that_is_not_there_is_refused():
    world = World(5)
    data, place = world.upload(2), len(world.cohort.context(1, b"upload"))
    changed = data[:place] + (5).to_bytes(4, "little") + data[place + 4 :]
    with pytest.raises(FormatError, match="member 5, expected one of 5"):
        read_upload(world.cohort, 1, changed)


def test_a_stranger_cannot_upload():
    world = World(5)
    with pytest.raises(DeniedError, match="not in the cohort"):
        make_upload(world.cohort, DeviceKeys.draw(world.random), 1, world.deltas[0])


@pytest.mark.parametrize("spoilt", range(6))
def test_boxes_that_a_device_spoilt_do_no_harm_or_name_it(spoilt):
    """Five keepers, of whom three are needed: two boxes may be spoilt."""
    world = World(5)
    uploads = world.uploads(range(5))
    boxes = [bytes(len(b)) if i < spoilt else b for i, b in enumerate(uploads[2].boxes)]
    uploads[2] = replace(uploads[2], boxes=tuple(boxes))
    answers = world.answers(uploads, range(5))
    if spoilt > 2:
        with pytest.raises(RejectedError, match="shares of pump-0002 do not fit"):
            open_total(world.cohort, 1, uploads, answers)
        return
    opened = open_total(world.cohort, 1, uploads, answers)
    assert np.array_equal(opened.total, world.deltas.sum(0, dtype=np.uint64))
    assert opened.disputes == {(keeper, 2) for keeper in range(spoilt)}


@pytest.mark.parametrize(
    "wrong", [{(0, 2), (1, 2)}, {(0, 2), (1, 2), (3, 3), (4, 3)}, {(1, 0), (1, 4), (2, 4)}]
)
def test_who_quarrels_with_whom_is_told_and_does_no_harm(wrong):
    """Wrong shares: a keeper is in dispute with the devices whose they are, and with no other."""
    world = World(5)
    uploads = world.uploads(range(5))
    answers = world.answers(uploads, range(5))
    survivors = Survivors(1, {n: u.digest for n, u in uploads.items()})
    for keeper, sender in wrong:
        shares = bytearray(answers[keeper][:-64])
        shares[4 + sender * SHARE_BYTES] ^= 1  # all survived, so there is one share for each
        answers[keeper] = signed_answer(world, keeper, survivors, bytes(shares))
    opened = open_total(world.cohort, 1, uploads, answers)
    assert np.array_equal(opened.total, world.deltas.sum(0, dtype=np.uint64))
    assert opened.disputes == wrong


def test_a_keeper_that_lies_once_is_asked_last(monkeypatch):
    """Else each of its shares would cost the server a search."""
    world = World(9, keepers=9, threshold=5)
    uploads = world.uploads(range(9))
    answers = world.answers(uploads, range(9))
    survivors = Survivors(1, {n: u.digest for n, u in uploads.items()})
    answers[0] = signed_answer(world, 0, survivors, answers[0][:4] + bytes(9 * SHARE_BYTES))
    joined = []

    def counted(shares, weights):
        joined.append(shares)
        return join_shares(shares, weights)

    monkeypatch.setattr("edgemerge.privacy.masking.join_shares", counted)
    opened = open_total(world.cohort, 1, uploads, answers)
    assert opened.disputes == {(0, 0)}
    assert len(joined) < 25


def test_a_box_opens_for_the_upload_that_it_came_with_only():
    """A server that lists another upload of a device could open the real one, and deny it."""
    world = World(5)
    uploads = world.uploads(range(5))
    lied = {**uploads, 2: replace(uploads[2], digest=bytes(32))}
    survivors = Survivors(1, {n: u.digest for n, u in lied.items()})
    for data in world.answers(lied, range(5)):
        shares = read_answer(world.cohort, survivors, data).shares
        assert [share is None for share in shares] == [False, False, True, False, False]


def test_a_list_with_another_upload_of_a_device_is_no_proof_that_it_was_left_out():
    world = World(5)
    own = world.upload(2)
    uploads = world.uploads(range(5))
    uploads[2] = replace(uploads[2], digest=bytes(32))
    survivors = Survivors(1, {n: u.digest for n, u in uploads.items()})
    signatures = {
        k: keys.sign(survivors.message(world.cohort)) for k, keys in enumerate(world.keys)
    }
    with pytest.raises(RejectedError, match="another upload of this device"):
        counts(world.cohort, survivors, signatures, own)


@pytest.mark.parametrize("taking_back", range(6))
def test_uploads_that_take_back_do_not_count_as_devices(taking_back):
    """Else the total could be the sums of one device: all others have taken theirs back."""
    world = World(6, least=4)
    uploads = world.uploads(range(6), taking_back=range(taking_back))
    keeper = world.cohort.keepers_of(1)[0]
    request = world.request(uploads, keeper)
    if taking_back > 2:
        with pytest.raises(DeniedError, match=f"found {6 - taking_back} survivors that add"):
            world.keepers[keeper].answer(1, request)
    else:
        assert world.keepers[keeper].answer(1, request)


def test_a_device_counts_once_whatever_it_says(monkeypatch):
    world = World(6, least=4)
    uploads = world.uploads(range(5), taking_back=range(5))
    with monkeypatch.context() as patched:
        patched.setattr("edgemerge.privacy.masking.ADDS", b"\xc8")
        data = world.upload(5)
        uploads[5] = read_upload(world.cohort, 1, data)
    with pytest.raises(FormatError, match="neither adds something nor takes back"):
        read_upload(world.cohort, 1, data)
    keeper = world.cohort.keepers_of(1)[0]
    with pytest.raises(DeniedError, match="survivors that add"):
        world.keepers[keeper].answer(1, world.request(uploads, keeper))


def test_a_key_that_keeps_no_secret_is_named():
    """With a point of low order all others' secrets are the same, and `cryptography` refuses."""
    world = World(5)
    members = list(world.cohort.members)
    members[3] = replace(members[3], agreement=bytes(32))
    cohort = replace(world.cohort, members=tuple(members))
    with pytest.raises(RejectedError, match="public key of pump-0003"):
        make_upload(cohort, world.keys[0], 1, world.deltas[0])


@pytest.mark.parametrize("field", ["agreement", "verification"])
def test_two_members_with_one_key_are_refused(field):
    members = list(World(5).cohort.members)
    members[3] = replace(members[3], **{field: getattr(members[1], field)})
    with pytest.raises(SettingError, match="two members with one key"):
        replace(World(5).cohort, members=tuple(members))


def test_a_list_of_another_cohort_says_nothing_about_an_upload():
    """Else its keepers could say that a device was left out whose upload was opened elsewhere."""
    world, other = World(5), World(6, seed=1)
    own = world.upload(2)
    survivors = Survivors(1, {n: u.digest for n, u in other.uploads(range(5)).items()})
    message = survivors.message(other.cohort)
    signatures = {k: keys.sign(message) for k, keys in enumerate(other.keys)}
    with pytest.raises(RejectedError, match="another cohort or epoch than that of the upload"):
        counts(other.cohort, survivors, signatures, own)
    later = Survivors(2, {n: u.digest for n, u in world.uploads([0, 1, 3, 4], 2).items()})
    signatures = {k: keys.sign(later.message(world.cohort)) for k, keys in enumerate(world.keys)}
    with pytest.raises(RejectedError, match="another cohort or epoch than that of the upload"):
        counts(world.cohort, later, signatures, own)


@pytest.mark.parametrize("bit", [128])
def test_who_copies_the_key_of_another_member_does_not_have_its_masks(bit):
    """The same point with its unused bit set: all others' secrets with both are the same."""
    world = World(6)
    members = list(world.cohort.members)
    copied = bytearray(members[0].agreement)
    copied[31] ^= bit
    members[5] = replace(members[5], agreement=bytes(copied))
    cohort = replace(world.cohort, members=tuple(members))
    third = world.keys[2]
    assert third.secret(members[5]) == third.secret(members[0])
    commitments = read_upload(cohort, 1, make_upload(cohort, third, 1, world.deltas[2])).commitments
    assert len(set(commitments)) == 6  # its own, and one with each of five neighbours


def test_who_copies_the_key_of_another_member_cannot_have_its_boxes_opened():
    """Shares would be told by the neighbours of the copy, of whom others may be missing."""
    world = World(6)
    members = list(world.cohort.members)
    *start, last = members[0].agreement
    members[5] = replace(members[5], agreement=bytes([*start, last ^ 128]))
    cohort = replace(world.cohort, members=tuple(members))
    uploads = {
        n: read_upload(cohort, 1, make_upload(cohort, world.keys[n], 1, world.deltas[n]))
        for n in range(5)
    }
    uploads[5] = uploads[0]
    boxes = {n: each.boxes[cohort.keepers_of(1).index(2)] for n, each in uploads.items()}
    message = listed(uploads).message(cohort)
    signatures = {n: keys.sign(message) for n, keys in enumerate(world.keys)}
    request = make_request(cohort, listed(uploads), signatures, boxes)
    answer = Keeper(cohort, world.keys[2]).answer(1, request)
    shares = read_answer(cohort, listed(uploads), answer).shares
    assert [share is None for share in shares] == [False] * 5 + [True]


def test_unreadable_boxes_are_named_where_too_few_are_left():
    world = World(5, least=5)
    uploads = world.uploads(range(5))
    uploads[2] = replace(uploads[2], boxes=tuple(bytes(len(b)) for b in uploads[2].boxes))
    keeper = world.cohort.keepers_of(1)[0]
    with pytest.raises(DeniedError, match="what pump-0002 sent cannot be opened"):
        world.keepers[keeper].answer(1, world.request(uploads, keeper))


def reached(cohort, here):
    """Return the survivors that are connected with the first of them, neighbour by neighbour."""
    found, waiting = set(), {min(here)}
    while waiting:
        one = waiting.pop()
        found.add(one)
        waiting |= (set(cohort.neighbours_of(1, one)) & here) - found
    return found


@pytest.mark.parametrize("victims", [1, 2, 20])
def test_keepers_do_not_let_a_server_cut_survivors_out_of_a_ring(victims):
    """It leaves out all neighbours of some: whoever is left would be a total of their own."""
    world = World(110, words=3)
    ring = world.cohort._shuffled(1, b"neighbours")
    here = {*ring[:victims], *ring[victims + 30 : -30]}
    assert reached(world.cohort, here) in (set(ring[:victims]), here - set(ring[:victims]))
    assert not world.cohort.holds_together(1, here)
    keeper = next(k for k in world.cohort.keepers_of(1) if k in here)
    request = world.request(world.uploads(here), keeper)
    with pytest.raises(DeniedError, match="lost too many neighbours"):
        world.keepers[keeper].answer(1, request)
    one_more = here | {ring[victims + 10]}
    assert reached(world.cohort, one_more) == one_more


@examples(20)
@given(st.integers(0, 2**32 - 1), st.floats(0.0, 0.8), st.sampled_from([0, 1, 2]))
def test_what_holds_together_does_so_whoever_colludes(seed, lost, colluding):
    """Gaps of any width, also such that a ring is just held by as many as may collude."""
    rng = np.random.default_rng(seed)
    cohort = World(130, words=1).cohort
    cohort = replace(cohort, threshold=(cohort.keepers + 1 + colluding) // 2)
    ring = cohort._shuffled(1, b"neighbours")
    widths = rng.integers(26, 34, 2)
    starts = rng.choice([0, 32, 64, 96], 2, replace=False)
    here = set(np.flatnonzero(rng.random(130) >= lost / 4).tolist())
    for start, width in zip(starts, widths, strict=True):
        here -= set(ring[start : start + width])
        here |= set(rng.choice(ring[start : start + width], rng.integers(0, 3)).tolist())
    if not cohort.holds_together(1, here):
        return
    for gone in combinations(sorted(here), min(cohort.colluding, 1)):
        assert reached(cohort, here - set(gone)) == here - set(gone)


@pytest.mark.parametrize(
    ("keepers", "threshold", "colluding"), [(31, 16, 0), (30, 16, 1), (31, 17, 2)]
)
def test_more_than_may_collude_must_hold_a_ring_together(keepers, threshold, colluding):
    cohort = replace(World(130, words=1).cohort, keepers=keepers, threshold=threshold)
    assert cohort.colluding == colluding
    ring = cohort._shuffled(1, b"neighbours")
    arcs = {ring[0], *ring[31:61], *ring[91:]}
    for left in range(4):
        here = arcs | {*ring[10 : 10 + left // 2], *ring[70 : 70 + left - left // 2]}
        assert cohort.holds_together(1, here) == (left > colluding)
        assert (reached(cohort, here) == here) == (left > 0)


def test_two_rows_of_a_ring_have_no_fewer_survivors_than_counted():
    rng = np.random.default_rng(0)
    for _ in range(200):
        n = int(rng.integers(6, 24))
        length = int(rng.integers(1, n // 2 + 1))
        here = rng.integers(0, 2, n)
        rows = [int(np.take(here, range(i, i + length), mode="wrap").sum()) for i in range(n)]
        apart = [
            rows[i] + rows[j]
            for i in range(n)
            for j in range(n)
            if length <= (j - i) % n <= n - length
        ]
        assert fewest_of_two(rows, length) == min(apart)


def test_few_keepers_are_refused():
    """One keeper that works with the server could open everything."""
    cohort = World(30).cohort
    with pytest.raises(SettingError, match="expected more than half of the keepers, and 15 to 30"):
        replace(cohort, keepers=14, threshold=8)


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
    survivors = Survivors(1, {n: u.digest for n, u in uploads.items()})
    for place in places:
        changed = [
            (int.from_bytes(answers[place][i : i + SHARE_BYTES], "little") + 1 + place) % PRIME
            for i in range(4, len(answers[place]) - 64, SHARE_BYTES)
        ]
        body = answers[place][:4] + b"".join(c.to_bytes(SHARE_BYTES, "little") for c in changed)
        answers[place] = signed_answer(world, place, survivors, body)
    opened = open_total(world.cohort, 1, uploads, answers)
    assert np.array_equal(opened.total, world.deltas.sum(0, dtype=np.uint64))
    found = {keeper for keeper, _ in opened.disputes}
    assert found == (set(places) if min(places) < 5 else set())


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


def test_two_shares_of_three_tell_nothing():
    """Both together are uniform whatever the secret is: a chi-squared test over 8 × 8 cells."""
    rng = insecure.Random(1)
    draws = 8000
    for secret in (bytes(SEED_BYTES), bytes([255] * SEED_BYTES)):
        cells = np.zeros((8, 8))
        for _ in range(draws):
            (first,), (second,) = split_secrets([secret], [2, 5], 3, rng.randbytes)
            cells[first * 8 // PRIME, second * 8 // PRIME] += 1
        chi2 = ((cells - draws / 64) ** 2 / (draws / 64)).sum()
        assert chi2 < 103.4  # 99.9 % of 63 degrees of freedom


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
        ({"keepers": 10}, "9 to 9 of them"),
        ({"neighbours": 6}, "6 neighbours for 9 members, expected 8 or more"),
        ({"neighbours": 7}, "7 neighbours"),
    ],
)
def test_numbers_that_cannot_work_are_refused(numbers, words):
    cohort = World(9).cohort
    with pytest.raises(SettingError, match=words):
        replace(cohort, **numbers)


@pytest.mark.parametrize("colluding", [0.0, 0.05, 0.2])
def test_a_ring_holds_together_whoever_of_so_many_colludes(colluding):
    """More neighbours are needed than without them: else keepers would refuse again and again."""
    members = World(300, words=1).cohort.members
    cohort = Cohort.of("pumps", members, 1, colluding=colluding)
    chance = chance_of_silence(300, cohort.neighbours, cohort.colluding + 1, 1 / 3)
    assert 300**2 / 2 * chance <= MAX_SPLIT


@pytest.mark.parametrize("neighbours", [58, 61])
def test_a_ring_has_enough_neighbours(neighbours):
    cohort = World(130, words=1).cohort
    with pytest.raises(SettingError, match=f"{neighbours} neighbours .*, expected 60 or more"):
        replace(cohort, neighbours=neighbours)


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
    assert chance_of_silence(100, 3, 4, 0.0) == 1.0  # more are needed than there are


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


@pytest.mark.parametrize("colluding", [0.0, 0.05])
def test_a_third_of_a_ring_may_be_missing(colluding):
    members = World(300, words=1).cohort.members
    cohort = Cohort.of("pumps", members, 1, colluding=colluding)
    rng = np.random.default_rng(0)
    for epoch in range(1, 101):
        assert cohort.holds_together(epoch, set(rng.permutation(300)[:200].tolist()))
    assert cohort.colluding >= int(colluding * 300)
