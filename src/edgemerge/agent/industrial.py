"""Sources in plants: OPC UA and Modbus TCP, each read at an interval, with reconnects.

A row has all values or is skipped, and counted with the reason: a learner needs every input. What
the configuration names and the other side does not have is an error when the agent starts, and a
problem with the data later, when the agent must go on watching. Each protocol needs its extra,
which is imported when a connection is opened.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from math import isfinite
from pathlib import Path
from random import Random
from threading import Event
from time import monotonic
from typing import Any, Protocol, TypeVar

import numpy as np

from edgemerge.agent.sources import Reading
from edgemerge.core.errors import EdgemergeError, SettingError
from edgemerge.core.limit import NUMBER
from edgemerge.daemon import Backoff
from edgemerge.files import read_secret

T = TypeVar("T")

POLL_S = 0.1  # between two looks at `stop`
CLOSE_TIMEOUT_S = 1.0
FIRST_RETRY_S, MAX_RETRY_S = 1.0, 60.0
MODBUS_PORT = 502
MAX_REGISTERS, MAX_BITS = 125, 2000  # in one request of Modbus

logger = logging.getLogger(__name__)


class UnusableRowError(EdgemergeError, ValueError):
    """A value is missing: the row is skipped, and the connection stays."""


class MisfitError(UnusableRowError):
    """A value is of another kind than the configuration says, which does not pass by itself."""


class StoppedError(EdgemergeError):
    """The source was stopped while it waited for an answer."""


class Link(Protocol):
    """A connection to one server that can be asked for a row of values."""

    async def open(self) -> None:
        """Connect, and check that all values are there; SettingError names one that is not."""
        ...

    async def read(self) -> list[float]:
        """Return a value for each column; UnusableRowError says which one is missing."""
        ...

    async def close(self) -> None:
        """Close the connection, or what is left of it."""
        ...


class PolledSource:
    """The values that a server has now, once in every interval; it reconnects by itself.

    Args:
        link: The connection.
        place: The address of the server, in words.
        columns: Names of the values.
        interval_s: Seconds from one row to the next; a late one is not made up for.
        timeout_s: How long to wait for an answer, in seconds.
        first_retry_s: Seconds until the first retry; then twice as long each time, up to a minute.
    """

    def __init__(
        self,
        link: Link,
        place: str,
        columns: Sequence[str],
        *,
        interval_s: float,
        timeout_s: float,
        first_retry_s: float = FIRST_RETRY_S,
    ) -> None:
        """Connect when it is read."""
        self._link, self._place, self._columns = link, place, tuple(columns)
        self._interval_s, self._timeout_s = interval_s, timeout_s
        self._backoff = Backoff(first_retry_s, MAX_RETRY_S, Random(place))
        self._was_open = False  # at least once
        self.skipped = 0
        self.why_skipped = ""
        self.waiting = f"{place} was not reached yet"

    def read(self, stop: Event, position: Any = None) -> Iterator[Reading]:  # noqa: ARG002 - there is no going back
        """Return rows until `stop` is set.

        Raises:
            SettingError: The first time that the server is reached, it does not have all values.
        """
        with asyncio.Runner() as runner:
            while not stop.is_set():
                try:
                    runner.run(_bounded(self._link.open(), stop, self._timeout_s))
                    self._opened()
                    yield from self._rows(runner, stop)
                except StoppedError:
                    pass
                except SettingError as error:
                    if not self._was_open:
                        raise
                    self._skip(str(error))
                    self._lost(str(error))
                except Exception as error:  # noqa: BLE001 - libraries raise many kinds
                    words = str(error) or type(error).__name__
                    self._lost(f"{self._place} cannot be reached: {words}")
                finally:
                    runner.run(self._close())
                if not stop.is_set():
                    runner.run(_sleep(stop, self._backoff.next()))

    def _rows(self, runner: asyncio.Runner, stop: Event) -> Iterator[Reading]:
        due = monotonic()
        while not stop.is_set():
            runner.run(_sleep(stop, due - monotonic()))
            now = monotonic()
            due = (due if now < due + self._interval_s else now) + self._interval_s
            try:
                values = runner.run(_bounded(self._link.read(), stop, self._timeout_s))
                _must_be_finite(values, self._columns)
            except UnusableRowError as error:
                self._skip(str(error))
                continue
            self._backoff.reset()
            yield Reading(np.array(values), None, None, self._columns, self.skipped)

    async def _close(self) -> None:
        """Close the connection in any case; it may be broken, and the other side silent."""
        with suppress(Exception):
            await _bounded(self._link.close(), Event(), CLOSE_TIMEOUT_S)
        await asyncio.sleep(0)  # lets the transport close its socket

    def _opened(self) -> None:
        if self._was_open:
            logger.info("connected again", extra={"values": {"to": self._place}})
        self._was_open, self.waiting = True, f"{self._place} gives no usable values"

    def _skip(self, why: str) -> None:
        self.skipped += 1
        self.why_skipped = why

    def _lost(self, why: str) -> None:
        if self.waiting != why:
            logger.warning("the source is not available", extra={"values": {"why": why}})
        self.waiting = why


async def _bounded(work: Awaitable[T], stop: Event, timeout_s: float) -> T:
    """Wait for work, but no longer than the timeout, and not after `stop` is set."""
    task, end = asyncio.ensure_future(work), monotonic() + timeout_s
    while not (task.done() or stop.is_set()) and monotonic() < end:
        await asyncio.wait({task}, timeout=POLL_S)
    if task.done():
        if task.cancelled():  # as libraries do with requests when the connection breaks
            raise ConnectionError("the connection broke")
        return task.result()
    task.cancel()
    await asyncio.wait({task}, timeout=POLL_S)
    if stop.is_set():
        raise StoppedError
    raise TimeoutError(f"no answer within {timeout_s:g} s")


async def _sleep(stop: Event, wait_s: float) -> None:
    """Sleep until the time is over or `stop` is set; connections are kept alive meanwhile."""
    end = monotonic() + wait_s
    while not stop.is_set() and (left := end - monotonic()) > 0.0:
        await asyncio.sleep(min(POLL_S, left))


def _must_be_finite(values: Sequence[float], names: Sequence[str]) -> None:
    for name, value in zip(names, values, strict=True):
        if not isfinite(value):
            raise UnusableRowError(f"{name} is {value}, expected a finite number")


NODE_ID = re.compile(r"(?:ns=\d+;)?([isgb])=(.+)")
ELEMENTS = re.compile(r"(.*\S) \[(\d+)(?::(\d+))?\]")


@dataclass(frozen=True)
class NodeValues:
    """An entry of `source.nodes`: a node of OPC UA, by id or browse path, or elements of its array.

    >>> NodeValues.parse("ns=2;s=Pump.Flow").names
    ('Pump.Flow',)
    >>> NodeValues.parse("2:Pump/2:Spectrum [4:6]").names
    ('Spectrum[4]', 'Spectrum[5]')
    """

    node: str
    first: int | None = None  # of its array; None: it has a single value
    end: int = 0

    @classmethod
    def parse(cls, text: str) -> NodeValues:
        """Take "NODE", "NODE [3]" or "NODE [0:8]" apart."""
        found = ELEMENTS.fullmatch(text)
        if found is None:
            if not text.strip() or (not NODE_ID.fullmatch(text) and "=" in text):
                raise SettingError(
                    f'found source.nodes "{text}", expected an id such as "ns=2;s=Pump.Flow", or a '
                    'browse path such as "2:Pump/2:Flow"'
                )
            return cls(text)
        first = int(found[2])
        end = int(found[3]) if found[3] else first + 1
        if end <= first:
            raise SettingError(f'found source.nodes "{text}", expected elements such as [0:8]')
        return cls(found[1], first, end)

    @property
    def is_path(self) -> bool:
        """Whether it is a browse path from the folder Objects."""
        return NODE_ID.fullmatch(self.node) is None

    @property
    def names(self) -> tuple[str, ...]:
        """A name for each value."""
        found = NODE_ID.fullmatch(self.node)
        if found is None:
            name = self.node.rpartition("/")[2].rpartition(":")[2]
        else:
            name = found[2] if found[1] == "s" else self.node
        if self.first is None:
            return (name,)
        return tuple(f"{name}[{i}]" for i in range(self.first, self.end))

    def values(self, found: Any) -> list[float]:
        """Return the values of what a server answered; MisfitError if they are no numbers."""
        is_array = isinstance(found, list | tuple)
        if is_array and self.first is None:
            raise MisfitError(
                f"node {self.node} has {len(found)} values, expected one: choose elements, such as "
                f'"{self.node} [0:{len(found)}]"'
            )
        if not is_array and self.first is not None:
            raise MisfitError(f"node {self.node} has a single value, expected an array")
        some = found[self.first : self.end] if is_array else [found]
        if self.first is not None and len(some) < self.end - self.first:
            raise MisfitError(
                f"node {self.node} has {len(found)} values, expected {self.end} or more"
            )
        return [_number(each, f"node {self.node}") for each in some]


def _number(found: Any, what: str) -> float:
    if not isinstance(found, bool | int | float):
        raise MisfitError(f"{what} holds {found!r}, expected a number or true or false")
    return float(found)


@dataclass(frozen=True)
class OpcUaAccess:
    """How to sign in to an OPC UA server; secrets are read when it is opened.

    Args:
        endpoint: Its address, such as opc.tcp://plc:4840.
        username: The user's name; None (the default): no sign-in.
        password_file: The file with the password.
        security_policy: "none", or a policy of OPC UA: messages are signed and encrypted.
        certificate_file: This device's certificate, for a policy.
        key_file: Its private key.
        server_certificate_file: The server's certificate; None takes what the server shows.
    """

    endpoint: str
    username: str | None = None
    password_file: Path | None = None
    security_policy: str = "none"
    certificate_file: Path | None = None
    key_file: Path | None = None
    server_certificate_file: Path | None = None


class OpcUaLink:
    """Nodes of one OPC UA server, all read by one request."""

    def __init__(self, access: OpcUaAccess, nodes: Sequence[NodeValues], timeout_s: float) -> None:
        """Connect later."""
        self._access, self._wanted, self._timeout_s = access, nodes, timeout_s
        self._client: Any = None
        self._ids: list[Any] = []

    async def open(self) -> None:
        """Sign in, find the nodes, and read them once."""
        asyncua = import_module("asyncua")
        logging.getLogger("asyncua").setLevel(logging.CRITICAL)  # what matters is in our words
        client = asyncua.Client(self._access.endpoint, timeout=self._timeout_s)
        client.name = client.description = "edgemerge"
        await self._sign_in(client)
        self._client = client
        await client.connect()
        self._ids = [await self._find(each) for each in self._wanted]
        try:
            await self.read()
        except MisfitError as error:
            raise SettingError(f"{self._access.endpoint}: {error}") from error
        except UnusableRowError:
            pass  # a bad status may pass

    async def read(self) -> list[float]:
        """Read all nodes at once."""
        ua = import_module("asyncua.ua")
        asked = [
            ua.ReadValueId(NodeId=each, AttributeId=ua.AttributeIds.Value) for each in self._ids
        ]
        parameters = ua.ReadParameters(NodesToRead=asked)
        answers = await self._client.uaclient.read(parameters)
        found: list[float] = []
        for each, answer in zip(self._wanted, answers, strict=True):
            status = answer.StatusCode
            if status is not None and not status.is_good():
                if status.value in (
                    ua.StatusCodes.BadNodeIdUnknown,
                    ua.StatusCodes.BadNodeIdInvalid,
                ):
                    raise self._missing(each)
                raise UnusableRowError(f"node {each.node} has the status {status.name}")
            found += each.values(None if answer.Value is None else answer.Value.Value)
        return found

    async def close(self) -> None:
        """Sign out."""
        client, self._client = self._client, None
        if client is not None:
            await client.disconnect()

    async def _sign_in(self, client: Any) -> None:
        access = self._access
        if access.username is not None:
            client.set_user(access.username)
        if access.password_file is not None:
            client.set_password(read_secret(access.password_file, "password", strip="\r\n"))
        if access.security_policy == "none":
            return
        policies = import_module("asyncua.crypto.security_policies")
        await client.set_security(
            getattr(policies, f"SecurityPolicy{access.security_policy}"),
            certificate=str(access.certificate_file),
            private_key=str(access.key_file),
            server_certificate=access.server_certificate_file
            and str(access.server_certificate_file),
        )

    async def _find(self, wanted: NodeValues) -> Any:
        ua = import_module("asyncua.ua")
        try:
            if not wanted.is_path:
                return ua.NodeId.from_string(wanted.node)
            objects = self._client.nodes.objects
            return (await objects.get_child(wanted.node.split("/"))).nodeid
        except (ua.UaError, ValueError) as error:
            raise self._missing(wanted) from error

    def _missing(self, wanted: NodeValues) -> SettingError:
        return SettingError(
            f"{self._access.endpoint} has no node {wanted.node}, which may have been renamed: "
            "correct source.nodes, or restore the node"
        )


REGISTER = re.compile(
    r"(coil|discrete|input|holding) (\d+)(?: (u?int(?:16|32|64)|float(?:32|64)))?"
    rf"(?: \* ([-+]?(?:{NUMBER})(?:e[-+]?\d+)?))?"
)
ILLEGAL_ADDRESS = 2  # the exception code of Modbus
ADDRESSES = 2**16  # in each table of Modbus


@dataclass(frozen=True)
class Register:
    """An entry of `source.registers`: a value of a Modbus device.

    >>> Register.parse("input 30 int16 * 0.1")
    Register(table='input', address=30, kind='int16', scale=0.1)
    """

    table: str
    address: int
    kind: str = "uint16"
    scale: float = 1.0

    @classmethod
    def parse(cls, text: str) -> Register:
        """Take "TABLE ADDRESS [TYPE] [* SCALE]" apart."""
        found = REGISTER.fullmatch(" ".join(text.split()))
        if found is not None and not (found[3] and found[1] in BIT_TABLES):
            kind = "bit" if found[1] in BIT_TABLES else found[3] or "uint16"
            made = cls(found[1], int(found[2]), kind, float(found[4] or 1.0))
            if made.address + made.size <= ADDRESSES and isfinite(made.scale):
                return made
        raise SettingError(
            f'found source.registers "{text}", expected TABLE ADDRESS TYPE, such as '
            '"holding 100 float32", "input 4 int16 * 0.1" or "coil 3"; addresses count from 0'
        )

    @property
    def size(self) -> int:
        """The number of registers, or bits, that it has."""
        return 1 if self.kind == "bit" else int(self.kind[-2:]) // 16

    @property
    def name(self) -> str:
        """What to call it where it has no name."""
        return f"{self.table} {self.address}"


BIT_TABLES = ("coil", "discrete")
READERS = {
    "coil": "read_coils",
    "discrete": "read_discrete_inputs",
    "input": "read_input_registers",
    "holding": "read_holding_registers",
}


class ModbusLink:
    """Registers of one Modbus device; those that lie side by side are read by one request."""

    def __init__(
        self,
        address: tuple[str, int],
        registers: Sequence[Register],
        *,
        unit_id: int,
        word_order: str,
        timeout_s: float,
    ) -> None:
        """Connect later."""
        self._address, self._registers, self._timeout_s = address, registers, timeout_s
        self._unit_id, self._word_order = unit_id, word_order
        self._requests = adjacent(registers)
        self._client: Any = None

    async def open(self) -> None:
        """Connect, and read all registers once."""
        module = import_module("pymodbus.client")
        logging.getLogger("pymodbus").setLevel(logging.CRITICAL)  # what matters is in our words
        host, port = self._address
        options = {"timeout": self._timeout_s, "retries": 0, "reconnect_delay": 0}
        self._client = module.AsyncModbusTcpClient(host, port=port, **options)
        if not await self._client.connect():
            raise ConnectionError("no connection")
        with suppress(UnusableRowError):  # it may pass
            await self.read()

    async def read(self) -> list[float]:
        """Read all registers, one request after the other."""
        found: dict[tuple[str, int], Any] = {}
        for table, first, count in self._requests:
            ask = getattr(self._client, READERS[table])
            answer = await ask(first, count=count, device_id=self._unit_id)
            if answer.isError():
                raise self._refusal(table, first, count, answer)
            cells = answer.bits if table in BIT_TABLES else answer.registers
            if len(cells) < count:
                raise UnusableRowError(f"{table} {first}: {len(cells)} values, expected {count}")
            found |= {(table, first + i): cells[i] for i in range(count)}
        return [self._value(each, found) for each in self._registers]

    async def close(self) -> None:
        """Close the connection."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _value(self, register: Register, found: dict[tuple[str, int], Any]) -> float:
        where = range(register.address, register.address + register.size)
        cells = [found[register.table, each] for each in where]
        if register.kind == "bit":
            return register.scale * bool(cells[0])
        kinds = self._client.DATATYPE
        value = self._client.convert_from_registers(
            cells, kinds[register.kind.upper()], word_order=self._word_order
        )
        return register.scale * float(value)

    def _refusal(self, table: str, first: int, count: int, answer: Any) -> EdgemergeError:
        names = [
            each.name
            for each in self._registers
            if each.table == table and first <= each.address < first + count
        ]
        code = getattr(answer, "exception_code", None)
        if code == ILLEGAL_ADDRESS:
            return SettingError(
                f"{self._address[0]}:{self._address[1]} does not have {' or '.join(names)}: "
                "correct source.registers; addresses count from 0"
            )
        return UnusableRowError(f"{', '.join(names)}: the device answers {answer}")


def adjacent(registers: Sequence[Register]) -> list[tuple[str, int, int]]:
    """Return requests, each (table, first, count), that cover registers without a gap.

    >>> adjacent([Register.parse(each) for each in ("input 2 int32", "input 0 float32", "coil 9")])
    [('coil', 9, 1), ('input', 0, 4)]
    """
    found: list[tuple[str, int, int]] = []
    for each in sorted(registers, key=lambda each: (each.table, each.address)):
        table, first, count = found[-1] if found else ("", 0, 0)
        end = max(first + count, each.address + each.size)
        most = MAX_BITS if each.kind == "bit" else MAX_REGISTERS
        if table == each.table and each.address <= first + count and end - first <= most:
            found[-1] = (table, first, end - first)
        else:
            found.append((each.table, each.address, each.size))
    return found


def value_names(nodes: Sequence[str], registers: Sequence[str]) -> tuple[str, ...]:
    """Return a name for each value of a source, by its nodes or registers."""
    found = [name for each in nodes for name in NodeValues.parse(each).names]
    return (*found, *(Register.parse(each).name for each in registers))
