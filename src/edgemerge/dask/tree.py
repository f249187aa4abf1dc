"""The tree: which parts are added where, and what is done about those that do not come.

Each bundle of chunks becomes a part on some worker. Eight parts of a level become one of the next,
on a worker, up to a height above which parts come here: whoever dies then takes little with him,
and the scheduler may forget how they were made. A few bundles for each thread are under way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from queue import Empty, Queue
from typing import Any, NamedTuple, get_args
from uuid import uuid4

from distributed import Client, Future, KilledWorker

from edgemerge.bulk.part import BadRows, Part, Read, must_be_one_of
from edgemerge.bulk.reading import read
from edgemerge.core.errors import AwayError, EdgemergeError, SettingError
from edgemerge.core.projection import Projection
from edgemerge.core.projection_text import settings_of
from edgemerge.dask.bundling import FAN_IN, Bundle, bundled
from edgemerge.dask.failing import holders, nothing_done, why_not
from edgemerge.dask.leaf import BadChunks, Leaf, added, end

AHEAD = 3  # bundles for each thread that are with the cluster at a time
STALLS = 2  # one after the other, after which all is given up
PATIENCE_S = 600.0  # more than Dask takes to give a silent worker up


def summed_up(
    client: Client,
    projection: Projection,
    chunks: Iterable[Any],
    *,
    bad_rows: BadRows = "refuse",
    bad_chunks: BadChunks = "refuse",
    read: Read = read,
    patience_s: float = PATIENCE_S,
    advance: Callable[[Any], None] | None = None,
) -> Part:
    """Sum up all chunks on the workers of a cluster; a few of them are in memory at a time.

    A bad row or chunk ends the work, or is left out and counted. `advance` is called with each
    chunk that is done. If nothing is done for `patience_s`, the workers that are at it are ended;
    a chunk at which that happens twice, or of which workers die again and again, counts as bad.
    """
    must_be_one_of("bad_chunks", bad_chunks, get_args(BadChunks))
    must_be_one_of("bad_rows", bad_rows, get_args(BadRows))
    if client.asynchronous or not patience_s > 0.0:
        raise SettingError("expected a client that is not asynchronous, and patience_s above 0")
    leaf = Leaf(settings_of(projection), projection.fingerprint, bad_rows, bad_chunks, read)
    tree = Tree(client, projection, leaf)
    tree.patience_s, tree.advance = patience_s, advance or tree.advance
    try:
        return tree.grow(bundled(chunks))
    except EdgemergeError:  # of which some are OSErrors too
        raise
    except OSError as error:
        why = str(error) or "no answer in time"  # a TimeoutError may say nothing
        raise AwayError(f"the scheduler cannot be reached: {why}") from error
    finally:
        tree.fell()


def height_for(threads: int) -> int:
    """Say how often parts are added on workers: until one covers what all threads do in a round.

    >>> [height_for(threads) for threads in (0, 2, 64, 65, 512, 1000)]
    [1, 1, 1, 2, 2, 3]
    """
    height = 1
    while FAN_IN ** (height + 1) < threads:
        height += 1
    return height


class Branch(NamedTuple):
    """What a future is to give: the sum of these bundles, added up so often."""

    level: int
    bundles: tuple[Bundle, ...]


class Tree:
    """Parts of one sum, wherever they are."""

    def __init__(self, client: Client, projection: Projection, leaf: Leaf) -> None:
        """Begin with nothing."""
        self._client, self._projection, self._leaf = client, projection, leaf
        self.patience_s = PATIENCE_S
        self.advance: Callable[[Any], None] = lambda _chunk: None
        self._waiting: Iterator[Bundle] = iter(())
        self._doubtful: deque[Bundle] = deque()  # one of them may be what workers die of
        self._done: Queue[Future[Part]] = Queue()
        self._growing: dict[Future[Part], Branch] = {}
        self._height = height_for(self._threads())
        self._shelves: list[dict[Future[Part], Branch]] = [{} for _ in range(self._height)]
        self._total = Part.nothing(projection)
        self._room, self._looks, self._stalls = 0, 0, 0

    def grow(self, bundles: Iterator[Bundle]) -> Part:
        """Sum up all bundles."""
        self._waiting = bundles
        while self._send():
            self._look_at(self._next())
        return self._total

    def fell(self) -> None:
        """Let go of everything that is still with the cluster."""
        self._let_go([*self._growing, *(future for shelf in self._shelves for future in shelf)])
        self._growing, self._shelves = {}, []  # who keeps an error keeps us too
        self._done = Queue()

    def _let_go(self, futures: list[Future[Part]]) -> None:
        if futures and self._client.status == "running":
            self._client.cancel(futures, force=True)

    def _send(self) -> bool:
        """Keep every thread busy with one bundle, and have the next ones waiting.

        In the end all comes home, and doubtful chunks are done one by one, with nobody about whom
        they could harm. False: there is nothing left to do.
        """
        if self._looks == 0:  # workers come and go: look again after a round
            self._room = AHEAD * max(1, self._threads())
        self._looks = (self._looks + 1) % self._room
        leaves = sum(branch.level == 0 for branch in self._growing.values())
        for bundle in islice(self._waiting, max(0, self._room - leaves)):
            self._submit(Branch(0, (bundle,)), self._leaf, bundle)
        if not self._growing:
            self._bring_home()
            if self._doubtful:
                bundle = self._doubtful.popleft()
                self._submit(Branch(0, (bundle,)), self._leaf, bundle)
        return bool(self._growing)

    def _threads(self) -> int:
        return sum(self._client.nthreads(callback_timeout=self.patience_s).values())

    def _submit(self, branch: Branch, call: Callable[..., Part], *given: Any) -> None:
        key = f"{'add' if branch.level else 'sum_up'}-{uuid4().hex}"
        first = min(branch.level, 1)  # adding makes room, so it goes first
        future = self._client.submit(call, *given, key=key, priority=first)
        self._growing[future] = branch
        future.add_done_callback(self._done.put)

    def _next(self) -> Future[Part] | None:
        try:
            future = self._done.get(timeout=self.patience_s)
        except Empty:
            self._give_up()
            return None
        return future

    def _look_at(self, future: Future[Part] | None) -> None:
        if future is None or future not in self._growing:
            return
        if future.status in ("pending", "lost"):  # it was done, but its worker has died since
            future.add_done_callback(self._done.put)
            return
        branch = self._growing.pop(future)
        if future.status != "finished":
            self._doubt(future, branch, told=branch.level > 0)
            return
        self._stalls = 0
        if branch.level < self._height:
            self._shelve(future, branch)
        else:
            self._take_home(future, branch)

    def _shelve(self, future: Future[Part], branch: Branch) -> None:
        if branch.level == 0:
            self._tell(branch.bundles[0])
        shelf = self._shelves[branch.level]
        shelf[future] = branch
        if len(shelf) == FAN_IN:
            bundles = tuple(bundle for each in shelf.values() for bundle in each.bundles)
            self._submit(Branch(branch.level + 1, bundles), added, *shelf)
            shelf.clear()

    def _bring_home(self) -> None:
        for shelf in self._shelves:
            for future, branch in shelf.items():
                self._take_home(future, branch)
            shelf.clear()

    def _take_home(self, future: Future[Part], branch: Branch) -> None:
        try:
            future.exception(timeout=self.patience_s)  # waits: its worker may have died since
            if future.status == "finished":
                self._total += future.result(timeout=self.patience_s)
                return
        except TimeoutError as error:
            raise AwayError(nothing_done(self.patience_s, self._client)) from error
        except KilledWorker:  # it was lost on its way home, and others died of it
            pass
        self._doubt(future, branch, told=True)

    def _tell(self, bundle: Bundle) -> None:
        for chunk in () if bundle.told else bundle.chunks:
            self.advance(chunk)

    def _doubt(self, future: Future[Part], branch: Branch, *, told: bool) -> None:
        """Have chunks done again if workers died of one of them; any other error ends the work."""
        reason = why_not(future, ", ".join(map(str, branch.bundles)))
        killed = future.status == "error" and isinstance(future.exception(), KilledWorker)
        self._let_go([future])  # its error may hold our own frames, and with them the future
        if not killed:
            raise reason
        for bundle in branch.bundles:
            self._blame(bundle, reason, told=told)

    def _blame(self, bundle: Bundle, reason: EdgemergeError, *, told: bool = False) -> None:
        """Leave out a chunk, unless another one may be to blame."""
        if not bundle.alone:
            self._doubtful.extend(bundle.apart(told=told))
        elif self._leaf.bad_chunks == "refuse":
            raise reason
        else:
            self._total += Part.without(self._projection, bundle.chunks[0], str(reason))
            self._tell(bundle)

    def _give_up(self) -> None:
        """End the workers that bring nothing to an end; others do what they were at."""
        self._stalls += 1
        self._threads()  # is the scheduler still there?
        stuck = holders(self._client, self._growing)
        if not stuck or self._stalls > STALLS:
            raise AwayError(nothing_done(self.patience_s, self._client))
        late = {future: at for future, at in stuck.items() if self._growing[future].level == 0}
        self._let_go(list(late))
        workers = sorted(set(stuck.values()))
        self._client.run(end, workers=workers, wait=False, on_error="ignore")
        for future, worker in late.items():
            (bundle,) = self._growing.pop(future).bundles
            words = f"worker {worker}: {bundle}: twice not done within {self.patience_s:g} s"
            self._blame(bundle, AwayError(f"{words}: raise patience_s if it takes longer"))
