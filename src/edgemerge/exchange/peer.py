"""Exchange between a few devices directly: each offers what it saw, and asks the others.

It is kept in memory: after a restart a device offers nothing until it pushes again, and knows
nothing of its peers until it pulls. Plain HTTP: for one machine, a trusted network or a tunnel.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from functools import partial
from threading import Lock
from typing import Any

from edgemerge.core.admission import admit
from edgemerge.core.codec import encode, read
from edgemerge.core.contribution import Contribution, Key, must_be_name
from edgemerge.core.errors import (
    AwayError,
    DeniedError,
    EdgemergeError,
    RejectedError,
    SettingError,
)
from edgemerge.core.projection import Projection
from edgemerge.core.told import Told
from edgemerge.exchange.connection import Connection
from edgemerge.exchange.newest import must_be_newer
from edgemerge.exchange.offering import LIST, Offer, Offering, address
from edgemerge.exchange.once import Once
from edgemerge.exchange.protocol import Wish
from edgemerge.exchange.secret import read_secret

MOST = 1000  # contributions of one peer
LIST_LIMIT = 2**22  # bytes

logger = logging.getLogger(__name__)


class PeerExchange:
    """Devices that know each other's addresses and share one token.

    A peer that cannot be reached is named in the log, and what it told last is used; so what it
    once told stays until it withdraws it by pushing an empty contribution. If none can be reached
    and none has told anything, that is an `AwayError`.

    >>> from edgemerge import Stats
    >>> shared = Projection(n_inputs=2, n_hidden=3)
    >>> a = PeerExchange(shared, token="secret")
    >>> b = PeerExchange(shared, token="secret", peers=[a.url])
    >>> a.push(Contribution("pump-3", Stats.of(shared, [[0.1, 0.2]]), revision=1))
    True
    >>> b.pull(Wish(device="pump-4"))
    Told(1 parts of 1 contributions, 1 samples)
    >>> a.close(), b.close()
    (None, None)
    """

    def __init__(
        self,
        projection: Projection,
        *,
        listen: tuple[str, int] | None = ("127.0.0.1", 0),
        peers: Iterable[str] = (),
        token: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        """Start to offer at once, to whoever has the token; `url` says where."""
        if listen is None:
            raise SettingError(
                "found no address to listen on, expected a host and a port for peers"
            )
        self.projection = projection
        token = _token(token, token_file)
        self._own: dict[Key, Contribution] = {}
        self._lock = Lock()
        self._connect = partial(Connection, token=token, timeout_s=timeout_s)
        self._peers: list[_Peer] = []
        self._log = Once(logger, "a peer was not asked")
        for url in peers:
            self.meet(url)
        self._offering = Offering(self._offers, token, listen, timeout_s)

    @property
    def url(self) -> str:
        """Where peers on this machine find it; those on others know its host."""
        return self._offering.url

    def meet(self, url: str) -> None:
        """Ask one more peer from now on."""
        self._peers = [*self._peers, _Peer(self._connect(url))]

    def push(self, contribution: Contribution) -> bool:
        """Offer a contribution from now on; False if it was offered already."""
        admit(contribution, projection=self.projection)
        with self._lock:
            known = self._own.get(contribution.key)
            if known and not must_be_newer(contribution, known):
                return False
            self._own[contribution.key] = contribution
            return True

    def pull(self, wish: Wish) -> Told:
        """Ask every peer what is new, and sum up what they and this device have told."""
        peers = self._peers
        errors = [error for peer in peers if (error := self._asked(peer)) is not None]
        found: dict[Key, Contribution] = {}
        for peer in peers:
            for key, note in peer.known.items():
                if key not in found or note.revision > found[key].revision:
                    found[key] = note
        if errors and len(errors) == len(peers) and not found:
            denied = all(isinstance(error, DeniedError) for error in errors)
            kind: type[EdgemergeError] = DeniedError if denied else AwayError
            raise kind(f"no peer could be asked: {errors[0]}") from errors[0]
        with self._lock:
            found |= self._own
        return wish.of(found.values(), self.projection)

    def close(self) -> None:
        """Offer nothing any more."""
        self._offering.close()
        for peer in self._peers:
            peer.connection.close()

    def __repr__(self) -> str:
        """Show where it is and how many it knows."""
        return f"PeerExchange({self.url}, {len(self._peers)} peers)"

    def _offers(self) -> list[Offer]:
        with self._lock:
            notes = list(self._own.values())
        return [Offer(*note.key, note.revision, lambda note=note: encode(note)) for note in notes]  # type: ignore[misc]  # its default is the note

    def _asked(self, peer: _Peer) -> EdgemergeError | None:
        try:
            peer.ask(self.projection)
        except EdgemergeError as error:
            self._log.say(peer.connection.url, error)
            return error
        self._log.well(peer.connection.url)
        return None


class _Peer:
    """Another device, and what it told last."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.known: dict[Key, Contribution] = {}
        self._log = Once(logger, f"a contribution offered by {connection.url} was left alone")
        self._lock = Lock()

    def ask(self, projection: Projection) -> None:
        """Fetch what is new; what cannot be used is left alone."""
        with self._lock:
            for key, revision in self._list():
                known = self.known.get(key)
                if known and known.revision >= revision:
                    continue
                note = self._fetch(key, projection)
                if note and (known or len(self.known) < MOST):
                    self.known = self.known | {key: note}

    def _list(self) -> list[tuple[Key, int]]:
        reply = self.connection.ask("GET", LIST, limit=LIST_LIMIT).must_be(200)
        found = reply.json()
        if not isinstance(found, list) or len(found) > MOST:
            raise RejectedError(f"found no list of at most {MOST} offers: is this a peer?")
        return [_offer(entry) for entry in found]

    def _fetch(self, key: Key, projection: Projection) -> Contribution | None:
        reply = self.connection.ask("GET", address(key)).must_be(200)
        try:
            note, form = read(reply.body, projection=projection)
            if not isinstance(note, Contribution) or note.key != key:
                raise RejectedError(f"found {note!r}, expected the contribution {key}")
            admit(note, projection=projection, form=form)
        except EdgemergeError as error:
            self._log.say(str(key), error)
            return None
        return note


def _offer(entry: Any) -> tuple[Key, int]:
    try:
        device, incarnation, pattern, revision = entry
        sound = all(type(n) is int and 0 <= n < 2**63 for n in (incarnation, revision))
    except (TypeError, ValueError):
        sound = False
    if not sound:
        raise RejectedError("found an offer that has no origin: is this a peer?")
    must_be_name("device", device)
    must_be_name("pattern", pattern)
    return (device, incarnation, pattern), revision


def _token(token: str | None, file: str | os.PathLike[str] | None) -> str:
    if (token is None) == (file is None):
        raise SettingError(
            "found no token or two, expected token or token_file: all peers share it"
        )
    return token if token is not None else read_secret(str(file))
