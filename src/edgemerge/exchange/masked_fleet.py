"""Exchange with a masked fleet: what this device saw can be read in sums of several devices only.

`push` stores a contribution in a file of this device; it travels as a delta behind masks when the
fleet's next epoch collects (`privacy.masking`). `pull` returns the fleet's total without this
device's part, which is subtracted here. Before that it does the device's share of the protocol, as
`take_part` does alone: register its keys, upload what was pushed, sign and answer as a keeper, read
which epochs its deltas are in. All that is needed after a crash is in one file, which is written
before anything is sent.

In a fleet with noise (`privacy.noise`) a contribution holds only what is new, clipped. Its noise is
drawn once, when an upload is made, and stored with it. An upload of which keepers signed that it is
not in the total goes again, with that noise, beside the next; the samples of one whose epoch failed
may have been seen, so their budget is spent, and they are not sent again.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any, Unpack

import numpy as np

from edgemerge.core.errors import FormatError, MismatchError, RejectedError, SettingError
from edgemerge.core.ledger import (
    Contribution,
    Ledger,
    Merged,
    MergedPart,
    Origin,
    Selection,
    must_be_of_kind,
)
from edgemerge.core.projection import Projection
from edgemerge.core.stats import Stats
from edgemerge.exchange.client import BINARY_HEADERS, JSON_HEADERS, fetch_projection
from edgemerge.exchange.connection import (
    MAX_REPLY_BYTES,
    Connection,
    ConnectionOptions,
    Reply,
    url_path,
)
from edgemerge.failpoints import failpoint
from edgemerge.files import write_atomically
from edgemerge.privacy.masking import (
    Cohort,
    DeviceKeys,
    Keeper,
    Random,
    Survivors,
    Words,
    counts,
    make_upload,
    stats_of,
    upload_digest,
    words_length,
    words_of,
)
from edgemerge.privacy.noise import (
    CLIPPED,
    WEIGHT_STEP,
    Draw,
    NoiseSettings,
    must_agree,
    must_have_noise,
)
from edgemerge.wire.admission import admit
from edgemerge.wire.codec import decode, encode, pack, unpack

MAX_STEPS = 8  # of the protocol in one call: enough to see one epoch through
MAX_STATE_BYTES = 2**31
MAX_SKIPPED = 2**20  # epochs that may pass without this device
AGAIN = "its sums go with the next upload"
STATUS = {  # what a device needs of it, and the types
    **dict.fromkeys(("registered", "uploaded", "asked"), bool),
    **dict.fromkeys(("epoch", "through"), int),
    "state": str,
    "dropped": list,
}

logger = logging.getLogger(__name__)


@dataclass
class MaskedState:
    """What must survive a crash.

    Args:
        seed: The seed of the device's keys.
        pin: The digest of the cohort that this device takes part in, in hexadecimal digits.
        newest: The newest contribution of each pattern, encoded.
        fresh: The patterns of which one came after the last upload: only then there is another.
        counted: What the total of each cohort holds of this device, by the cohort's number.
        through: The last epoch that is in it.
        epoch: The epoch of an upload whose fate is unknown; 0 if there is none.
        cohort: The number of the cohort of that upload.
        last: The last epoch with an upload: there is none for it, or one before it, again.
        delta: What that upload adds.
        upload: Its bytes.
        keeper: The state of this device as a keeper: which list it has signed.
        noise: The noise that was first met in the fleet, as plain JSON; {} if there was none, None
            before the fleet was asked.
        carried: What was noised before, and is in no total.
        lost: The uploads whose budget was spent in epochs that failed.
        fleet: The fleet that all of it is about; empty in files of older versions.
        timeline: The server's history, as it was named when the last upload was counted.
        proof: The digest of that upload, by which it is found in the list of its epoch.
    """

    seed: bytes
    pin: str = ""
    newest: dict[str, bytes] = field(default_factory=dict)
    fresh: set[str] = field(default_factory=set)
    counted: dict[int, Words] = field(default_factory=dict)
    through: int = 0
    epoch: int = 0
    cohort: int = 0
    last: int = 0
    delta: Words = field(default_factory=lambda: np.zeros(0, np.uint64))
    upload: bytes = b""
    keeper: bytes = b""
    noise: dict[str, Any] | None = None
    carried: Words = field(default_factory=lambda: np.zeros(0, np.uint64))
    lost: int = 0
    fleet: str = ""
    timeline: str = ""
    proof: str = ""

    def to_bytes(self) -> bytes:
        """Return it as bytes for a file."""
        numbers = ("through", "epoch", "cohort", "last", "lost")
        names = ("pin", "noise", "fleet", "timeline", "proof", *numbers)
        plain = {name: getattr(self, name) for name in names} | {"fresh": sorted(self.fresh)}
        patterns, counted = sorted(self.newest), sorted(self.counted)
        words = (self.counted[number].astype("<u8").tobytes() for number in counted)
        blobs = [self.seed, self.upload, self.keeper, self.delta.astype("<u8").tobytes()]
        blobs += [*words, *(self.newest[pattern] for pattern in patterns)]
        blobs.append(self.carried.astype("<u8").tobytes())
        tensors = {f"{i:04}": np.frombuffer(blob, np.int8) for i, blob in enumerate(blobs)}
        about = {**plain, "patterns": patterns, "counted": counted}
        return pack({"masked": json.dumps(about)}, tensors)

    @classmethod
    def from_bytes(cls, data: bytes) -> MaskedState:
        """Return what `to_bytes` wrote.

        Args:
            data: The bytes of the file.
        """
        metadata, tensors = unpack(data, MAX_STATE_BYTES)
        plain = json.loads(metadata["masked"])
        blobs = (tensors[name].tobytes() for name in sorted(tensors))
        seed, upload, keeper, delta, *rest = blobs
        # files of older versions end before it
        carried = rest.pop() if "noise" in plain else b""
        counted, newest = rest[: len(plain["counted"])], rest[len(plain["counted"]) :]
        return cls(
            seed,
            plain["pin"],
            dict(zip(plain["patterns"], newest, strict=True)),
            # files of older versions have whether any was
            fresh=set(plain["patterns"] if plain["fresh"] is True else plain["fresh"] or ()),
            counted=dict(zip(plain["counted"], map(_words, counted), strict=True)),
            through=plain["through"],
            epoch=plain["epoch"],
            cohort=plain["cohort"],
            last=plain["last"],
            delta=_words(delta),
            upload=upload,
            keeper=keeper,
            noise=plain.get("noise"),
            carried=_words(carried),
            lost=plain.get("lost", 0),
            **{name: plain.get(name, "") for name in ("fleet", "timeline", "proof")},
        )


class MaskedExchange:
    """A masked fleet on a server, as one device sees it.

    Args:
        url: Address of the server, http:// or https://.
        fleet: Name of the fleet.
        token: The device's token, from enrolling.
        device: The name of this device.
        path: The file of this device's keys and deltas; it is as private as the data.
        cohort: The digest that the device's cohort must have, in hexadecimal digits; None (the
            default): every cohort is taken as it comes. A server that invents members can then
            learn what this device sends, so compare digests where that matters.
        projection: What all devices share; None: ask the server when it is first needed.
        random: Returns so many random bytes; those of the system unless given.
        draw: Draws the noise, see `privacy.noise.Noise.add`; `opendp` unless given.
        epsilon: The largest ε of a fleet that this device takes part in; None (the default): that
            of the fleet, which cannot change later.
        delta: The largest δ, likewise.
        options: `ca_file`, `timeout_s`, `insecure` and `pins_file` of the `Connection`.
    """

    def __init__(
        self,
        url: str,
        fleet: str,
        token: str,
        *,
        device: str,
        path: str | os.PathLike[str],
        cohort: str | None = None,
        projection: Projection | None = None,
        random: Random = os.urandom,
        draw: Draw | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
        **options: Unpack[ConnectionOptions],
    ) -> None:
        """Load the file, or begin with new keys; send nothing yet."""
        self.fleet, self.device, self._path = fleet, device, Path(path)
        self._wanted, self._projection, self._random = cohort, projection, random
        self._draw, self._limits = draw, {"epsilon": epsilon, "delta": delta}
        self._connection = Connection(url, token, **options)
        self._lock = Lock()
        if self._path.exists():
            self._state = MaskedState.from_bytes(self._path.read_bytes())
            if self._state.fleet not in ("", fleet):  # nothing but the keys is about another one
                self._state = MaskedState(self._state.seed)
            self._state.fleet = fleet
        else:
            self._state = MaskedState(DeviceKeys.draw(random).seed, fleet=fleet)
            self._save()
        self._keys = DeviceKeys(self._state.seed)
        self._cohort: tuple[int, Cohort] | None = None
        self._status: Mapping[str, Any] = {}
        self._replied: Mapping[str, Any] | None = None  # the status after what was sent last
        self._total: tuple[dict[str, Any], Words] | None = None
        self._pulled: tuple[list[Any], Merged] | None = None  # the last one, and what it is made of

    @property
    def projection(self) -> Projection:
        """What all devices of the fleet share; asked of the server if it was not given."""
        if self._projection is None:
            self._projection = fetch_projection(self._connection, self.fleet)
        return self._projection

    @property
    def noise(self) -> NoiseSettings | None:
        """The noise of the fleet; asked of the server once, and then the same for ever.

        Raises:
            RejectedError: It protects less than this device asks for.
        """
        if not self.noise_known:
            with self._lock:
                self._agree(_read_status(self._ask("GET", "status")))
        return self._agreed

    @property
    def noise_known(self) -> bool:
        """Whether `noise` is known without asking."""
        return self._state.noise is not None

    @property
    def lost(self) -> int:
        """The uploads whose samples are in no total: their budget was spent in failed epochs."""
        return self._state.lost

    def push(self, contribution: Contribution) -> bool:
        """Store a contribution for the next epochs; return False if it was stored before.

        Nothing is sent: all that was pushed goes together, with the next `pull` or `take_part`.
        With noise it holds what is new since the one before, as `ClippedSums.take` returned it.
        """
        must_be_of_kind(contribution)
        if contribution.stats.projection != self.projection:
            raise MismatchError(
                f"{contribution} is not of the projection of {self.fleet}: "
                "every device must build the same Projection"
            )
        noised = self.noise is not None
        if noised != (contribution.pattern == CLIPPED):
            raise SettingError(
                f"found {contribution} for {self.fleet}, which has {self.noise or 'no noise'}: "
                "push what ClippedSums.take returned, as pattern 'clipped', where there is noise, "
                "and only there"
            )
        with self._lock:
            new = self._add(contribution) if noised else self._replace(contribution)
            if new:
                self._state.fresh.add(contribution.pattern)
                self._save()
        return new

    def take_part(self) -> None:
        """Do what the fleet waits for: send what was pushed, answer as a keeper."""
        with self._lock:
            self._take_part()

    def _replace(self, contribution: Contribution) -> bool:
        """Keep a contribution instead of the one before; return False if it is no newer."""
        data = self._state.newest.get(contribution.pattern)
        if data is not None and not _is_newer(contribution, self._decoded(data)):
            return False
        self._state.newest[contribution.pattern] = encode(contribution)
        return True

    def _decoded(self, data: bytes) -> Contribution:
        return decode(data, Contribution, limit=len(data), projection=self.projection)

    def _add(self, contribution: Contribution) -> bool:
        """Add clipped sums to those that wait for an upload; return False if they were before."""
        known = self._clipped
        if not _is_newer(contribution, known):
            return False
        added = replace(contribution, stats=known.stats + contribution.stats)
        self._state.newest[CLIPPED] = encode(added)
        return True

    @property
    def _clipped(self) -> Contribution:
        """What waits for an upload in a fleet with noise, with the newest revision that came."""
        data = self._state.newest.get(CLIPPED)
        if data is None:
            return Contribution(self.device, Stats.empty(self.projection), 0, CLIPPED)
        return self._decoded(data)

    def pull(self, selection: Selection, *, grouped: bool = False) -> Merged:
        """Return the fleet's total without this device's part, one sum for each slot if grouped."""
        chosen = (selection.devices, selection.without, selection.pattern, selection.largest)
        if any(chosen) or selection.rule is not None:
            raise SettingError(
                f"found {selection}, expected one of all devices: a masked fleet has only one total"
            )
        with self._lock:
            self._take_part()
            return self._others(grouped=grouped)

    def close(self) -> None:
        """Close the connection; the next call opens it again."""
        self._connection.close()

    def __repr__(self) -> str:
        """Show the address."""
        return f"MaskedExchange({self._connection.url}, {self.fleet}, {self.device})"

    def _take_part(self) -> None:
        """Do what the fleet waits for, until there is nothing left to do now."""
        self._replied = None
        for _ in range(MAX_STEPS):
            status = self._status = self._next_status()
            self._agree(status)
            self._must_be_there()
            if not status["registered"]:
                self._register()
            elif not self._step(status):
                return

    def _next_status(self) -> Mapping[str, Any]:
        """Return the status in the reply to the last message; ask if there was none in it."""
        status, self._replied = self._replied, None
        if status:
            return status
        # so that a new cohort and the result of an epoch need not be asked for
        query = {
            "known": self._cohort[0] if self._cohort else 0,
            "waiting": self._state.epoch or None,
        }
        return _read_status(self._ask("GET", "status", query=query))

    @property
    def _agreed(self) -> NoiseSettings | None:
        return NoiseSettings.parse(self._state.noise) if self._state.noise else None

    def _agree(self, status: Mapping[str, Any]) -> None:
        """Pin the noise that the fleet has at first; refuse any other later."""
        found = status.get("noise") or {}
        agreed = NoiseSettings.parse(found) if found else None
        must_agree(agreed, self._limits, fleet=self.fleet)
        if self._state.noise is None:
            if found and self._draw is None:
                must_have_noise()
            self._state.noise = found
            self._save()
        self._must_be_agreed(agreed)

    def _must_be_agreed(self, found: NoiseSettings | None) -> None:
        if found != self._agreed:
            raise RejectedError(
                f"{self.fleet}: found {found or 'no noise'}, expected {self._agreed or 'none'}, as "
                "at first: the server has changed it; nothing is sent"
            )

    def _must_be_there(self) -> None:
        """After the server was restored: refuse it if it lost what this device has counted."""
        state, found = self._state, self._connection.timeline
        if found in ("", state.timeline) or not state.proof:
            return
        reply = self._ask("GET", "epochs", state.through)
        about = reply.json_object() if reply.status == 200 else {}
        if state.proof not in (about.get("survivors") or {}).values():
            raise RejectedError(
                f"{self}: epoch {state.through}, which held this device's sums, is not there: the "
                "server was restored from a backup; make a new masked fleet"
            )
        state.timeline = found
        self._save()

    def _register(self) -> None:
        member = self._keys.member(self.device)
        keys = {"agreement": member.agreement.hex(), "verification": member.verification.hex()}
        body = json.dumps(keys).encode()
        reply = self._ask("PUT", "keys", body=body, headers=JSON_HEADERS)
        if reply.status == 409:
            raise RejectedError(f"{self.device}: {reply.error_text}")
        reply.must_be(204)

    def _step(self, status: Mapping[str, Any]) -> bool:
        """Do one thing; return False if there is nothing to do."""
        under_way = status["state"] in ("collecting", "signing", "keeping")
        same = status["epoch"] == self._state.epoch
        # of an epoch that is open there is no result; after one that is over another has begun
        if self._state.epoch and not (same and under_way) and self._settle() and same:
            return True
        self._forget_dropped(status["dropped"])
        if status["cohort"] is None:
            return False
        cohort = self._join(status["cohort"])
        if status["asked"]:
            self._keep(cohort, status)
            return True
        if status["state"] == "collecting" and not status["uploaded"]:
            return self._upload(cohort, status["cohort"], status["epoch"])
        return False

    def _join(self, number: int) -> Cohort:
        """Return the cohort, which must have this device's keys, and the digest that is wanted."""
        if self._cohort is None or self._cohort[0] != number:
            found = Cohort.parse(self._status.get("described") or self._describe_cohort())
            found.number_of(self._keys)
            digest = found.digest.hex()
            if found.fleet != self.fleet or (self._state.epoch and self._state.pin != digest):
                raise RejectedError(
                    f"{self}: found another cohort while an upload waits for its result, or one of "
                    f"{found.fleet}: it is not taken"
                )
            if self._wanted not in (None, digest):
                raise RejectedError(
                    f"found cohort {digest}, expected {self._wanted}: compare its members with "
                    "the operator, then set exchange.cohort"
                )
            self._must_be_agreed(found.noise)
            if found.words != len(found.slots) * self._length:
                raise MismatchError("found a cohort for sums of another size than the fleet's")
            if self._state.pin != digest:
                logger.warning(
                    "a new cohort: from now on this device adds up with its members",
                    extra={"values": {"digest": digest, "members": len(found.members)}},
                )
                self._state.pin = digest  # stored with the upload, or the answer, that it is for
            self._cohort = number, found
        return self._cohort[1]

    def _describe_cohort(self) -> Any:
        return self._ask("GET", "cohort").must_be(200).json_object().get("cohort")

    def _keep(self, cohort: Cohort, status: Mapping[str, Any]) -> None:
        """Sign the list of the epoch, or answer what keepers are asked once enough have signed."""
        epoch, keeper = self._state.epoch, Keeper(cohort, self._keys, self._state.keeper)
        if not epoch or status["epoch"] != epoch:
            raise RejectedError(
                f"{self}: found a question to a keeper of epoch {status['epoch']}, expected one of "
                "an epoch in which this device waits for the result of its upload"
            )
        if status["state"] == "signing":
            listed = Survivors(epoch, _read_digits(status.get("listed")))
            what, message = "signature", keeper.sign(listed)
        else:
            request = self._ask("GET", "epochs", epoch, "request").must_be(200).body
            what, message = "answer", keeper.answer(epoch, request)
        if keeper.state != self._state.keeper:
            self._state.keeper = keeper.state
            self._save()
        failpoint(f"masked-before-{what}")
        self._send(message, epoch, what)

    def _upload(self, cohort: Cohort, in_cohort: int, epoch: int) -> bool:
        """Send what is new since it was last counted, once it holds something fresh."""
        state = self._state
        if state.epoch == 0:
            if not state.fresh or epoch <= state.last:
                return False
            if epoch > state.last + MAX_SKIPPED:
                raise RejectedError(f"{self}: found epoch {epoch}, expected one after {state.last}")
            known = {pattern: self._decoded(data) for pattern, data in state.newest.items()}
            if cohort.noise is None:
                delta, newest = self._seen(cohort, known), state.newest
                delta -= self._counted(len(delta))
            else:
                delta, newest = self._noised(cohort, cohort.noise)
            about = (cohort, self._keys, epoch, delta, self._random)
            # from here on nothing can fail, so that all of it is stored, or nothing
            state.upload, state.delta = make_upload(*about, adds=self._adds(cohort, known)), delta
            state.newest, state.carried = newest, np.zeros(0, np.uint64)
            state.epoch, state.cohort, state.last = epoch, in_cohort, epoch
            state.fresh = set()
            self._save()
        if state.epoch != epoch:
            return False  # what became of the earlier one is not known yet
        failpoint("masked-before-upload")
        self._send(state.upload, epoch, "upload")
        return True

    def _adds(self, cohort: Cohort, known: Mapping[str, Contribution]) -> bool:
        """Return whether something fresh with samples has a place in an upload."""
        anything = len(cohort.slots) == 1
        placed = [p for p in self._state.fresh & set(known) if anything or p in cohort.slots]
        return any(known[pattern].samples > 0 for pattern in placed)

    def _send(self, data: bytes, epoch: int, what: str) -> None:
        """Send a message of an epoch, which may have gone on; the reply may be the status."""
        headers = {**BINARY_HEADERS, "Prefer": "return=representation"}
        reply = self._ask("PUT", "epochs", epoch, what, body=data, headers=headers)
        if reply.must_be(200, 204, 409).status == 200:
            self._replied = _read_status(reply)

    def _settle(self) -> bool:
        """Find out what became of the last upload; return whether that is known now."""
        state = self._state
        found = self._result()
        if found.get("state") == "done":
            survivors = Survivors(state.epoch, _read_digits(found.get("survivors")))
            signatures = _read_digits(found.get("signatures"))
            # no other cohort is joined meanwhile, so it is the one that is known, unless none is
            cohort = self._cohort[1] if self._cohort else Cohort.parse(found.get("cohort"))
            if counts(cohort, survivors, signatures, state.upload):
                before = state.counted.get(state.cohort, np.zeros(cohort.words, np.uint64))
                state.counted[state.cohort] = before + state.delta
                state.through, state.timeline = state.epoch, self._connection.timeline
                state.proof = upload_digest(cohort, state.upload).hex()
            elif state.noise:
                state.carried = state.delta
        elif found.get("state") != "failed":
            return False
        elif state.noise:
            state.lost += 1
            logger.warning(
                "an epoch failed: the samples of its upload are not sent again, since their "
                "budget is spent",
                extra={"values": {"epoch": state.epoch, "uploads": state.lost}},
            )
        if state.through != state.epoch and not state.noise:  # a take-back must not get lost
            state.fresh |= {p for p, d in state.newest.items() if not self._decoded(d).samples}
        state.epoch, state.upload, state.delta = 0, b"", np.zeros(0, np.uint64)
        failpoint("masked-before-settle")
        self._save()
        return True

    def _result(self) -> Mapping[str, Any]:
        """Return what became of the epoch of the last upload; ask if the status did not tell."""
        result, epoch = self._status.get("result"), self._state.epoch
        if isinstance(result, dict) and result.get("epoch") == epoch:
            return result
        return self._ask("GET", "epochs", epoch).must_be(200).json_object()

    def _seen(self, cohort: Cohort, known: Mapping[str, Contribution]) -> Words:
        """Return the sums of this device, each in the slot of its pattern."""
        length = words_length(self.projection)
        slots = {slot: np.zeros(length, np.uint64) for slot in cohort.slots}
        for pattern, contribution in known.items():
            slot = cohort.slots[0] if len(cohort.slots) == 1 else pattern
            if slot not in slots:
                logger.warning(
                    "a pattern has no slot in this cohort, and is not shared",
                    extra={"values": {"pattern": pattern, "slots": cohort.slots}},
                )
                continue
            slots[slot] += words_of(contribution.stats)
        return np.concatenate(list(slots.values()))

    def _noised(self, cohort: Cohort, agreed: NoiseSettings) -> tuple[Words, dict[str, bytes]]:
        """Return what is new with noise of its own, and what was noised before and is in no total.

        From then on it is drawn: the caller stores it, and the contributions that are left, before
        anything is sent.
        """
        noise = agreed.noise(self.projection, cohort.noisy)
        waiting, carried = self._clipped, self._state.carried
        words = agreed.words_of(noise.add(waiting.stats * WEIGHT_STEP, self._draw))
        left = encode(replace(waiting, stats=Stats.empty(self.projection)))
        return words + carried if carried.size else words, self._state.newest | {CLIPPED: left}

    @property
    def _length(self) -> int:
        """The words of one slot."""
        agreed = self._agreed
        return words_length(self.projection) if agreed is None else agreed.length(self.projection)

    def _counted(self, length: int) -> Words:
        return sum(self._state.counted.values(), np.zeros(length, np.uint64))

    def _find_total(self) -> tuple[dict[str, Any], Words] | None:
        """Return the total of the fleet, and what it is of; ask only if it is another one."""
        version = self._status.get("total")  # None: the server is older
        self._must_reach(self._status["through"])
        if version == "":
            return None
        if self._total is None or version is None or self._total[0].get("version") != version:
            return self._fetch_total()
        return self._total

    def _fetch_total(self) -> tuple[dict[str, Any], Words] | None:
        reply = self._ask("GET", "total")
        self._total = None if reply.status == 204 else _read_total(reply.must_be(200))
        return self._total

    def _must_reach(self, through: int) -> None:
        if through < self._state.through:
            raise RejectedError(
                f"{self}: the total lacks epoch {self._state.through}, which held this device's "
                "sums: the server was restored from a backup; make a new masked fleet"
            )

    def _others(self, *, grouped: bool) -> Merged:
        found = self._find_total()
        may_hold_it = found is not None and 0 < self._state.epoch <= found[0]["through"]
        if may_hold_it and self._settle():
            found = self._fetch_total()  # this one does, if it is counted
        if found is None:
            return Merged(self.projection)
        about, words = found
        self._must_reach(about["through"])
        self._forget_dropped(about["dropped"])
        made_of = [found, grouped, *self._state.counted.values()]
        if self._pulled is None or [*map(id, self._pulled[0])] != [*map(id, made_of)]:
            self._pulled = made_of, self._without_own(about, words, grouped=grouped)
        return self._pulled[1]

    def _without_own(self, about: dict[str, Any], words: Words, *, grouped: bool) -> Merged:
        """Return a total without what it holds of this device, which is checked."""
        words = words - self._counted(len(words))
        slots = about["slots"]
        if words.shape != (len(slots) * self._length,):
            raise RejectedError(f"{self}: found {words.size} words for {len(slots)} slots")
        whose = sorted(set(about["devices"]) - {self.device})
        origins = [tuple(Origin(w, 0, slot, about["through"]) for w in whose) for slot in slots]
        if self._agreed is not None:
            return self._estimate(self._agreed, words, origins[0])
        return self._exact(words, slots, origins, grouped=grouped)

    def _exact(
        self,
        words: Words,
        slots: Sequence[str],
        origins: Sequence[tuple[Origin, ...]],
        *,
        grouped: bool,
    ) -> Merged:
        """Return the sums in a total, with where each slot comes from; one sum unless grouped."""
        sums = [stats_of(self.projection, part) for part in np.split(words, len(slots))]
        if not grouped:
            sums, slots, origins = [sum(sums[1:], start=sums[0])], slots[:1], origins[:1]
        parts = []
        for slot, stats, whose in zip(slots, sums, origins, strict=True):
            if stats.count == 0:
                continue
            admit(Contribution("total", stats, 0, slot), projection=self.projection)
            parts.append(MergedPart(stats, whose))
        return Merged(self.projection, tuple(parts))

    def _estimate(self, agreed: NoiseSettings, words: Words, origins: tuple[Origin, ...]) -> Merged:
        """Return what a detector can adopt of a noised total; nothing of a mean."""
        try:
            found = agreed.read(self.projection, words)
        except FormatError as error:
            raise RejectedError(f"{self}: {error}") from error
        if agreed.release == "mean" or not found.variances.count or found.sums.count < 1.0:
            return Merged(self.projection)
        found.check()
        return Merged(self.projection, (MergedPart(found.denoised(), origins),))

    def _forget_dropped(self, cohorts: Sequence[int]) -> None:
        """Send again, with the next upload, what an operator took out of the total.

        What had noise is not sent again: its budget is spent.
        """
        dropped = set(cohorts) & set(self._state.counted)
        if dropped:
            logger.warning(
                "a cohort of this device was dropped: "
                + ("its samples are in no total" if self._state.noise else AGAIN),
                extra={"values": {"cohorts": sorted(dropped)}},
            )
            for number in dropped:
                del self._state.counted[number]
            self._save()

    def _ask(self, method: str, *words: str | int, **rest: Any) -> Reply:
        where = url_path("fleets", self.fleet, "masked", self.device, *words)
        return self._connection.ask(method, where, **rest)

    def _save(self) -> None:
        """Store the state; if that fails, go back to what is stored: nothing else may be sent."""
        try:
            write_atomically(self._state.to_bytes(), self._path, mode=0o600)
        except OSError:
            if self._path.exists():
                self._state = MaskedState.from_bytes(self._path.read_bytes())
            raise


