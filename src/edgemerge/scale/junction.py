"""A junction: one place in the tree, which is to the place above what a device is to it.

`own` is the sum of what those below say, `others` what the place above tells. Each one below is
told the sum of both without its own part, so that nothing is counted twice on any tier.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from edgemerge.core.admission import admit
from edgemerge.core.codec import decode, encode
from edgemerge.core.contribution import Contribution
from edgemerge.core.errors import UnknownError
from edgemerge.core.ledger import Ledger
from edgemerge.core.projection import Projection
from edgemerge.core.stats import Stats


class Junction:
    """Hears contributions as bytes, tells their sum up, and everything else down.

    Every `check_every`th message gets all checks of `admit`, the first among them.
    """

    def __init__(self, name: str, projection: Projection, *, check_every: int = 1) -> None:
        """Start with nothing heard and nothing told."""
        self.name, self.projection = name, projection
        self.ledger, self.others = Ledger(projection), Stats.empty(projection)
        self.changed = False  # since the sum was last told
        self._own: Stats | None = Stats.empty(projection)
        self._revisions, self._heard = count(1), count()
        self._check_every = check_every

    @property
    def own(self) -> Stats:
        """The sum of what those below say; after a wave it is added up afresh."""
        if self._own is None:
            self._own = self.ledger.total()
        return self._own

    def hear(self, data: bytes) -> bool:
        """Take in a message from below; False if it is late or repeated. The sum can wait."""
        return self._keep(self._read(data), None)

    def hear_change(self, data: bytes) -> bool:
        """Take in a message from below, and bring the sum up by the difference alone."""
        note, own = self._read(data), self.own
        for known in self.ledger:
            if known.key == note.key:
                own -= known.stats  # M7
        return self._keep(note, own + note.stats)  # M7

    def share(self) -> bytes:
        """Tell the place above what was heard below."""
        self.changed = False
        return encode(Contribution(self.name, self.own, next(self._revisions)))

    def adopt(self, data: bytes) -> None:
        """Set what the place above tells."""
        self.others = decode(data, projection=self.projection)

    def tell(self) -> Iterator[tuple[str, bytes]]:
        """Tell each one below everything that is known, without its own part."""
        everything = self.others + self.own
        for note in self.ledger:
            yield note.device, encode(everything - note.stats)  # M7

    def note(self, name: str) -> Contribution:
        """Give what is known of one below."""
        for known in self.ledger:
            if known.device == name:
                return known
        raise UnknownError(f"{self.name} has heard nothing of {name}")

    def drop(self, name: str) -> None:
        """Forget one below, as if it had never been heard."""
        self.ledger.drop(name)
        self._own, self.changed = None, True

    def _read(self, data: bytes) -> Contribution:
        note: Contribution = decode(data, projection=self.projection)
        if next(self._heard) % self._check_every == 0:
            admit(note, projection=self.projection)
        return note

    def _keep(self, note: Contribution, own: Stats | None) -> bool:
        kept = self.ledger.put(note)
        if kept:
            self._own, self.changed = own, True
        return kept
