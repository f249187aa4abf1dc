"""Masked sums: a server adds up what devices send, and can open nothing but the total.

A cohort of devices agrees on its members beforehand. In each epoch every device sends one upload,

    y_i = delta_i + PRG(b_i) + Σ_j ± PRG(s_ij)   mod 2⁶⁴,

where s_ij is a seed that only the neighbours i and j can compute and b_i is the device's own. The
seeds of neighbours cancel in the sum. Some devices are keepers in this epoch: each holds a Shamir
share of every seed, in a box that only it can open. Told who survived (whose uploads arrived), a
keeper signs this list, one an epoch. Shown `threshold` signatures of the same list, it reveals
shares of b_i for survivors and of s_ij between survivors and the missing, never both for one
device. With `threshold` answers the server removes what has not cancelled. The sums are integers,
so the total is exact.

No two lists of an epoch have enough signatures, so all shares that are revealed are about one. Were
they revealed with the signature, a server could show each keeper another list, all with the same
device and each without some of its neighbours: together that gives all its masks.

A server may say of anybody that it is missing. So keepers refuse a list whose graph of neighbours
falls apart (each piece would be a total of its own), or in which fewer than `least` uploads add
fresh samples (`gate.py`): each box says so, too, where the server cannot change it. Then any
combination of opened epochs contains the fresh sums of at least `least` survivors of the latest
one, also if an epoch failed and its deltas are sent again with the next.

| key or nonce | made from | used for | used again |
|---|---|---|---|
| device seed | 32 random bytes | both pairs below | always: it is all that is stored |
| X25519 pair | HKDF of the device seed | agreeing on secrets with members | always |
| Ed25519 pair | HKDF of the device seed | signing uploads, lists and answers | always |
| s_ij | HKDF of the pair's secret, cohort, epoch, both ends | mask of i and j | never |
| b_i | 31 random bytes | own mask | never: drawn per epoch, the upload is kept |
| box key | HKDF of the pair's secret, cohort, epoch, ends, upload | a box | never: its nonce is 0 |
| coefficients | 48 random bytes each | Shamir shares of one s_ij or b_i | never |
| mask key | HKDF of s_ij or b_i | one ChaCha20 stream | never: its nonce is 0 |
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from hashlib import sha256
from math import comb
from typing import Any, Self

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from edgemerge.core.errors import DeniedError, FormatError, RejectedError, SettingError
from edgemerge.core.projection import Projection
from edgemerge.core.stats import Stats
from edgemerge.privacy.gate import count_numbers
from edgemerge.privacy.noise import NoiseSettings

Words = NDArray[np.uint64]  # a vector of Z/2⁶⁴
Random = Callable[[int], bytes]

PRIME = 2**255 - 19  # the field of the shares
SEED_BYTES, SHARE_BYTES, KEY_BYTES, HASH_BYTES, SIGNATURE_BYTES = 31, 32, 32, 32, 64
TAG_BYTES = 16  # of a box
MAX_COMPLETE = 100  # members that are all neighbours of each other; more make a sparse graph
MIN_NEIGHBOURS = 60  # of a member in a sparse graph
MIN_KEEPERS = 15  # of a cohort that has so many members
ADDS, TAKES_BACK = b"\x01", b"\x00"  # what an upload, and each of its boxes, says of itself
ADDS_PLACE = len(b"edgemerge masked 3 upload") + HASH_BYTES + 8 + 4  # in its bytes
UNREADABLE = b"\xff" * SHARE_BYTES  # no number of the field: a keeper could not open the box
MAX_TRIES = 4096  # sets of keepers that are tried when some of them lie
MAX_TERMS = 500_000  # that all of them may have: about a second
MAX_SPLIT = 1e-6  # chance that losses cut the graph, and so the total, in two
MAX_SILENCE = 0.02  # chance that an epoch lacks keepers: then its deltas go with the next one


def words_of(stats: Stats) -> Words:
    """Return sums as whole numbers of quanta: the upper triangle of U, then V, C, S and the count.

    Args:
        stats: The sums, or a difference of sums: numbers below 0 wrap around.
    """
    upper = np.triu_indices(len(stats.U))
    parts = (stats.U[upper], stats.V.ravel(), stats.C, stats.S, [stats.count])
    quanta = np.concatenate(parts) / stats.projection.quantum
    return np.rint(quanta).astype(np.int64).view(np.uint64)


def words_length(projection: Projection) -> int:
    """Return the number of words of the sums of an autoencoder.

    Args:
        projection: The projection of the sums.
    """
    return count_numbers(projection) + 1  # the count of samples


def stats_of(projection: Projection, words: Words) -> Stats:
    """Return the sums that `words_of` turned into words.

    Args:
        projection: The projection of the sums.
        words: As many words as `words_length` says.

    Raises:
        FormatError: The number of words is another.
    """
    N, n = projection.n_hidden, projection.n_inputs
    if words.shape != (words_length(projection),):
        raise FormatError(f"found {words.shape} words, expected {words_length(projection)}")
    values = words.view(np.int64) * projection.quantum
    ends = np.cumsum([N * (N + 1) // 2, N * n, n, n])
    upper, V, C, S, count = np.split(values, ends)
    U = np.zeros((N, N))
    U[np.triu_indices(N)] = upper
    U = U + np.triu(U, 1).T
    return Stats(projection, U, V.reshape(N, n), C, S, float(count[0]))


@dataclass(frozen=True)
class Member:
    """A device of a cohort, with the public halves of its keys.

    Args:
        name: The device.
        agreement: Its X25519 public key, 32 bytes.
        verification: Its Ed25519 public key, 32 bytes.
    """

    name: str
    agreement: bytes
    verification: bytes


class DeviceKeys:
    """The long-lived keys of a device; `seed` is all that must be stored, and kept secret.

    >>> keys = DeviceKeys(bytes(32))
    >>> DeviceKeys(keys.seed).member("pump-3") == keys.member("pump-3")
    True
    """

    def __init__(self, seed: bytes) -> None:
        """Derive both keys from 32 random bytes.

        Args:
            seed: Drawn once with `DeviceKeys.draw`.
        """
        if len(seed) != KEY_BYTES:
            raise SettingError(f"found a seed of {len(seed)} bytes, expected {KEY_BYTES}")
        self.seed = seed
        self._agreement = X25519PrivateKey.from_private_bytes(_derive(seed, b"agreement", 32))
        self._signing = Ed25519PrivateKey.from_private_bytes(_derive(seed, b"signing", 32))
        self._secrets: dict[bytes, bytes] = {}

    @classmethod
    def draw(cls, random: Random = os.urandom) -> Self:
        """Return new keys.

        Args:
            random: Returns so many random bytes; those of the system unless given.
        """
        return cls(random(KEY_BYTES))

    def member(self, name: str) -> Member:
        """Return the public halves.

        Args:
            name: The name of the device.
        """
        agreement, signing = self._agreement.public_key(), self._signing.public_key()
        return Member(name, agreement.public_bytes_raw(), signing.public_bytes_raw())

    def secret(self, other: Member) -> bytes:
        """Return what only this device and the other one know.

        Args:
            other: A member of the cohort; may be this device itself.

        Raises:
            RejectedError: The other's key gives everybody the same secret.
        """
        if other.agreement not in self._secrets:
            key = X25519PublicKey.from_public_bytes(other.agreement)
            try:
                self._secrets[other.agreement] = self._agreement.exchange(key)
            except ValueError as error:  # a point of low order
                raise RejectedError(
                    f"the public key of {other.name} cannot keep a secret: form cohorts without it"
                ) from error
        return self._secrets[other.agreement]

    def sign(self, message: bytes) -> bytes:
        """Return the signature of a message.

        Args:
            message: What is signed.
        """
        return self._signing.sign(message)


@dataclass(frozen=True)
class Cohort:
    """The devices that are added up together; who takes part pins `digest`.

    Args:
        fleet: The fleet of the devices.
        members: At least `least` devices, in order of their names.
        words: The length of every vector.
        least: The fewest survivors of an epoch whose total may be opened.
        keepers: The members that hold shares in an epoch; other members in each epoch.
        threshold: The answers of keepers that open a total. With more than
            (keepers + colluding)/2 two lists of survivors cannot both be opened.
        neighbours: The members with which each member shares a mask; all others in cohorts of up to
            100, at least 60 in larger ones.
        slots: The patterns that are added up, each in its own words, in this order; a device sends
            zeros for those that it does not have.
        noise: The noise in every delta; None (the default): deltas are exact.
        noisy: The devices whose noise hides a sample in every total, below `least`: whoever reads a
            total may be a member, and know its own noise.
    """

    fleet: str
    members: tuple[Member, ...]
    words: int
    least: int
    keepers: int
    threshold: int
    neighbours: int
    slots: tuple[str, ...] = ("normal",)
    noise: NoiseSettings | None = None
    noisy: int = 0

    def __post_init__(self) -> None:
        """Refuse members and numbers that cannot work."""
        self._check_members()
        if not self.slots or len(set(self.slots)) < len(self.slots) or self.words % len(self.slots):
            raise SettingError(f"found slots {self.slots} for {self.words} words: name each once")
        if self.noise is not None and len(self.slots) > 1:
            raise SettingError(f"found slots {self.slots}, expected one: noised sums have no slots")
        if self.noise is not None and not 1 <= self.noisy < self.least:
            raise SettingError(
                f"found {self.noisy} devices whose noise counts, of least={self.least}: "
                "expected at least 1, and fewer than least; raise least, or form larger cohorts"
            )
        n, K, t = len(self.members), self.keepers, self.threshold
        if not 3 <= self.least <= n:
            raise SettingError(
                f"found least={self.least} for {n} members, expected 3 to {n}: "
                "a sum of two devices tells each of them the other's"
            )
        if not (K // 2 < t <= K <= n and min(n, MIN_KEEPERS) <= K):
            raise SettingError(
                f"found {K} keepers of {n} members and a threshold of {t}: expected more than half "
                f"of the keepers, and {min(n, MIN_KEEPERS)} to {n} of them"
            )
        lowest = min(n - 1, n - 1 if n <= MAX_COMPLETE else MIN_NEIGHBOURS)
        if not lowest <= self.neighbours < n or (self.neighbours < n - 1 and self.neighbours % 2):
            raise SettingError(
                f"found {self.neighbours} neighbours for {n} members, expected {lowest} or more: "
                "an even number, or all others"
            )

    def _check_members(self) -> None:
        names = [member.name for member in self.members]
        if names != sorted(set(names)):
            raise SettingError("found members out of order or twice: sort them by their names")
        for keys in ({m.agreement for m in self.members}, {m.verification for m in self.members}):
            if len(keys) < len(names):
                raise SettingError("found two members with one key: each must have its own")

    @classmethod
    def of(
        cls,
        fleet: str,
        members: Iterable[Member],
        words: int,
        *,
        least: int = 3,
        missing: float = 1 / 3,
        colluding: float = 0.0,
        slots: Sequence[str] = ("normal",),
        noise: NoiseSettings | None = None,
    ) -> Self:
        """Return a cohort with numbers that let it work, and say so if there are none.

        Args:
            fleet: The fleet of the devices.
            members: The devices, in any order.
            words: The length of every vector: `words_length(projection)` for each slot.
            least: The fewest survivors whose total may be opened.
            missing: The share of the members that may be missing in an epoch.
            colluding: The share of the members that may work together with the server.
            slots: The patterns that are added up.
            noise: The noise in every delta, none by default.

        Raises:
            SettingError: Fewer than 3 members; or the members are too few for these shares.
        """
        found = tuple(sorted(members, key=lambda member: member.name))
        n = len(found)
        bad = int(colluding * n)
        complete = n <= MAX_COMPLETE
        neighbours = n - 1 if complete else sparse_neighbours(n, missing, bad + 1)
        for keepers in range(min(n, MIN_KEEPERS), n + 1):
            threshold = (keepers + min(bad, keepers)) // 2 + 1
            silence = chance_of_silence(n, keepers, threshold, missing)
            if threshold <= keepers and silence <= MAX_SILENCE:
                numbers = (words, least, keepers, threshold, neighbours)
                noisy = 0 if noise is None else least - max(bad, 1)
                return cls(fleet, found, *numbers, tuple(slots), noise, noisy)
        raise SettingError(
            f"found {n} members of which {missing:.0%} may be missing and {colluding:.0%} "
            "collude: then the rest cannot open a total; make the cohort larger"
        )

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of everything that the members agree on."""
        fields = [self.fleet, self.words, self.least, self.keepers, self.threshold, self.neighbours]
        parts = [str(field).encode() for field in (*fields, len(self.slots), *self.slots)]
        version = b"1"
        if self.noise is not None:
            agreed = (*self.noise.plain().values(), self.noisy)
            version, parts = b"2", [*parts, *(str(each).encode() for each in agreed)]
        for member in self.members:
            parts += [member.name.encode(), member.agreement, member.verification]
        framed = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
        return sha256(b"edgemerge cohort " + version + framed).digest()

    def plain(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        names = ("fleet", "words", "least", "keepers", "threshold", "neighbours")
        members = [[m.name, m.agreement.hex(), m.verification.hex()] for m in self.members]
        rest = {name: getattr(self, name) for name in names}
        if self.noise is not None:
            rest |= {"noise": self.noise.plain(), "noisy": self.noisy}
        return {**rest, "slots": list(self.slots), "members": members}

    @classmethod
    def parse(cls, plain: Any) -> Self:
        """Return the cohort that `plain` described.

        Args:
            plain: What came from elsewhere; it may be anything.

        Raises:
            FormatError: It does not describe a cohort.
        """
        try:
            members = tuple(
                Member(str(name), _key(agreement), _key(verification))
                for name, agreement, verification in plain["members"]
            )
            names = ["words", "least", "keepers", "threshold", "neighbours"]
            noise = NoiseSettings.parse(plain["noise"]) if "noise" in plain else None
            names += [] if noise is None else ["noisy"]
            numbers = {name: plain[name] for name in names}
            if any(type(number) is not int for number in numbers.values()):
                raise TypeError("a number is expected")
            slots = tuple(map(str, plain["slots"]))
            return cls(str(plain["fleet"]), members, slots=slots, noise=noise, **numbers)
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(f"this describes no cohort: {error}") from error

    def number_of(self, keys: DeviceKeys) -> int:
        """Return the number of the member that has these keys.

        Args:
            keys: The keys of a device.

        Raises:
            DeniedError: It is not a member.
        """
        own = keys.member("")
        for number, member in enumerate(self.members):
            if replace(member, name="") == own:
                return number
        raise DeniedError(f"this device is not in the cohort of {self.fleet}: wait for the next")

    def keepers_of(self, epoch: int) -> list[int]:
        """Return the members that are keepers in an epoch, in order of their numbers.

        Args:
            epoch: The number of the epoch.
        """
        return sorted(self._shuffled(epoch, b"keepers")[: self.keepers])

    def neighbours_of(self, epoch: int, number: int) -> list[int]:
        """Return the members that share a mask with a member, in order of their numbers.

        Args:
            epoch: The number of the epoch.
            number: The number of the member.
        """
        n = len(self.members)
        if self.neighbours == n - 1:
            return [other for other in range(n) if other != number]
        ring = self._shuffled(epoch, b"neighbours")
        place, reach = ring.index(number), self.neighbours // 2
        near = (ring[(place + step) % n] for step in range(-reach, reach + 1) if step)
        return sorted(near)

    def holds_together(self, epoch: int, survivors: Collection[int]) -> bool:
        """Return whether no part of the survivors can be added up apart from the others.

        A ring falls apart only if all neighbours on one side are lost, in two places. Those who
        collude are lost, too, so more survivors than may collude must be in any two such rows.

        Args:
            epoch: The number of the epoch.
            survivors: The members whose uploads are there, or are said to be.
        """
        n, row = len(self.members), self.neighbours // 2
        if self.neighbours == n - 1:
            return True
        here = np.array([each in survivors for each in self._shuffled(epoch, b"neighbours")], int)
        ends = np.cumsum(np.concatenate([here, here]))
        rows = ends[row : row + n] - ends[:n]  # after each place
        return fewest_of_two(rows.tolist(), row) > self.colluding

    @property
    def colluding(self) -> int:
        """The members that may work together with the server: what the threshold allows."""
        return 2 * self.threshold - self.keepers - 1

    def context(self, epoch: int, purpose: bytes) -> bytes:
        """Return what binds a key or a message to this cohort, an epoch and a purpose.

        Args:
            epoch: The number of the epoch.
            purpose: A word for what it is used for.
        """
        return b"edgemerge masked 3 " + purpose + self.digest + epoch.to_bytes(8, "little")

    def _shuffled(self, epoch: int, purpose: bytes) -> list[int]:
        return _shuffled(self.context(epoch, purpose), len(self.members))


def _key(text: str) -> bytes:
    found = bytes.fromhex(text)
    if len(found) != KEY_BYTES:
        raise ValueError(f"found a key of {len(found)} bytes, expected {KEY_BYTES}")
    return found


@lru_cache(maxsize=8)
def _shuffled(context: bytes, length: int) -> list[int]:
    return sorted(range(length), key=lambda i: sha256(context + i.to_bytes(4, "little")).digest())


def chance_of_silence(members: int, keepers: int, threshold: int, missing: float) -> float:
    """Return the chance that fewer keepers than the threshold are there.

    Args:
        members: The members of the cohort.
        keepers: The keepers among them, drawn at random.
        threshold: The keepers that are needed.
        missing: The share of the members that is missing.

    >>> chance_of_silence(100, 31, 16, 1 / 3) < 0.02
    True
    """
    gone = int(members * missing)
    here = members - gone
    few = range(min(threshold, keepers + 1))
    ways = sum(comb(here, k) * comb(gone, keepers - k) for k in few)
    return ways / comb(members, keepers)


def sparse_neighbours(members: int, missing: float, colluding: int = 0) -> int:
    """Return how many neighbours keep the graph connected when some members are lost.

    Neighbours are next to each other on a ring of random order. It falls apart only if half of the
    neighbours in a row are lost in two places. There are fewer than n²/2 such pairs of places, and
    in each the k members of both rows must all be missing, but for at most those that collude:
    whoever they are, and wherever they stand.

    Args:
        members: The members of the cohort, n.
        missing: The share that is missing.
        colluding: The members that may collude.

    >>> sparse_neighbours(1000, 1 / 3)
    60
    >>> sparse_neighbours(1000, 1 / 3, 50)
    130
    """
    k = MIN_NEIGHBOURS
    while (
        k < members - 1
        and members**2 / 2 * chance_of_silence(members, k, colluding + 1, missing) > MAX_SPLIT
    ):
        k += 2
    return min(k, members - 1)


def fewest_of_two(rows: Sequence[int], length: int) -> int:
    """Return the fewest survivors that two rows of a ring have which do not overlap.

    Args:
        rows: The survivors of the row that begins at each place.
        length: The places of a row; at most half of all.

    >>> fewest_of_two([2, 1, 0, 1, 2, 2], 2)
    2
    """
    n, best = len(rows), sum(rows)
    order = sorted(range(n), key=rows.__getitem__)
    for i, first in enumerate(order):
        if 2 * rows[first] >= best:
            break
        for second in order[i + 1 :]:
            if rows[first] + rows[second] >= best:
                break
            if length <= (second - first) % n <= n - length:
                best = rows[first] + rows[second]
                break
    return best


def _derive(secret: bytes, info: bytes, length: int) -> bytes:
    return HKDF(algorithm=SHA256(), length=length, salt=None, info=info).derive(secret)


def mask_of(seed: bytes, words: int) -> Words:
    """Return the mask that a seed stands for.

    Args:
        seed: An own seed, or one between neighbours.
        words: Its length.
    """
    mask = np.empty(words, "<u8")
    _fill_mask(mask, seed)
    return mask


def _fill_mask(mask: Words, seed: bytes) -> None:
    key = _derive(seed, b"edgemerge mask", KEY_BYTES)
    cipher = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
    cipher.update_into(_zeros(mask.nbytes), mask.data.cast("B"))


@lru_cache(maxsize=4)
def _zeros(length: int) -> bytes:
    return bytes(length)


def _edge_seed(cohort: Cohort, keys: DeviceKeys, epoch: int, number: int, other: int) -> bytes:
    # with both ends: who registers another member's key must not have its seeds
    ends = b"".join(end.to_bytes(4, "little") for end in sorted((number, other)))
    info = cohort.context(epoch, b"edge") + ends
    return _derive(keys.secret(cohort.members[other]), info, SEED_BYTES)


def _box_key(
    cohort: Cohort, epoch: int, secret: bytes, sender: int, keeper: int, digest: bytes
) -> ChaCha20Poly1305:
    # with the upload's digest: a device that was started from a copy of its file may send another
    ends = sender.to_bytes(4, "little") + keeper.to_bytes(4, "little")
    info = cohort.context(epoch, b"box") + ends + digest
    return ChaCha20Poly1305(_derive(secret, info, KEY_BYTES))


def split_secrets(
    secrets: Sequence[bytes], places: Sequence[int], threshold: int, random: Random
) -> list[list[int]]:
    """Return Shamir shares: any `threshold` of a secret's shares give it, fewer tell nothing.

    There is one polynomial for each secret. All are evaluated at once, as parts of one large
    number, each so wide that it need not be reduced in between: places are small.

    Args:
        secrets: At most 31 bytes each.
        places: Where the polynomials are evaluated, one for each share; none is 0.
        threshold: The shares that are needed.
        random: Returns so many random bytes.

    Returns:
        For each place the shares of all secrets.
    """
    width = SHARE_BYTES + -(-threshold * max(places).bit_length() // 8)
    polynomials = []
    for secret in secrets:
        # 48 bytes reduced to 255 bits: the bias is below 2⁻¹²⁸
        drawn = _numbers(random(48 * (threshold - 1)), 48)
        polynomials.append([*drawn, int.from_bytes(secret, "little")])  # the highest power first
    powers = [
        int.from_bytes(b"".join([each.to_bytes(width, "little") for each in power]), "little")
        for power in zip(*polynomials, strict=True)
    ]
    shares = []
    for place in places:
        value = 0
        for coefficients in powers:
            value = value * place + coefficients
        shares.append(_numbers(value.to_bytes(width * len(secrets), "little"), width))
    return shares


def _numbers(data: bytes, width: int) -> list[int]:
    """Return bytes as numbers of the field, `width` bytes for each."""
    starts = range(0, len(data), width)
    return [int.from_bytes(data[start : start + width], "little") % PRIME for start in starts]


def weights_at_zero(places: Sequence[int]) -> list[int]:
    """Return the factors of shares whose sum is the secret.

    Args:
        places: Where the shares were evaluated.
    """
    weights = []
    for own in places:
        above, below = 1, 1
        for other in places:
            if other != own:
                above = above * other % PRIME
                below = below * (other - own) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return weights


def join_shares(shares: Sequence[int], weights: Sequence[int]) -> bytes | None:
    """Return the secret; None if these shares give none of its length.

    Args:
        shares: As many as the threshold, in the order of the weights.
        weights: What `weights_at_zero` returned for their places.
    """
    value = sum(share * weight for share, weight in zip(shares, weights, strict=True)) % PRIME
    return value.to_bytes(32, "little")[:SEED_BYTES] if value < 256**SEED_BYTES else None


def _commitment(seed: bytes) -> bytes:
    """Return a hash that shows later whether a joined seed is the right one."""
    return sha256(b"edgemerge seed" + seed).digest()


@dataclass(frozen=True)
class Upload:
    """What one device sends in one epoch, as the server reads it.

    Args:
        number: The member that sent it.
        masked: Its delta behind masks.
        commitments: A hash of its own seed, then of each edge seed, in order of the neighbours.
        boxes: One sealed box for each keeper, in their order.
        digest: SHA-256 of all that is before the boxes, which can only be opened with it.
    """

    number: int
    masked: Words
    commitments: tuple[bytes, ...]
    boxes: tuple[bytes, ...]
    digest: bytes


def make_upload(
    cohort: Cohort,
    keys: DeviceKeys,
    epoch: int,
    delta: Words,
    random: Random = os.urandom,
    *,
    adds: bool = True,
) -> bytes:
    """Return the one message of a device in an epoch.

    Store it before it is sent and send the same bytes again after a failure: two uploads with
    different own masks would reveal what the device has learnt in between.

    Args:
        cohort: The cohort, whose digest this device has pinned.
        keys: The keys of this device.
        epoch: The number of the epoch, never used before.
        delta: What is new since the last counted epoch, as `cohort.words` words.
        random: Returns so many random bytes; those of the system unless given.
        adds: Whether it covers fresh samples; False if it only takes back earlier ones. Keepers
            open no total with fewer than `cohort.least` uploads that add some.
    """
    if delta.shape != (cohort.words,):
        raise FormatError(f"found {delta.shape} words, expected {cohort.words}")
    number = cohort.number_of(keys)
    masked, near = delta.copy(), cohort.neighbours_of(epoch, number)
    flag = ADDS if adds else TAKES_BACK
    edges = (_edge_seed(cohort, keys, epoch, number, other) for other in near)
    seeds = [random(SEED_BYTES), *edges]
    _add_masks(masked, zip(seeds, [False, *(other < number for other in near)], strict=True))
    head = b"".join(
        [
            cohort.context(epoch, b"upload"),
            number.to_bytes(4, "little"),
            flag,
            masked.astype("<u8").tobytes(),
            *map(_commitment, seeds),
        ]
    )
    keepers, digest = cohort.keepers_of(epoch), sha256(head).digest()
    places = [keeper + 1 for keeper in keepers]
    boxes = []
    split = split_secrets(seeds, places, cohort.threshold, random)
    for keeper, numbers in zip(keepers, split, strict=True):
        shares = b"".join([number.to_bytes(SHARE_BYTES, "little") for number in numbers])
        secret = keys.secret(cohort.members[keeper])
        key = _box_key(cohort, epoch, secret, number, keeper, digest)
        boxes.append(key.encrypt(bytes(12), flag + shares, None))
    body = b"".join([head, *boxes])
    return body + keys.sign(body)


def _box_length(cohort: Cohort) -> int:
    return 1 + (1 + cohort.neighbours) * SHARE_BYTES + TAG_BYTES


def upload_digest(cohort: Cohort, data: bytes) -> bytes:
    """Return what a list of survivors has of an upload, which is not read or verified.

    Args:
        cohort: The cohort.
        data: The bytes of `make_upload`.
    """
    length = ADDS_PLACE + 1 + 8 * cohort.words + HASH_BYTES * (1 + cohort.neighbours)
    return sha256(data[:length]).digest()


def read_upload(cohort: Cohort, epoch: int, data: bytes) -> Upload:
    """Return an upload, or refuse one of another cohort, epoch, length or sender.

    Args:
        cohort: The cohort.
        epoch: The epoch that is open.
        data: The bytes of `make_upload`.

    Raises:
        FormatError: They are not an upload of this cohort and epoch.
        RejectedError: The signature is not that of the member.
    """
    found = parse_upload(cohort, epoch, data)
    _verify(cohort, found.number, data, _Reader(data, len(data) - SIGNATURE_BYTES))
    return found


def parse_upload(cohort: Cohort, epoch: int, data: bytes) -> Upload:
    """Return an upload that `read_upload` took before: its signature is not verified again.

    Args:
        cohort: The cohort.
        epoch: The epoch that is open.
        data: The bytes of `make_upload`.

    Raises:
        FormatError: They are not an upload of this cohort and epoch.
    """
    start = cohort.context(epoch, b"upload")
    if not data.startswith(start):
        raise FormatError(f"found an upload of another cohort or epoch, expected epoch {epoch}")
    reader = _Reader(data, len(start))
    number = reader.number()
    if number >= len(cohort.members):
        raise FormatError(f"found member {number}, expected one of {len(cohort.members)}")
    n_seeds = 1 + cohort.neighbours
    if reader.take(1) not in (ADDS, TAKES_BACK):
        raise FormatError("found an upload that neither adds something nor takes back")
    masked = np.frombuffer(reader.take(8 * cohort.words), "<u8").astype(np.uint64)
    commitments = tuple(reader.take(HASH_BYTES) for _ in range(n_seeds))
    digest = sha256(data[: reader.place]).digest()
    boxes = tuple(reader.take(_box_length(cohort)) for _ in range(cohort.keepers))
    reader.take(SIGNATURE_BYTES)
    reader.must_be_at_end()
    return Upload(number, masked, commitments, boxes, digest)


@dataclass(frozen=True)
class Survivors:
    """Whose uploads arrived in an epoch; keepers sign it, and devices look for themselves in it.

    Args:
        epoch: The epoch.
        digests: The digest of the upload of each survivor, by the member's number.

    Raises:
        FormatError: Its bytes could be read as another list.
    """

    epoch: int
    digests: Mapping[int, bytes]

    def __post_init__(self) -> None:
        """Refuse rows of other lengths: cut elsewhere, a signed list would have other members."""
        rows = self.digests.items()
        if not all(0 <= n < 2**32 and len(digest) == HASH_BYTES for n, digest in rows):
            raise FormatError(f"found a list of other than {HASH_BYTES} bytes for each survivor")

    def message(self, cohort: Cohort) -> bytes:
        """Return the bytes that keepers sign.

        Args:
            cohort: The cohort.
        """
        count = len(self.digests).to_bytes(4, "little")
        rows = (n.to_bytes(4, "little") + self.digests[n] for n in sorted(self.digests))
        return b"".join([cohort.context(self.epoch, b"survivors"), count, *rows])

    def missing(self, cohort: Cohort, number: int) -> list[int]:
        """Return the neighbours of a member that are missing.

        Args:
            cohort: The cohort.
            number: The member.
        """
        near = cohort.neighbours_of(self.epoch, number)
        return [other for other in near if other not in self.digests]


def signed_by(cohort: Cohort, survivors: Survivors, signatures: Mapping[int, bytes]) -> set[int]:
    """Return the keepers of the epoch that have signed a list.

    Args:
        cohort: The cohort.
        survivors: The list.
        signatures: What members may have signed, by their numbers.
    """
    message, keepers = survivors.message(cohort), {*cohort.keepers_of(survivors.epoch)}
    return {k for k in keepers & {*signatures} if _signed(cohort, k, message, signatures[k])}


def must_be_agreed(cohort: Cohort, survivors: Survivors, signatures: Mapping[int, bytes]) -> None:
    """Refuse a list unless so many keepers signed it that no other one of its epoch has as many.

    Args:
        cohort: The cohort.
        survivors: The list.
        signatures: Those of its keepers, by their numbers.

    Raises:
        DeniedError: Fewer than `threshold` keepers of the epoch signed the list.
    """
    signed = signed_by(cohort, survivors, signatures)
    if len(signed) < cohort.threshold:
        raise DeniedError(
            f"found {len(signed)} valid signatures of keepers, expected {cohort.threshold}: "
            "the list of survivors may differ from what other devices were shown"
        )


def make_request(
    cohort: Cohort,
    survivors: Survivors,
    signatures: Mapping[int, bytes],
    boxes: Mapping[int, bytes],
) -> bytes:
    """Return what a keeper is asked: the survivors, the boxes that they sent to it, and who agreed.

    Args:
        cohort: The cohort.
        survivors: Whose uploads arrived.
        signatures: What `Keeper.sign` returned for this list, by the keeper's number.
        boxes: The box for this keeper in each of their uploads, by the member's number.
    """
    parts = [
        cohort.context(survivors.epoch, b"request"),
        len(survivors.digests).to_bytes(4, "little"),
    ]
    for number in sorted(survivors.digests):
        parts += [number.to_bytes(4, "little"), survivors.digests[number], boxes[number]]
    parts.append(len(signatures).to_bytes(4, "little"))
    for number in sorted(signatures):
        parts += [number.to_bytes(4, "little"), signatures[number]]
    return b"".join(parts)


class Keeper:
    """Signs one list an epoch, and reveals shares for a list that enough keepers have signed.

    Args:
        cohort: The cohort, whose digest this device has pinned.
        keys: The keys of this device.
        state: What `state` was when it was stored; empty for a new keeper.

    Attributes:
        state: The last epoch and a hash of its list: store it before anything is sent. Empty
            before the first list.
    """

    def __init__(self, cohort: Cohort, keys: DeviceKeys, state: bytes = b"") -> None:
        """Go on from a stored state."""
        self._cohort, self._keys = cohort, keys
        self._number = cohort.number_of(keys)
        self.state = state

    def sign(self, survivors: Survivors) -> bytes:
        """Return the signature of a list of survivors: of one an epoch.

        Args:
            survivors: Whose uploads arrived.

        Raises:
            DeniedError: The epoch is over, or another list of it was signed; or the survivors are
                too few, or a part of them would be open.
        """
        self._agree(survivors)
        return self._keys.sign(survivors.message(self._cohort))

    def answer(self, epoch: int, request: bytes) -> bytes:
        """Return the shares that open the total of the survivors on whom keepers agreed.

        Args:
            epoch: The epoch.
            request: The bytes of `make_request`.

        Raises:
            DeniedError: Too few keepers signed this list; or this one would not sign it; or too few
                of the survivors add fresh samples.
        """
        survivors, signatures, boxes = self._read(epoch, request)
        must_be_agreed(self._cohort, survivors, signatures)
        self._agree(survivors)
        return self._open(survivors, boxes)

    def _agree(self, survivors: Survivors) -> None:
        """Take a list for that of its epoch, unless another one was."""
        cohort, epoch, digests = self._cohort, survivors.epoch, survivors.digests
        if self._number not in cohort.keepers_of(epoch):
            raise DeniedError(f"this device is not a keeper in epoch {epoch}")
        if any(not 0 <= number < len(cohort.members) for number in digests):
            raise FormatError(f"found other members than those of {cohort.fleet} in a list")
        if len(digests) < cohort.least:
            raise DeniedError(
                f"found {len(digests)} survivors, expected at least {cohort.least}: "
                "a total of fewer devices is not opened"
            )
        if not cohort.holds_together(epoch, digests):
            raise DeniedError(
                f"found {len(digests)} survivors of {len(cohort.members)}, of whom some have lost "
                "too many neighbours: a part of the total could be told from the rest"
            )
        listed = sha256(survivors.message(cohort)).digest()
        last = int.from_bytes(self.state[:8], "little") if self.state else -1
        if epoch < last or (epoch == last and listed != self.state[8:]):
            raise DeniedError(
                f"found a list of epoch {epoch}, of which another one was signed, or which is "
                "over: a keeper signs one"
            )
        self.state = epoch.to_bytes(8, "little") + listed

    def _read(
        self, epoch: int, request: bytes
    ) -> tuple[Survivors, dict[int, bytes], dict[int, bytes]]:
        """Return the list of a request, the signatures that it has, and the boxes."""
        cohort = self._cohort
        start = cohort.context(epoch, b"request")
        if not request.startswith(start):
            raise FormatError("found a request of another cohort or epoch")
        reader = _Reader(request, len(start))
        length = _box_length(cohort)
        digests: dict[int, bytes] = {}
        boxes: dict[int, bytes] = {}
        last = -1
        for _ in range(reader.number()):
            number = reader.number()
            if not last < number < len(cohort.members):
                raise FormatError(f"found member {number} out of order")
            last = number
            digests[number], boxes[number] = reader.take(HASH_BYTES), reader.take(length)
        numbers = range(reader.number())
        signatures = {reader.number(): reader.take(SIGNATURE_BYTES) for _ in numbers}
        reader.must_be_at_end()
        return Survivors(epoch, digests), signatures, boxes

    def _open(self, survivors: Survivors, boxes: Mapping[int, bytes]) -> bytes:
        """Return shares of all that these survivors have not cancelled, signed.

        In place of shares in a box that cannot be opened it says so: others may have theirs.
        """
        cohort, epoch = self._cohort, survivors.epoch
        shares, adding, unreadable = [], set[int](), list[str]()
        for sender in sorted(boxes):
            secret, digest = self._keys.secret(cohort.members[sender]), survivors.digests[sender]
            key = _box_key(cohort, epoch, secret, sender, self._number, digest)
            try:
                opened = key.decrypt(bytes(12), boxes[sender], None)
            except InvalidTag:
                opened = TAKES_BACK + UNREADABLE * (1 + cohort.neighbours)
                unreadable.append(cohort.members[sender].name)
            if opened[:1] == ADDS:
                adding.add(sender)
            missing = set(survivors.missing(cohort, sender))
            wanted = [0]  # the sender's own seed, then those towards the missing
            near = cohort.neighbours_of(epoch, sender)
            wanted += [1 + place for place, other in enumerate(near) if other in missing]
            shares += [opened[1 + SHARE_BYTES * w : 1 + SHARE_BYTES * (w + 1)] for w in wanted]
        if len(adding) < cohort.least:
            spoilt = f"; what {', '.join(unreadable)} sent cannot be opened" if unreadable else ""
            raise DeniedError(
                f"found {len(adding)} survivors that add fresh samples, expected at least "
                f"{cohort.least}: the others take back{spoilt}"
            )
        body = self._number.to_bytes(4, "little") + b"".join(shares)
        return body + self._keys.sign(_before_answer(cohort, survivors) + body)


def _before_answer(cohort: Cohort, survivors: Survivors) -> bytes:
    """Return what a signature of an answer covers besides the answer."""
    listed = sha256(survivors.message(cohort)).digest()
    return cohort.context(survivors.epoch, b"answer") + listed


@dataclass(frozen=True)
class Answer:
    """What a keeper answered, as the server reads it.

    Args:
        keeper: The member that answered.
        shares: For each survivor that of its own seed, then those towards its missing neighbours;
            None where the keeper could not open the survivor's box.
    """

    keeper: int
    shares: tuple[int | None, ...]


def read_answer(cohort: Cohort, survivors: Survivors, data: bytes) -> Answer:
    """Return an answer, or refuse one of another length, sender or list of survivors.

    Args:
        cohort: The cohort.
        survivors: The survivors that the keeper was asked about.
        data: What `Keeper.answer` returned.

    Raises:
        FormatError: It is not an answer of a keeper of this epoch.
        RejectedError: Its signature is not that of the keeper, or is of other survivors.
    """
    reader = _Reader(data, 0)
    keeper = reader.number()
    if keeper not in cohort.keepers_of(survivors.epoch):
        raise FormatError(f"found an answer of member {keeper}, who is not a keeper of this epoch")
    n_shares = sum(1 + len(survivors.missing(cohort, number)) for number in survivors.digests)
    shares = [int.from_bytes(reader.take(SHARE_BYTES), "little") for _ in range(n_shares)]
    _verify(cohort, keeper, data, reader, before=_before_answer(cohort, survivors))
    return Answer(keeper, tuple(s if s < PRIME else None for s in shares))


@dataclass(frozen=True)
class Opened:
    """The total of an epoch.

    Args:
        total: The sum of the survivors' deltas.
        survivors: Whose deltas it holds.
        disputes: The keepers whose share of a device's seed was wrong or missing, each with that
            device: one of the two lied, and nobody else can tell which.
    """

    total: Words
    survivors: Survivors
    disputes: frozenset[tuple[int, int]]


def open_total(
    cohort: Cohort, epoch: int, uploads: Mapping[int, Upload], answers: Iterable[bytes]
) -> Opened:
    """Return the total of all uploads.

    Args:
        cohort: The cohort.
        epoch: The epoch.
        uploads: The uploads that the keepers were asked about, by the member's number.
        answers: What keepers answered; more than the threshold helps if some of them lie.

    Raises:
        DeniedError: Too few valid answers.
        RejectedError: The shares of a device give none of the seeds it committed to; the message
            names it.
    """
    survivors = Survivors(epoch, {number: each.digest for number, each in uploads.items()})
    edges = {number: survivors.missing(cohort, number) for number in uploads}
    found = map(partial(read_answer, cohort, survivors), answers)
    shares = {answer.keeper: answer.shares for answer in found}
    if len(shares) < cohort.threshold:
        raise DeniedError(
            f"found {len(shares)} valid answers of keepers, expected {cohort.threshold}"
        )
    joined = _Joining(cohort, shares)
    total = np.zeros(cohort.words, np.uint64)
    masks: list[tuple[bytes, bool]] = []
    column = 0
    for number in sorted(uploads):
        total += uploads[number].masked
        near = cohort.neighbours_of(epoch, number)
        for other in (None, *edges[number]):
            place = 0 if other is None else 1 + near.index(other)
            seed = joined.seed(number, column, uploads[number].commitments[place])
            if seed is None:
                raise RejectedError(
                    f"the shares of {cohort.members[number].name} do not fit together: it sent "
                    "wrong ones, or several keepers did; leave it out of the next cohort"
                )
            masks.append((seed, other is None or other > number))
            column += 1
    _add_masks(total, masks)
    return Opened(total, survivors, frozenset(joined.disputes))


def counts(
    cohort: Cohort, survivors: Survivors, signatures: Mapping[int, bytes], upload: bytes
) -> bool:
    """Return whether an upload of this device is in a total; raise if keepers did not agree on it.

    Args:
        cohort: The cohort.
        survivors: The list that the server gave with the total.
        signatures: Those of the keepers, by their numbers.
        upload: The bytes that this device sent in the epoch.

    Raises:
        DeniedError: Fewer than `threshold` keepers of the epoch signed the list.
        RejectedError: The list is of another cohort or epoch than the upload, or has another upload
            of this device, which it has not sent.
    """
    if not upload.startswith(cohort.context(survivors.epoch, b"upload")):
        raise RejectedError("found a list of another cohort or epoch than that of the upload")
    must_be_agreed(cohort, survivors, signatures)
    start = len(cohort.context(survivors.epoch, b"upload"))
    number = int.from_bytes(upload[start : start + 4], "little")
    listed = survivors.digests.get(number)
    if listed not in (None, upload_digest(cohort, upload)):
        raise RejectedError(
            f"the list of epoch {survivors.epoch} has another upload of this device than it sent: "
            "the server is not to be trusted"
        )
    return listed is not None


class _Joining:
    """Finds seeds in shares of which some may be lies: a right seed fits its commitment."""

    def __init__(self, cohort: Cohort, shares: Mapping[int, Sequence[int | None]]) -> None:
        self._shares, self._threshold = shares, cohort.threshold
        self.disputes: set[tuple[int, int]] = set()  # a keeper, and whose share it is
        self._order = sorted(shares)  # keepers in most disputes last

    def seed(self, sender: int, column: int, commitment: bytes) -> bytes | None:
        """Return the seed of a sender in one column; None if no set of keepers gives it."""
        for keepers in self._sets(sender, column):
            found = self._join(keepers, column)
            if found is not None and _commitment(found) == commitment:
                if keepers != self._order[: self._threshold]:
                    self._find_disputes(sender, column, keepers, found)
                return found
        return None

    def _join(self, keepers: Sequence[int], column: int) -> bytes | None:
        all_shares = (self._shares[keeper][column] for keeper in keepers)
        shares = [share for share in all_shares if share is not None]
        return join_shares(shares, _weights(tuple(keeper + 1 for keeper in keepers)))

    def _sets(self, sender: int, column: int) -> Iterable[list[int]]:
        """Return sets of keepers to try, in an order that depends on nothing else."""
        able = [k for k in self._order if self._shares[k][column] is not None]
        if len(able) < self._threshold:
            return
        yield able[: self._threshold]
        trusted = [k for k in able if (k, sender) not in self.disputes]
        rng = np.random.default_rng(0)
        tries = min(MAX_TRIES, MAX_TERMS // self._threshold**2)
        for _ in range(tries if len(trusted) > self._threshold else 0):
            drawn = rng.choice(trusted, self._threshold, replace=False)
            yield sorted(map(int, drawn))

    def _find_disputes(self, sender: int, column: int, chosen: list[int], right: bytes) -> None:
        """A share is wrong if others, with it in the place of one of them, give another seed."""
        for keeper in set(self._shares) - set(chosen):
            has_one = self._shares[keeper][column] is not None
            if not has_one or self._join([*chosen[1:], keeper], column) != right:
                self.disputes.add((keeper, sender))
        times = Counter(keeper for keeper, _ in self.disputes)
        self._order.sort(key=lambda keeper: (times[keeper], keeper))


@lru_cache(maxsize=MAX_TRIES)
def _weights(places: tuple[int, ...]) -> list[int]:
    return weights_at_zero(places)


def _add_masks(words: Words, seeds: Iterable[tuple[bytes, bool]]) -> None:
    """Add the masks of seeds, or subtract those that are marked."""
    mask = np.empty(len(words), "<u8")
    for seed, minus in seeds:
        _fill_mask(mask, seed)
        (np.subtract if minus else np.add)(words, mask, out=words)


class _Reader:
    """Takes fields of known length from bytes."""

    def __init__(self, data: bytes, start: int) -> None:
        self._data, self.place = data, start

    def take(self, length: int) -> bytes:
        field = self._data[self.place : self.place + length]
        if len(field) != length:
            raise FormatError(f"found {len(self._data)} bytes, expected more")
        self.place += length
        return field

    def number(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def must_be_at_end(self) -> None:
        if self.place != len(self._data):
            raise FormatError(f"found {len(self._data)} bytes, expected {self.place}")


def _verify(cohort: Cohort, number: int, data: bytes, reader: _Reader, before: bytes = b"") -> None:
    """Check that a message ends with the signature of a member over all before it."""
    body = data[: reader.place]
    signature = reader.take(SIGNATURE_BYTES)
    reader.must_be_at_end()
    if not _signed(cohort, number, before + body, signature):
        raise RejectedError(f"the signature is not that of {cohort.members[number].name}")


def _signed(cohort: Cohort, number: int, message: bytes, signature: bytes) -> bool:
    key = Ed25519PublicKey.from_public_bytes(cohort.members[number].verification)
    try:
        key.verify(signature, message)
    except InvalidSignature:
        return False
    return True