def _is_newer(new: Contribution, known: Contribution) -> bool:
    """Return whether a contribution replaces the one before, which may be of another life."""
    if new.incarnation != known.incarnation:
        return new.incarnation > known.incarnation
    return Ledger.check(new, known) == "newer"


def _read_status(reply: Reply) -> dict[str, Any]:
    """Return a status; refuse one with other types, of which parts would be stored."""
    status = {"cohort": None} | reply.must_be(200).json_object()
    wrong = [name for name, kind in STATUS.items() if type(status.get(name)) is not kind]
    wrong += [] if type(status["cohort"]) in (int, type(None)) else ["cohort"]
    if not wrong and any(type(number) is not int for number in status["dropped"]):
        wrong = ["dropped"]
    if wrong:
        raise RejectedError(
            f"found a status with {status.get(wrong[0])!r} as {wrong[0]}: is this the server?"
        )
    return status


def _read_digits(found: Any) -> dict[int, bytes]:
    """Return what a reply has of members, by their numbers, in hexadecimal digits."""
    try:
        return {int(number): bytes.fromhex(digits) for number, digits in found.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise RejectedError(f"the list of an epoch cannot be read: {error}") from error


def _read_total(reply: Reply) -> tuple[dict[str, Any], Words]:
    """Return the newest epoch, devices and slots of a total, and its words."""
    try:
        metadata, tensors = unpack(reply.body, MAX_REPLY_BYTES)
        about = json.loads(metadata["total"])
        named = all(isinstance(each, str) for key in ("devices", "slots") for each in about[key])
        numbers = (about["through"], *about["dropped"])
        if not (named and about["slots"] and all(type(number) is int for number in numbers)):
            raise ValueError("names and a number are expected")
        return about, tensors["words"].view(np.uint64).copy()
    except (KeyError, TypeError, ValueError) as error:
        raise RejectedError(f"the total cannot be read: {error}") from error


def _words(data: bytes) -> Words:
    return np.frombuffer(data, "<u8").astype(np.uint64)
