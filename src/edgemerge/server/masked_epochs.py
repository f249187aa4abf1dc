"""Masked fleets: keys, cohorts and epochs; what the server stores and opens (`privacy.masking`).

An epoch goes from collecting (uploads of members) to signing (keepers agree on whose uploads are
there) to keeping (their answers) to done or failed. It moves on with a request: at once when all
members, or enough keepers, have sent, else after the time that the cohort has for each of the
three. The deltas of a failed epoch come with a later one. The server keeps one total for each
cohort, of all its epochs; single uploads are deleted once it is opened. The total of the fleet is
the sum of those of its cohorts, except of dropped ones.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from hashlib import sha256
from itertools import groupby
from math import ceil
from statistics import median_low
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from edgemerge.core.errors import (
    DeniedError,
    EdgemergeError,
    RejectedError,
    SettingError,
    UnknownError,
)
from edgemerge.core.ledger import Contribution
from edgemerge.core.projection import Projection
from edgemerge.core.similarity import SIMILAR_FACTOR, Profile, distance
from edgemerge.core.stats import Stats
from edgemerge.failpoints import failpoint
from edgemerge.privacy.gate import min_cohort
from edgemerge.privacy.masking import (
    ADDS,
    ADDS_PLACE,
    Cohort,
    DeviceKeys,
    Member,
    Opened,
    Survivors,
    Words,
    make_request,
    open_total,
    parse_upload,
    read_answer,
    read_upload,
    signed_by,
    stats_of,
    words_length,
)
from edgemerge.privacy.noise import TAIL, VARIANCE_UNIT, Noised, NoiseSettings
from edgemerge.server import audit, fleets
from edgemerge.server.auth import Caller
from edgemerge.server.db.base import BoundedCache, Database, SqlRow, Transaction, Writer
from edgemerge.server.fleets import ExistsError, Fleet, must_be_masked
from edgemerge.wire.admission import admit
from edgemerge.wire.codec import pack

MAX_FORMINGS = 10  # the newest, that are compared
MAX_PACKED = 16  # totals that are kept as bytes in memory
MAX_COMPARED = 256  # formings whose distances are kept in memory
COLLECT_S = 3600.0  # from the first upload of an epoch, and twice again for the keepers
MAX_COHORT = 100  # members, unless more are asked for
BOXES_AT_ONCE = 100  # that one statement stores
COMPARABLE = 30.0  # times that samples must outweigh noise for cohorts to be compared
# what is sent in each state of an epoch that is under way
KINDS = {"collecting": "upload", "signing": "signature", "keeping": "answer"}
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Epoch:
    """Where a cohort is.

    Args:
        cohort: The number of the cohort.
        number: The number of the epoch, unique in its fleet.
        state: "collecting", "signing", "keeping", "done" or "failed".
        began: When the first upload came, or when keepers were first asked to sign, or to answer;
            None before.
    """

    cohort: int
    number: int
    state: str
    began: float | None


@dataclass(frozen=True)
class MaskedStatus:
    """What a device needs to know before it sends anything.

    Args:
        registered: Whether the server has its keys.
        cohort: The number of its cohort; None before one is formed with it.
        epoch: The epoch of its cohort.
        state: The state of the epoch.
        uploaded: Whether the server has its upload of this epoch.
        asked: Whether it is a keeper whose signature, or answer, is missing.
        through: The newest epoch of the fleet whose deltas are in the total.
        dropped: The cohorts whose deltas are not in it any more.
        noise: The noise that devices add.
        total: What changes with the total; empty before the first epoch is done.
        described: Its cohort as JSON, if it said that it knows another one; else empty.
        result: What became of the epoch that it asked about, as JSON; empty if that is not over.
        listed: The list that it is asked to sign, as JSON; empty if it is not.
    """

    registered: bool
    cohort: int | None = None
    epoch: int = 0
    state: str = ""
    uploaded: bool = False
    asked: bool = False
    through: int = 0
    dropped: tuple[int, ...] = ()
    noise: NoiseSettings | None = None
    total: str = ""
    described: str = ""
    result: str = ""
    listed: str = ""


@dataclass(frozen=True)
class CohortRecord:
    """A cohort, also one that has ended, and what it has added up.

    Args:
        number: Its number.
        cohort: Its members and numbers.
        epoch: Its latest epoch.
        sent: The uploads that its epoch has collected, or the signatures or answers of its keepers.
        collect_s: How long an epoch waits for each of the three, in seconds.
        formed: When it was formed, the same for all that were formed together.
        ended: When it ended; None while it adds up.
        dropped: When its total was dropped; None if it was not.
        samples: In its total.
        distance: The median of the distances (M10) of its data to those of the cohorts that were
            formed with it and not dropped, 1 if alike; None without such cohorts, or where it took
            back more than it has added up.
        impossible: Whether no samples have its sums, though its devices had nothing to take back.
        why: Why the last of its epochs that are over failed; empty if it did not.
    """

    number: int
    cohort: Cohort
    epoch: Epoch
    sent: int
    collect_s: float
    formed: float
    ended: float | None
    dropped: float | None
    samples: float = 0.0
    distance: float | None = None
    impossible: bool = False
    why: str = ""

    @property
    def differs(self) -> bool:
        """Whether its data are of another kind than those of the other cohorts, or of none."""
        far = self.distance is not None and self.distance > SIMILAR_FACTOR
        return far or self.impossible


class Compared(NamedTuple):
    """What the sums of a cohort say beside those of the others.

    Args:
        samples: How many it has.
        distance: How unlike the others it is; None if that cannot be told.
        impossible: Whether no samples have these sums.
    """

    samples: float = 0.0
    distance: float | None = None
    impossible: bool = False


class Suspects(NamedTuple):
    """The devices behind cohorts that differed.

    Args:
        devices: Those that were most often in one, without revoked ones.
        times: How often each of them was.
        formings: How many times cohorts were formed of which one differed.
    """

    devices: list[str]
    times: int
    formings: int


class MaskedTotal(NamedTuple):
    """The total of a masked fleet.

    Args:
        through: The newest epoch whose deltas were added up, also in a cohort that was dropped.
        words: The sum of all cohorts that were not dropped; empty before the first epoch.
        devices: Whose deltas it holds.
        slots: The patterns in the words.
        dropped: The cohorts that are not in it.
        version: Changes with it; empty before the first epoch.
    """

    through: int
    words: Words
    devices: frozenset[str]
    slots: list[str]
    dropped: tuple[int, ...]
    version: str


class MaskedService:
    """Masked fleets on one database; any thread may call."""

    def __init__(self, database: Database, writer: Writer, clock: Callable[[], float]) -> None:
        """Work on a database that has its tables."""
        self._database, self._writer, self._clock = database, writer, clock
        # what cohorts that were formed together say of each other, until one of them changes
        self._compared = BoundedCache[tuple[Any, ...], dict[int, Compared]](MAX_COMPARED)
        # with how many answers an epoch could not be opened: fewer would not do either
        self._tried = BoundedCache[tuple[str, Epoch], int](MAX_COMPARED)
        # the versions and bytes of totals that were asked for last
        self._packed = BoundedCache[str, tuple[str, bytes]](MAX_PACKED)

    def register(self, fleet: str, member: Member) -> None:
        """Store the public keys of a device; they cannot be changed.

        Args:
            fleet: A masked fleet.
            member: The device and its keys.

        Raises:
            ExistsError: Other keys are stored.
            RejectedError: No device could agree on a secret with it.
        """
        keys = (member.agreement, member.verification)
        DeviceKeys.draw().secret(member)

        def change(tx: Transaction) -> None:
            must_be_masked(fleets.get(tx, fleet))
            sql = "select agreement, verification from masked_keys where fleet = ? and device = ?"
            known = tx.one(sql, fleet, member.name)
            if known is None:
                sql = "select 1 from masked_keys where fleet = ?"
                if tx.one(f"{sql} and (agreement = ? or verification = ?)", fleet, *keys):
                    raise ExistsError("another device has these keys: make new ones")
                tx.run(
                    "insert into masked_keys (fleet, device, agreement, verification, registered)"
                    " values (?, ?, ?, ?, ?)",
                    *(fleet, member.name, *keys, self._clock()),
                )
                actor = Caller(member.name, fleet).actor
                audit.append(tx, self._clock(), actor, "register keys", fleet, member.name)
            elif tuple(map(bytes, known)) != keys:
                raise ExistsError(
                    f"{member.name} has other keys here: an operator forgets them with "
                    f"edgemerge fleet forget-keys {fleet} {member.name}"
                )

        self._writer.write(change, fleet=fleet)

    def forget_keys(self, fleet: str, device: str, caller: Caller) -> None:
        """Let a device register new keys; it is in no epoch until a cohort is formed with them.

        Args:
            fleet: A masked fleet.
            device: The device that lost its keys, or was replaced.
            caller: The operator.
        """

        def change(tx: Transaction) -> None:
            sql = "delete from masked_keys where fleet = ? and device = ?"
            if not tx.run(sql, fleet, device):
                raise UnknownError(f"{device} has no keys in {fleet}")
            audit.append(tx, self._clock(), caller.actor, "forget keys", fleet, device)

        self._writer.write(change, fleet=fleet)

    def form(
        self,
        fleet: str,
        caller: Caller,
        *,
        slots: Sequence[str],
        least: int | None = None,
        size: int = MAX_COHORT,
        collect_s: float = COLLECT_S,
        missing: float = 1 / 3,
        colluding: float = 0.0,
        mix: bool = False,
    ) -> list[tuple[int, Cohort]]:
        """Form cohorts of all devices with keys; cohorts before them end, their totals stay.

        Args:
            fleet: A masked fleet.
            caller: The operator.
            slots: The patterns that are added up.
            least: The fewest survivors whose total may be opened; None (the default): so many that
                a total hides whether a given sample is in it (`min_cohort`). With noise, which
                hides that, all but those that may be missing: the more, the less noise of each.
            size: The most members of a cohort, if each still has `least`.
            collect_s: How long an epoch waits for uploads, then for the signatures of keepers, and
                then for their answers, in seconds.
            missing: The share of the members that may be missing in an epoch.
            colluding: The share of the members that may work together with the server.
            mix: Whether devices that were in one cohort come into different ones, as far as there
                are so many; False (the default): the same devices give the same cohorts.
        """

        def change(tx: Transaction) -> list[tuple[int, Cohort]]:
            agreed = fleets.get(tx, fleet)
            must_be_masked(agreed)
            tx.lock(f"fleet {fleet}")
            first = 1 + int((tx.one("select max(number) from cohorts") or (None,))[0] or 0)
            members = _members(tx, fleet)
            if mix:
                members = _mixed(tx, fleet, members, first)
            fewest = _least(agreed, len(members), size, missing) if least is None else least
            if len(members) < fewest:
                raise SettingError(
                    f"found {len(members)} devices with keys, expected {fewest} or more, so that a "
                    "total hides its samples: wait for more devices, or choose --min-devices"
                )
            # more than `size` only as far as `fewest` asks for it, with those that may be missing
            room = fewest if fewest <= size else ceil(fewest / (1.0 - missing) - 1e-9)
            n_cohorts = max(1, min(-(-len(members) // size), len(members) // room))
            words = len(slots) * _length(agreed)
            make = partial(
                Cohort.of, slots=slots, least=fewest, missing=missing, colluding=colluding
            )
            made = [
                make(fleet, members[i::n_cohorts], words, noise=agreed.noise)
                for i in range(n_cohorts)
            ]
            now = self._clock()
            _end_cohorts(tx, fleet, now)
            found = list(enumerate(made, first))
            for number, cohort in found:
                tx.run(
                    "insert into cohorts (fleet, number, body, collect_s, formed)"
                    " values (?, ?, ?, ?, ?)",
                    *(fleet, number, json.dumps(cohort.plain()), collect_s, now),
                )
                about = {"members": len(cohort.members), "digest": cohort.digest.hex()}
                audit.append(tx, now, caller.actor, "form cohort", fleet, str(number), **about)
            return found

        return self._writer.write(change, fleet=fleet)

    def drop_cohort(self, fleet: str, number: int, caller: Caller) -> None:
        """End a cohort and take what it has added up out of the total.

        Its devices send all their sums again once cohorts are formed with them.

        Args:
            fleet: A masked fleet.
            number: The cohort.
            caller: The operator.
        """

        def change(tx: Transaction) -> None:
            tx.lock(f"fleet {fleet}")
            sql = "select 1 from cohorts where fleet = ? and number = ?"
            if tx.one(sql, fleet, number) is None:
                raise UnknownError(f"no cohort {number} in {fleet}")
            now = self._clock()
            _end_cohorts(tx, fleet, now, "number = ?", number)
            sql = "update cohort_totals set dropped = ? where fleet = ? and cohort = ?"
            tx.run(f"{sql} and dropped is null", now, fleet, number)
            audit.append(tx, now, caller.actor, "drop cohort", fleet, str(number))

        self._writer.write(change, fleet=fleet)

    def records(self, fleet: str) -> list[CohortRecord]:
        """Return the cohorts that were formed last, of up to ten formings, and what they added up.

        Args:
            fleet: A masked fleet.
        """
        with self._database.reading() as tx:
            agreed = fleets.get(tx, fleet)
            rows = tx.rows(
                "select c.number, c.body, c.collect_s, c.formed, c.ended, t.dropped, t.through"
                " from cohorts c"
                " left join cohort_totals t on t.fleet = c.fleet and t.cohort = c.number"
                " where c.fleet = ? order by c.number",
                fleet,
            )
            kept = list(dict.fromkeys(row[3] for row in rows))[-MAX_FORMINGS:]
            found, known, shared = [], {}, set[float]()
            for number, body, collect_s, formed, ended, dropped, through in rows:
                if through is not None:
                    shared.add(formed)
                if formed in kept:
                    known[number] = through
                    cohort, epoch = _parse(body), _latest(tx, fleet, number)
                    sent = len(_senders(tx, fleet, epoch.number)[KINDS.get(epoch.state, "upload")])
                    about = (sent, collect_s, formed, ended, dropped)
                    why = _last_failure(tx, fleet, number)
                    found.append(CohortRecord(number, cohort, epoch, *about, why=why))
        compared: dict[int, Compared] = {}
        for _, group in groupby(found, key=lambda record: record.formed):
            together = [record for record in group if known[record.number] is not None]
            key = (fleet, *((r.number, r.formed, known[r.number], r.dropped) for r in together))
            if (before := self._compared.get(key)) is None:
                with self._database.reading() as tx:
                    sums = {r.number: _sum_of(tx, agreed, r.number) for r in together}
                left_out = {r.number for r in together if r.dropped is not None}
                before = compare_sums(sums, left_out, agreed.noise)
                self._compared.put(key, before)
            compared |= before
        nothing = Compared()
        return [
            replace(
                record,
                samples=each.samples,
                distance=each.distance,
                # later cohorts may take back what devices added in earlier ones
                impossible=each.impossible and record.formed <= min(shared, default=record.formed),
            )
            for record in found
            for each in [compared.get(record.number, nothing)]
        ]

    def suspects(self, fleet: str) -> Suspects:
        """Return the devices that were most often in a cohort that differed.

        A cohort with a device that was revoked since is explained by it, and does not count.

        Args:
            fleet: A masked fleet.
        """
        with self._database.reading() as tx:
            sql = "select device from devices where fleet = ? and revoked is not null"
            revoked = {device for (device,) in tx.rows(sql, fleet)}
        counts, formings = Counter[str](), set[float]()
        for record in self.records(fleet):
            names = {member.name for member in record.cohort.members}
            if record.differs and not names & revoked:
                counts.update(names)
                formings.add(record.formed)
        times = max(counts.values(), default=0)
        most = sorted(device for device, count in counts.items() if count == times)
        return Suspects(most, times, len(formings))

    def count_registered(self, fleet: str) -> int:
        """Return how many devices have keys and are not revoked: those that cohorts are formed of.

        Args:
            fleet: A masked fleet.
        """
        with self._database.reading() as tx:
            return len(_members(tx, fleet))

    def cohorts(self, fleet: str) -> list[tuple[int, Cohort, Epoch]]:
        """Return the cohorts of a fleet that have not ended, each with its latest epoch.

        Args:
            fleet: A masked fleet.
        """
        with self._database.reading() as tx:
            return [(n, cohort, _latest(tx, fleet, n)) for n, cohort in _in_force(tx, fleet)]

    def cohort_of(self, fleet: str, device: str) -> tuple[int, Cohort]:
        """Return the cohort of a device.

        Args:
            fleet: A masked fleet.
            device: The device.
        """
        with self._database.reading() as tx:
            found = _find_cohort(tx, fleet, device)
        if found is None:
            raise UnknownError(f"{device} is in no cohort of {fleet} yet: an operator forms them")
        return found

    def status(
        self, fleet: str, device: str, *, known: int | None = None, waiting: int | None = None
    ) -> MaskedStatus:
        """Move the device's epoch on if it is time; return what the device may send.

        Args:
            fleet: A masked fleet.
            device: The device.
            known: The number of the cohort that the device knows: another one comes with the
                status. None (the default): none does.
            waiting: The epoch of an upload whose fate the device does not know: once it is over,
                its result comes with the status. None (the default): none does.
        """

        def look(tx: Transaction) -> MaskedStatus:
            status = _status(tx, agreed, device, found)
            if known is not None and found is not None and found[0] != known:
                status = replace(status, described=json.dumps(found[1].plain()))
            row = _epoch_row(tx, fleet, waiting) if waiting else None
            return replace(status, result=_result_json(waiting, row, known)) if row else status

        with self._database.reading() as tx:
            agreed = fleets.get(tx, fleet)
            must_be_masked(agreed)
            found = _find_cohort(tx, fleet, device)
            if found is None or not self._is_due(tx, fleet, *found):
                return look(tx)
        self._advance(fleet, *found)
        with self._database.reading() as tx:
            return look(tx)

    def _is_due(self, tx: Transaction, fleet: str, in_cohort: int, cohort: Cohort) -> bool:
        """Return whether `_advance` has something to do."""
        epoch = _latest(tx, fleet, in_cohort)
        if epoch.state == "keeping":
            answers = len(_senders(tx, fleet, epoch.number)["answer"])
            over = _is_over(epoch, _collect_s(tx, fleet, in_cohort), self._clock())
            return over or self._can_try(fleet, cohort, epoch, answers)
        return bool(_next_step(tx, fleet, cohort, epoch, self._clock()))

    def _can_try(self, fleet: str, cohort: Cohort, epoch: Epoch, answers: int) -> bool:
        """Return whether so many answers may open the total, and have not been tried."""
        return answers >= cohort.threshold and answers > (self._tried.get((fleet, epoch)) or 0)

    def upload(self, fleet: str, device: str, number: int, data: bytes) -> MaskedStatus:
        """Store the upload of a device and return the status; the same bytes may come again.

        Args:
            fleet: A masked fleet.
            device: The device.
            number: The epoch.
            data: The bytes of `make_upload`.

        Raises:
            ExistsError: The epoch collects no more, or has another upload of this device.
        """
        in_cohort, cohort = self.cohort_of(fleet, device)
        found = read_upload(cohort, number, data)
        if cohort.members[found.number].name != device:
            raise DeniedError(f"this upload is not of {device}")
        boxes = dict(zip(cohort.keepers_of(number), found.boxes, strict=True))
        about = (found.number, data, found.digest)
        self._store(fleet, in_cohort, number, "upload", *about, boxes=boxes)
        failpoint("server-after-upload")
        return self.status(fleet, device)

    def request(self, fleet: str, device: str, number: int) -> bytes:
        """Return what a keeper is asked.

        Args:
            fleet: A masked fleet.
            device: The keeper.
            number: The epoch.
        """
        in_cohort, cohort = self.cohort_of(fleet, device)
        me = _number_of(cohort, device)
        with self._database.reading() as tx:
            epoch = _latest(tx, fleet, in_cohort)
            if epoch.number != number or epoch.state != "keeping":
                raise UnknownError(f"epoch {number} has no questions to keepers now")
            survivors = _survivors(tx, fleet, number)
            if me not in cohort.keepers_of(number) or me not in survivors.digests:
                raise DeniedError(f"{device} is no keeper of epoch {number}")
            signatures = _messages(tx, fleet, number, "signature")
            sql = "select member, data from epoch_boxes where fleet = ? and epoch = ?"
            rows = tx.rows(f"{sql} and keeper = ?", fleet, number, me)
            boxes = {member: bytes(data) for member, data in rows}
        return make_request(cohort, survivors, signatures, boxes)

    def sign(self, fleet: str, device: str, number: int, data: bytes) -> MaskedStatus:
        """Store a keeper's signature of the list and return the status; it may come again.

        Args:
            fleet: A masked fleet.
            device: The keeper.
            number: The epoch.
            data: What `Keeper.sign` returned.
        """
        in_cohort, cohort = self.cohort_of(fleet, device)
        me = _number_of(cohort, device)
        survivors = self._listed(fleet, number)
        if me not in signed_by(cohort, survivors, {me: data}):
            raise RejectedError(f"this is no signature of {device} for the list of epoch {number}")
        self._store(fleet, in_cohort, number, "signature", me, data, sha256(data).digest())
        return self.status(fleet, device)

    def answer(self, fleet: str, device: str, number: int, data: bytes) -> MaskedStatus:
        """Store the answer of a keeper and return the status; the same bytes may come again.

        Args:
            fleet: A masked fleet.
            device: The keeper.
            number: The epoch.
            data: What `Keeper.answer` returned.
        """
        in_cohort, cohort = self.cohort_of(fleet, device)
        survivors = self._listed(fleet, number)
        found = read_answer(cohort, survivors, data)
        if cohort.members[found.keeper].name != device:
            raise DeniedError(f"this answer is not of {device}")
        about = (found.keeper, data, sha256(data).digest())
        self._store(fleet, in_cohort, number, "answer", *about)
        return self.status(fleet, device)

    def _listed(self, fleet: str, number: int) -> Survivors:
        """Return whose uploads are there, of an epoch that is not over."""
        with self._database.reading() as tx:
            found = _survivors(tx, fleet, number)
        if not found.digests:
            raise ExistsError(f"epoch {number} is over: ask for the status")
        return found

    def result(self, fleet: str, number: int) -> dict[str, Any]:
        """Return what became of an epoch: its state, and once it is done who is in its total.

        Args:
            fleet: A masked fleet.
            number: The epoch.
        """
        with self._database.reading() as tx:
            row = _epoch_row(tx, fleet, number)
        if row is None:
            raise UnknownError(f"no epoch {number} in {fleet}")
        state, why, _, *texts = row
        names = ("survivors", "signatures", "cohort")
        found = dict(zip(names, map(json.loads, texts), strict=True))
        return {"epoch": number, "state": state, "why": why, **found}

    def centre(self, fleet: str) -> tuple[Projection, NoiseSettings]:
        """Return the projection centred on the mean that a fleet released, and the noise left.

        Args:
            fleet: A masked fleet with `release="mean"`.

        Raises:
            SettingError: It releases no mean, or has released none yet.
        """
        with self._database.reading() as tx:
            agreed = fleets.get(tx, fleet)
            if agreed.noise is None or agreed.noise.release != "mean":
                raise SettingError(
                    f"{fleet} releases no mean: edgemerge fleet create --reads masked "
                    "--release mean makes a fleet that does"
                )
            words = _total(tx, fleet).words
        found = agreed.noise.read(agreed.projection, words) if words.size else None
        if found is None or found.sums.count < TAIL * found.sigma.count:
            raise SettingError(
                f"{fleet} has no mean yet: wait until an epoch of it is done, with more samples "
                "than its noise"
            )
        rest = replace(agreed.noise, release="sums", share=1.0 - agreed.noise.share)
        return found.centred(), rest

    def total(self, fleet: str) -> MaskedTotal:
        """Return the total of a fleet.

        Args:
            fleet: A masked fleet.
        """
        with self._database.reading() as tx:
            must_be_masked(fleets.get(tx, fleet))
            return _total(tx, fleet)

    def total_bytes(self, fleet: str) -> bytes:
        """Return the total of a fleet as its devices read it; empty before the first epoch.

        All devices of a fleet read the same, so it is made once.

        Args:
            fleet: A masked fleet.
        """
        with self._database.reading() as tx:
            must_be_masked(fleets.get(tx, fleet))
            version = _counted(tx, fleet).version
            if not version:
                return b""
            known, data = self._packed.get(fleet) or ("", b"")
            if version == known:
                return data
            data = _pack_total(_total(tx, fleet))
        self._packed.put(fleet, (version, data))
        return data

    def _store(
        self,
        fleet: str,
        cohort: int,
        number: int,
        kind: str,
        sender: int,
        data: bytes,
        digest: bytes,
        boxes: Mapping[int, bytes] = MappingProxyType({}),
    ) -> None:
        """Store a message while the epoch is in the state for it, and start its time."""

        def change(tx: Transaction) -> None:
            tx.lock(f"cohort {fleet} {cohort}")
            where = "where fleet = ? and epoch = ? and kind = ? and member = ?"
            of = (fleet, number, kind, sender)
            known = tx.one(f"select data from epoch_messages {where}", *of)
            if known is not None and bytes(known[0]) == data:
                return
            epoch = _latest(tx, fleet, cohort)
            if known is not None or epoch.number != number or KINDS.get(epoch.state) != kind:
                raise ExistsError(
                    f"epoch {number} takes no other {kind} of this device now: ask for the status",
                )
            tx.run(
                "insert into epoch_messages (fleet, epoch, kind, member, digest, data)"
                " values (?, ?, ?, ?, ?, ?)",
                *(*of, digest.hex(), data),
            )
            rows = [(fleet, number, keeper, sender, box) for keeper, box in boxes.items()]
            for some in (rows[i : i + BOXES_AT_ONCE] for i in range(0, len(rows), BOXES_AT_ONCE)):
                tx.run(
                    "insert into epoch_boxes (fleet, epoch, keeper, member, data) values "
                    + ", ".join(["(?, ?, ?, ?, ?)"] * len(some)),
                    *(value for row in some for value in row),
                )
            if epoch.began is None:
                sql = "update epochs set began = ? where fleet = ? and epoch = ?"
                tx.run(sql, self._clock(), fleet, number)

        self._writer.write(change, fleet=fleet)

    def _advance(self, fleet: str, in_cohort: int, cohort: Cohort) -> Epoch:
        """Move the epoch of a cohort on if it is time; return where it is."""
        now = self._clock()
        with self._database.reading() as tx:
            epoch = _latest(tx, fleet, in_cohort)
            step = _next_step(tx, fleet, cohort, epoch, now)
        if step:
            move = partial(_move, fleet=fleet, in_cohort=in_cohort, cohort=cohort, now=now)
            epoch = self._writer.write(move, fleet=fleet)
        if epoch.state != "keeping":
            return epoch
        return self._try_to_open(fleet, in_cohort, cohort, epoch)

    def _try_to_open(self, fleet: str, in_cohort: int, cohort: Cohort, epoch: Epoch) -> Epoch:
        """Open the total with the answers that are there; nothing is locked meanwhile."""
        key = (fleet, epoch)  # with its time: a fleet made anew has the same numbers
        with self._database.reading() as tx:
            agreed, collect_s = fleets.get(tx, fleet), _collect_s(tx, fleet, in_cohort)
            over = _is_over(epoch, collect_s, self._clock())
            n_answers = len(_senders(tx, fleet, epoch.number)["answer"])
            if not (over or self._can_try(fleet, cohort, epoch, n_answers)):
                return epoch
            answers = _messages(tx, fleet, epoch.number, "answer")
            signatures = _messages(tx, fleet, epoch.number, "signature")
            sent = _messages(tx, fleet, epoch.number, "upload")
            whole = _total(tx, fleet).words
        asked = [k for k in cohort.keepers_of(epoch.number) if k in sent]
        # others that ask meanwhile need not try the same
        self._tried.put(key, len(answers))
        try:
            # signatures were verified before they were stored
            uploads = {n: parse_upload(cohort, epoch.number, data) for n, data in sent.items()}
            opened = open_total(cohort, epoch.number, uploads, answers.values())
        except EdgemergeError as error:
            if len(answers) < len(asked) and not over:
                return epoch  # another answer may show that a keeper lied
            return self._fail(fleet, in_cohort, epoch, str(error))
        try:
            if agreed.noise is not None:
                must_have_its_noise(cohort, opened)
            must_be_sums(agreed, cohort.slots, _added(whole, opened.total))
        except EdgemergeError as error:  # whatever other keepers answer
            return self._fail(fleet, in_cohort, epoch, str(error))
        try:
            return self._finish(fleet, in_cohort, cohort, epoch, opened, signatures)
        except EdgemergeError:  # a database that is busy, or away
            self._tried.put(key, 0)
            raise

    def _finish(
        self,
        fleet: str,
        in_cohort: int,
        cohort: Cohort,
        epoch: Epoch,
        opened: Opened,
        signatures: Mapping[int, bytes],
    ) -> Epoch:
        names = {number: member.name for number, member in enumerate(cohort.members)}

        def change(tx: Transaction) -> Epoch:
            tx.lock(f"fleet {fleet}")
            now = _latest(tx, fleet, in_cohort)
            if now != epoch:
                return now  # another request, or another server, was faster
            sql = "select data, devices from cohort_totals where fleet = ? and cohort = ?"
            data, known = tx.one(sql, fleet, in_cohort) or (b"", "[]")
            devices = {*json.loads(known), *(names[n] for n in opened.survivors.digests)}
            tx.run(
                "insert into cohort_totals (fleet, cohort, through, data, devices, slots)"
                " values (?, ?, ?, ?, ?, ?) on conflict (fleet, cohort) do update set"
                " through = excluded.through, data = excluded.data, devices = excluded.devices",
                *(fleet, in_cohort, epoch.number),
                _added(_words(data), opened.total).astype("<u8").tobytes(),
                *(json.dumps(sorted(devices)), json.dumps(list(cohort.slots))),
            )
            failpoint("server-in-epoch")
            survivors = {n: digest.hex() for n, digest in opened.survivors.digests.items()}
            signed = {keeper: signature.hex() for keeper, signature in signatures.items()}
            tx.run(
                "update epochs set state = 'done', survivors = ?, signatures = ?"
                " where fleet = ? and epoch = ?",
                *(json.dumps(survivors), json.dumps(signed), fleet, epoch.number),
            )
            _delete_messages(tx, fleet, epoch.number)
            about: dict[str, Any] = {"survivors": len(survivors), "members": len(names)}
            if opened.disputes:
                pairs = sorted((names[k], names[s]) for k, s in opened.disputes)
                about["disputes"] = ", ".join(f"{keeper} or {sender}" for keeper, sender in pairs)
            subject = f"epoch {epoch.number}"
            audit.append(tx, self._clock(), "server", "open total", fleet, subject, **about)
            return _latest(tx, fleet, in_cohort)

        return self._writer.write(change, fleet=fleet)

    def _fail(self, fleet: str, in_cohort: int, epoch: Epoch, why: str) -> Epoch:
        log.warning("an epoch failed", extra={"values": {"fleet": fleet, "why": why}})

        def change(tx: Transaction) -> Epoch:
            tx.lock(f"fleet {fleet}")
            if _latest(tx, fleet, in_cohort) == epoch:
                _set_failed(tx, fleet, epoch.number, why)
                subject = f"epoch {epoch.number}"
                audit.append(tx, self._clock(), "server", "fail epoch", fleet, subject, why=why)
            return _latest(tx, fleet, in_cohort)

        return self._writer.write(change, fleet=fleet)


def must_have_its_noise(cohort: Cohort, opened: Opened) -> None:
    """Refuse an epoch whose uploads cannot have the variance that they say.

    Args:
        cohort: A cohort with noise.
        opened: What was opened.

    Raises:
        RejectedError: It is less than one share of each survivor, or more than all its epochs have.
    """
    survivors = len(opened.survivors.digests)
    found = float(opened.total[-1:].view(np.int64)[0]) * VARIANCE_UNIT
    least, most = survivors / cohort.noisy, survivors * opened.survivors.epoch
    if not least * (1.0 - 1e-9) <= found <= most:
        raise RejectedError(
            f"found noise of {found:.3g} times the promised variance in a total, expected "
            f"{least:.3g} to {most:.3g}: a device lied about its noise"
        )


def must_be_sums(fleet: Fleet, slots: Sequence[str], words: Words) -> None:
    """Refuse a total that no samples have, with the fleet's noise if it has any.

    Args:
        fleet: Its projection and noise say what sums are possible.
        slots: The patterns in the words.
        words: The total.

    Raises:
        RejectedError: It failed validation.
    """
    projection = fleet.projection
    if fleet.noise is not None:
        fleet.noise.read(projection, words).check()
        return
    for slot, part in zip(slots, np.split(words, len(slots)), strict=True):
        stats = stats_of(projection, part)
        admit(Contribution("total", stats, 0, slot), projection=projection)


def _length(fleet: Fleet) -> int:
    """Return the words of one slot."""
    if fleet.noise is None:
        return words_length(fleet.projection)
    return fleet.noise.length(fleet.projection)


def _least(fleet: Fleet, members: int, size: int, missing: float) -> int:
    """Return the fewest survivors of a total unless an operator chooses them."""
    if fleet.noise is None:
        return min_cohort(fleet.projection)
    return max(3, int((1.0 - missing) * (members // max(1, -(-members // size)))))


def _members(tx: Transaction, fleet: str) -> list[Member]:
    rows = tx.rows(
        "select k.device, k.agreement, k.verification from masked_keys k join devices d"
        " on d.fleet = k.fleet and d.device = k.device where k.fleet = ? and d.revoked is null"
        " order by k.device",
        fleet,
    )
    return [Member(name, bytes(agreement), bytes(verify)) for name, agreement, verify in rows]


@lru_cache(maxsize=64)
def _parse(body: str) -> Cohort:
    """Return a stored cohort; it is asked for with every request of its devices."""
    return Cohort.parse(json.loads(body))


def _in_force(tx: Transaction, fleet: str) -> Iterator[tuple[int, Cohort]]:
    """Yield the cohorts that have not ended, and their numbers."""
    sql = "select number, body from cohorts where fleet = ? and ended is null order by number"
    return ((number, _parse(body)) for number, body in tx.rows(sql, fleet))


def _find_cohort(tx: Transaction, fleet: str, device: str) -> tuple[int, Cohort] | None:
    """Return the cohort of a device that has not ended, and its number."""
    for number, cohort in _in_force(tx, fleet):
        if any(member.name == device for member in cohort.members):
            return number, cohort
    return None


def _status(
    tx: Transaction, fleet: Fleet, device: str, found: tuple[int, Cohort] | None
) -> MaskedStatus:
    """Return what a device may send now, with the cohort that was found for it."""
    sql = "select 1 from masked_keys where fleet = ? and device = ?"
    registered = tx.one(sql, fleet.name, device) is not None
    through, dropped, version = _counted(tx, fleet.name)
    status = MaskedStatus(
        registered, through=through, dropped=dropped, noise=fleet.noise, total=version
    )
    if found is None:
        return status
    number, cohort = found
    epoch, me = _latest(tx, fleet.name, number), _number_of(cohort, device)
    senders = _senders(tx, fleet.name, epoch.number)
    uploaded, is_keeper = me in senders["upload"], me in cohort.keepers_of(epoch.number)
    kind = KINDS.get(epoch.state)  # an upload is not asked for
    asked = kind is not None and uploaded and is_keeper and me not in senders[kind]
    status = replace(status, cohort=number, epoch=epoch.number, state=epoch.state)
    if asked and epoch.state == "signing":
        digests = _survivors(tx, fleet.name, epoch.number).digests
        shown = {member: digest.hex() for member, digest in digests.items()}
        status = replace(status, listed=json.dumps(shown))
    return replace(status, uploaded=uploaded, asked=asked)


def _epoch_row(tx: Transaction, fleet: str, number: int) -> SqlRow | None:
    """Return state, reason and cohort of an epoch; as JSON its survivors, signatures, cohort."""
    return tx.one(
        "select e.state, e.why, e.cohort, e.survivors, e.signatures, c.body from epochs e"
        " join cohorts c on c.fleet = e.fleet and c.number = e.cohort"
        " where e.fleet = ? and e.epoch = ?",
        *(fleet, number),
    )


def _result_json(number: int | None, row: SqlRow, known: int | None) -> str:
    """Return what became of an epoch that is over, without its cohort if that is the known one."""
    state, why, cohort, survivors, signatures, body = row
    if state not in ("done", "failed"):
        return ""
    about = f'"survivors": {survivors}, "signatures": {signatures}'
    if cohort != known:
        about += f', "cohort": {body}'
    shown = json.dumps({"epoch": number, "state": state, "why": why})
    return f"{shown[:-1]}, {about}}}"


def _number_of(cohort: Cohort, device: str) -> int:
    return [member.name for member in cohort.members].index(device)


def _latest(tx: Transaction, fleet: str, cohort: int) -> Epoch:
    row = tx.one(
        "select cohort, epoch, state, began from epochs where fleet = ? and cohort = ?"
        " order by epoch desc limit 1",
        *(fleet, cohort),
    )
    return Epoch(*row) if row else Epoch(cohort, 0, "failed", None)


def _last_failure(tx: Transaction, fleet: str, cohort: int) -> str:
    """Return why the last epoch of a cohort that is over failed; another one may have begun."""
    row = tx.one(
        "select epoch, why from epochs where fleet = ? and cohort = ?"
        " and state in ('done', 'failed') order by epoch desc limit 1",
        *(fleet, cohort),
    )
    return f"epoch {row[0]} failed: {row[1]}" if row and row[1] else ""


def _next_step(tx: Transaction, fleet: str, cohort: Cohort, epoch: Epoch, now: float) -> str:
    """Return the state that is due: "new" for another epoch; empty if none is."""
    if epoch.state in ("done", "failed"):
        return "new"
    if epoch.state == "keeping" or epoch.began is None:
        return ""
    senders = _senders(tx, fleet, epoch.number)
    over = _is_over(epoch, _collect_s(tx, fleet, epoch.cohort), now)
    if epoch.state == "signing":
        late = "failed" if over else ""
        return "keeping" if len(senders["signature"]) >= cohort.threshold else late
    here = senders["upload"]
    away = len(cohort.members) - len(here)
    if away and not over:
        return ""  # before `_count_adding`, which reads all uploads
    adding = _count_adding(tx, fleet, epoch.number)
    if over and adding + away < cohort.least:
        return "failed"
    keepers = len(here & set(cohort.keepers_of(epoch.number)))
    enough = adding >= cohort.least and keepers >= cohort.threshold
    return "signing" if enough and cohort.holds_together(epoch.number, here) else ""


def _move(tx: Transaction, fleet: str, in_cohort: int, cohort: Cohort, now: float) -> Epoch:
    """Begin an epoch if none is under way; go on with one if all have sent, or it is time."""
    tx.lock(f"cohort {fleet} {in_cohort}")
    epoch = _latest(tx, fleet, in_cohort)
    step = _next_step(tx, fleet, cohort, epoch, now)  # another request may have been faster
    if step == "new":
        tx.lock(f"fleet {fleet}")  # numbers are unique in the fleet
        row = tx.one("select max(epoch) from epochs where fleet = ?", fleet)
        number = 1 + int((row or (None,))[0] or 0)
        tx.run(
            "insert into epochs (fleet, epoch, cohort, state, why, survivors, signatures)"
            " values (?, ?, ?, 'collecting', '', '{}', '{}')",
            *(fleet, number, in_cohort),
        )
    if step == "failed":
        _set_failed(tx, fleet, epoch.number, _why_failed(tx, fleet, cohort, epoch))
    if step in ("signing", "keeping"):
        sql = "update epochs set state = ?, began = ? where fleet = ? and epoch = ?"
        tx.run(sql, step, now, fleet, epoch.number)
    return _latest(tx, fleet, in_cohort) if step else epoch


def _why_failed(tx: Transaction, fleet: str, cohort: Cohort, epoch: Epoch) -> str:
    """Return why an epoch that waited long enough cannot go on."""
    if epoch.state == "collecting":
        return f"too many devices take back: fewer than {cohort.least} can add something new"
    found = len(_senders(tx, fleet, epoch.number)["signature"])
    return f"found {found} signatures of keepers, expected {cohort.threshold}"


def _end_cohorts(
    tx: Transaction, fleet: str, now: float, which: str = "1 = 1", *about: int
) -> None:
    """End cohorts that have not ended, all or those of a condition on their columns."""
    where = f"fleet = ? and ended is null and {which}"
    for (cohort,) in tx.rows(f"select number from cohorts where {where}", fleet, *about):
        epoch = _latest(tx, fleet, cohort)
        if epoch.state in KINDS:
            _set_failed(tx, fleet, epoch.number, "its cohort has ended")
        tx.run("update cohorts set ended = ? where fleet = ? and number = ?", now, fleet, cohort)


def _is_over(epoch: Epoch, collect_s: float, now: float) -> bool:
    return epoch.began is not None and now >= epoch.began + collect_s


def _collect_s(tx: Transaction, fleet: str, cohort: int) -> float:
    sql = "select collect_s from cohorts where fleet = ? and number = ?"
    row = tx.one(sql, fleet, cohort)
    return float(row[0]) if row else COLLECT_S


def _set_failed(tx: Transaction, fleet: str, number: int, why: str) -> None:
    sql = "update epochs set state = 'failed', why = ? where fleet = ? and epoch = ?"
    tx.run(sql, why, fleet, number)
    _delete_messages(tx, fleet, number)


def _delete_messages(tx: Transaction, fleet: str, number: int) -> None:
    for table in ("epoch_messages", "epoch_boxes"):
        tx.run(f"delete from {table} where fleet = ? and epoch = ?", fleet, number)


def _survivors(tx: Transaction, fleet: str, number: int) -> Survivors:
    """Return whose uploads are there; from the time that keepers are asked that does not change."""
    sql = "select member, digest from epoch_messages where fleet = ? and epoch = ? and kind = ?"
    rows = tx.rows(sql, fleet, number, "upload")
    return Survivors(number, {member: bytes.fromhex(digest) for member, digest in rows})


def _senders(tx: Transaction, fleet: str, number: int) -> dict[str, set[int]]:
    """Return the members whose messages of an epoch are there, by the kind of message."""
    found: dict[str, set[int]] = {kind: set() for kind in KINDS.values()}
    sql = "select kind, member from epoch_messages where fleet = ? and epoch = ?"
    for kind, member in tx.rows(sql, fleet, number):
        found[kind].add(member)
    return found


def _count_adding(tx: Transaction, fleet: str, number: int) -> int:
    """Return how many uploads say that they cover fresh samples."""
    row = tx.one(
        "select count(*) from epoch_messages where fleet = ? and epoch = ? and kind = 'upload'"
        " and substr(data, ?, 1) = ?",
        *(fleet, number, ADDS_PLACE + 1, ADDS),
    )
    return int(row[0]) if row else 0


def _messages(tx: Transaction, fleet: str, number: int, kind: str) -> dict[int, bytes]:
    sql = "select member, data from epoch_messages where fleet = ? and epoch = ? and kind = ?"
    rows = tx.rows(f"{sql} order by member", fleet, number, kind)
    return {member: bytes(data) for member, data in rows}


class Counted(NamedTuple):
    """What the total of a fleet is made of.

    Args:
        through: The newest epoch whose deltas were added up, also in a cohort that was dropped.
        dropped: The cohorts that are not in it.
        version: Changes with it, also if a restored server counts the same epochs anew; empty
            before the first epoch. `through` alone stays the same while another cohort is further.
    """

    through: int = 0
    dropped: tuple[int, ...] = ()
    version: str = ""


def _counted(tx: Transaction, fleet: str) -> Counted:
    sql = "select cohort, through, dropped from cohort_totals where fleet = ? order by cohort"
    rows = tx.rows(sql, fleet)
    if not rows:
        return Counted()
    through = max(through for _, through, _ in rows)
    sql = "select signatures from epochs where fleet = ? and epoch = ?"
    about = [*map(list, rows), list(tx.one(sql, fleet, through) or ())]
    version = sha256(json.dumps(about).encode()).hexdigest()
    return Counted(through, tuple(n for n, _, dropped in rows if dropped is not None), version)


def _total(tx: Transaction, fleet: str) -> MaskedTotal:
    sql = "select data, devices, slots, dropped from cohort_totals where fleet = ?"
    words, devices, slots = np.zeros(0, np.uint64), set[str](), list[str]()
    for data, whose, names, dropped in tx.rows(f"{sql} order by cohort", fleet):
        part, slots = _words(data), json.loads(names)
        devices |= set(json.loads(whose) if dropped is None else [])
        words = _added(words, part if dropped is None else np.zeros_like(part))
    through, left_out, version = _counted(tx, fleet)
    return MaskedTotal(through, words, frozenset(devices), slots, left_out, version)


def _pack_total(total: MaskedTotal) -> bytes:
    about = {"through": total.through, "devices": sorted(total.devices)}
    about |= {"slots": total.slots, "dropped": total.dropped, "version": total.version}
    words = {"words": total.words.view(np.float64)}  # the bits, whatever they say
    return pack({"total": json.dumps(about)}, words)


def _sum_of(tx: Transaction, fleet: Fleet, cohort: int) -> Stats | Noised:
    sql = "select data, slots from cohort_totals where fleet = ? and cohort = ?"
    ((data, slots),) = tx.rows(sql, fleet.name, cohort)
    projection = fleet.projection
    if fleet.noise is not None:
        return fleet.noise.read(projection, _words(data))
    parts = np.split(_words(data), len(json.loads(slots)))
    return Stats.total(projection, (stats_of(projection, part) for part in parts))


def _profile(found: Stats | Noised, noise: NoiseSettings | None) -> Profile | None:
    """Return what a total is compared by; None if it is none of samples, or noise hides them."""
    if isinstance(found, Noised):
        if noise is None or noise.release == "mean" or noise.strength(found) < COMPARABLE:
            return None
        return Profile.of(found.denoised())
    try:
        admit(Contribution("total", found, 0), projection=found.projection)
    except RejectedError:
        return None
    return Profile.of(found)


def compare_sums(
    sums: Mapping[int, Stats | Noised],
    left_out: Collection[int],
    noise: NoiseSettings | None = None,
) -> dict[int, Compared]:
    """Return the samples of cohorts, and how unlike the others its data are (M10).

    With noise that is told only where samples outweigh it 30 times: with less, cohorts that are
    alike could be above 2.5, too.

    Args:
        sums: What each cohort has added up, by its number.
        left_out: The cohorts with which no other one is compared.
        noise: What the fleet has agreed on, if anything.
    """
    found_profiles = {number: _profile(each, noise) for number, each in sums.items()}
    profiles = {number: each for number, each in found_profiles.items() if each is not None}
    found: dict[int, Compared] = {}
    for number, stats in sums.items():
        others = [each for n, each in profiles.items() if n != number and n not in left_out]
        far = None
        if number in profiles and others:
            far = median_low(distance(profiles[number], other) for other in others)
        samples = stats.sums.count if isinstance(stats, Noised) else stats.count
        impossible = isinstance(stats, Stats) and number not in profiles and samples != 0.0
        found[number] = Compared(samples, far, impossible)
    return found


def _mixed(tx: Transaction, fleet: str, members: list[Member], first: int) -> list[Member]:
    """Return members so that dealing them out parts those that were in one cohort last."""
    rows = tx.rows(
        "select number, body from cohorts where fleet = ? and formed = (select formed from cohorts"
        " where fleet = ? order by number desc limit 1) order by number",
        *(fleet, fleet),
    )
    last = {member.name: number for number, body in rows for member in _parse(body).members}

    def place(member: Member) -> tuple[int, bytes]:
        drawn = sha256(f"{first} {member.name}".encode()).digest()
        return last.get(member.name, 0), drawn

    return sorted(members, key=place)


def _words(data: bytes) -> Words:
    return np.frombuffer(bytes(data), "<u8").astype(np.uint64)


def _added(whole: Words, part: Words) -> Words:
    if whole.size and whole.shape != part.shape:
        raise SettingError(
            "found other slots than the total of this fleet has: keep the slots, or make a new "
            "fleet for others"
        )
    return whole + part if whole.size else part
