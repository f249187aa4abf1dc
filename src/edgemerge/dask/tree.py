"""The reduction tree: which parts are added where, and how lost workers and chunks are retried.

Each bundle of chunks becomes a part on some worker. Eight parts of a level are added into one of
the next, on a worker, up to a height above which parts are fetched: a dying worker then loses
little, and the scheduler can forget how they were made. A few bundles per thread are in flight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from queue import Empty, Queue
from typing import Any, NamedTuple
from uuid import uuid4

from distributed import Client, Future, KilledWorker

from edgemerge.bulk.chunk import read_chunk
from edgemerge.bulk.part import OnBadData, Part, Read, bad_data_choice
from edgemerge.core.errors import EdgemergeError, SettingError, UnavailableError
from edgemerge.core.projection import Projection
from edgemerge.dask.cluster import future_error, stall_message, workers_of
from edgemerge.dask.tasks import (
    FAN_IN,
    Bundle,
    SumTask,
    add_parts,
    exit_worker,
    make_bundles,
)
from edgemerge.wire.codec import projection_to_text

BUNDLES_PER_THREAD = 3  # submitted at a time
MAX_STALLS = 2  # in a row, before giving up
STALL_TIMEOUT_S = 600.0  # more than Dask takes to give a silent worker up


def summed_up(
    client: Client,
    projection: Projection,
    chunks: Iterable[Any],
    *,
    bad_rows: OnBadData = "error",
    bad_chunks: OnBadData = "error",
    read: Read = read_chunk,
    stall_timeout_s: float = STALL_TIMEOUT_S,
    advance: Callable[[Any], None] | None = None,
    patience_s: float | None = None,
) -> Part:
    """Sum up all chunks on the workers of a cluster; a few of them are in memory at a time.

    Args:
        client: A client of the cluster, not asynchronous.
        projection: The projection that all devices share.
        chunks: What `chunks_of` returned, or whatever `read` takes.
        bad_rows: What to do with a row that has a missing or infinite value: "error" (the
            default) ends the work, "skip" skips and counts it.
        bad_chunks: What to do with a chunk that cannot be summed up, likewise; skipped chunks are
            listed. A chunk is bad, too, if workers die of it again and again, or stall twice.
        read: `read(chunk, projection)` yields samples (k, n), some at a time; by default it reads
            the chunks of `chunks_of`.
        stall_timeout_s: If no chunk is done for so long, in seconds, restart the workers that are
            busy; 600 by default. Raise it if a chunk takes longer.
        advance: Called with each chunk that is done, to show progress; None (the default): nothing.
        patience_s: Former name of `stall_timeout_s`; None by default.

    Raises:
        SampleError: A chunk is bad, and `bad_chunks` is "error".
        UnavailableError: The scheduler cannot be reached, or no worker makes progress.
    """
    timeout_s = stall_timeout_s if patience_s is None else patience_s
    on_bad = bad_data_choice("bad_rows", bad_rows), bad_data_choice("bad_chunks", bad_chunks)
    if client.asynchronous or not timeout_s > 0.0:
        raise SettingError(
            "expected a client that is not asynchronous, and stall_timeout_s above 0"
        )
    leaf = SumTask(projection_to_text(projection), projection.fingerprint, *on_bad, read)
    tree = ReductionTree(client, projection, leaf)
    tree.stall_timeout_s, tree.advance = timeout_s, advance or tree.advance
    try:
        return tree.sum_all(make_bundles(chunks))
    except EdgemergeError:  # of which some are OSErrors too
        raise
    except OSError as error:
        why = str(error) or "no answer in time"  # a TimeoutError may say nothing
        raise UnavailableError(f"the scheduler cannot be reached: {why}") from error
    finally:
        tree.cancel_all()


def tree_height(threads: int) -> int:
    """Return how often parts are added on workers: until one covers a round of all threads.

    >>> [tree_height(threads) for threads in (0, 2, 64, 65, 512, 1000)]
    [1, 1, 1, 2, 2, 3]
    """
    height = 1
    while FAN_IN ** (height + 1) < threads:
        height += 1
    return height


class Subtree(NamedTuple):
    """The expected result of a future: the sum of bundles at a level of the tree."""

    level: int
    bundles: tuple[Bundle, ...]


class ReductionTree:
    """The state of one reduction: bundles to do, running tasks, and parts by level."""

    def __init__(self, client: Client, projection: Projection, leaf: SumTask) -> None:
        """Start with no parts."""
        self._client, self._projection, self._leaf = client, projection, leaf
        self.stall_timeout_s = STALL_TIMEOUT_S
        self.advance: Callable[[Any], None] = lambda _chunk: None
        self._waiting: Iterator[Bundle] = iter(())
        self._suspects: deque[Bundle] = deque()  # one of them may kill workers
        self._done: Queue[Future[Part]] = Queue()
        self._in_flight: dict[Future[Part], Subtree] = {}
        self._height = tree_height(self._threads())
        self._levels: list[dict[Future[Part], Subtree]] = [{} for _ in range(self._height)]
        self._total = Part.nothing(projection)
        self._room, self._looks, self._stalls = 0, 0, 0

    def sum_all(self, bundles: Iterator[Bundle]) -> Part:
        """Sum up all bundles."""
        self._waiting = bundles
        while self._send():
            self._handle_result(self._next())
        return self._total

    def cancel_all(self) -> None:
        """Cancel everything that is still on the cluster."""
        self._cancel([*self._in_flight, *(future for shelf in self._levels for future in shelf)])
        self._in_flight, self._levels = {}, []  # a kept error would keep them alive
        self._done = Queue()

    def _cancel(self, futures: list[Future[Part]]) -> None:
        if futures and self._client.status == "running":
            self._client.cancel(futures, force=True)

    def _send(self) -> bool:
        """Keep every thread busy with one bundle, and the next ones queued.

        In the end all parts are fetched. Then suspect chunks are retried one by one, so that a
        worker that dies takes no other result with it. Return False if nothing is left to do.
        """
        if self._looks == 0:  # workers come and go: count again after a round
            self._room = BUNDLES_PER_THREAD * max(1, self._threads())
        self._looks = (self._looks + 1) % self._room
        leaves = sum(branch.level == 0 for branch in self._in_flight.values())
        for bundle in islice(self._waiting, max(0, self._room - leaves)):
            self._submit(Subtree(0, (bundle,)), self._leaf, bundle)
        if not self._in_flight:
            self._fetch_all()
            if self._suspects:
                bundle = self._suspects.popleft()
                self._submit(Subtree(0, (bundle,)), self._leaf, bundle)
        return bool(self._in_flight)

    def _threads(self) -> int:
        return sum(self._client.nthreads(callback_timeout=self.stall_timeout_s).values())

    def _submit(self, branch: Subtree, call: Callable[..., Part], *given: Any) -> None:
        key = f"{'add' if branch.level else 'sum_up'}-{uuid4().hex}"
        first = min(branch.level, 1)  # adding frees memory, so it goes first
        future = self._client.submit(call, *given, key=key, priority=first)
        self._in_flight[future] = branch
        future.add_done_callback(self._done.put)

    def _next(self) -> Future[Part] | None:
        try:
            future = self._done.get(timeout=self.stall_timeout_s)
        except Empty:
            self._give_up()
            return None
        return future

    def _handle_result(self, future: Future[Part] | None) -> None:
        if future is None or future not in self._in_flight:
            return
        if future.status in ("pending", "lost"):  # done, but its worker died since
            future.add_done_callback(self._done.put)
            return
        branch = self._in_flight.pop(future)
        if future.status != "finished":
            self._handle_failure(future, branch, reported=branch.level > 0)
            return
        self._stalls = 0
        if branch.level < self._height:
            self._store_part(future, branch)
        else:
            self._fetch_part(future, branch)

    def _store_part(self, future: Future[Part], branch: Subtree) -> None:
        if branch.level == 0:
            self._report(branch.bundles[0])
        shelf = self._levels[branch.level]
        shelf[future] = branch
        if len(shelf) == FAN_IN:
            bundles = tuple(bundle for each in shelf.values() for bundle in each.bundles)
            self._submit(Subtree(branch.level + 1, bundles), add_parts, *shelf)
            shelf.clear()

    def _fetch_all(self) -> None:
        for shelf in self._levels:
            for future, branch in shelf.items():
                self._fetch_part(future, branch)
            shelf.clear()

    def _fetch_part(self, future: Future[Part], branch: Subtree) -> None:
        try:
            future.exception(timeout=self.stall_timeout_s)  # waits: its worker may have died since
            if future.status == "finished":
                self._total += future.result(timeout=self.stall_timeout_s)
                return
        except TimeoutError as error:
            raise UnavailableError(stall_message(self.stall_timeout_s, self._client)) from error
        except KilledWorker:  # it was lost on its way home, and others died of it
            pass
        self._handle_failure(future, branch, reported=True)

    def _report(self, bundle: Bundle) -> None:
        for chunk in () if bundle.reported else bundle.chunks:
            self.advance(chunk)

    def _handle_failure(self, future: Future[Part], branch: Subtree, *, reported: bool) -> None:
        """Retry chunks if workers died of one of them; raise any other error."""
        reason = future_error(future, ", ".join(map(str, branch.bundles)))
        killed = future.status == "error" and isinstance(future.exception(), KilledWorker)
        self._cancel([future])  # its error may hold our own frames, and with them the future
        if not killed:
            raise reason
        for bundle in branch.bundles:
            self._retry_alone_or_drop(bundle, reason, reported=reported)

    def _retry_alone_or_drop(
        self, bundle: Bundle, reason: EdgemergeError, *, reported: bool = False
    ) -> None:
        """Skip a chunk, unless another one may be the cause."""
        if not bundle.alone:
            self._suspects.extend(bundle.apart(reported=reported))
        elif self._leaf.bad_chunks == "error":
            raise reason
        else:
            self._total += Part.without(self._projection, bundle.chunks[0], str(reason))
            self._report(bundle)

    def _give_up(self) -> None:
        """Restart the workers that make no progress; others take over their tasks."""
        self._stalls += 1
        self._threads()  # raises if the scheduler is gone
        stuck = workers_of(self._client, self._in_flight)
        if not stuck or self._stalls > MAX_STALLS:
            raise UnavailableError(stall_message(self.stall_timeout_s, self._client))
        late = {future: at for future, at in stuck.items() if self._in_flight[future].level == 0}
        self._cancel(list(late))
        workers = sorted(set(stuck.values()))
        self._client.run(exit_worker, workers=workers, wait=False, on_error="ignore")
        for future, worker in late.items():
            (bundle,) = self._in_flight.pop(future).bundles
            words = f"worker {worker}: {bundle}: twice not done within {self.stall_timeout_s:g} s"
            self._retry_alone_or_drop(
                bundle, UnavailableError(f"{words}: raise stall_timeout_s if it takes longer")
            )
