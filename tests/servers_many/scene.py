"""Four servers on one PostgreSQL behind nginx, two fleets of devices, and the last judgement."""

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from edgemerge import Projection, decode
from edgemerge.core.ledger import Selection
from edgemerge.exchange.client import ServerClient
from edgemerge.exchange.connection import Connection, url_path
from tests.faults.acknowledged import database_must_be_sound
from tests.servers_many.operating import Operator
from tests.servers_many.traffic import TIMEOUT_S, Crew, Device, Together
from tests.servers_many.trouble import Trouble
from tests.servers_many.truth import PLACES, Truth
from tests.servers_many.workers import Nest, Worker
from tests.services.nginx import Nginx
from tests.services.postgres import Postgres

SERVERS = 4
CREWS = 12
FLEETS = (  # a third of the devices is in the second one; all have too few samples for checks
    ("pumps", Projection(n_inputs=6, n_hidden=4), "contributions"),
    ("fans", Projection(n_inputs=5, n_hidden=4, seed=2), "totals"),
)
NEVER_LOGGED = ("damaged", "Traceback", "a change failed", "could not be kept")


class Scene:
    """All that takes part."""

    def __init__(self, folder: Path, nest: Nest, postgres: Postgres, *, devices: int, seed: int):
        self.postgres, self.seed = postgres, seed
        self.workers = [Worker(nest, folder, postgres.url, i + 1) for i in range(SERVERS)]
        self.balancer = Nginx(folder / "nginx", [worker.port for worker in self.workers])
        self._token_file = folder / "admin.token"
        self.truths = [Truth(*fleet) for fleet in FLEETS]
        self.devices = [self._device(number) for number in range(devices)]
        self.counts: Counter[str] = Counter()

    def open(self) -> None:
        """Start all servers at once, on an empty database, then let everybody in."""
        for worker in self.workers:
            worker.start()
        for worker in self.workers:
            worker.await_ready()
        self.balancer.start()
        self.token = self._token_file.read_text(encoding="utf-8").strip()
        operator = ServerClient(self.balancer.url, self.token)
        for truth in self.truths:
            operator.create_fleet(truth.fleet, truth.projection, reads=truth.reads, least=1)
        operator.close()
        with ThreadPoolExecutor(SERVERS) as pool:
            list(pool.map(self._enrol, [self.devices[i::SERVERS] for i in range(SERVERS)]))

    def close(self) -> None:
        self.balancer.close()
        for worker in self.workers:
            worker.close()

    def run(self, *, kills: float, seconds: float, told=None) -> None:
        """Let everything happen at once until there were so many kills, or the time is over."""
        crews = [self._crew(i) for i in range(CREWS)]
        self.operator = Operator(self.balancer.url, self.token, self.devices, self.seed)
        trouble = Trouble(self.workers, self.postgres, self.seed, kills=kills)
        parts: list[Any] = [*crews, self.operator, trouble]
        together = Together()
        start = time.monotonic()
        for part in parts:
            together.start(part.work)
        try:
            while not (trouble.done.wait(1.0) or together.stop.is_set()):
                if told is not None:
                    told(self._counted(parts, start))
                if time.monotonic() - start > seconds:
                    break
        finally:
            self.counts = self._counted(parts, start)
            together.finish()
        self.counts = self._counted(parts, start)

    def judge(self) -> None:
        """Nobody writes any more: every server must tell the union of what was acknowledged."""
        self.operator.undo_all()
        rng = np.random.default_rng(self.seed)
        for device in self.devices:
            self.operator.until_done(device.settle)
        for device in rng.choice(self.devices, 3, replace=False):
            device.doubtful.clear()
            self.operator.drop(device)
        for device in rng.choice(self.devices, 3, replace=False):
            self.operator.exclude(device)
        for truth in self.truths:
            self._judge(truth, rng)
        self.operator.hub.close()

    def must_have_left_a_sound_database(self) -> int:
        """Look at the database and the logs after all servers were asked to stop."""
        self.close()
        for worker in self.workers:
            said = worker.log.read_text(encoding="utf-8")
            assert not [words for words in NEVER_LOGGED if words in said], said
        return int(database_must_be_sound(self.postgres.url))

    def _judge(self, truth: Truth, rng) -> None:
        ledger = truth.ledger()
        assert len(ledger) > 0, "somebody told something"
        some = [str(name) for name in rng.choice(ledger.devices, 9, replace=False)]
        cases: list[tuple[dict, dict]] = [({}, {}), ({"without": some[0]}, {"without": some[0]})]
        cases += [({"without": some}, {"without": some}), ({"device": some}, {"devices": some})]
        cases += [({"pattern": pattern}, {"pattern": pattern}) for pattern in PLACES]
        asking = [Connection(url, self.token, timeout_s=TIMEOUT_S) for url in self.urls]
        for query, wanted in cases:
            expected = ledger.total(**wanted)
            where = url_path("fleets", truth.fleet, "total")
            answers = [one.ask("GET", where, query=query).must_be(200).body for one in asking]
            assert len(set(answers)) == 1, f"{query}: servers told different bytes"
            told = decode(answers[0], projection=truth.projection)
            assert told.total == expected, f"{truth.fleet} {query}: not the union"
            self.counts["totals judged"] += len(answers)
        for one in asking:
            patterns = one.ask("GET", url_path("fleets", truth.fleet, "patterns")).must_be(200).body
            told = decode(patterns, projection=truth.projection)
            assert told.total == ledger.total(), "patterns do not add up to the union"
            one.close()
        for device in [one for one in self.devices if one.truth is truth][:4]:
            for url in self.urls:
                exchange = device.exchange_at(url)
                told = exchange.pull(Selection(receiver=device.name))
                assert told.total == ledger.total(without=device.name), f"{url} to {device.name}"
                exchange.close()

    @property
    def urls(self) -> list[str]:
        return [*(worker.url for worker in self.workers), self.balancer.url]

    def _device(self, number: int) -> Device:
        truth = self.truths[number % 3 == 2]
        patterns = list(PLACES)[: 1 + number % 2]
        return Device(f"{truth.fleet}-{number:03}", truth, self.balancer.url, patterns)

    def _enrol(self, devices: list[Device]) -> None:
        operator = ServerClient(self.balancer.url, self.token, timeout_s=TIMEOUT_S)
        for device in devices:
            device.enrol(operator)
        operator.close()

    def _crew(self, number: int) -> Crew:
        urls = [worker.url for worker in self.workers]
        return Crew(self.devices[number::CREWS], urls, self.token, self.seed + number)

    def _counted(self, parts, start: float) -> Counter:
        counts: Counter[str] = Counter({"seconds": round(time.monotonic() - start)})
        for part in parts:
            counts.update(part.counts)
        counts["answers judged"] = sum(truth.checked for truth in self.truths)
        return counts


@contextmanager
def scene(folder: Path, *, devices: int, seed: int, **settings: str):
    """Have all of it, until the block ends; `settings` are PostgreSQL's."""
    with ExitStack() as ending:
        postgres = Postgres(**settings)
        ending.callback(postgres.remove)
        nest = Nest()
        ending.callback(nest.close)
        made = Scene(folder, nest, postgres, devices=devices, seed=seed)
        ending.callback(made.close)
        made.open()
        yield made
