"""Exchange through an MQTT broker, as retained messages.

It is as durable as the broker: most keep retained messages in memory and save them now and then,
and a confirmation does not say otherwise. Only a server's answer after its commit is storage. Many
brokers cap packets at 128 kB, and queue at most 1000 messages for a subscriber: contributions that
are too large or too many are refused, and such a fleet exchanges over HTTP.
"""

from __future__ import annotations

import logging
import os

from edgemerge.core.admission import admit
from edgemerge.core.codec import encode, read
from edgemerge.core.contribution import Contribution
from edgemerge.core.errors import EdgemergeError, RejectedError, SettingError
from edgemerge.core.projection import Projection
from edgemerge.core.told import Told
from edgemerge.exchange.broker import Broker, Visit
from edgemerge.exchange.naming import encoded, topic
from edgemerge.exchange.newest import must_be_newer
from edgemerge.exchange.once import Once
from edgemerge.exchange.protocol import Wish

logger = logging.getLogger(__name__)


class MqttExchange:
    """The contributions that a broker retains, each under its own topic.

    `<prefix>/<fleet>/<first 16 of the fingerprint>/contribution/<device>/<incarnation>/<pattern>`,
    with names percent-encoded. Messages that are not contributions are left alone and named in the
    log, once each. Everybody who may write there may replace anybody's contribution.
    `version` is 5, or 4 for MQTT 3.1.1; `settle_s` is how long a broker may take between two
    retained messages.
    """

    def __init__(
        self,
        host: str,
        port: int = 1883,
        *,
        fleet: str,
        projection: Projection,
        prefix: str = "edgemerge",
        username: str | None = None,
        password_file: str | os.PathLike[str] | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        tls: bool = False,
        timeout_s: float = 10.0,
        settle_s: float = 0.2,
        version: int = 5,
    ) -> None:
        """Remember where the broker is; nothing is sent yet."""
        _must_be_prefix(prefix)
        self.projection = projection
        self.broker = Broker(
            host,
            port,
            username=username,
            password_file=password_file,
            ca_file=ca_file,
            tls=tls,
            timeout_s=timeout_s,
            settle_s=settle_s,
            version=version,
        )
        self.root = f"{prefix}/{encoded(fleet)}/{projection.fingerprint[:16]}"
        self._log = Once(logger, f"a message under {self.root} was left alone")

    def push(self, contribution: Contribution) -> bool:
        """Leave a contribution; False if it was there already. The broker is asked what it kept."""
        admit(contribution, projection=self.projection)
        where, payload = self._topic(topic(contribution.key)), encode(contribution)
        with self.broker.visit(len(payload)) as visit:
            known = self._known(visit, where)
            if known and not must_be_newer(contribution, known):
                return False
            visit.keep(where, payload)
            kept = self._known(visit, where)
        if kept != contribution:
            if kept and kept.revision >= contribution.revision:
                must_be_newer(contribution, kept)  # another process was quicker
            raise RejectedError(
                f"{self.broker} confirmed {len(payload)} bytes but kept {kept}: it may cap the "
                "size of messages or not retain them: change that, or exchange over HTTP"
            )
        return True

    def pull(self, wish: Wish) -> Told:
        """Sum up what others have left."""
        devices = ["+"] if wish.devices is None else [encoded(name) for name in set(wish.devices)]
        pattern = "+" if wish.pattern is None else encoded(wish.pattern)
        filters = [self._topic(f"{device}/+/{pattern}") for device in sorted(devices)]
        if not filters:
            return Told(self.projection)
        with self.broker.visit(self._size) as visit:
            found = visit.gather(filters, self._marker)
        notes = (self._note(where, payload) for where, payload in sorted(found.items()))
        return wish.of([note for note in notes if note], self.projection)

    def close(self) -> None:
        """Nothing is open between calls."""

    def __repr__(self) -> str:
        """Show where it leads."""
        return f"MqttExchange({self.broker}/{self.root})"

    @property
    def _size(self) -> int:
        N, m = self.projection.n_hidden, self.projection.n_inputs
        return 4 * N * (N + 1) + 8 * N * m + 16 * m

    @property
    def _marker(self) -> str:
        return f"{self.root}/marker/{os.urandom(8).hex()}"

    def _topic(self, last: str) -> str:
        return f"{self.root}/contribution/{last}"

    def _known(self, visit: Visit, where: str) -> Contribution | None:
        found = visit.gather([where], self._marker).get(where)
        return None if found is None else self._note(where, found)

    def _note(self, where: str, payload: bytes) -> Contribution | None:
        """Read one message; None if it is not what its topic says."""
        try:
            note, form = read(payload, projection=self.projection)
            if not isinstance(note, Contribution):
                raise RejectedError(f"found {type(note).__name__}, expected Contribution")
            if where != self._topic(topic(note.key)):
                raise RejectedError(f"found {note}, expected it under {topic(note.key)}")
            admit(note, projection=self.projection, form=form)
        except EdgemergeError as error:
            self._log.say(where, error)
            return None
        return note


def _must_be_prefix(prefix: str) -> None:
    levels = prefix.split("/")
    if not all(levels) or set(prefix) & set("+#$") or not prefix.isprintable():
        raise SettingError(
            f"found prefix {prefix!r}, expected a topic without + # $ and empty levels"
        )
